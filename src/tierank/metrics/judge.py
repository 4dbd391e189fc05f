"""The judge: the metrics of one data set under one rule, for any number of scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.arrays import Floats
from tierank.data.checks import as_array, as_numbers, shape_of
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.data.relevance import discounts_to, gain_levels
from tierank.errors import DataError, ParameterError
from tierank.kernels.ranking import Ranking, discounted_sum, exp2_gains, highest, rank
from tierank.metrics.formulas import METRICS, OF_ALL_QUERIES, OF_WHOLE_LISTS
from tierank.metrics.rules import RULES, Metric, Rule, Ties, as_metrics, as_rule, metric_name, parse_metric

# float64 holds all integers up to here.
_EXACT_TO = 2**53


def as_scores(scores: ArrayLike, n: int) -> Floats:
    """The scores of n documents as float64."""
    given = as_array(scores)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.shape != (n,):
        fix = "pass ranker.predict(data)" if hasattr(scores, "predict") else None
        got = shape_of(scores, given)
        raise DataError(argument="scores", expected=f"{n}, one per row of the data", got=got, fix=fix)
    numbers = np.ascontiguousarray(as_numbers(given, "scores"), np.float64)
    _check_distinct(given, numbers)
    return numbers


def _check_distinct(given: NDArray[Any], numbers: Floats) -> None:
    """Refuse scores that differ but are equal as float64: they would be judged as ties.

    >>> as_scores([2**53, 2**53 + 1], 2)
    Traceback (most recent call last):
    tierank.errors.DataError: scores: expected numbers that differ as float64 where they differ, got 9007199254740992
    and 9007199254740993; give their ranks, such as scipy.stats.rankdata(scores)
    """
    is_exact = given.dtype.kind in "bf" and given.dtype != np.longdouble
    if is_exact or (given.dtype.kind in "iu" and not (np.abs(numbers) >= _EXACT_TO).any()):
        return
    known = np.flatnonzero(~np.isnan(numbers))
    order = known[np.argsort(numbers[known], kind="stable")]
    exact = given[order].tolist()
    for (low, high), (below, above) in zip(pairwise(exact), pairwise(numbers[order]), strict=True):
        if below == above and low != high:
            expected, got = "numbers that differ as float64 where they differ", f"{low!s:.60} and {high!s:.60}"
            fix = "give their ranks, such as scipy.stats.rankdata(scores)"
            raise DataError(argument="scores", expected=expected, got=got, fix=fix)


class RankedLists:
    """Ranked documents as metrics read them: an array for each fact, in the order of the ranks.

    Facts are looked up for the ranked documents alone: mostly a small part of all, and shared by the metrics.
    """

    def __init__(
        self, judge: Judge, ranking: Ranking, levels: Floats | None = None, is_listed: NDArray[np.bool_] | None = None
    ) -> None:
        self._judge = judge
        self.starts, self._rows, _, self.tie_ends = ranking
        self._levels = levels
        self._is_listed = is_listed

    def sum(self, values: Floats, discounts: Floats, depth: int) -> Floats:
        """The sum of value times discount to this depth, for each query."""
        return discounted_sum(values, discounts, depth, self.starts, self.tie_ends)

    @cached_property
    def levels(self) -> Floats:
        """What the gain of each document is made of."""
        return self._of(self._judge.levels) if self._levels is None else self._levels

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Number of documents in the list of each query."""
        return self._judge.lengths if self._is_listed is None else self._judge.count(self._is_listed)

    @cached_property
    def ratings(self) -> Floats:
        """The rating of each document."""
        return self.levels if self._judge.levels is self._judge.ratings else self._of(self._judge.ratings)

    @cached_property
    def gains(self) -> Floats:
        """The gain of each document; infinite where float64 cannot hold it."""
        if self._judge.rule.gain == "exp2":
            return exp2_gains(self.levels, self.starts, np.zeros(len(self.starts) - 1))
        return self.levels

    @cached_property
    def relative_gains(self) -> Floats:
        """The gain of each document in units of the query's highest (exp2: of the query's highest, plus 1)."""
        tops = self._judge.tops
        if self._judge.rule.gain == "exp2":
            return exp2_gains(self.levels, self.starts, tops)
        units: Floats = np.repeat(np.where(tops > 0, tops, 1), np.diff(self.starts))
        return np.divide(self.levels, units)

    @cached_property
    def relevant(self) -> Floats:
        """1 for each relevant document, 0 for the others."""
        return self._judge.relevance(self.ratings)

    @cached_property
    def judged(self) -> Floats:
        """1 for each document with a rating, 0 for the others."""
        return self._of(self._judge.judged)

    @cached_property
    def unjudged(self) -> Floats:
        """1 for each document without a rating, 0 for the others."""
        return self._of(1 - self._judge.judged)

    def _of(self, values: Floats) -> Floats:
        found = np.take(values, self._rows, mode="clip")  # faster than checking rows that are known to be there
        # Documents that a run does not list stand behind those that it does, and count for nothing.
        return found if self._is_listed is None else np.where(self._is_listed[self._rows], found, 0.0)


class Judge:
    """Metrics of one data set under one rule, prepared for repeated evaluation of scores.

    Gains, ideal lists and counts are computed once, here; a call then costs little more than ranking the documents.

    Parameters
    ----------
    data : RankingDataset
        Data with ratings.
    metrics : str, callable, or list of them, optional
        Names such as ``"ndcg@10"``, or your own functions: ``metric(ratings, scores)`` gets the ratings and scores of
        one query and returns a number, or NaN if the query has no value. Default: those of the rule.
    rule : str or Rule, default "tierank"
        The rule of the metrics. What it says about empty queries and unjudged documents holds for your own metrics too.
    n_jobs : int, optional
        Number of threads; default one per core.

    Examples
    --------
    >>> data = RankingDataset([[0.0]] * 4, [0, 2, 1, 0], qid=[7, 7, 7, 8])
    >>> judge = Judge(data, ["ndcg@2", "mrr"])
    >>> judge([0.1, 0.3, 0.2, 0.0])
    {'ndcg@2': array([ 1., nan]), 'mrr': array([ 1., nan])}
    """

    def __init__(
        self,
        data: RankingDataset,
        metrics: Metric | Iterable[Metric] | None = None,
        rule: str | Rule = "tierank",
        *,
        n_jobs: int | None = None,
    ) -> None:
        check_dataset("data", data)
        self.data, self.rule, self.n_jobs = data, as_rule(rule), n_jobs
        ratings = np.ascontiguousarray(data.ratings, np.float64)
        if data.n_unjudged:
            ratings = np.where(data.is_judged, ratings, 0.0)
        levels = gain_levels(ratings, self.rule.gain)
        # Documents are stored in the order that breaks ties, so that one stable sort ranks them.
        self._order = _tie_order(data, levels, self.rule.ties)
        self.offsets = np.array(data.offsets, np.int64)
        is_condensed = self.rule.unjudged == "condense" and data.n_unjudged > 0
        if is_condensed:
            order = np.arange(data.n_documents) if self._order is None else self._order
            self._order = order[data.is_judged[order]]
            self.offsets = np.concatenate([np.zeros(1, np.int64), data.is_judged.cumsum()])[data.offsets]
        self.lengths = np.diff(self.offsets)
        self.longest = int(self.lengths.max())
        self.ratings = self._arrange(ratings)
        self.levels = self.ratings if levels is ratings else self._arrange(levels)
        self.tops = highest(self.levels, self.offsets)
        self.empty = (self.tops if levels is ratings else highest(self.ratings, self.offsets)) == 0

        asked = as_metrics(metrics, self.rule)
        self.metrics = tuple(asked)
        self._functions = {name: metric for name, metric in asked.items() if not isinstance(metric, str)}
        named = {metric: parse_metric(metric) for metric in asked.values() if isinstance(metric, str)}
        # Metrics of unjudged documents read whole lists, so they get a judge of their own.
        whole = [metric for metric, (name, _) in named.items() if is_condensed and name in OF_WHOLE_LISTS]
        self._whole = Judge(data, whole, replace(self.rule, unjudged="zero"), n_jobs=n_jobs) if whole else None
        cutoffs = {
            metric: (name, None if name == "map" and self.rule.ap_depth == "list" else k)
            for metric, (name, k) in named.items()
            if metric not in whole
        }
        self._depth = max((self.depth(k) for _, k in cutoffs.values()), default=1)  # no cutoff: whole lists
        self._measures = {metric: (name, METRICS[name](self, k)) for metric, (name, k) in cutoffs.items()}

    def __call__(self, scores: ArrayLike, is_listed: NDArray[np.bool_] | None = None) -> dict[str, Floats]:
        """The value of each metric for each query; NaN where the rule leaves a query out.

        Parameters
        ----------
        scores : array
            One score per document, **in the order of the data set**; ``evaluate`` takes them in the caller's order.
        is_listed : array of bool, optional
            Which documents the ranked lists contain; default all. The others count only for what could have been
            found: the ideal list, and the number of relevant documents.

        Returns
        -------
        dict of str to array
            One value per query for each metric.
        """
        values = as_scores(scores, self.data.n_documents)
        if is_listed is not None:
            values = np.where(is_listed, values, -np.inf)
        if np.isnan(values.min()):  # the lowest of numbers with a NaN is NaN
            row = self.data.source_rows[np.isnan(values).argmax()]
            raise DataError(argument="scores", expected="a number for every row", got=f"NaN in row {row}")
        found = {name: self._fill(name, self._each_query(metric, values)) for name, metric in self._functions.items()}
        if self.rule.ties == "document id":
            with np.errstate(over="ignore"):
                values = values.astype(np.float32).astype(np.float64)
        ties = self.rule.ties == "average"
        ranking = rank(self._arrange(values), self.offsets, self._depth, keep_ties=ties, n_jobs=self.n_jobs)
        lists = RankedLists(self, ranking, is_listed=None if is_listed is None else self._arrange(is_listed))
        found |= {metric: self._fill(name, measure(lists)) for metric, (name, measure) in self._measures.items()}
        found |= {} if self._whole is None else self._whole(scores, is_listed)
        return {metric: found[metric] for metric in self.metrics}

    def _each_query(self, metric: Callable[[Floats, Floats], float], scores: Floats) -> Floats:
        """The values of a caller's metric; NaN where it returns NaN."""
        # Copies: a function that sorts its arguments in place must not change the data or the caller's scores.
        ratings, scores = self.data.ratings.copy(), scores.copy()
        is_judged, offsets = self.data.is_judged, self.data.offsets
        if self.data.n_unjudged and self.rule.unjudged == "zero":
            ratings = np.where(is_judged, ratings, 0.0)
        elif self.data.n_unjudged:
            ratings, scores, offsets = ratings[is_judged], scores[is_judged], self.offsets
        spans = pairwise(offsets.tolist())
        # A condensed list may be empty; it then has no value, as no document of the query has a rating above 0.
        values = [metric(ratings[start:end], scores[start:end]) if end > start else 0.0 for start, end in spans]
        return np.array([_as_value(value, metric) for value in values])

    @property
    def n_unjudged(self) -> int:
        """Number of documents without a rating."""
        return self.data.n_unjudged

    @property
    def n_empty(self) -> int:
        """Number of queries without a rating above 0."""
        return int(self.empty.sum())

    def depth(self, k: int | None) -> int:
        """The number of ranks to read for a cutoff, at most the length of the longest list."""
        return self.longest if k is None else min(k, self.longest)

    @cached_property
    def err_tops(self) -> Floats:
        """The top rating of ERR, for each query."""
        of, top = self.rule.err_max, float(self.ratings.max(initial=0.0))
        if of is None:
            known = ", ".join(sorted(name for name, rule in RULES.items() if rule.err_max is not None))
            raise ParameterError(argument="rule", expected=f"one with ERR: {known}", got=repr(self.rule.name))
        if of == "query":
            return highest(self.ratings, self.offsets)
        if isinstance(of, (int, float)) and top > of:
            fix = "take another rule, or this one with another err_max: dataclasses.replace(rule, err_max=...)"
            expected = f"ratings up to {of} for err by rule {self.rule.name!r}"
            raise DataError(argument="data", expected=expected, got=f"{top:g}", fix=fix)
        return np.full(len(self.lengths), top if of == "data" else of, np.float64)

    @cached_property
    def ideal(self) -> RankedLists:
        """The documents of each query by gain, highest first."""
        ranking = rank(self.levels, self.offsets, self._depth, keep_ties=False, n_jobs=self.n_jobs)
        return RankedLists(self, ranking, ranking.scores)

    def relevance(self, ratings: Floats) -> Floats:
        """1 for each rating that makes a document relevant, 0 for the others."""
        return ((ratings > 0) & (ratings >= self.rule.relevant_from)).astype(np.float64)

    @cached_property
    def n_relevant(self) -> NDArray[np.int64]:
        """Number of relevant documents of each query."""
        return self.count(self.relevance(self.ratings))

    @cached_property
    def judged(self) -> Floats:
        """1 for each document with a rating, 0 for the others."""
        return self._arrange(self.data.is_judged.astype(np.float64))

    def count(self, marks: NDArray[Any]) -> NDArray[np.int64]:
        """Number of documents of each query that are marked with 1."""
        return np.diff(np.concatenate([[0], marks.cumsum()])[self.offsets]).astype(np.int64)

    @cached_property
    def discounts(self) -> Floats:
        """1 / log2(1 + rank) for rank 1, 2, ..."""
        return discounts_to(self.longest)

    @cached_property
    def persistence(self) -> Floats:
        """(1 - p) p^(rank - 1) for rank 1, 2, ..., with the persistence p of the rule."""
        return np.asarray((1 - self.rule.persistence) * self.rule.persistence ** np.arange(float(self.longest)))

    @cached_property
    def undiscounted(self) -> Floats:
        """1 for every rank."""
        return np.ones(self.longest)

    def _arrange(self, values: NDArray[Any]) -> NDArray[Any]:
        return values if self._order is None else np.take(values, self._order)

    def _fill(self, name: str, values: Floats) -> Floats:
        if self.rule.empty is None:
            values[self.empty] = np.nan
        elif name not in OF_ALL_QUERIES:
            values[self.empty] = self.rule.empty.get(name, 0.0)
        return values


def _tie_order(data: RankingDataset, levels: Floats, ties: Ties) -> NDArray[np.int64] | None:
    """The rows of each query in the order in which ties are ranked; None for the order of the rows."""
    if ties in ("average", "input"):
        return None
    if ties == "worst":
        return np.lexsort((levels, data.query_of_row))
    ids = data.document_ids
    if ids is None:
        return np.lexsort((-np.arange(data.n_documents), data.query_of_row))
    by_query = (sorted(range(*span), key=ids.__getitem__, reverse=True) for span in pairwise(data.offsets.tolist()))
    return np.concatenate(list(by_query)).astype(np.int64)


def _as_value(value: object, metric: Metric) -> float:
    """The value of a caller's metric for a query: a finite number, or NaN if the query has none."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if math.isinf(number):
        expected = f"{metric_name(metric)}(ratings, scores) to return one number for a query, NaN if it has none"
        raise ParameterError(argument="metrics", expected=expected, got=repr(value))
    return number


def check_defined(means: Mapping[str, float], argument: str = "metrics") -> None:
    """Raise ``ParameterError`` if a metric has no value for any query: a caller's function that returns only NaN."""
    undefined = next((metric for metric, mean in means.items() if math.isnan(mean)), None)
    if undefined is not None:
        expected = f"{undefined}(ratings, scores) to return a number for at least one query"
        raise ParameterError(argument=argument, expected=expected, got="NaN for all of them")


def ordered_mean(values: Floats) -> float:
    """The mean of the values of some queries: the same bits for queries in any order; NaN if there is none.

    >>> ordered_mean(np.array([0.1, 0.2, 0.3])) == ordered_mean(np.array([0.3, 0.2, 0.1]))
    True
    """
    return float(np.sort(values).mean()) if len(values) else math.nan
