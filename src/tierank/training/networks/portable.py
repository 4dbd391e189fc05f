"""Networks in the neutral form that exports read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tierank.errors import ParameterError
from tierank.export import Embedding, Layer, Scorer, StandardisedMean
from tierank.networks import MLP, Embedded, Layers, TierRNN
from tierank.training.networks.inputs import Inputs


def mean_scorer(members: list[Scorer]) -> Scorer:
    """The one member, or the mean of several."""
    return members[0] if len(members) == 1 else StandardisedMean(tuple(members))


def layers_of(network: nn.Module) -> tuple[Layer, ...]:
    """The layers of a network that scores each document by itself. A subclass may compute anything, so it has none."""
    if isinstance(network, Embedded):
        return layers_of(network.network)
    if type(network) is MLP:
        return *_hidden(network.body), _layer(network.output, network.output_activation or "identity")
    if type(network) is TierRNN:  # only its first step, where the state is 0
        _check_exports(network)
        own = network.document_weights
        parts: list[Tensor] = [network.state_weights] if own is None else [network.state_weights, own]
        step = _layer(network.from_document, "tanh", keeps_input=own is not None)
        weights = _array(torch.cat(parts))[None]
        return *_hidden(network.body), step, Layer(weights, np.zeros(1, np.float32), "identity")
    name = type(network).__name__.lower()
    raise ParameterError(argument="network", expected="'mlp', to export", got=repr(name))


def embeddings_of(network: nn.Module, inputs: Inputs) -> tuple[Embedding, ...]:
    """The embedding tables of the categories of a network."""
    tables = network.embeddings() if isinstance(network, Embedded) else ()
    return tuple(Embedding(place, _array(table)) for place, table in zip(inputs.levels, tables, strict=True))


def _check_exports(network: TierRNN) -> None:
    """Raise an error for networks that no format can represent: gated layers, and documents chosen one by one."""
    for name, value, wanted in (("cell", network.cell, "rnn"), ("inference", network.inference, "first")):
        if value != wanted:
            raise ParameterError(argument=name, expected=f"{wanted!r}, to export", got=repr(value))


def _hidden(body: Layers) -> list[Layer]:
    return [_layer(layer, body.activation) for layer in body.layers]


def _layer(linear: Any, activation: str, keeps_input: bool = False) -> Layer:
    return Layer(_array(linear.weight), _array(linear.bias), activation, keeps_input)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return np.array(tensor.detach().cpu().numpy(), np.float32)
