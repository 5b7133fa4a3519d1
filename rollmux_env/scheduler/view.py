"""What a dispatch policy sees of a group: `GroupView`. It stays as it is when the rows below it change; nothing in it can be set.

docs/reference/dispatch.md tells how to write a policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Literal, Protocol

from rollmux_env.kernel.dispatch.rows import HELD, ROLLOUT, SYNC, TAIL, TRAINING, TRAINING_POOL, GroupRow, MemberRow
from rollmux_env.kernel.dispatch.turns import movable, wanted

PhaseName = Literal["rollout", "training"]
HoldName = Literal["init", "rollout", "training", "sync"]
Permit = tuple[str, HoldName]  # whose phase or sync may run, now, on all its nodes

CODES: dict[HoldName, int] = {"init": SYNC, "rollout": ROLLOUT, "training": TRAINING, "sync": SYNC}
ALL_NODES: frozenset[HoldName] = frozenset({"init", "sync"})
"""Phases that have all nodes of their job."""


class DispatchPolicy(Protocol):
    """Who decides which waiting phase gets its nodes next. One object serves many groups and keeps nothing between calls.

    One that migrates tails has an attribute `migration`: a `rollmux_env.timing.tail.Migration`.
    """

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        """Decide one thing; asked again until there is nothing to do.

        Returns:
            One of `group.waiting` whose nodes are all free; or one of `group.movable`, whose tail then leaves its nodes but for a
            share; or None: nothing happens until something else is reported.
        """
        ...


class _ReadOnly:
    """Nothing of it can be set but by `_set`, once, when it is made."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} of a {type(self).__name__} cannot be set")

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


class WaitingPhase(_ReadOnly):
    """A phase that waits for its permit.

    Attributes:
        member: whose. phase: `rollout` or `training`.
        nodes: those that it needs, a bit each: bit 0 for all training nodes, bit n + 1 for rollout node n.
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
        """Phases are numbered in the order in which they became ready."""
        return self._row.rollout_number if self.phase == "rollout" else self._row.training_number

    @property
    def overtaken(self) -> int:
        """How many permits were given on any of its nodes to phases that became ready later."""
        return self._row.rollout_overtaken if self.phase == "rollout" else self._row.training_overtaken

    @property
    def waits(self) -> bool:
        """Whether it waits now."""
        return bool(self._row.waits_rollout if self.phase == "rollout" else self._row.waits_training)

    @property
    def behind_sync(self) -> bool:
        """Whether it waits for a sync that became ready before it."""
        return (self._row.waits_rollout if self.phase == "rollout" else self._row.waits_training) == HELD

    @property
    def expected_s(self) -> float:
        """Mean seconds of the member's phases of this kind in this group; the worst case until one has finished."""
        return self._row.rollout_s if self.phase == "rollout" else self._row.training_s


def _of_row(name: str) -> Any:
    """An attribute of the row that the engine keeps."""
    return property(attrgetter(f"row.{name}"))


class MemberView(_ReadOnly):
    """A job in the group.

    Attributes:
        job_id: the job. group: of which it is a member. rollout, training: its phases, whether they wait or not.
        order: its place in the order of admission; not consecutive.
        nodes: those of its rollouts, as in `WaitingPhase.nodes`; bit 0 alone where these take the training nodes.
        rollout_turn, training_turn: meta-iteration of its next phase of the kind; 2^62 where it takes no part.
        passed: whether its rollout has reached the threshold of migration. trains: whether it runs a training. syncs: whether it
            runs a sync that holds all its nodes. All 0 or 1.
        staleness: how many versions old the weights may be that sample what it trains on; above 0 it rolls out while it trains.
        sync_s: seconds, as planned. slo: its longest slowdown, as a multiple of its T_solo. joined_s: by `GroupView.now_s`.
        row: what the engine keeps of it; not for policies, whose next version may look otherwise.
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
        """`rollout` while it runs one on all its nodes, `tail` once that was migrated, else None."""
        return "tail" if self.row.rolls == TAIL else "rollout" if self.row.rolls else None

    @property
    def finished_s(self) -> float:
        """Summed seconds of the phases that it has finished in this group."""
        return self.row.sum_rollout_s + self.row.sum_training_s

    def last_served(self, nodes: int) -> int:
        """Which permit of the group was its last one for any of these nodes; 0 where it has had none."""
        row = self.row
        return max(row.served_rollout if row.nodes & nodes else 0, row.served_training if nodes & TRAINING_POOL else 0)


class GroupView(_ReadOnly):
    """A co-execution group while a policy chooses.

    Attributes:
        now_s: the time, seconds, by the driver's clock.
        busy: the nodes that run a full phase, a bit each. tails: those of which a migrated tail holds a share.
        row, rows, views, asked: what the engine keeps of it; not for policies.
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
        """In order of admission."""
        return tuple(self.views)

    @property
    def waiting(self) -> list[WaitingPhase]:
        """Phases that wait for a permit, in the order in which they became ready; those that wait for a sync are left out."""
        return [phase for phase in self.asked if not phase.behind_sync] if self.row.occupied else [*self.asked]

    @property
    def movable(self) -> list[MemberView]:
        """Members whose tail may migrate: past the threshold, on nodes that hold no other tail and that a rollout waits for."""
        nodes = wanted(self.row, self.rows)
        return [view for view in self.views if movable(self.row, view.row, nodes)]
