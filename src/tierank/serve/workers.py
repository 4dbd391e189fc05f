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

# What the parent hears, and hands on.
_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if hasattr(signal, "SIGHUP") else ()
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
        self.is_stopping = self.was_interrupted = False
        self.parent, self._alive = os.pipe()

    def run(self) -> Place | None:
        """Start all, and start again whichever dies, until told to stop."""
        self._before = {number: signal.signal(number, self._hear) for number in _HEARD}
        try:
            place = self._start_first()
            for number in range(1, self.n):
                place = place or self._start(number)
            return place or self._watch()
        finally:
            if self._before:  # the parent; its children have put them back already
                for number, handler in self._before.items():
                    signal.signal(number, handler)

    def _start_first(self) -> Place | None:
        """Start one, and wait until it is ready; if it ends before, so do we, for it has said why."""
        ready, to_tell = os.pipe()
        place = self._start(0, to_tell, is_first=True)
        if place is not None:
            os.close(ready)
            return place
        os.close(to_tell)
        with os.fdopen(ready, "rb") as pipe:
            is_ready = bool(pipe.read(1))
        if not is_ready and not self.is_stopping:
            code = os.waitstatus_to_exitcode(os.wait()[1])
            sys.exit(code if code >= 0 else 128 - code)
        return None

    def _start(self, number: int, ready: int | None = None, is_first: bool = False) -> Place | None:
        """Fork one; returns its place in it, and None in the parent."""
        # A signal between the fork and the handlers of the child would be taken for one to the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        try:
            if self.is_stopping:
                return None
            process = os.fork()
            if process:
                self.running[process] = number, time.monotonic()
                return None
            for heard, handler in self._before.items():
                signal.signal(heard, handler)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent says what to do
            self._before = {}
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
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
        if self.was_interrupted:
            raise KeyboardInterrupt
        return None

    def _pause(self) -> None:
        until = time.monotonic() + _SHORT
        while time.monotonic() < until and not self.is_stopping:
            time.sleep(0.05)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        """Hand a signal on: SIGHUP as it is, the others as SIGTERM, and a second Ctrl-C as SIGKILL."""
        told = signal.SIGHUP
        if number != signal.SIGHUP:
            told = signal.SIGKILL if self.is_stopping and number == signal.SIGINT else signal.SIGTERM
            self.is_stopping, self.was_interrupted = True, self.was_interrupted or number == signal.SIGINT
        for process in self.running:
            with suppress(ProcessLookupError):
                os.kill(process, told)


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
