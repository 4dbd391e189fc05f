"""CPU time and memory of a boosting round: uMart and the trees of other libraries. ``python -m benchmarks.trees``

Generated data in the shape of MSLR-WEB; 31 leaves, learning rate 0.05, 255 bins and the same number of threads for all.
Each system runs in its own process, which reads the data from a mapped folder, builds what it needs, and then boosts in
blocks of rounds; the best block counts. Systems are interleaved over several repeats, and the best repeat counts.
CatBoost cannot be stopped between rounds: its figure is a run of many rounds minus a run of one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from benchmarks.readers import peak_memory

N_LEAVES, LEARNING_RATE, MAX_BIN, N_BLOCKS, BLOCK = 31, 0.05, 255, 4, 5


def lightgbm_rounds(data, n_jobs: int, objective: object, **switches: object) -> Iterator[Callable[[], None]]:
    import lightgbm

    params = {
        "num_leaves": N_LEAVES, "learning_rate": LEARNING_RATE, "max_bin": MAX_BIN, "num_threads": n_jobs,
        "verbosity": -1, "metric": "None", "objective": objective if isinstance(objective, str) else "none",
        **switches,
    }  # fmt: skip
    own = lightgbm.Dataset(data.features, label=data.ratings, group=data.lengths, params=params).construct()
    booster = lightgbm.Booster(params, own)
    if isinstance(objective, str):
        yield lambda: booster.update()
    else:
        from tierank.rankers.tree_training import exact_in_sums

        objective.prepare(data.ratings, data.offsets)
        yield lambda: booster.update(fobj=lambda scores, _: tuple(map(exact_in_sums, objective.gradients(scores))))


def umart(data, n_jobs: int, window: int | None, **switches: object) -> Iterator[Callable[[], None]]:
    """A round as in ``UMart``: bit-identical for any number of threads."""
    from tierank import OBJECTIVES

    objective = OBJECTIVES["umart"](window=window, n_jobs=n_jobs)
    return lightgbm_rounds(data, n_jobs, objective, deterministic=True, **switches)


def xgboost_rounds(data, n_jobs: int) -> Iterator[Callable[[], None]]:
    import numpy as np
    import xgboost

    queries = np.repeat(np.arange(data.n_queries), data.lengths)
    own = xgboost.QuantileDMatrix(data.features, label=data.ratings, qid=queries, max_bin=MAX_BIN, nthread=n_jobs)
    params = {
        "objective": "rank:ndcg", "max_leaves": N_LEAVES, "max_depth": 0, "grow_policy": "lossguide",
        "tree_method": "hist", "eta": LEARNING_RATE, "max_bin": MAX_BIN, "nthread": n_jobs,
        "disable_default_eval_metric": True,
    }  # fmt: skip
    booster = xgboost.Booster(params, [own])
    rounds = iter(range(10**9))
    yield lambda: booster.update(own, next(rounds))


def catboost_seconds(data, n_jobs: int) -> float:
    """CPU seconds per round of YetiRank with symmetric trees of depth 5 (32 leaves)."""
    import catboost
    import numpy as np

    pool = catboost.Pool(data.features, data.ratings, group_id=np.repeat(np.arange(data.n_queries), data.lengths))

    def fit(n: int) -> float:
        model = catboost.CatBoost(
            {"loss_function": "YetiRank", "iterations": n, "depth": 5, "learning_rate": LEARNING_RATE,
             "thread_count": n_jobs, "verbose": False, "allow_writing_files": False, "border_count": MAX_BIN - 1}
        )  # fmt: skip
        start = time.process_time()
        model.fit(pool)
        return time.process_time() - start

    return (fit(11) - fit(1)) / 10


QUANTISED = {
    "use_quantized_grad": True,
    "num_grad_quant_bins": 127,
    "quant_train_renew_leaf": True,
    "stochastic_rounding": False,
}

ROUNDS = {
    "tierank umart, window 10": lambda data, n_jobs: umart(data, n_jobs, 10),
    "tierank umart, whole list": lambda data, n_jobs: umart(data, n_jobs, None),
    "tierank umart, window 2": lambda data, n_jobs: umart(data, n_jobs, 2),
    "the same, by columns": lambda data, n_jobs: umart(data, n_jobs, 2, force_col_wise=True),
    "the same, quantised": lambda data, n_jobs: umart(data, n_jobs, 2, **QUANTISED),
    "LightGBM lambdarank": lambda data, n_jobs: lightgbm_rounds(data, n_jobs, "lambdarank"),
    "LightGBM rank_xendcg": lambda data, n_jobs: lightgbm_rounds(data, n_jobs, "rank_xendcg"),
    "XGBoost rank:ndcg": xgboost_rounds,
}
SYSTEMS = [*ROUNDS, "CatBoost YetiRank"]


def measure(system: str, folder: Path, n_jobs: int) -> dict[str, float]:
    """CPU seconds per round and peak memory of one system, in this process."""
    from tierank import read

    data = read(folder)
    if system not in ROUNDS:
        return {"round": catboost_seconds(data, n_jobs), "peak": peak_memory()}
    step = next(ROUNDS[system](data, n_jobs))
    step()  # compiles, allocates
    best = float("inf")
    for _ in range(N_BLOCKS):
        start = time.process_time()
        for _ in range(BLOCK):
            step()
        best = min(best, (time.process_time() - start) / BLOCK)
    return {"round": best, "peak": peak_memory()}


def judging_share(folder: Path, round_seconds: float) -> float:
    """Milliseconds and share of evaluating a validation set of a fifth of the queries, as training does each round."""
    import numpy as np

    from tierank import Judge, read

    data = read(folder)
    valid = data.select(np.arange(data.n_queries // 5))
    judge = Judge(valid, ["ndcg@10"], n_jobs=1)
    scores = np.random.default_rng(0).normal(size=valid.n_documents)
    best = float("inf")
    for _ in range(20):
        start = time.process_time()
        judge(scores)
        best = min(best, time.process_time() - start)
    print(f"judging {valid.n_queries:,} queries: {best * 1e3:.1f} ms, {best / round_seconds:.1%} of a uMart round")
    return best


def in_own_process(system: str, folder: Path, n_jobs: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.trees", "--one", system, str(folder), "--jobs", str(n_jobs)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, nargs="+", default=[2000, 10_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="threads of every system (default: 1)")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, metavar="SYSTEM", help="some of them")
    parser.add_argument("--one", nargs=2, metavar=("SYSTEM", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], Path(options.one[1]), options.jobs)))
        return

    from tierank import make_ranking, write

    systems = list(dict.fromkeys([*options.systems, "LightGBM lambdarank", "tierank umart, window 2"]))
    for n_queries in options.queries:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, "data.tierank")
            data = make_ranking(n_queries)
            write(data, folder)
            print(f"\n{data}, {options.jobs} thread(s)")
            del data
            rows = [
                {system: in_own_process(system, folder, options.jobs) for system in systems}
                for _ in range(options.repeats)
            ]
            best = {
                system: {key: min(row[system][key] for row in rows) for key in rows[0][system]} for system in systems
            }
            base = best["LightGBM lambdarank"]["round"]
            print(f"{'system':28} {'CPU ms a round':>15} {'x lambdarank':>13} {'peak MB':>9}")
            for system, row in best.items():
                ratio, peak = row["round"] / base, row["peak"] / 1e6
                print(f"{system:28} {row['round'] * 1e3:15.1f} {ratio:13.2f} {peak:9.0f}", flush=True)
            judging_share(folder, best["tierank umart, window 2"]["round"])


if __name__ == "__main__":
    main()
