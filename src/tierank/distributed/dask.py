"""Data split by query and placed on the workers of a Dask cluster, one part on each.

Training on a Dask cluster: one task on each worker, with failure detection.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone

from tierank.data.dataset import RankingDataset
from tierank.data.tables import is_table
from tierank.distributed.parts import (
    OF_ROWS,
    Counts,
    Training,
    advice,
    check_numbers,
    check_settings_of,
    cut_parts,
    named_columns,
    number_of_parts,
    skips_unjudged,
)
from tierank.distributed.processes import TIMEOUT, open_meeting
from tierank.errors import DataError, ParameterError, TeamError, TierankError, located
from tierank.extras import needing
from tierank.files import as_path
from tierank.io import read
from tierank.rankers.base import Ranker
from tierank.rankers.trees import UMart
from tierank.settings import as_positive, as_whole

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
    expected = "a path, a RankingDataset, a table, a Dask DataFrame, or (X, y, qid) as arrays of NumPy or Dask"
    raise DataError(expected=expected, got=type(data).__name__)


def take_part(part: Part) -> RankingDataset:
    """The data of one worker, checked to be complete."""
    held, n_queries, n_documents = part
    data = held.read() if isinstance(held, _Span) else held
    if (data.n_queries, data.n_documents) != (n_queries, n_documents):
        expected = f"{n_queries} queries with {n_documents} documents on this worker"
        raise DataError(expected=expected, got=repr(data), fix="the data changed while they were read")
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
                where=self.path,
                expected=f"{self.n_queries} queries, as the first worker read",
                got=str(data.n_queries),
                fix="every worker needs the same file",
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
            raise DataError(expected="at least one document", got="partitions without any")
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
            raise DataError(expected="only Dask collections", got=f"also {type(collection).__name__}")
        lists.append(np.ravel(collection.to_delayed()).tolist())
    if len({len(some) for some in lists}) > 1:
        counts = ", ".join(str(len(some)) for some in lists)
        expected = "X, y and qid with the same partitions"
        raise DataError(expected=expected, got=counts, fix="rechunk or repartition them")
    return list(zip(*lists, strict=True))


def _whole_rows(array: Any, rows: tuple[int, ...] | None) -> Any:
    """An array whose blocks have all columns, and these rows if they are known."""
    if array.ndim > 1:
        array = array.rechunk({1: -1})
    if rows is None or np.isnan(array.chunks[0]).any():
        return array
    if len(array) != sum(rows):
        expected = "as many ratings and query ids as rows of X"
        raise DataError(expected=expected, got=f"{sum(rows)} and {len(array)} rows")
    return array.rechunk({0: rows})


def grouped(where: str, columns: dict[str, Any], *blocks: Any) -> RankingDataset | None:
    """The data set of one partition; None if it is empty."""
    if not blocks[0].shape[0]:
        return None
    with located(where):
        data = read(blocks[0], **columns) if len(blocks) == 1 else RankingDataset(*blocks)
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


R = TypeVar("R", bound=Ranker)

# Seconds between checks of the tasks and of the list of workers.
_LOOK = 1.0
# Seconds in which the tasks of a failed fit have to end before their workers are restarted.
_GRACE = 30.0
# Seconds in which a restarted worker has to come back, and in which the result has to arrive.
_RESTART, _FETCH = 60.0, 600.0


def fit(
    ranker: R,
    data: Any,
    client: Any,
    *,
    valid: Any = None,
    workers: int | Sequence[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
    timeout: float = TIMEOUT,
    query: str | None = None,
    rating: str | None = None,
    features: Sequence[str] | None = None,
) -> R:
    """Train a ranker on the workers of a Dask cluster.

    Each worker learns from whole queries with about the same number of documents, and all workers end with the same
    model. The model depends on the data, its partitions and the number of workers, not on which worker has which part.

    Parameters
    ----------
    ranker : Ranker
        The ranker to train; it is not changed. Each worker holds only its part of the data, unless the ranker is your
        own and ``parts`` is not among its capabilities; then each worker gathers all data.
    data : path, RankingDataset, table, (X, y, qid) or Dask collection
        * a path that every worker can read: each reads its own queries (a large file is read once and then mapped,
          if the workers share a disk);
        * a ``RankingDataset``, a table or ``(X, y, qid)`` in the memory of the client, which is split and sent;
        * a Dask DataFrame with the columns that ``read`` knows, or ``(X, y, qid)`` as Dask arrays. Partitions may
          split queries: rows are gathered by query on the workers, and the client only sees query ids and counts.
    client : distributed.Client
        The client of the cluster.
    valid : as ``data``, optional
        Validation data.
    workers : int or list of str, optional
        Number of workers, or their addresses; default all. Each must be a separate process.
    checkpoint : path, optional
        A folder that the first worker writes the state of training to. A later call continues from it, with any number
        of workers.
    progress : bool, default False
        Show progress, in the log of the first worker.
    timeout : float, default 600
        Seconds that a worker waits for the others before it gives up.
    query, rating : str, optional
        The columns of query ids and ratings of a DataFrame.
    features : list of str, optional
        The feature columns of a DataFrame, which must be numbers. Default: all columns without another role.

    Returns
    -------
    Ranker
        A fitted copy of ``ranker``.

    Notes
    -----
    If the ranker's ``n_jobs`` is None, each worker uses the number of threads that Dask gave it. A lost worker or a
    failed task ends all tasks and raises an error; nothing waits forever. A worker whose thread does not return after a
    failure or an interrupt is restarted.

    .. code-block:: python

        from dask.distributed import Client

        client = Client("scheduler:8786")
        table = dask.dataframe.read_parquet("train/*.parquet")
        ranker = tierank.distributed.fit(tierank.UMart(), table, client, checkpoint="/disk/kept")
    """
    _check(ranker, client, timeout)
    columns = named_columns(query, rating, features)
    kept = None if checkpoint is None else as_path(checkpoint, "checkpoint", "the name of a folder").absolute()
    cluster = Cluster(client, _chosen(client, workers), kept)
    cluster.warm_up()
    sources = [open_source(data, columns, cluster, skips_unjudged(ranker))]
    if valid is not None:
        sources.append(open_source(valid, columns, cluster))
    n_parts = number_of_parts(len(cluster.workers), sources, "workers")
    cuts = [cut_parts(source, n_parts) for source in sources]
    cluster.workers = sources[0].choose(cuts[0])
    parts = [source.place(edges) for source, edges in zip(sources, cuts, strict=True)]
    first = cluster.workers[0]
    address = f"{first.host}:{cluster.results([cluster.submit(_open_meeting, on=first)])[0]}"
    training = Training(clone(ranker), n_parts, timeout, kept, progress)
    fitted: R = cluster.train(training, address, list(zip(*parts, strict=True)))
    return fitted


def _check(ranker: object, client: object, timeout: float) -> None:
    """Refuse invalid arguments before anything is sent."""
    check_settings_of(ranker)
    with needing("training on a Dask cluster"):
        from distributed import Client
    if not isinstance(client, Client) or client.asynchronous:
        raise ParameterError(
            argument="client",
            expected="a Client of dask.distributed that is not asynchronous",
            got=repr(client),
            fix="Client('scheduler:8786') makes one",
        )
    as_positive("timeout", timeout)


# The cluster


@dataclass(frozen=True)
class DaskWorker:
    """A worker as the scheduler lists it. After a restart its folder is new, even if all else is the same."""

    address: str
    host: str
    folder: str
    nanny: str | None


def _dask_listed(client: Any) -> dict[str, DaskWorker]:
    """The current workers of the scheduler, by address; empty if the scheduler is gone."""
    while client.status == "running":
        with contextlib.suppress(OSError):  # the scheduler is busy or gone; the client will find out which
            # Not client.scheduler_info: it can return a concurrent request of the client itself, without workers.
            workers = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
            return {
                address: DaskWorker(address, info["host"], info["local_directory"], info.get("nanny"))
                for address, info in sorted(workers.items())
            }
        time.sleep(_LOOK)
    return {}


def _chosen(client: Any, workers: int | Sequence[str] | None) -> list[DaskWorker]:
    """The workers that the caller chose."""
    known = _dask_listed(client)
    if not known:
        expected = "a cluster with at least one worker"
        raise ParameterError(argument="client", expected=expected, got="none", fix="start workers first")
    if workers is None:
        return list(known.values())
    if isinstance(workers, Sequence) and not isinstance(workers, str):
        unknown = next((address for address in workers if address not in known), None)
        if unknown is not None:
            raise ParameterError.unknown("worker", unknown, known)
        if not workers or len(set(workers)) < len(workers):
            expected = "at least one address, and each once"
            raise ParameterError(argument="workers", expected=expected, got=f"{list(workers)}")
        return [known[address] for address in workers]
    if as_whole("workers", workers) > len(known):
        expected = f"at most {len(known)}, which the cluster has"
        raise ParameterError(argument="workers", expected=expected, got=f"{workers}")
    return list(known.values())[: int(workers)]


class Cluster:
    """The workers of one fit. Waiting for them raises at once if one of them is lost."""

    def __init__(self, client: Any, workers: list[DaskWorker], checkpoint: Path | None) -> None:
        self.client, self.workers, self.checkpoint = client, workers, checkpoint
        self.processes: dict[DaskWorker, int] = {}

    def submit(self, function: Any, *arguments: Any, on: DaskWorker | None = None) -> Any:
        """The future of a call on one worker, or on any of them."""
        addresses = [worker.address for worker in (self.workers if on is None else [on])]
        return self.client.submit(
            function, *arguments, workers=addresses, allow_other_workers=False, pure=False, retries=0
        )

    def wait(self, futures: Sequence[Any]) -> None:
        """Wait until all are finished. Raises as soon as one fails or a worker is lost."""
        from distributed import CancelledError, wait

        while True:
            with contextlib.suppress(CancelledError, TimeoutError):
                wait(futures, timeout=_LOOK)  # type: ignore[no-untyped-call]
            if all(future.status == "finished" for future in futures):
                return
            lost = self._lost()
            if lost:
                raise self._loss(lost)
            failed = next((future for future in futures if future.status not in ("pending", "finished")), None)
            if failed is not None:
                raise self._failure(failed)

    def results(self, futures: Sequence[Any]) -> list[Any]:
        """The results of the calls."""
        self.wait(futures)
        return [future.result(timeout=_FETCH) for future in futures]

    def warm_up(self) -> None:
        """Load and compile what training needs in advance: on one worker of each host, then on the others."""
        firsts = list({worker.host: worker for worker in reversed(self.workers)}.values())
        others = [worker for worker in self.workers if worker not in firsts]
        for wave in (firsts, others):
            self.processes |= dict(zip(wave, self.results([self.submit(_warm_up, on=w) for w in wave]), strict=True))
        if len({(worker.host, process) for worker, process in self.processes.items()}) < len(self.workers):
            expected, fix = "each to be a separate process", "start them with processes=True"
            raise ParameterError(argument="workers", expected=expected, got="several in one", fix=fix)

    def train(self, training: Training, address: str, parts: list[tuple[Part, ...]]) -> Any:
        """Run one task on each worker, all at the same time; returns the fitted ranker."""
        futures = {
            worker: self.submit(_train, training, address, number, self.processes[worker], *parts[number], on=worker)
            for number, worker in enumerate(self.workers)
        }
        try:
            answers = self.results(list(futures.values()))
        except TierankError as error:
            self._settle(futures)
            cause = self._cause(futures) or error
            restarted = self._stop(futures)
            if restarted:
                cause.add_note(restarted)
            raise cause from cause.__cause__
        except BaseException:  # interrupted by the caller: the tasks could run for hours
            self._stop(futures)
            raise
        digests = [digest for _, digest in answers]
        if len(set(digests)) > 1:
            got = f"different ones: {digests}"
            raise TeamError(expected="the same model on all workers", got=got, fix="please report it")
        return answers[0][0]

    def _lost(self) -> list[DaskWorker]:
        """The workers that have ended or restarted."""
        now = _dask_listed(self.client)
        return [worker for worker in self.workers if now.get(worker.address) != worker]

    def _loss(self, lost: list[DaskWorker]) -> TeamError:
        names = ", ".join(worker.address for worker in lost)
        what = f"worker {names}" if self.client.status == "running" else "the scheduler"
        expected = f"all {len(self.workers)} workers to stay until fit is done"
        return TeamError(where=f"{what} was lost", expected=expected, fix=advice(self.checkpoint))

    def _failure(self, future: Any) -> TierankError:
        """The error of a call, as a tierank error."""
        if future.status != "error":
            expected, fix = "it to run to its end", advice(self.checkpoint)
            return TeamError(where="a task", expected=expected, got=future.status, fix=fix)
        error = future.exception()
        if isinstance(error, TierankError):
            return error
        fix = advice(self.checkpoint)
        failure = TeamError(where="a task failed", expected="it to succeed", got=repr(error), fix=fix)
        failure.__cause__ = error
        return failure

    def _cause(self, futures: dict[DaskWorker, Any]) -> TierankError | None:
        """The original cause of a failed fit, if it is known: tasks that only lost contact are not the cause."""
        lost = self._lost()
        if lost:
            return self._loss(lost)
        errors = [self._failure(future) for future in futures.values() if future.status == "error"]
        return next((error for error in errors if not (isinstance(error, TeamError) and error.is_left_alone)), None)

    def _settle(self, futures: dict[DaskWorker, Any]) -> None:
        """Give tasks that have lost another one the time to notice."""
        end = time.monotonic() + _GRACE
        while self._running(futures) and time.monotonic() < end:
            time.sleep(_LOOK / 5)

    def _running(self, futures: dict[DaskWorker, Any]) -> list[DaskWorker]:
        """The workers whose tasks still run."""
        lost = self._lost()
        return [worker for worker, future in futures.items() if future.status == "pending" and worker not in lost]

    def _stop(self, futures: dict[DaskWorker, Any]) -> str:
        """End all tasks, by restarting their workers if necessary; returns a description of what was done."""
        if self.client.status != "running":  # without a scheduler the workers end by themselves
            return ""
        stuck = self._running(futures)
        self.client.cancel(list(futures.values()), force=True)
        words = []
        cared_for = [worker.address for worker in stuck if worker.nanny]
        alone = [worker.address for worker in stuck if not worker.nanny]
        if cared_for:
            answers = self.client.restart_workers(cared_for, timeout=_RESTART, raise_for_error=False)
            words.append(f"restarted, because their threads did not end: {', '.join(cared_for)}")
            late = [address for address, answer in answers.items() if answer != "OK"]
            if late:
                words.append(f"not back after {_RESTART:g} seconds: {', '.join(late)}")
        if alone:
            words.append(f"still busy, and without a nanny to restart them: {', '.join(alone)}; end them by hand")
        return "; ".join(words)


# Code that runs on the workers

# Stores that the first worker of a fit keeps open for the others, by port.
_MEETINGS: dict[int, Any] = {}


def _open_meeting() -> int:
    """The port by which the tasks of a fit find each other; open until the task of this worker ends."""
    meeting = open_meeting()
    _MEETINGS[meeting.port] = meeting
    return int(meeting.port)


def _warm_up() -> int:
    """Train a model on two queries, so that all code is loaded and compiled. Returns the process id."""
    data = RankingDataset([[0.0], [1.0], [2.0], [3.0]], [1, 0, 0, 2], qid=[0, 0, 1, 1])
    UMart(n_trees=1, min_documents=1, query_features=True, n_jobs=1).fit(data, valid=data)
    return os.getpid()


def _train(training: Training, address: str, number: int, process: int, *parts: Part) -> tuple[Any, str]:
    """The task of one worker: returns the fitted ranker (only on the first worker) and a digest of its model."""
    from distributed import get_worker

    if os.getpid() != process:  # Dask runs a task again if its worker has died
        where = f"process {number} of {training.size}"
        raise TeamError(where=where, expected="the worker that was there before", got="a new one")
    data = [take_part(part) for part in parts]
    try:
        ranker = training.fit_part(number, address, data, get_worker().state.nthreads)
    finally:
        _MEETINGS.pop(int(address.rpartition(":")[2]), None)
    return (ranker if number == 0 else None), ranker.model_.digest()
