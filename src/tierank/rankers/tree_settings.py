"""LightGBM's parameters: which of them training reads, and what those are called here that it does not."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import lightgbm
import numpy as np

from tierank.errors import ParameterError
from tierank.settings import as_choice, as_flag, as_least, as_number, as_positive, as_share, as_whole

# The largest whole number that LightGBM holds: a larger one would count as another number.
MOST = 2**31 - 1

# Our names for the settings that nearly everybody sets; all others go by LightGBM's names.
OURS = {
    "num_iterations": "n_trees",
    "learning_rate": "learning_rate",
    "num_leaves": "n_leaves",
    "min_data_in_leaf": "min_documents",
    "num_threads": "n_jobs",
    "seed": "seed",
    "early_stopping_round": "patience",
    "metric": "select_by",
}

# The parameters of LightGBM's lambdarank alone. A ranker with another objective has a table of what to do instead.
OF_LAMBDARANK = ("sigmoid", "lambdarank_truncation_level", "lambdarank_norm", "label_gain")


class Parameter(NamedTuple):
    """A parameter that training reads."""

    # (name, value) -> the value as LightGBM takes it, or an error
    check: Callable[[str, Any], Any]
    # One of these has to be given too, unless the value is the default: without them it changes nothing.
    beside: tuple[str, ...] = ()
    default: Any = None


def _values(value: Any) -> list[Any] | None:
    """The values of a list, an array or a text with commas; None of anything else."""
    if isinstance(value, str):
        return [_as_written(part.strip()) for part in value.split(",")]
    if isinstance(value, (list, tuple)) or np.ndim(value) == 1:
        return list(np.asarray(value).tolist() if isinstance(value, np.ndarray) else value)
    return None


def _as_written(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _each(check: Callable[[str, Any], Any], what: str, name: str, value: Any) -> list[Any]:
    """A list with a value for each feature, or for each rating."""
    values = _values(value)
    if values is None:
        raise ParameterError(f"{name}: expected {what}, got {value!r}")
    return [check(name, one) for one in values]


def _direction(name: str, value: Any) -> int:
    """Of a monotone constraint."""
    if isinstance(value, bool) or value not in (-1, 0, 1):
        raise ParameterError(f"{name}: expected 1 (rising), -1 (falling) or 0 for each feature, got {value!r}")
    return int(value)


def _feature(name: str, value: Any) -> int | str:
    """The number or the name of a feature."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value <= MOST:
        raise ParameterError(f"{name}: expected numbers of features from 0 on, or their names, got {value!r}")
    return int(value)


def _features(name: str, value: Any) -> list[int | str]:
    """Some features, by number or by name; LightGBM's own texts begin with ``name:``."""
    given = value.removeprefix("name:") if isinstance(value, str) else value
    values = _values([given] if isinstance(given, (int, np.integer)) else given)
    if values is None:
        raise ParameterError(f"{name}: expected a list of features, by number or by name, got {value!r}")
    return [_feature(name, one) for one in values]


def _groups(name: str, value: Any) -> list[list[int | str]]:
    """Groups of features; LightGBM's own text is ``[0,1],[2,3]``."""
    groups = value
    if isinstance(value, str):
        try:
            groups = json.loads(f"[{value}]")
        except ValueError:
            groups = None
    if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
        raise ParameterError(f"{name}: expected groups of features, such as [[0, 1], [2, 3]], got {value!r}")
    return [_features(name, group) for group in groups]


def _file(name: str, value: Any) -> str:
    """The name of a file; LightGBM cuts names at spaces and at '=', and cannot read back a model with the others."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not re.fullmatch(r"""[^\s='"\\]+""", path):
        raise ParameterError(
            f"{name}: expected the name of a file, without spaces, quotes, backslashes and '=', got {value!r}"
        )
    return path


def _boosting(name: str, value: Any) -> str:
    """The one way of boosting whose first trees, which are what is kept, are a model."""
    if value in ("gbdt", "gbrt"):
        return "gbdt"
    hint = "; give data_sample_strategy='goss'" if value == "goss" else ""
    raise ParameterError(f"{name}: expected gbdt, the only kind that ranks by kept trees, got {value!r}{hint}")


_flag, _natural = as_flag, partial(as_least, least=0.0)
_whole = partial(as_whole, least=1, most=MOST)
_seed = partial(as_whole, least=0, most=MOST)
_any_whole = partial(as_whole, least=-MOST, most=MOST)
_finite = partial(as_least, least=-1e308)
_fraction = partial(as_number, least=0, most=1)
_ONE_EACH = "a list with a number for each feature"
_penalties = partial(_each, _natural, _ONE_EACH)
_bins = partial(as_whole, least=2, most=MOST)

_GPU = ("device_type",)
_CATEGORIES = ("categorical_feature",)
_MONOTONE = ("monotone_constraints",)
_QUANTIZED = ("use_quantized_grad",)
_GOSS = ("data_sample_strategy",)
_SAMPLED = ("bagging_freq", "data_sample_strategy")
_PENALTIES = ("cegb_penalty_split", "cegb_penalty_feature_lazy", "cegb_penalty_feature_coupled")

# What training reads. All of it changes the trees but for the last rows, which change how the work is done.
USED: dict[str, Parameter] = {
    # How trees grow
    "boosting": Parameter(_boosting),
    "max_depth": Parameter(_any_whole),
    "min_sum_hessian_in_leaf": Parameter(_natural),
    "max_delta_step": Parameter(_finite),
    "lambda_l1": Parameter(_natural),
    "lambda_l2": Parameter(_natural),
    "min_gain_to_split": Parameter(_natural),
    "path_smooth": Parameter(_natural),
    "extra_trees": Parameter(_flag),
    "extra_seed": Parameter(_seed, ("extra_trees",), 6),
    "linear_tree": Parameter(_flag),
    "linear_lambda": Parameter(_natural, ("linear_tree",), 0.0),
    "forcedsplits_filename": Parameter(_file),
    "interaction_constraints": Parameter(_groups),
    "monotone_constraints": Parameter(partial(_each, _direction, "a list with 1, 0 or -1 for each feature")),
    "monotone_constraints_method": Parameter(
        partial(as_choice, known=("basic", "intermediate", "advanced")), _MONOTONE, "basic"
    ),
    "monotone_penalty": Parameter(_natural, _MONOTONE, 0.0),
    "feature_contri": Parameter(_penalties),
    "cegb_tradeoff": Parameter(_natural, _PENALTIES, 1.0),
    "cegb_penalty_split": Parameter(_natural),
    "cegb_penalty_feature_lazy": Parameter(_penalties),
    "cegb_penalty_feature_coupled": Parameter(_penalties),
    # Samples
    "bagging_fraction": Parameter(as_share, ("bagging_freq",), 1.0),
    "bagging_freq": Parameter(_any_whole, ("bagging_fraction",), 0),
    "bagging_seed": Parameter(_seed, _SAMPLED, 3),
    "bagging_by_query": Parameter(_flag, ("bagging_freq",), False),
    "data_sample_strategy": Parameter(partial(as_choice, known=("bagging", "goss"))),
    "top_rate": Parameter(_fraction, _GOSS, 0.2),
    "other_rate": Parameter(_fraction, _GOSS, 0.1),
    "feature_fraction": Parameter(as_share),
    "feature_fraction_bynode": Parameter(as_share),
    "feature_fraction_seed": Parameter(_seed, ("feature_fraction", "feature_fraction_bynode"), 2),
    # Categories
    "categorical_feature": Parameter(_features),
    "min_data_per_group": Parameter(_whole, _CATEGORIES, 100),
    "max_cat_threshold": Parameter(_whole, _CATEGORIES, 32),
    "cat_l2": Parameter(_natural, _CATEGORIES, 10.0),
    "cat_smooth": Parameter(_natural, _CATEGORIES, 10.0),
    "max_cat_to_onehot": Parameter(_whole, _CATEGORIES, 4),
    # Bins and missing values
    "max_bin": Parameter(_bins),
    "max_bin_by_feature": Parameter(partial(_each, _bins, _ONE_EACH)),
    "min_data_in_bin": Parameter(_whole),
    "bin_construct_sample_cnt": Parameter(_whole),
    "forcedbins_filename": Parameter(_file),
    "use_missing": Parameter(_flag),
    "zero_as_missing": Parameter(_flag),
    # Coarse gradients
    "use_quantized_grad": Parameter(_flag),
    "num_grad_quant_bins": Parameter(partial(as_whole, least=2, most=127), _QUANTIZED, 4),
    "quant_train_renew_leaf": Parameter(_flag, _QUANTIZED, False),
    "stochastic_rounding": Parameter(_flag, _QUANTIZED, True),
    # LightGBM's lambdarank
    "sigmoid": Parameter(as_positive),
    "lambdarank_truncation_level": Parameter(_whole),
    "lambdarank_norm": Parameter(_flag),
    "label_gain": Parameter(partial(_each, _natural, "one gain for each rating from 0 on")),
    # How the work is done: time, memory, and sums in another order
    "deterministic": Parameter(_flag),
    "force_col_wise": Parameter(_flag),
    "force_row_wise": Parameter(_flag),
    "histogram_pool_size": Parameter(_finite),
    "is_enable_sparse": Parameter(_flag),
    "enable_bundle": Parameter(_flag),
    "device_type": Parameter(partial(as_choice, known=("cpu", "gpu", "cuda"))),
    "gpu_platform_id": Parameter(_any_whole, _GPU, -1),
    "gpu_device_id": Parameter(_any_whole, _GPU, -1),
    "gpu_use_dp": Parameter(_flag, _GPU, False),
    "num_gpu": Parameter(_whole, _GPU, 1),
    "gpu_device_id_list": Parameter(
        lambda name, value: ",".join(map(str, _each(_seed, "numbers of devices", name, value))), _GPU, ""
    ),
}

# What nothing here reads, with what to do instead or why not.
_NO_DART = "only boosting='dart' reads it, and trees here are boosted by gbdt"
_OBJECTIVE = "another objective of LightGBM's reads it"
_BINARY = "only objectives with two classes read it"
_BY_METRICS = "our metrics judge: give select_by and rule, and valid to fit"
_BY_TEAM = "several processes train together by fit(team=...); see tierank.distributed"
_BY_PREDICT = "predict scores with all trees that were kept"
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
    "lambdarank_position_bias_regularization": "no positions of documents are handed to LightGBM",
    # Judging
    **dict.fromkeys(("eval_at", "first_metric_only", "metric_freq", "is_provide_training_metric"), _BY_METRICS),
    **dict.fromkeys(("multi_error_top_k", "auc_mu_weights"), _BY_METRICS),
    "early_stopping_min_delta": "a round is better from 1e-6 on, within which the next metric of select_by counts",
    # Several machines
    **dict.fromkeys(("num_machines", "machines", "machine_list_filename", "local_listen_port", "time_out"), _BY_TEAM),
    **dict.fromkeys(("tree_learner", "top_k", "pre_partition"), _BY_TEAM),
    # Data
    **dict.fromkeys(("data", "valid", "header", "parser_config_file", "precise_float_parser"), _BY_FIT),
    "two_round": "data larger than memory are mapped; see tierank.read",
    "save_binary": "tierank.read keeps a binary form of large files",
    "label_column": "give the ratings to fit, as y",
    "weight_column": "give row_weight or query_weight to fit",
    "group_column": "give one query id per row to fit, as qid",
    "ignore_column": "leave such columns out of X",
    "feature_pre_filter": "no feature is left out beforehand; trees leave out those that min_documents forbids",
    "data_random_seed": "the sample for bins is evenly spread, not drawn",
    # Models
    **dict.fromkeys(("input_model", "output_model", "convert_model", "convert_model_language"), _BY_SAVE),
    "snapshot_freq": "fit(checkpoint=...) keeps where training stands",
    "saved_feature_importance_type": "importance('gain') and importance('split') give both kinds",
    "refit_decay_rate": "nothing refits leaves to other data",
    # Scoring
    **dict.fromkeys(("start_iteration_predict", "num_iteration_predict", "output_result"), _BY_PREDICT),
    **dict.fromkeys(("predict_raw_score", "predict_disable_shape_check"), _BY_PREDICT),
    **dict.fromkeys(("pred_early_stop", "pred_early_stop_freq", "pred_early_stop_margin"), _BY_PREDICT),
    "predict_leaf_index": "booster_ is LightGBM's own, whose predict has it",
    "predict_contrib": "tierank.explain_query has contributions, and booster_ is LightGBM's own",
    # The command line of LightGBM
    "config": "settings are given by their names",
    "task": "fit trains and predict scores",
}

# What the rankers here set themselves.
_LEFT = {
    "objective": "TreeRanker(loss=...) follows a loss of your own",
    "verbosity": "LightGBM says nothing here; fit(progress=True) shows how far training is",
}

_OF_EACH_FEATURE = (
    "monotone_constraints",
    "feature_contri",
    "max_bin_by_feature",
    "cegb_penalty_feature_lazy",
    "cegb_penalty_feature_coupled",
)


@cache
def _main_names() -> dict[str, str]:
    """The main name of every name that LightGBM knows."""
    known = lightgbm.basic._ConfigAliases._get_all_param_aliases()
    return {alias: name for name, aliases in known.items() for alias in (name, *aliases)}


def is_known(name: str) -> bool:
    """Whether LightGBM has a parameter of this name."""
    return name in _main_names()


def main_name(name: str, ranker: str, own: Collection[str]) -> str:
    """LightGBM's main name of a setting that a ranker has not; an error where LightGBM has not either."""
    if not is_known(name):
        raise ParameterError.unknown(f"setting of {ranker} or LightGBM", name, [*own, *_main_names()])
    return _main_names()[name]


def check_values(ranker: str, given: Mapping[str, Any], own: Collection[str]) -> None:
    """An error where a value is none that LightGBM could have been given: for settings that come from a file."""
    for name, value in given.items():
        main = main_name(name, ranker, own)
        if main in USED and value is not None:
            USED[main].check(name, value)


def as_parameters(
    ranker: str, given: Mapping[str, Any], own: Collection[str], instead: Mapping[str, str]
) -> dict[str, Any]:
    """What LightGBM is to be told, by its main names; an error where something would change nothing.

    ``own`` are the names of the ranker's own settings, ``instead`` those of ``OF_LAMBDARANK`` that it does not follow,
    with what to do. None leaves a parameter at its default.

    >>> as_parameters("UMart", {"reg_lambda": 1, "max_depth": None}, (), {})
    {'lambda_l2': 1.0}
    """
    names: dict[str, str] = {}
    params: dict[str, Any] = {}
    for name, value in given.items():
        main = main_name(name, ranker, own)
        _check_is_read(name, main, ranker, instead)
        if main in names:
            raise ParameterError(f"{name}: expected one of {names[main]} and {name}, which are one setting, got both")
        names[main] = name
        if main not in USED:
            _warn_of_unknown(name)
            params[main] = value
        elif value is not None:
            params[main] = USED[main].check(name, value)
    for main in params:
        _check_beside(names[main], main, params)
    _check_together(params)
    return params


def _check_is_read(name: str, main: str, ranker: str, instead: Mapping[str, str]) -> None:
    if main in OURS:
        raise ParameterError(f"{name}: this setting is called {OURS[main]} here")
    if main in _LEFT:
        raise ParameterError(f"{name}: expected to be left to {ranker}; {_LEFT[main]}")
    reason = instead.get(main) or _UNUSED.get(main)
    if reason is not None:
        raise ParameterError(f"{name}: expected to be left out of {ranker}, where it changes nothing: {reason}")


def _warn_of_unknown(name: str) -> None:
    """A later LightGBM than ours may well have something of use: it is tried, and nothing is promised."""
    warnings.warn(
        f"{name}: LightGBM {lightgbm.__version__} knows this parameter and this tierank does not: it is handed on as it"
        " is, unchecked, and may change nothing",
        stacklevel=2,
    )


def _check_beside(name: str, main: str, params: Mapping[str, Any]) -> None:
    """An error where a parameter changes nothing without another one, which was not given."""
    beside = USED[main].beside if main in USED else ()
    if beside and params[main] != USED[main].default and not any(other in params for other in beside):
        raise ParameterError(f"{name}: expected {' or '.join(beside)} beside it, without which it changes nothing")


def _check_together(params: Mapping[str, Any]) -> None:
    """An error where parameters cannot go together."""
    if params.get("data_sample_strategy") == "goss":
        if params.get("bagging_fraction", 1.0) < 1 and params.get("bagging_freq", 0) > 0:
            raise ParameterError("bagging_fraction: expected to be left out beside data_sample_strategy='goss'")
        if params.get("top_rate", 0.2) + params.get("other_rate", 0.1) > 1:
            raise ParameterError("top_rate, other_rate: expected shares that sum to at most 1")
    if params.get("force_col_wise") and params.get("force_row_wise"):
        raise ParameterError("force_col_wise, force_row_wise: expected one of them, got both")
    if params.get("zero_as_missing"):
        if params.get("linear_tree"):
            raise ParameterError("zero_as_missing: expected to be left out beside linear_tree, which cannot do it")
        if params.get("use_missing") is False:
            raise ParameterError("zero_as_missing: expected to be left out beside use_missing=False, which ignores it")


def for_features(
    params: Mapping[str, Any], n_features: int, names: tuple[str, ...] | None, copies: int
) -> dict[str, Any]:
    """The parameters that speak of features as LightGBM wants them: by number, and for each copy.

    >>> for_features({"categorical_feature": ["b"], "monotone_constraints": [1, 0]}, 2, ("a", "b"), copies=3)
    {'categorical_feature': [1], 'monotone_constraints': [1, 0, 1, 0, 1, 0]}
    """
    found: dict[str, Any] = {}
    if "categorical_feature" in params:  # the copies of a category are no categories
        found["categorical_feature"] = _numbers("categorical_feature", params, n_features, names)
    for name in _OF_EACH_FEATURE:
        if name in params:
            if len(params[name]) != n_features:
                raise ParameterError(f"{name}: expected {n_features}, one for each feature, got {len(params[name])}")
            found[name] = params[name] * copies  # what counts for a feature counts for its copies
    if "interaction_constraints" in params:
        groups = [
            _numbers("interaction_constraints", {"interaction_constraints": group}, n_features, names)
            for group in params["interaction_constraints"]
        ]
        found["interaction_constraints"] = [
            [number + copy * n_features for copy in range(copies) for number in group] for group in groups
        ]
    return found


def _numbers(name: str, params: Mapping[str, Any], n_features: int, names: tuple[str, ...] | None) -> list[int]:
    """Features by their numbers: LightGBM ignores a number that no feature has, or reads beyond its memory."""
    known = names or ()
    for feature in params[name]:
        if isinstance(feature, str) and feature not in known:
            raise ParameterError.unknown(name, feature, known)
        if isinstance(feature, int) and feature >= n_features:
            raise ParameterError(f"{name}: expected numbers of features below {n_features}, got {feature}")
    return [known.index(feature) if isinstance(feature, str) else feature for feature in params[name]]


def check_files(params: Mapping[str, Any]) -> None:
    """An error where a file that is named is none, or not JSON: LightGBM goes on without it."""
    for name, kind, what in (("forcedsplits_filename", dict, "an object"), ("forcedbins_filename", list, "a list")):
        if name not in params:
            continue
        try:
            found = json.loads(Path(params[name]).read_text(encoding="utf-8"))
        except OSError as error:
            raise ParameterError(f"{name}: expected a file, got {params[name]}: {error.strerror}") from None
        except ValueError:
            found = None
        if not isinstance(found, kind):
            raise ParameterError(f"{name}: expected {what} as JSON in {params[name]}, got something else")
