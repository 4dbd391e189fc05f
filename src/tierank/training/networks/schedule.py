"""The number of epochs, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# The fewest epochs under a step budget, and the share of all steps in which a cosine schedule warms up.
_LEAST_EPOCHS, _WARM_UP = 8, 0.05


def count_epochs(settings: Mapping[str, Any], steps_per_epoch: int) -> int:
    """The maximum number of epochs: min(max_epochs, max(8, step_budget / steps per epoch, rounded up)).

    >>> [count_epochs({"max_epochs": 40, "step_budget": 1500}, steps) for steps in (10, 60, 10_000)]
    [40, 25, 8]
    """
    limit: int = settings["max_epochs"]
    budget: int | None = settings["step_budget"]
    if budget is None or not steps_per_epoch:
        return limit
    return min(limit, max(_LEAST_EPOCHS, math.ceil(budget / steps_per_epoch)))


def rate_of(settings: Mapping[str, Any], step: int, n_steps: int) -> float:
    """The learning rate of a step, counted from 0 over all epochs."""
    rate: float = settings["learning_rate"]
    return rate * cosine_share(step, n_steps) if settings["schedule"] == "cosine" else rate


def cosine_share(step: int, n_steps: int) -> float:
    """The share of the learning rate at step s = 0, 1, ... of S. It rises over the first w = max(1, 0.05 S) steps:

        (s + 1) / w  for s < w, then  (1 + cos(pi (s - w) / (S - w))) / 2

    with w rounded to an integer.

    >>> [round(cosine_share(step, 40), 3) for step in (0, 1, 2, 21, 39)]
    [0.5, 1.0, 1.0, 0.5, 0.002]
    """
    warm_up = max(1, round(_WARM_UP * n_steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return (1 + math.cos(math.pi * (step - warm_up) / (n_steps - warm_up))) / 2
