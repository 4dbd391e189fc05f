"""Folds of data sets, and differences between two systems pooled over data sets: shared by the studies of quality."""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

import tierank
from tierank.significance import paired_p

Fold = tuple[tierank.RankingDataset, tierank.RankingDataset, tierank.RankingDataset]


def read(data: str, fold: int) -> Fold:
    if data.startswith("generated:"):
        shape = {"n_features": 40, "mean_length": 30, "max_length": 80}
        whole = tierank.make_ranking(int(data.split(":")[1]), seed=2000 + fold, **shape)
        train, valid, test = whole.split(0.6, 0.2, 0.2)
        return train, valid, test
    return tierank.read_fold(Path(data), fold=fold)


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
