"""What all clusters share: checks before anything is sent, parts of queries, and the columns that scoring reads."""

import itertools
import threading

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tierank
from tierank import DataError, ParameterError, RankingDataset, TeamError, TreeRanker, UMart
from tierank.data.team import Team, cut_queries
from tierank.distributed import fit, parts
from tierank.distributed import ray as on_ray
from tierank.distributed.parts import Holds, scored_columns
from tierank.rankers.training_data import settle_unjudged

FRAME = pd.DataFrame({"qid": [1, 1, 2, 2], "rating": [0.0, 1.0, 1.0, 0.0], "x": [1.0, 2.0, 3.0, 4.0]})


# Arguments


def test_names_of_columns_are_checked_first():
    assert parts.named_columns("q", None, ["a"]) == {"query": "q", "rating": None, "features": ["a"]}
    with pytest.raises(ParameterError, match=r"features: expected a list of names of columns, got 'bm25'; write"):
        parts.named_columns(None, None, "bm25")
    with pytest.raises(ParameterError, match="features: expected a list of names of columns, got 5"):
        parts.named_columns(None, None, 5)
    with pytest.raises(ParameterError, match=r"features: expected at least one column to learn from, got \[\]"):
        parts.named_columns(None, None, [])
    with pytest.raises(ParameterError, match=r"query: expected the name of one column, got \['qid'\]"):
        parts.named_columns(["qid"], None, None)


def test_arguments_of_another_cluster_are_refused():
    with pytest.raises(ParameterError, match="unknown argument of fit with Dask 'tasks': Known: workers"):
        fit(UMart(), FRAME, None, tasks=2)

    class Rows:
        __module__ = "ray.data.dataset"

    Rows.__name__ = "Dataset"
    with pytest.raises(ParameterError, match="client: expected None with data of Ray, got some"):
        fit(UMart(), Rows(), "scheduler:8786")


def test_settings_that_cannot_be_sent_are_refused():
    lock = threading.Lock()

    def loss(scores, batch):
        with lock:
            return scores

    with pytest.raises(ParameterError, match="ranker: expected settings that can be sent to other processes, got: "):
        parts.check_settings_of(TreeRanker(loss=loss))


# Parts


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=20), st.integers(1, 6))
def test_every_part_has_a_query_that_counts(queries, n_parts):
    lengths, counted = np.array([n for n, _ in queries]), np.array([is_counted for _, is_counted in queries])
    if counted.sum() < n_parts:
        with pytest.raises(DataError, match="expected at least one query for each of"):
            parts.cut_parts(lengths, counted, n_parts)
        return
    edges = parts.cut_parts(lengths, counted, n_parts)
    assert (edges[0], edges[-1]) == (0, len(lengths))
    assert all(counted[a:b].any() for a, b in itertools.pairwise(edges))
    # The queries that count are split as if there were no others.
    alone = cut_queries(np.concatenate([[0], lengths[counted].cumsum()]), n_parts)
    assert np.diff(alone).tolist() == [counted[a:b].sum() for a, b in itertools.pairwise(edges)]


def test_data_without_any_rating_have_no_parts():
    with pytest.raises(DataError, match="rating: expected at least one document with a rating, got unjudged documents"):
        parts.number_of_parts(2, [np.array([2, 3])], [np.array([False, False])], "tasks")


class Part(Team):
    size, holds_parts = 2, True


def test_a_part_may_consist_of_documents_that_count_as_rated_0():
    data = RankingDataset([[1.0], [2.0]], [np.nan, np.nan], qid=[1, 1])
    settled, _ = settle_unjudged(data, None, {"unjudged": "zero"}, {"unjudged"}, team=Part())
    assert settled.ratings.tolist() == [0.0, 0.0]
    for unjudged, is_part in (("zero", False), ("skip", True)):
        with pytest.raises(DataError, match="y: expected at least one document with a rating, got unjudged documents"):
            settle_unjudged(data, None, {"unjudged": unjudged}, {"unjudged"}, team=Part() if is_part else None)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (["b", "a", "b", "c"], "category"),
        (pd.to_datetime(["2020-01-01"] * 4), "date"),
        ([[1.0, 2.0]] * 4, "element"),
    ],
    ids=["texts", "dates", "vectors"],
)
def test_columns_that_no_part_can_encode_are_refused(column, kind):
    """Each partition would number its own texts, so that the same number meant different texts."""
    message = f"partition 3: features: expected numbers in column 'w', got {kind}; encode it as numbers"
    with pytest.raises(DataError, match=message):
        parts.grouped("partition 3", {}, FRAME.assign(w=column))


def test_partitions_with_different_columns_are_refused():
    sizes = [parts.sizes_of(parts.grouped("", {}, frame)) for frame in (FRAME, FRAME.assign(z=1.0))]
    parts.check_alike([None, sizes[0], None, sizes[0]], "block")
    with pytest.raises(DataError, match="block 2: expected the features of block 1, x, got x, z; give every block"):
        parts.check_alike([None, *sizes], "block")
    swapped = [
        parts.sizes_of(parts.grouped("", {}, FRAME.assign(z=1.0)[names]))
        for names in (["qid", "rating", "x", "z"], ["qid", "rating", "z", "x"])
    ]
    with pytest.raises(DataError, match="block 1: expected the features of block 0, x, z, got z, x; give every block"):
        parts.check_alike(swapped, "block")
    weighted = parts.sizes_of(parts.grouped("", {}, FRAME.assign(row_weight=1.0)))
    with pytest.raises(DataError, match="partition 1: expected the weights of partition 0, none, got row_weight; give"):
        parts.check_alike([sizes[0], weighted], "partition")
    texts = parts.sizes_of(parts.grouped("", {}, FRAME.assign(qid=["1", "1", "2", "2"])))
    with pytest.raises(DataError, match="block 1: expected the type of query ids of block 0, integers, got texts or"):
        parts.check_alike([sizes[0], texts], "block")


def test_a_part_with_other_rows_than_counted_is_refused():
    data = RankingDataset(np.eye(3), [1, 0, 2], qid=[7, 7, 8])
    assert parts.complete(data, (2, 3)) is data
    with pytest.raises(DataError, match="expected 2 queries with 4 documents, got 2 with 3; the data changed while"):
        parts.complete(data, (2, 4))
    with pytest.raises(DataError, match="expected 2 queries with 4 documents, got 0 with 0; the data changed while"):
        parts.complete(None, (2, 4))


def test_a_query_that_is_too_large_is_told(caplog):
    lengths = np.array([9, 1, 1, 1])
    assert parts.number_of_parts(2, [lengths], [lengths > 0], "tasks") == 2
    assert "a query has 9 documents, more than the share of one of 2 tasks (6)" in caplog.text
    assert "at most 1 tasks have enough to do" in caplog.text


def test_members_with_different_models_and_the_first_cause():
    class Two(parts.Cluster):
        member, size = "worker", 2

        def source(self, data, argument, columns):
            found = parts.Source()
            found.lengths = found.judged = np.array([3, 2])
            found.columns = columns
            return found

        def run(self, training, sources, cuts):
            assert (training.size, [edges.tolist() for edges in cuts]) == (2, [[0, 1, 2]])
            return [("ranker", "one"), (None, "other")]

    with pytest.raises(TeamError, match=r"expected the same model on all workers, got different ones: \['one', 'other"):
        parts.fit_on(Two(), UMart(), None, None, {}, None, False, 1.0)
    alone, guilty = TeamError.left_alone("lost contact"), DataError(got="nothing")
    assert parts.cause([alone, guilty, alone]) is guilty
    assert parts.cause([alone]) is alone
    assert parts.cause([]) is None


# Scoring

NUMBERS = Holds("numbers", "double")


def columns_of(ranker, held, **arguments):
    given = {"query": None, "features": None, "score": "score"} | arguments
    return scored_columns(ranker, held, **given)


def test_scored_columns_are_checked_before_rows_are_read():
    named = UMart(n_trees=1, min_documents=1).fit(tierank.read(FRAME.assign(z=[3.0, 1.0, 2.0, 2.0])))
    held = {"qid": NUMBERS, "z": NUMBERS, "x": NUMBERS, "more": Holds("others", "map")}
    layout, needs_list = columns_of(named, held)
    assert (layout.features, needs_list) == (["x", "z"], False)
    for other in (Holds("others", "string"), Holds("vectors", "array<double>")):
        with pytest.raises(DataError, match=f"data: features: expected numbers in column 'x', .* got {other.type}"):
            columns_of(named, held | {"x": other})
    with pytest.raises(DataError, match="data: X: expected the column 'z', which fit had, got none"):
        columns_of(named, held, features=["x"])
    with pytest.raises(ParameterError, match=r"features: expected a list of names of columns, got 'x'; write \['x'\]"):
        columns_of(named, held, features="x")
    for score in (5, None, "x"):
        with pytest.raises(ParameterError, match=f"score: expected the name of a new column, got {score!r}"):
            columns_of(named, held, score=score)
    plain = UMart(n_trees=1, min_documents=1).fit(FRAME[["x", "qid"]].to_numpy(), FRAME["rating"], FRAME["qid"])
    with pytest.raises(DataError, match="data: X has 3 features, but UMart is expecting 2"):
        columns_of(plain, {"x": NUMBERS, "z": NUMBERS, "w": NUMBERS, "qid": NUMBERS})
    with pytest.raises(DataError, match="data: features: expected numbers in column 'z', as in training, got string"):
        columns_of(plain, {"x": NUMBERS, "z": Holds("others", "string"), "qid": NUMBERS})
    with pytest.raises(DataError, match="data: features: expected numbers in column 'v', as in training, got array"):
        columns_of(plain, {"v": Holds("vectors", "array<double>"), "qid": NUMBERS})


def test_features_of_texts_are_scored_from_their_columns():
    frame = FRAME.assign(words=["red shoe", "red shoe", "hat", "hat"], title=["shoe", "hat", "hat", "red"])
    data = tierank.read(frame, columns=tierank.Columns(texts=[("words", "title")]))
    ranker = UMart(n_trees=1, min_documents=1).fit(data)
    assert "words" not in ranker.feature_names_in_
    held = {"qid": NUMBERS, "x": NUMBERS, "words": Holds("others", "string"), "title": Holds("others", "string")}
    assert sorted(columns_of(ranker, held)[0].features) == ["title", "words", "x"]


def test_what_arrow_types_hold():
    arrow = pytest.importorskip("pyarrow")
    for kind in (arrow.int8(), arrow.uint64(), arrow.float32(), arrow.decimal128(9, 2), arrow.bool_(), arrow.null()):
        assert on_ray._content(kind).is_number
    for kind in (arrow.string(), arrow.duration("us"), arrow.date32(), arrow.list_(arrow.float64())):
        assert not on_ray._content(kind).is_number
    assert [on_ray._content(kind).is_id for kind in (arrow.int8(), arrow.large_string(), arrow.float64())] == [1, 1, 0]
