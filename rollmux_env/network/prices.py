"""What a fabric costs, by its ports. The prices are our own assumptions, in dollars of 2025 for 400 Gbit/s.

| part | $ | why so much |
|---|---|---|
| port of an electrical switch | 700 | switches with 64 ports are offered at about 45,000 |
| transceiver at one end of a fibre | 500 | between long-reach modules at 800 and more and short-reach ones at 400 |
| copper cable from a GPU to its leaf | 150 | passive, within a rack |
| port of an optical circuit switch | 500 | estimates of MEMS switches lie between 300 and 1,000; any rate passes |

A leaf's uplink takes a port of the leaf, two transceivers and a port above; where one layer above cannot join all leaves, each of
its ports takes two transceivers and two more ports. A circuit takes, at each of its leaves, a port of the leaf, a transceiver and
an optical port. Network cards are the same everywhere and not counted; nor is power, of which a circuit switch takes next to none.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollmux_env.network.fabric import Fabric

HOURS = 4 * 8760  # over which a fabric is paid


@dataclass(frozen=True)
class Prices:
    """Dollars apiece.

    Attributes:
        switch_port: of an electrical switch. transceiver: at one end. copper: a cable. optical_port: of a circuit switch.
        radix: ports of an electrical switch.
    """

    switch_port: float = 700.0
    transceiver: float = 500.0
    copper: float = 150.0
    optical_port: float = 500.0
    radix: int = 64


OURS = Prices()


def fabric_usd(fabric: Fabric, prices: Prices = OURS) -> float:
    """Price of a fabric, $: its leaves with the cables to GPUs, its uplinks with all above them, and its circuits."""
    access = fabric.gpus * (prices.switch_port + prices.copper)
    layers = 1 if fabric.leaves <= prices.radix else 2
    uplink = prices.switch_port + layers * (prices.switch_port + 2 * prices.transceiver) + (layers - 1) * prices.switch_port
    circuit_end = prices.switch_port + prices.transceiver + prices.optical_port
    above = 0.0 if fabric.leaves == 1 else fabric.leaves * (fabric.uplinks * uplink + fabric.optical * circuit_end)
    return access + above


def usd_per_hour(fabric: Fabric, prices: Prices = OURS) -> float:
    """Price of an hour, $, if it is paid over `HOURS`."""
    return fabric_usd(fabric, prices) / HOURS
