"""Tables of pandas, polars and Arrow, and matrices: callers' features as one float32 matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.checks import SHOWN, as_array, as_names, as_numbers, check_finite, describe_values, to_numbers
from tierank.errors import DataError, ParameterError
from tierank.memory import CHUNK, chunks

# Columns whose contents a message describes, and columns that it names.
_LISTED, _NAMED = 12, 100


def is_table(value: Any) -> bool:
    """Whether this is a table with named columns: pandas, polars or Arrow."""
    if type(value).__name__ == "LazyFrame":
        raise DataError("expected a table, got a polars LazyFrame, which holds no rows yet; pass frame.collect()")
    return hasattr(type(value), "column_names") or (hasattr(value, "columns") and hasattr(value, "__getitem__"))


def column_names(table: Any) -> list[str]:
    """The names of the columns of a pandas, polars or Arrow table."""
    try:
        names = table.column_names if hasattr(type(table), "column_names") else table.columns
    except UnicodeDecodeError as error:
        raise DataError(f"expected names of columns in UTF-8, got {error.object!r}; rename the column") from None
    return [str(name) for name in names]


def as_column(table: Any, name: str, names: list[str] | None = None) -> NDArray[Any]:
    """One column of a table as an array; ``names`` are those of the table, where they are known."""
    names = column_names(table) if names is None else names
    if name not in names:
        raise DataError(str(ParameterError.unknown("column", name, names)))
    is_arrow = hasattr(type(table), "column_names")
    try:
        if is_arrow:
            table.column(name).validate(full=True)  # that texts are UTF-8, above all
            return np.asarray(decoded(table.column(name)).to_numpy())
        return np.asarray(table[table.columns[names.index(name)]].to_numpy())
    except (ValueError, TypeError, NotImplementedError) as error:  # of Arrow, also for types that numpy does not have
        raise DataError(f"column {name!r}: expected numbers or texts, got: {str(error)[:SHOWN]}") from None


def take_columns(table: Any, names: Sequence[str]) -> Any:
    """The columns of a table with these names, in this order; by place, because names need not be texts there."""
    known = column_names(table)
    places = [known.index(name) for name in names]
    if hasattr(table, "iloc"):
        return table.iloc[:, places]
    return table.select(places) if hasattr(type(table), "column_names") else table[:, places]


def decoded(column: Any) -> Any:
    """An Arrow column with values in place of numbers of values, for which ``to_numpy`` gives a value where none is."""
    return column.cast(column.type.value_type) if hasattr(column.type, "index_type") else column


def table_matrix(table: Any, names: list[str], *, can_ignore: bool = False) -> NDArray[np.float32]:
    """The named columns of a table as one matrix, filled column by column; an error for all that hold no numbers.

    ``can_ignore`` says that the caller can leave columns out with ``ignore=``.
    """
    matrix = np.empty((len(table), len(names)), np.float32)
    known = column_names(table)
    for k, name in enumerate(names):
        numbers = _column_numbers(as_column(table, name, known))
        if numbers is None:
            raise unusable_columns(odd_columns(table, names), can_ignore=can_ignore)
        if numbers.dtype.kind in "iu":  # as where a value is missing, which makes floats of them: one way for all rows
            numbers = numbers.astype(np.float64)
        with np.errstate(over="ignore"):
            matrix[:, k] = numbers
    return matrix


def odd_columns(table: Any, names: list[str]) -> dict[str, str]:
    """The columns of a table that hold something else than numbers, and what."""
    known = column_names(table)
    columns = ((name, as_column(table, name, known)) for name in names)
    return {
        name: describe_values(values) if values.ndim == 1 else "vectors"
        for name, values in columns
        if _column_numbers(values) is None
    }


def _column_numbers(values: NDArray[Any]) -> NDArray[Any] | None:
    return to_numbers(values) if values.ndim == 1 else None


def unusable_columns(columns: Mapping[str, str], *, can_ignore: bool = False) -> DataError:
    """The error for columns that hold no numbers: all of them, and what each holds.

    >>> print(unusable_columns({"day": "the date 2020-01-31", "title": "'shoe'"}, can_ignore=True))
    column 'day': expected numbers, got the date 2020-01-31; column 'title': expected numbers, got 'shoe'; encode texts
    and dates as numbers, or leave the columns out with ignore=['day', 'title']
    """
    held = [f"column {name!r}: expected numbers, got {what}" for name, what in columns.items()]
    more = f"; ... ({len(held)} columns in all)" if len(held) > _LISTED else ""
    those = "the column" if len(held) == 1 else "the columns"
    listed = list(columns) if len(columns) <= _NAMED else ""
    remedy = f"or leave {those} out" + (f" with ignore={listed}" if can_ignore else "")
    return DataError(f"{'; '.join(held[:_LISTED])}{more}; encode texts and dates as numbers, {remedy}")


def as_features(X: Any) -> tuple[NDArray[np.float32], list[str] | None]:
    """The feature matrix and, where it is a table, the names of its columns."""
    if is_table(X):
        names = column_names(X)
        as_names(names, len(names))
        matrix = table_matrix(X, names)
        _check_matrix(matrix, matrix)
        return matrix, names
    if hasattr(X, "toarray"):
        X = X.toarray()
    given = as_array(X)
    if given.ndim != 2:
        hint = ". Reshape your data: X[:, None] for one feature, X[None] for one document" if given.ndim == 1 else ""
        raise DataError(f"X: expected a matrix of documents x features, got {given.ndim} dimension(s){hint}")
    given = as_numbers(given, "X")
    with np.errstate(over="ignore"):
        matrix = np.ascontiguousarray(given, dtype=np.float32)
    _check_matrix(matrix, given)
    return matrix, None


def _check_matrix(matrix: NDArray[np.float32], given: NDArray[Any]) -> None:
    if not matrix.size:
        raise DataError(
            f"X: expected at least one document and one feature, got {len(matrix)} sample(s) and {matrix.shape[1]}"
            f" feature(s) (shape={matrix.shape}) while a minimum of 1 is required."
        )
    for k, chunk in enumerate(chunks(matrix)):
        check_finite(chunk, given[k * CHUNK : (k + 1) * CHUNK], k * CHUNK)
