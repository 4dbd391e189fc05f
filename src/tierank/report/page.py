"""The report of a run: a self-contained HTML file with numbers, charts and a viewer of the ranked lists."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.arrays import Floats
from tierank.display import Html, element, join
from tierank.errors import DataError
from tierank.experiments.runs import Run
from tierank.experiments.store import Cell
from tierank.files import replacing
from tierank.metrics.compare import compare_evaluations
from tierank.metrics.rules import parse_metric
from tierank.metrics.segments import Attribute, cut, look_up
from tierank.report import charts, markup
from tierank.report.explanation import Swap, draw_importances, explain_documents, find_swaps
from tierank.report.tabulate import tabulate_contrasts, tabulate_paper, tabulate_run, tabulate_segments, tabulate_worst
from tierank.report.viewer import RunLists, Titles, make_viewer
from tierank.settings import check_type

# The most learning curves of a system, and the number of groups of queries by size.
_CURVES, _PARTS = 10, 5
# The most segments of an attribute that are drawn.
_SEGMENTS = 12


def write_report(
    run: Run,
    path: str | os.PathLike[str],
    *,
    titles: Titles | None = None,
    by: Mapping[str, Mapping[Hashable, Any]] | None = None,
) -> None:
    """Write the report of a run as one HTML file, which works from disk and loads nothing from the network.

    Parameters
    ----------
    run : Run
        The result of ``cross_validate`` or ``Run.open``.
    path : path
        The file.
    titles : Titles, optional
        Titles of documents: ``Titles.read(path)``, from ``tierank.report.viewer``, reads a CSV file with the columns
        ``query``, ``document`` and ``title``. Default: ids or row numbers are shown.
    by : dict of str to dict, optional
        Attributes of queries, for a section with segments: for each name, a mapping from query ids to values. Default:
        those given to ``compare``.

    Examples
    --------
    >>> import pathlib, tempfile, tierank
    >>> folds = [tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20).split(0.6, 0.2, 0.2)]
    >>> run = tierank.cross_validate(tierank.UMart(n_trees=5), folds)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(run, f"{folder}/report.html")
    ...     "Leaderboard" in pathlib.Path(folder, "report.html").read_text()
    True
    """
    text = make_report(run, titles, by)
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def make_report(run: Run, titles: Titles | None = None, by: Mapping[str, Mapping[Hashable, Any]] | None = None) -> str:
    """The HTML of the page."""
    check_type("run", run, Run, "cross_validate returns one, and tierank.Run.open reads one from its folder")
    if titles is not None:
        check_type("titles", titles, Titles, "Titles.read, from tierank.report.viewer, reads a CSV file")
    if not run.systems:
        expected = "results of at least one system for every fold"
        raise DataError(where=run.folder, expected=expected, got="none yet")
    page = _Page(run, _attributes(run, by))
    metrics = list(dict.fromkeys([page.metric, markup.deepest(run.metrics, "err")]))
    shown = page.lists.encode(metrics, titles)
    swaps = [] if page.rival is None else find_swaps(page.lists, page.metric, page.best, page.rival)
    sections: markup.Sections = [
        ("leaderboard", "Leaderboard", page.leaderboard()),
        ("queries", "Queries", [make_viewer(run, shown)]),
        ("against", f"Against {run.baseline}", page.against() if page.others else []),
        ("where", "Where it is good", page.where()),
        ("segments", "Segments", page.segments() if page.comparison.attributes else []),
        ("learning", "Learning", page.learning()),
        ("features", "Features", page.features(swaps)),
        ("repeat", "Reproduce", page.repeat()),
    ]
    explained = explain_documents(page.lists, swaps)
    data = markup.as_json("lists", shown | {"swaps": [swap.to_dict() for swap in swaps], "explained": explained})
    script = element("script", markup.package_file("viewer.js"))
    return markup.make_page(page.title, page.intro(), [one for one in sections if one[2]], data, script)


class _Page:
    """The data that the sections of the page share."""

    def __init__(self, run: Run, attributes: Sequence[Attribute] = ()) -> None:
        self.run, self.comparison, self.lists = run, run.comparison, RunLists(run)
        if attributes:
            self.comparison = compare_evaluations(self.comparison.evaluations, run.baseline, attributes)
        self.others = [system for system in run.systems if system != run.baseline]
        self.colours = {system: i for i, system in enumerate(run.systems)}
        self.metric = markup.deepest(run.metrics, "ndcg")
        self.best = self.comparison.best(self.metric)[0]
        self.rival = run.baseline if self.best != run.baseline else next(iter(self.others), None)
        self.title = f"{run.plan.data.name}: {len(run.systems)} ranker{'s' * (len(run.systems) > 1)}"

    def intro(self) -> list[Html]:
        """What was run, in one line."""
        run, lists = self.run, self.lists
        counts = [
            f"{len(lists.lengths):,} test queries",
            f"{len(lists.ratings):,} documents",
            f"{run.n_folds} folds" if run.n_folds > 1 else "one test set",
            f"{len(run.seeds)} seeds" if len(run.seeds) > 1 else f"seed {run.seeds[0]}",
            run.plan.created[:10],
        ]
        leaks = run.plan.protocol == "lightgbm"
        words = "Protocol lightgbm leaks: the test data choose the number of trees."
        warning = [element("p", words, class_="warning")] if leaks else []
        return [element("p", " · ".join(part for part in counts if part), class_="facts"), *warning]

    def leaderboard(self) -> list[Html]:
        """The table in the layout of the paper: metrics by cutoff, marks, spread over seeds, best in bold."""
        metrics = markup.by_family(self.run.metrics)
        # The column that it is sorted by stays visible on narrow screens.
        tones = {metric: "sorted" if metric == self.metric else None for metric in metrics}
        names, cutoffs = [], []
        for family, group in groupby(metrics, key=lambda metric: parse_metric(metric)[0]):
            members = list(group)
            names.append(element("th", markup.display(family), scope="colgroup", colspan=len(members)))
            for metric in members:
                k = parse_metric(metric)[1]
                words = {"class_": tones[metric], "data_family": markup.display(family)}
                cutoffs.append(element("th", "all" if k is None else f"@{k}", scope="col", **words))
        head = [element("tr", element("td"), *names), element("tr", element("th", "ranker", scope="col"), *cutoffs)]
        rows = []
        for system in sorted(self.run.systems, key=lambda system: -self.comparison.mean(system, self.metric)):
            tag = [element("small", "baseline")] if system == self.run.baseline and self.others else []
            cells = [element("th", markup.key(self.colours[system]), system, *tag, scope="row")]
            for metric in metrics:
                mark, spread = self.comparison.mark(system, metric), self.run.spread(system, metric)
                is_best = system in self.comparison.best(metric)
                number = element("b" if is_best else "span", f"{self.comparison.mean(system, metric):.4f}")
                sign = element("sup", mark, class_={"*+": "up", "*-": "down"}.get(mark))
                small = [] if math.isnan(spread) else [element("small", f"±{spread:.4f}")]
                cells.append(element("td", number, sign, *small, class_=tones[metric]))
            rows.append(element("tr", *cells))
        whole = element("table", element("thead", *head), element("tbody", *rows), class_="leaderboard")
        spread_words = " ±: standard deviation over seeds." * (len(self.run.seeds) > 1)
        notes = [
            self.comparison.describe_queries(),
            *([self.comparison.describe_marks()] if self.others else []),
            f"Sorted by {markup.display(self.metric)}. Best mean in bold.{spread_words}",
            f"Rule {self.comparison.rule.describe()}",
        ]
        parts = [element("div", whole, class_="scroll"), *map(markup.note, notes)]
        if self.run.plan.paper:
            found = tabulate_paper(self.run, all_rows=True) or [tabulate_run(self.run)]
            parts.append(markup.folded("Compared with the paper", *map(markup.from_table, found)))
        return parts

    def against(self) -> list[Html]:
        """Relative improvement over the baseline, wins and losses, and the numbers of the tests."""
        comparison, baseline = self.comparison, self.run.baseline
        metrics = [m for m in markup.by_family(self.run.metrics) if comparison.mean(baseline, m) > 0]
        gains = {s: 100 * np.array([comparison.improvement(s, m) for m in metrics]) for s in self.others}
        words = (
            f"Mean of each metric over that of {baseline}, in percent. Thin lines: 95% intervals over queries"
            " (Fieller), which exclude 0 exactly if the t-test before adjustment has p < 0.05."
        )
        improvements = charts.bars(
            "Relative improvement",
            words,
            [markup.display(m) for m in metrics],
            {s: numbers[:, 0].tolist() for s, numbers in gains.items()},
            intervals={s: numbers[:, 1:].tolist() for s, numbers in gains.items()},
            form="+.2f",
            unit="%",
            colours=self.colours,
        )
        multiples, metric = [], markup.display(self.metric)
        base = comparison.evaluations[baseline].values(self.metric)
        differences = {s: comparison.evaluations[s].values(self.metric) - base for s in self.others}
        limits = np.concatenate(list(differences.values()))  # one scale for all charts
        for system, values in differences.items():
            one = comparison.contrasts[system][self.metric]
            counts = f"{one.wins:,} queries better, {one.ties:,} equal, {one.losses:,} worse"
            multiples.append(
                charts.sorted_differences(system, f"{counts} in {metric}", values, limits, colour=self.colours[system])
            )
        return [
            join([self._legend(self.others), improvements]),
            element("h3", "Wins and losses, query by query"),
            element("div", *multiples, class_="multiples"),
            markup.folded("Differences, intervals and tests", markup.from_table(tabulate_contrasts(comparison))),
        ]

    def _legend(self, systems: Sequence[str]) -> Html:
        return markup.legend((system, self.colours[system]) for system in systems)

    def where(self) -> list[Html]:
        """Quality by kind of query, and the mean rank of the documents of each tier."""
        lists = self.lists
        relevant = np.add.reduceat((lists.ratings > 0).astype(np.int64), lists.offsets[:-1])
        drawn = []
        for title, sizes in (
            ("By documents in the query", lists.lengths),
            ("By relevant documents in the query", relevant),
        ):
            codes, labels = cut(sizes, _PARTS)
            words = f"Mean {markup.display(self.metric)} of queries of a size."
            drawn.append(self._by_group(title, words, labels, codes))
        return [self._legend(self.run.systems), element("div", *drawn, self._by_tier(), class_="pairs")]

    def _by_group(self, title: str, words: str, labels: Sequence[str], codes: NDArray[np.int64]) -> Html:
        """The mean of the metric over the queries of each group, by the code of each query."""
        shown, series = labels[:_SEGMENTS], {}
        for system in self.run.systems:
            values = self.comparison.evaluations[system].per_query[self.metric]
            series[system] = [_mean(values[codes == i]) for i in range(len(shown))]
        counts = ", ".join(f"{label}: {(codes == i).sum():,}" for i, label in enumerate(shown))
        left = f" The first {_SEGMENTS} of {len(labels)} segments." * (len(labels) > _SEGMENTS)
        words = f"{words} Queries of each: {counts}.{left}"
        return charts.bars(title, words, shown, series, colours=self.colours, width=500)

    def _by_tier(self) -> Html:
        """Mean relative rank of the documents of a tier, from 0 (the top of the list) to 100% (its end)."""
        lists = self.lists
        n_tiers = min(int(lists.tiers.max()) + 1, 8)
        lengths = np.repeat(lists.lengths, lists.lengths)
        series = {}
        for system in self.run.systems:
            share = 100 * (lists.ranks[system] - 1) / np.maximum(lengths - 1, 1)
            series[system] = [_mean(share[(lengths > 1) & (lists.tiers == tier)]) for tier in range(n_tiers)]
        labels = [f"tier {tier + 1}" for tier in range(n_tiers)]
        words = (
            "Where the documents of each tier are on average: 0% is the top of the list, 100% its end."
            " Tier 1 has the highest rating of its query."
        )
        return charts.bars("By tier", words, labels, series, form=".1f", unit="%", colours=self.colours, width=500)

    def segments(self) -> list[Html]:
        """Means of each segment, the differences to the baseline with their tests, and the worst ones."""
        words = f"Mean {markup.display(self.metric)}."
        drawn = [
            self._by_group(f"By {one.name}", words, list(one.values), one.codes) for one in self.comparison.attributes
        ]
        parts = [self._legend(self.run.systems), element("div", *drawn, class_="pairs")]
        if self.others:
            worst = tabulate_worst(self.comparison)
            parts += [element("h3", worst.title), markup.from_table(worst)]
            parts.append(markup.folded("All segments", markup.from_table(tabulate_segments(self.comparison))))
        return parts

    def learning(self) -> list[Html]:
        """A curve for each fold and seed."""
        drawn = [chart for system in self.run.systems if (chart := self._curves(system)) is not None]
        words = "Metric on validation data after each round or epoch; the dot is the one that was kept."
        return [markup.note(words), element("div", *drawn, class_="multiples")] if drawn else []

    def _curves(self, system: str) -> Html | None:
        series: dict[str, tuple[Floats, Floats]] = {}
        kept: dict[str, tuple[float, float]] = {}
        metric = None
        places = [(fold, seed) for fold in range(self.run.n_folds) for seed in self.run.seeds_of(system)]
        for fold, seed in places[:_CURVES]:
            result = self.run.store.result(Cell(system, fold, seed))
            history, best = result.get("history") or [], result.get("best") or {}
            metric = metric or next((name for name in (history[0] if history else {}) if name in best), None)
            values = np.array([row.get(metric, math.nan) for row in history], float)
            if metric is None or len(values) < 2 or not np.isfinite(values).any():
                continue
            name = f"fold {fold + 1}, seed {seed}"
            series[name] = (np.arange(1.0, len(values) + 1), values)
            place = charts.find_kept(values, best.get(metric, math.nan))
            if place is not None:
                kept[name] = (place + 1.0, float(values[place]))
        if not series or metric is None:
            return None
        words = markup.display(metric) + f", {len(series)} of {len(places)} runs" * (len(places) > len(series))
        colours = dict.fromkeys(series, self.colours[system])
        return charts.lines(system, words, series, x_label="round", colours=colours, marks=kept)

    def features(self, swaps: Sequence[Swap]) -> list[Html]:
        """Importances and explained swaps."""
        charts_found = list(draw_importances(self.run, self.metric))
        parts = [element("div", *charts_found, class_="multiples")] if charts_found else []
        if swaps:
            words = (
                f"Why {self.best} puts one document above another where {self.rival} does the opposite, in the queries"
                " of the first fold where it loses and gains most."
            )
            drawn = element("div", *(swap.draw() for swap in swaps), class_="multiples")
            parts += [element("h3", "Swaps explained"), markup.note(words), drawn]
        return parts

    def repeat(self) -> list[Html]:
        """Settings, seeds, data and versions."""
        plan = self.run.plan
        facts = [
            ["data", plan.data.name],
            ["protocol", plan.protocol],
            ["rule", self.run.rule.name],
            ["metrics", ", ".join(self.run.metrics)],
            ["seeds", ", ".join(map(str, self.run.seeds))],
            ["folds", str(self.run.n_folds)],
            ["created", plan.created],
            *([name, version] for name, version in plan.versions.items()),
        ]
        parts = [markup.grid(["", "value"], facts, class_="words")]
        if plan.data.description:
            rows = [[name.replace("_", " "), _plain(value)] for name, value in plan.data.description.items()]
            parts.append(markup.folded("Data", markup.grid(["", "value"], rows, class_="words")))
        for system in self.run.systems:
            described, seconds = plan.systems[system], self.run.cpu_seconds(system)
            settings = described.get("settings") or {name: one for name, one in described.items() if name != "ranker"}
            rows = [["ranker", str(described.get("ranker", "scores of another tool"))]]
            rows += [] if math.isnan(seconds) else [["CPU seconds of a fit", f"{seconds:.1f}"]]
            rows += [[name, _plain(value)] for name, value in settings.items()]
            parts.append(markup.folded(f"Settings of {system}", markup.grid(["", "value"], rows, class_="words")))
        return parts


def _attributes(run: Run, by: Mapping[str, Mapping[Hashable, Any]] | None) -> tuple[Attribute, ...]:
    """The attributes of queries: as given, or as stored in the run."""
    if by is not None:
        return look_up([query for test in run.tests for query in test.query_ids.tolist()], by)
    kept, n_queries = run.plan.attributes, sum(test.n_queries for test in run.tests)
    if any(len(one["codes"]) != n_queries for one in kept):
        raise DataError(where=run.folder, expected=f"attributes of its {n_queries} queries", got="another number")
    return tuple(Attribute(one["name"], tuple(one["values"]), np.array(one["codes"], np.int64)) for one in kept)


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
