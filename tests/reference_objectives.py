"""Slow twins of what tierank's objectives add to the paper's formulas: plain loops over one query."""

import functools
import itertools
import math

import torch

from tierank import paper


def gain_of(rating):
    return 2.0**rating - 1


def discount_at(rank):
    """The discount of a 1-based rank."""
    return 1 / math.log2(1 + rank)


def ranks_of(scores):
    """1-based ranks by decreasing score; equal scores rank in the order of the rows."""
    return _ranks_of(tuple(scores))


@functools.cache
def _ranks_of(scores):
    order = sorted(range(len(scores)), key=lambda d: (-scores[d], d))
    return {d: i + 1 for i, d in enumerate(order)}


def ideal_dcg(ratings, k=None):
    gains = sorted((gain_of(r) for r in ratings), reverse=True)[:k]
    return sum(g * discount_at(i + 1) for i, g in enumerate(gains))


@functools.cache
def tied_ranks(scores):
    """The ranks that each document shares with those of equal score."""
    rank = ranks_of(scores)
    return {d: tuple(rank[e] for e in range(len(scores)) if scores[e] == scores[d]) for d in range(len(scores))}


@functools.cache
def mean_gap(ranks, others):
    """The mean distance of two discounts, over all pairs of two different ranks."""
    gaps = [abs(discount_at(i) - discount_at(j)) for i in ranks for j in others if i != j]
    return sum(gaps) / len(gaps)


def discount_gap(d, e, scores, ties):
    """|disc(d) - disc(e)|; where ties are shared, its expectation over all orders of tied documents."""
    rank, shared = ranks_of(scores), tied_ranks(tuple(scores))
    return mean_gap(shared[d], shared[e]) if ties == "mean" else mean_gap((rank[d],), (rank[e],))


def log_sum_exp(values):
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def log_window_sums(ratings, scores, window, sigma, ties):
    """For each document d the logarithm of k_b for each document below it.

    Where ties are shared, that of the harmonic mean over the places of the tied documents.
    """
    sums = {d: {} for d in range(len(ratings))}
    for higher, members in paper.windows(torch.tensor(ratings), torch.tensor(scores), window):
        log_sum = log_sum_exp([sigma * scores[x] for x in members.tolist()])
        for d in higher.tolist():
            sums[d] |= dict.fromkeys(members.tolist(), log_sum)
    if ties == "rows":
        return sums
    return {d: {e: shared_log_sum(e, own, scores) for e in own} for d, own in sums.items()}


def shared_log_sum(e, sums, scores):
    tied = [x for x in sums if scores[x] == scores[e]]
    return math.log(len(tied)) - log_sum_exp([-sums[x] for x in tied])


def best_rank(d, scores, ties):
    """The rank that counts for truncation: of a tie the best."""
    return ranks_of(scores)[d] if ties == "rows" else min(tied_ranks(tuple(scores))[d])


def pair_weight(d, e, ratings, scores, weights, idcg_at=None, ties="rows"):
    if weights == "none":
        return 1.0
    if weights == "gain":
        return gain_of(ratings[d]) / (len(set(ratings)) - 1)
    weight = abs(gain_of(ratings[d]) - gain_of(ratings[e]))
    weight *= discount_gap(d, e, scores, ties) / ideal_dcg(ratings, idcg_at)
    return weight if max(scores) == min(scores) else weight / (0.01 + abs(scores[d] - scores[e]))


def umart(
    ratings,
    scores,
    window=2,
    sigma=2.0,
    hessian="code",
    weights="ndcg",
    truncation=None,
    idcg_at=None,
    ties="mean",
    pairs=None,
    above=None,
    below=None,
    losses=None,
):
    """Gradient and hessian of one query; ``pairs`` collects sigma w p' of every pair.

    A pair counts above(d) below(d') times; ``losses`` collects (d, d', its loss).
    """
    n = len(ratings)
    gradients, hessians = [0.0] * n, [0.0] * n
    for d, sums in log_window_sums(ratings, scores, window, sigma, ties).items():
        for e, log_sum in sums.items():
            if truncation is not None and min(best_rank(x, scores, ties) for x in (d, e)) > truncation:
                continue
            log_total = log_sum_exp([sigma * scores[d], log_sum])
            p, p_low = math.exp(sigma * scores[d] - log_total), math.exp(sigma * scores[e] - log_total)
            w = pair_weight(d, e, ratings, scores, weights, idcg_at, ties)
            if losses is not None:
                margin = log_sum - sigma * scores[d]
                lost = max(margin, 0) + math.log1p(math.exp(-abs(margin)))  # ln(1 + k_b / e^(sigma f(d)))
                losses.append((d, e, w * lost * math.exp(sigma * scores[e] - log_sum)))
            if above is not None:
                w *= above[d] * below[e]
            gradients[e] += sigma * w * p_low
            gradients[d] -= sigma * w * p_low
            kappa = 1 if hessian == "exact" else 2
            hessians[e] += kappa * sigma**2 * w * p_low * (1 - p_low)
            hessians[d] += kappa * sigma**2 * w * p_low * (1 if hessian == "paper" else p)
            if pairs is not None:
                pairs.append(sigma * w * p_low)
    return gradients, hessians


def umart_over_orders(ratings, scores, **chosen):
    """The mean gradient and hessian over all orders of the rows: the expectation over the orders of tied documents."""
    n = len(ratings)
    totals = [[0.0] * n, [0.0] * n]
    orders = list(itertools.permutations(range(n)))
    for order in orders:
        found = umart([ratings[d] for d in order], [scores[d] for d in order], ties="rows", **chosen)
        for total, values in zip(totals, found, strict=True):
            for place, d in enumerate(order):
                total[d] += values[place] / len(orders)
    return totals
