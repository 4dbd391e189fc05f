"""Judge: the metrics of one data set under one rule, for any number of scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.dataset import RankingDataset, check_dataset
from tierank.errors import DataError, ParameterError
from tierank.kernels.ranking import highest, rank
from tierank.metrics.formulas import FILLED_AS, METRICS, OF_ALL_QUERIES, OF_WHOLE_LISTS
from tierank.metrics.lists import Lists
from tierank.metrics.names import Metric, as_metrics, metric_name, parse_metric
from tierank.metrics.rules import RULES, Rule, Ties, as_rule
from tierank.metrics.scores import as_scores
from tierank.relevance import discounts_to, gain_levels
from tierank.types import Floats


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

    data: RankingDataset
    rule: Rule
    n_jobs: int | None
    metrics: tuple[str, ...]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    longest: int
    ratings: Floats
    levels: Floats
    tops: Floats
    empty: NDArray[np.bool_]

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
            self._leave_out_unjudged()
        self.lengths = np.diff(self.offsets)
        self.longest = int(self.lengths.max())
        self.ratings = self._arrange(ratings)
        self.levels = self.ratings if levels is ratings else self._arrange(levels)
        self.tops = highest(self.levels, self.offsets)
        self.empty = (self.tops if levels is ratings else highest(self.ratings, self.offsets)) == 0
        self._prepare(as_metrics(metrics, self.rule), is_condensed)

    def _leave_out_unjudged(self) -> None:
        is_judged = self.data.is_judged
        order = np.arange(self.data.n_documents) if self._order is None else self._order
        self._order = order[is_judged[order]]
        self.offsets = np.concatenate([np.zeros(1, np.int64), is_judged.cumsum()])[self.data.offsets]

    def _prepare(self, asked: dict[str, Metric], is_condensed: bool) -> None:
        """Sort the metrics into callers' own, those that need a judge of the whole lists, and all others."""
        self.metrics = tuple(asked)
        self._own = {name: metric for name, metric in asked.items() if not isinstance(metric, str)}
        parsed = {metric: self._parse(metric) for metric in asked.values() if isinstance(metric, str)}
        apart = [metric for metric, (name, _) in parsed.items() if is_condensed and name in OF_WHOLE_LISTS]
        whole = replace(self.rule, unjudged="zero")
        self._whole = Judge(self.data, apart, whole, n_jobs=self.n_jobs) if apart else None
        parsed = {metric: one for metric, one in parsed.items() if metric not in apart}
        self._depth = max((self.depth(k) for _, k in parsed.values()), default=1)
        self._measures = {metric: (name, METRICS[name](self, k)) for metric, (name, k) in parsed.items()}

    def __call__(self, scores: ArrayLike) -> dict[str, Floats]:
        """The value of each metric for each query; NaN where the rule leaves a query out.

        Parameters
        ----------
        scores : array
            One score per document, **in the order of the data set**; ``evaluate`` takes them in the caller's order.

        Returns
        -------
        dict of str to array
            One value per query for each metric.
        """
        values = as_scores(scores, self.data.n_documents)
        if np.isnan(values.min()):  # the lowest of numbers with a NaN is NaN
            row = self.data.source_rows[np.isnan(values).argmax()]
            raise DataError(f"scores: expected a number for every row, got NaN in row {row}")
        own = {name: self._fill(name, self._each_query(metric, values)) for name, metric in self._own.items()}
        if self.rule.ties == "document id":
            with np.errstate(over="ignore"):
                values = values.astype(np.float32).astype(np.float64)
        ties = self.rule.ties == "average"
        lists = Lists(self, rank(self._arrange(values), self.offsets, self._depth, keep_ties=ties, n_jobs=self.n_jobs))
        found = {metric: self._fill(name, measure(lists)) for metric, (name, measure) in self._measures.items()}
        found |= {} if self._whole is None else self._whole(scores)
        return {metric: own[metric] if metric in own else found[metric] for metric in self.metrics}

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
        return np.broadcast_to(self._err_tops(), len(self.lengths)).astype(np.float64)

    @cached_property
    def ideal(self) -> Lists:
        """The documents of each query by gain, highest first."""
        ranking = rank(self.levels, self.offsets, self._depth, keep_ties=False, n_jobs=self.n_jobs)
        return Lists(self, ranking, ranking.scores)

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

    @cached_property
    def top_gain(self) -> tuple[float, Floats]:
        """The highest gain of the data in its own unit, and in that the unit of each query's ``relative_gains``."""
        top = float(self.tops.max())
        if self.rule.gain == "exp2":
            return -float(np.expm1(-np.log(2.0) * top)), np.exp2(self.tops - top)
        return float(top > 0), np.where(self.tops > 0, self.tops, 1.0) / (top or 1.0)

    def count(self, marks: Floats) -> NDArray[np.int64]:
        """Number of documents of each query that are marked with 1."""
        return np.diff(np.concatenate([[0.0], marks.cumsum()])[self.offsets]).astype(np.int64)

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

    def _err_tops(self) -> float | Floats:
        """The top rating of ERR, for all queries or for each."""
        of, top = self.rule.err_max, float(self.ratings.max(initial=0.0))
        if of is None:
            known = ", ".join(sorted(name for name, rule in RULES.items() if rule.err_max is not None))
            raise ParameterError(f"rule {self.rule.name!r} has no ERR; these have: {known}")
        if of == "query":
            return highest(self.ratings, self.offsets)
        if of == "data":
            return top
        if top > float(of):
            raise DataError(
                f"err: rule {self.rule.name!r} expects ratings up to {of}, got {top:g};"
                " take another rule, or this one with another err_max: dataclasses.replace(rule, err_max=...)"
            )
        return float(of)

    def _parse(self, metric: str) -> tuple[str, int | None]:
        name, k = parse_metric(metric)
        return name, None if name == "map" and self.rule.ap_depth == "list" else k

    def _arrange(self, values: Floats) -> Floats:
        return values if self._order is None else np.take(values, self._order)

    def _fill(self, name: str, values: Floats) -> Floats:
        if self.rule.empty is None:
            values[self.empty] = np.nan
        elif name not in OF_ALL_QUERIES:
            values[self.empty] = self.rule.empty.get(FILLED_AS.get(name, name), 0.0)
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
    return np.concatenate(
        [
            sorted(range(start, end), key=ids.__getitem__, reverse=True)
            for start, end in zip(data.offsets[:-1], data.offsets[1:], strict=True)
        ]
    ).astype(np.int64)


def _as_value(value: object, metric: Metric) -> float:
    """The value of a caller's metric for a query: a finite number, or NaN if the query has none."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if math.isinf(number):
        raise ParameterError(
            argument="metrics",
            expected=f"{metric_name(metric)}(ratings, scores) to return one number for a query, NaN if it has none",
            got=repr(value),
        )
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
