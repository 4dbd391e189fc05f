"""The settings of boosted trees: tierank's, and LightGBM's parameters under their LightGBM names.

``TreeSettings`` declares them, and ``lightgbm_parameters`` makes LightGBM's parameters of them. LightGBM itself is
imported where trees are grown or loaded.
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
from tierank.rankers.base import BASE, JudgedRanker, Ranker, as_metrics
from tierank.settings import (
    Between,
    Checked,
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


def _plain(value: Any) -> Any:
    """A list from an array or a column, and from LightGBM's own texts: ``1,0,-1``, ``[0,1],[2,3]``, ``name:a,b``."""
    if isinstance(value, str):
        try:
            return json.loads(f"[{value}]")
        except (ValueError, RecursionError):
            return value.removeprefix("name:").split(",")
    return value.tolist() if hasattr(value, "tolist") else value


class _PerFeature(ListOf):
    """A list with one value for each feature."""

    def check(self, name: str, value: Any) -> tuple[Any, ...]:
        """The values as a tuple."""
        return super().check(name, _plain(value))


class _Features(Kind):
    """Some features, or one."""

    expected = "a list of features, by number (from 0) or by name"

    def check(self, name: str, value: Any) -> tuple[int | str, ...]:
        features = _plain(value)
        features = [features] if isinstance(features, int) else features
        if not isinstance(features, (list, tuple)) or not all(map(self._is_feature, features)):
            raise self.refuse(name, value)
        return tuple(one if isinstance(one, str) else int(one) for one in features)

    @staticmethod
    def _is_feature(value: Any) -> bool:
        if isinstance(value, str):
            return value != ""
        return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) <= _MOST


class _Groups(Kind):
    """Groups of features."""

    expected = "groups of features, such as [[0, 1], [2, 3]]"

    def check(self, name: str, value: Any) -> tuple[tuple[int | str, ...], ...]:
        groups = _plain(value)
        if not isinstance(groups, (list, tuple)) or not all(isinstance(group, (list, tuple)) for group in groups):
            raise self.refuse(name, value)
        return tuple(_Features().check(name, group) for group in groups)


class _Pattern(Kind):
    """A text, or a path, that matches a pattern as a whole."""

    def __init__(self, expected: str, pattern: str) -> None:
        self.expected, self._pattern = expected, pattern

    def check(self, name: str, value: Any) -> str:
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(text, str) or not re.fullmatch(self._pattern, text):
            raise self.refuse(name, value)
        return text


_FLAG, _BINS, _SHARE, _GPU = Flag(), Integer(2, _MOST), Number(above=0, most=1), Integer(-_MOST, _MOST)
_SEED, _NUMBERS = Optional(Integer(0, _MOST), "drawn from seed"), Optional(_PerFeature(Number(0), "numbers"))
_SIGNS = Optional(_PerFeature(Integer(-1, 1), "a list with 1, 0 or -1 for each feature"))
_EACH_BIN, _GBDT = Optional(_PerFeature(_BINS, "numbers")), Choice(["gbdt"])
_OF_FEATURES = (_NUMBERS, _SIGNS, _EACH_BIN)
_METHOD = Choice(["basic", "intermediate", "advanced"])
_PENALTIES = "cegb_penalty_split cegb_penalty_feature_lazy cegb_penalty_feature_coupled"
# LightGBM cuts names at spaces and '=', and cannot read back a model with quotes in them.
_FILE = Optional(_Pattern("a file name without spaces, quotes, backslashes and '='", r"""[^\s='"\\]+"""))
_GPUS = _Pattern("numbers of GPUs with commas between them", r"[\d,]*")
_COL_WISE = Optional(
    _FLAG, "True for goss, for more than 2^30 values, and for feature_fraction <= 0.5; else whichever way is faster"
)


def _lgb(default: Any, help: str, kind: Kind | None = None, needs: str = "", search: Between | None = None) -> Any:
    """A parameter of LightGBM, with LightGBM's own default; ``needs`` are names with blanks between them."""
    kind = kind or {bool: _FLAG, int: Integer(1, _MOST), float: Number(0)}[type(default)]
    return setting(default, kind, help, group="LightGBM", needs=tuple(needs.split()), search=search)


def _as_companions(value: Any) -> tuple[Any, ...]:
    is_empty = isinstance(value, (str, list, tuple)) and not len(value)
    return () if is_empty else as_metrics(value)


_COMPANIONS = Optional(
    Checked("a list of metrics", _as_companions), "ndcg and map if select_by is ndcg@10, its default; else none"
)


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
    select_with: str | Sequence[str] | None = setting(
        None,
        _COMPANIONS,
        "metrics that are averaged with the first of select_by when rounds are compared, as their mean has less noise;"
        " [] for none",
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
    boosting: str = _lgb("gbdt", "kind of boosting; only gbdt", _GBDT)
    max_depth: int = _lgb(-1, "maximum depth of a tree; -1 for 300", Integer(-1, MAX_DEPTH))
    min_sum_hessian_in_leaf: float = _lgb(1e-3, "minimum sum of hessians per leaf")
    max_delta_step: float = _lgb(0.0, "maximum absolute leaf value; 0 for no limit", Number())
    lambda_l1: float = _lgb(0.0, "L1 regularisation of leaf values")
    lambda_l2: float = _lgb(0.0, "L2 regularisation of leaf values", search=Between(0.001, 30.0, log=True))
    min_gain_to_split: float = _lgb(0.0, "minimum gain of a split")
    path_smooth: float = _lgb(0.0, "how strongly leaf values are pulled towards their parent's")
    extra_trees: bool = _lgb(False, "try one random threshold per feature and split")
    extra_seed: int | None = _lgb(None, "seed of extra_trees", _SEED, "extra_trees")
    linear_tree: bool = _lgb(False, "fit a linear model in each leaf")
    linear_lambda: float = _lgb(0.0, "regularisation of linear leaves", needs="linear_tree")
    forcedsplits_filename: str | None = _lgb(None, "JSON file with splits to begin each tree with", _FILE)
    interaction_constraints: Sequence[Any] | None = _lgb(None, "features that may share a branch", Optional(_Groups()))
    monotone_constraints: Sequence[int] | None = _lgb(None, "per feature: 1 increasing, -1 decreasing, 0 free", _SIGNS)
    monotone_constraints_method: str = _lgb("basic", "how constraints are enforced", _METHOD, "monotone_constraints")
    monotone_penalty: float = _lgb(0.0, "penalty of constrained splits near the root", needs="monotone_constraints")
    feature_contri: Sequence[float] | None = _lgb(None, "factor of the gain for each feature", _NUMBERS)
    cegb_tradeoff: float = _lgb(1.0, "factor of all cegb penalties", needs=_PENALTIES)
    cegb_penalty_split: float = _lgb(0.0, "penalty of a split")
    cegb_penalty_feature_lazy: Sequence[float] | None = _lgb(None, "penalty of each use by a document", _NUMBERS)
    cegb_penalty_feature_coupled: Sequence[float] | None = _lgb(None, "penalty of the first use", _NUMBERS)
    # Samples
    bagging_fraction: float = _lgb(1.0, "fraction of the documents that a tree is grown on", _SHARE, "bagging_freq")
    bagging_freq: int = _lgb(0, "draw a new sample every n trees; 0 for never", Integer(0, _MOST), "bagging_fraction")
    bagging_seed: int | None = _lgb(None, "seed of bagging", _SEED, "bagging_freq data_sample_strategy")
    bagging_by_query: bool = _lgb(False, "sample whole queries", needs="bagging_freq")
    data_sample_strategy: str = _lgb("bagging", "bagging, or goss by size of gradient", Choice(["bagging", "goss"]))
    top_rate: float = _lgb(0.2, "fraction of largest gradients that goss keeps", _SHARE, "data_sample_strategy")
    other_rate: float = _lgb(0.1, "fraction of the others that goss keeps", _SHARE, "data_sample_strategy")
    feature_fraction: float = _lgb(1.0, "fraction of features that a tree sees", _SHARE, search=Between(0.4, 1.0))
    feature_fraction_bynode: float = _lgb(1.0, "fraction of the features that a split sees", _SHARE)
    feature_fraction_seed: int | None = _lgb(None, "their seed", _SEED, "feature_fraction feature_fraction_bynode")
    # Categories
    categorical_feature: Sequence[int | str] | None = _lgb(None, "features that hold categories", Optional(_Features()))
    min_data_per_group: int = _lgb(100, "minimum number of documents per group of categories")
    max_cat_threshold: int = _lgb(32, "maximum number of split points over categories")
    cat_l2: float = _lgb(10.0, "L2 regularisation of splits over categories")
    cat_smooth: float = _lgb(10.0, "smoothing of rare categories")
    max_cat_to_onehot: int = _lgb(4, "up to this many categories, split one from the rest")
    # Bins and missing values
    max_bin: int = _lgb(255, "maximum number of bins per feature", _BINS)
    max_bin_by_feature: Sequence[int] | None = _lgb(None, "the same for each feature", _EACH_BIN)
    min_data_in_bin: int = _lgb(3, "minimum number of documents per bin")
    bin_construct_sample_cnt: int = _lgb(200_000, "number of documents that bins are found from")
    forcedbins_filename: str | None = _lgb(None, "JSON file with bin boundaries", _FILE)
    use_missing: bool = _lgb(True, "treat missing values as missing; otherwise as 0")
    zero_as_missing: bool = _lgb(False, "treat 0 as missing")
    # Coarse gradients
    use_quantized_grad: bool = _lgb(False, "round gradients to a few levels: faster, and less exact")
    num_grad_quant_bins: int = _lgb(127, "number of levels; LightGBM: 4", Integer(2, 127), "use_quantized_grad")
    quant_train_renew_leaf: bool = _lgb(True, "exact leaf values; LightGBM: False", needs="use_quantized_grad")
    stochastic_rounding: bool = _lgb(False, "round at random; LightGBM: True", needs="use_quantized_grad")
    # How the work is done: time, memory, and sums in another order
    deterministic: bool = _lgb(True, "same bits for any number of threads; LightGBM's default is False")
    force_col_wise: bool | None = _lgb(None, "build histograms feature by feature", _COL_WISE)
    force_row_wise: bool = _lgb(False, "build histograms row by row")
    histogram_pool_size: float = _lgb(-1.0, "megabytes for histograms; -1 for no limit", Number())
    is_enable_sparse: bool = _lgb(True, "use sparse storage where it pays")
    enable_bundle: bool = _lgb(True, "bundle features that are never set together")
    device_type: str = _lgb("cpu", "where trees are grown", Choice(["cpu", "gpu", "cuda"]))
    gpu_platform_id: int = _lgb(-1, "OpenCL platform", _GPU, "device_type")
    gpu_device_id: int = _lgb(-1, "GPU on that platform", _GPU, "device_type")
    gpu_use_dp: bool = _lgb(False, "double precision on the GPU", needs="device_type")
    num_gpu: int = _lgb(1, "number of GPUs", needs="device_type")
    gpu_device_id_list: str = _lgb("", "numbers of the GPUs", _GPUS, "device_type")

    @classmethod
    def lightgbm_settings(cls) -> dict[str, Setting]:
        """The settings that are parameters of LightGBM, by LightGBM's names."""
        return {name: one for name, one in declared(cls).items() if one.group == "LightGBM"}


# LightGBM does not expose the state of its random numbers. So rounds are grown in stretches, each by a new booster that
# starts from the scores so far with new seeds: a run that is resumed after any stretch gives the same model.
STRETCH = 50
# Parameters whose default is not LightGBM's, which are passed on if gradients are quantised.
_QUANTISED = ("num_grad_quant_bins", "quant_train_renew_leaf", "stochastic_rounding")
# Parameters with a value for each feature, and those that say how categories are split.
_OF_EACH_FEATURE = [name for name, one in TreeSettings.lightgbm_settings().items() if one.kind in _OF_FEATURES]
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
