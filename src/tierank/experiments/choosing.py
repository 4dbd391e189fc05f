"""``choose``: which ranker to use on your data, tried on few folds within a time budget."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tierank.arrays import Floats
from tierank.display import Grid, Result, ShownTable, format_number
from tierank.errors import DataError
from tierank.experiments.crossval import cross_validate
from tierank.experiments.folds import Fold, Folds, PartFolds, folds_of
from tierank.experiments.runs import Run
from tierank.extras import is_installed
from tierank.files import for_json
from tierank.metrics.compare import Comparison, compare_evaluations
from tierank.metrics.judge import Judge
from tierank.metrics.rules import Rule
from tierank.metrics.significance import SIGNIFICANT
from tierank.metrics.singles import best_single_feature
from tierank.rankers import RANKERS
from tierank.rankers.base import Ranker
from tierank.settings import Integer, Number

FEATURE, LAMBDAMART = "one feature", "lambdamart"
# What is tried, cheap ones first: the ranker, its preset, and about how many times the CPU time of LambdaMART it takes.
TRIED: dict[str, tuple[str, str | None, float]] = {
    "linear": ("linear", None, 0.2),
    LAMBDAMART: ("lambdamart", None, 1.0),
    "umart": ("umart", None, 1.1),
    "stochastic": ("umart", "stochastic", 2.5),
    "blend": ("blend", None, 6.0),
    "urank": ("urank", None, 7.0),
}
# The best of these is what the others are compared with, and they are tried in any case.
SIMPLE = (FEATURE, "linear", LAMBDAMART)
# Test queries that are enough: more folds are left out. Training queries that the best feature is found on.
_ENOUGH, _SEARCHED = 1_000, 1_000


@dataclass(frozen=True, repr=False, eq=False)
class Recommendation(Result):
    """The result of ``choose``: ``print`` shows the table, and below it which ranker to use.

    Attributes
    ----------
    comparison : Comparison
        The systems that were tried, on all test queries, compared with the best simple one.
    prices : dict of str to float
        CPU time of training, as a multiple of LambdaMART's; 0 for one feature.
    left_out : dict of str to str
        The rankers that were not tried, and why.
    best : str
        The system with the highest mean.
    cheaper : str or None
        The cheapest system that is not significantly worse than the best, if it costs less.
    feature : str
        The feature that ranked best, in most folds.
    n_folds : int
        Number of folds.
    """

    comparison: Comparison
    prices: dict[str, float]
    left_out: dict[str, str]
    best: str
    cheaper: str | None
    feature: str
    n_folds: int

    @property
    def metric(self) -> str:
        """The metric."""
        return self.comparison.metrics[0]

    @property
    def advice(self) -> str:
        """Which ranker to use, in a sentence."""
        baseline, contrast = self.comparison.baseline, self.comparison.contrasts.get(self.best, {}).get(self.metric)
        mean = f"{self.metric} {self.comparison.mean(self.best, self.metric):.4f}"
        if contrast is None:
            said = f"{mean}, and nothing that costs more is better"
        else:
            doubt = "" if contrast.adjusted_p < SIGNIFICANT else "which may be chance, "
            price = f"for {_times(self.prices[self.best])} times the CPU time of lambdamart"
            p = format_number(contrast.adjusted_p)
            said = f"{mean}, {contrast.difference:+.4f} to {baseline} ({doubt}p {p}), {price}"
        if self.cheaper is None:
            return f"Use {self.best}: {said}."
        share = self.prices[self.cheaper] / self.prices[self.best]
        costs = f"costs {share:.0%} of it" if share >= 0.005 else "costs next to nothing"
        return f"Use {self.best}: {said}; {self.cheaper} is not significantly worse and {costs}."

    def table(self) -> Grid:
        """A row per system: mean, difference to the best simple one with interval and p, and price, as texts."""
        rows = []
        for system in self.comparison.systems:
            one = self.comparison.contrasts.get(system, {}).get(self.metric)
            numbers = ["-"] * 3
            if one is not None:
                interval = "-" if math.isnan(one.low) else f"{one.low:+.4f} to {one.high:+.4f}"
                numbers = [f"{one.difference:+.4f}", interval, format_number(one.adjusted_p)]
            rows.append(
                [system, f"{self.comparison.mean(system, self.metric):.4f}", *numbers, _times(self.prices[system])]
            )
        heads = ["system", self.metric, f"to {self.comparison.baseline}", "95% interval", "p", "CPU time"]
        return heads, rows

    def notes(self) -> Iterator[str]:
        """What the columns mean, and what was left out."""
        folds = f"{self.n_folds} fold{'s' * (self.n_folds > 1)}"
        yield f"{folds}; {self.comparison.describe_queries()}; rule {self.comparison.rule.name}"
        yield "p: paired t-test over queries, Holm-adjusted; CPU time: of training, in that of lambdamart"
        yield f"{FEATURE}: {self.feature}, found on the training queries; stochastic: the preset of umart"
        for name, why in self.left_out.items():
            yield f"{name}: not tried, {why}"

    def blocks(self) -> Iterator[str | ShownTable]:
        """The table, its notes and the advice."""
        yield ShownTable(self.table())
        yield from self.notes()
        yield self.advice

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        kept = {name: value for name, value in vars(self).items() if name != "comparison"}
        return for_json(kept) | {"advice": self.advice} | self.comparison.to_dict()


def _times(price: float) -> str:
    return f"{price:.2g}"


def choose(
    data: Any,
    *,
    minutes: float = 10.0,
    metric: str = "ndcg@10",
    rule: str | Rule = "tierank",
    folds: int | None = None,
    seed: int = 0,
    n_jobs: int | None = None,
    progress: bool = False,
    **reading: Any,
) -> Recommendation:
    """Try rankers on your data, and say which one to use.

    Tried are, cheap ones first: the best single feature, ``LinearRanker``, ``LambdaMART``, ``UMart``, its preset
    ``stochastic``, ``Blend``, and with torch ``URank``, all with default settings. The first three are tried in any
    case; another one is, if the time that it will probably take fits into what is left of the budget.

    Parameters
    ----------
    data : path, table, RankingDataset or list
        As in ``cross_validate``: a fold trains on three fifths of the queries, validates on one and tests on one.
    minutes : float, default 10.0
        The time budget. A ranker that has begun is finished.
    metric : str, default "ndcg@10"
        The metric that decides.
    rule : str or Rule, default "tierank"
        A key of ``RULES``, or a ``Rule``.
    folds : int, optional
        Number of folds. Default: as many as it takes to test 1,000 queries, at most 5.
    seed : int, default 0
        The seed of the rankers.
    n_jobs : int, optional
        Number of processes. Default: one per core.
    progress : bool, default False
        Show a progress bar for each ranker.
    **reading
        Arguments of ``read``, for files and tables.

    Returns
    -------
    Recommendation
        The table, and the advice.

    Examples
    --------
    >>> import tierank
    >>> data = tierank.make_ranking(40, n_features=5, mean_length=10, max_length=20)
    >>> choice = tierank.choose(data, minutes=0.001, folds=1, n_jobs=1)
    >>> choice.comparison.systems
    ('one feature', 'linear', 'lambdamart')
    """
    end = time.monotonic() + 60 * Number(above=0).check("minutes", minutes)
    source = folds_of(data, **reading)
    if folds is not None:
        Integer(1, source.n_folds).check("folds", folds)
    with TemporaryDirectory(prefix="tierank-") as place:
        first = source.read(0)
        enough = min(source.n_folds, -(-_ENOUGH // first[2].n_queries))
        source = _kept(source, enough if folds is None else folds, Path(place, "data"))
        found = [_best_feature(source.read(fold), metric, rule) for fold in range(source.n_folds)]
        more: dict[str, Any] = {"seeds": [seed], "metrics": metric, "rule": rule, "out": Path(place, "run")}
        more |= {"n_jobs": n_jobs, "progress": progress}
        run = cross_validate([], source, scores={FEATURE: [scores for _, scores in found]}, **more)
        left_out, unit = {}, 0.0
        for name, (ranker, preset, price) in TRIED.items():
            if name == "urank" and not is_installed("torch"):
                left_out[name] = "as torch is not installed"
                continue
            needed = price * unit
            if name not in SIMPLE and time.monotonic() + needed > end:
                left = max(0.0, end - time.monotonic()) / 60
                left_out[name] = f"as it takes about {needed / 60:.1f} min, and {left:.1f} are left"
                continue
            start = time.monotonic()
            run = cross_validate({name: _ranker(ranker, preset)}, source, **more)
            unit = time.monotonic() - start if name == LAMBDAMART else unit
        return _choice(run, left_out, Counter(name for name, _ in found).most_common(1)[0][0])


def _ranker(name: str, preset: str | None) -> Ranker:
    return RANKERS[name]() if preset is None else RANKERS[name].from_preset(preset)


def _kept(source: Folds, n_folds: int, folder: Path) -> Folds:
    """The first folds; data in memory as files, which all processes read."""
    if isinstance(source, PartFolds):
        return replace(source, layout=source.layout[:n_folds]).keep(folder)
    return replace(source, n_folds=n_folds)


def _best_feature(fold: Fold, metric: str, rule: str | Rule) -> tuple[str, Floats]:
    """The feature that ranks training queries best, up or down, and its values in the test data as scores."""
    train, _, test = fold
    some = train.select(np.arange(min(train.n_queries, _SEARCHED)))
    best = best_single_feature(some, Judge(some, metric, rule))
    if best is None:
        raise DataError(argument="data", expected="a feature that is a number", got="categories alone")
    return f"{best.name}{'' if best.is_rising else ', lowest first'}", test.restore(best.scores(test))


def _choice(run: Run, left_out: dict[str, str], feature: str) -> Recommendation:
    """The comparison with the best simple system, and what is best and what is cheaper."""
    evaluations = {system: run.evaluation(system) for system in run.systems}
    metric = run.metrics[0]
    means = {system: one.mean(metric) for system, one in evaluations.items()}
    unit = run.cpu_seconds(LAMBDAMART)
    prices = {system: 0.0 if system == FEATURE else run.cpu_seconds(system) / unit for system in means}
    best = max(means, key=lambda system: means[system])
    others = compare_evaluations(evaluations, best).contrasts
    equal = [system for system, one in others.items() if one[metric].verdict != "worse"]
    cheapest = min([best, *equal], key=lambda system: prices[system])
    baseline = max(SIMPLE, key=lambda system: means[system])
    return Recommendation(
        comparison=compare_evaluations(evaluations, baseline),
        prices=prices,
        left_out=left_out,
        best=best,
        cheaper=None if cheapest == best else cheapest,
        feature=feature,
        n_folds=run.n_folds,
    )
