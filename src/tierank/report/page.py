"""The report of a run: a self-contained HTML file with numbers, charts and a viewer of the ranked lists."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierank.errors import DataError
from tierank.evaluation import compare_evaluations
from tierank.experiments.runs import Run
from tierank.experiments.store import Cell
from tierank.files import replacing
from tierank.metrics import parse_metric
from tierank.report import charts
from tierank.report.insight import Swap, draw_importances, explain_documents, find_swaps
from tierank.report.markup import Html, as_json, element, from_table, join, make_page, table
from tierank.report.metric_names import by_family, deepest, display
from tierank.report.tables import tabulate_contrasts, tabulate_run, tabulate_segments, tabulate_worst
from tierank.report.viewer import Lists, Titles, make_viewer
from tierank.segments import Attribute, cut, look_up
from tierank.settings import check_type
from tierank.types import Floats

Sections = list[tuple[str, str, Sequence[str]]]

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
        raise DataError(f"{run.folder}: expected results of at least one system for every fold, got none yet")
    page = _Page(run, _attributes(run, by))
    shown = page.lists.encode(page.viewer_metrics, titles)
    swaps = [] if page.rival is None else find_swaps(page.lists, page.metric, page.best, page.rival)
    sections: Sections = [
        ("leaderboard", "Leaderboard", page.leaderboard()),
        ("queries", "Queries", [make_viewer(run, shown)]),
    ]
    if page.others:
        sections.append(("against", f"Against {run.baseline}", page.against()))
    sections.append(("where", "Where it is good", page.where()))
    if page.comparison.attributes:
        sections.append(("segments", "Segments", page.segments()))
    for name, title, content in (
        ("learning", "Learning", page.learning()),
        ("features", "Features", page.features(swaps)),
    ):
        sections += [(name, title, content)] if content else []
    sections.append(("repeat", "Reproduce", page.repeat()))
    explained = explain_documents(page.lists, swaps)
    data = as_json("lists", shown | {"swaps": [swap.to_dict() for swap in swaps], "explained": explained})
    script = element("script", Html((Path(__file__).parent / "viewer.js").read_text(encoding="utf-8")))
    return make_page(page.title, page.intro(), sections, data, script)


class _Page:
    """The data that the sections of the page share."""

    def __init__(self, run: Run, attributes: Sequence[Attribute] = ()) -> None:
        self.run, self.comparison, self.lists = run, run.comparison, Lists(run)
        if attributes:
            self.comparison = compare_evaluations(self.comparison.evaluations, run.baseline, attributes)
        self.others = [system for system in run.systems if system != run.baseline]
        self.colours = {system: i for i, system in enumerate(run.systems)}
        self.metric = deepest(run.metrics, "ndcg")
        self.best = self.comparison.best(self.metric)[0]
        self.rival = run.baseline if self.best != run.baseline else next(iter(self.others), None)
        self.title = f"{run.plan.data.name}: {len(run.systems)} ranker{'s' * (len(run.systems) > 1)}"

    @property
    def viewer_metrics(self) -> list[str]:
        """The metrics of a query that the viewer shows."""
        return list(dict.fromkeys([self.metric, deepest(self.run.metrics, "err")]))

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
        metrics = by_family(self.run.metrics)
        families = [(name, list(group)) for name, group in groupby(metrics, key=lambda m: parse_metric(m)[0])]
        names = [element("th", display(name), scope="colgroup", colspan=len(group)) for name, group in families]
        cutoffs = [element("th", _cutoff(metric), scope="col") for metric in metrics]
        head = [element("tr", element("td"), *names), element("tr", element("th", "ranker", scope="col"), *cutoffs)]
        rows = [
            element("tr", self._row_head(system), *(self._cell(system, metric) for metric in metrics))
            for system in sorted(self.run.systems, key=lambda system: -self.comparison.mean(system, self.metric))
        ]
        whole = element("table", element("thead", *head), element("tbody", *rows), class_="leaderboard")
        notes = [self.comparison.describe_queries()]
        notes += [self.comparison.describe_marks()] if self.others else []
        spread = " ±: standard deviation over seeds." * (len(self.run.seeds) > 1)
        notes.append(f"Sorted by {display(self.metric)}. Best mean in bold.{spread}")
        notes.append(f"Rule {self.comparison.rule.describe()}")
        parts = [element("div", whole, class_="scroll"), *(element("p", note, class_="note") for note in notes)]
        if self.run.plan.paper:
            words = element("summary", "Compared with the paper")
            parts.append(element("details", words, from_table(tabulate_run(self.run))))
        return parts

    def _row_head(self, system: str) -> Html:
        key = element("i", class_=f"c{self.colours[system] % charts.N_COLOURS}")
        tag = [element("small", "baseline")] if system == self.run.baseline and self.others else []
        return element("th", key, system, *tag, scope="row")

    def _cell(self, system: str, metric: str) -> Html:
        mean, mark = f"{self.comparison.mean(system, metric):.4f}", self.comparison.mark(system, metric)
        spread = self.run.spread(system, metric)
        is_best = system in self.comparison.best(metric)
        number = element("b" if is_best else "span", mean)
        small = [] if math.isnan(spread) else [element("small", f"±{spread:.4f}")]
        tone = {"*+": "up", "*-": "down"}.get(mark)
        return element("td", number, element("sup", mark, class_=tone), *small)

    def against(self) -> list[Html]:
        """Relative improvement over the baseline, wins and losses, and the numbers of the tests."""
        parts = [self._improvements()]
        multiples = []
        base = self.comparison.evaluations[self.run.baseline].values(self.metric)
        differences = {s: self.comparison.evaluations[s].values(self.metric) - base for s in self.others}
        limits = np.concatenate(list(differences.values()))  # one scale for all charts
        for system, gaps in differences.items():
            contrast = self.comparison.contrasts[system][self.metric]
            words = (
                f"{contrast.wins:,} queries better, {contrast.ties:,} equal, {contrast.losses:,} worse in"
                f" {display(self.metric)}"
            )
            colour = self.colours[system]
            multiples.append(charts.sorted_differences(system, words, gaps, limits, colour=colour))
        parts += [element("h3", "Wins and losses, query by query"), element("div", *multiples, class_="multiples")]
        tests = element(
            "details",
            element("summary", "Differences, intervals and tests"),
            from_table(tabulate_contrasts(self.comparison)),
        )
        return [*parts, tests]

    def _improvements(self) -> Html:
        base = {metric: self.comparison.mean(self.run.baseline, metric) for metric in self.run.metrics}
        metrics = [metric for metric in by_family(self.run.metrics) if base[metric] > 0]
        contrasts = self.comparison.contrasts
        series = {s: [100 * contrasts[s][m].difference / base[m] for m in metrics] for s in self.others}
        intervals = {
            s: [(100 * contrasts[s][m].low / base[m], 100 * contrasts[s][m].high / base[m]) for m in metrics]
            for s in self.others
        }
        words = (
            f"Mean of each metric over that of {self.run.baseline}, in percent. Thin lines: 95% intervals over queries."
        )
        chart = charts.bars(
            "Relative improvement",
            words,
            [display(m) for m in metrics],
            series,
            intervals=intervals,
            form="+.2f",
            unit="%",
            colours=self.colours,
        )
        return join([self._legend(self.others), chart])

    def _legend(self, systems: Sequence[str]) -> Html:
        keys = [element("li", element("i", class_=f"c{self.colours[s] % charts.N_COLOURS}"), s) for s in systems]
        return element("ul", *keys, class_="legend")

    def where(self) -> list[Html]:
        """Quality by kind of query, and the mean rank of the documents of each tier."""
        relevant = np.add.reduceat((self.lists.ratings > 0).astype(np.int64), self.lists.offsets[:-1])
        return [
            self._legend(self.run.systems),
            element(
                "div",
                self._by("By documents in the query", self.lists.lengths),
                self._by("By relevant documents in the query", relevant),
                self._by_tier(),
                class_="pairs",
            ),
        ]

    def _by(self, title: str, sizes: NDArray[np.int64]) -> Html:
        part, labels = cut(sizes, _PARTS)
        series = {}
        for system in self.run.systems:
            values = self.comparison.evaluations[system].per_query[self.metric]
            series[system] = [_mean(values[part == i]) for i in range(len(labels))]
        counts = ", ".join(f"{label}: {(part == i).sum():,}" for i, label in enumerate(labels))
        words = f"Mean {display(self.metric)} of queries of a size. Queries of each: {counts}."
        return charts.bars(title, words, labels, series, colours=self.colours, width=500)

    def _by_tier(self) -> Html:
        """Mean relative rank of the documents of a tier, from 0 (the top of the list) to 100% (its end)."""
        lists = self.lists
        n_tiers = min(int(lists.tiers.max()) + 1, 8)
        long = np.repeat(lists.lengths, lists.lengths) > 1
        series = {}
        for system in self.run.systems:
            share = 100 * (lists.ranks[system] - 1) / np.maximum(np.repeat(lists.lengths, lists.lengths) - 1, 1)
            series[system] = [_mean(share[long & (lists.tiers == tier)]) for tier in range(n_tiers)]
        labels = [f"tier {tier + 1}" for tier in range(n_tiers)]
        words = (
            "Where the documents of each tier are on average: 0% is the top of the list, 100% its end."
            " Tier 1 has the highest rating of its query."
        )
        return charts.bars("By tier", words, labels, series, form=".1f", unit="%", colours=self.colours, width=500)

    def segments(self) -> list[Html]:
        """Means of each segment, the differences to the baseline with their tests, and the worst ones."""
        drawn = [self._segment_means(attribute) for attribute in self.comparison.attributes]
        parts = [self._legend(self.run.systems), element("div", *drawn, class_="pairs")]
        if self.others:
            worst = tabulate_worst(self.comparison)
            parts += [element("h3", worst.title), from_table(worst)]
            words = element("summary", "All segments")
            parts.append(element("details", words, from_table(tabulate_segments(self.comparison))))
        return parts

    def _segment_means(self, attribute: Attribute) -> Html:
        labels, series = list(attribute.values[:_SEGMENTS]), {}
        for system in self.run.systems:
            values = self.comparison.evaluations[system].per_query[self.metric]
            series[system] = [_mean(values[attribute.codes == i]) for i in range(len(labels))]
        counts = ", ".join(f"{label}: {(attribute.codes == i).sum():,}" for i, label in enumerate(labels))
        left = f" The first {_SEGMENTS} of {len(attribute.values)} segments." * (len(attribute.values) > _SEGMENTS)
        words = f"Mean {display(self.metric)}. Queries of each: {counts}.{left}"
        return charts.bars(f"By {attribute.name}", words, labels, series, colours=self.colours, width=500)

    def learning(self) -> list[Html]:
        """A curve for each fold and seed."""
        drawn = [chart for system in self.run.systems if (chart := self._curves(system)) is not None]
        words = "Metric on validation data after each round or epoch; the dot is the one that was kept."
        return [element("p", words, class_="note"), element("div", *drawn, class_="multiples")] if drawn else []

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
        words = (
            f"{display(metric)}, {len(series)} of {len(places)} runs" if len(places) > len(series) else display(metric)
        )
        colours = dict.fromkeys(series, self.colours[system])
        return charts.lines(system, words, series, x_label="round", colours=colours, marks=kept, small=True)

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
            parts += [element("h3", "Swaps explained"), element("p", words, class_="note"), drawn]
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
        described = plan.data.description
        parts = [table(["", "value"], facts, class_="words")]
        if described:
            rows = [[name.replace("_", " "), _plain(value)] for name, value in described.items()]
            parts.append(element("details", element("summary", "Data"), table(["", "value"], rows, class_="words")))
        settings = {system: self._settings(system) for system in self.run.systems}
        return parts + [element("details", element("summary", f"Settings of {s}"), t) for s, t in settings.items()]

    def _settings(self, system: str) -> Html:
        described = self.run.plan.systems[system]
        settings = described.get("settings") or {name: value for name, value in described.items() if name != "ranker"}
        seconds = self.run.cpu_seconds(system)
        rows = [["ranker", str(described.get("ranker", "scores of another tool"))]]
        rows += [] if math.isnan(seconds) else [["CPU seconds of a fit", f"{seconds:.1f}"]]
        rows += [[name, _plain(value)] for name, value in settings.items()]
        return table(["", "value"], rows, class_="words")


def _attributes(run: Run, by: Mapping[str, Mapping[Hashable, Any]] | None) -> tuple[Attribute, ...]:
    """The attributes of queries: as given, or as stored in the run."""
    if by is not None:
        return look_up([query for test in run.tests for query in test.query_ids.tolist()], by)
    kept, n_queries = run.plan.attributes, sum(test.n_queries for test in run.tests)
    if any(len(one["codes"]) != n_queries for one in kept):
        raise DataError(f"{run.folder}: expected attributes of its {n_queries} queries, got another number")
    return tuple(Attribute(one["name"], tuple(one["values"]), np.array(one["codes"], np.int64)) for one in kept)


def _cutoff(metric: str) -> str:
    k = parse_metric(metric)[1]
    return "all" if k is None else f"@{k}"


def _mean(values: Floats) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
