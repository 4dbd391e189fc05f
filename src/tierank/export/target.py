"""What a target gives: whether it can hold a model, how the model is written, and how what was written scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.errors import ParameterError
from tierank.export.portable import Model, Network, QueryCopies, StandardisedMean, Trees, walk
from tierank.transforms import TRANSFORMS, Piecewise
from tierank.types import Floats

# Up to so many trees, what float32 loses when they are added up one after the other is far below a difference that
# counts: about 2^-24 of the sum times the root of their number.
_FEW_TREES = 500
# Numbers that float32 holds with all its digits, and neither 0 nor infinite on the way to them.
LEAST, MOST = 2.0**-100, 2.0**100

# Features of grouped documents and the offsets of the queries in, one score per document out.
Executor = Callable[[NDArray[np.float32], NDArray[np.int64]], Floats]


def _no_constant(model: Model) -> float:
    return 0.0


@dataclass(frozen=True)
class Target:
    """A form that models are exported to."""

    name: str
    # An error that says why and what to change, where the target cannot hold the model exactly.
    check: Callable[[Model], None]
    # Writes the model to a new path: a file, or a folder.
    write: Callable[[Model, Path], None]
    # What scores as the target does, from the files alone.
    open: Callable[[Path], Executor]
    # What the scores of the target have more than tierank's, on every document.
    constant: Callable[[Model], float] = _no_constant
    # Whether the target keeps values within the limits of a transform.
    keeps_limits: bool = True


def refuse(target: str, why: str, instead: str) -> ParameterError:
    """The error for a model that a target cannot hold."""
    return ParameterError(f"{target}: {why}; {instead}")


def check_pointwise(target: str, model: Model, transforms: str) -> None:
    """An error where the score of a document depends on the others of its query; ``transforms`` are those to use."""
    for part in walk(model.scorer):
        if isinstance(part, StandardisedMean):
            raise refuse(
                target,
                "it scores one document at a time, and the members of this model are standardised over the list of the"
                " query",
                "train with n_seeds=1, or one ranker in place of a blend",
            )
        if isinstance(part, QueryCopies):
            raise refuse(
                target,
                "it scores one document at a time, and these trees see where a value stands in the list of the query",
                "train with query_features=False",
            )
        if isinstance(part, Network) and part.per_query:
            raise refuse(
                target,
                "it scores one document at a time, and this transform scales by the list of the query",
                f"train with feature_transform={transforms}",
            )


def check_weights(target: str, model: Model) -> None:
    """An error where the weights of a linear model are too small or too large for float32 to hold the scores."""
    for part in walk(model.scorer):
        if isinstance(part, Network) and part.layers[-1].is_double:
            largest = float(np.abs(part.layers[-1].weights).max())
            if largest and not LEAST <= largest <= MOST:
                raise refuse(
                    target,
                    f"it holds scores in single precision, and the weights of this model go up to {largest:.0e}",
                    "train with feature_transform='standard', gain='linear' and a ridge between 1e-4 and 10",
                )


def check_transforms(target: str, model: Model) -> None:
    """An error where features go through a transform that is not tierank's, which targets cannot write."""
    for part in walk(model.scorer):
        for transform, _ in part.blocks if isinstance(part, Network) else ():
            if type(transform) not in (*TRANSFORMS.values(), Piecewise):
                raise refuse(
                    target,
                    f"it holds the transforms of TRANSFORMS, and this model has its own, {type(transform).__name__}",
                    "train with feature_transform='log1p', for example",
                )


def check_missing_is_zero(target: str, trees: Trees) -> None:
    """An error where a missing value goes another way than 0 would, or 0 another way than its number says."""
    by_number = trees.threshold >= 0
    if (trees.nan_left != by_number).any() or (trees.zero_left != by_number).any():
        raise refuse(
            target,
            "it treats a missing value as 0, and the trees distinguish the two",
            "train with use_missing=False, which treats a missing value as 0 too",
        )


def check_thresholds(target: str, model: Model) -> None:
    """An error where trees have splits by category, or networks embeddings."""
    for part in walk(model.scorer):
        if isinstance(part, Network) and part.embeddings:
            raise refuse(
                target,
                "it compares numbers, and this network has embeddings of categories",
                "export to c or onnx, or train with category_encoding='indicators'",
            )
        trees = part.trees if isinstance(part, QueryCopies) else part
        if isinstance(trees, Trees) and trees.is_category.any():
            raise refuse(
                target,
                "it compares numbers, and these trees have splits by category",
                "export to c or onnx, or train on means: columns=Columns(means=[...])",
            )


def only_trees(target: str, model: Model) -> Trees:
    """The trees of a model that is nothing else."""
    if isinstance(model.scorer, Trees):
        return model.scorer
    networks = [part for part in walk(model.scorer) if isinstance(part, Network)]
    if networks and all(network.layers[-1].is_double for network in networks):
        raise refuse(
            target,
            "it refuses scores below 0, and those of a linear model have no lower bound",
            "train umart or lambdamart for it",
        )
    if networks:
        raise refuse(target, "it can hold only trees, and this model has networks", "train umart or lambdamart for it")
    check_pointwise(target, model, "")
    raise refuse(target, "it holds one sum of trees, and this model adds up several", "train without base")


def unused_name(name: str, names: tuple[str, ...]) -> str:
    """The name, with underscores where there is a feature of that name."""
    while name in names:
        name += "_"
    return name


def by_query(score: Callable[[NDArray[np.float32]], Any]) -> Executor:
    """An executor that hands over one query at a time."""

    def run(features: NDArray[np.float32], offsets: NDArray[np.int64]) -> Floats:
        lists = np.split(features, offsets[1:-1])
        return np.concatenate([np.asarray(score(one), np.float64) for one in lists])

    return run


def check_size(target: str, trees: Trees) -> None:
    """An error where the scores are too small or too large for float32 to hold their digits."""
    largest = _largest_sum(trees)
    if largest and not LEAST <= largest <= MOST:
        raise refuse(
            target,
            f"it holds scores in single precision, and those of these trees go up to {largest:.0e}",
            f"train with a {'higher' if largest < 1 else 'lower'} learning_rate",
        )


def for_float32_sums(trees: Trees) -> tuple[Trees, ...]:
    """Trees for an engine that adds up leaves in float32, one after the other.

    Each addition rounds, and with many trees that would add up. So many trees are written twice: first with small
    leaves, then with large ones, which together are the leaves. The large ones are multiples of a step that is so wide
    that float32 adds up any of them without rounding. The small ones, at most half a step, come first, while the sum is
    small. What is rounded is then one number, the sum of the small ones: again each time that the sum grows to another
    power of two, which comes to 2^-23 of the largest sum on the way at most, whatever the number of trees.

    >>> from tierank.export.portable import TreeBuilder
    >>> builder = TreeBuilder()
    >>> for _ in range(1000):
    ...     builder.add((0, 0.5, 0.1, 0.2, 0, True), lambda node: node)
    >>> small, large = for_float32_sums(builder.build())
    >>> (large.values[:2] * 2**15).tolist(), (small.values + large.values)[:2].tolist()
    ([3277.0, 6554.0], [0.1, 0.2])
    """
    largest = _largest_sum(trees)
    if len(trees.roots) <= _FEW_TREES or not largest:
        return (trees,)
    step = 2.0 ** (np.ceil(np.log2(largest)) - 23)
    coarse = np.rint(trees.values / step) * step
    return replace(trees, values=trees.values - coarse), replace(trees, values=coarse)


def _largest_sum(trees: Trees) -> float:
    """What no sum of leaves, one of each tree or of some, is above in size."""
    return float(np.maximum(*np.abs(trees.leaf_ranges())).sum())
