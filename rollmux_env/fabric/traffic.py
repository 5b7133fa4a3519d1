"""Flows between GPUs, computed from the sizes of models and their parallelism.

Ranks are ordered as in Megatron-LM: tensor-parallel ranks are adjacent, then come replicas, then pipeline stages. GPUs of one node
communicate over NVLink and not over the fabric. Collectives are rings that use both directions at once. If a tensor-parallel group
spans several nodes, its all-reduce is hierarchical: NVLink inside a node, and rings between the same positions of the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.fields import Checked, Count, Index
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.timing.hardware import ring_share


class Traffic(NamedTuple):
    """Flows that begin together.

    Attributes:
        source: Number of each flow's sending GPU, shape (F,).
        target: Number of each flow's receiving GPU, shape (F,).
        gb: Size of each flow in GB, shape (F,).
    """

    source: Ints
    target: Ints
    gb: Floats


@dataclass(frozen=True)
class RankLayout(Checked):
    """The GPUs of one side by their ranks.

    Attributes:
        first: Number of the first GPU.
        tensor: Number of GPUs of a tensor-parallel group.
        pipeline: Number of pipeline stages.
        data: Number of replicas.
    """

    what: ClassVar[str] = "layout"
    first: Index
    tensor: Count
    pipeline: Count
    data: Count

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return self.tensor * self.pipeline * self.data

    @property
    def ranks(self) -> Ints:
        """Number of each rank's GPU, shape (pipeline, data, tensor)."""
        return self.first + np.arange(self.gpus, dtype=np.int64).reshape(self.pipeline, self.data, self.tensor)


def joined(*parts: Traffic) -> Traffic:
    """Return the flows of several kinds that begin together."""
    return Traffic(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def pipeline_traffic(layout: RankLayout, gb: float) -> Traffic:
    """Return the activations forward and their gradients back between adjacent stages. Each rank sends its share of the tensor.

    Args:
        layout: GPUs that train.
        gb: Size in GB of what a replica sends over each boundary in one direction.
    """
    ranks = layout.ranks
    here, there = ranks[:-1].ravel(), ranks[1:].ravel()
    return _flows(np.concatenate((here, there)), np.concatenate((there, here)), gb / layout.tensor)


def data_traffic(layout: RankLayout, gb: float) -> Traffic:
    """Return the reduce-scatter of gradients and the all-gather of weights among the replicas of each rank.

    Args:
        layout: GPUs that train.
        gb: Size in GB of the gradients of all ranks of a replica together. The weights have the same size.
    """
    share = gb / (layout.tensor * layout.pipeline)
    return _rings(np.moveaxis(layout.ranks, 1, -1).reshape(-1, layout.data), share)


def tensor_traffic(layout: RankLayout, gb: float, gpus_per_node: int) -> Traffic:
    """Return the all-reduces of activations inside tensor-parallel groups. A group within a node sends nothing over the fabric.

    Args:
        layout: GPUs of the groups.
        gb: Total size in GB of what a group reduces.
        gpus_per_node: Number of GPUs per node.
    """
    places = min(layout.tensor, gpus_per_node)
    nodes = layout.ranks.reshape(-1, layout.tensor // places, places)
    return _rings(np.moveaxis(nodes, 1, -1).reshape(-1, layout.tensor // places), gb / places)


def expert_traffic(layout: RankLayout, replicas: int, gb: float) -> Traffic:
    """Return the all-to-all between the same ranks of the replicas that hold the experts of a layer together.

    Args:
        layout: GPUs that train.
        replicas: Number of adjacent replicas that hold all experts together; divides `layout.data`.
        gb: Total size in GB of what each rank sends, including the part that stays with it.

    Raises:
        InputError: If `replicas` does not divide `layout.data`.
    """
    if layout.data % replicas:
        raise InputError(f"experts: groups of {replicas} do not divide {layout.data} replicas")
    groups = np.moveaxis(layout.ranks, 1, -1).reshape(-1, replicas)
    pairs = [(a, b) for a in range(replicas) for b in range(replicas) if a != b]
    source = np.concatenate([groups[:, a] for a, _ in pairs] or [np.zeros(0, np.int64)])
    target = np.concatenate([groups[:, b] for _, b in pairs] or [np.zeros(0, np.int64)])
    return _flows(source, target, gb / replicas)


def weight_traffic(training: RankLayout, generation: RankLayout, gb: float) -> Traffic:
    """Return the flows of new weights from training to generation.

    One copy crosses from the first training replica to the first generating replica. From there it is forwarded from replica to
    replica in pieces, so that all hops run at once.

    Args:
        training: GPUs that train.
        generation: GPUs that generate, with one pipeline stage.
        gb: Size of the weights in GB.
    """
    replicas = generation.ranks[0]
    senders = training.ranks[:, 0, :].ravel()
    crossing = _flows(senders, replicas[0][np.arange(senders.size) % generation.tensor], gb / senders.size)
    return joined(crossing, _flows(replicas[:-1].ravel(), replicas[1:].ravel(), gb / generation.tensor))


def _flows(source: Ints, target: Ints, gb: float) -> Traffic:
    return Traffic(source, target, np.full(source.size, gb))


def _rings(members: Ints, gb: float) -> Traffic:
    """Return the all-reduces of `gb` GB on rings over the rows of `members` (R, N). Half goes in each direction."""
    n = len(members.T)
    if n == 1:
        return _flows(np.zeros(0, np.int64), np.zeros(0, np.int64), 0.0)
    onward = np.roll(members, -1, axis=1)
    source, target = np.concatenate((members, onward)).ravel(), np.concatenate((onward, members)).ravel()
    return _flows(source, target, gb * ring_share(n) / 2)
