"""C: one C99 source that scores without any library.

Trees are tables. A document goes down a tree without a branch (``next + !(x <= threshold)``; a leaf leads to itself),
eight documents at a time, so that the machine works on one while it waits for another. Missing values are handled once
for each document, before the first tree: each column is a feature whose missing values are replaced by a number that
goes the right way. Thresholds are rounded down to float32, which changes nothing for float32 features; leaves are added
up in double precision in the order of the trees, so that the scores are bit-identical to tierank's. Networks round to
single precision after each layer, as in tierank, and add up in double precision. Scaled features and copies within the
query are computed once per list.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.errors import ParameterError
from tierank.export.c_source import (
    COMBINED,
    ENCODE,
    ENTRY,
    FIND_MEMBERS,
    HEAD,
    INPUTS,
    LOOK_UP,
    MAIN,
    NETWORK,
    RESCALE_IN_QUERY,
    RUNTIME,
    TRANSFORM,
    TREES,
)
from tierank.export.portable import (
    NONE,
    ZERO,
    Layer,
    Model,
    Network,
    QueryCopies,
    Scorer,
    Sum,
    Trees,
    scaling_of,
)
from tierank.export.target import Executor, Target, check_transforms
from tierank.transforms import Piecewise, Quantile, QueryRank, Rescaling, Transform
from tierank.types import Floats

# Compiler options; none may change results.
FLAGS = ("-std=c99", "-O3", "-ffp-contract=off")
# Options for speed that not all compilers know; they do not change results.
_NATIVE = ("-march=native",)
# Inputs of a layer that are processed at a time.
_INPUTS = 4


def _check(model: Model) -> None:
    """All models in the neutral form with transforms of tierank are supported."""
    check_transforms("c", model)


def _write(model: Model, path: Path) -> None:
    path.write_text(source(model), encoding="utf-8")


def source(model: Model) -> str:
    """The C source of a model."""
    writer = _Writer(model.n_features)
    scorer = writer.scorer(model.scorer)
    entry = writer.entry(scorer)
    used = "".join(text for word, text in RUNTIME.items() if any(word in part for part in (*writer.parts, entry)))
    names = "\n".join(f" *   {place} {name}" for place, name in enumerate(model.described_names()))
    head = HEAD.format(n_features=model.n_features, names=names)
    return "\n".join([head, used, *writer.parts, entry, MAIN])


class _Writer:
    """Tables and functions in the order they are written. A method returns the name of a function
    ``int f(const float *features, const float *made, size_t n, double *scores)``, which returns 0, or 1 where memory
    ran out. ``made`` are blocks of rows that are made of the features, once for each list.
    """

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.parts: list[str] = []
        self.numbers = count()
        # The content of each block, and the function that computes it with its number of columns.
        self.made: dict[Any, tuple[str, int]] = {}

    def entry(self, scorer: str) -> str:
        """The function that users call."""
        calls, width = "", 0
        for name, columns in self.made.values():
            calls += f"  failed = failed || {name}(features, n, made + {width} * n);\n"
            width += columns
        return ENTRY.format(scorer=scorer, calls=calls, width=width)

    def rows(self, key: Any) -> str:
        """The C expression for the rows of a block."""
        before = list(self.made.values())[: list(self.made).index(key)]
        return f"made + {sum(columns for _, columns in before)} * n"

    def scorer(self, scorer: Scorer) -> str:
        """The function of a scorer."""
        if isinstance(scorer, Trees):
            return self.trees(scorer, "features", self.n_features)
        if isinstance(scorer, QueryCopies):
            width = QueryCopies.COPIES * self.n_features
            self.made[QueryCopies] = "copy_in_query", width
            return self.trees(scorer.trees, self.rows(QueryCopies), width)
        if isinstance(scorer, Network):
            return self.network(scorer)
        if isinstance(scorer, Sum):
            parts = [(self.scorer(part), (weight,)) for weight, part in scorer.parts]
            return self.combination("add_scaled", parts)
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
        return self.function("combined", COMBINED.format(calls=calls + last))

    def function(self, kind: str, body: str) -> str:
        """One function that scores."""
        name = f"{kind}_{next(self.numbers)}"
        arguments = "const float *features, const float *made, size_t n, double *scores"
        unused = "  (void)features, (void)made;\n"
        self.parts.append(f"static int {name}({arguments}) {{\n{unused}{body}}}\n")
        return name

    def table(self, kind: str, name: str, values: Any, *, columns: int | None = None) -> str:
        """One constant array."""
        flat = np.asarray(values).ravel()
        form = _number if kind in ("float", "double") else str
        suffix = "f" if kind == "float" else ""
        words = [f"{form(value)}{suffix if 'x' in form(value) else ''}" for value in flat.tolist()]
        words = words or ["0"]  # C has no empty arrays
        full, size = f"{name}_{next(self.numbers)}", f"[{len(words)}]"
        lines = _lines(words)
        if columns is not None:
            rows = [words[k : k + columns] for k in range(0, len(words), columns)]
            size, lines = f"[{len(rows)}][{columns}]", ",\n".join(f"{{{_lines(row)}}}" for row in rows)
        self.parts.append(f"static const {kind} {full}{size} = {{\n{lines}}};\n")
        return full

    def trees(self, trees: Trees, rows: str, width: int) -> str:
        """The function of boosted trees that look at these rows."""
        sets, trees = trees.without_categories(width)
        columns = _Columns(trees)
        layout = _Layout(trees, columns.of_split)
        lines = ",\n".join(
            f"{{{_number(t)}{'' if np.isinf(t) else 'f'}, {c}, {k}}}"
            for t, c, k in zip(layout.threshold.tolist(), layout.column, layout.next, strict=True)
        )
        nodes = f"nodes_{next(self.numbers)}"
        self.parts.append(f"static const struct node {nodes}[{len(layout.next)}] = {{\n{lines}}};\n")
        return self.function(
            "trees",
            TREES.format(
                nodes=nodes,
                values=self.table("double", "values", layout.values),
                roots=self.table("int", "roots", layout.roots),
                depths=self.table("int", "depths", layout.depths),
                fills=self.table("float", "fills", columns.fill),
                features=self.table("int", "columns", np.where(columns.feature < width, columns.feature, 0)),
                zeros=self.table("int", "zeros", columns.is_zero.astype(int)),
                rows=rows,
                width=width,
                find_members=self.find_members(sets, columns, width),
                n_trees=len(layout.roots),
                n_columns=len(columns.feature),
            ),
        )

    def find_members(self, sets: list[tuple[int, NDArray[np.bool_]]], columns: _Columns, width: int) -> str:
        """The statements that fill the columns of splits by category: 0 for members of a set, 1 for other values."""
        if not sets:
            return ""
        used = [(k, *sets[place - width]) for k, place in enumerate(columns.feature.tolist()) if place >= width]
        sizes = [len(members) for _, _, members in used]
        tables = {
            "columns": self.table("int", "set_columns", [column for column, _, _ in used]),
            "features": self.table("int", "set_features", [feature for _, feature, _ in used]),
            "sizes": self.table("int", "set_sizes", sizes),
            "starts": self.table("int", "set_starts", np.cumsum([0, *sizes[:-1]])),
            "members": self.table("unsigned char", "members", np.concatenate([m for _, _, m in used]).astype(int)),
        }
        return FIND_MEMBERS.format(n_sets=len(used), **tables)

    def network(self, network: Network) -> str:
        """The function of a network."""
        n_inputs = network.layers[0].weights.shape[1]
        width = _padded(max([n_inputs, *(layer.n_out for layer in network.layers)]))
        layers = "".join(self.layer(layer, width) for layer in network.layers)
        return self.function("network", NETWORK.format(inputs=self.inputs(network, width), width=width, layers=layers))

    def inputs(self, network: Network, width: int) -> str:
        """The statements that fetch the inputs of the network for some documents, block by block."""
        value = "row[{}]" if network.limit is None else f"within(row[{{}}], {_number(network.limit)})"
        statements, first = "", 0
        for transform, per_query in network.blocks:
            columns, seen = transform.n_columns(self.n_features), network.columns_of(transform, self.n_features)
            rows = self.transformed(transform, per_query)
            place = "k" if len(seen) == columns else f"{self.table('int', 'seen', seen)}[k]"
            form = {"rows": rows, "columns": columns, "width": width, "first": first, "n_seen": len(seen)}
            statements += INPUTS.format(**form, value=value.format(place))
            first += len(seen)
        for one in network.embeddings:
            table, size = self.table("double", "levels", one.table), one.table.shape[1]
            form = {"feature": one.feature, "n_levels": one.n_levels, "table": table, "size": size}
            statements += LOOK_UP.format(**form, width=width, first=first)
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
        key = scaling_of(transform, per_query)
        if key not in self.made:
            statements = self.transform(transform, per_query)
            name = f"transform_{next(self.numbers)}"
            self.parts.append(TRANSFORM.format(name=name, statements=statements))
            self.made[key] = name, transform.n_columns(self.n_features)
        return self.rows(key)

    def transform(self, transform: Transform, per_query: bool) -> str:
        """The statements that fill ``rows`` with the transformed features."""
        if isinstance(transform, QueryRank) and per_query:
            return "  if (rank_in_query(features, n, rows)) return 1;\n"
        if isinstance(transform, Quantile):
            names = [
                self.table(kind, name, array, columns=transform.knots_.shape[1])
                for kind, name, array in (
                    ("float", "knots", transform.knots_),
                    ("float", "levels", transform.levels_),
                    ("double", "slopes", transform.slopes_),
                )
            ]
            return f"  interpolate(features, n, {', '.join(names)}, rows);\n"
        if not isinstance(transform, Rescaling):
            return "  impute(features, n, rows);\n"
        if isinstance(transform, Piecewise):
            return self.pieces(transform)
        return self.rescaling(transform, per_query, "rows")

    def rescaling(self, transform: Rescaling, per_query: bool, out: str) -> str:
        """The statements that fill an array with rescaled features."""
        take = f"  {'take_logs' if transform.TAKES_LOGS else 'copy_features'}(features, n, {out});\n"
        limits = ", ".join(_number(limit) for limit in transform.LIMITS)
        if per_query:
            return RESCALE_IN_QUERY.format(take=take, out=out, standard=int(transform.STANDARDISES), limits=limits)
        center, scale = (
            self.table("double", k, v) for k, v in (("center", transform.center_), ("scale", transform.scale_))
        )
        return f"{take}  rescale({out}, n, {center}, {scale}, {limits});\n"

    def pieces(self, transform: Piecewise) -> str:
        """The statements that fill ``rows`` with the piecewise-linear encoding."""
        low, slope = (
            self.table("double", name, array.T, columns=self.n_features)
            for name, array in (("low", transform.low_), ("slope", transform.slope_))
        )
        scaled = self.rescaling(transform, False, "scaled")
        return ENCODE.format(scaled=scaled, low=low, slope=slope, n=transform.N_PIECES)


class _Columns:
    """The columns that splits compare: features, with missing values replaced by a number that goes the right way."""

    def __init__(self, trees: Trees) -> None:
        default = np.where(trees.default_left, np.float32(-np.inf), np.float32(np.inf))
        fill = np.where(trees.missing == NONE, np.float32(0), default)
        keys = np.stack([trees.feature, trees.missing == ZERO, np.sign(fill)], axis=1).astype(np.int64)
        unique, inverse = np.unique(keys, axis=0, return_inverse=True) if len(keys) else (keys, keys[:, 0])
        self.of_split = inverse.ravel()
        self.feature, self.is_zero = unique[:, 0], unique[:, 1] > 0
        self.fill = np.array([-np.inf, 0.0, np.inf])[unique[:, 2] + 1]


class _Layout:
    """All trees in one array of nodes: the children of a split side by side, the left one first."""

    def __init__(self, trees: Trees, columns: NDArray[np.int64]) -> None:
        self.roots: list[int] = []
        self.depths: list[int] = []
        places: list[int] = []
        self.next: list[int] = []
        for root in trees.roots.tolist():
            self.roots.append(len(places))
            self.depths.append(self._add(trees, root, places))
        nodes = np.array(places)
        split, is_split = np.maximum(nodes, 0), nodes >= 0
        # Missing values that go right are filled with infinity, which has to be above the threshold; that of a split of
        # missing values from all others is infinite.
        finite = np.minimum(trees.threshold, np.finfo(np.float32).max)
        thresholds = np.append(finite, np.float32(0))
        self.threshold = np.where(is_split, thresholds[np.minimum(split, len(trees.feature))], np.float32(np.inf))
        self.column = np.where(is_split, np.append(columns, 0)[split], 0).tolist()
        self.values = np.where(is_split, 0.0, trees.values[np.where(is_split, 0, ~nodes)])

    def _add(self, trees: Trees, root: int, places: list[int]) -> int:
        """Level by level; returns the number of levels below the root."""
        level, depth = [(root, len(places))], -1
        places.append(root)
        self.next.append(0)
        while level:
            depth += 1
            below = []
            for node, place in level:
                self.next[place] = place if node < 0 else len(places)
                if node >= 0:
                    for child in (int(trees.left[node]), int(trees.right[node])):
                        below.append((child, len(places)))
                        places.append(child)
                        self.next.append(0)
            level = below
        return depth


def _lines(words: list[str]) -> str:
    """The words, eight in a line."""
    return ",\n".join(", ".join(words[k : k + 8]) for k in range(0, len(words), 8))


def _padded(n: int) -> int:
    """The smallest multiple of the block size that is not below n."""
    return -(-n // _INPUTS) * _INPUTS


def _number(value: float) -> str:
    """A number that C reads to the same bits."""
    if value in (np.inf, -np.inf):
        return "INFINITY" if value > 0 else "-INFINITY"
    return float(value).hex()


def compile_library(path: Path, library: Path) -> None:
    """Compile a source to a shared library."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise ParameterError("c: expected a C compiler (cc, gcc or clang, or its name in CC) to verify with, got none")
    for flags in ((*FLAGS, *_NATIVE), FLAGS):
        command = [*compiler.split(), *flags, "-shared", "-fPIC", "-x", "c", str(path), "-o", str(library), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (our own source)
        except OSError as error:
            raise ParameterError(f"c: expected a C compiler in CC, got {compiler!r}: {error.strerror}") from None
        if done.returncode == 0:
            return
    first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
    raise ParameterError(f"c: expected {compiler} to compile {path}, got: {first}")


def _open(path: Path) -> Executor:
    with tempfile.TemporaryDirectory() as folder:
        compile_library(path, Path(folder, "model.so"))
        score = ctypes.CDLL(str(Path(folder, "model.so"))).tierank_score
    score.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]

    def run(features: NDArray[np.float32], offsets: NDArray[np.int64]) -> Floats:
        rows = np.ascontiguousarray(features, np.float32)
        scores = np.empty(len(rows))
        for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            if score(rows[start:end].ctypes.data, end - start, scores[start:].ctypes.data):
                raise MemoryError
        return scores

    return run


C = Target("c", _check, _write, _open)
