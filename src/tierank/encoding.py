"""Callers' features as one float32 matrix: columns of numbers, texts, dates and vectors, and plain matrices."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.checks import (
    as_array,
    as_names,
    as_numbers,
    as_object,
    check_finite,
    describe_values,
    is_missing,
    short_repr,
    to_numbers,
)
from tierank.errors import DataError, ParameterError
from tierank.kinds import Category, Columns, Date, DatePart, Elapsed, Element, Kind, Kinds, Similarity, Text
from tierank.memory import CHUNK, chunks
from tierank.tables import as_column, check_known, column_names, decoded, is_table

# Arrow's types of texts; dictionaries of numbers count as numbers, as Parquet files do not distinguish them.
_ARROW_TEXTS = ("string", "large_string", "string_view")
# The most columns that a message describes, and that it names.
_LISTED, _NAMED = 12, 100
# Microseconds of a day, and the day that days are counted from.
_DAY = 86_400_000_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Encoder:
    """Computes features from the columns of a table, all rows at once or some at a time.

    Parameters
    ----------
    kinds : mapping of str to Kind or None
        The features in order, with their kinds; None for a column of numbers.
    can_ignore : bool
        Whether the caller can leave columns out with ``ignore=``.
    """

    def __init__(self, kinds: Mapping[str, Kind | None], *, can_ignore: bool = False) -> None:
        self.names = list(kinds)
        self._kinds, self._can_ignore = list(kinds.values()), can_ignore
        self._codes: dict[str, dict[str, int]] = {
            name: {} for name, kind in kinds.items() if isinstance(kind, Category)
        }

    @classmethod
    def of(cls, table: Any, names: Sequence[str], columns: Columns, *, can_ignore: bool = False) -> Encoder:
        """The encoder for these columns, by their content. One ``DataError`` lists all columns that cannot be used."""
        known = column_names(table)
        check_known(known, columns.hidden())
        unusable: dict[str, str] = {}
        kinds: dict[str, Kind | None] = {}
        paired = {column for pair in columns.similarities for column in pair}
        for name in names:
            try:
                features = _kinds_of(table, name, known, columns)
            except _Unusable as refusal:
                unusable[name] = str(refusal)
                continue
            is_hidden = name == columns.now or (name in paired and name not in columns.vectors)
            for feature, kind in {} if is_hidden else features.items():
                if feature in kinds:
                    raise DataError(f"expected each feature once, got {feature!r} twice; rename the column")
                kinds[feature] = kind
        if unusable:
            raise unusable_columns(unusable, can_ignore=can_ignore)
        _check_dates(kinds, columns)
        for query, document in columns.similarities:
            for measure in columns.measures:
                kinds[f"{measure}_{query}_{document}"] = Similarity(query, document, measure)
        return cls(kinds, can_ignore=can_ignore)

    def encode(self, table: Any, first: int = 0) -> NDArray[np.float32]:
        """The features of the rows of a table; texts are numbered in order of first appearance.

        ``first`` is the number of the first row, for messages.
        """
        matrix = np.empty((len(table), len(self.names)), np.float32)
        source = _Source(table)
        unusable: dict[str, str] = {}
        for place, (name, kind) in enumerate(zip(self.names, self._kinds, strict=True)):
            try:
                values = self._encoded(source, name, kind)
            except _Unusable as refusal:
                unusable[refusal.column or name] = str(refusal)
                continue
            with np.errstate(over="ignore"):
                matrix[:, place] = values
            check_finite(matrix[:, place : place + 1], values[:, None], first, [(place, name)])
        if unusable:
            raise unusable_columns(unusable, can_ignore=self._can_ignore)
        return matrix

    def finish(self, matrix: NDArray[np.float32]) -> dict[str, Kind]:
        """Renumber the texts of a matrix that ``encode`` filled in sorted order; returns the kinds of the features."""
        kinds: dict[str, Kind] = {}
        for place, (name, kind) in enumerate(zip(self.names, self._kinds, strict=True)):
            if isinstance(kind, Category):
                levels = sorted(self._codes[name])
                sorted_place = {self._codes[name][level]: k for k, level in enumerate(levels)}
                by_code = np.array([sorted_place[code] for code in range(len(levels))] + [np.nan], np.float32)
                for rows in chunks(matrix):
                    codes = rows[:, place]
                    rows[:, place] = by_code[np.where(np.isnan(codes), len(levels), codes).astype(np.int64)]
                kind = replace(kind, levels=tuple(levels))
            if kind is not None:
                kinds[name] = kind
        return kinds

    def _encoded(self, source: _Source, name: str, kind: Kind | None) -> NDArray[Any]:
        if kind is None:
            return source.numbers(name)
        if isinstance(kind, Category):
            return source.codes(name, self._codes[name])
        if isinstance(kind, Date):
            return source.days(name)
        if isinstance(kind, Elapsed):
            return source.days(kind.now) - source.days(kind.column)
        if isinstance(kind, DatePart):
            return _part_of(source.days(kind.column), kind.part)
        if isinstance(kind, Element):
            return source.vectors(kind.column, kind.size)[:, kind.place]
        if isinstance(kind, Similarity):
            return _similarity(source, kind)
        raise TypeError(kind)


# What is between the content of a column and what was expected of it, in the text of a refusal.
_WHERE = ", where "


class _Unusable(Exception):
    """Why a column cannot be used; ``column`` names it if it is not that of the feature."""

    def __init__(self, what: str, column: str | None = None) -> None:
        super().__init__(what)
        self.column = column


class _Source:
    """Columns of a table, each read once."""

    def __init__(self, table: Any) -> None:
        self._table, self._known = table, column_names(table)
        self._made: dict[tuple[str, str], Any] = {}

    def _values(self, name: str) -> NDArray[Any]:
        return as_column(self._table, name, self._known)

    def _once(self, name: str, how: str, make: Callable[[NDArray[Any]], Any]) -> Any:
        if (name, how) not in self._made:
            try:
                self._made[name, how] = make(self._values(name))
            except _Unusable as refusal:
                raise _Unusable(str(refusal), name) from None
        return self._made[name, how]

    def numbers(self, name: str) -> NDArray[Any]:
        values = self._values(name)
        numbers = to_numbers(values) if values.ndim == 1 else None
        if numbers is None:
            raise _Unusable(f"{_described(values)}, where numbers were expected")
        # As with a missing value, which turns integers into floats: the same for all rows.
        return numbers.astype(np.float64) if numbers.dtype.kind in "iu" else numbers

    def codes(self, name: str, known: dict[str, int]) -> NDArray[np.float64]:
        levels, codes = _levels(self._table, name, self._known)
        numbers = np.full(len(levels) + 1, np.nan)
        for place in np.unique(codes[codes >= 0]).tolist():  # a categorical type may have unused levels
            level = levels[place]
            text = "" if is_missing(level) else _text_of(level)
            if text is None:
                is_number = isinstance(level, float)  # an infinite one
                raise _Unusable(repr(level) if is_number else describe_values(as_object(level)))
            if text:
                numbers[place] = known.setdefault(text, len(known))
        return numbers[codes]  # -1, the last entry, is missing

    def days(self, name: str) -> NDArray[np.float64]:
        return np.asarray(self._once(name, "days", _days), np.float64)

    def vectors(self, name: str, size: int | None = None) -> NDArray[np.float64]:
        vectors = np.asarray(self._once(name, "vectors", _vectors), np.float64)
        if size is not None and vectors.shape[1] != size and not np.isnan(vectors).all():
            raise _Unusable(f"vectors of {vectors.shape[1]} numbers, where vectors of {size} were expected", name)
        return vectors if size is None or vectors.shape[1] == size else np.full((len(vectors), size), np.nan)


def _kinds_of(table: Any, name: str, known: list[str], columns: Columns) -> dict[str, Kind | None]:
    """The features of one column, with their kinds."""
    matched = columns.matched()
    if name in matched:
        learned_as = "mean" if name in columns.means else "levels" if name in columns.categories else "matches"
        return {name: Text(learned_as=learned_as, documents=matched[name])}
    values = as_column(table, name, known)
    first = _first_known(values)
    are_dates = values.dtype.kind == "M" or isinstance(first, (datetime.date, np.datetime64))
    if name in (*columns.dates, columns.now) or (are_dates and name not in columns.categories):
        _days(values)
        return _date_kinds(name, columns)
    if name in (*columns.categories, *columns.means) or _is_categorical(table, name, known):
        learned_as = "mean" if name in columns.means else "levels" if name in columns.categories else "auto"
        return {name: Category(learned_as=learned_as)}
    if values.ndim == 1 and to_numbers(values) is not None:
        return {name: None}
    if isinstance(first, str):
        odd = next((one for one in values.ravel() if not isinstance(one, str) and not is_missing(one)), None)
        if odd is not None:
            raise _Unusable(f"texts such as {short_repr(first)} and other values such as {short_repr(odd)}")
        return {name: Category()}
    if values.ndim == 2 or isinstance(first, (list, tuple, np.ndarray)) or hasattr(first, "to_numpy"):
        size = _vectors(values).shape[1]
        return {f"{name}_{place}": Element(name, place, size) for place in range(size)}
    raise _Unusable(_described(values))


def _check_dates(kinds: Mapping[str, Kind | None], columns: Columns) -> None:
    """Raise ``DataError`` if dates were declared, and no column holds any."""
    if any(isinstance(kind, (Date, Elapsed, DatePart)) for kind in kinds.values()):
        return
    for argument, given in (("now", columns.now is not None), ("date_parts", columns.date_parts != Columns.date_parts)):
        if given:
            raise ParameterError(
                argument=argument,
                expected="a column of dates that is a feature",
                got="none",
                fix="name it in `dates`, if its cells are texts",
            )


def check_declared(X: Any, columns: Columns | None) -> None:
    """Raise ``DataError`` for declared columns that the features do not have."""
    if columns is None:
        return
    if not is_table(X):
        raise ParameterError(argument="columns", expected="None with an array, which has no names", got="some")
    check_known(column_names(X), columns.named())


def _date_kinds(name: str, columns: Columns) -> dict[str, Kind | None]:
    kinds: dict[str, Kind | None] = {}
    for part in columns.date_parts:
        if part == "age":
            kinds[name] = Date() if columns.now is None else Elapsed(name, columns.now)
        else:
            kinds[f"{name}_{part}"] = DatePart(name, part)
    return kinds


def _is_categorical(table: Any, name: str, known: list[str]) -> bool:
    """Whether the type of a column is categories or texts, even if all values are missing."""
    if hasattr(type(table), "column_names"):
        kind = str(table.column(name).type)
        return kind in _ARROW_TEXTS or (
            kind.startswith("dictionary<values=") and kind[18:].split(",")[0] in _ARROW_TEXTS
        )
    dtype = str(getattr(table[table.columns[known.index(name)]], "dtype", ""))
    return dtype in ("category", "str", "string", "String") or dtype.startswith(("Categorical", "Enum"))


def _levels(table: Any, name: str, known: list[str]) -> tuple[list[Any], NDArray[np.int64]]:
    """The different values of a column, and the index of each row's value; -1 if it is missing."""
    if hasattr(type(table), "column_names"):
        column = table.column(name)
        column.validate(full=True)
        try:
            encoded = decoded(column).dictionary_encode().combine_chunks()
        except NotImplementedError:  # raised by Arrow for lists and other types that are not categories
            raise _Unusable(_described(as_column(table, name, known))) from None
        whole = encoded.chunks[0] if hasattr(encoded, "chunks") else encoded
        return whole.dictionary.to_pylist(), whole.indices.fill_null(-1).to_numpy().astype(np.int64)
    column = table[table.columns[known.index(name)]]
    if hasattr(getattr(column, "cat", None), "codes"):  # of pandas
        return list(column.cat.categories), column.cat.codes.to_numpy().astype(np.int64)
    places: dict[Any, int] = {}
    codes = np.empty(len(table), np.int64)
    for row, value in enumerate(as_column(table, name, known).tolist()):
        missing = value is None or (not isinstance(value, str) and is_missing(value))
        codes[row] = -1 if missing else places.setdefault(_hashable(value), len(places))
    return list(places), codes


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, dict, np.ndarray)):
        raise _Unusable(describe_values(as_object(value)))
    return value


def _text_of(value: Any) -> str | None:
    """The text of a value of a category; None if it has none."""
    if isinstance(value, str):
        return value
    if isinstance(value, (float, np.floating)):
        if not np.isfinite(value):
            return None
        return str(int(value)) if value == int(value) else repr(float(value))
    return str(value) if isinstance(value, (int, np.integer, np.bool_)) else None


def _days(values: NDArray[Any]) -> NDArray[np.float64]:
    """Dates of numpy, Python or as texts, as days since 1970-01-01 UTC; NaN if missing."""
    if values.dtype.kind == "M":
        days = values.astype("datetime64[us]").astype(np.int64) / _DAY
        return np.where(np.isnat(values), np.nan, days)
    if values.dtype.kind not in "OUT" or values.ndim != 1:
        if values.size and values.dtype.kind == "f" and np.isnan(values).all():
            return values.astype(np.float64)
        raise _Unusable(f"{_described(values)}, where dates were expected" if values.size else "no dates")
    known: dict[Any, float] = {}
    days = np.empty(len(values))
    for row, value in enumerate(values.tolist()):
        try:
            day = known.get(value)
        except TypeError:
            raise _Unusable(describe_values(as_object(value))) from None
        if day is None:
            day = known[value] = _day(value)
        days[row] = day
    return days


def _day(value: Any) -> float:
    if is_missing(value) or (isinstance(value, str) and not value):
        return np.nan
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value.strip())
        except ValueError:
            raise _Unusable(f"{short_repr(value)}, where a date such as 2024-01-31 was expected") from None
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime.datetime):
        raise _Unusable(f"{short_repr(value)}, where a date was expected")
    aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
    return (aware - _EPOCH) / datetime.timedelta(days=1)


def _part_of(days: NDArray[np.float64], part: str) -> NDArray[np.float64]:
    known = np.where(np.isnan(days), 0, days)
    whole = np.floor(known)
    if part == "month":
        parts = whole.astype(np.int64).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12 + 1
    elif part == "weekday":
        parts = (whole.astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday
    else:
        parts = np.floor(np.round((known - whole) * 24, 6)).astype(np.int64) % 24
    return np.where(np.isnan(days), np.nan, parts)


def _vectors(values: NDArray[Any]) -> NDArray[np.float64]:
    """A matrix of the vectors of a column; NaN if missing."""
    if values.ndim == 2 and values.dtype.kind in "biuf":
        return values.astype(np.float64)
    rows = [None if is_missing(one) else _vector(one) for one in values] if values.ndim == 1 else []
    sizes = sorted({row.size for row in rows if row is not None})
    if not sizes and rows:
        return np.full((len(rows), 1), np.nan)
    if len(sizes) != 1 or sizes[0] == 0:
        raise _Unusable(f"vectors of {' and '.join(map(str, sizes[:2]))} numbers" if sizes else _described(values))
    matrix = np.full((len(rows), sizes[0]), np.nan)
    for place, row in enumerate(rows):
        if row is not None:
            numbers = to_numbers(row)
            if numbers is None:
                raise _Unusable(f"vectors with {describe_values(row)}")
            matrix[place] = numbers
    return matrix


def _vector(value: Any) -> NDArray[Any]:
    try:
        vector = np.asarray(value)
    except ValueError:  # raised for lists of unequal lengths
        vector = np.empty((0, 0))
    if vector.ndim > 1 or (vector.dtype == object and any(isinstance(one, (list, np.ndarray)) for one in vector.flat)):
        raise _Unusable("lists of lists")
    if vector.ndim == 0:
        raise _Unusable(f"vectors and other values such as {short_repr(value)}")
    return vector


def _similarity(source: _Source, kind: Similarity) -> NDArray[np.float64]:
    one, other = source.vectors(kind.query), source.vectors(kind.document)
    if one.shape != other.shape:
        if np.isnan(one).all() or np.isnan(other).all():
            return np.full(len(one), np.nan)
        raise _Unusable(
            f"vectors of {other.shape[1]} numbers, and {kind.query!r} vectors of {one.shape[1]}", kind.document
        )
    if kind.measure == "distance":
        return np.asarray(np.sqrt(((one - other) ** 2).sum(axis=1)), np.float64)
    dot = np.asarray((one * other).sum(axis=1), np.float64)
    if kind.measure == "dot":
        return dot
    lengths = np.sqrt((one**2).sum(axis=1)) * np.sqrt((other**2).sum(axis=1))
    return np.asarray(np.divide(dot, lengths, out=np.full(len(dot), np.nan), where=lengths > 0), np.float64)


def _first_known(values: NDArray[Any]) -> Any:
    return next((value for value in values.ravel() if not is_missing(value)), None) if values.ndim == 1 else None


def _described(values: NDArray[Any]) -> str:
    return describe_values(values) if values.ndim == 1 else "a matrix"


def unusable_columns(columns: Mapping[str, str], *, can_ignore: bool = False) -> DataError:
    """The error for all columns that cannot be used, with what each holds.

    >>> print(unusable_columns({"raw": "b'x'", "title": "texts such as 'a' and other values such as 1"}))
    column 'raw': expected numbers, texts, dates or vectors, got b'x'; column 'title': expected numbers, texts, dates or
    vectors, got texts such as 'a' and other values such as 1; convert them to one of these, or leave the columns out
    """
    held = [_refused(name, what) for name, what in columns.items()]
    more = f"; ... ({len(held)} columns in all)" if len(held) > _LISTED else ""
    those = "the column" if len(held) == 1 else "the columns"
    listed = list(columns) if len(columns) <= _NAMED else ""
    remedy = f"or leave {those} out" + (f" with ignore={listed}" if can_ignore else "")
    if all(_WHERE in what for what in columns.values()):
        remedy = f"convert {'it' if len(held) == 1 else 'them'}{', ' + remedy if can_ignore else ''}"
    else:
        remedy = f"convert them to one of these, {remedy}"
    return DataError(f"{'; '.join(held[:_LISTED])}{more}; {remedy}")


def _refused(name: str, what: str) -> str:
    """What is wrong with a column; ``what`` may say what was expected of it.

    >>> _refused("price", "'high', where numbers were expected")
    "column 'price': expected numbers, got 'high'"
    """
    got, _, expected = what.partition(_WHERE)
    expected = re.sub(" (was|were) expected$", "", expected) or "numbers, texts, dates or vectors"
    return f"column {name!r}: expected {expected}, got {got}"


def as_features(
    X: Any, columns: Columns | None = None, kinds: Mapping[str, Kind | None] | None = None, *, can_ignore: bool = False
) -> tuple[NDArray[np.float32], list[str] | None, Kinds]:
    """The feature matrix and, for a table, the names and kinds of the features.

    ``columns`` declares columns; ``kinds`` are the features to compute, as for an earlier table.
    """
    if is_table(X):
        names = column_names(X)
        as_names(names, len(names))
        if kinds is None:
            encoder = Encoder.of(X, names, columns or Columns(), can_ignore=can_ignore)
        else:
            encoder = Encoder(kinds)
        matrix = encoder.encode(X)
        _check_size(matrix)
        return matrix, encoder.names, encoder.finish(matrix)
    if hasattr(X, "toarray"):
        X = X.toarray()
    given = as_array(X)
    if given.ndim != 2:
        hint = ". Reshape your data: X[:, None] for one feature, X[None] for one document" if given.ndim == 1 else ""
        got = f"{given.ndim} dimension(s){hint}" if given.ndim else type(X).__name__
        fix = "tierank.read makes a data set from a file" if isinstance(X, (str, os.PathLike)) else None
        raise DataError(argument="X", expected="a matrix of documents x features", got=got, fix=fix)
    given = as_numbers(given, "X")
    _check_matrix(matrix := _as_float32(given), given)
    return matrix, None, {}


def _as_float32(given: NDArray[Any]) -> NDArray[np.float32]:
    if given.dtype == np.float32:  # the common case of short lists: nothing can overflow
        return np.ascontiguousarray(given)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(given, dtype=np.float32)


def _check_matrix(matrix: NDArray[np.float32], given: NDArray[Any]) -> None:
    _check_size(matrix)
    for k, chunk in enumerate(chunks(matrix)):
        check_finite(chunk, given[k * CHUNK : (k + 1) * CHUNK], k * CHUNK)


def _check_size(matrix: NDArray[np.float32]) -> None:
    if not matrix.size:
        raise DataError(
            f"X: expected at least one document and one feature, got {len(matrix)} sample(s) and {matrix.shape[1]}"
            f" feature(s) (shape={matrix.shape}) while a minimum of 1 is required."
        )
