"""Reports: results as text, Markdown, figures and HTML pages."""

from tierank.report.figures import draw_improvement as draw_improvement
from tierank.report.tables import Table as Table
from tierank.report.tables import tabulate as tabulate
from tierank.report.tables import tabulate_comparison as tabulate_comparison
from tierank.report.tables import tabulate_contrasts as tabulate_contrasts
from tierank.report.tables import tabulate_description as tabulate_description
from tierank.report.tables import tabulate_drift as tabulate_drift
from tierank.report.tables import tabulate_evaluation as tabulate_evaluation
from tierank.report.tables import tabulate_paper as tabulate_paper
from tierank.report.tables import tabulate_run as tabulate_run
from tierank.report.tables import tabulate_segments as tabulate_segments
from tierank.report.tables import tabulate_worst as tabulate_worst
from tierank.report.tables import write_per_query as write_per_query
