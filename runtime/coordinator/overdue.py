"""Phases that hold their nodes for longer than their worst case; jobs that wait for these nodes are informed of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rollmux_env.report.job_shapes import shape_in_use
from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_state import RunState
from runtime.machines.nodes import POOLS

SLACK_S = 1.0  # allowance for commits and for messages to the owner


class Overdue(NamedTuple):
    """A phase that is over its worst case.

    Attributes:
        job_id: Id of the job that has the permit.
        phase: Name of the phase, `init` and `sync` included.
        nodes: Names of the nodes that it holds.
        held_s: Time since its permit, seconds.
        worst_case_s: Seconds by which the phase is planned.
    """

    job_id: str
    phase: HoldName
    nodes: tuple[str, ...]
    held_s: float
    worst_case_s: float

    @property
    def description(self) -> str:
        """A line about the phase."""
        names = " ".join(self.nodes)
        return f"its {self.phase} has held {names} for {self.held_s:.0f} s; its worst case is {self.worst_case_s:.4g} s"


def overdue_phases(run: RunState, handle: JobHandle) -> Iterator[Overdue]:
    """Yield the phases of a job that are over their worst case now."""
    now_s = run.log.now()
    for phase, hold in handle.permits.holds.items():
        worst_s = worst_case_s(run, handle, phase)
        if worst_s is not None and now_s - hold.start_s > worst_s + SLACK_S:
            names = tuple(sorted(node.name for node in handle.place.nodes_of(phase)))
            yield Overdue(handle.id, phase, names, now_s - hold.start_s, worst_s)


def worst_case_s(run: RunState, handle: JobHandle, phase: HoldName) -> float | None:
    """Return the planned seconds of a phase of a placed job, cold starts included, or None if unknown."""
    state = run.scheduler.state
    if not (state.knows(handle.id) and state.is_running(handle.id)) or handle.is_guest:
        return None
    job, shape = state.job(handle.id), state.shape(handle.id)
    parts = dict(zip(POOLS, job.phases(shape), strict=True))
    cold_s = {pool: part.switch.cold_s for pool, part in parts.items()}
    if phase == "init":
        planned_s = sum(cold_s.values())
    elif phase == "sync":
        planned_s = job.sync_s
    else:
        planned_s = shape_in_use(job, shape, state.group_of(handle.id).training_nodes or None).worst_case_s[phase] + cold_s[phase]
    return planned_s or None
