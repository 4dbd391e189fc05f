"""The gradient of uMart: every document of a tier against the windows of the documents below it.

A query of n documents with p pairs of different ratings costs O(n * tiers + p):

1. Its order by score is the one of the last call, repaired.
2. Its documents are laid out by tier and, inside a tier, by score: for every tier, its documents and all documents
   below it are two contiguous ranges, and nothing is moved again. The exponential is computed here, once per document.
3. Per tier: the sums of the windows, which are the same for all documents of the tier.
4. Per pair: half a division and no exponential, on contiguous numbers, so that it is vectorised.

Truncation at k makes two layouts: the first k documents, and the others, which are not compared with each other.
Padding without weight after each layout lets the loop over pairs process whole vector registers.

Documents with equal scores (a *tie*) have no order, so nothing may depend on one. With ``share_ties`` they share the
mean discount of their ranks; two of them differ by the mean gap between two of these ranks. Both are expectations over
all orders of the tie. The loop over pairs then finds no gap within a tie, and ``_compare_ties`` adds those pairs: all
documents of a tie and a tier are alike, so that takes O(n * tiers). A tie that contains rank k belongs to the first k
as a whole.

Arrays are named after what indexes them: inputs are by row, ``ranked_...`` by rank in the query, all others by place in
the layout. They are allocated once for a span of queries and passed on whole, because a view of an array costs more
than the work on a short list. Python allocates them, because numba takes seconds to compile allocations. Functions take
the arrays they use one by one: with matrices of named rows it took an eighth longer to compile, with tuples of arrays a
tenth longer to run.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import OutMatrix, compiled, inner
from tierank.kernels.sorting import sort_rows
from tierank.types import Floats

Rows = NDArray[np.uint32]  # unsigned: numba checks every signed index for being negative

# For sums over documents or pairs that may be reordered: all terms are finite.
_in_vectors = inner(fastmath={"reassoc", "contract", "arcp", "nsz"})

# Padding after each layout: as many places as one iteration of the loop over pairs may process.
_PADDING = 8
# If sigma times the spread of the scores is above this, a product of two exponentials could leave float64.
_WIDEST = 300.0
# The most ranks that documents may move before their query is sorted from scratch, and ranks compared per iteration.
_REACH, _STEP = 128, 4
# 1 / 13!, ..., 1 / 1!, 1 / 0!: the series of the exponential.
_SERIES = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))
# Added to the distance of two scores, as LightGBM's lambdarank does.
_LEAST_DISTANCE = 0.01


class Queries(NamedTuple):
    """What the gradient needs to know about each query; tiers and gains are by row. All arrays are writable."""

    offsets: NDArray[np.int64]
    tiers: NDArray[np.uint32]
    n_tiers: NDArray[np.int64]
    gains: Floats
    discounts: Floats  # by rank


class Rules(NamedTuple):
    """How pairs count; see ``umart_gradients``."""

    window: int
    truncation: int
    sigma: float
    by_rank: bool
    over_distance: bool
    levelled: bool
    kappa: float
    steep: bool
    share_ties: bool


class Workspace(NamedTuple):
    """Work arrays for a span of queries. Those of one kind are rows of one array."""

    numbers: OutMatrix[np.float64]
    places: OutMatrix[np.uint32]
    ends: Rows
    bits: NDArray[np.int64]  # a view of the first row of numbers
    line: Floats  # the scores in the old order, between _REACH higher and _REACH lower ones
    shifts: NDArray[np.int64]

    @classmethod
    def for_queries(cls, longest: int, most_tiers: int) -> Workspace:
        """A workspace for queries of at most this many documents and tiers."""
        numbers = np.empty((18, longest + 2 * _PADDING))
        places = np.zeros((5, longest + 2 * _PADDING), np.uint32)
        ends = np.empty(2 * most_tiers + 1, np.uint32)
        line = np.full(longest + 2 * _REACH, np.inf)
        return cls(numbers, places, ends, numbers[0].view(np.int64), line, np.empty(longest, np.int64))


@compiled
def umart_gradients(
    first: int,
    last: int,
    scores: Floats,
    queries: Queries,
    rules: Rules,
    work: Workspace,
    order: Rows,
    is_wide: NDArray[np.bool_],
    gradient: NDArray[np.float32],
    hessian: NDArray[np.float32],
) -> None:
    """Gradient and hessian of the queries first to last - 1.

    With k_b = sum over window b of e^(sigma f), p' = e^(sigma f(d')) / (e^(sigma f(d)) + k_b) and p the same for d, a
    pair of d and the lower d' in b adds sigma w p' to the gradient of d' and subtracts it from that of d. It adds kappa
    sigma^2 w p' (1 - p') to the hessian of d', and kappa sigma^2 w p' p to that of d, with ``steep`` without p. The
    weight w is |gain(d) - gain(d')| |discount(d) - discount(d')| / (0.01 + |f(d) - f(d')|) with ``by_rank``, without
    the division in a query of equal scores or unless ``over_distance``; otherwise it is gain(d) discount(d). With
    ``levelled``, all numbers of a query are multiplied by log2(1 + S) / S, with S the sum of 2 sigma w p' over its
    pairs.

    With ``share_ties``, documents with equal scores share discounts and windows; otherwise they rank by row.

    ``order`` holds the rows of each query by their last scores, and ends up sorted by these scores. ``is_wide`` marks
    the queries whose scores are so far apart that products of exponentials could leave float64: these are left to
    ``weighted_gradients``.
    """
    offsets, tiers, n_tiers, gains, discounts = queries
    window, truncation, sigma, by_rank, over_distance, levelled, kappa, steep, share_ties = rules
    numbers, places, ends, bits, _, _ = work
    spare, ranked_scores, ranked_powers = numbers[0], numbers[1], numbers[2]
    score, power, discount, gain = numbers[3], numbers[4], numbers[5], numbers[6]
    window_sum, weight, weighted_discount = numbers[7], numbers[8], numbers[9]
    low, low_power, high, high_power = numbers[10], numbers[11], numbers[12], numbers[13]
    shared_discounts, tie_gap, tie_sum, tie_power = numbers[14], numbers[15], numbers[16], numbers[17]
    ranked_places, row, ranked_ties, tie, tie_count = places[0], places[1], places[2], places[3], places[4]
    sums = power if window == 1 else window_sum
    zero = np.int64(0)  # a literal 0 has another type in numba, which would compile again for it
    for query in range(first, last):
        start, n = offsets[query], offsets[query + 1] - offsets[query]
        is_wide[query] = False
        if n_tiers[query] < 2:
            for place in range(start, start + n):
                gradient[place], hessian[place] = 0.0, 0.0
            continue
        tied = _repair_order(start, n, scores, order, ranked_scores, work) and share_ties
        spread = ranked_scores[0] - ranked_scores[n - 1]
        if sigma * spread > _WIDEST:
            is_wide[query] = True
            continue
        _take_powers(n, sigma, ranked_scores, bits, spare, ranked_powers)
        by_distance = by_rank and over_distance and spread > 0
        n_top = truncation if truncation < n else n
        ranked_discounts = shared_discounts if tied else discounts
        if tied:
            _share_ranks(n, ranked_scores, discounts, ranked_discounts, ranked_ties, tie_gap)
            while n_top < n and ranked_scores[n_top] == ranked_scores[n_top - 1]:
                n_top += 1
        rest = n_top + _PADDING
        end = rest + n - n_top
        _lay_out(
            start, n, n_top, n_tiers[query], order, tiers, gains, ranked_discounts, by_distance, ranked_scores,
            ranked_powers, ranked_places, ends, row, score, power, discount, gain,
        )  # fmt: skip
        for rank in range(n if tied else 0):
            tie[ranked_places[rank]] = ranked_ties[rank]
        for behind in (n_top, end):
            for place in range(behind, behind + _PADDING):  # without weight, and with values that do not overflow
                score[place], power[place], window_sum[place] = 0.0, 1.0, 1.0
                weight[place], weighted_discount[place] = 0.0, 0.0
        for place in range(end + _PADDING):
            low[place], low_power[place], high[place], high_power[place] = 0.0, 0.0, 0.0, 0.0
        least = _LEAST_DISTANCE if by_distance else 1.0
        n_below = n
        top_start, rest_start = zero, rest
        for tier in range(n_tiers[query] - 1):
            top_end, rest_end = np.int64(ends[tier]), np.int64(ends[n_tiers[query] + tier])
            if 1 < window < n:
                n_below = _sum_windows(n_below, top_end, n_top, rest_end, window, ranked_places, power, window_sum)
                if tied:
                    _share_windows(n_below, ranked_places, tie, window_sum)
            tier_gain = gain[top_start if top_start < top_end else rest_start]
            total = 0.0
            for a, b in ((top_end, n_top), (rest_end, end)):
                total += _weigh(a, b, tier_gain, by_rank, gain, discount, power, weight, weighted_discount)
            for place in range(top_end, end if window >= n else top_end):
                window_sum[place] = total
            for a, b, c, d in (
                (top_start, top_end, top_end, n_top),
                (top_start, top_end, rest_end, end),
                (rest_start, rest_end, top_end, n_top),
            ):
                if a < b and c < d and not (tied and by_rank and spread == 0):
                    _compare(
                        a, b, c, d, least, score, discount, power, sums, weight, weighted_discount, low, low_power,
                        high, high_power,
                    )  # fmt: skip
            if tied and by_rank:
                _compare_ties(
                    top_start, top_end, n_top, least, power, sums, weight, tie, tie_gap, tie_count, tie_sum, tie_power,
                    low, low_power, high, high_power,
                )  # fmt: skip
            top_start, rest_start = top_end, rest_end
        total = 0.0
        for place in range(end if levelled else 0):
            total += 2.0 * sigma * high[place]
        factor = np.log2(1.0 + total) / total if total > 0.0 else 1.0  # lambdarank's, for queries with many pairs
        for a, b in ((zero, n_top), (rest, end)):
            _finish(
                a, b, sigma, kappa, steep, factor, row, power, low, low_power, high, high_power, gradient, hessian
            )  # fmt: skip


@inner
def _repair_order(start: int, n: int, scores: Floats, order: Rows, ranked_scores: Floats, work: Workspace) -> bool:
    """Sort the rows of a query by score, highest first, and by row if scores are equal; returns whether any are.

    A document moves by the number of higher ones after it, minus the number of lower ones before it. These are counted
    among its neighbours, further and further out, until no two documents that far apart are out of order: vectorised
    and without a branch, which would be mispredicted for most documents that move. If there are more to count, the new
    places collide or the scores do not fall, and the query is sorted from scratch.
    """
    line, shifts, spare_rows = work.line, work.shifts, work.places[1]
    for rank in range(n):
        line[_REACH + rank] = scores[order[start + rank]]
        shifts[rank] = rank
        ranked_scores[rank] = np.nan
    n_found, n_before, reach = 0, -1, 0
    while n_before < n_found and reach < _REACH:
        n_before = n_found
        for place in range(_REACH + n + reach, _REACH + n + reach + _STEP):
            line[place] = -np.inf
        for rank in range(np.uint64(n)):
            place = rank + np.uint64(_REACH)
            score = line[place]
            higher, lower = 0, 0
            for distance in range(np.uint64(reach + 1), np.uint64(reach + 1 + _STEP)):
                higher += score < line[place + distance]
                lower += line[place - distance] < score
            shifts[rank] += higher - lower
            n_found += higher
        reach += _STEP
    n_wrong = 0
    if n_found > 0:
        for rank in range(n):
            ranked_scores[shifts[rank]] = line[_REACH + rank]
            spare_rows[shifts[rank]] = order[start + rank]
        for rank in range(1, n):
            n_wrong += not ranked_scores[rank - 1] >= ranked_scores[rank]
    if n_found > 0 and n_wrong == 0:
        for rank in range(n):
            order[start + rank] = spare_rows[rank]
    else:
        for rank in range(n):
            ranked_scores[rank] = line[_REACH + rank]
    if n_wrong > 0:
        sort_rows(start, n, n // 2, order, ranked_scores)
    n_equal = 0
    for rank in range(1, n):
        n_equal += ranked_scores[rank] == ranked_scores[rank - 1]
    if n_equal > 0:
        sort_rows(start, n, np.int64(1), order, ranked_scores)
    return n_equal > 0


@inner
def _share_ranks(
    n: int, ranked_scores: Floats, discounts: Floats, ranked_discounts: Floats, ranked_ties: Rows, tie_gap: Floats
) -> None:
    """Give each tie the mean discount of its ranks, and the mean gap between the discounts of two of them.

    A tie is identified by its first rank. Untied documents are ties of one.
    """
    first = 0
    while first < n:
        last = first + 1
        while last < n and ranked_scores[last] == ranked_scores[first]:
            last += 1
        size = last - first
        total, gaps = 0.0, 0.0
        for rank in range(first, last):
            total += discounts[rank]
            gaps += discounts[rank] * (size - 1 - 2 * (rank - first))
        for rank in range(first, last):
            ranked_discounts[rank] = total / size
            ranked_ties[rank] = first
        tie_gap[first] = 2.0 * gaps / (size * (size - 1)) if size > 1 else 0.0
        first = last


@inner
def _take_powers(
    n: int, sigma: float, ranked_scores: Floats, bits: NDArray[np.int64], scale: Floats, ranked_powers: Floats
) -> None:
    """e^x for x = sigma (f - best), to the last digit but one; numba's own is a call of the C library per number.

    e^x = 2^k e^r with k the integer nearest to x / ln 2 and |r| <= ln 2 / 2. ``bits`` and ``scale`` are one array: the
    bits of 2^k, and 2^k.
    """
    best = ranked_scores[0]
    for rank in range(n):
        x = sigma * (ranked_scores[rank] - best)
        k = np.floor(x * 1.4426950408889634 + 0.5)
        r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10  # ln 2 in two parts: k times the first is exact
        p = 0.0
        for coefficient in _SERIES:
            p = p * r + coefficient
        ranked_powers[rank] = p
        bits[rank] = (np.int64(k) + 1023) << 52
    for rank in range(n):
        ranked_powers[rank] *= scale[rank]


@inner
def _lay_out(
    start: int,
    n: int,
    n_top: int,
    n_tiers: int,
    order: Rows,
    tiers: NDArray[np.uint32],
    gains: Floats,
    ranked_discounts: Floats,
    by_distance: bool,
    ranked_scores: Floats,
    ranked_powers: Floats,
    ranked_places: Rows,
    ends: Rows,
    row: Rows,
    score: Floats,
    power: Floats,
    discount: Floats,
    gain: Floats,
) -> None:
    """Lay out the first ``n_top`` ranks of a query, and the others behind the padding.

    ``ends`` is where each tier ends in the first layout, and then where each ends in the second one.
    """
    for tier in range(2 * n_tiers + 1):
        ends[tier] = 0
    for rank in range(n):
        ends[tiers[order[start + rank]] + (n_tiers if rank >= n_top else 0) + 1] += 1
    ends[n_tiers] += _PADDING
    for tier in range(2 * n_tiers):
        ends[tier + 1] += ends[tier]
    # Each tier is filled from its start, so its start ends up as its end.
    for rank in range(n):
        this_row = order[start + rank]
        tier = tiers[this_row] + (n_tiers if rank >= n_top else 0)
        place = ends[tier]
        ends[tier] = place + 1
        ranked_places[rank] = place
        row[place] = this_row
        score[place] = ranked_scores[rank] if by_distance else 0.0
        power[place] = ranked_powers[rank]
        discount[place] = ranked_discounts[rank]
        gain[place] = gains[this_row]


@inner
def _sum_windows(
    n: int,
    top_end: int,
    n_top: int,
    rest_end: int,
    window: int,
    ranked_places: Rows,
    power: Floats,
    window_sum: Floats,
) -> int:
    """Windows of this many documents below a tier, in order of score; keeps their places, and returns their number.

    Without a branch, because ratings cannot be predicted; windows of two without loops, which is faster.
    """
    top, n_top_below, rest = np.uint64(top_end), np.uint64(n_top - top_end), np.uint64(rest_end)
    n_below = 0
    for rank in range(n):
        place = ranked_places[rank]
        ranked_places[n_below] = place
        n_below += (place - top < n_top_below) | (place >= rest)  # unsigned: a difference below 0 is a large number
    n_paired = n_below - n_below % 2 if window == 2 else 0
    for rank in range(0, n_paired, 2):
        one, other = ranked_places[rank], ranked_places[rank + 1]
        total = power[one] + power[other]
        window_sum[one], window_sum[other] = total, total
    for first in range(n_paired, n_below, window):
        last = first + window if first + window < n_below else n_below
        total = 0.0
        for rank in range(first, last):
            total += power[ranked_places[rank]]
        for rank in range(first, last):
            window_sum[ranked_places[rank]] = total
    return n_below


@inner
def _share_windows(n: int, ranked_places: Rows, tie: Rows, window_sum: Floats) -> None:
    """Give each tie the harmonic mean of the sums of the windows that it extends into.

    p' = e^(sigma f(d')) / (e^(sigma f(d)) + k) is proportional to 1 / k if the window outweighs d, and does not depend
    on k if it does not: so one high document at the edge of a tie does not silence the tie.
    """
    first = 0
    while first < n:
        last = first
        inverse = 0.0
        name = tie[ranked_places[first]]
        while last < n and tie[ranked_places[last]] == name:
            inverse += 1.0 / window_sum[ranked_places[last]]
            last += 1
        for rank in range(first, last if last - first > 1 else first):
            window_sum[ranked_places[rank]] = (last - first) / inverse
        first = last


@_in_vectors
def _weigh(
    first: int,
    last: int,
    tier_gain: float,
    by_rank: bool,
    gain: Floats,
    discount: Floats,
    power: Floats,
    weight: Floats,
    weighted_discount: Floats,
) -> float:
    """The lower document's part of a pair's weight: its exponential times the gap of gains, and that times discount.

    The weight is then |gap discount(d) - gap discount(d')|, up to the distance: one operation less per pair. Returns
    the sum of the exponentials.
    """
    counted = 1.0 if by_rank else 0.0
    total = 0.0
    for place in range(np.uint64(first), np.uint64(last)):
        e = power[place]
        gap = abs(tier_gain - counted * gain[place]) * e
        weight[place] = gap
        weighted_discount[place] = counted * gap * discount[place]
        total += e
    return total


@_in_vectors
def _compare(
    first: int,
    last: int,
    first_low: int,
    last_low: int,
    least: float,
    score: Floats,
    discount: Floats,
    power: Floats,
    sums: Floats,
    weight: Floats,
    weighted_discount: Floats,
    low: Floats,
    low_power: Floats,
    high: Floats,
    high_power: Floats,
) -> None:
    """Every pair of a place in first to last - 1 and a lower one in first_low to last_low - 1.

    With E = e^(sigma f) and K the window sum: x = w p' = w E' / (E + K) and y = x / (E + K), so that w p' p = E y and w
    p' (1 - p') = x - E' y. ``low`` and ``high`` sum x over the pairs of a document, the other two sum y.

    Two places are processed together, as division is the slowest part: 1 / a and 1 / b are b / (a b) and a / (a b).
    """
    begin = np.uint64(first_low)
    end = np.uint64(first_low + (last_low - first_low + _PADDING - 1) // _PADDING * _PADDING)
    for place in range(np.uint64(first), np.uint64(last - (last - first) % 2), np.uint64(2)):
        other = place + np.uint64(1)
        f, e, d = score[place], power[place], discount[place]
        f_other, e_other, d_other = score[other], power[other], discount[other]
        x_sum, y_sum, x_sum_other, y_sum_other = 0.0, 0.0, 0.0, 0.0
        for lower in range(begin, end):
            f_lower, k, w, w_d = score[lower], sums[lower], weight[lower], weighted_discount[lower]
            distance = least + abs(f - f_lower)
            distance_other = least + abs(f_other - f_lower)
            a = distance * (e + k)
            b = distance_other * (e_other + k)
            r = 1.0 / (a * b)
            x = abs(w * d - w_d) * (r * b)
            x_other = abs(w * d_other - w_d) * (r * a)
            y = x * (distance * (r * b))
            y_other = x_other * (distance_other * (r * a))
            x_sum += x
            x_sum_other += x_other
            y_sum += y
            y_sum_other += y_other
            low[lower] += x + x_other
            low_power[lower] += y + y_other
        high[place] += x_sum
        high[other] += x_sum_other
        high_power[place] += y_sum
        high_power[other] += y_sum_other
    for place in range(np.uint64(last - (last - first) % 2), np.uint64(last)):
        f, e, d = score[place], power[place], discount[place]
        x_sum, y_sum = 0.0, 0.0
        for lower in range(begin, end):
            distance = least + abs(f - score[lower])
            r = 1.0 / (distance * (e + sums[lower]))
            x = abs(weight[lower] * d - weighted_discount[lower]) * r
            y = x * (distance * r)
            x_sum += x
            y_sum += y
            low[lower] += x
            low_power[lower] += y
        high[place] += x_sum
        high_power[place] += y_sum


@inner
def _compare_ties(
    first: int,
    last: int,
    end: int,
    least: float,
    power: Floats,
    sums: Floats,
    weight: Floats,
    tie: Rows,
    tie_gap: Floats,
    tie_count: Rows,
    tie_sum: Floats,
    tie_power: Floats,
    low: Floats,
    low_power: Floats,
    high: Floats,
    high_power: Floats,
) -> None:
    """Every pair within a tie of a place in first to last - 1 and a lower one in last to end - 1.

    The documents of a tier in a tie are all alike, so they are counted. They have the exponential of the lower
    document. x and y are as in ``_compare``.
    """
    for place in range(first, last):
        name = tie[place]
        tie_count[name] += 1
        tie_sum[name], tie_power[name] = 0.0, 0.0
    for lower in range(last, end):
        name = tie[lower]
        count = tie_count[name]
        if count == 0:
            continue
        r = 1.0 / (power[lower] + sums[lower])
        x = weight[lower] * tie_gap[name] * r / least
        y = x * r
        tie_sum[name] += x
        tie_power[name] += y
        low[lower] += count * x
        low_power[lower] += count * y
    for place in range(first, last):
        name = tie[place]
        high[place] += tie_sum[name]
        high_power[place] += tie_power[name]
        tie_count[name] = 0


@_in_vectors
def _finish(
    first: int,
    last: int,
    sigma: float,
    kappa: float,
    steep: bool,
    factor: float,
    row: Rows,
    power: Floats,
    low: Floats,
    low_power: Floats,
    high: Floats,
    high_power: Floats,
    gradient: NDArray[np.float32],
    hessian: NDArray[np.float32],
) -> None:
    """From sums over pairs to gradient and hessian; only rounding can make the difference negative."""
    for place in range(np.uint64(first), np.uint64(last)):
        e, x_low, x_high, to = power[place], low[place], high[place], row[place]
        of_low = x_low - e * low_power[place]
        of_low = of_low if of_low > 0.0 else 0.0
        of_high = x_high if steep else e * high_power[place]
        gradient[to] = factor * sigma * (x_low - x_high)
        hessian[to] = factor * kappa * sigma * sigma * (of_low + of_high)
