"""The state of a run, and what it decides. Nothing here uses a clock, a task, the journal or a process.

A transition is a function of this package that takes a `RunState`, the time and what has happened. It changes records of jobs, and
returns `Consequences`. `RunLoop.apply` passes them to `RunState.step`, writes the entries, and then carries out the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from policies.dispatch import make_dispatch
from policies.registry import make_runnable
from rollmux_env.cluster.events import Admitted, Moved, Reprofiled
from rollmux_env.cluster.state import State
from rollmux_env.scheduler import commands, facts
from rollmux_env.scheduler.commands import Command
from rollmux_env.scheduler.core import Entry, Scheduler
from rollmux_env.scheduler.nodes import NodePool
from rollmux_env.scheduler.view import HoldName
from runtime.checkpoints import CHECKPOINTS
from runtime.coordinator.capacity import Capacity
from runtime.coordinator.consequences import Consequences, Errand
from runtime.coordinator.decision_lines import measured_again, profile_lines, reason_to_wait
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.residents import Residents
from runtime.coordinator.run_plan import RunPlan
from runtime.jobside.messages import JobEnd
from runtime.journal.facts import DrainPlanned, Fact, SchedulerInformed
from runtime.journal.record import ColdStarts
from runtime.machine import Pool


class Step(NamedTuple):
    """Decisions of a run at one instant.

    Attributes:
        entries: Journal entries, which are written first.
        lines: Lines for the user.
        commands: Commands of the scheduler, for `RunState.carry_out`.
        errands: Tasks for `JobLifecycle`, after the commands.
    """

    entries: tuple[Fact, ...]
    lines: tuple[str, ...]
    commands: tuple[Command, ...]
    errands: tuple[Errand, ...]


class RunState:
    """The state of a run: its scheduler, its jobs and its nodes.

    Args:
        plan: Plan of the run.
        state: State of the cluster when the run begins.
        nodes: Nodes of the cluster when the run begins.
        keeps_running: Whether the run continues when all of its jobs have ended. Jobs that take longer than their profile then get
            a new one, and jobs that break their SLO a better place, as always in a run with shapes.

    Attributes:
        scheduler: Scheduler of the run.
        handles: Jobs of the run, by id.
        cold_starts: Record of the provisional cold starts of jobs.
        drain_plans: Plans to drain nodes, by name of the node. One with a deadline stays until its node is used again.
        capacity: Nodes of the run, and the check whether jobs fit on them.
        residents: Jobs whose state stays on their nodes.
        stopping: Whether the run stops.
        coming: Number of jobs that have neither arrived at the policy nor been given up.
    """

    def __init__(self, plan: RunPlan, state: State, nodes: NodePool, keeps_running: bool) -> None:
        def make_policy() -> Any:
            return make_runnable(plan.policy, plan.seed)

        self.plan, self.nodes, self.keeps_running = plan, nodes, keeps_running
        dispatch = make_dispatch(plan.dispatch)
        watches = keeps_running or any(spec.shapes for spec in plan.specs)
        self.scheduler = Scheduler(state, make_policy(), dispatch, nodes, make_policy if watches else None)
        self.handles = {spec.id: JobHandle(spec) for spec in plan.specs}
        self.cold_starts = ColdStarts()
        self.drain_plans: dict[str, DrainPlanned] = {}
        self.capacity = Capacity(plan, nodes, state)
        self.residents = Residents(self.handles, plan.cluster, plan.leave)
        self._make_policy = make_policy
        self._reasons = self.scheduler.server.why = dict[str, str]()  # of places, until they are announced
        self.stopping = False
        self.coming = 0

    def step(self, now_s: float, happened: Consequences, asks: bool = False, wakes: bool = False) -> Step:
        """Let the scheduler decide about what has happened.

        Args:
            now_s: Present time, in seconds of the run.
            happened: Facts of this instant, with their journal entries and lines.
            asks: Whether the scheduler is asked even if there are no facts for it.
            wakes: Whether the policy asked for this instant, which is then recorded even if nothing follows.
        """
        entries, lines, ordered = [*happened.entries], [*happened.lines], list[Command]()
        reports, asks = happened.reports, asks or wakes
        while reports or asks:
            stopped, decided = self.scheduler.members.stopped, self.scheduler.step(now_s, reports)
            permits = tuple((one.job_id, one.phase) for one in decided.commands if isinstance(one, commands.Grant))
            if reports or wakes or any(decided):
                entries.append(SchedulerInformed(now_s, reports, permits, stopped))
            entries += decided.entries
            ordered += decided.commands
            for entry in decided.entries:
                lines += self._announce(entry)
            admitted = [entry.job_id for entry in decided.entries if isinstance(entry, Admitted)]
            resuming = [job_id for job_id in admitted if self.scheduler.state.is_paused(job_id)]
            reports = tuple(map(facts.PauseEnded, resuming))  # the first iteration after a park takes longer instead
            asks = wakes = False
        return Step(tuple(entries), tuple(lines), tuple(ordered), happened.errands)

    def _announce(self, entry: Entry) -> Iterator[str]:
        """Give a job its new profile, and yield lines for the user about an entry of the scheduler."""
        if isinstance(entry, Admitted | Moved):
            group = self.scheduler.state.group_of(entry.job_id)
            why = self._reasons.pop(entry.job_id, "")
            words = f"; {why}{measured_again(self.cold_starts.describe(entry.job_id))}" if why else ""
            yield f"{entry.job_id}: {entry.placement.strategy.replace('_', ' ')}, group {group.id}{words}"
        elif isinstance(entry, Reprofiled):
            handle, job = self.handles[entry.job.id], entry.job
            former = handle.job
            handle.set_job(job)
            yield from (f"{job.id}: {line}" for line in profile_lines(former, job))

    def carry_out(self, command: Command, now_s: float) -> Consequences:
        """Apply a command of the scheduler to its job.

        Args:
            command: The command.
            now_s: Present time, in seconds of the run.
        """
        handle = self.handles[command.job_id]
        match command:
            case commands.StartJob(_, seating):
                return self._place(handle, seating, now_s)
            case commands.Lend(_, seating):
                handle.lend(seating)
                return self.order(handle, now_s)
            case commands.Grant():
                self._grant(handle, command, now_s)
            case commands.Shrink(_, parts) | commands.Grow(_, parts):
                handle.rollout_progress.set_used_parts(parts)
                handle.changed.notify_all()
            case commands.Vacate():
                handle.life.follow("moves")
            case commands.YieldPlace():
                handle.life.follow("yields")
                other = self.scheduler.planner.parking.get(handle.id)
                line = f"{handle.id}: is parked at the end of its iteration" + (f", for {other}" if other else "")
                return Consequences(lines=(line,))
            case commands.Evict():
                return self._evict(handle)
            case commands.KeepWaiting():
                why = reason_to_wait(self.scheduler, self._make_policy, handle.id)
                words = f"{why}{measured_again(self.cold_starts.describe(handle.id))}"
                return Consequences(lines=(f"{handle.id}: waits for nodes: {words}",))
            case commands.AtRisk(_, slowdown, moved):
                job = self.scheduler.state.job(handle.id)
                risk = f"{handle.id}: its SLO is at risk: {slowdown:.2f} times its solo time recently, {job.slo:g} at most"
                return Consequences(lines=(risk if moved else f"{risk}; there is no better place for it now",))
        return Consequences()

    def _place(self, handle: JobHandle, seating: commands.Seating, now_s: float) -> Consequences:
        handle.permits.set_iteration_from(now_s)
        if handle.place.nodes != {"rollout": seating.rollout_nodes, "training": seating.training_nodes}:
            self.on_processes_ended(handle, now_s)
        handle.take_place(seating, self.scheduler.state.shape(handle.id))
        return self.order(handle, now_s)

    def _grant(self, handle: JobHandle, grant: commands.Grant, now_s: float) -> None:
        handle.permits.grant(grant, now_s, handle.iteration)
        if grant.phase == "rollout" or not handle.spec.is_asynchronous:
            handle.rollout_progress.begin(grant.parts)
        self.admit(handle, grant.phase, now_s)

    def admit(self, handle: JobHandle, phase: HoldName, now_s: float) -> None:
        """Pass a granted permit on to a job that waits for it, if there is room for its state on the nodes."""
        if self.residents.admit(handle, phase):
            handle.permits.admit(phase, now_s)

    def on_state_left(self, handle: JobHandle, pool: Pool, now_s: float) -> None:
        """Note that a job's state has left the devices of its nodes; other jobs may have waited for that."""
        self.residents.remove_state(handle, (pool,))
        self._admit_held_back(now_s)

    def on_processes_ended(self, handle: JobHandle, now_s: float) -> None:
        """Note that a job has nothing left on its nodes, because its processes have ended or have moved."""
        self.residents.forget(handle)
        self._admit_held_back(now_s)

    def _admit_held_back(self, now_s: float) -> None:
        for other, phase in self.residents.held_back():
            self.admit(other, phase, now_s)

    def order(self, handle: JobHandle, now_s: float) -> Consequences:
        """Order a job's next iteration; its processes are started if it has none."""
        errands = (Errand(handle, ends=False),) if handle.is_at_rest else ()
        handle.send_order(handle.make_order(str(self.checkpoints(handle.id))), now_s)
        return Consequences(errands=errands)

    def _evict(self, handle: JobHandle) -> Consequences:
        """End a job's processes, after which it ends or is restarted."""
        if handle.life.is_gone:  # the job was refused
            return Consequences()
        if handle.ending.why is None:
            absent = self.capacity.absent(handle.place.names)
            why = f"its node {absent[0]} has gone" if absent else "it is to move, but has workers and no checkpoint"
            handle.begin_end(JobEnd("died", "step", why), again=True)
        return Consequences(errands=(Errand(handle, ends=True),))

    def checkpoints(self, job_id: str) -> Path:
        """Return the folder of a job's checkpoints."""
        return Path(self.plan.folder) / CHECKPOINTS / job_id

    def must_leave(self, handle: JobHandle) -> bool:
        """Return whether a job must leave its place at the end of its iteration."""
        return handle.life.is_moving or handle.life.is_yielding or self.scheduler.must_vacate(handle.id)

    def has_seat(self, handle: JobHandle) -> bool:
        """Return whether a job has a seat. Messages then come from its present processes, not from earlier ones."""
        return not handle.life.is_gone and handle.id in self.scheduler.members.seats
