"""The layers of a network, computed so that a score does not depend on the other documents, to the last bit.

The matrix products of libraries round a row differently depending on its position. Here every document goes through the
same operations: 64 outputs stay in registers while the inputs are added to them, for four documents at a time.

Scores of boosted trees, 512 documents at a time (QuickScorer of Lucchese et al., 2015, with bytes for everything).

Two steps for each block of documents:

1. A value becomes a *place*: the number of thresholds below it. A *column* is a feature, one way to treat missing
   values, and at most 255 of its thresholds, so that a place is a byte. A split by category has a column for its set:
   members of the set have place 0, all other values place 1.
2. In each tree the leaves are numbered so that the smaller child of every split comes first. A *test* asks whether the
   place of a document is above that of a split's threshold, and rules out the leaves that the document cannot reach if
   it goes to the second child. A *word* is eight leaves, one bit each. The first leaf that is not ruled out is the leaf
   of the document.

No step branches on a document, so the compiler processes many documents at once; the tests process 128, which stay in
registers from the first test of a tree to the last. The values of the leaves are added in the order of the trees, in
double precision, as LightGBM does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model
from numpy.typing import NDArray

from tierank.kernels.compiling import (
    Doubles,
    Features,
    Matrix,
    OutDoubles,
    OutFeatures,
    OutMatrix,
    Vector,
    allocating,
    compiled,
)
from tierank.kernels.simd import WIDTH as SCORING_WIDTH
from tierank.kernels.simd import add_ruled_out, address, fill, lowered, no_bits, repeated, store_leaves, unless_all

# Outputs that are computed at a time. Layers are padded with zeros to a multiple of this.
WIDTH = 64
# Documents whose outputs stay in the cache while features are added, and features added at a time (measured).
_NEAR, _FEATURES = 64, 16
# Bytes of a cache line; tables are aligned to it.
_LINE = 64

Floats32 = NDArray[np.float32]

_FLOATS = ir.VectorType(ir.FloatType(), WIDTH)


class _FloatsType(types.Type):
    """Numba's type of a vector of floats."""

    def __init__(self) -> None:
        super().__init__(name=f"Floats({WIDTH})")


@register_model(_FloatsType)
class _FloatsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: _FloatsType) -> None:
        super().__init__(manager, kind, _FLOATS)


_VECTOR, _ARRAY = _FloatsType(), types.Array(types.float32, 1, "C")


def load(values: Floats32, at: int) -> Floats32:
    """The floats that start at an index."""
    return values[at : at + WIDTH]


@lowered(_VECTOR, _ARRAY, types.int64)(load)
def _emit_load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    values, at = arguments
    return builder.load(address(context, builder, signature.args[0], values, at, _FLOATS), align=4)


def store(floats: Floats32, values: Floats32, at: int) -> None:
    """Write the floats, starting at an index."""
    values[at : at + WIDTH] = floats


@lowered(types.void, _VECTOR, _ARRAY, types.int64)(store)
def _emit_store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    floats, values, at = arguments
    builder.store(floats, address(context, builder, signature.args[1], values, at, _FLOATS), align=4)
    return context.get_dummy_value()


def add_product(sums: Floats32, factor: np.float32, floats: Floats32) -> Floats32:
    """``sums`` + factor ``floats``, rounded once."""
    return (sums + factor * floats.astype(np.float64)).astype(np.float32)


@lowered(_VECTOR, _VECTOR, types.float32, _VECTOR)(add_product)
def _emit_add_product(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    sums, factor, floats = arguments
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    fused = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{WIDTH}f32")
    return builder.call(fused, [fill(builder, factor, _FLOATS), floats, sums])


def aligned(size: int) -> Floats32:
    """An uninitialised array that starts at a cache line; otherwise every load would cross one."""
    room = np.empty(4 * size + _LINE, np.uint8)
    first = -room.ctypes.data % _LINE
    return room[first : first + 4 * size].view(np.float32)


def table(values: NDArray[Any]) -> Floats32:
    """The values as a flat, aligned array."""
    flat = aligned(values.size)
    flat[:] = values.ravel()
    return flat


@compiled
def apply_layer(
    inputs: NDArray[np.float32],
    weights: NDArray[np.float32],
    biases: NDArray[np.float32],
    places: NDArray[np.uint8],
    shares: NDArray[np.float32],
    sums: NDArray[np.float32],
    slope: float,
    outputs: NDArray[np.float32],
) -> None:
    """phi(inputs weights + biases + pieces), with phi(x) = x above 0 and slope x below, and 0 below if the slope is 0.

    All arrays are flat; a row of ``inputs``, ``places`` and ``outputs`` is a document, and one of ``weights`` an input.
    The pieces of feature f are (1 - share) sums[f, place] + share sums[f, place + 1], where ``sums`` has N_PIECES + 1
    rows of outputs for each feature: see ``find_places``.
    """
    n_outputs = len(biases)
    n = len(outputs) // n_outputs
    n_inputs, n_features = len(inputs) // n, len(places) // n
    per_feature = len(sums) // max(n_features, 1)
    for first in range(0, n, _NEAR):
        last = min(first + _NEAR, n)
        for output in range(0, n_outputs, WIDTH):
            row = first
            while row + 4 <= last:
                own = row * n_inputs
                a = load(biases, output)
                b, c, d = a, a, a
                for i in range(n_inputs):
                    weight = load(weights, i * n_outputs + output)
                    a = add_product(a, inputs[own + i], weight)
                    b = add_product(b, inputs[own + n_inputs + i], weight)
                    c = add_product(c, inputs[own + 2 * n_inputs + i], weight)
                    d = add_product(d, inputs[own + 3 * n_inputs + i], weight)
                store(a, outputs, row * n_outputs + output)
                store(b, outputs, (row + 1) * n_outputs + output)
                store(c, outputs, (row + 2) * n_outputs + output)
                store(d, outputs, (row + 3) * n_outputs + output)
                row += 4
            while row < last:
                a = load(biases, output)
                for i in range(n_inputs):
                    a = add_product(a, inputs[row * n_inputs + i], load(weights, i * n_outputs + output))
                store(a, outputs, row * n_outputs + output)
                row += 1
            for feature in range(0, n_features, _FEATURES):
                for one in range(first, last):
                    at = one * n_outputs + output
                    a = load(outputs, at)
                    for own in range(
                        one * n_features + feature, one * n_features + min(feature + _FEATURES, n_features)
                    ):
                        of_place = (own - one * n_features) * per_feature + np.int64(places[own]) * n_outputs + output
                        a = add_product(a, shares[own], load(sums, of_place + n_outputs))
                        a = add_product(a, np.float32(1) - shares[own], load(sums, of_place))
                    store(a, outputs, at)
        for i in range(first * n_outputs, last * n_outputs):
            if outputs[i] <= 0:
                outputs[i] = np.float32(slope * outputs[i]) if slope > 0 else np.float32(0)  # not 0 times infinity


@compiled
def find_places(
    features: Features,
    scaled: Features,
    low: Matrix[np.float64],
    slope: Matrix[np.float64],
    totals: OutDoubles,
    places: OutMatrix[np.uint8],
    shares: OutFeatures,
) -> None:
    """The number of leading pieces that are 1 (at most all but one) for each scaled feature, and the value of the next.

    ``Piecewise`` gives ones, then one fraction, then zeros, so their sum determines all of them. The sum is 0 if
    the feature is missing. ``totals`` is working space with one number per feature.
    """
    n_pieces, n_features = low.shape
    for row in range(len(features)):
        for column in range(n_features):
            totals[column] = 0.0
        for piece in range(n_pieces):
            for column in range(n_features):
                value = (scaled[row, column] - low[piece, column]) * slope[piece, column]
                value = value if value > 0.0 else 0.0
                totals[column] += value if value < 1.0 else 1.0
        for column in range(n_features):
            total = totals[column] if features[row, column] == features[row, column] else 0.0
            place = min(np.int64(total), n_pieces - 1)
            places[row, column] = place
            shares[row, column] = total - place


# The most documents in a block, and leaves in a word.
BLOCK, LEAVES = np.uint64(512), np.uint64(8)
# The most thresholds per column, and words per tree: as many as a byte can count.
MAX_THRESHOLDS, MAX_WORDS = 255, 256
# Thresholds of a column come in multiples of this: the number that one pass over the block handles.
THRESHOLDS_AT_ONCE = np.uint64(4)

# Unsigned: numba then omits the code for negative indices.
_ONE, _TWO, _THREE = np.uint64(1), np.uint64(2), np.uint64(3)
_NAN = np.float32(np.nan)
# Documents that are processed at once by loops over values, and by tests.
_SCORING_VECTOR, _WIDTH = np.uint64(32), np.uint64(SCORING_WIDTH)
_1 = np.uint8(1)


class ThresholdColumns(NamedTuple):
    """The thresholds that values are compared with.

    Parameters
    ----------
    feature : array of uint64
        The feature of each column.
    missing : array of uint8
        The place of missing values in each column.
    near_zero : array of float32
        Values this close to 0 are missing too; negative if 0 is a value like any other.
    first : array of uint64
        Where the thresholds of each column begin, and where the last ones end.
    thresholds : array of float32
        The thresholds, increasing within a column; the last ones may be infinite.
    first_level : array of uint64
        Where the levels of each column begin, and where the last ones end; a column that is not a category has none.
    places : array of uint8
        The place of each level of a category: 0 if it is in the set of the splits of this column, otherwise 1.
    """

    feature: Vector[np.uint64]
    missing: Vector[np.uint8]
    near_zero: Vector[np.float32]
    first: Vector[np.uint64]
    thresholds: Vector[np.float32]
    first_level: Vector[np.uint64]
    places: Vector[np.uint8]


class Forest(NamedTuple):
    """Trees as words of leaves, and the tests that rule out leaves.

    Parameters
    ----------
    first_word : array of uint64
        Where the words of each tree begin, and where the last ones end.
    values : array of float64
        The values of the leaves, eight for each word.
    first_test : array of uint64
        Where the tests of each word begin, and where the last ones end.
    column : array of uint32
        The column that each test reads.
    place : array of uint8
        The place of its threshold there.
    if_above : array of uint8
        The leaves of the word that are ruled out if the place of a document is above that.
    if_not : array of uint8
        Those that are ruled out if it is not.
    """

    first_word: Vector[np.uint64]
    values: Doubles
    first_test: Vector[np.uint64]
    column: Vector[np.uint32]
    place: Vector[np.uint8]
    if_above: Vector[np.uint8]
    if_not: Vector[np.uint8]


@allocating
def score_rows(
    features: Features, start: int, end: int, columns: ThresholdColumns, forest: Forest, out: OutDoubles
) -> None:
    """The sum of the trees for the rows ``start:end``, written to the same rows of ``out``.

    It creates its own arrays, because the compiler then knows that they share no memory with any others: it takes a
    sixth of the time.
    """
    most = np.uint64(end - start)
    most = (most + _WIDTH - _ONE) // _WIDTH * _WIDTH if most < BLOCK else BLOCK
    places = np.empty(np.uint64(len(columns.feature)) * most, np.uint8)
    values, counts, totals = np.empty(most, np.float32), np.empty(most, np.int32), np.empty(most, np.float64)
    leaves = np.empty(most, np.uint16)
    for d in range(most):
        values[d] = 0.0
    for row in range(np.uint64(start), np.uint64(end), BLOCK):
        n = np.uint64(end) - row
        n = n if n < BLOCK else BLOCK
        # Loops process whole vectors: values after the last document are computed, but never read.
        m = (n + _SCORING_VECTOR - _ONE) // _SCORING_VECTOR * _SCORING_VECTOR

        for column in range(np.uint64(len(columns.feature))):
            feature, missing, near_zero = columns.feature[column], columns.missing[column], columns.near_zero[column]
            level = columns.first_level[column]
            n_levels = columns.first_level[column + _ONE] - level
            row_of_places = places[column * most : (column + _ONE) * most]
            if n_levels > 0:
                most_level = np.float32(n_levels)
                for d in range(n):
                    value = features[row + d, feature]
                    is_level = value > np.float32(-1) and value < most_level  # not if it is missing
                    row_of_places[d] = columns.places[level + np.uint64(np.int64(value))] if is_level else _1
                continue
            for d in range(n):
                value = features[row + d, feature]
                values[d] = value if abs(value) > near_zero else _NAN
            for d in range(m):
                counts[d] = 0
            for i in range(columns.first[column], columns.first[column + _ONE], THRESHOLDS_AT_ONCE):
                t_0, t_1 = columns.thresholds[i], columns.thresholds[i + _ONE]
                t_2, t_3 = columns.thresholds[i + _TWO], columns.thresholds[i + _THREE]
                for d in range(m):
                    value = values[d]
                    n_first = np.int32(value > t_0) + np.int32(value > t_1)
                    counts[d] += n_first + np.int32(value > t_2) + np.int32(value > t_3)
            for d in range(m):
                row_of_places[d] = counts[d] if values[d] == values[d] else missing

        for d in range(n):
            totals[d] = 0.0
        for tree in range(np.uint64(len(forest.first_word) - 1)):
            first, last = forest.first_word[tree], forest.first_word[tree + _ONE]
            for d in range(np.uint64(0), n, _WIDTH):
                # For the first word that has a leaf left: its number in the tree, and its leaves that are ruled out.
                words, kept = no_bits(), no_bits()
                word = last
                while word > first:
                    word -= _ONE
                    gone = no_bits()
                    for test in range(forest.first_test[word], forest.first_test[word + _ONE]):
                        at = np.uint64(forest.column[test]) * most + d
                        above, if_not = forest.if_above[test], forest.if_not[test]
                        gone = add_ruled_out(gone, places, at, forest.place[test], above, if_not)
                    words = unless_all(gone, words, repeated(np.uint8(word - first)))
                    kept = unless_all(gone, kept, gone)
                store_leaves(words, kept, leaves, d)
            leaf_values = forest.values[first * LEAVES :]
            for d in range(n):
                totals[d] += leaf_values[np.uint64(leaves[d])]

        for d in range(n):
            out[row + d] = totals[d]
