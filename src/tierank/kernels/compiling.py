"""Functions that numba compiles: kernels, which Python calls, and their inner functions.

A kernel is compiled once, for the types of its annotations alone; arrays are C-contiguous. Callers hand in arrays of
these types, so that no other version is ever compiled, and ``compile_all`` can compile everything ahead.
"""

from __future__ import annotations

import gc
import importlib
import logging
import pkgutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial, update_wrapper
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from tierank.errors import ParameterError
from tierank.kernels.keeping import Keeper

P = ParamSpec("P")
R = TypeVar("R")
Number = TypeVar("Number", bound=np.generic)


# The arrays that kernels take, with their dimensions and whether they may be read-only. A plain ``NDArray[...]`` is of
# one dimension and writable.
Vector = Annotated[NDArray[Number], 1, "read"]
Matrix = Annotated[NDArray[Number], 2, "read"]
OutMatrix = Annotated[NDArray[Number], 2, "written"]

_SCALARS = {int: types.int64, float: types.float64, bool: types.boolean}

_jit: Any = partial(numba.njit, nogil=True, error_model="numpy", no_cfunc_wrapper=True)

# For kernels that make no arrays: callers hold theirs, so there is nothing to count.
_UNCOUNTED = {"_nrt": False}

# A function that only kernels call: numba then need not make it callable from Python, which takes as long as the rest.
inner = partial(_jit, no_cpython_wrapper=True)

# All kernels, in the order in which their modules were loaded.
KERNELS: list[Kernel[..., Any]] = []

# Seconds of compiling in one process after which the user is told.
_NOTICEABLE = 1.0

_LOADING = threading.Lock()


class Loaded(NamedTuple):
    """How a kernel was loaded: in what time, whether it was compiled, and where its code is kept, or why nowhere."""

    seconds: float
    is_compiled: bool
    folder: Path | None
    obstacle: str | None


class Kernel(Generic[P, R]):
    """A function that is compiled, or loaded, on its first call. Its code is kept in ``folder``, or where usual."""

    def __init__(self, function: Callable[P, R], folder: Path | None = None, *, makes_arrays: bool = False) -> None:
        update_wrapper(self, function)
        self.function, self.folder, self.makes_arrays = function, folder, makes_arrays
        self._dispatcher = _jit(function) if makes_arrays else _jit(function, **_UNCOUNTED)
        self._is_ready = not hasattr(self._dispatcher, "compile")  # as where NUMBA_DISABLE_JIT is set

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """Call the compiled code."""
        if not self._is_ready:
            self.load(_NOTICE)
        result: R = self._dispatcher(*arguments, **named)
        return result

    @property
    def _numba_type_(self) -> Any:
        """What numba sees where another kernel calls this one: a function that may be compiled for other types."""
        return self._inner._numba_type_

    @cached_property
    def _inner(self) -> Any:
        return inner(self.function)

    @property
    def signatures(self) -> list[Any]:
        """The types it was compiled for."""
        return list(self._dispatcher.signatures)

    def load(self, notice: _Notice | None = None) -> Loaded:
        """Load the code, or compile it; no other types are compiled for afterwards."""
        with _LOADING:
            start = time.monotonic()
            keeper = Keeper(
                self.function, self.folder, partial(notice.begin, self.function.__name__) if notice else None
            )
            if not self._is_ready:
                self._dispatcher._cache = keeper
                try:
                    with _without_collector():
                        self._dispatcher.compile(argument_types(self.function))
                finally:
                    if notice is not None:
                        notice.end()
                self._dispatcher.disable_compile()
                self._is_ready = True
            return Loaded(time.monotonic() - start, keeper.has_missed, keeper.folder, keeper.obstacle)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Let garbage wait: compiling makes many objects, and Python would search those of all libraries each time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def compiled(function: Callable[P, R]) -> Kernel[P, R]:
    """The function as a kernel. It makes no arrays: callers hand in what it works in, and numba refuses others."""
    return _listed(Kernel(function))


def allocating(function: Callable[P, R]) -> Kernel[P, R]:
    """The function as a kernel that makes arrays, where callers cannot know their sizes."""
    return _listed(Kernel(function, makes_arrays=True))


def _listed(kernel: Kernel[P, R]) -> Kernel[P, R]:
    KERNELS.append(kernel)
    return kernel


def argument_types(function: Callable[..., Any]) -> tuple[Any, ...]:
    """What numba calls the types that a function is annotated with."""
    hints = get_type_hints(function, include_extras=True)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return tuple(_numba_type(hints[name]) for name in names)


def _numba_type(hint: Any) -> Any:
    if hint in _SCALARS:
        return _SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple of arrays, which have to be as annotated
        fields = get_type_hints(hint, include_extras=True)
        return types.BaseTuple.from_types([_numba_type(field) for field in fields.values()], hint)
    array, n_dimensions, use = get_args(hint) if get_origin(hint) is Annotated else (hint, 1, "written")
    return types.Array(numba.from_dtype(np.dtype(_element(array))), n_dimensions, "C", readonly=use == "read")


def _element(array: Any) -> type[np.generic]:
    """The type of the numbers: NDArray[X] is ndarray[shape, dtype[X]] up to numpy 2.4, and an alias with X later on.

    >>> _element(np.ndarray[Any, np.dtype[np.int8]]) is _element(list[np.int8]) is np.int8
    True
    """
    return array if isinstance(array, type) and issubclass(array, np.generic) else _element(get_args(array)[-1])


def compile_all(folder: Path | None = None) -> Iterator[tuple[str, Loaded]]:
    """Compile every kernel that is not in ``folder``, or where it is usually kept; its name and how it was loaded."""
    import tierank.kernels as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for kernel in KERNELS:
        loaded = Kernel(kernel.function, folder, makes_arrays=kernel.makes_arrays).load()
        if loaded.obstacle is not None:
            raise ParameterError(f"compiled code: expected a folder that can be written, got {loaded.obstacle}")
        yield f"{kernel.function.__module__.rpartition('.')[2]}.{kernel.function.__name__}", loaded


class _Notice:
    """Tells the user, each once, of compiling that takes long enough to be noticed, and of code that cannot be kept."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._seconds, self._start = 0.0, 0.0
        self._timer: threading.Timer | None = None

    def begin(self, name: str, obstacle: str | None) -> None:
        if obstacle is not None:
            self._say(
                "obstacle",
                f"tierank: each process compiles again, for some seconds, as the code cannot be kept ({obstacle});"
                " `tierank compile --to DIR`, once, and NUMBA_CACHE_DIR=DIR end that",
            )
        elif self._timer is None:
            self._start = time.monotonic()
            text = (
                f"tierank: compiling {name} for this machine; each function is compiled once, when it is first used,"
                " and `tierank compile` does all of them ahead"
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
