"""OBJECTIVES: gradient and hessian for boosted trees.

An objective is built from settings alone, made ready with the ratings, and then asked for gradients once a round:

>>> objective = OBJECTIVES["umart"](window=2).prepare(ratings=[2, 1, 0, 0], offsets=[0, 4])
>>> gradient, hessian = objective.gradients([0.1, 0.7, 0.2, 0.4])
>>> [round(float(g), 3) for g in gradient]
[-1.445, 0.264, 0.676, 0.504]

LightGBM takes it as it is: ``lightgbm.train({"objective": OBJECTIVES["umart"]()}, data)``. It may copy or pickle the
objective; copies carry the settings, and make themselves ready with labels, groups and weights of the data they meet.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.errors import DataError
from tierank.inputs import as_ratings, as_weights
from tierank.kernels import in_threads, n_threads
from tierank.kernels.umart import umart_gradients
from tierank.metrics import Gain, gain_levels
from tierank.settings import as_choice, as_limit, as_positive

Floats = NDArray[np.float64]

# hessian: (kappa, whether the higher document's part leaves out p)
_HESSIANS = {"code": (2.0, False), "exact": (1.0, False), "paper": (2.0, True)}
_WEIGHTS = ("ndcg", "gain", "none")
_GAINS = ("exp2", "linear")

# Gradients are float32 numbers: weights that come undivided have to stay well inside.
_MOST_GAIN = 1e30
# What a document costs beside its pairs, in pairs; and the pairs for which a thread is worth its start.
_PAIRS_PER_DOCUMENT, _PAIRS_PER_SPAN = 25, 1 << 21


class UMartObjective:
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
    ``truncation``       pairs with neither document among so many first ones are left out; None: no pair is
    ``idcg_at``          ranks that count in IDCG; None: all
    ``gain``             ``"exp2"``: G = 2^r - 1; ``"linear"``: G = r; a mapping from ratings to gains; or a function
                         that turns an array of ratings into gains
    ``n_jobs``           threads; None: one for each core. The result is the same, bit for bit

    **LambdaMART.** With ``window=1``, ``hessian="exact"``, and ``truncation`` and ``idcg_at`` both equal to
    ``lambdarank_truncation_level``, gradient and hessian are those of LightGBM's lambdarank with ``sigmoid`` equal to
    sigma, up to its table of sigmoids (2e-5) and up to one factor for each query: where ``lambdarank_norm`` is on,
    LightGBM divides by the distance of scores as is done here, and then multiplies both by log2(1 + S) / S with
    S = 2 sigma * (sum of w p' over the pairs). Where it is off, LightGBM divides by no distance: the two agree while
    all scores of a query are equal, as in the first round. ``hessian="code"`` is twice LightGBM's hessian.

    Equal scores rank in the order of the rows. Queries with one rating have gradient and hessian 0.
    """

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
        n_jobs: int | None = None,
    ) -> None:
        self.window = as_limit("window", window)
        self.truncation = as_limit("truncation", truncation)
        self.idcg_at = as_limit("idcg_at", idcg_at)
        self.sigma = as_positive("sigma", sigma)
        self.hessian = as_choice("hessian", hessian, _HESSIANS)
        self.weights = as_choice("weights", weights, _WEIGHTS)
        if isinstance(gain, str):
            as_choice("gain", gain, _GAINS)
        self.gain = gain
        self.n_jobs = n_jobs
        self._data: _Prepared | None = None
        self._dataset: Any = None

    def __repr__(self) -> str:
        settings = ("window", "sigma", "hessian", "weights", "truncation", "idcg_at", "gain")
        return f"UMartObjective({', '.join(f'{name}={getattr(self, name)!r}' for name in settings)})"

    def __getstate__(self) -> dict[str, Any]:
        """The settings: what is pickled and copied."""
        return self.__dict__ | {"_data": None, "_dataset": None}

    def prepare(
        self,
        ratings: ArrayLike,
        offsets: ArrayLike,
        row_weight: ArrayLike | None = None,
        query_weight: ArrayLike | None = None,
    ) -> UMartObjective:
        """Make ready for these documents: query i owns the rows ``offsets[i]:offsets[i+1]``.

        A row weight multiplies the gradient and the hessian of its document, a query weight those of the whole query.
        """
        offsets = np.ascontiguousarray(offsets, dtype=np.int64)
        ratings = as_ratings(ratings, int(offsets[-1]))
        order = np.lexsort((-ratings, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))))
        tiers, n_tiers = _tiers(ratings, offsets, order)
        self._data = _Prepared(
            offsets=offsets,
            tiers=tiers,
            n_tiers=n_tiers,
            gains=self._pair_gains(ratings, offsets, n_tiers),
            discounts=_discounts(offsets) if self.weights == "ndcg" else np.ones(np.diff(offsets).max()),
            scale=_scale(offsets, row_weight, query_weight),
            spans=_spans(offsets, tiers, n_tiers, self.truncation, self.n_jobs),
            order=np.arange(len(ratings), dtype=np.uint32),
            gradient=np.empty(len(ratings), np.float32),
            hessian=np.empty(len(ratings), np.float32),
        )
        self._dataset = None
        return self

    def gradients(self, scores: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Gradient and hessian at these scores, one number per document; the next call overwrites them."""
        data = self._data
        if data is None:
            raise DataError("the objective has no data: expected prepare(ratings, offsets) before gradients(scores)")
        # Writable or not is a type of its own to numba, and would be compiled for.
        scores = np.require(scores, np.float64, ["C", "W"])
        if scores.shape != data.order.shape:
            raise DataError(f"scores: expected {len(data.order)}, one per document, got shape {scores.shape}")
        if not np.isfinite(scores).all():
            raise DataError(f"scores: expected finite numbers, got {scores[~np.isfinite(scores)][0]}")
        kappa, steep = _HESSIANS[self.hessian]
        n = len(scores)

        def compute(first: int, last: int) -> None:
            umart_gradients(
                first, last, scores, data.offsets, data.tiers, data.n_tiers, data.gains, data.discounts,
                self.window or n, self.truncation or n, self.sigma, self.weights == "ndcg", kappa, steep,
                data.order, data.gradient, data.hessian,
            )  # fmt: skip

        in_threads(compute, data.spans, self.n_jobs)
        if data.scale is not None:
            np.multiply(data.gradient, data.scale, out=data.gradient)
            np.multiply(data.hessian, data.scale, out=data.hessian)
        return data.gradient, data.hessian

    def __call__(self, scores: ArrayLike, dataset: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What LightGBM calls each round, with its own data set; used as it is after ``prepare``."""
        if self._data is None or (self._dataset is not None and self._dataset is not dataset):
            sizes = dataset.get_group()
            if sizes is None:
                raise DataError("the LightGBM data set has no groups: expected lightgbm.Dataset(..., group=sizes)")
            offsets = np.concatenate([[0], np.cumsum(sizes[sizes > 0], dtype=np.int64)])
            self.prepare(dataset.get_label(), offsets, row_weight=dataset.get_weight())
            self._dataset = dataset
        return self.gradients(scores)

    def _pair_gains(self, ratings: Floats, offsets: NDArray[np.int64], n_tiers: NDArray[np.int64]) -> Floats:
        """What the weight of a pair has of each document: G / IDCG, G / (|R| - 1) or 1."""
        if self.weights == "none":
            return np.ones(len(ratings))
        lengths = np.diff(offsets)
        if self.weights == "gain":
            gains = _gains(ratings, self.gain, np.zeros(len(ratings)))
            if gains.max() > _MOST_GAIN:
                raise DataError(
                    f"weights='gain': expected ratings with gains up to {_MOST_GAIN:g}, got {ratings.max():g};"
                    " take weights='ndcg', which has no such limit, or another gain"
                )
            return np.asarray(gains / np.repeat(np.maximum(n_tiers - 1, 1), lengths))
        gains = _gains(ratings, self.gain, np.repeat(np.ceil(np.maximum.reduceat(ratings, offsets[:-1])), lengths))
        ideal = np.repeat(_ideal_dcg(gains, offsets, self.idcg_at), lengths)
        shares: Floats = np.divide(gains, ideal, out=np.zeros(len(gains)), where=ideal > 0)
        return shares


OBJECTIVES = {"umart": UMartObjective}


@dataclass
class _Prepared:
    """What an objective keeps of its data, and the arrays that it uses again each round."""

    offsets: NDArray[np.int64]
    tiers: NDArray[np.uint32]
    n_tiers: NDArray[np.int64]
    gains: Floats
    discounts: Floats
    scale: NDArray[np.float32] | None
    spans: list[tuple[int, int]]
    order: NDArray[np.uint32]
    gradient: NDArray[np.float32]
    hessian: NDArray[np.float32]


def _tiers(
    ratings: Floats, offsets: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The tier of each document and the number of tiers of each query; ``order`` has the highest ratings first."""
    new = np.diff(ratings[order], prepend=np.nan) != 0
    new[offsets[:-1]] = False
    steps = new.cumsum()
    tiers = np.empty(len(ratings), np.uint32)
    tiers[order] = steps - np.repeat(steps[offsets[:-1]], np.diff(offsets))
    return tiers, steps[offsets[1:] - 1] - steps[offsets[:-1]] + 1


def _gains(ratings: Floats, gain: Gain, tops: Floats) -> Floats:
    """The gain of each document; for 2^r - 1 in units of 2^top, so that no rating is too high for float64."""
    if gain == "exp2":
        with np.errstate(over="ignore", under="ignore"):
            return np.exp2(ratings - tops) - np.exp2(-tops)
    return gain_levels(ratings, gain)


def _discounts(offsets: NDArray[np.int64]) -> Floats:
    """1 / log2(1 + rank) for the ranks of the longest query."""
    return 1 / np.log2(np.arange(2, np.diff(offsets).max() + 2))


def _ideal_dcg(gains: Floats, offsets: NDArray[np.int64], k: int | None) -> Floats:
    """The DCG@k of each query in its best order."""
    lengths = np.diff(offsets)
    query = np.repeat(np.arange(len(lengths)), lengths)
    best = gains[np.lexsort((-gains, query))]
    ranks = np.arange(len(gains)) - offsets[query]
    counted = np.where(ranks < (len(gains) if k is None else k), best * _discounts(offsets)[ranks], 0.0)
    return np.add.reduceat(counted, offsets[:-1])


def _scale(
    offsets: NDArray[np.int64], row_weight: ArrayLike | None, query_weight: ArrayLike | None
) -> NDArray[np.float32] | None:
    """One factor per document, or None where all are 1."""
    if row_weight is None and query_weight is None:
        return None
    scale = np.ones(offsets[-1])
    if row_weight is not None:
        scale *= as_weights(row_weight, "row_weight", len(scale))
    if query_weight is not None:
        scale *= np.repeat(as_weights(query_weight, "query_weight", len(offsets) - 1), np.diff(offsets))
    return scale.astype(np.float32)


def _spans(
    offsets: NDArray[np.int64],
    tiers: NDArray[np.uint32],
    n_tiers: NDArray[np.int64],
    truncation: int | None,
    n_jobs: int | None,
) -> list[tuple[int, int]]:
    """Spans of queries with about the same number of pairs, several for each thread."""
    lengths = np.diff(offsets)
    first_tiers = np.concatenate([[0], n_tiers.cumsum()])
    sizes = np.bincount(np.repeat(first_tiers[:-1], lengths) + tiers, minlength=first_tiers[-1])
    pairs = (lengths**2 - np.add.reduceat(sizes**2, first_tiers[:-1])) // 2
    if truncation is not None:
        pairs = np.minimum(pairs, lengths * truncation)
    cost = (pairs + _PAIRS_PER_DOCUMENT * lengths).cumsum()
    n_spans = int(np.clip(cost[-1] // _PAIRS_PER_SPAN, 1, 8 * n_threads(n_jobs)))
    cuts = np.searchsorted(cost, cost[-1] * np.arange(1, n_spans) / n_spans)
    edges = np.unique(np.concatenate([[0], cuts, [len(lengths)]])).tolist()
    return list(pairwise(edges))
