"""Random numbers inside kernels, in loops that the compiler vectorises."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from tierank.kernels import compiled, inner
from tierank.kernels.lanes import lowered

# 2^64: random numbers are below it.
_END = 18446744073709551616.0

# The increment of splitmix64, and the factors and shifts of its finaliser.
STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)

# Parts of a float64: 52 bits of the fraction, and the exponent of numbers from 1/2 to 1.
_FRACTION, _N_FRACTION = np.uint64((1 << 52) - 1), np.uint64(52)
_HALF, _EXPONENT_OF_HALF = np.uint64(0x3FE0000000000000), 1022
_LN2, _ROOT_OF_HALF = 0.6931471805599453, 0.7071067811865476

# A random number has 52 bits; half of the last one more keeps it above 0 and below 1, without rounding.
_DROPPED, _UNIT = np.uint64(12), 2.0**-52


def _bits(value: float) -> int:
    """The bits of a float64."""
    return np.float64(value).view(np.uint64)


@lowered(types.uint64, types.float64)(_bits)
def _emit_bits(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    return builder.bitcast(arguments[0], ir.IntType(64))


def _from_bits(bits: int) -> float:
    """The float64 with these bits."""
    return np.uint64(bits).view(np.float64)


@lowered(types.float64, types.uint64)(_from_bits)
def _emit_from_bits(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    return builder.bitcast(arguments[0], ir.DoubleType())


@inner
def mixed(value: int) -> int:
    """Mixed bits, each of which depends on all input bits (the finaliser of splitmix64)."""
    value = (value ^ (value >> _SHIFTS[0])) * _FIRST
    value = (value ^ (value >> _SHIFTS[1])) * _SECOND
    return value ^ (value >> _SHIFTS[2])


@inner
def gumbel(bits: int) -> float:
    """-ln(-ln u), with u uniform in (0, 1), from 64 random bits."""
    return -logarithm(-logarithm((np.float64(bits >> _DROPPED) + 0.5) * _UNIT))


@inner
def logarithm(value: float) -> float:
    """The natural logarithm of a normal number above 0, to 12 digits.

    With value = 2^k m and m between the square root of 1/2 and that of 2, ln m = 2 artanh((m - 1) / (m + 1)), by its
    series. Unlike calls of the C library, this is vectorised, and gives the same bits on every machine.
    """
    bits = _bits(value)
    exponent = np.float64(np.int64(bits >> _N_FRACTION) - _EXPONENT_OF_HALF)
    fraction = _from_bits((bits & _FRACTION) | _HALF)
    is_low = fraction < _ROOT_OF_HALF
    fraction = fraction + fraction if is_low else fraction
    exponent = exponent - 1.0 if is_low else exponent
    ratio = (fraction - 1.0) / (fraction + 1.0)
    square = ratio * ratio
    series = 1 / 15
    series = series * square + 1 / 13
    series = series * square + 1 / 11
    series = series * square + 1 / 9
    series = series * square + 1 / 7
    series = series * square + 1 / 5
    series = series * square + 1 / 3
    return exponent * _LN2 + 2.0 * ratio * (1.0 + series * square)


@compiled
def draw_kept(seed: int, rate: float, kept: NDArray[np.float32]) -> None:
    """0 with the probability ``rate``, which is below 1, and 1 / (1 - rate) otherwise: a mask for dropout."""
    first, least, factor = mixed(np.uint64(seed) + STEP), np.uint64(rate * _END), np.float32(1.0 / (1.0 - rate))
    for i in range(len(kept)):
        kept[i] = factor if mixed(first + np.uint64(i) * STEP) >= least else np.float32(0)
