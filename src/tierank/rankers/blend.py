"""Blend: trees, networks and a linear ranker, weighted by how well each ranks.

The walk of ``Blend.fit``: the queries are dealt to turns (``take_turns``), the members of each turn learn from some and
validate on the others (``_Fitting``), the scores of validating queries decide the weights (``choose_weights``), and
``BlendModel`` is what is kept.
"""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from itertools import islice, permutations, product
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from tierank.arrays import Floats, Rows
from tierank.data.columns import Category, Mean
from tierank.data.dataset import RankingDataset
from tierank.data.encoder import ColumnEncoder
from tierank.data.matching import check_fitted
from tierank.data.team import Team
from tierank.display import Progress
from tierank.errors import DataError, ParameterError
from tierank.export import QueryCopies, Scorer, StandardisedMean, Sum, Trees
from tierank.extras import is_installed
from tierank.files import replacing
from tierank.kernels import n_threads, one_thread
from tierank.rankers.base import LARGEST_SEED, JudgedRanker, Ranker, fitted_copy, read_ranker
from tierank.rankers.checkpoint import Checkpoint
from tierank.rankers.folder import Known, class_name, write_folder
from tierank.rankers.linear import LinearRanker
from tierank.rankers.model import Callbacks, FitContext, FittedModel, Resources, SavedModel, Seen, Step, as_best
from tierank.rankers.neural import URank
from tierank.rankers.order import Numbering, by_content, canonical_rows, join_contents, shared_work
from tierank.rankers.selection import (
    Judging,
    compared_by,
    make_judge,
    mean_of_standardised,
    means_of,
    reads_row_order,
    spread_of,
)
from tierank.rankers.training_data import settle_unjudged
from tierank.rankers.trees import LambdaMART, UMart
from tierank.settings import Choice, Flag, Integer, Optional, setting
from tierank.transforms import add_query_copies
from tierank.workers import check_deadline

FAMILIES = TREES, PLAIN_TREES, NETWORKS, LINEAR = "trees", "plain trees", "networks", "linear"
T = TypeVar("T")
Fold = tuple[RankingDataset, RankingDataset | None]

# When trees stop: half the patience of the default gains as much in a blend, for two thirds of the rounds.
STOPPING: dict[str, Any] = {"patience": 50}
# Fixed beforehand and different from each other: their mean is better than the one that looks best on validation data.
CONFIGS: tuple[dict[str, Any], ...] = (
    {"n_leaves": 15, "min_documents": 20, "feature_fraction": 0.7},
    {"n_leaves": 7, "min_documents": 50, "feature_fraction": 0.5},
    {"n_leaves": 31, "min_documents": 100, "feature_fraction": 0.5, "lambda_l2": 10.0},
    {"n_leaves": 10, "min_documents": 20, "feature_fraction": 0.3},
    {"n_leaves": 20, "min_documents": 200, "feature_fraction": 0.7},
    {"n_leaves": 63, "min_documents": 50, "feature_fraction": 0.3, "lambda_l2": 30.0},
)
# The preset rich-inputs with a seventh of its steps: in a blend, more training gains nothing.
NETWORK: dict[str, Any] = {"queries_per_step": 16, "learning_rate": 3e-3, "step_budget": 200}
# How many queries equal weights count for: chosen on scores out of fold (docs/blend.md).
STRENGTH = 6.0
# Number of parts that take turns in validating.
_PARTS = 4
# Weights of families are counted in sixtieths, so that equal weights of up to six families are integers.
_UNITS = 60
# The least gain of a move of weights, so that rounding does not decide.
_TOLERANCE = 1e-9
# The most values of features relative to the query that exist at a time if members train side by side.
_MOST_WIDENED = 1 << 28
# The file of a checkpoint that names the member in which a callback stopped training.
_STOPPED = "stopped"


class Member(NamedTuple):
    """A model of the blend: its family, the part that validated it, and its metrics there.

    ``plan`` is its number among the members of one turn. Without queries its scores are standardised by ``center`` and
    ``scale``, from the training data.
    """

    family: str
    part: int
    plan: int
    best: dict[str, float]
    model: FittedModel
    center: float = 0.0
    scale: float = 1.0


class BlendModel(FittedModel):
    """Members in families: means within each family, and the weighted sum of the families.

    Attributes
    ----------
    members : list of Member
        The members that are kept, with their metrics on the part that validated them.
    weights : dict of str to float
        The weight of each family; 0 for one that is not kept.
    content : str
        The digest of the training data.
    """

    def __init__(self, members: list[Member], seen: Seen, query_features: bool) -> None:
        self.members, self.seen, self.best = members, seen, {}
        self.is_widened = query_features and seen.has_queries
        self.weights, self.content = equal_weights(members), ""

    @property
    def history(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """A row for each member: its family, the part that validated it, and its metrics there."""
        return [{"family": member.family, "part": member.part, **member.best} for member in self.members]

    @property
    def needs_list(self) -> bool:
        """Scores are standardised in each query, if queries are known."""
        return self.seen.has_queries

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Take these weights, and drop the members of families with the weight 0."""
        self.weights = dict(weights)
        self.members = [member for member in self.members if weights[member.family] > 0]

    def predict(self, data: RankingDataset, resources: Resources) -> Floats:
        """The weighted sum of the families."""
        return self.weighted(self.by_family(data, self.members, resources), self.weights)

    def weighted(self, scores: Mapping[str, Floats], weights: Mapping[str, float]) -> Floats:
        """The sum of weight times score over the families."""
        total = np.sum([weights[family] * one for family, one in scores.items()], axis=0)
        return np.asarray(total * self._unit, np.float64)

    def by_family(self, data: RankingDataset, members: Sequence[Member], resources: Resources) -> dict[str, Floats]:
        """The scores of each family of these members: the mean of theirs, standardised like those."""
        found = {}
        for family, own in _families(members):
            scores = self._scores(own, self._seen_by(family, data, resources), resources)
            if self.seen.has_queries:
                found[family] = mean_of_standardised([mean_of_standardised(scores, data)], data)
            else:
                fixed = [(one - member.center) / member.scale for member, one in zip(own, scores, strict=True)]
                found[family] = np.asarray(np.mean(fixed, axis=0), np.float64)
        return found

    def contributions(self, data: RankingDataset, above: Rows, below: Rows, resources: Resources) -> Floats:
        """Those of the members, divided by the spread of their scores, as the scores are."""
        total = np.zeros((len(above), self.seen.n_features))
        for family, own in _families(self.members):
            seen, spread = self._seen_by(family, data, resources), 1.0
            spreads = [member.scale for member in own]
            if self.seen.has_queries:
                scores = self._scores(own, seen, resources)
                spreads, spread = [spread_of(one) for one in scores], spread_of(mean_of_standardised(scores, data))
            of_members = []
            for member, scale in zip(own, spreads, strict=True):
                values = member.model.contributions(seen, above, below, resources)
                # Those of a feature and its copies, summed.
                of_members.append(values.reshape(len(values), -1, self.seen.n_features).sum(axis=1) / scale)
            total += self.weights[family] * np.mean(of_members, axis=0) / spread
        return np.asarray(total * self._unit, np.float64)

    def to_neutral(self) -> Scorer:
        """Weighted means of standardised members; without queries a weighted sum and a constant."""
        if self.seen.has_queries:
            members = [(member.family, member.model.to_neutral()) for member in self.members]
            return sum_of_means(members, self.weights, self.is_widened)
        weighted = [
            (self._unit * self.weights[family] / (len(own) * member.scale), member)
            for family, own in _families(self.members)
            for member in own
        ]
        shift = -sum(weight * member.center for weight, member in weighted)
        parts = [(weight, member.model.to_neutral()) for weight, member in weighted]
        return Sum((*parts, (1.0, Trees.constant(float(shift)))))

    def files(self) -> dict[str, bytes]:
        """The files of the members."""
        return {
            f"member{number}.{name}": content
            for number, member in enumerate(self.members)
            for name, content in member.model.files().items()
        }

    def facts(self) -> dict[str, Any]:
        """The members without their files."""
        members = []
        for member in self.members:
            told = member._asdict()
            members.append(told | {"fitted": told.pop("model").facts()})
        return {"members": members, "weights": self.weights, "best": self.best, "content": self.content}

    @property
    def _unit(self) -> float:
        """Without queries, scores are in the smallest unit of the members, so that their rounding stays as small."""
        return 1.0 if self.seen.has_queries else min(member.scale for member in self.members)

    def _seen_by(self, family: str, data: RankingDataset, resources: Resources) -> RankingDataset:
        return add_query_copies(data, resources.n_jobs) if family == TREES and self.is_widened else data

    def _scores(self, members: Sequence[Member], data: RankingDataset, resources: Resources) -> list[Floats]:
        scores = []
        with shared_work():
            for member in members:
                check_deadline()  # there can be dozens of members
                scores.append(member.model.predict(data, resources))
        return scores


def _families(members: Sequence[Member]) -> Iterator[tuple[str, list[Member]]]:
    for family in FAMILIES:
        own = [member for member in members if member.family == family]
        if own:
            yield family, own


def sum_of_means(members: list[tuple[str, Scorer]], weights: Mapping[str, float], is_widened: bool) -> Scorer:
    """Members averaged within their families, and families weighted, all standardised within the query first."""
    parts: list[tuple[float, Scorer]] = []
    for family in FAMILIES:
        own = tuple(scorer for name, scorer in members if name == family)
        if family == TREES and is_widened:
            own = tuple(QueryCopies(scorer) if isinstance(scorer, Trees) else scorer for scorer in own)
        if own:
            parts.append((weights[family], StandardisedMean((StandardisedMean(own),))))
    return parts[0][1] if len(parts) == 1 else Sum(tuple(parts))


def equal_weights(members: Sequence[Member]) -> dict[str, float]:
    """The same weight for each family that has members."""
    families = [family for family, _ in _families(members)]
    return dict.fromkeys(families, 1.0 / max(len(families), 1))


@dataclass(kw_only=True, eq=False, repr=False)
class Blend(JudgedRanker):
    """Blend: boosted trees, networks and a linear ranker, weighted by how well each family ranks the data.

    Scores are standardised within each query, z(f) = (f - mean) / deviation. A family is the mean of its members:

        F(d) = sum over families k of w_k z(mean over members of k of z(f(d))),   w >= 0,  sum of w = 1

    ``trees`` are uMart models with the preset ``stochastic`` that see each feature relative to its query too; ``plain
    trees`` is ``LambdaMART``, so that a blend is no worse where the other families are; ``networks`` are uRank networks
    with the inputs of the preset ``rich-inputs``; ``linear`` is ``LinearRanker``.

    By default there is a model of each family, which costs a few times as much as ``LambdaMART``. With ``rotate`` the
    queries, those of ``valid`` included, are cut into four parts; each part validates once, and the members of that
    turn learn from the other three. So the ratings of ``valid`` are learned from too. Without torch there are no
    networks, and trees and linear rankers rotate.

    The weights are those that are best by a metric m, the first of ``select_by`` (for NDCG@10, its mean with NDCG and
    MAP), where members score queries that they have not learned from, drawn towards equal weights e = 1 / families.
    With n such queries and s the deviation of m over them at equal weights, they have the highest

        mean of m(w) / s - 6 / n * sum over families of (w - e)^2

    in steps of a twelfth; weights below a sixth become 0. A family with weight 0 is dropped: it is not saved, exported
    or scored.

    ``Blend.from_preset("full")`` has all families and rotates: sixteen members, for about four times the time of the
    default. ``Blend.from_preset("1x")`` has a tree model and a linear ranker, which do not rotate.

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
    >>> [member.family for member in ranker.members_]
    ['trees', 'plain trees', 'networks', 'linear']
    >>> ranker.weights_["linear"] == 1 / 4
    True
    """

    trees: str = setting(
        "stochastic",
        Choice(("stochastic", "lambdamart", "umart")),
        "kind of trees: UMart with its preset stochastic, LambdaMART, or the paper's uMart",
    )
    n_configs: int = setting(1, Integer(0, len(CONFIGS)), "number of tree configurations; 0 for no trees")
    plain_trees: bool = setting(
        True, Flag(), "LambdaMART in each turn, without features relative to the query, if there are trees at all"
    )
    n_seeds: int | None = setting(
        None, Optional(Integer(0), "1 if torch is installed, else 0"), "number of networks in each turn"
    )
    linear: bool = setting(True, Flag(), "a linear ranker in each turn")
    weights: str = setting(
        "learned",
        Choice(("learned", "equal")),
        "weights of families: learned from scores of validating parts, or equal",
    )
    rotate: bool | None = setting(
        None,
        Optional(Flag(), "True if there are no networks"),
        "four-fold cross-fitting; False: validate on valid, or on a quarter of the queries",
    )
    query_features: bool = setting(True, Flag(), "give trees the features relative to their query, as in UMart")
    n_trees: int = setting(1000, Integer(1), "maximum number of trees per tree model")
    max_epochs: int = setting(40, Integer(1), "maximum number of epochs per network")

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "1x": {"n_seeds": 0, "plain_trees": False, "rotate": False},
        "3x": {"n_seeds": 1, "rotate": False},
        "full": {"n_seeds": 1, "rotate": True},
        "10x": {"n_seeds": 1, "rotate": True},
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
        check_fitted(self)
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
        model, settings, resources = self._blend, self.settings_, self.resources()
        if not settings["rotate"]:
            raise ParameterError(
                argument="rotate",
                expected="True, so that each query validates some members",
                got="False",
                fix="fit Blend.from_preset('full')",
            )
        # The data as fit used them: ratings, and means of texts over other queries.
        own, held_out = settle_unjudged(train, valid, settings, self.capabilities())
        held_out = None if held_out is None else self.match_features(held_out)
        if any(isinstance(kind, Mean) for kind in self._plan.kinds.values()):
            own = ColumnEncoder.learn(own, by_levels="categories" in self.capabilities())[1]
        else:
            own = self.match_features(own)
        pool, parts = deal(own, held_out, settings["seed"], resources.n_jobs)
        if canonical_rows(pool, resources.n_jobs).content != model.content:
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
                    expected=f"members of every family for each of {len(parts)} parts of the queries",
                    got=f"too few for part {turn}: a blend that a callback stopped has no scores out of fold",
                )
            found = model.by_family(pool.select(queries), members, resources)
            scores[np.isin(pool.query_of_row, queries)] = model.weighted(found, model.weights)
        if own.n_queries == train.n_queries:
            return train.restore(scores[: own.n_documents])
        # No member has learned from queries without a rating.
        is_learned = np.repeat(np.logical_or.reduceat(train.is_judged, train.offsets[:-1]), train.lengths)
        whole = train.arrange(self.predict(train))
        whole[is_learned] = scores[: own.n_documents]
        return train.restore(whole)

    def checked_settings(self) -> dict[str, Any]:
        """All settings in their plain form, with ``n_seeds`` and ``rotate`` as they are used here."""
        return _resolved(super().checked_settings())

    def check_together(self, settings: Mapping[str, Any]) -> None:
        """Check that there are members, and the settings of each."""
        settings = _resolved(settings)
        plans = _plans(settings)
        if not plans:
            raise ParameterError(
                argument="n_configs",
                expected="trees, networks (`n_seeds`) or a linear ranker (`linear`)",
                got="none of them",
            )
        for _, ranker in plans:
            ranker.checked_settings()

    def capabilities(self) -> frozenset[str]:
        """Trees split by category and networks learn embeddings; a linear ranker beside them leaves categories out."""
        can = {"unjudged", "parts", "positions"}
        return frozenset(can | {"categories"} if self.n_configs or _resolved(vars(self))["n_seeds"] else can)

    def check_inputs(
        self, settings: Mapping[str, Any], train: RankingDataset | None = None, start: Ranker | None = None
    ) -> None:
        """A blend takes what all its members take; the linear ranker is left out if there are propensities."""
        super().check_inputs(settings, train, start)
        if train is None:
            return
        plans = _plans(settings, train)
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
            ranker.check_inputs(ranker.checked_settings(), train)

    def fit_model(self, train: RankingDataset, valid: RankingDataset | None, context: FitContext) -> BlendModel:
        """Fit the members of each turn, and weigh their families.

        A team trains each member together. Which queries a member learns from depends on the queries of all processes.
        """
        settings, team, n_jobs = context.settings, context.team, context.settings["n_jobs"]
        if self.n_seeds is None and not settings["n_seeds"]:
            warnings.warn(
                "Blend trains without networks, as torch is not installed: pip install 'tierank[networks]' adds them;"
                " n_seeds=0 silences this",
                stacklevel=2,
            )
        if team.size > 1 and not context.seen.has_queries:
            raise DataError(argument="qid", expected="query ids in fit if several processes train", got="none")
        train, valid = team.part(train), None if valid is None else team.part(valid)
        turns = list(take_turns(train, valid, settings["rotate"], settings["seed"], n_jobs, team))
        if (valid is None or settings["rotate"]) and reads_row_order(settings["select_by"], settings["rule"]):
            turns = [(learned, None if one is None else by_content(one, n_jobs)) for learned, one in turns]
        contents = [
            None if data is None else join_contents(team.all_gather(canonical_rows(data, n_jobs).content))
            for data in (train, valid)
        ]
        model = BlendModel([], context.seen, settings["query_features"])
        context = replace(context, team=team.of_parts())
        fitting = _Fitting(turns, model.is_widened, context, self.resources())
        if context.checkpoint is not None:
            fitting.kept = _FinishedMembers(context, settings, contents)
        found: dict[int, Member] = {}
        jobs = _jobs(_plans(settings, train), len(turns), settings["seed"])
        with Progress("blend", len(jobs), show=context.progress) as shown:
            for number, member in fitting.members(jobs):
                found[number] = member
                shown.step(" ".join(f"{name} {value:.4f}" for name, value in member.best.items()))
        model.members = [found[number] for number in sorted(found)]
        self._weigh(model, turns, settings, team, is_whole=not context.is_stopped)
        model.content = join_contents([content for content in contents if content is not None])
        return model

    def _weigh(
        self, model: BlendModel, turns: list[Fold], settings: Mapping[str, Any], team: Team, *, is_whole: bool
    ) -> None:
        """Weigh the families and judge the blend, each part by the members that it validated."""
        model.weigh(equal_weights(model.members))
        select_by = settings["select_by"]
        n_metrics = len(set(select_by))
        parts: list[tuple[Judging, dict[str, Floats]]] = []
        for turn, (_, valid) in enumerate(turns):
            members = [member for member in model.members if member.part == turn]
            if valid is None or not members:  # too few queries, or a callback stopped training before this turn
                break
            judge = make_judge(valid, compared_by(select_by), settings["rule"], settings["n_jobs"], team)
            parts.append((judge, model.by_family(valid, members, self.resources())))

        def values_of(weights: Mapping[str, float]) -> dict[str, Floats]:
            found = [judge(model.weighted(scores, weights)) for judge, scores in parts]
            own = {metric: np.concatenate([one[metric] for one in found]) for metric in found[0]}
            return {metric: team.gather_rows(values[:, None])[:, 0] for metric, values in own.items()}

        if not parts:
            return
        families = list(model.weights)
        if settings["weights"] == "learned" and is_whole and len(families) > 1:

            def mean_of(weights: Mapping[str, float]) -> Floats:
                first, *others = values_of(weights).values()
                return np.asarray(np.mean([first, *others[n_metrics - 1 :]], axis=0), np.float64)

            model.weigh(choose_weights(mean_of, families, STRENGTH))
        model.best = means_of(dict(islice(values_of(model.weights).items(), n_metrics)))

    def export_skeleton(self, train: RankingDataset, seen: Seen, settings: Mapping[str, Any]) -> Scorer:
        """The members of one turn; those of the others are alike."""
        members = []
        for family, one in _plans(settings, train):
            learned = _without_categories(train) if family == LINEAR else train
            members.append((family, one.export_skeleton(learned, seen, one.checked_settings())))
        if seen.has_queries:
            return sum_of_means(members, dict.fromkeys(FAMILIES, 1.0), settings["query_features"])
        return Sum(tuple((1.0, one) for _, one in members))

    def restore_model(self, saved: SavedModel) -> BlendModel:
        """The members of a model folder."""
        settings = _resolved(self.get_params(deep=False))
        plans, model = _plans(settings), BlendModel([], saved.seen, settings["query_features"])
        if "members" in saved.facts and "weights" not in saved.facts:
            raise DataError(
                expected="a blend with weights of its families",
                got="one of an earlier version of tierank",
                fix="read it with that version, or train it again",
            )
        damaged = DataError(expected="the members of a blend", got="a damaged description")
        try:
            for number, facts in enumerate(saved.facts["members"]):
                family, ranker = plans[facts["plan"]]
                seen = saved.seen
                if family == TREES and model.is_widened:
                    seen = Seen(seen.n_features * 3, None, seen.has_queries, seen.has_missing, seen.longest_query)
                part = saved.inside(f"member{number}", facts["fitted"])._replace(seen=seen)
                place = family, int(facts["part"]), int(facts["plan"]), as_best(facts["best"])
                fixed = float(facts["center"]), float(facts["scale"])
                if facts["family"] != family or not np.isfinite(fixed).all():
                    raise damaged
                model.members.append(Member(*place, ranker.restore_model(part), *fixed))
            model.best, model.content = as_best(saved.facts["best"]), str(saved.facts["content"])
            model.weights = {str(family): float(weight) for family, weight in saved.facts["weights"].items()}
        except DataError:
            raise
        except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError):
            raise damaged from None
        families = {member.family for member in model.members}
        if {family for family, weight in model.weights.items() if weight > 0} != families or not families:
            raise damaged
        return model


def _resolved(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with networks if torch is installed, and rotation where there are none."""
    n_seeds, rotate = settings["n_seeds"], settings["rotate"]
    n_seeds = int(is_installed("torch")) if n_seeds is None else n_seeds
    return {**settings, "n_seeds": n_seeds, "rotate": not n_seeds if rotate is None else rotate}


def _plans(settings: Mapping[str, Any], train: RankingDataset | None = None) -> list[tuple[str, Ranker]]:
    """The members of one turn, not fitted: all, or those that can learn from these data."""
    common = {name: settings[name] for name in ("select_by", "rule", "n_jobs")}
    clipped, of_trees = common | {"clip": settings["clip"]}, STOPPING | {"n_trees": settings["n_trees"]}
    plans: list[tuple[str, Ranker]] = []
    for config in CONFIGS[: settings["n_configs"]]:
        own = of_trees | config | clipped
        if settings["trees"] == "stochastic":
            plans.append((TREES, UMart.from_preset("stochastic", **{"lambda_l2": 1.0} | own)))
        else:
            kind = LambdaMART if settings["trees"] == "lambdamart" else UMart
            plans.append((TREES, kind(**own)))
    if settings["plain_trees"] and settings["n_configs"]:
        plans.append((PLAIN_TREES, LambdaMART(**of_trees, **clipped)))
    for _ in range(settings["n_seeds"]):
        epochs = {"max_epochs": settings["max_epochs"], "patience": settings["max_epochs"]}
        plans.append((NETWORKS, URank.from_preset("rich-inputs", **NETWORK, **epochs, **clipped)))
    is_shown = train is not None and (train.propensity is not None or train.position is not None)
    if settings["linear"] and not is_shown and (train is None or _numbers(train)):
        plans.append((LINEAR, LinearRanker(**common)))
    return plans


def _numbers(data: RankingDataset) -> list[int]:
    """The features that are not categories."""
    names = data.feature_names or [""] * data.n_features
    return [place for place, name in enumerate(names) if not isinstance(data.kinds.get(name), Category)]


def _without_categories(data: RankingDataset) -> RankingDataset:
    """The data with categories that are the same everywhere: a linear ranker then gives them a weight of 0."""
    numbers = _numbers(data)
    if len(numbers) == data.n_features:
        return data
    features = np.zeros_like(data.features)
    features[:, numbers] = data.features[:, numbers]
    return data.with_features(
        features, data.feature_names, {n: k for n, k in data.kinds.items() if not isinstance(k, Category)}
    )


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


class _Fitting:
    """Fits the members of all turns, one after the other or side by side."""

    kept: _FinishedMembers | None = None

    def __init__(self, turns: list[Fold], is_widened: bool, context: FitContext, resources: Resources) -> None:
        self.turns, self.is_widened, self.context, self.resources = turns, is_widened, context, resources

    def members(self, jobs: list[_Job]) -> Iterator[tuple[int, Member]]:
        """The members and their numbers, in the order in which they finish."""
        from tierank.rankers.lightgbm import training_threads

        # Linear rankers limit the threads of BLAS in the whole process, so nothing else may run; they take
        # milliseconds. All networks are one stream, because Python would only run one at a time well. The trees of a
        # turn share its features.
        streams: dict[Any, list[_Job]] = {NETWORKS: []}
        for job in jobs:
            streams.setdefault(job.family if job.family in (LINEAR, NETWORKS) else job.turn, []).append(job)
        linear = streams.pop(LINEAR, [])
        side_by_side = [stream for stream in streams.values() if stream]
        n_parallel = count_parallel(len(side_by_side), self.turns[0][0], self.is_widened, self.resources.n_jobs)
        context = self.context
        is_resumed = self.kept is not None and self.kept.last is not None
        if n_parallel == 1 or context.team.size > 1 or context.callbacks.functions or is_resumed:
            yield from self._fit(jobs, context)
            return
        yield from self._fit(linear, context)
        halt = Event()
        inner = replace(context, callbacks=Halting(halt))
        with training_threads(1), warnings.catch_warnings():  # members restore the filters, in any order
            yield from in_parallel([self._fit(stream, inner) for stream in side_by_side], n_parallel, halt)

    def _fit(self, jobs: list[_Job], context: FitContext) -> Iterator[tuple[int, Member]]:
        """Fit these members, one after the other, until a callback stops training."""
        widened: tuple[int, Fold] | None = None
        for job in jobs:
            fold = self.turns[job.turn]
            if job.family == TREES and self.is_widened:
                if widened is None or widened[0] != job.turn:
                    widened = job.turn, _of_each(fold, lambda data: add_query_copies(data, self.resources.n_jobs))
                fold = widened[1]
            elif job.family == LINEAR:
                fold = _of_each(fold, _without_categories)
            part = f"{context.part}.{job.family}" if context.part else job.family
            model = _fit_member(job, fold, replace(context, part=part, member=job.number), self.kept)
            center, scale = 0.0, 1.0
            if not context.seen.has_queries:
                scores = model.predict(fold[0], self.resources)
                center, scale = float(scores.mean()), float(scores.std()) or 1.0
            yield job.number, Member(job.family, job.turn, job.plan, model.best, model, center, scale)
            context.callbacks.stopped |= self.kept is not None and self.kept.last == job.number
            if context.is_stopped:
                break


def count_parallel(n_streams: int, train: RankingDataset, is_widened: bool, n_jobs: int | None) -> int:
    """How many members train side by side: 1 if a single one can use more threads, or the data is too large."""
    from tierank.rankers.tree_settings import worth_in_threads

    size = train.n_documents, train.n_features * (3 if is_widened else 1)
    n_parallel = min(n_threads(n_jobs), max(1, n_streams), max(1, _MOST_WIDENED // math.prod(size)))
    return n_parallel if n_parallel >= min(n_threads(n_jobs), worth_in_threads(*size)) else 1


def _of_each(fold: Fold, change: Callable[[RankingDataset], RankingDataset]) -> Fold:
    return change(fold[0]), None if fold[1] is None else change(fold[1])


def _fit_member(job: _Job, fold: Fold, context: FitContext, kept: _FinishedMembers | None) -> FittedModel:
    """The model of a member, fitted or from the checkpoint."""
    model = None if kept is None else kept.read(job.number, job.ranker)
    if model is None:
        inner = replace(
            context,
            seen=context.seen.with_features_of(fold[0]),
            settings=job.ranker.checked_settings(),
            checkpoint=None if kept is None else kept.folder / f"member{job.number}.checkpoint",
            progress=False,
            ranker=type(job.ranker),
        )
        model = job.ranker.fit_model(*fold, inner)
        if kept is not None:
            if context.is_stopped:  # written before the member, so that a run that is killed in between finds the mark
                kept.stop(job.number)
            kept.write(job.number, fitted_copy(job.ranker, model, inner.seen))
    return model


def choose_weights(
    values_of: Callable[[Mapping[str, float]], Floats], families: Sequence[str], strength: float
) -> dict[str, float]:
    """The weights that are best for out-of-fold scores, drawn towards equal ones.

    With m_q(w) the metric of query q under the weights w, n the number of queries that have one, e = 1 / families, and
    s the deviation of m_q(e) over the queries, it climbs to the highest

        mean of m_q(w) / s - strength / n * sum over families of (w - e)^2,   w >= 0,  sum of w = 1

    from equal weights, by moving a twelfth from one family to another as long as the best such move helps. A move that
    would leave a family less than a sixth takes all of its weight, as so little is not worth its cost. With few queries
    the weights stay equal; with many they are those that are best out of fold.

    Parameters
    ----------
    values_of : callable
        The metric of each query under some weights; NaN if it is undefined.
    families : list of str
        The families.
    strength : float
        The number of queries that equal weights count for.
    """
    n_families = len(families)
    equal = np.full(n_families, _UNITS // n_families)

    def known_values(weights: Mapping[str, float]) -> Floats:
        values = values_of(weights)
        return np.sort(values[np.isfinite(values)])  # the same bits for queries in any order

    def height(units: NDArray[np.int64]) -> float:
        known = known_values(dict(zip(families, (units / _UNITS).tolist(), strict=True)))
        distance = (((units - equal) / _UNITS) ** 2).sum()
        return float(known.mean() / spread - strength / len(known) * distance)

    spread = float(known_values(dict.fromkeys(families, 1.0 / n_families)).std()) or 1.0
    units, best = equal, height(equal)
    while True:
        moves = list(_moves(units))
        heights = [height(move) for move in moves]
        if not moves or max(heights) <= best + _TOLERANCE:
            return dict(zip(families, (units / _UNITS).tolist(), strict=True))
        units, best = moves[int(np.argmax(heights))], max(heights)


def _moves(units: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The weights after each move of a twelfth from one family to another; of all, if less than a sixth would stay."""
    for giver, taker in permutations(np.flatnonzero(units).tolist(), 2):  # a family at 0 stays there
        step, own = _UNITS // 12, int(units[giver])
        moved = own if own - step < 2 * step else step
        after = units.copy()
        after[giver] -= moved
        after[taker] += moved
        yield after


def take_turns(
    train: RankingDataset,
    valid: RankingDataset | None,
    rotate: bool,
    seed: int,
    n_jobs: int | None = None,
    team: Team | None = None,
) -> Iterator[Fold]:
    """Which queries are learned from, and which validate; in a team, those of this process."""
    if valid is not None and not rotate:
        yield train, valid
        return
    team = team or Team()
    pool, parts = deal(train, valid, seed, n_jobs, team)
    if len(parts) < 2:  # too few queries to hold any back
        yield pool, None
        return
    fewest = min(team.all_gather(min(len(part) for part in parts)))
    if not fewest:
        raise DataError(
            expected=f"queries of all {len(parts)} parts of a blend in each of {team.size} processes",
            got="a process that has none of one of them",
            fix="train in fewer processes, or on more queries",
        )
    for part in parts if rotate else parts[-1:]:
        learned = np.ones(pool.n_queries, bool)
        learned[part] = False
        yield pool.select(learned), pool.select(part)


def deal(
    train: RankingDataset, valid: RankingDataset | None, seed: int, n_jobs: int | None, team: Team | None = None
) -> tuple[RankingDataset, list[Rows]]:
    """All queries of this process, those of ``train`` first, and the parts that take turns in validating.

    The parts have the same size, each with its share of the queries that can be judged; there are fewer parts if there
    are few queries. Which query is in which part depends on the contents of the queries of all processes, not on their
    ids, their order or who has them.
    """
    pool = train if valid is None else _joined(train, valid)
    order = canonical_rows(pool, n_jobs)
    numbering = Numbering(pool, order, team or Team())
    is_judged = np.fmax.reduceat(pool.ratings, pool.offsets[:-1])[order.queries] > 0
    judged = numbering.gather(is_judged.astype(np.uint8)) > 0
    rng = np.random.default_rng(seed)
    dealt = np.concatenate([rng.permutation(np.flatnonzero(one)) for one in (judged, ~judged)])
    n_parts, own = min(_PARTS, int(judged.sum())), numbering.own()[dealt]
    return pool, [np.sort(order.queries[one[one >= 0]]) for one in (own[part::n_parts] for part in range(n_parts))]


def _joined(train: RankingDataset, valid: RankingDataset) -> RankingDataset:
    """Both as one data set; queries that have the same id in both are two. Weights of 1 if only one has weights."""
    for name in ("position", "propensity"):
        if (getattr(train, name) is None) != (getattr(valid, name) is None):
            raise DataError(
                argument="valid",
                expected=f"{name} in training and validation data or in neither, as queries of both are learned from",
                got="one of them without it",
                fix="leave validation data out, or set `rotate`=False",
            )
    weighs_rows = train.row_weight is not None or valid.row_weight is not None
    weighs_queries = train.query_weight is not None or valid.query_weight is not None
    named = [
        RankingDataset.from_parts(
            data.features,
            data.ratings,
            data.offsets,
            np.array([f"{name} {query}" for query in range(data.n_queries)]),
            row_weight=np.ones(data.n_documents) if weighs_rows and data.row_weight is None else data.row_weight,
            query_weight=np.ones(data.n_queries) if weighs_queries and data.query_weight is None else data.query_weight,
            feature_names=train.feature_names,  # those of valid are the same, or it has none
            kinds=data.kinds,
            position=data.position,
            propensity=data.propensity,
        )
        for name, data in (("train", train), ("valid", valid))
    ]
    return RankingDataset.concat(named)


class Halted(Exception):
    """Raised in the steps of training that is no longer needed."""


class Halting(Callbacks):
    """Callbacks that end training at its next step once ``halt`` is set."""

    def __init__(self, halt: Event) -> None:
        super().__init__([self._check])
        self.halt = halt

    def _check(self, step: Step) -> None:
        if self.halt.is_set():
            raise Halted


def in_parallel(streams: Sequence[Iterator[T]], n_parallel: int, halt: Event) -> Iterator[T]:
    """What the streams yield, as it comes: ``n_parallel`` of them run at a time, each in one thread.

    If one fails, or the caller stops early, ``halt`` is set, and the others are waited for.
    """
    found: SimpleQueue[Any] = SimpleQueue()
    is_over = object()

    def run(stream: Iterator[T]) -> None:
        try:
            with one_thread():
                for one in stream:
                    found.put(one)
            found.put(is_over)
        except BaseException as error:
            found.put(error)

    with ThreadPoolExecutor(n_parallel) as pool:
        for stream in streams:
            pool.submit(copy_context().run, run, stream)
        try:
            for _ in streams:
                while (one := found.get()) is not is_over:
                    if isinstance(one, BaseException):
                        raise one
                    yield one
        finally:
            halt.set()
            pool.shutdown(wait=True, cancel_futures=True)


class _FinishedMembers(Checkpoint):
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
