"""Jobs: submitted, looked at, ended."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError
from starlette.responses import Response

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import format_error, one_line, problems
from runtime.answers import NotAllowed, Unprocessable
from runtime.jobs.checks import check_names
from runtime.jobs.spec import JobSpec
from runtime.service.http.answers import answer
from runtime.service.http.operations import Call, Operation, Query
from runtime.service.logs import read_log
from runtime.service.tokens import Holder, Right

_ENDS_S = 1.0  # for how long the end of a job is waited for: its processes may take longer


class Dry(Query):
    """How a job is submitted."""

    dry_run: bool = False
    """Only say what would become of it."""


class Log(Query):
    """Which part of a log."""

    process: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    """One of the job's processes; without it `controller`, or `service` of an attached job."""
    offset: Annotated[int, Field(ge=0, le=2**53)] = 0
    """Bytes that are known."""


def check_own(holder: Holder, user: str, job_id: str) -> None:
    """See that a job is the holder's own, or that any is.

    Raises:
        NotAllowed: neither; one line.
    """
    if holder.right < Right.OPERATE and user != holder.user:
        raise NotAllowed(f"job {job_id}: is another user's")


async def _submit(call: Call) -> Response:
    entries = call.body if isinstance(call.body, list) else [call.body]
    if not entries:
        raise InputError("there is no job in the list")
    specs = [await asyncio.to_thread(_spec_of, entry, call.holder, call.service.folder, call.query.dry_run) for entry in entries]
    if call.query.dry_run:
        previews = await call.service.preview(specs)
        return answer(previews if isinstance(call.body, list) else previews[0])
    await call.service.submit(specs)
    jobs = [await call.service.job(spec.id) for spec in specs]
    return answer(jobs if isinstance(call.body, list) else jobs[0], 201)


def _spec_of(entry: Any, holder: Holder, folder: Path, dry: bool) -> JobSpec:
    """A job as the holder may submit it: without a user it is the holder's.

    Raises:
        InputError: it is no JSON object. Unprocessable: it cannot be. NotAllowed: this holder may not submit it. One line.
    """
    if not isinstance(entry, dict):
        raise InputError("a job must be a JSON object, an entry of a job file")
    try:
        spec = JobSpec.model_validate({"user": holder.user, **entry})
    except ValidationError as error:
        raise Unprocessable(one_line(format_error(problems(error)[0], JobSpec))) from None
    spec = spec.model_copy(update={"folder": os.path.abspath(folder / spec.folder)})
    if holder.right < Right.OPERATE and not dry:
        if not spec.attach:
            raise NotAllowed(f"job {spec.id}: is started by the service, which takes the right to operate; this token may attach")
        check_own(holder, spec.user, spec.id)
    try:
        check_names(spec, f"job {spec.id}")
    except InputError as error:
        raise Unprocessable(str(error)) from None
    return spec


async def _job(call: Call) -> Response:
    return answer(await call.service.job(call.path["job"]))


async def _cancel(call: Call) -> Response:
    job_id = call.path["job"]
    check_own(call.holder, call.service.spec_of(job_id).user, job_id)
    ending = asyncio.ensure_future(call.service.cancel(job_id))
    call.background.add(ending)
    ending.add_done_callback(call.background.discard)
    ending.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is looked at in any case
    await asyncio.wait({ending}, timeout=_ENDS_S)
    if ending.done():
        await ending
    return answer(await call.service.job(job_id), 202)


async def _log(call: Call) -> Response:
    spec = call.service.spec_of(call.path["job"])
    data, offset, names = await asyncio.to_thread(read_log, call.service.folder, spec.id, call.query.process, call.query.offset)
    return Response(data, headers={"X-Next-Offset": str(offset), "X-Processes": json.dumps(names)}, media_type="text/plain")


OPERATIONS = (
    Operation("GET", "/v1/jobs/{job}", Right.LOOK, _job, "A job.", refuses=(404,)),
    Operation(
        "POST",
        "/v1/jobs",
        Right.ATTACH,
        _submit,
        "Submit a job, an entry of a job file, or several, all or none; with dry_run only say what would become of them.",
        Dry,
        JobSpec,
        201,
        refuses=(200, 409, 422, 429),
        logged="submit",
    ),
    Operation(
        "DELETE",
        "/v1/jobs/{job}",
        Right.ATTACH,
        _cancel,
        "End a job now, for good.",
        status=202,
        refuses=(404, 409),
        logged="cancel",
    ),
    Operation(
        "GET",
        "/v1/jobs/{job}/logs",
        Right.LOOK,
        _log,
        "What a process of a job has printed, from an offset; X-Next-Offset has the next one, X-Processes all processes.",
        Log,
        media="text/plain",
        refuses=(404,),
    ),
)
