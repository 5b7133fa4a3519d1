"""Records of a job: its place, the tail of its rollout, its profile, its checkpoints, its end, its processes, its residency.

The fields of a record are changed only by its own methods.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.view import ALL_NODES, HoldName
from runtime.checkpoints import ResumePoint, drop_above, newest
from runtime.coordinator.profiles import PhaseProfile, Profile
from runtime.jobside.messages import MOST_WARNINGS, Checkpoint, IterationOrder, IterationResult, JobEnd, Nodes, PhaseReport
from runtime.machine import Node, Pool, lacked_core
from runtime.residency.choice import OffloadLevels
from runtime.standstill import PATIENCE

PROFILE = -1  # number in place of an iteration's, for a phase of a profile


@dataclass
class IterationCounts:
    """The iterations of a job.

    Attributes:
        iteration: Number of the iteration in progress, or of the next one; `PROFILE` in a profile.
        begins: Number of the iteration with which its place begins.
        done: Largest number of iterations that it has ever completed.
        recent: Metrics of its last iterations.
    """

    iteration: int = 0
    begins: int = 0
    done: int = 0
    recent: list[Mapping[str, float]] = field(default_factory=list)

    def begin(self, iteration: int) -> None:
        """Set the next iteration."""
        self.iteration = iteration

    def add(self, metrics: Mapping[str, float]) -> bool:
        """Count a completed iteration, and return whether this is the largest number ever completed."""
        self.iteration += 1
        self.recent = [*self.recent[-PATIENCE:], metrics]
        is_most = self.iteration > self.done
        self.done = max(self.done, self.iteration)
        return is_most

    def begin_place(self) -> None:
        """Let the job's place begin with the next iteration."""
        self.begins = self.iteration

    def go_back(self, number: int) -> None:
        """Set the job back to fewer completed iterations."""
        self.iteration, self.begins = number, min(self.begins, number)

    def restore_done(self, done: int) -> None:
        """Restore the number of completed iterations from a journal."""
        self.done = done

    def resume(self, begins: int) -> None:
        """Let the job and its place continue with an iteration."""
        self.iteration = self.begins = begins


@dataclass
class JobPlacement:
    """The place of a job.

    Attributes:
        group: Number of its group, `PROFILING_GROUP`, or None if it has no place.
        numbers: Numbers of its nodes within the group, by phase.
        nodes: Nodes by phase; without a place, those that it had last.
        names: Names of these nodes.
        shape: Number of the shape in which it runs there.
        leaving: Whether it leaves as soon as a checkpoint is written.
        awaits_owner: Whether an attached job asks for no place until its owner attaches.
    """

    group: int | None = None
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: Nodes = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    shape: int = 0
    leaving: bool = False
    awaits_owner: bool = False

    def assign(self, seating: Seating, shape: int) -> None:
        """Set the place, and the shape in which the job runs there."""
        self.group, self.shape, self.leaving = seating.group, shape, False
        self.numbers = {"rollout": seating.rollout, "training": seating.training}
        self.nodes = {"rollout": seating.rollout_nodes, "training": seating.training_nodes}  # type: ignore[dict-item]
        self.names = frozenset(node.name for nodes in self.nodes.values() for node in nodes)

    def nodes_of(self, phase: HoldName) -> tuple[Node, ...]:
        """Return the nodes that a phase, or a sync, holds."""
        if phase in ALL_NODES:
            return tuple(dict.fromkeys(node for nodes in self.nodes.values() for node in nodes))
        return self.nodes[phase]  # type: ignore[index]

    def pool_of(self, phase: HoldName) -> Pool:
        """Return the pool whose nodes a phase holds.

        Rollouts of a co-located job hold training nodes. A phase that holds all nodes counts as a training.
        """
        return self.nodes["training" if phase in ALL_NODES else phase][0].pool  # type: ignore[index]

    def clear(self) -> None:
        """Clear the place."""
        self.group, self.leaving = None, False

    def set_leaving(self, leaves: bool) -> None:
        """Set whether the job leaves its place as soon as its next checkpoint is written."""
        self.leaving = leaves

    def set_awaits_owner(self, awaits: bool) -> None:
        """Set whether the job asks for no place until its owner attaches."""
        self.awaits_owner = awaits


@dataclass
class RolloutProgress:
    """The progress of a job's rollout, and the parts of its nodes that it uses.

    Attributes:
        parts: Parts into which the rollout's nodes are divided, if some of them are enough.
        used_parts: Numbers of the parts that the rollout must use.
        reported_parts: Numbers of the parts that were last reported to the rollout.
        past_threshold: Whether the rollout has reached the threshold of migration.
        wake: Number of finished responses at which the rollout stops to ask its rollout policy, or None.
        progress: Finished responses, all responses and tokens, by the process that counts them.
    """

    parts: tuple[Node, ...] = ()
    used_parts: tuple[int, ...] = ()
    reported_parts: tuple[int, ...] = ()
    past_threshold: bool = False
    wake: int | None = None
    progress: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def is_woken(self) -> bool:
        """Whether enough responses have finished for the rollout to stop."""
        return self.wake is not None and total_progress(self.progress)[0] >= self.wake

    def set_parts(self, parts: tuple[Node, ...]) -> None:
        """Set the parts of the nodes of the next rollout."""
        self.parts = parts

    def begin(self, parts: tuple[int, ...]) -> None:
        """Begin a phase; for a rollout, with the numbers of the parts that it uses."""
        self.progress, self.past_threshold = {}, False
        self.used_parts = self.reported_parts = parts

    def set_used_parts(self, parts: tuple[int, ...]) -> None:
        """Set the parts that the rollout must use from now on."""
        self.used_parts = parts

    def report_parts(self) -> tuple[int, ...]:
        """Return the parts that the rollout must use, and note that it knows them."""
        self.reported_parts = self.used_parts
        return self.used_parts

    def count(self, who: str, done: int, total: int, tokens: int) -> tuple[int, int]:
        """Record the counts of a process, and return finished responses and all responses over all processes.

        Args:
            who: Name of the process.
            done: Number of finished responses.
            total: Number of responses.
            tokens: Number of tokens.
        """
        self.progress[who] = (done, total, tokens)
        return total_progress(self.progress)[:2]

    def pass_threshold(self) -> None:
        """Record that the rollout has reached the threshold of migration."""
        self.past_threshold = True

    def wake_at(self, responses: int | None) -> None:
        """Let the rollout stop when a number of responses have finished."""
        self.wake = responses


@dataclass
class ProfilePass:
    """The measurement of a job.

    Attributes:
        passes: Number of passes that remain.
        over: Event that its passes, or the job, are over.
        measurements: Measurements of its phases.
        sync_s: Seconds of its sync.
        own_s: Seconds of an iteration between its phases.
        movable: Whether it can continue in another place.
        has_checkpoints: Whether it has checkpoints, and so can be parked.
        without_core: Phases that waited for cores when they were last measured.
        repeats: Whether they have been measured again.
        loads_first: Whether no engine like its own has been loaded here before.
        asks: Whether an attached job has asked for nodes for its first iterations, which are measured.
        longest_s: Longest seconds of each phase in these iterations, by name.
        counted: Number of the one of these iterations whose time is counted.
        taken_s: Seconds of that iteration so far, without waits for permits.
    """

    passes: int = 0
    over: asyncio.Event | None = None
    measurements: dict[str, PhaseProfile] = field(default_factory=dict)
    sync_s: float = 0.0
    own_s: float = 0.0
    movable: bool = True
    has_checkpoints: bool = False
    without_core: set[Pool] = field(default_factory=set)
    repeats: bool = False
    loads_first: bool = False
    asks: bool = False
    longest_s: dict[str, float] = field(default_factory=dict)
    counted: int = 0
    taken_s: float = 0.0

    def begin(self, passes: int) -> asyncio.Event:
        """Begin a number of passes, and return the event that they are over."""
        self.over, self.passes = asyncio.Event(), passes
        return self.over

    def end(self) -> None:
        """End the wait for the job's passes."""
        if self.over is not None:
            self.over.set()

    def count(self) -> int:
        """Count a completed pass, and return the number of those that remain."""
        self.passes -= 1
        return self.passes

    def record_phase(self, phase: str, seconds: float) -> None:
        """Record the seconds of a phase of a job whose first iterations are measured."""
        self.longest_s[phase] = max(self.longest_s.get(phase, 0.0), seconds)

    def take(self, iteration: int, seconds: float) -> float:
        """Count seconds of an iteration of an attached job, and return those so far.

        Args:
            iteration: Number of the iteration.
            seconds: Seconds in which the job did not wait for a permit.
        """
        if iteration != self.counted:
            self.counted, self.taken_s = iteration, 0.0
        self.taken_s += seconds
        return self.taken_s

    def synced(self, seconds: float) -> None:
        """Record the seconds of a pass's sync."""
        self.sync_s = seconds

    def repeat(self) -> bool:
        """Begin one more pass if a phase had no core in the last one, and return whether it does. There is only one such pass."""
        if self.repeats or not self.without_core:
            return False
        self.repeats, self.passes = True, 1
        return True

    def record_pass(self, done: IterationResult) -> None:
        """Record what a completed pass says about the job."""
        self.movable, self.has_checkpoints = done.movable, done.has_checkpoints

    def set_loads_first(self, loads_first: bool) -> None:
        """Set whether no engine like the job's own has been loaded here before."""
        self.loads_first = loads_first

    def ask(self) -> None:
        """Record that an attached job asks for nodes for its first iterations."""
        self.asks = True

    def measure(self, pool: Pool, report: PhaseReport) -> None:
        """Record the measurements of a completed phase. In a repeated pass, only those of phases that had no core count."""
        seconds, cold_s = report.done_s - report.run_s, report.run_s - report.begun_s
        provisional = self.loads_first or lacked_core(report.load_wait_s, cold_s)
        self.own_s = report.own_s
        if self.repeats:
            if pool not in self.without_core:
                return
            former = self.measurements[pool]
            cold_s, provisional = former.cold_s, former.provisional
        if not lacked_core(report.core_wait_s, seconds):
            self.without_core.discard(pool)
        elif self.repeats:
            seconds -= min(seconds, report.core_wait_s)
        else:
            self.without_core.add(pool)
        self.measurements[pool] = PhaseProfile(
            seconds=seconds,
            warm_s=report.warm_s,
            cold_s=cold_s,
            host_gb=report.host_gb,
            device_gb=report.device_gb,
            waits=report.waits,
            provisional=provisional,
        )

    def result(self) -> Profile | None:
        """Return the job's profile, or None if one of its phases has not been measured."""
        if self.measurements.keys() != {"rollout", "training"}:
            return None
        return Profile(
            rollout=self.measurements["rollout"],
            training=self.measurements["training"],
            sync_s=self.own_s + self.sync_s,  # where in an iteration these are does not change its length
            movable=self.movable,
            has_checkpoints=self.has_checkpoints,
        )


@dataclass
class JobCheckpoints:
    """The checkpoints of a job.

    Attributes:
        last: Folder of the last one, or None.
        recorded: Numbers of iterations of those in the journal.
        seconds: Seconds to write the last one.
        disk_problem: The system's message if there is no room for the next one, or None.
    """

    last: str | None = None
    recorded: set[int] = field(default_factory=set)
    seconds: float = 0.0
    disk_problem: str | None = None

    def add(self, checkpoint: Checkpoint) -> bool:
        """Record a written checkpoint, and return whether there was no room for it before."""
        was_full, self.disk_problem = self.disk_problem is not None, None
        self.last, self.seconds = checkpoint.folder, checkpoint.seconds
        self.recorded.add(checkpoint.iterations)
        return was_full

    def record_full_disk(self, problem: str) -> None:
        """Record that there is no room for a checkpoint."""
        self.disk_problem = problem

    def restore_recorded(self, recorded: set[int], seconds: float) -> None:
        """Restore the numbers of iterations of the checkpoints in a journal, and the seconds to write the last one."""
        self.recorded, self.seconds = recorded, seconds

    def go_back(self, folder: Path, most: int) -> ResumePoint:
        """Set the newest intact checkpoint in the journal as the last one, remove later ones, and return it.

        Args:
            folder: Folder of the job's checkpoints.
            most: Largest number of iterations of the checkpoint.
        """
        resume = newest(folder, most, self.recorded)
        drop_above(folder, resume.iterations)
        self.recorded = {iterations for iterations in self.recorded if iterations <= resume.iterations}
        self.last = None if resume.folder is None else str(resume.folder)
        return resume


@dataclass
class JobEnding:
    """The end of a job's processes.

    Attributes:
        why: Reason why they are being ended, or None if they are not.
        restarts: Whether the job is restarted then.
        cleared: Event that they have ended.
        halted: Whether the job ended with the run, and continues with it.
        over_budget: Whether the job ends when its checkpoint is written.
        deaths: Number of deaths since the job last completed a new iteration.
        restarted: Reason of the last restart, or "".
    """

    why: JobEnd | None = None
    restarts: bool = False
    cleared: asyncio.Event = field(default_factory=asyncio.Event)
    halted: bool = False
    over_budget: bool = False
    deaths: int = 0
    restarted: str = ""

    @property
    def reason(self) -> str:
        """The reason why the processes end, in words."""
        return self.why.problem or self.why.outcome if self.why else "it is over"

    def begin(self, why: JobEnd, again: bool) -> None:
        """Begin to end the processes, after which the job is restarted (`again`) or ends."""
        self.why, self.restarts = why, again

    def clear(self) -> None:
        """Record that the processes have ended."""
        self.cleared.set()

    def halt(self) -> None:
        """Record that the job ends with the run, and continues with it."""
        self.halted = True

    def set_over_budget(self, is_spent: bool) -> bool:
        """Set whether the job's budget is exhausted, and return that. The job then ends when its checkpoint is written."""
        self.over_budget = is_spent
        return is_spent

    def reset_deaths(self) -> None:
        """Reset the count of deaths, since the job has completed a new iteration."""
        self.deaths = 0


@dataclass
class JobProcesses:
    """The processes of a job.

    Attributes:
        controller: Handle of the started controller, or what the backend returned for it; None without processes.
        workers: Handles of the other processes.
        had_contact: Whether the controller has asked for an order.
        is_state_kept: Whether the processes have kept the job's state on its nodes since its profile.
        order: Future of the order for which the controller waits, or None.
        ready: The order for which the controller has not asked yet, if there is one.
        warnings: Warnings that they have given.
        processes: Process id and start time of started processes, by Ray node.
    """

    controller: Any = None
    workers: list[Any] = field(default_factory=list)
    had_contact: bool = False
    is_state_kept: bool = False
    order: asyncio.Future[IterationOrder | None] | None = None
    ready: tuple[IterationOrder | None, ...] = ()
    warnings: set[str] = field(default_factory=set)
    processes: dict[str, set[tuple[int, int]]] = field(default_factory=dict)

    def begin(self, controller: Any) -> None:
        """Record that processes are started."""
        self.controller, self.had_contact, self.is_state_kept = controller, False, False

    def add(self, worker: Any) -> None:
        """Record another process."""
        self.workers.append(worker)

    def note_process(self, machine: str, pid: int, start: int) -> None:
        """Record a process.

        Args:
            machine: Id of the Ray node.
            pid: Process id.
            start: Start time, in clock ticks since the machine's boot.
        """
        self.processes.setdefault(machine, set()).add((pid, start))

    def record_contact(self) -> None:
        """Record that the controller, or the owner, has asked for something."""
        self.had_contact = True

    def set_state_kept(self, is_kept: bool) -> None:
        """Record, after a profile, whether the processes have the job's state."""
        self.is_state_kept = is_kept

    def end(self) -> None:
        """Record that there are no processes any more."""
        self.controller, self.workers = None, []

    def send_order(self, order: IterationOrder | None) -> None:
        """Answer the controller's request between iterations with an order, or with None if the job is done."""
        if self.order is None or self.order.done():
            self.ready = (order,)
        else:
            self.order.set_result(order)

    async def next_order(self) -> IterationOrder | None:
        """Wait for the next order."""
        if not self.ready:
            self.order = asyncio.get_running_loop().create_future()
            return await self.order
        (order,), self.ready = self.ready, ()
        return order

    def warn(self, text: str) -> bool:
        """Record a warning, and return whether it is new and must be printed."""
        if text in self.warnings or len(self.warnings) >= MOST_WARNINGS:
            return False
        self.warnings.add(text)
        return True


@dataclass
class ResidentState:
    """The state of a job on its nodes between phases.

    Attributes:
        levels: Ways in which its state may wait, by pool.
        to_leave: Pools on whose nodes its state must no longer stay.
        excess: Line about memory beyond what the job has stated, or "".
    """

    levels: dict[Pool, OffloadLevels] = field(default_factory=dict)
    to_leave: set[Pool] = field(default_factory=set)
    excess: str = ""

    def set_levels(self, waits: Mapping[Pool, OffloadLevels]) -> None:
        """Set the ways in which the job's state may wait."""
        self.levels = dict(waits)

    def record_kept(self, pool: Pool, host_gb: float, device_gb: float) -> None:
        """Record that a phase's state has stayed; if it takes more memory than known, that replaces the known amount."""
        self.to_leave.discard(pool)  # the request preceded the present decision
        stay = self.levels[pool].levels[0]
        more = replace(stay, host_gb=max(stay.host_gb, host_gb), device_gb=max(stay.device_gb, device_gb))
        self.levels[pool] = replace(self.levels[pool], levels=(more, *self.levels[pool].levels[1:]))

    def forget_peak(self, pool: Pool) -> None:
        """Record that a phase ran out of a GPU's memory: its peak is unknown from now on."""
        if pool in self.levels:
            self.levels[pool] = replace(self.levels[pool], peak_gb=0.0)

    def ask_to_leave(self, pool: Pool) -> None:
        """Record that a phase's state must leave its nodes."""
        self.to_leave.add(pool)

    def record_left(self, pool: Pool) -> None:
        """Record that a phase's state has left its nodes."""
        self.to_leave.discard(pool)

    def set_excess(self, why: str) -> None:
        """Record that the job uses more memory than it has stated."""
        self.excess = why


def total_progress(progress: Mapping[str, tuple[int, int, int]]) -> tuple[int, int, int]:
    """Return finished responses, all responses and tokens of a phase, from the counts of its processes."""
    counts = progress.values()
    return (
        sum(done for done, _, _ in counts),
        max((total for _, total, _ in counts), default=0),
        sum(tokens for _, _, tokens in counts),
    )


class BroadcastCondition:
    """A condition that wakes all waiters at once. A waiter checks what it waits for, and may wait again."""

    def __init__(self) -> None:
        self._rings: asyncio.Event | None = None  # None while nothing waits

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it rings.

        Args:
            timeout_s: Longest wait in seconds, or None for no limit.
        """
        rings = self._rings = self._rings or asyncio.Event()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(rings.wait(), None if timeout_s is None else max(0.0, timeout_s))

    def notify_all(self) -> None:
        """Wake all waiters."""
        if self._rings is not None:
            self._rings.set()
            self._rings = None
