"""A job as the coordinator of a run knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rollmux_env.cluster.events import Progress
from rollmux_env.job_keys import Job
from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.members import HoldName
from runtime.execution.bell import Bell
from runtime.execution.messages import End, Nodes, Order, Report
from runtime.execution.profiles import Measured
from runtime.facts import Node, PhaseSlice, Pool, Span
from runtime.jobs.shapes import nodes_in
from runtime.jobs.spec import JobSpec
from runtime.residency.choice import Waits

PROFILE = -1  # in place of an iteration's number


class Asked(NamedTuple):
    """A permit that a job wants.

    Attributes:
        at_s: since when. iteration: number of that which the phase belongs to.
    """

    at_s: float
    iteration: int


@dataclass
class Hold:
    """A permit in a job's hands.

    Attributes:
        pool: the phase, as its nodes' pool; `sync` where it is for all nodes of the job.
        iteration: number of that which the phase belongs to; rollouts may be ahead of trainings.
        since_s: when the job could begin: `start_s`, or when others had made room for it.
    """

    pool: HoldName
    asked_s: float
    start_s: float
    switched: bool
    paired: bool  # another one was given at the same time
    iteration: int = 0
    since_s: float = 0.0


@dataclass(eq=False)
class JobHandle:
    """What the coordinator knows of a job, and how it talks to it.

    Attributes:
        spec: as it was submitted. job: as the policy sees it; None until it is profiled. controller, workers: its processes.
        has_come: the controller has asked for an order. alive: its processes have its state, on `nodes`, since its profile.
        group: the number of its group, or `LEASE`; None where it has no place. numbers, nodes: of its place, by phase. shape: in
            which it runs there.
        iteration: the one in hand, or the next. begins: the one that its place begins with. done: the most that it ever had done.
        checkpoint: the last one. recorded: iterations of those that the journal knows. keeping_s: how long writing the last one
            took. leaving: it writes one before it leaves its place. deaths: since it had done as many. restarted: why it is made
            anew. busy_s: node-seconds of its phases, by pool.
        since_s: it has had no need to wait since; None while it waits. began_s: when the rollouts of iterations that are not over
            were ready, by number. follows_s: when the iteration before the one in hand was over, or it got its place since.
        holds: its permits, by phase: one, or where rollouts are ahead one a side. asks: those that it has asked for and not had.
        permits, next: the permits, by phase, and the order that it waits for. A permit that names pools is none: the job is first
            to leave what it has on their nodes.
        pauses: its rollouts wait with what comes next, since it is to leave its place.
        parts: what its rollout nodes are cut into, of a job that can do with a part of them. uses: numbers of those that its
            rollout is to use; knows: of those that it knows of. past_threshold: its rollout has reached that of migration.
            wake: finished responses at which its rollout stops, to ask its rollout policy; None: at none.
        changed: rings when its place, its lease, a phase or these parts have changed. progress: of the phase, by who counts.
        warnings: that its processes have told the user.
        interrupted: the iteration in hand has waited for room on a disk. full: its checkpoint finds none; what the system says.
        waits: how its state may wait between phases, by pool. to_leave: pools on whose nodes its state is no longer to stay.
        passes: of the profiler, that it still has to make. profile_over: they are over, or it has ended. measurements, sync_s,
            own_s, movable: what they have shown. without_core: phases that had no core when they were last measured; repeats: that
            has been measured once more.
        loads_first: no engine like its own has been loaded here before.
        end: why its processes are being ended, if they are. again: whether it is then made anew. cleared: they have ended.
        resting: its processes are ending, since it waits for a place. moving: it is to go to another place. over_budget: it ends
            when its checkpoint is written. gone: it has come to its end, or another handle stands for it.
        parks: of an attached job: it asks for no place until its owner comes.
        asks_profile: of one whose first iterations are measured: it has asked for nodes. longest_s: of its phases then, by name.
        exceeds: it keeps more than it has stated; how much.
    """

    spec: JobSpec
    controller: Any = None
    has_come: bool = False
    alive: bool = False
    job: Job | None = None
    group: int | None = None
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: Nodes = field(default_factory=dict)
    shape: int = 0
    iteration: int = 0
    begins: int = 0
    done: int = 0
    checkpoint: str | None = None
    recorded: set[int] = field(default_factory=set)
    keeping_s: float = 0.0
    leaving: bool = False
    deaths: int = 0
    restarted: str = ""
    busy_s: dict[str, float] = field(default_factory=lambda: {"rollout": 0.0, "training": 0.0})
    since_s: float | None = None
    began_s: dict[int, float] = field(default_factory=dict)
    follows_s: float = 0.0
    holds: dict[HoldName, Hold] = field(default_factory=dict)
    asks: dict[HoldName, Asked] = field(default_factory=dict)
    permits: dict[HoldName, asyncio.Future[tuple[Pool, ...]]] = field(default_factory=dict)
    pauses: bool = False
    next: asyncio.Future[Order | None] | None = None
    parts: tuple[Node, ...] = ()
    uses: tuple[int, ...] = ()
    knows: tuple[int, ...] = ()
    past_threshold: bool = False
    wake: int | None = None
    changed: Bell = field(default_factory=Bell)
    progress: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    workers: list[Any] = field(default_factory=list)
    warnings: set[str] = field(default_factory=set)
    interrupted: bool = False
    full: str | None = None
    waits: dict[Pool, Waits] = field(default_factory=dict)
    to_leave: set[Pool] = field(default_factory=set)
    passes: int = 0
    profile_over: asyncio.Future[None] | None = None
    measurements: dict[str, Measured] = field(default_factory=dict)
    sync_s: float = 0.0
    own_s: float = 0.0
    movable: bool = True
    without_core: set[Pool] = field(default_factory=set)
    repeats: bool = False
    loads_first: bool = False
    end: End | None = None
    again: bool = False
    cleared: asyncio.Event = field(default_factory=asyncio.Event)
    resting: bool = False
    moving: bool = False
    over_budget: bool = False
    gone: bool = False
    parks: bool = False
    asks_profile: bool = False
    exceeds: str = ""
    longest_s: dict[str, float] = field(default_factory=dict)

    @property
    def is_guest(self) -> bool:
        """Whether it has a place in which it is profiled."""
        return self.group is not None and (self.iteration == PROFILE or self.job is None)

    @property
    def is_over(self) -> bool:
        """Whether it has done its last iteration; what it does since counts for none (`runtime.execution.solo`)."""
        return self.iteration >= self.spec.iterations and not self.spec.is_attached

    @property
    def phase(self) -> HoldName | None:
        """What it runs; of two phases the one that began last."""
        return next(reversed(self.holds), None)

    @property
    def waits_for_permit(self) -> bool:
        """Whether it has asked for one in vain so far."""
        return any(not waits.done() for waits in self.permits.values())

    @property
    def id(self) -> str:
        """The job's."""
        return self.spec.id

    @property
    def waits_here(self) -> Mapping[Pool, Waits]:
        """`waits`, of those phases that have as many nodes as when they were profiled, or more: on fewer nobody knows it."""
        if not self.shape:
            return self.waits
        own, here = nodes_in(self.spec, 0), nodes_in(self.spec, self.shape)
        return {pool: waits for pool, waits in self.waits.items() if here[pool] >= own[pool]}

    def sit(self, seating: Seating, shape: int = 0) -> None:
        """It has this place, where it runs in a shape."""
        self.shape = shape
        self.group, self.moving, self.leaving, self.pauses = seating.group, False, False, False
        self.numbers = {"rollout": seating.rollout, "training": seating.training}
        self.nodes = {"rollout": seating.rollout_nodes, "training": seating.training_nodes}  # type: ignore[dict-item]
        self.changed.ring()

    def stand(self) -> None:
        """It has no place."""
        self.group, self.moving, self.leaving = None, False, False
        self.give_up()
        self.changed.ring()

    def give_up(self) -> None:
        """It has no permit, and waits for none."""
        self.holds.clear()
        self.asks.clear()

    def tell(self, order: Order | None, now_s: float) -> None:
        """Answer what it waits for between iterations; None: it is done."""
        if self.next is None or self.next.done():
            self.next = asyncio.get_running_loop().create_future()
        self.next.set_result(order)
        self.since_s = now_s

    def order(self, checkpoints: str) -> Order:
        """The iteration that it is to do next; or where it is leaving its place, the checkpoint before that.

        Args:
            checkpoints: folder of the job's.
        """
        return Order(self.iteration, self.iteration == PROFILE, self.nodes, checkpoints, self.checkpoint, self.leaving)

    @property
    def is_woken(self) -> bool:
        """Whether as many responses of its rollout have finished as it stops for."""
        return self.wake is not None and how_far(self.progress)[0] >= self.wake

    def ask_to_leave(self, pools: tuple[Pool, ...]) -> None:
        """Wake it where it waits for a permit, so that its state leaves some nodes; it will wait again."""
        phase = next((phase for phase, waits in self.permits.items() if not waits.done()), None)
        if pools and phase is not None:
            waits, self.permits[phase] = self.permits[phase], asyncio.get_running_loop().create_future()
            waits.set_result(pools)

    def wait_for(self, phase: HoldName) -> None:
        """It waits for a permit from now on."""
        self.permits[phase] = asyncio.get_running_loop().create_future()

    def refuse(self, error: Exception) -> None:
        """Wake it where it waits, with an error."""
        for waits in (*self.permits.values(), self.next):
            if waits is not None and not waits.done():
                waits.set_exception(error)

    def end_profile(self) -> None:
        """Nobody is to wait for its profile any more."""
        if self.profile_over is not None and not self.profile_over.done():
            self.profile_over.set_result(None)

    def pool_of(self, phase: HoldName) -> Pool:
        """Whose nodes a phase holds: a co-located job's rollouts hold training nodes, and a sync counts as a training."""
        return self.nodes["training" if phase == "sync" else phase][0].pool

    def nodes_of(self, phase: HoldName) -> tuple[Node, ...]:
        """The nodes that a phase, or a sync, holds."""
        if phase == "sync":
            return tuple(dict.fromkeys(node for nodes in self.nodes.values() for node in nodes))
        return self.nodes[phase]

    def so_far(self, iterations_left: int | None) -> Progress:
        """What it has done since it arrived.

        Args:
            iterations_left: iterations that it had to do then; some may have been done before.
        """
        before = self.spec.iterations - (iterations_left or 0)
        return Progress(self.id, max(0, self.iteration - before), self.busy_s["rollout"], self.busy_s["training"])

    def slice(self, report: Report, now_s: float, spans: tuple[Span, ...], ok: bool = True, extra: bool = False) -> PhaseSlice:
        """The phase that it has held nodes for."""
        hold = self.holds["training" if report.phase == "training" else "rollout"]
        assert self.group is not None and hold.pool != "sync"
        return PhaseSlice(
            job_id=self.id,
            phase=report.phase,  # type: ignore[arg-type]
            profile=self.is_guest or self.is_over,
            iteration=hold.iteration,
            group=self.group,
            pool=self.pool_of(hold.pool),
            numbers=self.numbers[hold.pool],
            nodes=tuple(node.name for node in self.nodes[hold.pool]),
            asked_s=hold.asked_s,
            start_s=hold.start_s,
            end_s=now_s,
            run_s=report.run_s,
            done_s=report.done_s,
            permit_s=report.begun_s - hold.start_s,
            load_s=report.load_s,
            offload_s=report.offload_s,
            cold=report.cold,
            switched=hold.switched,
            stages=report.stages,
            host_gb=report.host_gb,
            device_gb=report.device_gb,
            stays=report.stays,
            core_wait_s=report.core_wait_s,
            ok=ok,
            spans=spans if report.phase == "rollout" else (),
            extra=extra,
        )


def how_far(progress: Mapping[str, tuple[int, int, int]]) -> tuple[int, int, int]:
    """(finished, all, tokens) of a phase, from what each of its processes says."""
    counts = progress.values()
    return (
        sum(done for done, _, _ in counts),
        max((total for _, total, _ in counts), default=0),
        sum(tokens for _, _, tokens in counts),
    )


def busy_s(part: PhaseSlice) -> float:
    """Node-seconds in which a phase ran."""
    return sum(span.share * max(0.0, min(span.until_s, part.done_s) - max(span.from_s, part.run_s)) for span in part.node_spans())
