"""Nodes that are drained: policies see a cluster without the groups that have one, and the jobs there get other places.

A group with a drained node is in nobody's choice: its members are as if they had left, and its nodes as if they were not there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rollmux_env.cluster.events import Arrived, Departed, Moved, Resized, Withdrawn
from rollmux_env.cluster.plan import Place, Policy, carry_out
from rollmux_env.cluster.state import State, apply
from rollmux_env.errors import PlanError
from rollmux_env.keys.cluster import SIDES
from rollmux_env.scheduler.asking import ask
from rollmux_env.scheduler.quotas import Quotas


def without(state: State, groups: Collection[int]) -> State:
    """The state as it would be without some groups and their nodes; a copy."""
    twin, now_s = state.copy(), state.now_s
    for group in state.group_list():
        if group.id in groups:
            for job_id in group.jobs:
                apply(twin, Departed(now_s, job_id))
    rollout_nodes, training_nodes = state.rollout_nodes - twin.rollout_nodes, state.training_nodes - twin.training_nodes
    limits = {name: pool.max_nodes for name, pool in state.cluster.pools.items() if pool.max_nodes is not None}
    most = dict.fromkeys(SIDES, 2**31) | limits
    apply(twin, Resized(now_s, most["rollout"] - rollout_nodes, most["training"] - training_nodes))
    return twin


def other_places(state: State, job_ids: Iterable[str], groups: Collection[int], policy: Policy) -> list[Moved]:
    """Where a policy would place running jobs if they came now, one after the other, before those that wait.

    Whoever drains a node wants them to go: unlike a policy's own moves these may cost a job more than its SLO allows (P7).

    Args:
        job_ids: movable ones, none of them in a pause. groups: those with drained nodes.
        policy: one that may see what never happens.

    Returns:
        Moves to be applied in this order, of those for which there is a place.
    """
    twin, moves = without(state, groups), []
    for waiting in state.waiting:
        apply(twin, Withdrawn(state.now_s, waiting))
    for job_id in job_ids:
        arrived = Arrived(state.now_s, state.job(job_id).model_copy(update={"arrival_s": state.now_s}))
        apply(twin, arrived)
        plan = tuple(one for one in ask(policy, twin, arrived) if isinstance(one, Place) and one.job_id == job_id)
        trial = twin.copy()
        try:
            if not plan or (state.cluster.quotas and Quotas(twin).broken(plan, policy)):
                raise PlanError("there is no place for it")
            carry_out(trial, plan, policy.keeps_slo)
        except PlanError:  # or only together with moves of others
            apply(twin, Withdrawn(state.now_s, job_id))
            continue
        twin = trial
        moves.append(Moved(state.now_s, job_id, plan[0].placement))
    return moves
