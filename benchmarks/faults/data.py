"""Data for the exports and the meaningless changes, and every ranker with fast settings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
TREES = {"n_trees": 30, "n_jobs": 1}
NETWORK = {"max_epochs": 2, "hidden": (8, 4), "n_jobs": 1}
BLEND = {"n_configs": 1, "n_seeds": 1, "n_trees": 10, "max_epochs": 1, "n_jobs": 1}


def make_rankers() -> dict[str, Any]:
    """Every ranker, also with settings that change the kind of its model."""
    import tierank

    found: dict[str, Any] = {}
    special = {"blend": BLEND, "linear": {"n_jobs": 1}}
    for name, kind in tierank.RANKERS.items():
        found[name] = kind(**special.get(name, TREES if hasattr(kind, "importance") else NETWORK))
    found["umart, query_features"] = tierank.UMart(query_features=True, **TREES)
    found["umart, zero_as_missing"] = tierank.UMart(zero_as_missing=True, **TREES)
    plain = NETWORK | {"encoding": "none"}
    found["umart, base"] = tierank.UMart(base=tierank.URank(feature_transform="standard", **plain), **TREES)
    for transform in ("standard", "log1p", "quantile"):
        found[f"urank, {transform}"] = tierank.URank(feature_transform=transform, **plain)
    return found


def make_features(kind: str, normal: Floats, rng: np.random.Generator) -> Floats:
    """Features of a kind, in the order of normal ones, on which the ratings depend."""
    spread = normal / np.abs(normal).max()
    zeros = np.where(rng.random(normal.shape) < 0.5, np.float32(0.0), np.float32(-0.0))
    changed = {
        "signed": normal,
        "integers": np.clip(np.rint(normal), -3, 3),
        "tiny": spread * np.float32(5e-35),
        "denormal": spread * np.float32(1e-40),
        "zeros of both signs": np.where(np.abs(normal) < 0.7, zeros, normal),
        "missing": np.where(rng.random(normal.shape) < 0.2, np.float32(np.nan), normal),
        "huge": spread * np.float32(3e38),
    }
    if kind == "all of these":
        kinds = list(changed.values())
        return np.stack([kinds[j % len(kinds)][:, j] for j in range(normal.shape[1])], axis=1).astype(np.float32)
    return changed[kind].astype(np.float32)


KINDS = ("signed", "integers", "tiny", "denormal", "zeros of both signs", "missing", "huge", "all of these")


def make_data(kind: str, seed: int, n_queries: int = 30, n_features: int = 7) -> Any:
    """Queries of 20 documents with ratings from 0 to 3 that depend on the first two features."""
    import tierank

    rng = np.random.default_rng(seed)
    normal = rng.normal(size=(20 * n_queries, n_features)).astype(np.float32)
    ratings = np.clip(np.rint(normal[:, 0] + normal[:, 1] + 1), 0, 3)
    return tierank.RankingDataset(make_features(kind, normal, rng), ratings, np.arange(20 * n_queries) // 20)
