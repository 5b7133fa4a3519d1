"""Time and memory of loading and offloading a phase's workers: seconds of each stage, and bytes on the fullest node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollmux_segment import Footprint

from runtime.grpo.engine_slots import footprint_of
from runtime.phases import runtime_hook


def wait_for_stages(calls: Sequence[Any]) -> list[Footprint]:
    """Wait for workers that load or offload, and report for each stage the seconds of the slowest worker.

    Args:
        calls: Pending calls of workers, each of which returns a footprint and seconds by stage.

    Returns:
        The footprint of each worker.
    """
    footprints, slowest_s = [], dict[str, float]()
    for footprint, stages in runtime_hook.wait(calls):
        footprints.append(footprint)
        for name, seconds in stages.items():
            slowest_s[name] = max(slowest_s.get(name, 0.0), seconds)
    for name, seconds in slowest_s.items():
        runtime_hook.reported.stages[name] = runtime_hook.reported.stages.get(name, 0.0) + seconds
    return footprints


def fullest_node(footprints: Sequence[Footprint], sizes: Sequence[int], size: int, nodes: int) -> Footprint:
    """Return what the workers of a phase keep on the node where that is most.

    Args:
        footprints: Footprint of each worker; those of a node follow each other, and each node has as many.
        sizes: Devices of each worker.
        size: Devices of a worker in use; workers of other sizes sleep.
        nodes: Number of nodes.
    """
    share = len(footprints) // nodes
    places = [slice(k, k + share) for k in range(0, len(footprints), share)]
    return max((footprint_of(footprints[own], sizes[own], size) for own in places), key=lambda part: part.device + part.host)
