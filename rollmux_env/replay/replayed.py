"""The state of a job and of a group in an event replay."""

from __future__ import annotations

from collections import deque
from math import inf

from rollmux_env.cluster.events import JobProgress
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
        self.tails = 0
        self.members = 0


class ReplayedPlace:
    """A job's place in an event replay.

    Attributes:
        group: Group of the placement.
        base_s: Planned seconds of each phase in the placement.
        factors: Factors on `base_s` by phase and iteration, for sampled durations and drift.
        sync_s: Seconds of a sync in the placement.
        crosses: Whether the job's sync uses the shared link.
        switch: Warm and cold start of each phase in the placement.
        cold: Whether the next phase of a kind has a cold start, by kind.
        keys: Nodes of each phase as keys of `ReplayedGroup.last`: numbers of rollout nodes, or `TRAINING_POOL`.
        bits: Bit mask of the rollout nodes; 0 if rollouts run on training nodes.
        nodes: Number of nodes of each phase.
        leaves_s: Time at which a fixed stay ends, in seconds.
    """

    __slots__ = ("base_s", "bits", "cold", "crosses", "factors", "group", "keys", "leaves_s", "nodes", "switch", "sync_s")

    def __init__(self, job_run: ReplayedJob, state: State, group: ReplayedGroup, seating: Seating) -> None:
        job = job_run.job
        pins = () if seating.colocated else seating.rollout
        self.group = group
        rollout_s, training_s, self.sync_s = state.planned_s(job.id)
        pools = state.group_of(job.id)
        self.crosses = state.cluster.network is not None and pools.rollout_pool != pools.training_pool
        if self.crosses and self.sync_s:
            self.sync_s = job.sync_s  # the planned seconds include waiting for other jobs' syncs
        self.base_s = {"rollout": rollout_s, "training": training_s}
        phases = state.phases(job.id)
        self.switch = {"rollout": phases.rollout.switch, "training": phases.training.switch}
        self.factors = {phase: job_run.durations.factors(phase, getattr(phases, phase).actual) for phase in PHASES}
        self.keys = {"rollout": pins or (TRAINING_POOL,), "training": (TRAINING_POOL,)}
        self.bits = sum(1 << (node + 1) for node in pins)
        self.nodes = {"rollout": len(seating.rollout), "training": len(seating.training)}
        self.cold = {"rollout": True, "training": True}
        self.leaves_s = float(state.tables.jobs.leaves_s[job_run.row])


class PacedRollout:
    """A rollout whose tail may migrate, as `rollmux_env.kernel.dispatch.pace` knows it.

    Attributes:
        began_s: Start of the rollout, in seconds.
        passed: Whether it has reached its threshold.
        updated_s: Time from which it runs at `rate`, in seconds.
        left_s: Seconds of full speed that are left of it at `updated_s`.
        tail_s: Part of `left_s` after the threshold.
        rate: Speed of the rollout, relative to full speed.
        nodes_by_share: Nodes that it holds, by share; empty while no such rollout runs.
    """

    __slots__ = ("began_s", "left_s", "nodes_by_share", "passed", "rate", "tail_s", "updated_s")

    def __init__(self) -> None:
        self.began_s = self.left_s = self.updated_s = self.tail_s = 0.0
        self.rate = 1.0
        self.passed = False
        self.nodes_by_share: dict[float, tuple[int, ...]] = {}


class ReplayedCheckpoints:
    """The checkpoints of a job in an event replay.

    Args:
        begins: Iteration with which the job began after its last failure, 0 without one.
        every: Number of iterations between two checkpoints.

    Attributes:
        begins: Iteration with which the job began after its last failure, 0 without one.
        every: Number of iterations between two checkpoints.
        saved: Iteration of the last checkpoint.
        writes: Iteration of the checkpoint that is being written, or `saved`.
    """

    __slots__ = ("begins", "every", "saved", "writes")

    def __init__(self, begins: int, every: int) -> None:
        self.begins = self.saved = self.writes = begins
        self.every = every


class ReplayedJob:
    """A job in an event replay: its progress and its running phases.

    Args:
        job: Job.
        row: Row of the job in the state's tables.
        durations: Durations of its phases.
        begins: Number of iterations that were saved before the job's last failure, 0 without one.
        every: Number of iterations between two checkpoints.

    Attributes:
        job: Job.
        row: Row of the job in the state's tables.
        durations: Durations of its phases.
        checkpoints: Checkpoints of the job.
        place: Place of the job, after `enter`.
        placed: Whether the job still has its place.
        parks: Whether the job leaves its place at the end of its iteration, to be parked.
        paced: The running rollout, if its tail may migrate.
        iteration: Number of finished iterations, sync included.
        sampled: Number of finished rollouts, and so the number of the rollout that runs or comes next.
        trained: Number of finished trainings, and so the number of the training that runs or comes next.
        weights: Number of the iteration whose weights are on the rollout nodes.
        last: Number of iterations after which the job departs, or infinity.
        ahead: Number of iterations by which a rollout may be ahead of `weights`: the staleness.
        rollouts: Number of rollouts reported as ready.
        trainings: Number of trainings reported as ready.
        versions: Weights that sampled each rollout of a stale job that is not trained yet.
        rewarding: Whether a rollout has ended and waits for its rewards.
        unsent: Number of syncs that wait for an earlier one of the job on the shared link.
        runs: Start and length of the switch of each running phase, in seconds.
        busy_s: Node-seconds of running phases, by pool.
        stamp: Number of the valid entry on the heap for the end of a rollout; other entries of this kind are void.
        void: Number up to which all other entries on the heap are void.
    """

    def __init__(self, job: Job, row: int, durations: Durations, begins: int, every: int) -> None:
        self.job = job
        self.row = row
        self.durations = durations
        self.checkpoints = ReplayedCheckpoints(begins, every)
        self.place: ReplayedPlace
        self.paced = PacedRollout()
        self.iteration = begins
        self.ahead = job.staleness
        self.last = inf if job.iterations is None else begins + job.iterations
        self.placed = self.parks = False
        self.busy_s = {"rollout": 0.0, "training": 0.0}
        self.stamp = self.void = -1
        self.runs: dict[PhaseName, tuple[float, float]] = {}
        self.versions: deque[int] = deque()
        self.drop()

    def enter(self, state: State, group: ReplayedGroup, seating: Seating) -> None:
        """Begin or continue in a placement, with the next iteration."""
        self.place = ReplayedPlace(self, state, group, seating)
        self.placed = True
        group.members += 1
        self.drop()

    def drop(self) -> None:
        """Return to the last finished iteration. Samples that are not trained are lost."""
        self.sampled = self.trained = self.rollouts = self.trainings = self.weights = self.iteration
        self.unsent = 0
        self.rewarding = False
        self.versions.clear()

    def progress(self) -> JobProgress:
        """Return the progress of the job.

        It is read at the end of an iteration, so that busy seconds belong to whole iterations: the later rollouts of a stale job
        are left out.
        """
        rollout_s = self.busy_s["rollout"]
        ended = self.sampled + self.rewarding
        if ended > self.iteration:
            factors = self.place.factors["rollout"][self.iteration : ended]
            rollout_s -= sum(factors) * self.place.base_s["rollout"] * self.place.nodes["rollout"]
        return JobProgress(self.job.id, self.iteration - self.checkpoints.begins, rollout_s, self.busy_s["training"])

    def phase_s(self, phase: PhaseName) -> float:
        """Return the seconds of the phase that runs or comes next, without its switch."""
        number = self.sampled if phase == "rollout" else self.trained
        return self.place.base_s[phase] * self.place.factors[phase][number]

    def lost(self, now_s: float) -> float:
        """Return the number of iterations that are lost if the job dies now.

        It includes, as a fraction, the part of the unfinished iterations that has run.
        """
        ran_s = 0.0
        rollout_s, training_s = self.place.base_s["rollout"], self.place.base_s["training"]
        factors = self.place.factors
        for number in range(self.iteration, self.sampled + self.rewarding):
            ran_s += rollout_s * factors["rollout"][number]
        for number in range(self.iteration, self.trained):
            ran_s += training_s * factors["training"][number]
        for phase in PHASES:
            if (span := self.runs.get(phase)) is not None:
                began_s = self.paced.began_s if phase == "rollout" and self.paced.nodes_by_share else span[0]
                ran_s += min(max(0.0, now_s - began_s - span[1]), self.phase_s(phase))
        if ran_s:
            first = self.iteration
            ran_s /= rollout_s * factors["rollout"][first] + training_s * factors["training"][first] + self.place.sync_s
        return self.iteration - self.checkpoints.saved + ran_s
