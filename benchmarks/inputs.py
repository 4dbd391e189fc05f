"""The inputs of networks: URank with plain inputs and with its defaults, and LambdaMART.

    python -m benchmarks.inputs DATA ...

DATA are folders with the parts or folds that ``tierank.read_fold`` reads, or ``generated:N`` for ``make_ranking`` data
of N queries, split 60/20/20, with another set for each "fold". The systems: ``URank`` with the preset ``plain-inputs``,
with ``--parts`` also with parts of the defaults, ``URank()``, and ``LambdaMART()``. All stop by NDCG@10 on validation
data. NDCG@10 of the test queries is averaged over seeds and compared query by query with that of plain inputs and of
``LambdaMART()`` (t-test, uncorrected); CPU seconds are those of one ``fit`` on one thread.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
from numpy.typing import NDArray

import tierank
from tierank.metrics.significance import paired_p

METRIC, NETWORK, TREES = "ndcg@10", "URank, plain-inputs", "LambdaMART"
THREE = ("query_minmax", "query_log1p", "log1p")
Fold = tuple[tierank.RankingDataset, tierank.RankingDataset, tierank.RankingDataset]
Make = Callable[..., tierank.Ranker]


def systems(parts: bool) -> Iterator[tuple[str, Make]]:
    yield NETWORK, plain
    if parts:
        yield "three transforms", lambda **given: plain(feature_transform=THREE, **given)
        yield "URank, no encoding", lambda **given: tierank.URank(encoding="none", **given)
        yield "URank, constant", lambda **given: tierank.URank(schedule="constant", **given)
    yield "URank", tierank.URank
    yield TREES, tierank.LambdaMART


def plain(**given: Any) -> tierank.Ranker:
    return tierank.URank.from_preset("plain-inputs", **given)


def read(data: str, fold: int) -> Fold:
    if data.startswith("generated:"):
        train, valid, test = tierank.make_ranking(int(data.split(":")[1]), seed=1000 + fold).split(0.6, 0.2, 0.2)
        return train, valid, test
    return tierank.read_fold(Path(data), fold=fold)


def judge(make: Make, folds: list[Fold], n_seeds: int) -> tuple[NDArray[np.float64], float]:
    """NDCG@10 of every test query, averaged over seeds, and the mean CPU seconds of a fit."""
    by_seed, seconds = [], 0.0
    for seed in range(n_seeds):
        values = []
        for train, valid, test in folds:
            start = time.process_time()
            ranker = make(seed=seed, n_jobs=1).fit(train, valid=valid)
            seconds += time.process_time() - start
            values.append(tierank.evaluate(test, ranker.predict(test), METRIC, n_jobs=1).per_query[METRIC])
        by_seed.append(np.concatenate(values))
    return np.mean(by_seed, axis=0), seconds / (n_seeds * len(folds))


def versus(values: NDArray[np.float64], base: NDArray[np.float64]) -> str:
    differences = (values - base)[np.isfinite(values)]
    return f"{differences.mean():+.4f} ({float(paired_p(differences)):.3f})" if differences.any() else ""


def rows_of(data: str, options: argparse.Namespace) -> Iterator[str]:
    folds = [read(data, fold) for fold in options.folds]
    found = {name: judge(make, folds, options.seeds) for name, make in systems(options.parts)}
    n_queries = int(np.isfinite(found[NETWORK][0]).sum())
    for name, (values, seconds) in found.items():
        beside = [versus(values, found[base][0]) for base in (NETWORK, TREES)]
        cells = [f"{Path(data).name}, {n_queries} queries", name, f"{np.nanmean(values):.4f}", *beside]
        yield f"| {' | '.join([*cells, f'{seconds:.1f}'])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="folders, or generated:N")
    parser.add_argument("--folds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--parts", action="store_true", help="pieces of the preset too")
    options = parser.parse_args()
    for _, make in systems(options.parts):  # compiles
        make(n_jobs=1).fit(tierank.make_ranking(10, n_features=3, mean_length=5, max_length=9))
    columns = ["data", "system", "NDCG@10", f"minus {NETWORK} (p)", f"minus {TREES} (p)", "CPU s per fit"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for data in options.data:
        for row in rows_of(data, options):
            print(row, flush=True)


if __name__ == "__main__":
    main()
