"""Calls of placement policies, whose code may be a user's.

An exception, or an answer that is no plan, becomes a one-line error that says where it comes from.
"""

from __future__ import annotations

from typing import Any

from rollmux_env.cluster.events import Event, Placement
from rollmux_env.cluster.plan import Move, Place, Plan, Policy, Wait
from rollmux_env.cluster.snapshot import Snapshot
from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError
from rollmux_env.user_code import brief, guarded, is_users, is_whole

_NUMBERS = ("new_rollout_nodes", "training_nodes", "shape")


def ask(policy: Policy, state: State, event: Event) -> Plan:
    """Return a policy's answer to an event. A user's policy is shown a snapshot of the state.

    Args:
        policy: Placement policy.
        state: State of the cluster.
        event: Event to decide about.

    Raises:
        PlanError: If the policy raised something, or its answer is no plan.
    """
    plan: Any = guarded(policy.decide)(shown_to(policy, state), event)
    if not isinstance(plan, tuple | list) or not all(isinstance(action, Place | Move | Wait) for action in plan):
        raise PlanError(f"the policy's decide returned {brief(plan)}, which is no tuple of Place, Move and Wait")
    return tuple(_checked(action) for action in plan) if is_users(policy) else tuple(plan)


def shown_to(policy: object, state: State) -> State:
    """Return the state that a policy is shown: the state itself, or a snapshot for a user's policy."""
    return Snapshot(state) if is_users(policy) else state


def _checked(action: Place | Move | Wait) -> Place | Move | Wait:
    """Return an action of a user's plan with plain Python numbers.

    Raises:
        PlanError: If the job or the placement has another type.
    """
    if not isinstance(action.job_id, str):
        raise PlanError(f"P1: the plan names job {brief(action.job_id)}, which is no text")
    if isinstance(action, Wait):
        return action
    place = action.placement
    if not isinstance(place, Placement):
        raise PlanError(f"P2: the plan has {brief(place)} for job {action.job_id}, which is no Placement")
    numbers = {name: getattr(place, name) for name in _NUMBERS}
    group = () if place.group is None else (place.group,)
    if wrong := [number for number in (*group, *place.rollout_nodes, *numbers.values()) if not is_whole(number, bits=32)]:
        raise PlanError(f"P2: the placement of job {action.job_id} has {brief(wrong[0])}, which is no whole number")
    plain = {name: int(number) for name, number in numbers.items()}
    nodes = tuple(map(int, place.rollout_nodes))
    own = None if place.group is None else int(place.group)
    return type(action)(action.job_id, Placement(own, nodes, colocated=bool(place.colocated), **plain))
