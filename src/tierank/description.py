"""What is in a data set: the columns of the paper's table of data sets, and what to know before training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tierank.dataset import RankingDataset
from tierank.inputs import chunks


@dataclass(frozen=True)
class Description:
    """What ``describe`` found; shares are between 0 and 1.

    The paper's columns are the first seven: ``lowest_share`` is LR (the share of documents that have the lowest rating
    of the data set), ``max_documents`` is MPQ (the longest query), ``lowest_share_per_query`` is ALRPQ (the mean over
    queries of the share of documents that have the lowest rating of their query).
    """

    n_queries: int
    n_documents: int
    n_features: int
    n_rating_levels: int
    lowest_share: float
    max_documents: int
    lowest_share_per_query: float
    documents_per_rating: dict[float, int]
    min_documents: int
    median_documents: float
    n_empty_queries: int
    n_single_rating_queries: int
    missing_share: float
    n_constant_features: int
    has_document_ids: bool

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        levels = {f"{rating:g}": n for rating, n in self.documents_per_rating.items()}
        return asdict(self) | {"documents_per_rating": levels}


def describe(data: RankingDataset) -> Description:
    """Count what is in a data set.

    >>> data = RankingDataset([[1.0], [2.0], [3.0], [3.0]], [0, 2, 0, 0], qid=[1, 1, 1, 2])
    >>> found = describe(data)
    >>> found.lowest_share, found.max_documents, round(found.lowest_share_per_query, 4), found.n_empty_queries
    (0.75, 3, 0.8333, 1)
    """
    ratings, starts, lengths = data.ratings, data.offsets[:-1], data.lengths
    lowest, highest = np.minimum.reduceat(ratings, starts), np.maximum.reduceat(ratings, starts)
    lowest_in_query = np.add.reduceat((ratings == np.repeat(lowest, lengths)).astype(np.int64), starts)
    levels, counts = np.unique(ratings, return_counts=True)
    missing_share, n_constant = _look_at_features(data)
    return Description(
        n_queries=data.n_queries,
        n_documents=data.n_documents,
        n_features=data.n_features,
        n_rating_levels=len(levels),
        lowest_share=float(counts[0] / data.n_documents),
        max_documents=int(lengths.max()),
        lowest_share_per_query=float((lowest_in_query / lengths).mean()),
        documents_per_rating=dict(zip(levels.tolist(), counts.tolist(), strict=True)),
        min_documents=int(lengths.min()),
        median_documents=float(np.median(lengths)),
        n_empty_queries=int((highest == 0).sum()),
        n_single_rating_queries=int((highest == lowest).sum()),
        missing_share=missing_share,
        n_constant_features=n_constant,
        has_document_ids=data.document_texts is not None,
    )


def _look_at_features(data: RankingDataset) -> tuple[float, int]:
    """The share of missing values, and how many features say the same of every document."""
    n_missing = 0
    low = np.full(data.n_features, np.inf, np.float32)
    high = -low
    some_missing = np.zeros(data.n_features, bool)
    for chunk in chunks(data.features):
        missing = np.isnan(chunk)
        n_missing += int(missing.sum())
        some_missing |= missing.any(axis=0)
        low = np.fmin(low, np.fmin.reduce(chunk, axis=0))
        high = np.fmax(high, np.fmax.reduce(chunk, axis=0))
    always_missing = np.isinf(low)
    constant = always_missing | ((low == high) & ~some_missing)
    return n_missing / data.features.size, int(constant.sum())
