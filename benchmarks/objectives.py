"""Trees that follow a loss: the cost of estimating the hessian. ``python -m benchmarks.objectives DATA``

DATA is a folder of five folds. Each loss is followed by ``TreeRanker``; the uRank loss also with its exact diagonal,
which the kernel of uMart computes. The number is the mean over the test queries of all folds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

COMMON = {"n_trees": 300, "n_jobs": 1}
LOSSES = ("urank", "softmax", "listnet", "ranknet", "approxndcg", "lambdarank")


def rankers() -> dict[str, Callable[[], Any]]:
    from tierank import LambdaMART, TreeRanker, UMart

    exact = {"window": None, "weights": "gain", "sigma": 1.0, "hessian": "exact", "learning_rate": 0.05}
    made: dict[str, Callable[[], Any]] = {
        "LambdaMART": lambda: LambdaMART(**COMMON),
        "UMart": lambda: UMart(**COMMON),
        "urank, exact hessian": lambda: UMart(**exact, **COMMON),
    }
    return made | {f"TreeRanker {loss}": lambda loss=loss: TreeRanker(loss, **COMMON) for loss in LOSSES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="a folder of five folds")
    options = parser.parse_args()
    os.environ["OMP_WAIT_POLICY"] = "passive"
    from tierank import evaluate, read_fold

    folds = [read_fold(options.data, k) for k in range(1, 6)]
    print("| trees | NDCG@10 | CPU s a fold |\n|---|---|---|")
    for name, make in rankers().items():
        start = time.process_time()
        judged = []
        for train, valid, test in folds:
            scores = make().fit(train, valid=valid).predict(test)
            judged.append(evaluate(test, scores, "ndcg@10").per_query["ndcg@10"])
        seconds = (time.process_time() - start) / len(folds)
        print(f"| {name} | {np.nanmean(np.concatenate(judged)):.4f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
