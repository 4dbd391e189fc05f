"""Slow twins of the objectives: plain loops over one query, written from the formulas."""

import math


def gain_of(rating):
    return 2.0**rating - 1


def discount_at(rank):
    """The discount of a 1-based rank."""
    return 1 / math.log2(1 + rank)


def ranks_of(scores):
    """1-based ranks by decreasing score; equal scores rank in the order of the rows."""
    order = sorted(range(len(scores)), key=lambda d: (-scores[d], d))
    return {d: i + 1 for i, d in enumerate(order)}


def ideal_dcg(ratings, k=None):
    gains = sorted((gain_of(r) for r in ratings), reverse=True)[:k]
    return sum(g * discount_at(i + 1) for i, g in enumerate(gains))


def windows_below(d, ratings, scores, window):
    """The documents rated lower than d, by decreasing score, cut into windows."""
    rank = ranks_of(scores)
    below = sorted((e for e in range(len(ratings)) if ratings[e] < ratings[d]), key=rank.get)
    size = window or max(len(below), 1)
    return [below[i : i + size] for i in range(0, len(below), size)]


def shares(d, window, scores, sigma):
    """p of d and p' of each document of the window, from exponentials relative to the highest of them."""
    top = max(scores[e] for e in (d, *window))
    powers = {e: math.exp(sigma * (scores[e] - top)) for e in (d, *window)}
    total = sum(powers.values())
    return powers[d] / total, {e: powers[e] / total for e in window}


def pair_weight(d, e, ratings, scores, weights, idcg_at=None):
    if weights == "none":
        return 1.0
    if weights == "gain":
        return gain_of(ratings[d]) / (len(set(ratings)) - 1)
    rank = ranks_of(scores)
    weight = abs(gain_of(ratings[d]) - gain_of(ratings[e]))
    weight *= abs(discount_at(rank[d]) - discount_at(rank[e])) / ideal_dcg(ratings, idcg_at)
    return weight if max(scores) == min(scores) else weight / (0.01 + abs(scores[d] - scores[e]))


def umart(
    ratings, scores, window=2, sigma=2.0, hessian="code", weights="ndcg", truncation=None, idcg_at=None, pairs=None
):
    """Gradient and hessian of one query; ``pairs`` collects sigma w p' of every pair."""
    n = len(ratings)
    rank = ranks_of(scores)
    gradients, hessians = [0.0] * n, [0.0] * n
    for d in range(n):
        for members in windows_below(d, ratings, scores, window):
            p, p_low = shares(d, members, scores, sigma)
            for e in members:
                if truncation is not None and min(rank[d], rank[e]) > truncation:
                    continue
                w = pair_weight(d, e, ratings, scores, weights, idcg_at)
                gradients[e] += sigma * w * p_low[e]
                gradients[d] -= sigma * w * p_low[e]
                kappa = 1 if hessian == "exact" else 2
                hessians[e] += kappa * sigma**2 * w * p_low[e] * (1 - p_low[e])
                hessians[d] += kappa * sigma**2 * w * p_low[e] * (1 if hessian == "paper" else p)
                if pairs is not None:
                    pairs.append(sigma * w * p_low[e])
    return gradients, hessians


def windowed_loss(ratings, scores, cut_by, window, sigma, weights):
    """The sum over d and its windows of -w ln(p), with the windows that the scores ``cut_by`` give (Eq. 3)."""
    total = 0.0
    for d in range(len(ratings)):
        for members in windows_below(d, ratings, cut_by, window):
            p, _ = shares(d, members, scores, sigma)
            total -= pair_weight(d, members[0], ratings, cut_by, weights) * math.log(p)
    return total


def urank_loss(ratings, scores):
    """Eq. 2: 1 / (|R| - 1) * sum over d above the lowest tier of G(d) ln(1 + k(below) / e^f(d))."""
    if len(set(ratings)) == 1:
        return 0.0
    total = 0.0
    for d, rating in enumerate(ratings):
        below = sum(math.exp(scores[e]) for e in range(len(ratings)) if ratings[e] < rating)
        total += gain_of(rating) * math.log(1 + below / math.exp(scores[d]))
    return total / (len(set(ratings)) - 1)
