"""What every ranker does: fit, predict, rank, score, save. The scikit-learn contract, once."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import Tags

from tierank import __version__
from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError, TierankError
from tierank.estimators import Estimator, as_dataset
from tierank.export import Model, Scorer, as_target, write_model
from tierank.files import replacing
from tierank.inputs import as_names, chunks, forget, rows_in
from tierank.kernels import content, in_threads, n_threads
from tierank.metrics import Judge, Rule, as_rule
from tierank.settings import as_limit
from tierank.team import Team

MODEL_FORMAT = 1
# A description of a model is some kilobytes; a larger one is no description.
_LARGEST_DESCRIPTION = 64 << 20
# Bytes of features after which what was read of a mapped matrix is let go.
_KEPT_BYTES = 1 << 27
# What reading something that is not what it says it is can end in.
_OF_DAMAGE = (ArithmeticError, AttributeError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError)


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

    # Settings of the paper and others, by name; they count where a setting was left at its default.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}

    # scikit-learn routes query ids to these methods without being asked.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"qid": True}
    __metadata_request__predict: ClassVar[dict[str, bool]] = {"qid": True}
    __metadata_request__score: ClassVar[dict[str, bool]] = {"qid": True}

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
        ``fit`` with the same data and settings, and ends with the same model.
        """
        job = Job(None if checkpoint is None else Path(checkpoint), progress, team or Team())
        if y is None and not isinstance(X, RankingDataset):
            # The words are what scikit-learn's checks look for.
            raise DataError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: give the ratings"
            )
        train = as_dataset(X, y, qid, row_weight=row_weight, query_weight=query_weight)
        train.check_rated()
        held_out = None if valid is None else _as_valid(valid)
        if held_out is not None:
            self._check_same_features(held_out, train.n_features, train.feature_names)
        self.has_queries_ = isinstance(X, RankingDataset) or qid is not None
        seen = train.features[job.team.rows(train.n_documents)]
        self.has_missing_ = any(job.team.gather(any(bool(np.isnan(rows).any()) for rows in chunks(seen))))
        target = None if getattr(self, "for_target", None) is None else as_target(self.for_target)
        if target is not None:  # before the work, and again where training decided what the model is
            target.check(Model(self._outline(train), train.n_features, train.feature_names, self.has_missing_))
        self._fit(train, held_out, replace(job, progress=progress and job.team.is_first))
        self._set_features(train.n_features, train.feature_names)
        if target is not None:
            target.check(self._model())
        return self

    def predict(self, X: Any, qid: ArrayLike | None = None) -> NDArray[np.float64]:
        """A score per document, in the caller's order: higher is better."""
        self._check_fitted()
        data = self._as_own_features(X, qid)
        return data.restore(self._predict(data))

    def rank(self, X: Any, qid: ArrayLike | None = None, k: int | None = None) -> Ranked:
        """The documents of each query, best first, at most ``k`` of each; ``row`` is the caller's row number.

        Equal scores rank in the order of the rows.
        """
        self._check_fitted()
        if k is not None and k < 1:
            raise ParameterError(f"k: expected 1 or more, or None for all, got {k!r}")
        data = self._as_own_features(X, qid)
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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as a folder: ``model.json`` and the files it names, with their checksums."""
        self._check_fitted()
        target = Path(path)
        if target.is_file() or (target.is_dir() and any(target.iterdir()) and not (target / "model.json").exists()):
            raise DataError(f"{target}: expected a new name or the folder of a model, got something else there")
        written = self._written()
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as fresh:
            fresh.mkdir()
            for name, content in written.items():
                (fresh / name).write_bytes(content)

    def _written(self) -> dict[str, bytes]:
        """The files of the saved model, ``model.json`` included: it has the checksums of the others."""
        files = self._files()
        description = {
            "format": MODEL_FORMAT,
            "tierank": __version__,
            "ranker": type(self).__name__,
            "settings": self._saved_settings(),
            "n_features": self.n_features_in_,
            "feature_names": list(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None,
            "has_queries": self.has_queries_,
            "has_missing": self.has_missing_,
            "fitted": self._fitted(),
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        }
        return files | {"model.json": json.dumps(description, indent=1, allow_nan=False).encode()}

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
                setattr(self, name, value)
        return self

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

    def _needs_list(self) -> bool:
        """Whether the score of a document depends on the others of its query."""
        return False

    def _used_features(self) -> NDArray[np.bool_]:
        """Which features the scores can depend on."""
        return np.ones(self.n_features_in_, bool)

    # What they share

    def _resolved(self) -> dict[str, Any]:
        """The settings, with those of the preset where they were left at their default."""
        settings: dict[str, Any] = self.get_params(deep=False)
        preset = settings.pop("preset", None)
        if preset is None:
            return settings
        if preset not in self.PRESETS:
            raise ParameterError.unknown("preset", preset, self.PRESETS)
        defaults = type(self)().get_params(deep=False)
        chosen = self.PRESETS[preset]
        return settings | {n: v for n, v in chosen.items() if n not in settings or _same(settings[n], defaults.get(n))}

    def _model(self) -> Model:
        names = tuple(self.feature_names_in_) if hasattr(self, "feature_names_in_") else None
        return Model(self._portable(), self.n_features_in_, names, self.has_missing_)

    def _saved_settings(self) -> dict[str, Any]:
        return {name: encoded(value, name) for name, value in self.get_params(deep=False).items()}

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.positive_only = True
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags


class Selection:
    """Keeps the best round by an ordered list of metrics.

    A round is better than the best so far if its first metric is higher by more than the tolerance, or equal within it
    and the second is higher, and so on.

    >>> selection = Selection(("ndcg@1", "ndcg@3"), tolerance=1e-6)
    >>> [selection.is_better(values) for values in ((0.5, 0.4), (0.5, 0.45), (0.49, 0.9), (0.5, 0.45))]
    [True, True, False, False]
    """

    def __init__(self, metrics: Sequence[str], tolerance: float = 1e-6, best: Sequence[float] | None = None) -> None:
        self.metrics, self.tolerance, self.best = metrics, tolerance, best

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
        rule = replace(rule, err_max=max(team.gather(float(valid.ratings.max()))) or 1.0)
    judge = Judge(valid, [select_by] if isinstance(select_by, str) else list(select_by), rule, n_jobs=n_jobs)
    if all(team.gather(judge.n_empty == valid.n_queries)):
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
    totals = team.sum(sums)
    return {metric: float(total / n) for metric, (total, n) in zip(per_query, totals, strict=True)}


def settings_of(ranker: type[Ranker], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings, if the ranker can have them all; an error that names the nearest otherwise."""
    parameters = inspect.signature(ranker).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in given:
        if not takes_any and name not in parameters:
            raise ParameterError.unknown(f"setting of {ranker.__name__}", name, parameters)
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


def sorted_queries(data: RankingDataset) -> NDArray[np.int64]:
    """The queries in the order of their ids."""
    ids = data.query_ids if data.query_ids.dtype.kind in "iufUSmMb" else np.array([repr(i) for i in data.query_ids])
    return np.asarray(ids.argsort(kind="stable"), np.int64)


def canonical_rows(
    data: RankingDataset, n_jobs: int | None, *, rated: bool = True, team: Team | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], str]:
    """Rows in an order that depends on what they hold, not on where the caller had them.

    Queries by id, documents by a hash of features and (if ``rated``) rating, then by rating and weight. Returns the
    order, its offsets, and the content: a text that says what the data hold. Learning in this order gives the same
    model for the same data in any order. The processes of a ``team`` that all have these data share the reading.
    """
    queries = sorted_queries(data)
    offsets = np.concatenate([[0], data.lengths[queries].cumsum()])
    ratings = np.ascontiguousarray(data.ratings) if data.is_rated else np.zeros(data.n_documents)
    weights = np.ones(1) if data.row_weight is None else np.ascontiguousarray(data.row_weight)
    hashes = _hash_rows(data, ratings if rated else None, n_jobs, team or Team())
    order = np.empty(data.n_documents, np.int64)
    parts = np.linspace(0, data.n_queries, n_threads(n_jobs) + 1).astype(int).tolist()
    rows = (queries, np.asarray(data.offsets), offsets, hashes, ratings, weights)
    in_threads(content.order_rows, [(a, b, *rows, order) for a, b in pairwise(parts)], n_jobs)
    importance = np.ones(data.n_queries) if data.query_weight is None else np.ascontiguousarray(data.query_weight)
    digest = content.digest_queries(np.asarray(data.offsets), hashes, ratings, weights, importance)
    return order, offsets, f"{int(digest):016x}-{data.n_queries}-{data.n_documents}"


def join_contents(contents: Sequence[str]) -> str:
    """The content of all queries of several data sets, whichever of them has which.

    >>> join_contents(["00000000000000ff-1-10", "0000000000000001-2-20"])
    '0000000000000100-3-30'
    """
    parts = [content.split("-") for content in contents]
    digest, n_queries, n_documents = (
        sum(int(number, base) for number in column)
        for column, base in zip(zip(*parts, strict=True), (16, 10, 10), strict=True)
    )
    return f"{digest % (1 << 64):016x}-{n_queries}-{n_documents}"


def _hash_rows(
    data: RankingDataset, ratings: NDArray[np.float64] | None, n_jobs: int | None, team: Team
) -> NDArray[np.uint64]:
    """A number for what each row holds, its rating included where there are any."""
    hashes = np.zeros(data.n_documents, np.uint64)
    own = team.rows(data.n_documents)
    if ratings is not None:
        hashes[own] = ratings[own].view(np.uint64)
    bits = data.features.view(np.uint32)
    n_rows = rows_in(bits, _KEPT_BYTES)
    for start in range(own.start, own.stop, n_rows):
        end = min(start + n_rows, own.stop)
        cuts = np.linspace(start, end, n_threads(n_jobs) + 1).astype(int).tolist()
        in_threads(content.hash_rows, [(bits, a, b, hashes) for a, b in pairwise(cuts)], n_jobs)
        forget(data.features[start:end])
    return team.sum(hashes)


def as_base(value: Any) -> Ranker | None:
    """The setting ``base``: a ranker that learns first, or None."""
    if value is not None and not isinstance(value, Ranker):
        raise ParameterError(f"base: expected a ranker of tierank, such as UMart(), or None, got {value!r}")
    return value


def fit_inner(
    owner: Ranker,
    ranker: Ranker,
    train: RankingDataset,
    valid: RankingDataset | None,
    job: Job,
) -> Ranker:
    """A fresh ranker like this one, fitted as a part of another one, to data that were checked for that one."""
    inner: Ranker = clone(ranker)
    inner.has_queries_, inner.has_missing_ = owner.has_queries_, owner.has_missing_
    inner._fit(train, valid, job)
    inner._set_features(train.n_features, train.feature_names)
    return inner


def outline_inner(owner: Ranker, ranker: Ranker, train: RankingDataset) -> Scorer:
    """What a ranker inside another one will be after training."""
    inner: Ranker = clone(ranker)
    inner.has_queries_ = owner.has_queries_
    return inner._outline(train)


def inner_files(name: str, ranker: Ranker | None) -> dict[str, bytes]:
    """The files of a ranker inside another one: they stand among its files, under a name of their own."""
    return {} if ranker is None else {f"{name}.{file}": content for file, content in ranker._files().items()}


def restore_inner(
    owner: Ranker,
    ranker: Ranker,
    name: str,
    fitted: Any,
    files: Mapping[str, bytes],
    n_features: int | None = None,
) -> Ranker:
    """The ranker inside another one, from what was saved of it; ``n_features`` where it sees others than its owner."""
    if not isinstance(ranker, Ranker):
        raise DataError(f"expected {name} to be a ranker with its settings, got a damaged description")
    inner: Ranker = clone(ranker)
    inner.has_queries_, inner.has_missing_ = owner.has_queries_, owner.has_missing_
    if n_features is None or n_features == owner.n_features_in_:
        inner._set_features(owner.n_features_in_, getattr(owner, "feature_names_in_", None))
    else:
        inner._set_features(n_features, None)
    own = {file.removeprefix(f"{name}."): text for file, text in files.items() if file.startswith(f"{name}.")}
    inner._restore(fitted if isinstance(fitted, dict) else {}, own)
    return inner


def read_model(path: str | os.PathLike[str], rankers: Mapping[str, type[Ranker]]) -> Ranker:
    """The ranker of a model folder; every file is checked before anything looks into it."""
    folder = Path(path)
    file = folder / "model.json"
    if not file.is_file():
        raise DataError(f"{folder}: expected the folder of a saved model, with model.json in it, got none")
    if file.stat().st_size > _LARGEST_DESCRIPTION:
        raise DataError(f"{file}: expected a description of a model, got {file.stat().st_size} bytes")
    try:
        described = json.loads(file.read_text(), object_pairs_hook=_once, parse_constant=_refused)
        version, name, files = described["format"], described["ranker"], described["files"]
        settings, fitted, n_features = described["settings"], described["fitted"], described["n_features"]
        names, has_queries = described["feature_names"], described["has_queries"]
        well_typed = isinstance(files, dict) and isinstance(settings, dict) and isinstance(fitted, dict)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        well_typed, version = False, None
    if version is not None and version != MODEL_FORMAT:
        raise DataError(
            f"{file}: expected format {MODEL_FORMAT}, got {version!r}; read it with the tierank that wrote it"
        )
    if not well_typed:
        raise DataError(f"{file}: expected a description of a model, got a damaged file; save the model again")
    if not isinstance(name, str) or name not in rankers:
        raise DataError(f"{file}: {ParameterError.unknown('ranker', name, rankers)}")
    ranker = constructed(rankers[name], settings, file)
    ranker.has_queries_ = bool(has_queries)
    ranker.has_missing_ = bool(described.get("has_missing", True))
    try:
        as_limit("n_jobs", None if getattr(ranker, "n_jobs", None) == -1 else getattr(ranker, "n_jobs", None))
        ranker._set_features(_as_size(n_features, file), as_names(names, n_features))
        ranker._restore(fitted, {name: _checked(folder, name, digest) for name, digest in files.items()})
    except TierankError:
        raise
    except _OF_DAMAGE as error:
        raise DataError(f"{file}: expected a model that fits its description, got a damaged one: {error}") from None
    return ranker


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, if it has each name once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice")
    return found


def _refused(constant: str) -> None:
    raise ValueError(constant)  # NaN and the infinities, which JSON does not have and we do not write


def _same(one: Any, other: Any) -> bool:
    """Whether two settings are equal; a file gives lists for tuples."""
    is_sequence = isinstance(one, (list, tuple)) and isinstance(other, (list, tuple))
    return list(one) == list(other) if is_sequence else bool(one == other)


def encoded(value: Any, name: str) -> Any:
    """A setting for JSON: rules, rankers and tables of values as objects that say what they are."""
    if isinstance(value, Rule):
        fields = {field: encoded(getattr(value, field), f"{name}.{field}") for field in value.__dataclass_fields__}
        return {"rule": fields}
    if isinstance(value, Ranker):
        return {"ranker": type(value).__name__, "settings": value._saved_settings()}
    if isinstance(value, Mapping):
        return {"table": [[key, encoded(item, name)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [encoded(item, name) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and np.isfinite(value)):
        return value
    if name == "loss":  # a function of the user's: not needed to predict
        return None
    raise DataError(
        f"{name}: expected a setting that can be written to a file, got {value!r}; give functions as a table of values"
    )


def name_of(value: Any) -> str:
    """A setting that JSON has no form for, in the identity of a checkpoint: functions go by their names.

    >>> name_of(name_of)
    'tierank.rankers.base.name_of'
    """
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)


def decoded(value: Any) -> Any:
    """The setting that ``encoded`` gave."""
    if isinstance(value, dict) and set(value) == {"rule"}:
        return Rule(**{field: decoded(item) for field, item in value["rule"].items()})
    if isinstance(value, dict) and set(value) == {"table"}:
        return {key: decoded(item) for key, item in value["table"]}
    if isinstance(value, dict) and set(value) == {"ranker", "settings"}:
        from tierank.rankers import known_rankers  # which imports this module

        return constructed(known_rankers()[value["ranker"]], value["settings"], Path("model.json"))
    return [decoded(item) for item in value] if isinstance(value, list) else value


def constructed(ranker: type[Ranker], settings: dict[str, Any], file: Path) -> Ranker:
    """The ranker with these saved settings, not fitted."""
    try:
        return ranker(**{name: decoded(value) for name, value in settings.items()})
    except (TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
        raise DataError(f"{file}: expected settings of {ranker.__name__}, got others: {error}") from None


def _as_size(value: object, file: Path) -> int:
    if not isinstance(value, int) or value < 1:
        raise DataError(f"{file}: expected a number of features, got {value!r}")
    return value


def _checked(folder: Path, name: str, digest: object) -> bytes:
    if Path(name).name != name or not (folder / name).is_file():
        raise DataError(f"{folder}: expected a file {name!r} inside the folder of the model, got none")
    content = (folder / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"{folder / name}: expected the file that was saved, got another; its checksum differs")
    return content


def _as_valid(valid: RankingDataset | Sequence[Any]) -> RankingDataset:
    if isinstance(valid, RankingDataset):
        data = valid
    elif isinstance(valid, Sequence) and len(valid) in (2, 3):
        data = RankingDataset(*valid)
    else:
        raise DataError("valid: expected a RankingDataset, or (X, y, qid)")
    data.check_rated()
    return data
