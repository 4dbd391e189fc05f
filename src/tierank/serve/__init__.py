"""Scoring over HTTP: an ASGI application for your own services, and the server behind ``tierank serve``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tierank.rankers.base import Ranker

__all__ = ["Limits", "app"]

# Larger bodies have threads of their own, and count towards ``max_large_bytes``.
LARGE = 256 << 10


# Limits that may be 0.
_FROM_0 = ("max_waiting", "max_explaining")


class _Checked:
    """Checks its fields: whole numbers from their least value on, or positive seconds."""

    def __post_init__(self) -> None:
        from tierank.settings import as_positive, as_whole  # loads numpy, which the help of the command does not need

        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if isinstance(one.default, float):
                as_positive(one.name, value)
            else:
                as_whole(one.name, value, 0 if one.name in _FROM_0 else 1)


@dataclass(frozen=True)
class Limits(_Checked):
    """Limits of the application, per process: sizes, queues and deadlines. Each is an option of ``tierank serve``.

    Parameters
    ----------
    max_bytes : int, default 16777216
        Bytes of a request.
    max_large_bytes : int, default 134217728
        Bytes of all requests above 256 KB in the server at a time.
    max_documents : int, default 10000
        Documents of a request.
    max_waiting : int, default 256
        Requests that wait for a thread.
    max_explaining : int, default 8
        Explanations that wait for their thread.
    body_timeout : float, default 30.0
        Seconds within which a body has to arrive.
    timeout : float, default 10.0
        Seconds that an answer may take after the body has arrived.
    """

    max_bytes: int = 16_777_216
    max_large_bytes: int = 134_217_728
    max_documents: int = 10_000
    max_waiting: int = 256
    max_explaining: int = 8
    body_timeout: float = 30.0
    timeout: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_large_bytes < self.max_bytes:
            from tierank.errors import ParameterError

            expected = f"at least `max_bytes`, {self.max_bytes}"
            raise ParameterError(argument="max_large_bytes", expected=expected, got=f"{self.max_large_bytes}")


@dataclass(frozen=True)
class Connections(_Checked):
    """Limits of connections, per process. Each is an option of ``tierank serve``.

    Parameters
    ----------
    max_connections : int, default 512
        Open connections.
    idle_timeout : float, default 75.0
        Seconds that a connection may be idle between two requests.
    drain_timeout : float, default 30.0
        Seconds that running requests have to finish when the server stops.
    """

    max_connections: int = 512
    idle_timeout: float = 75.0
    drain_timeout: float = 30.0


def app(
    models: Mapping[str, Ranker],
    *,
    limits: Limits | None = None,
    threads: int | None = None,
    keys: Iterable[str] | None = None,
) -> Starlette:
    """An ASGI application that serves rankers, to mount or to run by any ASGI server.

    Every ranker scores a list before this returns, so that everything is compiled.

    Parameters
    ----------
    models : mapping of str to Ranker
        Fitted rankers by name; the first one answers requests that name no model.
    limits : Limits, optional
        Limits on requests.
    threads : int, optional
        Number of requests that are scored at the same time, each by one thread; default one per core.
    keys : iterable of str, optional
        API keys. If given, requests need the header ``Authorization: Bearer KEY`` with one of them, except for
        ``/health`` and ``/ready``.

    Returns
    -------
    Starlette
        The application.

    Examples
    --------
    >>> import tierank
    >>> from starlette.applications import Starlette
    >>> from starlette.routing import Mount
    >>> data = tierank.make_ranking(30, n_features=5, mean_length=10, max_length=20)
    >>> ranker = tierank.UMart(n_trees=5).fit(data)
    >>> service = Starlette(routes=[Mount("/ranking", app({"products": ranker}))])
    """
    from tierank.errors import ParameterError
    from tierank.extras import require

    require("tierank serve", "starlette", "uvicorn", "msgspec")
    from tierank.serve.admission import Keys
    from tierank.serve.application import Service
    from tierank.serve.served_models import ServedModel

    if not isinstance(models, Mapping):
        raise ParameterError(
            argument="models",
            expected="a dict of fitted rankers by name",
            got=type(models).__name__,
            fix='give names: app({"products": ranker})',
        )
    if limits is not None and not isinstance(limits, Limits):
        raise ParameterError(
            argument="limits",
            expected="tierank.serve.Limits",
            got=type(limits).__name__,
            fix="limits=Limits(timeout=2), for example",
        )
    admitted = None if keys is None else Keys(keys)
    served = [ServedModel.of(name, ranker) for name, ranker in models.items()]
    return Service(served, limits, threads, keys=admitted).application()
