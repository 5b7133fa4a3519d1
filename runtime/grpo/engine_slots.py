"""Places of a job's engines and training ranks: its nodes are cut into parts, and engines of every size use the same parts.

The engines of all sizes are started at the beginning. Those of one size are on the devices at a time; the others sleep in host
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rollmux_segment import Footprint

from rollmux_env.errors import InputError
from runtime.jobs.phase_spec import RolloutSpec
from runtime.machine import Node


class EngineSlot(NamedTuple):
    """Place of one engine.

    Attributes:
        node: Part of a node that belongs to the engine.
        size: Size of the engine: number of GPUs, or of cores on a node without GPUs.
    """

    node: Node
    size: int


def engine_slots_of(nodes: Sequence[Node], rollout: RolloutSpec) -> list[EngineSlot]:
    """Return the places of a job's engines, node by node, and on each node size by size.

    Args:
        nodes: Rollout nodes of the job.
        rollout: Rollout settings of the job.

    Raises:
        InputError: A node cannot be divided into engines of one of several sizes. The message is one line.
    """
    if not rollout.sizes:
        return [EngineSlot(part, rollout.tensor_parallel) for node in nodes for part in parts_of(node, rollout.tensor_parallel)]
    return [EngineSlot(part, size) for node in nodes for size in rollout.all_sizes for part in _exact_parts(node, size)]


def parts_of(node: Node, gpus: int) -> list[Node]:
    """Divide a node into workers: one for each `gpus` GPUs, or a single one on a CPU node."""
    count = len(node.gpus) // gpus
    return _cut(node, count) if count else [node]


def footprint_of(footprints: Sequence[Footprint], sizes: Sequence[int], size: int) -> Footprint:
    """Return what the engines of a node take together.

    The engines in use have their peak while the others sleep on the same devices.

    Args:
        footprints: Footprint of each engine.
        sizes: Size of each engine.
        size: Size of the engines in use.
    """
    whole = sum(footprints, Footprint())
    own = sum((one for one, its in zip(footprints, sizes, strict=True) if its == size), Footprint())
    return whole._replace(peak=own.peak and own.peak + whole.device - own.device, capacity=own.capacity)


def _exact_parts(node: Node, size: int) -> list[Node]:
    devices, kind = (node.gpus, "GPUs") if node.gpus else (node.cores, "cores")
    if len(devices) % size:
        problem = f"must divide the {len(devices)} {kind} of the rollout node {node.name}, tensor_parallel included, not be {size}"
        raise InputError(f"rollout.sizes: {problem}")
    return _cut(node, len(devices) // size)


def _cut(node: Node, count: int) -> list[Node]:
    gpus, cores = len(node.gpus) // count, len(node.cores) // count
    return [
        replace(node, gpus=node.gpus[k * gpus : (k + 1) * gpus], cores=node.cores[k * cores : (k + 1) * cores])
        for k in range(count)
    ]
