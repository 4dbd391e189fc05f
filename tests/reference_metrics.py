"""Slow twins of the metrics, letter by letter from their formulas, for one query at a time.

``expected`` tries every order of tied documents and averages. Nothing here is shared with the library.
"""

import math
from itertools import groupby, permutations, product


def dcg(ratings, k, gain):
    return sum(gain(r) / math.log2(1 + rank) for rank, r in enumerate(ratings[:k], start=1))


def ndcg(ratings, k, gain):
    best = dcg(sorted(ratings, key=gain, reverse=True), k, gain)
    return dcg(ratings, k, gain) / best if best > 0 else 0.0


def err(ratings, k, top):
    total, reach = 0.0, 1.0
    for rank, r in enumerate(ratings[:k], start=1):
        stop = (2**r - 1) / 2**top
        total += reach * stop / rank
        reach *= 1 - stop
    return total


def precision(ratings, k, relevant, divisor=None):
    return sum(map(relevant, ratings[:k])) / (divisor or k)


def recall(ratings, k, relevant):
    everything = sum(map(relevant, ratings))
    return sum(map(relevant, ratings[:k])) / everything if everything else 0.0


def reciprocal_rank(ratings, k, relevant):
    return next((1 / rank for rank, r in enumerate(ratings[:k], start=1) if relevant(r)), 0.0)


def average_precision(ratings, k, relevant, divide_by_all=False):
    everything = sum(map(relevant, ratings))
    if everything == 0:
        return 0.0
    hits = [precision(ratings, rank, relevant) for rank, r in enumerate(ratings[:k], start=1) if relevant(r)]
    return sum(hits) / (everything if divide_by_all else min(k, everything))


def rbp(ratings, k, relevant, p=0.8):
    return (1 - p) * sum(p ** (rank - 1) for rank, r in enumerate(ratings[:k], start=1) if relevant(r))


def bpref(ratings, relevant):
    """Of ratings with None where a document is unjudged."""
    judged = [relevant(r) for r in ratings if r is not None]
    n_relevant, n_others = judged.count(True), judged.count(False)
    total, above = 0.0, 0
    for is_relevant in judged:
        if is_relevant:
            total += 1 - (min(above, n_relevant) / min(n_relevant, n_others) if above else 0)
        above += not is_relevant
    return total / n_relevant if n_relevant else 0.0


def hit_rate(ratings, k, relevant):
    return float(any(map(relevant, ratings[:k])))


def f1(ratings, k, relevant):
    p, r = precision(ratings, k, relevant), recall(ratings, k, relevant)
    return 2 * p * r / (p + r) if p + r else 0.0


def r_precision(ratings, relevant):
    everything = sum(map(relevant, ratings))
    return sum(map(relevant, ratings[:everything])) / everything if everything else 0.0


def auc(ratings, relevant):
    """Of ratings in ranked order: ties are averaged over their orders, which counts half."""
    marks = list(map(relevant, ratings))
    pairs = [a for i, a in enumerate(marks) for b in marks[i + 1 :] if a != b]
    return sum(pairs) / len(pairs) if pairs else 1.0


def orders(ratings, scores):
    """Every list of ratings by descending score, one for each order of the tied documents."""
    by_score = sorted(zip(scores, ratings, strict=True), key=lambda pair: -pair[0])
    ties = [[r for _, r in group] for _, group in groupby(by_score, key=lambda pair: pair[0])]
    for chosen in product(*(list(permutations(tie)) for tie in ties)):
        yield [r for tie in chosen for r in tie]


def expected(metric, ratings, scores, *arguments):
    values = [metric(order, *arguments) for order in orders(ratings, scores)]
    return sum(values) / len(values)


def exp2(rating):
    return 2.0**rating - 1


def linear(rating):
    return rating


def above_zero(rating):
    return rating > 0
