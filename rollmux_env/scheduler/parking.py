"""The running jobs that may be parked for a waiting job, as the rules of the queue say (`park=true`)."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Parked
from rollmux_env.cluster.plan import may_park
from rollmux_env.cluster.state import State
from rollmux_env.scheduler.order import QueueRules

_MOST_TRIED = 10  # jobs that are tried for a waiting job


def parkable_for(state: State, rules: QueueRules, job_id: str) -> list[str]:
    """Return the first running jobs that may be parked for a waiting job, in the order in which they are tried.

    They are of a lower priority, or of the same one with a key above `factor` times that of the waiting job. The lowest priority
    comes first, then the highest key, then the latest arrival.
    """
    running = [*state.stays.since_s]
    *keys, own_key = rules.keys(state, [*running, job_id])
    own_priority, most = state.job(job_id).priority, rules.factor * own_key
    choices = []
    for other, key in zip(running, keys, strict=True):
        priority = state.job(other).priority
        if priority < own_priority or (priority == own_priority and key > most):
            row = state.row(other)
            choices.append((priority, -key, -float(state.tables.job_records["arrival_s"][row]), -row, other))
    legal = (other for *_, other in sorted(choices) if may_park(state, other))
    return [other for other, _ in zip(legal, range(_MOST_TRIED), strict=False)]


def without_each(state: State, job_ids: list[str]) -> Iterator[tuple[str, State]]:
    """Yield each job, and a copy of the state in which it is parked."""
    for job_id in job_ids:
        twin = state.copy()
        apply(twin, Parked(state.now_s, job_id))
        yield job_id, twin


def next_park_s(state: State, after_s: float) -> float:
    """Return the first time after `after_s` at which a running job has had its place for `min_run_s`, or infinity."""
    ends_s = (since_s + state.cluster.min_run_s for since_s in state.stays.since_s.values())
    return min((end_s for end_s in ends_s if end_s > after_s), default=inf)
