"""Sources of the rows of a click log: arrays, tables, Parquet and CSV, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.checks import as_array, id_array
from tierank.clicks.codes import Column, Encoded
from tierank.errors import DataError
from tierank.files import as_path
from tierank.readers.columns import PARQUET_ENDINGS, ParquetPart, files_of, first_line, needs_arrow
from tierank.readers.tables import csv_form
from tierank.tables import as_column, column_names, is_table

# Rows encoded at a time.
_BATCH = 1 << 18


class Source(NamedTuple):
    """A source of rows: its columns, and a function that reads some of them in chunks."""

    where: str
    names: list[str]
    read: Callable[[list[str]], Iterator[dict[str, Column]]]
    is_text: bool = False


def open_source(source: Any) -> Source:
    """The rows of a mapping, a table, or a file."""
    if isinstance(source, Mapping):
        table = {str(name): _as_vector(name, values) for name, values in source.items()}
        if len({len(values) for values in table.values()}) > 1:
            counts = ", ".join(f"{name} {len(values)}" for name, values in table.items())
            raise DataError(where="table", expected="columns of one length", got=counts)
        return Source("table", list(table), lambda names: iter([{name: table[name] for name in names}]))
    if is_table(source):
        read = _arrow_column if hasattr(type(source), "column_names") else as_column
        return Source("table", column_names(source), lambda names: iter([{name: read(source, name) for name in names}]))
    path = path_of(source)
    if path.is_dir() or path.suffix in PARQUET_ENDINGS:
        return _parquet(path)
    return _csv(path)


def path_of(source: Any) -> Path:
    """The given path. Raises ``ParameterError`` for anything else."""
    return as_path(source, "source", "a path, a table or a dict of arrays")


def _as_vector(name: object, values: Any) -> NDArray[Any]:
    array = id_array(values) if isinstance(values, (list, tuple)) else as_array(values)
    if array.ndim != 1:
        raise DataError(where="table", argument=str(name), expected="one value per row", got=f"shape {array.shape}")
    return array


def _parquet(path: Path) -> Source:
    parts = [ParquetPart(file) for file in files_of(path)]
    if not parts:
        raise DataError(where=path, expected="a folder of Parquet files", got="none in it")

    def pieces(names: list[str]) -> Iterator[dict[str, Column]]:
        for part in parts:
            missing = next((name for name in names if name not in part.names), None)
            if missing is not None:
                raise DataError(
                    where=part.where, expected=f"the column {missing!r}, as in {parts[0].where}", got="none"
                )
            for table in part.batches(names, _BATCH):
                yield {name: _arrow_column(table, name) for name in names}

    return Source(str(path), parts[0].names, pieces)


def _csv(path: Path) -> Source:
    arrow = needs_arrow("CSV")
    import pyarrow.csv

    form = csv_form(path)

    def opened(convert: Any = None) -> Any:
        try:
            return pyarrow.csv.open_csv(path, parse_options=form, convert_options=convert)
        except (arrow.ArrowException, OSError, UnicodeError) as error:
            raise _unreadable(path, error) from None

    def pieces(names: list[str]) -> Iterator[dict[str, Column]]:
        # As texts: type inference would merge "007" and "7".
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
                yield {name: _arrow_column(table, name) for name in names}

    with opened() as file:
        try:
            names = column_names(file.schema.empty_table())  # raises if a text is not UTF-8
        except DataError as error:
            raise error.at(path) from None
    return Source(str(path), names, pieces, is_text=True)


def _arrow_column(table: Any, name: str) -> Column:
    """A column of an Arrow table; texts without a Python object per row."""
    types = needs_arrow("Arrow").types
    kind = table.column(name).type
    if not (types.is_string(kind) or types.is_large_string(kind)):
        return as_column(table, name)
    chunks = table.column(name).dictionary_encode("encode").combine_chunks()
    chunk = chunks.chunk(0) if hasattr(chunks, "num_chunks") else chunks
    return Encoded(chunk.dictionary.to_pylist(), chunk.indices.to_numpy(zero_copy_only=False).astype(np.int64))


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(where=path, expected="a CSV table with a header line", got=f": {first_line(error)}")
