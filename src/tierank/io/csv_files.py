"""CSV files with a header line, and TSV files; and single columns of CSV and Parquet files.

Cells are numbers by the rule of LETOR text, not by Arrow's.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from tierank.arrays import Allocator
from tierank.data.checks import are_numbers, check_texts, number_form
from tierank.data.columns import Columns
from tierank.data.dataset import RankingDataset
from tierank.data.tables import UnusableColumn, as_column, check_columns, unusable_columns
from tierank.errors import DataError
from tierank.files import replacing
from tierank.io.layout import (
    PARQUET_ENDINGS,
    QUERY_NAMES,
    Layout,
    ParquetSource,
    TableSource,
    arrow_tables,
    files_of,
    first_line,
    needs_arrow,
    read_parts,
)
from tierank.io.letor import NUMBER
from tierank.io.paths import created, lines_of, naming_content

# Cells that mean a missing value in a column of numbers.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "NaN", "nan", "None")
# Plain integers, with few enough digits for int64, as in the reader of LETOR text.
_PLAIN_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
_SEPARATORS = (",", ";", "\t", "|")
# Cells with a number, and cells that mean a missing value, with or without surrounding blanks.
_NUMBER_CELL = f"(?i)^[ \\t]*{NUMBER}[ \\t]*$"
_MISSING_CELL = f"^[ \\t]*({'|'.join(MISSING)}|(?i:nan|null))[ \\t]*$"
_TRUTH_CELL = "(?i)^[ \\t]*(true|false)[ \\t]*$"
# Cells that other programs write for undefined or infinite numbers.
_NO_NUMBER_CELL = "^[ \\t]*[+-]?(?i:nan|inf|infinity)[ \\t]*$"


def read_csv(path: Path, *, allocate: Allocator, declared: Columns, **named: Any) -> RankingDataset:
    """A data set from a CSV file with a header line, or a TSV file."""
    needs_arrow("CSV")
    with naming_content(path, is_csv=True):
        file = CsvFile(path)
        layout = Layout.of(file.names, str(path), declared=declared, **named)
        table = file.table(layout, declared)
        place = table.column_names.index(layout.query)
        table = table.set_column(place, layout.query, plain_ids(table.column(place)))
        part = TableSource(str(path), table, table.column_names, file.line_of)
        return read_parts([part], str(path), allocate, layout, declared=declared)


class CsvFile:
    """A CSV file."""

    def __init__(self, path: Path) -> None:
        self.path, self._form = path, csv_form(path)

    @cached_property
    def names(self) -> list[str]:
        """The names in the header line."""
        import pyarrow.csv

        try:
            with self._refusing(), pyarrow.csv.open_csv(self.path, parse_options=self._form) as file:
                return list(file.schema.names)
        except UnicodeDecodeError as error:
            got, fix = repr(error.object[:60]), "save the file as UTF-8"
            where, expected = f"{self.path}:1", "a header line in UTF-8"
            raise DataError(where=where, expected=expected, got=got, fix=fix) from None

    def table(self, layout: Layout, declared: Columns) -> Any:
        """The columns that are used: ids and declared categories as texts; others as numbers if all cells are numbers.

        A column of true and false becomes 1 and 0, as in a table.
        """
        arrow = needs_arrow("CSV")
        from pyarrow import compute

        named = {*declared.categories, *declared.means, *declared.dates, declared.now, *declared.matched()}
        texts = [name for name in layout.features if name in named]
        ids = [*(name for name in (layout.query, layout.document) if name is not None), *texts]
        heads = [name for name in layout.heads if name not in ids]
        others = [*heads, *(name for name in layout.features if name not in named)]
        with suppress(arrow.ArrowInvalid):
            table = self._read(ids, others, arrow.float64())
            if not any(compute.any(compute.is_nan(table.column(name))).as_py() for name in others):
                return table
        # Cells that Arrow rejects, or reads as NaN, are checked one by one, for the right number or message.
        with self._refusing():
            table = self._read(ids, others, arrow.binary())
        refused: dict[str, UnusableColumn] = {}
        for name in others:
            try:
                made = self._typed(table.column(name), name in heads)
            except UnusableColumn as refusal:
                refused[name] = refusal
                continue
            table = table.set_column(table.column_names.index(name), name, made)
        odd = next((name for name in heads if name in refused), None)
        if odd is not None:
            where = f"{self.path}: column {odd!r}"
            raise DataError(where=where, expected="numbers", got=refused[odd].got)
        if refused:
            raise unusable_columns(refused, can_ignore=True).at(self.path)
        return table

    def _typed(self, cells: Any, is_head: bool) -> Any:
        """A column of cells as numbers, if all are, or true or false; as texts if most are not and it is a feature."""
        from pyarrow import compute

        row = _first_other(cells, _NUMBER_CELL)
        if row is None:
            return _as_doubles(cells)
        line = self.line_of(row)
        got = repr(cells[row].as_py()[:60].decode(errors="backslashreplace")) + (f" in line {line}" if line else "")
        if is_head:
            raise UnusableColumn(got)
        if _first_other(cells, _TRUTH_CELL) is None:
            for word, digit in (("true", "1"), ("false", "0")):
                cells = compute.replace_substring_regex(cells, f"(?i)^[ \\t]*{word}[ \\t]*$", digit)
            return _as_doubles(cells)
        arrow = needs_arrow("CSV")
        try:
            texts = cells.cast(arrow.string())
            texts.validate(full=True)
        except arrow.ArrowInvalid:
            raise UnusableColumn(f"{got}, which is not UTF-8") from None
        if compute.any(compute.match_substring_regex(cells, _NUMBER_CELL)).as_py():
            raise UnusableColumn(f"numbers and {got}", are_numbers=True)
        if _first_other(cells, _NO_NUMBER_CELL) is None:
            raise UnusableColumn(got)
        if not are_numbers(compute.unique(texts).to_pylist()):
            return texts
        if number_form(texts[row].as_py()) is None:
            raise UnusableColumn(f"numbers and {got}", are_numbers=True)
        raise UnusableColumn(f"{got}, a number in another notation", "numbers", are_numbers=True)

    def read(self, names: list[str]) -> Any:
        """Some columns: numbers if all cells are numbers without leading zeros, texts otherwise."""
        arrow = needs_arrow("CSV")
        from pyarrow import compute

        with self._refusing():
            table = self._read(names, [], arrow.string())
        for name in names:
            cells = table.column(name)
            are_codes = compute.any(compute.match_substring_regex(cells, r"^-?0\d")).as_py()
            if not are_codes and _first_other(cells.cast(arrow.binary()), _NUMBER_CELL) is None:
                whole = plain_ids(cells)
                numbers = whole if whole.type == arrow.int64() else _as_doubles(cells.cast(arrow.binary()))
                table = table.set_column(table.column_names.index(name), name, numbers)
        return table

    def _read(self, ids: list[str], others: list[str], kind: Any) -> Any:
        """The table, with ids as texts: type inference would merge "007" and "7"."""
        import pyarrow.csv

        types = dict.fromkeys(others, kind) | dict.fromkeys(ids, pyarrow.string())
        options = pyarrow.csv.ConvertOptions(column_types=types, include_columns=list(types), null_values=MISSING)
        return pyarrow.csv.read_csv(self.path, parse_options=self._form, convert_options=options)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        arrow = needs_arrow("CSV")
        try:
            yield
        except (arrow.ArrowException, OSError) as error:
            expected = "a CSV table with a header line"
            raise DataError(where=self.path, expected=expected, got=f": {first_line(error)}") from None

    def line_of(self, row: int) -> int | None:
        """The line number of a row, by a pass over the file: rows may span several lines, and empty lines are skipped.

        None if the rows cannot be told.
        """
        with lines_of(self.path) as lines, suppress(csv.Error):
            rows = csv.reader(lines, delimiter=self._form.delimiter)
            places = (rows.line_num for fields in rows if fields)
            return next(islice(places, row + 1, None), None)
        return None


def _first_other(cells: Any, pattern: str) -> int | None:
    """The row of the first cell that neither matches a pattern nor is missing."""
    from pyarrow import compute

    matches = (compute.match_substring_regex(cells, one) for one in (pattern, _MISSING_CELL))
    are_alike = compute.or_(*matches).to_numpy()
    return None if are_alike.all() else int(are_alike.argmin())


def _as_doubles(cells: Any) -> Any:
    """The numbers in cells that are known to be numeric."""
    arrow = needs_arrow("CSV")
    from pyarrow import compute

    is_missing = compute.match_substring_regex(cells, _MISSING_CELL)
    plain = compute.replace_substring_regex(cells.cast(arrow.string()), r"^[ \t]*\+?|[ \t]+$", "")
    return compute.if_else(is_missing, arrow.scalar(None, arrow.string()), plain).cast(arrow.float64())


def plain_ids(column: Any) -> Any:
    """Query ids that were read as texts: integers if all are plain integers, as in LETOR text; null if missing.

    A word such as NA is an id among texts, and a missing value among integers.
    """
    arrow = needs_arrow("CSV")
    from pyarrow import compute

    missing = set(MISSING).intersection(unique := column.unique().to_pylist())
    if not all(_PLAIN_INTEGER.fullmatch(text) for text in unique if text not in missing):
        return column
    are_missing = compute.is_in(column, value_set=arrow.array(sorted(missing), arrow.string()))
    return compute.if_else(are_missing, arrow.scalar(None, arrow.string()), column).cast(arrow.int64())


def csv_form(path: Path) -> Any:
    """How Arrow parses a CSV file; a quoted cell may span several lines, even across blocks."""
    import pyarrow.csv

    check_texts([str(path)], "the name of a CSV file")
    # The most frequent separator in the header line; if there is none, by the file name.
    with lines_of(path) as lines:
        header = re.sub('"[^"]*"', "", next(lines, ""))
    separator = max((_usual_separator(path), *_SEPARATORS), key=header.count)
    return pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True)


def _usual_separator(path: Path) -> str:
    return "\t" if ".tsv" in path.suffixes else ","


def write_csv(data: RankingDataset, path: Path) -> None:
    """Write a CSV file with a header line, or a TSV file."""
    arrow = needs_arrow("CSV")
    import pyarrow.csv

    options = pyarrow.csv.WriteOptions(delimiter=_usual_separator(path))
    tables = arrow_tables(data)
    first = next(tables)
    if plain_ids(arrow.array([str(i) for i in data.query_ids.tolist()], arrow.string())).null_count:
        got = "a word that means a missing value, such as NA, among integers"
        raise DataError(expected="query ids that CSV can hold", got=got, fix="rename it, or write Parquet")
    with (
        replacing(path) as fresh,
        created(fresh, path) as out,
        pyarrow.csv.CSVWriter(out, first.schema, write_options=options) as file,
    ):
        for table in chain([first], tables):
            file.write_table(table)


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
        opened = CsvFile(file) if form == "csv" else ParquetSource(file)
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
