"""Chains of rows: a search over places and moves finds what the best place with moves after it does not."""

from __future__ import annotations

import numpy as np
import pytest

from policies.placement.chains import Chain, NextSteps, best_chain, best_rows, joint_search
from policies.placement.learned import Learned
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, Placement
from rollmux_env.cluster.plan import Move, Plan
from rollmux_env.cluster.state import State
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.outcome import outcome
from rollmux_env.workloads import WorkloadOptions, make_workload


def test_best_rows_come_in_order_without_stop() -> None:
    worths = np.array([0.0, -1.0, 2.0, 1.0, 2.0], dtype=np.float32)
    assert best_rows(worths, 4) == [2, 4, 3]
    assert best_rows(worths, 2, None) == [2, 4]


def alone(state: State, job_id: str) -> Plan:
    """The job leaves its group for one of its own."""
    return (Move(job_id, Placement(None, (), 1, 1)),)


@pytest.mark.parametrize(("opens", "moves"), [(True, 2), (False, 0)])
def test_a_group_that_is_opened_is_kept_until_others_have_joined_it(opens: bool, moves: int) -> None:
    """Among many rows that are worth more at first, the dear first step of the best chain is kept if it opens a group."""
    jobs = make_workload("balanced", WorkloadOptions(jobs=14, slo=(3.0, 3.0))).jobs
    state = State(make_workload("balanced", WorkloadOptions(jobs=1)).cluster)
    for job in jobs:
        apply(state, Arrived(0.0, job))
        apply(state, Admitted(0.0, job.id, Placement(None, (), 1, 1)))
    ids = [job.id for job in jobs]

    def look_up(now: State) -> NextSteps:
        moved = {job_id for job_id in ids if now.group_of(job_id).id >= len(ids)}
        free = [job_id for job_id in ids if job_id not in moved]
        worths = [0.0] + [
            (10.0 if moved == {ids[0]} and job_id == ids[1] else -2.0 if job_id == ids[0] else -1.0) for job_id in free
        ]
        plans: list[Plan] = [(), *(alone(now, job_id) for job_id in free)]
        return NextSteps(
            plans, np.array(worths, dtype=np.float32), np.array([False, *(opens and job_id == ids[0] for job_id in free)])
        )

    later = state.copy()
    later.now_s = 1e6
    plan = joint_search([Chain(0.0, (), later)], look_up, 8, 4)
    assert len(plan) == moves
    assert best_chain(later, look_up, 8, one_row=False) == ()


def test_with_shapes_staleness_and_three_pools_a_joint_search_pays() -> None:
    options = WorkloadOptions(seed=1003, jobs=20, shapes=True, asynchronous=0.5, third_pool=True)
    scenario = make_workload("production", options)
    found = [outcome(replay(scenario, Learned(tries=tries), check=True)).metrics for tries in (8, 1)]
    assert all(one.slo_attainment == 1 and one.migrations > 0 for one in found)
    assert found[0].usd_per_work_hour < found[1].usd_per_work_hour
