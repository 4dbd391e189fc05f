"""The model of a blend: families of trees and networks, averaged; and the turns in which queries validate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.deadline import check_deadline
from tierank.export import QueryCopies, Scorer, StandardisedMean, Sum, Trees
from tierank.training.model import FittedModel, Resources, Seen
from tierank.training.order import canonical_queries, shared_order
from tierank.training.selection import mean_of_standardised
from tierank.transforms import add_query_copies
from tierank.types import Floats, Rows

TREES, NETWORKS = "trees", "networks"
Fold = tuple[RankingDataset, RankingDataset | None]

# Parts that take turns in validating.
_PARTS = 4


class Member(NamedTuple):
    """A model of the blend: its family, the part that validated it, and its metrics there.

    Without queries its scores are standardised by ``center`` and ``scale``, from the training data.
    """

    family: str
    part: int
    best: dict[str, float]
    model: FittedModel
    center: float = 0.0
    scale: float = 1.0

    def standardised(self, scores: Floats) -> Floats:
        """The scores, standardised by the mean and the deviation on the training data."""
        return (scores - self.center) / self.scale


class BlendModel(FittedModel):
    """Members of two families: means within each family, and the mean of both.

    Attributes
    ----------
    members : list of Member
        The members, with their metrics on the part that validated them.
    """

    def __init__(self, members: list[Member], seen: Seen, query_features: bool) -> None:
        self.members, self.seen, self.best = members, seen, {}
        self.is_widened = query_features and seen.has_queries
        self.query_features = query_features

    @property
    def history(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """A row for each member: its family, the part that validated it, and its metrics there."""
        return [{"family": member.family, "part": member.part, **member.best} for member in self.members]

    @property
    def needs_list(self) -> bool:
        """Scores are standardised in each query, if queries are known."""
        return self.seen.has_queries

    def predict(self, data: RankingDataset, resources: Resources) -> Floats:
        """The mean of the families."""
        return self.blended(data, self.members, resources)

    def blended(self, data: RankingDataset, members: Sequence[Member], resources: Resources) -> Floats:
        """The scores of some of the members."""
        means = []
        for family, own in _families(members):
            scores = self._scores(own, self._seen_by(family, data, resources), resources)
            if self.seen.has_queries:
                means.append(mean_of_standardised(scores, data))
            else:
                fixed = [member.standardised(one) for member, one in zip(own, scores, strict=True)]
                means.append(np.mean(fixed, axis=0))
        if self.seen.has_queries:
            return means[0] if len(means) == 1 else mean_of_standardised(means, data)
        # In the smallest unit of the members, so that their rounding stays as small as it is.
        return np.asarray(np.mean(means, axis=0) * min(member.scale for member in members), np.float64)

    def contributions(self, data: RankingDataset, above: Rows, below: Rows, resources: Resources) -> Floats:
        """Those of the members, divided by the spread of their scores, as the scores are."""
        families = list(_families(self.members))
        totals = []
        for family, own in families:
            data_of_family = self._seen_by(family, data, resources)
            scores = self._scores(own, data_of_family, resources)
            of_members = [
                self._of_features(member.model.contributions(data_of_family, above, below, resources)) for member in own
            ]
            spreads = [
                _spread(one) if self.seen.has_queries else member.scale for member, one in zip(own, scores, strict=True)
            ]
            mean = np.mean([one / spread for one, spread in zip(of_members, spreads, strict=True)], axis=0)
            # Families are standardised once more if there are two, to count the same.
            is_standardised = self.seen.has_queries and len(families) > 1
            totals.append(mean / _spread(mean_of_standardised(scores, data)) if is_standardised else mean)
        unit = 1.0 if self.seen.has_queries else min(member.scale for member in self.members)
        return np.asarray(np.mean(totals, axis=0) * unit, np.float64)

    def portable(self) -> Scorer:
        """Means of standardised members; without queries a weighted sum."""
        if not self.seen.has_queries:
            return self._fixed_sum()
        return mean_of_means([(member.family, member.model.portable()) for member in self.members], self.is_widened)

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
        return {"members": members, "best": self.best}

    def _seen_by(self, family: str, data: RankingDataset, resources: Resources) -> RankingDataset:
        return add_query_copies(data, resources.n_jobs) if family == TREES and self.is_widened else data

    def _scores(self, members: Sequence[Member], data: RankingDataset, resources: Resources) -> list[Floats]:
        scores = []
        with shared_order():
            for member in members:
                check_deadline()  # there can be dozens of members
                scores.append(member.model.predict(data, resources))
        return scores

    def _of_features(self, values: Floats) -> Floats:
        """Contributions of a feature and its copies, summed."""
        return np.asarray(values.reshape(len(values), -1, self.seen.n_features).sum(axis=1), np.float64)

    def _fixed_sum(self) -> Scorer:
        """Without queries members are standardised by constants, so the blend is a weighted sum and a constant."""
        families = [own for _, own in _families(self.members)]
        unit = min(member.scale for member in self.members)
        weighted = [(unit / (len(families) * len(own) * member.scale), member) for own in families for member in own]
        shift = -sum(weight * member.center for weight, member in weighted)
        parts = [(weight, member.model.portable()) for weight, member in weighted]
        return Sum((*parts, (1.0, Trees.constant(float(shift)))))


def mean_of_means(members: list[tuple[str, Scorer]], is_widened: bool) -> Scorer:
    """Members averaged within their families, and families averaged, all standardised within the query first."""
    means = []
    for family in (TREES, NETWORKS):
        own = tuple(_on_copies(scorer, is_widened) for name, scorer in members if name == family)
        if own:
            means.append(StandardisedMean(own))
    return means[0] if len(means) == 1 else StandardisedMean(tuple(means))


def _on_copies(scorer: Scorer, is_widened: bool) -> Scorer:
    return QueryCopies(scorer) if isinstance(scorer, Trees) and is_widened else scorer


def _families(members: Sequence[Member]) -> Iterator[tuple[str, list[Member]]]:
    for family in (TREES, NETWORKS):
        own = [member for member in members if member.family == family]
        if own:
            yield family, own


def _spread(scores: Floats) -> float:
    """The standard deviation of the scores of one query; 1 if all are equal."""
    return float(scores.std()) or 1.0


def take_turns(
    train: RankingDataset, valid: RankingDataset | None, rotate: bool, seed: int, n_jobs: int | None = None
) -> Iterator[Fold]:
    """Which queries are learned from, and which validate."""
    if valid is not None and not rotate:
        yield train, valid
        return
    pool = train if valid is None else _joined(train, valid)
    parts = _parts(pool, seed, n_jobs)
    if len(parts) < 2:  # too few queries to hold any back
        yield pool, None
        return
    for part in parts if rotate else parts[-1:]:
        learned = np.ones(pool.n_queries, bool)
        learned[part] = False
        yield pool.select(learned), pool.select(part)


def _joined(train: RankingDataset, valid: RankingDataset) -> RankingDataset:
    """Both as one data set; queries that have the same id in both are two. Weights of 1 if only one has weights."""
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
    """Queries in parts of the same size, each with its share of those that can be judged; fewer if there are few.

    Which query is in which part depends on the contents of the queries, not on their ids or their order.
    """
    queries = canonical_queries(data, n_jobs)
    judged = np.maximum.reduceat(data.ratings, data.offsets[:-1])[queries] > 0
    rng = np.random.default_rng(seed)
    dealt = np.concatenate([rng.permutation(queries[judged]), rng.permutation(queries[~judged])])
    n_parts = min(_PARTS, int(judged.sum()))
    return [np.sort(dealt[part::n_parts]) for part in range(n_parts)]
