"""NDCG over training time: tierank's trees, LightGBM, XGBoost and CatBoost.

    python -m benchmarks.curves
    python -m benchmarks.curves --data MQ2007-85 --folds 1 2 3 4 5 --png curves.png

All systems get the same numbers of trees, leaves, bins and threads, the same learning rate, and otherwise their own
defaults. CatBoost's trees are symmetric, so its number of leaves is the next power of two. Each system runs in its own
process, after a fit on a few queries that loads and compiles. Its clock (CPU seconds) starts with the data as arrays in
memory and covers everything that the system does up to the end of a round, including bins. NDCG@10 is that of the test
data after every few trees, evaluated by tierank while the clock is stopped. With several folds, the seconds and
NDCG@10 after each number of trees are means over the folds.

The systems take turns over several repeats, and the fastest repeat of each counts. The table has the CPU seconds after
which each first reached a level of NDCG@10: levels are between the first points of the curves and the best of all
points.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_WAIT_POLICY"] = "passive"  # waiting threads must not use CPU time

import numpy as np

import tierank
from tierank.report.tabulate import Table

MAX_BIN = 255
SHARES = (0.5, 0.75, 0.9, 0.95, 0.98, 1.0)  # shares of the way from the worst first point to the best point of all


class Shape(NamedTuple):
    """What all systems have in common."""

    n_trees: int
    n_leaves: int
    learning_rate: float
    n_jobs: int


class Trained(NamedTuple):
    """The clock at the start and after each tree, and a function that scores by the trees first to last - 1."""

    clock: list[float]
    score: Callable[[np.ndarray, int, int], np.ndarray]


def ours(ranker: Callable[..., tierank.Ranker]) -> Callable[[Any, Shape], Trained]:
    """A ranker of tierank, by ``fit``."""

    def train(data: Any, shape: Shape) -> Trained:
        settings = {"n_trees": shape.n_trees, "n_leaves": shape.n_leaves, "learning_rate": shape.learning_rate}
        clock = [time.process_time()]
        fitted = ranker(**settings, max_bin=MAX_BIN, n_jobs=shape.n_jobs).fit(
            data, callbacks=[lambda step: clock.append(time.process_time())], progress=False
        )
        return Trained(clock, lambda x, a, b: fitted.booster_.predict(x, start_iteration=a, num_iteration=b - a))

    return train


def lightgbm(data: Any, shape: Shape) -> Trained:
    """LightGBM's lambdarank."""
    import lightgbm as lgb

    params = {
        "objective": "lambdarank", "num_leaves": shape.n_leaves, "learning_rate": shape.learning_rate,
        "max_bin": MAX_BIN, "num_threads": shape.n_jobs, "verbosity": -1, "metric": "None",
    }  # fmt: skip
    clock = [time.process_time()]
    own = lgb.Dataset(data.features, data.ratings, group=data.lengths, params=params)
    model = lgb.train(params, own, shape.n_trees, callbacks=[lambda _: clock.append(time.process_time())])
    return Trained(clock, lambda x, a, b: model.predict(x, start_iteration=a, num_iteration=b - a, raw_score=True))


def xgboost(data: Any, shape: Shape) -> Trained:
    """XGBoost's rank:ndcg, leaf by leaf."""
    import xgboost as xgb

    params = {
        "objective": "rank:ndcg", "max_leaves": shape.n_leaves, "max_depth": 0, "grow_policy": "lossguide",
        "tree_method": "hist", "eta": shape.learning_rate, "max_bin": MAX_BIN, "nthread": shape.n_jobs,
        "disable_default_eval_metric": True,
    }  # fmt: skip
    queries = np.repeat(np.arange(data.n_queries), data.lengths)
    clock = [time.process_time()]
    own = xgb.QuantileDMatrix(data.features, data.ratings, qid=queries, max_bin=MAX_BIN, nthread=shape.n_jobs)
    model = xgb.Booster(params, [own])
    for number in range(shape.n_trees):
        model.update(own, number)
        clock.append(time.process_time())

    def score(x: np.ndarray, first: int, last: int) -> np.ndarray:
        return np.asarray(model.predict(xgb.DMatrix(x), iteration_range=(first, last), output_margin=True))

    return Trained(clock, score)


def catboost(data: Any, shape: Shape) -> Trained:
    """CatBoost's YetiRank."""
    import catboost as cb

    clock: list[float] = []

    class Clock:
        def after_iteration(self, _: object) -> bool:
            clock.append(time.process_time())
            return True

    params = {
        "loss_function": "YetiRank", "iterations": shape.n_trees, "depth": (shape.n_leaves - 1).bit_length(),
        "learning_rate": shape.learning_rate, "thread_count": shape.n_jobs, "verbose": False,
        "allow_writing_files": False, "border_count": MAX_BIN - 1,
    }  # fmt: skip
    features = np.array(data.features)
    queries = np.repeat(np.arange(data.n_queries), data.lengths)
    clock.append(time.process_time())
    model = cb.CatBoost(params).fit(cb.Pool(features, data.ratings, group_id=queries), callbacks=[Clock()])
    return Trained(clock, lambda x, a, b: np.asarray(model.predict(np.array(x), ntree_start=a, ntree_end=b)))


SYSTEMS: dict[str, Callable[[Any, Shape], Trained]] = {
    "tierank UMart": ours(tierank.UMart),
    "tierank UMart, stochastic": ours(partial(tierank.UMart.from_preset, "stochastic")),
    "tierank LambdaMART": ours(tierank.LambdaMART),
    "LightGBM lambdarank": lightgbm,
    "XGBoost rank:ndcg": xgboost,
    "CatBoost YetiRank": catboost,
}


def curve_of(system: str, folder: Path, shape: Shape, every: int) -> dict[str, list[float]]:
    """CPU seconds and NDCG@10 on test data after every few trees of one system."""
    train, test = tierank.read(folder / "train.tierank"), tierank.read(folder / "test.tierank")
    SYSTEMS[system](train.select(np.arange(min(20, train.n_queries))), shape._replace(n_trees=2))
    clock, score = SYSTEMS[system](train, shape)
    judge = tierank.Judge(test, ["ndcg@10"], n_jobs=1)
    total = np.zeros(test.n_documents)
    seconds, quality = [], []
    for first in range(0, shape.n_trees, every):
        last = min(first + every, shape.n_trees)
        total += score(test.features, first, last)
        seconds.append(clock[last] - clock[0])
        quality.append(float(np.nanmean(judge(total)["ndcg@10"])))
    return {"seconds": seconds, "ndcg": quality}


def in_own_process(system: str, folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "benchmarks.curves", "--one", system, str(folder)]
    for name in ("trees", "leaves", "rate", "jobs", "every"):
        command += [f"--{name}", str(getattr(options, name))]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    return json.loads(run.stdout.splitlines()[-1])


def measure(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """The curve of each system, with the clock of its fastest repeat."""
    curves: dict[str, dict[str, list[float]]] = {}
    for _ in range(options.repeats):
        for system in options.systems:
            curve = in_own_process(system, folder, options)
            if system not in curves or curve["seconds"][-1] < curves[system]["seconds"][-1]:
                curves[system] = curve
    return curves


def measure_fold(fold: int, options: argparse.Namespace) -> tuple[str, dict[str, dict[str, list[float]]]]:
    """What the training data are, and the curve of each system."""
    if options.data:
        train, _, test = tierank.read_fold(options.data, fold)
    else:
        train, test = tierank.make_ranking(options.queries * 3 // 2).split(2 / 3, 1 / 3)
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("train", train), ("test", test)):
            tierank.write(part, Path(folder) / f"{name}.tierank")
        size = f"{train.n_queries:,} queries, {train.n_documents:,} documents, {train.n_features} features"
        return size, measure(Path(folder), options)


def mean_of(curves: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """The mean of the curves of several folds, after each number of trees."""
    return {name: np.mean([curve[name] for curve in curves], axis=0).tolist() for name in curves[0]}


def first_reached(curve: dict[str, list[float]], level: float) -> float | None:
    """CPU seconds after which a curve first reaches a level, or None.

    >>> first_reached({"seconds": [1.0, 2.0], "ndcg": [0.3, 0.5]}, 0.4)
    2.0
    """
    reached = (second for second, value in zip(curve["seconds"], curve["ndcg"], strict=True) if value >= level)
    return next(reached, None)


def to_table(title: str, curves: dict[str, dict[str, list[float]]]) -> Table:
    """CPU seconds to levels, all trees and their NDCG@10; the first system to each level is bold."""
    lowest = min(curve["ndcg"][0] for curve in curves.values())
    highest = max(max(curve["ndcg"]) for curve in curves.values())
    levels = [lowest + share * (highest - lowest) for share in SHARES]
    times = [[first_reached(curve, level) for level in levels] for curve in curves.values()]
    rows = [
        [system, *("-" if t is None else f"{t:.2f}" for t in reached), *_summary(curve)]
        for (system, curve), reached in zip(curves.items(), times, strict=True)
    ]
    bold = set()
    for column in range(len(levels)):
        reached = {row: t[column] for row, t in enumerate(times) if t[column] is not None}
        bold.add((min(reached, key=reached.__getitem__), column + 1))
    columns = ["CPU seconds to NDCG@10 of", *(f"{level:.4f}" for level in levels)]
    return Table(title, [*columns, "all trees", "NDCG@10 then", "best NDCG@10"], rows, bold=bold)


def _summary(curve: dict[str, list[float]]) -> tuple[str, str, str]:
    return f"{curve['seconds'][-1]:.2f}", f"{curve['ndcg'][-1]:.4f}", f"{max(curve['ndcg']):.4f}"


def draw(curves: dict[str, dict[str, list[float]]], title: str, path: Path) -> None:
    """The curves as a picture."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for system, curve in curves.items():
        axes.plot(curve["seconds"], curve["ndcg"], label=system, linewidth=2.5 if "UMart" in system else 1.2)
    axes.set(xscale="log", xlabel="CPU seconds of training", ylabel="NDCG@10 on test data", title=title)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a folder of folds (default: generated data in the shape of MSLR-WEB)")
    parser.add_argument("--folds", type=int, nargs="+", default=[1], help="the folds to average (default: 1)")
    parser.add_argument("--queries", type=int, default=10_000, help="of generated data, and half as many for the test")
    parser.add_argument("--trees", type=int, default=200)
    parser.add_argument("--leaves", type=int, default=31)
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate (default: 0.1)")
    parser.add_argument("--jobs", type=int, default=1, help="threads of every system (default: 1)")
    parser.add_argument("--every", type=int, default=2, help="trees between two points of a curve (default: 2)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="SYSTEM")
    parser.add_argument("--png", type=Path, help="file to draw the curves into")
    parser.add_argument("--one", nargs=2, metavar=("SYSTEM", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        shape = Shape(options.trees, options.leaves, options.rate, options.jobs)
        print(json.dumps(curve_of(options.one[0], Path(options.one[1]), shape, options.every)))
        return
    by_fold = [measure_fold(fold, options) for fold in (options.folds if options.data else [0])]
    title = f"{by_fold[0][0]}; {options.trees} trees of {options.leaves} leaves, learning rate {options.rate:g}"
    curves = {system: mean_of([curves[system] for _, curves in by_fold]) for system in options.systems}
    print(to_table(title, curves).to_markdown())
    if options.png:
        draw(curves, title, options.png)


if __name__ == "__main__":
    main()
