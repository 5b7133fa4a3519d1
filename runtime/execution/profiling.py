"""The part of the coordinator that lets jobs arrive and measures those that nobody knows.

A profile is an iteration like others: its phases wait for permits of a dispatcher, that of a group whose guest the job then is, or
one of free nodes that are lent for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rollmux_env.scheduler.dispatcher import Dispatcher
from runtime.execution.lives import Lives
from runtime.execution.lockstep import Lockstep, Timings
from runtime.execution.members import PROFILE, Gang, Runner
from runtime.execution.profiles import Profile, load_profile, profile_key, save_profile
from runtime.facts import LEASE, Node, Pool, Profiled
from runtime.jobs.spec import JobSpec

_ALONE, _PAIRED = 2, 4  # worst-case iterations that a bound is measured with; of the paired ones the first rollout is alone


class Profiling(Lives):
    """Arrivals, profiles, and what taking turns could gain."""

    _timings: Timings | None = None

    async def _bring_all(self, coming: Sequence[Runner]) -> None:
        """Let jobs arrive, those of one time together."""
        self._check_over()
        for at_s in sorted({runner.spec.arrival_s for runner in coming}):
            await asyncio.sleep(max(0.0, at_s - self._now()))
            await self._bring([runner for runner in coming if runner.spec.arrival_s == at_s])

    async def _bring(self, runners: Sequence[Runner]) -> None:
        """Start jobs' controllers, profile those that nobody knows, and hand them to the policy in order."""
        ids = [runner.spec.id for runner in runners]
        keys: dict[str, str] = {}
        for runner in runners:
            self._attempt(runner, "profile", self._look_up, runner, keys)
        for runner in runners:
            if not runner.gone and (runner.job is None or not self._plan.only_profile):
                self._start(runner)
        while unknown := [self._runners[job_id] for job_id in ids if self._unknown(job_id)]:
            for runner in unknown:
                if problem := self._beyond(runner.spec):
                    self._refuse(runner, problem)
            if able := [runner for runner in unknown if not runner.gone]:
                await self._profile(able, keys)
        for runner in [self._runners[job_id] for job_id in ids]:  # one that has died meanwhile is another one now
            self._coming -= 1
            if self._plan.only_profile:
                self._tell(runner, None)
            elif runner.job is not None and not runner.gone and not self._stopping:
                self._enlist(runner)
        self._check_over()

    def _look_up(self, runner: Runner, keys: dict[str, str]) -> None:
        """Take a job's profile from the cache, if it needs one and there is one; its key goes to `keys`."""
        if runner.job is not None:
            return
        key = keys[runner.spec.id] = profile_key(runner.spec, self._node_types())
        profile = load_profile(key) if self._plan.cached else None
        if profile is not None:
            self._learn(runner, profile, True)

    def _measured(self, runner: Runner, key: str) -> None:
        """Learn and keep what a job's own pass has measured."""
        parts = runner.measured
        profile = Profile(rollout=parts["rollout"], training=parts["training"], sync_s=runner.sync_s, movable=runner.movable)
        self._learn(runner, profile, False)
        save_profile(key, profile)

    def _unknown(self, job_id: str) -> bool:
        """Whether a job still has to be profiled."""
        runner = self._runners[job_id]
        return runner.job is None and not runner.gone and not self._stopping

    def _learn(self, runner: Runner, profile: Profile, cached: bool) -> None:
        job = runner.job = profile.job(runner.spec, self._now())
        self._write(Profiled(self._now(), job, cached))
        how = "profile from the cache" if cached else "profiled"
        self._say(
            f"{job.id}: {how}: rollout {job.rollout.worst_case_s:.2f} s, training {job.training.worst_case_s:.2f} s, "
            f"sync {job.sync_s:.3f} s, {job.rollout.host_memory_gb:.2f} and {job.training.host_memory_gb:.2f} GB"
        )

    async def _profile(self, runners: Sequence[Runner], keys: dict[str, str]) -> None:
        """Let jobs run a worst-case iteration each: on free nodes, where there are enough, else as guests of a group."""
        need = {pool: max(getattr(runner.spec, pool).nodes for runner in runners) for pool in ("rollout", "training")}
        while (gang := self._slot(need)) is None and not self._stopping:
            self._freed.clear()
            await self._freed.wait()
        if gang is None:
            return
        await self._pass_all(runners, gang, 1)
        for runner in runners:
            if not runner.gone and runner.measured.keys() == {"rollout", "training"}:
                self._attempt(runner, "profile", self._measured, runner, keys[runner.spec.id])
        pair = [runner for runner in runners if runner.job is not None and not runner.gone][:2]
        if self._plan.bounds and gang is self._lease and len(pair) == 2 and not self._timings:
            await self._measure_bounds(pair, gang)
        if gang is self._lease:
            self._lease = None
            self._settle()
            self._catch_up()

    async def _pass_all(self, runners: Sequence[Runner], gang: Gang, passes: int) -> None:
        """Let jobs run worst-case iterations under a dispatcher, and wait until all have."""
        present = [runner for runner in runners if not runner.gone]
        for runner in present:
            runner.passed = asyncio.get_running_loop().create_future()
            runner.iteration, runner.passes = PROFILE, passes
            self._enter(runner, gang, self._numbers(gang, runner.spec), 1.0, 1.0, 0.0)
            self._tell(runner, self._order(runner))
        for runner in present:
            assert runner.passed is not None
            await runner.passed

    async def _measure_bounds(self, pair: Sequence[Runner], gang: Gang) -> None:
        """Run the phases of two jobs one at a time, then in pairs."""
        lockstep = self._lockstep = Lockstep()
        self._timings = Timings()
        gang.dispatcher = Dispatcher(lockstep)
        for lockstep.mode, passes in (("alone", _ALONE), ("paired", _PAIRED)):
            await self._pass_all(pair, gang, passes)
        bounds = self._timings.bounds([runner.spec.id for runner in pair])
        self._write(*bounds)
        for bound in bounds:
            self._say(f"{bound.phases[0]} beside {bound.phases[1]}: {bound.gain:.2f} times as fast as one after the other")

    def _slot(self, need: dict[str, int]) -> Gang | None:
        """Whose dispatcher grants a profile its permits: one of free nodes, or that of the oldest group with nodes enough."""
        pools: tuple[Pool, Pool] = ("rollout", "training")
        if all(len(self._ground.free(pool)) >= need[pool] for pool in pools):
            self._lease = Gang(LEASE, Dispatcher(self._dispatch))
            self._lease_need = need
            self._settle()
            return self._lease
        for group in self._state.group_list():
            if len(group.rollout_nodes) >= need["rollout"] and group.training_nodes >= need["training"]:
                return self._gangs[group.id]
        return None

    def _numbers(self, gang: Gang, spec: JobSpec) -> dict[str, tuple[int, ...]]:
        """The first nodes of a slot, as many as a job asks for."""
        rollout = tuple(range(spec.rollout.nodes))
        if gang.number != LEASE:
            group = next(group for group in self._state.group_list() if group.id == gang.number)
            rollout = group.rollout_nodes[: spec.rollout.nodes]
        return {"rollout": rollout, "training": tuple(range(spec.training.nodes))}

    def _node_types(self) -> list[Node]:
        return [next(node for node in self._plan.nodes if node.pool == pool) for pool in ("rollout", "training")]
