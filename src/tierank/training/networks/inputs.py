"""Inputs: what networks see of the features."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tierank.networks import embedding_size
from tierank.training.model import Seen
from tierank.transforms import Transform


@dataclass(frozen=True)
class Inputs:
    """What networks see of the features: the columns of a transform, and a level for each category.

    Parameters
    ----------
    transform : Transform
        The fitted transform. It gets all features; its columns of categories are left out.
    n_features : int
        Number of features.
    levels : dict of int to int
        The number of levels of each category, by the index of the feature.
    """

    transform: Transform
    n_features: int
    levels: dict[int, int]

    @classmethod
    def of(cls, transform: Transform, seen: Seen) -> Self:
        """The inputs of a model that was fitted on such data."""
        return cls(transform, seen.n_features, seen.n_levels())

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The columns of the transform that do not come from categories."""
        columns = np.arange(self.transform.n_columns(self.n_features))
        return columns[~np.isin(columns % self.n_features, list(self.levels))]

    @property
    def n_columns(self) -> int:
        """Number of columns that ``apply`` returns."""
        return len(self.numbers) + len(self.levels)

    @property
    def width(self) -> int:
        """Number of values that a network gets for each document, embeddings of levels included."""
        return len(self.numbers) + sum(map(embedding_size, self.levels.values()))

    def sources(self) -> NDArray[np.int64]:
        """The feature that each of these values comes from, in the order in which a network gets them."""
        of_levels = [np.full(embedding_size(n), place, np.int64) for place, n in self.levels.items()]
        return np.concatenate([self.numbers % self.n_features, *of_levels])

    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The numbers, and the level of each category; the number of levels if it is missing."""
        values = self.transform.values_of(features, offsets)
        if not self.levels:
            return values
        return np.concatenate([values[:, self.numbers], self.levels_of(features)], axis=1)

    def levels_of(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """The level of each category; the number of levels if it is missing or unknown."""
        codes, n_levels = features[:, list(self.levels)], np.array(list(self.levels.values()), np.float32)
        is_known = (codes > -1) & (codes < n_levels)  # truncated to an integer, as trees do
        return np.where(is_known, np.trunc(codes), n_levels)
