"""The replay of a yardstick: a yardstick that gives each job nodes of its own is measured as the policy `solo` is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from policies.placement.baselines import Solo
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Arrived
from rollmux_env.cluster.state import State
from rollmux_env.errors import InvariantError, PlanError
from rollmux_env.kernel.tables import Ints
from rollmux_env.keys.job import Job
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.yardstick import replay_yardstick
from rollmux_env.scenario import Scenario, parse_scenario
from tests.oracle.draw import examples, scenarios
from tests.rollmux_env.cluster.twin import CLUSTER, make_job


class OwnNodes:
    """Every job runs on its own nodes from its arrival on; with `closed`, everybody waits for ever."""

    def __init__(self, scenario: Scenario, closed: bool = False) -> None:
        self.state = State(scenario.cluster)
        self.closed = closed
        self.waiting: list[Job] = []
        self.leaves_s: dict[str, float] = {}
        self.checks = 0

    def progress(self, seconds: float) -> None:
        jobs = self.state.tables.jobs
        for job_id in self.leaves_s:
            row, job = self.state.row(job_id), self.state.job(job_id)
            jobs.done[row] += seconds / job.solo_s
            jobs.rollout_busy_s[row] = jobs.done[row] * job.rollout.worst_case_s * job.rollout.nodes
            jobs.training_busy_s[row] = jobs.done[row] * job.training.worst_case_s * job.training.nodes

    def next_departure_s(self, now_s: float) -> float:
        return min(self.leaves_s.values(), default=float("inf"))

    def leave(self, now_s: float, until_s: float) -> list[str]:
        gone = [job_id for job_id, leaves_s in self.leaves_s.items() if leaves_s <= until_s]
        for job_id in gone:
            del self.leaves_s[job_id]
        return gone

    def arrive(self, jobs: Sequence[Job], now_s: float) -> None:
        for job in jobs:
            apply(self.state, Arrived(now_s, job))
            self.waiting.append(job)

    def serve(self, now_s: float) -> list[str]:
        if self.closed:
            return []
        admitted, self.waiting = self.waiting, []
        for job in admitted:
            self.leaves_s[job.id] = now_s + (job.iterations * job.solo_s if job.iterations else job.duration_s or 0)
        return [job.id for job in admitted]

    def strategy(self, job_id: str) -> str:
        return "isolated"

    def provisioned(self) -> Ints:
        jobs = [self.state.job(job_id) for job_id in self.leaves_s]
        return np.array([sum(job.rollout.nodes for job in jobs), sum(job.training.nodes for job in jobs)])

    def check(self) -> None:
        self.checks += 1
        if self.checks == 3:
            raise InvariantError("R9: the third instant")


def approximately(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: approximately(value) if isinstance(value, dict) else pytest.approx(value, rel=1e-6, abs=1e-5)
        for key, value in values.items()
    }


@given(data=scenarios(limited=False))
@examples(60)
def test_it_is_measured_as_an_event_log_is(data: dict[str, Any]) -> None:
    scenario = parse_scenario(data)
    run = replay(scenario, Solo())
    found = replay_yardstick(scenario, OwnNodes(scenario))
    assert found.metrics.as_dict() == approximately(metrics(run).as_dict())
    assert found.time_s == pytest.approx(run.time_s)
    assert found.nodes == run.nodes
    assert len(found.decision_s) == len(found.time_s)


def scenario_of_three() -> Scenario:
    jobs = [make_job(name, arrival_s=at, duration_s=100) for name, at in (("a", 0), ("b", 50), ("c", 50 + 1e-7))]
    return parse_scenario({"version": 1, "cluster": CLUSTER, "jobs": jobs})


def test_jobs_that_come_within_an_instant_come_together() -> None:
    scenario = scenario_of_three()
    assert replay_yardstick(scenario, OwnNodes(scenario)).time_s == [0, 50, 100, 150]


def test_every_instant_is_checked_if_asked_for() -> None:
    scenario = scenario_of_three()
    with pytest.raises(InvariantError, match=r"^R9"):
        replay_yardstick(scenario, OwnNodes(scenario), check=True)


def test_a_job_that_waits_for_ever_is_named() -> None:
    scenario = scenario_of_three()
    with pytest.raises(PlanError, match="no place found for job a"):
        replay_yardstick(scenario, OwnNodes(scenario, closed=True))
