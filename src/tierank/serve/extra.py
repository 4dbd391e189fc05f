"""The libraries that serving needs and nothing else does."""

from importlib.util import find_spec

from tierank.errors import ParameterError


def need_extra() -> None:
    """An error that says what to install, where one of them is missing."""
    if any(find_spec(library) is None for library in ("starlette", "uvicorn", "msgspec")):
        raise ParameterError("serving needs Starlette, uvicorn and msgspec: pip install 'tierank[serve]'")
