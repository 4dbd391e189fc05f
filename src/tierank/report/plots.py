"""Plots on matplotlib axes, for notebooks and papers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tierank.dataset import RankingDataset, check_dataset
from tierank.errors import DataError, ParameterError
from tierank.evaluation import Comparison
from tierank.extras import needing
from tierank.rankers import FITTED, Ranker, check_ranker
from tierank.report.charts import find_kept
from tierank.report.figures import as_tick, bars_width
from tierank.settings import as_choice, as_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BETTER, _WORSE, _INK = "#0b6e69", "#c2643a", "#2b2b2b"
# The most queries that importances are measured on, and the number of shuffles of each feature.
_QUERIES, _REPEATS = 200, 3


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
    ranker.check_fitted()
    names = [name for name in dict.fromkeys(name for row in ranker.history_ for name in row) if name != "kept"]
    if metric is None:
        metric = next((name for name in names if name in ranker.best_), None)
    if metric is None:
        raise DataError("nothing to draw: expected a ranker that was fitted with validation data")
    metric = as_choice("metric of this history", metric, names)
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
    ranker.check_fitted()
    if data is not None:
        check_dataset("data", data)
    as_whole("n", n)
    names, values = ranker.named_importances()
    label, errors = "gain", None
    if data is not None:
        chosen = np.unique(np.linspace(0, data.n_queries - 1, min(data.n_queries, _QUERIES)).astype(int))
        losses = ranker.permutation_importance(data.select(chosen), n_repeats=_REPEATS)
        names = list(data.feature_names or (f"feature {j}" for j in range(1, data.n_features + 1)))
        values, errors = losses.mean(axis=1), losses.std(axis=1, ddof=1)
        label = f"drop of NDCG@10 if shuffled, {len(chosen)} queries"
    elif not names:
        raise DataError(
            argument="data",
            expected=f"data with ratings, as {type(ranker).__name__} has no trees whose gain could be drawn",
            got="None",
        )
    top = np.argsort(-values, kind="stable")[:n][::-1]
    axes = _axes(axes, (bars_width(names[j] for j in top), 1.15 + 0.19 * len(top)))
    places = np.arange(len(top))
    axes.barh(places, values[top], xerr=None if errors is None else errors[top], color=_BETTER, height=0.7)
    axes.set_yticks(places, [as_tick(names[j]) for j in top])
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
    metric = comparison.metrics[0] if metric is None else metric
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
