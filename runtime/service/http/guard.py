"""Who comes in: a token is asked for, before anything else is looked at, and no more requests are let in than there is room for."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from runtime.service.http.answers import error
from runtime.service.tokens import Tokens

MOST_OPEN = 10_000  # requests
MOST_HEADERS = 16 << 10  # bytes
OPEN_TO_ALL = ("/healthz", "/")
HOLDER = "holder"  # key of the scope of a request
_BEARER = b"bearer "
_UNKNOWN = {"WWW-Authenticate": 'Bearer realm="rollmux"'}


class Guard:
    """Lets requests through to an app; their scope has the holder of the token then.

    Args:
        app: behind it. tokens: of those who may come in. most_open: requests at a time.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, most_open: int = MOST_OPEN) -> None:
        self._app = app
        self._tokens = tokens
        self._most_open = most_open
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # there are no web sockets
            return
        refused = None
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if sum(len(name) + len(value) + 4 for name, value in headers) > MOST_HEADERS:
            refused = error(431, f"the headers of a request have {MOST_HEADERS} bytes at most")
        elif self._open >= self._most_open:
            refused = error(429, f"{self._most_open} requests are open; there is room for no more", {"Retry-After": "1"})
        elif scope["path"] not in OPEN_TO_ALL:
            values = [value for name, value in headers if name == b"authorization"]
            bearer = (
                values[0][len(_BEARER) :].strip() if len(values) == 1 and values[0][: len(_BEARER)].lower() == _BEARER else None
            )
            holder = self._tokens.holder(bearer.decode("latin-1")) if bearer else None
            if holder is None:
                why = "needs the header `Authorization: Bearer TOKEN`" if bearer is None else "this token is none of the service's"
                refused = error(401, why, _UNKNOWN)
            scope[HOLDER] = holder
        if refused is not None:
            await refused(scope, receive, send)
            return
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1
