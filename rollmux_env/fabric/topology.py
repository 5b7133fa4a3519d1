"""Fabrics: GPUs on leaf switches, electrical uplinks above them, and reconfigurable optical circuits between leaves.

All fabrics have the same structure. Each GPU has a link to a leaf. A leaf has electrical uplinks to non-blocking layers above. With
as many uplinks as GPUs the fabric is non-blocking; with 1/r of them it is an r:1 fat tree. A leaf may also have ports of optical
switches: `Circuits` gives the number of circuits between each two leaves. Flows between two leaves use their circuits if there are
any, and the uplinks otherwise. Parallel links between the same two ends count as one: flows are assumed to be spread evenly over
them, which hashing only approximates.

With rails, a leaf holds the GPUs at the same position of different nodes. Traffic to another position first crosses inside the
sender's node.

The cost of a fabric follows from its ports, at prices that are our assumptions or the user's (`rollmux_env.keys.fabric.Prices`).

A leaf's uplink takes a port of the leaf, two transceivers and a port above. If one layer above cannot join all leaves, each of its
ports takes two transceivers and two more ports. A circuit takes, at each of its leaves, a port of the leaf, a transceiver and an
optical port. Network cards are not counted, since they are the same everywhere. Power is not counted either; a circuit switch needs
almost none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.fabric.fairness import completion_s
from rollmux_env.fabric.traffic import Traffic
from rollmux_env.fields import Checked, Count, Index, Positive
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.keys.fabric import OUR_PRICES, Prices


@dataclass(frozen=True)
class Fabric(Checked):
    """A fabric that joins GPUs.

    Attributes:
        gpus: Number of GPUs.
        uplinks: Number of electrical uplinks per leaf.
        optical: Number of ports per leaf to optical switches.
        rails: Whether a leaf holds the GPUs at the same position of different nodes.
        gpus_per_node: Number of GPUs per node.
        gpus_per_leaf: Number of GPUs per leaf.
        link_gb_s: Rate of every link, in GB/s.

    Raises:
        InputError: If the numbers do not fit together.
    """

    what: ClassVar[str] = "fabric"
    gpus: Count
    uplinks: Index
    optical: Index = 0
    rails: bool = False
    gpus_per_node: Count = 8
    gpus_per_leaf: Count = 32
    link_gb_s: Positive = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        block = self.gpus_per_leaf * (self.gpus_per_node if self.rails else 1)
        if self.gpus % block or self.gpus_per_leaf % (1 if self.rails else self.gpus_per_node):
            raise InputError(f"fabric: {self.gpus} GPUs do not fill leaves of {self.gpus_per_leaf}")
        if self.leaves > 1 and not self.uplinks:
            raise InputError("fabric: uplinks must be at least 1, or leaves without a circuit between them are apart")

    @property
    def leaves(self) -> int:
        """Number of leaf switches."""
        return self.gpus // self.gpus_per_leaf

    def leaf_of(self, gpu: Ints) -> Ints:
        """Return the leaf of each GPU."""
        if not self.rails:
            return gpu // self.gpus_per_leaf
        node, place = gpu // self.gpus_per_node, gpu % self.gpus_per_node
        return node // self.gpus_per_leaf * self.gpus_per_node + place


@dataclass(frozen=True, eq=False)
class Circuits:
    """Optical circuits between leaves.

    Attributes:
        name: Name of the traffic that the circuits were chosen for.
        between: Number of circuits between every pair of leaves, symmetric, shape (leaves, leaves). Each carries its rate in both
            directions.
    """

    name: str
    between: Ints = field(repr=False)


def no_circuits(fabric: Fabric) -> Circuits:
    """Return a topology without circuits, in which all traffic uses uplinks."""
    return Circuits("none", np.zeros((fabric.leaves, fabric.leaves), np.int64))


def demand_between(fabric: Fabric, traffic: Traffic) -> Floats:
    """Return the GB that flows move between every pair of leaves, shape (leaves, leaves).

    The larger of the two directions counts, so the array is symmetric. Its diagonal is 0.
    """
    source, target = _entering(fabric, traffic), fabric.leaf_of(traffic.target)
    demand = np.zeros((fabric.leaves, fabric.leaves))
    np.add.at(demand, (fabric.leaf_of(source), target), traffic.gb)
    np.fill_diagonal(demand, 0.0)
    return np.maximum(demand, demand.T)


def circuits_for(name: str, fabric: Fabric, demand: Floats) -> Circuits:
    """Choose circuits for a demand.

    Circuits are assigned one by one to the pair of leaves that would have the most GB per circuit.

    Args:
        name: Name of the traffic, which becomes that of the topology.
        fabric: Fabric with its optical ports.
        demand: GB between every pair of leaves, as `demand_between` returns it.
    """
    between = np.zeros_like(demand, np.int64)
    free = np.full(fabric.leaves, fabric.optical)
    while True:
        worth = np.where((free[:, None] > 0) & (free[None, :] > 0), np.triu(demand), 0.0) / (between + 1)
        a, b = divmod(int(np.argmax(worth)), fabric.leaves)
        if worth[a, b] <= 0.0:
            return Circuits(name, between)
        between[a, b] += 1
        between[b, a] += 1
        free[[a, b]] -= 1


def routes(fabric: Fabric, traffic: Traffic, circuits: Circuits) -> tuple[Ints, Floats]:
    """Return the links that each flow crosses, and their capacities.

    Args:
        fabric: Fabric that the flows cross.
        traffic: F flows.
        circuits: Circuits between leaves.

    Returns:
        The links of each flow, shape (F, 4), as `fair_rates` reads them, and the capacities of the links in GB/s, shape (L,): out
        of each GPU, into each GPU, up from each leaf, down to each leaf, and the circuits from each leaf to each other.
    """
    n, leaves = fabric.gpus, fabric.leaves
    source, target = _entering(fabric, traffic), traffic.target
    here, there = fabric.leaf_of(source), fabric.leaf_of(target)
    joined = circuits.between[here, there] > 0
    far = here != there
    paths = np.full((source.size, 4), -1, np.int64)
    paths[:, 0], paths[:, 1] = source, n + target
    circuit = 2 * n + 2 * leaves + here * leaves + there
    paths[:, 2] = np.where(far, np.where(joined, circuit, 2 * n + here), -1)
    paths[:, 3] = np.where(far & ~joined, 2 * n + leaves + there, -1)
    paths[traffic.source // fabric.gpus_per_node == target // fabric.gpus_per_node] = -1
    up = np.full(2 * leaves, fabric.uplinks, np.float64)
    counts = np.concatenate((np.ones(2 * n), up, circuits.between.ravel().astype(np.float64)))
    return paths, counts * fabric.link_gb_s


def traffic_s(fabric: Fabric, traffic: Traffic, circuits: Circuits) -> float:
    """Return the seconds until the last of the flows has ended."""
    paths, capacity = routes(fabric, traffic, circuits)
    return float(completion_s(paths, traffic.gb, capacity).max(initial=0.0))


def _entering(fabric: Fabric, traffic: Traffic) -> Ints:
    """Return the GPU at which each flow enters the fabric, shape (F,).

    With rails it is the GPU of the sender's node at the receiver's position.
    """
    if not fabric.rails:
        return traffic.source
    return traffic.source - traffic.source % fabric.gpus_per_node + traffic.target % fabric.gpus_per_node


def fabric_usd(fabric: Fabric, prices: Prices = OUR_PRICES) -> float:
    """Return the price of a fabric in $.

    It covers the leaves with the cables to GPUs, the uplinks with all layers above, and the circuits.
    """
    port, transceiver = prices.switch_port_usd, prices.transceiver_usd
    access = fabric.gpus * (port + prices.copper_usd)
    layers = 1 if fabric.leaves <= prices.radix else 2
    uplink = port + layers * (port + 2 * transceiver) + (layers - 1) * port
    circuit_end = port + transceiver + prices.optical_port_usd
    above = 0.0 if fabric.leaves == 1 else fabric.leaves * (fabric.uplinks * uplink + fabric.optical * circuit_end)
    return access + above


def usd_per_hour(fabric: Fabric, prices: Prices = OUR_PRICES) -> float:
    """Return the price of a fabric in $/h if it is paid over `prices.paid_h` hours."""
    return fabric_usd(fabric, prices) / prices.paid_h
