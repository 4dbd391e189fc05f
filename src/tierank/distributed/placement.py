"""Data split by query and placed on the workers of a Dask cluster, one part on each."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from tierank.dataset import RankingDataset
from tierank.distributed.parts import OF_ROWS, Counts, check_numbers
from tierank.errors import DataError
from tierank.files import as_path
from tierank.readers import read
from tierank.tables import is_table

if TYPE_CHECKING:
    from tierank.distributed.dask import Cluster, DaskWorker

# The input of a task: the data, or where to read them, and the expected numbers of queries and documents.
Part = tuple[Any, int, int]


def open_source(data: Any, columns: dict[str, Any], cluster: Cluster, skips: bool = False) -> Source:
    """The source of the data, with the number of documents of each query; ``skips``: unjudged queries do not count."""
    source = _opened(data, columns, cluster)
    if not skips:
        source.counted = np.ones(len(source.lengths), bool)
    return source


def _opened(data: Any, columns: dict[str, Any], cluster: Cluster) -> Source:
    from dask.base import is_dask_collection

    if isinstance(data, (str, os.PathLike)):
        return _OnDisk(as_path(data, "data").absolute(), columns, cluster)
    if isinstance(data, RankingDataset):
        return _InMemory(data, cluster)
    collections = tuple(data) if isinstance(data, (tuple, list)) and len(data) in (2, 3) else (data,)
    if any(is_dask_collection(collection) for collection in collections):
        return _Partitioned(collections, columns, cluster)
    if len(collections) > 1:
        return _InMemory(RankingDataset(*collections), cluster)
    if is_table(data):
        return _InMemory(read(data, **columns), cluster)
    raise DataError(
        "expected a path, a RankingDataset, a table, a Dask DataFrame, or (X, y, qid) as arrays of NumPy or Dask, got"
        f" {type(data).__name__}"
    )


def take_part(part: Part) -> RankingDataset:
    """The data of one worker, checked to be complete."""
    held, n_queries, n_documents = part
    data = held.read() if isinstance(held, _Span) else held
    if (data.n_queries, data.n_documents) != (n_queries, n_documents):
        raise DataError(
            f"expected {n_queries} queries with {n_documents} documents on this worker, got {data!r}; the data changed"
            " while they were read"
        )
    return data


class Source(ABC):
    """Data to be split into parts of whole queries and placed on workers."""

    cluster: Cluster
    # Documents of each query, in the order in which the queries are split into parts.
    lengths: Counts
    # Queries that training learns from.
    counted: NDArray[np.bool_]

    def choose(self, edges: Counts) -> list[DaskWorker]:
        """A worker for each part."""
        return self.cluster.workers[: len(edges) - 1]

    def place(self, edges: Counts) -> list[Part]:
        """Move each part, the queries from one edge to the next, to its worker."""
        documents = np.add.reduceat(self.lengths, edges[:-1])
        return list(zip(self._hold(edges), np.diff(edges).tolist(), documents.tolist(), strict=True))

    @abstractmethod
    def _hold(self, edges: Counts) -> list[Any]:
        """The input of each worker's task: a future of its data, or where to read them."""


class _InMemory(Source):
    """A data set that the client holds."""

    def __init__(self, data: RankingDataset, cluster: Cluster) -> None:
        data.check_rated()
        check_numbers(data, "data")
        self.data, self.cluster, self.lengths, self.counted = data, cluster, data.lengths, _judged(data) > 0

    def _hold(self, edges: Counts) -> list[Any]:
        return [
            self.cluster.client.scatter(self.data.select(np.arange(a, b)), workers=[worker.address], hash=False)
            for (a, b), worker in zip(pairwise(edges.tolist()), self.cluster.workers, strict=True)
        ]


class _OnDisk(Source):
    """A file that every worker can read. The first one reads it before the others, which then find a cache."""

    def __init__(self, path: Path, columns: dict[str, Any], cluster: Cluster) -> None:
        self.path, self.columns, self.cluster = path, columns, cluster
        (found,) = cluster.results([cluster.submit(_measured, path, columns, on=cluster.workers[0])])
        self.lengths, self.counted = found

    def _hold(self, edges: Counts) -> list[Any]:
        return [_Span(self.path, self.columns, a, b, len(self.lengths)) for a, b in pairwise(edges.tolist())]


@dataclass(frozen=True)
class _Span:
    """Some queries of a file."""

    path: Path
    columns: dict[str, Any]
    first: int
    last: int
    n_queries: int

    def read(self) -> RankingDataset:
        """These queries; the matrix stays on disk if the file has a cache."""
        data = read(self.path, **self.columns)
        if data.n_queries != self.n_queries:
            raise DataError(
                f"{self.path}: expected {self.n_queries} queries, as the first worker read, got {data.n_queries}; every"
                " worker needs the same file"
            )
        return data.select(np.arange(self.first, self.last))


def _measured(path: Path, columns: dict[str, Any]) -> tuple[Counts, NDArray[np.bool_]]:
    """The number of documents of each query of a file, and whether some of them have a rating."""
    data = read(path, **columns)
    data.check_rated()
    check_numbers(data, str(path))
    return data.lengths, _judged(data) > 0


def _judged(data: RankingDataset) -> Counts:
    """The number of documents of each query that have a rating."""
    return np.add.reduceat(data.is_judged.astype(np.int64), data.offsets[:-1])


class _Partitioned(Source):
    """Dask collections with any partitions. Queries go where most of their rows are, so sorted rows hardly move."""

    def __init__(self, collections: tuple[Any, ...], columns: dict[str, Any], cluster: Cluster) -> None:
        self.cluster = cluster
        addresses = [worker.address for worker in cluster.workers]
        self.partitions = cluster.client.compute(_grouped_blocks(collections, columns), workers=addresses)
        sizes = cluster.results([cluster.submit(sizes_of, partition) for partition in self.partitions])
        check_alike(sizes, "partition")
        self.pieces = _Pieces([None if one is None else (one.ids, one.lengths) for one in sizes])
        self.lengths = self.pieces.lengths
        self.counted = self.pieces.total([one.judged for one in sizes if one is not None]) > 0

    def choose(self, edges: Counts) -> list[DaskWorker]:
        """A worker for each part, chosen to move as few documents as possible."""
        workers, holders = self.cluster.workers, self.cluster.client.who_has(self.partitions)
        numbers = {worker.address: number for number, worker in enumerate(workers)}
        held = np.zeros((len(edges) - 1, len(workers)))
        for partition, part, queries in self.pieces.moves(edges):
            for address in numbers.keys() & holders[self.partitions[partition].key]:
                held[part, numbers[address]] += self.pieces.documents(partition, queries)
        return [workers[number] for number in linear_sum_assignment(held, maximize=True)[1]]

    def _hold(self, edges: Counts) -> list[Any]:
        of_parts: list[list[Any]] = [[] for _ in edges[1:]]
        for partition, part, queries in self.pieces.moves(edges):
            whole = self.partitions[partition]
            is_all = len(queries) == self.pieces.n_queries(partition)
            of_parts[part].append(whole if is_all else self.cluster.submit(RankingDataset.select, whole, queries))
        joined = [
            self.cluster.submit(join_pieces, some, on=worker)
            for some, worker in zip(of_parts, self.cluster.workers, strict=True)
        ]
        self.cluster.wait(joined)
        self.partitions.clear()  # from here on each document is held once
        return joined


class _Pieces:
    """Which partition holds how many documents of which query: one piece for each pair of the two.

    Queries are ordered by the partition that holds most of each, and within a partition by its own order.

    >>> pieces = _Pieces([(np.array([7, 8]), np.array([3, 1])), None, (np.array([9, 8]), np.array([2, 2]))])
    >>> pieces.lengths.tolist()
    [3, 2, 3]
    >>> [(partition, part, queries.tolist()) for partition, part, queries in pieces.moves(np.array([0, 1, 3]))]
    [(0, 0, [0]), (0, 1, [1]), (2, 1, [0, 1])]
    """

    def __init__(self, sizes: Sequence[tuple[NDArray[Any], Counts] | None]) -> None:
        codes: dict[Hashable, int] = {}
        sizes_of = [size or (np.empty(0), np.empty(0, np.int64)) for size in sizes]
        query = np.array([codes.setdefault(i, len(codes)) for ids, _ in sizes_of for i in ids.tolist()], np.int64)
        if not len(query):
            raise DataError("expected at least one document, got partitions without any")
        self._starts = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in sizes_of])])
        self._counts = np.concatenate([counts for _, counts in sizes_of])
        largest_first = np.lexsort((-self._counts, query))
        home = largest_first[np.unique(query[largest_first], return_index=True)[1]]
        place = np.empty(len(codes), np.int64)
        place[home.argsort()] = np.arange(len(codes))
        self._place = place[query]
        self.lengths = self.total([self._counts])

    def total(self, of_pieces: Sequence[Counts]) -> Counts:
        """The sum of each query, of numbers for all pieces."""
        return np.bincount(self._place, np.concatenate(of_pieces)).astype(np.int64)

    def n_queries(self, partition: int) -> int:
        """Number of queries with documents in a partition."""
        return int(self._starts[partition + 1] - self._starts[partition])

    def documents(self, partition: int, queries: Counts) -> int:
        """Number of documents of some queries in a partition."""
        return int(self._counts[self._starts[partition] + queries].sum())

    def moves(self, edges: Counts) -> Iterator[tuple[int, int, Counts]]:
        """The moves: partition, part, and the queries of the partition that go to the part."""
        part_of_piece = np.searchsorted(edges, self._place, side="right") - 1
        for partition, (a, b) in enumerate(pairwise(self._starts.tolist())):
            for part in np.unique(part_of_piece[a:b]).tolist():
                yield partition, part, np.flatnonzero(part_of_piece[a:b] == part)


def _grouped_blocks(collections: tuple[Any, ...], columns: dict[str, Any]) -> list[Any]:
    """For each partition, its data set as a delayed computation."""
    from dask.delayed import delayed

    blocks = _blocks(collections)
    return [delayed(grouped)(f"partition {number}", columns, *some) for number, some in enumerate(blocks)]


def _blocks(collections: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The partitions of several collections side by side, with whole rows."""
    from dask.array import Array

    rows = next((c.chunks[0] for c in collections if isinstance(c, Array) and not np.isnan(c.chunks[0]).any()), None)
    lists = []
    for collection in collections:
        if isinstance(collection, Array):
            collection = _whole_rows(collection, rows)
        if not hasattr(collection, "to_delayed"):
            raise DataError(f"expected only Dask collections, got also {type(collection).__name__}")
        lists.append(np.ravel(collection.to_delayed()).tolist())
    if len({len(some) for some in lists}) > 1:
        counts = ", ".join(str(len(some)) for some in lists)
        raise DataError(f"expected X, y and qid with the same partitions, got {counts}; rechunk or repartition them")
    return list(zip(*lists, strict=True))


def _whole_rows(array: Any, rows: tuple[int, ...] | None) -> Any:
    """An array whose blocks have all columns, and these rows if they are known."""
    if array.ndim > 1:
        array = array.rechunk({1: -1})
    if rows is None or np.isnan(array.chunks[0]).any():
        return array
    if len(array) != sum(rows):
        raise DataError(f"expected as many ratings and query ids as rows of X, got {sum(rows)} and {len(array)} rows")
    return array.rechunk({0: rows})


def grouped(where: str, columns: dict[str, Any], *blocks: Any) -> RankingDataset | None:
    """The data set of one partition; None if it is empty."""
    if not blocks[0].shape[0]:
        return None
    try:
        data = read(blocks[0], **columns) if len(blocks) == 1 else RankingDataset(*blocks)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    data.check_rated()
    check_numbers(data, where)
    return data.replace(document_texts=None)  # training does not need them


class Sizes(NamedTuple):
    """What the driver knows of a partition: its queries, their documents and ratings, and what its rows hold."""

    ids: NDArray[Any]
    lengths: Counts
    judged: Counts
    features: tuple[str, ...] | int
    others: tuple[str, ...]


def sizes_of(data: RankingDataset | None) -> Sizes | None:
    """The sizes of a partition; None if it is empty."""
    if data is None:
        return None
    others = tuple(name for name in OF_ROWS if getattr(data, name) is not None)
    return Sizes(data.query_ids, data.lengths, _judged(data), data.feature_names or data.n_features, others)


def check_alike(sizes: Sequence[Sizes | None], what: str) -> None:
    """Refuse partitions with different columns, or in a different order: their rows could not be joined."""
    held = [(number, one) for number, one in enumerate(sizes) if one is not None]
    for number, one in held[1:]:
        for part, wanted, got in zip(("features", "weights"), held[0][1][-2:], one[-2:], strict=True):
            if wanted != got:
                raise DataError(
                    where=f"{what} {number}",
                    expected=f"the {part} of {what} {held[0][0]}, {_listed(wanted)}",
                    got=_listed(got),
                    fix=f"give every {what} the same columns in the same order",
                )


def _listed(names: tuple[str, ...] | int) -> str:
    return f"{names} without names" if isinstance(names, int) else ", ".join(names) or "none"


def join_pieces(pieces: list[RankingDataset]) -> RankingDataset:
    """One data set from pieces of queries."""
    if len(pieces) == 1:
        return pieces[0]
    others: dict[str, Any] = {name: _of_rows(pieces, name) for name in OF_ROWS}
    return RankingDataset(
        np.concatenate([piece.features for piece in pieces]),
        np.concatenate([piece.ratings for piece in pieces]),
        np.concatenate([np.repeat(piece.query_ids, piece.lengths) for piece in pieces]),
        feature_names=pieces[0].feature_names,
        **others,
    )


def _of_rows(pieces: list[RankingDataset], name: str) -> NDArray[Any] | None:
    """The weights of all rows; query weights are checked again, as the pieces of one query have to agree."""
    weights = [getattr(piece, name) for piece in pieces]
    if weights[0] is None:
        return None
    if name == "query_weight":
        weights = [np.repeat(weight, piece.lengths) for weight, piece in zip(weights, pieces, strict=True)]
    return np.concatenate(weights)
