"""Asks policies, whose code may be a user's: what it raises, or returns that is no plan, is one line that says where."""

from __future__ import annotations

import traceback
from pathlib import Path

from rollmux_env.cluster.events import Event
from rollmux_env.cluster.plan import Move, Place, Plan, Policy, Wait
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.validation_errors import one_line


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


def raised(error: Exception, who: str = "the policy") -> PlanError:
    """That a policy raised an exception, and where.

    Args:
        who: which policy.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {frames[-1].name} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    try:
        text = " ".join(str(error).split())
    except Exception:  # of the user's `__str__`
        text = ""
    return PlanError(one_line(f"{who} raised {type(error).__name__}{': ' if text else ''}{text}", 500) + where)
