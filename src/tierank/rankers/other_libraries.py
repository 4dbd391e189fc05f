"""Models of XGBoost and CatBoost as fitted rankers: their trees in LightGBM's text form, split for split."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tierank.errors import DataError, ParameterError, TierankError
from tierank.files import as_path
from tierank.rankers.trees import LightGBMRanker, ranker_of_text

# Objectives of XGBoost whose score is the sum of the leaves.
_SUMS = ("rank:ndcg", "rank:pairwise", "rank:map", "reg:squarederror")
# Where a split sends missing values: left, right, or nowhere, as training saw none.
LEFT, RIGHT, NOWHERE = 10, 8, 0
# The documents of a tree, for explanations and importances: leaves have their shares of these, and at least one.
_COUNTED = 1_000_000

# What a walk finds: a split as (feature, threshold, where missing values go, left child, right child), or a leaf as
# (value, weight of the training documents in it).
Node = tuple[int, float, int, Any, Any] | tuple[float, float]


@dataclass
class FlatTree:
    """A tree of another library: splits by number, each before those below it; ~k is leaf k, with a count each."""

    feature: list[int] = field(default_factory=list)
    threshold: list[float] = field(default_factory=list)
    decision: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Its lines in LightGBM's text. The gain of a split is by how much it spreads the mean values below it."""
        n_splits = len(self.feature)
        mean, count, gain = [0.0] * n_splits, [0] * n_splits, [0.0] * n_splits
        for k in reversed(range(n_splits)):  # children first
            sides = [(mean[c], count[c]) if c >= 0 else (self.values[~c], self.counts[~c]) for c in self._children(k)]
            count[k] = sum(n for _, n in sides)
            mean[k] = sum(value * n for value, n in sides) / count[k]
            gain[k] = sum((value - mean[k]) ** 2 * n for value, n in sides)
        arrays: dict[str, list[Any]] = {
            "num_leaves": [len(self.values)], "num_cat": [0], "split_feature": self.feature, "split_gain": gain,
            "threshold": self.threshold, "decision_type": self.decision, "left_child": self.left,
            "right_child": self.right, "leaf_value": self.values, "leaf_weight": self.counts,
            "leaf_count": self.counts, "internal_value": mean, "internal_weight": count, "internal_count": count,
            "is_linear": [0], "shrinkage": [1],
        }  # fmt: skip
        for name, values in arrays.items():
            yield f"{name}={' '.join(map(repr, values))}\n"

    def _children(self, k: int) -> tuple[int, int]:
        return self.left[k], self.right[k]


def text_of_trees(trees: Sequence[FlatTree], n_features: int) -> str:
    """The sum of trees of another library, in LightGBM's text form."""
    texts = [f"Tree={number}\n{''.join(tree.lines())}\n\n" for number, tree in enumerate(trees)]
    names, ranges = " ".join(f"Column_{j}" for j in range(n_features)), " ".join(["none"] * n_features)
    head = (
        f"tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx={n_features - 1}\n"
        f"objective=lambdarank\nfeature_names={names}\nfeature_infos={ranges}\n"
        f"tree_sizes={' '.join(str(len(text)) for text in texts)}\n\n"
    )
    tail = "end of trees\n\nfeature_importances:\n\nparameters:\n\nend of parameters\n\npandas_categorical:null\n"
    return f"{head}{''.join(texts)}{tail}"


def _flattened(root: Any, open_node: Callable[[Any], Node]) -> FlatTree:
    """A tree from a walk of it; ``open_node`` tells what a node is. Documents go left where x <= threshold."""
    tree, weights = FlatTree(), list[float]()
    waiting: list[tuple[Any, list[int], int]] = [(root, [0], 0)]  # a node, and where its number belongs
    while waiting:
        node, children, place = waiting.pop()
        match open_node(node):
            case value, weight:
                children[place] = ~len(tree.values)
                tree.values.append(value)
                weights.append(weight)
            case feature, threshold, decision, left, right:
                number = children[place] = len(tree.feature)
                tree.feature.append(feature)
                tree.threshold.append(threshold)
                tree.decision.append(decision)
                tree.left.append(0)
                tree.right.append(0)
                waiting += [(right, tree.right, number), (left, tree.left, number)]
    share = _COUNTED / max(sum(weights), np.finfo(np.float64).tiny)
    tree.counts = [max(1, round(weight * share)) for weight in weights]
    return tree


def from_xgboost(model: Any, *, feature_names: Sequence[str] | None = None) -> LightGBMRanker:
    """A trained XGBoost model as a fitted ranker.

    Parameters
    ----------
    model : xgboost.Booster, xgboost.XGBRanker or path
        The model, or the JSON file that ``save_model("model.json")`` wrote: boosted trees of a ranking objective or of
        squared error, without categories. If training stopped early, the best round is used, as by ``XGBRanker``.
    feature_names : sequence of str, optional
        One name per feature, in place of the names in the model.

    Returns
    -------
    LightGBMRanker
        A ranker in which every document reaches the same leaves. XGBoost adds them up in single precision and tierank
        in double, so scores are equal within rounding: about 1e-7 of the largest sum.

    Raises
    ------
    DataError
        If the file cannot be read, or the model has something other than such trees.

    Examples
    --------
    >>> import json, tempfile, tierank
    >>> tree = {"left_children": [1, -1, -1], "right_children": [2, -1, -1], "split_indices": [0, 0, 0],
    ...         "split_conditions": [0.5, -1.0, 1.0], "default_left": [1, 0, 0], "split_type": [0, 0, 0],
    ...         "sum_hessian": [5.0, 3.0, 2.0]}
    >>> trees = {"gbtree_model_param": {"num_parallel_tree": "1"}, "trees": [tree]}
    >>> facts = {"base_score": "0", "num_class": "0", "num_feature": "1"}
    >>> learner = {"gradient_booster": {"name": "gbtree", "model": trees}, "learner_model_param": facts,
    ...            "objective": {"name": "rank:ndcg"}, "attributes": {}, "feature_names": []}
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:  # what save_model("model.json") writes
    ...     json.dump({"learner": learner}, file)
    ...     file.flush()
    ...     tierank.from_xgboost(file.name).predict([[0.25], [0.5]]).tolist()
    [-1.0, 1.0]
    """
    with _reading(model, "XGBoost"):
        learner = _content(model, "XGBoost")["learner"]
        booster, facts = learner["gradient_booster"], learner["learner_model_param"]
        objective = learner["objective"]["name"]
        if booster["name"] != "gbtree" or objective not in _SUMS or facts["num_class"] not in ("0", "1"):
            raise DataError(expected=f"boosted trees of {', '.join(_SUMS)}", got=f"{booster['name']} of {objective}")
        best = learner["attributes"].get("best_iteration")
        per_round = int(booster["model"]["gbtree_model_param"]["num_parallel_tree"])
        trees = booster["model"]["trees"][: None if best is None else (int(best) + 1) * per_round]
        if any(any(tree["split_type"]) for tree in trees):
            raise DataError(expected="numeric features", got="splits by category")
        flat = [_flattened(0, _xgboost_node(tree)) for tree in trees]
        constant = float(np.float32(facts["base_score"].strip("[]")))
        names = feature_names or learner["feature_names"] or None
        return _ranker(flat, 1.0, constant, int(facts["num_feature"]), names)


def _xgboost_node(tree: dict[str, Any]) -> Callable[[int], Node]:
    """XGBoost sends x left if x < condition, in single precision: if x is at most the number before it."""

    def open_node(node: int) -> Node:
        condition = np.float32(tree["split_conditions"][node])
        if tree["left_children"][node] < 0:
            return float(condition), float(tree["sum_hessian"][node])
        below = float(np.nextafter(condition, np.float32(-np.inf)))
        missing = LEFT if tree["default_left"][node] else RIGHT
        children = tree["left_children"][node], tree["right_children"][node]
        return tree["split_indices"][node], below, missing, *children

    return open_node


def from_catboost(model: Any, *, feature_names: Sequence[str] | None = None) -> LightGBMRanker:
    """A trained CatBoost model as a fitted ranker.

    Parameters
    ----------
    model : catboost.CatBoost or path
        The model, or the JSON file that ``save_model("model.json", format="json")`` wrote: symmetric or other trees
        with one score per row, without categories, texts and embeddings.
    feature_names : sequence of str, optional
        One name per feature, in place of the names in the model.

    Returns
    -------
    LightGBMRanker
        A ranker in which every document reaches the same leaves; scores are equal within the rounding of double
        precision. Missing values go where they went in training; if training saw none, they count as 0.

    Raises
    ------
    DataError
        If the file cannot be read, or the model has something other than such trees.

    Examples
    --------
    >>> import json, tempfile, tierank
    >>> feature = {"flat_feature_index": 0, "feature_id": "", "has_nans": False, "nan_value_treatment": "AsIs"}
    >>> split = {"float_feature_index": 0, "border": 0.5}
    >>> tree = {"splits": [split], "leaf_values": [-1.0, 1.0], "leaf_weights": [3, 2]}
    >>> model = {"features_info": {"float_features": [feature]}, "oblivious_trees": [tree], "scale_and_bias": [1, [0]]}
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:  # what save_model writes with format="json"
    ...     json.dump(model, file)
    ...     file.flush()
    ...     tierank.from_catboost(file.name).predict([[0.5], [0.75]]).tolist()
    [-1.0, 1.0]
    """
    with _reading(model, "CatBoost"):
        content = _content(model, "CatBoost")
        info = content["features_info"]
        others = [kind for kind in ("categorical", "text", "embedding") if info.get(f"{kind}_features")]
        if others:
            raise DataError(expected="numeric features", got=f"{others[0]} features")
        scale, bias = content["scale_and_bias"]
        if len(bias) != 1:
            raise DataError(expected="a model with one score per row", got=f"{len(bias)} scores")
        features = info["float_features"]
        if "oblivious_trees" in content:
            flat = [_flattened((0, 0), _symmetric_node(tree, features)) for tree in content["oblivious_trees"]]
        else:
            flat = [_flattened(tree, _nested_node(features)) for tree in content["trees"]]
        own = [one["feature_id"] for one in features]
        names = feature_names or (own if all(own) else None)
        return _ranker(flat, scale, bias[0], 1 + max(one["flat_feature_index"] for one in features), names)


def _catboost_split(split: dict[str, Any], features: list[dict[str, Any]]) -> tuple[int, float, int]:
    """The feature, the border, above which x goes right, and where missing values go."""
    feature = features[split["float_feature_index"]]
    missing = {"AsFalse": LEFT, "AsTrue": RIGHT}.get(feature["nan_value_treatment"], LEFT)
    return feature["flat_feature_index"], split["border"], missing if feature["has_nans"] else NOWHERE


def _symmetric_node(tree: dict[str, Any], features: list[dict[str, Any]]) -> Callable[[tuple[int, int]], Node]:
    """Of a tree with one split per level: the answer to split k is bit k of the leaf's number."""
    splits = [_catboost_split(split, features) for split in tree["splits"]]

    def open_node(node: tuple[int, int]) -> Node:
        level, leaf = node
        if level == len(splits):
            return float(tree["leaf_values"][leaf]), float(tree["leaf_weights"][leaf])
        return *splits[level], (level + 1, leaf), (level + 1, leaf | 1 << level)

    return open_node


def _nested_node(features: list[dict[str, Any]]) -> Callable[[dict[str, Any]], Node]:
    def open_node(node: dict[str, Any]) -> Node:
        if "split" not in node:
            return float(node["value"]), float(node["weight"])
        return *_catboost_split(node["split"], features), node["left"], node["right"]

    return open_node


def _ranker(
    trees: list[FlatTree], scale: float, constant: float, n_features: int, names: Sequence[str] | None
) -> LightGBMRanker:
    """The sum of the trees times the scale, plus a constant, which the leaves of the first tree take up."""
    for number, tree in enumerate(trees):
        tree.values = [value * scale + (constant if number == 0 else 0.0) for value in tree.values]
    return ranker_of_text(text_of_trees(trees, n_features), "model", feature_names=names)


def _content(model: Any, library: str) -> dict[str, Any]:
    """The JSON form of a model, or of the file that it was saved to."""
    is_xgboost = library == "XGBoost"
    if hasattr(model, "save_model"):
        with TemporaryDirectory(prefix="tierank-") as folder:
            path = Path(folder, "model.json")
            model.save_model(str(path), **({} if is_xgboost else {"format": "json"}))
            return _content(path, library)
    if not isinstance(model, (str, os.PathLike)):
        expected = f"a model of {library}, or the path of its JSON file"
        raise ParameterError(argument="model", expected=expected, got=type(model).__name__)
    try:
        content = json.loads(as_path(model, "model").read_bytes())
    except OSError as error:
        raise DataError(expected="a file that can be read", got=f": {error.strerror}") from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or ("learner" if is_xgboost else "features_info") not in content:
        fix = "save it as model.json" + ("" if is_xgboost else ", with format='json'")
        raise DataError(expected=f"a model of {library} in JSON", got="something else", fix=fix)
    return content


@contextmanager
def _reading(model: Any, library: str) -> Iterator[None]:
    """Errors say which file it is, and that it is damaged if it is not as the library writes it."""
    where = model if isinstance(model, (str, os.PathLike)) else "model"
    try:
        yield
    except TierankError as error:
        raise error.at(os.fspath(where)) if error.where is None else error from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        got = f"a damaged one: {type(error).__name__} {error}"
        raise DataError(where=where, expected=f"a complete model of {library}", got=got) from None
