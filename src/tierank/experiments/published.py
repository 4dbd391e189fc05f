"""The paper's settings and figures: *Listwise Learning to Rank by Exploring Unique Ratings* (WSDM 2020)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tierank.errors import ParameterError
from tierank.metrics.rules import RULES, Rule
from tierank.rankers import RANKERS
from tierank.settings import as_choice

if TYPE_CHECKING:
    from tierank.experiments.runs import Run

# The layout of the paper's tables.
PAPER_METRICS = tuple(f"{name}@{k}" for k in (1, 3, 5, 10) for name in ("ndcg", "err"))

# The paper's name of the model that a ranker trains, by its class. LambdaMart-R, of RankLib, comes as scores.
_MODELS = {
    "URank": "uRank",
    "UBoost": "uBoost",
    "UMart": "uMart",
    "UrBoost": "urBoost",
    "MDPRank": "MDPRank",
    "LambdaMART": "LambdaMart-L",
    "LambdaLoss": "LambdaLoss",
    "PListMLE": "p-ListMLE",
}

_FILE = (Path(__file__).parent / "published.txt").read_text(encoding="utf-8")
# The rows of the paper's tables, by the titles in the file.
_TABLES = dict(re.findall(r"^\[(.*)\]\n((?:.+\n)+)", _FILE, re.MULTILINE))
# The rule and the metrics of its tables, by the protocol that made them.
_RULES = {"standard": "wsdm20", "lightgbm": "lightgbm"}
_METRICS = {"standard": PAPER_METRICS, "lightgbm": PAPER_METRICS[::2]}
# The fields of a rule that must agree for means of a metric to be comparable.
_PARTS_OF_RULES = {"ndcg": ("gain", "ties", "empty", "short_ndcg"), "err": ("ties", "empty", "err_max")}

FAMILIES = ("paper", "authors", "authors-later")
# The fewest seeds whose spread says how far another seed may be.
_SEEDS = 3
_FALLING = "ERR that falls as k grows, which ERR cannot"
_ELSEWHERE = "taken from another paper, by another rule"
# Half of the last digit that the paper prints.
_ROUNDING = 0.0005


class PrintedFigure(NamedTuple):
    """A figure that the paper prints.

    Attributes
    ----------
    value : float
        The figure.
    is_marked : bool
        Whether it has an asterisk: better than the paper's baseline by its t-test at .05, not adjusted.
    doubt : str or None
        Why it cannot be right, or None.
    """

    value: float
    is_marked: bool
    doubt: str | None

    def __str__(self) -> str:
        return f"{self.value:.3f}{'*' if self.is_marked else ''}{'†' if self.doubt else ''}"


# By the paper's names of models and tierank's names of metrics.
PaperRows = dict[str, dict[str, PrintedFigure]]


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
    baseline : str
        The row that its asterisks compare with.
    """

    name: str
    n_queries: int
    n_documents: int
    table: str
    last_table: str = ""
    borrowed: tuple[str, ...] = ()
    baseline: str = "LambdaMart-L"

    def rows(self, protocol: str = "standard") -> dict[str, dict[str, float]]:
        """Its figures, by the paper's names of models and tierank's names of metrics.

        >>> PAPERS["ohsumed"].rows()["uRank"]["ndcg@1"]
        0.602
        >>> PAPERS["mslr-web10k"].rows("lightgbm")["uMart"]["ndcg@10"]
        0.509
        """
        return {
            row: {metric: one.value for metric, one in cells.items()} for row, cells in self.cells(protocol).items()
        }

    def cells(self, protocol: str = "standard", tops: Mapping[float, int] | None = None) -> PaperRows:
        """Its figures with their asterisks and doubts; ``tops`` as for ``doubt``.

        >>> str(PAPERS["mq2007"].cells()["uMart"]["ndcg@5"]), str(PAPERS["mq2007"].cells()["MDPRank"]["ndcg@1"])
        ('0.487*', '0.406†')
        """
        table = {"standard": self.table, "lightgbm": self.last_table}[protocol]
        found = {}
        for row, *texts in map(str.split, table.strip().splitlines()):
            figures = dict(zip(_METRICS[protocol], (float(text.rstrip("*")) for text in texts), strict=True))
            found[row] = {
                metric: PrintedFigure(value, text.endswith("*"), self.doubt(row, metric, figures, tops))
                for (metric, value), text in zip(figures.items(), texts, strict=True)
            }
        return found

    def settings(self, ranker: str, family: str = "paper", protocol: str = "standard") -> dict[str, Any]:
        """The settings of a ranker: the paper's, those of two versions of its authors' program, or the last table's."""
        if ranker not in RANKERS:
            raise ParameterError.unknown("ranker", ranker, RANKERS)
        presets = RANKERS[ranker].PRESETS
        preset = f"{as_choice('family', family, FAMILIES)}-{self.name}"
        if preset not in presets:
            fix = "choose one of its models or baselines" + ", as paper or authors" * (f"paper-{self.name}" in presets)
            raise ParameterError(f"the paper has no settings for it as {family}", where=ranker, fix=fix)
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

    def doubt(
        self, row: str, metric: str, figures: Mapping[str, float], tops: Mapping[float, int] | None
    ) -> str | None:
        """Why a cell of a row with these figures cannot be what it says, or None.

        ``tops`` has the number of queries by their highest rating; None: unknown. If NDCG@1 does not allow the ERR@1
        under the paper's rule, all ERR values of the row were computed by another rule.
        """
        if row in self.borrowed:
            return _ELSEWHERE
        if not metric.startswith("err"):
            return None
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
    name: Paper(name, n_queries, n_documents, _TABLES[name], _TABLES.get(f"{name}, last table", ""), **more)
    for name, n_queries, n_documents, more in (
        ("ohsumed", 106, 16_140, {"baseline": "LambdaLoss"}),
        ("mq2007", 1_692, 69_623, {"borrowed": ("MDPRank",)}),
        ("mslr-web10k", 10_000, 1_200_192, {}),
        # The paper prints 3,711,000 documents for MSLR-WEB30K, which has 3,771,125.
        ("mslr-web30k", 31_531, 3_771_125, {}),
    )
}


class PaperComparison(NamedTuple):
    """A figure of the paper and ours.

    Attributes
    ----------
    printed : PrintedFigure
        The paper's figure.
    difference : float
        Ours minus the paper's.
    verdict : str
        ``"within"``, ``"below"`` or ``"above"`` what another seed of ours could give; empty if there is no telling.
    """

    printed: PrintedFigure
    difference: float
    verdict: str


def paper_of(run: Run) -> Paper | None:
    """The paper's data set that a run is compared with, or None."""
    return None if run.plan.paper is None else PAPERS[as_choice("paper", run.plan.paper, PAPERS)]


def row_of(system: str, described: Mapping[str, Any]) -> str | None:
    """The paper's name of a system: by its ranker, or for scores by their own name."""
    return system if "scores" in described else _MODELS.get(described.get("ranker", ""))


def why_not_comparable(run: Run) -> dict[str, str | None]:
    """For each metric, why the paper's figures cannot be compared with those of a run; None if they can."""
    paper, found = paper_of(run), run.plan.data.description
    size = found.get("n_queries", 0), found.get("n_documents", 0)
    return {} if paper is None else {m: paper.why_other(run.plan.protocol, run.rule, m, size) for m in run.metrics}


def cells_of(run: Run) -> PaperRows:
    """The figures of the paper that can be compared with a run: a row for each model."""
    paper, tops = paper_of(run), run.plan.data.description.get("queries_per_top_rating")
    metrics = [metric for metric, other in why_not_comparable(run).items() if other is None]
    if paper is None or not metrics:
        return {}
    # Runs of earlier versions do not have the highest ratings.
    rows = paper.cells(run.plan.protocol, None if tops is None else {float(rating): n for rating, n in tops.items()})
    return {row: {metric: cells[metric] for metric in metrics} for row, cells in rows.items()}


def compare_with_paper(run: Run) -> dict[str, dict[str, PaperComparison]]:
    """The paper's figures for the systems of a run, in the metrics that can be compared."""
    rows, found = cells_of(run), dict[str, dict[str, PaperComparison]]()
    for system in run.systems:
        for metric, cell in rows.get(row_of(system, run.plan.systems[system]) or "", {}).items():
            difference = run.comparison.mean(system, metric) - cell.value
            spread, n_seeds = run.spread(system, metric), len(run.seeds_of(system))
            verdict = "" if cell.doubt else verdict_on(difference, spread, n_seeds)
            found.setdefault(system, {})[metric] = PaperComparison(cell, difference, verdict)
    return found


def verdict_on(difference: float, spread: float, n_seeds: int) -> str:
    """Whether the paper's figure is one that another seed of ours could give.

    ``spread`` is the standard deviation s of the means of n seeds. Another one is within t s sqrt(1 + 1/n) of their
    mean with a probability of 95%, with t of n - 1 degrees of freedom; the rounding of the paper comes on top. Empty
    with fewer than three seeds, or if nothing is random.

    >>> verdict_on(-0.062, 0.018, 5), verdict_on(-0.011, 0.013, 5), verdict_on(0.03, 0.0, 5)
    ('below', 'within', '')
    """
    from scipy.special import stdtrit

    if n_seeds < _SEEDS or not spread > 0:
        return ""
    reach = float(stdtrit(n_seeds - 1, 0.975)) * spread * math.sqrt(1 + 1 / n_seeds) + _ROUNDING
    return "within" if abs(difference) <= reach else "below" if difference < 0 else "above"
