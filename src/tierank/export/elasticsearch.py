"""Elasticsearch and OpenSearch with their learning-to-rank plugin: trees as ``model/xgboost+json``.

The plugin goes left where x < threshold, in float32, so each threshold becomes the lowest float32 above it. Lucene
refuses scores below 0, so one more tree, of one leaf, adds a constant that none of the sums is below; it stands last,
because the plugin adds up in float32 and small sums round less. A feature without a value is 0 in older versions and
goes the way of ``missing`` in newer ones; both are given the same way, and trees that send 0 and missing values apart
are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.export.portable import Floats, Model, TreeBuilder, Trees
from tierank.export.target import Executor, Target, check_missing_is_zero, only_trees

_NAME = "tierank"


def _target(name: str, title: str) -> Target:
    def check(model: Model) -> None:
        check_missing_is_zero(name, only_trees(name, model))

    def write(model: Model, folder: Path) -> None:
        folder.mkdir()
        for file, body in _bodies(model).items():
            (folder / file).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(_README.format(title=title, name=_NAME), encoding="utf-8")

    return Target(name, check, write, _open, lambda model: _constant(only_trees(name, model)))


def _bodies(model: Model) -> dict[str, Any]:
    trees = only_trees("elasticsearch", model)
    features = [{"name": name, "params": [], "template": _template(name)} for name in model.names]
    definition = json.dumps(_definition(trees, model.names))
    held = {"name": _NAME, "model": {"type": "model/xgboost+json", "definition": definition}}
    search = {"window_size": 1000, "query": {"rescore_query": {"sltr": {"params": {}, "model": _NAME}}}}
    search["query"] |= {"query_weight": 0, "rescore_query_weight": 1}  # type: ignore[operator]
    return {
        "featureset.json": {"featureset": {"name": _NAME, "features": features}},
        "model.json": {"model": held},
        "search.json": {"query": {"match_all": {}}, "rescore": search},
    }


def _template(name: str) -> dict[str, Any]:
    """A feature that is a numeric field of the document: the part to be replaced by queries of one's own."""
    factor = {"field": name, "missing": 0}
    return {"function_score": {"query": {"match_all": {}}, "field_value_factor": factor, "boost_mode": "replace"}}


def _definition(trees: Trees, names: tuple[str, ...]) -> list[Any]:
    thresholds = np.nextafter(trees.floor_thresholds(), np.float32(np.inf)).tolist()
    values = trees.values.astype(np.float32).tolist()
    features, yes = trees.feature.tolist(), trees.nan_left.tolist()

    def split(node: int, left: Any, right: Any) -> dict[str, Any]:
        made = {"split": names[features[node]], "split_condition": thresholds[node]}
        return made | {"default_left": yes[node], "children": [left, right]}

    made = [*trees.nested(lambda leaf: {"leaf": values[leaf]}, split), {"leaf": _constant(trees)}]
    return [_numbered(tree) for tree in made]


def _numbered(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with the numbers of its nodes, as XGBoost writes them."""
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
    """More than the sum of the lowest leaves is below 0; in eighths, which float32 keeps exactly."""
    lowest = np.full(len(trees.roots), np.inf)
    np.minimum.at(lowest, trees.tree_of_leaf(), trees.values)
    return float(np.ceil(8 * max(0.0, -lowest.sum()) + 1) / 8)


def _open(folder: Path) -> Executor:
    """The plugin's rule, on the files that were written."""
    names = [
        f["name"]
        for f in json.loads((folder / "featureset.json").read_text(encoding="utf-8"))["featureset"]["features"]
    ]
    held = json.loads((folder / "model.json").read_text(encoding="utf-8"))["model"]["model"]
    number = {name: k for k, name in enumerate(names)}

    def read(node: dict[str, Any]) -> Any:
        if "leaf" in node:
            return float(node["leaf"])
        return number[node["split"]], node["split_condition"], *node["children"], 0, node["missing"] == node["yes"]

    builder = TreeBuilder()
    for tree in json.loads(held["definition"]):
        builder.add(tree, read)
    trees = builder.build()
    thresholds = trees.threshold.astype(np.float32)

    def run(features: NDArray[np.float32], offsets: NDArray[np.int64]) -> Floats:
        known = np.where(np.isnan(features), np.float32(0), features)
        total = np.zeros(len(features), np.float32)
        for values in trees.leaf_values(known, lambda splits, x: thresholds[splits] > x):
            total += values.astype(np.float32)
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
* `model.json`: the trees. Scores are those of tierank plus a constant, so that none is below 0.
* `search.json`: put your own query in place of `match_all`; the first `window_size` hits are ranked by the model.
"""

ELASTICSEARCH = _target("elasticsearch", "Elasticsearch")
OPENSEARCH = _target("opensearch", "OpenSearch")
