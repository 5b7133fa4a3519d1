"""Turns fractions of time on a type into worker sets whose residents take turns.

A schedule of rounds with given shares of each job on each set exists exactly if the shares of every job and of every
set sum to at most 1 (Birkhoff and von Neumann: such a matrix is a mixture of matchings, and a matching is a round). The
program ensures this for the jobs. This module fills the sets first fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from policies.placement.gavel.program import Fractions
from policies.placement.gavel.resources import RunMode, Shape, fits
from rollmux_env.keys.cluster import Cluster

LEAST_SHARE = 1e-8  # of a set's time; less is the solver's rounding


@dataclass
class WorkerSet:
    """Nodes that one job at a time holds for a round.

    Attributes:
        kind: number of its type.
        shares: fraction of its time of each job that is resident, by the job's number.
        modes: how they run.
    """

    kind: int
    shares: dict[int, float] = field(default_factory=dict)
    modes: list[RunMode] = field(default_factory=list)

    def takes(self, mode: RunMode, shape: Shape, cluster: Cluster) -> bool:
        """Return whether another job can be resident, on a set of this shape."""
        return fits([*self.modes, mode], shape, cluster)

    @property
    def free(self) -> float:
        """Unassigned fraction of its time."""
        return 1.0 - sum(self.shares.values())

    def add(self, job: int, share: float, mode: RunMode) -> float:
        """Keep a job resident for a share of the time, or for as much as is free; returns which."""
        share = min(share, self.free)
        self.shares[job] = share
        self.modes.append(mode)
        return share


def fill(
    fractions: Fractions, modes: Sequence[Sequence[RunMode | None]], kinds: Sequence[Shape], cluster: Cluster
) -> list[WorkerSet]:
    """Assign the fractions type by type and job by job. A job uses several sets if none has enough time.

    Sets without host memory for a job are passed over, whatever their time; so there can be more sets than the program asks for.
    Sets that no job needs are left out.
    """
    filled: list[WorkerSet] = []
    for kind in range(fractions.sets.size):
        sets: list[WorkerSet] = []
        for job in range(len(modes)):
            left, mode = float(fractions.time[job, kind]), modes[job][kind]
            if mode is None:
                continue
            for worker_set in sets:
                if left > LEAST_SHARE and worker_set.free > LEAST_SHARE and worker_set.takes(mode, kinds[kind], cluster):
                    left -= worker_set.add(job, left, mode)
            if left > LEAST_SHARE:
                sets.append(WorkerSet(kind))
                sets[-1].add(job, left, mode)
        filled += sets
    return filled
