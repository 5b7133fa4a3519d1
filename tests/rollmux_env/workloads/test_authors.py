"""The reader of the paper's authors' traces: made-up files of the same form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollmux_env.errors import InputError
from rollmux_env.scenario import Scenario
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.catalogue import PHASES_S
from rollmux_env.workloads.options import WorkloadOptions

TYPED = """job0, 2025-07-30 15:00:00, 1, 7B_8k
job1, 2025-07-30 15:10:00, 1, 32B_8k
job0, 2025-07-30 16:00:00, -1, 7B_8k
job1, 2025-07-31 15:10:00, -1, 32B_8k
"""
PARSED = "a_1, 2017-10-04 08:00:00, 1, 120.5, 40.25, 1.75\na_1, 2017-10-04 09:00:00, -1\n"
SECONDS = {"generate": 100.0, "train": 50.0}
TOGETHER = {"generate": 80.0, "train": 45.0}


def load(folder: Path, text: str, **options: object) -> Scenario:
    (folder / "a.trace").write_text(text)
    return make_workload("authors", WorkloadOptions(trace=folder / "a.trace", **options))  # type: ignore[arg-type]


def test_types_have_the_papers_phase_times_and_stays_are_those_of_the_trace(tmp_path: Path) -> None:
    first, second = load(tmp_path, TYPED, stays="fixed").jobs
    assert (first.id, first.arrival_s, first.duration_s) == ("job0", 0.0, 3600.0)
    assert (second.arrival_s, second.duration_s) == (600.0, 86400.0)
    assert (first.rollout.worst_case_s, first.training.worst_case_s) == PHASES_S["7B-8k"][:2]
    assert (second.rollout.nodes, second.training.nodes) == (2, 2)
    paper = load(tmp_path, TYPED, semantics="paper").jobs[1]
    assert (paper.rollout.nodes, paper.training.nodes) == (2, 1) and 1.1 <= paper.slo <= 2
    assert load(tmp_path, TYPED).jobs[0].iterations == round(3600 / sum(PHASES_S["7B-8k"][:2]))


def test_phase_times_and_drift_of_other_files_take_their_place(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"disagg": {"7B_8k": SECONDS}, "colo": {"7B_8k": TOGETHER}}))
    (tmp_path / "d.json").write_text(json.dumps({"seed": 1, "jobs": {"job0": {"extent": 1.0, "rollout_steps": [100.0, 150.0]}}}))
    one = (
        TYPED.replace("job1, ", "").replace("2025-07-30 15:10:00, 1, 32B_8k\n", "").replace("2025-07-31 15:10:00, -1, 32B_8k\n", "")
    )
    (job,) = load(tmp_path, one, phase_times=tmp_path / "p.json", drift=tmp_path / "d.json").jobs
    assert job.solo_s == 150.0 and job.iterations == 24
    assert job.colocated is not None and job.colocated.rollout_s + job.colocated.training_s == 125.0
    assert [(step.iteration, step.rollout, step.training) for step in job.drift] == [(0, 1.0, 1.0), (1, 1.5, 1.5)]


def test_lines_with_seconds_have_their_own_slo(tmp_path: Path) -> None:
    (job,) = load(tmp_path, PARSED, stays="fixed").jobs
    assert (job.rollout.worst_case_s, job.training.worst_case_s, job.slo, job.duration_s) == (120.5, 40.25, 1.75, 3600.0)
    assert load(tmp_path, PARSED, slo=(1.2, 1.2)).jobs[0].slo == 1.2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no job comes"),
        ("job0; 2025\n", "line 1: must begin with a job, a time and 1 or -1"),
        ("job0, yesterday, 1, 7B_8k\n", "line 1: must have a time such as"),
        ("job0, 2025-07-30 15:00:00, 1, 7B_8k\n", "'job0' never leaves"),
        ("job0, 2025-07-30 15:00:00, -1\n", "line 1: 'job0' comes twice, or does not leave"),
        (PARSED.replace("40.25", "long"), "line 1: must end with a type, or with rollout seconds"),
        (PARSED.replace("1.75", "0.5"), "line 1: seconds must be above 0, and the SLO at least 1"),
        (TYPED.replace("7B_8k", "9B_1k"), "type: must be one of"),
    ],
)
def test_what_is_no_trace_gives_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError) as error:
        load(tmp_path, text)
    assert problem in str(error.value) and "\n" not in str(error.value)


def test_files_beside_it_that_are_none_give_one_line(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"disagg": {}, "colo": {}}')
    with pytest.raises(InputError, match="has no phase times of the type '7B_8k'"):
        load(tmp_path, TYPED, phase_times=tmp_path / "p.json")
    with pytest.raises(InputError, match=r"p\.json: jobs: "):
        load(tmp_path, TYPED, drift=tmp_path / "p.json")
    with pytest.raises(InputError, match="trace: the workload authors needs a trace file"):
        make_workload("authors", WorkloadOptions())
