"""Flows between GPUs, from the sizes of models and their parallelism: who sends how much to whom.

Ranks are laid out as Megatron-LM does: those of one tensor-parallel group stand together, then replicas, then stages of the
pipeline. GPUs of one node that send to each other do so over NVLink and not over the fabric. Collectives are rings, used in both
directions at once. Where a group of tensor-parallel ranks spans nodes its all-reduce is hierarchical: NVLink inside, rings between
equal places of the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.fields import Checked, Count, Index
from rollmux_env.kernel.tables import Floats, Ints


class Traffic(NamedTuple):
    """Flows that begin together.

    Attributes:
        source, target: (F,) numbers of GPUs. gb: (F,) that each moves.
    """

    source: Ints
    target: Ints
    gb: Floats


@dataclass(frozen=True)
class Layout(Checked):
    """GPUs of a side by their ranks.

    Attributes:
        first: number of its first GPU. tensor: GPUs of a tensor-parallel group. pipeline: stages. data: replicas.
    """

    what: ClassVar[str] = "layout"
    first: Index
    tensor: Count
    pipeline: Count
    data: Count

    @property
    def gpus(self) -> int:
        """How many."""
        return self.tensor * self.pipeline * self.data

    @property
    def ranks(self) -> Ints:
        """(pipeline, data, tensor) GPU of each rank."""
        return self.first + np.arange(self.gpus, dtype=np.int64).reshape(self.pipeline, self.data, self.tensor)


def joined(*parts: Traffic) -> Traffic:
    """Flows of several kinds that begin together."""
    return Traffic(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def pipeline_traffic(layout: Layout, gb: float) -> Traffic:
    """Activations forward and their gradients back between neighbouring stages; each rank sends its share of the tensor.

    Args:
        gb: that a replica sends over each boundary in one direction.
    """
    ranks = layout.ranks
    here, there = ranks[:-1].ravel(), ranks[1:].ravel()
    return _flows(np.concatenate((here, there)), np.concatenate((there, here)), gb / layout.tensor)


def data_traffic(layout: Layout, gb: float) -> Traffic:
    """Reduce-scatter of gradients and all-gather of weights among the replicas of each rank.

    Args:
        gb: of the gradients of all ranks of a replica together; the weights have as much.
    """
    share = gb / (layout.tensor * layout.pipeline)
    return _ring(np.moveaxis(layout.ranks, 1, -1).reshape(-1, layout.data), 2 * share)


def tensor_traffic(layout: Layout, gb: float, gpus_per_node: int) -> Traffic:
    """All-reduces of activations inside tensor-parallel groups; none where a group fits into a node.

    Args:
        gb: that a group reduces in all.
    """
    places = min(layout.tensor, gpus_per_node)
    nodes = layout.ranks.reshape(-1, layout.tensor // places, places)
    return _ring(np.moveaxis(nodes, 1, -1).reshape(-1, layout.tensor // places), 2 * gb / places)


def expert_traffic(layout: Layout, replicas: int, gb: float) -> Traffic:
    """All-to-all among the replicas that hold the experts of a layer together, between equal ranks.

    Args:
        replicas: so many neighbouring ones hold all experts; they divide `layout.data`. gb: that each rank sends in all, what stays
            with it included.

    Raises:
        InputError: they do not divide it; one line.
    """
    if layout.data % replicas:
        raise InputError(f"experts: groups of {replicas} do not divide {layout.data} replicas")
    groups = np.moveaxis(layout.ranks, 1, -1).reshape(-1, replicas)
    pairs = [(a, b) for a in range(replicas) for b in range(replicas) if a != b]
    source = np.concatenate([groups[:, a] for a, _ in pairs] or [np.zeros(0, np.int64)])
    target = np.concatenate([groups[:, b] for _, b in pairs] or [np.zeros(0, np.int64)])
    return _flows(source, target, gb / replicas)


def weight_traffic(training: Layout, generation: Layout, gb: float) -> Traffic:
    """New weights: one copy crosses from the first training replica to the first one that generates, and from there it is passed on
    from replica to replica, piece by piece, so that all hops go on at once.

    Args:
        gb: of the weights. generation: of one stage.
    """
    replicas = generation.ranks[0]
    senders = training.ranks[:, 0, :].ravel()
    crossing = _flows(senders, replicas[0][np.arange(senders.size) % generation.tensor], gb / senders.size)
    return joined(crossing, _flows(replicas[:-1].ravel(), replicas[1:].ravel(), gb / generation.tensor))


def _flows(source: Ints, target: Ints, gb: float) -> Traffic:
    return Traffic(source, target, np.full(source.size, gb))


def _ring(members: Ints, gb: float) -> Traffic:
    """Rings over the rows of `members` (R, N): of `gb` each member passes (N - 1) / N on, half of it in either direction."""
    n = len(members.T)
    if n == 1:
        return _flows(np.zeros(0, np.int64), np.zeros(0, np.int64), 0.0)
    onward = np.roll(members, -1, axis=1)
    source, target = np.concatenate((members, onward)).ravel(), np.concatenate((onward, members)).ravel()
    return _flows(source, target, gb * (n - 1) / n / 2)
