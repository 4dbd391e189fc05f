"""Reading click logs: files in chunks and tables in memory, with ids encoded as integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.clicks.checking import Columns, assemble
from tierank.clicks.codes import Codes, Column, Encoded, as_numbers, small, value_at
from tierank.clicks.log import ClickLog
from tierank.clicks.sources import open_source, path_of
from tierank.errors import DataError
from tierank.readers.columns import DOCUMENT_NAMES, PARQUET_ENDINGS, QUERY_NAMES
from tierank.readers.paths import kind_of, piped
from tierank.readers.signatures import naming_content
from tierank.settings import as_choice, as_flag
from tierank.tables import as_name, as_name_list, check_columns, is_table

# Default names of columns.
_NAMES = {
    "session": ("session", "session_id"),
    "query": QUERY_NAMES,
    "document": DOCUMENT_NAMES,
    "position": ("position", "rank"),
    "clicked": ("clicked", "click"),
}


def read(
    source: Any,
    *,
    session: str | None = None,
    query: str | None = None,
    document: str | Sequence[str] | None = None,
    position: str | None = None,
    clicked: str | None = None,
    columns: Sequence[str] = (),
    zero_based: bool = False,
    on_error: str = "raise",
) -> ClickLog:
    """Read a click log: one row per document shown, clicked or not.

    Files are read in chunks. Memory holds some tens of bytes per row, and each different id once.

    Parameters
    ----------
    source : path, table or mapping of arrays
        A CSV file (also ``.tsv`` and ``.gz``), a Parquet file or a folder of them; a pandas, polars or Arrow table;
        or a dict with one array per column.
    session : str, optional
        The column that says which list a row belongs to. Default: ``session`` or ``session_id``.
    query : str, optional
        The column of query ids. Default: ``query``, ``qid`` or ``query_id``; if the log has none of them, all lists
        belong to one query.
    document : str or list of str, optional
        The column of document ids. Default: ``document``, ``document_id``, ``docid`` or ``doc_id``. With several
        columns, the values of all of them together identify a document.
    position : str, optional
        The column of positions, integers >= 1 from the top. Default: ``position`` or ``rank``.
    clicked : str, optional
        The column that says what was clicked: 0 and 1, or booleans. Default: ``clicked`` or ``click``.
    columns : list of str, default ()
        Other columns to keep, such as ``ranker``.
    zero_based : bool, default False
        Whether positions count from 0.
    on_error : {"raise", "drop"}, default "raise"
        What to do with an invalid row: raise an error that names it, or leave its session out and count it.

    Returns
    -------
    ClickLog

    Examples
    --------
    >>> log = read({"session": [1, 1, 2], "query": ["shoe"] * 3, "document": ["a", "b", "a"],
    ...             "position": [1, 2, 1], "clicked": [0, 1, 1]})
    >>> log
    ClickLog(2 sessions, 1 query, 3 rows, 2 clicks)
    """
    as_flag("zero_based", zero_based)
    as_choice("on_error", on_error, ["raise", "drop"])
    wanted: dict[str, Any] = {
        "session": session,
        "query": query,
        "document": document,
        "position": position,
        "clicked": clicked,
    }
    if not isinstance(source, Mapping) and not is_table(source):
        path = path_of(source)
        if kind_of(path) == "pipe":
            with piped(path) as file:
                return read(file, **wanted, columns=columns, zero_based=zero_based, on_error=on_error)
        is_csv = kind_of(path) == "file" and path.suffix not in PARQUET_ENDINGS
        with naming_content(path, is_csv=True) if is_csv else nullcontext():
            return _read(source, wanted, columns, zero_based=zero_based, on_error=on_error)
    return _read(source, wanted, columns, zero_based=zero_based, on_error=on_error)


def _read(
    source: Any, wanted: Mapping[str, Any], columns: Sequence[str], *, zero_based: bool, on_error: str
) -> ClickLog:
    pieces = open_source(source)
    roles = _Roles.of(pieces.names, pieces.where, wanted, columns)
    codes = {name: Codes() for name in ("session", "query", *(f"document{k}" for k in range(len(roles.document))))}
    kept: dict[str, Codes] = {}
    odd: dict[str, Any] = {}
    parts = [_encoded(piece, roles, codes, kept, odd) for piece in pieces.read(roles.all)]
    if not any(len(part["session"]) for part in parts):
        raise DataError(where=pieces.where, expected="at least one row", got="none")
    for name, one in kept.items():
        _as_codes(parts, name, one)
    # Column by column, so that only one at a time is in memory twice.
    table = {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}
    ids = {name: one.ids(is_text=pieces.is_text) for name, one in codes.items()}
    for name, one in kept.items():
        table[f"column:{name}"] = one.values()[table.pop(f"codes:{name}")]
    given = _united(table, ids, roles, odd)
    return assemble(given, pieces.where, zero_based=zero_based, must_raise=on_error == "raise")


class _Roles(NamedTuple):
    """The role of each column."""

    session: str
    query: str | None
    document: tuple[str, ...]
    position: str
    clicked: str
    columns: tuple[str, ...]

    @classmethod
    def of(cls, names: list[str], where: str, wanted: Mapping[str, Any], columns: Sequence[str]) -> _Roles:
        """The roles by given or default names. Raises ``DataError`` for a missing column."""
        columns_of: dict[str, Any] = {}
        for role, usual in _NAMES.items():
            given = wanted[role]
            if given is None:
                columns_of[role] = next((name for name in usual if name in names), None)
            elif role == "document" and not isinstance(given, (str, int)):
                columns_of[role] = as_name_list(role, given) or None
            else:
                columns_of[role] = as_name(role, given)
            if columns_of[role] is None and role != "query":
                raise DataError(
                    where=where,
                    argument=role,
                    expected=f"a column called {' or '.join(usual)}",
                    got=f"the columns {', '.join(names[:12])}",
                    fix=f"name yours with `{role}`",
                )
        document = columns_of["document"]
        columns_of["document"] = (document,) if isinstance(document, str) else tuple(document)
        roles = cls(**columns_of, columns=tuple(as_name_list("columns", columns)))
        check_columns(names, roles.all, where)
        roles._check_different(where)
        return roles

    def _check_different(self, where: str) -> None:
        """Raise ``DataError`` for a column with two roles. Only an id may name both a session and its query."""
        session = () if self.session == self.query else (self.session,)
        used = Counter((*session, self.query, *self.document, self.position, self.clicked))
        twice = next((name for name, count in used.items() if count > 1), None)
        if twice is not None:
            raise DataError(
                where=where,
                expected="different columns for sessions, queries, documents, positions and clicks",
                got=f"{twice!r} for two of them",
            )

    @property
    def all(self) -> list[str]:
        """All columns to read, each once."""
        query = () if self.query is None else (self.query,)
        return list(dict.fromkeys((self.session, *query, *self.document, self.position, self.clicked, *self.columns)))


def _encoded(
    piece: Mapping[str, Column], roles: _Roles, codes: dict[str, Codes], kept: dict[str, Codes], odd: dict[str, Any]
) -> dict[str, NDArray[Any]]:
    """A chunk with codes instead of ids; positions and clicks are numbers, the first other value goes to ``odd``."""
    session = codes["session"].encode(piece[roles.session])
    query = np.zeros_like(session) if roles.query is None else codes["query"].encode(piece[roles.query])
    out: dict[str, NDArray[Any]] = {
        "session": small(session),
        "query": small(query),
        "position": as_numbers(piece[roles.position]).astype(np.float32),
        "clicked": as_numbers(piece[roles.clicked], {"true": 1.0, "false": 0.0}).astype(np.float32),
    }
    for role, column in (("position", roles.position), ("clicked", roles.clicked)):
        is_odd = np.isnan(out[role])
        if role not in odd and is_odd.any():
            odd[role] = value_at(piece[column], int(is_odd.argmax()))
    for k, name in enumerate(roles.document):
        out[f"document{k}"] = small(codes[f"document{k}"].encode(piece[name]))
    for name in roles.columns:
        values = piece[name]
        if isinstance(values, Encoded) or values.dtype.kind in "OU":
            out[f"codes:{name}"] = small(kept.setdefault(name, Codes()).encode(values))
        else:
            out[f"column:{name}"] = values
    return out


def _as_codes(parts: list[dict[str, NDArray[Any]]], name: str, codes: Codes) -> None:
    """Encode a column of every chunk: within one folder, some files may have texts and others numbers."""
    for part in parts:
        if f"column:{name}" in part:
            part[f"codes:{name}"] = codes.encode(part.pop(f"column:{name}"))


def _united(
    table: dict[str, NDArray[Any]], ids: dict[str, NDArray[Any]], roles: _Roles, odd: Mapping[str, Any]
) -> Columns:
    """The columns of the log, with the document columns combined into one."""
    n = len(table["session"])
    names = [f"document{k}" for k in range(len(roles.document))]
    document, document_ids = table[names[0]] if len(names) > 1 else table.pop(names[0]), ids[names[0]]
    if len(names) > 1:
        is_missing = np.zeros(n, bool)
        key, n_keys = np.zeros(n, np.int64), 1
        for name in names:
            is_missing |= table[name] < 0
            if n_keys * (len(ids[name]) + 1) >= 1 << 63:
                key = np.unique(key, return_inverse=True)[1].reshape(-1)
                n_keys = n
            key = key * (len(ids[name]) + 1) + table[name] + 1
            n_keys *= len(ids[name]) + 1
        unique, first, document = np.unique(key, return_index=True, return_inverse=True)
        document_ids = np.empty(len(unique), object)
        parts = [ids[name][table[name][first]].tolist() for name in names]
        document_ids[:] = list(zip(*parts, strict=True))
        document = np.where(is_missing, -1, document)
    others = {name: table[f"column:{name}"] for name in roles.columns}
    # References are dropped here, as the next step makes new columns from these.
    return Columns(
        session=table.pop("session"),
        query=table.pop("query"),
        document=document,
        position=table.pop("position"),
        clicked=table.pop("clicked"),
        session_ids=ids["session"],
        query_ids=ids["query"] if roles.query is not None else np.array([None], object),
        document_ids=document_ids,
        others=others,
        odd=odd,
    )
