"""Weights during their transfer from the training pool to the rollout pool, and in host memory (RollMux, arXiv 2512.11306).

A sync is flat or topology-aware. Flat: every rollout device pulls a whole copy over its own link between the clusters.
Topology-aware: as many disjoint shards as there are training devices are sent across at the same time, one copy in total. The copy
is then broadcast inside the rollout cluster, where only copies to other nodes take significant time, at the rate of one device's
link.

Host memory keeps a job resident on a node between its phases. The rollout keeps each replica's weights twice: those that sleep, and
those staged for the next version. The trainer keeps 24 bytes per parameter, divided by its nodes: weights, gradients and two
moments in float32, weights and gradients in bf16, and a reference model in float32. Further memory of each process, per GPU, is set
by hand to the figures of the paper's Table 2. docs/results/timing.md prints the remaining differences.
"""

from __future__ import annotations

from math import inf

from rollmux_env.timing.hardware import Hardware
from rollmux_env.timing.models import ModelShape

COPIES = 2  # copies of a rollout's weights in host memory
TRAINING_BYTES = 24  # bytes per parameter of a trainer in host memory
ROLLOUT_PROCESS_GB, TRAINING_PROCESS_GB = 2.5, 9.0


def flat_s(weights_gb: float, copies: int, links: int, link_gb_s: float) -> float:
    """Return the seconds to send whole copies over equal links."""
    return weights_gb * copies / (links * link_gb_s)


def topology_aware_s(
    weights_gb: float, links: int, rollout_nodes: int, cross_gb_s: float, inside_gb_s: float, most_gb_s: float = inf
) -> float:
    """Return the seconds to send one copy in shards over several links and to broadcast it over the nodes.

    Args:
        weights_gb: Size of one copy, in GB.
        links: Number of links between the clusters.
        rollout_nodes: Number of nodes that receive the copy.
        cross_gb_s: Rate of one link between the clusters, in GB/s.
        inside_gb_s: Rate of one device's link inside the rollout cluster, in GB/s.
        most_gb_s: Total rate between the clusters, in GB/s.
    """
    across_s = weights_gb / min(links * cross_gb_s, most_gb_s)
    return across_s + (weights_gb / inside_gb_s if rollout_nodes > 1 else 0.0)


def sync_s(
    weights_gb: float,
    training: Hardware,
    training_devices: int,
    rollout: Hardware,
    devices: int,
    nodes: int,
    most_gb_s: float = inf,
) -> float:
    """Return the seconds of a topology-aware sync.

    Args:
        weights_gb: Size of one copy of the weights, in GB.
        training: Rates of one training device.
        training_devices: Number of devices that send.
        rollout: Rates of one rollout device.
        devices: Number of devices of the rollout pool that receive.
        nodes: Number of nodes of the devices that receive.
        most_gb_s: Total rate between the clusters, in GB/s.
    """
    cross_gb_s = min(training.cross_gb_s, rollout.cross_gb_s)
    return topology_aware_s(weights_gb, min(training_devices, devices), nodes, cross_gb_s, rollout.inside_gb_s, most_gb_s)


def rollout_memory_gb(model: ModelShape, devices: int, tensor_parallel: int = 1, number_bytes: float = 2.0) -> float:
    """Return the host memory of a rollout on one node, in GB. A replica over several nodes has a part of its weights on each.

    Args:
        model: Sizes of the model.
        devices: Number of GPUs of the node.
        tensor_parallel: Number of GPUs that share one copy of the model.
        number_bytes: Size of a weight, in bytes.
    """
    replicas = devices / tensor_parallel
    return COPIES * replicas * model.parameters * number_bytes / 1e9 + devices * ROLLOUT_PROCESS_GB


def training_memory_gb(model: ModelShape, devices: int, nodes: int = 1) -> float:
    """Return the host memory of a training on each of its nodes, in GB.

    Args:
        model: Sizes of the model.
        devices: Number of GPUs of one node.
        nodes: Number of nodes.
    """
    return TRAINING_BYTES * model.parameters / nodes / 1e9 + devices * TRAINING_PROCESS_GB
