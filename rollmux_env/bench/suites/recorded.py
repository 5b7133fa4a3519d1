"""Published recordings of runs on real GPUs, replayed: a part of the suite `fidelity`.

A replay is given the recorded seconds of a run's phases and switches, and a dispatch policy. The remaining error is that of the
schedule: which phase waits for which. RollMux's own runs (Weave's Table 4) have phases derived from each job alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rollmux_env.bench.harness import Task, run_task
from rollmux_env.bench.streams import workload
from rollmux_env.bench.suite import Makers
from rollmux_env.cluster.events import Arrived, Event, Placement
from rollmux_env.cluster.plan import Place, Plan
from rollmux_env.cluster.state import State
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Drift, Job
from rollmux_env.keys.phases import Phase, Switch, Training
from rollmux_env.published import source
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.scenario import Scenario
from rollmux_env.scheduler.view import DispatchPolicy

ORDERS = ("fifo", "round-robin")
_GPU = Pool(gpus_per_node=1, usd_per_gpu_hour=1.0)
_LIMIT = 100.0  # an SLO that no job breaks


class RecordedIteration(NamedTuple):
    """One recorded iteration.

    Attributes:
        job: Name of the job.
        rollout_s: Seconds of the rollout.
        training_s: Seconds of the training.
        training_at_s: Start of the training, in seconds from the start of the run.
    """

    job: str
    rollout_s: float
    training_s: float
    training_at_s: float


@dataclass(frozen=True)
class RecordedRun:
    """A run in which jobs took turns.

    Attributes:
        name: Name of the run.
        shared: Whether the rollouts share one GPU; otherwise each job has its own.
        switch_s: Seconds of a switch to a waiting phase of another job, for rollouts and for trainings.
        before_s: Seconds at the beginning of the run that were left out.
        whole_s: Seconds from there to the end.
        iterations: Iterations in the order of their trainings.
        alone_s: Seconds of each whole job alone on separate GPUs, or None if there is no such measurement.
        staleness: Staleness of every job, in iterations.
    """

    name: str
    shared: bool
    switch_s: tuple[float, float]
    before_s: float
    whole_s: float
    iterations: tuple[RecordedIteration, ...]
    alone_s: float | None = None
    staleness: int = 0

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names of the jobs, sorted."""
        return tuple(sorted({each.job for each in self.iterations}))

    @property
    def gain(self) -> float | None:
        """Recorded throughput relative to the jobs one after the other on the same GPUs, or None if unknown."""
        return None if self.alone_s is None else len(self.jobs) * self.alone_s / (self.before_s + self.whole_s)

    def of(self, job: str) -> list[RecordedIteration]:
        """Return a job's iterations."""
        return [each for each in self.iterations if each.job == job]

    def scenario(self) -> Scenario:
        """Return the run as a scenario: phases have their recorded seconds, and all jobs arrive at the start."""
        return Scenario(version=1, cluster=Cluster(rollout=_GPU, training=_GPU), jobs=tuple(self._job(name) for name in self.jobs))

    def _job(self, name: str) -> Job:
        own = self.of(name)
        rollout_s, training_s = max(each.rollout_s for each in own), max(each.training_s for each in own)
        factors = [(each.rollout_s / rollout_s, each.training_s / training_s) for each in own]
        rollout, training = (Switch(warm_s=seconds) for seconds in self.switch_s)
        return Job(
            id=name,
            arrival_s=0.0,
            iterations=len(own),
            slo=_LIMIT,
            staleness=self.staleness,
            rollout=Phase(worst_case_s=rollout_s, switch=rollout),
            training=Training(worst_case_s=training_s, switch=training),
            drift=tuple(Drift(iteration=k, rollout=first, training=second) for k, (first, second) in enumerate(factors)),
        )


def read_recorded_run(file: str, name: str) -> RecordedRun:
    """Read a run from a source's file.

    Args:
        file: Name of a file of `rollmux_env.published`.
        name: Name of the run.

    Raises:
        InputError: If the file has no such run, or the run is invalid.
    """
    figures = source(file)
    values = figures.value(name, dict[str, object]).copy()
    text = str(values.pop("iterations"))
    rows = [line.split()[1:] for line in text.strip().splitlines()[1:]]
    return figures.checked({**values, "iterations": rows}, RecordedRun, name)


class _Together:
    """Placement policy that puts all jobs in one group, on one rollout node or on one each."""

    keeps_slo = False

    def __init__(self, shared: bool) -> None:
        self._shared = shared

    def decide(self, state: State, event: Event) -> Plan:
        if not isinstance(event, Arrived):
            return ()
        group = next(iter(state.tables.group_rows), None)
        if group is None:
            return (Place(event.job.id, Placement(None, (), 1, 1)),)
        return (Place(event.job.id, Placement(group, (0,)) if self._shared else Placement(group, (), 1)),)


class Replayed(NamedTuple):
    """Periods and duration of a run.

    Attributes:
        period_s: Seconds of a period of each job.
        whole_s: Seconds of the whole run.
    """

    period_s: dict[str, float]
    whole_s: float


def measured(run: RecordedRun) -> Replayed:
    """Return the recorded periods and duration."""
    return Replayed({job: _period_s([each.training_at_s for each in run.of(job)]) for job in run.jobs}, run.whole_s)


def predicted(run: RecordedRun, dispatch: DispatchPolicy) -> Replayed:
    """Return the periods and duration of an event replay."""
    phases = replay_events(run.scenario(), _Together(run.shared), dispatch, 0, Watch(keep_phases=True)).phases
    trainings = [each for each in phases if each.phase == "training"]
    starts = {job: [each.start_s + each.switch_s for each in trainings if each.job_id == job] for job in run.jobs}
    return Replayed({job: _period_s(times) for job, times in starts.items()}, max(each.end_s for each in phases))


def _period_s(starts_s: list[float]) -> float:
    return (starts_s[-1] - starts_s[0]) / (len(starts_s) - 1)


class Compared(NamedTuple):
    """A line of the suite.

    Attributes:
        run: Name of the run.
        name: Name of the figure.
        predicted: Predicted figure.
        measured: Measured figure.
        is_gain: Whether the figure is a gain; otherwise it is in seconds.
    """

    run: str
    name: str
    predicted: float
    measured: float
    is_gain: bool = False


RUNS = tuple(read_recorded_run("llm_d", name) for name in ("sync", "async"))


def compare_runs(makers: Makers) -> Iterator[Compared]:
    """Yield the figures of every recorded run under every dispatch policy."""
    for run in RUNS:
        real = measured(run)
        for order in ORDERS:
            replayed = predicted(run, makers.dispatch(order))
            for job in run.jobs:
                yield Compared(run.name, f"{order}: period of {job}", replayed.period_s[job], real.period_s[job])
            yield Compared(run.name, f"{order}: whole run", replayed.whole_s, real.whole_s)
            if run.alone_s is not None and run.gain is not None:
                gain = len(run.jobs) * run.alone_s / (run.before_s + replayed.whole_s)
                yield Compared(run.name, f"{order}: gain", gain, run.gain, True)
    yield from _weave(makers.dispatch, makers)


def _weave(dispatch: Callable[[str], DispatchPolicy], makers: Makers) -> Iterator[Compared]:
    """Yield the longest job of each of Weave's cases with three jobs. Every phase has its switch."""
    for case, (_, shared_s) in source("rollmux").table("micro_iterations", tuple[float, float]):
        stream = workload(case, 0, switches=True)
        slowdown = run_task(makers.placement, Task("rollmux", 0, stream, dispatch("round-robin"))).outcome.metrics.slowdown
        longest = max(stream.jobs, key=lambda job: job.solo_s)
        yield Compared(f"Weave, Table 4, {case}", "round-robin: period", slowdown[longest.id] * longest.solo_s, shared_s)
