"""Inputs that came from somewhere else than expected: other libraries, other indices, other precisions."""

import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import tierank
from tierank import RankingDataset, compare, evaluate
from tierank.errors import DataError, ParameterError

RATINGS, QUERIES = np.array([2, 1, 0, 0, 1, 0]), np.array(["b", "b", "b", "a", "a", "a"])
SCORES = np.array([0.3, 0.2, 0.1, 0.0, 0.2, 0.1])


class Raising:
    """An array of another library, which cannot be converted."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error


# Arrays of other libraries


@pytest.mark.parametrize("error", [RuntimeError("needs detach"), TypeError("no bfloat16"), Exception("odd type")])
def test_what_another_library_will_not_convert_is_refused_wherever_an_array_is_taken(error):
    odd, X = Raising(error), np.eye(6)
    calls = [
        lambda: RankingDataset(odd, RATINGS),
        lambda: RankingDataset(X, odd),
        lambda: RankingDataset(X, RATINGS, qid=odd),
        lambda: RankingDataset(X, RATINGS, row_weight=odd),
        lambda: RankingDataset(X, RATINGS, query_weight=odd),
        lambda: RankingDataset(X, RATINGS, position=odd),
        lambda: RankingDataset(X, RATINGS, position=np.arange(1, 7), propensity=odd),
        lambda: evaluate((RATINGS, QUERIES), odd),
        lambda: evaluate((odd, QUERIES), SCORES),
        lambda: evaluate((RATINGS, QUERIES), SCORES, by=odd),
    ]
    for call in calls:
        with pytest.raises(DataError, match=f"expected an array, or lists of equal length, got Raising: {error}"):
            call()


def test_tensors_with_gradients_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(DataError, match="got Tensor: Can't call numpy"):
        evaluate((RATINGS, QUERIES), torch.tensor(SCORES, requires_grad=True))


def test_columns_that_numpy_does_not_have_are_refused_by_name():
    polars = pytest.importorskip("polars")
    if not hasattr(polars, "Int128"):
        pytest.skip("this version of polars has no such type")
    table = polars.DataFrame({"big": polars.Series([1, 2], dtype=polars.Int128)})
    with pytest.raises(DataError, match="column 'big': expected numbers or texts, got: cannot convert i128"):
        RankingDataset(table)


@pytest.mark.parametrize("odd", [{1, 2}, iter([1, 2]), {"a": 1}.values(), "abc", 3])
def test_what_has_no_shape_is_named_by_its_type(odd):
    name = type(odd).__name__
    with pytest.raises(DataError, match=f"y: expected 6 ratings, one per row of X, got {name}"):
        RankingDataset(np.eye(6), odd)
    with pytest.raises(DataError, match=f"qid: expected 6 query ids, one per row of X, got {name}"):
        RankingDataset(np.eye(6), RATINGS, qid=odd)
    with pytest.raises(DataError, match=f"X: expected a matrix of documents x features, got {name}"):
        RankingDataset(odd)
    with pytest.raises(DataError, match=f"scores: expected 6, one per row of the data, got {name}"):
        evaluate((RATINGS, QUERIES), odd)


def test_data_without_ratings_are_refused_by_evaluate():
    for odd in (None, 3, iter([1])):
        with pytest.raises(
            DataError, match=r"data: expected the ratings first, in \(y, qid\), got " + type(odd).__name__
        ):
            evaluate((odd, QUERIES), SCORES)


def test_a_nan_that_raises_is_missing():
    data = RankingDataset(np.eye(2), [Decimal("sNaN"), Decimal("1.5")])
    assert np.isnan(data.ratings[0])
    assert data.ratings[1] == 1.5


def test_extended_precision_beyond_float64_is_infinite_without_a_warning():
    huge = np.full(6, np.longdouble("1e4000"))
    with pytest.raises(DataError, match="y, row 0: expected a finite rating that is not negative, got inf"):
        RankingDataset(np.eye(6), huge)


def test_ratings_of_minus_zero_are_shown_as_zero():
    assert "ratings 0 to 0)" in repr(RankingDataset(np.eye(2), [-0.0, -0.0]))


def test_metrics_that_are_neither_names_nor_functions_are_refused():
    with pytest.raises(ParameterError, match=r"metrics: expected names such as 'ndcg@10', .*, got 3"):
        evaluate((RATINGS, QUERIES), SCORES, 3)


def test_systems_are_named_by_texts():
    for systems, baseline, refusal in (
        ({"a": SCORES, 1: SCORES}, None, "scores: expected texts as names of systems, got"),
        ({"a": SCORES, "b": SCORES}, ["a"], r"unknown baseline \['a'\]: Known: a, b"),
    ):
        with pytest.raises(ParameterError, match=refusal):
            compare((RATINGS, QUERIES), systems, baseline)


# Scores of other precision


@pytest.mark.parametrize(
    "scores",
    [
        np.array([2**53, 2**53 + 1]),
        np.array([-(2**53), -(2**53) - 1]),
        np.array([2**64 - 1, 2**64 - 2], np.uint64),
        np.array([1, 1 + np.finfo(np.longdouble).eps], np.longdouble),
        [2**70, 2**70 + 1],
        [10**400, 10**401],  # both are infinite
        [Decimal(1), Decimal("1.0000000000000000000000001")],
        [Fraction(1, 3), Fraction(10**30 + 1, 3 * 10**30)],
    ],
    ids=[
        "above 2^53",
        "below -2^53",
        "uint64",
        "long double",
        "above 2^70",
        "above all floats",
        "decimals",
        "fractions",
    ],
)
def test_scores_that_float64_would_tie_are_refused(scores):
    if np.finfo(np.longdouble).eps == np.finfo(np.float64).eps and getattr(scores, "dtype", None) == np.longdouble:
        pytest.skip("long doubles are doubles here")
    with pytest.raises(DataError, match="scores: expected numbers that differ as float64 where they differ, got"):
        evaluate(([0, 1], [1, 1]), scores)
    with pytest.raises(DataError, match="scores: expected numbers that differ as float64 where they differ, got"):
        evaluate(([0, 1], [1, 1]), scores[::-1])


@pytest.mark.parametrize(
    "scores",
    [
        np.array([2**60, 2**60, 2**61]),
        np.array([0.1, 0.2, 0.3], np.longdouble),
        [Decimal("0.1"), Decimal("0.10"), Decimal("0.3")],
        [Fraction(1, 3), 1, 2.5],
        [10**400, float("-inf"), 0],
        np.array([65504, 1, 2], np.float16),
        np.array([True, False, True]),
    ],
    ids=["above 2^53", "long double", "decimals", "fractions", "above all floats", "float16", "booleans"],
)
def test_scores_of_any_precision_that_float64_tells_apart_rank_as_they_are(scores):
    ratings = [2, 0, 1]
    exact = list(scores)
    places = [sum(other < one for other in exact) for one in exact]  # the order alone, ties included
    found, expected = (evaluate((ratings, [1] * 3), s, "ndcg").mean("ndcg") for s in (scores, places))
    assert found == expected


# What pandas knows of its rows


def moved(values, order):
    return pd.Series(values)[order]


def test_an_index_in_another_order_warns_and_rows_are_matched_by_place():
    order = np.array([5, 4, 3, 2, 1, 0])
    X = pd.DataFrame(np.eye(6))
    for name, given in {"y": RATINGS, "qid": QUERIES, "row_weight": np.ones(6), "position": np.arange(1, 7)}.items():
        parts = {"y": RATINGS, "qid": QUERIES} | {name: moved(given, order)}
        with pytest.warns(UserWarning, match=f"{name}: has the index of X in another order"):
            RankingDataset(X, **parts)
    with pytest.warns(UserWarning, match="y: has the index of X in another order"):
        data = RankingDataset(X, moved(RATINGS, order))
    assert data.ratings.tolist() == RATINGS[order].tolist()


def test_fit_and_predict_warn_of_an_index_in_another_order():
    order, X = (
        np.array([5, 4, 3, 2, 1, 0]),
        pd.DataFrame(np.random.default_rng(0).normal(size=(6, 2)), columns=["a", "b"]),
    )
    ranker = tierank.LinearRanker()
    with pytest.warns(UserWarning, match="y: has the index of X in another order"):
        ranker.fit(X, moved(RATINGS, order), qid=QUERIES)
    with pytest.warns(UserWarning, match="qid: has the index of X in another order"):
        ranker.predict(X, qid=moved(QUERIES, order))


def test_scores_with_the_index_of_the_ratings_in_another_order_warn():
    y, scores = pd.Series(RATINGS), moved(SCORES, np.arange(6)[::-1])
    with pytest.warns(UserWarning, match="scores: has the index of y in another order"):
        evaluate((y, QUERIES), scores)
    with pytest.warns(UserWarning, match="new: has the index of y in another order"):
        compare((y, QUERIES), {"old": SCORES, "new": scores})


def test_an_index_that_is_the_same_or_names_other_rows_does_not_warn():
    X = pd.DataFrame(np.eye(6), index=list("fedcba"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RankingDataset(X, pd.Series(RATINGS, index=X.index), pd.Series(QUERIES, index=X.index))
        RankingDataset(X, pd.Series(RATINGS), QUERIES)  # rows are counted there
        RankingDataset(X, RATINGS, pd.Series(QUERIES, index=range(6, 12)))
        evaluate((pd.Series(RATINGS, index=X.index), QUERIES), pd.Series(SCORES))


def test_a_series_by_query_id_is_looked_up_by_it():
    """After a groupby queries are sorted by id, and not in the order in which they appear."""
    rows = pd.DataFrame({"query": QUERIES, "device": np.where(QUERIES == "a", "phone", "desk"), "weight": 1.0})
    rows.loc[rows["query"] == "a", "weight"] = 3.0
    by_query = rows.groupby("query")[["device", "weight"]].first()
    assert by_query.index.tolist() == ["a", "b"]
    data = RankingDataset(np.eye(6), RATINGS, QUERIES, query_weight=by_query["weight"])
    assert data.query_ids.tolist() == ["b", "a"]
    assert data.query_weight.tolist() == [1.0, 3.0]
    expected = [(one.value, one.mean) for one in evaluate(data, SCORES, "ndcg", by=rows["device"]).segments]
    for by in (by_query["device"], by_query[["device"]], by_query["device"].to_dict(), {"device": by_query["device"]}):
        assert [(one.value, one.mean) for one in evaluate(data, SCORES, "ndcg", by=by).segments] == expected


def test_a_series_that_only_counts_its_rows_goes_by_the_order_of_queries():
    data = RankingDataset(np.eye(4), [1, 0, 0, 1], qid=[1, 1, 0, 0], query_weight=pd.Series([5.0, 7.0]))
    assert data.query_ids.tolist() == [1, 0]
    assert data.query_weight.tolist() == [5.0, 7.0]


def test_a_series_by_row_stays_one_by_row_whatever_its_index_is():
    """A shuffled table has numbers of rows as its index, and these may be ids of queries too."""
    data = RankingDataset(np.eye(4), [1, 0, 0, 1], qid=[0, 0, 1, 1])
    by = pd.Series(["x", "x", "y", "y"], index=[3, 1, 0, 2])
    assert [one.value for one in evaluate(data, [1, 2, 3, 4], "ndcg", by=by).segments] == ["x", "y"]


def test_labels_of_segments_stay_short():
    found = evaluate((RATINGS, QUERIES), SCORES, "ndcg", by={"a": 1e300, "b": 12_345})
    assert [one.value for one in found.segments] == ["12,345", "1e+300"]


# Files and models


def test_a_link_that_leads_nowhere_is_named(tmp_path):
    (tmp_path / "data.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(DataError, match="expected a file, got a broken link"):
        tierank.read(tmp_path / "data.txt")


def test_the_text_of_a_model_is_not_taken_for_a_path():
    with pytest.raises(ParameterError, match=r"got the text of a model; lightgbm.Booster\(model_str=text\)"):
        tierank.from_lightgbm("tree\nversion=v4\n")
    with pytest.raises(ParameterError, match="model: expected the name of a file or folder, got a name with a zero b"):
        tierank.from_lightgbm("a\0b")
