"""`staleness` of job files: what goes with it, and what is refused with one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollmux_env.errors import InputError
from runtime.coordinator.profiles import job_as_stated
from runtime.jobs.file import JobFile, parse_jobs

STATED = {"worst_case_s": 2.0}
OWN: dict[str, Any] = {"id": "a", "iterations": 3, "slo": 2.0, "task": "echo"}
ATTACHED: dict[str, Any] = {"id": "b", "iterations": 3, "slo": 2.0, "attach": True, "rollout": STATED, "training": STATED}


def parse(*jobs: dict[str, Any], **more: Any) -> JobFile:
    return parse_jobs({"version": 1, "jobs": [*jobs], **more}, "x", Path("/"))


def test_it_is_a_key_of_all_kinds_but_a_class_of_ones_own() -> None:
    other = {"id": "c", "iterations": 3, "slo": 2.0, "class": "m:C"}
    jobs = parse(OWN, ATTACHED, other, defaults={"staleness": 2}).jobs
    assert [job.staleness for job in jobs] == [2, 2, 0]
    known = job_as_stated(jobs[1], 0.0)
    assert known.staleness == 2 and known.solo_s == 2.0  # of 4 s on-policy, on a node each
    assert "staleness" not in parse(OWN).jobs[0].model_dump()  # so that profiles keep their names


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        ({**OWN, "task": None, "class": "m:C", "staleness": 1}, "jobs[0].staleness: is a key of jobs with task, attach or command"),
        ({**OWN, "rollout": {"interruptible": True}}, "jobs[0].rollout.interruptible: goes with a staleness"),
        (
            {**ATTACHED, "staleness": 1, "rollout": {**STATED, "interruptible": True}},
            "jobs[0].rollout.interruptible: ",
        ),
        ({**OWN, "staleness": 65}, "jobs[0].staleness: "),
        ({**OWN, "staleness": -1}, "jobs[0].staleness: "),
    ],
)
def test_what_cannot_be_is_refused(job: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError) as error:
        parse({key: value for key, value in job.items() if value is not None})
    assert str(error.value).startswith(f"x: {problem}") and "\n" not in str(error.value)


def test_one_device_runs_one_phase_after_the_other() -> None:
    pool = {"gpus_per_node": 1, "usd_per_gpu_hour": 1.0}
    with pytest.raises(InputError, match=r"jobs\[0\].staleness: does not go with cluster.one_device: a device runs one phase"):
        parse({**OWN, "staleness": 1}, cluster={"training": pool, "one_device": True})
