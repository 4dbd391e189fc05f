"""Sorting inside kernels. numba's own sorts take five seconds to compile."""

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import inner

# Runs of so many are sorted by insertion.
_RUN = 8


@inner
def sort_down(
    n: int,
    keys: NDArray[np.floating],
    rows: NDArray[np.int64],
    spare_keys: NDArray[np.floating],
    spare_rows: NDArray[np.int64],
) -> None:
    """Sort the first n keys, highest first, and the rows with them; equal keys keep their order, none may be NaN.

    Short runs are sorted by insertion, and then merged, two by two.
    """
    for i in range(n):
        key, row = keys[i], rows[i]
        j = i
        while j > i - i % _RUN and keys[j - 1] < key:
            keys[j], rows[j] = keys[j - 1], rows[j - 1]
            j -= 1
        keys[j], rows[j] = key, row
    width = _RUN
    while width < n:
        for low in range(0, n - width, 2 * width):
            middle, high = low + width, min(low + 2 * width, n)
            if keys[middle - 1] >= keys[middle]:
                continue
            for i in range(width):
                spare_keys[i], spare_rows[i] = keys[low + i], rows[low + i]
            left, right, to = 0, middle, low
            while left < width and right < high:
                if keys[right] > spare_keys[left]:
                    keys[to], rows[to] = keys[right], rows[right]
                    right += 1
                else:
                    keys[to], rows[to] = spare_keys[left], spare_rows[left]
                    left += 1
                to += 1
            for i in range(left, width):
                keys[to], rows[to] = spare_keys[i], spare_rows[i]
                to += 1
        width *= 2


@inner
def sort_rows(start: int, n: int, gap: int, order: NDArray[np.uint32], ranked_scores: NDArray[np.float64]) -> None:
    """Sort n scores, highest first, and the rows in ``order`` from ``start`` on with them; equal scores by row.

    Shell's sort, from this gap on: half of n, or 1, which is insertion, for documents that are almost in order.
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
