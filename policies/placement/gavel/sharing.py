"""The jobs of a replay under Gavel's program: running, waiting, and their progress."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.placement.gavel.allocation import Allocation, allocate, too_many
from policies.placement.gavel.resources import fits
from rollmux_env.cluster.events import Arrived
from rollmux_env.cluster.state import State, apply
from rollmux_env.errors import InvariantError
from rollmux_env.kernel.tables import Ints
from rollmux_env.keys.job import Job
from rollmux_env.scenario import Scenario

SLACK = 1e-6  # of shares and speeds: the solver's tolerance and the shares too small to give out


class SharingJobs:
    """Running jobs, the worker sets they share, and the queue of jobs that wait because of `max_nodes`.

    Attributes:
        state: it knows the jobs that have arrived and places none of them: only the columns of its job table that say how far a
            job is are written here, for the metrics.
        running: jobs in order of admission; waiting: jobs in order of arrival.
        allocation: of the running jobs.
        relaxed_usd: what worker sets in fractions would have cost so far, $.
        alone_s: job-seconds so far on training nodes alone; shared_s: on sets with more than one job; held_s: on any set.
    """

    def __init__(self, scenario: Scenario, training_slowdown: float | None) -> None:
        self.state = State(scenario.cluster)
        self.running: list[Job] = []
        self.waiting: list[Job] = []
        self.allocation = Allocation()
        self.relaxed_usd = self.alone_s = self.shared_s = self.held_s = 0.0
        self._slowdown = training_slowdown
        self._rate: dict[str, float] = {}  # iterations per second

    def arrive(self, jobs: Sequence[Job], now_s: float) -> None:
        """Let jobs join the end of the queue."""
        for job in jobs:
            apply(self.state, Arrived(now_s, job))
            self.waiting.append(job)

    def leave(self, now_s: float, until_s: float) -> list[str]:
        """Take out the jobs whose stay ends by `until_s`; returns their ids."""
        leaving = [job for job in self.running if self._departure_s(job, now_s) <= until_s]
        for job in leaving:
            if job.iterations is not None:
                self.state.jobs.done[self.state.row(job.id)] = job.iterations
        gone = {job.id for job in leaving}
        self.running = [job for job in self.running if job.id not in gone]
        if gone:
            self._take(self.allocation.without(gone))
        return [job.id for job in leaving]

    def serve(self, now_s: float) -> list[str]:
        """Solve anew, and admit from the head of the queue whoever fits; returns the ids of the admitted."""
        admitted = self.waiting
        allocation = self._allocate(self.running + admitted)
        if allocation is None:  # not all fit: one after the other, until one does not
            allocation, fit = self._allocate(self.running), 0
            for fit in range(1, len(self.waiting) + 1):
                more = self._allocate(self.running + self.waiting[:fit])
                if more is None:
                    fit -= 1
                    break
                allocation = more
            admitted = self.waiting[:fit]
        if allocation is not None:  # else who is left stays as it was; host memory can make the fewer jobs the harder case
            self._take(allocation)
        self.running += admitted
        self.waiting = self.waiting[len(admitted) :]
        for job in admitted:
            row = self.state.row(job.id)
            self.state.jobs.admitted_s[row] = now_s
            self.state.jobs.leaves_s[row] = np.inf if job.duration_s is None else now_s + job.duration_s
        return [job.id for job in admitted]

    def next_departure_s(self, now_s: float) -> float:
        """When the next running job leaves if nothing changes before; infinite where none runs."""
        return min((self._departure_s(job, now_s) for job in self.running), default=np.inf)

    def progress(self, seconds: float) -> None:
        """Let every running job do its iterations of so many seconds."""
        self.relaxed_usd += self.allocation.relaxed_usd_per_hour * seconds / 3600
        jobs = self.state.jobs
        for shape, time_shares in self.allocation.sets:
            for time_share in time_shares:
                row, held_s = self.state.row(time_share.job_id), seconds * time_share.share
                iterations = held_s / time_share.mode.iteration_s
                jobs.done[row] += iterations
                jobs.rollout_busy_s[row] += iterations * time_share.mode.rollout_busy_s
                jobs.training_busy_s[row] += iterations * time_share.mode.training_busy_s
                self.held_s += held_s
                self.alone_s += held_s * (shape.rollout_nodes == 0)
                self.shared_s += held_s * (len(time_shares) > 1)

    def strategy(self, job_id: str) -> str:
        """`direct_packing` where a running job has another one on one of its worker sets, else `isolated`."""
        shares = any(
            len(time_shares) > 1 and any(time_share.job_id == job_id for time_share in time_shares)
            for _, time_shares in self.allocation.sets
        )
        return "direct_packing" if shares else "isolated"

    def provisioned(self) -> Ints:
        """(P,) nodes of each pool of all worker sets."""
        nodes = self.allocation.nodes
        return np.array([nodes[name] for name in self.state.cluster.pools], dtype=np.int64)

    def check(self) -> None:
        """Assert that no job is in two places at once, no set has two jobs at once, memory and pools suffice and SLOs are kept.

        Raises:
            InvariantError: one of these does not hold.
        """
        cluster, time = self.state.cluster, dict.fromkeys((job.id for job in self.running), 0.0)
        for shape, time_shares in self.allocation.sets:
            for time_share in time_shares:
                time[time_share.job_id] += time_share.share
            _require(sum(time_share.share for time_share in time_shares) <= 1 + SLACK, "R3: a worker set has more turns than time")
            _require(fits([one.mode for one in time_shares], shape, cluster), "R4: a node holds more than it has memory for")
        _require(len(time) == len(self.running), "R1: a job runs that is not there")
        _require(max(time.values(), default=0.0) <= 1 + SLACK, "R1: a job is in two places at once")
        for name in too_many(self.allocation.nodes, cluster):
            _require(False, f"R5: too many {name} nodes")
        for job in self.running:
            in_time = self._rate[job.id] * job.solo_s * job.slo >= 1 - SLACK
            _require(in_time, f"R6: job {job.id} breaks its SLO")

    def _allocate(self, jobs: list[Job]) -> Allocation | None:
        return allocate(jobs, self.state.cluster, self._slowdown)

    def _take(self, allocation: Allocation) -> None:
        self.allocation = allocation
        self._rate = {}
        for time_share in allocation.time_shares():
            self._rate[time_share.job_id] = self._rate.get(time_share.job_id, 0.0) + time_share.share / time_share.mode.iteration_s

    def _departure_s(self, job: Job, now_s: float) -> float:
        row = self.state.row(job.id)
        if job.iterations is None:
            return float(self.state.jobs.leaves_s[row])
        return now_s + (job.iterations - float(self.state.jobs.done[row])) / self._rate[job.id]


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)
