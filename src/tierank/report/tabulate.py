"""Results as tables of texts, and these as text, Markdown, LaTeX and HTML; values per query as CSV."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from io import StringIO
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len

from tierank import display as notebook
from tierank.display import format_number, on_one_line
from tierank.errors import DataError, ParameterError
from tierank.experiments import LEAKS, PAPERS, Run
from tierank.experiments.published import PrintedFigure, cells_of, compare_with_paper, row_of, why_not_comparable
from tierank.io.scores import text_file
from tierank.metrics.compare import Comparison
from tierank.metrics.description import HOW as HOW_DRIFT
from tierank.metrics.description import Description, Drift
from tierank.metrics.evaluate import Evaluation
from tierank.metrics.segments import HOW, Segment, SegmentContrast
from tierank.metrics.significance import POWER, SIGNIFICANT, SMALL, Contrast
from tierank.rankers.explain import Explanation, format_value
from tierank.settings import as_flag, check_type

# With more segments than this, those that are too small for a test are left out.
_SEGMENTS = 20
# A rest of at most this share of all contributions is rounding, and gets no row.
_ROUNDING = 1e-9
# The number of rows that are shown although they do not drift.
_LEAST_CHANGES = 8


@dataclass(frozen=True, repr=False)
class Table:
    """Texts in rows and columns. ``bold`` has the (row, column) of cells.

    >>> table = Table("Means", ["system", "ndcg@10"], [["old", "0.4000"], ["new", "0.4500"]], bold={(1, 1)})
    >>> print(table.to_markdown())
    **Means**
    <BLANKLINE>
    | system | ndcg@10 |
    | :--- | ---: |
    | old | 0.4000 |
    | new | **0.4500** |
    <BLANKLINE>
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    bold: AbstractSet[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        # Names of queries, segments and systems are callers' texts; a cell has only one line.
        object.__setattr__(self, "title", on_one_line(self.title))
        for name in ("columns", "notes"):
            object.__setattr__(self, name, [on_one_line(text) for text in getattr(self, name)])
        object.__setattr__(self, "rows", [[on_one_line(cell) for cell in row] for row in self.rows])

    def to_text(self, *, terminal: bool = False) -> str:
        """Aligned text, never cut to a width.

        Parameters
        ----------
        terminal : bool, default False
            Include the codes for bold text on a terminal. Otherwise the rules are plain ASCII.
        """
        rows = [list(self.columns), *map(list, zip(*map(_on_point, self._columns()), strict=True))]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        form = "\x1b[1m{}\x1b[0m" if terminal else "{}"
        lines = []
        for i, row in enumerate(rows):
            is_bold = [i == 0 or (i - 1, j) in self.bold for j in range(len(row))]
            shown = [form.format(one) if one and bold else one for one, bold in zip(row, is_bold, strict=True)]
            gaps = [" " * (width - cell_len(one)) for one, width in zip(row, widths, strict=True)]
            lines.append("   ".join(map(add, shown, gaps)).rstrip())
        lines.insert(1, ("─" if terminal else "-") * (sum(widths) + 3 * len(widths) - 3))
        return "\n".join([form.format(self.title), "", *lines, "", *self.notes]).rstrip() + "\n"

    def to_markdown(self) -> str:
        """A table in GitHub's Markdown, with the title above and the notes below."""
        rules = ["---:" if _is_numeric(cells) else ":---" for cells in self._columns()]
        rows = [list(map(_markdown, self.columns)), rules, *self._escaped(_markdown, "**{}**")]
        table = [f"| {' | '.join(row)} |" for row in rows]
        notes = [f"{_markdown(note)}  " for note in self.notes]
        return "\n".join([f"**{_markdown(self.title)}**", "", *table, "", *notes]).rstrip() + "\n"

    def to_latex(self) -> str:
        """A ``table`` with rules of the package booktabs; the title is the caption, the notes are below."""
        form = "".join("r" if _is_numeric(cells) else "l" for cells in self._columns())
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(self.title)}}}",
            rf"\begin{{tabular}}{{{form}}}",
            r"\toprule",
            " & ".join(map(_latex, self.columns)) + r" \\",
            r"\midrule",
            *(" & ".join(row) + r" \\" for row in self._escaped(_latex, r"\textbf{{{}}}")),
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {_latex(note)}" for note in self.notes),
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table for notebooks."""
        return notebook.sheet(self.title, notebook.grid(self.columns, self.rows), *map(notebook.note, self.notes))

    def _columns(self) -> list[list[str]]:
        """The cells of each column."""
        return [[row[j] for row in self.rows] for j in range(len(self.columns))]

    def _escaped(self, escape: Callable[[str], str], bold: str) -> list[list[str]]:
        """The cells of each row in another form, those in bold inside the form ``bold``."""
        return [
            [bold.format(escape(cell)) if (i, j) in self.bold else escape(cell) for j, cell in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]


def tabulate(
    found: Run | Comparison | Evaluation | Description, *, differences: bool = False, title: str | None = None
) -> Table:
    """A result as a table in text, Markdown or LaTeX, as the command line prints it.

    Parameters
    ----------
    found : Run, Comparison, Evaluation or Description
        The result of ``cross_validate``, ``compare``, ``evaluate`` or ``describe``.
    differences : bool, default False
        For a run or a comparison, the differences to the baseline with their intervals and tests instead of the means.
    title : str, optional
        The title; in LaTeX it is the caption. By default it says what the table shows.

    Returns
    -------
    Table
        ``print`` shows it; ``to_markdown()`` and ``to_latex()`` return its source.

    Examples
    --------
    >>> from tierank import RankingDataset, compare
    >>> data = RankingDataset([[0.0]] * 6, [1, 0, 0, 2, 0, 1], qid=[1, 1, 2, 2, 3, 3])
    >>> scores = {"old": [1, 2, 2, 1, 1, 2], "new": [2, 1, 1, 2, 1, 2]}
    >>> table = tabulate(compare(data, scores, metrics="ndcg@2"), title="Old and new")
    >>> table.to_markdown().splitlines()[2:6]
    ['| system | ndcg@2 |', '| :--- | ---: |', '| old | 0.7540 |', '| new | **1.0000** |']
    """
    if title is not None:
        check_type("title", title, str)
    if as_flag("differences", differences) and isinstance(found, (Run, Comparison)):
        return tabulate_contrasts(found.comparison if isinstance(found, Run) else found, title)
    if differences:
        raise ParameterError(argument="differences", expected="a run or a comparison", got=type(found).__name__)
    kinds: dict[type[Any], Callable[[Any, str | None], Table]] = {
        Run: tabulate_run,
        Comparison: tabulate_comparison,
        Evaluation: tabulate_evaluation,
        Description: tabulate_description,
    }
    for kind, make in kinds.items():
        if isinstance(found, kind):
            return make(found, title)
    expected = "a Run, a Comparison, an Evaluation or a Description"
    raise DataError(argument="found", expected=expected, got=type(found).__name__)


def tabulate_evaluation(evaluation: Evaluation, title: str | None = None) -> Table:
    """A row per metric: mean and standard error."""
    return Table(title or "Evaluation", *evaluation.table(), _notes(evaluation))


def tabulate_comparison(comparison: Comparison, title: str | None = None) -> Table:
    """A row per system, a column per metric, with marks of significance and the best mean in bold."""
    notes = [comparison.describe_marks(), *_notes(comparison)]
    return Table(title or "Comparison", *comparison.table(), notes, _best(comparison))


def _best(comparison: Comparison) -> set[tuple[int, int]]:
    """The cells of the best mean of each metric."""
    columns = enumerate(comparison.metrics, start=1)
    return {(comparison.systems.index(system), j) for j, metric in columns for system in comparison.best(metric)}


def tabulate_contrasts(comparison: Comparison, title: str | None = None) -> Table:
    """A row per system and metric: the difference to the baseline, with its interval and test."""
    columns = ["system", "metric", *_CONTRAST, "verdict"]
    rows = [
        [system, metric, *_contrast_cells(contrast), contrast.verdict]
        for system, contrasts in comparison.contrasts.items()
        for metric, contrast in contrasts.items()
    ]
    how = (
        f"p: paired t-test over queries; interval: that of the test, which excludes 0 exactly if p < {SIGNIFICANT};"
        " adjusted p: by Holm's method over the systems, within each metric"
    )
    notes = [how, _NEEDED, *_notes(comparison)]
    return Table(title or f"Differences to {comparison.baseline}", columns, rows, notes)


# The columns of a contrast, and what the last one means.
_CONTRAST = ["difference", "95% interval", "p", "adjusted p", "wins/ties/losses", f"queries for {SMALL}"]
_NEEDED = (
    f"queries for {SMALL}: queries like these needed to detect a difference of {SMALL} with a power of {POWER:.0%}"
    " (two-sided paired t-test at 5%)"
)


def _contrast_cells(contrast: Contrast) -> list[str]:
    needed = contrast.queries_needed()
    return [
        f"{contrast.difference:+.4f}",
        "-" if math.isnan(contrast.low) else f"{contrast.low:+.4f} to {contrast.high:+.4f}",
        _format_p(contrast.p),
        _format_p(contrast.adjusted_p),
        f"{contrast.wins}/{contrast.ties}/{contrast.losses}",
        "-" if needed is None else f"{needed:,}",
    ]


def tabulate_segments(result: Evaluation | Comparison, title: str | None = None) -> Table:
    """A row per segment, and per system of a comparison: means, or differences to the baseline, with marks."""
    if isinstance(result, Comparison):
        heads, title = ["system"], title or f"Differences to {result.baseline} by segment"
        marks = f"*+ / *-: significantly better / worse than {result.baseline} in this segment"
    else:
        heads, title = [], title or "By segment"
        marks = "*+ / *-: significantly better / worse than all other queries"
    by_row: dict[tuple[str, ...], dict[str, Segment | SegmentContrast]] = {}
    for one in result.segments:
        names = one.attribute, one.value, *([one.system] if isinstance(one, SegmentContrast) else [])
        by_row.setdefault(names, {})[one.metric] = one
    n_segments = Counter(attribute for attribute, _ in {head[:2] for head in by_row})
    rows = []
    for (attribute, value, *system), found in by_row.items():
        if n_segments[attribute] > _SEGMENTS and all(one.verdict == "too few queries" for one in found.values()):
            continue
        cells = []
        for one in (found[metric] for metric in result.metrics):
            number = f"{one.mean:.4f}" if isinstance(one, Segment) else f"{one.difference:+.4f}"
            cells.append(number + {"better": "*+", "worse": "*-"}.get(one.verdict, ""))
        rows.append([attribute, value, f"{next(iter(found.values())).n_queries:,}", *system, *cells])
    n_left = len(by_row) - len(rows)
    left = [f"{n_left:,} segments of too few queries are not shown"] if n_left else []
    return Table(title, ["attribute", "segment", "queries", *heads, *result.metrics], rows, [marks, HOW, *left])


def tabulate_worst(result: Evaluation | Comparison, title: str = "Worst segments") -> Table:
    """A row per significantly worse segment, the worst of each metric first, with all numbers of its test."""
    if isinstance(result, Comparison):
        columns = ["system", *_CONTRAST]
        notes = [f"worse than {result.baseline} in the same segment", HOW, _NEEDED]
    else:
        columns = ["mean", "difference", "p", "adjusted p"]
        notes = ["worse than all other queries; p: the larger one of Student's and of Welch's t-test", HOW]
    rows = []
    for one in (one for metric in result.metrics for one in result.worst(metric)):
        if isinstance(one, SegmentContrast):
            numbers = [one.system, *_contrast_cells(one.contrast)]
        else:
            p_values = _format_p(one.p), _format_p(one.adjusted_p)
            numbers = [f"{one.mean:.4f}", format_number(one.difference, "+"), *p_values]
        rows.append([one.metric, one.attribute, one.value, f"{one.n_queries:,}", *numbers])
    heads = ["metric", "attribute", "segment", "queries", *columns]
    return Table(title, heads, rows, notes if rows else ["no segment is significantly worse", HOW])


def tabulate_run(run: Run, title: str | None = None) -> Table:
    """A row per system in the layout of the paper, with the spread over seeds."""
    comparison = run.comparison
    rows = []
    for system in run.systems:
        means = [f"{_mean_cell(run, system, metric, ' ± ')}{comparison.mark(system, metric)}" for metric in run.metrics]
        seconds = run.cpu_seconds(system)
        rows.append([system, *means, "-" if math.isnan(seconds) else f"{seconds:.1f}"])
    seeds = sorted({len(run.seeds_of(system)) for system in run.systems})
    words = "one seed" if seeds == [1] else f"{' or '.join(map(str, seeds))} seeds; ±: standard deviation over seeds"
    notes = [
        f"means over the test queries{f' of {run.n_folds} folds' if run.n_folds > 1 else ''}; {words}",
        comparison.describe_marks(),
        *_notes(comparison),
    ]
    notes += [LEAKS] if run.plan.protocol == "lightgbm" else []
    others = dict.fromkeys(filter(None, why_not_comparable(run).values()))
    notes += [f"not beside the paper: {'; '.join(others)}"] if others else []
    title = title or f"{run.plan.data.name}: {f'{run.n_folds} folds' if run.n_folds > 1 else 'test queries'}"
    return Table(title, ["system", *run.metrics, "CPU s/run"], rows, notes, _best(comparison))


def _mean_cell(run: Run, system: str, metric: str, sign: str) -> str:
    """A mean with its spread over seeds, if it has any."""
    spread = run.spread(system, metric)
    return f"{run.comparison.mean(system, metric):.3f}" + ("" if math.isnan(spread) else f"{sign}{spread:.3f}")


def tabulate_paper(run: Run, *, all_rows: bool = False) -> list[Table]:
    """Ours, the paper's figures and their difference for each ranker: a table of NDCG, and one of ERR.

    No table if nothing can be compared. ``all_rows`` adds the paper's rows for rankers that were not run.
    """
    printed, found = cells_of(run), compare_with_paper(run)
    row_names = {system: row_of(system, run.plan.systems[system]) or "" for system in run.systems}
    others = [row for row in printed if row not in {row_names[system] for system in found}]
    tables: list[Table] = []
    for kind in ("ndcg", "err") if run.systems else ():
        metrics = [metric for metric in next(iter(printed.values()), {}) if metric.startswith(kind)]
        rows, shown = list[list[str]](), list[PrintedFigure]()
        for system in run.systems:
            rows.append([system, "ours", *(_ours_cell(run, system, metric) for metric in metrics)])
            if system in found:
                compared = [found[system][metric] for metric in metrics]
                shown += [one.printed for one in compared]
                rows.append([row_names[system], "paper", *(str(one.printed) for one in compared)])
                rows.append(["", "difference", *(f"{one.difference:+.3f} {one.verdict}".rstrip() for one in compared)])
        for row in others if all_rows else ():
            figures = [printed[row][metric] for metric in metrics]
            shown += figures
            rows.append([row, "paper", *map(str, figures)])
        title = f"{run.plan.data.name}, {kind.upper()} beside the paper's: {run.n_folds} folds"
        doubts = dict.fromkeys(f"† {figure.doubt}" for figure in shown if figure.doubt)
        tables += [Table(title, ["system", "", *metrics], rows, list(doubts))] if metrics else []
    if tables:
        notes = _paper_notes(run, row_names[run.baseline], [] if all_rows else others)
        tables[-1] = replace(tables[-1], notes=[*tables[-1].notes, *notes])
    return tables


def _ours_cell(run: Run, system: str, metric: str) -> str:
    """A mean with its spread and mark: that of Holm, or else that of the test alone, as the paper tests."""
    contrast = run.comparison.contrasts.get(system, {}).get(metric)
    alone = contrast is not None and contrast.p < SIGNIFICANT and ("+" if contrast.difference > 0 else "-")
    return _mean_cell(run, system, metric, "±") + (run.comparison.mark(system, metric) or alone or "")


def _paper_notes(run: Run, baseline_row: str, others: Sequence[str]) -> list[str]:
    """What the rows, marks and verdicts mean, and what is missing."""
    baseline = PAPERS[str(run.plan.paper)].baseline
    seeds = " or ".join(map(str, sorted({len(run.seeds_of(system)) for system in run.systems})))
    notes = [
        f"ours: mean over the test queries of all folds; seeds: {seeds}; ±: standard deviation over seeds",
        f"+ / -: better / worse than {run.baseline}, p < {SIGNIFICANT} in a paired t-test;"
        " *+ / *-: also adjusted by Holm",
        f"the paper's *: better than {baseline}, p < {SIGNIFICANT} in a t-test; †: cannot be right",
        "difference: ours minus the paper's; within, below or above the 95% range of another seed",
        "(no word: fewer than three seeds, nothing random, or †)",
        f"rule {run.rule.name}; {run.comparison.describe_queries()}",
    ]
    if baseline_row != baseline:
        notes.append(f"the baseline is {run.baseline}; the paper's, {baseline}, is not in this run or not chosen")
    if others:
        notes.append(f"the paper has {len(others)} rows for rankers that are not in this run")
    if "LambdaMart-R" in others:
        notes.append("LambdaMart-R is RankLib's, and can be added to a run as scores of this name")
    if run.plan.protocol == "lightgbm":
        notes += [LEAKS, "the rows of the paper leak too: its test data chose the number of trees"]
    return notes


def tabulate_description(found: Description, title: str | None = None) -> Table:
    """The columns of the paper's table of data sets, followed by what to know before training."""
    columns = ["queries", "documents", "features", "rating levels", "LR (%)", "MPQ", "ALRPQ (%)"]
    row = [
        f"{found.n_queries:,}",
        f"{found.n_documents:,}",
        f"{found.n_features:,}",
        f"{found.n_rating_levels:,}",
        f"{found.lowest_share:.2%}".rstrip("%"),
        f"{found.max_documents:,}",
        f"{found.lowest_share_per_query:.2%}".rstrip("%"),
    ]
    levels = [f"{rating:g}: {n:,}" for rating, n in found.documents_per_rating.items()]
    notes = [
        "LR: documents with the lowest rating; MPQ: most documents of a query; ALRPQ: as LR, mean over queries",
        f"documents by rating   {', '.join(levels[:12])}{', ...' if len(levels) > 12 else ''}",
        f"documents of a query  {found.min_documents:,} to {found.max_documents:,}, median {found.median_documents:g}",
        f"nothing to learn from {found.n_empty_queries:,} queries with no rating above 0,"
        f" {found.n_single_rating_queries:,} with one rating, {found.n_constant_features:,} constant features",
        f"missing values        {found.missing_share:.2%}",
    ]
    if found.n_unjudged:
        notes.append(f"unjudged documents    {found.n_unjudged:,}; not counted in numbers about ratings")
    return Table(title or "Data", columns, [row], notes)


def tabulate_drift(found: Drift, title: str) -> Table:
    """A row for everything that drifts, and for some that do not; the advice is below."""
    ordered = sorted(found.changes, key=lambda one: (not one.drifts, -one.distance))
    n_shown = max(len(found.drifting), _LEAST_CHANGES)
    rows = [
        [one.name, f"{one.distance:.3f}", _format_p(one.p), _format_p(one.adjusted_p), "drifts" if one.drifts else ""]
        for one in ordered[:n_shown]
    ]
    left = [f"{len(ordered) - n_shown:,} others do not drift"] if len(ordered) > n_shown else []
    return Table(title, ["", "distance", "p", "adjusted p", "verdict"], rows, [found.advice, *left, HOW_DRIFT])


def tabulate_explanation(found: Explanation, n: int | None = None) -> Table:
    """A row per feature, largest contribution first, and one row each for all other features and the rest."""
    rows = []
    for j in found.top(n).tolist():
        held = [format_value(value, 6) for value in found.held(j)]
        rows.append([found.features[j], f"{found.contributions[j]:+.4f}", *held])
    for name, value in sums_of(found, n):
        rows.append([name, f"{value:+.4f}" if abs(value) >= 5e-5 else f"{value:+.1e}", "", ""])
    rows.append(["score difference", f"{found.difference:+.4f}", "", ""])
    columns = ["feature", "contribution", f"above: {found.above}", f"below: {found.below}"]
    title = f"Query {found.query!s}: {found.above} above {found.below}"
    ranks = "ranks above" if found.difference > 0 else "is not ranked above" if found.difference < 0 else "ties with"
    notes = [f"{found.above} {ranks} {found.below}; the contributions sum to the difference of their scores"]
    return Table(title, columns, rows, notes, {(len(rows) - 1, 0), (len(rows) - 1, 1)})


def sums_of(found: Explanation, n: int | None) -> list[tuple[str, float]]:
    """The sum of the features beyond the first n, and the rest that no feature explains."""
    top = found.top(n)
    n_others = len(found.top()) - len(top)
    others = float(found.contributions.sum() - found.contributions[top].sum())
    rows = [(f"{n_others} other feature{'s' * (n_others > 1)}", others)] if n_others else []
    is_more = abs(found.rest) > _ROUNDING * float(np.abs(found.contributions).sum())
    return rows + ([("remainder", found.rest)] if is_more else [])


def write_per_query(evaluation: Evaluation, path: Path) -> None:
    """Write a CSV file with a row per query and a column per metric; empty if the rule leaves the query out."""
    with text_file(path) as file:
        file.writelines(per_query_lines(evaluation))


def per_query_lines(evaluation: Evaluation) -> Iterator[str]:
    """The lines of that file."""
    yield _csv_line(["query", *evaluation.metrics])
    values = zip(*(evaluation.per_query[metric].tolist() for metric in evaluation.metrics), strict=True)
    for query, row in zip(evaluation.query_ids.tolist(), values, strict=True):
        yield _csv_line([query, *("" if math.isnan(value) else repr(value) for value in row)])


def _csv_line(cells: Sequence[object]) -> str:
    line = StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def _notes(result: Evaluation | Comparison) -> list[str]:
    return [result.describe_queries(), f"rule {result.rule.describe()}"]


def _on_point(cells: Sequence[str]) -> list[str]:
    """The cells of a column of numbers, aligned at the decimal point; texts are unchanged."""
    if not _is_numeric(cells):
        return list(cells)
    widths = [len(cell.partition(".")[0]) for cell in cells]
    return [" " * (max(widths) - width) + cell for cell, width in zip(cells, widths, strict=True)]


def _is_numeric(cells: Sequence[str]) -> bool:
    return bool(cells) and all(cell == "-" or cell.lstrip("+-<")[:1].isdigit() for cell in cells)


def _format_p(p: float) -> str:
    return "<0.0001" if p < 0.0001 else format_number(p)


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*|<\[])", r"\\\1", text)


_OF_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
} | {character: f"\\{character}" for character in "&%$#_{}"}


def _latex(text: str) -> str:
    r"""Text escaped for LaTeX.

    >>> print(_latex("95% of ndcg_cut ± 1"))
    95\% of ndcg\_cut $\pm$ 1
    """
    return "".join(_OF_LATEX.get(character, character) for character in text)
