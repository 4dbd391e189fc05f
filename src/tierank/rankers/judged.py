"""Settings that our rankers share: how the best round is chosen, and ``base``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tierank.errors import ParameterError
from tierank.export import Target, as_target
from tierank.metrics import Metric, Rule, as_rule, metric_name, parse_metric
from tierank.rankers.base import Ranker
from tierank.rankers.training_data import UNJUDGED
from tierank.settings import Checked, Choice, Integer, Number, Optional, setting

# Columns of history_ beside the metrics.
_COLUMNS = ("family", "part", "member", "learner", "epoch", "loss", "ridge", "kept")


def _as_metrics(value: Any) -> tuple[Any, ...]:
    """The setting ``select_by``: metrics, the most important first."""
    metrics = value.replace(" ", "").split(",") if isinstance(value, str) else (value,) if callable(value) else value
    is_list = isinstance(metrics, (list, tuple)) and len(metrics) > 0
    if not is_list or not all(isinstance(one, str) or callable(one) for one in metrics):
        raise ParameterError(
            argument="select_by", expected="a metric or a list of metrics, such as ['ndcg@10']", got=repr(value)
        )
    for metric in metrics:
        if isinstance(metric, str):
            parse_metric(metric)
        if metric_name(metric) in _COLUMNS:
            raise ParameterError(
                argument="select_by",
                expected="functions whose names are not columns of history_",
                got=metric_name(metric),
                fix="give it another name",
            )
    return tuple(metrics)


def _as_rule(value: Any) -> str | Rule:
    as_rule(value)
    rule: str | Rule = value
    return rule


def _as_target(value: Any) -> Any:
    as_target(value)
    return value


def as_base(value: Any) -> Ranker:
    """The setting ``base``: a ranker."""
    if not isinstance(value, Ranker):
        raise ParameterError(argument="base", expected="a ranker, such as UMart()", got=repr(value))
    return value


# The largest seed that LightGBM accepts.
LARGEST_SEED = 2**31 - 1
BASE = Optional(Checked("a ranker, such as UMart()", as_base), "no base")
_METRICS = Checked("a metric or a list of metrics", _as_metrics)
_RULE = Checked("a rule", _as_rule)
_TARGET = Optional(Checked("an export target", _as_target))


@dataclass(kw_only=True, eq=False, repr=False)
class SelectingRanker(Ranker):
    """A ranker that chooses what it keeps by metrics on validation data."""

    select_by: Metric | Sequence[Metric] = setting(
        ("ndcg@10",),
        _METRICS,
        "metrics that choose the best round on the validation data, names or functions (ratings, scores) -> number; the"
        " second decides if the first is equal within 1e-6, and so on",
    )
    rule: str | Rule = setting("tierank", _RULE, "the rule of these metrics, a key of RULES or a Rule")
    unjudged: str = setting(
        "skip",
        Choice(UNJUDGED),
        "documents without a rating (NaN) in training: skip, left out of all pairs and sums, but still a part of the"
        " list that features are scaled by; or zero, taken as rated 0. Validation data are judged as the rule says",
    )
    for_target: str | Target | None = setting(
        None, _TARGET, "an export target the model is meant for: what it cannot represent is refused before training"
    )
    n_jobs: int | None = setting(None, Optional(Integer(-1), "one per core, fewer for small data"), "number of threads")


@dataclass(kw_only=True, eq=False, repr=False)
class JudgedRanker(SelectingRanker):
    """A ranker whose training is judged by metrics on validation data, and draws random numbers."""

    seed: int = setting(0, Integer(0, LARGEST_SEED), "random seed")
    clip: float = setting(
        10.0,
        Number(1),
        "the most that a click counts for, where positions or propensities are given; 10 leaves a page of ten as it is"
        " if examination falls as 1 / position, and keeps rare clicks further down from deciding alone",
    )
