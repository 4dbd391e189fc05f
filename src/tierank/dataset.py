"""RankingDataset: the one data type, grouped by query and checked once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank import notebook
from tierank.checks import (
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
)
from tierank.encoding import as_features, check_declared
from tierank.errors import DataError, ParameterError
from tierank.joining import common_kinds, copy_rows, joined, joined_ids, recoded, stacked
from tierank.kinds import Columns, Kinds
from tierank.markup import Html
from tierank.memory import allocate, check_width, chunks
from tierank.relevance import find_tiers
from tierank.settings import as_whole
from tierank.tables import by_index, warn_of_row_order
from tierank.text_blocks import Texts

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
    kinds : mapping of str to Kind
        The kind of each feature that is not a plain number, such as a category or a date, by feature name.
    position : array of int64 or None
        Where each document was shown.
    propensity : array of float64 or None
        The chance that each document was examined, up to a factor.

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
    document_texts: Texts | None
    kinds: Kinds
    position: NDArray[np.int64] | None
    propensity: NDArray[np.float64] | None
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
        check_declared(X, columns)
        warn_of_row_order(X=X, y=y, qid=qid, row_weight=row_weight, position=position)
        features, names, self.kinds = as_features(X, columns)
        if feature_names is not None and self.kinds:
            raise DataError(
                argument="feature_names",
                expected="None with a table that has texts, dates or vectors: the columns are known by their names",
                got="some",
                fix="rename the columns of the table",
            )
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
        document_texts: Texts | None = None,
        kinds: Kinds | None = None,
        position: NDArray[np.int64] | None = None,
        propensity: NDArray[np.float64] | None = None,
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
        document_texts : Texts, optional
            The ids of the documents.
        kinds : mapping of str to Kind, optional
            The kind of each feature that is not a plain number, by feature name.
        position : array of int64, optional
            Where each document was shown.
        propensity : array of float64, optional
            The chance that each document was examined.

        Returns
        -------
        RankingDataset
            The data set.
        """
        self = cls.__new__(cls)
        self.features, self._ratings, self.offsets, self.query_ids = features, ratings, offsets, query_ids
        self._source_rows, self.row_weight, self.query_weight = source_rows, row_weight, query_weight
        self.feature_names, self.document_texts, self.kinds = feature_names, document_texts, kinds or {}
        self.position, self.propensity = position, propensity
        return self

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self) or name not in RankingDataset.__annotations__:
            raise AttributeError(f"{name}: a RankingDataset cannot be changed; replace(...) returns a new one")
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
        counts = ((self.n_queries, "query", "queries"), (self.n_documents, "document", "documents"))
        parts = [
            f"{n:,} {one if n == 1 else many}" for n, one, many in (*counts, (self.n_features, "feature", "features"))
        ]
        return f"RankingDataset({', '.join([*parts, rated])})"

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
            raise DataError(
                "this data set has no ratings: expected `y` when it was built, or a rating column in its file"
            )
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

    def caller_texts(self) -> Texts | None:
        """The document ids in the caller's order, or None if the data have no ids."""
        texts = self.document_texts
        return texts if texts is None or self._source_rows is None else texts.take(self._source_rows.argsort())

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
        self._check_rows(values, "values")
        return values if self._source_rows is None else values[self._source_rows]

    def _check_rows(self, values: Any, argument: str) -> None:
        n = int(self.offsets[-1])
        if len(values) != n:
            raise DataError(argument=argument, expected=f"{n:,}, one per document", got=f"{len(values):,}")

    def arrange_texts(self, texts: Texts) -> Texts:
        """Convert texts of documents from the caller's order to the order of this data set."""
        return texts if self._source_rows is None else texts.take(self._source_rows)

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
        self._check_rows(values, "values")
        if self._source_rows is None:
            return values
        restored = np.empty_like(values)
        restored[self._source_rows] = values
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
            raise DataError("expected at least one query to select, got none")
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
        return RankingDataset.from_parts(
            self.features[rows],
            None if self._ratings is None else self._ratings[rows],
            np.concatenate([[0], lengths.cumsum()]),
            self.query_ids[queries],
            row_weight=None if self.row_weight is None else self.row_weight[rows],
            query_weight=None if self.query_weight is None else self.query_weight[queries],
            feature_names=self.feature_names,
            document_texts=None if self.document_texts is None else self.document_texts.take(self._row_numbers(rows)),
            kinds=self.kinds,
            position=None if self.position is None else self.position[rows],
            propensity=None if self.propensity is None else self.propensity[rows],
        )

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
        kept = {
            "features": self.features,
            "ratings": self._ratings,
            "offsets": self.offsets,
            "query_ids": self.query_ids,
            "source_rows": self._source_rows,
            "row_weight": self.row_weight,
            "query_weight": self.query_weight,
            "feature_names": self.feature_names,
            "document_texts": self.document_texts,
            "kinds": self.kinds,
            "position": self.position,
            "propensity": self.propensity,
        }
        unknown = next((name for name in parts if name not in kept), None)
        if unknown is not None:
            raise ParameterError.unknown("part of a RankingDataset", unknown, kept)
        return RankingDataset.from_parts(**kept | parts)

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
            values, top = self.arrange(given), given.max()
        elif self.position is None:
            expected = "one propensity per row, or one per position together with `position`"
            raise DataError(argument="propensity", expected=expected, got="neither")
        else:
            # Relative to the largest of all positions, even if these documents do not have it: parts stay comparable.
            if is_fitted:
                given = as_propensities(propensity.at(np.arange(1, MOST_POSITIONS + 1)))
            values, top = given[np.minimum(self.position, len(given)) - 1], given.max()
        return np.asarray(values / top, np.float64)

    def with_features(
        self, features: NDArray[np.float32], names: tuple[str, ...] | None, kinds: Kinds | None = None
    ) -> RankingDataset:
        """The same documents with other features.

        Parameters
        ----------
        features : array of float32
            One row per document, in the order of this data set.
        names : tuple of str or None
            The names of the features.
        kinds : mapping of str to Kind, optional
            Their kinds. Default: those of this data set, for features of the same name.

        Returns
        -------
        RankingDataset
            The new data set; it shares everything else with this one.
        """
        self._check_rows(features, "features")
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
        if self.feature_names is not None or self.n_features == n_features:
            return self
        check_width(self.n_features, n_features)
        features = allocate(self.n_documents, n_features, beside=self.features)
        copy_rows(chunks(self.features), features)
        return self.with_features(features, None)

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
        if len(set(texts)) < len(texts):
            twice = next(text for text, count in Counter(texts).items() if count > 1)
            raise DataError(f"expected query ids that differ as texts, got two that read {twice!r}; rename one of them")
        check_texts(texts, "query ids")
        return texts

    def split(self, *shares: float, seed: int = 0) -> list[RankingDataset]:
        """Split the data into parts of whole queries, drawn at random.

        Parameters
        ----------
        *shares : float
            The share of the queries that each part gets. Their sum is at most 1.
        seed : int, default 0
            Random seed.

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
        """
        are_numbers = all(isinstance(share, Real) for share in shares)
        if not shares or not are_numbers or min(shares) <= 0 or sum(shares) > 1 + 1e-9:
            raise ParameterError(f"expected positive shares that sum to at most 1, such as 0.8 and 0.2, got {shares}")
        order = np.random.default_rng(as_whole("seed", seed, 0)).permutation(self.n_queries)
        cuts = np.rint(np.cumsum([0.0, *shares]) * self.n_queries).astype(np.int64)
        return [self.select(np.sort(order[a:b])) for a, b in pairwise(cuts)]

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
            raise DataError("expected at least one data set to join, got none")
        first = parts[0]
        for part in parts[1:]:
            if (part.n_features, part.feature_names) != (first.n_features, first.feature_names):
                raise DataError(
                    f"expected parts with the same features, got {first.n_features} and {part.n_features} features"
                    + (" with other names" if part.n_features == first.n_features else "")
                )
        kinds = common_kinds([part.kinds for part in parts])
        texts = [part.document_texts for part in parts if part.document_texts is not None]
        return RankingDataset.from_parts(
            stacked([recoded(part.features, part.feature_names or (), part.kinds, kinds) for part in parts]),
            joined([part._ratings for part in parts], "ratings"),
            np.concatenate([[0], np.concatenate([part.lengths for part in parts]).cumsum()]),
            joined_ids([part.query_ids for part in parts]),
            row_weight=joined([part.row_weight for part in parts], "row_weight"),
            query_weight=joined([part.query_weight for part in parts], "query_weight"),
            feature_names=first.feature_names,
            document_texts=Texts.concat(texts) if len(texts) == len(parts) else None,
            kinds=kinds,
            position=joined([part.position for part in parts], "position"),
            propensity=joined([part.propensity for part in parts], "propensity"),
        )

    def _row_numbers(self, rows: slice | NDArray[np.int64]) -> NDArray[np.int64]:
        return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows

    def weights_per_query(self, weight: ArrayLike | Mapping[Hashable, float]) -> NDArray[np.float64]:
        """Query weights given by query id, by query in order of appearance, or by row."""
        named = by_index(weight, self.query_ids.tolist())
        weight = weight if named is None else named
        if isinstance(weight, Mapping):
            missing = [q for q in self.query_ids.tolist() if q not in weight]
            if missing:
                raise DataError(f"query_weight: expected a weight for every query, got none for {missing[0]!r}")
            weight = [weight[q] for q in self.query_ids.tolist()]
        given = as_array(weight)
        if given.shape == (self.n_queries,):
            return as_weights(given, "query_weight", self.n_queries)
        values = self.arrange(
            as_weights(given, "query_weight", self.n_documents, f" or {self.n_queries} (one per query)")
        )
        first = values[self.offsets[:-1]]
        differs = values != np.repeat(first, self.lengths)
        if differs.any():
            query = self.query_ids[self.query_of_row[differs.argmax()]]
            raise DataError(f"query_weight: expected one weight for all rows of query {query!s}, got several")
        return first

    def _documents(self, ids: Iterable[object]) -> Texts:
        if not isinstance(ids, Iterable):
            raise DataError(
                argument="document_ids", expected=f"{self.n_documents} ids, one per row", got=type(ids).__name__
            )
        names = [str(i) for i in ids]
        if len(names) != self.n_documents:
            raise DataError(f"document_ids: expected {self.n_documents} ids, one per row, got {len(names)}")
        check_texts(names, "document_ids")
        texts = Texts.of(names)
        return texts if self._source_rows is None else texts.take(self._source_rows)


def check_dataset(argument: str, data: object) -> None:
    """Raise ``DataError`` unless the argument is a data set, and say how to make one.

    >>> check_dataset("data", "shop.csv")
    Traceback (most recent call last):
    tierank.errors.DataError: data: expected a RankingDataset, got str; tierank.read makes one from a file
    """
    if isinstance(data, RankingDataset):
        return
    fix = (
        "tierank.read makes one from a file"
        if isinstance(data, (str, os.PathLike))
        else "RankingDataset(X, y, qid=qid) makes one from arrays or a table"
    )
    raise DataError(argument=argument, expected="a RankingDataset", got=type(data).__name__, fix=fix)
