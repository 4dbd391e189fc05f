"""Sums over segments of unequal length, and pairs in blocks: the building blocks of ragged losses."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

# Pairs that are processed at a time: some megabytes for each array of them.
_PAIRS = 1 << 18
# From here on softplus is linear: e^-z is below the last digit of z, and e^z still fits into float32.
_LINEAR_FROM = 80.0


def exact(values: Tensor) -> Tensor:
    """The values in double precision, if the device supports it.

    The difference of two scores near 1e4 has an error of 1e-3 in single precision, and scores that are far apart cannot
    all be centred.
    """
    return values if values.device.type == "mps" else values.double()


def edges_of(counts: Tensor) -> Tensor:
    """0 and the running sums of counts."""
    return functional.pad(counts.cumsum(0), (1, 0))


def sum_by(values: Tensor, index: Tensor, n: int) -> Tensor:
    """The sum of the values of each index below n."""
    return values.new_zeros(n).scatter_add(0, index, values)


def max_by(values: Tensor, index: Tensor, n: int) -> Tensor:
    """The highest value of each index below n, each of which has one."""
    return values.new_full((n,), -math.inf).scatter_reduce_(0, index, values, "amax")


def log_sum_by(scores: Tensor, index: Tensor, n: int) -> Tensor:
    """The logarithm of the sum of e^f of each index below n, each of which has a score."""
    tops = max_by(scores.detach(), index, n)
    # In place: for long lists, allocating memory takes longer than computing.
    powers = tops.index_select(0, index).neg_().add_(scores).exp_()
    return sum_by(powers, index, n).log().add_(tops)


def log_of_nothing(dtype: torch.dtype) -> float:
    """A number used as ln 0: its exponential is 0, and sums and differences with scores are finite."""
    return torch.finfo(dtype).min / 4


def softplus(values: Tensor) -> Tensor:
    """ln(1 + e^x)"""
    return functional.softplus(values, threshold=_LINEAR_FROM)


def blocks(counts: Tensor) -> Iterator[slice]:
    """Spans of rows whose pairs fit into one step; a row with more pairs is its own span."""
    ends = counts.cumsum(0).cpu().numpy()
    start, done = 0, 0
    while start < len(ends):
        stop = max(start + 1, int(np.searchsorted(ends, done + _PAIRS, side="right")))
        yield slice(start, stop)
        start, done = stop, int(ends[stop - 1])


def partners(begins: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs of each row i with ``begins[i]``, ``begins[i] + 1``, ...: ``counts[i]`` of them."""
    row = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    shifts = begins - counts.cumsum(0) + counts
    return row, torch.arange(len(row), device=counts.device) + shifts.index_select(0, row)
