"""Lines for the user about what the scheduler has decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from rollmux_env.cluster.apply import forecast
from rollmux_env.cluster.plan import Policy
from rollmux_env.keys.job import Job
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.preview import explain_waits
from runtime.machines.forecast import shape_lines
from runtime.machines.nodes import POOLS


def reason_to_wait(scheduler: Scheduler, make_policy: Callable[[], Policy], job_id: str) -> str:
    """Return words about why a job waits for a place.

    Args:
        scheduler: The scheduler.
        make_policy: Factory of policies like the scheduler's.
        job_id: Id of the job.
    """
    planner = scheduler.planner
    if leaving := describe_reserved(scheduler, job_id):
        return leaving
    return explain_waits(forecast(planner.visible(planner.state)), make_policy(), describe_confined(scheduler, [job_id]))[job_id]


def describe_reserved(scheduler: Scheduler, job_id: str) -> str:
    """Return why a waiting job gets no place while jobs are about to be parked, for it or for another one, or an empty text.

    Args:
        scheduler: The scheduler.
        job_id: Id of the job.
    """
    parking = scheduler.planner.parking
    if leaving := [other for other, waiting in parking.items() if waiting == job_id]:
        return f"{', '.join(leaving)} is parked for it at the end of its iteration"
    return f"no job gets a place before {', '.join(parking)} is parked at the end of its iteration" if parking else ""


def describe_confined(scheduler: Scheduler, job_ids: Iterable[str]) -> dict[str, str]:
    """Return why waiting jobs that may use only some nodes have no place, by id: how many of these nodes are free.

    Args:
        scheduler: The scheduler of a run.
        job_ids: Ids of waiting jobs.
    """
    confined, nodes = scheduler.restrictions.confined, scheduler.nodes
    if nodes is None or not confined:
        return {}
    free = {pool: {node.name for node in nodes.free(pool)} for pool in POOLS if pool in scheduler.state.cluster.sides}
    words = {}
    for job_id in confined.keys() & {*job_ids}:
        counts = " and ".join(f"{len(names & confined[job_id])} {pool}" for pool, names in free.items())
        words[job_id] = f"may use only nodes of its owner's host, or those that it names: {counts} nodes of these are free"
    return words


def measured_again(doubts: str) -> str:
    """Return words about doubts in a job's profile and how to measure it again, or ""."""
    return f" ({doubts}; `rollmux run --no-cache` measures it again)" if doubts else ""


def profile_lines(former: Job | None, job: Job) -> Iterator[str]:
    """Yield lines for the user about what has changed in a job's profile."""
    if former is not None and (replaced := _cold_starts(former, job)):
        yield replaced
    elif not job.movable:
        return
    elif former is not None and former.shapes != job.shapes:
        yield from shape_lines(former, job)
    elif former is not None and _kept_gb(former) != _kept_gb(job):
        rollout_gb, training_gb = _kept_gb(job)
        yield f"keeps more of its GPUs than its profile says: {rollout_gb:.2f} and {training_gb:.2f} GB of each from now on"
    else:
        yield (
            f"takes longer than its profile says: rollout {job.rollout.worst_case_s:.2f} s, "
            f"training {job.training.worst_case_s:.2f} s, sync {job.sync_s:.3f} s from now on"
        )


def _kept_gb(job: Job) -> tuple[float, float]:
    return job.rollout.device_gb, job.training.device_gb


def _cold_starts(former: Job, job: Job) -> str:
    """Return a line about observed cold starts that replace those of the profile, or ""."""
    before, after = ({pool: getattr(one, pool).switch.cold_s for pool in POOLS} for one in (former, job))
    replaced = [pool for pool in POOLS if after[pool] != before[pool]]
    changes = [f"its {pool} took {after[pool]:.2f} s, in place of {before[pool]:.2f} s" for pool in replaced]
    return f"the cold start of {' and of '.join(changes)} in its profile" if changes else ""
