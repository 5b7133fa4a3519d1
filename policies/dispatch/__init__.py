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
        spec: a name of `DISPATCH`, `learned:default`, `learned:PATH` or `module:Class`; then options, as in
            `round-robin,migrate=0.8`.

    Raises:
        InputError: unknown name or options, an invalid policy file, or a class of the user's own that is no dispatch policy; one
            line.
    """
    policy = make_named("dispatch policy", DISPATCH, spec, _learned, ("choose",))
    if not isinstance(migration_of(policy), Migration | None):
        raise InputError(f"dispatch policy '{spec}': its `migration` must be None or a rollmux_env.timing.tail.Migration")
    return policy


def _learned() -> Callable[..., DispatchPolicy]:
    from policies.dispatch.learned import Learned

    return Learned
