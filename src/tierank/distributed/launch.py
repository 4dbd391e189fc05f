"""Run one command in several processes of this machine, and watch them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tierank.distributed.processes import open_meeting
from tierank.errors import LEFT_ALONE, TeamError

# The command of each process.
_PROGRAM = (sys.executable, "-m", "tierank")
# Seconds in which the others have to notice that one is gone, before they are killed: many, as the first may be saving
# the model, and the machine may be busy.
_GRACE = 30.0
_EVERY = 0.05


def launch(arguments: Sequence[str], size: int) -> None:
    """Run ``tierank`` with these arguments in ``size`` processes that find each other by the environment.

    The variables are those of ``torchrun``. The first process has the terminal; of the others only the output of the
    one that failed first is shown. Returns when all have succeeded; if one fails, the others are ended too.
    """
    with tempfile.TemporaryDirectory() as folder, _told_to_stop() as stop:
        meeting = open_meeting()
        started: list[_Process] = []
        try:
            for number in range(size):
                process = _Process(arguments, number, size, meeting.port, Path(folder))
                started.append(process)  # immediately, as this one has to end if the next one cannot start
            _watch(started, stop)
        finally:
            for process in started:
                process.end()
        failed = [process for process in started if process.code]
        if failed and not stop:  # after a signal, the others were ended already
            _explain(failed, size)


class _Process:
    """One of the processes."""

    def __init__(self, arguments: Sequence[str], number: int, size: int, port: int, folder: Path) -> None:
        self.number, self.words = number, folder / f"{number}.txt"
        place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
        environment = os.environ | {k: str(v) for k, v in (place | where | {"PYTHONUNBUFFERED": 1}).items()}
        with self.words.open("wb") as words:
            output = None if number == 0 else words  # the first has the terminal
            self.running = subprocess.Popen(  # noqa: S603  (our own program)
                [*_PROGRAM, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.was_ended = False

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs; negative if a signal ended it."""
        code: int | None = self.running.poll()
        return code

    def end(self) -> None:
        """Kill it, if it still runs."""
        if self.code is None:
            self.was_ended = True
            self.running.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.running.wait(2.0)
        if self.code is None:
            self.running.kill()
            self.running.wait()


def _watch(started: list[_Process], stop: list[int]) -> None:
    """Wait until all have ended; with a time limit once one has failed or the first is done."""
    limit = None
    while any(process.code is None for process in started) and not stop:
        if limit is None and (started[0].code is not None or any(process.code for process in started)):
            limit = time.monotonic() + _GRACE
        if limit is not None and time.monotonic() > limit:
            return
        time.sleep(_EVERY)


def _explain(failed: list[_Process], size: int) -> None:
    """Raise the original error; those of processes that only lost contact are not shown."""
    guilty = [process for process in failed if process.code != LEFT_ALONE and not process.was_ended]
    killed = next((process for process in guilty if (process.code or 0) < 0), None)
    if killed is not None:
        name = signal.Signals(-(killed.code or 0)).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        raise TeamError(f"process {killed.number} of {size} was ended by {name}{hint}")
    stuck = next((process for process in failed if process.was_ended), None)
    if not guilty and stuck is not None:
        raise TeamError(f"process {stuck.number} of {size} did not respond, and was killed")
    silent = next((process for process in guilty if process.number > 0), None)
    if silent is None or any(process.number == 0 for process in guilty):
        raise TeamError(f"the {size} processes have ended; the line above says why")  # the first has the terminal
    words = silent.words.read_text(errors="replace").strip()
    raise TeamError(f"process {silent.number} of {size}: {words or f'ended with code {silent.code}'}")


@contextmanager
def _told_to_stop() -> Iterator[list[int]]:
    """A list that receives signals to end: the processes that this one started have to end with it."""
    heard: list[int] = []

    def hear(number: int, frame: Any) -> None:
        heard.append(number)

    try:
        before = signal.signal(signal.SIGTERM, hear)
    except ValueError:  # not the main thread, which alone receives signals
        yield heard
        return
    try:
        yield heard
    finally:
        signal.signal(signal.SIGTERM, before)
    if heard:
        raise KeyboardInterrupt
