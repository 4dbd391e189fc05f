"""The verification of every export: largest relative difference, and order, on over 100,000 generated documents.

Each ranker with fast settings is exported to every target that supports it: unchanged and, if a target scores one
document at a time, with ``feature_transform="standard"``. Half of the features have values on both sides of 0, and half
of those are integers.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

import tierank
from tierank import RANKERS, TARGETS, ParameterError, Proof, RankingDataset
from tierank.rankers.base import Ranker

TREES = {"n_trees": 100, "n_jobs": 1}
NETWORK = {"max_epochs": 2, "n_jobs": 1}
LINEAR = {"n_jobs": 1}
BLEND = {"n_configs": 1, "n_seeds": 1, "n_trees": 100, "max_epochs": 2, "n_jobs": 1}


def moved(data: RankingDataset, middle: np.ndarray) -> RankingDataset:
    """The data with every second feature on both sides of 0, every fourth rounded to integers."""
    features = np.array(data.features)
    features[:, ::2] -= middle[::2]
    features[:, ::4] = np.rint(features[:, ::4])
    return data.with_features(features, None)


def make_rankers() -> dict[str, Ranker]:
    """All rankers; networks with both kinds of transforms, trees also with copies of features."""
    rankers: dict[str, Ranker] = {}
    for name, kind in RANKERS.items():
        if name == "blend":
            rankers[name] = kind(**BLEND)
        elif hasattr(kind, "importance"):
            rankers[name] = kind(**TREES)
            rankers[f"{name}, `query_features=True`"] = kind(query_features=True, **TREES)
        else:
            quick = LINEAR if name == "linear" else NETWORK
            rankers[name] = kind(**quick)
            rankers[f'{name}, `feature_transform="standard"`'] = kind(feature_transform="standard", **quick)
    rankers['umart, `base=URank(feature_transform="standard")`'] = tierank.UMart(
        base=tierank.URank(feature_transform="standard", **NETWORK), **TREES
    )
    return rankers


def prove(ranker: Ranker, target: str, data: RankingDataset) -> Proof | None:
    """The proof of an export, or None if the target rejects the model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model")
        try:
            ranker.export(path, to=target)
        except ParameterError:
            return None
        return tierank.verify(ranker, path, target, data)


def cell(proof: Proof | None) -> str:
    """The largest difference, and whether the order is the same."""
    if proof is None:
        return ""
    if not proof.holds:
        return f"**{proof.largest:.1e}, {proof.n_swapped} swapped**"
    return f"{proof.largest:.1e}, {f'ties: {proof.n_close}' if proof.n_close else 'same'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rankers", nargs="+", default=list(RANKERS), choices=list(RANKERS))
    options = parser.parse_args()
    train, data = tierank.make_ranking(200, seed=1), tierank.make_ranking(options.queries, seed=2)
    middle = np.median(train.features, axis=0)
    train, data = moved(train, middle), moved(data, middle)
    print(f"{data.n_documents:,} documents in {data.n_queries:,} queries, {data.n_features} features")
    print(f"| model | {' | '.join(TARGETS)} |\n{'|---' * (len(TARGETS) + 1)}|")
    for name, ranker in make_rankers().items():
        if name.partition(",")[0] in options.rankers:
            ranker.fit(train)
            cells = [cell(prove(ranker, target, data)) for target in TARGETS]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
