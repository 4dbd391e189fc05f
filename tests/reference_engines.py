"""How search engines score, document by document, from the files that they are sent: slow twins of the executors.

Written from the sources of the engines: numbers are numpy's float32 where theirs are float, and plain floats where
theirs are double.
"""

import json
import math

import numpy as np

F = np.float32


def elasticsearch(folder, row, *, follows_missing):
    """NaiveAdditiveDecisionTree: ``threshold > value`` goes left; new versions follow ``missing``, old ones see 0."""
    names = [f["name"] for f in json.loads((folder / "featureset.json").read_text())["featureset"]["features"]]
    held = json.loads((folder / "model.json").read_text())["model"]["model"]
    assert held["type"] == "model/xgboost+json"

    def evaluate(node):
        if "leaf" in node:
            return F(node["leaf"])
        left, right = node["children"]
        assert (left["nodeid"], right["nodeid"]) == (node["yes"], node["no"])
        value = F(row[names.index(node["split"])])
        if math.isnan(value):
            if follows_missing:
                return evaluate(left if node["missing"] == node["yes"] else right)
            value = F(0)
        return evaluate(left if F(node["split_condition"]) > value else right)

    total = F(0)
    for tree in json.loads(held["definition"]):
        total = F(total + evaluate(tree))
    return float(total)


def solr(folder, row):
    """LTRScoringModel with its normalisers; a feature without a value is 0."""
    body = json.loads((folder / "model.json").read_text())
    values = {}
    for feature, value in zip(body["features"], row, strict=True):
        value = F(0) if math.isnan(value) else F(value)
        if "norm" in feature:
            params = feature["norm"]["params"]
            assert float(params["std"]) > 0
            with np.errstate(over="ignore"):
                value = F(F(value - F(params["avg"])) / F(params["std"]))
        values[feature["name"]] = value
    kind = body["class"].rpartition(".")[2]
    return float({"MultipleAdditiveTreesModel": solr_trees, "NeuralNetworkModel": solr_network}[kind](body, values))


def solr_trees(body, values):
    def evaluate(node):
        if "value" in node:
            return F(node["value"])
        threshold = F(F(node["threshold"]) + F(1e-6))
        return evaluate(node["left"] if values[node["feature"]] <= threshold else node["right"])

    total = F(0)
    for tree in body["params"]["trees"]:
        total = F(total + F(F(tree["weight"]) * evaluate(tree["root"])))
    return total


def solr_network(body, values):
    activations = {
        "identity": lambda x: x,
        "relu": lambda x: F(0) if x < 0 else x,
        "leakyrelu": lambda x: F(F(0.01) * x) if x < 0 else x,
        "sigmoid": lambda x: F(1 / (1 + math.exp(-x))),
        "tanh": lambda x: F(math.tanh(x)),
    }
    inputs = list(values.values())
    for layer in body["params"]["layers"]:
        assert all(isinstance(number, float) for line in [*layer["matrix"], layer["bias"]] for number in line)
        outputs = []
        for weights, bias in zip(layer["matrix"], layer["bias"], strict=True):
            total = F(bias)
            for weight, value in zip(weights, inputs, strict=True):
                total = F(total + F(F(weight) * value))
            outputs.append(activations[layer["activation"]](total))
        inputs = outputs
    (score,) = inputs
    return score


def vespa(folder, row):
    """The ranking expression of the LightGBM importer, in double precision."""
    dump = json.loads((folder / "models" / "tierank.json").read_text())
    assert dump["objective"] == "lambdarank"
    assert dump["pandas_categorical"] == []

    def evaluate(node):
        if "leaf_value" in node:
            return node["leaf_value"]
        value, threshold = float(row[node["split_feature"]]), node["threshold"]
        left = not (value >= threshold) if node["default_left"] else value < threshold
        return evaluate(node["left_child"] if left else node["right_child"])

    return sum(evaluate(tree["tree_structure"]) for tree in dump["tree_info"])
