"""The stochastic uMart compared with lambdarank with the same settings. ``python -m benchmarks.stochastic DATA ...``

DATA are folders with the parts or folds that ``tierank.read_fold`` reads, files, ``generated:N`` or ``mslr:N`` for
``make_ranking`` data of N queries with 40 or 136 features, or ``train.csv`` of Kaggle's Home Depot competition, for
which all systems get the match features. All systems have 15 leaves, learning rate 0.05, feature fraction 0.7,
lambda_l2 1, 20 documents or more in a leaf, and stop after 100 rounds without a better mean of NDCG@10, NDCG and MAP on
validation data, averaged over 20 rounds; those with "single rounds" after 60 rounds without a better NDCG@10 of one
round. NDCG@10 of the test queries is averaged over seeds and compared query by query with that of the first of
``--systems``; CPU seconds are those of one ``fit``. ``YetiRank`` is CatBoost's (its own defaults, except for the same
rate), which stops after 100 rounds without a better one.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
from numpy.typing import NDArray

import tierank
from benchmarks import texts
from benchmarks.folds import Fold, cut, pooled, read
from tierank.metrics.significance import paired_p

COMMON: dict[str, Any] = {
    "learning_rate": 0.05,
    "n_trees": 1000,
    "n_leaves": 15,
    "patience": 100,
    "select_over": 20,
    "feature_fraction": 0.7,
    "lambda_l2": 1.0,
    "min_documents": 20,
}
_SINGLE = {"patience": 60, "select_over": 1, "select_with": []}
# Changes to the preset, one at a time.
VARIANTS: dict[str, dict[str, Any]] = {
    "stochastic": {},
    "stochastic, single rounds": _SINGLE,
    "best thresholds": {"extra_trees": False},
    "noise 2": {"noise": 2.0},
    "noise 0.5": {"noise": 0.5},
    "exp2 gains": {"gain": "exp2"},
    "window 2": {"window": 2},
    "decay 0.95": {"decay": 0.95},
    "weights ndcg": {"weights": "ndcg", "gain": "exp2"},
    "1 draw": {"n_draws": 1},
    "10 draws": {"n_draws": 10},
    "40 draws": {"n_draws": 40},
}
System = Callable[[Fold, int], NDArray[np.float64]]


def ours(make: Callable[..., tierank.Ranker], settings: dict[str, Any]) -> System:
    def scores(fold: Fold, seed: int) -> NDArray[np.float64]:
        train, valid, test = fold
        return make(**settings, n_jobs=1, seed=seed).fit(train, valid=valid).predict(test)

    return scores


def catboost(fold: Fold, seed: int) -> NDArray[np.float64]:
    from catboost import CatBoostRanker, Pool

    train, valid, test = (
        Pool(data.features, data.ratings, group_id=np.repeat(np.arange(data.n_queries), data.lengths)) for data in fold
    )
    model = CatBoostRanker(
        loss_function="YetiRank", eval_metric="NDCG:top=10;type=Exp", iterations=1000, learning_rate=0.05,
        early_stopping_rounds=100, thread_count=1, random_seed=seed, verbose=False, allow_writing_files=False,
    )  # fmt: skip
    return np.asarray(model.fit(train, eval_set=valid).predict(test))


def stochastic(**settings: Any) -> tierank.Ranker:
    return tierank.UMart.from_preset("stochastic", **settings)


SYSTEMS: dict[str, System] = {
    "lambdarank": ours(tierank.LambdaMART, COMMON),
    "lambdarank, single rounds": ours(tierank.LambdaMART, COMMON | _SINGLE),
    "lambdarank, random thresholds": ours(tierank.LambdaMART, COMMON | {"extra_trees": True}),
    **{name: ours(stochastic, COMMON | changes) for name, changes in VARIANTS.items()},
    "YetiRank": catboost,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="folders, files, generated:N, mslr:N")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["lambdarank", "stochastic"])
    options = parser.parse_args()
    race(
        {data: folds_of(data) for data in options.data},
        {name: SYSTEMS[name] for name in options.systems},
        options.seeds,
    )


def race(folds: Mapping[str, list[Fold]], systems: Mapping[str, System], n_seeds: int) -> None:
    """Print each system on each data set, compared with the first one, and the pooled differences."""
    print(f"{'data':14} {'system':29} {'NDCG@10':>8} {'difference':>11} {'p':>6} {'CPU s':>6}")
    found: dict[str, list[NDArray[np.float64]]] = {name: [] for name in systems}
    for data, parts in folds.items():
        base = None
        for name, system in systems.items():
            values, seconds = judge(system, parts, n_seeds)
            base = values if base is None else base
            differences = (values - base)[np.isfinite(values)]
            p = float(paired_p(differences)) if differences.any() else 1.0
            print(
                f"{Path(data).name:14} {name:29} {np.nanmean(values):8.4f} {differences.mean():+11.4f} {p:6.3f}"
                f" {seconds:6.1f}",
                flush=True,
            )
            found[name].append(differences)
    first, *others = systems
    for name in others:
        print(f"{name} - {first}, {pooled(found[name])}")


def folds_of(data: str) -> list[Fold]:
    if Path(data).suffix == ".csv":
        return [texts.matched(fold) for fold in cut(texts.read(Path(data)))]
    return [read(data, fold) for fold in range(1, 6)]


def judge(system: System, folds: list[Fold], n_seeds: int) -> tuple[NDArray[np.float64], float]:
    """NDCG@10 of every test query, averaged over seeds, and the mean CPU seconds of a fit."""
    by_seed, seconds = [], 0.0
    for seed in range(1, n_seeds + 1):
        values = []
        for fold in folds:
            start = time.process_time()
            scores = system(fold, seed)
            seconds += time.process_time() - start
            values.append(tierank.evaluate(fold[2], scores, "ndcg@10").per_query["ndcg@10"])
        by_seed.append(np.concatenate(values))
    return np.mean(by_seed, axis=0), seconds / (n_seeds * len(folds))


if __name__ == "__main__":
    main()
