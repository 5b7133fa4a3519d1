"""The part of the coordinator that starts the processes of jobs and is there when they end, whatever the reason."""

from __future__ import annotations

from typing import Any

import ray

from rollmux_env.errors import PlanError
from rollmux_env.replay.run import waits_for_ever
from runtime.execution.controller import Controller
from runtime.execution.members import PROFILE, Hold, Runner
from runtime.execution.messages import End, Report, Stopped
from runtime.execution.placing import Placing
from runtime.record import Failed, PhaseSlice


class Lives(Placing):
    """Beginnings and ends of jobs, and of the run."""

    _me: Any = None  # this actor, for the controllers
    _coming = 0  # jobs that have not been placed or given up yet

    def _start(self, runner: Runner) -> None:
        actor = ray.remote(Controller).options(num_cpus=0, max_concurrency=2)
        runner.controller = actor.remote(runner.spec, self._me)
        self._spawn(self._watch(runner))

    async def _watch(self, runner: Runner) -> None:
        """Wait for a controller's end, whatever it is."""
        try:
            end: End = await runner.controller.run.remote()
        except ray.exceptions.RayError as error:
            end = End("failed", "step", "its controller has died", str(error))
        try:
            if end.outcome == "failed":
                await self._fail(runner, end)
            elif not runner.gone:  # the run stops
                self._quit(runner)
                runner.gone = True
                self._pass(runner)
                if self._state.is_running(runner.spec.id):
                    self._depart(runner)
            if runner.controller is not None:
                ray.kill(runner.controller)
            self._check_over()
        except Exception as error:
            self._break(error)

    async def _fail(self, runner: Runner, end: End) -> None:
        """A job has failed: end its processes, then give its nodes to the others."""
        for worker in runner.workers:
            ray.kill(worker)
        for worker in runner.workers:
            try:
                await worker.identity.remote()
            except ray.exceptions.RayError:
                continue
        job_id = runner.spec.id
        if runner.hold is not None:
            now_s, start_s = self._now(), runner.hold.start_s
            cut = Report(runner.hold.pool, False, start_s, start_s, now_s)
            part = self._slice(runner, runner.hold, cut, now_s)
            self._write(PhaseSlice(**{**part.__dict__, "ok": False}))
        self._write(Failed(self._now(), job_id, end.where, end.problem, end.details))
        self._say(f"{job_id}: FAILED in {end.where}: {end.problem}")
        runner.gone = True
        self._quit(runner)
        self._pass(runner)
        if self._state.knows(job_id) and self._state.is_running(job_id):
            self._depart(runner)

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
