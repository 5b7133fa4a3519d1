"""The dispatch rules: the paper's `round-robin`, and work-conserving rules, which never idle a node that a waiting phase could use.

Without a guard, the work-conserving rules `fifo`, `shortest-first`, `longest-first` and `least-recently-served` could starve two
kinds of phases: a rollout over several nodes, which are seldom all free at once, and a phase that others keep overtaking. A phase
that has been overtaken as often as the group has members is therefore overdue. It takes precedence over all phases that are not
overdue, and its nodes are kept free for it. It then waits only for running phases, which end, and for older overdue phases, of
which there are fewer than members.
"""

from __future__ import annotations

from collections.abc import Callable

from rollmux_env.kernel.dispatch.rows import TAIL
from rollmux_env.kernel.dispatch.turns import in_turn, is_bound, tail_in_the_way
from rollmux_env.scheduler.view import CODES, GroupView, MemberView, WaitingPhase
from rollmux_env.timing.tail import SHARE, Migration


class Migrating:
    """Base class of dispatch rules, with or without long-tail migration.

    Args:
        migrate: Share of a rollout's responses after which its tail may migrate, as soon as another rollout could then start on
            the freed nodes (RollMux, arXiv 2512.11306: 0.8). None turns migration off.
        share: Share of its nodes that a migrated tail keeps, or None for `rollmux_env.timing.tail.SHARE`.
        careful: Whether to leave the tail of a member in place if the member bounds the group's period and never waits for other
            members, because slowing it down would slow down the whole group.

    Attributes:
        migration: Threshold and share of the migration, or None.
        careful: Whether the tail of the member that bounds the group's period stays in place.

    Raises:
        ValueError: `migrate` or `share` is not a number between 0 and 1, `careful` is not a boolean, or `share` or `careful` is
            given without `migrate`.
    """

    def __init__(self, migrate: float | None = None, share: float | None = None, careful: bool = False) -> None:
        if migrate is not None and not (isinstance(migrate, float) and 0 < migrate < 1):
            raise ValueError(f"migrate must be a number between 0 and 1, not {migrate}")
        if share is not None and migrate is None:
            raise ValueError("share goes with migrate")
        if not isinstance(careful, bool) or (careful and migrate is None):
            raise ValueError("careful must be true or false, and goes with migrate")
        self.migration = None if migrate is None else Migration(migrate, SHARE if share is None else share)
        self.careful = careful

    def movable(self, group: GroupView) -> list[MemberView]:
        """Return the members whose tails may migrate now."""
        if self.migration is None:
            return []
        return [member for member in group.movable if not (self.careful and is_bound(group.row, group.rows, member.row))]


class RoundRobin(Migrating):
    """The paper's round robin (section 4): in a meta-iteration every member runs one rollout and one training.

    On every node the members take turns in order of admission. A phase may run if no member that shares a node with it comes before
    it. A member comes before it if it still has a phase of this kind in an earlier meta-iteration, or in the same one and was
    admitted earlier. Nodes stay idle rather than be used out of turn. So no member is ever overtaken, and a rollout over several
    nodes gets all of them when its turn comes.

    `RollMux/Dispatch-v0` runs the same rule over its rows (`rollmux_env.kernel.dispatch.turns.round_robin`). Here the group view
    already lists the waiting phases in their order.
    """

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        """Return the first waiting phase whose turn it is on all its nodes, to start it.

        Without one, return the member whose tail blocks the next phase, to migrate that tail, or None to wait.
        """
        row, rows = group.row, group.rows
        for phase in group.waiting:
            if not phase.nodes & row.busy and in_turn(row, rows, phase.member.row, CODES[phase.phase], 0):
                return phase
        if self.migration is None:
            return None
        number, what = tail_in_the_way(row, rows, self.careful)
        return group.views[number] if what == TAIL else None


Rank = Callable[[WaitingPhase], float]
"""Function from a waiting phase to its rank. The phase with the lowest rank starts first."""


def shortest(phase: WaitingPhase) -> float:
    """Rank a phase by its expected duration: the mean of its job in this group, or the worst case before the first one has run."""
    return phase.expected_s


def longest(phase: WaitingPhase) -> float:
    """Rank a phase by its negated expected duration, so that long phases come first."""
    return -phase.expected_s


def least_recent(phase: WaitingPhase) -> float:
    """Rank a phase by when its job last had a permit for these nodes, in permits of the group. Jobs that had none come first."""
    return phase.member.last_served(phase.nodes)


class WorkConserving(Migrating):
    """Work-conserving dispatch in order of rank. Among phases of equal rank, the one that has waited longest comes first.

    Args:
        rank: Function that ranks a waiting phase, lowest first, or None for first come, first served.
        migrate: Share of responses after which a tail may migrate, as in `Migrating`.
        share: Share of its nodes that a migrated tail keeps, as in `Migrating`.
        careful: Whether to spare the group's bottleneck, as in `Migrating`.
    """

    def __init__(self, rank: Rank | None, migrate: float | None = None, share: float | None = None, careful: bool = False) -> None:
        super().__init__(migrate, share, careful)
        self.rank = rank

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        """Return the first phase in order of rank that can start.

        A phase can start if its nodes are free and not kept for an overdue phase. Without one, return a member whose tail blocks
        the first phase that could start otherwise, to migrate that tail, or None to wait.
        """
        best = self._first(group, group.busy)
        movable = self.movable(group) if best is None else []
        if not movable:
            return best
        freed = 0
        for member in movable:
            freed |= member.nodes
        first = self._first(group, group.busy & ~freed)
        return first and next(member for member in movable if member.nodes & first.nodes)

    def _first(self, group: GroupView, taken: int) -> WaitingPhase | None:
        """Return the first waiting phase whose nodes are neither taken nor kept for an overdue phase, or None."""
        members, waiting, rank = len(group.views), group.waiting, self.rank
        if len(waiting) == 1:
            return None if waiting[0].nodes & taken else waiting[0]
        best: WaitingPhase | None = None
        best_rank = 0.0
        for phase in waiting:  # in order of their numbers, so the oldest overdue phase comes first
            if phase.overtaken >= members:
                if not phase.nodes & taken:
                    return phase
                taken |= phase.nodes
        for phase in waiting:
            if not phase.nodes & taken:
                if rank is None:
                    return phase
                own_rank = rank(phase)
                if best is None or own_rank < best_rank:
                    best, best_rank = phase, own_rank
        return best
