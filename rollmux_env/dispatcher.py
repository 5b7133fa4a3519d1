"""The dispatcher of one co-execution group: which phase gets its run permit next.

A state machine without clock, durations or input and output: whoever drives it (the event replay from a heap, the runtime from
messages) reports what happened, then takes the permits that follow. It counts; a dispatch policy chooses.

    reports   joined, ready, finished, leaving, gone
    answers   permits()

A member is a cycle: rollout on all the rollout nodes that it is pinned to, training on all of the group's training nodes, sync,
and again. A permit is given for all nodes of a phase at once, so nobody holds one node while it waits for another: there is no
deadlock whatever the policy chooses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple, Protocol

PhaseName = Literal["rollout", "training"]

_TRAINING_POOL = 1  # bit 0 stands for all training nodes, bit n + 1 for rollout node n
_ABSENT = 1 << 62  # turn of a member that has not been ready yet: it is in nobody's way


class Permit(NamedTuple):
    """A phase may run, now, on all its nodes.

    Attributes:
        job_id: the member.
        phase: `rollout` or `training`.
    """

    job_id: str
    phase: PhaseName


class Member:
    """A job in the group, as a dispatch policy may see it.

    Attributes:
        job_id: the job.
        order: its place in the order of admission; not consecutive.
        nodes: {phase: the nodes that the phase needs, a bit each}.
        turn: {phase: meta-iteration of the member's next phase of the kind that is not finished}.
        begun: its rollout of the meta-iteration in hand has had its permit.
        worst_case_s: {phase: seconds that were planned}.
        observed_s, observed: {phase: summed seconds of, and number of, its finished phases in this group}.
        leaving: it goes when the iteration in hand is over.
    """

    __slots__ = ("begun", "job_id", "leaving", "nodes", "observed", "observed_s", "order", "turn", "worst_case_s")

    def __init__(self, job_id: str, order: int, nodes: dict[PhaseName, int], worst_case_s: dict[PhaseName, float]) -> None:
        self.job_id = job_id
        self.order = order
        self.nodes = nodes
        self.turn: dict[PhaseName, int] = {"rollout": _ABSENT, "training": _ABSENT}
        self.begun = False
        self.worst_case_s = worst_case_s
        self.observed_s: dict[PhaseName, float] = {"rollout": 0.0, "training": 0.0}
        self.observed: dict[PhaseName, int] = {"rollout": 0, "training": 0}
        self.leaving = False

    def expected_s(self, phase: PhaseName) -> float:
        """Mean seconds of the phase so far; what was planned until one has finished."""
        return self.observed_s[phase] / self.observed[phase] if self.observed[phase] else self.worst_case_s[phase]


class Request:
    """A phase that waits for its permit.

    Attributes:
        member: whose.
        phase: `rollout` or `training`.
        nodes: the nodes that it needs, a bit each.
        number: requests are numbered in the order in which they became ready.
        overtaken: permits given on any of its nodes to phases that became ready later.
    """

    __slots__ = ("member", "nodes", "number", "overtaken", "phase")

    def __init__(self, member: Member, phase: PhaseName, number: int) -> None:
        self.member = member
        self.phase = phase
        self.nodes = member.nodes[phase]
        self.number = number
        self.overtaken = 0


class DispatchPolicy(Protocol):
    """Who decides which waiting phase gets its nodes next. One object serves many groups and keeps nothing between calls."""

    def choose(self, group: Dispatcher) -> Request | None:
        """One of `group.waiting` whose nodes are all free, or None: nothing runs until something else is reported."""
        ...


class Dispatcher:
    """The group as a state machine.

    Attributes:
        policy: chooses among the waiting phases.
        waiting: phases that wait for a permit, in the order in which they became ready.
        busy: the nodes that run a phase, a bit each.
    """

    def __init__(self, policy: DispatchPolicy) -> None:
        self.policy = policy
        self.waiting: list[Request] = []
        self.busy = 0
        self._members: dict[str, Member] = {}
        self._running: dict[str, PhaseName] = {}
        self._joined = 0
        self._requests = 0

    @property
    def members(self) -> Collection[Member]:
        """In order of admission."""
        return self._members.values()

    def joined(self, job_id: str, rollout_nodes: Iterable[int], rollout_s: float, training_s: float) -> None:
        """A job is the last member of the group from now on; it takes part from the first time that it is ready.

        Args:
            rollout_nodes: numbers of those that it is pinned to; none of a co-located job, whose rollouts take the training nodes.
            rollout_s, training_s: worst cases, seconds; for policies that go by size.
        """
        if job_id in self._members:
            raise ValueError(f"job {job_id} is a member already")
        pins = sum(1 << (node + 1) for node in set(rollout_nodes)) or _TRAINING_POOL
        nodes: dict[PhaseName, int] = {"rollout": pins, "training": _TRAINING_POOL}
        self._members[job_id] = Member(job_id, self._joined, nodes, {"rollout": rollout_s, "training": training_s})
        self._joined += 1

    def ready(self, job_id: str, phase: PhaseName) -> bool:
        """A member's phase could run: the phase before it, and the sync before a rollout, are over.

        Returns:
            Whether it is still a member: False for the rollout of a member that was leaving and has now gone.
        """
        member = self._members[job_id]
        if phase == "rollout":
            if member.leaving:
                self.gone(job_id)
                return False
            if member.turn["rollout"] == _ABSENT:
                self._enter(member)
        self.waiting.append(Request(member, phase, self._requests))
        self._requests += 1
        return True

    def finished(self, job_id: str, phase: PhaseName, seconds: float) -> None:
        """A phase has run and its nodes are free.

        Args:
            seconds: how long it took, for policies that go by size.
        """
        if self._running.pop(job_id, None) != phase:
            raise ValueError(f"the {phase} of job {job_id} does not run")
        member = self._members[job_id]
        self.busy &= ~member.nodes[phase]
        member.turn[phase] += 1
        member.observed_s[phase] += seconds
        member.observed[phase] += 1
        if phase == "training":
            member.begun = False

    def leaving(self, job_id: str) -> bool:
        """A member wants to go. It does so at the end of its iteration: when it is next ready for a rollout.

        Returns:
            Whether it has gone already, because it has no iteration in hand.
        """
        member = self._members[job_id]
        if member.begun:
            member.leaving = True
            return False
        self.gone(job_id)
        return True

    def gone(self, job_id: str) -> None:
        """A member is no longer there. A phase that it runs is over and its nodes are free."""
        member = self._members.pop(job_id)
        phase = self._running.pop(job_id, None)
        if phase is not None:
            self.busy &= ~member.nodes[phase]
        self.waiting = [request for request in self.waiting if request.member is not member]

    def permits(self) -> list[Permit]:
        """Give every permit that the policy chooses to give now; to be asked after all reports of an instant."""
        permits = []
        while self.waiting:
            request = self.policy.choose(self)
            if request is None:
                break
            nodes = request.nodes
            if nodes & self.busy:
                raise ValueError(f"the dispatch policy gave job {request.member.job_id} a node that runs another phase")
            self.waiting.remove(request)
            for other in self.waiting:
                if other.nodes & nodes and other.number < request.number:
                    other.overtaken += 1
            self.busy |= nodes
            member = request.member
            member.begun = True
            self._running[member.job_id] = request.phase
            permits.append(Permit(member.job_id, request.phase))
        return permits

    def _enter(self, member: Member) -> None:
        """Give a new member its first meta-iteration: the one after the oldest in progress.

        The members in front may be in it already, never those behind: of two moves into a group the second may end its pause first.
        """
        turn = 0
        present = [other for other in self._members.values() if other.turn["training"] != _ABSENT]
        if present:
            turn = min(other.turn["training"] for other in present)
            turn += any(other.begun or other.turn["training"] > turn for other in present)
        for other in present:
            if other.order > member.order:
                turn = max(turn, other.turn["training"] + other.begun)
        member.turn = {"rollout": turn, "training": turn}
