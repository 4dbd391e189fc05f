"""Limits on the size and duration of requests. Every limit is an option of ``tierank serve``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

# Larger bodies are read in pieces, and count towards ``max_large_bytes``.
LARGE = 256 << 10


def _limit(default: float, what: str, least: int = 1) -> Any:
    return field(default=default, metadata={"what": what, "least": least})


@dataclass(frozen=True)
class Limits:
    """Limits of the application, per process: sizes, queues and deadlines."""

    max_bytes: int = _limit(16 << 20, "bytes of a request")
    max_large_bytes: int = _limit(128 << 20, "bytes of all requests above 256 KB in the server at a time")
    max_documents: int = _limit(10_000, "documents of a request")
    max_waiting: int = _limit(256, "requests that wait for a thread", least=0)
    max_explaining: int = _limit(8, "explanations that wait for their thread", least=0)
    body_timeout: float = _limit(30.0, "seconds within which a body has to arrive")
    timeout: float = _limit(10.0, "seconds that an answer may take after the body has arrived")

    def __post_init__(self) -> None:
        _check(self)
        if self.max_large_bytes < self.max_bytes:
            from tierank.errors import ParameterError

            raise ParameterError(
                argument="max_large_bytes",
                expected=f"at least `max_bytes`, {self.max_bytes}",
                got=f"{self.max_large_bytes}",
            )


@dataclass(frozen=True)
class Connections:
    """Limits of connections, per process."""

    max_connections: int = _limit(512, "open connections")
    header_timeout: float = _limit(10.0, "seconds within which the head of a request has to arrive")
    idle_timeout: float = _limit(75.0, "seconds that a connection may be idle, or take to read an answer")
    drain_timeout: float = _limit(30.0, "seconds that running requests have to finish when the server stops")

    def __post_init__(self) -> None:
        _check(self)


def _check(limits: Limits | Connections) -> None:
    from tierank.settings import as_positive, as_whole  # loads numpy, which the help of the command does not need

    for one in fields(limits):
        value = getattr(limits, one.name)
        if isinstance(one.default, float):
            as_positive(one.name, value)
        else:
            as_whole(one.name, value, one.metadata["least"])
