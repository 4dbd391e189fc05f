"""LightGBM, XGBoost and CatBoost on five folds, tuned on validation data.

    python -m benchmarks.peers --data OHSUMED --out peers

Each library gets the treatment that ``tierank cv --trials`` gives to our rankers: the first trial has its own settings
(with the same number of trees and the same patience as ours), the others are drawn by Optuna from a space of the same
width, the validation part chooses the trial and the number of trees by our NDCG@10, and the test part is scored once.
There is one file of scores per fold; they can be added to a table of ours as rows:

    tierank cv umart --data OHSUMED --out run --scores xgboost=peers/xgboost-fold{fold}.scores
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import optuna

import tierank
from tierank.experiments.tuning import space_of
from tierank.settings import Between, OneOf

N_TREES, PATIENCE = 500, 50
Scores = tuple[np.ndarray, np.ndarray]  # of validation and of test data

OF_XGBOOST = {
    "learning_rate": Between(0.02, 0.3, log=True),
    "max_leaves": Between(4, 64, log=True),
    "min_child_weight": Between(0.001, 10.0, log=True),
    "colsample_bytree": Between(0.4, 1.0),
    "lambda": Between(0.001, 30.0, log=True),
    "lambdarank_num_pair_per_sample": OneOf((1, 4, 10, 30)),
}
OF_CATBOOST = {
    "learning_rate": Between(0.02, 0.3, log=True),
    "depth": Between(2, 8),
    "l2_leaf_reg": Between(0.1, 30.0, log=True),
    "rsm": Between(0.4, 1.0),
}


def lightgbm(train: Any, valid: Any, test: Any, settings: dict[str, Any], seed: int) -> Scores:
    import lightgbm as lgb

    names = {"n_leaves": "num_leaves", "min_documents": "min_data_in_leaf"}
    params = {
        "objective": "lambdarank",
        "metric": "ndcg",
        "eval_at": [10],
        "num_threads": 1,
        "seed": seed,
        "verbosity": -1,
    }
    params |= {"learning_rate": 0.05} | {names.get(name, name): value for name, value in settings.items()}
    own = lgb.Dataset(train.features, train.ratings, group=train.lengths)
    held_out = lgb.Dataset(valid.features, valid.ratings, group=valid.lengths, reference=own)
    stop = lgb.early_stopping(PATIENCE, verbose=False)
    model = lgb.train(params, own, N_TREES, valid_sets=[held_out], callbacks=[stop])
    return model.predict(valid.features), model.predict(test.features)


def xgboost(train: Any, valid: Any, test: Any, settings: dict[str, Any], seed: int) -> Scores:
    import xgboost as xgb

    def matrix(data: Any) -> Any:
        return xgb.DMatrix(data.features, data.ratings, qid=data.query_of_row)

    params = {"objective": "rank:ndcg", "eval_metric": "ndcg@10", "nthread": 1, "seed": seed, "tree_method": "hist"}
    params |= {"learning_rate": 0.1, "max_depth": 0 if "max_leaves" in settings else 6} | settings
    params |= {"grow_policy": "lossguide"} if "max_leaves" in settings else {}
    evals = [(matrix(valid), "valid")]
    model = xgb.train(params, matrix(train), N_TREES, evals=evals, early_stopping_rounds=PATIENCE, verbose_eval=False)
    span = (0, model.best_iteration + 1)
    return tuple(model.predict(matrix(data), iteration_range=span, output_margin=True) for data in (valid, test))


def catboost(train: Any, valid: Any, test: Any, settings: dict[str, Any], seed: int) -> Scores:
    import catboost as cb

    def pool(data: Any) -> Any:
        return cb.Pool(np.array(data.features), data.ratings, group_id=data.query_of_row)

    params = {"loss_function": "YetiRank", "eval_metric": "NDCG:top=10;type=Exp", "iterations": N_TREES}
    params |= {"thread_count": 1, "random_seed": seed, "verbose": False, "allow_writing_files": False}
    params |= {"early_stopping_rounds": PATIENCE} | settings
    model = cb.CatBoost(params).fit(pool(train), eval_set=pool(valid))
    return tuple(np.asarray(model.predict(np.array(data.features))) for data in (valid, test))


PEERS: dict[str, tuple[Callable[..., Scores], dict[str, Any]]] = {
    "lightgbm": (lightgbm, dict(space_of(tierank.LambdaMART()))),
    "xgboost": (xgboost, OF_XGBOOST),
    "catboost": (catboost, OF_CATBOOST),
}


def search(name: str, fold: tuple[Any, Any, Any], n_trials: int, seed: int) -> np.ndarray:
    """The test scores of the trial that is best on validation data."""
    fit, space = PEERS[name]
    train, valid, test = fold
    best: tuple[float, np.ndarray] = (-1.0, np.empty(0))
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    for number in range(n_trials):
        trial = study.ask()
        settings = {} if number == 0 else {key: values.suggest(trial, key) for key, values in space.items()}
        on_valid, on_test = fit(train, valid, test, settings, seed)
        value = tierank.evaluate(valid, on_valid, "ndcg@10", n_jobs=1).mean("ndcg@10")
        study.tell(trial, value)
        best = max(best, (value, on_test), key=lambda pair: pair[0])
    return best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", default=list(PEERS), metavar="PEER", help=", ".join(PEERS))
    parser.add_argument("--data", required=True, help="a folder of folds")
    parser.add_argument("--out", type=Path, required=True, help="folder for the score files")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.peers:
        start = time.process_time()
        for fold in range(1, 6):
            data = tierank.read_fold(options.data, fold)
            scores = search(name, data, options.trials, options.seed)
            tierank.write_scores(data[2].restore(scores), options.out / f"{name}-fold{fold}.scores")
        seconds = (time.process_time() - start) / 5
        print(f"{name}: {options.trials} trials in each of 5 folds, {seconds:.1f} CPU s a fold", flush=True)


if __name__ == "__main__":
    main()
