"""Categories with few and many levels, in networks, trees and blends.

``python -m benchmarks.categories`` generates searches with two categories of 5, 50 or 500 levels and six numbers. The
value of a document depends on its levels, on their combination, and on its numbers, one of which has an effect that
depends on the level. In test queries, one level in twenty does not occur in any other query. NDCG@10 of test queries is
averaged over seeds; ``--valid`` prints that of the validation queries, on which defaults were chosen.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

import tierank

NAMES = ["brand", "shop"]
SYSTEMS: dict[str, tuple[str, Callable[[int], tierank.Ranker]]] = {
    "URank, embeddings": ("categories", lambda seed: tierank.URank(seed=seed, n_jobs=1)),
    "URank, indicators": (
        "categories",
        lambda seed: tierank.URank(category_encoding="indicators", seed=seed, n_jobs=1),
    ),
    "URank, means": ("means", lambda seed: tierank.URank(seed=seed, n_jobs=1)),
    "UMart, splits by category": ("categories", lambda seed: tierank.UMart(seed=seed, n_jobs=1)),
    "UMart, means": ("means", lambda seed: tierank.UMart(seed=seed, n_jobs=1)),
    "Blend": (
        "categories",
        lambda seed: tierank.Blend(trees="lambdamart", n_trees=500, seed=seed, n_jobs=1, rotate=False),
    ),
}


def make_table(n_levels: int, n_queries: int = 800, length: int = 15, seed: int = 0) -> pd.DataFrame:
    """Two categories with this many levels, which are not equally frequent, and six numbers."""
    rng = np.random.default_rng(seed)
    n = n_queries * length
    chance = 1 / np.arange(3, n_levels + 3)
    codes = rng.choice(n_levels, (n, 2), p=chance / chance.sum())
    worth, together, slope = (
        rng.normal(size=(2, n_levels)),
        rng.normal(size=(2, n_levels, 3)),
        rng.normal(size=n_levels),
    )
    numbers = rng.normal(size=(n, 6))
    brand, shop = codes.T
    value = worth[0, brand] + worth[1, shop] + (together[0, brand] * together[1, shop]).sum(axis=1) / 3**0.5
    value += (
        slope[brand] * numbers[:, 0] + numbers[:, 1] + np.maximum(numbers[:, 2], numbers[:, 3]) + rng.normal(size=n)
    )
    return pd.DataFrame(
        {
            "qid": np.arange(n) // length,
            "rating": np.digitize(value, np.quantile(value, [0.5, 0.75, 0.9, 0.97])),
            **{name: [f"{name} {code}" for code in codes[:, k]] for k, name in enumerate(NAMES)},
            **{f"x{k}": numbers[:, k] for k in range(6)},
        }
    )


def parts_of(table: pd.DataFrame, declared: str) -> list[tierank.RankingDataset]:
    """Training, validation and test queries; some levels of the last are new."""
    rng = np.random.default_rng(1)
    table = table.copy()
    is_test = table["qid"] >= 0.7 * (table["qid"].max() + 1)
    for name in NAMES:
        table.loc[is_test & (rng.random(len(table)) < 0.05), name] = "new"
    data = tierank.read(table, columns=tierank.Columns(**{declared: NAMES}))
    cuts = (np.array([0, 0.5, 0.7, 1.0]) * data.n_queries).astype(int)
    return [data.select(np.arange(a, b)) for a, b in pairwise(cuts)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=int, nargs="+", default=[5, 50, 500])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    parser.add_argument("--valid", action="store_true", help="judge by the validation queries")
    options = parser.parse_args()
    print(f"{'system':28}" + "".join(f"{n:>7} levels {'CPU s':>6}" for n in options.levels))
    for name in options.systems:
        cells = [judge(name, n, options) for n in options.levels]
        print(f"{name:28}" + "".join(f"{value:14.4f} {seconds:6.1f}" for value, seconds in cells), flush=True)


def judge(name: str, n_levels: int, options: Any) -> tuple[float, float]:
    """NDCG@10 and CPU seconds of a fit, averaged over the seeds; each seed has its own data."""
    declared, make = SYSTEMS[name]
    values, seconds = [], []
    for seed in range(1, options.seeds + 1):
        train, valid, test = parts_of(make_table(n_levels, seed=seed), declared)
        start = time.process_time()
        ranker = make(seed).fit(train, valid=valid)
        seconds.append(time.process_time() - start)
        judged = valid if options.valid else test
        scores = judged.arrange(ranker.predict(judged))
        values.append(float(np.nanmean(tierank.Judge(judged, "ndcg@10")(scores)["ndcg@10"])))
    return float(np.mean(values)), float(np.mean(seconds))


if __name__ == "__main__":
    main()
