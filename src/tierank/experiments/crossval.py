"""cross_validate: every ranker on every fold with every seed."""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

import numpy as np
from sklearn.base import clone

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError, ProcessError
from tierank.evaluation import Comparison
from tierank.experiments.folds import Folds, TestOnly, folds_of
from tierank.experiments.paper import PAPERS
from tierank.experiments.plan import PAPER_METRICS, PLAN_FILE, PROTOCOLS, Design, Plan
from tierank.experiments.runs import Run
from tierank.experiments.store import Cell, Store, check_system
from tierank.experiments.tuning import as_ranker
from tierank.experiments.worker import CellTrainer, Task, describe_ranker, starter
from tierank.files import as_path
from tierank.kernels import n_workers
from tierank.metrics import Rule, as_rule, as_scores, default_metrics, parse_metric
from tierank.metrics.names import as_metrics
from tierank.processes import Processes
from tierank.progress import Progress
from tierank.rankers import RANKERS, Ranker
from tierank.readers import read, read_scores
from tierank.settings import MOST_REPEATS, as_choice, as_whole

LEAKS = (
    "protocol lightgbm LEAKS: the test data choose the number of trees, and queries without a relevant document count"
    " as 1. It reproduces the paper's last table; use it for nothing else"
)


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
    _check_reading(reading)
    jobs = n_workers(n_jobs)
    rule = ("lightgbm" if protocol == "lightgbm" else "tierank") if rule is None else rule
    chosen, outside = _by_name(rankers), _as_given_scores(scores)
    if not chosen and not outside:
        raise ParameterError("rankers: expected at least one ranker, or scores of another tool, got none")
    twice = next((name for name in outside if name in chosen), None)
    if twice is not None:
        raise ParameterError(f"scores: expected names that no ranker has, got {twice!r}; give one of them another name")
    if paper is not None:
        as_choice("paper", paper, PAPERS)
    if name is not None and not isinstance(name, str):
        raise ParameterError(argument="name", expected="a text", got=repr(name))
    place = None if out is None else as_path(out, "out", "the name of a folder")
    before = list(Plan.read(place).systems) if place is not None and (place / PLAN_FILE).exists() else []
    if baseline is not None and baseline not in (*before, *chosen, *outside):
        raise ParameterError.unknown("baseline", baseline, [*before, *chosen, *outside])
    systems = {name: _described(ranker, trials) for name, ranker in chosen.items()}
    given = {name: {"scores": given if isinstance(given, str) else "given"} for name, given in outside.items()}
    design = Design(
        kind="cv",
        systems=systems | given,
        seeds=_as_seeds(seeds),
        metrics=_as_metrics(metrics, rule),
        rule=rule,
        baseline=baseline,
        protocol=protocol,
        paper=paper,
    )
    experiment = _Experiment(design, chosen, outside, trials, name)

    def run_in(folder: Path) -> Run:
        return experiment.run(folder, data, reading, jobs, progress)

    return _in_temporary_folder(run_in) if place is None else run_in(place)


def _in_temporary_folder(run_in: Callable[[Path], Run]) -> Run:
    """A run in a folder that is removed with it."""
    folder = Path(mkdtemp(prefix="tierank-"))
    try:
        run = run_in(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return run


@dataclass(frozen=True)
class _Experiment:
    """The checked arguments of ``cross_validate``."""

    design: Design
    rankers: dict[str, Ranker]
    outside: dict[str, Any]
    trials: int | None
    name: str | None

    def run(self, folder: Path, data: Any, reading: dict[str, Any], n_jobs: int, progress: bool) -> Run:
        """Train and score the cells that are not done yet."""
        store = Store(folder)
        store.check()  # before data are read
        folds = folds_of(data, **reading)
        with store.held():
            return self._run_in(store, folds, n_jobs, progress)

    def _run_in(self, store: Store, folds: Folds, n_jobs: int, progress: bool) -> Run:
        folder = store.folder
        plan, tests = store.prepare(self.design, folds, self.name)
        given = {name: _read_given(tests, name, scores) for name, scores in self.outside.items()}
        renewed = self._renewed(folder, plan)
        store.begin(plan, tests)
        run = Run(store, plan)
        store.clear_up(_stale(store, plan, renewed), plan.systems)
        folds = folds.keep(folder / "parts")
        _add_scores(run, given)
        tasks = [
            Task(Cell(name, fold, seed), ranker, self.design.protocol, self.trials)
            for fold in range(run.n_folds)
            for name, ranker in self.rankers.items()
            for seed in self.design.seeds
        ]
        _run_tasks(store, folds, tasks, n_jobs, progress)
        return Run.open(folder)

    def _renewed(self, folder: Path, plan: Plan) -> list[str]:
        """The systems that were planned before with other settings, and have no result yet."""
        if not (folder / PLAN_FILE).exists():
            return []
        old = Plan.read(folder)
        return [name for name in self.design.systems if plan.differences(old, name)]


def _stale(store: Store, plan: Plan, renewed: Sequence[str]) -> Iterator[Cell]:
    """The cells whose checkpoints will not be resumed."""
    for system in plan.systems:
        for fold in range(len(plan.folds)):
            for seed in plan.seeds:
                cell = Cell(system, fold, seed)
                if system in renewed or store.is_done(cell):
                    yield cell


def _run_tasks(store: Store, folds: Folds, tasks: list[Task], n_jobs: int, progress: bool) -> None:
    waiting = [task for task in tasks if not store.is_done(task.cell)]
    done = len(tasks) - len(waiting)
    with (
        closing(_worked_on(store.folder, folds, waiting, min(n_jobs, len(waiting)))) as notes,
        Progress("cross-validation", len(tasks), show=progress, done=done) as shown,
    ):
        for note in notes:
            shown.step(note)


def _worked_on(folder: Path, folds: Folds, tasks: list[Task], n_jobs: int) -> Generator[str, None, None]:
    """Run the tasks; yields a progress message for each finished one.

    With one process they run here: nothing has to be sent or imported again, and debuggers work. The results are the
    same, because a task has its own seed, and one thread, in any process.
    """
    if n_jobs <= 1:
        yield from map(CellTrainer(folder, folds), tasks)
        return
    with Processes(n_jobs, starter(folder, folds)) as processes:
        try:
            yield from processes.answers(tasks)
        except ProcessError as error:
            raise ProcessError(
                f"{error}; the same call with the same folder (out) resumes it, and fewer processes (n_jobs)"
                " need less memory"
            ) from None


def check_is_new(folder: Path) -> None:
    """Raise ``DataError`` if the folder already has a run, or anything else."""
    if (folder / PLAN_FILE).exists():
        raise DataError(f"{folder}: expected a new folder, got one with a run in it")
    Store(folder).check()


def keep_comparison(
    folder: Path, data: RankingDataset, scores: Mapping[str, Any], comparison: Comparison, name: str = "data"
) -> Run:
    """Store the result of ``compare`` as a run of one fold, for its report."""
    check_is_new(folder)
    systems = {check_system(system): {"scores": "given"} for system in scores}
    design = Design(
        kind="compare",
        systems=systems,
        seeds=[0],
        metrics=comparison.metrics,
        rule=comparison.rule,
        baseline=comparison.baseline,
        attributes=[
            {"name": one.name, "values": one.values, "codes": one.codes.tolist()} for one in comparison.attributes
        ],
    )
    store = Store(folder)
    with store.held():
        plan, tests = store.prepare(design, TestOnly(name, data))
        given = {system: _read_given(tests, system, [values]) for system, values in scores.items()}
        store.begin(plan, tests)
        run = Run(store, plan)
        _add_scores(run, given)
    return run


# Arguments


def _check_reading(reading: dict[str, Any]) -> None:
    """Raise ``ParameterError`` for an argument that neither ``cross_validate`` nor ``read`` has."""
    known = inspect.signature(read).parameters
    for name in reading:
        if name not in known:
            raise ParameterError.unknown("argument", name, [*known, *inspect.signature(cross_validate).parameters])


def _by_name(rankers: Any) -> dict[str, Ranker]:
    """The rankers by display name: unfitted copies with checked settings."""
    by_name = {check_system(name): clone(ranker) for name, ranker in _named(rankers).items()}
    for name, ranker in by_name.items():
        try:
            ranker.check_settings()
        except ParameterError as error:
            raise ParameterError(f"{name}: {error}") from None
    return by_name


def _named(rankers: Any) -> dict[str, Ranker]:
    if isinstance(rankers, Mapping):
        return {name: as_ranker(ranker) for name, ranker in rankers.items()}
    if isinstance(rankers, (str, Ranker)) or not isinstance(rankers, Iterable):
        rankers = [rankers]
    names = {ranker: name for name, ranker in RANKERS.items()}
    by_name: dict[str, Ranker] = {}
    for ranker in map(as_ranker, rankers):
        name = names.get(type(ranker), type(ranker).__name__)
        if name in by_name:
            raise ParameterError(
                f"rankers: expected each name once, got {name!r} twice; give them as a mapping of names"
            )
        by_name[name] = ranker
    return by_name


def _as_given_scores(scores: Any) -> dict[str, Any]:
    """The scores of other tools by name."""
    if scores is not None and not isinstance(scores, Mapping):
        raise ParameterError(
            argument="scores",
            expected="a mapping of names to scores, one array or file per fold",
            got=type(scores).__name__,
        )
    return {check_system(name): given for name, given in (scores or {}).items()}


def _described(ranker: Ranker, trials: int | None) -> dict[str, Any]:
    described = describe_ranker(ranker)
    return described if trials is None else described | {"trials": as_whole("trials", trials)}


def _as_seeds(seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, Integral) or not isinstance(seeds, Iterable):
        return list(range(as_whole("seeds", seeds, most=MOST_REPEATS)))
    checked = [as_whole("seeds", seed, 0) for seed in seeds]
    if not checked or len(set(checked)) < len(checked):
        raise ParameterError(f"seeds: expected the number of seeds, or a list with each seed once, got {checked}")
    return checked


def _as_metrics(metrics: str | Sequence[str] | None, rule: str | Rule) -> list[str]:
    """The metrics, checked before training starts, because they are needed only at its end."""
    known = default_metrics(as_rule(rule))
    if metrics is None:
        return [metric for metric in PAPER_METRICS if not metric.startswith("err") or "err@10" in known]
    names = []
    for name, metric in as_metrics(metrics, as_rule(rule)).items():
        if callable(metric):
            raise ParameterError(
                argument="metrics",
                expected="names such as 'ndcg@10', which the folder of a run can store",
                got=f"the function {name}",
                fix="run.judged_by([...]) takes functions",
            )
        parse_metric(metric)
        names.append(name)
    return names


def _read_given(tests: Sequence[RankingDataset], name: str, given: Any) -> list[Any]:
    """The scores of another tool for the test documents of each fold, in the order of the data set."""
    n_folds = len(tests)
    if isinstance(given, (str, os.PathLike)):
        if n_folds > 1 and "{fold}" not in str(given):
            raise ParameterError(
                f"scores: expected {{fold}} in the file name of {name!r}, in place of 1 to {n_folds}, got {given}"
            )
        given = [str(given).replace("{fold}", str(fold + 1)) for fold in range(n_folds)]
    if not isinstance(given, (Sequence, np.ndarray)) or len(given) != n_folds:
        got = str(len(given)) if isinstance(given, (Sequence, np.ndarray)) else type(given).__name__
        raise ParameterError(f"scores: expected {n_folds} for {name!r}, one per fold, got {got}")
    by_fold = []
    for source, test in zip(given, tests, strict=True):
        values = read_scores(Path(source), test) if isinstance(source, (str, os.PathLike)) else source
        by_fold.append(test.arrange(as_scores(values, test.n_documents)))
    return by_fold


def _add_scores(run: Run, given: Mapping[str, Sequence[Any]]) -> None:
    """Add the scores of other tools, which have no seeds, under the first seed; again, under the same one."""
    for name, folds in given.items():
        before = (seed for seed in run.plan.seeds if run.store.is_done(Cell(name, 0, seed)))
        seed = next(before, run.plan.seeds[0])
        for fold, scores in enumerate(folds):
            run.store.write(Cell(name, fold, seed), scores, {"scores": run.plan.systems[name]["scores"]})
