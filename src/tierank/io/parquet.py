"""Parquet files and folders of them, and data sets as Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Allocator, release_pages
from tierank.data.checks import check_texts
from tierank.data.columns import Category, Date
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.errors import DataError
from tierank.files import replacing
from tierank.io.layout import default_roles, first_line, needs_arrow, read_parts

PARQUET_ENDINGS = (".parquet", ".pq")
# Bytes of features converted to a table at a time when a file is written.
_WRITTEN = 1 << 26
# Bytes read at a time: of all columns, and at most and at least of one. Arrow alone would read whole columns.
_BUFFERS, _BUFFER, _LEAST_BUFFER = 1 << 24, 1 << 18, 1 << 14


def read_parquet(path: Path, *, allocate: Allocator, **named: Any) -> RankingDataset:
    """A data set from a Parquet file, or from a folder of them."""
    files = files_of(path)
    if not files:
        raise DataError(where=path, expected="a folder of Parquet files", got="none in it")
    return read_parts([ParquetPart(file) for file in files], str(path), allocate, **named)


def files_of(path: Path) -> list[Path]:
    """The file itself, or the Parquet files of a folder by name, as Spark, Dask and pandas write them.

    Names that start with a dot or an underscore are not data. If no file has a Parquet ending, all count.
    """
    if not path.is_dir():
        return [path]
    visible = [file for file in sorted(path.iterdir()) if file.is_file() and not file.name.startswith((".", "_"))]
    return [file for file in visible if file.suffix in PARQUET_ENDINGS] or visible


@dataclass
class ParquetPart:
    """A Parquet file. It is open only while it is read, as there may be thousands."""

    path: Path

    def __post_init__(self) -> None:
        self.where = str(self.path)
        check_texts([self.where], "the name of a Parquet file")
        with self._opened(1) as file:
            self.names, self.n_rows = file.schema_arrow.names, file.metadata.num_rows

    def at(self, row: int) -> str:
        """Where a row is, for messages."""
        return f"{self.where}, row {row}"

    def read(self, names: list[str]) -> Any:
        """Some columns as an Arrow table."""
        with self._opened(len(names)) as file:
            table = file.read(columns=names)
            table.validate(full=True)  # texts are UTF-8, and dictionary indices valid: Arrow does not check itself
            return table

    def batches(self, names: list[str], n_rows: int) -> Iterator[Any]:
        """Some columns as Arrow tables of at most this many rows."""
        arrow = needs_arrow("Parquet")
        with self._opened(len(names)) as file:
            for batch in file.iter_batches(n_rows, columns=names):
                table = arrow.Table.from_batches([batch])
                table.validate(full=True)
                yield table

    @contextmanager
    def _opened(self, n_columns: int) -> Iterator[Any]:
        arrow = needs_arrow("Parquet")
        import pyarrow.parquet

        buffer = max(_LEAST_BUFFER, min(_BUFFER, _BUFFERS // n_columns))
        try:
            with pyarrow.parquet.ParquetFile(self.path, buffer_size=buffer, pre_buffer=False) as file:
                yield file
        except (arrow.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
            raise DataError(where=self.path, expected="a Parquet file", got=f": {first_line(error)}") from None


def write_parquet(data: RankingDataset, path: Path) -> None:
    """Write a Parquet file."""
    needs_arrow("Parquet")
    import pyarrow.parquet

    tables = arrow_tables(data)
    first = next(tables)
    # Split into streams of bytes, float32 columns pack better than through a dictionary of values.
    floats = [field.name for field in first.schema if str(field.type) == "float"]
    others = [field.name for field in first.schema if str(field.type) != "float"]
    packing = {"compression": "zstd", "use_dictionary": others, "use_byte_stream_split": floats}
    with (
        replacing(path) as fresh,
        fresh.open("wb") as out,  # names need not be UTF-8, as Arrow expects
        pyarrow.parquet.ParquetWriter(out, first.schema, **packing) as file,
    ):
        for table in chain([first], tables):
            file.write_table(table)


def to_arrow(data: RankingDataset) -> Any:
    """The data set as an Arrow table, in the order of the caller's rows.

    Parameters
    ----------
    data : RankingDataset
        The data.

    Returns
    -------
    pyarrow.Table
        Columns for query, rating, document and weights, if the data have them, and one per feature.

    Examples
    --------
    >>> data = RankingDataset([[0.5], [1.5]], [0, 2], qid=["a", "a"], feature_names=["price"])
    >>> to_arrow(data).column_names
    ['query', 'rating', 'price']
    """
    check_dataset("data", data)
    return next(arrow_tables(data, data.n_documents))


def arrow_tables(data: RankingDataset, at_once: int | None = None) -> Iterator[Any]:
    """The data set as Arrow tables of some rows each, in the caller's row order."""
    arrow = needs_arrow("Arrow")
    names = list(data.feature_names or [f"feature_{k + 1}" for k in range(data.n_features)])
    rows_in_order = data.restore(np.arange(data.n_documents))
    query_ids = _id_column(data)
    at_once = at_once or max(1, _WRITTEN // (4 * data.n_features))
    for start in range(0, data.n_documents, at_once):
        rows = rows_in_order[start : start + at_once]
        queries = data.offsets.searchsorted(rows, "right") - 1
        columns: dict[str, Any] = {"query": query_ids.take(arrow.array(queries))}
        if data.is_rated:
            columns["rating"] = arrow.array(data.ratings[rows], from_pandas=True)  # unjudged documents: empty cells
        if data.document_texts is not None:
            columns["document"] = list(data.document_texts[rows])
        if data.row_weight is not None:
            columns["row_weight"] = data.row_weight[rows]
        if data.query_weight is not None:
            columns["query_weight"] = data.query_weight[queries]
        if data.position is not None:
            columns["position"] = data.position[rows]
        reserved = set() if start else default_roles([*columns, *names])
        clash = next((name for name in names if name in reserved), None)
        if clash is not None:
            expected = "feature names other than those of queries, ratings, documents, weights and row numbers"
            raise DataError(expected=expected, got=f"a feature called {clash!r}", fix="rename it")
        columns.update({name: _written(data, name, data.features[rows, k]) for k, name in enumerate(names)})
        yield arrow.table(columns)
        release_pages(data.features[rows.min() : rows.max() + 1])


def _written(data: RankingDataset, name: str, values: NDArray[np.float32]) -> Any:
    """A feature as a column: categories as texts, days as dates, all others as numbers."""
    arrow, kind = needs_arrow("Arrow"), data.kinds.get(name)
    is_missing = np.isnan(values)
    known = np.where(is_missing, 0, values)
    if isinstance(kind, Category):
        codes = arrow.array(known.astype(np.int64), mask=is_missing)
        return arrow.array(kind.levels, arrow.string()).take(codes)
    if isinstance(kind, Date):
        moments = np.rint(known.astype(np.float64) * 86_400e6).astype(np.int64)
        return arrow.array(moments, arrow.timestamp("us"), mask=is_missing)
    return values


def _id_column(data: RankingDataset) -> Any:
    """The query ids as an Arrow column. Raises ``DataError`` if a column cannot hold them."""
    arrow = needs_arrow("Arrow")
    check_texts(data.query_ids.tolist(), "query ids")
    try:
        ids = arrow.array(data.query_ids)
        is_flat = not arrow.types.is_nested(ids.type)
    except (arrow.ArrowException, OverflowError):
        is_flat = False
    if not is_flat:
        expected = "query ids of one type that a column can hold, such as numbers or texts"
        fix = "convert them to texts: qid=[str(i) for i in qid]"
        raise DataError(expected=expected, got=f"{data.query_ids.tolist()[0]!r} and others", fix=fix)
    return ids
