"""Permutation importance: how much a metric drops if a feature is shuffled."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.metrics import Judge
from tierank.types import Floats

# Documents that are predicted at a time: each call of predict has a fixed cost.
_TOGETHER = 50_000


def losses_of_shuffles(
    data: RankingDataset,
    predict: Callable[[RankingDataset], Floats],
    judge: Judge,
    used: NDArray[np.bool_],
    n_repeats: int,
    seed: int,
) -> Floats:
    """How much the mean of a metric drops, for each feature and repeat; 0 for unused features."""

    def mean(scores: Floats) -> float:
        (values,) = judge(scores).values()
        return float(np.nanmean(values))

    losses = np.zeros((data.n_features, n_repeats))
    base, shuffles = mean(predict(data)), list(product(np.flatnonzero(used).tolist(), range(n_repeats)))
    n_copies = max(1, min(_TOGETHER // data.n_documents, len(shuffles)))
    copies = _repeat(data, n_copies)
    blocks = copies.features.reshape(n_copies, data.n_documents, data.n_features)
    for first in range(0, len(shuffles), n_copies):
        some = shuffles[first : first + n_copies]
        for block, (column, repeat) in zip(blocks, some, strict=False):
            order = np.random.default_rng([seed, column, repeat]).permutation(data.n_documents)
            block[:, column] = data.features[order, column]
        scores = predict(copies).reshape(n_copies, data.n_documents)
        for block, of_block, (column, repeat) in zip(blocks, scores, some, strict=False):
            losses[column, repeat] = base - mean(of_block)
            block[:, column] = data.features[:, column]
    return losses


def _repeat(data: RankingDataset, n: int) -> RankingDataset:
    """A data set that holds copies of all queries, one after the other."""
    starts = np.arange(n)[:, None] * data.n_documents + data.offsets[:-1]
    offsets = np.append(starts.ravel(), n * data.n_documents)
    return RankingDataset.from_parts(
        np.tile(data.features, (n, 1)), np.tile(data.ratings, n), offsets, np.arange(n * data.n_queries)
    )
