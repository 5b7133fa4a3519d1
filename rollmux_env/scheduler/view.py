"""The view of a group that a dispatch policy sees: `GroupView`. It is read-only, and stays stable when the rows below it change.

docs/reference/dispatch.md explains how to write a policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Literal, Protocol

from rollmux_env.kernel.dispatch.rows import HELD, ROLLOUT, SYNC, TAIL, TRAINING, TRAINING_POOL, GroupRow, MemberRow
from rollmux_env.kernel.dispatch.turns import awaited_nodes, movable

PhaseName = Literal["rollout", "training"]
HoldName = Literal["init", "rollout", "training", "sync"]
Permit = tuple[str, HoldName]  # a job, and its phase or sync that may run now on all its nodes

CODES: dict[HoldName, int] = {"init": SYNC, "rollout": ROLLOUT, "training": TRAINING, "sync": SYNC}
ALL_NODES: frozenset[HoldName] = frozenset({"init", "sync"})
"""Phases that hold all nodes of their job."""


class DispatchPolicy(Protocol):
    """Protocol of a dispatch policy, which decides which waiting phase gets its nodes next.

    One object serves many groups and keeps no state between calls. A policy that migrates tails has an attribute `migration`: a
    `rollmux_env.timing.tail.Migration`.
    """

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        """Make one decision. It is called again until it returns None.

        Returns:
            One of `group.waiting` whose nodes are all free; one of `group.movable`, whose tail then leaves its nodes except for a
            share; or None, if nothing is to happen until the next report.
        """
        ...


class _ReadOnly:
    """Object whose attributes can be set only by `_set`, once, when it is made."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} of a {type(self).__name__} cannot be set")

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


class WaitingPhase(_ReadOnly):
    """A phase that waits for its permit.

    Attributes:
        member: Member of the group.
        phase: `rollout` or `training`.
        nodes: Nodes that it needs, as a bit mask: bit 0 for all training nodes of the group, bit n + 1 for rollout node n.
    """

    __slots__ = ("_row", "member", "nodes", "phase")
    member: MemberView
    phase: PhaseName
    nodes: int
    _row: MemberRow

    def __init__(self, member: MemberView, phase: PhaseName) -> None:
        nodes = member.row.nodes if phase == "rollout" else TRAINING_POOL
        self._set(member=member, phase=phase, nodes=nodes, _row=member.row)

    @property
    def number(self) -> int:
        """Number of the phase, in the order in which phases became ready."""
        return self._row.rollout_number if self.phase == "rollout" else self._row.training_number

    @property
    def overtaken(self) -> int:
        """Number of permits given on any of its nodes to phases that became ready later."""
        return self._row.rollout_overtaken if self.phase == "rollout" else self._row.training_overtaken

    @property
    def is_waiting(self) -> bool:
        """Whether it waits now."""
        return bool(self._row.waits_rollout if self.phase == "rollout" else self._row.waits_training)

    @property
    def behind_sync(self) -> bool:
        """Whether it waits for a sync that became ready before it."""
        return (self._row.waits_rollout if self.phase == "rollout" else self._row.waits_training) == HELD

    @property
    def expected_s(self) -> float:
        """Mean seconds of the member's phases of this kind in this group, or the worst case before the first has finished."""
        return self._row.rollout_s if self.phase == "rollout" else self._row.training_s


def _of_row(name: str) -> Any:
    """Return a property that reads an attribute of the engine's row."""
    return property(attrgetter(f"row.{name}"))


class MemberView(_ReadOnly):
    """A job in the group.

    Attributes:
        job_id: Identifier of the job.
        group: Group of which it is a member.
        rollout: Rollout of the member, waiting or not.
        training: Training of the member, waiting or not.
        order: Rank in the order of admission; numbers are not consecutive.
        nodes: Nodes of its rollouts as in `WaitingPhase.nodes`; only bit 0 if they use the training nodes.
        rollout_turn: Number of the meta-iteration of its next rollout, or 2^62 if it takes no part. In a meta-iteration every
            member runs one rollout and one training.
        training_turn: Number of the meta-iteration of its next training, or 2^62 if it takes no part.
        passed: 1 if its rollout has reached the threshold of migration, else 0.
        trains: 1 if it runs a training, else 0.
        syncs: 1 if it runs a sync that holds all its nodes, else 0.
        staleness: Largest number of versions by which the weights that sampled a response may be old; above 0 it samples while it
            trains.
        sync_s: Planned seconds of a sync.
        slo: Largest acceptable slowdown, as a multiple of T_solo.
        joined_s: Time at which it joined, on the clock of `GroupView.now_s`.
        row: State of the engine, not for policies: it may change in any version.
    """

    __slots__ = ("group", "job_id", "rollout", "row", "training")
    job_id: str
    group: GroupView
    row: MemberRow
    rollout: WaitingPhase
    training: WaitingPhase

    order: int = _of_row("order")
    nodes: int = _of_row("nodes")
    rollout_turn: int = _of_row("turn_rollout")
    training_turn: int = _of_row("turn_training")
    passed: int = _of_row("passed")
    trains: int = _of_row("trains")
    syncs: int = _of_row("syncs")
    staleness: int = _of_row("staleness")
    sync_s: float = _of_row("sync_s")
    slo: float = _of_row("slo")
    joined_s: float = _of_row("joined_s")

    def __init__(self, job_id: str, group: GroupView, row: MemberRow) -> None:
        self._set(job_id=job_id, group=group, row=row)
        self._set(rollout=WaitingPhase(self, "rollout"), training=WaitingPhase(self, "training"))

    @property
    def rolls(self) -> Literal["rollout", "tail"] | None:
        """`rollout` if it runs one on all its nodes, `tail` if its tail has migrated, else None."""
        return "tail" if self.row.rolls == TAIL else "rollout" if self.row.rolls else None

    @property
    def finished_s(self) -> float:
        """Sum of the seconds of the phases that it has finished in this group."""
        return self.row.sum_rollout_s + self.row.sum_training_s

    def last_served(self, nodes: int) -> int:
        """Return the number of the last permit that it got for any of some nodes, or 0 if it got none.

        The group numbers its permits in the order in which it gives them, so a smaller number means longer ago.

        Args:
            nodes: Nodes as a bit mask, as in `WaitingPhase.nodes`.
        """
        row = self.row
        return max(row.served_rollout if row.nodes & nodes else 0, row.served_training if nodes & TRAINING_POOL else 0)


class GroupView(_ReadOnly):
    """A co-execution group at the time of a decision.

    Attributes:
        now_s: Current time in seconds, on the driver's clock.
        busy: Nodes that run a full phase, as a bit mask like `WaitingPhase.nodes`.
        tails: Nodes of which a migrated tail holds a share, as a bit mask like `WaitingPhase.nodes`.
        row: State of the engine, not for policies.
        rows: State of the engine, not for policies.
        views: State of the engine, not for policies.
        asked: State of the engine, not for policies.
    """

    __slots__ = ("asked", "row", "rows", "views")
    row: GroupRow
    rows: list[MemberRow]
    views: list[MemberView]
    asked: list[WaitingPhase]

    now_s: float = _of_row("now_s")
    busy: int = _of_row("busy")
    tails: int = _of_row("tails")

    def __init__(self) -> None:
        self._set(row=GroupRow(), rows=[], views=[], asked=[])

    @property
    def members(self) -> Sequence[MemberView]:
        """Members in order of admission."""
        return tuple(self.views)

    @property
    def waiting(self) -> list[WaitingPhase]:
        """Phases that wait for a permit, in the order in which they became ready, without those that wait for a sync."""
        return [phase for phase in self.asked if not phase.behind_sync] if self.row.occupied else [*self.asked]

    @property
    def movable(self) -> list[MemberView]:
        """Members whose tail may migrate: past the threshold, on nodes that hold no other tail and for which a rollout waits."""
        nodes = awaited_nodes(self.row, self.rows)
        return [view for view in self.views if movable(self.row, view.row, nodes)]
