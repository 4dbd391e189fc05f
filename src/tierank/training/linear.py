"""Ridge regression within queries: sums over blocks of queries, one eigendecomposition, and the fitted model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tierank.dataset import RankingDataset
from tierank.errors import DataError
from tierank.export import Layer, Network, Scorer, Sum
from tierank.files import replacing
from tierank.kernels import in_threads
from tierank.kernels.linear import add_products
from tierank.memory import release_pages
from tierank.relevance import Gain, blocks_of, gain_levels
from tierank.team import Team
from tierank.training.checkpoint import Checkpoint
from tierank.training.model import FitContext, FittedModel, Resources, SavedModel, Seen, as_best, as_history, inside
from tierank.training.order import canonical_rows, join_contents, rows_by_content, with_rows
from tierank.training.selection import Judging, Selection, make_judge, means_of
from tierank.training.sharing import shared_work
from tierank.transforms import Transform, make_transform
from tierank.types import Floats, Rows

# The ridges that are tried, strongest first, as the first of equals is kept. From 10 down to 1e-4, two per power of
# ten.
RIDGES = tuple(float(f"{10 ** (1 - k / 2):.4g}") for k in range(11))
# The ridge if it cannot be chosen: fewer than two queries with different ratings, and no validation data.
USUAL_RIDGE = 1.0
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

    def __init__(self, seen: Seen, transforms: Sequence[Transform], coef: Floats, center: Floats, ridge: float) -> None:
        self.seen, self.transforms, self.coef, self.center = seen, tuple(transforms), coef, center
        self.ridge = ridge
        self.history, self.best = [], {}

    @classmethod
    def restore(cls, saved: SavedModel, transforms: Sequence[Any]) -> LinearModel:
        """Restore a saved model; its arrays are checked against the settings."""
        n_features = saved.seen.n_features
        try:
            arrays = safetensors.numpy.load(saved.files["weights.safetensors"])
            fitted = [
                make_transform(one).load_state(inside(arrays, f"transform{k}."), n_features)
                for k, one in enumerate(transforms)
            ]
            ridge, history = float(saved.facts["ridge"]), as_history(saved.facts["history"])
            best = as_best(saved.facts["best"])
            for name in ("coef", "center"):
                if arrays[name].shape != (len(fitted), n_features) or arrays[name].dtype != np.float64:
                    raise ValueError(f"{name} of shape {arrays[name].shape}")
                if not np.isfinite(arrays[name]).all():
                    raise ValueError(f"{name} with NaN or infinity")
        except (KeyError, TypeError, ValueError, safetensors.SafetensorError) as error:
            raise DataError(
                expected="weights that fit the settings of the model", got=f"a damaged description: {error}"
            ) from None
        model = cls(saved.seen, fitted, arrays["coef"], arrays["center"], ridge)
        model.history, model.best = history, best
        return model

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

    def portable(self) -> Scorer:
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


def outline_linear(settings: Mapping[str, Any], train: RankingDataset, seen: Seen) -> LinearModel:
    """The model before training: transforms of one query, and weights of 0."""
    first = train.select([0])
    transforms = [make_transform(one).fit(first) for one in settings["feature_transform"]]
    zeros = np.zeros((len(transforms), train.n_features))
    return LinearModel(seen, transforms, zeros, zeros, USUAL_RIDGE)


def train_linear(
    settings: Mapping[str, Any], train: RankingDataset, valid: RankingDataset | None, context: FitContext
) -> LinearModel:
    """Sum up, solve for every ridge, keep the best."""
    with shared_work():
        return _train(settings, train, valid, context)


def _train(
    settings: Mapping[str, Any], train: RankingDataset, valid: RankingDataset | None, context: FitContext
) -> LinearModel:
    team, seen, n_jobs = context.team, context.seen, settings["n_jobs"]
    judge = None
    if valid is not None:
        valid = team.part(valid)
        judge = make_judge(valid, settings["select_by"], settings["rule"], n_jobs, team)
    transforms = _fit_transforms(settings["feature_transform"], train, seen, n_jobs, team)
    zeros = np.zeros((len(transforms), train.n_features))
    model = LinearModel(seen, transforms, zeros, zeros, USUAL_RIDGE)
    queries = Queries(team.part(train), model, settings["gain"], n_jobs, team)
    kept = None if context.checkpoint is None else _Tried.of(context, settings, queries, valid)
    # Sums in several threads of a library have other bits than in one: threads work on parts that are always the same.
    with threadpool_limits(1, "blas"):
        folds = queries.sum_up()
        ridges = RIDGES if settings["ridge"] is None else (settings["ridge"],)
        if valid is None and settings["ridge"] is None and folds.n_usable < 2:
            ridges = (USUAL_RIDGE,)
        whole = folds.sums()
        weights = _agreed(whole.solve(ridges), team).reshape(*zeros.shape, len(ridges))
        if judge is not None and valid is not None:
            scores = model.weigh(valid, weights, n_jobs)
        elif len(ridges) > 1:
            held_out = [_agreed(folds.sums(without=fold).solve(ridges), team) for fold in range(N_FOLDS)]
            rows = rows_by_content(queries.data, n_jobs)
            scores = queries.held_out_scores([one.reshape(weights.shape) for one in held_out])[rows]
            judged = with_rows(queries.data.replace(features=queries.data.features[:, :0]), rows)  # needs no features
            judge = make_judge(judged, settings["select_by"], settings["rule"], n_jobs, team)
        else:
            scores = None
    chosen = _choose(model, ridges, judge, scores, settings, context, kept)
    model.ridge, model.coef = ridges[chosen], np.ascontiguousarray(weights[:, :, chosen])
    model.center = whole.means().reshape(zeros.shape)
    if valid is not None:
        model.best = {name: value for name, value in model.history[chosen].items() if name != "ridge"}
    return model


def _agreed(weights: Floats, team: Team) -> Floats:
    """The weights of the first process: other machines may differ in the last digits of the solution."""
    if team.size == 1:
        return weights
    content = team.broadcast(_packed({"weights": weights}))
    return np.asarray(safetensors.numpy.load(cast(bytes, content))["weights"], np.float64)


def _choose(
    model: LinearModel,
    ridges: Sequence[float],
    judge: Judging | None,
    scores: Floats | None,
    settings: Mapping[str, Any],
    context: FitContext,
    kept: _Tried | None,
) -> int:
    """The best of the ridges by the metrics; writes the history, and calls the callbacks for each of them.

    A run that a callback stopped is finished: the same ridges are tried, and no callback is called.
    """
    selection, chosen, team = Selection(), 0, context.team
    n_tried = None if kept is None else kept.n_tried
    context.callbacks.stopped |= n_tried is not None
    for k, ridge in enumerate(ridges[:n_tried]):
        means: dict[str, float] = {}
        if judge is not None and scores is not None:
            means = means_of(judge(np.ascontiguousarray(scores[:, k])), team)
        model.history.append({"ridge": ridge} | means)
        is_best = selection.is_better(tuple(means.values()))
        chosen = k if is_best else chosen
        if n_tried is None and context.step(k + 1, len(ridges), settings, means, is_best=is_best):
            if kept is not None:
                kept.stop(k + 1)
            break
    return chosen


def _fit_transforms(
    transforms: Sequence[Any], train: RankingDataset, seen: Seen, n_jobs: int | None, team: Team
) -> list[Transform]:
    """The fitted transforms, the same in all processes of a team."""
    fitted = []
    for one in transforms:
        fresh = make_transform(one)
        if fresh.needs_queries and seen.has_queries:
            # Its statistics of all documents are for data without queries, so a single query will do.
            fresh.fit(train.select([int(canonical_rows(train, n_jobs).queries[0])]))
            if team.holds_parts:
                state = team.broadcast(_packed(fresh.state()))
                fresh.load_state(safetensors.numpy.load(cast(bytes, state)), train.n_features)
        else:
            fresh.fit_in_team(train, team)
        fitted.append(fresh)
    return fitted


class _Tried(Checkpoint):
    """How many ridges were tried, if a callback stopped training.

    There is nothing else to resume: a fit takes less time than a checkpoint saves.
    """

    FILE = "n_tried"

    @classmethod
    def of(
        cls, context: FitContext, settings: Mapping[str, Any], queries: Queries, valid: RankingDataset | None
    ) -> _Tried:
        """The folder, marked as this run's."""
        contents = [queries.content, None if valid is None else canonical_rows(valid, settings["n_jobs"]).content]
        joined = [None if one is None else join_contents(context.team.all_gather(one)) for one in contents]
        tried = cls(context, settings, joined)
        if context.team.is_first:
            tried.begin()
        return tried

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

    @classmethod
    def zeros(cls, shape: tuple[int, ...], n_columns: int) -> Sums:
        """Sums of nothing."""
        targets, squares, totals = np.zeros((3, *shape, n_columns))
        return cls(np.zeros((*shape, n_columns, n_columns)), targets, squares, totals, np.zeros((*shape, 1)))

    def means(self) -> Floats:
        """The mean of each column over the documents."""
        return self.totals / max(float(self.weight[0]), np.finfo(np.float64).tiny)

    def solve(self, ridges: Sequence[float]) -> Floats:
        """The weights of the columns for each ridge: columns x ridges. Columns that are constant have a weight of 0."""
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
        along = vectors.T @ (self.targets[live] / scale)
        weights[live] = vectors @ (along[:, None] / (values[:, None] + penalties)) / scale[:, None]
        return weights


class Folds:
    """The sums of each part of the training queries."""

    def __init__(self, parts: Sums, n_usable: int) -> None:
        self.parts, self.n_usable = parts, n_usable

    def sums(self, without: int | None = None) -> Sums:
        """The sums over all parts, or over all except one."""
        kept = [fold for fold in range(N_FOLDS) if fold != without]
        return Sums(*(one[kept].sum(axis=0) for one in self.parts))


class Queries:
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

    @property
    def n_columns(self) -> int:
        """Transformed features of all transforms."""
        return len(self.model.transforms) * self.data.n_features

    def sum_up(self) -> Folds:
        """The sums of each part, over all processes."""
        parts = Sums.zeros((N_FOLDS,), self.n_columns)
        views = [Sums(*(one[fold] for one in parts)) for fold in range(N_FOLDS)]
        n_usable = in_threads(self._add_part, zip(self.edges[:-1], self.edges[1:], views, strict=True), self.n_jobs)
        total = Sums(*(self.team.all_reduce(one) for one in parts))
        return Folds(total, sum(self.team.all_gather(sum(n_usable))))

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
