"""Compiled loops: arrays in, arrays out. The only package that imports numba.

A kernel is a plain loop over one part of the work (a span of bytes, a span of queries). ``@compiled`` makes it release
the interpreter lock, and ``in_threads`` runs it on the parts in parallel. Functions that only kernels call are
``@inner``. numba's own parallel loops are not used: their thread pools do not survive a fork, and they take several
times as long to compile. ``compiling`` says how kernels are compiled, and ``keeping`` where the compiled code is
stored.
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

__all__ = [
    "Matrix",
    "OutMatrix",
    "Vector",
    "allocating",
    "compiled",
    "in_threads",
    "inner",
    "most_workers",
    "n_threads",
    "one_thread",
]

T = TypeVar("T")

_LOADED_IN = os.getpid()
_ALONE = ContextVar("_ALONE", default=False)


def n_threads(n_jobs: int | None) -> int:
    """The number of threads to use: None and -1 mean one for each core that this process may run on.

    The processes of a team on one machine share its cores: ``LOCAL_WORLD_SIZE`` says how many there are, as with
    torchrun. A forked process gets one thread: the OpenMP threads of torch and LightGBM do not survive a fork, and
    waiting for them would never end. A number far above that of the cores is reduced to ``most_workers()``: more
    threads would only take memory, and results do not depend on their number.
    """
    if n_jobs is not None and (not isinstance(n_jobs, (int, np.integer)) or (n_jobs < 1 and n_jobs != -1)):
        raise ParameterError(
            argument="n_jobs", expected="an integer >= 1, or -1 or None for one per core", got=repr(n_jobs)
        )
    if os.getpid() != _LOADED_IN or _ALONE.get():
        return 1
    if n_jobs is not None and n_jobs > 0:
        return min(int(n_jobs), most_workers())
    cores = _n_cores()
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, cores // max(1, int(told) if told.isdecimal() else 1))


def most_workers() -> int:
    """The most threads or processes that are started on this machine: 4 for each core, and at least 64."""
    return max(64, 4 * _n_cores())


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside this block ``n_threads`` returns 1, for the current thread: for many small jobs that run in parallel.

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
    """Call ``work(*part)`` for every part, in threads; returns the results in the order of the parts."""
    parts = list(parts)
    workers = min(n_threads(n_jobs), len(parts))
    if workers <= 1:
        return [work(*part) for part in parts]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda part: work(*part), parts))
