"""Training on a Dask cluster: one task on each worker, with failure detection."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sklearn.base import clone

from tierank.dataset import RankingDataset
from tierank.distributed.parts import (
    Training,
    advice,
    check_settings_of,
    cut_parts,
    named_columns,
    number_of_parts,
    skips_unjudged,
)
from tierank.distributed.placement import Part, open_source, take_part
from tierank.distributed.processes import TIMEOUT, open_meeting
from tierank.errors import ParameterError, TeamError, TierankError
from tierank.extras import needing
from tierank.files import as_path
from tierank.rankers import Ranker, UMart
from tierank.settings import as_positive, as_whole

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
        own and its ``takes_parts`` is False; then each worker gathers all data.
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
            f"client: expected a Client of dask.distributed that is not asynchronous, got {client!r};"
            " Client('scheduler:8786') makes one"
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
        raise ParameterError("client: expected a cluster with at least one worker, got none; start workers first")
    if workers is None:
        return list(known.values())
    if isinstance(workers, Sequence) and not isinstance(workers, str):
        unknown = next((address for address in workers if address not in known), None)
        if unknown is not None:
            raise ParameterError.unknown("worker", unknown, known)
        if not workers or len(set(workers)) < len(workers):
            raise ParameterError(f"workers: expected at least one address, and each once, got {list(workers)}")
        return [known[address] for address in workers]
    if as_whole("workers", workers) > len(known):
        raise ParameterError(f"workers: expected at most {len(known)}, which the cluster has, got {workers}")
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
            raise ParameterError(
                "workers: expected each to be a separate process, got several in one; start them with processes=True"
            )

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
            raise TeamError(f"expected the same model on all workers, got different ones: {digests}; please report it")
        return answers[0][0]

    def _lost(self) -> list[DaskWorker]:
        """The workers that have ended or restarted."""
        now = _listed(self.client)
        return [worker for worker in self.workers if now.get(worker.address) != worker]

    def _loss(self, lost: list[DaskWorker]) -> TeamError:
        names = ", ".join(worker.address for worker in lost)
        what = f"worker {names}" if self.client.status == "running" else "the scheduler"
        return TeamError(
            f"{what} was lost: expected all {len(self.workers)} workers to stay until fit is done;"
            f" {advice(self.checkpoint)}"
        )

    def _failure(self, future: Any) -> TierankError:
        """The error of a call, as a tierank error."""
        if future.status != "error":
            return TeamError(f"a task was {future.status}: expected it to run to its end; {advice(self.checkpoint)}")
        error = future.exception()
        if isinstance(error, TierankError):
            return error
        failure = TeamError(f"a task failed: expected it to succeed, got {error!r}; {advice(self.checkpoint)}")
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
        raise TeamError(
            f"process {number} of {training.size}: expected the worker that was there before, got a new one"
        )
    data = [take_part(part) for part in parts]
    try:
        ranker = training.fit_part(number, address, data, get_worker().state.nthreads)
    finally:
        _MEETINGS.pop(int(address.rpartition(":")[2]), None)
    return (ranker if number == 0 else None), ranker.model_.digest()
