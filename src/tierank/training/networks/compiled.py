"""Networks that compiled code scores: multilayer perceptrons with relu or leaky_relu, on the CPU.

The piecewise encoding is never materialised: its eight values for a feature are ones, then one fraction, then zeros, so
its product with the first layer is a weighted mean of two rows of cumulative weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property, partial
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tierank.dataset import RankingDataset
from tierank.kernels import in_threads
from tierank.kernels.layers import WIDTH, aligned, apply_layer, find_places, table
from tierank.memory import release_pages
from tierank.networks import MLP, Embedded, WithTower
from tierank.training.networks.ensemble import Ensemble
from tierank.training.networks.inputs import Inputs
from tierank.training.networks.portable import embeddings_of, layers_of
from tierank.training.sharing import share
from tierank.transforms import TRANSFORMS, Log1p, Piecewise, SideBySide, blocks
from tierank.types import Floats

# The slopes below 0 of piecewise-linear activations. Other activations are left to torch: vectorised exponentials of
# libraries round a number differently depending on its position.
_SLOPES = {"identity": 1.0, "relu": 0.0, "leaky_relu": 0.01}

_NOTHING = np.zeros(0, np.float32)

# Outputs of a layer that are held at a time: so that memory does not grow with the length of lists.
_VALUES_AT_ONCE = 1 << 18


class Numbers(NamedTuple):
    """The inputs of networks for some documents: numbers, and each feature's piece and share of that piece."""

    values: NDArray[np.float32]
    places: NDArray[np.uint8]
    shares: NDArray[np.float32]


# The inputs of each block of documents, by its first row.
Kept = dict[int, Numbers]


class SplitInputs:
    """The inputs of networks, with the piecewise encoding separate from the other numbers."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        # A subclass may compute anything.
        parts = inputs.transform.parts_ if type(inputs.transform) is SideBySide else ()
        self.pieces = parts[-1] if parts and type(parts[-1]) is Piecewise else None
        self.n_pieces = 0 if self.pieces is None else self.pieces.n_columns(inputs.n_features)

    @cached_property
    def key(self) -> str:
        """A digest that is the same for inputs that compute the same numbers."""
        transform = self.inputs.transform
        parts = transform.parts_ if type(transform) is SideBySide else (transform,)
        if any(type(part) not in (*TRANSFORMS.values(), Piecewise) for part in parts):
            return str(id(self))  # a custom transform may depend on more than its arrays
        digest = hashlib.sha256(repr([type(part).__name__ for part in parts]).encode())
        for array in transform.state().values():
            digest.update(array.tobytes())
        return digest.hexdigest()

    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> Numbers:
        """The inputs of networks for whole queries."""
        transform = self.inputs.transform
        if self.pieces is None or not isinstance(transform, SideBySide):
            places = np.zeros((len(features), 0), np.uint8)
            return Numbers(transform.values_of(features, offsets), places, places.astype(np.float32))
        values = transform.apply_parts(transform.parts_[:-1], features, offsets)
        places, shares = np.empty(features.shape, np.uint8), np.empty(features.shape, np.float32)
        low, slope = np.ascontiguousarray(self.pieces.low_.T), np.ascontiguousarray(self.pieces.slope_.T)
        logs = next((k for k, part in enumerate(transform.parts_) if type(part) is Log1p), None)
        if logs is None:
            scaled = self.pieces.rescaled(features)
        else:  # already among the values, clipped to the same limits
            before = sum(part.n_columns(features.shape[1]) for part in transform.parts_[:logs])
            scaled = np.ascontiguousarray(values[:, before : before + features.shape[1]])
        find_places(features, scaled, low, slope, np.empty(features.shape[1]), places, shares)
        return Numbers(values, places, shares)


class CompiledNetwork:
    """A network as tables that kernels read."""

    def __init__(self, network: nn.Module, inputs: SplitInputs) -> None:
        self.inputs = inputs.inputs
        self.embeddings = embeddings_of(network, self.inputs)
        first, *others = layers_of(network)
        numbers = self.inputs.numbers
        n_columns, n_outputs = self.inputs.transform.n_columns(self.inputs.n_features), len(first.bias)
        n_dense = n_columns - inputs.n_pieces
        columns = np.zeros((n_columns, n_outputs))  # columns of categories stay 0
        columns[numbers] = first.weights.T[: len(numbers)]
        dense = np.concatenate([columns[:n_dense], first.weights.T[len(numbers) :]])
        self.sums = _NOTHING
        if inputs.n_pieces:
            pieces = columns[n_dense:].reshape(-1, self.inputs.n_features, n_outputs)
            sums = np.concatenate([np.zeros_like(pieces[:1]), pieces.cumsum(axis=0)])
            self.sums = table(_padded(sums.transpose(1, 0, 2)))
        rows = [dense, *(_padded(layer.weights).T for layer in others)]
        self.layers = [
            (table(_padded(weights)), table(_padded(layer.bias)), _SLOPES[layer.activation])
            for weights, layer in zip(rows, (first, *others), strict=True)
        ]

    def score(self, features: NDArray[np.float32], numbers: Numbers) -> Floats:
        """A score for each document, some documents at a time."""
        scores = np.empty(len(features))
        n_rows = max(1, _VALUES_AT_ONCE // max(len(biases) for _, biases, _ in self.layers))
        for first in range(0, len(features), n_rows):
            rows = slice(first, first + n_rows)
            part = Numbers(numbers.values[rows], numbers.places[rows], numbers.shares[rows])
            scores[rows] = self._score(features[rows], part)
        return scores

    def _score(self, features: NDArray[np.float32], numbers: Numbers) -> NDArray[np.float32]:
        inputs, n = numbers.values, len(features)
        if self.embeddings:
            codes = self.inputs.levels_of(features).astype(np.int64).T
            rows = [one.table[own] for one, own in zip(self.embeddings, codes, strict=True)]
            inputs = np.concatenate([inputs, *rows], axis=1)
        inputs, places, shares, sums = inputs.ravel(), numbers.places.ravel(), numbers.shares.ravel(), self.sums
        for weights, biases, slope in self.layers:
            outputs = aligned(n * len(biases))
            apply_layer(inputs, weights, biases, places, shares, sums, slope, outputs)
            inputs, places, shares, sums = outputs, places[:0], shares[:0], _NOTHING
        return inputs[::WIDTH]


class CompiledModel(NamedTuple):
    """The inputs, and each network as a weighted sum of compiled networks."""

    inputs: SplitInputs
    networks: list[list[tuple[float, CompiledNetwork]]]

    @classmethod
    def of(cls, networks: Sequence[nn.Module], inputs: Inputs) -> Self | None:
        """The compiled networks; None if torch has to score one of them."""
        sums = [terms_of(network) for network in networks]
        if not all(_is_straight(network) for terms in sums for _, network in terms):
            return None
        split = SplitInputs(inputs)
        return cls(split, [[(factor, CompiledNetwork(one, split)) for factor, one in terms] for terms in sums])

    def scores(self, data: RankingDataset, has_queries: bool, n_jobs: int | None, kept: Kept | None = None) -> Floats:
        """The scores, one row per network, in the order of the data set. Inputs are stored in ``kept`` if given."""
        scores = np.zeros((len(self.networks), data.n_documents))
        parts = list(blocks(data.offsets, data.n_features))

        def score(rows: slice, bounds: NDArray[np.int64]) -> None:
            features = data.features[rows]
            numbers = None if kept is None else kept.get(rows.start)
            if numbers is None:
                find = partial(self.inputs.apply, features, bounds if has_queries else None)
                numbers = share(data, (self.inputs.key, has_queries), find) if len(parts) == 1 else find()
            if kept is not None:
                kept[rows.start] = numbers
            for of_network, terms in zip(scores, self.networks, strict=True):
                for factor, network in terms:
                    of_network[rows] += factor * network.score(features, numbers)
            release_pages(features)

        in_threads(score, parts, n_jobs)
        return scores


def terms_of(network: nn.Module) -> list[tuple[float, nn.Module]]:
    """The networks whose weighted sum is the prediction, with their weights."""
    if isinstance(network, WithTower):
        return terms_of(network.network)
    return network.terms() if isinstance(network, Ensemble) and network.shares_inputs else [(1.0, network)]


def _is_straight(network: nn.Module) -> bool:
    own = network.network if type(network) is Embedded else network
    if type(own) is not MLP:
        return False
    has_straight = own.body.activation in _SLOPES or len(own.body.layers) == 0
    return has_straight and (own.output_activation or "identity") in _SLOPES


def _padded(outputs: NDArray[np.floating]) -> NDArray[np.floating]:
    """The same numbers, padded with zeros to a multiple of ``WIDTH`` columns."""
    more = -outputs.shape[-1] % WIDTH
    return np.pad(outputs, [(0, 0)] * (outputs.ndim - 1) + [(0, more)])
