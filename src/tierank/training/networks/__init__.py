"""Networks: batches of whole queries, one training loop for all losses, exact resume, and the fitted model.

``members`` trains a network for each seed with the ``loop``; an epoch takes ``steps`` over ``lists``, or small
``compiled_steps``, with the learning rate of the ``schedule``. ``inputs`` turns features into what networks see,
``building`` makes networks, ``model`` holds the fitted ones, and ``portable`` converts them to the form that exports
read.
"""

from tierank.training.networks.building import OF_WEIGHTS, build_network, check_network, fit_inputs, initialised
from tierank.training.networks.checkpoint import NetworkCheckpoint, NetworkState
from tierank.training.networks.lists import QueryLists
from tierank.training.networks.loop import Training
from tierank.training.networks.members import train_networks
from tierank.training.networks.model import NetworkModel
from tierank.training.networks.schedule import cosine_share, count_epochs
from tierank.training.networks.task import Loss, NetworkFit
from tierank.training.networks.weights import Weights

__all__ = [
    "OF_WEIGHTS",
    "Loss",
    "NetworkCheckpoint",
    "NetworkFit",
    "NetworkModel",
    "NetworkState",
    "QueryLists",
    "Training",
    "Weights",
    "build_network",
    "check_network",
    "cosine_share",
    "count_epochs",
    "fit_inputs",
    "initialised",
    "train_networks",
]
