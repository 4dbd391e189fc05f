"""METRICS: the formulas of the metrics.

A metric is a function of the judge, which knows the ratings, and of the cutoff k (None: the whole list). It does the
work that does not depend on the scores, and returns a function that is applied to each ranking.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.errors import DataError, ParameterError
from tierank.kernels.ranking import cascade, exp2_gains, precision_sum, preference_sum

if TYPE_CHECKING:
    from tierank.metrics.judge import Judge, RankedLists

# Maps ranked lists to one value per query.
Measure = Callable[["RankedLists"], Floats]


def dcg(judge: Judge, k: int | None) -> Measure:
    """DCG@k = sum over ranks r <= k of gain_r / log2(1 + r)."""
    depth = judge.depth(k)

    def measure(lists: RankedLists) -> Floats:
        return lists.sum(lists.gains, judge.discounts, depth)

    if not np.isfinite(measure(judge.ideal)).all():
        expected, got = "gains that float64 can hold", f"ratings up to {judge.ratings.max():g}"
        fix = "use ndcg, which has no such limit, or a rule with other gains"
        raise DataError(where="dcg", expected=expected, got=got, fix=fix)
    return measure


def ndcg(judge: Judge, k: int | None) -> Measure:
    """NDCG@k = DCG@k / the highest DCG@k of any order of the documents; 0 if no document has a gain."""
    depth = judge.depth(k)
    best = judge.ideal.sum(judge.ideal.relative_gains, judge.discounts, depth)
    if judge.rule.short_ndcg == "zero" and k is not None:
        best[judge.lengths < k] = np.inf
    best[best == 0] = np.inf

    def measure(lists: RankedLists) -> Floats:
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
    depth = judge.depth(k)
    return lambda lists: lists.sum(lists.relevant, judge.undiscounted, depth) / precision_divisor(judge, lists, k)


def precision_divisor(judge: Judge, lists: RankedLists, k: int | None) -> NDArray[np.int64]:
    """What precision@k is divided by: k, or the length of the list, at least 1."""
    is_short = k is None or judge.rule.precision_divisor == "min(k, n)"
    lengths = lists.lengths if is_short else np.full_like(judge.lengths, k)
    return np.maximum(lengths if k is None else np.minimum(lengths, k), 1)


def recall(judge: Judge, k: int | None) -> Measure:
    """Recall@k = relevant documents up to rank k, / relevant documents."""
    depth, divisor = judge.depth(k), np.maximum(judge.n_relevant, 1)
    return lambda lists: lists.sum(lists.relevant, judge.undiscounted, depth) / divisor


def hit_rate(judge: Judge, k: int | None) -> Measure:
    """1 if a relevant document is at rank k or above, else 0. Also known as success@k."""
    depth = judge.depth(k)

    def measure(lists: RankedLists) -> Floats:
        query = np.repeat(np.arange(len(judge.lengths)), np.diff(lists.starts))
        place = np.arange(len(query)) - lists.starts[query]
        is_first = (place == 0) | (np.roll(lists.tie_ends, 1) == place)
        begins = place[np.maximum.accumulate(np.where(is_first, np.arange(len(place)), 0))]
        surely = np.bincount(query, lists.relevant * (lists.tie_ends <= depth), len(judge.lengths)) > 0
        found = surely.astype(np.float64)
        # A tie across rank k: the chance that none of its relevant documents is among those drawn for the ranks to k.
        for q in np.unique(query[(begins < depth) & (lists.tie_ends > depth) & (lists.relevant > 0)]).tolist():
            own = slice(lists.starts[q], lists.starts[q + 1])
            is_tied = (begins[own] < depth) & (lists.tie_ends[own] > depth)
            n, n_relevant = int(is_tied.sum()), int(lists.relevant[own][is_tied].sum())
            n_drawn = depth - int(begins[own][is_tied][0])
            missed = math.comb(n - n_relevant, n_drawn) / math.comb(n, n_drawn)
            found[q] = max(found[q], 1 - missed)
        return found

    return measure


def f1(judge: Judge, k: int | None) -> Measure:
    """F1@k = 2 h / (k + R), with h relevant documents up to rank k, and R in all.

    The harmonic mean of precision@k and recall@k; for k, what the rule divides precision@k by.
    """
    part = precision(judge, k)

    def measure(lists: RankedLists) -> Floats:
        divisor = precision_divisor(judge, lists, k)
        share: Floats = 2 * divisor / np.maximum(divisor + judge.n_relevant, 1)
        return part(lists) * share

    return measure


def r_precision(judge: Judge, k: int | None) -> Measure:
    """The share of relevant documents up to rank R, where R is the number of relevant documents. It has no cutoff."""
    ranks = np.arange(1, judge.longest + 1)

    def measure(lists: RankedLists) -> Floats:
        found = np.zeros(len(judge.lengths))
        for n in np.unique(judge.n_relevant[judge.n_relevant > 0]):
            hits = lists.sum(lists.relevant, (ranks <= n).astype(np.float64), judge.longest)
            found = np.where(judge.n_relevant == n, hits / n, found)
        return found

    return measure


def auc(judge: Judge, k: int | None) -> Measure:
    """The share of pairs of a relevant and another document in which the relevant one has the higher score.

    Ties count half. It is 1 if all documents are relevant, and it has no cutoff.
    """
    n, n_relevant = judge.lengths, judge.n_relevant
    n_pairs, ranks = n_relevant * (n - n_relevant), np.arange(1.0, judge.longest + 1)

    def measure(lists: RankedLists) -> Floats:
        if lists.lengths is not n:
            expected = "metrics of ranked lists, as a run does not score all documents"
            raise ParameterError(argument="metrics", expected=expected, got="'auc'")
        above = n_relevant * n - n_relevant * (n_relevant - 1) / 2 - lists.sum(lists.relevant, ranks, judge.longest)
        return np.where(n_pairs > 0, above / np.maximum(n_pairs, 1), 1.0)

    return measure


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

    def measure(lists: RankedLists) -> Floats:
        n = np.minimum(lists.lengths, depth)
        return lists.sum(lists.unjudged, judge.persistence, depth) + judge.rule.persistence**n

    return measure


def judged_share(judge: Judge, k: int | None) -> Measure:
    """Judged@k = judged documents up to rank k, / min(k, n)."""
    depth = judge.depth(k)

    def measure(lists: RankedLists) -> Floats:
        return lists.sum(lists.judged, judge.undiscounted, depth) / np.maximum(np.minimum(lists.lengths, depth), 1)

    return measure


METRICS: dict[str, Callable[[Judge, int | None], Measure]] = {
    "ndcg": ndcg,
    "err": err,
    "map": average_precision,
    "mrr": mrr,
    "precision": precision,
    "recall": recall,
    "hit_rate": hit_rate,
    "f1": f1,
    "rprec": r_precision,
    "auc": auc,
    "dcg": dcg,
    "rbp": rbp,
    "bpref": bpref,
    "judged": judged_share,
    "rbp_residual": rbp_residual,
}

# Metrics that grow with the gain, or with 2^r, of a document.
OF_GAINS = ("ndcg", "err", "dcg")
# Metrics that have no cutoff.
WITHOUT_CUTOFF = ("bpref", "rprec", "auc")
# Metrics of the effect of unjudged documents: they read whole lists even if the others read condensed lists.
OF_WHOLE_LISTS = ("judged", "rbp_residual")
# Metrics that have a value for queries with no rating above 0, unless the rule leaves such queries out.
OF_ALL_QUERIES = ("judged", "rbp_residual")
