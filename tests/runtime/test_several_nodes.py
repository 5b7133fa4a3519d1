"""Jobs on several nodes of both pools, on a Ray cluster of several machines that `rollmux run --address` joins."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster as RayCluster

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Warm
from rollmux_env.cluster.state import State
from runtime.coordinator.run_plan import RunPlan
from runtime.jobs.file import parse_jobs
from runtime.journal.audit import check_run
from runtime.journal.facts import Assigned
from runtime.journal.record import RunRecord
from runtime.journal.write import read_run, state_of
from runtime.machine import lacked_core
from runtime.machines.pools import cluster_of, nodes_wanted
from runtime.run.ray_session import execute, ray_session
from tests.conftest import Command
from tests.runtime.coordinator.set_back import repeats_only_what_was_not_saved
from tests.runtime.grpo.test_job import SMALL

TOYS = Path(__file__).parent


@pytest.fixture
def address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Address of a cluster with a machine for each of the pools that a test names; a run leaves no process on it."""
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # all machines are this one: a thread a process, or they would spin against each other
    folder = tempfile.mkdtemp(prefix="rollmux-test-", dir="/tmp")  # a short path: sockets go there
    monkeypatch.setenv("RAY_TMPDIR", folder)
    cluster = RayCluster(shutdown_at_exit=False)
    try:
        for pool in request.param:
            head = {} if cluster.head_node else {"include_dashboard": False}
            cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={f"{pool}_node": 1}, **head)
        yield cluster.address
        until_s = time.monotonic() + 60
        while (left := actors(folder)) and time.monotonic() < until_s:
            time.sleep(0.1)
        assert not left
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
        shutil.rmtree(folder, ignore_errors=True)
        os.sched_setaffinity(0, cores)


def actors(folder: str) -> list[str]:
    """The names of processes of actors that the raylets of a cluster have started."""
    parents, names = dict[str, str](), dict[str, str]()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                names[entry.name] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                parents[entry.name] = (entry / "stat").read_text().rpartition(")")[2].split()[1]
    mine = {pid for pid, name in names.items() if "/raylet " in name and folder in name}
    assert mine
    ours = ("ray::Coordinator", "ray::Controller", "ray::Worker")
    return [name for pid, name in names.items() if parents.get(pid) in mine and name.startswith(ours)]


def pinned(record: RunRecord) -> dict[str, set[str]]:
    """The rollout nodes that the state has each job on, by name."""
    state, found = State(record.started.cluster, observed=True), dict[str, set[str]]()
    for event in record.log:
        apply(state, event)
        if isinstance(event, Admitted):
            mine = [part for part in record.phases if part.job_id == event.job_id and part.phase == "rollout" and not part.profile]
            places = {(mine[0].group, "rollout", number) for number in state.pins(event.job_id)}
            found[event.job_id] = {
                one.node for one in record.assigned if isinstance(one, Assigned) and (one.group, one.pool, one.number) in places
            }
    return found


@pytest.mark.long
@pytest.mark.parametrize("address", [("rollout", "rollout", "training", "training")], indirect=True)
def test_a_job_on_two_nodes_of_both_pools_runs_beside_jobs_on_one(command: Command, address: str, tmp_path: Path) -> None:
    one = {"class": "toy_jobs:WithWorkers", "folder": str(TOYS), "iterations": 4, "slo": 1000.0}
    nodes = {"rollout": {"nodes": 2, "engine": "torch"}, "training": {"nodes": 2}}
    wide = {**SMALL, **nodes, "id": "wide", "task": "echo", "iterations": 2}
    file, folder = tmp_path / "jobs.json", tmp_path / "out"
    file.write_text(json.dumps({"version": 1, "jobs": [wide, {**one, "id": "left"}, {**one, "id": "right"}]}))
    status, out, err = command("run", str(file), "--address", address, "--out", str(folder))
    assert (status, err) == (0, ""), out
    record = read_run(folder)
    check_run(record)
    machines = {node.name: node.machine for node in record.started.nodes}
    assert len(set(machines.values())) == 4
    assert {name: len(names) for name, names in pinned(record).items()} == {"wide": 2, "left": 1, "right": 1}
    for part in record.phases:
        if part.phase == "rollout" and not part.profile:
            assert set(part.nodes) == pinned(record)[part.job_id]
    trained = [part for part in record.phases if part.job_id == "wide" and part.phase == "training"]
    measured = [part for part in record.phases if part.job_id == "wide" and part.profile and part.phase != "init"]
    first = {part.phase: lacked_core(part.core_wait_s, part.done_s - part.run_s) for part in measured[:2]}
    assert first.keys() == {"rollout", "training"}
    passes = 1 + any(first.values())  # a second one where the first had no core for a good part, and only there
    assert [part.profile for part in trained] == [True] * passes + [False, False]
    assert all(len(set(part.nodes)) == 2 for part in trained)
    counts = Counter(done.job_id for done in record.iterations)
    assert counts == {"wide": 2, "left": 4, "right": 4}
    metrics = [done.metrics for done in record.iterations if done.job_id == "wide"]
    assert [(each["sampled_version"], each["trained_version"]) for each in metrics] == [(0, 0), (1, 1)]  # its profile is forgotten
    for each in metrics:
        assert each["logprob_gap_max"] < 1e-3  # engines on both nodes sample with the very weights that both ranks train
        assert 0 < each["sync_link_bytes"] / each["sync_weight_bytes"] < 0.02  # all nodes are this machine: tags alone


@pytest.mark.long
def test_a_machine_that_dies_sets_its_own_jobs_back_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    folder = tempfile.mkdtemp(prefix="rollmux-test-", dir="/tmp")
    monkeypatch.setenv("RAY_TMPDIR", folder)
    job, counts = {"class": "toy_jobs:WithWorkers", "slo": 1000.0, "checkpoint": {"every": 1}}, {"stays": 200, "loses": 40}
    jobs = parse_jobs(
        {"version": 1, "jobs": [{**job, "id": name, "iterations": count} for name, count in counts.items()]}, "test", TOYS
    )
    cluster, lines = RayCluster(shutdown_at_exit=False), list[str]()
    small: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 << 20}
    try:
        cluster.add_node(**{**small, "num_cpus": 0}, include_dashboard=False)
        machines = [cluster.add_node(**small, resources={"rollout_node": 1, "training_node": 1}) for _ in range(2)]

        def say(line: str) -> None:
            lines.append(line)
            if "loses: iteration 2 of" in line and len(machines) == 2:
                record = read_run(tmp_path)
                group = state_of(record).group_of("loses").id
                names = {one.node for one in record.assigned if isinstance(one, Assigned) and one.group == group}
                (home,) = {node.machine for node in record.started.nodes if node.name in names}
                (dead,) = (machine for machine in machines if machine.node_id == home)
                machines.remove(dead)
                cluster.remove_node(dead, allow_graceful=False)

        with ray_session(cluster.address, nodes_wanted(None, jobs.jobs)) as nodes:
            plan = RunPlan(jobs.jobs, cluster_of(None, jobs.jobs, nodes), nodes, "solo", "round-robin", 0, str(tmp_path))
            assert execute(plan, say) == "done", lines
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
        shutil.rmtree(folder, ignore_errors=True)
    record = read_run(tmp_path)
    assert not record.failed and len(machines) == 1
    check_run(record)
    (restart,) = record.restarted
    assert restart.job_id == "loses" and {done.job_id for done in record.repeated} <= {"loses"}
    assert repeats_only_what_was_not_saved(record, "loses", restart.at_s)
    for name, count in counts.items():
        assert [done.metrics["count"] for done in record.iterations if done.job_id == name] == [*range(1, count + 1)]
    events = {
        name: [
            type(event).__name__ for event in record.log if getattr(event, "job_id", None) == name and not isinstance(event, Warm)
        ]
        for name in ("stays", "loses")
    }
    assert events == {"stays": ["Admitted", "Departed"], "loses": ["Admitted", "Departed"] * 2}
    stays = [part for part in record.phases if part.job_id == "stays" and not part.profile]
    assert len({(part.group, part.nodes) for part in stays if part.phase == "rollout"}) == 1
    assert [part.phase for part in stays if part.phase != "init"] == ["rollout", "training"] * 200
    waits = [part.start_s for part in record.phases if part.job_id == "loses" and part.start_s > restart.at_s]
    assert sum(restart.at_s < part.start_s < waits[0] for part in stays) > 2  # it goes on while the other one is set back
    assert not any(part.cold for part in stays if part.start_s > restart.at_s)
