"""Read click logs: files in pieces and tables in memory, with ids turned into integers on the way."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.clicks.checking import Columns, assemble
from tierank.clicks.log import ClickLog, Ints
from tierank.errors import DataError, ParameterError
from tierank.inputs import as_column, column_names, is_table
from tierank.readers.columns import (
    DOCUMENT_NAMES,
    PARQUET_ENDINGS,
    QUERY_NAMES,
    ParquetPart,
    files_of,
    first_line,
    needs_arrow,
    plain_ids,
)
from tierank.readers.paths import kind_of, piped
from tierank.readers.tables import separator
from tierank.settings import as_choice, as_flag

# What columns may be called to be found without being named.
_NAMES = {
    "session": ("session", "session_id"),
    "query": QUERY_NAMES,
    "document": DOCUMENT_NAMES,
    "position": ("position", "rank"),
    "clicked": ("clicked", "click"),
}
# Rows that are turned into numbers at a time.
_BATCH = 1 << 18


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

    Files are read in pieces. Memory holds about 40 bytes per row, and each different id once, however large the file.

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
        The column of document ids. Default: ``document``, ``document_id``, ``docid`` or ``doc_id``. Of several columns,
        documents with the same values in all of them are one.
    position : str, optional
        The column of positions, integers >= 1 from the top. Default: ``position`` or ``rank``.
    clicked : str, optional
        The column that says what was clicked: 0 and 1, or booleans. Default: ``clicked`` or ``click``.
    columns : list of str, default ()
        Other columns to keep, such as ``ranker``.
    zero_based : bool, default False
        The file counts positions from 0.
    on_error : {"raise", "drop"}, default "raise"
        What to do with a row that cannot be used: raise an error that names it, or leave its session out and count it.

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
        path = _as_path(source)
        if kind_of(path) == "pipe":
            with piped(path) as file:
                return read(file, **wanted, columns=columns, zero_based=zero_based, on_error=on_error)
    pieces = _pieces(source)
    roles = _Roles.of(pieces.names, pieces.where, wanted, columns)
    codes = {name: Codes() for name in ("session", "query", *(f"document{k}" for k in range(len(roles.document))))}
    kept: dict[str, Codes] = {}
    parts = [_encoded(piece, roles, codes, kept) for piece in pieces.read(roles.all)]
    if not parts:
        raise DataError(where=pieces.where, expected="at least one row", got="none")
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    del parts
    ids = {name: one.ids(is_text=pieces.is_text) for name, one in codes.items()}
    for name, one in kept.items():
        table[name] = one.values()[table[name]]
    return assemble(_united(table, ids, roles), pieces.where, zero_based=zero_based, must_raise=on_error == "raise")


class _Roles(NamedTuple):
    """Which column is what."""

    session: str
    query: str | None
    document: tuple[str, ...]
    position: str
    clicked: str
    columns: tuple[str, ...]

    @classmethod
    def of(cls, names: list[str], where: str, wanted: Mapping[str, Any], columns: Sequence[str]) -> _Roles:
        """As named, or as found; an error for a column that is not there."""
        found: dict[str, Any] = {}
        for role, usual in _NAMES.items():
            found[role] = wanted[role] or next((name for name in usual if name in names), None)
            if found[role] is None and role != "query":
                raise DataError(
                    where=where,
                    argument=role,
                    expected=f"a column called {' or '.join(usual)}",
                    got=f"the columns {', '.join(names[:12])}",
                    fix=f"name yours with `{role}`",
                )
        found["document"] = (found["document"],) if isinstance(found["document"], str) else tuple(found["document"])
        roles = cls(**found, columns=tuple(columns))
        unknown = next((name for name in roles.all if name not in names), None)
        if unknown is not None:
            raise DataError(str(ParameterError.unknown("column", unknown, names)), where=where)
        return roles

    @property
    def all(self) -> list[str]:
        """Every column that is read, once."""
        query = () if self.query is None else (self.query,)
        return list(dict.fromkeys((self.session, *query, *self.document, self.position, self.clicked, *self.columns)))


class _Pieces(NamedTuple):
    """A source of rows: its columns, and a function that reads some of them piece by piece."""

    where: str
    names: list[str]
    read: Any
    is_text: bool = False


def _pieces(source: Any) -> _Pieces:
    if isinstance(source, Mapping):
        table = {str(name): _as_vector(name, values) for name, values in source.items()}
        if len({len(values) for values in table.values()}) > 1:
            counts = ", ".join(f"{name} {len(values)}" for name, values in table.items())
            raise DataError(where="table", expected="columns of one length", got=counts)
        return _Pieces("table", list(table), lambda names: iter([{name: table[name] for name in names}]))
    if is_table(source):
        return _Pieces(
            "table", column_names(source), lambda names: iter([{name: as_column(source, name) for name in names}])
        )
    path = _as_path(source)
    if path.is_dir() or path.suffix in PARQUET_ENDINGS:
        return _parquet(path)
    return _csv(path)


def _as_path(source: Any) -> Path:
    try:
        return Path(os.fsdecode(source))
    except TypeError:
        raise ParameterError(
            argument="source", expected="a path, a table or a dict of arrays", got=type(source).__name__
        ) from None


def _as_vector(name: object, values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    if isinstance(values, (list, tuple)) and array.dtype.kind == "U":  # numpy would make texts of mixed ids
        objects = np.empty(len(values), object)
        objects[:] = values
        array = objects
    if array.ndim != 1:
        raise DataError(where="table", argument=str(name), expected="one value per row", got=f"shape {array.shape}")
    return array


def _parquet(path: Path) -> _Pieces:
    parts = [ParquetPart(file) for file in files_of(path)]
    if not parts:
        raise DataError(where=path, expected="a folder of Parquet files", got="none in it")

    def pieces(names: list[str]) -> Iterator[dict[str, NDArray[Any]]]:
        for part in parts:
            missing = next((name for name in names if name not in part.names), None)
            if missing is not None:
                raise DataError(
                    where=part.where, expected=f"the column {missing!r}, as in {parts[0].where}", got="none"
                )
            for table in part.batches(names, _BATCH):
                yield {name: as_column(table, name) for name in names}

    return _Pieces(str(path), parts[0].names, pieces)


def _csv(path: Path) -> _Pieces:
    arrow = needs_arrow("CSV")
    import pyarrow.csv

    form = pyarrow.csv.ParseOptions(delimiter=separator(path))

    def opened(convert: Any = None) -> Any:
        try:
            return pyarrow.csv.open_csv(path, parse_options=form, convert_options=convert)
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from None

    def pieces(names: list[str]) -> Iterator[dict[str, NDArray[Any]]]:
        # As texts: to guess the type of ids would make one of "007" and "7".
        types = dict.fromkeys(names, arrow.string())
        convert = pyarrow.csv.ConvertOptions(column_types=types, include_columns=names)
        with opened(convert) as file:
            while True:
                try:
                    batch = file.read_next_batch()
                except StopIteration:
                    return
                except (arrow.ArrowException, OSError) as error:
                    raise _unreadable(path, error) from None
                table = arrow.Table.from_batches([batch])
                yield {name: as_column(table, name) for name in names}

    with opened() as file:
        names = list(file.schema.names)
    return _Pieces(str(path), names, pieces, is_text=True)


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(where=path, expected="a CSV table with a header line", got=f": {first_line(error)}")


class Codes:
    """Different values, numbered as they come."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def encode(self, values: NDArray[Any]) -> Ints:
        """The number of each value; -1 where it is missing."""
        if values.dtype.kind == "O":
            unique, inverse = _unique_objects(values)
        else:
            different, inverse = np.unique(values, return_inverse=True)
            unique = different.tolist()
        numbers = [-1 if _is_missing(one) else self._numbers.setdefault(one, len(self._numbers)) for one in unique]
        return np.array(numbers, np.int64)[inverse] if numbers else np.zeros(0, np.int64)

    def ids(self, *, is_text: bool) -> NDArray[Any]:
        """The values by number; texts of a file that are all plain integers become integers."""
        unique: list[Any] = list(self._numbers)
        if is_text and unique:
            column = plain_ids(needs_arrow("CSV").chunked_array([unique]))
            unique = unique if column.null_count else column.to_pylist()
        ids = np.empty(len(unique), object)
        ids[:] = unique
        kinds = {type(one) for one in unique}
        return ids.astype(np.int64) if kinds == {int} and max(map(abs, unique)) < 1 << 63 else ids

    def values(self) -> NDArray[Any]:
        """The values by number, and one more for -1; numbers if all of them are."""
        unique = [*self._numbers, None]
        numbers = np.array([_number(one, {}) for one in unique])
        if not np.isnan(numbers[:-1]).any():
            return numbers
        values = np.empty(len(unique), object)
        values[:] = unique
        return values


def _unique_objects(values: NDArray[Any]) -> tuple[list[Any], Ints]:
    numbers: dict[Hashable, int] = {}
    try:
        inverse = [numbers.setdefault(one, len(numbers)) for one in values.tolist()]
    except TypeError as error:
        raise DataError(f"expected ids that can be hashed: numbers, texts, tuples; got: {error}") from None
    return list(numbers), np.array(inverse, np.int64)


def _is_missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and value != value) or str(value) == "<NA>"


def _encoded(
    piece: Mapping[str, NDArray[Any]], roles: _Roles, codes: dict[str, Codes], kept: dict[str, Codes]
) -> dict[str, NDArray[Any]]:
    """A piece with numbers in place of ids, positions and clicks as they are."""
    n = len(piece[roles.session])
    out: dict[str, NDArray[Any]] = {
        "session": codes["session"].encode(piece[roles.session]),
        "query": np.zeros(n, np.int64) if roles.query is None else codes["query"].encode(piece[roles.query]),
        "position": _numbers(piece[roles.position]),
        "clicked": _numbers(piece[roles.clicked], {"true": 1.0, "false": 0.0}),
    }
    for k, name in enumerate(roles.document):
        out[f"document{k}"] = codes[f"document{k}"].encode(piece[name])
    for name in roles.columns:
        values = piece[name]
        if values.dtype.kind in "OU":
            values = kept.setdefault(f"column:{name}", Codes()).encode(values.astype(object))
        out[f"column:{name}"] = values
    return out


def _numbers(values: NDArray[Any], words: Mapping[str, float] | None = None) -> NDArray[np.float64]:
    """Numbers as they are or as texts say them; NaN for anything else, which the check of the log names."""
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    unique, inverse = _unique_objects(values.astype(object))
    numbers = [_number(one, words or {}) for one in unique]
    return np.array(numbers, np.float64)[inverse] if numbers else np.zeros(0)


def _number(value: Any, words: Mapping[str, float]) -> float:
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan


def _united(table: dict[str, NDArray[Any]], ids: dict[str, NDArray[Any]], roles: _Roles) -> Columns:
    """The columns of the log, documents of several columns as one."""
    n = len(table["session"])
    names = [f"document{k}" for k in range(len(roles.document))]
    document, document_ids = table[names[0]], ids[names[0]]
    if len(names) > 1:
        is_missing = np.zeros(n, bool)
        key = np.zeros(n, np.int64)
        for name in names:
            is_missing |= table[name] < 0
            key = key * (len(ids[name]) + 1) + table[name]
        unique, first, document = np.unique(key, return_index=True, return_inverse=True)
        document_ids = np.empty(len(unique), object)
        parts = [ids[name][table[name][first]].tolist() for name in names]
        document_ids[:] = list(zip(*parts, strict=True))
        document = np.where(is_missing, -1, document)
    return Columns(
        session=table["session"],
        query=table["query"],
        document=document,
        position=table["position"],
        clicked=table["clicked"],
        session_ids=ids["session"],
        query_ids=ids["query"] if roles.query is not None else np.array([None], object),
        document_ids=document_ids,
        others={name: table[f"column:{name}"] for name in roles.columns},
    )
