"""Trains all members of a model, one network for each seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from tierank.dataset import RankingDataset
from tierank.networks import WithTower
from tierank.torch_state import own_torch
from tierank.training.model import FitContext, Resources, TrainingStopped, inside
from tierank.training.networks.building import build_network
from tierank.training.networks.device import torch_threads
from tierank.training.networks.lists import QueryLists
from tierank.training.networks.loop import Training
from tierank.training.networks.model import NetworkModel
from tierank.training.networks.task import Loss, NetworkFit
from tierank.training.networks.weights import Weights
from tierank.training.selection import make_judge, means_of


@own_torch()
def train_networks(
    model: NetworkModel,
    loss: Loss,
    data: tuple[RankingDataset, RankingDataset | None],
    context: FitContext,
    train_members: Callable[[NetworkFit], None] | None = None,
) -> None:
    """Train the members of a model, one for each seed; ``train_members`` replaces the default procedure.

    From here on, each process of a team only has its own queries.
    """
    team = context.team
    train, valid = team.part(data[0]), None if data[1] is None else team.part(data[1])
    settings = model.settings
    resources = Resources(settings["n_jobs"], settings["device"])
    judge = None if valid is None else make_judge(valid, settings["select_by"], settings["rule"], 1, team)
    step = min(settings["queries_per_step"], train.n_queries) * train.n_documents // max(1, train.n_queries)
    with torch_threads(resources.n_jobs, step * model.inputs.width):
        of_model = model.inputs, model.seen.has_queries, settings["gain"], resources
        lists = QueryLists(train, *of_model, team, judged_only=True).keep_inputs()
        held_out = None if valid is None else QueryLists(valid, *of_model, team).keep_inputs()
        task = NetworkFit(settings, loss, lists, held_out, judge, context)
        try:
            (train_members or partial(_train_members, model))(task)
        except TrainingStopped as stop:
            stop.model = model
            raise
    if judge is not None and valid is not None:
        model.best = means_of(judge(model.predict(valid, resources)), team)


def _train_members(model: NetworkModel, task: NetworkFit) -> None:
    kept, start = task.open_checkpoint(), task.context.start
    n_seeds = task.settings["n_seeds"]
    for member in range(n_seeds):
        seed = task.settings["seed"] + member
        label = "training" if n_seeds == 1 else f"network {member + 1} of {n_seeds}"
        build: Callable[[], nn.Module]
        build = partial(build_network, task.settings, model.inputs, seed, task.settings["device"])
        if isinstance(start, NetworkModel):
            build = partial(_with_weights, build, start.members[member])
        tower = task.settings["position_tower"]
        if tower != "none":
            build = partial(_with_tower, build, tower, task.lists)
        training = Training(build, task, {"member": member}, seed, kept)
        try:
            training.run(label)
        finally:  # also if the loss was not finite: the best weights so far are kept
            best = training.state.kept
            model.members.append(best if tower == "none" else inside(best, "network."))
            model.history += training.state.history
            model.n_epochs.append(training.state.best_epoch)
        if task.context.is_stopped:
            break


def _with_weights(build: Callable[[], nn.Module], weights: Weights) -> nn.Module:
    network = build()
    network.load_state_dict(weights)
    return network


def _with_tower(build: Callable[[], nn.Module], kind: str, lists: QueryLists) -> nn.Module:
    """The network with a position tower, which is not part of the model."""
    last = max(lists.team.all_gather(int(np.asarray(lists.data.position).max())))
    return WithTower(build(), kind, last).to(lists.device, torch.float32)
