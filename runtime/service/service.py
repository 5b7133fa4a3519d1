"""A service: a run to which jobs are submitted and of which they are cancelled, and which ends only when it is told to."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmux_env.errors import Conflict, InputError, NotFound, Unprocessable
from rollmux_env.validation_errors import one_line
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.lifecycle import Processes
from runtime.coordinator.overdue import overdue_phases
from runtime.coordinator.run_plan import RunPlan
from runtime.coordinator.run_state import RunState
from runtime.jobs.spec import JobSpec
from runtime.journal.facts import Submitted
from runtime.journal.write import Unwritable
from runtime.machines.forecast import check_memory, check_space, checkpoint_bytes, forecasts, limits
from runtime.run.driver import RunDriver
from runtime.service.address import Listen
from runtime.service.events import Events
from runtime.service.figures import Figures
from runtime.service.forecast import QueueForecast
from runtime.service.operations_log import OperationsLog
from runtime.service.plan import MOST_JOBS, check_limits
from runtime.service.report import STATES, Reports
from runtime.service.tokens import CommandTokens, Tokens
from runtime.short_slices import ask_for_short_slices

if TYPE_CHECKING:
    from runtime.service.http.server import HttpServer

_COLLECTS = (10_000, 10, 70)  # thresholds of collections of garbage: a full one every some minutes under load


class Service:
    """A run without an end. A detached Ray actor whose methods are asynchronous.

    Args:
        plan: what is to be served; its jobs are those of a journal that is resumed.

    Attributes:
        driver: of the run, once it has begun. run: its state. events: entries of its journal.
    """

    driver: RunDriver
    run: RunState
    events: Events

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._figures = Figures()
        self._http: HttpServer | None = None

    async def begin(self) -> None:
        """Set everything going.

        Raises:
            InputError: a policy or the folder cannot be used; one line.
        """
        import ray

        from runtime.coordinator.ray_processes import RayProcesses

        await self.serve(RayProcesses(self._plan.folder, ray.get_runtime_context().current_actor, self._plan.models))

    async def serve(self, processes: Processes | None) -> None:
        """Set everything going with such processes; as `begin`."""
        driver = RunDriver(self._plan, processes, stays=True, observer=self._figures)
        run = driver.run
        self._reports = Reports(driver.leases.ledger, self._figures)
        self._forecast = QueueForecast(driver.leases.ledger)
        self.events = Events(run.log, self.folder)
        self._figures.begin(run, driver.record)
        self.driver, self.run = driver, run
        self._outcome: asyncio.Task[str] = asyncio.ensure_future(self._carry_out(driver))
        await asyncio.sleep(0)  # it goes as far as its first wait
        if self._outcome.done():
            await self._outcome
        self._figures.usage.since_s = run.log.now()

    async def _carry_out(self, driver: RunDriver) -> str:
        try:
            return await driver.carry_out()
        finally:
            if self._http is not None:
                await self._http.close()

    async def listen(self, where: Listen, patience_s: float = 0.0) -> tuple[str, int]:
        """Answer over HTTP from now on; where it does so already, that stays as it is.

        Args:
            where: Place at which to listen.
            patience_s: Longest wait for a port that is in use, in seconds.

        Returns:
            The URL and the port.

        Raises:
            InputError: the port is taken, or cannot be; one line.
        """
        from runtime.service.http.app import make_app
        from runtime.service.http.server import HttpServer, bind

        if self._http is None:
            taken = await bind(where, patience_s)
            self._http = HttpServer(make_app(self, Tokens(self.folder), OperationsLog(self.folder)), taken)
            await self._http.begin()
            # Answers wait for this thread and the one that commits.
            # A full collection takes a tenth of a second of 1,000 jobs, for which permits wait: let it be rare, and leave out what
            # is there from the start, modules and compiled code. Nearly all that a request makes goes without any.
            ask_for_short_slices()
            gc.freeze()
            gc.set_threshold(*_COLLECTS)
        return self._http.url, self._http.port

    async def give_access(self, token: str) -> None:
        """Let commands be started, which ask this service.

        Args:
            token: of jobs that no user has submitted.
        """
        assert self._http is not None
        url, tokens = self._http.url, CommandTokens(self.folder)

        def access(spec: JobSpec) -> dict[str, str]:
            return {"ROLLMUX_URL": url, "ROLLMUX_TOKEN": tokens.of(spec.user) if spec.user else token}

        self.driver.commands.give_access(access)

    async def ended(self) -> str:
        """Wait for the end; as `RunDriver.carry_out`."""
        return await asyncio.shield(self._outcome)

    async def stop(self) -> None:
        """Give no more permits: every job ends at its next phase boundary, and then the service."""
        self.driver.stop()

    async def ask(self, method: str, *arguments: Any) -> Any:
        """A job calls a method of `runtime.owners.ray.calls.JobCalls`."""
        return await self.driver.calls.ask(method, *arguments)

    def _check(self, specs: Sequence[JobSpec]) -> list[str]:
        """See that jobs can be taken; raises as `submit`. Returns a line about each whose memory may not do."""
        driver, run = self.driver, self.run
        if run.stopping or run.over.done():
            raise Conflict("the service is stopping; it takes no more jobs")
        if run.log.problem is not None:
            raise Unwritable(run.log.problem)
        ids = Counter(spec.id for spec in specs)
        for spec, beyond in zip(specs, run.capacity.new_beyond(specs), strict=True):
            if spec.id in run.handles or ids[spec.id] > 1:
                raise Conflict(f"job {spec.id}: this service has had a job of that name; names are used once")
            if problem := beyond or driver.lacks(spec):
                raise Unprocessable(f"job {spec.id}: {problem}")
        check_limits(specs, self._present(len(specs)))
        try:
            return self._check_room(specs)
        except InputError as error:
            raise Unprocessable(str(error)) from None

    def _present(self, more: int) -> int:
        """How many jobs there are, those aside that have ended, where that matters; else at most so many.

        Args:
            more: would come.
        """
        handles = self.run.handles
        return len(handles) if len(handles) + more <= MOST_JOBS else sum(not handle.gone for handle in handles.values())

    def _check_room(self, specs: Sequence[JobSpec]) -> list[str]:
        """See that there is room for the checkpoints of jobs, and memory for them; raises InputError. Returns as `_check`."""
        lines: list[str] = []
        writing = [number for number, spec in enumerate(specs) if checkpoint_bytes(spec)]
        present = [handle.spec for handle in self.run.handles.values() if not handle.gone] if writing else []
        for number in writing:
            check_space([*present, *specs[: number + 1]], self.folder, f"job {specs[number].id}")
        if expected := forecasts(specs, self._plan.nodes):
            check_memory(expected, limits(self._plan.nodes, None), lines.append)
        return lines

    async def preview(self, specs: Sequence[JobSpec]) -> list[dict[str, Any]]:
        """What would become of jobs if they were submitted now, in this order; nothing changes.

        Raises:
            InputError: as `submit`; one line.
        """
        self._check(specs)
        return await self._forecast.preview(specs)

    async def submit(self, specs: Sequence[JobSpec]) -> None:
        """Take jobs; on return they are in the journal. Their `arrival_s` count from now.

        Raises:
            InputError: one has a name that was used before, asks for more nodes than there are, for more memory than they
                have, or for more room for checkpoints than the disk has beside those of the other jobs, or they are too many or
                too long (`runtime.service.plan`), or the journal cannot be written: none is taken; one line.
        """
        run = self.run
        for line in self._check(specs):
            run.log.say(line)
        now_s = run.log.now()
        dated = [spec.model_copy(update={"arrival_s": now_s + spec.arrival_s}) for spec in specs]
        run.log.write(*(Submitted(now_s, spec) for spec in dated))
        for spec in dated:
            run.handles[spec.id] = JobHandle(spec)
            run.log.say(f"{spec.id}: submitted")
        run.coming += len(dated)
        run.spawn(self.driver.profiling.bring_all([run.handles[spec.id] for spec in dated]))
        await run.durable()

    async def cancel(self, job_id: str) -> None:
        """End a job now, whatever it does.

        Raises:
            InputError: there is no such job, or it has ended, or the journal cannot be written; one line.
        """
        handle = self.handle_of(job_id)
        if (problem := self.run.log.problem) is not None:
            raise Unwritable(problem)
        outcome = self._figures.ends.get(job_id, ("", ""))[0]
        if outcome == "cancelled" and not handle.gone:  # its end is waited for
            return
        if outcome:
            raise Conflict(f"job {job_id}: has ended already: {outcome}")
        await self.driver.lifecycle.cancel(handle)
        self.driver.end.check()
        await self.run.durable()

    async def report(self) -> dict[str, Any]:
        """What every job, group and pool does; see `runtime.service.report.Reports.all`. What it says is in the journal."""
        waiting = await self._forecast.waiting()
        await self.known()
        return await self._reports.all(waiting)

    async def job(self, job_id: str) -> dict[str, Any]:
        """What one job does, as `report` has it.

        Raises:
            NotFound: there is no such job.
        """
        handle = self.handle_of(job_id)
        known = await self._forecast.waiting() if handle.id in self.run.scheduler.state.waiting else {}
        await self.known()
        return self._reports.job(handle, known.get(job_id))

    async def wait_of(self, job_id: str) -> dict[str, Any]:
        """Return why a job waits and until when, for its owner.

        Args:
            job_id: Id of an attached job.

        Returns:
            `reason`, `position` and `eta_s`, as `job` has them, and the present time `now_s`; empty if the job is neither in the
            queue nor lost, or if the service is stopping.
        """
        handle = self.handle_of(job_id)
        if self.run.stopping or not (job_id in self.run.scheduler.state.waiting or self._reports.state_of(handle) == "lost"):
            return {}
        job = await self.job(job_id)
        return {key: job[key] for key in ("reason", "position", "eta_s")} | {"now_s": self.run.log.now()}

    async def known(self) -> None:
        """What is said of a job is in the journal, unless that cannot be written, which is said too."""
        if self.run.log.problem is None:
            await self.run.durable()

    async def metrics(self) -> str:
        """The figures that are exported to Prometheus, as text."""
        self._gauge()
        return await asyncio.to_thread(self._figures.metrics.text)

    async def news(self, behind: int) -> list[str]:
        """Lines about what has happened, those after the first `behind`, as far as they are still known."""
        return self.run.log.lines(behind)

    async def told(self) -> int:
        """How many lines there have been."""
        return self.run.log.line_count

    @property
    def folder(self) -> Path:
        """Its folder."""
        return Path(self._plan.folder)

    def handle_of(self, job_id: str) -> JobHandle:
        """A job of the run; raises NotFound, one line, where there is no such job."""
        handle = self.run.handles.get(job_id)
        if handle is None:
            raise NotFound(f"job {one_line(job_id, 80)}: this service has no such job")
        return handle

    def _gauge(self) -> None:
        run, metrics = self.run, self._figures.metrics
        for pool, view in self._reports.pools().items():
            for state in ("busy", "idle", "free", "suspect", "draining"):
                metrics.write("rollmux_nodes", view[state], pool=pool, state=state)
            metrics.write("rollmux_pool_utilization", view["utilization"], pool=pool)
        metrics.write("rollmux_queue_length", len(run.scheduler.state.waiting))
        metrics.write("rollmux_usd_per_hour", run.scheduler.state.usd_per_hour)
        metrics.write("rollmux_suspect_nodes", len(self.driver.leases.ledger.suspects()))
        metrics.write("rollmux_paused", float(run.log.problem is not None))
        metrics.write("rollmux_stopping", float(run.stopping))
        holding = (handle for handle in run.handles.values() if handle.permits.holds)
        self._figures.overdue({handle.id: [*overdue_phases(run, handle)] for handle in holding})
        metrics.keep_jobs({handle.id for handle in run.handles.values() if not handle.gone})
        states = self._reports.states()
        for name in STATES:
            metrics.write("rollmux_jobs", states[name], state=name)
