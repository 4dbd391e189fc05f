"""NETWORKS: modules that score documents.

A network is built from the number of features and settings, and called with features and the batch that they belong to:
one row of features, and one score, for each document. A batch without ratings will do.

>>> network = NETWORKS["mlp"](n_features=3, hidden=(8, 4), activation="elu", seed=1)
>>> network(torch.zeros(5, 3), Batch(offsets=[0, 2, 5])).shape
torch.Size([5])

Weights are drawn from ``seed`` alone; what is random in training (dropout, groups) comes from the generator of the
batch. torch's global generator is neither used nor changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from tierank.errors import ParameterError
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


class Layers(nn.Module):
    """Hidden layers: x -> phi(... phi(x W_1 + b_1) ... W_k + b_k), with dropout after each."""

    def __init__(
        self, n_in: int, hidden: Iterable[int], activation: str, dropout: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        sizes = [as_whole("n_features", n_in), *(as_whole("hidden", size) for size in hidden)]
        self.n_out = sizes[-1]
        self.activation, self.dropout = (
            as_choice("activation", activation, ACTIVATIONS),
            as_number("dropout", dropout, 0, 0.99),
        )
        self.layers = nn.ModuleList(linear(before, after, generator) for before, after in pairwise(sizes))

    def forward(self, features: Tensor, batch: Batch | None = None) -> Tensor:
        """The last hidden layer, one row per document."""
        activate = ACTIVATIONS[self.activation]
        for layer in self.layers:
            features = drop(activate(layer(features)), self.dropout if self.training else 0.0, batch)
        return features


class MLP(nn.Module):
    """A multilayer perceptron: f = phi_out(phi(phi(x W_1 + b_1) W_2 + b_2) w + b).

    ``hidden``             sizes of the hidden layers; none: a linear model
    ``activation``         phi, a name of ``ACTIVATIONS``
    ``output_activation``  phi_out, or None for none: the paper has phi here too, its authors' program has none
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
        """One score per document; the batch is needed for dropout alone."""
        scores: Tensor = self.output(self.body(features, batch)).squeeze(1)
        return ACTIVATIONS[self.output_activation](scores) if self.output_activation else scores


class TierRNN(nn.Module):
    """The recurrent network of urBoost, which selects tier after tier and remembers what it has selected.

    With x~(d) the last hidden layer, c_t the documents of tier t, and h_0 = 0:

        h~_t(d) = tanh(W h_{t-1} + U x~(d) + b)
        f_t(d)  = [h~_t(d), x~(d)] w
        h_t     = pooling of h~_t(d) over d in c_t

    ``step_scores`` gives f_t for every step, to train with ``stepwise_urank``. Calling the network gives f_1, which
    needs no ratings and costs no more than an MLP: this is what documents are ranked by.

    ``pooling``     ``"max"`` or ``"mean"``
    ``score_from``  ``"both"``: w sees h~ and x~ (the paper); ``"state"``: h~ alone (its authors' program)
    """

    def __init__(
        self,
        n_features: int,
        hidden: Sequence[int] = (100, 50),
        activation: str = "relu",
        dropout: float = 0.0,
        pooling: str = "max",
        score_from: str = "both",
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.body = Layers(n_features, hidden, activation, dropout, generator)
        n_state = self.body.n_out  # h has as many numbers as x~
        self.pooling = as_choice("pooling", pooling, _POOLINGS)
        as_choice("score_from", score_from, _SCORES)
        self.from_document = linear(n_state, n_state, generator)
        self.from_state = linear(n_state, n_state, generator, bias=False)
        n_seen = n_state * (2 if score_from == "both" else 1)
        # One vector w, as in the paper, kept in its two parts: that of x~ is the same on all steps. A constant would
        # change no order.
        weights = linear(n_seen, 1, generator, bias=False).weight.detach().squeeze(0)
        self.state_weights = nn.Parameter(weights[:n_state].clone())
        self.document_weights = nn.Parameter(weights[n_state:].clone()) if score_from == "both" else None

    def forward(self, features: Tensor, batch: Batch | None = None) -> Tensor:
        """f_1: one score per document."""
        inputs, own = self._embed(features, batch)
        return self._score(torch.tanh(inputs), own)

    def step_scores(self, features: Tensor, batch: Batch) -> list[Tensor]:
        """f_t of the documents ``batch.steps[t].rows``, for each step of the batch."""
        inputs, own = self._embed(features, batch)
        scores = []
        state: Tensor | None = None
        for step in batch.steps:
            is_all = len(step.rows) == batch.n_documents  # as in the first step, mostly: nothing to pick out
            hidden = inputs if is_all else inputs.index_select(0, step.rows)
            if state is not None:
                hidden = hidden + self.from_state(state).index_select(0, step.query)
            hidden = torch.tanh(hidden)
            scores.append(self._score(hidden, own if own is None or is_all else own.index_select(0, step.rows)))
            if len(scores) < len(batch.steps):
                state = self._pool(hidden.index_select(0, step.selected), step.selected_query, batch.n_queries)
        return scores

    def _embed(self, features: Tensor, batch: Batch | None) -> tuple[Tensor, Tensor | None]:
        """U x~ + b and the part of the scores that x~ gives, if any."""
        embedded = self.body(features, batch)
        own = None if self.document_weights is None else embedded @ self.document_weights
        return self.from_document(embedded), own

    def _score(self, hidden: Tensor, own: Tensor | None) -> Tensor:
        scores = hidden @ self.state_weights
        return scores if own is None else scores + own

    def _pool(self, hidden: Tensor, query: Tensor, n_queries: int) -> Tensor:
        """One state for each query; 0 for those without a selected document, whose steps are over."""
        index = query[:, None].expand_as(hidden)
        reduction = "amax" if self.pooling == "max" else "mean"
        state = hidden.new_zeros(n_queries, len(self.state_weights))
        return state.scatter_reduce(0, index, hidden, reduction, include_self=False)


class Groupwise(nn.Module):
    """Groupwise scoring (Ai et al., 2019): documents are scored m at a time, by a network that sees all m.

        f(d) = mean over the m groups that d is in of g_k(x(d_1), ..., x(d_m)),  k the place of d in the group

    The documents of a query stand in a circle; each is the first of a group that its next m - 1 follow in. In training
    the circle is drawn anew in each call. In prediction it is in the order of a fixed projection of the features, so
    that scores do not hang on the order of the rows. The score of a document depends on the others in its query.

    ``group_size``   m; with 1 this is an MLP
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
    """Self-attention over the documents of a query (Pobrotyn et al., 2020): each one is scored in view of the others.

        z_0 = phi(x W + b);  z = z + attention(norm(z));  z = z + phi(norm(z) W_1 + b_1) W_2 + b_2;  f = norm(z) w + b

    with the two middle steps ``n_blocks`` times. Queries of one length go through attention together, others one by
    one: nothing is padded. The order of the rows does not matter.

    ``width``      numbers for each document, a multiple of ``n_heads``
    ``n_blocks``   how many times documents look at each other
    ``n_heads``    in how many ways at a time
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
            raise ParameterError(f"width: expected a multiple of n_heads={n_heads}, got {width}")
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
        """As many rows as went in."""
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
    if torch.get_default_device().type == "meta":  # whoever asks for the shapes alone takes no memory
        return layer
    layer = layer.to_empty(device="cpu")
    bound = 1 / math.sqrt(n_in)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer


def drop(hidden: Tensor, rate: float, batch: Batch | None) -> Tensor:
    """Set each value to 0 with this probability, and scale up the others so that the mean stays."""
    if not rate:
        return hidden
    generator = _generator(batch)
    kept = torch.empty(hidden.shape, dtype=hidden.dtype, device=generator.device)
    return hidden * kept.bernoulli_(1 - rate, generator=generator).div_(1 - rate).to(hidden.device)


def _generator(batch: Batch | None) -> torch.Generator:
    if batch is None or batch.generator is None:
        raise ParameterError(
            "this network draws at random in training: expected Batch(..., generator=torch.Generator()), got none;"
            " to predict, call network.eval() first"
        )
    return batch.generator


NETWORKS: dict[str, type[nn.Module]] = {
    "attention": Attention,
    "groupwise": Groupwise,
    "mlp": MLP,
    "tier_rnn": TierRNN,
}
