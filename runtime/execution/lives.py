"""The part of the coordinator that starts the processes of jobs, watches over them, and starts them again after a death."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rollmux_env.cluster.events import Departed, Resized
from rollmux_env.errors import InputError
from runtime.checkpoints import Found, newest
from runtime.execution.controller import Controller
from runtime.execution.ends import Ends
from runtime.execution.members import PROFILE, Runner, RunPlan
from runtime.execution.messages import End
from runtime.execution.nodes import POOLS, dead_machines
from runtime.facts import Failed, Pool, Restarted
from runtime.output import LOGS

DEATHS = 3  # of a job in a row, without an iteration done, are enough
_PATROL_S = 0.5
_LOOK_S = 5.0  # between looks at the machines


class Lives(Ends):
    """Beginnings, deaths and new beginnings of jobs."""

    _me: Any = None  # this actor, for the controllers

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        self._mending = asyncio.Lock()  # one end of a job is dealt with at a time

    def _start(self, runner: Runner) -> None:
        here = NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )  # no other machine takes it along
        actor = ray.remote(Controller).options(num_cpus=0, max_concurrency=2, scheduling_strategy=here)
        logs = str(Path(self._plan.folder) / LOGS / runner.spec.id)
        runner.controller = actor.remote(runner.spec, self._me, logs, runner.restarted)
        self._spawn(self._watch(runner))

    async def _watch(self, runner: Runner) -> None:
        """Wait for a controller's end, whatever it is."""
        try:
            end: End = await runner.controller.run.remote()
        except Exception:  # of Ray, which cannot reach it
            end = End("died", "step", "its controller has died")
        try:
            if end.outcome == "failed":
                async with self._mending:
                    if not runner.gone:
                        await self._fail(runner, end)
            elif end.outcome == "died":
                await self._die(runner, end)
            elif end.outcome == "full":
                problem = f"job {runner.spec.id}: its checkpoint cannot be written: {end.problem}"
                raise InputError(f"{problem}: free some room, then go on with `rollmux run --resume {self._plan.folder}`")
            elif not runner.gone:  # the run stops; the job keeps its place for the day on which it goes on
                self._quit(runner)
                runner.gone = True
                self._pass(runner)
            ray.kill(runner.controller)
            self._check_over()
        except Exception as error:
            self._break(error)

    async def _die(self, runner: Runner, end: End) -> None:
        """A job has lost a process, or hangs: what is left of it ends, and it arrives anew."""
        async with self._mending:
            if runner.gone or self._over.done():
                return
            dead = await asyncio.to_thread(dead_machines, self._ground.machines())
            await self._restart({runner: end}, dead)

    async def _restart(self, dying: Mapping[Runner, End], dead: Collection[str]) -> None:
        """Let jobs arrive anew, from their checkpoints: those given, and those that have nodes on machines that have gone.

        Args:
            dying: why, by job. dead: ids of the machines.
        """
        nodes = {node.name for pool in POOLS for node in self._ground.nodes(pool) if node.machine in dead}
        ends = dict(dying)
        for other in self._runners.values():
            gone = sorted({node.name for held in other.nodes.values() for node in held} & nodes)
            if gone and other.gang is not None and not other.gone:
                ends.setdefault(other, End("died", "step", f"its node {gone[0]} has gone"))
        found = {}
        for runner in ends:
            await self._end_processes(runner)
            found[runner] = await asyncio.to_thread(newest, self._checkpoints(runner.spec.id), runner.iteration)
        last = None
        fresh: list[Runner] = []
        for runner, end in ends.items():
            if runner.gone:  # it has come to its end meanwhile
                continue
            if self._stopping:
                self._cut(runner)
                self._quit(runner)
                runner.gone = True
            else:
                last = self._leave(runner, end, found[runner], fresh) or last
            self._pass(runner)
        if nodes:
            now_s = self._now()
            facts = self._ground.lose(dead, now_s)
            for name in sorted(nodes):
                self._say(f"{name} has gone")
            left = {pool: len(self._ground.nodes(pool)) for pool in POOLS}
            most = {pool: min(left[pool], getattr(self._state.cluster, pool).max_nodes or left[pool]) for pool in POOLS}
            self._write(*facts)
            self._note(Resized(self._now(), most["rollout"], most["training"]))
            if self._lease is not None and any(left[pool] - self._grouped(pool) < self._lease_need[pool] for pool in POOLS):
                self._lease = None
        self._settle()
        self._freed.set()
        self._catch_up()
        if last is not None and not self._stopping:
            self._answer(last)
        for runner in fresh:
            self._enlist(runner)
        self._check_over()

    def _leave(self, runner: Runner, end: End, found: Found, fresh: list[Runner]) -> Departed | None:
        """Take a job that has died out of its place, if it had one, and make it anew; or let it fail, if that was too often.

        Args:
            fresh: gets the job that is made, where it has to arrive again.
        """
        job_id, why = runner.spec.id, end.problem
        self._cut(runner)
        self._quit(runner)
        now_s = self._now()
        begins = min(found.iterations, max(0, runner.iteration))
        again = Restarted(now_s, job_id, begins, found.problems[0] if found.problems else why)
        placed = self._state.is_running(job_id)
        deaths = runner.deaths + 1
        self._say(f"{job_id}: {why}; {f'goes on at iteration {begins + 1}' if deaths < DEATHS else 'is given up'}")
        if deaths >= DEATHS:
            problem = f"{why} ({DEATHS} times in a row without an iteration done)"
            failed = Failed(now_s, job_id, end.where, problem)
            self._say(f"{job_id}: FAILED in {end.where}: {problem}")
            if placed:
                return self._vacate(runner, failed)
            self._write(failed)
            runner.gone = True
            if job_id in self._state.waiting:
                self._withdraw(runner)
            return None
        begun = Runner(runner.spec, iteration=begins, begins=begins, job=runner.job, done=runner.done, deaths=deaths)
        begun.checkpoint = str(found.folder) if found.folder is not None else None
        begun.restarted = again.why
        event = None
        if placed:
            event = self._vacate(runner, again)
            fresh.append(begun)
        else:
            self._write(again)
        runner.gone = True
        self._runners[job_id] = begun
        self._changed.pop(job_id, None)
        self._start(begun)
        return event

    def _grouped(self, pool: Pool) -> int:
        """Nodes of a pool that groups have."""
        groups = self._state.group_list()
        return sum(len(group.rollout_nodes) if pool == "rollout" else group.training_nodes for group in groups)

    async def _patrol(self) -> None:
        """Look for jobs that hang, and for machines that have gone."""
        looked_s = self._now()
        while True:
            await asyncio.sleep(_PATROL_S)
            now_s = self._now()
            for runner in [*self._runners.values()]:
                if runner.since_s is None or runner.gone:
                    continue
                limit_s = self._deadline_s(runner)
                if now_s - runner.since_s > limit_s:
                    where = runner.hold.pool if runner.hold else "step"
                    what = f"its {where}" if runner.hold else "what it does between its phases"
                    await self._die(runner, End("died", where, f"{what} hangs: it has not ended after {limit_s:.0f} s"))
            if now_s - looked_s > _LOOK_S:
                looked_s = now_s
                if dead := await asyncio.to_thread(dead_machines, self._ground.machines()):
                    async with self._mending:
                        await self._restart({}, dead)

    def _deadline_s(self, runner: Runner) -> float:
        """How long a job may take for what it does now."""
        patience, job = self._plan.patience, runner.job
        if job is None or runner.iteration == PROFILE:
            return patience.profile_s
        phases = {pool: getattr(job, pool) for pool in POOLS}
        worst_s = {pool: phase.worst_case_s + phase.switch.warm_s + phase.switch.cold_s for pool, phase in phases.items()}
        own_s: float = worst_s[runner.hold.pool] if runner.hold else sum(worst_s.values()) + job.sync_s + runner.keeping_s
        return max(patience.least_s, patience.times * own_s)
