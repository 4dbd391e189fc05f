"""Reading and writing tables with named columns: pandas, polars, Arrow, CSV and Parquet."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.checks import check_texts
from tierank.dataset import RankingDataset, check_dataset
from tierank.encoding import as_features, unusable_columns
from tierank.errors import DataError
from tierank.files import replacing
from tierank.kinds import Category, Columns, Date
from tierank.memory import Allocator, release_pages
from tierank.readers.columns import (
    MISSING,
    PARQUET_ENDINGS,
    QUERY_NAMES,
    Layout,
    ParquetPart,
    TablePart,
    files_of,
    first_line,
    needs_arrow,
    plain_ids,
    read_parts,
    taken,
)
from tierank.readers.letor import NUMBER
from tierank.readers.paths import created, lines_of
from tierank.tables import as_column, check_columns, column_names, take_columns

# Bytes of features converted to a table at a time when a file is written.
_WRITTEN = 1 << 26
# Separators of CSV files.
_SEPARATORS = (",", ";", "\t", "|")


def read_table(table: Any, *, declared: Columns, **named: Any) -> RankingDataset:
    """A data set from a pandas, polars or Arrow table; ``named`` gives the role of columns, as in ``read``."""
    try:
        names = column_names(table)
    except DataError as error:
        raise DataError(f"table: {error}") from None
    columns = Layout.of(names, "table", declared=declared, **named)
    try:
        weights = {role: as_column(table, name) for role, name in columns.weights.items()}
        matrix, features, kinds = as_features(take_columns(table, columns.features), declared, can_ignore=True)
        data = RankingDataset(
            matrix,
            None if columns.rating is None else as_column(table, columns.rating),
            as_column(table, columns.query),
            feature_names=features,
            document_ids=None if columns.document is None else as_column(table, columns.document).tolist(),
            row_weight=weights.get("row_weight"),
            query_weight=weights.get("query_weight"),
            position=None if columns.position is None else as_column(table, columns.position),
        )
        return data.replace(kinds=kinds)
    except DataError as error:
        raise DataError(f"table: {_by_column(str(error), columns)}") from None


def _by_column(message: str, columns: Layout) -> str:
    """A message on an argument of ``RankingDataset``, with the name of the column that it came from."""
    named = {"y": columns.rating, "qid": columns.query, "position": columns.position, **columns.weights}
    argument = next((one for one, column in named.items() if column and message.startswith((f"{one}:", f"{one},"))), "")
    return f"column {named[argument]!r}{message.removeprefix(argument)}" if argument else message


def read_csv(path: Path, *, allocate: Allocator, declared: Columns, **named: Any) -> RankingDataset:
    """A data set from a CSV file with a header line, or a TSV file."""
    needs_arrow("CSV")
    file = _Csv(path)
    columns = Layout.of(file.names(), str(path), declared=declared, **named)
    table = file.table(columns, declared)
    place = table.column_names.index(columns.query)
    table = table.set_column(place, columns.query, plain_ids(table.column(place)))
    used = {name: getattr(columns, name) for name in ("query", "rating", "document", "position")} | columns.weights
    part = TablePart(str(path), table, file.line_of)
    return read_parts([part], str(path), allocate, **used, declared=declared, features=columns.features)


class _Csv:
    """A CSV file. Cells are numbers by the rule of LETOR text, not by Arrow's, which reads 0x10 as 16."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._form = csv_form(path)

    def names(self) -> list[str]:
        """The names in the header line."""
        import pyarrow.csv

        try:
            with self._refusing(), pyarrow.csv.open_csv(self.path, parse_options=self._form) as file:
                return list(file.schema.names)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path}:1: expected a header line in UTF-8, got {error.object[:60]!r}; save the file as UTF-8"
            ) from None

    def table(self, columns: Layout, declared: Columns) -> Any:
        """The columns that are used: ids and declared categories as texts; others as numbers if all cells are numbers.

        A column of true and false becomes 1 and 0, as in a table.
        """
        arrow = needs_arrow("CSV")
        from pyarrow import compute

        named = {*declared.categories, *declared.means, *declared.dates, declared.now, *declared.matched()}
        texts = [name for name in columns.features if name in named]
        ids = [*(name for name in (columns.query, columns.document) if name is not None), *texts]
        heads = [name for name in (columns.rating, columns.position, *columns.weights.values()) if name is not None]
        others = [*heads, *(name for name in columns.features if name not in named)]
        try:
            table = self._read(ids, others, arrow.float64())
            if not any(compute.any(compute.is_nan(table.column(name))).as_py() for name in others):
                return table
        except arrow.ArrowInvalid:
            pass
        # Cells that Arrow rejects, or reads as NaN, are checked one by one, for the right number or message.
        with self._refusing():
            table = self._read(ids, others, arrow.binary())
        forms = {name: self._form_of(table.column(name), name in heads) for name in others}
        odd = next((name for name in heads if forms[name] != "numbers"), None)
        if odd is not None:
            raise DataError(f"{self.path}: column {odd!r}: expected numbers, got {forms[odd]}")
        unusable = {name: what for name, what in forms.items() if what not in ("numbers", "truths", "texts")}
        if unusable:
            raise DataError(f"{self.path}: {unusable_columns(unusable, can_ignore=True)}")
        for name, form in forms.items():
            cells = table.column(name)
            if form == "truths":
                cells = _as_digits(cells)
            made = cells.cast(arrow.string()) if form == "texts" else _as_doubles(cells)
            table = table.set_column(table.column_names.index(name), name, made)
        return table

    def texts(self, names: Sequence[str]) -> Any:
        """Some columns: numbers if all cells are numbers without leading zeros, texts otherwise."""
        arrow = needs_arrow("CSV")
        from pyarrow import compute

        check_columns(self.names(), names, self.path)
        with self._refusing():
            table = self._read(list(names), [], arrow.string())
        for name in names:
            cells = table.column(name)
            are_codes = compute.any(compute.match_substring_regex(cells, r"^-?0\d")).as_py()
            if not are_codes and compute.all(_are_numbers(cells.cast(arrow.binary()))).as_py():
                whole = plain_ids(cells)
                numbers = whole if whole.type == arrow.int64() else _as_doubles(cells.cast(arrow.binary()))
                table = table.set_column(table.column_names.index(name), name, numbers)
        return table

    def _read(self, ids: list[str], others: list[str], kind: Any) -> Any:
        """The table, with ids as texts: type inference would merge "007" and "7"."""
        arrow = needs_arrow("CSV")
        import pyarrow.csv

        types = dict.fromkeys(others, kind) | dict.fromkeys(ids, arrow.string())
        options = pyarrow.csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=MISSING)
        return pyarrow.csv.read_csv(self.path, parse_options=self._form, convert_options=options)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        arrow = needs_arrow("CSV")
        try:
            yield
        except (arrow.ArrowException, OSError) as error:
            raise DataError(f"{self.path}: expected a CSV table with a header line, got: {first_line(error)}") from None

    def _form_of(self, cells: Any, is_head: bool) -> str:
        """What a column holds: numbers, truths (true and false) or texts; otherwise a description for a message."""
        from pyarrow import compute

        row = _first_false(_are_numbers(cells))
        if row is None:
            return "numbers"
        cell = cells[row].as_py()[:60].decode(errors="backslashreplace")
        line = self.line_of(row)
        what = f"{cell!r}" + (f" in line {line}" if line else "")
        if is_head:
            return what
        if _all_match(cells, _TRUTH_CELL):
            return "truths"
        if not _is_utf8(cells):
            return f"{what}, which is not UTF-8"
        number = _first_false(compute.invert(compute.match_substring_regex(cells, _NUMBER_CELL)))
        if number is not None:
            return f"numbers and {what}"
        if _all_match(cells, _NO_NUMBER_CELL):
            return what
        return f"{what}, a number in another notation" if _all_match(cells, _FORMATTED_CELL) else "texts"

    def line_of(self, row: int) -> int | None:
        """The line number of a row, by a pass over the file: rows may span several lines, and empty lines are skipped.

        None if the rows cannot be told.
        """
        with lines_of(self.path) as lines, suppress(csv.Error):
            rows = csv.reader(lines, delimiter=self._form.delimiter)
            places = (rows.line_num for fields in rows if fields)
            return next(islice(places, row + 1, None), None)
        return None


# Cells with a number, and cells that mean a missing value, with or without surrounding blanks.
_NUMBER_CELL = f"(?i)^[ \\t]*{NUMBER}[ \\t]*$"
_MISSING_CELL = f"^[ \\t]*({'|'.join(MISSING)}|(?i:nan|null))[ \\t]*$"
_TRUTH_CELL = "(?i)^[ \\t]*(true|false)[ \\t]*$"
# Cells that other programs write for undefined or infinite numbers.
_NO_NUMBER_CELL = "^[ \\t]*[+-]?(?i:nan|inf|infinity)[ \\t]*$"
# Numbers with a decimal comma, with commas between thousands, or in percent.
_FORMATTED_CELL = r"^[ \t]*[+-]?([0-9][0-9.' ]*,[0-9]+|[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?|[0-9]*[.,]?[0-9]+ ?%)[ \t]*$"


def _are_numbers(cells: Any) -> Any:
    from pyarrow import compute

    return compute.or_(
        compute.match_substring_regex(cells, _NUMBER_CELL), compute.match_substring_regex(cells, _MISSING_CELL)
    )


def _all_match(cells: Any, pattern: str) -> bool:
    """Whether all cells that are not missing match a pattern."""
    from pyarrow import compute

    are_missing = compute.match_substring_regex(cells, _MISSING_CELL)
    return _first_false(compute.or_(are_missing, compute.match_substring_regex(cells, pattern))) is None


def _as_digits(cells: Any) -> Any:
    """1 and 0 in place of true and false."""
    from pyarrow import compute

    for word, digit in (("true", "1"), ("false", "0")):
        cells = compute.replace_substring_regex(cells, f"(?i)^[ \\t]*{word}[ \\t]*$", digit)
    return cells


def _as_doubles(cells: Any) -> Any:
    """The numbers in cells that are known to be numeric."""
    arrow = needs_arrow("CSV")
    from pyarrow import compute

    is_missing = compute.match_substring_regex(cells, _MISSING_CELL)
    plain = compute.replace_substring_regex(cells.cast(arrow.string()), r"^[ \t]*\+?|[ \t]+$", "")
    return compute.if_else(is_missing, arrow.scalar(None, arrow.string()), plain).cast(arrow.float64())


def _is_utf8(cells: Any) -> bool:
    arrow = needs_arrow("CSV")
    try:
        cells.cast(arrow.string()).validate(full=True)
    except arrow.ArrowInvalid:
        return False
    return True


def _first_false(truths: Any) -> int | None:
    """The index of the first False in a column."""
    values = truths.to_numpy()
    return None if values.all() else int(values.argmin())


def csv_form(path: Path) -> Any:
    """How Arrow parses a CSV file; a quoted cell may span several lines, even across blocks."""
    import pyarrow.csv

    check_texts([str(path)], "the name of a CSV file")
    return pyarrow.csv.ParseOptions(delimiter=_separator(path), newlines_in_values=True)


def _separator(path: Path) -> str:
    """The separator of a CSV file: the most frequent one in its header line; if there is none, by the file name."""
    usual = "\t" if ".tsv" in path.suffixes else ","
    with lines_of(path) as lines:
        header = re.sub('"[^"]*"', "", next(lines, ""))
    return max((usual, *_SEPARATORS), key=header.count)


def read_parquet(path: Path, *, allocate: Allocator, **named: Any) -> RankingDataset:
    """A data set from a Parquet file, or from a folder of them."""
    files = files_of(path)
    if not files:
        raise DataError(f"{path}: expected a folder of Parquet files, got none in it")
    return read_parts([ParquetPart(file) for file in files], str(path), allocate, **named)


def read_columns(source: str | os.PathLike[str], names: Sequence[str], format: str | None = None) -> dict[str, Any]:
    """Columns of a CSV or Parquet file, one value per row: numbers or texts, None or NaN if missing."""
    path = Path(source)
    kind = format or ("parquet" if path.is_dir() or path.suffix in PARQUET_ENDINGS else "csv")
    if kind not in ("csv", "parquet") or (format is None and kind == "csv" and not _is_csv(path)):
        raise _nameless(path)
    needs_arrow("CSV" if kind == "csv" else "Parquet")
    names = list(dict.fromkeys(names))
    parts = [_Csv(path).texts(names)] if kind == "csv" else [_of_parquet(file, names) for file in files_of(path)]
    return {name: np.concatenate([as_column(part, name) for part in parts]) for name in names}


def read_attributes(
    source: str | os.PathLike[str], names: Sequence[str], query_ids: Sequence[Any], query: str | None = None
) -> dict[str, dict[Any, Any]]:
    """Columns of a CSV or Parquet file about queries: for each name, a mapping from query ids to values.

    A query may have several rows with equal values. Ids are compared as texts.
    """
    path = Path(source)
    known = _column_names(path)
    query = query or next((name for name in QUERY_NAMES if name in known), QUERY_NAMES[0])
    columns = read_columns(path, [query, *names])
    rows = [str(i) for i in columns[query].tolist()]
    attributes: dict[str, dict[Any, Any]] = {}
    for name in names:
        by_text: dict[str, Any] = {}
        for text, value in zip(rows, columns[name].tolist(), strict=True):
            if by_text.setdefault(text, value) != value and value == value:
                raise DataError(
                    f"{path}: column {name!r}: expected one value for query {text}, got {by_text[text]} and {value}"
                )
        attributes[name] = {i: by_text[str(i)] for i in query_ids if str(i) in by_text}
        if not attributes[name]:
            raise DataError(f"{path}: expected queries such as {query_ids[0]!s}, got {', '.join(rows[:3])}, ...")
    return attributes


def _column_names(path: Path) -> list[str]:
    if path.is_dir() or path.suffix in PARQUET_ENDINGS:
        return list(ParquetPart(files_of(path)[0]).names)
    if not _is_csv(path):
        raise _nameless(path)
    return _Csv(path).names()


def _nameless(path: Path) -> DataError:
    return DataError(f"{path}: expected a CSV or Parquet file, whose columns have names, got another format")


def _is_csv(path: Path) -> bool:
    return bool({".csv", ".tsv"} & set(path.suffixes[-2:]))


def _of_parquet(file: Path, names: Sequence[str]) -> Any:
    part = ParquetPart(file)
    check_columns(part.names, names, file)
    return part.read(list(names))


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
    return next(_tables(data, data.n_documents))


def _tables(data: RankingDataset, at_once: int | None = None) -> Iterator[Any]:
    """The data set as Arrow tables of some rows each, in the caller's row order."""
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
            columns["rating"] = arrow.array(data.ratings[rows], from_pandas=True)  # unjudged documents: empty cells
        if data.document_texts is not None:
            columns["document"] = list(data.document_texts.take(rows))
        if data.row_weight is not None:
            columns["row_weight"] = data.row_weight[rows]
        if data.query_weight is not None:
            columns["query_weight"] = data.query_weight[queries]
        if data.position is not None:
            columns["position"] = data.position[rows]
        if not start:
            _check_names(list(columns), list(names))
        columns.update({name: _as_written(data, name, data.features[rows, k]) for k, name in enumerate(names)})
        yield arrow.table(columns)
        release_pages(data.features[rows.min() : rows.max() + 1])


def _as_written(data: RankingDataset, name: str, values: NDArray[np.float32]) -> Any:
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
    check_texts((i for i in data.query_ids.tolist() if isinstance(i, str)), "query ids")
    try:
        ids = arrow.array(data.query_ids)
        is_flat = not arrow.types.is_nested(ids.type)
    except (arrow.ArrowException, OverflowError):
        is_flat = False
    if not is_flat:
        raise DataError(
            f"expected query ids of one type that a column can hold, such as numbers or texts, got"
            f" {data.query_ids.tolist()[0]!r} and others; convert them to texts: qid=[str(i) for i in qid]"
        )
    return ids


def _check_names(heads: list[str], names: list[str]) -> None:
    """Raise ``DataError`` if a feature would be mistaken for another column when the table is read."""
    others = taken([*heads, *names])
    clash = next((name for name in names if name in others), None)
    if clash is not None:
        raise DataError(
            "expected feature names other than those of queries, ratings, documents, weights and row numbers,"
            f" got a feature called {clash!r}; rename it"
        )
