"""The gradient of the stochastic uMart: neighbours in random orders, drawn around the order by score."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import Vector, compiled, inner
from tierank.kernels.sorting import sort_down
from tierank.kernels.umart import Queries, Rules
from tierank.types import Floats

# If sigma times the spread of the scores is above this, exponentials are computed pair by pair.
_WIDEST = 300.0
_FACTOR, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_DROPPED = np.uint64(11)


class Chance(NamedTuple):
    """What is drawn, and how pairs count: see ``stochastic_gradients``."""

    seed: int
    n_draws: int
    noise: float
    decays: Floats  # by place


class Workspace(NamedTuple):
    """Work arrays of a query, by document or by place."""

    keys: Floats
    spare_keys: Floats
    powers: Floats
    sums: Floats
    curvatures: Floats
    rows: NDArray[np.int64]
    spare_rows: NDArray[np.int64]

    @classmethod
    def for_queries(cls, longest: int) -> Workspace:
        """A workspace for queries of at most this many documents."""
        return cls(*np.empty((5, longest)), *np.empty((2, longest), np.int64))


@compiled
def stochastic_gradients(
    first: int,
    last: int,
    scores: Floats,
    bits: Vector[np.uint64],
    queries: Queries,
    rules: Rules,
    chance: Chance,
    work: Workspace,
    gradient: NDArray[np.float32],
    hessian: NDArray[np.float32],
) -> None:
    """Gradient and hessian of the queries first to last - 1, as means over draws; ``bits`` are those of the scores.

    In each draw the documents are sorted by z = f + noise g, highest first, with g = -ln(-ln u). Each document d is
    compared with the lower-rated ones among the next ``window`` below it, and among the next above it. With k the sum
    of e^(sigma f) of one such group, p' and p as in ``umart_gradients`` and a the higher place of the two, a pair has
    the weight decays[a] |gain(d) - gain(d')|, with ``by_rank`` times the distance of the discounts of both places.
    """
    offsets, sigma = queries.offsets, rules.sigma
    keys, spare_keys, powers, sums, curvatures, rows, spare_rows = work
    for query in range(first, last):
        start, n = offsets[query], offsets[query + 1] - offsets[query]
        if queries.n_tiers[query] < 2:
            for row in range(start, start + n):
                gradient[row], hessian[row] = 0.0, 0.0
            continue
        wide = _take_powers(start, n, sigma, scores, powers)
        # Random numbers depend only on the scores of the query: the same at any position and in any process.
        stream = _mixed(np.uint64(chance.seed) + _FACTOR)
        for i in range(n):
            stream = _mixed((stream ^ bits[start + i]) + _FACTOR)
            sums[i], curvatures[i] = 0.0, 0.0
        for _ in range(chance.n_draws):
            for i in range(n):
                stream += _FACTOR
                uniform = (np.float64(_mixed(stream) >> _DROPPED) + 0.5) * (1.0 / 9007199254740992.0)
                keys[i] = scores[start + i] - chance.noise * np.log(-np.log(uniform))
                rows[i] = i
            sort_down(n, keys, rows, spare_keys, spare_rows)
            for place in range(n):
                for side in (1, -1):
                    _meet(start, n, place, side, wide, scores, queries, rules, chance.decays, work)
        for i in range(n):
            gradient[start + i] = sigma * sums[i] / chance.n_draws
            hessian[start + i] = rules.kappa * sigma * sigma * curvatures[i] / chance.n_draws


@inner
def _take_powers(start: int, n: int, sigma: float, scores: Floats, powers: Floats) -> bool:
    """e^(sigma f) relative to the highest score; True, and nothing computed, if they do not fit into float64."""
    best, worst = scores[start], scores[start]
    for i in range(1, n):
        best, worst = max(best, scores[start + i]), min(worst, scores[start + i])
    if sigma * (best - worst) > _WIDEST:
        return True
    for i in range(n):
        powers[i] = np.exp(sigma * (scores[start + i] - best))
    return False


@inner(forceinline=True)  # inlined: with this many arguments, calls would take a third of the time
def _meet(
    start: int,
    n: int,
    place: int,
    side: int,
    wide: bool,
    scores: Floats,
    queries: Queries,
    rules: Rules,
    decays: Floats,
    work: Workspace,
) -> None:
    """Compare a document with the lower-rated ones of the next ``window`` places below it (side 1) or above it."""
    _, tiers, _, gains, discounts = queries
    window, _, sigma, by_rank, _, _, _, steep, _ = rules
    _, _, powers, sums, curvatures, rows, _ = work
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


@inner
def _mixed(value: int) -> int:
    """Mixed bits, each of which depends on all input bits (the finaliser of splitmix64)."""
    value = (value ^ (value >> _SHIFTS[0])) * _FIRST
    value = (value ^ (value >> _SHIFTS[1])) * _SECOND
    return value ^ (value >> _SHIFTS[2])
