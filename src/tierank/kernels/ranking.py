"""Sorting inside kernels, ranked lists of many queries, and the sums over them that metrics need.

numba's own sorts take five seconds to compile. If tied documents are averaged, every sum is the exact expectation over
all orders of the tied documents, computed without enumerating them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.kernels.compiling import Doubles, Ints, OutDoubles, OutInts, allocating, compiled, inner, work_arrays
from tierank.kernels.threads import in_threads, n_threads

# Runs of this many keys are sorted by comparing each with all, which the compiler vectorises.
_RUN = 64


@inner
def sort_down(
    n: int, keys: NDArray[np.floating], rows: OutInts, spare_keys: NDArray[np.floating], spare_rows: OutInts
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
    n: int, keys: NDArray[np.floating], rows: OutInts, spare_keys: NDArray[np.floating], spare_rows: OutInts
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
def count_higher(n: int, keys: NDArray[np.floating], counts: OutInts) -> int:
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
def sort_rows(start: int, n: int, gap: int, order: NDArray[np.uint32], ranked_scores: OutDoubles) -> None:
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


# Documents that are compared at once to select the highest: the sorting network below is written for this number.
_LANES = 16
# The k highest are selected in groups of lanes; each group looks for its share of the k, at most this many.
_PER_GROUP = 12
# Documents per additional thread: with fewer, starting a thread takes longer than it saves (measured).
_SHARE = 200_000

# The gains of integer ratings up to this one are in a table.
_WHOLE = 50


class Ranking(NamedTuple):
    """The top of each query's list: query q has the entries ``starts[q]:starts[q+1]`` of the other arrays.

    It has as many documents as requested, and the rest of the last tie. ``rows`` and ``scores`` hold the row and the
    score of the document at each rank; ``tie_ends`` the lowest rank (1-based) of the tie that the document is in.
    Values that a metric sums are in this order too.
    """

    starts: OutInts
    rows: OutInts
    scores: OutDoubles
    tie_ends: OutInts


class RankWork(NamedTuple):
    """Work arrays for ranking the documents of one query."""

    keys: OutDoubles
    spare_keys: OutDoubles
    rows: OutInts
    spare_rows: OutInts
    lanes: OutDoubles


def rank(scores: OutDoubles, offsets: OutInts, k: int, *, keep_ties: bool, n_jobs: int | None = 1) -> Ranking:
    """The documents of each query from the highest score down, to rank k.

    Tied documents are in the order of their rows. With ``keep_ties`` they are marked as one tie, and the tie at rank k
    is included to its end; without, each document is a tie of one.
    """
    n_queries, n = len(offsets) - 1, len(scores)
    n_parts = min(n_threads(n_jobs), 1 + n // _SHARE)
    cuts = np.searchsorted(offsets, np.linspace(0, n, n_parts + 1)[1:-1])
    spans = list(pairwise([0, *cuts.tolist(), n_queries]))
    # Each span fills the start of its part: memory that is never written costs nothing.
    ranked = Ranking(np.zeros(n_queries + 1, np.int64), np.empty(n, np.int64), np.empty(n), np.empty(n, np.int64))
    size = int(np.diff(offsets).max(initial=_LANES)) + 1  # a row is written before it is known whether it counts
    parts = ((scores, offsets, k, keep_ties, *ranked, *span, work_arrays(RankWork, size)) for span in spans)
    in_threads(_rank_span, parts, n_jobs)
    starts, *columns = ranked
    np.cumsum(starts, out=starts)
    filled = [slice(offsets[first], offsets[first] + starts[last] - starts[first]) for first, last in spans]
    if len(filled) == 1:
        return Ranking(starts, *(column[filled[0]] for column in columns))
    return Ranking(starts, *(np.concatenate([column[span] for span in filled]) for column in columns))


@compiled
def _rank_span(
    scores: Doubles,
    offsets: Ints,
    k: int,
    keep_ties: bool,
    depths: OutInts,
    rows: OutInts,
    ranked_scores: OutDoubles,
    tie_ends: OutInts,
    first: int,
    last: int,
    work: RankWork,
) -> None:
    """Rank the documents of a span of queries, query by query, starting at the place of its first document.

    ``depths`` gets the number of ranked documents of query q at q + 1.
    """
    keys, spare_keys, own_rows, spare_rows, lanes = work
    place = offsets[first]
    for q in range(first, last):
        own = scores[offsets[q] : offsets[q + 1]]
        bound = _lower_bound(own, k, lanes)
        n = 0
        for i in range(len(own)):
            own_rows[n] = i
            n += int(own[i] > bound)
        for i in range(n):
            keys[i] = own[own_rows[i]]
        sort_down(n, keys, own_rows, spare_keys, spare_rows)
        if n < min(k, len(own)):  # then the bound is the score at rank k itself
            for i in range(len(own)):
                own_rows[n], keys[n] = i, own[i]  # not the bound, which may be -0.0 for 0.0
                n += int(own[i] == bound)
        depth = min(k, n)
        while keep_ties and depth < n and keys[depth] == keys[depth - 1]:
            depth += 1
        tie = 0
        for j in range(1, depth + 1):
            rows[place + j - 1], ranked_scores[place + j - 1] = offsets[q] + own_rows[j - 1], keys[j - 1]
            if j == depth or not keep_ties or keys[j] != keys[j - 1]:
                for i in range(tie, j):
                    tie_ends[place + i] = j
                tie = j
        depths[q + 1] = depth
        place += depth


@inner
def _lower_bound(scores: Doubles, k: int, lanes: OutDoubles) -> float:
    """A score that at least k documents reach: close to the one at rank k, or -inf if all have to be sorted.

    The documents are distributed over groups of lanes. If the highest scores of c lanes are t or more, at least c
    documents have a score of t or more.
    """
    n_groups = (k + _PER_GROUP - 1) // _PER_GROUP
    width = n_groups * _LANES
    if len(scores) < 2 * width:
        return -np.inf
    share = (k + n_groups - 1) // n_groups
    bound = np.inf
    for group in range(0, width, _LANES):
        for j in range(_LANES):
            lanes[j] = scores[group + j]
        for block in range(group + width, len(scores) - _LANES + 1, width):
            for j in range(_LANES):
                score = scores[block + j]
                lanes[j] = score if score > lanes[j] else lanes[j]
        _sort_lanes(lanes)
        bound = min(bound, lanes[share - 1])
    return bound


@inner
def _sort_lanes(lanes: OutDoubles) -> None:
    """Sort the lanes, highest first, with Batcher's bitonic network: no branches, and all in registers."""
    size = 2
    while size <= _LANES:
        stride = size // 2
        while stride > 0:
            for i in range(_LANES):
                j = i ^ stride
                if i < j:
                    one, other = lanes[i], lanes[j]
                    high, low = (one, other) if one > other else (other, one)
                    lanes[i], lanes[j] = (high, low) if i & size == 0 else (low, high)
            stride //= 2
        size *= 2


@allocating
def discounted_sum(values: Doubles, discounts: Doubles, k: int, starts: Ints, tie_ends: Ints) -> OutDoubles:
    """The sum over ranks r <= k of value_r * discount_r, for each query.

    By linearity, a tied document counts with the mean value of its tie.
    """
    sums = np.zeros(len(starts) - 1)
    for q in range(len(sums)):
        own_values, own_ends = values[starts[q] : starts[q + 1]], tie_ends[starts[q] : starts[q + 1]]
        depth = min(k, len(own_values))
        total = 0.0
        tie = 0
        while tie < depth:
            end = own_ends[tie]
            value, discount = own_values[tie], discounts[tie]
            for j in range(tie + 1, end):
                value += own_values[j]
            for j in range(tie + 1, min(end, depth)):
                discount += discounts[j]
            total += value / (end - tie) * discount
            tie = end
        sums[q] = total
    return sums


@allocating
def cascade(stops: Doubles, k: int, starts: Ints, tie_ends: Ints) -> OutDoubles:
    """The sum over ranks r <= k of 1/r * stop_r * product over i < r of (1 - stop_i), for each query.

    That is the expected reciprocal of the rank at which a reader stops who stops at a document with probability
    ``stop``. Inside a tie that begins after rank p, let S_j be the expected probability of passing j of its documents,
    drawn at random. Then the probability of stopping at rank p + j + 1 is S_j - S_{j+1}, times that of reaching the
    tie.
    """
    sums = np.zeros(len(starts) - 1)
    for q in range(len(sums)):
        start = starts[q]
        depth = min(k, starts[q + 1] - start)
        reach = 1.0  # the probability of reaching the next tie
        tie = 0
        while tie < depth and reach > 0:
            end = tie_ends[start + tie]
            if end == tie + 1:
                stop = stops[start + tie]
                sums[q] += reach * stop / end
                reach *= 1 - stop
            else:
                passed = _pass_chances(stops[start + tie : start + end], min(end, depth) - tie)
                for j in range(len(passed) - 1):
                    sums[q] += reach * (passed[j] - passed[j + 1]) / (tie + j + 1)
                reach *= passed[-1]
            tie = end
    return sums


@inner
def _pass_chances(stops: OutDoubles, n: int) -> OutDoubles:
    """S_j for j = 0 .. n: the expected product of (1 - stop) over j of these documents, drawn at random.

    Document i is among j drawn from the first i with probability j/i: S_j(i) = (1 - j/i) S_j(i-1) + j/i (1 - stop_i)
    S_{j-1}(i-1). Documents with stop = 0 come first: with these alone every S_j is 1, so they need no loop. And S_j is
    at most (1 - mean stop)^j (Maclaurin's inequality), so from j = 42 / mean stop on it is below 1e-18 and left at 0.
    Both make the work proportional to the length of a tie.
    """
    passed = np.ones(n + 1)
    i = 0
    total = 0.0
    for stop in stops:
        i += stop == 0
        total += stop
    if total == 0:
        return passed
    last = min(n, int(42 * len(stops) / total) + 1)
    passed[last + 1 :] = 0
    for stop in stops:
        if stop != 0:
            i += 1
            go_on = 1 - stop
            for j in range(min(i, last), 0, -1):
                passed[j] = ((i - j) * passed[j] + j * go_on * passed[j - 1]) / i
    return passed


@allocating
def precision_sum(relevant: Doubles, k: int, starts: Ints, tie_ends: Ints) -> OutDoubles:
    """The sum over ranks r <= k with a relevant document of (relevant documents to rank r) / r, for each query.

    In a tie of m documents, c of them relevant, after p documents, h of them relevant, the j-th is relevant with
    probability c/m, and then (j-1)(c-1)/(m-1) of those before it in the tie are expected to be relevant too.
    """
    sums = np.zeros(len(starts) - 1)
    for q in range(len(sums)):
        start = starts[q]
        depth = min(k, starts[q + 1] - start)
        before = 0.0
        tie = 0
        while tie < depth:
            end = tie_ends[start + tie]
            size = end - tie
            found = 0.0
            for j in range(tie, end):
                found += relevant[start + j]
            spread = (found - 1) / (size - 1) if size > 1 else 0.0
            for j in range(min(end, depth) - tie):
                sums[q] += found / size * (before + 1 + j * spread) / (tie + j + 1)
            before += found
            tie = end
    return sums


@allocating
def preference_sum(
    relevant: Doubles, judged: Doubles, n_relevant: Ints, n_others: Ints, starts: Ints, tie_ends: Ints
) -> OutDoubles:
    """The sum over relevant documents of 1 - min(above, R) / min(R, N), for each query.

    ``above`` is the number of judged non-relevant documents above it, N is the number of all of these, and R that of
    relevant documents. If m of them are in the tie of a relevant document, 0, 1, ..., m of these are above it with
    equal probability.
    """
    sums = np.zeros(len(starts) - 1)
    for q in range(len(sums)):
        start, n = starts[q], starts[q + 1] - starts[q]
        least = max(1, min(n_relevant[q], n_others[q]))
        above = 0
        tie = 0
        while tie < n:
            end = tie_ends[start + tie]
            found, others = 0.0, 0
            for j in range(start + tie, start + end):
                found += relevant[j]
                others += judged[j] > relevant[j]
            if found > 0:
                passed = 0.0
                for j in range(above, above + others + 1):
                    passed += min(j, n_relevant[q]) / least
                sums[q] += found * (1 - passed / (others + 1))
            above += others
            tie = end
    return sums


@allocating
def highest(values: Doubles, offsets: Ints) -> OutDoubles:
    """The highest value of each query; 0 if none is above 0."""
    tops = np.zeros(len(offsets) - 1)
    for q in range(len(tops)):
        top = 0.0
        for i in range(offsets[q], offsets[q + 1]):
            top = values[i] if values[i] > top else top
        tops[q] = top
    return tops


@allocating
def exp2_gains(ratings: Doubles, offsets: Ints, tops: Doubles) -> OutDoubles:
    """(2^rating - 1) / 2^top, with a top for each query.

    Nothing overflows if no rating is above its top, and whole numbers are exact. Below 1 the difference would cancel,
    so 2^(rating - top) * (1 - 2^-rating) is used there.
    """
    gains = np.empty(len(ratings))
    whole = np.empty(_WHOLE + 1)  # the gains of integers: a lookup takes a fraction of the time of exp2
    for rating in range(_WHOLE + 1):
        whole[rating] = (1 << rating) - 1
    for q in range(len(tops)):
        unit = np.exp2(-tops[q])
        n_other = 0
        for i in range(offsets[q], offsets[q + 1]):
            n_other += not (ratings[i] <= _WHOLE and ratings[i] == np.floor(ratings[i]))
        if n_other == 0:  # nearly all queries: no branch for each document
            for i in range(offsets[q], offsets[q + 1]):
                gains[i] = whole[np.uint64(np.int64(ratings[i]))] * unit
            continue
        for i in range(offsets[q], offsets[q + 1]):
            rating = ratings[i]
            if rating <= _WHOLE and rating == np.floor(rating):
                gains[i] = whole[np.int64(rating)] * unit
            elif rating >= 1:
                gains[i] = np.exp2(rating - tops[q]) - unit
            else:
                gains[i] = np.exp2(rating - tops[q]) * -np.expm1(-np.log(2.0) * rating)
    return gains
