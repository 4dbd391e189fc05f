"""RankingDataset: the one data type, grouped by query and checked once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.checks import as_array, as_names, as_ratings, as_weights, check_texts, group_rows
from tierank.errors import DataError, ParameterError
from tierank.memory import allocate, check_width, chunks, release_pages
from tierank.relevance import find_tiers
from tierank.tables import as_features

# Texts that are taken in one go: what is needed to find their bytes is larger than they are.
_TAKEN = 1 << 16


class RankingDataset:
    """Documents with features and ratings, grouped by query.

    Rows are grouped when the data set is built: queries stand in the order in which they first appear, documents in the
    caller's order. Query i has the rows ``offsets[i]:offsets[i + 1]`` of every per-document array. Scores that go into
    or come out of tierank are in the caller's order; ``arrange`` and ``restore`` convert between the two.

    Parameters
    ----------
    X : array, sparse matrix or table
        Features, one row per document; NaN marks a missing value. Stored as float32.
    y : array, optional
        One rating per row, any finite number >= 0.
    qid : array, optional
        One query id per row, of any hashable type and in any order. Without it all rows are one query.
    row_weight : array, optional
        One weight per row.
    query_weight : array or mapping, optional
        One weight per query in order of appearance, one per row, or a mapping from query id to weight.
    feature_names : list of str, optional
        One name per feature. Default: the columns of a table.
    document_ids : list, optional
        One id per row.

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
        document_ids: Sequence[object] | None = None,
    ) -> None:
        features, columns = as_features(X)
        n = len(features)
        self.query_ids, self.offsets, self._source_rows = group_rows(qid, n)
        self.features = self.arrange(features)
        self._ratings = None if y is None else self.arrange(as_ratings(y, n))
        self.row_weight = None if row_weight is None else self.arrange(as_weights(row_weight, "row_weight", n))
        self.query_weight = None if query_weight is None else self.weights_per_query(query_weight)
        self.feature_names = as_names(columns if feature_names is None else feature_names, features.shape[1])
        self.document_texts = None if document_ids is None else self._documents(document_ids)

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

        Returns
        -------
        RankingDataset
            The data set.
        """
        self = cls.__new__(cls)
        self.features, self._ratings, self.offsets, self.query_ids = features, ratings, offsets, query_ids
        self._source_rows, self.row_weight, self.query_weight = source_rows, row_weight, query_weight
        self.feature_names, self.document_texts = feature_names, document_texts
        return self

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self) or name not in RankingDataset.__annotations__:
            raise AttributeError(f"{name}: a RankingDataset does not change; replace(...) gives another one")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        rated = f"ratings {self.ratings.min():g} to {self.ratings.max():g}" if self.is_rated else "no ratings"
        counts = ((self.n_queries, "query", "queries"), (self.n_documents, "document", "documents"))
        parts = [
            f"{n:,} {one if n == 1 else many}" for n, one, many in (*counts, (self.n_features, "feature", "features"))
        ]
        return f"RankingDataset({', '.join([*parts, rated])})"

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
        """The rating of each document; raises ``DataError`` if there are none."""
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
                "this data set has no ratings: expected y when it was built, or a rating column in its file"
            )
        return self._ratings

    @property
    def is_in_order(self) -> bool:
        """Whether the rows came grouped by query, so that none was moved."""
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
        """The index of each rating among the unique ratings of its query; 0 is the highest."""
        tiers, _ = find_tiers(np.require(self.ratings, np.float64, "C"), self.offsets)
        return tiers.astype(np.int32)

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
        return values if self._source_rows is None else values[self._source_rows]

    def arrange_texts(self, texts: Texts) -> Texts:
        """Texts of documents from the caller's order into the order of this data set."""
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
            The selected queries. Its rows are numbered anew.

        Examples
        --------
        >>> data = RankingDataset(np.eye(3), [1, 0, 2], qid=[7, 7, 8])
        >>> data.select([1]).query_ids.tolist()
        [8]
        """
        chosen = np.arange(self.n_queries)[np.asarray(queries)]
        if not len(chosen):
            raise DataError("no query is left: expected at least one query to select")
        rows: slice | NDArray[np.int64]
        if np.all(np.diff(chosen) == 1):
            rows = slice(int(self.offsets[chosen[0]]), int(self.offsets[chosen[-1] + 1]))  # a view, no copy
        else:
            rows = np.concatenate([np.arange(self.offsets[q], self.offsets[q + 1]) for q in chosen])
        return RankingDataset.from_parts(
            self.features[rows],
            None if self._ratings is None else self._ratings[rows],
            np.concatenate([[0], self.lengths[chosen].cumsum()]),
            self.query_ids[chosen],
            row_weight=None if self.row_weight is None else self.row_weight[rows],
            query_weight=None if self.query_weight is None else self.query_weight[chosen],
            feature_names=self.feature_names,
            document_texts=None if self.document_texts is None else self.document_texts.take(self._row_numbers(rows)),
        )

    def replace(self, **parts: Any) -> RankingDataset:
        """The same data with other parts, by the names of ``from_parts``; they are grouped and checked already.

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
        }
        return RankingDataset.from_parts(**kept | parts)

    def with_features(self, features: NDArray[np.float32], names: tuple[str, ...] | None) -> RankingDataset:
        """The same documents with other features.

        Parameters
        ----------
        features : array of float32
            One row per document, in the order of this data set.
        names : tuple of str or None
            The names of the features.

        Returns
        -------
        RankingDataset
            The new data set; it shares everything else with this one.
        """
        return self.replace(features=np.ascontiguousarray(features), feature_names=names)

    def widen(self, n_features: int) -> RankingDataset:
        """The same documents with more features, which are 0: text files may leave out the last ones.

        Parameters
        ----------
        n_features : int
            The number of features wanted.

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
        _copy(chunks(self.features), features)
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
            The share of the queries that each part gets; at most 1 in sum.
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
        if not shares or min(shares) <= 0 or sum(shares) > 1 + 1e-9:
            raise ParameterError(f"expected positive shares that sum to at most 1, got {shares}")
        order = np.random.default_rng(seed).permutation(self.n_queries)
        cuts = np.rint(np.cumsum([0.0, *shares]) * self.n_queries).astype(np.int64)
        return [self.select(np.sort(order[a:b])) for a, b in pairwise(cuts)]

    @staticmethod
    def concat(parts: Sequence[RankingDataset]) -> RankingDataset:
        """Join data sets that have the same features and no query in common.

        If the features would take a quarter of the memory, they go to a temporary file and are memory-mapped.

        Parameters
        ----------
        parts : sequence of RankingDataset
            The data sets.

        Returns
        -------
        RankingDataset
            All documents, part after part.
        """
        if not parts:
            raise DataError("expected at least one data set to put together, got none")
        first = parts[0]
        for part in parts[1:]:
            if (part.n_features, part.feature_names) != (first.n_features, first.feature_names):
                raise DataError(
                    f"expected parts with the same features, got {first.n_features} and {part.n_features} features"
                    + (" with other names" if part.n_features == first.n_features else "")
                )
        texts = [part.document_texts for part in parts if part.document_texts is not None]
        return RankingDataset.from_parts(
            _stacked([part.features for part in parts]),
            _joined([part._ratings for part in parts], "ratings"),
            np.concatenate([[0], np.concatenate([part.lengths for part in parts]).cumsum()]),
            _joined_ids([part.query_ids for part in parts]),
            row_weight=_joined([part.row_weight for part in parts], "row_weight"),
            query_weight=_joined([part.query_weight for part in parts], "query_weight"),
            feature_names=first.feature_names,
            document_texts=Texts.concat(texts) if len(texts) == len(parts) else None,
        )

    def _row_numbers(self, rows: slice | NDArray[np.int64]) -> NDArray[np.int64]:
        return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows

    def weights_per_query(self, weight: ArrayLike | Mapping[Hashable, float]) -> NDArray[np.float64]:
        """Query weights given by query id, by query in order of appearance, or by row."""
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

    def _documents(self, ids: Sequence[object]) -> Texts:
        if len(ids) != self.n_documents:
            raise DataError(f"document_ids: expected {self.n_documents} ids, one per row, got {len(ids)}")
        names = [str(i) for i in ids]
        check_texts(names, "document_ids")
        texts = Texts.of(names)
        return texts if self._source_rows is None else texts.take(self._source_rows)


class Texts:
    """Many short texts as one block of bytes: text i is ``blob[ends[i-1]:ends[i]]`` in UTF-8."""

    def __init__(self, blob: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self.blob, self.ends = blob, ends

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """The block of these texts."""
        encoded = [text.encode() for text in texts]
        ends = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), np.uint8), ends)

    @staticmethod
    def concat(parts: Sequence[Texts]) -> Texts:
        """The texts of several blocks, one after the other."""
        shifts = np.cumsum([0, *(len(part.blob) for part in parts[:-1])])
        ends = [part.ends + shift for part, shift in zip(parts, shifts, strict=True)]
        return Texts(np.concatenate([part.blob for part in parts]), np.concatenate(ends))

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[str]:
        blob, start = self.blob.tobytes(), 0
        for end in self.ends.tolist():
            yield blob[start:end].decode(errors="replace")
            start = end

    def take(self, rows: NDArray[np.int64]) -> Texts:
        """The texts of these rows, in this order."""
        if len(rows) > _TAKEN:
            return Texts.concat([self.take(rows[k : k + _TAKEN]) for k in range(0, len(rows), _TAKEN)])
        starts = np.where(rows > 0, self.ends[rows - 1], 0)
        lengths = self.ends[rows] - starts
        ends = lengths.cumsum()
        inside = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
        return Texts(self.blob[np.repeat(starts, lengths) + inside], ends)


def _stacked(parts: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    stacked = allocate(sum(len(part) for part in parts), parts[0].shape[1], beside=parts[0])
    _copy((chunk for part in parts for chunk in chunks(part)), stacked)
    return stacked


def _copy(pieces: Iterable[NDArray[np.float32]], into: NDArray[np.float32]) -> None:
    """Fill the rows of a matrix, in its first columns, one piece after the other."""
    end = 0
    for piece in pieces:
        start, end = end, end + len(piece)
        into[start:end, : piece.shape[1]] = piece
        release_pages(into[start:end])


def _joined_ids(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The query ids of all parts; an error if two parts share one."""
    seen: set[Hashable] = set()
    for ids in parts:
        twice = next((i for i in ids.tolist() if i in seen), None)
        if twice is not None:
            raise DataError(f"query {twice!s} is in two of the parts: expected each query to be in one part only")
        seen.update(ids.tolist())
    are_alike = len({ids.dtype.kind for ids in parts}) == 1
    return np.concatenate([ids if are_alike else ids.astype(object) for ids in parts])  # 1 and "1" are two queries


def _joined(parts: list[NDArray[np.float64] | None], name: str) -> NDArray[np.float64] | None:
    given = [part for part in parts if part is not None]
    if given and len(given) < len(parts):
        raise DataError(f"{name}: expected in all of the parts or in none, got {len(given)} of {len(parts)}")
    return np.concatenate(given) if given else None
