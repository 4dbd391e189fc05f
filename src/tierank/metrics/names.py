"""How callers name metrics: "ndcg@10", or a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from tierank.errors import ParameterError
from tierank.metrics.formulas import METRICS, WITHOUT_CUTOFF
from tierank.metrics.rules import Rule, as_rule
from tierank.types import Floats

# A name such as "ndcg@10", or a caller's function of the ratings and scores of one query.
Metric = str | Callable[[Floats, Floats], float]


def default_metrics(rule: str | Rule) -> tuple[str, ...]:
    """The default metrics: NDCG at 1, 3, 5 and 10, and ERR if the rule has it."""
    ndcgs = ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")
    return ndcgs if as_rule(rule).err_max is None else (*ndcgs, "err@10")


def parse_metric(text: str) -> tuple[str, int | None]:
    """The name and the cutoff of a metric; no cutoff means the whole list.

    >>> parse_metric("ndcg@10"), parse_metric("map")
    (('ndcg', 10), ('map', None))
    """
    name, at, cutoff = str(text).partition("@")
    if name not in METRICS:
        if name.lower() in METRICS:
            raise ParameterError(f"unknown metric {text!r}: did you mean {text.lower()!r}?")
        short = re.fullmatch(r"(\D+?)[ _-]?(\d+)", name.lower())
        if short is not None and short[1] in METRICS:
            raise ParameterError(f"unknown metric {text!r}: did you mean '{short[1]}@{short[2]}'?")
        raise ParameterError.unknown("metric", name, METRICS)
    if not at:
        return name, None
    if name in WITHOUT_CUTOFF:
        raise ParameterError(f"metric {text!r}: expected {name!r}, which has no cutoff")
    if not re.fullmatch("[0-9]{1,15}", cutoff) or int(cutoff) == 0:
        raise ParameterError(
            f"metric {text!r}: expected a cutoff of 1 or more after '@', got {cutoff!r};"
            f" write '{name}@10', or '{name}' for the whole list"
        )
    return name, int(cutoff)


def metric_name(metric: Metric) -> str:
    """The name of a metric in tables: of a function, its ``__name__``.

    >>> metric_name("ndcg@10")
    'ndcg@10'
    """
    if isinstance(metric, str):
        return metric
    name = getattr(metric, "__name__", None) or type(metric).__name__
    if not callable(metric) or not name.isidentifier():
        raise ParameterError(
            argument="metrics",
            expected="names such as 'ndcg@10', or functions (ratings, scores) -> number that have a __name__",
            got=repr(metric),
        )
    return name


def as_metrics(metrics: Metric | Iterable[Metric] | None, rule: Rule) -> dict[str, Metric]:
    """The metrics by name, each once."""
    if metrics is None:
        return {name: name for name in default_metrics(rule)}
    asked: list[Any] = [metrics]  # one that is neither a name nor a function is refused by what follows
    if not isinstance(metrics, str) and not callable(metrics) and isinstance(metrics, Iterable):
        asked = list(metrics)
    if not asked:
        raise ParameterError("metrics: expected at least one, such as 'ndcg@10', got none")
    named = {metric_name(metric): metric for metric in asked}
    if len(named) < len(set(asked)):
        raise ParameterError(argument="metrics", expected="functions with different names", got=", ".join(named))
    return named
