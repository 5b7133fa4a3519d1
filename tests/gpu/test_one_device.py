"""One GPU for rollouts and trainings: two jobs take turns on it. Needs Ray."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: runs need it")

from runtime.journal.audit import check_run
from runtime.journal.write import read_run
from tests.conftest import Command

pytestmark = pytest.mark.long


def test_two_jobs_take_turns_on_one_device(device: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    if device == "cuda":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    defaults = {
        "slo": 100.0,
        "iterations": 3,
        "task": "echo",
        "model": {"name": "tiny", "hidden_size": 64, "layers": 1},
        "algorithm": {"prompts_per_iteration": 4, "group_size": 4, "max_tokens": 16},
        "rollout": {"engine": "torch"},
    }
    file = tmp_path / "jobs.json"
    jobs = [{"id": "a"}, {"id": "b", "seed": 1}]
    cluster = {"one_device": True, "training": {"usd_per_gpu_hour": 1.0, "gpus_per_node": 1}}
    content = {"version": 1, "cluster": cluster, "defaults": defaults, "jobs": jobs}
    file.write_text(json.dumps(content))
    status, out, error = command("run", str(file), "--out", str(tmp_path / "run"))
    assert status == 0, out + error
    record = read_run(tmp_path / "run")
    check_run(record)
    assert {name: sum(done.job_id == name for done in record.iterations) for name in "ab"} == {"a": 3, "b": 3}
    phases = sorted(record.phases, key=lambda part: part.start_s)
    assert all(one.end_s <= other.start_s for one, other in pairwise(phases))  # the device does one thing at a time
