"""When trees stop, and which round is kept. ``python -m benchmarks.stopping DATA ...``

DATA are those of ``benchmarks.stochastic``. Each ranker has its defaults except for ``patience``, ``select_over`` and
``select_with``, which ``--rules`` sets: 100:20 or 100:20:ndcg,map. NDCG@10 of the test queries is averaged over seeds
and compared, query by query, with that of the first rule; CPU seconds are those of one ``fit``. With ``--valid`` test
queries are not used: the validation queries take their place, and a quarter of the training queries becomes validation
data.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import tierank
from benchmarks.folds import Fold
from benchmarks.stochastic import folds_of, ours, race

MAKERS = {
    "LambdaMART": tierank.LambdaMART,
    "UMart": tierank.UMart,
    "stochastic": lambda **settings: tierank.UMart.from_preset("stochastic", **settings),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="folders, files, generated:N, mslr:N")
    parser.add_argument("--rankers", nargs="+", choices=MAKERS, default=list(MAKERS))
    parser.add_argument("--rules", nargs="+", default=["50:1", "100:20", "100:20:ndcg,map"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--valid", action="store_true", help="leave the test queries alone")
    options = parser.parse_args()
    folds = {data: folds_of(data) for data in options.data}
    if options.valid:
        folds = {data: [without_test(fold) for fold in parts] for data, parts in folds.items()}
    for ranker in options.rankers:
        systems = {}
        for rule in options.rules:
            patience, over, *companions = rule.split(":")
            settings = {"patience": int(patience), "select_over": int(over), "select_with": ",".join(companions)}
            systems[f"{ranker}, {rule}"] = ours(MAKERS[ranker], settings)
        race(folds, systems, options.seeds)


def without_test(fold: Fold) -> Fold:
    train, valid, _ = fold
    return (*train.split(0.75, 0.25), valid)


if __name__ == "__main__":
    main()
