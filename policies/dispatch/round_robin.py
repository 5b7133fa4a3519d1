"""`round-robin`: the paper's dispatch rule, strict."""

from __future__ import annotations

from rollmux_env.dispatcher import Dispatcher, Request


class RoundRobin:
    """In a meta-iteration every member runs one rollout and one training, in order of admission on every node (paper, section 4).

    A phase may run when no member that shares a node with it comes before it: none has a phase of the kind left in an earlier
    meta-iteration, or in the same one and was admitted earlier. Nodes stay idle rather than be used out of turn, so nobody is
    ever overtaken and a rollout over several nodes gets them all when its turn comes.
    """

    def choose(self, group: Dispatcher) -> Request | None:
        """The first waiting phase whose turn it is on all its nodes."""
        for request in group.waiting:
            phase, nodes, member = request.phase, request.nodes, request.member
            if nodes & group.busy:
                continue
            turn, order = member.turn[phase], member.order
            for other in group.members:
                if other.nodes[phase] & nodes:
                    ahead = other.turn[phase] - turn
                    if ahead < 0 or (ahead == 0 and other.order < order):
                        break
            else:
                return request
        return None
