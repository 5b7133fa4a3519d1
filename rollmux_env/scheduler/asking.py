"""Asks policies, whose code may be a user's: what it raises, or returns that is no plan, is one line that says where."""

from __future__ import annotations

from rollmux_env.cluster.events import Event
from rollmux_env.cluster.plan import Move, Place, Plan, Policy, Wait
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.validation_errors import one_line, raised


def ask(policy: Policy, state: State, event: Event) -> Plan:
    """What a policy answers to an event.

    Raises:
        PlanError: it raised an exception, or this is no plan; one line.
    """
    try:
        plan = policy.decide(state, event)
    except (InputError, PlanError):
        raise
    except Exception as error:
        raise raised(error) from error
    if not isinstance(plan, tuple | list) or not all(isinstance(action, Place | Move | Wait) for action in plan):
        raise PlanError(f"the policy's decide returned {one_line(repr(plan), 100)}, which is no tuple of Place, Move and Wait")
    return plan if isinstance(plan, tuple) else tuple(plan)
