"""The neutral form of a fitted model: rankers produce it, export targets write it.

    Model
    └── scorer   Trees                 boosted trees, as flat arrays
                 QueryCopies           boosted trees that also see features relative to the query
                 Network               a transform and dense layers
                 Sum                   weighted parts
                 StandardisedMean      mean of parts that are standardised within the query

A ranker returns it by ``portable``; nothing here depends on rankers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tierank.errors import ParameterError
from tierank.kinds import Kinds
from tierank.transforms import SideBySide, Transform
from tierank.types import Floats

# What counts as missing in a split: nothing (NaN counts as 0), 0 and NaN, or NaN.
NONE, ZERO, NAN = 0, 1, 2
_MISSING = {"None": NONE, "Zero": ZERO, "NaN": NAN}
# As in LightGBM: numbers this close to 0 count as 0.
NEAR_ZERO = np.float32(1e-35)


def floor_float32(values: Floats) -> NDArray[np.float32]:
    """The largest float32 numbers that are not above the values: x <= t is the same for every float32 x.

    >>> floor_float32(np.array([0.5, 0.1])).tolist()
    [0.5, 0.09999999403953552]
    """
    largest = np.finfo(np.float32).max
    rounded = np.clip(values, -largest, largest).astype(np.float32)
    with np.errstate(over="ignore"):  # -infinity below the lowest number
        below = np.nextafter(rounded, np.float32(-np.inf))
    below = np.where(rounded.astype(np.float64) > values, below, rounded)
    return np.where(values == np.inf, np.float32(np.inf), below)


def as_float32(values: Floats) -> NDArray[np.float32]:
    """The numbers as float32; infinite if they are too large."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def lightgbm_thresholds(values: Floats) -> NDArray[np.float32]:
    """Thresholds for a plain x <= t that send every float32 number where LightGBM sends it.

    For LightGBM all numbers from -1e-35 to 1e-35 are 0: they all go left if 0 <= t, otherwise right. So a
    threshold among them becomes 1e-35, or the float32 number below -1e-35. Any other is rounded down to float32.

    >>> lightgbm_thresholds(np.array([-1.0000000180025095e-35, 0.0, 0.5])).tolist()
    [-1.0000000897489909e-35, 1.0000000180025095e-35, 0.5]
    """
    below = np.nextafter(-NEAR_ZERO, np.float32(-np.inf))
    among = np.where(values >= 0, NEAR_ZERO, below)
    return np.where(np.abs(values) <= np.float64(NEAR_ZERO), among, floor_float32(values))


@dataclass(frozen=True, eq=False)
class Trees:
    """A sum of regression trees; x goes left where x <= threshold. Features and thresholds are float32.

    Children and roots are node numbers, or ~leaf for a leaf. A missing value goes left if ``default_left``; ``missing``
    says what counts as missing in a split.

    If ``category`` is k >= 0, the split is by category: x goes left if ``members[k]`` contains its integer part (2 for
    2.9, 0 for -0.9), and right if it is missing, negative or out of range. Without both fields there are no such
    splits.

    >>> stump = Trees.stump(feature=1, threshold=0.5, values=(-1.0, 2.0))
    >>> stump.predict(np.array([[9, 0.5], [9, 0.75], [9, np.nan]], np.float32)).tolist()
    [-1.0, 2.0, -1.0]
    """

    roots: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float32]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    missing: NDArray[np.uint8]
    default_left: NDArray[np.bool_]
    values: Floats
    category: NDArray[np.int64] | None = None
    members: NDArray[np.bool_] | None = None  # sets x categories

    @property
    def is_category(self) -> NDArray[np.bool_]:
        """Which splits are by category."""
        return np.zeros(len(self.feature), np.bool_) if self.category is None else self.category >= 0

    def without_categories(self, n_features: int) -> tuple[list[tuple[int, NDArray[np.bool_]]], Trees]:
        """The trees with thresholds only, on additional columns: 0 for members of a set, 1 for other values.

        Also returns the feature and the members of each additional column.
        """
        if self.category is None or self.members is None or not self.is_category.any():
            return [], replace(self, category=None, members=None)
        keys = np.stack([self.feature, self.category], axis=1)[self.is_category]
        unique, place = np.unique(keys, axis=0, return_inverse=True)
        feature, threshold, missing = self.feature.copy(), self.threshold.copy(), self.missing.copy()
        feature[self.is_category] = n_features + place.ravel()
        threshold[self.is_category], missing[self.is_category] = 0.5, NONE
        plain = replace(self, feature=feature, threshold=threshold, missing=missing, category=None, members=None)
        members = self.members
        return [(int(column), np.trim_zeros(members[chosen], "b")) for column, chosen in unique.tolist()], plain

    @classmethod
    def stump(
        cls, feature: int, threshold: float, values: tuple[float, float], missing: int = NONE, default_left: bool = True
    ) -> Trees:
        """One split."""
        builder = TreeBuilder()
        builder.add((feature, threshold, *values, missing, default_left), lambda node: node)
        return builder.build()

    @classmethod
    def constant(cls, value: float) -> Trees:
        """The same score for every document: one leaf."""
        builder = TreeBuilder()
        builder.add(value, lambda node: node)
        return builder.build()

    @classmethod
    def from_lightgbm(cls, dump: Mapping[str, Any]) -> Trees:
        """The trees of ``lightgbm.Booster.dump_model()``, which send every float32 number where LightGBM sends it.

        What ``Booster.predict`` does with a value x in a split at t, determined by experiments with trees of one split
        (``tests/test_export.py`` repeats them with the installed version):

        1. A float32 x becomes a double, which changes nothing.
        2. A number with |x| <= ``NEAR_ZERO`` is 0, so -0.0, denormals and the numbers 1e-35 and -1e-35 of float32 are.
        3. NaN goes the default way where the split takes NaN for missing. In all other splits NaN is 0.
        4. 0 goes the default way where the split takes 0 for missing.
        5. Any other x goes left if x <= t, in double precision.
        6. A split by category looks its value up in a set; such trees are refused here, and read from LightGBM's text.

        LightGBM often splits at -1e-35 and 1e-35, on either side of its 0. See ``lightgbm_thresholds`` for 2 and 5.
        """
        builder = TreeBuilder()
        for tree in dump["tree_info"]:
            builder.add(tree["tree_structure"], _lightgbm_node)
        return builder.build(lightgbm_thresholds)

    @property
    def nan_left(self) -> NDArray[np.bool_]:
        """Which way a NaN goes in each split."""
        return np.where(self.missing == NONE, self.threshold >= 0, self.default_left) & ~self.is_category

    @property
    def zero_left(self) -> NDArray[np.bool_]:
        """Which way a 0 goes in each split."""
        return np.where(self.missing == ZERO, self.default_left, self.threshold >= 0)

    def strict_thresholds(self) -> list[float]:
        """Thresholds for engines that go left where x < t: the lowest float32 numbers above those here.

        Above the largest number comes infinity, which JSON cannot hold; 1e39 becomes infinity as float32.
        """
        with np.errstate(over="ignore"):
            above = np.nextafter(self.threshold, np.float32(np.inf)).astype(np.float64)
        return [float(number) for number in np.where(np.isinf(above), 1e39, above)]

    def leaf_ranges(self) -> tuple[Floats, Floats]:
        """The lowest and the highest leaf of each tree."""
        low, high = np.full(len(self.roots), np.inf), np.full(len(self.roots), -np.inf)
        tree = self.tree_of_leaf()
        np.minimum.at(low, tree, self.values)
        np.maximum.at(high, tree, self.values)
        return low, high

    def seen_missing(self, n_features: int) -> NDArray[np.bool_]:
        """Which features had missing values in training, judging by the splits."""
        seen = np.zeros(n_features, bool)
        seen[self.feature[self.missing != NONE]] = True
        return seen

    def predict(self, features: NDArray[np.float32]) -> Floats:
        """The sum of the trees in double precision, in the order of the trees."""
        return np.asarray(sum(self.leaf_values(features, self._goes_left)), np.float64)

    def tree_of_leaf(self) -> NDArray[np.int64]:
        """The number of the tree that each leaf is in."""
        tree = np.zeros(len(self.values), np.int64)
        for number, root in enumerate(self.roots.tolist()):
            waiting = [root]
            while waiting:
                node = waiting.pop()
                if node < 0:
                    tree[~node] = number
                else:
                    waiting += [int(self.left[node]), int(self.right[node])]
        return tree

    def nested(self, leaf: Callable[[int], Any], split: Callable[[int, Any, Any], Any]) -> list[Any]:
        """Each tree as nested nodes: ``leaf(number)``, ``split(number, left, right)``."""
        made: list[Any] = [None] * len(self.feature)

        def at(node: int) -> Any:
            return made[node] if node >= 0 else leaf(~node)

        for node in reversed(range(len(made))):  # children have higher numbers than their parents
            made[node] = split(node, at(int(self.left[node])), at(int(self.right[node])))
        return [at(root) for root in self.roots.tolist()]

    def leaf_values(self, features: NDArray[Any], goes_left: Any) -> Iterator[Floats]:
        """The leaf value of each tree for each document; ``goes_left(splits, values)`` is the rule of a split."""
        everyone = np.arange(len(features))
        for root in self.roots.tolist():
            place = np.full(len(features), root)
            rows = everyone if root >= 0 else everyone[:0]
            while len(rows):
                splits = place[rows]
                left = goes_left(splits, features[rows, self.feature[splits]])
                place[rows] = np.where(left, self.left[splits], self.right[splits])
                rows = rows[place[rows] >= 0]
            yield self.values[~place]

    def _goes_left(self, splits: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.bool_]:
        if self.category is not None and self.members is not None and self.is_category[splits].any():
            return self._with_members(splits, values, self.category[splits], self.members)
        return self._by_threshold(splits, values)

    def _with_members(
        self,
        splits: NDArray[np.int64],
        values: NDArray[Any],
        category: NDArray[np.int64],
        members: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        is_known = (values > -1) & (values < members.shape[1])
        codes = np.where(is_known, values, 0).astype(np.int64)
        return np.where(
            category >= 0, is_known & members[np.maximum(category, 0), codes], self._by_threshold(splits, values)
        )

    def _by_threshold(self, splits: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.bool_]:
        is_nan, kind = np.isnan(values), self.missing[splits]
        is_missing = (is_nan & (kind != NONE)) | ((np.abs(values) <= NEAR_ZERO) & (kind == ZERO))
        known = np.where(is_nan, np.float32(0), values) <= self.threshold[splits]
        return np.where(is_missing, self.default_left[splits], known)


class TreeBuilder:
    """Builds ``Trees`` from nested nodes. ``read`` returns the value of a leaf, or a split with its two children."""

    def __init__(self) -> None:
        self.roots: list[int] = []
        self.splits: list[list[Any]] = []
        self.values: list[float] = []

    def add(self, root: Any, read: Any) -> None:
        """Add one tree. Without recursion, as trees may be deep."""
        waiting: list[Any] = []
        self.roots.append(self._place(root, read, waiting))
        while waiting:
            split, column, child = waiting.pop()
            self.splits[split][column] = self._place(child, read, waiting)

    def _place(self, node: Any, read: Any, waiting: list[Any]) -> int:
        content = read(node)
        if isinstance(content, float):
            self.values.append(content)
            return ~(len(self.values) - 1)
        feature, threshold, left, right, missing, default_left = content
        number = len(self.splits)
        self.splits.append([feature, threshold, 0, 0, missing, default_left])
        waiting += [(number, 3, right), (number, 2, left)]
        return number

    def build(self, rounded: Callable[[Floats], NDArray[np.float32]] = floor_float32) -> Trees:
        """The trees so far; ``rounded`` makes their thresholds float32."""
        feature, threshold, left, right, missing, default_left = (
            zip(*self.splits, strict=True) if self.splits else [()] * 6
        )
        return Trees(
            np.array(self.roots, np.int64),
            np.array(feature, np.int64),
            rounded(np.array(threshold, np.float64)),
            np.array(left, np.int64),
            np.array(right, np.int64),
            np.array(missing, np.uint8),
            np.array(default_left, np.bool_),
            np.array(self.values, np.float64),
        )


def _lightgbm_node(node: Mapping[str, Any]) -> Any:
    if "leaf_value" in node:
        if "leaf_coeff" in node:
            raise ParameterError("linear_tree: expected trees with constant leaves to export; train without it")
        return float(node["leaf_value"])
    if node["decision_type"] != "<=":
        raise ParameterError(
            "categorical_feature: expected splits by threshold to export, got a split by category; give categories as"
            " numbers, or as one feature of 0 and 1 each"
        )
    children = node["left_child"], node["right_child"]
    return (
        node["split_feature"],
        float(node["threshold"]),
        *children,
        _MISSING[node["missing_type"]],
        node["default_left"],
    )


@dataclass(frozen=True, eq=False)
class QueryCopies:
    """Trees that see each feature three times: unchanged, scaled to the range of its query, and as its rank in it.

    The columns are those of ``transforms.add_query_copies``: all features, all range-scaled values, all ranks. A
    missing value is missing in all three.
    """

    COPIES: ClassVar[int] = 3

    trees: Trees


@dataclass(frozen=True, eq=False)
class Layer:
    """y = activation(W x + b); followed by x itself where the layer ``keeps_input``.

    Weights are float32, and the layer is computed in single precision; or they are float64 with the activation
    "identity", and it is computed in double precision: a linear ranker, whose weights may be large and cancel.
    """

    weights: NDArray[np.float32] | Floats  # outputs x inputs
    bias: NDArray[np.float32] | Floats
    activation: str  # "identity", or a name of networks.ACTIVATIONS
    keeps_input: bool = False
    # The center of the inputs: W x + b = W (x - center) + (W center + b). For engines that compute in single precision.
    center: Floats | None = None

    @property
    def is_double(self) -> bool:
        """Whether it is computed in double precision."""
        return self.weights.dtype == np.float64

    @property
    def n_out(self) -> int:
        """Number of outputs."""
        return len(self.bias) + (self.weights.shape[1] if self.keeps_input else 0)


@dataclass(frozen=True, eq=False)
class Embedding:
    """An embedding of a category: row k of a table for level k.

    As in splits by category, the integer part of a number counts (2 for 2.9, 0 for -0.9). The last row is for values
    that are missing, negative or out of range.
    """

    feature: int
    table: NDArray[np.float32]  # (levels + 1) x dimensions

    @property
    def n_levels(self) -> int:
        """Number of levels."""
        return len(self.table) - 1


@dataclass(frozen=True, eq=False)
class Network:
    """A network: transformed features, followed by layers, the last of which gives the score.

    Transformed values of features that have an embedding are left out; embeddings come after the other inputs.
    """

    transform: Transform
    per_query: bool  # whether the transform scales within each query
    layers: tuple[Layer, ...]
    embeddings: tuple[Embedding, ...] = ()

    def columns_of(self, transform: Transform, n_features: int) -> NDArray[np.int64]:
        """The columns of one of its transforms that are inputs."""
        columns = np.arange(transform.n_columns(n_features))
        return columns[~np.isin(columns % n_features, [one.feature for one in self.embeddings])]

    @property
    def blocks(self) -> tuple[tuple[Transform, bool], ...]:
        """The transforms, one or several side by side, each with whether it scales within queries."""
        # A subclass may compute anything, so it counts as a transform of its own.
        parts = self.transform.parts_ if type(self.transform) is SideBySide else (self.transform,)
        return tuple((part, self.per_query and part.needs_queries) for part in parts)

    @property
    def limit(self) -> float | None:
        """The bound that inputs are clipped to, if any, in addition to the limits of the transforms."""
        return self.transform.LIMIT if type(self.transform) is SideBySide else None

    @property
    def scaling(self) -> tuple[Any, ...]:
        """A key that is equal for networks with the same inputs."""
        return self.limit, *(scaling_of(*block) for block in self.blocks)


def scaling_of(transform: Transform, per_query: bool) -> tuple[Any, ...]:
    """A key that is equal for transforms with the same results."""
    learned = {} if per_query else transform.state()
    return type(transform), per_query, *(array.tobytes() for array in learned.values())


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of weight * score over the parts."""

    parts: tuple[tuple[float, Scorer], ...]


@dataclass(frozen=True, eq=False)
class StandardisedMean:
    """The mean of (score - mean of the query) / (deviation of the query) over the parts.

    A part is 0 for all documents of a query in which rounding alone could have made the deviation: up to ``ROUNDING``
    times the largest score there. The mean of several parts is 0 for all documents of a query in which none is further
    from 0 than ``CANCELLED``: only rounding remains of standardised scores that cancel.
    """

    ROUNDING: ClassVar[float] = 2.0**-40
    CANCELLED: ClassVar[float] = 2.0**-20  # some sums of an ONNX export have single precision

    parts: tuple[Scorer, ...]


Scorer = Trees | QueryCopies | Network | Sum | StandardisedMean


@dataclass(frozen=True, eq=False)
class Model:
    """A scorer, and the description of its features."""

    scorer: Scorer
    n_features: int
    feature_names: tuple[str, ...] | None
    has_missing: bool  # whether training saw missing values
    kinds: Kinds = field(default_factory=dict)  # kinds of the features that are not plain numbers

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each feature: as in training if all are plain identifiers, otherwise feature_1, feature_2, ..."""
        if self.feature_names is not None and all(
            re.fullmatch(r"[A-Za-z_]\w*", n, re.ASCII) for n in self.feature_names
        ):
            return self.feature_names
        return tuple(f"feature_{number}" for number in range(1, self.n_features + 1))

    def described_names(self) -> list[str]:
        """The names, with the kind of each feature that is not a plain number; safe in a C comment."""
        known = [self.kinds.get(name) for name in self.feature_names or [""] * self.n_features]
        texts = [name if kind is None else f"{name}: {kind}" for name, kind in zip(self.names, known, strict=True)]
        # Backslashes first: what replaces them could otherwise end the comment.
        safe = (text.replace("\\", "/").replace("*/", "* /").replace("/*", "/ *") for text in texts)
        return [" ".join(text.split()) for text in safe]

    def seen_missing(self) -> NDArray[np.bool_]:
        """Which features may be missing."""
        seen = np.zeros(self.n_features, bool)
        for part in walk(self.scorer):
            if isinstance(part, Trees):
                seen |= part.seen_missing(self.n_features)
            elif isinstance(part, QueryCopies):
                shape = QueryCopies.COPIES, self.n_features
                seen |= part.trees.seen_missing(math.prod(shape)).reshape(shape).any(axis=0)
            elif isinstance(part, Network):
                seen |= self.has_missing
                seen[[one.feature for one in part.embeddings]] = True
        return seen


def walk(scorer: Scorer) -> Iterator[Scorer]:
    """A scorer and all its parts."""
    yield scorer
    if isinstance(scorer, Sum):
        for _, part in scorer.parts:
            yield from walk(part)
    elif isinstance(scorer, StandardisedMean):
        for part in scorer.parts:
            yield from walk(part)
