"""Losses over pairs of documents with different ratings, in blocks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from tierank.losses.batch import Batch, check
from tierank.losses.gradient import with_gradient
from tierank.losses.segments import blocks, partners, softplus, sum_by
from tierank.settings import as_number


def ranknet(scores: Tensor, batch: Batch, *, sigma: float = 1.0) -> Tensor:
    """RankNet (Burges et al., 2005): logistic loss over the pairs of documents with different ratings, their mean.

    L = mean over r(d) > r(d') of ln(1 + e^(-sigma (f(d) - f(d'))))
    """
    check(scores, batch, sigma=sigma)
    n_pairs = sum_by(_n_lower(batch), batch.query, batch.n_queries).clamp(min=1)
    return _pairwise(scores, batch, sigma, lambda higher, lower: 1.0) / n_pairs


def lambdarank(scores: Tensor, batch: Batch, *, sigma: float = 1.0) -> Tensor:
    """LambdaRank (Burges et al., 2006) as a loss: each pair weighs what swapping it changes NDCG by.

        L = sum over r(d) > r(d') of |G(d) - G(d')| / IDCG * |D(d) - D(d')| * ln(1 + e^(-sigma (f(d) - f(d'))))

    with D = 1 / log2(1 + rank) by the scores, taken as given when differentiating.
    """
    return lambdaloss(scores, batch, sigma=sigma, mu=0.0)


def lambdaloss(scores: Tensor, batch: Batch, *, sigma: float = 1.0, mu: float = 10.0) -> Tensor:
    """NDCG-Loss2++ of LambdaLoss (Wang et al., 2018).

        L = sum over r(d) > r(d') of |G(d) - G(d')| / IDCG * (rho + mu delta) * ln(1 + e^(-sigma (f(d) - f(d'))))
        rho = |D_i - D_j|,  delta = D_|i-j| - D_|i-j|+1,  D_i = 1 / log2(1 + i)

    with i and j the ranks of d and d' by the scores, taken as given when differentiating. The paper has log2 for ln: a
    factor. mu = 0 is ``lambdarank``.
    """
    check(scores, batch, sigma=sigma)
    mu = as_number("mu", mu, 0, 1e9)
    gains = batch.relative_gains[batch.by_tier]
    ranks = torch.empty_like(batch.places).scatter_(0, batch.order_by(scores.detach()), batch.places)[batch.by_tier]
    discounts = batch.discounts[ranks]
    # delta of ranks 1, 2, ... apart; 0 apart there are none
    deltas = functional.pad(-mu * batch.discounts.double().diff().to(scores.dtype), (1, 0))

    def weigh(higher: Tensor, lower: Tensor) -> Tensor:
        weights = (discounts[higher] - discounts[lower]).abs_()
        if mu:
            weights += deltas[(ranks[higher] - ranks[lower]).abs_()]
        return weights.mul_((gains[higher] - gains[lower]).abs_())

    return _pairwise(scores, batch, sigma, weigh)


def _n_lower(batch: Batch) -> Tensor:
    """How many documents of its query are rated lower than each document, in the order by tier."""
    return batch.offsets[1:][batch.query] - batch.group_edges[1:][batch.groups[batch.by_tier]]


def _pairwise(scores: Tensor, batch: Batch, sigma: float, weigh: Callable[[Tensor, Tensor], Tensor | float]) -> Tensor:
    """Sum over r(d) > r(d') of w ln(1 + e^(-sigma (f(d) - f(d')))); w is asked for by places in the order by tier."""
    with torch.no_grad():
        ordered = scores[batch.by_tier]
        totals, pulls = torch.zeros_like(ordered), torch.zeros_like(ordered)
        counts = _n_lower(batch)
        begins = batch.offsets[1:][batch.query] - counts
        for span in blocks(counts):
            row, lower = partners(begins[span], counts[span])
            higher = row + span.start
            weights = weigh(higher, lower)
            margins = (ordered[lower] - ordered[higher]).mul_(sigma)
            totals[span] = sum_by(softplus(margins) * weights, row, span.stop - span.start)
            pull = margins.sigmoid_().mul_(weights).mul_(sigma)
            pulls.index_add_(0, lower, pull)
            pulls[span] -= sum_by(pull, row, span.stop - span.start)
        values = sum_by(totals.double(), batch.query, batch.n_queries).to(scores.dtype)
        gradient = torch.empty_like(pulls).scatter_(0, batch.by_tier, pulls)
    return with_gradient(scores, values, gradient, batch)
