"""The ASGI application of a service, behind a guard that checks the token before it reads anything else.

The guard limits the number of open requests. A queue lets users take turns, however many requests each has.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from functools import cache

from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rollmux_env.errors import TooMany
from rollmux_env.validation_errors import one_line
from runtime.service.http.endpoint import HOLDER, JSON, Endpoint, Endpoints, answer, error
from runtime.service.http.openapi import describe_api
from runtime.service.http.operations import OPERATIONS
from runtime.service.operations_log import OperationsLog
from runtime.service.service import RunService
from runtime.service.tokens import Tokens

MOST_OPEN = 10_000  # requests
_MORE_AT_ONCE = 1000  # additional requests that keep or free nodes of a lease
MOST_HEADERS = 16 << 10  # bytes
OPEN_TO_ALL = ("/healthz", "/")
MOST_WAITING = 4000  # requests in the queue
MOST_OF_A_USER = 1000
TOGETHER = 16  # requests in one turn of the loop: some milliseconds
_BEARER = b"bearer "
_UNKNOWN = {"WWW-Authenticate": 'Bearer realm="rollmux"'}
_PAGE = {  # the page runs its own script, and connects only to the service
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def make_app(service: RunService, tokens: Tokens, log: OperationsLog, most_open: int = MOST_OPEN) -> ASGIApp:
    """Make the ASGI application of a service.

    Args:
        service: The service.
        tokens: Tokens of its users.
        log: Log of operations.
        most_open: Largest number of open requests.
    """
    endpoints, paths = Endpoints(service, log, RequestQueue().turn), Router()
    for at in OPERATIONS:
        paths.add(at.method, at.path, endpoints.make(at))

    async def health(*_: object) -> Response:
        return answer({"ok": True})

    async def description(*_: object) -> Response:
        return Response(_described(), media_type=JSON)

    async def page(*_: object) -> Response:
        from runtime.service.page import page_html

        return HTMLResponse(page_html(), headers=_PAGE)

    for path, endpoint in (("/healthz", health), ("/openapi.json", description), ("/", page)):
        paths.add("GET", path, endpoint)

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await paths.answer(scope, receive)
        except Exception as wrong:
            path, problem = one_line(scope["path"]), f"{type(wrong).__name__}: {one_line(str(wrong))}"
            service.run.log.say(f"{scope['method']} {path}: {problem}")
            response = error(500, f"{type(wrong).__name__}: a defect of RollMux; the service continues")
        await response(scope, receive, send)

    return Guard(answering, tokens, most_open)


@cache
def _described() -> bytes:
    return bytes(answer(describe_api(OPERATIONS)).body)


class Router:
    """Router from a path and a method to an endpoint. The third part of a path is a name, as in `/v1/jobs/{job}/attach`."""

    def __init__(self) -> None:
        # By path without its third part: the parameter that this part is the value of, and the endpoints by method.
        self._at: dict[str, tuple[str, dict[str, Endpoint]]] = {}

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        """Let an endpoint answer the requests of a path.

        Args:
            method: HTTP method.
            path: Path, with its parameter in braces.
            endpoint: Function that answers.
        """
        rest, kind = _without_name(path)
        self._at.setdefault(rest, ((kind or "")[1:-1], {}))[1][method] = endpoint

    async def answer(self, scope: Scope, receive: Receive) -> Response:
        """Answer a request by the endpoint of its path and method, or with status 404 or 405."""
        rest, name = _without_name(scope["path"])
        if rest not in self._at or name == "":
            return error(404, "there is no such path")
        kind, by_method = self._at[rest]
        endpoint = by_method.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if endpoint is None:
            return error(405, "this path has no such method", {"Allow": ", ".join(by_method)})
        return await endpoint(scope, receive, {} if name is None else {kind: name})


def _without_name(path: str) -> tuple[str, str | None]:
    """Return a path with an empty third part, and that part, or None if the path has fewer parts."""
    parts = path.split("/", 4)
    if len(parts) < 4:
        return path, None
    name, parts[3] = parts[3], ""
    return "/".join(parts), name


class Guard:
    """ASGI middleware that lets requests with a valid token through, and limits the number of open requests.

    It writes the holder of the token to the request's scope.

    Args:
        app: Application behind it.
        tokens: Tokens of the service's users.
        most_open: Largest number of open requests. A user other than the service's own may have half of them.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, most_open: int = MOST_OPEN) -> None:
        self._app = app
        self._tokens = tokens
        self._most_open = most_open
        self._open_of: Counter[str] = Counter()  # open requests by user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it to the application."""
        if scope["type"] != "http":  # there are no web sockets
            return
        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, send)
            return
        if _is_heartbeat(scope["path"]):
            await self._app(scope, receive, send)
            return
        user = scope[HOLDER].user if HOLDER in scope else ""
        self._open_of[user] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open_of[user] -= 1
            if not self._open_of[user]:
                del self._open_of[user]

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is refused, else None with the holder of its token in the scope."""
        size, authorizations = 0, []
        for name, value in scope["headers"]:
            size += len(name) + len(value) + 4
            if name == b"authorization":
                authorizations.append(value)
        if size > MOST_HEADERS:
            return error(431, f"the headers of a request have {MOST_HEADERS} bytes at most")
        is_heartbeat = _is_heartbeat(scope["path"])
        most = self._most_open + (_MORE_AT_ONCE if _is_at_once(scope["path"]) else 0)
        if self._open_of.total() >= most and not is_heartbeat:
            return _no_room(f"{self._most_open} requests")
        if scope["path"] in OPEN_TO_ALL:
            return None
        bearer = _bearer(authorizations)
        if bearer is None:
            return error(401, "needs the header `Authorization: Bearer TOKEN`", _UNKNOWN)
        holder = scope[HOLDER] = self._tokens.holder(bearer)
        if holder is None:
            return error(401, "this token is none of the service's", _UNKNOWN)
        if holder.user and not is_heartbeat and self._open_of[holder.user] >= self._most_open // 2:
            return _no_room(f"{self._most_open // 2} requests of this user")
        return None


class RequestQueue:
    """Round-robin queue: it lets `TOGETHER` requests pass in each turn of the event loop, one user after the other.

    Requests for nodes or reports wait in it, so that an overloaded service refuses them before it fails the owners of leases.
    Requests that keep or free nodes (a heartbeat, a release) do not.

    Args:
        most: Largest number of waiting requests.
        most_of_a_user: Largest number of waiting requests of one user.
    """

    def __init__(self, most: int = MOST_WAITING, most_of_a_user: int = MOST_OF_A_USER) -> None:
        self._most, self._most_of_a_user = most, most_of_a_user
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # waiting requests by user; the first user is next
        self._waiting, self._left, self._is_due = 0, TOGETHER, False

    async def turn(self, user: str) -> None:
        """Wait until a request of a user may pass.

        Args:
            user: Name of the user.

        Raises:
            TooMany: If too many requests wait already; one line.
        """
        if self._left and not self._lines:
            self._left -= 1
            self._soon()
            return
        if self._waiting >= self._most:
            raise TooMany(f"{self._most} requests wait for their turn; there is room for no more")
        line = self._lines.setdefault(user, deque())
        if len(line) >= self._most_of_a_user:
            raise TooMany(f"{self._most_of_a_user} requests of this user wait for their turn; there is room for no more")
        waits = asyncio.get_running_loop().create_future()
        line.append(waits)
        self._waiting += 1
        self._soon()
        await waits

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Let waiting requests pass in another turn of the loop."""
        self._is_due, self._left = False, TOGETHER
        while self._left and self._lines:
            user = next(iter(self._lines))
            line = self._lines.pop(user)
            waits = line.popleft()
            self._waiting -= 1
            if line:
                self._lines[user] = line
            if not waits.done():  # a request that is done was cancelled: its client has disconnected
                waits.set_result(None)
                self._left -= 1
        if self._lines:
            self._soon()


def _is_heartbeat(path: str) -> bool:
    """Return whether a request only keeps a lease alive: a refusal would end a living owner."""
    return path.startswith("/v1/leases/") and path.endswith("/heartbeat")


def _is_at_once(path: str) -> bool:
    """Return whether a request belongs to a lease and asks for no more nodes than that has."""
    return path.startswith("/v1/leases/") and not path.endswith("/acquire")


def _bearer(values: list[bytes]) -> str | None:
    """Return the token of a request's only Authorization header, or None."""
    if len(values) != 1 or not values[0].lower().startswith(_BEARER):
        return None
    return values[0][len(_BEARER) :].strip().decode("latin-1") or None


def _no_room(open_now: str) -> Response:
    return error(429, f"{open_now} are open; there is room for no more", {"Retry-After": "1"})
