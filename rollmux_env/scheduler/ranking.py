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

    def rank_jobs(self, state: State) -> list[str]:
        """Return the waiting jobs in the order in which they are served."""
        rules, keys, waiting = self._rules, self._keys, state.waiting
        if rules is None or not waiting:
            return [*waiting]
        if not rules.keeps_keys:
            queue, self._keys = compute_ranking(state, rules)
            return queue
        if self._last is None or self._last[0] != waiting:
            self._compute(state, rules, [job_id for job_id in waiting if job_id not in keys])
            self._last = [*waiting], _sort_by_key(state, keys)
        return self._last[1]

    def get_key(self, job_id: str) -> float:
        """Return the key that a waiting job has in the last ranking."""
        return self._keys[job_id]

    def may_exceed(self, job_id: str, key: float) -> bool:
        """Compare the last known key of a running job with a number.

        Args:
            job_id: Identifier of the job.
            key: Number to compare with.

        Returns:
            False if the key is not above the number. True if it is, or if that is not known without computing the key again.
        """
        return self._rules is None or not self._rules.falls or self._keys.get(job_id, inf) > key

    def keys_of_running(self, state: State, job_ids: list[str]) -> Mapping[str, float]:
        """Return the keys of running jobs by id. The mapping may have other jobs too.

        Args:
            state: State of the cluster in which the queue was ranked last.
            job_ids: Identifiers of the running jobs.
        """
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


def compute_ranking(state: State, rules: QueueRules | None) -> Ranking:
    """Return the waiting jobs in the order in which they are served, with their keys."""
    waiting = state.waiting
    if rules is None or not waiting:
        return Ranking([*waiting], {})
    job_ids = [*waiting, *state.stays.placed_at_s] if rules.park else waiting
    keys = dict(zip(job_ids, rules.keys(state, job_ids), strict=True))
    return Ranking(_sort_by_key(state, keys), keys)


def _sort_by_key(state: State, keys: Mapping[str, float]) -> list[str]:
    """Return the waiting jobs by falling priority, then by key; jobs of one key stay in the order of the queue."""
    waiting = state.waiting
    if state.job(waiting[0]).priority == state.job(waiting[-1]).priority:  # the queue is by priority
        return sorted(waiting, key=keys.__getitem__)
    return sorted(waiting, key=lambda job_id: (-state.job(job_id).priority, keys[job_id]))
