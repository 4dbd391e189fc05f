"""Single columns of CSV and Parquet files: scores, titles, and values about queries by which results are compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tierank.data.tables import as_column, check_columns
from tierank.errors import DataError
from tierank.io.csv_files import CsvFile
from tierank.io.layout import QUERY_NAMES, needs_arrow
from tierank.io.parquet import PARQUET_ENDINGS, ParquetPart, files_of


def read_columns(source: str | os.PathLike[str], names: Sequence[str], format: str | None = None) -> dict[str, Any]:
    """Columns of a CSV or Parquet file, one value per row: numbers or texts, None or NaN if missing."""
    names, tables = list(dict.fromkeys(names)), []
    for where, known, read in _files(Path(source), format):
        check_columns(known, names, where)
        tables.append(read(names))
    return {name: np.concatenate([as_column(table, name) for table in tables]) for name in names}


def _files(path: Path, format: str | None = None) -> Iterator[tuple[Path, list[str], Callable[[list[str]], Any]]]:
    """Each file of a table: its path, its columns, and what reads some of them as an Arrow table."""
    is_csv = bool({".csv", ".tsv"} & set(path.suffixes[-2:]))
    form = format or ("parquet" if path.is_dir() or path.suffix in PARQUET_ENDINGS else "csv" if is_csv else "other")
    if form not in ("csv", "parquet"):
        expected = "a CSV or Parquet file, whose columns have names"
        raise DataError(where=path, expected=expected, got="another format")
    needs_arrow("CSV" if form == "csv" else "Parquet")
    for file in [path] if form == "csv" else files_of(path):
        opened = CsvFile(file) if form == "csv" else ParquetPart(file)
        yield file, opened.names, opened.read


def read_attributes(
    source: str | os.PathLike[str], names: Sequence[str], query_ids: Sequence[Any], query: str | None = None
) -> dict[str, dict[Any, Any]]:
    """Columns of a CSV or Parquet file about queries: for each name, a mapping from query ids to values.

    A query may have several rows with equal values. Ids are compared as texts.
    """
    path = Path(source)
    _, known, _ = next(_files(path))
    query = query or next((name for name in QUERY_NAMES if name in known), QUERY_NAMES[0])
    columns = read_columns(path, [query, *names])
    rows = [str(i) for i in columns[query].tolist()]
    attributes: dict[str, dict[Any, Any]] = {}
    for name in names:
        by_text: dict[str, Any] = {}
        for text, value in zip(rows, columns[name].tolist(), strict=True):
            if by_text.setdefault(text, value) != value and value == value:
                where, expected = f"{path}: column {name!r}", f"one value for query {text}"
                raise DataError(where=where, expected=expected, got=f"{by_text[text]} and {value}")
        attributes[name] = {i: by_text[str(i)] for i in query_ids if str(i) in by_text}
        if not attributes[name]:
            got = f"{', '.join(rows[:3])}, ..."
            raise DataError(where=path, expected=f"queries such as {query_ids[0]!s}", got=got)
    return attributes
