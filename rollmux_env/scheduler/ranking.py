"""The rank of waiting jobs: by priority, then by the key of an order, then by arrival."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from rollmux_env.cluster.events import Arrived, Departed, Event, Parked, Progressed, Reprofiled
from rollmux_env.cluster.state import State
from rollmux_env.scheduler.order import QueueRules


class Ranking(NamedTuple):
    """The waiting jobs in order.

    Attributes:
        queue: Identifiers of the waiting jobs in the order in which they are served.
        keys: Keys of the waiting jobs by id, and of the running ones if they may be parked; empty without rules.
    """

    queue: list[str]
    keys: dict[str, float]


class Ranker:
    """Ranks the queue at every instant, and computes no key again that stays the same.

    Args:
        rules: Rules by which waiting jobs are served, or None for one first-come queue.
    """

    def __init__(self, rules: QueueRules | None) -> None:
        self._rules = rules
        # Under an order that keeps keys: keys as computed last, exact while a job waits. Else the keys of the last ranking.
        self._keys: dict[str, float] = {}
        self._last: tuple[list[str], list[str]] | None = None  # waiting jobs, and their order, if no key has changed since

    def queue(self, state: State) -> list[str]:
        """Return the waiting jobs in the order in which they are served."""
        rules, keys, waiting = self._rules, self._keys, state.waiting
        if rules is None or not waiting:
            return [*waiting]
        if not rules.keeps_keys:
            queue, self._keys = ranked(state, rules)
            return queue
        if self._last is None or self._last[0] != waiting:
            self._compute(state, rules, [job_id for job_id in waiting if job_id not in keys])
            self._last = [*waiting], _by_key(state, keys)
        return self._last[1]

    def key(self, job_id: str) -> float:
        """Return the key of a waiting job, since the queue was ranked."""
        return self._keys[job_id]

    def may_exceed(self, job_id: str, key: float) -> bool:
        """Return whether the key of a running job may be above a number, by what is known of it. False is certain."""
        return self._rules is None or not self._rules.falls or self._keys.get(job_id, inf) > key

    def keys_of_running(self, state: State, job_ids: list[str]) -> Mapping[str, float]:
        """Return a mapping with the keys of running jobs, since the queue was ranked."""
        if self._rules is not None and self._rules.keeps_keys:
            self._compute(state, self._rules, job_ids)
        return self._keys

    def follow(self, event: Event) -> None:
        """Forget the keys of jobs that an event changes."""
        match event:
            case Arrived(job=job) | Reprofiled(job=job):
                self._forget(job.id)
            case Parked(job_id=job_id) | Departed(job_id=job_id):
                self._forget(job_id)
            case Progressed(jobs=jobs):
                for progress in jobs:
                    self._forget(progress.job_id)

    def _forget(self, job_id: str) -> None:
        if self._keys.pop(job_id, None) is not None:
            self._last = None

    def _compute(self, state: State, rules: QueueRules, job_ids: list[str]) -> None:
        if job_ids:
            self._keys.update(zip(job_ids, rules.keys(state, job_ids), strict=True))


def ranked(state: State, rules: QueueRules | None) -> Ranking:
    """Return the waiting jobs in the order in which they are served, with their keys."""
    waiting = state.waiting
    if rules is None or not waiting:
        return Ranking([*waiting], {})
    job_ids = [*waiting, *state.stays.placed_at_s] if rules.park else waiting
    keys = dict(zip(job_ids, rules.keys(state, job_ids), strict=True))
    return Ranking(_by_key(state, keys), keys)


def _by_key(state: State, keys: Mapping[str, float]) -> list[str]:
    """Return the waiting jobs by falling priority, then by key; jobs of one key stay in the order of the queue."""
    waiting = state.waiting
    if state.job(waiting[0]).priority == state.job(waiting[-1]).priority:  # the queue is by priority
        return sorted(waiting, key=keys.__getitem__)
    return sorted(waiting, key=lambda job_id: (-state.job(job_id).priority, keys[job_id]))
