"""Files and folders that are written whole or not at all, and never over what tierank did not write."""

import ctypes
import errno
import fnmatch
import glob
import json
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
from typing import IO, Any

from tierank.errors import DataError, WriteError

# Of Linux: names are relative to the folder of the process, and change places.
_HERE, _SWAP = -100, 2
_TRIES = 100
_BLOCK = 1 << 20
# Descriptions are some kilobytes, and megabytes where there are thousands of features or files.
_LARGEST_JSON = 256 << 20
# What workshops are called after the dot and the name of what is made in them; tempfile gives eight letters.
_WORKSHOP = ".????????.new"


@dataclass(frozen=True)
class FolderKind:
    """What tells one kind of folder that tierank writes from all others: a file of JSON with these names in it."""

    kind: str
    file: str
    names: tuple[str, ...] = ()

    def content(self, folder: Path) -> dict[str, Any] | None:
        """What the file says; None where the folder is none of this kind."""
        try:
            found = read_json(folder / self.file)
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and found.keys() >= set(self.names) else None

    def is_in(self, folder: Path) -> bool:
        """Whether the folder is one of this kind."""
        return self.content(folder) is not None

    def refusal(self, place: Path) -> str | None:
        """Why a folder of this kind may not take this place; None where nothing but one of its kind would be lost."""
        if not place.exists() or (place.is_dir() and (not contents(place) or self.is_in(place))):
            return None
        return (
            f"{place}: expected a new name or {self.kind}, got something else there; choose another name, or move that"
            " away"
        )

    def check(self, place: Path) -> None:
        """An error where a folder of this kind may not take this place."""
        refusal = self.refusal(place)
        if refusal is not None:
            raise DataError(refusal)


def read_json(file: Path) -> Any:
    """What a file of JSON says; a ValueError where it is none, has a name twice or NaN, or is too large or too deep."""
    if not file.is_file():  # opening a pipe would wait for a writer
        raise ValueError(f"{file} is not a file")
    if file.stat().st_size > _LARGEST_JSON:
        raise ValueError(f"{file} is larger than what tierank writes")
    try:
        return json.loads(file.read_bytes(), object_pairs_hook=_each_once, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(f"{file} is deeper than what tierank writes") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name}, which JSON does not have")


def contents(folder: Path) -> list[Path]:
    """What is in a folder, except temporary folders of writers."""
    return [path for path in folder.iterdir() if not fnmatch.fnmatchcase(path.name, f".*{_WORKSHOP}")]


@contextmanager
def replacing(path: str | os.PathLike[str], kind: FolderKind | None = None) -> Iterator[Path]:
    """A new file to write, which takes the place of ``path`` when the block ends well.

    An error inside the block leaves ``path`` as it was; one of the system, or of a library that writes, becomes a
    ``WriteError`` that names it. Readers see the old content or the new, never a part. Links and permissions stay; what
    is neither file nor folder (a pipe, a device) is written to as it is. With a ``kind`` it may be a folder as well,
    which takes the place of a folder of that kind, or of an empty one.
    """
    place = Path(path)
    if place.exists() and not place.is_file() and not place.is_dir():
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
    """Turns what the system, or a library, says of a place that cannot be written into an error that names it.

    A reader at the other end of a pipe that has left, a file that is not there, and trouble with a file that is
    somewhere else (and may be read, not written) say nothing of the place.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise DataError(f"{path}: expected a folder {target.parent} to write into, got none; make it first")
    try:
        yield
    except (WriteError, FileNotFoundError, BrokenPipeError):
        raise
    except OSError as error:
        if not _is_at(target, error.filename):
            raise
        raise WriteError.of(path, error) from None


def _is_at(place: Path, name: object) -> bool:
    """Whether a name that the system gives is the place, or in it, or in its workshop; it gives none while writing."""
    if not isinstance(name, (str, bytes, os.PathLike)):
        return True
    target, found = Path(os.path.realpath(place)), Path(os.fsdecode(name)).absolute()
    is_inside = any(found.is_relative_to(own) for own in (target, place.absolute()))
    return is_inside or any(part.startswith(f".{target.name}.") for part in found.parts)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder, and those above it, where they are not there."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError.of(path, error) from None


@contextmanager
def building(path: str | os.PathLike[str], kind: FolderKind) -> Iterator[Path]:
    """A new folder to fill, which takes the place of ``path`` as in ``replacing``."""
    kind.check(Path(path))
    with replacing(path, kind) as fresh:
        fresh.mkdir()
        yield fresh


def reserve(file: IO[bytes], size: int) -> None:
    """Lengthen a file by ``size`` zeros that have their room on disk; an OSError where there is none.

    Whoever writes to a map of a file learns in no other way that the disk is full: the system ends the process.
    """
    file.flush()
    start = file.seek(0, os.SEEK_END)
    if size > shutil.disk_usage(file.fileno()).free:  # to find out by trying would fill the disk, for others too
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), start, size)
        return
    for place in range(0, size, _BLOCK):
        file.write(bytes(min(_BLOCK, size - place)))
    file.flush()


def remove_folder(path: str | os.PathLike[str], kind: FolderKind | None = None) -> None:
    """Remove a folder, if it is there (and is of this kind), in one step: no reader ever sees a part of it."""
    if kind is not None:
        kind.check(Path(path))
    target = Path(os.path.realpath(path))
    if target.exists():
        # Where another process was faster there is nothing left to do.
        with writing(path), _workshop(target) as workshop, suppress(FileNotFoundError):
            target.rename(workshop / target.name)
    elif target.parent.exists():
        _sweep(target)


def sweep(folder: Path) -> None:
    """Remove the workshops of all that is in a folder: those whose writer is gone.

    Making or removing something sweeps its workshops first; this is for what will never be made or removed again.
    """
    if folder.is_dir():
        _sweep_all(folder, f".*{_WORKSHOP}")


def _check_file(place: Path) -> None:
    if place.is_dir():
        raise DataError(f"{place}: expected the name of a file, got a folder there; choose another name")


def _replace_folder(fresh: Path, target: Path) -> None:
    """Put a folder in the place of another one, in one step; what stood there is left in the workshop."""
    for number in range(_TRIES):
        if _exchange(fresh, target):
            return
        try:
            if target.exists():  # no exchange on this system: the old one steps aside first
                target.rename(fresh.with_name(f"{number}.old"))
            fresh.rename(target)
            return
        except OSError as error:  # another process was at the same place in the same moment
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST) or not fresh.exists():
                raise
    raise OSError(errno.EBUSY, f"{target}: too many processes write there")


def _exchange(fresh: Path, target: Path) -> bool:
    """Swap two names at once, where the system can: at no moment is there nothing. False where it cannot."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    return swap is not None and swap(_HERE, os.fsencode(fresh), _HERE, os.fsencode(target), _SWAP) == 0


@contextmanager
def _workshop(target: Path) -> Iterator[Path]:
    """A folder of our own beside the target, held while it is used and gone afterwards.

    Those that killed processes left are removed first: they can be as large as the whole.
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
    """Ctrl-C waits for the end of the block: between making a folder and knowing of it, it would leave the folder."""
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
        with suppress(BlockingIOError, FileNotFoundError):  # another process swept it before it was held
            return folder, _hold(folder)
    raise OSError(errno.EBUSY, f"{target}: others write to this place all the time")


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


def _hold(folder: Path) -> int | None:
    """Hold a folder until ``_let_go`` or the end of this process; None where the system cannot hold folders.

    A BlockingIOError where another holds it, a FileNotFoundError where another has removed it.
    """
    if sys.platform == "win32":
        return None
    import fcntl

    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.stat()  # it may have gone between the two
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
