"""Losses over whole lists: cross entropy, and the likelihood of an order."""

from __future__ import annotations

import torch
from torch import Tensor

from tierank.losses.batch import Batch, check
from tierank.losses.ladder import select_from
from tierank.losses.segments import log_sum_by, max_by, sum_by


def listnet(scores: Tensor, batch: Batch) -> Tensor:
    """ListNet (Cao et al., 2007), top one: cross entropy from the softmax of the ratings to that of the scores.

    L = -sum over d of P(d) ln(e^f(d) / sum of e^f),  P(d) = e^r(d) / sum of e^r
    """
    check(scores, batch)
    tops = max_by(batch.ratings, batch.query, batch.n_queries)
    return _cross_entropy(scores, (batch.ratings - tops[batch.query]).exp(), batch)


def softmax(scores: Tensor, batch: Batch) -> Tensor:
    """Softmax cross entropy with gains (rank_xendcg of Bruch et al., 2021, with all gammas 1, so without noise).

    L = -sum over d of G(d) / (sum of G) * ln(e^f(d) / sum of e^f)
    """
    check(scores, batch)
    return _cross_entropy(scores, batch.gains.double(), batch)


def _cross_entropy(scores: Tensor, parts: Tensor, batch: Batch) -> Tensor:
    """-sum over d of P(d) ln(e^f(d) / sum of e^f), with P the parts divided by their sum; 0 where that is 0."""
    totals = sum_by(parts, batch.query, batch.n_queries) / batch.is_ranked
    target = torch.where(totals > 0, 1 / totals, 0.0)[batch.query].mul(parts).to(scores.dtype)
    log_sums = log_sum_by(scores, batch.query, batch.n_queries).index_select(0, batch.query)
    return sum_by(target * (log_sums - scores), batch.query, batch.n_queries)


def listmle(scores: Tensor, batch: Batch) -> Tensor:
    """ListMLE (Xia et al., 2008): the likelihood of one order that agrees with the ratings.

        L = -sum over i = 1..n of ln(e^f(d_i) / (e^f(d_i) + ... + e^f(d_n)))

    Documents d_1, d_2, ... stand by decreasing rating. Tied ones are shuffled by the generator of the batch, anew in
    each call; without a generator they keep the order of the rows.
    """
    check(scores, batch)
    return _likelihood(scores, batch.is_ranked.index_select(0, batch.place_ladder.row_query), batch)


def plistmle(scores: Tensor, batch: Batch) -> Tensor:
    """Position-aware ListMLE (Lan et al., 2014): as ``listmle``, with a weight for each place.

        L = -sum over i = 1..n of a(i) / a(1) * ln(e^f(d_i) / (e^f(d_i) + ... + e^f(d_n))),  a(i) = 2^(n - i) - 1

    The division by a(1) is ours: the first place weighs 1 in a list of any length, so that no list is too long for
    floating point, and a list of 41 documents does not weigh twice one of 40.
    """
    check(scores, batch)
    return _likelihood(scores, batch.place_weights, batch)


def _likelihood(scores: Tensor, weights: Tensor, batch: Batch) -> Tensor:
    """The weighted likelihood of one order: each document is selected from itself and all after it."""
    order = batch.by_tier
    if batch.generator is not None:
        shifts = torch.rand(
            batch.n_documents, dtype=torch.float64, generator=batch.generator, device=batch.generator.device
        )
        order = (batch.groups + shifts.to(batch.device)).argsort()
    return select_from(scores.index_select(0, order), weights, batch.place_ladder)
