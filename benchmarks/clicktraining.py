"""Rankers that learn from the clicks of simulated users, evaluated by the true ratings.

    python -m benchmarks.clicktraining --sets MQ2008 generated --sessions 100000

Two weak rankers (10 trees on 2% of the training queries each) show lists of ten, one of the two at random in each
session; users of five kinds click. Every method learns from the same log, with the same number of trees and no
validation data; ``full`` learns from the true ratings of the documents that were shown. ``ips`` divides clicks by
propensities, which are estimated from the same log by intervention harvesting. ``judged`` learns from
``judgements(log).rate(data)`` of ``tierank.clicks``. ``pairs``, ``position`` and ``unbiased`` learn propensities with
the trees. NDCG@10 is over all documents of the test queries of each fold.
"""

import argparse
import os
import time
import warnings
from pathlib import Path

os.environ |= dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"], "1")

import lightgbm
import numpy as np
import xgboost
from scipy.stats import ttest_rel

import tierank
from tierank import RankingDataset
from tierank.clicks import estimate_propensities, judgements, simulate_clicks, training_data
from tierank.report.tabulate import Table

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "data"
SETS = ("OHSUMED", "MQ2007-85", "MQ2008", "generated")
# How users click; the position-based model is the right one for the first two and the last.
USERS = {
    "mild": {"position_bias": 0.5},
    "strong": {"position_bias": 1.0},
    "cascade": {"model": "cascade"},
    "dbn": {"model": "dbn"},
    "noisy": {"position_bias": 1.0, "noise": 0.3},
}
FAMILIES = ("LambdaMART", "UMart", "LightGBM", "XGBoost", "URank", "ListNet")
TREES = {"n_trees": 50, "n_leaves": 15, "n_jobs": 1}
NETWORK = {"max_epochs": 15, "queries_per_step": 64, "learning_rate": 3e-3, "n_jobs": 1}


def parts(name: str, fold: int) -> tuple[RankingDataset, RankingDataset]:
    if name == "generated":
        data = tierank.make_ranking(600, n_features=20, mean_length=20, max_length=40, seed=fold)
        train, test = data.split(0.6, 0.4, seed=fold)
    else:
        train, _, test = tierank.read_fold(FOLDER / name, fold)
    rows = np.arange(train.n_documents)
    return RankingDataset(train.features, train.ratings, train.query_of_row, document_ids=rows), test


def weak_ranker(train: RankingDataset, seed: int) -> tierank.Ranker:
    rng = np.random.default_rng(seed)
    ranked = np.flatnonzero(np.maximum.reduceat(train.tiers, train.offsets[:-1]) > 0)
    few = rng.choice(ranked, max(3, train.n_queries // 50), replace=False)
    return tierank.LambdaMART(n_trees=10, n_jobs=1).fit(train.select(np.sort(few)))


def shown_with_ratings(train: RankingDataset, rows: np.ndarray) -> RankingDataset:
    places = np.sort(train.restore(np.arange(train.n_documents))[np.unique(rows)])
    return RankingDataset(train.features[places], train.ratings[places], train.query_of_row[places])


def methods(
    family: str, lists: RankingDataset, full: RankingDataset, judged: RankingDataset, propensity: object
) -> dict:
    """The methods by name; each returns a function from features and query ids to scores."""
    naive = lists.replace(position=None)
    if family in ("LambdaMART", "UMart"):
        make = lambda: getattr(tierank, family)(**TREES)  # noqa: E731
        return {
            "full": lambda: make().fit(full),
            "naive": lambda: make().fit(naive),
            "judged": lambda: make().fit(judged),
            "pairs": lambda: make().fit(lists),
            "ips": lambda: make().fit(lists, propensity=propensity),
        }
    if family in ("URank", "ListNet"):
        kind = getattr(tierank, family)
        few = {"queries_per_step": 8}  # there are fewer lists
        return {
            "full": lambda: kind(**NETWORK | few).fit(full),
            "judged": lambda: kind(**NETWORK | few).fit(judged),
            "naive": lambda: kind(**NETWORK).fit(naive),
            "ips": lambda: kind(**NETWORK).fit(lists, propensity=propensity),
            "additive": lambda: kind(**NETWORK, position_tower="additive").fit(lists),
            "multiplicative": lambda: kind(**NETWORK, position_tower="multiplicative").fit(lists),
        }
    peer = _LightGBM if family == "LightGBM" else _XGBoost
    return {
        "full": lambda: peer(full, unbiased=False),
        "naive": lambda: peer(naive, unbiased=False),
        "position" if family == "LightGBM" else "unbiased": lambda: peer(lists, unbiased=True),
    }


class _LightGBM:
    def __init__(self, data: RankingDataset, *, unbiased: bool) -> None:
        weight = None if data.query_weight is None else np.repeat(data.query_weight, data.lengths)
        position = data.position if unbiased else None
        held = lightgbm.Dataset(data.features, data.ratings, group=data.lengths, weight=weight, position=position)
        params = {"objective": "lambdarank", "num_leaves": 15, "verbose": -1, "num_threads": 1}
        self.booster = lightgbm.train(params, held, TREES["n_trees"])

    def predict(self, data: RankingDataset) -> np.ndarray:
        return data.restore(self.booster.predict(data.features, num_threads=1))


class _XGBoost:
    def __init__(self, data: RankingDataset, *, unbiased: bool) -> None:
        # It uses the order of the rows within a query as their positions.
        held = xgboost.DMatrix(data.features, data.ratings, nthread=1)
        held.set_group(data.lengths)
        if data.query_weight is not None:
            held.set_weight(data.query_weight)
        params = {"objective": "rank:ndcg", "max_leaves": 15, "grow_policy": "lossguide", "max_depth": 0, "nthread": 1}
        params |= {"eta": 0.1, "lambdarank_unbiased": unbiased, "lambdarank_pair_method": "topk"}
        self.booster = xgboost.train(params | {"lambdarank_num_pair_per_sample": 30}, held, TREES["n_trees"])

    def predict(self, data: RankingDataset) -> np.ndarray:
        return data.restore(self.booster.predict(xgboost.DMatrix(data.features, nthread=1)))


def run(name: str, user: str, n_sessions: int, families: list[str], folds: list[int], wanted: list[str] | None) -> dict:
    """NDCG@10 of each test query of all folds, by family and method."""
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    for fold in folds:
        train, test = parts(name, fold)
        weak = {f"weak {seed}": weak_ranker(train, seed) for seed in (1, 2)}
        scores = {name: ranker.predict(train) for name, ranker in weak.items()}
        log, _ = simulate_clicks(train, scores, n_sessions=n_sessions, k=10, seed=fold, **USERS[user])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            propensity = estimate_propensities(log, "harvest", n_bootstrap=0)
            by_clicks = judgements(log)
        lists, full = training_data(log, train), shown_with_ratings(train, log.column("row"))
        judged = by_clicks.rate(train, n_jobs=1)
        print(f"{name}, {user}, {n_sessions:,} sessions, fold {fold}: {by_clicks}", flush=True)
        found.setdefault(("logged", "weak"), []).append(ndcg(test, weak["weak 1"].predict(test)))
        for family in families:
            for method, fit in methods(family, lists, full, judged, propensity).items():
                if wanted is not None and method not in (*wanted, "full", "naive"):
                    continue
                found.setdefault((family, method), []).append(ndcg(test, fit().predict(test)))
    return {key: np.concatenate(values) for key, values in found.items()}


def ndcg(test: RankingDataset, scores: np.ndarray) -> np.ndarray:
    values = tierank.metrics.Judge(test, "ndcg@10")(test.arrange(scores))["ndcg@10"]
    return values[np.isfinite(values)]


def rows_of(name: str, user: str, n_sessions: int, found: dict) -> list[list[str]]:
    rows = []
    for (family, method), values in found.items():
        cells = [name, user, f"{n_sessions:,}", family, method, f"{values.mean():.4f}"]
        if family == "logged" or method in ("full", "naive"):
            rows.append([*cells, "", ""])
            continue
        naive, full = found[family, "naive"], found[family, "full"]
        gap = full.mean() - naive.mean()
        share = f"{(values.mean() - naive.mean()) / gap:.0%}" if gap > 0.005 else "no gap"
        rows.append([*cells, share, f"{ttest_rel(values, naive).pvalue:.3f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--users", nargs="+", choices=USERS, default=list(USERS))
    parser.add_argument("--sessions", nargs="+", type=int, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--folds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--methods", nargs="+", metavar="M", help="besides full and naive (default: all)")
    options = parser.parse_args()
    start, rows = time.monotonic(), []
    for name in options.sets:
        for user in options.users:
            for n_sessions in options.sessions:
                found = run(name, user, n_sessions, list(options.families), options.folds, options.methods)
                fresh = rows_of(name, user, n_sessions, found)
                rows += fresh
                print("\n".join("  ".join(row) for row in fresh), f"({time.monotonic() - start:.0f} s)", flush=True)
    columns = ["data", "user", "sessions", "ranker", "method", "NDCG@10", "gap closed", "p against naive"]
    folds = ", ".join(map(str, options.folds))
    notes = [f"folds {folds}, one seed; gap closed: of that between naive and full; p: paired t-test over test queries"]
    print(Table("Learning from clicks, by the true ratings", columns, rows, notes).to_text())


if __name__ == "__main__":
    main()
