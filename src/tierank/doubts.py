"""Doubtful features that should probably not be learned from: ids, constants, and leaks of the ratings."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from tierank.dataset import RankingDataset
from tierank.kinds import Element, Text, sources_of
from tierank.memory import chunks, spread
from tierank.metrics import Judge
from tierank.types import Floats, Rows

# A feature with at least this skill leaks the ratings.
LEAKS_FROM = 0.9
# Minimum numbers of values and documents: fewer values are often all different, and fewer documents are often ranked
# well by chance.
_FEWEST = 20
# The most queries that skill is measured on, and the most documents searched for ids and constants, evenly spaced.
_QUERIES, _DOCUMENTS = 200, 20_000
# A first sample of fewer queries, on which most features are already below this skill.
_FEW_QUERIES, _FAR = 20, 0.6


def find_doubts(data: RankingDataset) -> dict[str, str]:
    """Features that should probably not be learned from, and why, by 20,000 documents and 200 queries.

    >>> rows = [[k, 1.0, k % 3] for k in range(30)]
    >>> ratings = [k % 3 for k in range(30)]
    >>> find_doubts(RankingDataset(rows, ratings, qid=[0] * 30, feature_names=["sku_id", "shop", "clicks"]))
    {'sku_id': 'looks like an id', 'shop': 'is the same for all documents', 'clicks': 'gives the rating away'}
    """
    names = data.feature_names or tuple(f"feature {j}" for j in range(1, data.n_features + 1))
    sample = data.features[spread(data.n_documents, _DOCUMENTS)]
    constant = _find_constants(data, sample)
    leaks = _find_leaks(data) if data.n_documents >= _FEWEST else np.zeros(data.n_features, bool)
    # A vector often has some constant elements. It is reported only if all are constant.
    kinds = [data.kinds.get(name) for name in names]
    varied = {kind.column for kind, same in zip(kinds, constant, strict=True) if isinstance(kind, Element) and not same}
    doubts = {}
    for j, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if isinstance(kind, Text):  # features are computed from its texts, not from their level numbers
            continue
        if constant[j] and isinstance(kind, Element) and kind.column in varied:
            continue
        if constant[j]:
            doubts[name] = "is the same for all documents"
        elif leaks[j]:
            doubts[name] = "gives the rating away"
        elif name.lower().endswith("id") and _are_ids(sample[:, j]):
            doubts[name] = "looks like an id"
    return doubts


def columns_to_ignore(doubts: Collection[str], data: RankingDataset) -> list[str]:
    """The columns that give only doubtful features: a vector only if all its elements are doubtful."""
    names = data.feature_names or ()
    others = set(sources_of([name for name in names if name not in doubts], data.kinds))
    return [column for column in sources_of(list(doubts), data.kinds) if column not in others]


def _find_leaks(data: RankingDataset) -> NDArray[np.bool_]:
    """Which features rank almost perfectly by themselves."""
    leaks = find_skills(data, _FEW_QUERIES) >= _FAR
    if leaks.any():
        leaks[leaks] = find_skills(data, _QUERIES, np.flatnonzero(leaks)) >= LEAKS_FROM
    return leaks


def _find_constants(data: RankingDataset, sample: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which features are constant; those that are constant in the sample are checked in all documents."""
    first = sample[0]
    constant: NDArray[np.bool_] = ((sample == first) | np.isnan(sample) & np.isnan(first)).all(axis=0)
    places = np.flatnonzero(constant)
    if len(places) and data.n_documents > len(sample):
        for chunk in chunks(data.features):
            values = chunk[:, places]
            is_same = (values == first[places]) | np.isnan(values) & np.isnan(first[places])
            constant[places] &= is_same.all(axis=0)
    return constant


def _are_ids(values: NDArray[np.float32]) -> bool:
    """Whether values are integers, nearly all different."""
    is_whole = len(values) >= _FEWEST and bool((values == np.rint(values)).all())
    # Ids above 2^24 collide in float32.
    return is_whole and len(np.unique(values)) > (0.9 if abs(values).max() < 1 << 24 else 0.1) * len(values)


def find_skills(data: RankingDataset, n_queries: int, features: Rows | None = None) -> Floats:
    """The skill of each feature, or of some, on at most this many evenly spaced queries: how well it ranks by itself.

    (NDCG@10 - that of a random order) / (1 - that of a random order), ascending or descending, whichever is better. NaN
    if no query can be ranked well or badly.
    """
    part = data.select(spread(data.n_queries, n_queries))
    judge = Judge(part, "ndcg@10")
    places = np.arange(data.n_features) if features is None else features
    if judge.n_empty == part.n_queries:
        return np.full(len(places), np.nan)

    def mean(scores: Floats) -> float:
        return float(np.nanmean(judge(scores)["ndcg@10"]))

    random = mean(np.zeros(part.n_documents))  # tied scores count by their mean over all orders
    if random > 1 - 1e-9:
        return np.full(len(places), np.nan)
    skills = np.empty(len(places))
    for j, place in enumerate(places):
        column = part.features[:, place].astype(np.float64)
        known = np.where(np.isnan(column), -np.inf, column), np.where(np.isnan(column), -np.inf, -column)
        skills[j] = max((mean(np.clip(scores, -1e300, 1e300)) - random) / (1 - random) for scores in known)
    return skills
