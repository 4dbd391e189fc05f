"""What callers hand in -> checked arrays, or an error that says what to do. Matrices that may outgrow memory."""

from __future__ import annotations

import datetime
import mmap
import os
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.errors import DataError, DataTypeError, ParameterError
from tierank.files import reserve

# Rows looked at in one go when a whole matrix is walked through: keeps temporary arrays small.
_CHUNK = 1 << 14

# Maps below this size stay in memory once they were looked at: to map their pages again costs time for nothing.
_LARGE = 1 << 30

# Gives a matrix of zeros, of so many rows and columns, to be filled: says where the features shall lie.
Room = Callable[[int, int], NDArray[np.float32]]

# Letters of a value that a message shows, columns with what they hold, and columns by name.
_SHOWN, _LISTED, _NAMED = 60, 12, 100


def chunks(matrix: NDArray[np.float32], n_rows: int = _CHUNK) -> Iterator[NDArray[np.float32]]:
    """The rows of a matrix, some thousands at a time; those of a large map leave memory after their turn."""
    for start in range(0, len(matrix), n_rows):
        chunk = matrix[start : start + n_rows]
        yield chunk
        forget(chunk)


def rows_in(matrix: NDArray[Any], n_bytes: int) -> int:
    """How many rows of a matrix take about so many bytes: at least one."""
    return max(1, int(n_bytes // max(1, matrix.itemsize * matrix.shape[1])))


def forget(matrix: NDArray[Any]) -> None:
    """Let the pages under a mapped array (or a view of some of its rows) leave the memory of this process.

    Nothing is lost: what was written stays in the file, and what is looked at again is mapped again. Arrays in memory,
    maps below 1 GB and private copies of a file are left alone.
    """
    mapped = _map_under(matrix)
    if mapped is None or len(mapped) < _LARGE or not matrix.size or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first, last = np.lib.array_utils.byte_bounds(matrix)
    origin = np.lib.array_utils.byte_bounds(np.frombuffer(mapped, np.uint8))[0]
    start = (first - origin) // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError):  # pages that are locked in memory
        mapped.madvise(mmap.MADV_DONTNEED, start, last - origin - start)


def _map_under(matrix: NDArray[Any]) -> mmap.mmap | None:
    """The map of a file that an array lies in; None where there is none, or where it holds what the file does not."""
    base: Any = matrix
    is_shared = False
    while isinstance(base, np.ndarray):
        is_shared = getattr(base, "mode", None) in ("r", "r+", "w+")  # not "c", a copy
        base = base.base
    if isinstance(base, memoryview):
        base, is_shared = base.obj, base.readonly
    return base if isinstance(base, mmap.mmap) and is_shared else None


def in_memory(n: int, width: int) -> NDArray[np.float32]:
    """A matrix of zeros in memory; an error where it can never fit."""
    size, memory = n * width * 4, _memory()
    if memory is not None and size > memory:
        raise DataError(
            f"{n} documents x {width} features need {size / 1e9:.1f} GB, this machine has {memory / 1e9:.1f} GB"
        )
    return np.zeros((n, width), np.float32)


def check_width(width: int, n_features: int) -> None:
    """An error where data are wider than what was asked for."""
    if width > n_features:
        raise DataError(f"expected at most {n_features} features, as n_features or the model says, got {width}")


def in_file(file: Path, n: int, width: int) -> NDArray[np.float32]:
    """A matrix of zeros that is a map of a new ``.npy`` file; an OSError where the disk has no room for it."""
    file.unlink(missing_ok=True)
    with file.open("w+b") as opened:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n, width)}
        np.lib.format.write_array_header_1_0(opened, header)
        start = opened.tell()
        reserve(opened, n * width * 4)
        return np.asarray(np.memmap(opened, np.float32, "r+", start, (n, width)))


def anywhere(n: int, width: int, beside: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """A matrix of zeros in memory; where it would take a quarter of that, in a file without a name.

    The file lies in the folder of the map ``beside``, or else in the folder for temporary files, and is gone with the
    matrix.
    """
    memory = _memory()
    if memory is None or n * width * 4 <= memory // 4:
        return np.zeros((n, width), np.float32)
    for folder in (_folder_of(beside), None):
        with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
            reserve(file, n * width * 4)
            return np.asarray(np.memmap(file, np.float32, "r+", shape=(n, width)))
    return np.zeros((n, width), np.float32)


def _folder_of(matrix: Any) -> Path | None:
    """The folder of the file that an array is a map of."""
    while isinstance(matrix, np.ndarray):
        name = getattr(matrix, "filename", None)
        if name is not None:
            return Path(name).parent
        matrix = matrix.base
    return None


def _memory() -> int | None:
    """Bytes of memory that this machine has, where it tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


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
    return group_codes(run_ids[first_run], np.repeat(codes, np.diff(np.append(run_starts, n))))


def group_codes(
    ids: NDArray[Any], codes: NDArray[np.integer[Any]]
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64] | None]:
    """Group rows by query, given the ids in order of first appearance and which of them each row has.

    Returns as ``group_runs`` does.
    """
    offsets = np.concatenate([[0], np.bincount(codes).cumsum()])
    is_grouped = bool((codes[1:] >= codes[:-1]).all())
    return ids, offsets, None if is_grouped else codes.argsort(kind="stable")


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
        raise DataError(f"column {name!r}: expected numbers or texts, got: {str(error)[:_SHOWN]}") from None


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
        name: _described(values) if values.ndim == 1 else "vectors"
        for name, values in columns
        if _column_numbers(values) is None
    }


def _column_numbers(values: NDArray[Any]) -> NDArray[Any] | None:
    return _numbers(values) if values.ndim == 1 else None


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


def as_array(values: Any) -> NDArray[Any]:
    """An array of what was handed in; NaN (or None, where it holds no numbers) in the masked places of a masked array.

    >>> as_array(np.ma.masked_array([1, 2], [False, True]))
    array([ 1., nan])
    """
    if not isinstance(values, np.ma.MaskedArray) or not np.ma.is_masked(values):
        return np.asarray(values)
    is_number = values.dtype.kind in "biuf"
    filled = np.array(values.data, dtype=np.float64 if is_number else object)
    filled[np.ma.getmaskarray(values)] = np.nan if is_number else None
    return filled


def as_numbers(values: NDArray[Any], where: str) -> NDArray[Any]:
    """An array of numbers as it is; NaN for None; an error that says where for anything else."""
    numbers = _numbers(values)
    if numbers is not None:
        return numbers
    if values.dtype.kind == "c":
        raise DataError(f"{where}: expected real numbers, got {values.dtype}. Complex data not supported")
    odd = _first_odd(values)
    if isinstance(odd, (str, bytes, *_OF_TIME)):
        raise DataError(
            f"{where}: expected numbers, got {_described(values)}; encode texts and dates as numbers, or leave them out"
        )
    # The words are what scikit-learn's checks look for.
    raise DataTypeError(f"{where}: argument must be a string or a number, got {_described(values)}")


def _numbers(values: NDArray[Any]) -> NDArray[Any] | None:
    """An array of numbers, NaN for None; None where a value is no number."""
    if values.dtype.kind in "biuf":
        return values
    if not values.size:
        return np.empty(values.shape)
    if values.dtype.kind != "O":
        return None
    try:
        numbers = [np.nan if _is_missing(value) else _as_number(value) for value in values.ravel()]
    except (TypeError, ValueError):
        return None
    return np.array(numbers, np.float64).reshape(values.shape)


def _as_number(value: object) -> float:
    if isinstance(value, (str, bytes)):  # float("1") would take it, and hide a column of the wrong type
        raise TypeError
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer beyond all floats
        return np.inf if value > 0 else -np.inf  # type: ignore[operator]


# Points in time, and spans of it, as Python and numpy have them; those of pandas are subclasses of Python's.
_DATES = (datetime.date, np.datetime64)
_SPANS = (datetime.timedelta, np.timedelta64)
_OF_TIME = (*_DATES, datetime.time, *_SPANS)


def _first_odd(values: NDArray[Any]) -> object:
    """The first value that is no number."""
    flat = values.ravel()
    if values.dtype.kind == "O":
        return next((value for value in flat if not _is_missing(value) and _numbers(_one(value)) is None), None)
    odd = next((value for value in flat if value == value), flat[0])  # not NaT, where there is another
    return odd if values.dtype.kind in "mM" else odd.item()


def _one(value: object) -> NDArray[Any]:
    array = np.empty(1, object)
    array[0] = value
    return array


def _described(values: NDArray[Any]) -> str:
    """What an array holds that is no number: the first such value.

    >>> _described(np.array(["NaT", "2020-01-31"], "datetime64[D]"))
    'the date 2020-01-31'
    """
    if values.dtype.kind == "c":
        return str(values.dtype)
    odd = _first_odd(values)
    if isinstance(odd, _OF_TIME):
        kind = "date" if isinstance(odd, _DATES) else "duration" if isinstance(odd, _SPANS) else "time"
        return f"the {kind} {odd}"
    text = repr(odd)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _is_missing(value: object) -> bool:
    """Whether a value says 'nothing here': None, NaN, NaT or pandas.NA."""
    if value is None or type(value).__name__ == "NAType":
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # an array, which is something
        return False


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
        check_finite(chunk, given[k * _CHUNK : (k + 1) * _CHUNK], k * _CHUNK)


def check_finite(rows: NDArray[np.float32], given: NDArray[Any], first: int) -> None:
    """An error if a value is infinite as float32; ``given`` is what it was before, ``first`` the number of row 0."""
    infinite = np.isinf(rows)
    if infinite.any():
        row, column = (int(i) for i in np.argwhere(infinite)[0])
        raise DataError(
            f"X: expected values that float32 can hold (NaN where missing), got {given[row, column]}"
            f" in row {first + row}, column {column}; clip it, or take its logarithm"
        )


def as_offsets(offsets: ArrayLike) -> NDArray[np.int64]:
    """Where queries begin, and where the last one ends: compiled loops trust them."""
    edges = np.ascontiguousarray(offsets, dtype=np.int64)
    if edges.ndim != 1 or len(edges) < 2 or edges[0] != 0 or (np.diff(edges) < 1).any():
        raise DataError(f"offsets: expected 0 and then the end of each query, ascending, got {edges}")
    return edges


def as_ratings(y: ArrayLike, n: int) -> NDArray[np.float64]:
    """One checked rating per row."""
    given = _as_vector(as_array(y))
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
    values = as_numbers(as_array(weight), name).astype(np.float64)
    if values.shape != (n,):
        raise DataError(f"{name}: expected {n} weights{otherwise}, got shape {values.shape}")
    bad = ~((values >= 0) & (values <= np.finfo(np.float32).max))  # learning takes them as float32
    if bad.any():
        raise DataError(
            f"{name}: expected finite weights that are not negative and that float32 can hold,"
            f" got {values[bad.argmax()]:g} at {bad.argmax()}"
        )
    return values


def as_names(names: Iterable[str] | None, n: int) -> tuple[str, ...] | None:
    """N different feature names, or None."""
    if names is None:
        return None
    named = tuple(str(name) for name in names)
    check_texts(named, "feature_names")
    if len(named) != n:
        raise DataError(f"feature_names: expected {n} names, one per column of X, got {len(named)}")
    if len(set(named)) < n:
        twice = next(name for i, name in enumerate(named) if name in named[:i])
        raise DataError(f"feature_names: expected each name once, got {twice!r} twice")
    return named


def check_texts(texts: Iterable[str], where: str) -> None:
    """An error where a text is none that UTF-8 can hold."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{where}: expected texts that UTF-8 can hold, got {text[:_SHOWN]!r}; rename it, or read its source"
                " with the right encoding"
            ) from None


def group_rows(qid: ArrayLike | None, n: int) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64] | None]:
    """Group n rows by their query ids; None is one query of all rows. Returns as ``group_runs`` does."""
    if qid is None:
        return np.zeros(1, np.int64), np.array([0, n]), None
    ids = as_ids(qid)
    if ids.ndim != 1 or len(ids) != n:
        hint = ""
        if ids.ndim == 1 and ids.dtype.kind in "iu" and ids.sum() == n:
            hint = "; these look like group sizes: pass qid=np.repeat(np.arange(len(sizes)), sizes)"
        raise DataError(f"qid: expected {n} query ids, one per row of X, got shape {ids.shape}{hint}")
    # Objects are told apart by their hashes alone: not all that are equal to a neighbour have the same one.
    is_new = np.full(n, True) if ids.dtype.kind == "O" else np.concatenate([[True], ids[1:] != ids[:-1]])
    starts = np.flatnonzero(is_new)
    try:
        return group_runs(ids[starts], starts, n)
    except TypeError as error:
        raise DataError(f"qid: expected ids that can be hashed: numbers, texts, tuples; got: {error}") from None


def as_ids(qid: ArrayLike) -> NDArray[Any]:
    """The ids as an array, of objects where numpy would change them; none may be missing.

    Ids that are equal in Python are one: 1, 1.0 and True. A number and its text differ, and so do bytes and a text.
    """
    ids = _as_vector(_id_objects(qid) if isinstance(qid, (list, tuple)) else as_array(qid))
    if ids.dtype.kind == "O":
        missing = [i for i, value in enumerate(ids.ravel()) if _is_missing(value)]
    elif ids.dtype.kind in "fmM":
        missing = np.flatnonzero(ids != ids).tolist()
    else:
        missing = []
    if missing:
        raise DataError(f"qid: expected a query id in every row, got none in row {missing[0]}")
    return ids


def _id_objects(qid: Sequence[Any]) -> NDArray[Any]:
    """An array of the ids in a list: numpy makes texts of 1 and "1" alike, and a matrix (or an error) of tuples."""
    objects = np.empty(len(qid), object)
    objects[:] = qid
    try:
        ids = np.asarray(qid)
    except ValueError:
        return objects
    are_tuples = ids.ndim > 1 and isinstance(qid[0], tuple)
    is_changed = ids.ndim == 1 and ids.dtype.kind in "USf" and ids.tolist() != list(qid)
    is_mixed = ids.dtype.kind in "mM" and len({type(i) for i in qid}) > 1  # numpy reads texts as dates beside others
    return objects if are_tuples or is_changed or is_mixed else ids


def _as_vector(values: NDArray[Any]) -> NDArray[Any]:
    """The only column of a matrix that has but one; anything else as it is."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
