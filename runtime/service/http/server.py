"""The HTTP server, which runs in the event loop of its caller.

Malformed requests are refused in JSON, and a client that stops sending is disconnected after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import resource
import socket
from collections import Counter
from collections.abc import Iterator
from time import monotonic

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rollmux_env.errors import InputError
from runtime.service.address import Listen
from runtime.service.http.app import MOST_HEADERS
from runtime.service.http.endpoint import OF_LEASE, WHOLE

MOST_CONNECTIONS = 12_000
MOST_OF_A_PEER = 9_000  # connections of one address, which may be that of a proxy
MOST_KEPT = 8  # connections of one lease that are not closed for others
_HEADERS_S = 15.0  # longest time until the headers, or the rest of a body that is not read, have arrived
_REFUSALS = {
    400: ("Bad Request", "this is no HTTP request"),
    431: ("Request Header Fields Too Large", f"the headers of a request have {MOST_HEADERS} bytes at most"),
}
_CONTINUE = b"HTTP/1.1 100 "  # an interim response, which may precede the answer
_ENDS_S = 1  # time for open requests when the server closes
_IDLE_S = 60  # time after which a connection without a request is closed
_SILENT_S = 60  # time after which a client that acknowledges nothing is disconnected
_AGAIN_S = 0.2
_FILES = MOST_CONNECTIONS + 1000


class _Answer:
    """A transport that holds back an answer's headers until its body follows, so that both take one system call."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Send data; the headers are held back."""
        if self._head is None and not data.startswith(_CONTINUE):
            self._head = data
            return
        self._transport.write((self._head or b"") + data)
        self._head = b"" if self._head is not None else None

    def flush(self) -> None:
        """Send the headers if no body has followed them."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Close the connection after everything is sent."""
        self.flush()
        self._transport.close()


class _Connections:
    """The connections of a server, in the order in which they are closed if there are too many.

    Attributes:
        idle: Connections without a request and not kept for a lease, in the order in which they became idle.
        peers: Number of connections by address.
        of_leases: Number of connections that are not closed for others, by lease.
    """

    def __init__(self) -> None:
        self.idle: dict[Connection, None] = {}
        self.peers: Counter[str] = Counter()
        self.of_leases: Counter[str] = Counter()


class Connection(HttpToolsProtocol):
    """A connection, with one request at a time. It refuses requests that llhttp accepts and HTTP/1.1 forbids."""

    _room: _Connections
    peer = ""
    _lease = ""  # active lease for which it is kept, and so not closed for others
    _deadline: asyncio.TimerHandle | None = None
    _head: int | None = None  # bytes received since the first data of the headers, or None outside headers

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register a new connection, or abort it if there are too many."""
        super().connection_made(transport)
        room = self._room = self.config.room  # type: ignore[attr-defined]
        self.peer = (transport.get_extra_info("peername") or ("",))[0]
        room.peers[self.peer] += 1
        if not self._finds_room(room):
            transport.abort()
            return
        room.idle[self] = None
        self._watch()

    def _finds_room(self, room: _Connections) -> bool:
        """Return whether the connection may stay. If there are too many, the one that has been idle longest is closed for it."""
        if room.peers[self.peer] > MOST_OF_A_PEER:
            other = next((one for one in room.idle if one.peer == self.peer), None)
        elif len(self.connections) > MOST_CONNECTIONS:
            other = next(iter(room.idle), None)
        else:
            return True
        if other is not None:
            room.idle.pop(other)
            other.transport.abort()
        return other is not None

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove a closed connection."""
        self._relax()
        self._room.idle.pop(self, None)
        self._keep_for("")
        _decrease(self._room.peers, self.peer)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take data, and refuse headers that are too large."""
        if self.transport.is_closing():
            return
        self._head = None if self._head is None else self._head + len(data)
        super().data_received(data)
        if (self._head or 0) > MOST_HEADERS:
            self._refuse(431)
        elif self._in_work():
            self._relax()
        elif self._deadline is None:
            self._watch()

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Check the headers, and begin the request.

        Raises:
            ValueError: If they are not of HTTP/1.0 or HTTP/1.1.
        """
        self._head = None
        version, hosts = self.parser.get_http_version(), sum(name == b"host" for name, _ in self.headers)
        if version not in ("1.0", "1.1") or hosts > 1 or (version == "1.1" and not hosts):
            raise ValueError("no request of HTTP/1.1")
        super().on_headers_complete()
        self._room.idle.pop(self, None)
        self.cycle.transport = _Answer(self.transport)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        """Note that the whole request has arrived."""
        self.scope[WHOLE] = True  # type: ignore[literal-required]
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Send the answer, and note that the connection is idle."""
        self.cycle.transport.flush()  # type: ignore[attr-defined]
        if not self.transport.is_closing():
            self._keep_for(str(self.cycle.scope.get(OF_LEASE, self._lease)))
        super().on_response_complete()
        if not self._lease and not self._in_work() and not self.transport.is_closing():
            self._room.idle[self] = None
        if self.cycle.more_body and not self._in_work():  # the client still sends a body that is not read
            self._watch()

    def _keep_for(self, lease: str) -> None:
        """Keep the connection for a lease that has not too many others, or for none."""
        if lease == self._lease:
            return
        of_leases = self._room.of_leases
        if self._lease:
            _decrease(of_leases, self._lease)
        self._lease = lease if lease and of_leases[lease] < MOST_KEPT else ""
        if self._lease:
            of_leases[lease] += 1

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed data."""
        self._refuse(400)

    def _refuse(self, status: int) -> None:
        if not self._in_work():  # an answer in progress is not interrupted
            reason, problem = _REFUSALS[status]
            body = json.dumps({"error": problem})
            head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(f"{head}connection: close\r\n\r\n{body}".encode())
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


def _decrease(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process that the server is a part of."""
        yield


class HttpServer:
    """A server that listens until it is closed.

    Args:
        app: Application that answers.
        where: Listening socket, from `bind`.

    Attributes:
        url: URL of the server, without a slash at the end.
        port: Number of the port.
    """

    def __init__(self, app: ASGIApp, where: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=_ENDS_S,
        )
        for name in ("uvicorn.error", "uvicorn.access"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # errors of clients are answered, and not logged
        config.room = _Connections()  # type: ignore[attr-defined]
        self._server = _Server(config)
        self._socket = where
        host, port = where.getsockname()[:2]
        self.port = int(port)
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)  # for all addresses
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self._serving: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Begin to listen."""
        self._serving = asyncio.ensure_future(self._server.serve([self._socket]))
        while not self._server.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Accept no more requests, and end the open ones."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


async def bind(where: Listen, patience_s: float = 0.0) -> socket.socket:
    """Bind a listening socket.

    Args:
        where: Place at which to listen.
        patience_s: Longest wait for a port that is in use, in seconds.

    Raises:
        InputError: If there is no such host, it is beyond loopback and not allowed, or the port is taken; one line.
    """
    family, address = where.resolve()
    _allow_files()
    until_s = monotonic() + patience_s
    while True:
        taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit these options
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # without it, a body waits 40 ms after its headers
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_S // 2)
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _SILENT_S // 6)
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENT_S)
            taken.bind(address)
            taken.listen(2048)
            taken.setblocking(False)
            return taken
        except OSError as error:
            taken.close()
            if monotonic() >= until_s:
                raise InputError(f"--http {where}: {error.strerror or error}") from None
        await asyncio.sleep(_AGAIN_S)


def _allow_files() -> None:
    """Raise this process's limit of open files to what all connections need, if that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
