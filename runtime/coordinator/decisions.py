"""The execution of the scheduler's commands: jobs get and leave places and permits, and processes are started and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rollmux_env.cluster.apply import forecast
from rollmux_env.cluster.events import Admitted, Moved, Reprofiled
from rollmux_env.keys.job import Job
from rollmux_env.scheduler import commands
from rollmux_env.scheduler.commands import Command
from rollmux_env.scheduler.core import Entry, Scheduler
from rollmux_env.scheduler.preview import reasons
from rollmux_env.scheduler.view import HoldName
from runtime.checkpoints import CHECKPOINTS
from runtime.coordinator.capacity import Capacity
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.residents import Residents
from runtime.coordinator.run_log import RunLog
from runtime.coordinator.run_plan import RunPlan
from runtime.jobside.messages import JobEnd
from runtime.machine import Pool
from runtime.machines.forecast import shape_lines
from runtime.machines.nodes import POOLS


class Errand(NamedTuple):
    """A task for `JobLifecycle`: start a job's processes if it has none, or end them.

    Attributes:
        handle: The job.
        ends: Whether to end the processes.
    """

    handle: JobHandle
    ends: bool


def checkpoints_of(plan: RunPlan, job_id: str) -> Path:
    """Return the folder of a job's checkpoints."""
    return Path(plan.folder) / CHECKPOINTS / job_id


class Decisions:
    """Executor of the scheduler's commands.

    Args:
        plan: Plan of the run.
        log: Log of the run.
        scheduler: Scheduler of the run.
        handles: Jobs of the run, by id.
        capacity: Nodes of the run.
        make_policy: Factory of policies like the scheduler's, to explain why a job waits.
        doubts: Function that returns words about what is doubtful in a job's profile, or "".

    Attributes:
        residents: Jobs whose state stays on their nodes.
        errands: Tasks for `JobLifecycle`.
    """

    def __init__(
        self,
        plan: RunPlan,
        log: RunLog,
        scheduler: Scheduler,
        handles: Mapping[str, JobHandle],
        capacity: Capacity,
        make_policy: Callable[[], Any],
        doubts: Callable[[str], str],
    ) -> None:
        self._plan, self._log, self._scheduler, self._handles = plan, log, scheduler, handles
        self._capacity, self._make_policy, self._doubts = capacity, make_policy, doubts
        self.residents = Residents(handles, plan.cluster, plan.leave)
        self.errands = asyncio.Queue[Errand]()
        self._why: dict[str, str] = {}
        scheduler.server.why = self._why

    def announce(self, entry: Entry) -> None:
        """Log an entry of the scheduler, and give a job its new profile."""
        if isinstance(entry, Admitted | Moved):
            group = self._scheduler.state.group_of(entry.job_id)
            why = self._why.pop(entry.job_id, "")
            words = f"; {why}{self._figures(entry.job_id)}" if why else ""
            self._log.say(f"{entry.job_id}: {entry.placement.strategy.replace('_', ' ')}, group {group.id}{words}")
        elif isinstance(entry, Reprofiled):
            handle, job = self._handles[entry.job.id], entry.job
            former = handle.job
            handle.set_job(job)
            for line in _known_anew(former, job):
                self._log.say(f"{job.id}: {line}")

    def carry_out(self, command: Command) -> None:
        """Carry out a command of the scheduler."""
        handle = self._handles[command.job_id]
        match command:
            case commands.StartJob(_, seating):
                self._place(handle, seating)
            case commands.Lend(_, seating):
                handle.lend(seating)
                self.order(handle)
            case commands.Grant():
                self._grant(handle, command)
            case commands.Shrink(_, parts) | commands.Grow(_, parts):
                handle.rollout_progress.set_used_parts(parts)
                handle.changed.notify_all()
            case commands.Vacate():
                handle.begin_move()
            case commands.YieldPlace():
                handle.begin_yield()
                other = self._scheduler.planner.parking.get(handle.id)
                self._log.say(f"{handle.id}: is parked at the end of its iteration" + (f", for {other}" if other else ""))
            case commands.Evict():
                self.evict(handle)
            case commands.KeepWaiting():
                self._log.say(f"{handle.id}: waits for nodes: {self._reason(handle)}{self._figures(handle.id)}")
            case commands.AtRisk(_, slowdown, moved):
                job = self._scheduler.state.job(handle.id)
                risk = f"{handle.id}: its SLO is at risk: {slowdown:.2f} times its solo time recently, {job.slo:g} at most"
                self._log.say(risk if moved else f"{risk}; there is no better place for it now")

    def _reason(self, handle: JobHandle) -> str:
        """Return words about why a job waits for a place."""
        planner = self._scheduler.planner
        if leaving := [job_id for job_id, other in planner.parking.items() if other == handle.id]:
            return f"{', '.join(leaving)} is parked for it at the end of its iteration"
        return reasons(forecast(planner.visible(planner.state)), self._make_policy())[handle.id]

    def _place(self, handle: JobHandle, seating: commands.Seating) -> None:
        handle.permits.set_iteration_from(self._log.now())
        if handle.place.nodes != {"rollout": seating.rollout_nodes, "training": seating.training_nodes}:
            self.on_processes_ended(handle)
        handle.take_place(seating, self._scheduler.state.shape(handle.id))
        self.order(handle)

    def _grant(self, handle: JobHandle, grant: commands.Grant) -> None:
        handle.permits.grant(grant, self._log.now(), handle.iteration)
        if grant.phase == "rollout" or not handle.spec.is_asynchronous:
            handle.rollout_progress.begin(grant.parts)
        self.admit(handle, grant.phase)

    def _figures(self, job_id: str) -> str:
        """Return words about doubts in a job's profile and how to measure it again, or ""."""
        words = self._doubts(job_id)
        return f" ({words}; `rollmux run --no-cache` measures it again)" if words else ""

    def admit(self, handle: JobHandle, phase: HoldName) -> None:
        """Pass a granted permit on to a job that waits for it, if there is room for its state on the nodes."""
        if self.residents.admit(handle, phase):
            handle.permits.admit(phase, self._log.now())

    def on_state_left(self, handle: JobHandle, pool: Pool) -> None:
        """Note that a job's state has left the devices of its nodes; other jobs may have waited for that."""
        self.residents.remove_state(handle, (pool,))
        self._admit_held_back()

    def on_processes_ended(self, handle: JobHandle) -> None:
        """Note that a job has nothing left on its nodes, because its processes have ended or have moved."""
        self.residents.forget(handle)
        self._admit_held_back()

    def _admit_held_back(self) -> None:
        for other, phase in self.residents.held_back():
            self.admit(other, phase)

    def order(self, handle: JobHandle) -> None:
        """Order a job's next iteration, and start its processes if it has none."""
        if handle.is_at_rest:
            self.errands.put_nowait(Errand(handle, ends=False))
        handle.send_order(handle.make_order(str(checkpoints_of(self._plan, handle.id))), self._log.now())

    def evict(self, handle: JobHandle) -> None:
        """End a job's processes, after which it ends or is restarted."""
        if handle.life.is_gone:  # the job was refused
            return
        if handle.ending.why is None:
            absent = self._capacity.absent(handle.place.names)
            why = f"its node {absent[0]} has gone" if absent else "it is to move, but has workers and no checkpoint"
            handle.begin_end(JobEnd("died", "step", why), again=True)
        self.errands.put_nowait(Errand(handle, ends=True))


def _known_anew(former: Job | None, job: Job) -> Iterator[str]:
    """Yield lines for the user about what has changed in a job's profile."""
    if former is not None and (replaced := _cold_starts(former, job)):
        yield replaced
    elif not job.movable:
        return
    elif former is not None and former.shapes != job.shapes:
        yield from shape_lines(former, job)
    elif former is not None and _kept_gb(former) != _kept_gb(job):
        rollout_gb, training_gb = _kept_gb(job)
        yield f"keeps more of its GPUs than its profile says: {rollout_gb:.2f} and {training_gb:.2f} GB of each from now on"
    else:
        yield (
            f"takes longer than its profile says: rollout {job.rollout.worst_case_s:.2f} s, "
            f"training {job.training.worst_case_s:.2f} s, sync {job.sync_s:.3f} s from now on"
        )


def _kept_gb(job: Job) -> tuple[float, float]:
    return job.rollout.device_gb, job.training.device_gb


def _cold_starts(former: Job, job: Job) -> str:
    """Return a line about observed cold starts that replace those of the profile, or ""."""
    before, after = ({pool: getattr(one, pool).switch.cold_s for pool in POOLS} for one in (former, job))
    replaced = [pool for pool in POOLS if after[pool] != before[pool]]
    changes = [f"its {pool} took {after[pool]:.2f} s, in place of {before[pool]:.2f} s" for pool in replaced]
    return f"the cold start of {' and of '.join(changes)} in its profile" if changes else ""
