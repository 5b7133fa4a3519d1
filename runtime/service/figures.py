"""A service's observer of its run: how jobs ended, the metrics that they reported, the use of nodes, and metrics for Prometheus."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from rollmux_env.cluster.events import Departed, OverBudget
from rollmux_env.replay.stays import StayTimes, stays_of
from rollmux_env.scheduler.commands import Command, Grant
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.overdue import Overdue
from runtime.coordinator.run_loop import RunLoop
from runtime.journal import facts
from runtime.journal.facts import Fact, IterationSlice, NodeShareSpan
from runtime.journal.record import RunRecord
from runtime.machine import Pool
from runtime.machines.nodes import POOLS
from runtime.metrics import MetricsRegistry

_OF_PERMITS = (facts.PhaseGranted, facts.SchedulerInformed)  # facts of every permit, which change no figure
_SPAN_S = 300.0  # window of the utilization
_ORDER_S = 60.0  # how much later than a span that ended after it a span may be reported


class NodeUsage:
    """Node-seconds of the last five minutes in which phases held nodes.

    If a tail shares a node with the next rollout, each counts with its share.

    Attributes:
        observed_from_s: Time at which observation began, in seconds of the run's clock.
    """

    def __init__(self) -> None:
        self.observed_from_s = 0.0
        self._pools: dict[Pool, _HeldSpans] = {}

    def add(self, pool: Pool, spans: Iterable[NodeShareSpan], now_s: float) -> None:
        """Record the spans of a phase that has ended.

        Args:
            pool: Pool of the nodes.
            spans: Spans in which the phase held nodes, or shares of nodes.
            now_s: Present time, in seconds.
        """
        past = self._pools.setdefault(pool, _HeldSpans())
        for span in spans:
            past.add(span)
        past.forget(now_s - _SPAN_S)

    def share(self, pool: Pool, nodes: int, holding: Iterable[NodeShareSpan], now_s: float) -> float:
        """Return the share of a pool's node-seconds of the last five minutes in which phases held nodes, from 0 to 1.

        Args:
            pool: The pool.
            nodes: Number of nodes in the pool.
            holding: Spans of phases that still run, until now.
            now_s: Present time, in seconds.
        """
        from_s = max(self.observed_from_s, now_s - _SPAN_S)
        past = self._pools.setdefault(pool, _HeldSpans())
        past.forget(now_s - _SPAN_S)
        busy_s = past.after(from_s) + sum(span.share * max(0.0, span.until_s - max(span.from_s, from_s)) for span in holding)
        return min(1.0, busy_s / (nodes * (now_s - from_s))) if nodes and now_s > from_s else 0.0


class _HeldSpans:
    """Spans of a pool that are over, in the order of their ends, with running sums so that a query reads only the first ones."""

    def __init__(self) -> None:
        self._spans: deque[NodeShareSpan] = deque()
        self._total_s = 0.0
        self._longest_s = 0.0

    def add(self, span: NodeShareSpan) -> None:
        self._spans.append(span)
        self._total_s += span.share * (span.until_s - span.from_s)
        self._longest_s = max(self._longest_s, span.until_s - span.from_s)

    def forget(self, until_s: float) -> None:
        while self._spans and self._spans[0].until_s < until_s:
            span = self._spans.popleft()
            self._total_s -= span.share * (span.until_s - span.from_s)

    def after(self, from_s: float) -> float:
        """Return the node-seconds after a time: the sum of all spans, less the part of the first ones before that time."""
        before_s = 0.0
        for span in self._spans:
            if span.until_s - self._longest_s > from_s + _ORDER_S:
                break
            before_s += span.share * max(0.0, min(span.until_s, from_s) - span.from_s)
        return max(0.0, self._total_s - before_s)


class JobOutcome(NamedTuple):
    """The end of a job.

    Attributes:
        state: `done`, `over_budget`, `failed` or `cancelled`.
        problem: Line about the problem, or an empty text.
        at_s: Time of the end, or of the cancellation, in seconds of the run.
    """

    state: str
    problem: str
    at_s: float


class Follower(Protocol):
    """An object that follows the facts of a run."""

    def follow(self, entry: object) -> None:
        """Take a fact that was written to the journal, except for `PhaseGranted` and `SchedulerInformed`."""


class RunFigures:
    """The observer; see `runtime.coordinator.run_state.RunObserver`.

    Attributes:
        ends: Outcomes of the jobs that have ended, by id.
        reported: Metrics of the last iteration, by job.
        stays: Times of arrivals, admissions, parks and departures.
        usage: Use of nodes.
        metrics: Metrics that are exported to Prometheus.
    """

    def __init__(self) -> None:
        self.ends: dict[str, JobOutcome] = {}
        self.reported: dict[str, dict[str, float]] = {}
        self.stays = StayTimes()
        self.usage = NodeUsage()
        self.metrics = MetricsRegistry()
        self._run: RunLoop | None = None
        self._followers: Sequence[Follower] = ()
        self._keep_permit: set[str] = set()  # jobs whose next phase uses the permit of their init
        self._late: set[str] = set()
        self._overdue: set[str] = set()  # jobs with a phase that was over its worst case at the last look

    def begin(self, run: RunLoop, record: RunRecord | None, followers: Sequence[Follower]) -> None:
        """Begin to observe a run.

        Args:
            run: State of the run.
            record: Journal of the run that continues, or None for a new one.
            followers: Objects that take each fact that is written from now on, except for `PhaseGranted` and `SchedulerInformed`.
        """
        self._run, self._followers = run, followers
        for pool in POOLS:  # else the alert about no permits would see nothing before the first one
            self.metrics.write("rollmux_permits", 0.0, pool=pool)
        if record is None:
            return
        self.ends, self.stays = ends_of(record), stays_of(record.log)
        self.reported = dict(record.metrics)

    def on_entries(self, entries: tuple[Fact, ...]) -> None:
        """Take facts that were written to the journal."""
        assert self._run is not None
        for entry in entries:
            if isinstance(entry, _OF_PERMITS):
                continue
            self.stays.follow(entry)
            for follower in self._followers:
                follower.follow(entry)
            self._note_end(entry)
            match entry:
                case facts.PhaseSlice(ok=True):
                    self._phase_over(entry)
                case facts.IterationSlice():
                    self._iterated(entry)
        review = self._run.scheduler.review
        for job_id in self._late - (review.late if review else set()):
            self._late.discard(job_id)
            self.metrics.write("rollmux_at_risk", 0.0, job_id=job_id)

    def _note_end(self, entry: Fact) -> None:
        """Record how a job has ended, if a fact says so."""
        assert self._run is not None
        match entry:
            case facts.JobCancelled(at_s=at_s, job_id=job_id):
                self.ends[job_id] = JobOutcome("cancelled", "", at_s)
            case facts.JobFailed(at_s=at_s, job_id=job_id, where=where, problem=problem):
                self.ends.setdefault(job_id, JobOutcome("failed", f"{where}: {problem}", at_s))
            case facts.LeaseEnded(at_s=at_s, job_id=job_id, done=True):
                self.ends.setdefault(job_id, JobOutcome("done", "", at_s))
            case OverBudget(at_s=at_s, job_id=job_id):
                self.ends.setdefault(job_id, JobOutcome("over_budget", "", at_s))
            case Departed(at_s=at_s, job_id=job_id):
                handle = self._run.handles[job_id]
                if handle.iteration == handle.spec.iterations and not handle.spec.is_attached:
                    self.ends.setdefault(job_id, JobOutcome("done", "", at_s))

    def on_command(self, command: Command) -> None:
        """Take a command of the scheduler that was carried out."""
        if isinstance(command, Grant) and self._run is not None:
            handle = self._run.handles[command.job_id]
            hold = handle.permits.holds[command.phase]
            pool = handle.place.pool_of(command.phase)
            self.metrics.write("rollmux_permits", 1.0, pool=pool)
            self.metrics.write("rollmux_permit_wait_seconds", max(0.0, hold.start_s - hold.asked_s), pool=pool)
            self._keep_permit.discard(command.job_id)

    def overdue(self, phases: Mapping[str, Sequence[Overdue]]) -> None:
        """Export by how many seconds phases are over their worst case.

        Args:
            phases: Overdue phases by job, for the jobs that hold nodes now.
        """
        beyond_s = {job_id: max(one.held_s - one.worst_case_s for one in overdue) for job_id, overdue in phases.items() if overdue}
        for job_id in self._overdue | beyond_s.keys():
            self.metrics.write("rollmux_overdue_seconds", beyond_s.get(job_id, 0.0), job_id=job_id)
        self._overdue = {*beyond_s}

    def _phase_over(self, part: facts.PhaseSlice) -> None:
        if part.job_id in self._keep_permit:  # the phase used the permit of the init before it
            self._keep_permit.discard(part.job_id)
        else:
            self.metrics.write("rollmux_permit_latency_seconds", max(0.0, part.permit_s), pool=part.pool)
        if part.phase == "init" and not part.extra:
            self._keep_permit.add(part.job_id)
        self.usage.add(part.pool, part.node_spans(), part.end_s)

    def _iterated(self, done: facts.IterationSlice) -> None:
        """Export metrics of an iteration that the scheduler has taken into account."""
        assert self._run is not None
        self.reported[done.job_id] = done.metrics
        self.metrics.write("rollmux_iterations", 1.0, job_id=done.job_id)
        review, state = self._run.scheduler.review, self._run.scheduler.state
        pace = review.paces.get(done.job_id) if review is not None else None
        if review is None or pace is None or pace.iteration_s is None:
            return
        job, late = state.job(done.job_id), done.job_id in review.late
        self.metrics.write("rollmux_slo_slack", 1 - pace.iteration_s / job.solo_s / job.slo, job_id=done.job_id)
        self.metrics.write("rollmux_at_risk", float(late), job_id=done.job_id)
        if late:
            self._late.add(done.job_id)


def ends_of(record: RunRecord) -> dict[str, JobOutcome]:
    """Return how jobs of a recorded run have ended, by id."""
    left_s = {fact.job_id: fact.at_s for fact in (*record.iterations, *record.log) if isinstance(fact, IterationSlice | Departed)}
    own = [fact.spec for fact in record.submitted if not fact.spec.is_attached]
    ends = {spec.id: JobOutcome("done", "", left_s.get(spec.id, 0.0)) for spec in own if record.done[spec.id] == spec.iterations}
    ends |= {lease.job_id: JobOutcome("done", "", lease.at_s) for lease in reversed(record.leases_ended) if lease.done}
    ends |= {job_id: JobOutcome("over_budget", "", left_s[job_id]) for job_id in record.over_budget}
    for fact in reversed(record.failed):
        ends[fact.job_id] = JobOutcome("failed", f"{fact.where}: {fact.problem}", fact.at_s)
    return ends | {fact.job_id: JobOutcome("cancelled", "", fact.at_s) for fact in record.cancelled}


def held_spans(run: RunLoop, handle: JobHandle, now_s: float) -> tuple[NodeShareSpan, ...]:
    """Return the spans in which the running phases of a job have held nodes until now.

    Args:
        run: State of the run.
        handle: The job.
        now_s: Present time, in seconds.
    """
    every: list[NodeShareSpan] = []
    for phase, hold in handle.permits.holds.items():
        spans = run.scheduler.members.spans(handle.id, now_s) if phase == "rollout" else ()
        every += spans or (NodeShareSpan(node.name, hold.start_s, now_s, 1.0, False) for node in handle.place.nodes_of(phase))
    return tuple(every)
