"""Assumptions by name and from a file: what studies take of them, and one line for what is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rollmux_env.bench.suites import SUITES, find_suite
from rollmux_env.errors import InputError
from rollmux_env.files import EXAMPLES
from rollmux_env.keys.assumptions import NAMED, OURS, assumed
from rollmux_env.scenario import Scenario
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions
from rollmux_env.workloads.text import to_json
from tests.conftest import Command

EXAMPLE = EXAMPLES / "assumptions.yaml"


def stream(assumptions: str | Path, **options: object) -> Scenario:
    return make_workload("production", WorkloadOptions(jobs=12, assumptions=assumptions, **options))  # type: ignore[arg-type]


def test_ours_are_the_default_and_an_empty_section_is_ours(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("shapes: {}\nthird_pool: {}\n")
    every = {"shapes": True, "third_pool": True, "asynchronous": 0.5}
    assert assumed(path) == OURS == assumed("ours")
    assert to_json(stream(path, **every)) == to_json(stream("ours", **every)) != to_json(stream("model", **every))


def test_a_file_says_scaling_prices_staleness_and_durations() -> None:
    scenario = stream(EXAMPLE, shapes=True, third_pool=True, asynchronous=1.0)
    assert scenario.cluster.pools["A100"].usd_per_gpu_hour == 1.60
    for job in scenario.jobs:
        trainings = [job.phases(shape).training for shape in range(1 + len(job.shapes))]
        wide = next(one for one in trainings if one.nodes == 2 * job.training.nodes and one.pool == "training")
        there = next(one for one in trainings if one.pool == "A100" and one.nodes == job.training.nodes)
        assert wide.worst_case_s == pytest.approx(0.65 * job.training.worst_case_s, abs=1e-3)
        assert there.worst_case_s == pytest.approx(2.4 * job.training.worst_case_s, abs=1e-3)
        assert job.staleness in (1, 4)
        assert job.sync_s == pytest.approx(0.05 * (job.rollout.worst_case_s + job.training.worst_case_s), abs=1e-3)
        assert job.rollout.actual is not None and job.rollout.actual.cv == 0.25


def test_the_model_says_them_too() -> None:
    """Twice the nodes take more than half of the seconds, less arithmetic takes longer, and a sync is some seconds."""
    plain = {job.id: job for job in stream("ours").jobs}
    for job in stream("model", shapes=True, third_pool=True, asynchronous=1.0).jobs:
        own = plain[job.id]
        for shape in map(job.phases, range(1, 1 + len(job.shapes))):
            for phase, was in ((shape.rollout, own.rollout), (shape.training, own.training)):
                times = phase.worst_case_s / was.worst_case_s
                if phase.pool != "A100":
                    least = min(1, was.nodes / phase.nodes)
                    assert times == 1 if phase.nodes == was.nodes else 0.65 * least < times < 2
                elif phase.nodes == was.nodes:
                    assert (1 if phase is shape.training else 0.5) < times < 4
        assert 0 < job.sync_s < 60
    assert NAMED["model"].third_pool.pool == OURS.third_pool.pool


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("shapes: {rolout: 0.2}", "shapes.rolout: is not a key of this file format; did you mean shapes.rollout?"),
        ("shapes: {model: true, rollout: 0.2}", "shapes.rollout: does not go with model: true, which provides it"),
        ("shapes: {rollout: 1.2}", "shapes.rollout: must be at most 1, not 1.2"),
        ("asynchrony: {staleness: [0]}", "asynchrony.staleness[0]: must be at least 1, not 0"),
        ("asynchrony: {staleness: []}", "asynchrony.staleness: is empty"),
        ("third_pool: {pool: {gpu: training, gpus_per_node: 8, usd_per_gpu_hour: 1}}", "third_pool.pool.gpu: must name the pool"),
        ("failures: {job_h: 0}", "failures.job_h: must be above 0, not 0"),
        ("failures: {every: 4}", "failures.every: is not a key of this file format"),
        ("durations: {cv: 0.2}", "durations.mean_fraction: is missing"),
        ("fabric: {jobs: [{label: a, model: 7B}]}", "fabric.jobs[0].gpus: is missing"),
    ],
)
def test_a_file_that_is_none_is_one_line(text: str, problem: str, tmp_path: Path, command: Command) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    status, out, err = command("bench", "production", "--set", "jobs=3", "--set", f"assumptions={path}", "-p", "solo")
    assert (status, out, err.count("\n")) == (2, "", 1) and f"mine.yaml: {problem}" in err


def test_a_name_of_nothing_and_a_gpu_that_the_model_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="assumptions: must be one of ours, model, or a file, not 'modle'"):
        stream("modle")
    path = tmp_path / "mine.yaml"
    path.write_text("third_pool: {model: true, pool: {gpu: L40S, gpus_per_node: 8, usd_per_gpu_hour: 1}}")
    with pytest.raises(InputError, match=r"third_pool\.pool\.gpu: must be one of H20"):
        stream(path, third_pool=True)


@pytest.mark.parametrize("name", ["shapes", "asynchrony", "failures"])
def test_a_suite_takes_the_file_for_all_its_cases(name: str) -> None:
    suite = find_suite(name, [f"assumptions={EXAMPLE}"])
    assert [case.label for case in suite.cases] == [case.label for case in SUITES[name].cases]
    assert {case.dispatch for case in suite.cases} == {"round-robin"}, "what varies is replayed phase by phase"
    case = replace(suite.cases[-1])
    assert all(job.training.actual is not None for job in case.stream(0, True).jobs[:3])
    assert suite.differences != SUITES[name].differences, "sentences on our assumptions are not true of others"
    rates = [one.failures for one in suite.cases if one.failures is not None and one.failures.dies]
    assert all((one.job_h, one.node_h, one.scheduler_h, one.write_s) == (48, 2000, 168, 20) for one in rates)
    assert bool(rates) == (name == "failures")


def test_the_suite_of_fabrics_takes_jobs_prices_and_traffic(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    status, out, _ = command("bench", "--suite", "fabric", "--quick", "--set", "assumptions=assumptions.yaml", "--format", "csv")
    assert status == 0 and "7B on 256, 16 GPUs a replica" in out and "the same, weights from a file" in out and "32B" not in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ("production", "--set", "assumptions=ours"),
            "--set assumptions: the suite production has its own options, and takes workload=module:name alone",
        ),
        (
            ("shapes", "--set", "jobs=9"),
            "--set jobs: the suite shapes has its own options, and takes assumptions=FILE, workload=",
        ),
        (("fabric", "--set", "assumptions=none.yaml"), "none.yaml: No such file or directory"),
    ],
)
def test_what_a_suite_does_not_take_is_one_line(words: tuple[str, ...], problem: str, command: Command) -> None:
    status, out, err = command("bench", "--suite", *words)
    assert (status, out, err.count("\n")) == (2, "", 1) and problem in err


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("model: 9B", "fabric.jobs[0].model: must be one of"),
        ("gpus: 100", "fabric.jobs[0]: fabric: 100 GPUs do not fill leaves of 32"),
        ("replica: 12", "fabric job: replicas of 12 GPUs must fit into nodes or fill them"),
        ("traffic: none.csv", "none.csv: No such file"),
        ("lengths: {cap: 512}", "fabric.jobs[0]: "),
    ],
)
def test_a_job_on_a_fabric_that_is_none_is_one_line(entry: str, problem: str, tmp_path: Path, command: Command) -> None:
    keys = {"label": "a", "model": "7B", "gpus": "256", "tensor": "8", "pipeline": "2", "data": "8", "replica": "8"}
    name, _, value = entry.partition(": ")
    path = tmp_path / "mine.yaml"
    path.write_text(f"fabric: {{jobs: [{{{', '.join(f'{k}: {v}' for k, v in {**keys, name: value}.items())}}}]}}")
    status, out, err = command("bench", "--suite", "fabric", "--quick", "--set", f"assumptions={path}")
    assert (status, out, err.count("\n")) == (2, "", 1) and problem in err
