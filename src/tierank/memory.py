"""Feature matrices that may outgrow memory: in chunks, mapped from files, on disk if memory is short."""

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

# Rows looked at in one go when a whole matrix is scanned: keeps temporary arrays small.
CHUNK = 1 << 14

# Maps below this size stay in memory once they were read: mapping their pages again costs time and gains nothing.
_LARGE = 1 << 30

# Allocates a matrix of zeros with this many rows and columns: decides where the features are.
Allocator = Callable[[int, int], NDArray[np.float32]]


def chunks(matrix: NDArray[np.float32], n_rows: int = CHUNK) -> Iterator[NDArray[np.float32]]:
    """The rows of a matrix, some thousands at a time; those of a large map leave memory after their turn."""
    for start in range(0, len(matrix), n_rows):
        chunk = matrix[start : start + n_rows]
        yield chunk
        release_pages(chunk)


def rows_in(matrix: NDArray[Any], n_bytes: int) -> int:
    """How many rows of a matrix take about this many bytes; at least 1."""
    return max(1, int(n_bytes // max(1, matrix.itemsize * matrix.shape[1])))


def release_pages(matrix: NDArray[Any]) -> None:
    """Let the pages under a mapped array (or a view of some of its rows) leave the memory of this process.

    Nothing is lost: what was written stays in the file, and what is looked at again is mapped again. Arrays in memory,
    maps below 1 GB and private copies of a file are left alone.
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
    """The map of a file that an array lies in; None where there is none, or where it holds what the file does not."""
    base: Any = matrix
    is_shared = False
    while isinstance(base, np.ndarray):
        is_shared = getattr(base, "mode", None) in ("r", "r+", "w+")  # not "c", a copy
        base = base.base
    if isinstance(base, memoryview):
        base, is_shared = base.obj, base.readonly
    return base if isinstance(base, mmap.mmap) and is_shared else None


def in_memory(n: int, width: int) -> NDArray[np.float32]:
    """A matrix of zeros in memory; an error where it can never fit."""
    size, memory = n * width * 4, _memory()
    if memory is not None and size > memory:
        raise DataError(
            f"{n} documents x {width} features need {size / 1e9:.1f} GB, this machine has {memory / 1e9:.1f} GB"
        )
    return np.zeros((n, width), np.float32)


def check_width(width: int, n_features: int) -> None:
    """An error where data are wider than what was asked for."""
    if width > n_features:
        raise DataError(f"expected at most {n_features} features, as n_features or the model says, got {width}")


def in_file(file: Path, n: int, width: int) -> NDArray[np.float32]:
    """A matrix of zeros that is a map of a new ``.npy`` file; an OSError where the disk has no room for it."""
    file.unlink(missing_ok=True)
    with file.open("w+b") as opened:
        header = {"descr": "<f4", "fortran_order": False, "shape": (n, width)}
        np.lib.format.write_array_header_1_0(opened, header)
        start = opened.tell()
        reserve(opened, n * width * 4)
        return np.asarray(np.memmap(opened, np.float32, "r+", start, (n, width)))


def allocate(n: int, width: int, beside: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """A matrix of zeros in memory; where it would take a quarter of that, in a file without a name.

    The file lies in the folder of the map ``beside``, or else in the folder for temporary files, and is gone with the
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
    """Bytes of memory that this machine has, where it tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def spread(n: int, most: int) -> NDArray[np.int64]:
    """At most this many of n places, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))
