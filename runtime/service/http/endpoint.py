"""Endpoints: they turn a request into the work of its operation, and the result into an answer.

An operation is a method, a path, the right that it takes, and models of its body and its query. Routes and the description of the
API are made from the same operations, so neither has something that the other lacks.
"""

from __future__ import annotations

import asyncio
import json
import json.decoder
import json.scanner
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json
from starlette.responses import Response
from starlette.types import Receive, Scope

from rollmux_env.errors import Conflict, InputError, NotAllowed, TooMany
from rollmux_env.validation_errors import format_error, one_line, problems
from runtime.service.operations_log import OperationsLog
from runtime.service.service import RunService
from runtime.service.tokens import Holder, Right

JSON = "application/json"
_TOGETHER = 100  # list items that are encoded without a pause
_LONGEST = 1000  # characters of an error
HOLDER = "holder"  # key of a request's scope: the holder of its token
WHOLE = "whole"  # likewise: whether the whole body has arrived
OF_LEASE = "of lease"  # likewise: id of the lease whose request was granted, or "" if that lease is over
MOST_BYTES = 1 << 20  # largest body
_SMALL_BYTES = 64 << 10  # largest body that is parsed in the loop, in less than a millisecond
MOST_OF_A_LEASE = 4  # open requests
_GONE = 499  # status of an answer to a client that has disconnected
_BODY_S = 5.0  # longest time until a body has arrived
_STRICT = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_LOOKS_S = 0.1  # time after which the client of a request is watched for disconnection


class RequestInput(BaseModel):
    """The input of a request."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Query(RequestInput):
    """The query parameters of a URL."""


class Body(RequestInput):
    """The JSON object in a request's body."""

    model_config = ConfigDict(strict=True)


class ApiCall(NamedTuple):
    """A request whose input has been validated.

    Attributes:
        service: The service.
        holder: Holder of the request's token.
        path: Values of the path's parameters, by name.
        query: Query as the operation's model, or None if it has none.
        body: Body as the operation's model, or None if it has none.
    """

    service: RunService
    holder: Holder
    path: Mapping[str, str]
    query: Any = None
    body: Any = None


@dataclass(frozen=True)
class Operation:
    """An operation of the API.

    Attributes:
        name: Name, which is the operation's id in the API description.
        method: HTTP method.
        path: Path, with its parameters in braces.
        right: Smallest right that a token must have.
        work: Function that returns a JSON value or a whole response. It raises an InputError, answered with that error's status.
        summary: One-line description.
        query: Model of the query, or None.
        body: Model of the body, or None. If the model is not a `Body`, the body is passed on as plain JSON.
        status: Status of an answer without an error.
        media: Media type of that answer.
        refuses: Statuses of refusals, besides those that every operation has.
        check: Function that checks whether this holder may ask, before the body is read; it raises as `work` does. Or None.
        logged: Whether the log of operations records it. The others change nothing, or the journal records who asked.
        at_once: Whether it keeps or frees nodes of a lease, and so does not wait in the queue of requests.
        always: Whether no limit of open requests counts it or refuses it.
    """

    name: str
    method: str
    path: str
    right: Right
    work: Callable[[ApiCall], Awaitable[Any]]
    summary: str
    query: type[RequestInput] | None = None
    body: type[BaseModel] | None = None
    status: int = 200
    media: str = JSON
    refuses: tuple[int, ...] = ()
    check: Callable[[ApiCall], None] | None = None
    logged: bool = False
    at_once: bool = False
    always: bool = False


Endpoint = Callable[[Scope, Receive, Mapping[str, str]], Awaitable[Response]]
"""Function that answers a request, from its scope, its messages, and the values of its path's parameters."""


class Endpoints:
    """Maker of the functions that answer requests.

    Args:
        service: The service.
        log: Log of operations.
        turn: Function that waits until a request of a user may pass.
    """

    def __init__(self, service: RunService, log: OperationsLog, turn: Callable[[str], Awaitable[None]]) -> None:
        self._service = service
        self._log = log
        self._open_of: Counter[str | None] = Counter()  # open requests by lease
        self._turn = turn
        self._large = asyncio.Semaphore(1)  # bodies that are parsed in a thread

    def make(self, operation: Operation) -> Endpoint:
        """Return the function that answers the requests of an operation."""

        async def endpoint(scope: Scope, receive: Receive, path: Mapping[str, str]) -> Response:
            call = ApiCall(self._service, scope[HOLDER], path)
            try:
                _allow(call.holder, operation.right)
                if operation.check is not None:
                    operation.check(call)
                if operation.query is not None:
                    call = call._replace(query=_query_of(scope, operation.query))
                if operation.body is not None:
                    call = call._replace(body=await self._parsed(await _body_of(scope, receive), operation.body))
                with self._counted(None if operation.always else call.path.get("lease")):
                    value = await _while_connected(self._work(operation, call), receive)
                response = value if isinstance(value, Response) else answer(value, operation.status)
            except InputError as refused:
                response = refusal(refused)
            except asyncio.CancelledError:  # the server closes
                response = error(503, "the service is stopping", {"Connection": "close", "Retry-After": "1"})
            if "lease" in path and response.status_code < 300:
                scope[OF_LEASE] = path["lease"] if self._service.driver.leases.is_active(path["lease"]) else ""
            if operation.logged and not getattr(call.query, "dry_run", False):
                outcome = "done" if response.status_code < 300 else _reason(response)
                await asyncio.to_thread(self._log.write, call.holder.user, operation.name, _subject(call), outcome)
            return response

        return endpoint

    async def _parsed(self, data: bytes, model: type[BaseModel]) -> Any:
        """Return the value of a body. Large bodies are parsed in a thread, one at a time, so that permits do not wait for them."""
        if len(data) <= _SMALL_BYTES:
            return _parsed(data, model)
        if issubclass(model, Body):
            raise _Unread(413, f"the body of this request has {_SMALL_BYTES} bytes at most")
        async with self._large:
            return await asyncio.to_thread(_from_json, data, _in_python())

    async def _work(self, operation: Operation, call: ApiCall) -> Any:
        if not operation.at_once:
            await self._turn(call.holder.user)
        try:
            return await operation.work(call)
        except InputError as refused:
            if refused.status == Conflict.status:  # it reveals facts, such as that a job has ended: they must be durable
                await self._service.run.log.durable()
            raise

    @contextmanager
    def _counted(self, lease: str | None) -> Iterator[None]:
        """Count a request of a lease as open.

        Raises:
            TooMany: If the lease has too many open requests; one line.
        """
        if lease is None:
            yield
            return
        if self._open_of[lease] >= MOST_OF_A_LEASE:
            raise TooMany(f"a lease has {MOST_OF_A_LEASE} open requests at most")
        self._open_of[lease] += 1
        try:
            yield
        finally:
            self._open_of[lease] -= 1
            if not self._open_of[lease]:
                del self._open_of[lease]


def _allow(holder: Holder, right: Right) -> None:
    if holder.right < right:
        raise NotAllowed(f"this token has the right to {holder.right.name.lower()}, not to {right.name.lower()}")


def _subject(call: ApiCall) -> str:
    """Return the subject of a request: the job, node or lease of its path, else the user or the jobs of its body."""
    entries = call.body if isinstance(call.body, list) else [call.body]
    named = next(iter(call.path.values()), "") or getattr(call.body, "user", "")
    return named or ", ".join(str(entry.get("id", "")) for entry in entries if isinstance(entry, dict))


def _reason(response: Response) -> str:
    """Return why a request was refused, as its answer says, or that there was no client to answer."""
    return str(json.loads(bytes(response.body))["error"]) if response.body else "the client has gone"


class _Unread(InputError):
    """Error: a body is too long or does not arrive. The rest of it is dropped for a while."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


async def _body_of(scope: Scope, receive: Receive) -> bytes:
    """Return the body of a request.

    Raises:
        _Unread: If it is too long or does not arrive.
    """
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    data = b""
    if length.isdigit() and len(length) <= 10 and int(length) <= MOST_BYTES:
        try:
            async with asyncio.timeout(None if WHOLE in scope else _BODY_S):
                while len(data) <= MOST_BYTES:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Unread(_GONE, "the client has gone")
                    data += message["body"]
                    if not message["more_body"]:
                        break
        except TimeoutError:
            raise _Unread(408, f"the body has not come within {_BODY_S:.0f} s") from None
        if len(data) <= MOST_BYTES:
            return data
    raise _Unread(413, f"a body has {MOST_BYTES} bytes at most")


def _parsed(data: bytes, model: type[BaseModel]) -> Any:
    """Return the value of a body.

    Raises:
        InputError: If it does not fit the model; one line.
    """
    if not issubclass(model, Body):
        return _from_json(data, _DECODER)
    try:
        _DECODER.decode(data.decode() or "{}")
    except InputError:
        raise
    except (ValueError, RecursionError):
        pass  # the model's error is clearer
    return _valid(lambda: model.model_validate_json(data or b"{}"), model)


def _from_json(data: bytes, decoder: json.JSONDecoder) -> Any:
    """Return the value of a body.

    Raises:
        InputError: If it is not JSON, or an object in it has a key twice; one line.
    """
    try:
        value = decoder.decode(data.decode())
        if b"\\ud" in data.lower():  # perhaps a lone surrogate, which only this parser refuses
            from_json(data)
        return value
    except InputError:
        raise
    except (ValueError, RecursionError) as wrong:
        raise InputError(f"the body is not JSON: {one_line(str(wrong), 200)}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise InputError(f"the key {one_line(twice, 80)} is given twice")
    return value


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number)


def _in_python() -> json.JSONDecoder:
    """Return a JSON decoder in Python, which lets other threads run; the one in C holds the lock until it ends."""
    decoder: Any = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_number)
    parts: Any = json.decoder
    decoder.parse_object, decoder.parse_array = parts.JSONObject, parts.JSONArray
    decoder.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    return cast("json.JSONDecoder", decoder)


def _query_of(scope: Scope, model: type[BaseModel]) -> BaseModel:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise InputError("a parameter is given twice")
    return _valid(lambda: model.model_validate(parameters), model)


def _valid(validate: Callable[[], BaseModel], model: type[BaseModel]) -> BaseModel:
    try:
        return validate()
    except ValidationError as wrong:
        problem = one_line(format_error(problems(wrong)[0], model))
        raise InputError(problem.replace("this file format", "this request")) from None


async def _while_connected(work: Awaitable[Any], receive: Receive) -> Any:
    """Return the result of work, or cancel the work when the client disconnects. Short work is not watched.

    Args:
        work: Work to wait for.
        receive: Source of the request's messages.
    """
    waiting, is_over = asyncio.current_task(), False
    leaving: list[asyncio.Future[None]] = []
    assert waiting is not None

    def end(gone: asyncio.Future[None]) -> None:
        if not is_over and not gone.cancelled():
            waiting.cancel()

    def look() -> None:
        leaving.append(asyncio.ensure_future(_gone(receive)))
        leaving[0].add_done_callback(end)

    timer = asyncio.get_running_loop().call_later(_LOOKS_S, look)
    try:
        return await work
    except asyncio.CancelledError:
        if not leaving or not leaving[0].done():
            raise
        waiting.uncancel()
        return Response(status_code=_GONE)
    finally:
        is_over = True
        timer.cancel()
        for watch in leaving:
            watch.cancel()


async def _gone(receive: Receive) -> None:
    """Wait until the client has disconnected, and ignore what it sends."""
    while (await receive())["type"] != "http.disconnect":
        pass


def answer(value: Any, status: int = 200) -> Response:
    """Return a response with a JSON value; numbers that are not finite become null.

    Args:
        value: The value.
        status: Status of the response.
    """
    return Response(_text(value), status, media_type=JSON)


async def answer_in_steps(value: dict[str, Any], name: str) -> Response:
    """Return a response with a JSON object that has a long list; other tasks run while it is encoded.

    Args:
        value: The object.
        name: Key of the long list.
    """
    rest, parts = {key: part for key, part in value.items() if key != name}, []
    for first in range(0, len(value[name]), _TOGETHER):
        parts.append(_text(value[name][first : first + _TOGETHER])[1:-1])
        await asyncio.sleep(0)
    return Response(f'{_text(rest)[:-1]},"{name}":[{",".join(parts)}]}}', media_type=JSON)


def _text(value: Any) -> str:
    try:
        return _STRICT.encode(value)
    except ValueError:
        return _STRICT.encode(finite(value))


def error(status: int, problem: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response `{"error": "one line"}`.

    Args:
        status: Status of the response.
        problem: Line about the error.
        headers: Additional headers, or None.
    """
    return Response(json.dumps({"error": one_line(problem, _LONGEST)}), status, headers, JSON)


def refusal(refused: InputError) -> Response:
    """Return the response for an error of a request."""
    return error(refused.status, str(refused), {"Retry-After": "1"} if refused.status in (429, 503) else None)


def finite(value: Any) -> Any:
    """Return a JSON value with None in place of numbers that are not finite."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value
