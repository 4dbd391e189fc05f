"""Metrics, the rules that fix what they mean, and the judge that applies both to scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.checks import as_array, as_numbers, shape_of
from tierank.dataset import RankingDataset, check_dataset
from tierank.errors import DataError, ParameterError
from tierank.kernels.ranking import (
    Ranking,
    bound_ratio,
    cascade,
    discounted_sum,
    exp2_gains,
    highest,
    precision_sum,
    preference_sum,
    rank,
)
from tierank.relevance import GAINS, Gain, as_gain, discounts_to, gain_levels
from tierank.settings import Number
from tierank.types import Floats

# Maps ranked lists to one value per query.
Measure = Callable[["Lists"], Floats]

Ties = Literal["average", "input", "worst", "document id"]
Unjudged = Literal["zero", "condense"]
ErrMax = Literal["data", "query"] | float | None

# A name such as "ndcg@10", or a caller's function of the ratings and scores of one query.
Metric = str | Callable[[Floats, Floats], float]

WHY_LEFT_OUT = "no rating above 0"

_TIES = {
    "average": "averaged over all their orders",
    "input": "in input order",
    "worst": "lower gain first",
    "document id": "by document id, descending",
}


# A metric is a function of the judge, which knows the ratings, and of the cutoff k (None: the whole list). It does the
# work that does not depend on the scores, and returns a function that is applied to each ranking.


def dcg(judge: Judge, k: int | None) -> Measure:
    """DCG@k = sum over ranks r <= k of gain_r / log2(1 + r)."""
    depth = judge.depth(k)

    def measure(lists: Lists) -> Floats:
        return lists.sum(lists.gains, judge.discounts, depth)

    if not np.isfinite(measure(judge.ideal)).all():
        raise DataError(
            f"dcg: ratings up to {judge.ratings.max():g} have gains beyond what float64 can hold;"
            " use ndcg, which has no such limit, or a rule with other gains"
        )
    return measure


def ndcg(judge: Judge, k: int | None) -> Measure:
    """NDCG@k = DCG@k / the highest DCG@k of any order of the documents; 0 if no document has a gain."""
    depth = judge.depth(k)
    best = judge.ideal.sum(judge.ideal.relative_gains, judge.discounts, depth)
    if judge.rule.short_ndcg == "zero" and k is not None:
        best[judge.lengths < k] = np.inf
    best[best == 0] = np.inf

    def measure(lists: Lists) -> Floats:
        ratio = lists.sum(lists.relative_gains, judge.discounts, depth) / best
        return np.minimum(ratio, 1, out=ratio)  # averaged ties can round to 1 + 2e-16

    return measure


def err(judge: Judge, k: int | None) -> Measure:
    """ERR@k = sum over ranks r <= k of 1/r * R_r * product over i < r of (1 - R_i), with R = (2^rating - 1) / 2^max."""
    depth, tops = judge.depth(k), judge.err_tops
    return lambda lists: cascade(exp2_gains(lists.ratings, lists.starts, tops), depth, lists.starts, lists.tie_ends)


def average_precision(judge: Judge, k: int | None) -> Measure:
    """AP@k = sum over ranks r <= k with a relevant document of precision@r, / min(k, relevant) or / relevant.

    Its mean over the queries is MAP@k, hence the name of the metric.
    """
    depth, divisor = judge.depth(k), judge.n_relevant
    if judge.rule.ap_divisor == "min(k, relevant)":
        divisor = np.minimum(divisor, depth)
    divisor = np.maximum(divisor, 1)
    return lambda lists: precision_sum(lists.relevant, depth, lists.starts, lists.tie_ends) / divisor


def mrr(judge: Judge, k: int | None) -> Measure:
    """RR@k = 1 / rank of the first relevant document, 0 if that is beyond k; its mean over the queries is MRR@k."""
    depth = judge.depth(k)
    return lambda lists: cascade(lists.relevant, depth, lists.starts, lists.tie_ends)


def precision(judge: Judge, k: int | None) -> Measure:
    """Precision@k = relevant documents up to rank k, / k or / min(k, n)."""
    depth, divisor = judge.depth(k), judge.lengths if k is None else np.full_like(judge.lengths, k)
    if judge.rule.precision_divisor == "min(k, n)":
        divisor = np.minimum(divisor, judge.lengths)
    divisor = np.maximum(divisor, 1)
    return lambda lists: lists.sum(lists.relevant, judge.undiscounted, depth) / divisor


def recall(judge: Judge, k: int | None) -> Measure:
    """Recall@k = relevant documents up to rank k, / relevant documents."""
    depth, divisor = judge.depth(k), np.maximum(judge.n_relevant, 1)
    return lambda lists: lists.sum(lists.relevant, judge.undiscounted, depth) / divisor


def bpref(judge: Judge, k: int | None) -> Measure:
    """Bpref = mean over relevant documents of 1 - min(judged non-relevant documents above, R) / min(R, N).

    R documents are relevant, N are judged and not relevant. Unjudged documents have no effect. It has no cutoff.
    """
    counts = judge.n_relevant, judge.count(judge.judged) - judge.n_relevant
    divisor = np.maximum(judge.n_relevant, 1)
    return lambda lists: preference_sum(lists.relevant, lists.judged, *counts, lists.starts, lists.tie_ends) / divisor


def rbp(judge: Judge, k: int | None) -> Measure:
    """RBP@k = (1 - p) * sum over ranks r <= k with a relevant document of p^(r - 1), with the rule's persistence p."""
    depth = judge.depth(k)
    return lambda lists: lists.sum(lists.relevant, judge.persistence, depth)


def rbp_residual(judge: Judge, k: int | None) -> Measure:
    """How much RBP@k could rise if all unjudged documents, and all below rank k or the end of the list, were relevant.

    (1 - p) * sum over ranks r <= k with an unjudged document of p^(r - 1), + p^min(k, n).
    """
    depth = judge.depth(k)
    below = judge.rule.persistence ** np.minimum(judge.lengths, depth)
    return lambda lists: lists.sum(1 - lists.judged, judge.persistence, depth) + below


def judged_share(judge: Judge, k: int | None) -> Measure:
    """Judged@k = judged documents up to rank k, / min(k, n)."""
    depth = judge.depth(k)
    divisor = np.maximum(np.minimum(judge.lengths, depth), 1)
    return lambda lists: lists.sum(lists.judged, judge.undiscounted, depth) / divisor


def ndcg_lower(judge: Judge, k: int | None) -> Measure:
    """The lowest NDCG@k that any ratings of the unjudged documents give: each 0 or a rating that is in the data.

    The ideal changes with these ratings too.
    """
    return _bound(judge, k, upper=False)


def ndcg_upper(judge: Judge, k: int | None) -> Measure:
    """The highest NDCG@k that any ratings of the unjudged documents give: each 0 or a rating that is in the data.

    The ideal changes with these ratings too.
    """
    return _bound(judge, k, upper=True)


def _bound(judge: Judge, k: int | None, *, upper: bool) -> Measure:
    if judge.n_unjudged and judge.rule.ties == "worst":
        raise ParameterError(
            argument="metrics",
            expected="metrics other than bounds of NDCG with this rule, which ranks tied documents by their gains",
            got=f"rule {judge.rule.name!r}",
        )
    if judge.n_unjudged and judge.levels[judge.judged == 0].max() > 0:
        raise ParameterError(
            argument="metrics",
            expected="metrics other than bounds of NDCG with this rule, in which documents of rating 0 have a gain",
            got=f"rule {judge.rule.name!r}",
        )
    depth = judge.depth(k)
    top, units = judge.top_gain
    n_unjudged = judge.lengths - judge.count(judge.judged)
    facts = judge.ideal.relative_gains, judge.ideal.starts, n_unjudged, units, top, judge.discounts, depth
    is_short = judge.lengths < (k or 0) if judge.rule.short_ndcg == "zero" else np.zeros(len(judge.lengths), bool)

    def measure(lists: Lists) -> Floats:
        ratios = bound_ratio(upper, lists.relative_gains, lists.judged, lists.starts, lists.tie_ends, *facts)
        return np.where(is_short, 0.0, ratios)

    return measure


METRICS: dict[str, Callable[[Judge, int | None], Measure]] = {
    "ndcg": ndcg,
    "err": err,
    "map": average_precision,
    "mrr": mrr,
    "precision": precision,
    "recall": recall,
    "dcg": dcg,
    "rbp": rbp,
    "bpref": bpref,
    "judged": judged_share,
    "rbp_residual": rbp_residual,
    "ndcg_lower": ndcg_lower,
    "ndcg_upper": ndcg_upper,
}

# Metrics that have no cutoff.
_UNCUT = ("bpref",)
# Metrics of the effect of unjudged documents: they read whole lists even if the others read condensed lists.
_OF_WHOLE_LISTS = ("judged", "rbp_residual", "ndcg_lower", "ndcg_upper")
# Metrics that have a value for queries with no rating above 0, unless the rule leaves such queries out.
_OF_ALL_QUERIES = ("judged", "rbp_residual")
# Metrics that have the value of another one for such queries.
_FILLED_AS = {"ndcg_lower": "ndcg", "ndcg_upper": "ndcg"}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What the metrics mean: every choice on which evaluation tools differ. ``RULES`` has the predefined rules.

    The defaults are those of the rule ``tierank``. To make your own rule, start from a predefined one, as in the
    example.

    Parameters
    ----------
    name : str
        The name in tables.
    gain : str, list, mapping or function, default "exp2"
        ``"exp2"``: 2^r - 1; ``"linear"``: r; a list with the gains of the ratings 0, 1, 2, ...; a mapping from ratings
        to gains; or a function from an array of ratings to gains.
    ties : {"average", "input", "worst", "document id"}, default "average"
        Documents with the same score. ``"average"``: the expected value over all their orders; ``"input"``: the order
        of the rows; ``"worst"``: lower gain first; ``"document id"``: by id, descending, with scores in single
        precision, as trec_eval does (without ids the row number is the id, so later rows come first).
    empty : mapping of str to float, optional
        The value of each metric for queries with no rating above 0; metrics that it does not name get 0. None leaves
        such queries out (NaN).
    err_max : {"data", "query"}, float or None, default "data"
        The top rating of ERR: the highest of the data set, of each query, or a number. None: the rule has no ERR.
    relevant_from : float, default 0
        map, mrr, precision and recall count documents with this rating or a higher one as relevant, if it is above 0.
    ap_divisor : {"min(k, relevant)", "relevant"}, default "min(k, relevant)"
        What AP@k is divided by.
    ap_depth : {"k", "list"}, default "k"
        How deep map@k looks; with ``"list"`` k is ignored.
    precision_divisor : {"k", "min(k, n)"}, default "k"
        What precision@k is divided by; n is the number of documents in the list.
    short_ndcg : {"kept", "zero"}, default "kept"
        ndcg@k of a list with fewer than k documents: its value, or 0.
    unjudged : {"zero", "condense"}, default "zero"
        Documents without a rating (NaN). ``"zero"``: they count as not relevant, as in trec_eval; ``"condense"``: they
        are taken out of the lists first. ``judged``, ``rbp_residual`` and the bounds of NDCG always read the whole
        list.
    persistence : float, default 0.8
        The persistence of rbp: the chance that a reader continues from one document to the next.

    Examples
    --------
    >>> from dataclasses import replace
    >>> shop = replace(RULES["tierank"], name="shop", gain={0: 0, 1: 1, 2: 5}, relevant_from=2)
    >>> print(shop.describe())
    shop: gain {0: 0, 1: 1, 2: 5}; discount 1/log2(1 + rank); tied scores averaged over all their orders; queries
    with no rating above 0 left out; ERR by the highest rating of the data set; relevant: rating from 2 up; AP@k
    divided by min(k, relevant); precision@k divided by k
    """

    name: str
    gain: Gain = "exp2"
    ties: Ties = "average"
    empty: Mapping[str, float] | None = None
    err_max: ErrMax = "data"
    relevant_from: float = 0.0
    ap_divisor: Literal["min(k, relevant)", "relevant"] = "min(k, relevant)"
    ap_depth: Literal["k", "list"] = "k"
    precision_divisor: Literal["k", "min(k, n)"] = "k"
    short_ndcg: Literal["kept", "zero"] = "kept"
    unjudged: Unjudged = "zero"
    persistence: float = 0.8

    def __post_init__(self) -> None:
        Number(above=0, below=1).check("persistence", self.persistence)
        for setting, known in _SETTINGS.items():
            if (value := getattr(self, setting)) not in known:
                raise ParameterError.unknown(setting, value, known)
        object.__setattr__(self, "gain", as_gain(self.gain))  # rules are compared, and arrays cannot be
        if isinstance(self.err_max, str) and self.err_max not in ("data", "query"):
            raise ParameterError.unknown("err_max", self.err_max, ("data", "query"))
        for metric in self.empty or {}:
            if metric not in METRICS:
                raise ParameterError.unknown("metric", metric, METRICS)

    def describe(self) -> str:
        """The rule in words."""
        relevant = f"from {self.relevant_from:g} up" if self.relevant_from > 0 else "above 0"
        parts = [
            f"gain {self._gain_words()}",
            "discount 1/log2(1 + rank)",
            f"tied scores {_TIES[self.ties]}",
            f"queries with {WHY_LEFT_OUT} {self._empty_words()}",
            self._err_words(),
            f"relevant: rating {relevant}",
            "map reads the whole list" if self.ap_depth == "list" else f"AP@k divided by {self.ap_divisor}",
            f"precision@k divided by {self.precision_divisor}",
        ]
        if self.short_ndcg == "zero":
            parts.append("NDCG@k of a list shorter than k is 0")
        if self.unjudged == "condense":
            parts.append("unjudged documents left out")
        if self.persistence != Rule.persistence:
            parts.append(f"RBP with persistence {self.persistence:g}")
        return f"{self.name}: {'; '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """The rule for JSON."""
        settings = {name: getattr(self, name) for name in self.__dataclass_fields__}
        empty = None if self.empty is None else dict(self.empty)
        return settings | {"gain": self._gain_words(), "empty": empty}

    def _gain_words(self) -> str:
        if isinstance(self.gain, str):
            return GAINS[self.gain]
        if isinstance(self.gain, tuple):
            return f"[{', '.join(f'{gain:g}' for gain in self.gain)}]"
        return str(dict(self.gain)) if isinstance(self.gain, Mapping) else getattr(self.gain, "__name__", "of the user")

    def _empty_words(self) -> str:
        if self.empty is None:
            return "left out"
        if not self.empty:
            return "count as 0"
        return "count as " + ", ".join(f"{metric} {value:g}" for metric, value in self.empty.items()) + ", others 0"

    def _err_words(self) -> str:
        if self.err_max is None:
            return "no ERR"
        highest = {"data": "the highest rating of the data set", "query": "the highest rating of the query"}
        return f"ERR by {highest.get(str(self.err_max), f'a top rating of {self.err_max}')}"


# The settings of a rule that take one of a few values.
_SETTINGS: dict[str, tuple[str, ...]] = {
    "ties": get_args(Ties),
    "ap_divisor": ("min(k, relevant)", "relevant"),
    "ap_depth": ("k", "list"),
    "precision_divisor": ("k", "min(k, n)"),
    "short_ndcg": ("kept", "zero"),
    "unjudged": get_args(Unjudged),
}

_ZERO: dict[str, float] = {}

RULES: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(name="tierank"),
        Rule(name="wsdm20", ties="input", err_max="query"),
        Rule(name="letor", ties="input", empty=_ZERO),
        Rule(name="mslr", ties="input", empty=_ZERO, relevant_from=2, short_ndcg="zero"),
        Rule(name="lightgbm", ties="input", empty={"ndcg": 1, "map": 1}, err_max=None),
        Rule(name="xgboost", ties="input", empty={"ndcg": 1, "map": 1}, err_max=None, precision_divisor="min(k, n)"),
        Rule(
            name="catboost",
            ties="worst",
            empty={"ndcg": 1, "recall": 1},
            err_max=None,
            precision_divisor="min(k, n)",
        ),
        Rule(name="sklearn", gain="linear", empty=_ZERO, err_max=None),
        Rule(name="trec_eval", gain="linear", ties="document id", empty=_ZERO, err_max=None, ap_divisor="relevant"),
        Rule(name="ranklib", ties="input", empty=_ZERO, err_max=4, ap_depth="list", precision_divisor="min(k, n)"),
        Rule(name="yahoo", ties="input", empty={"ndcg": 0.5}),
    )
}


def as_rule(rule: str | Rule) -> Rule:
    """The rule of this name, or the rule itself; ``:condense`` after a name takes unjudged documents out of the lists.

    >>> as_rule("letor").unjudged, as_rule("letor:condense").unjudged
    ('zero', 'condense')
    """
    if isinstance(rule, Rule):
        return rule
    name, colon, unjudged = str(rule).partition(":")
    if name not in RULES:
        raise ParameterError.unknown("rule", rule, RULES)
    return replace(RULES[name], name=rule, unjudged=unjudged) if colon else RULES[name]  # type: ignore[arg-type]


def default_metrics(rule: str | Rule) -> tuple[str, ...]:
    """The default metrics: NDCG at 1, 3, 5 and 10, and ERR if the rule has it."""
    ndcgs = ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")
    return ndcgs if as_rule(rule).err_max is None else (*ndcgs, "err@10")


def parse_metric(text: str) -> tuple[str, int | None]:
    """The name and the cutoff of a metric; no cutoff means the whole list.

    >>> parse_metric("ndcg@10"), parse_metric("map")
    (('ndcg', 10), ('map', None))
    """
    name, at, cutoff = str(text).partition("@")
    if name not in METRICS:
        if name.lower() in METRICS:
            raise ParameterError(f"unknown metric {text!r}: did you mean {text.lower()!r}?")
        short = re.fullmatch(r"(\D+?)[ _-]?(\d+)", name.lower())
        if short is not None and short[1] in METRICS:
            raise ParameterError(f"unknown metric {text!r}: did you mean '{short[1]}@{short[2]}'?")
        raise ParameterError.unknown("metric", name, METRICS)
    if not at:
        return name, None
    if name in _UNCUT:
        raise ParameterError(f"metric {text!r}: expected {name!r}, which has no cutoff")
    if not re.fullmatch("[0-9]{1,15}", cutoff) or int(cutoff) == 0:
        raise ParameterError(
            f"metric {text!r}: expected a cutoff of 1 or more after '@', got {cutoff!r};"
            f" write '{name}@10', or '{name}' for the whole list"
        )
    return name, int(cutoff)


def metric_name(metric: Metric) -> str:
    """The name of a metric in tables: of a function, its ``__name__``.

    >>> metric_name("ndcg@10")
    'ndcg@10'
    """
    if isinstance(metric, str):
        return metric
    name = getattr(metric, "__name__", None) or type(metric).__name__
    if not callable(metric) or not name.isidentifier():
        raise ParameterError(
            argument="metrics",
            expected="names such as 'ndcg@10', or functions (ratings, scores) -> number that have a __name__",
            got=repr(metric),
        )
    return name


class Judge:
    """Metrics of one data set under one rule, prepared for repeated evaluation of scores.

    Gains, ideal lists and counts are computed once, here; a call then costs little more than ranking the documents.

    Parameters
    ----------
    data : RankingDataset
        Data with ratings.
    metrics : str, callable, or list of them, optional
        Names such as ``"ndcg@10"``, or your own functions: ``metric(ratings, scores)`` gets the ratings and scores of
        one query and returns a number. Default: those of the rule.
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
        ratings = _plain(data.ratings)
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
        asked = _as_metrics(metrics, self.rule)
        self.metrics = tuple(asked)
        self._own = {name: metric for name, metric in asked.items() if not isinstance(metric, str)}
        parsed = {metric: self._parse(metric) for metric in asked.values() if isinstance(metric, str)}
        apart = [metric for metric, (name, _) in parsed.items() if is_condensed and name in _OF_WHOLE_LISTS]
        whole = replace(self.rule, unjudged="zero")
        self._whole = Judge(data, apart, whole, n_jobs=n_jobs) if apart else None
        parsed = {metric: one for metric, one in parsed.items() if metric not in apart}
        self._depth = max((self.depth(k) for _, k in parsed.values()), default=1)
        self._measures = {metric: (name, METRICS[name](self, k)) for metric, (name, k) in parsed.items()}

    def __call__(self, scores: ArrayLike) -> dict[str, Floats]:
        """The value of each metric for each query; NaN where the rule leaves a query out.

        ``scores`` are **in the order of the data set**; ``evaluate`` takes them in the caller's order.
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
        """The values of a caller's metric."""
        ratings, is_judged, offsets = self.data.ratings, self.data.is_judged, self.data.offsets
        if self.data.n_unjudged and self.rule.unjudged == "zero":
            ratings = np.where(is_judged, ratings, 0.0)
        elif self.data.n_unjudged:
            ratings, scores, offsets = ratings[is_judged], scores[is_judged], self.offsets
        spans = pairwise(offsets.tolist())
        # A condensed list may be empty; it then has no value, as no document of the query has a rating above 0.
        values = [metric(ratings[start:end], scores[start:end]) if end > start else 0.0 for start, end in spans]
        try:
            return np.array([float(value) for value in values])
        except (TypeError, ValueError):
            raise ParameterError(
                argument="metrics",
                expected=f"{metric_name(metric)}(ratings, scores) to return one number for a query",
                got=repr(values[0]),
            ) from None

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
        elif name not in _OF_ALL_QUERIES:
            values[self.empty] = self.rule.empty.get(_FILLED_AS.get(name, name), 0.0)
        return values


class Lists:
    """Ranked documents as metrics read them: one array for each fact, in the order of the ranks.

    Facts are looked up for the ranked documents alone: mostly a small part of all, and shared by the metrics.
    """

    def __init__(self, judge: Judge, ranking: Ranking, levels: Floats | None = None) -> None:
        self._judge = judge
        self.starts, self._rows, _, self.tie_ends = ranking
        self._levels = levels

    def sum(self, values: Floats, discounts: Floats, depth: int) -> Floats:
        """The sum of value times discount to this depth, for each query."""
        return discounted_sum(values, discounts, depth, self.starts, self.tie_ends)

    @cached_property
    def levels(self) -> Floats:
        """What the gain of each document is made of."""
        return self._of(self._judge.levels) if self._levels is None else self._levels

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

    def _of(self, values: Floats) -> Floats:
        return np.take(values, self._rows, mode="clip")  # faster than checking rows that are known to be there


def as_scores(scores: ArrayLike, n: int) -> Floats:
    """N scores as float64."""
    given = as_array(scores)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.shape != (n,):
        raise DataError(f"scores: expected {n}, one per row of the data, got {shape_of(scores, given)}")
    numbers = _plain(as_numbers(given, "scores"))
    _check_told_apart(given, numbers)
    return numbers


# The integers up to here are floats, all of them.
_WHOLE = 2**53


def _check_told_apart(given: NDArray[Any], numbers: Floats) -> None:
    """Refuse scores that differ and are equal as float64: they would be judged as ties.

    >>> as_scores([2**53, 2**53 + 1], 2)
    Traceback (most recent call last):
    tierank.errors.DataError: scores: expected numbers that differ as float64 where they differ, got 9007199254740992
    and 9007199254740993; give their ranks, such as scipy.stats.rankdata(scores)
    """
    is_exact = given.dtype.kind in "bf" and given.dtype != np.longdouble
    if is_exact or (given.dtype.kind in "iu" and not (np.abs(numbers) >= _WHOLE).any()):
        return
    known = np.flatnonzero(~np.isnan(numbers))
    order = known[np.argsort(numbers[known], kind="stable")]
    exact = given[order].tolist()
    for (low, high), (below, above) in zip(pairwise(exact), pairwise(numbers[order]), strict=True):
        if below == above and low != high:
            raise DataError(
                argument="scores",
                expected="numbers that differ as float64 where they differ",
                got=f"{low!s:.60} and {high!s:.60}",
                fix="give their ranks, such as scipy.stats.rankdata(scores)",
            )


def _plain(values: NDArray[Any]) -> Floats:
    """Float64, contiguous and writable: kernels would be compiled again for any other kind of array."""
    return np.require(values, np.float64, ["C", "W"])


def _as_metrics(metrics: Metric | Iterable[Metric] | None, rule: Rule) -> dict[str, Metric]:
    """The metrics by name, each once."""
    if metrics is None:
        return {name: name for name in default_metrics(rule)}
    asked: list[Any] = [metrics]  # one that is neither a name nor a function is refused by what follows
    if not isinstance(metrics, str) and not callable(metrics) and isinstance(metrics, Iterable):
        asked = list(dict.fromkeys(metrics))
    if not asked:
        raise ParameterError("metrics: expected at least one, such as 'ndcg@10', got none")
    named = {metric_name(metric): metric for metric in asked}
    if len(named) < len(asked):
        raise ParameterError(argument="metrics", expected="functions with different names", got=", ".join(named))
    return named


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
