"""Reading click logs: arrays, tables, Parquet and CSV, in chunks of columns, with ids encoded as integers."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.clicks.log import ClickLog, Ints, assemble
from tierank.data.checks import as_array, as_objects, id_array, is_missing
from tierank.data.tables import as_column, as_name, as_name_list, check_columns, column_names, is_table
from tierank.errors import DataError
from tierank.files import as_path
from tierank.io.csv_files import csv_form, plain_ids
from tierank.io.layout import (
    DOCUMENT_NAMES,
    PARQUET_ENDINGS,
    QUERY_NAMES,
    ParquetSource,
    files_of,
    first_line,
    needs_arrow,
)
from tierank.io.paths import kind_of, naming_content, piped
from tierank.settings import as_choice, as_flag

# Default names of columns.
_NAMES = {
    "session": ("session", "session_id"),
    "query": QUERY_NAMES,
    "document": DOCUMENT_NAMES,
    "position": ("position", "rank"),
    "clicked": ("clicked", "click"),
}


# Words for clicks in text files.
_TRUTHS = {"true": 1.0, "false": 0.0}
# Rows encoded at a time.
_BATCH = 1 << 18


class Texts(NamedTuple):
    """A column of texts: the different texts (None for missing), and the index of each row's text."""

    values: list[Any]
    places: NDArray[np.integer]


Column = NDArray[Any] | Texts


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
        The column of query ids. Default: ``qid``, ``query`` or ``query_id``; if the log has none of them, all lists
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
    named = {"session": session, "query": query, "document": document, "position": position, "clicked": clicked}
    with ExitStack() as stack:
        if not isinstance(source, Mapping) and not is_table(source):
            source = as_path(source, "source", "a path, a table or a dict of arrays")
            if kind_of(source) == "pipe":
                source = stack.enter_context(piped(source))
            if not source.is_dir() and source.suffix not in PARQUET_ENDINGS:
                stack.enter_context(naming_content(source, is_csv=True))
        where, known, tables, is_text = _open(source)
        roles = _find_roles(known, where, named)
        kept = as_name_list("columns", columns)
        wanted = list(dict.fromkeys([*(name for one in roles.values() for name in one), *kept]))
        check_columns(known, wanted, where)
        _check_roles(roles, where)
        log = assemble(
            *_encode(tables(wanted), roles, kept, where, is_text=is_text),
            where,
            zero_based=zero_based,
            must_raise=on_error == "raise",
        )
    if log.n_sessions > 1 and log.clicked.all():
        warnings.warn(
            f"{where}: everything was clicked, so nothing can be learned about what was not clicked: log all"
            " documents that were shown, with 0 for those that were not clicked",
            stacklevel=2,
        )
    return log


def _open(source: Any) -> tuple[str, list[str], Callable[[list[str]], Iterable[Any]], bool]:
    """What a source is called, its columns, a function that reads some of them in chunks, and whether all are texts."""
    if isinstance(source, Mapping):
        table = {
            str(name): id_array(one) if isinstance(one, (list, tuple)) else as_array(one)
            for name, one in source.items()
        }
        for name, values in table.items():
            if values.ndim != 1:
                raise DataError(where="table", argument=name, expected="one value per row", got=f"shape {values.shape}")
        if len({len(values) for values in table.values()}) > 1:
            counts = ", ".join(f"{name} {len(values)}" for name, values in table.items())
            raise DataError(where="table", expected="columns of one length", got=counts)
        return "table", list(table), lambda names: [table], False
    if is_table(source):
        return "table", column_names(source), lambda names: [source], False
    if not source.is_dir() and source.suffix not in PARQUET_ENDINGS:
        head = next(_read_csv(source))
        try:
            return str(source), column_names(head), lambda names: _read_csv(source, names), True
        except DataError as error:  # names that are not UTF-8
            raise error.at(source) from None
    parts = [ParquetSource(file) for file in files_of(source)]
    if not parts:
        raise DataError(where=source, expected="a folder of Parquet files", got="none in it")
    return str(source), parts[0].names, lambda names: _read_parquet(parts, names), False


def _read_parquet(parts: list[ParquetSource], names: list[str]) -> Iterator[Any]:
    for part in parts:
        missing = next((name for name in names if name not in part.names), None)
        if missing is not None:
            raise DataError(where=part.where, expected=f"the column {missing!r}, as in {parts[0].where}", got="none")
        yield from part.batches(names, _BATCH)


def _read_csv(path: Path, names: list[str] | None = None) -> Iterator[Any]:
    """Some columns of a CSV file, a block at a time; without names, a table without rows."""
    arrow, form = needs_arrow("CSV"), csv_form(path)
    import pyarrow.csv

    # As texts: type inference would merge "007" and "7".
    types = dict.fromkeys(names or (), arrow.string())
    convert = pyarrow.csv.ConvertOptions(column_types=types, include_columns=names)
    try:
        with pyarrow.csv.open_csv(path, parse_options=form, convert_options=convert) as file:
            if names is None:
                yield file.schema.empty_table()
                return
            for batch in file:
                yield arrow.Table.from_batches([batch])
    except (arrow.ArrowException, OSError, UnicodeError) as error:
        raise DataError(where=path, expected="a CSV table with a header line", got=f": {first_line(error)}") from None


def _column_of(table: Any, name: str) -> Column:
    """A column of a chunk; texts of Arrow without a Python object per row."""
    if isinstance(table, Mapping):
        return np.asarray(table[name])
    if hasattr(type(table), "column_names"):
        types, kind = needs_arrow("Arrow").types, table.column(name).type
        if types.is_string(kind) or types.is_large_string(kind):
            chunks = table.column(name).dictionary_encode("encode").combine_chunks()
            chunk = chunks.chunk(0) if hasattr(chunks, "num_chunks") else chunks
            return Texts(chunk.dictionary.to_pylist(), chunk.indices.to_numpy(zero_copy_only=False))
    return as_column(table, name)


def _find_roles(names: list[str], where: str, named: Mapping[str, Any]) -> dict[str, list[str]]:
    """The columns of each role, by given or default names; only documents may have several, and queries none."""
    roles: dict[str, list[str]] = {}
    for role, usual in _NAMES.items():
        given = named[role]
        if role == "document" and given is not None and not isinstance(given, (str, int)):
            roles[role] = as_name_list(role, given)
        else:
            name = next((name for name in usual if name in names), None) if given is None else as_name(role, given)
            roles[role] = [] if name is None else [name]
        if not roles[role] and role != "query":
            expected = f"a column called {' or '.join(usual)}"
            got = f"the columns {', '.join(names[:12])}"
            raise DataError(where=where, argument=role, expected=expected, got=got, fix=f"name yours with `{role}`")
    return roles


def _check_roles(roles: Mapping[str, list[str]], where: str) -> None:
    """Raise ``DataError`` for a column with two roles. Only an id may name both a session and its query."""
    used = Counter(name for role, one in roles.items() for name in one if (role, one) != ("session", roles["query"]))
    twice = next((name for name, count in used.items() if count > 1), None)
    if twice is not None:
        expected = "different columns for sessions, queries, documents, positions and clicks"
        raise DataError(where=where, expected=expected, got=f"{twice!r} for two of them")


def _encode(
    tables: Iterable[Any], roles: Mapping[str, list[str]], kept: list[str], where: str, *, is_text: bool
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], dict[str, NDArray[Any]], dict[str, Any]]:
    """The rows of all chunks with codes instead of ids, the ids, the kept columns, and what is no number."""
    id_columns = [(role, name) for role in ("session", "query", "document") for name in roles[role]]
    known: list[dict[Hashable, int]] = [{} for _ in id_columns]
    chunks: defaultdict[Hashable, list[Any]] = defaultdict(list)
    not_numbers: dict[str, Any] = {}
    for table in tables:
        for k, (_, name) in enumerate(id_columns):
            chunks[k].append(_small(encode(_column_of(table, name), known[k])))
        for role, words in (("position", {}), ("clicked", _TRUTHS)):
            values = _column_of(table, roles[role][0])
            numbers = numbers_of(values, words).astype(np.float32)
            if role not in not_numbers and (is_odd := np.isnan(numbers)).any():
                not_numbers[role] = _value_at(values, int(is_odd.argmax()))
            chunks[role].append(numbers)
        for name in kept:
            chunks[f"column {name}"].append(_column_of(table, name))
    n_rows = sum(map(len, chunks["position"]))
    if not n_rows:
        raise DataError(where=where, expected="at least one row", got="none")
    # Column by column, so that only one at a time is in memory twice.
    codes = {role: np.concatenate(chunks.pop(role)) for role in ("position", "clicked")}
    ids: dict[str, NDArray[Any]] = {}
    for role in ("session", "query", "document"):
        own = [k for k, (one, _) in enumerate(id_columns) if one == role]
        of_columns = [np.concatenate(chunks.pop(k)) for k in own]
        known_ids = [_ids_of(known[k], is_text=is_text) for k in own]
        if own:
            combine = len(own) > 1
            codes[role], ids[role] = _combined(of_columns, known_ids) if combine else (of_columns[0], known_ids[0])
        else:
            codes[role], ids[role] = np.zeros(n_rows, np.int32), np.array([None], object)
    return codes, ids, {name: _united(chunks.pop(f"column {name}")) for name in dict.fromkeys(kept)}, not_numbers


def _combined(codes: list[NDArray[Any]], ids: list[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Codes and ids of documents that several columns name together; the ids are tuples."""
    n, n_keys = len(codes[0]), 1
    key, is_unknown = np.zeros(n, np.int64), np.zeros(n, bool)
    for own, values in zip(codes, ids, strict=True):
        is_unknown |= own < 0
        if n_keys * (len(values) + 1) >= 1 << 63:
            key, n_keys = np.unique(key, return_inverse=True)[1].reshape(-1), n
        key = key * (len(values) + 1) + own + 1
        n_keys *= len(values) + 1
    _, first, places = np.unique(key, return_index=True, return_inverse=True)
    parts = [values[own[first]].tolist() for own, values in zip(codes, ids, strict=True)]
    return np.where(is_unknown, -1, places), as_objects(list(zip(*parts, strict=True)))


def _united(chunks: list[Column]) -> NDArray[Any]:
    """A kept column; within one folder, some files may have texts and others numbers."""
    if not any(isinstance(one, Texts) or one.dtype.kind in "OU" for one in chunks):
        return np.concatenate(chunks)
    known: dict[Hashable, int] = {}
    codes = np.concatenate([_small(encode(one, known)) for one in chunks])
    values = [*known, None]  # the last one is for missing values
    united: NDArray[Any] = np.array([_number(one, {}) for one in values])
    if np.isnan(united[:-1]).any():
        united = as_objects(values)
    return np.asarray(united[codes])


def encode(values: Column, known: dict[Hashable, int]) -> Ints:
    """The number of each value, in order of appearance, as ``known`` gives and takes them; -1 if it is missing."""
    unique, places = _unique(values)
    codes = [-1 if is_missing(one) or one == "" else known.setdefault(one, len(known)) for one in unique]
    return np.array(codes, np.int64)[places] if codes else np.zeros(0, np.int64)


def _unique(values: Column) -> tuple[list[Any], NDArray[np.integer]]:
    """The different values of a column, and the index of each row's value."""
    if isinstance(values, Texts):
        return values.values, values.places
    if values.dtype.kind != "O":
        different, places = np.unique(values, return_inverse=True)
        return different.tolist(), places
    numbers: dict[Hashable, int] = {}
    try:
        places = np.array([numbers.setdefault(one, len(numbers)) for one in values.tolist()], np.int64)
    except TypeError as error:
        raise DataError(expected="hashable ids, such as numbers, texts or tuples", got=f": {error}") from None
    return list(numbers), places


def _ids_of(known: dict[Hashable, int], *, is_text: bool) -> NDArray[Any]:
    """The ids by number; texts of a file become integers if all are plain integers."""
    unique: list[Any] = list(known)
    if is_text and unique:
        column = plain_ids(needs_arrow("CSV").chunked_array([unique]))
        unique = unique if column.null_count else column.to_pylist()
    are_integers = {type(one) for one in unique} == {int} and max(map(abs, unique)) < 1 << 63
    return np.array(unique, np.int64) if are_integers else as_objects(unique)


def _small(codes: Ints) -> NDArray[Any]:
    """As int32 if they fit: codes take most of the memory while a log is read."""
    return codes.astype(np.int32) if len(codes) and codes.max() < 1 << 31 else codes


def numbers_of(values: Column, words: Mapping[str, float] | None = None) -> Floats:
    """Numbers, including numeric texts; NaN for anything else, which the check of the log reports."""
    if not isinstance(values, Texts) and values.dtype.kind in "biuf":
        return values.astype(np.float64)
    unique, places = _unique(values)
    numbers = [_number(one, words or {}) for one in unique]
    return np.array(numbers, np.float64)[places] if numbers else np.zeros(0)


def _value_at(values: Column, row: int) -> Any:
    """The value of a row, as it was given."""
    return values.values[values.places[row]] if isinstance(values, Texts) else values[row : row + 1].tolist()[0]


def _number(value: Any, words: Mapping[str, float]) -> float:
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    if isinstance(value, str) and "_" in value:  # Python accepts 1_000
        return np.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # the last one for an integer too large for a float
        return np.nan
