"""Click models in which examination depends on the position, and perhaps on the last click: CTR, PBM, UBM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from tierank.clicks.base import ClickModel, EMModel
from tierank.clicks.log import ClickLog, Ints, sum_by
from tierank.kernels import clicks as kernels
from tierank.settings import Number, setting
from tierank.types import Floats


@dataclass(kw_only=True, eq=False)
class ClickThrough(ClickModel):
    """Click-through rate by rank: P(C_r) = c_r, regardless of the document.

    Maximum likelihood, in closed form: c_r = (clicks at r + smoothing * 0.5) / (times shown at r + smoothing).
    ``examination_`` has c_r for r = 1, 2, ...

    Parameters
    ----------
    smoothing : float, default 1.0
        Number of sessions that the prior 0.5 of each rate counts for; 0 for no prior.
    """

    name: ClassVar[str] = "ctr"
    parameters: ClassVar[tuple[str, ...]] = ("examination_",)
    smoothing: float = setting(1.0, Number(0), "sessions that the prior of each rate counts for; 0 for no prior")

    def _fit(self, log: ClickLog, weights: Floats) -> None:
        shown, clicks = np.zeros(log.last_position), np.zeros(log.last_position)
        kernels.count_positions(log.offsets, log.positions, log.clicked, weights, shown, clicks)
        with np.errstate(invalid="ignore", divide="ignore"):
            rates = (clicks + self.smoothing * 0.5) / (shown + self.smoothing)
        self.examination_ = np.where(np.isnan(rates), self.prior_, rates)

    def _expected(self, log: ClickLog) -> Floats:
        return at_positions(self.examination_, log.positions)

    def _followed(self, log: ClickLog, clicked: Any, draws: Floats) -> Floats:
        return _drawn(self._expected(log), clicked, draws)


@dataclass(kw_only=True, eq=False)
class PositionBased(EMModel):
    """Position-based model, PBM: P(C_r) = a_d * g_r: attractive and examined (Craswell et al. 2008).

    Fitted by EM. Without a click, the document was attractive with chance a (1 - g) / (1 - a g) and examined with
    g (1 - a) / (1 - a g); the next a and g are the means of these, where clicks count 1. Only the products matter, so
    g_1 is fixed at 1: examination is relative to the first position. ``attraction_`` has a for each item,
    ``examination_`` has g for each position.

    Parameters
    ----------
    by : {"pair", "document"}, default "pair"
        Whether attractiveness is a property of each pair of query and document, or of a document for all queries.
    smoothing : float, default 1.0
        Number of sessions that the prior of each parameter counts for: the click-through rate of first documents for a,
        0.5 for g. With 0, maximum likelihood.
    tolerance : float, default 1e-4
        EM stops when no parameter changes by more than this in an iteration.
    max_iterations : int, default 500
        EM stops after this many iterations at the latest.
    """

    name: ClassVar[str] = "pbm"
    parameters: ClassVar[tuple[str, ...]] = ("attraction_", "examination_")

    examination_: Floats = field(init=False, repr=False)

    def _fit(self, log: ClickLog, weights: Floats) -> None:
        pairs = Pairs(self.items.find(log), log.positions - 1, len(self.items), log.last_position)
        self.attraction_, self.examination_, n = pairs.fit(self, log, weights)
        self._note_iterations(n)

    def fit_without_positions(self, log: ClickLog) -> Self:
        """The model in which every position is examined: a is the share of clicks among the times shown.

        Parameters
        ----------
        log : ClickLog
            The sessions to learn from.

        Returns
        -------
        self
        """
        self.fit(log)
        items = self.items.find(log)
        shown, clicks = (sum_by(items, one, len(self.items)) for one in (np.ones(log.n_rows), 1.0 * log.clicked))
        self.attraction_ = (clicks + self.smoothing * self.prior_) / (shown + self.smoothing)
        self.examination_ = np.ones_like(self.examination_)
        return self

    def _expected(self, log: ClickLog) -> Floats:
        attraction = self._per_row(log, self.attraction_, self.prior_)
        return np.asarray(attraction * at_positions(self.examination_, log.positions))

    def _followed(self, log: ClickLog, clicked: Any, draws: Floats) -> Floats:
        return _drawn(self._expected(log), clicked, draws)


@dataclass(kw_only=True, eq=False)
class UserBrowsing(EMModel):
    """User browsing model, UBM: P(C_r | clicks above) = a_d * g_{r,p}, p the click above, 0 if none (Dupret 2008).

    Fitted by EM like the position-based model, with one g for each pair of a position and the position of the last
    click above it; g_{1,0} is fixed at 1. ``attraction_`` has a for each item, ``examination_`` has g_{r,p} at r (r -
    1) / 2 + p.

    Parameters
    ----------
    by : {"pair", "document"}, default "pair"
        Whether attractiveness is a property of each pair of query and document, or of a document for all queries.
    smoothing : float, default 1.0
        Number of sessions that the prior of each parameter counts for: the click-through rate of first documents for a,
        0.5 for g. With 0, maximum likelihood.
    tolerance : float, default 1e-4
        EM stops when no parameter changes by more than this in an iteration.
    max_iterations : int, default 500
        EM stops after this many iterations at the latest.
    """

    name: ClassVar[str] = "ubm"
    parameters: ClassVar[tuple[str, ...]] = ("attraction_", "examination_")

    examination_: Floats = field(init=False, repr=False)

    def _fit(self, log: ClickLog, weights: Floats) -> None:
        cells = np.empty(log.n_rows, np.int64)
        kernels.browsing_cells(log.offsets, log.positions, log.clicked, cells)
        last = log.last_position
        pairs = Pairs(self.items.find(log), cells, len(self.items), last * (last + 1) // 2)
        self.attraction_, self.examination_, n = pairs.fit(self, log, weights)
        self._note_iterations(n)

    def _expected(self, log: ClickLog) -> Floats:
        chances = np.empty(log.n_rows)
        kernels.expect_browsing(log.offsets, log.positions, *self._rows(log), chances)
        return chances

    def _followed(self, log: ClickLog, clicked: Any, draws: Floats) -> Floats:
        chances = np.empty(log.n_rows)
        kernels.follow_browsing(log.offsets, log.positions, *self._rows(log), draws, clicked, chances)
        return chances

    def _rows(self, log: ClickLog) -> tuple[Floats, Floats]:
        attraction = self._per_row(log, self.attraction_, self.prior_)
        return attraction, _longer_triangle(self.examination_, log.last_position)


def at_positions(values: Floats, positions: Ints) -> Floats:
    """The value of each position; positions beyond the last known one take its value."""
    return np.asarray(values[np.minimum(positions, len(values)) - 1])


class Pairs:
    """The different pairs of an item and a cell in the rows of a log, for repeated counting and fitting."""

    def __init__(self, items: Ints, cells: Ints, n_items: int, n_cells: int) -> None:
        keys, self._inverse = np.unique(items * n_cells + cells, return_inverse=True)
        self.items, self.cells = keys // n_cells, keys % n_cells
        self.n_items, self.n_cells = n_items, n_cells

    def count(self, weights: Floats) -> Floats:
        """The sum over the rows of each pair."""
        return sum_by(self._inverse, weights, len(self.items))

    def fit(self, model: EMModel, log: ClickLog, weights: Floats) -> tuple[Floats, Floats, int]:
        """Attraction and examination of P(click) = a * g, and the number of EM iterations, given session weights."""
        rows = np.repeat(weights, log.lengths)
        shown, clicks = self.count(rows), self.count(rows * log.clicked)
        attraction, examination = np.full(self.n_items, 0.5), np.full(self.n_cells, 0.5)
        examination[0] = 1.0
        rule = (model.smoothing, model.prior_, model.tolerance, model.max_iterations)
        n = kernels.fit_products(self.items, self.cells, shown, clicks, *rule, attraction, examination)
        return attraction, examination, n


def _drawn(chances: Floats, clicked: Any, draws: Floats) -> Floats:
    """The probabilities, or the clicks drawn from them."""
    if len(draws):
        clicked[:] = draws < chances
    return chances


def _longer_triangle(values: Floats, last: int) -> Floats:
    """The values for pairs of positions up to ``last``; unknown pairs take the value of the nearest known one."""
    known = int((np.sqrt(8 * len(values) + 1) - 1) / 2)
    if last <= known:
        return values
    rows = [values]
    for position in range(known + 1, last + 1):
        previous = np.minimum(np.arange(position), known - 1)
        rows.append(values[known * (known - 1) // 2 + previous])
    return np.concatenate(rows)
