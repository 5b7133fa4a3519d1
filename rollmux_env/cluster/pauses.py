"""Jobs in the pause of a move: the nodes that they have left are paid for until it ends."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from rollmux_env.cluster.group import Nodes
from rollmux_env.kernel.tables import ROLLOUT, TRAINING, Ints


class _Pause(NamedTuple):
    until_s: float
    nodes: Nodes


class Pauses:
    """The pauses of now, by job, in order of the moves, on nodes of so many pools."""

    def __init__(self, pools: int) -> None:
        self._pools = pools
        self._by_job: dict[str, _Pause] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._by_job

    def copy(self) -> Pauses:
        """Pauses of their own."""
        twin = Pauses(self._pools)
        twin._by_job = self._by_job.copy()
        return twin

    def begin(self, job_id: str, until_s: float, nodes: Nodes) -> None:
        """A job has left such nodes."""
        self._by_job[job_id] = _Pause(until_s, nodes)

    def end(self, job_id: str) -> Nodes:
        """A pause is over: the nodes that nobody needs any more."""
        return self._by_job.pop(job_id).nodes

    def next_end_s(self) -> float:
        """When the next one ends; infinite where there is none."""
        return min((pause.until_s for pause in self._by_job.values()), default=inf)

    def ending(self, until_s: float) -> list[str]:
        """Ids of the jobs whose pause ends by `until_s`."""
        return [job_id for job_id, pause in self._by_job.items() if pause.until_s <= until_s]

    def held_nodes(self) -> Ints:
        """(P, 2) nodes of each pool, for rollouts and for trainings, that moved jobs have left: they are paid for."""
        count = np.zeros((self._pools, 2), dtype=np.int64)
        for _, nodes in self._by_job.values():
            count[nodes.rollout_pool, ROLLOUT] += nodes.rollout_nodes
            count[nodes.training_pool, TRAINING] += nodes.training_nodes
        return count
