"""The weights of networks by name."""

from __future__ import annotations

from torch import Tensor, nn

Weights = dict[str, Tensor]


def copied(network: nn.Module) -> Weights:
    """A copy of the weights of a network, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
