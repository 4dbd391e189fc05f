"""Vectors of a language model: rankers with and without them, and the cosine alone.

``python -m benchmarks.encoders train.csv --encoder FOLDER`` with the training file of Kaggle's CrowdFlower or Home
Depot search competition, and a sentence-transformers model (the figures in the docs: all-MiniLM-L6-v2). Queries are cut
into five parts; fold k tests on part k, validates on the next part, and trains on the other three. NDCG@10 of the test
queries is averaged over seeds, and compared by query with the cosine. CPU seconds are those of a fit and of scoring the
test part, without encoding. ``--terms`` takes so many terms with ten or more products of Home Depot, which has 11,795.
``--cut`` seeds the parts: the recipe was chosen with 0. ``--only`` runs the systems whose names contain a word.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightgbm
import numpy as np
import pandas as pd
from numpy.typing import NDArray

import tierank
from benchmarks.folds import N_PARTS, Fold
from tierank.metrics.significance import paired_p

# From training, validation and judged data and a seed to scores of the judged data.
System = Callable[[tierank.RankingDataset, tierank.RankingDataset, tierank.RankingDataset, int], NDArray[np.float64]]
LEXICAL, ENCODED = "words", "vectors"
LIGHTGBM = {"objective": "lambdarank", "learning_rate": 0.05, "num_leaves": 31, "verbose": -1, "num_threads": 1}


def read(path: Path, encoder: str, n_terms: int) -> dict[str, tierank.RankingDataset]:
    """The data with match features of words alone, and with vectors; ratings from 0."""
    table = pd.read_csv(path, encoding="utf-8" if "Crowd" in str(path) else "latin-1", keep_default_na=False)
    if "search_term" in table:
        query, rating, titles = "search_term", "relevance", ["product_title"]
        table = table[table.groupby(query)["id"].transform("size") >= 10]
        terms = np.random.default_rng(0).permutation(np.sort(table[query].unique()))
        table = table[table[query].isin(terms[: n_terms or None])]
    else:
        query, rating, titles = "query", "median_relevance", ["product_title", "product_description"]
    table[rating] = table[rating].astype(float) - 1
    pairs = [(query, title) for title in titles]
    table = table[[query, rating, *titles]]
    titles_only = tierank.Columns(texts=pairs)
    with_vectors = tierank.Columns(texts=pairs[:1], encoder=encoder)
    return {
        LEXICAL: tierank.read(table, query=query, rating=rating, columns=titles_only),
        ENCODED: tierank.read(table[[query, rating, titles[0]]], query=query, rating=rating, columns=with_vectors),
    }


def cut(data: tierank.RankingDataset, seed: int) -> list[Fold]:
    """Five folds by query."""
    part = np.empty(data.n_queries, np.int64)
    part[np.argsort(data.query_ids)] = np.random.default_rng(seed).permutation(data.n_queries) % N_PARTS
    kinds = [(part != k) & (part != (k + 1) % N_PARTS) for k in range(N_PARTS)]
    return [
        (data.select(kinds[k]), data.select(part == (k + 1) % N_PARTS), data.select(part == k)) for k in range(N_PARTS)
    ]


def feature(part: str) -> System:
    """A single feature of the first pair of texts."""

    def scores(train: Any, valid: Any, judged: Any, seed: int) -> NDArray[np.float64]:
        matched = tierank.LinearRanker(ridge=1.0, n_jobs=1).fit(train).match_features(judged)
        place = next(k for k, name in enumerate(matched.feature_names or ()) if name.endswith(f".{part}"))
        return np.nan_to_num(matched.features[:, place].astype(np.float64))

    return scores


def ours(make: Callable[[int], tierank.Ranker]) -> System:
    """A ranker of tierank, with its defaults."""

    def scores(train: Any, valid: Any, judged: Any, seed: int) -> NDArray[np.float64]:
        return np.asarray(judged.arrange(make(seed).fit(train, valid=valid).predict(judged)))

    return scores


def matched(fold: Fold) -> list[tierank.RankingDataset]:
    """The same features as numbers, for other libraries."""
    ranker = tierank.LinearRanker(ridge=1.0, n_jobs=1).fit(fold[0])
    return [ranker.match_features(data) for data in fold]


def by_lightgbm(train: Any, valid: Any, judged: Any, seed: int) -> NDArray[np.float64]:
    train, valid, judged = matched((train, valid, judged))
    levels = np.unique(np.concatenate([train.ratings, valid.ratings]))
    sets = [
        lightgbm.Dataset(data.features, np.searchsorted(levels, data.ratings), group=data.lengths)
        for data in (train, valid)
    ]
    params = {**LIGHTGBM, "seed": seed, "metric": "ndcg", "eval_at": 10, "label_gain": (2.0**levels - 1).tolist()}
    stop = lightgbm.early_stopping(50, verbose=False)
    booster = lightgbm.train(params, sets[0], 500, valid_sets=[sets[1]], callbacks=[stop])
    return np.asarray(booster.predict(judged.features))


def by_catboost(train: Any, valid: Any, judged: Any, seed: int) -> NDArray[np.float64]:
    """Match features and cosines, and the vectors of titles as ``embedding_features``."""
    from catboost import CatBoostRanker, Pool

    pools = []
    for data, numbers in zip((train, valid, judged), matched((train, valid, judged)), strict=True):
        names = data.feature_names
        kinds = [data.kinds[name] for name in names]
        encoder = tierank.TextEncoder.of(kinds[0].encoder)
        frame = pd.DataFrame(numbers.features)
        for place, kind in enumerate(kinds):
            frame[f"v{place}"] = list(encoder.vectors([kind.levels[int(code)] for code in data.features[:, place]]))
        group = np.repeat(np.arange(data.n_queries), data.lengths)
        vectors = [f"v{place}" for place in range(len(kinds))]
        pools.append(Pool(frame, data.ratings, group_id=group, embedding_features=vectors))
    model = CatBoostRanker(
        loss_function="YetiRank", eval_metric="NDCG:top=10;type=Exp", iterations=300, learning_rate=0.1,
        early_stopping_rounds=30, thread_count=1, random_seed=seed, verbose=False, allow_writing_files=False,
    )  # fmt: skip
    return np.asarray(model.fit(pools[0], eval_set=pools[1]).predict(pools[2]))


def systems(with_catboost: bool) -> Iterator[tuple[str, str, System, bool]]:
    """Names, inputs, systems, and whether a seed matters."""
    yield "TF-IDF cosine", LEXICAL, feature("tfidf_cosine"), False
    yield "cosine of the vectors", ENCODED, feature("cosine"), False
    rankers: dict[str, tuple[Callable[[int], tierank.Ranker], bool]] = {
        "LinearRanker": (lambda seed: tierank.LinearRanker(n_jobs=1), False),
        "UMart": (lambda seed: tierank.UMart(seed=seed, n_jobs=1), True),
        "LambdaMART": (lambda seed: tierank.LambdaMART(seed=seed, n_jobs=1), True),
        "UMart stochastic": (
            lambda seed: tierank.UMart.from_preset("stochastic", query_features=True, seed=seed, n_jobs=1),
            True,
        ),
        "URank": (lambda seed: tierank.URank(seed=seed, n_jobs=1), True),
        "Blend": (lambda seed: tierank.Blend(seed=seed, n_jobs=1), True),
    }
    for inputs in (LEXICAL, ENCODED):
        yield f"LightGBM, {inputs}", inputs, by_lightgbm, True
        for name, (make, has_seed) in rankers.items():
            yield f"{name}, {inputs}", inputs, ours(make), has_seed
    if with_catboost:
        yield "CatBoost, embedding_features", ENCODED, by_catboost, True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cut", type=int, default=0)
    parser.add_argument("--terms", type=int, default=900)
    parser.add_argument("--folds", type=int, default=N_PARTS)
    parser.add_argument("--only", default="")
    parser.add_argument("--catboost", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    data = read(options.path, options.encoder, options.terms)
    folds = {name: cut(one, options.cut)[: options.folds] for name, one in data.items()}
    base: NDArray[np.float64] | None = None
    print("| system | NDCG@10 | to the cosine | p | fit and score CPU s |\n|---|---|---|---|---|")
    for name, inputs, system, has_seed in sorted(systems(options.catboost), key=lambda one: one[0][:6] != "cosine"):
        if base is not None and not any(word in name for word in options.only.split(",")):
            continue
        values, seconds = [], []
        for seed in range(options.seeds if has_seed else 1):
            per_query = []
            for train, valid, judged in folds[inputs]:
                start = time.process_time()
                scores = system(train, valid, judged, seed)
                seconds.append(time.process_time() - start)
                grouped = judged.replace(source_rows=None)
                per_query.append(tierank.Judge(grouped, "ndcg@10")(scores)["ndcg@10"])
            values.append(np.concatenate(per_query))
        mean = np.mean(values, axis=0)
        base = mean if base is None else base
        differences = (mean - base)[~np.isnan(mean - base)]
        p = f"{float(paired_p(differences)):.1e}" if differences.any() else ""
        told = f"{np.nanmean(mean):.4f} | {differences.mean():+.4f} | {p} | {np.mean(seconds):.1f}"
        print(f"| {name} | {told} |", flush=True)


if __name__ == "__main__":
    main()
