"""A number for what a row holds: the same row has the same number wherever it stands."""

import numpy as np
from numpy.typing import NDArray

from tierank.kernels import compiled

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


@compiled
def hash_rows(bits: NDArray[np.uint32], start: int, end: int, hashes: NDArray[np.uint64]) -> None:
    """Mix the words of rows ``start:end`` into ``hashes``, which starts with what else belongs to the rows."""
    for row in range(np.uint64(start), np.uint64(end)):
        mixed = hashes[row]
        for column in range(np.uint64(bits.shape[1])):
            mixed = (mixed ^ np.uint64(bits[row, column])) * _FACTOR
            mixed ^= mixed >> _SHIFT
        hashes[row] = mixed
