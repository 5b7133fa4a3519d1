"""One link that flows share max-min fairly.

Each flow has a rate at which it runs alone. Sizes are counted in seconds at that rate, so that a flow that never meets another one
ends exactly when it would without the link.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
_ROUNDING = 1e-12


def fair_level(rates: Iterable[float], capacity: float) -> float:
    """Return the rate that no flow of a link exceeds. Each flow gets the smaller of this level and its rate alone.

    Args:
        rates: Rate of each flow alone.
        capacity: Capacity of the link, in the same unit.

    Returns:
        The level, or infinity if every flow gets its rate alone.
    """
    wanted = sorted(rates)
    left = capacity
    for k, rate in enumerate(wanted):
        share = left / (len(wanted) - k)
        if rate > share * (1 + _ROUNDING):
            return share
        left -= rate
    return inf


def slowed_s(seconds: float, rate: float, level: float) -> float:
    """Return the seconds that a flow takes if it gets at most a given rate.

    Args:
        seconds: Seconds that the flow takes alone.
        rate: Rate of the flow alone.
        level: Largest rate that it gets.
    """
    return seconds if rate <= level else seconds * (rate / level)


@dataclass
class _Flow:
    left_s: float  # remaining seconds at its rate alone
    rate: float
    speed: float = 1.0  # share of its rate alone that it gets
    end_s: float = inf


class SharedLink(Generic[Key]):
    """The flows on a link over time. A time before the latest one that was given counts as the latest one.

    Args:
        capacity: Capacity of the link, in the unit of the flows' rates.

    Attributes:
        next_s: Time at which the next flow ends if no flow is added or dropped before, or infinity without flows.
    """

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._flows: dict[Key, _Flow] = {}
        self._now_s = 0.0
        self.next_s = inf

    def __contains__(self, key: Key) -> bool:
        return key in self._flows

    def add(self, key: Key, seconds: float, rate: float, now_s: float) -> None:
        """Begin a flow.

        Args:
            key: Identifier of the flow, different from those of the flows on the link.
            seconds: Seconds of the flow alone.
            rate: Rate of the flow alone.
            now_s: Current time, in seconds.
        """
        self._advance(now_s)
        self._flows[key] = _Flow(seconds, rate)
        self._share()

    def drop(self, key: Key, now_s: float) -> None:
        """Remove a flow before its end, if it is on the link."""
        if key in self._flows:
            self._advance(now_s)
            del self._flows[key]
            self._share()

    def finish(self, until_s: float) -> tuple[Key, float] | None:
        """Remove the flow that ends next, if it ends by `until_s`. Of several, the one that was added first is removed.

        Returns:
            Key and end of the removed flow, or None if no flow ends by then.
        """
        if not self._flows or self.next_s > until_s:
            return None
        key = next(key for key, flow in self._flows.items() if flow.end_s == self.next_s)
        end_s = self.next_s
        self._advance(end_s)
        del self._flows[key]
        self._share()
        return key, end_s

    def _advance(self, now_s: float) -> None:
        """Advance all flows to a time."""
        for flow in self._flows.values():
            flow.left_s = max(0.0, flow.left_s - max(0.0, now_s - self._now_s) * flow.speed)
        self._now_s = max(self._now_s, now_s)

    def _share(self) -> None:
        """Divide the link again. A flow whose speed does not change keeps its end, to the last bit."""
        level = fair_level((flow.rate for flow in self._flows.values()), self._capacity)
        for flow in self._flows.values():
            speed = 1.0 if flow.rate <= level else level / flow.rate
            if speed != flow.speed or flow.end_s == inf:
                flow.speed, flow.end_s = speed, self._now_s + flow.left_s / speed
        self.next_s = min((flow.end_s for flow in self._flows.values()), default=inf)
