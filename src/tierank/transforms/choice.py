"""TRANSFORMS: the transforms by name, and the setting ``feature_transform``."""

from __future__ import annotations

from typing import Any

from sklearn.base import clone

from tierank.errors import ParameterError
from tierank.settings import as_choice
from tierank.transforms.base import Transform
from tierank.transforms.quantiles import Quantile, QueryRank
from tierank.transforms.rescaling import Log1p, QueryLog1p, QueryMinMax, Standard, Unchanged
from tierank.transforms.side_by_side import SideBySide

TRANSFORMS: dict[str, type[Transform]] = {
    "query_minmax": QueryMinMax,
    "query_log1p": QueryLog1p,
    "query_rank": QueryRank,
    "standard": Standard,
    "log1p": Log1p,
    "quantile": Quantile,
    "none": Unchanged,
}

# What ``feature_transform`` may be.
EXPECTED = "a key of TRANSFORMS, a Transform, or a list of these"


def as_transform(value: Any) -> Any:
    """One value of the setting ``feature_transform``: a name, or a transform."""
    if isinstance(value, type) and issubclass(value, Transform):
        return value()
    return value if isinstance(value, Transform) else as_choice("feature_transform", value, TRANSFORMS)


def as_transforms(value: Any) -> tuple[Any, ...]:
    """The setting ``feature_transform`` of one or several transforms, as a tuple."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not values:
        raise ParameterError(argument="feature_transform", expected=EXPECTED, got=repr(value))
    transforms = tuple(as_transform(one) for one in values)
    names = [one for one in transforms if isinstance(one, str)]
    if len(set(names)) < len(names):
        raise ParameterError(argument="feature_transform", expected="each transform once", got=repr(value))
    return transforms


def make_transform(transform: Any) -> Transform:
    """An unfitted transform: by its name, a copy of the given one, or several side by side."""
    if isinstance(transform, tuple):
        return SideBySide([make_transform(one) for one in transform])
    fresh: Transform = TRANSFORMS[transform]() if isinstance(transform, str) else clone(transform)
    return fresh
