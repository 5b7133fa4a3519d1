"""Owners of jobs: the real client, in a process that may be paused or killed, and what they use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollmux_client import Interrupted, Job, Mismatch, PhaseContext, Refused

from tests.runtime.pretend import ELSEWHERE, HERE
from tests.simulation.checks import Turn
from tests.simulation.loop import Dead, Process, Strand
from tests.simulation.network import ClientService
from tests.simulation.schedule import JobPlan

if TYPE_CHECKING:
    from tests.simulation.world import Scene


class WatchedJob(Job):
    """A job whose turns are noted, as its owner has them."""

    def __init__(self, scene: Scene, *more: Any) -> None:
        super().__init__(*more)
        self._scene = scene

    def _begin(self, answer: dict[str, Any], handed_over: bool) -> None:
        self._place = answer["nodes"]
        super()._begin(answer, handed_over)

    def acquire(self, phase: PhaseContext) -> None:
        world = self._scene.world
        turn = Turn(self.lease or "", self.name, phase.name, phase.iteration, world.now_s)
        self._scene.turns.append(turn)
        phase.turn = turn  # type: ignore[attr-defined]
        try:
            super().acquire(phase)
        except Interrupted:
            turn.left_s = world.now_s
            raise
        turn.lease, turn.had_s = self.lease or "", world.now_s
        if self.nodes != self._place:
            self._scene.problems.append(f"{self.name}: its {phase.name} is to be elsewhere than its lease")

    def release(self, phase: PhaseContext) -> None:
        turn: Turn = phase.turn  # type: ignore[attr-defined]
        turn.gives_s = self._scene.world.now_s
        super().release(phase)
        turn.given_s = self._scene.world.now_s


class Rank:
    """A process that works on a phase for an owner, in a session of its own.

    Attributes:
        owner: Its owner, whose lease it carries.
        nodes: Names of the nodes that it uses.
        pid: Its process id.
        lives: Whether it has not ended.
    """

    def __init__(self, owner: Owner, nodes: set[str], pid: int) -> None:
        self.owner, self.nodes, self.pid, self.lives = owner, nodes, pid, True
        self.lease = owner.job.lease


class Owner:
    """A process that owns a job, from its start to its end."""

    def __init__(self, scene: Scene, plan: JobPlan, number: int) -> None:
        self.scene, self.plan = scene, plan
        self.pid = number
        draw = scene.world.outside.draw
        self.process = Process(scene.world, f"{plan.id}.{number}", draw.choice([0.0, 500.0, 90_000.0]), scene.rate())
        self.process.ends.append(self._gone)
        self.nodes: dict[str, set[str]] = {}  # that it uses, by phase
        self.status: int | None = None
        self.job = WatchedJob(
            scene,
            ClientService(scene.network, plan.user),
            plan.id,
            HERE if plan.here else ELSEWHERE,
            lambda: [self.pid, *self.scene.ranks_of(self)],
            self._fence,
            lambda line: None,
            self._init if plan.moves else None,
        )
        strand = Strand(self.process, self._main)
        scene.world.in_process(self.process, strand.wake)

    @property
    def may_work(self) -> bool:
        """Whether it is allowed to use what it has, as far as its own clock tells."""
        return not self.process.dead and self.process.clock() - self.job._answered_s < self.job.ttl_s

    def _fence(self, why: str) -> None:
        self.scene.world.note(f"{self.process.name}: {why}")
        self.scene.fenced(self, why)
        self.scene.end_ranks(self)
        self.process.kill()
        raise Dead

    def _gone(self) -> None:
        self.scene.owner_gone(self)

    def _main(self) -> None:
        """What the script does."""
        here = Strand.present
        assert here is not None
        try:
            while any(not one.owner.process.dead for one in self.scene.ranks_on(self.plan.id)):
                here.block(1.0)  # another `rollmux exec` of the job has them
            self._end_orphans()
            with self.job as job:
                self._end_orphans()  # of another `rollmux exec` that had the job while this one waited for a place
                try:
                    self._work(job)
                finally:
                    if not self.process.dead:  # its launcher ends them before it gives the lease back
                        self.scene.end_ranks(self)
            self.status = 0
        except Interrupted:
            self.status = 75
        except (RuntimeError, ConnectionError):
            self.status = 1
        except Mismatch as error:
            self.status = 1
            self.scene.problems.append(f"{self.process.name}: {error}")
        except Refused as error:
            self.scene.world.note(f"{self.process.name}: {error}")
            forgotten = "has no such job" in str(error) and bool(self.scene.disk.begins[1:])  # it was over when a part ended
            self.status = 0 if "has ended" in str(error) or forgotten else 1
        self.process.kill()

    def _end_orphans(self) -> None:
        """As `rollmux exec`: what a dead one has left of the job ends."""
        for one in self.scene.ranks_on(self.plan.id):
            if one.owner.process.dead:
                self.scene.end_ranks(one.owner)

    def _work(self, job: Job) -> None:
        kind = self.plan.kind
        self._init(job)
        if self.plan.saves_every:
            saved = self.scene.saved[self.plan.id]
            self.scene.counts["older checkpoints"] += saved < job.iteration
            self.scene.counts["newer checkpoints"] += saved > job.iteration
            job.continue_from(saved)
        if kind == "asynchronous":
            job.side_by_side(lambda k: self._use_until("rollout"), self._train, staleness=1)
            return
        for k in job.iterations():
            if kind == "evaluates" and k % 2 == 0:
                with job.phase("rollout", extra=True) as phase:
                    self._use(phase)
            with job.phase("rollout") as phase:
                self._use(phase)
                job.progress(1, 2, 10)
            with job.phase("training") as phase:
                phase.report(reward=float(k))
                self._use(phase)
                self._save(k)
            if kind == "sync":
                with job.phase("sync") as phase:
                    self._use(phase)
            elif kind == "synced":
                job.synced(0.1)

    def _init(self, job: Job) -> None:
        """What comes first after each attachment."""
        if self.plan.inits:
            with job.init() as phase:
                self._use(phase)
            if self.plan.kind == "sync":
                with job.phase("sync", job.iteration - 1) as phase:
                    self._use(phase)

    def _train(self, k: int, _: Any) -> None:
        self._use_until("training")
        self._save(k)

    def _save(self, k: int) -> None:
        """Write a checkpoint, if one is due after an iteration whose training is not given back yet."""
        if self.plan.saves_every and (k + 1) % self.plan.saves_every == 0 and self.may_work:
            self.scene.saved[self.plan.id] = k + 1

    def _use_until(self, phase: str) -> None:
        self._use(PhaseContext(self.job, phase, self.job.iteration, False))

    def _use(self, phase: PhaseContext) -> None:
        """Work on the nodes of a phase."""
        here = Strand.present
        assert here is not None
        place = self.job.nodes
        parts = [place[phase.name]] if place.get(phase.name) else place.values()
        self.nodes[phase.name] = {node["name"] for nodes in parts for node in nodes}
        self.scene.takes(self, phase.name)
        rank = self.scene.start_rank(self, self.nodes[phase.name]) if self.plan.ranks else None
        phase.device_gb = self.plan.keeps_gb
        here.block(self.process.draw.uniform(0.1, 1.0) * self.plan.worst_s * self.plan.overruns)
        if rank is not None:
            rank.lives = False
        self.nodes.pop(phase.name, None)
        if self.process.draw.random() < self.plan.fails:
            raise RuntimeError("the work on a phase has failed")
