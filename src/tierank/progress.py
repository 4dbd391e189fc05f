"""How far long work has come: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

# Seconds between plain lines: a log should not fill with them.
_EVERY = 10.0


class Progress:
    """Shows steps of ``total`` on standard error; with ``show=False`` it is silent.

    >>> with Progress("training", 3, show=False) as progress:
    ...     progress.step("ndcg@10 0.5")
    """

    def __init__(self, label: str, total: int, *, show: bool, done: int = 0) -> None:
        self.label, self.total, self.show, self.done = label, total, show, done
        self._said = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        if self.show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.done, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, note: str = "") -> None:
        """One step is done; ``note`` says how it went."""
        self.done += 1
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, note=note)
        elif self.show and (time.monotonic() - self._said > _EVERY or self.done == self.total):
            self._said = time.monotonic()
            print(f"{self.label}: {self.done} of {self.total} {note}".rstrip(), file=sys.stderr, flush=True)
