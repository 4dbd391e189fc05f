"""Speed of scoring: every ranker's predict, ONNX and C beside LightGBM's own predict. ``--support``: what goes where.

One thread, lists of 1,000 documents, all systems in turn on each list. Ratios are of CPU time (the median list),
p50 and p99 of wall-clock time.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import tierank
from tierank import RANKERS, TARGETS, ParameterError, RankingDataset
from tierank.export import Model
from tierank.training.model import Seen

LENGTH = 1000
# Trees that see where a value stands in its query.
COPIES = "umart-copies"
TREES = {"n_trees": 300, "n_leaves": 31, "n_jobs": 1}
NETWORK = {"max_epochs": 1, "n_jobs": 1}
BLEND = {"n_configs": 1, "n_seeds": 1, "rotate": False, "n_trees": 300, "max_epochs": 1, "n_jobs": 1}

# The rows of the table of what goes where: a model, and whether its data have missing values.
POINTWISE = {"feature_transform": "standard"}
MODELS: dict[str, tuple[tierank.rankers.Ranker, bool]] = {
    "`umart`, `lambdamart`": (tierank.UMart(), False),
    "the same, on data with missing values": (tierank.UMart(), True),
    "the same, with `use_missing=False`": (tierank.UMart(use_missing=False), True),
    "`umart` with `zero_as_missing=True`": (tierank.UMart(zero_as_missing=True), False),
    "networks as they are (`query_minmax`), `query_log1p`": (tierank.URank(), False),
    'networks with `feature_transform="standard"`': (tierank.URank(**POINTWISE), False),
    "networks with `standard`, on data with missing values": (tierank.URank(**POINTWISE), True),
    'networks with `feature_transform="none"`': (tierank.URank(feature_transform="none"), True),
    'networks with `feature_transform="log1p"` or `"quantile"`': (tierank.URank(feature_transform="quantile"), False),
    'the paper\'s `activation="elu"`; `gelu`, `silu`': (tierank.URank(activation="elu", **POINTWISE), False),
    "`n_seeds=3`": (tierank.URank(n_seeds=3, **POINTWISE), False),
    '`uboost` with `feature_transform="standard"`': (tierank.UBoost(**POINTWISE), False),
    '`urboost` with `feature_transform="standard"`': (tierank.UrBoost(**POINTWISE), False),
    'the same with `n_learners=1, score_from="state"`': (
        tierank.UrBoost(n_learners=1, score_from="state", **POINTWISE),
        False,
    ),
    "`umart` on a network, `uboost` on trees (`base`)": (tierank.UMart(base=tierank.URank(**POINTWISE)), False),
    "`umart`, `lambdamart` with `query_features=True`": (tierank.UMart(query_features=True), False),
    "`blend`": (tierank.Blend(), False),
    "`blend` with `n_seeds=0`": (tierank.Blend(n_seeds=0), False),
    '`network="attention"`, `"groupwise"`': (tierank.URank(network="attention", **POINTWISE), False),
}


def support_table() -> str:
    """Which model goes where, asked of the targets themselves, as Markdown; reasons below the table."""
    data = {has_missing: _sample(has_missing) for has_missing in (False, True)}
    reasons: list[str] = []
    lines = [f"| model | {' | '.join(TARGETS)} |", "|---" * (len(TARGETS) + 1) + "|"]
    for name, (ranker, has_missing) in MODELS.items():
        cells = [_cell(_refusal(ranker, target, data[has_missing], has_missing), reasons) for target in TARGETS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1)), ""])


def _sample(has_missing: bool) -> RankingDataset:
    features = np.arange(12, dtype=np.float32).reshape(6, 2)
    if has_missing:
        features[0, 0] = np.nan
    return RankingDataset(features, [0, 1, 2, 0, 1, 2], [1, 1, 1, 2, 2, 2])


def _refusal(ranker: tierank.Ranker, target: str, data: RankingDataset, has_missing: bool) -> str | None:
    seen = Seen(data.n_features, has_missing=has_missing, longest_query=3)
    try:
        TARGETS[target].check(Model(ranker.outline(data, seen), data.n_features, None, has_missing))
    except ParameterError as error:
        return str(error).removeprefix(f"{target}: ")
    return None


def _cell(refusal: str | None, reasons: list[str]) -> str:
    if refusal is None:
        return "yes"
    if refusal not in reasons:
        reasons.append(refusal)
    return f"no ({reasons.index(refusal) + 1})"


def make_systems(folder: Path, names: list[str]) -> dict[str, Callable[[np.ndarray], object]]:
    """What scores a list of documents, by name; LightGBM's own predict of uMart's trees first."""
    train = tierank.make_ranking(200, seed=1)
    systems: dict[str, Callable[[np.ndarray], object]] = {}
    for name in names:
        ranker = _quick(name).fit(train)
        if hasattr(ranker, "_booster") and name != COPIES:
            booster = ranker._booster()
            systems[f"LightGBM's predict, trees of {name}"] = lambda rows, booster=booster: booster.predict(
                rows, raw_score=True, num_threads=1
            )
        systems[f"{name}.predict"] = lambda rows, ranker=ranker: ranker.predict(rows, qid=np.zeros(len(rows)))
        for target in ("onnx", "c"):
            ranker.export(folder / f"{name}.{target}", to=target)
            run = TARGETS[target].open(folder / f"{name}.{target}")
            systems[f"{name}, {target}"] = lambda rows, run=run: run(rows, np.array([0, len(rows)]))
    return systems


def _quick(name: str) -> tierank.rankers.Ranker:
    if name == "blend":
        return tierank.Blend(**BLEND)
    if name == COPIES:
        return tierank.UMart(query_features=True, **TREES)
    return RANKERS[name](**(TREES if hasattr(RANKERS[name], "importance") else NETWORK))


def measure(systems: dict[str, Callable[[np.ndarray], object]], n_lists: int) -> dict[str, np.ndarray]:
    """Wall-clock and CPU seconds of each list for each system, all systems in turn on each list."""
    features = tierank.make_ranking(n_lists * LENGTH // 100, seed=2).features
    lists = [np.ascontiguousarray(features[k * LENGTH : (k + 1) * LENGTH]) for k in range(n_lists)]
    seconds = {name: np.zeros((2, n_lists)) for name in systems}
    for run in systems.values():
        run(lists[0])
    for k, rows in enumerate(lists):
        order = np.random.default_rng(k).permutation(list(systems))  # no system always follows the same other
        for name in order.tolist():
            start = time.perf_counter(), time.process_time()
            systems[name](rows)
            seconds[name][:, k] = time.perf_counter() - start[0], time.process_time() - start[1]
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--support", action="store_true", help="print which model goes where, and nothing else")
    parser.add_argument("--lists", type=int, default=100)
    parser.add_argument("--rankers", nargs="+", default=[*RANKERS, COPIES], choices=[*RANKERS, COPIES])
    options = parser.parse_args()
    if options.support:
        print(support_table())
        return
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(make_systems(Path(folder), options.rankers), options.lists)
    print(f"{options.lists} lists of {LENGTH:,} documents, 136 features, one thread; milliseconds of a list")
    print("| | CPU us a document | of LightGBM's predict | p50 | p99 |\n|---|---:|---:|---:|---:|")
    base = 0.0
    for name, (wall, cpu) in seconds.items():
        middle = float(np.median(cpu))
        base = middle if name.startswith("LightGBM") else base
        ratio = f"{middle / base:.2f}" if "mart" in name and COPIES not in name else ""
        p50, p99 = np.percentile(wall * 1e3, [50, 99])
        print(f"| {name} | {middle / LENGTH * 1e6:.2f} | {ratio} | {p50:.2f} | {p99:.2f} |")


if __name__ == "__main__":
    main()
