"""The bytes of 128 documents, held in registers by a kernel; and random numbers in loops that are vectorised.

A loop over arrays reads and writes its results at every step, because numba does not know that they could stay in
registers. These few operations are therefore written in LLVM's intermediate language, which has vectors of any length
and splits them into what the processor has. Each function is also plain NumPy, which shows what it does, and is what
runs if numba is switched off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import lower_builtin, models, register_model
from numpy.typing import NDArray

from tierank.kernels.compiling import compiled, inner

# Documents that are processed at a time.
WIDTH = 128

Bytes = NDArray[np.uint8]

# The bits of a byte whose number has a 1, a 2 or a 4 in its binary form.
_BIT_NUMBERS = {1: 0b10101010, 2: 0b11001100, 4: 0b11110000}
_ALL = 255

_BYTE, _SHORT, _INT = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_BYTES, _SHORTS = ir.VectorType(_BYTE, WIDTH), ir.VectorType(_SHORT, WIDTH)


class _LanesType(types.Type):
    """Numba's type of a vector of bytes."""

    def __init__(self) -> None:
        super().__init__(name=f"Lanes({WIDTH})")


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: _LanesType) -> None:
        super().__init__(manager, kind, _BYTES)


_LANES = _LanesType()
_BYTE_ARRAY, _SHORT_ARRAY = types.Array(types.uint8, 1, "C"), types.Array(types.uint16, 1, "C")

# Instructions: the context of numba, the builder, the signature and the arguments.
Emit = Callable[[Any, Any, Any, Any], Any]


def lowered(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Callable[[Emit], Emit]]:
    """Compile calls of a function with these types to the instructions that a second function emits."""

    def of_function(function: Callable[..., Any]) -> Callable[[Emit], Emit]:
        template = type("Template", (ConcreteTemplate,), {"key": function, "cases": [signature(result, *arguments)]})
        infer_global(function, types.Function(template))
        return lambda emit: lower_builtin(function, *arguments)(emit)

    return of_function


def no_bits() -> Bytes:
    """A zero byte for each document."""
    return np.zeros(WIDTH, np.uint8)


@lowered(_LANES)(no_bits)
def _emit_no_bits(_context: Any, _builder: Any, _signature: Any, _arguments: Any) -> Any:
    return _constant(_BYTES, 0)


def add_ruled_out(gone: Bytes, places: Bytes, at: int, place: int, if_above: int, if_not: int) -> Bytes:
    """``gone`` with the bits ``if_above`` where ``places[at:]`` is above ``place``, and with ``if_not`` elsewhere."""
    return gone | np.where(places[at : at + WIDTH] > place, np.uint8(if_above), np.uint8(if_not))


@lowered(_LANES, _LANES, _BYTE_ARRAY, types.uint64, *[types.uint8] * 3)(add_ruled_out)
def _emit_add_ruled_out(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    gone, places, at, *numbers = arguments
    place, if_above, if_not = (fill(builder, number, _BYTES) for number in numbers)
    row = builder.load(address(context, builder, signature.args[1], places, at, _BYTES), align=1)
    return builder.or_(gone, builder.select(builder.icmp_unsigned(">", row, place), if_above, if_not))


def unless_all(gone: Bytes, old: Bytes, new: Bytes) -> Bytes:
    """``old`` where all bits of ``gone`` are set, ``new`` elsewhere."""
    return np.where(gone == _ALL, old, new)


@lowered(_LANES, *[_LANES] * 3)(unless_all)
def _emit_unless_all(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    gone, old, new = arguments
    return builder.select(builder.icmp_unsigned("==", gone, _constant(_BYTES, _ALL)), old, new)


def repeated(number: int) -> Bytes:
    """The number for each document."""
    return np.full(WIDTH, number, np.uint8)


@lowered(_LANES, types.uint8)(repeated)
def _emit_repeated(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    return fill(builder, arguments[0], _BYTES)


def store_leaves(words: Bytes, gone: Bytes, leaves: NDArray[np.uint16], at: int) -> None:
    """Write 8 * word + the number of the first bit that is not set to ``leaves[at:]``."""
    first = np.unpackbits(gone, bitorder="little").reshape(WIDTH, 8).argmin(axis=1)
    leaves[at : at + WIDTH] = words * np.uint16(8) + first


@lowered(types.void, _LANES, _LANES, _SHORT_ARRAY, types.uint64)(store_leaves)
def _emit_store_leaves(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    words, gone, leaves, at = arguments
    none = _constant(_BYTES, 0)
    lowest = builder.and_(builder.not_(gone), builder.add(gone, _constant(_BYTES, 1)))
    leaf = none
    for number, bits in _BIT_NUMBERS.items():
        is_clear = builder.icmp_unsigned("==", builder.and_(lowest, _constant(_BYTES, bits)), none)
        leaf = builder.or_(leaf, builder.select(is_clear, none, _constant(_BYTES, number)))
    of_word = builder.shl(builder.zext(words, _SHORTS), _constant(_SHORTS, 3))
    place = address(context, builder, signature.args[2], leaves, at, _SHORTS)
    builder.store(builder.or_(of_word, builder.zext(leaf, _SHORTS)), place, align=2)
    return context.get_dummy_value()


def _constant(vector: Any, number: int) -> Any:
    return ir.Constant(vector, [number] * WIDTH)


def fill(builder: Any, number: Any, vector: Any) -> Any:
    """A vector of one number."""
    undefined = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(undefined, number, ir.Constant(_INT, 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_INT, vector.count), None))


def address(context: Any, builder: Any, kind: Any, array: Any, at: Any, vector: Any) -> Any:
    """The address of the vector that starts at an index of an array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), vector.as_pointer())


# 2^64: random numbers are below it.
_END = 18446744073709551616.0

# The increment of splitmix64, and the factors and shifts of its finaliser.
STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)

# Parts of a float64: 52 bits of the fraction, and the exponent of numbers from 1/2 to 1.
_FRACTION, _N_FRACTION = np.uint64((1 << 52) - 1), np.uint64(52)
_HALF, _EXPONENT_OF_HALF = np.uint64(0x3FE0000000000000), 1022
_LN2, _ROOT_OF_HALF = 0.6931471805599453, 0.7071067811865476

# A random number has 52 bits; half of the last one more keeps it above 0 and below 1, without rounding.
_DROPPED, _UNIT = np.uint64(12), 2.0**-52


def _bits(value: float) -> int:
    """The bits of a float64."""
    return np.float64(value).view(np.uint64)


@lowered(types.uint64, types.float64)(_bits)
def _emit_bits(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    return builder.bitcast(arguments[0], ir.IntType(64))


def from_bits(bits: int) -> float:
    """The float64 with these bits."""
    return np.uint64(bits).view(np.float64)


@lowered(types.float64, types.uint64)(from_bits)
def _emit_from_bits(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    return builder.bitcast(arguments[0], ir.DoubleType())


@inner
def mixed(value: int) -> int:
    """Mixed bits, each of which depends on all input bits (the finaliser of splitmix64)."""
    value = (value ^ (value >> _SHIFTS[0])) * _FIRST
    value = (value ^ (value >> _SHIFTS[1])) * _SECOND
    return value ^ (value >> _SHIFTS[2])


@inner
def gumbel(bits: int) -> float:
    """-ln(-ln u), with u uniform in (0, 1), from 64 random bits."""
    return -logarithm(-logarithm((np.float64(bits >> _DROPPED) + 0.5) * _UNIT))


@inner
def logarithm(value: float) -> float:
    """The natural logarithm of a normal number above 0, to 12 digits.

    With value = 2^k m and m between the square root of 1/2 and that of 2, ln m = 2 artanh((m - 1) / (m + 1)), by its
    series. Unlike calls of the C library, this is vectorised, and gives the same bits on every machine.
    """
    bits = _bits(value)
    exponent = np.float64(np.int64(bits >> _N_FRACTION) - _EXPONENT_OF_HALF)
    fraction = from_bits((bits & _FRACTION) | _HALF)
    is_low = fraction < _ROOT_OF_HALF
    fraction = fraction + fraction if is_low else fraction
    exponent = exponent - 1.0 if is_low else exponent
    ratio = (fraction - 1.0) / (fraction + 1.0)
    square = ratio * ratio
    series = 1 / 15
    series = series * square + 1 / 13
    series = series * square + 1 / 11
    series = series * square + 1 / 9
    series = series * square + 1 / 7
    series = series * square + 1 / 5
    series = series * square + 1 / 3
    return exponent * _LN2 + 2.0 * ratio * (1.0 + series * square)


@compiled
def draw_kept(seeds: NDArray[np.int64], ends: NDArray[np.int64], rate: float, kept: NDArray[np.float32]) -> None:
    """0 with the probability ``rate``, which is below 1, and 1 / (1 - rate) otherwise: masks for dropout.

    Each mask has its seed, and ends where the next one begins.
    """
    least, factor, begin = np.uint64(rate * _END), np.float32(1.0 / (1.0 - rate)), 0
    for k in range(len(seeds)):
        first = mixed(np.uint64(seeds[k]) + STEP)
        mask = kept[begin : ends[k]]
        for i in range(len(mask)):
            mask[i] = factor if mixed(first + np.uint64(i) * STEP) >= least else np.float32(0)
        begin = ends[k]
