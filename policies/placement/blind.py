"""`random` and `most-idle`: the paper's baselines that share nodes but ignore SLOs (section 6.5).

Both respect physical limits: group size, training nodes, host memory and `max_nodes`. They add rollout nodes to a group
only if too few existing nodes have room.
"""

from __future__ import annotations

import numpy as np

from rollmux_env.cluster.candidates import CandidateTable, candidates
from rollmux_env.cluster.events import Arrived, Event
from rollmux_env.cluster.plan import Place, Plan, Wait
from rollmux_env.cluster.state import State
from rollmux_env.kernel.tables import Ints


class Random:
    """Uniform over the groups with room and a new group, then uniform over nodes.

    Args:
        seed: seed of the choices.
    """

    keeps_slo = False

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an arrival with a random place, or let the job wait where there is none."""
        if not isinstance(event, Arrived):
            return ()
        table = candidates(state, event.job.id)
        groups = np.unique(table.group[table.physical])
        if not groups.size:
            return (Wait(event.job.id),)
        rows = _fewest_new_nodes(table, int(self._random.choice(groups)))
        return (Place(event.job.id, table.placement(int(self._random.choice(rows)))),)


class MostIdle:
    """The group with the largest idle share, then its least loaded nodes; a new group only where none has room."""

    keeps_slo = False

    def decide(self, state: State, event: Event) -> Plan:
        """Answer an arrival with the most idle place, or let the job wait where there is none."""
        if not isinstance(event, Arrived):
            return ()
        table = candidates(state, event.job.id)
        open_groups = np.unique(table.group[table.physical])
        if not open_groups.size:
            return (Wait(event.job.id),)
        shared = [int(group) for group in open_groups if group >= 0]
        group = max(shared, key=lambda g: (idle_share(state, g), -g), default=-1)
        rows = _fewest_new_nodes(table, group)
        row = min(rows.tolist(), key=lambda r: (_load_s(state, table, r), r))
        return (Place(event.job.id, table.placement(row)),)


def idle_share(state: State, group_id: int) -> float:
    """Share of a group's node-seconds in a period in which no phase runs."""
    row = state.group_row(group_id)
    assert row is not None
    groups = state.groups
    rollout_nodes, training_nodes = int(groups.n_nodes[row]), int(groups.training_nodes[row])
    busy_s = groups.node_load_s[row, :rollout_nodes].sum() + groups.training_load_s[row] * training_nodes
    return 1.0 - float(busy_s / (groups.period_s[row] * (rollout_nodes + training_nodes)))


def _fewest_new_nodes(table: CandidateTable, group: int) -> Ints:
    """Rows of a group that are physical and add the fewest rollout nodes."""
    rows = np.flatnonzero(table.physical & (table.group == group))
    new_nodes = table.new_nodes[rows]
    return np.asarray(rows[new_nodes == new_nodes.min()])


def _load_s(state: State, table: CandidateTable, row: int) -> float:
    """Summed rollout load of the existing nodes that a row pins the job to."""
    group_row = state.group_row(int(table.group[row]))
    if group_row is None:
        return 0.0
    numbers = state.groups.node_number[group_row, : state.groups.n_nodes[group_row]]
    return float(state.groups.node_load_s[group_row, : numbers.size][np.isin(numbers, table.nodes[row])].sum())
