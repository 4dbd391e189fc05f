"""Files that are written whole or not at all."""

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Of Linux: names are relative to the folder of the process, and change places.
_HERE, _SWAP = -100, 2
_TRIES = 100


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new file (or folder) to write, beside ``path``; it takes the place of ``path`` when the block ends well.

    An error inside the block leaves ``path`` as it was. Readers see the old content or the new, never a part.
    """
    target = Path(path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        yield fresh
        if fresh.is_dir():
            _replace_folder(fresh, target)
        else:
            fresh.replace(target)
    finally:
        _remove(fresh)


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
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    target.rename(old)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
