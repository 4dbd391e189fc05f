"""Batch: the whole queries that losses and networks work on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tierank.checks import as_offsets, as_places, as_positions, as_ratings, as_weights
from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.losses.ladder import Ladder
from tierank.losses.segments import edges_of, exact, log_of_nothing, sum_by
from tierank.relevance import (
    Gain,
    as_gain,
    discount_sums,
    discounts_to,
    find_tiers,
    gains_of,
    ideal_dcg,
    ideal_dcg_of_copies,
)
from tierank.settings import as_positive
from tierank.types import Floats

# The highest rating r for which 2^r - 1 is used directly: sums of such gains are far below the limit of float32.
_HIGHEST_RATING = 64.0
# The most copies of the documents of a query in losses where copies have ranks: some megabytes of discounts.
_MOST_PLACES = 1 << 20


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
        self._ratings = None if ratings is None else as_ratings(ratings, n)
        self._weights = None if weights is None else as_weights(weights, "weights", n)
        self._positions = None if positions is None else as_positions(positions, n)
        counts = None if row_weight is None else as_weights(row_weight, "row_weight", n)
        self._row_weight = None if counts is None or (counts == 1).all() else counts
        if self._ratings is not None:
            self._ratings = self._of_counted(self._ratings)

    _whole: Batch | None = None  # the batch that this one was taken from, and which of its queries
    _queries: Tensor

    @classmethod
    def of(cls, data: RankingDataset, **settings: Any) -> Batch:
        """A batch of all queries of a data set; settings as for the class."""
        return cls(data.offsets, data.ratings if data.is_rated else None, **settings)

    def take(self, queries: ArrayLike | Tensor) -> Batch:
        """The batch of these queries, in this order; its row i is row ``rows[i]`` of this batch."""
        taken = Batch.__new__(Batch)
        taken.gain, taken.generator, taken.dtype, taken.device = self.gain, self.generator, self.dtype, self.device
        taken._ratings, taken._whole = self._ratings, self
        taken._weights, taken._row_weight, taken._positions = self._weights, self._row_weight, self._positions
        if not isinstance(queries, Tensor):  # given by a caller; training passes tensors
            queries = as_places(queries, self.n_queries, "queries", "queries")
        taken._queries = torch.as_tensor(queries, dtype=torch.int64, device=self.device)
        if not len(taken._queries):
            raise DataError("expected at least one query to take, got none")
        taken.offsets = edges_of(self.lengths[taken._queries])
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
        rows = torch.arange(self.n_documents, device=self.device)
        if self._whole is None:
            return rows
        return rows + (self._whole.offsets[self._queries] - self.offsets[:-1]).index_select(0, self.query)

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

    @cached_property
    def by_length(self) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
        """The rows, shorter queries first; the inverse order; and (number of queries, length) for each length."""
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
    def weights(self) -> Tensor | None:
        """The factor of the gain of each document; None if all are 1."""
        if self._weights is None:
            return None
        if self._whole is not None and self._whole.weights is not None:
            return self._whole.weights.index_select(0, self.rows)
        return torch.tensor(self._weights, dtype=self.dtype, device=self.device)

    @cached_property
    def positions(self) -> Tensor | None:
        """Where each document was shown, from 1."""
        if self._positions is None:
            return None
        if self._whole is not None and self._whole.positions is not None:
            return self._whole.positions.index_select(0, self.rows)
        return torch.tensor(self._positions, device=self.device)

    @cached_property
    def row_weight(self) -> Tensor | None:
        """The number of times each document counts; None if all are 1."""
        if self._row_weight is None:
            return None
        if self._whole is not None and self._whole.row_weight is not None:
            return self._whole.row_weight.index_select(0, self.rows)
        return torch.tensor(self._row_weight, dtype=self.dtype, device=self.device)

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
        counts = torch.ones(self.n_documents) if self.row_weight is None else self.row_weight.double()
        if not torch.equal(counts, counts.round()):
            got = float(counts[counts != counts.round()][0])
            raise ParameterError(
                argument="row_weight", expected=f"integers with {loss}, which ranks whole documents", got=f"{got:g}"
            )
        totals = sum_by(counts, self.query, self.n_queries)
        _check_places(float(totals.max()))
        counts = torch.where((totals == 0)[self.query], 1, counts.long())
        rows = torch.arange(self.n_documents, device=self.device).repeat_interleave(counts)
        offsets = edges_of(torch.bincount(self.query[rows], minlength=self.n_queries))
        ratings, weights = (None if one is None else one[rows].cpu().numpy() for one in (self.ratings, self.weights))
        settings: dict[str, Any] = {"gain": self.gain, "generator": self.generator, "dtype": self.dtype}
        return Batch(offsets.cpu().numpy(), ratings, weights=weights, device=self.device, **settings), rows

    @cached_property
    def tiers(self) -> Tensor:
        """Index of each rating among the unique ratings of its query, 0 = highest; with weights, of gain times weight.

        A click at a rarely examined position is worth more.
        """
        if self._whole is not None:
            return self._whole.tiers.index_select(0, self.rows)
        values = self.ratings.cpu().numpy() if self._weights is None else self._gains * self._weights
        tiers, _ = find_tiers(self._of_counted(values), self.offsets.cpu().numpy())
        return torch.from_numpy(tiers.astype(np.int64)).to(self.device)

    @cached_property
    def n_tiers(self) -> Tensor:
        """Number of unique ratings of each query."""
        if self._whole is not None:
            return self._whole.n_tiers.index_select(0, self._queries)
        return torch.ones_like(self.lengths).scatter_reduce_(0, self.query, self.tiers + 1, "amax")

    @cached_property
    def n_ratings(self) -> Tensor:
        """Number of unique ratings of each query, regardless of weights."""
        if self._weights is None:
            return self.n_tiers
        if self._whole is not None:
            return self._whole.n_ratings.index_select(0, self._queries)
        return torch.from_numpy(find_tiers(self.ratings.cpu().numpy(), self.offsets.cpu().numpy())[1]).to(self.device)

    @cached_property
    def is_ranked(self) -> Tensor:
        """1 for each query with documents of different ratings, 0 for the others."""
        return (self.n_tiers > 1).to(self.dtype)

    @cached_property
    def gains(self) -> Tensor:
        """The gain G of each document."""
        if self._whole is not None:
            return self._whole.gains.index_select(0, self.rows)
        return torch.tensor(self._gains, dtype=self.dtype, device=self.device)

    @cached_property
    def _gains(self) -> Floats:
        """The gains as float64; 2^r - 1 in a unit of the query if its highest rating is beyond float32."""
        ratings, offsets = self.ratings.cpu().numpy(), self.offsets.cpu().numpy()
        units = np.maximum(np.maximum.reduceat(ratings, offsets[:-1]) - _HIGHEST_RATING, 0.0)
        return gains_of(ratings, self.gain, np.repeat(units, np.diff(offsets)))

    @cached_property
    def relative_gains(self) -> Tensor:
        """G / IDCG, with IDCG the sum of G / log2(1 + rank) in the best order; 0 in queries with no order to learn.

        With row weights the copies of a document take places in it.
        """
        if self._whole is not None:
            return self._whole.relative_gains.index_select(0, self.rows)
        ideal = torch.from_numpy(self._ideal_dcg()).to(self.device) / self.is_ranked
        gains = torch.from_numpy(self._gains).to(self.device)
        return torch.where(ideal > 0, 1 / ideal, 0.0)[self.query].mul(gains).to(self.dtype)

    def _ideal_dcg(self) -> Floats:
        offsets = self.offsets.cpu().numpy()
        if self._row_weight is None:
            return ideal_dcg(self._gains, offsets)
        self._most_places()
        return ideal_dcg_of_copies(self._gains, self._row_weight, offsets)

    def _most_places(self) -> int:
        """The most ranks that the copies of the documents of a query take, if they can be counted."""
        most = float(np.add.reduceat(np.asarray(self._row_weight), self.offsets[:-1].cpu().numpy()).max())
        _check_places(most)
        return int(np.ceil(most))

    @cached_property
    def discount_sums(self) -> Tensor:
        """0, and the sums of the discounts of the first 1, 2, ... places, for all copies of the longest query."""
        if self._whole is not None:
            return self._whole.discount_sums
        return exact(torch.from_numpy(discount_sums(self._most_places() + 2)).to(self.device))

    @cached_property
    def urank_weights(self) -> Tensor:
        """G / (|R| - 1) for each document, times its weight and its row weight; 0 in queries with one rating."""
        if self._whole is not None:
            return self._whole.urank_weights.index_select(0, self.rows)
        return (
            self.counted(self.weighted(self.gains)) * (self.is_ranked / (self.n_ratings - 1).clamp(min=1))[self.query]
        )

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
    def tier_ladder_weights(self) -> Tensor:
        """The uRank weights of the documents that the ladder selects."""
        return self.urank_weights.index_select(0, self.tier_ladder.rows)

    @cached_property
    def place_ladder(self) -> Ladder:
        """The ladder with each document on its own rung, in the order of the rows."""
        return Ladder(torch.arange(self.n_documents, device=self.device), self.offsets)

    @cached_property
    def n_counted(self) -> Tensor:
        """Number of documents of each query with a weight above 0."""
        if self.row_weight is None:
            return self.lengths
        return sum_by((self.row_weight > 0).long(), self.query, self.n_queries)

    @cached_property
    def place_weights(self) -> Tensor:
        """(2^(n - i) - 1) / (2^(n - 1) - 1) for the i-th document of each query; 0 for the last one.

        n is the number of documents that count.
        """
        last = torch.exp2(-(self.n_counted - 1).double()) * self.is_ranked
        scale = self.is_ranked / (1 - last)
        query = self.place_ladder.row_query
        powers = torch.exp2(-self.places[self.place_ladder.rows].double())
        return ((powers - last[query]) * scale[query]).clamp(min=0).to(self.dtype)

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
    def step_ladder(self) -> tuple[Ladder, Tensor, Tensor, Tensor | None]:
        """The ladder of all steps: on each step, the selected documents are above the rest.

        Also returns the weights of the selected documents, the query of each step, and ln of all row weights.
        """
        rows = torch.cat([step.rows for step in self.steps])
        t = torch.cat([torch.full_like(step.rows, i) for i, step in enumerate(self.steps)])
        first_steps = edges_of(self.n_tiers - 1)
        rungs = 2 * (first_steps[self.query[rows]] + t) + (self.tiers[rows] > t)
        ladder = Ladder(rungs, torch.arange(0, 2 * int(first_steps[-1]) + 1, 2, device=self.device))
        selected = rows[ladder.rows]
        queries = torch.arange(self.n_queries, device=self.device).repeat_interleave(self.n_tiers - 1)
        logs = None if self.log_row_weight is None else self.log_row_weight[rows]
        return ladder, self.urank_weights[selected], queries, logs

    @cached_property
    def step_batch(self) -> tuple[Batch, Tensor, Tensor, Tensor]:
        """Each step of each query as a query of two ratings: the selected above the rest.

        Also returns the index of each of its rows among the rows of all steps, the uRank weights of its documents, and
        the query of each step.
        """
        rows = torch.cat([step.rows for step in self.steps])
        t = torch.cat([torch.full_like(step.rows, i) for i, step in enumerate(self.steps)])
        steps = edges_of(self.n_tiers - 1)[self.query[rows]] + t
        order = steps.argsort(stable=True)
        offsets = edges_of(torch.bincount(steps))
        ratings = (self.tiers[rows] == t)[order].double()
        counts = None if self.row_weight is None else self.row_weight[rows[order]].cpu().numpy()
        where: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        batch = Batch(offsets.cpu().numpy(), ratings.cpu().numpy(), row_weight=counts, **where)
        queries = torch.arange(self.n_queries, device=self.device).repeat_interleave(self.n_tiers - 1)
        return batch, order, self.urank_weights[rows[order]], queries

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


def check(scores: Tensor, batch: Batch, **positive: float) -> None:
    """Check that the scores match the batch, and that the settings are positive numbers."""
    if scores.shape != (batch.n_documents,) or scores.dtype != batch.dtype:
        raise DataError(
            f"scores: expected {batch.n_documents} of {batch.dtype}, one per document of the batch,"
            f" got shape {tuple(scores.shape)} of {scores.dtype}"
        )
    for name, value in positive.items():
        as_positive(name, value)


def _check_places(most: float) -> None:
    """Refuse weights with which the copies of a query take too much memory."""
    if most > _MOST_PLACES:
        raise ParameterError(
            argument="row_weight",
            expected=f"a sum of up to {_MOST_PLACES:,} in each query, with a loss in which copies take places",
            got=f"{most:g}",
            fix="divide all weights by a constant",
        )
