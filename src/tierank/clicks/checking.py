"""Turns the columns of a click log into a ClickLog, or raises an error that names the row and the fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.checks import is_missing, short_repr
from tierank.clicks.log import ClickLog, Ints
from tierank.errors import DataError

# The largest position that is allowed: models have a parameter for each position, or each pair of them.
LAST_POSITION = 2000


class Columns(NamedTuple):
    """The columns of a log: ids as codes, -1 if missing; positions and clicks unchecked."""

    session: NDArray[Any]
    query: NDArray[Any]
    document: NDArray[Any]
    position: NDArray[np.floating]
    clicked: NDArray[np.floating]
    session_ids: NDArray[Any]
    query_ids: NDArray[Any]
    document_ids: NDArray[Any]
    others: Mapping[str, NDArray[Any]]
    odd: Mapping[str, Any]  # of positions and clicks, the first value that is not a number


class _Problem(NamedTuple):
    """Rows that cannot be used."""

    reason: str
    is_bad: NDArray[np.bool_]
    argument: str
    expected: str
    got: NDArray[Any] | None
    fix: str | None = None


def assemble(given: Columns, where: str, *, zero_based: bool = False, must_raise: bool = True) -> ClickLog:
    """A log of these rows, grouped by session and ordered by position."""
    given = table = _in_order_of_ids(given)  # lets go of the old columns
    position = table.position + np.float32(zero_based)
    order = np.lexsort((position, table.query, table.session))
    dropped: dict[str, int] = {}
    keep = np.ones(len(order), bool)
    for problem in _problems(table, position, order):
        if problem.is_bad.any():
            if must_raise:
                raise _error(problem, where, table.odd)
            sessions = np.unique(table.session[problem.is_bad])
            dropped[problem.reason] = len(sessions)
            keep &= ~np.isin(table.session, sessions)
    rows = order[keep[order]]
    if not len(rows):
        reasons = "; ".join(f"{n:,} with {reason}" for reason, n in dropped.items())
        raise DataError(where=where, expected="at least one session that can be used", got=f"none: {reasons}")
    session, query = table.session[rows], table.query[rows]
    is_new = np.concatenate([[True], (session[1:] != session[:-1]) | (query[1:] != query[:-1])])
    starts = np.flatnonzero(is_new)
    is_sorted = len(rows) == len(position) and bool((np.diff(rows) == 1).all())
    return ClickLog(
        offsets=np.append(starts, len(rows)).astype(np.int64),
        queries=query[starts].astype(np.int64),
        documents=table.document[rows].astype(np.int64),
        positions=position[rows].astype(np.int64),
        clicked=table.clicked[rows] > 0,
        session_ids=table.session_ids[session[starts]],
        query_ids=table.query_ids,
        document_ids=table.document_ids,
        columns={name: values[rows] for name, values in table.others.items()},
        source_rows=None if is_sorted else rows,
        n_mixed=int((np.bincount(session[starts]) > 1).sum()),
        dropped=dropped,
    )


def _in_order_of_ids(table: Columns) -> Columns:
    """Codes in the order of the ids, so that the order of the rows does not matter."""
    session_ids, session = _sorted(table.session_ids, table.session)
    query_ids, query = _sorted(table.query_ids, table.query)
    document_ids, document = _sorted(table.document_ids, table.document)
    return table._replace(
        session_ids=session_ids,
        session=session,
        query_ids=query_ids,
        query=query,
        document_ids=document_ids,
        document=document,
    )


def _sorted(ids: NDArray[Any], numbers: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    values = ids.tolist()
    try:
        order = sorted(range(len(values)), key=values.__getitem__)
    except TypeError:  # several types, such as 1 and "1": by type, then by value
        order = sorted(range(len(values)), key=lambda i: (type(values[i]).__name__, str(values[i])))
    places = np.empty(len(values) + 1, np.int32 if len(values) < 1 << 31 else np.int64)
    places[order], places[-1] = np.arange(len(values)), -1  # the last entry is for missing ids
    return ids[order], places[numbers]


def _problems(table: Columns, position: NDArray[np.floating], order: Ints) -> list[_Problem]:
    clicked = table.clicked
    with np.errstate(invalid="ignore"):
        is_position = (position >= 1) & (position == np.rint(position))
        too_low = position > LAST_POSITION
    ids = [
        _Problem(f"no {name} id", numbers < 0, name, f"a {name} id in every row", None)
        for name, numbers in (("session", table.session), ("query", table.query), ("document", table.document))
    ]
    return [
        *ids,
        _Problem(
            "a position that is not an integer >= 1",
            ~is_position,
            "position",
            "an integer >= 1",
            table.position,
            "if positions count from 0, say so with `zero_based`" if (table.position == 0).any() else None,
        ),
        _Problem(
            f"a position beyond {LAST_POSITION:,}",
            is_position & too_low,
            "position",
            f"a position of at most {LAST_POSITION:,}",
            table.position,
            "leave out the rows below",
        ),
        _Problem(
            "a click that is not 0 or 1",
            ~((clicked == 0) | (clicked == 1)),
            "clicked",
            "0 or 1, or a boolean",
            clicked,
            "write 1 for a click and 0 for none" if "clicked" in table.odd else "for counts of clicks, pass counts > 0",
        ),
        _Problem(
            "two documents in one position",
            _repeats(table, position, order),
            "position",
            "each position once per session and query",
            position,
            "give each list that was shown a different session id",
        ),
    ]


def _repeats(table: Columns, position: NDArray[np.floating], order: Ints) -> NDArray[np.bool_]:
    """Rows with the position of an earlier row of the same list."""
    is_same = np.ones(len(order) - 1, bool)
    for values in (table.session, table.query, position):
        is_same &= values[order[1:]] == values[order[:-1]]
    repeats = np.zeros(len(order), bool)
    repeats[order[1:]] = is_same
    return repeats


def _error(problem: _Problem, where: str, odd: Mapping[str, Any]) -> DataError:
    row = int(problem.is_bad.argmax())
    got = "none" if problem.got is None else f"{problem.got[row]:g}"
    if got == "nan":  # the first one in the column
        value = odd[problem.argument]
        got = "none" if is_missing(value) or value == "" else short_repr(value)
    if problem.reason.startswith("two"):
        got += " twice"
    return DataError(
        where=f"{where}, row {row}", argument=problem.argument, expected=problem.expected, got=got, fix=problem.fix
    )
