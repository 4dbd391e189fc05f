"""What features do in a run, where its models and data are at hand: importances, and swaps of documents explained."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tierank.dataset import RankingDataset
from tierank.experiments.runs import Run
from tierank.explain import Explanation, explain_pair
from tierank.metrics import Judge
from tierank.rankers import Ranker
from tierank.report import charts
from tierank.report.markup import Html
from tierank.report.metric_names import display
from tierank.report.viewer import Lists

# Seconds that the importances of all systems may take, features that are shown, and how often each is shuffled.
_SECONDS, _FEATURES, _REPEATS = 8.0, 15, 3
# Queries of which a swap is explained, how far down the lists it is looked for, and features that are named.
_SWAPS, _DEEP, _NAMED = 6, 30, 8


def draw_importances(run: Run, metric: str) -> Iterator[Html]:
    """A chart for each system that has a model: what the metric loses on the first fold when a feature is shuffled."""
    data = run.read_test(0)
    rankers = {system: run.ranker(system, 0, run.seeds_of(system)[0]) for system in run.systems}
    at_hand = {system: ranker for system, ranker in rankers.items() if ranker is not None}
    if data is None:
        return
    for system, ranker in at_hand.items():
        part = _affordable(ranker, data, _SECONDS / len(at_hand))
        if part is not None:
            yield _draw_importance(system, ranker, part, data, metric, run)


def _draw_importance(
    system: str, ranker: Ranker, part: RankingDataset, data: RankingDataset, metric: str, run: Run
) -> Html:
    losses = ranker.permutation_importance(part, metric, run.rule, n_repeats=_REPEATS)
    means = losses.mean(axis=1)
    top = np.argsort(-means, kind="stable")[:_FEATURES]
    names = data.feature_names or [f"feature {j + 1}" for j in range(data.n_features)]
    words = (
        f"Loss of mean {display(metric)} when a feature is shuffled: {_REPEATS} times, over {part.n_queries:,} of the"
        f" {data.n_queries:,} test queries of the first fold. Thin lines: standard deviations."
    )
    return charts.ranked_bars(
        f"Importance, {system}",
        words,
        [names[j] for j in top],
        means[top].tolist(),
        losses[top].std(axis=1, ddof=1).tolist(),
        value_label="loss",
    )


def _affordable(ranker: Ranker, data: RankingDataset, seconds: float) -> RankingDataset | None:
    """As many test queries as importances can be measured on in the time; None where that is too few to say much."""
    for _ in range(2):  # what is loaded or compiled on the way counts in no estimate
        start = time.perf_counter()
        ranker.predict(data)
    each = (time.perf_counter() - start) / data.n_queries
    n_predictions = max(1, int(ranker.model_.used_features(data.n_features).sum())) * _REPEATS
    n_queries = min(data.n_queries, int(seconds / (each * n_predictions)))
    if n_queries < min(10, data.n_queries):
        return None
    part = data.select(np.unique(np.linspace(0, data.n_queries - 1, n_queries).astype(int)))
    return None if Judge(part).n_empty == part.n_queries else part


@dataclass(frozen=True)
class Swap:
    """Two documents of a query (by its place among the test queries) that two systems order differently."""

    query: int
    query_id: str
    found: Explanation

    @property
    def rows(self) -> list[tuple[str, float]]:
        """The features that add most, and all others in one row: they sum to the difference of the scores."""
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
        """For the script of the page; six digits are more than it shows."""
        return {
            "query": self.query,
            "above": self.found.above,
            "below": self.found.below,
            "difference": float(f"{self.found.difference:.6g}"),
            "rows": [[name, float(f"{value:.6g}")] for name, value in self.rows],
        }


def find_swaps(lists: Lists, metric: str, system: str, rival: str) -> list[Swap]:
    """Swaps in the queries of the first fold where a system loses and gains most, and why its model made them."""
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
            found = explain_pair(ranker, data, data.query_ids[query], *pair)
            swaps.append(Swap(query, lists.query_ids[query], found))
    return swaps


def _largest_swap(lists: Lists, query: int, system: str, rival: str) -> tuple[int, int] | None:
    """The two documents, by row number from 1, whose order changes DCG most; None if none changed places."""
    own = slice(lists.offsets[query], lists.offsets[query + 1])
    ratings, mine, theirs = lists.ratings[own], lists.ranks[system][own], lists.ranks[rival][own]
    near = np.flatnonzero(np.minimum(mine, theirs) <= _DEEP)
    a, b = (grid.ravel() for grid in np.meshgrid(near, near, indexing="ij"))
    swapped = (mine[a] < mine[b]) & (theirs[a] > theirs[b]) & (ratings[a] != ratings[b])
    if not swapped.any():
        return None
    gains, discounts = np.exp2(ratings - ratings.max()), 1 / np.log2(1.0 + mine)
    weights = np.where(swapped, np.abs(gains[a] - gains[b]) * np.abs(discounts[a] - discounts[b]), -1.0)
    pick = int(weights.argmax())
    return int(a[pick]) + 1, int(b[pick]) + 1
