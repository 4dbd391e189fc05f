"""Losses over tiers: those of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tierank.losses.batch import Batch, check
from tierank.losses.gradient import with_gradient
from tierank.losses.ladder import select_from
from tierank.losses.segments import blocks, edges_of, log_sum_by, partners, softplus, sum_by
from tierank.settings import as_whole


def urank(scores: Tensor, batch: Batch) -> Tensor:
    """The uRank loss (Eq. 2 of the paper): the documents of each tier are selected from themselves and all tiers below.

        L = 1 / (|R| - 1) * sum over t < |R| of sum over d in c_t of G(d) ln(1 + k(s~_t) / e^f(d))

    with k(s~_t) the sum of e^f over the documents rated lower than tier t. Linear in the documents, in time and memory.
    """
    check(scores, batch)
    return select_from(scores, batch.tier_ladder_weights, batch.tier_ladder)


def stepwise_urank(step_scores: Sequence[Tensor], batch: Batch) -> Tensor:
    """The uRank loss where a document has a score for each step: that of tier t takes the scores of step t.

    ``step_scores[t]`` has one score for each of ``batch.steps[t].rows``, as the networks with steps give them.
    """
    if not batch.steps:  # no query has an order to learn; backward() then has nothing to do, and does not fail
        return torch.zeros(batch.n_queries, dtype=batch.dtype, device=batch.device, requires_grad=True)
    ladder, weights, queries = batch.step_ladder
    values = select_from(torch.cat(list(step_scores)), weights, ladder)
    return sum_by(values, queries, batch.n_queries)


def windowed_urank(scores: Tensor, batch: Batch, *, window: int | None = 2) -> Tensor:
    """The uRank loss with the windowed likelihood (Eq. 3 of the paper).

        L = 1 / (|R| - 1) * sum over t < |R| of sum over d in c_t of G(d) * sum over b of ln(1 + k(b) / e^f(d))

    The documents rated lower than tier t, by decreasing score, are cut into windows b of ``window`` documents; None:
    one window, which is ``urank``. The order of the scores is taken as given when differentiating.
    """
    if window is None:
        return urank(scores, batch)
    check(scores, batch)
    window = as_whole("window", window)
    with torch.no_grad():
        totals, gradient = torch.zeros_like(scores), torch.zeros_like(scores)
        order = batch.order_by(scores)
        group_query = torch.arange(batch.n_queries, device=batch.device).repeat_interleave(batch.n_tiers)
        for span in blocks(batch.lengths[group_query]):
            _add_windows(span, scores, batch, window, order, group_query, totals, gradient)
        values = sum_by(totals.double(), batch.query, batch.n_queries).to(scores.dtype)
    return with_gradient(scores, values, gradient, batch)


def _add_windows(
    span: slice,
    scores: Tensor,
    batch: Batch,
    window: int,
    order: Tensor,
    group_query: Tensor,
    totals: Tensor,
    gradient: Tensor,
) -> None:
    """Add the windowed losses of the tiers in the span to the totals of their documents, and what they pull at."""
    queries = group_query[span]
    tier, place = partners(batch.offsets[queries], batch.lengths[queries])
    lower = order[place]
    is_lower = batch.groups[lower] > tier + span.start
    tier, lower = tier[is_lower], lower[is_lower]
    n_lower = torch.bincount(tier, minlength=len(queries))
    n_windows = (n_lower + window - 1) // window
    first_windows = edges_of(n_windows)
    place = torch.arange(len(lower), device=batch.device) - edges_of(n_lower)[tier]
    member_of = first_windows[tier] + place // window
    sums = log_sum_by(scores[lower], member_of, int(first_windows[-1]))
    pulls = torch.zeros_like(sums)

    upper = batch.by_tier[batch.group_edges[span.start] : batch.group_edges[span.stop]]
    tier = batch.groups[upper] - span.start
    for part in blocks(n_windows[tier]):
        rows, tiers = upper[part], tier[part]
        row, partner = partners(first_windows[tiers], n_windows[tiers])
        margins = sums[partner] - scores[rows][row]
        weights = batch.urank_weights[rows][row]
        totals[rows] = sum_by(softplus(margins) * weights, row, len(rows))
        pull = torch.sigmoid(margins) * weights
        gradient.index_add_(0, rows, -sum_by(pull, row, len(rows)))
        pulls.index_add_(0, partner, pull)
    gradient.index_add_(0, lower, pulls[member_of] * (scores[lower] - sums[member_of]).exp())
