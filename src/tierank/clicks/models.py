"""CLICK_MODELS: the click models by name; what they have in common; comparing, saving and loading them."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.arrays import Floats
from tierank.clicks.log import ClickLog, Ints, check_log, sum_by
from tierank.data.checks import as_objects, as_weights
from tierank.data.matching import NotFitted
from tierank.errors import DataError, ParameterError
from tierank.files import as_path, read_json, replacing
from tierank.kernels import click_models as kernels
from tierank.settings import (
    Choice,
    DocumentedSettings,
    Integer,
    Number,
    as_choice,
    as_whole,
    check_type,
    declared,
    setting,
)

_FORMAT = "tierank click model 1"
# Probabilities are clipped this far from 0 and 1 before their logarithm is taken.
_FLOOR = 1e-6


@dataclass(frozen=True, eq=False)
class Items:
    """The items of a log, each of which has an attractiveness, numbered from 0.

    Parameters
    ----------
    by : {"pair", "document"}
        Whether an item is a document for a query, or a document for all queries.
    queries : array of int64, shape (n_items,)
        The query of each item, an index into ``query_ids``, ascending; 0 if items are documents.
    documents : array of int64, shape (n_items,)
        The document of each item, an index into ``document_ids``.
    query_ids, document_ids : arrays
        The ids, as in the log.
    """

    by: str
    queries: Ints
    documents: Ints
    query_ids: NDArray[Any]
    document_ids: NDArray[Any]

    @classmethod
    def of(cls, log: ClickLog, by: str) -> Items:
        """The items of a log."""
        n = len(log.document_ids)
        if by == "document":
            is_shown = np.zeros(n, bool)
            is_shown[log.documents] = True
            documents = np.flatnonzero(is_shown)
            return cls(by, np.zeros(len(documents), np.int64), documents, log.query_ids, log.document_ids)
        queries, documents = np.empty(log.n_rows, np.int64), np.empty(log.n_rows, np.int64)
        order = log.queries.argsort(kind="stable")
        seen = np.full(n, -1)
        n_items = kernels.number_pairs(order, log.queries, log.offsets, log.documents, seen, queries, documents)
        return cls(by, queries[:n_items].copy(), documents[:n_items].copy(), log.query_ids, log.document_ids)

    def __len__(self) -> int:
        return len(self.documents)

    def find(self, log: ClickLog) -> Ints:
        """The item of each row of a log; -1 if it is unknown."""
        documents = log.documents
        if log.document_ids is not self.document_ids:
            documents = _translation(log.document_ids, self.document_ids)[documents]
        if self.by == "document":
            numbers = np.full(len(self.document_ids) + 1, -1)  # the last entry is for unknown documents
            numbers[self.documents] = np.arange(len(self))
            return numbers[documents]
        queries = log.queries
        if log.query_ids is not self.query_ids:
            queries = _translation(log.query_ids, self.query_ids)[queries]
        counts = np.bincount(self.queries, minlength=len(self.query_ids))
        starts = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
        seen, numbers = np.full(len(self.document_ids), -1), np.empty(len(self.document_ids), np.int64)
        items = np.empty(log.n_rows, np.int64)
        rows = (queries.argsort(kind="stable"), queries, log.offsets, documents)
        kernels.find_pairs(*rows, starts, self.documents, seen, numbers, items)
        return items


def _translation(ids: NDArray[Any], known: NDArray[Any]) -> Ints:
    """The index of each id among the known ids; -1 if it is unknown.

    Ids are read as integers if all of a file are integers, and as texts otherwise: between two such logs, 5 and "5" are
    the same id.
    """
    numbers = {one: i for i, one in enumerate(known.tolist())}
    if ids.dtype.kind != known.dtype.kind:
        numbers = {str(one): i for one, i in numbers.items()} | numbers
        return np.array([numbers.get(one, numbers.get(str(one), -1)) for one in ids.tolist()], np.int64)
    return np.array([numbers.get(one, -1) for one in ids.tolist()], np.int64)


@dataclass(kw_only=True, eq=False)
class ClickModel(ABC):
    """A model of which documents users look at and click.

    A subclass has ``name``, ``parameters`` (the names of its fitted arrays), and the methods ``_fit`` and ``_expected``
    (chances before any click is seen); and ``_followed`` (chances given the clicks above, or drawn) if clicks depend on
    those above. Its settings are added to its docstring.
    """

    name: ClassVar[str]
    parameters: ClassVar[tuple[str, ...]]

    items_: Items = field(init=False, repr=False)
    prior_: float = field(init=False, repr=False)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__doc__:
            cls.__doc__ = DocumentedSettings(cls.__doc__)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, one in declared(self).items():
            setattr(self, name, one.kind.check(name, getattr(self, name)))

    if not TYPE_CHECKING:  # to a checker, a class with __getattr__ has every attribute

        def __getattr__(self, name: str) -> Any:
            """Say that a model is not fitted, if ``fit`` sets this attribute."""
            if name in (*self.parameters, *(one.name for one in fields(self) if not one.init)):
                self._check_fitted()
            return object.__getattribute__(self, name)  # raises the usual error

    def fit(self, log: ClickLog, *, session_weight: ArrayLike | None = None) -> Self:
        """Estimate the parameters from a log.

        Parameters
        ----------
        log : ClickLog
            The sessions to learn from.
        session_weight : array, shape (n_sessions,), optional
            How often each session counts. Default: once.

        Returns
        -------
        self
        """
        check_log(log)
        if not log.n_rows:
            raise DataError(argument="log", expected="at least one document that was shown", got="none")
        weights = np.ones(log.n_sessions)
        if session_weight is not None:
            weights = as_weights(session_weight, "session_weight", log.n_sessions, ", one per session")
        if not weights.any():
            raise DataError(argument="session_weight", expected="a weight above 0", got="none")
        is_shown = (log.lengths > 0) & (weights > 0)
        firsts = log.clicked[log.offsets[:-1][is_shown]]
        self.prior_ = float(np.average(firsts, weights=weights[is_shown])) if len(firsts) else 0.5
        self.items_ = Items.of(log, getattr(self, "by", "document"))
        self._fit(log, weights)
        return self

    def predict(self, log: ClickLog, *, conditional: bool = False) -> Floats:
        """The chance of a click in each row, in the order of the log.

        Parameters
        ----------
        log : ClickLog
            The lists. Documents that the model has not seen get the attractiveness ``prior_``.
        conditional : bool, default False
            Condition on the clicks further up in the same list: P(C_r | C_1 .. C_{r-1}). Otherwise P(C_r).

        Returns
        -------
        array of float64, shape (n_rows,)
        """
        self._check_fitted()
        check_log(log)
        if not conditional:
            return self._expected(log)
        return self._followed(log, np.array(log.clicked), np.empty(0))

    def log_likelihood(self, log: ClickLog) -> Floats:
        """The value ln P(C_1 .. C_n) of each session: the sum over its rows of ln P(C_r | C_1 .. C_{r-1}).

        Probabilities are clipped to 1e-6 from 0 and 1, so a session that is impossible under the model has a finite
        value.

        Parameters
        ----------
        log : ClickLog
            The sessions.

        Returns
        -------
        array of float64, shape (n_sessions,)
        """
        return log.per_session(self._log_chances(log, conditional=True))

    def perplexity(self, log: ClickLog, *, conditional: bool = False) -> Floats:
        """The perplexity of clicks at each position: 2^(-mean over sessions of log2 P(C_r)).

        1 is perfect, 2 is a coin flip. The usual single number is the mean over positions.

        Parameters
        ----------
        log : ClickLog
            The sessions, usually held-out ones.
        conditional : bool, default False
            Condition on the clicks further up in the same list.

        Returns
        -------
        array of float64, shape (last_position,)
            NaN where nothing was shown.
        """
        logs = self._log_chances(log, conditional=conditional) / np.log(2)
        shown = np.bincount(log.positions - 1, minlength=log.last_position)
        sums = np.bincount(log.positions - 1, logs, minlength=log.last_position)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.exp2(-sums / shown), np.float64)

    def simulate(self, log: ClickLog, *, seed: int = 0) -> ClickLog:
        """The same lists, with clicks drawn from the model.

        Parameters
        ----------
        log : ClickLog
            The lists; their clicks are ignored.
        seed : int, default 0
            Random seed.

        Returns
        -------
        ClickLog
        """
        self._check_fitted()
        clicked = np.zeros(log.n_rows, np.bool_)
        self._followed(log, clicked, np.random.default_rng(as_whole("seed", seed, 0)).random(log.n_rows))
        return log.with_clicks(clicked)

    def attractiveness(self) -> Floats:
        """The chance that each item is clicked if it is examined: one value for each of ``items_``."""
        self._check_fitted()
        if not hasattr(self, "attraction_"):
            expected = "a click model with parameters for documents, such as pbm or sdbn"
            raise DataError(argument="model", expected=expected, got=self.name)
        return np.asarray(self.attraction_, np.float64)

    def relevance(self) -> Floats:
        """The relevance of each item by its clicks, from 0 to 1: one value for each of ``items_``."""
        return np.asarray(self.attractiveness() * getattr(self, "satisfaction_", 1.0), np.float64)

    @property
    def is_fitted(self) -> bool:
        """Whether the model has parameters, from ``fit`` or from a file."""
        return "items_" in vars(self)

    @property
    def items(self) -> Items:
        """The items that the model was fitted to. Raises ``NotFittedError`` before ``fit``."""
        return self.items_

    def get_params(self) -> dict[str, Any]:
        """The settings, by name."""
        return {name: getattr(self, name) for name in declared(self)}

    @abstractmethod
    def _fit(self, log: ClickLog, weights: Floats) -> None:
        """Set the parameters; each session counts by its weight."""

    @abstractmethod
    def _expected(self, log: ClickLog) -> Floats:
        """The probability of a click in each row, before any click is seen."""

    def _followed(self, log: ClickLog, clicked: Any, draws: Floats) -> Floats:
        """The probability of a click in each row given the clicks above it; with ``draws``, the clicks are drawn."""
        chances = self._expected(log)
        if len(draws):
            clicked[:] = draws < chances
        return chances

    def _log_chances(self, log: ClickLog, *, conditional: bool) -> Floats:
        """The logarithm of the probability of what happened in each row."""
        chances = np.clip(self.predict(log, conditional=conditional), _FLOOR, 1 - _FLOOR)
        return np.where(log.clicked, np.log(chances), np.log1p(-chances))

    def _per_row(self, log: ClickLog, values: Floats, otherwise: float) -> Floats:
        """The parameter of the item in each row; ``otherwise`` for unknown items."""
        items = self.items.find(log)
        return np.where(items >= 0, values[items], otherwise)

    def _check_fitted(self) -> None:
        if not self.is_fitted:
            raise NotFitted(f"this {self.name} click model is not fitted", fix="call fit(log) first")


@dataclass(kw_only=True, eq=False)
class AttractionModel(ClickModel):
    """A click model with an attractiveness for each item.

    The prior of attractiveness is the click-through rate of first documents, that of all other parameters 0.5.
    """

    by: str = setting(
        "pair",
        Choice(("pair", "document")),
        "whether attractiveness is of a pair of query and document, or of a document",
    )
    smoothing: float = setting(1.0, Number(0), "sessions that the prior of each parameter counts for; 0 for none")

    attraction_: Floats = field(init=False, repr=False)


@dataclass(kw_only=True, eq=False)
class EMModel(AttractionModel):
    """A click model that is fitted by EM.

    EM stops when no parameter changes by more than ``tolerance`` in an iteration, or after ``max_iterations``.
    ``n_iterations_`` is the number of iterations, and ``converged_`` whether the tolerance was reached.
    """

    tolerance: float = setting(1e-4, Number(0), "EM stops when no parameter changes by more than this")
    max_iterations: int = setting(500, Integer(1), "EM stops after this many iterations at the latest")

    n_iterations_: int = field(init=False, repr=False)
    converged_: bool = field(init=False, repr=False)


# Examination depends on the position, and perhaps on the last click.


@dataclass(kw_only=True, eq=False)
class ClickThrough(ClickModel):
    """Click-through rate by rank: P(C_r) = c_r, regardless of the document.

    Maximum likelihood, in closed form: c_r = (clicks at r + smoothing * 0.5) / (times shown at r + smoothing).
    ``examination_`` has c_r for r = 1, 2, ...
    """

    name: ClassVar[str] = "ctr"
    parameters: ClassVar[tuple[str, ...]] = ("examination_",)
    smoothing: float = setting(1.0, Number(0), "sessions that the prior 0.5 of each rate counts for; 0 for none")

    def _fit(self, log: ClickLog, weights: Floats) -> None:
        rows, n = np.repeat(weights, log.lengths), log.last_position
        shown, clicks = sum_by(log.positions - 1, rows, n), sum_by(log.positions - 1, rows * log.clicked, n)
        self.examination_ = _ratio(clicks, shown, self.smoothing, 0.5, self.prior_)

    def _expected(self, log: ClickLog) -> Floats:
        return at_positions(self.examination_, log.positions)


class Pairs:
    """The different pairs of an item and a cell in the rows of a log, for repeated counting and fitting.

    A cell is what examination depends on, such as a position.
    """

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


@dataclass(kw_only=True, eq=False)
class _ProductModel(EMModel):
    """P(click) = attraction * examination, by a cell of each row."""

    parameters: ClassVar[tuple[str, ...]] = ("attraction_", "examination_")
    examination_: Floats = field(init=False, repr=False)

    @abstractmethod
    def pairs(self, log: ClickLog) -> Pairs:
        """The pairs of items and cells in a log."""

    def _fit(self, log: ClickLog, weights: Floats) -> None:
        self.attraction_, self.examination_, n = self.pairs(log).fit(self, log, weights)
        self.n_iterations_, self.converged_ = abs(n), n > 0


@dataclass(kw_only=True, eq=False)
class PositionBased(_ProductModel):
    """Position-based model, PBM: P(C_r) = a_d * g_r: attractive and examined (Craswell et al. 2008).

    Fitted by EM. Without a click, the document was attractive with chance a (1 - g) / (1 - a g) and examined with
    g (1 - a) / (1 - a g); the next a and g are the means of these, where clicks count 1. Only the products matter, so
    g_1 is fixed at 1: examination is relative to the first position. ``attraction_`` has a for each item,
    ``examination_`` has g for each position.
    """

    name: ClassVar[str] = "pbm"

    def pairs(self, log: ClickLog) -> Pairs:
        """The pairs of items and positions."""
        return Pairs(self.items.find(log), log.positions - 1, len(self.items), log.last_position)

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


@dataclass(kw_only=True, eq=False)
class UserBrowsing(_ProductModel):
    """User browsing model, UBM: P(C_r | clicks above) = a_d * g_{r,p}, p the click above, 0 if none (Dupret 2008).

    Fitted by EM like the position-based model, with one g for each pair of a position and the position of the last
    click above it; g_{1,0} is fixed at 1. ``attraction_`` has a for each item, ``examination_`` has g_{r,p} at r (r -
    1) / 2 + p.
    """

    name: ClassVar[str] = "ubm"

    def pairs(self, log: ClickLog) -> Pairs:
        """The pairs of items, and positions with the last click above them."""
        cells = np.empty(log.n_rows, np.int64)
        kernels.browsing_cells(log.offsets, log.positions, log.clicked, cells)
        last = log.last_position
        return Pairs(self.items.find(log), cells, len(self.items), last * (last + 1) // 2)

    def _expected(self, log: ClickLog) -> Floats:
        chances = np.empty(log.n_rows)
        kernels.expect_browsing(log.offsets, log.positions, *self._by_row(log), chances)
        return chances

    def _followed(self, log: ClickLog, clicked: Any, draws: Floats) -> Floats:
        chances = np.empty(log.n_rows)
        kernels.follow_browsing(log.offsets, log.positions, *self._by_row(log), draws, clicked, chances)
        return chances

    def _by_row(self, log: ClickLog) -> tuple[Floats, Floats]:
        """Attractiveness of each row; examination, in which unknown pairs of positions take the nearest known one."""
        examination = self.examination_
        known = int((np.sqrt(8 * len(examination) + 1) - 1) / 2)
        last_known = examination[known * (known - 1) // 2 :]
        more = [last_known[np.minimum(np.arange(r), known - 1)] for r in range(known + 1, log.last_position + 1)]
        return self._per_row(log, self.attraction_, self.prior_), np.concatenate([examination, *more])


def at_positions(values: Floats, positions: Ints) -> Floats:
    """The value of each position; positions beyond the last known one take its value."""
    return np.asarray(values[np.minimum(positions, len(values)) - 1])


def _ratio(part: Floats, whole: Floats, smoothing: float, prior: float, otherwise: float | None = None) -> Floats:
    """(part + smoothing * prior) / (whole + smoothing); ``otherwise``, by default the prior, where both are 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = (part + smoothing * prior) / (whole + smoothing)
    return np.where(np.isnan(ratio), prior if otherwise is None else otherwise, ratio)


# Users scan the list from the top.


@dataclass(kw_only=True, eq=False)
class _ChainModel(AttractionModel):
    """Users examine the first document, click it if it attracts them, and continue or stop."""

    def _expected(self, log: ClickLog) -> Floats:
        chances = np.empty(log.n_rows)
        kernels.expect_chain(log.offsets, *self._by_row(log), chances)
        return chances

    def _followed(self, log: ClickLog, clicked: Any, draws: Floats) -> Floats:
        chances = np.empty(log.n_rows)
        kernels.follow_chain(log.offsets, *self._by_row(log), draws, clicked, chances)
        return chances

    def _by_row(self, log: ClickLog) -> tuple[Floats, Floats, float]:
        """Attractiveness and chance to continue after a click, per row; the chance to continue without a click."""
        after_click, after_skip = self._continuing(log)
        return self._per_row(log, self.attraction_, self.prior_), after_click, after_skip

    @abstractmethod
    def _continuing(self, log: ClickLog) -> tuple[Floats, float]:
        """The chance to continue after a click, per row, and without a click."""

    def _fit(self, log: ClickLog, weights: Floats) -> None:
        """The closed form: documents were examined down to the last click, or the first one if users stop there."""
        items, n, row = self.items.find(log), len(self.items), np.arange(log.n_rows)
        ends, starts = log.offsets[1:] - 1, log.offsets[:-1]
        if isinstance(self, Cascade):
            stops = np.minimum.reduceat(np.where(log.clicked, row, log.n_rows), starts)
        else:
            stops = np.maximum.reduceat(np.where(log.clicked, row, -1), starts)
        has_click = (stops >= 0) & (stops <= ends)
        stops, ends = np.repeat(np.where(has_click, stops, ends), log.lengths), np.repeat(ends, log.lengths)
        shown = np.repeat(weights, log.lengths) * (row <= stops)
        clicked = shown * log.clicked
        last = clicked * (row == stops)
        examined, clicks, last_clicks = (sum_by(items, one, n) for one in (shown, clicked, last))
        # It is unknown whether the user would have continued after the last document of the list.
        position, may_continue = log.positions - 1, row < ends
        at = [sum_by(position, one * may_continue, log.last_position) for one in (clicked, last)]
        self.attraction_ = _ratio(clicks, examined, self.smoothing, self.prior_)
        if "satisfaction_" in self.parameters:
            self.satisfaction_ = _ratio(last_clicks, clicks, self.smoothing, 0.5)
        if "continuation_" in self.parameters:
            self.continuation_ = _ratio(at[0] - at[1], at[0], self.smoothing, 0.5)


@dataclass(kw_only=True, eq=False)
class Cascade(_ChainModel):
    """Cascade model: users scan the list to their first click, and stop (Craswell et al. 2008).

    P(C_r) = a_r * product over i < r of (1 - a_i). Maximum likelihood, in closed form: a is the share of clicks among
    the times that a document was shown at or above the first click. Further clicks are impossible under this model.
    ``attraction_`` has a for each item.
    """

    name: ClassVar[str] = "cascade"
    parameters: ClassVar[tuple[str, ...]] = ("attraction_",)

    def _continuing(self, log: ClickLog) -> tuple[Floats, float]:
        return np.zeros(log.n_rows), 1.0


@dataclass(kw_only=True, eq=False)
class DependentClick(_ChainModel):
    """Dependent click model, DCM: after a click at r, users continue with chance l_r (Guo et al. 2009).

    Without a click they always continue. In closed form, as in the paper, which treats all documents below the last
    click as not examined (a lower bound of the likelihood is maximised): a is the share of clicks among the times that
    a document was shown at or above the last click, or anywhere in a list without clicks; l_r is the share of clicks at
    r that were not the last ones. ``attraction_`` has a for each item, ``continuation_`` has l for each position.
    """

    name: ClassVar[str] = "dcm"
    parameters: ClassVar[tuple[str, ...]] = ("attraction_", "continuation_")

    def _continuing(self, log: ClickLog) -> tuple[Floats, float]:
        return at_positions(self.continuation_, log.positions), 1.0


@dataclass(kw_only=True, eq=False)
class SimplifiedBayesian(_ChainModel):
    """Simplified dynamic Bayesian network, SDBN: after a click, users stop if satisfied (Chapelle and Zhang 2009).

    The dynamic Bayesian network without giving up: users continue until they are satisfied. In closed form, as in the
    paper: a is the share of clicks among the times that a document was shown at or above the last click, or anywhere in
    a list without clicks; s is the share of its clicks that were the last ones. ``attraction_`` has a and
    ``satisfaction_`` has s for each item.
    """

    name: ClassVar[str] = "sdbn"
    parameters: ClassVar[tuple[str, ...]] = ("attraction_", "satisfaction_")

    def _continuing(self, log: ClickLog) -> tuple[Floats, float]:
        return 1 - self._per_row(log, self.satisfaction_, 0.5), 1.0


@dataclass(kw_only=True, eq=False)
class DynamicBayesian(_ChainModel, EMModel):
    """Dynamic Bayesian network, DBN: users stop when satisfied, or give up (Chapelle and Zhang 2009).

    A document that is examined is clicked with chance a, and satisfies with chance s if it is. Users who are not
    satisfied continue with chance g. Fitted by EM over what was examined below the last click, and whether that click
    satisfied. ``attraction_`` has a and ``satisfaction_`` has s for each item, ``continuation_`` has the single g.
    """

    name: ClassVar[str] = "dbn"
    parameters: ClassVar[tuple[str, ...]] = ("attraction_", "satisfaction_", "continuation_")

    def _fit(self, log: ClickLog, weights: Floats) -> None:
        n = len(self.items)
        self.attraction_, self.satisfaction_, self.continuation_ = np.full(n, 0.5), np.full(n, 0.5), np.full(1, 0.5)
        fitted = (self.attraction_, self.satisfaction_, self.continuation_)
        rule = (self.smoothing, self.prior_, self.tolerance, self.max_iterations)
        n = kernels.fit_dbn(log.offsets, self.items.find(log), log.clicked, weights, *rule, *fitted)
        self.n_iterations_, self.converged_ = abs(n), n > 0

    def _continuing(self, log: ClickLog) -> tuple[Floats, float]:
        goes_on = float(self.continuation_[0])
        return goes_on * (1 - self._per_row(log, self.satisfaction_, 0.5)), goes_on


_MODELS = (ClickThrough, PositionBased, Cascade, DependentClick, UserBrowsing, DynamicBayesian, SimplifiedBayesian)
CLICK_MODELS: dict[str, type[ClickModel]] = {model.name: model for model in _MODELS}


def make_model(model: str | ClickModel, **settings: Any) -> ClickModel:
    """A click model, as given or by its name in ``CLICK_MODELS``.

    Parameters
    ----------
    model : str or ClickModel
        A name such as ``"pbm"``, or a model.
    **settings
        Settings of the model, if it is given by name.

    Returns
    -------
    ClickModel

    Examples
    --------
    >>> make_model("cascade", smoothing=0).get_params()
    {'by': 'pair', 'smoothing': 0.0}
    """
    if isinstance(model, ClickModel):
        if settings:
            expected = "settings only with the name of a click model"
            raise ParameterError(argument=next(iter(settings)), expected=expected, got="a model, which has its own")
        return model
    as_choice("click model", model, CLICK_MODELS)
    known = CLICK_MODELS[model]().get_params()
    unknown = next((name for name in settings if name not in known), None)
    if unknown is not None:
        raise ParameterError.unknown(f"setting of {model}", unknown, known)
    return CLICK_MODELS[model](**settings)


def save(model: ClickModel, path: str | os.PathLike[str]) -> None:
    """Write a fitted click model as a JSON file.

    Parameters
    ----------
    model : ClickModel
        A fitted model.
    path : path
        The file to write.

    Examples
    --------
    >>> import tempfile, tierank
    >>> data = tierank.make_ranking(50, n_features=3, mean_length=12, max_length=20)
    >>> log, _ = tierank.clicks.simulate_clicks(data, data.features[:, 0], k=5, n_sessions=500)
    >>> model = tierank.clicks.CLICK_MODELS["pbm"]().fit(log)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, f"{folder}/pbm.json")
    ...     same = load(f"{folder}/pbm.json")
    >>> bool((same.examination_ == model.examination_).all())
    True
    """
    check_type("model", model, ClickModel)
    items = model.items
    content = {
        "format": _FORMAT,
        "model": model.name,
        "settings": model.get_params(),
        "prior": model.prior_,
        "by": items.by,
        "queries": items.queries.tolist(),
        "documents": items.documents.tolist(),
        "query_ids": items.query_ids.tolist(),
        "document_ids": items.document_ids.tolist(),
        "parameters": {name: getattr(model, name).tolist() for name in model.parameters},
    }
    try:
        text = json.dumps(content, allow_nan=False)
    except TypeError as error:
        raise DataError(where=path, expected="ids that JSON can hold: numbers and texts", got=f": {error}") from None
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def load(path: str | os.PathLike[str]) -> ClickModel:
    """Read a click model that ``save`` wrote.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    ClickModel
        The fitted model.

    Raises
    ------
    DataError
        If the file is not a click model, or is damaged.

    Examples
    --------
    >>> import tempfile, tierank
    >>> data = tierank.make_ranking(50, n_features=3, mean_length=12, max_length=20)
    >>> log, _ = tierank.clicks.simulate_clicks(data, data.features[:, 0], k=5, n_sessions=500)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(tierank.clicks.CLICK_MODELS["cascade"]().fit(log), f"{folder}/cascade.json")
    ...     load(f"{folder}/cascade.json").name
    'cascade'
    """
    place = as_path(path)
    try:
        content = read_json(place)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise DataError(argument="format", expected=repr(_FORMAT))
        model = make_model(content["model"], **content["settings"])
        of_queries = _items_in(content, "queries", "query_ids")
        of_documents = _items_in(content, "documents", "document_ids")
        if len(of_queries[0]) != len(of_documents[0]) or (np.diff(of_queries[0]) < 0).any():
            raise DataError(argument="queries", expected="one per document, in order")
        if content["by"] != getattr(model, "by", "document"):
            raise DataError(argument="by", expected=repr(getattr(model, "by", "document")), got=repr(content["by"]))
        model.items_ = Items(content["by"], of_queries[0], of_documents[0], of_queries[1], of_documents[1])
        model.prior_ = float(_as_chances("prior", [content["prior"]], 1)[0])
        sizes = {"attraction_": len(model.items_), "satisfaction_": len(model.items_)}
        if isinstance(model, DynamicBayesian):
            sizes["continuation_"] = 1
        for name in model.parameters:
            setattr(model, name, _as_chances(name, content["parameters"][name], sizes.get(name)))
        if isinstance(model, UserBrowsing) and math.isqrt(n := 8 * len(model.examination_) + 1) ** 2 != n:
            raise DataError(argument="examination_", expected="a chance for each pair of positions")
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise
        raise DataError(where=path, expected="a click model that `save` wrote", got=f": {error}") from None
    return model


def _items_in(content: Mapping[str, Any], name: str, name_of_ids: str) -> tuple[Ints, NDArray[Any]]:
    """The query or the document of each item in a file, and the ids."""
    numbers, values = np.array(content[name], np.int64), content[name_of_ids]
    ids = as_objects([tuple(one) if isinstance(one, list) else one for one in values])
    if len(set(ids.tolist())) < len(ids):
        raise DataError(argument=name_of_ids, expected="each id once")
    if not ((numbers >= 0) & (numbers < len(ids))).all():
        raise DataError(argument=name, expected=f"numbers of {name_of_ids}")
    return numbers, ids.astype(np.int64) if {type(one) for one in values} == {int} else ids


def _as_chances(name: str, values: list[float], n: int | None) -> NDArray[np.float64]:
    array = np.array(values, np.float64)
    n = len(array) if n is None else n
    if array.shape != (n,) or not n or not ((array >= 0) & (array <= 1)).all():
        raise DataError(argument=name, expected=f"{n} chances, from 0 to 1")
    return array


@dataclass(frozen=True, eq=False)
class HeldOut:
    """How well a click model predicts held-out sessions.

    Parameters
    ----------
    perplexity : array of float64
        The perplexity at each position; NaN if nothing was shown there.
    conditional_perplexity : array of float64
        The same, given the clicks further up in the list.
    log_likelihood : float
        The mean log-likelihood per session.
    """

    perplexity: Floats
    conditional_perplexity: Floats
    log_likelihood: float


def compare_models(
    log: ClickLog,
    models: Iterable[str] | Mapping[str, ClickModel] | None = None,
    *,
    held_out: float = 0.25,
    seed: int = 0,
) -> dict[str, HeldOut]:
    """Fit click models to a part of the sessions, and judge them on the others.

    Parameters
    ----------
    log : ClickLog
        The sessions.
    models : iterable of str, or mapping of str to ClickModel, optional
        Names of ``CLICK_MODELS``, or models by any name, which are fitted in place. Default: all of ``CLICK_MODELS``.
    held_out : float, default 0.25
        The share of the sessions that are held out.
    seed : int, default 0
        Random seed that chooses the held-out sessions.

    Returns
    -------
    dict of str to HeldOut
        What each model predicts of the held-out sessions, by its name.

    Examples
    --------
    >>> import tierank
    >>> data = tierank.make_ranking(50, n_features=3, mean_length=12, max_length=20)
    >>> log, _ = tierank.clicks.simulate_clicks(data, data.restore(data.ratings), model="cascade", k=5)
    >>> held_out = compare_models(log, ["pbm", "cascade"])
    >>> held_out["cascade"].log_likelihood > held_out["pbm"].log_likelihood
    True
    """
    check_log(log)
    Number(above=0, below=1).check("held_out", held_out)
    as_whole("seed", seed, 0)
    if log.n_sessions < 2:
        expected = "at least 2 sessions, some of which are held out"
        raise DataError(argument="log", expected=expected, got=str(log.n_sessions))
    candidates = models if isinstance(models, Mapping) else {name: make_model(name) for name in _as_names(models)}
    # At least one session in each part.
    n_test = min(max(1, round(held_out * log.n_sessions)), log.n_sessions - 1)
    train, test = log.split(1 - n_test / log.n_sessions, n_test / log.n_sessions, seed=seed)
    by_model = {}
    for name, model in candidates.items():
        model.fit(train)
        perplexities = model.perplexity(test), model.perplexity(test, conditional=True)
        by_model[name] = HeldOut(*perplexities, float(np.mean(model.log_likelihood(test))))
    return by_model


def choose_model(
    log: ClickLog, models: Iterable[str] | None = None, *, held_out: float = 0.25, seed: int = 0, **settings: Any
) -> ClickModel:
    """The click model that predicts held-out sessions best, fitted to all sessions.

    A click model that does not fit the users can reverse the order of documents, so check before you trust its
    relevance. The best model has the highest log-likelihood per session.

    Parameters
    ----------
    log : ClickLog
        The sessions.
    models : iterable of str, optional
        Names of ``CLICK_MODELS``. Default: all models with an attractiveness for each query and document.
    held_out : float, default 0.25
        The share of the sessions that are held out.
    seed : int, default 0
        Random seed that chooses the held-out sessions.
    **settings
        Settings of all models, such as ``smoothing``.

    Returns
    -------
    ClickModel

    Examples
    --------
    >>> import tierank
    >>> data = tierank.make_ranking(50, n_features=3, mean_length=12, max_length=20)
    >>> log, _ = tierank.clicks.simulate_clicks(data, data.restore(data.ratings), model="cascade", k=5)
    >>> choose_model(log, ["pbm", "cascade"]).name
    'cascade'
    """
    known = [name for name, kind in CLICK_MODELS.items() if issubclass(kind, AttractionModel)]
    names = known if models is None else _as_names(models)
    if not names:
        raise ParameterError(argument="models", expected="at least one name", got="none")
    candidates = {name: make_model(name, **settings) for name in names}
    if len(candidates) == 1:
        return candidates[names[0]].fit(log)
    by_model = compare_models(log, candidates, held_out=held_out, seed=seed)
    return candidates[max(by_model, key=lambda name: by_model[name].log_likelihood)].fit(log)


def _as_names(models: Any) -> list[str]:
    """The names of the models to compare; all of them by default."""
    if models is None:
        return list(CLICK_MODELS)
    if isinstance(models, (str, ClickLog)) or not isinstance(models, Iterable):
        fix = "sessions of the log are held out for the test" if isinstance(models, ClickLog) else None
        raise ParameterError(argument="models", expected="a list of names of click models", got=repr(models), fix=fix)
    return list(models)
