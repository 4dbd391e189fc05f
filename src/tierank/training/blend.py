"""The model of a blend: families of members and their weights; and the turns in which queries validate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.deadline import check_deadline
from tierank.errors import DataError
from tierank.export import QueryCopies, Scorer, StandardisedMean, Sum, Trees
from tierank.team import Team
from tierank.training.model import FittedModel, Resources, Seen
from tierank.training.numbering import Numbering
from tierank.training.order import canonical_rows
from tierank.training.selection import mean_of_standardised, spread_of
from tierank.training.sharing import shared_work
from tierank.transforms import add_query_copies
from tierank.types import Floats, Rows

FAMILIES = TREES, PLAIN_TREES, NETWORKS, LINEAR = "trees", "plain trees", "networks", "linear"
Fold = tuple[RankingDataset, RankingDataset | None]
Units = NDArray[np.int64]

# Number of parts that take turns in validating.
_PARTS = 4
# Weights of families are counted in sixtieths, so that equal weights of up to six families are integers.
_UNITS = 60
# The least gain of a move of weights, so that rounding does not decide.
_TOLERANCE = 1e-9


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

    def standardised(self, scores: Floats) -> Floats:
        """The scores, standardised by the mean and the deviation on the training data."""
        return (scores - self.center) / self.scale


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
                fixed = [member.standardised(one) for member, one in zip(own, scores, strict=True)]
                found[family] = np.asarray(np.mean(fixed, axis=0), np.float64)
        return found

    def contributions(self, data: RankingDataset, above: Rows, below: Rows, resources: Resources) -> Floats:
        """Those of the members, divided by the spread of their scores, as the scores are."""
        total = np.zeros((len(above), self.seen.n_features))
        for family, own in _families(self.members):
            data_of_family = self._seen_by(family, data, resources)
            scores = self._scores(own, data_of_family, resources)
            of_members = [
                self._of_features(member.model.contributions(data_of_family, above, below, resources)) for member in own
            ]
            spreads = [
                spread_of(one) if self.seen.has_queries else member.scale
                for member, one in zip(own, scores, strict=True)
            ]
            mean = np.mean([one / spread for one, spread in zip(of_members, spreads, strict=True)], axis=0)
            spread = 1.0
            if self.seen.has_queries:
                spread = spread_of(mean_of_standardised(scores, data))
            total += self.weights[family] * mean / spread
        return np.asarray(total * self._unit, np.float64)

    def portable(self) -> Scorer:
        """Weighted means of standardised members; without queries a weighted sum."""
        if not self.seen.has_queries:
            return self._fixed_sum()
        members = [(member.family, member.model.portable()) for member in self.members]
        return sum_of_means(members, self.weights, self.is_widened)

    def files(self) -> dict[str, bytes]:
        """The files of the members."""
        return {
            f"member{number}.{name}": content
            for number, member in enumerate(self.members)
            for name, content in member.model.files().items()
        }

    def facts(self) -> dict[str, Any]:
        """The members without their files."""
        members = [
            {name: value for name, value in member._asdict().items() if name != "model"}
            | {"fitted": member.model.facts()}
            for member in self.members
        ]
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

    def _of_features(self, values: Floats) -> Floats:
        """Contributions of a feature and its copies, summed."""
        return np.asarray(values.reshape(len(values), -1, self.seen.n_features).sum(axis=1), np.float64)

    def _fixed_sum(self) -> Scorer:
        """Without queries members are standardised by constants, so the blend is a weighted sum and a constant."""
        weighted = [
            (self._unit * self.weights[family] / (len(own) * member.scale), member)
            for family, own in _families(self.members)
            for member in own
        ]
        shift = -sum(weight * member.center for weight, member in weighted)
        parts = [(weight, member.model.portable()) for weight, member in weighted]
        return Sum((*parts, (1.0, Trees.constant(float(shift)))))


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

    def height(units: Units) -> float:
        values = values_of(dict(zip(families, (units / _UNITS).tolist(), strict=True)))
        known = np.sort(values[np.isfinite(values)])  # the same bits for queries in any order
        distance = (((units - equal) / _UNITS) ** 2).sum()
        return float(known.mean() / spread - strength / len(known) * distance)

    values = values_of(dict.fromkeys(families, 1.0 / n_families))
    spread = float(np.sort(values[np.isfinite(values)]).std()) or 1.0
    units, best = equal, height(equal)
    while True:
        moves = list(_moves(units))
        heights = [height(move) for move in moves]
        if not moves or max(heights) <= best + _TOLERANCE:
            return dict(zip(families, (units / _UNITS).tolist(), strict=True))
        units, best = moves[int(np.argmax(heights))], max(heights)


def _moves(units: Units) -> Iterator[Units]:
    """The weights after each move of a twelfth from one family to another; of all, if less than a sixth would stay."""
    for giver, taker in permutations(np.flatnonzero(units).tolist(), 2):  # a family at 0 stays there
        step, own = _UNITS // 12, int(units[giver])
        moved = own if own - step < 2 * step else step
        after = units.copy()
        after[giver] -= moved
        after[taker] += moved
        yield after


def _families(members: Sequence[Member]) -> Iterator[tuple[str, list[Member]]]:
    for family in FAMILIES:
        own = [member for member in members if member.family == family]
        if own:
            yield family, own


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
    """All queries of this process, those of ``train`` first, and the parts that take turns in validating."""
    pool = train if valid is None else _joined(train, valid)
    return pool, _parts(pool, seed, n_jobs, team or Team())


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


def _parts(data: RankingDataset, seed: int, n_jobs: int | None, team: Team) -> list[NDArray[np.int64]]:
    """Queries in parts of the same size, each with its share of those that can be judged; fewer if there are few.

    Which query is in which part depends on the contents of the queries of all processes, not on their ids, their order
    or who has them. Returns the own queries of each part.
    """
    order = canonical_rows(data, n_jobs)
    numbering = Numbering(data, order, team)
    is_judged = np.fmax.reduceat(data.ratings, data.offsets[:-1])[order.queries] > 0
    judged = numbering.gather(is_judged.astype(np.uint8)) > 0
    rng = np.random.default_rng(seed)
    dealt = np.concatenate([rng.permutation(np.flatnonzero(one)) for one in (judged, ~judged)])
    n_parts, own = min(_PARTS, int(judged.sum())), numbering.own()[dealt]
    return [np.sort(order.queries[one[one >= 0]]) for one in (own[part::n_parts] for part in range(n_parts))]
