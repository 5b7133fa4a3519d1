"""A service: a run to which jobs are submitted and whose jobs are cancelled while it runs. It ends only when it is asked to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from policies.whatif import Change
from rollmux_env.errors import Conflict, NotFound
from rollmux_env.validation_errors import one_line
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.lifecycle import ProcessBackend
from runtime.coordinator.run_loop import RunLoop
from runtime.coordinator.run_plan import RunPlan
from runtime.jobs.spec import JobSpec
from runtime.journal.facts import JobSubmitted
from runtime.journal.rollover import MOST_FACTS, QUIET_S, ROLLED_OVER, is_long
from runtime.journal.write import Unwritable
from runtime.report.usage import Key, Row, earlier_rows, grouped
from runtime.run.driver import RunDriver
from runtime.service.admission import Admission
from runtime.service.events import Events
from runtime.service.figures import RunFigures
from runtime.service.forecast import NOTHING_KNOWN, QueueForecast
from runtime.service.mail import Mail
from runtime.service.notices import Notices
from runtime.service.quotas import UserQuotas
from runtime.service.report import Reports, in_steps
from runtime.service.webhook import Webhook
from runtime.service.whatif import LiveAnswers

_LOOKS_S = 60.0  # interval at which the service looks whether its journal can be rolled over
_MEASURES_S = 60.0  # interval at which the service looks whether its journal is long
_FAILED_S = 3600.0  # time without such looks after a roll-over whose next part could not begin


class RunService:
    """A run without an end, in a detached Ray actor or in `rollmux serve --no-ray`.

    Args:
        plan: Plan of the service. Its jobs are those of a journal that is resumed.

    Attributes:
        driver: Driver of the run, after `begin` or `serve`.
        run: State of the run, after `begin` or `serve`.
        events: Reader of the journal's entries, after `begin` or `serve`.
        quotas: Quotas of the users, after `begin` or `serve`.
    """

    driver: RunDriver
    run: RunLoop
    events: Events
    quotas: UserQuotas

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._figures = RunFigures()
        self._earlier: list[Row] | None = None  # usage before the last roll-over, once it was asked for

    async def begin(self) -> None:
        """Begin the run with processes on Ray.

        Raises:
            InputError: If a policy or the folder cannot be used; one line.
        """
        import ray

        from runtime.coordinator.ray_processes import RayProcesses

        await self.serve(RayProcesses(self._plan.folder, ray.get_runtime_context().current_actor, self._plan.models))

    async def serve(self, processes: ProcessBackend | None) -> None:
        """Begin the run.

        Args:
            processes: Backend of the jobs' processes, or None without Ray.

        Raises:
            InputError: If a policy or the folder cannot be used; one line.
        """
        driver = RunDriver(self._plan, processes, keeps_running=True, observer=self._figures)
        run = driver.run
        self._reports = Reports(driver.leases.ledger, self._figures)
        self._forecast = QueueForecast(driver.leases.ledger)
        self._answers = LiveAnswers(driver.leases.ledger, self.folder.name)
        self.events = Events(run.log, self.folder)
        self.driver, self.run = driver, run
        self.quotas = UserQuotas(run, driver.record)
        self._admission = Admission(driver, self.quotas)
        loop = asyncio.get_running_loop()
        self._senders = [kind(self.folder, lambda line: _say_soon(loop, run, line)) for kind in (Webhook, Mail)]
        notices = Notices(run, self._senders, driver.lifecycle.planned_drains, driver.record)
        self._figures.begin(run, driver.record, (self.quotas.waits, notices))
        self._outcome: asyncio.Task[str] = asyncio.ensure_future(self._carry_out(driver))
        await asyncio.sleep(0)  # the task runs up to its first wait
        if not driver.has_begun:
            await self._outcome  # it raises the reason
        self._figures.usage.observed_from_s = run.log.now()
        run.spawn(self.quotas.follow_calendar())
        run.spawn(notices.watch())
        run.spawn(self._roll_over())
        run.spawn(self._begin_parts())

    async def _carry_out(self, driver: RunDriver) -> str:
        try:
            return await driver.carry_out()
        finally:
            await self._close()

    async def _roll_over(self) -> None:
        """Let the run end for the next part of its journal, when this part is long and no job was present for a while.

        Notices that are still to be delivered count as present, too: the next part does not know them.
        """
        run, record = self.run, self.driver.record
        if record is not None and record.ended is not None and record.ended.outcome == ROLLED_OVER:
            await asyncio.sleep(_FAILED_S)
        quiet_s, known = 0.0, len(run.handles)
        while not run.stopping:
            await asyncio.sleep(_LOOKS_S)
            is_quiet = self.driver.is_quiet and all(sender.is_idle for sender in self._senders)
            quiet_s = quiet_s + _LOOKS_S if is_quiet and known == len(run.handles) else 0.0
            known = len(run.handles)
            if quiet_s >= QUIET_S and run.log.journal.length > MOST_FACTS and run.log.problem is None and not run.stopping:
                run.log.say("no job is present: the service begins the next part of its journal")
                self.driver.roll_over()

    async def _begin_parts(self) -> None:
        """Continue the journal in a next part whenever this one has become long, until cancelled."""
        log = self.run.log
        while True:
            await asyncio.sleep(_MEASURES_S)
            if log.problem is not None or not is_long(log.journal):
                continue
            problem = await log.begin_next_part()
            log.say(problem or f"the journal is long: it continues in {log.journal.path.name}")
            if problem is not None:
                await asyncio.sleep(_FAILED_S)

    async def _close(self) -> None:
        """Release what the service holds outside its run, at its end."""
        for sender in self._senders:
            sender.close()

    async def ended(self) -> str:
        """Wait for the end of the service, and return the outcome as `RunDriver.carry_out` does."""
        return await asyncio.shield(self._outcome)

    async def stop(self) -> None:
        """Give no more permits: every job stops at its next phase boundary, and then the service ends."""
        self.driver.stop()

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of `runtime.owners.ray.calls.JobCalls` for a job's controller.

        Args:
            method: Name of the method.
            *arguments: Arguments of the method.
        """
        return await self.driver.calls.ask(method, *arguments)

    async def preview(self, specs: Sequence[JobSpec]) -> list[dict[str, Any]]:
        """Return the placement or the place in the queue that each job would get if all were submitted now, in this order.

        Nothing changes. `rollmux_env.scheduler.preview.Preview` explains the keys.

        Args:
            specs: Jobs in order.

        Raises:
            InputError: As in `submit`; one line.
        """
        self._admission.check(specs)
        return await self._forecast.preview(specs)

    async def what_if(self, change: Change, since_s: float | None) -> dict[str, Any]:
        """Return the expected course of all jobs, as it is and with a change. Nothing changes.

        Args:
            change: The change.
            since_s: Length of the past whose arrivals repeat, in seconds, or None if no other job arrives.

        Returns:
            Answer as in `rollmux_env.replay.whatif.WhatIf.as_dict`.

        Raises:
            Unprocessable: If the change is not possible, or the policy cannot be asked; one line.
        """
        return (await self._answers.answer(change, since_s)).as_dict()

    async def submit(self, specs: Sequence[JobSpec]) -> None:
        """Take jobs, all or none. When this returns, they are in the journal. Their `arrival_s` count from now.

        Args:
            specs: Jobs in order.

        Raises:
            Conflict: If the service is stopping, or a name was used before; one line.
            Unprocessable: If a job asks for more nodes, memory or disk space than there is, or its description is too long; one
                line.
            TooMany: If there would be too many jobs; one line.
            Unwritable: If the journal cannot be written; one line.
        """
        run = self.run
        for line in self._admission.check(specs):
            run.log.say(line)
        now_s = run.log.now()
        dated = [spec.model_copy(update={"arrival_s": now_s + spec.arrival_s}) for spec in specs]
        run.log.write(*(JobSubmitted(now_s, spec) for spec in dated))
        for spec in dated:
            run.handles[spec.id] = JobHandle(spec)
            run.log.say(f"{spec.id}: submitted")
        run.coming += len(dated)
        run.spawn(self.driver.arrivals.bring_all([run.handles[spec.id] for spec in dated]))
        await run.log.durable()

    async def cancel(self, job_id: str) -> None:
        """End a job now, in whatever phase it is.

        Args:
            job_id: Id of the job.

        Raises:
            InputError: If there is no such job, it has ended, or the journal cannot be written; one line.
        """
        handle = self.handle_of(job_id)
        if (problem := self.run.log.problem) is not None:
            raise Unwritable(problem)
        outcome = "" if (end := self._figures.ends.get(job_id)) is None else end.state
        if outcome == "cancelled" and not handle.life.is_gone:  # its end is waited for
            return
        if outcome:
            raise Conflict(f"job {job_id}: has ended already: {outcome}")
        await self.driver.lifecycle.cancel(handle)
        self.run.check_end()
        await self.run.log.durable()

    async def report(self) -> dict[str, Any]:
        """Return the report of all jobs, groups and pools; see `runtime.service.report.Reports.all`. Its facts are durable."""
        outlook = await self._forecast.outlook()
        await self.known()
        drains = self.driver.lifecycle.planned_drains.reports()
        return await self._reports.all(outlook) | {"drains": drains}

    async def usage(self, by: Sequence[Key]) -> list[Row]:
        """Return what users and jobs have used, grouped by some keys; see `runtime.report.usage`."""
        if self._earlier is None:
            self._earlier = await asyncio.to_thread(earlier_rows, self.folder)
        rows = [row async for row in in_steps(self.quotas.usage())]
        await self.known()
        return grouped((*self._earlier, *rows), by)

    async def job(self, job_id: str) -> dict[str, Any]:
        """Return the report of one job, as in `report`.

        Args:
            job_id: Id of the job.

        Raises:
            NotFound: If there is no such job.
        """
        handle = self.handle_of(job_id)
        outlook = NOTHING_KNOWN if handle.life.is_gone else await self._forecast.outlook()
        await self.known()
        return self._reports.job(handle, outlook)

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
        """Wait until everything that a report may contain is durable; a journal that cannot be written is not waited for."""
        if self.run.log.problem is None:
            await self.run.log.durable()

    async def metrics(self) -> str:
        """Return the metrics in Prometheus's text format."""
        self._figures.metrics.write("rollmux_journal_facts", self.run.log.journal.length)
        self._reports.write_gauges()
        return await asyncio.to_thread(self._figures.metrics.text)

    async def news(self, behind: int) -> list[str]:
        """Return the lines about events after the first `behind` ones, as far as they are still in memory."""
        return self.run.log.lines(behind)

    async def told(self) -> int:
        """Return the number of lines about events so far."""
        return self.run.log.line_count

    @property
    def folder(self) -> Path:
        """The service's folder."""
        return Path(self._plan.folder)

    def handle_of(self, job_id: str) -> JobHandle:
        """Return a job of the run.

        Raises:
            NotFound: If there is no such job; one line.
        """
        handle = self.run.handles.get(job_id)
        if handle is None:
            raise NotFound(f"job {one_line(job_id, 80)}: this service has no such job")
        return handle


def _say_soon(loop: asyncio.AbstractEventLoop, run: RunLoop, line: str) -> None:
    """Add a line for the user from another thread; a service that has ended has none."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(run.log.say, line)
