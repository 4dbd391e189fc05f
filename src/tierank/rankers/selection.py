"""Model selection: metrics on validation data, and the best round by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.data.dataset import RankingDataset
from tierank.data.team import Team
from tierank.errors import DataError
from tierank.export import StandardisedMean
from tierank.metrics import Judge, Rule, as_rule, check_defined, ordered_mean

# Scores of documents -> metrics of each query.
Judging = Callable[[NDArray[np.float64]], Mapping[str, NDArray[np.float64]]]


class Selection:
    """Keeps the best round by an ordered list of metrics.

    A round is better than the best so far if its first metric is higher by more than the tolerance, or equal within it
    and the second is higher, and so on.

    >>> selection = Selection(tolerance=1e-6)
    >>> [selection.is_better(values) for values in ((0.5, 0.4), (0.5, 0.45), (0.49, 0.9), (0.5, 0.45))]
    [True, True, False, False]
    """

    def __init__(self, tolerance: float = 1e-6, best: Sequence[float] | None = None) -> None:
        self.tolerance, self.best = tolerance, best

    def is_better(self, values: Sequence[float]) -> bool:
        """Whether these are the best values so far; if so, they become the best."""
        if self.best is None or self._first_difference(values) > 0:
            self.best = tuple(values)
            return True
        return False

    def _first_difference(self, values: Sequence[float]) -> float:
        differences = (new - old for new, old in zip(values, self.best or (), strict=True))
        return next((difference for difference in differences if abs(difference) > self.tolerance), 0.0)


class ShownJudge:
    """The judge of lists with clicks and propensities: lists are weighted by the mean 1 / propensity of their clicks.

    For lists with one click, this is the self-normalised inverse propensity estimate of the metric. Values are scaled
    so that their plain mean over lists is the weighted mean.
    """

    def __init__(self, valid: RankingDataset, judge: Judge, team: Team) -> None:
        self.judge = judge
        clicks, starts = valid.ratings, valid.offsets[:-1]
        totals = np.add.reduceat(clicks, starts)
        weights = np.add.reduceat(clicks / np.asarray(valid.propensity), starts) / np.where(totals > 0, totals, 1.0)
        is_counted = totals > 0
        total, n = team.all_reduce(np.array([np.sort(weights[is_counted]).sum(), is_counted.sum()], np.float64))
        self.weights = weights * (n / total)

    def __call__(self, scores: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """The metrics of each list, times its weight."""
        return {metric: values * self.weights for metric, values in self.judge(scores).items()}


def make_judge(
    valid: RankingDataset,
    select_by: str | Sequence[Any],
    rule: str | Rule,
    n_jobs: int | None,
    team: Team | None = None,
) -> Judging:
    """The judge of validation data. Raises ``DataError`` if no query can be judged.

    With a ``team`` these data are the part of this process, and the other parts count too.
    """
    rule, team = as_rule(rule), team or Team()
    if team.size > 1 and rule.err_max == "data":
        rule = replace(rule, err_max=max(team.all_gather(float(np.fmax.reduce(valid.ratings, initial=0.0)))) or 1.0)
    judge = Judge(valid, [select_by] if isinstance(select_by, str) else list(select_by), rule, n_jobs=n_jobs)
    if all(team.all_gather(judge.n_empty == valid.n_queries)):
        raise DataError(
            argument="valid", expected="at least one query with a rating above 0 to choose the model by", got="none"
        )
    return judge if valid.propensity is None else ShownJudge(valid, judge, team)


def compared_by(select_by: Sequence[Any], select_with: Sequence[Any] | None = None) -> tuple[Any, ...]:
    """The metrics of ``select_by``, and others that are averaged with the first of them, each once.

    By default NDCG@10 has NDCG and MAP beside it: the mean of the three has less noise on a few hundred queries.

    >>> compared_by(("ndcg@10",)), compared_by(("err@10",)), compared_by(("ndcg@10", "map"), ("map", "mrr"))
    (('ndcg@10', 'ndcg', 'map'), ('err@10',), ('ndcg@10', 'map', 'mrr'))
    """
    if select_with is None:
        select_with = ("ndcg", "map") if tuple(select_by) == ("ndcg@10",) else ()
    return tuple(dict.fromkeys((*select_by, *select_with)))


def reads_row_order(select_by: str | Sequence[Any], rule: str | Rule) -> bool:
    """Whether metrics may depend on the order of the rows: where scores are equal, or in the caller's own functions.

    >>> reads_row_order(["ndcg@10"], "tierank"), reads_row_order(["ndcg@10"], "letor")
    (False, True)
    """
    metrics = [select_by] if isinstance(select_by, str) else select_by
    return as_rule(rule).ties in ("input", "document id") or any(callable(metric) for metric in metrics)


def means_of(per_query: Mapping[str, NDArray[np.float64]], team: Team | None = None) -> dict[str, float]:
    """The mean of each metric over the queries where it is defined, of all processes. Refused if it is not finite.

    >>> means_of({"ndcg@1": np.array([1.0, np.nan, 0.5])})
    {'ndcg@1': 0.75}
    """
    known = {metric: values[~np.isnan(values)] for metric, values in per_query.items()}
    if team is None or team.size == 1:
        means = {metric: ordered_mean(values) for metric, values in known.items()}
    else:
        totals = team.all_reduce(np.array([[np.sort(values).sum(), len(values)] for values in known.values()]))
        means = {metric: float(total / n) if n else math.nan for metric, (total, n) in zip(known, totals, strict=True)}
    check_defined(means, "select_by")
    return means


def mean_of_standardised(scores: Sequence[NDArray[np.float64]], data: RankingDataset) -> NDArray[np.float64]:
    """The mean of several scores, each standardised within each query; see ``StandardisedMean``."""
    total, query, starts, lengths = np.zeros(data.n_documents), data.query_of_row, data.offsets[:-1], data.lengths
    for one in scores:
        order = np.lexsort((one, query))  # sums of sorted numbers are the same bits for rows in any order
        centred = one - (np.add.reduceat(one[order], starts) / lengths)[query]
        spread = np.sqrt(np.add.reduceat(centred[order] ** 2, starts) / lengths)
        total += centred / _that_counts(spread, np.maximum.reduceat(abs(one), starts))[query]
    if len(scores) == 1:
        return total
    mean = total / len(scores)
    is_left = np.maximum.reduceat(abs(mean), starts) > StandardisedMean.CANCELLED
    return np.where(is_left[query], mean, 0.0)


def spread_of(scores: NDArray[np.float64]) -> float:
    """The standard deviation of the scores of one query, or infinity; see ``StandardisedMean``."""
    return float(_that_counts(scores.std(), abs(scores).max()))


def _that_counts(spread: Any, largest: Any) -> NDArray[np.float64]:
    """The deviations, or infinity where rounding alone could have made them: what is divided by that is 0."""
    return np.where(spread > StandardisedMean.ROUNDING * largest, spread, np.inf)
