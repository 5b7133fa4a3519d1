"""Calibration: on an engine whose seconds are those of the model it finds the model; on a real one it says what it measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmux_env.errors import InputError
from rollmux_env.scenario import load_scenario
from rollmux_env.timing.hardware import read_hardware
from rollmux_env.timing.jobs import replica_of
from rollmux_env.timing.models import SHAPES
from rollmux_env.timing.replica import ReplicaTiming, replica_timing
from runtime.calibration import Grid, Measurer, as_hardware, fit, measure
from runtime.engines.interface import Response, Sampling, SamplingProgress
from runtime.jobs.spec import TaskJob
from runtime.profile import subject
from tests.conftest import Command

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
TRUE = [
    ReplicaTiming(1e-3, 4e-4, 6e-7, 5e-5, 2e-5, 1e-8, 2e-4, 10**6),
    ReplicaTiming(5e-3, 1e-4, 1e-7, 2e-3, 1e-4, 1e-7, 1e-3, 10**6),
    ReplicaTiming(1e-4, 8e-3, 5e-6, 1e-6, 1e-5, 1e-9, 1e-5, 10**6),
]


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets these; what they were comes back after each test."""
    for name in THREADS:
        monkeypatch.setenv(name, "1")


class ModelledEngine:
    """Takes exactly the seconds of a replica's numbers, on a clock of its own."""

    def __init__(self, timing: ReplicaTiming) -> None:
        self.timing = timing
        self.now_s = 0.0

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Callable[[SamplingProgress], None] | None = None
    ) -> list[Response]:
        generator = np.random.default_rng(sampling.seed)
        lengths = generator.integers(1, sampling.max_tokens, len(prompts), endpoint=True)
        lengths = np.full(len(prompts), sampling.max_tokens) if sampling.ignore_end else lengths
        self.now_s += sum(self.timing.prefill_seconds(len(prompt)) for prompt in prompts)
        done = 0
        for step in range(int(lengths.max())):
            live = [len(prompt) + step for prompt, length in zip(prompts, lengths, strict=True) if length > step]
            if step:
                self.now_s += self.timing.decode_s(len(live), sum(live) - len(live))
            done += len(live)
            if progress is not None:
                progress(SamplingProgress(0, len(prompts), done))
        return [Response(row, (5,) * int(length), (0.0,) * int(length), True, 0) for row, length in enumerate(lengths)]


@pytest.mark.parametrize("timing", TRUE, ids=["cache", "arithmetic", "weights"])
def test_an_engine_that_is_the_model_is_found_and_its_rollouts_are_predicted(timing: ReplicaTiming) -> None:
    engine: Any = ModelledEngine(timing)
    measurer = Measurer(engine, 100, 0, lambda: engine.now_s)
    checks = [([[1] * 7] * 24, 60), ([[1] * 20] * 40, 90)]
    found = measure(measurer, Grid.up_to(64, 50, 200), 1, checks)
    fitted = fit(found, 10**6)
    assert fitted.prefill_seconds(30) == pytest.approx(timing.prefill_seconds(30), rel=0.02)
    for batch, context in ((1, 30), (10, 900), (60, 9000)):
        assert fitted.decode_s(batch, context) == pytest.approx(timing.decode_s(batch, context), rel=0.05)
    for rollout in found.rollouts:
        assert rollout.predicted_s(fitted) == pytest.approx(rollout.seconds, rel=0.05)


@pytest.mark.parametrize("timing", TRUE)
def test_the_hardware_of_a_fit_gives_the_fit_back(timing: ReplicaTiming) -> None:
    shape = SHAPES["0.5B"]
    hardware = as_hardware("here", shape, timing, 4.0, 20.0, 0.5)
    back = replica_timing(shape, hardware)
    for name in ("step_s", "weights_s", "kv_s_per_token", "sequence_s", "prefill_s", "prefill_s_per_token", "prefill_s_per_token2"):
        assert getattr(back, name) == pytest.approx(getattr(timing, name))


def test_a_real_engine_is_measured_and_a_scenario_can_name_the_result(command: Command, tmp_path: Path) -> None:
    jobs = {"iterations": 1, "slo": 1, "task": "count", "model": {"name": "tiny", "hidden_size": 64, "layers": 1}}
    algorithm = {"prompts_per_iteration": 4, "group_size": 2, "max_tokens": 12, "max_prompt_tokens": 8}
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps({"version": 1, "jobs": [{"id": "a", "algorithm": algorithm, **jobs}]}))
    out = tmp_path / "here.json"
    how = ("--engine", "torch", "--rounds", "1", "--out", str(out), "--format", "json")
    status, text, _ = command("profile", str(file), *how)
    assert status == 0
    report = json.loads(text)
    assert [check["responses"] for check in report["checks"]] == [8, 4]
    assert all(check["predicted_s"] > 0 and check["measured_s"] > 0 for check in report["checks"])
    switches = report["switches"]
    levels = {level["name"]: level for level in switches.pop("levels")}
    assert [*levels] == ["stay", "keep", "drop"] and switches.pop("cheapest") in levels
    assert levels["stay"]["device_gb"] > 0 and levels["keep"]["device_gb"] >= 0
    assert min(switches.values()) >= 0
    hardware = read_hardware(out)
    assert hardware.training_tflops == 0 and hardware.step_s == report["timing"]["step_s"]

    pools = {"rollout": {"gpu": "here.json"}, "training": {"gpu": "H800"}}
    cluster = {name: pool | {"gpus_per_node": 1, "usd_per_gpu_hour": 1} for name, pool in pools.items()}
    job = {"id": "a", "arrival_s": 0, "iterations": 1, "slo": 1, "model": "0.5B", "lengths": {"cap": 100, "batch": 8}}
    (tmp_path / "scenario.json").write_text(json.dumps({"version": 1, "cluster": cluster, "jobs": [job]}))
    (loaded,) = load_scenario(tmp_path / "scenario.json").jobs
    assert loaded.timing is not None and replica_of(loaded.timing) == replica_timing(SHAPES["0.5B"], hardware)


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("absent.yaml",), "absent.yaml: No such file"),
        (("tiny", "--job", "a"), "--job a: goes with a job file"),
        (("tiny", "--engine", "torch", "--size", "9999"), "9999"),
        (("tiny", "--out", "here.txt"), "--out here.txt: must be a .json file"),
        (("tiny", "--out", "nowhere/here.json"), "must be a .json file in a folder that is there"),
    ],
)
def test_what_cannot_be_profiled_is_said_in_one_line(command: Command, arguments: tuple[str, ...], problem: str) -> None:
    status, out, err = command("profile", *arguments)
    assert (status, out) == (2, "")
    assert problem in err and err.count("\n") == 1
    assert [os.environ[name] for name in THREADS] == ["1", "1"]


@pytest.mark.parametrize(
    "engine, gpus, problem",
    [("vllm", 4, "4 GPUs are here"), ("torch", 1, "1 GPU is here"), ("torch", 8, "the torch engine takes one GPU")],
)
def test_a_size_that_the_gpus_or_the_engine_cannot_have_is_refused(
    command: Command, monkeypatch: pytest.MonkeyPatch, engine: str, gpus: int, problem: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus))))
    for name in THREADS:
        monkeypatch.setenv(name, "3")
    status, out, err = command("profile", "tiny", "--engine", engine, "--size", "8")
    assert (status, out, err) == (2, "", f"rollmux: --size 8: {problem}\n")
    assert [os.environ[name] for name in THREADS] == ["1", "1"]  # the size counts GPUs


def test_a_model_is_profiled_by_a_job_of_the_built_in_kind(tmp_path: Path) -> None:
    jobs = [subject("tiny", None), subject(str(tmp_path), None)]
    assert [(job.id, job.model.name) for job in jobs] == [("tiny", "tiny"), (tmp_path.name, str(tmp_path))]
    assert all(isinstance(job, TaskJob) for job in jobs)
    with pytest.raises(InputError, match="--job a: goes with a job file"):
        subject("tiny", "a")


def test_a_job_of_a_file_is_found_by_its_id(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    job = {"iterations": 1, "slo": 1, "task": "count"}
    file.write_text(json.dumps({"version": 1, "jobs": [{"id": "a", **job}, {"id": "b", **job}]}))
    assert subject(str(file), None).id == "a" and subject(str(file), "b").id == "b"
    with pytest.raises(InputError, match="no job with a task is called 'c'"):
        subject(str(file), "c")
