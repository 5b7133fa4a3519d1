"""Pauses of moved jobs. The nodes that a job has left are paid for until its pause ends."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

import numpy as np

from rollmux_env.cluster.group import NodeCounts
from rollmux_env.kernel.tables import ROLLOUT, TRAINING, Ints


class _Pause(NamedTuple):
    until_s: float
    nodes: NodeCounts


class Pauses:
    """The pauses in progress, by job, in order of the moves.

    Args:
        pools: Number of pools.
    """

    def __init__(self, pools: int) -> None:
        self._pools = pools
        self._by_job: dict[str, _Pause] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._by_job

    def copy(self) -> Pauses:
        """Return an independent copy."""
        twin = Pauses(self._pools)
        twin._by_job = self._by_job.copy()
        return twin

    def holds_nodes(self, job_id: str) -> bool:
        """Return whether nodes become unused when the pause of a job ends."""
        nodes = self._by_job[job_id].nodes
        return nodes.rollout_nodes > 0 or nodes.training_nodes > 0

    def begin(self, job_id: str, until_s: float, nodes: NodeCounts) -> None:
        """Record that a job has left nodes in a move."""
        self._by_job[job_id] = _Pause(until_s, nodes)

    def end(self, job_id: str) -> NodeCounts:
        """End the pause of a job, and return the nodes that become unused."""
        return self._by_job.pop(job_id).nodes

    def next_end_s(self) -> float:
        """Return the time at which the next pause ends, or infinity."""
        return min((pause.until_s for pause in self._by_job.values()), default=inf)

    def ending(self, until_s: float) -> list[str]:
        """Return the ids of the jobs whose pause ends by `until_s`."""
        return [job_id for job_id, pause in self._by_job.items() if pause.until_s <= until_s]

    def held_nodes(self, job_ids: Iterable[str] | None = None) -> Ints:
        """Return the nodes of each pool, for rollouts and for trainings, that paused jobs have left, shape (P, 2).

        Args:
            job_ids: Identifiers of the jobs, of which those without a pause do not count, or None for all paused jobs.
        """
        count = np.zeros((self._pools, 2), dtype=np.int64)
        for job_id in self._by_job if job_ids is None else self._by_job.keys() & job_ids:
            nodes = self._by_job[job_id].nodes
            count[nodes.rollout_pool, ROLLOUT] += nodes.rollout_nodes
            count[nodes.training_pool, TRAINING] += nodes.training_nodes
        return count
