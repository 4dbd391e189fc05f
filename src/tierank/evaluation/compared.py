"""Several systems compared with a baseline: ``compare`` and its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank import notebook
from tierank.dataset import RankingDataset
from tierank.errors import ParameterError
from tierank.evaluation.judged import Evaluation, as_judged, evaluate_by, warn_of_score_order
from tierank.evaluation.showing import (
    describe_counts,
    describe_segments,
    format_number,
    notes_html,
    segments_html,
    segments_text,
    segments_to_pandas,
)
from tierank.metrics import Judge, Metric, Rule
from tierank.segments import Attribute, SegmentContrast, as_attributes, compare_segments, judged_alike
from tierank.settings import MOST_REPEATS, as_choice, as_whole
from tierank.significance import ROUNDING, SIGNIFICANT, Contrast, bootstrap_interval, holm, paired_p
from tierank.types import Floats


def compare(
    data: RankingDataset | Sequence[Any],
    scores: Mapping[str, ArrayLike],
    baseline: str | None = None,
    metrics: Metric | Iterable[Metric] | None = None,
    rule: str | Rule = "tierank",
    *,
    by: Any = None,
    seed: int = 0,
    n_resamples: int = 10_000,
    n_jobs: int | None = None,
) -> Comparison:
    """Compare the scores of several systems with those of a baseline.

    Differences are taken query by query: a two-sided paired t-test, with p adjusted by Holm's method over the systems
    that are compared in the same metric, and a 95% bootstrap interval over queries.

    Parameters
    ----------
    data : RankingDataset, (X, y, qid) or (y, qid)
        The ratings (NaN: unjudged) and queries; features do not matter here.
    scores : dict of str to array
        One score per row for each system, in the caller's order.
    baseline : str, optional
        The system to compare with. Default: the first.
    metrics : str, callable, or list of them, optional
        As in ``evaluate``.
    rule : str or Rule, default "tierank"
        A key of ``RULES``, or a ``Rule``. With ``:condense`` after the key, unjudged documents are taken out of the
        lists; without, they count as not relevant.
    by : str, array, mapping or table, optional
        An attribute of queries to split the results by, such as their device; see ``evaluate``.
    seed : int, default 0
        Random seed of the bootstrap.
    n_resamples : int, default 10000
        Number of bootstrap samples.
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
        raise ParameterError(f"scores: expected at least two systems to compare, got {len(scores)}")
    for name in (*scores, *([] if baseline is None else [baseline])):
        if not isinstance(name, str):
            raise ParameterError(argument="scores", expected="texts as names of systems", got=repr(name))
    as_whole("n_resamples", n_resamples, most=MOST_REPEATS)
    as_whole("seed", seed, 0)
    baseline = next(iter(scores)) if baseline is None else baseline
    if baseline not in scores:
        raise ParameterError.unknown("baseline", baseline, scores)
    judged = as_judged(data)
    attributes = () if by is None else as_attributes(judged, by)
    warn_of_score_order(data, scores)
    judge = Judge(judged, metrics, rule, n_jobs=n_jobs)
    evaluations = {name: evaluate_by(judge, given, attributes) for name, given in scores.items()}
    return compare_evaluations(evaluations, baseline, attributes, seed=seed, n_resamples=n_resamples)


def compare_evaluations(
    evaluations: Mapping[str, Evaluation],
    baseline: str,
    attributes: Sequence[Attribute] = (),
    *,
    seed: int = 0,
    n_resamples: int = 10_000,
) -> Comparison:
    """Compare the evaluations of several systems, for the same queries and rule, with that of the baseline."""
    found = dict(evaluations)
    differences = {system: _differences(found[system], found[baseline]) for system in found if system != baseline}
    segments = compare_segments(differences, attributes, seed, n_resamples)
    contrasts = _contrast(differences, seed, n_resamples)
    return Comparison(found, baseline, contrasts, seed, n_resamples, segments, tuple(attributes))


@dataclass(frozen=True, repr=False, eq=False)
class Comparison:
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
    seed, n_resamples : int
        Seed and number of samples of the bootstrap.
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
    seed: int
    n_resamples: int
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
        as_choice("metric of this comparison", metric, self.metrics)
        return "" if system == self.baseline else self.contrasts[system][metric].mark

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

        At most 2.5% of them are expected to be false: see ``tierank.significance.control_discoveries``.

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
        as_choice("metric of this comparison", metric, self.metrics)
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
            f"*+ / *-: significantly better / worse than {notebook.on_one_line(self.baseline)}"
            f" (paired t-test, Holm-adjusted p < {SIGNIFICANT})"
        )

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON with all results except the values per query."""
        return describe_counts(self._baseline) | {
            "baseline": self.baseline,
            "seed": self.seed,
            "n_resamples": self.n_resamples,
            "systems": {system: self.evaluations[system].to_dict()["metrics"] for system in self.systems},
            "contrasts": {
                system: {metric: contrast.to_dict() for metric, contrast in by_metric.items()}
                for system, by_metric in self.contrasts.items()
            },
            **describe_segments(self.segments),
        }

    def to_pandas(self) -> Any:
        """A pandas table with a row per system and metric: the mean, and the contrast to the baseline."""
        rows = []
        for system in self.systems:
            for metric in self.metrics:
                row = {"system": system, "metric": metric, "mean": self.mean(system, metric)}
                contrast = self.contrasts.get(system, {}).get(metric)
                rows.append(row | ({} if contrast is None else contrast.to_dict()))
        names = dict.fromkeys(name for row in rows for name in row)
        return notebook.as_pandas({name: [row.get(name) for row in rows] for name in names})

    def segments_to_pandas(self) -> Any:
        """A pandas table with a row per segment, system and metric."""
        return segments_to_pandas(self.segments)

    def _repr_html_(self) -> str:
        tests = [
            [
                f"{s}, {m}",
                f"{c.difference:+.4f}",
                f"{format_number(c.low)} to {format_number(c.high)}",
                format_number(c.adjusted_p),
                f"{c.wins}/{c.ties}/{c.losses}",
                c.verdict,
            ]
            for s, by_metric in self.contrasts.items()
            for m, c in by_metric.items()
        ]
        heads = ["", "difference", "95% interval", "adjusted p", "wins/ties/losses", "verdict"]
        parts = [notebook.grid(*self._table()), notebook.note(self.describe_marks())]
        parts += [notebook.folded(f"differences to {self.baseline}", notebook.grid(heads, tests))]
        return notebook.sheet("Comparison", *parts, *segments_html(self.segments), *notes_html(self))

    def __str__(self) -> str:
        table = [*notebook.lines(*self._table()), self.describe_marks()]
        rule = f"rule {self.rule.describe()}"
        return "\n".join([self.describe_queries(), *table, *segments_text(self.segments), rule])

    __repr__ = __str__

    def _table(self) -> tuple[list[str], list[list[str]]]:
        rows = [[s, *(f"{self.mean(s, m):.4f}{self.mark(s, m)}" for m in self.metrics)] for s in self.systems]
        return ["system", *self.metrics], rows

    @property
    def _baseline(self) -> Evaluation:
        return self.evaluations[self.baseline]


def _differences(ours: Evaluation, base: Evaluation) -> dict[str, Floats]:
    """For each metric the difference of each query; 0 if it is only rounding, NaN if the query is left out."""
    found = {metric: ours.per_query[metric] - values for metric, values in base.per_query.items()}
    return {metric: np.where(np.abs(values) <= ROUNDING, 0.0, values) for metric, values in found.items()}


def _contrast(
    by_system: Mapping[str, Mapping[str, Floats]], seed: int, n_resamples: int
) -> dict[str, dict[str, Contrast]]:
    if not by_system:
        return {}
    metrics = list(next(iter(by_system.values())))
    every = np.array([[by_metric[metric] for metric in metrics] for by_metric in by_system.values()])
    contrasts: dict[str, dict[str, Contrast]] = {system: {} for system in by_system}
    for judged, chosen in judged_alike(every):
        if not judged.any():
            expected = f"{metrics[chosen[0]]} to have a value in all systems for at least one query"
            raise ParameterError(argument="metrics", expected=expected, got="none")
        numbers = _contrasts(every[:, chosen][..., judged], seed, n_resamples)
        for i, by_metric in enumerate(contrasts.values()):
            for j, k in enumerate(chosen):
                by_metric[metrics[k]] = Contrast(*(number[i, j].item() for number in numbers))
    return {system: {metric: found[metric] for metric in metrics} for system, found in contrasts.items()}


def _contrasts(differences: Floats, seed: int, n_resamples: int) -> tuple[NDArray[Any], ...]:
    """The fields of ``Contrast`` of each system and metric, for differences by system, metric and query."""
    p = paired_p(differences)
    adjusted = np.apply_along_axis(holm, 0, p)
    low, high = bootstrap_interval(differences, seed, n_resamples)
    wins, losses = (differences > 0).sum(axis=-1), (differences < 0).sum(axis=-1)
    ties = differences.shape[-1] - wins - losses
    spread = differences.std(axis=-1, ddof=1) if differences.shape[-1] > 1 else np.full(p.shape, np.nan)
    return differences.mean(axis=-1), low, high, p, adjusted, wins, ties, losses, spread
