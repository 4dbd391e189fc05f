"""Description of a click log: counts, and what looks wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tierank.clicks.log import ClickLog
from tierank.files import for_json

# Sessions in which everything was clicked are suspicious if they are at least this long.
_LONG = 5


@dataclass(frozen=True)
class LogDescription:
    """The result of ``ClickLog.describe``.

    ``shown`` and ``click_through`` have one value per position, from the top; the click-through rate of a position is
    clicks / times shown, NaN if nothing was shown. ``problems`` describes what looks wrong.
    """

    n_sessions: int
    n_queries: int
    n_documents: int
    n_rows: int
    n_clicks: int
    clicks_per_session: float
    share_without_clicks: float
    shown: list[int]
    click_through: list[float]
    problems: list[str]

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON with all fields; unknown rates are None."""
        return for_json(asdict(self))

    def __str__(self) -> str:
        head = (
            f"{self.n_sessions:,} sessions, {self.n_queries:,} queries, {self.n_documents:,} documents,"
            f" {self.clicks_per_session:.2f} clicks per session, {self.share_without_clicks:.1%} of sessions without"
        )
        rows = [
            f"{k:>8} {n:>11,} {rate:>14.4f}"
            for k, (n, rate) in enumerate(zip(self.shown, self.click_through, strict=True), 1)
        ]
        table = [f"{'position':>8} {'shown':>11} {'click-through':>14}", *rows]
        return "\n".join([head, *table, *(f"looks wrong: {problem}" for problem in self.problems)])


def describe(log: ClickLog) -> LogDescription:
    """Count what is in a log."""
    shown = np.bincount(log.positions - 1, minlength=log.last_position)
    clicks = np.bincount(log.positions - 1, log.clicked, minlength=log.last_position)
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = clicks / shown
    per_session = log.per_session(log.clicked)
    return LogDescription(
        n_sessions=log.n_sessions,
        n_queries=log.n_queries,
        n_documents=log.n_documents,
        n_rows=log.n_rows,
        n_clicks=int(log.clicked.sum()),
        clicks_per_session=float(per_session.mean()) if log.n_sessions else 0.0,
        share_without_clicks=float((per_session == 0).mean()) if log.n_sessions else 0.0,
        shown=shown.tolist(),
        click_through=rates.tolist(),
        problems=_problems(log, per_session),
    )


def _problems(log: ClickLog, clicks_per_session: Any) -> list[str]:
    problems = [f"{_sessions(n)} left out: {reason}" for reason, n in log.dropped.items()]
    last = np.zeros(log.n_sessions, np.int64)
    np.maximum.at(last, log.session_of_row, log.positions)
    lengths = log.lengths
    is_beyond = log.clicked & (log.positions > np.repeat(lengths, lengths))
    key = log.session_of_row * len(log.document_ids) + log.documents
    unique, counts = np.unique(key, return_counts=True)
    repeated = len(np.unique(unique[counts > 1] // len(log.document_ids)))
    if isinstance(log.document_ids[0], tuple):  # kinds of documents, which may be repeated in a list
        repeated = 0
    all_clicked = int(((clicks_per_session == lengths) & (lengths >= _LONG)).sum())
    suspicions = (
        (int((last > lengths).sum()), "with gaps in their positions: rows of the list are missing"),
        (len(np.unique(log.session_of_row[is_beyond])), "with clicks beyond the list: in positions below its length"),
        (log.n_mixed, "mixing queries: each of their queries counts as a session"),
        (repeated, "showing a document twice"),
        (all_clicked, f"of {_LONG} documents or more in which all were clicked: robots?"),
    )
    problems += [f"{_sessions(n)} {what}" for n, what in suspicions if n]
    if not log.clicked.any():
        problems.append("there are no clicks")
    elif log.clicked.all():
        problems.append("everything was clicked: are rows of documents that were not clicked missing?")
    return problems


def _sessions(n: int) -> str:
    return f"{n:,} {'session' if n == 1 else 'sessions'}"
