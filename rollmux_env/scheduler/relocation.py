"""Where jobs that run would go if they came now: a policy is asked as at an arrival, and what it says is a move.

A group with a drained node is in nobody's choice: its members are as if they had left, and its nodes as if they were not there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Arrived, Departed, Moved, Resized, Withdrawn
from rollmux_env.cluster.plan import Move, Place, Plan, Policy, carry_out
from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError
from rollmux_env.keys.cluster import SIDES
from rollmux_env.keys.job import Job
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


def _empty_queue(state: State) -> None:
    """Who comes now comes before those that wait."""
    for waiting in [*state.waiting]:
        apply(state, Withdrawn(state.now_s, waiting))


def _ask(state: State, job: Job, policy: Policy, hidden: Collection[int] = ()) -> tuple[Place, ...]:
    """Let a job arrive now, with what is known of it by now; what the policy says of it, which does not see some groups."""
    arrived = Arrived(state.now_s, job.model_copy(update={"arrival_s": state.now_s}))
    apply(state, arrived)
    shown = without(state, hidden) if hidden else state
    return tuple(action for action in ask(policy, shown, arrived) if isinstance(action, Place) and action.job_id == job.id)


def better_place(state: State, job_id: str, policy: Policy) -> Plan:
    """The move of a running job to where the policy would place it now; nothing where that is as it is now or may not be.

    Args:
        state: as it is now, with the job's progress; it is left as it is.
        policy: one of its own, since it sees what never happens.
    """
    job, home = state.job(job_id), state.group_of(job_id)
    if state.is_paused(job_id) or not job.movable:
        return ()
    twin = state.copy()
    _empty_queue(twin)
    apply(twin, Departed(state.now_s, job_id))
    for action in _ask(twin, job, policy)[:1]:
        place = action.placement
        alone = place.group is None and len(home.jobs) == 1  # which it is everywhere
        if place.shape == state.shape(job_id) and (alone or place.group == home.id):
            return ()
        plan = (Move(job_id, place),)
        try:
            carry_out(
                state.copy(), plan, policy.keeps_slo
            )  # its old nodes are held until it has moved, and the move must be allowed
        except PlanError:
            return ()
        return plan
    return ()


def other_places(
    state: State, job_ids: Iterable[str], groups: Collection[int], policy: Policy, alone: Collection[str] = ()
) -> list[Moved]:
    """Where a policy would place running jobs if they came now, one after the other, before those that wait.

    Whoever drains a node wants them to go: unlike a policy's own moves these may cost a job more than its SLO allows (P7).

    Args:
        job_ids: movable ones of these groups, none of them in a pause. groups: those that jobs have to leave.
        policy: one that may see what never happens. alone: jobs that nobody may share a group with.

    Returns:
        Moves to be applied in this order, of those for which there is a place.
    """
    twin = without(state, groups)
    moves: list[Moved] = []
    taken: list[int] = []  # groups of those that are to be alone
    _empty_queue(twin)
    for job_id in job_ids:
        hidden = [group.id for group in twin.group_list()] if job_id in alone else taken
        plan = _ask(twin, state.job(job_id), policy, hidden)
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
        if job_id in alone:
            taken.append(twin.group_of(job_id).id)
    return moves
