"""LinearRanker: ridge regression within queries, in closed form.

Sums over blocks of queries, one eigendecomposition, and the best of some ridges by the metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tierank.arrays import Floats, Rows, release_pages
from tierank.data.columns import Encoded
from tierank.data.dataset import RankingDataset
from tierank.data.matching import check_fitted
from tierank.data.relevance import Gain, blocks_of, gain_levels
from tierank.data.team import Team
from tierank.errors import DataError, ParameterError
from tierank.export import Layer, Network, Scorer, Sum
from tierank.files import replacing
from tierank.kernels import in_threads
from tierank.kernels.features import add_products
from tierank.losses.umart import GAIN
from tierank.rankers.base import SelectingRanker
from tierank.rankers.checkpoint import Checkpoint
from tierank.rankers.model import FitContext, FittedModel, Resources, SavedModel, Seen, as_best, as_history, inside
from tierank.rankers.order import canonical_rows, join_contents, rows_by_content, shared_work, with_rows
from tierank.rankers.selection import Selection, make_judge, means_of
from tierank.settings import Between, Checked, Number, OneOf, Optional, setting
from tierank.transforms import EXPECTED, Transform, as_transforms, make_transform

# The ridges that are tried, strongest first, as the first of equals is kept. From 10 down to 1e-4, two per power of
# ten.
RIDGES = tuple(float(f"{10 ** (1 - k / 2):.4g}") for k in range(11))
# The ridge if it cannot be chosen: fewer than two queries with different ratings, and no validation data.
USUAL_RIDGE = 1.0
# What documents are ranked by before anything is learned, if there are vectors of their texts: weights of features that
# are scaled to 0..1 in the query, and with them the stronger ridges that are tried (docs/tutorial-text.md).
TEXT_WEIGHTS = {"cosine": 1.0, "list_cosine": 1.0, "fuzzy_found": 0.5}
TEXT_RIDGES = (1000.0, 316.2, 100.0, 31.62)
# Parts of the training queries that take turns in cross-validation. Each is summed up by itself, in one thread.
N_FOLDS = 5
# Numbers in a block of transformed features, and documents scored at a time.
_BLOCK = 1 << 17
_CHUNK = 1 << 14


class LinearModel(FittedModel):
    """A fitted linear ranker: score = sum over transforms t and features j of coef[t, j] (x[t, j] - center[t, j]).

    Attributes
    ----------
    transforms : tuple of Transform
        The fitted transforms, side by side.
    coef : array
        The weight of each transformed feature, transforms x features.
    center : array
        The mean of each transformed feature over the training documents, transforms x features.
    ridge : float
        The strength of the penalty that was given or chosen.
    """

    def __init__(
        self,
        seen: Seen,
        transforms: Sequence[Transform],
        coef: Floats | None = None,
        center: Floats | None = None,
        ridge: float = USUAL_RIDGE,
    ) -> None:
        """By default all weights are 0."""
        self.seen, self.transforms, self.ridge = seen, tuple(transforms), ridge
        zeros = np.zeros((len(transforms), seen.n_features))
        self.coef, self.center = zeros if coef is None else coef, zeros if center is None else center
        self.history, self.best = [], {}

    @classmethod
    def restore(cls, saved: SavedModel, transforms: Sequence[Any]) -> LinearModel:
        """Restore a saved model; its arrays are checked against the settings."""
        n_features, expected = saved.seen.n_features, "weights that fit the settings of the model"
        try:
            arrays = safetensors.numpy.load(saved.files["weights.safetensors"])
            fitted = [
                make_transform(one).load_state(inside(arrays, f"transform{k}."), n_features)
                for k, one in enumerate(transforms)
            ]
            model = cls(saved.seen, fitted, arrays["coef"], arrays["center"], float(saved.facts["ridge"]))
            model.history, model.best = as_history(saved.facts["history"]), as_best(saved.facts["best"])
        except (KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
            raise DataError(expected=expected, got=f"a damaged description: {error}") from None
        for name, array in (("coef", model.coef), ("center", model.center)):
            if array.shape != (len(fitted), n_features) or array.dtype != np.float64 or not np.isfinite(array).all():
                got = f"a damaged description: {name} of shape {array.shape}, of {array.dtype}, or with NaN or infinity"
                raise DataError(expected=expected, got=got)
        return model

    @classmethod
    def of_texts(cls, seen: Seen) -> LinearModel | None:
        """How documents are ranked by their texts before anything is learned; None without vectors of texts."""
        names, kinds = seen.feature_names or (), seen.columns.kinds
        of_vectors = [kind for name in names if isinstance(kind := kinds.get(name), Encoded)]
        if not of_vectors or not seen.has_queries:
            return None
        first = of_vectors[0]  # pairs of texts are declared in the order of their importance
        coef = np.zeros((1, seen.n_features))
        for part, weight in TEXT_WEIGHTS.items():
            name = replace(first, part=part).feature
            if name in names:
                coef[0, names.index(name)] = weight
        scaling = make_transform("query_minmax").fit(np.zeros((1, seen.n_features), np.float32))
        return cls(seen, [scaling], coef)

    @property
    def needs_list(self) -> bool:
        """Whether features are scaled within the query."""
        return self.seen.has_queries and any(transform.needs_queries for transform in self.transforms)

    @property
    def offset(self) -> Floats:
        """What each transform adds to the score of every document, so that scores of the training data have mean 0."""
        return np.asarray(-(self.coef * self.center).sum(axis=1))

    def predict(self, data: RankingDataset, resources: Resources) -> Floats:
        """The weighted sum of the transformed features."""
        scores = self.weigh(data, self.coef[:, :, None], resources.n_jobs)
        return np.asarray(scores[:, 0] + self.offset.sum())

    def weigh(self, data: RankingDataset, weights: Floats, n_jobs: int | None) -> Floats:
        """The scores without their offset, a column for each of several weightings: transforms x features x these."""
        scores = np.zeros((data.n_documents, weights.shape[2]))
        # Without queries, any rows will do.
        offsets = data.offsets if self.needs_list else np.arange(data.n_documents + 1)

        def weigh(_: slice, rows: slice, edges: Rows) -> None:
            add_all(self.apply(data.features[rows], edges if self.needs_list else None), weights, scores[rows])
            release_pages(data.features[rows])

        in_threads(weigh, blocks_of(offsets, _CHUNK), n_jobs)
        return scores

    def apply(self, features: NDArray[np.float32], offsets: Rows | None) -> list[NDArray[np.float32]]:
        """The features of whole queries under each transform."""
        return [one.values_of(features, offsets) for one in self.transforms]

    def contributions(self, data: RankingDataset, above: Rows, below: Rows, resources: Resources) -> Floats:
        """Weight times difference of each transformed feature, summed over the transforms: exact, up to rounding."""
        values = self.apply(data.features, data.offsets if self.seen.has_queries else None)
        differences = [one[above].astype(np.float64) - one[below] for one in values]
        return np.asarray(sum(coef * one for coef, one in zip(self.coef, differences, strict=True)), np.float64)

    def used_features(self, n_features: int) -> NDArray[np.bool_]:
        """The features with a weight other than 0."""
        return np.asarray((self.coef != 0).any(axis=0))

    def to_neutral(self) -> Scorer:
        """A linear layer behind each transform, in double precision."""
        parts = [
            Network(
                transform,
                self.seen.has_queries and transform.needs_queries,
                (Layer(coef[None], np.array([offset]), "identity", center=center),),
            )
            for transform, coef, center, offset in zip(
                self.transforms, self.coef, self.center, self.offset, strict=True
            )
        ]
        return parts[0] if len(parts) == 1 else Sum(tuple((1.0, part) for part in parts))

    def files(self) -> dict[str, bytes]:
        """The weights, and the fitted transforms."""
        arrays = {"coef": self.coef, "center": self.center}
        for k, transform in enumerate(self.transforms):
            arrays |= {f"transform{k}.{name}": array for name, array in transform.state().items()}
        return {"weights.safetensors": _packed(arrays)}

    def facts(self) -> dict[str, Any]:
        """The ridge, and the metrics of those that were tried."""
        return {"ridge": self.ridge, "history": self.history, "best": self.best}


def add_all(values: Sequence[NDArray[np.float32]], weights: Floats, scores: Floats) -> None:
    """Add the weighted columns of each transform to the scores."""
    for of_transform, own in zip(values, weights, strict=True):
        add_products(of_transform, np.ascontiguousarray(own), scores)


@shared_work()
def train_linear(
    settings: Mapping[str, Any], train: RankingDataset, valid: RankingDataset | None, context: FitContext
) -> LinearModel:
    """Sum up, solve for every ridge, keep the best."""
    team, n_jobs = context.team, settings["n_jobs"]
    judge = None
    if valid is not None:
        valid = team.part(valid)
        judge = make_judge(valid, settings["select_by"], settings["rule"], n_jobs, team)
    transforms = [_fitted(one, train, context.seen, n_jobs, team) for one in settings["feature_transform"]]
    model = LinearModel(context.seen, transforms)
    queries = TrainingQueries(team.part(train), model, settings["gain"], n_jobs, team)
    tried = None
    if context.checkpoint is not None:
        contents = [queries.content, None if valid is None else canonical_rows(valid, n_jobs).content]
        joined = [None if one is None else join_contents(team.all_gather(one)) for one in contents]
        tried = _TriedRidges(context, settings, joined)
    # Sums in several threads of a library have other bits than in one: threads work on parts that are always the same.
    of_texts = LinearModel.of_texts(context.seen)
    prior = None
    if of_texts is not None and (names := [type(one).__name__ for one in transforms]).count("QueryMinMax"):
        prior = np.zeros_like(model.coef)
        prior[names.index("QueryMinMax")] = of_texts.coef[0]
        prior = prior.ravel()
    with threadpool_limits(1, "blas"):
        folds, n_usable = queries.sum_up()
        ridges = RIDGES if prior is None else TEXT_RIDGES + RIDGES
        ridges = ridges if settings["ridge"] is None else (settings["ridge"],)
        if valid is None and settings["ridge"] is None and n_usable < 2:
            ridges = (USUAL_RIDGE,)
        shape = *model.coef.shape, len(ridges)
        weights = _of_first(folds.total().solve(ridges, prior), team).reshape(shape)
        if valid is not None:
            scores = model.weigh(valid, weights, n_jobs)
        elif len(ridges) > 1:
            parts = [folds.total(without=k).solve(ridges, prior) for k in range(N_FOLDS)]
            held_out = [_of_first(one, team).reshape(shape) for one in parts]
            rows = rows_by_content(queries.data, n_jobs)
            scores = queries.held_out_scores(held_out)[rows]
            judged = with_rows(queries.data.replace(features=queries.data.features[:, :0]), rows)  # needs no features
            judge = make_judge(judged, settings["select_by"], settings["rule"], n_jobs, team)
    # A run that a callback stopped is finished: the same ridges are tried, and no callback is called.
    n_tried = None if tried is None else tried.n_tried
    context.callbacks.stopped |= n_tried is not None
    selection, chosen = Selection(), 0
    for k, ridge in enumerate(ridges[:n_tried]):
        means = {} if judge is None else means_of(judge(np.ascontiguousarray(scores[:, k])), team)
        model.history.append({"ridge": ridge} | means)
        is_best = selection.is_better(tuple(means.values()))
        chosen = k if is_best else chosen
        if n_tried is None and context.step(k + 1, len(ridges), settings, means, is_best=is_best):
            if tried is not None:
                tried.stop(k + 1)
            break
    model.ridge, model.coef = ridges[chosen], np.ascontiguousarray(weights[:, :, chosen])
    model.center = folds.total().means().reshape(model.coef.shape)
    if valid is not None:
        model.best = {name: value for name, value in model.history[chosen].items() if name != "ridge"}
    return model


def _of_first(weights: Floats, team: Team) -> Floats:
    """The weights of the first process: other machines may differ in the last digits of the solution."""
    if team.size == 1:
        return weights
    content = team.broadcast(_packed({"weights": weights}))
    return np.asarray(safetensors.numpy.load(cast(bytes, content))["weights"], np.float64)


def _fitted(transform: Any, train: RankingDataset, seen: Seen, n_jobs: int | None, team: Team) -> Transform:
    """A fitted transform, the same in all processes of a team."""
    fresh = make_transform(transform)
    if not (fresh.needs_queries and seen.has_queries):
        return fresh.fit_in_team(train, team)
    # Its statistics of all documents are for data without queries, so a single query will do.
    fresh.fit(train.select([int(canonical_rows(train, n_jobs).queries[0])]))
    if team.holds_parts:
        state = team.broadcast(_packed(fresh.state()))
        fresh.load_state(safetensors.numpy.load(cast(bytes, state)), train.n_features)
    return fresh


class _TriedRidges(Checkpoint):
    """How many ridges were tried, if a callback stopped training.

    There is nothing else to resume: a fit takes less time than a checkpoint saves.
    """

    FILE = "n_tried"

    def __init__(self, context: FitContext, settings: Mapping[str, Any], contents: Sequence[str | None]) -> None:
        super().__init__(context, settings, contents)
        if self.team.is_first:
            self.begin()

    @property
    def n_tried(self) -> int | None:
        """The number of ridges after which a callback stopped training; None if none did."""
        with self.reading():
            text = self.content(self.FILE)
            return None if text is None else int(text)

    def stop(self, n_tried: int) -> None:
        """Remember that a callback stopped training after so many ridges."""
        if self.team.is_first:
            with replacing(self.folder / self.FILE) as fresh:
                fresh.write_text(str(n_tried), encoding="utf-8")


class Sums(NamedTuple):
    """Sums over queries; the columns are those of all transforms, centred in each query.

    While they are collected, all arrays have one more axis in front, for the parts of the queries.

    Parameters
    ----------
    products : array
        Sum of w_q a x x', columns x columns.
    targets : array
        Sum of w_q a x y.
    squares : array
        Sum of v_q a x^2.
    totals : array
        Sum of v_q a x before centring.
    weight : array
        Sum of v_q a, a single number.
    """

    products: Floats
    targets: Floats
    squares: Floats
    totals: Floats
    weight: Floats

    def total(self, without: int | None = None) -> Sums:
        """The sums over all parts, or over all except one."""
        kept = [fold for fold in range(N_FOLDS) if fold != without]
        return Sums(*(one[kept].sum(axis=0) for one in self))

    def means(self) -> Floats:
        """The mean of each column over the documents."""
        return self.totals / max(float(self.weight[0]), np.finfo(np.float64).tiny)

    def solve(self, ridges: Sequence[float], prior: Floats | None = None) -> Floats:
        """The weights of the columns for each ridge: columns x ridges. Columns that are constant have a weight of 0.

        With a ``prior`` they are shrunk towards that multiple of it which fits best, and otherwise towards 0.
        """
        weights = np.zeros((len(self.targets), len(ridges)))
        live = self.squares > 0
        if not live.any() or not self.products.any():
            return weights
        scale = np.sqrt(self.squares[live] / self.weight[0])
        products = self.products[np.ix_(live, live)] / scale / scale[:, None]
        values, vectors = np.linalg.eigh(products)
        # Along the other directions all columns are constant, and add nothing.
        kept = values > len(values) * np.finfo(np.float64).eps * values[-1]
        values, vectors = values[kept], vectors[:, kept]
        penalties = np.array(ridges) * (np.trace(products) / len(products))
        targets = self.targets[live] / scale
        start = np.zeros(len(targets)) if prior is None else prior[live] * scale
        if start.any():
            start *= max(float(start @ targets) / float(start @ products @ start), 0.0)
            targets = targets - products @ start
        along = vectors.T @ targets
        moved = vectors @ (along[:, None] / (values[:, None] + penalties))
        weights[live] = (moved if prior is None else start[:, None] + moved) / scale[:, None]
        return weights


class TrainingQueries:
    """The training queries of this process in canonical order, a block at a time."""

    def __init__(self, data: RankingDataset, model: LinearModel, gain: Gain, n_jobs: int | None, team: Team) -> None:
        self.data, self.model, self.n_jobs, self.team = data, model, n_jobs, team
        canonical = canonical_rows(data, n_jobs)
        self.order, self.offsets, self.content = canonical.rows, canonical.offsets, canonical.content
        self.gains = _gains(np.nan_to_num(data.ratings), gain, team)[self.order]
        self.row_weight = np.ones(data.n_documents) if data.row_weight is None else data.row_weight[self.order]
        self.row_weight = np.where(data.is_judged[self.order], self.row_weight, 0.0)
        by_id = canonical.queries
        self.query_weight = np.ones(data.n_queries) if data.query_weight is None else data.query_weight[by_id]
        # Queries are ordered by hashes of their content, so neighbours are unrelated.
        self.edges = (np.arange(N_FOLDS + 1) * data.n_queries // N_FOLDS).tolist()
        self.n_columns = len(model.transforms) * data.n_features

    def sum_up(self) -> tuple[Sums, int]:
        """The sums of each part of the queries of all processes; and how many queries have an order to learn."""
        n = self.n_columns
        shapes = ((n, n), (n,), (n,), (n,), (1,))
        parts = Sums(*(np.zeros((N_FOLDS, *shape)) for shape in shapes))
        views = [Sums(*(one[fold] for one in parts)) for fold in range(N_FOLDS)]
        n_usable = in_threads(self._add_part, zip(self.edges[:-1], self.edges[1:], views, strict=True), self.n_jobs)
        total = Sums(*(self.team.all_reduce(one) for one in parts))
        return total, sum(self.team.all_gather(sum(n_usable)))

    def _add_part(self, first: int, last: int, sums: Sums) -> int:
        """Add some queries to the sums; returns how many of them have an order to learn."""
        n_usable = 0
        for a, b in self._blocks(first, last):
            rows = slice(int(self.offsets[a]), int(self.offsets[b]))
            starts, lengths = self.offsets[a:b] - self.offsets[a], np.diff(self.offsets[a : b + 1])
            x = np.concatenate(self._values(a, b), axis=1).astype(np.float64)
            if not np.isfinite(x).all():
                raise DataError(argument="feature_transform", expected="finite numbers", got="NaN or infinity")
            weight, gains = self.row_weight[rows], self.gains[rows][:, None]
            n = np.add.reduceat(weight, starts)
            means = _centre(x, weight, n, starts, lengths)
            y = gains.copy()
            _centre(y, weight, n, starts, lengths)
            spread = np.sqrt(n) * np.sqrt(np.add.reduceat(weight * y[:, 0] ** 2, starts))
            importance = self.query_weight[a:b]
            of_query = np.divide(importance, spread, out=np.zeros_like(spread), where=spread > 0)
            n_usable += int(np.count_nonzero(of_query))
            of_row = np.repeat(of_query, lengths) * weight
            scaled = x * np.sqrt(of_row)[:, None]
            sums.products[...] += scaled.T @ scaled
            sums.targets[...] += x.T @ (of_row * y[:, 0])
            sums.squares[...] += (np.repeat(importance, lengths) * weight) @ x**2
            sums.totals[...] += (importance * n) @ means
            sums.weight[...] += float(importance @ n)
        return n_usable

    def held_out_scores(self, weights: Sequence[Floats]) -> Floats:
        """The scores of each part by the weights that were learned without it, in the order of the data set."""
        scores = np.zeros((self.data.n_documents, weights[0].shape[2]))

        def score(first: int, last: int, own: Floats) -> None:
            for a, b in self._blocks(first, last):
                of_block = np.zeros((int(self.offsets[b] - self.offsets[a]), own.shape[2]))
                add_all(self._values(a, b), own, of_block)
                scores[self.order[self.offsets[a] : self.offsets[b]]] = of_block

        in_threads(score, zip(self.edges[:-1], self.edges[1:], weights, strict=True), self.n_jobs)
        return scores

    def _values(self, a: int, b: int) -> list[NDArray[np.float32]]:
        """The transformed features of the queries from a to before b."""
        rows = self.data.features[self.order[self.offsets[a] : self.offsets[b]]]
        offsets = self.offsets[a : b + 1] - self.offsets[a] if self.model.seen.has_queries else None
        return self.model.apply(rows, offsets)

    def _blocks(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Cuts the queries from first to before last into blocks; memory does not grow with the data."""
        offsets, n_documents = self.offsets[first : last + 1], max(1, _BLOCK // self.n_columns)
        for queries, _, _ in blocks_of(offsets, n_documents):
            yield first + queries.start, first + queries.stop
            release_pages(self.data.features)


def _centre(values: Floats, weight: Floats, n: Floats, starts: Rows, lengths: Rows) -> Floats:
    """Subtract the mean of each query, in place; returns the means.

    The first value is subtracted before: what is constant in a query is then 0, not the rounding error of a mean.
    """
    origin = values[starts]
    values -= np.repeat(origin, lengths, axis=0)
    means = np.add.reduceat(values * weight[:, None], starts, axis=0) / np.where(n > 0, n, 1.0)[:, None]
    values -= np.repeat(means, lengths, axis=0)
    return origin + means


def _gains(ratings: Floats, gain: Gain, team: Team) -> Floats:
    """The gain of each document in units of the highest of all; where gains are 2^r - 1, of that plus 1.

    A constant that all gains of a query share changes nothing, so 2^(r - R) will do, which never overflows.
    """
    levels = gain_levels(ratings, gain)
    highest = max(team.all_gather(float(levels.max())))
    return np.exp2(levels - highest) if gain == "exp2" else levels / (highest or 1.0)


def _packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    content: bytes = safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    return content


def _with_a_weight_each(value: Any) -> tuple[Any, ...]:
    """The transforms, if each returns one column per feature."""
    transforms = as_transforms(value)
    for one in transforms:
        if make_transform(one).n_columns(1) != 1:
            expected = "transforms that return one column per feature"
            raise ParameterError(argument="feature_transform", expected=expected, got=repr(one))
    return transforms


@dataclass(kw_only=True, eq=False, repr=False)
class LinearRanker(SelectingRanker):
    """Ridge regression of the gains on features scaled within the query, in closed form.

    Columns x are all features under each transform; x and the gains y are centred within the query, and columns are
    divided by their deviation over the training documents. With row weights a (1 by default) and query weights v:

        w_q = v_q / sqrt(n_q * sum over the query of a (y - mean)^2),   n_q = sum over the query of a
        A = sum over q of w_q * sum of a x x',   b = sum over q of w_q * sum of a x y
        beta = (A + ridge * trace(A) / p * I)^-1 b

    p is the number of columns that vary within some query. Queries with a single rating have w_q = 0. Gains are divided
    by the highest gain of the training data, so that none overflows. A row with weight 2 counts as two rows; transforms
    ignore weights.

    Without validation data the ridge is chosen by cross-validation over five parts of the training queries, and is 1 if
    fewer than two queries have different ratings. There are no random numbers. ``tierank list settings linear`` lists
    the settings.

    Attributes
    ----------
    coef_ : array
        The weight of each transformed feature, transforms x features.
    ridge_ : float
        The strength of the penalty, given or chosen.
    transforms_ : tuple of Transform
        The fitted transforms.
    history_ : list of dict
        A row for each ridge that was tried, strongest first.

    Examples
    --------
    >>> from tierank import make_ranking
    >>> train, valid, test = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.6, 0.2, 0.2)
    >>> ranker = LinearRanker().fit(train, valid=valid)
    >>> ranker.coef_.shape, len(ranker.history_), ranker.predict(test).shape == (test.n_documents,)
    ((3, 8), 11, True)
    >>> LinearRanker(feature_transform="standard", ridge=0.1).fit(train).needs_list()
    False
    """

    feature_transform: str | Transform | Sequence[str | Transform] = setting(
        ("query_minmax", "query_rank", "query_log1p"),
        Checked(EXPECTED, _with_a_weight_each),
        "how features are scaled: a key of TRANSFORMS, a Transform, or several side by side; the default uses the"
        " whole list of a query, so predict needs it; standard and none score one document at a time",
    )
    ridge: float | None = setting(
        None,
        Optional(Number(0), "the best of 11 values from 10 to 1e-4"),
        "strength of the penalty, relative to the mean square of the columns; None for the best of 11 values from 10 to"
        " 1e-4 by select_by, on validation data or else by cross-validation over the training queries",
        search=Between(1e-4, 10.0, log=True),
    )
    gain: Gain = setting(
        "linear",
        GAIN,
        "gain of a rating: linear, exp2 (2^r - 1), a list for the ratings 0, 1, 2, ..., a mapping, or a function (which"
        " cannot be saved)",
        search=OneOf(("linear", "exp2")),
    )

    def capabilities(self) -> frozenset[str]:
        """Unjudged documents have a weight of 0; transforms that work within a query need no team to be fitted."""
        transforms = [make_transform(one) for one in self._plain_settings()["feature_transform"]]
        is_in_parts = all(one.takes_parts or one.needs_queries for one in transforms)
        return frozenset({"unjudged", "parts"} if is_in_parts else {"unjudged"})

    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> LinearModel:
        """Solve the normal equations."""
        return train_linear(context.settings, train, valid, context)

    def restore_model(self, saved: SavedModel) -> LinearModel:
        """The weights of a model folder."""
        return LinearModel.restore(saved, self._plain_settings()["feature_transform"])

    def export_skeleton(self, train: RankingDataset, seen: Seen, settings: Mapping[str, Any]) -> Scorer:
        """Weights of 0 behind transforms of one query."""
        first = train.select([0])
        return LinearModel(seen, [make_transform(one).fit(first) for one in settings["feature_transform"]]).to_neutral()

    @property
    def _linear(self) -> LinearModel:
        check_fitted(self)
        return cast("LinearModel", self.model_)

    @property
    def coef_(self) -> NDArray[np.float64]:
        """The weight of each transformed feature, transforms x features."""
        return self._linear.coef

    @property
    def ridge_(self) -> float:
        """The strength of the penalty, given or chosen."""
        return self._linear.ridge

    @property
    def transforms_(self) -> tuple[Transform, ...]:
        """The fitted transforms, in the order of the rows of ``coef_``."""
        return self._linear.transforms
