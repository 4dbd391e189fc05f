"""How many threads and processes are used, and work that is divided among threads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tierank.errors import ParameterError

T = TypeVar("T")

_LOADED_IN = os.getpid()
_ALONE = ContextVar("_ALONE", default=False)


def n_threads(n_jobs: int | None, worth: int | None = None) -> int:
    """The number of threads to use: None and -1 mean one for each core that this process may use.

    With None, it is at most ``worth``, the number of threads that the work is worth: the threads of OpenMP spin while
    they wait for each other. If another program has the core of one of them, small steps take many times as long as
    with one thread. It is also at most ``OMP_NUM_THREADS``; -1 is, too.

    A forked process gets one thread: the OpenMP threads of torch and LightGBM do not survive a fork, and waiting for
    them would never end. A number far above that of the cores is reduced to ``most_workers()``: more threads would only
    take memory, and results do not depend on their number.
    """
    workers = n_workers(n_jobs)
    if os.getpid() != _LOADED_IN or _ALONE.get():
        return 1
    if n_jobs is not None and n_jobs > 0:
        return workers
    limits = [workers, _told_threads(), worth if n_jobs is None else None]
    return min(limit for limit in limits if limit is not None)


def n_workers(n_jobs: int | None) -> int:
    """The number of threads or processes that ``n_jobs`` asks for: None and -1 mean one for each core.

    The processes of a team on one machine share its cores: ``LOCAL_WORLD_SIZE`` says how many there are, as with
    torchrun.
    """
    if n_jobs is not None and (not isinstance(n_jobs, (int, np.integer)) or (n_jobs < 1 and n_jobs != -1)):
        raise ParameterError(
            argument="n_jobs", expected="an integer >= 1, or -1 or None for one per core", got=repr(n_jobs)
        )
    if n_jobs is not None and n_jobs > 0:
        return min(int(n_jobs), most_workers())
    return max(1, n_cores() // (_number_in("LOCAL_WORLD_SIZE") or 1))


def most_workers() -> int:
    """The most threads or processes that are started on this machine: 4 for each core, and at least 64."""
    return max(64, 4 * n_cores())


def n_cores() -> int:
    """The number of cores that this process may use: those of its affinity mask, and of its container's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _quota())))


@cache
def _quota() -> float:
    return cpu_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))


def cpu_quota(own: Path, root: Path) -> float:
    """The CPU time per second that control groups allow this process: the lowest limit of its groups, or infinity.

    ``own`` lists the groups of the process (``/proc/self/cgroup``), ``root`` is where they are mounted. Inside a
    container, its group is usually the root itself, and the path in ``own`` does not exist there.
    """
    limits = [math.inf]
    for line in _text_of(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not path or (controllers and "cpu" not in controllers.split(",")):
            continue
        top = root / controllers if controllers else root
        group = Path(path.lstrip("/"))
        folders = (top, *(top / part for part in (group, *group.parents)))
        limits += [_limit_of(folder, is_v2=not controllers) for folder in folders]
    return min(limits)


def _limit_of(folder: Path, is_v2: bool) -> float:
    names = ("cpu.max",) if is_v2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    words = " ".join(_text_of(folder / name) for name in names).split()
    if len(words) != 2 or not all(word.isdecimal() and int(word) for word in words):
        return math.inf  # "max", -1, or no such file
    return int(words[0]) / int(words[1])


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):  # also bytes that no path or text has
        return ""


def _told_threads() -> int | None:
    """``OMP_NUM_THREADS``, but not from torchrun, which sets it to 1 for every process that shares a machine."""
    return None if _number_in("LOCAL_WORLD_SIZE") else _number_in("OMP_NUM_THREADS")


def _number_in(variable: str) -> int | None:
    """The number >= 1 in an environment variable; the first one of a list, which OpenMP allows."""
    told = os.environ.get(variable, "").split(",")[0].strip()
    return int(told) if told.isdecimal() and int(told) > 0 else None


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
