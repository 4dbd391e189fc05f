"""Numbers whose sums are exact, so that the order of adding them does not matter."""

import math

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import Vector, compiled

# float64 holds every integer up to 2^53; sums of at most this many steps leave room for the shift below.
_BITS = 52


@compiled
def round_to_step(values: Vector[np.float32], rounded: NDArray[np.float32]) -> None:
    """Round all n values to multiples of one step, a power of two: n times the largest is below 2^52 steps.

    Sums of any of them, in any order and in parts, are then multiples of the step below 2^52 steps, and float64 holds
    each of them exactly. For a million values the step is 2^-32 of the largest: values above 2^-8 of the largest, which
    are float32 numbers of 24 bits, do not change at all. If a value is not finite, nothing is rounded.
    """
    largest = np.float32(0)
    for value in values:
        largest = max(largest, abs(value))
    if 0.0 < largest < np.inf:
        exponent = math.frexp(largest)[1] + math.frexp(float(len(values)))[1] - _BITS
        # Adding this number leaves no digits below the step: values are rounded to a step, to the even one if halfway.
        shift = math.ldexp(1.5, exponent + _BITS)
    else:
        shift = 0.0
    for i in range(len(values)):
        rounded[i] = np.float32((np.float64(values[i]) + shift) - shift)
