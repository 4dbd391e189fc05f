"""The sorted values of features, in a sample of the documents."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tierank.memory import release_pages
from tierank.team import Team

# The most documents that quantiles are computed from, values sorted at a time, and documents fetched at a time: the
# whole matrix is never copied.
_SAMPLE = 1 << 20
_SORTED = 1 << 24
_FETCHED = 1 << 14


def sorted_columns(features: NDArray[np.float32], team: Team) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """For each column, its index and its sorted known values in a sample of all documents of a team."""
    counts = team.all_gather(len(features))
    n, start = min(sum(counts), _SAMPLE), sum(counts[: team.rank])
    rows = np.arange(n) * sum(counts) // max(1, n) - start
    here = rows[(rows >= 0) & (rows < len(features))]
    n_values = _SORTED if team.size == 1 else _SORTED // 8  # what is sent from process to process is copied
    at_once = max(1, n_values // max(1, n))
    for first in range(0, features.shape[1], at_once):
        sample = _sampled(features, here, slice(first, first + at_once))
        if team.size > 1:
            sample = np.ascontiguousarray(team.gather_rows(np.ascontiguousarray(sample.T)).T)
        sample.sort(axis=1)  # missing values last
        for column, values in enumerate(sample, start=first):
            yield column, values[: np.count_nonzero(values == values)]


def _sampled(features: NDArray[np.float32], rows: NDArray[np.int64], columns: slice) -> NDArray[np.float32]:
    """Some columns of these documents, one column after the other."""
    sample = np.empty((features[:1, columns].shape[1], len(rows)), np.float32)
    for start in range(0, len(rows), _FETCHED):
        some = rows[start : start + _FETCHED]
        sample[:, start : start + len(some)] = features[some, columns].T
        release_pages(features[some[0] : some[-1] + 1])
    return sample
