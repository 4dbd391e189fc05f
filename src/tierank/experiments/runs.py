"""Run: the results of an experiment, read from its folder; and several runs on the same test data as one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from tierank import display
from tierank.arrays import Floats
from tierank.data.dataset import RankingDataset
from tierank.data.text import StringArray
from tierank.display import Grid, Result, ShownTable
from tierank.errors import DataError, ParameterError
from tierank.experiments.folds import Fold, kept_folds
from tierank.experiments.published import compare_with_paper, paper_of, row_of
from tierank.experiments.store import Cell, RunPlan, Store, digest_data
from tierank.files import as_path, for_json
from tierank.metrics.compare import Comparison, compare_evaluations
from tierank.metrics.evaluate import Evaluation
from tierank.metrics.judge import Judge
from tierank.metrics.rules import Metric, Rule, as_metric_of, as_rule, metric_name
from tierank.rankers import load
from tierank.rankers.base import Ranker
from tierank.settings import as_choice, as_whole


class Tidy(NamedTuple):
    """Results in long form, one number per row; ``pandas.DataFrame(tidy._asdict())`` is the table.

    Attributes
    ----------
    system : list of str
        The system of each row.
    fold : list of int
        Its fold, from 1.
    seed : list of int
        Its seed.
    metric : list of str
        The metric.
    value : list of float
        The mean of the metric over the test queries of the fold.
    """

    system: list[str]
    fold: list[int]
    seed: list[int]
    metric: list[str]
    value: list[float]


class Run(Result):
    """The results of an experiment, stored in a folder: ``cross_validate`` creates one, ``Run.open`` reads one.

    Folds count from 0.

    Parameters
    ----------
    store : Store
        The files of the run.
    plan : RunPlan
        The plan in ``run.json``.
    metrics : sequence of str or callable, optional
        The metrics of ``comparison``. Default: those of the plan.

    Attributes
    ----------
    folder : Path
        The folder.
    plan : RunPlan
        The data, the systems with their settings, the versions of libraries.
    systems : tuple of str
        The systems that have results for every fold, in the order of the plan.
    seeds : tuple of int
        The seeds that some system has results for, in every fold.
    metrics : tuple of str
        The metrics.
    rule : Rule
        The rule of the metrics.
    n_folds : int
        Number of folds.
    baseline : str
        The system that the others are compared with: the chosen one, that of the paper, or the first.
    tests : list of RankingDataset
        The test data of each fold, without features.
    comparison : Comparison
        The comparison over all test queries of all folds, averaged over the seeds for each query.
    """

    def __init__(self, store: Store, plan: RunPlan, metrics: Sequence[Metric] | None = None) -> None:
        self.store, self.plan = store, plan
        self._metrics: tuple[Metric, ...] = tuple(plan.metrics if metrics is None else metrics)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open the run in a folder.

        Parameters
        ----------
        folder : path
            A folder that ``cross_validate(out=...)`` or ``tierank cv`` wrote.
        """
        path = as_path(folder, "folder", "the name of a folder")
        return cls(Store(path), RunPlan.read(path))

    def judged_by(
        self,
        metrics: Metric | Sequence[Metric] | None = None,
        rule: str | Rule | None = None,
        baseline: str | None = None,
    ) -> Run:
        """The same scores judged by other metrics, by another rule, or against another baseline.

        Parameters
        ----------
        metrics : str, callable, or list of them, optional
            Names of metrics, or your own functions, as in ``evaluate``. Default: those of the run.
        rule : str or Rule, optional
            A key of ``RULES``, or a ``Rule``. Default: that of the run.
        baseline : str, optional
            The system to compare with. Default: that of the run.
        """
        if baseline is not None:
            as_choice("baseline", baseline, self.systems)
        given: Sequence[Metric] = (
            [metrics] if isinstance(metrics, str) or callable(metrics) else metrics or self._metrics
        )
        plan = replace(
            self.plan,
            metrics=[metric_name(metric) for metric in given],
            rule=self.plan.rule if rule is None else as_rule(rule),
            baseline=self.plan.baseline if baseline is None else baseline,
        )
        return Run(self.store, plan, given)

    # Content

    @property
    def folder(self) -> Path:
        """The folder."""
        return self.store.folder

    @property
    def systems(self) -> tuple[str, ...]:
        """The systems that have results for every fold, in the order of the plan."""
        return tuple(system for system in self.plan.systems if self.seeds_of(system))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that some system has results for, in every fold; ``plan.seeds`` are those that were asked for."""
        done = {seed for system in self.plan.systems for seed in self.seeds_of(system)}
        return tuple(seed for seed in self.plan.seeds if seed in done)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics."""
        return tuple(self.plan.metrics)

    @cached_property
    def rule(self) -> Rule:
        """The rule of the metrics."""
        return as_rule(self.plan.rule)

    @property
    def n_folds(self) -> int:
        """Number of folds."""
        return len(self.plan.folds)

    @property
    def baseline(self) -> str:
        """The system that the others are compared with: the chosen one, that of the paper, or the first."""
        paper, systems = paper_of(self), self.systems
        of_paper = [one for one in systems if paper and row_of(one, self.plan.systems[one]) == paper.baseline]
        return self.plan.baseline if self.plan.baseline in systems else [*of_paper, *systems][0]

    @cached_property
    def tests(self) -> list[RankingDataset]:
        """The test data of each fold, without features."""
        return [self.store.read_test(fold) for fold in range(self.n_folds)]

    def read_fold(self, fold: int) -> Fold | None:
        """Training, validation and test data of a fold; None if they were moved, deleted or changed.

        Parameters
        ----------
        fold : int
            The fold, from 0.

        Returns
        -------
        tuple of RankingDataset or None
            Training, validation and test data.
        """
        as_whole("fold", fold, 0, self.n_folds - 1)
        folds = kept_folds(self.plan.data.source, self.folder / "parts")
        try:
            data = None if folds is None else folds.read(fold)
        except (DataError, ParameterError):
            return None
        return data if data is not None and digest_data(data[2]) == self.plan.folds[fold] else None

    def read_test(self, fold: int) -> RankingDataset | None:
        """The test data of a fold with features; None if they were moved, deleted or changed.

        Parameters
        ----------
        fold : int
            The fold, from 0.

        Returns
        -------
        RankingDataset or None
            The test data.
        """
        data = self.read_fold(fold)
        return None if data is None else data[2]

    def seeds_of(self, system: str) -> tuple[int, ...]:
        """The seeds that a system has results for, in every fold.

        Parameters
        ----------
        system : str
            A name of ``systems``.

        Returns
        -------
        tuple of int
            The seeds.
        """
        return tuple(
            seed
            for seed in self.plan.seeds
            if all(self.store.is_done(Cell(system, fold, seed)) for fold in range(self.n_folds))
        )

    def cells(self, system: str) -> list[Cell]:
        """The finished cells of the seeds that are complete in every fold, ordered by seed.

        Parameters
        ----------
        system : str
            A name of ``systems``.

        Returns
        -------
        list of Cell
            System, fold and seed of each result.
        """
        return [Cell(system, fold, seed) for seed in self.seeds_of(system) for fold in range(self.n_folds)]

    def scores(self, system: str, fold: int, seed: int) -> Floats:
        """The scores of a system for the test documents of a fold.

        Parameters
        ----------
        system : str
            A name of ``systems``.
        fold : int
            The fold, from 0.
        seed : int
            A seed of the run.

        Returns
        -------
        array
            One score per document, in the order of ``tests[fold]``.
        """
        return self.store.scores(self._cell(system, fold, seed), self.tests[fold].n_documents)

    def model(self, system: str, fold: int, seed: int) -> Path | None:
        """The folder of the model, for ``load``; None if only scores were given.

        Parameters
        ----------
        system : str
            A name of ``systems``.
        fold : int
            The fold, from 0.
        seed : int
            A seed of the run.

        Returns
        -------
        Path or None
            The model folder.
        """
        folder = self.store.place(self._cell(system, fold, seed)) / "model"
        return folder if folder.is_dir() else None

    def ranker(self, system: str, fold: int, seed: int) -> Ranker | None:
        """The fitted ranker; None if only scores were given, or if it needs the caller's own code.

        Parameters
        ----------
        system : str
            A name of ``systems``.
        fold : int
            The fold, from 0.
        seed : int
            A seed of the run.

        Returns
        -------
        Ranker or None
            The fitted ranker.
        """
        folder = self.model(system, fold, seed)
        return None if folder is None or "code" in self.plan.systems[system] else load(folder)

    def _cell(self, system: str, fold: int, seed: int) -> Cell:
        """The cell of an existing result. Raises ``ParameterError`` if there is none."""
        as_choice("system", system, self.plan.systems)
        as_whole("fold", fold, 0, self.n_folds - 1)
        if seed not in self.plan.seeds:
            expected = f"a seed of the run: {', '.join(map(str, self.plan.seeds))}"
            raise ParameterError(argument="seed", expected=expected, got=repr(seed))
        return Cell(system, fold, seed)

    # Results

    @cached_property
    def comparison(self) -> Comparison:
        """The comparison over all test queries of all folds, averaged over the seeds for each query."""
        if not self.systems:
            expected = "results of at least one system for every fold"
            raise DataError(where=self.folder, expected=expected, got="none yet")
        return compare_evaluations({system: self.evaluation(system) for system in self.systems}, self.baseline)

    def evaluation(self, system: str) -> Evaluation:
        """The evaluation of one system over all test queries of all folds, averaged over its seeds for each query.

        Parameters
        ----------
        system : str
            A name of ``systems``.

        Returns
        -------
        Evaluation
            One value per query and metric.
        """
        by_seed = self.per_query(system)
        per_query = {metric: np.mean([values[metric] for values in by_seed], axis=0) for metric in self.metrics}
        judge = self._judge
        counts = judge.n_empty, judge.n_empty if self.rule.empty is None else 0
        return Evaluation(per_query, judge.data.query_ids, self.rule, *counts, n_unjudged=judge.n_unjudged)

    def per_query(self, system: str) -> list[dict[str, Floats]]:
        """For each seed of a system, the values of all test queries.

        Parameters
        ----------
        system : str
            A name of ``systems``.

        Returns
        -------
        list of dict of str to array
            For each seed, one value per query for each metric.
        """
        if system not in self._per_query:
            as_choice("system", system, self.plan.systems)
            self._per_query[system] = [
                self._judge(np.concatenate([self.scores(system, fold, seed) for fold in range(self.n_folds)]))
                for seed in self.seeds_of(system)
            ]
        return self._per_query[system]

    def spread(self, system: str, metric: str) -> float:
        """The standard deviation of the mean over seeds; NaN for one seed.

        Parameters
        ----------
        system : str
            A name of ``systems``.
        metric : str
            A name of ``metrics``.

        Returns
        -------
        float
            The standard deviation.
        """
        metric = as_metric_of("run", metric, self.metrics)
        means = np.array([float(np.nanmean(values[metric])) for values in self.per_query(system)])
        return float(np.std(means - means[0], ddof=1)) if len(means) > 1 else float("nan")  # exactly 0 if all are equal

    def cpu_seconds(self, system: str) -> float:
        """The mean CPU time of a fit (of a resumed fit, since its last start); NaN for given scores.

        Parameters
        ----------
        system : str
            A name of ``systems``.

        Returns
        -------
        float
            Seconds.
        """
        return float(np.mean([self.store.result(cell).get("cpu_seconds", np.nan) for cell in self.cells(system)]))

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON: the plan, with the ``seeds`` that there are results for, and these results.

        ``beside_paper`` has the figures of the paper that can be compared with them.
        """
        spreads = {system: {metric: self.spread(system, metric) for metric in self.metrics} for system in self.systems}
        seconds = {system: self.cpu_seconds(system) for system in self.systems}
        results = for_json({"spread": spreads, "cpu_seconds": seconds}) | {"comparison": self.comparison.to_dict()}
        beside = {
            system: {metric: one._asdict() | {"printed": one.printed._asdict()} for metric, one in figures.items()}
            for system, figures in compare_with_paper(self).items()
        }
        return self.plan.to_dict() | {"seeds": list(self.seeds), "beside_paper": beside} | results

    def tidy(self) -> Tidy:
        """The mean of each metric for each system, fold and seed, one per row.

        Returns
        -------
        Tidy
            Columns ``system``, ``fold``, ``seed``, ``metric`` and ``value``.
        """
        rows = []
        ends = np.cumsum([0, *(test.n_queries for test in self.tests)])
        for system in self.systems:
            for seed, per_query in zip(self.seeds_of(system), self.per_query(system), strict=True):
                for fold in range(self.n_folds):
                    for metric, values in per_query.items():
                        inside = values[ends[fold] : ends[fold + 1]]
                        mean = float(np.nanmean(inside)) if np.isfinite(inside).any() else float("nan")
                        rows.append((system, fold + 1, seed, metric, mean))
        return Tidy(*map(list, zip(*rows, strict=True)))

    def to_pandas(self) -> Any:
        """A pandas table of ``tidy``: a row for each system, fold, seed and metric."""
        return display.as_pandas(self.tidy()._asdict())

    def table(self) -> Grid:
        """The mean of each system in each metric with its mark, as texts."""
        return self.comparison.table()

    def blocks(self) -> Iterator[str | ShownTable]:
        """The folds and seeds, the table, its marks and the counts."""
        if not self.systems:
            yield f"Run {self.folder.name}: no system has results for every fold yet"
            return
        seeds = self.seeds
        fewer = [
            f"{system}: {', '.join(map(str, own))}"
            for system in self.systems
            if (own := self.seeds_of(system)) != seeds and "scores" not in self.plan.systems[system]
        ]
        words = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" + f" ({'; '.join(fewer)})" * bool(fewer)
        yield f"Run: {self.plan.data.name}, {self.n_folds} fold{'s' * (self.n_folds > 1)}, {words}"
        yield ShownTable(self.table())
        yield self.comparison.describe_marks()
        yield self.comparison.describe_queries()

    @cached_property
    def _judge(self) -> Judge:
        """The judge of the test queries of all folds as one data set; a query that is tested twice counts twice."""
        tests = self.tests
        texts = [test.document_texts for test in tests if test.document_texts is not None]
        pooled = RankingDataset.from_parts(
            np.concatenate([test.features for test in tests]),
            np.concatenate([test.ratings for test in tests]),
            np.concatenate([[0], np.concatenate([test.lengths for test in tests]).cumsum()]),
            np.concatenate([test.query_ids for test in tests]),
            document_texts=StringArray.concat(texts) if len(texts) == len(tests) else None,
        )
        return Judge(pooled, self._metrics, self.rule)

    @cached_property
    def _per_query(self) -> dict[str, list[dict[str, Floats]]]:
        return {}


@dataclass(frozen=True)
class _Stores(Store):
    """The files of several runs: the results of each system stay in the folder of its run."""

    homes: Mapping[str, tuple[Store, str]]

    def place(self, cell: Cell) -> Path:
        """The folder of a result."""
        store, system = self.homes[cell.system]
        return store.place(cell._replace(system=system))


def side_by_side(runs: Mapping[str, Run]) -> Run:
    """Combine runs on the same test data into one run with the systems of all, for tables, tests and the report.

    Nothing is copied or written. The metrics, the rule and the baseline are those of the first run.

    Parameters
    ----------
    runs : dict of str to Run
        The runs by name. A system is called ``ranker (name)`` in the result.

    Returns
    -------
    Run
        The systems of all runs.

    Raises
    ------
    DataError
        If the runs were tested on different data.

    Examples
    --------
    >>> import tierank
    >>> folds = [tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20).split(0.6, 0.2, 0.2)]
    >>> before, after = (tierank.cross_validate({"umart": tierank.UMart(n_trees=n)}, folds) for n in (2, 20))
    >>> both = side_by_side({"before": before, "after": after})  # or tierank.Run.open("folder")
    >>> both.systems
    ('umart (before)', 'umart (after)')
    >>> "ndcg@10" in both.comparison.contrasts["umart (after)"]
    True
    """
    if not isinstance(runs, Mapping) or len(runs) < 2 or not all(isinstance(run, Run) for run in runs.values()):
        raise ParameterError(argument="runs", expected="two runs or more, by name", got=repr(runs))
    (first_name, first), *others = runs.items()
    for _, run in others:
        if list(run.plan.folds) != list(first.plan.folds):
            fix = "only runs with equal test queries in the same folds can be compared"
            raise DataError(where=run.folder, expected=f"the test data of {first.folder}", got="others", fix=fix)
    homes = {f"{system} ({name})": (run.store, system) for name, run in runs.items() for system in run.systems}
    described = {f"{s} ({name})": run.plan.systems[s] for name, run in runs.items() for s in run.systems}
    plan = replace(
        first.plan,
        kind="cv",
        systems=described,
        seeds=sorted({seed for run in runs.values() for seed in run.seeds}),
        baseline=f"{first.baseline} ({first_name})" if first.systems else None,
        protocol="lightgbm" if any(run.plan.protocol == "lightgbm" for run in runs.values()) else first.plan.protocol,
        paper=None,
    )
    return Run(_Stores(first.folder, homes), plan)
