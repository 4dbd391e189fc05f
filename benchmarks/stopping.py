"""When trees stop, and which round is kept. ``python -m benchmarks.stopping DATA ...``

DATA are those of ``benchmarks.stochastic``. Each ranker has its defaults except for ``patience`` and ``select_over``,
which ``--rules`` gives as pairs such as 100:20. NDCG@10 of the test queries is averaged over seeds and compared, query
by query, with that of the first rule; CPU seconds are those of one ``fit``. With ``--valid`` test queries are left
alone: the validation queries take their place, and a quarter of the training queries becomes validation data.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
from numpy.typing import NDArray

import tierank
from benchmarks.folds import Fold, pooled
from benchmarks.stochastic import folds_of, judge, ours
from tierank.significance import paired_p

MAKERS = {
    "LambdaMART": tierank.LambdaMART,
    "UMart": tierank.UMart,
    "stochastic": lambda **settings: tierank.UMart.from_preset("stochastic", **settings),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="folders, files, generated:N, mslr:N")
    parser.add_argument("--rankers", nargs="+", choices=MAKERS, default=list(MAKERS))
    parser.add_argument("--rules", nargs="+", default=["50:1", "100:20"], help="patience:select_over")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--valid", action="store_true", help="leave the test queries alone")
    options = parser.parse_args()
    print(f"{'data':14} {'ranker':10} {'patience:over':>13} {'NDCG@10':>8} {'difference':>11} {'p':>6} {'CPU s':>6}")
    found: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for data in options.data:
        folds = folds_of(data)
        folds = [without_test(fold) for fold in folds] if options.valid else folds
        for ranker in options.rankers:
            base = None
            for rule in options.rules:
                patience, over = map(int, rule.split(":"))
                values, seconds = judge(
                    ours(MAKERS[ranker], {"patience": patience, "select_over": over}), folds, options.seeds
                )
                base = values if base is None else base
                differences = (values - base)[np.isfinite(values)]
                p = float(paired_p(differences)) if differences.any() else 1.0
                print(
                    f"{Path(data).name:14} {ranker:10} {rule:>13} {np.nanmean(values):8.4f} {differences.mean():+11.4f}"
                    f" {p:6.3f} {seconds:6.1f}",
                    flush=True,
                )
                found.setdefault((ranker, rule), []).append(differences)
    for (ranker, rule), differences in found.items():
        if rule != options.rules[0]:
            print(f"{ranker}, {rule} - {options.rules[0]}, {pooled(differences)}")


def without_test(fold: Fold) -> Fold:
    train, valid, _ = fold
    return (*train.split(0.75, 0.25), valid)


if __name__ == "__main__":
    main()
