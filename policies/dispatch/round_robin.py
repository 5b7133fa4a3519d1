"""`round-robin`: the paper's dispatch rule, strict, with or without long-tail migration."""

from __future__ import annotations

from policies.dispatch.migration import Tails
from rollmux_env.scheduler.dispatcher import Dispatcher
from rollmux_env.scheduler.members import Member, Request


class RoundRobin:
    """In a meta-iteration every member runs one rollout and one training, in order of admission on every node (paper, section 4).

    A phase may run when no member that shares a node with it comes before it: none has a phase of the kind left in an earlier
    meta-iteration, or in the same one and was admitted earlier. Nodes stay idle rather than be used out of turn, so nobody is
    ever overtaken and a rollout over several nodes gets them all when its turn comes.

    Args:
        migrate: the share of a rollout's responses after which the rest leaves its nodes (the paper's: 0.8), as soon as the
            next rollout in turn waits for them; None never. share: of its nodes that it keeps; None is the usual
            (`rollmux_env.timing.migration`). careful: not the tail of a job that is its group's bound.
    """

    def __init__(self, migrate: float | None = None, share: float | None = None, careful: bool = False) -> None:
        self._tails = Tails(migrate, share, careful)
        self.migration = self._tails.migration

    def choose(self, group: Dispatcher) -> Request | Member | None:
        """Return the first waiting phase whose turn it is on all its nodes, else a tail that blocks the next one."""
        for request in group.waiting:
            if not request.nodes & group.busy and _in_turn(group, request, ()):
                return request
        movable = self._tails.movable(group)
        freed = 0
        for member in movable:
            freed |= member.nodes["rollout"]
        for request in group.waiting if movable else ():
            nodes = request.nodes
            if nodes & freed and not nodes & group.busy & ~freed and _in_turn(group, request, movable):
                return next(member for member in movable if member.nodes["rollout"] & nodes)
        return None


def _in_turn(group: Dispatcher, request: Request, handing: list[Member] | tuple[()]) -> bool:
    """Whether no member that shares a node with a phase comes before it, once those `handing` over their nodes have done so."""
    phase, nodes, member = request.phase, request.nodes, request.member
    turn, order = member.turn[phase], member.order
    for other in group.members:
        if other.nodes[phase] & nodes:
            ahead = other.turn[phase] - turn
            if handing and other in handing:
                ahead += 1
            if ahead < 0 or (ahead == 0 and other.order < order):
                return False
    return True
