"""OBJECTIVES: gradient and hessian for boosted trees.

An objective is built from settings alone, made ready with the ratings, and then asked for gradients once a round:

>>> objective = OBJECTIVES["umart"](window=2).prepare(ratings=[2, 1, 0, 0], offsets=[0, 4])
>>> gradient, hessian = objective.gradients([0.1, 0.7, 0.2, 0.4])
>>> [round(float(g), 3) for g in gradient]
[-1.445, 0.264, 0.676, 0.504]

LightGBM takes it as it is: ``lightgbm.train({"objective": OBJECTIVES["umart"]()}, data)``. It may copy or pickle the
objective; copies carry the settings, and make themselves ready with labels, groups and weights of the data they meet.

``check_gradient`` looks at a loss of one's own before trees or networks follow it.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.errors import DataError, ParameterError
from tierank.inputs import as_ratings, as_weights
from tierank.kernels import content, in_threads, n_threads
from tierank.kernels.umart import umart_gradients
from tierank.metrics import Gain, gain_levels
from tierank.settings import as_choice, as_limit, as_positive, as_whole

# torch is imported where a loss is followed: uMart has no need of it.
if TYPE_CHECKING:
    from torch import Tensor

    from tierank.losses import Batch

Floats = NDArray[np.float64]
Gradients = tuple[NDArray[np.float32], NDArray[np.float32]]

# hessian: (kappa, whether the higher document's part leaves out p)
_HESSIANS = {"code": (2.0, False), "exact": (1.0, False), "paper": (2.0, True)}
_WEIGHTS = ("ndcg", "gain", "none")
_GAINS = ("exp2", "linear")

# Gradients are float32 numbers: weights that come undivided have to stay well inside.
_MOST_GAIN = 1e30
# What a document costs beside its pairs, in pairs; and the pairs for which a thread is worth its start.
_PAIRS_PER_DOCUMENT, _PAIRS_PER_SPAN = 25, 1 << 21

# Documents whose loss is computed in one go.
_DOCUMENTS_AT_ONCE = 1 << 15
# No document is asked to move by more than this in one step of Newton's.
_LONGEST_STEP = 4.0


class Objective(ABC):
    """What LightGBM calls each round. A subclass makes itself ready with ratings, and gives gradients at scores."""

    _data: Any = None
    _dataset: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """The settings: what is pickled and copied."""
        return self.__dict__ | {"_data": None, "_dataset": None}

    @abstractmethod
    def prepare(
        self,
        ratings: ArrayLike,
        offsets: ArrayLike,
        row_weight: ArrayLike | None = None,
        query_weight: ArrayLike | None = None,
    ) -> Self:
        """Make ready for these documents: query i owns the rows ``offsets[i]:offsets[i+1]``.

        A row weight multiplies the gradient and the hessian of its document, a query weight those of the whole query.
        """

    @abstractmethod
    def gradients(self, scores: ArrayLike) -> Gradients:
        """Gradient and hessian at these scores, one number per document; the next call overwrites them."""

    def __call__(self, scores: ArrayLike, dataset: Any) -> Gradients:
        """What LightGBM calls each round, with its own data set; used as it is after ``prepare``."""
        if self._data is None or (self._dataset is not None and self._dataset is not dataset):
            sizes = dataset.get_group()
            if sizes is None:
                raise DataError("the LightGBM data set has no groups: expected lightgbm.Dataset(..., group=sizes)")
            offsets = np.concatenate([[0], np.cumsum(sizes[sizes > 0], dtype=np.int64)])
            self.prepare(dataset.get_label(), offsets, row_weight=dataset.get_weight())
            self._dataset = dataset
        return self.gradients(scores)

    def _checked_scores(self, scores: ArrayLike, n: int) -> Floats:
        # Writable or not is a type of its own to numba, and would be compiled for.
        checked = np.require(scores, np.float64, ["C", "W"])
        if checked.shape != (n,):
            raise DataError(f"scores: expected {n}, one per document, got shape {checked.shape}")
        if not np.isfinite(checked).all():
            raise DataError(f"scores: expected finite numbers, got {checked[~np.isfinite(checked)][0]}")
        return checked


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

    def __repr__(self) -> str:
        settings = ("window", "sigma", "hessian", "weights", "truncation", "idcg_at", "gain")
        return f"UMartObjective({', '.join(f'{name}={getattr(self, name)!r}' for name in settings)})"

    def prepare(
        self,
        ratings: ArrayLike,
        offsets: ArrayLike,
        row_weight: ArrayLike | None = None,
        query_weight: ArrayLike | None = None,
    ) -> Self:
        """Make ready for these documents; weights as of all objectives."""
        offsets = np.ascontiguousarray(offsets, dtype=np.int64)
        ratings = as_ratings(ratings, int(offsets[-1]))
        tiers, n_tiers = _tiers(ratings, offsets, _best_first(ratings, offsets))
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

    def gradients(self, scores: ArrayLike) -> Gradients:
        """Gradient and hessian at these scores, one number per document; the next call overwrites them."""
        data: _Prepared | None = self._data
        if data is None:
            raise DataError("the objective has no data: expected prepare(ratings, offsets) before gradients(scores)")
        scores = self._checked_scores(scores, len(data.order))
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


class LossObjective(Objective):
    """Trees that follow a loss: a name of ``LOSSES``, or any function ``(scores, batch) -> one value per query``.

    The gradient g is that of the sum over the queries, by automatic differentiation. Of the hessian H trees use sums of
    its diagonal over leaves. A function that knows its diagonal says so by an attribute, ``function.hessian(scores,
    batch)``, one value per document. For the others one product with H stands for it (Hutchinson's estimate), with
    signs z that the seed and the scores draw for each query, half of them -1:

        h(d) = max(|z(d) (H z)(d)|, |g(d)| / 4)

    If adding a number to all scores of a query changes nothing, as in all ``LOSSES``, the mean of z (H z) over all
    signs is the diagonal times 2 m / (2 m - 1), m = ceil(n / 2) for n documents; where moreover the documents of a
    query compete (no entry of H beside the diagonal is positive: ``urank``, ``softmax``, ``listnet``, ``listmle``,
    ``ranknet``), z (H z) is never negative and never above twice the diagonal. The second part keeps documents without
    curvature from asking for more than a step of 4.

    H z comes by differentiating twice; where a loss cannot be (``lambdaloss`` and others whose weights go by ranks), it
    is the difference of the gradients at f + z / 2 and f - z / 2. So a round costs two or three gradients, however long
    the lists are.

    Other keywords than those below are settings of the loss.

    ``gain``             as of ``UMartObjective``: what ``batch.gains`` holds
    ``n_jobs``           threads of torch; None: one for each core
    ``seed``             of the signs, and of what is random in the loss

    >>> objective = LossObjective("softmax").prepare(ratings=[2, 0, 0], offsets=[0, 3])
    >>> gradient, hessian = objective.gradients([0.0, 0.0, 0.0])
    >>> [round(float(g), 3) for g in gradient]
    [-0.667, 0.333, 0.333]
    """

    def __init__(
        self,
        loss: str | Callable[..., Tensor] = "urank",
        *,
        gain: Gain = "exp2",
        n_jobs: int | None = None,
        seed: int = 0,
        **of_the_loss: Any,
    ) -> None:
        self.loss, self.gain, self.n_jobs, self.seed = loss, gain, n_jobs, as_whole("seed", seed, 0)
        self.of_the_loss = of_the_loss
        self._function()  # whether it can be used at all

    def __repr__(self) -> str:
        return f"LossObjective({self.loss!r}, gain={self.gain!r}, seed={self.seed})"

    def _function(self) -> Callable[..., Tensor]:
        return partial(as_loss(self.loss), **self.of_the_loss)

    def prepare(
        self,
        ratings: ArrayLike,
        offsets: ArrayLike,
        row_weight: ArrayLike | None = None,
        query_weight: ArrayLike | None = None,
    ) -> Self:
        """Make ready for these documents; weights as of all objectives."""
        from tierank.losses import Batch

        whole = Batch(offsets, ratings, gain=self.gain)
        edges = np.asarray(offsets, np.int64)
        parts = [(int(edges[a]), int(edges[b]), whole.take(np.arange(a, b))) for a, b in _spans_of_queries(edges)]
        self._data = (parts, edges, _scale(edges, row_weight, query_weight))
        self._dataset = None
        return self

    def gradients(self, scores: ArrayLike) -> Gradients:
        """Gradient and hessian at these scores, one number per document."""
        import torch

        if self._data is None:
            raise DataError("the objective has no data: expected prepare(ratings, offsets) before gradients(scores)")
        parts, edges, scale = self._data
        checked = self._checked_scores(scores, int(edges[-1])).astype(np.float32)
        # What is random goes by the scores: a run that is resumed draws what it would have drawn.
        seed = (zlib.crc32(checked.tobytes()) + self.seed) % (1 << 32)
        signs = torch.from_numpy(_balanced_signs(edges, seed))
        gradient, hessian = np.empty((2, len(checked)), np.float32)
        threads = torch.get_num_threads()
        torch.set_num_threads(n_threads(self.n_jobs))
        try:
            for first, (start, end, batch) in enumerate(parts):
                at = _Point(self._function(), torch.from_numpy(checked[start:end]), batch, seed + first)
                gradient[start:end] = at.gradient.numpy()
                hessian[start:end] = at.hessian(signs[start:end]).numpy()
        finally:
            torch.set_num_threads(threads)
        np.maximum(np.abs(hessian), np.abs(gradient) / _LONGEST_STEP, out=hessian)
        if scale is not None:
            np.multiply(gradient, scale, out=gradient)
            np.multiply(hessian, scale, out=hessian)
        return gradient, hessian


class _Point:
    """A loss at some scores of a batch: its gradient, and what is known of its hessian."""

    def __init__(self, loss: Callable[..., Tensor], scores: Tensor, batch: Batch, seed: int) -> None:
        import torch

        self.loss, self.batch, self.generator = loss, batch, torch.Generator()
        self.seed = seed
        self.scores = scores.detach().requires_grad_()
        try:
            self.graph = self._gradient_at(self.scores, create_graph=True)
        except ParameterError:  # a loss of ours that cannot be differentiated twice
            self.graph = self._gradient_at(self.scores)
        self.gradient = self._check("gradient", self.graph.detach())

    def hessian(self, signs: Tensor) -> Tensor:
        """The diagonal, if the loss knows it, or else z * (H z) with these signs."""
        own = getattr(getattr(self.loss, "func", self.loss), "hessian", None)
        if own is not None:
            diagonal = own(self.scores.detach(), self.batch, **getattr(self.loss, "keywords", {}))
            if diagonal.shape != self.scores.shape:
                raise ParameterError(
                    f"hessian: expected one value per document, {len(self.scores)} here,"
                    f" got shape {tuple(diagonal.shape)}"
                )
            return self._check("hessian", diagonal.detach())
        product = self._product(signs)
        if product is None:
            half = signs / 2
            ahead, behind = ((self.scores.detach() + step).requires_grad_() for step in (half, -half))
            product = self._gradient_at(ahead) - self._gradient_at(behind)
        return self._check("hessian", signs * product)

    def _product(self, signs: Tensor) -> Tensor | None:
        """H z by differentiating twice; None where the loss does not allow it, or bends nowhere."""
        import torch

        if not self.graph.requires_grad:
            return None
        try:
            product: Tensor | None = torch.autograd.grad(self.graph, self.scores, signs, allow_unused=True)[0]
        except RuntimeError:
            return None
        return product if product is not None and product.any() else None

    def _gradient_at(self, scores: Tensor, *, create_graph: bool = False) -> Tensor:
        import torch

        self.batch.generator = self.generator.manual_seed(self.seed)  # the same draws at all points
        values = self.loss(scores, self.batch)
        check_values(values, self.batch.n_queries)
        return torch.autograd.grad(values.sum(), scores, create_graph=create_graph)[0]

    def _check(self, what: str, values: Tensor) -> Tensor:
        """The values, if all are finite; the error names the first document where one is not."""
        import torch

        bad = (~torch.isfinite(values)).nonzero()
        if len(bad):
            row = int(bad[0])
            length = int(self.batch.lengths[self.batch.query[row]])
            raise ParameterError(
                f"loss: expected a finite {what}, got {float(values[row])} at a document with rating"
                f" {float(self.batch.ratings[row]):g} and score {self.scores[row].item():g}, in a query of {length}"
                " documents; check_gradient(loss) may say where it goes wrong"
            )
        return values


def as_loss(loss: Any) -> Callable[..., Tensor]:
    """The function that a name of ``LOSSES`` stands for, or the function itself."""
    from tierank.losses import LOSSES

    if loss is None:
        raise ParameterError("loss: expected a function (scores, batch) -> one value per query, or a name, got None")
    return loss if callable(loss) else LOSSES[as_choice("loss", loss, LOSSES)]


def check_values(values: Any, n_queries: int) -> None:
    """Whether a loss gave one value per query, which depend on the scores."""
    shape = tuple(getattr(values, "shape", ())) if hasattr(values, "requires_grad") else None
    if shape != (n_queries,) or not values.requires_grad:
        got = "values that do not depend on the scores" if shape == (n_queries,) else f"shape {shape}"
        got = f"{values!r}, which is no tensor" if shape is None else got
        raise ParameterError(f"loss: expected one value per query, {n_queries} here, got {got}")


def _balanced_signs(offsets: NDArray[np.int64], seed: int) -> NDArray[np.float32]:
    """+1 and -1 in random order within each query, as many of the one as of the other but for an odd one."""
    rng = np.random.default_rng(seed)
    lengths = np.diff(offsets)
    query = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((rng.random(len(query)), query))
    first = np.repeat(rng.integers(0, 2, len(lengths)), lengths)
    signs = np.empty(len(query), np.float32)
    signs[order] = 1 - 2 * ((np.arange(len(query)) - np.repeat(offsets[:-1], lengths) + first) % 2)
    return signs


def _spans_of_queries(offsets: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Spans of whole queries of about as many documents as are computed in one go."""
    cuts = np.searchsorted(offsets, np.arange(0, offsets[-1], _DOCUMENTS_AT_ONCE))
    return pairwise(np.unique([*cuts, len(offsets) - 1]).tolist())


OBJECTIVES: dict[str, type[Objective]] = {"loss": LossObjective, "umart": UMartObjective}


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


def _best_first(values: Floats, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows, query by query, by decreasing value; equal values in the order of the rows."""
    order, queries, alike = (
        np.empty(len(values), np.int64),
        np.arange(len(offsets) - 1),
        np.zeros(len(values), np.uint64),
    )
    content.order_rows(0, len(queries), queries, offsets, offsets, alike, -values, np.ones(1), order)
    return order


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
    best = gains[_best_first(gains, offsets)]
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


# The step of differences in double precision, and how far from the derivatives they may be: some times its square.
_STEP, _TOLERANCE = 1e-4, 1e-5


def check_gradient(loss: str | Callable[..., Tensor], *, gain: Gain = "exp2", seed: int = 0) -> float:
    """Compare the derivatives of a loss with differences of its values; an error says where they part.

    Twenty queries of 1 to 12 documents, some with ties and some with one rating alone, get random scores, in double
    precision. Looked at are: one finite value per query, the same for a query alone as among others; each derivative;
    and, where the loss has one, each value of ``loss.hessian``. Returns the largest difference that was found.

    >>> import torch
    >>> def squares(scores, batch):
    ...     return torch.zeros(batch.n_queries).index_add(0, batch.query, scores**2)
    >>> check_gradient(squares) < 1e-6
    True
    >>> def hidden(scores, batch):  # detach() takes a part of it out of the derivative
    ...     return torch.zeros(batch.n_queries).index_add(0, batch.query, scores * scores.detach())
    >>> check_gradient(hidden)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tierank.errors.ParameterError: loss: derivative at document 0 of query 0 with ratings [1.0, 1.0] and scores ...
    """
    import torch

    function = as_loss(loss)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # tensors that the function makes follow it
    try:
        return _check_loss(function, _probe_queries(seed), gain)
    finally:
        torch.set_default_dtype(before)


def _probe_queries(seed: int) -> list[tuple[Floats, Floats]]:
    """Ratings and scores of short queries; every fifth one has one rating alone."""
    rng = np.random.default_rng(seed)
    queries = []
    for k, n in enumerate([2, 1, *rng.integers(2, 13, 18).tolist()]):
        ratings = rng.integers(0, 4 if k % 5 else 2, n).astype(np.float64)
        queries.append((np.full(n, 2.0) if k % 5 == 4 else ratings, rng.normal(size=n)))
    return queries


def _check_loss(loss: Callable[..., Tensor], queries: list[tuple[Floats, Floats]], gain: Gain) -> float:
    import torch

    from tierank.losses import Batch

    offsets = np.cumsum([0, *(len(ratings) for ratings, _ in queries)])
    batch = Batch(offsets, np.concatenate([ratings for ratings, _ in queries]), gain=gain, dtype=torch.float64)
    together = loss(torch.tensor(np.concatenate([s for _, s in queries]), requires_grad=True), batch)
    check_values(together, len(queries))
    worst = 0.0
    for k, (ratings, scores) in enumerate(queries):
        alone = _Alone(loss, ratings, scores, Batch([0, len(ratings)], ratings, gain=gain, dtype=torch.float64), k)
        worst = max(worst, alone.compare(together[k].item()))
    return worst


@dataclass
class _Alone:
    """One query by itself, whose derivatives are compared."""

    loss: Callable[..., Tensor]
    ratings: Floats
    scores: Floats
    batch: Batch
    number: int

    def compare(self, among_others: float) -> float:
        """The largest difference of all that can be compared; an error where one is too large."""
        value, gradient = self._value_and_gradient(self.scores)
        worst = self._same("value, alone and among other queries,", None, [value], [among_others])
        steps = np.eye(len(self.scores)) * _STEP
        around = [(self._value_and_gradient(self.scores + u), self._value_and_gradient(self.scores - u)) for u in steps]
        slopes = [(ahead[0] - behind[0]) / (2 * _STEP) for ahead, behind in around]
        worst = max(worst, self._same("derivative", 0, gradient.tolist(), slopes))
        own = getattr(self.loss, "hessian", None)
        if own is not None:
            bends = [(ahead[1][i] - behind[1][i]) / (2 * _STEP) for i, (ahead, behind) in enumerate(around)]
            worst = max(worst, self._same("hessian", 0, own(self._tensor(self.scores), self.batch).tolist(), bends))
        return worst

    def _tensor(self, scores: Floats) -> Tensor:
        import torch

        return torch.tensor(scores, requires_grad=True)

    def _value_and_gradient(self, scores: Floats) -> tuple[float, Floats]:
        import torch

        at = self._tensor(scores)
        values = self.loss(at, self.batch)
        check_values(values, 1)
        return values.item(), torch.autograd.grad(values.sum(), at)[0].numpy()

    def _same(self, what: str, first: int | None, got: list[float], expected: list[float]) -> float:
        if len(got) != len(expected):
            raise ParameterError(f"loss: {what}: expected {len(expected)} values, one per document, got {len(got)}")
        scale = max(1.0, *(abs(e) for e in expected))
        for i, (one, other) in enumerate(zip(got, expected, strict=True)):
            if not abs(one - other) <= _TOLERANCE * scale:
                place = "" if first is None else f"at document {i} "
                raise ParameterError(
                    f"loss: {what} {place}of query {self.number} with ratings {self.ratings.tolist()} and scores"
                    f" {self.scores.round(4).tolist()}: expected {other:.4g}"
                    f"{'' if first is None else ' by differences'}, got {one:.4g}"
                )
        return max(abs(one - other) / scale for one, other in zip(got, expected, strict=True))
