"""Run: the results of an experiment, read from its folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from tierank import notebook
from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.evaluation import Comparison, Evaluation, compare_evaluations
from tierank.experiments.folds import Fold, found_folds
from tierank.experiments.plan import Plan, digest_data
from tierank.experiments.store import Cell, Store
from tierank.files import as_path, for_json
from tierank.metrics import Judge, Metric, Rule, as_rule, metric_name
from tierank.rankers import Ranker
from tierank.text_blocks import Texts
from tierank.types import Floats


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


_NOTHING_YET = "no system has results for every fold yet"


class Run:
    """The results of an experiment, stored in a folder: ``cross_validate`` creates one, ``Run.open`` reads one.

    Folds count from 0.

    Parameters
    ----------
    store : Store
        The files of the run.
    plan : Plan
        The plan in ``run.json``.
    metrics : sequence of str or callable, optional
        The metrics of ``comparison``. Default: those of the plan.

    Attributes
    ----------
    folder : Path
        The folder.
    plan : Plan
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
        The system that the others are compared with: the chosen one, or the first.
    tests : list of RankingDataset
        The test data of each fold, without features.
    comparison : Comparison
        The comparison over all test queries of all folds, averaged over the seeds for each query.
    """

    store: Store
    plan: Plan

    def __init__(self, store: Store, plan: Plan, metrics: Sequence[Metric] | None = None) -> None:
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
        return cls(Store(path), Plan.read(path))

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
        if baseline is not None and baseline not in self.systems:
            raise ParameterError.unknown("baseline", baseline, self.systems)
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
        """The system that the others are compared with: the chosen one, or the first."""
        chosen = self.plan.baseline
        return chosen if chosen in self.systems else self.systems[0]

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
        self._check_fold(fold)
        folds = found_folds(self.plan.data.source, self.folder / "parts")
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
        return self.store.model(self._cell(system, fold, seed))

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
        cell = self._cell(system, fold, seed)
        return None if "code" in self.plan.systems[system] else self.store.ranker(cell)

    def _cell(self, system: str, fold: int, seed: int) -> Cell:
        """The cell of an existing result. Raises ``ParameterError`` if there is none."""
        if system not in self.plan.systems:
            raise ParameterError.unknown("system", system, self.plan.systems)
        self._check_fold(fold)
        if seed not in self.plan.seeds:
            expected = f"a seed of the run: {', '.join(map(str, self.plan.seeds))}"
            raise ParameterError(argument="seed", expected=expected, got=repr(seed))
        return Cell(system, fold, seed)

    def _check_fold(self, fold: int) -> None:
        if fold not in range(self.n_folds):
            expected = f"a fold of the run, from 0 to {self.n_folds - 1}"
            raise ParameterError(argument="fold", expected=expected, got=repr(fold))

    # Results

    @cached_property
    def comparison(self) -> Comparison:
        """The comparison over all test queries of all folds, averaged over the seeds for each query."""
        if not self.systems:
            raise DataError(f"{self.folder}: expected results of at least one system for every fold, got none yet")
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
        n_empty = self._judge.n_empty
        left_out = n_empty if self.rule.empty is None else 0
        n_unjudged = self._judge.n_unjudged
        return Evaluation(per_query, self._pooled.query_ids, self.rule, n_empty, left_out, n_unjudged=n_unjudged)

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
            if system not in self.plan.systems:
                raise ParameterError.unknown("system", system, self.plan.systems)
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
        means = [float(np.nanmean(values[metric])) for values in self.per_query(system)]
        return float(np.std(means, ddof=1)) if len(means) > 1 else float("nan")

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
        """A dict for JSON: the plan, with the ``seeds`` that there are results for, and these results."""
        spreads = {system: {metric: self.spread(system, metric) for metric in self.metrics} for system in self.systems}
        seconds = {system: self.cpu_seconds(system) for system in self.systems}
        results = for_json({"spread": spreads, "cpu_seconds": seconds}) | {"comparison": self.comparison.to_dict()}
        return self.plan.to_dict() | {"seeds": list(self.seeds)} | results

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
        return notebook.as_pandas(self.tidy()._asdict())

    def _repr_html_(self) -> str:
        if not self.systems:
            return notebook.sheet(f"Run {self.folder.name}", notebook.note(_NOTHING_YET))
        marks = [notebook.note(text) for text in self._marks()]
        return notebook.sheet(self._title, notebook.note(self._seeds), notebook.grid(*self._table()), *marks)

    def __str__(self) -> str:
        if not self.systems:
            return f"Run {self.folder.name}: {_NOTHING_YET}"
        return "\n".join([f"{self._title}, {self._seeds}", *notebook.lines(*self._table()), *self._marks()])

    __repr__ = __str__

    @property
    def _title(self) -> str:
        return f"Run: {self.plan.data.name}"

    @property
    def _seeds(self) -> str:
        seeds = self.seeds
        fewer = [
            f"{system}: {', '.join(map(str, own))}"
            for system in self.systems
            if (own := self.seeds_of(system)) != seeds and "scores" not in self.plan.systems[system]
        ]
        words = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}" + f" ({'; '.join(fewer)})" * bool(fewer)
        return f"{self.n_folds} fold{'s' * (self.n_folds > 1)}, {words}"

    def _marks(self) -> list[str]:
        return [self.comparison.describe_marks(), self.comparison.describe_queries()]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        comparison = self.comparison
        rows = [
            [s, *(f"{comparison.mean(s, m):.4f}{comparison.mark(s, m)}" for m in self.metrics)] for s in self.systems
        ]
        return ["system", *self.metrics], rows

    @cached_property
    def _pooled(self) -> RankingDataset:
        """The test queries of all folds as one data set; a query that is tested twice counts twice."""
        tests = self.tests
        texts = [test.document_texts for test in tests if test.document_texts is not None]
        return RankingDataset.from_parts(
            np.concatenate([test.features for test in tests]),
            np.concatenate([test.ratings for test in tests]),
            np.concatenate([[0], np.concatenate([test.lengths for test in tests]).cumsum()]),
            np.concatenate([test.query_ids for test in tests]),
            document_texts=Texts.concat(texts) if len(texts) == len(tests) else None,
        )

    @cached_property
    def _judge(self) -> Judge:
        return Judge(self._pooled, self._metrics, self.rule)

    @cached_property
    def _per_query(self) -> dict[str, list[dict[str, Floats]]]:
        return {}
