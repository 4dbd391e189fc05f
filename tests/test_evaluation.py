"""evaluate and compare: means, left-out queries, tests and intervals."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples

import tierank
from benchmarks.calibration import intervals
from benchmarks.segments import values_of_two_rankers
from tierank import cli
from tierank.data.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.metrics.compare import compare
from tierank.metrics.evaluate import evaluate
from tierank.metrics.significance import Paired, holm, paired_p, ratio_interval


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
    with pytest.raises(DataError, match="got 2 with no rating above 0; check the ratings"):
        evaluate(RankingDataset(np.zeros((3, 1)), [0, 0, 0], qid=[1, 2, 2]), [1, 2, 3])


# Statistics


def test_paired_p_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, 4, 25))
    np.testing.assert_allclose(paired_p(first - second), stats.ttest_rel(first, second, axis=-1).pvalue, rtol=1e-10)


def test_differences_that_are_all_the_same_have_no_interval():
    """Their spread is unknown. Four fair coins that all show the same side: 2 / 2^4."""
    found = Paired.of(np.array([[0.0] * 4, [0.5] * 4, [0.9 - 0.7, 0.5 - 0.3, 0.4 - 0.2, 0.2]]))
    assert found.p.tolist() == [1, 0.125, 0.125]
    assert np.isnan([found.low, found.high]).all()


@examples(200)
@given(st.lists(st.sampled_from([-0.5, -0.1, 0.0, 0.1, 0.3, 1.0]) | st.floats(-1, 1), min_size=2, max_size=60))
def test_an_interval_excludes_zero_exactly_if_the_test_rejects(differences):
    found = Paired.of(np.array(differences))
    if not np.isnan(found.low):
        assert (found.low > 0 or found.high < 0) == (found.p < 0.05)
        # The bounds are what the test rejects barely.
        for bound in (found.low, found.high):
            assert paired_p(np.array(differences) - bound) == pytest.approx(0.05, rel=1e-6)


@examples(200)
@given(st.lists(st.tuples(st.floats(-0.5, 0.5), st.floats(0.1, 1)), min_size=2, max_size=40))
def test_a_relative_interval_excludes_zero_exactly_if_the_test_rejects(pairs):
    differences, base = np.array(pairs).T.round(3)
    low, high = ratio_interval(differences, base)
    if np.isnan(low):
        assert paired_p(base) >= 0.05 or np.ptp(differences) == 0
        return
    assert low - 1e-9 <= differences.mean() / base.mean() <= high + 1e-9
    assert (low > 0 or high < 0) == (paired_p(differences) < 0.05)
    for bound in (low, high):
        if high - low > 1e-3:  # else the system is a multiple of the baseline
            assert paired_p(differences - bound * base) == pytest.approx(0.05, rel=1e-3)


def test_holm_by_hand():
    # sorted: .01 * 4, .02 * 3, .04 * 2, .3 * 1
    np.testing.assert_allclose(holm(np.array([0.04, 0.01, 0.3, 0.02])), [0.08, 0.04, 0.3, 0.06])
    assert holm(np.array([0.6, 0.7])).tolist() == [1, 1]


@examples(50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_order_and_lies_between_p_and_bonferroni(p):
    p = np.array(p)
    adjusted = holm(p)
    assert ((adjusted >= p) & (adjusted <= np.minimum(1, len(p) * p))).all()
    assert (np.diff(adjusted[p.argsort()]) >= 0).all()


def test_intervals_agree_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    differences = np.random.default_rng(4).normal(0.1, 1, (3, 17))
    found, expected = Paired.of(differences), stats.ttest_1samp(differences, 0, axis=-1).confidence_interval()
    np.testing.assert_allclose((found.low, found.high), expected, rtol=1e-10)


def test_tests_and_intervals_hold_their_level():
    """With few queries too. The bounds are what happens by chance once in 10,000 runs."""
    stats, n_draws = pytest.importorskip("scipy.stats"), 400
    pools = values_of_two_rankers(2000, ("ndcg@10",), (1.0, 0.5))
    most, least = stats.binom.ppf([0.9999, 0.0001], n_draws, [0.05, 0.95]) / n_draws
    for n in (3, 5, 10):
        covered, none, rejected, at_odds, relative = intervals.check_means(
            pools["ndcg@10"], n, n_draws, np.random.default_rng(n)
        )
        assert min(covered, relative) >= least
        assert rejected <= most
        assert none == at_odds == 0
    compared, judged, _ = intervals.check_segments(pools["ndcg@10"], 30, n_draws, np.random.default_rng(0))
    assert max(compared, judged) <= most


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
    assert (contrast.difference, contrast.p, contrast.adjusted_p) == (0, 1, 1)
    assert np.isnan([contrast.low, contrast.high]).all()  # their spread is unknown
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


def test_relative_improvements_are_those_of_the_means():
    data, systems = draw()
    found = compare(data, systems, metrics=["ndcg@3", "map"])
    value, low, high = found.improvement("good", "map")
    assert value == pytest.approx(found.mean("good", "map") / found.mean("base", "map") - 1)
    assert 0 < low < value < high
    with pytest.raises(ParameterError, match="unknown system 'base'"):
        found.improvement("base", "map")
    with pytest.raises(ParameterError, match="unknown metric of this comparison"):
        found.improvement("good", "mrr")


def test_a_baseline_of_zero_cannot_be_improved_upon_in_percent():
    ratings, queries = [1, 0] * 4, np.repeat(range(4), 2)
    found = compare((ratings, queries), {"base": [0, 1] * 4, "new": [1, 0] * 3 + [0, 1]}, metrics="precision@1")
    assert np.isnan(found.improvement("new", "precision@1")).all()
    found = compare(
        (ratings, queries), {"base": [1, 0] + [0, 1] * 3, "new": [1, 0] * 3 + [0, 1]}, metrics="precision@1"
    )
    value, *bounds = found.improvement("new", "precision@1")
    assert value == pytest.approx(2)
    assert np.isnan(bounds).all()  # one query of four: the true mean may be 0


@pytest.mark.parametrize("old", [{"seed": 1}, {"n_resamples": 100}])
def test_arguments_of_the_former_interval_are_taken_with_a_warning(old):
    data, systems = draw()
    with pytest.warns(DeprecationWarning, match=r"have no effect.*leave them out; tierank 0\.4 removes them"):
        found = compare(data, systems, metrics="map", **old)
    assert found.to_dict() == compare(data, systems, metrics="map").to_dict()


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
    with pytest.raises(ParameterError, match="unknown system 'godo': did you mean 'good'"):
        compare(data, systems, metrics="map").mean("godo", "map")
    with pytest.raises(DataError, match="got 1 with no rating above 0"):
        compare(RankingDataset(np.zeros((2, 1)), [0, 0]), {"a": [1, 2], "b": [2, 1]})


def test_other_arguments_of_compare_are_checked():
    data = ([1, 0], [1, 1])
    with pytest.raises(ParameterError, match=r"expected a mapping from names .* to their scores, got list") as refused:
        compare(data, [[1, 2], [2, 1]])
    assert refused.value.argument == "scores"
    made = tierank.make_ranking(5, n_features=2, mean_length=4, max_length=6)
    ranker = tierank.LinearRanker(ridge=1.0).fit(made)
    with pytest.raises(ParameterError, match="seed: expected an integer >= 0, got 'x'"):
        ranker.permutation_importance(made, seed="x")
    with pytest.raises(ParameterError, match="n_repeats: expected an integer >= 1 and <= 1000000, got 0"):
        ranker.permutation_importance(made, n_repeats=0)
    # The results of all repetitions are held in memory.
    with pytest.raises(ParameterError, match="n_repeats: expected an integer >= 1 and <= 1000000, got 10000000000"):
        ranker.permutation_importance(made, n_repeats=10**15)


@pytest.mark.filterwarnings("ignore:ratings go up to")
def test_differences_too_large_for_any_number_of_queries_are_described():
    ratings, queries = np.tile([90.0, 0.0, 50.0], 4), np.repeat(np.arange(4), 3)
    rng = np.random.default_rng(0)
    found = compare((ratings, queries), {"a": rng.normal(size=12), "b": rng.normal(size=12)}, metrics="dcg")
    contrast = found.to_dict()["contrasts"]["b"]["dcg"]
    assert contrast["spread"] > 1e20
    assert contrast["queries_needed"] is None


def test_systems_may_have_any_name():
    ratings, queries = [1, 0] * 3, np.repeat(range(3), 2)
    assert compare((ratings, queries), {"x": ratings, "y": ratings}, metrics="mrr").systems == ("x", "y")


def test_the_option_of_the_former_interval_is_taken_with_a_warning(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data, systems = draw()
    tierank.write(data, "data.txt")
    for name in ("base", "good"):
        tierank.write_scores(systems[name], f"{name}.txt")
    given = ["compare", "data.txt", "base=base.txt", "good=good.txt", "--metric", "map"]
    assert cli.main([*given, "--seed", "3"]) == 0
    with_seed = capsys.readouterr()
    assert cli.main(given) == 0
    without = capsys.readouterr()
    assert with_seed.out == without.out
    assert "seed" in with_seed.err
    assert "have no effect" in with_seed.err
    assert without.err == ""
