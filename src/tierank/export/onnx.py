"""ONNX: the whole model as one graph, for one query at a time.

Input ``features``: float32, documents x features, the candidate list of a query; NaN where a value is missing. Output
``scores``: float32, one per document. Scaling by query, imputation and averaging over members are inside the graph.
Operators of opset 18 and of ai.onnx.ml 3: onnxruntime 1.14 and later run it.

Trees are compared and added up in double precision, and networks run in single precision, as in tierank.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial, reduce
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.data.columns import kinds_to_json
from tierank.export import targets
from tierank.export.neutral import NEAR_ZERO, Model, Network, QueryCopies, Scorer, StandardisedMean, Sum, Trees
from tierank.extras import needing
from tierank.transforms import Piecewise, Quantile, QueryRank, Rescaling, Transform

_OPSET, _ML_OPSET, _IR = 18, 3, 8
# Types of numbers, as in onnx.TensorProto.
_FLOAT, _INT64, _DOUBLE = 1, 7, 11
# The axis over which values of a query are compared and added up.
_DOCUMENTS = np.array([0])


def _write(model: Model, path: Path) -> None:
    path.write_bytes(build(model).SerializeToString())


def build(model: Model) -> Any:
    """The graph of a model, an ``onnx.ModelProto``."""
    with needing("export to ONNX"):
        import onnx
        from onnx import helper
    graph = _Graph(model.n_features)
    scores = graph.single(graph.score(model.scorer))
    graph.nodes.append(helper.make_node("Identity", [scores], ["scores"]))
    made = helper.make_graph(
        graph.nodes,
        "tierank",
        [helper.make_tensor_value_info("features", _FLOAT, ["documents", model.n_features])],
        [helper.make_tensor_value_info("scores", _FLOAT, ["documents"])],
        graph.constants,
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)]
    proto = helper.make_model(made, opset_imports=opsets, ir_version=_IR, producer_name="tierank")
    columns = {"columns": json.dumps(kinds_to_json(model.kinds))} if model.kinds else {}
    helper.set_model_props(proto, {"features": "\n".join(model.names)} | columns)
    onnx.checker.check_model(proto)
    return proto


class _Graph:
    """Nodes and constants in the order they are added. Methods return the name of their result."""

    def __init__(self, n_features: int) -> None:
        from onnx import helper, numpy_helper

        self.make_node, self.from_array = helper.make_node, numpy_helper.from_array
        self.n_features = n_features
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        # Inputs that several scorers share, computed once.
        self.shared: dict[tuple[Any, ...], str] = {}

    def add(
        self, operator: str, *inputs: str | NDArray[Any] | np.generic | float, domain: str = "", **attributes: Any
    ) -> str:
        """One node; arrays become constants, plain numbers constants in double precision."""
        names = [name if isinstance(name, str) else self.constant(np.asarray(name)) for name in inputs]
        output = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self.make_node(operator, names, [output], domain=domain, **attributes))
        return output

    def constant(self, values: NDArray[Any]) -> str:
        """A constant."""
        self.constants.append(self.from_array(np.asarray(values, order="C"), f"constant_{len(self.constants)}"))
        return str(self.constants[-1].name)

    def double(self, name: str) -> str:
        """The same numbers in double precision."""
        return self.add("Cast", name, to=_DOUBLE)

    def single(self, name: str) -> str:
        """The numbers rounded to single precision."""
        return self.add("Cast", name, to=_FLOAT)

    def once(self, key: tuple[Any, ...], make: Callable[[], str]) -> str:
        """What is made, once for equal keys."""
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]

    # Scorers: one double per document

    def score(self, scorer: Scorer) -> str:
        """The scores of the documents."""
        if isinstance(scorer, Trees):
            return self.trees(scorer, self.double("features"), self.n_features)
        if isinstance(scorer, QueryCopies):
            copies = self.once((QueryCopies,), self.query_copies)
            return self.trees(scorer.trees, copies, QueryCopies.COPIES * self.n_features)
        if isinstance(scorer, Network):
            return self.network(scorer)
        if isinstance(scorer, Sum):
            parts = [self.add("Mul", self.score(part), weight) for weight, part in scorer.parts]
            return reduce(partial(self.add, "Add"), parts)
        return self.standardised_mean(scorer)

    def standardised_mean(self, mean: StandardisedMean) -> str:
        """The mean of (score - mean) / deviation over the parts; 0 if deviation or mean do not count."""
        parts = []
        for part in mean.parts:
            scores = self.score(part)
            centred = self.add("Sub", scores, self.add("ReduceMean", scores, _DOCUMENTS))
            squares = self.add("Mul", centred, centred)
            spread = self.add("Sqrt", self.add("ReduceMean", squares, _DOCUMENTS))
            limit = self.add("Mul", self.add("ReduceMax", self.add("Abs", scores), _DOCUMENTS), mean.ROUNDING)
            divisor = self.add("Where", self.add("Greater", spread, limit), spread, math.inf)
            parts.append(self.add("Div", centred, divisor))
        if len(parts) == 1:
            return parts[0]
        scores = self.add("Div", reduce(partial(self.add, "Add"), parts), float(len(parts)))
        largest = self.add("ReduceMax", self.add("Abs", scores), _DOCUMENTS)
        return self.add("Where", self.add("Greater", largest, mean.CANCELLED), scores, 0.0)

    def trees(self, trees: Trees, values: str, width: int) -> str:
        """The sum of the trees, given the columns that they look at in double precision, and their number.

        Sets of categories become columns: 0 for members, 1 for other values. Numbers that count as missing in some
        splits become NaN in columns of their own.
        """
        if not len(trees.feature):  # single leaves: no splits, but a score for each document
            column = self.double(self.add("Gather", "features", np.array(0), axis=1))
            zeros = self.add("Where", self.add("Equal", column, column), 0.0, 0.0)
            return self.add("Add", zeros, float(trees.values[~trees.roots].sum()))
        sets, trees = trees.without_categories(width)
        parts = [values]
        for feature, group in groupby(sets, key=lambda one: one[0]):
            members = [one for _, one in group]
            table = np.ones((max(map(len, members)) + 1, len(members)))  # the last row is for values that are in no set
            for place, one in enumerate(members):
                table[: len(one), place] = ~one
            parts.append(self.looked_up(values, feature, table))
        values = values if len(parts) == 1 else self.add("Concat", *parts, axis=1)
        columns, is_zero = trees.feature, trees.takes_zero
        if is_zero.any():
            near = self.add("LessOrEqual", self.add("Abs", values), float(NEAR_ZERO))
            without = self.add("Where", near, np.nan, values)
            kept, dropped = np.unique(columns[~is_zero]), np.unique(columns[is_zero])
            parts = [self.add("Gather", one, which, axis=1) for one, which in ((values, kept), (without, dropped))]
            columns = np.where(is_zero, len(kept) + dropped.searchsorted(columns), kept.searchsorted(columns))
            values = self.add("Concat", *parts, axis=1)
        attributes = _tree_attributes(trees, columns, self.from_array)
        sums = self.add("TreeEnsembleRegressor", values, domain="ai.onnx.ml", **attributes)
        return self.double(self.add("Squeeze", sums, np.array([1])))

    def looked_up(self, values: str, feature: int, table: NDArray[Any]) -> str:
        """The row of a table for each level of a category; the last one for any other value."""
        size = float(len(table) - 1)
        codes = self.double(self.add("Gather", values, np.array(feature), axis=1))
        is_known = self.add("And", self.add("Greater", codes, -1.0), self.add("Less", codes, size))
        places = self.add("Cast", self.add("Where", is_known, codes, size), to=_INT64)
        return self.add("Gather", table, places, axis=0)

    def network(self, network: Network) -> str:
        """The score of a network: transformed features, with embeddings in place of categories, and layers."""
        values = self.once(network.scaling, lambda: self.transformed(network))
        if network.embeddings:
            tables = [self.looked_up("features", one.feature, one.table) for one in network.embeddings]
            columns = network.columns_of(network.transform, self.n_features)
            numbers = [self.add("Gather", values, columns, axis=1)] if len(columns) else []
            values = self.add("Concat", *numbers, *tables, axis=1)
        for layer in network.layers:
            inputs = self.double(values) if layer.is_double else values
            outputs = self.add("Gemm", inputs, layer.weights, layer.bias, transB=1)
            outputs = self.activate(layer.activation, outputs)
            values = self.add("Concat", outputs, values, axis=1) if layer.keeps_input else outputs
        return self.double(self.add("Squeeze", values, np.array([1])))

    def activate(self, activation: str, values: str) -> str:
        """An activation, by tierank's name."""
        if activation == "identity":
            return values
        if activation == "silu":
            return self.add("Mul", values, self.add("Sigmoid", values))
        if activation == "gelu":  # x (1 + erf(x / sqrt(2))) / 2
            erf = self.add("Erf", self.add("Mul", values, np.float32(np.sqrt(0.5))))
            return self.add("Mul", self.add("Mul", values, np.float32(0.5)), self.add("Add", erf, np.float32(1)))
        return self.add(_ACTIVATIONS[activation], values)

    # Copies of features: double, documents x columns

    def query_copies(self) -> str:
        """The features, their places in the range of the query and their ranks, as in ``transforms.add_query_copies``.

        The copies are rounded to float32, as there, so that they fall on the same side of every threshold.
        """
        values = self.double("features")
        missing = self.add("IsNaN", values)
        low, scale = self.span(values, missing)
        copies = (self.add("Mul", self.add("Sub", values, low), scale), self.ranks(missing))
        known = (self.add("Where", missing, np.nan, self.double(self.single(copy))) for copy in copies)
        return self.add("Concat", values, *known, axis=1)

    def span(self, values: str, missing: str) -> tuple[str, str]:
        """The lowest value and 1 / (highest - lowest) of each feature; a factor of 0 where all are equal."""
        low = self.add("ReduceMin", self.add("Where", missing, np.inf, values), _DOCUMENTS, keepdims=1)
        high = self.add("ReduceMax", self.add("Where", missing, -np.inf, values), _DOCUMENTS, keepdims=1)
        center = self.add("Where", self.add("LessOrEqual", low, high), low, 0.0)
        differs = self.add("Less", low, high)
        width = self.add("Where", differs, self.add("Sub", high, low), 1.0)
        return center, self.add("Where", differs, self.add("Div", 1.0, width), 0.0)

    def ranks(self, missing: str) -> str:
        """(documents below + documents not above - 1) / 2 (known documents - 1), each over the known of the query.

        Columns are sorted, missing values last; equal values are numbered as one group. The cumulative sizes of the
        groups say how many values come before each.
        """
        known = self.add("Where", missing, np.float32(np.inf), "features")
        n = self.add("Shape", "features", end=1)
        ordered = self.add("TopK", known, n, axis=0, largest=0)
        rows = f"{ordered}_second"
        self.nodes[-1].output.append(rows)
        below = self.add("Slice", ordered, np.array([0]), np.array([-1]), _DOCUMENTS)
        above = self.add("Slice", ordered, np.array([1]), np.array([np.iinfo(np.int64).max]), _DOCUMENTS)
        starts = self.add("Cast", self.add("Less", below, above), to=_INT64)
        starts = self.add("Concat", np.zeros((1, self.n_features), np.int64), starts, axis=0)
        group = self.add("CumSum", starts, np.array(0))
        zeros = self.add("Sub", rows, rows)
        sizes = self.add("ScatterElements", zeros, group, self.add("Add", zeros, np.array(1)), axis=0, reduction="add")
        through = self.add("CumSum", sizes, np.array(0))
        twice = self.add("Sub", self.add("Sub", self.add("Add", through, through), sizes), np.array(1))
        of_rows = self.add("ScatterElements", zeros, rows, self.add("GatherElements", twice, group, axis=0), axis=0)
        counts = self.add("ReduceSum", self.add("Where", missing, 0.0, 1.0), _DOCUMENTS, keepdims=1)
        several = self.add("Greater", counts, 1.0)
        others = self.add("Where", several, self.add("Sub", counts, 1.0), 1.0)
        scale = self.add("Where", several, self.add("Div", 0.5, others), 0.0)
        return self.add("Mul", self.double(of_rows), scale)

    # Transforms: float32, documents x columns

    def transformed(self, network: Network) -> str:
        """The transformed features, side by side for several transforms."""
        keyed = zip(network.scaling[1:], network.blocks, strict=True)
        parts = [self.once(("transform", *key), partial(self.transform, *block)) for key, block in keyed]
        values = parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=1)
        if network.limit is None:
            return values
        return self.add("Clip", values, np.float32(-network.limit), np.float32(network.limit))

    def transform(self, transform: Transform, per_query: bool) -> str:
        """The features by one transform; 0 where a feature is missing, in each of its columns."""
        values, n_copies = self.double("features"), transform.n_columns(1)
        if isinstance(transform, QueryRank) and per_query:
            missing = self.add("IsNaN", values)
            _, scale = self.span(values, missing)
            values = self.add("Where", self.add("Greater", scale, 0.0), self.ranks(missing), 0.0)
        elif isinstance(transform, Quantile):
            values = self.interpolate(transform, values)
        elif isinstance(transform, Rescaling):
            values = self.rescale(transform, per_query, values)
        if isinstance(transform, Piecewise):
            values = self.repeat(self.double(self.single(values)), n_copies)
            low, slope = (array.T.ravel() for array in (transform.low_, transform.slope_))
            encoded = self.add("Mul", self.add("Sub", values, low), slope)
            values = self.add("Min", self.add("Max", encoded, 0.0), 1.0)
        missing = self.repeat(self.add("IsNaN", "features"), n_copies)
        return self.single(self.add("Where", missing, 0.0, values))

    def repeat(self, values: str, n: int) -> str:
        """The columns, several times."""
        return values if n == 1 else self.add("Concat", *[values] * n, axis=1)

    def rescale(self, transform: Rescaling, per_query: bool, values: str) -> str:
        """(value - center) * scale, within limits; center and scale are those of the query or of the training data."""
        if transform.TAKES_LOGS:
            values = self.signed_log(values)
        center: str | Floats
        scale: str | Floats
        if not per_query:
            center, scale = transform.center_, transform.scale_
        else:
            missing = self.add("IsNaN", values)
            lowest, factor = self.span(values, missing)
            center, scale = (
                self.moments(values, missing, lowest, factor) if transform.STANDARDISES else (lowest, factor)
            )
        scaled = self.add("Mul", self.add("Sub", values, center), scale)
        least, most = transform.LIMITS
        return self.add("Min", self.add("Max", scaled, least), most)

    def signed_log(self, values: str) -> str:
        """sign(x) ln(1 + |x|), rounded to single precision; ln(w) v / (w - 1) keeps the digits that w = 1 + v loses."""
        size = self.add("Abs", values)
        above = self.add("Add", size, 1.0)
        is_one = self.add("Equal", above, 1.0)
        divisor = self.add("Where", is_one, 1.0, self.add("Sub", above, 1.0))
        log = self.add("Mul", self.add("Log", above), self.add("Div", size, divisor))
        signed = self.add("Mul", self.add("Sign", values), self.add("Where", is_one, size, log))
        return self.double(self.single(signed))

    def moments(self, values: str, missing: str, center: str, scale: str) -> tuple[str, str]:
        """Mean and 1 / deviation, from lowest value and 1 / span, as in ``kernels.scaling.standardise``."""
        z = self.add("Where", missing, 0.0, self.add("Mul", self.add("Sub", values, center), scale))
        counts = self.add("ReduceSum", self.add("Where", missing, 0.0, 1.0), _DOCUMENTS, keepdims=1)
        differs = self.add("Greater", scale, 0.0)
        n = self.add("Where", differs, counts, 1.0)
        mean = self.add("Div", self.add("ReduceSum", z, _DOCUMENTS, keepdims=1), n)
        square = self.add("Div", self.add("ReduceSum", self.add("Mul", z, z), _DOCUMENTS, keepdims=1), n)
        variance = self.add("Max", self.add("Sub", square, self.add("Mul", mean, mean)), self.add("Div", 0.5, n))
        shift = self.add("Div", mean, self.add("Where", differs, scale, 1.0))
        moved = self.add("Where", differs, self.add("Add", center, shift), center)
        return moved, self.add("Div", scale, self.add("Sqrt", variance))

    def interpolate(self, quantile: Quantile, values: str) -> str:
        """The level of each value between the knots of its column: a binary search, then linear interpolation."""
        n_features, n_knots = quantile.knots_.shape
        knots, levels, slopes = (
            self.constant(array.astype(np.float64).ravel())
            for array in (quantile.knots_, quantile.levels_, quantile.slopes_)
        )
        # The index of the first knot of each column, for every document.
        known = self.add("Where", self.add("IsNaN", values), 0.0, values)
        place = self.add("Where", self.add("Equal", known, known), np.arange(n_features) * n_knots, np.array(0))
        step = n_knots // 2
        while step:
            further = self.add("Add", place, np.array(step))
            reached = self.add("LessOrEqual", self.add("Gather", knots, further), known)
            place = self.add("Where", reached, further, place)
            step //= 2
        beyond = self.add("Max", self.add("Sub", known, self.add("Gather", knots, place)), 0.0)
        return self.add(
            "Add", self.add("Gather", levels, place), self.add("Mul", beyond, self.add("Gather", slopes, place))
        )


_ACTIVATIONS = {
    "elu": "Elu",
    "leaky_relu": "LeakyRelu",  # alpha is 0.01 in both
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
}


def _tree_attributes(trees: Trees, columns: NDArray[np.int64], tensor: Callable[..., Any]) -> dict[str, Any]:
    """The trees as attributes of TreeEnsembleRegressor: all nodes in one list, tree by tree, the root first."""
    tree_of, own_number, leaf_tree, leaf_number = trees.numbered()
    n_splits, n_leaves = len(trees.feature), len(trees.values)
    order = np.lexsort((np.concatenate([own_number, leaf_number]), np.concatenate([tree_of, leaf_tree])))

    def child(children: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(children >= 0, own_number[np.maximum(children, 0)], leaf_number[~np.minimum(children, -1)])

    def nodes(of_splits: Any, of_leaves: Any) -> NDArray[Any]:
        return np.concatenate([np.broadcast_to(of_splits, n_splits), np.broadcast_to(of_leaves, n_leaves)])[order]

    lists = {
        "nodes_treeids": nodes(tree_of, leaf_tree),
        "nodes_nodeids": nodes(own_number, leaf_number),
        "nodes_featureids": nodes(columns, 0),
        "nodes_modes": nodes("BRANCH_LEQ", "LEAF"),
        "nodes_truenodeids": nodes(child(trees.left), 0),
        "nodes_falsenodeids": nodes(child(trees.right), 0),
        "nodes_missing_value_tracks_true": nodes(trees.nan_left.astype(int), 0),
        "target_treeids": leaf_tree,
        "target_nodeids": leaf_number,
        "target_ids": np.zeros(n_leaves, np.int64),
    }
    return {
        "n_targets": 1,
        "nodes_values_as_tensor": tensor(nodes(trees.threshold.astype(np.float64), 0.0), "thresholds"),
        "target_weights_as_tensor": tensor(trees.values, "values"),
    } | {name: values.tolist() for name, values in lists.items()}


def open_session(path: Path) -> Any:
    """The graph in onnxruntime, on one thread."""
    with needing("the proof of an ONNX export"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # Its content, as onnxruntime does not open a path that is not UTF-8.
    return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def _open(path: Path) -> targets.Executor:
    session = open_session(path)

    def run(features: NDArray[np.float32], offsets: NDArray[np.int64]) -> Floats:
        lists = np.split(features, offsets[1:-1])
        return np.concatenate([session.run(None, {"features": one})[0] for one in lists]).astype(np.float64)

    return run


def names_of(path: Path) -> list[str]:
    """The names of the features, as the file describes itself."""
    return str(open_session(path).get_modelmeta().custom_metadata_map["features"]).split("\n")


def _check(model: Model) -> None:
    """All models in the neutral form are supported; the scores must fit float32."""
    targets.check_parts("onnx", model, targets.own_transforms, targets.large_numbers)


ONNX = targets.Target("onnx", _check, _write, _open, names=names_of)
