"""The driver of a run: it composes a scheduler, a journal and the processes of jobs, and begins or continues the run."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from time import monotonic, time

from policies.registry import make_runnable, observed_state
from rollmux_env.cluster.plan import Policy
from rollmux_env.errors import PlanError
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.replay.run import initial_state, waits_for_ever
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.nodes import NodePool
from runtime.coordinator.arrivals import Arrivals
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.lifecycle import JobLifecycle, ProcessBackend, ProcessBackends
from runtime.coordinator.profiles import versions
from runtime.coordinator.profiling import Profiling
from runtime.coordinator.run_log import RunLog
from runtime.coordinator.run_loop import RunLoop, RunObserver
from runtime.coordinator.run_plan import RunPlan
from runtime.coordinator.solo import SoloIterations
from runtime.jobs.spec import JobSpec, OwnersJob
from runtime.journal import facts as journal_facts
from runtime.journal.leases import RecalledLeases
from runtime.journal.record import RunRecord
from runtime.journal.replay import assigned_nodes
from runtime.journal.rollover import ROLLED_OVER
from runtime.journal.write import name_in_errors, read_facts, record_of, state_of
from runtime.output import LOGS, trim
from runtime.owners.http.iterations import Iterations
from runtime.owners.http.leases import Leases
from runtime.owners.http.ledger import Ledger
from runtime.owners.http.patrol import patrol
from runtime.owners.http.places import problem_of_names
from runtime.owners.http.processes import AttachedProcesses, CommandProcesses
from runtime.owners.http.recall import continue_leases, recall_leases
from runtime.owners.ray.calls import JobCalls
from runtime.run.resume import resume_run

_TRIMS_S = 0.5  # interval at which logs of jobs are trimmed


class RunDriver:
    """A run. All its work happens in the event loop in which it was made.

    Args:
        plan: Plan of the run.
        processes: Backend of the processes of jobs with a task or a class, or None without Ray. The driver has the other backends.
        keeps_running: Whether the run continues when its jobs have ended: more may be submitted, and jobs that break their SLO
            are moved.
        observer: Observer of facts and commands, or None.

    Attributes:
        run: The run.
        lifecycle: Starts, moves and ends of jobs.
        arrivals: Arrivals of jobs.
        calls: Calls of jobs' controllers.
        leases: Leases of attached jobs.
        commands: Processes of jobs with a command.
        record: Record of the run that continues, or None for a new one.
        has_begun: Whether the run has begun, or continued: its first facts are in the journal.
        rolls_over: Whether the run ends for the next part of its journal.

    Raises:
        InputError: If a policy or the folder cannot be used; one line.
        PlanError: If the policy breaks an invariant.
    """

    def __init__(
        self, plan: RunPlan, processes: ProcessBackend | None, keeps_running: bool = False, observer: RunObserver | None = None
    ) -> None:
        _rehearse(make_runnable(plan.policy, plan.seed))
        self.record: RunRecord | None = None
        self._recalled: RecalledLeases | None = None  # until the run continues
        self.has_begun = self.rolls_over = False
        log = self._log = RunLog(plan) if observer is None else RunLog(plan, observer.on_entries)
        nodes, state = NodePool(plan.nodes), observed_state(plan.policy, plan.cluster)
        try:
            if plan.resume:
                path = log.journal.path
                facts = plan.facts
                if facts is None or len(facts) != log.journal.length:
                    facts = read_facts(path)  # also if its last writer was still at work when they were read
                with name_in_errors(path):
                    self.record, self._recalled = record_of(facts), RecalledLeases(facts)
                    state, nodes = state_of(self.record), assigned_nodes(self.record, plan.nodes)
            run = self.run = RunLoop(plan, log, state, nodes, keeps_running, observer)
        except BaseException:
            log.journal.close()
            raise
        self._ledger = Ledger(run)
        profiling = Profiling(run)
        self._solo = SoloIterations(run) if plan.compare else None
        self.arrivals = Arrivals(run, profiling)
        iterations = Iterations(self._ledger, profiling)
        self.leases, self.commands = Leases(iterations), CommandProcesses(iterations)
        self._processes = ProcessBackends(processes, AttachedProcesses(self._ledger), self.commands)
        self.lifecycle = JobLifecycle(run, self._processes)
        self.calls = JobCalls(run, self.lifecycle, profiling, self._solo)

    def _begin(self) -> None:
        run, log, plan = self.run, self._log, self.run.plan
        if self.record is not None and self._recalled is not None:
            last_s = self.record.last_s
            log.zero_s = monotonic() - last_s  # the clock continues from the last time in the journal
            log.write(journal_facts.RunRelaunched(last_s, time(), plan.nodes, versions()))
            recall_leases(self._ledger, self._recalled.last)
            resume_run(run, self.lifecycle.node_changes, self.record, self._recalled)
            self.lifecycle.carry_out_now()  # leases refer to places, which jobs must have first
            continue_leases(self._ledger, self.record.given_up, self.record.reported_done)
            self.lifecycle.planned_drains.recall(self.record.planned_drains)
            self._recalled = None
            if run.keeps_running and (more := [node for node in plan.nodes if node.name not in self.record.nodes]):
                self.lifecycle.node_changes.join(more, compares=self._processes.has_own)
        else:
            log.zero_s = monotonic()
            names = plan.policy, plan.dispatch
            started = journal_facts.RunStarted(0.0, time(), *names, plan.cluster, plan.nodes, versions(), plan.seed)
            log.write(started, *(journal_facts.JobSubmitted(0.0, spec) for spec in plan.specs))
        log.begin(run.on_written, run.fail)
        if not run.keeps_running:
            self._refuse_beyond_quotas()
        state = run.scheduler.state
        placed_ids = {*state.waiting, *run.scheduler.members.seats}
        absent = (handle for handle in run.handles.values() if not handle.life.is_gone and handle.id not in placed_ids)
        coming = [handle for handle in absent if not handle.place.awaits_owner]
        run.coming = len(coming)
        works = [self.arrivals.bring_all(coming), *([] if self._solo is None else [self._solo.measure()])]
        works += [self.lifecycle.carry_out(), self.lifecycle.patrol(), patrol(self._ledger), self._tick(), run.write_again()]
        for work in (*works, self._keep_logs(), self.lifecycle.planned_drains.follow()):
            run.spawn(work)

    def _refuse_beyond_quotas(self) -> None:
        """Refuse jobs that exceed their user's quota, which no one changes in a run."""
        run = self.run
        for handle in run.handles.values():
            if not handle.life.is_gone and (problem := run.capacity.beyond_quota(handle.spec)):
                run.refuse(handle, problem)

    async def carry_out(self) -> str:
        """Run until the end.

        Returns:
            Outcome: `done`, `stopped` or `rolled over`.

        Raises:
            InputError: If the run cannot continue; one line.
            PlanError: If the policy broke an invariant.
            InvariantError: If the scheduler broke an invariant.
        """
        run, log = self.run, self._log
        try:
            self._begin()
            self.has_begun = True
            outcome = await run.over
            if outcome == "stopped":
                log.write(*run.scheduler.close(log.now()))
                log.write(journal_facts.RunEnded(log.now(), ROLLED_OVER if self.rolls_over else "stopped"))
                outcome = ROLLED_OVER if self.rolls_over else outcome  # also if that is not in the journal: the service continues
            else:
                log.write(journal_facts.RunEnded(log.now(), "done"))
            await run.written()
            await log.end()
            if log.problem is not None:
                log.say("the run ends anyway: work that is not in the journal is repeated when the run continues")
            return "stopped" if log.problem is not None and not self.rolls_over else outcome
        finally:
            for task in run.tasks:
                task.cancel()
            await self._processes.close()
            await log.close()

    async def _keep_logs(self) -> None:
        """Limit the size of jobs' logs; owners that have attached print elsewhere."""
        logs = Path(self.run.plan.folder) / LOGS
        while True:
            print_here = [logs / handle.id for handle in self.run.handles.values() if not isinstance(handle.spec, OwnersJob)]
            if print_here:
                await asyncio.to_thread(trim, print_here)
            await asyncio.sleep(_TRIMS_S)

    async def _tick(self) -> None:
        """Wake a policy that asks for ticks, or that may park a job when it has had its place for long enough."""
        planner = self.run.scheduler.planner
        while planner.ticks.every_s is not None or (planner.rules is not None and planner.rules.park):
            wait_s = planner.next_s - self.run.log.now()
            await asyncio.sleep(min(max(wait_s, 0.0), 1.0))
            if wait_s <= 0 and not self.run.stopping:
                await self.run.written()
                self.run.apply(Consequences(), wakes=True)

    def lacks(self, spec: JobSpec) -> str | None:
        """Return what a job needs and this run does not have, or None.

        Args:
            spec: The job.
        """
        if not spec.is_attached and not self._processes.has_own:
            return "needs Ray, and this service was started with --no-ray"
        return problem_of_names(self.run, spec)

    @property
    def is_quiet(self) -> bool:
        """Whether no job is present, no node or process of one may be in use, and the run could begin again with its nodes.

        Without a node of each pool, as when an autoscaler has removed them, a start on Ray is refused.
        """
        run, state = self.run, self.run.scheduler.state
        if not all(map(run.nodes.count, state.cluster.sides)):
            return False
        gone = not run.coming and not run.watched and all(handle.life.is_gone for handle in run.handles.values())
        return gone and not (state.waiting or state.tables.order.size or self.leases.ledger.suspect_nodes())

    def roll_over(self) -> None:
        """Stop a quiet run so that its journal continues in a next part."""
        self.rolls_over = True
        self.stop()

    def stop(self) -> None:
        """Give no more permits: every job stops at its next phase boundary."""
        self.run.stop()
        self.leases.stop()
        self.run.check_end()


def _rehearse(policy: Policy) -> None:
    """Let a policy decide about a few jobs, so that its code is compiled before a real job waits for it.

    Raises:
        PlanError: If the policy breaks an invariant, or does not place the jobs.
    """
    pool = Pool(gpus_per_node=1, usd_per_gpu_hour=1.0)
    phase, training = Phase(worst_case_s=1.0), Training(worst_case_s=1.0)
    jobs = tuple(Job(id=f"job{k}", arrival_s=float(k), iterations=4, slo=3.0, rollout=phase, training=training) for k in range(3))
    state = initial_state(Cluster(rollout=pool, training=pool, migration_s=1.0), policy)
    scheduler = Scheduler(state, policy)
    for job in jobs:
        scheduler.jobs.arrived(job)
        deque(scheduler.placements(job.arrival_s), 0)
    if state.waiting:
        raise PlanError(waits_for_ever(state))
    now_s = state.next_change_s()
    scheduler.jobs.end_stays(now_s)
    deque(scheduler.placements(now_s), 0)  # about a departure
