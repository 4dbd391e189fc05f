"""Rows of numbers in JSON: from bytes to a matrix, without a Python object for each number.

The loop only accepts what it can read exactly: each number becomes the float32 that its nearest double rounds to.
Everything else, valid or not, is left to a JSON reader.
"""

from __future__ import annotations

import numpy as np

from tierank.kernels.compiling import Doubles, OutFeatures, Vector, compiled, inner

COMMA, MINUS, PLUS, POINT, ZERO, NINE = 44, 45, 43, 46, 48, 57
OPEN, CLOSE, SPACE = 91, 93, 32

# The end of the text: it ends a number, and is not part of JSON.
END = b"\0"

# Powers of ten that are exact as doubles.
POWERS = np.array([float(10**e) for e in range(23)])

# The relative error of a value of more than 53 bits, with a margin.
_DOUBT = 2.0**-50
_EXACT = 1 << 53

# Places are unsigned: numba then does not check for negative indices.
_1, _2, _3, _4 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
_MOST_DIGITS, _MOST_POWER = np.uint64(18), 22


# Instead of a place, if what was expected is not there.
_LOST = np.uint64(0xFFFFFFFFFFFFFFFF)


@compiled
def read_rows(text: Vector[np.uint8], powers: Doubles, out: OutFeatures) -> bool:
    """Read ``[1.5,null,...],[...],`` and ``END``, as many rows and columns as ``out`` has; null becomes NaN.

    Returns False if it is not sure, or if the text is anything else.
    """
    n_rows, n_columns = out.shape
    i = np.uint64(0)
    for row in range(n_rows):
        for column in range(n_columns):
            i = _after(OPEN if column == 0 else COMMA, text, i)
            if i == _LOST:
                return False
            i, value = _read_value(text, i, powers)
            if i == _LOST:
                return False
            out[row, column] = value
        i = _after(CLOSE, text, i)
        if i == _LOST:
            return False
        i = _after(COMMA, text, i)
        if i == _LOST:
            return False
    return text[i] == 0


# The functions below are inlined: a call for each number would take longer than reading it.
_inlined = inner(forceinline=True)


@_inlined
def _after(byte: int, text: Vector[np.uint8], i: int) -> int:
    """The place after this byte, with optional spaces before it."""
    while text[i] == SPACE:
        i += _1
    return i + _1 if text[i] == byte else _LOST


@_inlined
def _read_value(text: Vector[np.uint8], i: int, powers: Doubles) -> tuple[int, np.float32]:
    """The place after a number or null, with optional spaces before it, and its value."""
    while text[i] == SPACE:
        i += _1
    if text[i] == 110:  # null
        is_null = text[i + _1] == 117 and text[i + _2] == 108 and text[i + _3] == 108
        return i + _4 if is_null else _LOST, np.float32(np.nan)
    is_negative = text[i] == MINUS
    if is_negative:
        i += _1
    start = i
    i, mantissa = _read_digits(text, i, 0)
    n_digits = i - start
    if n_digits == 0 or (text[start] == ZERO and n_digits > _1):
        return _LOST, np.float32(0)
    power = 0
    if text[i] == POINT:
        start = i + _1
        i, mantissa = _read_digits(text, start, mantissa)
        if i == start:
            return _LOST, np.float32(0)
        n_digits += i - start
        power = -np.int64(i - start)
    if n_digits > _MOST_DIGITS or (is_negative and mantissa == 0):
        return _LOST, np.float32(0)
    if text[i] == 69 or text[i] == 101:  # E, e
        i, exponent = _read_exponent(text, i + _1)
        power += exponent
    if i == _LOST or power < -_MOST_POWER or power > _MOST_POWER:
        return _LOST, np.float32(0)
    value = np.float64(mantissa)
    value = value / powers[-power] if power < 0 else value * powers[power]
    if mantissa > _EXACT and np.float32(value * (1.0 - _DOUBT)) != np.float32(value * (1.0 + _DOUBT)):
        return _LOST, np.float32(0)
    if value > 3e38:
        return _LOST, np.float32(0)
    return i, np.float32(-value if is_negative else value)


@_inlined
def _read_digits(text: Vector[np.uint8], i: int, number: int) -> tuple[int, int]:
    """The place after the digits, and the number with these digits appended."""
    while ZERO <= text[i] <= NINE:
        number = number * 10 + (np.int64(text[i]) - ZERO)
        i += _1
    return i, number


@_inlined
def _read_exponent(text: Vector[np.uint8], i: int) -> tuple[int, int]:
    """The place after an exponent, and its value; 100 if it is higher."""
    is_down = text[i] == MINUS
    if is_down or text[i] == PLUS:
        i += _1
    start = i
    exponent = 0
    while ZERO <= text[i] <= NINE:
        exponent = min(exponent * 10 + (np.int64(text[i]) - ZERO), 100)
        i += _1
    return i if i > start else _LOST, -exponent if is_down else exponent
