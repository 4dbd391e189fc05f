"""Columns of features: scaling, weighted sums, and hashes of rows. The bits of a result do not depend on other rows.

Statistics have the same bits for rows in any order, and ignore missing values. They are those of *groups* of rows: each
query is a group, or all rows are one. Matrices of statistics have a row for each group. Differences are computed in
double precision, because those of float32 overflow; with ``np.float64``, as numba's ``float`` of a float32 is one too.

Each row has two hashes: its *content*, which differs if any value does, and its *form*, which ignores powers of two.
Both ignore bits without meaning: 0.0 and -0.0 are the same value, and so are all NaNs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.kernels.compiling import (
    Doubles,
    Features,
    Ints,
    Matrix,
    OutFeatures,
    OutInts,
    OutMatrix,
    allocating,
    compiled,
    inner,
)
from tierank.kernels.ranking import sort_down

# Knots of a quantile map: a constant, because the search among them is only fast if it is unrolled.
N_KNOTS = 256

# Ranks among up to this many values are found by comparing each with all, which the compiler vectorises.
_COUNTED = 256

_LN_2 = 0.6931471805599453
_BITS_OF_ROOT_HALF = np.int64(0x3FE6A09E667F3BCD)
_MANTISSA_BITS = np.int64(52)


@compiled
def take_logs(features: Features, out: OutFeatures) -> None:
    """sign(x) ln(1 + |x|) to 1e-10 of itself, or NaN if x is NaN.

    1 + |x| = 2^e m with m near 1, and ln m = 2 artanh((m - 1) / (m + 1)). The library's logarithm is one call per
    number. This is plain arithmetic, which the compiler vectorises: five times as fast, with the same bits on every
    machine.
    """
    for row in range(features.shape[0]):
        for column in range(features.shape[1]):
            value = np.float64(features[row, column])
            size = abs(value)
            bits = np.float64(1.0 + size).view(np.int64)
            exponent = (bits - _BITS_OF_ROOT_HALF) >> _MANTISSA_BITS
            mantissa = np.int64(bits - (exponent << _MANTISSA_BITS)).view(np.float64)
            above_one = size if exponent == 0 else mantissa - 1.0  # 1 + |x| would lose the digits of small values
            s = above_one / (above_one + 2.0)
            q = s * s
            series = 1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q / 13))))
            log = exponent * _LN_2 + 2.0 * (s + s * q * series)
            signed = log if value >= 0 else -log
            out[row, column] = signed if value == value else value


@compiled
def find_ranges(features: Features, offsets: Ints, low: OutFeatures, high: OutFeatures) -> None:
    """Update the lowest and the highest value of each column in each group; they are infinite if there is none."""
    for group in range(len(offsets) - 1):
        for row in range(offsets[group], offsets[group + 1]):
            for column in range(features.shape[1]):
                value, lowest, highest = features[row, column], low[group, column], high[group, column]
                low[group, column] = value if value < lowest else lowest
                high[group, column] = value if value > highest else highest


def by_range(low: NDArray[np.float32], high: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """The lowest value, and 1 / (highest - lowest), or 0 if all are equal or missing."""
    # The lowest of 0.0 and -0.0 depends on their order; adding 0.0 turns both into 0.0.
    center = np.where(high >= low, low, np.float32(0)) + 0.0
    span = np.where(high > low, np.subtract(high, low, dtype=np.float64), np.inf)
    return center.astype(np.float64), 1.0 / span


def power_above(n: OutInts) -> Floats:
    """The lowest power of two above each n.

    >>> power_above(np.array([1, 3, 4])).tolist()
    [2.0, 4.0, 8.0]
    """
    return np.ldexp(1.0, np.frexp(n)[1])


class Moments(NamedTuple):
    """Count, sum and sum of squares, by group and column."""

    counts: OutMatrix[np.float64]
    sums: OutMatrix[np.float64]
    squares: OutMatrix[np.float64]


@compiled
def add_moments(
    features: Features,
    offsets: Ints,
    center: Matrix[np.float64],
    scale: Matrix[np.float64],
    powers: Doubles,
    moments: Moments,
) -> None:
    """Add rows to the count, the sum and the sum of squares of z = (x - center) scale, in [0, 1].

    ``(z + power) - power`` rounds z to a multiple of 2^-52 power. Sums of fewer than ``power`` such numbers in [0, 1]
    are exact, and so have the same bits in any order.
    """
    counts, sums, squares = moments
    for group in range(len(offsets) - 1):
        power = powers[group]
        for row in range(offsets[group], offsets[group + 1]):
            for column in range(features.shape[1]):
                value = features[row, column]
                z = (value - center[group, column]) * scale[group, column] if value == value else 0.0
                counts[group, column] += 1.0 if value == value else 0.0
                sums[group, column] += (z + power) - power
                squares[group, column] += (z * z + power) - power


def standardise(moments: Moments, center: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """Mean and 1 / standard deviation, from the lowest value, 1 / span, and the moments of z."""
    counts, sums, squares = moments
    n = np.maximum(counts, 1.0)
    mean = sums / n
    # n numbers of which one is 0 and one is 1 have a variance of at least 1 / 2n, whatever rounding lost.
    variance = np.maximum(squares / n - mean * mean, 0.5 / n)
    varies = scale > 0
    return center + np.divide(mean, scale, out=np.zeros_like(mean), where=varies), scale / np.sqrt(variance)


@compiled
def rescale(
    features: Features,
    offsets: Ints,
    center: Matrix[np.float64],
    scale: Matrix[np.float64],
    least: float,
    most: float,
    out: OutFeatures,
) -> None:
    """(x - center) scale, clipped to ``least`` and ``most``; 0 if x is missing.

    ``center`` and ``scale`` have the same number of rows for each group, one after the other; each of them makes a
    block of columns.
    """
    n_features = np.uint64(features.shape[1])  # unsigned: numba checks every signed index for being negative
    n_blocks = len(center) // max(len(offsets) - 1, 1)
    for group in range(len(offsets) - 1):
        for row in range(offsets[group], offsets[group + 1]):
            for block in range(n_blocks):
                at, first = group * n_blocks + block, np.uint64(block) * n_features
                for column in range(n_features):
                    x = features[row, column]
                    value = (x - center[at, column]) * scale[at, column]
                    value = value if value > least else least
                    value = value if value < most else most
                    out[row, first + column] = value if x == x else 0.0


@inner
def _count_below(
    n: int,
    keys: NDArray[np.float32],
    rows: OutInts,
    spare_keys: NDArray[np.float32],
    spare_rows: OutInts,
    counts: OutInts,
) -> None:
    """For each of n keys, 2 * the number of lower keys + the number of other equal keys; may sort the keys."""
    if n <= _COUNTED:
        for i in range(n):
            key = keys[i]
            above = np.int32(0)  # higher keys count twice, equal ones once
            for j in range(n):
                above += np.int32(keys[j] > key) + np.int32(keys[j] >= key)
            counts[i] = 2 * n - 1 - above
        return
    sort_down(n, keys, rows, spare_keys, spare_rows)
    at = 0
    while at < n:
        after = at + 1
        while after < n and keys[after] == keys[at]:
            after += 1
        for place in range(at, after):
            counts[place] = 2 * n - 1 - at - after
        at = after


@allocating
def rank_queries(features: Features, offsets: Ints, out: OutFeatures) -> None:
    """The share of the other documents of the query below each value, ties a half; 0 if missing or if all are equal."""
    longest = np.int64(0)
    for query in range(len(offsets) - 1):
        longest = max(longest, offsets[query + 1] - offsets[query])
    keys, spare_keys = np.empty(longest, np.float32), np.empty(longest, np.float32)
    rows, spare_rows, counts = np.empty(longest, np.int64), np.empty(longest, np.int64), np.empty(longest, np.int64)
    for query in range(len(offsets) - 1):
        for f in range(features.shape[1]):
            n = 0
            for row in range(offsets[query], offsets[query + 1]):
                out[row, f] = 0.0
                if features[row, f] == features[row, f]:
                    keys[n], rows[n] = features[row, f], row
                    n += 1
            low, high = np.float32(np.inf), np.float32(-np.inf)
            for i in range(n):
                low, high = min(low, keys[i]), max(high, keys[i])
            if not low < high:
                continue
            scale = 0.5 / (n - 1)
            _count_below(n, keys, rows, spare_keys, spare_rows, counts)
            for i in range(n):
                out[rows[i], f] = counts[i] * scale


@allocating
def interpolate(
    features: Features, knots: Features, levels: Features, slopes: Matrix[np.float64], out: OutFeatures
) -> None:
    """The level of each value: linear between the knots of its column, constant outside; 0 if it is missing."""
    n_features = features.shape[1]
    places = np.empty(n_features, np.int64)  # two loops, one for the search and one for the rest: faster than one loop
    for row in range(features.shape[0]):
        for column in range(n_features):
            place = 0  # the last knot that is not above the value, or the first
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


@allocating
def copy_in_queries(features: Features, offsets: Ints, first: int, last: int, out: OutFeatures) -> None:
    """Write the features, their place in the query's range and their rank in the query, side by side.

    For the queries first to last - 1. Missing values stay missing, and are not counted.
    """
    n_features = features.shape[1]
    longest = np.int64(0)
    for query in range(first, last):
        longest = max(longest, offsets[query + 1] - offsets[query])
    keys, spare_keys = np.empty(longest, np.float32), np.empty(longest, np.float32)
    rows, spare_rows, counts = np.empty(longest, np.int64), np.empty(longest, np.int64), np.empty(longest, np.int64)
    for query in range(first, last):
        for f in range(n_features):
            n = 0
            for row in range(offsets[query], offsets[query + 1]):
                value = features[row, f]
                out[row, f] = value
                if value == value:
                    keys[n], rows[n] = value, row
                    n += 1
                else:
                    out[row, n_features + f], out[row, 2 * n_features + f] = np.nan, np.nan
            low, high = np.float64(np.inf), np.float64(-np.inf)
            for i in range(n):
                low, high = min(low, np.float64(keys[i])), max(high, np.float64(keys[i]))
            scale = 1.0 / (high - low) if n > 0 and high > low else 0.0
            rank_scale = 0.5 / (n - 1) if n > 1 else 0.0
            _count_below(n, keys, rows, spare_keys, spare_rows, counts)
            for i in range(n):
                # The lowest of 0.0 and -0.0 depends on their order; adding 0.0 turns both into 0.0.
                out[rows[i], n_features + f] = (np.float64(keys[i]) - low) * scale + 0.0
                out[rows[i], 2 * n_features + f] = counts[i] * rank_scale


@compiled
def add_products(values: Features, weights: Matrix[np.float64], scores: OutMatrix[np.float64]) -> None:
    """scores[row] += sum over columns j, in order, of values[row, j] weights[j], for each of several weightings."""
    n_rows, n_columns = values.shape
    n_weightings = weights.shape[1]
    if n_weightings == 1:  # for scoring with a model: the sums of four rows stay in registers
        row = 0
        while row + 4 <= n_rows:
            a, b, c, d = scores[row, 0], scores[row + 1, 0], scores[row + 2, 0], scores[row + 3, 0]
            for column in range(n_columns):
                weight = weights[column, 0]
                a += np.float64(values[row, column]) * weight
                b += np.float64(values[row + 1, column]) * weight
                c += np.float64(values[row + 2, column]) * weight
                d += np.float64(values[row + 3, column]) * weight
            scores[row, 0], scores[row + 1, 0], scores[row + 2, 0], scores[row + 3, 0] = a, b, c, d
            row += 4
        first = row
    else:
        first = 0
    for row in range(first, n_rows):
        for column in range(n_columns):
            value = np.float64(values[row, column])
            for k in range(n_weightings):
                scores[row, k] += value * weights[column, k]


_FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)
# Parts of a float32. The mark distinguishes the form of a power of two, which has no other bits, from that of 0.
_MAGNITUDE, _INFINITY, _NAN = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(0x7FC00000)
_SIGN_AND_FRACTION, _MARK = np.uint32(0x807FFFFF), np.uint32(0x40000000)


@compiled
def hash_rows(
    bits: Matrix[np.uint32], start: int, end: int, forms: NDArray[np.uint64], contents: NDArray[np.uint64]
) -> None:
    """Mix the values of the rows ``start:end`` into both hashes, which already hold ratings and positions."""
    for row in range(np.uint64(start), np.uint64(end)):
        form, content = forms[row], contents[row]
        for column in range(np.uint64(bits.shape[1])):
            word = bits[row, column]
            magnitude = word & _MAGNITUDE
            shape = (word & _SIGN_AND_FRACTION) | _MARK
            if magnitude == np.uint32(0):
                word = shape = np.uint32(0)
            elif magnitude > _INFINITY:
                word = shape = _NAN
            form = (form ^ np.uint64(shape)) * _FACTOR
            form ^= form >> _SHIFT
            content = (content ^ np.uint64(word)) * _FACTOR
            content ^= content >> _SHIFT
        forms[row], contents[row] = form, content
