"""Segments: attributes of queries in every form, tests by hand and by simulation, the command line and the page."""

import json
import math
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import tierank
from tierank import cli
from tierank.errors import DataError, ParameterError
from tierank.metrics.segments import FEWEST, Attribute, as_attributes, compare_segments, judge_segments
from tierank.metrics.significance import (
    benjamini_hochberg,
    control_discoveries,
    detectable_difference,
    paired_p,
    paired_sample_size,
    two_sample_p,
)
from tierank.report.tabulate import tabulate_comparison, tabulate_segments, tabulate_worst

DEVICES = ["phone", "desktop", "phone", "tablet"]


@pytest.fixture
def data():
    """Four queries of three rows, scattered."""
    qid = np.array(["a", "b", "c", "d"] * 3)
    features = np.column_stack([np.arange(12), np.repeat([[1, 2, 1, 3]], 3, axis=0).ravel()])
    return tierank.RankingDataset(features, np.arange(12) % 3, qid, feature_names=["n", "device"])


@pytest.fixture(scope="module")
def shop():
    """Scores of two rankers; the new one is worse on phones, and as good elsewhere."""
    data = tierank.make_ranking(300, n_features=3, mean_length=10, max_length=20, seed=3)
    device = np.array(["phone", "desktop", "tablet"])[np.arange(300) % 3]
    rng = np.random.default_rng(0)
    old = data.ratings + rng.normal(size=data.n_documents)
    harm = np.repeat(device == "phone", data.lengths)
    new = data.ratings + rng.normal(size=data.n_documents) * np.where(harm, 6, 1)
    return data, device, {"old": data.restore(old), "new": data.restore(new)}


# Attributes


@pytest.mark.parametrize(
    "by",
    [
        DEVICES,
        np.array(DEVICES),
        DEVICES * 3,
        pd.Series(DEVICES * 3),
        dict(zip("abcd", DEVICES, strict=True)),
        {"segment": DEVICES},
        {"segment": dict(zip("abcd", DEVICES, strict=True))},
        pd.DataFrame({"segment": DEVICES * 3}),
    ],
    ids=["per query", "array", "per row", "series", "mapping", "named", "named mapping", "table"],
)
def test_every_form_of_an_attribute_says_the_same(data, by):
    (found,) = as_attributes(data, by)
    assert found.name == "segment"
    assert [found.values[code] for code in found.codes] == DEVICES
    assert found.values == ("desktop", "phone", "tablet")


def test_features_are_attributes_by_name(data):
    (found,) = as_attributes(data, "device")
    assert (found.name, found.values, found.codes.tolist()) == ("device", ("1", "2", "3"), [0, 1, 0, 2])
    several = as_attributes(data.replace(feature_names=("other", "device")), ["device"])
    assert [one.name for one in several] == ["device"]
    assert as_attributes(data, pd.Series(DEVICES, name="kind"))[0].name == "kind"


def test_missing_values_are_the_last_segment(data):
    for values in (["x", None, "x", ""], [1.5, np.nan, 1.5, None]):
        (found,) = as_attributes(data, values)
        assert found.values[-1] == "(missing)"
        assert found.codes.tolist() == [0, 1, 0, 1]
    (found,) = as_attributes(data, {"a": "x"})
    assert found.codes.tolist() == [0, 1, 1, 1]


def test_many_numbers_are_cut_into_parts_of_equal_size():
    data = tierank.RankingDataset(np.zeros((100, 1)), qid=np.arange(100))
    (found,) = as_attributes(data, np.arange(100)[::-1] / 4)
    assert found.values == ("0 to 4.75", "5 to 9.75", "10 to 14.75", "15 to 19.75", "20 to 24.75")
    assert np.bincount(found.codes).tolist() == [20] * 5
    assert found.codes[0] == 4


@pytest.mark.parametrize(
    ("by", "error", "words"),
    [
        ("devise", ParameterError, "unknown feature 'devise': did you mean 'device'"),
        ([1, 2, 3], DataError, r"segment: by: expected 12 values \(one per row\) or 4 \(one per query\), got shape"),
        (np.arange(12), DataError, "one value for all rows of query a, got 0 and 4; it is an attribute of documents"),
        ({"x": 1}, DataError, "expected a mapping from query ids to values, got one without any .* such as 'a'"),
        ({}, DataError, "without any"),
        (pd.DataFrame(index=range(4)), ParameterError, "by: expected at least one attribute"),
    ],
)
def test_what_is_no_attribute_is_refused(data, by, error, words):
    with pytest.raises(error, match=words):
        tierank.evaluate(data, np.arange(12), by=by)


def test_features_without_names_are_no_attributes():
    data = tierank.RankingDataset([[0.0], [1.0]], [0, 1], [1, 1])
    with pytest.raises(ParameterError, match=r"by: expected one value per row or per query.*have no names"):
        tierank.evaluate(data, [1, 2], by="device")


# Numbers


def test_segments_of_an_evaluation_by_hand(shop):
    data, device, scores = shop
    found = tierank.evaluate(data, scores["new"], "ndcg@10", by={"device": device})
    values = found.per_query["ndcg@10"]
    for segment in found.segments:
        inside = device == segment.value
        mine, others = values[inside & ~np.isnan(values)], values[~inside & ~np.isnan(values)]
        assert segment.n_queries == len(mine)
        assert segment.mean == pytest.approx(mine.mean())
        assert segment.standard_error == pytest.approx(stats.sem(mine))
        assert segment.difference == pytest.approx(mine.mean() - others.mean())
        tests = [stats.ttest_ind(mine, others, equal_var=equal).pvalue for equal in (True, False)]
        assert segment.p == pytest.approx(max(tests), rel=1e-9)
    assert [one.value for one in found.worst("ndcg@10")] == ["phone"]
    # The overall numbers do not change.
    assert found.mean("ndcg@10") == tierank.evaluate(data, scores["new"], "ndcg@10").mean("ndcg@10")


def test_segments_of_a_comparison_are_comparisons_of_their_queries(shop):
    data, device, scores = shop
    found = tierank.compare(data, scores, metrics=["ndcg@10", "mrr"], by={"device": device})
    assert len(found.segments) == 6
    for segment in found.segments:
        inside = device == segment.value
        rows = np.isin(data.query_of_row, np.flatnonzero(inside))
        part = {name: data.arrange(values)[rows] for name, values in scores.items()}
        alone = tierank.compare(data.select(inside), part, metrics=segment.metric).contrasts["new"][segment.metric]
        for name in ("difference", "low", "high", "p", "wins", "ties", "losses", "spread"):
            assert getattr(segment.contrast, name) == pytest.approx(getattr(alone, name)), name
        assert segment.contrast.adjusted_p >= segment.contrast.p - 1e-15
    assert [(one.value, one.system) for one in found.worst("ndcg@10")] == [("phone", "new")]
    assert found.worst("ndcg@10", "new") == found.worst("ndcg@10")
    with pytest.raises(ParameterError, match="unknown system 'old'"):
        found.worst("ndcg@10", "old")
    with pytest.raises(ParameterError, match="unknown metric of this comparison"):
        found.worst("map")
    assert found.contrasts == tierank.compare(data, scores, metrics=["ndcg@10", "mrr"]).contrasts


def test_metrics_that_judge_different_queries_are_compared_over_their_own():
    """Metrics are tested together where they judge the same queries, and only there."""
    rng = np.random.default_rng(8)
    every, some, same = rng.normal(size=(3, 60))
    some[::4] = np.nan
    attribute = Attribute("half", ("a", "b"), np.arange(60) % 2)
    by_system = {
        "one": {"every": every, "some": some, "same": same},
        "two": {"every": -every, "some": some, "same": same},
    }
    found = compare_segments(by_system, [attribute])
    assert [one.metric for one in found] == ["every"] * 4 + ["some"] * 4 + ["same"] * 4
    for one in found:
        values = by_system[one.system][one.metric][attribute.codes == "ab".index(one.value)]
        values = values[~np.isnan(values)]
        alone = compare_segments({"x": {"m": values}}, [Attribute("all", ("a",), np.zeros(len(values), int))])
        expected = alone[0].contrast.to_dict()
        got = one.contrast.to_dict()
        for name in ("difference", "low", "high", "p", "wins", "ties", "losses", "spread"):
            assert got[name] == pytest.approx(expected[name], rel=1e-12), name


def test_small_segments_are_shown_and_not_tested():
    codes = np.repeat([0, 1], [FEWEST - 1, 30])
    attribute = Attribute("a", ("small", "large"), codes)
    small, large = judge_segments({"m": np.where(codes, 0.5, 0.1)}, [attribute])
    assert small.verdict == large.verdict == "too few queries"  # what is outside of the large one is small
    assert math.isnan(small.p)
    assert small.difference == pytest.approx(-0.4)
    rng = np.random.default_rng(0)
    small, large = compare_segments({"new": {"m": rng.normal(1, 0.1, 39)}}, [attribute])
    assert small.verdict == "too few queries"
    assert large.verdict == "better"
    assert large.contrast.adjusted_p == pytest.approx(large.contrast.p)  # the only test


def test_queries_that_are_left_out_are_in_no_segment():
    values = np.array([np.nan] * 15 + [0.2, 0.4] * 10)
    (segment,) = judge_segments({"m": values}, [Attribute("a", ("x", "y"), np.repeat([0, 1], [15, 20]))])
    assert (segment.value, segment.n_queries) == ("y", 20)
    assert math.isnan(segment.difference)
    assert segment.verdict == "too few queries"  # nothing to compare with


# Adjusted p-values


def test_benjamini_hochberg_agrees_with_scipy():
    p = np.random.default_rng(0).random(50) ** 3
    np.testing.assert_allclose(benjamini_hochberg(p), stats.false_discovery_control(p), rtol=1e-12)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.randoms())
def test_benjamini_hochberg_keeps_order_and_lies_between_p_and_bonferroni(p, random):
    p = np.array(p)
    adjusted = benjamini_hochberg(p)
    assert (adjusted >= p - 1e-15).all()
    assert (adjusted <= np.minimum(len(p) * p, 1) + 1e-15).all()
    order = list(range(len(p)))
    random.shuffle(order)
    np.testing.assert_array_equal(benjamini_hochberg(p[order]), adjusted[order])


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([-1.0, 0.0, 1.0])), min_size=1, max_size=12))
def test_directions_are_mirrored(tests):
    p, signs = np.array(tests).T
    adjusted = control_discoveries(p, signs)
    np.testing.assert_array_equal(adjusted, control_discoveries(p, -signs))
    assert (adjusted >= p - 1e-15).all()
    assert (adjusted[signs == 0] == 1).all()


@pytest.mark.parametrize("is_mixed", [False, True])
def test_false_discoveries_are_few(is_mixed):
    """All segments equal: any finding is false, and 5% of the draws may have one. If half of them are better, nothing
    may be called worse in more than 2.5% of the draws. The bound is what happens by chance once in 10,000 runs.
    """
    rng, n_draws = np.random.default_rng(1), 200
    attribute = [Attribute("a", tuple("abcdefghijkl"), np.arange(600) % 12)]
    n_false = 0
    for _ in range(n_draws):
        # Skewed and often 0, as differences of a metric are.
        values = rng.choice([0, 0, -0.37, 0.37, -0.5, 0.5, 0.13, -0.13], 600)
        values = values + 0.3 * (attribute[0].codes < 6) if is_mixed else values
        verdicts = {one.verdict for one in compare_segments({"new": {"m": values}}, attribute)}
        n_false += "worse" in verdicts or (not is_mixed and "better" in verdicts)
    assert n_false <= stats.binom.ppf(0.9999, n_draws, 0.025 if is_mixed else 0.05)


def test_two_sample_p_does_not_trust_a_spread_of_zero():
    rng = np.random.default_rng(0)
    outside = rng.choice([1.0, 0.0], 1000, p=[0.8, 0.2])
    assert two_sample_p(np.ones(10), outside) > 0.05  # happens in one of ten draws
    assert two_sample_p(np.ones(10), np.ones(10)) == 1
    assert two_sample_p(np.ones(10), np.zeros(10)) == 0
    assert math.isnan(two_sample_p(np.ones(1), outside))


# Power


@pytest.mark.parametrize(("spread", "difference"), [(0.2, 0.1), (0.3, 0.05)])
def test_the_needed_queries_show_the_difference_as_often_as_promised(spread, difference):
    n = paired_sample_size(spread, difference)
    rng = np.random.default_rng(0)
    shown = np.mean(paired_p(rng.normal(difference, spread, (4000, n))) < 0.05)
    assert shown == pytest.approx(0.8, abs=0.025)  # four standard errors
    assert detectable_difference(spread, n) == pytest.approx(difference, rel=0.02)


def test_needed_queries_of_a_comparison(shop):
    data, _, scores = shop
    contrast = tierank.compare(data, scores, metrics="ndcg@10").contrasts["new"]["ndcg@10"]
    assert contrast.queries_needed() == paired_sample_size(contrast.spread)
    assert contrast.queries_needed(0.01) < contrast.queries_needed(0.005) < contrast.queries_needed(0.005, power=0.9)
    assert contrast.detectable() == pytest.approx(detectable_difference(contrast.spread, contrast.n_queries))
    with pytest.raises(ParameterError, match="difference: expected a number > 0, got 0"):
        contrast.queries_needed(0)
    one = tierank.compare(([1, 0], [1, 1]), {"a": [1, 2], "b": [2, 1]}, metrics="mrr").contrasts["b"]["mrr"]
    assert one.queries_needed() is None


def test_needed_queries_rise_with_the_power():
    chances = [1e-300, 0.001, 0.02, 0.025, 0.03, 0.5, 0.8, 0.999]
    needed = [paired_sample_size(0.1, 0.005, power=chance) for chance in chances]
    assert needed == sorted(needed)
    assert needed[0] == 2
    seen = [detectable_difference(0.1, 1000, power=chance) for chance in chances]
    assert seen == sorted(seen)
    assert seen[0] == 0.0


@pytest.mark.parametrize("difference", [1e-20, 1e-300, 1e-320])
def test_differences_that_no_number_of_queries_shows(difference):
    with pytest.raises(ParameterError, match=r"difference: expected one that 8e\+31 queries with a spread of 0\.1 c"):
        paired_sample_size(0.1, difference)


# Command line and page


@pytest.fixture
def files(shop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data, device, scores = shop
    frame = pd.DataFrame(
        {
            "qid": data.query_ids[data.query_of_row],
            "rating": data.ratings,
            "device": np.repeat(device, data.lengths),
            "x": data.features[:, 0],
        }
    )
    frame.to_csv("test.csv", index=False)
    frame.to_parquet("test.parquet")
    tierank.write(data, "test.txt")
    pd.DataFrame({"query": data.query_ids, "device": device, "n": data.lengths}).to_csv("queries.csv", index=False)
    for name, values in scores.items():
        tierank.write_scores(data.arrange(values), f"{name}.scores")
    return tmp_path


def run(capsys, *arguments):
    assert cli.main([str(one) for one in arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr()


@pytest.mark.parametrize(
    "where",
    [["test.csv"], ["test.parquet"], ["test.txt", "--attributes", "queries.csv"]],
    ids=["csv", "parquet", "side file"],
)
def test_evaluate_by_a_column(files, capsys, where):
    source, *more = where
    command = ["evaluate", source, "new.scores", "--metric", "ndcg@10", "--by", "device", *more]
    out = run(capsys, *command).out
    assert "Worst segments" in out
    found = json.loads(run(capsys, *command, "--json").out)["segments"]
    assert [(one["attribute"], one["value"]) for one in found] == [
        ("device", "desktop"),
        ("device", "phone"),
        ("device", "tablet"),
    ]
    assert [one["value"] for one in found if one["verdict"] == "worse"] == ["phone"]


def test_compare_by_several_columns_and_the_page(files, capsys):
    command = ["compare", "test.txt", "old=old.scores", "new=new.scores", "--metric", "ndcg@10"]
    out = run(capsys, *command, "--by", "device,n", "--attributes", "queries.csv", "--out", "run", "--latex").out
    assert r"\begin{tabular}" in out
    assert "queries for 0.005" in out
    assert "to" in out  # the parts of n
    run(capsys, "report", "run", "--out", "a.html")
    page = (files / "a.html").read_text()
    assert "By device" in page
    assert "By n" in page
    assert "Worst segments" in page
    run(capsys, *command, "--out", "plain")
    run(capsys, "report", "plain", "--out", "b.html")
    assert "By device" not in (files / "b.html").read_text()
    run(capsys, "report", "plain", "--by", "device", "--attributes", "test.csv", "--out", "c.html")
    assert "By device" in (files / "c.html").read_text()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["test.txt", "new.scores", "--by", "device"], "test.txt: expected a CSV or Parquet file, whose columns have"),
        (["test.csv", "new.scores", "--by", "devise"], "unknown column 'devise': did you mean 'device'"),
        (["test.csv", "new.scores", "--attributes", "queries.csv"], "--attributes: expected --by too"),
        (["test.csv", "new.scores", "--by", "x"], "expected one value for all rows of query"),
    ],
)
def test_columns_that_are_no_attributes_are_refused(files, capsys, more, words):
    assert cli.main(["evaluate", *more]) == 2
    assert words in capsys.readouterr().err


def test_quiet_prints_results_and_errors_alone(files, capsys):
    loud = run(capsys, "convert", "test.txt", "a.csv")
    assert "wrote" in loud.err
    assert run(capsys, "convert", "test.txt", "b.csv", "--quiet").err == ""
    assert cli.main(["evaluate", "missing.txt", "new.scores", "--quiet"]) == 2
    assert "missing.txt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["evaluate", "odd.txt", "x", "--metric", "ndgc@10"], "did you mean 'ndcg'"),
        (["evaluate", "odd.txt", "x", "--rule", "letro"], "did you mean 'letor'"),
        (["compare", "odd.txt", "a=x", "b=x", "--baseline", "c"], "unknown baseline 'c'"),
        (["compare", "odd.txt", "a=x"], "at least two systems"),
        (["cv", "lambdamart", "--data", "odd.txt", "--out", "run", "--metric", "ndgc"], "did you mean 'ndcg'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_read(tmp_path, monkeypatch, capsys, command, words):
    monkeypatch.chdir(tmp_path)
    for name in ("odd.txt", "x"):
        (tmp_path / name).write_text("read too early")
    assert cli.main(command) == 2
    assert words in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["odd.txt", "x"]


def test_a_feature_of_texts_has_segments_by_its_texts():
    """However many there are: their numbers mean nothing, and are not cut into parts."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"qid": np.repeat(np.arange(60), 2), "rating": [1, 0, 0, 1] * 30, "x": np.arange(120.0)})
    table["city"] = [None if k == 7 else f"city {k:02}" for k in table.qid % 30]
    found = tierank.evaluate(tierank.read(table), table.x, ["mrr"], by="city").segments
    assert [one.value for one in found] == [f"city {k:02}" for k in range(30) if k != 7] + ["(missing)"]
    assert {one.n_queries for one in found} == {2}


def test_missing_values_and_dates_of_pandas():
    pandas = pytest.importorskip("pandas")
    data = tierank.RankingDataset(np.zeros((4, 1)), [1, 0, 1, 0], qid=[1, 1, 2, 2])
    for brands in (pandas.Series([pandas.NA, "a"], dtype="string"), pandas.Series([pandas.NA, "a"])):
        assert [one.value for one in tierank.evaluate(data, [1, 0, 1, 0], "mrr", by=brands).segments] == [
            "a",
            "(missing)",
        ]
    days = pandas.Series(pandas.to_datetime(["2024-01-31", None]))
    values = [one.value for one in tierank.evaluate(data, [1, 0, 1, 0], "mrr", by=days).segments]
    assert values[0].startswith("2024-01-31")
    assert values[1] == "(missing)"


def test_dates_are_cut_into_spans_of_days():
    days = pd.date_range("2024-01-01", periods=40)
    table = pd.DataFrame({"qid": np.repeat(np.arange(40), 2), "x": np.arange(80.0), "day": np.repeat(days, 2)})
    data = tierank.read(table, query="qid", rating=None, columns=tierank.Columns(dates=["day"]))
    (named,) = as_attributes(data, "day")
    assert named.values[0] == "2024-01-01 to 2024-01-08"
    assert named.codes.tolist() == np.repeat(np.arange(5), 8).tolist()
    for dates in (days.to_numpy(), table["day"]):
        (same,) = as_attributes(data, dates)
        assert same.values == named.values
        assert same.codes.tolist() == named.codes.tolist()
    weeks = np.where(np.arange(40) % 9 == 8, np.datetime64("NaT"), days.to_numpy().astype("datetime64[W]"))
    (by_week,) = as_attributes(data, weeks)
    assert by_week.values[:2] == ("2023-12-28", "2024-01-04")  # numpy's weeks begin on Thursday
    assert by_week.values[-1] == "(missing)"
    assert (by_week.codes == len(by_week.values) - 1).tolist() == (np.arange(40) % 9 == 8).tolist()


def test_very_many_segments():
    """One walk through the queries: a mask for each segment would take 50 MB here, and with 100,000 users 10 GB."""
    n = 12_000
    rng = np.random.default_rng(0)
    values, codes = rng.random(n), np.arange(n) // 3
    values[::7] = np.nan
    codes[:50], codes[-5:] = 0, codes[-6]
    names = tuple(f"user {k}" for k in range(n))
    tracemalloc.start()
    found = judge_segments({"ndcg": values}, [Attribute("user", names, codes)])
    compared = compare_segments({"new": {"ndcg": values - 0.5}}, [Attribute("user", names, codes)])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2.5e7
    judged = ~np.isnan(values)
    assert [one.value for one in found] == [names[code] for code in np.unique(codes[judged])]
    for one in (found[0], found[1], found[777], found[-1]):
        inside = judged & (codes == names.index(one.value))
        assert one.n_queries == inside.sum()
        assert one.mean == pytest.approx(values[inside].mean(), rel=1e-12)
        assert one.difference == pytest.approx(values[inside].mean() - values[judged & ~inside].mean(), rel=1e-9)
        assert math.isnan(one.p) == (one.n_queries < FEWEST)
    assert [one.contrast.difference for one in compared] == pytest.approx([one.mean - 0.5 for one in found])


def test_a_segment_of_all_queries_has_no_difference(shop):
    data, device, scores = shop
    found = tierank.evaluate(data, scores["old"], ["ndcg@10"], by=np.full(len(device), "all"))
    assert math.isnan(found.segments[0].difference)
    assert "nan" not in str(found)
    assert "nan" not in found._repr_html_()


NASTY = "<b>\n|\r\x1b[31m\u2028*`x"


def test_names_that_would_break_a_table(shop, tmp_path, capsys):
    """Each row of a table is one line, whatever queries, segments and systems are called."""
    data, device, scores = shop
    by = np.where(device == "phone", NASTY, device)
    found = tierank.compare(data, {NASTY: scores["old"], "new": scores["new"]}, metrics=["ndcg@10"], by=by)
    plain = tierank.compare(data, {"old": scores["old"], "new": scores["new"]}, metrics=["ndcg@10"], by=device)
    for one, other in (
        (str(found), str(plain)),
        *(
            (getattr(tabulate(found), form)(), getattr(tabulate(plain), form)())
            for tabulate in (tabulate_comparison, tabulate_segments, tabulate_worst)
            for form in ("to_text", "to_markdown", "to_latex")
        ),
    ):
        assert len(one.splitlines()) == len(other.splitlines())
        assert "\x1b" not in one
    assert NASTY in found.to_dict()["systems"]
