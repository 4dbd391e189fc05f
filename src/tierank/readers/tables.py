"""Tables with named columns, in memory (pandas, polars, Arrow) and in files (CSV, Parquet), both ways."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.files import replacing
from tierank.inputs import as_column, column_names, table_matrix

# What a column may be called to be found without being named.
QUERY_NAMES = ("qid", "query", "query_id")
RATING_NAMES = ("rating", "label", "relevance", "grade")
DOCUMENT_NAMES = ("document", "document_id", "docid", "doc_id")
WEIGHT_NAMES = ("row_weight", "query_weight")


def read_table(
    table: Any,
    *,
    query: str | None = None,
    rating: str | None = None,
    document: str | None = None,
    features: Sequence[str] | None = None,
    where: str = "table",
) -> RankingDataset:
    """A data set from a pandas, polars or Arrow table; what is not query, rating, document or weight is a feature."""
    names = column_names(table)
    query = query or _found(names, QUERY_NAMES)
    if query is None:
        raise DataError(
            f"{where}: expected a query column called {', '.join(QUERY_NAMES[:-1])} or {QUERY_NAMES[-1]},"
            f" got the columns {_listed(names)}; name yours with query="
        )
    rating = rating or _found(names, RATING_NAMES)
    document = document or _found(names, DOCUMENT_NAMES)
    others = {query, rating, document, *WEIGHT_NAMES}
    chosen = [name for name in names if name not in others] if features is None else list(features)
    if not chosen:
        raise DataError(f"{where}: expected at least one feature column, got only {_listed(names)}")

    weights = {name: as_column(table, name) for name in WEIGHT_NAMES if name in names}
    try:
        return RankingDataset(
            table_matrix(table, chosen),
            None if rating is None else as_column(table, rating),
            as_column(table, query),
            feature_names=chosen,
            document_ids=None if document is None else as_column(table, document).tolist(),
            row_weight=weights.get("row_weight"),
            query_weight=weights.get("query_weight"),
        )
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def read_csv(path: Path, **columns: Any) -> RankingDataset:
    """A data set from a CSV file with a header line, or a TSV file."""
    arrow = needs_arrow("CSV")
    import pyarrow.csv

    delimiter = "\t" if ".tsv" in path.suffixes else ","
    try:
        table = pyarrow.csv.read_csv(path, parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter))
    except arrow.ArrowInvalid as error:
        raise DataError(f"{path}: expected a CSV table with a header line, got: {_first_line(error)}") from None
    return read_table(table, where=str(path), **columns)


def read_parquet(path: Path, **columns: Any) -> RankingDataset:
    """A data set from a Parquet file."""
    arrow = needs_arrow("Parquet")
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path, memory_map=True)
    except (arrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: expected a Parquet file, got: {_first_line(error)}") from None
    return read_table(table, where=str(path), **columns)


def write_csv(data: RankingDataset, path: Path) -> None:
    """Write a CSV file with a header line, or a TSV file."""
    needs_arrow("CSV")
    import pyarrow.csv

    options = pyarrow.csv.WriteOptions(delimiter="\t" if ".tsv" in path.suffixes else ",")
    with replacing(path) as fresh:
        pyarrow.csv.write_csv(to_arrow(data), fresh, options)


def write_parquet(data: RankingDataset, path: Path) -> None:
    """Write a Parquet file."""
    needs_arrow("Parquet")
    import pyarrow.parquet

    with replacing(path) as fresh:
        table = to_arrow(data)
        # Split into streams of bytes, float32 columns pack better than through a dictionary of values.
        floats = [field.name for field in table.schema if str(field.type) == "float"]
        others = [field.name for field in table.schema if str(field.type) != "float"]
        pyarrow.parquet.write_table(
            table, fresh, compression="zstd", use_dictionary=others, use_byte_stream_split=floats
        )


def to_arrow(data: RankingDataset) -> Any:
    """The data set as an Arrow table, in the caller's order of rows."""
    arrow = needs_arrow("Arrow")
    rows = data.restore(np.arange(data.n_documents))
    columns: dict[str, Any] = {"query": np.repeat(data.query_ids, data.lengths)[rows]}
    if data.is_rated:
        columns["rating"] = data.ratings[rows]
    if data.document_ids is not None:
        columns["document"] = [data.document_ids[row] for row in rows]
    if data.row_weight is not None:
        columns["row_weight"] = data.row_weight[rows]
    if data.query_weight is not None:
        columns["query_weight"] = np.repeat(data.query_weight, data.lengths)[rows]
    names = data.feature_names or [f"feature_{k + 1}" for k in range(data.n_features)]
    clash = next((name for name in names if name in columns), None)
    if clash is not None:
        raise DataError(f"expected feature names other than {', '.join(columns)}, got a feature called {clash!r}")
    columns.update({name: data.features[rows, k] for k, name in enumerate(names)})
    return arrow.table(columns)


def needs_arrow(what: str) -> Any:
    """The module pyarrow, or an error that says how to get it."""
    try:
        import pyarrow
    except ImportError:
        raise DataError(f"{what} files need pyarrow, which is not installed: pip install 'tierank[arrow]'") from None
    return pyarrow


def _found(names: list[str], known: tuple[str, ...]) -> str | None:
    return next((name for name in known if name in names), None)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200]
