"""Deadlines: the caller sets one, and long loops check whether it has passed.

Python cannot stop a thread from outside. So work that may take long is cut into pieces, and between two of them it
calls ``check_deadline``, which costs nothing if no deadline is set.

Work in fresh processes, from a script, a notebook or a prompt.

Processes are fresh because threads of torch, numba and LightGBM do not survive a fork. They are not started by
``multiprocessing``, which would execute the caller's script again in each of them. Code of that script is sent by value
(cloudpickle); everything else is imported from the same paths. A process receives its tasks through a pipe, and ends at
once when that closes: no process is left behind, however the caller ends.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Any, Generic, NoReturn, TypeVar, cast

import cloudpickle

from tierank.errors import ParameterError, ProcessError, TierankError

_APPLIED: ContextVar[Deadline | None] = ContextVar("_APPLIED", default=None)


class Deadline:
    """A moment a number of seconds from now, after which work should stop.

    >>> deadline = Deadline(60)
    >>> with deadline.applied():
    ...     check_deadline()
    ...     deadline.cancel()
    ...     check_deadline()
    Traceback (most recent call last):
    TimeoutError: the work did not end before its deadline
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; 0 if it has passed."""
        return max(0.0, self._end - time.monotonic())

    def cancel(self) -> None:
        """Make it pass now, because the result is no longer needed."""
        self._end = 0.0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside this block ``check_deadline`` checks this deadline, for the current thread."""
        before = _APPLIED.set(self)
        try:
            yield
        finally:
            _APPLIED.reset(before)


def seconds_left() -> float:
    """Seconds until the current deadline; infinite if there is none."""
    deadline = _APPLIED.get()
    return math.inf if deadline is None else deadline.left


def check_deadline() -> None:
    """Raise TimeoutError if the current deadline has passed."""
    if not seconds_left():
        raise TimeoutError("the work did not end before its deadline")


Task = TypeVar("Task")
Answer = TypeVar("Answer")

# Ctrl-C reaches all processes of a terminal: only the caller handles it, and ends the others.
_START = """
import os, pickle, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
def start(stream):
    sys.path[:] = pickle.load(stream)
    from tierank.workers import work
    work(stream)
start(open(os.dup(0), "rb"))
"""
# Seconds in which a process has to end by itself.
_GRACE = 10.0


class WorkerPool(Generic[Task, Answer]):
    """Processes that each call ``start`` once, and then call its result with one task after the other.

    To be used in a ``with`` block, whose end ends them; immediately after an error or an interrupt.
    """

    def __init__(self, n_processes: int, start: Callable[[], Callable[[Task], Answer]]) -> None:
        self._start = _packed(start)
        self._threads = ThreadPoolExecutor(n_processes)  # one thread waits for each process
        self._started: list[_Worker] = []
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._lock, self._is_over = threading.Lock(), False

    def __enter__(self) -> WorkerPool[Task, Answer]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with self._lock:
            self._is_over = True
        for worker in self._started:
            if error is not None:
                worker.process.kill()
            else:
                worker.send(None)
        self._threads.shutdown(cancel_futures=True)
        for worker in self._started:
            worker.wait()

    def answers(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """The results of the tasks, in the order of completion."""
        packed = [(str(task), _packed(task)) for task in tasks]
        for future in as_completed([self._threads.submit(self._ask, *one) for one in packed]):
            yield future.result()

    def _ask(self, name: str, task: bytes) -> Any:
        try:
            worker = self._idle.get_nowait()
        except Empty:
            with self._lock:
                if self._is_over:
                    got, expected = "a task", "no more, as the processes have been told to end"
                    raise ProcessError(got=got, expected=expected) from None
                worker = _Worker()
                self._started.append(worker)
            worker.send(sys.path)
            worker.send(self._start)
        answer = worker.ask(name, task)
        self._idle.put(worker)
        return answer


class _Worker:
    """The caller's view of a process."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", "-c", _START]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603  (ours)
        self._to, self._from = cast("tuple[IO[bytes], IO[bytes]]", (self.process.stdin, self.process.stdout))

    def send(self, content: object) -> None:
        """Send an object. If the process has ended, the missing reply will show it."""
        with suppress(OSError, ValueError):
            _send(self._to, content)

    def ask(self, name: str, task: bytes) -> Any:
        """The result of a task. Raises its error, or ProcessError if the process itself has ended."""
        self.send(task)
        try:
            answer, error, words = pickle.load(self._from)  # noqa: S301  (of our own process)
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            raise ProcessError(_ended(self.wait()), where=f"the process that worked on {name}") from None
        if answer is not None:
            return pickle.loads(answer)  # noqa: S301
        raised: Any = None
        with suppress(Exception):  # an error that cannot be restored from its pickle
            raised = pickle.loads(error)  # noqa: S301
        if not isinstance(raised, Exception):
            raised = RuntimeError(words.strip().splitlines()[-1])
        if not isinstance(raised, TierankError):
            raised.add_note(f"In another process:\n{words}")
        raise raised

    def wait(self) -> int:
        """Wait until it has ended, by force if necessary; returns its exit code."""
        with suppress(OSError):
            self._to.close()
        try:
            code = self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._from.close()
        return code


def work(stream: IO[bytes]) -> None:
    """The main loop of a process: read tasks and send replies, until told to end or the caller is gone."""
    answers = os.fdopen(os.dup(1), "wb")
    with suppress(OSError):
        os.dup2(2, 1)  # printed output must not mix with replies, so it goes to the caller's standard output
    tasks: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(stream, tasks), daemon=True).start()
    start, job = tasks.get(), None
    while (task := tasks.get()) is not None:
        reply: tuple[bytes | None, bytes, str]  # the answer, or the error and the text of its traceback
        try:
            if job is None:
                job = pickle.loads(start)()  # noqa: S301  (of our own caller)
            reply = _packed(job(pickle.loads(task))), b"", ""  # noqa: S301
        except SystemExit as ending:  # raised by the caller's code
            _leave(ending.code if isinstance(ending.code, int) else 1)
        except Exception as error:  # any error is sent to the caller
            sent = b""
            with suppress(Exception):  # an error with content that cannot be sent; its text can
                sent = cloudpickle.dumps(error)
            reply = None, sent, "".join(traceback.format_exception(error))
        _send(answers, reply)


def _listen(stream: IO[bytes], tasks: SimpleQueue[Any]) -> None:
    """Pass on received tasks; end the process if the caller is gone, even during a task."""
    message: Any = ...
    while message is not None:
        try:
            message = pickle.load(stream)  # noqa: S301
        except (EOFError, OSError, pickle.UnpicklingError):
            _leave(1)
        tasks.put(message)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _send(stream: IO[bytes], content: object) -> None:
    pickle.dump(content, stream)
    stream.flush()


def _packed(content: object) -> bytes:
    try:
        return bytes(cloudpickle.dumps(content))
    except Exception as error:  # pickling may execute the caller's code, which can raise anything
        raise ParameterError(
            expected="objects that can be sent to another process",
            got=f"one that cannot: {error}",
            fix="`n_jobs=1` works in this process, and sends nothing",
        ) from None


def _ended(code: int) -> str:
    """How a process ended, in words.

    >>> _ended(3), _ended(-11)
    ('ended with exit code 3', 'was ended by SIGSEGV')
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}{', probably out of memory' if name == 'SIGKILL' else ''}"
