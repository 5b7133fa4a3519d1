"""Whose state stays on its nodes between phases, and that it is gone before somebody needs the room.

A job asks at the end of each phase whether it may stay (`may_stay`). That depends on all who share its nodes then; when others have
come, a permit that finds too little room is held back until those who may stay no longer have left (`admit`, `went`). A job can be
asked to leave wherever it waits for a permit, and whenever it says that something is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rollmux_env.keys.cluster import Cluster
from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.job_handle import JobHandle
from runtime.machine import Pool
from runtime.machines.nodes import POOLS
from runtime.residency.choice import STAY, Level, Place, Waits, choose, fits

_Key = tuple[JobHandle, Pool]


class Residents:
    """The residents of a run.

    Args:
        handles: its jobs by id. cluster: their nodes.
        leave: Whether every job leaves its devices after each phase, also if there is room to stay.
    """

    def __init__(self, handles: Mapping[str, JobHandle], cluster: Cluster, leave: bool = False) -> None:
        self._handles, self._cluster, self._leave = handles, cluster, leave
        self._staying: dict[_Key, tuple[str, ...]] = {}  # names of the nodes
        self._held_back: dict[tuple[JobHandle, HoldName], None] = {}

    def may_stay(self, handle: JobHandle, pool: Pool) -> bool:
        """Whether the state of a phase that is over may stay where it is."""
        waits = handle.waits_here.get(pool)
        if (
            self._leave
            or waits is None
            or not waits.can_stay
            or handle.is_guest
            or handle.place.moving
            or handle.ending.why is not None
        ):
            return False
        places = self._sharing(handle)
        if any(other.is_guest for other, _ in places):  # nobody knows what it needs
            return False
        return self._chosen(places)[handle, pool].name == STAY

    def stays(self, handle: JobHandle, pool: Pool, host_gb: float, device_gb: float) -> None:
        """It has stayed, and takes so much; where that is more than was known, that is known from now on."""
        self._staying[handle, pool] = tuple(node.name for node in handle.place.nodes[pool])
        handle.residency.to_leave.discard(pool)  # it was asked before it was decided anew
        waits = handle.residency.waits[pool]
        stay = waits.levels[0]
        more = replace(stay, host_gb=max(stay.host_gb, host_gb), device_gb=max(stay.device_gb, device_gb))
        handle.residency.waits[pool] = replace(waits, levels=(more, *waits.levels[1:]))

    def went(self, handle: JobHandle, pools: tuple[Pool, ...] = POOLS) -> None:
        """It is there no longer."""
        for pool in pools:
            self._staying.pop((handle, pool), None)
            handle.residency.to_leave.discard(pool)

    def leaving(self, handle: JobHandle) -> tuple[Pool, ...]:
        """Where a job has to leave now; all that it has, if it moves. What runs leaves when it is over."""
        staying = [pool for pool in POOLS if (handle, pool) in self._staying and pool not in handle.permits.holds]
        return tuple(pool for pool in staying if handle.place.moving or pool in handle.residency.to_leave)

    def admit(self, handle: JobHandle, phase: HoldName) -> bool:
        """Give a job the permit that it has been granted, or hold it back until there is room; whether it has it."""
        self._held_back.pop((handle, phase), None)
        waits = handle.permits.waits.get(phase)
        if phase not in handle.permits.holds or waits is None or waits.done():
            return False
        in_the_way = self._in_the_way(handle, phase)
        if not in_the_way:
            waits.set_result(())
            return True
        self._held_back[handle, phase] = None
        for other, pool in in_the_way:
            other.residency.to_leave.add(pool)
            other.ask_to_leave(self.leaving(other))
        return False

    def held_back(self) -> list[tuple[JobHandle, HoldName]]:
        """Jobs and phases whose permits are."""
        return [*self._held_back]

    def _sharing(self, handle: JobHandle) -> dict[_Key, Place]:
        """All phases, of a job's group and of guests, that use nodes which the job uses too; its own among them."""
        mine = {node.name for nodes in handle.place.nodes.values() for node in nodes}
        places: dict[_Key, Place] = {}
        for other in self._handles.values():
            present = not other.gone and other.place.group is not None
            for pool, nodes in other.place.nodes.items():
                names = tuple(node.name for node in nodes)
                if mine & {*names} and (present or (other, pool) in self._staying):
                    gpus = any(node.gpus for node in nodes)
                    places[other, pool] = Place(other.waits_here.get(pool) or _unknown(other, pool), names, gpus)
        return places

    def _in_the_way(self, handle: JobHandle, pool: HoldName) -> list[_Key]:
        """Who has to leave before a job's phase begins."""
        names = {node.name for node in handle.nodes_of(pool)}
        here = [key for key, nodes in self._staying.items() if names & {*nodes} and key != (handle, pool)]
        if not here:
            return []
        guest = handle.is_guest or pool == "init"  # nobody knows what it needs
        places = self._sharing(handle)
        chosen = {} if guest else self._chosen(places)
        now = [place.waits.levels[0] if key in self._staying else place.waits.least for key, place in places.items()]
        if not guest and fits([*places.values()], now, self._host_gb(places)):
            return []
        return [key for key in here if key not in chosen or chosen[key].name != STAY]

    def _chosen(self, places: Mapping[_Key, Place]) -> dict[_Key, Level]:
        return dict(zip(places, choose([*places.values()], self._host_gb(places)), strict=True))

    def _host_gb(self, places: Mapping[_Key, Place]) -> dict[str, float | None]:
        """What the nodes have for jobs."""
        pools = self._cluster.pools
        return {node.name: pools[node.pool].node_memory_gb for handle, pool in places for node in handle.place.nodes[pool]}


def _unknown(handle: JobHandle, pool: Pool) -> Waits:
    """Of a job about which nothing but what the policy knows is known: it does not stay."""
    host_gb = getattr(handle.job.phases(handle.place.shape), pool).host_memory_gb if handle.job is not None else 0.0
    return Waits((Level("keep", 0.0, 0.0, host_gb),))
