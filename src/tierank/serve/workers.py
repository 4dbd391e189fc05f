"""Several processes that serve one socket: forked, watched, and started again if one dies."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from tierank.errors import ParameterError

LOG = logging.getLogger("tierank.serve")

# A process that lived shorter than this, in seconds, is started again only after as long a pause.
_SHORT = 2.0


@dataclass(frozen=True)
class Place:
    """Which of the processes this is, a pipe that closes with the parent, and one that tells it of readiness."""

    number: int = 0
    parent: int | None = None
    ready: int | None = None
    is_first: bool = True

    def tell_ready(self) -> None:
        """Say that this process answers requests from now on."""
        if self.ready is not None:
            os.write(self.ready, b"1")
            os.close(self.ready)


def fork_workers(n: int) -> Place | None:
    """Fork ``n`` processes. Returns in each of them; in the parent it returns None once all have ended as told.

    The first one is alone until it is ready: an error in what is served is said once, and ends all. Must be called
    while this process has one thread.
    """
    if not hasattr(os, "fork"):
        raise ParameterError(f"workers: expected 1 on this system, got {n}")
    return _Workers(n).run()


class _Workers:
    """The parent of the processes."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.running: dict[int, tuple[int, float]] = {}
        self.is_stopping = False
        self.parent, self._alive = os.pipe()

    def run(self) -> Place | None:
        """Start all, and start again whichever dies, until told to stop."""
        before = {number: signal.signal(number, self._hear) for number in self._heard()}
        self._before = before
        try:
            ready, to_tell = os.pipe()
            place = self._start(0, to_tell, is_first=True)
            if place is not None:
                os.close(ready)
                return place
            os.close(to_tell)
            with os.fdopen(ready, "rb") as pipe:
                if not pipe.read(1):
                    self._end_early()
            for number in range(1, self.n):
                place = self._start(number)
                if place is not None:
                    return place
            return self._watch()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self, number: int, ready: int | None = None, is_first: bool = False) -> Place | None:
        """Fork one; returns its place in it, and None in the parent."""
        # A signal between the fork and the handlers of the child would be taken for one to the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._heard())
        try:
            process = os.fork()
            if process:
                self.running[process] = number, time.monotonic()
                return None
            for heard, handler in self._before.items():
                signal.signal(heard, handler)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._heard())
        os.close(self._alive)
        return Place(number, self.parent, ready, is_first)

    def _watch(self) -> Place | None:
        while self.running:
            process, status = os.wait()
            number, started = self.running.pop(process)
            if self.is_stopping:
                continue
            LOG.error("worker %d %s; starting another", number, _ended(os.waitstatus_to_exitcode(status)))
            if time.monotonic() - started < _SHORT:
                self._pause()
            if not self.is_stopping:
                place = self._start(number)
                if place is not None:
                    return place
        return None

    def _end_early(self) -> None:
        """The first one has ended before it was ready; it has said why."""
        process, status = os.wait()
        self.running.pop(process)
        code = os.waitstatus_to_exitcode(status)
        sys.exit(code if code >= 0 else 128 - code)

    def _pause(self) -> None:
        until = time.monotonic() + _SHORT
        while time.monotonic() < until and not self.is_stopping:
            time.sleep(0.05)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """Hand a signal on; those that end are remembered."""
        self.is_stopping = self.is_stopping or number in (signal.SIGTERM, signal.SIGINT)
        for process in self.running:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def _heard(self) -> tuple[signal.Signals, ...]:
        return signal.SIGTERM, signal.SIGINT, signal.SIGHUP


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
