"""TRANSFORMS: raw features -> the float32 numbers that a network sees, some queries at a time.

======================  ==================================  =====================================================
name                    value                               range, mean and deviation of
======================  ==================================  =====================================================
``query_minmax``        (x - lowest) / (highest - lowest)   the documents of the query
``query_log1p``         (l - mean) / deviation              the documents of the query; l = sign(x) ln(1 + abs(x))
``query_rank``          share of the others below x         the documents of the query; ties count a half
``standard``            (x - mean) / deviation              all documents that it was fitted on
``log1p``               (l - mean) / deviation              all documents that it was fitted on
``quantile``            share of documents below x          all documents that it was fitted on
``none``                x
======================  ==================================  =====================================================

A missing value (NaN) gives 0 and counts in no statistic. A column or query whose values are all equal or all missing
gives 0 (``none``: the value). Deviations divide by the number of documents. Results are finite for every finite
float32, and the bits of a row do not depend on the order of the rows.

The per-query transforms need the whole candidate list of a query (``needs_queries``): next to other documents the same
document gets other values. If queries are unknown, in ``fit`` and later, they scale by all documents that they were
fitted on, so that some of the rows give the same values as all of them.

Networks may use several transforms side by side (``SideBySide``), and a piecewise-linear encoding of each feature
(``Piecewise``). ``add_query_copies`` gives trees each feature again, scaled and ranked within the query.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import OneToOneFeatureMixin, TransformerMixin, clone
from sklearn.utils import Tags

from tierank.arrays import Floats, allocate, chunks, release_pages
from tierank.data.columns import Category
from tierank.data.dataset import RankingDataset
from tierank.data.matching import HOW_TO_ROUTE, BaseEstimator, as_dataset, check_fitted, keep_features, match_features
from tierank.data.relevance import blocks_of
from tierank.data.team import Team
from tierank.errors import DataError, ParameterError
from tierank.kernels import features as scaling
from tierank.kernels import in_threads, n_threads
from tierank.settings import as_choice


class Transform(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base class of all transforms; subclass it to write your own. Transforms are scikit-learn transformers.

    ``fit`` takes a ``RankingDataset``, or features and one query id per row. A subclass defines ``learn``, which sets
    the arrays that it names in ``ARRAYS``, and ``apply``, the fast path for rows that are already grouped and checked.
    If it also defines ``learn_in_team``, several processes, each with a part of the documents, can fit it together.
    """

    # Whether a value depends on the other documents of its query.
    needs_queries: ClassVar[bool] = False
    # The fitted arrays by name, without the trailing underscore: dtype, and shape after the feature axis.
    ARRAYS: ClassVar[dict[str, tuple[type[np.floating[Any]], tuple[int, ...]]]] = {}
    has_queries_: bool
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    # scikit-learn routes query ids to these methods without being asked.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"qid": True}
    __metadata_request__transform: ClassVar[dict[str, bool]] = {"qid": True}

    def fit(self, X: Any, y: ArrayLike | None = None, qid: ArrayLike | None = None) -> Self:
        """Learn the statistics of all documents; ``y`` is ignored. Without ``qid`` queries are unknown.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        y : array, optional
            Ignored.
        qid : array, optional
            One query id per row. Without it queries are unknown.

        Returns
        -------
        self
            The fitted transform.
        """
        has_queries = isinstance(X, RankingDataset) or qid is not None
        return self.fit_in_team(as_dataset(X, None, qid), Team(), has_queries=has_queries)

    def fit_in_team(self, data: RankingDataset, team: Team, *, has_queries: bool = True) -> Self:
        """Learn the statistics of the documents of all processes of a team; all get the same arrays.

        Parameters
        ----------
        data : RankingDataset
            The documents, or those of this process.
        team : Team
            The processes.
        has_queries : bool, default True
            Whether the queries of the data are known.

        Returns
        -------
        self
            The fitted transform.
        """
        category = next((name for name, kind in data.kinds.items() if isinstance(kind, Category)), None)
        if category is not None:
            raise DataError(expected="numeric features", got=f"texts in column {category!r}")
        self.has_queries_ = has_queries
        if team.size == 1 or not (team.holds_parts or self.takes_parts):
            self.learn(data.features)
        elif self.takes_parts:
            self.learn_in_team(team.part(data).features, team)
        else:
            raise ParameterError(
                argument="feature_transform",
                expected="transforms that define learn_in_team if each process has a part of the data",
                got=type(self).__name__,
            )
        keep_features(self, data.n_features, data.feature_names)
        return self

    def transform(self, X: Any, qid: ArrayLike | None = None) -> NDArray[np.float32]:
        """The transformed features, in the caller's order. Per-query transforms need ``qid`` if ``fit`` had it.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        qid : array, optional
            One query id per row.

        Returns
        -------
        array of float32
            One row per document.
        """
        check_fitted(self)
        if self.needs_queries:
            self._check_queries(isinstance(X, RankingDataset) or qid is not None)
        data = match_features(self, X, qid)
        transformed: NDArray[np.float32] = data.restore(
            self.values_of(data.features, data.offsets if self.has_queries_ else None)
        )
        return transformed

    def fit_transform(self, X: Any, y: ArrayLike | None = None, qid: ArrayLike | None = None) -> NDArray[np.float32]:
        """``fit``, then ``transform`` with the same query ids.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        y : array, optional
            Ignored.
        qid : array, optional
            One query id per row. Without it queries are unknown.

        Returns
        -------
        array of float32
            One row per document.
        """
        return self.fit(X, y, qid).transform(X, qid)

    @abstractmethod
    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The transformed features of whole queries, grouped as in a ``RankingDataset``; None: queries are unknown.

        Parameters
        ----------
        features : array of float32
            One row per document, grouped by query.
        offsets : array of int64 or None
            Where queries begin, and where the last one ends; None if queries are unknown.

        Returns
        -------
        array of float32
            One row per document, ``n_columns(n_features)`` columns.
        """

    def values_of(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The result of ``apply`` as a contiguous array of float32; raises ``ParameterError`` if its shape is wrong.

        Parameters
        ----------
        features : array of float32
            One row per document, grouped by query.
        offsets : array of int64 or None
            Where queries begin, and where the last one ends; None if queries are unknown.

        Returns
        -------
        array of float32
            One row per document, ``n_columns(n_features)`` columns.
        """
        values = np.ascontiguousarray(self.apply(features, offsets), np.float32)
        shape = (len(features), self.n_columns(features.shape[1]))
        if values.shape != shape:
            raise ParameterError(
                argument="feature_transform",
                expected=f"an array of shape {shape} from {type(self).__name__}.apply",
                got=f"one of shape {values.shape}",
                fix="return one row per document; n_columns says how many columns it has",
            )
        return values

    def learn(self, features: NDArray[np.float32]) -> None:
        """Set the fitted arrays.

        Parameters
        ----------
        features : array of float32
            One row per document, grouped by query.
        """
        self.learn_in_team(features, Team())

    def learn_in_team(self, features: NDArray[np.float32], team: Team) -> None:
        """Set the fitted arrays to those of the documents of all processes; ``features`` are those of this process.

        Parameters
        ----------
        features : array of float32
            The documents of this process.
        team : Team
            The processes that fit the transform together.
        """
        raise NotImplementedError  # a subclass defines learn, or this

    @property
    def takes_parts(self) -> bool:
        """Whether several processes, each with a part of the documents, can fit it together.

        A class that defines only ``learn`` does not say how to combine the statistics of parts.
        """
        learns, learns_in_team = (
            next(place for place, kind in enumerate(type(self).__mro__) if name in vars(kind))
            for name in ("learn", "learn_in_team")
        )
        return learns_in_team <= learns

    def n_columns(self, n_features: int) -> int:
        """The number of columns for this many features, a multiple: column c is of feature c mod ``n_features``.

        Parameters
        ----------
        n_features : int
            Number of features.

        Returns
        -------
        int
            Number of columns.
        """
        return n_features

    def state(self) -> dict[str, NDArray[Any]]:
        """The fitted arrays by name; ``load_state`` restores the transform from them.

        Returns
        -------
        dict of str to array
            The fitted arrays.
        """
        check_fitted(self)
        return {"has_queries": np.array(self.has_queries_)} | {name: getattr(self, f"{name}_") for name in self.ARRAYS}

    def load_state(self, state: Mapping[str, NDArray[Any]], n_features: int) -> Self:
        """Take over the ``state`` of a fitted transform; raises ``DataError`` if an array has the wrong shape.

        >>> from tierank.transforms import Standard
        >>> fitted = Standard().fit([[1.0], [3.0]])
        >>> Standard().load_state(fitted.state(), n_features=1).transform([[5.0]])
        array([[3.]], dtype=float32)

        Parameters
        ----------
        state : mapping of str to array
            The result of ``state``.
        n_features : int
            Number of features.

        Returns
        -------
        self
            The fitted transform.
        """
        cls = type(self)
        wanted = ["has_queries", *cls.ARRAYS]
        if set(state) != set(wanted):
            expected, got = f"the arrays {', '.join(wanted)}", ", ".join(state)
            raise DataError(where=cls.__name__, expected=expected, got=got)
        _check_array(state["has_queries"], "has_queries", np.bool_, ())
        for name, (kind, shape) in cls.ARRAYS.items():
            _check_array(state[name], name, kind, (n_features, *shape))
        self.has_queries_ = bool(state["has_queries"])
        for name in cls.ARRAYS:
            setattr(self, f"{name}_", np.ascontiguousarray(state[name]))
        keep_features(self, n_features, None)
        return self

    def _check_queries(self, known: bool) -> None:
        """Raise ``DataError`` unless query ids are given if and only if ``fit`` had them."""
        name = type(self).__name__
        if self.has_queries_ and not known:
            raise DataError(
                argument="qid",
                expected="one query id per row, as in fit",
                got=f"none, and {name} scales each query by its own documents",
                fix=f"for one query pass qid=np.zeros(len(X)); {HOW_TO_ROUTE}",
            )
        if known and not self.has_queries_:
            raise DataError(
                argument="qid",
                expected="none, as in fit",
                got=f"query ids, and this {name} scales all documents alike",
                fix="pass qid to fit too",
            )

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


def _check_array(array: NDArray[Any], name: str, kind: type[np.generic], shape: tuple[int, ...]) -> None:
    """Raise ``DataError`` unless the array is as expected: compiled loops do not check sizes."""
    if array.dtype != kind or array.shape != shape:
        expected, got = f"{kind.__name__} of shape {shape}", f"{array.dtype.name} of shape {array.shape}"
        raise DataError(argument=name, expected=expected, got=got)
    if not np.isfinite(array).all():
        raise DataError(argument=name, expected="finite numbers", got="NaN or infinity")


# The most documents that quantiles are computed from, values sorted at a time, and documents fetched at a time: the
# whole matrix is never copied.
_SAMPLE = 1 << 20
_SORTED = 1 << 24
_FETCHED = 1 << 14


def sorted_columns(features: NDArray[np.float32], team: Team) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """For each column, its index and its sorted known values in a sample of all documents of a team."""
    counts = team.all_gather(len(features))
    n, start = min(sum(counts), _SAMPLE), sum(counts[: team.rank])
    rows = np.arange(n) * sum(counts) // max(1, n) - start
    here = rows[(rows >= 0) & (rows < len(features))]
    n_values = _SORTED if team.size == 1 else _SORTED // 8  # what is sent from process to process is copied
    at_once = max(1, n_values // max(1, n))
    for first in range(0, features.shape[1], at_once):
        columns = slice(first, first + at_once)
        sample = np.empty((features[:1, columns].shape[1], len(here)), np.float32)  # one column after the other
        for start in range(0, len(here), _FETCHED):
            some = here[start : start + _FETCHED]
            sample[:, start : start + len(some)] = features[some, columns].T
            release_pages(features[some[0] : some[-1] + 1])
        if team.size > 1:
            sample = np.ascontiguousarray(team.gather_rows(np.ascontiguousarray(sample.T)).T)
        sample.sort(axis=1)  # missing values last
        for column, values in enumerate(sample, start=first):
            yield column, values[: np.count_nonzero(values == values)]


# Values of queries that are rescaled at a time.
_VALUES_AT_ONCE = 1 << 18


class Rescaling(Transform):
    """(x - center) scale, clipped to limits: base class of the transforms by range, or by mean and deviation."""

    ARRAYS = {"center": (np.float64, ()), "scale": (np.float64, ())}  # noqa: RUF012  (a ClassVar of Transform)
    center_: NDArray[Any]
    scale_: NDArray[Any]

    # Whether the logarithm is taken first, and whether center and scale are mean and deviation, or lowest and range.
    TAKES_LOGS: ClassVar[bool] = False
    STANDARDISES: ClassVar[bool] = True
    # None of n values lies more than sqrt(n - 1) deviations from their mean, so up to 10^8 documents that were fitted
    # on stay within these limits; a stray value in new data cannot become infinite in a network.
    LIMITS: ClassVar[tuple[float, float]] = (-1e4, 1e4)

    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The transformed features of whole queries, grouped as in a ``RankingDataset``; None: queries are unknown."""
        out = np.empty(features.shape, np.float32)
        if self.needs_queries and offsets is not None:
            for rows, bounds in blocks(offsets, features.shape[1]):
                values = self._prepared(features[rows])
                scaling.rescale(values, bounds, *self._scales(values, bounds), *self.LIMITS, out[rows])
            return out
        if self.TAKES_LOGS:
            scaling.take_logs(features, out)
            features = out
        scaling.rescale(
            features, np.array([0, len(features)]), self.center_[None], self.scale_[None], *self.LIMITS, out
        )
        return out

    def _scales(self, values: NDArray[np.float32], bounds: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Center and scale of each query and feature, by the values of the query."""
        shape = (len(bounds) - 1, values.shape[1])
        low, high = np.full(shape, np.inf, np.float32), np.full(shape, -np.inf, np.float32)
        scaling.find_ranges(values, bounds, low, high)
        center, scale = scaling.by_range(low, high)
        if not self.STANDARDISES:
            return center, scale
        moments = scaling.Moments(*np.zeros((3, *shape)))
        scaling.add_moments(values, bounds, center, scale, scaling.power_above(np.diff(bounds)), moments)
        return scaling.standardise(moments, center, scale)

    def learn_in_team(self, features: NDArray[np.float32], team: Team) -> None:
        """The range, mean and deviation of each feature, bit-identical to those of one process: sums are exact."""
        n_features = features.shape[1]
        ranges = np.array([np.full(n_features, np.inf), np.full(n_features, -np.inf)], np.float32)
        for values in map(self._prepared, chunks(features)):
            scaling.find_ranges(values, np.array([0, len(values)]), ranges[:1], ranges[1:])
        gathered = team.gather_rows(ranges.reshape(1, -1))
        low, high = gathered[:, :n_features].min(axis=0), gathered[:, n_features:].max(axis=0)
        center, scale = scaling.by_range(low[None], high[None])
        if self.STANDARDISES:
            sums = np.zeros((3, n_features))
            powers = scaling.power_above(np.array([sum(team.all_gather(len(features)))]))
            moments = scaling.Moments(*sums[:, None])
            for values in map(self._prepared, chunks(features)):
                scaling.add_moments(values, np.array([0, len(values)]), center, scale, powers, moments)
            center, scale = scaling.standardise(scaling.Moments(*team.all_reduce(sums)[:, None]), center, scale)
        self.center_, self.scale_ = center[0], scale[0]

    def _prepared(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        if not self.TAKES_LOGS:
            return features
        logs = np.empty(features.shape, np.float32)
        scaling.take_logs(features, logs)
        return logs


class QueryMinMax(Rescaling):
    """(x - lowest) / (highest - lowest) over the documents of the query: from 0 to 1. The paper's, and the default.

    Where queries are unknown: lowest and highest of all documents that it was fitted on; values outside give 0 or 1.
    Missing: 0, as the lowest. Needs the whole candidate list of each query.

    >>> QueryMinMax().fit_transform([[2.0], [7.0], [4.0], [5.0]], qid=["a", "b", "a", "a"]).tolist()
    [[0.0], [0.0], [0.6666666865348816], [1.0]]
    >>> QueryMinMax().fit([[2.0], [6.0]]).transform([[3.0], [8.0], [float("nan")]]).tolist()
    [[0.25], [1.0], [0.0]]
    """

    needs_queries = True
    STANDARDISES = False
    LIMITS = (0.0, 1.0)


class Standard(Rescaling):
    """(x - mean) / deviation, both of all documents that it was fitted on. Missing: 0, as the mean.

    >>> Standard().fit([[1.0], [3.0]]).transform([[1.0], [2.0], [4.0], [float("nan")]]).tolist()
    [[-1.0], [0.0], [2.0], [0.0]]
    """


class Log1p(Rescaling):
    """l = sign(x) ln(1 + |x|), then (l - mean) / deviation of all documents that it was fitted on. Missing: 0.

    >>> Log1p().fit([[0.0], [np.e**2 - 1]]).transform([[np.e - 1], [1 - np.e]]).round(5).tolist()
    [[0.0], [-2.0]]
    """

    TAKES_LOGS = True


class QueryLog1p(Log1p):
    """l = sign(x) ln(1 + |x|), then (l - mean) / deviation over the documents of the query.

    Where queries are unknown it is ``Log1p``. Missing: 0, as the mean. Needs the whole candidate list of each query.

    >>> QueryLog1p().fit_transform([[0.0], [5.0], [9.0], [8.0]], qid=[1, 1, 2, 2]).tolist()
    [[-1.0], [1.0], [1.0], [-1.0]]
    """

    needs_queries = True


class Unchanged(Transform):
    """x unchanged. Missing: 0.

    >>> Unchanged().fit_transform([[3.0], [float("nan")]]).tolist()
    [[3.0], [0.0]]
    """

    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The features, 0 where missing."""
        return np.where(np.isnan(features), np.float32(0), features)

    def learn_in_team(self, features: NDArray[np.float32], team: Team) -> None:
        """Nothing."""


def blocks(offsets: NDArray[np.int64], n_features: int) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Blocks of whole queries that fit the processor's caches, with the offsets of their queries."""
    return ((rows, edges) for _, rows, edges in blocks_of(offsets, _VALUES_AT_ONCE // max(n_features, 1)))


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
        scaling.rescale(scaled, np.array([0, len(scaled)]), low, slope, 0.0, 1.0, out)
        return out

    def rescaled(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """The numbers z that are encoded."""
        return super().apply(features, None)

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
        keep_features(self, data.n_features, data.feature_names)
        return self

    def state(self) -> dict[str, NDArray[Any]]:
        """What is fitted: the arrays of each part, with its number."""
        check_fitted(self)
        return {f"{k}.{name}": array for k, part in enumerate(self.parts_) for name, array in part.state().items()}

    def load_state(self, state: Mapping[str, NDArray[Any]], n_features: int) -> Self:
        """Take over the ``state`` of a fitted transform; raises ``DataError`` if an array has the wrong shape."""
        if {name.partition(".")[0] for name in state} != set(map(str, range(len(self.parts)))):
            expected, got = f"the arrays of {len(self.parts)} transforms", ", ".join(state)
            raise DataError(where="SideBySide", expected=expected, got=got)
        parts = []
        for k, part in enumerate(self.parts):
            own = {name.partition(".")[2]: array for name, array in state.items() if name.startswith(f"{k}.")}
            parts.append(clone(part).load_state(own, n_features))
        self.parts_ = tuple(parts)
        self.has_queries_ = self.parts_[0].has_queries_
        keep_features(self, n_features, None)
        return self


TRANSFORMS: dict[str, type[Transform]] = {
    "query_minmax": QueryMinMax,
    "query_log1p": QueryLog1p,
    "query_rank": QueryRank,
    "standard": Standard,
    "log1p": Log1p,
    "quantile": Quantile,
    "none": Unchanged,
}

# What ``feature_transform`` may be.
EXPECTED = "a key of TRANSFORMS, a Transform, or a list of these"


def as_transform(value: Any) -> Any:
    """One value of the setting ``feature_transform``: a name, or a transform."""
    if isinstance(value, type) and issubclass(value, Transform):
        return value()
    return value if isinstance(value, Transform) else as_choice("feature_transform", value, TRANSFORMS)


def as_transforms(value: Any) -> tuple[Any, ...]:
    """The setting ``feature_transform`` of one or several transforms, as a tuple."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not values:
        raise ParameterError(argument="feature_transform", expected=EXPECTED, got=repr(value))
    transforms = tuple(as_transform(one) for one in values)
    names = [one for one in transforms if isinstance(one, str)]
    if len(set(names)) < len(names):
        raise ParameterError(argument="feature_transform", expected="each transform once", got=repr(value))
    return transforms


def make_transform(transform: Any) -> Transform:
    """An unfitted transform: by its name, a copy of the given one, or several side by side."""
    if isinstance(transform, tuple):
        return SideBySide([make_transform(one) for one in transform])
    fresh: Transform = TRANSFORMS[transform]() if isinstance(transform, str) else clone(transform)
    return fresh


# About how many documents are copied at a time.
_DOCUMENTS_AT_ONCE = 1 << 14


def add_query_copies(data: RankingDataset, n_jobs: int | None = None) -> RankingDataset:
    """The data set with two more features for each feature: its range-scaled value and its rank within the query.

    The first is (x - lowest) / (highest - lowest), the second the share of the other documents that rank below x, ties
    counting a half; both over the documents of the query whose value is known. Missing values stay missing. The copies
    of categories are all missing, as ranks of levels mean nothing. If the result would take more than a quarter of the
    memory, it is written to a temporary file and mapped.

    >>> data = RankingDataset([[2.0], [7.0], [4.0], [float("nan")], [4.0]], qid=list("abaaa"))
    >>> add_query_copies(data).features.round(2).tolist()
    [[2.0, 0.0, 0.0], [4.0, 1.0, 0.75], [nan, nan, nan], [4.0, 1.0, 0.75], [7.0, 0.0, 0.0]]
    """
    out = allocate(data.n_documents, 3 * data.n_features, beside=data.features)

    def copy(first: int, last: int) -> None:
        scaling.copy_in_queries(data.features, data.offsets, first, last, out)
        rows = slice(data.offsets[first], data.offsets[last])
        release_pages(data.features[rows])
        release_pages(out[rows])

    # Query boundaries that cut the rows into parts of a few thousand documents each.
    n_parts = max(n_threads(n_jobs), data.n_documents // _DOCUMENTS_AT_ONCE)
    cuts = np.unique(np.linspace(0, data.n_queries, n_parts + 1).astype(int)).tolist()
    in_threads(copy, pairwise(cuts), n_jobs)
    for place, name in enumerate(data.feature_names or ()):
        if isinstance(data.kinds.get(name), Category):
            out[:, [data.n_features + place, 2 * data.n_features + place]] = np.nan
    names = data.feature_names
    copies = None if names is None else (*names, *(f"{n} in query" for n in names), *(f"rank of {n}" for n in names))
    return data.with_features(out, copies)
