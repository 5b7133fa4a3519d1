"""The coordinator of a service: jobs are submitted and cancelled while others run, and it ends only when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from policies.registry import make_runnable
from rollmux_env.cluster.events import Departed, Reprofiled
from rollmux_env.errors import InputError
from rollmux_env.replay.run import waits_for_ever
from rollmux_env.scheduler.better import better_place
from rollmux_env.scheduler.dispatcher import PhaseName
from rollmux_env.scheduler.pace import WINDOW, Pace
from runtime.execution.coordinator import Coordinator
from runtime.execution.members import PROFILE, Runner, RunPlan
from runtime.execution.messages import Done, Report
from runtime.facts import Cancelled, Fact, Failed, Span, Submitted
from runtime.jobs.spec import JobSpec
from runtime.metrics import Metrics, Sample
from runtime.output import LOGS, trim
from runtime.record import RunRecord
from runtime.service.report import Usage, make_report, state_of_job

_NEWS = 10_000  # lines that are kept
_KEEPS_S = 2.0  # between looks at logs and gauges


class Service(Coordinator):
    """A run without an end. A detached Ray actor whose methods are asynchronous.

    Args:
        plan: what is to be served; its jobs are those of a journal that is resumed.
    """

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        self.ends: dict[str, tuple[str, str]] = {}  # by job: `done`, `failed` or `cancelled`, and the problem
        self.paces: dict[str, Pace] = {}
        self.metrics_of: dict[str, dict[str, float]] = {}  # of jobs' last iterations
        self.usage = Usage()
        self.late: set[str] = set()
        self._metrics = Metrics()
        self._bringing = asyncio.Lock()  # nodes are lent to one batch of profiles at a time
        self._kept: set[str] = set()  # jobs that have kept their permit for what follows
        self._forgotten = 0  # lines of news

    async def begin(self) -> None:
        """Set everything going.

        Raises:
            InputError: a policy or the folder cannot be used; one line.
        """
        self._run: asyncio.Task[str] = asyncio.ensure_future(self.run())
        await asyncio.sleep(0)  # it goes as far as its first wait
        if self._run.done():
            await self._run
        self.usage.since_s = self._now()
        self._spawn(self._keep())

    async def ended(self) -> str:
        """Wait for the end; as `Coordinator.run`."""
        return await asyncio.shield(self._run)

    async def submit(self, specs: Sequence[JobSpec]) -> None:
        """Take jobs; on return they are in the journal. Their `arrival_s` count from now.

        Raises:
            InputError: one has a name that was used before, or asks for more nodes than there are: none is taken; one line.
        """
        if self._stopping or self._over.done():
            raise InputError("the service is stopping; it takes no more jobs")
        for spec in specs:
            if spec.id in self._runners:
                raise InputError(f"job {spec.id}: this service has had a job of that name; names are used once")
            if problem := self._beyond(spec):
                raise InputError(f"job {spec.id}: {problem}")
        now_s = self._now()
        taken = [spec.model_copy(update={"arrival_s": now_s + spec.arrival_s}) for spec in specs]
        self._write(*(Submitted(now_s, spec) for spec in taken))
        for spec in taken:
            self._runners[spec.id] = Runner(spec)
            self._say(f"{spec.id}: submitted")
        self._coming += len(taken)
        self._spawn(self._bring_all([self._runners[spec.id] for spec in taken]))

    async def cancel(self, job_id: str) -> None:
        """End a job now, whatever it does.

        Raises:
            InputError: there is no such job, or it has ended; one line.
        """
        self._known(job_id)
        async with self._mending:
            runner = self._known(job_id)
            self._write(Cancelled(self._now(), job_id))
            self._say(f"{job_id}: cancelled")
            runner.gone = True
            if runner.controller is not None:
                await self._end_processes(runner)
            self._cut(runner)
            self._release(runner)
            self._freed.set()
            self._check_over()

    async def report(self) -> dict[str, Any]:
        """What every job, group and pool does; `runtime.service.report` says what is in it."""
        return make_report(self)

    async def state_of(self, job_id: str) -> str:
        """What a job does: one of `runtime.service.report.STATES`.

        Raises:
            InputError: there is no such job.
        """
        if job_id not in self._runners:
            raise InputError(f"job {job_id}: this service has no such job")
        return state_of_job(self, self._runners[job_id])

    async def metrics(self) -> list[Sample]:
        """The figures that are exported to Prometheus."""
        self._gauge()
        return self._metrics.read()

    def held(self, runner: Runner, now_s: float) -> tuple[Span, ...]:
        """What the phase of a job that has a permit has held of nodes until now."""
        hold = runner.hold
        assert hold is not None
        spans = self._tails.spans(runner.spec.id, now_s) if hold.pool == "rollout" else ()
        return spans or tuple(Span(node.name, hold.start_s, now_s, 1.0, False) for node in runner.nodes[hold.pool])

    async def release(self, job_id: str, report: Report) -> None:
        """A phase is over."""
        runner = self._runners[job_id]
        hold = runner.hold
        if hold is not None:
            pool = self._pool_of(runner, hold.pool)
            if job_id in self._kept:  # the phase has the permit of the one before
                self._kept.discard(job_id)
            else:
                self._metrics.write("rollmux_permit_latency_seconds", max(0.0, report.begun_s - hold.start_s), pool=pool)
            if report.keeps:
                self._kept.add(job_id)
            now_s = self._now()
            self.usage.held(pool, self.held(runner, now_s), now_s)
            if runner.iteration != PROFILE and report.phase != "init":
                self._pace(job_id).phase(hold.pool, report.done_s - report.run_s, report.cold)
        await super().release(job_id, report)

    async def synced(self, job_id: str, start_s: float, end_s: float) -> None:
        """A sync is over."""
        if self._runners[job_id].iteration != PROFILE:
            self._pace(job_id).phase("sync", end_s - start_s, False)
        await super().synced(job_id, start_s, end_s)

    def _grant(self, runner: Runner, phase: PhaseName, paired: bool) -> None:
        pool = self._pool_of(runner, phase)
        self._metrics.write("rollmux_permits", 1.0, pool=pool)
        self._metrics.write("rollmux_permit_wait_seconds", max(0.0, self._now() - runner.asked_s), pool=pool)
        self._kept.discard(runner.spec.id)
        super()._grant(runner, phase, paired)

    def _completed(self, runner: Runner, done: Done) -> None:
        job_id, began_s = runner.spec.id, runner.began_s
        if runner.iteration != PROFILE:
            self.metrics_of[job_id] = done.metrics
            self._metrics.write("rollmux_iterations", 1.0, job=job_id)
            if began_s is not None:
                self._pace(job_id).iteration(self._now() - began_s)
        before = runner.gang
        super()._completed(runner, done)
        if runner.gang is not before or runner.gone:
            self._forget(job_id)
        elif runner.iteration != PROFILE:
            self._look(runner, done.movable)

    def _look(self, runner: Runner, movable: bool) -> None:
        """See whether a job's profile still holds and whether it keeps its SLO, and look for a better place if it does not."""
        job_id, pace = runner.spec.id, self._pace(runner.spec.id)
        known = self._state.job(job_id)
        if (newer := pace.drifted(known)) is not None:
            self._note(Reprofiled(self._now(), newer))
            runner.job = newer
            self._say(
                f"{job_id}: takes longer than its profile says: rollout {newer.rollout.worst_case_s:.2f} s, "
                f"training {newer.training.worst_case_s:.2f} s, sync {newer.sync_s:.3f} s from now on"
            )
            known = newer
        if pace.iteration_s is None:
            return
        late = pace.is_late(known)
        self._metrics.write("rollmux_slo_slack", 1 - pace.iteration_s / known.solo_s / known.slo, job=job_id)
        self._metrics.write("rollmux_at_risk", float(late), job=job_id)
        if not late:
            self.late.discard(job_id)
            return
        fresh = job_id not in self.late
        self.late.add(job_id)
        if fresh:
            slowdown = pace.iteration_s / known.solo_s
            self._say(f"{job_id}: its SLO is at risk: {slowdown:.2f} times its solo time of late, {known.slo:g} at most")
        if (fresh or pace.asked >= WINDOW) and movable and runner.moves_to is None and self._lease is None:
            pace.asked = 0
            self._note_progress()
            self._state.now_s = self._now()
            plan = better_place(self._state, job_id, make_runnable(self._plan.policy, self._plan.seed))
            if plan:
                self._enact(plan)
            elif fresh:
                self._say(f"{job_id}: there is no better place for it now")

    def _pace(self, job_id: str) -> Pace:
        return self.paces.setdefault(job_id, Pace())

    def _forget(self, job_id: str) -> None:
        """A job has another place, or none any more: what it did of late says nothing."""
        self.paces.pop(job_id, None)
        if job_id in self.late:
            self.late.discard(job_id)
            self._metrics.write("rollmux_at_risk", 0.0, job=job_id)

    def _known(self, job_id: str) -> Runner:
        runner = self._runners.get(job_id)
        if runner is None:
            raise InputError(f"job {job_id}: this service has no such job")
        if job_id in self.ends:
            raise InputError(f"job {job_id}: has ended already: {self.ends[job_id][0]}")
        return runner

    async def _bring(self, runners: Sequence[Runner]) -> None:
        async with self._bringing:
            present = [runner for runner in runners if not runner.gone]
            self._coming -= len(runners) - len(present)
            if present and not self._stopping:
                await super()._bring(present)

    def _check_over(self) -> None:
        left = [runner for runner in self._runners.values() if not runner.gone and runner.controller is not None]
        if self._stopping:
            if not left and not self._over.done():
                self._over.set_result("stopped")
        elif not self._coming and self._state.waiting and not self._state.order.size and not self._lease:
            first = self._runners[self._state.waiting[0]]
            self._refuse(first, waits_for_ever(self._state))
            self._withdraw(first)
            self._check_over()

    async def news(self, behind: int) -> list[str]:
        """Lines about what has happened, those after the first `behind`, as far as they are still known."""
        return self._news[max(0, behind - self._forgotten) :]

    async def told(self) -> int:
        """How many lines there have been."""
        return self._forgotten + len(self._news)

    def _say(self, line: str) -> None:
        super()._say(line)
        if len(self._news) > _NEWS:
            self._forgotten += _NEWS // 2
            del self._news[: _NEWS // 2]

    def _write(self, *facts: Fact) -> None:
        super()._write(*facts)
        for fact in facts:
            self._remember(fact)

    def _remember(self, fact: Fact) -> None:
        """Know how jobs have ended."""
        match fact:
            case Cancelled(job_id=job_id):
                self.ends[job_id] = ("cancelled", "")
                self._forget(job_id)
            case Failed(job_id=job_id, where=where, problem=problem):
                self.ends.setdefault(job_id, ("failed", f"{where}: {problem}"))
                self._forget(job_id)
            case Departed(job_id=job_id):
                runner = self._runners[job_id]
                if runner.iteration == runner.spec.iterations:
                    self.ends.setdefault(job_id, ("done", ""))

    def _recall(self, runner: Runner, record: RunRecord) -> None:
        super()._recall(runner, record)
        job_id = runner.spec.id
        ends: list[Cancelled | Failed] = [*record.cancelled, *record.failed]
        for ended in ends:
            if ended.job_id == job_id:
                self._remember(ended)
        if runner.done == runner.spec.iterations:
            self.ends.setdefault(job_id, ("done", ""))
        last = [done.metrics for done in record.iterations if done.job_id == job_id]
        if last:
            self.metrics_of[job_id] = last[-1]

    async def _keep(self) -> None:
        """Keep logs in bounds and gauges new."""
        while True:
            await asyncio.sleep(_KEEPS_S)
            self._gauge()
            await asyncio.to_thread(trim, Path(self._plan.folder) / LOGS)

    def _gauge(self) -> None:
        now = make_report(self)
        for pool, found in now["pools"].items():
            for state in ("busy", "idle", "free"):
                self._metrics.write("rollmux_nodes", found[state], pool=pool, state=state)
            self._metrics.write("rollmux_pool_utilization", found["utilization"], pool=pool)
        self._metrics.write("rollmux_queue_length", len(now["queue"]))
        for state, count in now["states"].items():
            self._metrics.write("rollmux_jobs", count, state=state)
