"""Descriptions of data sets: the columns of the paper's table, and what to know before training."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank import notebook
from tierank.dataset import RankingDataset, check_dataset
from tierank.doubts import LEAKS_FROM, find_skills
from tierank.drift import DRIFTS_FROM, Drift, find_distances, find_drift, same_features
from tierank.files import for_json
from tierank.markup import Html
from tierank.memory import chunks
from tierank.types import Floats

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
        return self._counts() | levels | drift

    def _counts(self) -> dict[str, Any]:
        """All numbers except those of the drift."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "drift"}

    def to_pandas(self) -> Any:
        """A pandas table with a row per number: ``name`` and ``value``."""
        numbers = {name: value for name, value in self._counts().items() if name not in _PER_RATING}
        numbers |= {f"documents rated {rating:g}": n for rating, n in self.documents_per_rating.items()}
        return notebook.as_pandas({"name": list(numbers), "value": list(numbers.values())})

    def _repr_html_(self) -> str:
        numbers, levels = self._tables()
        ratings = notebook.folded("documents by rating", notebook.grid(["rating", "documents"], levels))
        drift = Html("") if self.drift is None else Html(self.drift._repr_html_())
        return notebook.sheet("Description", notebook.grid(["", ""], numbers), ratings, drift)

    def __str__(self) -> str:
        numbers, levels = self._tables()
        rows = [*numbers, *([f"documents rated {rating}", n] for rating, n in levels)]
        return "\n".join(
            [*notebook.lines(rows[0], rows[1:], len(rows)), *([] if self.drift is None else [str(self.drift)])]
        )

    __repr__ = __str__

    def _tables(self) -> tuple[list[list[str]], list[list[str]]]:
        """The numbers by name, and the documents by rating."""
        numbers = [[label, _shown(name, getattr(self, name))] for name, label in _LABELS.items()]
        return numbers, [[f"{rating:g}", f"{n:,}"] for rating, n in self.documents_per_rating.items()]


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
    levels, counts = np.unique(ratings, return_counts=True)
    missing_share, n_constant = _look_at_features(data)
    return Description(
        n_queries=data.n_queries,
        n_documents=data.n_documents,
        n_features=data.n_features,
        n_rating_levels=len(levels),
        lowest_share=float(counts[0] / judged.n_documents),
        max_documents=int(data.lengths.max()),
        lowest_share_per_query=float((lowest_in_query / lengths).mean()),
        documents_per_rating=_counted(ratings),
        queries_per_top_rating=_counted(highest),
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


def _counted(values: Floats) -> dict[float, int]:
    levels, counts = np.unique(values, return_counts=True)
    return dict(zip(levels.tolist(), counts.tolist(), strict=True))


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
    """

    name: str
    missing_share: float
    is_constant: bool
    twin: str | None
    skill: float
    drift: float

    @property
    def leaks(self) -> bool:
        """Whether it ranks almost perfectly by itself: probably a rating, or computed from one."""
        return self.skill >= LEAKS_FROM

    @property
    def drifts(self) -> bool:
        """Whether its values differ in the second data set."""
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
        """A dict for JSON: ``data``, ``test``, and a dict for each of the ``features``; undefined numbers are None."""
        rows = [asdict(feature) | {"leaks": feature.leaks, "drifts": feature.drifts} for feature in self.features]
        return {
            "data": self.description.to_dict(),
            "test": None if self.test is None else self.test.to_dict(),
            "features": for_json(rows),
        }

    def to_pandas(self) -> Any:
        """A pandas table with a row per feature."""
        rows = [asdict(feature) | {"leaks": feature.leaks, "drifts": feature.drifts} for feature in self.features]
        return notebook.as_pandas({name: [row[name] for row in rows] for name in (rows[0] if rows else {})})

    def _repr_html_(self) -> str:
        return notebook.sheet("Profile", notebook.note(self._counts()), notebook.grid(*self._table()))

    def __str__(self) -> str:
        return "\n".join([self._counts(), *notebook.lines(*self._table())])

    __repr__ = __str__

    def _counts(self) -> str:
        return f"{self.description.n_queries:,} queries, {self.description.n_documents:,} documents"

    def _table(self) -> tuple[list[str], list[list[str]]]:
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
        return ["feature", "missing", "constant", "same as", "skill", "drift"], rows


def _shown(name: str, value: float) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if "share" in name:
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


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
    drifts = np.full(data.n_features, np.nan)
    if test is not None:
        check_dataset("test", test)
        drifts = find_distances(*same_features(data, test, "test"))
    names = data.feature_names or tuple(f"feature {j}" for j in range(1, data.n_features + 1))
    skills = find_skills(data, _QUERIES)
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


def _find_twins(features: NDArray[np.float32]) -> list[int]:
    """For each column, the first column with the same values."""
    first: dict[bytes, int] = {}
    twins = []
    for j in range(features.shape[1]):
        column = np.ascontiguousarray(features[:, j]) + np.float32(0)  # no -0.0
        column[np.isnan(column)] = np.nan  # all NaNs with the same bits
        twins.append(first.setdefault(hashlib.sha256(column.tobytes()).digest(), j))
    return twins
