"""The application: all that a service answers, behind its guard."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from rollmux_env.validation_errors import one_line
from runtime.service.http import jobs, leases, nodes, overview
from runtime.service.http.answers import JSON, answer, error
from runtime.service.http.endpoint import Endpoints
from runtime.service.http.guard import MOST_OPEN, Guard
from runtime.service.http.openapi import describe_api
from runtime.service.operations import OperationsLog
from runtime.service.service import Service
from runtime.service.tokens import Tokens

_PAGE = {  # it runs its own script, and asks nobody but the service
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

OPERATIONS = (*leases.OPERATIONS, *jobs.OPERATIONS, *overview.OPERATIONS, *nodes.OPERATIONS)  # what is asked most comes first


def make_app(service: Service, tokens: Tokens, log: OperationsLog, most_open: int = MOST_OPEN) -> ASGIApp:
    """What answers for a service.

    Args:
        tokens: of those who may ask. log: of what they do. most_open: requests at a time.
    """
    endpoints = Endpoints(service, log)
    routes = [Route(at.path, endpoints.make(at), methods=[at.method]) for at in OPERATIONS]
    described = answer(describe_api(OPERATIONS)).body

    async def health(request: Request) -> Response:
        return answer({"ok": True})

    async def description(request: Request) -> Response:
        return Response(described, media_type=JSON)

    async def page(request: Request) -> Response:
        from runtime.service.page import page_html

        return HTMLResponse(page_html(), headers=_PAGE)

    async def broken(request: Request, wrong: Exception) -> Response:
        service.say(f"{request.method} {one_line(request.url.path)}: {type(wrong).__name__}: {one_line(str(wrong))}")
        return error(500, f"{type(wrong).__name__}: a defect of RollMux; the service goes on")

    routes += [Route("/healthz", health), Route("/openapi.json", description), Route("/", page)]
    handlers = {HTTPException: _refused, Exception: broken}
    app = Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]
    app.router.redirect_slashes = False
    return Guard(app, tokens, most_open)


async def _refused(request: Request, wrong: HTTPException) -> Response:
    problem = {404: "there is no such path", 405: "this path has no such method"}.get(wrong.status_code, wrong.detail)
    return error(wrong.status_code, problem, wrong.headers)
