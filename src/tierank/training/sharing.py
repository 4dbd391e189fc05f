"""Results that the members of a model share: computed once for the same data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from tierank.dataset import RankingDataset

T = TypeVar("T")

_SHARED: ContextVar[list[tuple[RankingDataset, Hashable, Any]] | None] = ContextVar("_SHARED", default=None)


@contextmanager
def shared_work() -> Iterator[None]:
    """Inside this block ``share`` stores its results. The data must not change meanwhile."""
    before = _SHARED.set([])
    try:
        yield
    finally:
        _SHARED.reset(before)


def share(data: RankingDataset, key: Hashable, find: Callable[[], T]) -> T:
    """The result of ``find()``, computed once per block for the same data and key.

    >>> data = RankingDataset([[1.0]])
    >>> with shared_work():
    ...     share(data, "n", lambda: 1), share(data, "n", lambda: 2)
    (1, 1)
    """
    known = _SHARED.get()
    if known is None:
        return find()
    for other, name, result in known:
        if other is data and name == key:
            return result  # type: ignore[no-any-return]
    result = find()
    known.append((data, key, result))
    return result
