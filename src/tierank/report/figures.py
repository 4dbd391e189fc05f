"""Figures by matplotlib: files as PNG, SVG or PDF, and plots on axes for notebooks and papers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tierank.data.dataset import RankingDataset, check_dataset
from tierank.data.matching import check_fitted
from tierank.errors import DataError, ParameterError
from tierank.extras import needing, require
from tierank.files import replacing
from tierank.metrics.compare import Comparison
from tierank.metrics.rules import as_metric_of
from tierank.rankers.base import FITTED, Ranker, check_ranker
from tierank.rankers.explain import Explanation, by_name, gains_by_column, most_important
from tierank.report.charts import find_kept
from tierank.report.tabulate import sums_of
from tierank.settings import as_choice, as_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Dark to light, distinguishable with all kinds of colour vision.
_COLOURS = ("#1f4e5f", "#d1603d", "#7a9e7e", "#e0b252", "#6b4e71", "#9aa5b1", "#3d8b8b", "#b5838d")
# The formats of figures, and the metadata field of each that holds the date.
_DATES: dict[str, tuple[str, ...]] = {".png": (), ".svg": ("Date",), ".pdf": ("CreationDate",)}
_BETTER, _WORSE, _INK, _DARK, _GRID = "#0b6e69", "#c2643a", "#2b2b2b", "#1d2425", "#dddddd"
# The size of figures with a bar per name, in inches: width with short names, and more for each character of a long one.
_WIDTH, _SHORT, _CHARACTER = 7.0, 25, 0.09
# Characters of a name that are shown.
_SHOWN = 80
# The most queries that importances are measured on, and the number of shuffles of each feature.
_QUERIES, _REPEATS = 200, 3


def draw_improvement(comparison: Comparison, paths: Sequence[Path]) -> None:
    """The figure of the paper: the gain of each system over the baseline in each metric, in percent of the baseline.

    A metric in which the baseline is 0 has no bars. Lines on the bars are 95% intervals of the gain, by Fieller's
    theorem; a bar has none where the baseline is not significantly above 0.
    """
    for path in paths:
        check_figure(path)
    figure = improvement_figure(comparison)
    for path in paths:
        save_figure(figure, path)


def _width(names: Iterable[str]) -> float:
    """The width of a figure with a bar per name: long names get more room, so that the bars keep theirs."""
    longest = max((len(_as_label(name)) for name in names), default=0)
    return _WIDTH + _CHARACTER * max(0, longest - _SHORT)


def _as_label(name: str) -> str:
    """A name as it is shown beside its bar; a very long one without its middle.

    >>> _as_label("x" * 50 + "y" * 50) == "x" * 38 + " ... " + "y" * 37
    True
    """
    end = (_SHOWN - 5) // 2
    return name if len(name) <= _SHOWN else f"{name[: _SHOWN - 5 - end]} ... {name[-end:]}"


def _as_tick(name: str) -> str:
    """A name as a label of an axis, where a dollar sign would begin mathematics."""
    return _as_label(name).replace("$", r"\$")


def check_figure(path: Path) -> None:
    """Raise an error if no figure can be written to this path; to be called before the work."""
    if path.suffix not in _DATES:
        raise ParameterError(where=path, expected="a name that ends in .png, .svg or .pdf")
    require(f"drawing {path.name}", "matplotlib")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the ending of the path names, without the date."""
    with replacing(path) as fresh:
        figure.savefig(fresh, format=path.suffix[1:], dpi=160, metadata=dict.fromkeys(_DATES[path.suffix]))


def improvement_figure(comparison: Comparison) -> Figure:
    """The figure that ``draw_improvement`` writes."""
    from matplotlib.figure import Figure

    systems = list(comparison.contrasts)
    if not systems:
        raise ParameterError(expected="at least two systems to compare", got="one")
    metrics = comparison.metrics
    figure = Figure(
        figsize=(max(6.0, 0.9 * len(metrics) + 0.12 * len(metrics) * len(systems)), 3.8), layout="constrained"
    )
    axes = figure.subplots()
    width, bars = 0.8 / len(systems), []
    for i, system in enumerate(systems):
        heights, lows, highs = 100 * np.array([comparison.improvement(system, metric) for metric in metrics]).T
        place = np.arange(len(metrics)) + (i - (len(systems) - 1) / 2) * width
        errors = np.nan_to_num(np.maximum([heights - lows, highs - heights], 0))
        style = {"ecolor": _INK, "elinewidth": 0.8, "capsize": 0}
        colour = _COLOURS[i % len(_COLOURS)]
        bars.append(axes.bar(place, heights, 0.9 * width, yerr=errors, error_kw=style, color=colour))
    axes.set_xticks(np.arange(len(metrics)), [metric.upper() for metric in metrics])
    axes.set_ylabel(f"% over {comparison.baseline}, rule {comparison.rule.name}", color=_INK, parse_math=False)
    # A line at 0, thin grid lines behind the bars, and no frame.
    axes.axhline(0, color=_INK, linewidth=0.8)
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(length=0, colors=_INK)
    legend = axes.legend(
        bars,
        [""] * len(systems),
        frameon=False,
        ncols=min(6, len(systems)),
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        fontsize=9,
    )
    for text, name in zip(legend.get_texts(), systems, strict=True):
        # Set here so that names are shown unchanged: matplotlib hides labels that begin with "_", and reads "$" as
        # maths.
        text.set_text(name)
        text.set_parse_math(False)
    return figure


def draw_explanation(found: Explanation, path: Path, n: int | None = None) -> None:
    """Bars of the contributions to the difference of two scores, as a .png, .svg or .pdf file."""
    check_figure(path)
    from matplotlib.figure import Figure

    named = [(found.features[j], float(found.contributions[j])) for j in found.top(n)]
    names, values = zip(*[*named, *sums_of(found, n), ("score difference", found.difference)], strict=True)
    figure = Figure(figsize=(_width(names), 1.2 + 0.28 * len(names)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(names))[::-1]
    colours = [_DARK if i == len(names) - 1 else _BETTER if value >= 0 else _WORSE for i, value in enumerate(values)]
    axes.barh(places, values, color=colours, height=0.7)
    axes.set_yticks(places, [_as_tick(name) for name in names])
    axes.axvline(0, color=_DARK, linewidth=0.8)
    title = f"Query {found.query!s}: {found.above} above {found.below}"
    # Over the whole figure: the bars may be narrower than the title.
    figure.suptitle(_as_tick(title), x=0.01, horizontalalignment="left", fontsize=11)
    axes.set_xlabel("contribution to the difference of the scores")
    axes.spines[["top", "right", "left"]].set_visible(False)
    save_figure(figure, path)


def plot_history(ranker: Ranker, metric: str | None = None, *, axes: Axes | None = None) -> Axes:
    """Draw a metric on the validation data by round or epoch; a dot marks the one that was kept.

    Parameters
    ----------
    ranker : Ranker
        A ranker that was fitted with validation data.
    metric : str, optional
        A name in ``ranker.history_``. Default: the first one of ``select_by``.
    axes : matplotlib.axes.Axes, optional
        Where to draw. Default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> import tierank
    >>> from matplotlib.figure import Figure
    >>> train, valid = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20).split(0.7, 0.3)
    >>> ranker = tierank.UMart(n_trees=5).fit(train, valid=valid)
    >>> plot_history(ranker, "ndcg@10", axes=Figure().subplots()).get_xlabel()
    'round'
    """
    check_ranker("ranker", ranker, FITTED)
    check_fitted(ranker)
    names = [name for name in dict.fromkeys(name for row in ranker.history_ for name in row) if name != "kept"]
    if metric is None:
        metric = next((name for name in names if name in ranker.best_), None)
    if metric is None:
        raise DataError(argument="ranker", expected="one that was fitted with validation data", got="no history")
    metric = as_metric_of("history", metric, names)
    values = np.array([row.get(metric, np.nan) for row in ranker.history_], float)
    axes = _axes(axes)
    rounds = np.arange(1, len(values) + 1)
    axes.plot(rounds, values, color=_BETTER, linewidth=1.6)
    kept = find_kept(values, ranker.best_.get(metric, np.nan))
    if kept is not None:
        axes.plot(rounds[kept], values[kept], "o", color=_WORSE, label=f"kept: {values[kept]:.4f}")
        axes.legend(frameon=False)
    axes.set_xlabel("round")
    axes.set_ylabel(metric, parse_math=False)
    axes.set_title(type(ranker).__name__, loc="left")
    return axes


def plot_importance(
    ranker: Ranker, data: RankingDataset | None = None, *, n: int = 15, axes: Axes | None = None
) -> Axes:
    """Draw the most important features: the gain of the splits of trees, or the drop of NDCG@10 if one is shuffled.

    Parameters
    ----------
    ranker : Ranker
        A fitted ranker.
    data : RankingDataset, optional
        Data with ratings: draws permutation importances, measured three times on at most 200 evenly spaced queries.
        Needed for rankers without trees.
    n : int, default 15
        Number of features.
    axes : matplotlib.axes.Axes, optional
        Where to draw. Default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> import tierank
    >>> from matplotlib.figure import Figure
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> plot_importance(tierank.UMart(n_trees=5).fit(data), n=3, axes=Figure().subplots()).get_xlabel()
    'gain'
    """
    check_ranker("ranker", ranker, FITTED)
    check_fitted(ranker)
    if data is not None:
        check_dataset("data", data)
    as_whole("n", n)
    if data is None:
        label, errors = "gain", None
        top = dict(reversed(most_important(gains_by_column(ranker), n).items()))  # the first bar is the lowest
    else:
        chosen = np.unique(np.linspace(0, data.n_queries - 1, min(data.n_queries, _QUERIES)).astype(int))
        label = f"drop of NDCG@10 if shuffled, {len(chosen)} queries"
        losses = ranker.permutation_importance(data.select(chosen), n_repeats=_REPEATS)
        measured = dict(reversed(most_important(by_name(losses, data), n).items()))
        top = {name: float(one.mean()) for name, one in measured.items()}
        errors = [float(one.std(ddof=1)) for one in measured.values()]
    if not top:
        expected = f"data with ratings, as {type(ranker).__name__} has no trees whose gain could be drawn"
        raise DataError(argument="data", expected=expected, got="None")
    axes = _axes(axes, (_width(top), 1.15 + 0.19 * len(top)))
    places = np.arange(len(top))
    axes.barh(places, list(top.values()), xerr=errors, color=_BETTER, height=0.7)
    axes.set_yticks(places, [_as_tick(name) for name in top])
    axes.set_xlabel(label)
    axes.set_title(type(ranker).__name__, loc="left")
    return axes


def plot_wins(
    comparison: Comparison, system: str | None = None, metric: str | None = None, *, axes: Axes | None = None
) -> Axes:
    """Draw the difference to the baseline of each query, the largest loss first.

    Parameters
    ----------
    comparison : Comparison
        The result of ``compare``.
    system : str, optional
        A system other than the baseline. Default: the first one.
    metric : str, optional
        A name of ``comparison.metrics``. Default: the first one.
    axes : matplotlib.axes.Axes, optional
        Where to draw. Default: new axes.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Examples
    --------
    >>> import tierank
    >>> from matplotlib.figure import Figure
    >>> data = tierank.RankingDataset([[0.0]] * 6, [1, 0, 0, 2, 0, 1], qid=[1, 1, 2, 2, 3, 3])
    >>> comparison = tierank.compare(data, {"old": [1, 2, 2, 1, 1, 2], "new": [2, 1, 1, 2, 1, 2]}, metrics="ndcg@2")
    >>> plot_wins(comparison, axes=Figure().subplots()).get_xlabel()
    'queries: 2 better, 1 equal, 0 worse'
    """
    if not isinstance(comparison, Comparison):
        raise ParameterError(argument="comparison", expected="what compare returns", got=type(comparison).__name__)
    contrasts = comparison.contrasts
    system = next(iter(contrasts)) if system is None else as_choice("system", system, contrasts)
    metric = comparison.metrics[0] if metric is None else as_metric_of("comparison", metric, comparison.metrics)
    ours, base = (comparison.evaluations[s].values(metric) for s in (system, comparison.baseline))
    differences = np.sort(ours - base)
    contrast = contrasts[system][metric]
    axes = _axes(axes)
    places = np.arange(len(differences))
    colours = [_BETTER if difference > 0 else _WORSE for difference in differences]
    axes.vlines(places, 0, differences, colors=colours, linewidth=max(0.6, min(4.0, 300 / len(differences))))
    axes.axhline(0, color=_INK, linewidth=0.8)
    axes.set_xlabel(f"queries: {contrast.wins} better, {contrast.ties} equal, {contrast.losses} worse")
    axes.set_ylabel(f"{metric}, difference to {comparison.baseline}", parse_math=False)
    axes.set_title(f"{system}: {contrast.difference:+.4f}, {contrast.verdict}", loc="left", parse_math=False)
    return axes


def _axes(axes: Any, size: tuple[float, float] = (7.0, 4.0)) -> Any:
    if axes is None:
        with needing("a plot"):
            import matplotlib.pyplot as plt

        axes = plt.subplots(figsize=size, layout="constrained")[1]
    if not hasattr(axes, "spines"):
        fix = "plt.subplots() returns them" if not isinstance(axes, np.ndarray) else "give one of them"
        raise ParameterError(argument="axes", expected="matplotlib axes", got=type(axes).__name__, fix=fix)
    axes.spines[["top", "right"]].set_visible(False)
    return axes
