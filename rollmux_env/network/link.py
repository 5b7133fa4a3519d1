"""One link that flows share, max-min fair: no flow gets more by taking from one that has less.

Flows have a rate of their own, which they reach where nobody else is in the way. Time is counted in seconds at that rate, so a flow
that never meets another ends exactly when it would without all this.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
_ROUNDING = 1e-12


def fair_level(rates: Iterable[float], capacity: float) -> float:
    """The rate that no flow of a link exceeds: each gets the smaller of this and its own.

    Args:
        rates: of the flows, each alone. capacity: of the link, in the same unit.

    Returns:
        Infinite where all flows have their own rates.
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
    """Seconds of a flow that takes `seconds` at its own rate, where it gets no more than `level`."""
    return seconds if rate <= level else seconds * (rate / level)


@dataclass
class _Flow:
    left_s: float  # at its own rate
    rate: float
    speed: float = 1.0  # share of its own rate that it gets
    end_s: float = inf


class SharedLink(Generic[Key]):
    """Flows on a link as time goes on.

    Args:
        capacity: of the link.

    Attributes:
        next_s: when the next flow ends if none is added or dropped before; infinite where there is none.
    """

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._flows: dict[Key, _Flow] = {}
        self._now_s = 0.0
        self.next_s = inf

    def __contains__(self, key: Key) -> bool:
        return key in self._flows

    def add(self, key: Key, seconds: float, rate: float, now_s: float) -> None:
        """Begin a flow of `seconds` at its own rate; one of this key must not be there."""
        self._advance(now_s)
        self._flows[key] = _Flow(seconds, rate)
        self._share()

    def drop(self, key: Key, now_s: float) -> None:
        """Cut a flow off, if it is there."""
        if key in self._flows:
            self._advance(now_s)
            del self._flows[key]
            self._share()

    def finish(self, until_s: float) -> tuple[Key, float] | None:
        """Take out the flow that ends next, if it does so by `until_s`; returns it and its end. Of several, the first added."""
        if not self._flows or self.next_s > until_s:
            return None
        key = next(key for key, flow in self._flows.items() if flow.end_s == self.next_s)
        end_s = self.next_s
        self._advance(end_s)
        del self._flows[key]
        self._share()
        return key, end_s

    def _advance(self, now_s: float) -> None:
        """Let flows go on until now."""
        for flow in self._flows.values():
            flow.left_s = max(0.0, flow.left_s - max(0.0, now_s - self._now_s) * flow.speed)
        self._now_s = max(self._now_s, now_s)

    def _share(self) -> None:
        """Share the link anew. What keeps its speed keeps its end, to the last bit."""
        level = fair_level((flow.rate for flow in self._flows.values()), self._capacity)
        for flow in self._flows.values():
            speed = 1.0 if flow.rate <= level else level / flow.rate
            if speed != flow.speed or flow.end_s == inf:
                flow.speed, flow.end_s = speed, self._now_s + flow.left_s / speed
        self.next_s = min((flow.end_s for flow in self._flows.values()), default=inf)
