"""A lease of a job's place, and how far its owner is in the iteration in hand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from rollmux_env.scheduler.members import HoldName
from runtime.execution.job_handle import JobHandle
from runtime.execution.messages import End
from runtime.lease_facts import OwnProcess
from runtime.service.refusals import Conflict


class Ask(NamedTuple):
    """A phase that an owner asks for.

    Attributes:
        extra: a rollout that counts no iteration.
    """

    phase: HoldName
    iteration: int
    extra: bool = False


@dataclass(eq=False)
class Stay:
    """The time of an attached job in a place.

    Attributes:
        since_s: when nobody has had a lease of it since. lease: the last one of it.
        over: why the stay ends. free: what the lease held is in nobody's hands any more.
    """

    since_s: float
    lease: Lease | None = None
    over: asyncio.Future[End] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    free: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, end: End) -> None:
        """It ends, if it has not ended yet."""
        if not self.over.done():
            self.over.set_result(end)


@dataclass(eq=False)
class Lease:
    """What an owner has of its job's place.

    Attributes:
        id: what the owner says in its requests. handle, stay: of the job, as long as it has this place.
        host, boot, processes: as of `runtime.lease_facts.Attached`.
        sign_s: the last sign of life. requests: those that are open.
        opens: the phases that it asks for or has, by name: one; with a staleness a rollout and a training at once. granted: those
            that its owner has been told it has. last: the one before, by name.
        rollouts, trainings, syncs: iterations whose phase of the kind is over.
        metrics: of iterations that are not over, by number. warm: phases that it has run before.
        ended: why it is over; empty while it lives. suspects: names of the nodes that it held when it was lost.
        names: of the nodes of the place, when it was attached to.
        changed: is set, and made anew, when a phase or an iteration is over.
        stops_s: its owner is to stop, since then. moves: its owner is to give up this place, for another one.
    """

    id: str
    handle: JobHandle
    stay: Stay
    host: str
    boot: str
    processes: tuple[OwnProcess, ...]
    sign_s: float
    requests: int = 0
    opens: dict[HoldName, Ask] = field(default_factory=dict)
    granted: set[HoldName] = field(default_factory=set)
    last: dict[HoldName, Ask] = field(default_factory=dict)
    rollouts: int = 0
    trainings: int = 0
    syncs: int = 0
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    warm: set[str] = field(default_factory=set)
    ended: str = ""
    suspects: set[str] = field(default_factory=set)
    names: frozenset[str] = frozenset()
    stops_s: float | None = None
    moves: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def holds(self) -> bool:
        """Whether its owner may be using nodes."""
        return bool(self.granted)

    def notify(self) -> None:
        """Something is over that another phase may wait for."""
        self.changed.set()
        self.changed = asyncio.Event()

    def is_over(self, ask: Ask) -> bool:
        """Whether a phase was asked for before, and is over."""
        done = {"rollout": self.rollouts, "training": self.trainings, "sync": self.syncs}[ask.phase]
        return ask == self.last.get(ask.phase) or (not ask.extra and ask.iteration < done)

    def check_turn(self, ask: Ask) -> bool:
        """Make sure that a phase can be the next one; whether the iteration in hand is over with it.

        Raises:
            Conflict: it cannot; one line.
        """
        job_id, current, last = self.handle.id, self.handle.iteration, self.handle.spec.iterations
        for one in self.opens.values():
            if not self.handle.spec.staleness or one.phase == ask.phase:
                raise Conflict(f"job {job_id}: has asked for the {one.phase} of iteration {one.iteration}; release it first")
        if self.is_over(ask) and not ask.extra:
            raise Conflict(f"job {job_id}: the {ask.phase} of iteration {ask.iteration} is over")
        number = ask.iteration
        if self.handle.spec.staleness:
            self._check_ahead(ask)
            return ask.phase == "training" and self.trainings > current
        between = self.rollouts == self.trainings  # no rollout waits for its training
        if ask.extra:
            fits = ask.phase == "rollout" and between
        elif ask.phase == "rollout":
            fits = between and number == self.rollouts and number < last
        elif ask.phase == "training":
            fits = number == self.trainings == self.rollouts - 1
        else:
            fits = between and number == self.trainings - 1 and number >= self.syncs
        if not fits:
            next_one = f"rollout of iteration {self.rollouts}" if between else f"training of iteration {self.trainings}"
            what = f"{'extra ' if ask.extra else ''}{ask.phase} of iteration {number}"
            due = f"the next one is the {next_one}" if self.rollouts < last or not between else f"it has done its {last} iterations"
            raise Conflict(f"job {job_id}: cannot begin the {what}; {due}")
        return ask.phase == "rollout" and not ask.extra and self.trainings > current

    def must_wait(self, ask: Ask) -> bool:
        """Whether a phase of a stale job is the next one of its kind and may not begin yet.

        The rollout of iteration k waits until iteration k - 1 - staleness is over, a training for its rollout, and a sync and what
        comes with it for each other. While the job is measured one phase follows the other.
        """
        spec, guest = self.handle.spec, self.handle.job is None
        if not spec.staleness:
            return False
        if any(phase != ask.phase and (guest or "sync" in (phase, ask.phase)) for phase in self.opens):
            return True
        number, staleness = ask.iteration, 0 if guest else spec.staleness
        if ask.phase == "rollout" and not ask.extra:
            return number == self.rollouts and self.handle.iteration + staleness < number < spec.iterations
        return ask.phase == "training" and number == self.trainings == self.rollouts < spec.iterations

    def _check_ahead(self, ask: Ask) -> None:
        """As `check_turn`, with a staleness, of a phase that need not wait."""
        due = {"rollout": self.rollouts, "training": self.trainings, "sync": self.trainings - 1}[ask.phase]
        if not ask.extra and (ask.iteration != due or due >= self.handle.spec.iterations):
            what = f"{ask.phase} of iteration {ask.iteration}"
            raise Conflict(f"job {self.handle.id}: cannot begin the {what}; the next one is that of iteration {due}")

    def release(self, phase: HoldName) -> None:
        """What it asks for or has is over."""
        ask = self.opens.pop(phase)
        if phase in self.granted and not ask.extra:
            if ask.phase == "rollout":
                self.rollouts += 1
            elif ask.phase == "training":
                self.trainings += 1
            else:
                self.syncs = ask.iteration + 1
        self.warm.add(ask.phase)
        self.last[phase] = ask
        self.granted.discard(phase)
