"""Metrics, the rules that fix what they mean, and the judge that applies both to scores."""

from tierank.metrics.formulas import METRICS
from tierank.metrics.judge import Judge, check_defined, ordered_mean
from tierank.metrics.names import Metric, default_metrics, metric_name, parse_metric
from tierank.metrics.rules import RULES, WHY_LEFT_OUT, Rule, as_rule
from tierank.metrics.scores import as_scores

__all__ = [
    "METRICS",
    "RULES",
    "WHY_LEFT_OUT",
    "Judge",
    "Metric",
    "Rule",
    "as_rule",
    "as_scores",
    "check_defined",
    "default_metrics",
    "metric_name",
    "ordered_mean",
    "parse_metric",
]
