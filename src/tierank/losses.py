"""LOSSES: how far scores are from the order that the ratings ask for, one value per query.

A loss is a function ``f(scores, batch)`` with settings as keywords. A batch is whole queries, one after the other:
nothing is padded, and no n x n matrix is made but by ``neuralndcg``.

>>> batch = Batch(offsets=[0, 4, 6], ratings=[1, 2, 2, 0, 1, 1])
>>> scores = torch.tensor([2.0, 3.0, 4.0, 5.0, 1.0, 1.0]).log().requires_grad_()
>>> values = LOSSES["urank"](scores, batch)
>>> [round(value, 4) for value in values.tolist()]
[3.9497, 0.0]
>>> values.sum().backward()

**All losses.** A query whose documents all have one rating has no order to learn: its value is 0, and so is its
gradient. Adding a number to all scores of a query changes nothing. Values and gradients are finite wherever the scores
are, at +-1e4 in single precision too. Losses over pairs go through them in blocks: memory does not grow with the
number of pairs, time does.

``urank``, ``listnet``, ``listmle``, ``plistmle``, ``softmax`` and ``neuralndcg`` can be differentiated twice; the
others say that they cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.inputs import as_ratings
from tierank.metrics import Gain, gain_levels
from tierank.settings import as_number, as_positive, as_whole

Loss = Callable[..., Tensor]

# Pairs that are looked at in one go: some megabytes for each array of them.
_PAIRS = 1 << 18
# The highest rating r for which 2^r - 1 is taken as it is: sums of such gains are still far from the end of float32.
_HIGHEST_RATING = 64.0
# softplus turns linear where e^-z is less than any digit of z, and e^z still is a float32.
_LINEAR_FROM = 80.0
# The longest query for which neuralndcg makes a matrix: 128 MB each, and some at a time.
_LONGEST_MATRIX = 4096
# How near to 1 the sums of the columns have to be.
_EVEN = 1e-6


class Batch:
    """Whole queries, one after the other: query i owns the rows ``offsets[i]:offsets[i+1]`` of scores and features.

    ==================  ============================================================================================
    ``offsets``         where queries begin; one more than there are queries
    ``ratings``         one per document, or None: networks score such a batch, losses need ratings
    ``gain``            ``"exp2"``: G = 2^r - 1; ``"linear"``: G = r; a mapping from ratings to gains; or a function
                        that turns an array of ratings into gains
    ``generator``       the source of all that is random in training: the order of tied documents, dropout, groups
    ``dtype``           of gains and weights, and so of the scores
    ``device``          where the tensors live
    ==================  ============================================================================================

    With ``"exp2"``, the gains of a query whose highest rating r is above 64 are in units of 2^(r - 64): the loss of
    the query keeps its shape, and no rating is too high.

    ``take`` gives the batch of some queries of this one; what needs sorting is done once, here:

    >>> whole = Batch([0, 3, 5], [0, 1, 2, 7, 7])
    >>> batch = whole.take([1, 0])
    >>> batch.rows.tolist(), batch.tiers.tolist(), batch.gains.tolist()
    ([3, 4, 0, 1, 2], [0, 0, 2, 1, 0], [127.0, 127.0, 0.0, 1.0, 3.0])
    """

    def __init__(
        self,
        offsets: ArrayLike,
        ratings: ArrayLike | None = None,
        *,
        gain: Gain = "exp2",
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        edges = np.asarray(offsets, dtype=np.int64)
        if edges.ndim != 1 or len(edges) < 2 or edges[0] != 0 or (np.diff(edges) < 1).any():
            raise DataError(f"offsets: expected 0 and then the end of each query, ascending, got {edges}")
        self.gain, self.generator, self.dtype, self.device = gain, generator, dtype, torch.device(device)
        self.offsets = torch.tensor(edges, device=self.device)
        self._ratings = None if ratings is None else as_ratings(ratings, int(edges[-1]))

    _whole: Batch | None = None  # what this batch was taken from, and which queries of it
    _queries: Tensor

    @classmethod
    def of(cls, data: RankingDataset, **settings: Any) -> Batch:
        """All queries of a data set; settings as of the class."""
        return cls(data.offsets, data.ratings if data.is_rated else None, **settings)

    def take(self, queries: ArrayLike | Tensor) -> Batch:
        """The batch of these queries, in this order; its row i is row ``rows[i]`` of this batch."""
        taken = Batch.__new__(Batch)
        taken.gain, taken.generator, taken.dtype, taken.device = self.gain, self.generator, self.dtype, self.device
        taken._ratings, taken._whole = self._ratings, self
        taken._queries = torch.as_tensor(queries, dtype=torch.int64, device=self.device)
        if not len(taken._queries):
            raise DataError("no query is left: expected at least one query to take")
        taken.offsets = _edges(self.lengths[taken._queries])
        return taken

    @property
    def n_queries(self) -> int:
        """How many queries there are."""
        return len(self.offsets) - 1

    @property
    def n_documents(self) -> int:
        """How many documents there are, over all queries."""
        return len(self.query)

    @property
    def is_rated(self) -> bool:
        """Whether the documents have ratings."""
        return self._ratings is not None

    @cached_property
    def rows(self) -> Tensor:
        """The number of each row in the batch that this one was taken from."""
        rows = torch.arange(self.n_documents, device=self.device)
        if self._whole is None:
            return rows
        return rows + (self._whole.offsets[self._queries] - self.offsets[:-1]).index_select(0, self.query)

    @cached_property
    def lengths(self) -> Tensor:
        """How many documents each query has."""
        return self.offsets.diff()

    @cached_property
    def query(self) -> Tensor:
        """The index of the query that each row belongs to."""
        return torch.arange(self.n_queries, device=self.device).repeat_interleave(self.lengths)

    @cached_property
    def places(self) -> Tensor:
        """0, 1, 2, ... for the rows of each query."""
        return torch.arange(self.n_documents, device=self.device) - self.offsets.index_select(0, self.query)

    @cached_property
    def by_length(self) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
        """The rows, shorter queries first; the way back; and how many queries have each length: (queries, length)."""
        order = self.lengths[self.query].argsort(stable=True)
        lengths, counts = np.unique(self.lengths.cpu().numpy(), return_counts=True)
        return order, order.argsort(), list(zip(counts.tolist(), lengths.tolist(), strict=True))

    @cached_property
    def ratings(self) -> Tensor:
        """The rating of each document."""
        if self._ratings is None:
            raise DataError("this batch has no ratings: expected Batch(offsets, ratings) for a loss")
        if self._whole is not None:
            return self._whole.ratings.index_select(0, self.rows)
        return torch.tensor(self._ratings, device=self.device)

    @cached_property
    def tiers(self) -> Tensor:
        """Index of each rating among the unique ratings of its query, 0 = highest."""
        if self._whole is not None:
            return self._whole.tiers.index_select(0, self.rows)
        order = self.order_by(self.ratings)
        is_new = self.ratings[order].diff(prepend=self.ratings[:1]) != 0
        is_new[self.offsets[:-1]] = False
        steps = is_new.cumsum(0)
        return torch.empty_like(steps).scatter_(0, order, steps - steps[self.offsets[:-1]][self.query])

    @cached_property
    def n_tiers(self) -> Tensor:
        """How many unique ratings each query has."""
        if self._whole is not None:
            return self._whole.n_tiers.index_select(0, self._queries)
        return torch.ones_like(self.lengths).scatter_reduce_(0, self.query, self.tiers + 1, "amax")

    @cached_property
    def is_ranked(self) -> Tensor:
        """1 for each query with documents of different ratings, 0 for the others."""
        return (self.n_tiers > 1).to(self.dtype)

    @cached_property
    def gains(self) -> Tensor:
        """The gain G of each document."""
        if self._whole is not None:
            return self._whole.gains.index_select(0, self.rows)
        if self.gain != "exp2":
            return torch.tensor(
                gain_levels(self.ratings.cpu().numpy(), self.gain), dtype=self.dtype, device=self.device
            )
        tops = _highest(self.ratings, self.query, self.n_queries)
        units = (tops - _HIGHEST_RATING).clamp(min=0)[self.query]
        return (torch.exp2(self.ratings - units) - torch.exp2(-units)).to(self.dtype)

    @cached_property
    def relative_gains(self) -> Tensor:
        """G / IDCG, with IDCG the sum of G / log2(1 + rank) in the best order; 0 in queries with no order to learn."""
        if self._whole is not None:
            return self._whole.relative_gains.index_select(0, self.rows)
        gains = self.gains.double()
        best = gains[self.order_by(gains)] * self.discounts.double()[self.places]
        ideal = _sums(best, self.query, self.n_queries) / self.is_ranked
        return torch.where(ideal > 0, 1 / ideal, 0.0)[self.query].mul(gains).to(self.dtype)

    @cached_property
    def urank_weights(self) -> Tensor:
        """G / (|R| - 1) for each document; 0 in queries with one rating."""
        if self._whole is not None:
            return self._whole.urank_weights.index_select(0, self.rows)
        return self.gains * (self.is_ranked / (self.n_tiers - 1).clamp(min=1))[self.query]

    @cached_property
    def discounts(self) -> Tensor:
        """1 / log2(1 + rank) for rank 1, 2, ... up to one more than the longest query has documents."""
        ranks = torch.arange(1, int(self.lengths.max()) + 2, dtype=torch.float64, device=self.device)
        return (1 / torch.log2(1 + ranks)).to(self.dtype)

    @cached_property
    def first_groups(self) -> Tensor:
        """Where the tiers of each query begin, when the tiers of all queries are numbered through."""
        return _edges(self.n_tiers)

    @cached_property
    def groups(self) -> Tensor:
        """The number of each document's tier among the tiers of all queries."""
        return self.first_groups.index_select(0, self.query) + self.tiers

    @cached_property
    def group_edges(self) -> Tensor:
        """Group g owns ``by_tier[group_edges[g]:group_edges[g+1]]``."""
        return _edges(torch.bincount(self.groups, minlength=int(self.first_groups[-1])))

    @cached_property
    def by_tier(self) -> Tensor:
        """The rows, query by query, the highest tier first."""
        return self.groups.argsort(stable=True)

    @cached_property
    def tier_ladder(self) -> Ladder:
        """Documents stand on the rung of their tier."""
        return Ladder(self.groups, self.first_groups)

    @cached_property
    def tier_ladder_weights(self) -> Tensor:
        """The uRank weights of the documents that the ladder selects."""
        return self.urank_weights.index_select(0, self.tier_ladder.rows)

    @cached_property
    def place_ladder(self) -> Ladder:
        """Each document stands on a rung of its own, in the order of the rows."""
        return Ladder(torch.arange(self.n_documents, device=self.device), self.offsets)

    @cached_property
    def place_weights(self) -> Tensor:
        """(2^(n - i) - 1) / (2^(n - 1) - 1) for the i-th document of each query but its last, which has 0."""
        last = torch.exp2(-(self.lengths - 1).double()) * self.is_ranked
        scale = self.is_ranked / (1 - last)
        query = self.place_ladder.row_query
        powers = torch.exp2(-self.places[self.place_ladder.rows].double())
        return ((powers - last[query]) * scale[query]).to(self.dtype)

    @cached_property
    def steps(self) -> list[Step]:
        """The steps in which tiers are selected, each for all queries at once."""
        last = (self.n_tiers - 2)[self.query].minimum(self.tiers)  # the last step that a document takes part in
        rows = (last >= 0).nonzero().squeeze(1)
        steps: list[Step] = []
        while len(rows):
            query = self.query[rows]
            selected = (self.tiers[rows] == len(steps)).nonzero().squeeze(1)
            steps.append(Step(rows, query, selected, query[selected]))
            rows = rows[last[rows] >= len(steps)]
        return steps

    @cached_property
    def step_ladder(self) -> tuple[Ladder, Tensor, Tensor]:
        """The documents of all steps: on each step the selected stand above the rest. Their weights and queries."""
        rows = torch.cat([step.rows for step in self.steps])
        t = torch.cat([torch.full_like(step.rows, i) for i, step in enumerate(self.steps)])
        first_steps = _edges(self.n_tiers - 1)
        rungs = 2 * (first_steps[self.query[rows]] + t) + (self.tiers[rows] > t)
        ladder = Ladder(rungs, torch.arange(0, 2 * int(first_steps[-1]) + 1, 2, device=self.device))
        selected = rows[ladder.rows]
        queries = torch.arange(self.n_queries, device=self.device).repeat_interleave(self.n_tiers - 1)
        return ladder, self.urank_weights[selected], queries

    def order_by(self, values: Tensor) -> Tensor:
        """The rows, query by query, by decreasing value; equal values in the order of the rows."""
        order = values.argsort(descending=True, stable=True)
        return order[self.query[order].argsort(stable=True)]


@dataclass(frozen=True)
class Step:
    """One step in which a tier is selected, in all queries that have a lower tier left.

    ``rows`` are the documents not selected before, ``rows[selected]`` those of the tier; the others say which query
    each belongs to.
    """

    rows: Tensor
    query: Tensor
    selected: Tensor
    selected_query: Tensor


class Ladder:
    """Documents on the rungs of their query, from the top down: how to sum over all rungs below or above each one.

    Sums double: each jump adds to every rung the sum that the rung 1, 2, 4, ... further on has by then. A jump out of
    the query ends at a place behind all rungs, which holds the logarithm of nothing.
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
        sums = functional.pad(logs, (0, 1), value=torch.finfo(logs.dtype).min / 4)
        for jump in jumps[: self.n_jumps]:
            further = sums.index_select(0, jump)
            # torch's second derivative of logaddexp is no number where the two are far apart; it is the faster one.
            sums = torch.stack([sums, further]).logsumexp(0) if logs.requires_grad else torch.logaddexp(sums, further)
        return sums.index_select(0, jumps[0])


def _jump(stride: int, stays: Tensor) -> Tensor:
    """Where the jump from each rung ends, and from the place behind them."""
    behind = len(stays)
    ends = torch.where(stays, torch.arange(behind, device=stays.device) + stride, behind)
    return functional.pad(ends, (0, 1), value=behind)


class _Selection(torch.autograd.Function):
    """For each query, the sum over the documents d above the lowest rung of w(d) ln(1 + k(below d) / e^f(d)).

    With p(d) = k(below d) / (k(below d) + e^f(d)) the derivative for a document d' is

        -w(d') p(d') + sum over rungs t above d' of e^f(d') / k(below t) * sum over d on rung t of w(d) p(d).
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, weights: Tensor, ladder: Ladder) -> Tensor:
        below, margins, values = _select(scores, weights, ladder)
        ctx.ladder = ladder
        ctx.save_for_backward(scores, weights, below, margins)
        return values

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        scores, weights, below, margins = ctx.saved_tensors
        ladder: Ladder = ctx.ladder
        if torch.is_grad_enabled():  # the derivative is to be differentiated in turn, which torch does
            *_, values = _select(scores, weights, ladder)
            return *torch.autograd.grad(values, scores, outer, create_graph=True), None, None
        pulls = torch.sigmoid(margins).mul_(weights)
        # Sums of pulls that are 0 turn into e^-inf = 0. Below the lowest rung nothing is left to divide by, or to pull.
        logs = _sums(pulls, ladder.row_rung, ladder.n_rungs).log_().sub_(below[:-1])
        gradient = ladder.above(logs).index_select(0, ladder.rung).add_(scores).exp_()
        gradient.scatter_add_(0, ladder.rows, pulls.neg_())
        return gradient.mul_(outer[0].index_select(0, ladder.query)), None, None


def _select(scores: Tensor, weights: Tensor, ladder: Ladder) -> tuple[Tensor, Tensor, Tensor]:
    """For each rung ln k(below), for each document to select ln k(below d) - f(d), and the loss of each query."""
    below = ladder.below(_log_sums(scores, ladder.rung, ladder.n_rungs))
    margins = below.index_select(0, ladder.row_rung).sub_(scores.index_select(0, ladder.rows))
    return below, margins, _sums(_softplus(margins).mul_(weights), ladder.row_query, ladder.n_queries)


def _select_from(scores: Tensor, weights: Tensor, ladder: Ladder) -> Tensor:
    values: Tensor = _Selection.apply(scores, weights, ladder)  # type: ignore[no-untyped-call]
    return values


def urank(scores: Tensor, batch: Batch) -> Tensor:
    """The uRank loss (Eq. 2 of the paper): the documents of each tier are selected from themselves and all tiers below.

        L = 1 / (|R| - 1) * sum over t < |R| of sum over d in c_t of G(d) ln(1 + k(s~_t) / e^f(d))

    with k(s~_t) the sum of e^f over the documents rated lower than tier t. Linear in the documents, in time and memory.
    """
    _check(scores, batch)
    return _select_from(scores, batch.tier_ladder_weights, batch.tier_ladder)


def stepwise_urank(step_scores: Sequence[Tensor], batch: Batch) -> Tensor:
    """The uRank loss where a document has a score for each step: that of tier t takes the scores of step t.

    ``step_scores[t]`` has one score for each of ``batch.steps[t].rows``, as the networks with steps give them.
    """
    if not batch.steps:  # no query has an order to learn; backward() then has nothing to do, and does not fail
        return torch.zeros(batch.n_queries, dtype=batch.dtype, device=batch.device, requires_grad=True)
    ladder, weights, queries = batch.step_ladder
    values = _select_from(torch.cat(list(step_scores)), weights, ladder)
    return _sums(values, queries, batch.n_queries)


def windowed_urank(scores: Tensor, batch: Batch, *, window: int | None = 2) -> Tensor:
    """The uRank loss with the windowed likelihood (Eq. 3 of the paper).

        L = 1 / (|R| - 1) * sum over t < |R| of sum over d in c_t of G(d) * sum over b of ln(1 + k(b) / e^f(d))

    The documents rated lower than tier t, by decreasing score, are cut into windows b of ``window`` documents; None:
    one window, which is ``urank``. The order of the scores is taken as given when differentiating.
    """
    if window is None:
        return urank(scores, batch)
    _check(scores, batch)
    window = as_whole("window", window)
    with torch.no_grad():
        totals, gradient = torch.zeros_like(scores), torch.zeros_like(scores)
        order = batch.order_by(scores)
        group_query = torch.arange(batch.n_queries, device=batch.device).repeat_interleave(batch.n_tiers)
        for span in _blocks(batch.lengths[group_query]):
            _add_windows(span, scores, batch, window, order, group_query, totals, gradient)
        values = _sums(totals.double(), batch.query, batch.n_queries).to(scores.dtype)
    return _with_gradient(scores, values, gradient, batch)


def _add_windows(
    span: slice,
    scores: Tensor,
    batch: Batch,
    window: int,
    order: Tensor,
    group_query: Tensor,
    totals: Tensor,
    gradient: Tensor,
) -> None:
    """Add the windowed losses of the tiers in the span to the totals of their documents, and what they pull at."""
    queries = group_query[span]
    tier, place = _partners(batch.offsets[queries], batch.lengths[queries])
    lower = order[place]
    is_lower = batch.groups[lower] > tier + span.start
    tier, lower = tier[is_lower], lower[is_lower]
    n_lower = torch.bincount(tier, minlength=len(queries))
    n_windows = (n_lower + window - 1) // window
    first_windows = _edges(n_windows)
    place = torch.arange(len(lower), device=batch.device) - _edges(n_lower)[tier]
    member_of = first_windows[tier] + place // window
    sums = _log_sums(scores[lower], member_of, int(first_windows[-1]))
    pulls = torch.zeros_like(sums)

    upper = batch.by_tier[batch.group_edges[span.start] : batch.group_edges[span.stop]]
    tier = batch.groups[upper] - span.start
    for part in _blocks(n_windows[tier]):
        rows, tiers = upper[part], tier[part]
        row, partner = _partners(first_windows[tiers], n_windows[tiers])
        margins = sums[partner] - scores[rows][row]
        weights = batch.urank_weights[rows][row]
        totals[rows] = _sums(_softplus(margins) * weights, row, len(rows))
        pull = torch.sigmoid(margins) * weights
        gradient.index_add_(0, rows, -_sums(pull, row, len(rows)))
        pulls.index_add_(0, partner, pull)
    gradient.index_add_(0, lower, pulls[member_of] * (scores[lower] - sums[member_of]).exp())


def listnet(scores: Tensor, batch: Batch) -> Tensor:
    """ListNet (Cao et al., 2007), top one: cross entropy from the softmax of the ratings to that of the scores.

    L = -sum over d of P(d) ln(e^f(d) / sum of e^f),  P(d) = e^r(d) / sum of e^r
    """
    _check(scores, batch)
    tops = _highest(batch.ratings, batch.query, batch.n_queries)
    return _cross_entropy(scores, (batch.ratings - tops[batch.query]).exp(), batch)


def softmax(scores: Tensor, batch: Batch) -> Tensor:
    """Softmax cross entropy with gains (rank_xendcg of Bruch et al., 2021, with all gammas 1, so without noise).

    L = -sum over d of G(d) / (sum of G) * ln(e^f(d) / sum of e^f)
    """
    _check(scores, batch)
    return _cross_entropy(scores, batch.gains.double(), batch)


def _cross_entropy(scores: Tensor, parts: Tensor, batch: Batch) -> Tensor:
    """-sum over d of P(d) ln(e^f(d) / sum of e^f), with P the parts divided by their sum; 0 where that is 0."""
    totals = _sums(parts, batch.query, batch.n_queries) / batch.is_ranked
    target = torch.where(totals > 0, 1 / totals, 0.0)[batch.query].mul(parts).to(scores.dtype)
    log_sums = _log_sums(scores, batch.query, batch.n_queries).index_select(0, batch.query)
    return _sums(target * (log_sums - scores), batch.query, batch.n_queries)


def listmle(scores: Tensor, batch: Batch) -> Tensor:
    """ListMLE (Xia et al., 2008): the likelihood of one order that agrees with the ratings.

        L = -sum over i = 1..n of ln(e^f(d_i) / (e^f(d_i) + ... + e^f(d_n)))

    Documents d_1, d_2, ... stand by decreasing rating. Tied ones are shuffled by the generator of the batch, anew in
    each call; without a generator they keep the order of the rows.
    """
    _check(scores, batch)
    return _likelihood(scores, batch.is_ranked.index_select(0, batch.place_ladder.row_query), batch)


def plistmle(scores: Tensor, batch: Batch) -> Tensor:
    """Position-aware ListMLE (Lan et al., 2014): as ``listmle``, with a weight for each place.

        L = -sum over i = 1..n of a(i) / a(1) * ln(e^f(d_i) / (e^f(d_i) + ... + e^f(d_n))),  a(i) = 2^(n - i) - 1

    The division by a(1) is ours: the first place weighs 1 in a list of any length, so that no list is too long for
    floating point, and a list of 41 documents does not weigh twice one of 40.
    """
    _check(scores, batch)
    return _likelihood(scores, batch.place_weights, batch)


def _likelihood(scores: Tensor, weights: Tensor, batch: Batch) -> Tensor:
    """The weighted likelihood of one order: each document is selected from itself and all after it."""
    order = batch.by_tier
    if batch.generator is not None:
        shifts = torch.rand(
            batch.n_documents, dtype=torch.float64, generator=batch.generator, device=batch.generator.device
        )
        order = (batch.groups + shifts.to(batch.device)).argsort()
    return _select_from(scores.index_select(0, order), weights, batch.place_ladder)


def ranknet(scores: Tensor, batch: Batch, *, sigma: float = 1.0) -> Tensor:
    """RankNet (Burges et al., 2005): logistic loss over the pairs of documents with different ratings, their mean.

    L = mean over r(d) > r(d') of ln(1 + e^(-sigma (f(d) - f(d'))))
    """
    _check(scores, batch, sigma=sigma)
    n_pairs = _sums(_n_lower(batch), batch.query, batch.n_queries).clamp(min=1)
    return _pairwise(scores, batch, sigma, lambda higher, lower: 1.0) / n_pairs


def lambdarank(scores: Tensor, batch: Batch, *, sigma: float = 1.0) -> Tensor:
    """LambdaRank (Burges et al., 2006) as a loss: each pair weighs what swapping it changes NDCG by.

        L = sum over r(d) > r(d') of |G(d) - G(d')| / IDCG * |D(d) - D(d')| * ln(1 + e^(-sigma (f(d) - f(d'))))

    with D = 1 / log2(1 + rank) by the scores, taken as given when differentiating.
    """
    return lambdaloss(scores, batch, sigma=sigma, mu=0.0)


def lambdaloss(scores: Tensor, batch: Batch, *, sigma: float = 1.0, mu: float = 10.0) -> Tensor:
    """NDCG-Loss2++ of LambdaLoss (Wang et al., 2018).

        L = sum over r(d) > r(d') of |G(d) - G(d')| / IDCG * (rho + mu delta) * ln(1 + e^(-sigma (f(d) - f(d'))))
        rho = |D_i - D_j|,  delta = D_|i-j| - D_|i-j|+1,  D_i = 1 / log2(1 + i)

    with i and j the ranks of d and d' by the scores, taken as given when differentiating. The paper has log2 for ln: a
    factor. mu = 0 is ``lambdarank``.
    """
    _check(scores, batch, sigma=sigma)
    mu = as_number("mu", mu, 0, 1e9)
    gains = batch.relative_gains[batch.by_tier]
    ranks = torch.empty_like(batch.places).scatter_(0, batch.order_by(scores.detach()), batch.places)[batch.by_tier]
    discounts = batch.discounts[ranks]
    # delta of ranks 1, 2, ... apart; 0 apart there are none
    deltas = functional.pad(-mu * batch.discounts.double().diff().to(scores.dtype), (1, 0))

    def weigh(higher: Tensor, lower: Tensor) -> Tensor:
        weights = (discounts[higher] - discounts[lower]).abs_()
        if mu:
            weights += deltas[(ranks[higher] - ranks[lower]).abs_()]
        return weights.mul_((gains[higher] - gains[lower]).abs_())

    return _pairwise(scores, batch, sigma, weigh)


def _n_lower(batch: Batch) -> Tensor:
    """How many documents of its query are rated lower than each document, in the order by tier."""
    return batch.offsets[1:][batch.query] - batch.group_edges[1:][batch.groups[batch.by_tier]]


def _pairwise(scores: Tensor, batch: Batch, sigma: float, weigh: Callable[[Tensor, Tensor], Tensor | float]) -> Tensor:
    """Sum over r(d) > r(d') of w ln(1 + e^(-sigma (f(d) - f(d')))); w is asked for by places in the order by tier."""
    with torch.no_grad():
        ordered = scores[batch.by_tier]
        totals, pulls = torch.zeros_like(ordered), torch.zeros_like(ordered)
        counts = _n_lower(batch)
        begins = batch.offsets[1:][batch.query] - counts
        for span in _blocks(counts):
            row, lower = _partners(begins[span], counts[span])
            higher = row + span.start
            weights = weigh(higher, lower)
            margins = (ordered[lower] - ordered[higher]).mul_(sigma)
            totals[span] = _sums(_softplus(margins) * weights, row, span.stop - span.start)
            pull = margins.sigmoid_().mul_(weights).mul_(sigma)
            pulls.index_add_(0, lower, pull)
            pulls[span] -= _sums(pull, row, span.stop - span.start)
        values = _sums(totals.double(), batch.query, batch.n_queries).to(scores.dtype)
        gradient = torch.empty_like(pulls).scatter_(0, batch.by_tier, pulls)
    return _with_gradient(scores, values, gradient, batch)


def approxndcg(scores: Tensor, batch: Batch, *, temperature: float = 0.1) -> Tensor:
    """ApproxNDCG (Qin et al., 2010): 1 - NDCG with smooth ranks.

    L = 1 - 1 / IDCG * sum over d of G(d) / log2(1 + rank(d))
    rank(d) = 1 + sum over d' != d of 1 / (1 + e^((f(d) - f(d')) / temperature))
    """
    _check(scores, batch, temperature=temperature)
    with torch.no_grad():
        rows = (batch.relative_gains > 0).nonzero().squeeze(1)
        query = batch.query[rows]
        reached, gradient = torch.zeros(len(rows), dtype=scores.dtype, device=batch.device), torch.zeros_like(scores)
        for span in _blocks(batch.lengths[query]):
            gains, upper = batch.relative_gains[rows[span]], scores[rows[span]]
            row, other = _partners(batch.offsets[query[span]], batch.lengths[query[span]])
            behind = (scores[other] - upper[row]).div_(temperature).sigmoid_()
            after = 1.5 + _sums(behind, row, len(upper))  # 1 + rank; a document is half behind itself
            reached[span] = gains / after.log2()
            slopes = gains / (after * after.log2().square() * (math.log(2) * temperature))
            pull = behind.mul_(1 - behind).mul_(slopes[row])
            gradient.index_add_(0, other, pull)
            gradient.index_add_(0, rows[span], -_sums(pull, row, len(upper)))
        has_gain = torch.zeros_like(batch.is_ranked).index_fill_(0, query, 1)
        values = has_gain - _sums(reached, query, batch.n_queries)
    return _with_gradient(scores, values, gradient, batch)


def neuralndcg(scores: Tensor, batch: Batch, *, temperature: float = 1.0, max_scalings: int = 50) -> Tensor:
    """NeuralNDCG (Pobrotyn and Bialobrzeski, 2021): 1 - NDCG of documents sorted by a smooth permutation P.

        L = 1 - 1 / IDCG * sum over i of (sum over j of P_ij G(d_j)) / log2(1 + i)

    Row i of P is at first NeuralSort's softmax over j of ((n + 1 - 2 i) f_j - sum over k of |f_j - f_k|) / temperature.
    Sinkhorn scaling then makes its columns and its rows sum to 1 in turns, at most ``max_scalings`` times, or until the
    columns stay within 1e-6 of it.

    The one loss that needs a matrix for each query: queries are gone through one by one, in double precision (exponents
    are differences of long sums), and may have up to 4,096 documents.
    """
    _check(scores, batch, temperature=temperature)
    max_scalings = as_whole("max_scalings", max_scalings, least=0)
    longest = int(batch.lengths.max())
    if longest > _LONGEST_MATRIX:
        raise DataError(
            f"neuralndcg: expected queries of up to {_LONGEST_MATRIX:,} documents, whose matrices fit into memory,"
            f" got one of {longest:,}; take approxndcg, or leave out documents that cannot come first"
        )
    gains, discounts = batch.relative_gains.double(), batch.discounts.double()
    reached = [
        _neural_ndcg(scores[start:end].double(), gains[start:end], discounts[: end - start], temperature, max_scalings)
        for start, end in pairwise(batch.offsets.tolist())
    ]
    has_gain = _sums(gains, batch.query, batch.n_queries) > 0
    return (has_gain.double() - torch.stack(reached)).to(scores.dtype)


def _neural_ndcg(scores: Tensor, gains: Tensor, discounts: Tensor, temperature: float, max_scalings: int) -> Tensor:
    """The sum over ranks i and documents j of P_ij G_j / log2(1 + i) in one query."""
    n = len(scores)
    factors = torch.arange(n - 1, -n, -2, dtype=scores.dtype, device=scores.device)  # n + 1 - 2 i
    distances = (scores[:, None] - scores).abs().sum(1)
    centred = scores - scores.detach().mean()
    permutation = torch.softmax((torch.outer(factors, centred) - distances) / temperature, 1)
    # The scaled matrix is diag(rows) permutation diag(columns).
    rows, columns = torch.ones_like(scores), torch.ones_like(scores)
    for _ in range(max_scalings):
        sums = rows @ permutation
        if (columns * sums - 1).detach().abs().max() < _EVEN:
            break
        columns = 1 / sums
        rows = 1 / (permutation @ columns)
    return (discounts * rows) @ permutation @ (columns * gains)


class _KnownGradient(torch.autograd.Function):
    """Values, one per query, whose derivatives have been computed with them."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, values: Tensor, gradient: Tensor, query: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, query)
        return values

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise ParameterError(
                "this loss cannot be differentiated twice: expected backward() without create_graph, or a loss that can"
                " be, such as urank, listnet, listmle, plistmle, softmax or neuralndcg"
            )
        gradient, query = ctx.saved_tensors
        return gradient * outer[0].index_select(0, query), None, None, None


def _with_gradient(scores: Tensor, values: Tensor, gradient: Tensor, batch: Batch) -> Tensor:
    known: Tensor = _KnownGradient.apply(scores, values, gradient, batch.query)  # type: ignore[no-untyped-call]
    return known


def _check(scores: Tensor, batch: Batch, **positive: float) -> None:
    """Whether the scores are those of the batch, and the settings positive numbers."""
    if scores.shape != (batch.n_documents,) or scores.dtype != batch.dtype:
        raise DataError(
            f"scores: expected {batch.n_documents} of {batch.dtype}, one per document of the batch,"
            f" got shape {tuple(scores.shape)} of {scores.dtype}"
        )
    for name, value in positive.items():
        as_positive(name, value)


def _edges(counts: Tensor) -> Tensor:
    """0 and the running sums of counts."""
    return functional.pad(counts.cumsum(0), (1, 0))


def _sums(values: Tensor, index: Tensor, n: int) -> Tensor:
    """The sum of the values of each index below n."""
    return values.new_zeros(n).scatter_add(0, index, values)


def _highest(values: Tensor, index: Tensor, n: int) -> Tensor:
    """The highest value of each index below n, each of which has one."""
    return values.new_full((n,), -math.inf).scatter_reduce_(0, index, values, "amax")


def _log_sums(scores: Tensor, index: Tensor, n: int) -> Tensor:
    """The logarithm of the sum of e^f of each index below n, each of which has a score."""
    tops = _highest(scores.detach(), index, n)
    # In place, because long lists take longer to find fresh memory for than to compute.
    powers = tops.index_select(0, index).neg_().add_(scores).exp_()
    return _sums(powers, index, n).log().add_(tops)


def _softplus(values: Tensor) -> Tensor:
    """ln(1 + e^x)"""
    return functional.softplus(values, threshold=_LINEAR_FROM)


def _blocks(counts: Tensor) -> Iterator[slice]:
    """Spans of rows with so many pairs together as are looked at in one go; a row with more is a span of its own."""
    ends = counts.cumsum(0).cpu().numpy()
    start, done = 0, 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, done + _PAIRS, side="right")))
        yield slice(start, stop)
        start, done = stop, int(ends[stop - 1])


def _partners(begins: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs of each row i with ``begins[i]``, ``begins[i] + 1``, ...: ``counts[i]`` of them."""
    row = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    shifts = begins - counts.cumsum(0) + counts
    return row, torch.arange(len(row), device=counts.device) + shifts.index_select(0, row)


LOSSES: dict[str, Loss] = {
    "approxndcg": approxndcg,
    "lambdaloss": lambdaloss,
    "lambdarank": lambdarank,
    "listmle": listmle,
    "listnet": listnet,
    "neuralndcg": neuralndcg,
    "plistmle": plistmle,
    "ranknet": ranknet,
    "softmax": softmax,
    "urank": urank,
    "windowed_urank": windowed_urank,
}
