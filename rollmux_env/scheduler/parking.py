"""The running jobs that may be parked for a waiting job, as the rules of the queue say (`park=true`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from math import inf

from rollmux_env.cluster.plan import may_park
from rollmux_env.cluster.state import State

_MOST_TRIED = 10  # jobs that are tried for a waiting job


def parkable_for(state: State, factor: float, keys: Mapping[str, float], job_id: str) -> Iterator[str]:
    """Yield the first running jobs that may be parked for a waiting job, in the order in which they are tried.

    They are of a lower priority, or of the same one with a key above `factor` times that of the waiting job. The lowest priority
    comes first, then the highest key, then the latest arrival.

    Args:
        state: State of the cluster.
        factor: As in `QueueRules`.
        keys: Keys of the running jobs and of the waiting one, by id.
        job_id: Identifier of the waiting job.
    """
    own_priority, most = state.job(job_id).priority, factor * keys[job_id]
    rows, models, arrival_s = state.tables.job_rows, state.tables.models, state.tables.job_records["arrival_s"]
    choices = []
    for other in state.stays.placed_at_s:
        row = rows[other]
        priority = models[row].priority
        if priority < own_priority or (priority == own_priority and keys[other] > most):
            choices.append((priority, -keys[other], -float(arrival_s[row]), -row, other))
    legal = (other for *_, other in sorted(choices) if may_park(state, other))
    yield from islice(legal, _MOST_TRIED)


def next_park_s(state: State, after_s: float) -> float:
    """Return the first time after `after_s` at which a running job has had its place for `min_run_s`, or infinity."""
    ends_s = (since_s + state.cluster.min_run_s for since_s in state.stays.placed_at_s.values())
    return min((end_s for end_s in ends_s if end_s > after_s), default=inf)
