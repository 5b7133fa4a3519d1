"""The work of `rollmux exec` after its arguments are checked: it runs a command on the nodes that a service grants to its job."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import rollmux_client
import rollmux_processes

from rollmux_env.errors import InputError
from runtime.commands.leased_command import LeasedCommand, NotNow, Signalled
from runtime.jobs.changes import changes
from runtime.machines.job_processes import end_all

_ANOTHER_S = 45.0  # longest wait for another `rollmux exec` of the same job to end
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0)  # between attempts to reach the service
_UNHEARD_S = 30.0  # longest wait for an answer of a service, and time after which a request is not repeated


def execute_command(
    url: str, token: str, entry: dict[str, Any], words: Sequence[str], say: Callable[[str], None], accepts: bool = False
) -> int:
    """Attach a job and run a command on its nodes; run it again if the job has to move.

    Args:
        url: URL of the service.
        token: Token of the user.
        entry: Entry of a job file.
        words: The command with its arguments.
        say: Callback for a line about a wait or a move.
        accepts: Whether the job runs although its entry differs from the one that the service has.

    Returns:
        Exit status of the command, or 128 plus the number of the signal that ended it.

    Raises:
        InputError: If the service refuses the job, or the command cannot be started; one line.
        NotNow: If the service does not answer, or the lease was lost before the command was started; one line.
    """
    service, command = rollmux_client.Service(url, token), LeasedCommand(words, say)
    job = rollmux_client.Job(service, entry["id"], socket.gethostname(), command.pids, command.kill, say)
    with command.signals():
        try:
            _submit(service, entry, say, accepts)
            while True:
                _end_earlier(job.name, service.url, say)
                job.attach()
                _end_orphans_of_others(job, service, say)
                say(f"job {job.name} runs on {' '.join(node['name'] for nodes in job.nodes.values() for node in nodes)}")
                _say_where(job, entry, say)
                job.check_lease()
                status, left = command.run(_environment(job, service), _cores(job))
                if left:
                    say(f"{left} of job {job.name} cannot be ended: its lease is not given back")
                    return status or 1
                moves = status != 0 and not job.stopping and _state(service, job.name, say) == "moving"
                job.end(done=status == 0)
                if not moves:
                    return status
                say(f"job {job.name} moves")
        except rollmux_client.Refused as error:
            raise (NotNow if command.is_lost else InputError)(f"job {job.name}: {error}") from None
        except ConnectionError as error:
            raise NotNow(str(error)) from None
        except Signalled as pressed:
            return 128 + pressed.number
        finally:
            with suppress(Signalled):  # a second signal: the lease expires
                if command.may_live:
                    job.abandon()
                else:
                    job.end(done=False)  # no effect on a lease that has ended
            service.close()


def _end_earlier(job_id: str, url: str, say: Callable[[str], None]) -> None:
    """End the processes that an earlier `rollmux exec` of a job has left on this machine; wait for one that is alive.

    Args:
        job_id: Id of the job.
        url: URL of the service.
        say: Callback for a line about what is waited for or ended.

    Raises:
        InputError: If another `rollmux exec` of the job keeps running here, or a process cannot be ended; one line.
    """
    until_s, said = time.monotonic() + _ANOTHER_S, False
    while others := _earlier(job_id, url, has_keeper=True):
        pid = min(others)
        if time.monotonic() > until_s:
            raise InputError(f"job {job_id}: another `rollmux exec` of it has process {pid} on this machine; end that first")
        if not said:
            said = True
            say(f"job {job_id} waits: another `rollmux exec` of it has process {pid} on this machine")
        time.sleep(1.0)
    _end_orphans(job_id, url, say)


def _end_orphans_of_others(job: rollmux_client.Job, service: rollmux_client.Service, say: Callable[[str], None]) -> None:
    """End what another `rollmux exec` has left that had the job while this one waited for a placement, and was killed.

    Args:
        job: The attached job. Its lease is not given back if a process cannot be ended.
        service: The service.
        say: Callback for a line about what is ended.

    Raises:
        InputError: If a process cannot be ended; one line.
    """
    try:
        _end_orphans(job.name, service.url, say)
    except InputError:
        job.abandon()
        raise


def _end_orphans(job_id: str, url: str, say: Callable[[str], None]) -> None:
    if orphans := _earlier(job_id, url, has_keeper=False):
        pids = ", ".join(map(str, sorted(orphans)))
        say(f"what an earlier `rollmux exec` of job {job_id} has left ends: process {pids}")
        if left := end_all(lambda: sorted(_earlier(job_id, url, has_keeper=False)), 0.0):
            raise InputError(f"job {job_id}: process {left[0]} of an earlier `rollmux exec` cannot be ended; end it first")


def _earlier(job_id: str, url: str, has_keeper: bool) -> set[int]:
    """Return the processes on this machine that carry a lease of a job.

    Args:
        job_id: Id of the job.
        url: URL of the service in the environment of these processes.
        has_keeper: Whether to return those whose `rollmux exec` is alive or in a container, or those whose `rollmux exec` is dead.
    """
    table = rollmux_processes.processes()
    pids = set()
    for pid, one in table.items():
        marks = {} if one.is_zombie else rollmux_processes.lease_variables_of(pid)
        mine = marks.get(rollmux_processes.JOB) == job_id and _address(marks.get(rollmux_processes.URL, "")) == _address(url)
        keeper = marks.get(rollmux_processes.KEEPER)
        if mine and keeper is not None and (rollmux_processes.is_keeper_alive(keeper) is not False) is has_keeper:
            pids.add(pid)
    return pids if has_keeper else rollmux_processes.descendants(pids, table)


def _address(url: str) -> tuple[str, int | None, str]:
    """Return host, port and path of a service's URL, with one name for this machine's own addresses."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_here = host in ("localhost", "127.0.0.1", "::1") or rollmux_processes.same_host(host, socket.gethostname())
    return "localhost" if is_here else host, parts.port, parts.path.rstrip("/")


def _submit(service: rollmux_client.Service, entry: dict[str, Any], say: Callable[[str], None], accepts: bool) -> None:
    """Submit a job that the service does not have.

    Args:
        service: The service.
        entry: Entry of the job file.
        say: Callback for a line about a service that does not answer, or about how the entry differs from the one that it has.
        accepts: Whether the job runs although its entry differs.

    Raises:
        Refused: If the service refuses the job.
        InputError: If the job has ended, or its entry has changed; one line.
        NotNow: If the service does not answer; one line.
    """
    try:
        _patiently(service, lambda: service.ask("POST", "/v1/jobs", entry, _UNHEARD_S), say)
    except rollmux_client.Refused as error:
        if error.status != 409:
            raise
        _compare(entry, _job(service, entry["id"], say), say if accepts else None)


def _patiently(service: rollmux_client.Service, ask: Callable[[], dict[str, Any]], say: Callable[[str], None]) -> dict[str, Any]:
    """Send a request to a service, and repeat it for half a minute if it is not answered.

    Args:
        service: The service.
        ask: Function that sends the request once.
        say: Callback for a line that the request is repeated.

    Raises:
        Refused: If the service refuses the request for good.
        NotNow: If it does not answer; one line.
    """
    until_s, said = time.monotonic() + _UNHEARD_S, False
    for pause_s in (*_PAUSES_S, None):
        try:
            return ask()
        except (OSError, rollmux_client.Refused) as error:
            if isinstance(error, rollmux_client.Refused) and error.status not in rollmux_client.AGAIN:
                raise
            if pause_s is None or time.monotonic() >= until_s:
                raise NotNow(f"{service.url}: the service does not answer ({error})") from None
            if not said:
                said = True
                say(f"{service.url} is asked again for up to {_UNHEARD_S:.0f} s: {error}")
        time.sleep(pause_s)
    raise AssertionError("the last attempt returns or raises")


def _compare(entry: dict[str, Any], job: dict[str, Any], tell: Callable[[str], None] | None) -> None:
    """Check that a job that the service has is the one of the file.

    Args:
        entry: Entry of the job file.
        job: The service's report of the job.
        tell: Callback for a line about how the entry differs from the one that the service has, or None to refuse such an entry.

    Raises:
        InputError: If the job has ended, or its entry has changed; one line.
    """
    name, state = entry["id"], job.get("state")
    if state in rollmux_client.ENDED:
        raise InputError(f"job {name}: has ended already: {state}; submit it under another name")
    differing = ", ".join(changes(job["entry"], entry)) if "entry" in job else ""  # an older service does not report it
    if not differing:
        return
    changed = f"job {name}: its entry has changed since the service took it: {differing}"
    if tell is None:
        raise InputError(f"{changed}; --accept-changes continues with what the service has")
    tell(f"{changed}; the service keeps what it has")


def _job(service: rollmux_client.Service, job_id: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the service's report of a job, or an empty one if it has no such job. Raises `NotNow` if it does not answer."""
    try:
        return _patiently(service, lambda: service.ask("GET", f"/v1/jobs/{job_id}"), say)
    except rollmux_client.Refused as error:
        if error.status != 404:
            raise
        return {}


def _state(service: rollmux_client.Service, job_id: str, say: Callable[[str], None]) -> str:
    """Return the state of a job, or "" if the service does not answer."""
    try:
        return str(_job(service, job_id, say).get("state", ""))
    except (NotNow, rollmux_client.Refused):
        return ""


def _here(job: rollmux_client.Job) -> list[dict[str, Any]]:
    """Return the job's nodes on this machine."""
    here, every = socket.gethostname(), [node for nodes in job.nodes.values() for node in nodes]
    return [node for node in every if not node.get("host") or rollmux_processes.same_host(node["host"], here)]


def _say_where(job: rollmux_client.Job, entry: dict[str, Any], say: Callable[[str], None]) -> None:
    """Say why the command sees no GPU: its nodes are on other machines, or are cores although its entry states device memory."""
    hosts = dict.fromkeys(str(node["host"]) for nodes in job.nodes.values() for node in nodes if node.get("host"))
    here, states = _here(job), any((entry.get(phase) or {}).get("device_gb") for phase in ("rollout", "training"))
    if hosts and not here:
        names = f"they are on {', '.join(hosts)}, this is {socket.gethostname()}"
        say(f"none of the nodes of job {job.name} is on this machine: {names}")
    elif states and not any(node.get("gpus") for node in here):
        say(f"job {job.name} states device_gb, and the service knows no GPU of its nodes on this machine: the command sees none")


def _gpus(job: rollmux_client.Job) -> list[str]:
    """Return the GPUs of the job's nodes on this machine.

    Raises:
        InputError: If CUDA_VISIBLE_DEVICES of this process hides one of them, which may then belong to another program; one line.
    """
    gpus = [*dict.fromkeys(str(gpu) for node in _here(job) for gpu in node.get("gpus") or ())]
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        own = [name.strip() for name in shown.split(",")]
        hidden = [gpu for gpu in gpus if gpu not in own]
        if hidden:
            where = f"which the service has given to job {job.name}"
            raise InputError(f"CUDA_VISIBLE_DEVICES={shown} hides GPU {', '.join(hidden)}, {where}; give both the same, by name")
    return gpus


def _cores(job: rollmux_client.Job) -> set[int]:
    """Return the cores to which the command is bound, or none if its nodes have GPUs."""
    here = _here(job)
    return set() if any(node.get("gpus") for node in here) else {int(core) for node in here for core in node.get("cores") or ()}


def _environment(job: rollmux_client.Job, service: rollmux_client.Service) -> dict[str, str]:
    own = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # in which NVML, and so the service, numbers devices
        "CUDA_VISIBLE_DEVICES": ",".join(_gpus(job)),
        rollmux_processes.URL: service.url,
        "ROLLMUX_TOKEN": service.token,
        rollmux_processes.JOB: job.name,
        rollmux_processes.LEASE: job.lease or "",
        rollmux_processes.KEEPER: rollmux_processes.keeper_of(os.getpid()),
        "ROLLMUX_TTL_S": str(job.ttl_s),
        "ROLLMUX_ITERATION": str(job.iteration),
        "ROLLMUX_NODES": json.dumps(job.nodes),
    }
    threads: dict[str, str] = {}
    if _cores(job):  # threads beyond the cores of a phase would only wait for each other
        most = str(min(len(node["cores"]) for node in _here(job) if node.get("cores")))
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), most)
    return threads | os.environ | own
