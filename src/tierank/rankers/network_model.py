"""NetworkModel: fitted networks, which predict, explain, export and are saved; and networks built from settings."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tierank.arrays import Floats, Rows
from tierank.data.dataset import RankingDataset
from tierank.data.team import Team
from tierank.errors import DataError, ParameterError
from tierank.export import Network, Scorer, StandardisedMean
from tierank.losses.batch import Batch
from tierank.losses.torch_state import own_torch, seeded
from tierank.networks import NETWORKS, Embedded, TierRNN, draw_glorot, has_shapes_alone
from tierank.rankers.model import FittedModel, Resources, SavedModel, Seen, as_best, as_history, inside
from tierank.rankers.network_scoring import (
    CompiledModel,
    Inputs,
    QueryLists,
    as_device,
    embeddings_of,
    layers_of,
    torch_threads,
    unscored,
)
from tierank.rankers.selection import mean_of_standardised, spread_of
from tierank.settings import as_whole
from tierank.transforms import Piecewise, SideBySide, Transform, make_transform
from tierank.workers import check_deadline

Weights = dict[str, Tensor]

# Settings that are passed to every network that accepts them.
OF_NETWORKS = ("hidden", "activation", "output_activation", "dropout")

# Settings that the meaning of the weights depends on: to continue from a model, they have to be the same.
OF_WEIGHTS = (
    "network",
    "network_settings",
    "hidden",
    "activation",
    "output_activation",
    "feature_transform",
    "encoding",
    "category_encoding",
    "n_seeds",
)


def network_class(network: Any) -> Any:
    """The class of a network: by its name in ``NETWORKS``, or the class itself."""
    return NETWORKS[network] if isinstance(network, str) else network


def build_network(settings: Mapping[str, Any], inputs: Inputs, seed: int, device: str) -> nn.Module:
    """The network that the settings describe, with the weights of this seed."""
    kind = network_class(settings["network"])
    takes = inspect.signature(kind).parameters
    chosen = {name: settings[name] for name in OF_NETWORKS if name in takes} | (settings["network_settings"] or {})
    if "seed" in takes:
        chosen["seed"] = seed
    with seeded(seed):
        network = kind(inputs.width, **chosen)
    return initialised(network, settings, inputs, seed, device)


def initialised(network: nn.Module, settings: Mapping[str, Any], inputs: Inputs, seed: int, device: str) -> nn.Module:
    """The network with its initial weights, behind embeddings if there are categories."""
    if settings["initial_weights"] == "glorot" and not has_shapes_alone():
        draw_glorot(network, seed)
    if inputs.levels:
        network = Embedded(network, list(inputs.levels.values()), seed=seed)
    return network.to(device, torch.float32)


def check_network(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise ``ParameterError`` if the network does not take the settings, or cannot be called with a batch."""
    network = settings["network"]
    name = network if isinstance(network, str) else network.__name__
    takes = inspect.signature(network_class(network)).parameters
    for one in OF_NETWORKS:
        if one not in takes and settings[one] not in (defaults[one], 0):  # dropout=0 is what such a network does anyway
            raise ParameterError(f"has no effect with network {name!r}; remove it", argument=one)
    own = [one for one in takes if one not in (*OF_NETWORKS, "n_features", "seed", "self")]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    for one in settings["network_settings"] or {}:
        if one not in own and not takes_any:
            raise ParameterError.unknown(f"setting of the network {name!r}", one, own)
    forward = inspect.signature(network_class(network).forward) if hasattr(network_class(network), "forward") else None
    try:
        (forward or inspect.Signature()).bind(None, None, None)
    except TypeError:
        raise ParameterError(
            argument="network",
            expected="a class with forward(self, features, batch) -> one score per document",
            got=name if forward is None else f"{name} with forward{forward}",
            fix="write def forward(self, features, batch=None)",
        ) from None
    as_device(settings["device"])


def make_inputs(settings: Mapping[str, Any]) -> Transform:
    """The transform that makes the inputs of networks from features, not fitted yet."""
    transform = settings["feature_transform"]
    if settings["encoding"] == "none":
        return make_transform(transform)
    parts = transform if isinstance(transform, tuple) else (transform,)
    return SideBySide([*(make_transform(one) for one in parts), Piecewise()])


def fit_inputs(settings: Mapping[str, Any], train: RankingDataset, team: Team | None = None) -> Transform:
    """The transform that makes the inputs of networks from features, fitted to the documents of all processes."""
    return make_inputs(settings).fit_in_team(train.replace(kinds={}), team or Team())


class NetworkModel(FittedModel):
    """Fitted networks, one for each seed; the scores of several are standardised in each query and averaged.

    Attributes
    ----------
    members : list of dict of str to Tensor
        The weights of each network.
    transform : Transform
        The fitted transform of the features.
    n_epochs : list of int
        The epoch that was kept, for each network that was trained.
    """

    def __init__(
        self, settings: Mapping[str, Any], seen: Seen, transform: Transform, members: list[Weights] | None = None
    ) -> None:
        self.settings, self.seen = dict(settings), seen
        self.inputs = Inputs(transform, seen.n_features, seen.n_levels())
        self.members = [] if members is None else members
        self.history, self.best = [], {}
        self.n_epochs: list[int] = []
        # For a device, the networks, and the same as compiled code where torch need not score one of them.
        self._built: tuple[str, list[nn.Module], CompiledModel | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_built": None}

    def build(self, weights: Weights, device: str) -> nn.Module:
        """A network with these weights."""
        network = build_network(self.settings, self.inputs, self.settings["seed"], device)
        network.load_state_dict(weights)
        return network

    def networks(self, device: str) -> list[nn.Module]:
        """The networks, built once: building one takes longer than scoring a list with it."""
        return self._scorers(device)[0]

    def _scorers(self, device: str) -> tuple[list[nn.Module], CompiledModel | None]:
        if self._built is None or self._built[0] != device or len(self._built[1]) != len(self.members):
            on_cpu = as_device(device).type == "cpu"
            networks = [self.build(weights, device) for weights in self.members]
            self._built = device, networks, CompiledModel.of(networks, self.inputs) if on_cpu else None
        return self._built[1:]

    @property
    def transform(self) -> Transform:
        """The fitted transform of the features."""
        return self.inputs.transform

    def lists(self, data: RankingDataset, resources: Resources) -> QueryLists:
        """The data as networks see it."""
        return QueryLists(data, self.inputs, self.seen.has_queries, self.settings["gain"], resources)

    @property
    def needs_list(self) -> bool:
        """Whether features are scaled within the query, the network looks at lists, or scores are standardised."""
        scales_by_list = self.seen.has_queries and self.transform.needs_queries
        looks_around = getattr(network_class(self.settings["network"]), "needs_list", False)
        return scales_by_list or looks_around or len(self.members) > 1

    def predict(self, data: RankingDataset, resources: Resources) -> Floats:
        """The score of the network, or the mean of the standardised scores of several."""
        scores = self.member_scores(data, resources)
        return scores[0] if len(scores) == 1 else mean_of_standardised(scores, data)

    def member_scores(self, data: RankingDataset, resources: Resources) -> list[Floats]:
        """The scores of each member, in the order of the data set. Raises ``DataError`` if one is not finite."""
        scores = self._member_scores(data, resources)
        for one in scores:
            if not np.isfinite(one).all():
                raise unscored(data, one)
        return scores

    @own_torch()
    def _member_scores(self, data: RankingDataset, resources: Resources) -> list[Floats]:
        """The scores of each member by compiled code if possible, otherwise by torch."""
        networks, compiled = self._scorers(resources.device)
        if compiled is not None:
            return list(compiled.scores(data, self.seen.has_queries, resources.n_jobs))
        with torch_threads(resources.n_jobs, data.n_documents * self.inputs.width):
            lists = self.lists(data, resources)
            return [lists.scores(network) for network in networks]

    def contributions(self, data: RankingDataset, above: Rows, below: Rows, resources: Resources) -> Floats:
        """Integrated gradients; those of several members are divided by the spread of their scores."""
        of_members = self.member_contributions(data, above, below, resources)
        if len(of_members) == 1:
            return of_members[0]
        spreads = [spread_of(scores) for scores in self.member_scores(data, resources)]
        scaled = [one / spread for one, spread in zip(of_members, spreads, strict=True)]
        return np.asarray(np.mean(scaled, axis=0), np.float64)

    @own_torch()
    def member_contributions(
        self, data: RankingDataset, above: Rows, below: Rows, resources: Resources
    ) -> list[Floats]:
        """The contributions to the scores of each member."""
        with torch_threads(resources.n_jobs, data.n_documents * self.inputs.width):
            lists = self.lists(data, resources)
            features, _ = lists.batch(torch.tensor([0]))
            place = np.argsort(lists.order)
            of_members = []
            for weights in self.members:
                dense = self.behind_embeddings(self.build(weights, resources.device), features)
                found = integrate_gradients(*dense, place[above], place[below])
                # Those of a feature are sums over the numbers that come from it; all learners get the same inputs.
                sources = self.inputs.sources()
                sums = np.zeros((self.seen.n_features, len(found)))
                np.add.at(sums, sources, found.reshape(len(found), -1, len(sources)).sum(axis=1).T)
                of_members.append(sums.T)
        return of_members

    def behind_embeddings(self, member: nn.Module, features: Tensor) -> tuple[nn.Module, Tensor]:
        """The part of a network after its embeddings, and the input of that part, which can be differentiated."""
        if not isinstance(member, Embedded):
            return member, features
        with torch.no_grad():
            return member.network, member.eval().embed(features)

    @own_torch()
    def to_neutral(self) -> Scorer:
        """The layers of the networks, with their transform."""
        return self._mean_of([self.neutral_member(self.build(weights, "cpu")) for weights in self.members])

    @staticmethod
    def _mean_of(members: list[Scorer]) -> Scorer:
        return members[0] if len(members) == 1 else StandardisedMean(tuple(members))

    def neutral_member(self, member: nn.Module) -> Scorer:
        """One network in the neutral form."""
        network = member.network if isinstance(member, Embedded) else member
        if isinstance(network, TierRNN):  # no format has gated layers, or documents that are chosen one by one
            for name, value, wanted in (("cell", network.cell, "rnn"), ("inference", network.inference, "first")):
                if value != wanted:
                    raise ParameterError(argument=name, expected=f"{wanted!r}, to export", got=repr(value))
        layers = layers_of(network)
        if layers is None:
            got = repr(type(network).__name__.lower())
            raise ParameterError(argument="network", expected="'mlp', to export", got=got)
        per_query = self.seen.has_queries and self.transform.needs_queries
        return Network(self.transform, per_query, layers, embeddings_of(member, self.inputs))

    def untrained(self) -> nn.Module:
        """A network with its initial weights."""
        return build_network(self.settings, self.inputs, self.settings["seed"], "cpu")

    @own_torch()
    def outline(self) -> Scorer:
        """The form that the trained model will have."""
        return self._mean_of([self.neutral_member(self.untrained())] * self.settings["n_seeds"])

    def files(self) -> dict[str, bytes]:
        """The weights, and the fitted arrays of the transform."""
        tensors = {f"member{k}.{name}": t for k, weights in enumerate(self.members) for name, t in weights.items()}
        tensors |= {f"transform.{name}": torch.from_numpy(array) for name, array in self.transform.state().items()}
        return {"weights.safetensors": safetensors.torch.save({n: t.contiguous() for n, t in tensors.items()})}

    def facts(self) -> dict[str, Any]:
        """The history of training."""
        return {
            "n_members": len(self.members),
            "history": self.history,
            "best": self.best,
            "n_epochs": self.n_epochs,
        }

    @classmethod
    @own_torch()
    def restore(cls, settings: Mapping[str, Any], saved: SavedModel, **more: Any) -> Self:
        """Restore a saved model; weights are compared with the settings before memory is allocated."""
        try:
            tensors = safetensors.torch.load(saved.files["weights.safetensors"])
            state = {name: tensor.numpy() for name, tensor in inside(tensors, "transform.").items()}
            transform = make_inputs(settings).load_state(state, saved.seen.n_features)
            n_members = min(int(saved.facts["n_members"]), len(tensors))
            members = [inside(tensors, f"member{k}.") for k in range(n_members)]
            model = cls(settings, saved.seen, transform, members, **more)
            model.history, model.best = as_history(saved.facts["history"]), as_best(saved.facts["best"])
            model.n_epochs = saved.facts["n_epochs"]
            for weights in members:
                model.check_sizes(weights)
            odd = next((name for name, one in tensors.items() if not bool(torch.isfinite(one).all())), None)
            if odd is not None and not odd.startswith("transform."):
                raise DataError(expected="finite numbers", got=f"{odd} with NaN or infinity")
        except (KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
            what = " ".join(line.strip() for line in str(error).splitlines()[:2])  # torch lists all mismatches
            raise DataError(
                expected="weights that fit the settings of the model", got=f"a damaged description: {what}"
            ) from None
        return model

    def check_sizes(self, weights: Weights) -> None:
        """Raise an error if the weights do not match the settings, before memory is allocated for them."""
        blocks = (self.settings["network_settings"] or {}).get("n_blocks", 1)
        sizes = (self.settings[name] for name in ("hidden", "residual_hidden") if self.settings.get(name))
        n_layers = max(as_whole("n_blocks", blocks), *map(len, sizes))
        if weights and n_layers > len(weights) and isinstance(self.settings["network"], str):
            raise DataError(expected=f"weights of {n_layers} layers", got=f"{len(weights)} tensors")
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that nothing is copied
            self.build(weights, "meta")


# Explanations: integrated gradients between two documents

# Initial pieces of a path, the most halvings of a piece, and the error that may remain of a difference.
_PIECES, _HALVINGS, _TOLERANCE = 8, 24, 1e-2
# Documents of an explanation that go through the network at a time.
_CHUNK = 1 << 15
# Where a piece of a path is evaluated, from 0 to 1: its ends, and the nodes of Gauss's rule between them.
_NODES = np.array([0.0, 0.5 - 0.5 / 3**0.5, 0.5 + 0.5 / 3**0.5, 1.0])


def integrate_gradients(
    network: nn.Module, features: Tensor, above: NDArray[np.int64], below: NDArray[np.int64]
) -> Floats:
    """Contributions of the features to f(a) - f(b), for pairs of documents (a, b) of one list: pairs x features.

    Both documents start at their midpoint m = (x(a) + x(b)) / 2, where all features are equal, and move to their own
    features; the other documents of the list stay. With D = f(a) - f(b) and t from 0 to 1:

        phi_j = integral of (dD/dx_j(a) - dD/dx_j(b)) dt * (x_j(a) - x_j(b)) / 2

    For a network that scores one document at a time this is the plain path integral from b to a. Swapping the two only
    changes the sign of every contribution.
    """
    network, features = network.eval().double(), features.double()
    paths = (_Path(network, features, int(a), int(b)) for a, b in zip(above, below, strict=True))
    return np.array([path.integrate() for path in paths])


class _Path:
    """The path of two documents from their midpoint to their features."""

    def __init__(self, network: nn.Module, features: Tensor, a: int, b: int) -> None:
        self.network, self.features, self.a, self.b = network, features, a, b
        self.half = (features[a] - features[b]) / 2
        self.middle = features[b] + self.half
        with torch.no_grad():
            scores = network(features, _copies(1, len(features), features.device))
            alone = network(features[[a, b]], _copies(1, 2, features.device))
        self.noise = float(np.finfo(np.float32).eps * scores.std(correction=0))
        self.difference = float(scores[a] - scores[b])
        if torch.allclose(alone, scores[[a, b]], rtol=1e-9, atol=1e-12):  # this network ignores the other documents
            self.features, self.a, self.b = features[[a, b]], 0, 1

    def integrate(self) -> Floats:
        """The contributions. The sum over a piece of the path is known: pieces that miss it are halved.

        The gradient of a network with kinks (relu) jumps along the path, which no fixed number of steps handles.
        """
        total = np.zeros(len(self.half))
        limit = (_TOLERANCE * abs(self.difference) + self.noise) / 4
        starts, width = np.arange(_PIECES) / _PIECES, 1 / _PIECES
        for halving in range(_HALVINGS):
            values, gradients = self._look(starts[:, None] + width * _NODES)
            parts = gradients[:, 1:3].mean(axis=1) * width
            missed = np.abs(values[:, 3] - values[:, 0] - parts.sum(axis=1))
            # The pieces share the error limit; half of the remaining limit is kept for the next round.
            fine = (missed <= limit / 2 / max(len(starts), _PIECES)) | (halving == _HALVINGS - 1)
            total += parts[fine].sum(axis=0)
            limit -= float(missed[fine].sum())
            width /= 2
            starts = (starts[~fine, None] + [0.0, width]).ravel()
            if not len(starts):
                break
        return total

    def _look(self, places: Floats) -> tuple[Floats, Floats]:
        """D and the integrand of every phi_j at some places of the path: pieces x nodes, and x features."""
        n_at_once = max(1, _CHUNK // len(self.features))
        looked = [self._look_at(part) for part in torch.split(torch.tensor(places.ravel()), n_at_once)]
        values, gradients = (np.concatenate(parts) for parts in zip(*looked, strict=True))
        return values.reshape(places.shape), gradients.reshape(*places.shape, -1)

    def _look_at(self, places: Tensor) -> tuple[Floats, Floats]:
        check_deadline()
        n, steps = len(places), places.to(self.half)[:, None] * self.half
        lists = self.features.repeat(n, 1, 1)  # places, documents, features
        lists[:, self.a], lists[:, self.b] = self.middle + steps, self.middle - steps
        lists.requires_grad_(True)
        scores = self.network(lists.flatten(0, 1), _copies(n, len(self.features), lists.device)).view(n, -1)
        difference = scores[:, self.a] - scores[:, self.b]
        if not difference.requires_grad:  # no learner was kept besides a base ranker
            return np.zeros(n), np.zeros((n, len(self.half)))
        (gradient,) = torch.autograd.grad(difference.sum(), lists)
        integrand = (gradient[:, self.a] - gradient[:, self.b]) * self.half
        return difference.detach().numpy(force=True), integrand.numpy(force=True)


def _copies(n: int, length: int, device: torch.device) -> Batch:
    """A batch of ``n`` copies of one list."""
    return Batch(np.arange(n + 1) * length, dtype=torch.float64, device=device)
