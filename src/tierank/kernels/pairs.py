"""The gradient of uMart: every document of a tier against the windows of the documents below it.

A query of n documents costs O(n * tiers + p), where p is the number of pairs of different ratings; truncation at k
leaves at most n (k + tiers) of these:

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
as a whole, however long it is: after the first tree a fifteenth of all documents may share the highest score. So it is
laid out with the others, and ``_compare_tie_at_cut`` adds its pairs with these, once for each tier.

``weighted_gradients`` has a weight for each document of a pair, for clicks, and the loss of each document. Lists with
clicks are short, so it is one plain loop over pairs. Its exponentials are relative to the higher of the two scores, so
it also handles lists whose scores are too far apart for the fast kernel.

Work arrays are allocated once for a span of queries, by Python, because numba takes seconds to compile allocations.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.kernels.compiling import compiled, inner
from tierank.kernels.ranking import sort_rows
from tierank.kernels.simd import from_bits

Rows = NDArray[np.uint32]  # unsigned: numba checks every signed index for being negative

# For sums over documents or pairs that may be reordered: all terms are finite.
_in_vectors = inner(fastmath={"reassoc", "contract", "arcp", "nsz"})

_inlined = inner(forceinline=True)
_inlined_in_vectors = inner(forceinline=True, fastmath={"reassoc", "contract", "arcp", "nsz"})

# Padding after each layout: as many places as one iteration of the loop over pairs may process.
_PADDING = 8
# If sigma times the spread of the scores is above this, a product of two exponentials could leave float64.
WIDEST = 300.0
# The most ranks that documents may move before their query is sorted from scratch, and ranks compared per iteration.
_REACH, _STEP = 128, 4
# 1 / 13!, ..., 1 / 1!, 1 / 0!: the series of the exponential.
_SERIES = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))
# The bits of the fraction of a float64.
_N_FRACTION = np.uint64(52)
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


class Output(NamedTuple):
    """Gradient and hessian by row, which kernels write."""

    gradient: NDArray[np.float32]
    hessian: NDArray[np.float32]


class Task(NamedTuple):
    """What the gradient is computed of, and where it goes."""

    scores: Floats
    queries: Queries
    rules: Rules
    output: Output


class ByRank(NamedTuple):
    """Work arrays by rank in the query."""

    scores: Floats
    powers: Floats  # e^(sigma (f - highest))
    discounts: Floats  # shared within ties
    ties: Rows  # the first rank of the tie
    places: Rows  # in the layout
    line: Floats  # the scores in the old order, between _REACH higher and _REACH lower ones
    shifts: NDArray[np.int64]
    rows: Rows


class TierLayout(NamedTuple):
    """Work arrays by place: tier by tier, and inside a tier by score.

    ``low`` and ``high`` sum the pairs of a document as the lower and as the higher one: see ``_compare``.
    """

    row: Rows
    tie: Rows
    score: Floats
    power: Floats
    discount: Floats
    gain: Floats
    window_sum: Floats
    weight: Floats
    weighted_discount: Floats
    low: Floats
    low_power: Floats
    high: Floats
    high_power: Floats


class Ties(NamedTuple):
    """Work arrays by the first rank of a tie; ``count`` is 0 wherever it is not in use."""

    count: Rows
    gap: Floats
    sum: Floats
    power: Floats


class PairWork(NamedTuple):
    """All work arrays of ``umart_gradients``; ``ends`` is where tiers end in the layouts."""

    ranked: ByRank
    layout: TierLayout
    ties: Ties
    ends: Rows


def pair_work_size(longest: int, most_tiers: int) -> int:
    """The size of work arrays for queries of at most this many documents and tiers."""
    return longest + most_tiers + 2 * _REACH


@compiled
def umart_gradients(first: int, last: int, task: Task, order: Rows, is_wide: NDArray[np.bool_], work: PairWork) -> None:
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
    scores, queries, rules, output = task
    ranked, layout, ties, ends = work
    window, by_rank, sigma = rules.window, rules.by_rank, rules.sigma
    sums = layout.power if window == 1 else layout.window_sum
    zero = np.int64(0)  # a literal 0 has another type in numba, which would compile again for it
    for query in range(first, last):
        start, n_tiers = queries.offsets[query], queries.n_tiers[query]
        n = queries.offsets[query + 1] - start
        is_wide[query] = False
        if n_tiers < 2:
            for row in range(start, start + n):
                output.gradient[row], output.hessian[row] = 0.0, 0.0
            continue
        tied = _repair_order(start, n, scores, order, ranked) and rules.share_ties
        spread = ranked.scores[0] - ranked.scores[n - 1]
        if sigma * spread > WIDEST:
            is_wide[query] = True
            continue
        _take_powers(n, sigma, ranked)
        by_distance = by_rank and rules.over_distance and spread > 0
        n_top = rules.truncation if rules.truncation < n else n
        discounts = ranked.discounts if tied else queries.discounts
        is_cut = False  # whether rank k is within a tie
        if tied:
            _share_ranks(n, True, ranked.scores, queries.discounts, discounts, ranked.ties, ties.gap)
            is_cut = n_top < n and ranked.scores[n_top] == ranked.scores[n_top - 1]
            n_top = np.int64(ranked.ties[n_top]) if is_cut else n_top
        rest = n_top + _PADDING
        end = rest + n - n_top
        _lay_out(start, n, n_top, n_tiers, by_distance, discounts, order, queries, work)
        for rank in range(n if tied else 0):
            layout.tie[ranked.places[rank]] = ranked.ties[rank]
        _pad(n_top, layout)
        _pad(end, layout)
        _clear_sums(zero, end + _PADDING, layout)
        least = _LEAST_DISTANCE if by_distance else 1.0
        n_below = n
        top_start, rest_start = zero, rest
        for tier in range(n_tiers - 1):
            top_end, rest_end = np.int64(ends[tier]), np.int64(ends[n_tiers + tier])
            if 1 < window < n:
                n_below = _sum_windows(n_below, top_end, n_top, rest_end, window, ranked.places, layout)
                if tied:
                    _share_windows(n_below, ranked.places, layout)
            tier_gain = layout.gain[top_start if top_start < top_end else rest_start]
            total = 0.0
            for a, b in ((top_end, n_top), (rest_end, end)):
                total += _weigh(a, b, tier_gain, by_rank, layout)
            for place in range(top_end, end if window >= n else top_end):
                layout.window_sum[place] = total
            for a, b, c, d in (
                (top_start, top_end, top_end, n_top),
                (top_start, top_end, rest_end, end),
                (rest_start, rest_end, top_end, n_top),
            ):
                if a < b and c < d and not (tied and by_rank and spread == 0):
                    _compare(a, b, c, d, 1.0, least, sums, layout)
            cut_end = rest_start
            while is_cut and cut_end < rest_end and layout.tie[cut_end] == n_top:
                cut_end += 1
            if is_cut and not (by_rank and spread == 0):
                _compare_tie_at_cut(rest_start, cut_end, tier, n_tiers, n_top, least, sums, ties.count, ends, layout)
            for a, b, c, d in ((top_start, top_end, top_end, n_top), (rest_start, cut_end, rest_end, end)):
                if tied and by_rank and a < b:
                    _compare_ties(a, b, c, d, least, sums, ties, layout)
            top_start, rest_start = top_end, rest_end
        total = 0.0
        for place in range(end if rules.levelled else 0):
            total += 2.0 * sigma * layout.high[place]
        factor = np.log2(1.0 + total) / total if total > 0.0 else 1.0  # lambdarank's, for queries with many pairs
        for a, b in ((zero, n_top), (rest, end)):
            _finish(a, b, rules, factor, layout, output)


@inner
def _repair_order(start: int, n: int, scores: Floats, order: Rows, ranked: ByRank) -> bool:
    """Sort the rows of a query by score, highest first, and by row if scores are equal; returns whether any are.

    A document moves by the number of higher ones after it, minus the number of lower ones before it. These are counted
    among its neighbours, further and further out, until no two documents that far apart are out of order: vectorised
    and without a branch, which would be mispredicted for most documents that move. If there are more to count, the new
    places collide or the scores do not fall, and the query is sorted from scratch.
    """
    line, shifts, rows, ranked_scores = ranked.line, ranked.shifts, ranked.rows, ranked.scores
    for place in range(_REACH):
        line[place] = np.inf
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
            rows[shifts[rank]] = order[start + rank]
        for rank in range(1, n):
            n_wrong += not ranked_scores[rank - 1] >= ranked_scores[rank]
    if n_found > 0 and n_wrong == 0:
        for rank in range(n):
            order[start + rank] = rows[rank]
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
    n: int, share_ties: bool, scores: Floats, discounts: Floats, shared: Floats, ties: Rows, gap: Floats
) -> None:
    """The first rank of each tie, the mean discount of its ranks, and the mean gap between two of these.

    Untied documents, and without ``share_ties`` all documents, are ties of one.
    """
    first = 0
    while first < n:
        last = first + 1
        while share_ties and last < n and scores[last] == scores[first]:
            last += 1
        size = last - first
        total, gaps = 0.0, 0.0
        for rank in range(first, last):
            total += discounts[rank]
            gaps += discounts[rank] * (size - 1 - 2 * (rank - first))
        for rank in range(first, last):
            ties[rank], shared[rank] = first, total / size
        gap[first] = 2.0 * gaps / (size * (size - 1)) if size > 1 else 0.0
        first = last


@inner
def _take_powers(n: int, sigma: float, ranked: ByRank) -> None:
    """e^x for x = sigma (f - best), to the last digit but one; numba's own is a call of the C library per number.

    e^x = 2^k e^r with k the integer nearest to x / ln 2 and |r| <= ln 2 / 2.
    """
    best = ranked.scores[0]
    for rank in range(n):
        x = sigma * (ranked.scores[rank] - best)
        k = np.floor(x * 1.4426950408889634 + 0.5)
        r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10  # ln 2 in two parts: k times the first is exact
        p = 0.0
        for coefficient in _SERIES:
            p = p * r + coefficient
        ranked.powers[rank] = p * from_bits(np.uint64(np.int64(k) + 1023) << _N_FRACTION)


@inner
def _lay_out(
    start: int, n: int, n_top: int, n_tiers: int, by_distance: bool,
    discounts: Floats, order: Rows, queries: Queries, work: PairWork,
) -> None:  # fmt: skip
    """Lay out the first ``n_top`` ranks of a query, and the others behind the padding.

    ``ends`` is where each tier ends in the first layout, and then where each ends in the second one.
    """
    ranked, layout, ends = work.ranked, work.layout, work.ends
    for tier in range(2 * n_tiers + 1):
        ends[tier] = 0
    for rank in range(n):
        ends[queries.tiers[order[start + rank]] + (n_tiers if rank >= n_top else 0) + 1] += 1
    ends[n_tiers] += _PADDING
    for tier in range(2 * n_tiers):
        ends[tier + 1] += ends[tier]
    # Each tier is filled from its start, so its start ends up as its end.
    for rank in range(n):
        row = order[start + rank]
        tier = queries.tiers[row] + (n_tiers if rank >= n_top else 0)
        place = ends[tier]
        ends[tier] = place + 1
        ranked.places[rank] = place
        layout.row[place] = row
        layout.score[place] = ranked.scores[rank] if by_distance else 0.0
        layout.power[place] = ranked.powers[rank]
        layout.discount[place] = discounts[rank]
        layout.gain[place] = queries.gains[row]


@inner
def _pad(first: int, layout: TierLayout) -> None:
    """Places without weight, and with values that do not overflow."""
    for place in range(first, first + _PADDING):
        layout.score[place], layout.power[place], layout.window_sum[place] = 0.0, 1.0, 1.0
        layout.weight[place], layout.weighted_discount[place] = 0.0, 0.0


@inner
def _clear_sums(first: int, last: int, layout: TierLayout) -> None:
    for place in range(first, last):
        layout.low[place], layout.low_power[place], layout.high[place], layout.high_power[place] = 0.0, 0.0, 0.0, 0.0


@_inlined
def _sum_windows(
    n: int, top_end: int, n_top: int, rest_end: int, window: int, ranked_places: Rows, layout: TierLayout
) -> int:
    """Windows of this many documents below a tier, in order of score; keeps their places, and returns their number.

    Without a branch, because ratings cannot be predicted; windows of two without loops, which is faster.
    """
    power, window_sum = layout.power, layout.window_sum
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


@_inlined
def _share_windows(n: int, ranked_places: Rows, layout: TierLayout) -> None:
    """Give each tie the harmonic mean of the sums of the windows that it extends into.

    p' = e^(sigma f(d')) / (e^(sigma f(d)) + k) is proportional to 1 / k if the window outweighs d, and does not depend
    on k if it does not: so one high document at the edge of a tie does not silence the tie.
    """
    tie, window_sum = layout.tie, layout.window_sum
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


@_inlined_in_vectors
def _weigh(first: int, last: int, tier_gain: float, by_rank: bool, layout: TierLayout) -> float:
    """The lower document's part of a pair's weight: its exponential times the gap of gains, and that times discount.

    The weight is then |gap discount(d) - gap discount(d')|, up to the distance: one operation less per pair. Returns
    the sum of the exponentials.
    """
    counted = 1.0 if by_rank else 0.0
    total = 0.0
    for place in range(np.uint64(first), np.uint64(last)):
        e = layout.power[place]
        gap = abs(tier_gain - counted * layout.gain[place]) * e
        layout.weight[place] = gap
        layout.weighted_discount[place] = counted * gap * layout.discount[place]
        total += e
    return total


@_in_vectors
def _compare(
    first: int, last: int, first_low: int, last_low: int, copies: float, least: float, sums: Floats, layout: TierLayout
) -> None:
    """Every pair of a place in first to last - 1 and a lower one in first_low to last_low - 1.

    A single place may stand for several ``copies``: documents that are alike.

    With E = e^(sigma f) and K the window sum: x = w p' = w E' / (E + K) and y = x / (E + K), so that w p' p = E y and w
    p' (1 - p') = x - E' y. ``low`` and ``high`` sum x over the pairs of a document, the other two sum y.

    Two places are processed together, as division is the slowest part: 1 / a and 1 / b are b / (a b) and a / (a b).
    """
    score, power, discount = layout.score, layout.power, layout.discount
    weight, weighted_discount = layout.weight, layout.weighted_discount
    low, low_power, high, high_power = layout.low, layout.low_power, layout.high, layout.high_power
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
            low[lower] += copies * x
            low_power[lower] += copies * y
        high[place] += x_sum
        high_power[place] += y_sum


@inner
def _compare_tie_at_cut(
    start: int,
    cut_end: int,
    tier: int,
    n_tiers: int,
    name: int,
    least: float,
    sums: Floats,
    counts: Rows,
    ends: Rows,
    layout: TierLayout,
) -> None:
    """Every pair in the second layout of a document of this tier and a lower one, if one of the two is in a tie.

    In each tier of the layout the tie ``name`` comes first: here from ``start`` to cut_end - 1. Its documents in one
    tier are alike, so one place behind the layouts stands for all of them: one for this tier, then one for each tier
    below. ``row`` and ``counts`` say where these begin, and how many they are.
    """
    row, low, low_power = layout.row, layout.low, layout.low_power
    end, all_end = np.int64(ends[n_tiers + tier]), np.int64(ends[2 * n_tiers - 1])
    high_one = all_end + _PADDING
    first_low, last_low = high_one + 1, high_one + 1
    for lower in range(tier + 1, n_tiers):
        first = ends[n_tiers + lower - 1]
        count = 0
        while first + count < ends[n_tiers + lower] and layout.tie[first + count] == name:
            count += 1
        if count > 0:
            row[last_low], counts[last_low] = first, count
            layout.score[last_low], layout.power[last_low], sums[last_low] = (
                layout.score[first],
                layout.power[first],
                sums[first],
            )
            layout.weight[last_low] = layout.weight[first] * count
            layout.weighted_discount[last_low] = layout.weighted_discount[first] * count
            last_low += 1
    _pad(last_low, layout)
    _clear_sums(high_one, last_low + _PADDING, layout)
    _compare(cut_end, end, first_low, last_low, 1.0, least, sums, layout)
    for place in range(first_low, last_low):
        for member in range(row[place], row[place] + counts[place]):
            low[member] += low[place] / counts[place]
            low_power[member] += low_power[place] / counts[place]
        counts[place] = 0
    if start < cut_end:
        layout.score[high_one], layout.power[high_one] = layout.score[start], layout.power[start]
        layout.discount[high_one] = layout.discount[start]
        _compare(high_one, high_one + 1, end, all_end, np.float64(cut_end - start), least, sums, layout)
    for member in range(start, cut_end):
        layout.high[member] += layout.high[high_one]
        layout.high_power[member] += layout.high_power[high_one]


@_inlined
def _compare_ties(
    first: int, last: int, first_low: int, last_low: int, least: float, sums: Floats, ties: Ties, layout: TierLayout
) -> None:
    """Every pair within a tie of a place in first to last - 1 and a lower one in first_low to last_low - 1.

    The documents of a tier in a tie are all alike, so they are counted. They have the exponential of the lower
    document. x and y are as in ``_compare``.
    """
    for place in range(first, last):
        name = layout.tie[place]
        ties.count[name] += 1
        ties.sum[name], ties.power[name] = 0.0, 0.0
    for lower in range(first_low, last_low):
        name = layout.tie[lower]
        count = ties.count[name]
        if count == 0:
            continue
        r = 1.0 / (layout.power[lower] + sums[lower])
        x = layout.weight[lower] * ties.gap[name] * r / least
        y = x * r
        ties.sum[name] += x
        ties.power[name] += y
        layout.low[lower] += count * x
        layout.low_power[lower] += count * y
    for place in range(first, last):
        name = layout.tie[place]
        layout.high[place] += ties.sum[name]
        layout.high_power[place] += ties.power[name]
        ties.count[name] = 0


@_inlined_in_vectors
def _finish(first: int, last: int, rules: Rules, factor: float, layout: TierLayout, output: Output) -> None:
    """From sums over pairs to gradient and hessian; only rounding can make the difference negative."""
    sigma = rules.sigma
    for place in range(np.uint64(first), np.uint64(last)):
        e, x_low, x_high, to = layout.power[place], layout.low[place], layout.high[place], layout.row[place]
        of_low = x_low - e * layout.low_power[place]
        of_low = of_low if of_low > 0.0 else 0.0
        of_high = x_high if rules.steep else e * layout.high_power[place]
        output.gradient[to] = factor * sigma * (x_low - x_high)
        output.hessian[to] = factor * rules.kappa * sigma * sigma * (of_low + of_high)


class Weights(NamedTuple):
    """By row: the weight of a document as the higher and as the lower one of a pair, and its part of the loss.

    All arrays are writable.
    """

    above: Floats
    below: Floats
    loss_above: Floats
    loss_below: Floats


class WeightedWork(NamedTuple):
    """Work arrays of ``weighted_gradients``, by rank; ``lower``, ``top`` and ``total`` are of the documents below."""

    score: Floats
    shared: Floats
    gap: Floats
    top: Floats
    total: Floats
    slope: Floats
    curve: Floats
    of_above: Floats
    of_below: Floats
    tie: Rows
    lower: NDArray[np.int64]


@compiled
def weighted_gradients(first: int, last: int, task: Task, order: Rows, weights: Weights, work: WeightedWork) -> None:
    """Gradient and hessian of the queries first to last - 1, with the factor above(d) below(d') for d and the lower d'.

    Everything else is as in ``umart_gradients``; the factor of ``levelled`` is that of the pairs without these weights,
    because otherwise it would cancel them. ``order`` holds the rows of each query, and ends up sorted by score, highest
    first, and by row if scores are equal.

    The loss of a pair is w ln(1 + k_b / e^(sigma f(d))) e^(sigma f(d')) / k_b: summed over the d' of a window b with
    one weight, that is -w ln(p). ``loss_above`` of d is the sum over its pairs times below(d'), ``loss_below`` of d'
    the sum over its pairs times above(d).
    """
    scores, queries, rules, output = task
    score, sigma = work.score, rules.sigma
    for query in range(first, last):
        start, n = queries.offsets[query], queries.offsets[query + 1] - queries.offsets[query]
        for rank in range(n):
            score[rank] = scores[order[start + rank]]
            work.slope[rank], work.curve[rank], work.of_above[rank], work.of_below[rank] = 0.0, 0.0, 0.0, 0.0
        sort_rows(start, n, n // 2, order, score)
        _share_ranks(n, rules.share_ties, score, queries.discounts, work.shared, work.tie, work.gap)
        n_top = min(n, rules.truncation)
        while rules.share_ties and 0 < n_top < n and score[n_top] == score[n_top - 1]:
            n_top += 1
        by_distance = rules.by_rank and rules.over_distance and score[0] > score[n - 1]
        plain = 0.0
        for tier in range(queries.n_tiers[query] - 1):
            n_lower, n_lower_top = 0, 0
            for rank in range(n):
                if queries.tiers[order[start + rank]] > tier:
                    work.lower[n_lower] = rank
                    n_lower += 1
                    n_lower_top += rank < n_top
            _sum_wide_windows(n_lower, rules, work)
            for rank in range(n):
                if queries.tiers[order[start + rank]] == tier:
                    n_met = n_lower if rank < n_top else n_lower_top
                    plain = _add_pairs(start, rank, n_met, by_distance, plain, task, weights, work, order)
        plain *= 2.0 * sigma
        factor = np.log2(1.0 + plain) / plain if rules.levelled and plain > 0.0 else 1.0
        for rank in range(n):
            row = order[start + rank]
            output.gradient[row] = factor * sigma * work.slope[rank]
            output.hessian[row] = factor * rules.kappa * sigma * sigma * work.curve[rank]
            weights.loss_above[row], weights.loss_below[row] = work.of_above[rank], work.of_below[rank]


@inner
def _add_pairs(
    start: int, rank: int, n_lower: int, by_distance: bool, plain: float,
    task: Task, weights: Weights, work: WeightedWork, order: Rows,
) -> float:  # fmt: skip
    """Add a document's pairs with the first ``n_lower`` below its tier; returns ``plain`` plus their unweighted sum."""
    rules, gains = task.rules, task.queries.gains
    score, tie, sigma = work.score, work.tie, rules.sigma
    above, below = weights.above, weights.below
    row = order[start + rank]
    for i in range(n_lower):
        other = work.lower[i]
        low = order[start + other]
        w = gains[row]
        if rules.by_rank:
            is_tied = tie[rank] == tie[other]
            w = abs(w - gains[low]) * (work.gap[tie[rank]] if is_tied else abs(work.shared[rank] - work.shared[other]))
            w /= _LEAST_DISTANCE + abs(score[rank] - score[other]) if by_distance else 1.0
        margin = np.log(work.total[i]) + sigma * (work.top[i] - score[rank])  # ln(k_b / e^(sigma f(d)))
        share = np.exp(sigma * (score[other] - work.top[i])) / work.total[i]  # e^(sigma f(d')) / k_b
        less = np.exp(-abs(margin))
        p = (1.0 if margin < 0 else less) / (1.0 + less)
        p_low = share * (less if margin < 0 else 1.0) / (1.0 + less)
        plain += w * p_low
        pair = w * above[row] * below[low]
        work.slope[rank] -= pair * p_low
        work.slope[other] += pair * p_low
        work.curve[rank] += pair * p_low * (1.0 if rules.steep else p)
        work.curve[other] += pair * p_low * (1.0 - p_low)
        loss = w * share * (max(margin, 0.0) + np.log1p(less))
        work.of_above[rank] += loss * below[low]
        work.of_below[other] += loss * above[row]
    return plain


@inner
def _sum_wide_windows(n: int, rules: Rules, work: WeightedWork) -> None:
    """The sum of e^(sigma (f - top)) over the window of each lower document, and its top.

    Documents with equal scores get the harmonic mean over their places, relative to the lowest of their tops.
    """
    score, tie, lower, top, total = work.score, work.tie, work.lower, work.top, work.total
    window, sigma = rules.window, rules.sigma
    for first in range(0, n, window):
        last = min(first + window, n)
        highest = score[lower[first]]
        added = 0.0
        for i in range(first, last):
            added += np.exp(sigma * (score[lower[i]] - highest))
        for i in range(first, last):
            top[i], total[i] = highest, added
    first = 0
    while rules.share_ties and first < n:
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
