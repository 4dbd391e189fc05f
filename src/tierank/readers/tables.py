"""Tables with named columns, in memory (pandas, polars, Arrow) and in files (CSV, Parquet), both ways."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.files import replacing
from tierank.inputs import Room, as_column, column_names, forget, table_matrix
from tierank.readers.columns import (
    Columns,
    ParquetPart,
    TablePart,
    files_of,
    first_line,
    needs_arrow,
    plain_ids,
    read_parts,
    taken,
)
from tierank.readers.letor import created

# Bytes of features that are made a table of at a time when a file is written.
_WRITTEN = 1 << 26
# What may part the columns of a CSV file.
_SEPARATORS = (",", ";", "\t", "|")


def read_table(table: Any, **named: Any) -> RankingDataset:
    """A data set from a pandas, polars or Arrow table; ``named`` says which columns are what, as in ``read``."""
    columns = Columns.of(column_names(table), "table", **named)
    weights = {name: as_column(table, name) for name in columns.weights}
    try:
        return RankingDataset(
            table_matrix(table, columns.features),
            None if columns.rating is None else as_column(table, columns.rating),
            as_column(table, columns.query),
            feature_names=columns.features,
            document_ids=None if columns.document is None else as_column(table, columns.document).tolist(),
            row_weight=weights.get("row_weight"),
            query_weight=weights.get("query_weight"),
        )
    except DataError as error:
        raise DataError(f"table: {error}") from None


def read_csv(path: Path, *, room: Room, **named: Any) -> RankingDataset:
    """A data set from a CSV file with a header line, or a TSV file."""
    arrow = needs_arrow("CSV")
    import pyarrow.csv

    delimiter = _separator(path)
    form = pyarrow.csv.ParseOptions(delimiter=delimiter)
    try:
        with pyarrow.csv.open_csv(path, parse_options=form) as file:
            columns = Columns.of(file.schema.names, str(path), **named)
        # Ids are texts: to guess their type would make one of "007" and "7".
        ids = {name: arrow.string() for name in (columns.query, columns.document) if name is not None}
        options = pyarrow.csv.ConvertOptions(column_types=ids)
        table = pyarrow.csv.read_csv(path, parse_options=form, convert_options=options)
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: expected a CSV table with a header line, got: {first_line(error)}") from None
    place = table.column_names.index(columns.query)
    table = table.set_column(place, columns.query, plain_ids(table.column(place)))
    part = TablePart(str(path), table, partial(_line_of, path, delimiter))
    return read_parts([part], str(path), room, **named)


def _separator(path: Path) -> str:
    """What parts the columns of a CSV file: the most frequent one in its header line, by its ending where none is."""
    usual = "\t" if ".tsv" in path.suffixes else ","
    with _lines(path) as lines:
        header = re.sub('"[^"]*"', "", next(lines, ""))
    return max((usual, *_SEPARATORS), key=header.count)


def _line_of(path: Path, separator: str, row: int) -> int:
    """The line of a row, by a walk through the file: a row may take several lines, and empty ones are no rows."""
    with _lines(path) as lines:
        rows = csv.reader(lines, delimiter=separator)
        places = (rows.line_num for fields in rows if fields)
        return next(islice(places, row + 1, None))


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield TextIOWrapper(file, "utf-8-sig", errors="replace", newline="")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: expected a whole gzip file, got a damaged or truncated one ({error})") from None


def read_parquet(path: Path, *, room: Room, **named: Any) -> RankingDataset:
    """A data set from a Parquet file, or from a folder of them."""
    files = files_of(path)
    if not files:
        raise DataError(f"{path}: expected a folder of Parquet files, got none in it")
    return read_parts([ParquetPart(file) for file in files], str(path), room, **named)


def write_csv(data: RankingDataset, path: Path) -> None:
    """Write a CSV file with a header line, or a TSV file."""
    needs_arrow("CSV")
    import pyarrow.csv

    options = pyarrow.csv.WriteOptions(delimiter=_delimiter(path))
    tables = _tables(data)
    first = next(tables)
    with (
        replacing(path) as fresh,
        created(fresh, path) as out,
        pyarrow.csv.CSVWriter(out, first.schema, write_options=options) as file,
    ):
        for table in chain([first], tables):
            file.write_table(table)


def _delimiter(path: Path) -> str:
    return "\t" if ".tsv" in path.suffixes else ","


def write_parquet(data: RankingDataset, path: Path) -> None:
    """Write a Parquet file."""
    needs_arrow("Parquet")
    import pyarrow.parquet

    tables = _tables(data)
    first = next(tables)
    # Split into streams of bytes, float32 columns pack better than through a dictionary of values.
    floats = [field.name for field in first.schema if str(field.type) == "float"]
    others = [field.name for field in first.schema if str(field.type) != "float"]
    packing = {"compression": "zstd", "use_dictionary": others, "use_byte_stream_split": floats}
    with replacing(path) as fresh, pyarrow.parquet.ParquetWriter(fresh, first.schema, **packing) as file:
        for table in chain([first], tables):
            file.write_table(table)


def to_arrow(data: RankingDataset) -> Any:
    """The data set as an Arrow table, in the caller's order of rows."""
    return next(_tables(data, data.n_documents))


def _tables(data: RankingDataset, at_once: int | None = None) -> Iterator[Any]:
    """The data set as Arrow tables of some rows each, in the caller's order of rows."""
    arrow = needs_arrow("Arrow")
    names = data.feature_names or [f"feature_{k + 1}" for k in range(data.n_features)]
    rows_in_order = data.restore(np.arange(data.n_documents))
    query_ids = _id_column(data)
    at_once = at_once or max(1, _WRITTEN // (4 * data.n_features))
    for start in range(0, data.n_documents, at_once):
        rows = rows_in_order[start : start + at_once]
        queries = data.offsets.searchsorted(rows, "right") - 1
        columns: dict[str, Any] = {"query": query_ids.take(arrow.array(queries))}
        if data.is_rated:
            columns["rating"] = data.ratings[rows]
        if data.document_texts is not None:
            columns["document"] = list(data.document_texts.take(rows))
        if data.row_weight is not None:
            columns["row_weight"] = data.row_weight[rows]
        if data.query_weight is not None:
            columns["query_weight"] = data.query_weight[queries]
        if not start:
            _check_names(list(columns), list(names))
        columns.update({name: data.features[rows, k] for k, name in enumerate(names)})
        yield arrow.table(columns)
        forget(data.features[rows.min() : rows.max() + 1])


def _id_column(data: RankingDataset) -> Any:
    """The query ids as Arrow holds them; an error where a column cannot."""
    arrow = needs_arrow("Arrow")
    try:
        ids = arrow.array(data.query_ids)
        is_flat = not arrow.types.is_nested(ids.type)
    except (arrow.ArrowException, OverflowError):
        is_flat = False
    if not is_flat:
        raise DataError(
            f"expected query ids of one type that a column can hold, such as numbers or texts, got"
            f" {data.query_ids.tolist()[0]!r} and others; make texts of them: qid=[str(i) for i in qid]"
        )
    return ids


def _check_names(heads: list[str], names: list[str]) -> None:
    """An error where a feature would be taken for something else when the table is read."""
    others = taken([*heads, *names])
    clash = next((name for name in names if name in others), None)
    if clash is not None:
        raise DataError(
            "expected feature names other than those of queries, ratings, documents, weights and row numbers,"
            f" got a feature called {clash!r}; rename it"
        )
