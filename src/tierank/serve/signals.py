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


class Signals:
    """Receives the signals while the block runs. After a stop they are ignored until the process ends."""

    def __init__(self) -> None:
        self._receiver: Callable[[int], object] | None = None
        self._was_hung_up = self._is_stopping = self._is_worker = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        heard = STOPPING if HANGUP is None else (*STOPPING, HANGUP)
        self._before = {number: signal.signal(number, self._hear) for number in heard}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._is_stopping else handler or signal.SIG_DFL)

    def pass_to(self, receiver: Callable[[int], object]) -> None:
        """Call the function for each signal from now on, and for a SIGHUP that has arrived before."""
        self._receiver = receiver
        if self._was_hung_up and HANGUP is not None:
            self._was_hung_up = False
            receiver(HANGUP)

    def start_worker(self) -> None:
        """In a worker, begin again. Ctrl-C, which a terminal sends to all processes, is left to the parent."""
        self._receiver, self._is_worker = None, True
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = self._is_stopping or number in STOPPING
        if self._receiver is not None:
            self._receiver(number)
        elif number in STOPPING:
            # An exception could be lost, or be printed, by the C code of a library that is being imported.
            if not self._is_worker:
                with suppress(OSError):
                    os.write(2, b"tierank: stopped while starting\n")
            os._exit(0 if number == signal.SIGTERM else 130)
        else:
            self._was_hung_up = True
