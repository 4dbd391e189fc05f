"""Members of a model that train side by side, each in one thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from queue import SimpleQueue
from threading import Event
from typing import Any, NamedTuple, TypeVar

from tierank.kernels import one_thread
from tierank.training.callbacks import Callbacks, Step

T = TypeVar("T")


class Halted(Exception):
    """Raised in the steps of training that is no longer needed."""


class Halting(Callbacks):
    """Callbacks that end training at its next step once ``halt`` is set."""

    def __init__(self, halt: Event) -> None:
        super().__init__([self._check])
        self.halt = halt

    def _check(self, step: Step) -> None:
        if self.halt.is_set():
            raise Halted


class _End(NamedTuple):
    error: BaseException | None = None


def in_parallel(streams: Sequence[Iterator[T]], n_parallel: int, halt: Event) -> Iterator[T]:
    """What the streams yield, as it comes: ``n_parallel`` of them run at a time, each in one thread.

    If one fails, or the caller stops early, ``halt`` is set, and the others are waited for.
    """
    found: SimpleQueue[Any] = SimpleQueue()

    def run(stream: Iterator[T]) -> None:
        try:
            with one_thread():
                for one in stream:
                    found.put(one)
            found.put(_End())
        except BaseException as error:
            found.put(_End(error))

    with ThreadPoolExecutor(n_parallel) as pool:
        for stream in streams:
            pool.submit(copy_context().run, run, stream)
        try:
            n_left = len(streams)
            while n_left:
                one = found.get()
                if not isinstance(one, _End):
                    yield one
                elif one.error is not None:
                    raise one.error
                else:
                    n_left -= 1
        finally:
            halt.set()
            pool.shutdown(wait=True, cancel_futures=True)
