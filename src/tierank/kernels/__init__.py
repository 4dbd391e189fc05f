"""Compiled loops: arrays in, arrays out. The only home of numba.

A kernel is a plain loop over one part of the work (a span of bytes, a span of queries) under ``@compiled``, which
releases the interpreter's lock; ``in_threads`` runs it on the parts side by side. What kernels call is ``@inner``.
numba's own parallel loops are not used: their thread pools do not survive a fork, and they take several times longer to
compile. ``compiling`` says how kernels are compiled, ``keeping`` where their code is kept.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy as np

from tierank.errors import ParameterError
from tierank.kernels.compiling import Matrix, OutMatrix, Vector, allocating, compiled, inner
from tierank.settings import MOST_WORKERS

__all__ = ["Matrix", "OutMatrix", "Vector", "allocating", "compiled", "in_threads", "inner", "n_threads", "one_thread"]

T = TypeVar("T")

_LOADED_IN = os.getpid()
_ALONE = ContextVar("_ALONE", default=False)


def n_threads(n_jobs: int | None) -> int:
    """How many threads to use: None and -1 mean one for each core that this process may run on.

    The processes of a team on one machine share its cores: they are told by ``LOCAL_WORLD_SIZE``, as torchrun sets it.
    A process that was forked off has one: OpenMP's threads, torch's and LightGBM's, do not survive a fork, and waiting
    for them never ends.
    """
    is_number = isinstance(n_jobs, (int, np.integer)) and (1 <= n_jobs <= MOST_WORKERS or n_jobs == -1)
    if n_jobs is not None and not is_number:
        expected = f"an integer >= 1 and <= {MOST_WORKERS}, or -1 or None for one per core"
        raise ParameterError(argument="n_jobs", expected=expected, got=repr(n_jobs))
    if os.getpid() != _LOADED_IN or _ALONE.get():
        return 1
    if n_jobs is not None and n_jobs > 0:
        return int(n_jobs)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, cores // max(1, int(told) if told.isdecimal() else 1))


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside this block ``n_threads`` is 1, for the thread that is in it: where many small jobs run side by side.

    >>> with one_thread():
    ...     n_threads(8)
    1
    """
    before = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(before)


def in_threads(work: Callable[..., T], parts: Iterable[tuple[Any, ...]], n_jobs: int | None = None) -> list[T]:
    """``work(*part)`` for every part, in threads; results in the order of the parts."""
    parts = list(parts)
    workers = min(n_threads(n_jobs), len(parts))
    if workers <= 1:
        return [work(*part) for part in parts]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda part: work(*part), parts))
