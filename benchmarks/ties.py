"""The cost and gain of ties="mean" compared with ties="rows". ``python -m benchmarks.ties DATA ...``

Each folder has the parts or folds that ``tierank.read_fold`` reads. uMart and LambdaMART are fitted to every fold with
both settings; NDCG@10 on the test parts is compared query by query. CPU seconds are those of ``fit``, after compiling.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tierank
from tierank.metrics.significance import paired_p

TIES = ("mean", "rows")


def judge(name: str, ties: str, folder: Path) -> tuple[NDArray[np.float64], float]:
    """NDCG@10 of every test query, fold after fold, and the CPU seconds of training."""
    values, seconds = [], 0.0
    for fold in range(1, 6):
        train, valid, test = tierank.read_fold(folder, fold=fold)
        start = time.process_time()
        ranker = tierank.RANKERS[name](ties=ties, n_jobs=1).fit(train, valid=valid)
        seconds += time.process_time() - start
        values.append(tierank.evaluate(test, ranker.predict(test), "ndcg@10").per_query["ndcg@10"])
    return np.concatenate(values), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    options = parser.parse_args()
    data = tierank.make_ranking(20, n_features=3, mean_length=10, max_length=20)
    for name in ("umart", "lambdamart"):
        tierank.RANKERS[name](n_trees=2).fit(data)
    print(
        f"{'data':12} {'ranker':12} {'mean':>8} {'rows':>8} {'difference':>11} {'p':>6} {'CPU s, mean':>12} {'rows':>6}"
    )
    for folder in options.data:
        for name in ("umart", "lambdamart"):
            (mean, cpu), (rows, cpu_rows) = (judge(name, ties, folder) for ties in TIES)
            differences = (mean - rows)[np.isfinite(mean)]
            print(
                f"{folder.name:12} {name:12} {np.nanmean(mean):8.4f} {np.nanmean(rows):8.4f}"
                f" {differences.mean():11.4f} {float(paired_p(differences)):6.3f} {cpu:12.1f} {cpu_rows:6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
