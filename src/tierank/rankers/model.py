"""Callbacks: functions that are called after each round or epoch of training, and may stop it.

FittedModel: what a ranker has learned. It predicts, explains, exports, and lists its files.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats, Rows, chunks
from tierank.data.checks import as_names
from tierank.data.columns import Category
from tierank.data.dataset import RankingDataset
from tierank.data.encoder import ColumnEncoder
from tierank.data.team import Team
from tierank.errors import DataError, ParameterError, TeamError
from tierank.export import Scorer
from tierank.rankers.folder import Damaged
from tierank.settings import as_whole

# Packages whose callbacks are refused, with a hint.
_OTHERS = ("lightgbm", "xgboost", "catboost")


@dataclass(frozen=True)
class Step:
    """A finished round of boosting or epoch of a network: the argument of callbacks.

    Parameters
    ----------
    number : int
        The round or epoch, from 1.
    n_total : int
        The most rounds or epochs: ``n_trees``, or the epochs that ``max_epochs`` and ``step_budget`` allow.
    metrics : mapping of str to float
        The metrics of ``select_by`` on the validation data; empty without validation data.
    loss : float or None
        The mean training loss of the epoch; None for trees.
    is_best : bool
        Whether this is the best round so far; always true without validation data.
    settings : mapping of str to object
        The settings of the ranker that trains; those of the base or the member, if ``part`` names one.
    part : str, default ""
        The part of the ranker that trains: "base", then "trees" or "learners", for a ranker with a base; the family,
        such as "trees", for the members of a blend; "" for a ranker with only one part.
    member : int, default 0
        The network, of ``n_seeds``, or the member of a blend, from 0.
    learner : int, default 1
        The learner of UBoost or UrBoost, from 1; 1 for other rankers.

    Examples
    --------
    >>> from tierank import UMart, make_ranking
    >>> train, valid = make_ranking(30, n_features=5, mean_length=10, max_length=20).split(0.7, 0.3)
    >>> steps = []
    >>> ranker = UMart(n_trees=5).fit(train, valid=valid, callbacks=[steps.append])
    >>> [step.number for step in steps], steps[-1].metrics == ranker.history_[-1]
    ([1, 2, 3, 4, 5], True)
    """

    number: int
    n_total: int
    metrics: Mapping[str, float]
    loss: float | None
    is_best: bool
    settings: Mapping[str, Any]
    part: str = ""
    member: int = 0
    learner: int = 1


Callback = Callable[[Step], Any]


class Callbacks:
    """The callbacks of one call of ``fit``, and whether one of them has stopped it.

    Parameters
    ----------
    functions : sequence of callables, default ()
        Each is called with a ``Step``; training stops if one of them returns True.
    team : Team, optional
        The processes that train together: the callbacks of the first process decide for all.

    Attributes
    ----------
    stopped : bool
        Whether training has been stopped, in this run or in the run that it resumes.
    """

    functions: tuple[Callback, ...]
    team: Team
    stopped: bool

    def __init__(self, functions: Sequence[Callback] = (), team: Team | None = None) -> None:
        self.functions, self.team, self.stopped = tuple(functions), team or Team(), False
        # Processes without callbacks have to know whether the first process has some.
        self._is_heard = bool(self.functions)
        if self.team.size > 1:
            self._is_heard = bool(self.team.all_reduce(np.array([int(self._is_heard and self.team.is_first)]))[0])

    def call(self, step: Callable[[], Step]) -> bool:
        """Call the callbacks after a step; returns whether training has to stop."""
        if not self._is_heard:
            return self.stopped
        wants, failure = False, None
        if self.team.is_first:
            try:
                now = step()
                answers = [function(now) for function in self.functions]  # all of them, even if the first one stops
                wants = any(isinstance(answer, (bool, np.bool_)) and bool(answer) for answer in answers)
            except BaseException as error:  # raised below: the other processes wait for an answer
                failure = error
        if self.team.size > 1:
            stops, failed = self.team.all_reduce(np.array([int(wants), int(failure is not None)]))
            wants = bool(stops)
            if failed:
                words = self.team.broadcast((str(failure) or type(failure).__name__).encode()) or b""
                if failure is None:
                    raise TeamError(f"a callback failed: {words.decode(errors='replace')}", where="process 0")
        if failure is not None:
            raise failure
        self.stopped |= wants
        return self.stopped


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """The callbacks as a tuple; raises ``ParameterError`` if one cannot be called, or is one of another library."""
    if callbacks is None:
        return ()
    if callable(callbacks) or isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        raise ParameterError(
            argument="callbacks", expected="a list of functions of a tierank.Step", got=_shown(callbacks)
        )
    for callback in callbacks:
        package = str(getattr(callback, "__module__", "")).partition(".")[0]
        if package in _OTHERS:
            raise ParameterError(
                argument="callbacks",
                expected="functions of a tierank.Step",
                got=f"a callback of {package}",
                fix="the setting `patience` stops early, `progress`=True shows progress, history_ has the metrics",
            )
        if not callable(callback):
            raise ParameterError(argument="callbacks", expected="functions of a tierank.Step", got=_shown(callback))
    return tuple(callbacks)


def _shown(value: Any) -> str:
    return getattr(value, "__name__", None) or type(value).__name__


T = TypeVar("T")


class Resources(NamedTuple):
    """Resources for scoring, which do not affect the scores.

    Parameters
    ----------
    n_jobs : int or None, default None
        Number of threads; None for one per core, fewer for small data.
    device : str, default "cpu"
        The torch device of networks.
    """

    n_jobs: int | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class Seen:
    """Facts about the training data.

    Parameters
    ----------
    n_features : int
        Number of features.
    feature_names : tuple of str, optional
        Their names, if the data had any.
    has_queries : bool, default True
        Whether query ids were given.
    has_missing : bool, default False
        Whether any feature value was missing.
    longest_query : int, default 1
        Documents in the longest query.
    columns : ColumnEncoder, optional
        What was learned about columns that are not plain numbers.
    query_column : str, optional
        The name of the column that query ids came from, if they came from one.
    """

    n_features: int
    feature_names: tuple[str, ...] | None = None
    has_queries: bool = True
    has_missing: bool = False
    longest_query: int = 1
    columns: ColumnEncoder = field(default_factory=ColumnEncoder)
    query_column: str | None = None

    @classmethod
    def of(cls, train: RankingDataset, plan: ColumnEncoder, has_queries: bool, team: Team) -> Seen:
        """The facts about the training data of all processes of a team."""
        rows = train.features[team.rows(train.n_documents)]
        has_missing = any(bool(np.isnan(chunk).any()) for chunk in chunks(rows))
        answers = team.all_gather([has_missing, int(train.lengths.max())])
        has_missing, longest = (max(column) for column in zip(*answers, strict=True))
        column = train.roles.get("query")
        return cls(train.n_features, train.feature_names, has_queries, has_missing, longest, plan, column)

    def after(self, earlier: Seen) -> Seen:
        """These facts and those about data that a model was fitted on before."""
        return replace(
            self,
            feature_names=self.feature_names or earlier.feature_names,
            has_missing=self.has_missing or earlier.has_missing,
            longest_query=max(self.longest_query, earlier.longest_query),
            query_column=self.query_column or earlier.query_column,
        )

    def to_json(self) -> dict[str, Any]:
        """The facts as plain values for JSON; ``from_json`` reads them."""
        names = None if self.feature_names is None else list(self.feature_names)
        return vars(self) | {"feature_names": names, "columns": self.columns.to_json()}

    @classmethod
    def from_json(cls, described: Mapping[str, Any], files: Mapping[str, bytes]) -> Seen:
        """The facts of a model file. Raises an error of any type if they are damaged."""
        n_features = as_whole("n_features", described["n_features"])
        names = as_names(described["feature_names"], n_features)
        query_column = described.get("query_column")  # models of earlier versions have none
        if not isinstance(query_column, (str, type(None))):
            raise Damaged("query_column")
        return cls(
            n_features,
            names,
            bool(described["has_queries"]),
            bool(described["has_missing"]),
            as_whole("longest_query", described["longest_query"]),
            ColumnEncoder.from_json(described.get("columns", {}), names, files),
            query_column,
        )

    def n_levels(self) -> dict[int, int]:
        """The number of levels of each category, by the index of the feature."""
        kinds = [self.columns.kinds.get(name) for name in self.feature_names or ()]
        return {place: len(kind.levels) for place, kind in enumerate(kinds) if isinstance(kind, Category)}

    def with_features_of(self, data: RankingDataset) -> Seen:
        """The same facts, for data that have other features."""
        columns = replace(self.columns, kinds=data.kinds)
        return replace(self, n_features=data.n_features, feature_names=data.feature_names, columns=columns)


@dataclass(frozen=True)
class FitContext:
    """What ``fit_model`` gets besides the data: the checked settings, and the other arguments of ``fit``.

    Parameters
    ----------
    seen : Seen
        Facts about the training data.
    settings : dict
        The settings of the ranker that trains, checked and in their plain form.
    checkpoint : Path, optional
        The folder for the state of training, if one was given.
    progress : bool, default False
        Whether to show a progress bar.
    team : Team, optional
        The processes that train together; a team of one by default.
    callbacks : Callbacks, optional
        The callbacks of this call, which ``step`` calls.
    start : FittedModel, optional
        The model to continue from, which ``Ranker.check_inputs`` has accepted.
    part : str, default ""
        The part of the ranker that trains, for callbacks.
    member : int, optional
        The member of a blend that trains, for callbacks.
    ranker : type, optional
        The class of the ranker that trains: a checkpoint of another one is refused.
    """

    seen: Seen
    settings: dict[str, Any] = field(default_factory=dict)
    checkpoint: Path | None = None
    progress: bool = False
    team: Team = field(default_factory=Team)
    callbacks: Callbacks = field(default_factory=Callbacks)
    start: FittedModel | None = None
    part: str = ""
    member: int | None = None
    ranker: type[Any] | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether a callback has stopped training. Work that has not started is then skipped if possible."""
        return self.callbacks.stopped

    def step(
        self,
        number: int,
        n_total: int,
        settings: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
        **more: Any,
    ) -> bool:
        """Call the callbacks after a round or epoch.

        Parameters
        ----------
        number : int
            The round or epoch that has ended, from 1.
        n_total : int
            The most rounds or epochs.
        settings : mapping of str to object
            The settings of the ranker that trains.
        metrics : mapping of str to float, optional
            Its metrics on the validation data.
        **more
            ``loss``, ``is_best``, ``member`` and ``learner`` of the ``Step``, if they differ from None, True, 0 and 1.

        Returns
        -------
        bool
            Whether a callback has stopped training, now or earlier.
        """
        fields = {"loss": None, "is_best": True} | more | ({} if self.member is None else {"member": self.member})
        of_metrics, of_settings = MappingProxyType(dict(metrics or {})), MappingProxyType(dict(settings))
        return self.callbacks.call(
            lambda: Step(number, n_total, of_metrics, settings=of_settings, part=self.part, **fields)
        )

    def inside(self, name: str) -> FitContext:
        """The context of a part of a ranker, with its own checkpoint, and without ``start``."""
        checkpoint = None if self.checkpoint is None else self.checkpoint / name
        return replace(self, checkpoint=checkpoint, start=None, part=f"{self.part}.{name}" if self.part else name)

    def of_base(self, base: Any) -> FitContext:
        """The fit context of the base ranker."""
        return replace(self.inside("base"), ranker=type(base), settings=base.checked_settings())


class SavedModel(NamedTuple):
    """The content of a model folder.

    Parameters
    ----------
    seen : Seen
        Facts about the training data.
    facts : dict
        The result of ``FittedModel.facts``.
    files : dict of str to bytes
        The result of ``FittedModel.files``; checksums were verified.
    """

    seen: Seen
    facts: dict[str, Any]
    files: dict[str, bytes]

    def inside(self, name: str, facts: Any) -> SavedModel:
        """A model that is part of this one: the files with this prefix, and its own facts."""
        return SavedModel(self.seen, facts if isinstance(facts, dict) else {}, inside(self.files, f"{name}."))


def inside(named: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The entries whose names begin with a prefix, under their names without it.

    >>> inside({"base.trees.txt": 1, "trees.txt": 2}, "base.")
    {'trees.txt': 1}
    """
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}


def as_history(given: Any) -> list[dict[str, Any]]:
    """The rows of a history from a file. Raises ``ValueError`` if they are not rows of numbers."""
    if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
        raise Damaged("a history without rows")
    if not all(value is None or isinstance(value, (int, float)) for row in given for value in row.values()):
        raise Damaged("a history with values that are not numbers")
    return given


def as_best(given: Any) -> dict[str, float]:
    """The metrics of the best round from a file. Raises ``ValueError`` if they are not numbers."""
    if not isinstance(given, dict) or not all(type(value) in (int, float) for value in given.values()):
        raise Damaged("metrics that are not numbers")
    return given


class FittedModel(ABC):
    """What a ranker has learned. Subclasses define ``predict``; the defaults of other methods say what is missing.

    Attributes
    ----------
    history : list of dict
        A row for each round or epoch of training.
    best : dict of str to float
        The validation metrics of what was kept; empty without validation data.
    """

    history: list[dict[str, Any]]
    best: dict[str, float]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "portable" in vars(cls):
            warnings.warn(f"{cls.__name__}: portable is called to_neutral now", DeprecationWarning, stacklevel=2)
            cls.to_neutral = vars(cls)["portable"]  # type: ignore[method-assign]

    @abstractmethod
    def predict(self, data: RankingDataset, resources: Resources) -> Floats:
        """One score per document, in the order of the data set; higher is better.

        Parameters
        ----------
        data : RankingDataset
            Documents with the features of the training data.
        resources : Resources
            Threads and device.

        Returns
        -------
        array of float64
            One score per document.
        """

    @property
    def needs_list(self) -> bool:
        """Whether the score of a document depends on the other documents of its query."""
        return False

    def used_features(self, n_features: int) -> NDArray[np.bool_]:
        """Which features the scores can depend on.

        Parameters
        ----------
        n_features : int
            Number of features.

        Returns
        -------
        array of bool
            One value per feature.
        """
        return np.ones(n_features, bool)

    def contributions(self, data: RankingDataset, above: Rows, below: Rows, resources: Resources) -> Floats:
        """What each feature adds to ``score[above] - score[below]``, for pairs of rows of one query.

        Parameters
        ----------
        data : RankingDataset
            Documents with the features of the training data.
        above, below : array of int64
            The rows of each pair.
        resources : Resources
            Threads and device.

        Returns
        -------
        array of float64
            Pairs x features. A row sums to the difference of the scores, up to the error of the method.
        """
        raise ParameterError(f"{type(self).__name__} cannot explain its scores", fix="trees and networks can")

    def to_neutral(self) -> Scorer:
        """The model in the neutral form that export targets read."""
        raise ParameterError(f"{type(self).__name__} cannot be exported", fix="trees and networks can")

    def files(self) -> dict[str, bytes]:
        """The large parts of the model, by file name, for ``save``."""
        raise DataError(f"{type(self).__name__} cannot be saved", fix="define files() in the class of its model")

    def facts(self) -> dict[str, Any]:
        """The small parts of the model, for JSON."""
        return {}

    def digest(self) -> str:
        """A checksum of the files and facts, which identifies the model."""
        parts = [*sorted(self.files().items()), ("", json.dumps(self.facts(), default=str).encode())]
        digest = hashlib.sha256()
        for name, content in parts:
            digest.update(f"{name} {len(content)} ".encode() + content)
        return digest.hexdigest()


class TrainingStopped(ParameterError):
    """Training that could not continue, with the model so far."""

    model: FittedModel | None = None
