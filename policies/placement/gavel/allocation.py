"""One solution for the present jobs: worker sets, the residents of each, and the speed of every job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policies.placement.gavel.program import Problem, solve
from policies.placement.gavel.resources import Shape, Way, fastest_way, shapes, speeds
from policies.placement.gavel.rounds import fill
from rollmux_env.kernel.tables import Limits
from rollmux_env.scenario import Job


@dataclass(frozen=True)
class Turn:
    """A job's part in a worker set.

    Attributes:
        job_id: whose.
        share: fraction of the set's time.
        way: how it runs there.
    """

    job_id: str
    share: float
    way: Way


@dataclass(frozen=True)
class Allocation:
    """Worker sets and the turns of their jobs.

    Attributes:
        sets: shape of each set and the turns on it.
        relaxed_usd_per_hour: the linear program's value without whole numbers: no whole sets cost less.
    """

    sets: tuple[tuple[Shape, tuple[Turn, ...]], ...] = ()
    relaxed_usd_per_hour: float = 0.0

    @property
    def nodes(self) -> tuple[int, int]:
        """Rollout and training nodes of all sets."""
        return sum(shape[0] for shape, _ in self.sets), sum(shape[1] for shape, _ in self.sets)

    def turns(self) -> list[Turn]:
        """All turns, set by set."""
        return [turn for _, turns in self.sets for turn in turns]

    def without(self, job_ids: set[str]) -> Allocation:
        """The allocation without some jobs; unused sets are released."""
        kept = [(shape, tuple(turn for turn in turns if turn.job_id not in job_ids)) for shape, turns in self.sets]
        return Allocation(tuple((shape, turns) for shape, turns in kept if turns), self.relaxed_usd_per_hour)


def allocate(jobs: Sequence[Job], limits: Limits, training_slowdown: float | None) -> Allocation | None:
    """Solve the program for some jobs and fill the worker sets; None where `max_nodes` allows no allocation, or none was found.

    Args:
        training_slowdown: as `Gavel`.
    """
    if not jobs:
        return Allocation()
    kinds = shapes(jobs, training_slowdown)
    ways = [[fastest_way(job, shape, limits, training_slowdown) for shape in kinds] for job in jobs]
    nodes = np.array(kinds, dtype=np.int64)
    problem = Problem(
        speed=speeds(jobs, ways),
        least=np.array([1 / job.slo for job in jobs]),
        nodes=nodes,
        usd_per_hour=nodes @ np.array([limits.rollout_usd, limits.training_usd]),
        nodes_max=(limits.rollout_nodes_max, limits.training_nodes_max),
    )
    found = solve(problem)
    if found is None:
        return None
    sets = []
    for worker_set in fill(found, ways, limits):
        turns = []
        for number, share in worker_set.shares.items():
            way = ways[number][worker_set.kind]
            assert way is not None
            turns.append(Turn(jobs[number].id, share, way))
        sets.append((kinds[worker_set.kind], tuple(turns)))
    allocation = Allocation(tuple(sets), found.relaxed_usd_per_hour)
    rollout_nodes, training_nodes = allocation.nodes
    if rollout_nodes > limits.rollout_nodes_max or training_nodes > limits.training_nodes_max:
        return None
    return allocation
