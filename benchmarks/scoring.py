"""Speed of scoring compared with LightGBM's predict, on one thread.

Without options: the figures of the README and docs; the systems take turns on each list. CPU time (or p50 of wall-clock
time, for one list of 100) of the best of several rounds. ``--rankers``: every ranker, ONNX and C. ``--support``: which
model can be exported where.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import tierank
from tierank import RANKERS, TARGETS, ParameterError, RankingDataset
from tierank.export import Model
from tierank.rankers.blend import NETWORKS as NETWORKS_OF_BLEND
from tierank.rankers.blend import TREES as TREES_OF_BLEND
from tierank.rankers.model import Resources, Seen
from tierank.transforms import add_query_copies

System = Callable[[np.ndarray], object]

LENGTH = 1000
# Trees with features relative to the query.
COPIES = "umart-copies"
TREES = {"n_trees": 300, "n_leaves": 31, "n_jobs": 1}
NETWORK = {"max_epochs": 1, "n_jobs": 1}
BLEND = {"n_configs": 1, "n_seeds": 1, "rotate": False, "n_trees": 300, "max_epochs": 1, "n_jobs": 1}

# The rows of the support table: a model, and whether its data have missing values.
STANDARD = {"feature_transform": "standard"}
POINTWISE = STANDARD | {"encoding": "none"}
MODELS: dict[str, tuple[tierank.rankers.Ranker, bool]] = {
    "`umart`, `lambdamart`": (tierank.UMart(), False),
    "the same, on data with missing values": (tierank.UMart(), True),
    "the same, with `use_missing=False`": (tierank.UMart(use_missing=False), True),
    "`umart` with `zero_as_missing=True`": (tierank.UMart(zero_as_missing=True), False),
    "networks as they are; one transform by query": (tierank.URank(), False),
    'networks with `feature_transform="standard", encoding="none"`': (tierank.URank(**POINTWISE), False),
    "networks with these, on data with missing values": (tierank.URank(**POINTWISE), True),
    'networks with `feature_transform="none", encoding="none"`': (
        tierank.URank(feature_transform="none", encoding="none"),
        True,
    ),
    'networks with `feature_transform="log1p"` or `"quantile"`, `encoding="none"`': (
        tierank.URank(feature_transform="quantile", encoding="none"),
        False,
    ),
    'networks with several transforms or `encoding="piecewise"`, none by query': (
        tierank.URank(**STANDARD),
        False,
    ),
    'the paper\'s `activation="elu"`; `gelu`, `silu`': (tierank.URank(activation="elu", **POINTWISE), False),
    "`n_seeds=3`": (tierank.URank(n_seeds=3, **POINTWISE), False),
    '`uboost` with `feature_transform="standard", encoding="none"`': (tierank.UBoost(**POINTWISE), False),
    '`urboost` with `feature_transform="standard", encoding="none"`': (tierank.UrBoost(**POINTWISE), False),
    'the same with `n_learners=1, score_from="state"`': (
        tierank.UrBoost(n_learners=1, score_from="state", **POINTWISE),
        False,
    ),
    "`umart` on a network, `uboost` on trees (`base`)": (tierank.UMart(base=tierank.URank(**POINTWISE)), False),
    "`umart`, `lambdamart` with `query_features=True`": (tierank.UMart(query_features=True), False),
    "`linear`": (tierank.LinearRanker(), False),
    '`linear` with `feature_transform="standard"`': (tierank.LinearRanker(**STANDARD), False),
    "`linear` with `standard`, on data with missing values": (tierank.LinearRanker(**STANDARD), True),
    '`linear` with `feature_transform="none"`': (tierank.LinearRanker(feature_transform="none"), True),
    "`blend`": (tierank.Blend(), False),
    "`blend` with `n_seeds=0, linear=False`": (tierank.Blend(n_seeds=0, linear=False), False),
    '`network="attention"`, `"groupwise"`': (tierank.URank(network="attention", **POINTWISE), False),
}


def support_table() -> str:
    """Which model can be exported where, according to the targets, as Markdown; reasons below the table."""
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
        skeleton = ranker.export_skeleton(data, seen, ranker.checked_settings())
        TARGETS[target].check(Model(skeleton, data.n_features, None, has_missing))
    except ParameterError as error:
        return str(error).removeprefix(f"{target}: ")
    return None


def _cell(refusal: str | None, reasons: list[str]) -> str:
    if refusal is None:
        return "yes"
    if refusal not in reasons:
        reasons.append(refusal)
    return f"no ({reasons.index(refusal) + 1})"


def make_systems(folder: Path, names: list[str]) -> dict[str, System]:
    """The systems that score a list of documents, by name; LightGBM's own predict of uMart's trees first."""
    train = tierank.make_ranking(200, seed=1)
    systems: dict[str, System] = {}
    for name in names:
        ranker = _quick(name).fit(train)
        if hasattr(ranker.model_, "booster") and name != COPIES:
            booster = ranker.model_.booster
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
    if name == "linear":
        return tierank.LinearRanker(n_jobs=1)
    if name == COPIES:
        return tierank.UMart(query_features=True, **TREES)
    return RANKERS[name](**(TREES if hasattr(RANKERS[name], "importance") else NETWORK))


def measure(systems: dict[str, System], n_lists: int) -> dict[str, np.ndarray]:
    """Wall-clock and CPU seconds of each list for each system; all systems take turns on each list."""
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


class Goal(NamedTuple):
    """A row of the table: two systems that give the same scores, and the lists that both score."""

    name: str
    ours: System
    theirs: System
    lists: list[np.ndarray]
    clock: str
    most: float


def make_goals(n_lists: int) -> Iterator[Goal]:
    """The rows of the table, one after the other: training takes longer than scoring."""
    train = tierank.make_ranking(200, seed=1)
    lists = make_lists(n_lists, LENGTH)
    for n_leaves, most in ((31, 0.06), (63, 0.15), (127, 0.25), (255, 0.35)):
        ranker = tierank.UMart(**TREES | {"n_leaves": n_leaves}).fit(train)
        yield tree_goal(f"300 trees of {n_leaves} leaves, lists of {LENGTH:,}", ranker, lists, "CPU", most)
        if n_leaves == TREES["n_leaves"]:
            short = make_lists(4 * n_lists, 100)
            yield tree_goal(f"300 trees of {n_leaves} leaves, one list of 100", ranker, short, "wall-clock p50", 0.10)
    ranker = tierank.UMart(**TREES).fit(with_gaps(train))
    gaps = [drop_values(rows, seed) for seed, rows in enumerate(lists)]
    yield tree_goal(f"the same trees, a tenth of the values missing, lists of {LENGTH:,}", ranker, gaps, "CPU", 0.10)
    small = {"rotate": False, "n_trees": 300, "max_epochs": 1, "n_jobs": 1}
    blend = tierank.Blend(trees="lambdamart", n_configs=3, n_seeds=2, rotate=True, **small).fit(train)
    n = len(blend.members_)
    yield Goal(
        f"Blend of {n}, lists of 100, 10 at once", by_queries(blend.predict), plain_blend(blend), lists, "CPU", 0.25
    )


def tree_goal(name: str, ranker: tierank.rankers.Ranker, lists: list[np.ndarray], clock: str, most: float) -> Goal:
    booster = ranker.model_.booster
    return Goal(
        name, ranker.predict, lambda rows: booster.predict(rows, raw_score=True, num_threads=1), lists, clock, most
    )


def by_queries(predict: Callable[..., np.ndarray]) -> System:
    """Ten queries at once."""
    return lambda rows: predict(rows, qid=np.arange(len(rows)) // (len(rows) // 10))


def plain_blend(blend: tierank.Blend) -> System:
    """The same members, each scored by LightGBM or torch; the scores are not even averaged."""
    boosters = [member.model.booster for member in blend.members_ if member.family == TREES_OF_BLEND]
    networks = [member.model for member in blend.members_ if member.family == NETWORKS_OF_BLEND]
    others = [member.model for member in blend.members_ if member.family not in (TREES_OF_BLEND, NETWORKS_OF_BLEND)]

    def score(rows: np.ndarray, qid: np.ndarray) -> list[np.ndarray]:
        data = RankingDataset(rows, qid=qid)
        copies = add_query_copies(data, 1).features
        scores = [booster.predict(copies, raw_score=True, num_threads=1) for booster in boosters]
        for model in networks:
            lists = model.lists(data, Resources(1))
            scores += [lists.torch_scores(network) for network in model.networks("cpu")]
        return scores + [model.predict(data, Resources(1)) for model in others]

    return by_queries(score)


def make_lists(n_lists: int, length: int) -> list[np.ndarray]:
    features = tierank.make_ranking(n_lists * length // 50, seed=2).features
    return [np.ascontiguousarray(features[k * length : (k + 1) * length]) for k in range(n_lists)]


def drop_values(rows: np.ndarray, seed: int) -> np.ndarray:
    return np.where(np.random.default_rng(seed).random(rows.shape) < 0.1, np.float32(np.nan), rows)


def with_gaps(data: RankingDataset) -> RankingDataset:
    return data.with_features(drop_values(data.features, 0), None)


def best_times(goal: Goal, n_rounds: int) -> tuple[float, float]:
    """Seconds per list, ours and theirs: the median list of the best round. Rounds are short, to find quiet moments."""
    clock = time.process_time if goal.clock == "CPU" else time.perf_counter
    systems = goal.ours, goal.theirs
    for run in systems:
        run(goal.lists[0])
    best = [np.inf, np.inf]
    for k in range(n_rounds):
        seconds = np.zeros((2, len(goal.lists)))
        for number, rows in enumerate(goal.lists):
            for system in ((0, 1), (1, 0))[(k + number) % 2]:  # neither always follows the other
                start = clock()
                systems[system](rows)
                seconds[system, number] = clock() - start
        best = np.minimum(best, np.median(seconds, axis=1))
    return float(best[0]), float(best[1])


def print_goals(n_lists: int, n_rounds: int) -> None:
    print("| | clock | tierank, ms | LightGBM, ms | ratio | goal |\n|---|---|---:|---:|---:|---:|")
    for goal in make_goals(n_lists):
        ours, theirs = best_times(goal, n_rounds)
        ratio = ours / theirs
        print(
            f"| {goal.name} | {goal.clock} | {ours * 1e3:.3f} | {theirs * 1e3:.2f} | {ratio:.3f} | {goal.most:.2f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--support", action="store_true", help="print which model goes where, and nothing else")
    parser.add_argument("--lists", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rankers", nargs="+", choices=[*RANKERS, COPIES], help="print the speed of these rankers")
    options = parser.parse_args()
    if options.support:
        print(support_table())
    elif options.rankers:
        print_rankers(options.rankers, options.lists)
    else:
        print_goals(options.lists, options.rounds)


def print_rankers(names: list[str], n_lists: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(make_systems(Path(folder), names), n_lists)
    print(f"{n_lists} lists of {LENGTH:,} documents, 136 features, one thread; milliseconds of a list")
    print("| | CPU us per document | / predict of LightGBM | p50 | p99 |\n|---|---:|---:|---:|---:|")
    base = 0.0
    for name, (wall, cpu) in seconds.items():
        middle = float(np.median(cpu))
        base = middle if name.startswith("LightGBM") else base
        ratio = f"{middle / base:.2f}" if "mart" in name and COPIES not in name else ""
        p50, p99 = np.percentile(wall * 1e3, [50, 99])
        print(f"| {name} | {middle / LENGTH * 1e6:.2f} | {ratio} | {p50:.2f} | {p99:.2f} |")


if __name__ == "__main__":
    main()
