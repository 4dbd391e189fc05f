"""The gradient of the stochastic uMart: neighbours in random orders, drawn around the order by score."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.kernels.compiling import Vector, compiled, inner
from tierank.kernels.pairs import WIDEST, Task
from tierank.kernels.ranking import count_higher, sort_down
from tierank.kernels.simd import STEP, gumbel, mixed

# Up to this length, documents are ordered by comparing each with all, which is vectorised (measured).
_COUNTED = 320


class Chance(NamedTuple):
    """What is drawn, and how pairs count: see ``stochastic_gradients``."""

    seed: int
    n_draws: int
    noise: float
    decays: Floats  # by place


class OrderWork(NamedTuple):
    """Work arrays of a query, by document or by place; one longer than the query."""

    keys: Floats
    spare_keys: Floats
    powers: Floats
    sums: Floats
    curvatures: Floats
    placed_powers: Floats  # by place, like the next three
    placed_gains: Floats
    pulls: Floats  # between the place before and this one, like the next
    bends: Floats
    rows: NDArray[np.int64]  # by place
    spare_rows: NDArray[np.int64]
    places: NDArray[np.int64]
    placed_tiers: NDArray[np.int64]


@compiled
def stochastic_gradients(
    first: int, last: int, task: Task, bits: Vector[np.uint64], chance: Chance, work: OrderWork
) -> None:
    """Gradient and hessian of the queries first to last - 1, as means over draws; ``bits`` are those of the scores.

    In each draw the documents are sorted by z = f + noise g, highest first, with g = -ln(-ln u). Each document d is
    compared with the lower-rated ones among the next ``window`` below it, and among the next above it. With k the sum
    of e^(sigma f) of one such group, p' and p as in ``umart_gradients`` and a the higher place of the two, a pair has
    the weight decays[a] |gain(d) - gain(d')|, with ``by_rank`` times the distance of the discounts of both places.
    """
    scores, queries, rules, output = task
    offsets, sigma = queries.offsets, rules.sigma
    keys, powers, sums, curvatures = work.keys, work.powers, work.sums, work.curvatures
    for query in range(first, last):
        start, n = offsets[query], offsets[query + 1] - offsets[query]
        if queries.n_tiers[query] < 2:
            for row in range(start, start + n):
                output.gradient[row], output.hessian[row] = 0.0, 0.0
            continue
        wide = _take_powers(start, n, sigma, scores, powers)
        # Random numbers depend only on the scores of the query: the same at any position and in any process.
        stream = mixed(np.uint64(chance.seed) + STEP)
        for i in range(n):
            stream = mixed((stream ^ bits[start + i]) + STEP)
            sums[i], curvatures[i] = 0.0, 0.0
        for _ in range(chance.n_draws):
            for i in range(n):
                keys[i] = scores[start + i] + chance.noise * gumbel(mixed(stream + np.uint64(i + 1) * STEP))
            stream += np.uint64(n) * STEP
            _find_places(n, work)
            if rules.window == 1 and not wide:
                _meet_neighbours(start, n, task, chance.decays, work)
                continue
            for i in range(n):
                work.rows[work.places[i]] = i
            for place in range(n):
                for side in (1, -1):
                    _meet(start, n, place, side, wide, task, chance.decays, work)
        for i in range(n):
            output.gradient[start + i] = sigma * sums[i] / chance.n_draws
            output.hessian[start + i] = rules.kappa * sigma * sigma * curvatures[i] / chance.n_draws


@inner
def _find_places(n: int, work: OrderWork) -> None:
    """The place of each document if the highest key comes first."""
    keys, places, rows = work.keys, work.places, work.rows
    if n <= _COUNTED and count_higher(n, keys, places) == n * (n - 1) // 2:
        return
    for i in range(n):  # a long list, or equal keys, which count the same higher ones
        rows[i] = i
    sort_down(n, keys, rows, work.spare_keys, work.spare_rows)
    for place in range(n):
        places[rows[place]] = place


@inner
def _meet_neighbours(start: int, n: int, task: Task, decays: Floats, work: OrderWork) -> None:
    """Compare every document with the one below it: ``_meet`` with a window of 1, vectorised."""
    queries, rules = task.queries, task.rules
    powers, gains, tiers = work.placed_powers, work.placed_gains, work.placed_tiers
    places, pulls, bends = work.places, work.pulls, work.bends
    for i in range(n):
        place = places[i]
        powers[place], gains[place] = work.powers[i], queries.gains[start + i]
        tiers[place] = queries.tiers[start + i]
    pulls[0], bends[0], pulls[n], bends[n] = 0.0, 0.0, 0.0, 0.0
    for place in range(1, n):
        is_lower = tiers[place] > tiers[place - 1]
        weight = decays[place - 1] * abs(gains[place - 1] - gains[place]) * (tiers[place] != tiers[place - 1])
        if rules.by_rank:
            weight *= abs(queries.discounts[place - 1] - queries.discounts[place])
        p_lower = (powers[place] if is_lower else powers[place - 1]) / (powers[place - 1] + powers[place])
        pull = weight * p_lower
        pulls[place] = pull if is_lower else -pull
        bends[place] = pull * (1.0 - p_lower)
    for i in range(n):
        place = places[i]
        work.sums[i] += pulls[place] - pulls[place + 1]
        work.curvatures[i] += bends[place] + bends[place + 1]
    for i in range(n if rules.steep else 0):  # the higher-rated of two neighbours gets the whole pull as its curvature
        above, below = pulls[places[i]], pulls[places[i] + 1]
        if above < 0.0:
            work.curvatures[i] += -above - bends[places[i]]
        if below > 0.0:
            work.curvatures[i] += below - bends[places[i] + 1]


@inner
def _take_powers(start: int, n: int, sigma: float, scores: Floats, powers: Floats) -> bool:
    """e^(sigma f) relative to the highest score; True, and nothing computed, if they do not fit into float64."""
    best, worst = scores[start], scores[start]
    for i in range(1, n):
        best, worst = max(best, scores[start + i]), min(worst, scores[start + i])
    if sigma * (best - worst) > WIDEST:
        return True
    for i in range(n):
        powers[i] = np.exp(sigma * (scores[start + i] - best))
    return False


@inner(forceinline=True)  # inlined: with this many arguments, calls would take a third of the time
def _meet(start: int, n: int, place: int, side: int, wide: bool, task: Task, decays: Floats, work: OrderWork) -> None:
    """Compare a document with the lower-rated ones of the next ``window`` places below it (side 1) or above it."""
    scores, rules = task.scores, task.rules
    tiers, gains, discounts = task.queries.tiers, task.queries.gains, task.queries.discounts
    window, sigma, by_rank, steep = rules.window, rules.sigma, rules.by_rank, rules.steep
    powers, sums, curvatures, rows = work.powers, work.sums, work.curvatures, work.rows
    document = rows[place]
    tier, score = tiers[start + document], scores[start + document]
    reach = min(window, n - 1 - place if side > 0 else place)
    top = score
    for step in range(1, reach + 1):  # the highest score of the group: exponentials are relative to it
        other = rows[place + side * step]
        if tiers[start + other] > tier:
            top = max(top, scores[start + other])
    own = np.exp(sigma * (score - top)) if wide else powers[document]
    total = own
    for step in range(1, reach + 1):
        other = rows[place + side * step]
        if tiers[start + other] > tier:
            total += np.exp(sigma * (scores[start + other] - top)) if wide else powers[other]
    for step in range(1, reach + 1):
        at = place + side * step
        other = rows[at]
        if tiers[start + other] <= tier:
            continue
        power = np.exp(sigma * (scores[start + other] - top)) if wide else powers[other]
        weight = decays[min(place, at)] * abs(gains[start + document] - gains[start + other])
        if by_rank:
            weight *= abs(discounts[place] - discounts[at])
        p_lower = power / total
        pull = weight * p_lower
        sums[other] += pull
        sums[document] -= pull
        curvatures[other] += pull * (1.0 - p_lower)
        curvatures[document] += pull if steep else pull * own / total
