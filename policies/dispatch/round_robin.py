"""`round-robin`: the paper's dispatch rule, strict, with or without long-tail migration."""

from __future__ import annotations

from policies.dispatch.migration import Tails
from rollmux_env.kernel.dispatch.rows import NOTHING, ROLLOUT, TAIL
from rollmux_env.kernel.dispatch.turns import round_robin
from rollmux_env.scheduler.view import GroupView, MemberView, WaitingPhase


class RoundRobin:
    """In a meta-iteration every member runs one rollout and one training, in order of admission on every node (paper, section 4).

    A phase may run when no member that shares a node with it comes before it: none has a phase of the kind left in an earlier
    meta-iteration, or in the same one and was admitted earlier. Nodes stay idle rather than be used out of turn, so nobody is
    ever overtaken and a rollout over several nodes gets them all when its turn comes. `RollMux/Dispatch-v0` runs the same rule.

    Args:
        migrate: the share of a rollout's responses after which the rest leaves its nodes (the paper's: 0.8), as soon as the
            next rollout in turn waits for them; None never. share: of its nodes that it keeps; None is the usual
            (`rollmux_env.timing.tail`). careful: not the tail of a job that is its group's bound.
    """

    def __init__(self, migrate: float | None = None, share: float | None = None, careful: bool = False) -> None:
        self._tails = Tails(migrate, share, careful)
        self.migration = self._tails.migration

    def choose(self, group: GroupView) -> WaitingPhase | MemberView | None:
        """Return the first waiting phase whose turn it is on all its nodes, else a tail that blocks the next one."""
        number, what = round_robin(group.row, group.rows, self.migration is not None, self._tails.careful)
        if what == NOTHING:
            return None
        member = group.views[number]
        return member if what == TAIL else member.rollout if what == ROLLOUT else member.training
