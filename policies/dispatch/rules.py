"""The rules of dispatch: `round-robin`, the paper's, and those by which no node idles while a phase waits that could run on it.

Without a guard, `fifo`, `shortest-first`, `longest-first` and `least-recently-served` could starve a rollout over several nodes,
because its nodes are seldom all free at once, and a phase that others keep overtaking. A phase that has been overtaken as often as
the group has members is therefore overdue. It goes before all phases that are not, and its nodes are kept free for it. It then
waits only for running phases, which end, and for older overdue phases, of which there are fewer than members.
"""

from __future__ import annotations

from collections.abc import Callable

from rollmux_env.kernel.dispatch.rows import TAIL
from rollmux_env.kernel.dispatch.turns import in_turn, is_bound, tail_in_the_way
from rollmux_env.scheduler.view import CODES, GroupView, MemberView, WaitingPhase
from rollmux_env.timing.tail import SHARE, Migration


class Migrating:
    """A rule with or without long-tail migration.

    Args:
        migrate: the share of a rollout's responses after which the rest leaves its nodes (RollMux, arXiv 2512.11306: 0.8), as soon
            as a rollout that waits for them could begin; None never. share: of its nodes that it keeps; None is the usual
            (`rollmux_env.timing.tail`). careful: not where the job is its group's bound, and waits for nobody: a slower
            rollout of its own would slow down everybody.

    Attributes:
        migration: the two numbers, or None. careful: as given.

    Raises:
        ValueError: `migrate` or `share` are neither None nor numbers between 0 and 1, or `careful` is no boolean, or they are given
            without `migrate`; one line.
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
        """The members whose tails may migrate now."""
        if self.migration is None:
            return []
        return [member for member in group.movable if not (self.careful and is_bound(group.row, group.rows, member.row))]


class RoundRobin(Migrating):
    """In a meta-iteration every member runs one rollout and one training, in order of admission on every node (paper, section 4).

    A phase may run when no member that shares a node with it comes before it: none has a phase of the kind left in an earlier
    meta-iteration, or in the same one and was admitted earlier. Nodes stay idle rather than be used out of turn, so nobody is
    ever overtaken and a rollout over several nodes gets them all when its turn comes. `RollMux/Dispatch-v0` runs the same rule over
    its rows (`rollmux_env.kernel.dispatch.turns.round_robin`); here the phases that wait are known in their order.
    """

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        """Return the first waiting phase whose turn it is on all its nodes, else a tail that blocks the next one."""
        row, rows = group.row, group.rows
        for phase in group.waiting:
            if not phase.nodes & row.busy and in_turn(row, rows, phase.member.row, CODES[phase.phase], 0):
                return phase
        if self.migration is None:
            return None
        number, what = tail_in_the_way(row, rows, self.careful)
        return group.views[number] if what == TAIL else None


Rank = Callable[[WaitingPhase], float]


def shortest(phase: WaitingPhase) -> float:
    """The mean of what the job's phase took in this group so far, and its worst case before there is one."""
    return phase.expected_s


def longest(phase: WaitingPhase) -> float:
    """As `shortest`, the other way round."""
    return -phase.expected_s


def least_recent(phase: WaitingPhase) -> float:
    """When the job last had a permit for these nodes, counted in permits of the group; those that had none come first."""
    return phase.member.last_served(phase.nodes)


class WorkConserving(Migrating):
    """Go by rank; of phases of a rank the one that has waited longest comes first.

    Args:
        rank: of a waiting phase, the lowest first; None for first come, first served.
        migrate, share, careful: as `Migrating`.
    """

    def __init__(self, rank: Rank | None, migrate: float | None = None, share: float | None = None, careful: bool = False) -> None:
        super().__init__(migrate, share, careful)
        self.rank = rank

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        """The first phase, in this order, whose nodes are free and not kept for an overdue one; else a tail that is in the way of
        the first rollout that could begin once tails have moved."""
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
        """The first waiting phase whose nodes are not taken, nor kept for an overdue one."""
        members, waiting, rank = len(group.views), group.waiting, self.rank
        if len(waiting) == 1:
            return None if waiting[0].nodes & taken else waiting[0]
        best: WaitingPhase | None = None
        best_rank = 0.0
        for phase in waiting:  # in order of number, so the first overdue one comes first
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
