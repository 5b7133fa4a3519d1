"""`gavel`, the paper's baseline Gavel+: Gavel's linear program at job granularity, solved at every arrival and departure.

Gavel (Narayanan et al., OSDI 2020) assigns every job a fraction of time on every accelerator type with a linear program
over the jobs' throughputs. It realises the fractions in rounds, in which a job holds all its workers exclusively.
Gavel+ (RollMux, arXiv 2512.11306, section 6) applies this at job granularity to both pools and never interleaves phases
of different jobs.

Our adaptation (docs/reference/gavel.md has the reasons): a resource type is a worker set. It is either rollout and training
nodes, where a job runs as it would alone, or training nodes only, where it runs both phases in turn. The program buys
whole worker sets at the least $/h such that every job keeps its SLO on average over its rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from policies.placement.gavel.worker_sets import Allocation, allocate, fits, too_many
from policies.placement.yardstick import FreelyArranged
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, InvariantError
from rollmux_env.kernel.tables import Ints
from rollmux_env.keys.job import Job
from rollmux_env.keys.unsupported import refuse_network, refuse_queue_keys
from rollmux_env.replay.metrics import Outcome
from rollmux_env.replay.yardstick import replay_yardstick
from rollmux_env.scenario import Scenario

SLACK = 1e-6  # of shares and speeds: the solver's tolerance and the shares too small to give out


class SharingJobs(FreelyArranged[Allocation]):
    """Running jobs and the worker sets that they share.

    Attributes:
        allocation: of the running jobs.
        relaxed_usd: what worker sets in fractions would have cost so far, $.
        alone_s: job-seconds so far on training nodes alone; shared_s: on sets with more than one job; held_s: on any set.
    """

    def __init__(self, scenario: Scenario, training_slowdown: float | None) -> None:
        super().__init__(State(scenario.cluster))
        self.allocation = Allocation()
        self.relaxed_usd = self.alone_s = self.shared_s = self.held_s = 0.0
        self._slowdown = training_slowdown
        self._rate: dict[str, float] = {}  # iterations per second

    def arrange(self, jobs: Sequence[Job]) -> Allocation | None:
        """The cheapest worker sets for some jobs."""
        return allocate(jobs, self.state.cluster, self._slowdown)

    def take(self, arrangement: Allocation | None) -> None:
        """Let the running jobs share these sets; without any, those that they share: host memory can make fewer jobs the harder
        case."""
        if arrangement is None:
            return
        self.allocation = arrangement
        self._rate = {}
        for one in arrangement.time_shares():
            self._rate[one.job_id] = self._rate.get(one.job_id, 0.0) + one.share / one.mode.iteration_s

    def seconds_of(self, row: int, iterations: float) -> float:
        """At the sum of its speeds."""
        return iterations / self._rate[self.state.tables.job_id(row)]

    def leave(self, now_s: float, until_s: float) -> list[str]:
        """Take out the jobs whose stay ends by `until_s`, and the sets that nobody uses then; returns their ids."""
        gone = super().leave(now_s, until_s)
        if gone:
            self.take(self.allocation.without(gone))
        return gone

    def progress(self, seconds: float) -> None:
        """Let every running job do its iterations of so many seconds."""
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
        """`direct_packing` where a running job has another one on one of its worker sets, else `isolated`."""
        residents = [[one.job_id for one in worker_set.shares] for worker_set in self.allocation.sets]
        return "direct_packing" if any(job_id in names and len(names) > 1 for names in residents) else "isolated"

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
    """Gavel+: jobs take turns on worker sets, a round at a time; the fractions are the cheapest that keep every SLO.

    For `bench` only: jobs change worker sets for free, and rounds are infinitely short compared with a stay.

    Args:
        training_slowdown: how many times longer training takes on a rollout node than on a training node; it makes rollout nodes
            alone a third resource type. The paper's hardware: 989.5 / 148 = 6.69, by bf16 TFLOPS. None: they do not train, since
            a scenario file does not say how fast they would.
    """

    def __init__(self, training_slowdown: float | None = None) -> None:
        number = isinstance(training_slowdown, int | float) and not isinstance(training_slowdown, bool)
        if training_slowdown is not None and not (number and 0 < training_slowdown < np.inf):
            raise InputError(f"training_slowdown: must be a number above 0, not {training_slowdown!r}")
        self.training_slowdown = training_slowdown

    def replay(self, scenario: Scenario, check: bool = False) -> Outcome:
        """Replay a scenario: between events each job progresses at the speed that its fractions give it.

        Nothing is paid for turns or for another set after an event, so `migrations` is 0. A job admitted to worker sets of its own
        counts as `isolated`, else as `direct_packing`. `decision_s` has one entry an instant. `extra` holds `relaxed_usd`, what
        worker sets in fractions would have cost, and the shares of the jobs' running time on training nodes alone
        (`colocated_share`) and on sets with other jobs (`shared_share`).

        Args:
            check: assert after every instant that time, memory and pools suffice and all SLOs are kept.

        Raises:
            InputError: the scenario's cluster is `one_device` or has a `network`, or it has keys of the queue.
            PlanError: the solver finds no place for the first job of the queue on an empty cluster.
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
