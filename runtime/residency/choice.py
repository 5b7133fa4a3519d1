"""How state waits between phases: the cheapest way that leaves room for whoever runs meanwhile, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

STAY = "stay"
_SPARE = 0.01  # of a GPU: what the rounding of allocators may take


@dataclass(frozen=True)
class Level:
    """A way of waiting, as measured.

    Attributes:
        name: `stay` (nothing is given back), `keep` (weights wait in host memory, vLLM's level 1) or `drop` (staged weights will
            come in their place, level 2).
        seconds: of leaving the device and coming back together.
        device_gb: that stay on each GPU meanwhile; 0 where there is none.
        host_gb: of a node's host memory meanwhile, with all else that the job's processes have there.
    """

    name: str
    seconds: float
    device_gb: float
    host_gb: float = 0.0


@dataclass(frozen=True)
class Waits:
    """How the state of a job's phase may wait on its nodes.

    Attributes:
        levels: those that were measured; the last one takes least.
        peak_gb: of each GPU while the phase runs. gpu_gb: that a GPU has. Both 0 where there is none, or nobody says.
    """

    levels: tuple[Level, ...]
    peak_gb: float = 0.0
    gpu_gb: float = 0.0

    @property
    def least(self) -> Level:
        """Where all is given back that can be."""
        return self.levels[-1]

    @property
    def can_stay(self) -> bool:
        """Whether staying was measured."""
        return self.levels[0].name == STAY


class Place(NamedTuple):
    """What waits, and where.

    Attributes:
        nodes: names of them. has_gpus: they have GPUs.
    """

    waits: Waits
    nodes: tuple[str, ...]
    has_gpus: bool


def cheapest(levels: Sequence[Level], device_gb: float, needed_gb: float) -> Level | None:
    """The quickest of some ways that fits; of equally quick ones the one that keeps least. None: none does.

    Args:
        levels: measured on this device. device_gb: of the device. needed_gb: of all others on it, when one of them runs.
    """
    fitting = [level for level in levels if level.device_gb + needed_gb <= device_gb]
    return min(fitting, key=lambda level: (level.seconds, level.device_gb), default=None)


class Room(NamedTuple):
    """Memory of a node.

    Attributes:
        host_gb: Host memory for jobs, GB; None if it is not known.
        strangers_gb: Memory of each GPU that processes which are none of the run's have, GB.
    """

    host_gb: float | None
    strangers_gb: float = 0.0


def fits(places: Sequence[Place], levels: Sequence[Level], rooms: Mapping[str, Room]) -> bool:
    """Whether there is room on all nodes: for all who wait, and on GPUs for each of them to run while the others do.

    Args:
        places: Phases of jobs, and their nodes.
        levels: How each of them waits.
        rooms: Memory of the nodes by name.
    """
    together = [*zip(places, levels, strict=True)]
    nodes = {node for place in places for node in place.nodes}
    return all(_fit([one for one in together if node in one[0].nodes], rooms[node]) for node in nodes)


def _fit(here: Sequence[tuple[Place, Level]], room: Room) -> bool:
    """Whether a node has room for those that are on it."""
    if room.host_gb is not None and sum(level.host_gb for _, level in here) > room.host_gb:
        return False
    kept_gb, gpu_gb = sum(level.device_gb for _, level in here), min(place.waits.gpu_gb or inf for place, _ in here)
    peaks_gb = [(place.waits.peak_gb or inf, level.device_gb) for place, level in here]  # inf: nobody knows
    most_gb = max(kept_gb - own_gb + max(peak_gb, own_gb) for peak_gb, own_gb in peaks_gb)
    return most_gb <= gpu_gb * (1 - _SPARE) - room.strangers_gb or not any(place.has_gpus for place, _ in here)


def choose(places: Sequence[Place], rooms: Mapping[str, Room]) -> list[Level]:
    """Choose how each of some phases that share nodes waits: those that save most seconds stay first, while there is room.

    Args:
        places: All of them, in an order that breaks ties.
        rooms: Memory of the nodes by name.
    """
    levels = [place.waits.least for place in places]
    able = [k for k, place in enumerate(places) if place.waits.can_stay]
    for k in sorted(able, key=lambda k: levels[k].seconds - places[k].waits.levels[0].seconds, reverse=True):
        stay = places[k].waits.levels[0]
        if stay.seconds < levels[k].seconds and fits(places, [*levels[:k], stay, *levels[k + 1 :]], rooms):
            levels[k] = stay
    return levels
