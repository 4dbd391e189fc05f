"""METRICS: the formulas of the metrics.

A metric is a function of the judge, which knows the ratings, and of the cutoff k (None: the whole list). It does the
work that does not depend on the scores, and returns a function that is applied to each ranking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tierank.errors import DataError, ParameterError
from tierank.kernels.ranking import bound_ratio, cascade, exp2_gains, precision_sum, preference_sum
from tierank.types import Floats

if TYPE_CHECKING:
    from tierank.metrics.judge import Judge
    from tierank.metrics.lists import Lists

# Maps ranked lists to one value per query.
Measure = Callable[["Lists"], Floats]


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
WITHOUT_CUTOFF = ("bpref",)
# Metrics of the effect of unjudged documents: they read whole lists even if the others read condensed lists.
OF_WHOLE_LISTS = ("judged", "rbp_residual", "ndcg_lower", "ndcg_upper")
# Metrics that have a value for queries with no rating above 0, unless the rule leaves such queries out.
OF_ALL_QUERIES = ("judged", "rbp_residual")
# Metrics that have the value of another one for such queries.
FILLED_AS = {"ndcg_lower": "ndcg", "ndcg_upper": "ndcg"}
