"""What data sets hold: counts, a profile of each feature, and the drift from one data set to another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats, chunks, spread
from tierank.data.checks import feature_labels
from tierank.data.dataset import RankingDataset, check_dataset, check_same_features, common_kinds, recoded
from tierank.display import Result, ShownTable, as_pandas, rows_to_pandas
from tierank.files import for_json
from tierank.metrics import Judge
from tierank.metrics.significance import SIGNIFICANT, benjamini_hochberg

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
        return has_moved(self.distance, self.adjusted_p)


def has_moved(distance: float, adjusted_p: float) -> bool:
    """Whether a distance is large enough to matter, and more than chance."""
    return distance >= DRIFTS_FROM and adjusted_p < SIGNIFICANT


@dataclass(frozen=True, repr=False)
class Drift(Result):
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

    def _rows(self) -> list[dict[str, Any]]:
        return [asdict(change) | {"drifts": change.drifts} for change in self.changes]

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: ``advice``, and a dict for each of the ``changes``."""
        return {"advice": self.advice, "changes": self._rows()}

    def to_pandas(self) -> Any:
        """A pandas table with a row for each thing that is compared."""
        return rows_to_pandas(self._rows())

    def blocks(self) -> Iterator[str | ShownTable]:
        """The advice, what is compared, what drifts first, and how."""
        yield self.advice
        ordered = sorted(self.changes, key=lambda one: (not one.drifts, -one.distance))
        rows = [[c.name, f"{c.distance:.3f}", f"{c.adjusted_p:.4f}", "drifts" if c.drifts else ""] for c in ordered]
        yield ShownTable((["", "distance", "adjusted p", ""], rows))
        yield HOW


def find_drift(data: RankingDataset, other: RankingDataset, argument: str = "other") -> Drift:
    """What has changed from one data set to another that has the same features; errors are about the ``argument``."""
    check_same_features(argument, other, data)
    names, kinds = data.feature_names or (), common_kinds([data.kinds, other.kinds])
    matrices = [recoded(part.features, names, part.kinds, kinds) for part in (data, other)]
    changes: list[tuple[str, float, float]] = []
    if all(part.is_rated and part.is_judged.any() for part in (data, other)):
        changes.append((RATINGS, *_compared(_mean_ratings(data), _mean_ratings(other))))
    changes.append((LENGTHS, *_compared(data.lengths, other.lengths)))
    rng = np.random.default_rng(0)
    some, one_each = [], []
    for part, matrix in zip((data, other), matrices, strict=True):
        some.append(spread(part.n_documents, _DOCUMENTS))
        one_each.append(matrix[part.offsets[:-1] + rng.integers(part.lengths)])  # of each query
    for j, name in enumerate(feature_labels(data.feature_names, data.n_features)):
        moved = distance(*(matrix[rows, j] for matrix, rows in zip(matrices, some, strict=True)))
        changes.append((name, moved, _compared(*(values[:, j] for values in one_each))[1]))
    adjusted = benjamini_hochberg(np.array([p for _, _, p in changes])).tolist()
    return Drift(tuple(Change(*row, q) for row, q in zip(changes, adjusted, strict=True)))


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


# Fields that map ratings to counts.
_PER_RATING = ("documents_per_rating", "queries_per_top_rating")
# What the numbers are called where they are shown, in this order.
_LABELS = {
    "n_queries": "queries",
    "n_documents": "documents",
    "min_documents": "documents of the shortest query",
    "median_documents": "documents of the median query",
    "max_documents": "documents of the longest query",
    "n_features": "features",
    "n_constant_features": "constant features",
    "missing_share": "missing values",
    "n_rating_levels": "different ratings",
    "lowest_share": "documents with the lowest rating",
    "lowest_share_per_query": "documents with the lowest rating of their query, mean",
    "n_empty_queries": "queries with no rating above 0",
    "n_single_rating_queries": "queries with one rating only",
    "n_unjudged": "documents without a rating",
    "has_document_ids": "document ids",
}
# The most queries that skill is measured on, evenly spaced.
_QUERIES = 1000
# A feature with at least this skill leaks the ratings.
LEAKS_FROM = 0.9


@dataclass(frozen=True, repr=False)
class Description(Result):
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
    queries_per_top_rating : dict of float to int
        Number of queries whose highest rating is this.
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
    n_unjudged : int
        Number of documents without a rating. They are left out of all numbers about ratings.
    drift : Drift or None
        What changes from this data set to ``other``, if one was given.
    """

    n_queries: int
    n_documents: int
    n_features: int
    n_rating_levels: int
    lowest_share: float
    max_documents: int
    lowest_share_per_query: float
    documents_per_rating: dict[float, int]
    queries_per_top_rating: dict[float, int]
    min_documents: int
    median_documents: float
    n_empty_queries: int
    n_single_rating_queries: int
    missing_share: float
    n_constant_features: int
    has_document_ids: bool
    n_unjudged: int = 0
    drift: Drift | None = None

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON with all fields; ``drift`` only if there were other data."""
        levels = {name: {f"{rating:g}": n for rating, n in getattr(self, name).items()} for name in _PER_RATING}
        drift = {} if self.drift is None else {"drift": self.drift.to_dict()}
        return {name: value for name, value in vars(self).items() if name != "drift"} | levels | drift

    def to_pandas(self) -> Any:
        """A pandas table with a row per number: ``name`` and ``value``."""
        numbers = {name: value for name, value in vars(self).items() if name not in (*_PER_RATING, "drift")}
        numbers |= {f"documents rated {rating:g}": n for rating, n in self.documents_per_rating.items()}
        return as_pandas({"name": list(numbers), "value": list(numbers.values())})

    def blocks(self) -> Iterator[str | ShownTable | Result]:
        """The numbers by name, the documents by rating, and the drift."""
        rows = []
        for name, label in _LABELS.items():
            value = getattr(self, name)
            if isinstance(value, bool):
                shown = "yes" if value else "no"
            else:
                shown = f"{value:.2%}" if "share" in name else f"{value:,}" if isinstance(value, int) else f"{value:g}"
            rows.append([label, shown])
        rows += [[f"documents rated {rating:g}", f"{n:,}"] for rating, n in self.documents_per_rating.items()]
        yield ShownTable((rows[0], rows[1:]), most=len(rows))
        if self.drift is not None:
            yield self.drift


def describe(data: RankingDataset, other: RankingDataset | None = None) -> Description:
    """Describe a data set, and find what has changed in a second one.

    Parameters
    ----------
    data : RankingDataset
        Data with ratings.
    other : RankingDataset, optional
        A newer data set with the same features, with or without ratings, to check for drift.

    Returns
    -------
    Description
        The counts; ``drift`` says what changes, and whether to train again.

    Examples
    --------
    >>> data = RankingDataset([[1.0], [2.0], [3.0], [3.0]], [0, 2, 0, 0], qid=[1, 1, 1, 2])
    >>> found = describe(data)
    >>> found.lowest_share, found.max_documents, round(found.lowest_share_per_query, 4), found.n_empty_queries
    (0.75, 3, 0.8333, 1)
    """
    check_dataset("data", data)
    if other is not None:
        check_dataset("other", other)
    bare = RankingDataset.from_parts(data.features[:, :0], data.ratings, data.offsets, data.query_ids)
    judged = bare.drop_unjudged()
    ratings, starts, lengths = judged.ratings, judged.offsets[:-1], judged.lengths
    lowest, highest = np.minimum.reduceat(ratings, starts), np.maximum.reduceat(ratings, starts)
    lowest_in_query = np.add.reduceat((ratings == np.repeat(lowest, lengths)).astype(np.int64), starts)
    per_rating, per_top = (
        dict(zip(*(counted.tolist() for counted in np.unique(values, return_counts=True)), strict=True))
        for values in (ratings, highest)
    )
    missing_share, n_constant = _look_at_features(data)
    return Description(
        n_queries=data.n_queries,
        n_documents=data.n_documents,
        n_features=data.n_features,
        n_rating_levels=len(per_rating),
        lowest_share=per_rating[ratings.min()] / judged.n_documents,
        max_documents=int(data.lengths.max()),
        lowest_share_per_query=float((lowest_in_query / lengths).mean()),
        documents_per_rating=per_rating,
        queries_per_top_rating=per_top,
        min_documents=int(data.lengths.min()),
        median_documents=float(np.median(data.lengths)),
        n_empty_queries=data.n_queries - int((highest > 0).sum()),
        n_single_rating_queries=data.n_queries - int((highest > lowest).sum()),
        missing_share=missing_share,
        n_constant_features=n_constant,
        has_document_ids=data.document_texts is not None,
        n_unjudged=data.n_unjudged,
        drift=None if other is None else find_drift(data, other),
    )


def _look_at_features(data: RankingDataset) -> tuple[float, int]:
    """The share of missing values, and the number of constant features."""
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
    return n_missing / max(1, data.features.size), int(constant.sum())  # scores are judged without features


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
        How well the feature alone ranks, ascending or descending, whichever is better: (NDCG@10 - that of a random
        order) / (1 - that of a random order). NaN if undefined.
    drift : float
        The largest difference between two data sets in the share of documents at or below any value
        (Kolmogorov-Smirnov); missing values count as the lowest. NaN without a second data set.
    drift_p : float
        The p-value of the drift over queries, adjusted for all features, as in ``describe``. NaN without a second data
        set.
    """

    name: str
    missing_share: float
    is_constant: bool
    twin: str | None
    skill: float
    drift: float
    drift_p: float

    @property
    def leaks(self) -> bool:
        """Whether it ranks almost perfectly by itself: probably a rating, or computed from one."""
        return self.skill >= LEAKS_FROM

    @property
    def drifts(self) -> bool:
        """Whether its values differ in the second data set: a distance of 0.1 or more, and an adjusted p below 0.05."""
        return has_moved(self.drift, self.drift_p)


@dataclass(frozen=True, eq=False, repr=False)
class Profile(Result):
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
        For each feature: ``name``, ``missing_share``, ``is_constant``, ``twin``, ``skill``, ``drift``,
        ``drift_p``, ``leaks``, ``drifts``.
    """

    description: Description
    test: Description | None
    lengths: NDArray[np.int64]
    test_lengths: NDArray[np.int64] | None
    features: tuple[Feature, ...]

    def _rows(self) -> list[dict[str, Any]]:
        return [asdict(feature) | {"leaks": feature.leaks, "drifts": feature.drifts} for feature in self.features]

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: ``data``, ``test``, and a dict for each of the ``features``; undefined numbers are None."""
        test = None if self.test is None else self.test.to_dict()
        return {"data": self.description.to_dict(), "test": test, "features": for_json(self._rows())}

    def to_pandas(self) -> Any:
        """A pandas table with a row per feature."""
        return rows_to_pandas(self._rows())

    def blocks(self) -> Iterator[str | ShownTable]:
        """The counts, and the features, those that leak or drift first."""
        yield f"{self.description.n_queries:,} queries, {self.description.n_documents:,} documents"
        rows = [
            [
                one.name,
                f"{one.missing_share:.1%}",
                "yes" if one.is_constant else "",
                one.twin or "",
                f"{one.skill:.3f}{' leaks' if one.leaks else ''}",
                "-" if one.drift != one.drift else f"{one.drift:.3f}{' drifts' if one.drifts else ''}",
            ]
            for one in sorted(self.features, key=lambda one: (not one.leaks, not one.drifts))
        ]
        yield ShownTable((["feature", "missing", "constant", "same as", "skill", "drift"], rows))


def profile(data: RankingDataset, test: RankingDataset | None = None) -> Profile:
    """Profile every feature of a data set, and its drift to a second one.

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
    check_dataset("data", data)
    drifts = np.full((data.n_features, 2), np.nan)
    if test is not None:
        check_dataset("test", test)
        of_features = find_drift(data, test, "test").changes[-data.n_features :]
        drifts = np.array([(change.distance, change.adjusted_p) for change in of_features])
    names = feature_labels(data.feature_names, data.n_features)
    skills = _find_skills(data)
    twins = _find_twins(data.features)
    features = []
    for j, name in enumerate(names):
        column = data.features[:, j]
        missing = float(np.isnan(column).mean())
        constant = missing == 1 or (missing == 0 and bool((column == column[0]).all()))
        twin = None if twins[j] == j or constant else names[twins[j]]
        features.append(Feature(name, missing, constant, twin, float(skills[j]), *drifts[j].tolist()))
    return Profile(
        describe(data),
        None if test is None else describe(test),
        data.lengths,
        None if test is None else test.lengths,
        tuple(features),
    )


def _find_skills(data: RankingDataset) -> Floats:
    """The skill of each feature, on at most 1,000 evenly spaced queries: how well it ranks by itself.

    (NDCG@10 - that of a random order) / (1 - that of a random order), ascending or descending, whichever is better. NaN
    if no query can be ranked well or badly.
    """
    part = data.select(spread(data.n_queries, _QUERIES))
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
    """For each column, the first column with the same values."""
    first: dict[bytes, int] = {}
    twins = []
    for j in range(features.shape[1]):
        column = np.ascontiguousarray(features[:, j]) + np.float32(0)  # no -0.0
        column[np.isnan(column)] = np.nan  # all NaNs with the same bits
        twins.append(first.setdefault(hashlib.sha256(column.tobytes()).digest(), j))
    return twins
