"""One runner for all parts: a case is a call in another process, with a deadline and a memory limit.

A case ends in one of six ways: it *works*, is *refused* by an error of tierank, *crashes* the process, raises another
*traceback*, *hangs*, or gives a *wrong* result. The last four are faults, and what led to them is kept.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

ENDS = {
    "works": "works",
    "refused": "refused",
    "crash": "crash",
    "traceback": "other traceback",
    "hang": "hang",
    "wrong": "wrong result",
}
FAULTS = tuple(ENDS)[2:]
# The most seconds of a call. On a quiet machine each takes less than one; the first one in a process loads torch.
DEADLINE = 60.0
MEMORY = 6 << 30
_WORDS = 200


class Wrong(Exception):
    """Raised by a call if the result is wrong."""


class Refused(Exception):
    """Raised by a call if a command was rejected with one line and exit code 2."""


class Case(NamedTuple):
    """A row of the table; a function of this folder, with arguments as JSON; the files that it uses."""

    what: str
    call: Callable[..., None]
    arguments: tuple[Any, ...]
    place: Path | None = None
    note: str = ""


@dataclass
class Table:
    """How many cases of each kind ended in which way; the files of the first of all similar faults."""

    keep: Path
    rows: dict[str, Counter[str]] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    kept: dict[str, Path] = field(default_factory=dict)

    def add(self, what: str, end: str, words: str = "", place: Path | None = None, note: str = "") -> None:
        """Count a case; its files are kept or removed."""
        self.rows.setdefault(what, Counter())[end] += 1
        if end in FAULTS:
            fault = ": ".join(filter(None, (what, ENDS[end], note, _alike(words, place))))
            self.faults[fault] += 1
            if self.faults[fault] == 1 and place is not None and any(place.iterdir()):
                self.kept[fault] = self.keep / f"{len(self.kept):03d}-{place.name}"
                self.keep.mkdir(parents=True, exist_ok=True)
                shutil.move(place, self.kept[fault])
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)

    def print(self) -> None:
        """As Markdown, then each kind of fault once with the files of the first."""
        print(f"| what | tried | {' | '.join(ENDS.values())} |\n{'|---' * (len(ENDS) + 2)}|")
        for what, counts in self.rows.items():
            print(f"| {what} | {counts.total()} | {' | '.join(str(counts[end]) for end in ENDS)} |")
        print()
        for fault, count in sorted(self.faults.items()):
            print(f"{count} x {fault}" + (f" ({self.kept[fault]})" if fault in self.kept else ""))


def run(table: Table, cases: Iterable[Case], deadline: float = DEADLINE) -> None:
    """Run cases one after the other in a child process; a lost process is replaced."""
    with Child() as child:
        for case in cases:
            end, words = child.ask(case.call, *case.arguments, deadline=deadline)
            table.add(case.what, end, words, case.place, case.note)


class Child:
    """A process that makes calls, one at a time, and reports how each ended."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self.environment = os.environ | {"OMP_WAIT_POLICY": "passive"} | (environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def ask(self, call: Callable[..., None], *arguments: Any, deadline: float = DEADLINE) -> tuple[str, str]:
        """How a call ended, and the message of the error."""
        self.send(call, *arguments)
        return self.answer(deadline)

    def send(self, call: Callable[..., None], *arguments: Any) -> None:
        """Start a call."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.faults.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self.environment,
                preexec_fn=limit_memory,
                start_new_session=True,
            )
        asked = [call.__module__, call.__name__, arguments]
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, deadline: float = DEADLINE) -> tuple[str, str]:
        """How the started call ended."""
        process = self._process
        if not select.select([process.stdout], [], [], deadline)[0]:
            self.end()
            return "hang", f"no answer in {deadline:g} s"
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            self.end()
            return "crash", ended_by(code)
        end, words = json.loads(line)
        return end, words

    def end(self) -> None:
        """End the process and everything that it started."""
        if self._process is not None:
            end_group(self._process)
            self._process.stdin.close()
            self._process.stdout.close()
            self._process = None


class Ended(NamedTuple):
    """How a command ended: its exit code (None: not in time) and its output."""

    code: int | None
    words: str

    @property
    def end(self) -> str:
        """The outcome in the words of the table; the command line rejects with the codes 2 and 3."""
        if self.code is None:
            return "hang"
        if self.code < 0:
            return "crash"
        if "Traceback" in self.words:
            return "traceback"
        return {0: "works", 2: "refused", 3: "refused"}.get(self.code, "traceback")

    @property
    def last(self) -> str:
        """The last line, or the signal that ended it."""
        if self.code is None or self.code < 0:
            return "not in time" if self.code is None else ended_by(self.code)
        return (self.words.strip().splitlines() or ["no words"])[-1]


def command(
    arguments: list[str],
    deadline: float = 10 * DEADLINE,
    environment: dict[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
) -> Ended:
    """Run ``tierank`` with these arguments in a separate process."""
    with start(arguments, environment, prepare) as process:
        return wait(process, deadline)


def start(
    arguments: list[str], environment: dict[str, str] | None = None, prepare: Callable[[], None] | None = None
) -> subprocess.Popen[str]:
    """Start ``tierank`` with these arguments, in its own session."""
    return subprocess.Popen(
        [sys.executable, "-m", "tierank", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=os.environ | {"OMP_WAIT_POLICY": "passive"} | (environment or {}),
        preexec_fn=prepare,
        start_new_session=True,
    )


def wait(process: subprocess.Popen[str], deadline: float) -> Ended:
    """How a command ends; if it takes too long, it is killed."""
    try:
        _, words = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        end_group(process)
        return Ended(None, process.communicate()[1])
    return Ended(process.returncode, words)


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that has its own session, with everything that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ended_by(code: int) -> str:
    """An exit code in words."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def limit_memory() -> None:
    """In a new process: limit its memory, so that the machine is not affected."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def tierank_command(*arguments: str) -> None:
    """In a child: a command of tierank, as a call."""
    from tierank.cli import main

    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code
    if code == 2:
        raise Refused
    if code != 0:
        raise Wrong(f"exit code {code}")


def outcome(call: Callable[..., None], arguments: list[Any]) -> tuple[str, str]:
    """In a child: make a call and report how it ended."""
    from tierank import TierankError

    try:
        call(*arguments)
    except (TierankError, Refused):
        return "refused", ""
    except Wrong as wrong:
        return "wrong", str(wrong)[:_WORDS]
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"[:_WORDS]
    return "works", ""


def _alike(words: str, place: Path | None) -> str:
    """The message without what differs between similar faults: paths and long numbers."""
    short = " ".join((words if place is None else words.replace(str(place), "FOLDER")).split())
    return re.sub(r"\d{3,}", "...", short)
