"""The server behind ``tierank serve``: socket, signals, and replacement of models."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.errors import ParameterError, TierankError
from tierank.extras import require
from tierank.kernels import most_workers
from tierank.serve.counters import Counters
from tierank.serve.keys import Keys
from tierank.serve.limits import Connections, Limits
from tierank.serve.log import log_to_stderr
from tierank.serve.signals import HANGUP, Signals
from tierank.serve.snapshots import Snapshot
from tierank.serve.workers import PAUSE, Place, fork_workers
from tierank.settings import as_choice, as_number, as_positive, as_whole

if TYPE_CHECKING:
    from tierank.serve.application import Service
    from tierank.serve.models import Version

LOG = logging.getLogger("tierank.serve")

# The most connections that wait to be accepted, and that are accepted in one step.
_BACKLOG, _AT_ONCE = 2048, 64
# Open files of a process that are not connections: models, the log, and connections that are about to be refused.
_OTHER_FILES = 64 + _AT_ONCE
# Seconds between two lines of the log that say that no connection can be accepted.
_SELDOM = 1.0
# Characters of a host that a message shows.
_SHOWN = 100
# Seconds in which open connections can send one more request, whose answer announces the shutdown.
_FAREWELL = 1.0
# Seconds that threads have to end after the requests; Python would wait for them without limit.
_GRACE = 5.0


@dataclass(frozen=True)
class Settings:
    """Where and how to serve; ``log`` is ``"text"``, ``"json"`` or ``"quiet"``."""

    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    threads: int | None = None
    watch: float | None = None
    api_key_file: Path | None = None
    log: str = "text"
    limits: Limits = field(default_factory=Limits)
    connections: Connections = field(default_factory=Connections)

    def __post_init__(self) -> None:
        as_number("port", self.port, 0, 65535)
        as_whole("workers", self.workers, most=most_workers())
        if self.threads is not None:
            as_whole("threads", self.threads, most=most_workers())
        as_choice("log", self.log, ("text", "json", "quiet"))
        if self.watch is not None:
            as_positive("watch", self.watch)


def serve(folders: Mapping[str, Path], settings: Settings, signals: Signals) -> None:
    """Serve the models of these folders until SIGTERM or Ctrl-C; running requests are finished first.

    The port is bound before the models are loaded: of two servers with the same port the second fails at once.
    Connections wait until the models are ready.
    """
    require("tierank serve", "starlette", "uvicorn", "msgspec")
    log_to_stderr(settings.log)
    with _bound(settings.host, settings.port) as opened:
        if settings.workers == 1:
            _serve_alone(folders, settings, opened, signals)
        else:
            _serve_among_others(folders, settings, opened, signals)


def _serve_alone(folders: Mapping[str, Path], settings: Settings, opened: socket.socket, signals: Signals) -> None:
    """Serve in this process, which checks for new models itself."""
    keys = None if settings.api_key_file is None else Keys.read(settings.api_key_file)

    from tierank.serve.application import Service
    from tierank.serve.models import ServedModel

    models = [ServedModel.read(name, folder) for name, folder in folders.items()]
    service = Service(models, settings.limits, settings.threads, Counters(list(folders)), keys)
    control = _Alone(service, settings, signals)
    _run(service, settings, opened, control, lambda: _say_serving(service, opened))


def _serve_among_others(
    folders: Mapping[str, Path], settings: Settings, opened: socket.socket, signals: Signals
) -> None:
    """Serve in several processes, whose parent checks for new models."""
    snapshots = {name: Snapshot.take(folder) for name, folder in folders.items()}
    counters = Counters(list(folders), settings.workers + 1)
    counters.process = settings.workers
    place = fork_workers(
        settings.workers,
        snapshots,
        counters,
        signals,
        patience=_seconds_to_stop(settings) + _GRACE,
        watch=settings.watch,
        key_file=settings.api_key_file,
    )
    if place is None:  # this is the parent, and all processes have ended
        return
    counters.process = place.number

    # Only after the fork: a process that forks must not have threads of numpy or torch.
    from tierank.serve.application import Service
    from tierank.serve.models import ServedModel

    models = [ServedModel.restored(name, snapshot) for name, snapshot in place.snapshots.items()]
    service = Service(models, settings.limits, settings.threads, counters, place.keys)

    def started() -> None:
        place.tell(ready=True)
        LOG.info("worker %d is ready", place.number)
        if place.is_first:
            _say_serving(service, opened)

    _run(service, settings, opened, _Told(service, signals, place), started)


def _run(service: Service, settings: Settings, opened: socket.socket, control: _Control, started: Any) -> None:
    """Answer requests until the server is stopped."""
    import uvicorn

    from tierank.serve.connections import Connection

    class Server(uvicorn.Server):
        """uvicorn's server with our own signal handling: it drains connections and returns."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(_LoopErrors())
            await super().startup(sockets)
            opened.listen(_BACKLOG)  # uvicorn has set it to the number that it accepts in one step
            started()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Accept no more connections; open ones can still get one more answer, which says that it is the last."""
            for listener in self.servers:
                listener.close()
            control.end_within(_seconds_to_stop(settings))
            end = asyncio.get_running_loop().time() + _FAREWELL
            while self.server_state.connections and not self.force_exit and asyncio.get_running_loop().time() < end:
                await asyncio.sleep(0.02)
            await super().shutdown(sockets)

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            with control.over(self):
                yield
            if control.was_interrupted:
                raise KeyboardInterrupt

    def count(code: int) -> None:
        """Count an answer that is not the application's."""
        service.counters.count_request("other", code, 0.0)

    inner = service.application()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        with suppress(asyncio.CancelledError):  # the time for running requests is over, and the client did not read
            await inner(scope, receive, send)

    protocol: Any = partial(Connection, limits=_fitting(settings.connections), count=count)
    config = uvicorn.Config(
        application,
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        backlog=_AT_ONCE,
        timeout_graceful_shutdown=settings.connections.drain_timeout,  # type: ignore[arg-type]
    )
    try:
        Server(config).run([opened])
    finally:
        service.close()


def _seconds_to_stop(settings: Settings) -> float:
    """The most seconds from the signal to the end of the process."""
    return _FAREWELL + settings.connections.drain_timeout + _GRACE


def _fitting(connections: Connections) -> Connections:
    """The limits of connections, with no more connections than there may be open files; raises that limit first."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return connections
    wanted = connections.max_connections + _OTHER_FILES
    most, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < wanted:
        with suppress(OSError, ValueError, OverflowError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, highest), highest))
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most >= wanted:
        return connections
    fits = max(most - _OTHER_FILES, most // 2, 1)
    LOG.warning("at most %d connections, as a process may open only %d files; raise that with ulimit -n", fits, most)
    return replace(connections, max_connections=fits)


class _LoopErrors:
    """Logs errors outside of requests; that no connection can be accepted, at most once a second."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error."""
        error = context.get("exception")
        if not isinstance(error, OSError) or "socket" not in context:
            LOG.error("%s", context["message"], exc_info=error)
        elif loop.time() >= self._next:
            self._next = loop.time() + _SELDOM
            LOG.error("cannot accept connections: %s", error.strerror)


def _say_serving(service: Service, opened: socket.socket) -> None:
    LOG.info("serving %s at %s; Ctrl-C stops it", _listed(service), _address(opened))


class _Control:
    """Handles signals and messages while a server runs."""

    def __init__(self, service: Service, signals: Signals) -> None:
        self.service, self.signals = service, signals
        self.was_interrupted = False

    @contextmanager
    def over(self, server: Any) -> Iterator[None]:
        """Listen while the block runs; later signals change nothing."""
        self._server, self._loop = server, asyncio.get_running_loop()
        self._told = asyncio.Event()
        self.signals.pass_to(self._hear)
        task = self._loop.create_task(self.listen())
        try:
            yield
        finally:
            self.signals.pass_to(lambda number: None)
            task.cancel()

    async def listen(self) -> None:
        """Handle SIGHUPs and messages one by one."""
        raise NotImplementedError

    def stop(self) -> None:
        """Finish running requests, and accept no more."""
        self.service.is_stopping = self._server.should_exit = True

    def end_within(self, seconds: float) -> None:
        """End the process after this time even if a thread is still running."""
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), self._end, [seconds])
        timer.daemon = True
        timer.start()

    def _end(self, seconds: float) -> None:
        LOG.error("still working %g seconds after the stop; ending without it", seconds)
        os._exit(130 if self.was_interrupted else 0)

    def _hear(self, number: int) -> None:
        if number == HANGUP:
            self._loop.call_soon_threadsafe(self._told.set)
            return
        if self._server.should_exit and number == signal.SIGINT:
            self._server.force_exit = True  # a second Ctrl-C stops at once
        self.was_interrupted = self.was_interrupted or number == signal.SIGINT
        self.stop()


class _Alone(_Control):
    """A server of one process, which checks for new models itself: after SIGHUP, and at intervals."""

    def __init__(self, service: Service, settings: Settings, signals: Signals) -> None:
        super().__init__(service, signals)
        self.watch, self.key_file = settings.watch, settings.api_key_file

    async def listen(self) -> None:
        """Load new models in a separate thread, next to the old ones. SIGHUPs that arrive meanwhile count as one."""
        while True:
            was_told = await _within(self._told.wait(), self.watch)
            self._told.clear()
            for model in self.service.models.values():
                if was_told or model.has_changed:
                    await asyncio.to_thread(self.service.replace, model)
            if was_told:
                self._renew_keys()
                await asyncio.sleep(PAUSE)

    def _renew_keys(self) -> None:
        if self.key_file is None:
            return
        try:
            self.service.keys = Keys.read_again(self.key_file)
        except (TierankError, OSError) as error:
            LOG.error("kept the old API keys: %s", error)
        else:
            LOG.info("API keys: read again")


class _Told(_Control):
    """One of several processes, controlled by the parent."""

    def __init__(self, service: Service, signals: Signals, place: Place) -> None:
        super().__init__(service, signals)
        self.place = place
        self._loaded: dict[str, Version] = {}

    async def listen(self) -> None:
        """Follow the messages of the parent, and stop when it is gone, or if one cannot be followed."""
        try:
            async for message in self.place.messages():
                await self._follow(message)
        finally:
            self.stop()

    async def _follow(self, message: dict[str, Any]) -> None:
        if "load" in message:
            refusal = await asyncio.to_thread(self._load, message["load"], Path(message["place"]))
            self.place.tell(refusal=refusal)
        elif "change" in message:
            version = self._loaded.pop(message["change"], None)
            if message["to_new"] and version is not None:
                self.service.models[message["change"]].version = version
        elif "keys" in message:
            self.service.keys = Keys.from_texts(message["keys"])

    def _load(self, name: str, place: Path) -> str | None:
        """Load a new version next to the old one; returns why it cannot replace it, or None."""
        try:
            self._loaded[name] = self.service.models[name].proposed(place)
        except (TierankError, OSError) as error:
            return str(error)
        except Exception as error:
            LOG.exception("model %s", name)
            return f"a bug: {type(error).__name__}"
        return None


async def _within(event: Any, seconds: float | None) -> bool:
    """Whether an event happened within the time."""
    try:
        await asyncio.wait_for(event, seconds)
    except TimeoutError:
        return False
    return True


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to this address. Raises ``ParameterError``, with the fix, if that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise ParameterError(
            argument="host", expected="an address or name of this machine", got=f"{host[:_SHOWN]!r}"
        ) from None
    with socket.socket(family, kind, protocol) as opened:
        if os.name == "posix":  # on other systems it would let two servers share a port
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind(address)
            # Immediately, as Linux lets two sockets bind the same address until one of them listens.
            opened.listen(_BACKLOG)
        except OSError as error:
            raise _unbound(error, host, port) from None
        opened.set_inheritable(True)
        yield opened


def _unbound(error: OSError, host: str, port: int) -> ParameterError:
    if error.errno == errno.EADDRINUSE:
        got, fix = f"{port}, which another process uses", "choose another, or 0 for any"
        return ParameterError(argument="port", expected="a free port", got=got, fix=fix)
    if error.errno == errno.EACCES:
        expected, fix = "one that this user may bind", "choose one >= 1024"
        return ParameterError(argument="port", expected=expected, got=f"{port}", fix=fix)
    got = f"{host[:_SHOWN]!r}: {error.strerror}"
    return ParameterError(argument="host", expected="an address of this machine", got=got)


def _address(opened: socket.socket) -> str:
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listed(service: Service) -> str:
    return ", ".join(
        f"{name} ({type(model.version.ranker).__name__}, {model.version.features.n} features"
        f"{', whole lists' if model.version.needs_list else ''})"
        for name, model in service.models.items()
    )
