"""Vespa: trees in LightGBM's JSON, networks as ONNX, and the part of a schema that uses them.

Vespa's importer writes ``x < threshold`` or, where a missing value goes left, ``!(x >= threshold)``. What then runs
depends on the number and size of the trees: small forests are compiled, in double precision; large ones have thresholds
and leaves in float32. Both add up in double precision. So each threshold becomes the lowest float32 above it, and
leaves are rounded to float32 here: the score is the same either way. Each split says where a missing value (NaN, as for
an attribute without a value) goes. Trees need an ``objective``, which LightGBM leaves out for custom objectives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tierank.export import search_engine as engine
from tierank.export import targets
from tierank.export.neutral import Model, Scorer, Trees
from tierank.export.onnx import ONNX, names_of

_TREES, _NETWORK = Path("models", f"{engine.NAME}.json"), Path("models", f"{engine.NAME}.onnx")
# One of those whose trees are only added up.
_OBJECTIVE = "lambdarank"


def _check(model: Model) -> None:
    of_scorer = (targets.categories, targets.large_numbers, _zero_as_missing)
    limits = of_scorer if isinstance(model.scorer, Trees) else (targets.own_transforms, targets.large_numbers)
    targets.check_parts("vespa", model, targets.lists("'standard', 'log1p', 'quantile' or 'none'"), *limits)


def _zero_as_missing(part: Scorer) -> targets.Reason:
    if isinstance(part, Trees) and (part.zero_left != (part.threshold >= 0)).any():
        return "it compares 0 as a number, and these trees treat it as missing", "train with `zero_as_missing=False`"
    return None


def _write(model: Model, folder: Path) -> None:
    is_trees = isinstance(model.scorer, Trees)
    files = {f"{engine.NAME}.profile": _profile(model.names, is_trees)}
    files["README.md"] = targets.text_of("vespa.md").format(file=(_TREES if is_trees else _NETWORK).name)
    engine.write_files(folder, files)
    if isinstance(model.scorer, Trees):
        engine.write_files(folder, {str(_TREES): _dump(model.scorer, model.names)})
    else:
        (folder / _NETWORK).parent.mkdir()
        ONNX.write(model, folder / _NETWORK)


def _dump(trees: Trees, names: tuple[str, ...]) -> dict[str, Any]:
    """The keys of ``dump_model`` that the importer reads."""
    columns = trees.feature.tolist(), engine.strict_thresholds(trees), trees.nan_left.tolist()
    splits = [
        {"split_feature": feature, "threshold": threshold, "decision_type": "<=", "default_left": nan_left}
        for feature, threshold, nan_left in zip(*columns, strict=True)
    ]
    roots = engine.nested_nodes(
        trees,
        lambda value: {"leaf_value": float(value)},
        lambda split, left, right: splits[split] | {"left_child": left, "right_child": right},
    )
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
    lines = [f"rank-profile {engine.NAME} {{"]
    lines += [f"    function {name}() {{ expression: attribute({name}) }}" for name in names]
    if is_trees:
        score = f'lightgbm("{_TREES.name}")'
    else:
        row, inputs = ", ".join(names), engine.unused_name(f"{engine.NAME}_features", names)
        lines += [
            f"    function {inputs}() {{",
            f"        expression: tensor<float>(d0[1],d1[{len(names)}]):[[{row}]]",
            "    }",
            f"    onnx-model {engine.NAME} {{",
            f"        file: {_NETWORK.as_posix()}",
            f"        input features: {inputs}",
            "        output scores: scores",
            "    }",
        ]
        score = f"onnx({engine.NAME}).scores{{d0:0}}"
    lines += ["    first-phase { expression: nativeRank }", f"    second-phase {{ expression: {score} }}", "}"]
    return "\n".join(lines) + "\n"


def _names(folder: Path) -> list[str]:
    is_trees = (folder / _TREES).exists()
    return engine.read_json(folder / _TREES)["feature_names"] if is_trees else names_of(folder / _NETWORK)


def _open(folder: Path) -> targets.Executor:
    """The rule of the importer, applied to the written file; networks run in onnxruntime, as in Vespa."""
    if not (folder / _TREES).exists():
        return ONNX.open(folder / _NETWORK)
    written = engine.read_json(folder / _TREES)
    engine.expect(written, "objective", _OBJECTIVE)

    def split(node: Any) -> tuple[Any, float, Any, Any, bool]:
        engine.expect(node, "decision_type", "<=")
        children = node["left_child"], node["right_child"]
        return node["split_feature"], node["threshold"], *children, node["default_left"]

    trees = engine.read_nodes([tree["tree_structure"] for tree in written["tree_info"]], "leaf_value", split)
    goes_left = engine.below_threshold(trees)
    return lambda features, offsets: engine.added_up(trees, features, goes_left, np.float64)


VESPA = targets.Target("vespa", _check, _write, _open, names=_names)
