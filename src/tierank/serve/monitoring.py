"""What operators see: counters in the text format of Prometheus, and the log on standard error, as text or JSON."""

from __future__ import annotations

import json
import logging
import mmap
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence

ROUTES = ("rank", "score", "health", "ready", "models", "metrics", "openapi", "other")
CODES = (200, 400, 401, 404, 405, 408, 413, 415, 422, 500, 503, 504)
_TIMED = ("rank", "score")
# Upper bounds of the latency buckets, in seconds.
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_BUCKETS = (*map(repr, _BOUNDS), "+Inf")

_REQUESTS, _SECONDS, _RELOADS = "tierank_requests_total", "tierank_request_seconds", "tierank_model_reloads_total"
_QUERIES, _DOCUMENTS = "tierank_queries_scored_total", "tierank_documents_scored_total"
# What is counted: the type for Prometheus, and the meaning.
_FAMILIES = {
    _REQUESTS: ("counter", "Requests by route and status code."),
    _SECONDS: ("histogram", "Time to answer, from the head of the request."),
    _QUERIES: ("counter", "Queries that were scored."),
    _DOCUMENTS: ("counter", "Documents that were scored."),
    _RELOADS: ("counter", "New models in the folder of a model, by outcome."),
}


def labelled(name: str, **labels: object) -> str:
    """A metric with its labels.

    >>> labelled("tierank_queries_scored_total", model="products")
    'tierank_queries_scored_total{model="products"}'
    """
    listed = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{listed}}}"


class Counters:
    """Counts of requests, documents and models.

    Each of ``n_processes`` has a row of numbers in memory that forks share; the process that answers adds them up.

    >>> counters = Counters(["products"])
    >>> counters.count_request("rank", 200, 0.004)
    >>> counters.total('tierank_requests_total{route="rank",code="200"}')
    1.0
    """

    def __init__(self, models: Sequence[str], n_processes: int = 1) -> None:
        seconds = [labelled(f"{_SECONDS}_bucket", route=route, le=end) for route in _TIMED for end in _BUCKETS]
        seconds += [labelled(f"{_SECONDS}_{what}", route=route) for route in _TIMED for what in ("sum", "count")]
        outcomes = ("replaced", "refused")
        self._names = {
            _REQUESTS: [labelled(_REQUESTS, route=route, code=code) for route in ROUTES for code in CODES],
            _SECONDS: seconds,
            _QUERIES: [labelled(_QUERIES, model=model) for model in models],
            _DOCUMENTS: [labelled(_DOCUMENTS, model=model) for model in models],
            _RELOADS: [labelled(_RELOADS, model=model, outcome=one) for model in models for one in outcomes],
        }
        names = [name for names in self._names.values() for name in names]
        self._places = {name: place for place, name in enumerate(names)}
        self.process = 0
        self._numbers = memoryview(mmap.mmap(-1, 8 * len(names) * n_processes)).cast("d")  # shared, and all 0

    def count_request(self, route: str, code: int, seconds: float) -> None:
        """Count an answered request."""
        self._add(labelled(_REQUESTS, route=route, code=code if code in CODES else 500))
        if route in _TIMED:
            for end in _BUCKETS[bisect_left(_BOUNDS, seconds) :]:
                self._add(labelled(f"{_SECONDS}_bucket", route=route, le=end))
            self._add(labelled(f"{_SECONDS}_sum", route=route), seconds)
            self._add(labelled(f"{_SECONDS}_count", route=route))

    def count_scored(self, model: str, n_queries: int, n_documents: int) -> None:
        """Count scored queries and documents."""
        self._add(labelled(_QUERIES, model=model), n_queries)
        self._add(labelled(_DOCUMENTS, model=model), n_documents)

    def count_reload(self, model: str, outcome: str) -> None:
        """Count a new model that was ``"replaced"`` or ``"refused"``."""
        self._add(labelled(_RELOADS, model=model, outcome=outcome))

    def _add(self, name: str, amount: float = 1) -> None:
        self._numbers[self._places[name] + self.process * len(self._places)] += amount

    def total(self, name: str) -> float:
        """The sum over all processes of a metric with its labels."""
        return float(sum(self._numbers[self._places[name] :: len(self._places)]))

    def lines(self) -> list[str]:
        """All counts in the text format of Prometheus; codes that no request had are left out."""
        lines = []
        for family, (kind, what) in _FAMILIES.items():
            totals = {name: self.total(name) for name in self._names[family]}
            shown = [f"{name} {total:.15g}" for name, total in totals.items() if total or family != _REQUESTS]
            lines += [f"# HELP {family} {what}", f"# TYPE {family} {kind}", *shown]
        return lines


def log_to_stderr(kind: str) -> None:
    """Log one line per event; of other libraries only errors.

    Parameters
    ----------
    kind : str
        ``"text"``, ``"json"``, or ``"quiet"`` for problems only.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if kind == "json" else _TextLines())
    own = logging.WARNING if kind == "quiet" else logging.INFO
    for name, level in (("tierank", own), ("uvicorn", logging.ERROR), ("asyncio", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers, logger.propagate = [handler], False


class _TextLines(logging.Formatter):
    """Lines of text."""

    def format(self, record: logging.LogRecord) -> str:
        """One event; a bug with its traceback."""
        text = record.getMessage()
        if hasattr(record, "request"):
            of = record.request
            scored = f" {of['model']} {of['documents']} documents" if of["model"] is not None else ""
            text = f"{of['code']} {of['method']} {of['path']}{scored} {of['milliseconds']:.1f} ms"
        elif record.levelno >= logging.ERROR:
            text = f"ERROR {text}"
        where = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{_time_of(record)} {text}{where}"


class _JsonLines(logging.Formatter):
    """Lines of JSON, one object each."""

    def format(self, record: logging.LogRecord) -> str:
        """One event."""
        content = {"time": _time_of(record), "level": record.levelname.lower(), "message": record.getMessage()}
        content |= getattr(record, "request", {})
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content)


def _time_of(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03}Z"
