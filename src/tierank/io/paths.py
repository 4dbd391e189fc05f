"""Paths to read from: files and folders are read in place, a pipe is first copied to a file.

Files of other formats are recognised by their first bytes, so that an error can say what a file is and what to do.
"""

from __future__ import annotations

import difflib
import gzip
import os
import re
import select
import stat
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

from tierank.errors import DataError, ParameterError


class Signature(NamedTuple):
    """The first bytes of a format, what a file of that format is called, and what to do with it."""

    start: bytes
    what: str
    fix: str


_UNPACK = "decompress it, or compress it with gzip and name it .gz"
_AS_TABLE = "save it as CSV or Parquet, or pass it as a table of pandas"
_AS_ARRAYS = "save its columns as CSV or Parquet, or pass its arrays as a RankingDataset"
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
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")
    except (OSError, EOFError, zlib.error):
        return None
    found = next((one for one in SIGNATURES if head.startswith(one.start)), None)
    if found is None and not is_csv and _HEADER.fullmatch(head.partition(b"\n")[0]):
        return _A_TABLE
    return found


# Endings of formats that are not text: text in such a file would mislead its readers.
_OTHER_ENDINGS = (
    *(".json", ".jsonl", ".xls", ".xlsx", ".feather", ".arrow", ".orc", ".npy", ".npz", ".pkl", ".h5"),
    *(".zip", ".xz", ".bz2", ".zst"),
)

# Seconds to wait for a writer of a named pipe to start. Once it has started, it may take any time.
_PATIENCE = 10.0
# Milliseconds between two polls of a pipe whose writer has not written yet.
_GLANCE = 20
_BLOCK = 1 << 20


def kind_of(path: Path, expected: str = "a file") -> str:
    """What a path is: "file", "folder" or "pipe". Raises ``DataError`` if it is none of these."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        got = "a broken link" if path.is_symlink() else "nothing there"
        fix = None if path.is_symlink() else near_path(path)
        raise DataError(where=path, expected=expected, got=got, fix=fix) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise unreadable(path, error) from None
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe"}
    kind = kinds.get(stat.S_IFMT(mode))
    if kind is None:
        expected, got = "a file, a folder or a pipe", "a device or a socket"
        raise DataError(where=path, expected=expected, got=got, fix="copy it to a file")
    return kind


def ending_of(path: Path) -> str:
    """The ending that determines the format, without that of compression.

    >>> ending_of(Path("shop.CSV.gz"))
    '.csv'
    """
    return (Path(path.stem).suffix if path.suffix == ".gz" else path.suffix).lower()


def check_text_ending(path: Path, expected: str, others: tuple[str, ...] = (), fix: str = "rename it") -> None:
    """Raise ``ParameterError`` if text would get the name of another format; ``others`` are more endings of those."""
    ending = ending_of(path)
    if ending in (*_OTHER_ENDINGS, *others):
        raise ParameterError(where=path, expected=expected, got=repr(ending), fix=fix)


def created(fresh: Path, path: Path) -> Any:
    """A new binary file that will be named ``path``, compressed if that ends in ``.gz``."""
    return gzip.open(fresh, "wb", compresslevel=6) if path.suffix == ".gz" else fresh.open("wb")


# What reading a damaged gzip file raises.
DAMAGED_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)


def damaged_gzip(path: Path, error: Exception) -> DataError:
    """The error for a damaged gzip file."""
    return DataError(where=path, expected="a whole gzip file", got=f"a damaged or truncated one ({error})")


@contextmanager
def lines_of(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a text file, which is compressed if its name ends in ``.gz``."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield TextIOWrapper(file, "utf-8-sig", errors="replace", newline="")
    except DAMAGED_GZIP as error:
        raise damaged_gzip(path, error) from None


def unreadable(path: str | os.PathLike[str], error: Exception) -> DataError:
    """The error for a path that the system does not let us read."""
    got = f": {getattr(error, 'strerror', None) or error}"
    return DataError(where=path, expected="a file that can be read", got=got)


def near_path(path: Path) -> str | None:
    """A hint that names a file with a similar name, if there is one."""
    try:
        names = [other.name for other in path.parent.iterdir()]
    except (OSError, ValueError):
        return None
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.with_name(near[0])}?" if near else None


@contextmanager
def piped(path: Path) -> Iterator[Path]:
    """A temporary file with the content of a pipe; errors name the pipe."""
    with tempfile.TemporaryDirectory(prefix="tierank-") as folder:
        copy = Path(folder) / path.name
        try:
            with copy.open("wb") as file:
                file.writelines(pipe_content(path))
        except OSError as error:
            expected = f"enough space in {tempfile.gettempdir()} for the content of the pipe"
            raise DataError(where=path, expected=expected, got=f": {error.strerror or error}") from None
        try:
            yield copy
        except DataError as error:
            for name, text in error.fields().items():
                setattr(error, name, text.replace(str(copy), str(path)))
            raise


def pipe_content(path: Path) -> Iterator[bytes]:
    """The content of a pipe. Raises ``DataError`` if nothing writes to it: opening it as a file would wait forever."""
    try:
        stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
    except OSError as error:
        raise unreadable(path, error) from None
    with stream:
        events = select.poll()
        events.register(stream, select.POLLIN)
        end = time.monotonic() + _PATIENCE
        has_writer = False
        while True:
            chunk: bytes | None = stream.read(_BLOCK)
            if chunk:
                has_writer = True
                yield chunk
            elif chunk is None:  # a writer has the other end open, and has written nothing new
                has_writer = True
                events.poll()
            elif has_writer:
                return
            elif events.poll(_GLANCE):  # a writer wrote something, or opened and closed the pipe
                has_writer = True
            elif time.monotonic() > end:
                expected, got = "a pipe with a writer", f"none in {_PATIENCE:g} seconds"
                fix = "start the program that writes to it, or read a file"
                raise DataError(where=path, expected=expected, got=got, fix=fix)
