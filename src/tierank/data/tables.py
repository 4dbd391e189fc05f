"""Tables of pandas, polars and Arrow: columns by name, and features computed from them as one float32 matrix."""

from __future__ import annotations

import datetime
import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import CHUNK, chunks
from tierank.data.checks import (
    SHOWN,
    are_numbers,
    as_array,
    as_names,
    as_numbers,
    as_objects,
    check_finite,
    describe_values,
    is_missing,
    number_form,
    short_repr,
    to_numbers,
)
from tierank.data.columns import (
    Category,
    Columns,
    ColumnType,
    ColumnTypes,
    Date,
    DatePart,
    Elapsed,
    Element,
    Similarity,
    Text,
)
from tierank.errors import DataError, ParameterError
from tierank.extras import require

# Types of texts in pandas, polars and Arrow, even if all values are missing; Arrow's dictionaries of numbers count as
# numbers, as Parquet files do not distinguish them.
_TEXTS = ("str", "string", "String", "large_string", "string_view")
# The most columns that a message describes, and that it names.
_LISTED, _NAMED = 12, 100
# Microseconds of a day, and the day that days are counted from.
_DAY = 86_400_000_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# Columns of a table that hold query ids, if none are given.
QUERY_COLUMNS = ("qid", "query_id", "group_id")
# What a column may hold.
_USABLE = "numbers, texts, dates or vectors"


def is_arrow(table: Any) -> bool:
    """Whether a table is one of Arrow."""
    return hasattr(type(table), "column_names")


def load_stream(value: Any) -> Any:
    """A stream of Arrow, such as a relation of DuckDB, as an Arrow table, batch by batch; anything else unchanged."""
    if not hasattr(value, "__arrow_c_stream__") or is_arrow(value) or hasattr(value, "to_numpy"):  # pandas, polars
        return value
    require("a stream of Arrow", "pyarrow")
    import pyarrow

    try:
        return pyarrow.RecordBatchReader.from_stream(value).read_all()
    except (pyarrow.ArrowException, TypeError, OSError) as error:
        raise DataError(expected="a stream of Arrow that can be read", got=f": {str(error)[:SHOWN]}") from None


def is_table(value: Any) -> bool:
    """Whether this is a table with named columns: pandas, polars or Arrow."""
    if type(value).__name__ == "LazyFrame":
        got = "a polars LazyFrame, which holds no rows yet"
        raise DataError(expected="a table", got=got, fix="pass frame.collect()")
    return is_arrow(value) or (hasattr(value, "columns") and hasattr(value, "__getitem__"))


def column_names(table: Any) -> list[str]:
    """The names of the columns of a pandas, polars or Arrow table."""
    try:
        return [str(name) for name in (table.column_names if is_arrow(table) else table.columns)]
    except UnicodeDecodeError as error:
        expected = "names of columns in UTF-8"
        raise DataError(expected=expected, got=repr(error.object), fix="rename the column") from None


def as_name(argument: str, name: Any) -> str | None:
    """The name of a column, as ``column_names`` has it, or None. Raises ``ParameterError`` for anything else.

    >>> as_name("query", ["qid"])
    Traceback (most recent call last):
    tierank.errors.ParameterError: query: expected the name of one column, got ['qid']
    """
    if name is None or isinstance(name, str):
        return name
    if isinstance(name, int):  # columns of pandas may be numbered
        return str(name)
    raise ParameterError(argument=argument, expected="the name of one column", got=short_repr(name))


def as_name_list(argument: str, names: Any) -> list[str]:
    """Names of columns. Raises ``ParameterError`` for anything but a list of them: a text is a list of its letters.

    >>> as_name_list("ignore", "title")
    Traceback (most recent call last):
    tierank.errors.ParameterError: ignore: expected a list of names of columns, got 'title'; write ['title']
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        fix = f"write [{short_repr(names)}]" if isinstance(names, str) else None
        raise ParameterError(argument=argument, expected="a list of names of columns", got=short_repr(names), fix=fix)
    return [name for one in names if (name := as_name(argument, one)) is not None]


def check_known(known: Sequence[str], wanted: Iterable[str], where: str | os.PathLike[str] | None = None) -> None:
    """Raise ``DataError`` if a table with the columns ``known`` lacks one that is wanted.

    >>> check_known(["qid", "bm25"], ["bm52"], "shop.csv")
    Traceback (most recent call last):
    tierank.errors.DataError: shop.csv: unknown column 'bm52': did you mean 'bm25'? Known: bm25, qid
    """
    unknown = next((name for name in wanted if name not in known), None)
    if unknown is not None:
        raise DataError(str(ParameterError.unknown("column", unknown, known)), where=where)


def check_columns(known: Sequence[str], wanted: Collection[str], where: str | os.PathLike[str] | None = None) -> None:
    """Raise ``DataError`` if a wanted column is not there, or there twice: which one is meant cannot be known.

    >>> check_columns(["qid", "bm25", "bm25"], ["qid", "bm25"], "shop.csv")
    Traceback (most recent call last):
    tierank.errors.DataError: shop.csv: expected each column once, got 'bm25' twice; rename one of them
    """
    check_known(known, wanted, where)
    counts = Counter(known)
    twice = next((name for name in wanted if counts[name] > 1), None)
    if twice is not None:
        raise DataError(where=where, expected="each column once", got=f"{twice!r} twice", fix="rename one of them")


def as_column(table: Any, name: str, names: list[str] | None = None) -> NDArray[Any]:
    """One column of a table as an array; ``names`` are those of the table, if they are known."""
    names = column_names(table) if names is None else names
    check_known(names, [name])
    try:
        if is_arrow(table):
            table.column(name).validate(full=True)  # checks above all that texts are UTF-8
            return np.asarray(decoded(table.column(name)).to_numpy())
        column = table[table.columns[names.index(name)]]
        if getattr(getattr(column, "dtype", None), "fields", None):  # polars would give a matrix of the fields
            return as_objects(column.to_list())
        return np.asarray(column.to_numpy() if hasattr(column, "to_numpy") else column)
    except MemoryError:
        raise
    except Exception as error:  # Arrow and polars raise their own, for types that numpy lacks
        got = f": {str(error)[:SHOWN]}"
        raise DataError(where=f"column {name!r}", expected="numbers or texts", got=got) from None


def query_column(table: Any, known: str | None = None, others: Collection[str] = ()) -> str | None:
    """The column of query ids of a table: the known one, or else one of a usual name that is not among the others.

    >>> query_column(RequestTable({"query_id": ["a"], "price": [3.5]}))
    'query_id'
    """
    names = column_names(table)
    if known in names:
        return known
    found = [name for name in QUERY_COLUMNS if name in names and name not in others]
    if len(found) > 1:
        fix = f"name the one that holds them, such as qid={found[0]!r}, and leave out or rename the others"
        raise DataError(
            argument="qid", expected="one column of query ids in X", got=" and ".join(map(repr, found)), fix=fix
        )
    return found[0] if found else None


def query_ids_in(X: Any, known: str | None = None) -> NDArray[Any] | None:
    """The query ids in a column of a table; None if there is no such column, and for anything but a table."""
    name = query_column(X, known) if is_table(X) else None
    return None if name is None else as_column(X, name)


def index_of(values: Any) -> Any:
    """The index of what pandas holds; None for anything else."""
    return values.index if type(values).__module__.partition(".")[0] == "pandas" and hasattr(values, "iloc") else None


def series_name(values: Any) -> str | None:
    """The name of a column of pandas or polars that was taken from its table; None for anything else."""
    name = getattr(values, "name", None)
    return name if isinstance(name, str) and name and hasattr(values, "to_numpy") else None


def warn_of_row_order(**given: Any) -> None:
    """Warn where things of pandas that belong together have the same index in different orders.

    Rows are matched by their order, as everywhere in scikit-learn, so one of them was probably sorted or shuffled.
    """
    indices = {name: index for name, values in given.items() if (index := index_of(values)) is not None}
    for name, index in list(indices.items())[1:]:
        first, other = next(iter(indices.items()))
        is_moved = len(index) == len(other) and not index.equals(other)
        if is_moved and index.isin(other).all() and other.isin(index).all():
            warnings.warn(
                f"{name}: has the index of {first} in another order, and rows are matched by their order, not by their"
                f" index: give {name}.loc[{first}.index], or {name}.to_numpy() if this is intended",
                stacklevel=4,
            )


def by_index(values: Any, ids: Sequence[Hashable]) -> dict[Hashable, Any] | None:
    """The values of a pandas Series by its index, if that holds these ids and nothing else, as after a ``groupby``.

    None for anything else. An index that only numbers the rows names nothing, whatever the ids are.
    """
    index = index_of(values)
    is_counted = index is None or type(index).__name__ == "RangeIndex" or hasattr(values, "columns")
    if is_counted or len(index) != len(ids) or set(index.tolist()) != set(ids):
        return None
    return dict(zip(index.tolist(), values.tolist(), strict=True))


def take_columns(table: Any, names: Sequence[str]) -> Any:
    """The columns of a table with these names, in this order; by index, because names need not be texts."""
    known = column_names(table)
    check_columns(known, names)
    places = [known.index(name) for name in names]
    if hasattr(table, "iloc"):
        return table.iloc[:, places]
    return table.select(places) if is_arrow(table) else table[:, places]


def decoded(column: Any) -> Any:
    """An Arrow column without dictionary encoding, for which ``to_numpy`` would replace missing values."""
    return column.cast(column.type.value_type) if hasattr(column.type, "index_type") else column


class RequestTable:
    """Columns of values by name, as in a request: a minimal table."""

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns, self.columns = columns, list(columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return as_objects(self._columns[name])


class UnusableColumn(Exception):
    """Why a column cannot be used.

    Parameters
    ----------
    got : str
        What the column holds.
    expected : str
        What it should hold.
    column : str, optional
        Its name, if it is not that of the feature.
    are_numbers : bool, default False
        Whether its texts are numbers, or it holds other values beside numbers.
    """

    def __init__(
        self, got: str, expected: str = _USABLE, *, column: str | None = None, are_numbers: bool = False
    ) -> None:
        super().__init__(got)
        self.got, self.expected, self.column, self.are_numbers = got, expected, column, are_numbers


def unusable_columns(refused: Mapping[str, UnusableColumn], *, can_ignore: bool = False) -> DataError:
    """The error for all columns that cannot be used, with what each holds.

    >>> mixed = UnusableColumn("texts such as 'a' and other values such as 1")
    >>> print(unusable_columns({"raw": UnusableColumn("b'x'"), "title": mixed}))
    column 'raw': expected numbers, texts, dates or vectors, got b'x'; column 'title': expected numbers, texts, dates or
    vectors, got texts such as 'a' and other values such as 1; convert them to one of these, or leave the columns out
    """
    told = [DataError(where=f"column {name!r}", expected=one.expected, got=one.got) for name, one in refused.items()]
    remedy = f"or leave the column{'' if len(told) == 1 else 's'} out"
    if can_ignore:
        remedy += f" with ignore={list(refused) if len(refused) <= _NAMED else ''}"
    numbers = [name for name, one in refused.items() if one.are_numbers]
    if numbers:
        others = "" if len(numbers) == len(told) else ", and the others to one of these"
        declared = f"declare columns=Columns(categories={numbers}) if they are names"
        fix = f"convert {', '.join(map(repr, numbers[:_LISTED]))} to numbers{others}, or {declared}, {remedy}"
    elif any(one.expected == _USABLE for one in refused.values()):
        fix = f"convert them to one of these, {remedy}"
    else:
        fix = f"convert {'it' if len(told) == 1 else 'them'}{', ' + remedy if can_ignore else ''}"
    if len(told) == 1:
        told[0].fix = fix
        return told[0]
    more = f"; ... ({len(told)} columns in all)" if len(told) > _LISTED else ""
    return DataError(f"{'; '.join(map(str, told[:_LISTED]))}{more}", fix=fix)


class TableColumns:
    """The columns of a table, as numbers, level numbers, days or vectors.

    Parameters
    ----------
    table : table
        A table of pandas, polars, Arrow or a request.
    levels : dict of str to dict
        The numbers of the texts of each category, to which ``codes`` adds new ones.
    """

    def __init__(self, table: Any, levels: dict[str, dict[str, int]] | None = None) -> None:
        self._table, self.names, self._levels = table, column_names(table), levels or {}
        self._made: dict[tuple[str, Callable[[NDArray[Any]], Any]], NDArray[np.float64]] = {}

    def recognise(self, name: str, declared: Columns) -> dict[str, ColumnType | None]:
        """The features of one column with their types; None for plain numbers. Raises ``UnusableColumn``."""
        learned_as = "mean" if name in declared.means else "levels" if name in declared.categories else None
        matched = declared.matched()
        if name in matched:
            encoder = declared.encoder or ""
            return {name: Text(learned_as=learned_as or "matches", documents=matched[name], encoder=encoder)}
        values = as_column(self._table, name, self.names)
        known = (value for value in values.ravel() if not is_missing(value))
        first = next(known, None) if values.ndim == 1 else None
        are_dates = values.dtype.kind == "M" or isinstance(first, (datetime.date, np.datetime64))
        if name in (*declared.dates, declared.now) or (are_dates and name not in declared.categories):
            _as_days(values)
            age = Date() if declared.now is None else Elapsed(name, declared.now)
            made = {part: (f"{name}_{part}", DatePart(name, part)) for part in declared.date_parts if part != "age"}
            return dict(made.get(part, (name, age)) for part in declared.date_parts)
        if learned_as is not None or self._type_of(name) in _TEXTS or self.is_of_levels(name):
            return {name: Category(learned_as=learned_as or "auto")}
        if values.ndim == 1 and to_numbers(values) is not None:
            return {name: None}
        if isinstance(first, str):
            odd = next((value for value in known if not isinstance(value, str)), None)
            if odd is not None:
                raise UnusableColumn(f"texts such as {short_repr(first)} and other values such as {short_repr(odd)}")
            return {name: Category()}
        if values.ndim == 2 or isinstance(first, (list, tuple, np.ndarray)) or hasattr(first, "to_numpy"):
            size = _as_vectors(values).shape[1]
            return {f"{name}_{place}": Element(name, place, size) for place in range(size)}
        raise UnusableColumn(_described(values))

    def _type_of(self, name: str) -> str:
        """The type of a column, as its library calls it."""
        if is_arrow(self._table):
            return str(self._table.column(name).type)
        return str(getattr(self._table[self._table.columns[self.names.index(name)]], "dtype", ""))

    def is_of_levels(self, name: str) -> bool:
        """Whether a column has a type of categories: of pandas, polars or Arrow."""
        kind = self._type_of(name)
        is_of_texts = kind.startswith("dictionary<values=") and kind[18:].split(",")[0] in _TEXTS
        return kind == "category" or kind.startswith(("Categorical", "Enum")) or is_of_texts

    def numbers(self, name: str) -> NDArray[Any]:
        """A column of numbers."""
        values = as_column(self._table, name, self.names)
        numbers = to_numbers(values) if values.ndim == 1 else None
        if numbers is None:
            raise UnusableColumn(_described(values), "numbers")
        # As with a missing value, which turns integers into floats: the same for all rows.
        return numbers.astype(np.float64) if numbers.dtype.kind in "iu" else numbers

    def codes(self, name: str) -> NDArray[np.float64]:
        """A column of texts as level numbers, in order of first appearance; NaN if missing."""
        values, codes = self._different(name)
        numbers, known = np.full(len(values) + 1, np.nan), self._levels[name]
        for place in np.unique(codes[codes >= 0]).tolist():  # a categorical type may have unused levels
            value = values[place]
            text = "" if is_missing(value) else _text_of(value)
            if text is None:
                infinite = isinstance(value, float)
                raise UnusableColumn(repr(value) if infinite else describe_values(as_objects([value])))
            if text:
                numbers[place] = known.setdefault(text, len(known))
        return numbers[codes]  # -1, the last entry, is missing

    def _different(self, name: str) -> tuple[list[Any], NDArray[np.int64]]:
        """The different values of a column, and the index of each row's value; -1 if it is missing."""
        if is_arrow(self._table):
            column = self._table.column(name)
            column.validate(full=True)
            try:
                encoded = decoded(column).dictionary_encode().combine_chunks()
            except NotImplementedError:  # raised by Arrow for lists and other types that are not categories
                raise UnusableColumn(_described(as_column(self._table, name, self.names))) from None
            whole = encoded.chunks[0] if hasattr(encoded, "chunks") else encoded
            return whole.dictionary.to_pylist(), whole.indices.fill_null(-1).to_numpy().astype(np.int64)
        column = self._table[self._table.columns[self.names.index(name)]]
        if hasattr(getattr(column, "cat", None), "codes"):  # of pandas
            return list(column.cat.categories), column.cat.codes.to_numpy().astype(np.int64)
        places: dict[Any, int] = {}
        codes = np.empty(len(self._table), np.int64)
        for row, value in enumerate(as_column(self._table, name, self.names).tolist()):
            try:
                is_known = isinstance(value, str) or not is_missing(value)
                codes[row] = places.setdefault(value, len(places)) if is_known else -1
            except TypeError:  # a list or another value that is not hashable
                raise UnusableColumn(describe_values(as_objects([value]))) from None
        return list(places), codes

    def _once(self, name: str, make: Callable[[NDArray[Any]], NDArray[np.float64]]) -> NDArray[np.float64]:
        """A column that several features are computed from, which is converted only once."""
        if (name, make) not in self._made:
            try:
                self._made[name, make] = make(as_column(self._table, name, self.names))
            except UnusableColumn as refusal:
                refusal.column = name
                raise
        return self._made[name, make]

    def days(self, name: str) -> NDArray[np.float64]:
        """A column of dates, as days since 1970-01-01 UTC."""
        return self._once(name, _as_days)

    def vectors(self, name: str, size: int) -> NDArray[np.float64]:
        """A column of vectors of this size, as a matrix."""
        vectors = self._once(name, _as_vectors)
        if vectors.shape[1] == size:
            return vectors
        if not np.isnan(vectors).all():
            raise UnusableColumn(f"vectors of {vectors.shape[1]} numbers", f"vectors of {size}", column=name)
        return np.full((len(vectors), size), np.nan)

    def paired_vectors(self, query: str, document: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Two columns of vectors of the same size."""
        one, other = self._once(query, _as_vectors), self._once(document, _as_vectors)
        if one.shape != other.shape:
            if not np.isnan(one).all() and not np.isnan(other).all():
                got = f"vectors of {other.shape[1]} numbers, and {query!r} vectors of {one.shape[1]}"
                raise UnusableColumn(got, column=document)
            one = other = np.full((len(one), 1), np.nan)
        return one, other


class TableEncoder:
    """Computes features from the columns of a table, all rows at once or some at a time.

    Parameters
    ----------
    kinds : mapping of str to ColumnType or None
        The features in order, with their types; None for a column of numbers.
    can_ignore : bool
        Whether the caller can leave columns out with ``ignore=``.
    """

    def __init__(self, kinds: Mapping[str, ColumnType | None], *, can_ignore: bool = False) -> None:
        self.kinds, self._can_ignore = kinds, can_ignore
        self._levels: dict[str, dict[str, int]] = {
            name: {} for name, kind in kinds.items() if isinstance(kind, Category)
        }
        self._undeclared: list[str] = []

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return list(self.kinds)

    @classmethod
    def of(cls, table: Any, names: Sequence[str], declared: Columns, *, can_ignore: bool = False) -> TableEncoder:
        """The encoder for these columns, by their content. One ``DataError`` lists all columns that cannot be used."""
        columns = TableColumns(table)
        check_known(columns.names, declared.hidden())
        refused: dict[str, UnusableColumn] = {}
        kinds: dict[str, ColumnType | None] = {}
        paired = {column for pair in declared.similarities for column in pair}
        for name in names:
            try:
                features = columns.recognise(name, declared)
            except UnusableColumn as refusal:
                refused[name] = refusal
                continue
            is_hidden = name == declared.now or (name in paired and name not in declared.vectors)
            twice = next((feature for feature in features if feature in kinds and not is_hidden), None)
            if twice is not None:
                raise DataError(expected="each feature once", got=f"{twice!r} twice", fix="rename the column")
            kinds |= {} if is_hidden else features
        if refused:
            raise unusable_columns(refused, can_ignore=can_ignore)
        if not any(isinstance(kind, (Date, Elapsed, DatePart)) for kind in kinds.values()):
            for argument in ("now", "date_parts"):
                if getattr(declared, argument) != getattr(Columns, argument):
                    expected = "a column of dates that is a feature"
                    fix = "name it in `dates`, if its cells are texts"
                    raise ParameterError(argument=argument, expected=expected, got="none", fix=fix)
        for query, document in declared.similarities:
            for measure in declared.measures:
                kinds[f"{measure}_{query}_{document}"] = Similarity(query, document, measure)
        self = cls(kinds, can_ignore=can_ignore)
        self._undeclared = [
            name for name, kind in kinds.items() if kind == Category() and not columns.is_of_levels(name)
        ]
        return self

    def encode(self, table: Any, first: int = 0, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """The features of the rows of a table; texts are numbered in order of first appearance.

        ``first`` is the number of the first row, for messages; ``out`` is the matrix to fill, if there is one.
        """
        matrix = np.empty((len(table), len(self.kinds)), np.float32) if out is None else out
        columns = TableColumns(table, self._levels)
        refused: dict[str, UnusableColumn] = {}
        for place, (name, kind) in enumerate(self.kinds.items()):
            try:
                values = columns.numbers(name) if kind is None else kind.compute(name, columns)
            except UnusableColumn as refusal:
                refused[refusal.column or name] = refusal
                continue
            with np.errstate(over="ignore"):
                matrix[:, place] = values
            check_finite(matrix[:, place : place + 1], values[:, None], first, [(place, name)])
        if refused:
            raise unusable_columns(refused, can_ignore=self._can_ignore)
        return matrix

    def finish(self, matrix: NDArray[np.float32]) -> dict[str, ColumnType]:
        """Renumber the texts of a matrix that ``encode`` filled in sorted order; returns the types of the features.

        Raises ``DataError`` if they are numbers, unless the column was declared, or has a type of categories.
        """
        refused: dict[str, UnusableColumn] = {}
        for name in self._undeclared:
            levels = sorted(self._levels[name])
            if are_numbers(levels):
                text = next(text for text in levels if number_form(text) in ("plain", "formatted"))
                notation = "as text" if number_form(text) == "plain" else "in another notation"
                refused[name] = UnusableColumn(f"{short_repr(text)}, a number {notation}", "numbers", are_numbers=True)
        if refused:
            raise unusable_columns(refused, can_ignore=self._can_ignore)
        kinds: dict[str, ColumnType] = {}
        for place, (name, kind) in enumerate(self.kinds.items()):
            if isinstance(kind, Category):
                numbers = self._levels[name]
                levels = sorted(numbers)
                sorted_place = np.full(len(levels) + 1, np.nan, np.float32)  # the last one is for missing texts
                sorted_place[[numbers[level] for level in levels]] = np.arange(len(levels))
                for rows in chunks(matrix):
                    codes = rows[:, place]
                    rows[:, place] = sorted_place[np.where(np.isnan(codes), len(levels), codes).astype(np.int64)]
                kind = replace(kind, levels=tuple(levels))
            if kind is not None:
                kinds[name] = kind
        return kinds


def check_declared(X: Any, columns: Columns | None) -> None:
    """Raise ``DataError`` for declared columns that the features do not have."""
    if columns is None:
        return
    if not is_table(X):
        raise ParameterError(argument="columns", expected="None with an array, which has no names", got="some")
    check_known(column_names(X), columns.named())


def _text_of(value: Any) -> str | None:
    """The text of a value of a category; None if it has none."""
    if isinstance(value, (float, np.floating)):
        if not np.isfinite(value):
            return None
        return str(int(value)) if value == int(value) else repr(float(value))
    return str(value) if isinstance(value, (str, int, np.integer, np.bool_)) else None


def _as_days(values: NDArray[Any]) -> NDArray[np.float64]:
    """Dates of numpy, Python or as texts, as days since 1970-01-01 UTC; NaN if missing."""
    if values.dtype.kind == "M":
        days = values.astype("datetime64[us]").astype(np.int64) / _DAY
        return np.where(np.isnat(values), np.nan, days)
    if values.dtype.kind not in "OUT" or values.ndim != 1:
        if values.size and values.dtype.kind == "f" and np.isnan(values).all():
            return values.astype(np.float64)
        raise UnusableColumn(_described(values), "dates") if values.size else UnusableColumn("no dates")
    known: dict[Any, float] = {}
    days = np.empty(len(values))
    for row, value in enumerate(values.tolist()):
        try:
            day = known.get(value)
        except TypeError:
            raise UnusableColumn(describe_values(as_objects([value]))) from None
        if day is None:
            day = known[value] = _as_day(value)
        days[row] = day
    return days


def as_days(values: NDArray[Any], argument: str) -> NDArray[np.float64]:
    """Dates as days since 1970-01-01 UTC, NaN if missing. Raises ``DataError`` for anything else."""
    try:
        return _as_days(values)
    except UnusableColumn as refusal:
        expected = "numbers, or dates such as 2024-01-31"
        raise DataError(argument=argument, expected=expected, got=refusal.got) from None


def _as_day(value: Any) -> float:
    if is_missing(value) or (isinstance(value, str) and not value):
        return np.nan
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value.strip())
        except ValueError:
            raise UnusableColumn(short_repr(value), "a date such as 2024-01-31") from None
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime.datetime):
        raise UnusableColumn(short_repr(value), "a date")
    aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    return (aware - _EPOCH) / datetime.timedelta(days=1)


def _as_vectors(values: NDArray[Any]) -> NDArray[np.float64]:
    """A matrix of the vectors of a column; NaN if missing."""
    if values.ndim == 2 and values.dtype.kind in "biuf":
        return values.astype(np.float64)
    rows = [None if is_missing(one) else _as_vector(one) for one in values] if values.ndim == 1 else []
    sizes = sorted({row.size for row in rows if row is not None})
    if not sizes and rows:
        return np.full((len(rows), 1), np.nan)
    if len(sizes) != 1 or sizes[0] == 0:
        raise UnusableColumn(f"vectors of {' and '.join(map(str, sizes[:2]))} numbers" if sizes else _described(values))
    matrix = np.full((len(rows), sizes[0]), np.nan)
    for place, row in enumerate(rows):
        if row is not None:
            numbers = to_numbers(row)
            if numbers is None:
                raise UnusableColumn(f"vectors with {describe_values(row)}")
            matrix[place] = numbers
    return matrix


def _as_vector(value: Any) -> NDArray[Any]:
    try:
        vector = np.asarray(value)
    except ValueError:  # raised for lists of unequal lengths
        vector = np.empty((0, 0))
    if vector.ndim > 1 or (vector.dtype == object and any(isinstance(one, (list, np.ndarray)) for one in vector.flat)):
        raise UnusableColumn("lists of lists")
    if vector.ndim == 0:
        raise UnusableColumn(f"vectors and other values such as {short_repr(value)}")
    return vector


def _described(values: NDArray[Any]) -> str:
    return describe_values(values) if values.ndim == 1 else "a matrix"


def as_features(
    X: Any,
    columns: Columns | None = None,
    kinds: Mapping[str, ColumnType | None] | None = None,
    *,
    can_ignore: bool = False,
) -> tuple[NDArray[np.float32], list[str] | None, ColumnTypes]:
    """The feature matrix and, for a table, the names and types of the features.

    ``columns`` declares columns; ``kinds`` are the features to compute, as for an earlier table.
    """
    if is_table(X):
        names = column_names(X)
        as_names(names, len(names))
        if kinds is None:
            encoder = TableEncoder.of(X, names, columns or Columns(), can_ignore=can_ignore)
        else:
            encoder = TableEncoder(kinds)
        matrix = encoder.encode(X)
        _check_size(matrix)
        return matrix, encoder.names, encoder.finish(matrix)
    given = as_array(X.toarray() if hasattr(X, "toarray") else X)
    if given.ndim != 2:
        hint = ". Reshape your data: X[:, None] for one feature, X[None] for one document" if given.ndim == 1 else ""
        got = f"{given.ndim} dimension(s){hint}" if given.ndim else type(X).__name__
        fix = "tierank.read makes a data set from a file" if isinstance(X, (str, os.PathLike)) else None
        raise DataError(argument="X", expected="a matrix of documents x features", got=got, fix=fix)
    given = as_numbers(given, "X")
    with np.errstate(over="ignore"):
        matrix = np.ascontiguousarray(given, dtype=np.float32)
    _check_size(matrix)
    for k, chunk in enumerate(chunks(matrix)):
        check_finite(chunk, given[k * CHUNK : (k + 1) * CHUNK], k * CHUNK)
    return matrix, None, {}


def _check_size(matrix: NDArray[np.float32]) -> None:
    if not matrix.size:
        got = f"{len(matrix)} sample(s) and {matrix.shape[1]} feature(s) (shape={matrix.shape})"
        got += " while a minimum of 1 is required."  # the words that scikit-learn's checks look for
        raise DataError(argument="X", expected="at least one document and one feature", got=got)
