"""The table of what can be asked of a service, with what is sent and who may send it; docs/reference/service_api.md explains it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, RootModel, ValidationError
from starlette.responses import Response

from rollmux_env.errors import InputError, NotAllowed, NotFound, TooMany, Unprocessable
from rollmux_env.fields import NonNegative
from rollmux_env.suggestions import did_you_mean
from rollmux_env.validation_errors import format_error, one_line, problems
from runtime.jobs.changes import entry_of
from runtime.jobs.checks import check_names
from runtime.jobs.spec import JobSpec, OwnersJob, job_of, model_of
from runtime.journal.facts import KINDS, Attached, Freed, Granted, LeaseEnded, Suspected
from runtime.metrics import CONTENT_TYPE
from runtime.output import LOGS, SERVICE_LOG, log_files, read_log
from runtime.owners.http.leases import Leases
from runtime.run.driver import RunDriver
from runtime.service.forecast import MOST_PREVIEWED
from runtime.service.http.endpoint import JSON, Body, Call, Operation, Query, Sent, answer, answer_in_steps
from runtime.service.tokens import Holder, Right

_LONGEST_WAIT_S = 30.0
_OF_LEASES = frozenset(name for name, kind in KINDS.items() if kind in (Attached, Granted, LeaseEnded, Suspected, Freed))
_ENDS_S = 1.0  # for how long the end of a job is waited for: its processes may take longer
_USUAL_LOGS = ("controller", SERVICE_LOG)

_WaitS = Annotated[float, Field(ge=0, le=_LONGEST_WAIT_S)]
_Number = Annotated[int, Field(ge=-1, le=2**31)]
_Phase = Literal["init", "rollout", "training", "sync"]
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Pids = Annotated[list[Annotated[int, Field(ge=1, le=2**31)]], Field(max_length=4096)]
_PidSpace = Annotated[str, Field(max_length=100)]


class Dry(Query):
    """How a job is submitted."""

    dry_run: bool = False
    """Only say what would become of it."""


class Log(Query):
    """Which part of a log."""

    process: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    """One of the job's processes; without it `controller`, or `service` of an attached job."""
    offset: _Count = 0
    """Bytes that are known."""


class After(Query):
    """Which entries of the journal."""

    after: _Count = 0
    """Number of the last entry that is known; 0: all of them."""
    wait_s: _WaitS = 0.0
    """For how long to wait for one, seconds."""


class Entry(RootModel[JobSpec]):
    """An entry of a job file."""


class Attach(Body):
    """A job wants its place."""

    wait_s: _WaitS = _LONGEST_WAIT_S
    """For how long to wait for one, seconds."""
    host: Annotated[str, Field(max_length=255)] = ""
    """The machine that the job's processes are on."""
    pids: _Pids = Field(default=[])
    """Ids of these processes."""
    from_iteration: _Count | None = None
    """Iterations that the owner has, of a checkpoint older than the service's count: those from this number on are done again."""
    lease: Annotated[str, Field(max_length=100)] | None = None
    """The lease that the owner has already, and in which it has begun no iteration; without it, it takes one."""
    pid_space: _PidSpace = ""
    """Where these ids mean something: what `/proc/sys/kernel/random/boot_id` says, a space, and where `/proc/self/ns/pid` leads."""


class Acquire(Body):
    """A phase is ready."""

    phase: _Phase
    iteration: _Number | None = None
    """From 0; of an `init` none. A sync of the iteration before the first one brings the first weights: -1 in a new job."""
    wait_s: _WaitS = _LONGEST_WAIT_S
    """For how long to wait for the nodes, seconds."""
    extra: bool = False
    """A rollout that counts no iteration."""


class Release(Body):
    """A phase is over."""

    phase: _Phase
    iteration: _Number | None = None
    metrics: Annotated[dict[str, float], Field(max_length=256)] = Field(default={})
    """Figures of the iteration."""
    device_gb: NonNegative | None = None
    """Device memory that the job keeps, GB."""
    extra: bool = False
    """The rollout counts no iteration."""


class Synced(Body):
    """A sync is over that needed no nodes to itself."""

    iteration: _Number
    seconds: NonNegative


class Progress(Body):
    """How far a phase is."""

    done: _Count
    total: _Count
    tokens: _Count = 0


class Heartbeat(Body):
    """The job is alive."""

    pids: _Pids = Field(default=[])
    pid_space: _PidSpace = ""


class End(Query):
    """How a lease ends."""

    done: bool = False
    """The job is over."""


def _owns(holder: Holder, user: str | None) -> bool:
    """Whether a job of a user is as the holder's own."""
    return holder.right >= Right.OPERATE or user == holder.user


def _check_own(holder: Holder, user: str, job_id: str) -> None:
    """See that a job is the holder's own, or that any is; raises NotAllowed, one line."""
    if not _owns(holder, user):
        raise NotAllowed(f"job {job_id}: is another user's")


async def _submit(call: Call) -> Any:
    entries = call.body if isinstance(call.body, list) else [call.body]
    if not entries:
        raise InputError("there is no job in the list")
    if call.query.dry_run and len(entries) > MOST_PREVIEWED:
        raise TooMany(f"{len(entries)} jobs are too many: a dry run looks at {MOST_PREVIEWED} at most")
    specs = [await asyncio.to_thread(_spec_of, entry, call.holder, call.service.folder, call.query.dry_run) for entry in entries]
    if call.query.dry_run:
        previews = await call.service.preview(specs)
        return answer(previews if isinstance(call.body, list) else previews[0])
    await call.service.submit(specs)
    jobs = [await call.service.job(spec.id) for spec in specs]
    return jobs if isinstance(call.body, list) else jobs[0]


def _spec_of(entry: Any, holder: Holder, folder: Path, dry: bool) -> JobSpec:
    """A job as the holder may submit it: without a user it is the holder's.

    Raises:
        InputError: it is no JSON object. Unprocessable: it cannot be. NotAllowed: this holder may not submit it. One line.
    """
    if not isinstance(entry, dict):
        raise InputError("a job must be a JSON object, an entry of a job file")
    try:
        spec = job_of({"user": holder.user, **entry})
    except ValidationError as error:
        raise Unprocessable(one_line(format_error(problems(error)[0], model_of(entry)))) from None
    spec = spec.model_copy(update={"folder": os.path.abspath(folder / spec.folder)})
    if holder.right < Right.OPERATE and not dry:
        if not isinstance(spec, OwnersJob):
            raise NotAllowed(f"job {spec.id}: is started by the service, which takes the right to operate; this token may attach")
        _check_own(holder, spec.user, spec.id)
    try:
        check_names(spec, f"job {spec.id}")
    except InputError as error:
        raise Unprocessable(str(error)) from None
    return spec


async def _job(call: Call) -> Any:
    job = await call.service.job(call.path["job"])
    return job | {"entry": entry_of(call.service.handle_of(job["id"]).spec)}


_endings: set[asyncio.Task[None]] = set()  # of jobs whose end takes longer than the answer waits for


async def _cancel(call: Call) -> Any:
    job_id = call.path["job"]
    _check_own(call.holder, call.service.handle_of(job_id).spec.user, job_id)
    ending = asyncio.ensure_future(call.service.cancel(job_id))
    _endings.add(ending)
    ending.add_done_callback(_endings.discard)
    ending.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is looked at in any case
    await asyncio.wait({ending}, timeout=_ENDS_S)
    if ending.done():
        await ending
    return await call.service.job(job_id)


async def _log(call: Call) -> Any:
    job_id, wanted = call.service.handle_of(call.path["job"]).id, call.query.process
    home = call.service.folder / LOGS / job_id
    if wanted is None:
        names = [*log_files(home)]
        wanted = next((name for name in (*_USUAL_LOGS, *names) if name in names), _USUAL_LOGS[0])
    data, offset, names = await asyncio.to_thread(read_log, home, wanted, call.query.offset)
    if wanted not in names:
        there = f"; there are {', '.join(names)}" if names else ""
        raise NotFound(f"job {job_id}: no process {one_line(wanted, 80)} of it has begun{there}{did_you_mean(wanted, names)}")
    return Response(data, headers={"X-Next-Offset": str(offset), "X-Processes": json.dumps(names)}, media_type="text/plain")


async def _status(call: Call) -> Any:
    return await answer_in_steps(await call.service.report(), "jobs")


async def _events(call: Call) -> Any:
    entries = await call.service.events.after(call.query.after, call.query.wait_s)
    hides = _OF_LEASES if call.holder.right < Right.OPERATE else ()
    parts = (
        f'{{"number":{number},"kind":"{kind}","body":{_checked(_shown(call, body) if kind in hides else body)}}}'
        for number, kind, body in entries
    )
    return Response(f'{{"events":[{",".join(parts)}]}}', media_type=JSON)


def _shown(call: Call, body: str) -> str:
    """A fact of a lease, without its id where that is another user's: it is what its owner is known by."""
    fact = json.loads(body)
    handle = call.service.run.handles.get(fact["job_id"])
    if not _owns(call.holder, None if handle is None else handle.spec.user):
        fact["lease"] = ""
    return json.dumps(fact)


def _checked(body: str) -> str:
    """A fact as JSON: Python writes numbers that are not finite as JSON does not know them."""
    return bytes(answer(json.loads(body)).body).decode() if "NaN" in body or "Infinity" in body else body


async def _metrics(call: Call) -> Any:
    return Response(await call.service.metrics(), headers={"Content-Type": CONTENT_TYPE})


_JOB, _LEASE = "/v1/jobs/{job}", "/v1/leases/{lease}"


def _owners(ask: Callable[..., Any], summary: str, sent: type[Sent], at: str = "", waits: bool = False) -> Operation:
    """Make an operation of an attached job's owner: it calls a method of the leases with the keys of what is sent."""

    def check(call: Call) -> None:
        job_id = call.path.get("job") or call.service.driver.leases.job_of(call.path["lease"])
        _check_own(call.holder, call.service.handle_of(job_id).spec.user, job_id)

    async def work(call: Call) -> Any:
        leases, lease = call.service.driver.leases, call.path.get("lease")
        if lease is not None:
            leases.touch(lease)
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


def _nodes(name: str, ask: Callable[[RunDriver, str], dict[str, Any]], summary: str) -> Operation:
    """What is asked about a node, by its name."""

    async def work(call: Call) -> Any:
        answered = ask(call.service.driver, call.path["node"])
        await call.service.run.durable()
        return answered

    path = f"/v1/nodes/{{node}}/{name}"
    return Operation(name, "POST", path, Right.OPERATE, work, summary, refuses=(404, 409), logged=True, at_once=True)


def _clear(driver: RunDriver, node: str) -> dict[str, Any]:
    return {"node": node, "jobs": [*driver.leases.ledger.clear(node)]}


_SUBMIT = "Submit a job, an entry of a job file, or several, all or none; with dry_run only say what would become of them."
_LOGS = "What a process of a job has printed, from an offset; X-Next-Offset has the next one, X-Processes all processes."
_EVENTS = "Entries of the journal after a number, oldest first, 1,000 at most."

OPERATIONS = (  # what is asked most comes first
    _owners(Leases.acquire, "Wait for the nodes of a phase.", Acquire, waits=True),
    _owners(Leases.release, "A phase is over.", Release),
    _owners(Leases.heartbeat, "The job is alive.", Heartbeat),
    _owners(Leases.progress, "How far a phase is.", Progress),
    _owners(Leases.synced, "The sync of an iteration is over.", Synced),
    _owners(Leases.end, "Give up the lease.", End, f"DELETE {_LEASE}"),
    _owners(Leases.attach, "Wait for the job's place, and take a lease.", Attach, f"POST {_JOB}/attach", waits=True),
    Operation("job", "GET", _JOB, Right.LOOK, _job, "A job.", refuses=(404,)),
    Operation(
        "submit", "POST", "/v1/jobs", Right.ATTACH, _submit, _SUBMIT, Dry, Entry, 201, refuses=(200, 409, 422, 429), logged=True
    ),
    Operation(
        "cancel", "DELETE", _JOB, Right.ATTACH, _cancel, "End a job now, for good.", status=202, refuses=(404, 409), logged=True
    ),
    Operation("log", "GET", f"{_JOB}/logs", Right.LOOK, _log, _LOGS, Log, media="text/plain", refuses=(404,)),
    Operation("status", "GET", "/v1/status", Right.LOOK, _status, "All jobs, groups and pools."),
    Operation("events", "GET", "/v1/events", Right.LOOK, _events, _EVENTS, After),
    Operation("metrics", "GET", "/metrics", Right.LOOK, _metrics, "Figures for Prometheus.", media="text/plain"),
    _nodes("drain", lambda driver, node: driver.lifecycle.node_changes.drain(node), "Let jobs leave a node."),
    _nodes("undrain", lambda driver, node: driver.lifecycle.node_changes.undrain(node), "Use it again."),
    _nodes("clear", _clear, "Nobody runs on a suspect node any more: it may be granted."),
)
