"""Steps of Adam on the loss of some queries, in one process or in a team."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tierank.errors import ParameterError
from tierank.losses import Batch
from tierank.objectives.loss import check_values
from tierank.team import Team
from tierank.training.networks.adam import Adam
from tierank.training.networks.lists import QueryLists


class Descent:
    """Adam, or AdamW with ``weight_decay``, on a network. ``values`` returns the loss of each query of a batch."""

    def __init__(
        self,
        network: nn.Module,
        values: Callable[[Tensor, Batch], Tensor],
        lists: QueryLists,
        settings: Mapping[str, Any],
        team: Team,
    ) -> None:
        self.values, self.lists, self.team = values, lists, team
        self.clip_norm, self.queries_per_step = settings["clip_norm"], settings["queries_per_step"]
        self.parameters = list(network.parameters())
        self.optimizer = Adam(self.parameters, settings["weight_decay"])

    def epoch(self, order: Tensor, rates: Sequence[float]) -> tuple[float, str | None]:
        """Take one step for each learning rate, over the queries in this order; returns what ``step`` does."""
        total = 0.0
        for queries, rate in zip(torch.split(order, self.queries_per_step), rates, strict=True):
            loss, wrong = self.step(queries, rate)
            if wrong is not None:
                return total, wrong
            total += loss
        return total, None

    def step(self, queries: Tensor, rate: float) -> tuple[float, str | None]:
        """Take one step with this learning rate; returns the sum of the losses of the queries.

        If the loss of a query is not finite, no step is taken, and the id of that query is returned as well. In a team,
        each process computes the gradients of its own queries, and all take the same step with their sum.
        """
        own = self.lists.own(queries)
        for parameter in self.parameters:
            parameter.grad = None
        loss, wrong = self._differentiate(own, len(queries)) if len(own) else (0.0, None)
        if self.team.size > 1:
            loss, wrong = self._summed(loss, wrong)
        if wrong is None:
            if self.clip_norm is not None:
                _clip([p.grad for p in self.parameters if p.grad is not None], self.clip_norm)
            self.optimizer.step(rate)
        return loss, wrong

    def _differentiate(self, queries: Tensor, n_queries: int) -> tuple[float, str | None]:
        """Set the gradients of the sum of losses / n_queries; returns the sum, and a query whose loss is not finite."""
        features, batch = self.lists.batch(queries)
        values = self.values(features, batch)
        check_values(values, len(queries))
        if batch.ignores_row_weight:
            raise ParameterError(
                argument="row_weight",
                expected="a loss that reads batch.row_weight",
                got="one that does not",
                fix="leave out row_weight, or give query_weight",
            )
        loss = float(values.detach().sum())
        if not math.isfinite(loss) and not torch.isfinite(values).all():
            return 0.0, str(self.lists.query_ids[int(queries[~torch.isfinite(values)][0])])
        weighted = values if self.lists.weights is None else values * self.lists.weights[queries]
        torch.autograd.backward(weighted.sum() / n_queries)
        return loss, None

    def _summed(self, loss: float, wrong: str | None) -> tuple[float, str | None]:
        """Sum gradients and loss over the team, in one message."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        told = parts[0].new_tensor([loss, float(wrong is not None)])
        summed = self.team.all_reduce(torch.cat([*(part.flatten() for part in parts), told]))
        sizes = [part.numel() for part in parts]
        for parameter, gradient in zip(self.parameters, torch.split(summed[:-2], sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)
        if summed[-1] > 0:
            wrong = next(query for query in self.team.all_gather(wrong) if query is not None)
        return float(summed[-2]), wrong


def _clip(gradients: list[Tensor], limit: float) -> None:
    """Scale the gradients, as one vector, down to the maximum norm."""
    length = float(torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients])))
    if length > limit:
        for gradient in gradients:
            gradient.mul_(limit / length)
