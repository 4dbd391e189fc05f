"""The paper's settings and figures: *Listwise Learning to Rank by Exploring Unique Ratings* (WSDM 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tierank.errors import ParameterError
from tierank.experiments.runs import PAPER_METRICS
from tierank.rankers import RANKERS

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

_FALLING = "ERR that falls as k grows, which ERR cannot"
_ELSEWHERE = "taken from another paper, by another rule"


@dataclass(frozen=True)
class Paper:
    """What the paper says of one data set: presets, rows, and which of their cells mean nothing."""

    n_queries: int
    n_documents: int
    preset: str
    table: str
    doubtful: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def rows(self) -> dict[str, dict[str, float]]:
        """Its figures, by its names of models and our names of metrics.

        >>> PAPERS["ohsumed"].rows["uRank"]["ndcg@1"]
        0.602
        """
        lines = [line.split() for line in self.table.strip().splitlines()]
        return {name: dict(zip(PAPER_METRICS, map(float, cells), strict=True)) for name, *cells in lines}

    def settings(self, ranker: str) -> dict[str, Any]:
        """The paper's settings of a ranker, by name."""
        if ranker not in RANKERS:
            raise ParameterError.unknown("ranker", ranker, RANKERS)
        if self.preset not in RANKERS[ranker].PRESETS:
            raise ParameterError(f"{ranker}: the paper has no settings for it; expected one of its models or baselines")
        return dict(RANKERS[ranker].PRESETS[self.preset])

    def doubt(self, row: str, metric: str) -> str | None:
        """Why a cell cannot be compared, or None."""
        return self.doubtful.get((row, metric)) or self.doubtful.get((row, "*"))

    def is_of(self, n_queries: int, n_documents: int) -> bool:
        """Whether data of this size are the data of the paper."""
        return (n_queries, n_documents) == (self.n_queries, self.n_documents)


_ERR_OF_MSLR = {
    (row, metric): _FALLING
    for row in ("LambdaMart-R", "LambdaLoss", "p-ListMLE")
    for metric in PAPER_METRICS
    if metric.startswith("err")
}

# Sizes as tierank counts them in the data sets themselves.
PAPERS = {
    "ohsumed": Paper(106, 16_140, "paper-ohsumed", _OHSUMED),
    "mq2007": Paper(1_692, 69_623, "paper-mq2007", _MQ2007, {("MDPRank", "*"): _ELSEWHERE}),
    "mslr-web10k": Paper(10_000, 1_200_192, "paper-mslr", _WEB10K, _ERR_OF_MSLR),
    "mslr-web30k": Paper(31_531, 3_771_125, "paper-mslr", _WEB30K, _ERR_OF_MSLR),
}
