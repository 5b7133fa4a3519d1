"""What a service's jobs, groups and pools do at one moment, frozen: reports are made of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from runtime.execution.job_handle import PROFILE, JobHandle
from runtime.execution.nodes import POOLS
from runtime.execution.run_state import RunState
from runtime.facts import Pool, Span
from runtime.service.figures import Figures, held_spans

JobState = Literal["waiting", "profiling", "running", "moving", "stopped", "done", "over_budget", "failed", "cancelled"]


@dataclass(frozen=True)
class JobView:
    """A job; docs/guides/serve.md explains the fields, which are the keys of a report."""

    id: str
    state: str
    group: int | None
    nodes: tuple[str, ...]
    phase: str | None
    iteration: int
    of: int
    iteration_s: float | None
    slowdown: float | None
    slo: float
    at_risk: bool
    reward: float | None
    problem: str | None


@dataclass(frozen=True)
class GroupView:
    """A co-execution group: names of its nodes, seconds of its period, and its price."""

    group: int
    jobs: tuple[str, ...]
    nodes: tuple[str, ...]
    period_s: float
    usd_per_hour: float


@dataclass(frozen=True)
class PoolView:
    """Nodes of a pool: those that run a phase, those of groups that do not, and those of no group."""

    nodes: int
    busy: int
    idle: int
    free: int
    utilization: float


@dataclass(frozen=True)
class Snapshot:
    """A service.

    Attributes:
        paused: why its journal cannot be written, and so nothing is granted; None where it can.
    """

    folder: str
    policy: str
    dispatch: str
    time_s: float
    stopping: bool
    paused: str | None
    queue: tuple[str, ...]
    jobs: tuple[JobView, ...]
    groups: tuple[GroupView, ...]
    pools: dict[Pool, PoolView]
    usd_per_hour: float


def take_snapshot(run: RunState, figures: Figures) -> Snapshot:
    """Look at a run."""
    plan, state, now_s = run.plan, run.scheduler.state, run.log.now()
    groups = tuple(
        GroupView(group.id, group.jobs, tuple(run.nodes.assigned(group.id)), group.period_s, group.usd_per_hour)
        for group in state.group_list()
    )
    return Snapshot(
        folder=plan.folder,
        policy=plan.policy,
        dispatch=plan.dispatch,
        time_s=now_s,
        stopping=run.stopping,
        paused=run.log.problem,
        queue=tuple(state.waiting),
        jobs=tuple(_job(run, figures, handle) for handle in run.handles.values()),
        groups=groups,
        pools={pool: _pool(run, figures, pool, now_s) for pool in POOLS},
        usd_per_hour=state.usd_per_hour,
    )


def state_of_job(run: RunState, figures: Figures, handle: JobHandle) -> JobState:
    """What a job does."""
    state = run.scheduler.state
    if handle.gone:
        return figures.ends[handle.id][0] if handle.id in figures.ends else "stopped"  # type: ignore[return-value]
    if handle.group is not None and handle.iteration == PROFILE:
        return "profiling"
    if not state.is_running(handle.id):
        return "waiting"
    return "moving" if handle.moving or state.is_paused(handle.id) else "running"


def _job(run: RunState, figures: Figures, handle: JobHandle) -> JobView:
    job_id, state, review = handle.id, run.scheduler.state, run.scheduler.review
    pace = review.paces.get(job_id) if review is not None else None
    job = state.job(job_id) if state.knows(job_id) else handle.job
    iteration_s = pace.iteration_s if pace else None
    reward = figures.reported.get(job_id, {}).get("reward")
    names = {node.name for nodes in handle.nodes.values() for node in nodes} if handle.group is not None else set()
    return JobView(
        id=job_id,
        state=state_of_job(run, figures, handle),
        group=handle.group if handle.group is not None and handle.group >= 0 else None,
        nodes=tuple(sorted(names)),
        phase=handle.hold.pool if handle.hold else None,
        iteration=max(handle.done, 0),
        of=handle.spec.iterations,
        iteration_s=iteration_s,
        slowdown=iteration_s / job.solo_s if iteration_s is not None and job is not None else None,
        slo=handle.spec.slo,
        at_risk=review is not None and job_id in review.late,
        reward=reward if reward is not None and isfinite(reward) else None,
        problem=_problem(figures, handle),
    )


def _problem(figures: Figures, handle: JobHandle) -> str | None:
    if handle.gone:
        return figures.ends.get(handle.id, ("", ""))[1] or None
    return f"its checkpoint cannot be written: {handle.full}" if handle.full is not None else None


def _pool(run: RunState, figures: Figures, pool: Pool, now_s: float) -> PoolView:
    nodes, free = len(run.nodes.nodes(pool)), len(run.nodes.free(pool))
    holding: list[Span] = []
    for handle in run.handles.values():
        if handle.hold is not None and handle.pool_of(handle.hold.pool) == pool:
            holding += held_spans(run, handle, now_s)
    busy = len({span.node for span in holding if span.until_s == now_s})
    return PoolView(nodes, busy, nodes - free - busy, free, figures.usage.share(pool, nodes, holding, now_s))
