"""What every ranker does: fit, predict, rank, score, save. The scikit-learn contract, once."""

from __future__ import annotations

import inspect
import os
import warnings
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import Tags

from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError, TierankError
from tierank.estimators import Estimator, as_dataset
from tierank.export import Model, Scorer, as_target, write_model
from tierank.inputs import chunks
from tierank.metrics import Judge, Rule, as_rule, parse_metric
from tierank.rankers.agreement import agreement, check_contents, facts_of_call
from tierank.rankers.model_folder import OF_WORK, Otherwise, encoded, unwritable, write_model_folder
from tierank.settings import as_limit
from tierank.team import Team

# Documents beyond which a list is in doubt: the longest of the public collections has 1,251 (MSLR-WEB30K), and what
# a search hands over to be ranked again is mostly 1,000 or fewer.
_LONG_LIST = 2_000


class Ranked(NamedTuple):
    """Ranked documents, best first within each query; ``pandas.DataFrame(ranked._asdict())`` makes a table of it."""

    query: NDArray[Any]
    rank: NDArray[np.int64]
    row: NDArray[np.int64]
    score: NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """What a call of ``fit`` has beside data and settings."""

    checkpoint: Path | None = None
    progress: bool = False
    team: Team = Team()  # noqa: RUF009  (a team of one has no state)

    def inside(self, name: str) -> Job:
        """The job of a ranker inside another one: a checkpoint replaces its folder, so each has its own."""
        return replace(self, checkpoint=None if self.checkpoint is None else self.checkpoint / name)


class Ranker(Estimator):
    """The base of all rankers. A subclass fits, scores grouped documents, and says what its files hold."""

    # Settings of the paper and others, by name; they count where a setting was not given.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}

    # The settings that were given, whatever their values.
    _given: frozenset[str]
    # The settings that the model was fitted with: those of the preset included, whatever was set since.
    settings_: dict[str, Any]
    has_queries_: bool
    has_missing_: bool
    longest_query_: int

    # scikit-learn routes query ids to these methods without being asked.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"qid": True}
    __metadata_request__predict: ClassVar[dict[str, bool]] = {"qid": True}
    __metadata_request__score: ClassVar[dict[str, bool]] = {"qid": True}

    def __init_subclass__(cls, **keywords: Any) -> None:
        """A signature with the settings that are handed on to the parent: for help, editors and scikit-learn."""
        super().__init_subclass__(**keywords)
        if "__init__" in vars(cls):
            vars(cls)["__init__"].__signature__ = _whole_signature(cls)

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """An instance that remembers which settings were given."""
        self: Self = super().__new__(cls)
        self._given = frozenset(given)
        return self

    def __sklearn_clone__(self) -> Self:
        twin: Self = super().__sklearn_clone__()
        twin._given = self._given
        return twin

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        qid: ArrayLike | None = None,
        *,
        valid: RankingDataset | Sequence[Any] | None = None,
        row_weight: ArrayLike | None = None,
        query_weight: ArrayLike | Mapping[Hashable, float] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: bool = False,
        team: Team | None = None,
    ) -> Self:
        """Learn from a ``RankingDataset``, or from features, ratings and one query id per row (None: one query).

        ``valid`` is a data set or ``(X, y, qid)``: training keeps what is best on it by ``select_by``, and stops after
        ``patience`` rounds without a better one. ``checkpoint`` names a folder that training writes to as it goes; a
        run with the same data and settings that finds it there goes on from it, to the same model, bit for bit.
        ``team`` is what ``tierank.distributed.join`` gives, where several processes train one model: each of them calls
        ``fit`` with the same data and settings, which are compared first, and ends with the same model.
        """
        team = team or Team()
        before = dict(vars(self))
        try:
            with agreement(team) as facts:
                job = Job(None if checkpoint is None else Path(checkpoint), progress and team.is_first, team)
                train = self._as_training(X, y, qid, row_weight=row_weight, query_weight=query_weight)
                has_queries = isinstance(X, RankingDataset) or qid is not None
                held_out = None if valid is None else _as_valid(valid, has_queries)
                if held_out is not None:
                    held_out = self._with_features_of(held_out, train.n_features, train.feature_names)
                self._settle(has_queries, has_missing=False, longest_query=int(train.lengths.max()))
                given = {"qid": has_queries, "checkpoint": checkpoint is not None}
                facts |= facts_of_call(type(self).__name__, self.settings_, given, train, held_out, team)
            if team.is_first:
                for of, data in {"": train, "valid: ": held_out}.items():
                    if data is not None and (doubt := _doubt_of_queries(data)) is not None:
                        warnings.warn(of + doubt, stacklevel=2)
            check_contents(team, train, held_out, getattr(self, "n_jobs", None))
            self._look_over(train, team)
            self._fit_for_target(train, held_out, job)
        except TierankError:
            if not self._has_learned_since(before):  # a fit that was refused leaves the earlier model as it was
                self.__dict__.clear()
                self.__dict__.update(before)
            raise
        return self

    def _as_training(self, X: Any, y: ArrayLike | None, qid: ArrayLike | None, **weights: Any) -> RankingDataset:
        if y is None and not isinstance(X, RankingDataset):
            # The words are what scikit-learn's checks look for.
            raise DataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: give the ratings"
            )
        train = as_dataset(X, y, qid, **weights)
        train.check_rated()
        return train

    def _look_over(self, train: RankingDataset, team: Team) -> None:
        """Keep what is to be known of the training data of all processes."""
        seen = train.features[team.rows(train.n_documents)]
        has_missing = any(bool(np.isnan(rows).any()) for rows in chunks(seen))
        found = team.all_gather([has_missing, self.longest_query_])
        self.has_missing_, self.longest_query_ = (max(of_processes) for of_processes in zip(*found, strict=True))

    def _fit_for_target(self, train: RankingDataset, valid: RankingDataset | None, job: Job) -> None:
        target = None if getattr(self, "for_target", None) is None else as_target(self.for_target)
        if target is not None:  # before the work, and again where training decided what the model is
            target.check(Model(self._outline(train), train.n_features, train.feature_names, self.has_missing_))
        self._fit(train, valid, job)
        self._set_features(train.n_features, train.feature_names)
        if target is not None:
            target.check(self._model())

    def _has_learned_since(self, before: Mapping[str, Any]) -> bool:
        """Whether training got so far that there is a new model, though an unfinished one."""
        history = vars(self).get("history_")
        return bool(history) and history is not before.get("history_")

    def predict(self, X: Any, qid: ArrayLike | None = None) -> NDArray[np.float64]:
        """A score per document, in the caller's order: higher is better."""
        self._check_fitted()
        data = self._as_candidates(X, qid)
        return data.restore(self._predict(data))

    def rank(self, X: Any, qid: ArrayLike | None = None, k: int | None = None) -> Ranked:
        """The documents of each query, best first, at most ``k`` of each; ``row`` is the caller's row number.

        Equal scores rank in the order of the rows.
        """
        self._check_fitted()
        k = as_limit("k", k)
        data = self._as_candidates(X, qid)
        scores = self._predict(data)
        order = np.lexsort((-scores, data.query_of_row))
        ranks = np.arange(data.n_documents) - np.repeat(data.offsets[:-1], data.lengths) + 1
        kept = slice(None) if k is None else ranks <= k
        own = order[kept]
        queries = np.repeat(data.query_ids, data.lengths)[kept]
        return Ranked(queries, ranks[kept], data.source_rows[own], scores[own])

    def score(
        self, X: Any, y: ArrayLike | None = None, qid: ArrayLike | None = None, sample_weight: None = None
    ) -> float:
        """Mean NDCG@10 under the rule ``tierank``; scikit-learn's tools call this."""
        if sample_weight is not None:
            raise ParameterError("sample_weight: expected None: weights of rows say nothing of lists")
        self._check_fitted()
        if self.has_queries_ and qid is None and not isinstance(X, RankingDataset):
            raise DataError(
                "qid: expected one query id per row, as in fit, got none; all rows as one query would give another"
                " number. In scikit-learn's tools, switch on metadata routing:"
                " sklearn.set_config(enable_metadata_routing=True)"
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
        """What the mean of a metric loses when a feature is shuffled among all documents: features x repeats.

        Takes one copy of the features, and a prediction for each feature that the model looks at and each repeat.
        """
        self._check_fitted()
        if not isinstance(data, RankingDataset):
            raise DataError(f"data: expected a RankingDataset with ratings, got {type(data).__name__}")
        data = self._as_own_features(data, None)
        judge = Judge(data, metric, rule)

        def mean(scores: NDArray[np.float64]) -> float:
            return float(np.nanmean(judge(scores)[metric]))

        base = mean(self._predict(data))
        losses = np.zeros((data.n_features, n_repeats))
        features = np.array(data.features)
        shuffled = RankingDataset.from_parts(features, data.ratings, data.offsets, data.query_ids)
        rng = np.random.default_rng(seed)
        used = self._used_features()
        for column in range(data.n_features):
            for repeat in range(n_repeats):
                order = rng.permutation(data.n_documents)
                if used[column]:
                    features[:, column] = data.features[order, column]
                    losses[column, repeat] = base - mean(self._predict(shuffled))
            features[:, column] = data.features[:, column]
        return losses

    def check_settings(self) -> None:
        """An error where ``fit`` would refuse the settings, whatever the data: before any are read."""
        settings = self._resolved()
        _check_choices(settings)
        self._check_before_work(settings)
        for inner in settings.values():
            if isinstance(inner, Ranker):
                inner.check_settings()

    def needs_list(self) -> bool:
        """Whether the score of a document depends on the other documents of its query: predict needs the whole list."""
        self._check_fitted()
        return self._looks_around()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as a folder: ``model.json`` and the files it names, with their checksums."""
        self._check_fitted()
        write_model_folder(self, path)

    def export(self, path: str | os.PathLike[str], to: str) -> None:
        """Write the model in the form of another engine: a name of ``TARGETS``. ``verify`` proves that it scores alike.

        A model that the engine cannot hold exactly is refused, with what to change in training; the setting
        ``for_target`` says so before training.
        """
        self._check_fitted()
        write_model(self._model(), path, to)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All settings; those that are handed on (to LightGBM, to a loss) included, by their own names."""
        own = {name: value for name, value in vars(self).items() if not name.endswith("_") and name[0] != "_"}
        inner = {name: value for name, value in own.items() if deep and isinstance(value, Ranker)}
        return own | {f"{name}__{k}": v for name, ranker in inner.items() for k, v in ranker.get_params().items()}

    def set_params(self, **settings: Any) -> Self:
        """Change settings; ``base__n_trees`` is the setting ``n_trees`` of the ranker that ``base`` is."""
        for name, value in settings.items():
            outer, _, inner = name.partition("__")
            if inner and isinstance(getattr(self, outer, None), Ranker):
                getattr(self, outer).set_params(**{inner: value})
            else:
                setattr(self, *settings_of(type(self), {name: value}).popitem())
        self._given |= set(settings)
        for inner in self._inner():  # how work is done is one thing for all of a fitted model
            own = inner.get_params(deep=False)
            inner.set_params(**{name: settings[name] for name in OF_WORK if name in settings and name in own})
        return self

    def _inner(self) -> list[Ranker]:
        """The fitted rankers that this one asks for scores."""
        base = vars(self).get("base_")
        return [] if base is None else [base]

    # What a subclass gives

    @abstractmethod
    def _fit(self, train: RankingDataset, valid: RankingDataset | None, job: Job) -> None:
        """Learn; set the fitted attributes."""

    @abstractmethod
    def _predict(self, data: RankingDataset) -> NDArray[np.float64]:
        """A score per document, in the order of the data set."""

    @abstractmethod
    def _files(self) -> dict[str, bytes]:
        """The files of the model."""

    @abstractmethod
    def _fitted(self) -> dict[str, Any]:
        """What is fitted and small, for JSON."""

    @abstractmethod
    def _restore(self, fitted: dict[str, Any], files: dict[str, bytes]) -> None:
        """Set the fitted attributes from what was saved."""

    def _check_before_work(self, settings: dict[str, Any]) -> None:
        """An error where training cannot begin with these settings."""

    def _contributions(
        self, data: RankingDataset, above: NDArray[np.int64], below: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """What each feature adds to ``score[above] - score[below]``, for pairs of rows of one query: pairs x features.

        A row sums to the difference, but for what the method of the ranker leaves over.
        """
        raise ParameterError(f"{type(self).__name__} cannot explain its scores: expected a ranker of trees or networks")

    def _portable(self) -> Scorer:
        """The neutral form of what was learned, for export."""
        raise ParameterError(f"{type(self).__name__} has no form that other engines know: expected trees or networks")

    def _outline(self, train: RankingDataset) -> Scorer:
        """What ``_portable`` will give after training on these data, with numbers that mean nothing."""
        raise ParameterError(f"for_target: {type(self).__name__} has no form that other engines know: expected None")

    def _looks_around(self) -> bool:
        """Whether the score of a document depends on the other documents of its query."""
        return False

    def _used_features(self) -> NDArray[np.bool_]:
        """Which features the scores can depend on."""
        return np.ones(self.n_features_in_, bool)

    # What they share

    def _resolved(self) -> dict[str, Any]:
        """The settings, with those of the preset where they were left at their default."""
        settings = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        preset = settings.pop("preset", None)
        if preset is None:
            return settings
        if preset not in self.PRESETS:
            raise ParameterError.unknown("preset", preset, self.PRESETS)
        defaults = type(self)().get_params(deep=False)
        left = [name for name in defaults if name not in self._given and _same(settings[name], defaults[name])]
        chosen = self.PRESETS[preset]
        return settings | {name: chosen[name] for name in chosen if name in left or name not in settings}

    def _settle(self, has_queries: bool, has_missing: bool, longest_query: int) -> None:
        """Keep what the model is going to be fitted with."""
        self.has_queries_, self.has_missing_, self.longest_query_ = has_queries, has_missing, longest_query
        # Rankers among the settings are copied: a change of theirs is none of the fitted model.
        resolved = self._resolved().items()
        self.settings_ = {name: clone(value) if isinstance(value, Ranker) else value for name, value in resolved}
        _check_choices(self.settings_)

    def _settled(self) -> dict[str, Any]:
        """The settings that the model was fitted with, to be worked with as is wanted now."""
        return self.settings_ | {name: getattr(self, name) for name in OF_WORK if name in self.settings_}

    def _as_candidates(self, X: Any, qid: ArrayLike | None) -> RankingDataset:
        """The data to score; a warning where the lists of many queries seem to come as the list of one."""
        data = self._as_own_features(X, qid)
        is_one = qid is None and not isinstance(X, RankingDataset)
        if is_one and self.has_queries_ and data.n_documents > self.longest_query_ and self._looks_around():
            warnings.warn(
                f"{type(self).__name__} scores documents by what they stand among, and takes these {data.n_documents:,}"
                f" rows for the candidates of one query, because no qid came: the longest query that it learned from"
                f" has {self.longest_query_:,}. Give one query id per row if they are more than one query",
                stacklevel=3,
            )
        return data

    def _model(self) -> Model:
        names = tuple(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None
        return Model(self._portable(), self.n_features_in_, names, self.has_missing_)

    def _saved_settings(self, otherwise: Otherwise = unwritable) -> dict[str, Any]:
        """The settings for JSON; ``otherwise`` says what becomes of one that it has no form for."""
        settings = self.settings_ if hasattr(self, "settings_") else self._resolved()
        return {name: encoded(value, name, otherwise) for name, value in settings.items()}

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags


def _doubt_of_queries(data: RankingDataset) -> str | None:
    """What is odd about the queries, where ids were most likely forgotten or taken from another column.

    >>> print(_doubt_of_queries(RankingDataset(np.eye(3), [0, 1, 2], qid=["a", "b", "c"])))
    each of the 3 rows is a query of its own, and a list of one document has no order to learn: give the documents of
    one list the same query id
    """
    if data.n_queries == data.n_documents > 1:
        return (
            f"each of the {data.n_documents:,} rows is a query of its own, and a list of one document has no order to"
            " learn: give the documents of one list the same query id"
        )
    if data.n_queries == 1 and data.n_documents > _LONG_LIST:
        return (
            f"all {data.n_documents:,} rows are one query, longer than lists of candidates are: give one query id per"
            " row as qid, or ignore this if they are one list"
        )
    return None


class Selection:
    """Keeps the best round by an ordered list of metrics.

    A round is better than the best so far if its first metric is higher by more than the tolerance, or equal within it
    and the second is higher, and so on.

    >>> selection = Selection(tolerance=1e-6)
    >>> [selection.is_better(values) for values in ((0.5, 0.4), (0.5, 0.45), (0.49, 0.9), (0.5, 0.45))]
    [True, True, False, False]
    """

    def __init__(self, tolerance: float = 1e-6, best: Sequence[float] | None = None) -> None:
        self.tolerance, self.best = tolerance, best

    def is_better(self, values: Sequence[float]) -> bool:
        """Whether these are the best values so far; if so they are remembered."""
        if self.best is None or self._first_difference(values) > 0:
            self.best = tuple(values)
            return True
        return False

    def _first_difference(self, values: Sequence[float]) -> float:
        differences = (new - old for new, old in zip(values, self.best or (), strict=True))
        return next((difference for difference in differences if abs(difference) > self.tolerance), 0.0)


def make_judge(
    valid: RankingDataset,
    select_by: str | Sequence[str],
    rule: str | Rule,
    n_jobs: int | None,
    team: Team | None = None,
) -> Judge:
    """The judge of validation data; an error where there is nothing to judge by.

    With a ``team`` these data are the part of this process, and the other parts count too.
    """
    rule, team = as_rule(rule), team or Team()
    if team.size > 1 and rule.err_max == "data":
        rule = replace(rule, err_max=max(team.all_gather(float(valid.ratings.max()))) or 1.0)
    judge = Judge(valid, [select_by] if isinstance(select_by, str) else list(select_by), rule, n_jobs=n_jobs)
    if all(team.all_gather(judge.n_empty == valid.n_queries)):
        raise DataError("valid: expected at least one query with a rating above 0 to choose the model by, got none")
    return judge


def means_of(per_query: Mapping[str, NDArray[np.float64]], team: Team | None = None) -> dict[str, float]:
    """The mean of each metric over the queries where it is defined, those of the other processes included.

    >>> means_of({"ndcg@1": np.array([1.0, np.nan, 0.5])})
    {'ndcg@1': 0.75}
    """
    if team is None or team.size == 1:
        return {metric: float(np.nanmean(values)) for metric, values in per_query.items()}
    sums = np.array([[np.nansum(values), np.isfinite(values).sum()] for values in per_query.values()])
    totals = team.all_reduce(sums)
    return {metric: float(total / n) for metric, (total, n) in zip(per_query, totals, strict=True)}


def _whole_signature(ranker: type[Ranker]) -> inspect.Signature:
    """The signature of the constructor, with that of its parent in place of ``**settings``."""
    own = inspect.signature(ranker.__init__)
    rest = next((name for name, p in own.parameters.items() if p.kind is p.VAR_KEYWORD), None)
    parent = next(kind for kind in ranker.__mro__[1:] if "__init__" in vars(kind))
    if rest is None or not issubclass(parent, Ranker):
        return own
    named = [parameter for name, parameter in own.parameters.items() if name != rest]
    handed = inspect.signature(parent.__init__).parameters.values()
    more = [p for p in handed if p.name not in own.parameters and p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
    return own.replace(parameters=named + more)


def settings_of(ranker: type[Ranker], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings, if the ranker can have them all; an error that names the nearest otherwise."""
    parameters = inspect.signature(ranker).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in given:
        is_taken = name[:1] == "_" or name.endswith("_") or hasattr(ranker, name)  # no setting that is handed on
        if name not in parameters and (is_taken or not takes_any):
            known = [known for known, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
            raise ParameterError.unknown(f"setting of {ranker.__name__}", name, known)
    return dict(given)


def mean_of_standardised(scores: Sequence[NDArray[np.float64]], data: RankingDataset) -> NDArray[np.float64]:
    """The mean of several scores, each less its mean and over its standard deviation within each query."""
    total, query, starts = np.zeros(data.n_documents), data.query_of_row, data.offsets[:-1]
    for one in scores:
        order = np.lexsort((one, query))  # sums of sorted numbers are the same bits for rows in any order
        centred = one - np.repeat(np.add.reduceat(one[order], starts) / data.lengths, data.lengths)
        spread = np.sqrt(np.add.reduceat(centred[order] ** 2, starts) / data.lengths)
        total += centred / np.repeat(np.where(spread > 0, spread, 1.0), data.lengths)
    return total / len(scores)


def _check_choices(settings: Mapping[str, Any]) -> None:
    """A name that means nothing is an error whether it is needed or not: with validation data or without."""
    as_rule(settings.get("rule", "tierank"))
    metrics = settings.get("select_by", ())
    if not isinstance(metrics, (str, list, tuple)) or not all(isinstance(metric, str) for metric in metrics):
        raise ParameterError(f"select_by: expected a metric, or a list of them, such as ['ndcg@10'], got {metrics!r}")
    for metric in [metrics] if isinstance(metrics, str) else metrics:
        parse_metric(metric)
    if settings.get("for_target") is not None:
        as_target(settings["for_target"])


def _plain(value: Any) -> Any:
    """A setting that no caller can change any more, and that has a form in files: of arrays and tables a plain copy."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") and np.ndim(value) < 2 else value


def _same(one: Any, other: Any) -> bool:
    """Whether two settings are equal; a file gives lists for tuples."""
    is_sequence = isinstance(one, (list, tuple)) and isinstance(other, (list, tuple))
    return list(one) == list(other) if is_sequence else bool(one == other)


def _as_valid(valid: RankingDataset | Sequence[Any], has_queries: bool) -> RankingDataset:
    if isinstance(valid, RankingDataset):
        data = valid
    elif isinstance(valid, Sequence) and len(valid) in (2, 3):
        if has_queries and (len(valid) == 2 or valid[2] is None):
            raise DataError("valid: expected (X, y, qid), as the training data have query ids, got no qid")
        data = RankingDataset(*valid)
    else:
        raise DataError("valid: expected a RankingDataset, or (X, y, qid)")
    data.check_rated()
    return data
