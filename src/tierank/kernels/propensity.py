"""The gradient of uMart with a weight for each document of a pair, and the loss of each document.

Pairs, windows and ties are the same as in ``umart``. Lists with clicks are short, so this is one plain loop over pairs,
and the fast kernel remains for data without positions. Exponentials are relative to the higher of the two scores, so it
also handles lists whose scores are too far apart for the fast kernel.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import compiled, inner
from tierank.kernels.sorting import sort_rows
from tierank.kernels.umart import Queries, Rules
from tierank.types import Floats

Ranks = NDArray[np.int64]

# Added to the distance of two scores, as in ``umart``.
_LEAST_DISTANCE = 0.01


class Weights(NamedTuple):
    """By row: the weight of a document as the higher and as the lower one of a pair, and its part of the loss.

    All arrays are writable.
    """

    above: Floats
    below: Floats
    loss_above: Floats
    loss_below: Floats


class Workspace(NamedTuple):
    """Work arrays of a query, by rank; ``lower``, ``top`` and ``total`` refer to the documents below."""

    score: Floats
    shared: Floats
    gap: Floats
    top: Floats
    total: Floats
    slope: Floats
    curve: Floats
    of_above: Floats
    of_below: Floats
    tie: Ranks
    lower: Ranks

    @classmethod
    def for_queries(cls, longest: int) -> Workspace:
        """A workspace for queries of at most this many documents."""
        return cls(*np.empty((9, longest)), *np.empty((2, longest), np.int64))


@compiled
def weighted_gradients(
    first: int,
    last: int,
    scores: Floats,
    queries: Queries,
    rules: Rules,
    weights: Weights,
    work: Workspace,
    order: NDArray[np.uint32],
    gradient: NDArray[np.float32],
    hessian: NDArray[np.float32],
) -> None:
    """Gradient and hessian of the queries first to last - 1, with the factor above(d) below(d') for d and the lower d'.

    Everything else is as in ``umart_gradients``; the factor of ``levelled`` is that of the pairs without these weights,
    because otherwise it would cancel them. ``order`` holds the rows of each query, and ends up sorted by score, highest
    first, and by row if scores are equal.

    The loss of a pair is w ln(1 + k_b / e^(sigma f(d))) e^(sigma f(d')) / k_b: summed over the d' of a window b with
    one weight, that is -w ln(p). ``loss_above`` of d is the sum over its pairs times below(d'), ``loss_below`` of d'
    the sum over its pairs times above(d).
    """
    score, sigma = work.score, rules.sigma
    for query in range(first, last):
        start, n = queries.offsets[query], queries.offsets[query + 1] - queries.offsets[query]
        for rank in range(n):
            score[rank] = scores[order[start + rank]]
            work.slope[rank], work.curve[rank], work.of_above[rank], work.of_below[rank] = 0.0, 0.0, 0.0, 0.0
        sort_rows(start, n, n // 2, order, score)
        _share(n, rules.share_ties, score, queries.discounts, work.tie, work.shared, work.gap)
        n_top = min(n, rules.truncation)
        while rules.share_ties and 0 < n_top < n and score[n_top] == score[n_top - 1]:
            n_top += 1
        by_distance = rules.by_rank and rules.over_distance and score[0] > score[n - 1]
        plain = 0.0
        for tier in range(queries.n_tiers[query] - 1):
            n_lower = 0
            for rank in range(n):
                if queries.tiers[order[start + rank]] > tier:
                    work.lower[n_lower] = rank
                    n_lower += 1
            _sum_windows(
                n_lower, rules.window, sigma, rules.share_ties, score, work.tie, work.lower, work.top, work.total
            )
            for rank in range(n):
                if queries.tiers[order[start + rank]] == tier:
                    plain = _add_pairs(
                        start, rank, n_lower, n_top, by_distance, plain, queries, rules, weights, work, order
                    )
        plain *= 2.0 * sigma
        factor = np.log2(1.0 + plain) / plain if rules.levelled and plain > 0.0 else 1.0
        for rank in range(n):
            row = order[start + rank]
            gradient[row] = factor * sigma * work.slope[rank]
            hessian[row] = factor * rules.kappa * sigma * sigma * work.curve[rank]
            weights.loss_above[row], weights.loss_below[row] = work.of_above[rank], work.of_below[rank]


@inner
def _add_pairs(
    start: int, rank: int, n_lower: int, n_top: int, by_distance: bool, plain: float,
    queries: Queries, rules: Rules, weights: Weights, work: Workspace, order: NDArray[np.uint32],
) -> float:  # fmt: skip
    """Add the pairs of a document with all documents below its tier; returns ``plain`` plus their unweighted sum."""
    score, shared, gap, top, total, slope, curve, of_above, of_below, tie, lower = work
    above, below, _, _ = weights
    gains, sigma = queries.gains, rules.sigma
    row = order[start + rank]
    for i in range(n_lower):
        other = lower[i]
        if rank >= n_top and other >= n_top:
            continue
        low = order[start + other]
        w = gains[row]
        if rules.by_rank:
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
        curve[rank] += pair * p_low * (1.0 if rules.steep else p)
        curve[other] += pair * p_low * (1.0 - p_low)
        loss = w * share * (max(margin, 0.0) + np.log1p(less))
        of_above[rank] += loss * below[low]
        of_below[other] += loss * above[row]
    return plain


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
    """The sum of e^(sigma (f - top)) over the window of each lower document, and its top.

    Documents with equal scores get the harmonic mean over their places, relative to the lowest of their tops.
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
