"""Data sets from files and tables with named columns, read a batch of rows at a time into the final feature matrix;
Parquet files and folders of them; and data sets as Arrow tables.

The first pass reads query ids, ratings and other columns that are not features; the second reads the features and
writes each row to its place in the grouped matrix. Memory holds some tens of bytes per document and one batch of rows,
however large the files are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Allocator, release_pages
from tierank.data.checks import (
    as_ids,
    as_names,
    as_numbers,
    as_positions,
    as_weights,
    check_ratings,
    check_texts,
    group_codes,
    group_rows,
    twice_in,
)
from tierank.data.columns import Category, Columns, Date
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.data.tables import TableEncoder, as_column, check_columns, check_known, decoded, is_arrow, take_columns
from tierank.data.text import StringArray
from tierank.errors import DataError, located
from tierank.extras import needing
from tierank.files import replacing

# Default names of columns.
QUERY_NAMES = ("qid", "query", "query_id")
RATING_NAMES = ("rating", "label", "relevance", "grade")
DOCUMENT_NAMES = ("document", "document_id", "docid", "doc_id")
WEIGHT_NAMES = ("row_weight", "query_weight")
# Row numbers that pandas and Dask leave in Parquet and CSV files, and columns without a name: not features.
_ROW_NUMBERS = re.compile(r"__index_level_\d+__|__null_dask_index__|Unnamed: 0(\.\d+)*|")
# Bytes of the matrix filled at a time, and values converted to text at a time.
_BATCH = 1 << 22
_AT_ONCE = 1 << 16
PARQUET_ENDINGS = (".parquet", ".pq")
# Bytes of features converted to a table at a time when a file is written.
_WRITTEN = 1 << 26
# Bytes read at a time: of all columns, and at most and at least of one. Arrow alone would read whole columns.
_BUFFERS, _BUFFER, _LEAST_BUFFER = 1 << 24, 1 << 18, 1 << 14


def needs_arrow(what: str) -> Any:
    """The module pyarrow, or an error that says how to install it."""
    with needing(f"reading and writing {what}"):
        import pyarrow
    return pyarrow


def first_line(error: Exception) -> str:
    """The first line of an error of Arrow."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class Layout(NamedTuple):
    """The role of each column."""

    query: str
    rating: str | None
    document: str | None
    weights: dict[str, str]
    features: list[str]
    position: str | None = None

    @classmethod
    def of(
        cls,
        names: list[str],
        where: str,
        *,
        query: str | None = None,
        rating: str | None = None,
        document: str | None = None,
        features: Sequence[str] | None = None,
        ignore: Sequence[str] | None = None,
        declared: Columns,
        position: str | None = None,
        row_weight: str | None = None,
        query_weight: str | None = None,
    ) -> Layout:
        """The layout from given names, or default names. Every column without another role is a feature."""
        names = left_over(names, where, features, ignore)
        given = {"row_weight": row_weight, "query_weight": query_weight}
        free = [name for name in names if name not in (query, rating, document, position, *given.values())]
        query = query or _found(free, QUERY_NAMES)
        if query is None:
            expected = f"a query column called {', '.join(QUERY_NAMES[:-1])} or {QUERY_NAMES[-1]}"
            got = f"the columns {_listed(names)}"
            raise DataError(where=where, expected=expected, got=got, fix="name yours with query=")
        if rating is not None and rating in (features or ()):
            raise DataError(where=where, argument="features", expected="columns without the ratings", got=repr(rating))
        rating = rating or _found([name for name in free if name not in (features or ())], RATING_NAMES)
        document = document or _found(free, DOCUMENT_NAMES)
        weights = {role: given[role] or role for role in WEIGHT_NAMES if given[role] or role in free}
        others = {query, rating, document, position, *weights.values()}
        free = [name for name in names if name not in others and not _ROW_NUMBERS.fullmatch(name)]
        chosen = list(dict.fromkeys([*(free if features is None else features), *declared.hidden()]))
        if not chosen and features is None:
            raise DataError(where=where, expected="at least one feature column", got=f"only {_listed(names)}")
        self = cls(query, rating, document, weights, chosen, position)
        twice = twice_in(self.heads)
        if twice is not None:
            expected = "different columns for queries, ratings, documents, weights and positions"
            raise DataError(where=where, expected=expected, got=f"{twice!r} for two of them")
        check_known(names, [*self.heads, *chosen, *declared.named()], where)
        check_columns(names, [*self.heads, *chosen], where)
        return self

    @property
    def roles(self) -> dict[str, str]:
        """The columns of query ids, ratings and document ids."""
        named = {"query": self.query, "rating": self.rating, "document": self.document}
        return {role: name for role, name in named.items() if name is not None}

    @property
    def heads(self) -> list[str]:
        """All columns except the features."""
        heads = (self.query, self.rating, self.document, *self.weights.values(), self.position)
        return [name for name in heads if name is not None]


def left_over(
    names: Sequence[str], where: str, features: Sequence[str] | None, ignore: Sequence[str] | None
) -> list[str]:
    """The columns that are not ignored. Raises ``DataError`` for an unknown column, unless the features are named."""
    if features is None:
        check_known(names, ignore or (), where)
    return [name for name in names if name not in (ignore or ())]


def default_roles(names: list[str]) -> set[str]:
    """The columns that are not features by default."""
    known = (_found(names, those) for those in (QUERY_NAMES, RATING_NAMES, DOCUMENT_NAMES))
    return {*filter(None, known), *WEIGHT_NAMES, *filter(_ROW_NUMBERS.fullmatch, names)}


def _found(names: list[str], known: tuple[str, ...]) -> str | None:
    return next((name for name in known if name in names), None)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")


class TableSource:
    """One of the files of a data set, or a table in memory: of pandas, polars or Arrow, or read from a CSV file."""

    def __init__(
        self, where: str, table: Any, names: list[str], line_of: Callable[[int], int | None] = lambda row: None
    ) -> None:
        self.where, self.table, self.names, self.line_of = where, table, names, line_of
        self.n_rows = len(table)

    def at(self, row: int) -> str:
        """Where a row is, for messages."""
        line = self.line_of(row)
        return f"{self.where}, row {row}" if line is None else f"{self.where}:{line}"

    def read(self, names: list[str]) -> Any:
        """Some columns as a table."""
        chosen = take_columns(self.table, names)
        for name in names if is_arrow(chosen) else ():
            try:
                chosen.column(name).validate(full=True)  # checks above all that texts are UTF-8
            except ValueError as error:
                where, got = f"{self.where}: column {name!r}", f": {first_line(error)}"
                raise DataError(where=where, expected="numbers or texts", got=got) from None
        return chosen

    def batches(self, names: list[str], n_rows: int) -> Iterator[Any]:
        """Some columns, in batches only if they are of one type each, so that the first batch shows the type."""
        chosen = take_columns(self.table, names)
        if not is_arrow(chosen):
            return iter([chosen])
        return (chosen.slice(start, n_rows) for start in range(0, self.n_rows, n_rows))


def files_of(path: Path) -> list[Path]:
    """The file itself, or the Parquet files of a folder by name, as Spark, Dask and pandas write them.

    Names that start with a dot or an underscore are not data. If no file has a Parquet ending, all count.
    """
    if not path.is_dir():
        return [path]
    visible = [file for file in sorted(path.iterdir()) if file.is_file() and not file.name.startswith((".", "_"))]
    return [file for file in visible if file.suffix in PARQUET_ENDINGS] or visible


class ParquetSource(TableSource):
    """A Parquet file. It is open only while it is read, as there may be thousands."""

    def __init__(self, path: Path) -> None:
        self.path, self.where, self.line_of = path, str(path), lambda row: None
        check_texts([self.where], "the name of a Parquet file")
        with self._opened(1) as file:
            self.names, self.n_rows = file.schema_arrow.names, file.metadata.num_rows

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


def read_parquet(path: Path, *, allocate: Allocator, **named: Any) -> RankingDataset:
    """A data set from a Parquet file, or from a folder of them."""
    files = files_of(path)
    if not files:
        raise DataError(where=path, expected="a folder of Parquet files", got="none in it")
    return read_parts([ParquetSource(file) for file in files], str(path), allocate, **named)


def read_parts(
    parts: Sequence[TableSource], where: str, allocate: Allocator, layout: Layout | None = None, **named: Any
) -> RankingDataset:
    """The data set of all rows of some files; the rows of a query may be in any of them.

    ``layout`` is that of the first file, if it is known; otherwise ``named`` has the arguments of ``Layout.of``.
    """
    parts = [part for part in parts if part.n_rows]
    if not parts:
        raise DataError(where=where, expected="at least one document", got="none")
    first = parts[0]
    layout = layout or Layout.of(first.names, first.where, **named)
    for part in parts[1:]:
        missing = next((name for name in [*layout.heads, *layout.features] if name not in part.names), None)
        if missing is not None:
            expected = f"the column {missing!r}, as in {first.where}"
            raise DataError(where=part.where, expected=expected, got=_listed(part.names))
        more = (name for name in part.names if name not in first.names and not _ROW_NUMBERS.fullmatch(name))
        added = next(more, None)
        if added is not None and named.get("features") is None:
            expected, fix = f"the columns of {first.where}", "name the columns with features="
            raise DataError(where=part.where, expected=expected, got=f"also {added!r}", fix=fix)
    heads = [_read_heads(part, layout) for part in parts]
    columns = {name: [head[name] for head in heads if name in head] for name in heads[0]}
    ids = _of_one_type(columns["query"], parts)
    with located(where):
        as_names(layout.features, len(layout.features))
        query_ids, offsets, source_rows = _grouped(ids)
    names, encoder = layout.features, TableEncoder({})
    batch = max(1, _BATCH // (4 * max(1, len(names))))
    if names:
        with located(first.where):
            encoder = TableEncoder.of(next(first.batches(names, batch)), names, named["declared"], can_ignore=True)
    with located(where):
        feature_names = as_names(encoder.names, len(encoder.names))
        features = allocate(sum(part.n_rows for part in parts), len(encoder.names))
    places, end = None, 0
    if source_rows is not None:
        places = np.empty_like(source_rows)
        places[source_rows] = np.arange(len(source_rows))
    for part in parts if names else ():
        before = end
        for table in part.batches(names, batch):
            start, end = end, end + len(table)
            with located(part.where):
                rows = encoder.encode(table, start - before, features[start:end] if places is None else None)
            if places is not None:
                features[places[start:end]] = rows
            spread = (
                slice(start, end) if places is None else slice(places[start:end].min(), places[start:end].max() + 1)
            )
            release_pages(features[spread])
    with located(where):
        kinds = encoder.finish(features)
    data = RankingDataset.from_parts(
        features,
        None,
        offsets,
        query_ids,
        source_rows=source_rows,
        feature_names=feature_names,
        kinds=kinds,
        roles=layout.roles,
    )
    made: dict[str, Any] = {}
    for role, values in columns.items():
        if role == "document_texts":
            texts = StringArray.concat(values)
            made[role] = texts if source_rows is None else texts[source_rows]
        elif role == "query_weight":
            with located(where):
                made[role] = data.weights_per_query(np.concatenate(values))
        elif role != "query":
            made[role] = data.arrange(np.concatenate(values))
    return data.replace(**made)


def _read_heads(part: TableSource, layout: Layout) -> dict[str, Any]:
    """All columns of a file except the features, checked, by their role in a data set."""
    table, n = part.read(layout.heads), part.n_rows
    heads: dict[str, Any] = {}
    if is_arrow(table):
        column = table.column(layout.query)
        if column.null_count:
            missing = [chunk.is_null().to_numpy(zero_copy_only=False) for chunk in column.chunks]
            row = int(np.concatenate(missing).argmax())
            raise DataError(where=part.at(row), expected="a query id in every row", got="none")
        heads["query"] = decoded(column)
    with located(part.where):
        if "query" not in heads:
            heads["query"] = as_ids(as_column(table, layout.query), f"column {layout.query!r}")
        if layout.rating is not None:
            heads["ratings"] = as_numbers(as_column(table, layout.rating), f"column {layout.rating!r}")
        if layout.document is not None:
            heads["document_texts"] = _as_texts(table, layout.document)
        for role, name in layout.weights.items():
            heads[role] = as_weights(as_column(table, name), f"column {name!r}", n)
        if layout.position is not None:
            heads["position"] = as_positions(as_column(table, layout.position), n, f"column {layout.position!r}")
    if "ratings" in heads:
        heads["ratings"] = check_ratings(heads["ratings"].astype(np.float64), part.at)
    return heads


def _of_one_type(ids: list[Any], parts: Sequence[TableSource]) -> list[Any]:
    """The query ids of all files with the same type: files may differ only in the width of their integers."""
    first = ids[0].dtype if isinstance(ids[0], np.ndarray) else ids[0].type
    if len(ids) == 1 or all(one.type == first for one in ids):
        return ids
    arrow = needs_arrow("Parquet")
    is_integer, wide = arrow.types.is_integer, None
    if all(is_integer(one.type) for one in ids):
        wide = arrow.int64()
    elif all(_is_text(one.type) for one in ids):
        wide = arrow.large_string()
    else:
        odd = next(k for k, one in enumerate(ids) if one.type != first)
        expected = f"query ids of type {first}, as in {parts[0].where}"
        raise DataError(where=parts[odd].where, expected=expected, got=str(ids[odd].type))
    cast = []
    for one, part in zip(ids, parts, strict=True):
        try:
            cast.append(one.cast(wide))
        except arrow.ArrowInvalid as error:
            expected = f"query ids that {wide} can hold"
            raise DataError(where=part.where, expected=expected, got=f": {first_line(error)}") from None
    return cast


def _grouped(ids: list[Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64] | None]:
    """Group rows by query as ``group_rows`` does, without a Python object per row if Arrow holds texts."""
    if isinstance(ids[0], np.ndarray):
        return group_rows(ids[0], len(ids[0]))
    arrow = needs_arrow("Parquet")
    whole = arrow.chunked_array([chunk for column in ids for chunk in column.chunks])
    if not (arrow.types.is_integer(whole.type) or _is_text(whole.type)):
        return group_rows(np.asarray(whole.to_numpy()), len(whole))
    encoded = whole.dictionary_encode().chunks
    unique = arrow.chunked_array([encoded[0].dictionary]).to_numpy()
    return group_codes(unique, np.concatenate([chunk.indices.to_numpy() for chunk in encoded]))


def _as_texts(table: Any, name: str) -> StringArray:
    """A column as texts, without a Python object for each if Arrow holds texts; other values are converted."""
    column = decoded(table.column(name)) if is_arrow(table) else None
    if column is None or not _is_text(column.type):
        values = as_column(table, name)
        parts = []
        for start in range(0, len(values), _AT_ONCE):
            texts = [str(value) for value in values[start : start + _AT_ONCE].tolist()]
            check_texts(texts, f"column {name!r}")
            parts.append(StringArray.of(texts))
        return StringArray.concat(parts)
    parts = []
    for chunk in column.fill_null(str(None)).cast(needs_arrow("Parquet").large_string()).chunks:
        _, places, content = chunk.buffers()
        ends = np.frombuffer(places, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
        blob = np.frombuffer(content or b"", np.uint8)[ends[0] : ends[-1]]
        parts.append(StringArray(blob, ends[1:] - ends[0]))
    return StringArray.concat(parts)


def _is_text(kind: Any) -> bool:
    types = needs_arrow("Parquet").types
    return bool(types.is_string(kind) or types.is_large_string(kind))


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
