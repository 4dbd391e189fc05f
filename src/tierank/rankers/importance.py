"""Permutation importance: how much a metric drops if a feature is shuffled.

What notebooks show of a ranker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nlargest
from itertools import product
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from tierank import display as notebook
from tierank.arrays import Floats
from tierank.data.checks import feature_labels
from tierank.data.columns import Indicator
from tierank.data.dataset import RankingDataset
from tierank.metrics import Judge
from tierank.settings import declared

if TYPE_CHECKING:
    from tierank.rankers.base import Ranker


# Documents that are predicted at a time: each call of predict has a fixed cost.
_TOGETHER = 50_000

Importance = TypeVar("Importance", float, Floats)


def losses_of_shuffles(
    data: RankingDataset,
    predict: Callable[[RankingDataset], Floats],
    judge: Judge,
    used: NDArray[np.bool_],
    n_repeats: int,
    seed: int,
) -> Floats:
    """How much the mean of a metric drops, for each feature and repeat; 0 for unused features.

    All features are shuffled alike, so that their order does not matter.
    """

    def mean(scores: Floats) -> float:
        (values,) = judge(scores).values()
        return float(np.nanmean(values))

    losses = np.zeros((data.n_features, n_repeats))
    base, shuffles = mean(predict(data)), list(product(np.flatnonzero(used).tolist(), range(n_repeats)))
    n_copies = max(1, min(_TOGETHER // data.n_documents, len(shuffles)))
    copies = _repeat(data, n_copies)
    blocks = copies.features.reshape(n_copies, data.n_documents, data.n_features)
    for first in range(0, len(shuffles), n_copies):
        some = shuffles[first : first + n_copies]
        for block, (column, repeat) in zip(blocks, some, strict=False):
            order = np.random.default_rng([seed, repeat]).permutation(data.n_documents)
            block[:, column] = data.features[order, column]
        scores = predict(copies).reshape(n_copies, data.n_documents)
        for block, of_block, (column, repeat) in zip(blocks, scores, some, strict=False):
            losses[column, repeat] = base - mean(of_block)
            block[:, column] = data.features[:, column]
    return losses


def most_important(found: Mapping[str, Importance], n: int) -> dict[str, Importance]:
    """The features that are most important (on average, if it was measured several times), the first one most."""
    return dict(nlargest(n, found.items(), key=lambda one: float(np.mean(one[1]))))


def by_name(losses: Floats, data: RankingDataset) -> dict[str, Floats]:
    """What ``permutation_importance`` returns, by the names of the features."""
    return dict(zip(feature_labels(data.feature_names, data.n_features), losses, strict=True))


def _repeat(data: RankingDataset, n: int) -> RankingDataset:
    """A data set that holds copies of all queries, one after the other."""
    starts = np.arange(n)[:, None] * data.n_documents + data.offsets[:-1]
    offsets = np.append(starts.ravel(), n * data.n_documents)
    return RankingDataset.from_parts(
        np.tile(data.features, (n, 1)),
        None,
        offsets,
        np.arange(n * data.n_queries),
        feature_names=data.feature_names,
        kinds=data.kinds,
    )


# Features whose importance is shown.
_IMPORTANT = 15


def gains_by_column(ranker: Ranker) -> dict[str, float]:
    """The total gain of the splits on each feature of the data; empty for rankers without trees.

    0/1 features of levels count for their column.
    """
    if not hasattr(ranker, "importance"):
        return {}
    gains, seen = ranker.importance("gain").tolist(), ranker.seen_
    found: dict[str, float] = {}
    for name, gain in zip(feature_labels(seen.feature_names, len(gains)), gains, strict=True):
        kind = seen.columns.kinds.get(name)
        column = kind.column if isinstance(kind, Indicator) else name
        found[column] = found.get(column, 0.0) + gain
    return found


def as_html(ranker: Ranker) -> str:
    """Settings and, once fitted, history and importances."""
    name, settings, known = type(ranker).__name__, ranker.get_params(deep=False), declared(ranker)
    texts = {one: repr(value) for one, value in settings.items()}
    rows = [[one, text if len(text) <= 100 else f"{text[:97]}..."] for one, text in texts.items()]
    changed = [row for row in rows if row[0] not in known or settings[row[0]] != known[row[0]].default]
    parts = [notebook.grid(["setting", "value"], changed)] if changed else []
    parts.append(notebook.folded(f"all {len(rows)} settings", notebook.grid(["setting", "value"], rows, len(rows))))
    if not hasattr(ranker, "model_"):
        return notebook.sheet(f"{name}, not fitted", *parts)
    best = ", ".join(f"{metric} {value:.4f}" for metric, value in ranker.best_.items())
    parts.insert(0, notebook.note(f"fitted on {ranker.seen_.n_features:,} features{f'; best: {best}' if best else ''}"))
    history = ranker.history_
    metric = next((one for one in (history[0] if history else {}) if one in ranker.best_), None)
    if metric is not None:
        values = [np.nan if row.get(metric) is None else float(row[metric]) for row in history]
        parts.append(notebook.curve(f"{metric} on validation data, {len(values)} rounds", values))
    top = most_important(gains_by_column(ranker), _IMPORTANT)
    if top:
        drawn = notebook.bars(list(top), list(top.values()), "gain")
        parts.append(notebook.folded(f"importances of {len(top)} features", drawn))
    return notebook.sheet(name, *parts)
