"""Transforms that shift and scale features: by range, or by mean and deviation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import scaling
from tierank.memory import chunks
from tierank.relevance import blocks_of
from tierank.team import Team
from tierank.transforms.base import Transform
from tierank.types import Floats

# Values of queries that are rescaled at a time.
_VALUES_AT_ONCE = 1 << 18


class Rescaling(Transform):
    """(x - center) scale, clipped to limits: base class of the transforms by range, or by mean and deviation."""

    ARRAYS = {"center": (np.float64, ()), "scale": (np.float64, ())}  # noqa: RUF012  (a ClassVar of Transform)
    center_: NDArray[Any]
    scale_: NDArray[Any]

    # Whether the logarithm is taken first, and whether center and scale are mean and deviation, or lowest and range.
    TAKES_LOGS: ClassVar[bool] = False
    STANDARDISES: ClassVar[bool] = True
    # None of n values lies more than sqrt(n - 1) deviations from their mean, so up to 10^8 documents that were fitted
    # on stay within these limits; a stray value in new data cannot become infinite in a network.
    LIMITS: ClassVar[tuple[float, float]] = (-1e4, 1e4)

    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The transformed features of whole queries, grouped as in a ``RankingDataset``; None: queries are unknown."""
        out = np.empty(features.shape, np.float32)
        if self.needs_queries and offsets is not None:
            for rows, bounds in blocks(offsets, features.shape[1]):
                values = self._prepared(features[rows])
                scaling.rescale(values, bounds, *self._scales(values, bounds), *self.LIMITS, out[rows])
            return out
        if self.TAKES_LOGS:
            scaling.take_logs(features, out)
            features = out
        scaling.rescale(features, all_of(features), self.center_[None], self.scale_[None], *self.LIMITS, out)
        return out

    def _scales(self, values: NDArray[np.float32], bounds: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Center and scale of each query and feature, by the values of the query."""
        shape = (len(bounds) - 1, values.shape[1])
        low, high = np.full(shape, np.inf, np.float32), np.full(shape, -np.inf, np.float32)
        scaling.find_ranges(values, bounds, low, high)
        center, scale = scaling.by_range(low, high)
        if not self.STANDARDISES:
            return center, scale
        moments = scaling.Moments(*np.zeros((3, *shape)))
        scaling.add_moments(values, bounds, center, scale, scaling.power_above(np.diff(bounds)), moments)
        return scaling.standardise(moments, center, scale)

    def learn(self, features: NDArray[np.float32]) -> None:
        """The range, mean and deviation of each feature."""
        self.learn_in_team(features, Team())

    def learn_in_team(self, features: NDArray[np.float32], team: Team) -> None:
        """The range, mean and deviation of each feature, bit-identical to those of one process: sums are exact."""
        n_features = features.shape[1]
        ranges = np.array([np.full(n_features, np.inf), np.full(n_features, -np.inf)], np.float32)
        for values in self._in_chunks(features):
            scaling.find_ranges(values, all_of(values), ranges[:1], ranges[1:])
        gathered = team.gather_rows(ranges.reshape(1, -1))
        low, high = gathered[:, :n_features].min(axis=0), gathered[:, n_features:].max(axis=0)
        center, scale = scaling.by_range(low[None], high[None])
        if self.STANDARDISES:
            sums = np.zeros((3, n_features))
            powers = scaling.power_above(np.array([sum(team.all_gather(len(features)))]))
            moments = scaling.Moments(*sums[:, None])
            for values in self._in_chunks(features):
                scaling.add_moments(values, all_of(values), center, scale, powers, moments)
            center, scale = scaling.standardise(scaling.Moments(*team.all_reduce(sums)[:, None]), center, scale)
        self.center_, self.scale_ = center[0], scale[0]

    def _in_chunks(self, features: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
        return (self._prepared(chunk) for chunk in chunks(features))

    def _prepared(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self.TAKES_LOGS:
            return features
        logs = np.empty(features.shape, np.float32)
        scaling.take_logs(features, logs)
        return logs


class QueryMinMax(Rescaling):
    """(x - lowest) / (highest - lowest) over the documents of the query: from 0 to 1. The paper's, and the default.

    Where queries are unknown: lowest and highest of all documents that it was fitted on; values outside give 0 or 1.
    Missing: 0, as the lowest. Needs the whole candidate list of each query.

    >>> QueryMinMax().fit_transform([[2.0], [7.0], [4.0], [5.0]], qid=["a", "b", "a", "a"]).tolist()
    [[0.0], [0.0], [0.6666666865348816], [1.0]]
    >>> QueryMinMax().fit([[2.0], [6.0]]).transform([[3.0], [8.0], [float("nan")]]).tolist()
    [[0.25], [1.0], [0.0]]
    """

    needs_queries = True
    STANDARDISES = False
    LIMITS = (0.0, 1.0)


class Standard(Rescaling):
    """(x - mean) / deviation, both of all documents that it was fitted on. Missing: 0, as the mean.

    >>> Standard().fit([[1.0], [3.0]]).transform([[1.0], [2.0], [4.0], [float("nan")]]).tolist()
    [[-1.0], [0.0], [2.0], [0.0]]
    """


class Log1p(Rescaling):
    """l = sign(x) ln(1 + |x|), then (l - mean) / deviation of all documents that it was fitted on. Missing: 0.

    >>> Log1p().fit([[0.0], [np.e**2 - 1]]).transform([[np.e - 1], [1 - np.e]]).round(5).tolist()
    [[0.0], [-2.0]]
    """

    TAKES_LOGS = True


class QueryLog1p(Log1p):
    """l = sign(x) ln(1 + |x|), then (l - mean) / deviation over the documents of the query.

    Where queries are unknown it is ``Log1p``. Missing: 0, as the mean. Needs the whole candidate list of each query.

    >>> QueryLog1p().fit_transform([[0.0], [5.0], [9.0], [8.0]], qid=[1, 1, 2, 2]).tolist()
    [[-1.0], [1.0], [1.0], [-1.0]]
    """

    needs_queries = True


class Unchanged(Transform):
    """x unchanged. Missing: 0.

    >>> Unchanged().fit_transform([[3.0], [float("nan")]]).tolist()
    [[3.0], [0.0]]
    """

    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The features, 0 where missing."""
        return np.where(np.isnan(features), np.float32(0), features)

    def learn(self, features: NDArray[np.float32]) -> None:
        """Nothing."""

    def learn_in_team(self, features: NDArray[np.float32], team: Team) -> None:
        """Nothing."""


def all_of(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """All rows as one group."""
    return np.array([0, len(values)])


def blocks(offsets: NDArray[np.int64], n_features: int) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Blocks of whole queries that fit the processor's caches, with the offsets of their queries."""
    return ((rows, edges) for _, rows, edges in blocks_of(offsets, _VALUES_AT_ONCE // max(n_features, 1)))
