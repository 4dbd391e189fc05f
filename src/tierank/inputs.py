"""What callers hand in -> checked arrays, or an error that says what to do."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.errors import DataError, DataTypeError, ParameterError

# Rows looked at in one go when a whole matrix is walked through: keeps temporary arrays small.
_CHUNK = 1 << 14


def chunks(matrix: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """The rows of a matrix, some thousands at a time."""
    return (matrix[start : start + _CHUNK] for start in range(0, len(matrix), _CHUNK))


def group_runs(
    run_ids: NDArray[Any], run_starts: NDArray[np.int64], n: int
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64] | None]:
    """Group n rows by query, given the runs of neighbouring rows with the same id.

    Returns the ids in order of first appearance, the offsets, and the caller's number of each grouped
    row (None where every query is one run, so that nothing moves).
    """
    seen: dict[Hashable, int] = {}
    codes = np.array([seen.setdefault(i, len(seen)) for i in run_ids.tolist()], dtype=np.int64)
    begins = np.diff(codes, prepend=-1) != 0  # neighbouring runs of one query are one run
    run_ids, run_starts, codes = run_ids[begins], run_starts[begins], codes[begins]
    if len(seen) == len(codes):
        return run_ids, np.append(run_starts, n), None
    first_run = np.unique(codes, return_index=True)[1]
    row_codes = np.repeat(codes, np.diff(np.append(run_starts, n)))
    offsets = np.concatenate([[0], np.bincount(row_codes).cumsum()])
    return run_ids[first_run], offsets, row_codes.argsort(kind="stable")


def is_table(value: Any) -> bool:
    """Whether this is a table with named columns: pandas, polars or Arrow."""
    return hasattr(value, "column_names") or (hasattr(value, "columns") and hasattr(value, "__getitem__"))


def column_names(table: Any) -> list[str]:
    """The names of the columns of a pandas, polars or Arrow table."""
    return [str(name) for name in getattr(table, "column_names", None) or table.columns]


def as_column(table: Any, name: str) -> NDArray[Any]:
    """One column of a table as an array."""
    names = column_names(table)
    if name not in names:
        raise DataError(str(ParameterError.unknown("column", name, names)))
    column = table.column(name) if hasattr(table, "column_names") else table[table.columns[names.index(name)]]
    return np.asarray(column.to_numpy())


def table_matrix(table: Any, names: list[str], where: str = "") -> NDArray[np.float32]:
    """The named columns of a table as one matrix, filled column by column."""
    matrix = np.empty((len(table), len(names)), np.float32)
    for k, name in enumerate(names):
        with np.errstate(over="ignore"):
            matrix[:, k] = as_numbers(as_column(table, name), f"{where}column {name!r}")
    return matrix


def as_numbers(values: NDArray[Any], where: str) -> NDArray[Any]:
    """An array of numbers as it is; NaN for None; an error that says where for anything else."""
    if values.dtype.kind in "biuf":
        return values
    if values.dtype.kind == "c":
        raise DataError(f"{where}: expected real numbers, got {values.dtype}. Complex data not supported")
    if values.dtype.kind == "O":
        try:
            return np.array([np.nan if v is None or _is_missing(v) else _as_number(v) for v in values.ravel()]).reshape(
                values.shape
            )
        except (TypeError, ValueError):
            pass
    bad = next(
        (v for v in values.ravel().tolist() if isinstance(v, (str, bytes)) or not np.isscalar(v)),
        values.dtype,
    )
    if isinstance(bad, (str, bytes, np.dtype)):
        raise DataError(f"{where}: expected numbers, got {bad!r}; encode texts and dates as numbers, or leave them out")
    # The words are what scikit-learn's checks look for.
    raise DataTypeError(f"{where}: argument must be a string or a number, got {bad!r}")


def _as_number(value: object) -> float:
    if isinstance(value, (str, bytes)):  # float("1") would take it, and hide a column of the wrong type
        raise TypeError
    return float(value)  # type: ignore[arg-type]


def _is_missing(value: object) -> bool:
    """Whether a value says 'nothing here': None, NaN, NaT or pandas.NA."""
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def as_features(X: Any) -> tuple[NDArray[np.float32], list[str] | None]:
    """The feature matrix and, where it is a table, the names of its columns."""
    if is_table(X):
        names = column_names(X)
        matrix = table_matrix(X, names)
        _check_matrix(matrix, matrix)
        return matrix, names
    if hasattr(X, "toarray"):
        X = X.toarray()
    given = np.asarray(X)
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
        infinite = np.isinf(chunk)
        if infinite.any():
            row, column = (int(i) for i in np.argwhere(infinite)[0])
            row += k * _CHUNK
            raise DataError(
                f"X: expected values that float32 can hold (NaN where missing), got {given[row, column]}"
                f" in row {row}, column {column}; clip it, or take its logarithm"
            )


def as_ratings(y: ArrayLike, n: int) -> NDArray[np.float64]:
    """One checked rating per row."""
    given = np.asarray(y)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.shape != (n,):
        raise DataError(f"y: expected {n} ratings, one per row of X, got shape {given.shape}")
    return check_ratings(as_numbers(given, "y").astype(np.float64), lambda row: f"y, row {row}")


def check_ratings(ratings: NDArray[np.float64], where: Any) -> NDArray[np.float64]:
    """The ratings, if all are finite and none is negative; ``where(row)`` names the place otherwise."""
    bad = ~(np.isfinite(ratings) & (ratings >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"{where(row)}: expected a finite rating that is not negative, got {ratings[row]:g};"
            " shift the ratings so that the lowest is 0, and drop documents that nobody rated"
        )
    return ratings


def as_weights(weight: ArrayLike, name: str, n: int, otherwise: str = "") -> NDArray[np.float64]:
    """N checked weights; ``otherwise`` says in the message what else could have been given."""
    values = as_numbers(np.asarray(weight), name).astype(np.float64)
    if values.shape != (n,):
        raise DataError(f"{name}: expected {n} weights{otherwise}, got shape {values.shape}")
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        raise DataError(
            f"{name}: expected finite weights that are not negative, got {values[bad.argmax()]:g} at {bad.argmax()}"
        )
    return values


def as_names(names: Iterable[str] | None, n: int) -> tuple[str, ...] | None:
    """N different feature names, or None."""
    if names is None:
        return None
    named = tuple(str(name) for name in names)
    if len(named) != n:
        raise DataError(f"feature_names: expected {n} names, one per column of X, got {len(named)}")
    if len(set(named)) < n:
        twice = next(name for i, name in enumerate(named) if name in named[:i])
        raise DataError(f"feature_names: expected each name once, got {twice!r} twice")
    return named


def group_rows(qid: ArrayLike | None, n: int) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64] | None]:
    """Group n rows by their query ids; None is one query of all rows. Returns as ``group_runs`` does."""
    if qid is None:
        return np.zeros(1, np.int64), np.array([0, n]), None
    ids = _as_ids(qid)
    if ids.ndim != 1 or len(ids) != n:
        hint = ""
        if ids.ndim == 1 and ids.dtype.kind in "iu" and ids.sum() == n:
            hint = "; these look like group sizes: pass qid=np.repeat(np.arange(len(sizes)), sizes)"
        raise DataError(f"qid: expected {n} query ids, one per row of X, got shape {ids.shape}{hint}")
    starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    return group_runs(ids[starts], starts, n)


def _as_ids(qid: ArrayLike) -> NDArray[Any]:
    ids = np.asarray(qid)
    if ids.ndim > 1 and isinstance(qid, Sequence):  # ids that are tuples, which numpy takes for a matrix
        ids = np.empty(len(qid), object)
        ids[:] = list(qid)
    if ids.dtype.kind == "O":
        missing = [i for i, value in enumerate(ids.ravel()) if _is_missing(value)]
    elif ids.dtype.kind in "fmM":
        missing = np.flatnonzero(ids != ids).tolist()
    else:
        missing = []
    if missing:
        raise DataError(f"qid: expected a query id in every row, got none in row {missing[0]}")
    return ids
