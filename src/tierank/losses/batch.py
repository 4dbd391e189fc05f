"""Batch: the whole queries that losses and networks work on, and the building blocks of losses without padding.

Sums over segments of unequal length, pairs in blocks, and the ladder: sums over all tiers below, in linear time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional

from tierank.arrays import Floats
from tierank.data.checks import as_offsets, as_places, as_positions, as_ratings, as_weights
from tierank.data.dataset import RankingDataset
from tierank.data.relevance import (
    Gain,
    as_gain,
    discount_sums,
    discounts_to,
    find_tiers,
    gains_of,
    ideal_dcg,
    ideal_dcg_of_copies,
)
from tierank.errors import DataError, ParameterError
from tierank.settings import as_positive

T = TypeVar("T")

# Pairs that are processed at a time: some megabytes for each array of them.
_PAIRS = 1 << 18
# From here on softplus is linear: e^-z is below the last digit of z, and e^z still fits into float32.
_LINEAR_FROM = 80.0


def exact(values: Tensor) -> Tensor:
    """The values in double precision, if the device supports it.

    The difference of two scores near 1e4 has an error of 1e-3 in single precision, and scores that are far apart cannot
    all be centred.
    """
    return values if values.device.type == "mps" else values.double()


def edges_of(counts: Tensor) -> Tensor:
    """0 and the running sums of counts."""
    return functional.pad(counts.cumsum(0), (1, 0))


def sum_by(values: Tensor, index: Tensor, n: int) -> Tensor:
    """The sum of the values of each index below n."""
    return values.new_zeros(n).scatter_add(0, index, values)


def max_by(values: Tensor, index: Tensor, n: int) -> Tensor:
    """The highest value of each index below n, each of which has one."""
    return values.new_full((n,), -math.inf).scatter_reduce_(0, index, values, "amax")


def log_sum_by(scores: Tensor, index: Tensor, n: int) -> Tensor:
    """The logarithm of the sum of e^f of each index below n, each of which has a score."""
    tops = max_by(scores.detach(), index, n)
    # In place: for long lists, allocating memory takes longer than computing.
    powers = tops.index_select(0, index).neg_().add_(scores).exp_()
    return sum_by(powers, index, n).log().add_(tops)


def log_of_nothing(dtype: torch.dtype) -> float:
    """A number used as ln 0: its exponential is 0, and sums and differences with scores are finite."""
    return torch.finfo(dtype).min / 4


def softplus(values: Tensor) -> Tensor:
    """ln(1 + e^x)"""
    return functional.softplus(values, threshold=_LINEAR_FROM)


def blocks(counts: Tensor) -> Iterator[slice]:
    """Spans of rows whose pairs fit into one step; a row with more pairs is its own span."""
    ends = counts.cumsum(0).cpu().numpy()
    start, done = 0, 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, done + _PAIRS, side="right")))
        yield slice(start, stop)
        start, done = stop, int(ends[stop - 1])


def partners(begins: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs of each row i with ``begins[i]``, ``begins[i] + 1``, ...: ``counts[i]`` of them."""
    row = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    shifts = begins - counts.cumsum(0) + counts
    return row, torch.arange(len(row), device=counts.device) + shifts.index_select(0, row)


class Ladder:
    """Documents on the rungs of their query, from the top down: how to sum over all rungs below or above each one.

    Sums are computed by doubling: each jump adds to every rung the current sum of the rung 1, 2, 4, ... further on. A
    jump out of the query ends at a place after all rungs, which holds ln 0.
    """

    def __init__(self, rung: Tensor, edges: Tensor) -> None:
        self.rung, self.n_rungs, self.n_queries = rung, int(edges[-1]), len(edges) - 1
        counts = edges.diff()
        query = torch.arange(self.n_queries, device=rung.device).repeat_interleave(counts)
        place = torch.arange(self.n_rungs, device=rung.device) - edges[query]
        n_after = counts[query] - place - 1
        self.n_jumps = max(int(counts.max()) - 2, 0).bit_length()
        strides = [1 << k for k in range(max(self.n_jumps, 1))]
        self.down = [_jump(stride, n_after >= stride) for stride in strides]
        self.up = [_jump(-stride, place >= stride) for stride in strides]
        self.query = query.index_select(0, rung)
        self.rows = (n_after > 0).index_select(0, rung).nonzero().squeeze(1)  # above the lowest rung: to be selected
        self.row_rung = rung.index_select(0, self.rows)
        self.row_query = self.query.index_select(0, self.rows)

    def below(self, logs: Tensor) -> Tensor:
        """The logarithm of the sum of e^x over all rungs below each one."""
        return self._beyond(logs, self.down)

    def above(self, logs: Tensor) -> Tensor:
        """The logarithm of the sum of e^x over all rungs above each one."""
        return self._beyond(logs, self.up)

    def _beyond(self, logs: Tensor, jumps: list[Tensor]) -> Tensor:
        sums = functional.pad(logs, (0, 1), value=log_of_nothing(logs.dtype))
        for jump in jumps[: self.n_jumps]:
            further = sums.index_select(0, jump)
            # torch's second derivative of logaddexp is NaN where the two are far apart; logaddexp is the faster one.
            sums = torch.stack([sums, further]).logsumexp(0) if logs.requires_grad else torch.logaddexp(sums, further)
        return sums.index_select(0, jumps[0])


def _jump(stride: int, stays: Tensor) -> Tensor:
    """Where the jump from each rung ends, and from the place after them."""
    behind = len(stays)
    ends = torch.where(stays, torch.arange(behind, device=stays.device) + stride, behind)
    return functional.pad(ends, (0, 1), value=behind)


class _Selection(torch.autograd.Function):
    """For each query, the sum over the documents d above the lowest rung of w(d) ln(1 + k(below d) / e^f(d)).

    With p(d) = k(below d) / (k(below d) + e^f(d)) and c the row weights the derivative for a document d' is

        -w(d') p(d') + sum over rungs t above d' of c(d') e^f(d') / k(below t) * sum over d on rung t of w(d) p(d).
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, weights: Tensor, ladder: Ladder, log_counts: Tensor | None) -> Tensor:
        below, margins, values = _select(scores, weights, ladder, log_counts)
        ctx.ladder, ctx.log_counts = ladder, log_counts
        ctx.save_for_backward(scores, weights, below, margins)
        return values.to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        scores, weights, below, margins = ctx.saved_tensors
        ladder: Ladder = ctx.ladder
        if torch.is_grad_enabled():  # for second derivatives, torch differentiates
            *_, values = _select(scores, weights, ladder, ctx.log_counts)
            return *torch.autograd.grad(values.to(scores.dtype), scores, outer, create_graph=True), None, None, None
        pulls = torch.sigmoid(margins).mul_(weights)
        # Sums of pulls that are 0 turn into e^-inf = 0. Below the lowest rung nothing is left to divide by, or to pull.
        logs = sum_by(pulls, ladder.row_rung, ladder.n_rungs).log_().sub_(below[:-1])
        gradient = ladder.above(logs).index_select(0, ladder.rung).add_(scores)
        gradient = (gradient if ctx.log_counts is None else gradient.add_(ctx.log_counts)).exp_()
        gradient.scatter_add_(0, ladder.rows, pulls.neg_())
        return gradient.to(scores.dtype).mul_(outer[0].index_select(0, ladder.query)), None, None, None


def _select(
    scores: Tensor, weights: Tensor, ladder: Ladder, log_counts: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """For each rung ln k(below), for each document to select ln k(below d) - f(d), and the loss of each query."""
    scores, weights = exact(scores), exact(weights)
    powers = scores if log_counts is None else scores + log_counts
    below = ladder.below(log_sum_by(powers, ladder.rung, ladder.n_rungs))
    margins = below.index_select(0, ladder.row_rung).sub_(scores.index_select(0, ladder.rows))
    return below, margins, sum_by(softplus(margins).mul_(weights), ladder.row_query, ladder.n_queries)


def select_from(scores: Tensor, weights: Tensor, ladder: Ladder, log_counts: Tensor | None = None) -> Tensor:
    """For each query, the sum over the documents d above the lowest rung of w(d) ln(1 + k(below d) / e^f(d)).

    k sums c e^f, with ``log_counts`` ln c of each document, or None where c is 1.
    """
    values: Tensor = _Selection.apply(scores, weights, ladder, log_counts)  # type: ignore[no-untyped-call]
    return values


# The highest rating r for which 2^r - 1 is used directly: sums of such gains are far below the limit of float32.
_HIGHEST_RATING = 64.0
# The most copies of the documents of a query in losses where copies have ranks: some megabytes of discounts.
_MOST_PLACES = 1 << 20


def _select_by(index: str) -> Callable[[Callable[[Batch], T]], cached_property[T]]:
    """A property that is computed once for a whole batch; the batches taken from it select their part by an index."""

    def decorate(compute: Callable[[Batch], T]) -> cached_property[T]:
        @wraps(compute)
        def select(batch: Batch) -> Any:
            if batch._whole is None:
                return compute(batch)
            values: Tensor | None = getattr(batch._whole, compute.__name__)
            return None if values is None else values.index_select(0, getattr(batch, index))

        return cached_property(select)

    return decorate


_per_document, _per_query = _select_by("rows"), _select_by("_queries")


class Batch:
    """A sequence of whole queries: query i has the rows ``offsets[i]:offsets[i+1]`` of scores and features.

    ==================  ============================================================================================
    ``offsets``         where queries begin; one more than there are queries
    ``ratings``         one per document, or None: networks score such a batch, losses need ratings
    ``gain``            ``"exp2"``: G = 2^r - 1; ``"linear"``: G = r; a list with the gains of the ratings 0, 1,
                        2, ...; a mapping from ratings to gains; or a function that turns ratings into gains
    ``weights``         one per document, what its gain is multiplied by: 1 / propensity of a click; None: 1
    ``row_weight``      one per document, how many times it counts: 2 is the document twice, 0.5 half of it, 0 as if it
                        were not there; None: 1. Every loss says what that means for it
    ``positions``       where each document was shown, from 1; None if unknown
    ``generator``       the random numbers of training: the order of tied documents, dropout, groups
    ``dtype``           of gains and weights, and so of the scores
    ``device``          where the tensors are
    ==================  ============================================================================================

    With ``"exp2"``, the gains of a query whose highest rating r is above 64 are in units of 2^(r - 64): the loss of
    the query keeps its shape, and no rating is too high.

    ``take`` returns the batch of some queries of this one; sorting is done once, in this one:

    >>> whole = Batch([0, 3, 5], [0, 1, 2, 7, 7])
    >>> batch = whole.take([1, 0])
    >>> batch.rows.tolist(), batch.tiers.tolist(), batch.gains.tolist()
    ([3, 4, 0, 1, 2], [0, 0, 2, 1, 0], [127.0, 127.0, 0.0, 1.0, 3.0])
    """

    gain: Gain
    generator: torch.Generator | None
    dtype: torch.dtype
    device: torch.device
    offsets: Tensor

    def __init__(
        self,
        offsets: ArrayLike,
        ratings: ArrayLike | None = None,
        *,
        gain: Gain = "exp2",
        weights: ArrayLike | None = None,
        row_weight: ArrayLike | None = None,
        positions: ArrayLike | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        edges = as_offsets(offsets)
        self.gain, self.generator, self.dtype, self.device = as_gain(gain), generator, dtype, torch.device(device)
        self.offsets = torch.tensor(edges, device=self.device)
        n = int(edges[-1])
        self._weights = None if weights is None else as_weights(weights, "weights", n)
        self._positions = None if positions is None else as_positions(positions, n)
        counts = None if row_weight is None else as_weights(row_weight, "row_weight", n)
        self._row_weight = None if counts is None or (counts == 1).all() else counts
        self._ratings = None if ratings is None else self._of_counted(as_ratings(ratings, n))

    _whole: Batch | None = None  # the batch that this one was taken from, and which of its queries
    _queries: Tensor

    @classmethod
    def of(cls, data: RankingDataset, **settings: Any) -> Batch:
        """A batch of all queries of a data set; settings as for the class."""
        return cls(data.offsets, data.ratings if data.is_rated else None, **settings)

    def take(self, queries: ArrayLike | Tensor) -> Batch:
        """The batch of these queries, in this order; its row i is row ``rows[i]`` of this batch."""
        if not isinstance(queries, Tensor):  # given by a caller; training passes tensors
            queries = as_places(queries, self.n_queries, "queries", "queries")
        if not len(queries):
            raise DataError(argument="queries", expected="at least one query to take", got="none")
        taken = Batch.__new__(Batch)
        taken.gain, taken.generator, taken.dtype, taken.device = self.gain, self.generator, self.dtype, self.device
        taken._whole, taken._ratings, taken._row_weight = self, self._ratings, self._row_weight
        taken._queries = torch.as_tensor(queries, dtype=torch.int64, device=self.device)
        taken.offsets = edges_of(self.lengths[taken._queries])
        shifts = self.offsets[taken._queries] - taken.offsets[:-1]
        taken.rows = torch.arange(taken.n_documents, device=self.device) + shifts.index_select(0, taken.query)
        return taken

    @property
    def n_queries(self) -> int:
        """Number of queries."""
        return len(self.offsets) - 1

    @property
    def n_documents(self) -> int:
        """Number of documents in all queries."""
        return len(self.query)

    @property
    def is_rated(self) -> bool:
        """Whether the documents have ratings."""
        return self._ratings is not None

    @cached_property
    def rows(self) -> Tensor:
        """The number of each row in the batch that this one was taken from."""
        return torch.arange(self.n_documents, device=self.device)

    @cached_property
    def lengths(self) -> Tensor:
        """Number of documents of each query."""
        return self.offsets.diff()

    @cached_property
    def query(self) -> Tensor:
        """The index of the query that each row belongs to."""
        return torch.arange(self.n_queries, device=self.device).repeat_interleave(self.lengths)

    @cached_property
    def places(self) -> Tensor:
        """0, 1, 2, ... for the rows of each query."""
        return torch.arange(self.n_documents, device=self.device) - self.offsets.index_select(0, self.query)

    def split(self, values: Tensor) -> list[Tensor]:
        """The values of each query, from one value per document."""
        return list(torch.split(values, self.lengths.tolist()))

    @cached_property
    def by_length(self) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
        """The rows, shorter queries first; the inverse order; and (number of queries, length) for each length."""
        order = self.lengths[self.query].argsort(stable=True)
        lengths, counts = np.unique(self.lengths.cpu().numpy(), return_counts=True)
        return order, order.argsort(), list(zip(counts.tolist(), lengths.tolist(), strict=True))

    @_per_document
    def ratings(self) -> Tensor:
        """The rating of each document."""
        if self._ratings is None:
            raise DataError(argument="ratings", expected="Batch(offsets, ratings) for a loss", got="a batch without")
        return torch.tensor(self._ratings, device=self.device)

    def _optional(self, values: NDArray[Any] | None, dtype: torch.dtype | None = None) -> Tensor | None:
        return None if values is None else torch.tensor(values, dtype=dtype, device=self.device)

    @_per_document
    def weights(self) -> Tensor | None:
        """The factor of the gain of each document; None if all are 1."""
        return self._optional(self._weights, self.dtype)

    @_per_document
    def positions(self) -> Tensor | None:
        """Where each document was shown, from 1."""
        return self._optional(self._positions)

    @_per_document
    def row_weight(self) -> Tensor | None:
        """The number of times each document counts; None if all are 1."""
        return self._optional(self._row_weight, self.dtype)

    @property
    def ignores_row_weight(self) -> bool:
        """Whether there are row weights that were never read."""
        return self._row_weight is not None and "row_weight" not in vars(self)

    @cached_property
    def log_row_weight(self) -> Tensor | None:
        """The logarithm of the row weights, a very low number for 0; None if all are 1."""
        if self.row_weight is None:
            return None
        logs = exact(self.row_weight).log()
        return logs.clamp(min=log_of_nothing(logs.dtype))

    def weighted(self, values: Tensor) -> Tensor:
        """Values of documents times their weights."""
        return values if self.weights is None else values * self.weights.to(values.dtype)

    def counted(self, values: Tensor) -> Tensor:
        """Values of documents times their row weights: the sum over the copies of each."""
        return values if self.row_weight is None else values * self.row_weight.to(values.dtype)

    def log_powers(self, scores: Tensor) -> Tensor:
        """ln(c e^f) for scores f and row weights c."""
        if self.log_row_weight is None:
            return scores
        return scores + self.log_row_weight.clamp(min=log_of_nothing(scores.dtype)).to(scores.dtype)

    def _of_counted(self, values: Floats) -> Floats:
        """The values, where documents of weight 0 get the lowest value of the others in their query: they form no tier.

        A query in which all weights are 0 has 0 everywhere: no order to learn.
        """
        if self._row_weight is None:
            return values
        counts, starts = self._row_weight > 0, self.offsets[:-1].cpu().numpy()
        lowest = np.minimum.reduceat(np.where(counts, values, np.inf), starts)
        lowest[np.isinf(lowest)] = 0.0
        return np.where(counts, values, np.repeat(lowest, self.lengths.cpu().numpy()))

    def repeated(self, loss: str) -> tuple[Batch, Tensor]:
        """The batch with every row as many times as its weight says, and the row here that each is a copy of.

        For losses that have ranks for whole documents only. Queries without a row that counts keep their rows, and have
        no order to learn.
        """
        counts = torch.as_tensor(self.row_weight).double()
        if not torch.equal(counts, counts.round()):
            got = f"{float(counts[counts != counts.round()][0]):g}"
            expected = f"integers with {loss}, which ranks whole documents"
            raise ParameterError(argument="row_weight", expected=expected, got=got)
        self.check_places()
        is_empty = sum_by(counts, self.query, self.n_queries) == 0
        rows = torch.arange(self.n_documents, device=self.device)
        rows = rows.repeat_interleave(torch.where(is_empty[self.query], 1, counts.long()))
        offsets = edges_of(torch.bincount(self.query[rows], minlength=self.n_queries)).cpu().numpy()
        ratings, weights = (None if one is None else one[rows].cpu().numpy() for one in (self.ratings, self.weights))
        settings: dict[str, Any] = {"gain": self.gain, "generator": self.generator, "dtype": self.dtype}
        return Batch(offsets, ratings, weights=weights, device=self.device, **settings), rows

    @_per_document
    def tiers(self) -> Tensor:
        """Index of each rating among the unique ratings of its query, 0 = highest; with weights, of gain times weight.

        A click at a rarely examined position is worth more.
        """
        values = self.ratings.cpu().numpy() if self._weights is None else self._gains * self._weights
        tiers, _ = find_tiers(self._of_counted(values), self.offsets.cpu().numpy())
        return torch.from_numpy(tiers.astype(np.int64)).to(self.device)

    @_per_query
    def n_tiers(self) -> Tensor:
        """Number of unique ratings of each query."""
        return torch.ones_like(self.lengths).scatter_reduce_(0, self.query, self.tiers + 1, "amax")

    @_per_query
    def n_ratings(self) -> Tensor:
        """Number of unique ratings of each query, regardless of weights."""
        if self._weights is None:
            return self.n_tiers
        return torch.from_numpy(find_tiers(self.ratings.cpu().numpy(), self.offsets.cpu().numpy())[1]).to(self.device)

    @cached_property
    def is_ranked(self) -> Tensor:
        """1 for each query with documents of different ratings, 0 for the others."""
        return (self.n_tiers > 1).to(self.dtype)

    @_per_document
    def gains(self) -> Tensor:
        """The gain G of each document."""
        return torch.tensor(self._gains, dtype=self.dtype, device=self.device)

    @cached_property
    def _gains(self) -> Floats:
        """The gains as float64; 2^r - 1 in a unit of the query if its highest rating is beyond float32."""
        ratings, offsets = self.ratings.cpu().numpy(), self.offsets.cpu().numpy()
        units = np.maximum(np.maximum.reduceat(ratings, offsets[:-1]) - _HIGHEST_RATING, 0.0)
        return gains_of(ratings, self.gain, np.repeat(units, np.diff(offsets)))

    @_per_document
    def relative_gains(self) -> Tensor:
        """G / IDCG, with IDCG the sum of G / log2(1 + rank) in the best order; 0 in queries with no order to learn.

        With row weights the copies of a document take places in it.
        """
        offsets = self.offsets.cpu().numpy()
        if self._row_weight is None:
            dcg = ideal_dcg(self._gains, offsets)
        else:
            self.check_places()
            dcg = ideal_dcg_of_copies(self._gains, self._row_weight, offsets)
        ideal = torch.from_numpy(dcg).to(self.device) / self.is_ranked
        gains = torch.from_numpy(self._gains).to(self.device)
        return torch.where(ideal > 0, 1 / ideal, 0.0)[self.query].mul(gains).to(self.dtype)

    def check_places(self) -> int:
        """The most ranks that the copies of the documents of a query take, or an error if it is too much memory."""
        counts = np.ones(self.n_documents) if self._row_weight is None else self._row_weight
        most = float(np.add.reduceat(counts, self.offsets[:-1].cpu().numpy()).max())
        if most > _MOST_PLACES:
            raise ParameterError(
                argument="row_weight",
                expected=f"a sum of up to {_MOST_PLACES:,} in each query, with a loss in which copies take places",
                got=f"{most:g}",
                fix="divide all weights by a constant",
            )
        return int(np.ceil(most))

    @cached_property
    def discount_sums(self) -> Tensor:
        """0, and the sums of the discounts of the first 1, 2, ... places, for all copies of the longest query."""
        if self._whole is not None:
            return self._whole.discount_sums
        return exact(torch.from_numpy(discount_sums(self.check_places() + 2)).to(self.device))

    @_per_document
    def urank_weights(self) -> Tensor:
        """G / (|R| - 1) for each document, times its weight and its row weight; 0 in queries with one rating."""
        shares = self.is_ranked / (self.n_ratings - 1).clamp(min=1)
        return self.counted(self.weighted(self.gains)) * shares[self.query]

    @cached_property
    def discounts(self) -> Tensor:
        """1 / log2(1 + rank) for rank 1, 2, ... up to one more than the longest query has documents."""
        return torch.tensor(discounts_to(int(self.lengths.max()) + 1), dtype=self.dtype, device=self.device)

    @cached_property
    def first_groups(self) -> Tensor:
        """Where the tiers of each query begin in a numbering of the tiers of all queries."""
        return edges_of(self.n_tiers)

    @cached_property
    def groups(self) -> Tensor:
        """The number of each document's tier among the tiers of all queries."""
        return self.first_groups.index_select(0, self.query) + self.tiers

    @cached_property
    def group_edges(self) -> Tensor:
        """Group g is ``by_tier[group_edges[g]:group_edges[g+1]]``."""
        return edges_of(torch.bincount(self.groups, minlength=int(self.first_groups[-1])))

    @cached_property
    def tier_keys(self) -> Tensor:
        """Numbers that sort the rows by query and tier; documents of weight 0 come last in their tier."""
        return self.groups if self.row_weight is None else 2 * self.groups + (self.row_weight == 0)

    @cached_property
    def by_tier(self) -> Tensor:
        """The rows, query by query, the highest tier first."""
        return self.tier_keys.argsort(stable=True)

    @cached_property
    def tier_ladder(self) -> Ladder:
        """The ladder with each document on the rung of its tier."""
        return Ladder(self.groups, self.first_groups)

    @cached_property
    def place_ladder(self) -> Ladder:
        """The ladder with each document on its own rung, in the order of the rows."""
        return Ladder(torch.arange(self.n_documents, device=self.device), self.offsets)

    @cached_property
    def steps(self) -> list[TierStep]:
        """The steps in which tiers are selected, each for all queries at once."""
        last = (self.n_tiers - 2)[self.query].minimum(self.tiers)  # the last step that a document takes part in
        rows = (last >= 0).nonzero().squeeze(1)
        steps: list[TierStep] = []
        while len(rows):
            query = self.query[rows]
            selected = (self.tiers[rows] == len(steps)).nonzero().squeeze(1)
            steps.append(TierStep(rows, query, selected, query[selected]))
            rows = rows[last[rows] >= len(steps)]
        return steps

    def order_by(self, values: Tensor) -> Tensor:
        """The rows, query by query, by decreasing value; equal values in the order of the rows."""
        order = values.argsort(descending=True, stable=True)
        return order[self.query[order].argsort(stable=True)]


@dataclass(frozen=True)
class TierStep:
    """One step in which a tier is selected, in all queries that have a lower tier left.

    ``rows`` are the documents not selected before, ``rows[selected]`` those of the tier; the others say which query
    each belongs to.
    """

    rows: Tensor
    query: Tensor
    selected: Tensor
    selected_query: Tensor


def check(scores: Tensor, batch: Batch, **positive: float) -> None:
    """Check that the scores match the batch, and that the settings are positive numbers."""
    if scores.shape != (batch.n_documents,) or scores.dtype != batch.dtype:
        raise DataError(
            argument="scores",
            expected=f"{batch.n_documents} of {batch.dtype}, one per document of the batch",
            got=f"shape {tuple(scores.shape)} of {scores.dtype}",
            fix="use scores.squeeze(1)" if scores.shape[1:] == (1,) else None,
        )
    for name, value in positive.items():
        as_positive(name, value)


def select_tiers(scores: Tensor, batch: Batch) -> Tensor:
    """For each query, the loss of selecting the documents of each tier from themselves and all tiers below."""
    check(scores, batch)
    ladder = batch.tier_ladder
    return select_from(scores, batch.urank_weights.index_select(0, ladder.rows), ladder, batch.log_row_weight)
