"""HTML elements for pages and notebooks. All text is escaped.

Progress of long work: a bar on a terminal or in a notebook, plain lines elsewhere.

Display of objects: HTML in notebooks, aligned columns as text, and pandas tables.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import category

from tierank.extras import MissingExtraError

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


# Void elements, which have no end tag.
_VOID = {"meta", "link", "input", "br", "path", "line", "rect", "circle"}


class Html(str):
    """Text that is markup already; any other text is escaped when it becomes part of an element."""


def element(name: str, /, *children: str, **attributes: object) -> Html:
    """One element. ``class_`` is ``class``, ``aria_label`` is ``aria-label``; attributes that are None are left out.

    >>> element("p", "a < b", element("b", "!"), class_="note", title='"')
    '<p class="note" title="&quot;">a &lt; b<b>!</b></p>'
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    shown = "".join(f' {key}="{escape(str(value))}"' for key, value in given.items())
    if name in _VOID:
        return Html(f"<{name}{shown}/>")
    return Html(f"<{name}{shown}>{join(children)}</{name}>")


def join(children: Iterable[str]) -> Html:
    """Children one after the other, texts escaped."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


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


_CELL = (
    "white-space:nowrap;padding:.15em .8em;text-align:{};font-weight:{};border-bottom:1px solid rgba(128,128,128,.25)"
)
_NOTE = "margin:.3em 0;font-size:.9em;opacity:.8"
# Blue: 4.8 to 1 on white, 4.4 to 1 on black; lines and bars need 3 to 1.
_LINE = "#2f74c0"
_WIDTH, _HEIGHT = 360, 90
# The most cells of a table that are shown.
ROWS = 30


def sheet(title: str, *parts: Html) -> str:
    """The whole form of an object."""
    return element("div", element("strong", title), *parts)


def note(text: str) -> Html:
    """A line of small text."""
    return element("p", text, style=_NOTE)


def grid(columns: Sequence[str], rows: Sequence[Sequence[str]], most: int = ROWS) -> Html:
    """A table; the first column is text, the others are numbers; at most ``most`` rows are shown."""
    head = element("tr", *(_cell("th", name, i) for i, name in enumerate(columns)))
    body = [element("tr", *(_cell("td", cell, i) for i, cell in enumerate(row))) for row in rows[:most]]
    left = [note(f"the first {most} of {len(rows):,} rows")] if len(rows) > most else []
    style = "border-collapse:collapse;margin:.4em 0;font-variant-numeric:tabular-nums"
    whole = element("table", element("thead", head), element("tbody", *body), style=style)
    return element("div", whole, *left, style="overflow-x:auto")


def _cell(name: str, text: str, column: int) -> Html:
    style = _CELL.format("left" if column == 0 else "right", "bold" if name == "th" else "normal")
    return element(name, text, style=style)


def lines(columns: Sequence[str], rows: Sequence[Sequence[str]], most: int = ROWS) -> list[str]:
    r"""The table as lines of text, columns one below the other; at most ``most`` rows are shown.

    >>> print(*lines(["query", "rank"], [["a", "1"], ["shoes", "2"], ["hats", "1"]], most=2), sep="\n")
    query  rank
    a      1
    shoes  2
    the first 2 of 3 rows
    """
    shown = [[on_one_line(cell) for cell in row] for row in (columns, *rows[:most])]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    left = [f"the first {most} of {len(rows):,} rows"] if len(rows) > most else []
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown] + left


def on_one_line(text: str) -> str:
    r"""The text, with line ends and control characters escaped as in Python.

    >>> print(on_one_line("a\nb"))
    a\nb
    """
    if text.isprintable():  # the common case
        return text
    return "".join(repr(sign)[1:-1] if category(sign) in ("Cc", "Zl", "Zp") else sign for sign in text)


def folded(title: str, *parts: Html) -> Html:
    """Parts that are collapsed until clicked."""
    return element("details", element("summary", title, style="cursor:pointer;margin:.3em 0"), *parts)


def curve(title: str, values: Sequence[float]) -> Html:
    """A line through the values, with its lowest and highest one as text; nothing if there are fewer than two."""
    known = [(i, value) for i, value in enumerate(values) if math.isfinite(value)]
    if len(known) < 2:
        return Html("")
    low, high = min(value for _, value in known), max(value for _, value in known)
    scale = (high - low) or 1.0
    points = " ".join(
        f"{4 + i / (len(values) - 1) * (_WIDTH - 8):.1f},{4 + (high - value) / scale * (_HEIGHT - 8):.1f}"
        for i, value in known
    )
    line = element("polyline", points=points, fill="none", stroke=_LINE, stroke_width=2)
    words = f"{title}: {values[0]:.4f} to {values[-1]:.4f}, lowest {low:.4f}, highest {high:.4f}"
    drawn = element("svg", line, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", width=_WIDTH, role="img", aria_label=words)
    return element("figure", drawn, element("figcaption", words, style=_NOTE), style="margin:.4em 0")


def bars(names: Sequence[str], values: Sequence[float], heading: str) -> Html:
    """A table with a bar beside each value; bars of values below 0 are outlined."""
    most = max((abs(value) for value in values), default=0.0) or 1.0
    rows = []
    for name, value in zip(names, values, strict=True):
        fill = f"background:{_LINE}" if value >= 0 else f"border:2px solid {_LINE};box-sizing:border-box"
        bar = element("span", style=f"display:inline-block;height:.7em;width:{12 * abs(value) / most:.2f}em;{fill}")
        cell = element("td", bar, style=_CELL.format("left", "normal"))
        rows.append(element("tr", _cell("td", name, 0), _cell("td", f"{value:.4g}", 1), cell))
    head = element("tr", _cell("th", "feature", 0), _cell("th", heading, 1), _cell("th", "", 0))
    return element("table", element("thead", head), element("tbody", *rows), style="border-collapse:collapse")


def as_pandas(columns: Mapping[str, Any]) -> Any:
    """A pandas table of these columns."""
    try:
        from pandas import DataFrame
    except ModuleNotFoundError:
        raise MissingExtraError.of("to_pandas", "pandas") from None
    return DataFrame(dict(columns))


def rows_to_pandas(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas table of rows by name of the column; None where a row has no value."""
    names = dict.fromkeys(name for row in rows for name in row)
    return as_pandas({name: [row.get(name) for row in rows] for name in names})


def format_number(value: float, sign: str = "") -> str:
    """Four decimals; a dash if the number is undefined. With ``sign="+"``, positive numbers have a plus sign."""
    return "-" if math.isnan(value) else f"{value:{sign}.4f}"


# The heads of the columns, and the rows.
Grid = tuple[list[str], list[list[str]]]


class ShownTable(NamedTuple):
    """A table of a result. Notebooks fold one with a title; ``is_printed``: whether it is part of the text, too."""

    grid: Grid
    title: str = ""
    is_printed: bool = True
    most: int = ROWS


class Result(ABC):
    """A result that prints as text and shows as HTML in notebooks, both made from ``blocks``."""

    @abstractmethod
    def blocks(self) -> Iterator[str | ShownTable | Result]:
        """Lines of text, tables, and results inside this one, from top to bottom."""

    def _repr_html_(self) -> str:
        parts = []
        for block in self.blocks():
            if isinstance(block, str):
                parts.append(note(block))
            elif isinstance(block, Result):
                parts.append(Html(block._repr_html_()))
            else:
                table = grid(*block.grid, block.most)
                parts.append(folded(block.title, table) if block.title else table)
        return sheet(type(self).__name__, *parts)

    def __str__(self) -> str:
        said: list[str] = []
        for block in self.blocks():
            if not isinstance(block, ShownTable):
                said.append(str(block))
            elif block.is_printed:
                said += lines(*block.grid, block.most)
        return "\n".join(said)

    __repr__ = __str__
