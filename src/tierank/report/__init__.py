"""Numbers -> text, Markdown, figures and pages."""

from tierank.report.figures import draw_improvement
from tierank.report.tables import (
    Table,
    tabulate_comparison,
    tabulate_contrasts,
    tabulate_description,
    tabulate_evaluation,
    tabulate_run,
    write_per_query,
)

__all__ = [
    "Table",
    "draw_improvement",
    "tabulate_comparison",
    "tabulate_contrasts",
    "tabulate_description",
    "tabulate_evaluation",
    "tabulate_run",
    "write_per_query",
]
