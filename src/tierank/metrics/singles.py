"""The best single feature: a ranker should be better than it, and a data set should say which one it is."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from tierank.arrays import Floats
from tierank.data.checks import feature_labels
from tierank.data.columns import Category
from tierank.data.dataset import RankingDataset
from tierank.data.relevance import gain_levels
from tierank.errors import SingleFeatureWarning
from tierank.metrics.judge import Judge
from tierank.metrics.rules import Metric, Rule, metric_name
from tierank.metrics.significance import SIGNIFICANT, SMALL, paired_p

# A rough NDCG of the first documents, of so many queries and numbers at most, finds the features to judge exactly.
_FIRST, _QUERIES, _NUMBERS, _JUDGED = 10, 200, 1 << 21, 3
# Fewer queries say too little for a warning.
_FEWEST = 20
# Below every feature: missing values rank last.
_LAST = -1e39


class SingleFeature(NamedTuple):
    """A feature as a ranking.

    Parameters
    ----------
    name : str
        Its name.
    column : int
        Its column.
    is_rising : bool
        Whether higher values are better.
    values : array
        The metric of each query; NaN where it is undefined.
    """

    name: str
    column: int
    is_rising: bool
    values: Floats

    def scores(self, data: RankingDataset) -> Floats:
        """The scores that rank data by this feature; missing values rank last."""
        return _scores(data, self.column, self.is_rising)


def _scores(data: RankingDataset, column: int, is_rising: bool) -> Floats:
    signed = data.features[:, column].astype(np.float64) * (1 if is_rising else -1)
    return np.where(np.isnan(signed), _LAST, signed)


def best_single_feature(data: RankingDataset, judge: Judge) -> SingleFeature | None:
    """The feature that ranks best by the first metric of a judge of these data, rising or falling; None for categories.

    Up to three candidates are judged; a rough NDCG@10 of at most 200 queries chooses them.
    """
    names, metric = feature_labels(data.feature_names, data.n_features), judge.metrics[0]
    usable = [k for k, name in enumerate(names) if not isinstance(data.kinds.get(name), Category)]
    if not usable:
        return None
    gains = gain_levels(np.nan_to_num(data.ratings), "exp2")
    discounts = 1 / np.log2(np.arange(_FIRST) + 2.0)
    rng, rough, n_numbers = np.random.default_rng(0), np.zeros(2 * len(usable)), 0
    for query in rng.permutation(data.n_queries)[:_QUERIES].tolist():
        # Rows in random order, so that their order in the file does not decide about equal values.
        rows = data.offsets[query] + rng.permutation(data.lengths[query])
        own, columns = gains[rows], data.features[rows][:, usable]
        ideal = float(np.sort(own)[::-1][:_FIRST] @ discounts[: len(own)])
        if ideal <= 0 or n_numbers > _NUMBERS:
            continue
        n_numbers += columns.size
        both = np.concatenate([columns, -columns], axis=1)
        order = np.argsort(-np.where(np.isnan(both), -np.inf, both), axis=0, kind="stable")[:_FIRST]
        rough += discounts[: len(order)] @ own[order] / ideal
    found = []
    for place in np.argsort(-rough, kind="stable")[:_JUDGED].tolist():
        column, is_rising = usable[place % len(usable)], place < len(usable)
        values = judge(_scores(data, column, is_rising))[metric]
        found.append(SingleFeature(names[column], column, is_rising, values))
    return max(found, key=lambda one: float(np.nan_to_num(np.nanmean(one.values))))


def warn_of_single_feature(
    data: RankingDataset, scores: Floats, metric: Metric, rule: str | Rule, n_jobs: int | None, stacklevel: int
) -> None:
    """Warn if a single feature ranks these data better than the scores do, by more than chance.

    That is by 0.005 or more, in a paired t-test with p below 0.05, on at least 20 queries.
    """
    judge = Judge(data, metric, rule, n_jobs=n_jobs)
    values = judge(scores)[judge.metrics[0]]
    best = best_single_feature(data, judge) if np.isfinite(values).sum() >= _FEWEST else None
    if best is None:
        return
    differences = (best.values - values)[np.isfinite(best.values - values)]
    if differences.mean() < SMALL or not float(paired_p(differences)) < SIGNIFICANT:
        return
    way = "" if best.is_rising else ", lowest first,"
    warnings.warn(
        f"the feature {best.name!r} alone{way} has {metric_name(metric)} {np.nanmean(best.values):.4f} on the"
        f" validation data, and the ranker {np.nanmean(values):.4f}: leave out features that say little, give more"
        " training queries, or train with a smaller learning_rate, fewer leaves or a stronger ridge",
        SingleFeatureWarning,
        stacklevel=stacklevel + 1,
    )
