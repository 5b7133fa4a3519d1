"""The dispatcher of one co-execution group: which phase gets its run permit next.

A state machine without clock, durations or input and output: whoever drives it (the event replay from a heap, the runtime from
messages) reports what happened, then takes the permits that follow. It counts; a dispatch policy chooses.

    reports   joined, ready, threshold, finished, sampled, absent, withdraw, leaving, gone
    answers   permits(), and `migrations` with them

A sync that needs both sides of a job at once (NCCL between trainer and engines) asks for a permit too, of all the job's nodes. No
policy is asked about it: it begins when these are free, and phases on them that became ready later wait for it.

A member is a cycle: rollout on all the rollout nodes that it is pinned to, training on all of the group's training nodes, sync,
and again. A permit is given for all nodes of a phase at once, so nobody holds one node while it waits for another: there is no
deadlock whatever the policy chooses. A stale member's next rollouts become ready while it trains: it may run one phase on either
side, each in meta-iterations of its own.

Long-tail migration: a driver whose policy has a `migration` reports when its share of a rollout's responses is done. From then on
the policy may have the rest moved to a share of the same nodes, which the tail has for itself until the rollout is finished. The
nodes are then free for the next rollout, on what the tail leaves of them. A node holds one full phase and one tail at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from rollmux_env.errors import InputError, PlanError
from rollmux_env.scheduler.asking import raised
from rollmux_env.scheduler.members import ABSENT, TRAINING_POOL, HoldName, Member, Permit, Request


class DispatchPolicy(Protocol):
    """Who decides which waiting phase gets its nodes next. One object serves many groups and keeps nothing between calls.

    One that migrates tails has an attribute `migration`: a `rollmux_env.timing.migration.Migration`.
    """

    def choose(self, group: Dispatcher) -> Request | Member | None:
        """Decide one thing; asked again until there is nothing to do.

        Returns:
            One of `group.waiting` whose nodes are all free; or one of `group.movable`, whose tail then leaves its nodes but for a
            share; or None: nothing happens until something else is reported.
        """
        ...


class Dispatcher:
    """The group as a state machine.

    Attributes:
        policy: chooses among the waiting phases.
        waiting: phases that wait for a permit, in the order in which they became ready; while the policy chooses, those that do
            not wait for a sync. syncs: those that wait for a permit, in the same order.
        busy: the nodes that run a full phase, a bit each. tails: those of which a migrated tail holds a share.
        migrations: jobs whose tails the last `permits` moved; to be carried out before its permits.
        now_s: the driver's clock, seconds, which it sets before somebody joins and before it asks; for policies that go by time.
    """

    def __init__(self, policy: DispatchPolicy) -> None:
        self.policy = policy
        self.waiting: list[Request] = []
        self.syncs: list[Request] = []
        self.busy = 0
        self.tails = 0
        self.migrations: list[str] = []
        self.now_s = 0.0
        self._members: dict[str, Member] = {}
        self._joined = 0
        self._requests = 0
        self._permits = 0

    @property
    def members(self) -> Collection[Member]:
        """In order of admission."""
        return self._members.values()

    @property
    def movable(self) -> list[Member]:
        """Members whose tail may be migrated: past the threshold, on nodes that hold no other tail and that a rollout waits for."""
        wanted = 0
        for request in self.waiting:
            if request.phase == "rollout":
                wanted |= request.nodes
        members = self._members.values()
        return [
            member
            for member in members
            if member.passed
            and member.rolls == "rollout"
            and member.nodes["rollout"] & wanted
            and not member.nodes["rollout"] & self.tails
        ]

    def joined(
        self,
        job_id: str,
        rollout_nodes: Iterable[int],
        rollout_s: float,
        training_s: float,
        sync_s: float = 0.0,
        staleness: int = 0,
        slo: float = float("inf"),
    ) -> None:
        """A job is the last member of the group from now on; it takes part from the first time that it is ready.

        Args:
            rollout_nodes: numbers of those that it is pinned to; none of a job whose rollouts take the training nodes.
            rollout_s, training_s: worst cases, seconds; for policies that go by size.
            sync_s: seconds. staleness: in versions. slo: multiple of T_solo; for policies that go by what a member has left of it.
        """
        if job_id in self._members:
            raise ValueError(f"job {job_id} is a member already")
        pins = sum(1 << (node + 1) for node in set(rollout_nodes)) or TRAINING_POOL
        nodes: dict[HoldName, int] = {"rollout": pins, "training": TRAINING_POOL, "sync": pins | TRAINING_POOL}
        member = self._members[job_id] = Member(job_id, self._joined, nodes, {"rollout": rollout_s, "training": training_s})
        member.sync_s, member.staleness, member.slo, member.joined_s = sync_s, staleness, slo, self.now_s
        self._joined += 1

    def ready(self, job_id: str, phase: HoldName) -> bool:
        """A member's phase could run: the phase before it, and the sync before a rollout, are over; of a stale member, the last one
        of its kind and what it needs of the other. Or a sync could.

        Returns:
            Whether it is still a member: False for the rollout of a member that was leaving and has now gone.
        """
        member = self._members[job_id]
        if phase == "training":
            if member.trains:
                raise ValueError(f"a training of job {job_id} runs already")
        elif phase == "rollout":
            if member.leaving:
                self.gone(job_id)
                return False
            if member.rolls is not None:
                raise ValueError(f"a rollout of job {job_id} runs already")
            if member.turn["rollout"] == ABSENT:
                self._enter(member)
        (self.syncs if phase == "sync" else self.waiting).append(Request(member, phase, self._requests))
        self._requests += 1
        return True

    def sampled(self, job_id: str) -> None:
        """A stale member has run its last rollout: its turns on rollout nodes are skipped. It trains what is left."""
        self._members[job_id].turn["rollout"] = ABSENT

    def absent(self, job_id: str) -> None:
        """A member between two iterations is in nobody's way until it is ready for a rollout; then it comes after the others. A
        stale one keeps what it has sampled, with which it has `continued` then, and gives back a rollout that it has not begun."""
        member = self._members[job_id]
        if member.trains or member.syncs or (not member.staleness and (member.begun or member.rolls is not None)):
            raise ValueError(f"job {job_id} has an iteration in hand")
        self._end_rollout(member)
        self._drop(member)
        member.begun = False
        member.turn = {"rollout": ABSENT, "training": ABSENT}

    def threshold(self, job_id: str) -> None:
        """So many of the responses of a member's rollout are done that the rest may be migrated."""
        member = self._members[job_id]
        if member.rolls != "rollout":
            raise ValueError(f"the rollout of job {job_id} does not run on all of its nodes")
        member.passed = bool(member.nodes["rollout"] & ~TRAINING_POOL)

    def continued(self, job_id: str, phase: HoldName, runs: bool, sampled: int | None = None) -> None:
        """A new member has an iteration in hand: one that it began before this dispatcher was there.

        Args:
            phase: the last one that it began. runs: it has its permit still; else it is a rollout that is over.
            sampled: rollouts that are over, and their trainings not, beyond those of which this was told; None: as the others say.
        """
        member = self._members[job_id]
        if member.turn["training"] == ABSENT:
            self._enter(member)
        if sampled is None:
            sampled = int(phase == "training" or (phase == "rollout" and not runs))
        if phase != "sync":
            member.begun = True
        if member.nodes["rollout"] != TRAINING_POOL:
            member.turn["rollout"] += sampled
        if runs:
            self._begin(member, phase)

    def finished(self, job_id: str, phase: HoldName, seconds: float, counts: bool = True) -> None:
        """A phase has run and its nodes are free.

        Args:
            seconds: how long it took, for policies that go by size.
            counts: False of a rollout beside its iterations: the member's own one is still to come.
        """
        member = self._members.get(job_id)
        if member is None or not (member.trains if phase == "training" else member.rolls if phase == "rollout" else member.syncs):
            raise ValueError(f"the {phase} of job {job_id} does not run")
        if phase == "sync":
            self._end_sync(member)
            return
        turn = member.turn
        pinned = member.nodes["rollout"] != TRAINING_POOL  # else nobody comes between a rollout and its training
        if phase == "training":
            self.busy &= ~TRAINING_POOL
            member.trains = False
            turn["training"] += 1
            turn["rollout"] += not pinned
        else:
            turn["rollout"] += counts and pinned and member.rolls != "tail"
            self._end_rollout(member)
        if phase == "training" or not counts:
            member.begun = member.staleness > 0 and (turn["rollout"] > turn["training"] or member.rolls is not None)
        if not counts:
            return
        member.observed_s[phase] += seconds
        member.observed[phase] += 1

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

    def withdraw(self, job_id: str) -> None:
        """A member waits for no permit any more; what it runs goes on."""
        self._drop(self._members[job_id])

    def gone(self, job_id: str) -> None:
        """A member is no longer there. What it runs is over and its nodes are free."""
        member = self._members.pop(job_id)
        if member.trains:
            self.busy &= ~TRAINING_POOL
        self._end_sync(member)
        self._end_rollout(member)
        self._drop(member)

    def permits(self) -> list[Permit]:
        """Give every permit that the policy chooses to give now; to be asked after all reports of an instant."""
        permits = []
        self.migrations = []
        while self.waiting or self.syncs:
            choice = self._choose() or self._next_sync()
            if choice is None:
                break
            if isinstance(choice, Member):
                self._migrate(choice)
                continue
            request = choice
            if request not in self.waiting and request not in self.syncs:
                raise PlanError("the dispatch policy chose what is neither None nor one of the waiting phases or movable members")
            nodes = request.nodes
            if nodes & self.busy:
                raise PlanError(f"the dispatch policy gave job {request.member.job_id} a node that runs another phase")
            (self.syncs if request.phase == "sync" else self.waiting).remove(request)
            for other in self.waiting:
                if other.nodes & nodes and other.number < request.number:
                    other.overtaken += 1
            member = request.member
            self._begin(member, request.phase)
            member.begun |= request.phase != "sync"
            self._permits += 1
            member.served[request.phase] = self._permits
            permits.append(Permit(member.job_id, request.phase))
        return permits

    def _choose(self) -> Request | Member | None:
        """Ask the policy about the phases that wait for no sync."""
        everybody = self.waiting
        if self.syncs:
            self.waiting = [one for one in everybody if not self._waits_for_sync(one)]
        try:
            return self.policy.choose(self) if self.waiting else None
        except (InputError, PlanError):
            raise
        except Exception as error:
            raise raised(error) from error
        finally:
            self.waiting = everybody

    def _next_sync(self) -> Request | None:
        """The first sync whose nodes are all free."""
        if not self.syncs:
            return None
        taken = self.busy | self.tails
        return next((sync for sync in self.syncs if not sync.nodes & taken and not self._waits_for_sync(sync)), None)

    def _waits_for_sync(self, request: Request) -> bool:
        """Whether a sync that became ready before it needs one of its nodes."""
        return any(sync.number < request.number and sync.nodes & request.nodes for sync in self.syncs)

    def _drop(self, member: Member) -> None:
        """A member waits for nothing."""
        self.waiting = [request for request in self.waiting if request.member is not member]
        self.syncs = [request for request in self.syncs if request.member is not member]

    def _migrate(self, member: Member) -> None:
        """The tail of a rollout leaves its nodes but for a share. What comes after it on them is the next rollout's turn."""
        nodes = member.nodes["rollout"]
        if not member.passed or member.rolls != "rollout" or nodes & self.tails:
            raise PlanError(f"the dispatch policy migrated the rollout of job {member.job_id}, which is not movable")
        self.busy &= ~nodes
        self.tails |= nodes
        member.rolls, member.since_s["rollout"] = "tail", self.now_s
        member.turn["rollout"] += 1
        self.migrations.append(member.job_id)

    def _begin(self, member: Member, phase: HoldName) -> None:
        """A member runs a phase or a sync, and has its nodes."""
        self.busy |= member.nodes[phase]
        member.since_s[phase] = self.now_s
        if phase == "rollout":
            member.rolls = "rollout"
        elif phase == "training":
            member.trains = True
        else:
            member.syncs = True

    def _end_sync(self, member: Member) -> None:
        """All nodes of a member are free, if it runs a sync."""
        if member.syncs:
            self.busy &= ~member.nodes["sync"]
        member.syncs = False

    def _end_rollout(self, member: Member) -> None:
        """What a member holds of rollout nodes is free, if it runs a rollout."""
        if member.rolls == "tail":
            self.tails &= ~member.nodes["rollout"]
        elif member.rolls is not None:
            self.busy &= ~member.nodes["rollout"]
        member.rolls, member.passed = None, False

    def _enter(self, member: Member) -> None:
        """Give a new member its first meta-iteration, on all its nodes: the one after the oldest of a training in progress. Of two
        different ones, on the two sides, it would run at a longer period for ever.

        The members in front may be in it already, never those behind: of two moves into a group the second may end its pause first.
        """
        turn = 0
        present = [other for other in self._members.values() if other.turn["training"] != ABSENT]
        if present:
            turn = min(other.turn["training"] for other in present)
            turn += any(other.begun or other.turn["training"] > turn for other in present)
        for other in present:
            if other.order > member.order:
                turn = max(turn, other.turn["training"] + other.begun)
        member.turn = {"rollout": turn, "training": turn}
