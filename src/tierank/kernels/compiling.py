"""Functions that numba compiles: kernels, which Python calls, and their inner functions.

A kernel is compiled once, for the types of its annotations only; arrays are C-contiguous. Callers pass arrays of these
types, so no other version is ever compiled, and ``compile_all`` can compile everything in advance.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial, update_wrapper
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from tierank import collector
from tierank.errors import ParameterError
from tierank.kernels.keeping import Keeper

P = ParamSpec("P")
R = TypeVar("R")
Number = TypeVar("Number", bound=np.generic)


# The arrays that kernels take, with their dimensions and whether they may be read-only. A plain ``NDArray[...]`` has
# one dimension and is writable.
Vector = Annotated[NDArray[Number], 1, "read"]
Matrix = Annotated[NDArray[Number], 2, "read"]
OutMatrix = Annotated[NDArray[Number], 2, "written"]

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
            keeper = Keeper(
                self.function, self.folder, partial(notice.begin, self.function.__name__) if notice else None
            )
            if not self._is_ready:
                self._dispatcher._cache = keeper
                try:
                    with collector.paused():
                        self._dispatcher.compile(argument_types(self.function))
                finally:
                    if notice is not None:
                        notice.end()
                self._dispatcher.disable_compile()
                self._is_ready = True
            return Loaded(time.monotonic() - start, keeper.has_missed, keeper.folder, keeper.obstacle)


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


def compile_all(folder: Path | None = None) -> Iterator[tuple[str, Loaded]]:
    """Compile each kernel that is not stored in ``folder`` or the default one; yields its name and a ``Loaded``."""
    import tierank.kernels as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    for kernel in KERNELS:
        loaded = Kernel(kernel.function, folder, makes_arrays=kernel.makes_arrays).load()
        if loaded.obstacle is not None:
            raise ParameterError(f"compiled code: expected a folder that can be written, got {loaded.obstacle}")
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
