"""NetworkModel: fitted networks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.export import Network, Scorer
from tierank.networks import Embedded
from tierank.settings import as_whole
from tierank.torch_state import own_torch
from tierank.training.attribution import integrate_gradients
from tierank.training.model import FittedModel, Resources, SavedModel, Seen, as_best, as_history, inside
from tierank.training.networks.building import build_network, make_inputs, network_class
from tierank.training.networks.compiled import CompiledModel
from tierank.training.networks.device import as_device, torch_threads
from tierank.training.networks.inputs import Inputs
from tierank.training.networks.lists import QueryLists, unscored
from tierank.training.networks.portable import embeddings_of, layers_of, mean_scorer
from tierank.training.networks.weights import Weights
from tierank.training.selection import mean_of_standardised, spread_of
from tierank.transforms import Transform
from tierank.types import Floats, Rows


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
        self.settings, self.seen, self.inputs = dict(settings), seen, Inputs.of(transform, seen)
        self.members = [] if members is None else members
        self.history, self.best = [], {}
        self.n_epochs: list[int] = []
        self._built: tuple[str, list[nn.Module]] | None = None
        self._compiled: tuple[list[nn.Module], CompiledModel | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_built": None, "_compiled": None}

    def build(self, weights: Weights, device: str) -> nn.Module:
        """A network with these weights."""
        network = build_network(self.settings, self.inputs, self.settings["seed"], device)
        network.load_state_dict(weights)
        return network

    def networks(self, device: str) -> list[nn.Module]:
        """The networks, built once: building one takes longer than scoring a list with it."""
        if self._built is None or self._built[0] != device or len(self._built[1]) != len(self.members):
            self._built = device, [self.build(weights, device) for weights in self.members]
        return self._built[1]

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
        on_cpu = as_device(resources.device).type == "cpu"
        networks = self.networks(resources.device)
        if self._compiled is None or self._compiled[0] is not networks:
            self._compiled = networks, CompiledModel.of(networks, self.inputs) if on_cpu else None
        if self._compiled[1] is not None:
            return list(self._compiled[1].scores(data, self.seen.has_queries, resources.n_jobs))
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
            members = (self.build(weights, resources.device) for weights in self.members)
            dense = (self.behind_embeddings(member, features) for member in members)
            found = [integrate_gradients(*one, place[above], place[below]) for one in dense]
        return [self._by_feature(one) for one in found]

    def behind_embeddings(self, member: nn.Module, features: Tensor) -> tuple[nn.Module, Tensor]:
        """The part of a network after its embeddings, and the input of that part, which can be differentiated."""
        if not isinstance(member, Embedded):
            return member, features
        with torch.no_grad():
            return member.network, member.eval().embed(features)

    def _by_feature(self, contributions: Floats) -> Floats:
        """The contributions of each feature: sums over the numbers that come from it."""
        sources = self.inputs.sources()
        of_learners = contributions.reshape(len(contributions), -1, len(sources))  # all learners get the same inputs
        sums = np.zeros((self.seen.n_features, len(contributions)))
        np.add.at(sums, sources, of_learners.sum(axis=1).T)
        return sums.T

    @own_torch()
    def portable(self) -> Scorer:
        """The layers of the networks, with their transform."""
        return mean_scorer([self.portable_member(self.build(weights, "cpu")) for weights in self.members])

    def portable_member(self, member: nn.Module) -> Scorer:
        """One network in the neutral form."""
        per_query = self.seen.has_queries and self.transform.needs_queries
        return Network(self.transform, per_query, layers_of(member), embeddings_of(member, self.inputs))

    def untrained(self) -> nn.Module:
        """A network with its initial weights."""
        return build_network(self.settings, self.inputs, self.settings["seed"], "cpu")

    @own_torch()
    def outline(self) -> Scorer:
        """The form that the trained model will have."""
        return mean_scorer([self.portable_member(self.untrained())] * self.settings["n_seeds"])

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
                raise ValueError(f"{odd} with NaN or infinity")
        except (KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
            what = " ".join(line.strip() for line in str(error).splitlines()[:2])  # torch lists all mismatches
            raise DataError(
                expected="weights that fit the settings of the model", got=f"a damaged description: {what}"
            ) from None
        return model

    def check_sizes(self, weights: Weights) -> None:
        """Raise an error if the weights do not match the settings, before memory is allocated for them."""
        blocks = (self.settings["network_settings"] or {}).get("n_blocks", 1)
        n_layers = max(len(self.settings["hidden"]), as_whole("n_blocks", blocks))
        if weights and n_layers > len(weights) and isinstance(self.settings["network"], str):
            raise DataError(f"{len(weights)} tensors for {n_layers} layers")
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that nothing is copied
            self.build(weights, "meta")
