"""How networks see data and score it: ``Inputs`` of features, ``QueryLists`` of a data set, and compiled scoring.

Multilayer perceptrons with relu or leaky_relu are scored by compiled code on the CPU, all other networks by torch. The
piecewise encoding is never materialised there: its eight values for a feature are ones, then one fraction, then zeros,
so its product with the first layer is a weighted mean of two rows of cumulative weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tierank.arrays import Floats, Rows, release_pages
from tierank.data.dataset import RankingDataset
from tierank.data.relevance import Gain
from tierank.data.team import Team
from tierank.errors import DataError, ParameterError
from tierank.export import Embedding, Layer
from tierank.kernels import in_threads, n_threads
from tierank.kernels.scoring import WIDTH, aligned, apply_layer, find_places, table
from tierank.losses import Batch
from tierank.networks import MLP, Embedded, Layers, TierRNN, WithTower, embedding_size
from tierank.rankers.model import Resources
from tierank.rankers.order import Numbering, canonical_rows, join_contents, judged_rows, share, spans_of
from tierank.transforms import TRANSFORMS, Log1p, Piecewise, SideBySide, Transform, blocks

# The values (inputs x documents) in a step from which another thread is worth it (measured).
_VALUES_PER_THREAD = 1 << 20
# The slopes below 0 of piecewise-linear activations. Other activations are left to torch: vectorised exponentials of
# libraries round a number differently depending on its position.
_SLOPES = {"identity": 1.0, "relu": 0.0, "leaky_relu": 0.01}
_NOTHING = np.zeros(0, np.float32)
# Outputs of a layer that are held at a time: so that memory does not grow with the length of lists.
_VALUES_AT_ONCE = 1 << 18
# The most documents that torch scores at a time, and the most inputs of these: as many as fit into a cache.
_CHUNK, _NUMBERS = 1 << 14, 1 << 20
# Bytes of features after which the pages of a mapped matrix are released, and the most bytes of inputs to keep.
_KEPT_BYTES = 1 << 27
# The most documents of data whose queries are kept as batches of one query.
_KEPT_DOCUMENTS = 1 << 18
# What helps if features are too large for a network.
TO_SCALE = "clip it, or train with feature_transform='standard', which scales and clips"


def as_device(name: Any) -> torch.device:
    """The device of this name; raises an error if it does not exist or cannot hold numbers."""
    try:
        torch.zeros(1, device=name).cpu()
        return torch.device(name)
    except (AssertionError, RuntimeError, TypeError) as error:
        got = f"{name!r}: {str(error).splitlines()[0]}"
        raise ParameterError(argument="device", expected="one that torch has here, such as 'cpu'", got=got) from None


@contextmanager
def torch_threads(n_jobs: int | None, n_values: int) -> Iterator[None]:
    """Set the number of torch threads while the block lasts. ``n_values`` enter a network in one step."""
    before, wanted = torch.get_num_threads(), n_threads(n_jobs, worth=1 + n_values // _VALUES_PER_THREAD)
    if wanted != before:
        torch.set_num_threads(wanted)
    try:
        yield
    finally:
        if wanted != before:
            torch.set_num_threads(before)


class Numbers(NamedTuple):
    """The inputs of networks for some documents: numbers, and each feature's piece and share of that piece."""

    values: NDArray[np.float32]
    places: NDArray[np.uint8]
    shares: NDArray[np.float32]


# The inputs of each block of documents, by its first row.
Kept = dict[int, Numbers]


@dataclass(frozen=True)
class Inputs:
    """What networks see of the features: the columns of a transform, and a level for each category.

    Parameters
    ----------
    transform : Transform
        The fitted transform. It gets all features; its columns of categories are left out.
    n_features : int
        Number of features.
    levels : dict of int to int
        The number of levels of each category, by the index of the feature.
    """

    transform: Transform
    n_features: int
    levels: dict[int, int]

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The columns of the transform that do not come from categories."""
        columns = np.arange(self.transform.n_columns(self.n_features))
        return columns[~np.isin(columns % self.n_features, list(self.levels))]

    @property
    def n_columns(self) -> int:
        """Number of columns that ``apply`` returns."""
        return len(self.numbers) + len(self.levels)

    @property
    def width(self) -> int:
        """Number of values that a network gets for each document, embeddings of levels included."""
        return len(self.numbers) + sum(map(embedding_size, self.levels.values()))

    def sources(self) -> NDArray[np.int64]:
        """The feature that each of these values comes from, in the order in which a network gets them."""
        of_levels = [np.full(embedding_size(n), place, np.int64) for place, n in self.levels.items()]
        return np.concatenate([self.numbers % self.n_features, *of_levels])

    @cached_property
    def parts(self) -> tuple[Transform, ...]:
        """The transforms side by side. A subclass may compute anything, so it is one."""
        return self.transform.parts_ if type(self.transform) is SideBySide else (self.transform,)

    @cached_property
    def pieces(self) -> Piecewise | None:
        """The piecewise encoding, which comes last if there is one."""
        return self.parts[-1] if len(self.parts) > 1 and type(self.parts[-1]) is Piecewise else None

    @cached_property
    def key(self) -> str:
        """A digest that is the same for inputs that compute the same numbers."""
        if any(type(part) not in (*TRANSFORMS.values(), Piecewise) for part in self.parts):
            return str(id(self))  # a custom transform may depend on more than its arrays
        digest = hashlib.sha256(repr([type(part).__name__ for part in self.parts]).encode())
        for array in self.transform.state().values():
            digest.update(array.tobytes())
        return digest.hexdigest()

    def apply(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The numbers, and the level of each category; the number of levels if it is missing."""
        values = self.transform.values_of(features, offsets)
        if not self.levels:
            return values
        return np.concatenate([values[:, self.numbers], self.levels_of(features)], axis=1)

    def levels_of(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """The level of each category; the number of levels if it is missing or unknown."""
        codes, n_levels = features[:, list(self.levels)], np.array(list(self.levels.values()), np.float32)
        is_known = (codes > -1) & (codes < n_levels)  # truncated to an integer, as trees do
        return np.where(is_known, np.trunc(codes), n_levels)

    def split(self, features: NDArray[np.float32], offsets: NDArray[np.int64] | None) -> Numbers:
        """The inputs for whole queries, with the piecewise encoding separate from the other numbers."""
        if self.pieces is None or not isinstance(self.transform, SideBySide):
            places = np.zeros((len(features), 0), np.uint8)
            return Numbers(self.transform.values_of(features, offsets), places, places.astype(np.float32))
        values = self.transform.apply_parts(self.parts[:-1], features, offsets)
        places, shares = np.empty(features.shape, np.uint8), np.empty(features.shape, np.float32)
        low, slope = np.ascontiguousarray(self.pieces.low_.T), np.ascontiguousarray(self.pieces.slope_.T)
        logs = next((k for k, part in enumerate(self.parts) if type(part) is Log1p), None)
        if logs is None:
            scaled = self.pieces.rescaled(features)
        else:  # already among the values, clipped to the same limits
            before = sum(part.n_columns(features.shape[1]) for part in self.parts[:logs])
            scaled = np.ascontiguousarray(values[:, before : before + features.shape[1]])
        find_places(features, scaled, low, slope, np.empty(features.shape[1]), places, shares)
        return Numbers(values, places, shares)


def layers_of(network: nn.Module) -> tuple[Layer, ...] | None:
    """The layers of a network that scores each document by itself, or None. A subclass may compute anything."""
    if isinstance(network, Embedded):
        return layers_of(network.network)
    if type(network) is MLP:
        return *_hidden(network.body), _layer(network.output, network.output_activation or "identity")
    if type(network) is TierRNN:  # only its first step, where the state is 0
        own = network.document_weights
        parts: list[Tensor] = [network.state_weights] if own is None else [network.state_weights, own]
        step = _layer(network.from_document, "tanh", keeps_input=own is not None)
        weights = _array(torch.cat(parts))[None]
        return *_hidden(network.body), step, Layer(weights, np.zeros(1, np.float32), "identity")
    return None


def _hidden(body: Layers) -> list[Layer]:
    return [_layer(layer, body.activation) for layer in body.layers]


def _layer(linear: Any, activation: str, keeps_input: bool = False) -> Layer:
    return Layer(_array(linear.weight), _array(linear.bias), activation, keeps_input)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return np.array(tensor.detach().cpu().numpy(), np.float32)


def embeddings_of(network: nn.Module, inputs: Inputs) -> tuple[Embedding, ...]:
    """The embedding tables of the categories of a network."""
    tables = network.embeddings() if isinstance(network, Embedded) else ()
    return tuple(Embedding(place, _array(table)) for place, table in zip(inputs.levels, tables, strict=True))


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


def terms_of(network: nn.Module) -> list[tuple[float, nn.Module]]:
    """The networks whose weighted sum is the prediction, with their weights."""
    if isinstance(network, WithTower):
        return terms_of(network.network)
    return network.terms() if isinstance(network, Ensemble) else [(1.0, network)]


class CompiledNetwork:
    """A network as tables that kernels read."""

    def __init__(self, layers: Sequence[Layer], embeddings: Sequence[Embedding], inputs: Inputs) -> None:
        self.inputs, self.embeddings, self.sums = inputs, embeddings, _NOTHING
        numbers, first = inputs.numbers, layers[0]
        n_columns, n_outputs = inputs.transform.n_columns(inputs.n_features), len(first.bias)
        n_dense = n_columns - (0 if inputs.pieces is None else inputs.pieces.n_columns(inputs.n_features))
        columns = np.zeros((n_columns, n_outputs))  # columns of categories stay 0
        columns[numbers] = first.weights.T[: len(numbers)]
        dense = np.concatenate([columns[:n_dense], first.weights.T[len(numbers) :]])
        if n_dense < n_columns:
            pieces = columns[n_dense:].reshape(-1, inputs.n_features, n_outputs)
            sums = np.concatenate([np.zeros_like(pieces[:1]), pieces.cumsum(axis=0)])
            self.sums = table(_padded(sums.transpose(1, 0, 2)))
        rows = [dense, *(_padded(layer.weights).T for layer in layers[1:])]
        self.layers = [
            (table(_padded(weights)), table(_padded(layer.bias)), _SLOPES[layer.activation])
            for weights, layer in zip(rows, layers, strict=True)
        ]

    def score(self, features: NDArray[np.float32], numbers: Numbers) -> Floats:
        """A score for each document, some documents at a time."""
        scores = np.empty(len(features))
        n_rows = max(1, _VALUES_AT_ONCE // max(len(biases) for _, biases, _ in self.layers))
        for first in range(0, len(features), n_rows):
            rows = slice(first, first + n_rows)
            inputs, places, shares = numbers.values[rows], numbers.places[rows].ravel(), numbers.shares[rows].ravel()
            if self.embeddings:
                codes = self.inputs.levels_of(features[rows]).astype(np.int64).T
                levels = [one.table[own] for one, own in zip(self.embeddings, codes, strict=True)]
                inputs = np.concatenate([inputs, *levels], axis=1)
            n, inputs, sums = len(inputs), inputs.ravel(), self.sums
            for weights, biases, slope in self.layers:
                outputs = aligned(n * len(biases))
                apply_layer(inputs, weights, biases, places, shares, sums, slope, outputs)
                inputs, places, shares, sums = outputs, places[:0], shares[:0], _NOTHING
            scores[rows] = inputs[::WIDTH]
        return scores


class CompiledModel(NamedTuple):
    """The inputs, and each network as a weighted sum of compiled networks."""

    inputs: Inputs
    networks: list[list[tuple[float, CompiledNetwork]]]

    @classmethod
    def of(cls, networks: Sequence[nn.Module], inputs: Inputs) -> Self | None:
        """The compiled networks; None if torch has to score one of them."""
        sums: list[list[tuple[float, CompiledNetwork]]] = []
        for network in networks:
            sums.append([])
            for factor, one in terms_of(network):
                layers = layers_of(one)
                if layers is None or not all(layer.activation in _SLOPES for layer in layers):
                    return None
                sums[-1].append((factor, CompiledNetwork(layers, embeddings_of(one, inputs), inputs)))
        return cls(inputs, sums)

    def scores(
        self, data: RankingDataset, has_queries: bool, n_jobs: int | None, kept: dict[int, Numbers] | None = None
    ) -> Floats:
        """The scores, one row per network, in the order of the data set. Inputs are stored in ``kept`` if given."""
        scores = np.zeros((len(self.networks), data.n_documents))
        parts = list(blocks(data.offsets, data.n_features))

        def score(rows: slice, bounds: NDArray[np.int64]) -> None:
            features = data.features[rows]
            numbers = None if kept is None else kept.get(rows.start)
            if numbers is None:
                find = partial(self.inputs.split, features, bounds if has_queries else None)
                numbers = share(data, (self.inputs.key, has_queries), find) if len(parts) == 1 else find()
            if kept is not None:
                kept[rows.start] = numbers
            for of_network, terms in zip(scores, self.networks, strict=True):
                for factor, network in terms:
                    of_network[rows] += factor * network.score(features, numbers)
            release_pages(features)

        in_threads(score, parts, n_jobs)
        return scores


def _padded(outputs: NDArray[np.floating]) -> NDArray[np.floating]:
    """The same numbers, padded with zeros to a multiple of ``WIDTH`` columns."""
    more = -outputs.shape[-1] % WIDTH
    return np.pad(outputs, [(0, 0)] * (outputs.ndim - 1) + [(0, more)])


class QueryLists:
    """The queries of this process as a network sees them: in canonical order, transformed on demand.

    It knows nothing about the queries of other processes except their numbers, and those only if ``teaching`` is used.
    """

    def __init__(
        self,
        data: RankingDataset,
        inputs: Inputs,
        has_queries: bool,
        gain: Gain,
        resources: Resources,
        team: Team | None = None,
        *,
        judged_only: bool = False,
        keeps_inputs: bool = False,
    ) -> None:
        self.data, self.inputs, self.has_queries = data, inputs, has_queries
        self.device, self.team, self._n_jobs = as_device(resources.device), team or Team(), resources.n_jobs
        self._found = canonical_rows(data, resources.n_jobs, rated=False)  # whole lists
        self.order, offsets = self._found.rows, self._found.offsets
        if judged_only:
            self.order, offsets = judged_rows(data, self.order, offsets)
        is_rated = data.is_rated and (judged_only or not data.n_unjudged)
        self.whole = Batch(
            offsets,
            data.ratings[self.order] if is_rated else None,
            gain=gain,
            device=self.device,
            weights=None if data.propensity is None else 1 / data.propensity[self.order],
            positions=None if data.position is None else data.position[self.order],
            row_weight=None if data.row_weight is None else data.row_weight[self.order],
        )
        self.query_ids, weights = data.query_ids[self._found.queries], data.query_weight
        self.weights = None if weights is None else torch.tensor(weights[self._found.queries], dtype=torch.float32)
        # Features are transformed once for all epochs, if that takes little memory.
        self.keeps_inputs = keeps_inputs and 4 * len(self.order) * inputs.n_columns <= _KEPT_BYTES
        self._numbers: Kept | None = {} if self.keeps_inputs else None
        self._singles: dict[int, Batch] = {}
        self._n_read = 0

    @cached_property
    def content(self) -> str:
        """A digest of the data of all processes."""
        return join_contents(self.team.all_gather(self._found.content))

    @cached_property
    def _numbering(self) -> Numbering:
        return Numbering(self.data, self._found, self.team)

    @cached_property
    def given_order(self) -> Rows:
        """The numbers of the queries of all processes in the callers' order, one process after the other."""
        own = self._numbering.places[np.argsort(self._found.queries)]
        return self.team.gather_rows(own[:, None])[:, 0]

    def teaching(self, query_order: str) -> Tensor:
        """The queries with an order to learn and a weight above 0, in canonical order or in the caller's.

        They are those of all processes, by number: see ``Numbering``.
        """
        teaches = self.whole.n_tiers > 1
        if self.weights is not None:
            teaches &= self.weights > 0
        of_all = self._numbering.gather(teaches.cpu().numpy().astype(np.uint8)) > 0
        given = self.given_order[of_all[self.given_order]] if query_order == "given" else np.flatnonzero(of_all)
        return torch.from_numpy(given)

    @cached_property
    def _places(self) -> Tensor:
        return torch.from_numpy(self._numbering.own())

    def own(self, queries: Tensor) -> Tensor:
        """Those of the given queries of all processes that this process has, by their index here, in the same order."""
        found = self._places[queries]
        return found[found >= 0]

    def batch(self, queries: Tensor) -> tuple[Tensor, Batch]:
        """The features of some queries, and these queries as a ``Batch`` for losses."""
        if len(queries) > 1 or self.data.n_documents > _KEPT_DOCUMENTS:
            batch = self.whole.take(queries)
        else:  # of one query, which is the same in every epoch except for random numbers
            query = int(queries)
            batch = self._singles[query] = self._singles.get(query) or self.whole.take(queries)
            batch.generator = self.whole.generator
        return self.kept_inputs.index_select(0, batch.rows) if self.keeps_inputs else self._inputs(
            queries, batch
        ), batch

    @cached_property
    def kept_inputs(self) -> Tensor:
        """The inputs of all documents, if they are kept."""
        inputs = torch.empty(len(self.order), self.inputs.n_columns, dtype=torch.float32, device=self.device)
        for queries in self._chunks():
            batch = self.whole.take(queries)
            inputs[batch.rows] = self._inputs(queries, batch)
        return inputs

    def _inputs(self, queries: Tensor, batch: Batch) -> Tensor:
        rows, offsets = batch.rows.cpu().numpy(), batch.offsets.cpu().numpy()
        listed = self._found.rows
        is_partial = len(self.order) < len(listed)
        if is_partial:
            rows, offsets = spans_of(self._found.offsets, queries.cpu().numpy())
        rows = listed[rows]
        features = self.data.features[rows]
        self._n_read += features.nbytes
        if self._n_read > _KEPT_BYTES:  # of a mapped matrix: memory does not grow with the data
            release_pages(self.data.features)
            self._n_read = 0
        values = self.inputs.apply(features, offsets if self.has_queries else None)
        return torch.from_numpy(values[self.data.is_judged[rows]] if is_partial else values).to(self.device)

    def scores(self, network: nn.Module) -> Floats:
        """A score per document, in the order of the data set, bit-identical to the predictions of a model."""
        scores = np.zeros(self.data.n_documents)
        for factor, one in terms_of(network):
            compiled = CompiledModel.of([one], self.inputs) if self.device.type == "cpu" else None
            if compiled is None:
                scores += factor * self.torch_scores(one)
            else:
                found = compiled.scores(self.data, self.has_queries, self._n_jobs, self._numbers)[0]
                scores[self.order] += factor * found[self.order]
        return scores

    def torch_scores(self, network: nn.Module) -> Floats:
        """The scores computed by torch, which differ by rounding."""
        network.eval()
        scores = np.zeros(self.data.n_documents)
        with torch.no_grad():
            for queries in self._chunks():
                features, batch = self.batch(queries)
                found = _as_twins(network(features, batch), features, batch)
                scores[self.order[batch.rows.cpu().numpy()]] = found.double().cpu().numpy()
        return scores

    def _chunks(self) -> Iterator[Tensor]:
        """The queries, in parts of about as many documents as torch scores at a time."""
        offsets, start = self.whole.offsets, 0
        size = min(_CHUNK, _NUMBERS // max(1, self.inputs.width))
        while start < len(offsets) - 1:
            end = int(torch.searchsorted(offsets[1:], int(offsets[start]) + size, right=True))
            yield torch.arange(start, end := max(start + 1, end))
            start = end


def _as_twins(scores: Tensor, features: Tensor, batch: Batch) -> Tensor:
    """The scores, where documents of a query with the same features all get the score of the first of them.

    They are neighbours in canonical order, but which of them comes first depends on the order of the caller's rows.
    Matrix products round the last rows of a batch differently on some processors, and list networks see different
    neighbours.
    """
    is_twin = (features[1:, 0] == features[:-1, 0]) & (batch.query[1:] == batch.query[:-1])
    places = torch.nonzero(is_twin).squeeze(1) + 1
    places = places[(features[places] == features[places - 1]).all(dim=1)]
    if not len(places):
        return scores
    first = torch.arange(len(scores), device=scores.device)
    first[places] = 0  # the running maximum is the index of the first twin, as these indices rise
    return scores[first.cummax(0).values]


def unscored(data: RankingDataset, scores: Floats) -> DataError:
    """The error for scores of a network that are not finite: its sums overflow where a feature is too large."""
    rows = np.flatnonzero(~np.isfinite(scores))[:1]
    query = data.query_ids[np.searchsorted(data.offsets, rows[0], "right") - 1]
    return DataError(
        argument="X",
        expected="features for which the scores of the network are finite",
        got=f"{largest_feature(data, rows)[1]} in query {query}",
        fix=TO_SCALE,
    )


def largest_feature(data: RankingDataset, rows: Rows) -> tuple[float, str]:
    """The size of the largest feature in some rows, and a description of it for messages."""
    sizes = np.nan_to_num(np.abs(data.features[rows]), nan=-1.0)
    place, column = np.unravel_index(int(sizes.argmax()), sizes.shape)
    name = f"column {column}" if data.feature_names is None else data.feature_names[column]
    return float(sizes[place, column]), f"{data.features[rows[place], column]:g} in {name}"
