"""Dispatch policies: which waiting phase of a group gets its nodes next."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from policies.dispatch.rules import RoundRobin, WorkConserving, least_recent, longest, shortest
from policies.named import make_named
from rollmux_env.scheduler.view import DispatchPolicy

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
        spec: a name of `DISPATCH`, `learned:default` or `learned:PATH`; then options, as in `round-robin,migrate=0.8`.

    Raises:
        InputError: unknown name or options, or an invalid policy file; one line.
    """
    return make_named("dispatch policy", DISPATCH, spec, _learned)


def _learned() -> Callable[..., DispatchPolicy]:
    from policies.dispatch.learned import Learned

    return Learned
