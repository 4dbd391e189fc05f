"""``cross_validate``: every ranker on every fold with every seed, in several processes, kept in the folder of a run."""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from numbers import Integral
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import numpy as np
from sklearn.base import clone

from tierank.arrays import Floats
from tierank.data.dataset import RankingDataset
from tierank.display import Progress
from tierank.errors import DataError, ParameterError, ProcessError, TierankError
from tierank.experiments.folds import Fold, Folds, folds_of, test_only
from tierank.experiments.published import PAPER_METRICS, PAPERS
from tierank.experiments.runs import Run
from tierank.experiments.store import PLAN_FILE, PROTOCOLS, Cell, RunPlan, Store, check_system
from tierank.experiments.tuning import as_ranker, tune
from tierank.files import as_path
from tierank.io import read, read_scores
from tierank.io.synth import make_ranking
from tierank.kernels import n_workers
from tierank.metrics.compare import Comparison
from tierank.metrics.judge import as_scores
from tierank.metrics.rules import Rule, as_metrics, as_rule, parse_metric
from tierank.rankers import RANKERS
from tierank.rankers.base import Ranker, model_files
from tierank.rankers.checkpoint import identity_of, is_of_caller, name_of, source_of
from tierank.rankers.folder import encode_settings
from tierank.settings import MOST_REPEATS, as_choice, as_whole, check_type
from tierank.workers import WorkerPool

LEAKS = (
    "protocol lightgbm LEAKS: the test data choose the number of trees, and queries without a relevant document count"
    " as 1. It reproduces the paper's last table; use it for nothing else"
)


# Tables that callers may add their code to: worker processes need the same entries.
_TABLES = (
    ("tierank.metrics", "METRICS"),
    ("tierank.metrics", "RULES"),
    ("tierank.transforms", "TRANSFORMS"),
    ("tierank.losses", "LOSSES"),
    ("tierank.networks", "NETWORKS"),
    ("tierank.losses", "OBJECTIVES"),
    ("tierank.rankers", "RANKERS"),
)

Tables = dict[tuple[str, str], dict[str, Any]]


def cross_validate(
    rankers: str | Ranker | Mapping[str, str | Ranker] | Sequence[str | Ranker],
    data: Any,
    *,
    seeds: int | Sequence[int] = 1,
    metrics: str | Sequence[str] | None = None,
    rule: str | Rule | None = None,
    baseline: str | None = None,
    scores: Mapping[str, Any] | None = None,
    trials: int | None = None,
    protocol: str = "standard",
    out: str | os.PathLike[str] | None = None,
    n_jobs: int | None = None,
    progress: bool = False,
    name: str | None = None,
    paper: str | None = None,
    **reading: Any,
) -> Run:
    """Train every ranker on every fold with every seed, and judge it on the test data of the fold.

    Validation data choose rounds and epochs, and with ``trials`` the settings too. Rankers train in separate processes
    with one thread each, unless their settings say otherwise; results do not depend on the number of processes. Your
    own losses, networks and rankers may be defined in a script or a notebook; it is not executed again.

    Test queries are compared with training and validation queries, by features and ratings: it warns if some are the
    same, and raises ``DataError`` if all of a fold are trained on.

    Parameters
    ----------
    rankers : str, Ranker, list or dict
        A key of ``RANKERS``, a ranker, a list of these, or a mapping from display names to these.
    data : path, table, RankingDataset or list
        A folder with ``Fold1`` to ``Fold5`` or the parts ``S1`` to ``S5``; a file, a table or a ``RankingDataset``,
        which is split into five parts of whole queries; or a list of (train, valid, test) data sets.
    seeds : int or list of int, default 1
        Number of seeds (0, 1, ...), or a list of seeds.
    metrics : str or list of str, optional
        Names such as ``"ndcg@10"``. Default: NDCG and ERR at 1, 3, 5 and 10. ``Run.judged_by`` also takes functions.
    rule : str or Rule, default "tierank"
        A key of ``RULES``, or a ``Rule``.
    baseline : str, optional
        The system to compare with. Default: the first.
    scores : dict of str to list or str, optional
        Scores of other tools, by name: a list of arrays or files, one per fold, or a file name with ``{fold}`` in it.
    trials : int, optional
        Tune each ranker in each fold with this many trials on its validation data; see ``tune``.
    protocol : {"standard", "lightgbm"}, default "standard"
        ``"lightgbm"`` reproduces the last table of the paper, where the test data choose the number of trees. It leaks.
    out : path, optional
        A folder for scores, models and progress. The same call resumes an interrupted run; a call with other rankers or
        seeds adds to it. Default: a temporary folder that is removed with the ``Run``.
    n_jobs : int, optional
        Number of processes; 1 runs everything in this process. Default: one per core.
    progress : bool, default False
        Show a progress bar.
    name : str, optional
        The name of the data in tables.
    paper : str, optional
        The data set of the paper whose figures are shown next to the results.
    **reading
        Arguments of ``read``, for files and tables.

    Returns
    -------
    Run
        The results: ``comparison``, ``spread``, ``tidy`` and the models.

    Examples
    --------
    >>> import tierank
    >>> data = tierank.make_ranking(40, n_features=5, mean_length=10, max_length=20)
    >>> run = cross_validate([tierank.LambdaMART(n_trees=5), tierank.UMart(n_trees=5)], data, n_jobs=1)
    >>> run.systems, run.n_folds, len(run.tidy().value)
    (('lambdamart', 'umart'), 5, 80)
    """
    as_choice("protocol", protocol, PROTOCOLS)
    known = inspect.signature(read).parameters
    for argument in reading:
        if argument not in known:
            raise ParameterError.unknown("argument", argument, [*known, *inspect.signature(cross_validate).parameters])
    jobs = n_workers(n_jobs)
    rule = ("lightgbm" if protocol == "lightgbm" else "tierank") if rule is None else rule
    chosen = _by_name(rankers)
    if not hasattr({} if scores is None else scores, "items"):
        expected = "a mapping of names to scores, one array or file per fold"
        raise ParameterError(argument="scores", expected=expected, got=type(scores).__name__)
    outside = {check_system(system): given for system, given in (scores or {}).items()}
    if not chosen and not outside:
        raise ParameterError(argument="rankers", expected="at least one ranker, or scores of another tool", got="none")
    twice = next((system for system in outside if system in chosen), None)
    if twice is not None:
        fix = "give one of them another name"
        raise ParameterError(argument="scores", expected="names that no ranker has", got=repr(twice), fix=fix)
    if paper is not None:
        as_choice("paper", paper, PAPERS)
    if name is not None:
        check_type("name", name, str)
    folder = None if out is None else as_path(out, "out", "the name of a folder")
    before = list(RunPlan.read(folder).systems) if folder is not None and (folder / PLAN_FILE).exists() else []
    if baseline is not None:
        as_choice("baseline", baseline, [*before, *chosen, *outside])
    more = {} if trials is None else {"trials": as_whole("trials", trials)}
    systems = {system: describe_ranker(ranker) | more for system, ranker in chosen.items()}
    given = {system: {"scores": one if isinstance(one, str) else "given"} for system, one in outside.items()}
    plan = RunPlan(
        kind="cv",
        systems=systems | given,
        seeds=_as_seeds(seeds),
        metrics=_as_metric_names(metrics, rule),
        rule=rule,
        baseline=baseline,
        protocol=protocol,
        paper=paper,
    )

    def run_in(folder: Path) -> Run:
        store = Store(folder)
        store.check()  # before data are read
        folds = folds_of(data, **reading)
        with store.held():
            folds, run = _begin(store, plan, folds, outside, name)
            tasks = [
                CellTask(Cell(system, fold, seed), ranker, protocol, trials)
                for fold in range(run.n_folds)
                for system, ranker in chosen.items()
                for seed in plan.seeds
            ]
            _run_tasks(store, folds, tasks, jobs, progress)
        return Run.open(folder)

    if folder is not None:
        return run_in(folder)
    folder = Path(mkdtemp(prefix="tierank-"))  # removed with the run
    try:
        run = run_in(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return run


def keep_comparison(
    folder: Path, data: RankingDataset, scores: Mapping[str, Any], comparison: Comparison, name: str = "data"
) -> Run:
    """Store the result of ``compare`` as a run of one fold, for its report."""
    check_is_new(folder)
    attributes = [
        {"name": one.name, "values": list(one.values), "codes": one.codes.tolist()} for one in comparison.attributes
    ]
    plan = RunPlan(
        kind="compare",
        systems={check_system(system): {"scores": "given"} for system in scores},
        seeds=[0],
        metrics=list(comparison.metrics),
        rule=comparison.rule,
        baseline=comparison.baseline,
        attributes=attributes,
    )
    store = Store(folder)
    with store.held():
        return _begin(store, plan, test_only(name, data), {system: [one] for system, one in scores.items()}, name)[1]


def check_is_new(folder: Path) -> None:
    """Raise ``DataError`` if the folder already has a run, or anything else."""
    if (folder / PLAN_FILE).exists():
        raise DataError(where=folder, expected="a new folder", got="one with a run in it")
    Store(folder).check()


def _begin(
    store: Store, plan: RunPlan, folds: Folds, outside: Mapping[str, Any], name: str | None
) -> tuple[Folds, Run]:
    """Write the plan, the data and the scores of other tools; returns the folds as files, and the run so far.

    Scores of other tools have no seeds: they come under the first seed, and again under the same one.
    """
    plan, tests, renewed = store.prepare(plan, folds, name)
    given = {system: _read_given(tests, system, scores) for system, scores in outside.items()}
    store.begin(plan, tests, renewed)
    folds = folds if plan.kind == "compare" else folds.keep(store.folder / "parts")
    for system, by_fold in given.items():
        seed = next((seed for seed in plan.seeds if store.is_done(Cell(system, 0, seed))), plan.seeds[0])
        for fold, scores in enumerate(by_fold):
            store.write(Cell(system, fold, seed), scores, {"scores": plan.systems[system]["scores"]})
    return folds, Run(store, plan)


def _read_given(tests: Sequence[RankingDataset], system: str, given: Any) -> list[Floats]:
    """The scores of another tool for the test documents of each fold, in the order of the data set."""
    n_folds = len(tests)
    if isinstance(given, (str, os.PathLike)):
        if n_folds > 1 and "{fold}" not in str(given):
            expected = f"{{fold}} in the file name of {system!r}, in place of 1 to {n_folds}"
            raise ParameterError(argument="scores", expected=expected, got=str(given))
        given = [str(given).replace("{fold}", str(fold + 1)) for fold in range(n_folds)]
    if not isinstance(given, (Sequence, np.ndarray)) or len(given) != n_folds:
        got = str(len(given)) if isinstance(given, (Sequence, np.ndarray)) else type(given).__name__
        raise ParameterError(argument="scores", expected=f"{n_folds} for {system!r}, one per fold", got=got)
    by_fold = []
    for source, test in zip(given, tests, strict=True):
        values = read_scores(Path(source), test) if isinstance(source, (str, os.PathLike)) else source
        by_fold.append(test.arrange(as_scores(values, test.n_documents)))
    return by_fold


# Arguments


def _by_name(rankers: Any) -> dict[str, Ranker]:
    """The rankers by display name: unfitted copies with checked settings."""
    if isinstance(rankers, Mapping):
        named = [(name, as_ranker(ranker)) for name, ranker in rankers.items()]
    else:
        is_one = isinstance(rankers, (str, Ranker)) or not isinstance(rankers, Iterable)
        names = {ranker: name for name, ranker in RANKERS.items()}
        given = [as_ranker(ranker) for ranker in ([rankers] if is_one else rankers)]
        named = [(names.get(type(ranker), type(ranker).__name__), ranker) for ranker in given]
    by_name: dict[str, Ranker] = {}
    for name, ranker in named:
        if name in by_name:
            fix = "give them as a mapping of names"
            raise ParameterError(argument="rankers", expected="each name once", got=f"{name!r} twice", fix=fix)
        by_name[check_system(name)] = clone(ranker)
        try:
            by_name[name].checked_settings()
        except ParameterError as error:
            raise error.at(name) from None
    return by_name


def _as_seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, Integral) or not isinstance(seeds, Iterable):
        return list(range(as_whole("seeds", seeds, most=MOST_REPEATS)))
    checked = [as_whole("seeds", seed, 0) for seed in seeds]
    if not checked or len(set(checked)) < len(checked):
        expected = "the number of seeds, or a list with each seed once"
        raise ParameterError(argument="seeds", expected=expected, got=f"{checked}")
    return checked


def _as_metric_names(metrics: str | Sequence[str] | None, rule: str | Rule) -> list[str]:
    """The metrics, checked before training starts, because they are needed only at its end."""
    rule = as_rule(rule)
    if metrics is None:
        return [metric for metric in PAPER_METRICS if not metric.startswith("err") or rule.err_max is not None]
    named = as_metrics(metrics, rule)
    for name, metric in named.items():
        if callable(metric):
            expected = "names such as 'ndcg@10', which the folder of a run can store"
            fix = "run.judged_by([...]) takes functions"
            raise ParameterError(argument="metrics", expected=expected, got=f"the function {name}", fix=fix)
        parse_metric(metric)
    return list(named)


# Training in other processes


@dataclass(frozen=True)
class CellTask:
    """A cell to fill, and its ranker."""

    cell: Cell
    ranker: Ranker
    protocol: str
    trials: int | None

    def __str__(self) -> str:
        return str(self.cell)


class CellTrainer:
    """Fills the cells of a run; caches the data of the last fold."""

    def __init__(self, folder: Path, folds: Folds) -> None:
        self.store, self.folds = Store(folder), folds
        self._fold: tuple[int, Fold] | None = None

    def __call__(self, task: CellTask) -> str:
        """Train, score, write; returns a progress message."""
        cell = task.cell
        if self._fold is None or self._fold[0] != cell.fold:
            self._fold = (cell.fold, self.folds.read(cell.fold))
        train, valid, test = self._fold[1]
        if task.protocol == "lightgbm":
            valid = test
        ranker: Ranker = clone(task.ranker)
        known = ranker.get_params(deep=False)  # a caller's ranker may have no setting ``seed`` or ``n_jobs``
        wanted = {"seed": cell.seed} | ({"n_jobs": 1} if known.get("n_jobs") is None else {})
        ranker.set_params(**{name: value for name, value in wanted.items() if name in known})
        _load(ranker)
        start = time.process_time()
        checkpoint, study = self.store.scratch(cell)
        if task.trials is None:
            ranker.fit(train, valid=valid, checkpoint=checkpoint)
        else:
            ranker = tune(ranker, train, valid, trials=task.trials, seed=cell.seed, study=study).ranker
        seconds = time.process_time() - start
        try:
            scores = as_scores(ranker.predict(test), test.n_documents)
        except DataError as error:
            raise error.at(f"{cell}: predict") from None
        if np.isnan(scores).any():  # of a ranker of the caller's own
            got = f"NaN in row {int(np.argmax(np.isnan(scores)))}"
            raise DataError(where=f"{cell}: predict", expected="numbers", got=got)
        best = getattr(ranker, "best_", {})
        result = {
            "settings": encode_settings(ranker.settings_, _identity),
            "history": getattr(ranker, "history_", []),
            "best": best,
            "cpu_seconds": seconds,
        }
        try:
            model_files(ranker)
            model = ranker
        except DataError:  # it cannot be saved
            model = None
        self.store.write(cell, test.arrange(scores), result, model)
        self.store.clear_scratch(cell)
        values = " ".join(f"{name} {value:.4f}" for name, value in best.items())
        return f"{cell}: {values} on validation data" if values else str(cell)


# The kinds of rankers that this process has loaded.
_LOADED: set[type[Ranker]] = set()


def _load(ranker: Ranker) -> None:
    """Import and compile what a ranker needs, by a tiny fit: otherwise the first fit of a process would pay for it."""
    kind, settings = type(ranker), ranker.get_params(deep=False)
    if kind in _LOADED or kind not in RANKERS.values() or any(map(callable, settings.values())):
        return
    _LOADED.add(kind)
    small = {"n_trees": 2, "max_epochs": 1, "n_seeds": 1, "n_learners": 2}
    data = make_ranking(16, n_features=2, mean_length=6, max_length=8)
    with suppress(TierankError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clone(ranker).set_params(**{name: value for name, value in small.items() if name in settings}).fit(
            data, valid=data
        )


def _start(tables: Tables, folder: Path, folds: Folds) -> CellTrainer:
    """A trainer in another process, with what the caller added to the tables."""
    for (home, name), table in tables.items():
        getattr(import_module(home), name).update(table)
    return CellTrainer(folder, folds)


def _loaded_table(home: str, name: str) -> Mapping[str, Any] | None:
    """A table, if it is loaded: who adds to it has loaded it, and some need torch."""
    return vars(sys.modules[home]).get(name) if home in sys.modules else None


def describe_ranker(ranker: Ranker) -> dict[str, Any]:
    """The description of a ranker in a run: class, settings, and the caller's own code, by digest and as text."""
    settings = ranker.get_params(deep=False)
    described = {"ranker": type(ranker).__name__, "settings": encode_settings(settings, _identity)}
    deep = [*settings.values(), *ranker.get_params().values()]
    used = [type(value) for value in (ranker, *deep) if isinstance(value, Ranker)]
    used += [value for value in settings.values() if callable(value) and not isinstance(value, Ranker)]
    for home, table_name in _TABLES:
        table = _loaded_table(home, table_name) or {}
        used += [table[value] for value in deep if isinstance(value, str) and callable(table.get(value))]
    written = {name_of(value): value for value in used if is_of_caller(value)}
    # Functions among the settings are identified by their place in them.
    others = {name: value for name, value in written.items() if not any(value is given for given in settings.values())}
    if others:
        described["code"] = {name: identity_of(value)["code"] for name, value in others.items()}
    sources = {name: text for name, value in written.items() if (text := source_of(value)) is not None}
    return described | ({"sources": sources} if sources else {})


def _identity(value: Any, name: str) -> Any:
    """A setting that JSON cannot hold, as a run identifies it."""
    return identity_of(value)


def _run_tasks(store: Store, folds: Folds, tasks: list[CellTask], n_jobs: int, progress: bool) -> None:
    """Run the tasks that are not done.

    With one process they run here: nothing has to be sent or imported again, and debuggers work. The results are the
    same, because a task has its own seed, and one thread, in any process.
    """
    waiting = [task for task in tasks if not store.is_done(task.cell)]
    n_processes, n_done = min(n_jobs, len(waiting)), len(tasks) - len(waiting)
    # The tables of modules that are not imported here have not been changed.
    tables = {place: dict(table) for place in _TABLES if (table := _loaded_table(*place)) is not None}
    start = partial(_start, tables, store.folder, folds)
    with (
        WorkerPool(n_processes, start) if n_processes > 1 else nullcontext() as processes,
        Progress("cross-validation", len(tasks), show=progress, done=n_done) as shown,
    ):
        notes = map(start(), waiting) if processes is None else processes.answers(waiting)
        try:
            for note in notes:
                shown.step(note)
        except ProcessError as error:
            resumes = "the same call with the same folder (out) resumes it"
            error.fix = f"{resumes}, and fewer processes (n_jobs) need less memory"
            raise
