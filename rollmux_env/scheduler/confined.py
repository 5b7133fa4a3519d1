"""Placement of jobs that may use only some nodes, because their owners started them there or run on a host with these nodes.

The policy is not asked about such a job. It gets the cheapest candidate that keeps every rule and uses only the allowed nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from rollmux_env.cluster.candidates import REASONS, CandidateTable, candidates
from rollmux_env.cluster.plan import Place, Plan, Wait
from rollmux_env.cluster.state import State
from rollmux_env.scheduler.nodes import POOLS, NodePool


def plan_confined(state: State, pool: NodePool, job_id: str, names: Collection[str], freed: Collection[str] = ()) -> Plan:
    """Return the placement of a waiting job on its allowed nodes. It waits if none is free or a rule would be broken.

    Args:
        state: State of the cluster.
        pool: Nodes by name.
        job_id: Identifier of the job.
        names: Names of the allowed nodes.
        freed: Names of further nodes that are free in the state.
    """
    table = candidates(state, job_id)
    fitting = [row for row in _rows(pool, table, names, freed) if table.feasible[row]]
    if not fitting:
        return (Wait(job_id),)
    best = min(fitting, key=lambda row: (float(table.usd_per_hour[row]), row))
    return (Place(job_id, table.placement(best)),)


def find_confined_problem(state: State, pool: NodePool, job_id: str, names: Collection[str]) -> str | None:
    """Return in one line why a waiting job cannot be placed on its allowed nodes now, or None if it can.

    Args:
        state: State of the cluster.
        pool: Nodes by name.
        job_id: Identifier of the job.
        names: Names of the allowed nodes.
    """
    table = candidates(state, job_id)
    rows = [*_rows(pool, table, names)]
    if any(table.feasible[row] for row in rows):
        return None
    if not rows:
        return "these nodes are neither free nor those of one group, with all of its training nodes"
    return "; ".join(dict.fromkeys(REASONS[int(table.reason[row])] for row in rows))


def list_freed_nodes(pool: NodePool, number: int, twin: State) -> frozenset[str]:
    """Return the names of the nodes that a group would give back if a job left it.

    Args:
        pool: Nodes by name.
        number: Number of the group.
        twin: State of the cluster without the job.
    """
    names = frozenset(pool.assigned(number)) - pool.drained
    if (row := twin.tables.group_rows.get(number)) is None:
        return names
    group = twin.view.groups[row]
    rollout = {pool.node(number, "rollout", node).name for node in group["node_number"][: group["n_nodes"]].tolist()}
    return names - rollout - {pool.node(number, "training", node).name for node in range(group["training_nodes"])}


def _rows(pool: NodePool, table: CandidateTable, names: Collection[str], freed: Collection[str] = ()) -> Iterator[int]:
    """Yield the candidates whose nodes are all allowed. A group that is rejected as a whole needs only its training nodes to be."""
    free = {name: sum(node.name in names for node in pool.free(name)) for name in POOLS}
    for name in freed:
        free[pool.pool_of(name)] += name in names
    for row in range(len(table)):
        group, new = int(table.group[row]), int(table.new_nodes[row])
        if group < 0:
            if free["rollout"] >= new and free["training"] >= int(table.training_nodes[row]):
                yield row
            continue
        own = pool.assigned(group)
        training = [name for name in own if pool.pool_of(name) == "training"]
        if not {*training} <= {*names}:
            continue
        pins = [pool.node(group, "rollout", int(number)).name for number in np.asarray(table.nodes[row]) if number >= 0]
        if {*pins} <= {*names} and free["rollout"] >= max(0, new):
            yield row
