"""SideBySide: several transforms of the same features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.team import Team
from tierank.transforms.base import Transform


class SideBySide(Transform):
    """Several transforms side by side: all columns of the first, then all of the second, and so on.

        x -> [t_1(x), ..., t_k(x)], every number clipped to -5..5

    Parameters
    ----------
    parts : sequence of Transform
        The transforms.

    >>> from tierank.transforms import Log1p, QueryMinMax
    >>> SideBySide([QueryMinMax(), Log1p()]).fit_transform([[0.0], [np.e**2 - 1]], qid=[1, 1]).round(5).tolist()
    [[0.0, -1.0], [1.0, 1.0]]
    """

    # A value this many deviations from its mean is an outlier; how far out does not matter.
    LIMIT: ClassVar[float] = 5.0

    def __init__(self, parts: Sequence[Transform]) -> None:
        self.parts = parts

    @property
    def needs_queries(self) -> bool:  # type: ignore[override]
        """Whether values of any part depend on the other documents of the query."""
        return any(part.needs_queries for part in self.parts)

    @property
    def takes_parts(self) -> bool:
        """Whether all parts can be fitted by several processes."""
        return all(part.takes_parts for part in self.parts)

    def n_columns(self, n_features: int) -> int:
        """The number of columns of all parts."""
        return sum(part.n_columns(n_features) for part in self.parts)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """The names of the columns, each with its transform."""
        names = [(type(part).__name__, part.get_feature_names_out(input_features)) for part in self.parts_]
        return np.array([f"{name} by {kind}" for kind, columns in names for name in columns], object)

    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The transformed features of whole queries, grouped as in a ``RankingDataset``; None: queries are unknown."""
        return self.apply_parts(self.parts_, features, offsets)

    def apply_parts(
        self, parts: Sequence[Transform], features: NDArray[np.float32], offsets: NDArray[np.int64] | None
    ) -> NDArray[np.float32]:
        """What ``apply`` gives, of some of the parts."""
        columns = np.empty((len(features), sum(part.n_columns(features.shape[1]) for part in parts)), np.float32)
        first = 0
        for part in parts:
            values = part.values_of(features, offsets)
            np.clip(values, -self.LIMIT, self.LIMIT, out=columns[:, first : first + values.shape[1]])
            first += values.shape[1]
        return columns

    def fit_in_team(self, data: RankingDataset, team: Team, *, has_queries: bool = True) -> Self:
        """Fit copies of all of them."""
        self.parts_ = tuple(clone(part).fit_in_team(data, team, has_queries=has_queries) for part in self.parts)
        self.has_queries_ = has_queries
        self._set_features(data.n_features, data.feature_names)
        return self

    def learn(self, features: NDArray[np.float32]) -> None:
        """Nothing: its parts learn."""

    def state(self) -> dict[str, NDArray[Any]]:
        """What is fitted: the arrays of each part, with its number."""
        self._check_fitted()
        return {f"{k}.{name}": array for k, part in enumerate(self.parts_) for name, array in part.state().items()}

    @classmethod
    def from_state(cls, state: Mapping[str, NDArray[Any]], n_features: int) -> Self:
        """Not possible: the arrays do not say which transforms they belong to. Use ``load_state``."""
        raise ParameterError("SideBySide: expected load_state on a SideBySide with the same parts, got from_state")

    def load_state(self, state: Mapping[str, NDArray[Any]], n_features: int) -> Self:
        """Take over the ``state`` of a fitted transform; raises ``DataError`` if an array has the wrong shape."""
        names = [name.partition(".") for name in state]
        if {number for number, _, _ in names} != set(map(str, range(len(self.parts)))):
            raise DataError(f"SideBySide: expected the arrays of {len(self.parts)} transforms, got {', '.join(state)}")
        of_parts: list[dict[str, NDArray[Any]]] = [{} for _ in self.parts]
        for (number, _, name), array in zip(names, state.values(), strict=True):
            of_parts[int(number)][name] = array
        fresh = [clone(part) for part in self.parts]
        self.parts_ = tuple(part.load_state(own, n_features) for part, own in zip(fresh, of_parts, strict=True))
        self.has_queries_ = self.parts_[0].has_queries_
        self._set_features(n_features, None)
        return self
