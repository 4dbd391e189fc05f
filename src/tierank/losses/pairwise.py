"""Losses over pairs of documents with different ratings, in blocks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from tierank.losses.batch import Batch, blocks, check, edges_of, exact, log_sum_by, partners, softplus, sum_by
from tierank.losses.tensors import loss, with_gradient
from tierank.settings import as_number


@loss(without=("gain",))
def ranknet(scores: Tensor, batch: Batch, *, sigma: float = 1.0) -> Tensor:
    """RankNet (Burges et al., 2005): the mean logistic loss over the pairs of documents with different ratings.

    L = mean over r(d) > r(d') of ln(1 + e^(-sigma (f(d) - f(d'))))

    In a batch with weights w, pairs are ordered by w(d) G(d) in place of r(d), and weighted by the difference. Row
    weights are copies: a pair counts c(d) c(d') times, in the sum and in the divisor.
    """
    check(scores, batch, sigma=sigma)
    if batch.row_weight is not None:
        return _pairwise(scores, batch, sigma, _shares_of_copies(batch))
    n_pairs = sum_by(_n_lower(batch), batch.query, batch.n_queries).clamp(min=1)
    if batch.weights is None:
        return _pairwise(scores, batch, sigma, lambda higher, lower: 1.0) / n_pairs
    values = batch.weighted(batch.gains)[batch.by_tier]
    return _pairwise(scores, batch, sigma, lambda higher, lower: values[higher] - values[lower]) / n_pairs


@loss()
def lambdarank(scores: Tensor, batch: Batch, *, sigma: float = 1.0) -> Tensor:
    """LambdaRank (Burges et al., 2006) as a loss: each pair is weighted by the change of NDCG if the two are swapped.

        L = sum over r(d) > r(d') of |G(d) - G(d')| / IDCG * |D(d) - D(d')| * ln(1 + e^(-sigma (f(d) - f(d'))))

    with D = 1 / log2(1 + rank) by the scores, taken as given when differentiating.
    """
    return lambdaloss(scores, batch, sigma=sigma, mu=0.0)


@loss()
def lambdaloss(scores: Tensor, batch: Batch, *, sigma: float = 1.0, mu: float = 10.0) -> Tensor:
    """NDCG-Loss2++ of LambdaLoss (Wang et al., 2018).

        L = sum over r(d) > r(d') of |G(d) - G(d')| / IDCG * (rho + mu delta) * ln(1 + e^(-sigma (f(d) - f(d'))))
        rho = |D_i - D_j|,  delta = D_|i-j| - D_|i-j|+1,  D_i = 1 / log2(1 + i)

    with i and j the ranks of d and d' by the scores, taken as given when differentiating. The paper has log2 in place
    of ln, which is a constant factor. mu = 0 is ``lambdarank``. In a batch with weights, gains are multiplied by them,
    and IDCG is not.

    Row weights are copies, one below the other in the ranking; each takes a rank, also in IDCG. A fraction of a copy
    takes that fraction of a rank. With s(x) the sum of the discounts of the first x places, linear between integers,
    the pairs of the copies of a row at the places x to x + c and those of a row further down, y to y + c', have
    together

        rho: |c' (s(x + c) - s(x)) - c (s(y + c') - s(y))|
        delta: s(y - x) - s(y - x - c) - s(y + c' - x) + s(y + c' - x - c)
    """
    check(scores, batch, sigma=sigma)
    mu = as_number("mu", mu, 0, 1e9)
    gains = batch.weighted(batch.relative_gains)[batch.by_tier]
    if batch.row_weight is not None:
        places = _Places(scores.detach(), batch, mu)
        return _pairwise(scores, batch, sigma, lambda i, j: places.weigh(i, j).mul_((gains[i] - gains[j]).abs_()))
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


class _Places:
    """The places that the copies of each row take by the scores, for rows in the order by tier."""

    def __init__(self, scores: Tensor, batch: Batch, mu: float) -> None:
        order = batch.order_by(scores)
        self.mu, self.dtype, self.sums = mu, scores.dtype, batch.discount_sums
        counts = exact(torch.as_tensor(batch.row_weight))
        edges = edges_of(counts[order])
        starts = edges[:-1] - edges[batch.offsets[:-1]].index_select(0, batch.query)
        starts = torch.empty_like(starts).scatter_(0, order, starts)[batch.by_tier]
        self.starts, self.counts = starts, counts[batch.by_tier]
        self.discounts = self.sum_to(starts + self.counts) - self.sum_to(starts)

    def sum_to(self, places: Tensor) -> Tensor:
        """The sum of the discounts of the first places."""
        whole = places.clamp_(min=0).long()
        return torch.lerp(self.sums[whole], self.sums[whole + 1], places - whole)

    def weigh(self, i: Tensor, j: Tensor) -> Tensor:
        """The sum of rho + mu delta over all pairs of a copy of row i and one of row j."""
        weights = (self.counts[j] * self.discounts[i] - self.counts[i] * self.discounts[j]).abs_()
        if self.mu:
            is_first = self.starts[i] <= self.starts[j]
            upper, lower = torch.where(is_first, i, j), torch.where(is_first, j, i)
            apart, c, d = self.starts[lower] - self.starts[upper], self.counts[upper], self.counts[lower]
            nearer = self.sum_to(apart.clone()) - self.sum_to(apart - c)
            further = self.sum_to(apart + d) - self.sum_to(apart + d - c)
            weights += self.mu * (nearer - further).clamp_(min=0)
        return weights.to(self.dtype)


def _shares_of_copies(batch: Batch) -> Callable[[Tensor, Tensor], Tensor]:
    """For pairs of rows in the order by tier, the share of their copies in all pairs of copies of the query."""
    ladder, logs = batch.tier_ladder, torch.as_tensor(batch.log_row_weight)
    below = ladder.below(log_sum_by(logs, batch.groups, ladder.n_rungs))  # a sum that loses no small weights
    counts = exact(torch.as_tensor(batch.row_weight))
    n_pairs = sum_by(counts * below.index_select(0, batch.groups).exp_(), batch.query, batch.n_queries)
    roots = torch.where(n_pairs > 0, n_pairs.rsqrt(), 0.0)
    shares = (counts * roots[batch.query])[batch.by_tier].to(batch.dtype)
    if batch.weights is None:
        return lambda higher, lower: shares[higher] * shares[lower]
    values = batch.weighted(batch.gains)[batch.by_tier]
    return lambda higher, lower: shares[higher] * shares[lower] * (values[higher] - values[lower])


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
