"""The state of a job and of a group in an event replay."""

from __future__ import annotations

from collections import deque
from math import inf

from rollmux_env.cluster.events import Progress
from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.replay.sampling import Durations
from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.view import PhaseName

TRAINING_POOL = -1  # key of all training nodes of a group, used instead of a rollout node's number
PHASES: tuple[PhaseName, PhaseName] = ("rollout", "training")


class ReplayedGroup:
    """A group in an event replay.

    Attributes:
        number: Number of the group.
        last: Job that each node last ran, by the node's key.
        rollouts: Rollouts that run on all their nodes, in order of their start.
        tails: Bit mask of the nodes that migrated tails share.
        members: Number of members.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.last: dict[int, ReplayedJob] = {}
        self.rollouts: dict[ReplayedJob, None] = {}
        self.tails = 0  # a bit each
        self.members = 0


class ReplayedJob:
    """A job in an event replay.

    Progress: `sampled` rollouts and `trained` trainings are over, so these are also the numbers of those that run or come next;
    `last` ends both. `iteration` counts the iterations that are over with their sync, and `weights` the iteration whose weights are
    on the rollout nodes. On-policy all these differ only within an iteration. The rollouts of a stale job continue while it trains,
    each with the weights that are present when it begins: a rollout may be `ahead` of these by a number of iterations. `rollouts`
    and `trainings` count the phases reported as ready. `versions` are the weights that sampled the responses that are not trained
    yet. `runs` has the start and the length of the switch of each running phase. `rewarding` is set while a rollout has ended and
    waits for its rewards.

    Ends of phases: entries of the heap have increasing stamps. Of entries for ends of rollouts only the one with stamp `stamp`
    counts. Of other entries those with stamps above `void` count.

    Tails: if the dispatch policy migrates tails, a rollout has the attributes of `rollmux_env.kernel.dispatch.pace`.
    `nodes_by_share` are the nodes that it holds, by share.

    Syncs: if the job's sync `crosses` a shared link, `unsent` counts the syncs that wait for an earlier one.

    Placement: phases take `base_s` times `factors`, and `switch` has the seconds of their starts.

    Lives: this life begins with iteration `begins`. A checkpoint is written `every` iterations; the last one is of iteration
    `saved`, and one of iteration `writes` is being written if that is larger. `placed` is set while the job has a place.
    """

    __slots__ = (
        "ahead",
        "base_s",
        "began_s",
        "begins",
        "bits",
        "busy_s",
        "cold",
        "crosses",
        "durations",
        "every",
        "factors",
        "group",
        "iteration",
        "job",
        "keys",
        "last",
        "leaves_s",
        "left_s",
        "nodes",
        "nodes_by_share",
        "passed",
        "placed",
        "rate",
        "rewarding",
        "rollouts",
        "row",
        "runs",
        "sampled",
        "saved",
        "stamp",
        "switch",
        "sync_s",
        "tail_s",
        "trained",
        "trainings",
        "unsent",
        "versions",
        "void",
        "weights",
        "went_s",
        "writes",
    )

    def __init__(self, job: Job, row: int, durations: Durations, begins: int, every: int) -> None:
        self.job = job
        self.row = row
        self.durations = durations
        self.iteration = self.begins = self.saved = self.writes = begins
        self.every = every
        self.ahead = job.staleness
        self.last = inf if job.iterations is None else begins + job.iterations
        self.placed = False
        self.busy_s = {"rollout": 0.0, "training": 0.0}  # node-seconds of running phases, by pool
        self.stamp = self.void = -1
        self.runs: dict[PhaseName, tuple[float, float]] = {}
        self.versions: deque[int] = deque()
        self.drop()
        self.began_s = self.left_s = self.went_s = self.tail_s = 0.0
        self.rate = 1.0
        self.passed = False
        self.nodes_by_share: dict[float, tuple[int, ...]] = {}

    def enter(self, state: State, group: ReplayedGroup, seating: Seating) -> None:
        """Enter a placement."""
        pins = () if seating.colocated else seating.rollout
        self.group = group
        self.placed = True
        group.members += 1
        rollout_s, training_s, self.sync_s = state.planned_s(self.job.id)
        pools = state.group_of(self.job.id)
        self.crosses = state.cluster.network is not None and pools.rollout_pool != pools.training_pool
        if self.crosses and self.sync_s:
            self.sync_s = self.job.sync_s  # the planned seconds include waiting for other jobs' syncs
        self.base_s = {"rollout": rollout_s, "training": training_s}
        phases = state.phases(self.job.id)
        self.switch = {"rollout": phases.rollout.switch, "training": phases.training.switch}
        self.factors = {phase: self.durations.factors(phase, getattr(phases, phase).actual) for phase in PHASES}
        self.keys = {"rollout": pins or (TRAINING_POOL,), "training": (TRAINING_POOL,)}
        self.bits = sum(1 << (node + 1) for node in pins)
        self.nodes = {"rollout": len(seating.rollout), "training": len(seating.training)}
        self.cold = {"rollout": True, "training": True}
        self.leaves_s = float(state.tables.jobs.leaves_s[self.row])
        self.drop()

    def drop(self) -> None:
        """Return to the last finished iteration. Samples that are not trained are lost."""
        self.sampled = self.trained = self.rollouts = self.trainings = self.weights = self.iteration
        self.unsent = 0
        self.rewarding = False
        self.versions.clear()

    def progress(self) -> Progress:
        """Return the progress of the job.

        It is read at the end of an iteration, so that busy seconds belong to whole iterations: the later rollouts of a stale job
        are left out.
        """
        rollout_s = self.busy_s["rollout"]
        ended = self.sampled + self.rewarding
        if ended > self.iteration:
            factors = self.factors["rollout"][self.iteration : ended]
            rollout_s -= sum(factors) * self.base_s["rollout"] * self.nodes["rollout"]
        return Progress(self.job.id, self.iteration - self.begins, rollout_s, self.busy_s["training"])

    def phase_s(self, phase: PhaseName) -> float:
        """Return the seconds of the phase that runs or comes next, without its switch."""
        if phase == "rollout":
            return self.base_s[phase] * self.factors[phase][self.sampled]
        return self.base_s[phase] * self.factors[phase][self.trained]

    def lost(self, now_s: float) -> float:
        """Return the number of iterations that are lost if the job dies now.

        It includes, as a fraction, the part of the unfinished iterations that has run.
        """
        ran_s = 0.0
        rollout_s, training_s = self.base_s["rollout"], self.base_s["training"]
        for number in range(self.iteration, self.sampled + self.rewarding):
            ran_s += rollout_s * self.factors["rollout"][number]
        for number in range(self.iteration, self.trained):
            ran_s += training_s * self.factors["training"][number]
        for phase in PHASES:
            if (span := self.runs.get(phase)) is not None:
                began_s = self.began_s if phase == "rollout" and self.nodes_by_share else span[0]
                ran_s += min(max(0.0, now_s - began_s - span[1]), self.phase_s(phase))
        if ran_s:
            first = self.iteration
            whole_s = rollout_s * self.factors["rollout"][first] + training_s * self.factors["training"][first] + self.sync_s
            ran_s /= whole_s
        return self.iteration - self.saved + ran_s
