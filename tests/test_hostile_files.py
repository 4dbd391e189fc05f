"""Any bytes in any reader: a data set or an error with a place, never another exception, never an endless wait."""

import gzip
import io
import json
import os
import re
import shutil
import socket
import threading
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reference_letor
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from running import examples

import tierank
from tierank import (
    Columns,
    DataError,
    ParameterError,
    RankingDataset,
    TierankError,
    read,
    read_scores,
    write,
    write_scores,
)
from tierank.cli import TIERANK
from tierank.cli.console import Pipes, in_options
from tierank.data.columns import Category
from tierank.io import cache, paths

ROWS = 12
DATA = RankingDataset(
    np.random.default_rng(0).normal(size=(ROWS, 3)), np.arange(ROWS) % 3, qid=np.arange(ROWS) % 4,
    feature_names=["a", "b", "c"], row_weight=np.ones(ROWS), query_weight=np.arange(4),
    document_ids=[f"d{'é' * (i % 2)}{i}" for i in range(ROWS)],
)  # fmt: skip

# Changes to a file: at a place, so many bytes go and these come.
tokens = st.sampled_from(
    [
        b"--inf",
        b"nan",
        b"-1",
        b"1e999",
        b"9" * 40,
        b"0x10",
        b"[" * 99,
        b"\xff" * 8,
        b"\0" * 8,
        b"\n",
        b",",
        b'"',
        b"qid",
    ]
)
edits = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 20), st.one_of(tokens, st.binary(max_size=4))), min_size=1, max_size=4
)
# The same files in every run: what Arrow makes of a damaged file is not ours to mend.
fuzzed = settings(
    examples(120),
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def edited(content: bytes, changes) -> bytes:
    for place, gone, new in changes:
        start = int(place * len(content))
        content = content[:start] + new + content[start + gone :]
    return content


def assert_sound_or_refused(use, place) -> None:
    """What is read can be relied on, and what is refused is named."""
    try:
        found = use()
    except TierankError as error:
        if str(place) not in str(error):
            raise
        return
    if isinstance(found, RankingDataset):
        assert len(set(found.query_ids.tolist())) == found.n_queries
        assert found.offsets[0] == 0
        assert found.offsets[-1] == found.n_documents
        assert (found.lengths > 0).all()
        assert not np.isinf(found.features).any()
        assert not found.is_rated or (np.isfinite(found.ratings) & (found.ratings >= 0)).all()
        assert found.document_ids is None or len(found.document_ids) == found.n_documents
    else:
        assert found.shape == (ROWS,)
        assert found.dtype == np.float64
        assert not np.isnan(found).any()


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The same data in every form, and scores in every form."""
    folder = tmp_path_factory.mktemp("written")
    plain = RankingDataset(DATA.features, DATA.ratings, qid=DATA.query_of_row)
    for name in ("x.csv", "x.csv.gz", "x.parquet"):
        write(DATA, folder / name)
    position = np.arange(ROWS) // 4 + 1
    write(DATA.replace(position=position, propensity=1 / position), folder / "x.tierank")
    for name in ("x.txt", "x.txt.gz"):
        write(plain, folder / name)
    scores = np.linspace(-1, 1, ROWS)
    np.save(folder / "s.npy", scores)
    np.save(folder / "texts.npy", np.array(["x"] * ROWS))
    write_scores(scores, folder / "s.txt")
    tierank.write_run(DATA, scores, folder / "s.run")
    (folder / "s.ranklib").write_text("".join(f"{q} {k} {k}\n" for q in range(4) for k in range(3)))
    return folder


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz", "x.csv", "x.csv.gz", "x.parquet"])
@given(changes=edits)
@fuzzed
def test_damaged_data_are_read_soundly_or_refused(written, tmp_path, name, changes):
    (tmp_path / name).write_bytes(edited((written / name).read_bytes(), changes))
    assert_sound_or_refused(lambda: read(tmp_path / name, cache=False), tmp_path / name)


@pytest.mark.parametrize("name", ["s.npy", "texts.npy", "s.txt", "s.run", "s.ranklib"])
@given(changes=edits)
@fuzzed
def test_damaged_scores_are_read_soundly_or_refused(written, tmp_path, name, changes):
    (tmp_path / name).write_bytes(edited((written / name).read_bytes(), changes))
    assert_sound_or_refused(lambda: read_scores(tmp_path / name, DATA), tmp_path / name)


def forge(folder: Path, name: str) -> None:
    """Make the description of a data set fit one of its arrays."""
    meta = json.loads((folder / "meta.json").read_text())
    meta["files"][name] = cache._fingerprint(folder / f"{name}.npy")
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize("is_forged", [False, True])
@given(st.sampled_from(["meta.json", *(f"{name}.npy" for name in [*cache._TYPES, "query_ids"])]), edits)
@fuzzed
def test_damaged_folders_are_read_soundly_or_refused(written, tmp_path, is_forged, name, changes):
    folder = tmp_path / "x.tierank"
    shutil.copytree(written / folder.name, folder, dirs_exist_ok=True)
    (folder / name).write_bytes(edited((folder / name).read_bytes(), changes))
    if is_forged and name.endswith(".npy"):
        forge(folder, name.removesuffix(".npy"))
    assert_sound_or_refused(lambda: read(folder), folder)


# Numbers


# What looks like a number, and what nearly does.
spellings = st.one_of(
    st.lists(
        st.sampled_from(
            [*"+-.019eE_x", "inf", "INFINITY", "nan", "NaN", "null", "NULL", "0x1", "\uff11", "\u0661", "true"]
        ),
        min_size=1,
        max_size=5,
    ).map("".join),
    st.floats().map(repr),
    st.integers().map(str),
)


def by_the_rule(text: str) -> float | None:
    """The float32 that a text is, by the slow twin of the reader of LETOR text; None where it is refused."""
    try:
        with np.errstate(over="ignore"):
            value = float(np.float32(reference_letor.number(text)))
    except reference_letor.Malformed:
        return None
    return None if np.isinf(value) else value


@given(st.lists(spellings, min_size=1, max_size=4))
@example(["0x10"])
@example(["true", "null", "true"])
@example(["NAN", "-nan", "nan(1)"])
@example(["1", "+7", "NAN"])
@example(["-NaN"])
@example(["1e5", "1E+05", ".5", "5."])
@examples(150)
def test_a_number_is_one_by_one_rule_in_every_text(tmp_path_factory, texts):
    folder = tmp_path_factory.getbasetemp()
    expected = [by_the_rule(text) for text in texts]
    forms = {
        "x.txt": "".join(f"0 qid:1 1:{text}\n" for text in texts),
        "x.csv": "qid,label,f\n" + "".join(f"1,0,{text}\n" for text in texts),
        "blanks.csv": "qid,label,f\n" + "".join(f"1,0, {text}\t\n" for text in texts),
    }
    for name, content in forms.items():
        (folder / name).write_text(content, encoding="utf-8")
        if name.endswith("csv") and "true" in texts and {text.lower() for text in texts} <= {"true", "nan", "null"}:
            truths = np.where(np.array(texts) == "true", 1, np.nan)
            np.testing.assert_array_equal(read(folder / name).features[:, 0], truths)
        elif None in expected and name.endswith("csv") and not any(map(is_number, texts)):
            special = [re.fullmatch("[+-]?(inf|infinity|nan)|", text, re.IGNORECASE) for text in texts]
            if all(special) or any(found and "inf" in found[0].lower() for found in special):
                with pytest.raises(DataError, match="expected"):
                    read(folder / name)
            else:  # texts with digits may be refused, as numbers in another notation: ++0, or digits of other scripts
                with suppress(DataError) if any(map(str.isdigit, "".join(texts))) else nullcontext():
                    assert isinstance(read(folder / name).kinds["f"], Category)
        elif None in expected:
            with pytest.raises(DataError, match=rf"{name}.*: .*expected (a|numbers|values)"):
                read(folder / name)
        else:
            np.testing.assert_array_equal(read(folder / name).features[:, 0], np.array(expected, np.float32))


def is_number(text):
    """Whether it is written as a number, of whatever size."""
    try:
        return not np.isnan(reference_letor.number(text))
    except reference_letor.Malformed:
        return False


@given(spellings)
@example("--inf")
@example("1_0")
@example("Infinity")
@examples(150)
def test_a_score_is_a_number_by_the_same_rule(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "one.txt"
    path.write_text(f"{text}\n", encoding="utf-8")
    one = RankingDataset([[1.0]], [1])
    if re.fullmatch("[+-]?(inf|infinity)", text, re.IGNORECASE):
        expected = float(text)
    else:
        try:
            expected = reference_letor.number(text)
        except reference_letor.Malformed:
            expected = np.nan
    if np.isnan(expected):
        with pytest.raises(DataError, match=r"one.txt.*: expected a (score|number)"):
            read_scores(path, one)
    else:
        assert read_scores(path, one).tolist() == [expected]


def test_a_byte_order_mark_is_no_part_of_a_score(tmp_path):
    (tmp_path / "s.txt").write_bytes(b"\xef\xbb\xbf1.5\n")
    assert read_scores(tmp_path / "s.txt", RankingDataset([[1.0]], [1])).tolist() == [1.5]


@pytest.mark.parametrize(
    "missing", ["", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "NaN", "nan", "NAN", "None", " NA", " "]
)
def test_words_for_no_value_in_csv(tmp_path, missing):
    (tmp_path / "x.csv").write_text(f"qid,label,f,g\n1,0,{missing},2\n1,1,3,4\n")
    np.testing.assert_array_equal(read(tmp_path / "x.csv").features, np.array([[np.nan, 2], [3, 4]], np.float32))


@pytest.mark.parametrize("cell", ["0x10", "1,000", "1'000", "true", "2020-01-31", "10:00", "5%", "-nan", "1.#QNAN"])
def test_cells_that_are_no_numbers(tmp_path, cell):
    (tmp_path / "x.csv").write_text(f'qid,label,f\n1,0,1\n\n1,0,"{cell}"\n')
    with pytest.raises(
        DataError, match=rf"x.csv: column 'f': expected numbers, .*, got numbers and {cell!r} in line 4; "
    ):
        read(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text(f'qid,label,f\n1,0,1\n1,"{cell}",2\n')
    with pytest.raises(DataError, match=rf"x.csv: column 'label': expected numbers, got {cell!r} in line 3"):
        read(tmp_path / "x.csv")


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_columns_that_are_not_used_may_hold_anything(tmp_path, name):
    table = b"qid,label,f,title,title\n1,0,1,\xff,0x10\n1,1,2,true,--inf\n"
    (tmp_path / name).write_bytes(gzip.compress(table) if name.endswith("gz") else table)
    assert read(tmp_path / name, ignore=["title"]).features.tolist() == [[1], [2]]


# Texts


def test_names_of_columns_that_are_not_utf8(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"qid,label,pr\xe9x\n1,0,2\n")
    with pytest.raises(DataError, match=r"x.csv:1: expected a header line in UTF-8, got b'pr\\xe9x'; save the file as"):
        read(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_bytes("qid,label,f\n1,0,2\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"x.csv(:1)?: expected a"):
        read(tmp_path / "x.csv")
    pq.write_table(pa.table({"qid": [1], "prix": [2.0]}), tmp_path / "x.parquet")
    content = (tmp_path / "x.parquet").read_bytes().replace(b"prix", b"pr\xe9x")
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(DataError, match=r"x.parquet: expected a Parquet file, got: "):
        read(tmp_path / "x.parquet")


@pytest.mark.parametrize("column", ["qid", "docid", "f"])
def test_texts_of_parquet_that_are_not_utf8(tmp_path, column):
    texts = pa.array([b"\xff\xfe", b"b"]).view(pa.string())
    table = {"qid": [1, 2], "docid": ["a", "b"], "f": [1.0, 2.0]} | {column: texts}
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x.parquet: expected a Parquet file, got: .*UTF8"):
        read(tmp_path / "x.parquet")
    with pytest.raises(DataError, match=rf"table: column '{column}': expected numbers or texts, got: .*UTF8"):
        read(pa.table(table))


def test_a_place_in_csv_that_python_cannot_find_is_a_row(tmp_path):
    (tmp_path / "x.csv").write_text(f"qid,label,docid,f\n1,0,{'x' * 200_000},1\n1,-1,a,1\n")
    with pytest.raises(DataError, match=r"x.csv, row 1: expected a finite rating that is not negative, got -1"):
        read(tmp_path / "x.csv")


# Columns that hold no numbers


DAYS = pd.to_datetime(["2020-01-31", "2020-02-01"])
FRAME = pd.DataFrame(
    {
        "qid": [1, 1],
        "label": [0, 1],
        "day": DAYS,
        "zone": DAYS.tz_localize("UTC"),
        "span": DAYS - DAYS[0],
        "clock": [t.time() for t in DAYS],
        "python": [t.date() for t in DAYS],
        "title": ["shoe", None],
        "price": [1.5, 2.5],
    }
)
DATES = ["day", "zone", "python"]
ODD = ["span", "clock"]
TABLES = {
    "pandas": lambda folder: FRAME,
    "polars": lambda folder: pl.from_pandas(FRAME),
    "arrow": lambda folder: pa.Table.from_pandas(FRAME),
    "parquet": lambda folder: FRAME.to_parquet(folder / "x.parquet") or folder / "x.parquet",
    "csv": lambda folder: FRAME.to_csv(folder / "x.csv", index=False) or folder / "x.csv",
}


@pytest.mark.parametrize("kind", TABLES)
def test_all_columns_that_cannot_be_used_are_named_at_once(tmp_path, kind):
    table = TABLES[kind](tmp_path)
    columns = Columns(dates=DATES) if kind == "csv" else None
    if kind == "csv":  # everything there is a text
        assert set(read(table, columns=columns).kinds) == {*DATES, *ODD, "title"}
    else:
        with pytest.raises(DataError, match=r"column 'span': expected numbers, texts, .* got ") as caught:
            read(table)
        message = str(caught.value)
        assert all(f"column {name!r}: expected numbers, texts, dates or vectors, got " in message for name in ODD)
        assert not any(name in message for name in ("price", "title", *DATES))
        assert message.endswith(f"; convert them to one of these, or leave the columns out with ignore={ODD}")
        assert in_options(message, dict(TIERANK.walk())["describe"].rename).endswith(
            f"or leave the columns out with --ignore {','.join(ODD)}"
        )
    found = read(table, ignore=ODD, columns=columns)
    assert found.features[:, :3].tolist() == [[18292] * 3, [18293] * 3]
    assert found.kinds["title"] == Category(("shoe",))
    assert read(table, ignore=[*ODD, *DATES, "title"]).features.tolist() == [[1.5], [2.5]]


def test_what_is_no_date_is_called_by_its_kind():
    words = {"span": "the duration ", "clock": "the time 00:00:00"}
    for name, what in words.items():
        with pytest.raises(DataError, match=rf"column '{name}': expected numbers, .* got {what}"):
            read(FRAME[["qid", "label", name]])
    for values in (DAYS.to_numpy(), DAYS.to_numpy().astype(object), DAYS.date):
        dates = np.asarray(values)[:, None]
        if dates.dtype == object and isinstance(dates[0, 0], int):
            continue  # nanoseconds, which are numbers
        with pytest.raises(DataError, match=r"X: expected numbers, got the date 2020-01-31.*; encode texts and dates"):
            RankingDataset(dates, [0, 1])
        with pytest.raises(DataError, match=r"y: expected numbers, got the date 2020-01-31"):
            RankingDataset(np.eye(2), dates[:, 0])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0], [2.0, 3.0]]),
        pa.array([{"x": 1}, {"x": 2}]),
        pa.array([b"a", b"b"]),
        pa.array([1, 2], pa.duration("s")),
    ],
    ids=str,
)
def test_columns_of_other_types(tmp_path, column):
    table = pa.table({"qid": [1, 1], "odd": column, "f": [1.0, 2.0]})
    pq.write_table(table, tmp_path / "x.parquet")
    for source in (table, tmp_path / "x.parquet"):
        with pytest.raises(
            DataError, match=r"column 'odd': expected numbers, .* got .*, or leave the column out with ignore="
        ):
            read(source)


def test_a_column_without_a_value_in_the_first_rows_is_of_its_type(tmp_path, monkeypatch):
    monkeypatch.setattr("tierank.io.layout._BATCH", 8)
    table = pa.table({"qid": [1] * 9, "title": ["x"] * 9, "note": [None] * 8 + ["y"], "f": [1.0] * 9})
    pq.write_table(table, tmp_path / "x.parquet")
    found = read(tmp_path / "x.parquet")
    assert found.kinds == {"title": Category(("x",)), "note": Category(("y",))}
    assert np.isnan(found.features[:8, 1]).all()


def test_names_in_the_message_of_the_command_line_are_quoted():
    message = "a.csv: column 'a b': expected numbers, got 'x'; encode it, or leave the column out with ignore=['a b']"
    assert in_options(message, dict(TIERANK.walk())["describe"].rename).endswith(
        "leave the column out with --ignore 'a b'"
    )
    assert in_options("leave the columns out with ignore=", dict(TIERANK.walk())["describe"].rename).endswith(
        "--ignore"
    )


# Arrays of scores


def npy(array, version=(1, 0)) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version, allow_pickle=False)
    return out.getvalue()


WHOLE = npy(np.arange(ROWS, dtype=np.float64))


@pytest.mark.parametrize(
    "content",
    [
        npy(np.arange(ROWS, dtype=">f4")),
        npy(np.arange(ROWS, dtype="<f2")),
        npy(np.arange(ROWS, dtype=np.uint8), (2, 0)),
        npy(np.arange(ROWS, dtype=np.int64), (3, 0)),
        WHOLE.replace(b"False", b"True "),
    ],
    ids=["big-endian", "half", "version 2", "version 3", "Fortran"],
)
def test_arrays_of_every_kind_of_number_are_scores(tmp_path, content):
    (tmp_path / "s.npy").write_bytes(content)
    assert read_scores(tmp_path / "s.npy", DATA).tolist() == list(range(ROWS))


OBJECTS = WHOLE.replace(b"'<f8'", b"'|O' ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged file"),
        (WHOLE[:-1], "damaged file"),
        (WHOLE[:50], "damaged file"),
        (WHOLE.replace(b"(12,)", b"(1e9)"), "damaged file"),
        (WHOLE.replace(b"(12,), } ", b"(99999,),}"), "damaged file"),
        (WHOLE.replace(b"(12,), }" + b" " * 14, b"(1<<62,1<<62,), }     "), "damaged file"),
        (WHOLE.replace(b"(12,), }" + b" " * 14, b"(4611686018427387904,)}"), "damaged file"),
        (WHOLE.replace(b"{'descr': ", b"[[[[[[[[[["), "damaged file"),
        (WHOLE.replace(b"'<f8'", b"'<f9'"), "damaged file"),
        (OBJECTS, "damaged file or another type"),
        (b"PK\x03\x04" + WHOLE, "damaged file or another type"),
        (npy(np.arange(ROWS) * 1j), "expected real numbers, got complex128"),
        (npy(np.arange(ROWS).astype("M8[D]")), "expected numbers, got the date 1970-01-01"),
        (npy(np.arange(ROWS).astype("m8[s]")), "expected numbers, got the duration 0 seconds"),
        (npy(np.array(["x"] * ROWS)), "expected numbers, got 'x'"),
        (npy(np.zeros(ROWS, [("a", "f4")])), "argument must be a string or a number"),
        (npy(np.zeros((ROWS, 2))), "expected 12 scores, one per document, got 24"),
        (npy(np.array(1.0)), "expected 12 scores, one per document, got 1"),
        (npy(np.full(ROWS, np.nan)), "expected a number for every document, got none for row 0"),
    ],
)
def test_arrays_that_are_no_scores(tmp_path, content, message):
    (tmp_path / "s.npy").write_bytes(content)
    with pytest.raises(DataError, match=rf"s\.npy: .*({message})"):
        read_scores(tmp_path / "s.npy", DATA)


def test_an_array_of_a_negative_length_is_refused_or_read_to_its_end(tmp_path):
    """Numpy decides: before 2.1 it reads what there is."""
    (tmp_path / "s.npy").write_bytes(WHOLE.replace(b"(12,)", b"(-1,)"))
    try:
        found = read_scores(tmp_path / "s.npy", DATA)
    except DataError as error:
        assert "damaged file" in str(error)  # noqa: PT017
    else:
        np.testing.assert_array_equal(found, np.arange(ROWS))


# The cache


@pytest.fixture
def cached(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(cache, "_WORTH_IT", 0)
    path = tmp_path / "data.txt"
    path.write_text("".join(f"{i % 3} qid:{i % 5} 1:{i} 2:0.5 #docid = d{i}\n" for i in range(50)))
    read(path)
    return path


@pytest.mark.parametrize("is_in_place", [True, False])
def test_a_file_of_the_same_size_and_time_is_another_one(cached, is_in_place):
    before = cached.stat()
    changed = cached.read_text().replace("qid:4", "qid:3")
    if not is_in_place:  # as cp -p and rsync -t do
        (cached.parent / "new").write_text(changed)
        (cached.parent / "new").rename(cached)
    else:
        cached.write_text(changed)
    os.utime(cached, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (cached.stat().st_size, cached.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert read(cached).n_queries == 4
    assert read(cached.with_name("data.txt.tierank")).n_queries == 4  # made anew


def test_a_cache_that_was_copied_with_its_file_is_made_anew(cached, tmp_path):
    shutil.copytree(tmp_path, tmp_path / "copy")  # with times, as cp -a
    meta = tmp_path / "copy" / "data.txt.tierank" / "meta.json"
    before = meta.read_text()
    assert read(tmp_path / "copy" / "data.txt").n_documents == 50
    assert meta.read_text() != before
    assert read(tmp_path / "copy" / "data.txt.tierank").n_documents == 50


@pytest.mark.parametrize(
    "description",
    [
        "[" * 100_000,
        '{"format":' * 100_000,
        '{"format": 1' + "0" * 5000,
        '{"format": 1, "format": 1, "source": {}, "feature_names": null, "files": {}}',
        '{"format": NaN, "source": {}, "feature_names": null, "files": {}}',
        '{"format": 1, "source": [], "feature_names": null, "files": {"features": 1, "offsets": 1, "query_ids": 1}}',
        '{"format": 1, "source": {}, "feature_names": [1], "files": {"features": 1, "offsets": 1, "query_ids": 1}}',
        '{"format": 1e999, "source": {}, "feature_names": null, "files": {}}',
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
        "1",
        "null",
    ],
    ids=lambda text: text[:20],
)
def test_a_file_is_read_whatever_its_cache_says(cached, caplog, description):
    folder = cached.with_name("data.txt.tierank")
    (folder / "meta.json").write_text(description, encoding="latin-1")
    with pytest.raises(DataError, match=r"meta.json: expected .*; delete"):
        read(folder)
    assert read(cached).n_documents == 50
    assert "the cache is not used, the file is read again" in caplog.text


INFINITE = np.where(np.arange(ROWS * 3).reshape(ROWS, 3) == 7, np.inf, 1).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (
            "ratings",
            np.where(np.arange(ROWS) == 3, np.inf, 1.0),
            "ratings, row 3: expected a finite rating .*, got inf",
        ),
        ("ratings", np.where(np.arange(ROWS) == 3, -1.0, 1.0), "ratings, row 3: expected a finite rating .*, got -1"),
        ("ratings", np.full(ROWS, np.inf), "ratings, row 0: expected a finite rating .*, got inf"),
        ("row_weight", np.full(ROWS, -1.0), "row_weight: expected finite weights .*, got -1 at 0"),
        ("query_weight", np.full(4, np.nan), "query_weight: expected finite weights .*, got nan at 0"),
        ("offsets", np.array([0, 5, 3, 7, 12]), "offsets: expected 0 and then the end of each query, ascending"),
        ("offsets", np.array([1, 3, 5, 7, 12]), "offsets: expected 0 and then the end of each query, ascending"),
        ("offsets", np.array([0, 3, 6, 9, 13]), "expected consistent arrays"),
        ("query_ids", np.array([1, 2, 2, 3]), "query_ids: expected each query once, got one twice"),
        ("query_ids", np.array([1, 2, np.nan, 3]), "qid: expected a query id in every row, got none in row 2"),
        ("query_ids", np.array(["2020", "NaT", "2021", "2022"], "M8[D]"), "qid: expected a query id in every row"),
        ("query_ids", np.array(["a", "b", "\ud800", "c"]), "query_ids: expected text that can be encoded as UTF-8"),
        ("query_ids", np.zeros(4, [("a", "f4")]), "expected consistent arrays"),
        ("query_ids", np.array(1), "expected consistent arrays"),
        ("features", INFINITE, "X: expected values that float32 can hold .*, got inf in row 2, column 1"),
        ("features", np.asfortranarray(np.ones((ROWS, 3), np.float32)), "expected consistent arrays"),
        ("features", np.ones((ROWS, 0), np.float32), "expected consistent arrays|damaged file"),
        ("features", np.float32(1), "expected consistent arrays|damaged file"),
        ("document_ends", np.arange(ROWS) - 1, "expected consistent arrays"),
        ("document_ends", np.full(ROWS, 10**6), "expected consistent arrays"),
        ("document_ends", np.arange(ROWS)[::-1].copy(), "expected consistent arrays"),
        ("source_rows", np.full(ROWS, -1), "expected consistent arrays"),
        ("source_rows", np.full(ROWS, 10**12), "expected consistent arrays"),
    ],
)
def test_values_that_no_data_have_are_refused_though_their_sums_fit(tmp_path, name, array, message):
    write(DATA, tmp_path / "x.tierank")
    np.save(tmp_path / "x.tierank" / f"{name}.npy", array)
    forge(tmp_path / "x.tierank", name)
    with pytest.raises(DataError, match=rf"x\.tierank.*: ({message}).*delete"):
        read(tmp_path / "x.tierank")


def test_names_twice_are_refused_though_nothing_else_is_wrong(tmp_path):
    folder = tmp_path / "x.tierank"
    write(DATA, folder)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"feature_names": ["a", "b", "a"]}))
    with pytest.raises(DataError, match=r"x\.tierank: feature_names: expected each name once, got 'a' twice; delete"):
        read(folder)


def test_a_cache_with_values_that_no_data_have_is_made_anew(cached, caplog):
    folder = cached.with_name("data.txt.tierank")
    np.save(folder / "ratings.npy", np.full(50, -1.0))
    forge(folder, "ratings")
    assert read(cached).ratings.max() == 2
    assert "the cache is not used" in caplog.text
    assert read(folder).ratings.max() == 2


def test_data_that_were_changed_after_they_were_checked_are_not_written(tmp_path):
    data = RankingDataset(np.eye(2), [0, 1])
    data.ratings[1] = np.inf
    with pytest.raises(DataError, match="ratings, row 1: expected a finite rating that is not negative, got inf"):
        write(data, tmp_path / "x.tierank")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ids", [[b"a", b"\xff"], ["a", "\xff"], [1, 2], [1.5, 2.5], [True, False]])
def test_query_ids_of_a_folder_are_what_they_were(tmp_path, ids):
    write(RankingDataset(np.eye(2), [0, 1], qid=ids), tmp_path / "x.tierank")
    assert read(tmp_path / "x.tierank").query_ids.tolist() == ids


def test_query_ids_that_a_folder_would_make_one_are_refused(tmp_path):
    data = RankingDataset(np.eye(2), [0, 1], qid=["a", "a\0"])
    with pytest.raises(DataError, match="expected query ids that differ by more than trailing NULs, got 'a' twice"):
        write(data, tmp_path / "x.tierank")


# Pipes, devices and other things with a name


@pytest.fixture
def pipe(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(paths, "_PATIENCE", 30.0)
    os.mkfifo(tmp_path / "pipe.txt")
    return tmp_path / "pipe.txt"


def fed(pipe: Path, *chunks: bytes) -> threading.Thread:
    """Somebody who writes to a pipe, with pauses."""

    def feed():
        with pipe.open("wb", buffering=0) as file:  # waits for a reader
            for chunk in chunks:
                time.sleep(0.05)
                file.write(chunk)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("chunks", [(b"1 qid:1 1:2\n0 qid:1 2:3\n",), (b"1 qid:1 1", b":2\n0 qid:", b"1 2:3\n")])
def test_a_pipe_is_read_as_a_file_is(pipe, chunks):
    feeder = fed(pipe, *chunks)
    assert read(pipe, n_features=3).features.tolist() == [[2, 0, 0], [0, 3, 0]]
    feeder.join()
    assert [path.name for path in pipe.parent.iterdir()] == [pipe.name]


def test_a_pipe_of_any_form_is_read(pipe, written):
    for name in ("x.csv", "x.parquet", "s.npy", "s.txt"):
        link = pipe.with_name(name)
        link.symlink_to(pipe)  # the form is that of the name
        feeder = fed(pipe, (written / name).read_bytes())
        if name.startswith("x"):
            np.testing.assert_array_equal(read(link).features, DATA.features)
        else:
            assert read_scores(link, DATA).shape == (ROWS,)
        feeder.join()


def test_what_is_wrong_in_a_pipe_is_said_with_its_name(pipe):
    feeder = fed(pipe, b"1 qid:1 1:2\n1 qid:1 1:x\n")
    with pytest.raises(DataError, match=rf"^{re.escape(str(pipe))}:2: expected a number after '1:', got 'x'"):
        read(pipe)
    feeder.join()
    feeder = fed(pipe)
    with pytest.raises(DataError, match=rf"^{re.escape(str(pipe))}: expected at least one line"):
        read(pipe)
    feeder.join()


def test_a_pipe_that_nobody_writes_to_is_refused(pipe, monkeypatch):
    monkeypatch.setattr(paths, "_PATIENCE", 0.1)
    message = r"pipe.txt: expected a pipe with a writer, got none in 0.1 seconds; start the program"
    with Pipes() as pipes:
        for use in (read, lambda path: read_scores(path, DATA), lambda path: pipes.as_file(str(path))):
            with pytest.raises(DataError, match=message):
                use(pipe)


def test_a_cache_may_be_made_of_a_pipe(pipe, tmp_path):
    feeder = fed(pipe, b"1 qid:1 1:2\n")
    assert read(pipe, cache=tmp_path / "x.tierank").n_documents == 1
    feeder.join()
    assert read(tmp_path / "x.tierank").features.tolist() == [[2]]


def test_pipes_among_the_files_of_a_data_set_are_refused(tmp_path):
    (tmp_path / "rank.train").write_text("0 1:2\n")
    os.mkfifo(tmp_path / "rank.train.query")
    with pytest.raises(
        DataError, match=r"rank.train.query: expected a file with one number per line, got something else"
    ):
        read(tmp_path / "rank.train")
    for name in ("meta.json", "ratings.npy"):
        folder = tmp_path / f"{name}.tierank"
        write(DATA, folder)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(DataError, match=rf"{re.escape(name)}: expected"):
            read(folder)


def test_devices_and_sockets_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    message = "expected a file, a folder or a pipe, got a device or a socket; copy it to a file"
    places = [Path("/dev/null"), Path("/dev/zero")]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s")
        for place in (*places, Path("s")):
            with pytest.raises(DataError, match=message):
                read(place)
            with pytest.raises(DataError, match=message):
                read_scores(place, DATA)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x" * 300, "expected a file that can be read, got: File name too long"),
        ("loop", "expected a file that can be read, got: Too many levels of symbolic links"),
        ("gone", r"expected a file( of scores)?, got a broken link"),
        ("x.txt/inside", r"expected a file( of scores)?, got nothing there"),
    ],
)
def test_paths_that_lead_nowhere(tmp_path, name, message):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    (tmp_path / "x.txt").touch()
    for use in (read, lambda path: read_scores(path, DATA)):
        with pytest.raises(DataError, match=message):
            use(tmp_path / name)


@pytest.mark.parametrize("source", [5, None, [1, 2], np.eye(2)])
def test_what_is_neither_a_path_nor_a_table(source):
    with pytest.raises(ParameterError, match=r"expected the path of a file or a table, got .*; RankingDataset takes"):
        read(source)


def test_a_cell_of_scores_that_is_too_long_for_csv_is_refused(tmp_path):
    (tmp_path / "scores.csv").write_text('query,score\n"' + "x" * 200_000)
    with pytest.raises(DataError, match=r"scores\.csv: expected a CSV table of scores, got: field larger"):
        tierank.read_scores(tmp_path / "scores.csv", RankingDataset(np.zeros((1, 1))))
