"""How search engines score, document by document, from the files that they are sent: slow twins of the executors.

Written from the sources of the engines: numbers are numpy's float32 where theirs are float, and plain floats where
theirs are double.
"""

import json
import math
import re

import numpy as np

F = np.float32


def elasticsearch(folder, row, *, follows_missing):
    """NaiveAdditiveDecisionTree: ``threshold > value`` goes left; new versions follow ``missing``, old ones see 0."""
    features = json.loads((folder / "featureset.json").read_text())["featureset"]["features"]
    values = elasticsearch_features(features, row, F("nan") if follows_missing else F(0))
    held = json.loads((folder / "model.json").read_text())["model"]["model"]
    assert held["type"] == "model/xgboost+json"

    def evaluate(node):
        if "leaf" in node:
            return F(node["leaf"])
        left, right = node["children"]
        assert (left["nodeid"], right["nodeid"]) == (node["yes"], node["no"])
        value = values[node["split"]]
        if math.isnan(value):
            return evaluate(left if node["missing"] == node["yes"] else right)
        with np.errstate(over="ignore"):
            return evaluate(left if F(node["split_condition"]) > value else right)

    total = F(0)
    for tree in json.loads(held["definition"], parse_constant=no_json):
        total = F(total + evaluate(tree))
    return float(total)


def elasticsearch_features(features, row, absent):
    """The features of a document one after the other; ``row`` has its fields in the order in which they are first used.

    No query gives a value below 0. A plain field that has one is used as the README says: as the larger of it and 0.
    """
    fields, values = {}, {}
    for feature in features:
        if feature.get("template_language") == "derived_expression":
            above, below = feature["template"].split(" - ")
            values[feature["name"]] = F(float(values[above]) - float(values[below]))
            continue
        (function,) = (v for k, v in feature["template"]["function_score"].items() if k not in ("query", "boost_mode"))
        if "script" in function:
            assert function["script"]["lang"] == "expression"
            sign, field = re.fullmatch(r"max\(0, (-?)doc\['(\w+)'\]\.value\)", function["script"]["source"]).groups()
        else:
            sign, field = "", function["field"]
        value = float(row[fields.setdefault(field, len(fields))])
        value = -value if sign else value
        values[feature["name"]] = absent if math.isnan(value) else F(max(0.0, value))
    assert len(fields) == len(row)
    return values


def no_json(word):
    """JSON has no infinity and no NaN, whatever Python reads."""
    raise ValueError(f"not JSON: {word}")


def solr(folder, row):
    """LTRScoringModel with its normalisers; a feature without a value is 0."""
    body, store = (json.loads((folder / file).read_text()) for file in ("model.json", "features.json"))
    field_of = {feature["name"]: feature["params"]["field"] for feature in store}
    fields = list(dict.fromkeys(field_of.values()))
    values = {}
    for feature in body["features"]:
        value = row[fields.index(field_of[feature["name"]])]
        value = F(0) if math.isnan(value) else F(value)
        if "norm" in feature:
            params = feature["norm"]["params"]
            assert F(params["std"]) > 0
            with np.errstate(over="ignore"):
                value = F(F(value - F(params["avg"])) / F(params["std"]))
        values[feature["name"]] = value
    kind = body["class"].rpartition(".")[2]
    return float({"MultipleAdditiveTreesModel": solr_trees, "NeuralNetworkModel": solr_network}[kind](body, values))


def solr_trees(body, values):
    def evaluate(node):
        if "value" in node:
            return F(node["value"])
        assert "inf" not in node["threshold"]  # Java knows Infinity alone
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


def vespa(folder, row, *, is_large):
    """The ranking expression of the LightGBM importer; a large forest has its thresholds and leaves in float32."""
    dump = json.loads((folder / "models" / "tierank.json").read_text(), parse_constant=no_json)
    assert dump["objective"] == "lambdarank"
    assert dump["pandas_categorical"] == []

    def number(value):
        with np.errstate(over="ignore"):
            return float(F(value)) if is_large else value

    def evaluate(node):
        if "leaf_value" in node:
            return number(node["leaf_value"])
        value, threshold = float(row[node["split_feature"]]), number(node["threshold"])
        left = not (value >= threshold) if node["default_left"] else value < threshold
        return evaluate(node["left_child"] if left else node["right_child"])

    return sum(evaluate(tree["tree_structure"]) for tree in dump["tree_info"])
