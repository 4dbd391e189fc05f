"""Optional libraries: how to install them, and loading them on use."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TypeVar, cast

from tierank.errors import TierankError


@contextmanager
def paused() -> Iterator[None]:
    """Pause garbage collection: imports and compilation create many objects that stay, and each pass visits them all.

    >>> with paused():
    ...     gc.isenabled()
    False
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# The extra of pyproject.toml that brings each library.
EXTRAS = {
    "torch": "networks",
    "matplotlib": "plots",
    "pyarrow": "arrow",
    "optuna": "tune",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "dask": "dask",
    "distributed": "dask",
    "pyspark": "spark",
    "ray": "ray",
    "msgspec": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "mlflow": "mlflow",
    "tensorboardX": "tensorboard",
    "sentence_transformers": "text",
}


class MissingExtraError(TierankError, ImportError):
    """An optional library that is not installed.

    >>> print(MissingExtraError.of("URank", "torch"))
    URank needs torch: pip install 'tierank[networks]'
    """

    missing: str = ""

    @classmethod
    def of(cls, what: str, library: str) -> MissingExtraError:
        """The error for a feature that needs a library."""
        package = f"'tierank[{EXTRAS[library]}]'" if library in EXTRAS else library
        error = cls(where=f"{what} needs {library}", fix=f"pip install {package}")
        error.missing = library
        return error


def is_installed(library: str) -> bool:
    """Whether a library can be imported."""
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:
        return False


def require(what: str, *libraries: str) -> None:
    """Raise ``MissingExtraError`` if one of the libraries is not installed."""
    for library in libraries:
        if not is_installed(library):
            raise MissingExtraError.of(what, library)


def loaded_on_use(package: str, *modules: str) -> Callable[[str], object]:
    """The ``__getattr__`` of a package whose modules need libraries of their own, and are loaded when named."""

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name)
        return import_module(f"{package}.{name}")

    return find


T = TypeVar("T")


class LoadedOnUse(MutableMapping[str, T]):
    """A table of things by name, each imported from its home, ``module:attribute``, when it is used.

    >>> table = LoadedOnUse({"umart": "tierank.rankers.trees:UMart"})
    >>> "umart" in table, table["umart"].__name__
    (True, 'UMart')
    """

    def __init__(self, homes: Mapping[str, str]) -> None:
        self.homes, self._things = dict(homes), dict[str, T | None](dict.fromkeys(homes))

    def __getitem__(self, name: str) -> T:
        thing = self._things[name]
        if thing is None:
            module, _, attribute = self.homes[name].partition(":")
            thing = self._things[name] = getattr(import_module(module), attribute)
        return cast("T", thing)

    def __setitem__(self, name: str, thing: T) -> None:
        self._things[name] = thing

    def __delitem__(self, name: str) -> None:
        del self._things[name]

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)


@contextmanager
def needing(what: str) -> Iterator[None]:
    """Turn a failed import of an optional library into ``MissingExtraError``; the outermost block says who needs it."""
    try:
        yield
    except MissingExtraError as error:
        raise MissingExtraError.of(what, error.missing) from None
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        raise MissingExtraError.of(what, library) from None


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Import large libraries, or modules that need them: ``needing``, and faster."""
    with needing(what), paused():
        yield
