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
from collections.abc import Callable, Mapping
from pathlib import Path

from rollmux_processes import pid_space

from runtime.coordinator.ends import EVICTED, interrupted_slices, left
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.lifecycle import ProcessBackend
from runtime.jobs.spec import CommandJob, JobSpec
from runtime.jobside.messages import JobEnd
from runtime.journal.facts import LeaseEnded
from runtime.output import LOGS
from runtime.owners.http.command_process import LOOKS_S, CommandProcess, why_not_started
from runtime.owners.http.iterations import Iterations
from runtime.owners.http.ledger import AttachedPlacement, Ledger, described, wake
from runtime.owners.http.owner_processes import living

_DONE = "its command has ended with status 0"


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
            recalled.enter(handle, placement)
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
            if waiting := self.ledger.recalled.get(handle.id):  # its owner uses nothing
                self.ledger.end(waiting, handle.ending.reason, None)
            return
        lease, why = placement.lease, handle.ending.reason
        if lease is None or (lease.is_over and not lease.suspect_nodes):  # for example while its owner moves to another placement
            placement.free.set()
        elif not lease.is_over:
            if lease.has_grants:
                lease.ask_to_stop(run.log.now())
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
        self._commands: dict[JobHandle, CommandProcess] = {}
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
        self._commands[handle] = CommandProcess(self._folder / LOGS / handle.id)
        self._running[handle] = asyncio.ensure_future(self._run(handle, placement))
        return placement

    async def kill(self, handle: JobHandle) -> None:
        """End the processes of a job, and free their nodes."""
        placement = self.ledger.placement_of(handle)
        if (task := self._running.pop(handle, None)) is not None:
            task.cancel()
        remaining = await self._end(handle, placement)
        if placement is not None:
            self._has_ended(handle, placement, handle.ending.reason, remaining)
        self._commands.pop(handle, None)
        await super().kill(handle)

    async def drop(self, handle: JobHandle) -> None:
        """End the command of a job that is gone."""
        if handle.life.is_gone and handle in self._running:
            self._running.pop(handle).cancel()
            if remaining := await self._commands.pop(handle).end():
                self.ledger.run.log.say(f"{handle.id}: process {_numbers(remaining)} of its command cannot be ended")

    async def close(self) -> None:
        """End all commands because the run is over."""
        running, self._running = self._running, {}
        for task in running.values():
            task.cancel()
        await asyncio.gather(*(self._commands[handle].end() for handle in running))

    async def _run(self, handle: JobHandle, placement: AttachedPlacement) -> None:
        """Start a command, or take it over from the former coordinator, and wait until it ends."""
        await self._listens.wait()
        if handle.ending.why is not None:  # it ended under a former coordinator, and keeps its place while processes of it live
            return
        lease, status = placement.active_lease, None
        how = "has ended"
        if lease is not None and living(lease.owner):
            while living(lease.owner):
                await asyncio.sleep(LOOKS_S)
        else:
            resumed = self.ledger.run.plan.resume  # the former coordinator may have started one that has not attached
            if lease is None and not (resumed and await self._commands[handle].end()):
                await self.ledger.run.written()
                status = await self._status(handle)
                how = _how(status)
            else:
                how = "has ended with the service"
        remaining = await self._end(handle, placement)
        if handle.life.is_gone:
            return
        if status == 0 and not remaining:
            self._running.pop(handle, None)
            self._commands.pop(handle, None)
            self._done(handle, placement)
        elif status == 0 and not self.ledger.run.stopping:
            self._done_with(handle, placement, remaining)
        else:  # one that has ended unseen may have ended well: its job has not died, and waits before those that came later
            outcome = EVICTED if status is None else "died"
            self._has_ended(handle, placement, f"its command {how}", remaining, outcome)

    async def _status(self, handle: JobHandle) -> int:
        """Run a command, and return its exit status."""
        spec, access = handle.spec, {"ROLLMUX_JOB": handle.id, "ROLLMUX_NODES": json.dumps(described(handle))}
        assert isinstance(spec, CommandJob)
        try:
            self._commands[handle].start(spec, handle.place.nodes_of("sync"), access | dict(self._access(spec)))
        except (OSError, ValueError) as error:  # InputError: no token can be made for it; others: a null byte in it
            self.ledger.run.log.say(f"{handle.id}: its command cannot be started: {why_not_started(error)}")
            return 127
        return await self._commands[handle].wait()

    def _done(self, handle: JobHandle, placement: AttachedPlacement) -> None:
        """End a job whose command has exited with status 0: the job is done."""
        if (lease := placement.active_lease) is not None:
            self._iterations.done(lease)
        else:
            run, now_s = self.ledger.run, self.ledger.run.log.now()
            run.log.write(*interrupted_slices(run, handle, now_s))  # first, as in `Iterations.done`
            run.log.write(LeaseEnded(now_s, handle.id, "", True, _DONE))
            placement.free.set()
            placement.end(JobEnd("done"))
            run.apply(left(handle))

    def _done_with(self, handle: JobHandle, placement: AttachedPlacement, remaining: list[int]) -> None:
        """End a job whose command has exited with status 0. It keeps its place until processes that remain have ended."""
        if (lease := placement.active_lease) is not None:
            self._iterations.count_rest(lease)
        self._has_ended(handle, placement, _DONE, remaining)
        assert placement.lease is not None
        self._iterations.done_late(placement.lease, _DONE)

    def _has_ended(
        self, handle: JobHandle, placement: AttachedPlacement, why: str, remaining: list[int], outcome: str = "died"
    ) -> None:
        """End the placement of a job whose command has ended, and free its nodes unless processes of it remain.

        Args:
            handle: The job.
            placement: Placement of the job.
            why: Reason, for the log and the journal.
            remaining: Ids of the processes that cannot be ended.
            outcome: Outcome of the placement, unless processes remain.
        """
        ledger, lease = self.ledger, placement.lease
        if remaining:
            why = f"{why}; process {_numbers(remaining)} of it cannot be ended"
            if lease is None:
                # It has never attached; its nodes can be suspect only with a lease.
                lease = ledger.attach(handle, placement, os.uname().nodename, pid_space(), ())
        if lease is not None and not lease.is_over:
            if remaining:
                ledger.lose(lease, why, remaining)
            else:
                ledger.end(lease, why, JobEnd(outcome, "step", why))
        elif lease is not None and remaining:
            ledger.suspect(lease, remaining)
        elif lease is not None:
            ledger.free(lease, lease.suspect_nodes, "its processes have ended")
        if not remaining:
            placement.free.set()
        placement.end(JobEnd(outcome, "step", why))

    async def _end(self, handle: JobHandle, placement: AttachedPlacement | None) -> list[int]:
        """End a command with all processes that it has started, and return the ids of those of the job that live."""
        remaining = await self._commands[handle].end() if handle in self._commands else []
        named = [] if placement is None or placement.lease is None else living(placement.lease.owner)
        return sorted({*remaining, *named})


def _numbers(pids: list[int]) -> str:
    return ", ".join(map(str, pids))


def _how(status: int) -> str:
    return f"has ended with status {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"
