"""Click logs: every kind of table and file, in any order of rows, with errors that say what to do."""

import gzip
from itertools import combinations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import examples

import tierank
from tierank.clicks import ClickLog

ROWS = {
    "session": [3, 3, 1, 1, 1, 2],
    "query": ["shoe", "shoe", "hat", "hat", "hat", "shoe"],
    "document": ["b", "a", "x", "y", "z", "a"],
    "position": [2, 1, 1, 3, 2, 1],
    "clicked": [1, 0, 0, 1, 0, 0],
    "ranker": ["new", "new", "old", "old", "old", "new"],
}


def read(source=ROWS, **named):
    return tierank.clicks.read(source, **named)


def as_lists(log):
    table = log.to_columns()
    return list(zip(*(table[name].tolist() for name in ROWS if name in table), strict=True))


EXPECTED = [
    (1, "hat", "x", 1, 0, "old"),
    (1, "hat", "z", 2, 0, "old"),
    (1, "hat", "y", 3, 1, "old"),
    (2, "shoe", "a", 1, 0, "new"),
    (3, "shoe", "a", 1, 0, "new"),
    (3, "shoe", "b", 2, 1, "new"),
]


@pytest.mark.parametrize("kind", ["dict", "pandas", "polars", "arrow", "csv", "csv.gz", "tsv", "parquet", "folder"])
def test_every_source_gives_the_same_log(kind, tmp_path):
    frame = pd.DataFrame(ROWS)
    if kind == "folder":
        frame[:2].to_parquet(tmp_path / "a.parquet")
        frame[2:].to_parquet(tmp_path / "b.parquet")
        source = tmp_path
    elif kind == "parquet":
        frame.to_parquet(source := tmp_path / "log.parquet")
    elif kind in ("csv", "csv.gz", "tsv"):
        frame.to_csv(source := tmp_path / f"log.{kind}", index=False, sep="\t" if kind == "tsv" else ",")
    else:
        source = {"dict": ROWS, "pandas": frame, "polars": pl.DataFrame(ROWS), "arrow": pa.table(ROWS)}[kind]
    log = read(source, columns=["ranker"])
    assert as_lists(log) == EXPECTED
    assert log.offsets.tolist() == [0, 3, 4, 6]
    assert log.restore(log.positions).tolist() == ROWS["position"]
    assert repr(log) == "ClickLog(3 sessions, 2 queries, 6 rows, 2 clicks)"


def in_pieces(frame, folder, n_rows):
    """A folder of Parquet files, which are read one after the other."""
    folder.mkdir()
    for start in range(0, len(frame), n_rows):
        frame[start : start + n_rows].to_parquet(folder / f"{start:06}.parquet")
    return folder


@pytest.mark.parametrize("kind", ["csv", "parquet", "folder"])
def test_files_are_read_in_pieces(kind, tmp_path):
    """Blocks of a megabyte of CSV, 262,144 rows of Parquet, and files of a folder."""
    rng, n = np.random.default_rng(0), 70_000 if kind != "folder" else 500
    table = {
        "session": np.repeat(np.arange(n), 4), "query": np.repeat(rng.integers(0, 9, n), 4),
        "document": rng.integers(0, 50, 4 * n), "position": np.tile([1, 2, 3, 4], n),
        "clicked": rng.integers(0, 2, 4 * n), "ranker": np.repeat(rng.choice(["a", "b"], n), 4),
    }  # fmt: skip
    whole = read(table, columns=["ranker"])
    if kind == "folder":
        source = in_pieces(pd.DataFrame(table), tmp_path / "log", 64)
    else:
        whole.write(source := tmp_path / f"log.{kind}")
    assert as_lists(read(source, columns=["ranker"])) == as_lists(whole)


@examples(30)
@given(st.permutations(range(6)))
def test_the_order_of_rows_changes_nothing(order):
    shuffled = {name: [values[i] for i in order] for name, values in ROWS.items()}
    log = read(shuffled, columns=["ranker"])
    assert as_lists(log) == EXPECTED
    assert log.restore(np.array([row[3] for row in EXPECTED])).tolist() == shuffled["position"]
    assert log.arrange(np.array(shuffled["position"])).tolist() == log.positions.tolist()


def test_ids_of_text_files_are_integers_where_all_are_plain(tmp_path):
    (tmp_path / "log.csv").write_text("session,document,position,clicked\n7,007,1,true\n8,7,1,FALSE\n")
    log = read(tmp_path / "log.csv")
    assert log.session_ids.tolist() == [7, 8]
    assert log.document_ids.tolist() == ["007", "7"]
    assert log.clicked.tolist() == [True, False]
    assert log.query_ids.tolist() == [None]


def test_columns_by_other_names_and_documents_of_several():
    table = {"s": [1, 1], "kind": ["web", "image"], "grade": [2, 2], "p": [0, 1], "c": [True, False]}
    log = read(table, session="s", document=["kind", "grade"], position="p", clicked="c", zero_based=True)
    assert log.document_ids.tolist() == [("image", 2), ("web", 2)]
    assert log.positions.tolist() == [1, 2]


def test_the_log_cannot_be_changed():
    log = read()
    with pytest.raises(ValueError, match="read-only"):
        log.clicked[0] = True
    with pytest.raises(AttributeError, match="cannot assign"):
        log.clicked = log.clicked
    with pytest.raises(TypeError, match="does not support item assignment"):
        log.columns["x"] = log.clicked


def test_parts_of_a_log():
    log = read(columns=["ranker"])
    some = log.select([2, 0, 2])
    assert some.session_ids.tolist() == [3, 1, 3]
    assert some.lengths.tolist() == [2, 3, 2]
    assert some.column("ranker").tolist() == ["new"] * 2 + ["old"] * 3 + ["new"] * 2
    assert log.select(log.lengths > 1).n_sessions == 2
    empty = log.select([])
    assert (empty.n_sessions, empty.n_rows, empty.last_position) == (0, 0, 0)
    assert empty.describe().n_clicks == 0
    big = ClickLog.of(session=np.arange(100), document=[0] * 100, position=[1] * 100, clicked=[0] * 100)
    train, test = big.split(0.8, 0.2, seed=3)
    assert sorted([*train.session_ids, *test.session_ids]) == list(range(100))
    assert (train.n_sessions, test.n_sessions) == (80, 20)
    assert log.per_session(log.clicked).tolist() == [1, 0, 1]
    assert log.with_columns(extra=np.arange(6)).column("extra").tolist() == list(range(6))


# What looks wrong


def test_describe_counts_clicks_by_position():
    found = read().describe()
    assert (found.n_sessions, found.n_queries, found.n_documents, found.n_clicks) == (3, 2, 5, 2)
    assert found.shown == [3, 2, 1]
    assert found.click_through == [0, 0.5, 1]
    assert found.share_without_clicks == pytest.approx(1 / 3)
    assert found.problems == []
    assert "position" in str(found)


def test_describe_says_what_looks_wrong():
    table = {
        "session": [1, 1, 1, 2, 2, 3, 3, 4, 5, 5],
        "query": ["q"] * 5 + ["q", "r"] + ["q"] * 3,
        "document": ["a", "b", "c", "a", "a", "a", "a", "a", "a", "b"],
        "position": [1, 2, 9, 1, 2, 1, 1, 0, 1, 1],
        "clicked": [0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
    }
    log = read(table, on_error="drop")
    assert log.session_ids.tolist() == [1, 2, 3, 3]
    assert log.describe().problems == [
        "1 session left out: a position that is not an integer >= 1; if positions count from 0, read the log with"
        " zero_based=True",
        "1 session left out: two documents in one position",
        "1 session with gaps in their positions: rows of the list are missing",
        "1 session with clicks beyond the list: in positions below its length",
        "1 session mixing queries: each of their queries counts as a session",
        "1 session showing a document twice",
    ]
    with pytest.raises(
        tierank.DataError, match=r"log: expected all sessions.*, got a log from which 2 sessions were left"
    ):
        log.restore(np.zeros(log.n_rows))


def test_describe_knows_logs_with_nothing_or_only_clicks():
    table = {"session": [1] * 5, "document": range(5), "position": range(1, 6)}
    assert read(table | {"clicked": [0] * 5}).describe().problems == ["there are no clicks"]
    everything = read(table | {"clicked": [1] * 5}).describe()
    assert [problem.split(":")[0] for problem in everything.problems] == [
        "1 session of 5 documents or more in which all were clicked", "everything was clicked",
    ]  # fmt: skip
    assert everything.to_dict()["click_through"] == [1.0] * 5


@pytest.mark.parametrize("kind", ["table", "csv", "parquet"])
def test_a_log_of_clicks_alone_warns_where_it_is_read(kind, tmp_path):
    """Rows of what was not clicked are missing; one list in which all was clicked may be so."""
    frame = pd.DataFrame({"session": [1, 2, 3], "document": ["a", "b", "a"], "position": [1, 3, 2], "clicked": [1] * 3})
    source = frame if kind == "table" else tmp_path / f"log.{kind}"
    if kind != "table":
        getattr(frame, f"to_{kind}")(source)
    with pytest.warns(UserWarning, match="everything was clicked, so nothing can be learned about what") as seen:
        log = read(source)
    assert seen[0].filename == __file__ or kind == "parquet"
    with pytest.warns(UserWarning, match="everything in this log was clicked.*add the documents that were shown but"):
        tierank.clicks.judgements(log, "pbm")
    for clicked in ([1, 0, 1], [0, 0, 0]):
        read(frame.assign(clicked=clicked))
    read(frame[:1])


# Errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"position": [2, 0, 1, 3, 2, 1]},
            "table, row 1: position: expected an integer >= 1, got 0; if positions count",
        ),
        ({"position": [2, 1.5, 1, 3, 2, 1]}, "row 1: position: expected an integer >= 1, got 1.5"),
        ({"position": [2, "top", 1, 3, 2, 1]}, "row 1: position: expected an integer >= 1, got 'top'$"),
        ({"position": [2, None, 1, 3, 2, 1]}, "row 1: position: expected an integer >= 1, got none$"),
        ({"position": [2, 1, 1, 3, 2, 9999]}, "row 5: position: expected a position of at most 2,000, got 9999"),
        ({"position": [2, 2, 1, 3, 2, 1]}, "row 1: position: expected each position once per session and query, got 2"),
        ({"clicked": [1, 0, 0, 3, 0, 0]}, "row 3: clicked: expected 0 or 1, or a boolean, got 3; for counts"),
        ({"clicked": [1, 0, 0, None, 0, 0]}, "row 3: clicked: expected 0 or 1, or a boolean, got none"),
        (
            {"clicked": ["yes", "no", "no", "yes", "no", "no"]},
            "row 0: clicked: expected 0 or 1, or a boolean, got 'yes'; write 1 for a click and 0 for none",
        ),
        ({"session": [3, 3, None, 1, 1, 2]}, "row 2: session: expected a session id in every row, got none"),
        ({"query": ["s", None, "h", "h", "h", "s"]}, "row 1: query: expected a query id in every row"),
        ({"document": ["b", "", "x", "y", "z", "a"]}, "row 1: document: expected a document id in every row"),
        ({"clicked": [1, 0]}, "table: expected columns of one length"),
        ({"document": [[1, 2]] * 6}, "document: expected one value per row, got shape"),
    ],
)
def test_rows_that_cannot_be_used_are_named(change, message):
    with pytest.raises(tierank.DataError, match=message):
        read(ROWS | change)


ROLES = ("session", "query", "document", "position", "clicked")


@pytest.mark.parametrize(("one", "other"), list(combinations(ROLES, 2)))
def test_a_column_has_one_role(one, other):
    """Two roles are refused, except that the id of a query which was shown once is also that of its session."""
    log = {"session": [1, 2], "query": [1, 2], "document": [1, 2], "position": [1, 1], "clicked": [1, 0]}
    for role, column in ((one, other), (other, one)):
        if {one, other} == {"session", "query"}:
            assert read(log, **{role: column}).n_sessions == 2
            continue
        with pytest.raises(tierank.DataError, match=f"expected different columns for sessions, .*, got '{column}' for"):
            read(log, **{role: column})
    with pytest.raises(tierank.DataError, match="got 'document' for two of them"):
        read(log, document=["document", "document"])


@pytest.mark.parametrize("kind", ["csv", "folder"])
def test_a_value_that_is_not_a_number_is_shown_wherever_it_is(kind, tmp_path):
    """The first of them, in any chunk of a file."""
    n = 40_000 if kind == "csv" else 7
    frame = pd.DataFrame({"session": range(n), "document": "a", "position": 1, "clicked": "0"})
    frame.loc[n - 2, "clicked"], frame.loc[n - 1, "clicked"] = "maybe", "never"
    if kind == "csv":
        frame.to_csv(source := tmp_path / "log.csv")
    else:
        source = in_pieces(frame, tmp_path / "log", 2)
    with pytest.raises(tierank.DataError, match=f"row {n - 2}: clicked: .* got 'maybe'; write 1"):
        read(source)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"session": ["session"]}, r"session: expected the name of one column, got \['session'\]"),
        ({"document": [["a"]]}, r"document: expected the name of one column, got \['a'\]"),
        ({"columns": "ranker"}, r"columns: expected a list of names of columns, got 'ranker'; write \['ranker'\]"),
        ({"columns": 3}, "columns: expected a list of names of columns, got 3$"),
    ],
)
def test_names_of_columns_are_checked(named, message):
    with pytest.raises(tierank.ParameterError, match=message):
        read(**named)


def test_columns_of_pandas_may_be_numbered():
    frame = pd.DataFrame(dict(enumerate(ROWS.values())))
    log = read(frame, session=0, query=1, document=[2], position=3, clicked=4)
    assert as_lists(log) == as_lists(read(document=["document"]))


def test_errors_of_columns_and_files(tmp_path):
    with pytest.raises(tierank.DataError, match="clicked: expected a column called clicked or click, got the columns"):
        read({name: values for name, values in ROWS.items() if name != "clicked"})
    with pytest.raises(tierank.DataError, match="unknown column 'docment': did you mean 'document'"):
        read(document="docment")
    with pytest.raises(tierank.DataError, match="expected the column 'ranker' in the log"):
        read().column("ranker")
    with pytest.raises(tierank.DataError, match="nothing there"):
        read(tmp_path / "missing.csv")
    with pytest.raises(tierank.ParameterError, match="source: expected a path, a table or a dict of arrays, got int"):
        read(3)
    with pytest.raises(tierank.ParameterError, match="unknown on_error 'ignore'"):
        read(on_error="ignore")
    with pytest.raises(tierank.DataError, match="at least one session that can be used, got none: 1 with a click that"):
        read({"session": [1], "document": [1], "position": [1], "clicked": [7]}, on_error="drop")
    (tmp_path / "empty.csv").write_text("session,document,position,clicked\n")
    with pytest.raises(tierank.DataError, match="expected at least one row, got none"):
        read(tmp_path / "empty.csv")
    (tmp_path / "bad.parquet").write_text("nothing")
    with pytest.raises(tierank.DataError, match="expected a Parquet file"):
        read(tmp_path / "bad.parquet")
    with gzip.open(tmp_path / "cut.csv.gz", "wb") as file:
        file.write(b"session,document,position,clicked\n" + b"1,1,1,0\n" * 5000)
    (tmp_path / "cut.csv.gz").write_bytes((tmp_path / "cut.csv.gz").read_bytes()[:-20])
    with pytest.raises(tierank.DataError, match=r"cut\.csv\.gz"):
        read(tmp_path / "cut.csv.gz")
    with pytest.raises(tierank.ParameterError, match=r"expected a name that ends in \.csv or \.parquet"):
        read().write(tmp_path / "log.txt")
    with pytest.raises(tierank.ParameterError, match="positive numbers that add up to 1 or less"):
        read().split(0.9, 0.9)
    with pytest.raises(tierank.DataError, match="clicked: expected 6 values, one per row"):
        read().with_clicks([1, 0])


def test_real_sessions(real_data):
    log = read(real_data / "clicks" / "sessions.csv.gz", document=["kind", "grade"])
    assert (log.n_sessions, log.n_rows, int(log.clicked.sum())) == (20_000, 212_773, 21_088)
    rates = log.describe().click_through
    assert rates[0] == pytest.approx(0.3953, abs=1e-4)
    assert (np.diff(rates) < 0).all()


def test_ids_and_cells_that_numpy_would_change():
    """A list with an integer and a float, and integers beyond int64, would become floats, and two ids one."""
    log = ClickLog.of(
        session=[2**63, 2**63 + 1, -1], document=[2**60, 2**60 + 1, 0.5], position=[1] * 3, clicked=[1, 0, 1]
    )
    assert log.n_sessions == log.n_documents == 3
    assert log.session_ids.tolist() == [-1, 2**63, 2**63 + 1]
    hidden = np.ma.masked_array([1, 1, 2], [False, True, False])
    rest = {"document": [1, 2, 3], "clicked": [0, 1, 1]}
    with pytest.raises(tierank.DataError, match="row 1: session: expected a session id in every row, got none"):
        ClickLog.of(session=hidden, position=[1, 2, 1], **rest)
    with pytest.raises(tierank.DataError, match="row 1: position: expected an integer >= 1, got none"):
        ClickLog.of(session=[1, 2, 3], position=hidden, **rest)
    with pytest.raises(tierank.DataError, match="row 1: position: expected an integer >= 1, got 1000"):
        ClickLog.of(session=[1, 1, 2], position=[1, 10**400, 1], **rest)
    with pytest.raises(tierank.DataError, match="table: expected at least one row, got none"):
        ClickLog.of(session=[], document=[], position=[], clicked=[])


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_ids_of_several_types_are_not_written(tmp_path, ending):
    log = ClickLog.of(session=[1, "a"], document=["x", "y"], position=[1, 1], clicked=[0, 1])
    with pytest.raises(tierank.DataError, match="expected values of one type in the column 'session'"):
        log.write(tmp_path / f"log.{ending}")
    assert not list(tmp_path.iterdir())
    odd = ClickLog.of(session=['a\n"b', "é\0"], document=["x'", "\r\n"], position=[1, 1], clicked=[0, 1])
    odd.write(tmp_path / f"log.{ending}")
    assert read(tmp_path / f"log.{ending}").session_ids.tolist() == odd.session_ids.tolist()


def test_seeds_are_checked():
    with pytest.raises(tierank.ParameterError, match="seed: expected an integer >= 0, got -1"):
        read().split(0.5, seed=-1)


def test_names_of_columns_that_are_not_utf8(tmp_path):
    (tmp_path / "log.csv").write_bytes(b"session,document,position,clicked,caf\xe9\n1,a,1,1,2\n")
    with pytest.raises(tierank.DataError, match=r"log\.csv: expected names of columns in UTF-8, got b'caf"):
        read(tmp_path / "log.csv")


@pytest.mark.parametrize("role", ["session", "query", "document", "position", "clicked", "ranker"])
def test_a_column_that_is_there_twice_is_refused(tmp_path, role):
    """Which of the two was meant cannot be known; other columns may come twice."""
    frame = pd.DataFrame(ROWS)
    twice = pd.concat([frame, frame[[role]].iloc[::-1].reset_index(drop=True)], axis=1)
    arrow = pa.Table.from_arrays([pa.array(twice.iloc[:, k]) for k in range(twice.shape[1])], names=list(twice))
    twice.to_csv(tmp_path / "log.csv", index=False)
    for source in (twice, arrow, tmp_path / "log.csv"):
        with pytest.raises(tierank.DataError, match=f"expected each column once, got '{role}' twice; rename one of"):
            read(source, columns=["ranker"])
    other = pd.concat([frame, frame[["ranker"]]], axis=1)
    assert as_lists(read(other)) == as_lists(read())


@pytest.mark.parametrize("name", ["session", "query", "document", "position", "clicked"])
def test_a_kept_column_does_not_take_the_place_of_one_of_the_log(tmp_path, name):
    """``clicked`` was kept beside ``bought``, which says what was clicked: the file would have had the wrong one."""
    log = read({**ROWS, "bought": [1, 0] * 3}, clicked="bought", columns=["ranker"]).with_columns(**{name: [7] * 6})
    for write in (log.to_columns, lambda: log.write(tmp_path / "log.csv")):
        with pytest.raises(tierank.DataError, match=f"expected names other than session, .* got a column '{name}'"):
            write()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ([0.5, 1.5, 2.5], ["3", "x", None], [0.5, 1.5, 2.5, "3", "x", None]),
        (["3", "x", None], [0.5, 1.5, np.nan], ["3", "x", None, 0.5, 1.5, None]),
        (["3", "4", "5"], [7, 8, 9], [3.0, 4.0, 5.0, 7.0, 8.0, 9.0]),
        ([True, False, True], [7, 8, 9], [1, 0, 1, 7, 8, 9]),
    ],
)
def test_the_files_of_a_folder_may_have_texts_and_numbers_in_a_column(tmp_path, first, second, kept):
    for k, values in enumerate((first, second)):
        rows = {"session": [k] * 3, "document": list("abc"), "position": [1, 2, 3], "clicked": [0, 1, 0], "x": values}
        pd.DataFrame(rows).to_parquet(tmp_path / f"{k}.parquet")
    assert read(tmp_path, columns=["x"]).column("x").tolist() == kept


@pytest.mark.parametrize(("n_columns", "n_values"), [(2, 3), (33, 3), (9, 255), (70, 1)])
def test_documents_of_many_columns_stay_apart(n_columns, n_values):
    """As one integer, a document of 33 columns with 3 values each would have lost its first column."""
    n = 2 * n_values
    cells = np.tile(np.arange(n) % n_values, (n_columns, 1))
    cells[0, n_values:] = np.roll(cells[0, n_values:], 1)  # the second half differs from the first in one column
    table = {f"d{k}": values for k, values in enumerate(cells)}
    log = read({**table, "session": range(n), "position": [1] * n, "clicked": [0] * n}, document=list(table))
    assert log.n_documents == len(set(map(tuple, cells.T.tolist())))
    assert log.document_ids[log.documents].tolist() == list(map(tuple, cells.T.tolist()))


def test_cells_of_several_lines_in_files_of_many_blocks(tmp_path):
    """Arrow reads a megabyte at a time, and cells in quotes may cross its borders."""
    n = 20_000
    table = {
        "session": np.arange(n) // 2,
        "query": np.repeat([f'q\n{k % 50}, "x"' for k in range(n // 2)], 2),
        "document": ["a" * 60 + "\n\n", "b\r\n" + "c" * 60] * (n // 2),
        "position": [1, 2] * (n // 2),
        "clicked": [0, 1] * (n // 2),
    }
    pd.DataFrame(table).to_csv(tmp_path / "log.csv", index=False)
    assert (tmp_path / "log.csv").stat().st_size > 1 << 20
    assert as_lists(read(tmp_path / "log.csv")) == as_lists(read(table))


@pytest.mark.parametrize("clicked", [[0, 2, 0, 0, 0, 0], [0.5] * 6, [np.nan] * 6, [None] * 6, ["0"] * 6])
def test_other_clicks_are_checked_as_those_of_a_log(clicked):
    with pytest.raises(tierank.DataError, match=r"clicked: expected (0 or 1, or booleans|numbers), got"):
        read().with_clicks(clicked)


@pytest.mark.parametrize("wrong", ["x", ["x"] * 6, [1.0] * 5, [[1.0]] * 6, [1j] * 6, object(), [], [[1.0], [2.0, 3.0]]])
def test_numbers_that_are_none_are_told_by_name(wrong):
    """Of every function of clicks that takes one number per row, or a matrix of them."""
    data = tierank.RankingDataset(np.eye(6), [0, 1, 2, 0, 1, 2], qid=[0] * 6)
    calls = {
        "values": lambda: read().per_session(wrong),
        "scores": lambda: tierank.clicks.simulate_clicks(data, wrong, n_sessions=5),
        "propensities": lambda: tierank.clicks.evaluate_ranking(read(), [1.0] * 6, wrong),
        "features": lambda: tierank.clicks.estimate_propensities(
            tierank.clicks.read({**ROWS, "clicked": [1, 0] * 3}), "regression", features=wrong, n_bootstrap=0
        ),
    }
    accepted = {"propensities": [[1.0] * 5], "features": [[[1.0]] * 6]}
    for name, call in calls.items():
        if wrong in accepted.get(name, []):
            continue
        with pytest.raises(tierank.TierankError, match=f"{name}: |columns: expected the column|lists of equal length"):
            call()
