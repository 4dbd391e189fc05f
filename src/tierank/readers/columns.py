"""Files with named columns, read a batch of rows at a time into the final feature matrix.

The first pass reads query ids, ratings and other columns that are not features; the second reads the features and
writes each row to its place in the grouped matrix. Memory holds some tens of bytes per document and one batch of rows,
however large the files are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tierank.checks import (
    as_names,
    as_numbers,
    as_positions,
    as_weights,
    check_ratings,
    check_texts,
    group_codes,
    group_rows,
)
from tierank.dataset import RankingDataset
from tierank.encoding import Encoder
from tierank.errors import DataError
from tierank.extras import needing
from tierank.kinds import Columns
from tierank.memory import Allocator, release_pages
from tierank.tables import as_column, check_known, check_once, decoded
from tierank.text_blocks import Texts

# Default names of columns.
QUERY_NAMES = ("qid", "query", "query_id")
RATING_NAMES = ("rating", "label", "relevance", "grade")
DOCUMENT_NAMES = ("document", "document_id", "docid", "doc_id")
WEIGHT_NAMES = ("row_weight", "query_weight")
# Row numbers that pandas and Dask leave in Parquet and CSV files, and columns without a name: not features.
_ROW_NUMBERS = re.compile(r"__index_level_\d+__|__null_dask_index__|Unnamed: 0(\.\d+)*|")
# Plain integers, with few enough digits for int64, as in the reader of LETOR text.
_PLAIN_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
# Cells that mean a missing value in a column of numbers.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "NaN", "nan", "None")

PARQUET_ENDINGS = (".parquet", ".pq")
# Bytes of the matrix filled at a time, and values converted to text at a time.
_BATCH = 1 << 22
_AT_ONCE = 1 << 16
# Bytes read at a time: of all columns, and at most and at least of one. Arrow alone would read whole columns.
_BUFFERS, _BUFFER, _LEAST_BUFFER = 1 << 24, 1 << 18, 1 << 14


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
            raise DataError(
                f"{where}: expected a query column called {', '.join(QUERY_NAMES[:-1])} or {QUERY_NAMES[-1]},"
                f" got the columns {_listed(names)}; name yours with query="
            )
        if rating is not None and rating in (features or ()):
            raise DataError(where=where, argument="features", expected="columns without the ratings", got=repr(rating))
        rating = rating or _found([name for name in free if name not in (features or ())], RATING_NAMES)
        document = document or _found(free, DOCUMENT_NAMES)
        weights = {role: given[role] or role for role in WEIGHT_NAMES if given[role] or role in free}
        others = {query, rating, document, position, *weights.values()}
        free = [name for name in names if name not in others and not _ROW_NUMBERS.fullmatch(name)]
        chosen = free if features is None else list(features)
        chosen = list(dict.fromkeys([*chosen, *declared.hidden()]))
        if not chosen and features is None:
            raise DataError(f"{where}: expected at least one feature column, got only {_listed(names)}")
        self = cls(query, rating, document, weights, chosen, position)
        twice = next((name for name, count in Counter(self.heads).items() if count > 1), None)
        if twice is not None:
            raise DataError(
                f"{where}: expected different columns for queries, ratings, documents, weights and positions, got"
                f" {twice!r} for two of them"
            )
        check_known(names, [*self.heads, *chosen, *declared.named()], where)
        check_once(names, [*self.heads, *chosen], where)
        return self

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


class Part(Protocol):
    """One of the files of a data set."""

    where: str
    names: list[str]
    n_rows: int

    def at(self, row: int) -> str:
        """Where a row is, for messages."""

    def read(self, names: list[str]) -> Any:
        """Some columns as an Arrow table."""

    def batches(self, names: list[str], n_rows: int) -> Iterator[Any]:
        """Some columns as Arrow tables of at most this many rows."""


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
            return _validated(file.read(columns=names))

    def batches(self, names: list[str], n_rows: int) -> Iterator[Any]:
        """Some columns as Arrow tables of at most this many rows."""
        arrow = needs_arrow("Parquet")
        with self._opened(len(names)) as file:
            for batch in file.iter_batches(n_rows, columns=names):
                yield _validated(arrow.Table.from_batches([batch]))

    @contextmanager
    def _opened(self, n_columns: int) -> Iterator[Any]:
        arrow = needs_arrow("Parquet")
        import pyarrow.parquet

        buffer = max(_LEAST_BUFFER, min(_BUFFER, _BUFFERS // n_columns))
        try:
            with pyarrow.parquet.ParquetFile(self.path, buffer_size=buffer, pre_buffer=False) as file:
                yield file
        except (arrow.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
            raise DataError(f"{self.path}: expected a Parquet file, got: {first_line(error)}") from None


def _validated(table: Any) -> Any:
    """The table, if texts are UTF-8 and dictionary indices are valid: Arrow does not check that itself."""
    table.validate(full=True)
    return table


@dataclass
class TablePart:
    """An Arrow table in memory, read from a CSV file."""

    where: str
    table: Any
    line_of: Callable[[int], int | None]

    def __post_init__(self) -> None:
        self.names, self.n_rows = self.table.column_names, len(self.table)

    def at(self, row: int) -> str:
        """Where a row is, for messages."""
        line = self.line_of(row)
        return f"{self.where}, row {row}" if line is None else f"{self.where}:{line}"

    def read(self, names: list[str]) -> Any:
        """Some columns as an Arrow table."""
        return self.table.select(names)

    def batches(self, names: list[str], n_rows: int) -> Iterator[Any]:
        """Some columns as Arrow tables of at most this many rows."""
        chosen = self.table.select(names)
        return (chosen.slice(start, n_rows) for start in range(0, self.n_rows, n_rows))


def read_parts(parts: Sequence[Part], where: str, allocate: Allocator, **named: Any) -> RankingDataset:
    """The data set of all rows of some files; the rows of a query may be in any of them."""
    parts = [part for part in parts if part.n_rows]
    if not parts:
        raise DataError(f"{where}: expected at least one document, got none")
    columns = Layout.of(parts[0].names, parts[0].where, **named)
    for part in parts[1:]:
        _check_columns(part, parts[0], columns, named.get("features") is not None)
    heads = [_Heads.of(part, columns) for part in parts]
    _unite_ids(heads)
    try:
        as_names(columns.features, len(columns.features))
        query_ids, offsets, source_rows = _grouped([head.query for head in heads])
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    encoder = _encoder_of(parts[0], columns.features, named["declared"])
    try:
        names = as_names(encoder.names, len(encoder.names))
        features = allocate(sum(part.n_rows for part in parts), len(encoder.names))
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    _fill(features, parts, encoder, columns.features, source_rows)
    kinds = encoder.finish(features)
    data = RankingDataset.from_parts(
        features, None, offsets, query_ids, source_rows=source_rows, feature_names=names, kinds=kinds
    )
    return _with_heads(data, heads, where)


def _encoder_of(part: Part, names: list[str], declared: Columns) -> Encoder:
    """The encoder of the columns, chosen by the first rows of the first file."""
    if not names:
        return Encoder({})
    first = next(part.batches(names, _rows_at_once(names)))
    try:
        return Encoder.of(first, names, declared, can_ignore=True)
    except DataError as error:
        raise DataError(f"{part.where}: {error}") from None


def _rows_at_once(names: list[str]) -> int:
    return max(1, _BATCH // (4 * len(names)))


def files_of(path: Path) -> list[Path]:
    """The file itself, or the Parquet files of a folder by name, as Spark, Dask and pandas write them.

    Names that start with a dot or an underscore are not data. If no file has a Parquet ending, all count.
    """
    if not path.is_dir():
        return [path]
    visible = [file for file in sorted(path.iterdir()) if file.is_file() and not file.name.startswith((".", "_"))]
    return [file for file in visible if file.suffix in PARQUET_ENDINGS] or visible


def needs_arrow(what: str) -> Any:
    """The module pyarrow, or an error that says how to install it."""
    with needing(f"reading and writing {what}"):
        import pyarrow
    return pyarrow


def first_line(error: Exception) -> str:
    """The first line of an error of Arrow."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


@dataclass
class _Heads:
    """All columns of a file except the features, checked."""

    where: str
    query: Any
    ratings: NDArray[np.float64] | None
    documents: Texts | None
    weights: dict[str, NDArray[np.float64]]
    position: NDArray[np.int64] | None

    @classmethod
    def of(cls, part: Part, columns: Layout) -> _Heads:
        table = part.read(columns.heads)
        rating, document, position = columns.rating, columns.document, columns.position
        return cls(
            part.where,
            _checked_ids(table.column(columns.query), part),
            None if rating is None else _checked_ratings(as_column(table, rating), rating, part),
            None if document is None else _texts(table.column(document)),
            {
                role: as_weights(as_column(table, name), f"{part.where}: {name}", part.n_rows)
                for role, name in columns.weights.items()
            },
            None
            if position is None
            else as_positions(as_column(table, position), part.n_rows, f"{part.where}: {position}"),
        )


def _check_columns(part: Part, first: Part, columns: Layout, all_named: bool) -> None:
    """Raise ``DataError`` if a file lacks a column that the first one has, or has an additional one."""
    used = [*columns.heads, *columns.features]
    missing = next((name for name in used if name not in part.names), None)
    if missing is not None:
        raise DataError(
            f"{part.where}: expected the column {missing!r}, as in {first.where}, got {_listed(part.names)}"
        )
    added = next((name for name in part.names if name not in first.names and not _ROW_NUMBERS.fullmatch(name)), None)
    if added is not None and not all_named:
        raise DataError(
            f"{part.where}: expected the columns of {first.where}, got also {added!r}; name the columns with features="
        )


def _fill(
    features: NDArray[np.float32],
    parts: Sequence[Part],
    encoder: Encoder,
    names: list[str],
    source_rows: NDArray[np.int64] | None,
) -> None:
    """Read the features of all rows, each into its place."""
    if not names:
        return
    places = None
    if source_rows is not None:
        places = np.empty_like(source_rows)
        places[source_rows] = np.arange(len(source_rows))
    end = 0
    for part in parts:
        first = end
        for table in part.batches(names, _rows_at_once(names)):
            start, end = end, end + len(table)
            try:
                rows = encoder.encode(table, start - first)
            except DataError as error:
                raise DataError(f"{part.where}: {error}") from None
            if places is None:
                features[start:end] = rows
                release_pages(features[start:end])
            else:
                targets = places[start:end]
                features[targets] = rows
                release_pages(features[targets.min() : targets.max() + 1])


def _checked_ratings(values: NDArray[Any], name: str, part: Part) -> NDArray[np.float64]:
    numbers = as_numbers(values, f"{part.where}: column {name!r}").astype(np.float64)
    return check_ratings(numbers, part.at)


def _checked_ids(column: Any, part: Part) -> Any:
    """The query ids of a file as an Arrow column; none may be missing."""
    if column.null_count:
        row = int(
            np.argmax(np.concatenate([chunk.is_null().to_numpy(zero_copy_only=False) for chunk in column.chunks]))
        )
        raise DataError(f"{part.at(row)}: expected a query id in every row, got none")
    return decoded(column)


def _unite_ids(heads: list[_Heads]) -> None:
    """Give the query ids of all files the same type: files may differ only in the width of their integers."""
    arrow = needs_arrow("Parquet")
    first = heads[0].query.type
    odd = next((head for head in heads if head.query.type != first), None)
    if odd is None:
        return
    wide = arrow.int64() if arrow.types.is_integer(first) else arrow.large_string() if _is_text(first) else None
    for head in heads:
        kind = head.query.type
        if wide is None or not (arrow.types.is_integer(kind) if wide == arrow.int64() else _is_text(kind)):
            raise DataError(
                f"{odd.where}: expected query ids of type {first}, as in {heads[0].where}, got {odd.query.type}"
            )
        try:
            head.query = head.query.cast(wide)
        except arrow.ArrowInvalid as error:
            raise DataError(
                f"{head.where}: expected query ids that {wide} can hold, got: {first_line(error)}"
            ) from None


def _grouped(ids: list[Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64] | None]:
    """Group rows by query as ``group_rows`` does, without a Python object per row if ids are texts."""
    arrow = needs_arrow("Parquet")
    whole = arrow.chunked_array([chunk for column in ids for chunk in column.chunks])
    if not (arrow.types.is_integer(whole.type) or _is_text(whole.type)):
        return group_rows(np.asarray(whole.to_numpy()), len(whole))
    encoded = whole.dictionary_encode().chunks
    unique = arrow.chunked_array([encoded[0].dictionary]).to_numpy()
    return group_codes(unique, np.concatenate([chunk.indices.to_numpy() for chunk in encoded]))


def _with_heads(data: RankingDataset, heads: list[_Heads], where: str) -> RankingDataset:
    """A data set with the ratings, documents and weights of its rows."""
    ratings = [head.ratings for head in heads if head.ratings is not None]
    documents = [head.documents for head in heads if head.documents is not None]
    weights = {name: np.concatenate([head.weights[name] for head in heads]) for name in heads[0].weights}
    positions = [head.position for head in heads if head.position is not None]
    parts: dict[str, Any] = {}
    if positions:
        parts["position"] = data.arrange(np.concatenate(positions))
    if ratings:
        parts["ratings"] = data.arrange(np.concatenate(ratings))
    if documents:
        parts["document_texts"] = data.arrange_texts(Texts.concat(documents))
    if "row_weight" in weights:
        parts["row_weight"] = data.arrange(weights["row_weight"])
    if "query_weight" in weights:
        try:
            parts["query_weight"] = data.weights_per_query(weights["query_weight"])
        except DataError as error:
            raise error.at(where) from None
    return data.replace(**parts)


def _texts(column: Any) -> Texts:
    """A column as texts, without a Python object for each if Arrow holds texts; other values are converted."""
    column = decoded(column)
    if not _is_text(column.type):
        values = np.asarray(column.to_numpy())
        spans = range(0, len(values), _AT_ONCE)
        return Texts.concat([Texts.of(str(i) for i in values[k : k + _AT_ONCE].tolist()) for k in spans])
    whole = column.fill_null(str(None)).cast(needs_arrow("Parquet").large_string())
    return Texts.concat([_block(chunk) for chunk in whole.chunks])


def _block(chunk: Any) -> Texts:
    _, places, content = chunk.buffers()
    ends = np.frombuffer(places, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    blob = np.frombuffer(content or b"", np.uint8)[ends[0] : ends[-1]]
    return Texts(blob, ends[1:] - ends[0])


def _is_text(kind: Any) -> bool:
    types = needs_arrow("Parquet").types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def plain_ids(column: Any) -> Any:
    """Query ids that were read as texts: integers if all are plain integers, as in LETOR text; null if missing.

    A word such as NA is an id among texts, and a missing value among integers.
    """
    from pyarrow import compute

    missing = set(MISSING).intersection(unique := column.unique().to_pylist())
    if not all(_PLAIN_INTEGER.fullmatch(text) for text in unique if text not in missing):
        return column
    kinds = needs_arrow("CSV")
    are_missing = compute.is_in(column, value_set=kinds.array(sorted(missing), kinds.string()))
    return compute.if_else(are_missing, kinds.scalar(None, kinds.string()), column).cast(kinds.int64())


def taken(names: list[str]) -> set[str]:
    """The columns that are not features by default."""
    known = (_found(names, those) for those in (QUERY_NAMES, RATING_NAMES, DOCUMENT_NAMES))
    return {*filter(None, known), *WEIGHT_NAMES, *filter(_ROW_NUMBERS.fullmatch, names)}


def _found(names: list[str], known: tuple[str, ...]) -> str | None:
    return next((name for name in known if name in names), None)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")
