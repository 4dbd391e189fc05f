"""Charts as SVG: colours come from the style sheet of the page, and every chart has a description and a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tierank.arrays import Floats
from tierank.display import Html, element, join
from tierank.report.markup import N_COLOURS, folded, grid, legend

# The most points of a line: more than a screen can resolve.
_POINTS = 160
# The most characters of a name beside a bar.
_LONGEST = 18


@dataclass(frozen=True)
class Axis:
    """A linear scale from values to coordinates, with round ticks.

    >>> Axis.over([0.11, 0.49], 0, 100).ticks
    (0.1, 0.2, 0.3, 0.4, 0.5)
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: ArrayLike, start: float, end: float, *, zero: bool = False, n_ticks: int = 5) -> Axis:
        """An axis that covers all finite values, and 0 if asked for."""
        known = np.asarray(values, np.float64).ravel()
        known = known[np.isfinite(known)]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if high - low < 1e-9:  # equal up to rounding
            low, high = low - 0.5 * (low != 0 or not zero), high + 0.5
        least = (high - low) / max(1, n_ticks - 1)
        power = 10.0 ** math.floor(math.log10(least))
        # The smallest of 1, 2, 2.5 or 5 times a power of ten that is not much below.
        step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= 0.8 * least)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = tuple(round(i * step, 12) for i in range(first, last + 1))
        return cls(ticks[0], ticks[-1], start, end, ticks)

    def at(self, value: float) -> float:
        """The coordinate of a value."""
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 2)

    def label(self, tick: float) -> str:
        """The label of a tick, with as many decimals as the steps need."""
        step = round(self.ticks[1] - self.ticks[0], 12)
        decimals = next((n for n in range(10) if abs(step - round(step, n)) < 1e-3 * step), 10)
        return f"{tick:,.{decimals}f}"


def find_kept(values: Floats, best: float) -> int | None:
    """The index of the round that was kept: the first with the best value; None if it was not a single round.

    >>> find_kept(np.array([0.2, 0.4, 0.3, 0.4]), 0.4), find_kept(np.array([0.2, 0.4]), 0.45)
    (1, None)
    """
    places = np.flatnonzero(values == best)
    return int(places[0]) if len(places) else None


def figure(
    title: str,
    words: str,
    size: tuple[float, float],
    parts: Sequence[Html],
    numbers: Html,
    *,
    keys: str = "",
    small: bool = True,
) -> Html:
    """A chart with a title, a sentence that says what it shows, and its numbers in a collapsible table."""
    box = f"0 0 {size[0]:g} {size[1]:g}"
    said = (element("title", title), element("desc", words))
    svg = element("svg", *said, *parts, viewBox=box, role="img", aria_label=f"{title}. {words}")
    caption = element("figcaption", element("strong", title), element("span", words))
    drawn = element("div", join([Html(keys), svg]), class_="chart")
    return element("figure", caption, drawn, folded("Numbers", numbers), class_="small" if small else None)


def bars(
    title: str,
    words: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    intervals: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    form: str = ".4f",
    unit: str = "",
    x_label: str = "",
    shown: Sequence[str] | None = None,
    colours: Mapping[str, int] | None = None,
    width: float = 680,
) -> Html:
    """Bars side by side for each group, one for each series, from 0; with thin lines for intervals.

    ``shown`` are the labels below the bars if the groups are too many to label; ``colours`` are the colours of the
    series on a page that already has a legend.
    """
    height, left, right, top, bottom = 260.0, 52.0, 8.0, 12.0, 40.0 if x_label else 26.0
    spans = intervals or {}
    ends = [value for rows in spans.values() for pair in rows for value in pair]
    y = Axis.over([*(v for values in series.values() for v in values), *ends], height - bottom, top, zero=True)
    room = (width - left - right) / max(1, len(groups))
    thick = min(34.0, room * 0.78 / max(1, len(series)))
    parts = [_grid_y(y, left, width - right, unit)]
    for i, (name, values) in enumerate(series.items()):
        colour = (colours or {}).get(name, i) % N_COLOURS
        for j, value in enumerate(values):
            if not math.isfinite(value):
                continue
            x = left + room * (j + 0.5) + thick * (i - len(series) / 2)
            place, size = min(y.at(value), y.at(0)), abs(y.at(value) - y.at(0))
            box = {"x": round(x + 0.5, 2), "y": place, "width": round(thick - 1, 2), "height": round(size, 2)}
            said = element("title", f"{name}, {groups[j]}: {value:{form}}{unit}")
            parts.append(element("g", said, element("rect", **box, rx=1.5, class_=f"c{colour}")))
            if name in spans and all(map(math.isfinite, spans[name][j])):
                low, high = spans[name][j]
                line = f"M{round(x + thick / 2, 2)} {y.at(low)}V{y.at(high)}"
                parts.append(element("path", d=line, class_="whisker"))
    for j, group in enumerate(shown or groups):
        parts.append(_text(round(left + room * (j + 0.5), 1), height - bottom + 16, group))
    if x_label:
        parts.append(_text((left + width - right) / 2, height - 4, x_label))
    columns = [[f"{value:{form}}{unit}" if math.isfinite(value) else "-" for value in v] for v in series.values()]
    numbers = grid(["", *series], [[group, *cells] for group, *cells in zip(groups, *columns, strict=True)])
    keys = legend((name, i) for i, name in enumerate(series)) if len(series) > 1 and colours is None else ""
    return figure(title, words, (width, height), parts, numbers, keys=keys, small=False)


def lines(
    title: str,
    words: str,
    series: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    x_label: str,
    colours: Mapping[str, int],
    marks: Mapping[str, tuple[float, float]],
) -> Html:
    """A small chart with a line for each series of (x, y); ``marks`` are single points, such as the one kept."""
    width, height, left, right, top, bottom = 330.0, 190.0, 46.0, 10.0, 10.0, 38.0
    drawn = {name: (np.asarray(x, np.float64), np.asarray(y, np.float64)) for name, (x, y) in series.items()}
    x = Axis.over(np.concatenate([xs for xs, _ in drawn.values()]), left, width - right, n_ticks=4)
    y = Axis.over(np.concatenate([ys for _, ys in drawn.values()]), height - bottom, top, n_ticks=4)
    parts = [_grid_y(y, left, width - right, "")]
    parts += [_text(x.at(tick), height - bottom + 15, x.label(tick)) for tick in x.ticks]
    parts.append(_text((left + width - right) / 2, height - 5, x_label))
    rows = []
    for name, (xs, ys) in drawn.items():
        colour = colours[name] % N_COLOURS
        line = element("path", d=_path(x, y, xs, ys), class_=f"line l{colour}")
        parts.append(element("g", element("title", name), line))
        if name in marks and math.isfinite(marks[name][1]):
            spot = marks[name]
            parts.append(element("circle", cx=x.at(spot[0]), cy=y.at(spot[1]), r=3, class_=f"c{colour}"))
        rows += [[name, f"{xs[row]:g}", f"{ys[row]:.4f}"] for row in _few(len(xs), 12)]
    return figure(title, words, (width, height), parts, grid(["", x_label, "value"], rows))


def sorted_differences(title: str, words: str, values: Floats, limits: Floats, *, colour: int) -> Html:
    """Differences from the highest to the lowest: how many queries win, how many lose, and by how much.

    The axis covers ``limits``, so that charts can be compared.
    """
    width, height, left, right, top, bottom = 330.0, 170.0, 46.0, 8.0, 10.0, 24.0
    ordered = np.sort(values)[::-1]
    y = Axis.over(limits, height - bottom, top, zero=True, n_ticks=4)
    x = Axis(0, len(ordered), left, width - right, (0, len(ordered)))
    parts = [_grid_y(y, left, width - right, "")]
    for sign, class_ in ((1, "win"), (-1, "loss")):
        shown = np.where(sign * ordered > 0, ordered, 0.0)
        outline = _path(x, y, np.arange(len(ordered), dtype=np.float64) + 0.5, shown)
        area = f"M{x.at(0)} {y.at(0)}L{outline[1:]}L{x.at(len(ordered))} {y.at(0)}Z"
        parts.append(element("path", d=area, class_=class_))
    parts.append(element("path", d=f"M{left} {y.at(0)}H{width - right}", class_=f"line l{colour % N_COLOURS}"))
    parts.append(_text((left + width - right) / 2, height - 6, f"{len(ordered):,} queries, best to worst"))
    rows = [[f"{share}%", f"{np.percentile(ordered, share):+.4f}"] for share in (100, 90, 75, 50, 25, 10, 0)]
    numbers = grid(["of the queries are at or below", "difference"], rows)
    return figure(title, words, (width, height), parts, numbers)


def ranked_bars(
    title: str,
    words: str,
    names: Sequence[str],
    values: Sequence[float],
    spreads: Sequence[float] | None = None,
    *,
    form: str = "+.4f",
    value_label: str = "value",
) -> Html:
    """Horizontal bars, one below the other; positive and negative ones have different colours."""
    width, left, right, top, line = 330.0, 120.0, 62.0, 6.0, 19.0
    around = np.zeros(len(values)) if spreads is None else np.asarray(spreads)
    given = np.asarray(values, np.float64)
    low, high = min(0.0, float((given - around).min())), max(0.0, float((given + around).max()))
    x = Axis(low, high if high > low else low + 1, left, width - right, ())
    height = top + line * len(names) + 8
    parts, rows = [element("path", d=f"M{x.at(0)} {top}V{height - 8}", class_="axis")], []
    for i, (name, value, spread) in enumerate(zip(names, given, around, strict=True)):
        y = top + line * i
        box = {"x": min(x.at(value), x.at(0)), "width": round(abs(x.at(value) - x.at(0)), 2)}
        bar = element("rect", **box, y=y + 3, height=line - 7, rx=1.5, class_="win" if value >= 0 else "loss")
        parts.append(element("g", element("title", f"{name}: {value:{form}}"), bar))
        if spread > 0:
            d = f"M{x.at(value - spread)} {y + line / 2 - 0.5}H{x.at(value + spread)}"
            parts.append(element("path", d=d, class_="whisker"))
        short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
        parts.append(_text(left - 8, y + 13, short, "end", class_="name"))
        parts.append(_text(width - 4, y + 13, f"{value:{form}}", "end"))
        rows.append([name, f"{value:{form}}", *([] if spreads is None else [f"{spread:.4f}"])])
    columns = ["feature", value_label, *([] if spreads is None else ["spread"])]
    return figure(title, words, (width, height), parts, grid(columns, rows))


def _grid_y(y: Axis, left: float, right: float, unit: str) -> Html:
    """Thin grid lines at the ticks, a stronger one at 0, and their labels."""
    thin = "".join(f"M{left:g} {y.at(tick)}H{right:g}" for tick in y.ticks)
    labels = [_text(left - 6, y.at(tick) + 4, f"{y.label(tick)}{unit}", "end") for tick in y.ticks]
    strong = [element("path", d=f"M{left:g} {y.at(0)}H{right:g}", class_="axis")] if y.low <= 0 <= y.high else []
    return join([element("path", d=thin, class_="grid"), *strong, *labels])


def _text(x: float, y: float, text: str, anchor: str = "middle", class_: str | None = None) -> Html:
    return element("text", text, x=f"{x:g}", y=f"{y:g}", text_anchor=anchor, class_=class_)


def _path(x: Axis, y: Axis, xs: Floats, ys: Floats) -> str:
    chosen = [i for i in _few(len(xs), _POINTS) if math.isfinite(ys[i])]
    return "M" + "L".join(f"{x.at(xs[i]):g} {y.at(ys[i]):g}" for i in chosen) if chosen else ""


def _few(n: int, most: int) -> list[int]:
    """At most this many of n indices, evenly spaced, including the first and the last."""
    return np.unique(np.rint(np.linspace(0, n - 1, min(n, most))).astype(int)).tolist() if n else []
