"""Dispatch policies: which waiting phase of a group gets its nodes next."""

from __future__ import annotations

from collections.abc import Callable

from policies.dispatch.round_robin import RoundRobin
from policies.dispatch.work_conserving import WorkConserving
from policies.named import make_named
from rollmux_env.scheduler.dispatcher import DispatchPolicy

DISPATCH: dict[str, Callable[..., DispatchPolicy]] = {
    "round-robin": RoundRobin,
    "fifo": lambda migrate=None, careful=False: WorkConserving(0, migrate, careful),
    "shortest-first": lambda migrate=None, careful=False: WorkConserving(1, migrate, careful),
    "longest-first": lambda migrate=None, careful=False: WorkConserving(-1, migrate, careful),
}
LEARNED = "learned:"  # then `default`, or the path of a policy file


def make_dispatch(spec: str) -> DispatchPolicy:
    """A dispatch policy by its name.

    Args:
        spec: a name of `DISPATCH`, `learned:default` or `learned:PATH`; then options, as in `round-robin,migrate=0.8`.

    Raises:
        InputError: there is none of that name, it does not take these options, or the policy file is none; one line.
    """
    if spec.startswith(LEARNED):
        from policies.dispatch.learned import Learned

        return Learned(spec.removeprefix(LEARNED))
    return make_named("dispatch policy", DISPATCH, spec, (f"{LEARNED}default", f"{LEARNED}PATH"))
