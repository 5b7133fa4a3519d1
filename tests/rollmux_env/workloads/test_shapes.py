"""Shapes of generated jobs: more or fewer nodes, and a third pool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollmux_env.envs.placement.generator import Workload
from rollmux_env.keys.assumptions import OURS
from rollmux_env.scenario import load_scenario
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.catalogue import make_job, paper_cluster
from rollmux_env.workloads.options import WorkloadOptions
from rollmux_env.workloads.shapes import most_shapes, with_shapes
from rollmux_env.workloads.text import to_json, write_scenario

THIRD = OURS.third_pool.name


def test_shapes_in_the_third_pool() -> None:
    job = with_shapes(make_job("7B-8k", "j", iterations=1), WorkloadOptions(third_pool=True))
    phases = [job.phases(shape) for shape in range(1 + len(job.shapes))]
    pools = [("rollout", "training"), ("rollout", THIRD), (THIRD, "training"), (THIRD, THIRD)]
    assert [(rollout.pool, training.pool) for rollout, training in phases] == pools
    assert {(rollout.nodes, training.nodes) for rollout, training in phases} == {(1, 1)}
    assert phases[3].rollout.worst_case_s == pytest.approx(1.3 * 133.8) and phases[3].training.worst_case_s == pytest.approx(225.6)


def test_with_shapes_training_there_may_take_twice_as_many_nodes() -> None:
    options = WorkloadOptions(shapes=True, third_pool=True)
    job = with_shapes(make_job("7B-8k", "j", iterations=1), options)
    last = job.phases(len(job.shapes)).training
    assert (last.pool, last.nodes, last.host_memory_gb) == (THIRD, 2, 120)
    assert last.worst_case_s == pytest.approx(2 * 112.8 * (0.15 + 0.85 / 2), abs=1e-3)
    wide = with_shapes(make_job("32B-8k", "j", iterations=1), options)
    assert 1 + len(wide.shapes) == most_shapes(options) > 1 + len(job.shapes)
    assert most_shapes(WorkloadOptions()) == 0


def test_a_stream_with_everything_loads_back_and_its_draws_are_those_of_the_plain_one(tmp_path: Path) -> None:
    options = WorkloadOptions(seed=7, jobs=40, shapes=True, asynchronous=0.5, third_pool=True, stays="fixed")
    scenario = make_workload("production", options)
    write_scenario(tmp_path / "stream.yaml", scenario)
    again = load_scenario(tmp_path / "stream.yaml")
    assert again == scenario and to_json(again) == to_json(make_workload("production", options))
    assert again.cluster.pools == {**paper_cluster().pools, THIRD: OURS.third_pool.pool}
    plain = make_workload("production", WorkloadOptions(seed=7, jobs=40, stays="fixed"))
    keys = {"id", "arrival_s", "slo", "duration_s", "rollout", "training"}
    assert [{key: getattr(job, key) for key in keys} for job in again.jobs] == [
        {key: getattr(job, key) for key in keys} for job in plain.jobs
    ]
    assert "pools" not in json.loads(to_json(plain))["cluster"]


@pytest.mark.parametrize("options", [{"third_pool": True}, {"asynchronous": 1.0}, {"shapes": True, "third_pool": True}])
def test_a_generator_of_an_environment_has_room_for_them(options: dict[str, object]) -> None:
    generator = Workload("production", jobs=30, **options)
    stream, scenario = generator.stream(5), generator.scenario(5)
    assert stream["solo_s"][: len(scenario.jobs)].tolist() == [job.solo_s for job in scenario.jobs]
    assert scenario.cluster == generator.cluster
    rows = len(stream) - len(scenario.jobs)
    assert rows == sum(1 + len(job.shapes) for job in scenario.jobs if job.shapes) <= generator.shapes
    assert (
        max(shape.rollout.nodes for job in scenario.jobs for shape in map(job.phases, range(1 + len(job.shapes))))
        <= generator.nodes
    )
