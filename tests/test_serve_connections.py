"""The server when clients do not read, do not speak HTTP, or when memory, threads, files or time run out."""

import asyncio
import errno
import json
import logging
import math
import os
import signal
import socket
import time
from contextlib import ExitStack

import pytest

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("msgspec")

from running import PATIENCE
from serve_tools import asking, call, make_data, n_said, quick, serving, wait_for

from tierank.errors import ProcessError
from tierank.serve import LARGE, Limits, server
from tierank.serve.admission import Pool, Refusal
from tierank.serve.application import Service
from tierank.serve.served_models import ServedModel
from tierank.serve.server import ServingProcess, Supervisor, Worker
from tierank.serve.signals import Signals
from tierank.workers import Deadline

LENGTH = 8 << 20  # more than the buffers of the two sockets hold
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /rank HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def trees():
    return quick("umart").fit(make_data())


# Connections


@pytest.fixture(scope="module")
def served(trees, tmp_path_factory):
    """The port of a server, and the lines of its log."""
    folder = tmp_path_factory.mktemp("served") / "m"
    trees.save(folder)
    with serving(folder, "--threads", "1", "--max-connections", "8") as (_, port, lines):
        yield port, lines


def sent_to(port, content):
    """All that a server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as one:
        one.sendall(content)
        return b"".join(iter(lambda: one.recv(1 << 16), b""))


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
def test_what_is_not_http_is_refused_and_ends_the_connection(served, sent):
    port, lines = served
    assert sent_to(port, sent).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert not n_said(lines, "Traceback")


@pytest.mark.parametrize("head", [b"Content-Length: %d\r\n\r\n" % LENGTH, b"Transfer-Encoding: chunked\r\n\r\n"])
def test_a_client_that_sends_all_before_it_reads_gets_its_refusal(served, head):
    """A body of a refused request is received and dropped: a reset would make the client give up."""
    body = b"x" * LENGTH if b"Length" in head else b"%x\r\n" % LENGTH + b"x" * LENGTH + b"\r\n0\r\n\r\n"
    head = b"POST /rank HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n" + head
    last = GET.replace(b"/ ", b"/health ") + b"Connection: close\r\n\r\n"  # the connection can be used again
    text = sent_to(served[0], head + body + last)
    assert text.startswith(b"HTTP/1.1 415 ")
    assert b"HTTP/1.1 200 OK" in text


def test_too_many_connections_are_told_to_come_again(served):
    """Each that asks is refused and closed, until there are few enough."""
    port, _ = served
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE)) for _ in range(8)]
        wait_for(lambda: call(port, "/health")[0] == 503)
        text = sent_to(port, GET + b"\r\n")
        assert text.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in text.lower()
        error = json.loads(text.partition(b"\r\n\r\n")[2])["error"]
        assert (error["expected"], error["fix"]) == (
            "at most 8 connections",
            "retry later, or raise the limit max_connections of the server",
        )
        idle[0].close()
        wait_for(lambda: call(port, "/health")[0] == 200)


# Memory, threads and time


def body_of(n):
    return b'{"features": []}' + b" " * n


def test_the_budget_is_held_until_the_answer_is_made(trees):
    service = Service([ServedModel.of("m", trees)], threads=1)
    read, taken = service._rank, []

    def noted(body):
        taken.append(service.large_bytes)
        return read(body)

    service._rank = noted
    served = service.application()
    assert asyncio.run(asking(served, "/rank", body_of(4 * LARGE)))[0] == 200
    assert 3 * LARGE <= taken[0] <= 4 * LARGE
    assert service.large_bytes == 0


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
    assert service.large_bytes == 0
    assert "bug" not in caplog.text


def test_a_thread_that_cannot_be_started_is_not_called_a_shutdown(monkeypatch):
    pool = Pool("requests", 1, 1)

    def submit(work):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pool._pool, "submit", submit)
    deadline = Deadline(60)
    with pytest.raises(Refusal, match="expected a free thread, got none"):
        asyncio.run(pool.run(lambda: 1, deadline))
    assert not deadline.left  # the work would be done for nobody
    pool.close()
    with pytest.raises(Refusal, match="retry on another instance"):
        asyncio.run(pool.run(lambda: 1, Deadline(60)))


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
        assert found["error"]["fix"] == "retry on another instance"
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
    assert server._allowed_connections(100) == 100
    assert limits == [256, 4096]
    assert server._allowed_connections(1000) == 1000
    assert limits == [1000 + other, 4096]
    assert not caplog.text
    assert server._allowed_connections(10**30) == 4096 - other
    assert limits == [4096, 4096]
    assert f"at most {4096 - other} connections, as a process may open only 4096 files" in caplog.text
    limits[:] = [20, 20]
    assert server._allowed_connections(512) == 10


def test_that_no_connection_can_be_accepted_is_said_once_a_second(caplog):
    now = [5.0]

    class Loop:
        def time(self):
            return now[0]

    log, full = server.LoopErrors(), {"exception": OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "socket": None}
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


@pytest.fixture
def parent():
    """A parent of two workers, which have not been started."""
    with Signals() as signals:
        made = Supervisor(ServingProcess({}, server.Settings(workers=2), None, signals))
        yield made
        made._stop()


def test_a_worker_that_cannot_be_started_is_said_at_first_and_tried_again_later(parent, monkeypatch, caplog):
    monkeypatch.setattr(os, "fork", no_fork)
    with pytest.raises(ProcessError, match="worker 0: expected a new process, got: Resource temporarily unavailable"):
        parent.run()
    parent.was_ready, parent.is_stopping, parent.due = True, False, {1: 0.0}
    parent._start_due()
    parent.is_stopping = True
    assert parent.due[1] > 0
    assert "cannot start worker 1: Resource temporarily unavailable; trying again" in caplog.text


def test_a_worker_that_dies_again_and_again_is_restarted_less_and_less_often(parent):
    """The first time at once; whether it was never ready or for some seconds makes no difference."""

    def pause_after(seconds_ready, number=0):
        return parent._pause_after(Worker(number, None, None, time.monotonic() - seconds_ready))

    lived = [-math.inf, 0, -math.inf, 20, 40, -math.inf, -math.inf]
    assert [pause_after(seconds) for seconds in lived] == [0, 2, 4, 8, 16, 32, 60]
    assert pause_after(-math.inf, number=1) == 0  # another one
    assert pause_after(61) == 0  # it ran well: the next one starts at once again
    assert pause_after(59) == 2


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
