"""Several systems compared with a baseline: ``compare`` and its result."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tierank.arrays import Floats
from tierank.data.dataset import RankingDataset
from tierank.display import Grid, ShownTable, format_number, on_one_line, rows_to_pandas
from tierank.errors import ParameterError
from tierank.metrics.evaluate import Evaluation, SegmentedResult, as_systems, describe_counts, evaluate_by
from tierank.metrics.judge import Judge
from tierank.metrics.rules import Metric, Rule, as_metric_of
from tierank.metrics.segments import Attribute, SegmentContrast, as_attributes, compare_segments, judged_alike
from tierank.metrics.significance import ROUNDING, SIGNIFICANT, Contrast, Paired, holm, ratio_interval
from tierank.settings import as_choice


def compare(
    data: RankingDataset | Sequence[Any],
    scores: Mapping[str, ArrayLike],
    baseline: str | None = None,
    metrics: Metric | Iterable[Metric] | None = None,
    rule: str | Rule = "tierank",
    *,
    by: Any = None,
    seed: int | None = None,
    n_resamples: int | None = None,
    n_jobs: int | None = None,
) -> Comparison:
    """Compare the scores of several systems with those of a baseline.

    Differences are taken query by query: a two-sided paired t-test, with p adjusted by Holm's method over the systems
    that are compared in the same metric, and the 95% interval of that test, which excludes 0 exactly if p < 0.05.

    Parameters
    ----------
    data : RankingDataset, (X, y, qid), (y, qid), or qrels
        The ratings (NaN: unjudged) and queries; features do not matter here. Qrels as in ``evaluate``.
    scores : dict of str to array, or of str to run
        One score per row for each system, in the caller's order; with qrels, a run for each system.
    baseline : str, optional
        The system to compare with. Default: the first.
    metrics : str, callable, or list of them, optional
        As in ``evaluate``.
    rule : str or Rule, default "tierank"
        A key of ``RULES``, or a ``Rule``. With ``:condense`` after the key, unjudged documents are taken out of the
        lists; without, they count as not relevant.
    by : str, array, mapping or table, optional
        An attribute of queries to split the results by, such as their device; see ``evaluate``.
    seed, n_resamples : int, optional
        Deprecated, without effect: the interval is computed without random draws. tierank 0.4 removes them.
    n_jobs : int, optional
        Number of threads; default one per core.

    Returns
    -------
    Comparison
        Means, differences, tests and intervals; with ``by`` also ``segments``.

    Examples
    --------
    >>> ratings, queries = [1, 0, 0, 2, 0, 1], [1, 1, 2, 2, 3, 3]
    >>> found = compare((ratings, queries), {"old": [1, 2, 2, 1, 1, 2], "new": [2, 1, 1, 2, 1, 2]}, metrics="ndcg@2")
    >>> round(found.contrasts["new"]["ndcg@2"].difference, 4)
    0.246
    """
    if not hasattr(scores, "items"):
        got = type(scores).__name__
        raise ParameterError(argument="scores", expected="a mapping from names of systems to their scores", got=got)
    if len(scores) < 2:
        raise ParameterError(argument="scores", expected="at least two systems to compare", got=str(len(scores)))
    if not all(isinstance(name, str) for name in scores):
        raise ParameterError(argument="scores", expected="texts as names of systems", got=f"{list(scores)}")
    if (seed, n_resamples) != (None, None):
        warnings.warn(
            "seed and n_resamples of compare have no effect, as the interval is that of the t-test, without random"
            " draws: leave them out; tierank 0.4 removes them",
            DeprecationWarning,
            stacklevel=2,
        )
    baseline = as_choice("baseline", next(iter(scores)) if baseline is None else baseline, scores)
    dataset, systems = as_systems(data, scores)
    attributes = () if by is None else as_attributes(dataset, by)
    judge = Judge(dataset, metrics, rule, n_jobs=n_jobs)
    evaluations = {name: evaluate_by(judge, given, attributes) for name, given in systems.items()}
    return compare_evaluations(evaluations, baseline, attributes)


def compare_evaluations(
    evaluations: Mapping[str, Evaluation], baseline: str, attributes: Sequence[Attribute] = ()
) -> Comparison:
    """Compare the evaluations of several systems, for the same queries and rule, with that of the baseline."""
    found = dict(evaluations)
    differences = {system: _differences(found[system], found[baseline]) for system in found if system != baseline}
    segments = compare_segments(differences, attributes)
    return Comparison(found, baseline, _contrast(differences), segments, tuple(attributes))


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(SegmentedResult):
    """The result of ``compare``. ``print`` shows the table of means with significance marks, and the rule.

    Attributes
    ----------
    evaluations : dict of str to Evaluation
        The evaluation of each system.
    baseline : str
        The system that the others are compared with.
    contrasts : dict of str to dict of str to Contrast
        ``contrasts[system][metric]``, for all systems except the baseline: ``difference``, ``low``, ``high``, ``p``,
        ``adjusted_p``, ``wins``, ``ties``, ``losses`` and ``verdict``.
    segments : tuple of SegmentContrast
        With ``by``, each segment for each system and metric: ``attribute``, ``value``, ``system``, ``metric``,
        ``contrast``, ``difference``, ``n_queries`` and ``verdict``.
    attributes : tuple of Attribute
        With ``by``, the segment of each query.

    Examples
    --------
    >>> data = RankingDataset([[0.0]] * 6, [1, 0, 0, 2, 0, 1], qid=[1, 1, 2, 2, 3, 3])
    >>> found = compare(data, {"old": [1, 2, 2, 1, 1, 2], "new": [2, 1, 1, 2, 1, 2]}, metrics="ndcg@2")
    >>> contrast = found.contrasts["new"]["ndcg@2"]
    >>> round(contrast.difference, 4), contrast.wins, contrast.ties, contrast.losses, contrast.verdict
    (0.246, 2, 1, 0, 'no difference shown')
    """

    evaluations: dict[str, Evaluation]
    baseline: str
    contrasts: dict[str, dict[str, Contrast]]
    segments: tuple[SegmentContrast, ...] = ()
    attributes: tuple[Attribute, ...] = ()

    @property
    def systems(self) -> tuple[str, ...]:
        """The names of the systems, the baseline included."""
        return tuple(self.evaluations)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return self._baseline.metrics

    @property
    def rule(self) -> Rule:
        """The rule of the metrics."""
        return self._baseline.rule

    def mean(self, system: str, metric: str) -> float:
        """The mean of one system over the queries that are not left out.

        Parameters
        ----------
        system : str
            A name of ``systems``.
        metric : str
            A name of ``metrics``.

        Returns
        -------
        float
            The mean.
        """
        return self.evaluations[as_choice("system", system, self.evaluations)].mean(metric)

    def mark(self, system: str, metric: str) -> str:
        """The mark of significance of a system.

        Parameters
        ----------
        system : str
            A name of ``systems``.
        metric : str
            A name of ``metrics``.

        Returns
        -------
        str
            ``*+`` if it is significantly better than the baseline, ``*-`` if it is significantly worse, else nothing.
        """
        as_choice("system", system, self.evaluations)
        metric = as_metric_of("comparison", metric, self.metrics)
        return "" if system == self.baseline else self.contrasts[system][metric].mark

    def improvement(self, system: str, metric: str) -> tuple[float, float, float]:
        """The relative improvement over the baseline, and its 95% interval by Fieller's theorem.

        The interval excludes 0 exactly if ``p`` of the contrast is below 0.05.

        Parameters
        ----------
        system : str
            A name of ``contrasts``.
        metric : str
            A name of ``metrics``.

        Returns
        -------
        tuple of float
            Mean difference / mean of the baseline, and the bounds of its interval: 0.02 is 2% better. NaN if the mean
            of the baseline is 0; the bounds are NaN if it is not significantly above 0, or if the contrast has none.
        """
        as_choice("system", system, self.contrasts)
        as_choice("metric of this comparison", metric, self.metrics)
        is_judged = ~np.isnan([one.per_query[metric] for one in self.evaluations.values()]).any(axis=0)
        base = self._baseline.per_query[metric][is_judged]
        if not base.mean() > 0:
            return math.nan, math.nan, math.nan
        differences = _differences(self.evaluations[system], self._baseline)[metric][is_judged]
        return float(differences.mean() / base.mean()), *ratio_interval(differences, base)

    def best(self, metric: str) -> tuple[str, ...]:
        """The systems with the highest mean.

        Parameters
        ----------
        metric : str
            A name of ``metrics``.

        Returns
        -------
        tuple of str
            More than one if means are equal.
        """
        means = {system: self.mean(system, metric) for system in self.systems}
        return tuple(system for system, mean in means.items() if mean >= max(means.values()) - ROUNDING)

    def worst(self, metric: str, system: str | None = None) -> list[SegmentContrast]:
        """The segments in which a system is worse than the baseline, the worst one first.

        At most 2.5% of them are expected to be false: see ``tierank.metrics.significance.control_discoveries``.

        Parameters
        ----------
        metric : str
            A name of ``metrics``.
        system : str, optional
            A name of ``systems``. Default: all of them.

        Returns
        -------
        list of SegmentContrast
            Empty if no segment is shown to be worse.
        """
        metric = as_metric_of("comparison", metric, self.metrics)
        if system is not None:
            as_choice("system", system, self.contrasts)
        found = [one for one in self.segments if one.metric == metric and one.verdict == "worse"]
        return sorted((one for one in found if system in (None, one.system)), key=lambda one: one.difference)

    def describe_queries(self) -> str:
        """How many queries were judged, and how many have no rating above 0, as text."""
        return self._baseline.describe_queries()

    def describe_marks(self) -> str:
        """What the marks of the table mean, as text."""
        return (
            f"*+ / *-: significantly better / worse than {on_one_line(self.baseline)}"
            f" (paired t-test, Holm-adjusted p < {SIGNIFICANT})"
        )

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON with all results except the values per query."""
        return describe_counts(self._baseline) | {
            "baseline": self.baseline,
            "systems": {system: self.evaluations[system].to_dict()["metrics"] for system in self.systems},
            "contrasts": {
                system: {metric: contrast.to_dict() for metric, contrast in by_metric.items()}
                for system, by_metric in self.contrasts.items()
            },
            **self.segments_to_dict(),
        }

    def to_pandas(self) -> Any:
        """A pandas table with a row per system and metric: the mean, and the contrast to the baseline."""
        rows = []
        for system in self.systems:
            for metric in self.metrics:
                row = {"system": system, "metric": metric, "mean": self.mean(system, metric)}
                contrast = self.contrasts.get(system, {}).get(metric)
                rows.append(row | ({} if contrast is None else contrast.to_dict()))
        return rows_to_pandas(rows)

    def table(self) -> Grid:
        """The mean of each system in each metric with its mark, as texts."""
        rows = [[s, *(f"{self.mean(s, m):.4f}{self.mark(s, m)}" for m in self.metrics)] for s in self.systems]
        return ["system", *self.metrics], rows

    def blocks(self) -> Iterator[str | ShownTable]:
        """The counts, the table and its marks, the tests, the segments and the rule."""
        yield self.describe_queries()
        yield ShownTable(self.table())
        yield self.describe_marks()
        heads = ["", "difference", "95% interval", "adjusted p", "wins/ties/losses", "verdict"]
        tests = []
        for system, by_metric in self.contrasts.items():
            for metric, one in by_metric.items():
                interval = f"{format_number(one.low)} to {format_number(one.high)}"
                counts = f"{one.wins}/{one.ties}/{one.losses}"
                numbers = [f"{one.difference:+.4f}", interval, format_number(one.adjusted_p), counts]
                tests.append([f"{system}, {metric}", *numbers, one.verdict])
        yield ShownTable((heads, tests), f"differences to {self.baseline}", is_printed=False)
        yield from self.segment_blocks()
        yield f"rule {self.rule.describe()}"

    @property
    def _baseline(self) -> Evaluation:
        return self.evaluations[self.baseline]


def _differences(ours: Evaluation, base: Evaluation) -> dict[str, Floats]:
    """For each metric the difference of each query; 0 if it is only rounding, NaN if the query is left out."""
    found = {metric: ours.per_query[metric] - values for metric, values in base.per_query.items()}
    return {metric: np.where(np.abs(values) <= ROUNDING, 0.0, values) for metric, values in found.items()}


def _contrast(by_system: Mapping[str, Mapping[str, Floats]]) -> dict[str, dict[str, Contrast]]:
    if not by_system:
        return {}
    metrics = list(next(iter(by_system.values())))
    every = np.array([[by_metric[metric] for metric in metrics] for by_metric in by_system.values()])
    contrasts: dict[str, dict[str, Contrast]] = {system: {} for system in by_system}
    for judged, chosen in judged_alike(every):
        if not judged.any():
            expected = f"{metrics[chosen[0]]} to have a value in all systems for at least one query"
            raise ParameterError(argument="metrics", expected=expected, got="none")
        found = Paired.of(every[:, chosen][..., judged])
        adjusted = np.apply_along_axis(holm, 0, found.p)
        for i, by_metric in enumerate(contrasts.values()):
            for j, k in enumerate(chosen):
                by_metric[metrics[k]] = found.contrast((i, j), adjusted[i, j])
    return {system: {metric: found[metric] for metric in metrics} for system, found in contrasts.items()}
