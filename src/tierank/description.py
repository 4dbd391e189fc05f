"""What is in a data set: the columns of the paper's table of data sets, and what to know before training."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.memory import chunks
from tierank.metrics import Judge
from tierank.types import Floats

# A feature whose skill is at least this gives the ratings away; one whose drift is at least that has moved.
LEAKS_FROM, DRIFTS_FROM = 0.9, 0.1
# Fewer numbers than these are often all different.
_FEWEST_IDS = 20
# Queries and documents that skill and drift are measured on, evenly spread.
_QUERIES, _DOCUMENTS = 1000, 20_000


@dataclass(frozen=True)
class Description:
    """The result of ``describe``. Shares are between 0 and 1.

    Attributes
    ----------
    n_queries, n_documents, n_features : int
        Number of queries, documents and features.
    n_rating_levels : int
        Number of different ratings.
    lowest_share : float
        Share of the documents that have the lowest rating of the data set; LR in the paper.
    max_documents : int
        Documents of the longest query; MPQ in the paper.
    lowest_share_per_query : float
        Mean over queries of the share of documents that have the lowest rating of their query; ALRPQ in the paper.
    documents_per_rating : dict of float to int
        Number of documents of each rating.
    min_documents, median_documents : int, float
        Documents of the shortest and of the median query.
    n_empty_queries : int
        Number of queries with no rating above 0.
    n_single_rating_queries : int
        Number of queries whose documents all have the same rating: nothing can be learned from them.
    missing_share : float
        Share of the feature values that are missing.
    n_constant_features : int
        Number of features with the same value for every document.
    has_document_ids : bool
        Whether the documents have ids.
    """

    n_queries: int
    n_documents: int
    n_features: int
    n_rating_levels: int
    lowest_share: float
    max_documents: int
    lowest_share_per_query: float
    documents_per_rating: dict[float, int]
    min_documents: int
    median_documents: float
    n_empty_queries: int
    n_single_rating_queries: int
    missing_share: float
    n_constant_features: int
    has_document_ids: bool

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        levels = {f"{rating:g}": n for rating, n in self.documents_per_rating.items()}
        return asdict(self) | {"documents_per_rating": levels}


def describe(data: RankingDataset) -> Description:
    """Count what is in a data set.

    Parameters
    ----------
    data : RankingDataset
        Data with ratings.

    Returns
    -------
    Description
        The counts.

    Examples
    --------
    >>> data = RankingDataset([[1.0], [2.0], [3.0], [3.0]], [0, 2, 0, 0], qid=[1, 1, 1, 2])
    >>> found = describe(data)
    >>> found.lowest_share, found.max_documents, round(found.lowest_share_per_query, 4), found.n_empty_queries
    (0.75, 3, 0.8333, 1)
    """
    ratings, starts, lengths = data.ratings, data.offsets[:-1], data.lengths
    lowest, highest = np.minimum.reduceat(ratings, starts), np.maximum.reduceat(ratings, starts)
    lowest_in_query = np.add.reduceat((ratings == np.repeat(lowest, lengths)).astype(np.int64), starts)
    levels, counts = np.unique(ratings, return_counts=True)
    missing_share, n_constant = _look_at_features(data)
    return Description(
        n_queries=data.n_queries,
        n_documents=data.n_documents,
        n_features=data.n_features,
        n_rating_levels=len(levels),
        lowest_share=float(counts[0] / data.n_documents),
        max_documents=int(lengths.max()),
        lowest_share_per_query=float((lowest_in_query / lengths).mean()),
        documents_per_rating=dict(zip(levels.tolist(), counts.tolist(), strict=True)),
        min_documents=int(lengths.min()),
        median_documents=float(np.median(lengths)),
        n_empty_queries=int((highest == 0).sum()),
        n_single_rating_queries=int((highest == lowest).sum()),
        missing_share=missing_share,
        n_constant_features=n_constant,
        has_document_ids=data.document_texts is not None,
    )


def find_ids(data: RankingDataset) -> list[str]:
    """Features that look like ids: called so, whole numbers, and nearly all different.

    >>> rows = [[k, k % 3] for k in range(30)]
    >>> find_ids(RankingDataset(rows, qid=[0] * 30, feature_names=["product_id", "category_id"]))
    ['product_id']
    """
    names = [(k, name) for k, name in enumerate(data.feature_names or ()) if name.lower().endswith("id")]
    if data.n_documents < _FEWEST_IDS:
        return []
    rows = _spread(data.n_documents, _DOCUMENTS)
    return [name for k, name in names if _are_ids(data.features[rows, k])]


def _are_ids(values: NDArray[np.float32]) -> bool:
    is_whole = bool((values == np.rint(values)).all())
    # Ids beyond 2^24 fall together in float32.
    return is_whole and len(np.unique(values)) > (0.9 if abs(values).max() < 1 << 24 else 0.1) * len(values)


def _look_at_features(data: RankingDataset) -> tuple[float, int]:
    """The share of missing values, and how many features say the same of every document."""
    n_missing = 0
    low = np.full(data.n_features, np.inf, np.float32)
    high = -low
    some_missing = np.zeros(data.n_features, bool)
    for chunk in chunks(data.features):
        missing = np.isnan(chunk)
        n_missing += int(missing.sum())
        some_missing |= missing.any(axis=0)
        low = np.fmin(low, np.fmin.reduce(chunk, axis=0))
        high = np.fmax(high, np.fmax.reduce(chunk, axis=0))
    always_missing = np.isinf(low)
    constant = always_missing | ((low == high) & ~some_missing)
    return n_missing / data.features.size, int(constant.sum())


@dataclass(frozen=True)
class Feature:
    """One feature of a ``Profile``.

    Attributes
    ----------
    name : str
        Its name.
    missing_share : float
        Share of its values that are missing.
    is_constant : bool
        Whether it has the same value for every document.
    twin : str or None
        The first feature that has the same value for every document.
    skill : float
        Of the feature alone, the better way round: (NDCG@10 - that of a random order) / (1 - that of a random order).
        NaN if undefined.
    drift : float
        The largest difference between two data sets in the share of documents at or below any value
        (Kolmogorov-Smirnov); missing values count as the lowest. NaN without a second data set.
    """

    name: str
    missing_share: float
    is_constant: bool
    twin: str | None
    skill: float
    drift: float

    @property
    def leaks(self) -> bool:
        """Whether it ranks almost perfectly by itself: a rating, or something made of it, more often than not."""
        return self.skill >= LEAKS_FROM

    @property
    def drifts(self) -> bool:
        """Whether the second data set has other values."""
        return self.drift >= DRIFTS_FROM


@dataclass(frozen=True, eq=False)
class Profile:
    """The result of ``profile``.

    Attributes
    ----------
    description : Description
        Counts of the data.
    test : Description or None
        Counts of the test data.
    lengths, test_lengths : array
        Documents of each query, in the data and in the test data.
    features : tuple of Feature
        For each feature: ``name``, ``missing_share``, ``is_constant``, ``twin``, ``skill``, ``drift``, ``leaks``,
        ``drifts``.
    """

    description: Description
    test: Description | None
    lengths: NDArray[np.int64]
    test_lengths: NDArray[np.int64] | None
    features: tuple[Feature, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything except the lengths, for JSON; undefined numbers are None."""
        rows = [asdict(feature) | {"leaks": feature.leaks, "drifts": feature.drifts} for feature in self.features]
        return {
            "data": self.description.to_dict(),
            "test": None if self.test is None else self.test.to_dict(),
            "features": [{name: None if value != value else value for name, value in row.items()} for row in rows],
        }


def profile(data: RankingDataset, test: RankingDataset | None = None) -> Profile:
    """Look at every feature of a data set, and at what differs from a second one.

    Parameters
    ----------
    data : RankingDataset
        Data with ratings.
    test : RankingDataset, optional
        Data with the same features, to measure drift.

    Returns
    -------
    Profile
        Counts, list lengths and a row per feature.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> ratings = rng.integers(0, 3, 60)
    >>> columns = np.column_stack([rng.normal(size=60), ratings * 2.0, np.ones(60), ratings * 2.0])
    >>> found = profile(RankingDataset(columns, ratings, qid=np.arange(60) // 10, feature_names=["a", "b", "c", "d"]))
    >>> [(f.name, f.leaks, f.is_constant, f.twin) for f in found.features]
    [('a', False, False, None), ('b', True, False, None), ('c', False, True, None), ('d', True, False, 'b')]
    """
    if test is not None and (test.n_features, test.feature_names) != (data.n_features, data.feature_names):
        raise DataError(
            f"test: expected the features of the data, {data.n_features}, got {test.n_features}"
            + (" with other names" if test.n_features == data.n_features else "")
        )
    names = data.feature_names or tuple(f"feature {j}" for j in range(1, data.n_features + 1))
    skills = _find_skills(data)
    drifts = np.full(data.n_features, np.nan) if test is None else _find_drifts(data.features, test.features)
    twins = _find_twins(data.features)
    features = []
    for j, name in enumerate(names):
        column = data.features[:, j]
        missing = float(np.isnan(column).mean())
        constant = missing == 1 or (missing == 0 and bool((column == column[0]).all()))
        twin = None if twins[j] == j or constant else names[twins[j]]
        features.append(Feature(name, missing, constant, twin, float(skills[j]), float(drifts[j])))
    return Profile(
        describe(data),
        None if test is None else describe(test),
        data.lengths,
        None if test is None else test.lengths,
        tuple(features),
    )


def _find_skills(data: RankingDataset) -> Floats:
    """The skill of each feature; NaN where no query can be ranked well or badly."""
    part = data.select(_spread(data.n_queries, _QUERIES))
    judge = Judge(part, "ndcg@10")
    if judge.n_empty == part.n_queries:
        return np.full(data.n_features, np.nan)

    def mean(scores: Floats) -> float:
        return float(np.nanmean(judge(scores)["ndcg@10"]))

    random = mean(np.zeros(part.n_documents))  # tied scores count by their mean over all orders
    if random > 1 - 1e-9:
        return np.full(data.n_features, np.nan)
    skills = np.empty(data.n_features)
    for j in range(data.n_features):
        column = part.features[:, j].astype(np.float64)
        known = np.where(np.isnan(column), -np.inf, column), np.where(np.isnan(column), -np.inf, -column)
        skills[j] = max((mean(np.clip(scores, -1e300, 1e300)) - random) / (1 - random) for scores in known)
    return skills


def _find_twins(features: NDArray[np.float32]) -> list[int]:
    """For each column the first one that is the same."""
    first: dict[bytes, int] = {}
    found = []
    for j in range(features.shape[1]):
        column = np.ascontiguousarray(features[:, j]) + np.float32(0)  # no -0.0
        column[np.isnan(column)] = np.nan  # one kind of missing
        found.append(first.setdefault(hashlib.sha256(column.tobytes()).digest(), j))
    return found


def _find_drifts(one: NDArray[np.float32], other: NDArray[np.float32]) -> Floats:
    """The Kolmogorov-Smirnov statistic of each column."""
    rows, other_rows = _spread(len(one), _DOCUMENTS), _spread(len(other), _DOCUMENTS)
    return np.array([_drift(one[rows, j], other[other_rows, j]) for j in range(one.shape[1])])


def _drift(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """D = max over x of |share of one at or below x - share of the other|.

    >>> _drift(np.array([1.0, 2, 3, 4], np.float32), np.array([3.0, 4, 5, np.nan], np.float32))
    0.25
    """
    a, b = (np.sort(np.where(np.isnan(values), -np.inf, values)) for values in (one, other))
    places = np.concatenate([a, b])
    shares = (np.searchsorted(values, places, side="right") / len(values) for values in (a, b))
    return float(np.abs(np.subtract(*shares)).max())


def _spread(n: int, most: int) -> NDArray[np.int64]:
    """At most this many of n places, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))
