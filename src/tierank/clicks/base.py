"""What click models have in common: their items, and fit, predict, log-likelihood, perplexity, simulate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tierank.arrays import Floats
from tierank.clicks.log import ClickLog, Ints, check_log
from tierank.data.checks import as_weights
from tierank.data.matching import NotFitted
from tierank.errors import DataError
from tierank.kernels import click_models as kernels
from tierank.settings import Choice, DocumentedSettings, Integer, Number, as_whole, declared, setting

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
