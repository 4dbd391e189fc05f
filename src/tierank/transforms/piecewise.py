"""Piecewise: the piecewise-linear encoding of features."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import scaling
from tierank.team import Team
from tierank.transforms.rescaling import Log1p, Rescaling, all_of
from tierank.transforms.sampling import sorted_columns


class Piecewise(Log1p):
    """Piecewise-linear encoding of a feature: how far it lies between each pair of neighbouring quantiles.

    z is ``Log1p`` clipped to -5..5, and b_0 < ... < b_T are its quantiles 0, 1/8, ..., 1 over the documents that it was
    fitted on, without those less than 0.001 above the one before:

        e_t = (z - b_(t-1)) / (b_t - b_(t-1)), clipped to 0..1,  t = 1..T

    Always eight blocks of columns, e_1 of all features first; those above T are 0. Missing: 0 in all. Of more than 2^20
    documents, 2^20 evenly spaced ones are sampled.

    >>> x = [[np.expm1(k)] for k in range(9)]  # evenly spaced after the logarithm
    >>> Piecewise().fit(x).transform([[np.expm1(2.5)]]).round(5).tolist()
    [[1.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]]
    """

    N_PIECES: ClassVar[int] = 8
    ARRAYS = Rescaling.ARRAYS | {"low": (np.float64, (N_PIECES,)), "slope": (np.float64, (N_PIECES,))}
    LIMITS = (-5.0, 5.0)
    # Edges closer than this are one: rounding errors would decide which side of them a value is on.
    _APART: ClassVar[float] = 1e-3

    def n_columns(self, n_features: int) -> int:
        """Eight for each feature."""
        return self.N_PIECES * n_features

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """The names of the columns."""
        names = super().get_feature_names_out(input_features)
        return np.array([f"{name} piece {t}" for t in range(1, self.N_PIECES + 1) for name in names], object)

    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The encoded features, whatever the queries."""
        out = np.empty((len(features), self.n_columns(features.shape[1])), np.float32)
        # Transposed, so that neighbours are read together and the compiler vectorises over features.
        low, slope = np.ascontiguousarray(self.low_.T), np.ascontiguousarray(self.slope_.T)
        scaled = self.rescaled(features)
        np.copyto(scaled, np.nan, where=np.isnan(features))  # 0 in all blocks
        scaling.rescale(scaled, all_of(scaled), low, slope, 0.0, 1.0, out)
        return out

    def rescaled(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """The numbers z that are encoded."""
        return super().apply(features, None)

    def learn(self, features: NDArray[np.float32]) -> None:
        """Mean and deviation of each feature, and its quantiles."""
        self.learn_in_team(features, Team())

    def learn_in_team(self, features: NDArray[np.float32], team: Team) -> None:
        """Mean and deviation of each feature, and its quantiles."""
        super().learn_in_team(features, team)
        shape = (features.shape[1], self.N_PIECES)
        self.low_, self.slope_ = np.zeros(shape), np.zeros(shape)
        quantiles = np.full((self.N_PIECES + 1, features.shape[1]), np.nan, np.float32)
        for column, known in sorted_columns(features, team):
            if len(known):
                places = np.linspace(0, len(known) - 1, self.N_PIECES + 1)
                quantiles[:, column] = known[np.rint(places).astype(np.int64)]
        # The logarithm keeps the order, so quantiles can be taken before it.
        for column, edges in enumerate(super().apply(quantiles, None).T.astype(np.float64)):
            kept = edges[:1]
            for edge in edges[1:]:
                if edge - kept[-1] > self._APART:
                    kept = np.append(kept, edge)
            self.low_[column, : len(kept) - 1] = kept[:-1]
            self.slope_[column, : len(kept) - 1] = 1 / np.diff(kept)
