"""The training of one network: batches of whole queries, steps, the best epoch, and where it stands."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tierank.dataset import RankingDataset
from tierank.errors import ParameterError
from tierank.inputs import forget
from tierank.losses import Batch
from tierank.metrics import Judge
from tierank.objectives.loss import check_values
from tierank.progress import Progress
from tierank.rankers.base import Job, Selection, means_of
from tierank.rankers.checkpoint import Checkpoint, described
from tierank.rankers.identity import is_of_caller
from tierank.rankers.order import canonical_rows
from tierank.team import Team

Floats = NDArray[np.float64]
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


class Lists:
    """The queries of a data set as a network meets them: in canonical order, transformed when asked for."""

    def __init__(
        self,
        data: RankingDataset,
        transform: Any,
        has_queries: bool,
        settings: dict[str, Any],
        team: Team | None = None,
    ) -> None:
        self.data, self.transform, self.has_queries = data, transform, has_queries
        self.device = as_device(settings["device"])
        self.team = team or Team()
        self._seen = 0
        self.order, offsets, self.content = canonical_rows(data, settings["n_jobs"], rated=False, team=team)
        ratings = data.ratings[self.order] if data.is_rated else None
        self.whole = Batch(offsets, ratings, gain=settings["gain"], device=self.device)
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
            forget(self.data.features)
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
    kept: Weights = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Task:
    """What all trainings of one call of ``fit`` share."""

    settings: dict[str, Any]
    loss: Loss
    lists: Lists
    valid: Lists | None
    judge: Judge | None
    job: Job

    def open_checkpoint(self) -> NetworkCheckpoint | None:
        """The checkpoint of this task, if one is asked for."""
        folder = self.job.checkpoint
        return None if folder is None else NetworkCheckpoint(folder, self)


class Training:
    """The training of one network. ``place`` says which one it is: rows of the history begin with it."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        task: Task,
        place: dict[str, int],
        seed: int,
        checkpoint: NetworkCheckpoint | None,
    ) -> None:
        self.task, self.settings, self.lists, self.team = task, task.settings, task.lists, task.job.team
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

    @property
    def name(self) -> str:
        """What the checkpoint calls this training."""
        return "-".join(str(number) for number in self.place.values())

    def run(self, label: str) -> None:
        """Epoch after epoch, until patience or epochs run out."""
        state, settings = self.state, self.settings
        saved = time.monotonic()
        with Progress(label, settings["max_epochs"], show=self.task.job.progress, done=state.epoch) as shown:
            while not state.finished:
                state.epoch += 1
                row = {**self.place, "epoch": state.epoch, "loss": self._learn()} | self._judged()
                state.history.append(row)
                shown.step(" ".join(f"{n} {v:.4f}" for n, v in row.items() if isinstance(v, float)))
                impatient = self.task.judge is not None and state.epoch - state.best_epoch >= settings["patience"]
                state.finished = impatient or state.epoch >= settings["max_epochs"] or not len(self.teaching)
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
        """Set gradients of the loss of these queries over n_queries; returns it, and a query where it is no number."""
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

    def _scores(self, valid: Lists) -> Floats:
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
        raise ParameterError(
            f"the loss of query {self.lists.query_ids[query]!s} is not finite in epoch {self.state.epoch}:"
            f" expected a learning_rate below {self.settings['learning_rate']:g}, or a clip_norm;"
            " the best weights so far are kept"
        )


class NetworkCheckpoint(Checkpoint):
    """Where a training of networks stands: those that are done, and all of the one that is not."""

    def __init__(self, folder: Path, task: Task) -> None:
        made_of = [task.lists.content, None if task.valid is None else task.valid.content]
        if is_of_caller(task.loss):  # also of a class, or of a table, where the settings do not say it
            made_of.append(described(task.loss))
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
