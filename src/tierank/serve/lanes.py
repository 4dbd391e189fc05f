"""Thread pools for requests: each kind of work has its own, so that slow work does not delay other kinds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tierank.deadline import Deadline, check_deadline
from tierank.serve.refusals import Refusal, busy

T = TypeVar("T")


class Lane:
    """Some threads with a bounded queue. Work that misses its deadline is refused at once.

    Work that has not started by then never starts. A thread cannot be stopped: it runs until it checks the deadline
    itself, and counts as busy until then.
    """

    def __init__(self, what: str, threads: int, max_waiting: int) -> None:
        self.what, self.threads, self.max_waiting = what, threads, max_waiting
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"tierank-{what}")
        self._at_work: set[Deadline] = set()
        self._is_closed = False
        self._lock = threading.Lock()

    async def run(self, work: Callable[[], T], deadline: Deadline) -> T:
        """Do the work in one of the threads, and return its result."""
        future = self._start(work, deadline)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), deadline.left)
        except asyncio.CancelledError:
            deadline.cancel()
            raise
        except TimeoutError:
            deadline.cancel()
            raise Refusal(
                504,
                "server",
                "an answer in time",
                "no answer before the deadline",
                "ask for less at once, or raise the limit timeout of the server",
            ) from None

    def _start(self, work: Callable[[], T], deadline: Deadline) -> Future[T]:
        def applied() -> T:
            with deadline.applied():
                check_deadline()
                return work()

        with self._lock:
            if len(self._at_work) >= self.threads + self.max_waiting:
                raise busy(
                    f"at most {self.max_waiting} {self.what} waiting", "more", "try again, or start more servers"
                )
            self._at_work.add(deadline)
        try:
            future = self._pool.submit(applied)
        except RuntimeError:  # it was closed, or the system gives it no thread
            deadline.cancel()
            self._leave(deadline)
            if self._is_closed:
                raise stopping() from None
            raise busy("a thread", "none: the system has no memory for it, or a limit", "try again") from None
        future.add_done_callback(lambda _: self._leave(deadline))
        return future

    def _leave(self, deadline: Deadline) -> None:
        with self._lock:
            self._at_work.discard(deadline)

    def close(self) -> None:
        """Let all deadlines pass: waiting work never starts, and running work stops at its next check."""
        with self._lock:
            self._is_closed = True
            for deadline in self._at_work:
                deadline.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)


def stopping() -> Refusal:
    """The refusal of a server that is stopping."""
    return busy("to be running", "a server that is stopping", "ask another one")


class ByteBudget:
    """The memory budget of large bodies: a number of bytes for all of them together."""

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0
        self._lock = threading.Lock()

    def share(self) -> Share:
        """The share of one request, which is empty at first."""
        return Share(self)

    def take(self, n: int) -> None:
        """Take this many bytes. Refuses the request if they are not available."""
        with self._lock:
            if self.taken + n > self.most:
                raise busy(
                    f"at most {self.most} bytes of large requests at a time",
                    "more",
                    "try again, or raise the limit max_large_bytes of the server",
                )
            self.taken += n

    def give_back(self, n: int) -> None:
        """Return bytes to the budget."""
        with self._lock:
            self.taken -= n


class Share:
    """What one request has taken of a budget, so that all of it is returned, whatever happens."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget, self._taken = budget, 0

    def take(self, n: int) -> None:
        """Take more."""
        self._budget.take(n)
        self._taken += n

    def give_back(self) -> None:
        """Return everything."""
        self._budget.give_back(self._taken)
        self._taken = 0
