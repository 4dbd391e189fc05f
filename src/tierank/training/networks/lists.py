"""QueryLists: the queries of a data set as a network sees them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.losses import Batch
from tierank.memory import release_pages
from tierank.relevance import Gain
from tierank.team import Team
from tierank.training.model import Resources
from tierank.training.networks.compiled import CompiledModel, Kept, terms_of
from tierank.training.networks.device import as_device
from tierank.training.networks.inputs import Inputs
from tierank.training.numbering import Numbering
from tierank.training.order import canonical_rows, join_contents, judged_rows, spans_of
from tierank.types import Floats, Rows

# The most documents that are scored at a time, and the most inputs of these: as many as fit into a cache.
_CHUNK, _NUMBERS = 1 << 14, 1 << 20
# Bytes of features after which the pages of a mapped matrix are released, and the most bytes of inputs to keep.
_KEPT_BYTES = 1 << 27
# The most documents of data whose queries are kept as batches of one query.
_KEPT_DOCUMENTS = 1 << 18
# What helps if features are too large for a network.
TO_SCALE = "clip it, or train with feature_transform='standard', which scales and clips"


class QueryLists:
    """The queries of this process as a network sees them: in canonical order, transformed on demand.

    It knows nothing about the queries of other processes except their numbers, and those only if ``teaching`` is used.
    """

    def __init__(
        self,
        data: RankingDataset,
        inputs: Inputs,
        has_queries: bool,
        gain: Gain,
        resources: Resources,
        team: Team | None = None,
        *,
        judged_only: bool = False,
    ) -> None:
        self.data, self.inputs, self.has_queries = data, inputs, has_queries
        self.device = as_device(resources.device)
        self.team = team or Team()
        self._seen = 0
        self.keeps_inputs = False
        self._kept: Tensor | None = None
        self._numbers: Kept | None = None
        self._n_jobs = resources.n_jobs
        self._singles: dict[int, Batch] = {}
        self._found = canonical_rows(data, resources.n_jobs, rated=False)
        self.order, offsets = self._listed = self._found.rows, self._found.offsets  # whole lists
        if judged_only:
            self.order, offsets = judged_rows(data, self.order, offsets)
        is_rated = data.is_rated and (judged_only or not data.n_unjudged)
        ratings = data.ratings[self.order] if is_rated else None
        weights = None if data.propensity is None else 1 / data.propensity[self.order]
        positions = None if data.position is None else data.position[self.order]
        counts = None if data.row_weight is None else data.row_weight[self.order]
        of_rows: dict[str, Any] = {"weights": weights, "row_weight": counts, "positions": positions}
        self.whole = Batch(offsets, ratings, gain=gain, device=self.device, **of_rows)
        by_id = self._found.queries
        self.query_ids = data.query_ids[by_id]
        self.weights = (
            None if data.query_weight is None else torch.tensor(data.query_weight[by_id], dtype=torch.float32)
        )

    @cached_property
    def content(self) -> str:
        """A digest of the data of all processes."""
        return join_contents(self.team.all_gather(self._found.content))

    @cached_property
    def _numbering(self) -> Numbering:
        return Numbering(self.data, self._found, self.team)

    @cached_property
    def _own(self) -> Tensor:
        return torch.from_numpy(self._numbering.own())

    @cached_property
    def given_order(self) -> Rows:
        """The numbers of the queries of all processes in the callers' order, one process after the other."""
        own = self._numbering.places[np.argsort(self._found.queries)]
        return self.team.gather_rows(own[:, None])[:, 0]

    def teaching(self, query_order: str) -> Tensor:
        """The queries with an order to learn and a weight above 0, in canonical order or in the caller's.

        They are those of all processes, by number: see ``Numbering``.
        """
        teaches = self.whole.n_tiers > 1
        if self.weights is not None:
            teaches &= self.weights > 0
        of_all = self._numbering.gather(teaches.cpu().numpy().astype(np.uint8)) > 0
        if query_order == "given":
            return torch.from_numpy(self.given_order[of_all[self.given_order]])
        return torch.from_numpy(np.flatnonzero(of_all))

    def own(self, queries: Tensor) -> Tensor:
        """Those of the given queries of all processes that this process has, by their index here, in the same order."""
        if self.team.size == 1:
            return queries
        found = self._own[queries]
        return found[found >= 0]

    def batch(self, queries: Tensor) -> tuple[Tensor, Batch]:
        """The features of some queries, and these queries as a ``Batch`` for losses."""
        batch = self._single(queries) if len(queries) == 1 else self.whole.take(queries)
        if self.keeps_inputs:
            return self.kept_inputs().index_select(0, batch.rows), batch
        return self._inputs(queries, batch), batch

    def _inputs(self, queries: Tensor, batch: Batch) -> Tensor:
        numbers, offsets = batch.rows.cpu().numpy(), batch.offsets.cpu().numpy()
        is_partial = len(self.order) < len(self._listed[0])
        if is_partial:
            numbers, offsets = spans_of(self._listed[1], queries.cpu().numpy())
        listed = self._listed[0][numbers]
        rows = self.data.features[listed]
        self._let_go(rows.nbytes)
        values = self.inputs.apply(rows, offsets if self.has_queries else None)
        values = values[self.data.is_judged[listed]] if is_partial else values
        return torch.from_numpy(values).to(self.device)

    def keep_inputs(self) -> Self:
        """Transform all features once for all epochs, if they take little memory."""
        self.keeps_inputs = 4 * len(self.order) * self.inputs.n_columns <= _KEPT_BYTES
        self._numbers = {} if self.keeps_inputs else None
        return self

    def kept_inputs(self) -> Tensor:
        """The inputs of all documents, if they are kept."""
        if self._kept is None:
            self._kept = self._all_inputs()
        return self._kept

    def _all_inputs(self) -> Tensor:
        inputs = torch.empty(len(self.order), self.inputs.n_columns, dtype=torch.float32, device=self.device)
        for queries in self._chunks():
            batch = self.whole.take(queries)
            inputs[batch.rows] = self._inputs(queries, batch)
        return inputs

    def _single(self, queries: Tensor) -> Batch:
        """The batch of one query, which is the same in every epoch except for random numbers."""
        if self.data.n_documents > _KEPT_DOCUMENTS:
            return self.whole.take(queries)
        query = int(queries)
        if query not in self._singles:
            self._singles[query] = self.whole.take(queries)
        batch = self._singles[query]
        batch.generator = self.whole.generator
        return batch

    def scores(self, network: nn.Module) -> Floats:
        """A score per document, in the order of the data set, bit-identical to the predictions of a model."""
        scores = np.zeros(self.data.n_documents)
        for factor, one in terms_of(network):
            compiled = CompiledModel.of([one], self.inputs) if self.device.type == "cpu" else None
            if compiled is None:
                scores += factor * self.torch_scores(one)
            else:
                found = compiled.scores(self.data, self.has_queries, self._n_jobs, self._numbers)[0]
                scores[self.order] += factor * found[self.order]
        return scores

    def torch_scores(self, network: nn.Module) -> Floats:
        """The scores computed by torch, which differ by rounding."""
        network.eval()
        scores = np.zeros(self.data.n_documents)
        with torch.no_grad():
            for queries in self._chunks():
                features, batch = self.batch(queries)
                found = _as_twins(network(features, batch), features, batch)
                scores[self.order[batch.rows.cpu().numpy()]] = found.double().cpu().numpy()
        return scores

    def _let_go(self, n_bytes: int) -> None:
        """Release the pages of a mapped matrix that were read: memory does not grow with the data."""
        self._seen += n_bytes
        if self._seen > _KEPT_BYTES:
            release_pages(self.data.features)
            self._seen = 0

    def _chunks(self) -> Iterator[Tensor]:
        ends = self.whole.offsets[1:]
        size = min(_CHUNK, _NUMBERS // max(1, self.inputs.width))
        start = 0
        while start < len(ends):
            limit = int(self.whole.offsets[start]) + size
            end = max(start + 1, int(torch.searchsorted(ends, limit, right=True)))
            yield torch.arange(start, end)
            start = end


def _as_twins(scores: Tensor, features: Tensor, batch: Batch) -> Tensor:
    """The scores, where documents of a query with the same features all get the score of the first of them.

    They are neighbours in canonical order, but which of them comes first depends on the order of the caller's rows.
    Matrix products round the last rows of a batch differently on some processors, and list networks see different
    neighbours.
    """
    is_twin = (features[1:, 0] == features[:-1, 0]) & (batch.query[1:] == batch.query[:-1])
    places = torch.nonzero(is_twin).squeeze(1) + 1
    places = places[(features[places] == features[places - 1]).all(dim=1)]
    if not len(places):
        return scores
    first = torch.arange(len(scores), device=scores.device)
    first[places] = 0  # the running maximum is the index of the first twin, as these indices rise
    return scores[first.cummax(0).values]


def unscored(data: RankingDataset, scores: Floats) -> DataError:
    """The error for scores of a network that are not finite: its sums overflow where a feature is too large."""
    rows = np.flatnonzero(~np.isfinite(scores))[:1]
    query = data.query_ids[np.searchsorted(data.offsets, rows[0], "right") - 1]
    return DataError(
        argument="X",
        expected="features for which the scores of the network are finite",
        got=f"{largest_feature(data, rows)[1]} in query {query}",
        fix=TO_SCALE,
    )


def largest_feature(data: RankingDataset, rows: Rows) -> tuple[float, str]:
    """The size of the largest feature in some rows, and a description of it for messages."""
    sizes = np.nan_to_num(np.abs(data.features[rows]), nan=-1.0)
    place, column = np.unravel_index(int(sizes.argmax()), sizes.shape)
    name = f"column {column}" if data.feature_names is None else data.feature_names[column]
    return float(sizes[place, column]), f"{data.features[rows[place], column]:g} in {name}"
