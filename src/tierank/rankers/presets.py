"""Presets: settings of the paper and of its authors' program for each of its data sets, and two of tierank.

``paper-DATA``     what the paper prints; for the rest LightGBM's defaults (trees) and tierank's (networks)
``authors-DATA``   what its authors' program does
``lightgbm-DATA``  trees as in the paper's last table: the settings of LightGBM's own experiments on MSLR-WEB30K

docs/paper.md has the table of the differences.

``rich-inputs``    networks that see each feature in several ways, with the training that suits them: the defaults
``plain-inputs``   networks that see each feature once, with a constant learning rate: faster on many features

docs/networks.md compares these two.
"""

from __future__ import annotations

from typing import Any

Presets = dict[str, dict[str, Any]]

_SELECTION = {"select_by": ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10"), "rule": "wsdm20"}

# Networks: sizes of the hidden layers and the learning rate of each data set.
_NETWORKS: Presets = {
    "ohsumed": {"hidden": (100, 50), "learning_rate": 1e-4},
    "mq2007": {"hidden": (100, 100), "learning_rate": 1e-5},
    "mslr-web10k": {"hidden": (200, 200), "learning_rate": 1e-5},
    "mslr-web30k": {"hidden": (200, 200), "learning_rate": 1e-5},
}
_PLAIN_INPUTS = {
    "feature_transform": "query_minmax",
    "encoding": "none",
    "dropout": 0.0,
    "weight_decay": 0.0,
    "schedule": "constant",
    "step_budget": None,
    "max_epochs": 200,
    "patience": 20,
}
_NETWORK = _PLAIN_INPUTS | _SELECTION | {"queries_per_step": 1, "clip_norm": 5.0, "patience": 200}
_OF_PAPER = {"activation": "elu", "max_epochs": 10_000}
_OF_AUTHORS = {"activation": "relu", "max_epochs": 1000, "initial_weights": "glorot", "query_order": "given"}

_RICH_INPUTS = {
    "feature_transform": ("query_minmax", "query_log1p", "log1p"),
    "encoding": "piecewise",
    "dropout": 0.3,
    "weight_decay": 1e-2,
    "schedule": "cosine",
    "step_budget": 1500,
    "max_epochs": 40,
    "patience": 40,  # a rate that falls to 0 is best near the end
}

# Trees: the paper prints ranges, 200 to 1,000 trees, 31 to 255 leaves and 255 to 10,000 bins, and does not say which
# data set had what. The small data sets take the low ends; the large ones take the values of the authors' program.
_SMALL = {"n_trees": 200, "n_leaves": 31, "max_bin": 255}
_LARGE = {"n_trees": 1000, "n_leaves": 64, "max_bin": 10_000}
_TREES: Presets = {"ohsumed": _SMALL, "mq2007": _SMALL, "mslr-web10k": _LARGE, "mslr-web30k": _LARGE}
_TREE = _SELECTION | {"learning_rate": 0.05, "min_documents": 20}
_TREE_OF_AUTHORS = _LARGE | {
    "min_documents": 5,
    "min_sum_hessian_in_leaf": 5.0,
    "bagging_fraction": 0.9,
    "bagging_freq": 1,
    "keep": "all",
}
_WINDOWS = {"ohsumed": 2, "mq2007": 10, "mslr-web10k": 2, "mslr-web30k": 2}
_LIGHTGBM = {
    "n_trees": 500,
    "learning_rate": 0.1,
    "n_leaves": 255,
    "min_documents": 0,
    "min_sum_hessian_in_leaf": 100.0,
    "select_by": _SELECTION["select_by"],
    "rule": "lightgbm",
    "patience": 500,
    "select_over": 1,
}


def network_presets(paper: dict[str, Any] | None = None, authors: dict[str, Any] | None = None) -> Presets:
    """The presets of a network ranker, with its additional settings for each family."""
    of_paper = {f"paper-{data}": _NETWORK | own | _OF_PAPER | (paper or {}) for data, own in _NETWORKS.items()}
    of_authors = {f"authors-{data}": _NETWORK | own | _OF_AUTHORS | (authors or {}) for data, own in _NETWORKS.items()}
    return of_paper | of_authors | {"rich-inputs": _RICH_INPUTS, "plain-inputs": _PLAIN_INPUTS}


def tree_presets(paper: dict[str, Any], authors: dict[str, Any], *, is_windowed: bool = False) -> Presets:
    """The presets of a tree ranker, with its additional settings for each family and the window of each data set."""
    windows = {data: {"window": window} if is_windowed else {} for data, window in _WINDOWS.items()}
    patient = {"patience": 1000, "select_over": 1}  # all trees are grown before the best round is chosen
    of_paper = {f"paper-{data}": _TREE | own | patient | windows[data] | paper for data, own in _TREES.items()}
    of_authors = {f"authors-{data}": _TREE | _TREE_OF_AUTHORS | windows[data] | authors for data in _TREES}
    of_last = {f"lightgbm-{data}": _LIGHTGBM | windows[data] | paper for data in ("mslr-web10k", "mslr-web30k")}
    return of_paper | of_authors | of_last
