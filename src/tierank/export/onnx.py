"""ONNX: the whole model as one graph, for one query at a time.

Input ``features``: float32, documents x features, the candidate list of a query; NaN where a value is missing. Output
``scores``: float32, one per document. Scaling by query, imputation and averaging over members are inside the graph.
Operators of opset 18 and of ai.onnx.ml 3: onnxruntime 1.14 and later run it.

Trees are compared and added up in double precision, and networks run in single precision, as in tierank.
"""

from __future__ import annotations

import json
import math
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.export.portable import (
    NEAR_ZERO,
    ZERO,
    Layer,
    Model,
    Network,
    QueryCopies,
    Scorer,
    StandardisedMean,
    Sum,
    Trees,
    scaling_of,
    walk,
)
from tierank.export.target import Executor, Target, by_query, check_size, check_transforms, check_weights
from tierank.extras import needing
from tierank.kinds import kinds_to_json
from tierank.transforms import Piecewise, Quantile, QueryRank, Rescaling, Transform

_OPSET, _ML_OPSET, _IR = 18, 3, 8


def _check(model: Model) -> None:
    """All models in the neutral form are supported; the scores of trees must fit float32."""
    check_transforms("onnx", model)
    for part in walk(model.scorer):
        if isinstance(part, (Trees, QueryCopies)):
            check_size("onnx", part if isinstance(part, Trees) else part.trees)
    check_weights("onnx", model)


def _write(model: Model, path: Path) -> None:
    path.write_bytes(build(model).SerializeToString())


def build(model: Model) -> Any:
    """The graph of a model, an ``onnx.ModelProto``."""
    with needing("export to ONNX"):
        import onnx
        from onnx import TensorProto, helper
    graph = _Graph(model.n_features)
    scores = graph.cast(graph.score(model.scorer), TensorProto.FLOAT)
    graph.nodes.append(helper.make_node("Identity", [scores], ["scores"]))
    made = helper.make_graph(
        graph.nodes,
        "tierank",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["documents", model.n_features])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["documents"])],
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
        self.n_features = n_features
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        # Inputs that several scorers share, computed once.
        self.transformed: dict[tuple[Any, ...], str] = {}
        self.copied: str | None = None

    def add(
        self, operator: str, *inputs: str | NDArray[Any] | np.generic | float, domain: str = "", **attributes: Any
    ) -> str:
        """One node; arrays become constants, plain numbers constants in double precision."""
        from onnx import helper

        names = [name if isinstance(name, str) else self.constant(np.asarray(name)) for name in inputs]
        output = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], domain=domain, **attributes))
        return output

    def add_two(self, operator: str, *inputs: str, **attributes: Any) -> tuple[str, str]:
        """One node with two outputs."""
        first = self.add(operator, *inputs, **attributes)
        second = f"{first}_second"
        self.nodes[-1].output.append(second)
        return first, second

    def constant(self, values: NDArray[Any]) -> str:
        """A constant."""
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(values, order="C"), f"constant_{len(self.constants)}"))
        return str(self.constants[-1].name)

    def cast(self, name: str, kind: int) -> str:
        """The same numbers in another type."""
        return self.add("Cast", name, to=kind)

    def double(self, name: str) -> str:
        """The same numbers in double precision."""
        from onnx import TensorProto

        return self.cast(name, TensorProto.DOUBLE)

    # Scorers: one double per document

    def score(self, scorer: Scorer) -> str:
        """The scores of the documents."""
        if isinstance(scorer, Trees):
            return self.trees(scorer, self.double("features"), self.n_features)
        if isinstance(scorer, QueryCopies):
            return self.trees(scorer.trees, self.query_copies(), QueryCopies.COPIES * self.n_features)
        if isinstance(scorer, Network):
            return self.network(scorer)
        if isinstance(scorer, Sum):
            return self.total([self.add("Mul", self.score(part), weight) for weight, part in scorer.parts])
        return self.standardised_mean(scorer)

    def total(self, parts: list[str]) -> str:
        """The sum of some scores."""
        first, *others = parts
        for other in others:
            first = self.add("Add", first, other)
        return first

    def standardised_mean(self, mean: StandardisedMean) -> str:
        """The mean of the standardised scores of the parts."""
        parts = [self.standardised(self.score(part)) for part in mean.parts]
        if len(parts) == 1:
            return parts[0]
        scores = self.add("Div", self.total(parts), float(len(parts)))
        largest = self.add("ReduceMax", self.add("Abs", scores), np.array([0]))
        return self.add("Where", self.add("Greater", largest, mean.CANCELLED), scores, 0.0)

    def standardised(self, scores: str) -> str:
        """(score - mean) / deviation; 0 if the deviation does not count."""
        centred = self.add("Sub", scores, self.add("ReduceMean", scores, np.array([0])))
        squares = self.add("Mul", centred, centred)
        spread = self.add("Sqrt", self.add("ReduceMean", squares, np.array([0])))
        largest = self.add("ReduceMax", self.add("Abs", scores), np.array([0]))
        limit = self.add("Mul", largest, StandardisedMean.ROUNDING)
        return self.add("Div", centred, self.add("Where", self.add("Greater", spread, limit), spread, math.inf))

    def trees(self, trees: Trees, values: str, width: int) -> str:
        """The sum of the trees, given the columns that they look at in double precision, and their number."""
        if not len(trees.feature):  # single leaves: no splits, but a score for each document
            column = self.double(self.add("Gather", "features", np.array(0), axis=1))
            zeros = self.add("Where", self.add("Equal", column, column), 0.0, 0.0)
            return self.add("Add", zeros, float(trees.values[~trees.roots].sum()))
        sets, trees = trees.without_categories(width)
        values = self.with_members(sets, values)
        inputs, columns = self.tree_inputs(trees, values)
        sums = self.add("TreeEnsembleRegressor", inputs, domain="ai.onnx.ml", **_tree_attributes(trees, columns))
        return self.double(self.add("Squeeze", sums, np.array([1])))

    def with_members(self, sets: list[tuple[int, NDArray[np.bool_]]], values: str) -> str:
        """The columns, and one for each set of categories: 0 for members, 1 for other values."""
        parts = [values]
        for feature, group in groupby(sets, key=lambda one: one[0]):
            members = [one for _, one in group]
            size = max(map(len, members))
            table = np.ones((size + 1, len(members)))  # the last row is for values that are in no set
            for column, one in enumerate(members):
                table[: len(one), column] = ~one
            parts.append(self.looked_up(values, feature, table))
        return values if len(parts) == 1 else self.add("Concat", *parts, axis=1)

    def looked_up(self, values: str, feature: int, table: NDArray[Any]) -> str:
        """The row of a table for each level of a category; the last one for any other value."""
        from onnx import TensorProto

        size = len(table) - 1
        codes = self.double(self.add("Gather", values, np.array(feature), axis=1))
        is_known = self.add("And", self.add("Greater", codes, -1.0), self.add("Less", codes, float(size)))
        places = self.cast(self.add("Where", is_known, codes, float(size)), TensorProto.INT64)
        return self.add("Gather", table, places, axis=0)

    def tree_inputs(self, trees: Trees, values: str) -> tuple[str, NDArray[np.int64]]:
        """The inputs of the splits, and the column of each split; numbers that count as missing become NaN."""
        is_zero = trees.missing == ZERO
        if not is_zero.any():
            return values, trees.feature
        near = self.add("LessOrEqual", self.add("Abs", values), float(NEAR_ZERO))
        without = self.add("Where", near, np.nan, values)
        kept, dropped = np.unique(trees.feature[~is_zero]), np.unique(trees.feature[is_zero])
        parts = [self.add("Gather", one, which, axis=1) for one, which in ((values, kept), (without, dropped))]
        columns = np.where(is_zero, len(kept) + dropped.searchsorted(trees.feature), kept.searchsorted(trees.feature))
        return self.add("Concat", *parts, axis=1), columns

    def network(self, network: Network) -> str:
        """The score of a network."""
        values = self.with_embeddings(network, self.inputs(network))
        for layer in network.layers:
            values = self.layer(layer, values)
        return self.double(self.add("Squeeze", values, np.array([1])))

    def with_embeddings(self, network: Network, values: str) -> str:
        """Embeddings of categories in place of their transformed values."""
        if not network.embeddings:
            return values
        tables = [self.looked_up("features", one.feature, one.table) for one in network.embeddings]
        columns = network.columns_of(network.transform, self.n_features)
        numbers = [self.add("Gather", values, columns, axis=1)] if len(columns) else []
        return self.add("Concat", *numbers, *tables, axis=1)

    def layer(self, layer: Layer, values: str) -> str:
        """One layer."""
        if layer.is_double:
            return self.add("Gemm", self.double(values), layer.weights, layer.bias, transB=1)
        linear = self.add("Gemm", values, layer.weights, layer.bias, transB=1)
        outputs = self.activate(layer.activation, linear)
        return self.add("Concat", outputs, values, axis=1) if layer.keeps_input else outputs

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
        if self.copied is None:
            values = self.double("features")
            missing = self.add("IsNaN", values)
            low, scale = self.span(values, missing)
            copies = (self.add("Mul", self.add("Sub", values, low), scale), self.ranks(missing))
            known = (self.add("Where", missing, np.nan, self.rounded(copy)) for copy in copies)
            self.copied = self.add("Concat", values, *known, axis=1)
        return self.copied

    def ranks(self, missing: str) -> str:
        """(documents below + documents not above - 1) / 2 (known documents - 1), each over the known of the query.

        Columns are sorted, missing values last; equal values are numbered as one group. The cumulative sizes of the
        groups say how many values come before each.
        """
        known = self.add("Where", missing, np.float32(np.inf), "features")
        n = self.add("Shape", "features", end=1)
        ordered, rows = self.add_two("TopK", known, n, axis=0, largest=0)
        group = self.groups(ordered)
        zeros = self.add("Sub", rows, rows)
        sizes = self.add("ScatterElements", zeros, group, self.add("Add", zeros, np.array(1)), axis=0, reduction="add")
        through = self.add("CumSum", sizes, np.array(0))
        twice = self.add("Sub", self.add("Sub", self.add("Add", through, through), sizes), np.array(1))
        of_rows = self.add("ScatterElements", zeros, rows, self.add("GatherElements", twice, group, axis=0), axis=0)
        counts = self.add("ReduceSum", self.add("Where", missing, 0.0, 1.0), np.array([0]), keepdims=1)
        several = self.add("Greater", counts, 1.0)
        others = self.guarded(several, self.add("Sub", counts, 1.0))
        scale = self.add("Where", several, self.add("Div", 0.5, others), 0.0)
        return self.add("Mul", self.double(of_rows), scale)

    def distinct_ranks(self, values: str) -> str:
        """The ranks, and 0 where all values of the query are equal."""
        missing = self.add("IsNaN", values)
        _, scale = self.span(values, missing)
        return self.add("Where", self.add("Greater", scale, 0.0), self.ranks(missing), 0.0)

    def groups(self, ordered: str) -> str:
        """The number of the group of equal values that each value of sorted columns is in, from 0."""
        from onnx import TensorProto

        below = self.add("Slice", ordered, np.array([0]), np.array([-1]), np.array([0]))
        above = self.add("Slice", ordered, np.array([1]), np.array([np.iinfo(np.int64).max]), np.array([0]))
        starts = self.cast(self.add("Less", below, above), TensorProto.INT64)
        return self.add(
            "CumSum", self.add("Concat", np.zeros((1, self.n_features), np.int64), starts, axis=0), np.array(0)
        )

    def rounded(self, values: str) -> str:
        """The values rounded to single precision, as doubles."""
        from onnx import TensorProto

        return self.double(self.cast(values, TensorProto.FLOAT))

    # Transforms: float32, documents x columns

    def inputs(self, network: Network) -> str:
        """The inputs of a network: the transformed features, side by side for several transforms."""
        key = network.scaling
        if key not in self.transformed:
            parts = [self.transform(*block) for block in network.blocks]
            values = parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=1)
            if network.limit is not None:
                values = self.add("Clip", values, np.float32(-network.limit), np.float32(network.limit))
            self.transformed[key] = values
        return self.transformed[key]

    def transform(self, transform: Transform, per_query: bool) -> str:
        """The transformed features."""
        key = "transform", *scaling_of(transform, per_query)
        if key not in self.transformed:
            values = self._transform(transform, per_query)
            n_copies = transform.n_columns(1)
            if isinstance(transform, Piecewise):
                values = self.pieces(transform, values)
            self.transformed[key] = self.impute(values, n_copies)
        return self.transformed[key]

    def impute(self, values: str, n_copies: int) -> str:
        """0 where a feature is missing, in each of its copies, and single precision."""
        from onnx import TensorProto

        missing = self.copies(self.add("IsNaN", "features"), n_copies)
        return self.cast(self.add("Where", missing, 0.0, values), TensorProto.FLOAT)

    def copies(self, values: str, n_copies: int) -> str:
        """The columns, several times."""
        return values if n_copies == 1 else self.add("Concat", *[values] * n_copies, axis=1)

    def pieces(self, transform: Piecewise, scaled: str) -> str:
        """The piecewise-linear encoding of scaled features."""
        values = self.copies(self.rounded(scaled), transform.N_PIECES)
        low, slope = (array.T.ravel() for array in (transform.low_, transform.slope_))
        encoded = self.add("Mul", self.add("Sub", values, low), slope)
        return self.add("Min", self.add("Max", encoded, 0.0), 1.0)

    def _transform(self, transform: Transform, per_query: bool) -> str:
        values = self.double("features")
        if isinstance(transform, QueryRank) and per_query:
            return self.distinct_ranks(values)
        if isinstance(transform, Quantile):
            return self.interpolate(transform, values)
        if not isinstance(transform, Rescaling):
            return values
        if transform.TAKES_LOGS:
            values = self.signed_log(values)
        center, scale = self.spread(values, transform) if per_query else (transform.center_, transform.scale_)
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
        return self.rounded(signed)

    def spread(self, values: str, transform: Rescaling) -> tuple[str, str]:
        """Center and scale of each feature over the documents of the query, missing values left out."""
        missing = self.add("IsNaN", values)
        center, scale = self.span(values, missing)
        return self.moments(values, missing, center, scale) if transform.STANDARDISES else (center, scale)

    def span(self, values: str, missing: str) -> tuple[str, str]:
        """The lowest value and 1 / (highest - lowest) of each feature; a factor of 0 where all are equal."""
        first = np.array([0])
        low = self.add("ReduceMin", self.add("Where", missing, np.inf, values), first, keepdims=1)
        high = self.add("ReduceMax", self.add("Where", missing, -np.inf, values), first, keepdims=1)
        center = self.add("Where", self.add("LessOrEqual", low, high), low, 0.0)
        differs = self.add("Less", low, high)
        scale = self.add("Where", differs, self.add("Div", 1.0, self.guarded(differs, self.add("Sub", high, low))), 0.0)
        return center, scale

    def moments(self, values: str, missing: str, center: str, scale: str) -> tuple[str, str]:
        """Mean and 1 / deviation, from lowest value and 1 / span, as in ``kernels.scaling.standardise``."""
        first = np.array([0])
        z = self.add("Where", missing, 0.0, self.add("Mul", self.add("Sub", values, center), scale))
        counts = self.add("ReduceSum", self.add("Where", missing, 0.0, 1.0), first, keepdims=1)
        differs = self.add("Greater", scale, 0.0)
        n = self.guarded(differs, counts)
        mean = self.add("Div", self.add("ReduceSum", z, first, keepdims=1), n)
        square = self.add("Div", self.add("ReduceSum", self.add("Mul", z, z), first, keepdims=1), n)
        variance = self.add("Max", self.add("Sub", square, self.add("Mul", mean, mean)), self.add("Div", 0.5, n))
        shift = self.add("Div", mean, self.guarded(differs, scale))
        moved = self.add("Where", differs, self.add("Add", center, shift), center)
        return moved, self.add("Div", scale, self.add("Sqrt", variance))

    def guarded(self, condition: str, values: str) -> str:
        """The values where the condition holds, else 1: to divide by."""
        return self.add("Where", condition, values, 1.0)

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


def _tree_attributes(trees: Trees, columns: NDArray[np.int64]) -> dict[str, Any]:
    """The trees as attributes of TreeEnsembleRegressor: all nodes in one list, tree by tree, the root first."""
    from onnx import numpy_helper

    tree_of, own_number, leaf_tree, leaf_number = _numbered(trees)
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
        "nodes_values_as_tensor": numpy_helper.from_array(nodes(trees.threshold.astype(np.float64), 0.0), "thresholds"),
        "target_weights_as_tensor": numpy_helper.from_array(trees.values, "values"),
    } | {name: values.tolist() for name, values in lists.items()}


def _numbered(trees: Trees) -> tuple[NDArray[np.int64], ...]:
    """For splits and for leaves: the tree of each, and its number in the tree. The root has number 0."""
    splits = np.zeros((2, len(trees.feature)), np.int64)
    leaves = np.zeros((2, len(trees.values)), np.int64)
    for tree, root in enumerate(trees.roots.tolist()):
        waiting, number = [root], 0
        while waiting:
            node = waiting.pop()
            (splits if node >= 0 else leaves)[:, node if node >= 0 else ~node] = tree, number
            number += 1
            if node >= 0:
                waiting += [int(trees.right[node]), int(trees.left[node])]
    return splits[0], splits[1], leaves[0], leaves[1]


def open_session(path: Path) -> Any:
    """The graph in onnxruntime, on one thread."""
    with needing("the proof of an ONNX export"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    # Its content, as onnxruntime does not open a path that is not UTF-8.
    return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def _open(path: Path) -> Executor:
    session = open_session(path)
    return by_query(lambda features: session.run(None, {"features": features})[0])


def names_of(path: Path) -> list[str]:
    """The names of the features, as the file describes itself."""
    return str(open_session(path).get_modelmeta().custom_metadata_map["features"]).split("\n")


ONNX = Target("onnx", _check, _write, _open, names=names_of)
