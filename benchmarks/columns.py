"""Speed of tables with texts and dates: reading, encoding and scoring. One thread, CPU time of the best of five.

``python -m benchmarks.columns`` prints it, in about a minute.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd

import tierank
from tierank.serve import Limits
from tierank.serve.requests import Features, read_score

ROUNDS = 5


def make_table(n: int, seed: int = 0) -> pd.DataFrame:
    """Ten documents per query; brands and sizes, sellers with many levels, a date and eight numbers."""
    rng = np.random.default_rng(seed)
    brand, seller = rng.integers(0, 40, n), rng.integers(0, 2000, n)
    numbers = rng.normal(size=(n, 8))
    worth = np.sin(brand) + numbers[:, 0] + np.cos(seller) + rng.normal(size=n)
    return pd.DataFrame(
        {
            "qid": np.arange(n) // 10,
            "rating": np.digitize(worth, [0.5, 1.5, 2.5]),
            "brand": [f"brand {k}" for k in brand],
            "size": rng.choice(["S", "M", "L", "XL"], n),
            "seller": [f"seller {k}" for k in seller],
            "listed": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, n), unit="D"),
            **{f"x{k}": numbers[:, k] for k in range(8)},
        }
    )


def make_searches(n: int, seed: int = 0) -> pd.DataFrame:
    """Ten titles of eleven words per search of three words; few words are frequent, many are rare."""
    rng = np.random.default_rng(seed)
    words = np.array(
        ["".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), size)) for size in rng.integers(3, 9, 20000)]
    )
    chosen = np.minimum(rng.zipf(1.3, (n, 11)), len(words)) - 1
    searches = chosen[::10][np.arange(n) // 10, :3]
    found = (searches[:, :, None] == chosen[:, None, :]).any(axis=2).sum(axis=1)
    return pd.DataFrame(
        {
            "term": [" ".join(row) for row in words[searches]],
            "title": [" ".join(row) for row in words[chosen]],
            "rating": found,
        }
    )


def best(work: Callable[[], object]) -> float:
    """CPU seconds of the best round."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    """Print the table."""
    n = 100_000
    table = make_table(n)
    data = tierank.read(table)
    ranker = tierank.UMart(n_trees=300, n_jobs=1).fit(data.select(np.arange(2000)))
    encoded = ranker.match_features(data)
    network = tierank.URank(max_epochs=1, n_jobs=1).fit(data.select(np.arange(2000)))
    rows = table.drop(columns=["qid", "rating"])
    booster = ranker.model_.booster
    assert (booster.predict(encoded.features, raw_score=True) == ranker.predict(data)).all()
    body = bytearray(_request(rows.head(100)))
    seen = ranker.seen_
    features = Features(seen.n_features, seen.feature_names, seen.has_missing, seen.columns)
    version = type("Version", (), {"features": features})()
    searches = make_searches(n)
    columns = tierank.Columns(texts=[("term", "title")])
    pairs = tierank.read(searches, query="term", columns=columns)
    matching = tierank.UMart(n_trees=300, n_jobs=1).fit(pairs.select(np.arange(2000)))
    matched = matching.match_features(pairs)
    work: dict[str, tuple[Callable[[], object], int]] = {
        "tierank.read(frame)": (lambda: tierank.read(table), n),
        "predict(frame), texts and dates included": (lambda: ranker.predict(rows, qid=table["qid"]), n),
        "predict(frame), a network with embeddings": (lambda: network.predict(rows, qid=table["qid"]), n),
        "300 trees on encoded data, compiled": (lambda: ranker.predict(encoded), n),
        "300 trees on encoded data, LightGBM": (
            lambda: booster.predict(encoded.features, raw_score=True, num_threads=1),
            n,
        ),
        "a request of 100 documents with texts, decoded": (
            lambda: read_score(body, lambda _: ("m", version), Limits()),
            100,
        ),
        "tierank.read(frame), a pair of texts": (lambda: tierank.read(searches, query="term", columns=columns), n),
        "match_features(data), a pair of texts": (lambda: matching.match_features(pairs), n),
        "predict(data), a pair of texts": (lambda: matching.predict(pairs), n),
        "300 trees on match features, compiled": (lambda: matching.predict(matched), n),
    }
    for name, (one, count) in work.items():
        seconds = best(one)
        print(f"{name:50} {1e6 * seconds / count:8.2f} microseconds a row, {count / seconds:12,.0f} rows a second")


def _request(rows: pd.DataFrame) -> bytes:
    documents = [{"features": {**row, "listed": row["listed"].isoformat()}} for row in rows.to_dict("records")]
    return json.dumps({"queries": [{"documents": documents}]}).encode()


if __name__ == "__main__":
    main()
