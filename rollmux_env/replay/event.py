"""The event replay: every phase is an event with a sampled duration, and a group's dispatcher decides which phase starts.

Placements are decided as in the fluid replay, by the same policy through the same plans and events, at arrivals and departures. The
difference is progress: the policy sees the iterations that jobs have finished, and nothing of the future; the jobs that it sees
have no `drift`.

- A job enters its group at the next meta-iteration. It departs at the end of an iteration (sync included): the last of its
  `iterations`, or the first that ends after its `duration_s`, so that every job does at least one.
- A moved job drops its unfinished iterations: it continues from the last finished one, as after a restart from a checkpoint. It
  becomes the last member of its new group at once, also for the dispatcher, and enters at the first meta-iteration after its pause.
- A switch is part of the phase that it delays, but is not running time: `utilization` does not count it. The first rollout and the
  first training of a job in a placement have a cold start. Later phases have a warm start if one of their nodes last ran another
  job.
- The phases of a job with a model take what its simulated responses take (`rollmux_env.rollout`), under a rollout policy. A rollout
  releases its nodes when its last response has ended; the next phase waits for its last reward.
- If the dispatch policy migrates tails, the simulated responses, or `rollmux_env.timing.tail` for a job without a model, determine
  when a rollout reaches its threshold, how fast a tail runs on its share of the nodes, and how fast a rollout runs beside a tail. A
  rollout over several nodes is as slow as on a shared one. Switches are not slowed. Rollouts that neither migrate nor run beside a
  tail are unaffected.
- A parked job leaves at the end of its iteration, with a checkpoint and without untrained samples. Until then the policy is not
  asked, so that the place which is meant for another job is kept free. It continues when its pause after the next placement ends.
- After the last of its `iterations` rollouts the turns of a job on rollout nodes are skipped. When a job departs, moves or dies,
  the phases that it runs, and samples that are not trained, are dropped.
- With `cluster.network`, concurrent syncs share the link max-min fairly. The syncs of one job run one after the other.
- With `Failures`, a job that dies leaves its group at once and arrives again with its remaining work since the last checkpoint. The
  policy places it again, and it begins when `migration_s` is over, with cold starts. A node that dies kills all jobs placed on it;
  a replacement is available at once. While the scheduler is away, running phases continue to their ends, and nothing begins. When
  it returns, it receives all facts that it missed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from rollmux_env.cluster.plan import Policy
from rollmux_env.errors import InputError, PlanError
from rollmux_env.replay.checks import check_state
from rollmux_env.replay.dying import Dying, FailureTimes
from rollmux_env.replay.failures import NEVER, Failures
from rollmux_env.replay.replayed import ReplayedJob
from rollmux_env.replay.run import Arrivals, Run, initial_state, placements, waits_for_ever
from rollmux_env.replay.running_jobs import RunningJobs
from rollmux_env.replay.sampling import Durations
from rollmux_env.rollout.policy import RolloutPolicy
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.commands import Grant, StartJob, Vacate, YieldPlace
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.ticks import INSTANT_S
from rollmux_env.scheduler.view import DispatchPolicy
from rollmux_env.timing.tail import TailModel

MAX_PHASES, MAX_KEPT_PHASES = 20_000_000, 1_000_000  # limits without and with kept phases: a minute or two, and 1.5 GB
_TOLD = 1 << 16  # number of phases between two reports of progress


@dataclass(frozen=True)
class Watch:
    """Options of how a replay is observed.

    Attributes:
        check: Whether to assert the invariants of `rollmux_env.replay.checks` whenever placements may have changed.
        most_phases: Largest number of phases, or None for `MAX_PHASES`, or `MAX_KEPT_PHASES` with `keep_phases`.
        report: Callback for progress, with the number of phases that have begun and of jobs that have departed.
        keep_phases: Whether to fill `Run.phases`.
    """

    check: bool = False
    most_phases: int | None = None
    report: Callable[[int, int], None] = lambda phases, departed: None
    keep_phases: bool = False

    @property
    def most(self) -> int:
        """Largest number of phases."""
        return self.most_phases or (MAX_KEPT_PHASES if self.keep_phases else MAX_PHASES)


def replay_events(
    scenario: Scenario,
    policy: Policy,
    dispatch: DispatchPolicy,
    seed: int,
    watch: Watch = Watch(),
    tails: TailModel | None = None,
    rollout: RolloutPolicy | None = None,
    failures: Failures | None = None,
) -> Run:
    """Replay a scenario under a placement and a dispatch policy, phase by phase.

    Args:
        scenario: Scenario to replay.
        policy: Placement policy.
        dispatch: Dispatch policy.
        seed: Seed of the sampled durations, which depend only on it, the job's id, the iteration and the phase.
        watch: Options of how the replay is observed.
        tails: Model of the rollouts of jobs without a model, for dispatch policies that migrate tails, or None for `TailModel()`.
        rollout: Rollout policy of jobs with a model, or None if their phases take the worst case.
        failures: Failures to inject, or None.

    Raises:
        InputError: If there are too many phases, or a script of failures names a job that the scenario does not have.
        PlanError: If the policy broke an invariant, or left jobs waiting and no event remains.
    """
    if failures is not None:
        failures.check_jobs(scenario)
    least = sum(2 * (job.iterations or 1) for job in scenario.jobs)
    if least > watch.most:
        raise too_many(f"the jobs have {least:,} phases", watch.most)
    durations = partial(Durations, seed=seed, tails=tails or TailModel(), policy=rollout)
    return _Replay(scenario, policy, dispatch, durations, seed, failures, watch).play()


def too_many(what: str, most: int) -> InputError:
    """Return the error of a replay that would take hours."""
    return InputError(f"event replay: {what}, and {most:,} at most are replayed; --max-phases allows more")


class _Replay:
    def __init__(
        self,
        scenario: Scenario,
        policy: Policy,
        dispatch: DispatchPolicy,
        durations: Callable[..., Durations],
        seed: int,
        failures: Failures | None,
        watch: Watch,
    ) -> None:
        self.run = Run(scenario, initial_state(scenario.cluster, policy, observed=True), solo_s={})
        self.scheduler = Scheduler(self.run.state, policy, dispatch)
        self.run.decision_s = self.scheduler.server.decision_s
        self.scenario_jobs = {job.id: job for job in scenario.jobs}
        shown = tuple(job.model_copy(update={"drift": ()}) for job in scenario.jobs)
        self.arrivals = Arrivals(scenario.model_copy(update={"jobs": shown}))
        self.failures = failures or Failures(every=NEVER)
        self.jobs = RunningJobs(self.run, self.scheduler, self.failures.write_s, watch.keep_phases)
        self.dying = Dying(self.failures, FailureTimes(self.failures, seed, self.arrivals.next_s), self.jobs, self.scheduler)
        if failures is not None:
            self.run.failures = self.dying.log
        self.durations = partial(durations, migration=self.scheduler.members.migration)
        self.watch = watch
        self.begun = 0  # number of phases, and of instants at which placements may have changed
        self.look = min(_TOLD, watch.most + 1)  # value of `begun` at which progress is reported next

    def play(self) -> Run:
        state, jobs, arrivals, scheduler, dying = self.run.state, self.jobs, self.arrivals, self.scheduler, self.dying
        fixed_s = arrivals.next_s  # next instant that is not the end of a phase
        losses, total, fails = dying.log.losses, len(self.run.scenario.jobs), self.run.failures is not None
        while state.departed - len(losses) < total:
            now_s, dies_s = min(jobs.next_s, fixed_s), inf
            if now_s == inf and dying.next_back_s == inf:
                raise PlanError(waits_for_ever(state))
            if fails:
                dies_s = min(dying.times.next_s, dying.next_back_s)
                now_s = min(now_s, dies_s)
            if self.begun >= self.look:
                self._tell(now_s)
            now_s = max(now_s, state.now_s)
            until_s = now_s + INSTANT_S
            now_s = jobs.advance(until_s, now_s)
            is_due = bool(jobs.departing or jobs.parking) or fixed_s <= until_s
            if dies_s <= until_s:
                is_due = dying.kill_nodes(until_s, now_s) or is_due
            if fails and dying.back_s < inf:
                fixed_s = inf
                continue
            if is_due:
                self._place(now_s)
                fixed_s = min(arrivals.next_s, state.pauses.next_end_s(), scheduler.planner.next_s)
                if self.watch.check:
                    check_state(state, arrivals.taken + len(losses) - len(dying.away), scheduler.planner.policy.keeps_slo)
            self._begin_phases(now_s)
        return self.run

    def _begin_phases(self, now_s: float) -> None:
        """Begin the phases that are granted now, and migrate tails."""
        for command in self.scheduler.members.permits(now_s):
            job_run = self.jobs.by_id[command.job_id]
            if isinstance(command, Grant):
                assert command.phase in ("rollout", "training")
                self.begun += 1
                self.jobs.start(job_run, command.phase, now_s)
            else:
                self.jobs.phases.migrate(job_run, now_s)

    def _tell(self, now_s: float) -> None:
        """Report progress, and raise an error if the replay would take hours."""
        most = self.watch.most
        if self.begun > most:
            raise too_many(f"more than {most:,} phases have begun after {now_s / 3600:,.1f} h", most)
        self.watch.report(self.begun, self.run.state.departed - len(self.dying.log.losses))
        self.look = min(self.begun + _TOLD, most + 1)

    def _place(self, now_s: float) -> None:
        """Handle departures, ends of pauses, the queue and arrivals, as in every replay."""
        self.begun += 1
        run, scheduler, jobs = self.run, self.scheduler, self.jobs
        assert run.solo_s is not None
        departing, jobs.departing = jobs.departing, []
        for job_run in jobs.parking:
            jobs.leave(job_run)
        jobs.parking = []
        for job_run in sorted(departing, key=lambda job_run: job_run.row):
            run.solo_s[job_run.job.id] = job_run.durations.solo_s(job_run.iteration)
            jobs.leave(jobs.by_id.pop(job_run.job.id))
        for command in placements(run, scheduler, now_s, self.arrivals):
            match command:
                case StartJob(job_id=job_id, seating=seating):
                    begins_again = job_id in self.dying.again
                    job_run = self._job_run(job_id)
                    jobs.enter(job_run, seating)
                    self.dying.times.begin(job_id, seating, now_s)
                    if begins_again:
                        jobs.phases.wake(job_run, now_s + run.scenario.cluster.migration_s, "restart")
                    else:
                        jobs.report_ready(job_run)
                case YieldPlace(job_id=job_id):
                    jobs.by_id[job_id].parks = True
                case Vacate(job_id=job_id):
                    job_run = jobs.by_id[job_id]
                    job_run.checkpoints.saved = job_run.checkpoints.writes = job_run.iteration  # a move writes a checkpoint
                    jobs.cut(job_run, now_s)
                    scheduler.jobs.vacated(job_id, job_run.progress())

    def _job_run(self, job_id: str) -> ReplayedJob:
        """Return the running job of an id, or begin it."""
        if (running := self.jobs.by_id.get(job_id)) is not None:
            return running
        row = self.run.state.row(job_id)
        if (last := self.dying.again.pop(job_id, None)) is not None:
            return ReplayedJob(last.job, row, last.durations, last.checkpoints.saved, last.checkpoints.every)
        job = self.scenario_jobs[job_id]
        return ReplayedJob(job, row, self.durations(job), 0, self.failures.interval(job))
