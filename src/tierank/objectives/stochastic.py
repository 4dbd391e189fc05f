"""The stochastic uMart, on its compiled kernel."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.errors import DataError
from tierank.kernels import in_threads
from tierank.kernels.stochastic import Chance, Workspace, stochastic_gradients
from tierank.objectives.objective import Gradients
from tierank.objectives.umart import Prepared, UMartObjective, plain_gains
from tierank.relevance import Gain
from tierank.settings import as_choice, as_positive, as_share, as_whole
from tierank.types import Floats

# With more orders per round, training would take forever.
MOST_DRAWS = 1_000_000


class StochasticUMartObjective(UMartObjective):
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

    def __init__(
        self,
        *,
        noise: float = 1.0,
        n_draws: int = 10,
        decay: float = 0.99,
        window: int | None = 1,
        sigma: float = 1.0,
        hessian: str = "exact",
        weights: str = "gain",
        idcg_at: int | None = None,
        gain: Gain = "linear",
        seed: int = 0,
        clip: float = 10.0,
        n_jobs: int | None = None,
    ) -> None:
        given: dict[str, Any] = {
            "window": window,
            "sigma": sigma,
            "hessian": hessian,
            "weights": weights,
            "idcg_at": idcg_at,
        }
        super().__init__(**given, gain=gain, clip=clip, n_jobs=n_jobs)
        as_choice("weights", weights, ("gain", "ndcg"))
        self.noise = as_positive("noise", noise)
        self.n_draws = as_whole("n_draws", n_draws, most=MOST_DRAWS)
        self.decay = as_share("decay", decay)
        self.seed = as_whole("seed", seed, 0)

    def __repr__(self) -> str:
        names = ("noise", "n_draws", "decay", "window", "sigma", "hessian", "weights", "idcg_at", "gain", "seed")
        return f"StochasticUMartObjective({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def prepare(
        self,
        ratings: ArrayLike,
        offsets: ArrayLike,
        row_weight: ArrayLike | None = None,
        query_weight: ArrayLike | None = None,
        *,
        position: ArrayLike | None = None,
        propensity: ArrayLike | None = None,
    ) -> Self:
        """Prepare for these documents; weights as in ``Objective.prepare``. Propensities have to be given."""
        if position is not None and propensity is None:
            raise DataError(argument="position", expected="`propensity` too", got="positions alone")
        super().prepare(ratings, offsets, row_weight, query_weight, position=position, propensity=propensity)
        self._decays = self.decay ** np.arange(len(self._data.queries.discounts), dtype=np.float64)
        return self

    def gradients(self, scores: ArrayLike) -> Gradients:
        """Gradient and hessian at these scores, one number per document; the next call overwrites them."""
        data: Prepared = self._prepared()
        scores = self._checked_scores(scores, len(data.order)) + 0.0  # -0.0 has other bits than 0.0
        bits, chance = scores.view(np.uint64), Chance(self.seed, self.n_draws, self.noise, self._decays)

        def compute(first: int, last: int) -> None:
            work = Workspace.for_queries(int(np.diff(data.queries.offsets[first : last + 1]).max()))
            stochastic_gradients(
                first, last, scores, bits, data.queries, data.rules, chance, work, data.gradient, data.hessian
            )

        in_threads(compute, data.spans, self.n_jobs)
        return data.scaled()

    def _pair_gains(self, ratings: Floats, offsets: NDArray[np.int64], n_tiers: NDArray[np.int64]) -> Floats:
        """The factor of each document in the weight of a pair: G / IDCG, or G."""
        if self.weights == "gain":
            return plain_gains(ratings, self.gain)
        return super()._pair_gains(ratings, offsets, n_tiers)
