"""evaluate and compare: means, left-out queries, tests and intervals."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tierank
from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.evaluation import compare, evaluate
from tierank.significance import bootstrap_interval, holm, paired_p


def draw(n_queries=30, length=8, seed=0):
    """A data set, with one query that has no rating above 0, and the scores of three systems."""
    rng = np.random.default_rng(seed)
    n = n_queries * length
    ratings = rng.integers(0, 4, n)
    ratings[:length] = 0
    data = RankingDataset(np.zeros((n, 1)), ratings, np.repeat(np.arange(n_queries), length))
    return data, {
        "base": ratings + rng.normal(scale=2, size=n),
        "good": ratings + rng.normal(scale=0.2, size=n),
        "bad": -ratings + rng.normal(scale=0.2, size=n),
    }


# evaluate


def test_scores_are_in_the_callers_order():
    # grouped: a has ratings 1, 0; b has 0, 2
    data = RankingDataset(np.zeros((4, 1)), [1, 0, 0, 2], qid=["a", "b", "a", "b"])
    found = evaluate(data, [2, 1, 1, 2], "ndcg@1")
    assert found.per_query["ndcg@1"].tolist() == [1, 1]
    found = evaluate(data, [1, 1, 2, 2], "ndcg@1")
    assert found.per_query["ndcg@1"].tolist() == [0, 1]
    assert found.query_ids.tolist() == ["a", "b"]


def test_means_and_standard_errors_are_over_the_queries_that_are_not_left_out():
    data = RankingDataset(np.zeros((7, 1)), [1, 0, 0, 1, 0, 0, 1], qid=[1, 1, 2, 2, 3, 3, 4])
    found = evaluate(data, [2, 1, 2, 1, 2, 1, 0], "mrr")  # 1, 1/2, left out, 1
    assert found.mean("mrr") == pytest.approx(5 / 6)
    assert found.standard_error("mrr") == pytest.approx(math.sqrt(1 / 12) / math.sqrt(3))
    assert (found.n_queries, found.n_empty, found.n_left_out) == (3, 1, 1)
    assert np.isnan(found.per_query["mrr"][2])


def test_a_rule_with_values_for_empty_queries_leaves_none_out():
    data = RankingDataset(np.zeros((3, 1)), [1, 0, 0], qid=[1, 2, 2])
    found = evaluate(data, [1, 2, 3], "ndcg@5", "yahoo")
    assert (found.n_queries, found.n_empty, found.n_left_out) == (2, 1, 0)
    assert found.mean("ndcg@5") == 0.75


def test_one_query_has_no_standard_error():
    found = evaluate(RankingDataset(np.zeros((2, 1)), [1, 0]), [2, 1])
    assert math.isnan(found.standard_error("ndcg@10"))
    assert found.to_dict()["metrics"]["ndcg@10"] == {"mean": 1.0, "standard_error": None}
    assert "ndcg@10  1.0000  -" in str(found)


def test_evaluation_as_json():
    data, systems = draw()
    written = json.loads(json.dumps(evaluate(data, systems["good"], ["ndcg@3", "map"]).to_dict(), allow_nan=False))
    assert written["rule"]["name"] == "tierank"
    assert (written["n_queries"], written["n_left_out"], written["why_left_out"]) == (29, 1, "no rating above 0")
    assert list(written["metrics"]) == ["ndcg@3", "map"]


def test_evaluation_prints_a_table():
    data, systems = draw()
    lines = repr(evaluate(data, systems["good"], ["ndcg@3", "map"])).splitlines()
    assert lines[0] == "29 queries; 1 left out: no rating above 0"
    assert [line.split()[0] for line in lines[1:]] == ["metric", "ndcg@3", "map", "rule"]


def test_scores_of_a_column_and_of_objects_are_taken():
    data = RankingDataset(np.zeros((2, 1)), [1, 0])
    assert evaluate(data, [[2], [1]], "mrr").mean("mrr") == 1
    assert evaluate(data, np.array([2, 1], dtype=object), "mrr").mean("mrr") == 1


def test_what_evaluate_refuses():
    data = RankingDataset(np.zeros((3, 1)), [1, 0, 2], qid=[2, 1, 2])
    with pytest.raises(DataError, match=r"expected 3, one per row of the data, got shape \(2,\)"):
        evaluate(data, [1, 2])
    with pytest.raises(DataError, match="NaN in row 2"):
        evaluate(data, [1, 2, np.nan])
    with pytest.raises(ParameterError, match=r"unknown metric of this evaluation 'ndcg@7': did you mean 'ndcg@1'"):
        evaluate(data, [1, 2, 3], "ndcg@1").mean("ndcg@7")
    with pytest.raises(DataError, match=r"all 2 queries are left out \(no rating above 0\); check the ratings"):
        evaluate(RankingDataset(np.zeros((3, 1)), [0, 0, 0], qid=[1, 2, 2]), [1, 2, 3])


# Statistics


def test_paired_p_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, 4, 25))
    np.testing.assert_allclose(paired_p(first - second), stats.ttest_rel(first, second, axis=-1).pvalue, rtol=1e-10)


def test_p_of_differences_that_are_all_the_same():
    assert paired_p(np.zeros((1, 5))).tolist() == [1]
    assert paired_p(np.full((1, 4), 0.5)).tolist() == [0]


def test_holm_by_hand():
    # sorted: .01 * 4, .02 * 3, .04 * 2, .3 * 1
    np.testing.assert_allclose(holm(np.array([0.04, 0.01, 0.3, 0.02])), [0.08, 0.04, 0.3, 0.06])
    assert holm(np.array([0.6, 0.7])).tolist() == [1, 1]


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_order_and_lies_between_p_and_bonferroni(p):
    p = np.array(p)
    adjusted = holm(p)
    assert ((adjusted >= p) & (adjusted <= np.minimum(1, len(p) * p))).all()
    assert (np.diff(adjusted[p.argsort()]) >= 0).all()


def test_bootstrap_interval_of_many_queries_is_the_normal_one():
    rng = np.random.default_rng(2)
    differences = rng.normal(0.1, 1, size=(1, 2000))
    low, high = bootstrap_interval(differences, seed=0, n_resamples=10_000)
    error = differences.std() / math.sqrt(2000)
    assert (low[0] - differences.mean()) / error == pytest.approx(-1.96, abs=0.06)
    assert (high[0] - differences.mean()) / error == pytest.approx(1.96, abs=0.06)


def test_bootstrap_interval_of_two_queries_by_hand():
    # means of two draws from (0, 1): 0, 1/2 or 1, with chance 1/4, 1/2, 1/4
    low, high = bootstrap_interval(np.array([0.0, 1.0]), seed=0, n_resamples=1000)
    assert (low, high) == (0, 1)


@pytest.mark.parametrize("shape", [(2,), (3, 7), (2, 2, 300)])
def test_bootstrap_interval_agrees_with_means_of_drawn_queries(shape):
    differences, n = np.random.default_rng(4).normal(size=shape), shape[-1]
    drawn = np.random.default_rng(5).integers(n, size=(200, n))
    means = np.array([differences[..., queries].mean(axis=-1) for queries in drawn])
    expected = np.percentile(means, [2.5, 97.5], axis=0)
    np.testing.assert_allclose(bootstrap_interval(differences, seed=5, n_resamples=200), expected, atol=1e-12)


def test_blocks_of_the_bootstrap_cover_every_resample(monkeypatch):
    differences = np.random.default_rng(3).normal(size=(2, 3, 50))
    whole = bootstrap_interval(differences, seed=1, n_resamples=999)
    monkeypatch.setattr("tierank.significance._DRAWS", 50 * 7)
    for one, other in zip(whole, bootstrap_interval(differences, seed=1, n_resamples=999), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


# compare


def test_better_and_worse_are_told_apart():
    data, systems = draw()
    found = compare(data, systems, metrics=["ndcg@3", "err@10"])
    assert found.baseline == "base"
    assert list(found.contrasts) == ["good", "bad"]
    for metric in found.metrics:
        good, bad = found.contrasts["good"][metric], found.contrasts["bad"][metric]
        assert (good.verdict, good.mark, bad.verdict, bad.mark) == ("better", "*+", "worse", "*-")
        assert good.low < good.difference < good.high
        assert good.difference == pytest.approx(found.mean("good", metric) - found.mean("base", metric))
        assert good.wins + good.ties + good.losses == 29
        assert good.p <= good.adjusted_p <= 2 * good.p
        assert found.best(metric) == ("good",)


def test_comparing_is_antisymmetric():
    data, systems = draw(seed=4)
    two = {name: systems[name] for name in ("base", "good")}
    there = compare(data, two, metrics="map").contrasts["good"]["map"]
    back = compare(data, two, baseline="good", metrics="map").contrasts["base"]["map"]
    assert (there.wins, there.ties, there.losses) == (back.losses, back.ties, back.wins)
    np.testing.assert_allclose([there.difference, there.low, there.high], [-back.difference, -back.high, -back.low])
    assert there.p == pytest.approx(back.p)


def test_the_same_scores_show_no_difference():
    data, systems = draw()
    found = compare(data, {"one": systems["base"], "same": systems["base"] * 2}, metrics="ndcg@10")
    contrast = found.contrasts["same"]["ndcg@10"]
    assert (contrast.difference, contrast.low, contrast.high, contrast.p, contrast.adjusted_p) == (0, 0, 0, 1, 1)
    assert (contrast.wins, contrast.ties, contrast.losses) == (0, 29, 0)
    assert contrast.verdict == "no difference shown"
    assert found.best("ndcg@10") == ("one", "same")


def test_one_query_proves_nothing():
    data = RankingDataset(np.zeros((2, 1)), [1, 0])
    contrast = compare(data, {"a": [1, 2], "b": [2, 1]}, metrics="mrr").contrasts["b"]["mrr"]
    assert contrast.difference == 0.5
    assert (contrast.wins, contrast.ties, contrast.losses) == (1, 0, 0)
    assert contrast.verdict == "no difference shown"
    assert all(math.isnan(number) for number in (contrast.p, contrast.adjusted_p, contrast.low, contrast.high))


def test_the_seed_decides_the_interval_and_nothing_else():
    data, systems = draw()
    first, again, other = (compare(data, systems, metrics="map", seed=seed).to_dict() for seed in (1, 1, 2))
    assert first == again
    one, two = (found["contrasts"]["good"]["map"] for found in (first, other))
    assert one["low"] != two["low"]
    assert one["p"] == two["p"]


def test_comparison_as_json():
    data = RankingDataset(np.zeros((2, 1)), [1, 0])
    found = compare(data, {"a": [1, 2], "b": [2, 1]}, metrics="mrr")
    written = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert written["baseline"] == "a"
    assert written["systems"]["b"]["mrr"] == {"mean": 1.0, "standard_error": None}
    assert written["contrasts"]["b"]["mrr"]["p"] is None
    assert written["contrasts"]["b"]["mrr"]["verdict"] == "no difference shown"


def test_comparison_prints_a_table():
    data, systems = draw()
    lines = repr(compare(data, systems, metrics="ndcg@3")).splitlines()
    assert lines[0] == "29 queries; 1 left out: no rating above 0"
    assert [line.split()[0] for line in lines[1:5]] == ["system", "base", "good", "bad"]
    assert lines[3].endswith("*+")
    assert lines[4].endswith("*-")
    assert lines[6].startswith("rule tierank: gain 2^r - 1;")


def test_what_compare_refuses():
    data, systems = draw()
    with pytest.raises(ParameterError, match="at least two systems to compare, got 1"):
        compare(data, {"base": systems["base"]})
    with pytest.raises(ParameterError, match=r"unknown baseline 'bass': did you mean 'base'\?"):
        compare(data, systems, baseline="bass")
    with pytest.raises(ParameterError, match="n_resamples: expected an integer >= 1 and <= 1000000, got 0"):
        compare(data, systems, n_resamples=0)
    with pytest.raises(ParameterError, match="unknown system 'godo': did you mean 'good'"):
        compare(data, systems, metrics="map").mean("godo", "map")
    with pytest.raises(DataError, match="all 1 queries are left out"):
        compare(RankingDataset(np.zeros((2, 1)), [0, 0]), {"a": [1, 2], "b": [2, 1]})


def test_other_arguments_of_compare_are_checked():
    data = ([1, 0], [1, 1])
    with pytest.raises(ParameterError, match="seed: expected an integer >= 0, got -1"):
        compare(data, {"a": [1, 2], "b": [2, 1]}, seed=-1)
    with pytest.raises(
        ParameterError, match="scores: expected a mapping from names of systems to their scores, got list"
    ):
        compare(data, [[1, 2], [2, 1]])
    made = tierank.make_ranking(5, n_features=2, mean_length=4, max_length=6)
    ranker = tierank.LinearRanker(ridge=1.0).fit(made)
    with pytest.raises(ParameterError, match="seed: expected an integer >= 0, got 'x'"):
        ranker.permutation_importance(made, seed="x")
    with pytest.raises(ParameterError, match="n_repeats: expected an integer >= 1 and <= 1000000, got 0"):
        ranker.permutation_importance(made, n_repeats=0)
    # The results of all repetitions are held in memory.
    with pytest.raises(ParameterError, match="n_repeats: expected an integer >= 1 and <= 1000000, got 10000000000"):
        ranker.permutation_importance(made, n_repeats=10**15)
    with pytest.raises(ParameterError, match="n_resamples: expected an integer >= 1 and <= 1000000, got 10000000000"):
        compare(data, {"a": [1, 2], "b": [2, 1]}, n_resamples=10**15)


def test_differences_too_large_for_any_number_of_queries_are_described():
    ratings, queries = np.tile([90.0, 0.0, 50.0], 4), np.repeat(np.arange(4), 3)
    rng = np.random.default_rng(0)
    found = compare((ratings, queries), {"a": rng.normal(size=12), "b": rng.normal(size=12)}, metrics="dcg")
    contrast = found.to_dict()["contrasts"]["b"]["dcg"]
    assert contrast["spread"] > 1e20
    assert contrast["queries_needed"] is None
