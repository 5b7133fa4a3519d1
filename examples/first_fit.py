"""A placement policy example: take the first group with room, whatever it costs."""

from policies.api import Arrived, Event, Place, Plan, State, Wait, candidates


class FirstFit:
    """Take the first feasible candidate, but add no rollout nodes to a group beyond `most_new_nodes`."""

    keeps_slo = True

    def __init__(self, most_new_nodes: int = 1) -> None:
        self.most_new_nodes = most_new_nodes

    def decide(self, state: State, event: Event) -> Plan:
        if not isinstance(event, Arrived):
            return ()
        table = candidates(state, event.job.id)
        for row in range(len(table)):
            is_new_group = table.group[row] < 0
            if table.feasible[row] and (is_new_group or table.new_nodes[row] <= self.most_new_nodes):
                return (Place(event.job.id, table.placement(row)),)
        return (Wait(event.job.id),)
