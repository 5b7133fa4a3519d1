"""What a service knows of its run by watching it: how jobs ended, what they reported, how busy nodes are, and metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from rollmux_env.cluster.events import Departed, OverBudget
from rollmux_env.scheduler.commands import Command, Grant
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.overdue import Overdue
from runtime.coordinator.run_state import RunState
from runtime.journal.facts import Cancelled, Fact, Failed, Iteration, LeaseEnded, PhaseSlice, Span
from runtime.journal.record import RunRecord
from runtime.machine import Pool
from runtime.metrics import Metrics

_SPAN_S = 300.0  # that utilization is over
_ORDER_S = 60.0  # by so much spans may come later than others that ended after them


class Usage:
    """Node-seconds in which phases held nodes, of late; where a tail shares a node with the next rollout, each has its part of it.

    Attributes:
        since_s: when looking began.
    """

    def __init__(self) -> None:
        self.since_s = 0.0
        self._pools: dict[Pool, _Held] = {}

    def add(self, pool: Pool, spans: Iterable[Span], now_s: float) -> None:
        """A phase is over that held nodes, or parts of them."""
        past = self._pools.setdefault(pool, _Held())
        for span in spans:
            past.add(span)
        past.forget(now_s - _SPAN_S)

    def share(self, pool: Pool, nodes: int, holding: Iterable[Span], now_s: float) -> float:
        """Share of the last minutes' node-seconds of a pool.

        Args:
            nodes: all of the pool's. holding: what the phases that run have held until now.
        """
        from_s = max(self.since_s, now_s - _SPAN_S)
        past = self._pools.setdefault(pool, _Held())
        past.forget(now_s - _SPAN_S)
        busy_s = past.after(from_s) + sum(span.share * max(0.0, span.until_s - max(span.from_s, from_s)) for span in holding)
        return min(1.0, busy_s / (nodes * (now_s - from_s))) if nodes and now_s > from_s else 0.0


class _Held:
    """Spans of a pool that are over, in the order of their ends; all of them are not looked at each time."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque()
        self._total_s = 0.0
        self._longest_s = 0.0

    def add(self, span: Span) -> None:
        self._spans.append(span)
        self._total_s += span.share * (span.until_s - span.from_s)
        self._longest_s = max(self._longest_s, span.until_s - span.from_s)

    def forget(self, until_s: float) -> None:
        while self._spans and self._spans[0].until_s < until_s:
            span = self._spans.popleft()
            self._total_s -= span.share * (span.until_s - span.from_s)

    def after(self, from_s: float) -> float:
        """Node-seconds after a time: all of them but what the first spans had before."""
        before_s = 0.0
        for span in self._spans:
            if span.until_s - self._longest_s > from_s + _ORDER_S:
                break
            before_s += span.share * max(0.0, min(span.until_s, from_s) - span.from_s)
        return max(0.0, self._total_s - before_s)


class Figures:
    """Watches a run; see `runtime.coordinator.run_state.Observer`.

    Attributes:
        ends: by job: `done`, `over_budget`, `failed` or `cancelled`, and the problem. reported: metrics of jobs' last iterations.
        usage: of nodes. metrics: what is exported to Prometheus.
    """

    def __init__(self) -> None:
        self.ends: dict[str, tuple[str, str]] = {}
        self.reported: dict[str, dict[str, float]] = {}
        self.usage = Usage()
        self.metrics = Metrics()
        self._run: RunState | None = None
        self._keep_permit: set[str] = set()  # jobs that have kept their permit for what follows
        self._late: set[str] = set()
        self._overdue: set[str] = set()  # jobs whose phase was over its worst case when it was last looked

    def begin(self, run: RunState, record: RunRecord | None) -> None:
        """Watch a run.

        Args:
            record: of a run that goes on.
        """
        self._run = run
        if record is None:
            return
        self.ends = ends_of(record)
        self.reported = {done.job_id: done.metrics for done in record.iterations}

    def on_entries(self, entries: tuple[Fact, ...]) -> None:
        """Facts are in the journal."""
        assert self._run is not None
        for entry in entries:
            match entry:
                case Cancelled(job_id=job_id):
                    self.ends[job_id] = ("cancelled", "")
                case Failed(job_id=job_id, where=where, problem=problem):
                    self.ends.setdefault(job_id, ("failed", f"{where}: {problem}"))
                case LeaseEnded(job_id=job_id, done=True):
                    self.ends.setdefault(job_id, ("done", ""))
                case OverBudget(job_id=job_id):
                    self.ends.setdefault(job_id, ("over_budget", ""))
                case Departed(job_id=job_id):
                    handle = self._run.handles[job_id]
                    if handle.iteration == handle.spec.iterations and not handle.spec.is_attached:
                        self.ends.setdefault(job_id, ("done", ""))
                case PhaseSlice(ok=True):
                    self._phase_over(entry)
                case Iteration():
                    self._iterated(entry)
        review = self._run.scheduler.review
        for job_id in self._late - (review.late if review else set()):
            self._late.discard(job_id)
            self.metrics.write("rollmux_at_risk", 0.0, job_id=job_id)

    def on_command(self, command: Command) -> None:
        """A command of the scheduler's has been."""
        if isinstance(command, Grant) and self._run is not None:
            handle = self._run.handles[command.job_id]
            hold = handle.permits.holds[command.phase]
            pool = handle.place.pool_of(command.phase)
            self.metrics.write("rollmux_permits", 1.0, pool=pool)
            self.metrics.write("rollmux_permit_wait_seconds", max(0.0, hold.start_s - hold.asked_s), pool=pool)
            self._keep_permit.discard(command.job_id)

    def overdue(self, phases: Mapping[str, Sequence[Overdue]]) -> None:
        """Export for how long phases are over their worst case.

        Args:
            phases: Overdue phases by job, of the jobs that hold nodes now.
        """
        beyond_s = {job_id: max(one.held_s - one.worst_case_s for one in overdue) for job_id, overdue in phases.items() if overdue}
        for job_id in self._overdue | beyond_s.keys():
            self.metrics.write("rollmux_overdue_seconds", beyond_s.get(job_id, 0.0), job_id=job_id)
        self._overdue = {*beyond_s}

    def _phase_over(self, part: PhaseSlice) -> None:
        """A phase is over."""
        if part.job_id in self._keep_permit:  # it had the permit of the one before
            self._keep_permit.discard(part.job_id)
        else:
            self.metrics.write("rollmux_permit_latency_seconds", max(0.0, part.permit_s), pool=part.pool)
        if part.phase == "init" and not part.extra:
            self._keep_permit.add(part.job_id)
        self.usage.add(part.pool, part.node_spans(), part.end_s)

    def _iterated(self, done: Iteration) -> None:
        """An iteration is over, and what the scheduler makes of it is known."""
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


def ends_of(record: RunRecord) -> dict[str, tuple[str, str]]:
    """How jobs of a run have ended, as `Figures.ends`."""
    iterations = {fact.spec.id: fact.spec.iterations for fact in record.submitted if not fact.spec.is_attached}
    ends = {done.job_id: ("done", "") for done in record.iterations if done.number + 1 == iterations.get(done.job_id)}
    ends |= {lease.job_id: ("done", "") for lease in record.leases_ended if lease.done}
    ends |= dict.fromkeys(record.over_budget, ("over_budget", ""))
    ends |= {fact.job_id: ("failed", f"{fact.where}: {fact.problem}") for fact in reversed(record.failed)}
    return ends | {fact.job_id: ("cancelled", "") for fact in record.cancelled}


def held_spans(run: RunState, handle: JobHandle, now_s: float) -> tuple[Span, ...]:
    """What the phases of a job that have a permit have held of nodes until now."""
    every: list[Span] = []
    for phase, hold in handle.permits.holds.items():
        spans = run.scheduler.members.spans(handle.id, now_s) if phase == "rollout" else ()
        every += spans or (Span(node.name, hold.start_s, now_s, 1.0, False) for node in handle.place.nodes_of(phase))
    return tuple(every)
