"""Outlines of large bodies, so that they can be decoded in pieces.

A JSON decoder holds Python's global lock until it is done, which blocks the whole process, even answers to ``/health``.
So a large body is first outlined by a kernel that releases the lock, and its long lists are then decoded some elements
at a time. Between two pieces other threads can run, and the deadline is checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from tierank.deadline import check_deadline
from tierank.kernels.brackets import DAMAGED, TOO_MANY, find_elements
from tierank.serve.refusals import Refusal, shown

# Bytes decoded at a time. An element is never cut: a longer one is a separate piece.
PIECE = 64 << 10
# The most names that an object may have: one more than any known object.
_MOST_NAMES = 8
_BLANKS = re.compile(rb"[ \t\n\r]*")
_NAME = re.compile(rb'[ \t\n\r]*("(?:[^"\\]|\\.){0,999}")[ \t\n\r]*:[ \t\n\r]*', re.DOTALL)
_OPENING = b"[{"
# Characters of a body that a message shows.
_SHOWN = 60


class Piece(NamedTuple):
    """Some elements of a list: the index of the first one, their text as a list, and the commas inside a long one."""

    first: int
    text: bytes
    n_commas: int
    span: Span | None


@dataclass(frozen=True)
class Span:
    """A list or an object inside a large body that is not decoded yet; it opens at ``start``, and ends at ``end``."""

    body: bytearray
    start: int
    end: int

    def __str__(self) -> str:
        return "a long list" if self.is_list else "a long object"

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return self.body[self.start] == ord("[")

    def elements(self, most: int) -> NDArray[np.int64] | None:
        """Where its elements start and end, and how many commas each holds; None if there are more than ``most``."""
        places = np.empty((most, 3), np.int64)
        n, end = find_elements(np.frombuffer(self.body, np.uint8), self.start, places)
        if n == TOO_MANY:
            return None
        if n == DAMAGED:
            refuse_json(self.body, end)
        after = _BLANKS.match(self.body, end, self.end)
        if after is None or after.end() < self.end:
            refuse_json(self.body, end)
        return places[:n]

    def pieces(self, elements: NDArray[np.int64]) -> Iterator[Piece]:
        """The elements of a list, in pieces that are small enough to be decoded at once."""
        first, n = 0, len(elements)
        starts, ends = elements[:, 0], elements[:, 1]
        while first < n:
            check_deadline()
            start = int(starts[first])
            last = max(int(np.searchsorted(ends, start + PIECE)), first + 1)
            end = int(ends[last - 1])
            is_long = end - start > PIECE
            opening = _BLANKS.match(self.body, start)
            place = opening.end() if opening is not None else start
            is_open = is_long and self.body[place] in _OPENING
            yield Piece(
                first,
                b"[" + self.body[start:end] + b"]",
                int(elements[first, 2]) if is_long else 0,
                Span(self.body, place, end) if is_open else None,
            )
            first = last

    def members(self, where: str) -> dict[str, Any]:
        """The members of an object by name; long lists and objects as spans."""
        elements = self.elements(_MOST_NAMES)
        if elements is None:
            raise Refusal(422, where, f"an object of at most {_MOST_NAMES} names", "more", "leave out the other names")
        members: dict[str, Any] = {}
        for start, end in elements[:, :2].tolist():
            is_long = end - start > PIECE
            name = _NAME.match(self.body, start, end) if is_long else None
            if is_long and name is None:
                refuse_json(self.body, start)
            if name is not None and name.end() < end and self.body[name.end()] in _OPENING:
                members[str(read_json(name[1]))] = Span(self.body, name.end(), end)
            else:  # short, or a long text, or a number of many digits
                members |= read_json(b"{" + self.body[start:end] + b"}", f"{where}, from byte {start} on")
        return members


def outlined(body: bytearray) -> dict[str, Any]:
    """A large body: an object, with spans in place of long lists and objects."""
    opening = _BLANKS.match(body)
    start = 0 if opening is None else opening.end()
    if body[start : start + 1] != b"{":
        got = "a list" if body[start : start + 1] == b"[" else "something else"
        raise Refusal(422, "body", "an object", got, 'send {"documents": [...]}')
    return Span(body, start, len(body)).members("body")


def read_json(text: bytes | bytearray, where: str = "body") -> Any:
    """The value of a JSON text. Refuses invalid JSON, and says where it is invalid."""
    try:
        return json.loads(text.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise Refusal(
            400, f"{where}, byte {error.start}", "text in UTF-8", "other bytes", "send JSON in UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        place = f"{where}, line {error.lineno}, column {error.colno}"
        near = error.doc[error.pos : error.pos + _SHOWN]
        raise Refusal(400, place, "JSON", repr(near) if near else "its end", f"{error.msg}; correct the JSON") from None
    except Refusal:
        raise
    except (RecursionError, ValueError):  # too deeply nested, or a number with thousands of digits
        raise Refusal(400, where, "JSON", "too deep nesting or too long a number", "correct the JSON") from None


def refuse_json(body: bytearray, place: int) -> NoReturn:
    """The refusal for a body whose brackets do not match, from this byte on."""
    near = bytes(body[place : place + _SHOWN]).decode("utf-8", "replace")
    raise Refusal(400, f"body, byte {place}", "JSON", shown(near) if near else "its end", "correct the JSON")


def _refuse_constant(name: str) -> NoReturn:
    raise Refusal(400, "body", "JSON, which has no such number", name, "send null for a missing value")
