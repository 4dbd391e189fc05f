"""Long lists: what they cost, and what truncation costs in NDCG@10. ``python -m benchmarks.longlists``

Three tables, which ``--only`` selects:

``fits``     CPU seconds of twenty trees on one query, without and with truncation, beside LambdaMART; they take turns,
             and the best of several rounds counts. Quadratic growth is cut off at ``--most-pairs`` documents.
``losses``   CPU seconds of a loss of networks and its derivative on one list.
``quality``  NDCG@10 of uMart by ``truncation``, in pairs by query with that of all pairs. ``--data`` names folders with
             five folds, such as MQ2008; "long" is generated data with lists of 1,500 documents, one in a hundred
             relevant.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tierank
from tierank import LambdaMART, RankingDataset, UMart
from tierank.metrics.significance import paired_p

LENGTHS = (5_000, 10_000, 20_000, 40_000, 100_000, 200_000)
LOSSES = ("urank", "listnet", "windowed_urank", "ranknet", "lambdaloss", "approxndcg")
LOSS_LENGTHS = (2_000, 4_000, 8_000, 16_000)


def fits(n_rounds: int, most_pairs: int) -> None:
    print("| documents | `UMart(truncation=None)` | `UMart` | `LambdaMART` |\n|---:|---:|---:|---:|")
    contestants = (UMart(truncation=None), UMart(), LambdaMART())
    rng = np.random.default_rng(0)
    for n in (500, *LENGTHS):  # the first is to compile
        X = rng.normal(size=(n, 5))
        y, qid = np.digitize(X[:, 0] + rng.normal(size=n), [0.5, 1.5]), np.zeros(n, int)
        best = dict.fromkeys(contestants, np.inf)
        for _ in range(n_rounds):
            for ranker in contestants[n > most_pairs :]:
                start = time.process_time()
                ranker.set_params(n_trees=20, n_jobs=1).fit(X, y, qid=qid)
                best[ranker] = min(best[ranker], time.process_time() - start)
        if n > 500:
            cells = (f"{seconds:.2f}" if np.isfinite(seconds) else "" for seconds in best.values())
            print(f"| {n:,} | {' | '.join(cells)} |", flush=True)


def losses(n_rounds: int) -> None:
    import torch

    from tierank.losses import Batch

    torch.set_num_threads(1)
    print("| loss | " + " | ".join(f"{n:,}" for n in LOSS_LENGTHS) + " |\n|---|" + "---:|" * len(LOSS_LENGTHS))
    rng = np.random.default_rng(0)
    for name in LOSSES:
        cells = []
        for n in LOSS_LENGTHS:
            ratings, scores = rng.choice(3, n, p=[0.6, 0.3, 0.1]), torch.randn(n, requires_grad=True)
            times = []
            for _ in range(n_rounds):
                start = time.process_time()
                tierank.LOSSES[name](scores, Batch(offsets=[0, n], ratings=ratings)).sum().backward()
                times.append(time.process_time() - start)
            cells.append(f"{min(times):.3f}")
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


def parts_of(data: str) -> Iterator[tuple[RankingDataset, RankingDataset, RankingDataset]]:
    for number in range(1, 6):
        if data != "long":
            yield tierank.read_fold(data, fold=number)
            continue
        made = tierank.make_ranking(90, mean_length=1500, max_length=1900, n_features=20, seed=number)
        rare = made.replace(ratings=(made.ratings == 4).astype(float))
        yield rare.split(0.5, 0.2, 0.3)


def ndcg(data: str, truncation: int | None, seed: int) -> NDArray[np.float64]:
    values = []
    for train, valid, test in parts_of(data):
        ranker = UMart(truncation=truncation, seed=seed, feature_fraction=0.7, n_jobs=1).fit(train, valid=valid)
        values.append(tierank.evaluate(test, ranker.predict(test), "ndcg@10").per_query["ndcg@10"])
    return np.concatenate(values)


def quality(data: list[str], levels: list[int], n_seeds: int) -> None:
    print("| data | truncation | NDCG@10 | difference from all pairs | p |\n|---|---:|---:|---:|---:|")
    for name in data:
        found = {
            level: np.mean([ndcg(name, level, seed) for seed in range(n_seeds)], axis=0) for level in (None, *levels)
        }
        for level, values in found.items():
            differences = (values - found[None])[np.isfinite(values)]
            compared = " | " if level is None else f"{differences.mean():+.4f} | {float(paired_p(differences)):.2f}"
            print(f"| {Path(name).name} | {level or 'none'} | {np.nanmean(values):.4f} | {compared} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("fits", "losses", "quality"), help="one of the tables")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the best counts (default: 3)")
    parser.add_argument("--most-pairs", type=int, default=40_000, help="longest list of all pairs (default: 40,000)")
    parser.add_argument("--data", nargs="+", default=["long"], help="folders with folds, or long (the default)")
    parser.add_argument("--levels", type=int, nargs="+", default=[300, 100, 30, 10], help="truncations")
    parser.add_argument("--seeds", type=int, default=1, help="seeds per fold, whose mean counts (default: 1)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("tierank").setLevel(logging.ERROR)
    if options.only in (None, "fits"):
        fits(options.rounds, options.most_pairs)
    if options.only in (None, "losses"):
        losses(options.rounds)
    if options.only in (None, "quality"):
        quality(options.data, options.levels, options.seeds)


if __name__ == "__main__":
    main()
