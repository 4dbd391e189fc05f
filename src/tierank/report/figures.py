"""Figures as files: PNG, SVG or PDF."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tierank.errors import ParameterError
from tierank.evaluation import Comparison
from tierank.extras import require
from tierank.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Dark to light, distinguishable with all kinds of colour vision.
_COLOURS = ("#1f4e5f", "#d1603d", "#7a9e7e", "#e0b252", "#6b4e71", "#9aa5b1", "#3d8b8b", "#b5838d")
# The formats of figures, and the metadata field of each that holds the date.
_DATES: dict[str, tuple[str, ...]] = {".png": (), ".svg": ("Date",), ".pdf": ("CreationDate",)}
_INK, _GRID = "#2b2b2b", "#dddddd"
# The size of figures with a bar per name, in inches: width with short names, and more for each character of a long one.
_WIDTH, _SHORT, _CHARACTER = 7.0, 25, 0.09
# Characters of a name that are shown.
_SHOWN = 80


def draw_improvement(comparison: Comparison, paths: Sequence[Path]) -> None:
    """The figure of the paper: the gain of each system over the baseline in each metric, in percent of the baseline.

    A metric in which the baseline is 0 has no bars. Lines on the bars are the 95%
    intervals of the differences.
    """
    for path in paths:
        check_figure(path)
    figure = _improvement(comparison)
    for path in paths:
        save_figure(figure, path)


def bars_width(names: Iterable[str]) -> float:
    """The width of a figure with a bar per name: long names get more room, so that the bars keep theirs."""
    longest = max((len(as_label(name)) for name in names), default=0)
    return _WIDTH + _CHARACTER * max(0, longest - _SHORT)


def as_label(name: str) -> str:
    """A name as it is shown beside its bar; a very long one without its middle.

    >>> as_label("x" * 50 + "y" * 50) == "x" * 38 + " ... " + "y" * 37
    True
    """
    end = (_SHOWN - 5) // 2
    return name if len(name) <= _SHOWN else f"{name[: _SHOWN - 5 - end]} ... {name[-end:]}"


def as_tick(name: str) -> str:
    """A name as a label of an axis, where a dollar sign would begin mathematics."""
    return as_label(name).replace("$", r"\$")


def check_figure(path: Path) -> None:
    """Raise an error if no figure can be written to this path; to be called before the work."""
    if path.suffix not in _DATES:
        raise ParameterError(f"{path}: expected a name that ends in .png, .svg or .pdf")
    require(f"drawing {path.name}", "matplotlib")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the ending of the path names, without the date."""
    with replacing(path) as fresh:
        figure.savefig(fresh, format=path.suffix[1:], dpi=160, metadata=dict.fromkeys(_DATES[path.suffix]))


def _improvement(comparison: Comparison) -> Figure:
    from matplotlib.figure import Figure

    systems = list(comparison.contrasts)
    if not systems:
        raise ParameterError("expected at least two systems to compare, got one")
    metrics = comparison.metrics
    means = np.array([comparison.mean(comparison.baseline, metric) for metric in metrics])
    base = np.where(means > 0, means, np.nan)
    figure = Figure(
        figsize=(max(6.0, 0.9 * len(metrics) + 0.12 * len(metrics) * len(systems)), 3.8), layout="constrained"
    )
    axes = figure.subplots()
    width, bars = 0.8 / len(systems), []
    for i, system in enumerate(systems):
        contrasts = [comparison.contrasts[system][metric] for metric in metrics]
        heights, lows, highs = (
            100 * np.array([getattr(c, name) for c in contrasts]) / base for name in ("difference", "low", "high")
        )
        place = np.arange(len(metrics)) + (i - (len(systems) - 1) / 2) * width
        errors = np.nan_to_num(np.maximum([heights - lows, highs - heights], 0))
        style = {"ecolor": _INK, "elinewidth": 0.8, "capsize": 0}
        colour = _COLOURS[i % len(_COLOURS)]
        bars.append(axes.bar(place, heights, 0.9 * width, yerr=errors, error_kw=style, color=colour))
    axes.set_xticks(np.arange(len(metrics)), [metric.upper() for metric in metrics])
    axes.set_ylabel(f"% over {comparison.baseline}", color=_INK, parse_math=False)
    _style(axes)
    _add_legend(axes, bars, systems)
    return figure


def _style(axes: Axes) -> None:
    """A line at 0, thin grid lines behind the bars, and no frame."""
    axes.axhline(0, color=_INK, linewidth=0.8)
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(length=0, colors=_INK)


def _add_legend(axes: Axes, bars: list[Any], names: list[str]) -> None:
    legend = axes.legend(
        bars,
        [""] * len(names),
        frameon=False,
        ncols=min(6, len(names)),
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        fontsize=9,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        # Set here so that names are shown unchanged: matplotlib hides labels that begin with "_", and reads "$" as
        # maths.
        text.set_text(name)
        text.set_parse_math(False)
