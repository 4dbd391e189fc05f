"""Losses over whole lists: cross entropy, and the likelihood of an order."""

from __future__ import annotations

import torch
from torch import Tensor

from tierank.losses.batch import Batch, check, exact, log_sum_by, max_by, select_from, sum_by
from tierank.losses.tensors import loss


@loss(without=("gain",))
def listnet(scores: Tensor, batch: Batch) -> Tensor:
    """ListNet (Cao et al., 2007), top one: cross entropy from the softmax of the ratings to that of the scores.

    L = -sum over d of P(d) ln(e^f(d) / sum of e^f),  P(d) = e^r(d) / sum of e^r

    In a batch with weights P(d) = w(d) r(d): with 1 / propensity, the expectation of a click is its relevance.
    Row weights are copies: each document counts c(d) times in all three sums.
    """
    check(scores, batch)
    if batch.weights is not None:
        return _weighted_entropy(scores, batch.ratings, batch)
    tops = max_by(batch.ratings, batch.query, batch.n_queries)
    return _cross_entropy(scores, (batch.ratings - tops[batch.query]).exp(), batch)


@loss()
def softmax(scores: Tensor, batch: Batch) -> Tensor:
    """Softmax cross entropy with gains (rank_xendcg of Bruch et al., 2021, with all gammas 1, so without noise).

    L = -sum over d of G(d) / (sum of G) * ln(e^f(d) / sum of e^f)

    In a batch with weights, w(d) G(d) replaces G(d) / (sum of G). Row weights are copies: each document counts c(d)
    times in all three sums.
    """
    check(scores, batch)
    if batch.weights is not None:
        return _weighted_entropy(scores, batch.gains, batch)
    return _cross_entropy(scores, batch.gains.double(), batch)


def _cross_entropy(scores: Tensor, parts: Tensor, batch: Batch) -> Tensor:
    """-sum over d of P(d) ln(e^f(d) / sum of e^f), with P the parts divided by their sum; 0 where that is 0."""
    parts = batch.counted(parts)
    totals = sum_by(parts, batch.query, batch.n_queries) / batch.is_ranked
    return _entropy_to(scores, torch.where(totals > 0, 1 / totals, 0.0)[batch.query].mul(parts), batch)


def _weighted_entropy(scores: Tensor, parts: Tensor, batch: Batch) -> Tensor:
    """The same with the parts times their weights, not divided: dividing would cancel inverse propensities."""
    return _entropy_to(scores, batch.counted(batch.weighted(parts)) * batch.is_ranked[batch.query], batch)


def _entropy_to(scores: Tensor, target: Tensor, batch: Batch) -> Tensor:
    """The sum over d of target(d) ln(sum of e^f / e^f(d)); in double precision, as differences of large scores need."""
    wide = exact(scores)
    log_sums = log_sum_by(batch.log_powers(wide), batch.query, batch.n_queries).index_select(0, batch.query)
    return sum_by(exact(target) * (log_sums - wide), batch.query, batch.n_queries).to(scores.dtype)


@loss(without=("gain", "weights"))
def listmle(scores: Tensor, batch: Batch) -> Tensor:
    """ListMLE (Xia et al., 2008): the likelihood of one order that agrees with the ratings.

        L = -sum over i = 1..n of ln(e^f(d_i) / (e^f(d_i) + ... + e^f(d_n)))

    Documents d_1, d_2, ... are sorted by decreasing rating. Ties are shuffled by the generator of the batch in each
    call; without a generator they keep the order of the rows.

    Row weights c are not copies here, because copies would be shuffled among the other tied documents. All copies of a
    row share one place, and each is selected from itself and the copies of all rows after it:

        L = -sum over i of c(d_i) ln(e^f(d_i) / (e^f(d_i) + c(d_i+1) e^f(d_i+1) + ... + c(d_n) e^f(d_n)))
    """
    check(scores, batch)
    return _likelihood(scores, batch.is_ranked.index_select(0, batch.place_ladder.row_query), batch)


@loss(without=("gain", "weights"))
def plistmle(scores: Tensor, batch: Batch) -> Tensor:
    """Position-aware ListMLE (Lan et al., 2014): as ``listmle``, with a weight for each place.

        L = -sum over i = 1..n of a(i) / a(1) * ln(e^f(d_i) / (e^f(d_i) + ... + e^f(d_n))),  a(i) = 2^(n - i) - 1

    The division by a(1) is our addition: the first place has weight 1 in a list of any length, so that no list is too
    long for floating point, and a list of 41 documents does not weigh twice as much as one of 40. Row weights as in
    ``listmle``: the copies of a row share its place, and n counts the rows whose weight is not 0.
    """
    check(scores, batch)
    n_counted, ladder = batch.lengths, batch.place_ladder
    if batch.row_weight is not None:
        n_counted = sum_by((batch.row_weight > 0).long(), batch.query, batch.n_queries)
    last = torch.exp2(-(n_counted - 1).double()) * batch.is_ranked
    powers = torch.exp2(-batch.places[ladder.rows].double())
    scale = (batch.is_ranked / (1 - last))[ladder.row_query]
    weights = ((powers - last[ladder.row_query]) * scale).clamp(min=0)  # (2^(n - i) - 1) / (2^(n - 1) - 1)
    return _likelihood(scores, weights.to(batch.dtype), batch)


def _likelihood(scores: Tensor, weights: Tensor, batch: Batch) -> Tensor:
    """The weighted likelihood of one order: each document is selected from itself and all after it."""
    order = batch.by_tier
    if batch.generator is not None:
        shifts = torch.rand(
            batch.n_documents, dtype=torch.float64, generator=batch.generator, device=batch.generator.device
        )
        order = (batch.tier_keys + shifts.to(batch.device)).argsort()
    ladder, log_counts = batch.place_ladder, None
    if batch.row_weight is not None and batch.log_row_weight is not None:
        weights = weights * batch.row_weight[order][ladder.rows]
        log_counts = batch.log_row_weight[order]
    return select_from(scores.index_select(0, order), weights, ladder, log_counts)
