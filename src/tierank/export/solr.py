"""Solr's learning-to-rank module: ``MultipleAdditiveTreesModel`` and ``NeuralNetworkModel``.

Solr adds 1e-6 to every threshold in float32 when it loads trees, so thresholds are written lower. If no float32
restores the threshold, the feature is first multiplied by a power of two (a normaliser of Solr), which does not change
comparisons; if that is too much for its other thresholds, the feature is included twice. Leaves are added up in
float32: see ``for_float32_sums``. A feature without a value is 0. Networks run in float32; those of uBoost are combined
into one network.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from tierank.errors import ParameterError
from tierank.export.portable import Layer, Model, Network, Sum, TreeBuilder, Trees, as_float32
from tierank.export.target import (
    LEAST,
    MOST,
    Executor,
    Target,
    check_missing_is_zero,
    check_pointwise,
    check_size,
    check_thresholds,
    check_transforms,
    check_weights,
    for_float32_sums,
    refuse,
    unused_name,
)
from tierank.transforms import Log1p, Quantile, SideBySide, Standard, Transform
from tierank.types import Floats

_NAME = "tierank"
_SLACK = np.float32(1e-6)
# The powers of two that features may be multiplied by: one over each is a float32 number.
_POWERS = range(150)
_ACTIVATIONS = {
    "identity": "identity",
    "leaky_relu": "leakyrelu",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
}
_TRANSFORMS = "'standard' or 'none'"
# Documents scored at a time here, so that they fit the cache.
_BLOCK = 256
_PACKAGE = "org.apache.solr.ltr"


def _check(model: Model) -> None:
    check_pointwise("solr", model, _TRANSFORMS)
    check_transforms("solr", model)
    check_thresholds("solr", model)
    if isinstance(model.scorer, Trees):
        check_missing_is_zero("solr", model.scorer)
        check_size("solr", model.scorer)
        _Scaled(model.scorer)
    else:
        check_weights("solr", model)
        _check_transform(_one_network(model).transform, model.has_missing)


def _check_transform(transform: Transform, has_missing: bool) -> None:
    if isinstance(transform, SideBySide):
        raise _several_transforms()
    if isinstance(transform, (Log1p, Quantile)):
        raise refuse(
            "solr",
            f"it has no normaliser like the transform {type(transform).__name__}",
            f"train with feature_transform={_TRANSFORMS}",
        )
    if has_missing and isinstance(transform, Standard):
        raise refuse(
            "solr",
            "it treats a missing value as 0, and the transform 'standard' treats it as the mean",
            "replace missing values by 0 before training, or train with feature_transform='none'",
        )
    if isinstance(transform, Standard):
        _check_scale(transform)


def _check_scale(transform: Standard) -> None:
    """Raise ``ParameterError`` if Solr cannot scale by the mean or deviation of a feature in float32."""
    varies = transform.scale_ > 0
    deviation = 1 / np.where(varies, transform.scale_, 1.0)
    sound = (deviation >= LEAST) & (np.maximum(deviation, np.abs(transform.center_)) <= MOST)
    if not sound[varies].all():
        feature = int(np.flatnonzero(varies & ~sound)[0])
        raise refuse(
            "solr",
            f"it scales in single precision, and feature {feature} has a mean of {transform.center_[feature]:.0e} and a"
            f" deviation of {deviation[feature]:.0e}",
            "take the logarithm of that feature, or multiply it by a constant, before training",
        )


def _write(model: Model, folder: Path) -> None:
    folder.mkdir()
    if isinstance(model.scorer, Trees):
        written = _trees_body(model, model.scorer)
        columns = _columns(model, model.scorer, _Scaled(model.scorer))
        fields = {name: model.names[feature] for (feature, _), name in columns.items()}
    else:
        written, fields = _network_body(model), {name: name for name in model.names}
    features = [
        {"store": _NAME, "name": name, "class": f"{_PACKAGE}.feature.FieldValueFeature", "params": {"field": field}}
        for name, field in fields.items()
    ]
    (folder / "features.json").write_text(json.dumps(features, indent=1) + "\n", encoding="utf-8")
    (folder / "model.json").write_text(
        json.dumps({"store": _NAME, "name": _NAME} | written, indent=1) + "\n", encoding="utf-8"
    )
    (folder / "README.md").write_text(_README.format(name=_NAME), encoding="utf-8")


# Trees


class _Scaled:
    """Thresholds that are right after Solr has added its slack to them.

    ``powers`` are the exponents of the powers of two that the feature of each split is multiplied by. The splits of a
    feature share one exponent, or have 0 and one other.
    """

    def __init__(self, trees: Trees) -> None:
        self.written = np.empty_like(trees.threshold)
        self.powers = np.zeros(len(trees.threshold), np.int64)
        for feature in np.unique(trees.feature).tolist():
            splits = np.flatnonzero(trees.feature == feature)
            without = _before_slack(trees.threshold[splits])[1]
            if not (
                self._take(trees, splits)
                or (self._take(trees, splits[without]) and self._take(trees, splits[~without]))
            ):
                raise refuse(
                    "solr",
                    f"it adds 1e-6 to thresholds, and feature {feature} has both such small and such large thresholds"
                    " that no scale undoes it",
                    "take the logarithm of that feature before training",
                )

    def _take(self, trees: Trees, splits: NDArray[np.int64]) -> bool:
        """Scale these splits of a feature by the lowest power that works for all of them, if there is one."""
        wanted = trees.threshold[splits]
        for power in _POWERS:
            scaled = as_float32(np.ldexp(wanted.astype(np.float64), power))
            found, reached = _before_slack(scaled)
            if reached.all() and (np.isfinite(scaled) == np.isfinite(wanted)).all():
                self.written[splits], self.powers[splits] = found, power
                return True
        return False


def _before_slack(wanted: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Numbers that give the wanted thresholds after the slack is added in float32, and where such numbers exist."""
    found, reached = wanted - _SLACK, np.zeros(len(wanted), bool)
    for toward in (np.float32(np.inf), np.float32(-np.inf)):
        candidate = wanted - _SLACK
        for _ in range(4):
            hit = ~reached & (candidate + _SLACK == wanted)
            found[hit], reached = candidate[hit], reached | hit
            with np.errstate(over="ignore"):
                candidate = np.nextafter(candidate, toward)
    return found, reached


def _trees_body(model: Model, trees: Trees) -> dict[str, Any]:
    scaled = _Scaled(trees)
    columns, thresholds = _columns(model, trees, scaled), _numbers(scaled.written)
    keys = list(zip(trees.feature.tolist(), scaled.powers.tolist(), strict=True))

    def split(node: int, left: Any, right: Any) -> dict[str, Any]:
        return {"feature": columns[keys[node]], "threshold": thresholds[node], "left": left, "right": right}

    roots = []
    for part in for_float32_sums(trees):
        leaves = [{"value": value} for value in _numbers(part.values)]
        roots += part.nested(leaves.__getitem__, split)
    return {
        "class": f"{_PACKAGE}.model.MultipleAdditiveTreesModel",
        "features": [
            {"name": name} | (_norm(0.0, 2.0**-power) if power else {}) for (_, power), name in columns.items()
        ],
        "params": {"trees": [{"weight": "1", "root": root} for root in roots]},
    }


def _columns(model: Model, trees: Trees, scaled: _Scaled) -> dict[tuple[int, int], str]:
    """The name of each feature with its power of two; a feature that needs two powers has a second name."""
    columns = {}
    for feature, name in enumerate(model.names):
        first, *second = np.unique(scaled.powers[trees.feature == feature]).tolist() or [0]
        columns[feature, first] = name
        columns |= {(feature, power): unused_name(f"{name}_near_0", model.names) for power in second}
    return columns


def _numbers(values: NDArray[Any]) -> list[str]:
    """The numbers as texts that Java reads as the same float32."""
    return [str(value).replace("inf", "Infinity") for value in values.astype(np.float32)]


def _norm(average: float, deviation: float) -> dict[str, Any]:
    numbers = {"avg": str(np.float32(average)), "std": str(np.float32(deviation))}
    return {"norm": {"class": f"{_PACKAGE}.norm.StandardNormalizer", "params": numbers}}


# Networks


def _one_network(model: Model) -> Network:
    """The network that gives the scores. Raises ``ParameterError`` if Solr cannot represent it."""
    scorer = model.scorer
    parts = scorer.parts if isinstance(scorer, Sum) else ((1.0, scorer),)
    networks = [part for _, part in parts if isinstance(part, Network)]
    if len(networks) < len(parts):
        raise refuse("solr", "it cannot add models of two kinds", "train without base")
    if len({network.scaling for network in networks}) > 1:
        raise _several_transforms()
    for network in networks:
        _check_layers(network)
    if len({tuple(layer.activation for layer in network.layers) for network in networks}) > 1:
        raise refuse(
            "solr",
            "a layer has one activation there, and the learners of this model have different ones",
            "train with output_activation=None, and urboost with n_learners=1",
        )
    if len(networks) > 1 and networks[0].layers[-1].activation != "identity":
        raise refuse("solr", "learners have an activation on their scores", "train with output_activation=None")
    layers = networks[0].layers if len(parts) == 1 else _side_by_side(networks, [weight for weight, _ in parts])
    return Network(networks[0].transform, False, layers)


def _several_transforms() -> ParameterError:
    return refuse(
        "solr",
        "it scales a feature in one way, and this model uses several transforms of it",
        f"train with feature_transform={_TRANSFORMS} and encoding='none'",
    )


def _check_layers(network: Network) -> None:
    for layer in network.layers:
        if layer.keeps_input:
            raise refuse(
                "solr",
                "its layers see only the layer before them, and urboost's score sees two",
                "train with score_from='state'",
            )
        if layer.activation not in _ACTIVATIONS:
            raise refuse(
                "solr",
                f"it has no activation {layer.activation!r}",
                "train with activation='relu', 'leaky_relu', 'sigmoid' or 'tanh'",
            )


def _side_by_side(networks: list[Network], weights: list[float]) -> tuple[Layer, ...]:
    """One network: the first layers stacked, the middle layers as diagonal blocks, the last layers added up."""
    layers = []
    for depth, level in enumerate(zip(*(network.layers for network in networks), strict=True)):
        matrices = [layer.weights for layer in level]
        bias = np.concatenate([layer.bias for layer in level])
        is_last = depth == len(networks[0].layers) - 1
        if is_last:
            scaled = [weight * matrix for weight, matrix in zip(weights, matrices, strict=True)]
            matrix, bias = np.concatenate(scaled, axis=1), np.array([np.dot(weights, bias)])
            if depth == 0:
                matrix = np.sum(scaled, axis=0)
        else:
            matrix = np.concatenate(matrices) if depth == 0 else block_diag(*matrices)
        layers.append(Layer(matrix.astype(np.float32), bias.astype(np.float32), level[0].activation))
    return tuple(layers)


def _network_body(model: Model) -> dict[str, Any]:
    network = _one_network(model)
    layers = network.layers
    norms: list[dict[str, Any]] = [{} for _ in model.names]
    if isinstance(network.transform, Standard):
        layers, norms = _with_norms(layers, network.transform)
    elif layers[0].center is not None:
        layers, norms = _centred(layers[0], layers[0].center)
    return {
        "class": f"{_PACKAGE}.model.NeuralNetworkModel",
        "features": [{"name": name} | norm for name, norm in zip(model.names, norms, strict=True)],
        "params": {
            "layers": [
                {
                    "matrix": layer.weights.astype(np.float64).tolist(),
                    "bias": layer.bias.astype(np.float64).tolist(),
                    "activation": _ACTIVATIONS[layer.activation],
                }
                for layer in layers
            ]
        },
    }


def _with_norms(layers: tuple[Layer, ...], transform: Standard) -> tuple[tuple[Layer, ...], list[dict[str, Any]]]:
    """The normaliser of each feature in float32; the first layer corrects for its rounding.

    (x - c) s = (x - c') / d' * (s d') + (c' - c) s, with c' and d' the rounded mean and deviation.
    """
    center, scale = transform.center_, transform.scale_
    varies = scale > 0
    average = center.astype(np.float32)
    deviation = np.where(varies, 1 / np.where(varies, scale, 1.0), 1.0).astype(np.float32)
    first = layers[0]
    weights = first.weights * (scale * deviation)
    bias = first.bias + first.weights @ ((average.astype(np.float64) - center) * scale)
    changed = Layer(weights.astype(np.float32), bias.astype(np.float32), first.activation)
    norms = [_norm(a, d) if own else {} for a, d, own in zip(average, deviation, varies, strict=True)]
    return (changed, *layers[1:]), norms


def _centred(layer: Layer, center: Floats) -> tuple[tuple[Layer, ...], list[dict[str, Any]]]:
    """A linear ranker on unscaled features, centred: sums of values around 0 lose fewer digits in float32."""
    average = center.astype(np.float32)
    bias = layer.bias + layer.weights @ average.astype(np.float64)
    changed = Layer(layer.weights.astype(np.float32), bias.astype(np.float32), layer.activation)
    return (changed,), [_norm(a, 1.0) for a in average]


# Solr's rules, applied to the written files


def _fields(folder: Path) -> dict[str, str]:
    """The field of each feature, by its name."""
    store = json.loads((folder / "features.json").read_text(encoding="utf-8"))
    _check_once(store)
    for feature in store:
        _check_class(feature, "feature.FieldValueFeature")
    return {feature["name"]: feature["params"]["field"] for feature in store}


def _names(folder: Path) -> list[str]:
    return list(dict.fromkeys(_fields(folder).values()))


def _check_once(features: list[dict[str, Any]]) -> None:
    names = [feature["name"] for feature in features]
    if len(set(names)) < len(names):
        raise ValueError("duplicate feature")


def _check_class(written: dict[str, Any], name: str) -> None:
    if written["class"] != f"{_PACKAGE}.{name}":
        raise ValueError(f"class {written['class']!r}")


def _open(folder: Path) -> Executor:
    body = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    is_trees = "trees" in body["params"]
    _check_class(body, "model.MultipleAdditiveTreesModel" if is_trees else "model.NeuralNetworkModel")
    _check_once(body["features"])
    field_of, number = _fields(folder), {field: k for k, field in enumerate(_names(folder))}
    columns = [number[field_of[feature["name"]]] for feature in body["features"]]
    norms = [feature.get("norm", _norm(0.0, 1.0)["norm"]) for feature in body["features"]]
    for norm in norms:
        _check_class(norm, "norm.StandardNormalizer")
    average, deviation = (
        np.array([float(norm["params"][key]) for norm in norms], np.float32) for key in ("avg", "std")
    )
    score = _tree_scores(body) if is_trees else _network_scores(body)

    def run(features: NDArray[np.float32], offsets: NDArray[np.int64]) -> Floats:
        known = np.where(np.isnan(features), np.float32(0), features)[:, columns]
        with np.errstate(over="ignore"):  # infinite after scaling: above every threshold, as intended
            return np.asarray(score((known - average) / deviation), np.float64)

    return run


def _tree_scores(body: dict[str, Any]) -> Any:
    number = {feature["name"]: k for k, feature in enumerate(body["features"])}

    def read(node: dict[str, Any]) -> Any:
        if "value" in node:
            return float(np.float32(node["value"]))
        return number[node["feature"]], float(np.float32(node["threshold"])), node["left"], node["right"], 0, True

    builder = TreeBuilder()
    for tree in body["params"]["trees"]:
        builder.add(tree["root"], read)
    trees = builder.build()
    thresholds = trees.threshold + _SLACK
    weights = [np.float32(tree["weight"]) for tree in body["params"]["trees"]]

    def score(values: NDArray[np.float32]) -> NDArray[np.float32]:
        total = np.zeros(len(values), np.float32)
        leaves = trees.leaf_values(values, lambda splits, x: x <= thresholds[splits])
        for weight, one in zip(weights, leaves, strict=True):
            total += weight * one.astype(np.float32)
        return total

    return score


def _network_scores(body: dict[str, Any]) -> Any:
    layers = [
        (np.array(layer["matrix"], np.float32), np.array(layer["bias"], np.float32), layer["activation"])
        for layer in body["params"]["layers"]
    ]

    def score(values: NDArray[np.float32]) -> NDArray[np.float32]:
        blocks = np.split(values, range(_BLOCK, len(values), _BLOCK))
        return np.concatenate([score_block(block) for block in blocks])

    def score_block(values: NDArray[np.float32]) -> NDArray[np.float32]:
        for matrix, bias, activation in layers:
            outputs = np.repeat(bias[None], len(values), axis=0)
            for column in range(matrix.shape[1]):  # products are added one by one, each rounded, as in Solr
                outputs += values[:, column, None] * matrix[None, :, column]
            values = _activate(activation, outputs)
        return values[:, 0]

    return score


def _activate(activation: str, values: NDArray[np.float32]) -> NDArray[np.float32]:
    if activation == "relu":
        return np.where(values < 0, np.float32(0), values)
    if activation == "leakyrelu":
        return np.where(values < 0, np.float32(0.01) * values, values)
    wide = values.astype(np.float64)
    if activation == "tanh":
        return np.tanh(wide).astype(np.float32)
    if activation == "sigmoid":
        with np.errstate(over="ignore"):
            return (1 / (1 + np.exp(-wide))).astype(np.float32)
    if activation != "identity":
        raise ValueError(f"activation {activation!r}")
    return values


_README = """# A ranking model for Solr

Needs the learning-to-rank module (`-Dsolr.modules=ltr`) and its query parser in `solrconfig.xml`. Send the files in
this order:

```
JSON='Content-Type: application/json'
curl -X PUT "$HOST/solr/COLLECTION/schema/feature-store" -H "$JSON" --data-binary @features.json
curl -X PUT "$HOST/solr/COLLECTION/schema/model-store" -H "$JSON" --data-binary @model.json
curl "$HOST/solr/COLLECTION/query?q=...&rq=%7B!ltr%20model={name}%20reRankDocs=1000%7D&fl=id,score"
```

* `features.json`: each feature is here a numeric field of the document with the name of the feature. Replace it by a
  feature of your own where it is one. Names must stay, and the values must be those that the model was trained with; a
  feature without a value counts as 0. A feature that the trees split very near to 0 and far from it may be there twice,
  the second time as `NAME_near_0`: replace both by the same.
* `model.json`: the model. SolrCloud keeps it in ZooKeeper, which takes files of up to 1 MB unless told otherwise
  (`jute.maxbuffer`); larger ones go into a file next to it, by `DefaultWrapperModel`.
"""

SOLR = Target("solr", _check, _write, _open, names=_names, keeps_limits=False)
