"""The network: requests of the real client come to the application of the real service, late, twice, or not at all.

A connection is HTTP as both ends see it: the client's request and answer, the server's `receive` and `send`. Bytes on a wire, and
the server that parses them, are not simulated.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rollmux_client import Service
from starlette.types import ASGIApp

from tests.simulation.loop import Process, World
from tests.simulation.threads import Waited

_DELAYS_S = (0.0002, 0.001, 0.001, 0.02, 0.3)
_TWICE_S = (0.01, 0.5, 8.0)
FATES = ("lost", "unanswered", "twice", "cut", "slow")


@dataclass(frozen=True)
class Answered:
    """An answer that a service has sent, as checks see it; what nobody looks at is not parsed."""

    process: Process
    method: str
    path: str
    body: bytes
    status: int
    content: bytes

    @cached_property
    def asked(self) -> dict[str, Any]:
        asked = json.loads(self.body) if self.body else {}
        return asked if isinstance(asked, dict) else {}

    @cached_property
    def answer(self) -> Any:
        return json.loads(self.content) if self.content else {}

    @property
    def refusal(self) -> str:
        return str(self.answer.get("error", "")) if isinstance(self.answer, dict) else ""


_Came = tuple[int, bytes, dict[str, str]]  # status, content and headers


class _Reply(Waited):
    """What a client waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.came: _Came | OSError | None = None

    def come(self, what: _Came | OSError) -> None:
        if self.came is None:
            self.came = what
            self._changed()

    def wait(self, timeout_s: float) -> _Came:
        self._until(lambda: self.came is not None, timeout_s)
        if self.came is None:
            raise TimeoutError("timed out")
        if isinstance(self.came, OSError):
            raise self.came
        return self.came


@dataclass
class _Exchange:
    """A request, on the side of the server."""

    process: Process
    scope: dict[str, Any]
    body: bytes
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    sent_body: bool = False
    status: int = 0
    content: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    async def receive(self) -> dict[str, Any]:
        if not self.sent_body:
            self.sent_body = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}


class Network:
    """Between clients and the service that listens.

    Args:
        fates: of requests, by their number from 1.

    Attributes:
        requests: so many were made. answered: is told of each answer that a service sends.
    """

    def __init__(self, world: World, fates: dict[int, str]) -> None:
        self.world, self.fates = world, fates
        self.requests = 0
        self.used: dict[str, int] = {}
        self.answered: Callable[[Answered], None] = lambda _: None
        self._listener: tuple[Process, ASGIApp] | None = None
        self._away_s, self._since_s = 0.0, world.now_s
        self._open: dict[_Exchange, Callable[[], None]] = {}

    @property
    def away_s(self) -> float:
        """For how long nobody has listened so far, in all."""
        return self._away_s + (self.world.now_s - self._since_s if self._listener is None else 0.0)

    def listen(self, app: ASGIApp) -> None:
        """The process whose turn it is answers from now on."""
        process = self.world.current
        self._away_s = self.away_s
        self._listener = (process, app)
        process.ends.append(lambda: self._died(process))

    async def close(self, patience_s: float = 1.0) -> None:
        """The process whose turn it is takes no more requests, and open ones are ended after a while, as the server does."""
        process = self.world.current
        self._take_no_more(process)
        tasks = [one.task for one in self._open if one.process is process and one.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)
        for task in tasks:
            task.cancel()

    def _take_no_more(self, process: Process) -> None:
        if self._listener is not None and self._listener[0] is process:  # else the next one listens already
            self._listener, self._since_s = None, self.world.now_s

    def _died(self, process: Process) -> None:
        self._take_no_more(process)
        broken = [one for one in self._open if one.process is process]
        for one in broken:
            self._open.pop(one)()

    def exchange(self, method: str, path: str, headers: dict[str, str], content: bytes | None, timeout_s: float) -> _Came:
        """A request of the client whose turn it is; raises OSError where no answer comes."""
        client = self.world.current
        leaves: list[Callable[[], None]] = []  # what the service hears of a client that gives up
        self.requests += 1
        fate = self.fates.get(self.requests, "")
        if fate:
            self.used[fate] = self.used.get(fate, 0) + 1
        draw, reply = client.draw, _Reply()

        def answer(what: _Came | OSError) -> None:
            client.post(draw.choice(_DELAYS_S), reply.come, what)

        def nobody(what: _Came | OSError) -> None: ...

        target, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": target,
            "raw_path": target.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "server": ("service", 80),
            "client": ("client", 1),
        }
        if content is not None:
            scope["headers"].append((b"content-length", str(len(content)).encode()))  # type: ignore[attr-defined]
        delay_s = draw.choice(_DELAYS_S) + (12.0 if fate == "slow" else 0.0)
        if fate != "lost":
            told = answer if fate not in ("unanswered", "cut") else nobody
            self.world.outside.post(delay_s, self._arrive, scope, content or b"", told, client, fate == "cut", leaves)
        if fate == "twice":
            later_s = delay_s + draw.choice(_TWICE_S)
            self.world.outside.post(later_s, self._arrive, dict(scope), content or b"", nobody, client, False)
        if fate == "cut":
            client.post(delay_s + draw.choice(_TWICE_S), reply.come, ConnectionResetError("connection reset"))
        try:
            return reply.wait(timeout_s)
        finally:
            reply.came = reply.came or OSError()
            for leave in leaves:
                leave()

    def _arrive(
        self,
        scope: dict[str, Any],
        body: bytes,
        answer: Callable[[Any], None],
        client: Process,
        is_cut: bool,
        leaves: list[Callable[[], None]] | None = None,
    ) -> None:
        if self._listener is None or self._listener[0].dead:
            answer(ConnectionRefusedError("connection refused"))
            return
        process, app = self._listener
        one = _Exchange(process, scope, body)
        if leaves is not None:
            leaves.append(lambda: process.post(0.01, one.gone.set))
        process.post(0.0, self._begin, process, app, one, answer, client, is_cut)

    def _begin(
        self, process: Process, app: ASGIApp, one: _Exchange, answer: Callable[[Any], None], client: Process, is_cut: bool
    ) -> None:
        if self._listener is None:
            answer(ConnectionRefusedError("connection refused"))
            return
        self._open[one] = lambda: answer(ConnectionResetError("connection reset"))
        client.ends.append(lambda: process.post(0.01, one.gone.set))
        if is_cut:
            process.post(process.draw.choice(_TWICE_S), one.gone.set)

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                one.status = message["status"]
                one.headers = {name.decode(): value.decode() for name, value in message["headers"]}
                return
            one.content += message.get("body", b"")
            if not message.get("more_body") and self._open.pop(one, None) is not None:
                self._sent(process, one)
                answer((one.status, one.content, one.headers))

        async def serve() -> None:
            try:
                await app(one.scope, one.receive, send)  # type: ignore[arg-type]
            finally:
                if not process.dead and self._open.pop(one, None) is not None:
                    answer(ConnectionResetError("connection reset"))

        one.task = asyncio.ensure_future(serve())

    def _sent(self, process: Process, one: _Exchange) -> None:
        self.answered(Answered(process, one.scope["method"], one.scope["path"], one.body, one.status, one.content))


_Exchange.__hash__ = object.__hash__  # type: ignore[method-assign]


class _Connection:
    """What the client knows of one: whether it has been used before."""

    timeout = 0.0

    def __init__(self, host: str, port: int | None) -> None:
        self.sock: Any = None

    def close(self) -> None:
        self.sock = None


class _Response:
    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, http.client.HTTPMessage()
        for name, value in headers.items():
            self.headers[name] = value


class _Socket:
    def settimeout(self, timeout_s: float) -> None: ...


class ClientService(Service):
    """The client's service, whose connections go through the simulated network.

    Args:
        token: of the user.
    """

    def __init__(self, network: Network, token: str) -> None:
        super().__init__("http://service", token)
        self._network = network
        self._kind = _Connection  # type: ignore[assignment]

    def _exchange(self, connection: Any, method: str, path: str, content: bytes | None, timeout_s: float) -> Any:
        status, text, headers = self._network.exchange(method, path, self._headers, content, timeout_s)
        connection.sock = _Socket()
        return _Response(status, headers), text
