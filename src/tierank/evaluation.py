"""Scores in, numbers out: one system judged, or several compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.metrics import WHY_LEFT_OUT, Judge, Metric, Rule, as_scores
from tierank.types import Floats

# Differences of two queries' values that are no more than rounding.
_ROUNDING = 1e-12
# An adjusted p below this is called significant.
SIGNIFICANT = 0.05
# Random draws held in memory at one time.
_DRAWS = 1 << 21


def evaluate(
    data: RankingDataset | Sequence[Any],
    scores: ArrayLike,
    metrics: Metric | Iterable[Metric] | None = None,
    rule: str | Rule = "tierank",
    *,
    n_jobs: int | None = None,
) -> Evaluation:
    """Judge the scores of one system, one per row of the data **in the caller's order**.

    Parameters
    ----------
    data : RankingDataset, (X, y, qid) or (y, qid)
        The ratings and queries; features do not matter here.
    scores : array
        One score per row.
    metrics : str, callable, or list of them, optional
        Names such as ``"ndcg@10"`` or ``"map"``, or your own functions ``metric(ratings, scores)``, which get the
        documents of one query and return a number. Default: NDCG at 1, 3, 5 and 10, and ERR at 10 if the rule has it.
    rule : str or Rule, default "tierank"
        A key of ``RULES``, or a ``Rule``.
    n_jobs : int, optional
        Number of threads; default one per core.

    Returns
    -------
    Evaluation
        The value of each metric for each query, and their means.

    Examples
    --------
    >>> print(evaluate(([0, 2, 1, 0], ["a", "a", "b", "c"]), [0.9, 0.1, 0.3, 0.2], ["ndcg@3", "mrr"]))
    2 queries; 1 left out: no rating above 0
    metric  mean    standard error
    ndcg@3  0.8155  0.1845
    mrr     0.7500  0.2500
    rule tierank: gain 2^r - 1; discount 1/log2(1 + rank); tied scores averaged over all their orders; queries with
    no rating above 0 left out; ERR by the highest rating of the data set; relevant: rating above 0; AP@k divided by
    min(k, relevant); precision@k divided by k
    """
    return _evaluate(Judge(_as_judged(data), metrics, rule, n_jobs=n_jobs), scores)


def _as_judged(data: RankingDataset | Sequence[Any]) -> RankingDataset:
    """A data set; one of (X, y, qid); or one of (y, qid), whose features say nothing."""
    if isinstance(data, RankingDataset):
        return data
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise DataError(f"data: expected a RankingDataset, (X, y, qid) or (y, qid), got {type(data).__name__}")
    if len(data) == 3:
        return RankingDataset(*data)
    return RankingDataset(np.zeros((len(data[0]), 1), np.float32), *data)


def _evaluate(judge: Judge, scores: ArrayLike) -> Evaluation:
    data, n_left_out = judge.data, judge.n_empty if judge.rule.empty is None else 0
    if n_left_out == data.n_queries:
        raise DataError(
            f"nothing to judge: all {n_left_out} queries are left out ({WHY_LEFT_OUT});"
            f" check the ratings, or take a rule that gives such queries a value, such as 'letor'"
        )
    per_query = judge(data.arrange(as_scores(scores, data.n_documents)))
    return Evaluation(per_query, data.query_ids, judge.rule, judge.n_empty, n_left_out)


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation:
    """The result of ``evaluate``. ``print`` shows the means, their standard errors and the rule.

    Attributes
    ----------
    per_query : dict of str to array
        One value per query for each metric, in the order of ``query_ids``; NaN if the rule leaves the query out.
    query_ids : array
        The id of each query.
    rule : Rule
        The rule of the metrics.
    n_empty : int
        Number of queries with no rating above 0.
    n_left_out : int
        Number of queries that the rule leaves out: all empty ones, or none.
    """

    per_query: dict[str, Floats]
    query_ids: NDArray[Any]
    rule: Rule
    n_empty: int
    n_left_out: int

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics."""
        return tuple(self.per_query)

    @property
    def n_queries(self) -> int:
        """Number of queries that the means are taken over."""
        return len(self.query_ids) - self.n_left_out

    def values(self, metric: str) -> Floats:
        """The values of the queries that are not left out.

        Parameters
        ----------
        metric : str
            A name of ``metrics``.

        Returns
        -------
        array
            One value per query.
        """
        if metric not in self.per_query:
            raise ParameterError.unknown("metric of this evaluation", metric, self.per_query)
        values = self.per_query[metric]
        return values[~np.isnan(values)]

    def mean(self, metric: str) -> float:
        """The mean over the queries that are not left out.

        Parameters
        ----------
        metric : str
            A name of ``metrics``.

        Returns
        -------
        float
            The mean.
        """
        return float(self.values(metric).mean())

    def standard_error(self, metric: str) -> float:
        """The standard error of the mean.

        Parameters
        ----------
        metric : str
            A name of ``metrics``.

        Returns
        -------
        float
            The standard error; NaN if there is only one query.
        """
        values = self.values(metric)
        return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Means, standard errors, counts and the rule, for JSON."""
        return _describe_queries(self) | {
            "metrics": {
                metric: {"mean": self.mean(metric), "standard_error": _finite(self.standard_error(metric))}
                for metric in self.metrics
            },
        }

    def describe_queries(self) -> str:
        """How many queries were judged, and how many have no rating above 0, as text.

        Returns
        -------
        str
            One line.

        Examples
        --------
        >>> data = RankingDataset([[0.0]] * 3, [1, 0, 0], qid=[1, 1, 2])
        >>> evaluate(data, [3, 2, 1], rule="lightgbm").describe_queries()
        '2 queries, 1 with no rating above 0; none left out'
        """
        judged = f"{self.n_queries:,} {'query' if self.n_queries == 1 else 'queries'}"
        if self.n_left_out:
            return f"{judged}; {self.n_left_out:,} left out: {WHY_LEFT_OUT}"
        empty = f", {self.n_empty:,} with {WHY_LEFT_OUT}" if self.n_empty else ""
        return f"{judged}{empty}; none left out"

    def __str__(self) -> str:
        rows = [("metric", "mean", "standard error")]
        rows += [(m, f"{self.mean(m):.4f}", format_number(self.standard_error(m))) for m in self.metrics]
        return "\n".join([self.describe_queries(), *_aligned(rows), f"rule {self.rule.describe()}"])

    __repr__ = __str__


def compare(
    data: RankingDataset | Sequence[Any],
    scores: Mapping[str, ArrayLike],
    baseline: str | None = None,
    metrics: Metric | Iterable[Metric] | None = None,
    rule: str | Rule = "tierank",
    *,
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
        The ratings and queries; features do not matter here.
    scores : dict of str to array
        One score per row for each system, in the caller's order.
    baseline : str, optional
        The system to compare with. Default: the first.
    metrics : str, callable, or list of them, optional
        As in ``evaluate``.
    rule : str or Rule, default "tierank"
        A key of ``RULES``, or a ``Rule``.
    seed : int, default 0
        Random seed of the bootstrap.
    n_resamples : int, default 10000
        Number of bootstrap samples.
    n_jobs : int, optional
        Number of threads; default one per core.

    Returns
    -------
    Comparison
        Means, differences, tests and intervals.

    Examples
    --------
    >>> ratings, queries = [1, 0, 0, 2, 0, 1], [1, 1, 2, 2, 3, 3]
    >>> found = compare((ratings, queries), {"old": [1, 2, 2, 1, 1, 2], "new": [2, 1, 1, 2, 1, 2]}, metrics="ndcg@2")
    >>> round(found.contrasts["new"]["ndcg@2"].difference, 4)
    0.246
    """
    if len(scores) < 2:
        raise ParameterError(f"scores: expected at least two systems to compare, got {len(scores)}")
    if n_resamples < 1:
        raise ParameterError(f"n_resamples: expected 1 or more, got {n_resamples}")
    baseline = next(iter(scores)) if baseline is None else baseline
    if baseline not in scores:
        raise ParameterError.unknown("baseline", baseline, scores)
    judge = Judge(_as_judged(data), metrics, rule, n_jobs=n_jobs)
    evaluations = {name: _evaluate(judge, given) for name, given in scores.items()}
    return compare_evaluations(evaluations, baseline, seed=seed, n_resamples=n_resamples)


def compare_evaluations(
    evaluations: Mapping[str, Evaluation], baseline: str, *, seed: int = 0, n_resamples: int = 10_000
) -> Comparison:
    """Compare what was found of several systems, for the same queries by the same rule, with one of them."""
    found = dict(evaluations)
    return Comparison(found, baseline, _contrast(found, baseline, seed, n_resamples), seed, n_resamples)


@dataclass(frozen=True)
class Contrast:
    """One system against the baseline in one metric. Numbers that one query alone leaves undefined are NaN.

    Attributes
    ----------
    difference : float
        The mean difference over queries.
    low, high : float
        The 95% interval of the difference.
    p, adjusted_p : float
        The p-value of the paired t-test, as it is and adjusted by Holm's method.
    wins, ties, losses : int
        Number of queries in which the system is better than the baseline, equal, or worse.
    """

    difference: float
    low: float
    high: float
    p: float
    adjusted_p: float
    wins: int
    ties: int
    losses: int

    @property
    def verdict(self) -> Literal["better", "worse", "no difference shown"]:
        """``better`` or ``worse`` if the adjusted p is below 0.05, else ``no difference shown``."""
        if not self.adjusted_p < SIGNIFICANT:
            return "no difference shown"
        return "better" if self.difference > 0 else "worse"

    @property
    def mark(self) -> str:
        """The verdict as ``*+``, ``*-`` or nothing."""
        return {"better": "*+", "worse": "*-"}.get(self.verdict, "")


@dataclass(frozen=True, repr=False, eq=False)
class Comparison:
    """The result of ``compare``. ``print`` shows the table of means with marks of significance, and the rule.

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
        if system not in self.evaluations:
            raise ParameterError.unknown("system", system, self.evaluations)
        return self.evaluations[system].mean(metric)

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
        return self.contrasts[system][metric].mark if system in self.contrasts else ""

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
        return tuple(system for system, mean in means.items() if mean >= max(means.values()) - _ROUNDING)

    def describe_queries(self) -> str:
        """How many queries were judged, and how many have no rating above 0, as text."""
        return self._baseline.describe_queries()

    def describe_marks(self) -> str:
        """What the marks of the table mean, as text."""
        return (
            f"*+ / *-: significantly better / worse than {self.baseline}"
            f" (paired t-test, Holm-adjusted p < {SIGNIFICANT})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything except the values per query, for JSON."""
        return _describe_queries(self._baseline) | {
            "baseline": self.baseline,
            "seed": self.seed,
            "n_resamples": self.n_resamples,
            "systems": {system: self.evaluations[system].to_dict()["metrics"] for system in self.systems},
            "contrasts": {
                system: {metric: _contrast_dict(contrast) for metric, contrast in by_metric.items()}
                for system, by_metric in self.contrasts.items()
            },
        }

    def __str__(self) -> str:
        rows = [("system", *self.metrics)]
        rows += [(s, *(f"{self.mean(s, m):.4f}{self.mark(s, m)}" for m in self.metrics)) for s in self.systems]
        words = [self.describe_marks(), f"rule {self.rule.describe()}"]
        return "\n".join([self.describe_queries(), *_aligned(rows), *words])

    __repr__ = __str__

    @property
    def _baseline(self) -> Evaluation:
        return self.evaluations[self.baseline]


def _contrast(
    evaluations: dict[str, Evaluation], baseline: str, seed: int, n_resamples: int
) -> dict[str, dict[str, Contrast]]:
    others = [system for system in evaluations if system != baseline]
    metrics = evaluations[baseline].metrics
    if not others:
        return {}
    differences = np.array(
        [[evaluations[s].values(m) - evaluations[baseline].values(m) for m in metrics] for s in others]
    )  # systems x metrics x queries
    differences[np.abs(differences) <= _ROUNDING] = 0
    p = paired_p(differences)
    adjusted = np.apply_along_axis(holm, 0, p)
    low, high = bootstrap_interval(differences, seed, n_resamples)
    wins, losses = (differences > 0).sum(axis=-1), (differences < 0).sum(axis=-1)
    ties = differences.shape[-1] - wins - losses
    numbers = (differences.mean(axis=-1), low, high, p, adjusted, wins, ties, losses)
    return {
        system: {metric: Contrast(*(number[i, j].item() for number in numbers)) for j, metric in enumerate(metrics)}
        for i, system in enumerate(others)
    }


def paired_p(differences: Floats) -> Floats:
    """The two-sided p of a paired t-test over the last axis: t = mean / (standard deviation / sqrt(n)).

    Without any difference p is 1; one query alone says nothing (NaN).

    >>> paired_p(np.array([[0.0, 0.0, 0.0], [0.3, 0.1, 0.2]])).round(4).tolist()
    [1.0, 0.0742]
    """
    from scipy.special import stdtr  # takes long to load (0.15 s), and only comparisons need it

    n = differences.shape[-1]
    if n == 1:
        return np.full(differences.shape[:-1], np.nan)
    error = differences.std(axis=-1, ddof=1) / math.sqrt(n)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = differences.mean(axis=-1) / error
    p: Floats = 2 * stdtr(n - 1, -np.abs(t))
    return np.where((differences == 0).all(axis=-1), 1.0, p)


def holm(p: Floats) -> Floats:
    """Adjust p-values by Holm's method: the i-th smallest of m becomes the highest so far of (m - i + 1) p, at most 1.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order = p.argsort(kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return adjusted


def bootstrap_interval(differences: Floats, seed: int, n_resamples: int) -> tuple[Floats, Floats]:
    """The 2.5th and the 97.5th percentile of the mean over the last axis, over queries drawn with replacement.

    All rows see the same draws. Means are products with how often each query was drawn, a block of draws at a time.
    """
    n = differences.shape[-1]
    if n == 1:
        undefined = np.full(differences.shape[:-1], np.nan)
        return undefined, undefined
    values = differences.reshape(-1, n).T
    rng = np.random.default_rng(seed)
    means = np.empty((n_resamples, values.shape[1]))
    block = max(1, _DRAWS // n)
    for start in range(0, n_resamples, block):
        size = min(block, n_resamples - start)
        drawn = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
        means[start : start + size] = counts.astype(np.float64) @ values / n
    low, high = np.percentile(means, [2.5, 97.5], axis=0).reshape(2, *differences.shape[:-1])
    return low, high


def format_number(value: float) -> str:
    """Four decimals; a dash where a number is undefined."""
    return "-" if math.isnan(value) else f"{value:.4f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _describe_queries(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "rule": evaluation.rule.to_dict(),
        "n_queries": evaluation.n_queries,
        "n_empty": evaluation.n_empty,
        "n_left_out": evaluation.n_left_out,
        "why_left_out": WHY_LEFT_OUT if evaluation.n_left_out else None,
    }


def _contrast_dict(contrast: Contrast) -> dict[str, Any]:
    numbers = {name: _finite(getattr(contrast, name)) for name in contrast.__dataclass_fields__}
    return numbers | {"verdict": contrast.verdict}


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value
