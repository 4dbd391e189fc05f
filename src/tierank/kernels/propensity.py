"""The gradient of uMart with a weight for each document of a pair, and what each document adds to the loss.

The same pairs, windows and ties as in ``umart``. Lists that users have clicked in are short, so this is one plain loop
over pairs, and the fast one stays as it is for data without positions. Its exponentials are relative to the higher of
the two scores, so it also serves lists whose scores lie too far apart for the fast one.
"""

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import Vector, allocating, inner
from tierank.kernels.umart import Queries, Rules
from tierank.types import Floats

Ranks = NDArray[np.int64]

# Added to the distance of two scores, as in ``umart``.
_LEAST_DISTANCE = 0.01


@allocating
def weighted_gradients(
    first: int,
    last: int,
    scores: Floats,
    queries: Queries,
    rules: Rules,
    above: Vector[np.float64],
    below: Vector[np.float64],
    order: NDArray[np.uint32],
    gradient: NDArray[np.float32],
    hessian: NDArray[np.float32],
    loss_above: Floats,
    loss_below: Floats,
) -> None:
    """Gradient and hessian of the queries first to last - 1, each pair of d and the lower d' times above(d) below(d').

    All else is as in ``umart_gradients``; the factor of ``levelled`` is that of the pairs without these weights:
    otherwise it would take them out again. ``order`` holds the rows of each query by
    score, highest first.

    The loss of a pair is w ln(1 + k_b / e^(sigma f(d))) e^(sigma f(d')) / k_b: over the d' of a window b with one
    weight that is -w ln(p). ``loss_above`` of d is the sum of its pairs times below(d'), ``loss_below`` of d' the sum
    of its pairs times above(d).
    """
    offsets, tiers, n_tiers, gains, discounts = queries
    window, truncation, sigma, by_rank, over_distance, levelled, kappa, steep, share_ties = rules
    longest = np.int64(0)
    for query in range(first, last):
        longest = max(longest, offsets[query + 1] - offsets[query])
    numbers = np.empty((9, longest))
    score, shared, gap, top, total = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    slope, curve, of_above, of_below = numbers[5], numbers[6], numbers[7], numbers[8]
    ranks = np.empty((2, longest), np.int64)
    tie, lower = ranks[0], ranks[1]
    for query in range(first, last):
        start, n = offsets[query], offsets[query + 1] - offsets[query]
        for rank in range(n):
            score[rank] = scores[order[start + rank]]
            slope[rank], curve[rank], of_above[rank], of_below[rank] = 0.0, 0.0, 0.0, 0.0
        _share(n, share_ties, score, discounts, tie, shared, gap)
        n_top = min(n, truncation)
        while share_ties and 0 < n_top < n and score[n_top] == score[n_top - 1]:
            n_top += 1
        by_distance = by_rank and over_distance and score[0] > score[n - 1]
        plain = 0.0
        for tier in range(n_tiers[query] - 1):
            n_lower = 0
            for rank in range(n):
                if tiers[order[start + rank]] > tier:
                    lower[n_lower] = rank
                    n_lower += 1
            _sum_windows(n_lower, window, sigma, share_ties, score, tie, lower, top, total)
            for rank in range(n):
                row = order[start + rank]
                if tiers[row] != tier:
                    continue
                for i in range(n_lower):
                    other = lower[i]
                    if rank >= n_top and other >= n_top:
                        continue
                    low = order[start + other]
                    w = gains[row]
                    if by_rank:
                        is_tied = tie[rank] == tie[other]
                        w = abs(w - gains[low]) * (gap[tie[rank]] if is_tied else abs(shared[rank] - shared[other]))
                        w /= _LEAST_DISTANCE + abs(score[rank] - score[other]) if by_distance else 1.0
                    margin = np.log(total[i]) + sigma * (top[i] - score[rank])  # ln(k_b / e^(sigma f(d)))
                    share = np.exp(sigma * (score[other] - top[i])) / total[i]  # e^(sigma f(d')) / k_b
                    less = np.exp(-abs(margin))
                    p = (1.0 if margin < 0 else less) / (1.0 + less)
                    p_low = share * (less if margin < 0 else 1.0) / (1.0 + less)
                    plain += w * p_low
                    pair = w * above[row] * below[low]
                    slope[rank] -= pair * p_low
                    slope[other] += pair * p_low
                    curve[rank] += pair * p_low * (1.0 if steep else p)
                    curve[other] += pair * p_low * (1.0 - p_low)
                    loss = w * share * (max(margin, 0.0) + np.log1p(less))
                    of_above[rank] += loss * below[low]
                    of_below[other] += loss * above[row]
        plain *= 2.0 * sigma
        factor = np.log2(1.0 + plain) / plain if levelled and plain > 0.0 else 1.0
        for rank in range(n):
            row = order[start + rank]
            gradient[row] = factor * sigma * slope[rank]
            hessian[row] = factor * kappa * sigma * sigma * curve[rank]
            loss_above[row], loss_below[row] = of_above[rank], of_below[rank]


@inner
def _share(n: int, share_ties: bool, score: Floats, discounts: Floats, tie: Ranks, shared: Floats, gap: Floats) -> None:
    """The first rank of each tie, the mean discount of its ranks, and the mean gap between two of them."""
    first = 0
    while first < n:
        last = first + 1
        while share_ties and last < n and score[last] == score[first]:
            last += 1
        size = last - first
        total, gaps = 0.0, 0.0
        for rank in range(first, last):
            total += discounts[rank]
            gaps += discounts[rank] * (size - 1 - 2 * (rank - first))
        for rank in range(first, last):
            tie[rank], shared[rank] = first, total / size
        gap[first] = 2.0 * gaps / (size * (size - 1)) if size > 1 else 0.0
        first = last


@inner
def _sum_windows(
    n: int, window: int, sigma: float, share_ties: bool, score: Floats, tie: Ranks, lower: Ranks, top: Floats,
    total: Floats,
) -> None:  # fmt: skip
    """The sum of e^(sigma (f - top)) of the window of each lower document, and its top.

    Documents with equal scores have the harmonic mean over their places, relative to the lowest of their tops.
    """
    for first in range(0, n, window):
        last = min(first + window, n)
        highest = score[lower[first]]
        added = 0.0
        for i in range(first, last):
            added += np.exp(sigma * (score[lower[i]] - highest))
        for i in range(first, last):
            top[i], total[i] = highest, added
    first = 0
    while share_ties and first < n:
        last = first
        while last < n and tie[lower[last]] == tie[lower[first]]:
            last += 1
        if last - first > 1:
            lowest, inverse = top[last - 1], 0.0
            for i in range(first, last):
                inverse += np.exp(sigma * (lowest - top[i])) / total[i]
            for i in range(first, last):
                top[i], total[i] = lowest, (last - first) / inverse
        first = last
