"""Networks: batches of whole queries, one training loop for all losses, exact resumption, and the fitted model."""

from __future__ import annotations

import inspect
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from torch import Tensor, nn

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.export import Layer, Network, Scorer, StandardisedMean
from tierank.kernels import n_threads
from tierank.losses import Batch
from tierank.memory import release_pages
from tierank.metrics import Judge
from tierank.networks import MLP, NETWORKS, Layers, TierRNN
from tierank.objectives.loss import check_values
from tierank.progress import Progress
from tierank.relevance import Gain
from tierank.settings import as_whole
from tierank.team import Team
from tierank.training.attribution import integrate_gradients
from tierank.training.checkpoint import Checkpoint, described
from tierank.training.identity import is_of_caller
from tierank.training.model import FitContext, FittedModel, Resources, SavedModel, Seen, TrainingStopped
from tierank.training.order import canonical_rows
from tierank.training.selection import Selection, make_judge, mean_of_standardised, means_of
from tierank.transforms import TRANSFORMS, Transform
from tierank.types import Floats, Rows

Weights = dict[str, Tensor]
Loss = Callable[[Tensor, Batch], Tensor]

# Documents that are scored in one go.
_CHUNK = 1 << 14
# Bytes of features after which what was read of a mapped matrix is let go.
_KEPT_BYTES = 1 << 27
# How far the seeds of the processes of a team stand apart.
_APART = 1 << 40
# Seconds between checkpoints: what a kill can cost.
_EVERY = 5.0


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
        self.settings, self.seen, self.transform = dict(settings), seen, transform
        self.members = [] if members is None else members
        self.history, self.best = [], {}
        self.n_epochs: list[int] = []
        self._built: tuple[str, list[nn.Module]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_built": None}

    def build(self, weights: Weights, device: str) -> nn.Module:
        """A network with these weights."""
        network = build_network(self.settings, self.seen.n_features, self.settings["seed"], device)
        network.load_state_dict(weights)
        return network

    def networks(self, device: str) -> list[nn.Module]:
        """The networks, built once: building one takes longer than scoring a list with it."""
        if self._built is None or self._built[0] != device or len(self._built[1]) != len(self.members):
            self._built = device, [self.build(weights, device) for weights in self.members]
        return self._built[1]

    def lists(self, data: RankingDataset, resources: Resources) -> QueryLists:
        """The data as networks see it."""
        return QueryLists(data, self.transform, self.seen.has_queries, self.settings["gain"], resources)

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
        """The scores of each member, in the order of the data set."""
        with torch_threads(resources.n_jobs):
            lists = self.lists(data, resources)
            return [lists.scores(network) for network in self.networks(resources.device)]

    def contributions(self, data: RankingDataset, above: Rows, below: Rows, resources: Resources) -> Floats:
        """Integrated gradients; those of several members are divided by the spread of their scores."""
        of_members = self.member_contributions(data, above, below, resources)
        if len(of_members) == 1:
            return of_members[0]
        spreads = [float(scores.std()) or 1.0 for scores in self.member_scores(data, resources)]
        scaled = [one / spread for one, spread in zip(of_members, spreads, strict=True)]
        return np.asarray(np.mean(scaled, axis=0), np.float64)

    def member_contributions(
        self, data: RankingDataset, above: Rows, below: Rows, resources: Resources
    ) -> list[Floats]:
        """The contributions to the scores of each member."""
        with torch_threads(resources.n_jobs):
            lists = self.lists(data, resources)
            features, _ = lists.batch(torch.tensor([0]))
            place = np.argsort(lists.order)
            members = (self.build(weights, resources.device) for weights in self.members)
            return [integrate_gradients(member, features, place[above], place[below]) for member in members]

    def portable(self) -> Scorer:
        """The layers of the networks behind their transform."""
        return mean_scorer([self.portable_member(self.build(weights, "cpu")) for weights in self.members])

    def portable_member(self, member: nn.Module) -> Scorer:
        """One network in the neutral form."""
        per_query = self.seen.has_queries and self.transform.needs_queries
        return Network(self.transform, per_query, _layers(member))

    def untrained(self) -> nn.Module:
        """A network as it is before training."""
        return build_network(self.settings, self.seen.n_features, self.settings["seed"], "cpu")

    def outline(self) -> Scorer:
        """The form that the trained model will have."""
        return mean_scorer([self.portable_member(self.untrained())] * self.settings["n_seeds"])

    def files(self) -> dict[str, bytes]:
        """The weights, and what the transform has learned."""
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
    def restore(cls, settings: Mapping[str, Any], saved: SavedModel, **more: Any) -> Self:
        """The model that was saved; weights are compared with the settings before memory is asked for."""
        try:
            tensors = safetensors.torch.load(saved.files["weights.safetensors"])
            state = {name: tensor.numpy() for name, tensor in inside(tensors, "transform.").items()}
            transform = _make_transform(settings["feature_transform"]).load_state(state, saved.seen.n_features)
            n_members = min(int(saved.facts["n_members"]), len(tensors))
            members = [inside(tensors, f"member{k}.") for k in range(n_members)]
            model = cls(settings, saved.seen, transform, members, **more)
            model.history, model.best = saved.facts["history"], saved.facts["best"]
            model.n_epochs = saved.facts["n_epochs"]
            for weights in members:
                model.check_sizes(weights)
        except (KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
            what = " ".join(line.strip() for line in str(error).splitlines()[:2])  # torch lists all that does not fit
            raise DataError(
                expected="weights that fit the settings of the model", got=f"a damaged description: {what}"
            ) from None
        return model

    def check_sizes(self, weights: Weights) -> None:
        """Raise an error if the settings describe other weights than these, before memory is asked for to hold them."""
        blocks = (self.settings["network_settings"] or {}).get("n_blocks", 1)
        n_layers = max(len(self.settings["hidden"]), as_whole("n_blocks", blocks))
        if weights and n_layers > len(weights) and isinstance(self.settings["network"], str):
            raise DataError(f"{len(weights)} tensors for {n_layers} layers")
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that nothing is copied
            self.build(weights, "meta")


def network_class(network: Any) -> Any:
    """The class of a network: by its name in ``NETWORKS``, or the class itself."""
    return NETWORKS[network] if isinstance(network, str) else network


def build_network(settings: Mapping[str, Any], n_features: int, seed: int, device: str) -> nn.Module:
    """The network that the settings describe, with the weights of this seed."""
    kind = network_class(settings["network"])
    takes = inspect.signature(kind).parameters
    chosen = {name: settings[name] for name in OF_NETWORKS if name in takes} | (settings["network_settings"] or {})
    if "seed" in takes:
        chosen["seed"] = seed
    network: nn.Module = kind(n_features, **chosen)
    return network.to(device, torch.float32)


# Settings that are handed to every network that takes them.
OF_NETWORKS = ("hidden", "activation", "output_activation", "dropout")


def check_network(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise ``ParameterError`` if the network does not take the settings."""
    network = settings["network"]
    name = network if isinstance(network, str) else network.__name__
    takes = inspect.signature(network_class(network)).parameters
    for one in OF_NETWORKS:
        if one not in takes and settings[one] != defaults[one]:
            raise ParameterError(f"has no effect with network {name!r}; remove it", argument=one)
    own = [one for one in takes if one not in (*OF_NETWORKS, "n_features", "seed", "self")]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    for one in settings["network_settings"] or {}:
        if one not in own and not takes_any:
            raise ParameterError.unknown(f"setting of the network {name!r}", one, own)
    as_device(settings["device"])


def _make_transform(transform: Any) -> Transform:
    """A transform that is not fitted, by its name in ``TRANSFORMS`` or as a copy of the given one."""
    fresh: Transform = TRANSFORMS[transform]() if isinstance(transform, str) else clone(transform)
    return fresh


def fit_transform(transform: Any, train: RankingDataset) -> Transform:
    """The fitted transform."""
    return _make_transform(transform).fit(train)


# Settings that say what the weights of a network mean: they have to be those of the model that training goes on from.
OF_WEIGHTS = (
    "network",
    "network_settings",
    "hidden",
    "activation",
    "output_activation",
    "feature_transform",
    "n_seeds",
)


def train_networks(
    model: NetworkModel,
    loss: Loss,
    data: tuple[RankingDataset, RankingDataset | None],
    context: FitContext,
    train_members: Callable[[NetworkFit], None] | None = None,
) -> None:
    """Train the members of a model, one for each seed; ``train_members`` replaces the usual way."""
    train, valid = data
    if train.row_weight is not None:
        raise ParameterError("row_weight: networks learn from whole queries; give query_weight instead")
    if context.team.holds_parts:
        raise ParameterError("team: networks need the full data set in every process")
    settings = model.settings
    resources = Resources(settings["n_jobs"], settings["device"])
    judge = None if valid is None else make_judge(valid, settings["select_by"], settings["rule"], 1)
    with torch_threads(resources.n_jobs):
        of_model = model.transform, model.seen.has_queries, settings["gain"], resources
        lists = QueryLists(train, *of_model, context.team)
        held_out = None if valid is None else QueryLists(valid, *of_model, context.team)
        task = NetworkFit(settings, loss, lists, held_out, judge, context)
        try:
            (train_members or partial(_train_members, model))(task)
        except TrainingStopped as stop:
            stop.model = model
            raise
    if judge is not None and valid is not None:
        model.best = means_of(judge(model.predict(valid, resources)))


def _train_members(model: NetworkModel, task: NetworkFit) -> None:
    kept, start = task.open_checkpoint(), task.context.start
    n_seeds, n_features = task.settings["n_seeds"], task.lists.data.n_features
    for member in range(n_seeds):
        seed = task.settings["seed"] + member
        label = "training" if n_seeds == 1 else f"network {member + 1} of {n_seeds}"
        build: Callable[[], nn.Module]
        build = partial(build_network, task.settings, n_features, seed, task.settings["device"])
        if isinstance(start, NetworkModel):
            build = partial(_with_weights, build, start.members[member])
        training = Training(build, task, {"member": member}, seed, kept)
        try:
            training.run(label)
        finally:  # also if the loss was not finite: the best weights so far are kept
            model.members.append(training.state.kept)
            model.history += training.state.history
            model.n_epochs.append(training.state.best_epoch)
        if task.context.is_stopped:
            break


def _with_weights(build: Callable[[], nn.Module], weights: Weights) -> nn.Module:
    network = build()
    network.load_state_dict(weights)
    return network


# Neutral form


def mean_scorer(members: list[Scorer]) -> Scorer:
    """The one member, or the mean of several."""
    return members[0] if len(members) == 1 else StandardisedMean(tuple(members))


def _layers(network: nn.Module) -> tuple[Layer, ...]:
    """The layers of a network that scores each document by itself."""
    if isinstance(network, MLP):
        return *_hidden(network.body), _layer(network.output, network.output_activation or "identity")
    if isinstance(network, TierRNN):  # only its first step, where the state is 0
        own = network.document_weights
        parts: list[Tensor] = [network.state_weights] if own is None else [network.state_weights, own]
        step = _layer(network.from_document, "tanh", keeps_input=own is not None)
        weights = _array(torch.cat(parts))[None]
        return *_hidden(network.body), step, Layer(weights, np.zeros(1, np.float32), "identity")
    name = type(network).__name__.lower()
    raise ParameterError(argument="network", expected="'mlp', to export", got=repr(name))


def _hidden(body: Layers) -> list[Layer]:
    return [_layer(layer, body.activation) for layer in body.layers]


def _layer(linear: Any, activation: str, keeps_input: bool = False) -> Layer:
    return Layer(_array(linear.weight), _array(linear.bias), activation, keeps_input)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return np.array(tensor.detach().cpu().numpy(), np.float32)


# Data


class QueryLists:
    """The queries of a data set as a network sees them: in canonical order, transformed when asked for."""

    def __init__(
        self,
        data: RankingDataset,
        transform: Transform,
        has_queries: bool,
        gain: Gain,
        resources: Resources,
        team: Team | None = None,
    ) -> None:
        self.data, self.transform, self.has_queries = data, transform, has_queries
        self.device = as_device(resources.device)
        self.team = team or Team()
        self._seen = 0
        self.order, offsets, self.content = canonical_rows(data, resources.n_jobs, rated=False, team=team)
        ratings = data.ratings[self.order] if data.is_rated else None
        self.whole = Batch(offsets, ratings, gain=gain, device=self.device)
        by_id = data.query_of_row[self.order[offsets[:-1]]]
        self.query_ids = data.query_ids[by_id]
        self.weights = (
            None if data.query_weight is None else torch.tensor(data.query_weight[by_id], dtype=torch.float32)
        )

    def batch(self, queries: Tensor) -> tuple[Tensor, Batch]:
        """The features of some queries, and the queries as losses know them."""
        batch = self.whole.take(queries)
        rows = self.data.features[self.order[batch.rows.cpu().numpy()]]
        self._let_go(rows.nbytes)
        offsets = batch.offsets.cpu().numpy() if self.has_queries else None
        return torch.from_numpy(self.transform.apply(rows, offsets)).to(self.device), batch

    def scores(self, network: nn.Module) -> Floats:
        """A score per document, in the order of the data set."""
        network.eval()
        scores = np.zeros(self.data.n_documents)
        with torch.no_grad():
            for queries in islice(self._chunks(), self.team.rank, None, self.team.size):
                features, batch = self.batch(queries)
                scores[self.order[batch.rows.cpu().numpy()]] = network(features, batch).double().cpu().numpy()
        return self.team.all_reduce(scores)

    def _let_go(self, n_bytes: int) -> None:
        """What was read of a mapped matrix is not kept: memory does not grow with the data."""
        self._seen += n_bytes
        if self._seen > _KEPT_BYTES:
            release_pages(self.data.features)
            self._seen = 0

    def _chunks(self) -> Iterator[Tensor]:
        ends = self.whole.offsets[1:]
        start = 0
        while start < len(ends):
            limit = int(self.whole.offsets[start]) + _CHUNK
            end = max(start + 1, int(torch.searchsorted(ends, limit, right=True)))
            yield torch.arange(start, end)
            start = end


@dataclass
class State:
    """Where the training of one network stands."""

    epoch: int = 0
    best: tuple[float, ...] | None = None
    best_epoch: int = 0
    finished: bool = False
    stopped: bool = False  # by a callback
    kept: Weights = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class NetworkFit:
    """What all networks of one call of ``fit`` share."""

    settings: dict[str, Any]
    loss: Loss
    lists: QueryLists
    valid: QueryLists | None
    judge: Judge | None
    context: FitContext

    def open_checkpoint(self) -> NetworkCheckpoint | None:
        """The checkpoint of this call, if one is asked for."""
        folder = self.context.checkpoint
        return None if folder is None else NetworkCheckpoint(folder, self)


class Training:
    """The training of one network. ``place`` says which one it is: rows of the history begin with it."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        task: NetworkFit,
        place: dict[str, int],
        seed: int,
        checkpoint: NetworkCheckpoint | None,
    ) -> None:
        self.task, self.settings, self.lists, self.team = task, task.settings, task.lists, task.context.team
        self.place, self.seed, self.checkpoint = place, seed, checkpoint
        self.network = build()
        settings, lists = task.settings, task.lists
        self.parameters = list(self.network.parameters())
        adam = torch.optim.AdamW if settings["weight_decay"] else torch.optim.Adam
        rates = {"lr": settings["learning_rate"], "weight_decay": settings["weight_decay"]}
        self.optimizer = adam(self.parameters, **rates, fused=True)  # a fifth of a step of few queries
        self.state = State(kept=_copied(self.network))
        teaches = lists.whole.n_tiers > 1
        if lists.weights is not None:
            teaches &= lists.weights > 0
        self.teaching = torch.nonzero(teaches).squeeze(1)
        if checkpoint is not None:
            checkpoint.read(self)
        task.context.callbacks.stopped |= self.state.stopped

    @property
    def name(self) -> str:
        """What the checkpoint calls this training."""
        return "-".join(str(number) for number in self.place.values())

    def run(self, label: str) -> None:
        """Epoch after epoch, until patience or epochs run out."""
        state, settings = self.state, self.settings
        saved = time.monotonic()
        with Progress(label, settings["max_epochs"], show=self.task.context.progress, done=state.epoch) as shown:
            while not state.finished:
                state.epoch += 1
                loss, judged = self._learn(), self._judged()
                row = {**self.place, "epoch": state.epoch, "loss": loss} | judged
                state.history.append(row)
                shown.step(" ".join(f"{n} {v:.4f}" for n, v in row.items() if isinstance(v, float)))
                metrics = {name: value for name, value in judged.items() if name != "kept"}
                told: dict[str, Any] = {"loss": loss, "is_best": judged["kept"], **self.place}
                state.stopped = self.task.context.step(state.epoch, settings["max_epochs"], settings, metrics, **told)
                impatient = self.task.judge is not None and state.epoch - state.best_epoch >= settings["patience"]
                is_last = state.epoch >= settings["max_epochs"] or not len(self.teaching)
                state.finished = impatient or is_last or state.stopped
                if self.checkpoint is not None and (state.finished or time.monotonic() - saved > _EVERY):
                    self.checkpoint.write(self)
                    saved = time.monotonic()

    def _learn(self) -> float:
        """One pass over the queries, in an order that the seed and the epoch fix; returns the mean loss."""
        self.network.train()
        seed = self.seed * 1_000_003 + self.state.epoch
        generator = torch.Generator().manual_seed(seed)
        order = self.teaching[torch.randperm(len(self.teaching), generator=generator)]
        # What losses and networks draw at random, each process of a team draws for itself.
        if not self.team.is_first:
            generator.manual_seed(seed + _APART * self.team.rank)
        self.lists.whole.generator = generator
        total = 0.0
        for queries in torch.split(order, self.settings["queries_per_step"]) if len(order) else ():
            total += self._step(queries)
        return total / max(1, len(order))

    def _step(self, queries: Tensor) -> float:
        """One step of Adam; returns the sum of the losses of the queries.

        The processes of a team take some of the queries each, and then the same step, with the sum of their gradients.
        """
        own = queries
        if self.team.size > 1:
            own = queries[torch.from_numpy(self.team.deal(self.lists.whole.lengths[queries].cpu().numpy()))]
        for parameter in self.parameters:
            parameter.grad = None
        loss, wrong = self._differentiate(own, len(queries)) if len(own) else (0.0, None)
        if self.team.size > 1:
            loss, wrong = self._summed(loss, wrong)
        if wrong is not None:
            self._refuse(wrong)
        if self.settings["clip_norm"] is not None:
            _clip([p.grad for p in self.parameters if p.grad is not None], self.settings["clip_norm"])
        self.optimizer.step()
        return loss

    def _differentiate(self, queries: Tensor, n_queries: int) -> tuple[float, int | None]:
        """Set gradients of the loss of these queries over n_queries; returns it, and a query if it is not finite."""
        features, batch = self.lists.batch(queries)
        values = self._values(features, batch)
        check_values(values, len(queries))
        loss = float(values.detach().sum())
        if not math.isfinite(loss) and not torch.isfinite(values).all():
            return 0.0, int(queries[~torch.isfinite(values)][0])
        weighted = values if self.lists.weights is None else values * self.lists.weights[queries]
        torch.autograd.backward(weighted.sum() / n_queries)
        return loss, None

    def _summed(self, loss: float, wrong: int | None) -> tuple[float, int | None]:
        """Sum the gradients over the team, and the loss with them: one message for all."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        told = parts[0].new_tensor([loss, float(wrong is not None)])
        summed = self.team.all_reduce(torch.cat([*(part.flatten() for part in parts), told]))
        sizes = [part.numel() for part in parts]
        for parameter, gradient in zip(self.parameters, torch.split(summed[:-2], sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)
        if summed[-1] > 0:
            wrong = next(query for query in self.team.all_gather(wrong) if query is not None)
        return float(summed[-2]), wrong

    def _values(self, features: Tensor, batch: Batch) -> Tensor:
        """The loss of each query."""
        return self.task.loss(self.network(features, batch), batch)

    def _scores(self, valid: QueryLists) -> Floats:
        """The scores that the metrics judge."""
        return valid.scores(self.network)

    def _judged(self) -> dict[str, Any]:
        """The metrics of this epoch on validation data; its weights are kept if they are the best."""
        state = self.state
        if self.task.judge is None or self.task.valid is None:
            state.kept, state.best_epoch = _copied(self.network), state.epoch
            return {"kept": True}
        row = means_of(self.task.judge(self._scores(self.task.valid)))
        selection = Selection(best=state.best)
        better = selection.is_better(list(row.values()))
        if better:
            state.best, state.best_epoch, state.kept = tuple(row.values()), state.epoch, _copied(self.network)
        return row | {"kept": better}

    def _refuse(self, query: int) -> None:
        raise TrainingStopped(
            f"the loss of query {self.lists.query_ids[query]!s} is not finite in epoch {self.state.epoch}:"
            f" expected a learning_rate below {self.settings['learning_rate']:g}, or a clip_norm;"
            " the best weights so far are kept"
        )


class NetworkCheckpoint(Checkpoint):
    """Where a training of networks stands: those that are done, and all of the one that is not."""

    def __init__(self, folder: Path, task: NetworkFit) -> None:
        made_of: list[Any] = [task.lists.content, None if task.valid is None else task.valid.content]
        if is_of_caller(task.loss):  # also of a class, or of a table, where the settings do not say it
            made_of.append(described(task.loss))
        if task.context.start is not None:
            made_of.append({"start": task.context.start.digest()})
        super().__init__(folder, task.settings, made_of, task.lists.team)
        self.done: dict[str, State] = {}

    def write(self, training: Training) -> None:
        """Replace what the folder holds, whole or not at all."""
        self.done[training.name] = training.state
        if not self.team.is_first:
            return
        tensors = {f"kept{m}.{name}": t for m, state in self.done.items() for name, t in state.kept.items()}
        tensors |= {f"now.{name}": t for name, t in training.network.state_dict().items()}
        for number, values in training.optimizer.state_dict()["state"].items():
            tensors |= {f"adam{number}.{name}": torch.as_tensor(value) for name, value in values.items()}
        states = {m: {k: v for k, v in vars(state).items() if k != "kept"} for m, state in self.done.items()}
        with self.renewing() as fresh:
            where = {"states": states, "running": training.name}
            (fresh / "state.json").write_text(json.dumps(where), encoding="utf-8")
            # Its own writing of files has errors of its own for a disk that is full.
            content = safetensors.torch.save({n: t.contiguous() for n, t in tensors.items()})
            (fresh / "state.safetensors").write_bytes(content)

    def read(self, training: Training) -> None:
        """Set a training to where it stood; nothing where the folder has nothing of it."""
        with self.reading():
            text, weights = (self.content(f"state.{ending}") for ending in ("json", "safetensors"))
            if text is None:
                return
            where, tensors = json.loads(text), safetensors.torch.load(weights or b"")
            for m, values in where["states"].items():
                best = values.pop("best")
                kept = inside(tensors, f"kept{m}.")
                self.done[m] = State(**values, best=None if best is None else tuple(best), kept=kept)
            if training.name in self.done:
                training.state = self.done[training.name]
            if where["running"] == training.name:
                training.network.load_state_dict(inside(tensors, "now."))
                state = training.optimizer.state_dict()
                numbers = range(len(state["param_groups"][0]["params"]))
                state["state"] = {k: values for k in numbers if (values := inside(tensors, f"adam{k}."))}
                training.optimizer.load_state_dict(state)


def as_device(name: Any) -> torch.device:
    """The device of this name, if it is there and holds numbers."""
    try:
        torch.zeros(1, device=name).cpu()
        return torch.device(name)
    except (AssertionError, RuntimeError, TypeError) as error:
        raise ParameterError(
            f"device: expected one that torch has here, such as 'cpu', got {name!r}: {str(error).splitlines()[0]}"
        ) from None


def _clip(gradients: list[Tensor], limit: float) -> None:
    """Shorten the gradients, taken as one vector, to the limit."""
    length = float(torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients])))
    if length > limit:
        for gradient in gradients:
            gradient.mul_(limit / length)


def _copied(network: nn.Module) -> Weights:
    return {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}


def inside(tensors: Mapping[str, Tensor], prefix: str) -> Weights:
    """The tensors whose names begin so, without that."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@contextmanager
def torch_threads(n_jobs: int | None) -> Iterator[None]:
    """Set the number of torch threads while the block lasts."""
    before, wanted = torch.get_num_threads(), n_threads(n_jobs)
    if before == wanted:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)
