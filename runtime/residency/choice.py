"""Choice of how state waits between phases: the fastest way that leaves enough memory for other jobs, by measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

STAY = "stay"
_SPARE = 0.01  # share of a GPU that the rounding of allocators may take


@dataclass(frozen=True)
class OffloadLevel:
    """A measured way to wait between phases.

    Attributes:
        name: `stay` (nothing is released), `keep` (weights wait in host memory, vLLM's level 1) or `drop` (staged weights will
            replace them, level 2).
        seconds: Seconds to leave the device and to return, together.
        device_gb: Memory kept on each GPU meanwhile, GB, 0 without GPUs.
        host_gb: Host memory on a node meanwhile, GB, including everything else of the job's processes there.
    """

    name: str
    seconds: float
    device_gb: float
    host_gb: float = 0.0


@dataclass(frozen=True)
class OffloadLevels:
    """Ways in which the state of a job's phase may wait on its nodes.

    Attributes:
        levels: The measured ways. The last one takes the least memory.
        peak_gb: Memory of each GPU while the phase runs, GB, 0 without GPUs or if it is unknown.
        gpu_gb: Memory of a GPU, GB, 0 without GPUs or if it is unknown.
    """

    levels: tuple[OffloadLevel, ...]
    peak_gb: float = 0.0
    gpu_gb: float = 0.0

    @property
    def least(self) -> OffloadLevel:
        """Way that releases everything that can be released."""
        return self.levels[-1]

    @property
    def can_stay(self) -> bool:
        """Whether staying on the device was measured."""
        return self.levels[0].name == STAY


class PhaseOnNodes(NamedTuple):
    """A phase with its nodes.

    Attributes:
        offload: Measured ways in which its state may wait.
        nodes: Names of the nodes.
        has_gpus: Whether the nodes have GPUs.
    """

    offload: OffloadLevels
    nodes: tuple[str, ...]
    has_gpus: bool


def cheapest(levels: Sequence[OffloadLevel], device_gb: float, needed_gb: float) -> OffloadLevel | None:
    """Return the fastest way that fits, or None. Among equally fast ones it is the one that keeps the least memory.

    Args:
        levels: Ways measured on this device.
        device_gb: Memory of the device, GB.
        needed_gb: Memory that all other jobs on it need while one of them runs, GB.
    """
    fitting = [level for level in levels if level.device_gb + needed_gb <= device_gb]
    return min(fitting, key=lambda level: (level.seconds, level.device_gb), default=None)


class NodeMemory(NamedTuple):
    """Memory of a node for jobs.

    Attributes:
        host_gb: Host memory for jobs, GB, or None if it is unknown.
        strangers_gb: Memory of each GPU that processes outside of the run use, GB.
    """

    host_gb: float | None
    strangers_gb: float = 0.0


def fits(places: Sequence[PhaseOnNodes], levels: Sequence[OffloadLevel], rooms: Mapping[str, NodeMemory]) -> bool:
    """Return whether all nodes have enough memory for all waiting phases and, on GPUs, for each one to run while the others wait.

    Args:
        places: Phases of jobs with their nodes.
        levels: Way in which each of them waits.
        rooms: Memory of the nodes by name.
    """
    together = [*zip(places, levels, strict=True)]
    nodes = {node for place in places for node in place.nodes}
    return all(_fit([one for one in together if node in one[0].nodes], rooms[node]) for node in nodes)


def _fit(here: Sequence[tuple[PhaseOnNodes, OffloadLevel]], room: NodeMemory) -> bool:
    """Return whether a node has enough memory for the phases on it."""
    if room.host_gb is not None and sum(level.host_gb for _, level in here) > room.host_gb:
        return False
    kept_gb, gpu_gb = sum(level.device_gb for _, level in here), min(place.offload.gpu_gb or inf for place, _ in here)
    peaks_gb = [(place.offload.peak_gb or inf, level.device_gb) for place, level in here]  # inf if the peak is unknown
    most_gb = max(kept_gb - own_gb + max(peak_gb, own_gb) for peak_gb, own_gb in peaks_gb)
    is_known = most_gb < inf or len(here) == 1  # a job's class may report neither its peak nor the GPU's memory
    fits_gpu = is_known and most_gb <= gpu_gb * (1 - _SPARE) - room.strangers_gb
    return fits_gpu or not any(place.has_gpus for place, _ in here)


def choose(places: Sequence[PhaseOnNodes], rooms: Mapping[str, NodeMemory]) -> list[OffloadLevel]:
    """Choose how each of several phases that share nodes waits. Those that save the most seconds by staying come first.

    Args:
        places: All phases, in an order that breaks ties.
        rooms: Memory of the nodes by name.
    """
    levels = [place.offload.least for place in places]
    able = [k for k, place in enumerate(places) if place.offload.can_stay]
    for k in sorted(able, key=lambda k: levels[k].seconds - places[k].offload.levels[0].seconds, reverse=True):
        stay = places[k].offload.levels[0]
        if stay.seconds < levels[k].seconds and fits(places, [*levels[:k], stay, *levels[k + 1 :]], rooms):
            levels[k] = stay
    return levels
