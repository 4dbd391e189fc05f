"""How well the rankers rank, and at what price, beside LightGBM, XGBoost and CatBoost. ``python -m benchmarks.quality``

DATA are names of folders in ``--data``, or folders and files as for ``benchmarks.stochastic``; ``generated:N``,
``mslr:N`` and ``short:N`` are ``make_ranking`` data of N queries with 30 documents of 40 features, 120 of 136 and 10 of
25, and in ``boxes:N`` lists of 10 have ratings that only trees learn, all with other queries for each fold. What does
not exist is skipped. Each fold learns from three parts, validates on one and tests on one. Systems:

linear, lambdamart, umart, urank, blend   ``LinearRanker()``, ``LambdaMART()``, ``UMart()``, ``URank()``, ``Blend()``
stochastic, 10 draws   ``UMart.from_preset("stochastic")``, also with ``n_draws=10``
full, 1x     presets of ``Blend``
no torch     ``Blend(n_seeds=0)``: the blend of an installation without torch
equal        ``Blend(weights="equal")``
bag          LambdaMARTs on samples of queries and features, each with another quarter of the training and validation
             queries to stop by, averaged as a blend averages; as many as take the CPU time of ``blend``
bag+         the same with ``query_features=True``, as the trees of a blend have them
distilled    ``distill(full, train, LambdaMART(query_features=True), valid=valid)``, without the time of the full blend
lightgbm, xgboost   lambdarank and rank:ndcg with the defaults of their libraries, 500 trees, patience 50
yetirank     CatBoost's YetiRank with its defaults, 1,000 trees, patience 50

NDCG@10 under the rule wsdm20, averaged over ``--seeds``; lambdamart, umart and linear draw nothing, so their seeds are
all the same. Each row is compared with lambdamart by the paired t-test over test queries; Holm's method
corrects the p-values of all rows. Below, differences of two systems are pooled over the sets: Stouffer's method with
weights proportional to the square root of the number of queries, and a t-test over folds, which also counts what
training on other queries changes. CPU is the training time on one thread as a multiple of lambdamart's; the systems of
a fold take turns. ``--out`` keeps the values of each cell, so a run can be interrupted and extended.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
from numpy.typing import NDArray

import tierank
from benchmarks.folds import Fold, pooled
from benchmarks.stochastic import folds_of
from tierank.metrics.significance import holm, paired_p
from tierank.rankers.blend import take_turns
from tierank.rankers.selection import mean_of_standardised

METRIC, RULE, BASELINE = "ndcg@10", "wsdm20", "lambdamart"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
DATA = ("OHSUMED", "MQ2008", "LightGBM-example/rank.train", "generated:300", "short:544")
Scores = NDArray[np.float64]
OURS: dict[str, Callable[..., tierank.Ranker]] = {
    "linear": lambda seed, **given: tierank.LinearRanker(**given),
    "lambdamart": tierank.LambdaMART,
    "umart": tierank.UMart,
    "stochastic": lambda **given: tierank.UMart.from_preset("stochastic", **given),
    "10 draws": lambda **given: tierank.UMart.from_preset("stochastic", n_draws=10, **given),
    "urank": tierank.URank,
    "blend": tierank.Blend,
    "full": lambda **given: tierank.Blend.from_preset("full", **given),
    "1x": lambda **given: tierank.Blend.from_preset("1x", **given),
    "no torch": lambda **given: tierank.Blend(n_seeds=0, **given),
    "equal": lambda **given: tierank.Blend(weights="equal", **given),
}
# The function of benchmarks.peers, and the library's defaults where that has others.
PEERS = {
    "lightgbm": ("lightgbm", {"learning_rate": 0.1}),
    "xgboost": ("xgboost", {"learning_rate": 0.3}),
    "yetirank": ("catboost", {"iterations": 1000}),
}
BAGS: dict[str, dict[str, Any]] = {"bag": {}, "bag+": {"query_features": True}}
SAMPLED = {"feature_fraction": 0.7, "bagging_fraction": 0.8, "bagging_freq": 1, "bagging_by_query": True}
SYSTEMS = (*OURS, *BAGS, "distilled", *PEERS)
DEFAULT = ("linear", "lambdamart", "umart", "stochastic", "urank", "blend", *BAGS, *PEERS)
PAIRS = (
    ("blend", "yetirank"), ("blend", "lambdamart"), ("blend", "bag"), ("blend", "bag+"), ("full", "blend"),
    ("blend", "1x"), ("blend", "equal"), ("no torch", "lambdamart"), ("distilled", "lambdamart"),
    ("stochastic", "10 draws"), ("stochastic", "lambdamart"), ("stochastic", "yetirank"), ("umart", "lambdamart"),
    ("urank", "lambdamart"), ("linear", "lambdamart"), ("lambdamart", "lightgbm"), ("lambdamart", "xgboost"),
    ("lambdamart", "yetirank"),
)  # fmt: skip


class Cell(NamedTuple):
    """NDCG@10 of each test query of a fold, and the CPU seconds of training."""

    values: NDArray[np.float64]
    cpu: float


@cache
def all_folds(data: str) -> list[Fold]:
    return folds_of(data)


def scores_of(name: str, fold: Fold, seed: int, budget: float) -> tuple[Scores, float]:
    """The scores of the test part, and the CPU seconds of training; ``budget`` is that of a bag."""
    train, valid, test = fold
    given: dict[str, Any] = {"seed": seed, "n_jobs": 1}
    start = time.process_time()
    if name in PEERS:
        from benchmarks import peers

        function, settings = PEERS[name]
        scores = getattr(peers, function)(train, valid, test, settings, seed)[1]
        return scores, time.process_time() - start
    if name in BAGS:
        return bag(fold, seed, budget, BAGS[name])
    if name == "distilled":
        full = OURS["full"](**given).fit(train, valid=valid)
        start = time.process_time()
        student = tierank.LambdaMART(query_features=True, **given)
        ranker = tierank.distill(full, train, student, valid=valid)
    else:
        ranker = OURS[name](**given).fit(train, valid=valid)
    cpu = time.process_time() - start
    return ranker.predict(test), cpu


def bag(fold: Fold, seed: int, budget: float, settings: dict[str, Any]) -> tuple[Scores, float]:
    """The mean of as many sampled LambdaMARTs as take this CPU time, one at least."""
    train, valid, test = fold
    start, found = time.process_time(), []
    turns = list(take_turns(train, valid, True, seed, 1))
    while (spent := time.process_time() - start) < budget or not found:
        learned, held_out = turns[len(found) % len(turns)]
        ranker = tierank.LambdaMART(seed=100 * seed + len(found), n_jobs=1, **SAMPLED, **settings)
        found.append(ranker.fit(learned, valid=held_out).predict(test))
    return mean_of_standardised(found, test), spent


def measure(systems: list[str], data: str, fold: int, seed: int, out: Path) -> None:
    """Fit the cells of a fold that are missing, and store them."""
    budget = 0.0
    for name in sorted(systems, key=SYSTEMS.index):  # blend before the bags that have its time
        place = place_of(out, data, fold, seed, name)
        if not place.exists():
            if name in BAGS and not budget:
                raise SystemExit(f"{name}: expected blend among the systems, whose CPU time it has")
            scores, cpu = scores_of(name, all_folds(data)[fold - 1], seed, budget)
            test = all_folds(data)[fold - 1][2]
            values = tierank.evaluate(test, scores, METRIC, rule=RULE, n_jobs=1).per_query[METRIC]
            np.savez(place, values=values, cpu=cpu)
            print(f"{place.stem}: {np.nanmean(values):.4f}, {cpu:.1f} s", flush=True)
        if name == "blend":
            budget = float(np.load(place)["cpu"])


def place_of(out: Path, data: str, fold: int, seed: int, name: str) -> Path:
    return out / f"{Path(data).name}-{fold}-{seed}-{name}.npz"


def collect(name: str, data: str, options: argparse.Namespace) -> list[Cell]:
    """A cell for each fold: means over the seeds."""
    cells = []
    for fold in options.folds:
        kept = [np.load(place_of(options.out, data, fold, seed, name)) for seed in range(options.seeds)]
        values = np.mean([one["values"] for one in kept], axis=0)
        cells.append(Cell(values[np.isfinite(values)], float(np.mean([one["cpu"] for one in kept]))))
    return cells


Found = dict[str, dict[str, list[Cell]]]


def by_set(found: Found) -> Iterator[str]:
    """A row for each system on each data set, compared with the baseline."""
    differences = {
        (data, name): np.concatenate(
            [one.values - base.values for one, base in zip(cells, rows[BASELINE], strict=True)]
        )
        for data, rows in found.items()
        for name, cells in rows.items()
        if name != BASELINE
    }
    single = {key: p_of(values) for key, values in differences.items()}
    corrected = dict(zip(single, holm(np.array(list(single.values()))), strict=True))
    yield f"| data | system | NDCG@10 | minus {BASELINE} | standard error | p | p, Holm | CPU |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for data, rows in found.items():
        seconds = sum(cell.cpu for cell in rows[BASELINE])
        for name, cells in rows.items():
            values, tested = np.concatenate([cell.values for cell in cells]), [""] * 4
            if (key := (data, name)) in differences:
                error = differences[key].std(ddof=1) / np.sqrt(len(values))
                tested = [f"{differences[key].mean():+.4f}", f"{error:.4f}", f"{single[key]:.4f}"]
                tested.append(f"{corrected[key]:.3f}")
            cpu = f"{sum(cell.cpu for cell in cells) / seconds:.2f}"
            of_set = f"{Path(data).name}, {len(values)} queries"
            yield f"| {' | '.join([of_set, name, f'{values.mean():.4f}', *tested, cpu])} |"


def by_pair(found: Found) -> Iterator[str]:
    """The differences of two systems, pooled over the data sets."""
    for one, other in PAIRS:
        pairs = [
            list(zip(rows[one], rows[other], strict=True)) for rows in found.values() if {one, other} <= rows.keys()
        ]
        if not pairs:
            continue
        queries = [np.concatenate([a.values - b.values for a, b in folds]) for folds in pairs]
        over_folds = np.array([(a.values - b.values).mean() for folds in pairs for a, b in folds])
        ratios = [sum(a.cpu for a, _ in folds) / sum(b.cpu for _, b in folds) for folds in pairs]
        n_above = sum(values.mean() > 0 for values in queries)
        yield (
            f"{one} - {other}, {pooled(queries)}, p over {len(over_folds)} folds {p_of(over_folds):.2g}; above on"
            f" {n_above} of {len(pairs)} sets, CPU {min(ratios):.1f} to {max(ratios):.1f} times"
        )


def p_of(differences: NDArray[np.float64]) -> float:
    return float(paired_p(differences)) if len(differences) > 1 and differences.any() else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=list(DATA), metavar="DATA", help=f"by default {' '.join(DATA)}")
    parser.add_argument("--data", type=Path, default=SHARED, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("quality"), help="folder that keeps the values of each cell")
    parser.add_argument("--folds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(DEFAULT))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    systems = list(dict.fromkeys([BASELINE, *options.systems]))
    small = tierank.make_ranking(20, n_features=3, mean_length=8, max_length=12)
    for name in systems:  # compiles
        if name in OURS:
            OURS[name](seed=0, n_jobs=1).fit(small)
    found: Found = {}
    for one in options.sets:
        data = str(options.data / one) if (options.data / one).exists() else one
        if ":" not in one and not Path(data).exists():
            print(f"{one}: skipped, it does not exist", flush=True)
            continue
        for fold in options.folds:
            for seed in range(options.seeds):
                measure(systems, data, fold, seed, options.out)
        found[data] = {name: collect(name, data, options) for name in systems}
    for row in (*by_set(found), *by_pair(found)):
        print(row, flush=True)


if __name__ == "__main__":
    main()
