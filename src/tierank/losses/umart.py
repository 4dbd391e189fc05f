"""uMart (Eq. 5 to 7 of the paper), its stochastic form and LambdaRank for trees, on compiled kernels; clicks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats, Offsets
from tierank.data.relevance import Gain, as_gain, blocks_of, discounts_to, find_tiers, gain_levels, gains_of, ideal_dcg
from tierank.errors import DataError
from tierank.kernels import in_threads, n_threads, work_arrays
from tierank.kernels.pairs import (
    Output,
    PairWork,
    Queries,
    Rules,
    Task,
    WeightedWork,
    Weights,
    pair_work_size,
    umart_gradients,
    weighted_gradients,
)
from tierank.kernels.random_orders import Chance, OrderWork, stochastic_gradients
from tierank.losses.objective import Gradients, Objective, RatedDocuments
from tierank.settings import Checked, Choice, Flag, Integer, Kind, Number, OneOf, Optional, declared, setting

# hessian: (kappa, whether the higher document's part is without p)
HESSIANS = {"code": (2.0, False), "exact": (1.0, False), "paper": (2.0, True)}
# The number of ranks in the ideal DCG of the lambdarank of LightGBM 2, its max_position.
_OLD_IDCG_AT = 20
# Gradients are float32 numbers: undivided weights have to stay well within their range.
_MOST_GAIN = 1e30
# The cost of a document besides its pairs, counted in pairs; and the number of pairs that is worth another thread.
_PAIRS_PER_DOCUMENT, _PAIRS_PER_SPAN = 25, 1 << 21

GAIN = Checked("'exp2', 'linear', a list, a mapping or a function", as_gain)
GAIN_HELP = (
    "gain of a rating: exp2 (2^r - 1), linear, a list for the ratings 0, 1, 2, ..., a mapping, or a function (which"
    " cannot be saved)"
)
_NORM_HELP = (
    "p of learned propensities (Hu et al. 2019), which are raised to 1 / (p + 1): 0 leaves them unchanged, more is"
    " more careful; XGBoost's lambdarank_bias_norm"
)
_TIES = Choice(("mean", "rows"))
_TIES_HELP = "documents with equal scores: mean takes the expectation over their orders, rows an arbitrary order"


# The settings of uMart: objectives and rankers have the same.


@dataclass(kw_only=True, eq=False, repr=False)
class PairSettings:
    """What a pair counts."""

    window: int | None = setting(
        2,
        Optional(Integer(1), "all of them"),
        "number of lower-rated documents per window; 1 gives LambdaMART's pairs",
        search=OneOf((1, 2, 5, 10, None)),
    )
    sigma: float = setting(2.0, Number(above=0), "steepness of the likelihood")
    hessian: str = setting("code", Choice(HESSIANS), "code (as the authors' program), exact or paper")
    weights: str = setting(
        "ndcg", Choice(("ndcg", "gain", "none")), "weights of pairs: ndcg, gain (the plain uRank gains) or none"
    )
    idcg_at: int | None = setting(None, Optional(Integer(1), "all"), "number of ranks in the ideal DCG")
    gain: Gain = setting("exp2", GAIN, GAIN_HELP)


@dataclass(kw_only=True, eq=False, repr=False)
class OrderSettings:
    """How pairs depend on the order of the scores, and of what was shown."""

    truncation: int | None = setting(
        2000,
        Optional(Integer(1), "keep all"),
        "leave out pairs with both documents ranked below this: the default only changes longer lists",
    )
    ties: str = setting("mean", _TIES, _TIES_HELP)
    propensity_norm: float = setting(1.0, Number(0), _NORM_HELP)


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


@dataclass(kw_only=True, eq=False, repr=False)
class LambdaRankSettings:
    """The settings of LambdaRank."""

    sigma: float = setting(1.0, Number(above=0), "steepness of the likelihood; LightGBM's sigmoid")
    truncation: int | None = setting(
        30,
        Optional(Integer(1), "keep all"),
        "leave out pairs with both documents ranked below this, and use the NDCG at this rank; LightGBM's"
        " lambdarank_truncation_level",
        search=OneOf((10, 20, 30, 100)),
    )
    norm: bool = setting(
        True, Flag(), "divide by the distance of scores and by the sum over the query, as LightGBM does"
    )
    gain: Gain = setting("exp2", GAIN, GAIN_HELP)
    ties: str = setting("mean", _TIES, f"{_TIES_HELP}, as LightGBM does")
    version: str = setting(
        "lightgbm-4",
        Choice(("lightgbm-4", "lightgbm-2")),
        "whose lambdarank: that of LightGBM 4, or lightgbm-2, which the paper compares with and which has neither"
        " truncation nor norm",
    )
    propensity_norm: float = setting(1.0, Number(0), _NORM_HELP)


# The objectives


class LearnedWeights:
    """Pairwise debiasing (Hu et al. 2019): a pair counts 1 / (t+(k) t-(l)) times, with d shown at k and d' at l.

    ``above`` is 1 / t+ of each document, ``below`` 1 / t-, both from 1 / ``clip`` to ``clip``.

    t+ is proportional to the chance that a relevant document is clicked at k, t- to the chance that an unclicked one at
    l is irrelevant. With L the loss of a pair at the scores of this round, each round ends with

        t+(k) = (A(k) / A(1))^(1 / (p + 1)),  A(k) = sum over pairs with d shown at k of L / t-(l)
        t-(l) = (B(l) / B(1))^(1 / (p + 1)),  B(l) = sum over pairs with d' shown at l of L / t+(k)

    Both start at 1. If no pair has a document at position 1, the first position that has one takes its role; a position
    without pairs keeps its value, which is not used.
    """

    def __init__(
        self, position: NDArray[np.int64], factor: NDArray[np.float32] | None, norm: float, clip: float
    ) -> None:
        self.place, self.n_positions = position - 1, int(position.max())
        self.factor, self.power, self.clip = factor, 1 / (norm + 1), clip
        self.load({"clicked": [1.0] * self.n_positions, "unclicked": [1.0] * self.n_positions})

    def load(self, state: dict[str, list[float]]) -> None:
        """Continue from these propensities."""
        self.clicked, self.unclicked = (np.array(state[name], np.float64) for name in ("clicked", "unclicked"))
        self.above = (1 / self.clicked)[self.place]
        self.below = (1 / self.unclicked)[self.place]

    def state(self) -> dict[str, list[float]]:
        """The propensities of clicked and unclicked positions."""
        return {"clicked": self.clicked.tolist(), "unclicked": self.unclicked.tolist()}

    def learn(self, loss_above: Floats, loss_below: Floats) -> None:
        """Update the propensities by what the documents add to the loss."""
        clicked = self._relative(loss_above, self.clicked)
        self.load({"clicked": clicked, "unclicked": self._relative(loss_below, self.unclicked)})

    def _relative(self, loss: Floats, before: Floats) -> list[float]:
        """Sums by position, relative to the first, to the power; added in a fixed order, for any number of threads."""
        weighted = loss if self.factor is None else loss * self.factor
        sums = np.bincount(self.place, weighted, minlength=self.n_positions)
        seen = np.flatnonzero(sums > 0)
        values = before.copy()
        if len(seen):
            with np.errstate(over="ignore"):
                values[seen] = ((sums[seen] / sums[seen[0]]) ** self.power).clip(1 / self.clip, self.clip)
        return [float(value) for value in values]


class Arranged(NamedTuple):
    """What kernels know about the documents, spans of queries for threads, and arrays that each round overwrites."""

    queries: Queries
    rules: Rules
    spans: list[tuple[int, int]]
    order: NDArray[np.uint32]
    is_wide: NDArray[np.bool_]
    output: Output
    learned: LearnedWeights | None


class PairObjective(Objective):
    """An objective over pairs of documents with different ratings, on a compiled kernel. Subclasses have the settings.

    ``by_distance`` says whether weights by NDCG are divided by the distance of scores, ``is_levelled`` whether the sums
    over a query are, as in lambdarank; sigma counts ``times_sigma``.
    """

    window: int | None
    sigma: float
    hessian: str
    weights: str
    idcg_at: int | None
    gain: Gain
    clip: float
    n_jobs: int | None
    truncation: int | None = None
    ties: str = "mean"
    propensity_norm: float = 1.0
    by_distance, is_levelled, times_sigma = True, False, 1
    hidden: tuple[str, ...] = ("propensity_norm", "clip")

    def arrange(self, documents: RatedDocuments) -> Arranged:
        """Tiers, gains and discounts."""
        ratings, offsets, propensity = documents.ratings, documents.offsets, documents.propensity
        tiers, n_tiers = find_tiers(ratings, offsets)
        gains = self.pair_gains(ratings, offsets, n_tiers)
        if propensity is not None:  # a click at a rarely examined position is worth more
            gains = gains * np.minimum(1 / propensity, self.clip)
            tiers, n_tiers = find_tiers(gains, offsets)
        n, longest = len(ratings), int(np.diff(offsets).max())
        kappa, steep = HESSIANS[self.hessian]
        rules = Rules(
            window=self.window or n,
            truncation=self.truncation or n,
            sigma=self.times_sigma * self.sigma,
            by_rank=self.weights == "ndcg",
            over_distance=self.by_distance,
            levelled=self.is_levelled and propensity is None,  # it would cancel the propensities
            kappa=kappa,
            steep=steep,
            share_ties=self.ties == "mean",
        )
        learned = None
        if documents.position is not None and propensity is None:
            learned = LearnedWeights(documents.position, documents.factor, self.propensity_norm, self.clip)
        discounts = discounts_to(longest) if rules.by_rank else np.ones(longest)
        return Arranged(
            Queries(offsets, tiers, n_tiers, gains, discounts),
            rules,
            _spans(offsets, tiers, n_tiers, self.truncation, self.n_jobs),
            np.arange(n, dtype=np.uint32),
            np.zeros(len(n_tiers), np.bool_),
            work_arrays(Output, n),
            learned,
        )

    def state(self) -> dict[str, list[float]]:
        """The propensities that were learned, by position: ``clicked`` (t+) and ``unclicked`` (t-)."""
        return {} if self._data is None or self._data.learned is None else self._data.learned.state()

    def load_state(self, state: dict[str, list[float]]) -> None:
        """Continue from the propensities of ``state``."""
        if self._data is not None and self._data.learned is not None and state:
            self._data.learned.load(state)

    def compute(self, data: Arranged, scores: Floats) -> Gradients:
        """Gradient and hessian; with learned propensities it also updates them."""
        task = Task(scores, data.queries, data.rules, data.output)
        size = pair_work_size(len(data.queries.discounts), int(data.queries.n_tiers.max()))
        if data.learned is not None:
            data.learned.learn(*self._add_weighted(task, data, data.spans, data.learned.above, data.learned.below))
            return data.output

        def compute(first: int, last: int) -> None:
            work = work_arrays(PairWork, size)
            umart_gradients(first, last, task, data.order, data.is_wide, work)

        in_threads(compute, data.spans, self.n_jobs)
        if data.is_wide.any():
            ones = np.ones(len(scores))
            wide = [(query, query + 1) for query in np.flatnonzero(data.is_wide).tolist()]
            self._add_weighted(task, data, wide, ones, ones)
        return data.output

    def _add_weighted(
        self, task: Task, data: Arranged, spans: list[tuple[int, int]], above: Floats, below: Floats
    ) -> tuple[Floats, Floats]:
        """Gradient and hessian with weights of pairs, for these spans of queries; what documents add to the loss."""
        weights = Weights(above, below, np.empty_like(above), np.empty_like(above))

        def compute(first: int, last: int) -> None:
            work = work_arrays(WeightedWork, len(data.queries.discounts))
            weighted_gradients(first, last, task, data.order, weights, work)

        in_threads(compute, spans, self.n_jobs)
        return weights.loss_above, weights.loss_below

    def pair_gains(self, ratings: Floats, offsets: Offsets, n_tiers: NDArray[np.int64]) -> Floats:
        """The factor of each document in the weight of a pair: G / IDCG, G / (|R| - 1) or 1."""
        if self.weights == "none":
            return np.ones(len(ratings))
        lengths = np.diff(offsets)
        if self.weights == "gain":
            shares: Floats = plain_gains(ratings, self.gain) / np.repeat(np.maximum(n_tiers - 1, 1), lengths)
            return shares
        shares = np.zeros(len(ratings))
        levels = gain_levels(ratings, self.gain)
        for queries, rows, edges in blocks_of(offsets):
            tops = np.repeat(np.ceil(np.maximum.reduceat(ratings[rows], edges[:-1])), lengths[queries])
            gains = gains_of(ratings[rows], self.gain, tops) if isinstance(self.gain, str) else levels[rows]
            ideal = np.repeat(ideal_dcg(gains, edges, self.idcg_at), lengths[queries])
            np.divide(gains, ideal, out=shares[rows], where=ideal > 0)
        return shares


@dataclass(kw_only=True, eq=False, repr=False)
class UMartObjective(PairSettings, OrderSettings, PairObjective):
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
    ``truncation``       pairs with both documents ranked below this are left out, so that the time is not quadratic in
                         the length of a list; None: all pairs count
    ``idcg_at``          ranks that count in IDCG; None: all
    ``gain``             ``"exp2"``: G = 2^r - 1; ``"linear"``: G = r; a list with the gains of the ratings 0, 1,
                         2, ...; a mapping from ratings to gains; or a function that turns ratings into gains
    ``ties``             ``"mean"``: documents with equal scores have no order, see below; ``"rows"``: they rank in
                         the order of the rows, as in the authors' program and in LightGBM
    ``n_jobs``           threads; None: one for each core. The result is the same, bit for bit
    ``propensity_norm``  p of learned propensities, see below; ``clip``: the most that a document counts for

    **Clicks.** With ``prepare(..., propensity=...)`` the gain of d is G(d) / propensity(d), whose expectation over
    users is its relevance; it determines tiers too, but not IDCG, and sums of queries are not levelled. With
    ``prepare(..., position=...)`` a pair counts 1 / (t+(k) t-(l)) times, where d was shown at k and d' at l, and each
    call of ``gradients`` ends with an update of t+ and t-: see ``LearnedWeights``, where the loss of a pair is
    w ln(1 + k_b / e^(sigma f(d))) e^(sigma f(d')) / k_b, or w ln(1 + e^(sigma (f(d') - f(d)))) at ``window=1``.

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

    clip: float = setting(10.0, Number(1), "the most that a document counts for")
    n_jobs: int | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class LambdaRankObjective(LambdaRankSettings, PairObjective):
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

    clip: float = setting(10.0, Number(1), "the most that a document counts for")
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.window, self.weights, self.hessian, self.idcg_at = 1, "ndcg", "exact", self.truncation
        self.by_distance = self.is_levelled = self.norm
        if self.version == "lightgbm-2":
            self.hidden = (*self.hidden, "truncation", "norm")
            self.hessian, self.truncation, self.idcg_at = "code", None, _OLD_IDCG_AT
            self.by_distance, self.is_levelled, self.times_sigma = True, False, 2


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
        task = Task(scores, queries, data.rules, data.output)
        decays = self.decay ** np.arange(len(queries.discounts), dtype=np.float64)
        bits, chance = scores.view(np.uint64), Chance(self.seed, self.n_draws, self.noise, decays)

        def compute(first: int, last: int) -> None:
            work = work_arrays(OrderWork, int(np.diff(queries.offsets[first : last + 1]).max()) + 1)
            stochastic_gradients(first, last, task, bits, chance, work)

        in_threads(compute, data.spans, self.n_jobs)
        return data.output

    def pair_gains(self, ratings: Floats, offsets: Offsets, n_tiers: NDArray[np.int64]) -> Floats:
        """The factor of each document in the weight of a pair: G / IDCG, or G."""
        if self.weights == "gain":
            return plain_gains(ratings, self.gain)
        return super().pair_gains(ratings, offsets, n_tiers)


def plain_gains(ratings: Floats, gain: Gain) -> Floats:
    """Gains that weight pairs undivided. Raises ``DataError`` if they are too large for that."""
    gains = gains_of(ratings, gain)
    if gains.max() > _MOST_GAIN:
        raise DataError(
            argument="weights",
            expected=f"`weights`='ndcg' for ratings with gains above {_MOST_GAIN:g}, or another `gain`",
            got=f"'gain' and a rating of {ratings.max():g}",
        )
    return gains


def _spans(
    offsets: Offsets, tiers: NDArray[np.uint32], n_tiers: NDArray[np.int64], truncation: int | None, n_jobs: int | None
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
