"""Dask: training on the workers of a cluster, one task on each, with failure detection.

Data are split by query and placed on the workers, one part on each.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from tierank.data.dataset import RankingDataset
from tierank.data.tables import is_table
from tierank.distributed import parts
from tierank.distributed.parts import Answer, Counts, FitJob
from tierank.distributed.processes import open_meeting
from tierank.errors import DataError, ParameterError, TeamError, TierankError
from tierank.extras import needing
from tierank.files import as_path
from tierank.io import read
from tierank.rankers.trees import UMart
from tierank.settings import as_whole

NAME, OWN = "Dask", ("workers",)
# Seconds between checks of the tasks and of the list of workers.
_LOOK = 1.0
# Seconds in which the tasks of a failed fit have to end before their workers are restarted.
_GRACE = 30.0
# Seconds in which a restarted worker has to come back, and in which the result has to arrive.
_RESTART, _FETCH = 60.0, 600.0

# The input of a task: the data, or where to read them, and the expected numbers of queries and documents.
Part = tuple[Any, int, int]


# The data


class Placed(parts.Source):
    """Data to be split into parts of whole queries and placed on workers."""

    cluster: DaskCluster

    def choose(self, edges: Counts) -> list[DaskWorker]:
        """A worker for each part."""
        return self.cluster.workers[: len(edges) - 1]

    def place(self, edges: Counts) -> list[Part]:
        """Move each part, the queries from one edge to the next, to its worker."""
        counts = parts.counts_of(self.lengths, edges)
        return [(held, *of_part) for held, of_part in zip(self._hold(edges), counts, strict=True)]

    @abstractmethod
    def _hold(self, edges: Counts) -> list[Any]:
        """The input of each worker's task: a future of its data, or where to read them."""


class _InMemory(Placed):
    """A data set that the client holds."""

    def __init__(self, data: RankingDataset, cluster: DaskCluster) -> None:
        self.data, self.cluster = data, cluster
        self.lengths, self.judged = _checked(data, "data")

    def _hold(self, edges: Counts) -> list[Any]:
        return [
            self.cluster.client.scatter(self.data.select(np.arange(a, b)), workers=[worker.address], hash=False)
            for (a, b), worker in zip(pairwise(edges.tolist()), self.cluster.workers, strict=True)
        ]


def _checked(data: RankingDataset, where: str) -> tuple[Counts, Counts]:
    """The documents of each query, and those with a rating, of data that can be learned from."""
    data.check_rated()
    parts.check_numbers(data, where)
    return data.lengths, parts.judged_of(data)


class _OnDisk(Placed):
    """A file that every worker can read. The first one reads it before the others, which then find a cache."""

    def __init__(self, path: Path, columns: dict[str, Any], cluster: DaskCluster) -> None:
        self.path, self.columns, self.cluster = path, columns, cluster
        (found,) = cluster.results([cluster.submit(_measured, path, columns, on=cluster.workers[0])])
        self.lengths, self.judged = found

    def _hold(self, edges: Counts) -> list[Any]:
        return [_Span(self.path, self.columns, a, b, len(self.lengths)) for a, b in pairwise(edges.tolist())]


def _measured(path: Path, columns: dict[str, Any]) -> tuple[Counts, Counts]:
    return _checked(read(path, **columns), str(path))


@dataclass(frozen=True)
class _Span:
    """Some queries of a file; the matrix stays on disk if the file has a cache."""

    path: Path
    columns: dict[str, Any]
    first: int
    last: int
    n_queries: int

    def read(self) -> RankingDataset:
        """These queries."""
        data = read(self.path, **self.columns)
        if data.n_queries != self.n_queries:
            expected, fix = f"{self.n_queries} queries, as the first worker read", "every worker needs the same file"
            raise DataError(where=self.path, expected=expected, got=str(data.n_queries), fix=fix)
        return data.select(np.arange(self.first, self.last))


def take_part(part: Part) -> RankingDataset:
    """The data of one worker."""
    held, *counts = part
    return parts.complete(held.read() if isinstance(held, _Span) else held, (counts[0], counts[1]))


class _Partitioned(Placed):
    """Dask collections with any partitions. Queries go where most of their rows are, so sorted rows hardly move."""

    def __init__(self, collections: tuple[Any, ...], columns: dict[str, Any], cluster: DaskCluster) -> None:
        from dask.delayed import delayed

        self.cluster = cluster
        blocks = [
            delayed(parts.grouped)(f"partition {number}", columns, *some)
            for number, some in enumerate(_blocks(collections))
        ]
        self.partitions = cluster.client.compute(blocks, workers=[worker.address for worker in cluster.workers])
        sizes = cluster.results([cluster.submit(parts.sizes_of, partition) for partition in self.partitions])
        parts.check_alike(sizes, "partition")
        self.pieces = _Pieces([None if one is None else (one.ids, one.lengths) for one in sizes])
        self.lengths = self.pieces.lengths
        self.judged = self.pieces.total([one.judged for one in sizes if one is not None])

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
            self.cluster.submit(parts.join_pieces, some, on=worker)
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


def _blocks(collections: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The partitions of several collections side by side, with whole rows."""
    from dask.array import Array

    arrays = [one for one in collections if isinstance(one, Array)]
    rows = next((one.chunks[0] for one in arrays if not np.isnan(one.chunks[0]).any()), None)
    lists = []
    for collection in collections:
        if not hasattr(collection, "to_delayed"):
            raise DataError(expected="only Dask collections", got=f"also {type(collection).__name__}")
        if isinstance(collection, Array):
            chunks = {1: -1} if collection.ndim > 1 else {}
            if rows is not None and not np.isnan(collection.chunks[0]).any():
                if len(collection) != sum(rows):
                    got = f"{sum(rows)} and {len(collection)} rows"
                    raise DataError(expected="as many ratings and query ids as rows of X", got=got)
                chunks |= {0: rows}
            collection = collection.rechunk(chunks)  # type: ignore[no-untyped-call]
        lists.append(np.ravel(collection.to_delayed()).tolist())
    if len({len(some) for some in lists}) > 1:
        counts, fix = ", ".join(str(len(some)) for some in lists), "rechunk or repartition them"
        raise DataError(expected="X, y and qid with the same partitions", got=counts, fix=fix)
    return list(zip(*lists, strict=True))


# The cluster


@dataclass(frozen=True)
class DaskWorker:
    """A worker as the scheduler lists it. After a restart its folder is new, even if all else is the same."""

    address: str
    host: str
    folder: str
    nanny: str | None


def _listed(client: Any) -> dict[str, DaskWorker]:
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
    known = _listed(client)
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


def open_cluster(data: Any, valid: Any, client: Any, workers: int | Sequence[str] | None = None) -> DaskCluster:
    """The chosen workers of a cluster."""
    with needing("training on a Dask cluster"):
        from distributed import Client
    if not isinstance(client, Client) or client.asynchronous:
        expected = "a Client of dask.distributed that is not asynchronous"
        fix = "Client('scheduler:8786') makes one"
        raise ParameterError(argument="client", expected=expected, got=repr(client), fix=fix)
    cluster = DaskCluster(client, _chosen(client, workers))
    cluster.warm_up()
    return cluster


class DaskCluster(parts.Cluster):
    """The workers of one fit. Waiting for them raises at once if one of them is lost."""

    member = "worker"

    def __init__(self, client: Any, workers: list[DaskWorker]) -> None:
        self.client, self.workers, self.size = client, workers, len(workers)
        self.processes: dict[DaskWorker, int] = {}
        # Until the number of parts is known, for messages.
        self.training = FitJob(None, self.member, self.size, 0.0, None, False)

    def source(self, data: Any, argument: str, columns: dict[str, Any]) -> Placed:
        """The source of the data."""
        found = self._opened(data, columns)
        found.columns = columns
        return found

    def _opened(self, data: Any, columns: dict[str, Any]) -> Placed:
        from dask.base import is_dask_collection

        if isinstance(data, (str, os.PathLike)):
            return _OnDisk(as_path(data, "data").absolute(), columns, self)
        if isinstance(data, RankingDataset):
            return _InMemory(data, self)
        collections = tuple(data) if isinstance(data, (tuple, list)) and len(data) in (2, 3) else (data,)
        if any(is_dask_collection(collection) for collection in collections):
            return _Partitioned(collections, columns, self)
        if len(collections) > 1:
            return _InMemory(RankingDataset(*collections), self)
        if is_table(data):
            return _InMemory(read(data, **columns), self)
        expected = "a path, a RankingDataset, a table, a Dask DataFrame, or (X, y, qid) as arrays of NumPy or Dask"
        raise DataError(expected=expected, got=type(data).__name__)

    def run(self, training: FitJob, sources: Sequence[Placed], cuts: Sequence[Counts]) -> list[Answer]:
        """Run one task on each worker, all at the same time."""
        self.training, self.workers = training, sources[0].choose(cuts[0])
        placed = [source.place(edges) for source, edges in zip(sources, cuts, strict=True)]
        first = self.workers[0]
        address = f"{first.host}:{self.results([self.submit(_open_meeting, on=first)])[0]}"
        futures = {
            worker: self.submit(_train, training, address, number, self.processes[worker], *of_worker, on=worker)
            for number, (worker, *of_worker) in enumerate(zip(self.workers, *placed, strict=True))
        }
        try:
            return self.results(list(futures.values()))
        except TierankError as error:
            end = time.monotonic() + _GRACE  # tasks that have lost another one need the time to notice
            while self._running(futures) and time.monotonic() < end:
                time.sleep(_LOOK / 5)
            lost, failed = self._lost(), [one for one in futures.values() if one.status == "error"]
            first_error = self._loss(lost) if lost else parts.cause([self._failure(one) for one in failed]) or error
            restarted = self._stop(futures)
            if restarted:
                first_error.add_note(restarted)
            raise first_error from first_error.__cause__
        except BaseException:  # interrupted by the caller: the tasks could run for hours
            self._stop(futures)
            raise

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

    def _lost(self) -> list[DaskWorker]:
        """The workers that have ended or restarted."""
        now = _listed(self.client)
        return [worker for worker in self.workers if now.get(worker.address) != worker]

    def _loss(self, lost: list[DaskWorker]) -> TeamError:
        names = ", ".join(worker.address for worker in lost)
        return self.training.loss(f"worker {names}" if self.client.status == "running" else "the scheduler")

    def _failure(self, future: Any) -> TierankError:
        """The error of a call, as a tierank error."""
        if future.status != "error":
            expected, fix = "it to run to its end", self.training.advice
            return TeamError(where="a task", expected=expected, got=future.status, fix=fix)
        return self.training.failure("a task", future.exception())

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


def _train(training: FitJob, address: str, number: int, process: int, *given: Part) -> Answer:
    """The task of one worker."""
    from distributed import get_worker

    if os.getpid() != process:  # Dask runs a task again if its worker has died
        where = f"process {number} of {training.size}"
        raise TeamError(where=where, expected="the worker that was there before", got="a new one")
    data = [take_part(part) for part in given]
    try:
        return training.answer(number, address, data, get_worker().state.nthreads)
    finally:
        _MEETINGS.pop(int(address.rpartition(":")[2]), None)
