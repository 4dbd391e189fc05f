"""Tables as text, Markdown and LaTeX."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from tierank import notebook
from tierank.description import Description
from tierank.drift import HOW as HOW_DRIFT
from tierank.drift import Drift
from tierank.errors import DataError, ParameterError
from tierank.evaluation import Comparison, Evaluation, format_number
from tierank.experiments import LEAKS, PAPERS, Run
from tierank.notebook import on_one_line
from tierank.readers.scores import text_file
from tierank.segments import HOW, Segment, SegmentContrast
from tierank.settings import as_choice, as_flag, check_type
from tierank.significance import POWER, SMALL, Contrast

# With more segments than this, those that are too small for a test are left out.
_SEGMENTS = 20
# The number of rows that are shown although they do not drift.
_LEAST_CHANGES = 8
# Wide enough for any table: tables are never cut to the width of a terminal.
_WIDTH = 10_000


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
        grid = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for column in self.columns:
            grid.add_column(Text(column), no_wrap=True)
        for i, row in enumerate(zip(*map(_on_point, self._cells()), strict=True)):
            grid.add_row(*(Text(cell, "bold" if (i, j) in self.bold else "") for j, cell in enumerate(row)))
        text = _render([Text(self.title, "bold"), Text(), grid, Text(), *map(Text, self.notes)], terminal)
        return text if terminal else text.replace("─", "-")

    def to_markdown(self) -> str:
        """A table in GitHub's Markdown, with the title above and the notes below."""
        lines = [f"**{_escape(self.title)}**", ""]
        lines.append(_markdown_row([_escape(column) for column in self.columns]))
        lines.append(_markdown_row(["---:" if _is_numeric(cells) else ":---" for cells in self._cells()]))
        for i, row in enumerate(self.rows):
            cells = [_escape(cell) for cell in row]
            lines.append(_markdown_row([f"**{c}**" if (i, j) in self.bold else c for j, c in enumerate(cells)]))
        return "\n".join([*lines, "", *(f"{_escape(note)}  " for note in self.notes)]).rstrip() + "\n"

    def to_latex(self) -> str:
        """A ``table`` with rules of the package booktabs; the title is the caption, the notes are below."""
        form = "".join("r" if _is_numeric(cells) else "l" for cells in self._cells())
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(self.title)}}}",
            rf"\begin{{tabular}}{{{form}}}",
            r"\toprule",
            " & ".join(map(_latex, self.columns)) + r" \\",
            r"\midrule",
        ]
        for i, row in enumerate(self.rows):
            cells = [_latex(cell) for cell in row]
            bold = [rf"\textbf{{{cell}}}" if (i, j) in self.bold else cell for j, cell in enumerate(cells)]
            lines.append(" & ".join(bold) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", *(rf"\par\footnotesize {_latex(note)}" for note in self.notes)]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table for notebooks."""
        return notebook.sheet(self.title, notebook.grid(self.columns, self.rows), *map(notebook.note, self.notes))

    def _cells(self) -> list[list[str]]:
        """The cells of each column."""
        return [[row[j] for row in self.rows] for j in range(len(self.columns))]


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
    if isinstance(found, Run):
        return tabulate_run(found, title)
    if isinstance(found, Comparison):
        return tabulate_comparison(found, title or "Comparison")
    if isinstance(found, Evaluation):
        return tabulate_evaluation(found, title or "Evaluation")
    if isinstance(found, Description):
        return tabulate_description(found, title or "Data")
    raise DataError(
        argument="found", expected="a Run, a Comparison, an Evaluation or a Description", got=type(found).__name__
    )


def tabulate_evaluation(evaluation: Evaluation, title: str = "Evaluation") -> Table:
    """A row per metric: mean and standard error."""
    rows = [
        [metric, f"{evaluation.mean(metric):.4f}", format_number(evaluation.standard_error(metric))]
        for metric in evaluation.metrics
    ]
    return Table(title, ["metric", "mean", "standard error"], rows, _notes(evaluation))


def tabulate_comparison(comparison: Comparison, title: str = "Comparison") -> Table:
    """A row per system, a column per metric, with marks of significance and the best mean in bold."""
    rows = [
        [system, *(f"{comparison.mean(system, m):.4f}{comparison.mark(system, m)}" for m in comparison.metrics)]
        for system in comparison.systems
    ]
    bold = {
        (comparison.systems.index(system), j)
        for j, metric in enumerate(comparison.metrics, start=1)
        for system in comparison.best(metric)
    }
    notes = [comparison.describe_marks(), *_notes(comparison)]
    return Table(title, ["system", *comparison.metrics], rows, notes, bold)


def tabulate_contrasts(comparison: Comparison, title: str | None = None) -> Table:
    """A row per system and metric: the difference to the baseline, with its interval and test."""
    columns = ["system", "metric", *_CONTRAST, "verdict"]
    rows = [
        [system, metric, *_contrast_cells(contrast), contrast.verdict]
        for system, contrasts in comparison.contrasts.items()
        for metric, contrast in contrasts.items()
    ]
    how = (
        f"p: paired t-test, adjusted by Holm's method within each metric; interval: bootstrap over queries,"
        f" {comparison.n_resamples:,} resamples, seed {comparison.seed}"
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


def tabulate_segments(judged: Evaluation | Comparison, title: str | None = None) -> Table:
    """A row per segment, and per system of a comparison: means, or differences to the baseline, with marks."""
    if isinstance(judged, Comparison):
        heads, title = ["system"], title or f"Differences to {judged.baseline} by segment"
        marks = f"*+ / *-: significantly better / worse than {judged.baseline} in this segment"
    else:
        heads, title = [], title or "By segment"
        marks = "*+ / *-: significantly better / worse than all other queries"
    by_row: dict[tuple[str, ...], dict[str, Segment | SegmentContrast]] = {}
    for one in judged.segments:
        names = [one.attribute, one.value, *([one.system] if isinstance(one, SegmentContrast) else [])]
        by_row.setdefault(tuple(names), {})[one.metric] = one
    n_segments = Counter(attribute for attribute, _ in {head[:2] for head in by_row})
    shown = {head: found for head, found in by_row.items() if not _is_left_out(n_segments[head[0]], found)}
    rows = []
    for (attribute, value, *system), found in shown.items():
        n = next(iter(found.values())).n_queries
        rows.append([attribute, value, f"{n:,}", *system, *(_segment_cell(found[m]) for m in judged.metrics)])
    n_left = len(by_row) - len(shown)
    left = [f"{n_left:,} segments of too few queries are not shown"] if n_left else []
    return Table(title, ["attribute", "segment", "queries", *heads, *judged.metrics], rows, [marks, HOW, *left])


def _is_left_out(n_segments: int, found: dict[str, Segment | SegmentContrast]) -> bool:
    """Whether a segment is one of many that are too small."""
    return n_segments > _SEGMENTS and all(one.verdict == "too few queries" for one in found.values())


def _segment_cell(one: Segment | SegmentContrast) -> str:
    mark = {"better": "*+", "worse": "*-"}.get(one.verdict, "")
    return (f"{one.mean:.4f}" if isinstance(one, Segment) else f"{one.difference:+.4f}") + mark


def tabulate_worst(judged: Evaluation | Comparison, title: str = "Worst segments") -> Table:
    """A row per significantly worse segment, the worst of each metric first, with all numbers of its test."""
    if isinstance(judged, Comparison):
        columns = ["metric", "attribute", "segment", "queries", "system", *_CONTRAST]
        rows = [
            [metric, one.attribute, one.value, f"{one.n_queries:,}", one.system, *_contrast_cells(one.contrast)]
            for metric in judged.metrics
            for one in judged.worst(metric)
        ]
        notes = [f"worse than {judged.baseline} in the same segment", HOW, _NEEDED]
    else:
        columns = ["metric", "attribute", "segment", "queries", "mean", "difference", "p", "adjusted p"]
        rows = [
            [
                metric,
                one.attribute,
                one.value,
                f"{one.n_queries:,}",
                f"{one.mean:.4f}",
                format_number(one.difference, "+"),
                _format_p(one.p),
                _format_p(one.adjusted_p),
            ]
            for metric in judged.metrics
            for one in judged.worst(metric)
        ]
        notes = ["worse than all other queries; p: the larger one of Student's and of Welch's t-test", HOW]
    return Table(title, columns, rows, notes if rows else ["no segment is significantly worse", HOW])


def tabulate_run(run: Run, title: str | None = None) -> Table:
    """A row per system in the layout of the paper, with the spread over seeds, and the paper's rows below."""
    comparison = run.comparison
    rows = [
        [system, *(_run_cell(run, system, metric) for metric in run.metrics), format_seconds(run.cpu_seconds(system))]
        for system in run.systems
    ]
    bold = {
        (run.systems.index(system), j) for j, metric in enumerate(run.metrics, 1) for system in comparison.best(metric)
    }
    seeds = sorted({len(run.seeds_of(system)) for system in run.systems})
    words = "one seed" if seeds == [1] else f"{' or '.join(map(str, seeds))} seeds; ±: standard deviation over seeds"
    notes = [
        f"means over the test queries{f' of {run.n_folds} folds' if run.n_folds > 1 else ''}; {words}",
        comparison.describe_marks(),
        *_notes(comparison),
    ]
    notes += [LEAKS] if run.plan.protocol == "lightgbm" else []
    of_paper, doubts = paper_rows(run)
    columns = ["system", *run.metrics, "CPU s/run"]
    title = title or f"{run.plan.data.name}: {f'{run.n_folds} folds' if run.n_folds > 1 else 'test queries'}"
    return Table(title, columns, [*rows, *of_paper], [*notes, *doubts], bold)


def _run_cell(run: Run, system: str, metric: str) -> str:
    spread = run.spread(system, metric)
    words = f"{run.comparison.mean(system, metric):.3f}" + ("" if math.isnan(spread) else f" ± {spread:.3f}")
    return words + run.comparison.mark(system, metric)


def paper_rows(run: Run) -> tuple[list[list[str]], list[str]]:
    """The rows of the paper that can be compared with a run, and notes: why none, or why a dagger marks a cell."""
    if run.plan.paper is None:
        return [], []
    paper, protocol = PAPERS[as_choice("paper", run.plan.paper, PAPERS)], run.plan.protocol
    description = run.plan.data.description
    size = description.get("n_queries", 0), description.get("n_documents", 0)
    others = {metric: paper.why_other(protocol, run.rule, metric, size) for metric in run.metrics}
    if all(others.values()):
        return [], [f"no rows of the paper: {'; '.join(dict.fromkeys(filter(None, others.values())))}"]
    tops = description.get("queries_per_top_rating")  # runs of earlier versions do not have it
    counts = None if tops is None else {float(rating): n for rating, n in tops.items()}
    reasons: dict[str, None] = {}
    rows = []
    for name, figures in paper.rows(protocol).items():
        cells = []
        for metric, other in others.items():
            why = None if other else paper.doubt(name, metric, counts)
            if why is not None:
                reasons[why] = None
            cells.append("-" if other else f"{figures[metric]:.3f}{'†' if why else ''}")
        rows.append([f"{name} (paper)", *cells, "-"])
    notes = [f"† cannot be right: {'; '.join(reasons)}"] if reasons else []
    if protocol == "lightgbm":
        notes.append("the rows of the paper leak too: its test data chose the number of trees")
    return rows, notes


def format_seconds(seconds: float) -> str:
    """Seconds with one decimal; a dash if nothing was measured."""
    return "-" if math.isnan(seconds) else f"{seconds:.1f}"


def tabulate_description(found: Description, title: str) -> Table:
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
    return Table(title, columns, [row], notes)


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


def _notes(judged: Evaluation | Comparison) -> list[str]:
    return [judged.describe_queries(), f"rule {judged.rule.describe()}"]


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


def _render(parts: Sequence[RenderableType], terminal: bool) -> str:
    console = Console(
        file=StringIO(),
        width=_WIDTH,
        force_terminal=terminal,
        force_jupyter=False,
        legacy_windows=False,
        color_system="standard" if terminal else None,
    )
    with console.capture() as captured:
        console.print(Group(*parts))
    return "".join(f"{line.rstrip()}\n" for line in captured.get().rstrip().splitlines())


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Text escaped for Markdown."""
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
