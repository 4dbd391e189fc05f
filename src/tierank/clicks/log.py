"""ClickLog: the lists that were shown, and their clicks; the checks of its rows, and its description."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.arrays import Floats
from tierank.data.checks import as_array, as_clicks, as_numbers, as_places, is_missing, short_repr
from tierank.errors import DataError, DataTypeError, ParameterError
from tierank.files import as_path, for_json, replacing
from tierank.io.layout import PARQUET_ENDINGS, first_line, needs_arrow
from tierank.settings import as_whole

Ints = NDArray[np.int64]

# Columns that every log has.
_OWN = ("session", "query", "document", "position", "clicked")
# The largest position that is allowed: models have a parameter for each position, or each pair of them.
_LAST_POSITION = 2000
# Sessions in which everything was clicked are suspicious if they are at least this long.
_LONG = 5


@dataclass(frozen=True)
class LogDescription:
    """The result of ``ClickLog.describe``.

    ``shown`` and ``click_through`` have one value per position, from the top; the click-through rate of a position is
    clicks / times shown, NaN if nothing was shown. ``problems`` describes what looks wrong.
    """

    n_sessions: int
    n_queries: int
    n_documents: int
    n_rows: int
    n_clicks: int
    clicks_per_session: float
    share_without_clicks: float
    shown: list[int]
    click_through: list[float]
    problems: list[str]

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON with all fields; unknown rates are None."""
        return for_json(asdict(self))

    def __str__(self) -> str:
        head = (
            f"{self.n_sessions:,} sessions, {self.n_queries:,} queries, {self.n_documents:,} documents,"
            f" {self.clicks_per_session:.2f} clicks per session, {self.share_without_clicks:.1%} of sessions without"
        )
        rows = [
            f"{k:>8} {n:>11,} {rate:>14.4f}"
            for k, (n, rate) in enumerate(zip(self.shown, self.click_through, strict=True), 1)
        ]
        table = [f"{'position':>8} {'shown':>11} {'click-through':>14}", *rows]
        return "\n".join([head, *table, *(f"looks wrong: {problem}" for problem in self.problems)])


@dataclass(frozen=True, eq=False, repr=False)
class ClickLog:
    """The lists that were shown, one per session, and their clicks. Created by ``tierank.clicks.read``.

    A session is one list that was shown for one query. Session s has the rows ``offsets[s]:offsets[s+1]``, in the order
    of their positions. Sessions are ordered by id, so the order of the rows in a file does not matter. The arrays are
    read-only.

    Parameters
    ----------
    offsets : array of int64, shape (n_sessions + 1,)
        Where each session begins, and where the last one ends.
    queries : array of int64, shape (n_sessions,)
        The query of each session, an index into ``query_ids``.
    documents : array of int64, shape (n_rows,)
        The document of each row, an index into ``document_ids``.
    positions : array of int64, shape (n_rows,)
        Where the document was shown; 1 is the top.
    clicked : array of bool, shape (n_rows,)
        Whether it was clicked.
    session_ids, query_ids, document_ids : arrays
        The ids as in the file; ``session_ids`` has one per session.
    columns : mapping of str to array, default {}
        Other columns that were kept, one value per row.
    source_rows : array of int64, optional
        The caller's row number of each row; None if the rows were already in this order.
    n_mixed : int, default 0
        Number of session ids with more than one query; each of their queries is a session here.
    dropped : mapping of str to int, default {}
        Number of sessions left out when the log was read, by reason.
    """

    offsets: Ints
    queries: Ints
    documents: Ints
    positions: Ints
    clicked: NDArray[np.bool_]
    session_ids: NDArray[Any]
    query_ids: NDArray[Any]
    document_ids: NDArray[Any]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    source_rows: Ints | None = None
    n_mixed: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                object.__setattr__(self, name, _read_only(value))
        columns = {name: _read_only(values) for name, values in self.columns.items()}
        object.__setattr__(self, "columns", MappingProxyType(columns))
        object.__setattr__(self, "dropped", MappingProxyType(dict(self.dropped)))

    def __repr__(self) -> str:
        return (
            f"ClickLog({_counted(self.n_sessions, 'session')}, {_counted(self.n_queries, 'query', 'queries')},"
            f" {_counted(self.n_rows, 'row')}, {_counted(int(self.clicked.sum()), 'click')})"
        )

    @property
    def n_sessions(self) -> int:
        """Number of lists that were shown."""
        return len(self.offsets) - 1

    @property
    def n_rows(self) -> int:
        """Number of documents shown, over all sessions."""
        return len(self.positions)

    @property
    def n_queries(self) -> int:
        """Number of different queries in these sessions."""
        return len(np.unique(self.queries))

    @property
    def n_documents(self) -> int:
        """Number of different documents in these sessions."""
        return len(np.unique(self.documents))

    @property
    def lengths(self) -> Ints:
        """Number of documents shown in each session."""
        return np.diff(self.offsets)

    @property
    def last_position(self) -> int:
        """The largest position where a document was shown; 0 without rows."""
        return int(self.positions.max(initial=0))

    @property
    def session_of_row(self) -> Ints:
        """The index of the session that each row belongs to."""
        return np.repeat(np.arange(self.n_sessions), self.lengths)

    @property
    def query_of_row(self) -> Ints:
        """The index into ``query_ids`` for each row."""
        return np.repeat(self.queries, self.lengths)

    def per_session(self, values: ArrayLike) -> Floats:
        """The sum of one value per row over each session; 0 for an empty list.

        Parameters
        ----------
        values : array
            One value per row.

        Returns
        -------
        array of float64, shape (n_sessions,)
            The sums.
        """
        given = as_numbers(as_array(values), "values").astype(np.float64)
        if given.shape != (self.n_rows,):
            expected = f"{self.n_rows} numbers, one per row"
            raise DataError(argument="values", expected=expected, got=f"shape {given.shape}")
        return sum_by(self.session_of_row, given, self.n_sessions)

    def column(self, name: str) -> NDArray[Any]:
        """A column that was kept when the log was read. The error for other columns says how to keep them.

        Parameters
        ----------
        name : str
            The name of the column.

        Returns
        -------
        array
            One value per row.
        """
        if name not in self.columns:
            got = f"a log that kept {', '.join(self.columns) or 'no other columns'}"
            fix = f"read the log with `columns`=[{name!r}]"
            raise DataError(argument="columns", expected=f"the column {name!r} in the log", got=got, fix=fix)
        return self.columns[name]

    def select(self, sessions: ArrayLike) -> ClickLog:
        """The log of some sessions.

        Parameters
        ----------
        sessions : array
            The indices of the sessions, or a mask. An index that is given twice makes two sessions.

        Returns
        -------
        ClickLog
            The sessions, in this order.

        Examples
        --------
        >>> log = ClickLog.of(session=[1, 1, 2], document=["a", "b", "a"], position=[1, 2, 1], clicked=[0, 1, 1])
        >>> log.select([1]).session_ids.tolist()
        [2]
        """
        chosen = as_places(sessions, self.n_sessions, "sessions", "sessions")
        lengths = self.lengths[chosen]
        offsets = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][chosen] - offsets[:-1], lengths)
        return replace(
            self,
            offsets=offsets,
            queries=self.queries[chosen],
            documents=self.documents[rows],
            positions=self.positions[rows],
            clicked=self.clicked[rows],
            session_ids=self.session_ids[chosen],
            columns={name: values[rows] for name, values in self.columns.items()},
            source_rows=None,
        )

    def split(self, *shares: float, seed: int = 0) -> list[ClickLog]:
        """Split the log into parts of whole sessions, drawn at random: ``train, test = log.split(0.8, 0.2)``.

        Parameters
        ----------
        *shares : float
            The size of each part as a fraction of the sessions. Their sum is at most 1.
        seed : int, default 0
            Random seed.

        Returns
        -------
        list of ClickLog
        """
        if not shares or min(shares) <= 0 or sum(shares) > 1 + 1e-9:
            expected = "positive numbers that add up to 1 or less"
            raise ParameterError(argument="shares", expected=expected, got=f"{shares}")
        order = np.random.default_rng(as_whole("seed", seed, 0)).permutation(self.n_sessions)
        cuts = np.rint(np.cumsum([0.0, *shares]) * self.n_sessions).astype(np.int64)
        return [self.select(np.sort(order[a:b])) for a, b in pairwise(cuts)]

    def with_clicks(self, clicked: ArrayLike) -> ClickLog:
        """The same lists with other clicks, one value per row in the order of this log.

        Parameters
        ----------
        clicked : array of bool
            One value per row, in the order of this log.

        Returns
        -------
        ClickLog
            The new log.
        """
        return replace(self, clicked=as_clicks(clicked, self.n_rows))

    def with_columns(self, **columns: ArrayLike) -> ClickLog:
        """The same log with more columns, one value per row in the order of this log.

        Parameters
        ----------
        **columns : array
            One value per row, in the order of this log, for each name.

        Returns
        -------
        ClickLog
            The new log.
        """
        added = {name: np.array(values) for name, values in columns.items()}
        for name, values in added.items():
            if len(values) != self.n_rows:
                raise DataError(argument=name, expected=f"{self.n_rows} values, one per row", got=f"{len(values)}")
        return replace(self, columns={**self.columns, **added})

    def arrange(self, values: NDArray[Any]) -> NDArray[Any]:
        """Convert per-row values from the caller's order to the order of this log.

        Parameters
        ----------
        values : array
            One value per row, in the caller's order.

        Returns
        -------
        array
            The same values, in the order of this log.
        """
        return values if self.source_rows is None else values[self.source_rows]

    def restore(self, values: NDArray[Any]) -> NDArray[Any]:
        """Convert per-row values from the order of this log back to the caller's order.

        Sessions that were left out have no rows here, so this needs a log that was read with ``on_error="raise"``.

        Parameters
        ----------
        values : array
            One value per row, in the order of this log.

        Returns
        -------
        array
            The same values, in the caller's order.
        """
        if self.source_rows is None:
            return values
        if self.dropped:
            got = f"a log from which {_counted(sum(self.dropped.values()), 'session was', 'sessions were')} left out"
            expected = "all sessions, to know the order of the caller's rows"
            raise DataError(argument="log", expected=expected, got=got, fix='read it with `on_error`="raise"')
        restored = np.empty_like(values)
        restored[self.source_rows] = values
        return restored

    def describe(self) -> LogDescription:
        """Click-through by position, counts, and what looks wrong.

        Returns
        -------
        LogDescription
            Click-through by position, counts and problems.
        """
        shown = np.bincount(self.positions - 1, minlength=self.last_position)
        clicks = np.bincount(self.positions - 1, self.clicked, minlength=self.last_position)
        with np.errstate(invalid="ignore", divide="ignore"):
            rates = clicks / shown
        per_session = self.per_session(self.clicked)
        return LogDescription(
            n_sessions=self.n_sessions,
            n_queries=self.n_queries,
            n_documents=self.n_documents,
            n_rows=self.n_rows,
            n_clicks=int(self.clicked.sum()),
            clicks_per_session=float(per_session.mean()) if self.n_sessions else 0.0,
            share_without_clicks=float((per_session == 0).mean()) if self.n_sessions else 0.0,
            shown=shown.tolist(),
            click_through=rates.tolist(),
            problems=_find_problems(self, per_session),
        )

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """The log as a table: one array per column, one value per row; without ``query`` if there is only one.

        Returns
        -------
        dict of str to array
            The columns by name.
        """
        has_queries = self.query_ids.tolist() != [None]
        taken = next((name for name in self.columns if name in _OWN), None)
        if taken is not None:
            expected = f"names other than {', '.join(_OWN)}, which the log has itself"
            fix = "read the log without it, or under another name"
            raise DataError(argument="columns", expected=expected, got=f"a column {taken!r} that was kept", fix=fix)
        return {
            "session": self.session_ids[self.session_of_row],
            **({"query": self.query_ids[self.query_of_row]} if has_queries else {}),
            "document": flat_ids(self.document_ids)[self.documents],
            "position": self.positions,
            "clicked": self.clicked.astype(np.int64),
            **self.columns,
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the log as CSV or Parquet, by the ending of ``path``.

        Parameters
        ----------
        path : path
            The file, which ends in ``.csv`` or ``.parquet``.
        """
        write_columns(self.to_columns(), as_path(path))

    @classmethod
    def of(cls, **columns: ArrayLike) -> ClickLog:
        """A log from arrays: the same as ``tierank.clicks.read`` with a dict of arrays.

        Parameters
        ----------
        **columns : array
            The columns of ``tierank.clicks.read`` by their default names.

        Returns
        -------
        ClickLog
            The log.
        """
        from tierank.clicks.reading import read

        others = [name for name in columns if name not in _OWN]
        return read(columns, columns=others)


def _find_problems(log: ClickLog, clicks_per_session: Floats) -> list[str]:
    """What looks wrong in a log, each with the number of sessions."""
    lengths = log.lengths
    last = np.zeros(log.n_sessions, np.int64)
    np.maximum.at(last, log.session_of_row, log.positions)
    is_beyond = log.clicked & (log.positions > np.repeat(lengths, lengths))
    key = log.session_of_row * len(log.document_ids) + log.documents
    unique, counts = np.unique(key, return_counts=True)
    # A document of several columns is a kind of documents, which a list may repeat.
    is_kind = isinstance(log.document_ids[0], tuple)
    repeated = 0 if is_kind else len(np.unique(unique[counts > 1] // len(log.document_ids)))
    all_clicked = int(((clicks_per_session == lengths) & (lengths >= _LONG)).sum())
    suspicions = (
        *((n, f"left out: {reason}") for reason, n in log.dropped.items()),
        (int((last > lengths).sum()), "with gaps in their positions: rows of the list are missing"),
        (len(np.unique(log.session_of_row[is_beyond])), "with clicks beyond the list: in positions below its length"),
        (log.n_mixed, "mixing queries: each of their queries counts as a session"),
        (repeated, "showing a document twice"),
        (all_clicked, f"of {_LONG} documents or more in which all were clicked: robots?"),
    )
    problems = [f"{_counted(n, 'session')} {what}" for n, what in suspicions if n]
    if not log.clicked.any():
        problems.append("there are no clicks")
    elif log.clicked.all():
        problems.append("everything was clicked: are rows of documents that were not clicked missing?")
    return problems


def assemble(
    codes: dict[str, NDArray[Any]],
    ids: dict[str, NDArray[Any]],
    columns: Mapping[str, NDArray[Any]],
    not_numbers: Mapping[str, Any],
    where: str,
    *,
    zero_based: bool,
    must_raise: bool,
) -> ClickLog:
    """A log of some rows, grouped by session and ordered by position.

    ``codes`` holds the position and the click of each row, unchecked, and its session, query and document as indices
    into ``ids``, -1 if missing; ``not_numbers`` the first position and the first click that is no number. Raises
    ``DataError`` for a row that cannot be used, or leaves out its session.
    """
    for name in ids:  # in the order of the ids, so that the order of the rows does not matter
        ids[name], codes[name] = _sorted(ids[name], codes[name])
    session, query, clicked = codes["session"], codes["query"], codes["clicked"]
    position = codes["position"] + np.float32(zero_based)
    order = np.lexsort((position, query, session))
    dropped: dict[str, int] = {}
    keep = np.ones(len(order), bool)
    for reason, is_bad, argument, expected, values, fix in _invalid_rows(codes, position, order, not_numbers):
        if not is_bad.any():
            continue
        if must_raise:
            row = int(is_bad.argmax())
            got = "none" if values is None else f"{values[row]:g}"
            if got == "nan":  # the first one in the column
                value = not_numbers[argument]
                got = "none" if is_missing(value) or value == "" else short_repr(value)
            got += " twice" * reason.startswith("two")
            raise DataError(where=f"{where}, row {row}", argument=argument, expected=expected, got=got, fix=fix)
        sessions = np.unique(session[is_bad])
        dropped[reason] = len(sessions)
        keep &= ~np.isin(session, sessions)
    rows = order[keep[order]]
    if not len(rows):
        reasons = " and ".join(f"{n:,} with {reason}" for reason, n in dropped.items())
        got, _, fix = f"none: {reasons}".partition("; ")
        raise DataError(where=where, expected="at least one session that can be used", got=got, fix=fix or None)
    session, query = session[rows], query[rows]
    is_new = np.concatenate([[True], (session[1:] != session[:-1]) | (query[1:] != query[:-1])])
    starts = np.flatnonzero(is_new)
    is_sorted = len(rows) == len(position) and bool((np.diff(rows) == 1).all())
    return ClickLog(
        offsets=np.append(starts, len(rows)).astype(np.int64),
        queries=query[starts].astype(np.int64),
        documents=codes["document"][rows].astype(np.int64),
        positions=position[rows].astype(np.int64),
        clicked=clicked[rows] > 0,
        session_ids=ids["session"][session[starts]],
        query_ids=ids["query"],
        document_ids=ids["document"],
        columns={name: values[rows] for name, values in columns.items()},
        source_rows=None if is_sorted else rows,
        n_mixed=int((np.bincount(session[starts]) > 1).sum()),
        dropped=dropped,
    )


def _sorted(ids: NDArray[Any], codes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    values = ids.tolist()
    try:
        order = sorted(range(len(values)), key=values.__getitem__)
    except TypeError:  # several types, such as 1 and "1": by type, then by value
        order = sorted(range(len(values)), key=lambda i: (type(values[i]).__name__, str(values[i])))
    places = np.empty(len(values) + 1, np.int32 if len(values) < 1 << 31 else np.int64)
    places[order], places[-1] = np.arange(len(values)), -1  # the last entry is for missing ids
    return ids[order], places[codes]


def _invalid_rows(
    codes: Mapping[str, NDArray[Any]], position: NDArray[np.floating], order: Ints, not_numbers: Mapping[str, Any]
) -> list[tuple[str, NDArray[np.bool_], str, str, NDArray[Any] | None, str | None]]:
    """What can be wrong with a row: the reason, the rows, the argument, what is expected, the values, and the fix."""
    given, clicked = codes["position"], codes["clicked"]
    with np.errstate(invalid="ignore"):
        is_position = (position >= 1) & (position == np.rint(position))
        is_too_far = is_position & (position > _LAST_POSITION)
    hint = "if positions count from 0, read the log with zero_based=True" if (given == 0).any() else None
    no_integer = "a position that is not an integer >= 1" + (f"; {hint}" if hint else "")
    no_click = (
        "write 1 for a click and 0 for none" if "clicked" in not_numbers else "for counts of clicks, pass counts > 0"
    )
    is_no_click = (clicked != 0) & (clicked != 1)
    is_same = np.ones(len(order) - 1, bool)
    for values in (codes["session"], codes["query"], position):
        is_same &= values[order[1:]] == values[order[:-1]]
    is_repeat = np.zeros(len(order), bool)
    is_repeat[order[1:]] = is_same
    ids = ((name, codes[name] < 0) for name in ("session", "query", "document"))
    far, twice = f"a position of at most {_LAST_POSITION:,}", "each position once per session and query"
    apart = "give each list that was shown a different session id"
    return [
        *((f"no {name} id", is_bad, name, f"a {name} id in every row", None, None) for name, is_bad in ids),
        (no_integer, ~is_position, "position", "an integer >= 1", given, hint),
        (f"a position beyond {_LAST_POSITION:,}", is_too_far, "position", far, given, "leave out the rows below"),
        ("a click that is not 0 or 1", is_no_click, "clicked", "0 or 1, or a boolean", clicked, no_click),
        ("two documents in one position", is_repeat, "position", twice, position, apart),
    ]


def check_log(log: object) -> None:
    """Raise ``DataError`` if this is not a log, such as the table that one is read from."""
    if not isinstance(log, ClickLog):
        fix = "read it first: log = tierank.clicks.read(...)"
        raise DataTypeError(argument="log", expected="a ClickLog", got=type(log).__name__, fix=fix)


def sum_by(places: Ints, values: NDArray[Any], n: int) -> Floats:
    """The sums of the values by index, for n indices."""
    return np.asarray(np.bincount(places, values, minlength=n), np.float64)


def check_ending(path: Path) -> None:
    """Raise ``ParameterError`` unless the name has an ending of CSV or Parquet."""
    if path.suffix not in (".csv", *PARQUET_ENDINGS):
        raise ParameterError(where=path, expected=f"a name that ends in .csv or {PARQUET_ENDINGS[0]}", got=path.name)


def write_columns(columns: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Write a table as CSV or Parquet, by the ending of ``path``, atomically."""
    arrow = needs_arrow("CSV and Parquet")
    import pyarrow.csv
    import pyarrow.parquet

    check_ending(path)
    name = ""
    try:
        arrays = {}
        for name, values in columns.items():
            arrays[name] = arrow.array(values.tolist())
            if path.suffix == ".csv" and arrow.types.is_nested(arrays[name].type):
                raise arrow.ArrowInvalid(f"a list such as {values[0]!r}")
    except (arrow.ArrowException, OverflowError) as error:
        expected = f"values of one type in the column {name!r}, numbers or texts"
        raise DataError(where=path, expected=expected, got=f": {first_line(error)}") from None
    with replacing(path) as fresh, fresh.open("wb") as file:
        write = pyarrow.csv.write_csv if path.suffix == ".csv" else pyarrow.parquet.write_table
        write(arrow.table(arrays), file)


def flat_ids(ids: NDArray[Any]) -> NDArray[Any]:
    """Ids that a file can hold: ids of several columns are joined."""
    if len(ids) and isinstance(ids[0], tuple):
        return np.array(["|".join(map(str, one)) for one in ids.tolist()], object)
    return ids


def _read_only(values: NDArray[Any]) -> NDArray[Any]:
    """A read-only view. An array that is already read-only stays the same object, by which models recognise its ids."""
    if not values.flags.writeable and values.flags.c_contiguous:
        return values
    view = np.ascontiguousarray(values).view()
    view.flags.writeable = False
    return view


def _counted(n: int, one: str, many: str = "") -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"
