"""Scoring over HTTP: an ASGI application for your own services, and the server behind ``tierank serve``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tierank.serve.limits import Limits

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from tierank.rankers import Ranker

__all__ = ["Limits", "app"]


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
    from tierank.extras import require

    require("tierank serve", "starlette", "uvicorn", "msgspec")
    from tierank.serve.application import Service
    from tierank.serve.keys import Keys
    from tierank.serve.models import ServedModel

    _check_arguments(models, limits)
    admitted = None if keys is None else Keys(keys)
    served = [ServedModel.of(name, ranker) for name, ranker in models.items()]
    return Service(served, limits, threads, keys=admitted).application()


def _check_arguments(models: Any, limits: Any) -> None:
    from tierank.errors import ParameterError

    if not isinstance(models, Mapping):
        got, fix = type(models).__name__, 'give names: app({"products": ranker})'
        raise ParameterError(argument="models", expected="a dict of fitted rankers by name", got=got, fix=fix)
    if limits is not None and not isinstance(limits, Limits):
        got, fix = type(limits).__name__, "limits=Limits(timeout=2), for example"
        raise ParameterError(argument="limits", expected="tierank.serve.Limits", got=got, fix=fix)
