"""Slow twins of the losses: plain loops over one query, written from the formulas of the papers."""

import math

import numpy as np
import torch
from reference_objectives import discount_at, gain_of, ideal_dcg, ranks_of

from tierank import paper


def urank(ratings, scores):
    """Eq. 2 of the paper."""
    return windowed_urank(ratings, scores, None)


def windowed_urank(ratings, scores, window=2):
    """Eq. 2 with the likelihood of Eq. 3."""
    return paper.urank_loss(torch.as_tensor(ratings), torch.as_tensor(scores), window).item()


def log_softmax(values):
    top = max(values)
    total = math.log(sum(math.exp(v - top) for v in values))
    return [v - top - total for v in values]


def listnet(ratings, scores):
    target = [math.exp(p) for p in log_softmax(list(ratings))]
    return -sum(p * q for p, q in zip(target, log_softmax(list(scores)), strict=True))


def softmax(ratings, scores):
    gains = [gain_of(r) for r in ratings]
    return -sum(g / sum(gains) * q for g, q in zip(gains, log_softmax(list(scores)), strict=True))


def listmle(ratings, scores, weight=lambda i, n: 1.0):
    """The likelihood of the order by rating, ties in the order of the rows."""
    order = sorted(range(len(ratings)), key=lambda d: (-ratings[d], d))
    n = len(order)
    return -sum(weight(i, n) * log_softmax([scores[d] for d in order[i - 1 :]])[0] for i in range(1, n + 1))


def plistmle(ratings, scores):
    return listmle(ratings, scores, lambda i, n: (2.0 ** (n - i) - 1) / (2.0 ** (n - 1) - 1))


def pairs(ratings):
    n = range(len(ratings))
    return [(i, j) for i in n for j in n if ratings[i] > ratings[j]]


def logistic(x):
    return max(-x, 0) + math.log1p(math.exp(-abs(x)))


def ranknet(ratings, scores, sigma=1.0):
    return np.mean([logistic(sigma * (scores[i] - scores[j])) for i, j in pairs(ratings)])


def lambdaloss(ratings, scores, sigma=1.0, mu=10.0):
    rank, total = ranks_of(scores), 0.0
    for i, j in pairs(ratings):
        apart = abs(rank[i] - rank[j])
        rho = abs(discount_at(rank[i]) - discount_at(rank[j]))
        delta = abs(discount_at(apart) - discount_at(apart + 1))
        weight = abs(gain_of(ratings[i]) - gain_of(ratings[j])) / ideal_dcg(ratings) * (rho + mu * delta)
        total += weight * logistic(sigma * (scores[i] - scores[j]))
    return total


def lambdarank(ratings, scores, sigma=1.0):
    return lambdaloss(ratings, scores, sigma, mu=0.0)


def approxndcg(ratings, scores, temperature=0.1):
    total = 0.0
    for i, f in enumerate(scores):
        others = [g for j, g in enumerate(scores) if j != i]
        rank = 1 + sum(1 / (1 + math.exp((f - g) / temperature)) for g in others)
        total += gain_of(ratings[i]) / math.log2(1 + rank)
    return 1 - total / ideal_dcg(ratings)


def neuralndcg(ratings, scores, temperature=1.0, max_scalings=50):
    s, n = np.asarray(scores, float), len(scores)
    A = np.abs(s[:, None] - s[None, :])
    P = np.array([np.exp(log_softmax(((n + 1 - 2 * i) * s - A.sum(1)) / temperature)) for i in range(1, n + 1)])
    for _ in range(max_scalings):
        if np.abs(P.sum(0) - 1).max() < 1e-6:
            break
        P = P / P.sum(0, keepdims=True)
        P = P / P.sum(1, keepdims=True)
    sorted_gains = P @ [gain_of(r) for r in ratings]
    return 1 - sum(g * discount_at(i + 1) for i, g in enumerate(sorted_gains)) / ideal_dcg(ratings)
