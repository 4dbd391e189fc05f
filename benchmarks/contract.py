"""How many of scikit-learn's own checks each ranker passes. ``python -m benchmarks.contract``

``check_estimator`` checks what scikit-learn's tools rely on: cloning, settings, errors for bad input, the same result
for the same data, and unchanged inputs. Checks of features that an estimator does not claim to have are skipped.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any


def estimators() -> Iterator[tuple[str, Any]]:
    """Our rankers and those of other libraries, with fast settings."""
    import lightgbm
    import xgboost

    import tierank

    for ranker in (*tierank.RANKERS.values(), tierank.TreeRanker, tierank.NetworkRanker):
        quick: dict[str, Any] = {"n_jobs": 1}
        names = ranker().get_params()
        quick |= {
            name: value for name, value in (("n_trees", 5), ("max_epochs", 2), ("loss", "urank")) if name in names
        }
        yield f"tierank {ranker.__name__}", ranker(**quick)
    yield "LightGBM LGBMRanker", lightgbm.LGBMRanker(n_estimators=5, n_jobs=1, verbose=-1)
    yield "XGBoost XGBRanker", xgboost.XGBRanker(n_estimators=5, n_jobs=1)


def count_checks(estimator: Any) -> tuple[Counter[str], list[str]]:
    """How many checks passed, failed and were skipped; and which ones failed."""
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_skip=None, on_fail=None)
    failed = sorted({result["check_name"] for result in results if result["status"] == "failed"})
    return Counter(result["status"] for result in results), failed


def main() -> None:
    os.environ["OMP_WAIT_POLICY"] = "passive"
    print(f"{'estimator':28} {'passed':>7} {'failed':>7} {'skipped':>8}")
    for name, estimator in estimators():
        counts, failed = count_checks(estimator)
        print(f"{name:28} {counts['passed']:7} {counts['failed']:7} {counts['skipped']:8}", flush=True)
        if failed:
            print(f"    failed: {', '.join(failed)}", flush=True)


if __name__ == "__main__":
    main()
