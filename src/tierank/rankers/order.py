"""The order in which rankers learn: by what the rows hold, not by where the caller had them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.inputs import forget, rows_in
from tierank.kernels import content, in_threads, n_threads
from tierank.team import Team

# Bytes of features after which what was read of a mapped matrix is let go.
_KEPT_BYTES = 1 << 27


def sorted_queries(data: RankingDataset) -> NDArray[np.int64]:
    """The queries in the order of their ids."""
    ids = data.query_ids if data.query_ids.dtype.kind in "iufUSmMb" else np.array([repr(i) for i in data.query_ids])
    return np.asarray(ids.argsort(kind="stable"), np.int64)


def canonical_rows(
    data: RankingDataset, n_jobs: int | None, *, rated: bool = True, team: Team | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], str]:
    """Rows in an order that depends on what they hold, not on where the caller had them.

    Queries by id, documents by a hash of features and (if ``rated``) rating, then by rating and weight. Returns the
    order, its offsets, and the content: a text that says what the data hold. Learning in this order gives the same
    model for the same data in any order. The processes of a ``team`` that all have these data share the reading.
    """
    queries = sorted_queries(data)
    offsets = np.concatenate([[0], data.lengths[queries].cumsum()])
    ratings = np.ascontiguousarray(data.ratings) if data.is_rated else np.zeros(data.n_documents)
    weights = np.ones(1) if data.row_weight is None else np.ascontiguousarray(data.row_weight)
    hashes = _hash_rows(data, ratings if rated else None, n_jobs, team or Team())
    order = np.empty(data.n_documents, np.int64)
    parts = np.linspace(0, data.n_queries, n_threads(n_jobs) + 1).astype(int).tolist()
    rows = (queries, np.asarray(data.offsets), offsets, hashes, ratings, weights)
    in_threads(content.order_rows, [(a, b, *rows, order) for a, b in pairwise(parts)], n_jobs)
    importance = np.ones(data.n_queries) if data.query_weight is None else np.ascontiguousarray(data.query_weight)
    digest = content.digest_queries(np.asarray(data.offsets), hashes, ratings, weights, importance)
    return order, offsets, f"{int(digest):016x}-{data.n_queries}-{data.n_documents}"


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
    hashes = _hash_rows(data, None, n_jobs, Team())
    return hashlib.sha256(hashes.tobytes()).hexdigest()


def _hash_rows(
    data: RankingDataset, ratings: NDArray[np.float64] | None, n_jobs: int | None, team: Team
) -> NDArray[np.uint64]:
    """A number for what each row holds, its rating included where there are any."""
    hashes = np.zeros(data.n_documents, np.uint64)
    own = team.rows(data.n_documents)
    if ratings is not None:
        hashes[own] = ratings[own].view(np.uint64)
    bits = data.features.view(np.uint32)
    n_rows = rows_in(bits, _KEPT_BYTES)
    for start in range(own.start, own.stop, n_rows):
        end = min(start + n_rows, own.stop)
        cuts = np.linspace(start, end, n_threads(n_jobs) + 1).astype(int).tolist()
        in_threads(content.hash_rows, [(bits, a, b, hashes) for a, b in pairwise(cuts)], n_jobs)
        forget(data.features[start:end])
    return team.sum(hashes)
