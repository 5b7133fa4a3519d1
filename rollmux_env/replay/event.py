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
  gives its nodes back when its last response has ended; the training, and a stale job's next rollout, wait for its last reward.
- Where the dispatch policy migrates tails, they, or `rollmux_env.timing.tail` for a job without a model, say when a rollout's
  threshold is reached and how fast things go: a tail on its share of the nodes, and a rollout beside one until the tail is over. A
  rollout over several nodes is as slow as on the one that is shared. Switches take as long as ever. What nobody migrates takes
  exactly what it takes without all this.
- A stale job's rollouts go on while it trains, each with the weights that are there when it begins; none waits for newer ones than
  its `staleness` asks for. After the last of its `iterations` rollouts its turns on rollout nodes are skipped. What it runs when it
  leaves, or has sampled and not trained, is dropped; so it is when it moves or dies.
- With `cluster.network` the syncs that are on the link at once share it, max-min fair. The syncs of one job follow one another.
- With `Failures`, a job that dies leaves its group at once and arrives anew, with what it has left since its last checkpoint: the
  policy places it again, and it begins when `migration_s` is over, with cold starts. A node that dies takes all jobs along that
  have their place on it; another one is there in its stead. While the scheduler is away, phases that run go on to their ends, and
  nothing begins: it is told all that has happened when it is back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import cast

from rollmux_env.cluster.events import Progress
from rollmux_env.cluster.plan import Policy, plans_switches
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.network.link import SharedLink
from rollmux_env.network_keys import own_rate_gbps
from rollmux_env.replay.checks import check_sample, check_state
from rollmux_env.replay.failures import NEVER, AbsentScheduler, Failure, FailureLog, Failures, FailureTimes, Loss
from rollmux_env.replay.replayed import TRAINING_POOL, ReplayedGroup, ReplayedJob
from rollmux_env.replay.run import Arrivals, Run, placements, waits_for_ever
from rollmux_env.replay.running_phases import RunningPhases
from rollmux_env.replay.sampling import Durations
from rollmux_env.rollout.policy import RolloutPolicy
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.commands import Grant, Move, Place
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.dispatcher import DispatchPolicy
from rollmux_env.scheduler.members import PhaseName
from rollmux_env.scheduler.planner import INSTANT_S
from rollmux_env.timing.tail import TailModel

MOST_PHASES, MOST_KEPT = 20_000_000, 1_000_000  # of a replay, and of one that keeps them: a minute or two, 1.5 GB
_TOLD = 1 << 16  # phases between two words about them
_SHORTEST_S = 1e-3  # stay of a job that dies in an iteration that it has begun when its stay was not yet over


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
        InputError: there are more phases than the watch allows; one line.
        PlanError: the policy broke an invariant, or left jobs waiting that nothing can wake.
    """
    most = watch.most_phases or (MOST_KEPT if watch.keep_phases else MOST_PHASES)
    least = sum(2 * (job.iterations or 1) for job in scenario.jobs)
    if least > most:
        raise too_many(f"the jobs have {least:,} phases", most)
    replaying = _Replay(scenario, policy, dispatch, seed, tails or TailModel(), rollout, failures, watch.keep_phases)
    return replaying.play(watch, most)


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
        keeps: bool,
    ) -> None:
        self.run = Run(scenario, State(scenario.cluster, True, plans_switches(policy)), solo_s={})
        self.scheduler = Scheduler(self.run.state, policy, dispatch)
        self.run.decision_s = self.scheduler.planner.decision_s
        self.policy = policy
        self.seed = seed
        self.tails = tails
        self.rollout = rollout
        self.failures = failures
        self.jobs = {job.id: job for job in scenario.jobs}
        shown = tuple(job.model_copy(update={"drift": ()}) for job in scenario.jobs)
        self.arrivals = Arrivals(scenario.model_copy(update={"jobs": shown}))
        self.phases = RunningPhases(self.run, self.scheduler.migration, keeps)
        self.begun = 0  # phases, and instants at which placements may have changed
        self.running: dict[str, ReplayedJob] = {}
        self.groups: dict[int, ReplayedGroup] = {}
        self.departing: list[ReplayedJob] = []
        network = scenario.cluster.network
        self.link: SharedLink[ReplayedJob] | None = None if network is None else SharedLink(network.link_gbps)
        self.times: FailureTimes | None = None
        if failures is not None:
            self.times, self.run.failures = FailureTimes(failures, seed, self.arrivals.next_s), FailureLog()
        self.back_s = inf  # when the scheduler is back; infinite while it is there
        self.absent = AbsentScheduler()
        self.listener = self.scheduler  # or what takes its place meanwhile
        self.again: dict[str, ReplayedJob] = {}  # jobs that have died and have no place yet, as they were

    def play(self, watch: Watch, most_phases: int) -> Run:
        state, phases, arrivals, scheduler, times = self.run.state, self.phases, self.arrivals, self.scheduler, self.times
        link = self.link
        look = min(_TOLD, most_phases + 1)
        fixed_s = arrivals.next_s  # of the next instant that no phase brings about
        while state.departed - self.restarts < len(self.run.scenario.jobs):
            now_s = min(phases.next_s, fixed_s)
            if times is not None:
                now_s = min(now_s, self.back_s)
            if link is not None:
                now_s = min(now_s, link.next_s)
            if now_s == inf:
                raise PlanError(waits_for_ever(state))
            if times is not None:
                now_s = min(now_s, times.next_s)
            if self.begun >= look:
                if self.begun > most_phases:
                    raise too_many(f"more than {most_phases:,} phases have begun after {now_s / 3600:,.1f} h", most_phases)
                watch.tell(self.begun, state.departed - self.restarts)
                look = min(self.begun + _TOLD, most_phases + 1)
            now_s = max(now_s, state.now_s)
            until_s = now_s + INSTANT_S
            while (ended := phases.next_ended(until_s)) is not None:
                end_s, job_run, what = ended
                now_s = max(now_s, end_s)
                if self._end(job_run, what, end_s):
                    self.departing.append(job_run)
            if link is not None:
                now_s = max(now_s, self._synced(link, until_s))
            is_due = bool(self.departing) or fixed_s <= until_s
            if times is not None:
                is_due = self._fail(times, until_s, now_s) or is_due
                if self.back_s < inf:
                    fixed_s = inf
                    continue
            if is_due:
                self._place(now_s)
                fixed_s = min(arrivals.next_s, state.next_resume_s(), scheduler.planner.ticks.next_s)
                if watch.check:
                    check_state(state, arrivals.taken + self.restarts, self.policy.keeps_slo)
            for command in scheduler.permits(now_s):
                job_run = self.running[command.job_id]
                if isinstance(command, Grant):
                    self._start(job_run, cast("PhaseName", command.phase), now_s)
                else:
                    self.phases.migrate(job_run, now_s)
        return self.run

    def _start(self, job_run: ReplayedJob, phase: PhaseName, now_s: float) -> None:
        """A phase has its permit."""
        self.begun += 1
        if phase == "rollout":
            if job_run.sampled >= len(job_run.durations.rollout):
                job_run.durations.extend()
            if job_run.staleness:
                job_run.versions.append(job_run.weights)
        elif job_run.staleness:
            check_sample(job_run.job, job_run.trained, job_run.versions.popleft())
        self.phases.start(job_run, phase, now_s)

    def _end(self, job_run: ReplayedJob, what: str, now_s: float) -> bool:
        """What a job waited for is over; whether the job leaves now."""
        job_id = job_run.job.id
        match what:
            case "rollout":
                frees = self.phases.is_tail(job_run)
                self.listener.finished(job_id, "rollout", self.phases.book(job_run, "rollout", now_s))
                if frees:
                    self.phases.after_tail(job_run, now_s)
                if (rewarding_s := job_run.durations.rewarding_s(job_run.sampled, frees)) > 0.0:
                    job_run.rewarding = True
                    self.phases.wake(job_run, now_s + rewarding_s, "rewards")
                else:
                    self._rewarded(job_run)
            case "rewards":
                job_run.rewarding = False
                self._rewarded(job_run)
            case "training":
                self.listener.finished(job_id, "training", self.phases.book(job_run, "training", now_s))
                job_run.trained += 1
                if job_run.sync_s > 0.0:
                    self._sync(job_run, now_s)
                    if job_run.staleness:
                        self._tell(job_run)
                else:
                    return self._iterate(job_run, now_s)
            case "sync":
                return self._iterate(job_run, now_s)
            case "threshold":
                self.listener.threshold(job_id)
                self.phases.pass_threshold(job_run, now_s)
            case "checkpoint":
                self._save(job_run)
                self._tell(job_run)
            case "restart":
                self._tell(job_run)
        return False

    def _rewarded(self, job_run: ReplayedJob) -> None:
        """A rollout has all that is trained on."""
        job_run.sampled += 1
        if not job_run.staleness:
            self.listener.ready(job_run.job.id, "training")
            return
        if job_run.sampled == job_run.last:
            self.listener.sampled(job_run.job.id)
        self._tell(job_run)

    def _sync(self, job_run: ReplayedJob, now_s: float) -> None:
        """New weights are ready to go."""
        if self.link is None or not job_run.crosses:
            self.phases.wake(job_run, now_s + job_run.sync_s, "sync")
        elif job_run in self.link:
            job_run.unsent += 1
        else:
            network = self.run.scenario.cluster.network
            assert network is not None
            self.link.add(job_run, job_run.sync_s, own_rate_gbps(job_run.job, network), now_s)

    def _synced(self, link: SharedLink[ReplayedJob], until_s: float) -> float:
        """Syncs on the link end; returns when the last one does, or 0."""
        last_s = 0.0
        while (ended := link.finish(until_s)) is not None:
            job_run, last_s = ended
            if job_run.unsent:
                job_run.unsent -= 1
                self._sync(job_run, last_s)
            if self._end(job_run, "sync", last_s):
                self.departing.append(job_run)
        return last_s

    def _tell(self, job_run: ReplayedJob) -> None:
        """Tell which phases of a job could begin now: of one between two iterations its rollout; of a stale one the training of
        what is sampled, and the rollout with weights that are fresh enough."""
        if not job_run.staleness:
            self.listener.ready(job_run.job.id, "rollout")
            return
        sampled = job_run.sampled
        if job_run.trainings == job_run.trained < sampled:
            job_run.trainings += 1
            self.listener.ready(job_run.job.id, "training")
        if job_run.rollouts == sampled <= job_run.weights + job_run.staleness and sampled < job_run.last:
            job_run.rollouts += 1
            self.listener.ready(job_run.job.id, "rollout")

    def _iterate(self, job_run: ReplayedJob, now_s: float) -> bool:
        """An iteration is over; whether the job leaves now."""
        job_run.iteration += 1
        done = job_run.iteration == job_run.last or now_s >= job_run.leaves_s - INSTANT_S
        if done or self.run.state.is_over_budget(job_run.job.id, now_s + INSTANT_S):
            self._stop(job_run, now_s)
            self.listener.iterated(job_run.progress())
            self.listener.left(job_run.job.id, not done)
            job_run.placed = False
            return True
        self.listener.iterated(job_run.progress())
        if job_run.iteration - job_run.saved >= job_run.every:
            assert self.failures is not None
            if job_run.writes > job_run.saved:  # the last one is on its way
                self._tell(job_run)
                return False
            job_run.writes = job_run.iteration
            if self.failures.write_s > 0.0:
                self.phases.wake(job_run, now_s + self.failures.write_s, "checkpoint")
                if job_run.staleness:
                    self._tell(job_run)
                return False
            self._save(job_run)
        job_run.weights = job_run.iteration
        self._tell(job_run)
        return False

    def _save(self, job_run: ReplayedJob) -> None:
        """A checkpoint is written; no weights have gone to the rollout nodes meanwhile."""
        assert self.run.failures is not None
        job_run.saved = job_run.writes
        job_run.weights = job_run.iteration
        self.run.failures.checkpoints += 1

    @property
    def restarts(self) -> int:
        """How many jobs have died that the scheduler knows of."""
        return 0 if self.run.failures is None else len(self.run.failures.losses)

    def _fail(self, times: FailureTimes, until_s: float, now_s: float) -> bool:
        """Let die what dies by now, and the scheduler come back; whether there is something to decide about placements."""
        log, before = self.run.failures, self.restarts
        assert log is not None
        back = self.back_s <= until_s
        if back:
            self.back_s, self.listener = inf, self.scheduler
            self.absent.hand_over(self.scheduler)
            times.begin_scheduler(now_s)
        for failure in times.due(until_s):
            if failure.cause == "scheduler":
                assert self.failures is not None
                log.scheduler_s.append(now_s)
                self.back_s = now_s + self.failures.scheduler_down_s
                self.listener = cast("Scheduler", self.absent)
                continue
            struck = self._struck(failure)
            log.nodes += failure.cause == "node" and bool(struck)
            for job_run in struck:
                log.losses.append(Loss(now_s, job_run.job.id, failure.cause, job_run.lost(now_s)))
                self._kill(job_run, now_s)
                times.end(job_run.job.id)
        return back or self.restarts > before

    def _struck(self, failure: Failure) -> list[ReplayedJob]:
        """The jobs that a failure takes along: those that are there, and not those that a move has just taken from their place."""
        if failure.cause == "job":
            job_run = self.running.get(failure.job_id)
            return [job_run] if job_run is not None and job_run.placed else []
        key = failure.number if failure.pool == "rollout" else TRAINING_POOL
        there = [one for one in self.running.values() if one.placed and one.group.number == failure.group]
        return [one for one in there if key == TRAINING_POOL or key in one.keys["rollout"]]

    def _kill(self, job_run: ReplayedJob, now_s: float) -> None:
        """A job dies, and arrives anew with what it has left."""
        job, begins = job_run.job, job_run.saved
        self._cut(job_run, now_s)
        self.listener.failed(job.id)
        done = Progress(job.id, begins - job_run.begins, job_run.busy_s["rollout"], job_run.busy_s["training"])
        self.listener.cleared(job.id, done)
        stay: dict[str, float | int] = {"arrival_s": now_s}
        if job.iterations is not None:
            stay["iterations"] = job.iterations - (begins - job_run.begins)
        else:
            stay["duration_s"] = max(job_run.leaves_s - now_s, _SHORTEST_S)
        job_run.job = job.model_copy(update=stay)
        self.listener.arrived(job_run.job.model_copy(update={"drift": ()}))
        del self.running[job.id]
        self.again[job.id] = job_run

    def _cut(self, job_run: ReplayedJob, now_s: float) -> None:
        """A job does not end what it does, and is in its place no longer."""
        self._stop(job_run, now_s)
        self._leave(job_run)

    def _stop(self, job_run: ReplayedJob, now_s: float) -> None:
        """A job does not end what it does, and loses what it has sampled and not trained."""
        self.phases.cut(job_run, now_s)
        if self.link is not None:
            self.link.drop(job_run, now_s)
        job_run.drop()

    def _place(self, now_s: float) -> None:
        """Departures, pauses that end, the queue and arrivals, as in every replay."""
        self.begun += 1
        run, scheduler = self.run, self.scheduler
        assert run.solo_s is not None
        departing, self.departing = self.departing, []
        for job_run in sorted(departing, key=lambda job_run: job_run.row):
            run.solo_s[job_run.job.id] = job_run.durations.solo_s(job_run.iteration)
            self._leave(self.running.pop(job_run.job.id))
        for command in placements(run, scheduler, now_s, self.arrivals):
            match command:
                case Place(job_id=job_id, seating=seating):
                    begins_again = job_id in self.again
                    job_run = self._runner(job_id)
                    job_run.enter(run.state, self._group(seating.group), seating)
                    if self.times is not None:
                        self.times.begin(job_id, seating, now_s)
                    if begins_again:
                        self.phases.wake(job_run, now_s + run.scenario.cluster.migration_s, "restart")
                    else:
                        self._tell(job_run)
                case Move(job_id=job_id):
                    job_run = self.running[job_id]
                    job_run.saved = job_run.writes = job_run.iteration  # it leaves with a checkpoint
                    self._cut(job_run, now_s)
                    scheduler.vacated(job_id, job_run.progress())

    def _runner(self, job_id: str) -> ReplayedJob:
        """A job that runs, or begins to."""
        if job_id not in self.running:
            row, last = self.run.state.row(job_id), self.again.pop(job_id, None)
            if last is not None:
                self.running[job_id] = ReplayedJob(last.job, row, last.durations, last.saved, last.every)
            else:
                job = self.jobs[job_id]
                durations = Durations(job, self.seed, self.tails, self.scheduler.migration, self.rollout)
                every = NEVER if self.failures is None else self.failures.interval(job)
                self.running[job_id] = ReplayedJob(job, row, durations, 0, every)
        return self.running[job_id]

    def _group(self, number: int) -> ReplayedGroup:
        return self.groups.setdefault(number, ReplayedGroup(number))

    def _leave(self, job_run: ReplayedJob) -> None:
        """A job has left its group."""
        job_run.placed = False
        job_run.group.members -= 1
        if not job_run.group.members:
            self.groups.pop(job_run.group.number, None)
