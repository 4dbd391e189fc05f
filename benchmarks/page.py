"""Seconds and bytes of the page of a run: ``python -m benchmarks.page``.

The run has the shape of one fold of MSLR-WEB10K: 2,000 test queries of 120 documents on average, five systems. The
scores are the ratings with noise of five sizes. Creating the run is not timed; reading it, testing, drawing and writing
are.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import tierank
from tierank.experiments.crossval import cross_validate
from tierank.experiments.runs import Run


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds and bytes of the page of a run.")
    parser.add_argument("--queries", type=int, nargs="+", default=[500, 2_000], help="numbers of test queries")
    parser.add_argument("--systems", type=int, default=5, help="how many systems (default: 5)")
    arguments = parser.parse_args()
    warm_up()
    print(
        f"{'queries':>8} {'documents':>10} {'systems':>8} {'seconds':>8} {'bytes':>10} {'documents kept of a list':>25}"
    )
    for n_queries in arguments.queries:
        measure(n_queries, arguments.systems)


def warm_up() -> None:
    """Compile and load everything once."""
    with tempfile.TemporaryDirectory() as folder:
        tierank.write_report(make_run(Path(folder), 20, 2), Path(folder) / "page.html")


def measure(n_queries: int, n_systems: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_run(folder, n_queries, n_systems)
        start = time.perf_counter()
        run = Run.open(folder / "run")
        tierank.write_report(run, folder / "page.html")
        seconds = time.perf_counter() - start
        n_documents = sum(test.n_documents for test in run.tests)
        text = (folder / "page.html").read_text()
        depth = "all" if "Lists are complete." in text else text.split("it holds the first ")[1].split()[0]
        size = (folder / "page.html").stat().st_size
        print(f"{n_queries:>8,} {n_documents:>10,} {n_systems:>8} {seconds:>8.1f} {size:>10,} {depth:>25}")


def make_run(folder: Path, n_queries: int, n_systems: int) -> Run:
    data = tierank.make_ranking(n_queries + 4, n_features=4, mean_length=120, max_length=900)
    train, valid, test = (data.select(part) for part in (np.arange(2), np.arange(2, 4), np.arange(4, n_queries + 4)))
    rng = np.random.default_rng(0)
    noises = 1.0 + 0.2 * np.arange(n_systems)
    scores = {f"noise {noise:.1f}": [test.ratings + noise * rng.normal(size=test.n_documents)] for noise in noises}
    return cross_validate([], [(train, valid, test)], scores=scores, out=folder / "run", n_jobs=1)


if __name__ == "__main__":
    main()
