"""The server when clients do not read, do not speak HTTP, or when memory, threads, files or time run out."""

import asyncio
import errno
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("msgspec")

from running import PATIENCE
from serve_tools import asking, call, make_data, n_said, quick, serving, wait_for
from uvicorn.server import ServerState

from tierank.deadline import Deadline
from tierank.errors import ProcessError
from tierank.serve import server
from tierank.serve.application import Service
from tierank.serve.connections import Connection
from tierank.serve.counters import Counters
from tierank.serve.lanes import Lane
from tierank.serve.limits import LARGE, Connections, Limits
from tierank.serve.models import ServedModel
from tierank.serve.refusals import Refusal
from tierank.serve.signals import Signals
from tierank.serve.snapshots import Snapshot
from tierank.serve.workers import _BLOCKED, _LONGEST, _Parent, _Worker, fork_workers

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
LENGTH = 8 << 20  # more than the buffers of the two sockets hold


@pytest.fixture(scope="module")
def trees():
    return quick("umart").fit(make_data())


# Connections


async def large_answer(scope, receive, send):
    """Answers every request with many bytes, and reads no body."""
    headers = [(b"content-length", b"%d" % LENGTH)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x" * LENGTH})


async def small_answer(scope, receive, send):
    """Answers every request with a few bytes, and reads no body."""
    await send({"type": "http.response.start", "status": 415, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


@asynccontextmanager
async def listening(application, **limits):
    """Connections to an application: where, those that are open, codes that were counted, and errors of the loop."""
    loop, state, codes, errors = asyncio.get_running_loop(), ServerState(), [], []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    config = uvicorn.Config(application, lifespan="off", log_config=None, access_log=False, ws="none")
    config.load()

    def connection():
        return Connection(
            config=config, server_state=state, app_state={}, limits=Connections(**limits), count=codes.append
        )

    started = await loop.create_server(connection, "127.0.0.1", 0)
    try:
        yield started.sockets[0].getsockname()[1], state.connections, codes, errors
    finally:
        started.close()


async def until(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "sent", [GET + b"\r\n", (GET + b"\r\n") * 3, GET + b"Connection: close\r\n\r\n", GET + b"\r\n?"]
)
def test_a_client_that_does_not_read_is_not_waited_for_for_ever(sent):
    """Whatever it sends after the request: nothing, more requests, that it is the last one, or nonsense."""

    async def run():
        async with listening(large_answer, idle_timeout=0.2, header_timeout=0.2) as (port, connections, _, errors):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(sent)
            await until(lambda: connections)
            await until(lambda: not connections)
            writer.transport.abort()
            assert not errors

    asyncio.run(run())


def test_a_client_has_time_to_read_the_last_answer():
    """Not only the time in which the head of a request has to arrive."""

    async def run():
        async with listening(large_answer, header_timeout=0.05, idle_timeout=600) as (port, connections, _, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(GET + b"Connection: close\r\n\r\n")
            await until(lambda: any(one.flow.write_paused for one in connections))
            await asyncio.sleep(0.5)
            text = await reader.read()
            writer.close()
            return len(text.partition(b"\r\n\r\n")[2])

    assert asyncio.run(run()) == LENGTH


CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"?\r\n\r\n",
        GET.replace(b"Host: x", b"") + b"\r\n",
        b"\x16\x03\x01" + bytes(99),
        # Requests whose end a proxy may see elsewhere.
        CHUNKED[:-2] + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
        CHUNKED[:-2] + b"content-LENGTH: 0\r\n\r\n",
        CHUNKED[:-2] + b"Transfer-Encoding: chunked\r\n\r\n",
        CHUNKED.replace(b"chunked", b"gzip, chunked"),
        CHUNKED.replace(b"chunked", b"\x0bchunked"),
        CHUNKED.replace(b"Encoding:", b"Encoding :"),
        GET + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        GET + b"Content-Length: +1\r\n\r\n",
        GET + b"Host: y\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_as_everything_else(sent):
    async def run():
        async with listening(small_answer) as (port, _, codes, errors):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert (codes, errors) == ([400], [])
            return head, json.loads(body)["error"]

    head, error = asyncio.run(run())
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json")
    assert set(error) == {"where", "expected", "got", "fix"}


@pytest.mark.parametrize("head", [b"Content-Length: %d\r\n\r\n" % LENGTH, b"Transfer-Encoding: chunked\r\n\r\n"])
@pytest.mark.parametrize("keep", [b"", b"Connection: close\r\n"])
def test_a_client_that_sends_all_before_it_reads_gets_its_refusal(head, keep):
    """A body of a refused request is received and dropped: a reset would make the client give up."""
    body = b"x" * LENGTH if b"Length" in head else b"%x\r\n" % LENGTH + b"x" * LENGTH + b"\r\n0\r\n\r\n"

    async def run():
        async with listening(small_answer) as (port, connections, _, errors):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n" + keep + head)
            await reader.readuntil(b"\r\n\r\nno")
            for start in range(0, len(body), 1 << 16):
                writer.write(body[start : start + (1 << 16)])
                await writer.drain()
            if keep:
                assert await reader.read() == b""
            else:  # the connection can be used again
                writer.write(GET + b"Connection: close\r\n\r\n")
                assert (await reader.read()).startswith(b"HTTP/1.1 415 ")
            writer.close()
            await until(lambda: not connections)
            assert not errors

    asyncio.run(run())


def test_a_client_that_sends_for_ever_after_its_refusal_is_cut_off():
    async def run():
        async with listening(small_answer, header_timeout=0.2) as (port, connections, _, errors):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(CHUNKED[:-2] + b"Connection: close\r\n\r\n")
            await until(lambda: connections)

            def send_more():
                writer.write(b"1\r\nx\r\n")
                return not connections

            await until(send_more)
            writer.transport.abort()
            assert not errors

    asyncio.run(run())


def test_nonsense_after_an_answer_closes_the_connection():
    """It is too late for another answer."""

    async def run():
        async with listening(small_answer) as (port, connections, codes, errors):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(CHUNKED)
            assert (await reader.readuntil(b"no")).startswith(b"HTTP/1.1 415 ")
            writer.write(b"not a length\r\n")
            assert await reader.read() == b""
            await until(lambda: not connections)
            writer.close()
            assert (codes, errors) == ([400], [])

    asyncio.run(run())


POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"


@pytest.mark.parametrize(
    ("sent", "n_answers"),
    [
        (GET + b"\r\n", 1),
        (GET + b"Connection: close\r\n\r\n", 1),
        (b"GET / HTTP/1.0\r\n\r\n", 1),
        (POST, 1),
        ((GET + b"\r\n") * 3, 3),
        (POST * 3, 3),
        (POST + GET, 1),  # the end of a head, or of a body, that will never come
        (POST + POST[:-1], 1),
        (POST[:-1], 0),
        (GET, 0),
        (b"", 0),
    ],
)
@pytest.mark.parametrize("length", [2, LENGTH])
def test_a_client_that_has_nothing_more_to_send_gets_all_answers(sent, n_answers, length):
    """Every request that arrived completely is answered, also if the end of the stream is known before."""
    may_answer, n_bodies = asyncio.Event(), []

    async def answer(scope, receive, send):
        await may_answer.wait()
        while (message := await receive())["type"] == "http.request":
            if not message["more_body"]:
                n_bodies.append(1)
                await send(
                    {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % length)]}
                )
                for _ in range(2):
                    await send({"type": "http.response.body", "body": b"x" * (length // 2), "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                return

    async def run():
        async with listening(answer) as (port, connections, _, errors):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            await until(lambda: connections)
            (one,) = connections
            writer.write(sent)
            writer.write_eof()
            await until(lambda: one._has_ended or one.flow.read_paused)
            may_answer.set()
            async with asyncio.timeout(PATIENCE):
                text = await reader.read()
            await until(lambda: not connections)
            writer.close()
            assert not errors
            return text

    text = asyncio.run(run())
    assert text.count(b"HTTP/1.1 200 OK\r\n") == n_answers == len(n_bodies)
    assert text.count(b"x") == n_answers * length


# Memory, threads and time


def body_of(n):
    return b'{"features": []}' + b" " * n


def test_the_budget_is_held_until_the_answer_is_sent(trees):
    service = Service([ServedModel.of("m", trees)], threads=1)
    served, may_send, sent = service.application(), asyncio.Event(), []

    async def receive():
        return {"type": "http.request", "body": body_of(4 * LARGE), "more_body": False}

    async def send(message):
        sent.append(message["type"])
        await may_send.wait()

    async def run():
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/rank", "headers": headers, "query_string": b""}
        task = asyncio.create_task(served(scope, receive, send))
        await until(lambda: sent)
        held = service._room.taken
        may_send.set()
        await task
        return held, service._room.taken

    held, after = asyncio.run(run())
    assert 3 * LARGE <= held <= 4 * LARGE
    assert after == 0
    assert set(sent) == {"http.response.start", "http.response.body"}


class Full(bytearray):
    """A body for which there is no more memory after some bytes."""

    def __iadd__(self, part):
        if len(self) > 2 * LARGE:
            raise MemoryError
        return super().__iadd__(part)


def test_no_memory_is_not_a_bug_and_nothing_stays_taken(trees, monkeypatch, caplog):
    service = Service([ServedModel.of("m", trees)], threads=1)
    monkeypatch.setattr("tierank.serve.application.bytearray", Full, raising=False)
    code, headers, found = asyncio.run(asking(service.application(), "/rank", parts=[body_of(LARGE)] * 5))
    assert (code, headers["retry-after"], found["error"]["got"]) == (503, "1", "too little")
    assert service._room.taken == 0
    assert "bug" not in caplog.text


def test_a_thread_that_cannot_be_started_is_not_called_a_shutdown(monkeypatch):
    lane = Lane("requests", 1, 1)

    def submit(work):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(lane._pool, "submit", submit)
    deadline = Deadline(60)
    with pytest.raises(Refusal, match="expected a thread, got none"):
        asyncio.run(lane.run(lambda: 1, deadline))
    assert not deadline.left  # the work would be done for nobody
    lane.close()
    with pytest.raises(Refusal, match="a server that is stopping"):
        asyncio.run(lane.run(lambda: 1, Deadline(60)))


@pytest.mark.parametrize("is_stopping", [True, False])
def test_a_request_that_the_shutdown_cuts_off_gets_an_answer(trees, is_stopping):
    service = Service([ServedModel.of("m", trees)], Limits(body_timeout=600), threads=1)

    async def receive():
        await asyncio.Event().wait()

    async def run():
        task = asyncio.create_task(asking(service.application(), "/rank", receive=receive))
        await asyncio.sleep(0)
        service.is_stopping = is_stopping
        await asyncio.sleep(0.01)
        task.cancel()
        return await task

    if is_stopping:
        code, headers, found = asyncio.run(run())
        assert (code, headers["connection"], headers["retry-after"]) == (503, "close", "1")
        assert found["error"]["got"] == "a server that is stopping"
    else:  # the cancellation of somebody else, who has to know
        with pytest.raises(asyncio.CancelledError, match=r"^$"):
            asyncio.run(run())


def test_a_shutdown_that_cuts_off_a_request_shows_no_traceback(tmp_path, trees):
    trees.save(tmp_path / "m")
    with serving(tmp_path / "m", "--threads", "1", "--drain-timeout", "0.2") as (process, port, lines):
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as one:
            one.sendall(
                b"POST /rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            )
            one.sendall(b"")
            assert call(port, "/health")[0] == 200
            process.send_signal(signal.SIGTERM)
            assert one.recv(1000).startswith(b"HTTP/1.1 503 ")
        assert process.wait(PATIENCE) == 0
        wait_for(lambda: any(line.get("code") == 503 for line in lines))
        assert not any("traceback" in line for line in lines)
        assert not n_said(lines, "Traceback")


# Open files


def test_connections_do_not_exceed_the_open_files(monkeypatch, caplog):
    resource = pytest.importorskip("resource")
    limits = [256, 4096]

    def change(_, given):
        limits[:] = given

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", change)
    other = server._OTHER_FILES
    assert server._fitting(Connections(max_connections=100)).max_connections == 100
    assert limits == [256, 4096]
    assert server._fitting(Connections(max_connections=1000)).max_connections == 1000
    assert limits == [1000 + other, 4096]
    assert not caplog.text
    assert server._fitting(Connections(max_connections=10**30)).max_connections == 4096 - other
    assert limits == [4096, 4096]
    assert f"at most {4096 - other} connections, as a process may open only 4096 files" in caplog.text
    limits[:] = [20, 20]
    assert server._fitting(Connections(max_connections=512)).max_connections == 10


def test_that_no_connection_can_be_accepted_is_said_once_a_second(caplog):
    now = [5.0]

    class Loop:
        def time(self):
            return now[0]

    log, full = server._LoopErrors(), {"exception": OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "socket": None}
    for _ in range(2048):
        log(Loop(), {"message": "socket.accept() out of system resource", **full})
    assert [one.message for one in caplog.records] == ["cannot accept connections: Too many open files"]
    now[0] += 1
    log(Loop(), {"message": "socket.accept() out of system resource", **full})
    assert len(caplog.records) == 2
    log(Loop(), {"message": "something else", "exception": OSError("disk")})
    assert caplog.records[-1].message == "something else"
    assert caplog.records[-1].exc_info


# Processes


def no_fork():
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_a_worker_that_cannot_be_started_is_said_at_first_and_tried_again_later(monkeypatch, caplog):
    monkeypatch.setattr(os, "fork", no_fork)
    open_files = Path("/proc/self/fd")
    n_open = len(list(open_files.iterdir())) if open_files.exists() else 0
    handlers = [signal.getsignal(number) for number in _BLOCKED]
    with (
        Signals() as signals,
        pytest.raises(ProcessError, match="cannot start worker 0: Resource temporarily unavailable"),
    ):
        fork_workers(2, {}, Counters([]), signals, patience=60.0)
    assert [signal.getsignal(number) for number in _BLOCKED] == handlers
    assert not set(signal.pthread_sigmask(signal.SIG_BLOCK, [])) & set(_BLOCKED)
    assert not n_open or len(list(open_files.iterdir())) == n_open
    parent = _Parent(2, {}, Counters([]), Signals(), 60.0)
    parent.was_ready, parent.due = True, {1: 0.0}
    assert parent._start_due() is None
    assert parent.due[1] > 0
    assert "cannot start worker 1: Resource temporarily unavailable; trying again" in caplog.text


def test_a_killed_process_leaves_no_copy_of_a_model_behind(tmp_path, monkeypatch):
    """Its parent removes it, when it learns of the death."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = "from tierank.serve.snapshots import Snapshot\nwith Snapshot('m', {'model.json': b'{}'}, None).written():"
    program += "\n    print('here', flush=True)\n    input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", program], env=os.environ | {"TMPDIR": str(tmp_path)}, **pipes)
    child = process.pid
    assert process.stdout.readline() == b"here\n"
    with Snapshot(Path("m"), {"model.json": b"{}"}, None).written() as ours:
        ends = socket.socketpair()
        parent = _Parent(2, {}, Counters([]), Signals(), 60.0)
        parent.is_stopping, parent.workers = True, {child: _Worker(0, child, ends[0])}
        assert len(list(tmp_path.iterdir())) == 2
        os.kill(child, signal.SIGKILL)
        ends[1].close()
        wait_for(lambda: parent._reap() or not parent.workers)
        assert list(tmp_path.iterdir()) == [ours]
    process.communicate()


def test_a_worker_that_dies_again_and_again_is_restarted_less_and_less_often():
    """The first time at once; whether it was never ready or for some seconds makes no difference."""
    parent = _Parent(2, {}, Counters([]), Signals(), 60.0)
    parent.was_ready = True

    def pause_after(seconds_ready, number=0):
        worker = _Worker(number, 0, None, math.inf if seconds_ready is None else time.monotonic() - seconds_ready)
        before = time.monotonic()
        parent._lost(worker, -signal.SIGKILL)
        return parent.due[number] - before

    lived = [None, 0, None, 20, 40, None, None]
    for seconds, least in zip(lived, [0, 2, 4, 8, 16, 32, 60], strict=True):
        assert least <= pause_after(seconds) < least + 1
    assert pause_after(None, number=1) < 1  # another one
    assert pause_after(61) < 1  # it ran well: the next one starts at once again
    assert 2 <= pause_after(59) < 3


def test_any_time_between_two_checks_can_be_waited_for():
    assert _Parent(2, {}, Counters([]), Signals(), 60.0, 1e300)._milliseconds() == 0  # the first process is due
    parent = _Parent(2, {}, Counters([]), Signals(), 60.0, 1e300)
    parent.due = {}
    assert parent._milliseconds() == _LONGEST * 1e3
    assert _LONGEST * 1e3 < 2**31


def test_other_libraries_log_errors_alone(monkeypatch):
    kept = [
        (logging.getLogger(name), logging.getLogger(name).__dict__.copy()) for name in ("tierank", "uvicorn", "asyncio")
    ]
    try:
        server.log_to_stderr("text")
        assert not logging.getLogger("uvicorn.error").isEnabledFor(logging.WARNING)
        assert not logging.getLogger("asyncio").isEnabledFor(logging.WARNING)
        assert logging.getLogger("tierank.serve").isEnabledFor(logging.INFO)
    finally:
        for logger, before in kept:
            logger.handlers, logger.propagate = before["handlers"], before["propagate"]
            logger.setLevel(before["level"])
