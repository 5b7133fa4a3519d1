"""A run as its facts tell it: report, comparison and recovery read it, from the journal.

The event log (`RunRecord.log`) is that of a replay: applying it gives the state, `rollmux_env.report.lanes.follow` gives the nodes
that every group had, and `RunRecord.phase_runs` the phases, so that whatever reads a replay reads a run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import get_args, get_origin, get_type_hints

from rollmux_env.cluster.events import Event, OverBudget
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Job
from rollmux_env.replay.run import PhaseRun
from runtime.journal.facts import (
    LEASE,
    Absent,
    Assigned,
    Attached,
    Bound,
    Cancelled,
    Checkpointed,
    Confined,
    Continued,
    Drained,
    Ended,
    Exceeded,
    Failed,
    Freed,
    Granted,
    Iteration,
    Joined,
    LeaseEnded,
    Offloaded,
    PhaseSlice,
    Profiled,
    Relaunched,
    Restarted,
    Returned,
    SoloIteration,
    Started,
    Submitted,
    Suspected,
    SyncSlice,
    Undrained,
)
from runtime.machine import Node


@dataclass(frozen=True)
class RunRecord:
    """A run, its facts by kind and in order of time.

    Attributes:
        ended: None where the run was killed.
        iterations: those that count; repeated: those that a job has done again since.
        bounds: with `--compare solo`, what taking turns could gain here, one a pairing of phases of the first two jobs; else none.
        solo: with `--compare solo`, iterations of jobs alone behind their last ones; else none.
    """

    started: Started
    relaunched: tuple[Relaunched, ...] = ()
    log: tuple[Event, ...] = ()
    submitted: tuple[Submitted, ...] = ()
    cancelled: tuple[Cancelled, ...] = ()
    drained: tuple[Drained, ...] = ()
    undrained: tuple[Undrained, ...] = ()
    joined: tuple[Joined, ...] = ()
    profiled: tuple[Profiled, ...] = ()
    assigned: tuple[Assigned, ...] = ()
    returned: tuple[Returned, ...] = ()
    phases: tuple[PhaseSlice, ...] = ()
    offloaded: tuple[Offloaded, ...] = ()
    syncs: tuple[SyncSlice, ...] = ()
    iterations: tuple[Iteration, ...] = ()
    repeated: tuple[Iteration, ...] = ()
    checkpointed: tuple[Checkpointed, ...] = ()
    absent: tuple[Absent, ...] = ()
    restarted: tuple[Restarted, ...] = ()
    failed: tuple[Failed, ...] = ()
    attached: tuple[Attached, ...] = ()
    confined: tuple[Confined, ...] = ()
    exceeded: tuple[Exceeded, ...] = ()
    granted: tuple[Granted, ...] = ()
    leases_ended: tuple[LeaseEnded, ...] = ()
    suspected: tuple[Suspected, ...] = ()
    freed: tuple[Freed, ...] = ()
    continued: tuple[Continued, ...] = ()
    ended: Ended | None = None
    bounds: tuple[Bound, ...] = ()
    solo: tuple[SoloIteration, ...] = ()

    @property
    def jobs(self) -> dict[str, Job]:
        """Jobs by id, as the policy saw them."""
        return {profiled.job.id: profiled.job for profiled in self.profiled}

    def iterations_of(self, job_id: str) -> list[Iteration]:
        """A job's iterations that count, in order."""
        return [done for done in self.iterations if done.job_id == job_id]

    @property
    def over_budget(self) -> frozenset[str]:
        """Ids of the jobs that ended since their budget was spent."""
        return frozenset(event.job_id for event in self.log if isinstance(event, OverBudget))

    @property
    def nodes(self) -> dict[str, Node]:
        """All nodes that the run ever had, by name, as they were last."""
        later: list[Relaunched | Joined] = [*self.relaunched, *self.joined]
        later.sort(key=lambda fact: fact.at_s)
        return {node.name: node for nodes in (self.started.nodes, *(fact.nodes for fact in later)) for node in nodes}

    @property
    def drained_nodes(self) -> set[str]:
        """Names of the nodes that were drained, and have not been taken back since."""
        changes: list[Drained | Undrained] = [*self.undrained, *self.drained]
        changes.sort(key=lambda fact: fact.at_s)
        last = {fact.node: fact for fact in changes}
        return {name for name, fact in last.items() if isinstance(fact, Drained)}

    @property
    def cluster(self) -> Cluster:
        """As the run was begun; nodes that have joined since come on top of what it may have."""
        more: Counter[str] = Counter(node.pool for fact in self.joined for node in fact.nodes)
        grown: dict[str, Pool] = {}
        for name, pool in self.started.cluster.pools.items():
            if pool.max_nodes is not None:
                grown[name] = pool.model_copy(update={"max_nodes": pool.max_nodes + more[name]})
        return self.started.cluster.with_pools(grown)

    @property
    def last_s(self) -> float:
        """The last time that the record knows, seconds."""
        every = (fact for name in {*fields_of_kinds().values(), "repeated"} for fact in getattr(self, name))
        times = (float(getattr(fact, "at_s", getattr(fact, "end_s", 0.0))) for fact in every)
        return max(self.ended.at_s if self.ended else 0.0, *times, 0.0)

    def wall_s(self, at_s: float) -> float:
        """Seconds since 1970 at a time of the run."""
        before = [fact for fact in self.relaunched if fact.at_s <= at_s]
        return at_s + (before[-1].wall_s - before[-1].at_s if before else self.started.wall_s)

    def phase_runs(self, lent: bool = False) -> list[PhaseRun]:
        """The phases of groups as a replay lists them. What is not the method itself (the permit's way, loading, offloading) is
        their `switch_s`.

        Args:
            lent: those on lent nodes too, in the group `LEASE`.
        """
        runs = []
        for part in self.phases:
            if part.group == LEASE and not lent:
                continue
            switch_s = min(part.run_s - part.start_s + part.offload_s, part.end_s - part.start_s)
            number = dict(zip(part.nodes, part.numbers, strict=True))
            shares: dict[tuple[float, float, float, bool], list[int]] = {}  # nodes of which it held the same for the same time
            for span in part.node_spans():
                shares.setdefault((span.from_s, span.until_s, span.share, span.tail), []).append(number[span.node])
            for (from_s, until_s, share, tail), nodes in shares.items():
                phase = "tail" if tail else part.phase
                switches_s = min(switch_s, until_s - from_s) if from_s == part.start_s else 0.0
                place = (part.iteration, part.group, part.pool, tuple(nodes))
                runs.append(PhaseRun(part.job_id, phase, *place, from_s, until_s, switches_s, share))
        return runs


@cache
def fields_of_kinds() -> dict[type, str]:
    """The field of `RunRecord` that keeps the facts of a kind, as the types of the fields say."""
    fields: dict[type, str] = {}
    for name, hint in get_type_hints(RunRecord).items():
        if get_origin(hint) is tuple:
            kind = get_args(hint)[0]
            for one in get_args(kind) or (kind,):
                fields.setdefault(one, name)
    return fields
