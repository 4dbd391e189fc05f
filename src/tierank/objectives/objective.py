"""The interface of objectives, as LightGBM calls them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.checks import as_weights
from tierank.errors import DataError
from tierank.types import Floats

Gradients = tuple[NDArray[np.float32], NDArray[np.float32]]


class Objective(ABC):
    """A function that LightGBM calls each round. It is prepared with ratings, and computes gradients at scores."""

    _data: Any = None
    # The ratings, weights and sizes of queries of LightGBM's last call; None after an explicit ``prepare``.
    _seen: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """The settings: what is pickled and copied."""
        return self.__dict__ | {"_data": None, "_seen": None}

    @abstractmethod
    def prepare(
        self,
        ratings: ArrayLike,
        offsets: ArrayLike,
        row_weight: ArrayLike | None = None,
        query_weight: ArrayLike | None = None,
        *,
        position: ArrayLike | None = None,
        propensity: ArrayLike | None = None,
    ) -> Self:
        """Prepare for these documents: query i has the rows ``offsets[i]:offsets[i+1]``.

        A row weight multiplies the gradient and the hessian of its document, a query weight those of the whole query.
        For ratings that are clicks, ``propensity`` has the chance that each document was examined, ``position`` where
        it was shown; an objective that learns propensities takes the second.
        """

    @abstractmethod
    def gradients(self, scores: ArrayLike) -> Gradients:
        """Gradient and hessian at these scores, one number per document; the next call overwrites them."""

    def _prepared(self) -> Any:
        """What ``prepare`` has set."""
        if self._data is None:
            raise DataError("the objective has no data: expected prepare(ratings, offsets) before gradients(scores)")
        return self._data

    def state(self) -> dict[str, list[float]]:
        """What the objective has learned, for JSON; a resumed training continues from it."""
        return {}

    def load_state(self, state: dict[str, list[float]]) -> None:
        """Continue from the result of ``state``."""
        if state:
            raise DataError(expected="no state of the objective, which learns nothing", got=", ".join(state))

    def __call__(self, scores: Any, dataset: Any, weight: Any = None, group: Any = None) -> Gradients:
        """Called by ``lightgbm.train`` each round with its data set; after ``prepare`` the data set is ignored.

        ``lightgbm.LGBMRanker`` and Dask call with ratings, scores, weights and the sizes of queries instead.
        """
        if hasattr(dataset, "get_group"):
            ratings, weight, group = dataset.get_label(), dataset.get_weight(), dataset.get_group()
        else:
            ratings, scores = scores, dataset
        if self._data is None or (self._seen is not None and not self._has_seen(ratings, weight, group)):
            if group is None:
                raise DataError("the LightGBM data set has no groups: expected lightgbm.Dataset(..., group=sizes)")
            sizes = np.asarray(group)
            self.prepare(ratings, np.concatenate([[0], np.cumsum(sizes[sizes > 0], dtype=np.int64)]), weight)
            self._seen = ratings, weight, group
        return self.gradients(scores)

    def _has_seen(self, *data: Any) -> bool:
        return all(one is other or np.array_equal(one, other) for one, other in zip(data, self._seen, strict=True))

    def _checked_scores(self, scores: ArrayLike, n: int) -> Floats:
        # The kernels of the objectives take writable arrays only.
        checked = np.require(scores, np.float64, ["C", "W"])
        if checked.shape != (n,):
            raise DataError(f"scores: expected {n}, one per document, got shape {checked.shape}")
        if not np.isfinite(checked).all():
            raise DataError(f"scores: expected finite numbers, got {checked[~np.isfinite(checked)][0]}")
        return checked


def scale_of(
    offsets: NDArray[np.int64], row_weight: ArrayLike | None, query_weight: ArrayLike | None
) -> NDArray[np.float32] | None:
    """One factor per document, or None if all are 1."""
    if row_weight is None and query_weight is None:
        return None
    scale = np.ones(offsets[-1])
    if row_weight is not None:
        scale *= as_weights(row_weight, "row_weight", len(scale))
    if query_weight is not None:
        scale *= np.repeat(as_weights(query_weight, "query_weight", len(offsets) - 1), np.diff(offsets))
    return scale.astype(np.float32)
