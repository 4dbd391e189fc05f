"""The training of one network: epoch after epoch, judged on validation data, with checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tierank.losses import Batch
from tierank.progress import Progress
from tierank.torch_state import seeded
from tierank.training.model import TrainingStopped
from tierank.training.networks.checkpoint import NetworkCheckpoint, NetworkState
from tierank.training.networks.compiled_steps import CompiledDescent, CompiledLoss, as_urank, suits
from tierank.training.networks.lists import TO_SCALE, QueryLists, largest_feature, unscored
from tierank.training.networks.schedule import count_epochs, rate_of
from tierank.training.networks.steps import Descent
from tierank.training.networks.task import NetworkFit
from tierank.training.networks.weights import copied
from tierank.training.selection import Selection, means_of
from tierank.transforms import Unchanged
from tierank.types import Floats

# The difference between the seeds of the processes of a team; torch only uses the last 32 bits of a seed.
_APART = 0x9E3779B1
# Features above this, not scaled, are a more likely cause of an infinite loss than the learning rate.
_HUGE = 1e15
# Seconds between checkpoints: the most work that a kill can lose.
_EVERY = 5.0


class Training:
    """The training of one network. ``place`` identifies it, and is the start of each row of the history."""

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
        self.descent = self._make_descent()
        self.state = NetworkState(kept=copied(self.network))
        self.teaching = self.lists.teaching(self.settings["query_order"])
        self.steps_per_epoch = -(-len(self.teaching) // self.settings["queries_per_step"])
        self.n_epochs = count_epochs(self.settings, self.steps_per_epoch)
        if checkpoint is not None:
            self.state = checkpoint.read(self.name, self.network, self.descent.optimizer) or self.state
        task.context.callbacks.stopped |= self.state.stopped

    def _make_descent(self) -> Descent | CompiledDescent:
        loss = self.compiled_loss()
        if loss is not None and suits(self.network, loss, self.lists, self.settings):
            return CompiledDescent(self.network, loss, self.lists, self.settings)
        return Descent(self.network, self.values, self.lists, self.settings, self.team)

    def compiled_loss(self) -> CompiledLoss | None:
        """The loss as compiled steps take it; None if torch has to compute it."""
        return as_urank(self.task.loss, self.lists.whole)

    @property
    def name(self) -> str:
        """The name of this training in the checkpoint."""
        return "-".join(str(number) for number in self.place.values())

    def run(self, label: str) -> None:
        """Train epoch after epoch, until patience or epochs run out."""
        state, settings = self.state, self.settings
        saved = time.monotonic()
        with Progress(label, self.n_epochs, show=self.task.context.progress, done=state.epoch) as shown:
            while not state.finished:
                state.epoch += 1
                loss, judged = self._learn(), self._judged()
                row = {**self.place, "epoch": state.epoch, "loss": loss} | judged
                state.history.append(row)
                shown.step(" ".join(f"{n} {v:.4f}" for n, v in row.items() if isinstance(v, float)))
                metrics = {name: value for name, value in judged.items() if name != "kept"}
                told: dict[str, Any] = {"loss": loss, "is_best": judged["kept"], **self.place}
                state.stopped = self.task.context.step(state.epoch, self.n_epochs, settings, metrics, **told)
                impatient = self.task.judge is not None and state.epoch - state.best_epoch >= settings["patience"]
                is_last = state.epoch >= self.n_epochs or not len(self.teaching)
                state.finished = impatient or is_last or state.stopped
                if self.checkpoint is not None and (state.finished or time.monotonic() - saved > _EVERY):
                    self.checkpoint.write(self.name, state, self.network, self.descent.optimizer)
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
        first, n_steps = (self.state.epoch - 1) * self.steps_per_epoch, self.n_epochs * self.steps_per_epoch
        numbers = range(first, first + self.steps_per_epoch)
        with seeded(generator.initial_seed()):
            total, wrong = self.descent.epoch(order, [rate_of(self.settings, number, n_steps) for number in numbers])
        if wrong is not None:
            self._refuse(wrong)
        return total / len(order)

    def values(self, features: Tensor, batch: Batch) -> Tensor:
        """The loss of each query."""
        return self.task.loss(self.network(features, batch), batch)

    def valid_scores(self, valid: QueryLists) -> Floats:
        """The scores of this process's validation queries, which the metrics judge."""
        return valid.scores(self.network)

    def _judged(self) -> dict[str, Any]:
        """The metrics of this epoch on validation data; keeps the weights if they are the best so far."""
        state = self.state
        if self.task.judge is None or self.task.valid is None:
            state.kept, state.best_epoch = copied(self.network), state.epoch
            return {"kept": True}
        scores = self.valid_scores(self.task.valid)
        if not np.isfinite(scores).all():
            raise unscored(self.task.valid.data, scores)
        row = means_of(self.task.judge(scores), self.team)
        selection = Selection(best=state.best)
        better = selection.is_better(list(row.values()))
        if better:
            state.best, state.best_epoch, state.kept = tuple(row.values()), state.epoch, copied(self.network)
        return row | {"kept": better}

    def _refuse(self, query: str) -> None:
        cause = f"expected a learning_rate below {self.settings['learning_rate']:g}, or a clip_norm"
        data = self.lists.data
        rows = np.flatnonzero(np.repeat(data.query_ids.astype(str) == query, data.lengths))  # none: of another process
        if len(rows) and isinstance(self.lists.inputs.transform, Unchanged):
            size, which = largest_feature(data, rows)
            if size > _HUGE:
                cause = f"expected features that a network can add up, got {which}; {TO_SCALE}"
        raise TrainingStopped(
            f"the loss of query {query} is not finite in epoch {self.state.epoch}: {cause};"
            " the best weights so far are kept"
        )
