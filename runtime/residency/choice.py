"""Which way of waiting between phases is the cheapest that leaves room on the device for whoever runs meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """A way of waiting, as measured.

    Attributes:
        name: `stay` (nothing is given back), `keep` (weights wait in host memory, vLLM's level 1) or `drop` (staged weights will
            come in their place, level 2).
        seconds: of leaving the device and coming back together.
        device_bytes: that stay on the device meanwhile.
    """

    name: str
    seconds: float
    device_bytes: int


def cheapest(levels: Sequence[Level], device_bytes: int, needed_bytes: int) -> Level | None:
    """The quickest of some ways that fits; of equally quick ones the one that keeps least. None: none does.

    Args:
        levels: measured on this device. device_bytes: of the device. needed_bytes: of all others on it, when one of them runs.
    """
    fitting = [level for level in levels if level.device_bytes + needed_bytes <= device_bytes]
    return min(fitting, key=lambda level: (level.seconds, level.device_bytes), default=None)
