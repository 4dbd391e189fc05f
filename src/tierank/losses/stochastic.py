"""The stochastic uMart: the expected gradient over random orders, on its compiled kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats, Offsets
from tierank.data.relevance import Gain
from tierank.errors import DataError
from tierank.kernels import in_threads, work_arrays
from tierank.kernels.random_orders import Chance, OrderWork, stochastic_gradients
from tierank.losses.objective import Gradients, RatedDocuments
from tierank.losses.umart import Arranged, PairObjective, PairSettings, plain_gains
from tierank.settings import Choice, Integer, Kind, Number, declared, setting


@dataclass(kw_only=True, eq=False, repr=False)
class NoiseSettings:
    """What orders are drawn."""

    noise: float = setting(
        0.0,
        Number(0),
        "above 0: the stochastic uMart, which compares neighbours in random orders; the scale of the noise on scores",
    )
    n_draws: int = setting(3, Integer(1, 1_000_000), "number of random orders in each round, with noise above 0")
    decay: float = setting(
        0.99, Number(above=0, most=1), "factor of the weight of a pair for each place further down, with noise above 0"
    )


def _starting_at(default: Any, name: str, kind: Kind | None = None) -> Any:
    """The setting of uMart with another default, that of YetiRank."""
    same = declared(PairSettings) | declared(NoiseSettings)
    return setting(default, kind or same[name].kind, same[name].help)


@dataclass(kw_only=True, eq=False, repr=False)
class StochasticUMartObjective(PairSettings, NoiseSettings, PairObjective):
    """uMart by random orders: the expected gradient of neighbours, over orders drawn around the scores.

    uMart, like lambdarank, compares documents by the single order of the scores. Two documents with nearly equal scores
    may change places in the next round, and their weights jump. Here each round draws ``n_draws`` orders from the
    Plackett-Luce model of f / ``noise`` (the model of ListMLE and of uRank's likelihood): by decreasing

        z(d) = f(d) + noise g(d),   g = -ln(-ln u),   u uniform in (0, 1).

    In each order every document d is compared with its neighbours: the lower-rated documents b among the next
    ``window`` places below it, and those among the next ``window`` places above it. With p' and p of ``UMartObjective``
    (scores without noise), each d' in b adds sigma w p' to the gradient of d' and subtracts it from that of d, and adds
    to the hessian in the same way. The result is the mean over the draws, so each pair counts in proportion to how
    often the two are neighbours.

    With a the higher place of the two, from 0, and G, IDCG and disc of ``UMartObjective``, the weight of a pair is

    ===================  =============================================================================================
    ``weights``          w
    ===================  =============================================================================================
    ``"gain"``           decay^a |G(d) - G(d')|
    ``"ndcg"``           decay^a |G(d) - G(d')| |disc(d) - disc(d')| / IDCG, with the places of the drawn order
    ===================  =============================================================================================

    With ``window=1`` it is the pairwise form of YetiRank. Random numbers depend only on the seed and the scores of the
    query: the same bits on any number of threads, in any order of queries, and after a resume.

    A round costs O(n_draws n (log n + window)).
    """

    window: int | None = _starting_at(1, "window")
    sigma: float = _starting_at(1.0, "sigma")
    hessian: str = _starting_at("exact", "hessian")
    weights: str = _starting_at("gain", "weights", Choice(("gain", "ndcg")))
    gain: Gain = _starting_at("linear", "gain")
    noise: float = _starting_at(1.0, "noise", Number(above=0))
    seed: int = setting(0, Integer(0), "random seed")
    clip: float = setting(10.0, Number(1), "the most that a document counts for")
    n_jobs: int | None = None

    def arrange(self, documents: RatedDocuments) -> Arranged:
        """As in uMart. Propensities have to be given."""
        if documents.position is not None and documents.propensity is None:
            raise DataError(argument="position", expected="`propensity` too", got="positions alone")
        return super().arrange(documents)

    def compute(self, data: Arranged, scores: Floats) -> Gradients:
        """Gradient and hessian, as means over the draws."""
        queries, scores = data.queries, scores + 0.0  # -0.0 has other bits than 0.0
        decays = self.decay ** np.arange(len(queries.discounts), dtype=np.float64)
        bits, chance = scores.view(np.uint64), Chance(self.seed, self.n_draws, self.noise, decays)

        def compute(first: int, last: int) -> None:
            work = work_arrays(OrderWork, int(np.diff(queries.offsets[first : last + 1]).max()) + 1)
            stochastic_gradients(first, last, scores, bits, queries, data.rules, chance, work, data.output)

        in_threads(compute, data.spans, self.n_jobs)
        return data.output

    def pair_gains(self, ratings: Floats, offsets: Offsets, n_tiers: NDArray[np.int64]) -> Floats:
        """The factor of each document in the weight of a pair: G / IDCG, or G."""
        if self.weights == "gain":
            return plain_gains(ratings, self.gain)
        return super().pair_gains(ratings, offsets, n_tiers)
