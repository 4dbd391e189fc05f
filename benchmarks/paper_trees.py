"""The trees of the paper over the ranges that it prints. ``python -m benchmarks.paper_trees OHSUMED``

The paper says "200-1000 trees, 31-255 leaves, 255-10,000 bins", that settings were optimised, and neither which were
chosen for which data nor on which part of the data. Every combination of the ends of these ranges is trained in every
fold, and its round selected as the paper does. For each ranker, the table has the mean of the paper's metrics over all
test queries for:

preset             the paper preset of tierank, the low end of each range
lowest, highest    the range over all combinations, for each metric on its own
chosen in a fold   in each fold the combination with the best validation NDCG@1, then @3, @5, @10
chosen for all     the one combination with the best mean of these over the validation data of all folds
best on test data  the one combination with the best mean on the test data: what nobody may report
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from concurrent.futures import ProcessPoolExecutor
from itertools import product

import numpy as np

import tierank
from tierank import RankingDataset

METRICS = ("ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10")
RANKERS = {"umart": tierank.UMart, "lambdamart": tierank.LambdaMART}
N_TREES, N_LEAVES, MAX_BIN = (200, 1000), (31, 255), (255, 10_000)
N_FOLDS = 5

Setting = tuple[int, int, int]
# The values of the queries for each metric: (metrics, queries).
Values = np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the parts S1 to S5, or Fold1 to Fold5")
    parser.add_argument("--preset", default="paper-ohsumed")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    settings = list(product(N_TREES, N_LEAVES, MAX_BIN))
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in RANKERS:
            cells = list(product([options.folder], range(1, N_FOLDS + 1), [name], [options.preset], settings))
            found = list(pool.map(judge, cells))
            valid, test = (
                {s: [found[fold * len(settings) + k][part] for fold in range(N_FOLDS)] for k, s in enumerate(settings)}
                for part in (0, 1)
            )
            report(name, valid, test)


def judge(cell: tuple[str, int, str, str, Setting]) -> tuple[Values, Values]:
    """The values of the validation and of the test queries of a fold."""
    folder, fold, name, preset, (n_trees, n_leaves, max_bin) = cell
    train, valid, test = tierank.read_fold(folder, fold)
    ranker = RANKERS[name].from_preset(preset, n_trees=n_trees, n_leaves=n_leaves, max_bin=max_bin, n_jobs=1)
    ranker.fit(train, valid=valid)
    return values_of(ranker, valid), values_of(ranker, test)


def values_of(ranker: tierank.Ranker, data: RankingDataset) -> Values:
    judged = tierank.evaluate(data, ranker.predict(data), metrics=METRICS, rule="wsdm20")
    return np.array([judged.values(metric) for metric in METRICS])


def report(name: str, valid: dict[Setting, list[Values]], test: dict[Setting, list[Values]]) -> None:
    tested = {setting: mean(parts) for setting, parts in test.items()}
    by_fold = [max(valid, key=lambda setting: key_of(valid[setting][fold].mean(axis=1))) for fold in range(N_FOLDS)]
    for_all = max(valid, key=lambda setting: key_of(mean(valid[setting])))
    best = max(tested, key=lambda setting: key_of(tested[setting]))
    every = np.array(list(tested.values()))
    show(f"{name}, preset", tested[N_TREES[0], N_LEAVES[0], MAX_BIN[0]])
    show(f"{name}, lowest", every.min(axis=0))
    show(f"{name}, highest", every.max(axis=0))
    show(f"{name}, chosen in a fold", mean([test[setting][fold] for fold, setting in enumerate(by_fold)]), by_fold)
    show(f"{name}, chosen for all", tested[for_all], for_all)
    show(f"{name}, best on test data", tested[best], best)
    print(f"{name}: standard deviation over combinations {every.std(axis=0, ddof=1).round(3)}", flush=True)


def mean(parts: list[Values]) -> Values:
    return np.concatenate(parts, axis=1).mean(axis=1)


def key_of(means: Values) -> tuple[float, ...]:
    return tuple(means.round(6))


def show(label: str, means: Values, note: object = "") -> None:
    print(f"{label:32}" + " ".join(f"{value:.3f}" for value in means), note, flush=True)


if __name__ == "__main__":
    main()
