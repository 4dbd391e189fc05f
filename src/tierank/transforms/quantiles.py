"""Transforms by order: the share of documents below a value."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import scaling
from tierank.team import Team
from tierank.transforms.base import Transform
from tierank.transforms.sampling import sorted_columns


class Quantile(Transform):
    """The share of the documents that it was fitted on that lie below x: from 0 to 1. Missing: 0.

    Linear between up to 256 knots, evenly spaced in the sorted values of a column; knots that are equal share the mean
    of their levels, so a value that half of the documents have is at the middle of that half. Of more than 2^20
    documents, 2^20 evenly spaced ones are sampled, so that levels have an error of up to 0.0005 (standard deviation).
    The processes of a team sample the same documents as a single process would.

    >>> Quantile().fit([[0.0], [10.0], [1000.0]]).transform([[-1.0], [5.0], [10.0], [505.0], [2000.0]]).tolist()
    [[0.0], [0.25], [0.5], [0.75], [1.0]]
    """

    ARRAYS = {  # noqa: RUF012  (a ClassVar of Transform)
        "knots": (np.float32, (scaling.N_KNOTS,)),
        "levels": (np.float32, (scaling.N_KNOTS,)),
        "slopes": (np.float64, (scaling.N_KNOTS,)),
    }

    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The transformed features, whatever the queries."""
        out = np.empty(features.shape, np.float32)
        scaling.interpolate(features, self.knots_, self.levels_, self.slopes_, out)
        return out

    def learn(self, features: NDArray[np.float32]) -> None:
        """The quantiles of each feature."""
        self.learn_in_team(features, Team())

    def learn_in_team(self, features: NDArray[np.float32], team: Team) -> None:
        """The quantiles of each feature."""
        n_features = features.shape[1]
        shape = (n_features, scaling.N_KNOTS)
        self.knots_, self.levels_ = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        for column, known in sorted_columns(features, team):
            if len(known) and known[0] < known[-1]:
                self.knots_[column], self.levels_[column] = _knots(known)
        rises, gaps = np.diff(self.levels_.astype(np.float64)), np.diff(self.knots_.astype(np.float64))
        self.slopes_ = np.zeros(shape)
        np.divide(rises, gaps, out=self.slopes_[:, :-1], where=gaps > 0)


class QueryRank(Quantile):
    """The share of the other documents of the query that lie below x, ties counting a half: from 0 to 1. Missing: 0.

    Where queries are unknown it is ``Quantile``. Needs the whole candidate list of each query.

    >>> QueryRank().fit_transform([[2.0], [7.0], [4.0], [4.0]], qid=["a", "b", "a", "a"]).tolist()
    [[0.0], [0.0], [0.75], [0.75]]
    """

    needs_queries = True

    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The transformed features of whole queries, grouped as in a ``RankingDataset``; None: queries are unknown."""
        if offsets is None:
            return super().apply(features, None)
        out = np.empty(features.shape, np.float32)
        scaling.rank_queries(features, offsets, out)
        return out


def _knots(values: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Evenly spaced sorted values and their levels; short ones are padded with their last entry.

    >>> knots, levels = _knots(np.array([1, 1, 2, 3, 5], np.float32))
    >>> knots[:6].tolist(), levels[:6].tolist()
    ([1.0, 1.0, 2.0, 3.0, 5.0, 5.0], [0.125, 0.125, 0.5, 0.75, 1.0, 1.0])
    """
    n = min(len(values), scaling.N_KNOTS)
    knots = values[np.rint(np.linspace(0, len(values) - 1, n)).astype(np.int64)] + np.float32(0)  # no -0.0
    first, after = knots.searchsorted(knots, "left"), knots.searchsorted(knots, "right")
    levels = (first + after - 1) / (2 * (n - 1))
    missing = scaling.N_KNOTS - n
    return np.pad(knots, (0, missing), "edge"), np.pad(levels, (0, missing), "edge")
