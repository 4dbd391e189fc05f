"""uvicorn's connections with a limit on their number, and with timeouts.

uvicorn itself waits forever for the head of a request, for the rest of a refused body, and for a client to read its
answers. Here a connection is always in one of four states, three of which have a timer. Bytes that trickle in or out do
not extend it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tierank.serve.limits import Connections
from tierank.serve.refusals import Refusal, busy


def _closing(status: bytes, refusal: Refusal) -> bytes:
    """An answer that ends the connection, for clients whose request does not reach the application."""
    body = json.dumps(refusal.to_dict()).encode()
    headers = {
        "Content-Type": "application/json",
        **refusal.headers,
        "Connection": "close",
        "Content-Length": len(body),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return b"HTTP/1.1 %b\r\n%b\r\n%b" % (status, lines.encode(), body)


# Sent to clients that connect when the limit is reached, before anything is read.
_FULL = busy(
    "fewer connections", "as many as there may be", "try again, or raise the limit max_connections of the server"
)
_LENGTHS = {b"transfer-encoding", b"content-length"}
_INVALID = Refusal(
    400, "request", "HTTP/1.1", "something else", "check the address, the head and the length of the body"
)


class _Parser(h11.Connection):
    """h11's parser, which refuses a body with two lengths: a proxy could take the other one (request smuggling)."""

    def next_event(self) -> Any:
        """The next part of a request."""
        event = super().next_event()
        if isinstance(event, h11.Request) and {name for name, _ in event.headers} >= _LENGTHS:
            raise h11.RemoteProtocolError("both Transfer-Encoding and Content-Length")
        return event


class _Transport:
    """A transport that is closed after the client has sent its request, or after a second ``close``.

    A client that is still sending when its connection is reset gives up before it reads the answer.
    """

    def __init__(self, transport: asyncio.Transport, is_sending: Callable[[], bool]) -> None:
        self._transport, self._is_sending = transport, is_sending
        self._is_closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing more can be written."""
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        """Send what was written, and then that it is the end."""
        if self.is_closing() or not self._is_sending():
            self._transport.close()
            return
        self._is_closing = True
        with suppress(OSError):  # the client is gone, which the transport notices too
            self._transport.write_eof()


class Connection(H11Protocol):
    """A connection, and its timer."""

    def __init__(self, *arguments: Any, limits: Connections, count: Callable[[int], None], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.conn = _Parser(h11.SERVER)
        self._limits, self._count = limits, count
        self._state = ""
        self._has_ended = False  # the client sends nothing more
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, if the limit allows."""
        is_full = len(self.connections) >= self._limits.max_connections
        super().connection_made(_Transport(transport, self._is_receiving))  # type: ignore[arg-type]
        if is_full:
            self._count(503)
            transport.write(_closing(b"503 Service Unavailable", _FULL))
            transport.close()
        self._look()

    def data_received(self, data: bytes) -> None:
        """Pass received bytes on."""
        if not self.transport.is_closing():
            super().data_received(data)
            self._look()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer the requests that have arrived: a client that has nothing more to send may still read."""
        self._has_ended = True
        return self._has_whole_request()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one."""
        super().on_response_complete()
        self._unset_keepalive_if_required()  # only our timer is used
        self.flow.resume_reading()
        self._look()
        if self._has_ended and not self._has_whole_request():
            self.transport.close()

    def pause_writing(self) -> None:
        """Wait until the client has read what was sent."""
        super().pause_writing()
        self._look()

    def resume_writing(self) -> None:
        """Go on: the client has read almost everything."""
        super().resume_writing()
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP as any other refused request; an answer that has begun is cut off."""
        self._count(400)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(_closing(b"400 Bad Request", _INVALID))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Restart the timer if the state has changed."""
        state = self._current()
        if state == self._state:
            return
        self._state = state
        if self._timer is not None:
            self._timer.cancel()
        limits = self._limits
        seconds = {
            "receiving": limits.header_timeout,
            "idle": limits.idle_timeout,
            "sending": limits.idle_timeout,
        }.get(state)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._give_up)

    def _current(self) -> str:
        if self.flow.write_paused:
            return "sending"
        if self._is_answering():
            return "answering"  # the application has its own limits
        is_between = self.cycle is not None and self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        return "idle" if is_between else "receiving"

    def _is_receiving(self) -> bool:
        """Whether the rest of a body is to come."""
        return self.conn.their_state is h11.SEND_BODY and not self._has_ended

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _has_whole_request(self) -> bool:
        """Whether a request has arrived completely, and its answer is not complete."""
        return self._is_answering() and not self.cycle.more_body

    def _give_up(self) -> None:
        """Close the connection, whatever was not sent or read."""
        self.transport.abort()
