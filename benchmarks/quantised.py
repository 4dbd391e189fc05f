"""The cost and gain of quantised gradients in NDCG@10: ``python -m benchmarks.quantised DATA [DATA ...]``

``DATA`` is a folder with five folds, such as OHSUMED. uMart is fitted with and without ``use_quantized_grad`` on every
fold with several seeds, which draw the features of each tree; the figures are compared in pairs. "long" instead of a
folder is generated data with lists of 700 documents of which one in a hundred is relevant: most gradients are then far
below the largest.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from scipy.stats import ttest_rel

import tierank
from tierank import RankingDataset, UMart


def folds(name: str, n_seeds: int) -> Iterator[tuple[list[RankingDataset], int]]:
    """Training, validation and test data, with a seed."""
    for seed in range(n_seeds):
        if name == "long":
            yield long_lists(seed), seed
        else:
            for fold in range(1, 6):
                yield list(tierank.read_fold(name, fold=fold)), seed


def long_lists(seed: int) -> list[RankingDataset]:
    data = tierank.make_ranking(220, mean_length=700, max_length=1400, n_features=40, seed=seed)
    queries = np.repeat(np.arange(data.n_queries), data.lengths)
    relevant = RankingDataset(np.array(data.features), (data.ratings == 4).astype(float), qid=queries)
    return [relevant.select(np.arange(*ends)) for ends in ((0, 120), (120, 160), (160, 220))]


def quality(parts: list[RankingDataset], **settings: object) -> float:
    train, valid, test = parts
    ranker = UMart(feature_fraction=0.7, n_jobs=1, **settings).fit(train, valid=valid)
    return float(np.nanmean(tierank.Judge(test, ["ndcg@10"], n_jobs=1)(ranker.predict(test))["ndcg@10"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", help="folders with folds, or long")
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: 3)")
    options = parser.parse_args()
    print(f"{'data':>12} {'plain':>8} {'quantised':>10} {'difference':>11} {'p':>6} {'pairs':>6}")
    for name in options.data:
        plain, quantised = np.array(
            [
                (quality(parts, seed=seed), quality(parts, seed=seed, use_quantized_grad=True))
                for parts, seed in folds(name, options.seeds)
            ]
        ).T
        p = ttest_rel(plain, quantised).pvalue
        print(
            f"{name.rstrip('/').rpartition('/')[2]:>12} {plain.mean():8.4f} {quantised.mean():10.4f}"
            f" {(quantised - plain).mean():+11.4f} {p:6.2f} {len(plain):6}",
            flush=True,
        )


if __name__ == "__main__":
    main()
