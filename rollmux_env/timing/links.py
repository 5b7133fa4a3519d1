"""What a message costs between the GPUs of a plan: by NVLink in a machine, by network between machines and between types of GPU.

Rates are those of `rollmux_env.timing.hardware.GPUS`, AReaL-Hex's (arXiv 2511.00796) or RollMux's. No paper gives latencies;
those here are usual ones.
"""

from __future__ import annotations

from typing import NamedTuple

from rollmux_env.timing.hardware import GPUS, Hardware

NVLINK_S, NETWORK_S = 1e-5, 5e-5
UNKNOWN_NVLINK_GB_S = min(gpu.nvlink_gb_s for gpu in GPUS.values())  # of hardware that is measured, not of the catalogue


class Link(NamedTuple):
    """One GPU's way to another.

    Attributes:
        latency_s: of a message. gb_s: its rate.
    """

    latency_s: float
    gb_s: float

    def seconds(self, n_bytes: float, messages: float = 1.0) -> float:
        """Seconds of so many messages of so many bytes each."""
        return messages * (self.latency_s + n_bytes / (self.gb_s * 1e9))


def machine_link(hardware: Hardware) -> Link:
    """To another GPU of the machine."""
    gpu = GPUS.get(hardware.name)
    return Link(NVLINK_S, gpu.nvlink_gb_s if gpu is not None else UNKNOWN_NVLINK_GB_S)


def link_between(here: Hardware, there: Hardware) -> Link:
    """To a GPU of another machine, of the same type or of another one."""
    if here.name == there.name:
        return Link(NETWORK_S, here.inside_gb_s)
    return Link(NETWORK_S, min(here.cross_gb_s, there.cross_gb_s))
