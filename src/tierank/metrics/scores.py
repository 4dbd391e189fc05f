"""Callers' scores -> checked float64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.checks import as_array, as_numbers, shape_of
from tierank.errors import DataError
from tierank.types import Floats


def as_scores(scores: ArrayLike, n: int) -> Floats:
    """The scores of n documents as float64."""
    given = as_array(scores)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.shape != (n,):
        fix = "pass ranker.predict(data)" if hasattr(scores, "predict") else None
        got = shape_of(scores, given)
        raise DataError(argument="scores", expected=f"{n}, one per row of the data", got=got, fix=fix)
    numbers = np.ascontiguousarray(as_numbers(given, "scores"), np.float64)
    _check_distinct(given, numbers)
    return numbers


# float64 holds all integers up to here.
_EXACT_TO = 2**53


def _check_distinct(given: NDArray[Any], numbers: Floats) -> None:
    """Refuse scores that differ but are equal as float64: they would be judged as ties.

    >>> as_scores([2**53, 2**53 + 1], 2)
    Traceback (most recent call last):
    tierank.errors.DataError: scores: expected numbers that differ as float64 where they differ, got 9007199254740992
    and 9007199254740993; give their ranks, such as scipy.stats.rankdata(scores)
    """
    is_exact = given.dtype.kind in "bf" and given.dtype != np.longdouble
    if is_exact or (given.dtype.kind in "iu" and not (np.abs(numbers) >= _EXACT_TO).any()):
        return
    known = np.flatnonzero(~np.isnan(numbers))
    order = known[np.argsort(numbers[known], kind="stable")]
    exact = given[order].tolist()
    for (low, high), (below, above) in zip(pairwise(exact), pairwise(numbers[order]), strict=True):
        if below == above and low != high:
            raise DataError(
                argument="scores",
                expected="numbers that differ as float64 where they differ",
                got=f"{low!s:.60} and {high!s:.60}",
                fix="give their ranks, such as scipy.stats.rankdata(scores)",
            )
