"""New places for running jobs: the policy is asked as at an arrival, and its answer becomes a move.

Groups with a drained node are hidden from the policy: it sees the state as if their members had departed and their nodes were gone.
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
    """Return a copy of the state without some groups and their nodes."""
    twin, now_s = state.copy(), state.now_s
    for group in state.group_list():
        if group.id in groups:
            for job_id in group.jobs:
                apply(twin, Departed(now_s, job_id))
    # Hidden jobs have not ended, so their work so far says nothing about the length of a job.
    twin.stays.lengths_h, twin.stays.lengths_of_class_h = state.stays.lengths_h, state.stays.lengths_of_class_h
    rollout_nodes, training_nodes = state.rollout_nodes - twin.rollout_nodes, state.training_nodes - twin.training_nodes
    limits = {name: pool.max_nodes for name, pool in state.cluster.pools.items() if pool.max_nodes is not None}
    most = dict.fromkeys(SIDES, 2**31) | limits
    apply(twin, Resized(now_s, most["rollout"] - rollout_nodes, most["training"] - training_nodes))
    return twin


def _empty_queue(state: State) -> None:
    """Withdraw all waiting jobs, since a relocated job precedes them."""
    for waiting in [*state.waiting]:
        apply(state, Withdrawn(state.now_s, waiting))


def _ask(state: State, job: Job, policy: Policy, hidden: Collection[int] = ()) -> tuple[Place, ...]:
    """Let a job arrive now with its current figures, and return the policy's placement of it. Some groups may be hidden."""
    arrived = Arrived(state.now_s, job.model_copy(update={"arrival_s": state.now_s}))
    apply(state, arrived)
    shown = without(state, hidden) if hidden else state
    return tuple(action for action in ask(policy, shown, arrived) if isinstance(action, Place) and action.job_id == job.id)


def better_place(state: State, job_id: str, policy: Policy) -> Plan:
    """Return the move of a running job to where the policy would place it now.

    The plan is empty if that is its current place, or the move is not allowed.

    Args:
        state: Current state, with the job's progress; left unchanged.
        job_id: Identifier of the job.
        policy: Separate policy object, since it sees events that never happen.
    """
    job, home = state.job(job_id), state.group_of(job_id)
    if state.is_paused(job_id) or not job.movable:
        return ()
    twin = state.copy()
    _empty_queue(twin)
    apply(twin, Departed(state.now_s, job_id))
    for action in _ask(twin, job, policy)[:1]:
        place = action.placement
        alone = place.group is None and len(home.jobs) == 1  # any other new group would be equivalent
        if place.shape == state.shape(job_id) and (alone or place.group == home.id):
            return ()
        plan = (Move(job_id, place),)
        try:
            # In the real state the job holds its old nodes until it has moved, so the move has to be allowed there.
            carry_out(state.copy(), plan, policy.keeps_slo)
        except PlanError:
            return ()
        return plan
    return ()


def other_places(
    state: State, job_ids: Iterable[str], groups: Collection[int], policy: Policy, alone: Collection[str] = ()
) -> list[Moved]:
    """Return where a policy would place running jobs if they arrived now one after the other, before those that wait.

    Unlike a policy's own moves, these may cost a job more than its SLO allows (P7), since the nodes have to be vacated.

    Args:
        state: Current state, left unchanged.
        job_ids: Movable jobs of these groups, none of them paused.
        groups: Groups that jobs have to leave.
        policy: Policy object that may see events that never happen.
        alone: Jobs with which no other job may share a group.

    Returns:
        Moves in the order in which they have to be applied, for the jobs for which there is a place.
    """
    twin = without(state, groups)
    moves: list[Moved] = []
    taken: list[int] = []  # groups of jobs that share no group
    _empty_queue(twin)
    for job_id in job_ids:
        hidden = [group.id for group in twin.group_list()] if job_id in alone else taken
        plan = _ask(twin, state.job(job_id), policy, hidden)
        trial = twin.copy()
        try:
            if not plan or (state.cluster.quotas and Quotas(twin).broken(plan, policy)):
                raise PlanError("there is no place for it")
            carry_out(trial, plan, policy.keeps_slo)
        except PlanError:  # there is no place, or only together with moves of other jobs
            apply(twin, Withdrawn(state.now_s, job_id))
            continue
        twin = trial
        moves.append(Moved(state.now_s, job_id, plan[0].placement))
        if job_id in alone:
            taken.append(twin.group_of(job_id).id)
    return moves
