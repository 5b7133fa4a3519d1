"""`fifo`, `shortest-first`, `longest-first`, `least-recently-served`: no node idles while a phase waits that could run on it.

Without a guard, a rollout over several nodes could starve because its nodes are seldom all free at once, and so could a
phase that others keep overtaking. A phase that has been overtaken as often as the group has members is therefore
overdue. It goes before all phases that are not, and its nodes are kept free for it. It then waits only for running
phases, which end, and for older overdue phases, of which there are fewer than members.
"""

from __future__ import annotations

from collections.abc import Callable

from policies.dispatch.migration import Tails
from rollmux_env.scheduler.view import GroupView, MemberView, WaitingPhase

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


class WorkConserving:
    """Go by rank; of phases of a rank the one that has waited longest comes first.

    Args:
        rank: of a waiting phase, the lowest first; None for first come, first served.
        migrate: the share of a rollout's responses after which the rest leaves its nodes (RollMux, arXiv 2512.11306: 0.8), as
            soon as a rollout that waits for them could begin; None never. share: of its nodes that it keeps; None is the usual
            (`rollmux_env.timing.tail`). careful: not the tail of a job that is its group's bound.
    """

    def __init__(self, rank: Rank | None, migrate: float | None = None, share: float | None = None, careful: bool = False) -> None:
        self._tails = Tails(migrate, share, careful)
        self.rank = rank
        self.migration = self._tails.migration

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        """The first phase, in this order, whose nodes are free and not kept for an overdue one; else a tail that is in the way of
        the first rollout that could begin once tails have moved."""
        best = self._first(group, group.busy)
        movable = self._tails.movable(group) if best is None else []
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
                own_rank = rank(phase) if rank else 0.0
                if best is None or own_rank < best_rank:
                    best, best_rank = phase, own_rank
        return best
