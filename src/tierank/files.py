"""Files that are written whole or not at all."""

import ctypes
import errno
import glob
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

# Of Linux: names are relative to the folder of the process, and change places.
_HERE, _SWAP = -100, 2
_TRIES = 100
_BLOCK = 1 << 20


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new file (or folder) to write, beside ``path``; it takes the place of ``path`` when the block ends well.

    An error inside the block leaves ``path`` as it was. Readers see the old content or the new, never a part.
    """
    target = Path(path)
    fresh = target.with_name(f".{target.name}.{threading.get_native_id()}.new")
    try:
        yield fresh
        if fresh.is_dir():
            _replace_folder(fresh, target)
        else:
            fresh.replace(target)
    finally:
        _remove(fresh)


@contextmanager
def building(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder to fill, which takes the place of ``path`` as in ``replacing``.

    What a killed process left of such a folder is removed first: it can be as large as the whole.
    """
    target = Path(path)
    _sweep(target)
    with ExitStack() as until_in_place, replacing(target) as fresh:
        fresh.mkdir()
        until_in_place.callback(_let_go, _hold(fresh))
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


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Remove a folder, if it is there, so that nobody ever finds a part of it."""
    target = Path(path)
    if target.exists():
        _step_aside(target)


def _replace_folder(fresh: Path, target: Path) -> None:
    """Put a folder in the place of another one, in one step; what stood there is left under the name of the new one."""
    for _ in range(_TRIES):
        if _exchange(fresh, target):
            return
        try:
            if target.exists():  # no exchange on this system: the old one steps aside first
                _step_aside(target)
            fresh.rename(target)
            return
        except OSError as error:  # another process was at the same place in the same moment
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST) or not fresh.exists():
                raise
    raise OSError(errno.EBUSY, f"{target}: others write to this place all the time")


def _exchange(fresh: Path, target: Path) -> bool:
    """Swap two names at once, where the system can: at no moment is there nothing. False where it cannot."""
    swap = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    return swap is not None and swap(_HERE, os.fsencode(fresh), _HERE, os.fsencode(target), _SWAP) == 0


def _step_aside(target: Path) -> None:
    old = target.with_name(f".{target.name}.{threading.get_native_id()}.old")
    target.rename(old)
    _remove(old)


def _sweep(target: Path) -> None:
    """Remove folders that nobody fills any more."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.new"):
        held = _hold(left) if left.is_dir() else None
        if held is not None:
            _remove(left)
            _let_go(held)


def _hold(folder: Path) -> int | None:
    """Hold a folder until ``_let_go`` or the end of this process; None where another holds it, or none can be held."""
    if sys.platform == "win32":
        return None
    import fcntl

    opened = None
    try:
        opened = os.open(folder, os.O_RDONLY)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        _let_go(opened)
        return None
    return opened


def _let_go(held: int | None) -> None:
    if held is not None:
        os.close(held)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
