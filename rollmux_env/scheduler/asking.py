"""Calls of placement policies, whose code may be a user's.

An exception, or an answer that is no plan, becomes a one-line error that says where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from rollmux_env.cluster.estimates import as_estimated
from rollmux_env.cluster.events import Arrived, Event, Placement
from rollmux_env.cluster.plan import Action, Park, Plan, Policy, Wait
from rollmux_env.cluster.snapshot import Snapshot
from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError
from rollmux_env.user_code import brief, guarded, is_users, is_whole

_NUMBERS = ("new_rollout_nodes", "training_nodes", "shape")


def ask(policy: Policy, state: State, event: Event) -> Plan:
    """Return a policy's answer to an event. It sees jobs with their estimates; a user's policy is shown a snapshot of the state.

    Args:
        policy: Placement policy.
        state: State of the cluster.
        event: Event to decide about.

    Raises:
        PlanError: If the policy raised something, or its answer is no plan.
    """
    if isinstance(event, Arrived) and state.tables.estimated:
        event = replace(event, job=state.tables.estimated.get(state.row(event.job.id), event.job))
    return _check_plan(policy, "decide", guarded(policy.decide)(shown_to(policy, state), event))


def ask_for_moves(policy: Policy, state: State) -> Plan:
    """Return the moves that a policy wants after the queue has been served, if it has a method `rearrange`.

    Args:
        policy: Placement policy.
        state: State of the cluster.

    Raises:
        PlanError: If the policy raised something, or its answer is no plan.
    """
    rearrange = getattr(policy, "rearrange", None)
    return () if rearrange is None else _check_plan(policy, "rearrange", guarded(rearrange)(shown_to(policy, state)))


def _check_plan(policy: Policy, method: str, plan: Any) -> Plan:
    if not isinstance(plan, tuple | list) or not all(isinstance(action, Action) for action in plan):
        raise PlanError(f"the policy's {method} returned {brief(plan)}, which is no tuple of Place, Move, Park and Wait")
    return tuple(_check_action(action) for action in plan) if is_users(policy) else tuple(plan)


def shown_to(policy: object, state: State) -> State:
    """Return the state that a policy is shown: with estimates of its jobs' lengths, and as a snapshot for a user's policy."""
    state = as_estimated(state)
    return Snapshot(state) if is_users(policy) else state


def _check_action(action: Action) -> Action:
    """Return an action of a user's plan with plain Python numbers.

    Raises:
        PlanError: If the job or the placement has another type.
    """
    if not isinstance(action.job_id, str):
        raise PlanError(f"P1: the plan names job {brief(action.job_id)}, which is no text")
    if isinstance(action, Park) and not isinstance(action.for_job, str):
        raise PlanError(f"P1: the plan parks {action.job_id} for job {brief(action.for_job)}, which is no text")
    if isinstance(action, Wait | Park):
        return action
    place = action.placement
    if not isinstance(place, Placement):
        raise PlanError(f"P2: the plan has {brief(place)} for job {action.job_id}, which is no Placement")
    if not isinstance(place.rollout_nodes, Iterable):
        nodes_words = f"rollout_nodes {brief(place.rollout_nodes)}, which is no tuple"
        raise PlanError(f"P2: the placement of job {action.job_id} has {nodes_words}")
    numbers = {name: getattr(place, name) for name in _NUMBERS}
    group = () if place.group is None else (place.group,)
    if wrong := [number for number in (*group, *place.rollout_nodes, *numbers.values()) if not is_whole(number, bits=32)]:
        raise PlanError(f"P2: the placement of job {action.job_id} has {brief(wrong[0])}, which is no whole number")
    plain = {name: int(number) for name, number in numbers.items()}
    nodes = tuple(map(int, place.rollout_nodes))
    own = None if place.group is None else int(place.group)
    return type(action)(action.job_id, Placement(own, nodes, colocated=bool(place.colocated), **plain))
