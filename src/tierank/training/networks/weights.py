"""The weights of networks by name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

Weights = dict[str, Tensor]


def copied(network: nn.Module) -> Weights:
    """A copy of the weights of a network, in main memory."""
    return {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}


def inside(tensors: Mapping[str, Tensor], prefix: str) -> Weights:
    """The tensors whose names begin so, without that."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
