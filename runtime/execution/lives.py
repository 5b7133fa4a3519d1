"""The part of the coordinator that starts the processes of jobs and is there when they end, whatever the reason."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rollmux_env.cluster.events import Departed, Resized
from rollmux_env.errors import InputError, PlanError
from rollmux_env.replay.run import waits_for_ever
from rollmux_env.scenario import Job
from runtime.checkpoints import Found, newest
from runtime.execution.controller import Controller
from runtime.execution.members import PROFILE, Hold, Runner, RunPlan
from runtime.execution.messages import End, Report, Stopped
from runtime.execution.nodes import POOLS, dead_machines
from runtime.execution.placing import Placing
from runtime.facts import Failed, PhaseSlice, Pool, Restarted
from runtime.jobs.spec import JobSpec
from runtime.output import LOGS

DEATHS = 3  # of a job in a row, without an iteration done, are enough
_PATROL_S = 0.5
_LOOK_S = 5.0  # between looks at the machines
_ENDS_S = 30.0  # a process that has been killed ends within this time, or is in nobody's reach


class Lives(Placing):
    """Beginnings and ends of jobs, and of the run."""

    _me: Any = None  # this actor, for the controllers
    _coming = 0  # jobs that have not been placed or given up yet

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        self._mending = asyncio.Lock()  # one end of a job is dealt with at a time

    def _start(self, runner: Runner) -> None:
        here = NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )  # no other machine takes it along
        actor = ray.remote(Controller).options(num_cpus=0, max_concurrency=2, scheduling_strategy=here)
        runner.controller = actor.remote(runner.spec, self._me, str(Path(self._plan.folder) / LOGS / runner.spec.id))
        self._spawn(self._watch(runner))

    async def _watch(self, runner: Runner) -> None:
        """Wait for a controller's end, whatever it is."""
        try:
            end: End = await runner.controller.run.remote()
        except ray.exceptions.RayError:
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

    async def _fail(self, runner: Runner, end: End) -> None:
        """A job has failed: end its processes, then give its nodes to the others."""
        await self._end_processes(runner)
        job_id = runner.spec.id
        self._cut(runner)
        self._write(Failed(self._now(), job_id, end.where, end.problem, end.details))
        self._say(f"{job_id}: FAILED in {end.where}: {end.problem}")
        runner.gone = True
        self._quit(runner)
        self._pass(runner)
        if self._state.is_running(job_id):
            self._depart(runner)
        elif job_id in self._state.waiting:
            self._withdraw(runner)

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

    def _enlist(self, runner: Runner) -> None:
        """Hand a job to the policy, if there are nodes for it at all."""
        if runner.job is not None and (problem := self._beyond(runner.spec) or self._too_large(runner.job)):
            self._refuse(runner, problem)
        else:
            self._arrive(runner)

    def _beyond(self, spec: JobSpec) -> str | None:
        """Why there can be no place for a job, if there can be none."""
        for pool in POOLS:
            asked, there = getattr(spec, pool).nodes, len(self._ground.nodes(pool))
            if asked > there:
                return f"{pool}.nodes: asks for {asked} nodes; there are {there} of this pool left"
        return None

    def _too_large(self, job: Job) -> str | None:
        """Why no node can hold a job, if none can."""
        for pool in POOLS:
            need_gb, limit_gb = getattr(job, pool).host_memory_gb, getattr(self._plan.cluster, pool).node_memory_gb
            if limit_gb is not None and need_gb > limit_gb:
                return f"it keeps {need_gb:.2f} GB of host memory on a {pool} node, which has {limit_gb:.2f} GB for jobs"
        return None

    def _knows(self, job_id: str) -> bool:
        """Whether a job has a place, or waits for one."""
        return job_id in self._state.waiting or self._state.is_running(job_id)

    async def _end_processes(self, runner: Runner) -> None:
        """Kill all processes of a job, and wait until they have ended."""
        actors = [*runner.workers, runner.controller]
        for actor in actors:
            ray.kill(actor)
        for actor in actors:
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                while True:
                    await asyncio.wait_for(actor.identity.remote(), _ENDS_S)
                    await asyncio.sleep(0.01)

    def _cut(self, runner: Runner) -> None:
        """Note the phase that a job does not end."""
        if runner.hold is not None:
            now_s, start_s = self._now(), runner.hold.start_s
            part = self._slice(runner, runner.hold, Report(runner.hold.pool, False, start_s, start_s, now_s), now_s)
            self._write(replace(part, ok=False))

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

    def _refuse(self, runner: Runner, problem: str) -> None:
        """A job cannot be placed at all."""
        self._write(Failed(self._now(), runner.spec.id, "placement", problem))
        self._say(f"{runner.spec.id}: FAILED in placement: {problem}")
        runner.gone = True
        self._tell(runner, None)

    @staticmethod
    def _pass(runner: Runner) -> None:
        """Nobody is to wait for a job's profile any more."""
        if runner.passed is not None and not runner.passed.done():
            runner.passed.set_result(None)

    def _interrupt(self, runner: Runner) -> None:
        """Wake a job that waits, to tell it that the run stops."""
        for waits in (runner.wanted, runner.next):
            if waits is not None and not waits.done():
                waits.set_exception(Stopped())

    def _check_over(self) -> None:
        """End the run when nobody is left, or when those who are left wait for ever."""
        left = [runner for runner in self._runners.values() if not runner.gone and runner.controller is not None]
        if self._over.done():
            return
        if self._stopping and not left:
            self._over.set_result("stopped")
        elif not self._coming and not left:
            self._over.set_result("done")
        elif not self._coming and self._state.waiting and not self._state.order.size and not self._lease and not self._stopping:
            self._break(PlanError(waits_for_ever(self._state)))

    def _slice(self, runner: Runner, hold: Hold, report: Report, now_s: float) -> PhaseSlice:
        assert runner.gang is not None
        pool = self._pool_of(runner, hold.pool)
        return PhaseSlice(
            job_id=runner.spec.id,
            phase=report.phase,  # type: ignore[arg-type]
            profile=runner.iteration == PROFILE,
            iteration=runner.iteration,
            group=runner.gang.number,
            pool=pool,
            numbers=runner.numbers[hold.pool],
            nodes=tuple(node.name for node in runner.nodes[hold.pool]),
            asked_s=hold.asked_s,
            start_s=hold.start_s,
            end_s=now_s,
            run_s=report.run_s,
            done_s=report.done_s,
            permit_s=report.begun_s - hold.start_s,
            load_s=report.load_s,
            offload_s=report.offload_s,
            cold=report.cold,
            switched=hold.switched,
            stages=report.stages,
            host_gb=report.host_gb,
            spans=self._tails.spans(runner.spec.id, now_s) if report.phase == "rollout" else (),
        )
