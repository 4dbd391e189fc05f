"""Steps of Adam in compiled code, for the networks of the paper and steps over few documents.

torch takes half a millisecond for a step on one query of 40 documents, most of it for calls: the presets of the paper
train several times as fast. Default settings leave this to torch: they have dropout, and inputs so wide that, even
without dropout, compiled steps take 0.9 to 1.6 times the CPU time of torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from tierank.kernels.mlp_training import (
    ELU,
    RELU,
    TIERS,
    AdamState,
    LearnedQueries,
    StepArrays,
    StepSettings,
    train_mlp,
)
from tierank.networks import MLP, TierRNN

_ACTIVATIONS = {"relu": RELU, "elu": ELU}
# The most products in the forward pass of a step: torch is faster above that (measured).
_MOST_PRODUCTS = 1 << 23
# Steps without a look at Ctrl-C: a second at most.
_AT_ONCE = 1024


class CompiledSteps:
    """Trains a network that ``suits`` by the loss ``kind`` of ``kernels.mlp_training`` with a target per document.

    Between epochs, torch has the weights, and its ``optimizer`` the moments.
    """

    def __init__(
        self, network: Any, kind: int, targets: Tensor, lists: Any, optimizer: Any, settings: Mapping[str, Any]
    ) -> None:
        whole, layers = lists.whole, _layers(network)
        self.lists, self.optimizer, self.has_states = lists, optimizer, kind == TIERS
        clip_norm = math.inf if settings["clip_norm"] is None else settings["clip_norm"]
        sizes = np.array([layers[0].in_features, *(layer.out_features for layer in layers)])
        activation, per_step = _ACTIVATIONS[network.body.activation], settings["queries_per_step"]
        self.settings = StepSettings(sizes, activation, kind, per_step, settings["weight_decay"], clip_norm)
        weights = np.ones(whole.n_queries) if lists.weights is None else lists.weights.double().numpy()
        self.queries = LearnedQueries(
            whole.offsets.numpy(),
            lists.kept_inputs.numpy().ravel(),
            whole.tiers.numpy(),
            targets.double().numpy(),
            weights,
        )
        lengths = np.sort(np.diff(self.queries.offsets))
        n_documents, longest = int(lengths[-per_step:].sum()), int(lengths[-1])
        n_tiers, width = int(self.queries.tiers.max()) + 1, int(sizes[-1])
        values, deltas = np.empty((2, len(sizes), n_documents * int(sizes.max())), np.float32)
        # Outputs, scores and states of the steps from tier to tier, if there are any.
        shapes = [(n_tiers, longest * width), (n_tiers, longest), (n_tiers, width), (4, width)]
        steps = [np.empty(shape if self.has_states else (0, 0), np.float32) for shape in shapes]
        gradient = np.empty(sum(parameter.numel() for parameter in network.parameters()), np.float32)
        self.room = StepArrays(np.zeros(1), gradient, values, deltas, np.empty((3, n_tiers)), *steps)

    def epoch(self, order: Tensor, rates: Sequence[float]) -> tuple[float, str | None]:
        """Take one step for each learning rate, over the queries in this order.

        Returns the sum of the losses, and the first query whose loss is not finite, or None.
        """
        n_parameters, per_step = len(self.optimizer.parameters), self.settings.per_step
        states = [self.optimizer.state_of(number) for number in range(n_parameters)]
        # The parameters in the order of the layers, and their moments; flat, with a row of outputs for each input.
        tensors = [self.optimizer.parameters, *([one[name] for one in states] for name in ("exp_avg", "exp_avg_sq"))]
        flat = [np.concatenate([tensor.detach().numpy().T.ravel() for tensor in some]) for some in tensors]
        # Adam counts the steps of each parameter; the last one is that from state to state, if there are states.
        adam = AdamState(np.array([int(states[number]["step"]) for number in (0, -1)]), *flat)
        self.room.total[0], wrong = 0.0, -1
        for start in range(0, len(rates), _AT_ONCE):
            some = np.array(rates[start : start + _AT_ONCE])
            queries = order.numpy()[start * per_step : (start + len(some)) * per_step]
            wrong = train_mlp(queries, some, self.queries, self.settings, adam, self.room)
            if wrong >= 0:
                break
        for array, group in zip(flat, tensors, strict=True):
            ends = np.cumsum([tensor.numel() for tensor in group])
            for tensor, part in zip(group, np.split(array, ends[:-1]), strict=True):
                own = tensor.detach().numpy()
                own[...] = part.reshape(own.T.shape).T
        for number, state in enumerate(states):
            state["step"].fill_(int(adam.n_taken[int(self.has_states and number == n_parameters - 1)]))
        return float(self.room.total[0]), None if wrong < 0 else str(self.lists.query_ids[wrong])


def suits(network: Any, kind: int, lists: Any, settings: Mapping[str, Any]) -> bool:
    """Whether compiled steps can train a network, and are faster than torch. A subclass may compute anything."""
    if kind == TIERS:
        is_plain = type(network) is TierRNN and (network.cell, network.pooling) == ("rnn", "max")
    else:
        is_plain = type(network) is MLP and network.output_activation is None
    if not is_plain or network.body.activation not in _ACTIVATIONS or network.body.dropout > 0:
        return False
    whole, layers = lists.whole, _layers(network)
    if lists.team.size > 1 or lists.device.type != "cpu" or not lists.keeps_inputs or whole.row_weight is not None:
        return False
    n_documents = settings["queries_per_step"] * whole.n_documents / whole.n_queries
    n_products = n_documents * sum(layer.weight.numel() for layer in layers)
    if kind == TIERS:  # a pass for each tier, whose states are kept
        n_passes = int(whole.n_tiers.max()) - 1
        n_products = max(n_passes * n_products, n_passes * int(whole.lengths.max()) * layers[-1].out_features)
    return bool(n_products <= _MOST_PRODUCTS)


def _layers(network: Any) -> list[nn.Linear]:
    """The layers that follow each other."""
    return [*network.body.layers, network.from_document if isinstance(network, TierRNN) else network.output]
