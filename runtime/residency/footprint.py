"""Measured bytes of a job's state on a node: what residency is accounted in."""

from __future__ import annotations

from typing import NamedTuple


class Footprint(NamedTuple):
    """Bytes that a worker's state takes, by where they are.

    Attributes:
        device: on the accelerator, or in the process's own memory where there is none.
        host: in host memory, waiting for the next phase.
        mapped: of `host`, what the worker's resident size holds too, as page-locked memory is: it counts once.
        peak: on the accelerator, the most that the worker has had there so far; 0 where there is none.
        capacity: of the accelerators that it is on; 0 where there are none.
    """

    device: int = 0
    host: int = 0
    mapped: int = 0
    peak: int = 0
    capacity: int = 0

    def __add__(self, other: object) -> Footprint:
        """Bytes of both, place by place."""
        if not isinstance(other, Footprint):
            return NotImplemented
        return Footprint(*(a + b for a, b in zip(self, other, strict=True)))
