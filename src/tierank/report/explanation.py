"""Feature importances and explained swaps of documents, if the models and data of a run are available."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from tierank.data.dataset import RankingDataset
from tierank.display import Html
from tierank.errors import ParameterError
from tierank.experiments.runs import Run
from tierank.rankers.base import Ranker
from tierank.rankers.explain import Explanation, by_name, explain_pair, explain_rows, gains_by_column, most_important
from tierank.report import charts
from tierank.report.markup import display
from tierank.report.viewer import RunLists

# Queries that permutation importances are measured on, features that are shown, and shuffles of each feature.
_SAMPLE, _FEATURES, _REPEATS = 10, 15, 2
# Queries whose documents are explained, and features that are named.
_SWAPS, _NAMED = 4, 8
# Documents of a list that the viewer shows first: swaps are searched among them.
_SHOWN = 10


def draw_importances(run: Run, metric: str) -> Iterator[Html]:
    """A chart for each system with a model: the gain of trees, or permutation importances for others."""
    data = run.read_test(0)
    for system in run.systems:
        ranker, title = run.ranker(system, 0, run.seeds_of(system)[0]), f"Importance, {system}"
        gains = None if ranker is None else gains_by_column(ranker)
        if gains:
            whole = max(sum(gains.values()), np.finfo(np.float64).tiny)
            top = {name: 100 * gain / whole for name, gain in most_important(gains, _FEATURES).items()}
            words = "Share of each feature in the gain of all splits, in percent. Model of the first fold and seed."
            values = list(top.values())
            yield charts.ranked_bars(title, words, list(top), values, form=".1f", value_label="% of gain")
        elif ranker is not None and data is not None:
            # Of the queries with a rating above 0 some that are evenly spaced.
            rated = np.flatnonzero(np.fmax.reduceat(data.ratings, data.offsets[:-1]) > 0)
            rated = rated if len(rated) else np.arange(data.n_queries)
            places = np.unique(np.linspace(0, len(rated) - 1, min(len(rated), _SAMPLE)).astype(int))
            part = data.select(rated[places])
            losses = ranker.permutation_importance(part, metric, run.rule, n_repeats=_REPEATS)
            measured = most_important(by_name(losses, part), _FEATURES)
            words = (
                f"Loss of mean {display(metric)} when a feature is shuffled: {_REPEATS} times, over {part.n_queries:,}"
                f" of the {data.n_queries:,} test queries of the first fold. Thin lines: standard deviations."
            )
            means = [float(one.mean()) for one in measured.values()]
            spreads = [float(one.std(ddof=1)) for one in measured.values()]
            yield charts.ranked_bars(title, words, list(measured), means, spreads, value_label="loss")


def explain_documents(lists: RunLists, swaps: Sequence[Swap]) -> dict[str, Any]:
    """For the queries of the swaps and each system with a model: the contributions to the documents shown first.

    Contributions are relative to one document of the list, so for any two documents their difference explains the
    difference of scores: exactly for trees, and for networks along the path through that document.
    """
    run, data = lists.run, lists.run.read_test(0)
    explained: dict[str, Any] = {}
    if data is None:
        return explained
    for system in run.systems:
        ranker = run.ranker(system, 0, run.seeds_of(system)[0])
        if ranker is not None:
            with suppress(ParameterError):  # a model that cannot be explained
                explained[system] = {str(s.query): _explained(lists, data, ranker, system, s.query) for s in swaps}
    return explained


def _explained(lists: RunLists, data: RankingDataset, ranker: Ranker, system: str, query: int) -> dict[str, Any]:
    own = slice(lists.offsets[query], lists.offsets[query + 1])
    near = np.flatnonzero(lists.best_ranks[own] <= _SHOWN)
    reference = near[lists.ranks[system][own][near].argmin()]
    others = near[near != reference]
    explained = explain_rows(ranker, data.select([query]), others, np.full(len(others), reference))
    names = explained[0].features if explained else ()
    values = np.zeros((len(near), len(names) + 1))
    for i, one in zip(np.searchsorted(near, others), explained, strict=True):
        values[i] = [*one.contributions, one.rest]
    top = np.argsort(-np.ptp(values[:, :-1], axis=0), kind="stable")[:_NAMED] if explained else np.empty(0, int)
    rest = values.sum(axis=1) - values[:, top].sum(axis=1)
    rows = np.column_stack([values[:, top], rest])
    return {
        "rows": lists.row[own][near].tolist(),
        "features": [*(names[j] for j in top), "all others"],
        "values": [[float(f"{value:.6g}") for value in row] for row in rows],
    }


@dataclass(frozen=True)
class Swap:
    """Two documents of a query (by its index among the test queries) that two systems order differently."""

    query: int
    query_id: str
    pair: tuple[int, int]
    found: Explanation

    @property
    def rows(self) -> list[tuple[str, float]]:
        """The features that contribute most, and all others in one row; they sum to the difference of the scores."""
        found, top = self.found, self.found.top(_NAMED)
        named = [(found.features[j], float(found.contributions[j])) for j in top]
        return [*named, ("all others", found.difference - sum(value for _, value in named))]

    def draw(self) -> Html:
        """The contributions as a chart."""
        names, values = zip(*self.rows, strict=True)
        title = f"Query {self.query_id}: {self.found.above} above {self.found.below}"
        words = f"The scores differ by {self.found.difference:+.4f}; the bars sum to it."
        return charts.ranked_bars(title, words, names, values, value_label="contribution")

    def to_dict(self) -> dict[str, Any]:
        """Data for the script of the page, with six digits, which is more than it shows."""
        return {
            "query": self.query,
            "above": self.found.above,
            "below": self.found.below,
            "above_row": self.pair[0],
            "below_row": self.pair[1],
            "difference": float(f"{self.found.difference:.6g}"),
            "rows": [[name, float(f"{value:.6g}")] for name, value in self.rows],
        }


def find_swaps(lists: RunLists, metric: str, system: str, rival: str) -> list[Swap]:
    """Swaps in the queries of the first fold where a system loses and gains most, and why its model made them.

    None if its model cannot be explained, such as trees with linear leaves.
    """
    run = lists.run
    ranker, data = run.ranker(system, 0, run.seeds_of(system)[0]), run.read_test(0)
    if ranker is None or data is None:
        return []
    gains = lists.values(system)[metric] - lists.values(rival)[metric]
    inside = np.flatnonzero((lists.fold == 0) & np.isfinite(gains))
    order = inside[np.argsort(gains[inside], kind="stable")].tolist()
    swaps = []
    for query in dict.fromkeys([*order[: _SWAPS // 2], *order[::-1][: _SWAPS // 2]]):
        pair = _largest_swap(lists, query, system, rival)
        if pair is not None:
            try:
                explanation = explain_pair(ranker, data, data.query_ids[query], *pair)
            except ParameterError:
                return []
            swaps.append(Swap(query, lists.query_ids[query], pair, explanation))
    return swaps


def _largest_swap(lists: RunLists, query: int, system: str, rival: str) -> tuple[int, int] | None:
    """The two documents, by row number from 1, whose swap changes DCG most; None if none changed places."""
    rows = slice(lists.offsets[query], lists.offsets[query + 1])
    ratings, mine, theirs = lists.ratings[rows], lists.ranks[system][rows], lists.ranks[rival][rows]
    near = np.flatnonzero((np.minimum(mine, theirs) <= _SHOWN) & ~np.isnan(ratings))
    a, b = (grid.ravel() for grid in np.meshgrid(near, near, indexing="ij"))
    swapped = (mine[a] < mine[b]) & (theirs[a] > theirs[b]) & (ratings[a] != ratings[b])
    if not swapped.any():
        return None
    gains, discounts = np.exp2(ratings - np.nanmax(ratings)), 1 / np.log2(1.0 + mine)
    weights = np.where(swapped, np.abs(gains[a] - gains[b]) * np.abs(discounts[a] - discounts[b]), -1.0)
    pick = int(weights.argmax())
    return int(a[pick]) + 1, int(b[pick]) + 1
