"""Refused requests: where, expected, got, and the fix."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tierank.errors import DataError, near_name

# The most names that a refusal lists, and the most characters of a value that it shows.
_LISTED = 5
_SHOWN = 60
_LARGEST = float(np.finfo(np.float32).max)


class Refusal(DataError):
    """A request that is refused: the HTTP status code, and the four parts of the message."""

    def __init__(
        self, code: int, where: str, expected: str, got: str, fix: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{where}: expected {expected}, got {got}; {fix}")
        self.code, self.where, self.expected, self.got, self.fix = code, where, expected, got, fix
        self.headers = dict(headers or {})

    def to_dict(self) -> dict[str, Any]:
        """The body of the response: a dict with ``error``, which has where, expected, got and fix."""
        return {"error": {"where": self.where, "expected": self.expected, "got": self.got, "fix": self.fix}}


def busy(expected: str, got: str, fix: str) -> Refusal:
    """The refusal for a busy server; the same request may succeed later."""
    return Refusal(503, "server", expected, got, fix, {"Retry-After": "1"})


def check_keys(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse an object with an unknown name."""
    if given.keys() <= set(known):
        return
    unknown = next(name for name in given if name not in known)
    near = near_name(unknown, known)
    fix = f"did you mean {near!r}?" if near else f"leave it out; known are {', '.join(known)}"
    raise Refusal(422, where, f"the names {', '.join(known)}", f"{cut(unknown)!r}", fix)


def some(names: Sequence[str]) -> str:
    """The first of some names."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(repr(cut(name)) for name in names[:_LISTED]) + more


def cut(text: str) -> str:
    """A text of the caller, shortened for a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def shown(value: Any) -> str:
    """A short description of a received value.

    >>> shown([1, 2]), shown(None), shown("x" * 100)[:5]
    ('a list of 2', 'null', "'xxxx")
    """
    if isinstance(value, (list, dict)):
        return f"a list of {len(value)}" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        return repr(cut(value))
    if isinstance(value, float):
        return f"{value:g}" if math.isinf(value) else repr(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return "an integer beyond 3.4e38"
    if value is None or isinstance(value, (bool, int)):
        return json.dumps(value)
    return str(value)
