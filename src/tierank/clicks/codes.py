"""Encoding ids as integers and cells as numbers, without a Python object per row if possible."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.clicks.log import Ints
from tierank.errors import DataError
from tierank.readers.columns import needs_arrow, plain_ids


class Encoded(NamedTuple):
    """A column of texts: the different texts (None for missing), and the index of each row's text."""

    values: list[Any]
    places: Ints


Column = NDArray[Any] | Encoded


class Codes:
    """Different values, numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def encode(self, values: Column) -> Ints:
        """The number of each value; -1 if it is missing."""
        unique, inverse = unique_values(values)
        known = self._numbers
        numbers = [-1 if _is_missing(one) else known.setdefault(one, len(known)) for one in unique]
        return np.array(numbers, np.int64)[inverse] if numbers else np.zeros(0, np.int64)

    def ids(self, *, is_text: bool) -> NDArray[Any]:
        """The values by number; texts of a file become integers if all are plain integers."""
        unique: list[Any] = list(self._numbers)
        if is_text and unique:
            column = plain_ids(needs_arrow("CSV").chunked_array([unique]))
            unique = unique if column.null_count else column.to_pylist()
        ids = np.empty(len(unique), object)
        ids[:] = unique
        kinds = {type(one) for one in unique}
        return ids.astype(np.int64) if kinds == {int} and max(map(abs, unique)) < 1 << 63 else ids

    def values(self) -> NDArray[Any]:
        """The values by number, and one more for -1; as numbers if all values are numbers."""
        unique = [*self._numbers, None]
        numbers = np.array([_number(one, {}) for one in unique])
        if not np.isnan(numbers[:-1]).any():
            return numbers
        values = np.empty(len(unique), object)
        values[:] = unique
        return values


def unique_values(values: Column) -> tuple[list[Any], Ints]:
    """The different values of a column, and the index of each row's value."""
    if isinstance(values, Encoded):
        return values.values, values.places
    if values.dtype.kind != "O":
        different, places = np.unique(values, return_inverse=True)
        return different.tolist(), places
    numbers: dict[Hashable, int] = {}
    try:
        inverse = [numbers.setdefault(one, len(numbers)) for one in values.tolist()]
    except TypeError as error:
        raise DataError(f"expected hashable ids, such as numbers, texts or tuples, got: {error}") from None
    return list(numbers), np.array(inverse, np.int64)


def _is_missing(value: object) -> bool:
    if isinstance(value, str):
        return not value
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def small(numbers: Ints) -> NDArray[Any]:
    """As int32 if they fit: codes take most of the memory while a log is read."""
    return numbers.astype(np.int32) if len(numbers) and numbers.max() < 1 << 31 else numbers


def as_numbers(values: Column, words: Mapping[str, float] | None = None) -> NDArray[np.float64]:
    """Numbers, including numeric texts; NaN for anything else, which the check of the log reports."""
    if not isinstance(values, Encoded) and values.dtype.kind in "biuf":
        return values.astype(np.float64)
    unique, inverse = unique_values(values)
    numbers = [_number(one, words or {}) for one in unique]
    return np.array(numbers, np.float64)[inverse] if numbers else np.zeros(0)


def value_at(values: Column, row: int) -> Any:
    """The value of a row, as it was given."""
    return values.values[values.places[row]] if isinstance(values, Encoded) else values[row : row + 1].tolist()[0]


def _number(value: Any, words: Mapping[str, float]) -> float:
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    if isinstance(value, str) and "_" in value:  # Python accepts 1_000
        return np.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # the last one for an integer too large for a float
        return np.nan
