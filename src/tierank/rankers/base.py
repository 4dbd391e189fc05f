"""Ranker: the public contract. A ranker has settings and holds a fitted model, by scikit-learn's conventions."""

from __future__ import annotations

import inspect
import os
import warnings
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import Tags

from tierank import __version__
from tierank.columns import Plan
from tierank.dataset import RankingDataset, check_dataset
from tierank.errors import DataError, ParameterError
from tierank.estimators import HOW_TO_ROUTE, as_dataset
from tierank.export import Model, Scorer, Target, as_target, write_model
from tierank.extras import needing
from tierank.files import as_path
from tierank.kinds import Columns
from tierank.metrics import Judge, Rule
from tierank.models import class_name, encode_settings, with_description, write_folder
from tierank.rankers.configured import Configured
from tierank.rankers.hints import refuse_unknown, why_no_attribute
from tierank.rankers.importance import losses_of_shuffles
from tierank.rankers.ranked import Ranked
from tierank.rankers.showing import as_html
from tierank.rankers.training_data import (
    Given,
    Lesson,
    check_kinds,
    of_validation,
    settle_unjudged,
    warn_of_columns,
    warn_of_odd_queries,
    with_propensities,
)
from tierank.settings import MOST_REPEATS, as_limit, as_whole, check_type, declared
from tierank.team import Team
from tierank.training.agreement import agreement, check_contents, facts_of_call
from tierank.training.callbacks import Callback, Callbacks, check_callbacks
from tierank.training.model import FitContext, FittedModel, Resources, SavedModel, Seen, TrainingStopped

# What an argument has to be that is not trained again.
FITTED = "a fitted ranker"


class Ranker(Configured):
    """Base class of all rankers; subclass it to write your own.

    A subclass is a dataclass whose fields are its settings, and defines ``fit_model``, which returns a ``FittedModel``.
    With ``restore_model`` its models can be loaded. Everything else is inherited: ``fit``, ``predict``, ``rank``,
    ``score``, ``save``, cross-validation, tuning, scikit-learn's tools and the command line.

    Attributes
    ----------
    model_ : FittedModel
        What was learned.
    settings_ : dict
        The settings that the model was fitted with; later ``set_params`` calls do not change them.
    seen_ : Seen
        Facts about the training data.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import tierank
    >>> from tierank.settings import Integer, setting
    >>> class ColumnModel(tierank.FittedModel):
    ...     def __init__(self, column):
    ...         self.column, self.history, self.best = column, [], {}
    ...     def predict(self, data, resources):
    ...         return data.features[:, self.column].astype(float)
    >>> @dataclass(kw_only=True, eq=False, repr=False)
    ... class ByColumn(tierank.Ranker):
    ...     column: int = setting(0, Integer(0), "the column to rank by")
    ...     def fit_model(self, train, valid, context):
    ...         return ColumnModel(self.checked_settings()["column"])
    >>> data = tierank.RankingDataset([[0.5, 3.0], [1.5, 2.0]], [0, 1], qid=["a", "a"])
    >>> ByColumn(column=1).fit(data).rank(data).row.tolist()
    [0, 1]
    """

    model_: FittedModel
    settings_: dict[str, Any]
    seen_: Seen

    # scikit-learn routes query ids to these methods without being asked.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"qid": True}
    __metadata_request__predict: ClassVar[dict[str, bool]] = {"qid": True}
    __metadata_request__score: ClassVar[dict[str, bool]] = {"qid": True}

    # What a subclass defines

    def takes_categories(self) -> bool:
        """Whether ``fit_model`` learns from level numbers; otherwise each level becomes a 0/1 feature."""
        return False

    def takes_unjudged(self) -> bool:
        """Whether ``fit_model`` leaves out documents whose rating is NaN; otherwise it is given no such documents."""
        return False

    def takes_parts(self) -> bool:
        """Whether each process of a team may have only a part of the data; otherwise each needs all of it."""
        return False

    @abstractmethod
    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> FittedModel:
        """Learn.

        Parameters
        ----------
        train : RankingDataset
            The training data, with ratings.
        valid : RankingDataset or None
            Validation data, with the features of ``train``.
        context : FitContext
            Checkpoint, progress, team, and facts about the training data.

        Returns
        -------
        FittedModel
            What was learned.
        """

    def restore_model(self, saved: SavedModel) -> FittedModel:
        """The fitted model from what was saved; this ranker has the settings of the model.

        Parameters
        ----------
        saved : SavedModel
            The ``files`` and ``facts`` of the model, and facts about the training data.

        Returns
        -------
        FittedModel
            The model, which predicts as it did when it was saved.
        """
        raise DataError(f"{type(self).__name__} cannot be loaded: it does not define restore_model()")

    def check_start(self, start: Ranker, settings: Mapping[str, Any]) -> None:
        """Raise ``ParameterError`` if training with these settings cannot continue from another model.

        A ranker that can continue overrides this; its ``fit_model`` finds the model in ``context.start``.

        Parameters
        ----------
        start : Ranker
            A fitted ranker, with the number of features of the training data.
        settings : mapping of str to object
            The settings of this ranker in their plain form.
        """
        raise ParameterError(
            argument="start", expected=f"None, as {type(self).__name__} cannot continue from a model", got="a ranker"
        )

    def check_shown(self, train: RankingDataset, settings: Mapping[str, Any]) -> None:
        """Raise ``ParameterError`` if the ranker cannot learn from the positions or propensities of these data.

        A ranker that can learn from them overrides this; its ``fit_model`` finds them in ``train.position`` and
        ``train.propensity``.

        Parameters
        ----------
        train : RankingDataset
            The training data.
        settings : mapping of str to object
            The settings of this ranker in their plain form.
        """
        for name in ("propensity", "position"):
            if getattr(train, name) is not None:
                raise ParameterError(
                    argument=name,
                    expected=f"None, as {type(self).__name__} cannot correct for positions",
                    got="some",
                    fix="train UMart, LambdaMART or URank, or learn from tierank.clicks.judgements",
                )

    def outline(self, train: RankingDataset, seen: Seen) -> Scorer:
        """The neutral form of the model after training, with placeholder numbers: ``for_target`` is checked by it."""
        raise ParameterError(
            argument="for_target", expected=f"None, as {type(self).__name__} has no export", got="a target"
        )

    def resources(self) -> Resources:
        """The threads and the device that the settings allow."""
        return Resources(getattr(self, "n_jobs", None), getattr(self, "device", "cpu"))

    # Learning

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        qid: ArrayLike | None = None,
        *,
        valid: RankingDataset | Sequence[Any] | None = None,
        row_weight: ArrayLike | None = None,
        query_weight: ArrayLike | Mapping[Hashable, float] | None = None,
        position: ArrayLike | None = None,
        propensity: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: bool = False,
        team: Team | None = None,
        callbacks: Sequence[Callback] | None = None,
        start: Ranker | None = None,
        columns: Columns | None = None,
        ignore: Sequence[str] | None = None,
        **unknown: Any,
    ) -> Self:
        """Learn to rank.

        Warns (``ColumnWarning``) if named columns look like ids, are constant, or leak the ratings.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            A data set, or features with one row per document.
        y : array, optional
            One rating per row, any finite number >= 0; NaN or None for an unjudged document. Not needed with a
            ``RankingDataset``.
        qid : array, optional
            One query id per row, in any order. Without it all rows are one query.
        valid : RankingDataset or (X, y, qid), optional
            Validation data. Training keeps the round that is best on them by ``select_by``, and stops after
            ``patience`` rounds without improvement.
        row_weight : array, optional
            One weight per row: how much a document counts. See the page on weights for what that means in each ranker.
        query_weight : array or mapping, optional
            One weight per query, or a mapping from query id to weight.
        position : array, optional
            Where each document was shown, from 1, if ``y`` are clicks (1 or 0) and ``qid`` are the lists that were
            shown. ``UMart`` and ``LambdaMART`` then learn the propensities of positions together with their trees;
            networks need ``propensity`` or the setting ``position_tower``. Not needed with a ``RankingDataset`` that
            has positions.
        propensity : array or Propensities, optional
            The chance that a document is examined; clicks are divided by it. One number per position, one per row, or
            the result of ``tierank.clicks.estimate_propensities``. Propensities by position apply to ``valid`` too.
        checkpoint : path, optional
            A folder for the state of training. If it exists, a call with the same data and settings continues from
            there, and gives the same model bit for bit.
        progress : bool, default False
            Show a progress bar.
        team : Team, optional
            The result of ``tierank.distributed.join``, if several processes train one model. Each calls ``fit`` with
            the same data and settings, which are compared first, and ends with the same model.
        callbacks : list of callables, optional
            Functions that are called with a ``tierank.Step`` after each round or epoch. If one returns True, training
            stops and the best round so far is kept. In a team only the first process calls them.
        start : Ranker, optional
            A fitted ranker to continue from; it is not changed. Tree rankers keep its trees and add up to ``n_trees``
            more; networks start with its weights and keep its transform.
        columns : Columns, optional
            What the columns of a table hold, where their types do not tell, as in ``tierank.read``; applies to
            ``valid`` too.
        ignore : list of str, optional
            Columns of a table, or named features of a ``RankingDataset``, to leave out. Ignored columns of a table may
            hold anything.
        **unknown
            Arguments of other libraries are refused with a message that says what to use instead.

        Returns
        -------
        self
        """
        team = Team() if team is None else team
        check_type("team", team, Team, "tierank.distributed.join returns one")
        weights = {"row_weight": row_weight, "query_weight": query_weight, "position": position}
        given = Given(X, y, qid, valid, weights, propensity, columns, ignore)
        with agreement(team) as facts, needing(type(self).__name__):
            self._refuse_unknown("fit", unknown)
            self._check_parts(team)
            functions = check_callbacks(callbacks)
            lesson = self._prepare(given, start, team)
            named = {"qid": given.has_queries, "checkpoint": checkpoint is not None}
            facts |= facts_of_call(type(self).__name__, lesson.settings, named, lesson.train, lesson.valid, team)
            if start is not None:
                self.check_start(start, lesson.settings)
                if team.size > 1:
                    facts["arguments of fit"]["start"] = {"content": start.model_.digest()}
        if team.is_first:
            warn_of_odd_queries(lesson.train, lesson.valid, has_queries=given.has_queries)
            if start is None:
                warn_of_columns(lesson.raw)
        check_contents(team, lesson.train, lesson.valid, self.resources().n_jobs)
        seen = Seen.of(lesson.train, lesson.plan, given.has_queries, team)
        seen = seen if start is None else seen.after(start.seen_)
        folder = None if checkpoint is None else as_path(checkpoint, "checkpoint", "the name of a folder")
        before = None if start is None else start.model_
        shown = progress and team.is_first
        called = Callbacks(functions, team)
        self._learn(lesson, FitContext(seen, folder, shown, team, called, before, ranker=type(self)))
        return self

    def _check_parts(self, team: Team) -> None:
        if team.size > 1 and team.holds_parts and not self.takes_parts():
            raise ParameterError(
                argument="team",
                expected=f"all data in every process, which these settings of {type(self).__name__} need",
                got="a part in each (holds_parts)",
            )

    def _prepare(self, given: Given, start: Ranker | None, team: Team) -> Lesson:
        """Check data and settings, and convert them to what ``fit_model`` expects."""
        train = given.training_rows(type(self).__name__)
        train = train if start is None else _with_features_of_start(train, start)
        raw, valid = settle_unjudged(
            train,
            given.validation_rows(),
            getattr(self, "unjudged", "skip"),
            is_taken=self.takes_unjudged(),
            are_clicks=given.propensity is not None,
            is_part=team.size > 1 and team.holds_parts,
        )
        check_kinds(raw, team)
        if start is None:
            plan, train = Plan.learn(raw, by_levels=self.takes_categories())
        else:
            plan, train = start.seen_.columns, raw
        if valid is not None:
            with of_validation():
                valid = plan.apply(self._with_features_of(plan.expand(valid), train.n_features, train.feature_names))
        settings = self.checked_settings()
        train, valid = with_propensities(train, valid, given.propensity, settings.get("clip"))
        self.check_shown(train, settings)
        return Lesson(raw, train, valid, plan, settings)

    def _learn(self, lesson: Lesson, context: FitContext) -> None:
        """Train, and hold the model. If ``for_target`` cannot represent it, refuse it, before training if possible."""
        name = lesson.settings.get("for_target")
        target = None if name is None else as_target(name)
        if target is not None:  # before training and again after it, as training decides on the final form of the model
            _check_outline(self, target, lesson.train, context.seen)
        try:
            model = self.fit_model(lesson.train, lesson.valid, context)
        except TrainingStopped as stop:
            if stop.model is not None:
                self._keep(stop.model, context.seen, lesson.settings)
            raise
        self._keep(model, context.seen, lesson.settings)
        if target is not None:
            target.check(self.portable())

    def _refuse_unknown(self, method: str, unknown: Mapping[str, Any]) -> None:
        if unknown:
            refuse_unknown(type(self).__name__, method, unknown, _arguments(type(self), method), declared(self))

    @classmethod
    def arguments_of_fit(cls) -> list[str]:
        """The arguments of ``fit``, which are not settings."""
        return _arguments(cls, "fit")

    def hold(self, model: FittedModel, seen: Seen) -> None:
        """Make this a fitted ranker, with a model that was trained elsewhere and the current settings.

        Parameters
        ----------
        model : FittedModel
            The model to hold.
        seen : Seen
            Facts about the data that it was trained on.
        """
        self._keep(model, seen, self.plain_settings())

    def _keep(self, model: FittedModel, seen: Seen, settings: Mapping[str, Any]) -> None:
        """Make this a fitted ranker."""
        self.model_, self.seen_, self.settings_ = model, seen, dict(settings)
        self._set_features(seen.n_features, seen.feature_names)

    # Fitted

    if not TYPE_CHECKING:  # to a checker, a class with __getattr__ has every attribute

        def __getattr__(self, name: str) -> Any:
            """Say that a ranker is not fitted, or what the attribute of another library is called here."""
            if name in Ranker.__annotations__:
                self._refuse_unfitted()
            if hasattr(type(self), name):  # a property that raised an AttributeError: raise it again
                return object.__getattribute__(self, name)
            raise why_no_attribute(self, name)

    @property
    def _plan(self) -> Plan:
        return self.seen_.columns

    @property
    def columns_(self) -> Columns:
        """The columns that the model expects not to be plain numbers; pass it to ``read`` as ``columns=``."""
        self._check_fitted()
        return self.seen_.columns.columns()

    def check_fitted(self) -> None:
        """Raise ``NotFittedError`` if the ranker was not fitted."""
        self._check_fitted()

    @property
    def history_(self) -> list[dict[str, Any]]:
        """A row for each round or epoch of training, with its metrics on the validation data."""
        return self.model_.history

    @property
    def best_(self) -> dict[str, float]:
        """The validation metrics of the model that was kept; empty without validation data."""
        return self.model_.best

    def _repr_html_(self) -> str:
        """Settings, history and importances for notebooks."""
        return as_html(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def named_importances(self) -> tuple[list[str], NDArray[np.float64]]:
        """The names of the features and their importance by the model itself; both empty if it has no such measure.

        Trees have the gain of their splits. For other rankers, use ``permutation_importance``.
        """
        return [], np.empty(0)

    def match_features(self, X: Any, qid: ArrayLike | None = None) -> RankingDataset:
        """The data with the features that the ranker was fitted on, in that order.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        qid : array, optional
            One query id per row.

        Returns
        -------
        RankingDataset
        """
        self._check_fitted()
        return self._as_own_features(X, qid)

    def predict(self, X: Any, qid: ArrayLike | None = None, **unknown: Any) -> NDArray[np.float64]:
        """Score documents.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        qid : array, optional
            One query id per row. Rankers that score whole lists need it: see ``needs_list``.
        **unknown
            Arguments of other libraries are refused with a message that says what to use instead.

        Returns
        -------
        array
            One score per row, in the order of the rows; higher is better.
        """
        self._refuse_unknown("predict", unknown)
        data = self._as_candidates(X, qid)
        return data.restore(self.model_.predict(data, self.resources()))

    def rank(self, X: Any, qid: ArrayLike | None = None, k: int | None = None, **unknown: Any) -> Ranked:
        """Rank the documents of each query, best first.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        qid : array, optional
            One query id per row.
        k : int, optional
            At most this many documents per query.
        **unknown
            Arguments of other libraries are refused with a message that says what to use instead.

        Returns
        -------
        Ranked
            Arrays ``query``, ``rank``, ``row`` (the row in ``X``), ``document`` (its id; None if the data have no
            document ids) and ``score``. Equal scores keep the order of the rows.
        """
        self._refuse_unknown("rank", unknown)
        self._check_fitted()
        k = as_limit("k", k)
        data = self._as_candidates(X, qid)
        if type(self).predict is not Ranker.predict:  # a subclass with its own scores
            return Ranked.of(data, data.arrange(self.predict(X, qid)), k)
        return Ranked.of(data, self.model_.predict(data, self.resources()), k)

    def check_predicts_as_its_model(self, what: str) -> None:
        """Raise ``ParameterError`` if a subclass computes its scores in ``predict``, which ``what`` cannot see."""
        self._check_fitted()
        if type(self).predict is not Ranker.predict:
            raise ParameterError(
                f"{type(self).__name__} defines predict, and {what} takes the scores of its model_",
                fix="define predict in a subclass of FittedModel, and return that from fit_model",
            )

    def score(
        self, X: Any, y: ArrayLike | None = None, qid: ArrayLike | None = None, sample_weight: None = None
    ) -> float:
        """Mean NDCG@10 under the rule ``tierank``; scikit-learn's tools call this.

        For other metrics use ``tierank.evaluate``, or ``tierank.scorer`` in scikit-learn's tools.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        y : array, optional
            One rating per row. Not needed with a ``RankingDataset``.
        qid : array, optional
            One query id per row; needed if ``fit`` had query ids.
        sample_weight : None, optional
            Refused: a metric weighs queries, not rows.

        Returns
        -------
        float
        """
        if sample_weight is not None:
            raise ParameterError("sample_weight is not supported: a metric weighs queries, not rows")
        self._check_fitted()
        if self.seen_.has_queries and qid is None and not isinstance(X, RankingDataset):
            raise DataError(
                argument="qid",
                expected="one query id per row, as in fit",
                got="none",
                fix=HOW_TO_ROUTE,
            )
        data = as_dataset(X, y, qid)
        values = Judge(data, "ndcg@10")(data.arrange(self.predict(data)))["ndcg@10"]
        return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0

    def permutation_importance(
        self,
        data: RankingDataset,
        metric: str = "ndcg@10",
        rule: str | Rule = "tierank",
        *,
        n_repeats: int = 5,
        seed: int = 0,
    ) -> NDArray[np.float64]:
        """How much the mean of a metric drops if a feature is shuffled among all documents.

        Takes one prediction for each used feature and repeat. For small data several shuffled copies are predicted
        together; for large data there is one copy at a time.

        Parameters
        ----------
        data : RankingDataset
            Data with ratings.
        metric : str, default "ndcg@10"
            The metric.
        rule : str or Rule, default "tierank"
            The rule of the metric.
        n_repeats : int, default 5
            How often each feature is shuffled.
        seed : int, default 0
            Random seed.

        Returns
        -------
        array
            The drops, features x repeats.
        """
        self.check_predicts_as_its_model("permutation_importance")
        check_dataset("data", data)
        as_whole("n_repeats", n_repeats, most=MOST_REPEATS)
        as_whole("seed", seed, 0)
        data, resources = self._as_own_features(data, None), self.resources()
        return losses_of_shuffles(
            data,
            lambda scored: self.model_.predict(scored, resources),
            Judge(data, metric, rule),
            self.model_.used_features(data.n_features),
            n_repeats,
            seed,
        )

    def needs_list(self) -> bool:
        """Whether the score of a document depends on the other documents of its query: predict needs the whole list."""
        self._check_fitted()
        return self.model_.needs_list

    def portable(self) -> Model:
        """The model in the neutral form that export targets read."""
        self.check_predicts_as_its_model("export")
        seen = self.seen_
        return Model(self.model_.portable(), seen.n_features, seen.feature_names, seen.has_missing, seen.columns.kinds)

    def export(self, path: str | os.PathLike[str], to: str | Target) -> None:
        """Write the model in the form of another engine. ``tierank.verify`` proves that it gives the same scores.

        Parameters
        ----------
        path : path
            The file or folder to write.
        to : str or Target
            A key of ``tierank.TARGETS``, or your own target. A model that the engine cannot represent exactly is
            refused with a message that says what to change in training; the setting ``for_target`` refuses it before
            training.
        """
        write_model(self.portable(), path, to)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as a folder: ``model.json`` and the files it names, with their checksums.

        Parameters
        ----------
        path : path
            The folder. An earlier model there is replaced in one step.
        """
        write_folder(path, self.model_files())

    def model_files(self) -> dict[str, bytes]:
        """The files that ``save`` writes, by name."""
        self._check_fitted()
        if type(self).restore_model is Ranker.restore_model:
            raise DataError(f"{type(self).__name__} cannot be saved: without restore_model() it could not be loaded")
        description = {
            "tierank": __version__,
            "ranker": class_name(type(self)),
            "settings": encode_settings(self.settings_),
            **self.seen_.to_json(),
            "fitted": self.model_.facts(),
        }
        return with_description(description, self.model_.files() | self.seen_.columns.files())

    def _as_candidates(self, X: Any, qid: ArrayLike | None) -> RankingDataset:
        """The data to score; warns if many queries seem to have been given as one list."""
        self._check_fitted()
        data = self._as_own_features(X, qid)
        is_one_list = qid is None and not isinstance(X, RankingDataset) and self.seen_.has_queries
        if is_one_list and data.n_documents > self.seen_.longest_query and self.model_.needs_list:
            warnings.warn(
                f"{type(self).__name__} scores a document by the other documents of its query, and no qid was given:"
                f" these {data.n_documents:,} rows are scored as one query, longer than the longest training query"
                f" ({self.seen_.longest_query:,} documents). Give one query id per row if they are several queries",
                stacklevel=3,
            )
        return data

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags


def _arguments(ranker: type[Ranker], method: str) -> list[str]:
    parameters = inspect.signature(getattr(ranker, method)).parameters.values()
    return [one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name != "self"]


def fitted_copy(ranker: Ranker, model: FittedModel, seen: Seen) -> Ranker:
    """A ranker with these settings that holds a model, which was fitted as part of another one."""
    copy: Ranker = clone(ranker)
    copy.hold(model, seen)
    return copy


def check_ranker(argument: str, value: object, expected: str = "a ranker, such as UMart()") -> None:
    """Raise ``ParameterError`` unless the argument is a ranker, and say how to get one.

    >>> check_ranker("ranker", "model", FITTED)
    Traceback (most recent call last):
    tierank.errors.ParameterError: ranker: expected a fitted ranker, got str; tierank.load reads a saved one, and
    tierank.from_lightgbm a model of LightGBM
    """
    if isinstance(value, Ranker):
        return
    fix = None
    if isinstance(value, type) and issubclass(value, Ranker):
        fix = f"this is the class; create a ranker: {value.__name__}()"
    elif isinstance(value, (str, os.PathLike)) or type(value).__module__.partition(".")[0] == "lightgbm":
        fix = "tierank.load reads a saved one, and tierank.from_lightgbm a model of LightGBM"
    raise ParameterError(argument=argument, expected=expected, got=type(value).__name__, fix=fix)


def _with_features_of_start(train: RankingDataset, start: Any) -> RankingDataset:
    """The training data with the features of the model to continue from, in its order."""
    check_ranker("start", start, FITTED)
    matched: RankingDataset = start.match_features(train)
    return matched


def _check_outline(ranker: Ranker, target: Target, train: RankingDataset, seen: Seen) -> None:
    scorer = ranker.outline(train, seen)
    target.check(Model(scorer, train.n_features, train.feature_names, seen.has_missing, train.kinds))
