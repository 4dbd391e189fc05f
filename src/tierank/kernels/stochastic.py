"""The gradient of the stochastic uMart: neighbours in random orders, drawn around the order by score."""

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import Vector, allocating, inner
from tierank.kernels.sorting import sort_down
from tierank.kernels.umart import Queries, Rules
from tierank.types import Floats

# Where sigma times the spread of the scores is above this, exponentials are taken pair by pair.
_WIDEST = 300.0
_FACTOR, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_DROPPED = np.uint64(11)


@allocating
def stochastic_gradients(
    first: int,
    last: int,
    seed: int,
    scores: Vector[np.float64],
    bits: Vector[np.uint64],
    queries: Queries,
    rules: Rules,
    decays: Vector[np.float64],
    n_draws: int,
    noise: float,
    gradient: NDArray[np.float32],
    hessian: NDArray[np.float32],
) -> None:
    """Gradient and hessian of the queries first to last - 1, as means over draws; ``bits`` are those of the scores.

    In each draw the documents stand by z = f + noise g, highest first, with g = -ln(-ln u). Each document d meets the
    lower-rated ones among the next ``window`` below it, and among the next above it. With k the sum of e^(sigma f) of
    one such group, p' and p as in ``umart_gradients`` and a the higher place of the two, a pair has the weight
    decays[a] |gain(d) - gain(d')|, where ``by_rank`` times the distance of the discounts of both places.
    """
    offsets, tiers, n_tiers, gains, discounts = queries
    window, _, sigma, by_rank, _, _, kappa, steep, _ = rules
    longest = np.int64(0)
    for query in range(first, last):
        longest = max(longest, offsets[query + 1] - offsets[query])
    keys, spare_keys, powers = np.empty(longest), np.empty(longest), np.empty(longest)
    sums, curvatures = np.empty(longest), np.empty(longest)
    rows, spare_rows = np.empty(longest, np.int64), np.empty(longest, np.int64)
    for query in range(first, last):
        start, n = offsets[query], offsets[query + 1] - offsets[query]
        if n_tiers[query] < 2:
            gradient[start : start + n] = 0.0
            hessian[start : start + n] = 0.0
            continue
        wide = _take_powers(start, n, sigma, scores, powers)
        # What is random depends on the query's own scores: the same wherever it stands and whoever computes it.
        stream = _mixed(np.uint64(seed) + _FACTOR)
        for i in range(n):
            stream = _mixed((stream ^ bits[start + i]) + _FACTOR)
            sums[i], curvatures[i] = 0.0, 0.0
        for _ in range(n_draws):
            for i in range(n):
                stream += _FACTOR
                uniform = (np.float64(_mixed(stream) >> _DROPPED) + 0.5) * (1.0 / 9007199254740992.0)
                keys[i] = scores[start + i] - noise * np.log(-np.log(uniform))
                rows[i] = i
            sort_down(n, keys, rows, spare_keys, spare_rows)
            for place in range(n):
                for side in (1, -1):
                    _meet(
                        start, n, place, side, window, wide, sigma, by_rank, kappa, steep, scores, tiers, gains,
                        discounts, decays, powers, rows, sums, curvatures,
                    )  # fmt: skip
        for i in range(n):
            gradient[start + i] = sigma * sums[i] / n_draws
            hessian[start + i] = kappa * sigma * sigma * curvatures[i] / n_draws


@inner
def _take_powers(start: int, n: int, sigma: float, scores: Floats, powers: Floats) -> bool:
    """e^(sigma f) relative to the highest score; False where they fit into float64, True where they were not taken."""
    best, worst = scores[start], scores[start]
    for i in range(1, n):
        best, worst = max(best, scores[start + i]), min(worst, scores[start + i])
    if sigma * (best - worst) > _WIDEST:
        return True
    for i in range(n):
        powers[i] = np.exp(sigma * (scores[start + i] - best))
    return False


@inner
def _meet(
    start: int,
    n: int,
    place: int,
    side: int,
    window: int,
    wide: bool,
    sigma: float,
    by_rank: bool,
    kappa: float,
    steep: bool,
    scores: Floats,
    tiers: NDArray[np.uint32],
    gains: Floats,
    discounts: Floats,
    decays: Floats,
    powers: Floats,
    rows: NDArray[np.int64],
    sums: Floats,
    curvatures: Floats,
) -> None:
    """The document at a place against the lower-rated ones of the next ``window`` places below (side 1) or above."""
    document = rows[place]
    tier, score = tiers[start + document], scores[start + document]
    reach = min(window, n - 1 - place if side > 0 else place)
    top = score
    for step in range(1, reach + 1):  # the highest score that takes part: exponentials are relative to it
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
    """Bits that all depend on all bits (the finaliser of splitmix64)."""
    value = (value ^ (value >> _SHIFTS[0])) * _FIRST
    value = (value ^ (value >> _SHIFTS[1])) * _SECOND
    return value ^ (value >> _SHIFTS[2])
