"""Optional libraries, and how to install them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from tierank import collector
from tierank.errors import TierankError

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
        error = cls(f"{what} needs {library}: pip install 'tierank[{EXTRAS[library]}]'")
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
    with needing(what), collector.paused():
        yield
