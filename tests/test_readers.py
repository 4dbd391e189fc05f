"""Tables, folds, scores and the other forms; the cache."""

import gzip
import json
import os
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import tierank
from tierank import DataError, ParameterError, RankingDataset, read, read_fold, read_scores, write, write_scores
from tierank.io import FORMATS, cache, convert, read_attributes
from tierank.io.layout import DOCUMENT_NAMES, WEIGHT_NAMES


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(12, 3)).astype(np.float32)
    features[3, 1] = np.nan
    return RankingDataset(
        features, rng.integers(0, 4, 12), qid=np.arange(12) % 4, feature_names=["a", "b", "c"],
        row_weight=rng.random(12), query_weight=[1, 2, 3, 4], document_ids=[f"d{i}" for i in range(12)],
    )  # fmt: skip


def assert_equal(one: RankingDataset, other: RankingDataset, weights: bool = True) -> None:
    np.testing.assert_array_equal(one.features, other.features)
    np.testing.assert_array_equal(one.ratings, other.ratings)
    np.testing.assert_array_equal(one.offsets, other.offsets)
    assert [str(i) for i in one.query_ids] == [str(i) for i in other.query_ids]
    assert one.document_ids == other.document_ids
    if weights:
        np.testing.assert_array_equal(one.row_weight, other.row_weight)
        np.testing.assert_array_equal(one.query_weight, other.query_weight)
        assert one.feature_names == other.feature_names


def test_every_form_reads_back_what_was_written(data, tmp_path):
    for name, form in FORMATS.items():
        for ending in form.endings:
            path = tmp_path / f"data{ending}"
            write(data, path)
            if form.read is None:
                continue
            back = read(path)
            assert_equal(back, data, weights=name != "letor")
            np.testing.assert_array_equal(back.source_rows, data.source_rows)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]  # no half-written files left


def test_tables_in_memory(data, tmp_path):
    arrow = tierank.to_arrow(data)
    for table in (arrow, arrow.to_pandas(), pl.from_arrow(arrow)):
        assert_equal(read(table), data)
    renamed = arrow.to_pandas().rename(columns={"query": "session", "rating": "clicks", "document": "sku"})
    back = read(renamed, query="session", rating="clicks", document="sku", features=["a", "c"])
    np.testing.assert_array_equal(back.features, data.features[:, [0, 2]])
    assert back.feature_names == ("a", "c")
    assert not read(renamed.drop(columns=["clicks", "sku"]), query="session").is_rated


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"x": [1]},
            "table: expected a query column called qid, query or query_id, got the columns x; name yours with",
        ),
        ({"qid": [1], "label": [1]}, "table: expected at least one feature column, got only qid, label"),
        (
            {"qid": [1], "label": [1], "name": [b"x"]},
            "table: column 'name': expected numbers, texts, dates or vectors, got b'x'; convert them to one of these,"
            r" or leave the column out with ignore=\['name'\]",
        ),
        (
            {"qid": [1], "label": [-1.0], "f": [1]},
            "table, row 0: expected a finite rating that is not negative, got -1",
        ),
        ({"qid": [1], "label": [np.inf], "f": [1]}, "expected a finite rating that is not negative, got inf"),
        (
            {"qid": [None], "label": [1], "f": [1]},
            "table: column 'qid': expected a query id in every row, got none in row 0",
        ),
        ({"qid": [1], "label": [1], "f": [np.inf]}, "table: X: expected values that float32 can hold"),
        ({"qid": pd.Series([], dtype=int), "f": pd.Series([], dtype=float)}, "expected at least one document"),
    ],
)
def test_tables_that_cannot_be_used(table, message):
    with pytest.raises(DataError, match=message):
        read(pd.DataFrame(table))


def test_unknown_columns(data):
    with pytest.raises(DataError, match=r"unknown column 'quary': did you mean 'query'\?"):
        read(tierank.to_arrow(data), query="quary")
    with pytest.raises(DataError, match="unknown column 'z'"):
        read(tierank.to_arrow(data), features=["a", "z"])


@pytest.mark.parametrize(
    "named",
    [
        *({name: "x"} for name in ("query", "rating", "document", "position", "row_weight", "query_weight")),
        {"features": ["x"]},
        {"ignore": ["x"]},
        {"columns": tierank.Columns(categories=["x"])},
    ],
)
def test_names_of_columns_are_refused_for_text_which_has_none(named, data, tmp_path):
    tierank.write(data, tmp_path / "data.txt")
    message = (
        f"data.txt: {next(iter(named))}: expected a table with such a column, CSV or Parquet, got text, which has no"
    )
    with pytest.raises(DataError, match=message):
        read(tmp_path / "data.txt", **named)
    assert read(tmp_path / "data.txt", features=[], columns=tierank.Columns()).n_documents == data.n_documents


def test_files_that_cannot_be_used(tmp_path, data):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"bad.parquet: expected a Parquet file, got"):
        read(tmp_path / "bad.parquet")
    (tmp_path / "bad.csv").write_text("qid,label,f\n1,0,3\n1,0\n")
    with pytest.raises(DataError, match=r"bad.csv: expected a CSV table with a header line, got: .*columns"):
        read(tmp_path / "bad.csv")
    (tmp_path / "train.txt").write_text("0 qid:1 1:1\n")
    with pytest.raises(DataError, match=r"trian.txt: expected a file, got nothing there; did you mean .*train.txt\?"):
        read(tmp_path / "trian.txt")
    with pytest.raises(DataError, match="expected a file, got a folder; read_fold reads a folder of folds"):
        read(tmp_path)
    with pytest.raises(DataError, match="expected a folder, got a file"):
        read(tmp_path / "train.txt", format="tierank")
    with pytest.raises(ParameterError, match=r"unknown format 'parket': did you mean 'parquet'\?"):
        read(tmp_path / "train.txt", format="parket")
    with pytest.raises(DataError, match="expected data with features, got qrels"):
        read(tmp_path / "train.txt", format="qrels")
    with pytest.raises(DataError, match=r"expected a folder .* to write to, got none; create it first"):
        write(data, tmp_path / "nowhere" / "x.txt")


# What is taken for another column beside "query" and "rating", and what is not.
TAKEN = ("qid", "query", "rating", *DOCUMENT_NAMES, *WEIGHT_NAMES, "__index_level_0__")
FREE = ("query_id", "label", "relevance", "grade")


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("name", TAKEN)
def test_a_feature_that_would_be_taken_for_another_column_is_refused(tmp_path, ending, name):
    for names in ([name], ["a", name]):
        data = RankingDataset(np.eye(len(names)), np.ones(len(names)), feature_names=names)
        with pytest.raises(DataError, match=f"expected feature names other than those of queries, .* called '{name}'"):
            write(data, tmp_path / f"x{ending}")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:column .* is named like an outcome")
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("name", FREE)
def test_a_feature_that_is_taken_for_none_reads_back(tmp_path, ending, name):
    data = RankingDataset(np.eye(2), [2, 1], feature_names=["a", name])
    write(data, tmp_path / f"x{ending}")
    back = read(tmp_path / f"x{ending}")
    assert back.feature_names == ("a", name)
    np.testing.assert_array_equal(back.features, data.features)
    np.testing.assert_array_equal(back.ratings, data.ratings)


def test_without_ratings_their_names_are_taken(tmp_path):
    with pytest.raises(DataError, match="got a feature called 'label'; rename it"):
        write(RankingDataset(np.eye(2), feature_names=["a", "label"]), tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([("a", 1), ("b", 2)], r"expected query ids of one type that a column can hold, .* got \('a', 1\) and others"),
        ([(1, 2), (3, 4)], r"expected query ids of one type that a column can hold, .* got \(1, 2\) and others"),
        ([1, "1"], "expected query ids of one type that a column can hold, .* got 1 and others; convert them to texts"),
    ],
)
def test_query_ids_that_a_table_cannot_hold(tmp_path, ids, message):
    for ending in (".csv", ".parquet"):
        with pytest.raises(DataError, match=message):
            write(RankingDataset(np.eye(2), [0, 1], qid=ids), tmp_path / f"x{ending}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".txt", ".tierank", ".qrels"])
def test_queries_that_would_become_one_are_refused(tmp_path, ending):
    data = RankingDataset(np.eye(2), [0, 1], qid=[1, "1"])
    with pytest.raises(DataError, match="expected query ids that differ as texts, got two that read '1'"):
        write(data, tmp_path / f"x{ending}")


@pytest.mark.parametrize("ending", [".csv.gz", ".tsv.gz", ".txt.gz"])
def test_files_called_gz_are_compressed_and_read_back(data, tmp_path, ending):
    write(data, tmp_path / f"x{ending}")
    assert (tmp_path / f"x{ending}").read_bytes()[:2] == b"\x1f\x8b"
    assert_equal(read(tmp_path / f"x{ending}"), data, weights=ending != ".txt.gz")


def test_qrels_called_gz_are_compressed(data, tmp_path):
    write(data, tmp_path / "x.qrels")
    write(data, tmp_path / "x.qrels.gz")
    assert gzip.decompress((tmp_path / "x.qrels.gz").read_bytes()) == (tmp_path / "x.qrels").read_bytes()


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["007", "7"], ["007", "7"]),
        (["7", "-8"], [7, -8]),
        (["-0", "0"], ["-0", "0"]),
        (["1.0", "1"], ["1.0", "1"]),
        (["1234567890123456789", "1"], ["1234567890123456789", "1"]),
        (["NA", "UK"], ["NA", "UK"]),
        (["true", "True"], ["true", "True"]),
    ],
)
def test_ids_of_csv_are_what_was_written(tmp_path, ids, expected):
    write(RankingDataset(np.eye(2), [0, 1], qid=ids, document_ids=ids), tmp_path / "x.csv")
    back = read(tmp_path / "x.csv")
    assert back.query_ids.tolist() == expected
    assert back.document_ids == ids


@pytest.mark.parametrize("missing", ["", "NA", "NULL", "nan"])
def test_a_number_that_is_missing_is_no_query(tmp_path, missing):
    (tmp_path / "x.csv").write_text(f"qid,label,f\n1,0,3\n{missing},0,3\n")
    with pytest.raises(DataError, match=r"x.csv:3: expected a query id in every row, got none"):
        read(tmp_path / "x.csv")


@pytest.mark.parametrize("twice", ["qid", "docid", "f"])
def test_columns_that_are_there_twice(tmp_path, twice):
    names = ["qid", "label", "docid", "f", twice]
    with pytest.raises(DataError, match=f"table: expected each column once, got '{twice}' twice; rename one of them"):
        read(pd.DataFrame([[1, 2, 3, 4, 5]], columns=names))
    (tmp_path / "x.csv").write_text(",".join(names) + "\n1,2,3,4,5\n")
    with pytest.raises(DataError, match=rf"x.csv: expected each column once, got '{twice}' twice; rename one of them"):
        read(tmp_path / "x.csv")


def test_a_table_that_holds_no_rows_yet():
    with pytest.raises(DataError, match=r"got a polars LazyFrame, which holds no rows yet; pass frame.collect\(\)"):
        read(pl.LazyFrame({"qid": [1], "f": [1.0]}))


def write_parts(folder, names, start=0):
    for k, name in enumerate(names):
        (folder / name).write_text(f"1 qid:{start + k} 1:{k}\n0 qid:{start + k} {k + 2}:1\n")


def test_folds_from_parts(tmp_path):
    write_parts(tmp_path, [f"S{k}.txt" for k in range(1, 6)], start=1)
    for fold, expected in ((1, ([1, 2, 3], [4], [5])), (4, ([4, 5, 1], [2], [3]))):
        parts = read_fold(tmp_path, fold)
        assert tuple(part.query_ids.tolist() for part in parts) == expected
        assert {part.n_features for part in parts} == {6}  # the widest of all


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "vali.txt", "test.txt"),
        ("trainingset.txt", "validationset.txt", "testset.txt"),
    ],
)
def test_folds_from_folders(tmp_path, names):
    (tmp_path / "Fold2").mkdir()
    write_parts(tmp_path / "Fold2", names)
    assert [part.query_ids.tolist() for part in read_fold(tmp_path, 2)] == [[0], [1], [2]]


def test_folders_without_folds(tmp_path):
    with pytest.raises(DataError, match="expected a folder with Fold1 to Fold5 or S1 to S5, got nothing there"):
        read_fold(tmp_path / "none", 1)
    with pytest.raises(
        DataError, match=r"expected the folders Fold1 to Fold5 or the parts S1.txt to S5.txt, got an empty"
    ):
        read_fold(tmp_path, 1)
    (tmp_path / "Fold1").mkdir()
    (tmp_path / "Fold1" / "train.txt").write_text("0 qid:1 1:1\n")
    with pytest.raises(DataError, match=r"Fold1: expected train.txt, vali.txt and test.txt, got train.txt"):
        read_fold(tmp_path, 1)
    with pytest.raises(ParameterError, match="fold: expected 1, 2, 3, 4 or 5, got 6"):
        read_fold(tmp_path, 6)


def test_real_folds(real_data):
    train, valid, test = read_fold(real_data / "OHSUMED", 3)
    assert train.n_documents + valid.n_documents + test.n_documents == 16_140
    assert train.n_queries + valid.n_queries + test.n_queries == 106


# Scores


def test_scores_of_every_form(data, tmp_path):
    scores = np.random.default_rng(1).normal(size=data.n_documents)
    np.save(tmp_path / "s.npy", scores)
    tierank.write_scores(scores, tmp_path / "s.txt")
    tierank.write_run(data, scores, tmp_path / "s.run", name="mine")
    with (tmp_path / "s.ranklib").open("w") as file:  # query, index within it, score
        for q, query in enumerate(data.query_ids):
            for k, row in enumerate(range(data.offsets[q], data.offsets[q + 1])):
                print(query, k, repr(float(scores[data.source_rows[row]])), sep="\t", file=file)
    for name in ("s.npy", "s.txt", "s.run", "s.ranklib"):
        np.testing.assert_array_equal(read_scores(tmp_path / name, data), scores)
    first = (tmp_path / "s.run").read_text().split("\n")[0].split()
    assert first[:2] == ["0", "Q0"]
    assert first[3] == "1"
    assert first[5] == "mine"


def test_qrels(data, tmp_path):
    tierank.write_qrels(data, tmp_path / "x.qrels")
    lines = [line.split() for line in (tmp_path / "x.qrels").read_text().splitlines()]
    assert [int(rating) for _, _, _, rating in lines] == data.ratings.tolist()
    assert [document for _, _, document, _ in lines] == data.document_ids
    with pytest.raises(DataError, match=r"expected integer ratings for a qrels file, got 0.5"):
        tierank.write_qrels(RankingDataset([[1.0]], [0.5]), tmp_path / "y.qrels")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "expected one score per line, got an empty file"),
        ("1\n2\n", "expected 12 scores, one per document, got 2"),
        ("1\nx\n", r"s.txt:2: expected a score, got 'x'"),
        ("1\n2 3\n", r"s.txt:2: expected 1 fields as in the first line, got 2"),
        ("1 2\n", r"s.txt:1: expected 1, 3 \(RankLib\) or 6 \(TREC run\) fields, got 2"),
        ("nan\n" * 12, "expected a number for every document, got none for row 0"),
        ("9 0 1.5\n", "expected a query of the data, got '9'"),
        ("0 7 1.5\n", "expected the index of one of 3 documents from 0, got '7'"),
        ("0 Q0 nobody 1 0.5 x\n", "expected a document of the data, got 'nobody' of query '0'"),
        ("0 Q0 d0 1 0.5 x\n", "expected a number for every document, got none for row 1"),
        (
            "0 Q0 d0 1 nan x\n0 Q0 d0 2 1 x\n",
            r"s.txt:2: expected one score per document, got a second one for document 'd0'",
        ),
        ("0 0 1.5\n0 0 2\n", r"s.txt:2: expected one score per document, got a second one for document 0 of query '0'"),
        ("0 \u00b2 1.5\n", "expected the index of one of 3 documents from 0, got '\u00b2'"),
        ("0 \u0661 1.5\n", "expected the index of one of 3 documents from 0, got '\u0661'"),
        ("0 -1 1.5\n", "expected the index of one of 3 documents from 0, got '-1'"),
        pytest.param(f"0 {'9' * 5000} 1.5\n", "expected the index of one of 3 documents from 0", id="5000 digits"),
        ("1_0\n", r"s.txt:1: expected a score, got '1_0'"),
        ("\u0661\n", r"s.txt:1: expected a score, got '\u0661'"),
    ],
)
def test_scores_that_cannot_be_used(data, tmp_path, content, message):
    (tmp_path / "s.txt").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_scores(tmp_path / "s.txt", data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qid": ["a b", "a_b"]}, "expected queries that still differ with '_' for blanks, .* got 'a_b' twice"),
        ({"qid": ["", "a"]}, "expected query ids that are not empty"),
        (
            {"document_ids": ["a b", "a_b"]},
            "expected documents in query 0 that still differ with '_' for blanks, .* 'a_b' twice",
        ),
        ({"document_ids": ["row1", ""]}, "expected documents in query 0 that still differ .* got 'row1' twice"),
    ],
)
def test_names_that_would_become_one_in_trec_files(tmp_path, changes, message):
    data = RankingDataset(np.eye(2), [0, 1], **changes)
    with pytest.raises(DataError, match=message):
        tierank.write_run(data, [1.0, 2.0], tmp_path / "x.run")
    with pytest.raises(DataError, match=message):
        tierank.write_qrels(data, tmp_path / "x.qrels")
    (tmp_path / "other.run").write_text("a_b Q0 a_b 1 0.5 other\n")
    with pytest.raises(DataError, match=message):
        read_scores(tmp_path / "other.run", data)


def test_a_name_with_blanks_has_none_in_trec_files(tmp_path):
    data = RankingDataset(np.eye(2), [0, 1], qid=["a b", "c"], document_ids=["x y", "x_y"])
    tierank.write_run(data, [1.0, 2.0], tmp_path / "x.run")
    assert (tmp_path / "x.run").read_text().splitlines()[0] == "a_b Q0 x_y 1 1.0 tierank"
    assert read_scores(tmp_path / "x.run", data).tolist() == [1, 2]


def test_score_arrays_that_cannot_be_used(data, tmp_path):
    np.save(tmp_path / "s.npy", np.array([{"code": "run"}], object), allow_pickle=True)
    with pytest.raises(DataError, match="expected an array of numbers, got a damaged file or another type"):
        read_scores(tmp_path / "s.npy", data)


# The cache


@pytest.fixture
def cached_file(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_WORTH_IT", 0)
    path = tmp_path / "data.txt"
    path.write_text("".join(f"{i % 3} qid:{i % 5} 1:{i} 2:0.5 #docid = d{i}\n" for i in range(50)))
    return path


def test_second_reading_comes_from_the_cache(cached_file, monkeypatch):
    first = read(cached_file)
    assert (cached_file.parent / "data.txt.tierank" / "meta.json").exists()
    monkeypatch.setitem(FORMATS, "letor", FORMATS["letor"]._replace(read=lambda *_, **__: pytest.fail("read again")))
    assert_equal(read(cached_file), first, weights=False)
    np.testing.assert_array_equal(read(cached_file).source_rows, first.source_rows)


@pytest.fixture
def builds(monkeypatch):
    """The files that were read as text."""
    files = []
    reader = FORMATS["letor"].read

    def counted(path, **options):
        files.append(path.name)
        return reader(path, **options)

    monkeypatch.setitem(FORMATS, "letor", FORMATS["letor"]._replace(read=counted))
    return files


@pytest.mark.parametrize("widths", [(None, 5, None, 5), (5, None, 2, 5), (2, None, 2, None)])
def test_readings_of_any_width_share_one_cache(cached_file, builds, widths):
    for width in widths:
        data = read(cached_file, n_features=width)
        assert_equal(data, read(cached_file, n_features=width, cache=False), weights=False)
        assert data.n_features == (width or 2)
    assert len(builds) == 1 + len(widths)  # those without a cache
    for _ in range(2):
        with pytest.raises(DataError, match=r"data.txt: expected at most 1 features, as n_features .*, got 2"):
            read(cached_file, n_features=1)
    assert len(builds) == 1 + len(widths)


def test_a_file_that_is_too_wide_leaves_no_cache(cached_file):
    with pytest.raises(DataError, match=r"data.txt: expected at most 1 features, as n_features .*, got 2"):
        read(cached_file, n_features=1)
    assert [path.name for path in cached_file.parent.iterdir()] == ["data.txt"]


def test_a_folder_that_was_named_is_as_wide_as_was_asked_for(cached_file, tmp_path):
    for width in (None, 5):
        read(cached_file, n_features=width, cache=tmp_path / "x.tierank")
        assert read(tmp_path / "x.tierank").n_features == (width or 2)
    assert read(tmp_path / "x.tierank", n_features=7).n_features == 7


def test_parts_of_different_widths_are_read_once(tmp_path, monkeypatch, builds):
    monkeypatch.setattr(cache, "_WORTH_IT", 0)
    write_parts(tmp_path, [f"S{k}.txt" for k in range(1, 6)], start=1)
    for fold in (1, 4):
        assert {part.n_features for part in read_fold(tmp_path, fold)} == {6}
    assert sorted(builds) == [f"S{k}.txt" for k in range(1, 6)]
    assert read(tmp_path / "S1.txt").n_features == 2
    assert len(builds) == 5


def test_the_cache_is_left_when_anything_changed(cached_file):
    read(cached_file)
    assert read(cached_file, zero_based=True).n_features == 3  # other settings
    assert read(cached_file).n_features == 2
    before = cached_file.stat()
    cached_file.write_text(cached_file.read_text().replace("qid:4", "qid:3"))  # same size, other time
    os.utime(cached_file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert read(cached_file).n_queries == 4


def damage_file(file, damage):
    content = bytearray(file.read_bytes())
    if damage == "delete":
        file.unlink()
    else:
        content[len(content) // 2] ^= 0xFF
        kept = {"truncate": content[: len(content) // 2], "flip": content, "empty": b""}[damage]
        file.write_bytes(kept)


DAMAGES = ["truncate", "flip", "delete", "empty"]


@pytest.mark.parametrize("name", ["features.npy", "offsets.npy", "query_ids.npy", "ratings.npy"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_noticed_and_made_anew(cached_file, caplog, name, damage):
    expected = read(cached_file, cache=False)
    read(cached_file)
    folder = cached_file.parent / "data.txt.tierank"
    damage_file(folder / name, damage)
    with pytest.raises(DataError, match="delete"):
        read(folder)
    assert_equal(read(cached_file), expected, weights=False)
    assert "the cache is not used, the file is read again" in caplog.text
    assert_equal(read(folder), expected, weights=False)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_does_not_say_it_is_a_cache_is_left_alone(cached_file, caplog, damage):
    expected = read(cached_file)
    folder = cached_file.parent / "data.txt.tierank"
    damage_file(folder / "meta.json", damage)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert_equal(read(cached_file), expected, weights=False)
    assert "expected a new name or the cache of a file, got something else there" in caplog.text
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_data_set_that_somebody_wrote_is_no_cache(cached_file, data, caplog):
    folder = cached_file.parent / "data.txt.tierank"
    write(data, folder)
    assert read(cached_file).n_documents == 50
    assert "no cache was written for" in caplog.text
    with pytest.raises(DataError, match="expected a new name or the cache of a file, got something else there"):
        read(cached_file, cache=folder)
    assert_equal(read(folder), data)


@pytest.mark.parametrize("put", [write, lambda data, path: tierank.make_ranking(2, out=path)], ids=["write", "make"])
def test_a_folder_of_other_things_is_not_replaced_by_data(data, tmp_path, put):
    folder = tmp_path / "x.tierank"
    put(data, folder)
    put(data, folder)  # what is a data set may be replaced
    (folder / "meta.json").unlink()
    (folder / "precious.csv").write_text("1")
    with pytest.raises(DataError, match=r"x\.tierank: expected a new name or a data set, got something else there"):
        put(data, folder)
    write(data, tmp_path / "x.txt")
    with pytest.raises(DataError, match=r"x\.tierank: expected a new name or the cache of a file, got something else"):
        convert(tmp_path / "x.txt", folder)
    assert (folder / "precious.csv").read_text() == "1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "expected format 1, got 99"),
        ({"files": {}}, "expected features, offsets and query_ids among its files"),
        ({"files": []}, "expected features, offsets and query_ids among its files"),
        ({"feature_names": 3}, "expected the description of a data set"),
    ],
)
def test_hostile_descriptions_are_refused(data, tmp_path, change, message):
    folder = tmp_path / "x.tierank"
    write(data, folder)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, **change}))
    with pytest.raises(DataError, match=message):
        read(folder)


def test_names_that_lead_out_of_the_folder_are_refused(data, tmp_path):
    folder = tmp_path / "x.tierank"
    write(data, folder)
    meta = json.loads((folder / "meta.json").read_text())
    meta["files"]["../x.tierank/ratings"] = meta["files"]["ratings"]
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match="expected the arrays of a data set, got"):
        read(folder)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("offsets", np.array([0, 5, 3, 12])),
        ("source_rows", np.array([0, *range(11)])),  # a row twice, and one not at all
        ("source_rows", np.arange(1, 13)),
        ("source_rows", np.arange(11)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(data, tmp_path, name, array):
    folder = tmp_path / "x.tierank"
    write(data, folder)
    np.save(folder / f"{name}.npy", array)
    meta = json.loads((folder / "meta.json").read_text())
    meta["files"][name] = cache._fingerprint(folder / f"{name}.npy")
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match="expected consistent arrays"):
        read(folder)


def test_nothing_is_written_into_a_read_only_folder(cached_file):
    folder = cached_file.parent
    folder.chmod(0o555)
    try:
        read(cached_file)
        assert [path.name for path in folder.iterdir()] == ["data.txt"]
    finally:
        folder.chmod(0o755)


def test_small_files_and_no_cache_leave_nothing_behind(tmp_path, cached_file, monkeypatch):
    read(cached_file, cache=False)
    monkeypatch.setattr(cache, "_WORTH_IT", 1 << 20)
    read(cached_file)
    assert [path.name for path in tmp_path.iterdir()] == ["data.txt"]


def test_a_failed_write_leaves_the_old_file(data, tmp_path, monkeypatch):
    path = tmp_path / "data.txt"
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tierank.io.letor._heads", fail)
    with pytest.raises(DataError, match=r"data.txt: expected a path that can be written, got: No space left on device"):
        write(data, path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("data.txt", "old")]


def test_arrow_is_asked_for_by_name(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "x.csv").write_text("qid,label,f\n1,0,3\n")
    with pytest.raises(tierank.MissingExtraError, match=r"CSV needs pyarrow: pip install 'tierank\[arrow\]'"):
        read(tmp_path / "x.csv")


def test_csv_with_missing_values(tmp_path):
    (tmp_path / "x.csv").write_text("qid,label,f,g\na,0,3,\na,2,NULL,1\nb,1,nan,2\n")
    data = read(tmp_path / "x.csv")
    np.testing.assert_array_equal(data.features, np.array([[3, np.nan], [np.nan, 1], [np.nan, 2]], np.float32))
    assert data.query_ids.tolist() == ["a", "b"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_scores_and_attributes_with_a_column_twice_are_refused(tmp_path, ending):
    """Which of the two was meant cannot be known; what is not used may come twice."""
    names = ["query", "score", "score", "device", "device", "spare", "spare"]
    columns = [[1, 1], [0.5, 1.5], [1.5, 0.5], ["a", "a"], ["b", "b"], [0, 0], [1, 1]]
    table = pa.Table.from_arrays([pa.array(one) for one in columns], names=names)
    path = tmp_path / f"file.{ending}"
    (pyarrow.csv.write_csv if ending == "csv" else pyarrow.parquet.write_table)(table, path)
    data = tierank.RankingDataset(np.eye(2), [0, 1], qid=[1, 1])
    with pytest.raises(DataError, match="expected each column once, got 'score' twice; rename one of them"):
        tierank.read_scores(path, data)
    with pytest.raises(DataError, match="expected each column once, got 'device' twice; rename one of them"):
        read_attributes(path, ["device"], [1])


def test_arguments_that_would_have_no_effect_are_refused(tmp_path):
    data = tierank.make_ranking(8, n_features=3, mean_length=5, max_length=9, seed=0)
    data = data.with_features(data.features, ("a", "b", "c"))
    for ending in (".csv", ".parquet", ".tierank"):
        tierank.write(data, tmp_path / f"data{ending}")
    binary, table = tmp_path / "data.tierank", tierank.to_arrow(data)
    fixed = "expected a table with such a column, CSV or Parquet, got a binary data set, whose columns were chosen"
    for argument in ("query", "rating", "document"):
        with pytest.raises(DataError, match=rf"data\.tierank: {argument}: {fixed}"):
            read(binary, **{argument: "a"})
    with pytest.raises(DataError, match=f"columns: {fixed}"):
        read(binary, columns=tierank.Columns(categories=["a"]))
    numbered = "expected text, whose features are numbered, got data whose features have names"
    for source in (tmp_path / "data.csv", tmp_path / "data.parquet", table):
        for argument, value in (("n_features", 3), ("zero_based", True)):
            with pytest.raises(DataError, match=f"{argument}: {numbered}"):
                read(source, **{argument: value})
    with pytest.raises(DataError, match=f"zero_based: {numbered}"):
        read(binary, zero_based=True)
    assert read(binary, features=["a"]).feature_names == ("a",)
    assert read(binary, columns=tierank.Columns()).n_features == 3


@pytest.mark.parametrize("argument", ["features", "ignore"])
def test_a_list_of_columns_is_not_one_text(argument):
    """Its letters were taken for columns."""
    frame = pd.DataFrame({"qid": [1, 1], "rating": [0, 1], "price": [1.0, 2.0]})
    message = rf"{argument}: expected a list of names of columns, got 'price'; write \['price'\]"
    with pytest.raises(ParameterError, match=message):
        read(frame, **{argument: "price"})


@pytest.mark.parametrize("argument", ["query", "rating", "document", "position", "row_weight", "query_weight"])
def test_a_role_is_that_of_one_column(argument):
    with pytest.raises(ParameterError, match=rf"{argument}: expected the name of one column, got \['qid'\]"):
        read(pd.DataFrame({"qid": [1, 1], "price": [1.0, 2.0]}), **{argument: ["qid"]})


def test_columns_of_pandas_may_be_numbered():
    data = read(pd.DataFrame([[7, 0.5, 1], [7, 1.5, 0]]), query=0, rating=2)
    assert data.query_ids.tolist() == [7]
    assert data.ratings.tolist() == [1, 0]
    assert data.feature_names == ("1",)


def test_ratings_are_not_features():
    """A column that is named as a feature is not taken for the ratings because of its name."""
    frame = pd.DataFrame({"qid": [1, 1], "grade": [0.0, 1.0], "price": [1.0, 2.0]})
    with pytest.raises(DataError, match="table: features: expected columns without the ratings, got 'grade'"):
        read(frame, rating="grade", features=["price", "grade"])
    data = read(frame, features=["price", "grade"])
    assert not data.is_rated
    assert data.feature_names == ("price", "grade")


def test_a_column_has_one_role(tmp_path):
    table = pd.DataFrame({"qid": [1, 1, 2], "label": [0.0, 1.0, 0.0], "a": [1.0, 2.0, 3.0], "b": [3, 2, 1]})
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_parquet(tmp_path / "a.parquet")
    for source in (table, tmp_path / "a.csv", tmp_path / "a.parquet"):
        for roles in (
            {"query": "b", "rating": "b"},
            {"rating": "label", "row_weight": "label"},
            {"document": "b", "position": "b"},
        ):
            with pytest.raises(DataError, match=rf"expected different columns for .*, got '{max(roles.values())}' for"):
                read(source, **roles)
        named = read(source, query="label")  # so this column does not hold the ratings
        assert (named.is_rated, named.n_queries) == (False, 2)
        assert read(source, document="qid", query="b").n_queries == 3


@pytest.mark.parametrize("ending", [".xlsx", ".JSON", ".feather", ".npz", ".csv.xz"])
def test_text_is_not_written_under_the_name_of_another_format(data, tmp_path, ending):
    path = tmp_path / f"data{ending}"
    with pytest.raises(
        ParameterError, match=r"expected a name that ends in \.txt, .*, got '\.\w+'; rename it, or name"
    ):
        tierank.write(data, path)
    assert not path.exists()
    tierank.write(data, path, format="letor")
    assert read(path, format="letor").n_documents == data.n_documents


@pytest.mark.parametrize(
    "cells",
    [("0,5", "1,25"), ("1.234,5", "7,0"), ("1,234", "56,789.5"), ("5%", "12.5 %"), ("+1,5", ""), ("1'000,5", "2,5")],
)
def test_numbers_in_another_notation_are_no_categories(tmp_path, cells):
    path = tmp_path / "shop.csv"
    path.write_text("qid;label;price\n" + "".join(f"1;0;{cell}\n" for cell in cells))
    got = re.escape(f"got {cells[0]!r} in line 2, a number in another notation")
    with pytest.raises(DataError, match=rf"column 'price': .* {got}"):
        read(path)
    assert read(path, columns=tierank.Columns(categories=["price"])).kinds["price"].levels[0] in cells


@pytest.mark.parametrize(
    "cells", [("1.2.3", "1.3.1"), ("1.1.2025", "31.12.2024"), ("1,2,3", "4,5,6"), ("1,5", "a,b"), ("10-20", "30-40")]
)
def test_texts_with_digits_are_texts(tmp_path, cells):
    path = tmp_path / "shop.csv"
    path.write_text("qid;label;size\n" + "".join(f"1;0;{cell}\n" for cell in cells))
    assert read(path).kinds["size"].levels == cells


@pytest.mark.parametrize("ending", [".txt", ".run", ".txt.gz", ".run.gz", ".tsv", ".csv"])
def test_scores_and_runs_read_back_from_what_their_names_say(data, tmp_path, ending):
    scores = np.linspace(-1, 1, data.n_documents)
    write_scores(scores, tmp_path / f"scores{ending}")
    np.testing.assert_array_equal(read_scores(tmp_path / f"scores{ending}", data), scores)
    if ending != ".csv":
        tierank.write_run(data, scores, tmp_path / f"run{ending}")
        np.testing.assert_array_equal(read_scores(tmp_path / f"run{ending}", data), scores)
    is_packed = (tmp_path / f"scores{ending}").read_bytes()[:2] == bytes([31, 139])
    assert is_packed == ending.endswith(".gz")


@pytest.mark.parametrize("ending", [".npy", ".NPY", ".parquet", ".pq.gz", ".json", ".xlsx", ".tierank", ".zip"])
def test_scores_are_not_written_under_the_name_of_another_format(data, tmp_path, ending):
    scores = np.zeros(data.n_documents)
    with pytest.raises(ParameterError, match=r"expected a name that ends in \.txt, got"):
        write_scores(scores, tmp_path / f"scores{ending}")
    with pytest.raises(ParameterError, match=r"expected a name that ends in \.run, got"):
        tierank.write_run(data, scores, tmp_path / f"run{ending}")
    assert not list(tmp_path.iterdir())


def test_damaged_gzip_scores_are_refused(data, tmp_path):
    write_scores(np.arange(data.n_documents), tmp_path / "scores.txt.gz")
    content = (tmp_path / "scores.txt.gz").read_bytes()
    for damaged in (content[:-9], b"0.5\n", content[:-8] + bytes(8)):
        (tmp_path / "scores.txt.gz").write_bytes(damaged)
        with pytest.raises(
            DataError, match=r"scores\.txt\.gz: expected a whole gzip file, got a damaged or truncated one"
        ):
            read_scores(tmp_path / "scores.txt.gz", data)


def test_row_numbers_of_pandas_are_no_features(tmp_path):
    table = pd.DataFrame({"qid": [1, 1], "label": [0, 1], "price": [0.5, 1.5]})
    table.to_csv(tmp_path / "once.csv")
    assert read(tmp_path / "once.csv").feature_names == ("price",)
    pd.read_csv(tmp_path / "once.csv").to_csv(tmp_path / "twice.csv")
    assert read(tmp_path / "twice.csv").feature_names == ("price",)
    assert read(pd.read_csv(tmp_path / "twice.csv")).feature_names == ("price",)
    assert read(tmp_path / "twice.csv", features=["Unnamed: 0", "price"]).feature_names == ("Unnamed: 0", "price")


def test_query_ids_of_parts_that_no_type_holds(tmp_path):
    (tmp_path / "parts.parquet").mkdir()
    for name, ids in (("a", np.array([2**63 + 5], np.uint64)), ("b", np.array([-1]))):
        pd.DataFrame({"qid": ids, "label": [1], "price": [0.5]}).to_parquet(
            tmp_path / "parts.parquet" / f"{name}.parquet"
        )
    with pytest.raises(DataError, match=r"a\.parquet: expected query ids that int64 can hold, got: Integer value"):
        read(tmp_path / "parts.parquet")


def test_names_of_files_need_not_be_utf8_unless_arrow_reads_them(data, tmp_path):
    for ending in (".txt", ".txt.gz", ".tierank"):
        path = tmp_path / os.fsdecode(b"\xff" + ending.encode())
        write(data, path)
        np.testing.assert_array_equal(read(path).features, data.features)
    for ending in (".csv", ".csv.gz", ".parquet"):
        path = tmp_path / os.fsdecode(b"\xff" + ending.encode())
        write(data, path)
        with pytest.raises(
            DataError, match=r"the name of a (CSV|Parquet) file: expected text that can be encoded as UTF-8"
        ):
            read(path)
        path.rename(tmp_path / f"renamed{ending}")
        np.testing.assert_array_equal(read(tmp_path / f"renamed{ending}").features, data.features)
