"""Extreme data, and how rankers handle them: the table of docs/limits.md. ``python -m benchmarks.limits``

Each case is fitted and scored by uMart, LambdaMART and uRank with small settings; ``--scale 20`` makes the large cases
twenty times smaller, which is what the tests run.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

Case = tuple[Any, Any, Any]

SETTINGS = {
    "UMart": {"n_trees": 3, "n_leaves": 4, "min_documents": 1},
    "LambdaMART": {"n_trees": 3, "n_leaves": 4, "min_documents": 1},
    "URank": {"max_epochs": 2, "hidden": (8,), "learning_rate": 0.01},
}


def plain(n: int = 120, n_features: int = 3, length: int = 12, **changes: Any) -> Case:
    """Features, ratings that follow the first feature, and queries; ``changes`` replaces some of them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, n_features))
    given = {"X": X, "y": np.digitize(X[:, 0], [0, 1]), "qid": np.arange(n) // length} | changes
    return given["X"], given["y"], given["qid"]


def extreme_features() -> np.ndarray:
    X = np.random.default_rng(0).choice([-3e38, -1.0, 0.0, 1e-38, 1.0, 3e38], size=(120, 3))
    X[:, 0] = np.random.default_rng(1).normal(size=120)
    return X


def with_value(value: float, dtype: type = float) -> np.ndarray:
    X = np.random.default_rng(0).normal(size=(120, 3)).astype(dtype)
    X[7, 1] = value
    return X


def with_rating(value: float) -> np.ndarray:
    y = np.arange(120) % 3.0
    y[7] = value
    return y


CASES: dict[str, Callable[[int], Case]] = {
    "one query of 60,000 documents": lambda scale: plain(60_000 // scale, length=60_000),
    "200,000 queries of 3 documents": lambda scale: plain(600_000 // scale, length=3),
    "5,000 features": lambda scale: plain(600, n_features=5000 // scale),
    "1 feature": lambda scale: plain(n_features=1),
    "1 document in each query": lambda scale: plain(length=1),
    "1,000 rating levels": lambda scale: plain(2000, y=np.arange(2000) % 1000, length=100),
    "ratings up to 1,000,000": lambda scale: plain(y=np.random.default_rng(0).choice([0, 3, 1e6], 120)),
    "ratings that are fractions": lambda scale: plain(y=np.random.default_rng(0).random(120)),
    "one rating for all documents": lambda scale: plain(y=np.full(120, 2)),
    "no rating above 0": lambda scale: plain(y=np.zeros(120)),
    "all features equal": lambda scale: plain(X=np.ones((120, 3))),
    "all features missing (NaN)": lambda scale: plain(X=np.full((120, 3), np.nan)),
    "features of 3e38 and 1e-38": lambda scale: plain(X=extreme_features()),
    "a feature of 1e39, beyond float32": lambda scale: plain(X=with_value(1e39)),
    "an infinite feature": lambda scale: plain(X=with_value(np.inf)),
    "a feature that is a text": lambda scale: plain(X=with_value("red", object)),
    "a negative rating": lambda scale: plain(y=with_rating(-1)),
    "a missing rating (NaN)": lambda scale: plain(y=with_rating(np.nan)),
    "no query ids: all rows are one query": lambda scale: plain(qid=None),
    "query sizes in the place of query ids": lambda scale: plain(qid=[12] * 10),
    "a missing query id": lambda scale: plain(qid=[None, *range(119)]),
    "no rows": lambda scale: (np.empty((0, 3)), np.empty(0), np.empty(0)),
}
LARGE = ("one query of 60,000 documents", "200,000 queries of 3 documents", "5,000 features")


def outcome(name: str, case: Case) -> str:
    """How a ranker handles a case, in the words of the table."""
    import tierank

    X, y, qid = case
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            ranker = getattr(tierank, name)(n_jobs=1, **SETTINGS[name]).fit(X, y, qid=qid)
            scores = ranker.predict(X, qid=qid)
        except tierank.TierankError as error:
            return f"refused: {error}"
    if not np.isfinite(scores).all():
        return "scores that are no numbers"
    works = "works, with a warning" if warned else "works"
    return works if np.ptp(scores) > 0 else f"{works}: all scores are equal"


def table_row(case: str, scale: int) -> str:
    """A row of the table: the results of the three rankers, only once if they are the same."""
    found = {name: outcome(name, CASES[case](scale)) for name in SETTINGS}
    ways = dict.fromkeys(found.values())
    if len(ways) == 1:
        return f"| {case} | {next(iter(ways))} |"
    said = "; ".join(f"{', '.join(n for n, w in found.items() if w == way)}: {way}" for way in ways)
    return f"| {case} | {said} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=int, default=1, help="make the large cases so many times smaller")
    options = parser.parse_args()
    os.environ["OMP_WAIT_POLICY"] = "passive"
    logging.getLogger("tierank").setLevel(logging.ERROR)
    warnings.simplefilter("error")
    print("| case | what happens |\n|---|---|")
    start = time.perf_counter()
    for case in CASES:
        print(table_row(case, options.scale), flush=True)
    print(f"\n{len(CASES)} cases in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
