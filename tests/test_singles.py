"""The best single feature, and the warning that a ranker is worse."""

import warnings

import numpy as np
import pytest

import tierank
from tierank import Judge, RankingDataset, SingleFeatureWarning, UMart
from tierank.metrics.singles import best_single_feature, warn_of_single_feature


def judged(seed=0, n_queries=60, length=12, falling=False, names=("a", "b", "c")):
    """Ratings by the feature b; the others say nothing."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_queries * length, 3))
    y = np.clip(np.round(X[:, 1] + rng.normal(0, 0.3, len(X)) + 1), 0, 3)
    X[:, 1] *= -1 if falling else 1
    return RankingDataset(X, y, np.repeat(np.arange(n_queries), length), feature_names=names)


@pytest.mark.parametrize("falling", [False, True])
def test_the_best_feature_is_that_of_judging_each(falling):
    data = judged(falling=falling)
    judge = Judge(data, "ndcg@10")
    best = best_single_feature(data, judge)
    each = {
        (name, sign): np.nanmean(judge(sign * data.features[:, k].astype(float))["ndcg@10"])
        for k, name in enumerate(data.feature_names)
        for sign in (1, -1)
    }
    assert (best.name, 1 if best.is_rising else -1) == max(each, key=each.get) == ("b", -1 if falling else 1)
    assert np.nanmean(best.values) == max(each.values())


def test_missing_values_rank_last_and_equal_ones_gain_nothing_by_their_order():
    data = judged()
    X = np.array(data.features)
    order = np.argsort(-data.ratings, kind="stable")
    X[:, 0] = 1.0  # the same for all documents, which are sorted by their rating
    X[::3, 1] = np.nan
    ids = data.query_of_row
    by_rating = RankingDataset(X[order], data.ratings[order], ids[order])
    assert best_single_feature(by_rating, Judge(by_rating, "ndcg@10")).name != "feature 1"


def test_a_ranker_that_is_worse_than_a_feature_says_so():
    data, noise = judged(), np.random.default_rng(1).normal(size=720)
    with pytest.warns(SingleFeatureWarning, match=r"the feature 'b' alone has ndcg@10 0\.\d+ .* and the ranker 0\.\d+"):
        warn_of_single_feature(data, noise, "ndcg@10", "tierank", 1, stacklevel=1)
    with pytest.warns(SingleFeatureWarning, match="'b' alone, lowest first, has"):
        warn_of_single_feature(judged(falling=True), noise, "ndcg@10", "tierank", 1, stacklevel=1)


def test_there_is_no_warning_without_cause():
    data, noise = judged(), np.random.default_rng(1).normal(size=720)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SingleFeatureWarning)
        good = data.features[:, 1] + 0.05 * noise  # hardly worse
        warn_of_single_feature(data, good.astype(float), "ndcg@10", "tierank", 1, stacklevel=1)
        few = data.select(np.arange(19))
        warn_of_single_feature(few, noise[: few.n_documents], "ndcg@10", "tierank", 1, stacklevel=1)
        train, valid = tierank.make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.6, 0.4)
        UMart(n_trees=100).fit(train, valid=valid)


def test_fit_warns_by_its_own_metric_at_the_line_of_the_caller():
    train = judged(1, n_queries=8)
    shuffled = train.replace(ratings=np.random.default_rng(2).permutation(train.ratings))
    with pytest.warns(SingleFeatureWarning, match="has err@5") as warned:
        UMart(n_trees=3, min_documents=3, select_by="err@5").fit(shuffled, valid=judged())
    assert warned[0].filename == __file__
