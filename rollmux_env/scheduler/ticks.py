"""The times at which a placement policy is woken while nothing happens."""

from __future__ import annotations

from math import floor, inf

from rollmux_env.cluster.plan import Policy
from rollmux_env.errors import InputError

INSTANT_S = 1e-6  # times this close are one instant


class Ticks:
    """The times at which a policy is woken: whole multiples of its `wakes_every_s` after the first arrival, while jobs run.

    Args:
        policy: Placement policy.

    Attributes:
        every_s: The policy's `wakes_every_s`, or None.
        next_s: Time of the next tick in seconds; infinite if no job runs, or the policy does not ask to be woken.

    Raises:
        InputError: If `wakes_every_s` is not a number of seconds above `INSTANT_S`.
    """

    def __init__(self, policy: Policy) -> None:
        every_s = getattr(policy, "wakes_every_s", None)
        if every_s is not None and not (isinstance(every_s, int | float) and INSTANT_S < every_s < inf):
            raise InputError(f"wakes_every_s: must be a number of seconds above {INSTANT_S:g}, not {every_s}")
        self.every_s: float | None = every_s
        self.next_s = inf

    def after(self, now_s: float, first_s: float, running: bool) -> None:
        """Find the first tick after an instant.

        Args:
            now_s: Time of the instant, in seconds.
            first_s: Time of the first arrival, in seconds.
            running: Whether jobs run.
        """
        self.next_s = inf
        if running and self.every_s is not None:
            passed = floor((now_s + INSTANT_S - first_s) / self.every_s)
            self.next_s = first_s + (passed + 1) * self.every_s
