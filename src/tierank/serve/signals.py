"""Signals to the server. They are handled from its first moment to its last.

SIGTERM and Ctrl-C stop the server; SIGHUP makes it look for new models. While the server starts, SIGTERM and Ctrl-C end
the process at once, and a SIGHUP is kept until the models are loaded. Once the server stops, no signal changes the exit
code any more. This module is loaded before all libraries that take seconds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT)
HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # not on Windows
HEARD = STOPPING if HANGUP is None else (*STOPPING, HANGUP)

Receiver = Callable[[int], None]


class Signals:
    """Receives the signals while the block runs. After a stop they are ignored until the process ends."""

    def __init__(self) -> None:
        self._receiver: Receiver | None = None
        self._heard: tuple[signal.Signals, ...] = HEARD
        self._was_hung_up = self._is_stopping = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._hear) for number in self._heard}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._is_stopping else handler or signal.SIG_DFL)

    def pass_to(self, receiver: Receiver) -> None:
        """Call the function for each signal from now on, and for a SIGHUP that has arrived before."""
        self._receiver = receiver
        for number in self._heard:
            signal.signal(number, self._hear)
        if self._was_hung_up and HANGUP is not None:
            self._was_hung_up = False
            receiver(HANGUP)

    def leave_to_parent(self) -> None:
        """In a worker: hear only SIGTERM, and die of it while starting.

        A terminal sends Ctrl-C to all processes, and an operator may send SIGHUP to all; only the parent decides.
        """
        self._receiver, self._heard = None, (signal.SIGTERM,)
        for number in HEARD:
            signal.signal(number, signal.SIG_DFL if number in self._heard else signal.SIG_IGN)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = self._is_stopping or number in STOPPING
        if self._receiver is not None:
            self._receiver(number)
        elif number in STOPPING:
            # An exception could be lost, or be printed, by the C code of a library that is being imported.
            with suppress(OSError):
                os.write(2, b"tierank: stopped while starting\n")
            os._exit(0 if number == signal.SIGTERM else 130)
        else:
            self._was_hung_up = True
