"""cross_validate: every ranker on every fold with every seed, in pieces that are never run twice."""

from __future__ import annotations

import inspect
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from numbers import Integral
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.evaluation import Comparison
from tierank.experiments.folds import Fold, Folds, TestOnly, folds_of
from tierank.experiments.runs import PAPER_METRICS, Plan, Run
from tierank.experiments.tuning import as_ranker, tune
from tierank.files import remove_folder
from tierank.kernels import n_threads
from tierank.metrics import Rule, as_rule, as_scores, default_metrics, parse_metric
from tierank.progress import Progress
from tierank.rankers import RANKERS, Ranker, known_rankers
from tierank.rankers.model_folder import constructed
from tierank.readers import read, read_scores
from tierank.settings import as_choice, as_whole

# "lightgbm" is how the last table of the paper was made: the number of trees is chosen on the test data themselves.
PROTOCOLS = ("standard", "lightgbm")
LEAKS = (
    "protocol lightgbm LEAKS: the test data choose the number of trees, and queries without a relevant document count"
    " as 1. It repeats the paper's last table; use it for nothing else"
)


def cross_validate(
    rankers: str | Ranker | Mapping[str, str | Ranker] | Sequence[str | Ranker],
    data: Any,
    *,
    seeds: int | Sequence[int] = 1,
    metrics: Sequence[str] | None = None,
    rule: str | Rule | None = None,
    baseline: str | None = None,
    scores: Mapping[str, Any] | None = None,
    trials: int | None = None,
    protocol: str = "standard",
    out: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    progress: bool = False,
    name: str | None = None,
    kind: str = "cv",
    paper: str | None = None,
    **reading: Any,
) -> Run:
    """Train every ranker on every fold with every seed, and judge it on the test data of the fold.

    ``rankers`` are names, rankers, or rankers by the names that the table is to show. ``data`` is a folder with
    ``Fold1`` to ``Fold5`` or the parts ``S1`` to ``S5``; a file, a table or a ``RankingDataset``, which is cut into
    five parts of whole queries; or a list of (train, valid, test) data sets. ``reading`` goes to ``read``, for files
    and tables. Validation data choose rounds and epochs, and with ``trials`` the settings too: so many are tried, anew
    in each fold (see ``tune``).

    ``out`` is a folder that keeps everything: scores, models, and how far the run came. The same call finishes a run
    that was interrupted, and a call with other rankers or seeds adds to it; what is there is not run again. ``scores``
    adds systems of other tools, by name: a list of score arrays or files, one a fold, or one name with ``{fold}`` in
    it. Pieces run side by side in ``n_jobs`` processes (None: one for each core), each with one thread unless its
    ranker says otherwise: the numbers do not depend on how many there are. ``name`` is what tables call the data.

    >>> import tierank
    >>> data = tierank.make_ranking(40, n_features=5, mean_length=10, max_length=20)
    >>> run = cross_validate([tierank.LambdaMART(n_trees=5), tierank.UMart(n_trees=5)], data, n_jobs=1)
    >>> run.systems, run.n_folds, len(run.tidy().value)
    (('lambdamart', 'umart'), 5, 80)
    """
    as_choice("protocol", protocol, PROTOCOLS)
    _check_reading(reading)
    rule = ("lightgbm" if protocol == "lightgbm" else "tierank") if rule is None else rule
    chosen, outside = _by_name(rankers), dict(scores or {})
    if not chosen and not outside:
        raise ParameterError("rankers: expected at least one ranker, or scores of another tool, got none")
    before = list(Run.open(out).about["systems"]) if out is not None and Path(out, "run.json").exists() else []
    if baseline is not None and baseline not in (*before, *chosen, *outside):
        raise ParameterError.unknown("baseline", baseline, [*before, *chosen, *outside])
    systems = {name: _described(ranker, trials) for name, ranker in chosen.items()}
    given = {name: {"scores": given if isinstance(given, str) else "given"} for name, given in outside.items()}
    plan = Plan(
        kind, systems | given, _as_seeds(seeds), _as_metrics(metrics, rule), rule, baseline, protocol, paper, name
    )
    asked = _Asked(plan, systems, outside, trials)
    if out is not None:
        return asked.run(Path(out), data, reading, n_jobs, progress)
    folder = Path(mkdtemp(prefix="tierank-"))
    try:
        run = asked.run(folder, data, reading, n_jobs, progress)
    except BaseException:
        shutil.rmtree(folder)
        raise
    finalize(run, shutil.rmtree, folder, ignore_errors=True)  # the folder lives as long as the run
    return run


@dataclass(frozen=True)
class _Asked:
    """What ``cross_validate`` was asked for, checked."""

    plan: Plan
    systems: dict[str, dict[str, Any]]
    outside: dict[str, Any]
    trials: int | None

    def run(self, folder: Path, data: Any, reading: dict[str, Any], n_jobs: int | None, progress: bool) -> Run:
        """Do what is not done yet."""
        folds = folds_of(data, **reading)
        run = Run.prepare(folder, folds, self.plan)
        given = {name: _read_given(run, name, scores) for name, scores in self.outside.items()}
        run.write()
        folds = folds.keep(folder / "parts")
        _add_scores(run, given)
        pieces = [
            Piece(name, fold, seed, described, self.plan.protocol, self.trials)
            for fold in range(run.n_folds)
            for name, described in self.systems.items()
            for seed in self.plan.seeds
        ]
        _run_pieces(run, folds, pieces, n_threads(n_jobs), progress)
        return Run.open(folder)


@dataclass(frozen=True)
class Piece:
    """One ranker, one fold, one seed."""

    system: str
    fold: int
    seed: int
    described: dict[str, Any]
    protocol: str
    trials: int | None


def _run_pieces(run: Run, folds: Folds, pieces: list[Piece], n_jobs: int, progress: bool) -> None:
    waiting = [piece for piece in pieces if not run.is_done(piece.system, piece.fold, piece.seed)]
    done = len(pieces) - len(waiting)
    with Progress("cross-validation", len(pieces), show=progress, done=done) as shown:
        if n_jobs == 1 or len(waiting) < 2:
            worker = Worker(run.folder, folds)
            for piece in waiting:
                shown.step(worker(piece))
            return
        with _pool(min(n_jobs, len(waiting)), run.folder, folds) as pool:
            for future in as_completed([pool.submit(_work, piece) for piece in waiting]):
                shown.step(_result(future))


class Worker:
    """Runs pieces; keeps the data of the last fold."""

    def __init__(self, folder: Path, folds: Folds) -> None:
        self.run, self.folds = Run.open(folder), folds
        self._fold: tuple[int, Fold] | None = None

    def __call__(self, piece: Piece) -> str:
        """Train, score, write; returns what to say about it."""
        train, valid, test = self._read(piece.fold)
        if piece.protocol == "lightgbm":
            valid = test
        place = self.run.place(piece.system, piece.fold, piece.seed)
        ranker = _ranker_of(piece)
        start = time.process_time()
        checkpoint, study = (place.with_name(f".{place.name}.{what}") for what in ("checkpoint", "study"))
        if piece.trials is None:
            ranker.fit(train, valid=valid, checkpoint=checkpoint)
        else:
            ranker = tune(ranker, train, valid, trials=piece.trials, seed=piece.seed, study=study).ranker
        seconds = time.process_time() - start
        scores = ranker.predict(test)
        about = {
            "settings": ranker._saved_settings(),
            "history": ranker.history_,
            "best": ranker.best_,
            "cpu_seconds": seconds,
        }
        self.run.write_piece(piece.system, piece.fold, piece.seed, test.arrange(scores), about, ranker)
        remove_folder(checkpoint)
        study.unlink(missing_ok=True)
        best = " ".join(f"{name} {value:.4f}" for name, value in ranker.best_.items())
        return f"{piece.system}, fold {piece.fold + 1}, seed {piece.seed}: {best} on validation data"

    def _read(self, fold: int) -> Fold:
        if self._fold is None or self._fold[0] != fold:
            self._fold = (fold, self.folds.read(fold))
        return self._fold[1]


def check_is_new(folder: Path) -> None:
    """An error where the folder has a run already."""
    if (folder / "run.json").exists():
        raise DataError(f"{folder}: expected a new folder, got one with a run in it")


def keep_comparison(
    folder: Path, data: RankingDataset, scores: Mapping[str, Any], comparison: Comparison, name: str = "data"
) -> Run:
    """Keep what ``compare`` found as a run of one fold, for its report."""
    check_is_new(folder)
    systems = {system: {"scores": "given"} for system in scores}
    plan = Plan("compare", systems, [0], comparison.metrics, comparison.rule, comparison.baseline)
    run = Run.prepare(folder, TestOnly(name, data), plan)
    run.write()
    _add_scores(run, {system: _read_given(run, system, [given]) for system, given in scores.items()})
    return run


# Processes

_worker: Worker | None = None


def _start(folder: Path, folds: Folds) -> None:
    global _worker  # the one of this process
    _worker = Worker(folder, folds)


def _work(piece: Piece) -> str:
    if _worker is None:
        raise RuntimeError("a process took a piece before it was started")
    return _worker(piece)


class _Fresh(SpawnContext):
    """Starts fresh processes, for threads of torch, numba and LightGBM do not survive a fork; knows which."""

    def __init__(self) -> None:
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **settings: Any) -> SpawnProcess:  # type: ignore[override]
        self.started.append(SpawnProcess(*args, **settings))
        return self.started[-1]


@contextmanager
def _pool(n_jobs: int, folder: Path, folds: Folds) -> Iterator[ProcessPoolExecutor]:
    """Processes that take pieces. An interrupt ends them at once."""
    context = _Fresh()
    pool = ProcessPoolExecutor(n_jobs, mp_context=context, initializer=_start, initargs=(folder, folds))
    try:
        yield pool
    except BaseException:
        for process in context.started:
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _result(future: Future[str]) -> str:
    from concurrent.futures.process import BrokenProcessPool

    try:
        return future.result()
    except BrokenProcessPool:
        raise DataError(
            "a process of the run was killed, most often for want of memory; the same command goes on where it stopped,"
            " with fewer processes by --jobs"
        ) from None


# What was asked for


def _check_reading(reading: dict[str, Any]) -> None:
    """Whatever ``cross_validate`` does not know is meant for ``read``, unless it is misspelt."""
    known = inspect.signature(read).parameters
    for name in reading:
        if name not in known:
            raise ParameterError.unknown("argument", name, [*known, *inspect.signature(cross_validate).parameters])


def _by_name(rankers: Any) -> dict[str, Ranker]:
    if isinstance(rankers, Mapping):
        return {name: as_ranker(ranker) for name, ranker in rankers.items()}
    if isinstance(rankers, (str, Ranker)) or not isinstance(rankers, Iterable):
        rankers = [rankers]
    names = {ranker: name for name, ranker in RANKERS.items()}
    found: dict[str, Ranker] = {}
    for ranker in map(as_ranker, rankers):
        name = names.get(type(ranker), type(ranker).__name__)
        if name in found:
            raise ParameterError(
                f"rankers: expected each name once, got {name!r} twice; give them as a mapping of names"
            )
        found[name] = ranker
    return found


def _described(ranker: Ranker, trials: int | None) -> dict[str, Any]:
    described = {"ranker": type(ranker).__name__, "settings": ranker._saved_settings()}
    return described if trials is None else described | {"trials": as_whole("trials", trials)}


def _ranker_of(piece: Piece) -> Ranker:
    kind = known_rankers()[piece.described["ranker"]]
    ranker = constructed(kind, piece.described["settings"], Path("run.json"))
    n_jobs = ranker.get_params(deep=False)["n_jobs"]
    return ranker.set_params(seed=piece.seed, n_jobs=1 if n_jobs is None else n_jobs)


def _as_seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, Integral) or not isinstance(seeds, Iterable):
        return list(range(as_whole("seeds", seeds)))
    found = [as_whole("seeds", seed, 0) for seed in seeds]
    if not found or len(set(found)) < len(found):
        raise ParameterError(f"seeds: expected how many, or a list with each seed once, got {found}")
    return found


def _as_metrics(metrics: str | Sequence[str] | None, rule: str | Rule) -> list[str]:
    """The metrics, checked before the work: they are looked at only after it."""
    known = default_metrics(as_rule(rule))
    if metrics is None:
        return [metric for metric in PAPER_METRICS if not metric.startswith("err") or "err@10" in known]
    found = [metrics] if isinstance(metrics, str) else list(metrics)
    for metric in found:
        parse_metric(metric)
    return found


def _read_given(run: Run, name: str, given: Any) -> list[Any]:
    """The scores that another tool gives the test documents of each fold, in the order of the data set."""
    if isinstance(given, (str, os.PathLike)):
        if run.n_folds > 1 and "{fold}" not in str(given):
            raise ParameterError(
                f"scores: expected {{fold}} in the file name of {name!r}, in place of 1 to {run.n_folds}, got {given}"
            )
        given = [str(given).replace("{fold}", str(fold + 1)) for fold in range(run.n_folds)]
    if len(given) != run.n_folds:
        raise ParameterError(f"scores: expected {run.n_folds} for {name!r}, one a fold, got {len(given)}")
    found = []
    for source, test in zip(given, run.tests, strict=True):
        values = read_scores(Path(source), test) if isinstance(source, (str, os.PathLike)) else source
        found.append(test.arrange(as_scores(values, test.n_documents)))
    return found


def _add_scores(run: Run, given: Mapping[str, Sequence[Any]]) -> None:
    """Scores of other tools, which have no seeds: as those of the first."""
    for name, folds in given.items():
        for fold, scores in enumerate(folds):
            run.write_piece(name, fold, run.seeds[0], scores, {"scores": run.about["systems"][name]["scores"]})
