"""The running jobs that may be parked for a waiting job, as the rules of the queue say (`park=true`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
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
    own_priority, most = state.job(job_id).priority, factor * ranker.key(job_id)
    rows, models, arrival_s = state.tables.job_rows, state.tables.models, state.tables.job_records["arrival_s"]
    priorities = {other: models[rows[other]].priority for other in state.stays.placed_at_s if has_run_enough(state, other)}
    lower = [other for other, priority in priorities.items() if priority < own_priority]
    same = [other for other, priority in priorities.items() if priority == own_priority and ranker.may_exceed(other, most)]
    if len(lower) + len(same) <= _MOST_TRIED:  # all are tried, so those left out make no room for others
        lower, same = ([other for other in some if (job_id, other) not in declined] for some in (lower, same))
    if not (lower or same):
        return
    keys = ranker.keys_of_running(state, lower + same)
    choices = [
        (priorities[other], -keys[other], -float(arrival_s[rows[other]]), -rows[other], other)
        for other in (*lower, *(other for other in same if keys[other] > most))
    ]
    legal = (other for *_, other in sorted(choices) if may_park(state, other))
    yield from (other for other in islice(legal, _MOST_TRIED) if (job_id, other) not in declined)


def next_park_s(state: State, after_s: float) -> float:
    """Return the first time after `after_s` at which a running job has had its place for `min_run_s`, or infinity."""
    least_s = state.cluster.min_run_s
    ends_s = [since_s + least_s for since_s in state.stays.placed_at_s.values()]
    return min([end_s for end_s in ends_s if end_s > after_s], default=inf)
