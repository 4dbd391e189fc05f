"""The layers of a network, computed so that a score does not depend on the other documents, to the last bit.

The matrix products of libraries round a row differently depending on its position. Here every document goes through the
same operations: 64 outputs stay in registers while the inputs are added to them, for four documents at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model
from numpy.typing import NDArray

from tierank.kernels import Matrix, OutMatrix, compiled
from tierank.kernels.lanes import address, fill, lowered

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
    features: Matrix[np.float32],
    scaled: Matrix[np.float32],
    low: Matrix[np.float64],
    slope: Matrix[np.float64],
    totals: NDArray[np.float64],
    places: OutMatrix[np.uint8],
    shares: OutMatrix[np.float32],
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
