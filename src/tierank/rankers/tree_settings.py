"""The settings of boosted trees: tierank's, and LightGBM's parameters under their LightGBM names.

``TreeSettings`` declares them, ``lightgbm_parameters`` makes LightGBM's parameters of them, and ``why_unknown`` says
what to do instead of its other parameters. LightGBM itself is imported where trees are grown or loaded.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tierank.data.columns import Category, Indicator, Match
from tierank.data.dataset import RankingDataset
from tierank.errors import ParameterError
from tierank.kernels import n_threads
from tierank.rankers.base import BASE, JudgedRanker, Ranker
from tierank.settings import (
    Between,
    Choice,
    Flag,
    Integer,
    Kind,
    ListOf,
    Number,
    Optional,
    Setting,
    declared,
    setting,
)

# The largest integer that LightGBM holds, and the largest tree.
_MOST, _MOST_LEAVES = 2**31 - 1, 131_072
# The most splits between the root of a tree and a leaf. Engines and LightGBM traverse trees recursively: a few thousand
# splits crash the process or its JSON parser (Jackson allows 1,000 levels, and a split takes two levels for
# Elasticsearch). The memory of an explanation grows with the square.
MAX_DEPTH = 300


# Kinds that only LightGBM has


class _ForEach(ListOf):
    """A list with one value for each feature, or LightGBM's string with commas."""

    def __init__(self, kind: Kind, expected: str = "a list with a number for each feature") -> None:
        super().__init__(kind, expected)

    def check(self, name: str, value: Any) -> tuple[Any, ...]:
        """The values as a tuple."""
        if isinstance(value, str):
            return super().check(name, [_number(part.strip()) for part in value.split(",")])
        return super().check(name, value.tolist() if hasattr(value, "tolist") else value)  # an array or a column


def _number(text: str) -> Any:
    """The number that a text is, or else the text."""
    try:
        return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
    except ValueError:
        return text


class _Direction(Kind):
    expected = "1 (increasing), -1 (decreasing) or 0 for each feature"

    def check(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or value not in (-1, 0, 1):
            raise self.refuse(name, value)
        return int(value)


class _Feature(Kind):
    """A feature by number or by name."""

    expected = "a list of features, by number (from 0) or by name"

    def check(self, name: str, value: Any) -> int | str:
        if isinstance(value, str) and value:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value <= _MOST:
            raise self.refuse(name, value)
        return int(value)


class _Features(_ForEach):
    """Some features; LightGBM's own strings begin with ``name:``."""

    def __init__(self) -> None:
        super().__init__(_Feature(), _Feature.expected)

    def check(self, name: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, (int, np.integer)):
            value = [value]
        return super().check(name, value.removeprefix("name:") if isinstance(value, str) else value)


class _Groups(Kind):
    """Groups of features; LightGBM's own string is ``[0,1],[2,3]``."""

    expected = "groups of features, such as [[0, 1], [2, 3]]"

    def check(self, name: str, value: Any) -> tuple[tuple[int | str, ...], ...]:
        try:
            groups = json.loads(f"[{value}]") if isinstance(value, str) else value
        except (ValueError, RecursionError):
            groups = None
        if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
            raise self.refuse(name, value)
        return tuple(_Features().check(name, group) for group in groups)


class _File(Kind):
    """The name of a file; LightGBM cuts names at spaces and '=', and cannot read back a model with quotes in them."""

    expected = "a file name without spaces, quotes, backslashes and '='"

    def check(self, name: str, value: Any) -> str:
        path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
        if not isinstance(path, str) or not re.fullmatch(r"""[^\s='"\\]+""", path):
            raise self.refuse(name, value)
        return path


class _Boosting(Kind):
    """Only gbdt: with other kinds of boosting, the first trees alone are not a valid model."""

    expected = "gbdt, because only the best number of trees is kept"

    def check(self, name: str, value: Any) -> str:
        if value in ("gbdt", "gbrt"):
            return "gbdt"
        fix = "give `data_sample_strategy`='goss'" if value == "goss" else None
        raise ParameterError(argument=name, expected=self.expected, got=repr(value), fix=fix)


class _Devices(_ForEach):
    def check(self, name: str, value: Any) -> Any:
        return ",".join(map(str, super().check(name, value))) if value else ""


_FLAG, _COUNT, _BINS, _NUMBER = Flag(), Integer(1, _MOST), Integer(2, _MOST), Number(0)
_FRACTION, _DEVICE = Number(above=0, most=1), Integer(-_MOST, _MOST)
_SEED, _NUMBERS, _FILE = Optional(Integer(0, _MOST), "drawn from seed"), Optional(_ForEach(_NUMBER)), Optional(_File())
_DIRECTIONS = Optional(_ForEach(_Direction(), "a list with 1, 0 or -1 for each feature"))
_HOW_CONSTRAINED = Choice(("basic", "intermediate", "advanced"))
_COL_WISE = "True for goss, for more than 2^30 values, and for feature_fraction <= 0.5; else whichever way is faster"


def _lightgbm(
    default: Any, help: str, kind: Kind | None = None, *, needs: str = "", search: Between | None = None
) -> Any:
    """A parameter of LightGBM, with LightGBM's own default; ``needs`` are names with blanks between them."""
    kind = kind or {bool: _FLAG, int: _COUNT, float: _NUMBER}[type(default)]
    return setting(default, kind, help, group="LightGBM", needs=tuple(needs.split()), search=search)


@dataclass(kw_only=True, eq=False, repr=False)
class TreeSettings(JudgedRanker):
    """The settings that all rankers of trees share."""

    n_trees: int = setting(500, Integer(1), "maximum number of trees")
    learning_rate: float = setting(0.05, Number(above=0), "factor of each tree", search=Between(0.02, 0.2, log=True))
    n_leaves: int = setting(
        15, Integer(2, _MOST_LEAVES), "maximum number of leaves per tree", search=Between(4, 64, log=True)
    )
    min_documents: int = setting(
        20, Integer(0, _MOST), "minimum number of documents per leaf", search=Between(5, 200, log=True)
    )
    patience: int = setting(100, Integer(1), "rounds without improvement after which training stops")
    select_over: int = setting(
        20,
        Integer(1),
        "number of last rounds over which the metrics of select_by are averaged, before rounds are compared",
    )
    keep: str = setting(
        "best",
        Choice(("best", "all")),
        "which trees are kept if there are validation data: best, those up to the best round, or all n_trees",
    )
    query_features: bool = setting(
        False,
        _FLAG,
        "give trees each feature three times: as it is, scaled to the range of its query, and as its rank in the query;"
        " predict then needs the whole list of a query, with its qid",
    )
    base: Ranker | None = setting(
        None, BASE, "a ranker that is fitted first; trees are fitted to its residuals and add to its scores"
    )

    # How trees grow
    boosting: str = _lightgbm("gbdt", "kind of boosting; only gbdt", _Boosting())
    max_depth: int = _lightgbm(-1, "maximum depth of a tree; -1 for 300", Integer(-1, MAX_DEPTH))
    min_sum_hessian_in_leaf: float = _lightgbm(1e-3, "minimum sum of hessians per leaf")
    max_delta_step: float = _lightgbm(0.0, "maximum absolute leaf value; 0 for no limit", Number())
    lambda_l1: float = _lightgbm(0.0, "L1 regularisation of leaf values")
    lambda_l2: float = _lightgbm(0.0, "L2 regularisation of leaf values", search=Between(0.001, 30.0, log=True))
    min_gain_to_split: float = _lightgbm(0.0, "minimum gain of a split")
    path_smooth: float = _lightgbm(0.0, "how strongly leaf values are pulled towards their parent's")
    extra_trees: bool = _lightgbm(False, "try one random threshold per feature and split")
    extra_seed: int | None = _lightgbm(None, "seed of extra_trees", _SEED, needs="extra_trees")
    linear_tree: bool = _lightgbm(False, "fit a linear model in each leaf")
    linear_lambda: float = _lightgbm(0.0, "regularisation of linear leaves", needs="linear_tree")
    forcedsplits_filename: str | None = _lightgbm(None, "JSON file with splits to begin each tree with", _FILE)
    interaction_constraints: Sequence[Any] | None = _lightgbm(
        None, "groups of features that may appear together in a branch", Optional(_Groups())
    )
    monotone_constraints: Sequence[int] | None = _lightgbm(
        None, "direction for each feature: 1 increasing, -1 decreasing, 0 free", _DIRECTIONS
    )
    monotone_constraints_method: str = _lightgbm(
        "basic", "how constraints are enforced", _HOW_CONSTRAINED, needs="monotone_constraints"
    )
    monotone_penalty: float = _lightgbm(
        0.0, "penalty of constrained splits near the root", needs="monotone_constraints"
    )
    feature_contri: Sequence[float] | None = _lightgbm(None, "factor of the gain for each feature", _NUMBERS)
    cegb_tradeoff: float = _lightgbm(
        1.0,
        "factor of all cegb penalties",
        needs="cegb_penalty_split cegb_penalty_feature_lazy cegb_penalty_feature_coupled",
    )
    cegb_penalty_split: float = _lightgbm(0.0, "penalty of a split")
    cegb_penalty_feature_lazy: Sequence[float] | None = _lightgbm(
        None, "penalty for each feature, per document that uses it", _NUMBERS
    )
    cegb_penalty_feature_coupled: Sequence[float] | None = _lightgbm(
        None, "penalty for each feature, once per model", _NUMBERS
    )
    # Samples
    bagging_fraction: float = _lightgbm(
        1.0, "fraction of the documents that a tree is grown on", _FRACTION, needs="bagging_freq"
    )
    bagging_freq: int = _lightgbm(
        0, "draw a new sample every n trees; 0 for never", Integer(0, _MOST), needs="bagging_fraction"
    )
    bagging_seed: int | None = _lightgbm(None, "seed of bagging", _SEED, needs="bagging_freq data_sample_strategy")
    bagging_by_query: bool = _lightgbm(False, "sample whole queries", needs="bagging_freq")
    data_sample_strategy: str = _lightgbm(
        "bagging", "how documents are sampled: bagging, or goss by size of gradient", Choice(("bagging", "goss"))
    )
    top_rate: float = _lightgbm(
        0.2, "fraction with the largest gradients that goss keeps", _FRACTION, needs="data_sample_strategy"
    )
    other_rate: float = _lightgbm(
        0.1, "fraction of the others that goss keeps", _FRACTION, needs="data_sample_strategy"
    )
    feature_fraction: float = _lightgbm(
        1.0, "fraction of the features that a tree sees", _FRACTION, search=Between(0.4, 1.0)
    )
    feature_fraction_bynode: float = _lightgbm(1.0, "fraction of the features that a split sees", _FRACTION)
    feature_fraction_seed: int | None = _lightgbm(
        None, "seed of feature_fraction", _SEED, needs="feature_fraction feature_fraction_bynode"
    )
    # Categories
    categorical_feature: Sequence[int | str] | None = _lightgbm(
        None, "features that hold categories, by number or by name", Optional(_Features())
    )
    min_data_per_group: int = _lightgbm(100, "minimum number of documents per group of categories")
    max_cat_threshold: int = _lightgbm(32, "maximum number of split points over categories")
    cat_l2: float = _lightgbm(10.0, "L2 regularisation of splits over categories")
    cat_smooth: float = _lightgbm(10.0, "smoothing of rare categories")
    max_cat_to_onehot: int = _lightgbm(4, "up to this many categories, split one from the rest")
    # Bins and missing values
    max_bin: int = _lightgbm(255, "maximum number of bins per feature", _BINS)
    max_bin_by_feature: Sequence[int] | None = _lightgbm(
        None, "maximum number of bins for each feature", Optional(_ForEach(_BINS))
    )
    min_data_in_bin: int = _lightgbm(3, "minimum number of documents per bin")
    bin_construct_sample_cnt: int = _lightgbm(200_000, "number of documents that bins are found from")
    forcedbins_filename: str | None = _lightgbm(None, "JSON file with bin boundaries", _FILE)
    use_missing: bool = _lightgbm(True, "treat missing values as missing; otherwise as 0")
    zero_as_missing: bool = _lightgbm(False, "treat 0 as missing")
    # Coarse gradients
    use_quantized_grad: bool = _lightgbm(False, "round gradients to a few levels: faster, and less exact")
    num_grad_quant_bins: int = _lightgbm(
        127, "number of these levels; LightGBM's default is 4", Integer(2, 127), needs="use_quantized_grad"
    )
    quant_train_renew_leaf: bool = _lightgbm(
        True, "compute leaf values from the exact gradients; LightGBM's default is False", needs="use_quantized_grad"
    )
    stochastic_rounding: bool = _lightgbm(
        False,
        "round at random, by numbers that depend on the number of threads; LightGBM's default is True",
        needs="use_quantized_grad",
    )
    # How the work is done: time, memory, and sums in another order
    deterministic: bool = _lightgbm(True, "same bits for any number of threads; LightGBM's default is False")
    force_col_wise: bool | None = _lightgbm(None, "build histograms feature by feature", Optional(_FLAG, _COL_WISE))
    force_row_wise: bool = _lightgbm(False, "build histograms row by row")
    histogram_pool_size: float = _lightgbm(-1.0, "megabytes for histograms; -1 for no limit", Number())
    is_enable_sparse: bool = _lightgbm(True, "use sparse storage where it pays")
    enable_bundle: bool = _lightgbm(True, "bundle features that are never set together")
    device_type: str = _lightgbm("cpu", "where trees are grown", Choice(("cpu", "gpu", "cuda")))
    gpu_platform_id: int = _lightgbm(-1, "OpenCL platform", _DEVICE, needs="device_type")
    gpu_device_id: int = _lightgbm(-1, "GPU on that platform", _DEVICE, needs="device_type")
    gpu_use_dp: bool = _lightgbm(False, "double precision on the GPU", needs="device_type")
    num_gpu: int = _lightgbm(1, "number of GPUs", needs="device_type")
    gpu_device_id_list: Any = _lightgbm(
        "", "numbers of the GPUs", _Devices(Integer(0), "a list of GPU numbers"), needs="device_type"
    )

    @classmethod
    def lightgbm_settings(cls) -> dict[str, Setting]:
        """The settings that are parameters of LightGBM, by LightGBM's names."""
        return {name: one for name, one in declared(cls).items() if one.group == "LightGBM"}


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
# Parameters that the rankers set themselves.
_FIXED = {
    "objective": "TreeRanker(loss=...) takes your own loss",
    "verbosity": "LightGBM is silent here; fit(progress=True) shows a progress bar",
}
# Why parameters have no effect here, or what to do instead; and which.
_UNUSED = {
    "only boosting='dart' reads it, and trees here are boosted by gbdt": (
        "drop_rate max_drop skip_drop xgboost_dart_mode uniform_drop drop_seed"
    ),
    "only other objectives of LightGBM read it": (
        "alpha fair_c poisson_max_delta_step tweedie_variance_power reg_sqrt objective_seed boost_from_average"
    ),
    "only objectives with two classes read it": (
        "is_unbalance scale_pos_weight pos_bagging_fraction neg_bagging_fraction"
    ),
    "a ranker gives one score": "num_class",
    "give propensity_norm, and position to fit": "lambdarank_position_bias_regularization",
    "tierank's metrics are used: give select_by and rule, and valid to fit": (
        "eval_at first_metric_only metric_freq is_provide_training_metric multi_error_top_k auc_mu_weights"
    ),
    "a round is better by more than 1e-6; within that the next of select_by decides": "early_stopping_min_delta",
    "several processes train together by fit(team=...); see tierank.distributed": (
        "num_machines machines machine_list_filename local_listen_port time_out tree_learner top_k pre_partition"
    ),
    "data come to fit as arrays, tables or a RankingDataset; tierank.read reads files": (
        "data valid header parser_config_file precise_float_parser"
    ),
    "data larger than memory is memory-mapped; see tierank.read": "two_round",
    "tierank.read keeps a binary form of large files": "save_binary",
    "give the ratings to fit, as y": "label_column",
    "give row_weight or query_weight to fit": "weight_column",
    "give one query id per row to fit, as qid": "group_column",
    "leave such columns out of X": "ignore_column",
    "features are not filtered beforehand; splits obey min_documents": "feature_pre_filter",
    "the sample for bins is evenly spaced, not random": "data_random_seed",
    "save and load write and read models": "input_model output_model convert_model convert_model_language",
    "fit(checkpoint=...) saves the state of training": "snapshot_freq",
    "importance('gain') and importance('split') give both kinds": "saved_feature_importance_type",
    "leaves are not refitted to other data": "refit_decay_rate",
    "predict uses all trees that were kept": (
        "start_iteration_predict num_iteration_predict output_result predict_raw_score predict_disable_shape_check"
        " pred_early_stop pred_early_stop_freq pred_early_stop_margin"
    ),
    "booster_ is LightGBM's own model; its predict has it": "predict_leaf_index",
    "tierank.explain_query gives contributions, and booster_ is LightGBM's own model": "predict_contrib",
    "settings are given by their names": "config",
    "fit trains and predict scores": "task",
}


def why_unknown(ranker: str, name: str, known: Sequence[str], instead: Mapping[str, str]) -> ParameterError | None:
    """The error for a parameter of LightGBM that is not a setting: its name here, or why it would have no effect.

    >>> print(why_unknown("UMart", "reg_lambda", ["lambda_l2"], {}))
    reg_lambda: expected lambda_l2, which is the name of this setting in UMart
    """
    from tierank.rankers.lightgbm import parameter_names

    main = parameter_names().get(name)
    if main is None:
        return None
    ours = RENAMED.get(main, main)
    if ours in known:
        return ParameterError(argument=name, expected=f"{ours}, which is the name of this setting in {ranker}")
    if main in _FIXED:
        return ParameterError(f"is set by {ranker}", argument=name, fix=f"remove it: {_FIXED[main]}")
    if main in instead:
        return ParameterError(f"has no effect in {ranker}", argument=name, fix=instead[main])
    for why, names in _UNUSED.items():
        if main in names.split():
            return ParameterError(f"has no effect in {ranker}", argument=name, fix=f"remove it: {why}")
    return ParameterError(argument=name, got="a parameter of LightGBM that this version of tierank does not know")


# LightGBM does not expose the state of its random numbers. So rounds are grown in stretches, each by a new booster that
# starts from the scores so far with new seeds: a run that is resumed after any stretch gives the same model.
STRETCH = 50
# Parameters whose default is not LightGBM's, which are passed on if gradients are quantised.
_QUANTISED = ("num_grad_quant_bins", "quant_train_renew_leaf", "stochastic_rounding")
# Parameters with a value for each feature, and those that say how categories are split.
_OF_EACH_FEATURE = (
    "monotone_constraints",
    "feature_contri",
    "max_bin_by_feature",
    "cegb_penalty_feature_lazy",
    "cegb_penalty_feature_coupled",
)
_OF_CATEGORIES = ("min_data_per_group", "max_cat_threshold", "cat_l2", "cat_smooth", "max_cat_to_onehot")
# The most bins (features x documents) for which LightGBM may keep a second copy, row by row.
_MOST_COPIED = 1 << 30
# The values (features x documents) from which another thread is worth it (measured).
_VALUES_PER_THREAD = 1 << 20
# The fraction of features up to which histograms are faster feature by feature (measured).
_FEW = 0.5


def check_parameters(settings: Mapping[str, Any]) -> None:
    """Raise ``ParameterError`` if parameters of LightGBM cannot be used together."""
    if settings["data_sample_strategy"] == "goss":
        if settings["bagging_fraction"] < 1 and settings["bagging_freq"] > 0:
            raise ParameterError(argument="bagging_fraction", expected="1.0 with `data_sample_strategy`='goss'")
        total = settings["top_rate"] + settings["other_rate"]
        if total > 1:
            raise ParameterError(argument="top_rate", expected="`top_rate` + `other_rate` <= 1", got=f"{total:g}")
        waits, n_rounds = int(1 / settings["learning_rate"]), min(STRETCH, settings["n_trees"])
        if waits >= n_rounds:  # no tree would be grown on a sample
            raise ParameterError(
                argument="data_sample_strategy",
                expected=f"1 / `learning_rate` below {n_rounds}, as goss begins after so many rounds of each {STRETCH}",
                got=str(waits),
                fix=f"raise `learning_rate`{' or `n_trees`' if n_rounds < STRETCH else ''}",
            )
    if settings["force_col_wise"] and settings["force_row_wise"]:
        raise ParameterError(argument="force_col_wise", expected="False with `force_row_wise`", got="True for both")
    if settings["zero_as_missing"] and (settings["linear_tree"] or not settings["use_missing"]):
        why = "`linear_tree`, which does not support it" if settings["linear_tree"] else "`use_missing`=False"
        raise ParameterError(argument="zero_as_missing", expected=f"False with {why}")


def lightgbm_parameters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of LightGBM: our settings by its names, and its own that differ from its defaults."""
    max_depth, n_leaves = settings["max_depth"], settings["n_leaves"]
    return {
        # The same bits whatever the number of threads.
        "deterministic": True,
        # Bins then do not depend on the smallest leaf that is allowed, and tiny data sets keep all features.
        "feature_pre_filter": False,
        **{
            name: settings[name]
            for name, one in TreeSettings.lightgbm_settings().items()
            if (settings["use_quantized_grad"] if name in _QUANTISED else settings[name] != one.default)
        },
        "learning_rate": settings["learning_rate"],
        "num_leaves": n_leaves,
        "max_depth": MAX_DEPTH if max_depth <= 0 and n_leaves > MAX_DEPTH + 1 else max_depth,
        "min_data_in_leaf": settings["min_documents"],
        "seed": settings["seed"],
        "metric": "None",
        "verbosity": -1,
    }


def for_data(params: Mapping[str, Any], data: RankingDataset, copies: int = 1) -> dict[str, Any]:
    """The parameters with features by number, as LightGBM expects them, and with a value for each copy of a feature.

    >>> data = RankingDataset([[1.0, 2.0]], feature_names=("a", "b"))
    >>> for_data({"categorical_feature": ["b"], "monotone_constraints": [1, 0]}, data, copies=3)
    {'categorical_feature': [1], 'monotone_constraints': [1, 0, 1, 0, 1, 0]}
    """
    n_features = data.n_features
    adapted = dict(params)
    categories = params.get("categorical_feature", ())
    groups = params.get("interaction_constraints", ())
    numbers = _numbers("categorical_feature", categories, data)
    of_texts = [
        place for place, name in enumerate(data.feature_names or ()) if isinstance(data.kinds.get(name), Category)
    ]
    if numbers or of_texts:  # the copies of a category are not categories
        adapted["categorical_feature"] = sorted({*of_texts, *numbers}) if of_texts else numbers
    else:
        idle = next((name for name in _OF_CATEGORIES if name in params), None)
        if idle is not None and "categorical_feature" not in params:
            raise ParameterError("has no effect without categories", argument=idle, fix="set `categorical_feature`")
    for name in _OF_EACH_FEATURE:
        if name in params:
            if len(params[name]) != n_features:
                expected = f"{n_features} numbers, one for each feature"
                raise ParameterError(argument=name, expected=expected, got=str(len(params[name])))
            adapted[name] = list(params[name]) * copies  # a value for a feature applies to its copies
    if groups:
        adapted["interaction_constraints"] = [
            [
                number + copy * n_features
                for copy in range(copies)
                for number in _numbers("interaction_constraints", group, data)
            ]
            for group in groups
        ]
    return adapted


def _numbers(name: str, features: Sequence[int | str], data: RankingDataset) -> list[int]:
    """Features by their numbers: LightGBM ignores a number that no feature has, or reads beyond its memory."""
    known = data.feature_names or ()
    are_computed = any(isinstance(kind, (Indicator, Match)) for kind in data.kinds.values())
    for feature in features:
        if isinstance(feature, str):
            if feature not in known:
                raise ParameterError.unknown(name, feature, known)
        elif are_computed:  # numbers would count others than the caller's
            expected = "names of features, as the model computes some of its features from texts"
            raise ParameterError(argument=name, expected=expected, got=str(feature))
        elif feature >= data.n_features:
            expected = f"numbers of features below {data.n_features}"
            raise ParameterError(argument=name, expected=expected, got=str(feature))
    return [known.index(feature) if isinstance(feature, str) else feature for feature in features]


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


def worth_in_threads(n_documents: int, n_features: int) -> int:
    """The number of threads that growing trees is worth: on a million values, a second one gains 5% to 40%."""
    return 1 + n_documents * n_features // _VALUES_PER_THREAD


def threads_for(n_jobs: int | None, n_documents: int, n_features: int) -> int:
    """The number of LightGBM's threads.

    >>> threads_for(None, 10_000, 46), threads_for(3, 10_000, 46)
    (1, 3)
    """
    return n_threads(n_jobs, worth=worth_in_threads(n_documents, n_features))


def contents_of_files(params: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of the files that parameters name. LightGBM would continue without one that it cannot read."""
    contents = {}
    for name, kind, what in (("forcedsplits_filename", dict, "an object"), ("forcedbins_filename", list, "a list")):
        if name not in params:
            continue
        try:
            content = json.loads(Path(params[name]).read_text(encoding="utf-8"))
        except OSError as error:
            got = f"{params[name]}: {error.strerror}"
            raise ParameterError(argument=name, expected="a file", got=got) from None
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, kind):
            expected = f"{what} as JSON in {params[name]}"
            raise ParameterError(argument=name, expected=expected, got="something else")
        contents[name] = content
    return contents
