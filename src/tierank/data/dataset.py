"""RankingDataset: the one data type, grouped by query and checked once."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank import display as notebook
from tierank.arrays import MOST_FEATURES, allocate, check_width, chunks, release_pages
from tierank.data.checks import (
    MOST_POSITIONS,
    as_array,
    as_names,
    as_places,
    as_positions,
    as_propensities,
    as_ratings,
    as_weights,
    check_texts,
    group_rows,
    id_array,
    shape_of,
    to_numbers,
    twice_in,
)
from tierank.data.columns import Category, Columns, ColumnType, ColumnTypes
from tierank.data.relevance import find_tiers
from tierank.data.tables import (
    as_days,
    as_features,
    by_index,
    check_declared,
    load_stream,
    series_name,
    warn_of_row_order,
)
from tierank.data.text import StringArray
from tierank.display import Html
from tierank.errors import DataError, ParameterError
from tierank.settings import as_whole

# The most feature names that a data set prints.
_LISTED = 12
# What other libraries call the parts of a data set: ours.
_ATTRIBUTES = {
    "X": "features",
    **dict.fromkeys(("y", "label", "labels", "target"), "ratings"),
    "qid": "query_ids, one per query; query_ids[query_of_row] has one per row",
    **dict.fromkeys(("group", "groups", "group_sizes"), "lengths"),
    "shape": "n_documents and n_features",
    "columns": "feature_names",
    **dict.fromkeys(("to_pandas", "to_csv", "to_parquet"), "tierank.write(data, path)"),
}


# The parts of a data set: with one value per document, with one per query, and others.
_OF_DOCUMENTS = ("features", "ratings", "row_weight", "document_texts", "position", "propensity")
_OF_QUERIES = ("query_ids", "query_weight")
_PARTS = (*_OF_DOCUMENTS, *_OF_QUERIES, "offsets", "source_rows", "feature_names", "kinds", "roles")


class RankingDataset:
    """Documents with features and ratings, grouped by query.

    Rows are grouped when the data set is built: queries are in order of first appearance, documents in the caller's
    order. Query i has the rows ``offsets[i]:offsets[i + 1]`` of every per-document array. Scores that go into or come
    out of tierank are in the caller's order; ``arrange`` and ``restore`` convert between the two.

    Parameters
    ----------
    X : array, sparse matrix or table
        Features, one row per document; NaN marks a missing value. Stored as float32.
    y : array, optional
        One rating per row, any finite number >= 0; NaN or None for an unjudged document.
    qid : array, optional
        One query id per row, of any hashable type and in any order. Without it all rows are one query.
    row_weight : array, optional
        One weight per row.
    query_weight : array or mapping, optional
        One weight per query in order of appearance, one per row, or a mapping from query id to weight; a pandas Series
        whose index holds the query ids is one.
    feature_names : list of str, optional
        One name per feature. Default: the columns of a table.
    document_ids : list, optional
        One id per row.
    columns : Columns, optional
        What the columns of a table hold, where their types do not tell: see ``Columns``.
    position : array, optional
        Where each document was shown, from 1, if the ratings are clicks.
    propensity : array or Propensities, optional
        The chance that each document was examined: see ``with_propensity``.

    Attributes
    ----------
    features : array of float32
        One row per document.
    offsets : array of int64
        Where each query starts, and where the last one ends.
    query_ids : array
        The id of each query.
    row_weight : array or None
        One weight per document.
    query_weight : array or None
        One weight per query.
    feature_names : tuple of str or None
        The names of the features.
    kinds : mapping of str to ColumnType
        The kind of each feature that is not a plain number, such as a category or a date, by feature name.
    position : array of int64 or None
        Where each document was shown.
    propensity : array of float64 or None
        The chance that each document was examined, up to a factor.
    roles : mapping of str to str
        The names of the columns that query ids (``query``), ratings (``rating``) and document ids (``document``) come
        from, as far as they are known.

    Examples
    --------
    >>> data = RankingDataset([[0.1], [0.2], [0.3], [0.4]], [0, 2, 1, 0], qid=["a", "b", "a", "b"])
    >>> data
    RankingDataset(2 queries, 4 documents, 1 feature, ratings 0 to 2)
    >>> data.offsets.tolist(), data.ratings.tolist(), data.tiers.tolist()
    ([0, 2, 4], [0.0, 1.0, 2.0, 0.0], [1, 0, 0, 1])
    >>> data.restore(data.ratings).tolist()
    [0.0, 2.0, 1.0, 0.0]
    """

    features: NDArray[np.float32]
    offsets: NDArray[np.int64]
    query_ids: NDArray[Any]
    row_weight: NDArray[np.float64] | None
    query_weight: NDArray[np.float64] | None
    feature_names: tuple[str, ...] | None
    document_texts: StringArray | None
    kinds: ColumnTypes
    position: NDArray[np.int64] | None
    propensity: NDArray[np.float64] | None
    roles: Mapping[str, str]
    _ratings: NDArray[np.float64] | None
    _source_rows: NDArray[np.int64] | None

    def __init__(
        self,
        X: Any,
        y: ArrayLike | None = None,
        qid: ArrayLike | None = None,
        *,
        row_weight: ArrayLike | None = None,
        query_weight: ArrayLike | Mapping[Hashable, float] | None = None,
        feature_names: Sequence[str] | None = None,
        document_ids: Iterable[object] | None = None,
        columns: Columns | None = None,
        position: ArrayLike | None = None,
        propensity: Any = None,
    ) -> None:
        X = load_stream(X)
        check_declared(X, columns)
        warn_of_row_order(X=X, y=y, qid=qid, row_weight=row_weight, position=position)
        features, names, self.kinds = as_features(X, columns)
        if feature_names is not None and self.kinds:
            expected = "None with a table that has texts, dates or vectors: the columns are known by their names"
            fix = "rename the columns of the table"
            raise DataError(argument="feature_names", expected=expected, got="some", fix=fix)
        n = len(features)
        self.query_ids, self.offsets, self._source_rows = group_rows(qid, n)
        self.features = self.arrange(features)
        self._ratings = None if y is None else self.arrange(as_ratings(y, n, may_be_unjudged=True))
        self.row_weight = None if row_weight is None else self.arrange(as_weights(row_weight, "row_weight", n))
        self.query_weight = None if query_weight is None else self.weights_per_query(query_weight)
        self.feature_names = as_names(names if feature_names is None else feature_names, features.shape[1])
        self.document_texts = None if document_ids is None else self._documents(document_ids)
        self.position = None if position is None else self.arrange(as_positions(position, n))
        self.propensity = None if propensity is None else self._propensities(propensity)
        named = {"query": series_name(qid), "rating": series_name(y), "document": series_name(document_ids)}
        self.roles = {role: name for role, name in named.items() if name is not None}

    @classmethod
    def from_parts(
        cls,
        features: NDArray[np.float32],
        ratings: NDArray[np.float64] | None,
        offsets: NDArray[np.int64],
        query_ids: NDArray[Any],
        *,
        source_rows: NDArray[np.int64] | None = None,
        row_weight: NDArray[np.float64] | None = None,
        query_weight: NDArray[np.float64] | None = None,
        feature_names: tuple[str, ...] | None = None,
        document_texts: StringArray | None = None,
        kinds: ColumnTypes | None = None,
        position: NDArray[np.int64] | None = None,
        propensity: NDArray[np.float64] | None = None,
        roles: Mapping[str, str] | None = None,
    ) -> RankingDataset:
        """A data set from parts that are already grouped and checked. Nothing is copied or checked.

        Parameters
        ----------
        features : array of float32
            One row per document, grouped by query.
        ratings : array of float64 or None
            One rating per document.
        offsets : array of int64
            Where each query starts, and where the last one ends.
        query_ids : array
            The id of each query.
        source_rows : array of int64, optional
            The caller's row number of each document, if the order differs.
        row_weight, query_weight : array of float64, optional
            Weights of documents and of queries.
        feature_names : tuple of str, optional
            The names of the features.
        document_texts : StringArray, optional
            The ids of the documents.
        kinds : mapping of str to ColumnType, optional
            The kind of each feature that is not a plain number, by feature name.
        position : array of int64, optional
            Where each document was shown.
        propensity : array of float64, optional
            The chance that each document was examined.
        roles : mapping of str to str, optional
            The names of the columns that query ids, ratings and document ids come from.

        Returns
        -------
        RankingDataset
            The data set.
        """
        self = cls.__new__(cls)
        self.features, self._ratings, self.offsets, self.query_ids = features, ratings, offsets, query_ids
        self._source_rows, self.row_weight, self.query_weight = source_rows, row_weight, query_weight
        self.feature_names, self.document_texts, self.kinds = feature_names, document_texts, kinds or {}
        self.position, self.propensity, self.roles = position, propensity, roles or {}
        return self

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self) or name not in RankingDataset.__annotations__:
            raise AttributeError(
                f"{name}: a RankingDataset cannot be changed; replace(...) returns a new one", name=name
            )
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # to a checker, a class with __getattr__ has every attribute

        def __getattr__(self, name: str) -> Any:
            """Say what the attribute of another library is called here."""
            if name in _ATTRIBUTES:
                message = f"'RankingDataset' object has no attribute {name!r}: use {_ATTRIBUTES[name]}"
                raise AttributeError(message, name=name, obj=self)
            return object.__getattribute__(self, name)  # raises the usual error

    def __repr__(self) -> str:
        rated = f"ratings {self._rating_words()}" if self.is_rated else "no ratings"
        of = {role: f" of {name!r}" for role, name in self.roles.items()}
        names = self.feature_names or ()
        listed = f" ({', '.join(names[:_LISTED])}{', ...' * (len(names) > _LISTED)})" if names else ""
        parts = [
            f"{n:,} {one if n == 1 else many}{more}"
            for n, one, many, more in (
                (self.n_queries, "query", "queries", of.get("query", "")),
                (self.n_documents, "document", "documents", of.get("document", "")),
                (self.n_features, "feature", "features", listed),
            )
        ]
        return f"RankingDataset({', '.join([*parts, rated + of.get('rating', '') * self.is_rated])})"

    def _repr_html_(self) -> str:
        lengths, weights = self.lengths, {"rows": self.row_weight, "queries": self.query_weight}
        rows = [
            ["queries", f"{self.n_queries:,}"],
            ["documents", f"{self.n_documents:,}"],
            ["documents of a query", f"{lengths.min():,} to {lengths.max():,}, median {np.median(lengths):g}"],
            ["features", f"{self.n_features:,}"],
            ["ratings", self._rating_words() if self.is_rated else "none"],
            ["weights", " and ".join(kind for kind, given in weights.items() if given is not None) or "none"],
            ["document ids", "no" if self.document_texts is None else "yes"],
            *([f"{role} column", name] for role, name in self.roles.items()),
        ]
        names = ", ".join(self.feature_names or ())
        listed = notebook.folded("feature names", notebook.note(names)) if names else Html("")
        return notebook.sheet("RankingDataset", notebook.grid(["", ""], rows), listed)

    def _rating_words(self) -> str:
        """The lowest and the highest rating, and how many documents have none."""
        known = self.ratings[self.is_judged]
        words = [f"{known.min() + 0.0:g} to {known.max() + 0.0:g}"] if len(known) else []  # not -0
        return ", ".join([*words, *([f"{self.n_unjudged:,} unjudged"] if self.n_unjudged else [])])

    @property
    def n_queries(self) -> int:
        """Number of queries."""
        return len(self.offsets) - 1

    @property
    def n_documents(self) -> int:
        """Number of documents in all queries."""
        return len(self.features)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.features.shape[1])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of documents of each query."""
        return np.diff(self.offsets)

    @property
    def is_rated(self) -> bool:
        """Whether the documents have ratings."""
        return self._ratings is not None

    @property
    def ratings(self) -> NDArray[np.float64]:
        """The rating of each document, NaN where it is unjudged; raises ``DataError`` if the data have no ratings."""
        return self.check_rated()

    def check_rated(self) -> NDArray[np.float64]:
        """Raise ``DataError`` if the documents have no ratings.

        Returns
        -------
        array
            The ratings.
        """
        if self._ratings is None:
            expected = "`y` when it was built, or a rating column in its file"
            fix = "name that column with `rating`"
            raise DataError(where="this data set has no ratings", expected=expected, fix=fix)
        return self._ratings

    @cached_property
    def is_judged(self) -> NDArray[np.bool_]:
        """Whether each document has a rating; raises ``DataError`` if the data have no ratings."""
        return ~np.isnan(self.ratings)

    @property
    def n_unjudged(self) -> int:
        """Number of documents without a rating, in data that have ratings; 0 in data that have none."""
        return self.n_documents - int(np.count_nonzero(self.is_judged)) if self.is_rated else 0

    @property
    def is_in_order(self) -> bool:
        """Whether the rows were already grouped by query, so that none was moved."""
        return self._source_rows is None

    @property
    def source_rows(self) -> NDArray[np.int64]:
        """The caller's row number of each document."""
        return np.arange(self.n_documents) if self._source_rows is None else self._source_rows

    @property
    def query_of_row(self) -> NDArray[np.int64]:
        """The index of each document's query."""
        return np.repeat(np.arange(self.n_queries), self.lengths)

    @cached_property
    def tiers(self) -> NDArray[np.int32]:
        """The index of each rating among the unique ratings of its query; 0 is the highest, -1 is unjudged."""
        # Unjudged documents rank below all others, so the tiers of the others do not depend on them.
        tiers, _ = find_tiers(np.where(self.is_judged, self.ratings, -1.0), self.offsets)
        return np.where(self.is_judged, tiers.astype(np.int32), np.int32(-1))

    @cached_property
    def document_ids(self) -> list[str] | None:
        """The id of each document, or None if the data have no ids."""
        return None if self.document_texts is None else list(self.document_texts)

    def caller_texts(self) -> StringArray | None:
        """The document ids in the caller's order, or None if the data have no ids."""
        texts = self.document_texts
        return texts if texts is None or self._source_rows is None else texts[self._source_rows.argsort()]

    def arrange(self, values: NDArray[Any]) -> NDArray[Any]:
        """Convert per-document values from the caller's order to the order of this data set.

        Parameters
        ----------
        values : array
            One value per row, in the caller's order.

        Returns
        -------
        array
            The same values, grouped by query.
        """
        given = self._of_rows(values, "values")
        return given if self._source_rows is None else given[self._source_rows]

    def _of_rows(self, values: Any, argument: str) -> NDArray[Any]:
        """The values as an array, if there is one for each document."""
        given, n = as_array(values), int(self.offsets[-1])
        if given.ndim == 0 or len(given) != n:
            got = f"{len(given):,}" if given.ndim else type(values).__name__
            raise DataError(argument=argument, expected=f"{n:,}, one per document", got=got)
        return given

    def restore(self, values: NDArray[Any]) -> NDArray[Any]:
        """Convert per-document values from the order of this data set back to the caller's order.

        Parameters
        ----------
        values : array
            One value per document, grouped by query.

        Returns
        -------
        array
            The same values, in the caller's order.
        """
        given = self._of_rows(values, "values")
        if self._source_rows is None:
            return given
        restored = np.empty_like(given)
        restored[self._source_rows] = given
        return restored

    def select(self, queries: ArrayLike) -> RankingDataset:
        """The data set of some of the queries.

        Parameters
        ----------
        queries : array of int or bool
            Indices of queries, or a mask with one value per query; not query ids.

        Returns
        -------
        RankingDataset
            The selected queries. Rows are renumbered from 0.

        Examples
        --------
        >>> data = RankingDataset(np.eye(3), [1, 0, 2], qid=[7, 7, 8])
        >>> data.select([1]).query_ids.tolist()
        [8]
        """
        chosen = as_places(queries, self.n_queries, "queries", "queries")
        if not len(chosen):
            raise DataError(argument="queries", expected="at least one query to select", got="none")
        rows: slice | NDArray[np.int64]
        if np.all(np.diff(chosen) == 1):
            rows = slice(int(self.offsets[chosen[0]]), int(self.offsets[chosen[-1] + 1]))  # a view, no copy
        else:
            rows = np.concatenate([np.arange(self.offsets[q], self.offsets[q + 1]) for q in chosen])
        return self._taken(rows, chosen, self.lengths[chosen])

    def drop_unjudged(self) -> RankingDataset:
        """The data set of the documents that have a rating. Queries without any such document are left out.

        Returns
        -------
        RankingDataset
            This data set if all documents have ratings; otherwise a copy, with rows renumbered from 0.

        Raises
        ------
        DataError
            If no document has a rating.

        Examples
        --------
        >>> data = RankingDataset(np.eye(4), [1, None, 0, None], qid=[7, 7, 7, 8])
        >>> data, data.drop_unjudged()
        (RankingDataset(2 queries, 4 documents, 4 features, ratings 0 to 1, 2 unjudged),
        RankingDataset(1 query, 2 documents, 4 features, ratings 0 to 1))
        """
        if not self.n_unjudged:
            return self
        n_judged = np.add.reduceat(self.is_judged.astype(np.int64), self.offsets[:-1])
        if not n_judged.any():
            raise DataError(expected="at least one document with a rating", got="unjudged documents only")
        queries = np.flatnonzero(n_judged)
        return self._taken(np.flatnonzero(self.is_judged), queries, n_judged[queries])

    def _taken(
        self, rows: slice | NDArray[np.int64], queries: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> RankingDataset:
        """The data set of some rows, which belong to these queries; ``lengths`` is the number of rows of each query."""
        parts = self._parts() | {"offsets": np.concatenate([[0], lengths.cumsum()]), "source_rows": None}
        for names, taken in ((_OF_DOCUMENTS, rows), (_OF_QUERIES, queries)):
            parts |= {name: None if parts[name] is None else parts[name][taken] for name in names}
        return RankingDataset.from_parts(**parts)

    def _parts(self) -> dict[str, Any]:
        """The arguments of ``from_parts``."""
        hidden = {"ratings": self._ratings, "source_rows": self._source_rows}
        return {name: hidden[name] if name in hidden else getattr(self, name) for name in _PARTS}

    def replace(self, **parts: Any) -> RankingDataset:
        """The same data with some parts replaced.

        Parameters
        ----------
        **parts
            Arguments of ``from_parts``, grouped by query and checked already.

        Returns
        -------
        RankingDataset
            A new data set, which shares all other parts with this one.

        Examples
        --------
        >>> data = RankingDataset(np.eye(2), [1, 0])
        >>> data.replace(ratings=np.array([0.0, 3.0])).ratings.tolist()
        [0.0, 3.0]
        """
        unknown = next((name for name in parts if name not in _PARTS), None)
        if unknown is not None:
            raise ParameterError.unknown("part of a RankingDataset", unknown, _PARTS)
        return RankingDataset.from_parts(**self._parts() | parts)

    def with_propensity(self, propensity: Any) -> RankingDataset:
        """The same documents with the chance that each was examined, for training on clicks.

        Parameters
        ----------
        propensity : array or Propensities
            One number per row, in the caller's order; one number per position, looked up by ``position`` of this data
            set; or the result of ``tierank.clicks.estimate_propensities``. Positions beyond the last number take the
            last number. Only ratios matter: propensities are stored relative to the largest.

        Returns
        -------
        RankingDataset
            The new data set; it shares everything else with this one.

        Examples
        --------
        >>> data = RankingDataset(np.eye(4), [1, 0, 0, 1], qid=[1, 1, 2, 2], position=[1, 2, 1, 2])
        >>> data.with_propensity([1.0, 0.5]).propensity.tolist()
        [1.0, 0.5, 1.0, 0.5]
        """
        return self.replace(propensity=self._propensities(propensity))

    def _propensities(self, propensity: Any) -> NDArray[np.float64]:
        """One propensity per document, in the order of this data set."""
        is_fitted = hasattr(propensity, "at")
        given = np.zeros(0) if is_fitted else as_propensities(propensity)
        if len(given) == self.n_documents:
            return np.asarray(self.arrange(given) / given.max(), np.float64)
        if self.position is None:
            expected = "one propensity per row, or one per position together with `position`"
            raise DataError(argument="propensity", expected=expected, got="neither")
        # Relative to the largest of all positions, even if these documents do not have it: parts stay comparable.
        if is_fitted:
            given = as_propensities(propensity.at(np.arange(1, MOST_POSITIONS + 1)))
        return np.asarray(given[np.minimum(self.position, len(given)) - 1] / given.max(), np.float64)

    def with_features(
        self, features: NDArray[np.float32], names: tuple[str, ...] | None, kinds: ColumnTypes | None = None
    ) -> RankingDataset:
        """The same documents with other features.

        Parameters
        ----------
        features : array of float32
            One row per document, in the order of this data set.
        names : tuple of str or None
            The names of the features.
        kinds : mapping of str to ColumnType, optional
            Their kinds. Default: those of this data set, for features of the same name.

        Returns
        -------
        RankingDataset
            The new data set; it shares everything else with this one.
        """
        features = self._of_rows(features, "features")
        if kinds is None:
            kinds = {name: kind for name, kind in self.kinds.items() if name in (names or ())}
        return self.replace(features=np.ascontiguousarray(features), feature_names=names, kinds=kinds)

    def widen(self, n_features: int) -> RankingDataset:
        """The same documents with more features, all 0: text files may leave out the last features.

        Parameters
        ----------
        n_features : int
            The new number of features.

        Returns
        -------
        RankingDataset
            The wider data set. Data whose features have names are returned unchanged.

        Examples
        --------
        >>> RankingDataset([[1.0, 2.0]]).widen(3).features.tolist()
        [[1.0, 2.0, 0.0]]
        """
        n_features = as_whole("n_features", n_features, most=MOST_FEATURES)
        if self.feature_names is not None or self.n_features == n_features:
            return self
        check_width(self.n_features, n_features)
        return self.with_features(_stacked([self.features], n_features), None)

    def query_texts(self) -> list[str]:
        """The query ids as texts.

        Returns
        -------
        list of str
            One text per query.

        Raises
        ------
        DataError
            If two ids have the same text.
        """
        texts = [str(i) for i in self.query_ids.tolist()]
        twice = twice_in(texts)
        if twice is not None:
            expected = "query ids that differ as texts"
            raise DataError(expected=expected, got=f"two that read {twice!r}", fix="rename one of them")
        check_texts(texts, "query ids")
        return texts

    def split(self, *shares: float, seed: int = 0, by: Any = None) -> list[RankingDataset]:
        """Split the data into parts of whole queries, drawn at random, or in the order of a date or another value.

        Parameters
        ----------
        *shares : float
            The share of the queries that each part gets. Their sum is at most 1.
        seed : int, default 0
            Random seed.
        by : str or array, optional
            The value that orders the queries, so that later parts have higher ones: the name of a feature of numbers or
            dates, or one value per row (numbers, dates, or texts such as ``2024-01-31``). A query counts by its highest
            value. Queries of equal value stay in one part, so shares are met as far as values allow.

        Returns
        -------
        list of RankingDataset
            One part per share.

        Examples
        --------
        >>> data = RankingDataset(np.eye(10), np.arange(10) % 3, qid=np.arange(10))
        >>> train, valid, test = data.split(0.6, 0.2, 0.2)
        >>> train.n_queries, valid.n_queries, test.n_queries
        (6, 2, 2)
        >>> days = ["2024-01-02", "2024-01-01", "2024-01-03"]
        >>> past, later = RankingDataset(np.eye(3), [1, 0, 1], qid=[7, 8, 9]).split(0.5, 0.5, by=days)
        >>> past.query_ids.tolist(), later.query_ids.tolist()
        ([7, 8], [9])
        """
        are_numbers = all(isinstance(share, Real) for share in shares)
        if not shares or not are_numbers or min(shares) <= 0 or sum(shares) > 1 + 1e-9:
            expected = "positive shares that sum to at most 1, such as 0.8 and 0.2"
            raise ParameterError(argument="shares", expected=expected, got=str(shares))
        order = np.random.default_rng(as_whole("seed", seed, 0)).permutation(self.n_queries)
        cuts = np.rint(np.cumsum([0.0, *shares]) * self.n_queries).astype(np.int64)
        if by is not None:
            _, place = np.unique(self._highest(by), return_inverse=True)
            order = np.argsort(place, kind="stable")
            edges = np.flatnonzero(np.diff(place[order], prepend=-1, append=-1))  # between different values
            cuts = edges[np.abs(edges[:, None] - cuts).argmin(axis=0)]
            if (np.diff(cuts) < 1).any():
                got = f"{len(edges) - 1:,} for {self.n_queries:,} queries"
                raise DataError(argument="by", expected=f"values that {len(shares)} parts can differ in", got=got)
        return [self.select(np.sort(order[a:b])) for a, b in pairwise(cuts)]

    def _highest(self, by: Any) -> NDArray[np.float64]:
        """The highest value of each query."""
        names = self.feature_names or ()
        if isinstance(by, str):
            if by not in names or isinstance(self.kinds.get(by), Category):
                known = [name for name in names if not isinstance(self.kinds.get(name), Category)]
                raise ParameterError.unknown("feature of numbers or dates", by, known)
            values: NDArray[Any] = self.features[:, names.index(by)]
        else:
            given = id_array(by) if isinstance(by, (list, tuple)) else as_array(by)
            if given.shape != (self.n_documents,):
                expected = f"a feature, or {self.n_documents:,} values, one per row"
                raise DataError(argument="by", expected=expected, got=shape_of(by, given))
            values = self.arrange(given)
        numbers = to_numbers(values)
        numbers = as_days(values, "by") if numbers is None else numbers.astype(np.float64)
        if np.isnan(numbers).any():
            row = self.source_rows[np.isnan(numbers).argmax()]
            raise DataError(argument="by", expected="a value in every row", got=f"none in row {row}")
        return np.asarray(np.maximum.reduceat(numbers, self.offsets[:-1]))

    @staticmethod
    def concat(parts: Sequence[RankingDataset]) -> RankingDataset:
        """Join data sets that have the same features and no query in common.

        If the features would take more than a quarter of the memory, they are written to a temporary file and mapped.

        Parameters
        ----------
        parts : sequence of RankingDataset
            The data sets.

        Returns
        -------
        RankingDataset
            All documents, in the order of the parts.
        """
        if not isinstance(parts, Sequence):
            raise DataError(argument="parts", expected="a list of data sets", got=type(parts).__name__)
        for part in parts:
            check_dataset("parts", part)
        if not parts:
            raise DataError(argument="parts", expected="at least one data set to join", got="none")
        first = parts[0]
        for part in parts[1:]:
            check_same_features("parts", part, first)
        kinds = common_kinds([part.kinds for part in parts])
        every = [part._parts() for part in parts]
        joined: dict[str, Any] = {}
        for name in (*_OF_DOCUMENTS[1:], "query_weight"):
            held = [part[name] for part in every if part[name] is not None]
            if name == "document_texts":
                joined[name] = StringArray.concat(held) if len(held) == len(parts) else None
            elif held and len(held) < len(parts):
                expected = "in all of the parts or in none"
                raise DataError(argument=name, expected=expected, got=f"{len(held)} of {len(parts)}")
            else:
                joined[name] = np.concatenate(held) if held else None
        ids = [part.query_ids for part in parts]
        twice = twice_in(i for own in ids for i in own.tolist())
        if twice is not None:
            raise DataError(
                where=f"query {twice!s}", expected="each query in one part only", got="it in two of the parts"
            )
        are_alike = len({own.dtype.kind for own in ids}) == 1  # as objects otherwise: 1 and "1" are two queries
        features = [recoded(part.features, first.feature_names or (), part.kinds, kinds) for part in parts]
        return RankingDataset.from_parts(
            features=_stacked(features, first.n_features),
            offsets=np.concatenate([[0], np.concatenate([part.lengths for part in parts]).cumsum()]),
            query_ids=np.concatenate([own if are_alike else own.astype(object) for own in ids]),
            feature_names=first.feature_names,
            kinds=kinds,
            roles={role: name for role, name in first.roles.items() if all(p.roles.get(role) == name for p in parts)},
            **joined,
        )

    def weights_per_query(self, weight: ArrayLike | Mapping[Hashable, float]) -> NDArray[np.float64]:
        """Query weights given by query id, by query in order of appearance, or by row."""
        ids = self.query_ids.tolist()
        named = by_index(weight, ids)
        weight = weight if named is None else named
        if isinstance(weight, Mapping):
            missing = [q for q in ids if q not in weight]
            if missing:
                expected = "a weight for every query"
                raise DataError(argument="query_weight", expected=expected, got=f"none for {missing[0]!r}")
            weight = [weight[q] for q in ids]
        given = as_array(weight)
        if given.shape == (self.n_queries,):
            return as_weights(given, "query_weight", self.n_queries)
        otherwise = f" or {self.n_queries} (one per query)"
        values = self.arrange(as_weights(given, "query_weight", self.n_documents, otherwise))
        first = values[self.offsets[:-1]]
        differs = values != np.repeat(first, self.lengths)
        if differs.any():
            query = self.query_ids[self.query_of_row[differs.argmax()]]
            expected = f"one weight for all rows of query {query!s}"
            raise DataError(argument="query_weight", expected=expected, got="several")
        return first

    def _documents(self, ids: Iterable[object]) -> StringArray:
        names = [str(i) for i in ids] if isinstance(ids, Iterable) else None
        if names is None or len(names) != self.n_documents:
            expected = f"{self.n_documents} ids, one per row"
            got = type(ids).__name__ if names is None else str(len(names))
            raise DataError(argument="document_ids", expected=expected, got=got)
        check_texts(names, "document_ids")
        texts = StringArray.of(names)
        return texts if self._source_rows is None else texts[self._source_rows]


def _stacked(parts: Sequence[NDArray[np.float32]], width: int) -> NDArray[np.float32]:
    """The rows of all matrices, with columns of zeros appended; on disk if they would take a quarter of the memory."""
    whole, end = allocate(sum(len(part) for part in parts), width, beside=parts[0]), 0
    for chunk in (chunk for part in parts for chunk in chunks(part)):
        start, end = end, end + len(chunk)
        whole[start:end, : chunk.shape[1]] = chunk
        release_pages(whole[start:end])
    return whole


def common_kinds(parts: Sequence[ColumnTypes]) -> ColumnTypes:
    """The types of the features, with the levels of all parts. Raises ``DataError`` if types differ."""
    common: dict[str, ColumnType] = dict(parts[0])
    for kinds in parts[1:]:
        for name in {**common, **kinds}:
            one, other = common.get(name), kinds.get(name)
            if one == other:
                continue
            if isinstance(one, Category) and isinstance(other, Category) and replace(other, levels=one.levels) == one:
                common[name] = replace(one, levels=tuple(sorted({*one.levels, *other.levels})))
            else:
                expected = "the same kind of values in all parts"
                raise DataError(where=f"feature {name!r}", expected=expected, got="two kinds")
    return common


def recoded(
    features: NDArray[np.float32], names: Sequence[str], before: ColumnTypes, after: ColumnTypes
) -> NDArray[np.float32]:
    """The features with the level numbers of categories translated to other levels."""
    changed = [(place, name) for place, name in enumerate(names) if before.get(name) != after.get(name)]
    features = np.array(features) if changed else features
    for place, name in changed:
        features[:, place] = after[name].convert(features[:, place], before[name])
    return features


def check_same_features(argument: str, data: RankingDataset, other: RankingDataset) -> None:
    """Raise ``DataError`` unless two data sets have the same features."""
    if (data.n_features, data.feature_names) != (other.n_features, other.feature_names):
        names = " with other names" if data.n_features == other.n_features else ""
        expected = f"the same features, {other.n_features}"
        raise DataError(argument=argument, expected=expected, got=f"{data.n_features}{names}")


def check_dataset(argument: str, data: object) -> None:
    """Raise ``DataError`` unless the argument is a data set, and say how to make one.

    >>> check_dataset("data", "shop.csv")
    Traceback (most recent call last):
    tierank.errors.DataError: data: expected a RankingDataset, got str; tierank.read makes one from a file
    """
    if isinstance(data, RankingDataset):
        return
    is_path = isinstance(data, (str, os.PathLike))
    from_arrays = "RankingDataset(X, y, qid=qid) makes one from arrays or a table"
    fix = "tierank.read makes one from a file" if is_path else from_arrays
    raise DataError(argument=argument, expected="a RankingDataset", got=type(data).__name__, fix=fix)
