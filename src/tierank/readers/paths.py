"""Paths to read from: files and folders are read in place, a pipe is first copied to a file."""

from __future__ import annotations

import difflib
import gzip
import os
import select
import stat
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from tierank.errors import DataError, ParameterError

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
        got = "a broken link" if path.is_symlink() else f"nothing there{nearby(path)}"
        raise DataError(f"{path}: expected {expected}, got {got}") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise unreadable(path, error) from None
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe"}
    kind = kinds.get(stat.S_IFMT(mode))
    if kind is None:
        raise DataError(f"{path}: expected a file, a folder or a pipe, got a device or a socket; copy it to a file")
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


@contextmanager
def lines_of(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a text file, which is compressed if its name ends in ``.gz``."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield TextIOWrapper(file, "utf-8-sig", errors="replace", newline="")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: expected a whole gzip file, got a damaged or truncated one ({error})") from None


def unreadable(path: object, error: Exception) -> DataError:
    """The error for a path that the system does not let us read."""
    return DataError(f"{path}: expected a file that can be read, got: {getattr(error, 'strerror', None) or error}")


def nearby(path: Path) -> str:
    """A hint that names a file with a similar name."""
    try:
        names = [other.name for other in path.parent.iterdir()]
    except (OSError, ValueError):
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


@contextmanager
def piped(path: Path) -> Iterator[Path]:
    """A temporary file with the content of a pipe; errors name the pipe."""
    with tempfile.TemporaryDirectory(prefix="tierank-") as folder:
        copy = Path(folder) / path.name
        try:
            with copy.open("wb") as file:
                file.writelines(pipe_content(path))
        except OSError as error:
            raise DataError(
                f"{path}: expected enough space in {tempfile.gettempdir()} for the content of the pipe, got:"
                f" {error.strerror or error}"
            ) from None
        try:
            yield copy
        except DataError as error:
            raise type(error)(str(error).replace(str(copy), str(path))) from None


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
                raise DataError(
                    f"{path}: expected a pipe with a writer, got none in {_PATIENCE:g} seconds; start the"
                    " program that writes to it, or read a file"
                )
