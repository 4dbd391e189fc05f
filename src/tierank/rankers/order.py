"""The canonical order of learning: by the content of the rows, not by their order or ids.

``canonical_rows`` finds it, and ``Numbering`` is the order of the queries of all processes of a team. Inside
``shared_work`` the members of a model find it once for the same data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Rows, release_pages, rows_in
from tierank.data.dataset import RankingDataset
from tierank.data.relevance import blocks_of
from tierank.data.team import Team
from tierank.kernels import in_threads, n_threads
from tierank.kernels.features import hash_rows

# Bytes of features after which pages of a mapped matrix are released.
_KEPT_BYTES = 1 << 27

# Documents that are sorted at a time: their keys stay in the processor's caches.
_SORTED = 1 << 12

# Odd, so that multiplication by it is invertible.
_FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)

Hashes = NDArray[np.uint64]
# The sort keys of some queries, and whether features are needed to distinguish them.
Keys = Callable[[Rows, NDArray[np.bool_]], list[bytes]]

# The share of training queries among others that is worth a warning.
_SEEN_SHARE = 0.05

# Numbers of queries with equal hashes that are compared at a time.
_COMPARED = 1 << 24


class Order(NamedTuple):
    """Queries and documents in canonical order.

    Parameters
    ----------
    rows : array of int64
        The documents, query by query.
    offsets : array of int64
        Where each query begins among them, and where the last one ends.
    content : str
        A digest of the data.
    queries : array of int64
        The queries.
    digests : array of uint64
        Three digests of each of these queries: of the forms of its documents, of its content, and of its content
        without weights (and without ratings, if the order does not depend on them).
    """

    rows: Rows
    offsets: Rows
    content: str
    queries: Rows
    digests: Hashes


def canonical_rows(data: RankingDataset, n_jobs: int | None, *, rated: bool = True) -> Order:
    """Rows in an order that depends on their content, not on the caller's order.

    Queries, and the documents in them, are sorted by hashes of features and (if ``rated``) ratings. Learning in this
    order gives the same model for the same data in any order.

    The order ignores what should not matter: query ids, the sign of 0, and factors that are powers of two, for all
    features or for some. If hashes that ignore such factors are equal, values are compared.
    """
    return share(data, ("order", rated), lambda: _find_order(data, n_jobs, rated))


def _find_order(data: RankingDataset, n_jobs: int | None, rated: bool) -> Order:
    offsets, lengths = np.asarray(data.offsets), data.lengths
    ratings = _known(data.ratings) if data.is_rated else np.zeros(data.n_documents)
    weights = np.ones(1) if data.row_weight is None else _plain(data.row_weight)
    forms, contents = _hash_rows(data, ratings if rated else None, n_jobs)
    order = _sort_rows(offsets, data.features, forms, contents, ratings, weights)
    importance = np.ones(data.n_queries) if data.query_weight is None else _plain(data.query_weight)
    # Three digests of each query, independent of the order of its documents: see ``Order.digests``.
    with_ratings = _mixed(contents ^ ratings.view(np.uint64))
    weighed = np.add.reduceat(_mixed(with_ratings ^ weights.view(np.uint64)), offsets[:-1])
    of_forms, of_rows = (_mixed(np.add.reduceat(_mixed(one), offsets[:-1])) for one in (forms, contents))
    digests = np.stack([of_forms, _mixed(weighed + importance.view(np.uint64)), of_rows])

    def keys_of(queries: Rows, need_features: NDArray[np.bool_]) -> list[bytes]:
        spans = (order[offsets[query] : offsets[query + 1]] for query in queries)
        return [
            sort_key(held_values(data, rows, query, needs))
            for query, rows, needs in zip(queries.tolist(), spans, need_features.tolist(), strict=True)
        ]

    queries = sort_queries(digests, lengths * row_width(data), keys_of)
    rows, edges = spans_of(offsets, queries)
    text = f"{int(digests[1].sum(dtype=np.uint64)):016x}-{len(lengths)}-{len(order)}"
    return Order(order[rows], edges, text, queries, digests[:, queries])


def _sort_rows(
    offsets: Rows,
    features: NDArray[np.float32],
    forms: Hashes,
    contents: Hashes,
    ratings: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> Rows:
    """The rows of each query by form, values, rating and weight."""
    order = np.empty(len(forms), np.int64)
    for _, rows, edges in blocks_of(offsets, _SORTED):
        query = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        places = np.lexsort((forms[rows], query))
        is_tied = (np.diff(forms[rows][places]) == 0) & (np.diff(query) == 0)  # with the next one
        if is_tied.any():
            differs = is_tied & (np.diff(contents[rows][places]) != 0)
            of_tie = np.concatenate([[0], np.cumsum(~is_tied)])
            tied = np.flatnonzero(np.append(is_tied, False) | np.append(False, is_tied))
            some = places[tied]
            columns = features[rows][some].T[::-1] if differs.any() else ()
            weight = weights[rows][some] if len(weights) > 1 else np.zeros(len(some))
            places[tied] = some[np.lexsort((weight, ratings[rows][some], *columns, of_tie[tied]))]
        order[rows] = rows.start + places
    return order


def rows_by_content(data: RankingDataset, n_jobs: int | None) -> Rows:
    """The rows with the documents of each query in canonical order; the queries stay where they are."""
    order = canonical_rows(data, n_jobs)
    return np.asarray(order.rows[spans_of(order.offsets, np.argsort(order.queries))[0]], np.int64)


def with_rows(data: RankingDataset, rows: Rows) -> RankingDataset:
    """The data with its rows in this order, which leaves every document in its query."""
    of_rows = ("features", "ratings", "row_weight", "position", "propensity")
    held = {name: value[rows] for name in of_rows if (value := getattr(data, name)) is not None}
    texts = data.document_texts
    return data.replace(**held, source_rows=None, document_texts=None if texts is None else texts[rows])


def by_content(data: RankingDataset, n_jobs: int | None) -> RankingDataset:
    """The data with the documents of each query in canonical order, for training queries that are held out to validate.

    Many rules rank documents with equal scores in the order of the rows. That order is not a part of what is learned
    from; and in files that are sorted by rating, it would make ties look perfect.
    """
    return with_rows(data, rows_by_content(data, n_jobs))


def judged_rows(data: RankingDataset, order: Rows, offsets: Rows) -> tuple[Rows, Rows]:
    """Rows in this order without unjudged documents, and their offsets; each query has a judged document."""
    if not data.n_unjudged:
        return order, offsets
    is_kept = data.is_judged[order]
    return order[is_kept], np.concatenate([[0], is_kept.cumsum()])[offsets]


def spans_of(offsets: Rows, queries: Rows) -> tuple[Rows, Rows]:
    """The rows of some queries, joined, and their offsets.

    >>> rows, edges = spans_of(np.array([0, 2, 5, 6]), np.array([2, 0]))
    >>> rows.tolist(), edges.tolist()
    ([5, 0, 1], [0, 1, 3])
    """
    starts, lengths = offsets[queries], np.diff(offsets)[queries]
    edges = np.concatenate([[0], lengths.cumsum()])
    return np.arange(edges[-1]) + np.repeat(starts - edges[:-1], lengths), edges


def join_contents(contents: Sequence[str]) -> str:
    """The content of all queries of several data sets, regardless of which has which.

    >>> join_contents(["00000000000000ff-1-10", "0000000000000001-2-20"])
    '0000000000000100-3-30'
    """
    parts = [content.split("-") for content in contents]
    digest, n_queries, n_documents = (
        sum(int(number, base) for number in column)
        for column, base in zip(zip(*parts, strict=True), (16, 10, 10), strict=True)
    )
    return f"{digest % (1 << 64):016x}-{n_queries}-{n_documents}"


def digest_features(data: RankingDataset, n_jobs: int | None) -> str:
    """A digest of the features of all rows, in their order.

    The hash of a row is certain to differ if one value does, and almost certain (2^64 to 1) if several do.
    """
    digest = hashlib.sha256()
    for rows in _spans(data):
        hashes = np.zeros((2, rows.stop - rows.start), np.uint64)
        _hash_features(data.features[rows], hashes, n_jobs)
        digest.update(hashes[1].tobytes())
    return digest.hexdigest()


def share_seen(train: RankingDataset, other: RankingDataset, n_jobs: int | None = None) -> float:
    """The share of other queries that have the features and ratings of a training query; 0 if it may be by chance.

    Queries without different ratings do not count, as nothing is learned from them. Nor do those whose documents all
    occur elsewhere in the training data, as lists of few different documents may be equal by chance. Two queries, or
    5% of them, are no reason to warn.

    >>> rows, qid = np.arange(24.0).reshape(12, 2), np.repeat([1, 2, 3, 4], 3)
    >>> data = RankingDataset(rows, [0, 1, 2] * 4, qid)
    >>> share_seen(data, RankingDataset(rows[::-1], [2, 1, 0] * 4, qid)), share_seen(*data.split(0.5, 0.5))
    (1.0, 0.0)
    """
    both = (train, other)
    if train.n_features != other.n_features or not (train.is_rated and other.is_rated):
        return 0.0
    ranked = [np.flatnonzero(is_ordered(one.ratings, one.offsets)) for one in both]
    if not len(ranked[0]) or not len(ranked[1]):
        return 0.0
    (hashes, edges), (other_hashes, other_edges) = (
        _hash_contents(one, queries, n_jobs) for one, queries in zip(both, ranked, strict=True)
    )
    has_own = np.logical_or.reduceat(_counts(hashes) == 1, edges[:-1])
    first, second = _sum_up(hashes, edges), _sum_up(other_hashes, other_edges)
    n_seen = int(np.isin(second, first[has_own]).sum())
    # As many as training queries that have a twin among them may be equal by chance (Good and Turing).
    ratio = len(ranked[1]) / len(first)
    by_chance = int((_counts(first) > 1).sum()) * ratio
    few = max(2, _SEEN_SHARE * len(ranked[1]))
    is_more = n_seen - by_chance > max(few, 3 * (2 * by_chance * (1 + ratio)) ** 0.5)
    return n_seen / len(ranked[1]) if is_more else 0.0


def _counts(values: Hashes) -> Rows:
    """How often each of these values is there."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray(count[place], np.int64)


def is_ordered(ratings: NDArray[np.float64], offsets: Rows) -> NDArray[np.bool_]:
    """Which queries have two different ratings; NaN does not count."""
    return np.asarray(np.fmin.reduceat(ratings, offsets[:-1]) < np.fmax.reduceat(ratings, offsets[:-1]))


def _hash_contents(data: RankingDataset, queries: Rows, n_jobs: int | None) -> tuple[Hashes, Rows]:
    """Hashes of the rows of some queries with their ratings, and the offsets of the queries."""
    rows, edges = spans_of(np.asarray(data.offsets), queries)
    hashes = np.empty((2, len(rows)), np.uint64)
    hashes[:] = _known(data.ratings[rows]).view(np.uint64)
    n_rows = rows_in(data.features, _KEPT_BYTES)
    for start in range(0, len(rows), n_rows):
        part = slice(start, start + n_rows)
        _hash_features(data.features[rows[part]], hashes[:, part], n_jobs)
        release_pages(data.features)
    return hashes[1], edges


def _sum_up(hashes: Hashes, edges: Rows) -> Hashes:
    """A digest of each query from those of its rows, independent of their order."""
    return np.asarray(np.add.reduceat(_mixed(hashes), edges[:-1]), np.uint64)


def _known(ratings: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ratings, with a value below all others for unjudged documents, as NaN has no order."""
    return np.where(np.isnan(ratings), -1.0, _plain(ratings))


def _plain(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values with 0.0 for -0.0, whose bits differ."""
    return np.ascontiguousarray(values) + 0.0


def _mixed(values: Hashes) -> Hashes:
    values = (values ^ (values >> _SHIFT)) * _FACTOR
    return values ^ (values >> _SHIFT)


def sort_queries(digests: Hashes, n_values: Rows, keys_of: Keys) -> Rows:
    """The queries by the digest of their forms, and if that is equal by their keys.

    ``n_values`` is the number of values of each: keys are computed for a limited number of values at a time.
    """
    forms, contents, bare = digests
    queries = np.lexsort((contents, forms))
    edges = np.concatenate([[0], np.flatnonzero(np.diff(forms[queries])) + 1, [len(queries)]])
    is_mixed = contents[queries[edges[:-1]]] != contents[queries[edges[1:] - 1]]
    groups = [queries[a:b] for a, b in zip(edges[:-1][is_mixed], edges[1:][is_mixed], strict=True)]
    # Queries with the same content are represented by one.
    chosen = [group[np.concatenate([[True], np.diff(contents[group]) != 0])] for group in groups]
    differ = [np.full(len(one), (bare[one] != bare[one[0]]).any()) for one in chosen]
    for some in _batches([int(n_values[one].sum()) for one in chosen]):
        batch = slice(some.start, some.stop)
        keys = iter(keys_of(np.concatenate(chosen[batch]), np.concatenate(differ[batch])))
        for group, one in zip(groups[batch], chosen[batch], strict=True):
            places = dict(zip(contents[one].tolist(), keys, strict=False))
            group[:] = sorted(group.tolist(), key=lambda query: places[int(contents[query])])
    return np.asarray(queries, np.int64)


def _batches(sizes: list[int]) -> Iterator[range]:
    """Batches of neighbours of at most ``_COMPARED`` values, or of one larger query."""
    start, total = 0, 0
    for place, size in enumerate(sizes):
        if total + size > _COMPARED and place > start:
            yield range(start, place)
            start, total = place, 0
        total += size
    if sizes:
        yield range(start, len(sizes))


def row_width(data: RankingDataset, has_features: bool = True) -> int:
    """The number of values per document in ``held_values``; a query weight adds one per query."""
    return has_features * data.n_features + sum(values is not None for values in _of_rows(data))


def held_values(data: RankingDataset, rows: Rows, query: int, has_features: bool = True) -> NDArray[np.float64]:
    """The content of a query, in the order of its rows: features, ratings, weights."""
    features = np.nan_to_num(data.features[rows], nan=np.inf).ravel() if has_features else np.empty(0)
    of_query = [] if data.query_weight is None else [data.query_weight[[query]]]
    of_rows = [np.where(np.isnan(one[rows]), -1.0, one[rows]) for one in _of_rows(data) if one is not None]
    return np.concatenate([features, *of_rows, *of_query], dtype=np.float64)


def _of_rows(data: RankingDataset) -> list[NDArray[Any] | None]:
    return [data.ratings if data.is_rated else None, data.row_weight, data.position, data.propensity]


def sort_key(values: NDArray[np.float64]) -> bytes:
    """Bytes that compare like the numbers.

    >>> sorted([[1.0, 2.0], [-3.0, 9.0], [0.5, 7.0]]) == sorted([[1.0, 2.0], [-3.0, 9.0], [0.5, 7.0]],
    ...     key=lambda one: sort_key(np.array(one)))
    True
    """
    bits = (values + 0.0).view(np.int64)
    return np.where(bits < 0, ~bits, bits ^ np.int64(-(2**63))).astype(">i8").tobytes()


def _hash_rows(data: RankingDataset, ratings: NDArray[np.float64] | None, n_jobs: int | None) -> Hashes:
    """Form and content of each row, its rating included where there are any."""
    hashes = np.zeros((2, data.n_documents), np.uint64)
    if ratings is not None:
        hashes[:] = ratings.view(np.uint64)
    for values in (data.position, data.propensity):  # documents shown at other positions differ
        if values is not None:
            hashes[:] = hashes * _FACTOR + values.view(np.uint64)
    for rows in _spans(data):
        _hash_features(data.features[rows], hashes[:, rows], n_jobs)
    return hashes


def _spans(data: RankingDataset) -> Iterator[slice]:
    """All rows, in parts whose features fit into memory."""
    n_rows = rows_in(data.features, _KEPT_BYTES)
    for start in range(0, data.n_documents, n_rows):
        yield slice(start, min(start + n_rows, data.n_documents))


def _hash_features(features: NDArray[np.float32], hashes: Hashes, n_jobs: int | None) -> None:
    """Mix the features of neighbouring rows into their hashes."""
    bits = features.view(np.uint32)
    cuts = np.linspace(0, len(bits), n_threads(n_jobs) + 1).astype(int).tolist()
    in_threads(hash_rows, [(bits, a, b, *hashes) for a, b in pairwise(cuts)], n_jobs)
    release_pages(features)


class Numbering:
    """Numbers for the queries of all processes: 0, 1, ... in the canonical order that a single process would use.

    The queries of this process are indexed as in ``order``, its canonical order. Processes exchange three digests and a
    length for each query; and, temporarily, the content of queries with equal digests.

    Attributes
    ----------
    n_queries : int
        Number of queries of all processes.
    places : array of int64
        The number of each query of this process.
    """

    def __init__(self, data: RankingDataset, order: Order, team: Team) -> None:
        self.team, self.n_queries = team, data.n_queries
        self.places = np.arange(data.n_queries)
        self._of_all = self.places
        if team.size == 1:
            return
        counts = np.concatenate([[0], np.cumsum(team.all_gather(data.n_queries))])
        self.n_queries, first = int(counts[-1]), int(counts[team.rank])
        told = np.concatenate([order.digests.view(np.int64), np.diff(order.offsets)[None]])
        gathered = np.ascontiguousarray(team.gather_rows(np.ascontiguousarray(told.T)).T)
        digests, lengths = gathered[:3].view(np.uint64), gathered[3]
        n_more = int(data.query_weight is not None)

        def own_values(queries: Rows, need_features: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
            return [
                held_values(data, order.rows[order.offsets[q] : order.offsets[q + 1]], int(order.queries[q]), needs)
                for q, needs in zip((queries - first).tolist(), need_features.tolist(), strict=True)
                if 0 <= q < data.n_queries
            ]

        def keys_of(queries: Rows, need_features: NDArray[np.bool_]) -> list[bytes]:
            by_process = np.argsort(queries, kind="stable")
            held = own_values(queries[by_process], need_features[by_process])
            flat = team.gather_rows(np.concatenate([np.empty(0), *held])[:, None])[:, 0]
            widths = np.where(need_features, row_width(data), row_width(data, has_features=False))
            sizes = (lengths[queries] * widths + n_more)[by_process]
            keys = [sort_key(values) for values in np.split(flat, sizes.cumsum()[:-1])]
            return [keys[place] for place in np.argsort(by_process)]

        queries = sort_queries(digests, lengths * row_width(data), keys_of)
        self._of_all = np.empty(self.n_queries, np.int64)
        self._of_all[queries] = np.arange(self.n_queries)
        self.places = self._of_all[first : first + data.n_queries]

    def gather(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values of all queries, by number; ``values`` are those of this process."""
        if self.team.size == 1:
            return values
        gathered = np.empty(self.n_queries, values.dtype)
        gathered[self._of_all] = self.team.gather_rows(values[:, None])[:, 0]
        return gathered

    def own(self) -> Rows:
        """For each number the query of this process that has it, or -1."""
        indices = np.full(self.n_queries, -1, np.int64)
        indices[self.places] = np.arange(len(self.places))
        return indices


T = TypeVar("T")

_SHARED: ContextVar[list[tuple[RankingDataset, Hashable, Any]] | None] = ContextVar("_SHARED", default=None)


@contextmanager
def shared_work() -> Iterator[None]:
    """Inside this block ``share`` stores its results. The data must not change meanwhile."""
    before = _SHARED.set([])
    try:
        yield
    finally:
        _SHARED.reset(before)


def share(data: RankingDataset, key: Hashable, find: Callable[[], T]) -> T:
    """The result of ``find()``, computed once per block for the same data and key.

    >>> data = RankingDataset([[1.0]])
    >>> with shared_work():
    ...     share(data, "n", lambda: 1), share(data, "n", lambda: 2)
    (1, 1)
    """
    known = _SHARED.get()
    if known is None:
        return find()
    for other, name, result in known:
        if other is data and name == key:
            return result  # type: ignore[no-any-return]
    result = find()
    known.append((data, key, result))
    return result
