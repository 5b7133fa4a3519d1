"""Where a job's engines and training ranks are: its nodes cut into parts, and engines of every size on the same parts.

The engines of all sizes are built beforehand. Those of one size are on the devices at a time; the others sleep in host memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rollmux_segment import Footprint

from rollmux_env.errors import InputError
from runtime.jobs.phase_spec import RolloutSpec
from runtime.machine import Node


class Seat(NamedTuple):
    """The place of one engine.

    Attributes:
        node: its own part of one. size: GPUs of it, or cores of a node that has no GPUs.
    """

    node: Node
    size: int


def seats_of(nodes: Sequence[Node], rollout: RolloutSpec) -> list[Seat]:
    """The engines of a job, node by node, and on each of them size by size.

    Raises:
        InputError: a node cannot be cut into engines of one of several sizes; one line.
    """
    if not rollout.sizes:
        return [Seat(part, rollout.tensor_parallel) for node in nodes for part in parts_of(node, rollout.tensor_parallel)]
    return [Seat(part, size) for node in nodes for size in rollout.all_sizes for part in _exact_parts(node, size)]


def parts_of(node: Node, gpus: int) -> list[Node]:
    """A node cut into workers: one for so many of its GPUs, or one on a CPU node."""
    count = len(node.gpus) // gpus
    return _cut(node, count) if count else [node]


def footprint_of(footprints: Sequence[Footprint], sizes: Sequence[int], size: int) -> Footprint:
    """What the engines of a node take together.

    Args:
        sizes: of each. size: of those in use; the others sleep, on the same devices. The peak is that of the former beside them.
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
