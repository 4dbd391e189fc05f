"""Hashes of rows: the same row has the same hashes wherever it is, so rows can be sorted by their content.

Each row has two: its *content*, which differs if any value does, and its *form*, which ignores powers of two. Both
ignore bits without meaning: 0.0 and -0.0 are the same value, and so are all NaNs.
"""

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import Matrix, Vector, compiled, inner

Floats = Vector[np.float64]
Hashes = Vector[np.uint64]

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


@compiled
def order_rows(
    first: int,
    last: int,
    offsets: Vector[np.int64],
    features: Matrix[np.float32],
    forms: Hashes,
    contents: Hashes,
    ratings: Floats,
    weights: Floats,
    order: NDArray[np.int64],
    spare: NDArray[np.int64],
) -> None:
    """Sort the rows of queries ``first`` to ``last - 1`` by form, values, rating and weight, into ``order``."""
    for query in range(first, last):
        start, end = offsets[query], offsets[query + 1]
        for row in range(start, end):
            order[row] = row
        width = 1
        while width < end - start:  # merge pairs of sorted runs of this length
            for low in range(start, end - width, 2 * width):
                middle = low + width
                high = middle + width if middle + width < end else end
                for i in range(low, middle):
                    spare[i] = order[i]
                left, right = low, middle
                for place in range(low, high):
                    if left == middle:
                        break
                    if right < high and _is_before(
                        order[right], spare[left], features, forms, contents, ratings, weights
                    ):
                        order[place] = order[right]
                        right += 1
                    else:
                        order[place] = spare[left]
                        left += 1
            width *= 2


@inner
def _is_before(
    one: int,
    other: int,
    features: NDArray[np.float32],
    forms: Hashes,
    contents: Hashes,
    ratings: Floats,
    weights: Floats,
) -> bool:
    if forms[one] != forms[other]:
        return forms[one] < forms[other]
    if contents[one] != contents[other]:
        for column in range(features.shape[1]):
            a, b = features[one, column], features[other, column]
            if a != b and not (np.isnan(a) and np.isnan(b)):
                return np.isnan(b) or a < b
    if ratings[one] != ratings[other]:
        return ratings[one] < ratings[other]
    return len(weights) > 1 and weights[one] < weights[other]
