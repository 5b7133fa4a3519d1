"""Placements of attached jobs. A placement starts no process of an attached job, and ends by ending the lease.

For a job with a command the service starts the command in a separate process group, and starts it again after it has died.

A command outlives a coordinator that is killed: the next coordinator takes over its lease and its processes. A command ends with a
service that is stopped, and is started again with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from time import strftime

from rollmux_client import same_host

from rollmux_env.errors import InputError
from runtime.coordinator.ends import left
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.lifecycle import ProcessBackend
from runtime.jobs.spec import CommandJob, JobSpec
from runtime.jobside.messages import JobEnd
from runtime.journal.facts import LeaseEnded
from runtime.machine import Node, threads_of
from runtime.machines.job_processes import end_job_processes, mark_of
from runtime.output import LOGS, open_log
from runtime.owners.http.iterations import Iterations
from runtime.owners.http.ledger import AttachedPlacement, Lease, Ledger, described, living, wake

_LOOKS_S = 0.2
_ENDS_S = 10.0  # from SIGTERM to SIGKILL
_LOG = "command"
_ALLOWED = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        *("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "TORCH_HOME"),
        *("CUDA_HOME", "CUDA_PATH", "CUDA_DEVICE_ORDER"),
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_CACHE"),
    )
)
_ALLOWED_PREFIXES = ("LC_", "XDG_", "NCCL_", "GLOO_")


class AttachedProcesses(ProcessBackend):
    """Placements of jobs that attach. An owner learns its job's placement, or its end, from the answer to its next request.

    Args:
        ledger: Leases of the run.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def start(self, handle: JobHandle) -> AttachedPlacement:
        """Open a placement of a job, and wake its owner's request if it is waiting."""
        placement = AttachedPlacement(self.ledger.run.log.now())
        recalled = self.ledger.recalled.pop(handle.id, None)
        if recalled is not None:
            recalled.handle, recalled.placement, placement.lease = handle, placement, recalled
        handle.changed.notify_all()
        return placement

    async def wait(self, handle: JobHandle) -> JobEnd:
        """Wait until the job leaves its placement, and return the reason."""
        placement = self.ledger.placement_of(handle)
        assert placement is not None
        return await asyncio.shield(placement.over)

    async def kill(self, handle: JobHandle) -> None:
        """End the lease of a job, and wait until its nodes are known to be free or the run stops.

        Args:
            handle: The job.
        """
        placement, run = self.ledger.placement_of(handle), self.ledger.run
        if placement is None:
            return
        lease, why = placement.lease, handle.ending.reason
        if lease is None or (lease.ended and not lease.suspect_nodes):  # for example while its owner moves to another placement
            placement.free.set()
        elif not lease.ended:
            if lease.has_grants:
                lease.apply_event("stop")
                lease.stop_requested_s = run.log.now()
                wake(handle, why)
            else:
                self.ledger.end(lease, why, JobEnd("stopped"))
        placement.end(JobEnd("stopped"))
        stops = asyncio.ensure_future(self.ledger.stopped.wait())
        free = asyncio.ensure_future(placement.free.wait())
        try:
            await asyncio.wait((free, stops), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waits in (free, stops):
                waits.cancel()


class CommandProcesses(AttachedProcesses):
    """Processes of jobs with a command. Commands are started only once the service listens.

    Args:
        iterations: Progress of the attached jobs.
    """

    def __init__(self, iterations: Iterations) -> None:
        super().__init__(iterations.ledger)
        self._iterations = iterations
        self._folder = Path(iterations.ledger.run.plan.folder)
        self._running: dict[JobHandle, asyncio.Task[None]] = {}
        self._children: dict[JobHandle, subprocess.Popen[bytes]] = {}
        self._listens = asyncio.Event()
        self._access: Callable[[JobSpec], Mapping[str, str]] = lambda _: {}

    def give_access(self, access: Callable[[JobSpec], Mapping[str, str]]) -> None:
        """Allow commands to start, because the service listens.

        Args:
            access: Function that returns the environment variables with which a job's command reaches the service.
        """
        self._access = access
        self._listens.set()

    def start(self, handle: JobHandle) -> AttachedPlacement:
        """Open a placement of a job, and start its command there."""
        placement = super().start(handle)
        self._running[handle] = asyncio.ensure_future(self._run(handle, placement))
        return placement

    async def kill(self, handle: JobHandle) -> None:
        """End the processes of a job, and free their nodes."""
        placement = self.ledger.placement_of(handle)
        if (task := self._running.pop(handle, None)) is not None:
            task.cancel()
        await self._end(handle)
        if placement is not None:
            self._has_ended(placement, handle.ending.reason)
        await super().kill(handle)

    async def drop(self, handle: JobHandle) -> None:
        """End the command of a job that is gone."""
        if handle.life.is_gone and handle in self._running:
            self._running.pop(handle).cancel()
            await self._end(handle)

    async def close(self) -> None:
        """End all commands because the run is over."""
        running, self._running = self._running, {}
        for task in running.values():
            task.cancel()
        await asyncio.gather(*(self._end(handle) for handle in running))

    async def _run(self, handle: JobHandle, placement: AttachedPlacement) -> None:
        """Start a command, or take it over from the former coordinator, and wait until it ends."""
        await self._listens.wait()
        lease, status = placement.active_lease, None
        if lease is not None and living(lease.owner):
            while living(lease.owner):
                await asyncio.sleep(_LOOKS_S)
        else:
            if self.ledger.run.plan.resume:  # the former coordinator may have started one that has not attached
                await asyncio.to_thread(end_job_processes, str(self._logs(handle)))
            if lease is not None:
                self._has_ended(placement, "its command has ended with the service")
                return
            await self.ledger.run.written()
            status = await self._child(handle)
        if handle.life.is_gone:
            return
        if status == 0:
            self._running.pop(handle, None)
            self._done(handle, placement)
        else:
            await self._end(handle)
            how = "has ended" if status is None else _how(status)
            self._has_ended(placement, f"its command {how}")

    async def _child(self, handle: JobHandle) -> int:
        try:
            child = self._children[handle] = self._popen(handle)
        except (OSError, InputError) as error:  # InputError: no token can be made for it
            problem = getattr(error, "strerror", None) or error
            self.ledger.run.log.say(f"{handle.id}: its command cannot be started: {problem}")
            return 127
        while (status := child.poll()) is None:
            await asyncio.sleep(_LOOKS_S)
        return status

    def _popen(self, handle: JobHandle) -> subprocess.Popen[bytes]:
        spec, nodes = handle.spec, handle.place.nodes_of("sync")
        assert isinstance(spec, CommandJob)
        here = [node for node in nodes if not node.host or same_host(node.host, os.uname().nodename)]
        with open_log(self._logs(handle), _LOG) as log:
            names = " ".join(node.name for node in nodes)
            log.write(f"{strftime('%Y-%m-%d %H:%M:%S')}  starts on {names}\n".encode())
            log.flush()
            child = subprocess.Popen(
                spec.command,
                cwd=spec.folder or None,
                env=allowed_environment(os.environ) | self._environment(handle, here),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        cores = {core for node in here for core in node.cores}
        if cores and not any(node.gpus for node in here):
            os.sched_setaffinity(child.pid, cores)
        return child

    def _environment(self, handle: JobHandle, here: list[Node]) -> dict[str, str]:
        own = mark_of(str(self._logs(handle))) | {
            "ROLLMUX_JOB": handle.id,
            "ROLLMUX_NODES": json.dumps(described(handle)),
            "CUDA_VISIBLE_DEVICES": ",".join(str(gpu) for node in here for gpu in node.gpus),
            "PYTHONUNBUFFERED": "1",
        }
        if not any(node.gpus for node in here):
            threads = str(threads_of(*(node.cores for node in here)))
            own |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
        return own | dict(self._access(handle.spec))

    def _done(self, handle: JobHandle, placement: AttachedPlacement) -> None:
        """End a job whose command has exited with status 0: the job is done."""
        if (lease := placement.active_lease) is not None:
            self._iterations.done(lease)
        else:
            self.ledger.run.log.write(
                LeaseEnded(self.ledger.run.log.now(), handle.id, "", True, "its command has ended with status 0")
            )
            placement.free.set()
            placement.end(JobEnd("done"))
            self.ledger.run.apply(left(handle))

    def _has_ended(self, placement: AttachedPlacement, why: str) -> None:
        """End the placement of a job whose processes have ended, and free its nodes."""
        lease: Lease | None = placement.lease
        if lease is not None and not lease.ended:
            self.ledger.end(lease, why, JobEnd("died", "step", why))
        elif lease is not None and lease.suspect_nodes:
            self.ledger.free(lease, lease.suspect_nodes, "its processes have ended")
        placement.free.set()
        placement.end(JobEnd("died", "step", why))

    async def _end(self, handle: JobHandle) -> None:
        """End a command with all processes that it has started, and wait until they have ended."""
        child = self._children.pop(handle, None)
        if child is not None and child.poll() is None:
            _signal(child.pid, signal.SIGTERM)
            for _ in range(round(_ENDS_S / _LOOKS_S)):
                if child.poll() is not None:
                    break
                await asyncio.sleep(_LOOKS_S)
            _signal(child.pid, signal.SIGKILL)
            await asyncio.to_thread(child.wait)
        await asyncio.to_thread(end_job_processes, str(self._logs(handle)))

    def _logs(self, handle: JobHandle) -> Path:
        return self._folder / LOGS / handle.id


def allowed_environment(service: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a service's environment that a command gets: no tokens, and no settings of the service itself.

    Args:
        service: Environment of the service.
    """
    return {name: value for name, value in service.items() if name in _ALLOWED or name.startswith(_ALLOWED_PREFIXES)}


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _how(status: int) -> str:
    return f"has ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
