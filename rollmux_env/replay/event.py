"""The event replay: every phase is an event with a sampled duration, and a group's dispatcher decides what starts.

Placements are decided as in the fluid replay, by the same policy through the same plans and events, at arrivals and departures.
What differs is progress: the policy sees the iterations that jobs have finished, and nothing of what has not happened; the jobs
that it is shown have no `drift`.

- A job enters its group at the next meta-iteration. It leaves at the end of an iteration (sync included): the last of its
  `iterations`, or the first that ends when its `duration_s` is over, so that every job does at least one.
- A moved job drops the iteration in hand: it goes on from its last finished one, as after any restart from a checkpoint. It is the
  last member of its new group at once, for the dispatcher too, and enters at the first meta-iteration after its pause.
- A switch is part of the phase that it delays, but is no running time: `utilization` does not count it. A cold start is added to
  the first rollout and to the first training of a job in a placement, else a warm one where a node last ran another job.
- The phases of a job with a model take what its simulated responses take (`rollmux_env.rollout`), under a rollout policy. A rollout
  gives its nodes back when its last response has ended; what comes next waits for its last reward.
- Where the dispatch policy migrates tails, they, or `rollmux_env.timing.tail` for a job without a model, say when a rollout's
  threshold is reached and how fast things go: a tail on its share of the nodes, and a rollout beside one until the tail is over. A
  rollout over several nodes is as slow as on the one that is shared. Switches take as long as ever. What nobody migrates takes
  exactly what it takes without all this.
- After the last of its `iterations` rollouts the turns of a job on rollout nodes are skipped. What it runs when it leaves, or has
  sampled and not trained, is dropped; so it is when it moves or dies.
- With `cluster.network` the syncs that are on the link at once share it, max-min fair. The syncs of one job follow one another.
- With `Failures`, a job that dies leaves its group at once and arrives anew, with what it has left since its last checkpoint: the
  policy places it again, and it begins when `migration_s` is over, with cold starts. A node that dies takes all jobs along that
  have their place on it; another one is there in its stead. While the scheduler is away, phases that run go on to their ends, and
  nothing begins: it is told all that has happened when it is back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from rollmux_env.cluster.plan import Policy, plans_switches
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.replay.checks import check_state
from rollmux_env.replay.dying import Dying, FailureTimes
from rollmux_env.replay.failures import NEVER, Failures
from rollmux_env.replay.replayed import ReplayedJob
from rollmux_env.replay.run import Arrivals, Run, placements, waits_for_ever
from rollmux_env.replay.running_jobs import RunningJobs
from rollmux_env.replay.sampling import Durations
from rollmux_env.rollout.policy import RolloutPolicy
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.commands import Grant, Move, Place
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.planner import INSTANT_S
from rollmux_env.scheduler.view import DispatchPolicy
from rollmux_env.timing.tail import TailModel

MOST_PHASES, MOST_KEPT = 20_000_000, 1_000_000  # of a replay, and of one that keeps them: a minute or two, 1.5 GB
_TOLD = 1 << 16  # phases between two words about them


@dataclass(frozen=True)
class Watch:
    """What is done beside a replay.

    Attributes:
        check: assert the invariants of `rollmux_env.replay.checks` whenever placements may have changed.
        most_phases: that may begin; None is `MOST_PHASES`, or `MOST_KEPT` where they are kept.
        tell: is told now and then how many have begun, and how many jobs have left.
        keep_phases: fill `Run.phases`.
    """

    check: bool = False
    most_phases: int | None = None
    tell: Callable[[int, int], None] = lambda phases, departed: None
    keep_phases: bool = False

    @property
    def most(self) -> int:
        """Phases that may begin."""
        return self.most_phases or (MOST_KEPT if self.keep_phases else MOST_PHASES)


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
        seed: of the sampled durations; they depend on it, the job's id, the iteration and the phase alone.
        tails: the inside of rollouts of jobs without a model, for dispatch policies that migrate tails; None is `TailModel()`.
        rollout: what happens inside the rollouts of jobs with a model; None: they take their worst case.
        failures: what dies; None: nothing does.

    Raises:
        InputError: there are more phases than the watch allows, or a script of failures has another job; one line.
        PlanError: the policy broke an invariant, or left jobs waiting that nothing can wake.
    """
    if failures is not None:
        failures.check_jobs(scenario)
    least = sum(2 * (job.iterations or 1) for job in scenario.jobs)
    if least > watch.most:
        raise too_many(f"the jobs have {least:,} phases", watch.most)
    return _Replay(scenario, policy, dispatch, seed, tails or TailModel(), rollout, failures, watch).play()


def too_many(what: str, most: int) -> InputError:
    """The error of a replay that would go on for hours."""
    return InputError(f"event replay: {what}, and {most:,} at most are replayed; --max-phases allows more")


class _Replay:
    def __init__(
        self,
        scenario: Scenario,
        policy: Policy,
        dispatch: DispatchPolicy,
        seed: int,
        tails: TailModel,
        rollout: RolloutPolicy | None,
        failures: Failures | None,
        watch: Watch,
    ) -> None:
        self.run = Run(scenario, State(scenario.cluster, True, plans_switches(policy)), solo_s={})
        self.scheduler = Scheduler(self.run.state, policy, dispatch)
        self.run.decision_s = self.scheduler.planner.decision_s
        self.scenario_jobs = {job.id: job for job in scenario.jobs}
        shown = tuple(job.model_copy(update={"drift": ()}) for job in scenario.jobs)
        self.arrivals = Arrivals(scenario.model_copy(update={"jobs": shown}))
        self.failures = failures or Failures(every=NEVER)
        self.jobs = RunningJobs(self.run, self.scheduler, self.failures.write_s, watch.keep_phases)
        self.dying = Dying(self.failures, FailureTimes(self.failures, seed, self.arrivals.next_s), self.jobs, self.scheduler)
        if failures is not None:
            self.run.failures = self.dying.log
        self.durations = partial(Durations, seed=seed, tails=tails, migration=self.scheduler.members.migration, policy=rollout)
        self.watch = watch
        self.begun = 0  # phases, and instants at which placements may have changed
        self.look = min(_TOLD, watch.most + 1)  # phases at which there is something to say next

    def play(self) -> Run:
        state, jobs, arrivals, scheduler, dying = self.run.state, self.jobs, self.arrivals, self.scheduler, self.dying
        fixed_s = arrivals.next_s  # of the next instant that no phase brings about
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
            is_due = bool(jobs.departing) or fixed_s <= until_s
            if dies_s <= until_s:
                is_due = dying.strike(until_s, now_s) or is_due
            if fails and dying.back_s < inf:
                fixed_s = inf
                continue
            if is_due:
                self._place(now_s)
                fixed_s = min(arrivals.next_s, state.pauses.next_end_s(), scheduler.planner.ticks.next_s)
                if self.watch.check:
                    check_state(state, arrivals.taken + len(losses) - len(dying.away), scheduler.planner.policy.keeps_slo)
            for command in scheduler.members.permits(now_s):
                job_run = jobs.by_id[command.job_id]
                if isinstance(command, Grant):
                    assert command.phase in ("rollout", "training")
                    self.begun += 1
                    jobs.start(job_run, command.phase, now_s)
                else:
                    jobs.phases.migrate(job_run, now_s)
        return self.run

    def _tell(self, now_s: float) -> None:
        """Say how far the replay is, and end one that would go on for hours."""
        most = self.watch.most
        if self.begun > most:
            raise too_many(f"more than {most:,} phases have begun after {now_s / 3600:,.1f} h", most)
        self.watch.tell(self.begun, self.run.state.departed - len(self.dying.log.losses))
        self.look = min(self.begun + _TOLD, most + 1)

    def _place(self, now_s: float) -> None:
        """Departures, pauses that end, the queue and arrivals, as in every replay."""
        self.begun += 1
        run, scheduler, jobs = self.run, self.scheduler, self.jobs
        assert run.solo_s is not None
        departing, jobs.departing = jobs.departing, []
        for job_run in sorted(departing, key=lambda job_run: job_run.row):
            run.solo_s[job_run.job.id] = job_run.durations.solo_s(job_run.iteration)
            jobs.leave(jobs.by_id.pop(job_run.job.id))
        for command in placements(run, scheduler, now_s, self.arrivals):
            match command:
                case Place(job_id=job_id, seating=seating):
                    begins_again = job_id in self.dying.again
                    job_run = self._job_run(job_id)
                    jobs.enter(job_run, seating)
                    self.dying.times.begin(job_id, seating, now_s)
                    if begins_again:
                        jobs.phases.wake(job_run, now_s + run.scenario.cluster.migration_s, "restart")
                    else:
                        jobs.tell(job_run)
                case Move(job_id=job_id):
                    job_run = jobs.by_id[job_id]
                    job_run.saved = job_run.writes = job_run.iteration  # it leaves with a checkpoint
                    jobs.cut(job_run, now_s)
                    scheduler.jobs.vacated(job_id, job_run.progress())

    def _job_run(self, job_id: str) -> ReplayedJob:
        """A job that runs, or begins to."""
        if (running := self.jobs.by_id.get(job_id)) is not None:
            return running
        row = self.run.state.row(job_id)
        if (last := self.dying.again.pop(job_id, None)) is not None:
            return ReplayedJob(last.job, row, last.durations, last.saved, last.every)
        job = self.scenario_jobs[job_id]
        return ReplayedJob(job, row, self.durations(job), 0, self.failures.interval(job))
