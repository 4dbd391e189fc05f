"""``.npy`` files from untrusted sources: an array, or an error that says what is wrong."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.errors import DataError


def read_array(file: Path) -> NDArray[Any]:
    """The array of a file, in memory. Nothing is unpickled."""
    with _refusing(file), file.open("rb") as opened:
        array = np.asarray(np.lib.format.read_array(opened, allow_pickle=False))
        if array.dtype.kind == "U" and array.size and array.view(f"{array.dtype.byteorder}u4").max() > sys.maxunicode:
            raise ValueError("letters that do not exist")  # numpy crashes when it converts these to text
        return array


def mapped_array(file: Path) -> NDArray[Any]:
    """The array of a file, memory-mapped."""
    with _refusing(file):
        return np.asarray(np.lib.format.open_memmap(file, mode="r"))


@contextmanager
def _refusing(file: Path) -> Iterator[None]:
    """Turn the various errors of numpy for a damaged header or a forged shape into ``DataError``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # overflowing sizes, headers of other versions
            yield
    except Exception as error:
        what = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(f"{file}: expected an array of numbers, got a damaged file or another type ({what})") from None
