"""Scenario files that RollMux writes load back to the same scenario and read well."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.errors import InputError
from rollmux_env.scenario import Scenario, load_scenario, parse_scenario
from rollmux_env.workloads import WORKLOADS, make_workload
from rollmux_env.workloads.options import WorkloadOptions
from rollmux_env.workloads.text import to_json, to_yaml, write_scenario
from tests.oracle.draw import examples

SUFFIXES = (".json", ".yaml")


def round_trip(folder: Path, scenario: Scenario) -> None:
    for suffix in SUFFIXES:
        path = folder / f"scenario{suffix}"
        write_scenario(path, scenario)
        loaded = load_scenario(path)
        assert loaded == scenario
        assert loaded.sha256 == scenario.sha256


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name not in ("philly", "authors")])
def test_workloads_load_back(tmp_path: Path, name: str) -> None:
    jobs = None if name.startswith("micro") else 20
    round_trip(tmp_path, make_workload(name, WorkloadOptions(jobs=jobs)))


def test_every_key_loads_back(tmp_path: Path) -> None:
    scenario = parse_scenario(
        {
            "version": 1,
            "cluster": {
                "rollout": {"gpu": "off", "gpus_per_node": 4, "usd_per_gpu_hour": 0, "node_memory_gb": 123456789.5, "max_nodes": 9},
                "training": {"gpus_per_node": 8, "usd_per_gpu_hour": 1e-7},
                "max_group_size": 3,
                "migration_s": 0,
            },
            "jobs": [
                {
                    "id": "1e3",
                    "arrival_s": 0.1,
                    "iterations": 3,
                    "slo": 1,
                    "sync_s": 2.5,
                    "rollout": {"nodes": 2, "worst_case_s": 1 / 3, "actual": {"mean_fraction": 0.6, "cap": False}},
                    "training": {"worst_case_s": 5, "by_nodes": {2: 3, 16: 0.5}, "switch": {"cold_s": 38.8}},
                    "drift": [{"iteration": 0, "rollout": 1.2}, {"iteration": 40}],
                    "colocated": {"nodes": 1, "rollout_s": 2, "training_s": 1},
                }
            ],
        }
    )
    round_trip(tmp_path, scenario)


@given(
    job_id=st.from_regex(r"\A[A-Za-z0-9._-]{1,12}\Z")
    | st.sampled_from(["null", "true", "no", "1e3", "---", "...", "-", ".5", "0x1f", ".inf", "2001-01-01", "0o17", "1_0"]),
    number=st.floats(1e-9, 1e12),
)
@examples(80)
def test_any_name_and_number_load_back(tmp_path_factory: pytest.TempPathFactory, job_id: str, number: float) -> None:
    micro = make_workload("micro-temporal")
    job = micro.jobs[0].model_copy(update={"id": job_id, "arrival_s": number})
    round_trip(tmp_path_factory.getbasetemp(), micro.model_copy(update={"jobs": (job,)}))


def test_texts_hold_no_defaults_and_no_needless_digits() -> None:
    scenario = make_workload("mixed", WorkloadOptions(jobs=3))
    for text in (to_json(scenario), to_yaml(scenario)):
        for absent in ("sync_s", "drift", "switch", "null", "max_nodes", "2000.0", "by_nodes", "migration_s"):
            assert absent not in text
    assert len(to_json(scenario).splitlines()) == 3 + 3 + 3  # a job a line
    assert "rollout: {worst_case_s: " in to_yaml(scenario)


def test_a_path_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    scenario = make_workload("micro-temporal")
    with pytest.raises(InputError, match=r"is a directory$"):
        write_scenario(tmp_path, scenario)
    with pytest.raises(InputError, match=r"none/x\.json: cannot be written: No such file or directory$"):
        write_scenario(tmp_path / "none" / "x.json", scenario)
