"""Hashes of rows: the same row has the same hashes wherever it is, so rows can be sorted by their content.

Each row has two: its *content*, which differs if any value does, and its *form*, which ignores powers of two. Both
ignore bits without meaning: 0.0 and -0.0 are the same value, and so are all NaNs.
"""

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import Matrix, compiled

_FACTOR, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)
# Parts of a float32. The mark distinguishes the form of a power of two, which has no other bits, from that of 0.
_MAGNITUDE, _INFINITY, _NAN = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000), np.uint32(0x7FC00000)
_SIGN_AND_FRACTION, _MARK = np.uint32(0x807FFFFF), np.uint32(0x40000000)


@compiled
def hash_rows(
    bits: Matrix[np.uint32], start: int, end: int, forms: NDArray[np.uint64], contents: NDArray[np.uint64]
) -> None:
    """Mix the values of the rows ``start:end`` into both hashes, which already hold ratings and positions."""
    for row in range(np.uint64(start), np.uint64(end)):
        form, content = forms[row], contents[row]
        for column in range(np.uint64(bits.shape[1])):
            word = bits[row, column]
            magnitude = word & _MAGNITUDE
            shape = (word & _SIGN_AND_FRACTION) | _MARK
            if magnitude == np.uint32(0):
                word = shape = np.uint32(0)
            elif magnitude > _INFINITY:
                word = shape = _NAN
            form = (form ^ np.uint64(shape)) * _FACTOR
            form ^= form >> _SHIFT
            content = (content ^ np.uint64(word)) * _FACTOR
            content ^= content >> _SHIFT
        forms[row], contents[row] = form, content
