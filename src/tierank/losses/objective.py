"""What LightGBM calls each round: gradient and hessian of all documents at their scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.arrays import Floats, Offsets
from tierank.data.checks import as_offsets, as_positions, as_propensities, as_ratings, as_weights
from tierank.errors import DataError
from tierank.settings import declared

Gradients = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True)
class RatedDocuments:
    """The documents that gradients are computed for; query i has the rows ``offsets[i]:offsets[i+1]``.

    ``factor`` multiplies gradient and hessian of each document; ``propensity`` is the chance that it was examined, and
    ``position`` where it was shown, for ratings that are clicks. All three may be None.
    """

    ratings: Floats
    offsets: Offsets
    factor: NDArray[np.float32] | None = None
    position: NDArray[np.int64] | None = None
    propensity: Floats | None = None


class Objective(ABC):
    """A function that LightGBM calls each round. It is prepared with documents, and computes gradients at scores.

    A subclass is a dataclass whose fields are settings, and writes ``arrange`` and ``compute``.
    """

    # Settings that ``repr`` leaves out.
    hidden: tuple[str, ...] = ()

    _documents: RatedDocuments
    _data: Any = None
    # The ratings, weights and sizes of queries of LightGBM's last call; None after an explicit ``prepare``.
    _seen: Any = None

    def __post_init__(self) -> None:
        for name, one in declared(self).items():
            setattr(self, name, one.kind.check(name, getattr(self, name)))

    def __repr__(self) -> str:
        settings = (f"{name}={getattr(self, name)!r}" for name in declared(self) if name not in self.hidden)
        return f"{type(self).__name__}({', '.join(settings)})"

    def __getstate__(self) -> dict[str, Any]:
        """The settings: what is pickled and copied."""
        return self.__dict__ | {"_documents": None, "_data": None, "_seen": None}

    @abstractmethod
    def arrange(self, documents: RatedDocuments) -> Any:
        """What ``compute`` needs to know about the documents."""

    @abstractmethod
    def compute(self, data: Any, scores: Floats) -> Gradients:
        """Gradient and hessian at these scores, before they are multiplied by the factors of the documents."""

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
        edges = np.require(as_offsets(offsets), requirements=["C", "W"])
        n, factor = int(edges[-1]), None
        if row_weight is not None or query_weight is not None:
            of_rows = np.ones(n) if row_weight is None else as_weights(row_weight, "row_weight", n)
            of_queries = np.ones(len(edges) - 1)
            if query_weight is not None:
                of_queries = as_weights(query_weight, "query_weight", len(edges) - 1)
            factor = (of_rows * np.repeat(of_queries, np.diff(edges))).astype(np.float32)
        self._documents = RatedDocuments(
            as_ratings(ratings, n),
            edges,
            factor,
            None if position is None else as_positions(position, n),
            None if propensity is None else as_propensities(propensity),
        )
        self._data, self._seen = self.arrange(self._documents), None
        return self

    def gradients(self, scores: ArrayLike) -> Gradients:
        """Gradient and hessian at these scores, one number per document; the next call may overwrite them."""
        if self._data is None:
            raise DataError(expected="prepare(ratings, offsets) before gradients(scores)", got="no documents")
        checked = np.require(scores, np.float64, ["C", "W"])  # kernels take writable arrays
        n = len(self._documents.ratings)
        if checked.shape != (n,):
            raise DataError(argument="scores", expected=f"{n}, one per document", got=f"shape {checked.shape}")
        if not np.isfinite(checked).all():
            got = str(checked[~np.isfinite(checked)][0])
            raise DataError(argument="scores", expected="finite numbers", got=got)
        gradient, hessian = self.compute(self._data, checked)
        if self._documents.factor is not None:
            gradient *= self._documents.factor
            hessian *= self._documents.factor
        return gradient, hessian

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
        given = ratings, weight, group
        is_new = self._data is None
        if self._seen is not None:
            is_new = not all(a is b or np.array_equal(a, b) for a, b in zip(given, self._seen, strict=True))
        if is_new:
            if group is None:
                raise DataError(
                    argument="dataset", expected="groups", got="none", fix="lightgbm.Dataset(..., group=sizes)"
                )
            sizes = np.asarray(group)
            self.prepare(ratings, np.concatenate([[0], np.cumsum(sizes[sizes > 0], dtype=np.int64)]), weight)
            self._seen = given
        return self.gradients(scores)
