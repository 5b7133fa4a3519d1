"""Looking: at all of a service, its journal and its figures."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from runtime.metrics import CONTENT_TYPE
from runtime.service.http.answers import JSON, answer, answer_in_steps
from runtime.service.http.operations import Call, Operation, Query, WaitS
from runtime.service.tokens import Right


class After(Query):
    """Which entries of the journal."""

    after: Annotated[int, Field(ge=0, le=2**53)] = 0
    """Number of the last entry that is known; 0: all of them."""
    wait_s: WaitS = 0.0
    """For how long to wait for one, seconds."""


async def _status(call: Call) -> Response:
    return await answer_in_steps(await call.service.report(), "jobs")


async def _events(call: Call) -> Response:
    entries = await call.service.events(call.query.after, call.query.wait_s)
    parts = (f'{{"number":{number},"kind":"{kind}","body":{_checked(body)}}}' for number, kind, body in entries)
    return Response(f'{{"events":[{",".join(parts)}]}}', media_type=JSON)


def _checked(body: str) -> str:
    """A fact as JSON: Python writes numbers that are not finite as JSON does not know them."""
    if "NaN" not in body and "Infinity" not in body:
        return body
    from json import loads

    return bytes(answer(loads(body)).body).decode()


async def _metrics(call: Call) -> Response:
    return Response(await call.service.metrics(), headers={"Content-Type": CONTENT_TYPE})


OPERATIONS = (
    Operation("GET", "/v1/status", Right.LOOK, _status, "All jobs, groups and pools."),
    Operation(
        "GET",
        "/v1/events",
        Right.LOOK,
        _events,
        "Entries of the journal after a number, oldest first, 1,000 at most.",
        After,
        waits=True,
    ),
    Operation("GET", "/metrics", Right.LOOK, _metrics, "Figures for Prometheus.", media="text/plain"),
)
