"""C: one C99 source that scores without any library.

Trees are tables. A document goes down a tree without a branch (``next + !(x <= threshold)``; a leaf leads to itself),
eight documents at a time, so that the machine works on one while it waits for another. Missing values are handled once
for each document, before the first tree: each column is a feature whose missing values are replaced by a number that
goes the right way. Thresholds are rounded down to float32, which changes nothing for float32 features; leaves are added
up in double precision in the order of the trees, so that the scores are bit-identical to tierank's. Networks round to
single precision after each layer, as in tierank, and add up in double precision. Scaled features and copies within the
query are computed once per list.

The C text is in ``model.c``; here are the tables, and what is inserted.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.errors import ParameterError
from tierank.export.neutral import NONE, Layer, Model, Network, QueryCopies, Scorer, Sum, Trees, scaling_of
from tierank.export.targets import Executor, Target, check_parts, own_transforms, text_of
from tierank.transforms import Piecewise, Quantile, QueryRank, Rescaling, Transform

# Compiler options; none may change results.
FLAGS = ("-std=c99", "-O3", "-ffp-contract=off")
# Options for speed that not all compilers know; they do not change results.
_NATIVE = ("-march=native",)
# Inputs of a layer that are processed at a time.
_INPUTS = 4
_ACTIVATIONS = {
    "identity": "x",
    "elu": "x < 0 ? expm1f(x) : x",
    "gelu": "x * 0.5f * (1 + erff(x * 0.70710678f))",
    "leaky_relu": "x < 0 ? 0.01f * x : x",
    "relu": "0 > x ? 0 : x",
    "sigmoid": "1 / (1 + expf(-x))",
    "silu": "x / (1 + expf(-x))",
    "tanh": "tanhf(x)",
}


@cache
def _pieces() -> dict[str, Template]:
    """The pieces of the template, by name."""
    text = re.sub(r"(?m)^// .*\n", "", text_of("model.c"))
    _, *found = re.split(r"(?m)^//@ (.+)\n", text)
    return dict(zip(found[::2], map(Template, found[1::2]), strict=True))


def _filled(piece: str, **values: Any) -> str:
    return _pieces()[piece].substitute(values)


def _write(model: Model, path: Path) -> None:
    path.write_text(source(model), encoding="utf-8")


def source(model: Model) -> str:
    """The C source of a model."""
    writer = _Writer(model.n_features)
    scorer = writer.scorer(model.scorer)
    calls = (f"  failed = failed || {name}(features, n, made + {at} * n);\n" for name, at in writer.blocks.values())
    entry = _filled("entry", scorer=scorer, calls="".join(calls), width=writer.width)
    runtime = {
        f"activate_{name}(": _filled("activation", name=name, value=value) for name, value in _ACTIVATIONS.items()
    }
    runtime |= {name.removeprefix("for "): _filled(name) for name in _pieces() if name.startswith("for ")}
    used = "".join(text for word, text in runtime.items() if any(word in part for part in (*writer.parts, entry)))
    names = "\n".join(f" *   {place} {name}" for place, name in enumerate(model.described_names()))
    head = _filled("head", n_features=model.n_features, names=names)
    return "\n".join([head, used, *writer.parts, entry, _filled("program")])


class _Writer:
    """Tables and functions in the order they are written. Methods return the name of a function or of a table."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.parts: list[str] = []
        self.numbers = count()
        # Rows that are made of the features once for each list: the function that makes them, and their first column.
        self.blocks: dict[Any, tuple[str, int]] = {}
        self.width = 0

    def block(self, key: Any, columns: int, function: Callable[[], str]) -> str:
        """The C expression for the rows of a block, which is the same for equal keys."""
        if key not in self.blocks:
            self.blocks[key] = function(), self.width
            self.width += columns
        return f"made + {self.blocks[key][1]} * n"

    def scorer(self, scorer: Scorer) -> str:
        """The function of a scorer."""
        if isinstance(scorer, Trees):
            return self.trees(scorer, "features", self.n_features)
        if isinstance(scorer, QueryCopies):
            width = QueryCopies.COPIES * self.n_features
            return self.trees(scorer.trees, self.block(QueryCopies, width, lambda: "copy_in_query"), width)
        if isinstance(scorer, Network):
            return self.network(scorer)
        if isinstance(scorer, Sum):
            return self.combination("add_scaled", [(self.scorer(part), (weight,)) for weight, part in scorer.parts])
        means = [(self.scorer(part), (1.0 / len(scorer.parts), scorer.ROUNDING)) for part in scorer.parts]
        last = f"  drop_cancelled(scores, n, {_number(scorer.CANCELLED)});\n" if len(means) > 1 else ""
        return self.combination("add_standardised", means, last)

    def combination(self, how: str, parts: Sequence[tuple[str, tuple[float, ...]]], last: str = "") -> str:
        """The sum of parts, each scaled or standardised first with these numbers, and a last step."""
        calls = "".join(
            f"  failed = failed || {name}(features, made, n, part);\n"
            f"  if (!failed) {how}(part, n, {', '.join(map(_number, numbers))}, scores);\n"
            for name, numbers in parts
        )
        return self.function("combined", _filled("combined", calls=calls + last))

    def function(self, kind: str, body: str) -> str:
        """One function that scores."""
        name = f"{kind}_{next(self.numbers)}"
        self.parts.append(_filled("function", name=name, body=body))
        return name

    def table(self, kind: str, name: str, values: Any, *, columns: int | None = None) -> str:
        """One constant array of numbers; with rows of so many columns."""
        numbers = np.asarray(values).ravel().tolist()
        if kind in ("float", "double"):
            words = [_number(value, "f" if kind == "float" else "") for value in numbers]
        else:
            words = [str(value) for value in numbers]
        words = words or ["0"]  # C has no empty arrays
        if columns is None:
            return self.array(kind, name, f"[{len(words)}]", _lines(words))
        rows = [f"{{{_lines(words[k : k + columns])}}}" for k in range(0, len(words), columns)]
        return self.array(kind, name, f"[{len(rows)}][{columns}]", ",\n".join(rows))

    def array(self, kind: str, name: str, size: str, lines: str) -> str:
        """One constant array."""
        full = f"{name}_{next(self.numbers)}"
        self.parts.append(f"static const {kind} {full}{size} = {{\n{lines}}};\n")
        return full

    def trees(self, trees: Trees, rows: str, width: int) -> str:
        """The function of boosted trees that look at these rows."""
        sets, trees = trees.without_categories(width)
        column_of_split, feature, is_zero, fill = _columns(trees)
        nodes, leads, roots, depths = _laid_out(trees)
        is_split = nodes >= 0
        # Missing values that go right are filled with infinity, which has to be above the threshold; that of a split of
        # missing values from all others is infinite.
        threshold, column = np.full(len(nodes), np.float32(np.inf)), np.zeros(len(nodes), np.int64)
        threshold[is_split] = np.minimum(trees.threshold, np.finfo(np.float32).max)[nodes[is_split]]
        column[is_split] = column_of_split[nodes[is_split]]
        values = np.zeros(len(nodes))
        values[~is_split] = trees.values[~nodes[~is_split]]
        lines = zip(threshold.tolist(), column.tolist(), leads, strict=True)
        structs = ",\n".join(f"{{{_number(t, 'f')}, {c}, {k}}}" for t, c, k in lines)
        body = _filled(
            "trees",
            nodes=self.array("struct node", "nodes", f"[{len(nodes)}]", structs),
            values=self.table("double", "values", values),
            roots=self.table("int", "roots", roots),
            depths=self.table("int", "depths", depths),
            fills=self.table("float", "fills", fill),
            features=self.table("int", "columns", np.where(feature < width, feature, 0)),
            zeros=self.table("int", "zeros", is_zero.astype(int)),
            rows=rows,
            width=width,
            find_members=self.find_members(sets, feature, width),
            n_trees=len(roots),
            n_columns=len(feature),
        )
        return self.function("trees", body)

    def find_members(self, sets: list[tuple[int, NDArray[np.bool_]]], feature: NDArray[np.int64], width: int) -> str:
        """The statements that fill the columns of splits by category: 0 for members of a set, 1 for other values."""
        used = [(k, *sets[place - width]) for k, place in enumerate(feature.tolist()) if place >= width]
        if not used:
            return ""
        columns, features, members = zip(*used, strict=True)
        sizes = [len(one) for one in members]
        return _filled(
            "find members",
            n_sets=len(used),
            columns=self.table("int", "set_columns", columns),
            features=self.table("int", "set_features", features),
            sizes=self.table("int", "set_sizes", sizes),
            starts=self.table("int", "set_starts", np.cumsum([0, *sizes[:-1]])),
            members=self.table("unsigned char", "members", np.concatenate(members).astype(int)),
        )

    def network(self, network: Network) -> str:
        """The function of a network."""
        n_inputs = network.layers[0].weights.shape[1]
        width = _padded(max([n_inputs, *(layer.n_out for layer in network.layers)]))
        layers = "".join(self.layer(layer, width) for layer in network.layers)
        inputs = self.inputs(network, width)
        return self.function("network", _filled("network", inputs=inputs, width=width, layers=layers))

    def inputs(self, network: Network, width: int) -> str:
        """The statements that fetch the inputs of the network for some documents, block by block."""
        statements, first = "", 0
        for transform, per_query in network.blocks:
            columns, seen = transform.n_columns(self.n_features), network.columns_of(transform, self.n_features)
            form = {"rows": self.transformed(transform, per_query), "columns": columns, "n_seen": len(seen)}
            value = "row[k]" if len(seen) == columns else f"row[{self.table('int', 'seen', seen)}[k]]"
            if network.limit is not None:
                value = f"within({value}, {_number(network.limit)})"
            statements += _filled("inputs", **form, width=width, first=first, value=value)
            first += len(seen)
        for one in network.embeddings:
            table, size = self.table("double", "levels", one.table), one.table.shape[1]
            form = {"feature": one.feature, "n_levels": one.n_levels, "table": table, "size": size}
            statements += _filled("look up", **form, width=width, first=first)
            first += size
        return statements

    def layer(self, layer: Layer, width: int) -> str:
        """The calls for one layer of a network; ``width`` is the distance between documents."""
        n_out, n_in = layer.weights.shape
        by_input = np.pad(layer.weights.T, ((0, _padded(n_in) - n_in), (0, 0)))
        weights, bias = self.table("double", "weights", by_input), self.table("double", "bias", layer.bias)
        calls = [f"apply_layer({weights}, {bias}, {n_in}, {n_out}, {width}, x, y);"]
        if not layer.is_double:
            calls.append(f"activate_{layer.activation}(y, {n_out}, {width});")
        if layer.keeps_input:
            copy = f"memcpy(y + j * {width} + {n_out}, x + j * {width}, {n_in} * sizeof *x);"
            calls.append(f"for (int j = 0; j < TOGETHER; j++) {copy}")
        return "".join(f"    {call}\n" for call in (*calls, "kept = x, x = y, y = kept;"))

    def transformed(self, transform: Transform, per_query: bool) -> str:
        """Where the transformed features are."""

        def function() -> str:
            statements = self.transform(transform, per_query)
            name = f"transform_{next(self.numbers)}"
            self.parts.append(_filled("transform", name=name, statements=statements))
            return name

        return self.block(scaling_of(transform, per_query), transform.n_columns(self.n_features), function)

    def transform(self, transform: Transform, per_query: bool) -> str:
        """The statements that fill ``rows`` with the transformed features."""
        if isinstance(transform, QueryRank) and per_query:
            return "  if (rank_in_query(features, n, rows)) return 1;\n"
        if isinstance(transform, Quantile):
            n_knots = transform.knots_.shape[1]
            knots = self.table("float", "knots", transform.knots_, columns=n_knots)
            levels = self.table("float", "levels", transform.levels_, columns=n_knots)
            slopes = self.table("double", "slopes", transform.slopes_, columns=n_knots)
            return f"  interpolate(features, n, {knots}, {levels}, {slopes}, rows);\n"
        if not isinstance(transform, Rescaling):
            return "  impute(features, n, rows);\n"
        if not isinstance(transform, Piecewise):
            return self.rescaling(transform, per_query, "rows")
        low = self.table("double", "low", transform.low_.T, columns=self.n_features)
        slope = self.table("double", "slope", transform.slope_.T, columns=self.n_features)
        scaled = self.rescaling(transform, False, "scaled")
        return _filled("encode", scaled=scaled, low=low, slope=slope, n=transform.N_PIECES)

    def rescaling(self, transform: Rescaling, per_query: bool, out: str) -> str:
        """The statements that fill an array with rescaled features."""
        take = f"  {'take_logs' if transform.TAKES_LOGS else 'copy_features'}(features, n, {out});\n"
        limits = ", ".join(_number(limit) for limit in transform.LIMITS)
        if per_query:
            standard = int(transform.STANDARDISES)
            return _filled("rescale in query", take=take, out=out, standard=standard, limits=limits)
        center, scale = (
            self.table("double", "center", transform.center_),
            self.table("double", "scale", transform.scale_),
        )
        return f"{take}  rescale({out}, n, {center}, {scale}, {limits});\n"


def _columns(trees: Trees) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], Floats]:
    """The columns that splits compare: features, with missing values replaced by a number that goes the right way.

    Returns the column of each split; and of each column the feature, whether 0 is missing, and the replacement.
    """
    default = np.where(trees.default_left, np.float32(-np.inf), np.float32(np.inf))
    fill = np.where(trees.missing == NONE, np.float32(0), default)
    keys = np.stack([trees.feature, trees.takes_zero, np.sign(fill)], axis=1).astype(np.int64)
    unique, of_split = np.unique(keys, axis=0, return_inverse=True) if len(keys) else (keys, keys[:, 0])
    return of_split.ravel(), unique[:, 0], unique[:, 1] > 0, np.array([-np.inf, 0.0, np.inf])[unique[:, 2] + 1]


def _laid_out(trees: Trees) -> tuple[NDArray[np.int64], list[int], list[int], list[int]]:
    """All trees in one array of nodes, level by level: the children of a split side by side, the left one first.

    Returns the nodes, where each leads (a split to its left child, a leaf to itself), and of each tree its root and its
    depth.
    """
    left, right = trees.left.tolist(), trees.right.tolist()
    nodes: list[int] = []
    leads: list[int] = []
    depth: list[int] = []
    roots, depths = [], []
    for root in trees.roots.tolist():
        roots.append(len(nodes))
        nodes.append(root)
        depth.append(0)
        while len(leads) < len(nodes):
            place, node = len(leads), nodes[len(leads)]
            leads.append(place if node < 0 else len(nodes))
            if node >= 0:
                nodes += [left[node], right[node]]
                depth += [depth[place] + 1] * 2
        depths.append(depth[-1])
    return np.array(nodes), leads, roots, depths


def _lines(words: list[str]) -> str:
    """The words, eight in a line."""
    return ",\n".join(", ".join(words[k : k + 8]) for k in range(0, len(words), 8))


def _padded(n: int) -> int:
    """The smallest multiple of the block size that is not below n."""
    return -(-n // _INPUTS) * _INPUTS


def _number(value: float, suffix: str = "") -> str:
    """A number that C reads to the same bits."""
    if np.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    return float(value).hex() + suffix


def _compile(path: Path, library: Path) -> None:
    """Compile a source to a shared library."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        expected = "a C compiler (cc, gcc or clang, or its name in CC) to verify with"
        raise ParameterError(where="c", expected=expected, got="none")
    for flags in ((*FLAGS, *_NATIVE), FLAGS):
        command = [*compiler.split(), *flags, "-shared", "-fPIC", "-x", "c", str(path), "-o", str(library), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (our own source)
        except OSError as error:
            got = f"{compiler!r}: {error.strerror}"
            raise ParameterError(where="c", expected="a C compiler in CC", got=got) from None
        if done.returncode == 0:
            return
    first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
    raise ParameterError(where="c", expected=f"{compiler} to compile {path}", got=f": {first}")


def _open(path: Path) -> Executor:
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "model.so")
        _compile(path, library)
        score = ctypes.CDLL(str(library)).tierank_score
    score.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]

    def run(features: NDArray[np.float32], offsets: NDArray[np.int64]) -> Floats:
        rows = np.ascontiguousarray(features, np.float32)
        scores = np.empty(len(rows))
        for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            if score(rows[start:end].ctypes.data, end - start, scores[start:].ctypes.data):
                raise MemoryError
        return scores

    return run


# All models in the neutral form, with transforms of tierank.
C = Target("c", lambda model: check_parts("c", model, own_transforms), _write, _open)
