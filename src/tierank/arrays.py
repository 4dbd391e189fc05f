"""Arrays: their types, and feature matrices that may outgrow memory (in chunks, mapped from files, on disk)."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.errors import DataError
from tierank.files import reserve

# Scores, ratings, gains, metrics: one number per document or query.
Floats = NDArray[np.float64]
# Where queries begin and end: query q has the rows offsets[q] to offsets[q + 1].
Offsets = NDArray[np.int64]
# Row numbers.
Rows = NDArray[np.int64]
# Features: documents x features.
Features = NDArray[np.float32]


# Rows processed at a time when a whole matrix is scanned: keeps temporary arrays small.
CHUNK = 1 << 14

# Smaller maps stay in memory once they were read: releasing their pages costs time and gains little.
_LARGE = 1 << 30

# Allocates a matrix of zeros with this many rows and columns: in memory or on disk.
Allocator = Callable[[int, int], NDArray[np.float32]]


def chunks(matrix: NDArray[np.float32], n_rows: int = CHUNK) -> Iterator[NDArray[np.float32]]:
    """The rows of a matrix, some thousands at a time; pages of a large map are released after use."""
    for start in range(0, len(matrix), n_rows):
        chunk = matrix[start : start + n_rows]
        yield chunk
        release_pages(chunk)


def rows_in(matrix: NDArray[Any], n_bytes: int) -> int:
    """The number of rows of a matrix that take about this many bytes; at least 1."""
    return max(1, int(n_bytes // max(1, matrix.itemsize * matrix.shape[1])))


def release_pages(matrix: NDArray[Any]) -> None:
    """Release the memory pages of a mapped array, or of a view of some of its rows.

    Nothing is lost: writes stay in the file, and pages are mapped again when they are read. Arrays in memory, maps
    below 1 GB and private copies of a file are left alone.
    """
    mapped = _map_under(matrix)
    if mapped is None or len(mapped) < _LARGE or not matrix.size or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first, last = np.lib.array_utils.byte_bounds(matrix)
    origin = np.lib.array_utils.byte_bounds(np.frombuffer(mapped, np.uint8))[0]
    start = (first - origin) // mmap.PAGESIZE * mmap.PAGESIZE
    with suppress(OSError):  # pages that are locked in memory
        mapped.madvise(mmap.MADV_DONTNEED, start, last - origin - start)


def _map_under(matrix: NDArray[Any]) -> mmap.mmap | None:
    """The map of a file that an array is a view of; None if there is none, or if it is a private copy."""
    base: Any = matrix
    is_shared = False
    while isinstance(base, np.ndarray):
        is_shared = getattr(base, "mode", None) in ("r", "r+", "w+")  # not "c", a copy
        base = base.base
    if isinstance(base, memoryview):
        base, is_shared = base.obj, base.readonly
    return base if isinstance(base, mmap.mmap) and is_shared else None


def in_memory(n: int, width: int) -> NDArray[np.float32]:
    """A matrix of zeros in memory. Raises ``DataError`` if it can never fit."""
    size, memory = n * width * 4, _memory()
    if memory is not None and size > memory:
        expected = f"features of at most {memory / 1e9:.1f} GB, the memory of this machine"
        raise DataError(expected=expected, got=f"{size / 1e9:.1f} GB of {n} documents x {width} features")
    return np.zeros((n, width), np.float32)


# Indices of features are 32 bits in LightGBM, and in the reader of text.
MOST_FEATURES = (1 << 31) - 1


def check_width(width: int, n_features: int) -> None:
    """Raise ``DataError`` if data have more features than allowed."""
    if width > n_features:
        expected = f"at most {n_features} features, as n_features or the model says"
        raise DataError(expected=expected, got=str(width))


def in_file(file: Path, n: int, width: int) -> NDArray[np.float32]:
    """A matrix of zeros that is a map of a new ``.npy`` file. Raises OSError if the disk is too full."""
    file.unlink(missing_ok=True)
    with file.open("w+b") as opened:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n, width)}
        np.lib.format.write_array_header_1_0(opened, header)
        start = opened.tell()
        reserve(opened, n * width * 4)
        return np.asarray(np.memmap(opened, np.float32, "r+", start, (n, width)))


def allocate(n: int, width: int, beside: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """A matrix of zeros in memory, or in a temporary file if it would take more than a quarter of the memory.

    The file is in the folder of the map ``beside``, or else in the folder for temporary files, and vanishes with the
    matrix.
    """
    memory = _memory()
    if memory is None or n * width * 4 <= memory // 4:
        return np.zeros((n, width), np.float32)
    for folder in (_folder_of(beside), None):
        with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
            reserve(file, n * width * 4)
            return np.asarray(np.memmap(file, np.float32, "r+", shape=(n, width)))
    return np.zeros((n, width), np.float32)


def _folder_of(matrix: Any) -> Path | None:
    """The folder of the file that an array is a map of."""
    while isinstance(matrix, np.ndarray):
        name = getattr(matrix, "filename", None)
        if name is not None:
            return Path(name).parent
        matrix = matrix.base
    return None


def _memory() -> int | None:
    """Bytes of memory of this machine, if known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def spread(n: int, most: int) -> NDArray[np.int64]:
    """At most this many of n indices, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))
