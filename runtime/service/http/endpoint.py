"""From a request to the work of its operation, and from what comes of it to an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import format_error, one_line, problems
from runtime.answers import NotAllowed, TooMany
from runtime.service.http.answers import error, refusal
from runtime.service.http.guard import HOLDER
from runtime.service.http.operations import Body, Call, Operation
from runtime.service.operations import OperationsLog
from runtime.service.service import Service
from runtime.service.tokens import Holder, Right

MOST_BYTES = 1 << 20  # of a body
MOST_OF_A_LEASE = 4  # open requests
_BODY_S = 30.0  # that a body may take to arrive


class Endpoints:
    """Makes the functions that Starlette calls.

    Args:
        service: that is asked. log: of operations.
    """

    def __init__(self, service: Service, log: OperationsLog) -> None:
        self._service = service
        self._log = log
        self._background: set[asyncio.Task[None]] = set()
        self._open_of: dict[str, int] = {}  # requests of leases

    def make(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        """The function for an operation."""

        async def endpoint(request: Request) -> Response:
            holder: Holder = request.scope[HOLDER]
            lease = request.path_params.get("lease")
            call = None
            try:
                if holder.right < operation.right:
                    raise NotAllowed(f"this token has the right to {_name(holder.right)}, not to {_name(operation.right)}")
                if lease is not None:
                    self._come(lease)
                try:
                    query = None if operation.query is None else _query_of(request, operation.query)
                    body = None if operation.body is None else _parsed(await _body_of(request), operation.body)
                    call = Call(self._service, holder, request.path_params, query, body, self._background)
                    work = operation.work(call)
                    response = await (_while_connected(work, request) if operation.waits else work)
                finally:
                    if lease is not None:
                        self._go(lease)
            except InputError as refused:
                response = refusal(refused)
            except asyncio.CancelledError:  # the server closes
                response = error(503, "the service is stopping", {"Connection": "close", "Retry-After": "1"})
            except _Unread as unread:
                response = error(unread.status, str(unread))  # what still comes of the body is dropped for a while
            if operation.logged and not getattr(call and call.query, "dry_run", False):
                self._write(operation.logged, holder, request, call, response)
            return response

        return endpoint

    def _write(self, name: str, holder: Holder, request: Request, call: Call | None, response: Response) -> None:
        subject = next(iter(request.path_params.values()), "")
        if not subject and call is not None:
            entries = call.body if isinstance(call.body, list) else [call.body]
            subject = ", ".join(str(entry.get("id", "")) for entry in entries if isinstance(entry, dict))
        outcome = "done" if response.status_code < 300 else bytes(response.body).decode()
        self._log.write(holder.user, name, subject, outcome)

    def _come(self, lease: str) -> None:
        count = self._open_of.get(lease, 0)
        if count >= MOST_OF_A_LEASE:
            raise TooMany(f"a lease has {MOST_OF_A_LEASE} open requests at most")
        self._open_of[lease] = count + 1

    def _go(self, lease: str) -> None:
        self._open_of[lease] -= 1
        if not self._open_of[lease]:
            del self._open_of[lease]


class _Unread(Exception):
    """A body that is not read to its end.

    Args:
        status: that goes with it. problem: one line.
    """

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


async def _body_of(request: Request) -> bytes:
    """The body; raises `_Unread` where it is too long or does not come."""
    too_long = _Unread(413, f"a body has {MOST_BYTES} bytes at most")
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or len(length) > 10 or int(length) > MOST_BYTES:
        raise too_long
    data = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in request.stream():
                data += part
                if len(data) > MOST_BYTES:
                    raise too_long
    except TimeoutError:
        raise _Unread(408, f"the body has not come within {_BODY_S:.0f} s") from None
    return bytes(data)


def _parsed(data: bytes, model: type[BaseModel]) -> Any:
    """What a body says.

    Raises:
        InputError: it is not as the model says; one line.
    """
    if issubclass(model, Body):
        try:
            return model.model_validate_json(data or b"{}")
        except ValidationError as wrong:
            raise InputError(_problem_of(wrong, model)) from None
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as wrong:
        raise InputError(f"the body is not JSON: {one_line(str(wrong), 200)}") from None


def _query_of(request: Request, model: type[BaseModel]) -> BaseModel:
    pairs = request.query_params.multi_items()
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise InputError("a parameter is given twice")
    try:
        return model.model_validate(parameters)
    except ValidationError as wrong:
        raise InputError(_problem_of(wrong, model)) from None


def _problem_of(wrong: ValidationError, model: type[BaseModel]) -> str:
    return one_line(format_error(problems(wrong)[0], model)).replace("this file format", "this request")


async def _while_connected(work: Awaitable[Response], request: Request) -> Response:
    """What comes of work that may wait, as long as there is somebody to tell."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return Response(status_code=499)  # which nobody reads
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()


async def _gone(receive: Receive) -> None:
    """Wait until the client has gone; what it sends meanwhile nobody reads."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _name(right: Right) -> str:
    return right.name.lower()
