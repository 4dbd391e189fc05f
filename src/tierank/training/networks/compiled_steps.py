"""Steps of Adam in compiled code, for the networks of the paper and steps over few documents.

torch takes half a millisecond for a step on one query of 40 documents, most of it for calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from tierank.kernels.descent import ELU, RELU, TIERS, URANK, descend
from tierank.losses import Batch, urank, windowed_urank
from tierank.networks import MLP, TierRNN
from tierank.training.networks.adam import Adam
from tierank.training.networks.lists import QueryLists

_ACTIVATIONS = {"relu": RELU, "elu": ELU}
# The most products in the forward pass of a step: torch is faster above that (measured).
_MOST_PRODUCTS = 1 << 23
# Steps without a look at Ctrl-C: a second at most.
_AT_ONCE = 1024


class CompiledLoss(NamedTuple):
    """A loss of ``kernels.descent``, and the numbers that it takes for each document."""

    kind: int
    targets: Tensor


def as_urank(loss: Any, batch: Batch) -> CompiledLoss | None:
    """The loss for compiled steps, if it is that of uRank without a window or row weights; else None."""
    function, named = (loss.func, loss.keywords) if isinstance(loss, partial) and not loss.args else (loss, {})
    is_urank = (function is urank and not named) or (function is windowed_urank and named == {"window": None})
    return CompiledLoss(URANK, batch.urank_weights) if is_urank and batch.row_weight is None else None


def suits(network: Any, loss: CompiledLoss, lists: QueryLists, settings: Mapping[str, Any]) -> bool:
    """Whether compiled steps can train a network, and are faster than torch."""
    if not _is_plain(network, loss) or lists.team.size > 1 or lists.device.type != "cpu" or not lists.keeps_inputs:
        return False
    whole, layers = lists.whole, _layers(network)
    n_documents = settings["queries_per_step"] * whole.n_documents / whole.n_queries
    n_products = n_documents * sum(layer.weight.numel() for layer in layers)
    if loss.kind == TIERS:  # a pass for each tier, whose states are kept
        n_passes = int(whole.n_tiers.max()) - 1
        n_products = max(n_passes * n_products, n_passes * int(whole.lengths.max()) * layers[-1].out_features)
    return bool(n_products <= _MOST_PRODUCTS)


def _is_plain(network: Any, loss: CompiledLoss) -> bool:
    """Whether the kernel computes this network; a subclass may compute anything."""
    if loss.kind == TIERS:
        is_plain = type(network) is TierRNN and (network.cell, network.pooling) == ("rnn", "max")
    else:
        is_plain = type(network) is MLP and network.output_activation is None
    return is_plain and network.body.activation in _ACTIVATIONS and network.body.dropout == 0


class CompiledDescent:
    """What ``Descent`` does, for networks that ``suits`` accepts. Between epochs, torch has the weights."""

    def __init__(self, network: Any, loss: CompiledLoss, lists: QueryLists, settings: Mapping[str, Any]) -> None:
        self.loss, self.lists, self.settings = loss, lists, settings
        self.activation = _ACTIVATIONS[network.body.activation]
        self.optimizer = Adam(network.parameters(), settings["weight_decay"])
        layers = _layers(network)
        self.sizes = np.array([layers[0].in_features, *(layer.out_features for layer in layers)])
        whole = lists.whole
        self.offsets, self.tiers = whole.offsets.numpy(), whole.tiers.numpy()
        self.targets = loss.targets.double().numpy()
        self.query_weight = np.ones(whole.n_queries) if lists.weights is None else lists.weights.double().numpy()
        self._make_room(sum(parameter.numel() for parameter in network.parameters()))

    def _make_room(self, n_weights: int) -> None:
        """The arrays of a step."""
        lengths = np.sort(np.diff(self.offsets))
        n_documents, longest = int(lengths[-self.settings["queries_per_step"] :].sum()), int(lengths[-1])
        n_tiers, width = int(self.tiers.max()) + 1, int(self.sizes[-1])
        self._gradient = np.empty(n_weights, np.float32)
        self._values, self._deltas = (
            np.empty((len(self.sizes), n_documents * int(self.sizes.max())), np.float32) for _ in range(2)
        )
        self._of_tiers = np.empty((3, n_tiers))
        shapes = [(n_tiers, longest * width), (n_tiers, longest), (n_tiers, width), (4, width)]
        self._recurrent = [np.empty(shape if self.loss.kind == TIERS else (0, 0), np.float32) for shape in shapes]

    def epoch(self, order: Tensor, rates: Sequence[float]) -> tuple[float, str | None]:
        """Take one step for each learning rate, over the queries in this order.

        Returns the sum of the losses, and the first query whose loss is not finite, or None.
        """
        weights, first, second = self._pack()
        features, queries, total = self.lists.kept_inputs().numpy().ravel(), order.numpy(), np.zeros(1)
        per_step = self.settings["queries_per_step"]
        # Adam counts the steps of each parameter; the last one is that from state to state, if there are states.
        n_taken = np.array([int(self.optimizer.state_of(number)["step"]) for number in (0, self._n_parameters - 1)])
        hidden, of_steps, states, work = self._recurrent
        wrong = -1
        for start in range(0, len(rates), _AT_ONCE):
            some = np.array(rates[start : start + _AT_ONCE])
            wrong = descend(
                queries[start * per_step : (start + len(some)) * per_step],
                per_step,
                self.offsets,
                features,
                self.tiers,
                self.targets,
                self.query_weight,
                self.sizes,
                self.activation,
                self.loss.kind,
                some,
                self.settings["weight_decay"],
                math.inf if self.settings["clip_norm"] is None else self.settings["clip_norm"],
                n_taken,
                weights,
                first,
                second,
                self._gradient,
                self._values,
                self._deltas,
                self._of_tiers,
                hidden,
                of_steps,
                states,
                work,
                total,
            )
            if wrong >= 0:
                break
        self._unpack([weights, first, second], n_taken)
        return float(total[0]), None if wrong < 0 else str(self.lists.query_ids[wrong])

    @property
    def _n_parameters(self) -> int:
        return len(self.optimizer.parameters)

    def _pack(self) -> list[NDArray[np.float32]]:
        """Weights and moments as flat arrays, with a row of outputs for each input."""
        return [
            np.concatenate([tensor.detach().numpy().T.ravel() for tensor in tensors]) for tensors in self._tensors()
        ]

    def _unpack(self, arrays: list[NDArray[np.float32]], n_taken: NDArray[np.int64]) -> None:
        for array, tensors in zip(arrays, self._tensors(), strict=True):
            ends = np.cumsum([tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, np.split(array, ends[:-1]), strict=True):
                own = tensor.detach().numpy()
                own[...] = part.reshape(own.T.shape).T
        for number in range(self._n_parameters):
            is_between = self.loss.kind == TIERS and number == self._n_parameters - 1
            self.optimizer.state_of(number)["step"].fill_(int(n_taken[int(is_between)]))

    def _tensors(self) -> list[list[Tensor]]:
        """The parameters in the order of the layers, and their moments."""
        states = [self.optimizer.state_of(number) for number in range(self._n_parameters)]
        return [list(self.optimizer.parameters), *([one[name] for one in states] for name in ("exp_avg", "exp_avg_sq"))]


def _layers(network: Any) -> list[nn.Linear]:
    """The layers that follow each other."""
    return [*network.body.layers, network.from_document if isinstance(network, TierRNN) else network.output]
