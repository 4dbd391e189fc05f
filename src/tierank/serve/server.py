"""The server behind ``tierank serve``: a socket, a log, signals, and models that are replaced while it runs."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.errors import ParameterError
from tierank.serve.counters import Counters
from tierank.serve.extra import need_extra
from tierank.serve.limits import Limits
from tierank.serve.workers import Place, fork_workers
from tierank.settings import as_choice, as_limit, as_number, as_positive, as_whole

if TYPE_CHECKING:
    from types import FrameType

    from tierank.serve.application import Service

LOG = logging.getLogger("tierank.serve")

# Seconds that requests have to come to an end, after the server was told to.
_DRAIN = 30
# Seconds that a connection without requests is kept: longer than proxies do, which would write to a closed one.
_KEPT = 75
_HANGUP = getattr(signal, "SIGHUP", None)


@dataclass(frozen=True)
class Settings:
    """Where and how to serve; ``log`` is ``"text"``, ``"json"`` or ``"quiet"``."""

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    threads: int | None = None
    watch: float | None = None
    log: str = "text"
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        as_number("port", self.port, 0, 65535)
        as_whole("workers", self.workers)
        as_limit("threads", self.threads)
        as_choice("log", self.log, ("text", "json", "quiet"))
        if self.watch is not None:
            as_positive("watch", self.watch)


def serve(folders: Mapping[str, Path], settings: Settings) -> None:
    """Serve the models of these folders until told to stop: SIGTERM or Ctrl-C, after which requests come to their end.

    The socket is taken first and the models are loaded next, so that nobody is kept waiting for either error.
    """
    need_extra()
    _log_to_stderr(settings.log)
    with _Hangups() as hangups, _bound(settings.host, settings.port) as opened:
        counters = Counters(list(folders), settings.workers)
        place = Place() if settings.workers == 1 else fork_workers(settings.workers)
        if place is None:  # the parent of workers that have all ended
            return
        counters.process = place.number
        _serve_here(folders, settings, opened, counters, place, hangups)


def _serve_here(
    folders: Mapping[str, Path],
    settings: Settings,
    opened: socket.socket,
    counters: Counters,
    place: Place,
    hangups: _Hangups,
) -> None:
    """Serve in this process."""
    import uvicorn

    # Only now: a process that forks must have neither numpy's threads nor torch's.
    from tierank.serve.application import Service
    from tierank.serve.models import Model

    models = [Model.read(name, folder) for name, folder in folders.items()]
    service = Service(models, settings.limits, settings.threads, counters)

    class Server(uvicorn.Server):
        """uvicorn's server, with signals of our own: it drains and returns, and SIGHUP replaces models."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            place.tell_ready()
            if place.is_first:
                LOG.info("serving %s at %s; Ctrl-C stops it", _listed(service), _address(opened))

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            control = _Control(self, service, settings.watch, place, hangups)
            with control:
                yield
            if control.was_interrupted:
                raise KeyboardInterrupt

    config = uvicorn.Config(
        service.application(),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_DRAIN,
        timeout_keep_alive=_KEPT,
    )
    Server(config).run([opened])


class _Control:
    """What a server hears while it runs, and what it does then."""

    def __init__(self, server: Any, service: Service, watch: float | None, place: Place, hangups: _Hangups) -> None:
        self.server, self.service, self.watch, self.place, self.hangups = server, service, watch, place, hangups
        self.was_interrupted = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()

    def __enter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        heard = [signal.SIGTERM] if self.place.parent is not None else [signal.SIGTERM, signal.SIGINT]
        self._before = {number: signal.signal(number, self._stop) for number in heard}
        self.hangups.call(lambda: self._loop.call_soon_threadsafe(self._start, self._replace(changed_only=False)))
        if self.watch is not None:
            self._start(self._watch(self.watch))
        if self.place.parent is not None:  # closed where the parent is gone, however it went
            self._loop.add_reader(self.place.parent, self._stop_alone, self.place.parent)

    def __exit__(self, *error: object) -> None:
        self.hangups.call(None)
        if self.place.parent is not None:
            self._loop.remove_reader(self.place.parent)
        for task in self._tasks:
            task.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.server.should_exit and number == signal.SIGINT:
            self.server.force_exit = True  # a second Ctrl-C waits for nobody
        self.was_interrupted = self.was_interrupted or number == signal.SIGINT
        self.service.is_stopping = self.server.should_exit = True

    def _stop_alone(self, parent: int) -> None:
        self._loop.remove_reader(parent)
        self._stop(signal.SIGTERM, None)

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._replace(changed_only=True)

    async def _replace(self, changed_only: bool) -> None:
        """Load models anew, beside the old ones and in a thread of its own."""
        async with self._one_at_a_time:
            for model in self.service.models.values():
                if not changed_only or model.has_changed:
                    await asyncio.to_thread(self.service.replace, model)


class _Hangups:
    """SIGHUP, from the first moment on: one that comes while models are loaded is answered after that."""

    def __init__(self) -> None:
        self._answer: Any = None
        self._n_heard = 0

    def __enter__(self) -> _Hangups:
        self._before = None if _HANGUP is None else signal.signal(_HANGUP, self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        if _HANGUP is not None:
            signal.signal(_HANGUP, self._before or signal.SIG_DFL)

    def call(self, answer: Any) -> None:
        """From now on, and once for those that came before."""
        self._answer = answer
        if answer is not None and self._n_heard:
            answer()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._n_heard += 1
        if self._answer is not None:
            self._answer()


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket of this address; an error that says what to do where it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise ParameterError(f"host: expected an address or name of this machine, got {host!r}") from None
    with socket.socket(family, kind, protocol) as opened:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind(address)
        except OSError as error:
            raise ParameterError(_unbound(error, host, port)) from None
        opened.set_inheritable(True)
        yield opened


def _unbound(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port: expected a free one, got {port}, which another process has; choose another, or 0 for any"
    if error.errno == errno.EACCES:
        return f"port: expected one that this user may take, got {port}; choose one from 1024 on"
    return f"host: expected an address of this machine, got {host!r}: {error.strerror}"


def _address(opened: socket.socket) -> str:
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listed(service: Service) -> str:
    return ", ".join(
        f"{name} ({type(model.version.ranker).__name__}, {model.version.features.n} features"
        f"{', whole lists' if model.version.needs_list else ''})"
        for name, model in service.models.items()
    )


def _log_to_stderr(kind: str) -> None:
    """One line for each event; of other libraries only what goes wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines() if kind != "json" else _JsonLines())
    levels = {"tierank": logging.WARNING if kind == "quiet" else logging.INFO, "uvicorn": logging.WARNING}
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers, logger.propagate = [handler], False


class _Lines(logging.Formatter):
    """Lines for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One event; a bug of ours brings its traceback along."""
        text = record.getMessage()
        if hasattr(record, "request"):
            of = record.request
            scored = f" {of['model']} {of['documents']} documents" if of["model"] is not None else ""
            text = f"{of['code']} {of['method']} {of['path']}{scored} {of['milliseconds']:.1f} ms"
        elif record.levelno >= logging.ERROR:
            text = f"ERROR {text}"
        where = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{_when(record)} {text}{where}"


class _JsonLines(logging.Formatter):
    """Lines for machines, one object each."""

    def format(self, record: logging.LogRecord) -> str:
        """One event."""
        content = {"time": _when(record), "level": record.levelname.lower(), "message": record.getMessage()}
        if hasattr(record, "request"):
            content |= record.request
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content)


def _when(record: logging.LogRecord) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03}Z"
