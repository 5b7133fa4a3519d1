"""The part of the coordinator that is there at the end: of a job that fails, is refused or stops, and of the run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray

from rollmux_env.complaint import one_line
from rollmux_env.errors import InputError, InvariantError, PlanError
from rollmux_env.replay.run import waits_for_ever
from rollmux_env.scenario import Job
from runtime.execution.members import Runner
from runtime.execution.messages import End, Report, Stopped
from runtime.execution.nodes import POOLS
from runtime.execution.placing import Placing
from runtime.facts import Failed
from runtime.jobs.spec import JobSpec

_ENDS_S = 30.0  # a process that has been killed ends within this time, or is in nobody's reach


class Ends(Placing):
    """Ends of jobs, and of the run."""

    _coming = 0  # jobs that have not been placed or given up yet

    async def _fail(self, runner: Runner, end: End) -> None:
        """A job has failed: end its processes, then give its nodes to the others."""
        await self._end_processes(runner)
        job_id = runner.spec.id
        self._cut(runner)
        self._write(Failed(self._now(), job_id, end.where, end.problem, end.details))
        self._say(f"{job_id}: FAILED in {end.where}: {end.problem}")
        runner.gone = True
        self._release(runner)

    def _release(self, runner: Runner) -> None:
        """What a job has, and its place or its turn, goes to the others, for ever."""
        self._quit(runner)
        self._pass(runner)
        if self._state.is_running(runner.spec.id):
            self._depart(runner)
        elif runner.spec.id in self._state.waiting:
            self._withdraw(runner)

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

    def _refuse(self, runner: Runner, problem: str, where: str = "placement") -> None:
        """A job cannot be placed at all."""
        self._write(Failed(self._now(), runner.spec.id, where, problem))
        self._say(f"{runner.spec.id}: FAILED in {where}: {problem}")
        runner.gone = True
        self._tell(runner, None)

    def _attempt(self, runner: Runner, where: str, work: Callable[..., None], *arguments: Any) -> None:
        """Do something for one job; where that fails, this job alone does."""
        try:
            work(*arguments)
        except (InvariantError, PlanError):  # of the whole run
            raise
        except Exception as error:
            if self._over.done():  # the journal cannot be written
                raise
            problem = one_line(" ".join(str(error).split()), 500) or "no message"
            self._refuse(runner, problem if isinstance(error, InputError) else f"{type(error).__name__}: {problem}", where)

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
