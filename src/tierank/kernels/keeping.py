"""Where compiled code is stored between processes.

It is stored in the folder that ``NUMBA_CACHE_DIR`` names; by default next to the source and, if that is not writable,
in the user's cache folder. numba stores code as pickles, so anyone who can write them can run code as this user. Python
trusts ``__pycache__`` in the same way, so the folder next to the source adds no risk. The user's folder is only used if
no other user can write to it or replace it.

A folder that is not writable is still read: a container image is filled when it is built, and is read-only when it
runs.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from numba.core import caching, config
from numba.misc.appdirs import AppDirs

from tierank import __version__

Function = Callable[..., Any]


class Folder(NamedTuple):
    """A folder for compiled code, and whether it has to be private, because the user did not choose it."""

    path: Path
    must_be_private: bool


def folders_for(function: Function, folder: Path | None = None) -> list[Folder]:
    """The folders where the code of a function is looked for, in this order; only inside ``folder`` if one is given."""
    file = function.__code__.co_filename
    name = caching._CacheLocator.get_suitable_cache_subpath(file)  # one for each installation
    chosen = folder or getattr(config, "CACHE_DIR", None)
    if chosen:
        return [Folder(Path(chosen, name), must_be_private=False)]
    beside = Folder(Path(file).absolute().parent / "__pycache__", must_be_private=False)
    of_user = Path(AppDirs("tierank", appauthor=False).user_cache_dir, name)
    has_home = of_user.is_absolute()  # otherwise it begins with "~"
    return [beside, Folder(of_user, must_be_private=True)] if has_home else [beside]


def is_private(path: Path) -> bool:
    """Whether only this user and root can write to a folder or replace it.

    Checks the folder and all its parents, as far as they exist. In a parent, others may create files if the sticky bit
    prevents them from replacing ours.
    """
    if not hasattr(os, "getuid"):  # Windows: the folders of a user are private
        return True
    path = path.resolve()
    for folder in (path, *path.parents):
        if folder.exists():
            found = folder.stat()
            is_sticky = folder != path and found.st_mode & stat.S_ISVTX
            is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky
            if is_open or found.st_uid not in (0, os.getuid()):
                return False
    return True


class Keeper(caching.NullCache):
    """Gives numba the stored code of a function before it compiles, and stores the code afterwards.

    ``folder`` is where the code was found or will be stored; ``obstacle`` says why it cannot be stored. If no code is
    found, ``on_miss`` is called with the obstacle, or with None.
    """

    def __init__(
        self, function: Function, folder: Path | None, on_miss: Callable[[str | None], None] | None = None
    ) -> None:
        self._places = [_Place(function, place) for place in folders_for(function, folder)]
        self._on_miss = on_miss
        self.has_missed = False
        self.folder: Path | None = None
        self.obstacle: str | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code for these types, from the first folder that has it."""
        for place in self._places:
            try:
                found = place.load_overload(sig, target_context)
            except Exception:  # noqa: S112  (unreadable or damaged, whatever numba raises: it is compiled again)
                continue
            if found is not None:
                self.folder = place.locator.folder.path
                return found
        self.has_missed = True
        self._try_places(lambda place: place.locator.ensure_cache_path())
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the code in the first folder that can be written."""
        if self.obstacle is None:
            self._try_places(lambda place: place.save_overload(sig, data))

    def _try_places(self, use: Callable[[_Place], None]) -> None:
        """Use the first folder that can be used, or record why there is none."""
        reasons = []
        for place in self._places:
            try:
                use(place)
            except OSError as error:
                reasons.append(f"{place.locator.folder.path}: {error.strerror or error}")
            else:
                self.folder = place.locator.folder.path
                break
        else:
            self.folder, self.obstacle = None, "; ".join(reasons)
        if self._on_miss is not None:
            self._on_miss(self.obstacle)


class _Place(caching.FunctionCache):
    """The code of one function in one folder."""

    def __init__(self, function: Function, folder: Folder) -> None:
        self.locator = _Locator(function, folder)
        self._impl_class = self._make_files
        super().__init__(function)

    def _make_files(self, function: Function) -> Any:
        class Files(caching.CompileResultCacheImpl):
            _locator_classes = (self.locator,)

        return Files(function)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code for these types, or None."""
        return super().load_overload(sig, target_context) if self.locator.is_trusted() else None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store the code next to what is stored already, or replace it if it is damaged."""
        try:
            super().save_overload(sig, data)
        except OSError:
            raise
        except Exception:  # numba first reads its index of stored code
            self.flush()
            super().save_overload(sig, data)


class _Locator(caching._CacheLocator):
    """Tells numba the folder, and which source the code in it was compiled from.

    numba's own locators write before they read, and compare the time of the source, which differs between images.
    """

    def __init__(self, function: Function, folder: Folder) -> None:
        self.function, self.folder = function, folder
        self._py_file = function.__code__.co_filename  # numba's warnings about code that cannot be stored name it

    def from_function(self, py_func: Any, py_file: Any) -> Any:  # type: ignore[override]
        """Itself, because its function is known."""
        return self

    def is_trusted(self) -> bool:
        """Whether the code in the folder may be used."""
        return not self.folder.must_be_private or is_private(self.folder.path)

    def get_cache_path(self) -> str:
        """The folder."""
        return str(self.folder.path)

    def ensure_cache_path(self) -> None:
        """Create the folder, private if the user did not choose it; raises OSError if it cannot be used."""
        path = self.folder.path
        for missing in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
            missing.mkdir(mode=0o700 if self.folder.must_be_private else 0o777, exist_ok=True)
        if not self.is_trusted():
            raise PermissionError(f"others can write to {path} or to a folder above it")
        tempfile.TemporaryFile(dir=path).close()

    def get_source_stamp(self) -> str:
        """A digest of the source: of all kernels, because they call each other, and of how they are compiled."""
        return _hash_sources(Path(self.function.__code__.co_filename).parent)

    def get_disambiguator(self) -> str:
        """The line number of the function, which numba uses to distinguish functions of the same name."""
        return str(self.function.__code__.co_firstlineno)


@cache
def _hash_sources(folder: Path) -> str:
    sources = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    return hashlib.sha256(b"\0".join([__version__.encode(), *sources])).hexdigest()
