"""Files that are written whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


def _replace_folder(fresh: Path, target: Path) -> None:
    """A folder cannot take the place of one that is not empty: the old one steps aside first."""
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    if target.exists():
        target.rename(old)
    try:
        fresh.rename(target)
    finally:
        _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
