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


_QID, _VALID = "`qid`, one query id per row", "`valid`=(X, y, qid), or a RankingDataset"
_ALL_TREES = "nothing: all trees that were kept are used"

# Arguments of fit, predict and rank: what to give instead, and how.
ARGUMENTS: Mapping[str, tuple[str, str | None]] = {
    "group": (_QID, "np.repeat(np.arange(len(group)), group) makes it from group sizes"),
    "groups": (_QID, HOW_TO_ROUTE),  # scikit-learn's word for one id per row
    "group_id": (_QID, "rename group_id to qid"),
    "sample_weight": ("`row_weight`, one weight per row, or `query_weight`, one per query", None),
    **dict.fromkeys(("eval_set", "eval_group", "eval_qid"), (_VALID, "fit takes eval_set as well")),
    "eval_metric": ("the setting `select_by`", "such as UMart(select_by=['ndcg@10'])"),
    "eval_at": ("the setting `select_by`", "such as UMart(select_by=['ndcg@5', 'ndcg@10'])"),
    "early_stopping_rounds": ("the setting `patience`", "such as UMart(patience=20), and valid data in fit"),
    "init_model": ("`start`, a fitted ranker", "tierank.from_lightgbm makes one from a LightGBM model"),
    "xgb_model": ("`start`, a fitted ranker", "a model of XGBoost cannot be read"),
    "init_score": (
        "the setting `base`, a ranker whose scores the trees add to",
        "UMart(base=URank()) adds trees to the scores of URank",
    ),
    "verbose": ("`progress`=True for a progress bar, or `callbacks`", None),
    "epochs": ("the setting `max_epochs` of neural rankers", "such as URank(max_epochs=100)"),
    "raw_score": ("nothing: scores are raw scores", None),
    "num_iteration": (_ALL_TREES, "booster_ of a tree ranker is LightGBM's own model; its predict takes fewer"),
}
# Settings: ours, the first that a ranker has. Tree rankers know LightGBM's names themselves.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("n_estimators", "num_boost_round", "num_iterations"), ("n_trees", "n_learners")),
    **dict.fromkeys(("iterations", "max_iter"), ("n_trees", "max_epochs")),
    **dict.fromkeys(("epochs", "n_epochs"), ("max_epochs",)),
    **dict.fromkeys(("lr", "eta"), ("learning_rate",)),
    **dict.fromkeys(("random_state", "random_seed"), ("seed",)),
    **dict.fromkeys(("eval_metric", "metric", "scoring"), ("select_by",)),
    "early_stopping_rounds": ("patience",),
    "num_leaves": ("n_leaves",),
    "batch_size": ("queries_per_step",),
    "hidden_layer_sizes": ("hidden",),
    "alpha": ("lambda_l2", "weight_decay", "ridge"),
    "objective": ("loss",),
}
# Settings that no ranker has: what to do instead.
_NO_SETTINGS: Mapping[str, str] = {
    "importance_type": "feature_importances_ of tree rankers are gains; importance('split') counts splits",
    "verbose": "fit is silent; fit(progress=True) shows a progress bar",
    "warm_start": "fit(start=ranker) continues from a fitted ranker",
    "objective": "NetworkRanker and TreeRanker take a loss",
}
# Attributes and methods: ours, by name, and a word on it.
ATTRIBUTES: Mapping[str, str] = {
    **dict.fromkeys(("best_iteration_", "n_estimators_"), "n_rounds_"),
    "best_score_": "best_",
    **dict.fromkeys(("evals_result_", "evals_result"), "history_"),
    **dict.fromkeys(("feature_name_", "feature_names_"), "feature_names_in_"),
    "feature_importance": "importance()",
    "get_booster": "booster_",
    "predict_proba": "predict(): scores are not probabilities",
    "save_model": "save() for a folder, or export() for another engine",
    "load_model": "tierank.load()",
    "check_settings": "checked_settings()",
}


def why_no_setting(ranker: str, name: str, known: Collection[str]) -> ParameterError | None:
    """The error for a setting or an argument of another library; None for a name that is not listed here.

    >>> print(why_no_setting("URank", "batch_size", ["queries_per_step"]))
    batch_size: expected queries_per_step, which is the name of this setting in URank
    >>> print(why_no_setting("URank", "eval_set", []))
    eval_set: expected valid=(X, y, qid), or a RankingDataset, in fit; fit takes eval_set as well
    """
    ours = next((one for one in SETTINGS.get(name, ()) if one in known), None)
    if ours is not None:
        return ParameterError(argument=name, expected=f"{ours}, which is the name of this setting in {ranker}")
    if name in _NO_SETTINGS:
        return ParameterError("is not a setting", argument=name, fix=_NO_SETTINGS[name])
    expected, fix = ARGUMENTS.get(name, ("", None))
    return ParameterError(argument=name, expected=f"{expected}, in fit", fix=fix) if expected[:1] == "`" else None


def why_no_attribute(owner: object, name: str) -> AttributeError:
    """The error for an attribute that a ranker does not have: what it is called here, if another library has it.

    >>> why_no_attribute(3, "best_iteration_").args[0]
    "'int' object has no attribute 'best_iteration_': use n_rounds_"
    """
    hint = f": use {ATTRIBUTES[name]}" if name in ATTRIBUTES else ""
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
        if name in ARGUMENTS:
            expected, fix_of_argument = ARGUMENTS[name]
            raise ParameterError(argument=name, expected=expected, fix=fix_of_argument)
        parameters = inspect.signature(getattr(ranker, method)).parameters.values()
        known = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name != "self"]
        raise ParameterError.unknown(f"argument of {method}", name, known)
