"""A connection to a client: what is malformed is refused in JSON, and who does not go on is not waited for for ever."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 12_000
_HEADERS_S = 15.0  # that the headers of a request, or what is left of a body that nobody reads, may take to arrive
_REASONS = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}


class Connection(H11Protocol):
    """One connection; requests come one after the other."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        self._relax()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """It has sent something."""
        super().data_received(data)
        if self._in_work():
            self._relax()
        elif self._deadline is None:
            self._watch()

    def on_response_complete(self) -> None:
        """It has been answered."""
        super().on_response_complete()
        if self.conn.their_state is not h11.IDLE and not self._in_work():  # it still sends what nobody reads
            self._watch()

    def send_400_response(self, msg: str) -> None:
        """What it has sent is no request."""
        status = 431 if getattr(sys.exc_info()[1], "error_status_hint", 400) == 431 else 400
        problem = "the headers of a request have 16384 bytes at most" if status == 431 else "this is no HTTP request"
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is on its way already
            self.transport.close()
            return
        body = json.dumps({"error": problem}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        response = h11.Response(status_code=status, headers=headers, reason=_REASONS[status])
        events: tuple[Any, ...] = (response, h11.Data(data=body), h11.EndOfMessage())
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _in_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        self._relax()
        self._deadline = self.loop.call_later(_HEADERS_S, self._expire)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if not self._in_work():
            self.transport.close()
