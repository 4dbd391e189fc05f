"""Features for trees: each feature again, scaled and ranked within the query."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tierank.dataset import RankingDataset
from tierank.kernels import in_threads, n_threads, scaling
from tierank.kinds import Category
from tierank.memory import allocate, release_pages

# About how many documents are copied at a time.
_DOCUMENTS_AT_ONCE = 1 << 14


def add_query_copies(data: RankingDataset, n_jobs: int | None = None) -> RankingDataset:
    """The data set with two more features for each feature: its range-scaled value and its rank within the query.

    The first is (x - lowest) / (highest - lowest), the second the share of the other documents that rank below x, ties
    counting a half; both over the documents of the query whose value is known. Missing values stay missing. The copies
    of categories are all missing, as ranks of levels mean nothing. If the result would take more than a quarter of the
    memory, it is written to a temporary file and mapped.

    >>> data = RankingDataset([[2.0], [7.0], [4.0], [float("nan")], [4.0]], qid=list("abaaa"))
    >>> add_query_copies(data).features.round(2).tolist()
    [[2.0, 0.0, 0.0], [4.0, 1.0, 0.75], [nan, nan, nan], [4.0, 1.0, 0.75], [7.0, 0.0, 0.0]]
    """
    out = allocate(data.n_documents, 3 * data.n_features, beside=data.features)

    def copy(first: int, last: int) -> None:
        scaling.copy_in_queries(data.features, data.offsets, first, last, out)
        rows = slice(data.offsets[first], data.offsets[last])
        release_pages(data.features[rows])
        release_pages(out[rows])

    in_threads(copy, pairwise(_query_cuts(data, n_threads(n_jobs))), n_jobs)
    for place, name in enumerate(data.feature_names or ()):
        if isinstance(data.kinds.get(name), Category):
            out[:, [data.n_features + place, 2 * data.n_features + place]] = np.nan
    names = data.feature_names
    copies = None if names is None else (*names, *(f"{n} in query" for n in names), *(f"rank of {n}" for n in names))
    return data.with_features(out, copies)


def _query_cuts(data: RankingDataset, n_parts: int) -> list[int]:
    """Query boundaries that cut the rows into at least this many parts of a few thousand documents each."""
    n_parts = max(n_parts, data.n_documents // _DOCUMENTS_AT_ONCE)
    cuts: list[int] = np.unique(np.linspace(0, data.n_queries, n_parts + 1).astype(int)).tolist()
    return cuts
