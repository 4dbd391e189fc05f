"""Rows of numbers in JSON: bytes to a matrix, without an object for each number.

The loop takes only what it is sure of, and every number to the float32 that its nearest double rounds to. All else,
right or wrong, is left to a JSON reader.
"""

import numpy as np

from tierank.kernels import OutMatrix, Vector, compiled

COMMA, MINUS, PLUS, POINT, ZERO, NINE = 44, 45, 43, 46, 48, 57
OPEN, CLOSE, SPACE = 91, 93, 32

# What the text has to end with: no number goes on behind it, and it is no part of JSON.
END = b"\0"

# Powers of ten that are exact as doubles.
POWERS = np.array([float(10**e) for e in range(23)])

# How far a value of more than 53 bits may be from the exact one, with a margin.
_DOUBT = 2.0**-50
_EXACT = 1 << 53

# Places are unsigned: numba then need not ask whether an index counts from the end.
_1, _2, _3, _4 = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
_MOST_DIGITS, _MOST_POWER = np.uint64(18), 22


@compiled
def read_rows(text: Vector[np.uint8], powers: Vector[np.float64], out: OutMatrix[np.float32]) -> bool:
    """Read ``[1.5,null,...],[...],``, as many rows and columns as ``out`` has, and ``END``; NaN where null is.

    False where it is not sure, or the text is something else.
    """
    n_rows, n_columns = out.shape
    i = np.uint64(0)
    for row in range(n_rows):
        for column in range(n_columns):
            while text[i] == SPACE:
                i += _1
            if text[i] != (OPEN if column == 0 else COMMA):
                return False
            i += _1
            while text[i] == SPACE:
                i += _1

            if text[i] == 110:  # null
                if text[i + _1] != 117 or text[i + _2] != 108 or text[i + _3] != 108:
                    return False
                out[row, column] = np.nan
                i += _4
                continue
            is_negative = text[i] == MINUS
            if is_negative:
                i += _1
            mantissa = 0
            first = i
            while ZERO <= text[i] <= NINE:
                mantissa = mantissa * 10 + (np.int64(text[i]) - ZERO)
                i += _1
            digits = i - first
            if digits == 0 or (text[first] == ZERO and digits > _1):
                return False
            power = 0
            if text[i] == POINT:
                i += _1
                first = i
                while ZERO <= text[i] <= NINE:
                    mantissa = mantissa * 10 + (np.int64(text[i]) - ZERO)
                    i += _1
                if i == first:
                    return False
                digits += i - first
                power = -np.int64(i - first)
            if digits > _MOST_DIGITS or (is_negative and mantissa == 0):
                return False
            if text[i] == 69 or text[i] == 101:
                i += _1
                is_down = text[i] == MINUS
                if is_down or text[i] == PLUS:
                    i += _1
                first = i
                exponent = 0
                while ZERO <= text[i] <= NINE:
                    exponent = min(exponent * 10 + (np.int64(text[i]) - ZERO), 100)
                    i += _1
                if i == first:
                    return False
                power += -exponent if is_down else exponent
            if power < -_MOST_POWER or power > _MOST_POWER:
                return False
            value = np.float64(mantissa)
            value = value / powers[-power] if power < 0 else value * powers[power]
            if mantissa > _EXACT and np.float32(value * (1.0 - _DOUBT)) != np.float32(value * (1.0 + _DOUBT)):
                return False
            if value > 3e38:
                return False
            out[row, column] = np.float32(-value if is_negative else value)
        while text[i] == SPACE:
            i += _1
        if text[i] != CLOSE:
            return False
        i += _1
        while text[i] == SPACE:
            i += _1
        if text[i] != COMMA:
            return False
        i += _1
    return text[i] == 0
