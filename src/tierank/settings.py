"""Settings, checked before the work starts: each returns the value, or says what was expected and what came."""

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np

from tierank.errors import ParameterError


def as_whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """A whole number that is not too small, nor too large where there is a limit.

    >>> as_whole("n_trees", 0)
    Traceback (most recent call last):
    tierank.errors.ParameterError: n_trees: expected a whole number from 1 on, got 0
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ParameterError(f"{name}: expected a whole number from {least} on, got {value!r}")
    if most is not None and int(value) > most:
        raise ParameterError(f"{name}: expected a whole number up to {most}, got {value!r}")
    return int(value)


def as_limit(name: str, value: Any) -> int | None:
    """A whole number from 1 on, or None for no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise ParameterError(f"{name}: expected a whole number from 1 on, or None for no limit, got {value!r}")
    return int(value)


def as_number(name: str, value: Any, least: float, most: float) -> float:
    """A number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) <= most:
        raise ParameterError(f"{name}: expected a number from {least:g} to {most:g}, got {value!r}")
    return float(value)


def as_least(name: str, value: Any, least: float = 0.0) -> float:
    """A finite number that is not too small.

    >>> as_least("lambda_l2", -1)
    Traceback (most recent call last):
    tierank.errors.ParameterError: lambda_l2: expected a finite number from 0 on, got -1
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) < float("inf"):
        raise ParameterError(f"{name}: expected a finite number from {least:g} on, got {value!r}")
    return float(value)


def as_share(name: str, value: Any) -> float:
    """A part of a whole: a number above 0, up to 1."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) <= 1:
        raise ParameterError(f"{name}: expected a number above 0, up to 1, got {value!r}")
    return float(value)


def as_positive(name: str, value: Any) -> float:
    """A finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
        raise ParameterError(f"{name}: expected a finite number above 0, got {value!r}")
    return float(value)


def as_flag(name: str, value: Any) -> bool:
    """True or False: a text such as "False" would count as True.

    >>> as_flag("rotate", "no")
    Traceback (most recent call last):
    tierank.errors.ParameterError: rotate: expected True or False, got 'no'
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ParameterError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def as_choice(name: str, value: Any, known: Iterable[str]) -> str:
    """One of a few words."""
    words = list(known)
    if not isinstance(value, str) or value not in words:
        raise ParameterError.unknown(name, value, words)
    return str(value)
