"""The baseline `gavel`, the paper's Gavel+: Gavel's linear program at job granularity, solved at every arrival and departure.

Gavel (Narayanan et al., OSDI 2020) assigns each job a fraction of time on each accelerator type, with a linear program over the
jobs' throughputs. It realises the fractions in rounds in which a job holds all its workers exclusively. Gavel+ (RollMux, arXiv
2512.11306, section 6) applies this at job granularity to both pools and never interleaves phases of different jobs.

In our adaptation a resource type is a worker set (docs/reference/gavel.md gives the reasons). A worker set is either rollout and
training nodes, where a job runs as it would alone, or training nodes only, where it runs both phases in turn. The program buys
whole worker sets at the lowest $/h at which every job keeps its SLO on average over its rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from policies.gavel.worker_sets import WorkerSetAllocation, allocate, fits, too_many
from policies.placement.yardstick import FreelyArranged
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, InvariantError
from rollmux_env.kernel.tables import Ints
from rollmux_env.keys.job import Job
from rollmux_env.keys.unsupported import refuse_network, refuse_queue_keys
from rollmux_env.replay.outcome import Outcome
from rollmux_env.replay.yardstick import replay_yardstick
from rollmux_env.scenario import Scenario

SLACK = 1e-6  # tolerance of shares and speeds: that of the solver, plus shares too small to give out


class SharingJobs(FreelyArranged[WorkerSetAllocation]):
    """Running jobs and the worker sets that they share.

    Attributes:
        allocation: Worker sets of the running jobs.
        relaxed_usd: Cost so far if worker sets could be bought in fractions, $.
        alone_s: Job-seconds so far on sets of training nodes only.
        shared_s: Job-seconds so far on sets with more than one job.
        held_s: Job-seconds so far on any set.
    """

    def __init__(self, scenario: Scenario, training_slowdown: float | None) -> None:
        super().__init__(State(scenario.cluster))
        self.allocation = WorkerSetAllocation()
        self.relaxed_usd = self.alone_s = self.shared_s = self.held_s = 0.0
        self._slowdown = training_slowdown
        self._rate: dict[str, float] = {}  # iterations per second

    def arrange(self, jobs: Sequence[Job]) -> WorkerSetAllocation | None:
        """Return the cheapest worker sets for the jobs, or None if the limits allow none."""
        return allocate(jobs, self.state.cluster, self._slowdown)

    def adopt(self, arrangement: WorkerSetAllocation | None) -> None:
        """Let the running jobs share these worker sets. With None they keep the current ones.

        None is possible even after a departure, because host memory can make a smaller set of jobs harder to place.
        """
        if arrangement is None:
            return
        self.allocation = arrangement
        self._rate = {}
        for one in arrangement.time_shares():
            self._rate[one.job_id] = self._rate.get(one.job_id, 0.0) + one.share / one.mode.iteration_s

    def seconds_of(self, row: int, iterations: float) -> float:
        """Return the seconds that a job takes for a number of iterations, at the sum of its speeds."""
        return iterations / self._rate[self.state.tables.job_id(row)]

    def leave(self, now_s: float, until_s: float) -> list[str]:
        """Remove the jobs whose stay ends by `until_s` and the sets that no job uses then. Return the ids of the jobs."""
        gone = super().leave(now_s, until_s)
        if gone:
            self.adopt(self.allocation.without(gone))
        return gone

    def progress(self, seconds: float) -> None:
        """Advance every running job by the iterations that it completes in a number of seconds."""
        self.relaxed_usd += self.allocation.relaxed_usd_per_hour * seconds / 3600
        jobs = self.state.tables.jobs
        for worker_set in self.allocation.sets:
            for one in worker_set.shares:
                row, held_s = self.state.row(one.job_id), seconds * one.share
                iterations = held_s / one.mode.iteration_s
                jobs.done[row] += iterations
                jobs.rollout_busy_s[row] += iterations * one.mode.rollout_busy_s
                jobs.training_busy_s[row] += iterations * one.mode.training_busy_s
                self.held_s += held_s
                self.alone_s += held_s * (worker_set.kind.rollout_nodes == 0)
                self.shared_s += held_s * (len(worker_set.shares) > 1)

    def strategy(self, job_id: str) -> str:
        """Return `direct_packing` if a running job shares one of its worker sets with another job, else `isolated`."""
        residents = [[one.job_id for one in worker_set.shares] for worker_set in self.allocation.sets]
        return "direct_packing" if any(job_id in names and len(names) > 1 for names in residents) else "isolated"

    def provisioned(self) -> Ints:
        """Return the nodes of each pool that all worker sets have together, shape (P,)."""
        nodes = self.allocation.nodes
        return np.array([nodes[name] for name in self.state.cluster.pools], dtype=np.int64)

    def check(self) -> None:
        """Assert the invariants of an arrangement.

        No job is in two places at once, no set has two jobs at once, host memory and pools suffice, and all SLOs are kept.

        Raises:
            InvariantError: An invariant does not hold.
        """
        cluster, time = self.state.cluster, dict.fromkeys((job.id for job in self.running), 0.0)
        for worker_set in self.allocation.sets:
            for one in worker_set.shares:
                time[one.job_id] += one.share
            _require(sum(one.share for one in worker_set.shares) <= 1 + SLACK, "R3: a worker set has more turns than time")
            modes = [one.mode for one in worker_set.shares]
            _require(fits(modes, worker_set.kind, cluster), "R4: a node holds more than it has memory for")
        _require(len(time) == len(self.running), "R1: a job runs that is not there")
        _require(max(time.values(), default=0.0) <= 1 + SLACK, "R1: a job is in two places at once")
        for name in too_many(self.allocation.nodes, cluster):
            _require(False, f"R5: too many {name} nodes")
        for job in self.running:
            in_time = self._rate[job.id] * job.solo_s * job.slo >= 1 - SLACK
            _require(in_time, f"R6: job {job.id} breaks its SLO")


class Gavel:
    """Gavel+: jobs take turns on worker sets in rounds, with the cheapest fractions that keep every SLO.

    For `bench` only, because jobs change worker sets without cost and rounds are infinitely short compared with a stay.

    Args:
        training_slowdown: Factor by which training takes longer on a rollout node than on a training node. With it, rollout nodes
            alone are a third resource type. For the paper's hardware it is 989.5 / 148 = 6.69, by bf16 TFLOPS. None means that
            rollout nodes do not train, since a scenario file does not say how fast they would.
    """

    def __init__(self, training_slowdown: float | None = None) -> None:
        number = isinstance(training_slowdown, int | float) and not isinstance(training_slowdown, bool)
        if training_slowdown is not None and not (number and 0 < training_slowdown < np.inf):
            raise InputError(f"training_slowdown: must be a number above 0, not {training_slowdown!r}")
        self.training_slowdown = training_slowdown

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario. Between events each job progresses at the speed that its fractions give.

        Turns and changes of worker sets cost nothing, so `migrations` is 0. A job admitted to unshared worker sets counts as
        `isolated`, else as `direct_packing`. `decision_s` has one entry for each instant. `extra` holds `relaxed_usd`, the cost if
        worker sets could be bought in fractions, and the shares of the jobs' running time on training nodes alone
        (`colocated_share`) and on sets with other jobs (`shared_share`).

        Args:
            scenario: Scenario to replay.
            check: Whether to assert after every instant that time, memory and pools suffice and all SLOs are kept.

        Raises:
            InputError: The scenario's cluster is `one_device` or has a `network`, or the scenario uses keys of the queue.
            PlanError: The solver finds no place for the first job of the queue on an empty cluster.
        """
        if scenario.cluster.one_device:
            raise InputError("--policy gavel: needs two pools; the cluster is one_device")
        refuse_network(scenario.cluster, "--policy gavel")
        refuse_queue_keys(scenario.cluster, scenario.jobs, "--policy gavel")
        active = SharingJobs(scenario, self.training_slowdown)
        outcome = replay_yardstick(scenario, active, check)
        extra = {
            "relaxed_usd": active.relaxed_usd,
            "colocated_share": active.alone_s / active.held_s,
            "shared_share": active.shared_s / active.held_s,
        }
        return replace(outcome, extra=extra)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)
