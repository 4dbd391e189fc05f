"""Five folds and several seeds of some rankers: ``python -m benchmarks.quality --data OHSUMED urank umart lambdamart``

Each ranker is trained on every fold with every seed, the validation part choosing trees or epochs, and judged on the
test part. The table has the mean over all test queries and seeds, the standard deviation over seeds, and CPU seconds
per run. A setting for a ranker follows its name: ``urank,preset=paper-ohsumed``.
"""

import argparse
import json
import os
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

import tierank
from tierank.cli import _value

METRICS = ["ndcg@1", "ndcg@3", "ndcg@5", "ndcg@10", "err@1", "err@3", "err@5", "err@10"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rankers", nargs="+", metavar="RANKER[,NAME=VALUE...]")
    parser.add_argument("--data", required=True, help="a folder of folds")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rule", default="wsdm20")
    options = parser.parse_args()
    folds = [tierank.read_fold(options.data, fold) for fold in range(1, 6)]
    print(f"{options.data}, five folds, {options.seeds} seeds, rule {options.rule}\n")
    print("| ranker | " + " | ".join(METRICS) + " | CPU s a run |\n|---|" + "---|" * (len(METRICS) + 1))
    per_query = {}
    for text in options.rankers:
        name, *settings = text.split(",")
        chosen = {key: _value(value) for key, value in (setting.split("=", 1) for setting in settings)}
        start = time.process_time()
        seeds = [judge_seed(name, chosen, folds, seed, options.rule) for seed in range(options.seeds)]
        seconds = (time.process_time() - start) / (options.seeds * 5)
        per_query[text] = {metric: np.mean([values[metric] for values in seeds], axis=0) for metric in METRICS}
        means = [[np.nanmean(values[metric]) for values in seeds] for metric in METRICS]
        cells = [f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.3f}" for values in means]
        print(f"| {text} | " + " | ".join(cells) + f" | {seconds:.1f} |", flush=True)
    first = options.rankers[0]
    print(f"\nNDCG@10 less that of {first}, seeds averaged, paired over queries:")
    for text in options.rankers[1:]:
        difference = per_query[text]["ndcg@10"] - per_query[first]["ndcg@10"]
        difference = difference[np.isfinite(difference)]
        error = difference.std(ddof=1) / len(difference) ** 0.5
        p = float(tierank.evaluation.paired_p(difference))
        print(
            json.dumps(
                {"ranker": text, "difference": round(difference.mean(), 4), "se": round(error, 4), "p": round(p, 4)}
            )
        )


def judge_seed(name: str, settings: dict, folds: list, seed: int, rule: str) -> dict[str, np.ndarray]:
    """The metrics of every test query of all folds."""
    found = []
    for train, valid, test in folds:
        ranker = tierank.RANKERS[name](**{"n_jobs": 1, "seed": seed, **settings}).fit(train, valid=valid)
        found.append(tierank.evaluate(test, ranker.predict(test), METRICS, rule, n_jobs=1).per_query)
    return {metric: np.concatenate([part[metric] for part in found]) for metric in METRICS}


if __name__ == "__main__":
    main()
