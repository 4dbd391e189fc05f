"""The neutral form of a fitted model: rankers produce it, export targets write it.

    Model
    └── scorer   Trees                 boosted trees, as flat arrays
                 QueryCopies           boosted trees that also see features relative to the query
                 Network               a transform and dense layers
                 Sum                   weighted parts
                 StandardisedMean      mean of parts that are standardised within the query

A ranker returns it by ``to_neutral``; nothing here depends on rankers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.data.columns import ColumnTypes
from tierank.transforms import SideBySide, Transform

# What counts as missing in a split: nothing (NaN counts as 0), 0 and NaN, or NaN.
NONE, ZERO, NAN = 0, 1, 2
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

    What ``Booster.predict`` does with a value x in a split at t, determined by experiments with trees of one split
    (``tests/test_export.py`` repeats them with the installed version):

    1. A float32 x becomes a double, which changes nothing.
    2. A number with |x| <= ``NEAR_ZERO`` is 0, so -0.0, denormals and the numbers 1e-35 and -1e-35 of float32 are.
    3. NaN goes the default way where the split takes NaN for missing. In all other splits NaN is 0.
    4. 0 goes the default way where the split takes 0 for missing.
    5. Any other x goes left if x <= t, in double precision.
    6. A split by category looks its value up in a set.

    By 2, all numbers from -1e-35 to 1e-35 go left if 0 <= t, otherwise right. So a threshold among them, where LightGBM
    often splits, becomes 1e-35, or the float32 number below -1e-35. By 5, any other is rounded down to float32.

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
        return build_trees([(feature, threshold, *values, missing, default_left)], lambda node: node)

    @classmethod
    def constant(cls, value: float) -> Trees:
        """The same score for every document: one leaf."""
        return build_trees([value], lambda node: node)

    @property
    def takes_zero(self) -> NDArray[np.bool_]:
        """Which splits take 0 for missing."""
        return np.asarray(self.missing == ZERO)

    @property
    def nan_left(self) -> NDArray[np.bool_]:
        """Which way a NaN goes in each split."""
        return np.where(self.missing == NONE, self.threshold >= 0, self.default_left) & ~self.is_category

    @property
    def zero_left(self) -> NDArray[np.bool_]:
        """Which way a 0 goes in each split."""
        return np.where(self.takes_zero, self.default_left, self.threshold >= 0)

    def leaf_ranges(self) -> tuple[Floats, Floats]:
        """The lowest and the highest leaf of each tree."""
        low, high = np.full(len(self.roots), np.inf), np.full(len(self.roots), -np.inf)
        tree = self.numbered()[2]
        np.minimum.at(low, tree, self.values)
        np.maximum.at(high, tree, self.values)
        return low, high

    def largest_sum(self) -> float:
        """An upper bound of the absolute value of all partial sums of leaves."""
        return float(np.maximum(*np.abs(self.leaf_ranges())).sum())

    def predict(self, features: NDArray[np.float32]) -> Floats:
        """The sum of the trees in double precision, in the order of the trees."""
        return np.asarray(sum(self.leaf_values(features, self._goes_left)), np.float64)

    def numbered(self) -> tuple[NDArray[np.int64], ...]:
        """For splits and for leaves: the tree of each, and its number in the tree. The root has number 0."""
        splits, leaves = ([(0, 0)] * len(content) for content in (self.feature, self.values))
        left, right = self.left.tolist(), self.right.tolist()
        for tree, root in enumerate(self.roots.tolist()):
            waiting, number = [root], 0
            while waiting:
                node = waiting.pop()
                if node >= 0:
                    splits[node] = tree, number
                    waiting += [right[node], left[node]]
                else:
                    leaves[~node] = tree, number
                number += 1
        return *np.array(splits, np.int64).reshape(-1, 2).T, *np.array(leaves, np.int64).T

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
        is_nan, kind = np.isnan(values), self.missing[splits]
        is_missing = (is_nan & (kind != NONE)) | ((np.abs(values) <= NEAR_ZERO) & (kind == ZERO))
        by_number = np.where(is_nan, np.float32(0), values) <= self.threshold[splits]
        left = np.where(is_missing, self.default_left[splits], by_number)
        if self.category is None or self.members is None:
            return left
        category = self.category[splits]
        is_known = (values > -1) & (values < self.members.shape[1])
        codes = np.where(is_known, values, 0).astype(np.int64)
        return np.where(category >= 0, is_known & self.members[np.maximum(category, 0), codes], left)


def build_trees(
    nested: Iterable[Any], read: Callable[[Any], Any], rounded: Callable[[Floats], NDArray[np.float32]] = floor_float32
) -> Trees:
    """The trees of nested nodes; ``rounded`` makes thresholds float32.

    ``read`` returns the value of a leaf, or a split: feature, threshold, left, right, missing, default_left.
    """
    roots: list[Any] = []
    splits: list[list[Any]] = []
    values: list[float] = []
    for root in nested:
        waiting: list[tuple[list[Any], int, Any]] = [(roots, len(roots), root)]
        roots.append(root)
        while waiting:  # without recursion, as trees may be deep
            parent, place, node = waiting.pop()
            content = read(node)
            if isinstance(content, float):
                parent[place] = ~len(values)
                values.append(content)
            else:
                parent[place], split = len(splits), list(content)
                splits.append(split)
                waiting += [(split, 3, split[3]), (split, 2, split[2])]
    feature, threshold, left, right, missing, default_left = zip(*splits, strict=True) if splits else [()] * 6
    return Trees(
        np.array(roots, np.int64),
        np.array(feature, np.int64),
        rounded(np.array(threshold, np.float64)),
        np.array(left, np.int64),
        np.array(right, np.int64),
        np.array(missing, np.uint8),
        np.array(default_left, np.bool_),
        np.array(values, np.float64),
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
    kinds: ColumnTypes = field(default_factory=dict)  # kinds of the features that are not plain numbers

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
        """Which features may be missing; of trees, those whose splits say so."""
        seen = np.zeros(self.n_features, bool)
        for part in walk(self.scorer):
            for trees in trees_in(part):  # copies of the features come one after the other
                seen[trees.feature[trees.missing != NONE] % self.n_features] = True
            if isinstance(part, Network):
                seen |= self.has_missing
                seen[[one.feature for one in part.embeddings]] = True
        return seen


def walk(scorer: Scorer) -> Iterator[Scorer]:
    """A scorer and all its parts."""
    yield scorer
    if isinstance(scorer, (Sum, StandardisedMean)):
        for part in scorer.parts:
            yield from walk(part[1] if isinstance(part, tuple) else part)


def trees_in(part: Scorer) -> tuple[Trees, ...]:
    """The trees of one part, if it has any."""
    return (part.trees,) if isinstance(part, QueryCopies) else (part,) if isinstance(part, Trees) else ()
