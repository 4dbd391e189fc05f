"""Compiles kernels, which Python calls, and their inner functions, and stores the code between processes.

A kernel is compiled once, for the types of its annotations only; arrays are C-contiguous. Callers pass arrays of these
types, so no other version is ever compiled, and ``compile_all`` can compile everything in advance.

The code is stored in the folder that ``NUMBA_CACHE_DIR`` names; by default next to the source and, if that is not
writable, in the user's cache folder. numba stores code as pickles, so anyone who can write them can run code as this
user. Python trusts ``__pycache__`` in the same way, so the folder next to the source adds no risk. The user's folder is
only used if no other user can write to it or replace it. A folder that is not writable is still read: a container image
is filled when it is built, and is read-only when it runs.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
import pkgutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial, update_wrapper
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import numba
import numpy as np
from numba import types
from numba.core import caching, config
from numba.misc.appdirs import AppDirs
from numpy.typing import NDArray

from tierank import __version__
from tierank import extras as collector
from tierank.errors import ParameterError, WriteDenied

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


class KernelCache(caching.NullCache):
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
            raise WriteDenied(expected="a folder of one's own", got="one that others can write to")
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


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=tuple[Any, ...])
Number = TypeVar("Number", bound=np.generic)


# The arrays that kernels take, with their dimensions and whether they may be read-only. A plain ``NDArray[...]`` has
# one dimension and is writable.
Vector = Annotated[NDArray[Number], 1, "read"]
Matrix = Annotated[NDArray[Number], 2, "read"]
OutMatrix = Annotated[NDArray[Number], 2, "written"]
Ints = Vector[np.int64]
Doubles = Vector[np.float64]
Features = Matrix[np.float32]
OutInts = NDArray[np.int64]
OutDoubles = NDArray[np.float64]
OutFeatures = OutMatrix[np.float32]

_SCALARS = {int: types.int64, float: types.float64, bool: types.boolean}

_jit: Any = partial(numba.njit, nogil=True, error_model="numpy", no_cfunc_wrapper=True)

# For kernels that create no arrays: callers own the arrays, so no references have to be counted.
_UNCOUNTED = {"_nrt": False}

# A function that only kernels call: numba then does not make it callable from Python, which halves the compile time.
inner = partial(_jit, no_cpython_wrapper=True)

# All kernels, in the order in which their modules were loaded.
KERNELS: list[Kernel[..., Any]] = []

# Seconds of compiling in one process after which the user gets a message.
_NOTICEABLE = 1.0

_LOADING = threading.Lock()


class Loaded(NamedTuple):
    """How a kernel was loaded: the time, whether it was compiled, and where its code is stored, or why it is not."""

    seconds: float
    is_compiled: bool
    folder: Path | None
    obstacle: str | None


class Kernel(Generic[P, R]):
    """A function that is compiled, or loaded from ``folder`` or the default one, on its first call."""

    def __init__(self, function: Callable[P, R], folder: Path | None = None, *, makes_arrays: bool = False) -> None:
        update_wrapper(self, function)
        self.function, self.folder, self.makes_arrays = function, folder, makes_arrays
        self._dispatcher = _jit(function) if makes_arrays else _jit(function, **_UNCOUNTED)
        self._is_ready = not hasattr(self._dispatcher, "compile")  # for example if NUMBA_DISABLE_JIT is set

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """Call the compiled code."""
        if not self._is_ready:
            self.load(_NOTICE)
        result: R = self._dispatcher(*arguments, **named)
        return result

    @property
    def _numba_type_(self) -> Any:
        """What numba sees if another kernel calls this one: a function that can be compiled for other types."""
        return self._inner._numba_type_

    @cached_property
    def _inner(self) -> Any:
        return inner(self.function)

    @property
    def signatures(self) -> list[Any]:
        """The types that it was compiled for."""
        return list(self._dispatcher.signatures)

    def load(self, notice: _Notice | None = None) -> Loaded:
        """Load the code, or compile it; after that, it is not compiled for any other types."""
        with _LOADING:
            start = time.monotonic()
            kernel_cache = KernelCache(
                self.function, self.folder, partial(notice.begin, self.function.__name__) if notice else None
            )
            if not self._is_ready:
                self._dispatcher._cache = kernel_cache
                try:
                    with collector.paused():
                        self._dispatcher.compile(argument_types(self.function))
                finally:
                    if notice is not None:
                        notice.end()
                self._dispatcher.disable_compile()
                self._is_ready = True
            return Loaded(time.monotonic() - start, kernel_cache.has_missed, kernel_cache.folder, kernel_cache.obstacle)


def compiled(function: Callable[P, R]) -> Kernel[P, R]:
    """The function as a kernel that creates no arrays, which numba then refuses: callers pass in the work arrays."""
    return _listed(Kernel(function))


def allocating(function: Callable[P, R]) -> Kernel[P, R]:
    """The function as a kernel that creates arrays, for results whose sizes callers cannot know."""
    return _listed(Kernel(function, makes_arrays=True))


def _listed(kernel: Kernel[P, R]) -> Kernel[P, R]:
    KERNELS.append(kernel)
    return kernel


def argument_types(function: Callable[..., Any]) -> tuple[Any, ...]:
    """The numba types of the annotations of a function."""
    hints = get_type_hints(function, include_extras=True)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return tuple(_numba_type(hints[name]) for name in names)


def _numba_type(hint: Any) -> Any:
    if hint in _SCALARS:
        return _SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple of arrays with the annotated types
        fields = get_type_hints(hint, include_extras=True)
        return types.BaseTuple.from_types([_numba_type(field) for field in fields.values()], hint)
    array, n_dimensions, use = get_args(hint) if get_origin(hint) is Annotated else (hint, 1, "written")
    return types.Array(numba.from_dtype(np.dtype(_element(array))), n_dimensions, "C", readonly=use == "read")


def _element(array: Any) -> type[np.generic]:
    """The type of the numbers: NDArray[X] is ndarray[shape, dtype[X]] up to numpy 2.4, and an alias with X from 2.5 on.

    >>> _element(np.ndarray[Any, np.dtype[np.int8]]) is _element(list[np.int8]) is np.int8
    True
    """
    return array if isinstance(array, type) and issubclass(array, np.generic) else _element(get_args(array)[-1])


def work_arrays(kind: type[T], size: int) -> T:
    """Arrays of this size for each field of a named tuple, by its annotation, or for each field of its named tuples."""
    return kind(*(work_arrays(one, size) if issubclass(one, tuple) else np.zeros(size, one) for one in _fields(kind)))


@cache
def _fields(kind: type[tuple[Any, ...]]) -> list[Any]:
    """The types of numbers of the arrays that a named tuple has, or the named tuples in it."""
    hints = get_type_hints(kind, include_extras=True).values()
    return [hint if isinstance(hint, type) and issubclass(hint, tuple) else _element(hint) for hint in hints]


def compile_all(folder: Path | None = None) -> Iterator[tuple[str, Loaded]]:
    """Compile each kernel that is not stored in ``folder`` or the default one; yields its name and a ``Loaded``."""
    import tierank.kernels as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for kernel in KERNELS:
        loaded = Kernel(kernel.function, folder, makes_arrays=kernel.makes_arrays).load()
        if loaded.obstacle is not None:
            raise ParameterError(where="compiled code", expected="a folder that can be written", got=loaded.obstacle)
        yield f"{kernel.function.__module__.rpartition('.')[2]}.{kernel.function.__name__}", loaded


class _Notice:
    """Tells the user, once each, that compiling takes noticeable time, and that compiled code cannot be stored."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._seconds, self._start = 0.0, 0.0
        self._timer: threading.Timer | None = None

    def begin(self, name: str, obstacle: str | None) -> None:
        if obstacle is not None:
            self._say(
                "obstacle",
                f"tierank: each process compiles again, for some seconds, because the code cannot be kept ({obstacle});"
                " run `tierank compile --to DIR` once, and set NUMBA_CACHE_DIR=DIR",
            )
        elif self._timer is None:
            self._start = time.monotonic()
            text = (
                f"tierank: compiling {name} for this machine; each function is compiled once, when it is first used;"
                " `tierank compile` compiles all of them in advance"
            )
            self._timer = threading.Timer(max(0.0, _NOTICEABLE - self._seconds), self._say, ("compiling", text))
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._seconds += time.monotonic() - self._start

    def _say(self, what: str, text: str) -> None:
        if what not in self._said and "obstacle" not in self._said:
            self._said.add(what)
            logging.getLogger("tierank").warning(text)


_NOTICE = _Notice()
