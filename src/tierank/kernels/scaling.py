"""Scaling of feature columns. Statistics are the same bits for rows in any order, and leave out missing values.

Differences are taken in double precision, because those of float32 overflow; with ``np.float64``, because to numba the
``float`` of a float32 is a float32.
"""

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import compiled

# Points of a quantile map: a constant, because the search among them is fast only when unrolled.
N_KNOTS = 256

_LN_2 = 0.6931471805599453
_BITS_OF_ROOT_HALF = np.int64(0x3FE6A09E667F3BCD)
_MANTISSA_BITS = np.int64(52)


@compiled
def _log1p(value: float) -> float:
    """ln(1 + value) for value >= 0, to 1e-10 of itself: 1 + value = 2^e m with m near 1, ln m = 2 artanh((m-1)/(m+1)).

    The library's logarithm is one call per number; this is arithmetic alone, which the compiler does for many numbers
    at once, five times as fast and with the same bits on every machine.
    """
    bits = np.float64(1.0 + value).view(np.int64)
    exponent = (bits - _BITS_OF_ROOT_HALF) >> _MANTISSA_BITS
    mantissa = np.int64(bits - (exponent << _MANTISSA_BITS)).view(np.float64)
    above_one = value if exponent == 0 else mantissa - 1.0  # 1 + value would swallow the digits of small values
    s = above_one / (above_one + 2.0)
    q = s * s
    series = 1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q / 13))))
    return exponent * _LN_2 + 2.0 * (s + s * q * series)


@compiled
def take_logs(features: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """sign(x) ln(1 + |x|), NaN where x is."""
    for row in range(features.shape[0]):
        for column in range(features.shape[1]):
            value = np.float64(features[row, column])
            log = _log1p(abs(value))
            signed = log if value >= 0 else -log
            out[row, column] = signed if value == value else value


@compiled
def widen_ranges(features: NDArray[np.float32], low: NDArray[np.float32], high: NDArray[np.float32]) -> None:
    """Take these rows into the lowest and the highest value of each column."""
    for row in range(features.shape[0]):
        for column in range(features.shape[1]):
            value = features[row, column]
            low[column] = value if value < low[column] else low[column]
            high[column] = value if value > high[column] else high[column]


@compiled
def find_spans(low: NDArray[np.float32], high: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lowest value and 1 / (highest - lowest) of each column; a factor of 0 where all are equal or missing."""
    center, scale = np.zeros(len(low)), np.zeros(len(low))
    for column in range(len(low)):
        if high[column] >= low[column]:
            center[column] = low[column] + 0.0  # the lowest of 0.0 and -0.0 depends on their order; this is 0.0
        if high[column] > low[column]:
            scale[column] = 1.0 / (np.float64(high[column]) - np.float64(low[column]))
    return center, scale


@compiled
def power_above(n: int) -> float:
    """The lowest power of two above n."""
    power = 1.0
    while power <= n:
        power *= 2.0
    return power


@compiled
def add_moments(
    features: NDArray[np.float32],
    center: NDArray[np.float64],
    scale: NDArray[np.float64],
    power: float,
    moments: NDArray[np.float64],
) -> None:
    """Add these rows to the number, the sum and the sum of squares of z = (x - center) scale, which is in [0, 1].

    ``(z + power) - power`` rounds z to a multiple of 2^-52 power. Fewer than ``power`` such numbers in [0, 1] add up
    without any further rounding, hence to the same bits in any order.
    """
    counts, sums, squares = moments[0], moments[1], moments[2]
    for row in range(features.shape[0]):
        for column in range(features.shape[1]):
            value = features[row, column]
            z = (value - center[column]) * scale[column] if value == value else 0.0
            counts[column] += 1.0 if value == value else 0.0
            sums[column] += (z + power) - power
            squares[column] += (z * z + power) - power


@compiled
def standardise(moments: NDArray[np.float64], center: NDArray[np.float64], scale: NDArray[np.float64]) -> None:
    """Turn lowest value and 1 / span into mean and 1 / standard deviation, given the moments of z."""
    for column in range(len(center)):
        if scale[column] > 0:
            n = moments[0, column]
            mean = moments[1, column] / n
            # n numbers of which one is 0 and one is 1 vary by 1 / 2n at least, whatever was lost by rounding.
            variance = max(moments[2, column] / n - mean * mean, 0.5 / n)
            center[column] += mean / scale[column]
            scale[column] /= np.sqrt(variance)


@compiled
def rescale(
    features: NDArray[np.float32],
    center: NDArray[np.float64],
    scale: NDArray[np.float64],
    least: float,
    most: float,
    out: NDArray[np.float32],
) -> None:
    """(x - center) scale, kept between ``least`` and ``most``; 0 where x is missing."""
    for row in range(features.shape[0]):
        for column in range(features.shape[1]):
            value = (features[row, column] - center[column]) * scale[column]
            value = value if value > least else least
            value = value if value < most else most
            out[row, column] = value if features[row, column] == features[row, column] else 0.0


@compiled
def _rescale_query(
    features: NDArray[np.float32], standard: bool, least: float, most: float, out: NDArray[np.float32]
) -> None:
    n_features = features.shape[1]
    low, high = np.full(n_features, np.inf, np.float32), np.full(n_features, -np.inf, np.float32)
    widen_ranges(features, low, high)
    center, scale = find_spans(low, high)
    if standard:
        moments = np.zeros((3, n_features))
        add_moments(features, center, scale, power_above(len(features)), moments)
        standardise(moments, center, scale)
    rescale(features, center, scale, least, most, out)


@compiled
def rescale_queries(
    features: NDArray[np.float32],
    offsets: NDArray[np.int64],
    logs: bool,
    standard: bool,
    least: float,
    most: float,
    out: NDArray[np.float32],
) -> None:
    """Rescale each query by its own range, or by its own mean and deviation; after the logarithm, if ``logs``."""
    longest = np.max(np.diff(offsets)) if logs and len(offsets) > 1 else 0
    scratch = np.empty((longest, features.shape[1]), np.float32)
    for query in range(len(offsets) - 1):
        start, end = offsets[query], offsets[query + 1]
        if logs:
            take_logs(features[start:end], scratch[: end - start])
            _rescale_query(scratch[: end - start], standard, least, most, out[start:end])
        else:
            _rescale_query(features[start:end], standard, least, most, out[start:end])


@compiled
def interpolate(
    features: NDArray[np.float32],
    knots: NDArray[np.float32],
    levels: NDArray[np.float32],
    slopes: NDArray[np.float64],
    out: NDArray[np.float32],
) -> None:
    """The level of each value, linear between the knots of its column, flat outside them; 0 where it is missing."""
    n_features = features.shape[1]
    places = np.empty(n_features, np.int64)  # a loop for the search and one for the rest: faster than both in one
    for row in range(features.shape[0]):
        for column in range(n_features):
            place = 0  # of the last knot that is not above the value, or of the first
            step = N_KNOTS // 2
            while step:
                place += step if knots[column, place + step] <= features[row, column] else 0
                step >>= 1
            places[column] = place
        for column in range(n_features):
            value, place = features[row, column], places[column]
            beyond = np.float64(value) - np.float64(knots[column, place])
            level = levels[column, place] + max(beyond, 0.0) * slopes[column, place]
            out[row, column] = level if value == value else 0.0


@compiled
def copy_in_queries(
    features: NDArray[np.float32], offsets: NDArray[np.int64], first: int, last: int, out: NDArray[np.float32]
) -> None:
    """For the queries from ``first`` to before ``last``: the features, their place in the range of the query, and their
    rank in it, side by side. Missing values stay missing, and count nowhere.
    """
    n_features = features.shape[1]
    for query in range(first, last):
        start, end = offsets[query], offsets[query + 1]
        column = np.empty(end - start, np.float32)
        for f in range(n_features):
            column[:] = features[start:end, f]
            order = np.argsort(column)  # missing values last
            n = 0
            while n < len(order) and column[order[n]] == column[order[n]]:
                n += 1
            low, high = np.float64(column[order[0]]), np.float64(column[order[max(n - 1, 0)]])
            scale = 1.0 / (high - low) if n > 0 and high > low else 0.0
            rank_scale = 0.5 / (n - 1) if n > 1 else 0.0
            at = 0
            while at < len(order):
                after = at + 1
                while after < n and column[order[after]] == column[order[at]]:
                    after += 1
                known = at < n
                for place in range(at, after):
                    row, value = start + order[place], column[order[place]]
                    out[row, f] = value
                    out[row, n_features + f] = (np.float64(value) - low) * scale if known else np.nan
                    out[row, 2 * n_features + f] = (at + after - 1) * rank_scale if known else np.nan
                at = after
