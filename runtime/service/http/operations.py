"""The operations of a service's HTTP API, with their inputs and the rights that they need (docs/reference/service_api.md).

`OPERATIONS` lists them. A class of an input has the fields of a request's body or query. The *owner* of an attached job is the
process, outside of the service, that runs its phases; it holds the job's nodes by a *lease*.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, RootModel, ValidationError
from starlette.responses import Response

from policies.named import LEARNED
from policies.whatif import Change, arriving_jobs
from rollmux_env.errors import InputError, NotAllowed, NotFound, TooMany, Unprocessable
from rollmux_env.fields import NonNegative, QuotaName
from rollmux_env.keys.queue import Quota
from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import format_error, one_line, problems
from runtime.jobs.changes import entry_of
from runtime.jobs.checks import check_names
from runtime.jobs.spec import JobSpec, OwnersJob, job_of, model_of
from runtime.journal.facts import LeaseEnded, NodesFreed, NodesSuspected, OwnerAttached, PhaseGranted
from runtime.journal.kinds import KINDS
from runtime.metrics import CONTENT_TYPE
from runtime.output import LOGS, SERVICE_LOG, log_files, read_log
from runtime.owners.http.leases import Leases
from runtime.run.driver import RunDriver
from runtime.service.forecast import MOST_PREVIEWED
from runtime.service.http.endpoint import JSON, ApiCall, Body, Operation, Query, RequestInput, answer, answer_in_steps
from runtime.service.quotas import quotas_of
from runtime.service.tokens import Holder, Right

_LONGEST_WAIT_S = 30.0
_LAST_S = 2.5e11  # latest time of a planned drain, in seconds since 1970: the year 9892
_OF_LEASES = frozenset(
    name for name, kind in KINDS.items() if kind in (OwnerAttached, PhaseGranted, LeaseEnded, NodesSuspected, NodesFreed)
)
_ENDS_S = 1.0  # longest wait of an answer for the end of a cancelled job, whose processes may take longer to end
_USUAL_LOGS = ("controller", SERVICE_LOG)

_WaitS = Annotated[float, Field(ge=0, le=_LONGEST_WAIT_S)]
_Number = Annotated[int, Field(ge=-1, le=2**31)]
_Phase = Literal["init", "rollout", "training", "sync"]
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Named = Annotated[str, Field(min_length=1, max_length=200)]
_Pids = Annotated[list[Annotated[int, Field(ge=1, le=2**31)]], Field(max_length=4096)]
_PidSpace = Annotated[str, Field(max_length=100)]


class PreviewQuery(Query):
    """Options of a submission."""

    dry_run: bool = False
    """Whether only a preview is returned and nothing changes."""


class LogQuery(Query):
    """The part of a log to return."""

    process: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    """Name of a process of the job; by default `controller`, or `service` for an attached job."""
    offset: _Count = 0
    """Number of bytes that the client has already."""


class EventsQuery(Query):
    """The entries of the journal to return."""

    after: _Count = 0
    """Number of the last entry that the client has, or 0 for all entries."""
    wait_s: _WaitS = 0.0
    """Longest wait for an entry, in seconds."""


class UsageQuery(Query):
    """Query for the usage of nodes."""

    by: Annotated[str, Field(pattern="^(user|month|job)(,(user|month|job)){0,2}$")] = "user,month"
    """Keys by which usage is grouped, separated by commas: some of user, month and job."""


class WhatIfRequest(Body):
    """A what-if question."""

    nodes: Annotated[dict[str, str], Field(max_length=16)] = Field(default={})
    """New number of nodes of each pool that changes, as in `"12"`, or the difference, as in `"+2"`."""
    policy: _Named | None = None
    """Name of a placement policy that comes with RollMux; by default the present policy."""
    order: _Named | None = None
    """Name of an order of the waiting jobs that comes with RollMux; by default the present order."""
    without: Annotated[list[_Named], Field(max_length=1000)] = Field(default=[])
    """Ids of jobs that leave now."""
    arrives: Annotated[list[dict[str, Any]], Field(max_length=MOST_PREVIEWED)] = Field(default=[])
    """Entries of a scenario file for jobs that arrive too; their `arrival_s` count from now."""
    since_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Length of the recent past whose arrivals repeat from now on, in seconds; by default no other job arrives."""


class JobEntry(RootModel[JobSpec]):
    """An entry of a job file."""


class AttachRequest(Body):
    """A request of a job's owner for a placement and a lease."""

    wait_s: _WaitS = _LONGEST_WAIT_S
    """Longest wait for the placement, in seconds."""
    host: Annotated[str, Field(max_length=255)] = ""
    """Name of the machine on which the job's processes run."""
    pids: _Pids = Field(default=[])
    """Process ids of the job's processes."""
    from_iteration: _Count | None = None
    """Number of iterations in the owner's checkpoint, if the service has counted more: later ones are repeated."""
    lease: Annotated[str, Field(max_length=100)] | None = None
    """Id of the lease that the owner has, for `from_iteration`: it has begun no iteration in it. By default it gets a new one."""
    pid_space: _PidSpace = ""
    """Scope of `pids`: the content of `/proc/sys/kernel/random/boot_id`, a space, and the target of `/proc/self/ns/pid`."""


class AcquireRequest(Body):
    """A request for the nodes of a phase."""

    phase: _Phase
    iteration: _Number | None = None
    """Number of the iteration, from 0; none for an `init`. The sync of the first weights of a new job has number -1."""
    wait_s: _WaitS = _LONGEST_WAIT_S
    """Longest wait for the nodes, in seconds."""
    extra: bool = False
    """Whether the rollout belongs to no iteration."""


class ReleaseRequest(Body):
    """A report that a phase is over."""

    phase: _Phase
    iteration: _Number | None = None
    metrics: Annotated[dict[str, float], Field(max_length=256)] = Field(default={})
    """Metrics of the iteration, by name."""
    device_gb: NonNegative | None = None
    """Memory of each GPU that the job keeps after the phase, in GB."""
    extra: bool = False
    """Whether the rollout belongs to no iteration."""


class SyncedRequest(Body):
    """A report that a sync is over that held no nodes exclusively."""

    iteration: _Number
    seconds: NonNegative


class ProgressRequest(Body):
    """A report of the progress of a phase."""

    done: _Count
    total: _Count
    tokens: _Count = 0


class HeartbeatRequest(Body):
    """A report that the job is alive."""

    pids: _Pids = Field(default=[])
    pid_space: _PidSpace = ""


class DrainQuery(Query):
    """When to drain a node; by default now."""

    starts_s: Annotated[float | None, Field(ge=0, le=_LAST_S)] = None
    """Time at which the drain begins at the latest, in seconds since 1970."""
    deadline_s: Annotated[float | None, Field(ge=0, le=_LAST_S)] = None
    """Time by which its jobs are to have left it, in seconds since 1970: it begins early enough for an iteration of each."""


class QuotaRequest(Body):
    """A new quota of a user."""

    user: QuotaName
    """Name of the user, or `*` for each user without a quota of its own."""
    quota: Quota | None
    """All limits of the user; null removes the user's own quota."""


class EndQuery(Query):
    """Options of the end of a lease."""

    done: bool = False
    """Whether the job is complete."""


def _owns(holder: Holder, user: str | None) -> bool:
    """Return whether the holder of a token may act for the jobs of a user; None is no user."""
    return holder.right >= Right.OPERATE or user == holder.user


def _check_own(holder: Holder, spec: JobSpec) -> None:
    """Check that a holder may act for a job.

    Raises:
        NotAllowed: If the job is another user's; one line.
    """
    if not _owns(holder, spec.user):
        raise NotAllowed(f"job {spec.id}: is another user's")


async def _submit(call: ApiCall) -> Any:
    entries = call.body if isinstance(call.body, list) else [call.body]
    if not entries:
        raise InputError("there is no job in the list")
    if call.query.dry_run and len(entries) > MOST_PREVIEWED:
        raise TooMany(f"{len(entries)} jobs are too many: a dry run looks at {MOST_PREVIEWED} at most")
    specs = [await asyncio.to_thread(_spec_of, entry, call.holder, call.service.folder) for entry in entries]
    if call.query.dry_run:
        previews = await call.service.preview(specs)
        return answer(previews if isinstance(call.body, list) else previews[0])
    await call.service.submit(specs)
    jobs = [await call.service.job(spec.id) for spec in specs]
    return jobs if isinstance(call.body, list) else jobs[0]


def _spec_of(entry: Any, holder: Holder, folder: Path) -> JobSpec:
    """Return a job that a holder may submit. A job without a user gets the holder's.

    Raises:
        InputError: If the entry is not a JSON object; one line.
        Unprocessable: If the job is invalid; one line.
        NotAllowed: If this holder may not submit it; one line.
    """
    if not isinstance(entry, dict):
        raise InputError("a job must be a JSON object, an entry of a job file")
    try:
        spec = job_of({"user": holder.user, **entry})
    except ValidationError as error:
        raise Unprocessable(one_line(format_error(problems(error)[0], model_of(entry)))) from None
    spec = spec.model_copy(update={"folder": os.path.abspath(folder / spec.folder)})
    if holder.right < Right.OPERATE:
        if not isinstance(spec, OwnersJob):
            raise NotAllowed(f"job {spec.id}: is started by the service, which takes the right to operate; this token may attach")
        _check_own(holder, spec)
        if problem := holder.problem_of_rank(spec):
            raise NotAllowed(f"job {spec.id}: {problem}")
    try:
        check_names(spec, f"job {spec.id}")
    except InputError as error:
        raise Unprocessable(str(error)) from None
    return spec


async def _job(call: ApiCall) -> Any:
    job = await call.service.job(call.path["job"])
    return job | {"entry": entry_of(call.service.handle_of(job["id"]).spec)}


async def _usage(call: ApiCall) -> Any:
    by = call.query.by.split(",")
    return await answer_in_steps({"by": by, "rows": await call.service.usage(by)}, "rows")


async def _set_quota(call: ApiCall) -> Any:
    service = call.service
    service.quotas.set(call.body.user, call.body.quota)
    await service.run.log.durable()
    return {"quotas": quotas_of(service.run.scheduler.state.cluster)}


_endings: set[asyncio.Task[None]] = set()  # cancellations that take longer than their answers wait


async def _cancel(call: ApiCall) -> Any:
    job_id = call.path["job"]
    _check_own(call.holder, call.service.handle_of(job_id).spec)
    ending = asyncio.ensure_future(call.service.cancel(job_id))
    _endings.add(ending)
    ending.add_done_callback(_endings.discard)
    ending.add_done_callback(lambda task: task.cancelled() or task.exception())  # mark the exception as retrieved
    await asyncio.wait({ending}, timeout=_ENDS_S)
    if ending.done():
        await ending
    return await call.service.job(job_id)


async def _log(call: ApiCall) -> Any:
    job_id, wanted = call.service.handle_of(call.path["job"]).id, call.query.process
    home = call.service.folder / LOGS / job_id
    if wanted is None:
        names = [*log_files(home)]
        if not names:
            raise NotFound(f"job {job_id}: no process of it has begun")
        wanted = next(name for name in (*_USUAL_LOGS, *names) if name in names)
    data, offset, names = await asyncio.to_thread(read_log, home, wanted, call.query.offset)
    if wanted not in names:
        there = f"; there are {', '.join(names)}" if names else ""
        raise NotFound(f"job {job_id}: no process {one_line(wanted, 80)} of it has begun{there}{did_you_mean(wanted, names)}")
    return Response(data, headers={"X-Next-Offset": str(offset), "X-Processes": json.dumps(names)}, media_type="text/plain")


async def _status(call: ApiCall) -> Any:
    return await answer_in_steps(await call.service.report(), "jobs")


async def _what_if(call: ApiCall) -> Any:
    asked: WhatIfRequest = call.body
    for name in ("policy", "order"):
        if ":" in (getattr(asked, name) or "").replace(f"{LEARNED}default", ""):  # a class is code, and a policy file is a path
            raise NotAllowed(f"{name}: must be one that comes with RollMux; `rollmux whatif` of a bundle takes your own")
    cluster = call.service.run.scheduler.state.cluster
    try:
        arriving = await asyncio.to_thread(arriving_jobs, asked.arrives, cluster)
    except InputError as error:
        raise Unprocessable(str(error)) from None
    change = Change(asked.nodes, asked.policy, asked.order, tuple(asked.without), arriving)
    return await call.service.what_if(change, asked.since_s)


async def _events(call: ApiCall) -> Any:
    entries = await call.service.events.after(call.query.after, call.query.wait_s)
    hides = _OF_LEASES if call.holder.right < Right.OPERATE else ()
    parts = (
        f'{{"number":{number},"kind":"{kind}","body":{_checked(_shown(call, body) if kind in hides else body)}}}'
        for number, kind, body in entries
    )
    return Response(f'{{"events":[{",".join(parts)}]}}', media_type=JSON)


def _shown(call: ApiCall, body: str) -> str:
    """Return a fact of a lease as JSON, without the lease's id if it is another user's: the id authorises its owner."""
    fact = json.loads(body)
    handle = call.service.run.handles.get(fact["job_id"])
    if not _owns(call.holder, None if handle is None else handle.spec.user):
        fact["lease"] = ""
    return json.dumps(fact)


def _checked(body: str) -> str:
    """Return a fact as strict JSON: Python writes numbers that are not finite in its own way."""
    return bytes(answer(json.loads(body)).body).decode() if "NaN" in body or "Infinity" in body else body


async def _metrics(call: ApiCall) -> Any:
    return Response(await call.service.metrics(), headers={"Content-Type": CONTENT_TYPE})


_JOB, _LEASE = "/v1/jobs/{job}", "/v1/leases/{lease}"


def _owners(ask: Callable[..., Any], summary: str, sent: type[RequestInput], at: str = "", waits: bool = False) -> Operation:
    """Return an operation of an attached job's owner, which calls a method of the leases with the fields of its input.

    Args:
        ask: Method of `Leases` to call. Its name is also the name of the operation.
        summary: One-line description.
        sent: Model of the body or the query.
        at: HTTP method and path, or "" for a POST to the lease's path and the name.
        waits: Whether it asks for nodes. It then waits in the queue of requests, which the other operations of owners pass.
    """

    def check(call: ApiCall) -> None:
        service, lease = call.service, call.path.get("lease")
        handle = service.handle_of(call.path["job"]) if lease is None else service.driver.leases.handle_of(lease)
        _check_own(call.holder, handle.spec)
        if lease is not None:
            service.driver.leases.touch(lease)  # a request that is refused shows that its owner lives, too

    async def work(call: ApiCall) -> Any:
        leases, lease = call.service.driver.leases, call.path.get("lease")
        answered = await ask(leases, lease or call.path["job"], **vars(call.body or call.query))
        if answered.get("placed") is False:
            answered |= await call.service.wait_of(call.path["job"])
        return answered

    method, path = at.split() if at else ("POST", f"{_LEASE}/{ask.__name__}")
    query, body = (None, sent) if issubclass(sent, Body) else (sent, None)
    return Operation(
        ask.__name__,
        method,
        path,
        Right.ATTACH,
        work,
        summary,
        query,
        body,
        refuses=(404, 409, 422),
        check=check,
        at_once=not waits,
        always=ask is Leases.heartbeat,
    )


def _nodes(name: str, ask: Callable[..., dict[str, Any]], summary: str, query: type[Query] | None = None) -> Operation:
    """Return an operation on a node.

    Args:
        name: Name of the operation.
        ask: Function that is called with the driver, the name of the node and the fields of the query, and returns the answer.
        summary: One-line description.
        query: Model of the query, or None.
    """

    async def work(call: ApiCall) -> Any:
        answered = ask(call.service.driver, call.path["node"], **(vars(call.query) if call.query is not None else {}))
        await call.service.run.log.durable()
        return answered

    path = f"/v1/nodes/{{node}}/{name}"
    return Operation(name, "POST", path, Right.OPERATE, work, summary, query, refuses=(404, 409), logged=True, at_once=True)


def _clear(driver: RunDriver, node: str) -> dict[str, Any]:
    return {"node": node, "jobs": [*driver.leases.ledger.clear(node)]}


_SUBMIT = "Submit a job (an entry of a job file) or several, all or none; with dry_run, only preview their placement."
_WHAT_IF = "Get the expected course of all jobs as it is and with a change; nothing changes."
_LOGS = "Get the output of a process of a job from an offset; X-Next-Offset has the next offset, X-Processes all processes."
_USAGE = "Get node-hours, dollars, savings, waits and parks, by user, month or job."
_EVENTS = "Get entries of the journal after a number, oldest first, 1,000 at most."

OPERATIONS = (  # the most frequent ones first
    _owners(Leases.acquire, "Wait for the nodes of a phase.", AcquireRequest, waits=True),
    _owners(Leases.release, "Report that a phase is over.", ReleaseRequest),
    _owners(Leases.heartbeat, "Report that the job is alive.", HeartbeatRequest),
    _owners(Leases.progress, "Report the progress of a phase.", ProgressRequest),
    _owners(Leases.synced, "Report that the sync of an iteration is over.", SyncedRequest),
    _owners(Leases.end, "Give up the lease.", EndQuery, f"DELETE {_LEASE}"),
    _owners(Leases.attach, "Wait for the job's place, and take a lease.", AttachRequest, f"POST {_JOB}/attach", waits=True),
    Operation("job", "GET", _JOB, Right.LOOK, _job, "Get a job.", refuses=(404,)),
    Operation(
        "submit",
        "POST",
        "/v1/jobs",
        Right.ATTACH,
        _submit,
        _SUBMIT,
        PreviewQuery,
        JobEntry,
        201,
        refuses=(200, 409, 422, 429),
        logged=True,
    ),
    Operation(
        "cancel", "DELETE", _JOB, Right.ATTACH, _cancel, "End a job now, for good.", status=202, refuses=(404, 409), logged=True
    ),
    Operation("log", "GET", f"{_JOB}/logs", Right.LOOK, _log, _LOGS, LogQuery, media="text/plain", refuses=(404,)),
    Operation("status", "GET", "/v1/status", Right.LOOK, _status, "Get all jobs, groups and pools."),
    Operation("whatif", "POST", "/v1/whatif", Right.LOOK, _what_if, _WHAT_IF, body=WhatIfRequest, refuses=(422,)),
    Operation("events", "GET", "/v1/events", Right.LOOK, _events, _EVENTS, EventsQuery),
    Operation("usage", "GET", "/v1/usage", Right.LOOK, _usage, _USAGE, UsageQuery),
    Operation("metrics", "GET", "/metrics", Right.LOOK, _metrics, "Get metrics in Prometheus's text format.", media="text/plain"),
    _nodes(
        "drain",
        lambda driver, node, **times: driver.lifecycle.planned_drains.drain(node, **times),
        "Drain a node now or later: its jobs move away, and no other job gets it.",
        DrainQuery,
    ),
    Operation(
        "quota",
        "POST",
        "/v1/quotas",
        Right.OPERATE,
        _set_quota,
        "Set the quota of a user, or of every user without one.",
        body=QuotaRequest,
        refuses=(409,),
        logged=True,
        at_once=True,
    ),
    _nodes("undrain", lambda driver, node: driver.lifecycle.planned_drains.undrain(node), "Use a drained node again."),
    _nodes("clear", _clear, "Declare that no process runs on a suspect node any more: it may be granted."),
)
