"""The invariants of a replay are really checked: every kind of corrupted state is caught, under its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollmux_env.cluster.events import Placement
from rollmux_env.cluster.state import State
from rollmux_env.errors import InvariantError
from rollmux_env.replay.checks import check_clock, check_state
from tests.rollmux_env.cluster.twin import CLUSTER, Twin, make_job

OWN = Placement(None, (), 1, 1)
LIMITED = {pool: {**CLUSTER[pool], "node_memory_gb": 1000, "max_nodes": 9} for pool in ("rollout", "training")}


def healthy(**cluster: Any) -> State:
    """Two groups, three running jobs and one that waits."""
    twin = Twin({**LIMITED, **cluster})
    heavy: dict[str, Any] = {
        "rollout": {"host_memory_gb": 400, "device_gb": 4, "nodes": 2},
        "training": {"host_memory_gb": 400, "device_gb": 4},
    }
    twin.admit(twin.arrive(make_job("a", slo=4, **heavy)), Placement(None, (), 2, 1))
    twin.admit(twin.arrive(make_job("b", slo=4, **heavy)), Placement(0, (1,), 1))
    twin.admit(twin.arrive(make_job("c", slo=1)), OWN)
    twin.arrive(make_job("waits"))
    return twin.state


def broken(state: State, keeps_slo: bool = True, arrived: int = 4) -> str:
    with pytest.raises(InvariantError) as error:
        check_state(state, arrived, keeps_slo)
    return str(error.value).split(":")[0]


def test_a_healthy_state_passes() -> None:
    check_state(healthy(), 4, True)


def lose_a_waiting_job(state: State) -> None:
    state.waiting.clear()


def wait_and_run(state: State) -> None:
    state.waiting.append("a")


def lose_a_member(state: State) -> None:
    state.tables.groups.n_members[state.tables.group_rows.get(0)] = 1


def run_twice(state: State) -> None:
    state.tables.groups.members[state.tables.group_rows.get(1), 0] = state.row("a")


def count_a_departure_twice(state: State) -> None:
    state.departed += 1


def outgrow(state: State) -> None:
    state.limits = state.limits._replace(group_size_max=1)


@pytest.mark.parametrize("corrupt", [lose_a_waiting_job, wait_and_run, lose_a_member, run_twice, count_a_departure_twice, outgrow])
def test_r1_lost_and_doubled_jobs(corrupt: Callable[[State], None]) -> None:
    state = healthy()
    corrupt(state)
    assert broken(state) == "R1"


def test_r2_the_clock() -> None:
    check_clock([0.0, 1.0, 1.0, 2.0])
    with pytest.raises(InvariantError, match=r"^R2"):
        check_clock([0.0, 2.0, 1.0])


@pytest.mark.parametrize("period_s", [19.9, 0.0])
def test_r3_more_phases_than_fit_in_a_period(period_s: float) -> None:
    state = healthy()
    state.tables.groups.period_s[state.tables.group_rows.get(0)] = period_s  # two trainings of 10 s
    assert broken(state) == "R3"


@pytest.mark.parametrize("pool", [0, 1])
@pytest.mark.parametrize(("kind", "limit_gb"), [("node", 799.0), ("device", 7.9)])
def test_r4_memory(pool: int, kind: str, limit_gb: float) -> None:
    state = healthy()
    state.limits.pools[f"{kind}_gb"][pool] = limit_gb
    assert broken(state) == "R4"


@pytest.mark.parametrize("pool", [0, 1])
@pytest.mark.parametrize("by", [-1, 1])
def test_r5_nodes_lost_and_doubled(pool: int, by: int) -> None:
    state = healthy()
    state.nodes[pool, pool] += by
    assert broken(state) == "R5"


@pytest.mark.parametrize("pool", [0, 1])
def test_r5_more_than_max_nodes(pool: int) -> None:
    state = healthy()
    state.limits.pools["nodes_max"][pool] = 1.0
    assert broken(state) == "R5"


def test_r5_a_node_that_nobody_is_pinned_to() -> None:
    state = healthy()
    state.tables.jobs.n_pins[state.row("b")] = 1  # b leaves node 2 without giving it back
    assert broken(state) == "R5"


def test_r6_an_slo_is_broken() -> None:
    state = healthy()
    state.tables.groups.period_s[state.tables.group_rows.get(1)] = 20.001
    assert broken(state) == "R6"
    check_state(state, 4, keeps_slo=False)
