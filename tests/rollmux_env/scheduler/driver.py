"""A driver of the scheduler as a run is one, without processes: whatever may happen next, happens when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Departed, JobProgress
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.replay.checks import check_state
from rollmux_env.scheduler import commands, facts
from rollmux_env.scheduler.commands import ANSWERS, Command
from rollmux_env.scheduler.core import Entry, Scheduler, Step
from rollmux_env.scheduler.facts import Fact
from rollmux_env.scheduler.nodes import POOLS, Assigned, NodePool, PoolName, Returned
from rollmux_env.scheduler.view import DispatchPolicy


@dataclass(frozen=True)
class Node:
    """A node of two devices, or one of them."""

    name: str
    pool: PoolName
    devices: tuple[int, ...] = (0, 1)

    def parts(self) -> tuple[Node, ...]:
        return tuple(Node(self.name, self.pool, (device,)) for device in self.devices)


def make_nodes(pairs: int) -> tuple[Node, ...]:
    return tuple(Node(f"{pool}-{k}", pool) for pool in ("rollout", "training") for k in range(pairs))


def make_cluster(pairs: int) -> Cluster:
    pool = Pool(gpus_per_node=1, usd_per_gpu_hour=1.0, max_nodes=pairs)
    return Cluster(rollout=pool, training=pool, migration_s=0.0)


def make_job(name: str, iterations: int = 4, nodes: int = 1, slo: float = 1000.0, seconds: float = 1.0) -> Job:
    rollout, training = Phase(worst_case_s=seconds, nodes=nodes), Training(worst_case_s=seconds)
    return Job(id=name, arrival_s=0.0, iterations=iterations, slo=slo, rollout=rollout, training=training)


@dataclass
class Worker:
    """A job's processes: what they do, and what they have been told."""

    job: Job
    profiled: bool = True
    parts: bool = False  # it can do with a part of its nodes
    phase: str = ""  # that it asked for
    holds: str = ""  # that it has the permit of
    done: int = 0
    guest: bool = False
    placed: bool = False
    begun: bool = False  # it is in an iteration
    moving: bool = False
    shrinks: bool = False
    past: bool = False  # the threshold of its rollout
    evicted: bool = False
    again: bool = False  # after the eviction it arrives anew
    goes: bool = False  # it makes room for a drain
    gone: bool = False
    nodes: dict[str, set[str]] = field(default_factory=dict)
    granted: int = 0


class Driver:
    """Tells the scheduler what happens to some workers, holds every step against the invariants, and carries its commands out.

    Attributes:
        workers: by job. entries: all of the scheduler's journal. commands: all that were given.
    """

    def __init__(
        self,
        policy: Policy,
        dispatch: DispatchPolicy,
        pairs: int = 2,
        make_policy: Callable[[], Policy] | None = None,
    ) -> None:
        self.cluster = make_cluster(pairs)
        self.nodes = make_nodes(pairs)
        self.pool = NodePool(self.nodes)
        self.scheduler = Scheduler(State(self.cluster, observed=True), policy, dispatch, self.pool, make_policy)
        self.twin = State(self.cluster, observed=True)  # what replaying the journal gives
        self.workers: dict[str, Worker] = {}
        self.entries: list[Entry] = []
        self.commands: list[Command] = []
        self.owners: dict[str, int] = {}  # groups by node, as journalled
        self.arrived = 0
        self.now_s = 0.0

    def tell(self, *told: Fact) -> Step:
        """One step of the scheduler, checked."""
        self.now_s += 1.0
        self.arrived += sum(isinstance(fact, facts.Queued) for fact in told)
        step = self.scheduler.step(self.now_s, told)
        withdrawn = 0
        for entry in step.entries:
            if isinstance(entry, Assigned):
                assert entry.node not in self.owners and entry.node not in self.pool.drained
                self.owners[entry.node] = entry.group
            elif isinstance(entry, Returned):
                del self.owners[entry.node]
            else:
                apply(self.twin, entry)
                withdrawn += type(entry).__name__ == "Withdrawn"
            assert entry.at_s == self.now_s
        self.arrived -= withdrawn
        self.entries += step.entries
        state = self.scheduler.state
        check_state(state, self.arrived, keeps_slo=False)
        charges, seats = state.charges, self.scheduler.members.seats
        held = state.pauses.held_nodes([one for one, seat in seats.items() if not seat.moving]).sum()  # by jobs that never had them
        assert sum(charges.user_share(user).nodes for user in charges.users()) == pytest.approx(len(self.owners) + held)
        assert (state.group_list(), state.waiting, state.departed) == (
            self.twin.group_list(),
            self.twin.waiting,
            self.twin.departed,
        )
        for command in step.commands:
            self.commands.append(command)
            self._carry_out(command)
        return step

    def _carry_out(self, command: Command) -> None:
        worker = self.workers[command.job_id]
        assert not worker.evicted or isinstance(command, commands.Evict)
        match command:
            case commands.Lend(_, seating) | commands.StartJob(_, seating):
                worker.guest, worker.placed = isinstance(command, commands.Lend), True
                worker.moving = False
                pairs = (("rollout", seating.rollout_nodes), ("training", seating.training_nodes))
                worker.nodes = {phase: {node.name for node in nodes} for phase, nodes in pairs}
                assert all(self.owners[name] == seating.group for names in worker.nodes.values() for name in names)
            case commands.Grant(_, phase):
                assert worker.phase == phase and not worker.holds and not self.scheduler.members.stopped
                group = self.scheduler.members.seats[command.job_id].group.number
                assert all(self.owners[name] == group for name in worker.nodes[phase])
                worker.phase, worker.holds, worker.begun, worker.past = "", phase, True, False
                worker.granted += 1
                if phase == "training" or not worker.parts:
                    self._alone(worker, phase)
            case commands.Shrink():
                assert worker.holds == "rollout" and worker.past
                worker.shrinks = True
            case commands.Vacate():
                assert worker.placed and not worker.moving
                worker.moving = True
            case commands.Evict():
                worker.evicted = True
            case commands.KeepWaiting():
                assert not worker.placed

    def _alone(self, worker: Worker, phase: str) -> None:
        """Nobody else holds a node of a phase that needs all of them."""
        for other in self.workers.values():
            if other is not worker and other.holds and other.nodes[other.holds] & worker.nodes[phase]:
                raise AssertionError(f"{other.job.id} and {worker.job.id} run on one node")

    # What may happen: each returns the facts of it, or none if it cannot be now.

    def submit(self, job: Job, profiled: bool = True, parts: bool = False) -> Step:
        """A job comes; one that nobody knows has to be profiled first."""
        self.workers[job.id] = Worker(job, profiled, parts)
        if profiled:
            return self.tell(facts.Queued(job))
        return self.tell(self._unprofiled(job))

    @staticmethod
    def _unprofiled(job: Job) -> Fact:
        return facts.Unprofiled({job.id: {"rollout": job.rollout.nodes, "training": job.training.nodes}})

    def goes_on(self, name: str) -> list[Fact]:
        """What a job does next, if it need not wait for anything."""
        worker = self.workers[name]
        if worker.gone or (not worker.placed and not worker.evicted):
            return []
        if worker.evicted:
            return self._cleared(worker)
        if worker.holds:
            phase, worker.holds = worker.holds, ""
            worker.shrinks = False
            if phase == "rollout":
                worker.phase = "training"
                return [self._answers(commands.Grant, facts.Finished(name, "rollout", 1.0)), facts.Ready(name, "training")]
            worker.begun = False
            return [self._answers(commands.Grant, facts.Finished(name, "training", 1.0)), *self._iterated(worker)]
        if worker.phase:
            return []
        worker.phase = "rollout"
        parts = () if worker.guest or not worker.parts else self._parts(worker)
        return [self._answers(commands.Lend if worker.guest else commands.StartJob, facts.Ready(name, "rollout", parts))]

    def _parts(self, worker: Worker) -> tuple[Node, ...]:
        return tuple(part for node in self.nodes if node.name in worker.nodes["rollout"] for part in node.parts())

    def _iterated(self, worker: Worker) -> list[Fact]:
        name = worker.job.id
        if worker.guest:
            worker.guest = worker.placed = False
            worker.profiled = True
            return [self._answers(commands.Lend, facts.Profiled(name)), facts.Queued(worker.job)]
        worker.done += 1
        iterated = facts.Iterated(JobProgress(name, worker.done, 0.0, 0.0), 2.0)
        if worker.done == worker.job.iterations:
            worker.placed, worker.gone = False, True
            return [iterated, facts.Left(name)]
        if worker.moving:
            return [iterated, self._answers(commands.Vacate, facts.Vacated(name)), facts.PauseEnded(name)]
        if self.scheduler.must_vacate(name):
            worker.again = worker.goes = True
            return [iterated, facts.Failed(name)]
        return [iterated]

    def _cleared(self, worker: Worker) -> list[Fact]:
        name = worker.job.id
        told: list[Fact] = [self._answers(commands.Evict, facts.Cleared(name))]
        worker.gone, worker.holds = not worker.again, ""
        placed = worker.placed and not worker.guest
        if worker.again:
            left = worker.job.iterations - worker.done if worker.job.iterations else None
            job = worker.job.model_copy(update={"iterations": left})
            self.workers[name] = Worker(job, worker.profiled, worker.parts)
            told.append(facts.Queued(job, worker.goes) if worker.profiled else self._unprofiled(job))
        assert placed or worker.guest or not worker.placed
        return told

    def fail(self, name: str, again: bool = False) -> list[Fact]:
        """A job loses a process: it is evicted, and ends or arrives anew."""
        worker = self.workers[name]
        if worker.gone or worker.evicted:
            return []
        worker.again = again and worker.placed
        return [facts.Failed(name)]

    def threshold(self, name: str) -> list[Fact]:
        """Most responses of a rollout are done."""
        worker = self.workers[name]
        if worker.holds != "rollout" or worker.past or worker.evicted or worker.guest or not worker.parts:
            return []
        worker.past = True
        return [self._answers(commands.Grant, facts.Threshold(name))]

    def whole(self) -> int:
        """Nodes of the smaller pool; none while some are missing."""
        return 0 if self.pool.missing else min(len(self.pool.nodes(pool)) for pool in POOLS)

    def join(self, pool: PoolName) -> Step:
        """A node joins."""
        node = Node(f"{pool}-{100 + len(self.nodes)}", pool)
        self.nodes += (node,)
        return self.tell(facts.Joined((node,)))

    def shrink(self, name: str) -> list[Fact]:
        """A tail has left what it was to leave."""
        worker = self.workers[name]
        if not worker.shrinks or worker.evicted:
            return []
        worker.shrinks = False
        return [self._answers(commands.Shrink, facts.Shrunk(name))]

    @staticmethod
    def _answers(command: type[Command], fact: Fact) -> Fact:
        """The fact, which the table says may answer the command."""
        assert type(fact) in ANSWERS[command]
        return fact

    def settle(self, rounds: int = 400) -> None:
        """Let everything that was granted or asked for come to its end, again and again, until nothing more happens."""
        for _ in range(rounds):
            told = [fact for name in [*self.workers] for fact in [*self.shrink(name), *self.goes_on(name)]]
            if not told:
                return
            self.tell(*told)
        raise AssertionError("it goes on for ever")

    def departed(self) -> list[str]:
        return [entry.job_id for entry in self.entries if isinstance(entry, Departed)]

    def given(self, kind: type[Command], name: str | None = None) -> list[Command]:
        """Commands of a kind, to a job."""
        return [command for command in self.commands if isinstance(command, kind) and name in (None, command.job_id)]
