"""The record of a run, built from the facts of its journal, for report, comparison and recovery.

The event log (`RunRecord.log`) has the form of a replay's. Applying it gives the state, `rollmux_env.report.lanes.follow` gives the
nodes of every group, and `RunRecord.phase_runs` gives the phases. So code that reads a replay can read a run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from rollmux_env.cluster.events import Carried, Event, OverBudget, QuotaSet
from rollmux_env.cluster.months import month_of
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Job
from rollmux_env.replay.run import PhaseRun
from rollmux_env.scheduler import facts as scheduler_facts
from rollmux_env.scheduler.facts import Drained, Joined, Undrained
from rollmux_env.scheduler.nodes import PoolName
from runtime.jobs.spec import JobSpec
from runtime.journal import facts
from runtime.journal.facts import PROFILING_GROUP, Assigned, IterationSlice, JobProfiled, PhaseSlice, Returned, RunStarted
from runtime.machine import Node

Reported = TypeVar("Reported", bound=scheduler_facts.Fact)


@dataclass(frozen=True)
class RunRecord:
    """The facts of a run by kind, each in order of time.

    Attributes:
        started: First fact of the run.
        relaunched: Resumptions of the run.
        scheduler_reports: Reports to the scheduler.
        restored: Take-overs by the scheduler of a resumed run.
        log: Events of the cluster state.
        submitted: Submitted jobs.
        cancelled: Cancelled jobs.
        profiled: Profiles of jobs.
        assigned: Assignments of nodes to places, and their returns.
        phases: Phases with their nodes.
        offloaded: Later offloads of state that had stayed on devices.
        syncs: Transfers of weights.
        iterations: Completed iterations that count.
        repeated: Completed iterations that their job has done again since.
        checkpointed: Checkpoints.
        checkpoint_delays: Waits for disk space.
        restarted: Restarts of jobs.
        failed: Failures of jobs.
        attached: Leases of attached jobs.
        rolled_back: Iterations taken back by owners.
        memory_exceeded: Jobs with more device memory than stated.
        granted: Permits of attached jobs.
        metrics_reported: Metrics of iterations of attached jobs before their end.
        leases_ended: Ends of leases.
        suspected: Nodes of lost leases.
        freed: Nodes of lost leases that are free again.
        drains_planned: Plans to drain nodes, and their ends.
        jobs_carried: Progress of jobs in the part of the journal before this one.
        begun: Beginning of this part, if jobs were present then.
        ended: Last fact, or None for a killed run.
        bounds: Bounds of the gain for pairs of phases of the first two jobs, with `--compare solo`. Empty otherwise.
        solo: Iterations of jobs alone after their last ones, with `--compare solo`. Empty otherwise.
    """

    started: RunStarted
    relaunched: tuple[facts.RunRelaunched, ...] = ()
    scheduler_reports: tuple[facts.SchedulerInformed, ...] = ()
    restored: tuple[facts.SchedulerRestored, ...] = ()
    log: tuple[Event, ...] = ()
    submitted: tuple[facts.JobSubmitted, ...] = ()
    cancelled: tuple[facts.JobCancelled, ...] = ()
    profiled: tuple[facts.JobProfiled, ...] = ()
    assigned: tuple[Assigned | Returned, ...] = ()
    phases: tuple[PhaseSlice, ...] = ()
    offloaded: tuple[facts.StateOffloaded, ...] = ()
    syncs: tuple[facts.SyncSlice, ...] = ()
    iterations: tuple[IterationSlice, ...] = ()
    repeated: tuple[IterationSlice, ...] = ()
    checkpointed: tuple[facts.JobCheckpointed, ...] = ()
    checkpoint_delays: tuple[facts.CheckpointDelayed, ...] = ()
    restarted: tuple[facts.JobRestarted, ...] = ()
    failed: tuple[facts.JobFailed, ...] = ()
    attached: tuple[facts.OwnerAttached, ...] = ()
    rolled_back: tuple[facts.JobRolledBack, ...] = ()
    memory_exceeded: tuple[facts.MemoryExceeded, ...] = ()
    granted: tuple[facts.PhaseGranted, ...] = ()
    metrics_reported: tuple[facts.MetricsReported, ...] = ()
    leases_ended: tuple[facts.LeaseEnded, ...] = ()
    suspected: tuple[facts.NodesSuspected, ...] = ()
    freed: tuple[facts.NodesFreed, ...] = ()
    drains_planned: tuple[facts.DrainPlanned, ...] = ()
    jobs_carried: tuple[facts.JobCarried, ...] = ()
    begun: tuple[facts.PartBegun, ...] = ()
    ended: facts.RunEnded | None = None
    bounds: tuple[facts.SharingBound, ...] = ()
    solo: tuple[facts.SoloIterationSlice, ...] = ()

    @property
    def jobs(self) -> dict[str, Job]:
        """Jobs by id, as the policy saw them last."""
        return {profiled.job.id: profiled.job for profiled in self.profiled}

    @cached_property
    def by_job(self) -> dict[str, RunRecord]:
        """Record of each job alone, so that a loop over all jobs does not read the facts of the others."""
        own: defaultdict[str, defaultdict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for name, value in vars(self).items():
            for fact in value if isinstance(value, tuple) else ():
                if (job_id := _job_of(fact)) is not None:
                    own[job_id][name].append(fact)
        every: dict[str, dict[str, Any]] = {job_id: {name: tuple(parts[name]) for name in parts} for job_id, parts in own.items()}
        return {job_id: RunRecord(self.started, **parts) for job_id, parts in every.items()}

    def iterations_of(self, job_id: str) -> list[IterationSlice]:
        """Return the iterations of a job that count, in order, without those in earlier parts of the journal."""
        return [done for done in self.iterations if done.job_id == job_id]

    @cached_property
    def done(self) -> Counter[str]:
        """Number of iterations that count, by id of the job."""
        return Counter({fact.job_id: fact.iterations for fact in self.jobs_carried}) + Counter(
            done.job_id for done in self.iterations
        )

    @cached_property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Metrics of the last iteration of each job that has done one, by its id."""
        carried = {fact.job_id: fact.metrics for fact in self.jobs_carried if fact.most}
        return carried | {done.job_id: done.metrics for done in self.iterations}

    def most_done(self, job_id: str) -> int:
        """Return the largest number of iterations that a job has ever done."""
        carried = (fact.most for fact in self.jobs_carried if fact.job_id == job_id)
        numbers = (done.number + 1 for done in (*self.iterations, *self.repeated) if done.job_id == job_id)
        return max((*carried, *numbers), default=0)

    def checkpoints_of(self, job_id: str) -> set[int]:
        """Return the numbers of iterations of the recorded checkpoints of a job."""
        carried = (number for fact in self.jobs_carried if fact.job_id == job_id for number in fact.checkpoints)
        return {*carried, *(fact.iterations for fact in self.checkpointed if fact.job_id == job_id)}

    def checkpoint_s(self, job_id: str) -> float:
        """Return the seconds of writing the last recorded checkpoint of a job, or 0 if there is none."""
        carried = [fact.checkpoint_s for fact in self.jobs_carried if fact.job_id == job_id]
        return [0.0, *carried, *(fact.seconds for fact in self.checkpointed if fact.job_id == job_id)][-1]

    @property
    def over_budget(self) -> frozenset[str]:
        """Ids of the jobs that ended because their budget was exhausted."""
        return frozenset(event.job_id for event in self.log if isinstance(event, OverBudget))

    @property
    def given_up(self) -> frozenset[str]:
        """Ids of the jobs that have failed or were cancelled."""
        return frozenset(fact.job_id for fact in (*self.failed, *self.cancelled))

    @property
    def reported_done(self) -> frozenset[str]:
        """Ids of the jobs whose owners have reported them done, or whose commands have ended with status 0."""
        return frozenset(fact.job_id for fact in self.leases_ended if fact.done)

    def reports_of(self, kind: type[Reported]) -> Iterator[tuple[float, Reported]]:
        """Yield time and content of all reports of one kind to the scheduler."""
        return ((instant.at_s, fact) for instant in self.scheduler_reports for fact in instant.facts if isinstance(fact, kind))

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """All nodes that the run ever had, by name, as they were last described."""
        joined = [(at_s, cast("tuple[Node, ...]", fact.nodes)) for at_s, fact in self.reports_of(Joined)]
        later = sorted([*((fact.at_s, fact.nodes) for fact in self.relaunched), *joined], key=lambda pair: pair[0])
        return {node.name: node for nodes in (self.started.nodes, *(nodes for _, nodes in later)) for node in nodes}

    @cached_property
    def last_holders(self) -> dict[str, str]:
        """Id of the job that has held a node last, by name of the node, ascending."""
        parts: list[PhaseSlice | facts.SyncSlice] = [*self.phases, *(part for part in self.syncs if part.asked_s is not None)]
        last = {node: fact.job_id for fact in self.jobs_carried for node in fact.last_held}
        last |= {node: part.job_id for part in sorted(parts, key=lambda part: part.end_s) for node in part.nodes}
        return dict(sorted(last.items()))

    @property
    def drained_nodes(self) -> set[str]:
        """Names of the nodes that are drained at the end of the record."""
        changes = (fact for instant in self.scheduler_reports for fact in instant.facts if isinstance(fact, Drained | Undrained))
        drained = {name: isinstance(fact, Drained) for fact in changes for name in fact.names}
        return {name for name, is_drained in drained.items() if is_drained}

    @property
    def planned_drains(self) -> dict[str, facts.DrainPlanned]:
        """Drains that are to begin after the end of the record, by name of the node."""
        last = {plan.node: plan for plan in self.drains_planned}
        return {name: plan for name, plan in last.items() if not (plan.starts_s is None and plan.deadline_s is None)}

    @property
    def cluster(self) -> Cluster:
        """Cluster at the start of the run, with the nodes that have joined since added to its limits, and the last quotas."""
        more: Counter[str] = Counter(node.pool for _, fact in self.reports_of(Joined) for node in fact.nodes)
        grown: dict[str, Pool] = {}
        for name, pool in self.started.cluster.pools.items():
            if pool.max_nodes is not None:
                grown[name] = pool.model_copy(update={"max_nodes": pool.max_nodes + more[name]})
        cluster = self.started.cluster.with_pools(grown)
        for event in self.log:
            if isinstance(event, QuotaSet):
                cluster = cluster.with_quota(event.user, event.quota)
        return cluster

    @property
    def first_month(self) -> str:
        """Calendar month in which the record begins, such as `2026-12`."""
        carried = (event.month for event in self.log[:1] if isinstance(event, Carried))
        return next(carried, month_of(self.started.wall_s))

    @property
    def last_s(self) -> float:
        """Last time in the record, seconds."""
        every = [
            fact
            for name in {*fields_of_kinds().values(), "repeated"} - {"started", "ended", "bounds"}
            for fact in getattr(self, name)
        ]
        return max(float(fact.at_s) for fact in (*every, self.ended or self.started))

    def wall_s(self, at_s: float) -> float:
        """Convert a time of the run to seconds since 1970."""
        before = [fact for fact in self.relaunched if fact.at_s <= at_s]
        return at_s + (before[-1].wall_s - before[-1].at_s if before else self.started.wall_s)

    def phase_runs(self, lent: bool = False) -> list[PhaseRun]:
        """Return the phases of groups in the form of a replay.

        Delivery of the permit, loading and offloading count as their `switch_s`.

        Args:
            lent: Whether to include phases on lent nodes, in the group `PROFILING_GROUP`.
        """
        runs = []
        for part in self.phases:
            if part.group == PROFILING_GROUP and not lent:
                continue
            switch_s = min(part.run_s - part.start_s + part.offload_s, part.end_s - part.start_s)
            number = dict(zip(part.nodes, part.numbers, strict=True))
            shares: dict[tuple[float, float, float, bool], list[int]] = {}  # nodes by equal start, end, share and kind of span
            for span in part.node_spans():
                shares.setdefault((span.from_s, span.until_s, span.share, span.tail), []).append(number[span.node])
            for (from_s, until_s, share, tail), nodes in shares.items():
                phase = "tail" if tail else part.phase
                switches_s = min(switch_s, until_s - from_s) if from_s == part.start_s else 0.0
                place = (part.iteration, part.group, part.pool, tuple(nodes))
                runs.append(PhaseRun(part.job_id, phase, *place, from_s, until_s, switches_s, share))
        return runs


def _job_of(fact: Any) -> str | None:
    """Return the job that a fact is about, or None if it is about none or several."""
    if isinstance(fact, JobProfiled):
        return fact.job.id
    return fact.spec.id if isinstance(fact, facts.JobSubmitted) else getattr(fact, "job_id", None)


@cache
def fields_of_kinds() -> dict[type, str]:
    """Return the field of `RunRecord` for each kind of fact, according to the types of the fields."""
    fields: dict[type, str] = {}
    for name, hint in get_type_hints(RunRecord).items():
        kind = get_args(hint)[0] if get_origin(hint) is tuple else hint
        for one in get_args(kind) or (kind,):
            fields.setdefault(one, name)
    return fields


class ColdStarts:
    """Tracks which cold starts of jobs are provisional, both in a run and when its journal is read."""

    def __init__(self) -> None:
        self._facts: dict[str, JobProfiled] = {}
        self._provisional: dict[str, list[PoolName]] = {}

    def profiled(self, fact: JobProfiled) -> None:
        """Record a profile."""
        self._facts[fact.job.id] = fact
        self._provisional[fact.job.id] = [*fact.provisional]

    def observed(self, part: PhaseSlice, spec: JobSpec) -> float | None:
        """Return the seconds of a phase's cold start if they replace a provisional value, else None.

        The phase has to match a profile: on the job's own number of nodes, and with processes that had loaded nothing. The engines
        of a stale job are already loaded when its first rollout begins.
        """
        provisional = self._provisional.get(part.job_id, [])
        if part.phase == "init" or part.phase not in provisional or not (part.ok and part.cold) or part.profile or part.extra:
            return None
        if (spec.staleness and part.phase == "rollout") or len(part.nodes) != getattr(spec, part.phase).nodes:
            return None
        provisional.remove(part.phase)
        return part.run_s - part.start_s - part.permit_s

    def provisional(self, job_id: str) -> tuple[PoolName, ...]:
        """Return the phases of a job whose cold start is provisional."""
        return tuple(self._provisional.get(job_id, ()))

    def describe(self, job_id: str) -> str:
        """Describe how reliable the profile of a job is. Empty if it was measured well, or stated by the user."""
        fact = self._facts.get(job_id)
        if fact is None:
            return ""
        words = ["from the cache of profiles"] if fact.cached else []
        if provisional := self._provisional[job_id]:
            words.append(f"the cold start of its {' and '.join(provisional)} is provisional")
        if fact.without_core:
            words.append(f"its {' and '.join(fact.without_core)} had no core for a good part of the time, which is left out")
        return "; ".join(words)


def cold_starts_of(record: RunRecord) -> ColdStarts:
    """Return the provisional cold starts at the end of a recorded run."""
    known, specs = ColdStarts(), {fact.spec.id: fact.spec for fact in record.submitted}
    for fact in record.profiled:
        if fact.job.id in specs and not specs[fact.job.id].is_attached:  # attached jobs state their times
            known.profiled(fact)
    for part in record.phases:
        if part.job_id in specs:
            known.observed(part, specs[part.job_id])
    return known
