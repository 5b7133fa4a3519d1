"""A job and a group as an event replay runs them: what each is at, and since when."""

from __future__ import annotations

from rollmux_env.cluster.events import Progress
from rollmux_env.cluster.state import State
from rollmux_env.replay.sampling import Durations
from rollmux_env.scenario import Job
from rollmux_env.scheduler.commands import Seating
from rollmux_env.scheduler.dispatcher import PhaseName

TRAINING_POOL = -1  # in place of a rollout node's number


class ReplayedGroup:
    """A group as it runs: which job each node last ran, the rollouts that run on all their nodes, and nodes that tails share."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.last: dict[int, ReplayedJob] = {}
        self.rollouts: dict[ReplayedJob, None] = {}
        self.tails = 0  # a bit each
        self.members = 0


class ReplayedJob:
    """A job as it runs. `stamp` is the number of the heap entry that it waits for; older entries are void.

    Of a rollout under a dispatch policy that migrates: at `since_s`, from when on it runs at `rate`, `left_s` seconds of full speed
    are left, the last `tail_s` of them past the threshold; `held` are the shares of its nodes, {share: nodes}, since `start_s`.

    It begins this life with iteration `begins`, and writes a checkpoint `every` iterations, the last after `saved` of them; phases
    of the iteration in hand that are over took `ran_s`. `placed`: it has a place, and goes on.
    """

    __slots__ = (
        "base_s",
        "began_s",
        "begins",
        "bits",
        "busy_s",
        "cold",
        "durations",
        "every",
        "group",
        "iteration",
        "job",
        "keys",
        "leaves_s",
        "left_s",
        "mask",
        "nodes",
        "nodes_by_share",
        "passed",
        "phase",
        "placed",
        "ran_s",
        "rate",
        "row",
        "saved",
        "since_s",
        "stamp",
        "start_s",
        "switch_s",
        "sync_s",
        "tail_s",
    )

    def __init__(self, job: Job, row: int, durations: Durations, begins: int, every: int) -> None:
        self.job = job
        self.row = row
        self.durations = durations
        self.iteration = self.begins = self.saved = begins
        self.every = every
        self.ran_s = 0.0
        self.placed = False
        self.busy_s = {"rollout": 0.0, "training": 0.0}  # by pool, node-seconds
        self.stamp = -1
        self.phase: PhaseName | None = None
        self.start_s = self.switch_s = 0.0
        self.began_s = self.left_s = self.since_s = self.tail_s = 0.0
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
        self.base_s = {"rollout": rollout_s, "training": training_s}
        self.keys = {"rollout": pins or (TRAINING_POOL,), "training": (TRAINING_POOL,)}
        self.mask = {node: 1 << (node + 1) for node in pins}
        self.bits = sum(self.mask.values())
        self.nodes = {"rollout": len(seating.rollout), "training": len(seating.training)}
        self.cold = {"rollout": True, "training": True}
        self.leaves_s = float(state.jobs.leaves_s[self.row])

    def progress(self) -> Progress:
        """What the job has done so far; asked at the end of an iteration, so that its busy seconds are of whole ones."""
        return Progress(self.job.id, self.iteration - self.begins, self.busy_s["rollout"], self.busy_s["training"])

    def phase_s(self, phase: PhaseName) -> float:
        """Seconds of a phase of the iteration in hand, without its switch."""
        factors = self.durations.rollout if phase == "rollout" else self.durations.training
        return self.base_s[phase] * factors[self.iteration]

    def lost(self, now_s: float) -> float:
        """Iterations that it does again if it dies now, with the share of the one in hand that has run."""
        ran_s = self.ran_s
        if self.phase is not None:
            began_s = self.began_s if self.nodes_by_share else self.start_s
            ran_s += min(max(0.0, now_s - began_s - self.switch_s), self.phase_s(self.phase))
        whole_s = self.phase_s("rollout") + self.phase_s("training") + self.sync_s if ran_s else 1.0
        return self.iteration - self.saved + ran_s / whole_s
