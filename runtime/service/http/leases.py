"""Leases of jobs that run elsewhere; docs/reference/service_api.md says what a client has to do."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from starlette.responses import Response

from runtime.owners.http.leases import Leases
from runtime.service.http.answers import answer
from runtime.service.http.jobs import check_own
from runtime.service.http.operations import LONGEST_WAIT_S, Body, Call, Operation, Query, WaitS
from runtime.service.tokens import Right

_Iteration = Annotated[int, Field(ge=0, le=2**31)]
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Pids = Annotated[list[Annotated[int, Field(ge=1, le=2**31)]], Field(max_length=4096)]
_MOST_VALUES = 256


class Attach(Body):
    """A job wants its place."""

    wait_s: WaitS = LONGEST_WAIT_S
    """For how long to wait for one, seconds."""
    host: Annotated[str, Field(max_length=255)] = ""
    """The machine that the job's processes are on."""
    pids: _Pids = Field(default=[])
    """Ids of these processes."""


class Acquire(Body):
    """A phase is ready."""

    phase: Literal["rollout", "training", "sync"]
    iteration: _Iteration
    """From 0."""
    wait_s: WaitS = LONGEST_WAIT_S
    """For how long to wait for the nodes, seconds."""
    extra: bool = False
    """A rollout that counts no iteration."""


class Release(Body):
    """A phase is over."""

    phase: Literal["rollout", "training", "sync"]
    iteration: _Iteration
    metrics: Annotated[dict[str, float], Field(max_length=_MOST_VALUES)] = Field(default={})
    """Figures of the iteration."""
    device_gb: Annotated[float, Field(ge=0)] | None = None
    """Device memory that the job keeps, GB."""


class Synced(Body):
    """A sync is over that needed no nodes to itself."""

    iteration: _Iteration
    seconds: Annotated[float, Field(ge=0)]


class Progress(Body):
    """How far a phase is."""

    done: _Count
    total: _Count
    tokens: _Count = 0


class Heartbeat(Body):
    """The job is alive."""

    pids: _Pids = Field(default=[])


class End(Query):
    """How a lease ends."""

    done: bool = False
    """The job is over."""


def _leases(call: Call) -> Leases:
    """The leases, for a request about one that the holder may use."""
    leases = call.service.leases
    if (lease := call.path.get("lease")) is not None:
        job_id = leases.job_of(lease)
        leases.touch(lease)
    else:
        job_id = call.path["job"]
    check_own(call.holder, call.service.spec_of(job_id).user, job_id)
    return leases


async def _attach(call: Call) -> Response:
    return answer(await _leases(call).attach(call.path["job"], call.body.wait_s, call.body.host, call.body.pids))


async def _acquire(call: Call) -> Response:
    body: Acquire = call.body
    return answer(await _leases(call).acquire(call.path["lease"], body.phase, body.iteration, body.wait_s, body.extra))


async def _release(call: Call) -> Response:
    body: Release = call.body
    return answer(await _leases(call).release(call.path["lease"], body.phase, body.iteration, body.metrics, body.device_gb))


async def _synced(call: Call) -> Response:
    return answer(await _leases(call).synced(call.path["lease"], call.body.iteration, call.body.seconds))


async def _progress(call: Call) -> Response:
    body: Progress = call.body
    return answer(await _leases(call).progress(call.path["lease"], body.done, body.total, body.tokens))


async def _heartbeat(call: Call) -> Response:
    return answer(await _leases(call).heartbeat(call.path["lease"], call.body.pids))


async def _end(call: Call) -> Response:
    return answer(await _leases(call).end(call.path["lease"], call.query.done))


_REFUSES = (404, 409, 422)
_LEASE = "/v1/leases/{lease}"

OPERATIONS = (
    Operation(
        "POST",
        f"{_LEASE}/acquire",
        Right.ATTACH,
        _acquire,
        "Wait for the nodes of a phase.",
        None,
        Acquire,
        waits=True,
        refuses=_REFUSES,
    ),
    Operation("POST", f"{_LEASE}/release", Right.ATTACH, _release, "A phase is over.", None, Release, refuses=_REFUSES),
    Operation("POST", f"{_LEASE}/heartbeat", Right.ATTACH, _heartbeat, "The job is alive.", None, Heartbeat, refuses=_REFUSES),
    Operation("POST", f"{_LEASE}/progress", Right.ATTACH, _progress, "How far a phase is.", None, Progress, refuses=_REFUSES),
    Operation(
        "POST", f"{_LEASE}/synced", Right.ATTACH, _synced, "The sync of an iteration is over.", None, Synced, refuses=_REFUSES
    ),
    Operation("DELETE", _LEASE, Right.ATTACH, _end, "Give up the lease.", End, refuses=_REFUSES),
    Operation(
        "POST",
        "/v1/jobs/{job}/attach",
        Right.ATTACH,
        _attach,
        "Wait for the job's place, and take a lease.",
        None,
        Attach,
        waits=True,
        refuses=_REFUSES,
    ),
)
