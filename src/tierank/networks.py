"""NETWORKS: modules that score documents.

A network is built from the number of features and settings, and called with features and the batch that they belong to:
one row of features, and one score, for each document. The batch need not have ratings.

>>> network = NETWORKS["mlp"](n_features=3, hidden=(8, 4), activation="elu", seed=1)
>>> network(torch.zeros(5, 3), Batch(offsets=[0, 2, 5])).shape
torch.Size([5])

Initial weights depend only on ``seed``; random numbers in training (dropout, groups) come from the generator of the
batch. torch's global generator is neither used nor changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from tierank.errors import ParameterError
from tierank.kernels.simd import draw_kept
from tierank.losses import Batch
from tierank.settings import as_choice, as_number, as_whole

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": functional.elu,
    "gelu": functional.gelu,
    "leaky_relu": functional.leaky_relu,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "tanh": torch.tanh,
}
_POOLINGS = ("max", "mean")
_SCORES = ("both", "state")
_INFERENCES = ("first", "documents")
# The difference between the seed of embeddings and that of their network.
_OF_TABLES = 0x9E3779B1  # below 2^32: torch uses no more bits of a seed
_END_OF_SEEDS = 1 << 62


class Layers(nn.Module):
    """Hidden layers: x -> phi(... phi(x W_1 + b_1) ... W_k + b_k), with dropout after each."""

    def __init__(
        self, n_in: int, hidden: Iterable[int], activation: str, dropout: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        sizes = [as_whole("n_features", n_in), *(as_whole("hidden", size) for size in hidden)]
        self.n_out, self.widths = sizes[-1], sizes[1:]
        self.activation, self.dropout = (
            as_choice("activation", activation, ACTIVATIONS),
            as_number("dropout", dropout, 0, 0.99),
        )
        self.layers = nn.ModuleList(linear(before, after, generator) for before, after in pairwise(sizes))

    def forward(self, features: Tensor, batch: Batch | None = None) -> Tensor:
        """The last hidden layer, one row per document."""
        activate, rate = ACTIVATIONS[self.activation], self.dropout if self.training else 0.0
        masks = draw_masks([(len(features), width) for width in self.widths], rate, batch)
        for layer, mask in zip(self.layers, masks, strict=True):
            features = activate(layer(features))
            features = features if mask is None else features * mask.to(features)
        return features


class MLP(nn.Module):
    """A multilayer perceptron: f = phi_out(phi(phi(x W_1 + b_1) W_2 + b_2) w + b).

    ``hidden``             sizes of the hidden layers; none: a linear model
    ``activation``         phi, a name of ``ACTIVATIONS``
    ``output_activation``  phi_out, or None: the paper has phi here too, its authors' program does not
    ``dropout``            share of the hidden values that are set to 0 in training
    """

    def __init__(
        self,
        n_features: int,
        hidden: Sequence[int] = (100, 50),
        activation: str = "relu",
        output_activation: str | None = None,
        dropout: float = 0.0,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.body = Layers(n_features, hidden, activation, dropout, generator)
        self.output = linear(self.body.n_out, 1, generator)
        self.output_activation = output_activation and as_choice("output_activation", output_activation, ACTIVATIONS)

    def forward(self, features: Tensor, batch: Batch | None = None) -> Tensor:
        """One score per document; the batch is only needed for dropout."""
        scores: Tensor = self.output(self.body(features, batch)).squeeze(1)
        return ACTIVATIONS[self.output_activation](scores) if self.output_activation else scores


class WithTower(nn.Module):
    """A network and, only in training, a number g(k) for each position k that documents were shown at.

    ``"additive"`` f(d) + g(k): the relevance e^f of a document times the effect e^g of its position
    ``"multiplicative"`` ln sigmoid(f(d)) + ln sigmoid(g(k)): the probability of attraction times that of examination

    In prediction the score is f(d), the output of ``network``.
    """

    KINDS = ("additive", "multiplicative")

    def __init__(self, network: nn.Module, kind: str, n_positions: int) -> None:
        super().__init__()
        self.network, self.kind = network, as_choice("position_tower", kind, self.KINDS)
        self.tower = nn.Parameter(torch.zeros(as_whole("n_positions", n_positions)))

    def forward(self, features: Tensor, batch: Batch) -> Tensor:
        """One score per document; in training, of the document at its position."""
        scores: Tensor = self.network(features, batch)
        if not self.training or batch.positions is None:
            return scores
        of_positions = self.tower.index_select(0, batch.positions - 1)
        if self.kind == "additive":
            return scores + of_positions
        return functional.logsigmoid(scores) + functional.logsigmoid(of_positions)


def embedding_size(n_levels: int) -> int:
    """The number of columns for a category of n levels: 1.6 n^0.56, rounded up, and at most 50.

    >>> [embedding_size(n) for n in (2, 5, 50, 500, 100_000)]
    [3, 4, 15, 50, 50]
    """
    return min(50, math.ceil(1.6 * math.pow(n_levels, 0.56)))


class Embedded(nn.Module):
    """A network with learned embeddings of categories.

    The last columns of the features are numbers of levels, one column k_j for each category j. The input of the network
    is

        [the other columns, E_1[k_1], ..., E_c[k_c]],   E_j = 100 T_j

    where T are the parameters, initially normal with a deviation of 0.001. Adam moves a parameter by about the learning
    rate in a step, however large its gradient; with the factor 100, a row learns in the few steps in which its level
    occurs.

    A category of n levels has a table E of n + 1 rows. The last row is for missing and unknown levels: in training, a
    level is replaced by it with a probability of ``DROPPED``, so that this row learns the best value for unknown
    levels, whether the training data have missing levels or not.

    ``network`` takes the other columns and ``embedding_size(n)`` columns for each category ``n_levels`` the number of
    levels of each category
    """

    DROPPED = 0.05
    FACTOR = 100.0

    def __init__(self, network: nn.Module, n_levels: Sequence[int], *, seed: int = 0) -> None:
        super().__init__()
        self.network = network
        # Not the seed of the network, which would draw the same numbers.
        generator = torch.Generator().manual_seed(seed + _OF_TABLES)
        self.tables = nn.ParameterList(_table(n, generator) for n in n_levels)
        self.n_levels = tuple(n_levels)

    def forward(self, features: Tensor, batch: Batch | None = None) -> Tensor:
        """One score per document."""
        scores: Tensor = self.network(self.embed(features, batch), batch)
        return scores

    def step_scores(self, features: Tensor, batch: Batch) -> list[Tensor]:
        """The scores of each step, if the network is a ``TierRNN``."""
        scores: list[Tensor] = self.network.step_scores(self.embed(features, batch), batch)  # type: ignore[operator]
        return scores

    def embed(self, features: Tensor, batch: Batch | None = None) -> Tensor:
        """The input of the network: the other columns, and the embeddings."""
        n_numbers = features.shape[1] - len(self.tables)
        codes = features[:, n_numbers:].long()
        if self.training:
            generator = _generator(batch)
            drawn = torch.rand(codes.shape, generator=generator, device=generator.device).to(codes.device)
            codes = torch.where(drawn < self.DROPPED, codes.new_tensor(self.n_levels), codes)
        rows = [functional.embedding(one, table) for one, table in zip(codes.unbind(1), self.tables, strict=True)]
        return torch.cat([features[:, :n_numbers], *(row * self.FACTOR for row in rows)], dim=1)

    def embeddings(self) -> list[Tensor]:
        """The table E of each category."""
        return [table.detach() * self.FACTOR for table in self.tables]


def _table(n_levels: int, generator: torch.Generator) -> nn.Parameter:
    table = torch.empty(n_levels + 1, embedding_size(n_levels))
    if table.device.type != "meta":
        table.normal_(std=1e-3, generator=generator)
    return nn.Parameter(table)


class TierRNN(nn.Module):
    """The recurrent network of urBoost, which selects tier after tier and remembers what it has selected.

    With x~(d) the last hidden layer, c_t the documents of tier t, and h_0 = 0:

        h~_t(d) = tanh(W h_{t-1} + U x~(d) + b)
        f_t(d)  = [h~_t(d), x~(d)] w
        h_t     = pooling of h~_t(d) over d in c_t

    ``step_scores`` gives f_t for every step, to train with ``stepwise_urank``. Calling the network gives f_1, which
    needs no ratings and costs no more than an MLP: documents are ranked by it.

    ``pooling``     ``"max"`` or ``"mean"``
    ``score_from``  ``"both"``: w sees h~ and x~ (the paper); ``"state"``: h~ alone (a version of its program)
    ``cell``        ``"rnn"``: the above. With s the logistic function, * by element, and W, U, b for each gate:

        ``"gru"``   h~ = (1 - z) * n + z * h_{t-1},   n = tanh(U_n x~ + b_n + r * W_n h_{t-1}),
                    z = s(W_z h_{t-1} + U_z x~ + b_z),   r = s(W_r h_{t-1} + U_r x~ + b_r)
        ``"lstm"``  h~ = o * tanh(c~),   c~ = f * c_{t-1} + i * tanh(W_c h_{t-1} + U_c x~ + b_c),
                    i, f, o = s(W h_{t-1} + U x~ + b); c_t is pooled as h_t is, c_0 = 0

    ``inference``   ``"first"``: calling the network gives f_1. ``"documents"``: documents are chosen one by one. On
                    step t the one with the highest f_t is chosen, and h_t is its h~_t. The score is the number of
                    documents that are chosen later: n steps for n documents, each over all that are left
    """

    def __init__(
        self,
        n_features: int,
        hidden: Sequence[int] = (100, 50),
        activation: str = "relu",
        dropout: float = 0.0,
        pooling: str = "max",
        score_from: str = "both",
        cell: str = "rnn",
        inference: str = "first",
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.body = Layers(n_features, hidden, activation, dropout, generator)
        n_state = self.body.n_out  # h has as many numbers as x~
        self.pooling = as_choice("pooling", pooling, _POOLINGS)
        self.cell = as_choice("cell", cell, CELLS)
        self.inference = as_choice("inference", inference, _INFERENCES)
        as_choice("score_from", score_from, _SCORES)
        n_gates, self._advance = CELLS[cell]
        self.from_document = linear(n_state, n_gates * n_state, generator)
        self.from_state = linear(n_state, n_gates * n_state, generator, bias=False)
        n_seen = n_state * (2 if score_from == "both" else 1)
        # One vector w, as in the paper, kept in its two parts: that of x~ is the same on all steps. A constant would
        # change no order.
        weights = linear(n_seen, 1, generator, bias=False).weight.detach().squeeze(0)
        self.state_weights = nn.Parameter(weights[:n_state].clone())
        self.document_weights = nn.Parameter(weights[n_state:].clone()) if score_from == "both" else None

    def forward(self, features: Tensor, batch: Batch | None = None) -> Tensor:
        """One score per document: f_1, or the number of documents that are chosen later."""
        inputs, own = self._embed(features, batch)
        if self.inference == "documents":
            return self._choose(inputs, own, batch)
        return self._score(self._advance(inputs, None, None)[0], own)

    def step_scores(self, features: Tensor, batch: Batch) -> list[Tensor]:
        """f_t of the documents ``batch.steps[t].rows``, for each step of the batch."""
        inputs, own = self._embed(features, batch)
        scores = []
        state: Tensor | None = None
        for step in batch.steps:
            is_all = len(step.rows) == batch.n_documents  # mostly the first step, in which all documents take part
            hidden, carried = self._step(inputs if is_all else inputs.index_select(0, step.rows), state, step.query)
            scores.append(self._score(hidden, own if own is None or is_all else own.index_select(0, step.rows)))
            if len(scores) < len(batch.steps):
                counts = None if batch.row_weight is None else batch.row_weight[step.rows[step.selected]]
                state = self._pool(carried.index_select(0, step.selected), step.selected_query, batch.n_queries, counts)
        return scores

    def _step(self, inputs: Tensor, state: Tensor | None, query: Tensor) -> tuple[Tensor, Tensor]:
        """h~_t of the documents with these inputs, and what the state is pooled from: h~_t, and c~_t of an lstm."""
        if state is None:
            return self._advance(inputs, None, None)
        recurrent = self.from_state(state[:, : len(self.state_weights)]).index_select(0, query)
        return self._advance(inputs, recurrent, state.index_select(0, query))

    def _choose(self, inputs: Tensor, own: Tensor | None, batch: Batch | None) -> Tensor:
        """For each document the number of documents that are chosen after it; equal scores in the order of the rows."""
        if batch is None:
            raise ParameterError(
                argument="batch",
                expected="a batch, which says where queries begin, with inference='documents'",
                got="None",
            )
        later = inputs.new_zeros(len(inputs))
        rows, state = torch.arange(len(inputs), device=inputs.device), None
        while len(rows):
            query = batch.query.index_select(0, rows)
            hidden, carried = self._step(inputs.index_select(0, rows), state, query)
            scores = self._score(hidden, None if own is None else own.index_select(0, rows))
            order = scores.argsort(descending=True, stable=True)
            order = order[query[order].argsort(stable=True)]
            left = torch.bincount(query, minlength=batch.n_queries)
            chosen = order[(left.cumsum(0) - left)[left > 0]]
            later[rows[chosen]] = (left[left > 0] - 1).to(later.dtype)
            if state is None:
                state = carried.new_zeros(batch.n_queries, carried.shape[1])
            state = state.index_copy(0, query[chosen], carried[chosen])
            stays = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
            stays[chosen] = False
            rows = rows[stays]
        return later

    def _embed(self, features: Tensor, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """U x~ + b and the part of the scores that x~ gives, if any."""
        embedded = self.body(features, batch)
        own = None if self.document_weights is None else embedded @ self.document_weights
        return self.from_document(embedded), own

    def _score(self, hidden: Tensor, own: Tensor | None) -> Tensor:
        scores = hidden @ self.state_weights
        return scores if own is None else scores + own

    def _pool(self, hidden: Tensor, query: Tensor, n_queries: int, counts: Tensor | None = None) -> Tensor:
        """One state for each query; 0 for those without a selected document, whose steps are over.

        In a mean the copies of a document count, if there are row weights.
        """
        if counts is not None and self.pooling == "mean":
            shares = counts / counts.new_zeros(n_queries).scatter_add(0, query, counts)[query]
            return hidden.new_zeros(n_queries, hidden.shape[1]).index_add(0, query, hidden * shares[:, None])
        index = query[:, None].expand_as(hidden)
        reduction = "amax" if self.pooling == "max" else "mean"
        state = hidden.new_zeros(n_queries, hidden.shape[1])
        return state.scatter_reduce(0, index, hidden, reduction, include_self=False)


def _rnn(inputs: Tensor, recurrent: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor]:
    hidden = torch.tanh(inputs if recurrent is None else inputs + recurrent)
    return hidden, hidden


def _gru(inputs: Tensor, recurrent: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor]:
    update, reset, fresh = inputs.chunk(3, dim=1)
    if recurrent is None or state is None:  # the state is 0
        hidden = (1 - torch.sigmoid(update)) * torch.tanh(fresh)
        return hidden, hidden
    of_update, of_reset, of_fresh = recurrent.chunk(3, dim=1)
    update = torch.sigmoid(update + of_update)
    fresh = torch.tanh(fresh + torch.sigmoid(reset + of_reset) * of_fresh)
    hidden = (1 - update) * fresh + update * state
    return hidden, hidden


def _lstm(inputs: Tensor, recurrent: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor]:
    gates = inputs if recurrent is None else inputs + recurrent
    enter, forget, fresh, leave = gates.chunk(4, dim=1)
    memory = torch.sigmoid(enter) * torch.tanh(fresh)
    if state is not None:
        memory = memory + torch.sigmoid(forget) * state[:, memory.shape[1] :]
    hidden = torch.sigmoid(leave) * torch.tanh(memory)
    return hidden, torch.cat([hidden, memory], dim=1)


# The recurrent cells: number of gates, and a function (inputs U x~ + b, recurrent W h, state) -> h~ and new state.
# The last two are None on the first step, where the state is 0.
CELLS: dict[str, tuple[int, Callable[..., tuple[Tensor, Tensor]]]] = {
    "rnn": (1, _rnn),
    "gru": (3, _gru),
    "lstm": (4, _lstm),
}


class Groupwise(nn.Module):
    """Groupwise scoring (Ai et al., 2019): documents are scored m at a time, by a network that sees all m.

        f(d) = mean over the m groups that d is in of g_k(x(d_1), ..., x(d_m)),  k the place of d in the group

    The documents of a query form a circle, and each group is a document and the next m - 1. In training, the circle is
    drawn again in each call. In prediction, it is sorted by a fixed projection of the features, so that scores do not
    depend on the order of the rows. The score of a document depends on the others in its query.

    ``group_size`` m; with 1 this is an MLP
    """

    needs_list = True
    projection: Tensor

    def __init__(
        self,
        n_features: int,
        hidden: Sequence[int] = (100, 50),
        activation: str = "relu",
        dropout: float = 0.0,
        group_size: int = 2,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.group_size = as_whole("group_size", group_size)
        self.body = Layers(as_whole("n_features", n_features) * group_size, hidden, activation, dropout, generator)
        self.output = linear(self.body.n_out, group_size, generator)
        self.register_buffer("projection", torch.randn(n_features, generator=generator))

    def forward(self, features: Tensor, batch: Batch) -> Tensor:
        """One score per document."""
        members = self._groups(features, batch)
        outputs = self.output(self.body(features[members].flatten(1), batch))
        sums = features.new_zeros(len(features)).scatter_add(0, members.flatten(), outputs.flatten())
        return sums / self.group_size

    def _groups(self, features: Tensor, batch: Batch) -> Tensor:
        """The rows of the members of each group."""
        if self.training:
            keys = torch.rand(len(features), generator=_generator(batch)).to(features.device)
        else:
            keys = features.detach() @ self.projection
        order = batch.order_by(keys)
        turns = torch.arange(self.group_size, device=features.device)
        places = (batch.places[:, None] + turns) % batch.lengths[batch.query, None]
        return order[batch.offsets[batch.query, None] + places]


class Attention(nn.Module):
    """Self-attention over the documents of a query (Pobrotyn et al., 2020): the score of each depends on the others.

        z_0 = phi(x W + b);  z = z + attention(norm(z));  z = z + phi(norm(z) W_1 + b_1) W_2 + b_2;  f = norm(z) w + b

    with the two middle steps ``n_blocks`` times. Queries of one length go through attention together, others one by
    one: nothing is padded. The order of the rows does not matter.

    ``width`` numbers for each document, a multiple of ``n_heads`` ``n_blocks`` number of attention blocks ``n_heads``
    number of heads of each block
    """

    needs_list = True

    def __init__(
        self,
        n_features: int,
        width: int = 64,
        n_blocks: int = 2,
        n_heads: int = 2,
        activation: str = "relu",
        dropout: float = 0.0,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        if as_whole("width", width) % as_whole("n_heads", n_heads):
            raise ParameterError(argument="width", expected=f"a multiple of n_heads={n_heads}", got=str(width))
        self.body = Layers(n_features, [width], activation, dropout, generator)
        self.blocks = nn.ModuleList(
            AttentionBlock(width, n_heads, activation, dropout, generator)
            for _ in range(as_whole("n_blocks", n_blocks))
        )
        self.norm = nn.LayerNorm(width)
        self.output = linear(width, 1, generator)

    def forward(self, features: Tensor, batch: Batch) -> Tensor:
        """One score per document."""
        hidden = self.body(features, batch)
        for block in self.blocks:
            hidden = block(hidden, batch)
        scores: Tensor = self.output(self.norm(hidden)).squeeze(1)
        return scores


class AttentionBlock(nn.Module):
    """z = z + attention(norm(z));  z = z + phi(norm(z) W_1 + b_1) W_2 + b_2."""

    def __init__(self, width: int, n_heads: int, activation: str, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inward = linear(width, 3 * width, generator)
        self.outward = linear(width, width, generator)
        self.layers = Layers(width, [2 * width], activation, 0.0, generator)
        self.narrow = linear(2 * width, width, generator)

    def forward(self, hidden: Tensor, batch: Batch) -> Tensor:
        """The new z of each document."""
        rate = self.dropout if self.training else 0.0
        seen = self.outward(self._attend(self.inward(self.before_attention(hidden)), batch))
        hidden = hidden + drop(seen, rate, batch)
        return hidden + drop(self.narrow(self.layers(self.before_layers(hidden))), rate, batch)

    def _attend(self, inward: Tensor, batch: Batch) -> Tensor:
        """Softmax(Q K' / sqrt(size)) V within each query."""
        order, back, shapes = batch.by_length
        parts = torch.split(inward.index_select(0, order), [n * length for n, length in shapes])
        seen = []
        for part, (n, length) in zip(parts, shapes, strict=True):
            heads = part.view(n, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)  # 3, queries, heads, documents
            attended = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2])
            seen.append(attended.transpose(1, 2).reshape(n * length, -1))
        return torch.cat(seen).index_select(0, back)


def linear(n_in: int, n_out: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """A linear layer with all parameters uniform within +-1 / sqrt(n_in), drawn from the generator."""
    # Made without values first: torch would draw them from its global generator.
    layer = nn.Linear(n_in, n_out, bias=bias, device="meta")
    if has_shapes_alone():
        return layer
    bound = 1 / math.sqrt(n_in)
    for name, shaped in list(layer.named_parameters()):  # `to_empty` would import sympy, a third of a second
        drawn = torch.empty(shaped.shape).uniform_(-bound, bound, generator=generator)
        setattr(layer, name, nn.Parameter(drawn))
    return layer


def has_shapes_alone() -> bool:
    """Whether networks are only built for their shapes, inside ``with torch.device("meta")``, without memory.

    ``torch.get_default_device`` does not see such a block in torch 2.4.
    """
    return torch.empty(0).device.type == "meta"


def draw_glorot(network: nn.Module, seed: int) -> None:
    """Draw the weights of all linear layers again: uniform within +-sqrt(6 / (inputs + outputs)), biases 0.

    Layers that hold several gates are drawn gate by gate.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, TierRNN):
            vectors = [module.state_weights, module.document_weights]
            n_seen = sum(len(vector) for vector in vectors if vector is not None)
            for vector in vectors:
                if vector is not None:
                    _draw(vector, n_seen + 1, generator)
        if isinstance(module, nn.Linear):
            n_gates = max(1, module.out_features // module.in_features) if _is_cell(network, module) else 1
            _draw(module.weight, module.in_features + module.out_features // n_gates, generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _is_cell(network: nn.Module, layer: nn.Linear) -> bool:
    cells = [one for one in network.modules() if isinstance(one, TierRNN)]
    return any(layer is one.from_document or layer is one.from_state for one in cells)


def _draw(weights: Tensor, n_ends: int, generator: torch.Generator) -> None:
    bound = math.sqrt(6 / n_ends)
    nn.init.uniform_(weights, -bound, bound, generator=generator)


def draw_masks(shapes: Sequence[tuple[int, ...]], rate: float, batch: Batch | None) -> list[Tensor | None]:
    """Factors for dropout: 0 with this probability, and otherwise what keeps the mean. None if nothing is dropped."""
    if not rate or not shapes:
        return [None] * len(shapes)
    generator = _generator(batch)
    seeds = [int(torch.randint(_END_OF_SEEDS, (), generator=generator, device=generator.device)) for _ in shapes]
    # Drawn by a kernel: torch draws one number after the other, which takes a quarter of a step.
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    kept = torch.empty(int(ends[-1]), dtype=torch.float32)
    draw_kept(np.array(seeds), ends, rate, kept.numpy())
    return [one.view(shape) for one, shape in zip(torch.tensor_split(kept, ends[:-1].tolist()), shapes, strict=True)]


def drop(hidden: Tensor, rate: float, batch: Batch | None) -> Tensor:
    """Set each value to 0 with this probability, and scale up the others so that the mean stays."""
    mask = draw_masks([hidden.shape], rate, batch)[0]
    return hidden if mask is None else hidden * mask.to(hidden)


def _generator(batch: Batch | None) -> torch.Generator:
    if batch is None or batch.generator is None:
        fix = "pass Batch(..., generator=torch.Generator()); to predict, call network.eval() first"
        raise ParameterError("this network draws at random in training", fix=fix)
    return batch.generator


NETWORKS: dict[str, type[nn.Module]] = {
    "attention": Attention,
    "groupwise": Groupwise,
    "mlp": MLP,
    "tier_rnn": TierRNN,
}
