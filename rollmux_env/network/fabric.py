"""Fabrics: GPUs on leaf switches, electrical links above them, and circuits between leaves that can be set anew.

Every fabric is one kind of thing. Each GPU has a link to a leaf. A leaf has electrical uplinks to layers above that are themselves
non-blocking: as many as it has GPUs, and the fabric is non-blocking; a share of 1/r of them, and it is an r:1 fat tree. A leaf may
have ports of optical switches too: a `Circuits` says how many join it to which other leaf. Flows between two leaves go over their
circuits where these are joined, else over the uplinks. Links of one kind between the same two ends count as one: flows are spread
evenly over them, which hashing only comes near.

With rails, a leaf holds the GPUs of equal places in their nodes. What goes to another place crosses over inside the sender's node.

What a fabric costs follows from its ports, at prices that are our own assumptions or the user's (`rollmux_env.keys.fabric.Prices`).

A leaf's uplink takes a port of the leaf, two transceivers and a port above; where one layer above cannot join all leaves, each of
its ports takes two transceivers and two more ports. A circuit takes, at each of its leaves, a port of the leaf, a transceiver and
an optical port. Network cards are the same everywhere and not counted; nor is power, of which a circuit switch takes next to none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rollmux_env.errors import InputError
from rollmux_env.fields import Checked, Count, Index, Positive
from rollmux_env.kernel.tables import Floats, Ints
from rollmux_env.keys.fabric import OUR_PRICES, Prices
from rollmux_env.network.fairness import completion_s
from rollmux_env.network.traffic import Traffic


@dataclass(frozen=True)
class Fabric(Checked):
    """How GPUs are joined.

    Attributes:
        gpus: how many. gpus_per_node, gpus_per_leaf: of a node, and of a leaf. link_gb_s: of every link, GB/s.
        uplinks: electrical, of a leaf. optical: ports of a leaf to optical switches. rails: whether leaves are rails.

    Raises:
        InputError: numbers that do not go together; one line.
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
        """How many leaf switches."""
        return self.gpus // self.gpus_per_leaf

    def leaf_of(self, gpu: Ints) -> Ints:
        """Leaf of each GPU."""
        if not self.rails:
            return gpu // self.gpus_per_leaf
        node, place = gpu // self.gpus_per_node, gpu % self.gpus_per_node
        return node // self.gpus_per_leaf * self.gpus_per_node + place


@dataclass(frozen=True, eq=False)
class Circuits:
    """Which leaves are joined by circuits.

    Attributes:
        name: what they were made for. between: (leaves, leaves) how many, the same both ways; a circuit carries as much either way.
    """

    name: str
    between: Ints = field(repr=False)


def no_circuits(fabric: Fabric) -> Circuits:
    """All uplinks, no circuit."""
    return Circuits("none", np.zeros((fabric.leaves, fabric.leaves), np.int64))


def demand_between(fabric: Fabric, traffic: Traffic) -> Floats:
    """(leaves, leaves) GB that flows move between each two leaves, in the direction that has more; symmetric, 0 on the diagonal."""
    source, target = _entering(fabric, traffic), fabric.leaf_of(traffic.target)
    demand = np.zeros((fabric.leaves, fabric.leaves))
    np.add.at(demand, (fabric.leaf_of(source), target), traffic.gb)
    np.fill_diagonal(demand, 0.0)
    return np.maximum(demand, demand.T)


def circuits_for(name: str, fabric: Fabric, demand: Floats) -> Circuits:
    """Circuits for a demand: one after the other goes to the two leaves with the most GB for each circuit that they would have.

    Args:
        demand: as `demand_between` has it.
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
    """What flows cross.

    Returns:
        (F, 4) links of each flow, as `fair_rates` has them, and (L,) capacities of the links, GB/s: out of each GPU, into each GPU,
        up from and down to each leaf, and the circuits from each leaf to each other.
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
    """Seconds until the last of the flows has ended."""
    paths, capacity = routes(fabric, traffic, circuits)
    return float(completion_s(paths, traffic.gb, capacity).max(initial=0.0))


def _entering(fabric: Fabric, traffic: Traffic) -> Ints:
    """(F,) where flows enter the fabric: with rails, at the GPU of the sender's node that has the receiver's place."""
    if not fabric.rails:
        return traffic.source
    return traffic.source - traffic.source % fabric.gpus_per_node + traffic.target % fabric.gpus_per_node


def fabric_usd(fabric: Fabric, prices: Prices = OUR_PRICES) -> float:
    """Price of a fabric, $: its leaves with the cables to GPUs, its uplinks with all above them, and its circuits."""
    port, transceiver = prices.switch_port_usd, prices.transceiver_usd
    access = fabric.gpus * (port + prices.copper_usd)
    layers = 1 if fabric.leaves <= prices.radix else 2
    uplink = port + layers * (port + 2 * transceiver) + (layers - 1) * port
    circuit_end = port + transceiver + prices.optical_port_usd
    above = 0.0 if fabric.leaves == 1 else fabric.leaves * (fabric.uplinks * uplink + fabric.optical * circuit_end)
    return access + above


def usd_per_hour(fabric: Fabric, prices: Prices = OUR_PRICES) -> float:
    """Price of an hour, $, if it is paid over `prices.paid_h`."""
    return fabric_usd(fabric, prices) / prices.paid_h
