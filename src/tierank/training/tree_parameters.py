"""Settings of trees as parameters of LightGBM, and hints for parameters that have no effect here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightgbm

from tierank.errors import ParameterError
from tierank.kernels import n_threads
from tierank.training.lightgbm_adapter import parameter_names
from tierank.training.tree_text import kept_depth

# Our names for the most common parameters; all others have LightGBM's names.
RENAMED = {
    "num_iterations": "n_trees",
    "learning_rate": "learning_rate",
    "num_leaves": "n_leaves",
    "min_data_in_leaf": "min_documents",
    "num_threads": "n_jobs",
    "seed": "seed",
    "early_stopping_round": "patience",
    "metric": "select_by",
}

# Parameters without effect here, with the reason or what to do instead.
_NO_DART = "only boosting='dart' reads it, and trees here are boosted by gbdt"
_OBJECTIVE = "only other objectives of LightGBM read it"
_BINARY = "only objectives with two classes read it"
_BY_METRICS = "tierank's metrics are used: give select_by and rule, and valid to fit"
_BY_TEAM = "several processes train together by fit(team=...); see tierank.distributed"
_BY_PREDICT = "predict uses all trees that were kept"
_BY_FIT = "data come to fit as arrays, tables or a RankingDataset; tierank.read reads files"
_BY_SAVE = "save and load write and read models"
_UNUSED: dict[str, str] = {
    # Boosting by dart
    **dict.fromkeys(("drop_rate", "max_drop", "skip_drop", "xgboost_dart_mode", "uniform_drop", "drop_seed"), _NO_DART),
    # Other objectives
    **dict.fromkeys(("alpha", "fair_c", "poisson_max_delta_step", "tweedie_variance_power", "reg_sqrt"), _OBJECTIVE),
    **dict.fromkeys(("objective_seed", "boost_from_average"), _OBJECTIVE),
    **dict.fromkeys(("is_unbalance", "scale_pos_weight", "pos_bagging_fraction", "neg_bagging_fraction"), _BINARY),
    "num_class": "a ranker gives one score",
    "lambdarank_position_bias_regularization": "give propensity_norm, and position to fit",
    # Judging
    **dict.fromkeys(("eval_at", "first_metric_only", "metric_freq", "is_provide_training_metric"), _BY_METRICS),
    **dict.fromkeys(("multi_error_top_k", "auc_mu_weights"), _BY_METRICS),
    "early_stopping_min_delta": "a round is better by more than 1e-6; within that the next of select_by decides",
    # Several machines
    **dict.fromkeys(("num_machines", "machines", "machine_list_filename", "local_listen_port", "time_out"), _BY_TEAM),
    **dict.fromkeys(("tree_learner", "top_k", "pre_partition"), _BY_TEAM),
    # Data
    **dict.fromkeys(("data", "valid", "header", "parser_config_file", "precise_float_parser"), _BY_FIT),
    "two_round": "data larger than memory is memory-mapped; see tierank.read",
    "save_binary": "tierank.read keeps a binary form of large files",
    "label_column": "give the ratings to fit, as y",
    "weight_column": "give row_weight or query_weight to fit",
    "group_column": "give one query id per row to fit, as qid",
    "ignore_column": "leave such columns out of X",
    "feature_pre_filter": "features are not filtered beforehand; splits obey min_documents",
    "data_random_seed": "the sample for bins is evenly spaced, not random",
    # Models
    **dict.fromkeys(("input_model", "output_model", "convert_model", "convert_model_language"), _BY_SAVE),
    "snapshot_freq": "fit(checkpoint=...) saves the state of training",
    "saved_feature_importance_type": "importance('gain') and importance('split') give both kinds",
    "refit_decay_rate": "leaves are not refitted to other data",
    # Scoring
    **dict.fromkeys(("start_iteration_predict", "num_iteration_predict", "output_result"), _BY_PREDICT),
    **dict.fromkeys(("predict_raw_score", "predict_disable_shape_check"), _BY_PREDICT),
    **dict.fromkeys(("pred_early_stop", "pred_early_stop_freq", "pred_early_stop_margin"), _BY_PREDICT),
    "predict_leaf_index": "booster_ is LightGBM's own model; its predict has it",
    "predict_contrib": "tierank.explain_query gives contributions, and booster_ is LightGBM's own model",
    # The command line of LightGBM
    "config": "settings are given by their names",
    "task": "fit trains and predict scores",
}

# Parameters that the rankers set themselves.
_FIXED = {
    "objective": "TreeRanker(loss=...) takes your own loss",
    "verbosity": "LightGBM is silent here; fit(progress=True) shows a progress bar",
}


_OF_EACH_FEATURE = (
    "monotone_constraints",
    "feature_contri",
    "max_bin_by_feature",
    "cegb_penalty_feature_lazy",
    "cegb_penalty_feature_coupled",
)


# Parameters whose default is not LightGBM's.
_QUANTISED = ("num_grad_quant_bins", "quant_train_renew_leaf", "stochastic_rounding")
_TRANSLATED = ("max_depth", *_QUANTISED)

# The most bins (features x documents) for which LightGBM may keep a second copy, row by row.
_MOST_COPIED = 1 << 30
# The values (features x documents) from which another thread is worth it (measured).
_VALUES_PER_THREAD = 1 << 20
# The fraction of features up to which histograms are faster feature by feature (measured).
_FEW = 0.5


def why_unknown(ranker: str, name: str, known: Sequence[str], instead: Mapping[str, str]) -> ParameterError | None:
    """The error for a parameter of LightGBM that is not a setting: its name here, or why it would have no effect.

    >>> print(why_unknown("UMart", "reg_lambda", ["lambda_l2"], {}))
    reg_lambda: expected lambda_l2, which is the name of this setting in UMart
    """
    main = parameter_names().get(name)
    if main is None:
        return None
    if RENAMED.get(main, main) in known:
        our_name = RENAMED.get(main, main)
        return ParameterError(argument=name, expected=f"{our_name}, which is the name of this setting in {ranker}")
    if main in _FIXED:
        return ParameterError(f"is set by {ranker}; remove it: {_FIXED[main]}", argument=name)
    if main in instead:
        return ParameterError(f"has no effect in {ranker}; {instead[main]}", argument=name)
    if main in _UNUSED:
        return ParameterError(f"has no effect in {ranker}; remove it: {_UNUSED[main]}", argument=name)
    return ParameterError(
        f"LightGBM {lightgbm.__version__} has this parameter and this version of tierank does not know it",
        argument=name,
    )


def lightgbm_parameters(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of LightGBM: our settings by its names, and its own that differ from its defaults."""
    changed = {
        name: settings[name] for name in defaults if name not in _TRANSLATED and settings[name] != defaults[name]
    }
    if settings["use_quantized_grad"]:
        changed |= {name: settings[name] for name in _QUANTISED}
    return {
        # The same bits whatever the number of threads.
        "deterministic": True,
        # Bins then do not depend on the smallest leaf that is allowed, and tiny data sets keep all features.
        "feature_pre_filter": False,
        **changed,
        "learning_rate": settings["learning_rate"],
        "num_leaves": settings["n_leaves"],
        "max_depth": kept_depth(settings["max_depth"], settings["n_leaves"]),
        "min_data_in_leaf": settings["min_documents"],
        "seed": settings["seed"],
        "metric": "None",
        "verbosity": -1,
    }


def check_parameters(settings: Mapping[str, Any]) -> None:
    """Raise ``ParameterError`` if parameters of LightGBM cannot be used together."""
    if settings["data_sample_strategy"] == "goss":
        if settings["bagging_fraction"] < 1 and settings["bagging_freq"] > 0:
            raise ParameterError(argument="bagging_fraction", expected="1.0 with `data_sample_strategy`='goss'")
        if settings["top_rate"] + settings["other_rate"] > 1:
            raise ParameterError("top_rate, other_rate: expected fractions that sum to at most 1")
    if settings["force_col_wise"] and settings["force_row_wise"]:
        raise ParameterError("force_col_wise, force_row_wise: expected only one of them, got both")
    if settings["zero_as_missing"]:
        if settings["linear_tree"]:
            raise ParameterError(
                argument="zero_as_missing", expected="False with `linear_tree`, which does not support it"
            )
        if not settings["use_missing"]:
            raise ParameterError(
                argument="zero_as_missing", expected="False with `use_missing`=False, which ignores it"
            )


def for_features(
    params: Mapping[str, Any], n_features: int, names: tuple[str, ...] | None, copies: int
) -> dict[str, Any]:
    """The parameters about features as LightGBM expects them: by number, and for each copy.

    >>> for_features({"categorical_feature": ["b"], "monotone_constraints": [1, 0]}, 2, ("a", "b"), copies=3)
    {'categorical_feature': [1], 'monotone_constraints': [1, 0, 1, 0, 1, 0]}
    """
    adapted: dict[str, Any] = {}
    if "categorical_feature" in params:  # the copies of a category are not categories
        adapted["categorical_feature"] = _numbers("categorical_feature", params, n_features, names)
    for name in _OF_EACH_FEATURE:
        if name in params:
            if len(params[name]) != n_features:
                raise ParameterError(f"{name}: expected {n_features}, one for each feature, got {len(params[name])}")
            adapted[name] = list(params[name]) * copies  # a value for a feature applies to its copies
    if "interaction_constraints" in params:
        groups = [
            _numbers("interaction_constraints", {"interaction_constraints": group}, n_features, names)
            for group in params["interaction_constraints"]
        ]
        adapted["interaction_constraints"] = [
            [number + copy * n_features for copy in range(copies) for number in group] for group in groups
        ]
    return adapted


def threads_for(n_jobs: int | None, n_documents: int, n_features: int) -> int:
    """The number of LightGBM's threads.

    >>> threads_for(None, 10_000, 46), threads_for(3, 10_000, 46)
    (1, 3)
    """
    return n_threads(n_jobs, worth=worth_in_threads(n_documents, n_features))


def worth_in_threads(n_documents: int, n_features: int) -> int:
    """The number of threads that growing trees is worth: on a million values, a second one gains 5% to 40%."""
    return 1 + n_documents * n_features // _VALUES_PER_THREAD


def for_size(params: Mapping[str, Any], n_documents: int, n_features: int) -> dict[str, Any]:
    """Whether histograms are built feature by feature; otherwise LightGBM tries which way is faster.

    Trees are the same either way, because sums of gradients are exact. But goss multiplies gradients, so that its sums
    are not; and row by row needs a second copy of the bins. If trees see few of the features, feature by feature is
    faster, but LightGBM would try with all of them.

    >>> for_size({}, 1_000_000, 136), for_size({"data_sample_strategy": "goss"}, 1000, 136)
    ({}, {'force_col_wise': True})
    >>> for_size({"feature_fraction": 0.4}, 1000, 136)
    {'force_col_wise': True}
    """
    if "force_col_wise" in params or "force_row_wise" in params:
        return {}
    has_exact_sums = params.get("data_sample_strategy") != "goss"
    is_small = n_documents * n_features <= _MOST_COPIED
    sees_most = params.get("feature_fraction", 1.0) > _FEW
    return {} if has_exact_sums and is_small and sees_most else {"force_col_wise": True}


def _numbers(name: str, params: Mapping[str, Any], n_features: int, names: tuple[str, ...] | None) -> list[int]:
    """Features by their numbers: LightGBM ignores a number that no feature has, or reads beyond its memory."""
    known = names or ()
    for feature in params[name]:
        if isinstance(feature, str) and feature not in known:
            raise ParameterError.unknown(name, feature, known)
        if isinstance(feature, int) and feature >= n_features:
            raise ParameterError(f"{name}: expected numbers of features below {n_features}, got {feature}")
    return [known.index(feature) if isinstance(feature, str) else feature for feature in params[name]]


def contents_of_files(params: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of the files that parameters name. Raises an error if one does not exist or is not JSON.

    LightGBM would continue without it.
    """
    contents = {}
    for name, kind, what in (("forcedsplits_filename", dict, "an object"), ("forcedbins_filename", list, "a list")):
        if name not in params:
            continue
        try:
            content = json.loads(Path(params[name]).read_text(encoding="utf-8"))
        except OSError as error:
            raise ParameterError(f"{name}: expected a file, got {params[name]}: {error.strerror}") from None
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, kind):
            raise ParameterError(f"{name}: expected {what} as JSON in {params[name]}, got something else")
        contents[name] = content
    return contents
