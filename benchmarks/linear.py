"""LinearRanker and LambdaMART with their defaults on public data. ``python -m benchmarks.linear``

Five folds of OHSUMED, MQ2008 and MQ2007-85 (all queries of MQ2007, a sample of 85% of their documents): NDCG@10 on the
test parts under the rule ``tierank``, the paired difference over queries with its 95% interval and p-value
(t-test, uncorrected), and CPU seconds of a fit on one thread. Data sets that do not exist are skipped.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import tierank

ROOT = Path(__file__).resolve().parents[1]
SETS = ("OHSUMED", "MQ2008", "MQ2007-85")
METRIC, BASELINE = "ndcg@10", "lambdamart"
RANKERS = {
    BASELINE: tierank.LambdaMART(n_jobs=1),
    "linear": tierank.LinearRanker(n_jobs=1),
    "linear, `standard`": tierank.LinearRanker(feature_transform="standard", n_jobs=1),
}


def rows_of(name: str, folder: Path) -> list[str]:
    """The rows of one data set."""
    for ranker in RANKERS.values():  # compiles
        ranker.fit(tierank.make_ranking(10, n_features=3, mean_length=5, max_length=9))
    run = tierank.cross_validate(RANKERS, folder, metrics=[METRIC], baseline=BASELINE, n_jobs=1)
    found = run.comparison
    n_queries = len(found.evaluations[BASELINE].query_ids) - found.evaluations[BASELINE].n_left_out
    rows = []
    for system in run.systems:
        contrast = found.contrasts.get(system, {}).get(METRIC)
        cells = [f"{name}, {n_queries:,} queries", system, f"{found.mean(system, METRIC):.4f}"]
        if contrast is None:
            cells += ["", "", ""]
        else:
            p = "< .0001" if contrast.p < 0.0001 else f"{contrast.p:.4f}"
            cells += [f"{contrast.difference:+.4f}", f"{contrast.low:+.4f} to {contrast.high:+.4f}", p]
        rows.append(f"| {' | '.join([*cells, f'{run.cpu_seconds(system):.2f}'])} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data sets")
    options = parser.parse_args()
    columns = ["data", "ranker", "NDCG@10", f"minus {BASELINE}", "95% interval", "p", "CPU s per fit"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for name in SETS:
        folder = options.data / name
        if not folder.is_dir():
            print(f"{name}: skipped, there is no such folder in --data", flush=True)
            continue
        print("\n".join(rows_of(name, folder)), flush=True)


if __name__ == "__main__":
    main()
