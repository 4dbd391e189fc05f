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

from tierank.export.portable import Model, TreeBuilder, Trees, as_float32
from tierank.export.target import (
    Executor,
    Target,
    check_missing_is_zero,
    check_size,
    check_thresholds,
    for_float32_sums,
    only_trees,
    refuse,
    unused_name,
)
from tierank.types import Floats

_NAME = "tierank"
# The constant is larger than the spread of the scores by about the square root of the number of trees. With more trees
# than this, fewer than five digits would be left for the scores.
_MOST_TREES = 10_000


def _target(name: str, title: str) -> Target:
    def check(model: Model) -> None:
        trees = only_trees(name, model)
        check_thresholds(name, model)
        check_missing_is_zero(name, trees)
        check_size(name, trees)
        if len(trees.roots) > _MOST_TREES:
            raise refuse(
                name,
                "it adds up in single precision, above a constant that keeps scores from being negative, and"
                f" {len(trees.roots):,} trees leave too few digits to the differences",
                f"train with n_trees={_MOST_TREES} at most, and a higher learning_rate",
            )

    def write(model: Model, folder: Path) -> None:
        folder.mkdir()
        for file, body in _bodies(model).items():
            (folder / file).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(_README.format(title=title, name=_NAME), encoding="utf-8")

    return Target(name, check, write, _open, lambda model: _constant(only_trees(name, model)), names=_names)


def _bodies(model: Model) -> dict[str, Any]:
    trees = only_trees("elasticsearch", model)
    signed = set(trees.feature[trees.threshold < 0].tolist())
    features = [
        one for k, name in enumerate(model.names) for one in (_signed if k in signed else _plain)(name, model.names)
    ]
    definition = json.dumps(_definition(trees, model.names))
    held = {"name": _NAME, "model": {"type": "model/xgboost+json", "definition": definition}}
    search = {"window_size": 1000, "query": {"rescore_query": {"sltr": {"params": {}, "model": _NAME}}}}
    search["query"] |= {"query_weight": 0, "rescore_query_weight": 1}  # type: ignore[operator]
    return {
        "featureset.json": {"featureset": {"name": _NAME, "features": features}},
        "model.json": {"model": held},
        "search.json": {"query": {"match_all": {}}, "rescore": search},
    }


def _plain(name: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """A feature that is a numeric field of the document, which users replace by their own queries."""
    return [_query(name, {"field_value_factor": {"field": name, "missing": 0}})]


def _signed(name: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The same for a field that may be negative: its positive part minus its negative part."""
    above, below = (unused_name(f"{name}_{side}_0", names) for side in ("above", "below"))
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
    thresholds, features, yes = trees.strict_thresholds(), trees.feature.tolist(), trees.nan_left.tolist()

    def split(node: int, left: Any, right: Any) -> dict[str, Any]:
        made = {"split": names[features[node]], "split_condition": thresholds[node]}
        return made | {"default_left": yes[node], "children": [left, right]}

    made = []
    for part in for_float32_sums(trees):
        leaves = [{"leaf": value} for value in part.values.astype(np.float32).tolist()]
        made += part.nested(leaves.__getitem__, split)
    return [_numbered(tree) for tree in (*made, {"leaf": _constant(trees)})]


def _numbered(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with node ids, as XGBoost writes them."""
    waiting, number = [(tree, 0, 0)], 1
    while waiting:
        node, own, depth = waiting.pop()
        node["nodeid"] = own
        if "leaf" not in node:
            yes, no = number, number + 1
            number += 2
            node |= {"depth": depth, "yes": yes, "no": no, "missing": yes if node.pop("default_left") else no}
            waiting += [(child, k, depth + 1) for child, k in zip(node["children"], (yes, no), strict=True)]
    return tree


def _constant(trees: Trees) -> float:
    """A little more than minus the sum of the lowest leaves, with so few digits that float32 represents it exactly."""
    lowest = 1.001 * -float(trees.leaf_ranges()[0].sum())
    if lowest <= 0:
        return 0.0
    unit = 2.0 ** (np.ceil(np.log2(lowest)) - 4)
    return float(np.ceil(lowest / unit) * unit)


def _names(folder: Path) -> list[str]:
    """The names of the features, without those that are only parts of others."""
    features = json.loads((folder / "featureset.json").read_text(encoding="utf-8"))["featureset"]["features"]
    names = [feature["name"] for feature in features]
    if len(set(names)) < len(names):
        raise ValueError("duplicate feature")
    parts = {part for f in features if "template_language" in f for part in re.findall(r"\w+", f["template"])}
    return [name for name in names if name not in parts]


def _open(folder: Path) -> Executor:
    """The rule of the plugin, applied to the written files. NaN if old and new versions score a document differently.

    Old versions take 0 for a missing value, and new ones follow ``missing``.
    """
    number = {name: k for k, name in enumerate(_names(folder))}
    held = json.loads((folder / "model.json").read_text(encoding="utf-8"))["model"]["model"]
    if held["type"] != "model/xgboost+json":
        raise ValueError(f"type {held['type']!r}")

    def read(node: dict[str, Any]) -> Any:
        if "leaf" in node:
            return float(node["leaf"])
        ids = node["yes"], node["no"]
        if ids != tuple(child["nodeid"] for child in node["children"]) or node["missing"] not in ids:
            raise ValueError(f"children of node {node['nodeid']}")
        return number[node["split"]], node["split_condition"], *node["children"], 0, node["missing"] == node["yes"]

    builder = TreeBuilder()
    for tree in json.loads(held["definition"]):
        builder.add(tree, read)
    trees = builder.build(as_float32)

    def added(features: NDArray[np.float32]) -> NDArray[np.float32]:
        def goes_left(splits: NDArray[np.int64], x: NDArray[np.float32]) -> NDArray[np.bool_]:
            return np.where(np.isnan(x), trees.default_left[splits], trees.threshold[splits] > x)

        total = np.zeros(len(features), np.float32)
        for values in trees.leaf_values(features, goes_left):
            total += values.astype(np.float32)
        return total

    def run(features: NDArray[np.float32], offsets: NDArray[np.int64]) -> Floats:
        missing = np.isnan(features)
        total = added(np.where(missing, np.float32(0), features))
        if missing.any():
            total = np.where(added(features) == total, total, np.float32(np.nan))
        return total.astype(np.float64)

    return run


_README = """# A ranking model for {title}

Needs the learning-to-rank plugin. Send the bodies in this order:

```
curl -X PUT  "$HOST/_ltr"
curl -X POST "$HOST/_ltr/_featureset/{name}" -H 'Content-Type: application/json' -d @featureset.json
curl -X POST "$HOST/_ltr/_featureset/{name}/_createmodel" -H 'Content-Type: application/json' -d @model.json
curl -X POST "$HOST/INDEX/_search" -H 'Content-Type: application/json' -d @search.json
```

* `featureset.json`: each feature is here a numeric field of the document with the name of the feature. Replace a
  template by your own query where a feature is one. Names and order must stay, and the values must be those that the
  model was trained with; a feature without a value counts as 0.
* Queries give no values below 0. So a feature that the trees split below 0 is here the difference of two scripts,
  `..._above_0` and `..._below_0`. All other features are split at 0 and above only: where such a field has values
  below 0, `field_value_factor` fails, and `max(0, doc['FIELD'].value)` as a script is the same to the trees.
* `model.json`: the trees. Scores are those of tierank plus a constant, so that none is below 0.
* `search.json`: put your own query in place of `match_all`; the first `window_size` hits are ranked by the model.
"""

ELASTICSEARCH = _target("elasticsearch", "Elasticsearch")
OPENSEARCH = _target("opensearch", "OpenSearch")
