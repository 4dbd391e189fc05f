"""Checks of callers' arrays: numbers, ratings, weights, names and query ids, or an error that says what to do."""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.errors import DataError, DataTypeError

# Characters of a value that a message shows.
SHOWN = 60

# Points in time and durations, as Python and NumPy have them; those of pandas are subclasses of Python's.
_DATES = (datetime.date, np.datetime64)
_SPANS = (datetime.timedelta, np.timedelta64)
_OF_TIME = (*_DATES, datetime.time, *_SPANS)

# Characters of numbers in texts, as ASCII has them.
_AS_ASCII = {"\N{MINUS SIGN}": "-", "\N{RIGHT SINGLE QUOTATION MARK}": "'"} | {
    "\N{ARABIC DECIMAL SEPARATOR}": ".",
    "\N{ARABIC THOUSANDS SEPARATOR}": ",",
    "\N{ARABIC PERCENT SIGN}": "%",
}
# Names of currencies other than symbols: those with much trade, and abbreviations.
_CURRENCIES = (
    "AED|ARS|AUD|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EGP|EUR|GBP|HKD|HUF|IDR|ILS|INR|JPY|KRW|MXN|MYR|NOK|NZD|PEN|PHP|PKR|"
    "PLN|RMB|RON|RUB|SAR|SEK|SGD|THB|TRY|TWD|UAH|USD|VND|ZAR|(?:A|AU|C|CA|HK|MX|NZ|R|S|US)?\\$|Rs\\.?|kr\\.?|zł|Kč|Ft|lei"
)
_DIGITS = r"(?:\d+(?:[.,]\d+)?|[.,]\d+)"
_GROUPS = (
    r"[1-9]\d{0,2}(?P<separator>[.,' ])\d{3}(?:(?P=separator)\d{3})*(?:[.,]\d+)?|[1-9]\d?(?:,\d\d)+,\d{3}(?:\.\d+)?"
)
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", re.IGNORECASE)
# A plus sign before groups of digits is that of a telephone number.
_FORMATTED = re.compile(
    rf"(?!\+\d+ \d)[+-]?(?:(?:{_CURRENCIES}) ?)?[+-]?(?:{_GROUPS}|{_DIGITS})(?:e[+-]?\d+)?(?: ?(?:{_CURRENCIES}|%|‰))?",
    re.IGNORECASE,
)
# The first that matches counts. Codes have leading zeros, or digits that are joined as in versions, dates, times,
# ranges and telephone numbers.
_FORMS = (
    ("code", re.compile(r"0\d+")),
    ("plain", _PLAIN),
    ("formatted", _FORMATTED),
    ("code", re.compile(r"\+?\d+(?:[-./: ]\d+)+")),
)
# Texts that stand for no value, in small letters.
_NO_VALUES = ("", "na", "n/a", "n.a.", "#n/a", "null", "nan", "none", "inf", "-", "--", "?")
# About the number of texts that are looked at, and the share of codes beside which plain digits are codes too.
_LOOKED_AT, _CODES = 10_000, 0.05

# The largest position that is accepted: anything beyond is a rank among candidates that no user has seen.
MOST_POSITIONS = 2_000


def group_runs(
    run_ids: NDArray[Any], run_starts: NDArray[np.int64], n: int
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64] | None]:
    """Group n rows by query, given the runs of neighbouring rows with the same id.

    Returns the ids in order of first appearance, the offsets, and the caller's row number of each grouped row (None if
    every query is a single run, so that no row moves).
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
    """Group rows by query, given the ids in order of first appearance and the index of each row's id.

    Returns as ``group_runs`` does.
    """
    offsets = np.concatenate([[0], np.bincount(codes).cumsum()])
    is_grouped = bool((codes[1:] >= codes[:-1]).all())
    return ids, offsets, None if is_grouped else codes.argsort(kind="stable")


def as_array(values: Any) -> NDArray[Any]:
    """The values as an array; masked values become NaN, or None if the array does not hold numbers.

    >>> as_array(np.ma.masked_array([1, 2], [False, True]))
    array([ 1., nan])
    """
    if not isinstance(values, np.ma.MaskedArray) or not np.ma.is_masked(values):
        try:
            return np.asarray(values)
        except MemoryError:
            raise
        except Exception as error:  # of the library that the values come from: torch and polars have their own
            got = f"{type(values).__name__}: {error}"
            if "inhomogeneous" in str(error):  # numpy's word for lists of different lengths
                got = f"{type(values).__name__} of parts of different shapes"
            raise DataError(expected="an array, or lists of equal length", got=got) from None
    is_number = values.dtype.kind in "biuf"
    filled = np.array(values.data, dtype=np.float64 if is_number else object)
    filled[np.ma.getmaskarray(values)] = np.nan if is_number else None
    return filled


def as_numbers(values: NDArray[Any], argument: str) -> NDArray[Any]:
    """An array of numbers, unchanged; None becomes NaN. Raises ``DataError`` for anything else."""
    numbers = to_numbers(values)
    if numbers is not None:
        return numbers
    # The words are what scikit-learn's checks look for.
    if values.dtype.kind == "c":
        raise DataError(argument=argument, expected="real numbers", got=f"{values.dtype}. Complex data not supported")
    odd, got = _first_odd(values), describe_values(values)
    if not isinstance(odd, (str, bytes, *_OF_TIME)):
        raise DataTypeError(f"argument must be a string or a number, got {got}", argument=argument)
    fix = "encode texts and dates as numbers, or leave them out"
    if isinstance(odd, str) and (form := number_form(odd)) is not None:
        fix = f"these are texts of numbers: convert them {'with astype(float)' if form == 'plain' else 'to numbers'}"
    raise DataError(argument=argument, expected="numbers", got=got, fix=fix)


def to_numbers(values: NDArray[Any]) -> NDArray[Any] | None:
    """An array of numbers, NaN for None; None if a value is not a number."""
    if values.dtype.kind in "biuf":
        with np.errstate(over="ignore"):  # what no float64 holds is infinite, and refused where it must not be
            return values.astype(np.float64) if values.dtype == np.longdouble else values
    if not values.size:
        return np.empty(values.shape)
    if values.dtype.kind != "O":
        return None
    numbers = np.empty(values.size)
    for place, value in enumerate(values.ravel()):
        if isinstance(value, (str, bytes, np.ndarray)):  # float would accept "1" and [1.0], and hide a wrong type
            return None
        try:
            numbers[place] = np.nan if is_missing(value) else float(value)
        except OverflowError:  # an integer too large for a float
            numbers[place] = np.inf if value > 0 else -np.inf
        except (TypeError, ValueError):
            return None
    return numbers.reshape(values.shape)


def number_form(text: str) -> str | None:
    """How a text is a number: plain, or formatted with a currency, a percent sign or separators; or a code of digits.

    None for anything else.

    >>> [number_form(text) for text in ("12", "1e3", "$12", "1.234,50 EUR", "12 %", "007", "1.2.3", "2XL")]
    ['plain', 'plain', 'formatted', 'formatted', 'formatted', 'code', 'code', None]
    """
    signs = {"Sc": "$", "Zs": " "}  # all currencies, all blanks
    plain = "".join(_AS_ASCII.get(c) or signs.get(unicodedata.category(c), c) for c in text).strip()
    return next((form for form, pattern in _FORMS if pattern.fullmatch(plain)), None)


def are_numbers(texts: Sequence[str]) -> bool:
    """Whether most of some different texts are numbers, in whatever notation; missing values do not count.

    Plain digits are no numbers beside codes of digits, such as 007 or 1.2.3. Long lists are judged by a part of them.

    >>> are_numbers(["$12", "$9", "call us", "n/a"]), are_numbers(["XS", "S", "M", "38"]), are_numbers(["007", "123"])
    (True, False, False)
    """
    some = texts[:: max(1, len(texts) // _LOOKED_AT)]
    counts = Counter(number_form(text) for text in some if text.strip().casefold() not in _NO_VALUES)
    total, n_codes = counts.total(), counts["code"]
    n_numbers = counts["formatted"] + (0 if n_codes > _CODES * total else counts["plain"])
    return 2 * n_numbers > total


def _first_odd(values: NDArray[Any]) -> object:
    """The first value that is not a number."""
    flat = values.ravel()
    if values.dtype.kind == "O":
        return next(
            (value for value in flat if not is_missing(value) and to_numbers(as_objects([value])) is None), None
        )
    odd = next((value for value in flat if value == value), flat[0])  # another value than NaT, if there is one
    return odd if values.dtype.kind in "mM" else odd.item()


def as_objects(values: Sequence[Any]) -> NDArray[Any]:
    """The values as an array of objects, of any type."""
    objects = np.empty(len(values), object)
    objects[:] = values
    return objects


def describe_values(values: NDArray[Any]) -> str:
    """The first value of an array that is not a number, for a message.

    >>> describe_values(np.array(["NaT", "2020-01-31"], "datetime64[D]"))
    'the date 2020-01-31'
    """
    if values.dtype.kind == "c":
        return str(values.dtype)
    odd = _first_odd(values)
    if isinstance(odd, _OF_TIME):
        kind = "date" if isinstance(odd, _DATES) else "duration" if isinstance(odd, _SPANS) else "time"
        return f"the {kind} {odd}"
    return short_repr(odd)


def short_repr(value: object) -> str:
    """The start of a value's ``repr``, for a message.

    >>> short_repr("ab"), short_repr("x" * 1000)[-5:]
    ("'ab'", 'xx...')
    """
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def is_missing(value: object) -> bool:
    """Whether a value is missing: None, NaN, NaT or pandas.NA."""
    if value is None or type(value).__name__ == "NAType":
        return True
    try:
        return bool(value != value)
    except ArithmeticError:  # Decimal("sNaN"), the NaN that raises
        return True
    except (TypeError, ValueError):  # an array is not a missing value
        return False


def shape_of(values: Any, array: NDArray[Any]) -> str:
    """The description of a value that has the wrong dimensions: its shape, or its type if it has none.

    >>> shape_of([[1, 2]], np.array([[1, 2]])), shape_of({1, 2}, np.array({1, 2}))
    ('shape (1, 2)', 'set')
    """
    return f"shape {array.shape}" if array.ndim or isinstance(values, np.ndarray) else type(values).__name__


def _fix_of_name(values: Any) -> str | None:
    """What to do if the name of a column was given in place of its values."""
    fix = "pass the column itself, or name the columns in tierank.read(table, query=..., rating=...)"
    return fix if isinstance(values, str) else None


def check_finite(
    rows: NDArray[np.float32],
    given: NDArray[Any],
    first: int,
    columns: Sequence[tuple[int, str]] | None = None,
) -> None:
    """Raise ``DataError`` if a value is infinite as float32; ``first`` is the number of row 0, ``given`` the input.

    ``columns`` are the indices and names of the columns, if they have names.
    """
    infinite = np.isinf(rows)
    if infinite.any():
        row, column = (int(i) for i in np.argwhere(infinite)[0])
        which = f"{column}" if columns is None else f"{columns[column][0]} ({columns[column][1]!r})"
        raise DataError(
            argument="X",
            expected="values that float32 can hold (NaN where missing)",
            got=f"{given[row, column]} in row {first + row}, column {which}",
            fix="clip it, or take its logarithm",
        )


def as_places(places: ArrayLike, n: int, argument: str, what: str) -> NDArray[np.int64]:
    """Indices of some of n things, given by index (negative ones count from the end) or by a mask.

    >>> as_places([True, False, True], 3, "queries", "queries").tolist()
    [0, 2]
    >>> as_places([7], 3, "queries", "queries")
    Traceback (most recent call last):
    tierank.errors.DataError: queries: expected numbers from 0 to 2, or a mask of 3 values, for 3 queries, got 7;
    np.flatnonzero(np.isin(data.query_ids, ids)) finds indices by id
    """
    given = as_array(places)
    if given.size == 0 and given.ndim == 1:
        return np.zeros(0, np.int64)
    got = None
    if given.ndim != 1 or given.dtype.kind not in "biu":
        got = f"shape {given.shape} of {given.dtype}"
    elif given.dtype.kind == "b" and len(given) != n:
        got = f"a mask of {len(given)}"
    elif given.dtype.kind != "b" and (bad := (given < -n) | (given >= n)).any():
        got = str(given[bad.argmax()])
    if got is not None:
        expected = f"numbers from 0 to {n - 1:,}, or a mask of {n:,} values, for {n:,} {what}"
        fix = "np.flatnonzero(np.isin(data.query_ids, ids)) finds indices by id" if what == "queries" else None
        raise DataError(argument=argument, expected=expected, got=got, fix=fix)
    return np.asarray(np.arange(n)[given], np.int64)


def as_offsets(offsets: ArrayLike) -> NDArray[np.int64]:
    """Checked offsets: where queries begin, and where the last one ends. Compiled loops trust them."""
    edges = np.ascontiguousarray(offsets, dtype=np.int64)
    if edges.ndim != 1 or len(edges) < 2 or edges[0] != 0 or (np.diff(edges) < 1).any():
        raise DataError(argument="offsets", expected="0 and then the end of each query, ascending", got=str(edges))
    return edges


def as_ratings(y: ArrayLike, n: int, *, may_be_unjudged: bool = False) -> NDArray[np.float64]:
    """One checked rating per row; NaN for an unjudged document, if those are allowed."""
    given = _as_vector(as_array(y))
    if given.shape != (n,):
        expected, got = f"{n} ratings, one per row of X", shape_of(y, given)
        raise DataError(argument="y", expected=expected, got=got, fix=_fix_of_name(y))
    ratings = check_ratings(as_numbers(given, "y").astype(np.float64), lambda row: f"y, row {row}")
    if not may_be_unjudged and np.isnan(ratings).any():
        row = np.isnan(ratings).argmax()
        raise DataError(where=f"y, row {row}", expected="a rating", got="NaN, an unjudged document")
    return ratings


def check_ratings(ratings: NDArray[np.float64], where: Callable[[int], str]) -> NDArray[np.float64]:
    """The ratings, if each is finite and not negative, or NaN. Otherwise an error at ``where(row)``.

    All NaNs get the same bits, as bits are compared later.
    """
    is_unjudged = np.isnan(ratings)
    bad = ~(is_unjudged | (np.isfinite(ratings) & (ratings >= 0)))
    if bad.any():
        row = int(bad.argmax())
        fix = "shift the ratings so that the lowest is 0, and leave the rating of unjudged documents empty (NaN)"
        expected = "a finite rating that is not negative"
        raise DataError(where=where(row), expected=expected, got=f"{ratings[row]:g}", fix=fix)
    return np.where(is_unjudged, np.nan, ratings) if is_unjudged.any() else ratings


def _numbers_within(
    given: ArrayLike, argument: str, n: int | None, what: str, expected: str, bounds: tuple[float, float, bool]
) -> NDArray[Any]:
    """A vector of n numbers (None: of one or more), each within ``bounds``: least, most, and whether all are whole."""
    values, (least, most, are_whole) = as_numbers(as_array(given), argument), bounds
    if values.ndim != 1 or len(values) != (max(1, len(values)) if n is None else n):
        raise DataError(argument=argument, expected=what, got=shape_of(given, values))
    bad = ~((values >= least) & (values <= most)) | (are_whole & (values != np.floor(values)))
    if bad.any():
        value = values[bad.argmax()]
        fix = "add 1 to positions that count from 0" if least == 1 and value == 0 else None
        raise DataError(argument=argument, expected=expected, got=f"{value:g} at {bad.argmax()}", fix=fix)
    return values


def as_weights(weight: ArrayLike, argument: str, n: int, otherwise: str = "") -> NDArray[np.float64]:
    """N checked weights; ``otherwise`` completes the message with what else could have been given."""
    what, expected = f"{n} weights{otherwise}", "finite weights that are not negative and that float32 can hold"
    bounds = (0, float(np.finfo(np.float32).max), False)  # training uses float32
    return _numbers_within(weight, argument, n, what, expected, bounds).astype(np.float64)


def as_positions(position: ArrayLike, n: int, argument: str = "position") -> NDArray[np.int64]:
    """N positions where documents were shown, integers that count from 1."""
    what, expected = f"{n} positions, one per row", f"integers from 1 to {MOST_POSITIONS:,}"
    return _numbers_within(position, argument, n, what, expected, (1, MOST_POSITIONS, True)).astype(np.int64)


def as_clicks(clicked: ArrayLike, n: int) -> NDArray[np.bool_]:
    """Whether each of n documents was clicked: booleans, or numbers that are 0 or 1."""
    what, expected = f"{n} values, one per row", "0 or 1, or booleans"
    return _numbers_within(clicked, "clicked", n, what, expected, (0, 1, True)).astype(np.bool_)


def as_propensities(propensity: ArrayLike, argument: str = "propensity") -> NDArray[np.float64]:
    """Chances that documents are examined, or multiples of them."""
    expected, limits = "finite numbers above 0", np.finfo(np.float64)
    bounds = (float(limits.smallest_subnormal), float(limits.max), False)
    return _numbers_within(propensity, argument, None, expected, expected, bounds).astype(np.float64)


def as_names(names: Iterable[str] | None, n: int) -> tuple[str, ...] | None:
    """N different feature names, or None."""
    if names is None:
        return None
    if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
        raise DataError(argument="feature_names", expected=f"a list of {n} names", got=repr(names)[:SHOWN])
    named = tuple(str(name) for name in names)
    check_texts(named, "feature_names")
    if len(named) != n:
        raise DataError(argument="feature_names", expected=f"{n} names, one per column of X", got=str(len(named)))
    if len(set(named)) < n:
        raise DataError(argument="feature_names", expected="each name once", got=f"{twice_in(named)!r} twice")
    return named


def twice_in(values: Iterable[Hashable]) -> Any:
    """The first value that occurs more than once; None if there is none."""
    return next((value for value, count in Counter(values).items() if count > 1), None)


def feature_labels(names: tuple[str, ...] | None, n: int) -> tuple[str, ...]:
    """What features are called where they are shown: their names, or their numbers from 1.

    >>> feature_labels(None, 2)
    ('feature 1', 'feature 2')
    """
    return names or tuple(f"feature {j}" for j in range(1, n + 1))


def check_texts(texts: Iterable[object], where: str) -> None:
    """Raise ``DataError`` if a text cannot be encoded as UTF-8; other values than texts do not matter."""
    for text in texts:
        try:
            if isinstance(text, str):
                text.encode()
        except UnicodeEncodeError:
            raise DataError(
                where=where,
                expected="text that can be encoded as UTF-8",
                got=repr(str(text)[:SHOWN]),
                fix="rename it, or read its source with the right encoding",
            ) from None


def group_rows(qid: ArrayLike | None, n: int) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64] | None]:
    """Group n rows by their query ids; None: all rows are one query. Returns as ``group_runs`` does."""
    if qid is None:
        return np.zeros(1, np.int64), np.array([0, n]), None
    ids = as_ids(qid)
    if ids.ndim != 1 or len(ids) != n:
        fix = _fix_of_name(qid)
        if ids.ndim == 1 and ids.dtype.kind in "iu" and ids.sum() == n:
            fix = "these look like group sizes: pass qid=np.repeat(np.arange(len(sizes)), sizes)"
        raise DataError(argument="qid", expected=f"{n} query ids, one per row of X", got=shape_of(qid, ids), fix=fix)
    # Objects are compared by hash alone: equal neighbours do not always have equal hashes.
    is_new = np.full(n, True) if ids.dtype.kind == "O" else np.concatenate([[True], ids[1:] != ids[:-1]])
    starts = np.flatnonzero(is_new)
    try:
        return group_runs(ids[starts], starts, n)
    except TypeError as error:
        expected = "hashable ids, such as numbers, texts or tuples"
        raise DataError(argument="qid", expected=expected, got=f": {error}") from None


def as_ids(qid: ArrayLike, argument: str = "qid") -> NDArray[Any]:
    """The ids as an array, of objects if numpy would change them otherwise. None may be missing.

    Ids that are equal in Python are the same: 1, 1.0 and True. A number and its text differ, and so do bytes and a
    text.
    """
    ids = _as_vector(id_array(qid) if isinstance(qid, (list, tuple)) else as_array(qid))
    if ids.dtype.kind == "O":
        missing = [i for i, value in enumerate(ids.ravel()) if is_missing(value)]
    elif ids.dtype.kind in "fmM":
        missing = np.flatnonzero(ids != ids).tolist()
    else:
        missing = []
    if missing:
        raise DataError(argument=argument, expected="a query id in every row", got=f"none in row {missing[0]}")
    return ids


def id_array(qid: Sequence[Any]) -> NDArray[Any]:
    """An array of ids from a list: numpy alone would make 1 and "1" the same text, and a matrix of tuples."""
    objects = as_objects(qid)
    try:
        ids = np.asarray(qid)
    except ValueError:
        return objects
    are_tuples = ids.ndim > 1 and isinstance(qid[0], tuple)
    is_changed = ids.ndim == 1 and ids.dtype.kind in "USf" and ids.tolist() != list(qid)
    is_mixed = ids.dtype.kind in "mM" and len({type(i) for i in qid}) > 1  # numpy reads texts next to dates as dates
    return objects if are_tuples or is_changed or is_mixed else ids


def _as_vector(values: NDArray[Any]) -> NDArray[Any]:
    """A matrix of one column as a vector; anything else unchanged."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
