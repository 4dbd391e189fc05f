"""Doubtful features that should probably not be learned from: ids, constants, outcomes, and leaks of the ratings."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import chunks, spread
from tierank.data.checks import feature_labels
from tierank.data.columns import Element, Text, sources_of
from tierank.data.dataset import RankingDataset
from tierank.errors import ColumnWarning

# A feature gives the rating away if it orders at least this share of pairs as the ratings do, or the other way round:
# of the pairs that it orders at all, which are at least this share of all. Features of public data reach 0.79.
_ALIKE, _ORDERED = 0.95, 0.1
# These pairs are at least half of all, or from at least this many queries: fewer may be ordered alike by chance.
_MANY = 20
# Minimum numbers of values and documents: fewer values are often all different, and fewer documents are often ranked
# well by chance.
_FEWEST = 20
# The most queries and pairs of documents searched for leaks, and documents searched for ids and constants, evenly
# spaced.
_QUERIES, _PAIRS, _DOCUMENTS = 200, 10_000, 20_000
# Columns that a warning describes.
_LISTED = 12
# Words that name what people did after they saw the list, or how it was judged, and words that say little beside them.
# A column with any other word is none: clicks_last_month may be known before.
_OUTCOMES = re.compile(
    "clicks?|clicked|orders?|ordered|purchases?|purchased|buys?|bought|conversions?|converted|bookings?|booked|baskets?"
    "|carts?|revenue|relevance|labels?|target"
)
_FILLERS = re.compile("n|num|number|of|counts?|total|sum|is|was|has|in|to|add|added|bool|flag|usd|eur")


def find_doubts(data: RankingDataset) -> dict[str, str]:
    """Features that should probably not be learned from, and why, by 20,000 documents and 200 queries.

    >>> rows = [[k, 1.0, k % 3, k % 2] for k in range(30)]
    >>> ratings = [k % 3 for k in range(30)]
    >>> data = RankingDataset(rows, ratings, qid=[0] * 30, feature_names=["sku_id", "shop", "views", "n_orders"])
    >>> for name, why in find_doubts(data).items():
    ...     print(name, why)
    sku_id looks like an id
    shop is the same for all documents
    views gives the rating away
    n_orders is named like an outcome
    """
    names = feature_labels(data.feature_names, data.n_features)
    sample = data.features[spread(data.n_documents, _DOCUMENTS)]
    constant = _find_constants(data, sample)
    outcomes = find_outcomes(data)
    # A vector often has some constant elements. It is reported only if all are constant.
    kinds = [data.kinds.get(name) for name in names]
    varied = {kind.column for kind, same in zip(kinds, constant, strict=True) if isinstance(kind, Element) and not same}
    doubts = {}
    for j, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        if isinstance(kind, Text):  # features are computed from its texts, not from their level numbers
            continue
        if constant[j]:
            if not isinstance(kind, Element) or kind.column not in varied:
                doubts[name] = "is the same for all documents"
        elif name in outcomes:
            doubts[name] = outcomes[name]
        elif name.lower().endswith("id") and _are_ids(sample[:, j]):
            doubts[name] = "looks like an id"
    return doubts


def find_outcomes(data: RankingDataset) -> dict[str, str]:
    """Features that were probably not known before the ratings, and why; empty if the data have no ratings."""
    if not data.is_rated:
        return {}
    names = feature_labels(data.feature_names, data.n_features)
    leaks = _find_leaks(data) if data.n_documents >= _FEWEST else np.zeros(data.n_features, bool)
    found = {}
    for name, leak in zip(names, leaks, strict=True):
        if leak and not isinstance(data.kinds.get(name), Text):
            found[name] = "gives the rating away"
        elif name not in data.kinds and _is_outcome(name):
            found[name] = "is named like an outcome"
    return found


def warn_of_columns(doubts: Mapping[str, str], data: RankingDataset, stacklevel: int) -> None:
    """Warn of all columns that should probably not be learned from, and say how to leave them out."""
    if not doubts:
        return
    held = [f"column {name!r} {what}" for name, what in doubts.items()]
    more = f"; ... ({len(held)} columns in all)" if len(held) > _LISTED else ""
    those = "it" if len(held) == 1 else "them"
    rating = f"; the rating is column {data.roles['rating']!r}" if "rating" in data.roles else ""
    warnings.warn(
        f"{'; '.join(held[:_LISTED])}{more}: leave {those} out with ignore={list(doubts)}, if that is not intended"
        f"{rating}",
        ColumnWarning,
        stacklevel=stacklevel,
    )


def columns_to_ignore(doubts: Collection[str], data: RankingDataset) -> list[str]:
    """The columns that give only doubtful features: a vector only if all its elements are doubtful."""
    names = data.feature_names or ()
    others = set(sources_of([name for name in names if name not in doubts], data.kinds))
    return [column for column in sources_of(list(doubts), data.kinds) if column not in others]


def _is_outcome(name: str) -> bool:
    """Whether a name says what people did with the document.

    >>> [_is_outcome(name) for name in ("nClicks", "add_to_cart", "clicks_30d", "past_orders", "count")]
    [True, True, False, False, False]
    """
    words = re.findall("[a-z]+|[0-9]+", re.sub("([a-z])([A-Z])", r"\1_\2", name).lower())
    others = [word for word in words if not _OUTCOMES.fullmatch(word)]
    return len(others) < len(words) and all(_FILLERS.fullmatch(word) for word in others)


def _find_leaks(data: RankingDataset) -> NDArray[np.bool_]:
    """Which features order pairs of documents of a query almost exactly as the ratings do, or the other way round."""
    queries = spread(data.n_queries, _QUERIES)
    rng, ratings = np.random.default_rng(0), data.ratings
    counts = np.zeros((3, data.n_features), np.int64)  # pairs ordered alike, and the other way round, and their queries
    n_pairs = 0
    for first, last in zip(data.offsets[:-1][queries], data.offsets[1:][queries], strict=True):
        rows = rng.integers(first, last, (_PAIRS // max(5, len(queries)), 2))
        above, below = rows[ratings[rows[:, 0]] > ratings[rows[:, 1]]].T
        values = (data.features[side] for side in (above, below))
        higher, lower = (
            np.where(np.isnan(one), np.float32(-np.inf), one) for one in values
        )  # missing below all others
        alike, turned = (higher > lower).sum(axis=0), (higher < lower).sum(axis=0)
        counts += [alike, turned, alike + turned > 0]
        n_pairs += len(above)
    n_ordered = counts[:2].sum(axis=0)
    are_enough = (n_ordered >= n_pairs / 2) | ((n_ordered >= _ORDERED * n_pairs) & (counts[2] >= _MANY))
    leaks: NDArray[np.bool_] = (n_ordered > 0) & are_enough & (counts[:2].max(axis=0) >= _ALIKE * n_ordered)
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
