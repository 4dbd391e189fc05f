"""Reports: results as text, Markdown, figures and HTML pages."""

from tierank.report.figures import draw_improvement
from tierank.report.tables import (
    Table,
    tabulate,
    tabulate_comparison,
    tabulate_contrasts,
    tabulate_description,
    tabulate_drift,
    tabulate_evaluation,
    tabulate_run,
    tabulate_segments,
    tabulate_worst,
    write_per_query,
)

__all__ = [
    "Table",
    "draw_improvement",
    "tabulate",
    "tabulate_comparison",
    "tabulate_contrasts",
    "tabulate_description",
    "tabulate_drift",
    "tabulate_evaluation",
    "tabulate_run",
    "tabulate_segments",
    "tabulate_worst",
    "write_per_query",
]
