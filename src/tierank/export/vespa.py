"""Vespa: trees in LightGBM's JSON, networks as ONNX, and the part of a schema that uses them.

Vespa's importer writes ``x < threshold`` or, where a missing value goes left, ``!(x >= threshold)``. What then runs
depends on the number and size of the trees: small forests are compiled, in double precision; large ones have thresholds
and leaves in float32. Both add up in double precision. So each threshold becomes the lowest float32 above it, and
leaves are rounded to float32 here: the score is the same either way. Each split says where a missing value (NaN, as for
an attribute without a value) goes. Trees need an ``objective``, which LightGBM leaves out for custom objectives.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.export.onnx import ONNX, names_of
from tierank.export.portable import Model, TreeBuilder, Trees, as_float32
from tierank.export.target import (
    Executor,
    Target,
    check_pointwise,
    check_size,
    check_thresholds,
    check_transforms,
    check_weights,
    refuse,
    unused_name,
)
from tierank.types import Floats

_NAME = "tierank"
# One of those whose trees are only added up.
_OBJECTIVE = "lambdarank"


def _check(model: Model) -> None:
    check_pointwise("vespa", model, "'standard', 'log1p', 'quantile' or 'none'")
    trees = model.scorer
    if not isinstance(trees, Trees):
        check_transforms("vespa", model)
        check_weights("vespa", model)
        ONNX.check(model)
        return
    check_thresholds("vespa", model)
    check_size("vespa", trees)
    if (trees.zero_left != (trees.threshold >= 0)).any():
        raise refuse(
            "vespa",
            "it compares 0 as a number, and these trees treat it as missing",
            "train with zero_as_missing=False",
        )


def _write(model: Model, folder: Path) -> None:
    is_trees = isinstance(model.scorer, Trees)
    (folder / "models").mkdir(parents=True)
    if isinstance(model.scorer, Trees):
        text = json.dumps(_dump(model.scorer, model.names), indent=1)
        (folder / "models" / f"{_NAME}.json").write_text(text + "\n", encoding="utf-8")
    else:
        ONNX.write(model, folder / "models" / f"{_NAME}.onnx")
    (folder / f"{_NAME}.profile").write_text(_profile(model.names, is_trees), encoding="utf-8")
    (folder / "README.md").write_text(
        _README.format(name=_NAME, file=f"{_NAME}.{'json' if is_trees else 'onnx'}"), encoding="utf-8"
    )


def _dump(trees: Trees, names: tuple[str, ...]) -> dict[str, Any]:
    """The keys of ``dump_model`` that the importer reads."""
    thresholds, features, nan_left = trees.strict_thresholds(), trees.feature.tolist(), trees.nan_left.tolist()
    values = trees.values.astype(np.float32).tolist()

    def split(node: int, left: Any, right: Any) -> dict[str, Any]:
        return {
            "split_feature": features[node],
            "threshold": thresholds[node],
            "decision_type": "<=",
            "default_left": nan_left[node],
            "left_child": left,
            "right_child": right,
        }

    roots = trees.nested(lambda leaf: {"leaf_value": values[leaf]}, split)
    return {
        "name": "tree",
        "version": "v4",
        "num_class": 1,
        "objective": _OBJECTIVE,
        "feature_names": list(names),
        "feature_infos": {},
        "pandas_categorical": [],
        "tree_info": [{"tree_index": k, "tree_structure": root} for k, root in enumerate(roots)],
    }


def _profile(names: tuple[str, ...], is_trees: bool) -> str:
    lines = [f"rank-profile {_NAME} {{"]
    lines += [f"    function {name}() {{ expression: attribute({name}) }}" for name in names]
    if is_trees:
        score = f'lightgbm("{_NAME}.json")'
    else:
        row, inputs = ", ".join(names), unused_name(f"{_NAME}_features", names)
        lines += [
            f"    function {inputs}() {{",
            f"        expression: tensor<float>(d0[1],d1[{len(names)}]):[[{row}]]",
            "    }",
            f"    onnx-model {_NAME} {{",
            f"        file: models/{_NAME}.onnx",
            f"        input features: {inputs}",
            "        output scores: scores",
            "    }",
        ]
        score = f"onnx({_NAME}).scores{{d0:0}}"
    lines += ["    first-phase { expression: nativeRank }", f"    second-phase {{ expression: {score} }}", "}"]
    return "\n".join(lines) + "\n"


def _trees_of(folder: Path) -> Any:
    """The trees as they were written; None for a network."""
    file = folder / "models" / f"{_NAME}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _names(folder: Path) -> list[str]:
    written = _trees_of(folder)
    return names_of(folder / "models" / f"{_NAME}.onnx") if written is None else written["feature_names"]


def _open(folder: Path) -> Executor:
    """The rule of the importer, applied to the written file; networks run in onnxruntime, as in Vespa."""
    written = _trees_of(folder)
    if written is None:
        return ONNX.open(folder / "models" / f"{_NAME}.onnx")
    if written["objective"] != _OBJECTIVE:
        raise ValueError(f"objective {written['objective']!r}")

    def read(node: dict[str, Any]) -> Any:
        if "leaf_value" in node:
            return float(np.float32(node["leaf_value"]))
        if node["decision_type"] != "<=":
            raise ValueError(f"decision_type {node['decision_type']!r}")
        return (
            node["split_feature"],
            node["threshold"],
            node["left_child"],
            node["right_child"],
            0,
            node["default_left"],
        )

    builder = TreeBuilder()
    for tree in written["tree_info"]:
        builder.add(tree["tree_structure"], read)
    trees = builder.build(as_float32)

    def goes_left(splits: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.bool_]:
        thresholds = trees.threshold[splits]
        return np.where(trees.default_left[splits], ~(values >= thresholds), values < thresholds)

    def run(features: NDArray[np.float32], offsets: NDArray[np.int64]) -> Floats:
        return np.asarray(sum(trees.leaf_values(features, goes_left)), np.float64)

    return run


_README = """# A ranking model for Vespa

* Copy `models/{file}` into the folder `models` of the application package.
* Copy `{name}.profile` into the folder `schemas/SCHEMA` (or its text into the schema). Its functions read each feature
  from an attribute of the same name: replace an expression by your own (`bm25(title)`, `freshness(date)`) where the
  feature is one. The values must be those that the model was trained with.
* Rank with `ranking={name}` in the query.
"""

VESPA = Target("vespa", _check, _write, _open, names=_names)
