"""Metrics of 1.2 million documents in 10,000 queries: tierank, ranx and scikit-learn, on one thread each.

    python -m benchmarks.metrics

Every tool takes its turn in every round, and the best round counts. The values are checked to be the same. ranx
evaluates its own data types, which are built from dictionaries; that is timed once, separately. scikit-learn is called
for each query and cutoff, on some of the queries, and its time is scaled up. Neither has ERR; tierank computes it in
addition.
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable

# Before numpy and numba start their threads.
os.environ |= dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"], "1")
os.environ["OMP_WAIT_POLICY"] = "passive"

import numpy as np

from tierank.data.dataset import RankingDataset
from tierank.metrics import Judge
from tierank.metrics.evaluate import evaluate
from tierank.report.tabulate import Table

CUTOFFS = (1, 3, 5, 10)
TOP = [*(f"ndcg@{k}" for k in CUTOFFS), "err@10"]
WHOLE = ["map", "ndcg"]


def draw(n_queries: int, length: int) -> tuple[RankingDataset, np.ndarray]:
    rng = np.random.default_rng(0)
    n = n_queries * length
    ratings = rng.choice(5, n, p=[0.52, 0.32, 0.13, 0.02, 0.01]).astype(float)
    ratings[::length] = 1  # no empty queries: the tools would not agree on them
    data = RankingDataset(np.zeros((n, 1), np.float32), ratings, np.repeat(np.arange(n_queries), length))
    return data, ratings + rng.normal(scale=2, size=n)


class Sklearn:
    """A loop over ``ndcg_score`` with gains 2^r - 1, for the first queries; times are scaled up to all of them."""

    def __init__(self, data: RankingDataset, scores: np.ndarray, n_queries: int) -> None:
        from sklearn.metrics import ndcg_score

        self.score, self.n_queries, self.scale = ndcg_score, n_queries, data.n_queries / n_queries
        shape = (data.n_queries, -1)
        self.gains, self.scores = (2**data.ratings - 1).reshape(shape), scores.reshape(shape)

    def __call__(self, cutoffs: tuple[int | None, ...]) -> dict[str, np.ndarray]:
        """NDCG of the first queries at each cutoff."""
        queries = range(self.n_queries)
        return {
            name(k): np.array([self.score(self.gains[q : q + 1], self.scores[q : q + 1], k=k) for q in queries])
            for k in cutoffs
        }


class Ranx:
    """``ranx.evaluate`` on its own data types, which are built here."""

    def __init__(self, data: RankingDataset, scores: np.ndarray) -> None:
        import ranx

        documents = [f"d{i}" for i in range(data.lengths.max())]
        rated, scored = ({}, {})
        for q in range(data.n_queries):
            rows = slice(data.offsets[q], data.offsets[q + 1])
            rated[f"q{q:06}"] = dict(zip(documents, data.ratings[rows].astype(int).tolist(), strict=False))
            scored[f"q{q:06}"] = dict(zip(documents, scores[rows].tolist(), strict=False))
        started = time.process_time()
        self.evaluate, self.rated, self.scored = ranx.evaluate, ranx.Qrels(rated), ranx.Run(scored)
        self.seconds_to_build = time.process_time() - started

    def __call__(self, metrics: list[str]) -> dict[str, np.ndarray]:
        """The value of each metric, by its name in tierank."""
        theirs = [metric.replace("ndcg", "ndcg_burges") for metric in metrics]
        found = self.evaluate(self.rated, self.scored, theirs, return_mean=False, threads=1)
        found = found if isinstance(found, dict) else {theirs[0]: found}
        return {metric: found[their] for metric, their in zip(metrics, theirs, strict=True)}


def name(k: int | None) -> str:
    return "ndcg" if k is None else f"ndcg@{k}"


def race(runners: dict[str, Callable[[], object]], rounds: int) -> dict[str, tuple[float, float]]:
    """The best CPU and wall-clock seconds of each runner; all take turns."""
    best = dict.fromkeys(runners, (np.inf, np.inf))
    for _ in range(rounds):
        for runner, run in runners.items():
            cpu, wall = time.process_time(), time.perf_counter()
            run()
            taken = (time.process_time() - cpu, time.perf_counter() - wall)
            best[runner] = tuple(map(min, best[runner], taken))
    return best


def tabulate(title: str, best: dict[str, tuple[float, float]], scales: dict[str, float], notes: list[str]) -> Table:
    scaled = {runner: [seconds * scales.get(runner, 1) for seconds in taken] for runner, taken in best.items()}
    fastest, whole = (scaled[runner][0] for runner in list(scaled)[:2])
    rows = [
        [runner, f"{cpu * 1e3:,.1f}", f"{wall * 1e3:,.1f}", f"{cpu / fastest:,.1f}", f"{cpu / whole:,.1f}"]
        for runner, (cpu, wall) in scaled.items()
    ]
    columns = ["tool", "CPU ms", "wall ms", "CPU / prepared Judge", "CPU / evaluate"]
    return Table(title, columns, rows, notes)


def assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    for metric, values in theirs.items():
        np.testing.assert_allclose(ours[metric][: len(values)], values, atol=1e-12, err_msg=metric)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of the other tools
    data, scores = draw(options.queries, 120)
    sklearn, ranx = Sklearn(data, scores, max(1, options.queries // 20)), Ranx(data, scores)
    scales = {"scikit-learn ndcg_score": sklearn.scale}
    for title, metrics, cutoffs in [("Top of the list", TOP, CUTOFFS), ("Whole list", WHOLE, (None,))]:
        judge = Judge(data, metrics, n_jobs=1)
        shared = [metric for metric in metrics if not metric.startswith("err")]
        runners = {
            "tierank, prepared Judge": lambda judge=judge: judge(scores),
            "tierank, evaluate": lambda metrics=metrics: evaluate(data, scores, metrics, n_jobs=1),
            "ranx evaluate": lambda shared=shared: ranx(shared),
            "scikit-learn ndcg_score": lambda cutoffs=cutoffs: sklearn(cutoffs),
        }
        # The first calls compile; they also show that all agree.
        assert_same(judge(scores), ranx(shared))
        assert_same(judge(scores), sklearn(cutoffs))
        asked = [
            f"tierank: {', '.join(metrics)}; ranx: {', '.join(shared)}; scikit-learn: {', '.join(map(name, cutoffs))}",
            f"scikit-learn: measured on {sklearn.n_queries:,} queries, times {sklearn.scale:g}",
            f"ranx: building its data types took {ranx.seconds_to_build:.1f} s more, not counted above",
        ]
        title = f"{title}: {data.n_documents:,} documents in {data.n_queries:,} queries, one thread"
        print(tabulate(title, race(runners, options.rounds), scales, asked).to_text())


if __name__ == "__main__":
    main()
