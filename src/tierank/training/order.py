"""The order in which rankers learn: by what the rows hold, not by where the caller had them or what ids they have."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.kernels import content, in_threads, n_threads
from tierank.memory import release_pages, rows_in
from tierank.team import Team
from tierank.types import Rows

# Bytes of features after which what was read of a mapped matrix is let go.
_KEPT_BYTES = 1 << 27

# Odd, so that multiplying by it loses nothing.
_FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)

Hashes = NDArray[np.uint64]
Order = tuple[Rows, Rows, str]


# What ``canonical_rows`` gave, by data set, inside a block of ``shared_order``.
_SHARED: ContextVar[list[tuple[RankingDataset, bool, Order]] | None] = ContextVar("_SHARED", default=None)


@contextmanager
def shared_order() -> Iterator[None]:
    """Inside this block ``canonical_rows`` looks at each data set once, for all members of a model that ask.

    Nobody may change the data meanwhile.
    """
    before = _SHARED.set([])
    try:
        yield
    finally:
        _SHARED.reset(before)


def canonical_rows(data: RankingDataset, n_jobs: int | None, *, rated: bool = True, team: Team | None = None) -> Order:
    """Rows in an order that depends on what they hold, not on where the caller had them.

    Queries and the documents in them stand by hashes of features and (if ``rated``) ratings. Returns the order, its
    offsets, and the content: a text that says what the data hold. Learning in this order gives the same model for the
    same data in any order. The processes of a ``team`` that all have these data share the reading.

    The order is blind to what should change nothing: ids of queries, the sign of 0, and factors that are powers of two,
    for all features or for some. Where hashes that are blind to such factors are equal, values are compared.
    """
    known = _SHARED.get()
    if known is None or (team is not None and team.size > 1):
        return _find_order(data, n_jobs, rated, team)
    for other, was_rated, order in known:
        if other is data and was_rated == rated:
            return order
    known.append((data, rated, _find_order(data, n_jobs, rated, team)))
    return known[-1][2]


def _find_order(data: RankingDataset, n_jobs: int | None, rated: bool, team: Team | None) -> Order:
    offsets = np.asarray(data.offsets)
    ratings = _known(data) if data.is_rated else np.zeros(data.n_documents)
    weights = np.ones(1) if data.row_weight is None else _plain(data.row_weight)
    forms, contents = _hash_rows(data, ratings if rated else None, n_jobs, team or Team())
    held = (forms, contents, ratings, weights)
    order, spare = np.empty((2, data.n_documents), np.int64)
    parts = np.linspace(0, data.n_queries, n_threads(n_jobs) + 1).astype(int).tolist()
    spans = [(a, b, offsets, data.features, *held, order, spare) for a, b in pairwise(parts)]
    in_threads(content.order_rows, spans, n_jobs)
    importance = np.ones(data.n_queries) if data.query_weight is None else _plain(data.query_weight)
    digests = _digest_queries(offsets[:-1], *held, importance)
    queries = _order_queries(data, order, *digests)
    ends = data.lengths[queries].cumsum()
    starts = ends - data.lengths[queries]
    rows = np.arange(data.n_documents) + np.repeat(offsets[queries] - starts, data.lengths[queries])
    digest = int(digests[1].sum(dtype=np.uint64))
    return order[rows], np.concatenate([[0], ends]), f"{digest:016x}-{data.n_queries}-{data.n_documents}"


def judged_rows(data: RankingDataset, order: Rows, offsets: Rows) -> tuple[Rows, Rows]:
    """Rows in this order without unjudged documents, and their offsets; each query has a document that is judged."""
    if not data.n_unjudged:
        return order, offsets
    is_kept = data.is_judged[order]
    return order[is_kept], np.concatenate([[0], is_kept.cumsum()])[offsets]


def spans_of(offsets: Rows, queries: Rows) -> tuple[Rows, Rows]:
    """The rows of some queries, one after the other, and where each of them begins there.

    >>> rows, edges = spans_of(np.array([0, 2, 5, 6]), np.array([2, 0]))
    >>> rows.tolist(), edges.tolist()
    ([5, 0, 1], [0, 1, 3])
    """
    starts, lengths = offsets[queries], np.diff(offsets)[queries]
    edges = np.concatenate([[0], lengths.cumsum()])
    return np.arange(edges[-1]) + np.repeat(starts - edges[:-1], lengths), edges


def canonical_queries(data: RankingDataset, n_jobs: int | None) -> Rows:
    """The queries in the order of ``canonical_rows``."""
    order, offsets, _ = canonical_rows(data, n_jobs)
    return data.query_of_row[order[offsets[:-1]]]


def join_contents(contents: Sequence[str]) -> str:
    """The content of all queries of several data sets, whichever of them has which.

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
    """A text that is another one where any value of any row is another one, or rows stand in another order.

    The hash of a row differs for certain where one of its values does, and by all odds (2^64 to 1) where several do.
    """
    _, contents = _hash_rows(data, None, n_jobs, Team())
    return hashlib.sha256(contents.tobytes()).hexdigest()


def _known(data: RankingDataset) -> NDArray[np.float64]:
    """The ratings, below all others where a document is unjudged: NaN has no order."""
    return np.where(data.is_judged, _plain(data.ratings), -1.0)


def _plain(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values with 0.0 for -0.0, whose bits differ."""
    return np.ascontiguousarray(values) + 0.0


def _digest_queries(
    starts: Rows,
    forms: Hashes,
    contents: Hashes,
    ratings: NDArray[np.float64],
    weights: NDArray[np.float64],
    query_weights: NDArray[np.float64],
) -> tuple[Hashes, Hashes]:
    """Two numbers for each query, whatever the order of its documents: one of their forms, one of all that it holds."""
    rated = _mixed(contents ^ ratings.view(np.uint64))
    held = np.add.reduceat(_mixed(rated ^ weights.view(np.uint64)), starts)
    return _mixed(np.add.reduceat(_mixed(forms), starts)), _mixed(held + query_weights.view(np.uint64))


def _mixed(values: Hashes) -> Hashes:
    values = (values ^ (values >> _SHIFT)) * _FACTOR
    return values ^ (values >> _SHIFT)


def _order_queries(data: RankingDataset, order: Rows, forms: Hashes, contents: Hashes) -> Rows:
    """The queries by the digest of their forms, and where that is equal by what they hold, row by row of ``order``."""
    queries = np.lexsort((contents, forms))
    edges = np.concatenate([[0], np.flatnonzero(np.diff(forms[queries])) + 1, [len(queries)]])
    for start, end in pairwise(edges.tolist()):
        alike = queries[start:end]
        representatives = dict(zip(contents[alike].tolist(), alike.tolist(), strict=True))
        if len(representatives) > 1:
            values = {digest: _values(data, order, query) for digest, query in representatives.items()}
            queries[start:end] = sorted(alike.tolist(), key=lambda query: values[int(contents[query])])
    return np.asarray(queries, np.int64)


def _values(data: RankingDataset, order: Rows, query: int) -> list[Any]:
    """All that a query holds, in the order of its rows, as something that can be compared."""
    rows = order[data.offsets[query] : data.offsets[query + 1]]
    of_rows = [_known(data) if data.is_rated else None, data.row_weight, data.position, data.propensity]
    return [
        np.nan_to_num(data.features[rows], nan=np.inf).ravel().tolist(),
        *(values[rows].tolist() for values in of_rows if values is not None),
        None if data.query_weight is None else float(data.query_weight[query]),
    ]


def _hash_rows(data: RankingDataset, ratings: NDArray[np.float64] | None, n_jobs: int | None, team: Team) -> Hashes:
    """Form and content of each row, its rating included where there are any."""
    hashes = np.zeros((2, data.n_documents), np.uint64)
    own = team.rows(data.n_documents)
    if ratings is not None:
        hashes[:, own] = ratings[own].view(np.uint64)
    for values in (data.position, data.propensity):  # documents that were shown elsewhere are others
        if values is not None:
            hashes[:, own] = hashes[:, own] * _FACTOR + values[own].view(np.uint64)
    bits = data.features.view(np.uint32)
    n_rows = rows_in(bits, _KEPT_BYTES)
    for start in range(own.start, own.stop, n_rows):
        end = min(start + n_rows, own.stop)
        cuts = np.linspace(start, end, n_threads(n_jobs) + 1).astype(int).tolist()
        in_threads(content.hash_rows, [(bits, a, b, *hashes) for a, b in pairwise(cuts)], n_jobs)
        release_pages(data.features[start:end])
    return team.all_reduce(hashes)
