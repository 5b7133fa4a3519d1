"""A job as the coordinator of a run knows it, in records that each have one writer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rollmux_env.cluster.events import Progress
from rollmux_env.keys.job import Job
from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.view import ALL_NODES, HoldName
from runtime.checkpoints import ResumePoint, drop_above, newest
from runtime.coordinator.profiles import Measured
from runtime.jobs.shapes import nodes_in
from runtime.jobs.spec import JobSpec
from runtime.jobside.messages import End, Nodes, Order, Report
from runtime.journal.facts import PhaseMeasures, PhaseSlice, Span
from runtime.machine import Node, Pool
from runtime.residency.choice import Waits

PROFILE = -1  # in place of an iteration's number, where a phase belongs to none


class Asked(NamedTuple):
    """A permit that a job wants.

    Attributes:
        at_s: since when. iteration: number of that which the phase belongs to; rollouts may be ahead of trainings.
    """

    at_s: float
    iteration: int


@dataclass
class Hold:
    """A permit in a job's hands.

    Attributes:
        pool: the phase, as its nodes' pool; `init` or `sync` where it is for all nodes of the job.
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


@dataclass
class Place:
    """Where a job is; written when the scheduler gives it a place, or takes it back.

    Attributes:
        group: the number of its group, or `LEASE`; None where it has no place. numbers, nodes: of its place, by phase. shape: in
            which it runs there.
        moving: it is to go to another place. leaving: before it leaves this one, it writes a checkpoint.
        parks: of an attached job: it asks for no place until its owner comes.
    """

    group: int | None = None
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: Nodes = field(default_factory=dict)
    shape: int = 0
    moving: bool = False
    leaving: bool = False
    parks: bool = False


@dataclass
class Permits:
    """What a job asks for and has; written when its owner says something, and when the scheduler grants it.

    Attributes:
        holds: by phase: one, or where rollouts are ahead one a side. asks: those that it has asked for and not had.
        waits: by phase, what its owner waits for. A permit that names pools is none: the job is first to leave what it has on their
            nodes.
        pauses: its rollouts wait with what comes next, since it is to leave its place.
        since_s: it has had no need to wait since; None while it waits. began_s: when the rollouts of iterations that are not over
            were ready, by number. follows_s: when the iteration before the one in hand was over, or it got its place since.
        interrupted: the iteration in hand has waited for room on a disk. busy_s: node-seconds of its phases, by pool.
    """

    holds: dict[HoldName, Hold] = field(default_factory=dict)
    asks: dict[HoldName, Asked] = field(default_factory=dict)
    waits: dict[HoldName, asyncio.Future[tuple[Pool, ...]]] = field(default_factory=dict)
    pauses: bool = False
    since_s: float | None = None
    began_s: dict[int, float] = field(default_factory=dict)
    follows_s: float = 0.0
    interrupted: bool = False
    busy_s: dict[str, float] = field(default_factory=lambda: {"rollout": 0.0, "training": 0.0})


@dataclass
class Tail:
    """How far a job's rollout is, and which of its nodes it uses; written when its processes say so, and by the dispatcher.

    Attributes:
        parts: what its rollout nodes are cut into, of a job that can do with a part of them. uses: numbers of those that its
            rollout is to use; knows: of those that it knows of. past_threshold: its rollout has reached that of migration.
        wake: finished responses at which its rollout stops, to ask its rollout policy; None: at none.
        progress: finished responses, all, and tokens, by who counts.
    """

    parts: tuple[Node, ...] = ()
    uses: tuple[int, ...] = ()
    knows: tuple[int, ...] = ()
    past_threshold: bool = False
    wake: int | None = None
    progress: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def is_woken(self) -> bool:
        """Whether as many responses have finished as the rollout stops for."""
        return self.wake is not None and how_far(self.progress)[0] >= self.wake


@dataclass
class ProfilePass:
    """How a job is being measured; written by the profiler.

    Attributes:
        passes: that it still has to make. over: they are over, or it has ended. measurements, sync_s, own_s, movable: what they
            have shown. without_core: phases that had no core when they were last measured; repeats: that has been measured once
            more. loads_first: no engine like its own has been loaded here before.
        asks: of one whose first iterations are measured: it has asked for nodes. longest_s: of its phases then, by name.
    """

    passes: int = 0
    over: asyncio.Future[None] | None = None
    measurements: dict[str, Measured] = field(default_factory=dict)
    sync_s: float = 0.0
    own_s: float = 0.0
    movable: bool = True
    without_core: set[Pool] = field(default_factory=set)
    repeats: bool = False
    loads_first: bool = False
    asks: bool = False
    longest_s: dict[str, float] = field(default_factory=dict)

    def begin(self, passes: int) -> asyncio.Future[None]:
        """It is to make so many passes; returns what waits until they are over."""
        self.over, self.passes = asyncio.get_running_loop().create_future(), passes
        return self.over

    def end(self) -> None:
        """Nobody is to wait for it any more."""
        if self.over is not None and not self.over.done():
            self.over.set_result(None)

    def took(self, phase: str, seconds: float) -> None:
        """A phase of one whose first iterations are measured has taken so long."""
        self.longest_s[phase] = max(self.longest_s.get(phase, 0.0), seconds)


@dataclass
class Saved:
    """The checkpoints of a job.

    Attributes:
        last: the folder of the last one. recorded: iterations of those that the journal knows. seconds: that writing the last one
            took. full: the next one finds no room; what the system says.
    """

    last: str | None = None
    recorded: set[int] = field(default_factory=set)
    seconds: float = 0.0
    full: str | None = None

    def go_back(self, folder: Path, most: int) -> ResumePoint:
        """Let the newest whole checkpoint that the journal knows, of so many iterations at most, be the last one; later ones go."""
        resume = newest(folder, most, self.recorded)
        drop_above(folder, resume.iterations)
        self.recorded = {iterations for iterations in self.recorded if iterations <= resume.iterations}
        self.last = None if resume.folder is None else str(resume.folder)
        return resume


@dataclass
class Ending:
    """Why and how a job's processes end; written by the lifecycle.

    Attributes:
        why: they are being ended; None: they are not. again: the job is made anew then. cleared: they have ended.
        resting: they are ending, since the job waits for a place. halted: they have ended, since the run stops; the job goes on
            with the run. over_budget: it ends when its checkpoint is written.
        deaths: since it had done as many iterations. restarted: why it was made anew.
    """

    why: End | None = None
    again: bool = False
    cleared: asyncio.Event = field(default_factory=asyncio.Event)
    resting: bool = False
    halted: bool = False
    over_budget: bool = False
    deaths: int = 0
    restarted: str = ""

    @property
    def reason(self) -> str:
        """Why they end, in words."""
        return self.why.problem or self.why.outcome if self.why else "it is over"


@dataclass
class Actors:
    """The processes of a job; written by who starts them, and as they come.

    Attributes:
        controller, workers: what is started for the job; None, and none, while nothing is. has_come: the controller has asked for
            an order. alive: they have the job's state, on its nodes, since its profile.
        order: that the controller waits for. warnings: that they have told the user.
        processes: What was started for it, by Ray node: process id, and when its machine started it.
    """

    controller: Any = None
    workers: list[Any] = field(default_factory=list)
    has_come: bool = False
    alive: bool = False
    order: asyncio.Future[Order | None] | None = None
    warnings: set[str] = field(default_factory=set)
    processes: dict[str, set[tuple[int, int]]] = field(default_factory=dict)


@dataclass
class Residency:
    """What a job keeps on its nodes between phases.

    Attributes:
        waits: how its state may wait, by pool. to_leave: pools on whose nodes its state is no longer to stay.
        exceeds: it keeps more than it has stated; how much.
    """

    waits: dict[Pool, Waits] = field(default_factory=dict)
    to_leave: set[Pool] = field(default_factory=set)
    exceeds: str = ""


def how_far(progress: Mapping[str, tuple[int, int, int]]) -> tuple[int, int, int]:
    """(finished, all, tokens) of a phase, from what each of its processes says."""
    counts = progress.values()
    return (
        sum(done for done, _, _ in counts),
        max((total for _, total, _ in counts), default=0),
        sum(tokens for _, _, tokens in counts),
    )


class Bell:
    """Wakes all who wait. Who has been woken looks at what it waits for, and may wait again."""

    def __init__(self) -> None:
        self._rings: asyncio.Event | None = None  # while somebody waits

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it rings, or for so long, seconds; None: without end."""
        rings = self._rings = self._rings or asyncio.Event()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(rings.wait(), None if timeout_s is None else max(0.0, timeout_s))

    def ring(self) -> None:
        """Something has changed."""
        if self._rings is not None:
            self._rings.set()
            self._rings = None


@dataclass(eq=False)
class JobHandle:
    """What the coordinator knows of a job, and how it talks to it: records that each have one writer.

    Attributes:
        spec: as it was submitted. job: as the policy sees it; None until it is profiled.
        iteration: the one in hand, or the next. begins: the one that its place begins with. done: the most that it ever had done.
        recent: Metrics of its last iterations.
        gone: it has come to its end, or another handle stands for it.
        changed: rings when its place, its lease, a phase or the parts of its nodes have changed.
    """

    spec: JobSpec
    job: Job | None = None
    iteration: int = 0
    begins: int = 0
    done: int = 0
    recent: list[Mapping[str, float]] = field(default_factory=list)
    gone: bool = False
    changed: Bell = field(default_factory=Bell)
    place: Place = field(default_factory=Place)
    permits: Permits = field(default_factory=Permits)
    tail: Tail = field(default_factory=Tail)
    profile: ProfilePass = field(default_factory=ProfilePass)
    saved: Saved = field(default_factory=Saved)
    ending: Ending = field(default_factory=Ending)
    actors: Actors = field(default_factory=Actors)
    residency: Residency = field(default_factory=Residency)

    @property
    def is_guest(self) -> bool:
        """Whether it has a place in which it is profiled."""
        return self.place.group is not None and (self.iteration == PROFILE or self.job is None)

    @property
    def is_over(self) -> bool:
        """Whether it has done its last iteration; what it does since counts for none (`SoloIterations`)."""
        return self.iteration >= self.spec.iterations and not self.spec.is_attached

    @property
    def lives(self) -> bool:
        """Whether it has not come to its end, and is not about to."""
        return not self.gone and self.ending.why is None

    @property
    def is_at_rest(self) -> bool:
        """Whether it has no processes, and none that are being ended."""
        return self.actors.controller is None and self.ending.why is None

    @property
    def names(self) -> frozenset[str]:
        """Of the nodes of its place."""
        return frozenset(node.name for nodes in self.place.nodes.values() for node in nodes)

    @property
    def phase(self) -> HoldName | None:
        """What it runs; of two phases the one that began last."""
        return next(reversed(self.permits.holds), None)

    @property
    def id(self) -> str:
        """The job's."""
        return self.spec.id

    @property
    def waits_here(self) -> Mapping[Pool, Waits]:
        """`waits`, of those phases that have as many nodes as when they were profiled, or more: on fewer nobody knows it."""
        if not self.place.shape:
            return self.residency.waits
        own, here = nodes_in(self.spec, 0), nodes_in(self.spec, self.place.shape)
        return {pool: waits for pool, waits in self.residency.waits.items() if here[pool] >= own[pool]}

    def sit(self, seating: Seating, shape: int = 0) -> None:
        """It has this place, where it runs in a shape."""
        self.place.shape = shape
        self.place.group, self.place.moving, self.place.leaving, self.permits.pauses = seating.group, False, False, False
        self.place.numbers = {"rollout": seating.rollout, "training": seating.training}
        self.place.nodes = {"rollout": seating.rollout_nodes, "training": seating.training_nodes}  # type: ignore[dict-item]
        self.changed.ring()

    def stand(self) -> None:
        """It has no place."""
        self.place.group, self.place.moving, self.place.leaving = None, False, False
        self.give_up()
        self.changed.ring()

    def give_up(self) -> None:
        """It has no permit, and waits for none."""
        self.permits.holds.clear()
        self.permits.asks.clear()

    def tell(self, order: Order | None, now_s: float) -> None:
        """Answer what it waits for between iterations; None: it is done."""
        if self.actors.order is None or self.actors.order.done():
            self.actors.order = asyncio.get_running_loop().create_future()
        self.actors.order.set_result(order)
        self.permits.since_s = now_s

    def order(self, checkpoints: str) -> Order:
        """The iteration that it is to do next; or where it is leaving its place, the checkpoint before that.

        Args:
            checkpoints: folder of the job's.
        """
        return Order(self.iteration, self.iteration == PROFILE, self.place.nodes, checkpoints, self.saved.last, self.place.leaving)

    def ask_to_leave(self, pools: tuple[Pool, ...]) -> None:
        """Wake it where it waits for a permit, so that its state leaves some nodes; it will wait again."""
        phase = next((phase for phase, waits in self.permits.waits.items() if not waits.done()), None)
        if pools and phase is not None:
            waits, self.permits.waits[phase] = self.permits.waits[phase], asyncio.get_running_loop().create_future()
            waits.set_result(pools)

    def wait_for(self, phase: HoldName) -> None:
        """It waits for a permit from now on."""
        self.permits.waits[phase] = asyncio.get_running_loop().create_future()

    def refuse(self, error: Exception) -> None:
        """Wake it where it waits, with an error."""
        for waits in (*self.permits.waits.values(), self.actors.order):
            if waits is not None and not waits.done():
                waits.set_exception(error)

    def pool_of(self, phase: HoldName) -> Pool:
        """Whose nodes a phase holds: a co-located job's rollouts hold training nodes, what has all nodes counts as a training."""
        return self.place.nodes["training" if phase in ALL_NODES else phase][0].pool  # type: ignore[index]

    def nodes_of(self, phase: HoldName) -> tuple[Node, ...]:
        """The nodes that a phase, or a sync, holds."""
        if phase in ALL_NODES:
            return tuple(dict.fromkeys(node for nodes in self.place.nodes.values() for node in nodes))
        return self.place.nodes[phase]  # type: ignore[index]

    def sides_of(self, phase: HoldName) -> tuple[Pool | None, ...]:
        """The sides of which the journal gets a slice (`slice`) when a phase is over: of an init both, unless they share nodes."""
        if phase == "init":
            return ("training",) if self.pool_of("rollout") == "training" else ("rollout", "training")
        return () if phase == "sync" else (None,)

    def so_far(self, iterations_left: int | None) -> Progress:
        """What it has done since it arrived.

        Args:
            iterations_left: iterations that it had to do then; some may have been done before.
        """
        before = self.spec.iterations - (iterations_left or 0)
        return Progress(self.id, max(0, self.iteration - before), self.permits.busy_s["rollout"], self.permits.busy_s["training"])

    def slice(
        self,
        report: Report,
        now_s: float,
        spans: tuple[Span, ...],
        ok: bool = True,
        extra: bool = False,
        side: Pool | None = None,
    ) -> PhaseSlice:
        """The phase that it has held nodes for; of one that holds all of them, on a side."""
        hold = self.permits.holds["init" if side else "training" if report.phase == "training" else "rollout"]
        pool: Pool = side or ("training" if hold.pool == "training" else "rollout")
        assert self.place.group is not None
        return PhaseSlice(
            job_id=self.id,
            phase=report.phase,  # type: ignore[arg-type]
            profile=self.is_guest or self.is_over,
            iteration=hold.iteration,
            group=self.place.group,
            pool=self.pool_of(pool),
            numbers=self.place.numbers[pool],
            nodes=tuple(node.name for node in self.place.nodes[pool]),
            asked_s=hold.asked_s,
            start_s=hold.start_s,
            end_s=now_s,
            permit_s=report.begun_s - hold.start_s,
            switched=hold.switched,
            ok=ok,
            run_s=report.run_s,
            done_s=report.done_s,
            **{name: getattr(report, name) for name in PhaseMeasures.__dataclass_fields__},
            spans=spans if report.phase == "rollout" else (),
            extra=extra,
        )
