"""What rows hold, as numbers: the same row has the same numbers wherever it stands, and so an order of its own.

Each row has two: its *content*, by which rows differ that hold different values, and its *form*, which is blind to
powers of two. Bits that mean nothing are in neither: 0.0 and -0.0 are one value, and all kinds of NaN are one.
"""

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import Matrix, Vector, compiled, inner

Floats = Vector[np.float64]
Hashes = Vector[np.uint64]

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)
# Parts of a float32. The mark keeps the form of a power of two, which has no other bit, apart from that of 0.
_MAGNITUDE, _INFINITY, _NAN = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(0x7FC00000)
_SIGN_AND_FRACTION, _MARK = np.uint32(0x807FFFFF), np.uint32(0x40000000)


@compiled
def hash_rows(
    bits: Matrix[np.uint32], start: int, end: int, forms: NDArray[np.uint64], contents: NDArray[np.uint64]
) -> None:
    """Mix the values of rows ``start:end`` into both hashes, which start with what else belongs to the rows."""
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
) -> None:
    """Sort the rows of queries ``first`` to ``last - 1`` by form, values, rating and weight, into ``order``."""
    longest = 0
    for query in range(first, last):
        longest = max(longest, offsets[query + 1] - offsets[query])
    spare = np.empty(longest, np.int64)
    for query in range(first, last):
        rows = order[offsets[query] : offsets[query + 1]]
        for i in range(len(rows)):
            rows[i] = offsets[query] + i
        width = 1
        while width < len(rows):  # sorted runs of this length are merged, two by two
            for low in range(0, len(rows) - width, 2 * width):
                middle, high = low + width, min(low + 2 * width, len(rows))
                for i in range(low, middle):
                    spare[i] = rows[i]
                left, right = low, middle
                for place in range(low, high):
                    if left == middle:
                        break
                    if right < high and _is_before(
                        rows[right], spare[left], features, forms, contents, ratings, weights
                    ):
                        rows[place] = rows[right]
                        right += 1
                    else:
                        rows[place] = spare[left]
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


@compiled
def digest_queries(
    offsets: Vector[np.int64],
    forms: Hashes,
    contents: Hashes,
    ratings: Floats,
    weights: Floats,
    query_weights: Floats,
    form_digests: NDArray[np.uint64],
    content_digests: NDArray[np.uint64],
) -> None:
    """Two numbers for each query, whatever the order of its documents: one of their forms, one of all that it holds."""
    rating_bits, weight_bits = ratings.view(np.uint64), weights.view(np.uint64)
    query_bits = query_weights.view(np.uint64)
    for query in range(len(offsets) - 1):
        form, content = np.uint64(0), query_bits[query]
        for row in range(offsets[query], offsets[query + 1]):
            weight = weight_bits[row] if len(weight_bits) > 1 else weight_bits[0]
            form += _mixed(forms[row])
            content += _mixed(_mixed(contents[row] ^ rating_bits[row]) ^ weight)
        form_digests[query], content_digests[query] = _mixed(form), _mixed(content)


@inner
def _mixed(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _SHIFT)) * _FACTOR
    return value ^ (value >> _SHIFT)
