"""Presets: settings of the paper and of its authors' program for each of its data sets, and two of tierank.

``paper-DATA``          what the paper prints; for the rest LightGBM's defaults (trees) and tierank's (networks)
``authors-DATA``        what its authors' program does; sizes, which changed between its versions, are the paper's
``authors-later-DATA``  networks with the sizes, the rate and the scores of urBoost of the program's later version
``lightgbm-DATA``       trees as in the paper's last table: the settings of LightGBM's own experiments on MSLR-WEB30K

docs/paper.md has the table of the differences.

``rich-inputs``    networks that see each feature in several ways, with the training that suits them: the defaults
``plain-inputs``   networks that see each feature once, with a constant learning rate: faster on many features

docs/networks.md compares these two.

Below them: names that people know from other libraries, and what to give here.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tierank.data.matching import HOW_TO_ROUTE
from tierank.errors import ParameterError
from tierank.settings import declared

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

# One file of settings for all data sets.
_LATER = {"hidden": (1024, 512, 100), "learning_rate": 1e-4}

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
# data set had what; its authors' program has no settings for trees. The small data sets take the low ends, the large
# ones the high ends.
_SMALL = {"n_trees": 200, "n_leaves": 31, "max_bin": 255}
_LARGE = {"n_trees": 1000, "n_leaves": 255, "max_bin": 10_000}
_TREES: Presets = {"ohsumed": _SMALL, "mq2007": _SMALL, "mslr-web10k": _LARGE, "mslr-web30k": _LARGE}
# All trees are grown before the best round is chosen.
_TREE = _SELECTION | {"learning_rate": 0.05, "min_documents": 20, "patience": 1000, "select_over": 1}
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


def network_presets(later: dict[str, Any] | None = None, **always: Any) -> Presets:
    """The presets of a network ranker, with its additional settings: those of the later version, and of all."""
    presets = {"rich-inputs": _RICH_INPUTS, "plain-inputs": _PLAIN_INPUTS}
    for data, own in _NETWORKS.items():
        presets[f"paper-{data}"] = _NETWORK | own | _OF_PAPER | always
        presets[f"authors-{data}"] = _NETWORK | own | _OF_AUTHORS | always
        presets[f"authors-later-{data}"] = presets[f"authors-{data}"] | _LATER | (later or {})
    return presets


def tree_presets(paper: dict[str, Any], authors: dict[str, Any], *, is_windowed: bool = False) -> Presets:
    """The presets of a tree ranker, with its additional settings for each family and the window of each data set."""
    presets: Presets = {}
    for data, sizes in _TREES.items():
        window = {"window": _WINDOWS[data]} if is_windowed else {}
        of_paper = _TREE | sizes | window | paper
        presets |= {f"paper-{data}": of_paper, f"authors-{data}": of_paper | authors}
        if sizes is _LARGE:  # the MSLR sets, which the last table has
            presets[f"lightgbm-{data}"] = _LIGHTGBM | window | paper
    return presets


# Our settings, and what they are called in LightGBM, XGBoost, scikit-learn and torch.
_CALLED = {
    "n_trees": "n_estimators num_boost_round num_iterations iterations max_iter",
    "n_learners": "n_estimators",
    "max_epochs": "epochs n_epochs max_iter iterations",
    "learning_rate": "lr eta",
    "n_leaves": "num_leaves",
    "min_documents": "min_data_in_leaf",
    "patience": "early_stopping_rounds early_stopping_round",
    "select_by": "eval_metric metric scoring eval_at",
    "seed": "random_state random_seed",
    "n_jobs": "num_threads",
    "queries_per_step": "batch_size",
    "hidden": "hidden_layer_sizes",
    "ridge": "alpha",
    "loss": "objective",
    "sigma": "sigmoid",
    "truncation": "lambdarank_truncation_level",
    "gain": "label_gain",
    "norm": "lambdarank_norm",
    "weights": "lambdarank_norm",
}
# Other names that people type: settings, arguments and attributes of those libraries, and what to do instead.
HINTS: Mapping[str, str] = {
    "group": "give `qid`, one query id per row: np.repeat(np.arange(len(group)), group) makes it from group sizes",
    "groups": f"give `qid`, one query id per row; {HOW_TO_ROUTE}",
    "group_id": "give `qid`, one query id per row",
    "sample_weight": "give `row_weight`, one weight per row, or `query_weight`, one per query",
    "eval_set": "give fit `valid`=(X, y, qid), or a RankingDataset",
    "eval_metric": "the setting `select_by` has the metrics: UMart(select_by=['ndcg@10'])",
    "early_stopping_rounds": "the setting `patience` stops early: UMart(patience=20), and valid data in fit",
    "init_model": "give fit `start`, a fitted ranker; tierank.from_lightgbm makes one from a LightGBM model",
    "init_score": "the setting `base` is a ranker that trees add to: UMart(base=URank())",
    "verbose": "fit(progress=True) shows a progress bar, and `callbacks` hear of each round",
    "epochs": "the setting `max_epochs` of neural rankers has the number of epochs",
    "raw_score": "leave it out: scores are raw scores",
    "num_iteration": "leave it out: all trees that were kept are used",
    "importance_type": "feature_importances_ of tree rankers are gains; importance('split') counts splits",
    "warm_start": "fit(start=ranker) continues from a fitted ranker",
    "objective": "NetworkRanker and TreeRanker take a loss",
    "best_iteration_": "use n_rounds_",
    "best_score_": "use best_",
    "evals_result_": "use history_",
    "feature_name_": "use feature_names_in_",
    "predict_proba": "use predict(): scores are not probabilities",
    "save_model": "use save() for a folder, or export() for another engine",
    "load_model": "use tierank.load()",
}


def why_no_setting(ranker: str, name: str, known: Collection[str], main: str | None = None) -> ParameterError | None:
    """The error for a setting of another library; None for a name that is not listed here.

    ``main`` is LightGBM's main name of the parameter, for rankers that take its parameters.

    >>> print(why_no_setting("URank", "batch_size", ["queries_per_step"]))
    batch_size: expected queries_per_step, which is the name of this setting in URank
    >>> print(why_no_setting("URank", "eval_set", []))
    eval_set: is not a setting of URank; give fit valid=(X, y, qid), or a RankingDataset
    """
    names = {name, main or name}
    ours = main if main in known else next((o for o, n in _CALLED.items() if o in known and names & {*n.split()}), None)
    if ours is not None:
        return ParameterError(argument=name, expected=f"{ours}, which is the name of this setting in {ranker}")
    fix = next((HINTS[one] for one in names if one in HINTS), None)
    if main is not None and fix is None:
        fix = "leave it out: tierank sets it itself, or it belongs to other objectives, metrics or files of LightGBM"
    return None if fix is None else ParameterError(f"is not a setting of {ranker}", argument=name, fix=fix)


def why_no_attribute(owner: object, name: str) -> AttributeError:
    """The error for an attribute that a ranker does not have: what it is called here, if another library has it.

    >>> why_no_attribute(3, "best_iteration_").args[0]
    "'int' object has no attribute 'best_iteration_': use n_rounds_"
    """
    hint = f": {HINTS[name]}" if HINTS.get(name, "").startswith("use ") else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=owner)


def refuse_unknown(ranker: type[Any], method: str, unknown: Iterable[str]) -> None:
    """Raise ``ParameterError`` for the first argument that a method of a ranker does not have.

    >>> import tierank
    >>> refuse_unknown(tierank.UMart, "fit", ["n_trees"])
    Traceback (most recent call last):
    tierank.errors.ParameterError: n_trees: is a setting; give it to the ranker: UMart(n_trees=...)
    """
    for name in unknown:
        if name in declared(ranker):
            fix = f"give it to the ranker: {ranker.__name__}({name}=...)"
            raise ParameterError("is a setting", argument=name, fix=fix)
        if name in HINTS:
            raise ParameterError(f"is not an argument of {method}", argument=name, fix=HINTS[name])
        parameters = inspect.signature(getattr(ranker, method)).parameters.values()
        known = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name != "self"]
        raise ParameterError.unknown(f"argument of {method}", name, known)
