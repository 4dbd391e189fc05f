"""Batch: whole queries as losses and networks know them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tierank.checks import as_offsets, as_ratings
from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.losses.ladder import Ladder
from tierank.losses.segments import edges_of
from tierank.relevance import Gain, as_gain, discounts_to, find_tiers, gains_of, ideal_dcg
from tierank.settings import as_positive
from tierank.types import Floats

# The highest rating r for which 2^r - 1 is taken as it is: sums of such gains are still far from the end of float32.
_HIGHEST_RATING = 64.0


class Batch:
    """Whole queries, one after the other: query i owns the rows ``offsets[i]:offsets[i+1]`` of scores and features.

    ==================  ============================================================================================
    ``offsets``         where queries begin; one more than there are queries
    ``ratings``         one per document, or None: networks score such a batch, losses need ratings
    ``gain``            ``"exp2"``: G = 2^r - 1; ``"linear"``: G = r; a list with the gains of the ratings 0, 1,
                        2, ...; a mapping from ratings to gains; or a function that turns ratings into gains
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
        edges = as_offsets(offsets)
        self.gain, self.generator, self.dtype, self.device = as_gain(gain), generator, dtype, torch.device(device)
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
        taken.offsets = edges_of(self.lengths[taken._queries])
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
        tiers, _ = find_tiers(self.ratings.cpu().numpy(), self.offsets.cpu().numpy())
        return torch.from_numpy(tiers.astype(np.int64)).to(self.device)

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
        return torch.tensor(self._gains, dtype=self.dtype, device=self.device)

    @cached_property
    def _gains(self) -> Floats:
        """The gains as float64; 2^r - 1 in a unit of the query if its highest rating is beyond float32."""
        ratings, offsets = self.ratings.cpu().numpy(), self.offsets.cpu().numpy()
        units = np.maximum(np.maximum.reduceat(ratings, offsets[:-1]) - _HIGHEST_RATING, 0.0)
        return gains_of(ratings, self.gain, np.repeat(units, np.diff(offsets)))

    @cached_property
    def relative_gains(self) -> Tensor:
        """G / IDCG, with IDCG the sum of G / log2(1 + rank) in the best order; 0 in queries with no order to learn."""
        if self._whole is not None:
            return self._whole.relative_gains.index_select(0, self.rows)
        ideal = torch.from_numpy(ideal_dcg(self._gains, self.offsets.cpu().numpy())).to(self.device) / self.is_ranked
        gains = torch.from_numpy(self._gains).to(self.device)
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
        return torch.tensor(discounts_to(int(self.lengths.max()) + 1), dtype=self.dtype, device=self.device)

    @cached_property
    def first_groups(self) -> Tensor:
        """Where the tiers of each query begin, when the tiers of all queries are numbered through."""
        return edges_of(self.n_tiers)

    @cached_property
    def groups(self) -> Tensor:
        """The number of each document's tier among the tiers of all queries."""
        return self.first_groups.index_select(0, self.query) + self.tiers

    @cached_property
    def group_edges(self) -> Tensor:
        """Group g owns ``by_tier[group_edges[g]:group_edges[g+1]]``."""
        return edges_of(torch.bincount(self.groups, minlength=int(self.first_groups[-1])))

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
        first_steps = edges_of(self.n_tiers - 1)
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


def check(scores: Tensor, batch: Batch, **positive: float) -> None:
    """Whether the scores are those of the batch, and the settings positive numbers."""
    if scores.shape != (batch.n_documents,) or scores.dtype != batch.dtype:
        raise DataError(
            f"scores: expected {batch.n_documents} of {batch.dtype}, one per document of the batch,"
            f" got shape {tuple(scores.shape)} of {scores.dtype}"
        )
    for name, value in positive.items():
        as_positive(name, value)
