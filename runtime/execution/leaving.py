"""How a job's state leaves the devices of a phase, or stays there; and what either takes, measured in the profiler's pass.

A job whose class has a method `stay` may stay; any other is offloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from runtime.phases import PhaseOfJob
from runtime.residency.choice import STAY, Level, Waits
from runtime.residency.footprint import Footprint

Used = tuple[float, float]  # GB of a node's host memory, and of each of its GPUs


class Parked(NamedTuple):
    """What became of a job's state behind a phase.

    Attributes:
        footprint: as the job says, or None. seconds: it took. warm_s: of that, what a warm switch takes, where it was measured.
        stays: it is still on the devices. waits: what was measured.
    """

    footprint: Any
    seconds: float
    warm_s: float = 0.0
    stays: bool = False
    waits: Waits | None = None


def timed(job: Any, method: str, phase: PhaseOfJob) -> tuple[float, Any]:
    """Call a method of a job with a phase, if it has one: seconds, and what it returns."""
    if not hasattr(job, method):
        return 0.0, None
    began = monotonic()
    result = getattr(job, method)(phase)
    return monotonic() - began, result


def park(job: Any, phase: PhaseOfJob, stays: bool) -> Parked:
    """Let the state stay, or offload it."""
    seconds, footprint = timed(job, "stay" if stays else "offload", phase)
    return Parked(footprint, seconds, stays=stays)


def measure(job: Any, phase: PhaseOfJob, used: Callable[[Any], Used], gpus: int) -> Parked:
    """Try every way in which the state may wait, and offload it in the end.

    Args:
        used: what the job uses of a node, with the footprint given. gpus: of a node.
    """
    levels, peak_gb, gpu_gb = [], 0.0, 0.0
    first_s, here = timed(job, "stay", phase)
    if isinstance(here, Footprint):
        host_gb, device_gb = used(here)
        first_s += timed(job, "load", phase)[0]
        stay_s = timed(job, "stay", phase)[0] + timed(job, "load", phase)[0]  # as often as it is offloaded
        levels.append(Level(STAY, min(first_s, stay_s), device_gb, host_gb))
        first_s += stay_s
        if gpus:
            peak_gb, gpu_gb = here.peak / 1e9 / gpus, here.capacity / 1e9 / gpus
    first_s += timed(job, "offload", phase)[0]
    load_s, _ = timed(job, "load", phase)  # a warm switch, beside the cold one
    again_s, footprint = timed(job, "offload", phase)
    host_gb, device_gb = used(footprint)
    levels.append(Level("keep", load_s + again_s, device_gb, host_gb))
    waits = Waits(tuple(levels), peak_gb, gpu_gb)
    return Parked(footprint, first_s + load_s + again_s, load_s + again_s, waits=waits)
