"""The quality and cost of Blend, and how much of it one distilled ranker keeps.

    python -m benchmarks.blending DATA ... --out OUT

DATA are folders with the parts or folds that ``tierank.read_fold`` reads, files, ``generated:N`` or ``mslr:N`` for
``make_ranking`` data of N queries with 40 or 136 features, split 60/20/20, with another set for each "fold", or
``train.csv`` of Kaggle's Home Depot competition, for which all systems get the match features. Systems:

lambdamart   ``LambdaMART()``
bag          LambdaMART with Blend's treatment: copies of features within the query, three settings averaged, four turns
blend        ``Blend()``
full         ``Blend.from_preset("full")``, twelve members
former       ``Blend.from_preset("full", trees="lambdamart", n_trees=500)``, the default of earlier versions
stochastic   ``Blend(n_seeds=0, linear=False)``: only its trees, which take four turns
1x           its preset
no torch     ``Blend(n_seeds=0)``: the blend of an installation without torch
equal        ``Blend(weights="equal")``
distilled    ``distill(full, train, LambdaMART(query_features=True), valid=valid)``
network      ``distill(full, train, URank(), valid=valid)``

Fixed before any test part was used: **the only primary comparison is blend - bag, NDCG@10 under the rule wsdm20**,
paired over the test queries, and pooled over the data sets by Stouffer's method with weights proportional to the square
root of the number of queries. All other comparisons are exploratory; their p-values are corrected by Holm's method over
all rows that are printed. Rounds, weights of families and everything else are chosen on training and validation parts.

The values of each query are averaged over seeds. CPU seconds are those of one ``fit`` on one thread. OUT keeps the
values of each cell, so a run can be interrupted. Cells of other versions, ``DATA-FOLD-SEED-NAME.npz`` with the arrays
``values`` and ``cpu``, can be added to it: ``--systems lambdamart bag blend NAME``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
from numpy.typing import NDArray

import tierank
from benchmarks.folds import Fold, pooled
from benchmarks.stochastic import folds_of
from tierank.metrics.significance import holm, paired_p

METRIC, RULE, BASELINE = "ndcg@10", "wsdm20", "bag"
LAMBDAMART = {"trees": "lambdamart", "n_trees": 500, "rotate": True}
BAG = LAMBDAMART | {"n_configs": 3, "n_seeds": 0, "linear": False, "weights": "equal"}
FITTED: dict[str, Callable[..., tierank.Ranker]] = {
    "lambdamart": tierank.LambdaMART,
    "bag": lambda **given: tierank.Blend(**BAG, **given),
    "blend": tierank.Blend,
    "full": lambda **given: tierank.Blend.from_preset("full", **given),
    "no torch": lambda **given: tierank.Blend(n_seeds=0, **given),
    "former": lambda **given: tierank.Blend(n_seeds=1, **LAMBDAMART, **given),
    "stochastic": lambda **given: tierank.Blend(n_seeds=0, linear=False, **given),
    "equal": lambda **given: tierank.Blend(weights="equal", **given),
    "1x": lambda **given: tierank.Blend.from_preset("1x", **given),
}
DISTILLED: dict[str, Callable[..., tierank.Ranker]] = {
    "distilled": lambda **given: tierank.LambdaMART(query_features=True, **given),
    "network": tierank.URank,
}


@cache
def all_folds(data: str) -> list[Fold]:
    return folds_of(data)


def measure(systems: list[str], data: str, fold: int, seed: int, out: Path) -> None:
    """Fit the cells that are missing, and store their results on the test part."""
    place = {name: out / f"{Path(data).name}-{fold}-{seed}-{name}.npz" for name in systems}
    missing = [name for name, file in place.items() if not file.exists()]
    unknown = set(missing) - set(FITTED) - set(DISTILLED)
    if unknown:
        raise SystemExit(f"{out}: expected cells of {', '.join(sorted(unknown))}, got none for {data}, fold {fold}")
    if not missing:
        return
    train, valid, test = all_folds(data)[fold - 1]
    given: dict[str, Any] = {"seed": seed, "n_jobs": 1}
    blend = None
    for name in sorted(missing, key=lambda name: name in DISTILLED):
        start = time.process_time()
        if name in DISTILLED:
            blend = blend or tierank.Blend.from_preset("full", **given).fit(train, valid=valid)
            start = time.process_time()
            ranker = tierank.distill(blend, train, DISTILLED[name](**given), valid=valid)
        else:
            ranker = FITTED[name](**given).fit(train, valid=valid)
        cpu, start = time.process_time() - start, time.process_time()
        scores = ranker.predict(test)
        predict = time.process_time() - start
        blend = ranker if name == "blend" else blend
        values = tierank.evaluate(test, scores, METRIC, rule=RULE, n_jobs=1).per_query[METRIC]
        np.savez(place[name], values=values, cpu=cpu, predict=predict / test.n_documents)
        weights = getattr(ranker, "weights_", "")
        print(f"{place[name].stem}: {np.nanmean(values):.4f}, {cpu:.1f} s {weights}", flush=True)


def collect(name: str, data: str, options: argparse.Namespace) -> tuple[NDArray[np.float64], float, float]:
    """NDCG@10 of every test query, averaged over seeds; CPU seconds of a fit; microseconds per document."""
    cells = [
        [np.load(options.out / f"{Path(data).name}-{fold}-{seed}-{name}.npz") for fold in options.folds]
        for seed in range(options.seeds)
    ]
    values = np.mean([np.concatenate([cell["values"] for cell in row]) for row in cells], axis=0)
    cpu = float(np.mean([cell["cpu"] for row in cells for cell in row]))
    predict = float(np.mean([cell["predict"] for row in cells for cell in row if "predict" in cell] or [np.nan]))
    return values[np.isfinite(values)], cpu, 1e6 * predict


def table(options: argparse.Namespace) -> Iterator[str]:
    """The rows: each system on each data set next to the bag, then pooled."""
    found = {data: {name: collect(name, data, options) for name in options.systems} for data in options.data}
    compared = [name for name in options.systems if name != BASELINE]
    cells = {(data, name): rows[name][0] - rows[BASELINE][0] for data, rows in found.items() for name in compared}
    single = {key: float(paired_p(values)) if values.any() else 1.0 for key, values in cells.items()}
    corrected = dict(zip(single, holm(np.array(list(single.values()))), strict=True))
    yield f"| data | system | NDCG@10 | minus {BASELINE} | p | p, Holm | CPU / lambdamart | us per document |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for data, rows in found.items():
        for name, (values, cpu, predict) in rows.items():
            tested = ["", "", ""]
            if name != BASELINE:
                tested = [
                    f"{cells[data, name].mean():+.4f}",
                    f"{single[data, name]:.4f}",
                    f"{corrected[data, name]:.3f}",
                ]
            ratio = f"{cpu / rows['lambdamart'][1]:.1f}"
            shown = [f"{Path(data).name}, {len(values)} queries", name, f"{values.mean():.4f}", *tested, ratio]
            yield f"| {' | '.join([*shown, f'{predict:.1f}'])} |"
    for name in compared:
        yield f"{name} - {BASELINE}, {pooled([cells[data, name] for data in found])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="folders, files, generated:N, mslr:N")
    parser.add_argument("--out", type=Path, required=True, help="folder that keeps the values of each cell")
    parser.add_argument("--folds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--systems", nargs="+", default=["lambdamart", BASELINE, "blend", "distilled"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    small = tierank.make_ranking(20, n_features=3, mean_length=8, max_length=12)
    tierank.Blend(n_trees=3, max_epochs=1, n_jobs=1).fit(small)  # compiles
    for data in options.data:
        for fold in options.folds:
            for seed in range(options.seeds):
                measure(options.systems, data, fold, seed, options.out)
    for row in table(options):
        print(row, flush=True)


if __name__ == "__main__":
    main()
