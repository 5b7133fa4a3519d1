"""Members of a co-execution group, the requests of their phases, and permits, which the group's dispatcher keeps and gives."""

from __future__ import annotations

from typing import Literal, NamedTuple

PhaseName = Literal["rollout", "training"]
HoldName = Literal["rollout", "training", "sync"]

TRAINING_POOL = 1  # bit 0 stands for all training nodes, bit n + 1 for rollout node n
ABSENT = 1 << 62  # turn of a member that has not been ready yet, or is absent: it is in nobody's way


class Permit(NamedTuple):
    """A phase may run, now, on all its nodes.

    Attributes:
        job_id: the member.
        phase: `rollout`, `training` or `sync`.
    """

    job_id: str
    phase: HoldName


class Member:
    """A job in the group, as a dispatch policy may see it.

    Attributes:
        job_id: the job.
        order: its place in the order of admission; not consecutive.
        nodes: {phase: the nodes that the phase needs, a bit each}; a sync needs those of both phases.
        turn: {phase: meta-iteration of the member's next phase of the kind that has neither finished nor given up its nodes}.
        begun: the rollout that its next training needs has had its permit.
        rolls: whether it runs a rollout: `rollout`, or `tail` for one that was migrated, or None. trains: it runs a training.
        syncs: it runs a sync on all its nodes, and no phase beside it.
        since_s: {phase or sync: when the last one that it has run began, by `Dispatcher.now_s`}.
        passed: its rollout has reached the threshold of migration.
        worst_case_s: {phase: seconds that were planned}.
        sync_s: seconds of its sync. staleness: in versions. slo: multiple of its T_solo. joined_s: when it joined, by
            `Dispatcher.now_s`.
        served: {phase: which permit of the group its last one was; 0 of none}.
        observed_s, observed: {phase: summed seconds of, and number of, its finished phases in this group}.
        leaving: it goes when the iteration in hand is over.
    """

    __slots__ = (
        "begun",
        "job_id",
        "joined_s",
        "leaving",
        "nodes",
        "observed",
        "observed_s",
        "order",
        "passed",
        "rolls",
        "served",
        "since_s",
        "slo",
        "staleness",
        "sync_s",
        "syncs",
        "trains",
        "turn",
        "worst_case_s",
    )

    def __init__(self, job_id: str, order: int, nodes: dict[HoldName, int], worst_case_s: dict[HoldName, float]) -> None:
        self.job_id = job_id
        self.order = order
        self.nodes = nodes
        self.turn: dict[HoldName, int] = {"rollout": ABSENT, "training": ABSENT}
        self.begun = False
        self.rolls: Literal["rollout", "tail"] | None = None
        self.trains = self.syncs = False
        self.since_s: dict[HoldName, float] = {"rollout": 0.0, "training": 0.0}
        self.joined_s = 0.0
        self.passed = False
        self.worst_case_s = worst_case_s
        self.sync_s = 0.0
        self.staleness = 0
        self.slo = float("inf")
        self.served: dict[HoldName, int] = {"rollout": 0, "training": 0}
        self.observed_s: dict[HoldName, float] = {"rollout": 0.0, "training": 0.0}
        self.observed: dict[HoldName, int] = {"rollout": 0, "training": 0}
        self.leaving = False

    def expected_s(self, phase: HoldName) -> float:
        """Mean seconds of the phase so far; what was planned until one has finished."""
        return self.observed_s[phase] / self.observed[phase] if self.observed[phase] else self.worst_case_s[phase]

    def last_served(self, nodes: int) -> int:
        """Which permit of the group was its last one for any of these nodes; 0 where it has had none."""
        return max((number for phase, number in self.served.items() if self.nodes[phase] & nodes), default=0)


class Request:
    """A phase that waits for its permit.

    Attributes:
        member: whose.
        phase: `rollout` or `training`; of `Dispatcher.syncs` `sync`.
        nodes: the nodes that it needs, a bit each.
        number: requests are numbered in the order in which they became ready.
        overtaken: permits given on any of its nodes to phases that became ready later.
    """

    __slots__ = ("member", "nodes", "number", "overtaken", "phase")

    def __init__(self, member: Member, phase: HoldName, number: int) -> None:
        self.member = member
        self.phase = phase
        self.nodes = member.nodes[phase]
        self.number = number
        self.overtaken = 0
