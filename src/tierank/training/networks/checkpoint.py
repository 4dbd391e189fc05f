"""Checkpoints of networks: the finished ones, and the full state of the one in training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import safetensors.torch
from torch import nn

from tierank.training.checkpoint import Checkpoint
from tierank.training.model import FitContext, inside
from tierank.training.networks.adam import Adam
from tierank.training.networks.weights import Weights


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
                numbers = range(len(optimizer.parameters))
                optimizer.load({k: values for k in numbers if (values := inside(tensors, f"adam{k}."))})
        return self.done.get(name)
