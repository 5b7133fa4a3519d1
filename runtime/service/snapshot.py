"""What a service's jobs, groups and pools do at one moment, frozen: reports are made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from rollmux_env.cluster.demand import demand_of, solo_usd_per_hour
from rollmux_env.cluster.state import State
from rollmux_env.keys.job import Job
from rollmux_env.report.job_shapes import shape_in_use
from rollmux_env.scheduler.pace import Pace
from rollmux_env.scheduler.preview import Waiting
from runtime.execution.job_handle import PROFILE, JobHandle
from runtime.execution.nodes import POOLS
from runtime.execution.run_state import RunState
from runtime.journal.facts import Span
from runtime.machine import Pool
from runtime.service.figures import Figures, held_spans

JobState = Literal["waiting", "profiling", "running", "moving", "stopped", "done", "over_budget", "failed", "cancelled"]


@dataclass(frozen=True)
class JobView:
    """A job; docs/reference/service_api.md explains the fields, which are the keys of a report.

    Attributes:
        reason: why it waits; None where it does not. position: its place in the queue, from 1. eta_s: when it is expected to be
            placed. iteration_s: of late. alone_s: of its profile, alone on its own nodes.
        usd: what it has been charged. usd_per_hour: what it is charged, an even part of its group's; None without a place.
            usd_per_hour_solo: of its own nodes.
        profile: seconds by which it is planned. problem: of one that has failed.
    """

    id: str
    user: str
    priority: int
    state: str
    reason: str | None
    position: int | None
    eta_s: float | None
    group: int | None
    nodes: tuple[str, ...]
    phase: str | None
    iteration: int
    iterations: int
    iteration_s: float | None
    alone_s: float | None
    slowdown: float | None
    slo: float
    usd_per_hour: float | None
    usd_per_hour_solo: float | None
    at_risk: bool
    usd: float
    metrics: dict[str, float | None]
    profile: dict[str, float] | None
    problem: str | None


@dataclass(frozen=True)
class GroupView:
    """A co-execution group: names of its nodes, seconds of its period, its price, and that of its members each on its own nodes."""

    id: int
    jobs: tuple[str, ...]
    nodes: tuple[str, ...]
    period_s: float
    usd_per_hour: float
    usd_per_hour_solo: float


@dataclass(frozen=True)
class PoolView:
    """Nodes of a pool: those that run a phase, those of groups that do not, those of no group, and those that are drained, whatever
    they do until they are empty."""

    nodes: int
    busy: int
    idle: int
    free: int
    draining: int
    utilization: float


@dataclass(frozen=True)
class Overview:
    """A service without its jobs and groups.

    Attributes:
        paused: why its journal cannot be written, and so nothing is granted; None where it can.
    """

    folder: str
    policy: str
    dispatch: str
    now_s: float
    stopping: bool
    paused: str | None
    queue: tuple[str, ...]
    pools: dict[Pool, PoolView]
    usd_per_hour: float


def take_overview(run: RunState, figures: Figures) -> Overview:
    """Look at all of a run but its jobs and groups."""
    plan, now_s = run.plan, run.log.now()
    return Overview(
        folder=plan.folder,
        policy=plan.policy,
        dispatch=plan.dispatch,
        now_s=now_s,
        stopping=run.stopping,
        paused=run.log.problem,
        queue=tuple(run.scheduler.state.waiting),
        pools={pool: _pool(run, figures, pool, now_s) for pool in POOLS},
        usd_per_hour=run.scheduler.state.usd_per_hour,
    )


def take_groups(run: RunState) -> Iterator[GroupView]:
    """Look at groups, one after the other."""
    state, names = run.scheduler.state, run.nodes.assigned_by_group()
    for group in state.group_list():
        solo_usd = sum(solo_usd_per_hour(state.job(job_id), run.plan.cluster) for job_id in group.jobs)
        yield GroupView(group.id, group.jobs, tuple(names.get(group.id, ())), group.period_s, group.usd_per_hour, solo_usd)


def state_of_job(run: RunState, figures: Figures, handle: JobHandle) -> JobState:
    """What a job does."""
    state = run.scheduler.state
    if handle.gone:
        return figures.ends[handle.id][0] if handle.id in figures.ends else "stopped"  # type: ignore[return-value]
    if handle.place.group is not None and handle.iteration == PROFILE:
        return "profiling"
    if not state.is_running(handle.id):
        return "waiting"
    return "moving" if handle.place.moving or state.is_paused(handle.id) else "running"


def throughput_gain(run: RunState, groups: Iterable[GroupView]) -> float | None:
    """Work of late per node-hour against solo, where an iteration is worth the node-seconds that it takes alone: of its phases of
    late, without what they wait for; by its profile, which is a worst case, only as long as these are not known. Of groups of which
    every member's pace is known; None where there are none.
    """
    worth = nodes = 0.0
    for group in groups:
        jobs = [run.scheduler.state.job(job_id) for job_id in group.jobs]
        speeds = [(job, speed) for job in jobs if (speed := _speed(run, job))]
        if len(speeds) == len(jobs):
            demands = ((demand_of(job, run.plan.cluster), speed) for job, speed in speeds)
            worth += sum((demand.rollout_nodes + demand.training_nodes) * speed for demand, speed in demands)
            nodes += len(group.nodes)
    return worth / nodes if nodes else None


def _speed(run: RunState, job: Job) -> float | None:
    """How fast a job is of late, as a multiple of how fast it would be alone; None: not known yet."""
    pace = _pace(run, job.id)
    if pace is None or not pace.iteration_s:
        return None
    return (pace.alone_s(job, run.scheduler.state.shape(job.id)) or job.solo_s) / pace.iteration_s


def _pace(run: RunState, job_id: str) -> Pace | None:
    review = run.scheduler.review
    return review.paces.get(job_id) if review is not None else None


def _iteration_s(run: RunState, job_id: str) -> float | None:
    """Seconds of an iteration of late."""
    pace = _pace(run, job_id)
    return pace.iteration_s if pace is not None else None


def _slowdown(run: RunState, job: Job) -> float | None:
    iteration_s = _iteration_s(run, job.id)
    return None if iteration_s is None else iteration_s / job.solo_s


def take_job_view(run: RunState, figures: Figures, handle: JobHandle, place: Waiting | None = None) -> JobView:
    """Look at a job.

    Args:
        place: in the queue, of one that is there.
    """
    job_id, state, review = handle.id, run.scheduler.state, run.scheduler.review
    job = state.job(job_id) if state.knows(job_id) else handle.job
    group = state.group_of(job_id) if state.is_running(job_id) else None
    names = {node.name for nodes in handle.place.nodes.values() for node in nodes} if handle.place.group is not None else set()
    what = state_of_job(run, figures, handle)
    return JobView(
        id=job_id,
        user=handle.spec.user,
        priority=handle.spec.priority,
        state=what,
        reason=(place.reason if place is not None else _reason(run, handle)) if what == "waiting" else None,
        position=place.position if place is not None else None,
        eta_s=place.eta_s if place is not None else None,
        group=handle.place.group if handle.place.group is not None and handle.place.group >= 0 else None,
        nodes=tuple(sorted(names)),
        phase=handle.phase,
        iteration=max(handle.done, 0),
        iterations=handle.spec.iterations,
        iteration_s=_iteration_s(run, job_id),
        alone_s=job.solo_s if job is not None else None,
        slowdown=_slowdown(run, job) if job is not None else None,
        slo=handle.spec.slo,
        usd_per_hour=group.usd_per_hour / len(group.jobs) if group is not None else None,
        usd_per_hour_solo=solo_usd_per_hour(job, run.plan.cluster) if job is not None else None,
        at_risk=review is not None and job_id in review.late,
        usd=state.charged_usd(job_id) if state.knows(job_id) else 0.0,
        metrics={name: value if isfinite(value) else None for name, value in figures.reported.get(job_id, {}).items()},
        profile=_profile(job, state, group.training_nodes if group is not None else None),
        problem=_problem(figures, handle),
    )


def profile_of(job: Job, shape: int = 0, training_nodes: int | None = None) -> dict[str, float]:
    """Seconds by which a job is planned: its worst case in a shape, in a group with so many training nodes, by default with those
    that it asks for; and a whole iteration, as the job is written, on nodes of its own. Of a job with shapes also which it is in.
    """
    planned = shape_in_use(job, shape, training_nodes)
    seconds = {f"{phase}_s": worst_case_s for phase, worst_case_s in planned.worst_case_s.items()}
    return seconds | {"sync_s": job.sync_s, "solo_s": job.solo_s, **({"shape": shape} if job.shapes else {})}


def _profile(job: Job | None, state: State, training_nodes: int | None) -> dict[str, float] | None:
    """Of a job in a group with so many training nodes; None: it is in none."""
    if job is None or not training_nodes:
        return None if job is None else profile_of(job)
    return profile_of(job, state.shape(job.id), training_nodes)


def _reason(run: RunState, handle: JobHandle) -> str:
    """Why a job waits, in words."""
    if handle.spec.arrival_s > run.log.now():
        return "it has not arrived yet"
    return "it waits to be profiled"


def _problem(figures: Figures, handle: JobHandle) -> str | None:
    if handle.gone:
        return figures.ends.get(handle.id, ("", ""))[1] or None
    if handle.saved.full is not None:
        return f"its checkpoint cannot be written: {handle.saved.full}"
    return handle.residency.exceeds or None


def _pool(run: RunState, figures: Figures, pool: Pool, now_s: float) -> PoolView:
    nodes, free = len(run.nodes.nodes(pool)), len(run.nodes.free(pool))
    holding: list[Span] = []
    for handle in run.handles.values():
        if handle.permits.holds:
            names = {node.name for phase in handle.permits.holds for node in handle.nodes_of(phase) if node.pool == pool}
            holding += (span for span in held_spans(run, handle, now_s) if span.node in names)
    drained = run.nodes.drained
    draining = sum(node.name in drained for node in run.nodes.nodes(pool))
    busy = len({span.node for span in holding if span.until_s == now_s} - drained)
    share = figures.usage.share(pool, nodes, holding, now_s)
    return PoolView(nodes, busy, nodes - free - busy - draining, free, draining, share)
