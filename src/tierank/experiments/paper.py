"""The paper's settings and figures: *Listwise Learning to Rank by Exploring Unique Ratings* (WSDM 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tierank.errors import ParameterError
from tierank.experiments.plan import PAPER_METRICS
from tierank.metrics import RULES, Rule
from tierank.rankers import RANKERS
from tierank.settings import as_choice

# The rows of its tables, NDCG@1, ERR@1, NDCG@3, ERR@3, ... @10. LambdaMart-L is LightGBM's, LambdaMart-R is RankLib's.
_OHSUMED = """
uRank         .602 .449 .511 .547 .481 .573 .455 .586
uBoost        .609 .454 .531 .555 .493 .580 .464 .594
uMart         .530 .395 .452 .497 .431 .523 .411 .538
urBoost       .612 .457 .529 .555 .494 .578 .467 .590
MDPRank       .500 .317 .440 .415 .421 .449 .409 .464
LambdaMart-L  .506 .375 .445 .488 .426 .514 .409 .527
LambdaMart-R  .468 .346 .412 .463 .389 .485 .380 .500
LambdaLoss    .563 .389 .449 .489 .441 .518 .420 .531
p-ListMLE     .469 .311 .410 .430 .398 .453 .396 .472
"""
_MQ2007 = """
uRank         .481 .295 .482 .404 .490 .430 .526 .448
uBoost        .489 .300 .481 .406 .491 .433 .523 .450
uMart         .480 .295 .477 .404 .487 .432 .519 .449
urBoost       .492 .301 .486 .410 .493 .436 .524 .453
MDPRank       .406 .166 .410 .257 .417 .286 .442 .309
LambdaMart-L  .469 .234 .472 .346 .478 .362 .512 .369
LambdaMart-R  .465 .224 .464 .315 .474 .341 .508 .360
LambdaLoss    .406 .192 .412 .274 .419 .296 .448 .313
p-ListMLE     .380 .177 .338 .236 .387 .255 .372 .272
"""
_WEB10K = """
uRank         .458 .387 .441 .501 .443 .526 .458 .542
uBoost        .459 .388 .441 .502 .444 .528 .460 .544
uMart         .481 .407 .468 .525 .474 .550 .495 .565
urBoost       .461 .390 .442 .503 .444 .529 .462 .545
LambdaMart-L  .468 .396 .451 .512 .457 .538 .475 .553
LambdaMart-R  .421 .326 .419 .400 .427 .325 .446 .344
LambdaLoss    .423 .308 .423 .378 .427 .294 .446 .322
p-ListMLE     .407 .286 .396 .370 .377 .274 .420 .300
"""
_WEB30K = """
uRank         .465 .401 .450 .515 .453 .517 .471 .545
uBoost        .474 .403 .452 .517 .457 .543 .472 .548
uMart         .505 .429 .490 .545 .494 .570 .512 .584
urBoost       .478 .405 .455 .518 .458 .543 .472 .558
LambdaMart-L  .489 .415 .468 .530 .472 .556 .490 .571
LambdaMart-R  .458 .353 .442 .315 .448 .336 .464 .440
LambdaLoss    .430 .310 .399 .307 .410 .400 .428 .377
p-ListMLE     .411 .310 .386 .285 .394 .347 .410 .384
"""

# Its last table, by the protocol of LightGBM: NDCG@1, 3, 5, 10.
_LAST_WEB10K = """
uMart         .496 .484 .490 .509
LambdaMart-L  .484 .478 .484 .504
"""
_LAST_WEB30K = """
uMart         .522 .507 .510 .529
LambdaMart-L  .518 .504 .509 .527
"""
# The rule and the metrics of its tables, by the protocol that made them.
_RULES = {"standard": "wsdm20", "lightgbm": "lightgbm"}
_METRICS = {"standard": PAPER_METRICS, "lightgbm": PAPER_METRICS[::2]}
# The fields of a rule that must agree for means of a metric to be comparable.
_PARTS_OF_RULES = {"ndcg": ("gain", "ties", "empty", "short_ndcg"), "err": ("ties", "empty", "err_max")}

FAMILIES = ("paper", "authors")
_FALLING = "ERR that falls as k grows, which ERR cannot"
_ELSEWHERE = "taken from another paper, by another rule"
# Half of the last digit that the paper prints.
_ROUNDING = 0.0005

Rows = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Paper:
    """What the paper prints for one data set: settings, rows, and which cells cannot be right.

    Attributes
    ----------
    name : str
        Its key in ``PAPERS``; names of presets end with it.
    n_queries, n_documents : int
        The size of the data set, counted in the data themselves.
    table : str
        Its row for each model: NDCG@1, ERR@1, NDCG@3, ERR@3 and so on.
    last_table : str
        Its rows by the protocol of LightGBM, if it has any: NDCG@1, 3, 5, 10.
    borrowed : tuple of str
        Rows that were taken from other papers.
    """

    name: str
    n_queries: int
    n_documents: int
    table: str
    last_table: str = ""
    borrowed: tuple[str, ...] = ()

    def rows(self, protocol: str = "standard") -> Rows:
        """Its figures, by the paper's names of models and tierank's names of metrics.

        >>> PAPERS["ohsumed"].rows()["uRank"]["ndcg@1"]
        0.602
        >>> PAPERS["mslr-web10k"].rows("lightgbm")["uMart"]["ndcg@10"]
        0.509
        """
        table = {"standard": self.table, "lightgbm": self.last_table}[protocol]
        lines = [line.split() for line in table.strip().splitlines()]
        return {name: dict(zip(_METRICS[protocol], map(float, cells), strict=True)) for name, *cells in lines}

    def settings(self, ranker: str, family: str = "paper", protocol: str = "standard") -> dict[str, Any]:
        """The settings of a ranker, by name: the paper's, its authors' program's, or those of its last table."""
        if ranker not in RANKERS:
            raise ParameterError.unknown("ranker", ranker, RANKERS)
        presets = RANKERS[ranker].PRESETS
        preset = f"{as_choice('family', family, FAMILIES)}-{self.name}"
        if preset not in presets:
            raise ParameterError(f"{ranker}: the paper has no settings for it; expected one of its models or baselines")
        last = f"lightgbm-{self.name}"
        return dict(presets[last if protocol == "lightgbm" and last in presets else preset])

    def why_other(self, protocol: str, rule: Rule, metric: str, size: tuple[int, int]) -> str | None:
        """Why means of a metric cannot be compared with the paper's: other data, protocol or rule. None if they can."""
        if size != (self.n_queries, self.n_documents):
            return (
                f"the paper's data have {self.n_queries:,} queries and {self.n_documents:,} documents,"
                f" these {size[0]:,} and {size[1]:,}"
            )
        if not self.rows(protocol):
            return f"the paper has no rows for these data by the protocol {protocol}"
        if metric not in _METRICS[protocol]:
            return f"the paper does not print {metric}"
        its = RULES[_RULES[protocol]]
        if any(getattr(rule, part) != getattr(its, part) for part in _PARTS_OF_RULES[metric.partition("@")[0]]):
            return f"the paper's rule is {its.name}, not {rule.name}"
        return None

    def doubt(self, row: str, metric: str, tops: Mapping[float, int] | None) -> str | None:
        """Why a cell of the main table cannot be what it says, or None.

        ``tops`` has the number of queries by their highest rating; None: unknown. If NDCG@1 does not allow the ERR@1
        under the paper's rule, all ERR values of the row were computed by another rule.
        """
        if row in self.borrowed:
            return _ELSEWHERE
        if not metric.startswith("err"):
            return None
        figures = self.rows()[row]
        values = [figures[f"err@{k}"] for k in (1, 3, 5, 10)]
        if any(later < earlier for earlier, later in pairwise(values)):
            return _FALLING
        if tops is None:
            return None
        low, high = err_bounds(figures["ndcg@1"], tops)
        if low <= values[0] <= high:
            return None
        return (
            f"ERR@1 of {row}, {values[0]:.3f}, is outside {low:.3f} to {high:.3f}, which is what its NDCG@1 of"
            f" {figures['ndcg@1']:.3f} allows"
        )


def err_bounds(ndcg: float, tops: Mapping[float, int]) -> tuple[float, float]:
    """The least and the greatest mean ERR@1 that a mean NDCG@1 allows, if ERR goes by the highest rating of each query.

    A query with the highest rating m has ERR@1 = (2^m - 1) / 2^m NDCG@1. The mean is least if all NDCG comes from the
    queries with the lowest m, and greatest if it comes from those with the highest m. Both bounds allow for the
    rounding of the two printed means.

    Parameters
    ----------
    ndcg : float
        The mean NDCG@1, printed with three decimals.
    tops : mapping of float to int
        The number of queries by their highest rating; the rating 0 is left out.

    Examples
    --------
    >>> [round(bound, 3) for bound in err_bounds(0.5, {0: 1, 1: 4, 2: 101})]
    [0.365, 0.376]
    """
    counts = {top: n for top, n in sorted(tops.items()) if top > 0}
    ends = []
    for tops_in_order, mean, slack in (
        (counts, ndcg - _ROUNDING, -_ROUNDING),
        (reversed(counts), ndcg + _ROUNDING, _ROUNDING),
    ):
        left, total = mean * sum(counts.values()), 0.0
        for top in tops_in_order:
            taken = min(left, counts[top])
            left, total = left - taken, total + taken * (1 - 2.0**-top)
        ends.append(total / sum(counts.values()) + slack)
    return ends[0], ends[1]


PAPERS = {
    paper.name: paper
    for paper in (
        Paper("ohsumed", 106, 16_140, _OHSUMED),
        Paper("mq2007", 1_692, 69_623, _MQ2007, borrowed=("MDPRank",)),
        Paper("mslr-web10k", 10_000, 1_200_192, _WEB10K, _LAST_WEB10K),
        # The paper prints 3,711,000 documents for MSLR-WEB30K, which has 3,771,125.
        Paper("mslr-web30k", 31_531, 3_771_125, _WEB30K, _LAST_WEB30K),
    )
}
