"""Explanations as a table and as a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tierank.explain import Explanation, format_value
from tierank.report.figures import as_tick, bars_width, check_figure, save_figure
from tierank.report.tables import Table

_UP, _DOWN, _INK = "#0b6e69", "#c2643a", "#1d2425"
# A rest of at most this share of all contributions is rounding, and gets no row.
_ROUNDING = 1e-9


def tabulate_explanation(found: Explanation, n: int | None = None) -> Table:
    """A row per feature, largest contribution first, and one row each for all other features and the rest."""
    rows = [
        [
            found.features[j],
            f"{found.contributions[j]:+.4f}",
            *(format_value(value, 6) for value in found.held(j)),
        ]
        for j in found.top(n).tolist()
    ]
    rows += [
        [name, f"{value:+.4f}" if abs(value) >= 5e-5 else f"{value:+.1e}", "", ""] for name, value in _sums(found, n)
    ]
    rows.append(["score difference", f"{found.difference:+.4f}", "", ""])
    columns = ["feature", "contribution", f"above: {found.above}", f"below: {found.below}"]
    title = f"Query {found.query!s}: {found.above} above {found.below}"
    ranks = "ranks above" if found.difference > 0 else "is not ranked above" if found.difference < 0 else "ties with"
    notes = [f"{found.above} {ranks} {found.below}; the contributions sum to the difference of their scores"]
    return Table(title, columns, rows, notes, {(len(rows) - 1, 0), (len(rows) - 1, 1)})


def draw_explanation(found: Explanation, path: Path, n: int | None = None) -> None:
    """Bars of the contributions, as a .png, .svg or .pdf file."""
    check_figure(path)
    from matplotlib.figure import Figure

    named = [(found.features[j], float(found.contributions[j])) for j in found.top(n)]
    names, values = zip(*[*named, *_sums(found, n), ("score difference", found.difference)], strict=True)
    figure = Figure(figsize=(bars_width(names), 1.2 + 0.28 * len(names)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(names))[::-1]
    colours = [_INK if i == len(names) - 1 else _UP if value >= 0 else _DOWN for i, value in enumerate(values)]
    axes.barh(places, values, color=colours, height=0.7)
    axes.set_yticks(places, [as_tick(name) for name in names])
    axes.axvline(0, color=_INK, linewidth=0.8)
    title = f"Query {found.query!s}: {found.above} above {found.below}"
    # Over the whole figure: the bars may be narrower than the title.
    figure.suptitle(as_tick(title), x=0.01, horizontalalignment="left", fontsize=11)
    axes.set_xlabel("contribution to the difference of the scores")
    axes.spines[["top", "right", "left"]].set_visible(False)
    save_figure(figure, path)


def _sums(found: Explanation, n: int | None) -> list[tuple[str, float]]:
    """The sum of the features beyond the first n, and the rest that no feature explains."""
    top = found.top(n)
    n_others = len(found.top()) - len(top)
    others = float(found.contributions.sum() - found.contributions[top].sum())
    rows = [(f"{n_others} other feature{'s' * (n_others > 1)}", others)] if n_others else []
    is_more = abs(found.rest) > _ROUNDING * float(np.abs(found.contributions).sum())
    return rows + ([("remainder", found.rest)] if is_more else [])
