"""Files of other formats, recognised by their first bytes: an error can say what a file is and what to do."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tierank.errors import DataError


class Signature(NamedTuple):
    """The first bytes of a format, what a file of that format is called, and what to do with it."""

    start: bytes
    what: str
    fix: str


_UNPACK = "decompress it, or compress it with gzip and name it .gz"
_AS_TABLE = "save it as CSV or Parquet, or pass it as a table of pandas"
_AS_ARRAYS = "pass its arrays: RankingDataset(X, y, qid)"
_AS_UTF8 = "convert it: iconv -f UTF-16 -t UTF-8"

SIGNATURES = (
    Signature(b"\x1f\x8b", "a file compressed with gzip", "give it a name that ends in .gz"),
    Signature(b"\xfd7zXZ\x00", "a file compressed with xz", _UNPACK),
    Signature(b"BZh", "a file compressed with bzip2", _UNPACK),
    Signature(b"\x28\xb5\x2f\xfd", "a file compressed with zstd", _UNPACK),
    Signature(b"PK\x03\x04", "a zip archive or an Excel workbook", "unpack it, or save the workbook as CSV"),
    Signature(b"\xd0\xcf\x11\xe0", "an Excel workbook", _AS_TABLE),
    Signature(b"PAR1", "a Parquet file", "name it .parquet, or pass format='parquet'"),
    Signature(b"ARROW1", "an Arrow (Feather) file", _AS_TABLE),
    Signature(b"ORC", "an ORC file", _AS_TABLE),
    Signature(b"\x89HDF", "an HDF5 file", _AS_TABLE),
    Signature(b"SQLite format 3\x00", "an SQLite database", _AS_TABLE),
    Signature(b"\x93NUMPY", "an array of NumPy", _AS_ARRAYS),
    Signature(b"\x80\x04\x95", "a pickle, which is not read", _AS_TABLE),
    Signature(b"\x80\x05\x95", "a pickle, which is not read", _AS_TABLE),
    Signature(b"\xff\xfe", "text in UTF-16", _AS_UTF8),
    Signature(b"\xfe\xff", "text in UTF-16", _AS_UTF8),
    Signature(b"{", "JSON", _AS_TABLE),
    Signature(b"[", "JSON", _AS_TABLE),
    Signature(b"<", "HTML or XML", _AS_TABLE),
)
_A_TABLE = Signature(b"", "a table with a header line", "if it is CSV, pass format='csv'")
# A header line: names, at least two, with a separator between them.
_HEADER = re.compile(rb'\s*"?[A-Za-z_][^:]*?[,;\t][^:]*')
_HEAD_BYTES = 1 << 12


@contextmanager
def naming_content(path: Path, *, is_csv: bool) -> Iterator[None]:
    """If reading text or CSV fails with a ``DataError``, replace that by one that says what the file is, if known."""
    try:
        yield
    except DataError:
        found = signature_of(path, is_csv=is_csv)
        if found is None:
            raise
        expected = "a CSV table with a header line" if is_csv else "LETOR text"
        raise DataError(where=path, expected=expected, got=found.what, fix=found.fix) from None


def signature_of(path: Path, *, is_csv: bool) -> Signature | None:
    """The signature of a file that is neither text nor CSV; None if none is known."""
    try:
        head = _head(path)
    except (OSError, EOFError, zlib.error):
        return None
    found = next((one for one in SIGNATURES if head.startswith(one.start)), None)
    if found is None and not is_csv and _HEADER.fullmatch(head.partition(b"\n")[0]):
        return _A_TABLE
    return found


def _head(path: Path) -> bytes:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return file.read(_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")
