"""A job and a group as an event replay runs them: what each is at, and since when."""

from __future__ import annotations

from collections import deque
from math import inf

from rollmux_env.cluster.events import Progress
from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.replay.sampling import Durations
from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.view import PhaseName

TRAINING_POOL = -1  # in place of a rollout node's number
PHASES: tuple[PhaseName, PhaseName] = ("rollout", "training")


class ReplayedGroup:
    """A group as it runs: which job each node last ran, the rollouts that run on all their nodes, and nodes that tails share."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.last: dict[int, ReplayedJob] = {}
        self.rollouts: dict[ReplayedJob, None] = {}
        self.tails = 0  # a bit each
        self.members = 0


class ReplayedJob:
    """A job as it runs. Of the ends of rollouts on the heap the one numbered `stamp` counts; of others those after `void` do.

    `sampled` rollouts and `trained` trainings are over, so these are also the numbers of those that come next or run; `last` ends
    both. `iteration` counts what is over with its sync, and `weights` that of which the weights are back on the rollout nodes.
    On-policy all these differ only within an iteration. The rollouts of a stale job go on while it trains, each with the weights
    that are there when it begins: it may be `ahead` of these by so many iterations. `rollouts` and `trainings` are known to be
    ready; `versions` are the weights that sampled what is not trained yet. `runs` is of the phases that run: since when, and
    how long of that, at first, they only switch. `rewarding`: the rollout that would be the next one has ended, and waits for its
    rewards.

    Of a rollout under a dispatch policy that migrates there are the seconds of `rollmux_env.kernel.dispatch.pace`;
    `nodes_by_share` are those that it holds, {share: nodes}.

    Where its sync `crosses` a shared link, `unsent` of its syncs wait for one before them.

    In its place, phases take `base_s` times `factors`, and `switch` is what their starts take, as the job is there.

    It begins this life with iteration `begins` and writes a checkpoint `every` iterations: the last after `saved` of them, and one
    after `writes` is on its way if that is more. `placed`: it has a place, and goes on.
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
        self.busy_s = {"rollout": 0.0, "training": 0.0}  # by pool, node-seconds
        self.stamp = self.void = -1
        self.runs: dict[PhaseName, tuple[float, float]] = {}
        self.versions: deque[int] = deque()
        self.drop()
        self.began_s = self.left_s = self.went_s = self.tail_s = 0.0
        self.rate = 1.0
        self.passed = False
        self.nodes_by_share: dict[float, tuple[int, ...]] = {}

    def enter(self, state: State, group: ReplayedGroup, seating: Seating) -> None:
        """Take up a placement."""
        pins = () if seating.colocated else seating.rollout
        self.group = group
        self.placed = True
        group.members += 1
        rollout_s, training_s, self.sync_s = state.planned_s(self.job.id)
        pools = state.group_of(self.job.id)
        self.crosses = state.cluster.network is not None and pools.rollout_pool != pools.training_pool
        if self.crosses and self.sync_s:
            self.sync_s = self.job.sync_s  # what is planned counts the syncs of others
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
        """Go on from the last iteration that is over: what has been sampled since and not trained is lost."""
        self.sampled = self.trained = self.rollouts = self.trainings = self.weights = self.iteration
        self.unsent = 0
        self.rewarding = False
        self.versions.clear()

    def progress(self) -> Progress:
        """What the job has done so far; asked at the end of an iteration, so that its busy seconds are of whole ones: what a stale
        job's later rollouts took is left out."""
        rollout_s = self.busy_s["rollout"]
        ended = self.sampled + self.rewarding
        if ended > self.iteration:
            factors = self.factors["rollout"][self.iteration : ended]
            rollout_s -= sum(factors) * self.base_s["rollout"] * self.nodes["rollout"]
        return Progress(self.job.id, self.iteration - self.begins, rollout_s, self.busy_s["training"])

    def phase_s(self, phase: PhaseName) -> float:
        """Seconds of the phase that comes next or runs, without its switch."""
        if phase == "rollout":
            return self.base_s[phase] * self.factors[phase][self.sampled]
        return self.base_s[phase] * self.factors[phase][self.trained]

    def lost(self, now_s: float) -> float:
        """Iterations that it does again if it dies now, with the share of those in hand that has run."""
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
