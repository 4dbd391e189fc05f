"""Streams of Arrow: whatever has ``__arrow_c_stream__`` is a table, for read, fit and predict."""

import numpy as np
import pandas as pd
import pytest

import tierank
from tierank import DataError, UMart
from tierank.data.tables import load_stream

pa = pytest.importorskip("pyarrow")

RNG = np.random.default_rng(0)
N = 240
TABLE = pd.DataFrame(RNG.normal(size=(N, 3)), columns=["a", "b", "c"]).assign(
    brand=RNG.choice(["acme", "bolt"], N), rating=RNG.integers(0, 3, N), qid=np.repeat(np.arange(N // 8), 8)
)
SMALL = {"n_trees": 4, "n_leaves": 4, "n_jobs": 1}


class Stream:
    """What any library may hand over: nothing but the protocol."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def arrow(table=TABLE):
    return pa.Table.from_pandas(table, preserve_index=False)


def duckdb_relation(table=TABLE):
    duckdb = pytest.importorskip("duckdb")
    return duckdb.connect().from_arrow(arrow(table))


STREAMS = {
    "protocol": lambda table=TABLE: Stream(arrow(table)),
    "reader": lambda table=TABLE: pa.RecordBatchReader.from_batches(
        arrow(table).schema, arrow(table).to_batches(max_chunksize=50)
    ),
    "duckdb": duckdb_relation,
    "duckdb, as a reader": lambda table=TABLE: duckdb_relation(table).to_arrow_reader(64),
}


@pytest.mark.filterwarnings("ignore:.*of the queries are training queries")
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_a_stream_gives_the_bits_of_the_table(stream):
    data, same = tierank.read(TABLE), tierank.read(stream())
    assert same.feature_names == data.feature_names
    assert (same.roles, same.kinds) == (data.roles, data.kinds)
    assert np.array_equal(same.features, data.features)
    assert np.array_equal(same.ratings, data.ratings)
    by_name = UMart(**SMALL).fit(stream(), target="rating", qid="qid", valid=stream())
    expected = UMart(**SMALL).fit(TABLE, target="rating", qid="qid", valid=TABLE)
    assert by_name.history_ == expected.history_
    features = TABLE.drop(columns="rating")
    assert np.array_equal(by_name.predict(stream(features)), expected.predict(features))
    assert by_name.rank(stream(features), k=2).row.tolist() == expected.rank(features, k=2).row.tolist()
    assert by_name.score(stream(features), TABLE["rating"]) == expected.score(features, TABLE["rating"])
    in_tuples = UMart(**SMALL).fit(stream(features), TABLE["rating"], valid=(stream(features), TABLE["rating"]))
    assert in_tuples.history_ == expected.history_
    assert tierank.RankingDataset(stream(TABLE[["a", "b"]])).feature_names == ("a", "b")


def test_tables_are_not_converted():
    assert load_stream(TABLE) is TABLE
    assert load_stream(table := arrow()) is table


def test_a_stream_is_read_once():
    stream = STREAMS["reader"]()
    tierank.read(stream)
    with pytest.raises(DataError, match="expected at least one document, got none"):
        tierank.read(stream)


def test_what_goes_wrong_in_a_stream_is_told():
    def batches():
        yield from arrow().to_batches(max_chunksize=50)
        raise OSError("the connection was closed")

    with pytest.raises(DataError, match=r"expected a stream of Arrow that can be read.*the connection was closed"):
        tierank.read(pa.RecordBatchReader.from_batches(arrow().schema, batches()))
