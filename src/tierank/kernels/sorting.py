"""Sorting inside kernels. numba's own sorts take five seconds to compile."""

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import inner

# Runs of this many keys are sorted by comparing each with all, which the compiler vectorises.
_RUN = 64


@inner
def sort_down(
    n: int,
    keys: NDArray[np.floating],
    rows: NDArray[np.int64],
    spare_keys: NDArray[np.floating],
    spare_rows: NDArray[np.int64],
) -> None:
    """Sort the first n keys, highest first, and the rows with them; equal keys keep their order, none may be NaN.

    Runs are sorted by counting, and then merged, two by two.
    """
    for low in range(0, n, _RUN):
        _sort_run(min(_RUN, n - low), keys[low : low + _RUN], rows[low : low + _RUN], spare_keys, spare_rows)
    width = _RUN
    while width < n:
        for low in range(0, n - width, 2 * width):
            middle, high = low + width, min(low + 2 * width, n)
            if keys[middle - 1] >= keys[middle]:
                continue
            for i in range(width):
                spare_keys[i], spare_rows[i] = keys[low + i], rows[low + i]
            left, right, to = 0, middle, low
            while left < width and right < high:  # without branches: half of them would be mispredicted
                is_right = keys[right] > spare_keys[left]
                keys[to] = keys[right] if is_right else spare_keys[left]
                rows[to] = rows[right] if is_right else spare_rows[left]
                right += is_right
                left += not is_right
                to += 1
            for i in range(left, width):
                keys[to], rows[to] = spare_keys[i], spare_rows[i]
                to += 1
        width *= 2


@inner
def _sort_run(
    n: int,
    keys: NDArray[np.floating],
    rows: NDArray[np.int64],
    spare_keys: NDArray[np.floating],
    spare_rows: NDArray[np.int64],
) -> None:
    """Sort n keys and their rows: the place of a key is the number of higher keys, and of equal keys before it."""
    for i in range(n):
        key = keys[i]
        place = np.int32(0)
        for j in range(n):
            place += np.int32(keys[j] > key)
        for j in range(i):
            place += np.int32(keys[j] == key)
        spare_keys[place], spare_rows[place] = key, rows[i]
    for i in range(n):
        keys[i], rows[i] = spare_keys[i], spare_rows[i]


@inner
def count_higher(n: int, keys: NDArray[np.floating], counts: NDArray[np.int64]) -> int:
    """How many of n keys are higher than each, and the sum of these numbers.

    Four keys are compared with all the others at a time, which is vectorised. It takes n^2 comparisons: for short lists
    only.
    """
    for i in range(n):
        counts[i] = 0
    first = 0
    while first + 4 <= n:
        a, b, c, d = keys[first], keys[first + 1], keys[first + 2], keys[first + 3]
        for i in range(n):
            key = keys[i]
            counts[i] += np.int64(a > key) + np.int64(b > key) + np.int64(c > key) + np.int64(d > key)
        first += 4
    while first < n:
        a = keys[first]
        for i in range(n):
            counts[i] += np.int64(a > keys[i])
        first += 1
    total = 0
    for i in range(n):
        total += counts[i]
    return total


@inner
def sort_rows(start: int, n: int, gap: int, order: NDArray[np.uint32], ranked_scores: NDArray[np.float64]) -> None:
    """Sort n scores, highest first, and the rows in ``order`` from ``start`` on with them; equal scores by row.

    Shellsort, starting with this gap: half of n, or 1, which is insertion sort, for documents that are almost in order.
    """
    while gap > 0:
        for rank in range(gap, n):
            score, row = ranked_scores[rank], order[start + rank]
            to, before = rank, rank - gap
            while before >= 0 and (
                ranked_scores[before] < score or (ranked_scores[before] == score and order[start + before] > row)
            ):
                ranked_scores[to], order[start + to] = ranked_scores[before], order[start + before]
                to, before = before, before - gap
            ranked_scores[to], order[start + to] = score, row
        gap = 1 if gap == 2 else gap * 5 // 11
