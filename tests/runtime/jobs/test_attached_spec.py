"""Job files' entries for jobs that run elsewhere: what they state, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import InputError
from runtime.jobs.file import parse_jobs
from runtime.jobs.spec import AttachedJob, ClassJob, CommandJob, JobSpec, job_of

STATED: dict[str, Any] = {
    "id": "a",
    "attach": True,
    "iterations": 5,
    "slo": 2.0,
    "rollout": {"worst_case_s": 60, "host_memory_gb": 4, "device_gb": 1.5},
    "training": {"worst_case_s": 30},
}


def parsed(job: dict[str, Any], defaults: dict[str, Any] | None = None) -> JobSpec:
    return parse_jobs({"version": 1, "defaults": defaults or {}, "jobs": [job]}, "file", Path("/")).jobs[0]


def test_an_attached_job_states_its_phases_and_stays_where_it_is_unless_it_says_otherwise() -> None:
    spec = parsed(STATED | {"sync_s": 2, "eval_s": 10})
    assert spec.is_attached and not spec.movable and (spec.sync_s, spec.eval_s) == (2.0, 10.0)
    assert (spec.rollout.worst_case_s, spec.rollout.host_memory_gb, spec.rollout.device_gb) == (60.0, 4.0, 1.5)
    assert parsed(STATED | {"movable": True}).movable
    assert job_of(spec.model_dump(by_alias=True, exclude_unset=True)) == spec


def test_a_command_is_a_job_that_the_service_starts() -> None:
    job = {key: value for key, value in STATED.items() if key != "attach"} | {"command": ["python", "train.py"]}
    spec = parsed(job)
    assert isinstance(spec, CommandJob) and spec.command == ("python", "train.py") and not spec.movable


def test_named_nodes_are_as_many_as_the_job_asks_for() -> None:
    spec = parsed(STATED | {"nodes": {"rollout": ["rollout-1", "rollout-0"], "training": ["training-0"]}})
    assert (spec.rollout.nodes, spec.training.nodes) == (2, 1)
    assert spec.nodes_named == {"rollout": ("rollout-1", "rollout-0"), "training": ("training-0",)}


def test_defaults_of_other_kinds_of_jobs_do_not_reach_it() -> None:
    defaults = {"model": "tiny", "options": {"x": 1}, "checkpoint": "none", "sync_s": 3.0, "slo": 3.0}
    spec = parsed({key: value for key, value in STATED.items() if key != "slo"}, defaults)
    assert isinstance(spec, AttachedJob) and (spec.sync_s, spec.slo) == (3.0, 3.0)
    own = parsed({"id": "b", "class": "a:B", "iterations": 3}, defaults)
    assert isinstance(own, ClassJob) and own.checkpoint.every == "none"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"task": "echo"}, "jobs[0]: needs exactly one of task, class, attach and command; task and attach are given"),
        ({"rollout": {}}, "jobs[0].rollout.worst_case_s: is missing; a job with attach states it, or has a profile"),
        (
            {"profile": {"iterations": 2}},
            "jobs[0].rollout.worst_case_s: is measured where there is a profile; give one of the two",
        ),
        (
            {"profile": {"iterations": 5}, "rollout": {}, "training": {}},
            "jobs[0].profile.iterations: must be less than iterations, which is 5",
        ),
        ({"model": "tiny"}, "jobs[0].model: is a key of jobs with task, not with attach"),
        ({"checkpoint": "none"}, "jobs[0].checkpoint: is a key of jobs with task or class, not with attach"),
        (
            {"rollout": {"worst_case_s": 1, "engine": "torch"}},
            "jobs[0].rollout.engine: is a key of jobs with task or class, not with attach",
        ),
        (
            {"nodes": {"rollout": ["x", "x"], "training": ["y"]}},
            "jobs[0].nodes.rollout: names a node twice",
        ),
        ({"nodes": {"rollout": ["x"]}}, "jobs[0].nodes.training: is missing"),
        ({"attach": False, "command": []}, "jobs[0].command: is empty"),
        ({"eval_s": 0}, "jobs[0].eval_s: must be above 0, not 0"),
    ],
)
def test_a_wrong_entry_is_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as refused:
        parsed(STATED | change)
    assert str(refused.value) == f"file: {problem}"


def test_what_an_attached_job_states_is_measured_of_others() -> None:
    with pytest.raises(
        InputError, match=r"jobs\[0\].rollout.worst_case_s: is a key of jobs with attach or command, not with class"
    ):
        parsed({"id": "a", "class": "a:B", "iterations": 3, "slo": 2.0, "rollout": {"worst_case_s": 3}})
