"""The dispatcher of one co-execution group: which phase gets its run permit next.

A state machine without clock, durations or input and output: whoever drives it (the event replay from a heap, the runtime from
messages) reports what happened, then takes the permits that follow. It knows jobs by id and asks a dispatch policy; what a report
and a permit do to the group stands in `rollmux_env.kernel.dispatch.rules`.

    reports   joined, ready, threshold, finished, sampled, absent, withdraw, leaving, gone
    answers   permits(), and `migrations` with them

A sync that needs both sides of a job at once (NCCL between trainer and engines) asks for a permit too, of all the job's nodes. No
policy is asked about it. The `init` of a job, in which it loads its models and starts its engines, is granted as a sync is.

Long-tail migration: a driver whose policy has a `migration` reports when its share of a rollout's responses is done. From then on
the policy may have the rest moved to a share of the same nodes, which the tail has for itself until the rollout is finished. The
nodes are then free for the next rollout, on what the tail leaves of them.

What a policy answers is checked, so that one of a user's own breaks no rule of the group:

D1  it is None, a phase or a member of this group
D2  a phase waits for its permit, and for no sync
D3  all nodes of the phase are free
D4  a member whose tail is to move runs a rollout on all its nodes, is past the threshold, and no other tail holds one of them
D5  it is not None where every member waits for a permit and nothing runs: nothing would ever happen
"""

from __future__ import annotations

from collections.abc import Iterable

from rollmux_env.errors import PlanError
from rollmux_env.kernel.dispatch import rules
from rollmux_env.kernel.dispatch.rows import ABSENT, ROLLOUT, SYNC, TRAINING_POOL, MemberRow
from rollmux_env.scheduler.view import ALL_NODES, CODES, DispatchPolicy, GroupView, HoldName, MemberView, Permit, WaitingPhase
from rollmux_env.user_code import brief, guarded


class Dispatcher:
    """The group as a state machine.

    Args:
        number: the group's id, or `LEASE` of jobs on lent nodes.

    Attributes:
        number: as given. policy: chooses among the waiting phases. view: what it sees.
        group: what the group is at; a driver sets its `now_s` before somebody joins and before it asks.
        migrations: jobs whose tails the last `permits` moved; to be carried out before its permits.
    """

    def __init__(self, policy: DispatchPolicy, number: int = 0) -> None:
        self.number = number
        self.policy = policy
        self.view = GroupView()
        self.group = self.view.row
        self.migrations: list[str] = []
        self._rows = self.view.rows
        self._members: dict[str, MemberView] = {}
        self._inits: set[str] = set()  # members whose sync is an init

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
        row = MemberRow()
        row.nodes = sum(1 << (node + 1) for node in set(rollout_nodes)) or TRAINING_POOL
        row.planned_rollout_s, row.planned_training_s, row.sync_s = rollout_s, training_s, sync_s
        row.staleness, row.slo = staleness, slo
        rules.join(self.group, row)
        view = self._members[job_id] = MemberView(job_id, self.view, row)
        self.view.views.append(view)
        self._rows.append(row)
        self.group.n += 1

    def ready(self, job_id: str, phase: HoldName) -> bool:
        """A member's phase could run: the phase before it, and the sync before a rollout, are over; of a stale member, the last one
        of its kind and what it needs of the other. Or a sync or an init could.

        Returns:
            Whether it is still a member: False for the rollout of a member that was leaving and has now gone.
        """
        member = self._members[job_id]
        row = member.row
        if phase == "training":
            if row.trains:
                raise ValueError(f"a training of job {job_id} runs already")
        elif phase == "rollout":
            if row.leaving:
                self.gone(job_id)
                return False
            if row.rolls:
                raise ValueError(f"a rollout of job {job_id} runs already")
        rules.ready(self.group, self._rows, row, CODES[phase])
        if phase == "init":
            self._inits.add(job_id)
        if phase not in ALL_NODES:
            self.view.asked.append(member.training if phase == "training" else member.rollout)
        return True

    def sampled(self, job_id: str) -> None:
        """A stale member has run its last rollout: its turns on rollout nodes are skipped. It trains what is left."""
        self._members[job_id].row.turn_rollout = ABSENT

    def absent(self, job_id: str) -> None:
        """A member between two iterations is in nobody's way until it is ready for a rollout; then it comes after the others. A
        stale one keeps what it has sampled, with which it has `continued` then, and gives back a rollout that it has not begun."""
        row = self._members[job_id].row
        if not rules.is_between(row):
            raise ValueError(f"job {job_id} has an iteration in hand")
        rules.leave_for_now(self.group, row)
        self._forget()

    def threshold(self, job_id: str) -> None:
        """So many of the responses of a member's rollout are done that the rest may be migrated."""
        row = self._members[job_id].row
        if row.rolls != ROLLOUT:
            raise ValueError(f"the rollout of job {job_id} does not run on all of its nodes")
        rules.threshold(row)

    def continued(self, job_id: str, phase: HoldName, runs: bool, sampled: int | None = None) -> None:
        """A new member has an iteration in hand: one that it began before this dispatcher was there.

        Args:
            phase: the last one that it began. runs: it has its permit still; else it is a rollout that is over.
            sampled: rollouts that are over, and their trainings not, beyond those of which this was told; None: as the others say.
        """
        row = self._members[job_id].row
        if phase == "init":
            self._inits.add(job_id)
        elif row.turn_training == ABSENT:
            rules.enter(self.group, self._rows, row)
        if sampled is None:
            sampled = int(phase == "training" or (phase == "rollout" and not runs))
        if phase not in ALL_NODES:
            row.begun = 1
        if row.nodes != TRAINING_POOL:
            row.turn_rollout += sampled
        if runs:
            rules.begin(self.group, row, CODES[phase])

    def finished(self, job_id: str, phase: HoldName, seconds: float, counts: bool = True) -> None:
        """A phase has run and its nodes are free.

        Args:
            seconds: how long it took, for policies that go by size.
            counts: False of a rollout beside its iterations: the member's own one is still to come.
        """
        member = self._members.get(job_id)
        if member is None:
            raise ValueError(f"the {phase} of job {job_id} does not run")
        row = member.row
        if not (row.rolls if phase == "rollout" else row.trains if phase == "training" else row.syncs):
            raise ValueError(f"the {phase} of job {job_id} does not run")
        rules.finish(self.group, row, CODES[phase], seconds, counts)
        if phase == "init":
            self._inits.discard(job_id)
            row.joined_s = self.group.now_s

    def leaving(self, job_id: str) -> bool:
        """A member wants to go. It does so at the end of its iteration: when it is next ready for a rollout. A stale one goes at
        once: what it runs, or has not trained, is dropped.

        Returns:
            Whether it has gone already.
        """
        row = self._members[job_id].row
        if row.begun and not row.staleness:
            row.leaving = 1
            return False
        self.gone(job_id)
        return True

    def withdraw(self, job_id: str) -> None:
        """A member waits for no permit any more; what it runs goes on."""
        row = self._members[job_id].row
        rules.withdraw(self.group, row)
        if not row.syncs:
            self._inits.discard(job_id)
        self._forget()

    def gone(self, job_id: str) -> None:
        """A member is no longer there. What it runs is over and its nodes are free."""
        member = self._members.pop(job_id)
        self._inits.discard(job_id)
        rules.go(self.group, member.row)
        self._forget()
        self.view.views.remove(member)
        self._rows.remove(member.row)
        self.group.n -= 1

    def _forget(self) -> None:
        """Leave out phases that wait no more."""
        self.view.asked[:] = [phase for phase in self.view.asked if phase.waits]

    def permits(self) -> list[Permit]:
        """Give every permit that the policy chooses to give now; to be asked after all reports of an instant."""
        group, permits = self.group, list[Permit]()
        choose = guarded(self.policy.choose, "the dispatch policy")
        self.migrations = []
        while group.waiting or group.syncs:
            if group.syncs or group.occupied:
                rules.hold_back(group, self._rows)
            choice = choose(self.view) if group.waiting > group.occupied else None
            if choice is None:
                number = rules.next_sync(group, self._rows) if group.syncs else -1
                if number < 0:
                    self._check_goes_on()
                    break
                permits.append(self._grant_sync(number))
            elif isinstance(choice, WaitingPhase):
                permits.append(self._grant(choice))
            else:
                self._migrate(choice)
        return permits

    def _grant_sync(self, number: int) -> Permit:
        """Grant the sync of the member in row `number`, or its loading of models."""
        rules.grant(self.group, self._rows, self._rows[number], SYNC)
        job_id = self.view.views[number].job_id
        return job_id, "init" if job_id in self._inits else "sync"

    def _grant(self, phase: WaitingPhase) -> Permit:
        """Check the invariants D1 to D3 for a phase that the policy has chosen, and grant it."""
        group, member = self.group, phase.member
        if member.group is not self.view:
            raise _broken("D1", f"a phase of job {member.job_id} of another group")
        if not phase.waits or (group.occupied and phase.behind_sync):
            raise _broken("D2", f"the {phase.phase} of job {member.job_id}, which does not wait for a permit, or behind a sync")
        if phase.nodes & group.busy:
            raise _broken("D3", f"the {phase.phase} of job {member.job_id}, on a node that runs another phase")
        rules.grant(group, self._rows, member.row, CODES[phase.phase])
        self.view.asked.remove(phase)
        return member.job_id, phase.phase

    def _check_goes_on(self) -> None:
        """D5, once the policy has chosen nothing."""
        group = self.group
        if not (group.busy or group.tails) and all(row.waits_rollout or row.waits_training for row in self._rows):
            raise _broken("D5", f"nothing, though nothing runs and all {group.n} jobs of group {self.number} wait for permits")

    def _migrate(self, member: object) -> None:
        if not isinstance(member, MemberView) or member.group is not self.view:
            raise _broken("D1", f"{brief(member)}, which is no phase and no member of the group")
        row = member.row
        if not row.passed or row.rolls != ROLLOUT or row.nodes & self.group.tails:
            raise _broken("D4", f"the tail of job {member.job_id}, which is not movable")
        rules.migrate(self.group, row)
        self.migrations.append(member.job_id)


def _broken(number: str, what: str) -> PlanError:
    return PlanError(f"{number}: the dispatch policy chose {what}")
