"""CPU time of one gradient of uMart compared with LightGBM's lambdarank: ``python -m benchmarks.gradients``.

The data has the shape of MSLR-WEB10K: queries of 120 documents on average with a long tail to 900, ratings 0 to 4 in
shares of 52, 32, 13, 2 and 1 %. uMart compares all pairs of different ratings unless the row says "truncated"; LightGBM
only those with a document among the first 30 (its default).

LightGBM's gradient cannot be called alone. Its time is that of a boosting round with the objective lambdarank, minus
that of a round with a Python objective that immediately returns two arrays; both grow a tree of two leaves on one
feature of four values, from the same starting scores. So the rest of a round is subtracted, and so is the transfer of
scores to Python, which lambdarank does not need: if anything, the difference favours LightGBM.

Times are CPU times of the process; all systems take turns, and the best of several rounds counts. "at rest": the scores
are those of the round before. "moving": each has moved by a normal deviate of 0.05 (the scores have a standard
deviation of 1), so that the order has to be repaired. LightGBM sorts from scratch in every round, so both are the same
for it.
"""

import os

os.environ["OMP_WAIT_POLICY"] = "passive"  # waiting threads must not use CPU time; read when LightGBM is loaded

import argparse
import time
from collections.abc import Callable

import lightgbm
import numpy as np

from tierank.losses import StochasticUMartObjective, UMartObjective

CONTESTANTS = {
    "uMart, window 1": (UMartObjective, {"window": 1}),
    "uMart, window 2": (UMartObjective, {"window": 2}),
    "uMart, window 10": (UMartObjective, {"window": 10}),
    "uMart, whole list": (UMartObjective, {"window": None}),
    "uMart, window 2, truncated at 30": (UMartObjective, {"window": 2, "truncation": 30}),
    "stochastic uMart, 3 draws": (StochasticUMartObjective, {}),
    "stochastic uMart, 10 draws": (StochasticUMartObjective, {"n_draws": 10}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of one gradient of uMart beside LightGBM's lambdarank.")
    parser.add_argument("--queries", type=int, nargs="+", default=[2_000, 10_000], help="numbers of queries")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of which the best counts (default: 9)")
    parser.add_argument("--threads", type=int, default=1, help="threads of every contestant (default: 1)")
    arguments = parser.parse_args()
    start = time.process_time()
    UMartObjective().prepare([1, 0], [0, 2]).gradients([0.0, 1.0])
    print(
        f"first gradient in this process: {time.process_time() - start:.2f} s (compiling, or loading what is compiled)"
    )
    for n_queries in arguments.queries:
        compare(n_queries, arguments.rounds, arguments.threads)


def compare(n_queries: int, n_rounds: int, n_threads: int) -> None:
    ratings, sizes, scores = web_search(n_queries)
    lightgbm_round, empty_round = lightgbm_rounds(ratings, sizes, scores, n_threads)
    offsets = np.concatenate([[0], sizes.cumsum()])
    objectives = {
        name: objective(n_jobs=n_threads, **chosen).prepare(ratings, offsets)
        for name, (objective, chosen) in CONTESTANTS.items()
    }
    rng = np.random.default_rng(1)
    times: dict[str, list[float]] = {}
    for _ in range(n_rounds):
        moved = scores + 0.05 * rng.normal(size=len(scores))
        times.setdefault("lambdarank", []).append(cpu_time(lightgbm_round))
        times.setdefault("empty", []).append(cpu_time(empty_round))
        for name, objective in objectives.items():
            objective.gradients(scores)
            times.setdefault(f"{name} at rest", []).append(cpu_time(lambda o=objective: o.gradients(scores)))
            times.setdefault(f"{name} moving", []).append(cpu_time(lambda o=objective, s=moved: o.gradients(s)))
    best = {name: min(seconds) for name, seconds in times.items()}
    native = best["lambdarank"] - best["empty"]
    print(
        f"\n{n_queries:,} queries, {len(ratings):,} documents, {n_threads} thread(s): CPU ms of a gradient, x LightGBM"
    )
    print(f"{'':36}{'at rest':>10}{'':>8}{'moving':>10}")
    print(f"{'LightGBM lambdarank, truncated at 30':36}{native * 1e3:10.1f}{1:7.2f}x{native * 1e3:10.1f}{1:7.2f}x")
    for name in objectives:
        row = (best[f"{name} {state}"] for state in ("at rest", "moving"))
        print(f"{name:36}" + "".join(f"{seconds * 1e3:10.1f}{seconds / native:7.2f}x" for seconds in row))


def web_search(n_queries: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ratings, sizes of the queries, and scores that correlate with the ratings."""
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.gamma(2.6, 120 / 2.6, n_queries).astype(int) + 1, 1, 900)
    ratings = rng.choice(5, sizes.sum(), p=[0.52, 0.32, 0.13, 0.02, 0.01])
    scores = 0.3 * ratings + rng.normal(size=len(ratings))
    return ratings, sizes, scores / scores.std()


def lightgbm_rounds(
    ratings: np.ndarray, sizes: np.ndarray, scores: np.ndarray, n_threads: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """One boosting round of LightGBM with lambdarank, and one with an objective that does nothing."""
    rng = np.random.default_rng(2)
    feature = rng.integers(0, 4, (len(ratings), 1)).astype(np.float32)
    parameters = {"num_leaves": 2, "learning_rate": 1e-6, "verbose": -1, "num_threads": n_threads}
    data = lightgbm.Dataset(feature, ratings, group=sizes, init_score=scores, params=parameters)
    lambdarank = lightgbm.Booster(parameters | {"objective": "lambdarank", "lambdarank_truncation_level": 30}, data)
    empty = lightgbm.Booster(parameters | {"objective": "none"}, data)
    gradient, hessian = rng.normal(size=len(ratings)).astype(np.float32), np.ones(len(ratings), np.float32)
    lambdarank.update()
    empty.update(fobj=lambda scores, data: (gradient, hessian))
    return lambdarank.update, lambda: empty.update(fobj=lambda scores, data: (gradient, hessian))


def cpu_time(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
