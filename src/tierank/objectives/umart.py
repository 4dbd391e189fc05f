"""uMart and LambdaRank, on the compiled kernel."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.checks import as_offsets, as_positions, as_propensities, as_ratings
from tierank.errors import DataError
from tierank.kernels import in_threads, n_threads
from tierank.kernels.propensity import Weights, weighted_gradients
from tierank.kernels.propensity import Workspace as WeightedWorkspace
from tierank.kernels.umart import Queries, Rules, Workspace, umart_gradients
from tierank.objectives.objective import Gradients, Objective, scale_of
from tierank.objectives.propensity import LearnedWeights
from tierank.relevance import Gain, as_gain, blocks_of, discounts_to, find_tiers, gain_levels, gains_of, ideal_dcg
from tierank.settings import as_choice, as_flag, as_least, as_limit, as_positive
from tierank.types import Floats

# hessian: (kappa, whether the higher document's part is without p)
HESSIANS = {"code": (2.0, False), "exact": (1.0, False), "paper": (2.0, True)}
_WEIGHTS = ("ndcg", "gain", "none")
_TIES = ("mean", "rows")
# The versions of lambdarank; and the number of ranks in the ideal DCG of the old one, its max_position.
LAMBDARANK_VERSIONS = ("lightgbm-4", "lightgbm-2")
_OLD_IDCG_AT = 20

# Gradients are float32 numbers: undivided weights have to stay well within their range.
_MOST_GAIN = 1e30
# The cost of a document besides its pairs, counted in pairs; and the number of pairs that is worth another thread.
_PAIRS_PER_DOCUMENT, _PAIRS_PER_SPAN = 25, 1 << 21


class UMartObjective(Objective):
    """uMart: windowed uRank for boosted trees (Eq. 5 to 7 of the paper).

    For every document d above the lowest tier, the documents rated lower, by decreasing score, are cut into windows b
    of ``window`` documents. With

        p' = e^(sigma f(d')) / (e^(sigma f(d)) + k_b),  p = e^(sigma f(d)) / (e^(sigma f(d)) + k_b),
        k_b = sum over d' in b of e^(sigma f(d')),

    each pair of d and d' in b adds sigma w p' to the gradient of d', takes it from that of d, and adds to the hessian:

    ===================  ================================  =============================
    ``hessian``          of d'                             of d
    ===================  ================================  =============================
    ``"code"``           2 sigma^2 w p' (1 - p')           2 sigma^2 w p' p
    ``"exact"``          sigma^2 w p' (1 - p')             sigma^2 w p' p
    ``"paper"``          2 sigma^2 w p' (1 - p')           2 sigma^2 w p'
    ===================  ================================  =============================

    ``"code"`` is what the authors' program does at sigma = 2. ``"exact"`` is the diagonal of the second derivative of
    the sum over d and b of -w ln(p) where w is the same within a window. ``"paper"`` is Eq. 7 with a plus before its
    second sum: the printed minus makes it negative.

    ===================  =============================================================================================
    ``weights``          w
    ===================  =============================================================================================
    ``"ndcg"``           |G(d) - G(d')| |disc(d) - disc(d')| / ((0.01 + |f(d) - f(d')|) IDCG), with disc = 1/log2(1 +
                         rank); the distance is left out of a query in which all scores are equal
    ``"gain"``           G(d) / (|R| - 1): at sigma = 1 the gradient is that of the windowed likelihood (Eq. 3), and
                         with ``window=None`` that of the uRank loss (Eq. 2)
    ``"none"``           1
    ===================  =============================================================================================

    ``window``           documents in a window; None: all lower documents are one window
    ``truncation``       pairs with both documents ranked below this are left out; None: all pairs count
    ``idcg_at``          ranks that count in IDCG; None: all
    ``gain``             ``"exp2"``: G = 2^r - 1; ``"linear"``: G = r; a list with the gains of the ratings 0, 1,
                         2, ...; a mapping from ratings to gains; or a function that turns ratings into gains
    ``ties``             ``"mean"``: documents with equal scores have no order, see below; ``"rows"``: they rank in
                         the order of the rows, as in the authors' program and in LightGBM
    ``n_jobs``           threads; None: one for each core. The result is the same, bit for bit
    ``propensity_norm``  p of learned propensities, see below; ``clip``: the most that a document counts for

    **Clicks.** With ``prepare(..., propensity=...)`` the gain of d is G(d) / propensity(d), whose expectation over
    users is its relevance; it determines tiers too, but not IDCG, and sums of queries are not levelled. With
    ``prepare(..., position=...)`` a pair counts 1 / (t+(k) t-(l)) times, where d was shown at k and d' at l: pairwise
    debiasing (Hu et al. 2019). Each call of ``gradients`` ends with an update of t+ and t-, which start at 1:

        t+(k) = (A(k) / A(1))^(1 / (p + 1)),  A(k) = sum over pairs with d shown at k of L / t-(l)
        t-(l) = (B(l) / B(1))^(1 / (p + 1)),  B(l) = sum over pairs with d' shown at l of L / t+(k)
        L = w ln(1 + k_b / e^(sigma f(d))) e^(sigma f(d')) / k_b,  which is w ln(1 + e^(sigma (f(d') - f(d)))) at
        ``window=1``

    **Equal scores.** All scores are equal in the first round, and many in the next. With ``ties="mean"`` disc is the
    mean discount of the ranks that the tied documents share, and |disc(d) - disc(d')| of two of them is the mean over
    all pairs of these ranks: the expectation over all orders of the tied documents, so with ``window=1`` and
    ``window=None`` the gradient is the expectation too. With other windows, k_b of a tied document is the harmonic mean
    over the places that the tied documents share. With ``truncation=k``, all documents that are tied with the k-th
    belong to the first k.

    **LambdaMART.** With ``window=1``, ``hessian="exact"``, and ``truncation`` and ``idcg_at`` both equal to
    ``lambdarank_truncation_level``, gradient and hessian are those of LightGBM's lambdarank with ``sigmoid`` equal to
    sigma, up to its table of sigmoids (2e-5) and up to one factor for each query, which ``LambdaRankObjective`` has.
    ``hessian="code"`` is twice LightGBM's hessian.

    Queries with one rating have gradient and hessian 0.
    """

    # Whether weights by NDCG are divided by the distance of scores, and sums over a query levelled, as lambdarank does.
    _by_distance, _is_levelled = True, False

    def __init__(
        self,
        *,
        window: int | None = 2,
        sigma: float = 2.0,
        hessian: str = "code",
        weights: str = "ndcg",
        truncation: int | None = None,
        idcg_at: int | None = None,
        gain: Gain = "exp2",
        ties: str = "mean",
        n_jobs: int | None = None,
        propensity_norm: float = 1.0,
        clip: float = 10.0,
    ) -> None:
        self.window = as_limit("window", window)
        self.truncation = as_limit("truncation", truncation)
        self.idcg_at = as_limit("idcg_at", idcg_at)
        self.sigma = as_positive("sigma", sigma)
        self.hessian = as_choice("hessian", hessian, HESSIANS)
        self.weights = as_choice("weights", weights, _WEIGHTS)
        self.gain = as_gain(gain)
        self.ties = as_choice("ties", ties, _TIES)
        self.n_jobs = n_jobs
        self.propensity_norm = as_least("propensity_norm", propensity_norm)
        self.clip = as_least("clip", clip, 1.0)

    def __repr__(self) -> str:
        settings = ("window", "sigma", "hessian", "weights", "truncation", "idcg_at", "gain", "ties")
        return f"UMartObjective({', '.join(f'{name}={getattr(self, name)!r}' for name in settings)})"

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
        """Prepare for these documents; weights, positions and propensities as in ``Objective.prepare``."""
        offsets = np.require(as_offsets(offsets), requirements=["C", "W"])
        ratings = as_ratings(ratings, int(offsets[-1]))
        tiers, n_tiers = find_tiers(ratings, offsets)
        gains = self._pair_gains(ratings, offsets, n_tiers)
        if propensity is not None:  # a click at a rarely examined position is worth more
            gains = gains * np.minimum(1 / as_propensities(propensity), self.clip)
            tiers, n_tiers = find_tiers(gains, offsets)
        longest = int(np.diff(offsets).max())
        discounts = discounts_to(longest) if self.weights == "ndcg" else np.ones(longest)
        kappa, steep = HESSIANS[self.hessian]
        self._data = Prepared(
            queries=Queries(offsets, tiers, n_tiers, gains, discounts),
            rules=Rules(
                window=self.window or len(ratings),
                truncation=self.truncation or len(ratings),
                sigma=self.sigma,
                by_rank=self.weights == "ndcg",
                over_distance=self._by_distance,
                levelled=self._is_levelled and propensity is None,  # it would cancel the propensities
                kappa=kappa,
                steep=steep,
                share_ties=self.ties == "mean",
            ),
            scale=scale_of(offsets, row_weight, query_weight),
            spans=_spans(offsets, tiers, n_tiers, self.truncation, self.n_jobs),
            order=np.arange(len(ratings), dtype=np.uint32),
            is_wide=np.zeros(len(n_tiers), np.bool_),
            gradient=np.empty(len(ratings), np.float32),
            hessian=np.empty(len(ratings), np.float32),
        )
        if position is not None and propensity is None:
            places = as_positions(position, len(ratings))
            self._data.pairs = LearnedWeights(places, self._data.scale, self.propensity_norm, self.clip)
        self._seen = None
        return self

    def state(self) -> dict[str, list[float]]:
        """The propensities that were learned, by position: ``clicked`` (t+) and ``unclicked`` (t-)."""
        return {} if self._data is None or self._data.pairs is None else self._data.pairs.state()

    def load_state(self, state: dict[str, list[float]]) -> None:
        """Continue from the propensities of ``state``."""
        if self._data is not None and self._data.pairs is not None and state:
            self._data.pairs.load(state)

    def gradients(self, scores: ArrayLike) -> Gradients:
        """Gradient and hessian at these scores, one number per document; the next call overwrites them."""
        data: Prepared = self._prepared()
        scores = self._checked_scores(scores, len(data.order))
        pairs = data.pairs
        if pairs is not None:
            loss_above, loss_below = self._add_weighted(scores, data, data.spans, pairs.above, pairs.below)
            pairs.learn(loss_above, loss_below)
            return data.scaled()

        def compute(first: int, last: int) -> None:
            work = Workspace.for_queries(len(data.queries.discounts), int(data.queries.n_tiers.max()))
            umart_gradients(
                first, last, scores, data.queries, data.rules, work,
                data.order, data.is_wide, data.gradient, data.hessian,
            )  # fmt: skip

        in_threads(compute, data.spans, self.n_jobs)
        if data.is_wide.any():
            ones = np.ones(len(scores))
            wide = [(query, query + 1) for query in np.flatnonzero(data.is_wide).tolist()]
            self._add_weighted(scores, data, wide, ones, ones)
        return data.scaled()

    def _add_weighted(
        self, scores: Floats, data: Prepared, spans: list[tuple[int, int]], above: Floats, below: Floats
    ) -> tuple[Floats, Floats]:
        """Gradient and hessian with weights of pairs, for these spans of queries; what documents add to the loss."""
        weights = Weights(above, below, np.empty(len(scores)), np.empty(len(scores)))
        longest = len(data.queries.discounts)

        def compute(first: int, last: int) -> None:
            weighted_gradients(
                first, last, scores, data.queries, data.rules, weights, WeightedWorkspace.for_queries(longest),
                data.order, data.gradient, data.hessian,
            )  # fmt: skip

        in_threads(compute, spans, self.n_jobs)
        return weights.loss_above, weights.loss_below

    def _pair_gains(self, ratings: Floats, offsets: NDArray[np.int64], n_tiers: NDArray[np.int64]) -> Floats:
        """The factor of each document in the weight of a pair: G / IDCG, G / (|R| - 1) or 1."""
        if self.weights == "none":
            return np.ones(len(ratings))
        lengths = np.diff(offsets)
        if self.weights == "gain":
            return np.asarray(plain_gains(ratings, self.gain) / np.repeat(np.maximum(n_tiers - 1, 1), lengths))
        levels, shares = gain_levels(ratings, self.gain), np.zeros(len(ratings))
        for queries, rows, edges in blocks_of(offsets):
            tops = np.repeat(np.ceil(np.maximum.reduceat(ratings[rows], edges[:-1])), lengths[queries])
            gains = gains_of(ratings[rows], self.gain, tops) if isinstance(self.gain, str) else levels[rows]
            ideal = np.repeat(ideal_dcg(gains, edges, self.idcg_at), lengths[queries])
            np.divide(gains, ideal, out=shares[rows], where=ideal > 0)
        return shares


class LambdaRankObjective(UMartObjective):
    """LightGBM's lambdarank for any ratings, and queries of any length: LambdaMART's gradient and hessian.

    As ``UMartObjective`` with ``window=1`` and ``hessian="exact"``: for each pair of d and a lower-rated d',

        gradient: + sigma w p' on d', - sigma w p' on d;   hessian: + sigma^2 w p' (1 - p') on both
        p' = 1 / (1 + e^(sigma (f(d) - f(d')))),   w = |G(d) - G(d')| |disc(d) - disc(d')| / IDCG

    ``sigma``         LightGBM's ``sigmoid``
    ``truncation``    LightGBM's ``lambdarank_truncation_level``
    ``norm``          LightGBM's ``lambdarank_norm``: w is divided by 0.01 + |f(d) - f(d')|, except in a query of equal
                      scores; then gradient and hessian of the query are multiplied by log2(1 + S) / S, with S the sum
                      of 2 sigma w p' over its pairs
    ``version``       ``"lightgbm-4"``: the above. ``"lightgbm-2"``: as in the versions 2.x of LightGBM, which the paper
                      compares with (its LambdaMart-L): sigma is doubled, no pair is left out, IDCG is that of the first
                      20 ranks, w is divided by the distance, nothing is scaled by S, and the hessian is doubled.
                      ``truncation`` and ``norm`` are ignored. It is uMart with a window of 1 and ``idcg_at=20``
    ``gain``          as of ``UMartObjective``; LightGBM's ``label_gain``
    ``ties``          as of ``UMartObjective``; LightGBM's is ``"rows"``
    ``propensity_norm``, ``clip``   as of ``UMartObjective``, for training on clicks

    Both are LightGBM's up to its table of sigmoids (2e-5), where no scores are equal or ``ties="rows"``.

    >>> objective = LambdaRankObjective().prepare(ratings=[0.5, 0], offsets=[0, 2])
    >>> gradient, hessian = objective.gradients([0.0, 0.0])
    >>> [round(float(g), 4) for g in gradient]  # 1 - 1/log2(3) is what is lost, p' = 1/2, S = 0.3691
    [-0.2266, 0.2266]
    """

    def __init__(
        self,
        *,
        sigma: float = 1.0,
        truncation: int | None = 30,
        norm: bool = True,
        version: str = "lightgbm-4",
        gain: Gain = "exp2",
        ties: str = "mean",
        n_jobs: int | None = None,
        propensity_norm: float = 1.0,
        clip: float = 10.0,
    ) -> None:
        self.version = as_choice("version", version, LAMBDARANK_VERSIONS)
        is_old = version == "lightgbm-2"
        super().__init__(
            window=1,
            sigma=2 * as_positive("sigma", sigma) if is_old else sigma,
            hessian="code" if is_old else "exact",
            truncation=None if is_old else truncation,
            idcg_at=_OLD_IDCG_AT if is_old else truncation,
            gain=gain,
            ties=ties,
            n_jobs=n_jobs,
            propensity_norm=propensity_norm,
            clip=clip,
        )
        self._by_distance = as_flag("norm", norm) or is_old
        self._is_levelled = norm and not is_old

    def __repr__(self) -> str:
        settings = {name: getattr(self, name) for name in ("sigma", "truncation", "gain", "ties", "version")}
        settings["norm"] = self._is_levelled
        if self.version == "lightgbm-2":
            settings = {"sigma": self.sigma / 2} | {name: settings[name] for name in ("gain", "ties", "version")}
        return f"LambdaRankObjective({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


@dataclass
class Prepared:
    """The prepared data of an objective, and the arrays that it reuses each round."""

    queries: Queries
    rules: Rules
    scale: NDArray[np.float32] | None
    spans: list[tuple[int, int]]
    order: NDArray[np.uint32]
    is_wide: NDArray[np.bool_]
    gradient: NDArray[np.float32]
    hessian: NDArray[np.float32]
    pairs: LearnedWeights | None = None

    def scaled(self) -> Gradients:
        """Gradient and hessian, multiplied by the weights."""
        if self.scale is not None:
            np.multiply(self.gradient, self.scale, out=self.gradient)
            np.multiply(self.hessian, self.scale, out=self.hessian)
        return self.gradient, self.hessian


def plain_gains(ratings: Floats, gain: Gain) -> Floats:
    """Gains that weight pairs undivided. Raises ``DataError`` if they are too large for that."""
    gains = gains_of(ratings, gain)
    if gains.max() > _MOST_GAIN:
        raise DataError(
            f"weights='gain': expected ratings with gains up to {_MOST_GAIN:g}, got {ratings.max():g};"
            " take weights='ndcg', which has no such limit, or another gain"
        )
    return gains


def _spans(
    offsets: NDArray[np.int64],
    tiers: NDArray[np.uint32],
    n_tiers: NDArray[np.int64],
    truncation: int | None,
    n_jobs: int | None,
) -> list[tuple[int, int]]:
    """Spans of queries with about the same number of pairs, several for each thread."""
    lengths = np.diff(offsets)
    pairs = np.empty_like(lengths)
    for queries, rows, _ in blocks_of(offsets):
        first_tiers = np.concatenate([[0], n_tiers[queries].cumsum()])
        sizes = np.bincount(np.repeat(first_tiers[:-1], lengths[queries]) + tiers[rows], minlength=first_tiers[-1])
        pairs[queries] = (lengths[queries] ** 2 - np.add.reduceat(sizes**2, first_tiers[:-1])) // 2
    if truncation is not None:
        pairs = np.minimum(pairs, lengths * truncation)
    cost = (pairs + _PAIRS_PER_DOCUMENT * lengths).cumsum()
    n_spans = int(np.clip(cost[-1] // _PAIRS_PER_SPAN, 1, 8 * n_threads(n_jobs)))
    cuts = np.searchsorted(cost, cost[-1] * np.arange(1, n_spans) / n_spans)
    edges = np.unique(np.concatenate([[0], cuts, [len(lengths)]])).tolist()
    return list(pairwise(edges))
