"""uvicorn's connections with a limit on their number, and with timeouts.

uvicorn itself waits forever for the head of a request, and for the rest of a refused body. Here a connection is always
in one of three states, two of which have a timer. Bytes that trickle in do not extend it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tierank.serve.limits import Connections

# Sent to clients that connect when the limit is reached, before anything is read.
_BODY = (
    b'{"error":{"where":"server","expected":"fewer connections","got":"as many as there may be",'
    b'"fix":"try again, or raise the limit max_connections of the server"}}'
)
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class Connection(H11Protocol):
    """A connection, and its timer."""

    def __init__(self, *arguments: Any, limits: Connections, count_refused: Callable[[], None], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._limits, self._count_refused = limits, count_refused
        self._state = ""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, if the limit allows."""
        is_full = len(self.connections) >= self._limits.max_connections
        super().connection_made(transport)
        if is_full:
            self._count_refused()
            transport.write(_FULL)
            transport.close()
        self._look()

    def data_received(self, data: bytes) -> None:
        """Pass received bytes on."""
        if not self.transport.is_closing():
            super().data_received(data)
            self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one."""
        super().on_response_complete()
        self._unset_keepalive_if_required()  # only our timer is used
        self._look()

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
        seconds = {"receiving": self._limits.header_timeout, "idle": self._limits.idle_timeout}.get(state)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._give_up)

    def _current(self) -> str:
        if self.cycle is not None and not self.cycle.response_complete:
            return "answering"  # the application has its own limits
        is_between = self.cycle is not None and self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        return "idle" if is_between else "receiving"

    def _give_up(self) -> None:
        """Close the connection; abort it if the client does not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()
