"""Events of a file are applied where they can have happened, and refused where compiled code would write beside its tables."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from policies.placement.algorithm1 import Algorithm1
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import (
    Admitted,
    Arrived,
    Departed,
    Event,
    JobProgress,
    Lent,
    Moved,
    Placement,
    Progressed,
    Reprofiled,
    Resized,
    Resumed,
    Ticked,
    Withdrawn,
)
from rollmux_env.cluster.recorded import apply_recorded
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from rollmux_env.replay.fluid import replay
from rollmux_env.scenario import parse_scenario
from rollmux_env.workloads import WorkloadOptions, make_workload
from tests.rollmux_env.cluster.twin import CLUSTER, make_job, model


def test_what_a_replay_has_done_can_have_happened() -> None:
    run = replay(make_workload("production", WorkloadOptions(jobs=30)), Algorithm1())
    state, other = State(run.scenario.cluster), State(run.scenario.cluster)
    for event in run.log:
        apply_recorded(state, event)
        apply(other, event)
    assert state.departed == other.departed == 30 and np.array_equal(state.tables.jobs.done, other.tables.jobs.done)


ALONE = Placement(None, (), 1, 1)
SMALL = model(make_job("a"))
IMPOSSIBLE: dict[str, tuple[Event, str]] = {
    "a time that is none": (Ticked(float("nan")), "its time is not finite"),
    "twice": (Arrived(1.0, SMALL), "job a is there already"),
    "not waiting": (Admitted(1.0, "a", ALONE), "job a is not waiting"),
    "too many nodes": (Admitted(1.0, "b", Placement(None, (), 1_000_000, 1)), "P2: job b asks for 1 rollout nodes"),
    "fewer than none": (Admitted(1.0, "b", Placement(None, (), -1, 1)), "P2: job b asks for 1 rollout nodes"),
    "no such node": (Admitted(1.0, "b", Placement(0, (7,), 0, 0)), "P2: job b is pinned to rollout nodes that its group"),
    "no such group": (Admitted(1.0, "b", Placement(7, (0,), 0, 0)), "P2: job b cannot join group 7: there is none"),
    "nobody": (Moved(1.0, "nobody", ALONE), "job nobody is not running"),
    "a move of a waiting job": (Moved(1.0, "b", ALONE), "job b is not running"),
    "no pause": (Resumed(1.0, "a"), "job a is not in a pause"),
    "not there": (Departed(1.0, "b"), "job b is not running"),
    "running": (Withdrawn(1.0, "a"), "job a is not waiting"),
    "unknown times": (Reprofiled(1.0, model(make_job("c"))), "job c has not arrived"),
    "other nodes": (Reprofiled(1.0, model(make_job("a", rollout={"nodes": 900}))), "job a has other nodes than before"),
    "progress of nobody": (Progressed(1.0, (JobProgress("c", 1, 0.0, 0.0),)), "job c has not arrived"),
    "a job without nodes": (Lent(1.0, {"c": ""}, 0, 0), "a job is lent no nodes"),
    "nodes for nobody": (Lent(1.0, {}, 1, 1), "nodes are lent to no job"),
    "no pool": (Resized(1.0, -1, 1), "a pool has a negative number of nodes"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_have_happened_is_refused_and_changes_nothing(name: str) -> None:
    event, said = IMPOSSIBLE[name]
    scenario = parse_scenario({"version": 1, "cluster": CLUSTER, "jobs": [make_job("a"), make_job("b")]})
    state = State(scenario.cluster, observed=True)
    for job in scenario.jobs:
        apply_recorded(state, Arrived(0.0, job))
    apply_recorded(state, Admitted(0.0, "a", ALONE))
    before = [dataclasses.asdict(group) for group in state.group_list()], [*state.waiting], state.now_s
    with pytest.raises(InputError) as caught:
        apply_recorded(state, event)
    assert str(caught.value).startswith(said)
    assert ([dataclasses.asdict(group) for group in state.group_list()], [*state.waiting], state.now_s) == before
