"""UMart and LambdaMART beyond the common contract."""

import re

import lightgbm
import numpy as np
import pytest

import tierank
from tierank import DataError, LambdaMART, ParameterError, UMart, URank, make_ranking
from tierank.losses import UMartObjective
from tierank.metrics.significance import paired_p
from tierank.rankers import tree_training as tree_training


@pytest.fixture(scope="module")
def parts():
    return tierank.make_ranking(150, n_features=8, mean_length=20, max_length=50, seed=2).split(0.5, 0.25, 0.25)


def test_the_best_round_by_an_ordered_list_is_kept(parts):
    train, valid, _ = parts
    metrics = ["ndcg@1", "ndcg@5"]
    settings = {"n_trees": 120, "select_by": metrics, "patience": 30, "select_over": 1, "learning_rate": 0.2}
    ranker = UMart(**settings).fit(train, valid=valid)
    rows = [tuple(row.values()) for row in ranker.history_]
    best = None
    for number, row in enumerate(rows, 1):  # the rule of the paper, word for word
        if best is None or row[0] > best[0] + 1e-6 or (abs(row[0] - best[0]) <= 1e-6 and row[1] > best[1] + 1e-6):
            best, chosen = row, number
    assert ranker.n_rounds_ == chosen
    assert len(rows) == min(120, chosen + 30)
    kept = tierank.evaluate(valid, ranker.predict(valid), metrics)
    assert tuple(kept.mean(metric) for metric in metrics) == pytest.approx(best, abs=1e-12)
    assert ranker.best_ == ranker.history_[chosen - 1]


@pytest.mark.parametrize("over", [2, 7, 1000])
def test_the_best_round_by_a_mean_over_rounds_is_kept(parts, over):
    train, valid, _ = parts
    settings = {"n_trees": 120, "select_by": ["ndcg@3", "ndcg@10"], "patience": 30, "learning_rate": 0.2}
    ranker = UMart(**settings, select_over=over).fit(train, valid=valid)
    rows = np.array([tuple(row.values()) for row in ranker.history_])
    means = [rows[max(0, end - over) : end].mean(axis=0) for end in range(1, len(rows) + 1)]
    best, chosen = means[0], 1
    for number, mean in enumerate(means, 1):
        if mean[0] > best[0] + 1e-6 or (abs(mean[0] - best[0]) <= 1e-6 and mean[1] > best[1] + 1e-6):
            best, chosen = mean, number
    assert ranker.n_rounds_ == chosen
    assert len(rows) == min(120, chosen + 30)
    assert ranker.best_ == ranker.history_[chosen - 1]  # of this round, not of the mean


def test_rounds_are_compared_by_the_mean_of_three_metrics(parts):
    train, valid, _ = parts
    settings = {"n_trees": 80, "patience": 20, "learning_rate": 0.2, "n_jobs": 1}
    whole = LambdaMART(**settings | {"select_by": ["ndcg@10", "ndcg", "map"], "keep": "all", "patience": 100})
    means = [np.mean(list(row.values())) for row in whole.fit(train, valid=valid).history_]
    smooth = [np.mean(means[max(0, end - 20) : end]) for end in range(1, 81)]
    for given in ({}, {"select_with": "ndcg,map"}, {"select_by": "ndcg@10", "select_with": ["map", "ndcg", "ndcg@10"]}):
        ranker = LambdaMART(**settings, **given).fit(train, valid=valid)
        assert smooth[ranker.n_rounds_ - 1] == pytest.approx(max(smooth[: len(ranker.history_)]), abs=1e-6)
        assert list(ranker.best_) == ["ndcg@10"]
    alone = LambdaMART(**settings, select_with=[]).fit(train, valid=valid)
    rows = [row["ndcg@10"] for row in alone.history_]
    assert alone.n_rounds_ == 1 + int(
        np.argmax([np.mean(rows[max(0, end - 20) : end]) for end in range(1, len(rows) + 1)])
    )


def test_a_mean_over_rounds_resumes_to_the_same_model(parts, tmp_path):
    train, valid, test = parts
    settings = {"n_trees": 130, "patience": 40, "select_over": 30, "bagging_fraction": 0.7, "bagging_freq": 1}
    settings |= {"learning_rate": 0.2}
    calls = []

    def interrupt(step):
        calls.append(step)
        if step.number == 70:
            raise RuntimeError("pulled the plug")

    with pytest.raises(RuntimeError, match="pulled the plug"):
        UMart(**settings).fit(train, valid=valid, checkpoint=tmp_path / "kept", callbacks=[interrupt])
    resumed = UMart(**settings).fit(train, valid=valid, checkpoint=tmp_path / "kept")
    whole = UMart(**settings).fit(train, valid=valid)
    assert len(calls) == 70
    assert len(whole.history_) > 70
    assert resumed.history_ == whole.history_
    assert resumed.n_rounds_ == whole.n_rounds_
    np.testing.assert_array_equal(resumed.predict(test), whole.predict(test))


@pytest.mark.parametrize("setting", ["patience", "select_over", "select_with"])
def test_what_has_no_effect_if_all_trees_are_kept_is_refused(parts, setting):
    with pytest.raises(ParameterError, match=f"^{setting}: has no effect with keep='all', .*; leave out {setting}"):
        UMart(keep="all", **{setting: "map" if setting == "select_with" else 7}).fit(parts[0], valid=parts[1])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"norm": False}, {"lambdarank_norm": False}),
        ({"truncation": 3}, {"lambdarank_truncation_level": 3}),
        ({"sigma": 2.0}, {"sigmoid": 2.0}),
        ({"gain": dict(enumerate([0, 1, 1, 1, 9]))}, {"label_gain": [0, 1, 1, 1, 9]}),
    ],
)
def test_lambdamart_is_that_of_lightgbm(parts, ours, theirs):
    """150 rounds are three boosters; their sum is what LightGBM itself makes in one, up to its table of sigmoids."""
    train, _, test = parts
    ranker = LambdaMART(n_trees=150, min_documents=5, n_leaves=5, ties="rows", **ours).fit(train)
    order, offsets = tierank.rankers.order.canonical_rows(train, 1)[:2]
    data = lightgbm.Dataset(
        train.features[order].astype(np.float64), label=train.ratings[order], group=np.diff(offsets)
    )
    params = {
        "objective": "lambdarank", "learning_rate": 0.05, "min_data_in_leaf": 5, "num_leaves": 5, "seed": 0,
        "deterministic": True, "force_col_wise": True, "verbosity": -1, "num_threads": 1,
    }  # fmt: skip
    native = lightgbm.train(params | theirs, data, num_boost_round=150)
    first = lightgbm.Booster(model_str=ranker.model_.text).predict(test.features, num_iteration=20)
    np.testing.assert_allclose(first, native.predict(test.features, num_iteration=20), atol=1e-4)
    # Gains of splits that are equal to five digits may end in another order, so that later trees differ a little.
    assert np.corrcoef(ranker.predict(test), native.predict(test.features))[0, 1] > 0.99


def test_umart_with_a_window_of_one_is_lambdamart(parts):
    """While all scores of a query are equal, as in the first round, the two are the same; see UMartObjective."""
    train, _, test = parts
    common = {"n_trees": 1, "learning_rate": 1.0, "min_documents": 5}
    theirs = LambdaMART(**common, norm=False, sigma=2.0, truncation=10).fit(train)
    ours = UMart(**common, window=1, hessian="exact", truncation=10, idcg_at=10).fit(train)
    np.testing.assert_allclose(ours.predict(test), theirs.predict(test), rtol=1e-4, atol=1e-6)
    assert np.ptp(ours.predict(test)) > 0.1


@pytest.mark.filterwarnings("ignore:ratings go up to")
def test_lambdamart_takes_any_ratings():
    """Fractions and many levels, which LightGBM's lambdarank refuses."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(600, 3)).astype(np.float32)
    ratings = np.digitize(features[:, 0] + rng.normal(size=600), [0, 1]).astype(float)
    queries = np.arange(600) // 20
    for odd in (ratings + 0.5, ratings * 20):
        ranker = LambdaMART(n_trees=5).fit(features, odd, qid=queries)
        assert np.ptp(ranker.predict(features)) > 0


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 1e-40, np.nan])
@pytest.mark.parametrize("kind", [UMart, LambdaMART])
def test_features_that_tell_nothing_apart_give_one_score(kind, value):
    features = np.full((40, 3), value, np.float32)
    ranker = kind(n_trees=3, n_jobs=1).fit(features, np.arange(40) % 3, qid=np.arange(40) // 10)
    assert np.ptp(ranker.predict(features)) == 0


def test_a_query_of_sixty_thousand_documents():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60_000, 2)).astype(np.float32)
    ratings = np.digitize(features[:, 0], [1.0, 2.0, 3.0])
    with pytest.warns(UserWarning, match="all 60,000 rows are one query"):
        ranker = UMart(n_trees=2, n_leaves=4).fit(features, ratings)
    assert np.corrcoef(ranker.predict(features), features[:, 0])[0, 1] > 0.3


def test_weights(parts):
    train, _, test = parts
    plain = UMart(n_trees=10, min_sum_hessian_in_leaf=0).fit(train).predict(test)
    arguments = (np.array(train.features), train.ratings)
    queries = np.repeat(train.query_ids, train.lengths)
    # The same weight everywhere changes nothing but rounding.
    doubled = UMart(n_trees=10, min_sum_hessian_in_leaf=0).fit(
        *arguments, qid=queries, query_weight=np.full(train.n_queries, 2.0)
    )
    np.testing.assert_allclose(doubled.predict(test), plain, rtol=1e-3, atol=1e-4)
    # A query without weight teaches nothing, by whichever name the weights come.
    silent = np.ones(train.n_queries)
    silent[::2] = 0
    by_query = UMart(n_trees=10).fit(*arguments, qid=queries, query_weight=silent).predict(test)
    by_row = UMart(n_trees=10).fit(*arguments, qid=queries, row_weight=np.repeat(silent, train.lengths)).predict(test)
    np.testing.assert_array_equal(by_row, by_query)
    assert not np.allclose(by_query, plain)
    other = np.where(np.repeat(silent, train.lengths) > 0, train.ratings, 4 - train.ratings)
    deaf = UMart(n_trees=10).fit(arguments[0], other, qid=queries, query_weight=silent).predict(test)
    np.testing.assert_array_equal(deaf, by_query)


def test_importances(parts):
    train, _, _ = parts
    ranker = UMart(n_trees=20).fit(train)
    leaves = [int(line.split("=")[1]) for line in ranker.model_.text.splitlines() if line.startswith("num_leaves=")]
    assert ranker.importance("split").sum() == sum(n - 1 for n in leaves)
    assert ranker.feature_importances_.sum() == pytest.approx(1)
    assert ranker.importance("gain").argmax() == ranker.feature_importances_.argmax()
    with pytest.raises(ParameterError, match="unknown importance 'gian'"):
        ranker.importance("gian")


def test_monotone_constraints_and_other_parameters_by_their_own_names(parts):
    train, _, _ = parts
    up = UMart(n_trees=30, monotone_constraints=[1] + [0] * 7).fit(train)
    line = np.tile(np.median(train.features, axis=0), (50, 1)).astype(np.float32)
    line[:, 0] = np.linspace(train.features[:, 0].min(), train.features[:, 0].max(), 50)
    assert (np.diff(up.predict(line)) >= 0).all()
    assert up.get_params()["monotone_constraints"] == [1] + [0] * 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_tree": 5}, r"unknown setting of UMart 'n_tree': did you mean 'n_trees'\?"),
        ({"num_leaves": 5}, "num_leaves: expected n_leaves, which is the name of this setting in UMart"),
        ({"max_leaves": 5}, "max_leaves: expected n_leaves, which is the name of this setting in UMart"),
        ({"objective": "lambdarank"}, "objective: is not a setting of UMart; NetworkRanker and TreeRanker take a loss"),
        ({"boosting": "dart"}, "unknown boosting 'dart'"),
        ({"n_trees": 0}, "n_trees: expected an integer >= 1.*, got 0"),
        ({"n_leaves": 1}, "n_leaves: expected an integer >= 2.*, got 1"),
        ({"learning_rate": 0}, "learning_rate: expected a number > 0, got 0"),
        ({"window": 0}, r"window: expected an integer >= 1, or None \(all of them\), got 0"),
        ({"hessian": "exakt"}, r"unknown hessian 'exakt': did you mean 'exact'\?"),
        ({"bagging_fraction": 2.0, "bagging_freq": 1}, "bagging_fraction: expected a number > 0 and <= 1, got 2.0"),
    ],
)
def test_settings_that_cannot_be_used(parts, settings, message):
    with pytest.raises(ParameterError, match=message):
        UMart(**settings).fit(parts[0])


def test_a_function_cannot_be_saved(parts, tmp_path):
    ranker = UMart(n_trees=2, gain=np.sqrt).fit(parts[0])
    with pytest.raises(DataError, match="gain: expected a value that a file can hold"):
        ranker.save(tmp_path / "model")


def test_presets_fill_what_was_left_at_its_default(parts):
    resolved = UMart.from_preset("paper-ohsumed", n_trees=7).checked_settings()
    assert (resolved["n_trees"], resolved["n_leaves"], resolved["max_bin"]) == (7, 31, 255)
    assert resolved["select_by"] == ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")
    assert UMart.from_preset("paper-mq2007").checked_settings()["window"] == 10
    assert UMart.from_preset("paper-ohsumed", n_trees=3).fit(parts[0]).n_rounds_ == 3


def test_joined_text_is_what_lightgbm_writes(parts):
    ranker = UMart(n_trees=60).fit(parts[0])
    assert lightgbm.Booster(model_str=ranker.model_.text).model_to_string() == ranker.model_.text
    assert ranker.model_.text.count("\nTree=") == 60
    assert tree_training.STRETCH < 60


@pytest.mark.parametrize("name", ["OHSUMED", "MQ2007-85"])
def test_umart_is_no_worse_than_lambdamart_on_real_data(real_data, name):
    """Five folds, default settings: the difference over all test queries is not significantly below zero."""
    differences = []
    for fold in range(1, 6):
        train, valid, test = tierank.read_fold(real_data / name, fold)
        scores = [ranker.fit(train, valid=valid).predict(test) for ranker in (UMart(), LambdaMART())]
        judged = [tierank.evaluate(test, s, "ndcg@10").per_query["ndcg@10"] for s in scores]
        differences.append(judged[0] - judged[1])
    pooled = np.concatenate(differences)
    pooled = pooled[np.isfinite(pooled)]
    assert pooled.mean() > 0 or paired_p(pooled) > 0.05


def test_trees_go_on_from_the_scores_of_a_base(tmp_path):
    train, valid, test = make_ranking(90, n_features=6, mean_length=12, max_length=20, seed=3).split(0.5, 0.25, 0.25)
    ranker = UMart(base=URank(max_epochs=5, n_jobs=1), n_trees=10, n_jobs=1).fit(train, valid=valid)
    alone = URank(max_epochs=5, n_jobs=1).fit(train, valid=valid)
    base = alone.predict(test)
    np.testing.assert_array_equal(ranker.base_.predict(test), base)
    own = lightgbm.Booster(model_str=ranker.model_.text).predict(test.features, raw_score=True)
    np.testing.assert_array_equal(ranker.predict(test), base + own)

    # The first tree by hand: a regression tree on the gradient and hessian of uMart at the scores of the base.
    data = lightgbm.Dataset(train.features, train.ratings, group=train.lengths, init_score=alone.predict(train))
    objective = UMartObjective(n_jobs=1)
    settings = {"num_leaves": 15, "learning_rate": 0.1, "verbosity": -1, "feature_pre_filter": False, "num_threads": 1}
    booster = lightgbm.Booster(settings | {"objective": "none"}, data)
    booster.update(fobj=lambda scores, _: objective.prepare(train.ratings, train.offsets).gradients(scores))
    first = lightgbm.Booster(model_str=ranker.model_.text).predict(test.features, raw_score=True, num_iteration=1)
    np.testing.assert_allclose(booster.predict(test.features, raw_score=True), first, rtol=1e-6, atol=1e-9)

    ranker.save(tmp_path / "model")
    loaded = tierank.load(tmp_path / "model").set_params(n_jobs=1)  # of the base too
    np.testing.assert_array_equal(loaded.predict(test), ranker.predict(test))
    assert loaded.get_params()["base__max_epochs"] == 5


def test_trees_with_a_base_resume_to_the_same_model(tmp_path):
    train, valid = make_ranking(60, n_features=6, mean_length=12, max_length=20, seed=4).split(0.6, 0.4)
    whole = LambdaMART(base=URank(max_epochs=3, n_jobs=1), n_trees=70, n_jobs=1).fit(train, valid=valid)
    half = LambdaMART(base=URank(max_epochs=3, n_jobs=1), n_trees=70, n_jobs=1)
    half.fit(train, valid=valid, checkpoint=tmp_path / "kept")
    again = LambdaMART(base=URank(max_epochs=3, n_jobs=1), n_trees=70, n_jobs=1)
    again.fit(train, valid=valid, checkpoint=tmp_path / "kept")
    assert again.model_.text == whole.model_.text
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["base", "trees"]


def test_base_must_be_a_ranker():
    data = make_ranking(10, n_features=3, mean_length=8, max_length=10)
    with pytest.raises(ParameterError, match=r"base: expected a ranker, such as UMart\(\), or None"):
        UMart(base="urank").fit(data)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("sigmoid", "sigma"),
        ("lambdarank_truncation_level", "truncation"),
        ("lambdarank_norm", "norm"),
        ("label_gain", "gain"),
    ],
)
def test_names_of_lightgbm_for_our_settings_are_refused(parts, name, ours):
    with pytest.raises(ParameterError, match=f"{name}: expected {ours}, which is the name"):
        LambdaMART(**{name: 1}).fit(parts[0])


def test_categories_that_float32_mixes_up_are_refused(parts):
    """2^24 + 1 is 2^24 in float32: two categories would be one."""
    features, names = np.array(parts[0].features), tuple("abcdefgh")
    settings = {"n_trees": 1, "min_documents": 5, "n_jobs": 1, "categorical_feature": [1]}
    features[:, 1], features[0, 1] = np.nan, 2**24 - 1
    UMart(**settings).fit(parts[0].with_features(features, names))
    features[0, 1] = 2**24
    expected = "categorical_feature: expected categories below 16,777,216, .* got 1.67772e\\+07 in feature "
    for named, what in ((None, "1"), (names, "'b'")):
        with pytest.raises(DataError, match=expected + f"{what}; number them from 0, or give them as texts"):
            UMart(**settings).fit(parts[0].with_features(features, named))


def test_categories_and_constraints_by_the_names_of_features(parts):
    train = parts[0]
    names = tuple("abcdefgh")
    named = train.with_features(np.rint(train.features * 3), names)
    settings = {"n_trees": 3, "min_documents": 5, "n_jobs": 1}
    by_name = UMart(categorical_feature=["b", "d"], min_data_per_group=1, **settings).fit(named)
    by_number = UMart(categorical_feature=[1, 3], min_data_per_group=1, **settings).fit(named)
    assert by_name.model_.text.split("parameters:")[0] == by_number.model_.text.split("parameters:")[0]
    assert re.search(r"^num_cat=[1-9]", by_name.model_.text, re.MULTILINE)
    with pytest.raises(ParameterError, match="unknown categorical_feature 'z'"):
        UMart(categorical_feature=["z"], **settings).fit(named)
    with pytest.raises(ParameterError, match="monotone_constraints: expected 8 numbers, one for each feature, got 2"):
        UMart(monotone_constraints=[1, 0], **settings).fit(named)
    up = UMart(query_features=True, monotone_constraints=[1] + [0] * 7, **settings).fit(named)
    rising = np.tile(np.median(named.features, axis=0), (20, 1)).astype(np.float32)
    rising[:, 0] = np.linspace(named.features[:, 0].min(), named.features[:, 0].max(), 20)
    assert (np.diff(up.predict(rising)) >= 0).all()


def test_each_stretch_draws_other_documents(parts):
    """How many it draws is random too: the same seeds would draw the same numbers again."""
    ranker = UMart(n_trees=60, bagging_fraction=0.5, bagging_freq=1, min_documents=5, n_jobs=1)
    trees = lightgbm.Booster(model_str=ranker.fit(parts[0]).model_.text).dump_model()["tree_info"]
    roots = [tree["tree_structure"]["internal_count"] for tree in trees]
    assert roots[:10] != roots[50:60]


def test_the_booster_is_a_copy_that_scores_alike(parts):
    ranker = UMart(n_trees=5, n_jobs=1).fit(parts[0])
    booster = ranker.booster_
    np.testing.assert_array_equal(booster.predict(parts[2].features, num_threads=1), ranker.predict(parts[2]))
    booster.set_leaf_output(0, 0, 99.0)
    assert ranker.predict(parts[2]).max() < 10
