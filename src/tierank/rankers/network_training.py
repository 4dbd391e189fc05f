"""Trains networks: epoch after epoch, judged on validation data, with checkpoints.

``Training`` is the loop for one network; ``train_networks`` prepares the data and trains the members of a model.
"""

from __future__ import annotations

import inspect
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from tierank.arrays import Floats
from tierank.data.dataset import RankingDataset
from tierank.display import Progress
from tierank.errors import ParameterError
from tierank.kernels.mlp_training import URANK
from tierank.losses import Batch, urank
from tierank.losses.derivatives import call_loss, check_values
from tierank.losses.torch_state import own_torch, seeded
from tierank.networks import WithTower
from tierank.rankers.checkpoint import Checkpoint, described, is_of_caller
from tierank.rankers.compiled_steps import CompiledSteps, suits
from tierank.rankers.model import FitContext, Resources, TrainingStopped, inside
from tierank.rankers.network_model import NetworkModel, Weights, build_network
from tierank.rankers.network_scoring import TO_SCALE, QueryLists, largest_feature, torch_threads, unscored
from tierank.rankers.selection import Judging, Selection, make_judge, means_of
from tierank.transforms import Unchanged

# The difference between the seeds of the processes of a team; torch only uses the last 32 bits of a seed.
_APART = 0x9E3779B1
# Features above this, not scaled, are a more likely cause of an infinite loss than the learning rate.
_HUGE = 1e15
# Seconds between checkpoints: the most work that a kill can lose.
_EVERY = 5.0
# The fewest epochs under a step budget, and the share of all steps in which a cosine schedule warms up.
_LEAST_EPOCHS, _WARM_UP = 8, 0.05

Loss = Callable[[Tensor, Batch], Tensor]


class Adam:
    """Adam, or AdamW with ``weight_decay``, from torch's functions rather than its optimizer classes.

    Creating one of those classes imports torch's compiler, which takes a second or more of CPU time in every process
    that trains, and its ``step`` spends more time in Python than in the fused kernel below. The functions are the same,
    and so are the results, to the bit. ``state`` holds the moments of each parameter that has had a gradient, by the
    number of the parameter.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], weight_decay: float = 0.0) -> None:
        self.parameters, self.weight_decay = list(parameters), weight_decay
        self.state: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Take one step with this learning rate, for the parameters that have a gradient."""
        numbers = [number for number, parameter in enumerate(self.parameters) if parameter.grad is not None]
        states = [self.state_of(number) for number in numbers]
        (adamw if self.weight_decay else adam)(
            [self.parameters[number] for number in numbers],
            [gradient for number in numbers if (gradient := self.parameters[number].grad) is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,  # a step on few queries takes a fifth of the time
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def state_of(self, number: int) -> dict[str, Tensor]:
        """The moments of a parameter, which are 0 at first."""
        if number not in self.state:
            own = self.parameters[number]
            step = torch.zeros((), dtype=torch.float32, device=own.device)
            self.state[number] = {"step": step, "exp_avg": torch.zeros_like(own), "exp_avg_sq": torch.zeros_like(own)}
        return self.state[number]


@dataclass
class NetworkState:
    """The progress of one network in training."""

    epoch: int = 0
    best: tuple[float, ...] | None = None
    best_epoch: int = 0
    finished: bool = False
    stopped: bool = False  # by a callback
    kept: Weights = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


class NetworkCheckpoint(Checkpoint):
    """A checkpoint of the networks of a model: the finished ones, and the full state of the one in training."""

    def __init__(self, context: FitContext, settings: dict[str, Any], made_of: Sequence[Any]) -> None:
        super().__init__(context, settings, made_of)
        self.done: dict[str, NetworkState] = {}

    def write(self, name: str, state: NetworkState, network: nn.Module, optimizer: Adam) -> None:
        """Replace the content of the folder, atomically."""
        self.done[name] = state
        if not self.team.is_first:
            return
        tensors = {f"kept{m}.{key}": t for m, state in self.done.items() for key, t in state.kept.items()}
        tensors |= {f"now.{key}": t for key, t in network.state_dict().items()}
        for number, values in optimizer.state.items():
            tensors |= {f"adam{number}.{key}": value for key, value in values.items()}
        states = {m: {k: v for k, v in vars(state).items() if k != "kept"} for m, state in self.done.items()}
        with self.renewing() as fresh:
            where = {"states": states, "running": name}
            (fresh / "state.json").write_text(json.dumps(where), encoding="utf-8")
            # Not save_file, which raises errors of its own on a full disk.
            content = safetensors.torch.save({n: t.contiguous() for n, t in tensors.items()})
            (fresh / "state.safetensors").write_bytes(content)

    def read(self, name: str, network: nn.Module, optimizer: Adam) -> NetworkState | None:
        """Restore a network and its optimizer; None if the folder has no checkpoint of this network."""
        with self.reading():
            text, weights = (self.content(f"state.{ending}") for ending in ("json", "safetensors"))
            if text is None:
                return None
            where, tensors = json.loads(text), safetensors.torch.load(weights or b"")
            for m, values in where["states"].items():
                best = values.pop("best")
                kept = inside(tensors, f"kept{m}.")
                self.done[m] = NetworkState(**values, best=None if best is None else tuple(best), kept=kept)
            if where["running"] == name:
                network.load_state_dict(inside(tensors, "now."))
                for number, parameter in enumerate(optimizer.parameters):
                    if values := inside(tensors, f"adam{number}."):
                        optimizer.state[number] = {key: tensor.to(parameter.device) for key, tensor in values.items()}
        return self.done.get(name)


@dataclass
class NetworkFit:
    """What all networks of one call of ``fit`` share."""

    settings: dict[str, Any]
    loss: Loss
    lists: QueryLists
    valid: QueryLists | None
    judge: Judging | None
    context: FitContext
    checkpoint: NetworkCheckpoint | None = None


class Training:
    """The training of one network.

    Parameters
    ----------
    network : Module
        The network with its initial weights.
    task : NetworkFit
        Settings and data.
    place : dict of str to int
        What identifies the network in the model: the start of each row of the history.
    seed : int
        The seed of the order of the queries, and of all other random numbers in training.
    """

    def __init__(self, network: nn.Module, task: NetworkFit, place: dict[str, int], seed: int) -> None:
        self.network, self.task, self.place, self.seed = network, task, place, seed
        self.settings, self.lists, self.team = task.settings, task.lists, task.context.team
        self.name = "-".join(str(number) for number in place.values())  # in the checkpoint
        self.optimizer = Adam(network.parameters(), self.settings["weight_decay"])
        self.checks_loss, self.loss = is_of_caller(task.loss), task.loss
        if isinstance(task.loss, partial) and not self.checks_loss:  # what takes tensors of users too is not needed
            self.loss = partial(inspect.unwrap(task.loss.func), *task.loss.args, **task.loss.keywords)
        self.teaching = self.lists.teaching(self.settings["query_order"])
        self.steps_per_epoch = -(-len(self.teaching) // self.settings["queries_per_step"])
        self.n_epochs = count_epochs(self.settings, self.steps_per_epoch)
        self.state = NetworkState(kept=weights_of(network))
        if task.checkpoint is not None:
            self.state = task.checkpoint.read(self.name, network, self.optimizer) or self.state
        task.context.callbacks.stopped |= self.state.stopped
        self.compiled = self._compile()

    def run(self, label: str) -> None:
        """Train epoch after epoch, until patience or epochs run out."""
        state, task = self.state, self.task
        saved = time.monotonic()
        with Progress(label, self.n_epochs, show=task.context.progress, done=state.epoch) as shown:
            while not state.finished:
                state.epoch += 1
                loss, metrics = self._learn(), {}
                is_best = task.judge is None or task.valid is None
                if task.judge is not None and task.valid is not None:
                    scores = self.valid_scores(task.valid)
                    if not np.isfinite(scores).all():
                        raise unscored(task.valid.data, scores)
                    metrics = means_of(task.judge(scores), self.team)
                    is_best = Selection(best=state.best).is_better(list(metrics.values()))
                if is_best:
                    state.best_epoch, state.kept = state.epoch, weights_of(self.network)
                    state.best = tuple(metrics.values()) if metrics else None
                row = {**self.place, "epoch": state.epoch, "loss": loss, **metrics, "kept": is_best}
                state.history.append(row)
                shown.step(" ".join(f"{n} {v:.4f}" for n, v in row.items() if isinstance(v, float)))
                told: dict[str, Any] = {"loss": loss, "is_best": is_best, **self.place}
                state.stopped = task.context.step(state.epoch, self.n_epochs, self.settings, metrics, **told)
                impatient = task.judge is not None and state.epoch - state.best_epoch >= self.settings["patience"]
                is_last = state.epoch >= self.n_epochs or not len(self.teaching)
                state.finished = impatient or is_last or state.stopped
                if task.checkpoint is not None and (state.finished or time.monotonic() - saved > _EVERY):
                    task.checkpoint.write(self.name, state, self.network, self.optimizer)
                    saved = time.monotonic()

    def _learn(self) -> float:
        """One pass over the queries, in an order that depends on the seed and the epoch; returns the mean loss."""
        self.network.train()
        seed = self.seed * 1_000_003 + self.state.epoch
        generator = torch.Generator().manual_seed(seed)
        order = self.teaching
        if self.settings["query_order"] == "shuffled":
            order = order[torch.randperm(len(order), generator=generator)]
        # Each process of a team has its own random numbers for losses and networks.
        if not self.team.is_first:
            generator.manual_seed(seed + _APART * self.team.rank)
        self.lists.whole.generator = generator
        if not len(order):
            return 0.0
        rate, n_steps = self.settings["learning_rate"], self.n_epochs * self.steps_per_epoch
        first = (self.state.epoch - 1) * self.steps_per_epoch
        rates = [rate] * self.steps_per_epoch
        if self.settings["schedule"] == "cosine":
            rates = [rate * cosine_share(first + step, n_steps) for step in range(self.steps_per_epoch)]
        total, wrong = 0.0, None
        with seeded(generator.initial_seed()):
            if self.compiled is not None:
                total, wrong = self.compiled.epoch(order, rates)
            else:
                for queries, rate in zip(torch.split(order, self.settings["queries_per_step"]), rates, strict=True):
                    loss, wrong = self.step(queries, rate)
                    if wrong is not None:
                        break
                    total += loss
        if wrong is not None:
            raise self._stopped_at(wrong)
        return total / len(order)

    def step(self, queries: Tensor, rate: float) -> tuple[float, str | None]:
        """Take one step of Adam; returns the sum of the losses of the queries.

        If the loss of a query is not finite, no step is taken, and the id of that query is returned as well. In a team,
        each process computes the gradients of its own queries, and all take the same step with their sum.
        """
        parameters, limit = self.optimizer.parameters, self.settings["clip_norm"]
        for parameter in parameters:
            parameter.grad = None
        own = queries if self.team.size == 1 else self.lists.own(queries)
        loss, wrong = self._differentiate(own, len(queries)) if len(own) else (0.0, None)
        if self.team.size > 1:
            loss, wrong = self._sum_over_team(loss, wrong)
        if wrong is None:
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            if limit is not None:  # gradients are one vector, scaled down to the maximum norm
                length = float(torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients])))
                if length > limit:
                    for gradient in gradients:
                        gradient.mul_(limit / length)
            self.optimizer.step(rate)
        return loss, wrong

    def _differentiate(self, queries: Tensor, n_queries: int) -> tuple[float, str | None]:
        """Set the gradients of the sum of losses / n_queries; returns the sum, and a query whose loss is not finite."""
        features, batch = self.lists.batch(queries)
        values = self.values(features, batch)
        if self.checks_loss:
            check_values(values, len(queries))
            if batch.ignores_row_weight:
                raise ParameterError(
                    argument="row_weight",
                    expected="a loss that reads batch.row_weight",
                    got="one that does not",
                    fix="leave out row_weight, or give query_weight",
                )
        loss = float(values.detach().sum())
        if not math.isfinite(loss) and not torch.isfinite(values).all():
            return 0.0, str(self.lists.query_ids[int(queries[~torch.isfinite(values)][0])])
        weighted = values if self.lists.weights is None else values * self.lists.weights[queries]
        torch.autograd.backward(weighted.sum() / n_queries)
        return loss, None

    def _sum_over_team(self, loss: float, wrong: str | None) -> tuple[float, str | None]:
        """Sum gradients and loss over the team, in one message."""
        parameters = self.optimizer.parameters
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        told = parts[0].new_tensor([loss, float(wrong is not None)])
        summed = self.team.all_reduce(torch.cat([*(part.flatten() for part in parts), told]))
        sizes = [part.numel() for part in parts]
        for parameter, gradient in zip(parameters, torch.split(summed[:-2], sizes), strict=True):
            parameter.grad = gradient.view_as(parameter)
        if summed[-1] > 0:
            wrong = next(query for query in self.team.all_gather(wrong) if query is not None)
        return float(summed[-2]), wrong

    def values(self, features: Tensor, batch: Batch) -> Tensor:
        """The loss of each query."""
        scores = self.network(features, batch)
        values: Tensor = call_loss(self.loss, scores, batch) if self.checks_loss else self.loss(scores, batch)
        return values

    def valid_scores(self, valid: QueryLists) -> Floats:
        """The scores of this process's validation queries, which the metrics judge."""
        return valid.scores(self.network)

    def compiled_loss(self) -> tuple[int, Tensor] | None:
        """The loss for ``CompiledSteps``, and its number for each document; None if torch has to compute it."""
        loss = self.task.loss
        is_urank = loss is urank or (isinstance(loss, partial) and loss.func is urank)
        return (URANK, self.lists.whole.urank_weights) if is_urank else None

    def _compile(self) -> CompiledSteps | None:
        loss = self.compiled_loss()
        if loss is None or not suits(self.network, loss[0], self.lists, self.settings):
            return None
        return CompiledSteps(self.network, *loss, self.lists, self.optimizer, self.settings)

    def _stopped_at(self, query: str) -> TrainingStopped:
        """The error for a query whose loss is not finite."""
        fix, data = f"give a learning_rate below {self.settings['learning_rate']:g}, or a clip_norm", self.lists.data
        rows = np.flatnonzero(np.repeat(data.query_ids.astype(str) == query, data.lengths))  # none: of another process
        if len(rows) and isinstance(self.lists.inputs.transform, Unchanged):
            size, which = largest_feature(data, rows)
            if size > _HUGE:
                fix = f"{which} is too large to add up: {TO_SCALE}"
        what = f"the loss of query {query} is not finite in epoch {self.state.epoch}; the best weights so far are kept"
        return TrainingStopped(what, fix=fix)


def weights_of(network: nn.Module) -> Weights:
    """A copy of the weights of a network, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}


def count_epochs(settings: Mapping[str, Any], steps_per_epoch: int) -> int:
    """The maximum number of epochs: min(max_epochs, max(8, step_budget / steps per epoch, rounded up)).

    >>> [count_epochs({"max_epochs": 40, "step_budget": 1500}, steps) for steps in (10, 60, 10_000)]
    [40, 25, 8]
    """
    limit: int = settings["max_epochs"]
    budget: int | None = settings["step_budget"]
    if budget is None or not steps_per_epoch:
        return limit
    return min(limit, max(_LEAST_EPOCHS, math.ceil(budget / steps_per_epoch)))


def cosine_share(step: int, n_steps: int) -> float:
    """The share of the learning rate at step s = 0, 1, ... of S. It rises over the first w = max(1, 0.05 S) steps:

        (s + 1) / w  for s < w, then  (1 + cos(pi (s - w) / (S - w))) / 2

    with w rounded to an integer.

    >>> [round(cosine_share(step, 40), 3) for step in (0, 1, 2, 21, 39)]
    [0.5, 1.0, 1.0, 0.5, 0.002]
    """
    warm_up = max(1, round(_WARM_UP * n_steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return (1 + math.cos(math.pi * (step - warm_up) / (n_steps - warm_up))) / 2


@own_torch()
def train_networks(
    model: NetworkModel,
    loss: Loss,
    data: tuple[RankingDataset, RankingDataset | None],
    context: FitContext,
    train_members: Callable[[Any, NetworkFit], None] | None = None,
) -> None:
    """Train the members of a model, one for each seed, by ``train_members``; the default one trains one network each.

    From here on, each process of a team only has its own queries.
    """
    team, settings = context.team, model.settings
    train, valid = team.part(data[0]), None if data[1] is None else team.part(data[1])
    resources = Resources(settings["n_jobs"], settings["device"])
    judge = None if valid is None else make_judge(valid, settings["select_by"], settings["rule"], 1, team)
    step = min(settings["queries_per_step"], train.n_queries) * train.n_documents // max(1, train.n_queries)
    with torch_threads(resources.n_jobs, step * model.inputs.width):
        of_model = model.inputs, model.seen.has_queries, settings["gain"], resources
        lists = QueryLists(train, *of_model, team, judged_only=True, keeps_inputs=True)
        held_out = None if valid is None else QueryLists(valid, *of_model, team, keeps_inputs=True)
        task = NetworkFit(settings, loss, lists, held_out, judge, context)
        if context.checkpoint is not None:
            task.checkpoint = NetworkCheckpoint(context, settings, _made_of(task))
        try:
            (train_members or _train_members)(model, task)
        except TrainingStopped as stop:
            stop.model = model
            raise
    if judge is not None and valid is not None:
        model.best = means_of(judge(model.predict(valid, resources)), team)


def _made_of(task: NetworkFit) -> list[Any]:
    """Inputs to the digest of the checkpoint other than settings."""
    made_of: list[Any] = [task.lists.content, None if task.valid is None else task.valid.content]
    if is_of_caller(task.loss):  # also if a class or a table provides it, not a setting
        made_of.append(described(task.loss))
    if task.settings["query_order"] == "given":
        made_of.append({"order": task.lists.given_order.tolist()})
    if task.context.start is not None:
        made_of.append({"start": task.context.start.digest()})
    return made_of


def _train_members(model: NetworkModel, task: NetworkFit) -> None:
    settings, start, lists = task.settings, task.context.start, task.lists
    for member in range(settings["n_seeds"]):
        seed = settings["seed"] + member
        network = build_network(settings, model.inputs, seed, settings["device"])
        if isinstance(start, NetworkModel):
            network.load_state_dict(start.members[member])
        tower = settings["position_tower"]
        if tower != "none":  # which is not part of the model
            last = max(lists.team.all_gather(int(np.asarray(lists.data.position).max())))
            network = WithTower(network, tower, last).to(lists.device, torch.float32)
        training = Training(network, task, {"member": member}, seed)
        try:
            training.run("training" if settings["n_seeds"] == 1 else f"network {member + 1} of {settings['n_seeds']}")
        finally:  # also if the loss was not finite: the best weights so far are kept
            best = training.state.kept
            model.members.append(best if tower == "none" else inside(best, "network."))
            model.history += training.state.history
            model.n_epochs.append(training.state.best_epoch)
        if task.context.is_stopped:
            break
