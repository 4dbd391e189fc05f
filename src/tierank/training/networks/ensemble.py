"""Ensemble: the learners of a boosted model as one network."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tierank.losses import Batch


class Ensemble(nn.ModuleDict):
    """f_1 + coefficient (f_2 + f_3 + ...), learners by their numbers; f_1 is missing if a base ranker gives it."""

    def __init__(self, learners: Mapping[int, nn.Module], coefficient: float, *, shares_inputs: bool = True) -> None:
        super().__init__({str(number): network for number, network in learners.items()})
        self.coefficient, self.shares_inputs = coefficient, shares_inputs

    def forward(self, features: Tensor, batch: Batch) -> Tensor:
        """One score per document. Learners get all columns, or their own ones if they do not share inputs."""
        scores = torch.zeros(len(features), dtype=torch.float64, device=features.device)
        given = [features] * len(self) if self.shares_inputs else features.chunk(len(self), dim=1)
        for (factor, network), own in zip(self.terms(), given, strict=True):
            scores = scores + factor * network(own, batch).double()
        return scores

    def terms(self) -> list[tuple[float, nn.Module]]:
        """The learners with their weights."""
        return [(1.0 if number == "1" else self.coefficient, network) for number, network in self.items()]
