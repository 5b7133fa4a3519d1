"""A job as the coordinator of a run knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollmux_env.cluster.events import Progress
from rollmux_env.keys.job import Job
from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.view import HoldName
from runtime.execution.job_records import Actors, Bell, Ending, Permits, Place, ProfilePass, Residency, Saved, Tail
from runtime.execution.messages import Order, Report
from runtime.jobs.shapes import nodes_in
from runtime.jobs.spec import JobSpec
from runtime.journal.facts import PhaseSlice, Span
from runtime.machine import Node, Pool
from runtime.residency.choice import Waits

_OF_REPORT = ("run_s", "done_s", "load_s", "offload_s", "cold", "stages", "host_gb", "device_gb", "stays", "core_wait_s")
PROFILE = -1  # in place of an iteration's number


@dataclass(eq=False)
class JobHandle:
    """What the coordinator knows of a job, and how it talks to it: records that each have one writer.

    Attributes:
        spec: as it was submitted. job: as the policy sees it; None until it is profiled.
        iteration: the one in hand, or the next. begins: the one that its place begins with. done: the most that it ever had done.
        gone: it has come to its end, or another handle stands for it.
        changed: rings when its place, its lease, a phase or the parts of its nodes have changed.
    """

    spec: JobSpec
    job: Job | None = None
    iteration: int = 0
    begins: int = 0
    done: int = 0
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
        """Whether it has done its last iteration; what it does since counts for none (`runtime.execution.solo`)."""
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
    def waits_for_permit(self) -> bool:
        """Whether it has asked for one in vain so far."""
        return any(not waits.done() for waits in self.permits.waits.values())

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

    def end_profile(self) -> None:
        """Nobody is to wait for its profile any more."""
        if self.profile.over is not None and not self.profile.over.done():
            self.profile.over.set_result(None)

    def pool_of(self, phase: HoldName) -> Pool:
        """Whose nodes a phase holds: a co-located job's rollouts hold training nodes, and a sync counts as a training."""
        return self.place.nodes["training" if phase == "sync" else phase][0].pool

    def nodes_of(self, phase: HoldName) -> tuple[Node, ...]:
        """The nodes that a phase, or a sync, holds."""
        if phase == "sync":
            return tuple(dict.fromkeys(node for nodes in self.place.nodes.values() for node in nodes))
        return self.place.nodes[phase]

    def so_far(self, iterations_left: int | None) -> Progress:
        """What it has done since it arrived.

        Args:
            iterations_left: iterations that it had to do then; some may have been done before.
        """
        before = self.spec.iterations - (iterations_left or 0)
        return Progress(self.id, max(0, self.iteration - before), self.permits.busy_s["rollout"], self.permits.busy_s["training"])

    def slice(self, report: Report, now_s: float, spans: tuple[Span, ...], ok: bool = True, extra: bool = False) -> PhaseSlice:
        """The phase that it has held nodes for."""
        hold = self.permits.holds["training" if report.phase == "training" else "rollout"]
        assert self.place.group is not None and hold.pool != "sync"
        return PhaseSlice(
            job_id=self.id,
            phase=report.phase,  # type: ignore[arg-type]
            profile=self.is_guest or self.is_over,
            iteration=hold.iteration,
            group=self.place.group,
            pool=self.pool_of(hold.pool),
            numbers=self.place.numbers[hold.pool],
            nodes=tuple(node.name for node in self.place.nodes[hold.pool]),
            asked_s=hold.asked_s,
            start_s=hold.start_s,
            end_s=now_s,
            permit_s=report.begun_s - hold.start_s,
            switched=hold.switched,
            ok=ok,
            **{name: getattr(report, name) for name in _OF_REPORT},
            spans=spans if report.phase == "rollout" else (),
            extra=extra,
        )
