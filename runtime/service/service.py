"""A service: a run to which jobs are submitted and of which they are cancelled, and which ends only when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from rollmux_env.errors import InputError
from runtime.execution.driver import RunDriver
from runtime.execution.forecast import check_memory, forecasts, limits
from runtime.execution.job_handle import JobHandle
from runtime.execution.processes import Processes
from runtime.execution.run_plan import RunPlan
from runtime.execution.run_state import RunState
from runtime.execution.space import check_space, checkpoint_bytes
from runtime.facts import Submitted
from runtime.jobs.spec import JobSpec
from runtime.metrics import Sample
from runtime.service.figures import Figures
from runtime.service.limits import check_limits
from runtime.service.report import make_report
from runtime.service.snapshot import state_of_job, take_snapshot

_KEEPS_S = 2.0  # between looks at gauges


class Service:
    """A run without an end. A detached Ray actor whose methods are asynchronous.

    Args:
        plan: what is to be served; its jobs are those of a journal that is resumed.

    Attributes:
        driver: of the run; None before it has begun.
    """

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._figures = Figures()
        self.driver: RunDriver | None = None

    async def begin(self) -> None:
        """Set everything going.

        Raises:
            InputError: a policy or the folder cannot be used; one line.
        """
        await self.serve(Processes(self._plan.folder, ray.get_runtime_context().current_actor, self._plan.models))

    async def serve(self, processes: Processes) -> None:
        """Set everything going with such processes; as `begin`."""
        driver = RunDriver(self._plan, processes, stays=True, observer=self._figures)
        self._figures.begin(driver.run, driver.record)
        self.driver = driver
        self._outcome: asyncio.Task[str] = asyncio.ensure_future(driver.carry_out())
        await asyncio.sleep(0)  # it goes as far as its first wait
        if self._outcome.done():
            await self._outcome
        self._figures.usage.since_s = driver.run.log.now()
        driver.run.spawn(self._keep())

    async def ended(self) -> str:
        """Wait for the end; as `RunDriver.carry_out`."""
        return await asyncio.shield(self._outcome)

    async def stop(self) -> None:
        """Give no more permits: every job ends at its next phase boundary, and then the service."""
        if self.driver is not None:
            self.driver.stop()

    async def ask(self, method: str, *arguments: Any) -> Any:
        """A job calls a method of `runtime.execution.job_calls.JobCalls`."""
        assert self.driver is not None
        return await getattr(self.driver.calls, method)(*arguments)

    async def submit(self, specs: Sequence[JobSpec]) -> None:
        """Take jobs; on return they are in the journal. Their `arrival_s` count from now.

        Raises:
            InputError: one has a name that was used before, asks for more nodes than there are, or for more room for checkpoints
                than the disk has beside those of the other jobs, or they are too many or too long (`runtime.service.limits`), or
                the journal cannot be written: none is taken; one line.
        """
        driver, run = self._running()
        if run.stopping or run.over.done():
            raise InputError("the service is stopping; it takes no more jobs")
        if run.log.problem is not None:
            raise InputError(run.log.problem)
        for spec in specs:
            if spec.id in run.handles:
                raise InputError(f"job {spec.id}: this service has had a job of that name; names are used once")
            if problem := run.beyond(spec):
                raise InputError(f"job {spec.id}: {problem}")
        check_memory(forecasts(specs, self._plan.nodes), limits(self._plan.nodes, None), run.log.say)
        present = [handle.spec for handle in run.handles.values() if not handle.gone]
        check_limits(specs, len(present))
        for count, spec in enumerate(specs, 1):
            if checkpoint_bytes(spec):
                check_space([*present, *specs[:count]], Path(self._plan.folder), f"job {spec.id}")
        now_s = run.log.now()
        dated = [spec.model_copy(update={"arrival_s": now_s + spec.arrival_s}) for spec in specs]
        run.log.take(*(Submitted(now_s, spec) for spec in dated))
        for spec in dated:
            run.handles[spec.id] = JobHandle(spec)
            run.log.say(f"{spec.id}: submitted")
        run.coming += len(dated)
        run.spawn(driver.profiling.bring_all([run.handles[spec.id] for spec in dated]))

    async def cancel(self, job_id: str) -> None:
        """End a job now, whatever it does.

        Raises:
            InputError: there is no such job, or it has ended, or the journal cannot be written; one line.
        """
        lives, handle = self._running()[0].lifecycle, self._handle_of(job_id)
        if (problem := self._running()[1].log.problem) is not None:
            raise InputError(problem)
        if job_id in self._figures.ends:
            raise InputError(f"job {job_id}: has ended already: {self._figures.ends[job_id][0]}")
        await lives.cancel(handle)
        lives.check_over()

    async def report(self) -> dict[str, Any]:
        """What every job, group and pool does; `runtime.service.snapshot` says what is in it."""
        return make_report(take_snapshot(self._running()[1], self._figures))

    async def state_of(self, job_id: str) -> str:
        """What a job does: one of `runtime.service.report.STATES`.

        Raises:
            InputError: there is no such job.
        """
        return state_of_job(self._running()[1], self._figures, self._handle_of(job_id))

    async def metrics(self) -> list[Sample]:
        """The figures that are exported to Prometheus."""
        self._gauge()
        return self._figures.metrics.read()

    async def news(self, behind: int) -> list[str]:
        """Lines about what has happened, those after the first `behind`, as far as they are still known."""
        return self._running()[1].log.lines(behind)

    async def told(self) -> int:
        """How many lines there have been."""
        return self._running()[1].log.line_count

    def _running(self) -> tuple[RunDriver, RunState]:
        if self.driver is None:
            raise InputError("the service has not begun")
        return self.driver, self.driver.run

    def _handle_of(self, job_id: str) -> JobHandle:
        handle = self._running()[1].handles.get(job_id)
        if handle is None:
            raise InputError(f"job {job_id}: this service has no such job")
        return handle

    async def _keep(self) -> None:
        """Keep gauges new."""
        while True:
            await asyncio.sleep(_KEEPS_S)
            self._gauge()

    def _gauge(self) -> None:
        snapshot, metrics = take_snapshot(self._running()[1], self._figures), self._figures.metrics
        for pool, view in snapshot.pools.items():
            for state in ("busy", "idle", "free"):
                metrics.write("rollmux_nodes", getattr(view, state), pool=pool, state=state)
            metrics.write("rollmux_pool_utilization", view.utilization, pool=pool)
        metrics.write("rollmux_queue_length", len(snapshot.queue))
        for state, count in make_report(snapshot)["states"].items():
            metrics.write("rollmux_jobs", count, state=state)
