"""Click models: EM, click probabilities down a list, and pairs of a query and a document.

Session s has the rows ``offsets[s]:offsets[s+1]``, from the top of its list to the bottom.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tierank.kernels.compiling import Doubles, Ints, OutDoubles, OutInts, Vector, allocating, compiled, inner


@allocating
def fit_products(
    items: Ints,
    cells: Ints,
    shown: Doubles,
    clicks: Doubles,
    smoothing: float,
    prior: float,
    tolerance: float,
    max_iterations: int,
    attraction: OutDoubles,
    examination: OutDoubles,
) -> int:
    """EM for P(click) = attraction[item] * examination[cell], from the counts of each pair of an item and a cell.

    Only the products matter, so the examination of cell 0 is not changed. Without a click, a document was attractive
    with probability a (1 - g) / (1 - a g), and examined with probability g (1 - a) / (1 - a g). Returns the number of
    iterations, negated if it stopped at ``max_iterations``.
    """
    attracted, offered = np.empty_like(attraction), np.zeros_like(attraction)
    examined, reached = np.empty_like(examination), np.zeros_like(examination)
    for i in range(len(items)):
        offered[items[i]] += shown[i]
        reached[cells[i]] += shown[i]
    for iteration in range(1, max_iterations + 1):
        attracted[:] = smoothing * prior
        examined[:] = smoothing * 0.5
        for i in range(len(items)):
            a, g = attraction[items[i]], examination[cells[i]]
            rest = 1 - a * g
            skips = (shown[i] - clicks[i]) / rest if rest > 0 else 0.0
            attracted[items[i]] += clicks[i] + skips * a * (1 - g)
            examined[cells[i]] += clicks[i] + skips * g * (1 - a)
        change = max(
            _divide(attracted, offered, smoothing, 0, attraction), _divide(examined, reached, smoothing, 1, examination)
        )
        if change <= tolerance:
            return iteration
    return -max_iterations


@inner
def _divide(sums: OutDoubles, counts: OutDoubles, smoothing: float, first: int, values: OutDoubles) -> float:
    """Set each value from ``first`` on to sum / (count + smoothing) if count > 0; returns the largest change."""
    change = 0.0
    for i in range(first, len(values)):
        if counts[i] + smoothing > 0:
            fresh = min(sums[i] / (counts[i] + smoothing), 1.0)
            change = max(change, abs(fresh - values[i]))
            values[i] = fresh
    return change


@allocating
def fit_dbn(
    offsets: Ints,
    items: Ints,
    clicked: Vector[np.bool_],
    weights: Doubles,
    smoothing: float,
    prior: float,
    tolerance: float,
    max_iterations: int,
    attraction: OutDoubles,
    satisfaction: OutDoubles,
    continuation: OutDoubles,
) -> int:
    """EM for the dynamic Bayesian network; ``continuation`` has one value.

    All documents down to the last click were examined, and the user continued after each of them except the last. Below
    it, let b_r (``quiet``) be the probability of no more clicks from r on if r is examined: b_r = (1 - a_r) (g b_{r+1}
    + 1 - g), and 1 below the list. Returns the number of iterations, negated if it stopped at ``max_iterations``.
    """
    # One function: in several, each session takes 1.6 times as long.
    n_items = len(attraction)
    attracted, examined = np.empty(n_items), np.empty(n_items)
    satisfied, tried = np.empty(n_items), np.empty(n_items)
    went_on, could_go_on = np.empty(1), np.empty(1)
    longest = 0
    for s in range(len(offsets) - 1):
        longest = max(longest, offsets[s + 1] - offsets[s])
    quiet = np.ones(longest + 1)
    for iteration in range(1, max_iterations + 1):
        g = continuation[0]
        attracted[:], satisfied[:] = smoothing * prior, smoothing * 0.5
        examined[:], tried[:] = 0.0, 0.0
        went_on[0], could_go_on[0] = smoothing * 0.5, 0.0
        for s in range(len(offsets) - 1):
            start, end, w = offsets[s], offsets[s + 1], weights[s]
            last = start - 1
            for row in range(start, end):
                if clicked[row]:
                    last = row
            quiet[end - start] = 1.0
            for row in range(end - 1, last, -1):
                quiet[row - start] = (1 - attraction[items[row]]) * (g * quiet[row - start + 1] + 1 - g)
            for row in range(start, last + 1):
                examined[items[row]] += w
                attracted[items[row]] += w * clicked[row]
                if row < last:
                    went_on[0] += w
                    could_go_on[0] += w
                    tried[items[row]] += w * clicked[row]
            reach = 1.0
            if last >= start:
                reach = 0.0
                if last + 1 < end:
                    sat, rest = satisfaction[items[last]], quiet[last - start + 1]
                    chance = sat + (1 - sat) * (g * rest + 1 - g)
                    if chance > 0:
                        tried[items[last]] += w
                        satisfied[items[last]] += w * sat / chance
                        reach = (1 - sat) * g * rest / chance
                        went_on[0] += w * reach
                        could_go_on[0] += w * (1 - sat) * (g * rest + 1 - g) / chance
            for row in range(last + 1, end):
                examined[items[row]] += w * reach
                if row + 1 < end:
                    chance = g * quiet[row - start + 1] + 1 - g
                    could_go_on[0] += w * reach
                    reach = reach * g * quiet[row - start + 1] / chance if chance > 0 else 0.0
                    went_on[0] += w * reach
        change = max(
            _divide(attracted, examined, smoothing, 0, attraction),
            _divide(satisfied, tried, smoothing, 0, satisfaction),
            _divide(went_on, could_go_on, smoothing, 0, continuation),
        )
        if change <= tolerance:
            return iteration
    return -max_iterations


@compiled
def expect_chain(
    offsets: Ints, attraction: Doubles, after_click: Doubles, after_skip: float, chances: OutDoubles
) -> None:
    """The probability of a click in each row, before any click is seen, for users who go down the list one by one.

    They examine the first document, and each next one with probability ``after_click`` or ``after_skip``.
    """
    for s in range(len(offsets) - 1):
        reach = 1.0
        for row in range(offsets[s], offsets[s + 1]):
            a = attraction[row]
            chances[row] = reach * a
            reach *= a * after_click[row] + (1 - a) * after_skip


@compiled
def follow_chain(
    offsets: Ints,
    attraction: Doubles,
    after_click: Doubles,
    after_skip: float,
    draws: Doubles,
    clicked: NDArray[np.bool_],
    chances: OutDoubles,
) -> None:
    """The probability of a click in each row, given the clicks above it; clicks are drawn if there are draws."""
    for s in range(len(offsets) - 1):
        reach = 1.0
        for row in range(offsets[s], offsets[s + 1]):
            a = attraction[row]
            chances[row] = reach * a
            if len(draws):
                clicked[row] = draws[row] < chances[row]
            if clicked[row]:
                reach = after_click[row]
            elif chances[row] < 1:
                reach = reach * (1 - a) * after_skip / (1 - chances[row])
            else:
                reach = 0.0


@inner
def cell_of(position: int, previous: int) -> int:
    """The index of a position and of the click above it (0: none) in a triangle of all such pairs."""
    return position * (position - 1) // 2 + previous


@compiled
def browsing_cells(offsets: Ints, positions: Ints, clicked: Vector[np.bool_], cells: OutInts) -> None:
    """The cell of each row, given the clicks above it."""
    for s in range(len(offsets) - 1):
        previous = 0
        for row in range(offsets[s], offsets[s + 1]):
            cells[row] = cell_of(positions[row], previous)
            if clicked[row]:
                previous = positions[row]


@allocating
def expect_browsing(
    offsets: Ints, positions: Ints, attraction: Doubles, examination: Doubles, chances: OutDoubles
) -> None:
    """The probability of a click in each row, before any click is seen, if it depends on the click above.

    P(C_r) = sum over j < r of P(C_j) * product over j < i < r of (1 - a_i g_ij) * a_r g_rj, with j = 0 for no click.
    """
    longest = 0
    for s in range(len(offsets) - 1):
        longest = max(longest, offsets[s + 1] - offsets[s])
    latest = np.empty(longest + 1)  # the probability that the last click is in each row; first: no click yet
    for s in range(len(offsets) - 1):
        start, end = offsets[s], offsets[s + 1]
        latest[0] = 1.0
        for row in range(start, end):
            total = 0.0
            for j in range(row - start + 1):
                previous = positions[start + j - 1] if j else 0
                share = latest[j] * attraction[row] * examination[cell_of(positions[row], previous)]
                total += share
                latest[j] -= share
            chances[row] = total
            latest[row - start + 1] = total


@compiled
def follow_browsing(
    offsets: Ints,
    positions: Ints,
    attraction: Doubles,
    examination: Doubles,
    draws: Doubles,
    clicked: NDArray[np.bool_],
    chances: OutDoubles,
) -> None:
    """The probability of a click in each row, given the click above it; clicks are drawn if there are draws."""
    for s in range(len(offsets) - 1):
        previous = 0
        for row in range(offsets[s], offsets[s + 1]):
            chances[row] = attraction[row] * examination[cell_of(positions[row], previous)]
            if len(draws):
                clicked[row] = draws[row] < chances[row]
            if clicked[row]:
                previous = positions[row]


@compiled
def pair_positions(
    items: Ints,
    positions: Ints,
    rankers: Ints,
    shown: Doubles,
    clicks: Doubles,
    n_positions: int,
    pair_shown: OutDoubles,
    pair_clicks: OutDoubles,
) -> None:
    """Compare positions k and l by the items that two rankers placed there; items are in order.

    Each item counts with h = n_k n_l / (n_k + n_l) on both sides, whatever was clicked. ``pair_shown`` and
    ``pair_clicks`` have an entry for k in each pair (k, l), at (k - 1) * n_positions + l - 1.
    """
    start = 0
    while start < len(items):
        end = start
        while end < len(items) and items[end] == items[start]:
            end += 1
        for i in range(start, end):
            for j in range(start, end):
                k, m = positions[i], positions[j]
                total = shown[i] + shown[j]
                if k != m and rankers[i] != rankers[j] and shown[i] > 0 and shown[j] > 0:
                    weight = shown[i] * shown[j] / total
                    pair_shown[(k - 1) * n_positions + m - 1] += weight
                    pair_clicks[(k - 1) * n_positions + m - 1] += weight * clicks[i] / shown[i]
        start = end


@compiled
def number_pairs(
    order: Ints,
    queries: Ints,
    offsets: Ints,
    documents: Ints,
    seen: OutInts,
    item_queries: OutInts,
    item_documents: OutInts,
) -> int:
    """Number the pairs of a query and a document, query by query; ``order`` holds the sessions sorted by query.

    ``seen`` holds the last query in which each document was found, initially -1.
    """
    n = 0
    for s in order:
        query = queries[s]
        for row in range(offsets[s], offsets[s + 1]):
            document = documents[row]
            if seen[document] != query:
                seen[document] = query
                item_queries[n], item_documents[n] = query, document
                n += 1
    return n


@compiled
def find_pairs(
    order: Ints,
    queries: Ints,
    offsets: Ints,
    documents: Ints,
    item_starts: Ints,
    item_documents: Ints,
    seen: OutInts,
    numbers: OutInts,
    items: OutInts,
) -> None:
    """The item of each row, or -1 if it is unknown; query q has the items ``item_starts[q]:item_starts[q+1]``.

    ``seen`` holds the last query that has each document as an item, and ``numbers`` the number of that item.
    """
    current = -1
    for s in order:
        query = queries[s]
        if query != current and query >= 0:
            current = query
            for i in range(item_starts[query], item_starts[query + 1]):
                seen[item_documents[i]], numbers[item_documents[i]] = query, i
        for row in range(offsets[s], offsets[s + 1]):
            document = documents[row]
            is_known = query >= 0 and document >= 0 and seen[document] == query
            items[row] = numbers[document] if is_known else -1
