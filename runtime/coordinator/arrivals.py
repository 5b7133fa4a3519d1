"""Arrivals of jobs. Jobs that are unknown are profiled first, and profiles are kept in a cache.

The number of jobs that are profiled together is limited by the number of nodes, or by `_TOGETHER` if that is larger. If nodes are
cores of a machine, jobs are profiled one after the other, including the start of their processes: otherwise each would be measured
while others import and load.

A profile is recorded as soon as it is measured. Jobs that came at one time still arrive together, when all of them are known, in
the order of their file, as in a replay. Until then none of them takes nodes or runs phases while others are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from rollmux_env.errors import InputError
from runtime.coordinator import profiles
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.ends import rest
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.profiles import Profile
from runtime.coordinator.profiling import Profiling, enlisted, learned, request_of, stated
from runtime.coordinator.run_loop import RunLoop
from runtime.coordinator.run_state import RunState
from runtime.journal.facts import PhaseSlice
from runtime.machine import Node

_TOGETHER = 8


class Arrivals:
    """Arrivals of jobs, after their profiles.

    Args:
        run: The run.
        profiling: Profiles of the run's jobs.
    """

    def __init__(self, run: RunLoop, profiling: Profiling) -> None:
        self._run, self._profiling = run, profiling
        self._turn = asyncio.Lock()  # only jobs with unknown profiles wait for it

    async def bring_all(self, coming: Sequence[JobHandle]) -> None:
        """Let jobs arrive at their times, and those of one time together."""
        self._run.check_end()
        for at_s in sorted({handle.spec.arrival_s for handle in coming}):
            await asyncio.sleep(max(0.0, at_s - self._run.log.now()))
            await self._bring([handle for handle in coming if handle.spec.arrival_s == at_s])

    async def _bring(self, handles: Sequence[JobHandle]) -> None:
        """Profile jobs that are unknown, and hand all to the policy, in order, when all are known."""
        run = self._run
        ids = [handle.id for handle in handles]
        for handle in handles:
            if self._is_unknown(handle):
                run.attempt(handle, "profile", self._look_up, handle, {})
        if any(self._is_unknown(handle) for handle in handles):
            async with self._turn:
                await self._profile_all(ids)
        await run.written()
        for handle in [run.handles[job_id] for job_id in ids]:  # a job that was restarted meanwhile has a new handle
            run.coming -= 1
            self._hand_over(handle)
        for job_id in ids:
            if job_id in run.scheduler.state.waiting:
                rest(run.handles[job_id], run.log.now())
        self._run.check_end()

    def _hand_over(self, handle: JobHandle) -> None:
        """Hand a job that is known to the policy; in a run that only profiles jobs, let it end."""
        run = self._run
        if run.plan.only_profile:
            if handle.processes.controller is None:
                handle.close()
            handle.send_order(None, run.log.now())
            return
        has_arrived = run.has_seat(handle) or handle.id in run.scheduler.state.waiting  # its owner came before its time
        if handle.job is not None and not handle.life.is_gone and not run.stopping and not has_arrived:
            run.apply(enlisted(run, handle, run.log.now()))

    async def _profile_all(self, ids: Sequence[str]) -> None:
        """Profile the unknown jobs among some, a limited number at a time."""
        run, most = self._run, max(_TOGETHER, len(self._run.plan.nodes))
        self._profiling.is_crowded = len(ids) > most
        while unknown := [run.handles[job_id] for job_id in ids if self._is_unknown(run.handles[job_id])]:
            keys: dict[str, str] = {}
            for handle in unknown[:most]:
                if problem := run.capacity.problem_of_placing(handle.spec):
                    run.refuse(handle, problem)
                else:
                    run.attempt(handle, "profile", self._look_up, handle, keys)  # an equal job may have been profiled meanwhile
            if batch := [handle for handle in unknown[:most] if self._is_unknown(handle)]:
                await self._profile(batch, keys)

    def _look_up(self, handle: JobHandle, keys: dict[str, str]) -> None:
        """Take a job's profile from the cache, if it needs one and there is one.

        Args:
            handle: The job.
            keys: Keys of profiles by job, to which the job's is added.
        """
        run = self._run
        if handle.job is not None:
            return
        if handle.spec.is_attached:
            if not handle.spec.measured_iterations:
                run.apply(stated(run, handle, {}, run.log.now()))
            return
        key = keys[handle.id] = profiles.profile_key(handle.spec, _node_types(run))
        profile = profiles.load_profile(key) if run.plan.cached else None
        if profile is not None:
            run.apply(learned(run, handle, profile, True, run.log.now()))

    def _is_unknown(self, handle: JobHandle) -> bool:
        """Return whether a job still has to be profiled."""
        if handle.spec.measured_iterations:  # the job is measured when its owner attaches
            return False
        return handle.job is None and not handle.life.is_gone and not self._run.stopping

    async def _profile(self, handles: Sequence[JobHandle], keys: dict[str, str]) -> None:
        """Let each job run a worst-case iteration, and more if bounds are requested."""
        profiling = self._profiling
        profiling.begin(handles)
        on_cores = any(not node.gpus for node in self._run.plan.nodes)
        for together in [[handle] for handle in handles] if on_cores else [[*handles]]:
            await self._profile_at_once([handle for handle in together if self._is_unknown(handle)], keys)
        while pending := [over for one in profiling.probe_jobs if (over := one.profile.over) is not None and not over.is_set()]:
            await asyncio.gather(*(over.wait() for over in pending))  # a round of the probe begins when the last one ends
        if profiling.probe_jobs:
            self._run.apply(profiling.bounds())

    async def _profile_at_once(self, handles: Sequence[JobHandle], keys: dict[str, str]) -> None:
        """Let jobs whose processes may start together run their worst-case iterations."""
        run = self._run
        for handle in handles:
            run.attempt(handle, "profile", self._look_for_caches, handle)
        passes = {handle: handle.profile.over for handle in handles if handle.profile.over is not None and not handle.life.is_gone}
        if not passes:
            return
        await run.written()
        run.apply(Consequences((request_of(run, [*passes]),)))
        await asyncio.gather(*(self._learn_when_over(handle, over, keys[handle.id]) for handle, over in passes.items()))

    async def _learn_when_over(self, handle: JobHandle, over: asyncio.Event, key: str) -> None:
        await over.wait()
        if not handle.life.is_gone and (profile := handle.profile.result()) is not None:
            self._run.attempt(handle, "profile", self._learn_measured, handle, profile, key)

    def _learn_measured(self, handle: JobHandle, profile: Profile, key: str) -> None:
        """Make a job known by its own pass, and add its profile to the cache."""
        run = self._run
        run.apply(learned(run, handle, profile, False, run.log.now()))
        profiles.note_loaded(profiles.engine_key(handle.spec, _node_types(run)))
        if handle.profile.without_core:
            return
        with contextlib.suppress(InputError, OSError):  # a cache that cannot be written
            profiles.save_profile(key, profile)

    def _look_for_caches(self, handle: JobHandle) -> None:
        handle.profile.set_loads_first(not profiles.has_loaded(profiles.engine_key(handle.spec, _node_types(self._run))))


def keep_cold_start(run: RunState, handle: JobHandle, part: PhaseSlice, cold_s: float) -> None:
    """Replace the cold start of a job's cached profile by an observed one, in seconds."""
    with contextlib.suppress(InputError, OSError):  # files of the job's that are gone, a cache that cannot be written
        key = profiles.profile_key(handle.spec, _node_types(run))
        profile = profiles.load_profile(key)
        if profile is not None and part.phase in profile.provisional:
            profiles.save_profile(key, profile.with_cold_start(part.phase, cold_s))


def _node_types(run: RunState) -> list[Node]:
    """Return one node of each pool."""
    return [next(node for node in run.plan.nodes if node.pool == pool) for pool in run.plan.cluster.sides]
