"""Counters of the server, in the text format of Prometheus.

Every process of a server has a row of numbers in shared memory; the process that answers sums the rows.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Sequence

ROUTES = ("rank", "score", "health", "ready", "models", "metrics", "openapi", "other")
CODES = (200, 400, 401, 404, 405, 408, 413, 415, 422, 500, 503, 504)
OUTCOMES = ("replaced", "refused")
# Upper bounds of the latency buckets, in seconds.
_ENDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_TIMED = ("rank", "score")

Key = tuple[str, ...]


class Counters:
    """Counts by name and labels, shared by ``n_processes``.

    >>> counters = Counters(["products"])
    >>> counters.count_request("rank", 200, 0.004)
    >>> counters.total("requests", "rank", "200")
    1.0
    """

    def __init__(self, models: Sequence[str], n_processes: int = 1) -> None:
        keys: list[Key] = [("requests", route, str(code)) for route in ROUTES for code in CODES]
        keys += [("seconds", route, end) for route in _TIMED for end in (*map(repr, _ENDS), "+Inf", "sum")]
        keys += [(what, model) for what in ("documents", "queries") for model in models]
        keys += [("reloads", model, outcome) for model in models for outcome in OUTCOMES]
        self._places = {key: place for place, key in enumerate(keys)}
        self._models, self._n_processes, self.process = tuple(models), n_processes, 0
        size = 8 * len(keys) * n_processes
        # An anonymous map is shared across forks; the numbers start at 0.
        self._numbers = memoryview(mmap.mmap(-1, size)).cast("d")

    def count_request(self, route: str, code: int, seconds: float) -> None:
        """Count an answered request."""
        self._add(1, "requests", route, str(code if code in CODES else 500))
        if route in _TIMED:
            place = bisect_left(_ENDS, seconds)
            self._add(1, "seconds", route, repr(_ENDS[place]) if place < len(_ENDS) else "+Inf")
            self._add(seconds, "seconds", route, "sum")

    def count_scored(self, model: str, n_queries: int, n_documents: int) -> None:
        """Count scored documents."""
        self._add(n_queries, "queries", model)
        self._add(n_documents, "documents", model)

    def count_reload(self, model: str, outcome: str) -> None:
        """Count a model that was replaced, or a refused one."""
        self._add(1, "reloads", model, outcome)

    def total(self, *key: str) -> float:
        """The sum over all processes."""
        place, width = self._places[key], len(self._places)
        return float(sum(self._numbers[place + process * width] for process in range(self._n_processes)))

    def _add(self, amount: float, *key: str) -> None:
        self._numbers[self._places[key] + self.process * len(self._places)] += amount

    def lines(self) -> list[str]:
        """All counts in the text format of Prometheus."""
        lines = _head("tierank_requests_total", "counter", "Requests by route and status code.")
        for route in ROUTES:
            for code in CODES:
                n = self.total("requests", route, str(code))
                if n:
                    lines.append(f'tierank_requests_total{{route="{route}",code="{code}"}} {n:.0f}')
        lines += _head("tierank_request_seconds", "histogram", "Time to answer, from the head of the request.")
        for route in _TIMED:
            lines += self._histogram(route)
        for what in ("queries", "documents"):
            lines += _head(f"tierank_{what}_scored_total", "counter", f"{what.capitalize()} that were scored.")
            lines += [
                f'tierank_{what}_scored_total{{model="{model}"}} {self.total(what, model):.0f}'
                for model in self._models
            ]
        lines += _head("tierank_model_reloads_total", "counter", "New models in the folder of a model, by outcome.")
        lines += [
            f'tierank_model_reloads_total{{model="{model}",outcome="{outcome}"}}'
            f" {self.total('reloads', model, outcome):.0f}"
            for model in self._models
            for outcome in OUTCOMES
        ]
        return lines

    def _histogram(self, route: str) -> list[str]:
        name, n, lines = "tierank_request_seconds", 0.0, []
        for end in (*map(repr, _ENDS), "+Inf"):
            n += self.total("seconds", route, end)
            lines.append(f'{name}_bucket{{route="{route}",le="{end}"}} {n:.0f}')
        lines.append(f'{name}_sum{{route="{route}"}} {self.total("seconds", route, "sum")!r}')
        lines.append(f'{name}_count{{route="{route}"}} {n:.0f}')
        return lines


def gauge(name: str, what: str, values: Sequence[tuple[str, float]]) -> list[str]:
    """The lines of a gauge, one per set of labels."""
    return [*_head(name, "gauge", what), *(f"{name}{{{labels}}} {value:.15g}" for labels, value in values)]


def _head(name: str, kind: str, what: str) -> list[str]:
    return [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
