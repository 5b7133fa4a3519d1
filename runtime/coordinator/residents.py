"""Residents: jobs whose state stays on their nodes between phases, and leaves before another job needs the memory.

A job asks at the end of each phase whether its state may stay (`may_stay`). The answer depends on all jobs that share its nodes
then. When other jobs have come, a permit without enough memory is held back until states that may no longer stay have left
(`admit`, `remove_state`). A job can be asked to leave wherever it waits for a permit, and whenever it reports that something is
over.

GPUs may have other users. Their memory is known after each phase: everything that is neither free nor used by jobs of the run. If
memory still runs out, the peak of that job counts as unknown, so that no other state stays beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

from rollmux_env.keys.cluster import Cluster
from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.job_handle import JobHandle
from runtime.machine import Pool
from runtime.machines.nodes import POOLS
from runtime.residency.choice import STAY, NodeMemory, OffloadLevel, OffloadLevels, PhaseOnNodes, choose, fits

_Key = tuple[JobHandle, Pool]


class Residents:
    """The residents of a run.

    Args:
        handles: Jobs of the run, by id.
        cluster: Cluster of the run.
        leave: Whether every job leaves its devices after each phase, even if there is room to stay.
    """

    def __init__(self, handles: Mapping[str, JobHandle], cluster: Cluster, leave: bool = False) -> None:
        self._handles, self._cluster, self._leave = handles, cluster, leave
        self._staying: dict[_Key, tuple[str, ...]] = {}  # names of the nodes on which state stays
        self._held_back: dict[tuple[JobHandle, HoldName], None] = {}
        self._kept_gb: dict[_Key, tuple[tuple[str, ...], float]] = {}  # names of the nodes, GB of each of their GPUs
        self._strangers_gb: dict[str, float] = {}  # GB of each GPU that programs outside of the run use, by node

    def may_stay(self, handle: JobHandle, pool: Pool) -> bool:
        """Return whether the state of a completed phase may stay on its nodes."""
        waits = _waits_here(handle).get(pool)
        if (
            self._leave
            or waits is None
            or not waits.can_stay
            or handle.is_guest
            or handle.life.is_moving
            or handle.ending.why is not None
        ):
            return False
        places = self._sharing(handle)
        if any(other.is_guest for other, _ in places):  # the memory that a guest needs is unknown
            return False
        return self._chosen(places)[handle, pool].name == STAY

    def record_gpu_memory(self, handle: JobHandle, pool: Pool, device_gb: float, taken_gb: float) -> None:
        """Record the memory on the GPUs of a job's nodes when a phase is over, or its state has left.

        Args:
            handle: The job.
            pool: Pool of the phase.
            device_gb: Memory of each GPU that the job uses for the phase, in GB.
            taken_gb: Memory of each GPU that is not free, in GB; 0 if there is no GPU, or it is unknown.
        """
        if not taken_gb:
            return
        names = tuple(node.name for node in handle.place.nodes[pool])
        self._kept_gb[handle, pool] = names, device_gb
        for name in names:
            known_gb = sum(gb for there, gb in self._kept_gb.values() if name in there)
            self._strangers_gb[name] = max(0.0, taken_gb - known_gb)

    def record_out_of_memory(self, handle: JobHandle, pool: Pool) -> tuple[str, ...]:
        """Record that a phase ran out of a GPU's memory: its peak is unknown from now on.

        Returns:
            Ids of the jobs whose state stayed on its nodes; they leave before the phase begins again.
        """
        beside = self._states_on_nodes(handle, pool)
        handle.resident_state.forget_peak(pool)
        return tuple(dict.fromkeys(other.id for other, _ in beside))

    def add_state(self, handle: JobHandle, pool: Pool, host_gb: float, device_gb: float) -> None:
        """Record that a phase's state has stayed, with its memory; if that is more than known, it replaces the known amount."""
        self._staying[handle, pool] = tuple(node.name for node in handle.place.nodes[pool])
        handle.resident_state.record_kept(pool, host_gb, device_gb)

    def remove_state(self, handle: JobHandle, pools: tuple[Pool, ...] = POOLS) -> None:
        """Record that a job's state has left the nodes of some pools."""
        for pool in pools:
            self._staying.pop((handle, pool), None)
            handle.resident_state.record_left(pool)

    def forget(self, handle: JobHandle) -> None:
        """Forget a job whose processes have ended or have other nodes now."""
        self.remove_state(handle)
        for pool in POOLS:
            self._kept_gb.pop((handle, pool), None)

    def leaving(self, handle: JobHandle) -> tuple[Pool, ...]:
        """Return the pools whose nodes a job's state must leave now; all of them if it moves. A running phase leaves at its end."""
        staying = [pool for pool in POOLS if (handle, pool) in self._staying and pool not in handle.permits.holds]
        return tuple(pool for pool in staying if handle.life.is_moving or pool in handle.resident_state.to_leave)

    def admit(self, handle: JobHandle, phase: HoldName) -> bool:
        """Pass a granted permit on to its job, or hold it back until there is memory; return whether the job has it."""
        self._held_back.pop((handle, phase), None)
        waits = handle.permits.futures.get(phase)
        if phase not in handle.permits.holds or waits is None or waits.done():
            return False
        in_the_way = self._in_the_way(handle, phase)
        if not in_the_way:
            waits.set_result(())
            return True
        self._held_back[handle, phase] = None
        for other, pool in in_the_way:
            other.resident_state.ask_to_leave(pool)
            other.permits.ask_to_leave(self.leaving(other))
        return False

    def held_back(self) -> list[tuple[JobHandle, HoldName]]:
        """Return the jobs and phases whose permits are held back."""
        return [*self._held_back]

    def _sharing(self, handle: JobHandle) -> dict[_Key, PhaseOnNodes]:
        """Return the places of all phases, of the group and of guests, that share nodes with a job, its own included."""
        places: dict[_Key, PhaseOnNodes] = {}
        for other in self._handles.values():
            present = not other.life.is_gone and other.place.group is not None
            for pool, nodes in other.place.nodes.items():
                names = tuple(node.name for node in nodes)
                if not handle.place.names.isdisjoint(names) and (present or (other, pool) in self._staying):
                    gpus = any(node.gpus for node in nodes)
                    places[other, pool] = PhaseOnNodes(_waits_here(other).get(pool) or _unknown(other, pool), names, gpus)
        return places

    def _in_the_way(self, handle: JobHandle, pool: HoldName) -> list[_Key]:
        """Return the states that must leave before a job's phase begins."""
        here = self._states_on_nodes(handle, pool)
        if not here:
            return []
        guest = handle.is_guest or pool == "init"  # the memory that it needs is unknown
        places = self._sharing(handle)
        chosen = {} if guest else self._chosen(places)
        now = [place.offload.levels[0] if key in self._staying else place.offload.least for key, place in places.items()]
        if not guest and fits([*places.values()], now, self._rooms(places)):
            return []
        return [key for key in here if key not in chosen or chosen[key].name != STAY]

    def _states_on_nodes(self, handle: JobHandle, pool: HoldName) -> list[_Key]:
        """Return the states of other phases that stay on the nodes of a phase."""
        names = {node.name for node in handle.place.nodes_of(pool)}
        return [key for key, nodes in self._staying.items() if names & {*nodes} and key != (handle, pool)]

    def _chosen(self, places: Mapping[_Key, PhaseOnNodes]) -> dict[_Key, OffloadLevel]:
        return dict(zip(places, choose([*places.values()], self._rooms(places)), strict=True))

    def _rooms(self, places: Mapping[_Key, PhaseOnNodes]) -> dict[str, NodeMemory]:
        nodes = {node.name: self._cluster.pools[node.pool] for handle, pool in places for node in handle.place.nodes[pool]}
        return {name: NodeMemory(pool.node_memory_gb, self._strangers_gb.get(name, 0.0)) for name, pool in nodes.items()}


def _waits_here(handle: JobHandle) -> Mapping[Pool, OffloadLevels]:
    """Return the ways in which a job's state may wait, by pool.

    They are unknown for a phase with fewer nodes than in the profile.
    """
    if not handle.place.shape:
        return handle.resident_state.levels
    own, here = handle.spec.nodes_in(0), handle.spec.nodes_in(handle.place.shape)
    return {pool: waits for pool, waits in handle.resident_state.levels.items() if here[pool] >= own[pool]}


def _unknown(handle: JobHandle, pool: Pool) -> OffloadLevels:
    """Return the only way to wait of a job that was not measured: offloaded."""
    host_gb = getattr(handle.job.phases(handle.place.shape), pool).host_memory_gb if handle.job is not None else 0.0
    return OffloadLevels((OffloadLevel("keep", 0.0, 0.0, host_gb),))
