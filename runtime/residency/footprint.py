"""Measured bytes of a job's state on a node: what residency is accounted in."""

from __future__ import annotations

from typing import NamedTuple


class Footprint(NamedTuple):
    """Bytes that a worker's state takes, by where they are.

    Attributes:
        device: on the accelerator, or in the process's own memory where there is none.
        host: in host memory, waiting for the next phase.
    """

    device: int = 0
    host: int = 0

    def __add__(self, other: object) -> Footprint:
        """Bytes of both, place by place."""
        if not isinstance(other, Footprint):
            return NotImplemented
        return Footprint(self.device + other.device, self.host + other.host)
