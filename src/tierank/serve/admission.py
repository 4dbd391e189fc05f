"""What is let in, and what is refused: refusals, thread pools with a bounded queue, and API keys."""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import hmac
import json
import logging
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tierank.errors import DataError, ParameterError
from tierank.workers import Deadline, check_deadline

LOG = logging.getLogger("tierank.serve")
T = TypeVar("T")

# The most characters of a value that a message shows.
_SHOWN = 60
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
# Characters that a header can hold unchanged.
_KEY = re.compile(r"[\x21-\x7e]+")
# The largest file of keys, in bytes.
_LARGEST_FILE = 1 << 20


class Refusal(DataError):
    """A request that is refused: the HTTP status code, the four parts of the message, and headers."""

    def __init__(
        self, code: int, where: str, expected: str, got: str, fix: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(where=where, expected=expected, got=got, fix=fix)
        self.code, self.headers = code, dict(headers or {})


def busy(expected: str, got: str, fix: str) -> Refusal:
    """The refusal of a server that is busy; the same request may succeed later."""
    return Refusal(503, "server", expected, got, fix, {"Retry-After": "1"})


def stopping() -> Refusal:
    """The refusal of a server that is stopping."""
    return busy("a running server", "one that is shutting down", "retry on another instance")


def cut(text: str) -> str:
    """A text of the caller, shortened for a message."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def shown(value: Any) -> str:
    """A short description of a received value.

    >>> shown([1, 2]), shown(None), shown("x" * 100)[:5]
    ('a list of 2', 'null', "'xxxx")
    """
    if isinstance(value, (list, dict)):
        return f"a list of {len(value)}" if isinstance(value, list) else "an object"
    if isinstance(value, str):
        return repr(cut(value))
    if isinstance(value, float):
        return f"{value:g}" if math.isinf(value) else repr(value)
    if isinstance(value, int) and abs(value) > _LARGEST_FLOAT32:
        return "an integer beyond 3.4e38"
    return json.dumps(value)


class Pool:
    """Some threads with a bounded queue, for one kind of work, so that slow work does not delay other kinds.

    Work that has not started by its deadline never starts. A thread cannot be stopped: it runs until it checks the
    deadline itself, and counts as busy until then.
    """

    def __init__(self, what: str, threads: int, max_waiting: int) -> None:
        self.what, self.threads, self.max_waiting = what, threads, max_waiting
        self.at_work: set[Deadline] = set()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"tierank-{what}")
        self._is_closed = False

    async def run(self, work: Callable[[], T], deadline: Deadline) -> T:
        """Do the work in one of the threads, and return its result."""

        def in_time() -> T:
            with deadline.applied():
                check_deadline()
                return work()

        if self._is_closed:
            raise stopping()
        if len(self.at_work) >= self.threads + self.max_waiting:
            raise busy(f"at most {self.max_waiting} {self.what} waiting", "more", "retry later, or start more servers")
        self.at_work.add(deadline)
        try:
            future = self._pool.submit(in_time)
        except RuntimeError:
            deadline.cancel()  # the work would be done for nobody
            self.at_work.discard(deadline)
            raise busy("a free thread", "none (memory or ulimit)", "retry later") from None
        future.add_done_callback(lambda _: self.at_work.discard(deadline))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), deadline.left)
        except TimeoutError:
            deadline.cancel()
            fix = "ask for less at once, or raise the limit timeout of the server"
            raise Refusal(504, "server", "an answer in time", "no answer before the deadline", fix) from None
        except asyncio.CancelledError:
            deadline.cancel()
            raise

    def close(self) -> None:
        """Let all deadlines pass: waiting work never starts, and running work stops at its next check."""
        self._is_closed = True
        for deadline in list(self.at_work):
            deadline.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)


class Keys:
    """The accepted API keys; only their SHA-256 is kept.

    >>> keys = Keys(["first-key", "second-key"])
    >>> keys.admit("Bearer second-key"), keys.admit("bearer third-key"), keys.admit(None)
    (True, False, False)
    """

    def __init__(self, keys: Iterable[str]) -> None:
        if not isinstance(keys, Iterable):
            raise ParameterError(argument="keys", expected="a list of texts", got=type(keys).__name__)
        given = [keys] if isinstance(keys, str) else list(keys)
        for number, key in enumerate(given, 1):
            if not isinstance(key, str) or not _KEY.fullmatch(key):
                got = f"something else as key {number}"
                raise ParameterError(argument="keys", expected="printable ASCII without blanks", got=got)
        if not given:
            fix = "leave them out to accept all requests"
            raise ParameterError(argument="keys", expected="at least one", got="none", fix=fix)
        self._digests = [_digest(key) for key in given]

    @classmethod
    def read(cls, path: Path, *, again: bool = False) -> Keys:
        """The keys of a file, one per line; blank lines and lines that start with ``#`` are ignored.

        A file that is read ``again`` cannot be a pipe: a running server would wait for its writer.
        """
        if path.is_dir() or (again and path.is_fifo()):
            got = "a folder" if path.is_dir() else "a pipe, which can be read only once"
            raise ParameterError(where=path, expected="a file of API keys", got=got)
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
            is_public = os.fstat(file.fileno()).st_mode & stat.S_IROTH
        # Only the ends of lines that editors write: other control characters do not divide a key in two.
        text = content.removeprefix(codecs.BOM_UTF8).decode("latin-1")
        numbered = [(n, line.strip(" \t")) for n, line in enumerate(re.split("\r\n|\r|\n", text), 1)]
        numbered = [(n, line) for n, line in numbered if line and not line.startswith("#")]
        if not numbered or len(content) > _LARGEST_FILE:
            got = f"more than {_LARGEST_FILE} bytes" if numbered else "none"
            raise ParameterError(where=path, expected="one API key per line", got=got)
        for n, line in numbered:
            if not _KEY.fullmatch(line):
                expected = "a key of printable ASCII without blanks"
                raise ParameterError(where=f"{path}:{n}", expected=expected, got="something else")
        if is_public:
            LOG.warning("%s: every user of this machine can read the API keys; run chmod 600 on the file", path)
        return cls([line for _, line in numbered])

    def admit(self, authorization: str | None) -> bool:
        """Whether the header has one of the keys, in constant time."""
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        same = [hmac.compare_digest(given, one) for one in self._digests]
        return scheme.lower() == "bearer" and any(same)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
