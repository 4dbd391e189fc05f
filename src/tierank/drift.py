"""Drift between two data sets: features, ratings and list lengths, each with a test."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank import notebook
from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.joining import common_kinds, recoded
from tierank.memory import spread
from tierank.significance import SIGNIFICANT, benjamini_hochberg
from tierank.types import Floats

# The smallest distance that counts as drift: smaller ones can be significant in large data, but matter little.
DRIFTS_FROM = 0.1
# The most documents that distances are measured on, evenly spaced.
_DOCUMENTS = 20_000

RATINGS, LENGTHS = "mean rating of a query", "documents of a query"

HOW = (
    "distance: Kolmogorov-Smirnov, the largest difference in the share at or below any value; p: of that test over"
    " queries, with one document of each drawn at random, as documents of one list are not independent; adjusted by"
    f" Benjamini-Hochberg; drifts: distance of {DRIFTS_FROM} or more and adjusted p < {SIGNIFICANT}"
)


@dataclass(frozen=True)
class Change:
    """How far the values of a feature, the ratings or the list lengths have moved.

    Attributes
    ----------
    name : str
        A feature, ``"mean rating of a query"`` or ``"documents of a query"``.
    distance : float
        The largest difference between two data sets in the share of values at or below any value (Kolmogorov-Smirnov);
        missing values count as the lowest.
    p, adjusted_p : float
        The p-value of the two-sample test over queries, raw and adjusted for all comparisons.
    """

    name: str
    distance: float
    p: float
    adjusted_p: float

    @property
    def drifts(self) -> bool:
        """Whether the distance is 0.1 or more, and the adjusted p below 0.05."""
        return self.distance >= DRIFTS_FROM and self.adjusted_p < SIGNIFICANT


@dataclass(frozen=True)
class Drift:
    """What has changed from one data set to another.

    Attributes
    ----------
    changes : tuple of Change
        The ratings (if both data sets have them), the list lengths, and each feature.
    """

    changes: tuple[Change, ...]

    @property
    def drifting(self) -> list[Change]:
        """What drifts, the largest distance first."""
        return sorted((one for one in self.changes if one.drifts), key=lambda one: -one.distance)

    @property
    def advice(self) -> str:
        """Whether to train again, as text."""
        names = [one.name for one in self.drifting]
        if not names:
            return "nothing drifts: no need to train again"
        listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        features = [one for one in self.changes if one.name not in (RATINGS, LENGTHS)]
        return (
            f"{sum(one.drifts for one in features)} of {len(features)} features drift; train again on the newer data,"
            f" and compare with the old model on them. Drifting: {listed}"
        )

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: ``advice``, and a dict for each of the ``changes``."""
        return {
            "advice": self.advice,
            "changes": [asdict(change) | {"drifts": change.drifts} for change in self.changes],
        }

    def to_pandas(self) -> Any:
        """A pandas table with a row for each thing that is compared."""
        rows = [asdict(change) | {"drifts": change.drifts} for change in self.changes]
        return notebook.as_pandas({name: [row[name] for row in rows] for name in rows[0]})

    def _repr_html_(self) -> str:
        return notebook.sheet("Drift", notebook.note(self.advice), notebook.grid(*self._table()), notebook.note(HOW))

    def __str__(self) -> str:
        return "\n".join([self.advice, *notebook.lines(*self._table()), HOW])

    __repr__ = __str__

    def _table(self) -> tuple[list[str], list[list[str]]]:
        ordered = sorted(self.changes, key=lambda one: (not one.drifts, -one.distance))
        rows = [[c.name, f"{c.distance:.3f}", f"{c.adjusted_p:.4f}", "drifts" if c.drifts else ""] for c in ordered]
        return ["", "distance", "adjusted p", ""], rows


def find_drift(data: RankingDataset, other: RankingDataset, seed: int = 0) -> Drift:
    """What has changed from one data set to another that has the same features."""
    matrices = same_features(data, other, "other")
    names = data.feature_names or tuple(f"feature {j}" for j in range(1, data.n_features + 1))
    changes: list[tuple[str, float, float]] = []
    if all(part.is_rated and part.is_judged.any() for part in (data, other)):
        changes.append((RATINGS, *_compared(_mean_ratings(data), _mean_ratings(other))))
    changes.append((LENGTHS, *_compared(data.lengths, other.lengths)))
    distances = find_distances(*matrices)
    rng = np.random.default_rng(seed)
    one, two = (matrix[_one_of_each(part, rng)] for part, matrix in zip((data, other), matrices, strict=True))
    changes += [(name, float(distances[j]), _compared(one[:, j], two[:, j])[1]) for j, name in enumerate(names)]
    adjusted = benjamini_hochberg(np.array([p for _, _, p in changes])).tolist()
    return Drift(tuple(Change(*row, q) for row, q in zip(changes, adjusted, strict=True)))


def same_features(
    data: RankingDataset, other: RankingDataset, argument: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The features of two data sets, with the same level numbers. Raises ``DataError`` if the features differ."""
    if (other.n_features, other.feature_names) != (data.n_features, data.feature_names):
        raise DataError(
            f"{argument}: expected the features of the data, {data.n_features}, got {other.n_features}"
            + (" with other names" if other.n_features == data.n_features else "")
        )
    names, kinds = data.feature_names or (), common_kinds([data.kinds, other.kinds])
    return recoded(data.features, names, data.kinds, kinds), recoded(other.features, names, other.kinds, kinds)


def find_distances(one: NDArray[np.float32], other: NDArray[np.float32]) -> Floats:
    """The Kolmogorov-Smirnov statistic of each column, on evenly spaced documents."""
    rows, other_rows = spread(len(one), _DOCUMENTS), spread(len(other), _DOCUMENTS)
    return np.array([distance(one[rows, j], other[other_rows, j]) for j in range(one.shape[1])])


def distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """D = max over x of |share of one at or below x - share of the other|.

    >>> distance(np.array([1.0, 2, 3, 4], np.float32), np.array([3.0, 4, 5, np.nan], np.float32))
    0.25
    """
    a, b = (np.sort(np.where(np.isnan(values), -np.inf, values)) for values in (one, other))
    places = np.concatenate([a, b])
    shares = (np.searchsorted(values, places, side="right") / len(values) for values in (a, b))
    return float(np.abs(np.subtract(*shares)).max())


def _compared(one: NDArray[Any], other: NDArray[Any]) -> tuple[float, float]:
    """The distance of two samples of independent values, and its asymptotic p; ties can only make p too large."""
    from scipy.special import kolmogorov

    largest = distance(one, other)
    return largest, float(kolmogorov(largest * np.sqrt(len(one) * len(other) / (len(one) + len(other)))))


def _mean_ratings(data: RankingDataset) -> Floats:
    """The mean rating of each query that has judged documents."""
    starts, is_judged = data.offsets[:-1], data.is_judged
    n_judged = np.add.reduceat(is_judged.astype(np.int64), starts)
    sums = np.add.reduceat(np.where(is_judged, data.ratings, 0.0), starts)
    return np.asarray(sums[n_judged > 0] / n_judged[n_judged > 0])


def _one_of_each(data: RankingDataset, rng: np.random.Generator) -> NDArray[np.int64]:
    """A document of each query, drawn at random."""
    return np.asarray(data.offsets[:-1] + rng.integers(data.lengths), np.int64)
