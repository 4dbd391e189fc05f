"""Predict ratings of documents from documents with similar features in other queries."""

from __future__ import annotations

import math
from typing import Any

import lightgbm
import numpy as np

from tierank.arrays import Floats
from tierank.data.dataset import RankingDataset
from tierank.data.team import Team
from tierank.rankers.lightgbm import Rows, bin_rows, predicted, training_threads
from tierank.rankers.order import canonical_rows
from tierank.rankers.tree_settings import for_data, threads_for
from tierank.rankers.tree_training import exact_in_sums

# Small trees: they predict means, not an order.
N_ROUNDS, LEARNING_RATE, _N_LEAVES, _MIN_DOCUMENTS = 60, 0.1, 8, 20
# A document is never used for its own prediction.
N_PARTS = 5


def expect_ratings(data: RankingDataset, falling: Floats, n_jobs: int | None = None) -> Floats:
    """Predict the rating of each document from similar documents of other queries.

    The queries are cut into 5 parts. For each part, 60 trees of 8 leaves are fitted to the other parts by least
    squares: they minimise the sum of w (rating - prediction)^2, with the row weights w. If no split helps, the
    prediction is the weighted mean of the other parts.

    Parameters
    ----------
    data : RankingDataset
        Documents with ratings and row weights; unjudged documents are not learned from.
    falling : array of float64, shape (n_documents,)
        Another feature; the prediction never rises with it.
    n_jobs : int, optional
        Number of threads. Default: all.

    Returns
    -------
    array of float64, shape (n_documents,)
        One prediction per document. The same bits for any number of threads and any order of rows.
    """
    column = falling.astype(np.float32)
    weights = np.ones(data.n_documents) if data.row_weight is None else data.row_weight
    # Documents, and queries, that differ in the other feature alone have an order too.
    canonical = canonical_rows(data.replace(position=falling + 0.0), n_jobs, rated=False)
    part_of_query = np.empty(data.n_queries, np.int64)
    part_of_query[canonical.queries] = np.arange(data.n_queries) % N_PARTS
    part = part_of_query[data.query_of_row][canonical.rows]
    counts = (data.is_judged & (weights > 0))[canonical.rows]
    expected = np.zeros(data.n_documents)
    with training_threads(threads_for(n_jobs, data.n_documents, data.n_features)) as threads:
        params = _parameters(data, threads)
        for one in np.unique(part):
            # A single query has no other parts.
            is_learned_from = counts & (part != one) if data.n_queries > 1 else counts
            learned_from, asked = canonical.rows[is_learned_from], canonical.rows[part == one]
            if len(learned_from):
                train = bin_rows(Rows(data.features, learned_from, column), Team(), params)
                booster, mean = _fitted(train, data.ratings[learned_from], weights[learned_from], params)
                expected[asked] = mean + predicted(booster, Rows(data.features, asked, column), threads)
    return expected


def _parameters(data: RankingDataset, n_threads: int) -> dict[str, Any]:
    params = {
        "deterministic": True,
        "feature_pre_filter": False,
        "learning_rate": LEARNING_RATE,
        "num_leaves": _N_LEAVES,
        "min_data_in_leaf": _MIN_DOCUMENTS,
        "num_threads": n_threads,
        "verbosity": -1,
    }
    return for_data(params, data) | {"monotone_constraints": [0] * data.n_features + [-1]}


def _fitted(
    train: lightgbm.Dataset, ratings: Floats, weights: Floats, params: dict[str, Any]
) -> tuple[lightgbm.Booster, float]:
    """Trees fitted to the difference of the ratings from their weighted mean, and the mean."""
    mean = math.fsum(weights * ratings) / math.fsum(weights)
    hessian = exact_in_sums(weights.astype(np.float32))

    def squares(scores: Any, _: Any) -> tuple[Any, Any]:
        return exact_in_sums((weights * (mean + scores - ratings)).astype(np.float32)), hessian

    train.set_label(np.zeros(len(ratings), np.float32))  # LightGBM needs labels, but the objective does not use them
    return lightgbm.train({**params, "objective": squares}, train, N_ROUNDS), mean
