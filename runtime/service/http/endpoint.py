"""From a request to the work of its operation, and from what comes of it to an answer.

What can be asked is an operation: a method, a path, the right that it takes, and what its body and its query look like. Routes and
the description of the API are made of the same operations, so that neither has what the other has not.
"""

from __future__ import annotations

import asyncio
import json
import json.decoder
import json.scanner
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
from runtime.service.http.asks import Asks
from runtime.service.operations_log import OperationsLog
from runtime.service.service import Service
from runtime.service.tokens import Holder, Right

JSON = "application/json"
_TOGETHER = 100  # parts of a list
_LONGEST = 1000  # characters of an error
HOLDER = "holder"  # of the token: key of the scope of a request
WHOLE = "whole"  # likewise: all of its body is there
OF_LEASE = "of lease"  # likewise: it was of a lease, and has been granted
MOST_BYTES = 1 << 20  # of a body
_SMALL_BYTES = 64 << 10  # of a body that is parsed in the loop, which takes less than a millisecond
MOST_OF_A_LEASE = 4  # open requests
_GONE = 499  # status of an answer that nobody reads
_BODY_S = 5.0  # that a body may take to arrive
_STRICT = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_LOOKS_S = 0.1  # that a request has before it is looked whether its client is there


class Sent(BaseModel):
    """What comes with a request."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Query(Sent):
    """Parameters behind the question mark of a URL."""


class Body(Sent):
    """A JSON object that is sent."""

    model_config = ConfigDict(strict=True)


class Call(NamedTuple):
    """A request that may be made.

    Attributes:
        path: parts of its path by name. query, body: as the operation's models say; None where it has none.
    """

    service: Service
    holder: Holder
    path: Mapping[str, str]
    query: Any = None
    body: Any = None


@dataclass(frozen=True)
class Operation:
    """Something that can be asked.

    Attributes:
        path: with the names of its parts in braces. right: the least that a token must have.
        work: finds the answer, a value of JSON or a whole response; InputErrors that it raises are answered by their kind.
        summary: one line. query, body: what comes with it. A body whose model is no `Body` is handed over as the JSON that it is.
        status: of an answer that is no error. media: its type. refuses: other statuses, beside those that every operation has.
        check: sees whether this holder may ask it, before a body is waited for; raises InputErrors, as `work` does.
        logged: it is in the log of operations; else it changes nothing, or the journal says who did it.
        at_once: Whether it keeps or frees what somebody has, and so skips the line of those who ask for something.
        always: Whether no limit of open requests counts it or refuses it.
    """

    name: str
    method: str
    path: str
    right: Right
    work: Callable[[Call], Awaitable[Any]]
    summary: str
    query: type[Sent] | None = None
    body: type[BaseModel] | None = None
    status: int = 200
    media: str = JSON
    refuses: tuple[int, ...] = ()
    check: Callable[[Call], None] | None = None
    logged: bool = False
    at_once: bool = False
    always: bool = False


Endpoint = Callable[[Scope, Receive, Mapping[str, str]], Awaitable[Response]]
"""What answers a request, whose path has parts by name."""


class Endpoints:
    """Makes the functions that answer requests.

    Args:
        service: that is asked. log: of operations.
    """

    def __init__(self, service: Service, log: OperationsLog) -> None:
        self._service = service
        self._log = log
        self._open_of: Counter[str | None] = Counter()  # requests of leases
        self._asks = Asks()
        self._large = asyncio.Semaphore(1)  # bodies that are parsed in a thread

    def make(self, operation: Operation) -> Endpoint:
        """The function for an operation."""

        async def endpoint(scope: Scope, receive: Receive, path: Mapping[str, str]) -> Response:
            call = Call(self._service, scope[HOLDER], path)
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
                if refused.status == Conflict.status:  # it tells of what has happened, as that a job is there or has ended
                    with suppress(InputError):  # it cannot be written, and the service ends
                        await self._service.known()
                response = refusal(refused)
            except asyncio.CancelledError:  # the server closes
                response = error(503, "the service is stopping", {"Connection": "close", "Retry-After": "1"})
            if "lease" in path and response.status_code < 300:
                scope[OF_LEASE] = True
            if operation.logged and not getattr(call.query, "dry_run", False):
                outcome = "done" if response.status_code < 300 else bytes(response.body).decode() or "the client has gone"
                await asyncio.to_thread(self._log.write, call.holder.user, operation.name, _subject(call), outcome)
            return response

        return endpoint

    async def _parsed(self, data: bytes, model: type[BaseModel]) -> Any:
        """Return what a body says; a large one is parsed in a thread, one after the other, and no permit waits for it."""
        if len(data) <= _SMALL_BYTES:
            return _parsed(data, model)
        if issubclass(model, Body):
            raise _Unread(413, f"the body of this request has {_SMALL_BYTES} bytes at most")
        async with self._large:
            return await asyncio.to_thread(_from_json, data, _in_python())

    async def _work(self, operation: Operation, call: Call) -> Any:
        if not operation.at_once:
            await self._asks.turn(call.holder.user)
        return await operation.work(call)

    @contextmanager
    def _counted(self, lease: str | None) -> Iterator[None]:
        """Count a request of a lease as open; raises TooMany, one line, where there are as many as there may be."""
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


def _subject(call: Call) -> str:
    """What a request is about: the job, node or lease of its path, else the jobs of its body."""
    entries = call.body if isinstance(call.body, list) else [call.body]
    return next(iter(call.path.values()), "") or ", ".join(str(entry.get("id", "")) for entry in entries if isinstance(entry, dict))


class _Unread(InputError):
    """A body that is too long, or does not come; what still comes of it is dropped for a while. One line."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


async def _body_of(scope: Scope, receive: Receive) -> bytes:
    """The body; raises _Unread."""
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
    """What a body says; raises InputError, one line, where it is not as the model says."""
    if not issubclass(model, Body):
        return _from_json(data, _DECODER)
    try:
        _DECODER.decode(data.decode() or "{}")
    except InputError:
        raise
    except (ValueError, RecursionError):
        pass  # the model tells better what is wrong
    return _valid(lambda: model.model_validate_json(data or b"{}"), model)


def _from_json(data: bytes, decoder: json.JSONDecoder) -> Any:
    """Return the value of a body.

    Raises:
        InputError: It is no JSON, or an object in it has a key twice; one line.
    """
    try:
        value = decoder.decode(data.decode())
        if b"\\ud" in data.lower():  # half of a character, maybe
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
    """Return a decoder that lets other threads run in between: that in C keeps them waiting for as long as it takes."""
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
    """Return what comes of work, or end it when its client has gone; a client is looked for when the work takes a while."""
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
    """Wait until the client has gone; what it sends meanwhile nobody reads."""
    while (await receive())["type"] != "http.disconnect":
        pass


def answer(value: Any, status: int = 200) -> Response:
    """A value as JSON; what is no finite number is null."""
    return Response(_text(value), status, media_type=JSON)


async def answer_in_steps(value: dict[str, Any], name: str) -> Response:
    """A mapping as JSON, of which one list is long: others have their turn meanwhile."""
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
    """`{"error": "one line"}`."""
    return Response(json.dumps({"error": one_line(problem, _LONGEST)}), status, headers, JSON)


def refusal(refused: InputError) -> Response:
    """What a service has refused."""
    return error(refused.status, str(refused), {"Retry-After": "1"} if refused.status in (429, 503) else None)


def finite(value: Any) -> Any:
    """A value of JSON without numbers that JSON has not."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    return [finite(part) for part in value] if isinstance(value, list | tuple) else value
