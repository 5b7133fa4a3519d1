"""Dispatch policies: which waiting phase of a group gets its nodes next."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from policies.dispatch.rules import RoundRobin, WorkConserving, least_recent, longest, shortest
from policies.named import make_named
from rollmux_env.errors import InputError
from rollmux_env.scheduler.view import DispatchPolicy
from rollmux_env.timing.tail import Migration, migration_of

DISPATCH: dict[str, Callable[..., DispatchPolicy]] = {
    "round-robin": RoundRobin,
    "fifo": partial(WorkConserving, None),
    "shortest-first": partial(WorkConserving, shortest),
    "longest-first": partial(WorkConserving, longest),
    "least-recently-served": partial(WorkConserving, least_recent),
}


def make_dispatch(spec: str) -> DispatchPolicy:
    """Create a dispatch policy by name.

    Args:
        spec: A name of `DISPATCH`, `learned:default`, `learned:PATH` or `module:Class`, followed by options, as in
            `round-robin,migrate=0.8`.

    Raises:
        InputError: The name or an option is unknown, the policy file is invalid, or the user's class is no dispatch policy.
    """
    policy = make_named("dispatch policy", DISPATCH, spec, "policies.dispatch.learned:Learned", ("choose",))
    if not isinstance(migration_of(policy), Migration | None):
        raise InputError(f"dispatch policy '{spec}': its `migration` must be None or a rollmux_env.timing.tail.Migration")
    return policy
