"""What `rollmux exec` does once its arguments are in order: a command on the nodes that a service gives its job."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rollmux_client

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.commands.process_group import ProcessGroup, Signalled
from runtime.jobs.spec import load_jobs
from runtime.service.address import find, folder_of

_ENDED = ("done", "failed", "cancelled", "over_budget")


def find_service(at: Path | None) -> rollmux_client.Service:
    """The service of the environment's ROLLMUX_URL, or else that of a folder.

    Args:
        at: the folder, which then counts alone; None for that of the environment, or the usual one.

    Raises:
        InputError: there is none; one line.
    """
    url, token = os.environ.get("ROLLMUX_URL"), os.environ.get("ROLLMUX_TOKEN")
    if at is not None or not url:
        folder = folder_of(at)
        service = find(folder)
        if service is None or not service.answers():
            raise InputError(f"--at {one_line(str(folder), 4096)}: no service runs there; `rollmux serve` starts one")
        url, token = service.url, service.token
    elif not token:
        raise InputError("ROLLMUX_URL is set, and ROLLMUX_TOKEN is not")
    try:
        return rollmux_client.Service(url, token)
    except ValueError as error:
        raise InputError(str(error)) from None


def entry_of(file: Path, job_id: str | None) -> dict[str, Any]:
    """The entry of a job file that is to be attached.

    Raises:
        InputError: the file cannot be used, or has no such entry; one line.
    """
    jobs = {spec.id: spec for spec in load_jobs(file).jobs}
    name = one_line(str(file), 4096)
    if job_id is None and len(jobs) > 1:
        raise InputError(f"{name}: has {len(jobs)} jobs; --job says which: {', '.join(jobs)}")
    spec = next(iter(jobs.values())) if job_id is None else jobs.get(job_id)
    if spec is None:
        raise InputError(f"--job {job_id}: {name} has no such job; it has {', '.join(jobs)}")
    if not spec.attach:
        raise InputError(f"{name}: job {spec.id}: is no job to attach; its entry has to say `attach: true`")
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"folder"})


def execute_command(
    service: rollmux_client.Service, entry: dict[str, Any], words: Sequence[str], say: Callable[[str], None]
) -> int:
    """Attach a job and run a command on its nodes, again where it has to move.

    Args:
        say: takes lines about what is waited for.

    Returns:
        The command's exit status; 128 and the signal's number where one has ended it.

    Raises:
        InputError: the service refuses the job, or the command cannot be started; one line.
    """
    command = ProcessGroup(words)
    job = rollmux_client.Job(service, entry["id"], socket.gethostname(), command.pids, lambda why: command.kill(why, say), say)
    with command.signals():
        try:
            _submit(service, entry, say)
            while True:
                job.attach()
                say(f"job {job.name} runs on {' '.join(node['name'] for nodes in job.nodes.values() for node in nodes)}")
                status = command.run(_environment(job, service), _cores(job))
                moves = status != 0 and not job.stopping and _state(service, job.name) == "moving"
                job.end(done=status == 0)
                if not moves:
                    return status
                say(f"job {job.name} moves")
        except rollmux_client.Refused as error:
            raise InputError(f"job {job.name}: {error}") from None
        except Signalled as pressed:
            return 128 + pressed.number
        finally:
            job.end(done=False)  # where it has not ended
            service.close()


def _submit(service: rollmux_client.Service, entry: dict[str, Any], say: Callable[[str], None]) -> None:
    """Submit a job that the service does not have.

    Raises:
        Refused: it cannot be. InputError: it has ended; one line.
    """
    while True:
        try:
            service.ask("POST", "/v1/jobs", entry, 60.0)
            return
        except rollmux_client.Refused as error:
            if error.status != 409:
                raise
            state = _state(service, entry["id"])
            if state in _ENDED:
                raise InputError(f"job {entry['id']}: has ended already: {state}; names are used once") from None
            return
        except OSError as error:
            say(f"the service does not answer ({error})")
            time.sleep(1.0)


def _state(service: rollmux_client.Service, job_id: str) -> str:
    """What a job does; empty where it cannot be asked."""
    try:
        return str(service.ask("GET", f"/v1/jobs/{job_id}").get("state", ""))
    except (OSError, rollmux_client.Refused):
        return ""


def _here(job: rollmux_client.Job) -> list[dict[str, Any]]:
    """The job's nodes on this machine."""
    return [node for nodes in job.nodes.values() for node in nodes if node.get("host") in (None, "", socket.gethostname())]


def _cores(job: rollmux_client.Job) -> set[int]:
    """The cores that the command is kept on; none where its nodes have GPUs."""
    here = _here(job)
    return set() if any(node.get("gpus") for node in here) else {int(core) for node in here for core in node.get("cores") or ()}


def _environment(job: rollmux_client.Job, service: rollmux_client.Service) -> dict[str, str]:
    gpus = dict.fromkeys(str(gpu) for node in _here(job) for gpu in node.get("gpus") or ())
    own = {
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        "ROLLMUX_URL": service.url,
        "ROLLMUX_TOKEN": service.token,
        "ROLLMUX_JOB": job.name,
        "ROLLMUX_LEASE": job.lease or "",
        "ROLLMUX_TTL_S": str(job.ttl_s),
        "ROLLMUX_ITERATION": str(job.iteration),
        "ROLLMUX_NODES": json.dumps(job.nodes),
    }
    threads: dict[str, str] = {}
    if _cores(job):  # more threads than a phase has cores would wait for each other
        most = str(min(len(node["cores"]) for node in _here(job) if node.get("cores")))
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), most)
    return threads | os.environ | own
