"""What rows hold, as a number: the same row has the same number wherever it stands, and so an order of its own."""

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import Matrix, Vector, compiled, inner

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


@compiled
def hash_rows(bits: Matrix[np.uint32], start: int, end: int, hashes: NDArray[np.uint64]) -> None:
    """Mix the words of rows ``start:end`` into ``hashes``, which starts with what else belongs to the rows."""
    for row in range(np.uint64(start), np.uint64(end)):
        mixed = hashes[row]
        for column in range(np.uint64(bits.shape[1])):
            mixed = (mixed ^ np.uint64(bits[row, column])) * _FACTOR
            mixed ^= mixed >> _SHIFT
        hashes[row] = mixed


@compiled
def order_rows(
    first: int,
    last: int,
    queries: Vector[np.int64],
    starts: Vector[np.int64],
    offsets: Vector[np.int64],
    hashes: Vector[np.uint64],
    ratings: Vector[np.float64],
    weights: Vector[np.float64],
    order: NDArray[np.int64],
) -> None:
    """Rows of ``queries[first:last]`` by hash, rating and weight, into ``order[offsets[i]:offsets[i+1]]``."""
    longest = 0
    for place in range(first, last):
        longest = max(longest, offsets[place + 1] - offsets[place])
    spare = np.empty(longest, np.int64)
    for place in range(first, last):
        rows = order[offsets[place] : offsets[place + 1]]
        for i in range(len(rows)):
            rows[i] = starts[queries[place]] + i
        width = 1
        while width < len(rows):  # sorted runs of this length are merged, two by two
            for low in range(0, len(rows) - width, 2 * width):
                _merge(rows, spare, low, low + width, min(low + 2 * width, len(rows)), hashes, ratings, weights)
            width *= 2


@inner
def _merge(
    rows: NDArray[np.int64],
    spare: NDArray[np.int64],
    low: int,
    middle: int,
    high: int,
    hashes: NDArray[np.uint64],
    ratings: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> None:
    for i in range(low, middle):
        spare[i] = rows[i]
    left, right = low, middle
    for place in range(low, high):
        if left == middle:
            return
        if right < high and _is_before(rows[right], spare[left], hashes, ratings, weights):
            rows[place] = rows[right]
            right += 1
        else:
            rows[place] = spare[left]
            left += 1


@inner
def _is_before(
    one: int, other: int, hashes: NDArray[np.uint64], ratings: NDArray[np.float64], weights: NDArray[np.float64]
) -> bool:
    if hashes[one] != hashes[other]:
        return hashes[one] < hashes[other]
    if ratings[one] != ratings[other]:
        return ratings[one] < ratings[other]
    return len(weights) > 1 and weights[one] < weights[other]


@compiled
def digest_queries(
    offsets: Vector[np.int64],
    hashes: Vector[np.uint64],
    ratings: Vector[np.float64],
    weights: Vector[np.float64],
    query_weights: Vector[np.float64],
) -> np.uint64:
    """A number for what all queries hold, whatever the order of queries and of documents in them."""
    rating_bits, weight_bits = ratings.view(np.uint64), weights.view(np.uint64)
    query_bits = query_weights.view(np.uint64)
    total = np.uint64(0)
    for query in range(len(offsets) - 1):
        own = query_bits[query]
        for row in range(offsets[query], offsets[query + 1]):
            weight = weight_bits[row] if len(weight_bits) > 1 else weight_bits[0]
            own += _mixed(_mixed(hashes[row] ^ rating_bits[row]) ^ weight)
        total += _mixed(own)
    return total


@inner
def _mixed(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> _SHIFT)) * _FACTOR
    return value ^ (value >> _SHIFT)
