"""What a run depends on, and what is said where that has changed since it began."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import InputError
from runtime.jobs.file import parse_jobs
from runtime.jobs.spec import JobSpec
from runtime.run.dependencies import FILE, changed, remember
from tests.conftest import Command
from tests.fixtures import copied

REWARD = "def is_right(line, response):\n    return 1.0\n"


@pytest.fixture
def jobs(tmp_path: Path) -> tuple[JobSpec, ...]:
    """A job with a file of data, a reward of its own and a model folder, all in the same folder."""
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    (tmp_path / "own_reward.py").write_text(f"import json, helpers\n{REWARD}")
    (tmp_path / "helpers.py").write_text("from parts.one import ONE\n")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "one.py").write_text("import helpers\nfrom . import two\nONE = 1\n")
    (tmp_path / "parts" / "two.py").write_text("from ..parts.three import *\nimport nowhere\n")
    (tmp_path / "parts" / "three.py").write_text("from parts import four\n")
    (tmp_path / "parts" / "four.py").write_text("from . import *\nfrom ... import beyond\n")
    (tmp_path / "own_policy.py").write_text("class Own: ...\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").write_bytes(bytes(1000))
    task = {"name": "jsonl", "file": "data.jsonl", "reward": "own_reward:is_right"}
    job = {"id": "a", "iterations": 2, "slo": 9.0, "task": task, "model": "model", "rollout": {"policy": "own_policy:Own"}}
    (tmp_path / "jobs.yaml").write_text("jobs")
    return parse_jobs({"version": 1, "jobs": [job]}, "jobs.yaml", tmp_path).jobs


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("jobs.yaml", lambda path: path.write_text("other")),
        ("data.jsonl", lambda path: path.write_text('{"prompt": "1+1", "answer": "3"}\n')),
        ("own_reward.py", lambda path: path.write_text(REWARD.replace("1.0", "0.0"))),
        ("helpers.py", lambda path: path.write_text("from parts.one import ONE as TWO\n")),
        ("parts/one.py", lambda path: path.write_text("ONE = 2\n")),
        ("parts/two.py", lambda path: path.write_text("")),
        ("parts/three.py", lambda path: path.write_text("")),
        ("parts/four.py", lambda path: path.write_text("")),
        ("own_policy.py", lambda path: path.write_text("class Own: pass\n")),
        ("model", lambda path: (path / "model.safetensors").write_bytes(b"1" * 1000)),
        ("model", lambda path: os.rename(path / "config.json", path / "other.json")),
        ("data.jsonl", lambda path: path.unlink()),
    ],
)
def test_what_has_changed_is_known(jobs: Any, tmp_path: Path, name: str, act: Callable[[Path], None]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    remember(run, jobs, tmp_path / "jobs.yaml")
    assert changed(run) == ()
    act(tmp_path / name)
    assert changed(run) == (str(tmp_path / name),)
    remember(run, jobs)
    assert changed(run) == ()


def test_a_change_in_the_middle_of_a_large_file_is_known(jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of weights into which an adapter of some layers was merged: the header, the embedding and the last norm are the same."""
    monkeypatch.setattr("runtime.run.dependencies._WHOLE", 10_000)
    monkeypatch.setattr("runtime.run.dependencies._BLOCK", 100)
    weights, run = tmp_path / "model" / "model.safetensors", tmp_path / "run"
    weights.write_bytes(bytes(20_000))
    run.mkdir()
    remember(run, jobs)
    weights.write_bytes(bytes(9_900) + b"1" * 300 + bytes(9_800))
    assert changed(run) == (str(tmp_path / "model"),)


def test_a_run_of_before_has_nothing_to_compare(tmp_path: Path) -> None:
    assert changed(tmp_path) == ()


def test_a_resume_says_what_has_changed_and_needs_a_word(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_session(*_: object) -> None:
        raise InputError("Ray does not begin")

    folder, file = copied("interrupted-run", tmp_path), tmp_path / "jobs.yaml"
    file.write_text("now")
    (folder / FILE).write_text(json.dumps({"job_file": str(file), "digests": {str(file): "before"}}))
    status, _, said = command("run", "--resume", str(folder))
    assert status == 2 and f"changed since the run began: {file}; --accept-changes continues with what they are now" in said
    monkeypatch.setattr("runtime.commands.running.ray_session", no_session)
    status, _, said = command("run", "--resume", str(folder), "--accept-changes")
    assert status == 2 and "Ray does not begin" in said
    assert changed(folder) == (str(file),)  # what was accepted did not run
    status, _, said = command("run", str(file), "--accept-changes")
    assert status == 2 and "--accept-changes: goes with --resume" in said
