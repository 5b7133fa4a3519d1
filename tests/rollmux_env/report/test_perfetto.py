"""The trace: records that Perfetto needs, times in order, and nothing at once on one node."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from policies.dispatch import make_dispatch
from policies.registry import make_runnable
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.run import PhaseRun, Run
from rollmux_env.report.lanes import NodeUse, follow
from rollmux_env.report.perfetto import trace_json
from rollmux_env.workloads import make_workload
from rollmux_env.workloads.options import WorkloadOptions

REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "cat", "pid", "tid", "ts", "s"},
}


@pytest.fixture(scope="module")
def run() -> Run:
    scenario = make_workload("production", WorkloadOptions(seed=1, jobs=12, switches=True))
    return replay_events(scenario, make_runnable("rollmux"), make_dispatch("fifo"), 0, Watch(keep_phases=True))


@pytest.fixture(scope="module")
def records(run: Run) -> list[dict[str, Any]]:
    return trace_of(run)


def trace_of(run: Run, window_s: tuple[float, float] | None = None) -> list[dict[str, Any]]:
    lanes, _ = follow(run.scenario.cluster, run.log)
    text = trace_json(run.scenario.cluster, run.phases, lanes, run.log, run.time_s[0], window_s)
    return list(json.loads(text)["traceEvents"])


def test_every_record_has_the_fields_of_its_kind(records: list[dict[str, Any]]) -> None:
    assert {record["ph"] for record in records} == set(REQUIRED)
    for record in records:
        assert REQUIRED[record["ph"]] <= set(record)
        assert all(isinstance(record[key], int) and record[key] >= 0 for key in ("ts", "dur", "pid", "tid") if key in record)


def test_every_track_is_named_and_no_number_is_used_twice(records: list[dict[str, Any]]) -> None:
    process = {r["pid"]: r["args"]["name"] for r in records if r["name"] == "process_name"}
    thread = {(r["pid"], r["tid"]): r["args"]["name"] for r in records if r["name"] == "thread_name"}
    assert {(r["pid"], r["tid"]) for r in records if r["ph"] == "X"} <= set(thread)
    assert {pid for pid, _ in thread} <= set(process)
    assert len({tid for _, tid in thread}) == len(thread)
    assert process[1] == "cluster"
    assert {"group 0 rollout (H20)", "group 0 training (H800)"} <= set(process.values())
    assert "rollout node 0" in thread.values()


def test_times_rise_and_nothing_overlaps_on_a_node(records: list[dict[str, Any]]) -> None:
    free_us: dict[tuple[int, int], int] = defaultdict(int)
    for record in records:
        if record["ph"] == "X":
            track = record["pid"], record["tid"]
            assert record["ts"] >= free_us[track]
            assert record["dur"] > 0
            free_us[track] = record["ts"] + record["dur"]
    for kind in ("i", "C"):
        times = [record["ts"] for record in records if record["ph"] == kind]
        assert times == sorted(times)


def test_slices_are_the_phases(run: Run, records: list[dict[str, Any]]) -> None:
    slices = [record for record in records if record["ph"] == "X"]
    nodes = sum(len(phase.nodes) for phase in run.phases)
    switched = sum(len(phase.nodes) for phase in run.phases if phase.switch_s > 0)
    assert switched > 0
    assert sum(record["cat"] == "switch" for record in slices) == switched
    assert sum(record["cat"] in ("rollout", "training") for record in slices) == nodes
    held_s = sum((phase.end_s - phase.start_s) * len(phase.nodes) for phase in run.phases)
    assert sum(record["dur"] for record in slices) / 1e6 == pytest.approx(held_s, rel=1e-9)
    assert set(slices[0]["args"]) == {"job", "phase", "iteration"}


def test_instants_and_counters_tell_the_run(run: Run, records: list[dict[str, Any]]) -> None:
    instants = [record["name"].partition(" ")[2] for record in records if record["ph"] == "i"]
    jobs = len(run.scenario.jobs)
    assert instants.count("arrived") == instants.count("departed") == jobs
    assert sum(name.startswith("admitted") for name in instants) == jobs
    nodes = [record["args"] for record in records if record["name"] == "nodes"]
    assert max(at["rollout"] for at in nodes) == max(run.nodes["rollout"])
    assert nodes[-1] == {"rollout": 0, "training": 0}
    price = run.scenario.cluster.pools["rollout"].usd_per_node_hour, run.scenario.cluster.pools["training"].usd_per_node_hour
    usd = [record["args"]["usd_per_hour"] for record in records if record["name"] == "usd_per_hour"]
    assert usd == pytest.approx([at["rollout"] * price[0] + at["training"] * price[1] for at in nodes])


def test_a_window_keeps_what_is_in_it_and_says_the_nodes_at_its_start(run: Run) -> None:
    from_s, until_s = run.time_s[0] + 3600, run.time_s[0] + 7200
    records = trace_of(run, (from_s, until_s))
    inside = [phase for phase in run.phases if phase.start_s < until_s and phase.end_s > from_s]
    seen = {(r["args"]["job"], r["args"]["iteration"], r["cat"]) for r in records if r["ph"] == "X" and r["cat"] != "switch"}
    assert seen == {(phase.job_id, phase.iteration, phase.phase) for phase in inside}
    counters = [record for record in records if record["ph"] == "C"]
    assert counters[0]["ts"] == 3600 * 10**6
    at_start = max(k for k, at_s in enumerate(run.time_s) if at_s <= from_s)
    assert counters[0]["args"] == {"rollout": run.nodes["rollout"][at_start], "training": run.nodes["training"][at_start]}
    assert all(3600 * 10**6 <= record["ts"] <= 7200 * 10**6 for record in records if record["ph"] in "iC")


def test_names_of_jobs_that_differ_in_digits_alone_get_a_letter() -> None:
    cluster = make_workload("micro-temporal", WorkloadOptions()).cluster
    phases = [
        PhaseRun(job_id, "rollout", 0, 0, "rollout", (0,), start_s, start_s + 1, 0)
        for start_s, job_id in enumerate(["job-1", "job-2", "other"])
    ]
    records = json.loads(trace_json(cluster, phases, [NodeUse(0, "rollout", 0, 0, 9)], [], 0.0))["traceEvents"]
    assert [record["name"] for record in records if record["ph"] == "X"] == ["job-1 a", "job-2 b", "other"]


def test_the_same_run_is_the_same_bytes(run: Run) -> None:
    again = replay_events(run.scenario, make_runnable("rollmux"), make_dispatch("fifo"), 0, Watch(keep_phases=True))
    assert trace_of(run) == trace_of(again)


def test_the_shape_of_a_job_that_has_several_is_said_where_it_gets_its_place() -> None:
    scenario = make_workload("production", WorkloadOptions(seed=1, jobs=2, shapes=True))
    first, second = scenario.jobs
    scenario = scenario.model_copy(update={"jobs": (first, second.model_copy(update={"shapes": ()}))})
    run = replay_events(scenario, make_runnable("solo"), make_dispatch("fifo"), 0, Watch(keep_phases=True))
    admitted = [record for record in trace_of(run) if record["ph"] == "i" and "admitted" in record["name"]]
    assert [record["name"] for record in admitted] == [f"{first.id} admitted, isolated, shape 0", f"{second.id} admitted, isolated"]
    assert [record["args"].get("shape") for record in admitted] == [0, None]
