"""Losses over tiers: those of the paper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tierank.losses.batch import (
    Batch,
    Ladder,
    blocks,
    check,
    edges_of,
    exact,
    log_sum_by,
    partners,
    select_from,
    select_tiers,
    softplus,
    sum_by,
)
from tierank.losses.tensors import loss, with_gradient
from tierank.settings import as_whole


@loss()
def urank(scores: Tensor, batch: Batch) -> Tensor:
    """The uRank loss (Eq. 2 of the paper): the documents of each tier are selected from themselves and all tiers below.

        L = 1 / (|R| - 1) * sum over t < |R| of sum over d in c_t of G(d) ln(1 + k(s~_t) / e^f(d))

    with k(s~_t) the sum of e^f over the documents rated lower than tier t. Linear in the documents, in time and memory.

    Row weights c are copies: G(d) becomes c(d) G(d), and k(s~_t) the sum of c e^f. |R| does not change.
    """
    return select_tiers(scores, batch)


def stepwise_urank(step_scores: Sequence[Tensor], batch: Batch, *, window: int | None = None) -> Tensor:
    """The uRank loss if a document has a score for each step: the loss of tier t uses the scores of step t.

    ``step_scores[t]`` has one score for each of ``batch.steps[t].rows``, as the networks with steps give them. With a
    ``window`` each step has the likelihood of ``windowed_urank``. Row weights as in these two.
    """
    if not batch.steps:  # no query has an order to learn; backward() then has nothing to do, and does not fail
        return torch.zeros(batch.n_queries, dtype=batch.dtype, device=batch.device, requires_grad=True)
    scores, rows = torch.cat(list(step_scores)), torch.cat([step.rows for step in batch.steps])
    t = torch.cat([torch.full_like(step.rows, i) for i, step in enumerate(batch.steps)])
    is_left = batch.tiers[rows] > t
    first_steps = edges_of(batch.n_tiers - 1)
    steps = first_steps[batch.query[rows]] + t  # the number of each query's step among those of all queries
    if window is None:  # a ladder of all steps: on each, the selected documents are above the rest
        ladder = Ladder(2 * steps + is_left, torch.arange(0, 2 * int(first_steps[-1]) + 1, 2, device=batch.device))
        log_counts = None if batch.log_row_weight is None else batch.log_row_weight[rows]
        values = select_from(scores, batch.urank_weights[rows[ladder.rows]], ladder, log_counts)
    else:  # each step as a query of two ratings
        order = steps.argsort(stable=True)
        rows = rows[order]
        queries = Batch(
            edges_of(torch.bincount(steps)).cpu().numpy(),
            (~is_left)[order].double().cpu().numpy(),
            row_weight=None if batch.row_weight is None else batch.row_weight[rows].cpu().numpy(),
            dtype=batch.dtype,
            device=batch.device,
        )
        scores = scores.index_select(0, order)
        values = _in_windows(scores, queries, batch.urank_weights[rows], as_whole("window", window))
    of_steps = torch.arange(batch.n_queries, device=batch.device).repeat_interleave(batch.n_tiers - 1)
    return sum_by(values, of_steps, batch.n_queries)


@loss()
def windowed_urank(scores: Tensor, batch: Batch, *, window: int | None = 2) -> Tensor:
    """The uRank loss with the windowed likelihood (Eq. 3 of the paper).

        L = 1 / (|R| - 1) * sum over t < |R| of sum over d in c_t of G(d) * sum over b of ln(1 + k(b) / e^f(d))

    The documents rated lower than tier t, by decreasing score, are cut into windows b of ``window`` documents; None:
    one window, which is ``urank``. The order of the scores is taken as given when differentiating. A query of n
    documents takes time in proportion to n^2 / ``window``; memory does not grow with it.

    Row weights c multiply G(d), and k(b) is the sum of c e^f. A window has ``window`` rows, whatever they weigh, so a
    row of weight 2 is the row twice only if one window has all of them.
    """
    if window is None:
        return urank(scores, batch)
    check(scores, batch)
    return _in_windows(scores, batch, batch.urank_weights, as_whole("window", window))


def _in_windows(scores: Tensor, batch: Batch, weights: Tensor, window: int) -> Tensor:
    """For each query, the sum over the documents d above the lowest tier of w(d) * sum over b of ln(1 + k(b) / e^f)."""
    with torch.no_grad():
        wide, of_documents = exact(scores), exact(weights)
        totals, gradient = torch.zeros_like(wide), torch.zeros_like(wide)
        order = batch.order_by(scores)
        group_query = torch.arange(batch.n_queries, device=batch.device).repeat_interleave(batch.n_tiers)
        for span in blocks(batch.lengths[group_query]):
            _add_windows(span, wide, batch, of_documents, window, order, group_query, totals, gradient)
        values = sum_by(totals, batch.query, batch.n_queries)
    return with_gradient(scores, values.to(scores.dtype), gradient.to(scores.dtype), batch)


def _add_windows(
    span: slice,
    scores: Tensor,
    batch: Batch,
    of_documents: Tensor,
    window: int,
    order: Tensor,
    group_query: Tensor,
    totals: Tensor,
    gradient: Tensor,
) -> None:
    """Add the windowed losses of the tiers in the span to the totals of their documents, and their gradient."""
    queries = group_query[span]
    tier, place = partners(batch.offsets[queries], batch.lengths[queries])
    lower = order[place]
    is_lower = batch.groups[lower] > tier + span.start
    if batch.row_weight is not None:
        is_lower &= batch.row_weight[lower] > 0
    tier, lower = tier[is_lower], lower[is_lower]
    n_lower = torch.bincount(tier, minlength=len(queries))
    n_windows = (n_lower + window - 1) // window
    first_windows = edges_of(n_windows)
    place = torch.arange(len(lower), device=batch.device) - edges_of(n_lower)[tier]
    member_of = first_windows[tier] + place // window
    powers = batch.log_powers(scores)[lower]
    sums = log_sum_by(powers, member_of, int(first_windows[-1]))
    pulls = torch.zeros_like(sums)

    upper = batch.by_tier[batch.group_edges[span.start] : batch.group_edges[span.stop]]
    tier = batch.groups[upper] - span.start
    for part in blocks(n_windows[tier]):
        rows, tiers = upper[part], tier[part]
        row, partner = partners(first_windows[tiers], n_windows[tiers])
        margins = sums[partner] - scores[rows][row]
        weights = of_documents[rows][row]
        totals[rows] = sum_by(softplus(margins) * weights, row, len(rows))
        pull = torch.sigmoid(margins) * weights
        gradient.index_add_(0, rows, -sum_by(pull, row, len(rows)))
        pulls.index_add_(0, partner, pull)
    gradient.index_add_(0, lower, pulls[member_of] * (powers - sums[member_of]).exp())
