"""The running jobs that may be parked for a waiting job, as the rules of the queue say (`park=true`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from math import inf

from rollmux_env.cluster.plan import has_run_enough, may_park
from rollmux_env.cluster.state import State
from rollmux_env.scheduler.ranking import Ranker

_MOST_TRIED = 10  # jobs that are tried for a waiting job


def parkable_for(state: State, ranker: Ranker, factor: float, job_id: str, declined: Collection[tuple[str, str]]) -> Iterator[str]:
    """Yield the first running jobs that may be parked for a waiting job, in the order in which they are tried.

    They are of a lower priority, or of the same one with a key above `factor` times that of the waiting job. The lowest priority
    comes first, then the highest key, then the latest arrival. Those that have been tried are left out.

    Args:
        state: State of the cluster.
        ranker: Ranker that has ranked the queue in this state.
        factor: As in `QueueRules`.
        job_id: Identifier of the waiting job.
        declined: Pairs of a waiting job and a running one that have been tried, as in `Planner`.
    """
    rows, models, arrival_s = state.tables.job_rows, state.tables.models, state.tables.job_records["arrival_s"]
    own_priority, most = state.job(job_id).priority, factor * ranker.key(job_id)

    def may_be_behind(other: str) -> bool:
        priority = models[rows[other]].priority
        return priority < own_priority or (priority == own_priority and ranker.may_exceed(other, most))

    others = [other for other in state.stays.placed_at_s if may_be_behind(other) and has_run_enough(state, other)]
    if len(others) <= _MOST_TRIED:  # all are tried, so those left out make no room for others
        others = [other for other in others if (job_id, other) not in declined]
    if not others:
        return
    keys = ranker.keys_of_running(state, others)
    choices = [
        (models[rows[other]].priority, -keys[other], -float(arrival_s[rows[other]]), -rows[other], other)
        for other in others
        if models[rows[other]].priority < own_priority or keys[other] > most
    ]
    legal = (other for *_, other in sorted(choices) if may_park(state, other))
    yield from (other for other in islice(legal, _MOST_TRIED) if (job_id, other) not in declined)


def may_gain(state: State, ranker: Ranker, factor: float, job_ids: Sequence[str]) -> list[bool]:
    """Return whether `parkable_for` may find a running job for each of some waiting ones. False is certain.

    Args:
        state: State of the cluster.
        ranker: Ranker that has ranked the queue in this state.
        factor: As in `QueueRules`.
        job_ids: Identifiers of the waiting jobs.
    """
    if not job_ids:  # then no running job has been ranked either
        return []
    others = [other for other in state.stays.placed_at_s if has_run_enough(state, other)]
    keys, highest = ranker.keys_of_running(state, others), dict[int, float]()
    for other in others:
        priority = state.job(other).priority
        highest[priority] = max(keys[other], highest.get(priority, -inf))
    lowest, priorities = min(highest, default=inf), [state.job(job_id).priority for job_id in job_ids]
    return [
        lowest < priority or highest.get(priority, -inf) > factor * ranker.key(job_id)
        for job_id, priority in zip(job_ids, priorities, strict=True)
    ]


def next_park_s(state: State, after_s: float) -> float:
    """Return the first time after `after_s` at which a running job has had its place for `min_run_s`, or infinity."""
    least_s = state.cluster.min_run_s
    ends_s = [since_s + least_s for since_s in state.stays.placed_at_s.values()]
    return min([end_s for end_s in ends_s if end_s > after_s], default=inf)
