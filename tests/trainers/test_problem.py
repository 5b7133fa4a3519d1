"""Streams that a training plays: scenario files, traces, mixtures, and workloads at another pace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollmux_env.envs.placement.stream import stream_of
from rollmux_env.errors import InputError
from rollmux_env.workloads import WorkloadOptions, make_workload
from trainers.problems.catalogue import make_problem
from trainers.problems.placement import PlacementProblem

QUICKSTART = str(Path(__file__).parents[2] / "examples" / "quickstart.yaml")


def problem(**environment: Any) -> PlacementProblem:
    made = make_problem({"name": "placement", **environment}, "mine.yaml")
    assert isinstance(made, PlacementProblem)
    return made


def test_a_mixture_of_workloads_a_trace_and_a_file_is_played(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,duration\n0,7200\n600,3600\n1800,5400\n3600,600\n")
    parts: list[dict[str, Any]] = [
        {"workload": "production", "options": {"interarrival_s": 2000}},
        {"workload": "philly", "options": {"csv": str(trace), "jobs": 3}},
        {"workload": "mixed", "options": {"stays": "fixed"}},
    ]
    mixed = problem(mixture=parts, options={"jobs": 12})
    streams = [mixed.generator.scenario(seed) for seed in range(3)]
    assert [len(stream.jobs) for stream in streams] == [12, 3, 12] and mixed.generator.jobs == 12
    assert streams[0].jobs[-1].arrival_s == pytest.approx(11 * 2000) and streams[2].jobs[0].duration_s
    assert streams[1] == make_workload("philly", WorkloadOptions(csv=trace, jobs=3, seed=1))
    for seed in range(3):
        assert np.array_equal(mixed.generator.stream(seed)["arrival_s"], stream_of(streams[seed])["arrival_s"])
    env = mixed.environment(3, autoreset=False)
    env.reset(options={"stream_seed": [0, 1, 2]})
    env.step(np.zeros(3, dtype=np.int64))
    assert problem(workload=QUICKSTART).generator.jobs == 6


def test_the_discount_is_by_the_hour_where_all_jobs_arrive_at_once() -> None:
    at_once = problem(workload="toy", options={"rounds": 1}, moves=True)
    env = at_once.environment(1, autoreset=False)
    observation, _ = env.reset(options={"stream_seed": 0})
    over, hours = False, []
    while not over:
        observation, _, ended, _, _ = env.step(observation["mask"].argmax(axis=1))
        over = bool(ended[0])
        hours.append(float(at_once.progress(env, observation)[0]))
    assert hours[0] == 0.0 and hours[-1] == pytest.approx(float(env.streams.clock["now_s"][0]) / 3600) and hours[-1] >= 1


@pytest.mark.parametrize("name", ["production", "mixed"])
def test_another_pace_changes_arrivals_only(name: str) -> None:
    usual, faster = (make_workload(name, WorkloadOptions(jobs=20, interarrival_s=s)) for s in (None, 600.0))
    gaps, faster_gaps = (np.diff([job.arrival_s for job in stream.jobs]) for stream in (usual, faster))
    assert faster_gaps.mean() == pytest.approx(600) and faster_gaps == pytest.approx(gaps * 600 / gaps.mean(), abs=0.01)
    assert [job.model_copy(update={"arrival_s": 0.0}) for job in usual.jobs] == [
        job.model_copy(update={"arrival_s": 0.0}) for job in faster.jobs
    ]


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        (
            {"workload": QUICKSTART, "options": {"jobs": 3}},
            "a scenario file has no options, such as jobs; a training has none with environment.options={}",
        ),
        ({"options": {"interarrival": 3}}, "production has no option 'interarrival'; did you mean interarrival_s?"),
        ({"options": {"name": "x"}}, "production has no option 'name'"),
        ({"workload": "philly", "options": {"self": "x"}}, "philly has no option 'self'"),
        ({"options": {"interarrival_s": 0}}, "interarrival_s: must be above 0"),
        ({"mixture": [{"work": 1}]}, "environment.mixture[0].work: is not a key"),
        ({"workload": "mixed", "mixture": [{"workload": "mixed"}]}, "mixture: is in place of workload"),
        ({"mixture": [{"workload": "mixed"}, {"workload": "production", "options": {"third_pool": True}}]}, "all of one cluster"),
    ],
)
def test_streams_that_cannot_be_are_refused_in_a_line(environment: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError) as refused:
        problem(**environment)
    assert (
        str(refused.value).startswith("mine.yaml: environment") and error in str(refused.value) and "\n" not in str(refused.value)
    )
