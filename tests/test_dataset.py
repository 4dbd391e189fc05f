"""The data type: grouping, order, checks at the door."""

import datetime
from decimal import Decimal
from itertools import pairwise

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from hypothesis import example, given
from hypothesis import strategies as st

from tierank import DataError, ParameterError, RankingDataset, write
from tierank.data.tables import as_features


def small(**changes):
    arguments = {"X": np.arange(8.0).reshape(4, 2), "y": [0, 2, 1, 0], "qid": ["a", "b", "a", "b"]}
    return RankingDataset(**{**arguments, **changes})


def test_rows_are_grouped_and_can_be_put_back():
    data = small(row_weight=[1, 2, 3, 4], query_weight={"a": 5, "b": 6}, document_ids=["w", "x", "y", "z"])
    assert data.query_ids.tolist() == ["a", "b"]
    assert data.offsets.tolist() == [0, 2, 4]
    assert data.features.tolist() == [[0, 1], [4, 5], [2, 3], [6, 7]]
    assert data.ratings.tolist() == [0, 1, 2, 0]
    assert data.row_weight.tolist() == [1, 3, 2, 4]
    assert data.query_weight.tolist() == [5, 6]
    assert data.document_ids == ["w", "y", "x", "z"]
    assert data.source_rows.tolist() == [0, 2, 1, 3]
    assert data.restore(data.ratings).tolist() == [0, 2, 1, 0]
    assert data.arrange(np.array([0, 2, 1, 0])).tolist() == data.ratings.tolist()
    assert (data.features.dtype, data.ratings.dtype) == (np.float32, np.float64)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=40), st.randoms())
def test_grouping_by_a_slow_twin(rows, random):
    queries = [f"q{q}" for q, _ in rows]
    ratings = [r for _, r in rows]
    data = RankingDataset(np.arange(len(rows))[:, None], ratings, qid=queries)
    order = list(dict.fromkeys(queries))
    assert data.query_ids.tolist() == order
    for i, query in enumerate(order):
        own = slice(data.offsets[i], data.offsets[i + 1])
        members = [k for k, q in enumerate(queries) if q == query]
        assert data.features[own, 0].tolist() == members
        unique = sorted({ratings[k] for k in members}, reverse=True)
        assert data.tiers[own].tolist() == [unique.index(ratings[k]) for k in members]
    assert data.restore(data.features[:, 0]).tolist() == list(range(len(rows)))


def test_grouped_input_is_not_copied():
    features = np.ones((4, 2), np.float32)
    data = RankingDataset(features, [0, 1, 0, 1], qid=[7, 7, 3, 3])
    assert np.shares_memory(data.features, features)
    assert data.query_ids.tolist() == [7, 3]
    assert np.shares_memory(data.select([1]).features, features)


@pytest.mark.parametrize(
    "ids",
    [
        [1, 1, -2],
        np.array([2**63, 2**63, 1], np.uint64),
        ["x", "x", "y"],
        [b"x", b"x", b"y"],
        [True, True, False],
        [1.5, 1.5, 2.5],
        [("a", 1), ("a", 1), ("b", 2)],
        [("a", 1), ("a", 1), ("b",)],
        [1, 1, "1"],
        [2**64, 2**64, 2**64 + 1],
        [-1, -1, 2**63],
        ["a", "a", "a\0"],
        np.array([[7], [7], [8]]),
        [[7], [7], [8]],
        pd.DataFrame({"session": [7, 7, 8]}),
        np.ma.masked_array([7, 7, 8]),
        np.array(["2020-01-01", "2020-01-01", "2021-01-01"], "datetime64[D]"),
        pd.Series(["x", "x", "y"], dtype="category"),
        pd.Series(["x", "x", "y"], index=[5, 6, 7]),
        pl.Series(["x", "x", "y"]),
        pa.array(["x", "x", "y"]),
    ],
    ids=lambda value: type(value).__name__ + str(getattr(value, "dtype", "")),
)
def test_query_ids_of_any_type(ids):
    assert RankingDataset(np.eye(3), [0, 1, 2], qid=ids).offsets.tolist() == [0, 2, 3]


def test_a_number_and_its_text_are_two_queries():
    data = RankingDataset(np.eye(4), [0, 1, 2, 3], qid=[1, "1", 1, "1"])
    assert data.query_ids.tolist() == [1, "1"]
    assert data.source_rows.tolist() == [0, 2, 1, 3]
    parts = [RankingDataset(np.eye(2), [0, 1], qid=ids) for ids in ([1, 1], ["1", "1"])]
    assert RankingDataset.concat(parts).query_ids.tolist() == [1, "1"]


IDS = [1, 1.0, True, "1", "True", b"1", "\xff", b"\xff", "\\xff", (1,), (1.0,), "2020-01-31", -0.0, 0, 2**70, 0.1]
IDS += [datetime.date(2020, 1, 31), np.datetime64("2020-01-31"), Decimal("0.1"), frozenset([1])]


@given(st.lists(st.sampled_from(IDS), min_size=1, max_size=8), st.sampled_from(["list", "tuple", "array", "pandas"]))
@example(["\xff", b"\xff"], "list")
@example([np.datetime64("2020-01-31"), "2020-01-31"], "list")
def test_ids_that_are_equal_in_python_are_one_query_and_no_others(ids, kind):
    objects = np.empty(len(ids), object)
    objects[:] = ids
    given_as = {"list": ids, "tuple": tuple(ids), "array": objects, "pandas": pd.Series(objects, dtype=object)}[kind]
    data = RankingDataset(np.arange(len(ids))[:, None], qid=given_as)
    expected = {}
    for row, key in enumerate(ids):
        expected.setdefault(key, []).append(row)
    found = [data.features[a:b, 0].tolist() for a, b in pairwise(data.offsets.tolist())]
    assert found == list(expected.values())


@pytest.mark.parametrize("missing", [None, np.nan, float("nan"), pd.NA, pd.NaT, np.datetime64("NaT"), Decimal("nan")])
@pytest.mark.parametrize("others", [[1, 2], ["a", "b"], [b"a", "a"]])
def test_missing_ids_of_any_kind_are_refused(missing, others):
    objects = np.empty(3, object)
    objects[:] = [*others, missing]
    for ids in ([*others, missing], objects, pd.Series(objects)):
        with pytest.raises(DataError, match="qid: expected a query id in every row, got none in row 2"):
            RankingDataset(np.eye(3), qid=ids)


def test_missing_ids_of_tables_are_refused():
    for ids in (
        pa.array([1, None, 2]),
        pl.Series([1, None, 2]),
        pd.array([1, None, 2], "Int64"),
        pa.array(["a", None, "b"]),
    ):
        with pytest.raises(DataError, match="qid: expected a query id in every row, got none in row 1"):
            RankingDataset(np.eye(3), qid=ids)


def test_ids_that_are_arrays_are_refused():
    ids = np.empty(2, object)
    ids[:] = [np.array([1, 2]), np.array([1, 3])]
    with pytest.raises(DataError, match="qid: expected hashable ids"):
        RankingDataset(np.eye(2), qid=ids)


def test_integers_beyond_all_floats_are_infinite():
    for value in (10**400, -(10**400)):
        with pytest.raises(
            DataError, match=r"X: expected values that float32 can hold .* got -?inf in row 1, column 0"
        ):
            RankingDataset(np.array([[1], [value]], object), [0, 1])


def test_texts_that_utf8_cannot_hold_are_refused(tmp_path):
    for changes in ({"feature_names": ["a", "\ud800"]}, {"document_ids": ["\ud800", "b", "c", "d"]}):
        with pytest.raises(
            DataError, match=rf"{next(iter(changes))}: expected text that can be encoded as UTF-8, got '.ud800'"
        ):
            small(**changes)
    data = small(qid=["\ud800", "b", "c", "d"])
    for ending in ("txt", "tierank", "qrels", "csv", "parquet"):
        with pytest.raises(DataError, match=r"query.ids: expected text that can be encoded as UTF-8"):
            write(data, tmp_path / f"x.{ending}")
    assert not list(tmp_path.iterdir())


def test_masked_cells_are_missing():
    for kind in (np.float64, np.float32, np.int64):
        masked = np.ma.masked_array(np.array([[1, 2], [3, 4]], kind), [[0, 1], [0, 0]])
        np.testing.assert_array_equal(RankingDataset(masked, [0, 1]).features, [[1, np.nan], [3, 4]])


def test_text_that_left_out_the_last_features_is_widened():
    data = small(document_ids=["w", "x", "y", "z"])
    wide = data.widen(4)
    assert wide.features.tolist() == [[0, 1, 0, 0], [4, 5, 0, 0], [2, 3, 0, 0], [6, 7, 0, 0]]
    assert (wide.document_ids, wide.source_rows.tolist()) == (data.document_ids, data.source_rows.tolist())
    assert data.widen(2) is data
    named = small(feature_names=["a", "b"])
    assert named.widen(4) is named  # a column that is missing is no column of zeros
    with pytest.raises(DataError, match="expected at most 1 features, as n_features or the model says, got 2"):
        data.widen(1)


def test_no_query_ids_is_one_query():
    assert RankingDataset(np.eye(3), [0, 1, 2]).offsets.tolist() == [0, 3]


def test_no_ratings_is_allowed_until_they_are_needed():
    data = small(y=None)
    assert repr(data) == "RankingDataset(2 queries, 4 documents, 2 features, no ratings)"
    with pytest.raises(DataError, match="this data set has no ratings: expected y when it was built"):
        data.ratings


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"price": [1, 2, 3], "hits": [0.5, None, 2.5]}),
        pd.DataFrame({"price": [1, 2, 3], "hits": pd.array([0.5, None, 2.5], dtype="Float64")}),
        pl.DataFrame({"price": [1, 2, 3], "hits": [0.5, None, 2.5]}),
        pa.table({"price": [1, 2, 3], "hits": [0.5, None, 2.5]}),
    ],
    ids=lambda table: type(table).__module__,
)
def test_tables_keep_their_names(table):
    data = RankingDataset(table, [0, 1, 2])
    np.testing.assert_array_equal(data.features, np.array([[1, 0.5], [2, np.nan], [3, 2.5]], np.float32))
    assert data.feature_names == ("price", "hits")


def test_sparse_matrices_mean_zero_where_nothing_is():
    matrix = scipy.sparse.random(20, 7, density=0.3, random_state=0, format="csr")
    np.testing.assert_array_equal(RankingDataset(matrix, np.ones(20)).features, matrix.toarray().astype(np.float32))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.zeros((0, 2)), "y": [], "qid": []}, "expected at least one document and one feature"),
        ({"X": np.zeros(4)}, r"X: expected a matrix of documents x features, got 1 dimension\(s\). Reshape your data"),
        ({"X": np.array([["a", "b"]] * 4)}, "X: expected numbers, got 'a'"),
        ({"X": np.array([["1", "2"]] * 4, object)}, "X: expected numbers, got '1'"),
        (
            {"X": [[0, np.inf], [0, 0], [0, 0], [0, 0]]},
            "X: expected values that float32 can hold.* got inf in row 0, column 1",
        ),
        ({"X": [[0, 0], [0, 0], [1e39, 0], [0, 0]]}, r"got 1e\+39 in row 2, column 0; clip it"),
        ({"X": pd.DataFrame({"a": [b"x"] * 4})}, "column 'a': expected numbers, texts, dates or vectors, got b'x'"),
        (
            {"X": pd.DataFrame([[1, 2]] * 4, columns=["a", "a"])},
            "feature_names: expected each name once, got 'a' twice",
        ),
        ({"X": pl.LazyFrame({"a": [1] * 4})}, r"expected a table, got a polars LazyFrame, .* pass frame.collect\(\)"),
        ({"y": [0, 1]}, r"y: expected 4 ratings, one per row of X, got shape \(2,\)"),
        ({"y": [0, 1, -1, 2]}, "y, row 2: expected a finite rating that is not negative, got -1; shift the ratings"),
        ({"y": [0, 1, -np.inf, 2]}, "y, row 2: expected a finite rating that is not negative, got -inf"),
        ({"y": [0, 1, np.inf, 2]}, "y, row 2: expected a finite rating that is not negative, got inf"),
        ({"y": ["good", "bad", "good", "bad"]}, "y: expected numbers, got 'good'"),
        ({"qid": [2, 2]}, r"these look like group sizes: pass qid=np.repeat\(np.arange\(len\(sizes\)\), sizes\)"),
        ({"qid": [1, 2]}, r"qid: expected 4 query ids, one per row of X, got shape \(2,\)$"),
        ({"qid": [1.0, np.nan, 1.0, 2.0]}, "qid: expected a query id in every row, got none in row 1"),
        ({"qid": ["a", "a", None, "b"]}, "qid: expected a query id in every row, got none in row 2"),
        (
            {"qid": np.ma.masked_array([1, 1, 2, 2], [0, 0, 0, 1])},
            "qid: expected a query id in every row, got none in row 3",
        ),
        (
            {"qid": np.ma.masked_array(list("abab"), [0, 1, 0, 0])},
            "qid: expected a query id in every row, got none in row 1",
        ),
        (
            {"qid": [[1], [1, 2], [1], [2]]},
            "qid: expected hashable ids, such as numbers, texts or tuples, got: .*unhashable",
        ),
        ({"row_weight": [1, 1]}, "row_weight: expected 4 weights"),
        ({"row_weight": [1, 1, -1, 1]}, "row_weight: expected finite weights that are not negative .*, got -1 at 2"),
        ({"row_weight": [1, 1, 1, 1e300]}, r"row_weight: expected .* that float32 can hold, got 1e\+300 at 3"),
        (
            {"row_weight": np.ma.masked_array([1.0] * 4, [0, 1, 0, 0])},
            "row_weight: expected finite weights .* got nan at 1",
        ),
        ({"query_weight": 2.0}, r"query_weight: expected 4 weights or 2 \(one per query\), got shape \(\)"),
        ({"query_weight": ["x", "y"]}, "query_weight: expected numbers, got 'x'"),
        ({"query_weight": {"a": 1e39, "b": 1}}, r"query_weight: expected .* that float32 can hold, got 1e\+39 at 0"),
        ({"query_weight": {"a": 1}}, "query_weight: expected a weight for every query, got none for 'b'"),
        ({"query_weight": [1, 2, 3, 4]}, "query_weight: expected one weight for all rows of query a, got several"),
        ({"query_weight": [1, 2, 3]}, r"query_weight: expected 4 weights or 2 \(one per query\)"),
        ({"feature_names": ["a"]}, "feature_names: expected 2 names, one per column of X, got 1"),
        ({"feature_names": ["a", "a"]}, "feature_names: expected each name once, got 'a' twice"),
        ({"document_ids": ["x"]}, "document_ids: expected 4 ids, one per row, got 1"),
    ],
)
def test_what_cannot_be_used_is_refused_at_the_door(changes, message):
    with pytest.raises(DataError, match=message):
        small(**changes)


def test_query_weights_in_three_forms():
    expected = [5.0, 6.0]
    for weight in ({"a": 5, "b": 6}, [5, 6], [5, 6, 5, 6]):
        assert small(query_weight=weight).query_weight.tolist() == expected


def test_parts():
    data = RankingDataset(
        np.arange(12)[:, None], np.arange(12) % 3, qid=np.arange(12) // 2, row_weight=np.arange(12),
        query_weight=np.arange(6), document_ids=[f"d{i}" for i in range(12)],
    )  # fmt: skip
    part = data.select([0, 3])
    assert part.features[:, 0].tolist() == [0, 1, 6, 7]
    assert part.document_ids == ["d0", "d1", "d6", "d7"]
    assert (part.row_weight.tolist(), part.query_weight.tolist()) == ([0, 1, 6, 7], [0, 3])
    parts = data.split(0.5, 0.5, seed=3)
    assert sorted(np.concatenate([p.query_ids for p in parts])) == list(range(6))
    assert [p.query_ids.tolist() for p in parts] == [p.query_ids.tolist() for p in data.split(0.5, 0.5, seed=3)]
    whole = RankingDataset.concat(parts)
    order = np.argsort(whole.features[:, 0])
    assert whole.features[order, 0].tolist() == list(range(12))
    assert [whole.document_ids[i] for i in order] == data.document_ids
    with pytest.raises(DataError, match="query 0: expected each query in one part only"):
        RankingDataset.concat([data, data])
    with pytest.raises(DataError, match="parts: expected the same features, 1, got 2"):
        RankingDataset.concat([data, RankingDataset(np.eye(2), [0, 1], qid=[77, 77])])
    with pytest.raises(DataError, match="row_weight: expected in all of the parts or in none, got 1 of 2"):
        RankingDataset.concat([data, RankingDataset([[1]], [0], qid=[77])])
    with pytest.raises(DataError, match="expected at least one data set to join, got none"):
        RankingDataset.concat([])
    with pytest.raises(DataError, match="expected at least one query to select, got none"):
        data.select(np.zeros(6, bool))
    with pytest.raises(
        ParameterError, match=r"expected positive shares that sum to at most 1, such as 0.8 and 0.2, got \(0.9, 0.2\)"
    ):
        data.split(0.9, 0.2)


def test_document_ids_of_any_iterable():
    for ids in (["1", "2"], map(str, [1, 2]), iter((1, 2)), np.array([1, 2]), {"1": 0, "2": 0}):
        assert list(RankingDataset(np.eye(2), qid=[0, 0], document_ids=ids).document_ids) == ["1", "2"]
    for ids, got in ((7, "int"), (iter("abc"), "3")):
        with pytest.raises(DataError, match=f"document_ids: expected 2 ids, one per row, got {got}"):
            RankingDataset(np.eye(2), qid=[0, 0], document_ids=ids)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_a_number_that_is_too_large_is_shown_as_it_was_given(make):
    """With the name of its column, and not as what float32 makes of it."""
    for values in ([1.0, -1e300], [None, -1e300], [[0.0, 1.0], [0.0, -1e300]]):
        table = make({"x": [0.0, 1.0], "wide": values})
        place = 2 if isinstance(values[0], list) else 1
        name = "wide_1" if place == 2 else "wide"
        with pytest.raises(DataError, match=rf"got -1e\+300 in row 1, column {place} \('{name}'\); clip it"):
            as_features(table)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("X", "features"), ("y", "ratings"), ("qid", "query_ids"), ("group", "lengths")]
)
def test_names_of_other_libraries_are_told(theirs, ours):
    """The name that the message gives is an attribute."""
    data = RankingDataset(np.eye(4), [0, 1, 2, 0], qid=[1, 1, 2, 2])
    with pytest.raises(AttributeError, match=f"^'RankingDataset' object has no attribute '{theirs}': use {ours}"):
        getattr(data, theirs)
    assert getattr(data, ours) is not None
    with pytest.raises(AttributeError, match=r"has no attribute 'featuers'$"):
        getattr(data, "featuers")  # noqa: B009
    assert not hasattr(data, "columns")  # is_table asks


# Parts by date


DAYS = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(40) % 10, unit="D")


@pytest.mark.parametrize(
    "by",
    [
        pd.Series(DAYS),
        pl.Series(DAYS.to_numpy()),
        DAYS.tz_localize("Europe/Berlin"),
        DAYS.to_numpy(),
        list(DAYS.strftime("%Y-%m-%d")),
        [day.date() for day in DAYS],
        np.arange(40) % 10,
        list(np.arange(40) % 10 * 1.5 - 99),
        "age",
        "listed",
    ],
    ids=lambda by: type(by).__name__,
)
def test_parts_by_date_are_in_order(by):
    """The rows of a query are apart."""
    data = RankingDataset(pd.DataFrame({"age": np.arange(40) % 10, "listed": DAYS}), qid=np.arange(40) % 10)
    parts = data.split(0.6, 0.2, 0.2, by=by)
    assert [sorted(part.query_ids.tolist()) for part in parts] == [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9]]


@given(st.lists(st.integers(0, 6), min_size=2, max_size=40), st.sampled_from([(0.5, 0.5), (0.8, 0.1), (0.3, 0.3, 0.4)]))
def test_parts_by_value_never_overlap(values, shares):
    """A slow twin: each cut is the place nearest to its share where the sorted values change, or an end."""
    data = RankingDataset(np.zeros((2 * len(values), 1)), qid=np.repeat(np.arange(len(values)), 2))
    by = [value - k for value in values for k in range(2)]  # a query counts by its highest value
    rising, n = sorted(values), len(values)
    places = [0, *(k for k in range(1, n) if rising[k - 1] < rising[k]), n]
    cuts = [min(places, key=lambda k: abs(k - round(sum(shares[:part]) * n))) for part in range(len(shares) + 1)]
    if any(below == above for below, above in pairwise(cuts)):
        with pytest.raises(DataError, match=f"by: expected values that {len(shares)} parts can differ in"):
            data.split(*shares, by=by)
        return
    parts = data.split(*shares, by=by)
    assert [[values[k] for k in part.query_ids.tolist()] for part in parts] == [
        [value for value in values if rising[first] <= value <= rising[last - 1]] for first, last in pairwise(cuts)
    ]


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ([1, 2], "by: expected a feature, or 4 values, one per row, got shape"),
        (3, "by: expected a feature, or 4 values, one per row, got int"),
        ([1, 2, None, 4], "by: expected a value in every row, got none in row 2"),
        (["2024-01-01", "2024-01-02", "", "2024-01-04"], "by: expected a value in every row, got none in row 2"),
        (["31.01.2024"] * 4, "by: expected numbers, or dates such as 2024-01-31, got '31.01.2024'"),
        (["2024-01-31", 7, 8, 9], "by: expected numbers, or dates such as 2024-01-31, got 7"),
        ([5, 5, 5, 5], "by: expected values that 2 parts can differ in, got 1 for 4 queries"),
        ("dated", "unknown feature of numbers or dates 'dated': did you mean 'date'"),
        ("shop", "unknown feature of numbers or dates 'shop'"),
    ],
)
def test_values_that_cannot_order_queries_are_refused(by, message):
    frame = pd.DataFrame({"date": [1.0, 2, 3, 4], "shop": ["a", "b", "c", "d"]})
    data = RankingDataset(frame, qid=[1, 2, 3, 4])
    with pytest.raises((DataError, ParameterError), match=message):
        data.split(0.5, 0.5, by=by)
