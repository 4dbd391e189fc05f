"""Selecting documents from themselves and all below them, in linear time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tierank.losses.segments import exact, log_of_nothing, log_sum_by, softplus, sum_by


class Ladder:
    """Documents on the rungs of their query, from the top down: how to sum over all rungs below or above each one.

    Sums are computed by doubling: each jump adds to every rung the current sum of the rung 1, 2, 4, ... further on. A
    jump out of the query ends at a place after all rungs, which holds ln 0.
    """

    def __init__(self, rung: Tensor, edges: Tensor) -> None:
        self.rung, self.n_rungs, self.n_queries = rung, int(edges[-1]), len(edges) - 1
        counts = edges.diff()
        query = torch.arange(self.n_queries, device=rung.device).repeat_interleave(counts)
        place = torch.arange(self.n_rungs, device=rung.device) - edges[query]
        n_after = counts[query] - place - 1
        self.n_jumps = max(int(counts.max()) - 2, 0).bit_length()
        strides = [1 << k for k in range(max(self.n_jumps, 1))]
        self.down = [_jump(stride, n_after >= stride) for stride in strides]
        self.up = [_jump(-stride, place >= stride) for stride in strides]
        self.query = query.index_select(0, rung)
        self.rows = (n_after > 0).index_select(0, rung).nonzero().squeeze(1)  # above the lowest rung: to be selected
        self.row_rung = rung.index_select(0, self.rows)
        self.row_query = self.query.index_select(0, self.rows)

    def below(self, logs: Tensor) -> Tensor:
        """The logarithm of the sum of e^x over all rungs below each one."""
        return self._beyond(logs, self.down)

    def above(self, logs: Tensor) -> Tensor:
        """The logarithm of the sum of e^x over all rungs above each one."""
        return self._beyond(logs, self.up)

    def _beyond(self, logs: Tensor, jumps: list[Tensor]) -> Tensor:
        sums = functional.pad(logs, (0, 1), value=log_of_nothing(logs.dtype))
        for jump in jumps[: self.n_jumps]:
            further = sums.index_select(0, jump)
            # torch's second derivative of logaddexp is NaN where the two are far apart; logaddexp is the faster one.
            sums = torch.stack([sums, further]).logsumexp(0) if logs.requires_grad else torch.logaddexp(sums, further)
        return sums.index_select(0, jumps[0])


def _jump(stride: int, stays: Tensor) -> Tensor:
    """Where the jump from each rung ends, and from the place after them."""
    behind = len(stays)
    ends = torch.where(stays, torch.arange(behind, device=stays.device) + stride, behind)
    return functional.pad(ends, (0, 1), value=behind)


class _Selection(torch.autograd.Function):
    """For each query, the sum over the documents d above the lowest rung of w(d) ln(1 + k(below d) / e^f(d)).

    With p(d) = k(below d) / (k(below d) + e^f(d)) and c the row weights the derivative for a document d' is

        -w(d') p(d') + sum over rungs t above d' of c(d') e^f(d') / k(below t) * sum over d on rung t of w(d) p(d).
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, weights: Tensor, ladder: Ladder, log_counts: Tensor | None) -> Tensor:
        below, margins, values = _select(scores, weights, ladder, log_counts)
        ctx.ladder, ctx.log_counts = ladder, log_counts
        ctx.save_for_backward(scores, weights, below, margins)
        return values.to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        scores, weights, below, margins = ctx.saved_tensors
        ladder: Ladder = ctx.ladder
        if torch.is_grad_enabled():  # for second derivatives, torch differentiates
            *_, values = _select(scores, weights, ladder, ctx.log_counts)
            return *torch.autograd.grad(values.to(scores.dtype), scores, outer, create_graph=True), None, None, None
        pulls = torch.sigmoid(margins).mul_(weights)
        # Sums of pulls that are 0 turn into e^-inf = 0. Below the lowest rung nothing is left to divide by, or to pull.
        logs = sum_by(pulls, ladder.row_rung, ladder.n_rungs).log_().sub_(below[:-1])
        gradient = ladder.above(logs).index_select(0, ladder.rung).add_(scores)
        gradient = (gradient if ctx.log_counts is None else gradient.add_(ctx.log_counts)).exp_()
        gradient.scatter_add_(0, ladder.rows, pulls.neg_())
        return gradient.to(scores.dtype).mul_(outer[0].index_select(0, ladder.query)), None, None, None


def _select(
    scores: Tensor, weights: Tensor, ladder: Ladder, log_counts: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """For each rung ln k(below), for each document to select ln k(below d) - f(d), and the loss of each query."""
    scores, weights = exact(scores), exact(weights)
    powers = scores if log_counts is None else scores + log_counts
    below = ladder.below(log_sum_by(powers, ladder.rung, ladder.n_rungs))
    margins = below.index_select(0, ladder.row_rung).sub_(scores.index_select(0, ladder.rows))
    return below, margins, sum_by(softplus(margins).mul_(weights), ladder.row_query, ladder.n_queries)


def select_from(scores: Tensor, weights: Tensor, ladder: Ladder, log_counts: Tensor | None = None) -> Tensor:
    """For each query, the sum over the documents d above the lowest rung of w(d) ln(1 + k(below d) / e^f(d)).

    k sums c e^f, with ``log_counts`` ln c of each document, or None where c is 1.
    """
    values: Tensor = _Selection.apply(scores, weights, ladder, log_counts)  # type: ignore[no-untyped-call]
    return values
