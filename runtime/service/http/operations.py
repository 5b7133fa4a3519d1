"""What can be asked: an operation has a method, a path, the right that it takes, and what its body and its query look like.

Routes and the description of the API are made of the same operations, so that neither has what the other has not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from runtime.service.http.answers import JSON
from runtime.service.service import Service
from runtime.service.tokens import Holder, Right

LONGEST_WAIT_S = 30.0
WaitS = Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)]
"""For how long an answer may wait for what is asked, seconds."""


class Query(BaseModel):
    """Parameters behind the question mark of a URL."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Body(BaseModel):
    """A JSON object that is sent."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Call(NamedTuple):
    """A request that may be made.

    Attributes:
        path: parts of its path by name. query, body: as the operation's models say; None where it has none.
        background: work that goes on when the request is answered.
    """

    service: Service
    holder: Holder
    path: Mapping[str, str]
    query: Any
    body: Any
    background: set[asyncio.Task[None]]


@dataclass(frozen=True)
class Operation:
    """Something that can be asked.

    Attributes:
        path: with the names of its parts in braces. right: the least that a token must have.
        work: answers it; InputErrors that it raises are answered by their kind.
        summary: one line. query, body: what comes with it. A body whose model is no `Body` is handed over as the JSON that it is.
        status: of an answer that is no error. media: its type. refuses: other statuses, beside those that every operation has.
        waits: it may wait for something to happen: it ends when the client has gone.
        logged: its name in the log of operations; "": it is not there, since it changes nothing, or the journal says who did it.
    """

    method: str
    path: str
    right: Right
    work: Callable[[Call], Awaitable[Response]]
    summary: str
    query: type[Query] | None = None
    body: type[BaseModel] | None = None
    status: int = 200
    media: str = JSON
    refuses: tuple[int, ...] = field(default=())
    waits: bool = False
    logged: str = ""
