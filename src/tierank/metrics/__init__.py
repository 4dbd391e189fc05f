"""Metrics, the rules that fix what they mean, and the judge that applies both to scores."""

from tierank.metrics.formulas import METRICS as METRICS
from tierank.metrics.judge import Judge as Judge
from tierank.metrics.judge import check_defined as check_defined
from tierank.metrics.judge import ordered_mean as ordered_mean
from tierank.metrics.rules import RULES as RULES
from tierank.metrics.rules import Metric as Metric
from tierank.metrics.rules import Rule as Rule
from tierank.metrics.rules import as_rule as as_rule
from tierank.metrics.rules import default_metrics as default_metrics
from tierank.metrics.rules import metric_name as metric_name
from tierank.metrics.rules import parse_metric as parse_metric
