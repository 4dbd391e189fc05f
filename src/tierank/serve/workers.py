"""Several processes that serve one socket: forked, watched, restarted if one dies, and always with the same models.

All of them serve the same models, because only the parent decides which. It holds the bytes of every served model
(``Snapshot``), and a restarted process gets those, whatever is in the folder by then: a refused model, a newer one or
nothing. The parent also checks for new models. It takes a snapshot, has every process load and check it next to what it
serves, and waits for all of them. If all accept it, they switch over; if one refuses it, or dies while loading it, all
keep the old one. A process is never started while a model is being tried, and a model is never tried while a process is
still loading, so that no process can miss a change.

The parent loads no model itself: a process that forks must not have threads of numpy or torch.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tierank.errors import ParameterError, ProcessError, TierankError
from tierank.models import FolderState, state_of
from tierank.serve.counters import Counters
from tierank.serve.keys import Keys
from tierank.serve.log import log_replacement
from tierank.serve.signals import HANGUP, HEARD, Signals
from tierank.serve.snapshots import Snapshot, remove_left

LOG = logging.getLogger("tierank.serve")

# Signals that wait while a process is started.
_BLOCKED = (*HEARD, signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else HEARD
# Seconds until the next try if no process can be forked. A process that dies is restarted at once; but if that one
# dies before it has been ready for ``_STEADY`` seconds, there is the same pause, which then doubles each time, so that
# loading models over and over does not take the processor from the others.
_SHORT, _STEADY = 2.0, 60.0
# The longest wait in seconds: `poll` takes no more than 24 days.
_LONGEST = 86400.0
# The largest message in bytes. One holds all API keys: at most 34 times the size of their file.
_LARGEST = 1 << 26
# Seconds between two checks of all models: SIGHUPs that arrive meanwhile count as one.
PAUSE = 1.0


@dataclass(frozen=True)
class Place:
    """One of the processes: its number, what it serves, and its connection to the parent."""

    number: int
    is_first: bool
    snapshots: dict[str, Snapshot]
    keys: Keys | None
    parent: socket.socket

    def tell(self, **message: Any) -> None:
        """Send a message to the parent."""
        with suppress(OSError):  # it is gone, which the reader of its messages notices too
            self.parent.sendall(json.dumps(message).encode() + b"\n")

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """The messages of the parent, until it is gone for any reason."""
        reader, writer = await asyncio.open_connection(sock=self.parent, limit=_LARGEST)
        try:
            # A parent that is killed before it has read all messages of this process resets the connection.
            with suppress(ConnectionError):
                while line := await reader.readline():
                    yield json.loads(line)
        finally:
            writer.close()


def fork_workers(
    n: int,
    snapshots: dict[str, Snapshot],
    counters: Counters,
    signals: Signals,
    *,
    patience: float,
    watch: float | None = None,
    key_file: Path | None = None,
) -> Place | None:
    """Fork ``n`` processes. Returns in each of them; in the parent it returns None once all have ended.

    The first one starts alone until it is ready, so that an error in the models is reported once and ends all. A
    process that has not ended ``patience`` seconds after it was told to stop is killed. Must be called while this
    process has one thread.
    """
    if not hasattr(os, "fork"):
        raise ParameterError(f"workers: expected 1 on this system, got {n}")
    return _Parent(n, snapshots, counters, signals, patience, watch, key_file).run()


@dataclass(eq=False)
class _Worker:
    """The parent's view of one of the processes."""

    number: int
    process: int
    socket: socket.socket
    ready_at: float = math.inf
    is_silent: bool = False
    _text: bytearray = field(default_factory=bytearray)

    @property
    def is_ready(self) -> bool:
        """Whether it answers requests."""
        return self.ready_at < math.inf

    def tell(self, **message: Any) -> None:
        """Send a message to it."""
        with suppress(OSError):  # its death will be noticed soon
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def heard(self) -> Iterator[dict[str, Any]]:
        """The messages received since the last call."""
        text = b""
        with suppress(OSError):
            text = self.socket.recv(1 << 16)
        self.is_silent = not text  # it has closed its end; its death will be noticed
        self._text += text
        *lines, rest = self._text.split(b"\n")
        self._text = bytearray(rest)
        yield from map(json.loads, lines)


@dataclass(eq=False)
class _Trial:
    """A new model on trial, and the processes that have not answered yet."""

    name: str
    snapshot: Snapshot
    pending: set[_Worker]
    kept: ExitStack
    refusal: str | None = None


class _Parent:
    """The parent of the processes."""

    def __init__(
        self,
        n: int,
        snapshots: dict[str, Snapshot],
        counters: Counters,
        signals: Signals,
        patience: float,
        watch: float | None = None,
        key_file: Path | None = None,
    ) -> None:
        self.n, self.snapshots, self.counters, self.signals = n, snapshots, counters, signals
        self.patience, self.watch, self.key_file = patience, watch, key_file
        self.keys = None if key_file is None else Keys.read(key_file)
        self.workers: dict[int, _Worker] = {}
        # When to start which process, and which models to check; `seen` are those already checked.
        self.due = {0: 0.0}
        self.pauses: dict[int, float] = {}
        self.to_try: list[str] = []
        self.seen: dict[str, FolderState | None] = {name: snapshot.state for name, snapshot in snapshots.items()}
        self.trial: _Trial | None = None
        self.was_ready = self.is_stopping = self.was_interrupted = self.was_told = False
        self.next_watch = time.monotonic() + (watch or 0)
        self.next_look = 0.0
        self.kill_at = math.inf

    def run(self) -> Place | None:
        """Start all processes, and restart those that die, until the server is stopped."""
        self.woken, self._wake = os.pipe()
        for end in (self.woken, self._wake):
            os.set_blocking(end, False)
        before_child = signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only to be woken
        before_wake = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self.signals.pass_to(self._hear)
        place = None
        try:
            place = self._loop()
            return place
        finally:
            signal.set_wakeup_fd(before_wake)
            signal.signal(signal.SIGCHLD, before_child or signal.SIG_DFL)
            if place is not None:
                self.signals.leave_to_parent()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
            os.close(self.woken)
            os.close(self._wake)

    def _loop(self) -> Place | None:
        while self.workers or (self.due and not self.is_stopping):
            place = self._start_due()
            if place is not None:
                return place
            self._listen()
            self._reap()
            self._kill_late()
            if not self.is_stopping:
                self._look_for_models()
        if self.was_interrupted:
            raise KeyboardInterrupt
        return None

    # Processes

    def _start_due(self) -> Place | None:
        """Start the processes that are due; returns a place in each of them, and None in the parent."""
        for number, when in list(self.due.items()):
            if self.is_stopping or self.trial is not None or when > time.monotonic():
                continue
            del self.due[number]
            try:
                place = self._start(number)
            except OSError as error:  # no memory, or a limit on processes or open files
                if not self.was_ready:
                    raise ProcessError(f"cannot start worker {number}: {error.strerror}") from None
                LOG.error("cannot start worker %d: %s; trying again", number, error.strerror)
                self.due[number] = time.monotonic() + _SHORT
                return None
            if place is not None:
                return place
        return None

    def _start(self, number: int) -> Place | None:
        ours, theirs = socket.socketpair()
        # A signal between the fork and the child's handlers would be mistaken for one to the parent.
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            process = None if self.is_stopping else os.fork()
        except OSError:
            ours.close()
            theirs.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
            raise
        if process != 0:
            theirs.close()
            if process is None:
                ours.close()
            else:
                self.workers[process] = _Worker(number, process, ours)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
            return None
        for other in (ours, *(worker.socket for worker in self.workers.values())):
            other.close()
        return Place(number, not self.was_ready, self.snapshots, self.keys, theirs)

    def _reap(self) -> None:
        for process, worker in list(self.workers.items()):
            found, status = os.waitpid(process, os.WNOHANG)
            if not found:
                continue
            self._read(worker)
            remove_left(process)
            del self.workers[process]
            worker.socket.close()
            self._lost(worker, os.waitstatus_to_exitcode(status))

    def _lost(self, worker: _Worker, code: int) -> None:
        if self.is_stopping:
            return
        if not self.was_ready:  # it has reported why
            sys.exit(code if code >= 0 else 128 - code)
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        pause = self._pause_after(worker)
        later = f" in {pause:g} seconds" if pause else ""
        LOG.error("worker %d %s; starting another%s", worker.number, ended, later)
        self.due[worker.number] = time.monotonic() + pause
        if self.trial is not None and worker in self.trial.pending:
            self._voted(worker, f"{self.trial.snapshot.folder}: worker {worker.number} {ended} while it loaded it")

    def _pause_after(self, worker: _Worker) -> float:
        """Seconds until a process is started in place of a dead one."""
        pause = 0.0
        if time.monotonic() - worker.ready_at < _STEADY and worker.number in self.pauses:
            pause = min(max(_SHORT, 2 * self.pauses[worker.number]), _STEADY)
        self.pauses[worker.number] = pause
        return pause

    # Signals and messages

    def _listen(self) -> None:
        """Wait for a signal, a message, or the next due time; then read the messages."""
        asked = select.poll()
        by_number = {worker.socket.fileno(): worker for worker in self.workers.values() if not worker.is_silent}
        for number in (self.woken, *by_number):
            asked.register(number, select.POLLIN)
        for number, _ in asked.poll(self._milliseconds()):
            if number in by_number:
                self._read(by_number[number])
        with suppress(BlockingIOError):
            os.read(self.woken, 1 << 16)

    def _milliseconds(self) -> float | None:
        if self.is_stopping:
            times = [self.kill_at]
        else:
            times = list(self.due.values()) if self.trial is None else []
            times += [] if self.watch is None else [self.next_watch]
            times += [self.next_look] if self.was_told else []
        return min(max(0.0, min(times) - time.monotonic()), _LONGEST) * 1e3 if times else None

    def _read(self, worker: _Worker) -> None:
        for message in worker.heard():
            if "ready" in message:
                worker.ready_at = time.monotonic()
                if not self.was_ready:
                    self.was_ready = True
                    self.due |= dict.fromkeys(range(1, self.n), 0.0)
            elif self.trial is not None:
                self._voted(worker, message["refusal"])

    def _hear(self, number: int) -> None:
        """Note a signal; SIGTERM and Ctrl-C are passed on as SIGTERM, a second Ctrl-C as SIGKILL."""
        if number == HANGUP:
            self.was_told = True
            return
        told = signal.SIGKILL if self.is_stopping and number == signal.SIGINT else signal.SIGTERM
        if not self.is_stopping:
            self.kill_at = time.monotonic() + self.patience
        self.is_stopping, self.was_interrupted = True, self.was_interrupted or number == signal.SIGINT
        self._signal_workers(told)

    def _signal_workers(self, number: int) -> None:
        for process in list(self.workers):
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def _kill_late(self) -> None:
        """Kill the processes that have not stopped in time."""
        if not self.is_stopping or time.monotonic() < self.kill_at:
            return
        for worker in self.workers.values():
            LOG.error("worker %d did not stop within %g seconds; killing it", worker.number, self.patience)
        self._signal_workers(signal.SIGKILL)
        self.kill_at = math.inf

    # Models

    def _look_for_models(self) -> None:
        """Note which models to try, after SIGHUP or if a folder has changed, and try the next one."""
        if self.was_told and time.monotonic() >= self.next_look:
            self.was_told, self.next_look = False, time.monotonic() + PAUSE
            self.to_try = list(self.snapshots)
            self._renew_keys()
        if self.watch is not None and time.monotonic() >= self.next_watch:
            self.next_watch = time.monotonic() + self.watch
            changed = [name for name, one in self.snapshots.items() if self._has_changed(name, one.folder)]
            self.to_try += [name for name in changed if name not in self.to_try]
        while self.to_try and self.trial is None and all(worker.is_ready for worker in self.workers.values()):
            if not self.workers:
                return
            self._try(self.to_try.pop(0))

    def _has_changed(self, name: str, folder: Path) -> bool:
        return state_of(folder) not in (None, self.seen[name])

    def _try(self, name: str) -> None:
        """Ask all processes whether they can serve the current content of the folder of a model."""
        old, kept = self.snapshots[name], ExitStack()
        self.seen[name] = state_of(old.folder)  # a broken model is not tried again
        try:
            new = Snapshot.take(old.folder)
            self.seen[name] = new.state
            if new.holds_the_same_as(old):
                log_replacement(self.counters, name, None)
                return
            place = kept.enter_context(new.written())
        except (TierankError, OSError) as error:
            log_replacement(self.counters, name, str(error))
            return
        self.trial = _Trial(name, new, set(self.workers.values()), kept)
        for worker in self.workers.values():
            worker.tell(load=name, place=str(place))

    def _voted(self, worker: _Worker, refusal: str | None) -> None:
        """Note the answer of a process about the model on trial; the last answer decides."""
        trial = self.trial
        if trial is None or worker not in trial.pending:
            return
        trial.pending.discard(worker)
        trial.refusal = trial.refusal or refusal
        if trial.pending:
            return
        trial.kept.close()
        self.trial = None
        if trial.refusal is None:
            self.snapshots[trial.name] = trial.snapshot
        log_replacement(self.counters, trial.name, trial.refusal, trial.snapshot.checksum)
        for one in self.workers.values():
            one.tell(change=trial.name, to_new=trial.refusal is None)

    def _renew_keys(self) -> None:
        if self.key_file is None:
            return
        try:
            self.keys = Keys.read_again(self.key_file)
        except (TierankError, OSError) as error:
            LOG.error("kept the old API keys: %s", error)
        else:
            LOG.info("API keys: read again")
            for worker in self.workers.values():
                worker.tell(keys=self.keys.to_texts())
