"""NetworkFit: what all networks of one call of ``fit`` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from tierank.losses import Batch
from tierank.training.checkpoint import described
from tierank.training.identity import is_of_caller
from tierank.training.model import FitContext
from tierank.training.networks.checkpoint import NetworkCheckpoint
from tierank.training.networks.lists import QueryLists
from tierank.training.selection import Judging

Loss = Callable[[Tensor, Batch], Tensor]


@dataclass
class NetworkFit:
    """What all networks of one call of ``fit`` share."""

    settings: dict[str, Any]
    loss: Loss
    lists: QueryLists
    valid: QueryLists | None
    judge: Judging | None
    context: FitContext

    def open_checkpoint(self) -> NetworkCheckpoint | None:
        """The checkpoint of this call; None if none was requested."""
        context = replace(self.context, team=self.lists.team)
        return None if context.checkpoint is None else NetworkCheckpoint(context, self.settings, self._made_of())

    def _made_of(self) -> list[Any]:
        """Everything besides the settings that the networks depend on."""
        made_of: list[Any] = [self.lists.content, None if self.valid is None else self.valid.content]
        if is_of_caller(self.loss):  # also if a class or a table provides it, not a setting
            made_of.append(described(self.loss))
        if self.settings["query_order"] == "given":
            made_of.append({"order": self.lists.given_order.tolist()})
        if self.context.start is not None:
            made_of.append({"start": self.context.start.digest()})
        return made_of
