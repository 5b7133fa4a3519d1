from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from policies.rollout.published import Plain
from rollmux_env.errors import InputError
from rollmux_env.keys.job import Job
from rollmux_env.rollout.job import JobRollouts
from rollmux_env.rollout.setting import setting_of
from rollmux_env.scenario import load_scenario, parse_scenario
from rollmux_env.schema import scenario_schema
from rollmux_env.timing.calibration import PHYSICAL
from rollmux_env.timing.hardware import GPUS, achieved
from rollmux_env.timing.jobs import replica_of, training_of
from rollmux_env.timing.models import ALL_SHAPES, SHAPES, model_shape
from rollmux_env.timing.replica import replica_timing
from rollmux_env.timing.training import MiniBatch
from rollmux_env.workloads.text import write_scenario
from tests.oracle.draw import examples

CLUSTER = {
    "rollout": {"gpu": "H20", "gpus_per_node": 8, "usd_per_gpu_hour": 1.85},
    "training": {"gpu": "H800", "gpus_per_node": 8, "usd_per_gpu_hour": 5.28},
}
JOB = {"id": "math", "arrival_s": 0, "iterations": 100, "slo": 1.5, "model": "7B", "lengths": {"cap": 8192, "published": "7B-8k"}}


def file(**changes: Any) -> dict[str, Any]:
    job = {key: value for key, value in (JOB | changes).items() if value is not None}
    return {"version": 1, "cluster": CLUSTER, "jobs": [job]}


def the_job(**changes: Any) -> Job:
    return parse_scenario(file(**changes)).jobs[0]


def test_a_model_and_lengths_are_enough() -> None:
    job = the_job()
    assert job.rollout.worst_case_s > 0 and job.rollout.host_memory_gb > 0 and job.sync_s > 0
    assert job.training.worst_case_s > job.training.by_nodes[2] > job.training.by_nodes[4]
    assert job.colocated is not None and job.colocated.training_s == job.training.worst_case_s
    assert job.timing is not None and job.timing.replicas == 8
    assert replica_of(job.timing) == replica_timing(SHAPES["7B"], achieved("H20", GPUS["H20"]))


def test_a_mixture_of_experts_is_a_model_like_any_other(tmp_path: Path) -> None:
    """A step of a few sequences reads a part of the experts, so it is shorter than one that reads all weights; memory holds all."""
    job, dense = the_job(model={"name": "30B-A3B", "tensor_parallel": 2}), the_job(model={"name": "32B", "tensor_parallel": 2})
    assert job.timing is not None and dense.timing is not None
    timing = replica_of(job.timing)
    assert timing == replica_timing(ALL_SHAPES["30B-A3B"], achieved("H20", GPUS["H20"]), 2)
    assert timing.decode_s(1, 0) - timing.step_s < (timing.decode_s(64, 0) - timing.step_s) / 5
    assert job.rollout.worst_case_s < dense.rollout.worst_case_s and job.training.worst_case_s < dense.training.worst_case_s / 2
    assert 0.9 < job.rollout.host_memory_gb / dense.rollout.host_memory_gb < 1
    setting = setting_of(job)
    assert setting is not None and 0 < JobRollouts(setting, Plain(), 0).next().seconds <= job.rollout.worst_case_s
    assert "experts_s" not in dense.timing.model_dump() and "experts_s" in job.timing.model_dump()
    write_scenario(tmp_path / "mixture.yaml", parse_scenario(file(model={"name": "30B-A3B", "tensor_parallel": 2})))
    assert load_scenario(tmp_path / "mixture.yaml").jobs == (job,)


def test_means_come_from_lengths_and_bounds_from_the_cap() -> None:
    short, long = (the_job(lengths={"cap": 8192, "median": median, "sigma": 0.2}) for median in (300, 3000))
    assert (short.rollout.worst_case_s, short.training.worst_case_s) == (long.rollout.worst_case_s, long.training.worst_case_s)
    for phase in ("rollout", "training"):
        means = [getattr(job, phase).actual.mean_fraction for job in (short, long)]
        assert 0 < means[0] < means[1] < 1
    at_cap = the_job(lengths={"cap": 8192})
    assert at_cap.rollout.actual is not None and at_cap.training.actual is not None
    assert at_cap.training.actual.mean_fraction == 1 and at_cap.training.actual.cv == 0
    assert 0.9 < at_cap.rollout.actual.mean_fraction <= 1
    assert the_job(training={"actual": None}).training.actual is None


def test_a_mean_is_that_of_what_is_simulated() -> None:
    job = the_job()
    setting = setting_of(job)
    assert setting is not None and job.timing is not None
    rollouts = JobRollouts(replace(setting, alike=0.0), Plain(), 0)
    seen = [rollouts.next() for _ in range(20)]
    trained = [training_of(job.timing).seconds(MiniBatch.of(512 + one.counted_tokens)) for one in seen]
    for phase, seconds in ((job.rollout, [one.seconds for one in seen]), (job.training, trained)):
        assert phase.actual is not None
        assert phase.actual.mean_fraction * phase.worst_case_s == pytest.approx(sum(seconds) / len(seconds), rel=0.1)


def test_each_machine_has_its_own_calibration() -> None:
    data = file()
    data["cluster"] = {name: pool | {"gpu": "H100"} for name, pool in CLUSTER.items()}
    (job,) = parse_scenario(data).jobs
    assert job.timing is not None and not job.timing.training_padded
    assert replica_of(job.timing) == replica_timing(SHAPES["7B"], achieved("H100", GPUS["H100"], PHYSICAL))
    even, uneven = MiniBatch.even(256, 1512.0), MiniBatch.of(np.array([1000] * 255 + [132072]))
    assert training_of(job.timing).seconds(uneven) > training_of(job.timing).seconds(even), "the longest is a copy's alone"
    assert the_job().timing.training_padded  # type: ignore[union-attr]


def test_what_a_job_says_itself_stands() -> None:
    predicted = the_job()
    job = the_job(rollout={"worst_case_s": 5}, training={"by_nodes": {}, "host_memory_gb": 7}, sync_s=3)
    assert (job.rollout.worst_case_s, job.sync_s, job.training.by_nodes, job.training.host_memory_gb) == (5, 3, {}, 7)
    assert job.rollout.host_memory_gb == predicted.rollout.host_memory_gb
    assert job.training.worst_case_s == predicted.training.worst_case_s


def test_a_loaded_scenario_is_the_same_when_it_is_loaded_again_elsewhere(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "seen.txt").write_text("100\n200\n3000\n")
    (here / "node.json").write_text(achieved("H20", GPUS["H20"]).to_json())
    data = file(lengths={"cap": 4096, "file": "seen.txt"})
    data["cluster"] = CLUSTER | {"rollout": CLUSTER["rollout"] | {"gpu": "node.json"}}
    (here / "jobs.json").write_text(json.dumps(data))
    scenario = load_scenario(here / "jobs.json")
    again = parse_scenario(json.loads(scenario.canonical_json()), folder=tmp_path)
    assert again == scenario and again.sha256 == scenario.sha256
    on_catalogue = parse_scenario(file(lengths={"cap": 4096, "file": "seen.txt"}), folder=here).jobs[0]
    assert on_catalogue.rollout == scenario.jobs[0].rollout


def test_replicas_of_sizes_that_were_measured_have_the_measured_seconds(tmp_path: Path) -> None:
    two = replace(achieved("H20", GPUS["H20"]), weights_gb_s=4321.0, memory_gb=150.0)
    (tmp_path / "two.json").write_text(two.to_json())
    model = {"name": "7B", "sizes": [2, 4]}
    predicted = parse_scenario(file(model=model)).jobs[0].timing
    data = file(model=model | {"measured": {"2": "two.json"}})
    measured = parse_scenario(data, folder=tmp_path).jobs[0].timing
    assert predicted is not None and measured is not None
    assert [a == b for a, b in zip(predicted.sizes, measured.sizes, strict=True)] == [True, False, True]
    assert replica_of(measured.sizes[1]) == replica_timing(model_shape("7B"), two)
    for wrong, problem in (
        ({8: "two.json"}, "8 GPUs are neither"),
        ({2: "no.json"}, "measured.2: must be"),
        ({"x": "a"}, "of GPUs"),
    ):
        with pytest.raises(InputError, match=problem):
            parse_scenario(file(model=model | {"measured": wrong}), folder=tmp_path)


def test_defaults_may_hold_model_and_lengths() -> None:
    data = file(model={"tensor_parallel": 2}, lengths={"cap": 4096})
    data["defaults"] = {"model": {"name": "8B"}, "lengths": {"batch": 64, "cap": 100}}
    (job,) = parse_scenario(data).jobs
    assert job.model is not None and (job.model.name, job.model.tensor_parallel) == ("8B", 2)
    assert job.lengths is not None and (job.lengths.batch, job.lengths.cap) == (64, 4096)


@pytest.mark.parametrize("size", [size for size in SHAPES if size != "70B"])
def test_every_model_of_the_catalogue_is_predicted(size: str) -> None:
    job = the_job(model=size, lengths={"cap": 2048, "batch": 16})
    assert job.colocated is not None and job.solo_s > 0


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"lengths": None}, "jobs[0].lengths: is missing; a model needs it"),
        ({"model": None, "rollout": {"worst_case_s": 1}, "training": {"worst_case_s": 1}}, "jobs[0].lengths: needs a model"),
        ({"model": "9B"}, "jobs[0].model.name: must be one of 0.5B"),
        ({"model": 7}, "jobs[0].model: must be a mapping, not 7"),
        ({"model": {"name": "7B", "colour": 1}}, "jobs[0].model.colour: is not a key"),
        ({"model": {"name": "7B", "tensor_parallel": 3}}, "jobs[0].model.tensor_parallel: must divide the 8 GPUs"),
        ({"model": "70B"}, "jobs[0].model: 141.1 GB of weights leave no room"),
        ({"model": {"name": "32B"}, "lengths": {"cap": 90_000}}, "jobs[0].model: a response of 90512 tokens"),
        ({"lengths": {}}, "jobs[0].lengths.cap: is missing"),
        ({"lengths": {"cap": 4096, "published": "7B-8k"}}, "jobs[0].lengths: published: 7B-8k has a cap of 8192"),
        ({"lengths": {"cap": 8192, "published": "9B"}}, "jobs[0].lengths: published: must be one of"),
        ({"lengths": {"cap": 8192, "median": 5}}, "jobs[0].lengths: median and sigma go together"),
        ({"lengths": {"cap": 8192, "median": 5, "sigma": 1, "file": "x"}}, "jobs[0].lengths: takes at most one of"),
        ({"lengths": {"cap": 8192, "file": "absent.txt"}}, "absent.txt: No such file"),
        ({"lengths": {"cap": 8192, "quantiles": [[0.5, 100], [0.4, 200]]}}, "jobs[0].lengths: quantiles must rise"),
        ({"lengths": {"cap": 8192, "batch": 0}}, "jobs[0].lengths.batch: must be at least 1"),
        ({"rollout": {"nodes": 0}}, "jobs[0].rollout.nodes: must be at least 1"),
        ({"rollout": 3}, "jobs[0].rollout: must be a mapping"),
        ({"rollout": {"actual": {"mean_fraction": 0.5}}}, "jobs[0].rollout.actual: does not go with a model"),
    ],
)
def test_what_does_not_go_together_is_said_in_one_line(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_scenario(file(**changes))
    assert problem in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("gpu", ["", "B300"])
def test_a_model_needs_a_gpu_that_is_known(gpu: str) -> None:
    data = file()
    data["cluster"] = CLUSTER | {"training": CLUSTER["training"] | {"gpu": gpu}}
    with pytest.raises(InputError, match=r"cluster.training.gpu: must be one of H20"):
        parse_scenario(data)


def test_hardware_that_was_measured_for_rollouts_alone_does_not_train(tmp_path: Path) -> None:
    measured = json.loads(achieved("H20", GPUS["H20"]).to_json()) | {"training_tflops": 0, "name": "here"}
    (tmp_path / "node.json").write_text(json.dumps(measured))
    data = file()
    data["cluster"] = CLUSTER | {"training": CLUSTER["training"] | {"gpu": "node.json"}}
    with pytest.raises(InputError, match="here: its rate of training was not measured"):
        parse_scenario(data, folder=tmp_path)


def test_the_schema_takes_jobs_with_a_model_and_others_only_with_seconds() -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator(scenario_schema())
    assert validator.is_valid(file()) and validator.is_valid(file(model={"name": "7B"}))
    assert validator.is_valid(json.loads(parse_scenario(file()).canonical_json()))
    assert not validator.is_valid(file(model=None))
    assert not validator.is_valid(file(lengths=None))
    assert not validator.is_valid(file(model=None, lengths=None, rollout={}, training={}))
    assert not validator.is_valid(file(lengths={"cap": 1.5}))
    assert not validator.is_valid(file(model={"tensor_parallel": 1}))


@examples(40)
@given(st.sampled_from(["3B", "7B", "14B"]), st.integers(1, 3), st.integers(1, 700), st.integers(1, 20_000), st.integers(0, 2**32))
@example("3B", 1, 1, 2, 1)
def test_what_is_simulated_stays_within_the_worst_case(size: str, turns: int, batch: int, cap: int, seed: int) -> None:
    lengths = {"cap": cap, "batch": batch, "turns": turns, "environment_s": 2, "median": 1 + cap / 3, "sigma": 1.5}
    job = the_job(model=size, lengths=lengths)
    setting = setting_of(job)
    assert setting is not None
    for rollout in (JobRollouts(setting, Plain(), seed).next(), JobRollouts(replace(setting, alike=1.0), Plain(), seed).next()):
        assert turns <= rollout.counted_tokens.max() <= cap * turns
        assert 0 < rollout.seconds <= job.rollout.worst_case_s * (1 + 1e-9) + 1e-6  # which a file has to the microsecond
        trained = MiniBatch.of(512 * turns + rollout.counted_tokens)
        assert job.timing is not None
        assert 0 < training_of(job.timing).seconds(trained) <= job.training.worst_case_s + 1e-6
