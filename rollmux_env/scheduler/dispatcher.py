"""The dispatcher of one co-execution group: it decides which phase gets its permit next.

It is a state machine without clock, durations, input or output. Its driver (the event replay from a heap, the runtime from
messages) reports what happened, then takes the resulting permits. It knows jobs by id and asks a dispatch policy. The effects of
reports and permits on the group are in `rollmux_env.kernel.dispatch.rules`.

    reports   joined, ready, threshold, finished, sampled, absent, withdraw, leaving, gone
    answers   permits(), and `migrations` with them

A sync that needs both sides of a job at once (NCCL between trainer and engines) also asks for a permit, for all the job's nodes.
The policy is not asked about it. The `init` of a job, in which it loads its models and starts its engines, is granted like a sync.

Long-tail migration: if the policy has a `migration`, the driver reports when its share of a rollout's responses is done. From then
on the policy may move the rest to a share of the same nodes, which the tail holds alone until the rollout is finished. The next
rollout can start on the part of the nodes that the tail leaves.

The policy's answers are checked, so that a user's policy cannot break a rule of the group. An error begins with the name of its
rule:

D1  the answer is None, a phase or a member of this group
D2  the phase waits for its permit, and for no sync
D3  all nodes of the phase are free
D4  a member whose tail is to move runs a rollout on all its nodes, is past the threshold, and no other tail holds one of them
D5  the answer is not None if every member waits for a permit and nothing runs, since the group would be stuck
"""

from __future__ import annotations

from collections.abc import Iterable

from rollmux_env.errors import PlanError
from rollmux_env.kernel.dispatch import rules
from rollmux_env.kernel.dispatch.rows import ABSENT, ROLLOUT, SYNC, TRAINING_POOL, MemberRow
from rollmux_env.scheduler.view import ALL_NODES, CODES, DispatchPolicy, GroupView, HoldName, MemberView, Permit, WaitingPhase
from rollmux_env.user_code import brief, guarded


class Dispatcher:
    """The state machine of a group.

    Args:
        policy: Dispatch policy.
        number: Id of the group, or `PROFILING_GROUP` for jobs on lent nodes.

    Attributes:
        number: Id of the group, or `PROFILING_GROUP`.
        view: View of the group for the policy.
        group: State of the group. A driver sets its `now_s` before a job joins and before it asks for permits.
        migrations: Identifiers of the jobs whose tails the last call of `permits` moved. The driver migrates them before it
            starts the permitted phases.
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

    @property
    def policy(self) -> DispatchPolicy:
        """Policy that chooses among the waiting phases."""
        return self._policy

    @policy.setter
    def policy(self, policy: DispatchPolicy) -> None:
        self._policy, self._choose = policy, guarded(policy.choose, "the dispatch policy")

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
        """Add a job as the last member of the group. It takes part from the first time that it is ready.

        Args:
            job_id: Identifier of the job.
            rollout_nodes: Numbers of the job's rollout nodes; empty if its rollouts use the training nodes.
            rollout_s: Worst case of a rollout in seconds, for policies that consider durations.
            training_s: Worst case of a training in seconds, for policies that consider durations.
            sync_s: Planned seconds of a sync.
            staleness: Staleness, in versions.
            slo: Largest acceptable slowdown as a multiple of T_solo, for policies that consider slack.

        Raises:
            ValueError: If the job is a member already.
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
        """Report that a phase of a member could run.

        A rollout is ready after the last training and sync, a training after its rollout. A stale member's phase is ready when the
        previous one of its kind is over and it has what it needs from the other kind. A sync or an init may be ready too.

        Args:
            job_id: Identifier of the member.
            phase: Phase that is ready.

        Returns:
            Whether the job is still a member. A leaving member that is ready for a rollout is removed instead.

        Raises:
            ValueError: If a phase of this kind runs already.
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
        """Report that a stale member has run its last rollout. Its turns on rollout nodes are skipped; it trains the rest."""
        self._members[job_id].row.turn_rollout = ABSENT

    def absent(self, job_id: str) -> None:
        """Report that a member between two iterations is absent.

        It blocks no other member until it is ready for a rollout, and then comes after the others. A stale member keeps its
        untrained samples, with which it has `continued` then, and gives back a rollout that it has not begun.

        Raises:
            ValueError: If the member has an unfinished iteration.
        """
        if not rules.is_between(self._members[job_id].row):
            raise ValueError(f"job {job_id} has an unfinished iteration")
        self.drop_iteration(job_id)

    def drop_iteration(self, job_id: str) -> None:
        """Report that a member which trains and syncs nothing drops its iteration in progress, and is absent from then on."""
        rules.suspend(self.group, self._members[job_id].row)
        self._drop_withdrawn()

    def threshold(self, job_id: str) -> None:
        """Report that enough responses of a member's rollout are done for the rest to migrate.

        Raises:
            ValueError: If the rollout does not run on all of its nodes.
        """
        row = self._members[job_id].row
        if row.rolls != ROLLOUT:
            raise ValueError(f"the rollout of job {job_id} does not run on all of its nodes")
        rules.threshold(row)

    def continued(self, job_id: str, phase: HoldName, runs: bool, sampled: int | None = None) -> None:
        """Report that a new member has an unfinished iteration, which it began before this dispatcher existed.

        Args:
            job_id: Identifier of the member.
            phase: Last phase that it began.
            runs: Whether the phase still has its permit; otherwise it is a finished rollout.
            sampled: Number of finished rollouts without finished training that were not reported before, or None to derive it from
                `phase` and `runs`.
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
        """Report that a phase has run, which frees its nodes.

        Args:
            job_id: Identifier of the member.
            phase: Phase that has run.
            seconds: Duration, for policies that consider durations.
            counts: Whether the phase belongs to an iteration; False for an additional rollout.

        Raises:
            ValueError: If the phase does not run.
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
        """Report that a member wants to leave.

        It leaves at the end of its iteration: when it is next ready for a rollout. A member without an iteration in progress leaves
        at once. So does a stale member: its running phases and its untrained samples are dropped.

        Returns:
            Whether it has left already.
        """
        row = self._members[job_id].row
        if row.begun and not row.staleness:
            row.leaving = 1
            return False
        self.gone(job_id)
        return True

    def withdraw(self, job_id: str) -> None:
        """Withdraw a member's requests for permits. Its running phases continue."""
        row = self._members[job_id].row
        rules.withdraw(self.group, row)
        if not row.syncs:
            self._inits.discard(job_id)
        self._drop_withdrawn()

    def gone(self, job_id: str) -> None:
        """Remove a member, which also ends its phases and frees their nodes."""
        member = self._members.pop(job_id)
        self._inits.discard(job_id)
        rules.end_all(self.group, member.row)
        self._drop_withdrawn()
        self.view.views.remove(member)
        self._rows.remove(member.row)
        self.group.n -= 1

    def _drop_withdrawn(self) -> None:
        """Remove phases that no longer wait."""
        self.view.asked[:] = [phase for phase in self.view.asked if phase.is_waiting]

    def permits(self) -> list[Permit]:
        """Return all permits that the policy gives now. It is called after all reports of an instant.

        Raises:
            PlanError: If the policy broke a rule or raised an exception.
        """
        group, permits = self.group, list[Permit]()
        self.migrations = []
        while group.waiting or group.syncs:
            if group.syncs or group.occupied:
                rules.hold_back(group, self._rows)
            choice = self._choose(self.view) if group.waiting > group.occupied else None
            if choice is None:
                number = rules.next_sync(group, self._rows) if group.syncs else -1
                if number < 0:
                    self._check_not_stuck()
                    break
                permits.append(self._grant_sync(number))
            elif isinstance(choice, WaitingPhase):
                permits.append(self._grant(choice))
            else:
                self._migrate(choice)
        return permits

    def _grant_sync(self, number: int) -> Permit:
        """Grant the sync or the init of the member in row `number`."""
        rules.grant(self.group, self._rows, self._rows[number], SYNC)
        job_id = self.view.views[number].job_id
        return job_id, "init" if job_id in self._inits else "sync"

    def _grant(self, phase: WaitingPhase) -> Permit:
        """Check D1 to D3 for a phase that the policy has chosen, and grant it."""
        group, member = self.group, phase.member
        if member.group is not self.view:
            raise _broken("D1", f"a phase of job {member.job_id} of another group")
        if not phase.is_waiting or (group.occupied and phase.behind_sync):
            raise _broken("D2", f"the {phase.phase} of job {member.job_id}, which does not wait for a permit, or behind a sync")
        if phase.nodes & group.busy:
            raise _broken("D3", f"the {phase.phase} of job {member.job_id}, on a node that runs another phase")
        rules.grant(group, self._rows, member.row, CODES[phase.phase])
        self.view.asked.remove(phase)
        return member.job_id, phase.phase

    def _check_not_stuck(self) -> None:
        """Check D5 after the policy has chosen nothing."""
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
