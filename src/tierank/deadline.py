"""Deadlines: the caller sets one, and long loops check whether it has passed.

Python cannot stop a thread from outside. So work that may take long is cut into pieces, and between two of them it
calls ``check_deadline``, which costs nothing if no deadline is set.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_APPLIED: ContextVar[Deadline | None] = ContextVar("_APPLIED", default=None)


class Deadline:
    """A moment a number of seconds from now, after which work should stop.

    >>> deadline = Deadline(60)
    >>> with deadline.applied():
    ...     check_deadline()
    ...     deadline.cancel()
    ...     check_deadline()
    Traceback (most recent call last):
    TimeoutError: the work did not end before its deadline
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; 0 if it has passed."""
        return max(0.0, self._end - time.monotonic())

    def cancel(self) -> None:
        """Make it pass now, because the result is no longer needed."""
        self._end = 0.0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside this block ``check_deadline`` checks this deadline, for the current thread."""
        before = _APPLIED.set(self)
        try:
            yield
        finally:
            _APPLIED.reset(before)


def seconds_left() -> float:
    """Seconds until the current deadline; infinite if there is none."""
    deadline = _APPLIED.get()
    return math.inf if deadline is None else deadline.left


def check_deadline() -> None:
    """Raise TimeoutError if the current deadline has passed."""
    if not seconds_left():
        raise TimeoutError("the work did not end before its deadline")
