"""Builds networks, and the transforms that make their inputs, from settings."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tierank.dataset import RankingDataset
from tierank.errors import ParameterError
from tierank.networks import NETWORKS, Embedded, draw_glorot, has_shapes_alone
from tierank.team import Team
from tierank.torch_state import seeded
from tierank.training.networks.device import as_device
from tierank.training.networks.inputs import Inputs
from tierank.transforms import Piecewise, SideBySide, Transform, make_transform

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
    """Raise ``ParameterError`` if the network does not take the settings."""
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
