"""cross_validate: every ranker on every fold with every seed, in pieces that are never run twice."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from tierank.dataset import RankingDataset
from tierank.description import describe
from tierank.errors import DataError, ParameterError
from tierank.evaluation import Comparison
from tierank.experiments.folds import Fold, Folds, TestOnly, folds_of
from tierank.experiments.runs import METRICS, Run
from tierank.experiments.tuning import tune
from tierank.files import remove_folder
from tierank.kernels import n_threads
from tierank.metrics import Rule, as_rule, default_metrics
from tierank.progress import Progress
from tierank.rankers import RANKERS, Ranker, known_rankers
from tierank.rankers.model_folder import constructed
from tierank.readers import read_scores
from tierank.settings import as_choice, as_whole

# "lightgbm" is how the last table of the paper was made: the number of trees is chosen on the test data themselves.
PROTOCOLS = ("standard", "lightgbm")
LEAKS = (
    "protocol lightgbm LEAKS: the test data choose the number of trees, and queries without a relevant document count"
    " as 1. It repeats the paper's last table; use it for nothing else"
)


def cross_validate(
    rankers: Mapping[str, Ranker] | Sequence[str | Ranker],
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
    ``Fold1`` to ``Fold5`` or the parts ``S1`` to ``S5``; a file or a ``RankingDataset``, which is cut into five parts
    of whole queries; or a list of (train, valid, test) data sets. Validation data choose rounds and epochs, and with
    ``trials`` the settings too: so many are tried, anew in each fold (see ``tune``).

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
    rule = ("lightgbm" if protocol == "lightgbm" else "tierank") if rule is None else rule
    chosen = _by_name(rankers)
    outside = dict(scores or {})
    if not chosen and not outside:
        raise ParameterError("rankers: expected at least one ranker, or scores of another tool, got none")
    before = list(Run.open(out).about["systems"]) if out is not None and Path(out, "run.json").exists() else []
    if baseline is not None and baseline not in (*before, *chosen, *outside):
        raise ParameterError.unknown("baseline", baseline, [*before, *chosen, *outside])
    if trials is not None:
        as_whole("trials", trials)
    asked = _Asked(
        chosen, outside, trials, _as_seeds(seeds), _as_metrics(metrics, rule), rule, baseline, protocol, name
    )
    if out is not None:
        return asked.run(Path(out), data, reading, kind, paper, n_jobs, progress)
    folder = Path(mkdtemp(prefix="tierank-"))
    try:
        run = asked.run(folder, data, reading, kind, paper, n_jobs, progress)
    except BaseException:
        shutil.rmtree(folder)
        raise
    finalize(run, shutil.rmtree, folder, ignore_errors=True)  # the folder lives as long as the run
    return run


@dataclass(frozen=True)
class _Asked:
    """What ``cross_validate`` was asked for, checked."""

    rankers: dict[str, Ranker]
    outside: dict[str, Any]
    trials: int | None
    seeds: list[int]
    metrics: list[str]
    rule: str | Rule
    baseline: str | None
    protocol: str
    name: str | None

    def run(
        self,
        folder: Path,
        data: Any,
        reading: dict[str, Any],
        kind: str,
        paper: str | None,
        n_jobs: int | None,
        progress: bool,
    ) -> Run:
        """Do what is not done yet."""
        systems = {name: _described(ranker, self.trials) for name, ranker in self.rankers.items()}
        files = {name: given if isinstance(given, str) else "given" for name, given in self.outside.items()}
        folds = folds_of(data, folder / "parts", **reading)
        first = folds.read(0)
        run = Run.create(
            folder,
            folds,
            systems | {name: {"scores": file} for name, file in files.items()},
            kind=kind,
            seeds=self.seeds,
            metrics=self.metrics,
            rule=self.rule,
            baseline=self.baseline,
            protocol=self.protocol,
            # With five folds the three parts of one are all of the data.
            description=describe(RankingDataset.concat(first) if folds.n_folds > 1 else first[0]).to_dict(),
            paper=paper,
            name=self.name,
        )
        for name, given in self.outside.items():
            _add_scores(run, name, given)
        pieces = [
            Piece(name, fold, seed, described, self.protocol, self.trials)
            for fold in range(run.n_folds)
            for name, described in systems.items()
            for seed in self.seeds
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
            ranker = tune(
                ranker,
                train,
                valid,
                trials=piece.trials,
                seed=piece.seed,
                study=place.with_name(f".{place.name}.study"),
            ).ranker
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
    run = Run.create(
        folder,
        TestOnly(name, data),
        {system: {"scores": "given"} for system in scores},
        kind="compare",
        seeds=[0],
        metrics=comparison.metrics,
        rule=comparison.rule,
        baseline=comparison.baseline,
        description=describe(data).to_dict(),
    )
    for system, given in scores.items():
        _add_scores(run, system, [given])
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


@contextmanager
def _pool(n_jobs: int, folder: Path, folds: Folds) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes: threads of torch, numba and LightGBM do not survive a fork. An interrupt ends them at once."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(n_jobs, mp_context=context, initializer=_start, initargs=(folder, folds))
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
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


def _by_name(rankers: Mapping[str, Ranker] | Sequence[str | Ranker]) -> dict[str, Ranker]:
    if isinstance(rankers, Mapping):
        return dict(rankers)
    names = {ranker: name for name, ranker in RANKERS.items()}
    found: dict[str, Ranker] = {}
    for given in rankers:
        if isinstance(given, str):
            name, ranker = given, RANKERS[as_choice("ranker", given, RANKERS)]()
        else:
            name, ranker = names.get(type(given), type(given).__name__), given
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
    return list(range(as_whole("seeds", seeds))) if isinstance(seeds, int) else [as_whole("seeds", s, 0) for s in seeds]


def _as_metrics(metrics: Sequence[str] | None, rule: str | Rule) -> list[str]:
    if metrics is not None:
        return [metrics] if isinstance(metrics, str) else list(metrics)
    return [m for m in METRICS if not m.startswith("err") or "err@10" in default_metrics(as_rule(rule))]


def _add_scores(run: Run, name: str, given: Any) -> None:
    """Scores of another tool, for every seed the same."""
    for fold, test in enumerate(run.tests):
        if isinstance(given, (str, os.PathLike)):
            source: Any = str(given).format(fold=fold + 1)
        elif len(given) == run.n_folds:
            source = given[fold]
        else:
            raise ParameterError(f"scores: expected {run.n_folds} for {name!r}, one a fold, got {len(given)}")
        values = read_scores(str(source), test) if isinstance(source, (str, os.PathLike)) else source
        run.write_piece(name, fold, run.seeds[0], _as_scores(values, test), {"scores": str(given)[:200]})


def _as_scores(values: Any, test: RankingDataset) -> Any:
    from tierank.metrics import as_scores

    return test.arrange(as_scores(values, test.n_documents))
