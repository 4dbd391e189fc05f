"""The contract of rankers: settings and a fitted model, by scikit-learn's conventions.

Ranker          the base class: fit, predict, rank, score, save, export
JudgedRanker    the settings of rankers whose training is judged by metrics on validation data
Ranked          ranked documents, the result of ``rank``
"""

from __future__ import annotations

import inspect
import json
import os
import warnings
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import Tags

from tierank import __version__
from tierank import display as notebook
from tierank.arrays import Floats
from tierank.data.checks import as_ratings
from tierank.data.columns import Columns, sources_of
from tierank.data.dataset import RankingDataset, check_dataset
from tierank.data.encoder import ColumnEncoder
from tierank.data.matching import (
    HOW_TO_ROUTE,
    BaseEstimator,
    NotFitted,
    as_dataset,
    as_learned,
    check_fitted,
    keep_features,
    match_features,
)
from tierank.data.tables import as_column, is_table, load_stream, query_column
from tierank.data.team import Team
from tierank.errors import DataError, ParameterError, TierankError
from tierank.export import Model, Scorer, Target, as_target, write_model
from tierank.extras import needing
from tierank.files import as_path
from tierank.metrics import Judge, Metric, Rule, as_rule, metric_name, parse_metric
from tierank.rankers.card import CARD, model_card
from tierank.rankers.folder import (
    MODEL,
    Damaged,
    Known,
    class_name,
    damaged,
    decode_settings,
    encode_settings,
    known_class,
    read_folder,
    read_settled,
    with_description,
    write_folder,
)
from tierank.rankers.model import (
    Callback,
    Callbacks,
    FitContext,
    FittedModel,
    Resources,
    SavedModel,
    Seen,
    TrainingStopped,
    check_callbacks,
)
from tierank.rankers.presets import refuse_unknown, why_no_attribute, why_no_setting
from tierank.settings import (
    MOST_REPEATS,
    Checked,
    Choice,
    DocumentedSettings,
    Integer,
    Number,
    Optional,
    Setting,
    as_limit,
    as_whole,
    check_type,
    declared,
    plain_values,
    setting,
)

if TYPE_CHECKING:
    from tierank.rankers.training_data import ListTotals


class Ranked(NamedTuple):
    """Ranked documents, best first within each query."""

    query: NDArray[Any]
    rank: NDArray[np.int64]
    row: NDArray[np.int64]
    document: NDArray[np.object_] | None
    score: NDArray[np.float64]

    @classmethod
    def of(cls, data: RankingDataset, scores: Floats, k: int | None) -> Ranked:
        """The documents of each query by score, at most k of them; equal scores keep the order of the rows."""
        order = np.lexsort((-scores, data.query_of_row))
        ranks = np.arange(data.n_documents) - np.repeat(data.offsets[:-1], data.lengths) + 1
        kept = slice(None) if k is None else ranks <= k
        rows = order[kept]
        queries = np.repeat(data.query_ids, data.lengths)[kept]
        texts = data.document_texts
        documents = None if texts is None else np.array(list(texts[rows]), dtype=object)
        return cls(queries, ranks[kept], data.source_rows[rows], documents, scores[rows])

    def to_pandas(self) -> Any:
        """A pandas table with a row per document; no column ``document`` if the data have no document ids."""
        return notebook.as_pandas(self._columns())

    def _repr_html_(self) -> str:
        return notebook.sheet("Ranked", notebook.grid(*self._table()))

    def __str__(self) -> str:
        return "\n".join(notebook.lines(*self._table()))

    def __repr__(self) -> str:
        return str(self)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        shown = self._columns() | {"score": [f"{score:.4f}" for score in self.score]}
        return list(shown), [list(map(str, row)) for row in zip(*shown.values(), strict=True)]

    def _columns(self) -> dict[str, Any]:
        return {name: values for name, values in self._asdict().items() if values is not None}


# What an argument has to be that is not trained again.
FITTED = "a fitted ranker"


class Ranker(BaseEstimator):
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
    ...         return ColumnModel(context.settings["column"])
    >>> data = tierank.RankingDataset([[0.5, 3.0], [1.5, 2.0]], [0, 1], qid=["a", "a"])
    >>> ByColumn(column=1).fit(data).rank(data).row.tolist()
    [0, 1]
    """

    # Named settings, such as those of a paper.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}

    model_: FittedModel
    settings_: dict[str, Any]
    seen_: Seen
    n_features_in_: int
    feature_names_in_: NDArray[Any]
    # What distinguishes the lists of the training data; None without query ids, and after loading.
    _lists: ListTotals | None = None

    # scikit-learn routes query ids to these methods without being asked.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"qid": True}
    __metadata_request__predict: ClassVar[dict[str, bool]] = {"qid": True}
    __metadata_request__score: ClassVar[dict[str, bool]] = {"qid": True}

    # What a subclass defines

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
            The checked settings, checkpoint, progress, team, and facts about the training data.

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
        raise DataError(
            f"{type(self).__name__} cannot be loaded: it does not define restore_model()", fix="define restore_model"
        )

    def capabilities(self) -> frozenset[str]:
        """What this ranker can do beyond learning from judged numbers in one process.

        ``categories``: learn from level numbers; otherwise each level becomes a 0/1 feature. ``unjudged``: leave out
        documents whose rating is NaN; otherwise it is given no such documents. ``parts``: learn in a team whose
        processes have only a part of the data each. ``positions``: learn from clicks with positions or propensities.
        ``start``: continue from a fitted model. A ranker with a ``base`` can do what both can: ``with_base``.
        """
        return frozenset()

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Raise ``ParameterError`` if settings that are valid on their own cannot be used together."""

    def check_inputs(
        self, settings: Mapping[str, Any], train: RankingDataset | None = None, start: Ranker | None = None
    ) -> None:
        """Raise ``ParameterError`` if a model to continue from, or positions, cannot be used with these settings.

        Parameters
        ----------
        settings : mapping of str to object
            The checked settings of this ranker.
        train : RankingDataset, optional
            The training data, whose ``position`` and ``propensity`` are what matters.
        start : Ranker, optional
            A fitted ranker to continue from, with the number of features of the training data.
        """
        name = type(self).__name__
        if start is not None and "start" not in self.capabilities():
            raise ParameterError(f"{name} cannot continue from a model", argument="start", fix="leave it out")
        for given in ("propensity", "position"):
            if train is not None and getattr(train, given) is not None and "positions" not in self.capabilities():
                raise ParameterError(
                    argument=given,
                    expected=f"None, as {name} cannot correct for positions",
                    got="some",
                    fix="train UMart, LambdaMART or URank, or learn from tierank.clicks.judgements",
                )

    def export_skeleton(self, train: RankingDataset, seen: Seen, settings: Mapping[str, Any]) -> Scorer:
        """The neutral form of the model after training, with placeholder numbers: ``for_target`` is checked by it."""
        raise ParameterError(f"{type(self).__name__} has no export", argument="for_target", fix="leave it out")

    def resources(self) -> Resources:
        """The threads and the device that the settings allow."""
        own = vars(self)
        return Resources(own.get("n_jobs"), own.get("device", "cpu"))

    # Settings

    def __init_subclass__(cls, **more: Any) -> None:
        """Let ``help`` describe every setting, from its declaration."""
        super().__init_subclass__(**more)
        if cls.__doc__ is not None:  # python -OO has none
            cls.__doc__ = DocumentedSettings(cls.__doc__)  # type: ignore[assignment]

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """Check the names, so that a misspelt setting gets an error that names the right one."""
        if values:
            parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
            n_positional = len([one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD])
            if len(values) > n_positional and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
                name = next((one.name for one in parameters if one.kind is one.KEYWORD_ONLY), "name")
                raise ParameterError(
                    where=cls.__name__,
                    expected=f"settings by name, such as {name}=...",
                    got=f"{values[n_positional]!r} without a name",
                )
        cls._check_names(settings)
        instance: Self = super().__new__(cls)
        return instance

    @classmethod
    def _check_names(cls, names: Iterable[str]) -> None:
        """Raise ``ParameterError`` if the ranker does not have a setting of this name."""
        parameters = inspect.signature(cls.__init__).parameters
        for name in names:
            if name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
                continue
            if name in inspect.signature(cls.fit).parameters:
                raise ParameterError("is an argument of fit", argument=name, fix=f"give it there: fit(..., {name}=...)")
            raise cls._unknown_setting(name, [one for one in parameters if one != "self"])

    @classmethod
    def _unknown_setting(cls, name: str, known: Sequence[str]) -> ParameterError:
        """The error for a setting that the ranker does not have."""
        from tierank.rankers import built_in

        if name == "preset" and cls.PRESETS:
            return ParameterError(
                "is not a setting", argument=name, fix=f"make the ranker by {cls.__name__}.from_preset(...)"
            )
        owners = [kind.__name__ for kind in built_in().values() if name in declared(kind)]
        hint = None if owners else why_no_setting(cls.__name__, name, known)
        if hint is not None:
            return hint
        ours = [one for one, declaration in declared(cls).items() if not declaration.group]
        return ParameterError.unknown(f"setting of {cls.__name__}", name, known, ours or None, owners)

    @classmethod
    def from_preset(cls, name: str, **settings: Any) -> Self:
        """A ranker with the settings of a preset.

        Parameters
        ----------
        name : str
            A key of ``PRESETS``.
        **settings
            Settings that replace those of the preset.

        Examples
        --------
        >>> import tierank
        >>> tierank.UMart.from_preset("paper-ohsumed", n_trees=50).n_leaves
        31
        """
        if not isinstance(name, str) or name not in cls.PRESETS:
            raise ParameterError.unknown(f"preset of {cls.__name__}", name, cls.PRESETS)
        return cls(**{**cls.PRESETS[name], **settings})

    @classmethod
    def declared_settings(cls) -> dict[str, Setting]:
        """The settings with their defaults, bounds, help and search spaces, by name."""
        return declared(cls)

    def set_params(self, **settings: Any) -> Self:
        """Change settings, for the next ``fit``; a fitted model keeps its own.

        Parameters
        ----------
        **settings
            Settings by name. ``base__n_trees`` is the setting ``n_trees`` of the ranker in the setting ``base``.

        Returns
        -------
        self

        Raises
        ------
        ParameterError
            If there is no setting of this name.
        """
        self._check_names(name.partition("__")[0] for name in settings)
        for name in settings:
            outer, _, inner = name.partition("__")
            value = settings.get(outer, getattr(self, outer, None))
            if inner and not hasattr(value, "set_params"):
                raise ParameterError(argument=outer, expected=f"a ranker, to set its {inner}", got=repr(value))
        super().set_params(**settings)
        return self

    def _plain_settings(self) -> dict[str, Any]:
        """All settings in their plain form, each checked separately; rankers among them are copied."""
        settings: dict[str, Any] = self.get_params(deep=False)
        lost = [name for name in declared(self) if name not in settings]
        if lost:
            raise ParameterError(
                where=f"{type(self).__name__}.__init__",
                expected="all settings as arguments",
                got=f"none for {lost[0]}{f' and {len(lost) - 1} others' if len(lost) > 1 else ''}",
                fix="make the class a dataclass, and declare new settings as fields in place of an __init__",
            )
        settings |= plain_values(self, settings)
        for name, value in settings.items():
            if isinstance(value, Ranker):
                settings[name] = type(value)(**value._plain_settings())
        return settings

    def checked_settings(self) -> dict[str, Any]:
        """All settings in their plain form; raises ``ParameterError`` if they cannot be used, whatever the data."""
        with needing(type(self).__name__):
            settings, known = self._plain_settings(), declared(self)
            for name, one in known.items():
                if not one.needs or settings[name] == one.default:
                    continue
                if all(settings[other] == known[other].default for other in one.needs):
                    needed = " or ".join(f"`{other}`" for other in one.needs)
                    got = ", ".join(f"{other}={settings[other]!r}" for other in one.needs)
                    raise ParameterError(argument=name, expected=f"{needed} to be set too", got=got)
            self.check_together(settings)
        for value in settings.values():
            if isinstance(value, Ranker):
                value.checked_settings()
        return settings

    # Learning

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        qid: ArrayLike | str | None = None,
        *,
        target: str | None = None,
        valid: Any = None,
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

        Warns (``ColumnWarning``) if named columns look like ids or outcomes, are constant, or leak the ratings. Warns
        too if training queries are among the validation data, with the same features and ratings, and
        (``SingleFeatureWarning``) if a single feature ranks the validation data better than what was learned.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            A data set, or features with one row per document.
        y : array, optional
            One rating per row, any finite number >= 0; NaN or None for an unjudged document. Not needed with a
            ``RankingDataset``.
        qid : array, optional
            One query id per row, in any order, or the name of a column of the table. Default: the column ``qid``,
            ``query_id`` or ``group_id`` of a table; without one, all rows are one query.
        target : str, optional
            The name of the column of ratings of a table, in place of ``y``.
        valid : RankingDataset, (X, y, qid) or table, optional
            Validation data; a table if ``target`` is given. Training keeps the round that is best on them by
            ``select_by``, and stops after ``patience`` rounds without improvement.
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
            ``group``, ``eval_set``, ``eval_group`` and ``eval_qid`` mean what they mean in LightGBM and XGBoost: group
            sizes, and one validation set in place of ``valid``. Other arguments of these libraries are refused with a
            message that says what to use instead.

        Returns
        -------
        self
        """
        # Imported here, as scoring does not need it.
        from tierank.data.leaks import find_doubts, warn_of_columns
        from tierank.data.relevance import warn_of_counts
        from tierank.rankers import training_data as given
        from tierank.rankers.team_checks import agreement, check_contents, facts_of_call

        team, name = Team() if team is None else team, type(self).__name__
        check_type("team", team, Team, "tierank.distributed.join returns one")
        with agreement(team) as facts:
            X, valid = load_stream(X), tuple(map(load_stream, valid)) if type(valid) is tuple else load_stream(valid)
            qid, valid = given.translate(X, qid, valid, unknown)
            if unknown:
                refuse_unknown(type(self), "fit", unknown)
            functions, settings, can = check_callbacks(callbacks), self.checked_settings(), self.capabilities()
            if team.size > 1 and team.holds_parts and "parts" not in can:
                got = f"a part in each (holds_parts), and these settings of {name} need all data in every process"
                raise ParameterError(argument="team", got=got)

            # The data: with the features of ``start``, in the form that ``unjudged`` asks for, encoded as numbers.
            table = {"target": target, "columns": columns, "ignore": ignore}
            weights = {"row_weight": row_weight, "query_weight": query_weight, "position": position}
            train = given.training_rows(name, X, y, qid, table, weights)
            has_queries = qid is not None or isinstance(X, RankingDataset) or "query" in train.roles
            held_out = None
            if valid is not None:
                held_out = given.validation_rows(valid, train, has_queries, table)
            if start is not None:
                check_ranker("start", start, FITTED)
                train = start.match_features(train)
            lists = given.ListTotals.of(train) if has_queries else None
            raw, held_out = given.settle_unjudged(train, held_out, settings, can, propensity is not None, team)
            if raw.kinds and team.holds_parts:
                raise DataError(
                    argument="X",
                    expected="columns of numbers if each process has a part of the data",
                    got=f"other columns: {', '.join(map(repr, list(raw.kinds)[:8]))}",
                    fix="encode them as numbers first, or give all data to every process",
                )
            if start is None:
                plan, train = ColumnEncoder.learn(raw, by_levels="categories" in can)
            else:
                plan, train = start._plan, raw
            if held_out is not None:
                with given.of_validation():
                    held_out = as_learned(self, held_out, train.n_features, train.feature_names, plan)
            train, held_out = given.with_propensities(train, held_out, propensity, settings.get("clip"))
            self.check_inputs(settings, train, start)
            before = None if start is None else start.model_
            if team.size > 1:
                others = {"qid": has_queries, "checkpoint": checkpoint is not None}
                facts |= facts_of_call(name, settings, others, train, held_out, team, before)

        if team.is_first:
            given.warn_of_odd_queries(train, held_out, has_queries=has_queries, n_jobs=self.resources().n_jobs)
            warn_of_counts(train.ratings, settings.get("gain", "linear"))
            if start is None and raw.feature_names:
                warn_of_columns(find_doubts(raw), raw, stacklevel=3)
        if team.size > 1:
            check_contents(team, train, held_out, self.resources().n_jobs)

        seen = Seen.of(train, plan, has_queries, team)
        context = FitContext(
            seen=seen if start is None else seen.after(start.seen_),
            settings=settings,
            checkpoint=None if checkpoint is None else as_path(checkpoint, "checkpoint", "the name of a folder"),
            progress=progress and team.is_first,
            team=team,
            callbacks=Callbacks(functions, team),
            start=before,
            ranker=type(self),
        )
        # What ``for_target`` cannot represent is refused before training, and after it, when the final form is known.
        engine = None if settings.get("for_target") is None else as_target(settings["for_target"])
        if engine is not None:
            skeleton = self.export_skeleton(train, context.seen, settings)
            engine.check(Model(skeleton, train.n_features, train.feature_names, context.seen.has_missing, train.kinds))
        try:
            self._hold(self.fit_model(train, held_out, context), context.seen, settings)
        except TrainingStopped as stop:
            if stop.model is not None:
                self._hold(stop.model, context.seen, settings)
            raise
        self._lists = lists
        if engine is not None:
            engine.check(self.to_neutral())
        are_clicks = held_out is not None and (held_out.position is not None or held_out.propensity is not None)
        if held_out is not None and not are_clicks and team.size == 1 and "select_by" in settings:
            from tierank.metrics.singles import warn_of_single_feature

            scores, metrics = self.model_.predict(held_out, self.resources()), settings["select_by"]
            metric = metrics if isinstance(metrics, str) or callable(metrics) else metrics[0]
            warn_of_single_feature(held_out, scores, metric, settings["rule"], self.resources().n_jobs, stacklevel=2)
        return self

    def _hold(self, model: FittedModel, seen: Seen, settings: Mapping[str, Any]) -> None:
        """Make this a fitted ranker."""
        self.model_, self.seen_, self.settings_, self._lists = model, seen, dict(settings), None
        keep_features(self, seen.n_features, seen.feature_names)

    # Fitted

    if not TYPE_CHECKING:  # to a checker, a class with __getattr__ has every attribute

        def __getattr__(self, name: str) -> Any:
            """Say that a ranker is not fitted, or what the attribute of another library is called here."""
            if name in ("model_", "seen_", "settings_"):
                raise NotFitted.of(self)
            if hasattr(type(self), name):  # a property that raised an AttributeError: raise it again
                return object.__getattribute__(self, name)
            raise why_no_attribute(self, name)

    @property
    def _plan(self) -> ColumnEncoder:
        return self.seen_.columns

    @property
    def columns_(self) -> Columns:
        """The columns that the model expects not to be plain numbers; pass it to ``read`` as ``columns=``."""
        return self.seen_.columns.columns()

    @property
    def history_(self) -> list[dict[str, Any]]:
        """A row for each round or epoch of training, with its metrics on the validation data."""
        return self.model_.history

    @property
    def best_(self) -> dict[str, float]:
        """The validation metrics of the model that was kept; empty without validation data."""
        return self.model_.best

    def needs_list(self) -> bool:
        """Whether the score of a document depends on the other documents of its query: predict needs the whole list."""
        return self.model_.needs_list or self._plan.needs_list

    def _repr_html_(self) -> str:
        """Settings, history and importances for notebooks."""
        from tierank.rankers.explain import as_html

        return as_html(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

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
        check_fitted(self)
        X = load_stream(X)
        return match_features(self, X, self._query_ids_of(X, qid), self._plan)

    def predict(self, X: Any, qid: ArrayLike | None = None, **unknown: Any) -> NDArray[np.float64]:
        """Score documents.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        qid : array, optional
            One query id per row. Rankers that score whole lists need it: see ``needs_list``. Default: the column of a
            table that has the name of the column of query ids in training, or is called ``qid``, ``query_id`` or
            ``group_id``, if there is one.
        **unknown
            Arguments of other libraries are refused with a message that says what to use instead.

        Returns
        -------
        array
            One score per row, in the order of the rows; higher is better.
        """
        if unknown:
            refuse_unknown(type(self), "predict", unknown)
        data = self._as_candidates(X, qid)
        return data.restore(self.model_.predict(data, self.resources()))

    def rank(self, X: Any, qid: ArrayLike | None = None, k: int | None = None, **unknown: Any) -> Ranked:
        """Rank the documents of each query, best first.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        qid : array, optional
            One query id per row. Default: the column of a table, as in ``predict``; without one, all rows are one
            list.
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
        if unknown:
            refuse_unknown(type(self), "rank", unknown)
        check_fitted(self)
        X, k = load_stream(X), as_limit("k", k)
        data = self._as_candidates(X, qid, is_ranked=True)
        if type(self).predict is not Ranker.predict:  # a subclass with its own scores
            return Ranked.of(data, data.arrange(self.predict(X, self._query_ids_of(X, qid))), k)
        return Ranked.of(data, self.model_.predict(data, self.resources()), k)

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
            One query id per row; needed if ``fit`` had query ids, unless a table has them, as in ``predict``.
        sample_weight : None, optional
            Refused: a metric weighs queries, not rows.

        Returns
        -------
        float
        """
        if sample_weight is not None:
            raise ParameterError(
                argument="sample_weight", expected="None, as a metric weighs queries, not rows", got="some"
            )
        check_fitted(self)
        X = load_stream(X)
        qid = self._query_ids_of(X, qid)
        has_queries = qid is not None or isinstance(X, RankingDataset)
        if self.seen_.has_queries and not has_queries:
            raise DataError(argument="qid", expected="one query id per row, as in fit", got="none", fix=HOW_TO_ROUTE)
        if is_table(X) and not isinstance(X, RankingDataset) and y is not None:  # other columns may hold anything
            data = match_features(self, X, qid, self._plan)
            data = data.replace(ratings=data.arrange(as_ratings(y, data.n_documents, may_be_unjudged=True)))
        else:
            data = as_dataset(X, y, qid)
        from tierank.rankers.training_data import warn_of_odd_lists

        warn_of_odd_lists(self._lists, data, has_queries=has_queries)
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
        """How much the mean of a metric drops if a feature of the data is shuffled among all documents.

        What the model computes from a feature, such as 0/1 features of levels or matches of texts, is computed again.
        Takes one prediction for each used feature and repeat. For small data several shuffled copies are predicted
        together; for large data there is one copy at a time.

        Parameters
        ----------
        data : RankingDataset
            Data with ratings; its features may be in another order than those of the model, and more.
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
            The drops: a row for each feature of ``data``, in its order, and a column for each repeat. Features that
            the model does not use have 0.
        """
        from tierank.rankers.explain import losses_of_shuffles

        check_scored_by_model(self, "permutation_importance")
        check_dataset("data", data)
        as_whole("n_repeats", n_repeats, most=MOST_REPEATS)
        as_whole("seed", seed, 0)
        # The features that the scores depend on, directly or through what the model computes of them.
        own, resources = match_features(self, data, None, self._plan), self.resources()
        used = self.model_.used_features(own.n_features)
        if own.feature_names is not None and data.feature_names is not None:  # otherwise matched by position
            names = [name for name, is_used in zip(own.feature_names, used, strict=True) if is_used]
            computed = [name for name in names if name not in data.feature_names]
            used = np.isin(data.feature_names, [*names, *sources_of(computed, own.kinds)])

        def predict(shuffled: RankingDataset) -> Floats:
            return self.model_.predict(match_features(self, shuffled, None, self._plan), resources)

        return losses_of_shuffles(data, predict, Judge(data, metric, rule), used, n_repeats, seed)

    def to_neutral(self) -> Model:
        """The model in the neutral form that export targets read."""
        check_scored_by_model(self, "export")
        seen = self.seen_
        return Model(
            self.model_.to_neutral(), seen.n_features, seen.feature_names, seen.has_missing, seen.columns.kinds
        )

    def portable(self) -> Model:
        """The former name of ``to_neutral``."""
        warnings.warn("portable is called to_neutral now", DeprecationWarning, stacklevel=2)
        return self.to_neutral()

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
        write_model(self.to_neutral(), path, to)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as a folder: ``model.json`` and the files it names, with their checksums.

        Parameters
        ----------
        path : path
            The folder. An earlier model there is replaced in one step. Its README.md describes the model for people.
        """
        files = model_files(self)
        write_folder(path, files | {CARD: model_card(self, json.loads(files[MODEL.file]))})

    def _as_candidates(self, X: Any, qid: ArrayLike | None, *, is_ranked: bool = False) -> RankingDataset:
        """The data to score; warns if many queries seem to have been given as one list."""
        check_fitted(self)
        X, reads_lists = load_stream(X), is_ranked or self.needs_list()
        if reads_lists or qid is not None:
            qid = self._query_ids_of(X, qid)
        data, seen = match_features(self, X, qid, self._plan), self.seen_
        is_one_list = qid is None and not isinstance(X, RankingDataset) and seen.has_queries
        if reads_lists and is_one_list and data.n_documents > seen.longest_query:
            why = f"{type(self).__name__} scores a document by the other documents of its query, and "
            warnings.warn(
                f"{why * self.needs_list()}no qid was given: these {data.n_documents:,} rows are"
                f" {'ranked' if is_ranked else 'scored'} as one query, longer than the longest training query"
                f" ({seen.longest_query:,} documents). Give one query id per row if they are several queries"
                f"{'' if seen.query_column is None else f', as qid or in a column {seen.query_column!r}'}",
                stacklevel=3,
            )
        return data

    def _query_ids_of(self, X: Any, qid: ArrayLike | str | None) -> ArrayLike | None:
        """The query ids: as given, or those in the column of a table that is named, as in training or as usual."""
        if isinstance(X, RankingDataset) or not is_table(X):
            return qid
        if qid is None:
            features = self._plan.sources(self.seen_.feature_names or ())
            qid = query_column(X, self.seen_.query_column, features)
        return as_column(X, qid) if isinstance(qid, str) else qid

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags


def with_base(own: frozenset[str], base: Any) -> frozenset[str]:
    """What a ranker can do with a ``base``: what both can. The base is not trained again, so ``start`` is its own."""
    return own & (base.capabilities() | {"start"}) if isinstance(base, Ranker) else own


def fitted_copy(ranker: Ranker, model: FittedModel, seen: Seen) -> Ranker:
    """A ranker with these settings that holds a model, which was trained elsewhere."""
    copy: Ranker = clone(ranker)
    copy._hold(model, seen, copy._plain_settings())
    return copy


def model_files(ranker: Ranker) -> dict[str, bytes]:
    """The files that ``save`` writes, by name."""
    check_fitted(ranker)
    if type(ranker).restore_model is Ranker.restore_model:
        raise DataError(
            f"{type(ranker).__name__} cannot be saved: without restore_model() it could not be loaded",
            fix="define restore_model",
        )
    description = {
        "tierank": __version__,
        "ranker": class_name(type(ranker)),
        "settings": encode_settings(ranker.settings_),
        **ranker.seen_.to_json(),
        "fitted": ranker.model_.facts(),
    }
    return with_description(description, ranker.model_.files() | ranker.seen_.columns.files())


# What reading a file that is not what it claims to be can raise.
_OF_DAMAGE = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


def read_ranker(path: str | os.PathLike[str], known: Known) -> Ranker:
    """The ranker of a model folder; the checksum of every file is verified before it is read."""

    def read_once(folder: Path) -> Ranker:
        description, files = read_folder(folder)
        file = folder / MODEL.file
        try:
            kind = known_class(known.rankers, "ranker", description["ranker"])
            ranker = kind(**decode_settings(description["settings"], known))
            if not isinstance(ranker, Ranker):
                raise DataError(argument="rankers", expected="classes derived from tierank.Ranker", got=kind.__name__)
            seen = Seen.from_json(description, files)
            if not isinstance(description["fitted"], dict):
                raise Damaged("fitted")
            with needing(kind.__name__):
                model = ranker.restore_model(SavedModel(seen, description["fitted"], files))
            return fitted_copy(ranker, model, seen)
        except ParameterError as error:
            raise DataError(f"settings: {error}", where=file) from None
        except TierankError as error:
            raise error.at(file) if error.where is None else error from None
        except KeyError as error:
            raise damaged(file, f"no {error}") from None
        except _OF_DAMAGE as error:
            raise damaged(file, str(error)) from None

    return read_settled(as_path(path, "path", "the path of a model folder"), read_once)[0]


def check_scored_by_model(ranker: Ranker, what: str) -> None:
    """Raise ``ParameterError`` if a subclass computes its scores in ``predict``, which ``what`` cannot see."""
    check_fitted(ranker)
    if type(ranker).predict is not Ranker.predict:
        raise ParameterError(
            f"{type(ranker).__name__} defines predict, and {what} takes the scores of its model_",
            fix="define predict in a subclass of FittedModel, and return that from fit_model",
        )


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


# Settings that rankers share


# Columns of history_ beside the metrics.
_COLUMNS = ("family", "part", "member", "learner", "epoch", "loss", "ridge", "kept")


def as_metrics(value: Any) -> tuple[Any, ...]:
    """The setting ``select_by``: metrics, the most important first."""
    metrics = value.replace(" ", "").split(",") if isinstance(value, str) else (value,) if callable(value) else value
    is_list = isinstance(metrics, (list, tuple)) and len(metrics) > 0
    if not is_list or not all(isinstance(one, str) or callable(one) for one in metrics):
        raise ParameterError(
            argument="select_by", expected="a metric or a list of metrics, such as ['ndcg@10']", got=repr(value)
        )
    for metric in metrics:
        if isinstance(metric, str):
            parse_metric(metric)
        if metric_name(metric) in _COLUMNS:
            raise ParameterError(
                argument="select_by",
                expected="functions whose names are not columns of history_",
                got=metric_name(metric),
                fix="give it another name",
            )
    return tuple(metric_name(metric) if isinstance(metric, str) else metric for metric in metrics)


def as_base(value: Any) -> Ranker:
    """The setting ``base``: a ranker."""
    if not isinstance(value, Ranker):
        raise ParameterError(argument="base", expected="a ranker, such as UMart()", got=repr(value))
    return value


# The largest seed that LightGBM accepts.
LARGEST_SEED = 2**31 - 1
BASE = Optional(Checked("a ranker, such as UMart()", as_base), "no base")
_METRICS = Checked("a metric or a list of metrics", as_metrics)
_RULE = Checked("a rule", lambda value: as_rule(value) and value)
_TARGET = Optional(Checked("an export target", lambda value: as_target(value) and value))


@dataclass(kw_only=True, eq=False, repr=False)
class SelectingRanker(Ranker):
    """A ranker that chooses what it keeps by metrics on validation data."""

    select_by: Metric | Sequence[Metric] = setting(
        ("ndcg@10",),
        _METRICS,
        "metrics that choose the best round on the validation data, names or functions (ratings, scores) -> number;"
        " ties within 1e-6 are broken by the next metric",
    )
    rule: str | Rule = setting("tierank", _RULE, "the rule of these metrics, a key of RULES or a Rule")
    unjudged: str = setting(
        "skip",
        Choice(("skip", "zero")),
        "documents without a rating (NaN) in training: skip, left out of all pairs and sums, but still a part of the"
        " list that features are scaled by; or zero, taken as rated 0. Validation data are judged as the rule says",
    )
    for_target: str | Target | None = setting(
        None, _TARGET, "an export target the model is meant for: what it cannot represent is refused before training"
    )
    n_jobs: int | None = setting(None, Optional(Integer(-1), "one per core, fewer for small data"), "number of threads")


@dataclass(kw_only=True, eq=False, repr=False)
class JudgedRanker(SelectingRanker):
    """A ranker whose training is judged by metrics on validation data, and draws random numbers."""

    seed: int = setting(0, Integer(0, LARGEST_SEED), "random seed")
    clip: float = setting(
        10.0, Number(1), "largest weight of a click, 1 / propensity, where positions or propensities are given"
    )
