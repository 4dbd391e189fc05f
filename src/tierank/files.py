"""Atomic writes of files and folders, which never replace what tierank did not write."""

import ctypes
import errno
import fnmatch
import glob
import json
import math
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, overload

from tierank.errors import DataError, ParameterError, WriteError

# Constants of Linux: names are relative to the working directory; exchange two names.
_HERE, _SWAP = -100, 2
_TRIES = 100
# How temporary folders are opened: links in their place are not followed.
_OWN_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_BLOCK = 1 << 20
# Descriptions take some kilobytes; with thousands of features or files, some megabytes.
_LARGEST_JSON = 256 << 20
# Names of temporary folders: a dot, the name of the target, and eight characters by tempfile.
_WORKSHOP = ".????????.new"


@dataclass(frozen=True)
class FolderKind:
    """A kind of folder that tierank writes, recognised by a JSON file with certain names in it."""

    kind: str
    file: str
    names: tuple[str, ...] = ()

    def content(self, folder: Path) -> dict[str, Any] | None:
        """The content of the file; None if the folder is not of this kind."""
        try:
            content = read_json(folder / self.file)
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) and content.keys() >= set(self.names) else None

    def is_in(self, folder: Path) -> bool:
        """Whether the folder is of this kind."""
        return self.content(folder) is not None

    def check(self, place: Path) -> None:
        """Raise ``DataError`` if a folder of this kind would replace anything but a folder of its kind."""
        if _is_there(place) and not (place.is_dir() and (not contents(place) or self.is_in(place))):
            raise DataError(
                where=place,
                expected=f"a new name or {self.kind}",
                got="something else there",
                fix="choose another name, or move it away",
            )

    def refusal(self, place: Path) -> DataError | None:
        """Why a folder of this kind may not be written here; None if it may."""
        try:
            self.check(place)
        except DataError as error:
            return error
        return None


def read_json(file: Path) -> Any:
    """The content of a JSON file. Raises ``ValueError`` for invalid JSON, duplicate keys, NaN, and too large files."""
    if not file.is_file():  # opening a pipe would wait for a writer
        raise DataError(where=file, expected="a file")
    if file.stat().st_size > _LARGEST_JSON:
        raise DataError(where=file, expected="a file that tierank wrote", got="a larger one")
    try:
        return json.loads(file.read_bytes(), object_pairs_hook=_each_once, parse_constant=_no_constant)
    except RecursionError:
        raise DataError(where=file, expected="a file that tierank wrote", got="deeper nesting") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise DataError(expected="each key once", got="a duplicate key")
    return content


def _no_constant(name: str) -> None:
    raise DataError(expected="valid JSON", got=name)


@overload
def for_json(value: dict[str, Any]) -> dict[str, Any]: ...
@overload
def for_json(value: float | list[Any]) -> Any: ...
def for_json(value: Any) -> Any:
    """The value with None for NaN and infinity, which JSON does not have; also inside dicts and lists.

    >>> for_json({"mean": 0.5, "intervals": [float("nan"), 1.0]})
    {'mean': 0.5, 'intervals': [None, 1.0]}
    """
    if isinstance(value, dict):
        return {name: for_json(one) for name, one in value.items()}
    if isinstance(value, list):
        return [for_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def contents(folder: Path) -> list[Path]:
    """What is in a folder, except temporary folders of writers."""
    return [path for path in folder.iterdir() if not fnmatch.fnmatchcase(path.name, f".*{_WORKSHOP}")]


def as_path(
    path: Any, argument: str | None = "path", expected: str = "the name of a file or folder", fix: str | None = None
) -> Path:
    """The caller's path. Raises ``ParameterError`` if it cannot be the name of a file or folder.

    This includes an empty string, which ``Path`` would take for the current folder.

    >>> as_path("models/best").name
    'best'
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        got = type(path).__name__
    else:
        text = os.fsdecode(path)
        if text and "\0" not in text:
            return Path(text)
        got = "a name with a zero byte" if text else "an empty text"
    raise ParameterError(argument=argument, expected=expected, got=got, fix=fix)


@contextmanager
def replacing(path: str | os.PathLike[str], kind: FolderKind | None = None) -> Iterator[Path]:
    """A new file to write, which replaces ``path`` when the block ends without an error.

    An error inside the block leaves ``path`` unchanged; an OSError becomes a ``WriteError`` that names the path.
    Readers see the old content or the new one, never a part. Links and permissions are kept; a pipe or a device is
    written to directly. With a ``kind`` it may also be a folder, which replaces a folder of that kind, or an empty one.
    """
    place = as_path(path)
    if _is_there(place) and not place.is_file() and not place.is_dir():
        with writing(place):
            yield place
        return
    if kind is None:
        _check_file(place)
    elif place.is_dir():
        kind.check(place)
    target = Path(os.path.realpath(place))
    with writing(place), _workshop(target) as workshop:
        fresh = workshop / target.name
        yield fresh
        if target.exists():
            fresh.chmod(stat.S_IMODE(target.stat().st_mode))
        if kind is not None and fresh.is_dir():
            kind.check(place)
            _replace_folder(fresh, target)
        else:
            _check_file(place)
            fresh.replace(target)


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError about a path that cannot be written into a ``WriteError`` that names it.

    Other errors pass unchanged: a broken pipe, a missing file, and errors about files elsewhere, which may be inputs.
    """
    target = Path(path)
    if not target.parent.is_dir():
        expected = f"a folder {target.parent} to write to"
        raise DataError(where=path, expected=expected, got="none", fix="create it first")
    try:
        yield
    except (WriteError, FileNotFoundError, BrokenPipeError):
        raise
    except OSError as error:
        if not _is_at(target, error.filename):
            raise
        raise WriteError.of(path, error) from None


def _is_there(place: Path) -> bool:
    """Whether there is anything to replace. Raises ``WriteError`` if there can be no such name."""
    try:
        return place.exists()
    except OSError as error:
        raise WriteError.of(place, error) from None


def _is_at(place: Path, name: object) -> bool:
    """Whether the file name of an OSError, if it has one, is the path, in it, or in its temporary folder."""
    if not isinstance(name, (str, bytes, os.PathLike)):
        return True
    target, found = Path(os.path.realpath(place)), Path(os.fsdecode(name)).absolute()
    is_inside = any(found.is_relative_to(own) for own in (target, place.absolute()))
    return is_inside or any(part.startswith(f".{target.name}.") for part in found.parts)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Create a folder and its parents, if they do not exist."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError.of(path, error) from None


@contextmanager
def building(path: str | os.PathLike[str], kind: FolderKind) -> Iterator[Path]:
    """A new folder to fill, which replaces ``path`` as in ``replacing``."""
    kind.check(as_path(path))
    with replacing(path, kind) as fresh:
        fresh.mkdir()
        yield fresh


def reserve(file: IO[bytes], size: int) -> None:
    """Extend a file by ``size`` zeros with allocated disk space. Raises OSError if there is not enough.

    Otherwise, if the disk fills up while a memory map is written, the system kills the process.
    """
    file.flush()
    start = file.seek(0, os.SEEK_END)
    if size > shutil.disk_usage(file.fileno()).free:  # trying would fill the disk, also for other programs
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), start, size)
        return
    for place in range(0, size, _BLOCK):
        file.write(bytes(min(_BLOCK, size - place)))
    file.flush()


def remove_folder(path: str | os.PathLike[str], kind: FolderKind | None = None) -> None:
    """Remove a folder, if it exists (and is of this kind), atomically: no reader ever sees a part of it."""
    if kind is not None:
        kind.check(Path(path))
    target = Path(os.path.realpath(path))
    if target.exists():
        # If another process was faster, there is nothing left to do.
        with writing(path), _workshop(target) as workshop, suppress(FileNotFoundError):
            target.rename(workshop / target.name)
    elif target.parent.exists():
        _sweep(target)


def sweep(folder: Path) -> None:
    """Remove abandoned temporary folders from a folder: those whose writer is gone.

    Writing or removing a path first removes its abandoned folders; this is for paths that are never written again.
    """
    if folder.is_dir():
        _sweep_all(folder, f".*{_WORKSHOP}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file or folder, if the system can. Raises BlockingIOError if another process or thread has locked it."""
    held = _hold(path, os.O_RDONLY)
    try:
        yield
    finally:
        _let_go(held)


def _check_file(place: Path) -> None:
    if place.is_dir():
        expected = "the name of a file"
        raise DataError(where=place, expected=expected, got="a folder there", fix="choose another name")


def _replace_folder(fresh: Path, target: Path) -> None:
    """Replace a folder by another one, atomically; the old one moves to the temporary folder."""
    for number in range(_TRIES):
        if _exchange(fresh, target):
            return
        try:
            if target.exists():  # no exchange on this system: the old one is moved away first
                target.rename(fresh.with_name(f"{number}.old"))
            fresh.rename(target)
            return
        except OSError as error:  # another process wrote the same path at the same time
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST) or not fresh.exists():
                raise
    raise WriteError(where=target, expected="fewer concurrent writers", fix="try again")


def _exchange(fresh: Path, target: Path) -> bool:
    """Exchange two names atomically, so that the target always exists. Returns False if the system cannot."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    return swap is not None and swap(_HERE, os.fsencode(fresh), _HERE, os.fsencode(target), _SWAP) == 0


@contextmanager
def _workshop(target: Path) -> Iterator[Path]:
    """A temporary folder next to the target, locked while it is used and removed afterwards.

    Abandoned folders of killed processes are removed first: they can be large.
    """
    folder, held = None, None
    try:
        with _undisturbed():
            _sweep(target)
            folder, held = _open_workshop(target)
        yield folder
    finally:
        if folder is not None:
            with _undisturbed():
                shutil.rmtree(folder, ignore_errors=True)
                _let_go(held)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, so that a folder that was just created is not left behind."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])


def _open_workshop(target: Path) -> tuple[Path, int | None]:
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".new", dir=target.parent))
        with suppress(BlockingIOError, FileNotFoundError):  # another process removed it before it was locked
            return folder, _hold(folder)
    raise WriteError(where=target, expected="fewer concurrent writers", fix="try again")


def _sweep(target: Path) -> None:
    """Remove the temporary folders of a target whose writer is gone."""
    _sweep_all(target.parent, f".{glob.escape(target.name)}{_WORKSHOP}")


def _sweep_all(folder: Path, pattern: str) -> None:
    for left in folder.glob(pattern):
        with suppress(OSError):
            held = _hold(left)
            if held is not None:
                shutil.rmtree(left, ignore_errors=True)
                _let_go(held)


def _hold(folder: Path, mode: int = _OWN_FOLDER) -> int | None:
    """Lock a folder until ``_let_go`` or the end of this process; None if the system cannot lock folders.

    Raises BlockingIOError if another process has locked it, FileNotFoundError if another has removed it.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    opened = os.open(folder, mode)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.stat()  # it may have been removed in between
    except (BlockingIOError, FileNotFoundError):
        _let_go(opened)
        raise
    except OSError:
        _let_go(opened)
        return None
    return opened


def _let_go(held: int | None) -> None:
    if held is not None:
        os.close(held)
