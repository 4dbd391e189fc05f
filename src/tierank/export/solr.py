"""Solr's learning-to-rank module: ``MultipleAdditiveTreesModel`` and ``NeuralNetworkModel``.

Solr adds 1e-6 to every threshold in float32 when it loads trees, so thresholds are written lower. If no float32
restores the threshold, the feature is first multiplied by a power of two (a normaliser of Solr), which does not change
comparisons; if that is too much for its other thresholds, the feature is included twice. Leaves are added up in
float32: see ``for_float32_sums``. A feature without a value is 0. Networks run in float32; those of uBoost are combined
into one network.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from tierank.arrays import Floats
from tierank.errors import DataError
from tierank.export import search_engine as engine
from tierank.export import targets
from tierank.export.neutral import Layer, Model, Network, Sum, Trees, as_float32
from tierank.transforms import Log1p, Quantile, SideBySide, Standard, Transform

_SLACK = np.float32(1e-6)
# The powers of two that features may be multiplied by: one over each is a float32 number.
_POWERS = range(150)
# Solr's name of each activation, and what it computes.
_ACTIVATIONS: dict[str, tuple[str, Callable[[NDArray[np.float32]], Any]]] = {
    "identity": ("identity", lambda x: x),
    "leaky_relu": ("leakyrelu", lambda x: np.where(x < 0, np.float32(0.01) * x, x)),
    "relu": ("relu", lambda x: np.where(x < 0, np.float32(0), x)),
    "sigmoid": ("sigmoid", lambda x: 1 / (1 + np.exp(-x.astype(np.float64)))),
    "tanh": ("tanh", lambda x: np.tanh(x.astype(np.float64))),
}
_TRANSFORMS = "'standard' or 'none'"
# Documents scored at a time here, so that they fit the cache.
_BLOCK = 256
_PACKAGE = "org.apache.solr.ltr"
_NORMALISER = f"{_PACKAGE}.norm.StandardNormalizer"
_FIELD = f"{_PACKAGE}.feature.FieldValueFeature"


def _check(model: Model) -> None:
    targets.check_parts("solr", model, targets.lists(_TRANSFORMS), targets.own_transforms, targets.categories)
    if isinstance(model.scorer, Trees):
        targets.check_parts("solr", model, targets.missing_values, targets.large_numbers)
        _scale(model.scorer)
    else:
        targets.check_parts("solr", model, targets.large_numbers)
        _check_transform(_one_network(model).transform, model.has_missing)


def _check_transform(transform: Transform, has_missing: bool) -> None:
    if isinstance(transform, SideBySide):
        raise targets.refuse("solr", *_SEVERAL_TRANSFORMS)
    if isinstance(transform, (Log1p, Quantile)):
        why = f"it has no normaliser like the transform {type(transform).__name__}"
        raise targets.refuse("solr", why, f"train with `feature_transform={_TRANSFORMS}`")
    if not isinstance(transform, Standard):
        return
    if has_missing:
        why = "it treats a missing value as 0, and the transform 'standard' treats it as the mean"
        fix = "replace missing values by 0 before training, or train with `feature_transform='none'`"
        raise targets.refuse("solr", why, fix)
    varies = transform.scale_ > 0
    deviation = 1 / np.where(varies, transform.scale_, 1.0)
    sound = (deviation >= targets.LEAST) & (np.maximum(deviation, np.abs(transform.center_)) <= targets.MOST)
    for feature in np.flatnonzero(varies & ~sound).tolist():
        numbers = f"a mean of {transform.center_[feature]:.0e} and a deviation of {deviation[feature]:.0e}"
        why = f"it scales in single precision, and feature {feature} has {numbers}"
        fix = "take the logarithm of that feature, or multiply it by a constant, before training"
        raise targets.refuse("solr", why, fix)


def _write(model: Model, folder: Path) -> None:
    body, fields = _trees_body(model, model.scorer) if isinstance(model.scorer, Trees) else _network_body(model)
    store = {"store": engine.NAME}
    features = [store | {"name": name, "class": _FIELD, "params": {"field": f}} for name, f in fields.items()]
    model_json = store | {"name": engine.NAME} | body
    files = {"features.json": features, "model.json": model_json, "README.md": targets.text_of("solr.md")}
    engine.write_files(folder, files)


# Trees


def _scale(trees: Trees) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Thresholds that are right after Solr has added its slack to them, and the powers of two that they are scaled by.

    The splits of a feature share one exponent, or have 0 and one other.
    """
    written, powers = np.empty_like(trees.threshold), np.zeros(len(trees.threshold), np.int64)

    def take(splits: NDArray[np.int64]) -> bool:
        """Scale these splits of a feature by the lowest power that works for all of them, if there is one."""
        wanted = trees.threshold[splits]
        for power in _POWERS:
            scaled = as_float32(np.ldexp(wanted.astype(np.float64), power))
            found, reached = _before_slack(scaled)
            if reached.all() and (np.isfinite(scaled) == np.isfinite(wanted)).all():
                written[splits], powers[splits] = found, power
                return True
        return False

    for feature in np.unique(trees.feature).tolist():
        splits = np.flatnonzero(trees.feature == feature)
        without = _before_slack(trees.threshold[splits])[1]
        if not (take(splits) or (take(splits[without]) and take(splits[~without]))):
            both = "both such small and such large thresholds that no scale undoes it"
            why = f"it adds 1e-6 to thresholds, and feature {feature} has {both}"
            raise targets.refuse("solr", why, "take the logarithm of that feature before training")
    return written, powers


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


def _trees_body(model: Model, trees: Trees) -> tuple[dict[str, Any], dict[str, str]]:
    """What ``model.json`` says of trees, and the field of each feature. One that needs two powers is there twice."""
    written, powers = _scale(trees)
    columns = {}
    for feature, name in enumerate(model.names):
        first, *second = np.unique(powers[trees.feature == feature]).tolist() or [0]
        columns[feature, first] = name
        columns |= {(feature, power): engine.unused_name(f"{name}_near_0", model.names) for power in second}
    thresholds = [_java(threshold) for threshold in written]
    keys = list(zip(trees.feature.tolist(), powers.tolist(), strict=True))

    def split(node: int, left: Any, right: Any) -> dict[str, Any]:
        return {"feature": columns[keys[node]], "threshold": thresholds[node], "left": left, "right": right}

    roots: list[dict[str, Any]] = []
    for part in engine.for_float32_sums(trees):
        roots += engine.nested_nodes(part, lambda value: {"value": _java(value)}, split)
    body = {
        "class": f"{_PACKAGE}.model.MultipleAdditiveTreesModel",
        "features": [{"name": name} | (_norm(0.0, 2.0**-p) if p else {}) for (_, p), name in columns.items()],
        "params": {"trees": [{"weight": "1", "root": root} for root in roots]},
    }
    return body, {name: model.names[feature] for (feature, _), name in columns.items()}


def _java(number: np.float32) -> str:
    """The number as a text that Java reads as the same float32."""
    return str(number).replace("inf", "Infinity")


def _norm(average: float, deviation: float) -> dict[str, Any]:
    numbers = {"avg": str(np.float32(average)), "std": str(np.float32(deviation))}
    return {"norm": {"class": _NORMALISER, "params": numbers}}


# Networks

_SEVERAL_TRANSFORMS = (
    "it scales a feature in one way, and this model uses several transforms of it",
    f"train with `feature_transform={_TRANSFORMS}` and encoding='none'",
)


def _one_network(model: Model) -> Network:
    """The network that gives the scores. Raises ``ParameterError`` if Solr cannot represent it."""
    parts = model.scorer.parts if isinstance(model.scorer, Sum) else ((1.0, model.scorer),)
    networks = [part for _, part in parts if isinstance(part, Network)]
    if len(networks) < len(parts):
        raise targets.refuse("solr", "it cannot add models of two kinds", "train without base")
    if len({network.scaling for network in networks}) > 1:
        raise targets.refuse("solr", *_SEVERAL_TRANSFORMS)
    for layer in (layer for network in networks for layer in network.layers):
        if layer.keeps_input:
            why = "its layers see only the layer before them, and urboost's score sees two"
            raise targets.refuse("solr", why, "train with `score_from='state'`")
        if layer.activation not in _ACTIVATIONS:
            why = f"it has no activation {layer.activation!r}"
            raise targets.refuse("solr", why, "train with `activation='relu'`, 'leaky_relu', 'sigmoid' or 'tanh'")
    if len({tuple(layer.activation for layer in network.layers) for network in networks}) > 1:
        why = "a layer has one activation there, and the learners of this model have different ones"
        raise targets.refuse("solr", why, "train with `output_activation=None`, and urboost with n_learners=1")
    if len(networks) == 1 and parts[0][0] == 1:
        return Network(networks[0].transform, False, networks[0].layers)
    if networks[0].layers[-1].activation != "identity":
        raise targets.refuse(
            "solr", "learners have an activation on their scores", "train with `output_activation=None`"
        )
    layers = _side_by_side(networks, [weight for weight, _ in parts])
    return Network(networks[0].transform, False, layers)


def _side_by_side(networks: list[Network], weights: list[float]) -> tuple[Layer, ...]:
    """One network: the first layers stacked, the middle layers as diagonal blocks, the last layers added up."""
    layers = []
    for depth, level in enumerate(zip(*(network.layers for network in networks), strict=True)):
        matrices = [layer.weights for layer in level]
        bias = np.concatenate([layer.bias for layer in level])
        if depth == len(networks[0].layers) - 1:
            scaled = [weight * matrix for weight, matrix in zip(weights, matrices, strict=True)]
            matrix = np.sum(scaled, axis=0) if depth == 0 else np.concatenate(scaled, axis=1)
            bias = np.array([np.dot(weights, bias)])
        else:
            matrix = np.concatenate(matrices) if depth == 0 else block_diag(*matrices)
        layers.append(Layer(matrix.astype(np.float32), bias.astype(np.float32), level[0].activation))
    return tuple(layers)


def _network_body(model: Model) -> tuple[dict[str, Any], dict[str, str]]:
    """What ``model.json`` says of a network, and the field of each feature."""
    network = _one_network(model)
    layers, norms = _normalised(network)
    written = [
        {
            "matrix": layer.weights.astype(np.float64).tolist(),
            "bias": layer.bias.astype(np.float64).tolist(),
            "activation": _ACTIVATIONS[layer.activation][0],
        }
        for layer in layers
    ]
    features = [{"name": name} | norm for name, norm in zip(model.names, norms or [{}] * model.n_features, strict=True)]
    body = {"class": f"{_PACKAGE}.model.NeuralNetworkModel", "features": features, "params": {"layers": written}}
    return body, {name: name for name in model.names}


def _normalised(network: Network) -> tuple[tuple[Layer, ...], list[dict[str, Any]]]:
    """The layers, and the normaliser of each feature in float32, for whose rounding the first layer corrects.

    (x - c) s = (x - c') / d' * (s d') + (c' - c) s, with c' and d' the rounded mean and deviation. A linear ranker on
    unscaled features is centred: sums of values around 0 lose fewer digits in float32.
    """
    first, *others = network.layers
    if isinstance(network.transform, Standard):
        center, scale = network.transform.center_, network.transform.scale_
        varies, average = scale > 0, center.astype(np.float32)
        deviation = np.where(varies, 1 / np.where(varies, scale, 1.0), 1.0).astype(np.float32)
        weights = first.weights * (scale * deviation)
        bias = first.bias + first.weights @ ((average.astype(np.float64) - center) * scale)
        norms = [_norm(a, d) if own else {} for a, d, own in zip(average, deviation, varies, strict=True)]
    elif first.center is not None:
        weights, average = np.asarray(first.weights, np.float64), first.center.astype(np.float32)
        bias = first.bias + weights @ average.astype(np.float64)
        norms = [_norm(a, 1.0) for a in average]
    else:
        return network.layers, []
    return (Layer(weights.astype(np.float32), bias.astype(np.float32), first.activation), *others), norms


# Solr's rules, applied to the written files


def _fields(folder: Path) -> dict[str, str]:
    """The field of each feature, by its name."""
    store = engine.read_json(folder / "features.json")
    for feature in store:
        engine.expect(feature, "class", _FIELD)
    return dict(zip(engine.names_once(store), (feature["params"]["field"] for feature in store), strict=True))


def _names(folder: Path) -> list[str]:
    return list(dict.fromkeys(_fields(folder).values()))


def _open(folder: Path) -> targets.Executor:
    body = engine.read_json(folder / "model.json")
    is_trees = "trees" in body["params"]
    kind = "MultipleAdditiveTreesModel" if is_trees else "NeuralNetworkModel"
    engine.expect(body, "class", f"{_PACKAGE}.model.{kind}")
    field_of, number = _fields(folder), {field: k for k, field in enumerate(_names(folder))}
    columns = [number[field_of[name]] for name in engine.names_once(body["features"])]
    norms = [feature.get("norm", _norm(0.0, 1.0)["norm"]) for feature in body["features"]]
    for norm in norms:
        engine.expect(norm, "class", _NORMALISER)
    rows = [[float(norm["params"][key]) for norm in norms] for key in ("avg", "std")]
    average, deviation = np.array(rows, np.float32)
    score = _tree_scores(body) if is_trees else _network_scores(body)

    def run(features: NDArray[np.float32], offsets: NDArray[np.int64]) -> Floats:
        known = np.where(np.isnan(features), np.float32(0), features)[:, columns]
        with np.errstate(over="ignore"):  # infinite after scaling: above every threshold, as intended
            return np.asarray(score((known - average) / deviation), np.float64)

    return run


def _tree_scores(body: dict[str, Any]) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    number = {feature["name"]: k for k, feature in enumerate(body["features"])}

    def split(node: Any) -> tuple[Any, float, Any, Any, bool]:
        return number[node["feature"]], float(node["threshold"]), node["left"], node["right"], True

    for tree in body["params"]["trees"]:
        engine.expect(tree, "weight", "1")
    trees = engine.read_nodes([tree["root"] for tree in body["params"]["trees"]], "value", split)
    thresholds = trees.threshold + _SLACK
    return lambda values: engine.added_up(trees, values, lambda splits, x: x <= thresholds[splits], np.float32)


def _network_scores(body: dict[str, Any]) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    activations, layers = dict(_ACTIVATIONS.values()), body["params"]["layers"]
    for layer in layers:
        if layer["activation"] not in activations:
            expected = "one of identity, relu, leakyrelu, tanh, sigmoid"
            raise DataError(argument="activation", expected=expected, got=repr(layer["activation"]))
    read = [
        (*(np.array(layer[key], np.float32) for key in ("matrix", "bias")), layer["activation"]) for layer in layers
    ]

    def score(values: NDArray[np.float32]) -> NDArray[np.float32]:
        for matrix, bias, activation in read:
            outputs = np.repeat(bias[None], len(values), axis=0)
            for column in range(matrix.shape[1]):  # products are added one by one, each rounded, as in Solr
                outputs += values[:, column, None] * matrix[None, :, column]
            with np.errstate(over="ignore"):
                values = activations[activation](outputs).astype(np.float32)
        return values[:, 0]

    return lambda values: np.concatenate([score(one) for one in np.split(values, range(_BLOCK, len(values), _BLOCK))])


SOLR = targets.Target("solr", _check, _write, _open, names=_names, keeps_limits=False)
