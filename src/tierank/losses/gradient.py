"""Values whose derivatives are computed with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tierank.errors import ParameterError
from tierank.losses.batch import Batch


class _KnownGradient(torch.autograd.Function):
    """Values, one per query, whose derivatives have been computed with them."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, values: Tensor, gradient: Tensor, query: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, query)
        return values

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise ParameterError(
                "this loss cannot be differentiated twice: expected backward() without create_graph, or a loss that can"
                " be, such as urank, listnet, listmle, plistmle, softmax or neuralndcg"
            )
        gradient, query = ctx.saved_tensors
        return gradient * outer[0].index_select(0, query), None, None, None


def with_gradient(scores: Tensor, values: Tensor, gradient: Tensor, batch: Batch) -> Tensor:
    """The values of the queries; ``backward`` uses this gradient with respect to the scores."""
    known: Tensor = _KnownGradient.apply(scores, values, gradient, batch.query)  # type: ignore[no-untyped-call]
    return known
