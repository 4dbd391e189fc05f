"""Display of objects: HTML in notebooks, aligned columns as text, and pandas tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from unicodedata import category

from tierank.extras import MissingExtraError
from tierank.markup import Html, element

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
        raise MissingExtraError("to_pandas needs pandas: pip install pandas") from None
    return DataFrame(dict(columns))
