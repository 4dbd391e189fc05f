"""Data that outgrow memory: read into mapped files, bit for bit what the readers in memory give."""

import gzip
import mmap
import os
import shutil
import subprocess
import sys
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from running import running

import tierank
from tierank import (
    DataError,
    ParameterError,
    RankingDataset,
    make_ranking,
    read,
    read_fold,
    read_scores,
    write,
    write_scores,
)
from tierank.arrays import allocate, chunks, in_file, release_pages
from tierank.files import building, reserve
from tierank.io import FORMATS, cache, convert, is_folder_of_folds, layout
from tierank.io.scores import rank_lines
from tierank.transforms import Quantile, add_query_copies

ARRAYS = ("features", "offsets", "source_rows", "row_weight", "query_weight")


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    """Every file is worth a cache, every step takes few rows, every map is large enough to be forgotten."""
    monkeypatch.setattr(cache, "_WORTH_IT", 0)
    monkeypatch.setattr(layout, "_BATCH", 64)
    for size in ("io.layout._AT_ONCE", "io.scores._AT_ONCE", "data.text._TAKEN"):
        monkeypatch.setattr(f"tierank.{size}", 16)
    monkeypatch.setattr("tierank.arrays._LARGE", 0)


def is_mapped(data: RankingDataset) -> bool:
    base = data.features
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def assert_same(one: RankingDataset, other: RankingDataset) -> None:
    for name in ARRAYS:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        assert a is None or (a.dtype == b.dtype and a.tobytes() == b.tobytes()), name
    assert one.is_rated == other.is_rated
    assert not one.is_rated or one.ratings.tobytes() == other.ratings.tobytes()
    assert one.query_ids.tolist() == other.query_ids.tolist()
    assert one.feature_names == other.feature_names
    assert one.document_ids == other.document_ids


def table_of(n=211, n_queries=17, n_features=5, seed=0):
    """Rows of scattered queries with everything that a data set can have."""
    rng = np.random.default_rng(seed)
    query = rng.integers(0, n_queries, n)
    features = {f"f{k}": rng.normal(size=n).astype(np.float32) for k in range(n_features)}
    features["f1"][rng.random(n) < 0.2] = np.nan
    return pa.table(
        {
            "qid": pa.array([f"q{i}" for i in query]),
            "label": rng.integers(0, 4, n),
            "docid": [f"d{'é' * (i % 3)}{i}" for i in range(n)],
            "row_weight": rng.random(n),
            "query_weight": 1.0 + query,
            **features,
        }
    )


def write_parts(table, folder, n_parts=4, row_group_size=13):
    folder.mkdir()
    cuts = np.linspace(0, len(table), n_parts + 1).astype(int)
    for k, (a, b) in enumerate(pairwise(cuts)):
        pq.write_table(table.slice(a, b - a), folder / f"part-{k:05d}.parquet", row_group_size=row_group_size)
    (folder / "_SUCCESS").touch()
    (folder / ".part-00000.parquet.crc").write_bytes(b"no data")
    return folder


# Parquet


@pytest.mark.parametrize("is_folder", [False, True])
def test_parquet_is_what_the_table_in_memory_is(tmp_path, is_folder):
    table = table_of()
    path = tmp_path / "data.parquet"
    if is_folder:
        write_parts(table, path)
    else:
        pq.write_table(table, path, row_group_size=40)
    expected = read(table)
    mapped, again, plain = read(path), read(path), read(path, cache=False)
    assert (is_mapped(mapped), is_mapped(again), is_mapped(plain)) == (True, True, False)
    for data in (mapped, again, plain):
        assert_same(data, expected)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data.parquet", "data.parquet.tierank"]


def test_rows_that_are_grouped_already_stay(tmp_path):
    table = table_of().sort_by("qid")
    data = read(write_parts(table, tmp_path / "data"))
    assert_same(data, read(table))
    assert data._source_rows is None


ODD = {
    "whole numbers": pa.array([1, 2**53 + 1, -7, 2**63 - 1]),
    "whole numbers, one missing": pa.array([1, 2**53 + 1, None, 2**63 - 1]),
    "small whole numbers": pa.array([1, 2, 3, 250], pa.uint8()),
    "truth": pa.array([True, False, True, True]),
    "truth, one missing": pa.array([True, None, True, False]),
    "doubles": pa.array([0.1, -0.0, 1e-42, None]),
    "half floats": pa.array(np.array([1, 2, 3, 4], np.float16)),
    "decimals": pa.array([Decimal("1.5"), None, Decimal("2.25"), Decimal("0.1")], pa.decimal128(9, 2)),
    "nothing": pa.nulls(4),
    "dictionary": pa.array([5, 6, 5, None]).dictionary_encode(),
}


@pytest.mark.parametrize("kind", ODD)
def test_features_of_every_type_are_what_they_are_in_memory(tmp_path, kind):
    table = pa.table({"qid": [1, 2, 1, 2], "label": [0, 1, 2, 3], "f": ODD[kind], "g": [1.0, 2.0, 3.0, 4.0]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
    assert_same(read(tmp_path / "x.parquet"), read(table))


@pytest.mark.parametrize(
    "ids",
    [
        [3, 1, 3, 2],
        pa.array([3, 1, 3, 2], pa.int16()),
        ["b", "a", "b", "ab"],
        pa.array(["b", "a", "b", "ab"], pa.large_string()),
        pa.array(["b", "a", "b", "ab"]).dictionary_encode(),
        [0.5, 1.5, 0.5, 2.5],
        [True, False, True, False],
        pa.array([0, 1, 0, 2], pa.timestamp("us")),
    ],
)
def test_ids_of_every_type_are_what_they_are_in_memory(tmp_path, ids):
    table = pa.table({"qid": ids, "label": [0, 1, 2, 3], "docid": [7, None, 9, 8], "f": [1.0, 2.0, 3.0, 4.0]})
    pq.write_table(table, tmp_path / "x.parquet")
    for stored in (read(tmp_path / "x.parquet"), read(tmp_path / "x.parquet", cache=False)):
        assert_same(stored, read(table))


def test_missing_document_ids_are_what_they_are_in_memory(tmp_path):
    table = pa.table({"qid": [1, 1, 2], "docid": ["a", None, ""], "f": [1.0, 2.0, 3.0]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert_same(read(tmp_path / "x.parquet"), read(table))


def test_files_of_a_folder_may_differ_in_the_order_and_width_of_columns(tmp_path):
    table = table_of(40).drop_columns(["docid", "query_weight"]).set_column(0, "qid", pa.array(np.arange(40) % 7))
    folder = tmp_path / "data"
    folder.mkdir()
    pq.write_table(table.slice(0, 20).select(table.column_names[::-1]), folder / "b.parquet")
    first = table.slice(20).set_column(0, "qid", table.slice(20)["qid"].cast(pa.int32()))
    pq.write_table(first, folder / "a.parquet")
    pq.write_table(table.slice(0, 0), folder / "c.parquet")  # no rows
    assert_same(read(folder), read(pa.concat_tables([table.slice(20), table.slice(0, 20)])))


def test_row_numbers_of_pandas_and_dask_are_no_features(tmp_path):
    frame = table_of(30).to_pandas()
    shuffled = frame.sample(frac=1, random_state=0)
    shuffled.to_parquet(tmp_path / "pandas.parquet")
    shuffled.rename_axis("__null_dask_index__").to_parquet(tmp_path / "dask.parquet")
    expected = read(shuffled.reset_index(drop=True))
    assert "__index_level_0__" in pq.read_schema(tmp_path / "pandas.parquet").names
    assert_same(read(tmp_path / "pandas.parquet"), expected)
    assert_same(read(tmp_path / "dask.parquet"), expected)


def other_part(**changes):
    table = table_of(9).to_pydict() | changes
    return pa.table({name: values for name, values in table.items() if values is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"f3": None}, r"part-9.parquet: expected the column 'f3', as in .*part-00000.parquet, got qid, label"),
        ({"qid": None}, "part-9.parquet: expected the column 'qid', as in"),
        ({"extra": [1.0] * 9}, r"part-9.parquet: expected the columns of .*, got also 'extra'; name the columns with"),
        ({"f2": ["x"] * 9}, "part-9.parquet: column 'f2': expected numbers, got 'x'; convert it"),
        ({"f2": ["1.5"] * 9}, "part-9.parquet: column 'f2': expected numbers, got '1.5'; convert it"),
        ({"qid": [1] * 9}, r"part-9.parquet: expected query ids of type string, as in .*part-00000.parquet, got int64"),
        ({"qid": ["a", "a", None] * 3}, "part-9.parquet, row 2: expected a query id in every row, got none"),
        ({"label": [0, 0, -1] * 3}, "part-9.parquet, row 2: expected a finite rating that is not negative, got -1"),
        ({"label": [0, 0, np.inf] * 3}, "part-9.parquet, row 2: expected a finite rating .*, got inf"),
        ({"row_weight": [-1.0] * 9}, "part-9.parquet: column 'row_weight': expected finite weights that"),
        ({"f0": [0.0] * 8 + [1e39]}, r"part-9.parquet: X: expected values that float32 can hold .* in row 8, column 0"),
    ],
)
def test_a_file_that_does_not_fit_is_named(tmp_path, changes, message):
    folder = write_parts(table_of(), tmp_path / "data")
    pq.write_table(other_part(**changes), folder / "part-9.parquet")
    with pytest.raises(DataError, match=message):
        read(folder)
    assert [file.name for file in tmp_path.iterdir()] == ["data"]  # no cache, whole or half


def test_columns_that_are_named_may_be_fewer_than_there_are(tmp_path):
    folder = write_parts(table_of(), tmp_path / "data")
    pq.write_table(other_part(extra=[1.0] * 9), folder / "part-9.parquet")
    assert read(folder, features=["f2", "f0"]).feature_names == ("f2", "f0")
    with pytest.raises(DataError, match=r"part-00000.parquet: unknown column 'f9': Known: docid, f0"):
        read(folder, features=["f9"])


def test_query_weights_agree_within_a_query(tmp_path):
    folder = write_parts(table_of(), tmp_path / "data")
    pq.write_table(other_part(query_weight=[99.0] * 9), folder / "part-9.parquet")
    with pytest.raises(DataError, match="data: query_weight: expected one weight for all rows of query"):
        read(folder)


def test_folders_that_are_no_data(tmp_path):
    (tmp_path / "empty.parquet").mkdir()
    with pytest.raises(DataError, match=r"empty.parquet: expected a folder of Parquet files, got none in it"):
        read(tmp_path / "empty.parquet")
    pq.write_table(table_of(5).slice(0, 0), tmp_path / "empty.parquet" / "a.parquet")
    with pytest.raises(DataError, match=r"empty.parquet: expected at least one document, got none"):
        read(tmp_path / "empty.parquet")
    (tmp_path / "empty.parquet" / "b.parquet").touch()
    with pytest.raises(DataError, match=r"b.parquet: expected a Parquet file, got: Parquet file size is 0 bytes"):
        read(tmp_path / "empty.parquet")


def test_how_a_folder_of_parquet_files_is_told_from_folds(tmp_path):
    table = table_of()
    parts = write_parts(table, tmp_path / "any name")
    assert not is_folder_of_folds(parts)
    assert_same(read(parts), read(table))
    (parts / "readme.md").write_text("not data")  # no longer Parquet files alone: it must be said
    assert is_folder_of_folds(parts)
    with pytest.raises(DataError, match="expected a file, got a folder; read_fold reads a folder of folds"):
        read(parts)
    assert_same(read(parts, format="parquet"), read(table))
    folds = tmp_path / "folds"
    folds.mkdir()
    for k in range(5):
        pq.write_table(table, folds / f"S{k + 1}.parquet")
    assert is_folder_of_folds(folds)


def test_a_fold_of_folders_of_parquet_files(tmp_path):
    (tmp_path / "Fold1").mkdir()
    tables = [table_of(seed=seed) for seed in range(3)]
    for name, table in zip(("train", "vali", "test"), tables, strict=True):
        write_parts(table, tmp_path / "Fold1" / name)
    for part, table in zip(read_fold(tmp_path, 1), tables, strict=True):
        assert_same(part, read(table))
        assert is_mapped(part)


def test_the_cache_of_a_folder_is_left_when_a_file_changed(tmp_path, monkeypatch):
    folder = write_parts(table_of(), tmp_path / "data")
    read(folder)
    assert (tmp_path / "data.parquet.tierank" / "meta.json").exists()
    reader = FORMATS["parquet"].read
    calls = []
    monkeypatch.setitem(
        FORMATS, "parquet", FORMATS["parquet"]._replace(read=lambda *a, **k: calls.append(a) or reader(*a, **k))
    )
    read(folder)
    assert not calls
    pq.write_table(other_part(), folder / "part-9.parquet")
    assert read(folder).n_documents == 220
    (folder / "part-9.parquet").rename(folder / "part-10.parquet")
    read(folder)
    os.utime(folder / "part-10.parquet", ns=(1, 1))
    read(folder)
    assert len(calls) == 3


def test_csv_is_what_the_table_in_memory_is(tmp_path):
    write(read(table_of()), tmp_path / "data.csv")
    mapped = read(tmp_path / "data.csv")
    assert is_mapped(mapped)
    assert_same(mapped, read(table_of()))


# Text


def letor_lines(n=400, n_queries=23, seed=1):
    rng = np.random.default_rng(seed)
    for i in range(n):
        values = " ".join(f"{k + 1}:{v:.5g}" for k, v in enumerate(rng.normal(size=6)) if rng.random() < 0.8)
        wide = " 9:NULL" if i == n - 2 else ""  # beyond the guess of the first lines
        comment = f" #docid = doc{i} inc = 1" if i % 3 else ""
        yield f"{rng.integers(0, 3)} qid:{rng.integers(0, n_queries)} {values}{wide}{comment}\n"


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
@pytest.mark.parametrize("ids", ["qid:", "qid:x"])
def test_text_is_what_is_read_in_memory(tmp_path, monkeypatch, ending, ids):
    monkeypatch.setattr("tierank.io.letor._PART", 1 << 10)  # many spans, so that queries cross their borders
    text = "".join(letor_lines()).replace("qid:", ids).encode()
    path = tmp_path / f"data{ending}"
    path.write_bytes(gzip.compress(text) if ending.endswith(".gz") else text)
    mapped, plain = read(path), read(path, cache=False)
    assert is_mapped(mapped)
    assert not is_mapped(plain)
    assert_same(mapped, plain)
    assert_same(read(path), plain)
    frame = pd.DataFrame({"qid": [line.split()[1][4:] for line in text.decode().splitlines()]})
    assert [str(i) for i in mapped.query_ids] == frame["qid"].unique().tolist()
    assert mapped.n_features == 9
    documents = [f"doc{i}" if i % 3 else "" for i in range(400)]
    assert [mapped.document_ids[k] for k in np.argsort(mapped.source_rows)] == documents


def test_text_of_lightgbm_is_what_is_read_in_memory(tmp_path):
    (tmp_path / "rank.train").write_text("0 0:1 3:2\n1 1:5\n2 0:7\n")
    (tmp_path / "rank.train.query").write_text("2\n1\n")
    (tmp_path / "rank.train.weight").write_text("1\n2\n3\n")
    mapped = read(tmp_path / "rank.train")
    assert is_mapped(mapped)
    assert_same(mapped, read(tmp_path / "rank.train", cache=False))


# Where the matrix lies


def test_without_room_on_disk_data_are_read_into_memory(tmp_path, monkeypatch, caplog):
    pq.write_table(table_of(), tmp_path / "data.parquet")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tierank.arrays.reserve", full)
    data = read(tmp_path / "data.parquet")
    assert not is_mapped(data)
    assert_same(data, read(table_of()))
    assert "no cache was written for" in caplog.text
    assert [file.name for file in tmp_path.iterdir()] == ["data.parquet"]
    with pytest.raises(DataError, match=r"x.tierank: expected a path that can be written, got: No space left"):
        read(tmp_path / "data.parquet", cache=tmp_path / "x.tierank")
    monkeypatch.setattr("tierank.arrays._memory", lambda: 1000)
    with pytest.raises(
        DataError, match=r"data.parquet: expected .* the memory of this machine, got .* GB of 211 documents"
    ):
        read(tmp_path / "data.parquet")


def test_reserve_refuses_what_the_disk_cannot_hold_without_filling_it(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    with (tmp_path / "x").open("w+b") as file:
        with pytest.raises(OSError, match="No space left on device"):
            reserve(file, (1 << 20) + 1)
        assert os.fstat(file.fileno()).st_size == 0
        reserve(file, 1 << 20)
        assert os.fstat(file.fileno()).st_size == 1 << 20


def test_reserve_without_help_of_the_system(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    matrix = in_file(tmp_path / "x.npy", 400, 1000)
    assert not matrix.any()
    matrix[:] = np.arange(1000)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), matrix)


def test_a_cache_may_lie_elsewhere(tmp_path):
    (tmp_path / "data.txt").write_text("".join(letor_lines()))
    data = read(tmp_path / "data.txt", cache=tmp_path / "other.tierank")
    assert_same(data, read(tmp_path / "data.txt", cache=False))
    assert_same(data, read(tmp_path / "other.tierank"))
    with pytest.raises(ParameterError, match=r"cache: expected True, False or a folder .* .tierank, got '/x'"):
        read(tmp_path / "data.txt", cache="/x")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data.txt", "other.tierank"]


def test_convert_fills_the_folder_with_no_other_copy(tmp_path):
    (tmp_path / "data.txt").write_text("".join(letor_lines()))
    folder = tmp_path / "out.tierank"
    data = convert(tmp_path / "data.txt", folder)
    assert is_mapped(data)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data.txt", "out.tierank"]
    for name in ("copy.tierank", "copy.parquet", "copy.csv"):
        assert_same(convert(folder, tmp_path / name), data)
        back = read(tmp_path / name, cache=False)
        np.testing.assert_array_equal(back.features, data.features)
        np.testing.assert_array_equal(back.source_rows, data.source_rows)


def test_files_are_written_some_rows_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr("tierank.io.layout._WRITTEN", 200)  # ten rows of five features
    data = read(table_of())
    write(data, tmp_path / "data.parquet")
    assert pq.ParquetFile(tmp_path / "data.parquet").num_row_groups == 22
    write(data, tmp_path / "data.csv")
    for name in ("data.parquet", "data.csv"):
        assert_same(read(tmp_path / name, cache=False), data)
    assert tierank.to_arrow(data).to_pandas().equals(pd.read_parquet(tmp_path / "data.parquet"))


def test_scores_are_written_and_read_line_by_line(tmp_path):
    data = read(table_of())
    scores = np.random.default_rng(0).normal(size=data.n_documents)
    write_scores(scores, tmp_path / "x.scores")
    assert (tmp_path / "x.scores").read_text().splitlines() == [repr(score) for score in scores.tolist()]
    np.testing.assert_array_equal(read_scores(tmp_path / "x.scores", data), scores)


def test_ranks_are_written_line_by_line():
    columns = [np.arange(40).astype(str), np.arange(40) + 1, np.arange(40) * 2, np.arange(40) / 8]
    head, *lines = rank_lines(columns)
    assert head == "query\trank\trow\tscore\n"
    assert lines == [f"{i}\t{i + 1}\t{2 * i}\t{i / 8}\n" for i in range(40)]


BUILD = """
import sys, time
from pathlib import Path
from tierank import read
from tierank.io import cache, layout
cache._WORTH_IT, layout._BATCH = 0, 64
def slowly(*given):
    print("half", flush=True)
    time.sleep(900)
layout.TableEncoder.encode = slowly
read(sys.argv[1])
"""


def test_a_killed_build_leaves_nothing_that_counts(tmp_path):
    pq.write_table(table_of(), tmp_path / "data.parquet")
    command = [sys.executable, "-c", BUILD, str(tmp_path / "data.parquet")]
    with running(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"half\n"
        left = [file for file in tmp_path.iterdir() if file.name.endswith(".new")]
        assert len(left) == 1
        with building(tmp_path / "data.parquet.tierank", cache._CACHE):  # what another process fills is left to it
            assert left[0].exists()
    assert_same(read(tmp_path / "data.parquet"), read(table_of()))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data.parquet", "data.parquet.tierank"]


def test_a_failed_build_leaves_the_old_folder(tmp_path):
    write(read(table_of()), tmp_path / "x.tierank")

    def interrupted():
        with building(tmp_path / "x.tierank", cache._DATA) as fresh:
            (fresh / "features.npy").write_bytes(b"half")
            raise KeyboardInterrupt("now")

    with pytest.raises(KeyboardInterrupt, match="now"):
        interrupted()
    assert_same(read(tmp_path / "x.tierank"), read(table_of()))
    assert [file.name for file in tmp_path.iterdir()] == ["x.tierank"]


# Pages


def resident(matrix) -> int:
    """Bytes of the map under an array that are in the memory of this process (Linux)."""
    address = matrix.__array_interface__["data"][0]
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name = line.split()[0]
        if not name.endswith(":"):
            low, high = (int(part, 16) for part in name.split("-"))
            inside = low <= address < high
        elif inside and name == "Rss:":
            return int(line.split()[1]) * 1024
    raise AssertionError("no such map")


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@needs_linux
def test_forget_lets_pages_go_and_keeps_values(tmp_path):
    rows = np.random.default_rng(0).random((4096, 64), np.float32)
    np.save(tmp_path / "x.npy", rows)
    for matrix in (np.load(tmp_path / "x.npy", mmap_mode="r"), in_file(tmp_path / "y.npy", 4096, 64)):
        if matrix.flags.writeable:
            matrix[:] = rows
        assert matrix.sum() > 0
        assert resident(matrix) >= rows.nbytes
        release_pages(np.asarray(matrix)[1024:3072])  # the middle half
        assert rows.nbytes * 0.4 < resident(matrix) < rows.nbytes * 0.6
        release_pages(matrix)
        assert resident(matrix) == 0
        assert matrix.tobytes() == rows.tobytes()


@needs_linux
def test_forget_leaves_small_maps_and_changed_copies_alone(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.zeros((4096, 64), np.float32))
    copy = np.load(tmp_path / "x.npy", mmap_mode="c")
    copy[:] = 5
    release_pages(copy)
    assert (copy == 5).all()
    monkeypatch.undo()
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert not mapped.any()
    release_pages(mapped)
    assert resident(mapped) >= mapped.nbytes
    for matrix in (np.ones((2, 2), np.float32), np.ones((0, 2), np.float32)):
        release_pages(matrix)


@needs_linux
def test_chunks_forget_what_was_seen(tmp_path):
    rows = np.random.default_rng(0).random((200_000, 16), np.float32)
    np.save(tmp_path / "x.npy", rows)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    seen = [(chunk.copy(), resident(mapped)) for chunk in chunks(mapped)]
    np.testing.assert_array_equal(np.concatenate([chunk for chunk, _ in seen]), rows)
    assert max(size for _, size in seen) < rows.nbytes / 2


def test_large_results_go_to_a_file_without_a_name(tmp_path, monkeypatch):
    made = [make_ranking(8, n_features=3, mean_length=9, max_length=9, seed=k) for k in range(3)]
    parts = [part.replace(query_ids=part.query_ids + 100 * k) for k, part in enumerate(made)]
    for k, part in enumerate(parts):
        write(part, tmp_path / f"{k}.tierank")
    mapped = [read(tmp_path / f"{k}.tierank") for k in range(3)]
    joined, copies = RankingDataset.concat(parts), add_query_copies(parts[0])
    monkeypatch.setattr("tierank.arrays._memory", lambda: 1000)
    large = RankingDataset.concat(mapped)
    assert is_mapped(large)
    assert_same(large, joined)
    assert_same(add_query_copies(mapped[0]), copies)
    assert is_mapped(add_query_copies(mapped[0]))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.tierank", "1.tierank", "2.tierank"]
    assert len(list((tmp_path / "0.tierank").iterdir())) == 5  # as written
    assert not is_mapped(RankingDataset.from_parts(allocate(2, 3), None, np.array([0, 2]), np.array([1])))


# Generated data, quantiles


def test_generated_data_are_the_same_on_disk(tmp_path):
    settings = {"n_features": 7, "mean_length": 300, "max_length": 900, "missing": 0.1, "seed": 4}
    mapped = make_ranking(60, **settings, out=tmp_path / "x.tierank")
    assert is_mapped(mapped)
    assert_same(mapped, make_ranking(60, **settings))
    assert_same(read(tmp_path / "x.tierank"), mapped)
    with pytest.raises(ParameterError, match=r"out: expected the name of a folder that ends in .tierank, got 'x'"):
        make_ranking(2, out="x")
    with pytest.raises(DataError, match=r"expected a folder .*nowhere to write to, got none; create it first"):
        make_ranking(2, out=tmp_path / "nowhere" / "x.tierank")


def test_quantiles_of_a_sample_are_near_those_of_all(monkeypatch):
    rng = np.random.default_rng(0)
    features = np.column_stack([rng.normal(size=60_000), rng.exponential(size=60_000), rng.integers(0, 3, 60_000)])
    features[::7, 1] = np.nan
    exact = Quantile().fit(features).transform(features)
    monkeypatch.setattr("tierank.transforms._SAMPLE", 1 << 14)
    monkeypatch.setattr("tierank.transforms._SORTED", 1 << 14)  # one column at a time
    sampled = Quantile().fit(features).transform(features)
    # Five standard deviations of a share among 2^14, and a knot's worth of interpolation.
    assert np.abs(sampled - exact).max() < 5 * 0.5 / 2**7 + 1 / 256
    assert np.abs(sampled - exact).max() > 0
    again = Quantile().fit(features)
    np.testing.assert_array_equal(again.transform(features), sampled)


def test_quantiles_of_up_to_the_sample_size_are_exact(monkeypatch):
    features = np.random.default_rng(1).normal(size=(1000, 3)).astype(np.float32)
    exact = Quantile().fit(features)
    monkeypatch.setattr("tierank.transforms._SAMPLE", 1000)
    monkeypatch.setattr("tierank.transforms._FETCHED", 77)
    np.testing.assert_array_equal(Quantile().fit(features).knots_, exact.knots_)


# Memory


PEAK = """
import re, sys, threading, time
from pathlib import Path
import tierank, pyarrow.parquet
from tierank.kernels import letor_text as letor
def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
def watch():
    while not done:
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.005)
tierank.read(sys.argv[2], n_jobs=1)  # imports and compiles
done, before, peak = False, anonymous(), [0]
watcher = threading.Thread(target=watch)
watcher.start()
data = tierank.read(sys.argv[1], n_jobs=1)
done = True
watcher.join()
print(data.features.nbytes, max(peak[0], anonymous()) - before)
"""


@needs_linux
@pytest.mark.parametrize("form", ["parquet", "letor"])
def test_reading_needs_far_less_memory_than_the_matrix(tmp_path, form):
    n, width = (800_000, 125) if form == "parquet" else (2500, 20_000)
    small, path = tmp_path / f"small.{form}", tmp_path / f"data.{form}"
    write(make_ranking(2, n_features=3, mean_length=4, max_length=4), small)
    if form == "letor":  # one value of many columns: quick to write, and as large as any matrix
        path.write_text("".join(f"1 qid:{i // 9} {width}:1\n" for i in range(n)) + "#" * (5 << 20))
    else:
        column = np.arange(80_000, dtype=np.float32)
        table = pa.table({"qid": np.arange(80_000) // 9} | {f"f{k}": column for k in range(width)})
        path.mkdir()
        for k in range(n // len(table)):
            pq.write_table(table, path / f"{k}.parquet", use_dictionary=False, compression="zstd")
    command = [sys.executable, "-c", PEAK, str(path), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    matrix, more = map(int, done.stdout.split())
    shutil.rmtree(tmp_path / f"{path.name}.tierank")  # it is large
    assert matrix == 4 * n * width
    assert more < 0.6 * matrix
