"""The server behind ``tierank serve``: a socket, and the processes that answer on it.

Each process loads the models, looks for new ones itself, and switches to a new model once it has loaded and proved it.
Several processes (workers) are forked by a parent that loads nothing: a process that forks must not have threads of
numpy or torch. A worker stops when a pipe from its parent ends, whether the parent closes it or is gone.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierank.errors import ParameterError, ProcessError, TierankError
from tierank.extras import require
from tierank.kernels import most_workers
from tierank.serve import Connections, Limits
from tierank.serve.admission import Keys, Refusal, busy
from tierank.serve.monitoring import Counters, log_to_stderr
from tierank.serve.signals import HANGUP, Signals
from tierank.settings import as_choice, as_number, as_positive, as_whole

if TYPE_CHECKING:
    from tierank.serve.application import Service

LOG = logging.getLogger("tierank.serve")

# The most connections that wait to be accepted.
_BACKLOG = 2048
# Open files of a process that are not connections: models, the log, and connections that are about to be refused.
_OTHER_FILES = 128
# Characters of a host that a message shows.
_SHOWN = 100
# Seconds between two looks for new models: SIGHUPs that arrive meanwhile count as one.
_PAUSE = 1.0
# Seconds in which open connections can send one more request, whose answer announces the shutdown.
_FAREWELL = 1.0
# Seconds that threads have to end after the requests; Python would wait for them without limit.
_GRACE = 5.0
# Seconds between two looks of the parent at signals and workers.
_TICK = 0.2
# A worker that dies is restarted at once; but if it has not been ready for ``_STEADY`` seconds, there is a pause of
# ``_SHORT`` seconds, which doubles each time, so that loading models over and over does not slow down the others.
_SHORT, _STEADY = 2.0, 60.0


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

    @property
    def seconds_to_stop(self) -> float:
        """The most seconds from the signal to the end of a process."""
        return _FAREWELL + self.connections.drain_timeout + _GRACE


def serve(folders: Mapping[str, Path], settings: Settings, signals: Signals) -> None:
    """Serve the models of these folders until SIGTERM or Ctrl-C; running requests are finished first.

    The port is bound before anything else: of two servers with the same port the second fails at once, and an
    orchestrator can ask whether the server is alive while the models are loaded. So what takes seconds to import is
    imported after that.
    """
    require("tierank serve", "starlette", "uvicorn", "msgspec")
    log_to_stderr(settings.log)
    with _bound(settings.host, settings.port) as opened:
        process = ServingProcess(folders, settings, opened, signals)
        if settings.workers == 1:
            process.run(lambda: None)
        else:
            Supervisor(process).run()


class ServingProcess:
    """A process that answers requests: the only one, or a worker."""

    service: Service

    def __init__(
        self, folders: Mapping[str, Path], settings: Settings, opened: socket.socket, signals: Signals
    ) -> None:
        self.folders, self.settings, self.opened, self.signals = folders, settings, opened, signals
        self.keys = None if settings.api_key_file is None else Keys.read(settings.api_key_file)
        self.counters = Counters(list(folders), settings.workers)
        self.was_interrupted = False

    def run(self, when_ready: Callable[[], object], is_first: bool = True) -> None:
        """Load the models, and answer requests until a signal stops it.

        Parameters
        ----------
        when_ready : callable
            Called once the models are loaded.
        is_first : bool, default True
            Whether to answer while the models are loaded; otherwise other processes take the requests.
        """
        asyncio.run(self._main(when_ready, is_first))
        if self.was_interrupted:
            raise KeyboardInterrupt

    async def _main(self, when_ready: Callable[[], object], is_first: bool) -> None:
        import uvicorn

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(LoopErrors())
        self._inner: Any = None  # the application, once the models are loaded
        connections = self.settings.connections
        self._most_connections = _allowed_connections(connections.max_connections)
        config = uvicorn.Config(
            self._application,
            interface="asgi3",
            http="h11",
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=connections.idle_timeout,  # type: ignore[arg-type]
            timeout_graceful_shutdown=connections.drain_timeout,  # type: ignore[arg-type]
        )
        self._server = server = uvicorn.Server(config)
        server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]  # Signals handles them
        loading = asyncio.create_task(asyncio.to_thread(self._load))
        if not is_first:
            await loading
        serving = asyncio.create_task(server.serve([self.opened]))
        try:
            self.service = await loading
        except BaseException:
            server.should_exit = True
            await serving
            raise
        self._inner = self.service.application()
        self._hung_up, self._stopped = asyncio.Event(), asyncio.Event()
        self.signals.pass_to(lambda number: loop.call_soon_threadsafe(self._hear, number))
        when_ready()
        if is_first:
            LOG.info("serving %s at %s; Ctrl-C stops it", _listed(self.service), _address(self.opened))
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait([asyncio.create_task(self._stopped.wait()), serving], return_when="FIRST_COMPLETED")
            self._end_later()
            end = loop.time() + _FAREWELL
            while server.server_state.connections and loop.time() < end and not server.force_exit:
                await asyncio.sleep(0.02)
            server.should_exit = True
            await serving
        finally:
            self.signals.pass_to(lambda number: None)
            watching.cancel()
            self.service.close()

    def _load(self) -> Service:
        from tierank.serve.application import Service
        from tierank.serve.served_models import ServedModel

        models = [ServedModel.read(name, folder) for name, folder in self.folders.items()]
        return Service(models, self.settings.limits, self.settings.threads, self.counters, self.keys)

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        """The application, or its stand-in while there are too many connections, or the models are loaded."""
        inner = self._inner
        if len(self._server.server_state.connections) > self._most_connections:
            fix = "retry later, or raise the limit max_connections of the server"
            full = busy(f"at most {self._most_connections} connections", "more", fix)
            inner = self._stand_in(full, Connection="close")
        elif inner is None:
            loading = busy("models that are loaded", "one that is loading them", "retry later; GET /ready says when")
            inner = self._stand_in(None if scope["path"] == "/health" else loading)
        with suppress(asyncio.CancelledError):  # the time for running requests is over, and the client did not read
            await inner(scope, receive, send)

    def _stand_in(self, refusal: Refusal | None, **headers: str) -> Any:
        """An answer that says that the process is alive, or why it does not answer."""
        from starlette.responses import JSONResponse

        self.counters.count_request("other", 503 if refusal else 200, 0.0)
        if refusal is None:
            return JSONResponse({"status": "alive"})
        return JSONResponse({"error": refusal.fields()}, refusal.code, refusal.headers | headers)

    def _hear(self, number: int) -> None:
        """Handle a signal."""
        self.was_interrupted = self.was_interrupted or number == signal.SIGINT
        if number == HANGUP:
            self._hung_up.set()
        elif not self.service.is_stopping:
            self.service.is_stopping = True
            self._stopped.set()
            if self.settings.workers == 1:
                _log_stop(number)
        elif number == signal.SIGINT:
            self._server.force_exit = True  # a second Ctrl-C stops at once

    async def _watch(self) -> None:
        """Look for new models and keys, in a separate thread: after SIGHUP, and for models at intervals."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hung_up.wait(), self.settings.watch)
            was_told = self._hung_up.is_set()
            self._hung_up.clear()
            for model in self.service.models.values():
                if was_told or model.has_changed:
                    await asyncio.to_thread(self.service.replace, model)
            if was_told:
                self.service.keys = self.renewed_keys(self.service.keys)
                await asyncio.sleep(_PAUSE)

    def renewed_keys(self, keys: Keys | None) -> Keys | None:
        """The keys that are now in the file, or the old ones if it cannot be read."""
        if self.settings.api_key_file is None:
            return None
        try:
            keys = Keys.read(self.settings.api_key_file, again=True)
        except (TierankError, OSError) as error:
            LOG.error("kept the old API keys: %s", error)
        else:
            LOG.info("API keys: read again")
        return keys

    def _end_later(self) -> None:
        """End the process after the time to stop even if a thread is still running."""
        seconds = self.settings.seconds_to_stop

        def end() -> None:
            LOG.error("still working %g seconds after the stop; ending without it", seconds)
            os._exit(130 if self.was_interrupted else 0)

        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
        timer.daemon = True
        timer.start()


@dataclass(eq=False)
class Worker:
    """The parent's view of a worker; it sends None when it is ready, or the error why it cannot be."""

    number: int
    process: Any
    messages: Any
    ready_at: float = math.inf


class Supervisor:
    """The parent of the workers: starts them, restarts those that die, and passes signals on.

    The first one starts alone until it is ready, so that an error in the models is reported once and ends all.
    """

    def __init__(self, process: ServingProcess) -> None:
        if not hasattr(os, "fork"):
            got = f"{process.settings.workers}"
            raise ParameterError(argument="workers", expected="1 on this system", got=got)
        self.process = process
        self.workers: list[Worker] = []
        self.due = {0: 0.0}  # when to start which worker
        self.pauses: dict[int, float] = {}
        self.was_ready = self.is_stopping = self.was_interrupted = False
        self.kill_at = math.inf
        self._context = multiprocessing.get_context("fork")
        # Its writing end is only open here: workers that read it learn when this process stops or is gone.
        self._alive, self._until_closed = os.pipe()

    def run(self) -> None:
        """Supervise until a signal stops the server."""
        heard: list[int] = []
        self.process.signals.pass_to(heard.append)
        try:
            while self.workers or (self.due and not self.is_stopping):
                while heard:
                    self._follow(heard.pop(0))
                self._start_due()
                ends = [worker.process.sentinel for worker in self.workers]
                multiprocessing.connection.wait([*ends, *(worker.messages for worker in self.workers)], _TICK)
                for worker in list(self.workers):
                    self._look_at(worker)
                if time.monotonic() >= self.kill_at:
                    self.kill_at = math.inf
                    for worker in self.workers:
                        seconds = self.process.settings.seconds_to_stop + _GRACE
                        LOG.error("worker %d did not stop within %g seconds; killing it", worker.number, seconds)
                        worker.process.kill()
        finally:
            self._stop()
        if self.was_interrupted:
            raise KeyboardInterrupt

    def _follow(self, number: int) -> None:
        """Follow a signal; a second Ctrl-C ends the workers at once."""
        self.was_interrupted = self.was_interrupted or number == signal.SIGINT
        if number == HANGUP:
            self.process.keys = self.process.renewed_keys(self.process.keys)
            for worker in self.workers:
                with suppress(ProcessLookupError):
                    os.kill(worker.process.pid, number)
        elif not self.is_stopping:
            _log_stop(number)
            self._stop()
        elif number == signal.SIGINT:
            for worker in self.workers:
                worker.process.kill()

    def _stop(self) -> None:
        if not self.is_stopping:
            self.is_stopping = True
            self.kill_at = time.monotonic() + self.process.settings.seconds_to_stop + _GRACE
            os.close(self._until_closed)

    def _start_due(self) -> None:
        for number in [number for number, when in self.due.items() if when <= time.monotonic()]:
            if self.is_stopping:
                return
            messages, sender = self._context.Pipe(duplex=False)
            process = self._context.Process(target=self._work, args=(number, sender))
            try:
                process.start()
            except OSError as error:  # no memory, or a limit on processes
                messages.close()
                if not self.was_ready:
                    got = f": {error.strerror}"
                    raise ProcessError(where=f"worker {number}", expected="a new process", got=got) from None
                LOG.error("cannot start worker %d: %s; trying again", number, error.strerror)
                self.due[number] = time.monotonic() + _SHORT
                return
            finally:
                sender.close()
            del self.due[number]
            self.workers.append(Worker(number, process, messages))

    def _work(self, number: int, sender: Any) -> None:
        """What a worker does."""
        process = self.process
        process.signals.start_worker()
        process.counters.process = number
        os.close(self._until_closed)
        threading.Thread(target=self._end_with_parent, daemon=True).start()

        def when_ready() -> None:
            LOG.info("worker %d is ready", number)
            sender.send(None)

        try:
            process.run(when_ready, is_first=not self.was_ready)
        except (TierankError, OSError) as error:
            sender.send(error)
            sys.exit(2)

    def _end_with_parent(self) -> None:
        os.read(self._alive, 1)  # until the other end is closed
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _look_at(self, worker: Worker) -> None:
        """Handle the messages of a worker, and its end."""
        said = []
        with suppress(EOFError, OSError):
            while worker.messages.poll():
                said.append(worker.messages.recv())
        for error in said:
            if error is None:
                worker.ready_at = time.monotonic()
                if not self.was_ready:
                    self.due |= dict.fromkeys(range(1, self.process.settings.workers), 0.0)
                self.was_ready = True
            elif self.was_ready:
                LOG.error("worker %d: %s", worker.number, error)
            else:
                raise error
        code = worker.process.exitcode
        if code is None:
            return
        self.workers.remove(worker)
        worker.messages.close()
        if self.is_stopping:
            return
        if not self.was_ready:
            sys.exit(code if code >= 0 else 128 - code)
        pause = self._pause_after(worker)
        self.due[worker.number] = time.monotonic() + pause
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        LOG.error("worker %d %s; starting another%s", worker.number, ended, f" in {pause:g} seconds" if pause else "")

    def _pause_after(self, worker: Worker) -> float:
        """Seconds until a worker is started in place of a dead one."""
        pause = 0.0
        if time.monotonic() - worker.ready_at < _STEADY and worker.number in self.pauses:
            pause = min(max(_SHORT, 2 * self.pauses[worker.number]), _STEADY)
        self.pauses[worker.number] = pause
        return pause


class LoopErrors:
    """Logs errors outside of requests; that no connection can be accepted, at most once a second."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error."""
        error = context.get("exception")
        if not isinstance(error, OSError) or "socket" not in context:
            LOG.error("%s", context["message"], exc_info=error)
        elif loop.time() >= self._next:
            self._next = loop.time() + 1
            LOG.error("cannot accept connections: %s", error.strerror)


def _log_stop(number: int) -> None:
    LOG.info("stopping after %s: finishing the requests in progress", signal.Signals(number).name)


def _allowed_connections(wanted: int) -> int:
    """The most connections: no more than there may be open files, after that limit was raised if possible."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return wanted
    files = wanted + _OTHER_FILES
    most, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < files:
        with suppress(OSError, ValueError, OverflowError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, highest), highest))
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most >= files:
        return wanted
    fits = max(most - _OTHER_FILES, most // 2, 1)
    LOG.warning("at most %d connections, as a process may open only %d files; raise that with ulimit -n", fits, most)
    return fits


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to this address. Raises ``ParameterError``, with the fix, if that fails."""
    shown = f"{host[:_SHOWN]!r}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise ParameterError(argument="host", expected="an address or name of this machine", got=shown) from None
    with socket.socket(family, kind, protocol) as opened:
        if os.name == "posix":  # on other systems it would let two servers share a port
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind(address)
            # Immediately, as Linux lets two sockets bind the same address until one of them listens.
            opened.listen(_BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                got, fix = f"{port}, which another process uses", "choose another, or 0 for any"
                raise ParameterError(argument="port", expected="a free port", got=got, fix=fix) from None
            if error.errno == errno.EACCES:
                expected, fix = "one that this user may bind", "choose one >= 1024"
                raise ParameterError(argument="port", expected=expected, got=f"{port}", fix=fix) from None
            got = f"{shown}: {error.strerror}"
            raise ParameterError(argument="host", expected="an address of this machine", got=got) from None
        yield opened


def _address(opened: socket.socket) -> str:
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listed(service: Service) -> str:
    return ", ".join(
        f"{name} ({type(model.version.ranker).__name__}, {model.version.features.n} features"
        f"{', whole lists' if model.version.needs_list else ''})"
        for name, model in service.models.items()
    )
