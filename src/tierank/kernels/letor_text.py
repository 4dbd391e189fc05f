"""LETOR text: from bytes to rows, from rows to numbers, and from numbers back to text.

Every block of bytes ends with a line feed. No token contains one, so each inner loop stops there and needs no other
bound.

The loops only accept what they can read safely. A line with anything else in it (a wrong field, a number that cannot be
rounded safely) is left to the caller, who reads that one line slowly, and gets the right value or the right message.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.kernels.compiling import Doubles, Features, Ints, OutDoubles, OutFeatures, OutInts, Vector, compiled, inner

TAB, LINE_FEED, RETURN, SPACE, HASH, COLON = 9, 10, 13, 32, 35, 58
PLUS, MINUS, POINT = 43, 45, 46

Bytes = Vector[np.uint8]
OutBytes = NDArray[np.uint8]

# Places are unsigned, so that numba does not check for negative indices, which took half of the time here. Their
# arithmetic must stay unsigned too: numba turns the sum of an unsigned and a signed integer into a float.
Place = np.uint64
ONE, FIVE = Place(1), Place(5)
_NONE = np.int64(0)  # a literal has another type in numba, which would compile again for it

# For work on each value: calls would take a quarter of the time.
_in_place = inner(forceinline=True)

# Powers of ten, correctly rounded by Python: POWERS[e + 308] is 10^e.
POWERS = np.array([float(f"1e{e}") for e in range(-308, 309)])

# The relative error of a value that was not rounded exactly, with a margin.
_DOUBT = 2.0**-50

# How reliable a parsed number is.
WRONG, NEAR, EXACT = 0, 1, 2

# Feature indices with more digits are errors: a dense row would not fit into memory.
MAX_INDEX_DIGITS = np.uint64(7)


@compiled
def count_lines(text: Bytes, start: int, end: int) -> int:
    """Number of line feeds in ``text[start:end]``."""
    n = 0
    for i in range(Place(start), Place(end)):
        n += text[i] == LINE_FEED
    return n


@compiled
def index_lines(text: Bytes, start: int, end: int, line_starts: OutInts, query_starts: OutInts) -> int:
    """Find the lines of ``text[start:end]`` that contain a document; returns their number.

    ``line_starts`` gets the place of the rating, and ``query_starts`` that of the id after ``qid:``, or -1 if that is
    not the second field.
    """
    row = 0
    i, stop = Place(start), Place(end)
    while i < stop:
        i = _skip_blanks(text, i)
        if text[i] != LINE_FEED and text[i] != HASH:
            line_starts[row] = i
            i = _skip_blanks(text, _skip_field(text, i))
            name = text[i] == 113 and text[i + ONE] == 105 and text[i + Place(2)] == 100
            query = i + Place(4)
            query_starts[row] = query if name and text[i + Place(3)] == COLON and not _ends_field(text[query]) else -1
            row += 1
        while text[i] != LINE_FEED:
            i += ONE
        i += ONE
    return row


@compiled
def query_runs(text: Bytes, query_starts: Ints, run_starts: OutInts, run_ids: OutInts) -> tuple[int, bool]:
    """Find the runs of neighbouring rows with the same query id, and read the ids as integers.

    Returns the number of runs, and whether every id is the plain form of a 64-bit integer.
    """
    runs = 0
    plain = True
    for row in range(len(query_starts)):
        place = Place(query_starts[row])
        if row > 0 and _same_field(text, Place(query_starts[row - 1]), place):
            continue
        run_starts[runs] = row
        run_ids[runs], is_plain = _integer(text, place)
        plain = plain and is_plain
        runs += 1
    return runs, plain


class Parsed(NamedTuple):
    """The results of parsing: features and ratings by target, comments by row; ``seen`` is a work array."""

    features: OutFeatures
    ratings: OutDoubles
    comments: OutInts
    seen: OutInts


@compiled
def parse_rows(
    text: Bytes,
    line_starts: Ints,
    targets: Ints,
    has_query: bool,
    first_index: int,
    start: int,
    end: int,
    powers: Doubles,
    parsed: Parsed,
) -> tuple[int, int]:
    """Read the rows ``start:end`` into ``features[targets[row]]`` and ``ratings[targets[row]]``.

    ``comments[row]`` gets the place after ``#``, or -1. Returns the row that has to be read slowly (``end`` if there is
    none) and the width that is needed; values beyond the matrix are skipped, so that the caller can widen it and start
    again.
    """
    features, ratings, comments, seen = parsed
    width = features.shape[1]
    widest = 0
    for row in range(start, end):
        line = Place(line_starts[row])
        target = Place(targets[row])
        rating, i, trust = _number(text, line, powers)
        is_unjudged = trust == NEAR and np.isnan(rating)
        if not is_unjudged and (trust != EXACT or not 0.0 <= rating < np.inf):
            return row, widest
        ratings[target] = rating
        comments[row] = -1
        if has_query:
            i = _skip_field(text, _skip_blanks(text, i))
        last = -1
        while True:
            i = _skip_blanks(text, i)
            if text[i] == LINE_FEED:
                break
            if text[i] == HASH:
                comments[row] = i + ONE
                break
            first = i
            index, i = _digits(text, i, _NONE)
            if text[i] != COLON or i == first or i - first > MAX_INDEX_DIGITS or index < first_index:
                return row, widest
            value, i, is_sure = _value(text, i + ONE, powers)
            column = index - first_index
            if not is_sure or (column <= last and _repeats(text, line, has_query, seen, row)):
                return row, widest
            last = max(last, column)
            if column < width:
                features[target, Place(column)] = value
        widest = max(widest, last + 1)
    return end, widest


@_in_place
def _value(text: Bytes, i: Place, powers: Doubles) -> tuple[np.float32, Place, bool]:
    """The value at i, the place after it, and whether it is certain; the fast path for plain decimals."""
    start = i
    negative = text[i] == MINUS
    if negative:
        i += ONE
    first = i
    mantissa, i = _digits(text, i, _NONE)
    n_digits = i - first
    fraction = Place(0)
    if text[i] == POINT:
        first = i + ONE
        mantissa, i = _digits(text, first, mantissa)
        fraction = i - first
        n_digits += fraction
    if Place(0) < n_digits <= Place(18) and mantissa < 1 << 53 and (text[i] <= SPACE or text[i] == HASH):
        value = np.float64(mantissa) / powers[Place(308) + fraction]
        return np.float32(-value if negative else value), i, True
    value, i, trust = _number(text, start, powers)
    return np.float32(value), i, _is_safe(value, trust)


@_in_place
def _digits(text: Bytes, i: Place, number: int) -> tuple[int, Place]:
    """The number with the digits at i appended, and the place after them; too many digits overflow."""
    while _is_digit(text[i]):
        number = number * 10 + (np.int64(text[i]) - 48)
        i += ONE
    return number, i


@_in_place
def _skip_blanks(text: Bytes, i: Place) -> Place:
    while text[i] == SPACE or text[i] == TAB or text[i] == RETURN:
        i += ONE
    return i


@inner
def _skip_field(text: Bytes, i: Place) -> Place:
    while not _ends_field(text[i]):
        i += ONE
    return i


@inner
def _ends_field(c: int) -> bool:
    return c == SPACE or c == LINE_FEED or c == TAB or c == RETURN or c == HASH


@inner
def _is_digit(c: int) -> bool:
    return 48 <= c <= 57


@inner
def _same_field(text: Bytes, i: Place, j: Place) -> bool:
    while text[i] == text[j] and not _ends_field(text[i]):
        i += ONE
        j += ONE
    return _ends_field(text[i]) and _ends_field(text[j])


@inner
def _integer(text: Bytes, i: Place) -> tuple[int, bool]:
    """The field at i as a 64-bit integer, and whether it is in the plain form of one."""
    negative = text[i] == MINUS
    if negative:
        i += ONE
    first = i
    value, i = _digits(text, i, _NONE)
    digits = i - first
    # 18 digits always fit; a leading zero or -0 would make two spellings of one number.
    plain = _ends_field(text[i]) and Place(0) < digits <= Place(18) and (digits == ONE or text[first] != 48)
    return (-value if negative else value), plain and not (negative and value == 0)


@inner
def _number(text: Bytes, i: Place, powers: Doubles) -> tuple[float, Place, int]:
    """The number at i, the place after it, and how reliable it is.

    An integer below 10^15, multiplied with or divided by a power of ten up to 10^22, is one rounding of two exact
    numbers, and so correct.
    """
    negative = text[i] == MINUS
    if negative or text[i] == PLUS:
        i += ONE
    elif _is_missing(text, i):
        return np.nan, _skip_field(text, i), NEAR
    mantissa, exponent, digits, kept = 0, 0, 0, 0
    after_point = False
    while True:
        c = np.int64(text[i])
        if _is_digit(c):
            digits += 1
            if kept < 18:  # further digits change less than the error bound
                mantissa = mantissa * 10 + (c - 48)
                kept += mantissa > 0
                exponent -= after_point
            else:
                exponent += not after_point
        elif c == POINT and not after_point:
            after_point = True
        else:
            break
        i += ONE
    if digits > 0 and (text[i] == 69 or text[i] == 101):
        power, i = _exponent(text, i + ONE)
        exponent += power
    if digits == 0 or not _ends_field(text[i]):
        return np.nan, i, WRONG
    exact = mantissa == 0 or (kept < 16 and -22 <= exponent <= 22)
    if mantissa == 0 or exponent < -308:  # below 1e18 * 1e-308: 0 in float32
        value = 0.0
    elif exponent > 308:
        value = np.inf
    elif exponent < 0 and exact:
        value = np.float64(mantissa) / powers[308 - exponent]
    else:
        value = np.float64(mantissa) * powers[308 + exponent]
    return (-value if negative else value), i, (EXACT if exact else NEAR)


@inner
def _is_safe(value: float, trust: int) -> bool:
    """Whether a value is finite or missing, and rounds to the same float32 anywhere within its error bound."""
    if trust == WRONG or np.isnan(value):
        return trust != WRONG
    doubt = 0.0 if trust == EXACT else _DOUBT
    low, high = np.float32(value * (1.0 - doubt)), np.float32(value * (1.0 + doubt))
    return low == high and abs(low) != np.inf


@inner
def _exponent(text: Bytes, i: Place) -> tuple[int, Place]:
    """The exponent at i and the place after it; the place of a letter, which cannot end a number, if there is none."""
    down = text[i] == MINUS
    if down or text[i] == PLUS:
        i += ONE
    first = i
    power = 0
    while _is_digit(text[i]):
        power = min(power * 10 + (np.int64(text[i]) - 48), 1 << 20)
        i += ONE
    return (-power if down else power), (i if i > first else first - ONE)


@inner
def _is_missing(text: Bytes, i: Place) -> bool:
    """Whether the field at i is NULL or nan, in any case of letters."""
    length = _skip_field(text, i) - i
    if length < Place(3) or length > Place(4) or text[i] | 32 != 110:
        return False
    second, third = text[i + ONE] | 32, text[i + Place(2)] | 32
    if length == Place(3):
        return second == 97 and third == 110
    return second == 117 and third == 108 and text[i + Place(3)] | 32 == 108


@inner
def _repeats(text: Bytes, line: Place, has_query: bool, seen: OutInts, row: int) -> bool:
    """Whether an index occurs twice in the line; ``seen`` holds the last row + 1 that had each."""
    i = _skip_field(text, line)
    if has_query:
        i = _skip_field(text, _skip_blanks(text, i))
    while True:
        i = _skip_blanks(text, i)
        if text[i] == LINE_FEED or text[i] == HASH:
            return False
        index, i = _digits(text, i, _NONE)
        if index < len(seen):
            if seen[index] == row + 1:
                return True
            seen[index] = row + 1
        i = _skip_field(text, i)


@compiled
def comment_spans(text: Bytes, comments: OutInts, ends: OutInts) -> int:
    """Narrow each comment to the id of its document; returns the number of bytes of all ids.

    The id is what follows ``docid =``; without that word, the whole comment. ``comments`` gets the start of the id and
    ``ends`` the running total of lengths.
    """
    total = 0
    for row in range(len(comments)):
        if comments[row] >= 0:
            i = _skip_blanks(text, Place(comments[row]))
            end = i
            while text[end] != LINE_FEED:
                end += ONE
            place = i
            while place + FIVE <= end and not _is_docid(text, place):
                place += ONE
            if place + FIVE <= end:
                i = place + FIVE
                while text[i] == SPACE or text[i] == TAB or text[i] == 61:
                    i += ONE
                end = _skip_field(text, i)
            while end > i and text[end - ONE] <= SPACE:
                end -= ONE
            comments[row] = i
            total += np.int64(end - i)
        ends[row] = total
    return total


@inner
def _is_docid(text: Bytes, i: Place) -> bool:
    start = text[i] == 100 and text[i + ONE] == 111 and text[i + Place(2)] == 99
    return start and text[i + Place(3)] == 105 and text[i + Place(4)] == 100


@compiled
def gather(text: Bytes, starts: Ints, ends: Ints, blob: OutBytes) -> None:
    """Copy the bytes at ``starts[row]`` into ``blob`` so that row i ends at ``ends[i]``."""
    place = 0
    for row in range(len(starts)):
        i = starts[row]
        while place < ends[row]:
            blob[place] = text[i]
            place += 1
            i += 1


@compiled
def format_rows(
    features: Features,
    first_index: int,
    heads: Bytes,
    head_ends: Ints,
    tails: Bytes,
    tail_ends: Ints,
    out: OutBytes,
    powers: Doubles,
) -> int:
    """Write a line per row: its head, ``index:value`` of every feature, and its tail. Returns the number of bytes.

    ``out`` must have ``FIELD_BYTES`` bytes per feature in addition to heads, tails and line feeds.
    """
    place, head, tail = 0, 0, 0
    for row in range(len(features)):
        while head < head_ends[row]:
            out[place] = heads[head]
            place, head = place + 1, head + 1
        for column in range(features.shape[1]):
            out[place] = SPACE
            place = _write_integer(out, place + 1, column + first_index, _ANY)
            out[place] = COLON
            place = _write_number(out, place + 1, features[row, column], powers)
        while tail < tail_ends[row]:
            out[place] = tails[tail]
            place, tail = place + 1, tail + 1
        out[place] = LINE_FEED
        place += 1
    return place


# A space, up to 7 digits of an index, a colon, and the longest float32: -1.23456789e-38.
FIELD_BYTES = 32

# The fewest digits.
_ANY, _TWO = np.int64(0), np.int64(2)


@inner
def _write_integer(out: OutBytes, place: int, value: int, digits: int) -> int:
    """Write a non-negative integer with at least this many digits; returns the place after it."""
    length, rest = 1, value // 10
    while rest > 0:
        length, rest = length + 1, rest // 10
    length = max(length, digits)
    for k in range(length):
        out[place + length - 1 - k] = 48 + value % 10
        value //= 10
    return place + length


@inner
def _write_number(out: OutBytes, place: int, value: float, powers: Doubles) -> int:
    """Write the shortest decimal that reads back as the same float32; returns the place after it."""
    if np.isnan(value):
        out[place], out[place + 1], out[place + 2] = 110, 97, 110
        return place + 3
    if value < 0 or (value == 0 and np.signbit(value)):
        out[place] = MINUS
        place += 1
    size = abs(np.float64(value))
    if size < 1e7 and size == np.floor(size):
        return _write_integer(out, place, np.int64(size), _ANY)
    mantissa, digits, exponent = _shortest(size, powers)
    if 0 <= exponent < digits - 1:  # 12.5
        split = np.int64(powers[308 + digits - 1 - exponent])
        place = _write_integer(out, place, mantissa // split, _ANY)
        out[place] = POINT
        return _write_integer(out, place + 1, mantissa % split, digits - 1 - exponent)
    if -6 < exponent < 0:  # 0.0125
        out[place], out[place + 1] = 48, POINT
        return _write_integer(out, place + 2, mantissa, digits - 1 - exponent)
    split = np.int64(powers[308 + digits - 1])
    place = _write_integer(out, place, mantissa // split, _ANY)
    if digits > 1:
        out[place] = POINT
        place = _write_integer(out, place + 1, mantissa % split, digits - 1)
    out[place] = 101
    out[place + 1] = MINUS if exponent < 0 else PLUS
    return _write_integer(out, place + 2, abs(exponent), _TWO)


@inner
def _shortest(size: float, powers: Doubles) -> tuple[int, int, int]:
    """Mantissa, its number of digits, and exponent of the shortest decimal d.ddd * 10^exponent for a float32."""
    exponent = np.int64(np.floor(np.log10(size)))
    mantissa, digits = 0, 0
    for digits in range(6, 10):
        shift = digits - 1 - exponent
        mantissa = np.int64(np.rint(size * powers[308 + shift]))
        back = mantissa * powers[308 - shift]
        if np.float32(back * (1.0 - _DOUBT)) == size and np.float32(back * (1.0 + _DOUBT)) == size:
            break
    if mantissa >= powers[308 + digits]:  # 9.999996 became 10.0000
        exponent += 1
        mantissa //= 10
    while digits > 1 and mantissa % 10 == 0:
        mantissa //= 10
        digits -= 1
    return mantissa, digits, exponent
