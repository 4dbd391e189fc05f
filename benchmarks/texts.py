"""From a raw CSV file of search terms and titles to a ranker: match features compared with CatBoost's text features.

``python -m benchmarks.texts train.csv`` with the training file of Kaggle's Home Depot competition: search_term,
product_title, relevance 1 to 3. Terms with several products are split into five parts; fold k tests on part k,
validates on the next part, and trains on the other three. NDCG@10 of the test queries is averaged over seeds and
compared by query with that of TF-IDF cosine; CPU seconds are those of one ``fit``, including match features and
statistics. ``--catboost`` adds CatBoostRanker (YetiRank) with ``text_features``, which takes minutes per fold, and the
gains of the others over it. ``--vectors`` adds vectors of 64 numbers for terms and titles, the truncated SVD of their
TF-IDF, learned from the training titles: their cosine next to the match features, and the vector of the title as well.
``--valid`` prints the same for the validation parts, on which settings were chosen.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import Pipeline, make_pipeline

import tierank
from benchmarks.folds import N_PARTS, Fold, cut
from tierank.data.text import BM25Statistics
from tierank.metrics.significance import paired_p

QUERY, TITLE = "search_term", "product_title"
COLUMNS = tierank.Columns(texts=[(QUERY, TITLE)])
TREES: dict[str, Any] = {
    "n_trees": 400,
    "patience": 40,
    "learning_rate": 0.05,
    "n_leaves": 15,
    "min_documents": 100,
    "feature_fraction": 0.5,
    "query_features": True,
    "n_jobs": 1,
}
# From training data, validation data, judged data and a seed to scores of the judged data.
System = Callable[[tierank.RankingDataset, tierank.RankingDataset, tierank.RankingDataset, int], NDArray[np.float64]]


def read(path: Path) -> tierank.RankingDataset:
    """The search terms with several products; ratings 0 to 2."""
    table = pd.read_csv(path, encoding="latin-1")
    table["relevance"] -= 1
    table = table[table.groupby(QUERY)["id"].transform("size") > 1]
    return tierank.read(table, query=QUERY, rating="relevance", document="id", ignore=["product_uid"], columns=COLUMNS)


def texts_of(data: tierank.RankingDataset, name: str) -> list[str]:
    """The texts of a column."""
    levels = data.kinds[name].levels  # type: ignore[attr-defined]
    return [levels[int(code)] for code in data.features[:, (data.feature_names or ()).index(name)]]


def matched(fold: Fold) -> Fold:
    """Match features, with the statistics of the training part, instead of the texts."""
    statistics = BM25Statistics.learn(texts_of(fold[0], TITLE))
    train, valid, test = (
        data.replace(
            features=statistics.match(texts_of(data, QUERY), texts_of(data, TITLE)), feature_names=None, kinds={}
        )
        for data in fold
    )
    return train, valid, test


def cosine(
    train: tierank.RankingDataset, _: tierank.RankingDataset, judged: tierank.RankingDataset, __: int
) -> NDArray[np.float64]:
    statistics = BM25Statistics.learn(texts_of(train, TITLE))
    return statistics.match(texts_of(judged, QUERY), texts_of(judged, TITLE))[:, 1].astype(np.float64)


def ours(make: Callable[[int], tierank.Ranker]) -> System:
    def scores(
        train: tierank.RankingDataset, valid: tierank.RankingDataset, judged: tierank.RankingDataset, seed: int
    ) -> NDArray[np.float64]:
        return judged.arrange(make(seed).fit(train, valid=valid).predict(judged))

    return scores


def with_vectors(make: Callable[[int], tierank.Ranker], vectors: Sequence[str] = ()) -> System:
    """A ranker on match features, the cosine of the vectors of term and title, and the numbers of these vectors."""
    columns = tierank.Columns(
        texts=[(QUERY, TITLE)], similarities=[("term_vector", "title_vector")], measures=["cosine"], vectors=vectors
    )

    def scores(
        train: tierank.RankingDataset, valid: tierank.RankingDataset, judged: tierank.RankingDataset, seed: int
    ) -> NDArray[np.float64]:
        encoder = make_pipeline(TfidfVectorizer(sublinear_tf=True), TruncatedSVD(64, random_state=seed))
        encoder.fit(texts_of(train, TITLE))
        parts = [encoded(data, encoder, columns) for data in (train, valid, judged)]
        return make(seed).fit(parts[0], valid=parts[1]).predict(parts[2])  # in the order of the table

    return scores


def encoded(data: tierank.RankingDataset, encoder: Pipeline, columns: tierank.Columns) -> tierank.RankingDataset:
    """The data with a vector for each term and title."""
    terms, titles = texts_of(data, QUERY), texts_of(data, TITLE)
    table = pd.DataFrame({QUERY: terms, TITLE: titles, "relevance": data.ratings})
    table["term_vector"], table["title_vector"] = list(encoder.transform(terms)), list(encoder.transform(titles))
    return tierank.read(table, query=QUERY, rating="relevance", columns=columns)


def catboost(
    train: tierank.RankingDataset, valid: tierank.RankingDataset, judged: tierank.RankingDataset, seed: int
) -> NDArray[np.float64]:
    from catboost import CatBoostRanker, Pool

    pools = [
        Pool(
            pd.DataFrame({name: texts_of(data, name) for name in (QUERY, TITLE)}),
            data.ratings,
            group_id=np.repeat(np.arange(data.n_queries), data.lengths),
            text_features=[QUERY, TITLE],
        )
        for data in (train, valid, judged)
    ]
    model = CatBoostRanker(
        loss_function="YetiRank", eval_metric="NDCG:top=10;type=Exp", iterations=300, learning_rate=0.1,
        early_stopping_rounds=30, thread_count=1, random_seed=seed, verbose=False, allow_writing_files=False,
    )  # fmt: skip
    return np.asarray(model.fit(pools[0], eval_set=pools[1]).predict(pools[2]))


def systems(options: argparse.Namespace) -> Iterator[tuple[str, System, int]]:
    """Names, systems, and the number of seeds that each needs."""
    yield "TF-IDF cosine", cosine, 1
    yield "LinearRanker", ours(lambda _: tierank.LinearRanker(n_jobs=1)), 1
    yield "LambdaMART", ours(lambda seed: tierank.LambdaMART(**TREES, seed=seed)), options.seeds
    yield "UMart", ours(lambda seed: tierank.UMart(**TREES, seed=seed)), options.seeds
    if options.vectors:
        numbers = ["title_vector"]
        yield "UMart, cosine", with_vectors(lambda seed: tierank.UMart(**TREES, seed=seed)), options.seeds
        yield "UMart, vectors", with_vectors(lambda seed: tierank.UMart(**TREES, seed=seed), numbers), options.seeds
        yield "URank", ours(lambda seed: tierank.URank(seed=seed, n_jobs=1)), options.seeds
        yield "URank, cosine", with_vectors(lambda seed: tierank.URank(seed=seed, n_jobs=1)), options.seeds
        yield "URank, vectors", with_vectors(lambda seed: tierank.URank(seed=seed, n_jobs=1), numbers), options.seeds
    if options.catboost:
        yield "CatBoost text", catboost, options.seeds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="train.csv")
    parser.add_argument("--folds", type=int, nargs="+", default=list(range(N_PARTS)), help="which folds, from 0")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--catboost", action="store_true")
    parser.add_argument("--vectors", action="store_true", help="add vectors of the texts")
    parser.add_argument("--valid", action="store_true", help="judge by the validation parts")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="scores that are here are not computed again")
    options = parser.parse_args()
    folds = cut(read(options.data))
    chosen = {k: folds[k] for k in options.folds}
    print(f"{'system':14} {'NDCG@10':>8} {'difference':>11} {'p':>9} {'CPU s':>7}")
    found: dict[str, NDArray[np.float64]] = {}
    for name, system, n_seeds in systems(options):
        found[name], seconds = judge(name, system, n_seeds, chosen, options)
        compared = against(found[name], next(iter(found.values())))
        print(f"{name:14} {np.nanmean(found[name]):8.4f} {compared} {seconds:7.1f}", flush=True)
    if options.catboost:
        print("the same differences from CatBoost text")
        *others, last = found
        for name in others:
            print(f"{name:14} {np.nanmean(found[name]):8.4f} {against(found[name], found[last])}")


def against(values: NDArray[np.float64], base: NDArray[np.float64]) -> str:
    """The mean difference by query, and the p of a paired test."""
    differences = (values - base)[np.isfinite(values)]
    p = float(paired_p(differences)) if differences.any() else 1.0
    return f"{differences.mean():+11.4f} {p:9.2g}"


def judge(
    name: str, system: System, n_seeds: int, folds: dict[int, Fold], options: argparse.Namespace
) -> tuple[NDArray[np.float64], float]:
    """NDCG@10 of every judged query, averaged over seeds, and the mean CPU seconds of a fit."""
    by_seed, seconds = [], []
    for seed in range(1, n_seeds + 1):
        values = []
        for k, (train, valid, test) in folds.items():
            judged = valid if options.valid else test
            file = None if options.keep is None else options.keep / f"{name}-{k}-{seed}-{options.valid}.npz"
            if file is not None and file.exists():
                kept = np.load(file)
                scores, spent = kept["scores"], float(kept["seconds"])
            else:
                start = time.process_time()
                scores = system(train, valid, judged, seed)
                spent = time.process_time() - start
                if file is not None:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    np.savez(file, scores=scores, seconds=spent)
            seconds.append(spent)
            values.append(tierank.Judge(judged, "ndcg@10")(scores)["ndcg@10"])
        by_seed.append(np.concatenate(values))
    return np.mean(by_seed, axis=0), float(np.mean(seconds))


if __name__ == "__main__":
    main()
