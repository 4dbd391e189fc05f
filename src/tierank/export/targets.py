"""TARGETS: the formats of other engines, what they cannot represent, and writing a model in one of them.

A limit says why an engine cannot represent a part of a model, and what to do instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tierank import __version__
from tierank.arrays import Floats
from tierank.errors import ParameterError
from tierank.export.neutral import Model, Network, QueryCopies, Scorer, StandardisedMean, trees_in, walk
from tierank.extras import LoadedOnUse
from tierank.files import FolderKind, as_path, make_folder, replacing
from tierank.transforms import TRANSFORMS, Piecewise

# Numbers that float32 represents with full precision, without underflow or overflow in intermediate results.
LEAST, MOST = 2.0**-100, 2.0**100

# Maps features of grouped documents and query offsets to one score per document.
Executor = Callable[[NDArray[np.float32], NDArray[np.int64]], Floats]
# Why a target cannot represent a part of a model, and what to do instead; None if it can.
Reason = tuple[str, str] | None
Limit = Callable[[Scorer], Reason]


def _no_constant(model: Model) -> float:  # a function that can be pickled
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


# Each module is loaded when its target is used.
TARGETS: LoadedOnUse[Target] = LoadedOnUse(
    {
        "onnx": "tierank.export.onnx:ONNX",
        "elasticsearch": "tierank.export.elasticsearch:ELASTICSEARCH",
        "opensearch": "tierank.export.elasticsearch:OPENSEARCH",
        "solr": "tierank.export.solr:SOLR",
        "vespa": "tierank.export.vespa:VESPA",
        "c": "tierank.export.c:C",
    }
)

# Hidden, as the folder is handed to the engine unchanged.
_EXPORT = FolderKind("a folder of an earlier export", ".tierank.json", ("tierank", "export"))


def as_target(target: str | Target) -> Target:
    """The target of this name; a caller's own target unchanged."""
    if isinstance(target, Target):
        return target
    if str(target).lower() in ("lightgbm", "lgb", "lgbm"):
        raise ParameterError(
            argument="target",
            expected=f"one of {', '.join(TARGETS)}",
            got=repr(target),
            fix="ranker.booster_.save_model(path) writes trees as LightGBM's text",
        )
    if not isinstance(target, str) or target not in TARGETS:
        raise ParameterError.unknown("target", target, TARGETS)
    return TARGETS[target]


def write_model(model: Model, path: str | os.PathLike[str], to: str | Target) -> None:
    """Write a model in the format of a target, atomically."""
    target, place = as_target(to), as_path(path)
    target.check(model)
    make_folder(place.parent)
    with replacing(place, _EXPORT) as fresh:
        target.write(model, fresh)
        if fresh.is_dir():
            (fresh / _EXPORT.file).write_text(
                json.dumps({"tierank": __version__, "export": target.name}), encoding="utf-8"
            )


def check_export_place(place: Path) -> None:
    """Raise ``DataError`` if an export may not be written to this path."""
    if place.is_dir():
        _EXPORT.check(place)


def refuse(target: str, why: str, instead: str) -> ParameterError:
    """The error for a model that a target cannot represent."""
    return ParameterError(why, where=target, fix=instead)


def check_parts(target: str, model: Model, *limits: Limit) -> None:
    """Raise ``ParameterError`` if a part of the model is beyond a limit of the target; the first one counts."""
    for limit in limits:
        for part in walk(model.scorer):
            reason = limit(part)
            if reason is not None:
                raise refuse(target, *reason)


def own_transforms(part: Scorer) -> Reason:
    """Transforms that are not tierank's, which no target can write."""
    for transform, _ in part.blocks if isinstance(part, Network) else ():
        if type(transform) not in (*TRANSFORMS.values(), Piecewise):
            why = f"it supports the transforms of TRANSFORMS, and this model uses {type(transform).__name__}"
            return why, "train with `feature_transform='log1p'`, for example"
    return None


def large_numbers(part: Scorer) -> Reason:
    """Scores of trees, or weights of a linear model, that are too small or too large for the precision of float32."""
    for trees in trees_in(part):
        largest = trees.largest_sum()
        if largest and not LEAST <= largest <= MOST:
            why = f"it holds scores in single precision, and those of these trees go up to {largest:.0e}"
            return why, f"train with a {'higher' if largest < 1 else 'lower'} learning_rate"
    if isinstance(part, Network) and part.layers[-1].is_double:
        largest = float(np.abs(part.layers[-1].weights).max())
        if largest and not LEAST <= largest <= MOST:
            why = f"it holds scores in single precision, and the weights of this model go up to {largest:.0e}"
            return why, "train with `feature_transform='standard'`, gain='linear' and a ridge between 1e-4 and 10"
    return None


def lists(transforms: str) -> Limit:
    """Scores that depend on the other documents of the query; ``transforms`` are suggested instead."""

    def limit(part: Scorer) -> Reason:
        if isinstance(part, StandardisedMean):
            what = "the members of this model are standardised over the list of the query"
            fix = "train with `n_seeds=1`, or one ranker in place of a blend"
        elif isinstance(part, QueryCopies):
            what = "these trees use features relative to the list of the query"
            fix = "train with `query_features=False`"
        elif isinstance(part, Network) and part.per_query:
            what = "this transform scales by the list of the query"
            fix = f"train with `feature_transform={transforms}`"
        else:
            return None
        return f"it scores one document at a time, and {what}", fix

    return limit


def categories(part: Scorer) -> Reason:
    """Splits by category, and embeddings of categories."""
    if isinstance(part, Network) and part.embeddings:
        what, instead = "this network has embeddings of categories", "train with `category_encoding='indicators'`"
    elif any(trees.is_category.any() for trees in trees_in(part)):
        what, instead = "these trees have splits by category", "train on `means` of their ratings"
    else:
        return None
    return f"it compares numbers, and {what}", f"export to c or onnx, or {instead}"


def missing_values(part: Scorer) -> Reason:
    """Splits that send a missing value another way than 0, or 0 another way than by comparison."""
    for trees in trees_in(part):
        by_number = trees.threshold >= 0
        if (trees.nan_left != by_number).any() or (trees.zero_left != by_number).any():
            why = "it treats a missing value as 0, and the trees distinguish the two"
            return why, "train with `use_missing=False`, which treats a missing value as 0 too"
    return None


def text_of(file: str) -> str:
    """A text that comes with tierank: what a target writes, without the model."""
    return resources.files("tierank.export").joinpath(file).read_text(encoding="utf-8")
