"""Blend: trees, networks and a linear ranker, weighted by how well each ranks."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from tierank.columns import Plan
from tierank.dataset import RankingDataset
from tierank.errors import DataError, ParameterError
from tierank.export import Scorer, Sum
from tierank.files import replacing
from tierank.kernels import n_threads
from tierank.kinds import Category, Mean
from tierank.models import Known, class_name, write_folder
from tierank.progress import Progress
from tierank.rankers.base import Ranker, fitted_copy
from tierank.rankers.judged import LARGEST_SEED, JudgedRanker
from tierank.rankers.linear import LinearRanker
from tierank.rankers.loading import read_ranker
from tierank.rankers.networks import URank
from tierank.rankers.training_data import settle_unjudged
from tierank.rankers.trees import LambdaMART, UMart
from tierank.settings import Choice, Flag, Integer, setting
from tierank.team import Team
from tierank.training.blend import (
    FAMILIES,
    LINEAR,
    NETWORKS,
    PLAIN_TREES,
    TREES,
    BlendModel,
    Fold,
    Member,
    choose_weights,
    deal,
    equal_weights,
    sum_of_means,
    take_turns,
)
from tierank.training.checkpoint import Checkpoint
from tierank.training.model import FitContext, FittedModel, SavedModel, Seen, as_best
from tierank.training.order import by_content, canonical_rows, join_contents
from tierank.training.parallel import Halting, in_parallel
from tierank.training.selection import Judging, make_judge, means_of, reads_row_order
from tierank.transforms import add_query_copies
from tierank.types import Floats

# When members with a plain gradient stop: the mean over members is smooth by itself. Stochastic ones have the default.
STOPPING: dict[str, Any] = {"patience": 50, "select_over": 1}
# Fixed beforehand and different from each other: their mean is better than the one that looks best on validation data.
CONFIGS: tuple[dict[str, Any], ...] = (
    {"n_leaves": 15, "min_documents": 20, "feature_fraction": 0.7},
    {"n_leaves": 7, "min_documents": 50, "feature_fraction": 0.5},
    {"n_leaves": 31, "min_documents": 100, "feature_fraction": 0.5, "lambda_l2": 10.0},
    {"n_leaves": 10, "min_documents": 20, "feature_fraction": 0.3},
    {"n_leaves": 20, "min_documents": 200, "feature_fraction": 0.7},
    {"n_leaves": 63, "min_documents": 50, "feature_fraction": 0.3, "lambda_l2": 30.0},
)
# The preset rich-inputs with a third of its steps: in a blend, three times the training gains nothing.
NETWORK: dict[str, Any] = {"queries_per_step": 16, "learning_rate": 2e-3, "step_budget": 400}
# How many queries equal weights count for: chosen once, on out-of-fold scores (docs/blend.md).
STRENGTH = 30.0
# The most values of features relative to the query that exist at a time if members train side by side.
_MOST_WIDENED = 1 << 28
# The file of a checkpoint that names the member in which a callback stopped training.
_STOPPED = "stopped"


@dataclass(kw_only=True, eq=False, repr=False)
class Blend(JudgedRanker):
    """Blend: boosted trees, networks and a linear ranker, weighted by how well each family ranks the data.

    Scores are standardised within each query, z(f) = (f - mean) / deviation. A family is the mean of its members:

        F(d) = sum over families k of w_k z(mean over members of k of z(f(d))),   w >= 0,  sum of w = 1

    ``trees`` are uMart models with the preset ``stochastic`` that see each feature relative to its query too; ``plain
    trees`` (with ``plain_trees``) only see the features themselves; ``networks`` are uRank networks with the inputs of
    the preset ``rich-inputs``; ``linear`` is ``LinearRanker``.

    With ``rotate`` the queries, those of ``valid`` included, are cut into four parts; each part validates once, and the
    members of that turn learn from the other three. So the ratings of ``valid`` are learned from too; ``rotate=False``
    keeps them for validation only.

    The weights are those that are best by the first metric m of ``select_by`` where members score queries that they
    have not learned from, drawn towards equal weights e = 1 / families. With n such queries and s the deviation of m
    over them at equal weights, they have the highest

        mean of m(w) / s - 30 / n * sum over families of (w - e)^2

    in steps of a twelfth; weights below a sixth become 0. A family with weight 0 is dropped: it is not saved, exported
    or scored.

    ``Blend.from_preset("1x")``, ``"3x"`` and ``"10x"`` cost about that many times one tree model with the same
    features.

    Attributes
    ----------
    members_ : list of Member
        The members that are kept, with their metrics on the part that validated them.
    weights_ : dict of str to float
        The weight of each family; 0 for one that is not kept.

    Examples
    --------
    >>> from tierank import make_ranking
    >>> train, test = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    >>> ranker = Blend(n_trees=5, max_epochs=2, weights="equal").fit(train)
    >>> [(member.family, member.part) for member in ranker.members_[:4]]
    [('trees', 0), ('networks', 0), ('linear', 0), ('trees', 1)]
    >>> ranker.weights_["linear"] == 1 / 3
    True
    """

    trees: str = setting(
        "stochastic",
        Choice(("stochastic", "lambdamart", "umart")),
        "kind of trees: UMart with its preset stochastic, LambdaMART, or the paper's uMart",
    )
    n_configs: int = setting(1, Integer(0, len(CONFIGS)), "number of tree configurations; 0 for no trees")
    plain_trees: bool = setting(False, Flag(), "a family of trees without features relative to the query")
    n_seeds: int = setting(1, Integer(0), "number of networks in each turn; 0 for no networks")
    linear: bool = setting(True, Flag(), "a linear ranker in each turn")
    weights: str = setting(
        "learned",
        Choice(("learned", "equal")),
        "weights of families: learned from scores of validating parts, or equal",
    )
    rotate: bool = setting(
        True, Flag(), "let four parts of the queries take turns in validating; otherwise valid validates, or one part"
    )
    query_features: bool = setting(True, Flag(), "give trees the features relative to their query, as in UMart")
    n_trees: int = setting(1000, Integer(1), "maximum number of trees per tree model")
    max_epochs: int = setting(40, Integer(1), "maximum number of epochs per network")

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "1x": {"n_seeds": 0, "rotate": False},
        "3x": {"rotate": False},
        "10x": {},
    }

    @property
    def members_(self) -> list[Member]:
        """The members that are kept, with their metrics on the part that validated them."""
        return self._blend.members

    @property
    def weights_(self) -> dict[str, float]:
        """The weight of each family; 0 for one that is not kept."""
        return self._blend.weights

    @property
    def _blend(self) -> BlendModel:
        self._check_fitted()
        return cast("BlendModel", self.model_)

    def scores_by_family(self, X: Any, qid: ArrayLike | None = None) -> dict[str, NDArray[np.float64]]:
        """The scores of each family.

        Parameters
        ----------
        X : RankingDataset, array, sparse matrix or table
            The documents.
        qid : array, optional
            One query id per row.

        Returns
        -------
        dict of str to array
            One score per row, standardised within each query, for each family that is kept. Their sum, each times its
            weight in ``weights_``, is what ``predict`` gives.
        """
        data = self.match_features(X, qid)
        scores = self._blend.by_family(data, self.members_, self.resources())
        return {family: data.restore(one) for family, one in scores.items()}

    def out_of_fold(self, train: RankingDataset, valid: RankingDataset | None = None) -> NDArray[np.float64]:
        """The scores of the training data by members that have not learned from them.

        Parameters
        ----------
        train : RankingDataset
            The data that the blend was fitted on.
        valid : RankingDataset, optional
            The validation data that it was fitted with.

        Returns
        -------
        array
            One score per row of ``train``: each query is scored by the members that it validated.
        """
        model, settings = self._blend, self.settings_
        if not settings["rotate"]:
            raise ParameterError(
                argument="rotate", expected="True, so that each query validates some members", got="False"
            )
        own, held_out = self._as_learned(train, valid)
        pool, parts = deal(own, held_out, settings["seed"], self.resources().n_jobs)
        if _content(pool, self.resources().n_jobs) != model.content:
            raise DataError(
                argument="train",
                expected="the data that the blend was fitted on, and valid if it was given",
                got="other data",
            )
        scores, families = np.zeros(pool.n_documents), {member.family for member in model.members}
        for turn, queries in enumerate(parts):
            members = [member for member in model.members if member.part == turn or len(parts) < 2]
            if {member.family for member in members} != families:
                raise ParameterError(
                    "a blend that a callback stopped has no scores out of fold: expected members of every family for"
                    f" each of {len(parts)} parts of the queries, got too few for part {turn}"
                )
            rows = np.isin(pool.query_of_row, queries)
            found = model.by_family(pool.select(queries), members, self.resources())
            scores[rows] = model.weighted(found, model.weights)
        if own.n_queries == train.n_queries:
            return train.restore(scores[: own.n_documents])
        # No member has learned from queries without a rating.
        is_learned = np.repeat(np.logical_or.reduceat(train.is_judged, train.offsets[:-1]), train.lengths)
        whole = train.arrange(self.predict(train))
        whole[is_learned] = scores[: own.n_documents]
        return train.restore(whole)

    def _as_learned(
        self, train: RankingDataset, valid: RankingDataset | None
    ) -> tuple[RankingDataset, RankingDataset | None]:
        """The data as ``fit`` used them: ratings, and means of texts over other queries."""
        kept = {"is_taken": self.takes_unjudged(), "are_clicks": False}
        train, valid = settle_unjudged(train, valid, self.settings_["unjudged"], **kept)
        if any(isinstance(kind, Mean) for kind in self._plan.kinds.values()):
            train = Plan.learn(train, by_levels=self.takes_categories())[1]
        else:
            train = self.match_features(train)
        return train, None if valid is None else self.match_features(valid)

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Check that there are members, and the settings of each."""
        plans = list(_plans(settings))
        if not plans:
            raise ParameterError(
                "n_configs, n_seeds, linear: expected trees, networks or a linear ranker, got none of them"
            )
        if settings["plain_trees"] and not (settings["n_configs"] and settings["query_features"]):
            raise ParameterError(
                argument="plain_trees",
                expected="trees beside them that see features relative to their query",
                got=f"n_configs={settings['n_configs']}, query_features={settings['query_features']}",
            )
        for _, ranker in plans:
            ranker.check_settings()

    def check_start(self, start: Ranker, settings: Mapping[str, Any]) -> None:
        """A blend cannot continue from a model: which queries its members validate on depends on all the data."""
        raise ParameterError(
            argument="start",
            expected="None, as each member of a blend leaves out queries to validate on, which a start would have seen",
            got="a ranker",
        )

    def check_shown(self, train: RankingDataset, settings: Mapping[str, Any]) -> None:
        """A blend takes what all its members take; the linear ranker is left out if there are propensities."""
        plans = _plans_for(train, settings)
        if not plans:
            raise ParameterError(
                argument="propensity", expected="None, as a linear ranker cannot correct for positions", got="some"
            )
        if train.position is not None and train.propensity is None and settings["trees"] == "stochastic":
            raise ParameterError(
                argument="position",
                expected="`propensity` too, as stochastic trees and networks do not learn propensities",
                got="positions alone",
                fix="estimate them with tierank.clicks.estimate_propensities, or train UMart, which learns them",
            )
        for _, ranker in plans:
            ranker.check_shown(train, ranker.plain_settings())

    def takes_categories(self) -> bool:
        """Trees split by category, and networks learn embeddings; a linear ranker beside them leaves categories out."""
        return bool(self.n_configs or self.n_seeds)

    def takes_unjudged(self) -> bool:
        """All members leave out unjudged documents."""
        return True

    def takes_parts(self) -> bool:
        """All members take parts."""
        return True

    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> BlendModel:
        """Fit the members of each turn, and weigh their families.

        A team trains each member together. Which queries a member learns from depends on the queries of all processes.
        """
        settings, team = self.checked_settings(), context.team
        if team.size > 1 and not context.seen.has_queries:
            raise DataError(argument="qid", expected="query ids in fit if several processes train", got="none")
        train, valid = team.part(train), None if valid is None else team.part(valid)
        context = replace(context, team=team.of_parts())
        turns = list(take_turns(train, valid, settings["rotate"], settings["seed"], settings["n_jobs"], team))
        if (valid is None or settings["rotate"]) and reads_row_order(settings["select_by"], settings["rule"]):
            turns = [(learned, None if one is None else by_content(one, settings["n_jobs"])) for learned, one in turns]
        contents = [
            None if data is None else join_contents(team.all_gather(_content(data, settings["n_jobs"])))
            for data in (train, valid)
        ]
        kept = None if context.checkpoint is None else _Members(context, settings, contents)
        model = BlendModel([], context.seen, settings["query_features"])
        found: dict[int, Member] = {}
        jobs = _jobs(_plans_for(train, settings), len(turns), settings["seed"])
        with Progress("blend", len(jobs), show=context.progress) as shown:
            for number, member in self._fitted(jobs, turns, model.is_widened, context, kept):
                found[number] = member
                shown.step(" ".join(f"{name} {value:.4f}" for name, value in member.best.items()))
        model.members = [found[number] for number in sorted(found)]
        self._weigh(model, turns, settings, team, is_whole=not context.is_stopped)
        model.content = join_contents([content for content in contents if content is not None])
        return model

    def _fitted(
        self, jobs: list[_Job], turns: list[Fold], is_widened: bool, context: FitContext, kept: _Members | None
    ) -> Iterator[tuple[int, Member]]:
        """The members and their numbers: one after the other, or side by side, in the order in which they finish."""
        from tierank.training.lightgbm_adapter import training_threads

        first, streams = _streams(jobs)
        n_parallel = self._n_parallel(len(streams), turns[0][0], is_widened)
        in_order = context.team.size > 1 or context.callbacks.functions or (kept is not None and kept.last is not None)
        if n_parallel == 1 or in_order:
            yield from self._fit_jobs(jobs, turns, is_widened, context, kept)
            return
        yield from self._fit_jobs(first, turns, is_widened, context, kept)
        halt = Event()
        inner = replace(context, callbacks=Halting(halt))
        fits = [self._fit_jobs(own, turns, is_widened, inner, kept) for own in streams]
        with training_threads(1), warnings.catch_warnings():  # members restore the filters, in any order
            yield from in_parallel(fits, n_parallel, halt)

    def _n_parallel(self, n_streams: int, train: RankingDataset, is_widened: bool) -> int:
        """How many members train side by side: 1 if a single one can use more threads, or the data is too large."""
        from tierank.training.tree_parameters import worth_in_threads

        size = train.n_documents, train.n_features * (3 if is_widened else 1)
        n_jobs = n_threads(self.resources().n_jobs)
        n_parallel = min(n_jobs, max(1, n_streams), max(1, _MOST_WIDENED // math.prod(size)))
        return n_parallel if n_parallel >= min(n_jobs, worth_in_threads(*size)) else 1

    def _fit_jobs(
        self, jobs: list[_Job], turns: list[Fold], is_widened: bool, context: FitContext, kept: _Members | None
    ) -> Iterator[tuple[int, Member]]:
        """Fit these members, one after the other, until a callback stops training."""
        widened: tuple[int, Fold] | None = None
        for job in jobs:
            fold = turns[job.turn]
            if job.family == TREES:
                if widened is None or widened[0] != job.turn:
                    widened = job.turn, _widened(fold, is_widened, self.resources().n_jobs)
                fold = widened[1]
            elif job.family == LINEAR:
                fold = _of_numbers(fold)
            inner = replace(context, part=_joined(context.part, job.family), member=job.number)
            fitted = _fit_member(job.ranker, fold, inner, kept, job.number)
            yield job.number, self._described((job.family, job.turn, job.plan), fitted, fold[0], context.seen)
            context.callbacks.stopped |= kept is not None and kept.last == job.number
            if context.is_stopped:
                break

    def _described(
        self, place: tuple[str, int, int], model: FittedModel, learned: RankingDataset, seen: Seen
    ) -> Member:
        if seen.has_queries:
            return Member(*place, model.best, model)
        scores = model.predict(learned, self.resources())
        return Member(*place, model.best, model, float(scores.mean()), float(scores.std()) or 1.0)

    def _weigh(
        self, model: BlendModel, turns: list[Fold], settings: Mapping[str, Any], team: Team, *, is_whole: bool
    ) -> None:
        """Weigh the families and judge the blend, each part by the members that it validated."""
        model.weigh(equal_weights(model.members))
        parts: list[tuple[Judging, dict[str, Floats]]] = []
        for turn, (_, valid) in enumerate(turns):
            members = [member for member in model.members if member.part == turn]
            if valid is None or not members:  # too few queries, or a callback stopped training before this turn
                break
            judge = make_judge(valid, settings["select_by"], settings["rule"], settings["n_jobs"], team)
            parts.append((judge, model.by_family(valid, members, self.resources())))

        def values_of(weights: Mapping[str, float]) -> dict[str, Floats]:
            found = [judge(model.weighted(scores, weights)) for judge, scores in parts]
            own = {metric: np.concatenate([one[metric] for one in found]) for metric in found[0]}
            return {metric: team.gather_rows(values[:, None])[:, 0] for metric, values in own.items()}

        if not parts:
            return
        families = list(model.weights)
        if settings["weights"] == "learned" and is_whole and len(families) > 1:
            first = next(iter(values_of(model.weights)))
            model.weigh(choose_weights(lambda weights: values_of(weights)[first], families, STRENGTH))
        model.best = means_of(values_of(model.weights))

    def outline(self, train: RankingDataset, seen: Seen) -> Scorer:
        """The members of one turn; those of the others are alike."""
        settings = self.checked_settings()
        plans = _plans_for(train, settings)
        members = [(f, one.outline(_with_numbers(train) if f == LINEAR else train, seen)) for f, one in plans]
        if seen.has_queries:
            return sum_of_means(members, dict.fromkeys(FAMILIES, 1.0), settings["query_features"])
        return Sum(tuple((1.0, one) for _, one in members))

    def restore_model(self, saved: SavedModel) -> BlendModel:
        """The members of a model folder."""
        settings = self.get_params(deep=False)
        plans = list(_plans(settings))
        model = BlendModel([], saved.seen, settings["query_features"])
        if "members" in saved.facts and "weights" not in saved.facts:
            raise DataError(
                expected="a blend with weights of its families",
                got="one of an earlier version of tierank",
                fix="read it with that version, or train it again",
            )
        try:
            for number, facts in enumerate(saved.facts["members"]):
                family, ranker = plans[facts["plan"]]
                if facts["family"] != family:
                    raise ValueError(f"member {number} of the family {facts['family']!r}")
                seen = saved.seen
                if family == TREES and model.is_widened:
                    seen = Seen(seen.n_features * 3, None, seen.has_queries, seen.has_missing, seen.longest_query)
                part = saved.inside(f"member{number}", facts["fitted"])._replace(seen=seen)
                place = family, int(facts["part"]), int(facts["plan"]), as_best(facts["best"])
                fixed = float(facts["center"]), float(facts["scale"])
                if not np.isfinite(fixed).all():
                    raise ValueError(f"member {number} with a center or a scale that is not finite")
                model.members.append(Member(*place, ranker.restore_model(part), *fixed))
            model.best, model.content = as_best(saved.facts["best"]), str(saved.facts["content"])
            model.weights = _as_weights(saved.facts["weights"], model.members)
        except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(expected="the members of a blend", got="a damaged description") from None
        return model


def _as_weights(facts: Any, members: list[Member]) -> dict[str, float]:
    """The weights of a description: one above 0 for each family that has members."""
    weights = {str(family): float(weight) for family, weight in facts.items()}
    families = {member.family for member in members}
    if {family for family, weight in weights.items() if weight > 0} != families or not members:
        raise ValueError("weights of other families")
    return weights


def _content(pool: RankingDataset, n_jobs: int | None) -> str:
    return canonical_rows(pool, n_jobs).content


def _stochastic(**settings: Any) -> UMart:
    return UMart.from_preset("stochastic", **{"lambda_l2": 1.0, **settings})


_TREES: dict[str, Callable[..., Ranker]] = {
    "stochastic": _stochastic,
    "lambdamart": partial(LambdaMART, **STOPPING),
    "umart": partial(UMart, **STOPPING),
}


def _plans(settings: Mapping[str, Any]) -> Iterator[tuple[str, Ranker]]:
    """The members of one turn, not fitted."""
    common = {name: settings[name] for name in ("select_by", "rule", "n_jobs")}
    clipped = common | {"clip": settings["clip"]}
    make_trees = _TREES[settings["trees"]]
    for family in (TREES, PLAIN_TREES) if settings["plain_trees"] else (TREES,):
        for config in CONFIGS[: settings["n_configs"]]:
            yield family, make_trees(n_trees=settings["n_trees"], **config, **clipped)
    for _ in range(settings["n_seeds"]):
        epochs = {"max_epochs": settings["max_epochs"], "patience": settings["max_epochs"]}
        yield NETWORKS, URank.from_preset("rich-inputs", **NETWORK, **epochs, **clipped)
    if settings["linear"]:
        yield LINEAR, LinearRanker(**common)


class _Job(NamedTuple):
    """A member to fit: its number in the blend, its turn, and its number in the turn."""

    number: int
    turn: int
    plan: int
    family: str
    ranker: Ranker


def _jobs(plans: list[tuple[str, Ranker]], n_turns: int, seed: int) -> list[_Job]:
    """The members of all turns, each with its own seed."""
    jobs = []
    for number, (turn, (plan, (family, ranker))) in enumerate(product(range(n_turns), enumerate(plans))):
        own = clone(ranker)
        if "seed" in own.declared_settings():
            own.set_params(seed=(seed + number) % (LARGEST_SEED + 1))
        jobs.append(_Job(number, turn, plan, family, own))
    return jobs


def _streams(jobs: list[_Job]) -> tuple[list[_Job], list[list[_Job]]]:
    """Members that train before all others, and lists of those that can train side by side.

    Linear rankers limit the threads of BLAS in the whole process, so nothing else may run; they take milliseconds. All
    networks are one list, because Python would only run one at a time well. The trees of a turn share its features.
    """
    linear = [job for job in jobs if job.family == LINEAR]
    networks = [job for job in jobs if job.family == NETWORKS]
    trees = [job for job in jobs if job.family not in (LINEAR, NETWORKS)]
    by_turn = [[job for job in trees if job.turn == turn] for turn in sorted({job.turn for job in trees})]
    return linear, [own for own in (networks, *by_turn) if own]


def _plans_for(train: RankingDataset, settings: Mapping[str, Any]) -> list[tuple[str, Ranker]]:
    """The members of one turn that can learn from these data."""
    is_linear_left_out = train.propensity is not None or train.position is not None or not _numbers(train)
    return [plan for plan in _plans(settings) if not (plan[0] == LINEAR and is_linear_left_out)]


def _numbers(data: RankingDataset) -> list[int]:
    """The features that are not categories."""
    names = data.feature_names or [""] * data.n_features
    return [place for place, name in enumerate(names) if not isinstance(data.kinds.get(name), Category)]


def _of_numbers(fold: Fold) -> Fold:
    """The data with categories that are the same everywhere: a linear ranker then gives them a weight of 0."""
    train, valid = (None if data is None else _with_numbers(data) for data in fold)
    return cast("RankingDataset", train), valid


def _with_numbers(data: RankingDataset) -> RankingDataset:
    numbers = _numbers(data)
    if len(numbers) == data.n_features:
        return data
    features = np.zeros_like(data.features)
    features[:, numbers] = data.features[:, numbers]
    return data.with_features(
        features, data.feature_names, {n: k for n, k in data.kinds.items() if not isinstance(k, Category)}
    )


def _joined(outer: str, inner: str) -> str:
    return f"{outer}.{inner}" if outer else inner


def _widened(fold: Fold, is_widened: bool, n_jobs: int | None) -> Fold:
    if not is_widened:
        return fold
    train, valid = fold
    return add_query_copies(train, n_jobs), None if valid is None else add_query_copies(valid, n_jobs)


def _fit_member(ranker: Ranker, fold: Fold, context: FitContext, kept: _Members | None, number: int) -> FittedModel:
    model = None if kept is None else kept.read(number, ranker)
    if model is None:
        folder = None if kept is None else kept.half(number)
        inner = replace(context.for_features_of(fold[0]), checkpoint=folder, progress=False, ranker=type(ranker))
        model = ranker.fit_model(*fold, inner)
        if kept is not None:
            if context.is_stopped:  # written before the member, so that a run that is killed in between finds the mark
                kept.stop(number)
            kept.write(number, fitted_copy(ranker, model, inner.seen))
    return model


class _Members(Checkpoint):
    """The finished members and the checkpoint of the current one, each in a separate folder."""

    def __init__(self, context: FitContext, settings: dict[str, Any], contents: Sequence[str | None]) -> None:
        super().__init__(context, settings, contents)
        if self.team.is_first:
            self.begin()

    @property
    def last(self) -> int | None:
        """The number of the member in which a callback stopped training, if one did."""
        with self.reading():
            text = self.content(_STOPPED)
            return None if text is None else int(text)

    def stop(self, number: int) -> None:
        """Remember that a callback stopped training in this member."""
        if self.team.is_first:
            with replacing(self.folder / _STOPPED) as fresh:
                fresh.write_text(str(number), encoding="utf-8")

    def half(self, number: int) -> Path:
        """The checkpoint of a member that is not finished."""
        return self.folder / f"member{number}.checkpoint"

    def read(self, number: int, ranker: Ranker) -> FittedModel | None:
        """A finished member; the first process of a team has its files."""
        folder, known = self.folder / f"member{number}", Known(rankers={class_name(type(ranker)): type(ranker)})
        is_there = bool(self.team.all_gather(folder.is_dir())[0])
        if not is_there or self.team.size == 1:
            return read_ranker(folder, known).model_ if is_there else None
        own = {path.name: path.read_bytes() for path in folder.iterdir()} if self.team.is_first else {}
        files = {name: self.team.broadcast(own.get(name)) or b"" for name in self.team.all_gather(sorted(own))[0]}
        with tempfile.TemporaryDirectory() as place:
            write_folder(Path(place) / "member", files)
            return read_ranker(Path(place) / "member", known).model_

    def write(self, number: int, ranker: Ranker) -> None:
        """Keep a finished member."""
        if self.team.is_first:
            ranker.save(self.folder / f"member{number}")
