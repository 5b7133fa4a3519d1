"""Phases that hold their nodes for longer than their worst case, and jobs of which a process hangs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rollmux_env.report.job_shapes import shape_in_use
from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.job_records import PROFILE
from runtime.coordinator.run_state import RunState
from runtime.jobside.messages import JobEnd
from runtime.machines.nodes import POOLS

SLACK_S = 1.0  # allowance for commits and for messages to the owner
_STARTS_S = 120.0  # shortest limit on the start of a process


class Overdue(NamedTuple):
    """A phase that is over its worst case.

    Attributes:
        job_id: Id of the job that has the permit.
        phase: Name of the phase, `init` and `sync` included.
        nodes: Names of the nodes that it holds.
        held_s: Time since its permit, seconds.
        worst_case_s: Seconds by which the phase is planned, or that it is given if it is not planned.
        is_planned: Whether the phase is planned.
    """

    job_id: str
    phase: HoldName
    nodes: tuple[str, ...]
    held_s: float
    worst_case_s: float
    is_planned: bool

    @property
    def limit(self) -> str:
        """The time within which the phase should have ended, in words."""
        if self.is_planned:
            return f"its worst case is {self.worst_case_s:.4g} s"
        return f"it has no worst case, and is given {self.worst_case_s:.4g} s"

    @property
    def description(self) -> str:
        """A line about the phase."""
        return f"its {self.phase} has held {' '.join(self.nodes)} for {self.held_s:.0f} s; {self.limit}"


def overdue_phases(run: RunState, handle: JobHandle, now_s: float) -> Iterator[Overdue]:
    """Yield the phases of a job that are over their worst case now."""
    for phase, hold in handle.permits.holds.items():
        worst_s, is_planned = worst_case_s(run, handle, phase)
        if now_s - hold.start_s > worst_s + SLACK_S:
            names = tuple(sorted(node.name for node in handle.place.nodes_of(phase)))
            yield Overdue(handle.id, phase, names, now_s - hold.start_s, worst_s, is_planned)


def worst_case_s(run: RunState, handle: JobHandle, phase: HoldName) -> tuple[float, bool]:
    """Return the seconds that a phase may take, cold starts included, and whether it is planned by them.

    Phases of a job that is being measured are not planned, nor are an init of which none was measured and a sync without `sync_s`.
    They get the time after which a job on Ray counts as one that hangs, and at least that of an iteration.
    """
    state, timeouts = run.scheduler.state, run.plan.timeouts
    if not (state.knows(handle.id) and state.is_running(handle.id)) or handle.is_guest:
        return timeouts.profile_s, False
    job, shape = state.job(handle.id), state.shape(handle.id)
    cold_s = {pool: part.switch.cold_s for pool, part in zip(POOLS, job.phases(shape), strict=True)}
    worst_s = shape_in_use(job, shape, state.group_of(handle.id).training_nodes or None).worst_case_s
    if phase == "init":
        planned_s = sum(cold_s.values())
    elif phase == "sync":
        planned_s = job.sync_s
    else:
        planned_s = worst_s[phase] + cold_s[phase]
    if planned_s:
        return planned_s, True
    return max(timeouts.least_s, sum(worst_s[pool] for pool in POOLS)), False


def hanging(run: RunState, now_s: float, passed_s: float) -> Iterator[tuple[JobHandle, JobEnd]]:
    """Yield jobs that hang, each with its `JobEnd`: a process has not answered for too long.

    Leases limit attached jobs, and a time limits each iteration in which one is measured.

    Args:
        run: State of the run.
        now_s: Present time, in seconds of the run.
        passed_s: Seconds since the last call.
    """
    for handle in run.handles.values():
        if handle.life.is_gone:
            continue
        if handle.spec.is_attached:
            limit_s = run.plan.timeouts.profile_s
            if handle.is_guest and not handle.permits.only_waits and handle.profile.take(handle.iteration, passed_s) > limit_s:
                problem = f"an iteration in which it is measured has not ended after {limit_s:.0f} s"
                yield handle, JobEnd("failed", "profile", problem)
            continue
        for since_s, phase in _busy_since(handle):
            limit_s = _deadline_s(run, handle, phase)
            if now_s - since_s <= limit_s:
                continue
            what = f"its {phase}" if phase else "what it does between its phases"
            problem = f"{what} hangs: it has not ended after {limit_s:.0f} s"
            again = handle.job is not None  # a profile that hangs is not repeated: it holds nodes for an hour
            yield handle, JobEnd("died" if again else "failed", phase or "step", problem)
            break


def _deadline_s(run: RunState, handle: JobHandle, phase: HoldName | None) -> float:
    """Return the longest time for a phase, or for the work between two phases, in seconds."""
    timeouts, job = run.plan.timeouts, handle.job
    if not handle.processes.had_contact:
        return max(timeouts.least_s, _STARTS_S)
    if job is None or handle.iteration == PROFILE:
        return timeouts.profile_s
    phases: dict[str, Any] = job.phases(handle.place.shape)._asdict()
    worst_s = {pool: phase.worst_case_s + phase.switch.warm_s + phase.switch.cold_s for pool, phase in phases.items()}
    own_s: float = worst_s[phase] if phase else sum(worst_s.values()) + job.sync_s + handle.checkpoints.seconds
    return max(timeouts.least_s, timeouts.times * own_s)


def _busy_since(handle: JobHandle) -> list[tuple[float, HoldName | None]]:
    """Return the times since which a job has had no reason to wait, each with its phase. An asynchronous job may have two."""
    if handle.spec.is_asynchronous and handle.iteration != PROFILE and handle.processes.had_contact:
        running = [(hold.ready_s, phase) for phase, hold in handle.permits.holds.items() if hold.ready_s]
        if running or any(not waits.done() for waits in handle.permits.futures.values()):
            return [*running]
    return [] if handle.permits.busy_since_s is None else [(handle.permits.busy_since_s, handle.permits.phase)]
