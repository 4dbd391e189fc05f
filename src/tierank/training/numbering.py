"""Numbering: the queries of all processes of a team in canonical order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.team import Team
from tierank.training.order import Order, held_values, row_width, sort_key, sort_queries
from tierank.types import Rows


class Numbering:
    """Numbers for the queries of all processes: 0, 1, ... in the canonical order that a single process would use.

    The queries of this process are indexed as in ``order``, its canonical order. Processes exchange three digests and a
    length for each query; and, temporarily, the content of queries with equal digests.

    Attributes
    ----------
    n_queries : int
        Number of queries of all processes.
    places : array of int64
        The number of each query of this process.
    """

    def __init__(self, data: RankingDataset, order: Order, team: Team) -> None:
        self.team, self.n_queries = team, data.n_queries
        self.places = np.arange(data.n_queries)
        self._of_all = self.places
        if team.size == 1:
            return
        counts = np.concatenate([[0], np.cumsum(team.all_gather(data.n_queries))])
        self.n_queries, first = int(counts[-1]), int(counts[team.rank])
        told = np.concatenate([order.digests.view(np.int64), np.diff(order.offsets)[None]])
        gathered = np.ascontiguousarray(team.gather_rows(np.ascontiguousarray(told.T)).T)
        digests, lengths = gathered[:3].view(np.uint64), gathered[3]
        n_more = int(data.query_weight is not None)

        def own_values(queries: Rows, need_features: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
            return [
                held_values(data, order.rows[order.offsets[q] : order.offsets[q + 1]], int(order.queries[q]), needs)
                for q, needs in zip((queries - first).tolist(), need_features.tolist(), strict=True)
                if 0 <= q < data.n_queries
            ]

        def keys_of(queries: Rows, need_features: NDArray[np.bool_]) -> list[bytes]:
            by_process = np.argsort(queries, kind="stable")
            held = own_values(queries[by_process], need_features[by_process])
            flat = team.gather_rows(np.concatenate([np.empty(0), *held])[:, None])[:, 0]
            widths = np.where(need_features, row_width(data), row_width(data, has_features=False))
            sizes = (lengths[queries] * widths + n_more)[by_process]
            keys = [sort_key(values) for values in np.split(flat, sizes.cumsum()[:-1])]
            return [keys[place] for place in np.argsort(by_process)]

        queries = sort_queries(digests, lengths * row_width(data), keys_of)
        self._of_all = np.empty(self.n_queries, np.int64)
        self._of_all[queries] = np.arange(self.n_queries)
        self.places = self._of_all[first : first + data.n_queries]

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values of all queries, by number; ``values`` are those of this process."""
        if self.team.size == 1:
            return values
        gathered = np.empty(self.n_queries, values.dtype)
        gathered[self._of_all] = self.team.gather_rows(values[:, None])[:, 0]
        return gathered

    def own(self) -> Rows:
        """For each number the query of this process that has it, or -1."""
        indices = np.full(self.n_queries, -1, np.int64)
        indices[self.places] = np.arange(len(self.places))
        return indices
