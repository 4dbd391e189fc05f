"""Blend: trees and networks, several of each, averaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.deadline import check_deadline
from tierank.errors import DataError, ParameterError
from tierank.export import QueryCopies, Scorer, StandardisedMean, Sum, Trees
from tierank.metrics import Judge, Rule
from tierank.progress import Progress
from tierank.rankers.base import Job, Ranker, make_judge, mean_of_standardised
from tierank.rankers.checkpoint import Checkpoint
from tierank.rankers.inner import fit_inner, inner_files, outline_inner, restore_inner
from tierank.rankers.model_folder import decoded, encoded
from tierank.rankers.neural import URank
from tierank.rankers.order import canonical_queries, canonical_rows
from tierank.rankers.trees import LambdaMART, UMart
from tierank.settings import as_choice, as_flag, as_whole
from tierank.transforms import add_query_copies

Floats = NDArray[np.float64]
Fold = tuple[RankingDataset, RankingDataset | None]

# Parts that take turns in validating.
_PARTS = 4
TREES, NETWORKS = "trees", "networks"

# Fixed beforehand and unlike each other: their mean is better than the one that looks best on validation data.
CONFIGS: tuple[dict[str, Any], ...] = (
    {"n_leaves": 15, "min_documents": 20, "feature_fraction": 0.7},
    {"n_leaves": 7, "min_documents": 50, "feature_fraction": 0.5},
    {"n_leaves": 31, "min_documents": 100, "feature_fraction": 0.5, "lambda_l2": 10.0},
    {"n_leaves": 10, "min_documents": 20, "feature_fraction": 0.3},
    {"n_leaves": 20, "min_documents": 200, "feature_fraction": 0.7},
    {"n_leaves": 63, "min_documents": 50, "feature_fraction": 0.3, "lambda_l2": 30.0},
)
_TRANSFORMS = ("query_minmax", "query_log1p")

# What a price in units of one tree model with the same features buys.
BUDGETS: dict[str, dict[str, Any]] = {
    "1x": {"n_configs": 1, "n_seeds": 0, "rotate": False},
    "3x": {"n_configs": 1, "n_seeds": 1, "rotate": False},
    "10x": {"n_configs": 1, "n_seeds": 1, "rotate": True},
}


class Member(NamedTuple):
    """A ranker of the blend: its family, which part validated it, and what its metrics were there."""

    family: str
    part: int
    best: dict[str, float]
    ranker: Ranker
    center: float = 0.0
    scale: float = 1.0

    def standardised(self, scores: Floats) -> Floats:
        """The scores less the mean and over the deviation of those of the training data."""
        return (scores - self.center) / self.scale


class Blend(Ranker):
    """Blend: small boosted trees that see each feature among those of its query, and uRank networks, averaged.

    Each family is the mean of the scores of its members, standardised within each query, and both count the same:

        F(d) = z(mean over trees of z(f(d))) + z(mean over networks of z(f(d))),   z(f) = (f - mean) / deviation

    Nothing is chosen but the rounds of each member. With ``rotate`` the queries, those of ``valid`` included, are cut
    into four parts; each part validates once, and the members of that turn learn from the other three. So ratings of
    ``valid`` are learned from too; ``rotate=False`` keeps them for validation alone.

    ====================  =========================================================================================
    ``trees``             ``"lambdamart"`` or ``"umart"``
    ``n_configs``         trees of so many settings, at most 6; 0: no trees
    ``n_seeds``           networks of so many seeds for each of two transforms; 0: no networks
    ``rotate``            whether parts take turns in validating; otherwise ``valid`` validates, or one part
    ``query_features``    whether trees see the copies of features within the query, as in ``UMart``
    ``budget``            ``"1x"``, ``"3x"`` or ``"10x"`` the price of one tree model: sets ``n_configs``, ``n_seeds``
                          and ``rotate`` where they are not given. None: as they are
    ``n_trees``           at most so many rounds of trees
    ``max_epochs``        at most so many epochs of networks
    ``select_by``         metrics that choose the rounds, as in ``UMart``
    ``rule``              of those metrics
    ``for_target``        as in ``UMart``
    ``n_jobs``            threads; None: one for each core
    ``seed``              of all random numbers
    ====================  =========================================================================================

    ``members_`` lists the members with their metrics on the part that validated them; ``best_`` has those of the blend,
    each part judged by the members that did not learn from it.

    >>> from tierank import make_ranking
    >>> train, test = make_ranking(60, n_features=8, mean_length=20, max_length=40).split(0.7, 0.3)
    >>> ranker = Blend(n_configs=1, n_seeds=1, n_trees=5, max_epochs=2).fit(train)
    >>> [(member.family, member.part) for member in ranker.members_[:4]]
    [('trees', 0), ('networks', 0), ('networks', 0), ('trees', 1)]
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}

    members_: list[Member]

    def __init__(
        self,
        *,
        trees: str = "lambdamart",
        n_configs: int = 3,
        n_seeds: int = 2,
        rotate: bool = True,
        query_features: bool = True,
        budget: str | None = None,
        n_trees: int = 500,
        max_epochs: int = 200,
        select_by: str | Sequence[str] = ("ndcg@10",),
        rule: str | Rule = "tierank",
        for_target: str | None = None,
        n_jobs: int | None = None,
        seed: int = 0,
    ) -> None:
        self.trees, self.n_configs, self.n_seeds, self.rotate = trees, n_configs, n_seeds, rotate
        self.query_features, self.budget, self.n_trees, self.max_epochs = query_features, budget, n_trees, max_epochs
        self.select_by, self.rule, self.for_target, self.n_jobs, self.seed = select_by, rule, for_target, n_jobs, seed

    # Learning

    def _fit(self, train: RankingDataset, valid: RankingDataset | None, job: Job) -> None:
        if job.team.size > 1:
            raise ParameterError(
                "team: expected a ranker of trees or networks, got Blend, which trains its members in one process"
            )
        settings = self._settled()
        self._check_settings(settings)
        turns = list(take_turns(train, valid, settings["rotate"], settings["seed"], settings["n_jobs"]))
        kept = None if job.checkpoint is None else _Members(job.checkpoint, settings, train, valid)
        plans = list(product(range(len(turns)), self._plans(settings)))
        self.members_ = []
        with Progress("blend", len(plans), show=job.progress) as shown:
            seen: tuple[int, Fold, Fold] | None = None
            for number, (turn, (family, ranker)) in enumerate(plans):
                if seen is None or seen[0] != turn:
                    seen = (turn, turns[turn], self._widened(turns[turn]))
                fold = seen[2] if family == TREES else seen[1]
                seeded = ranker.set_params(seed=settings["seed"] + number)
                fitted = self._member(seeded, fold, kept, number)
                self.members_.append(self._described(family, turn, fitted, fold[0]))
                shown.step(" ".join(f"{name} {value:.4f}" for name, value in fitted.best_.items()))
        self.best_ = self._judged(turns)

    def _resolved(self) -> dict[str, Any]:
        """The settings, with what the budget buys where nothing else was given."""
        settings = super()._resolved()
        budget = settings.pop("budget")
        bought = {} if budget is None else BUDGETS[as_choice("budget", budget, BUDGETS)]
        return settings | {name: value for name, value in bought.items() if name not in self._given}

    def _check_before_work(self, settings: dict[str, Any]) -> None:
        """Its own settings, and those of each member."""
        self._check_settings(settings)
        for _, ranker in self._plans(settings):
            ranker.check_settings()

    def _check_settings(self, settings: dict[str, Any]) -> None:
        as_choice("trees", settings["trees"], ("lambdamart", "umart"))
        for name in ("n_configs", "n_seeds", "seed"):
            as_whole(name, settings[name], 0)
        for name in ("rotate", "query_features"):
            as_flag(name, settings[name])
        if settings["n_configs"] > len(CONFIGS):
            raise ParameterError(f"n_configs: expected at most {len(CONFIGS)}, got {settings['n_configs']}")
        if not settings["n_configs"] and not settings["n_seeds"]:
            raise ParameterError("n_configs, n_seeds: expected trees or networks, got 0 of both")

    def _plans(self, settings: dict[str, Any]) -> Iterator[tuple[str, Ranker]]:
        """The members of one turn, not fitted."""
        common = {name: settings[name] for name in ("select_by", "rule", "n_jobs")}
        for config in CONFIGS[: settings["n_configs"]]:
            ranker = LambdaMART if settings["trees"] == "lambdamart" else UMart
            yield TREES, ranker(n_trees=settings["n_trees"], **config, **common)
        for _, transform in product(range(settings["n_seeds"]), _TRANSFORMS):
            yield NETWORKS, URank(max_epochs=settings["max_epochs"], transform=transform, **common)

    def _widened(self, fold: Fold) -> Fold:
        return self._seen(fold[0]), None if fold[1] is None else self._seen(fold[1])

    def _seen(self, data: RankingDataset) -> RankingDataset:
        """The data as trees see them; without queries nobody knows what a document stands among."""
        is_widened = self.settings_["query_features"] and self.has_queries_
        return add_query_copies(data, self.n_jobs) if is_widened else data

    def _member(self, ranker: Ranker, fold: Fold, kept: _Members | None, number: int) -> Ranker:
        found = None if kept is None else kept.read(number, self)
        if found is None:
            found = fit_inner(self, ranker, *fold, Job(None if kept is None else kept.half(number)))
            if kept is not None:
                kept.write(number, found)
        return found

    def _described(self, family: str, part: int, ranker: Ranker, learned: RankingDataset) -> Member:
        best: dict[str, float] = ranker.best_
        if self.has_queries_:
            return Member(family, part, best, ranker)
        scores = ranker._predict(learned)
        return Member(family, part, best, ranker, float(scores.mean()), float(scores.std()) or 1.0)

    def _judged(self, turns: list[Fold]) -> dict[str, float]:
        """The metrics of the blend: each part judged by the members that it validated."""
        chosen = self.settings_["select_by"]
        metrics = [chosen] if isinstance(chosen, str) else list(chosen)
        values: dict[str, list[Floats]] = {metric: [] for metric in metrics}
        for turn, (_, valid) in enumerate(turns):
            if valid is None:
                return {}
            members = [member for member in self.members_ if member.part == turn]
            judge: Judge = make_judge(valid, metrics, self.settings_["rule"], 1)
            for metric, found in judge(self._blend(valid, members)).items():
                values[metric].append(found)
        return {metric: float(np.nanmean(np.concatenate(found))) for metric, found in values.items()}

    def _inner(self) -> list[Ranker]:
        return [member.ranker for member in vars(self).get("members_", ())]

    @property
    def history_(self) -> list[dict[str, Any]]:
        """A row for each member: its family, the part that validated it, and its metrics there."""
        return [{"family": member.family, "part": member.part, **member.best} for member in self.members_]

    # Scores

    def _predict(self, data: RankingDataset) -> Floats:
        return self._blend(data, self.members_)

    def _looks_around(self) -> bool:
        return self.has_queries_

    def _blend(self, data: RankingDataset, members: Sequence[Member]) -> Floats:
        means = []
        for family, own in self._families(members):
            seen = self._seen(data) if family == TREES else data
            scores = [self._member_scores(member, seen) for member in own]
            if self.has_queries_:
                means.append(mean_of_standardised(scores, data))
            else:
                fixed = [member.standardised(one) for member, one in zip(own, scores, strict=True)]
                means.append(np.mean(fixed, axis=0))
        if self.has_queries_:
            return means[0] if len(means) == 1 else mean_of_standardised(means, data)
        # In the smallest unit of the members, so that their rounding stays as small as it is.
        return np.asarray(np.mean(means, axis=0) * min(member.scale for member in members), np.float64)

    def _member_scores(self, member: Member, seen: RankingDataset) -> Floats:
        check_deadline()  # there can be dozens of members
        return member.ranker._predict(seen)

    def _families(self, members: Sequence[Member]) -> Iterator[tuple[str, list[Member]]]:
        for family in (TREES, NETWORKS):
            own = [member for member in members if member.family == family]
            if own:
                yield family, own

    def _contributions(self, data: RankingDataset, above: NDArray[np.int64], below: NDArray[np.int64]) -> Floats:
        """Those of the members, over the spread of their scores, as the scores are."""
        totals = []
        for family, own in self._families(self.members_):
            seen = self._seen(data) if family == TREES else data
            scores = [self._member_scores(member, seen) for member in own]
            spreads = [
                _spread(one) if self.has_queries_ else member.scale for member, one in zip(own, scores, strict=True)
            ]
            found = [self._of_own(member.ranker._contributions(seen, above, below)) for member in own]
            mean = np.mean([one / spread for one, spread in zip(found, spreads, strict=True)], axis=0)
            totals.append(mean / _spread(mean_of_standardised(scores, data)) if self._is_restandardised else mean)
        unit = 1.0 if self.has_queries_ else min(member.scale for member in self.members_)
        return np.asarray(np.mean(totals, axis=0) * unit, np.float64)

    @property
    def _is_restandardised(self) -> bool:
        """Whether the means of families are standardised once more, to count the same."""
        return self.has_queries_ and len(list(self._families(self.members_))) > 1

    def _of_own(self, values: Floats) -> Floats:
        """Contributions of a feature and its copies, summed."""
        return np.asarray(values.reshape(len(values), -1, self.n_features_in_).sum(axis=1), np.float64)

    def _portable(self) -> Scorer:
        if not self.has_queries_:
            return self._fixed_sum()
        return self._mean_of_means([(member.family, member.ranker._portable()) for member in self.members_])

    def _outline(self, train: RankingDataset) -> Scorer:
        """The members of one turn; those of the others are alike."""
        settings = self._settled()
        self._check_settings(settings)
        plans = self._plans(settings)
        members = [(family, outline_inner(self, ranker, train)) for family, ranker in plans]
        return self._mean_of_means(members) if self.has_queries_ else Sum(tuple((1.0, one) for _, one in members))

    def _mean_of_means(self, members: list[tuple[str, Scorer]]) -> Scorer:
        """Members averaged within their families, and families averaged, all standardised within the query first."""
        means = []
        for family in (TREES, NETWORKS):
            own = tuple(self._on_seen(scorer) for name, scorer in members if name == family)
            if own:
                means.append(StandardisedMean(own))
        return means[0] if len(means) == 1 else StandardisedMean(tuple(means))

    def _on_seen(self, scorer: Scorer) -> Scorer:
        """The scorer on the data as trees see them, if it is one of trees."""
        return QueryCopies(scorer) if isinstance(scorer, Trees) and self.settings_["query_features"] else scorer

    def _fixed_sum(self) -> Scorer:
        """Without queries members are standardised by constants, so the blend is a weighted sum and a constant."""
        families = [own for _, own in self._families(self.members_)]
        unit = min(member.scale for member in self.members_)
        weighted = [(unit / (len(families) * len(own) * member.scale), member) for own in families for member in own]
        shift = -sum(weight * member.center for weight, member in weighted)
        parts = [(weight, member.ranker._portable()) for weight, member in weighted]
        return Sum((*parts, (1.0, Trees.constant(float(shift)))))

    # Files

    def _files(self) -> dict[str, bytes]:
        return {
            name: content
            for number, member in enumerate(self.members_)
            for name, content in inner_files(f"member{number}", member.ranker).items()
        }

    def _fitted(self) -> dict[str, Any]:
        members = [
            {
                **member._asdict(),
                "ranker": encoded(member.ranker, "member"),
                "n_features": member.ranker.n_features_in_,
                "fitted": member.ranker._fitted(),
            }
            for member in self.members_
        ]
        return {"members": members, "best": self.best_}

    def _restore(self, fitted: dict[str, Any], files: dict[str, bytes]) -> None:
        try:
            self.best_ = dict(fitted["best"])
            self.members_ = []
            for number, saved in enumerate(fitted["members"]):
                ranker = restore_inner(
                    self, decoded(saved["ranker"]), f"member{number}", saved["fitted"], files, saved["n_features"]
                )
                place = str(saved["family"]), int(saved["part"]), dict(saved["best"])
                self.members_.append(Member(*place, ranker, float(saved["center"]), float(saved["scale"])))
        except (KeyError, TypeError, ValueError):
            raise DataError("expected the members of a blend, got a damaged description") from None


def take_turns(
    train: RankingDataset, valid: RankingDataset | None, rotate: bool, seed: int, n_jobs: int | None = None
) -> Iterator[Fold]:
    """Which queries are learned from, and which validate."""
    if valid is not None and not rotate:
        yield train, valid
        return
    pool = train if valid is None else _joined(train, valid)
    parts = _parts(pool, seed, n_jobs)
    if len(parts) < 2:  # nothing that could be held back
        yield pool, None
        return
    for part in parts if rotate else parts[-1:]:
        learned = np.ones(pool.n_queries, bool)
        learned[part] = False
        yield pool.select(learned), pool.select(part)


class _Members(Checkpoint):
    """The members that are finished, and how far the one at work has come: each in a folder of its own."""

    def __init__(
        self, folder: Path, settings: dict[str, Any], train: RankingDataset, valid: RankingDataset | None
    ) -> None:
        contents = [None if data is None else canonical_rows(data, settings["n_jobs"])[2] for data in (train, valid)]
        super().__init__(folder, settings, contents)
        self.begin()

    def half(self, number: int) -> Path:
        """The checkpoint of a member that is not finished."""
        return self.folder / f"member{number}.checkpoint"

    def read(self, number: int, owner: Ranker) -> Ranker | None:
        """A finished member."""
        from tierank.rankers import load  # which imports this module

        folder = self.folder / f"member{number}"
        if not folder.is_dir():
            return None
        found = load(folder)
        found.has_queries_, found.n_jobs = owner.has_queries_, owner.n_jobs
        return found

    def write(self, number: int, ranker: Ranker) -> None:
        """Keep a finished member."""
        ranker.save(self.folder / f"member{number}")


def _spread(scores: Floats) -> float:
    """The standard deviation of the scores of one query; 1 where all are equal."""
    return float(scores.std()) or 1.0


def _joined(train: RankingDataset, valid: RankingDataset) -> RankingDataset:
    """Both as one data set; queries that have the same id in both are two. Weights of 1 where only one has weights."""
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
            feature_names=data.feature_names,
        )
        for name, data in (("train", train), ("valid", valid))
    ]
    return RankingDataset.concat(named)


def _parts(data: RankingDataset, seed: int, n_jobs: int | None) -> list[NDArray[np.int64]]:
    """Queries in parts of the same size, each with its share of those that can be judged; fewer where there are few.

    Which query is where depends on what the queries hold, not on their ids or on where the caller had them.
    """
    queries = canonical_queries(data, n_jobs)
    judged = np.maximum.reduceat(data.ratings, data.offsets[:-1])[queries] > 0
    rng = np.random.default_rng(seed)
    dealt = np.concatenate([rng.permutation(queries[judged]), rng.permutation(queries[~judged])])
    n_parts = min(_PARTS, int(judged.sum()))
    return [np.sort(dealt[part::n_parts]) for part in range(n_parts)]
