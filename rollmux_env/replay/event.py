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
- The phases of a job with a model take what its simulated responses take (`rollmux_env.rollout`), under a rollout policy.
- Where the dispatch policy migrates tails, they, or `rollmux_env.timing.tail` for a job without a model, say when a rollout's
  threshold is reached and how fast things go: a tail on its share of the nodes, and a rollout beside one until the tail is over. A
  rollout over several nodes is as slow as on the one that is shared. Switches take as long as ever. What nobody migrates takes
  exactly what it takes without all this.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

from rollmux_env.cluster.events import Progress
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.errors import PlanError
from rollmux_env.replay.checks import check_state
from rollmux_env.replay.run import Arrivals, PhaseRun, Run, placements, waits_for_ever
from rollmux_env.replay.sampling import Durations
from rollmux_env.rollout.policy import RolloutPolicy
from rollmux_env.scenario import Job, Scenario
from rollmux_env.scheduler.commands import Grant, Move, Place, Seating
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.dispatcher import DispatchPolicy, PhaseName
from rollmux_env.scheduler.planner import INSTANT_S
from rollmux_env.timing.tail import TailModel

_TRAINING_POOL = -1  # in place of a rollout node's number


def replay_events(
    scenario: Scenario,
    policy: Policy,
    dispatch: DispatchPolicy,
    seed: int,
    check: bool = False,
    keep_phases: bool = False,
    tails: TailModel | None = None,
    rollout: RolloutPolicy | None = None,
) -> Run:
    """Replay a scenario under a placement and a dispatch policy, phase by phase.

    Args:
        seed: of the sampled durations; they depend on it, the job's id, the iteration and the phase alone.
        check: assert the invariants of `rollmux_env.replay.checks` whenever placements may have changed.
        keep_phases: fill `Run.phases`.
        tails: the inside of rollouts, for dispatch policies that migrate tails; None is `TailModel()`. Of jobs with a model only
            its `share` counts.
        rollout: what happens inside the rollouts of jobs with a model; None: they take their worst case.

    Raises:
        PlanError: the policy broke an invariant, or left jobs waiting that nothing can wake.
    """
    return _Replay(scenario, policy, dispatch, seed, keep_phases, tails or TailModel(), rollout).play(check)


class _Group:
    """A group as it runs: which job each node last ran, the rollouts that run on all their nodes, and nodes that tails share."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.last: dict[int, _Runner] = {}
        self.rollouts: dict[_Runner, None] = {}
        self.tails = 0  # a bit each
        self.members = 0


class _Runner:
    """A job as it runs. `stamp` is the number of the heap entry that it waits for; older entries are void.

    Of a rollout under a dispatch policy that migrates: at `since_s`, from when on it runs at `rate`, `left_s` seconds of full speed
    are left, the last `tail_s` of them past the threshold; `held` are the shares of its nodes, {share: nodes}, since `start_s`.
    """

    __slots__ = (
        "base_s",
        "began_s",
        "bits",
        "busy_s",
        "cold",
        "durations",
        "group",
        "held",
        "iteration",
        "job",
        "keys",
        "leaves_s",
        "left_s",
        "mask",
        "nodes",
        "passed",
        "phase",
        "rate",
        "row",
        "since_s",
        "stamp",
        "start_s",
        "switch_s",
        "sync_s",
        "tail_s",
    )

    def __init__(self, job: Job, row: int, durations: Durations) -> None:
        self.job = job
        self.row = row
        self.durations = durations
        self.iteration = 0
        self.busy_s = {"rollout": 0.0, "training": 0.0}  # by pool, node-seconds
        self.stamp = -1
        self.phase: PhaseName | None = None
        self.start_s = self.switch_s = 0.0
        self.began_s = self.left_s = self.since_s = self.tail_s = 0.0
        self.rate = 1.0
        self.passed = False
        self.held: dict[float, tuple[int, ...]] = {}

    def enter(self, state: State, group: _Group, seating: Seating) -> None:
        """Take up a placement."""
        row = self.row
        pins = () if seating.colocated else seating.rollout
        self.group = group
        group.members += 1
        self.base_s = {"rollout": float(state.jobs.placed_rollout_s[row]), "training": float(state.jobs.placed_training_s[row])}
        self.keys = {"rollout": pins or (_TRAINING_POOL,), "training": (_TRAINING_POOL,)}
        self.mask = {node: 1 << (node + 1) for node in pins}
        self.bits = sum(self.mask.values())
        self.nodes = {"rollout": len(seating.rollout), "training": len(seating.training)}
        self.cold = {"rollout": True, "training": True}
        self.sync_s = float(state.jobs.placed_sync_s[row])
        self.leaves_s = float(state.jobs.leaves_s[row])

    def progress(self) -> Progress:
        """What the job has done so far; asked at the end of an iteration, so that its busy seconds are of whole ones."""
        return Progress(self.job.id, self.iteration, self.busy_s["rollout"], self.busy_s["training"])


class _Replay:
    def __init__(
        self,
        scenario: Scenario,
        policy: Policy,
        dispatch: DispatchPolicy,
        seed: int,
        keep_phases: bool,
        tails: TailModel,
        rollout: RolloutPolicy | None,
    ) -> None:
        self.run = Run(scenario, State(scenario.cluster, observed=True), solo_s={})
        self.scheduler = Scheduler(self.run.state, policy, dispatch)
        self.run.decision_s = self.scheduler.planner.decision_s
        self.policy = policy
        self.seed = seed
        self.keep_phases = keep_phases
        self.tails = tails
        self.rollout = rollout
        self.jobs = {job.id: job for job in scenario.jobs}
        shown = tuple(job.model_copy(update={"drift": ()}) for job in scenario.jobs)
        self.arrivals = Arrivals(scenario.model_copy(update={"jobs": shown}))
        self.heap: list[tuple[float, int, _Runner, str]] = []  # (end, stamp, whose, `rollout`, `training` or `sync`)
        self.stamps = 0
        self.runners: dict[str, _Runner] = {}
        self.groups: dict[int, _Group] = {}

    def play(self, check: bool) -> Run:
        state, heap, arrivals, scheduler = self.run.state, self.heap, self.arrivals, self.scheduler
        fixed_s = arrivals.next_s  # of the next instant that no phase brings about
        while state.departed < len(self.run.scenario.jobs):
            now_s = min(heap[0][0], fixed_s) if heap else fixed_s
            if now_s == inf:
                raise PlanError(waits_for_ever(state))
            now_s = max(now_s, state.now_s)
            until_s = now_s + INSTANT_S
            departing: list[_Runner] = []
            while heap and heap[0][0] <= until_s:
                end_s, stamp, runner, what = heappop(heap)
                if stamp == runner.stamp:
                    now_s = max(now_s, end_s)
                    if self._end(runner, what, end_s):
                        departing.append(runner)
            if departing or fixed_s <= until_s:
                self._place(now_s, departing)
                fixed_s = min(arrivals.next_s, state.next_resume_s(), scheduler.planner.ticks.next_s)
                if check:
                    check_state(state, arrivals.taken, self.policy.keeps_slo)
            for command in scheduler.permits(now_s):
                runner = self.runners[command.job_id]
                if isinstance(command, Grant):
                    self._start(runner, command.phase, now_s)
                else:
                    self._migrate(runner, now_s)
        return self.run

    def _start(self, runner: _Runner, phase: PhaseName, now_s: float) -> None:
        """A phase has its permit: switch, then run."""
        factors = runner.durations.rollout if phase == "rollout" else runner.durations.training
        if runner.iteration >= len(factors):
            runner.durations.extend()
        switched = False
        last = runner.group.last
        for key in runner.keys[phase]:
            if last.get(key, runner) is not runner:
                switched = True
            last[key] = runner
        switch_s = 0.0
        if switched or runner.cold[phase]:
            switch = runner.job.rollout.switch if phase == "rollout" else runner.job.training.switch
            switch_s = switch.cold_s if runner.cold[phase] else switch.warm_s
            runner.cold[phase] = False
        runner.phase = phase
        runner.start_s = now_s
        runner.switch_s = switch_s
        if self.scheduler.migrates_at is None or phase == "training" or not runner.mask:
            self._wake(runner, now_s + (switch_s + runner.base_s[phase] * factors[runner.iteration]), phase)
            return
        runner.began_s, runner.since_s = now_s, now_s + switch_s
        runner.left_s = runner.base_s[phase] * factors[runner.iteration]
        runner.tail_s = runner.left_s * (1 - runner.durations.threshold[runner.iteration])
        runner.passed = False
        runner.group.rollouts[runner] = None
        self._share(runner)

    def _share(self, runner: _Runner) -> None:
        """A rollout goes on with what tails leave of its nodes, to its threshold or to its end."""
        tails = runner.group.tails
        shared = tuple(node for node, bit in runner.mask.items() if bit & tails)
        runner.held = {1.0: tuple(node for node in runner.mask if node not in shared), 1 - self.tails.share: shared}
        runner.rate = runner.durations.rate[runner.iteration] if shared else 1.0
        part_s = max(0.0, runner.left_s - (0.0 if runner.passed else runner.tail_s))
        self._wake(runner, runner.since_s + part_s / runner.rate, "rollout" if runner.passed else "threshold")

    def _advance(self, runner: _Runner, now_s: float) -> None:
        """Account for what a rollout has done since it last changed its speed."""
        runner.left_s -= max(0.0, now_s - runner.since_s) * runner.rate
        runner.since_s = max(runner.since_s, now_s)

    def _migrate(self, runner: _Runner, now_s: float) -> None:
        """The tail of a rollout goes on with a share of its nodes, at a speed of its own."""
        self._advance(runner, now_s)
        self._span(runner, now_s)
        del runner.group.rollouts[runner]
        runner.group.tails |= runner.bits
        runner.held = {self.tails.share: tuple(runner.mask)}
        rest_s = max(0.0, runner.left_s) * runner.durations.stretch[runner.iteration]
        self._wake(runner, now_s + runner.durations.move_s + rest_s, "rollout")

    @staticmethod
    def _is_tail(runner: _Runner) -> bool:
        return bool(runner.held) and runner not in runner.group.rollouts

    def _after_tail(self, gone: _Runner, now_s: float) -> None:
        """A tail is over: rollouts that shared nodes with it have them to themselves."""
        gone.group.tails &= ~gone.bits
        for runner in gone.group.rollouts:
            if runner.mask.keys() & gone.mask.keys():
                self._advance(runner, now_s)
                self._span(runner, now_s)
                self._share(runner)

    def _span(self, runner: _Runner, now_s: float) -> None:
        """Account for the nodes that a rollout has held since this last changed, and begin anew."""
        start_s, switch_s = runner.start_s, min(runner.switch_s, now_s - runner.start_s)
        phase = "rollout" if runner in runner.group.rollouts else "tail"
        for share, nodes in runner.held.items():
            runner.busy_s["rollout"] += max(0.0, now_s - start_s - switch_s) * len(nodes) * share
            if self.keep_phases and nodes and now_s > start_s:
                place = (runner.iteration, runner.group.number, "rollout", nodes)
                self.run.phases.append(PhaseRun(runner.job.id, phase, *place, start_s, now_s, switch_s, share))
        runner.start_s, runner.switch_s = now_s, runner.switch_s - switch_s

    def _wake(self, runner: _Runner, at_s: float, what: str) -> None:
        self.stamps = runner.stamp = self.stamps + 1
        heappush(self.heap, (at_s, self.stamps, runner, what))

    def _end(self, runner: _Runner, what: str, now_s: float) -> bool:
        """What a job waited for is over; whether the job leaves now."""
        scheduler, job_id = self.scheduler, runner.job.id
        if what == "threshold":
            runner.left_s, runner.since_s, runner.passed = runner.tail_s, now_s, True
            scheduler.threshold(job_id)
            self._share(runner)
            return False
        if what == "rollout":
            frees = self._is_tail(runner)
            scheduler.finished(job_id, "rollout", self._book(runner, now_s))
            if frees:
                self._after_tail(runner, now_s)
            scheduler.ready(job_id, "training")
            return False
        if what == "training":
            scheduler.finished(job_id, "training", self._book(runner, now_s))
            if runner.sync_s > 0.0:
                self._wake(runner, now_s + runner.sync_s, "sync")
                return False
        runner.iteration += 1
        scheduler.iterated(runner.progress())
        if runner.iteration == runner.job.iterations or now_s >= runner.leaves_s - INSTANT_S:
            scheduler.left(job_id)
            return True
        scheduler.ready(job_id, "rollout")
        return False

    def _book(self, runner: _Runner, now_s: float) -> float:
        """Account for the phase that a job runs, up to now; returns the seconds that it held its nodes."""
        phase, start_s, switch_s = runner.phase, runner.start_s, runner.switch_s
        assert phase is not None
        runner.phase = None
        if runner.held:
            self._span(runner, now_s)
            runner.held = {}
            if runner in runner.group.rollouts:
                del runner.group.rollouts[runner]
            return now_s - runner.began_s
        pool = "training" if runner.keys[phase][0] == _TRAINING_POOL else "rollout"
        runner.busy_s[pool] += max(0.0, now_s - start_s - switch_s) * runner.nodes[phase]
        if self.keep_phases:
            nodes = tuple(range(runner.nodes[phase])) if pool == "training" else runner.keys[phase]
            group = runner.group.number
            held = (start_s, now_s, min(switch_s, now_s - start_s))
            self.run.phases.append(PhaseRun(runner.job.id, phase, runner.iteration, group, pool, nodes, *held))
        return now_s - start_s

    def _place(self, now_s: float, departing: list[_Runner]) -> None:
        """Departures, pauses that end, the queue and arrivals, as in every replay."""
        run, scheduler = self.run, self.scheduler
        assert run.solo_s is not None
        for runner in sorted(departing, key=lambda runner: runner.row):
            run.solo_s[runner.job.id] = runner.durations.solo_s(runner.iteration)
            self._leave(self.runners.pop(runner.job.id))
        for command in placements(run, scheduler, now_s, self.arrivals):
            match command:
                case Place(job_id=job_id, seating=seating):
                    self._runner(job_id).enter(run.state, self._group(seating.group), seating)
                    scheduler.ready(job_id, "rollout")
                case Move(job_id=job_id):
                    runner = self.runners[job_id]
                    frees = self._is_tail(runner)
                    if runner.phase is not None:
                        self._book(runner, now_s)
                    runner.stamp = -1
                    scheduler.vacated(job_id, runner.progress())
                    if frees:
                        self._after_tail(runner, now_s)
                    self._leave(runner)

    def _runner(self, job_id: str) -> _Runner:
        """A job that runs, or begins to."""
        if job_id not in self.runners:
            job = self.jobs[job_id]
            durations = Durations(job, self.seed, self.tails, self.scheduler.migrates_at, self.rollout)
            self.runners[job_id] = _Runner(job, self.run.state.row(job_id), durations)
        return self.runners[job_id]

    def _group(self, number: int) -> _Group:
        return self.groups.setdefault(number, _Group(number))

    def _leave(self, runner: _Runner) -> None:
        """A job has left its group."""
        runner.group.members -= 1
        if not runner.group.members:
            self.groups.pop(runner.group.number, None)
