"""One solution for the present jobs: worker sets, the residents of each, and the speed of every job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from policies.placement.gavel.program import Problem, solve
from policies.placement.gavel.resources import RunMode, Shape, fastest_mode, nodes_of, shapes, speeds
from policies.placement.gavel.rounds import fill
from rollmux_env.keys.cluster import Cluster
from rollmux_env.keys.job import Job


@dataclass(frozen=True)
class TimeShare:
    """A job's part in a worker set.

    Attributes:
        job_id: whose.
        share: fraction of the set's time.
        mode: how it runs there.
    """

    job_id: str
    share: float
    mode: RunMode


@dataclass(frozen=True)
class Allocation:
    """Worker sets and the shares of their time that jobs have.

    Attributes:
        sets: shape of each set and the shares of its time.
        relaxed_usd_per_hour: the linear program's value without whole numbers: no whole sets cost less.
    """

    sets: tuple[tuple[Shape, tuple[TimeShare, ...]], ...] = ()
    relaxed_usd_per_hour: float = 0.0

    @property
    def nodes(self) -> Counter[str]:
        """Nodes of all sets, by name of the pool."""
        return sum((nodes_of(shape) for shape, _ in self.sets), Counter())

    def time_shares(self) -> list[TimeShare]:
        """All shares, set by set."""
        return [time_share for _, time_shares in self.sets for time_share in time_shares]

    def without(self, job_ids: set[str]) -> Allocation:
        """The allocation without some jobs; unused sets are released."""
        sets = [
            (shape, tuple(time_share for time_share in time_shares if time_share.job_id not in job_ids))
            for shape, time_shares in self.sets
        ]
        return Allocation(tuple((shape, time_shares) for shape, time_shares in sets if time_shares), self.relaxed_usd_per_hour)


def allocate(jobs: Sequence[Job], cluster: Cluster, training_slowdown: float | None) -> Allocation | None:
    """Solve the program for some jobs and fill the worker sets; None where `max_nodes` allows no allocation, or none was found.

    Args:
        training_slowdown: as `Gavel`.
    """
    if not jobs:
        return Allocation()
    kinds = shapes(jobs, training_slowdown)
    modes = [[fastest_mode(job, shape, cluster, training_slowdown) for shape in kinds] for job in jobs]
    pools = {name: pool for name, pool in cluster.pools.items() if any(name in nodes_of(kind) for kind in kinds)}
    nodes = np.array([[nodes_of(kind)[name] for name in pools] for kind in kinds], dtype=np.int64)
    problem = Problem(
        speed=speeds(jobs, modes),
        least=np.array([1 / job.slo for job in jobs]),
        nodes=nodes,
        usd_per_hour=(nodes * [pool.usd_per_node_hour for pool in pools.values()]).sum(axis=1),
        nodes_max=[inf if pool.max_nodes is None else pool.max_nodes for pool in pools.values()],
    )
    solution = solve(problem)
    if solution is None:
        return None
    sets = []
    for worker_set in fill(solution, modes, kinds, cluster):
        time_shares = []
        for number, share in worker_set.shares.items():
            mode = modes[number][worker_set.kind]
            assert mode is not None
            time_shares.append(TimeShare(jobs[number].id, share, mode))
        sets.append((kinds[worker_set.kind], tuple(time_shares)))
    allocation = Allocation(tuple(sets), solution.relaxed_usd_per_hour)
    return None if too_many(allocation.nodes, cluster) else allocation


def too_many(nodes: Counter[str], cluster: Cluster) -> list[str]:
    """Names of the pools that do not have so many nodes."""
    return [name for name, pool in cluster.pools.items() if pool.max_nodes is not None and nodes[name] > pool.max_nodes]
