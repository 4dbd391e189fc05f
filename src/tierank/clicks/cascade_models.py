"""Click models of users who scan the list from the top: cascade, DCM, simplified DBN, DBN."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tierank.clicks.base import AttractionModel, ClickModel, EMModel
from tierank.clicks.log import ClickLog
from tierank.clicks.position_models import at_positions
from tierank.kernels import clicks as kernels
from tierank.types import Floats


class _Chain(ClickModel):
    """Users examine the first document, click it if it attracts them, and continue or stop."""

    def _expected(self, log: ClickLog) -> Floats:
        chances = np.empty(log.n_rows)
        kernels.expect_chain(log.offsets, *self._rows(log), chances)
        return chances

    def _followed(self, log: ClickLog, clicked: Any, draws: Floats) -> Floats:
        chances = np.empty(log.n_rows)
        kernels.follow_chain(log.offsets, *self._rows(log), draws, clicked, chances)
        return chances

    @abstractmethod
    def _rows(self, log: ClickLog) -> tuple[Floats, Floats, float]:
        """Attractiveness and chance to continue after a click, per row; the chance to continue without a click."""


@dataclass(kw_only=True, eq=False)
class Cascade(_Chain, AttractionModel):
    """Cascade model: users scan the list to their first click, and stop (Craswell et al. 2008).

    P(C_r) = a_r * product over i < r of (1 - a_i). Maximum likelihood, in closed form: a is the share of clicks among
    the times that a document was shown at or above the first click. Further clicks are impossible under this model.
    ``attraction_`` has a for each item.

    Parameters
    ----------
    by : {"pair", "document"}, default "pair"
        Whether attractiveness is a property of each pair of query and document, or of a document for all queries.
    smoothing : float, default 1.0
        Number of sessions that the prior of a, the click-through rate of first documents, counts for. 0: maximum
        likelihood.
    """

    name: ClassVar[str] = "cascade"
    parameters: ClassVar[tuple[str, ...]] = ("attraction_",)

    def _fit(self, log: ClickLog, weights: Floats) -> None:
        counts = _count(self, log, weights, stops_at_first=True)
        self.attraction_ = _ratio(counts.clicks, counts.examined, self.smoothing, self.prior_)

    def _rows(self, log: ClickLog) -> tuple[Floats, Floats, float]:
        return self._per_row(log, self.attraction_, self.prior_), np.zeros(log.n_rows), 1.0


@dataclass(kw_only=True, eq=False)
class DependentClick(_Chain, AttractionModel):
    """Dependent click model, DCM: after a click at r, users continue with chance l_r (Guo et al. 2009).

    Without a click they always continue. In closed form, as in the paper, which treats all documents below the last
    click as not examined (a lower bound of the likelihood is maximised): a is the share of clicks among the times that
    a document was shown at or above the last click, or anywhere in a list without clicks; l_r is the share of clicks at
    r that were not the last ones. ``attraction_`` has a for each item, ``continuation_`` has l for each position.

    Parameters
    ----------
    by : {"pair", "document"}, default "pair"
        Whether attractiveness is a property of each pair of query and document, or of a document for all queries.
    smoothing : float, default 1.0
        Number of sessions that the prior of each parameter counts for: the click-through rate of first documents for a,
        0.5 for l. With 0, none.
    """

    name: ClassVar[str] = "dcm"
    parameters: ClassVar[tuple[str, ...]] = ("attraction_", "continuation_")

    def _fit(self, log: ClickLog, weights: Floats) -> None:
        counts = _count(self, log, weights)
        self.attraction_ = _ratio(counts.clicks, counts.examined, self.smoothing, self.prior_)
        self.continuation_ = _ratio(counts.clicks_at - counts.last_clicks_at, counts.clicks_at, self.smoothing, 0.5)

    def _rows(self, log: ClickLog) -> tuple[Floats, Floats, float]:
        attraction = self._per_row(log, self.attraction_, self.prior_)
        return attraction, at_positions(self.continuation_, log.positions), 1.0


@dataclass(kw_only=True, eq=False)
class SimplifiedBayesian(_Chain, AttractionModel):
    """Simplified dynamic Bayesian network, SDBN: after a click, users stop if satisfied (Chapelle and Zhang 2009).

    The dynamic Bayesian network without giving up: users continue until they are satisfied. In closed form, as in the
    paper: a is the share of clicks among the times that a document was shown at or above the last click, or anywhere in
    a list without clicks; s is the share of its clicks that were the last ones. ``attraction_`` has a and
    ``satisfaction_`` has s for each item.

    Parameters
    ----------
    by : {"pair", "document"}, default "pair"
        Whether attractiveness is a property of each pair of query and document, or of a document for all queries.
    smoothing : float, default 1.0
        Number of sessions that the prior of each parameter counts for: the click-through rate of first documents for a,
        0.5 for s. With 0, none.
    """

    name: ClassVar[str] = "sdbn"
    parameters: ClassVar[tuple[str, ...]] = ("attraction_", "satisfaction_")

    def _fit(self, log: ClickLog, weights: Floats) -> None:
        counts = _count(self, log, weights)
        self.attraction_ = _ratio(counts.clicks, counts.examined, self.smoothing, self.prior_)
        self.satisfaction_ = _ratio(counts.last_clicks, counts.clicks, self.smoothing, 0.5)

    def _rows(self, log: ClickLog) -> tuple[Floats, Floats, float]:
        satisfaction = self._per_row(log, self.satisfaction_, 0.5)
        return self._per_row(log, self.attraction_, self.prior_), 1 - satisfaction, 1.0


@dataclass(kw_only=True, eq=False)
class DynamicBayesian(_Chain, EMModel):
    """Dynamic Bayesian network, DBN: users stop when satisfied, or give up (Chapelle and Zhang 2009).

    A document that is examined is clicked with chance a, and satisfies with chance s if it is. Users who are not
    satisfied continue with chance g. Fitted by EM over what was examined below the last click, and whether that click
    satisfied. ``attraction_`` has a and ``satisfaction_`` has s for each item, ``continuation_`` has the single g.

    Parameters
    ----------
    by : {"pair", "document"}, default "pair"
        Whether attractiveness is a property of each pair of query and document, or of a document for all queries.
    smoothing : float, default 1.0
        Number of sessions that the prior of each parameter counts for: the click-through rate of first documents for a,
        0.5 for s and g. With 0, maximum likelihood.
    tolerance : float, default 1e-4
        EM stops when no parameter changes by more than this in an iteration.
    max_iterations : int, default 500
        EM stops after this many iterations at the latest.
    """

    name: ClassVar[str] = "dbn"
    parameters: ClassVar[tuple[str, ...]] = ("attraction_", "satisfaction_", "continuation_")

    def _fit(self, log: ClickLog, weights: Floats) -> None:
        n = len(self.items)
        self.attraction_, self.satisfaction_, self.continuation_ = np.full(n, 0.5), np.full(n, 0.5), np.full(1, 0.5)
        fitted = (self.attraction_, self.satisfaction_, self.continuation_)
        rule = (self.smoothing, self.prior_, self.tolerance, self.max_iterations)
        rows = (log.offsets, self.items.find(log), log.clicked, weights)
        self._note_iterations(kernels.fit_dbn(*rows, *rule, *fitted))

    def _rows(self, log: ClickLog) -> tuple[Floats, Floats, float]:
        satisfaction = self._per_row(log, self.satisfaction_, 0.5)
        goes_on = float(self.continuation_[0])
        return self._per_row(log, self.attraction_, self.prior_), goes_on * (1 - satisfaction), goes_on


class _Counts:
    """Counts of examinations and clicks, by item and by position."""

    def __init__(self, n_items: int, n_positions: int) -> None:
        self.examined, self.clicks, self.last_clicks = np.zeros(n_items), np.zeros(n_items), np.zeros(n_items)
        self.clicks_at, self.last_clicks_at = np.zeros(n_positions), np.zeros(n_positions)


def _count(model: ClickModel, log: ClickLog, weights: Floats, *, stops_at_first: bool = False) -> _Counts:
    counts = _Counts(len(model.items), log.last_position)
    rows = (log.offsets, model.items.find(log), log.positions, log.clicked, weights)
    by_item = (counts.examined, counts.clicks, counts.last_clicks)
    kernels.count_examined(*rows, stops_at_first, *by_item, counts.clicks_at, counts.last_clicks_at)
    return counts


def _ratio(part: Floats, whole: Floats, smoothing: float, prior: float) -> Floats:
    """(part + smoothing * prior) / (whole + smoothing); the prior where both are 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = (part + smoothing * prior) / (whole + smoothing)
    return np.where(np.isnan(ratio), prior, ratio)
