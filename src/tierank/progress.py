"""Progress of long work: a bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tierank.markup import element

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

# Seconds between plain lines: a log should not fill with them.
_EVERY = 10.0
# Seconds between updates in a notebook.
_DRAWN_EVERY = 0.2


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
        self._cell: Any = None
        self._started, self._drawn = time.monotonic(), 0.0

    def __enter__(self) -> Progress:
        if self.show and in_notebook():
            from IPython.display import display

            self._cell = display(_Drawn(self._html("")), display_id=True)
        elif self.show and sys.stderr.isatty():
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
        """Count one step as done; ``note`` describes its result."""
        self.done += 1
        if self._cell is not None:
            self._draw(note)
        elif self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=1, note=note)
        elif self.show and (time.monotonic() - self._said > _EVERY or self.done == self.total):
            self._said = time.monotonic()
            print(f"{self.label}: {self.done} of {self.total} {note}".rstrip(), file=sys.stderr, flush=True)

    def _draw(self, note: str) -> None:
        """Redraw the bar, but not too often, as every update is sent to the browser."""
        now = time.monotonic()
        if now - self._drawn > _DRAWN_EVERY or self.done == self.total:
            self._drawn = now
            self._cell.update(_Drawn(self._html(note)))

    def _html(self, note: str) -> str:
        seconds = time.monotonic() - self._started
        left = seconds / self.done * (self.total - self.done) if self.done else 0.0
        bar = element("progress", value=self.done, max=self.total, style="vertical-align:middle;margin:0 .6em")
        words = f"{self.done} of {self.total}, {seconds:.0f} s" + (f", {left:.0f} s left" if left >= 1 else "")
        return element("span", self.label, bar, f"{words} {note}".rstrip())


class _Drawn:
    """HTML for IPython, with a text fallback."""

    def __init__(self, html: str) -> None:
        self.html = html

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return ""


def in_notebook() -> bool:
    """Whether this runs in a kernel of Jupyter, whose output cells can be changed."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None
