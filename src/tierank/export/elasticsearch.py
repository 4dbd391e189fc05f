"""Elasticsearch and OpenSearch with their learning-to-rank plugin: trees as ``model/xgboost+json``.

The plugin goes left where x < threshold, in float32, so each threshold becomes the lowest float32 above it. It adds up
in float32: see ``for_float32_sums``. Lucene refuses scores below 0, so one more tree, with a single leaf, adds a
constant that makes all sums positive; it comes last, because small sums round less. Queries give no feature below 0
either, so a feature that is split there is the difference of two, which the plugin takes. A feature without a value is
0 in older versions and follows ``missing`` in newer ones; both go the same way here, and trees that send 0 and missing
values in different directions are refused.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.errors import DataError
from tierank.export import search_engine as engine
from tierank.export import targets
from tierank.export.neutral import Model, Network, Trees, walk

_TYPE = "model/xgboost+json"
# The constant is larger than the spread of the scores by about the square root of the number of trees. With more trees
# than this, fewer than five digits would be left for the scores.
_MOST_TREES = 10_000


def _check(name: str, model: Model) -> None:
    trees = _only_trees(name, model)
    targets.check_parts(name, model, targets.categories, targets.missing_values, targets.large_numbers)
    if len(trees.roots) > _MOST_TREES:
        few = f"{len(trees.roots):,} trees leave too few digits to the differences"
        why = f"it adds up in single precision, above a constant that keeps scores from being negative, and {few}"
        raise targets.refuse(name, why, f"train with n_trees={_MOST_TREES} at most, and a higher learning_rate")


def _only_trees(name: str, model: Model) -> Trees:
    """The trees of a model that consists of trees only."""
    if isinstance(model.scorer, Trees):
        return model.scorer
    networks = [part for part in walk(model.scorer) if isinstance(part, Network)]
    why = "it holds one sum of trees, and this model adds up several"
    fix = "train umart or lambdamart for it"
    if networks and all(network.layers[-1].is_double for network in networks):
        why = "it refuses scores below 0, and those of a linear model have no lower bound"
    elif networks:
        why = "it can hold only trees, and this model has networks"
    else:
        targets.check_parts(name, model, targets.lists(""))
        fix = "train without base"
    raise targets.refuse(name, why, fix)


def _write(name: str, title: str, model: Model, folder: Path) -> None:
    trees = _only_trees(name, model)
    signed = set(trees.feature[trees.threshold < 0].tolist())
    features = list[dict[str, Any]]()
    for k, name_of_field in enumerate(model.names):
        features += _signed(name_of_field, model.names) if k in signed else [_plain(name_of_field)]
    held = {"name": engine.NAME, "model": {"type": _TYPE, "definition": json.dumps(_definition(trees, model.names))}}
    rescore = {"rescore_query": {"sltr": {"params": {}, "model": engine.NAME}}}
    weights = {"query_weight": 0, "rescore_query_weight": 1}
    search = {"query": {"match_all": {}}, "rescore": {"window_size": 1000, "query": rescore | weights}}
    files = {
        "featureset.json": {"featureset": {"name": engine.NAME, "features": features}},
        "model.json": {"model": held},
        "search.json": search,
        "README.md": targets.text_of("elasticsearch.md").format(title=title),
    }
    engine.write_files(folder, files)


def _plain(name: str) -> dict[str, Any]:
    """A feature that is a numeric field of the document, which users replace by their own queries."""
    return _query(name, {"field_value_factor": {"field": name, "missing": 0}})


def _signed(name: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The same for a field that may be negative: its positive part minus its negative part."""
    above, below = (engine.unused_name(f"{name}_{side}_0", names) for side in ("above", "below"))
    scripts = {above: f"max(0, doc['{name}'].value)", below: f"max(0, -doc['{name}'].value)"}
    parts = [
        _query(part, {"script_score": {"script": {"lang": "expression", "source": source}}})
        for part, source in scripts.items()
    ]
    derived = {"template_language": "derived_expression", "template": f"{above} - {below}"}
    return [*parts, {"name": name, "params": []} | derived]


def _query(name: str, function: dict[str, Any]) -> dict[str, Any]:
    scored = {"query": {"match_all": {}}, **function, "boost_mode": "replace"}
    return {"name": name, "params": [], "template": {"function_score": scored}}


def _definition(trees: Trees, names: tuple[str, ...]) -> list[Any]:
    """The trees with node ids, as XGBoost writes them, and the constant."""
    columns = trees.feature.tolist(), engine.strict_thresholds(trees)
    splits = [{"split": names[feature], "split_condition": limit} for feature, limit in zip(*columns, strict=True)]
    nan_left = trees.nan_left.tolist()

    def split(node: int, left: Any, right: Any) -> dict[str, Any]:
        return splits[node] | {"children": [left, right], "default_left": nan_left[node]}

    roots: list[dict[str, Any]] = []
    for part in engine.for_float32_sums(trees):
        roots += engine.nested_nodes(part, lambda value: {"leaf": float(value)}, split)
    roots.append({"leaf": _constant(trees)})
    for root in roots:
        waiting, number = [(root, 0, 0)], 1
        while waiting:
            node, own, depth = waiting.pop()
            node["nodeid"] = own
            if "leaf" not in node:
                yes, no = number, number + 1
                number += 2
                node |= {"depth": depth, "yes": yes, "no": no, "missing": yes if node.pop("default_left") else no}
                waiting += [(child, k, depth + 1) for child, k in zip(node["children"], (yes, no), strict=True)]
    return roots


def _constant(trees: Trees) -> float:
    """A little more than minus the sum of the lowest leaves, with so few digits that float32 represents it exactly."""
    lowest = 1.001 * -float(trees.leaf_ranges()[0].sum())
    if lowest <= 0:
        return 0.0
    unit = 2.0 ** (np.ceil(np.log2(lowest)) - 4)
    return float(np.ceil(lowest / unit) * unit)


def _names(folder: Path) -> list[str]:
    """The names of the features, without those that are only parts of others."""
    features = engine.read_json(folder / "featureset.json")["featureset"]["features"]
    parts = {part for f in features if "template_language" in f for part in re.findall(r"\w+", f["template"])}
    return [name for name in engine.names_once(features) if name not in parts]


def _open(folder: Path) -> targets.Executor:
    """The rule of the plugin, applied to the written files. NaN if old and new versions score a document differently.

    Old versions take 0 for a missing value, and new ones follow ``missing``.
    """
    number = {name: k for k, name in enumerate(_names(folder))}
    held = engine.read_json(folder / "model.json")["model"]["model"]
    engine.expect(held, "type", _TYPE)

    def split(node: Any) -> tuple[Any, float, Any, Any, bool]:
        ids = node["yes"], node["no"]
        if ids != tuple(child["nodeid"] for child in node["children"]) or node["missing"] not in ids:
            expected = "the children that it names, one of them for missing values"
            raise DataError(where=f"node {node['nodeid']}", expected=expected)
        return number[node["split"]], node["split_condition"], *node["children"], node["missing"] == node["yes"]

    trees = engine.read_nodes(json.loads(held["definition"]), "leaf", split)
    goes_left = engine.below_threshold(trees)

    def run(features: NDArray[np.float32], offsets: NDArray[np.int64]) -> Floats:
        missing = np.isnan(features)
        total = engine.added_up(trees, np.where(missing, np.float32(0), features), goes_left, np.float32)
        if missing.any():
            follows = engine.added_up(trees, features, goes_left, np.float32)
            total = np.where(follows == total, total, np.float32(np.nan))
        return total.astype(np.float64)

    return run


def _target(name: str, title: str) -> targets.Target:
    return targets.Target(
        name,
        lambda model: _check(name, model),
        lambda model, folder: _write(name, title, model, folder),
        _open,
        lambda model: _constant(_only_trees(name, model)),
        names=_names,
    )


ELASTICSEARCH = _target("elasticsearch", "Elasticsearch")
OPENSEARCH = _target("opensearch", "OpenSearch")
