"""Folds of data sets, and differences between two systems pooled over data sets, for the studies of quality."""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

import tierank
from tierank.metrics.significance import paired_p

Fold = tuple[tierank.RankingDataset, tierank.RankingDataset, tierank.RankingDataset]


# Relevance depends on the number of features, so these are two functions to learn.
_SHAPES: dict[str, dict[str, int]] = {
    "generated": {"n_features": 40, "mean_length": 30, "max_length": 80},
    "mslr": {"n_features": 136, "mean_length": 120, "max_length": 900},
    "short": {"n_features": 25, "mean_length": 10, "max_length": 10},
}
N_PARTS = 5


def read(data: str, fold: int) -> Fold:
    """Folds 1 to 5 of a folder, of a file, or of N generated queries: ``boxes:N``, ``generated:N`` or another shape."""
    kind, _, n_queries = data.partition(":")
    if kind in _SHAPES or kind == "boxes":
        n, seed = int(n_queries), 2000 + fold
        whole = boxes(n, seed) if kind == "boxes" else tierank.make_ranking(n, seed=seed, **_SHAPES[kind])
        train, valid, test = whole.split(0.6, 0.2, 0.2)
        return train, valid, test
    if Path(data).is_file():
        return cut(tierank.read(data))[fold - 1]
    return tierank.read_fold(Path(data), fold=fold)


def boxes(n_queries: int, seed: int) -> tierank.RankingDataset:
    """Lists of 10 documents whose relevance is a sum over 25 boxes in three of eight features: only trees learn it."""
    rng = np.random.default_rng(seed)
    features = rng.random((10 * n_queries, 20))
    relevance = np.zeros(len(features))
    for _ in range(25):
        of_box, edges, sides = rng.choice(8, 3, replace=False), rng.uniform(0.2, 0.8, 3), rng.choice([-1, 1], 3)
        relevance += rng.normal() * np.all(sides * (features[:, of_box] - edges) > 0, axis=1)
    relevance += 0.5 * relevance.std() * rng.normal(size=len(features))
    ratings = np.searchsorted(np.quantile(relevance, [0.6, 0.85, 0.95]), relevance)
    return tierank.RankingDataset(features, ratings, qid=np.repeat(np.arange(n_queries), 10))


def cut(data: tierank.RankingDataset) -> list[Fold]:
    """Five parts by query; fold k tests on part k, validates on the next part, and trains on the other three."""
    part = np.empty(data.n_queries, np.int64)
    part[np.argsort(data.query_ids)] = np.random.default_rng(0).permutation(data.n_queries) % N_PARTS
    folds = []
    for k in range(N_PARTS):
        is_test, is_valid = part == k, part == (k + 1) % N_PARTS
        folds.append([data.select(np.flatnonzero(one)) for one in (~is_test & ~is_valid, is_valid, is_test)])
    return [(train, valid, test) for train, valid, test in folds]


def pooled(differences: list[NDArray[np.float64]]) -> str:
    """The differences of each query, one array for each data set, pooled by Stouffer's method."""
    weights = np.sqrt([len(one) for one in differences])
    scores = np.array([z_of(one) for one in differences])
    z = float((weights * scores).sum() / np.sqrt((weights**2).sum()))
    mean = float(np.mean([one.mean() for one in differences]))
    return f"pooled: mean of the sets {mean:+.4f}, Z {z:.2f}, p {2 * NormalDist().cdf(-abs(z)):.2g}"


def z_of(differences: NDArray[np.float64]) -> float:
    p = float(paired_p(differences)) if differences.any() else 1.0
    return float(np.sign(differences.mean())) * NormalDist().inv_cdf(1 - max(p, 1e-15) / 2)
