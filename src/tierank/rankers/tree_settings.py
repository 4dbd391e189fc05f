"""The settings of boosted trees: tierank's, and LightGBM's parameters under their LightGBM names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tierank.errors import ParameterError
from tierank.rankers.base import Ranker
from tierank.rankers.judged import BASE, JudgedRanker
from tierank.settings import Between, Choice, Flag, Integer, Kind, Number, Optional, Setting, declared, setting

# The largest integer that LightGBM holds, and the largest tree.
_MOST, _MOST_LEAVES = 2**31 - 1, 131_072


# Kinds that only LightGBM has


def _values(value: Any) -> list[Any] | None:
    """The values of a list, an array or a string with commas; None for anything else."""
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


class _ForEach(Kind):
    """A list with one value for each feature."""

    def __init__(self, kind: Kind, expected: str = "a list with a number for each feature") -> None:
        self.kind, self.expected = kind, expected

    def check(self, name: str, value: Any) -> tuple[Any, ...]:
        """The values as a tuple."""
        values = _values(value)
        if values is None:
            raise self.refuse(name, value)
        return tuple(self.kind.check(name, one) for one in values)


class _Direction(Kind):
    expected = "1 (increasing), -1 (decreasing) or 0 for each feature"

    def check(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or value not in (-1, 0, 1):
            raise self.refuse(name, value)
        return int(value)


class _Features(Kind):
    """Some features, by number or by name; LightGBM's own strings begin with ``name:``."""

    expected = "a list of features, by number (from 0) or by name"

    def check(self, name: str, value: Any) -> tuple[int | str, ...]:
        given = value.removeprefix("name:") if isinstance(value, str) else value
        values = _values([given] if isinstance(given, (int, np.integer)) else given)
        if values is None:
            raise self.refuse(name, value)
        return tuple(self._one(name, one) for one in values)

    def _one(self, name: str, value: Any) -> int | str:
        if isinstance(value, str) and value:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value <= _MOST:
            raise self.refuse(name, value)
        return int(value)


class _Groups(Kind):
    """Groups of features; LightGBM's own string is ``[0,1],[2,3]``."""

    expected = "groups of features, such as [[0, 1], [2, 3]]"

    def check(self, name: str, value: Any) -> tuple[tuple[int | str, ...], ...]:
        groups = value
        if isinstance(value, str):
            try:
                groups = json.loads(f"[{value}]")
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


_SEED = Optional(Integer(0, _MOST), "drawn from seed")
_COUNT = Integer(1, _MOST)
_POSITIVE = Number(0)
_FRACTION = Number(above=0, most=1)
_INTEGER = Integer(-_MOST, _MOST)
_BINS = Integer(2, _MOST)
_PENALTIES = Optional(_ForEach(_POSITIVE))


def _lightgbm(default: Any, kind: Kind, help: str, **more: Any) -> Any:
    """A parameter of LightGBM; the default is LightGBM's own."""
    return setting(default, kind, help, group="LightGBM", **more)


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
        Flag(),
        "give trees each feature three times: as it is, scaled to the range of its query, and as its rank in the query;"
        " predict then needs the whole list of a query, with its qid",
    )
    base: Ranker | None = setting(
        None, BASE, "a ranker that is fitted first; trees are fitted to its residuals and add to its scores"
    )

    # How trees grow
    boosting: str = _lightgbm("gbdt", _Boosting(), "kind of boosting; only gbdt")
    max_depth: int = _lightgbm(-1, Integer(-1, _MOST), "maximum depth of a tree; -1 for 300")
    min_sum_hessian_in_leaf: float = _lightgbm(1e-3, _POSITIVE, "minimum sum of hessians per leaf")
    max_delta_step: float = _lightgbm(0.0, Number(), "maximum absolute leaf value; 0 for no limit")
    lambda_l1: float = _lightgbm(0.0, _POSITIVE, "L1 regularisation of leaf values")
    lambda_l2: float = _lightgbm(
        0.0, _POSITIVE, "L2 regularisation of leaf values", search=Between(0.001, 30.0, log=True)
    )
    min_gain_to_split: float = _lightgbm(0.0, _POSITIVE, "minimum gain of a split")
    path_smooth: float = _lightgbm(0.0, _POSITIVE, "how strongly leaf values are pulled towards their parent's")
    extra_trees: bool = _lightgbm(False, Flag(), "try one random threshold per feature and split")
    extra_seed: int | None = _lightgbm(None, _SEED, "seed of extra_trees", needs=("extra_trees",))
    linear_tree: bool = _lightgbm(False, Flag(), "fit a linear model in each leaf")
    linear_lambda: float = _lightgbm(0.0, _POSITIVE, "regularisation of linear leaves", needs=("linear_tree",))
    forcedsplits_filename: str | None = _lightgbm(
        None, Optional(_File()), "JSON file with splits to begin each tree with"
    )
    interaction_constraints: Sequence[Any] | None = _lightgbm(
        None, Optional(_Groups()), "groups of features that may appear together in a branch"
    )
    monotone_constraints: Sequence[int] | None = _lightgbm(
        None,
        Optional(_ForEach(_Direction(), "a list with 1, 0 or -1 for each feature")),
        "direction for each feature: 1 increasing, -1 decreasing, 0 free",
    )
    monotone_constraints_method: str = _lightgbm(
        "basic",
        Choice(("basic", "intermediate", "advanced")),
        "how constraints are enforced",
        needs=("monotone_constraints",),
    )
    monotone_penalty: float = _lightgbm(
        0.0, _POSITIVE, "penalty of constrained splits near the root", needs=("monotone_constraints",)
    )
    feature_contri: Sequence[float] | None = _lightgbm(None, _PENALTIES, "factor of the gain for each feature")
    cegb_tradeoff: float = _lightgbm(
        1.0,
        _POSITIVE,
        "factor of all cegb penalties",
        needs=("cegb_penalty_split", "cegb_penalty_feature_lazy", "cegb_penalty_feature_coupled"),
    )
    cegb_penalty_split: float = _lightgbm(0.0, _POSITIVE, "penalty of a split")
    cegb_penalty_feature_lazy: Sequence[float] | None = _lightgbm(
        None, _PENALTIES, "penalty for each feature, per document that uses it"
    )
    cegb_penalty_feature_coupled: Sequence[float] | None = _lightgbm(
        None, _PENALTIES, "penalty for each feature, once per model"
    )
    # Samples
    bagging_fraction: float = _lightgbm(
        1.0, _FRACTION, "fraction of the documents that a tree is grown on", needs=("bagging_freq",)
    )
    bagging_freq: int = _lightgbm(
        0, Integer(0, _MOST), "draw a new sample every n trees; 0 for never", needs=("bagging_fraction",)
    )
    bagging_seed: int | None = _lightgbm(None, _SEED, "seed of bagging", needs=("bagging_freq", "data_sample_strategy"))
    bagging_by_query: bool = _lightgbm(False, Flag(), "sample whole queries", needs=("bagging_freq",))
    data_sample_strategy: str = _lightgbm(
        "bagging", Choice(("bagging", "goss")), "how documents are sampled: bagging, or goss by size of gradient"
    )
    top_rate: float = _lightgbm(
        0.2, _FRACTION, "fraction with the largest gradients that goss keeps", needs=("data_sample_strategy",)
    )
    other_rate: float = _lightgbm(
        0.1, _FRACTION, "fraction of the others that goss keeps", needs=("data_sample_strategy",)
    )
    feature_fraction: float = _lightgbm(
        1.0, _FRACTION, "fraction of the features that a tree sees", search=Between(0.4, 1.0)
    )
    feature_fraction_bynode: float = _lightgbm(1.0, _FRACTION, "fraction of the features that a split sees")
    feature_fraction_seed: int | None = _lightgbm(
        None, _SEED, "seed of feature_fraction", needs=("feature_fraction", "feature_fraction_bynode")
    )
    # Categories
    categorical_feature: Sequence[int | str] | None = _lightgbm(
        None, Optional(_Features()), "features that hold categories, by number or by name"
    )
    min_data_per_group: int = _lightgbm(100, _COUNT, "minimum number of documents per group of categories")
    max_cat_threshold: int = _lightgbm(32, _COUNT, "maximum number of split points over categories")
    cat_l2: float = _lightgbm(10.0, _POSITIVE, "L2 regularisation of splits over categories")
    cat_smooth: float = _lightgbm(10.0, _POSITIVE, "smoothing of rare categories")
    max_cat_to_onehot: int = _lightgbm(4, _COUNT, "up to this many categories, split one from the rest")
    # Bins and missing values
    max_bin: int = _lightgbm(255, _BINS, "maximum number of bins per feature")
    max_bin_by_feature: Sequence[int] | None = _lightgbm(
        None, Optional(_ForEach(_BINS)), "maximum number of bins for each feature"
    )
    min_data_in_bin: int = _lightgbm(3, _COUNT, "minimum number of documents per bin")
    bin_construct_sample_cnt: int = _lightgbm(200_000, _COUNT, "number of documents that bins are found from")
    forcedbins_filename: str | None = _lightgbm(None, Optional(_File()), "JSON file with bin boundaries")
    use_missing: bool = _lightgbm(True, Flag(), "treat missing values as missing; otherwise as 0")
    zero_as_missing: bool = _lightgbm(False, Flag(), "treat 0 as missing")
    # Coarse gradients
    use_quantized_grad: bool = _lightgbm(False, Flag(), "round gradients to a few levels: faster, and less exact")
    num_grad_quant_bins: int = _lightgbm(
        127, Integer(2, 127), "number of these levels; LightGBM's default is 4", needs=("use_quantized_grad",)
    )
    quant_train_renew_leaf: bool = _lightgbm(
        True,
        Flag(),
        "compute leaf values from the exact gradients; LightGBM's default is False",
        needs=("use_quantized_grad",),
    )
    stochastic_rounding: bool = _lightgbm(
        False,
        Flag(),
        "round at random, by numbers that depend on the number of threads; LightGBM's default is True",
        needs=("use_quantized_grad",),
    )
    # How the work is done: time, memory, and sums in another order
    deterministic: bool = _lightgbm(True, Flag(), "same bits for any number of threads; LightGBM's default is False")
    force_col_wise: bool | None = _lightgbm(
        None,
        Optional(
            Flag(),
            "True for goss, for more than 2^30 values, and for feature_fraction <= 0.5; else whichever way is faster",
        ),
        "build histograms feature by feature",
    )
    force_row_wise: bool = _lightgbm(False, Flag(), "build histograms row by row")
    histogram_pool_size: float = _lightgbm(-1.0, Number(), "megabytes for histograms; -1 for no limit")
    is_enable_sparse: bool = _lightgbm(True, Flag(), "use sparse storage where it pays")
    enable_bundle: bool = _lightgbm(True, Flag(), "bundle features that are never set together")
    device_type: str = _lightgbm("cpu", Choice(("cpu", "gpu", "cuda")), "where trees are grown")
    gpu_platform_id: int = _lightgbm(-1, _INTEGER, "OpenCL platform", needs=("device_type",))
    gpu_device_id: int = _lightgbm(-1, _INTEGER, "GPU on that platform", needs=("device_type",))
    gpu_use_dp: bool = _lightgbm(False, Flag(), "double precision on the GPU", needs=("device_type",))
    num_gpu: int = _lightgbm(1, _COUNT, "number of GPUs", needs=("device_type",))
    gpu_device_id_list: Any = _lightgbm(
        "", _Devices(Integer(0), "a list of GPU numbers"), "numbers of the GPUs", needs=("device_type",)
    )

    @classmethod
    def lightgbm_settings(cls) -> dict[str, Setting]:
        """The settings that are parameters of LightGBM, by LightGBM's names."""
        return {name: one for name, one in declared(cls).items() if one.group == "LightGBM"}
