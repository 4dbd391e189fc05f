"""Target: whether it can represent a model, how the model is written, and how the export scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.errors import ParameterError
from tierank.export.portable import Model, Network, QueryCopies, StandardisedMean, Trees, walk
from tierank.transforms import TRANSFORMS, Piecewise
from tierank.types import Floats

# Up to this many trees, the rounding error of float32 sums, about 2^-24 of the sum times the square root of the number
# of trees, is far below any difference that matters.
_FEW_TREES = 500
# Numbers that float32 represents with full precision, without underflow or overflow in intermediate results.
LEAST, MOST = 2.0**-100, 2.0**100

# Maps features of grouped documents and query offsets to one score per document.
Executor = Callable[[NDArray[np.float32], NDArray[np.int64]], Floats]


def _no_constant(model: Model) -> float:
    return 0.0


@dataclass(frozen=True)
class Target:
    """A format that models are exported to."""

    name: str
    # Raises an error that says why and what to change if the target cannot represent the model exactly.
    check: Callable[[Model], None]
    # Writes the model to a new path: a file, or a folder.
    write: Callable[[Model, Path], None]
    # Returns a function that scores as the target does, from the written files.
    open: Callable[[Path], Executor]
    # The constant that the target adds to the scores of tierank.
    constant: Callable[[Model], float] = _no_constant
    # Whether the target clips values to the limits of a transform.
    keeps_limits: bool = True
    # The names of the features in the written files, which have to be those of the model; None if only places count.
    names: Callable[[Path], Sequence[str]] | None = None


def refuse(target: str, why: str, instead: str) -> ParameterError:
    """The error for a model that a target cannot represent."""
    return ParameterError(f"{target}: {why}; {instead}")


def check_pointwise(target: str, model: Model, transforms: str) -> None:
    """Raise an error if scores depend on the other documents of the query; ``transforms`` are suggested instead."""
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
                "it scores one document at a time, and these trees use features relative to the list of the query",
                "train with query_features=False",
            )
        if isinstance(part, Network) and part.per_query:
            raise refuse(
                target,
                "it scores one document at a time, and this transform scales by the list of the query",
                f"train with feature_transform={transforms}",
            )


def check_weights(target: str, model: Model) -> None:
    """Raise an error if the weights of a linear model are too small or too large for scores in float32."""
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
    """Raise an error for a transform that is not tierank's, which targets cannot write."""
    for part in walk(model.scorer):
        for transform, _ in part.blocks if isinstance(part, Network) else ():
            if type(transform) not in (*TRANSFORMS.values(), Piecewise):
                raise refuse(
                    target,
                    f"it supports the transforms of TRANSFORMS, and this model uses {type(transform).__name__}",
                    "train with feature_transform='log1p', for example",
                )


def check_missing_is_zero(target: str, trees: Trees) -> None:
    """Raise an error if a missing value goes another way than 0, or 0 another way than by comparison."""
    by_number = trees.threshold >= 0
    if (trees.nan_left != by_number).any() or (trees.zero_left != by_number).any():
        raise refuse(
            target,
            "it treats a missing value as 0, and the trees distinguish the two",
            "train with use_missing=False, which treats a missing value as 0 too",
        )


def check_thresholds(target: str, model: Model) -> None:
    """Raise an error if trees have splits by category, or networks have embeddings."""
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
    """The trees of a model that consists of trees only."""
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
    """The name, with underscores appended if a feature has that name."""
    while name in names:
        name += "_"
    return name


def by_query(score: Callable[[NDArray[np.float32]], Any]) -> Executor:
    """An executor that scores one query at a time."""

    def run(features: NDArray[np.float32], offsets: NDArray[np.int64]) -> Floats:
        lists = np.split(features, offsets[1:-1])
        return np.concatenate([np.asarray(score(one), np.float64) for one in lists])

    return run


def check_size(target: str, trees: Trees) -> None:
    """Raise an error if the scores are too small or too large for the precision of float32."""
    largest = _largest_sum(trees)
    if largest and not LEAST <= largest <= MOST:
        raise refuse(
            target,
            f"it holds scores in single precision, and those of these trees go up to {largest:.0e}",
            f"train with a {'higher' if largest < 1 else 'lower'} learning_rate",
        )


def for_float32_sums(trees: Trees) -> tuple[Trees, ...]:
    """Trees for an engine that adds up leaves in float32, one after the other.

    Each addition rounds, and with many trees the errors add up. Therefore large models are written twice: first with
    small leaves, then with large leaves, whose sums are the original leaves. The large leaves are multiples of a step
    that is so wide that float32 adds any of them without rounding. The small leaves, at most half a step, come first,
    while the sum is small. Only the sum of the small leaves is then rounded, each time the total grows to another power
    of two: in total by at most 2^-23 of the largest partial sum, whatever the number of trees.

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
    """An upper bound of the absolute value of all partial sums of leaves."""
    return float(np.maximum(*np.abs(trees.leaf_ranges())).sum())
