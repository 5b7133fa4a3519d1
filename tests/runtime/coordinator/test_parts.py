"""The parts of the executor that need no Ray: nodes, the node pool, the probe, invariants, profiles."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Departed
from rollmux_env.errors import InputError, InvariantError
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.scheduler.dispatcher import Dispatcher
from rollmux_env.scheduler.nodes import NodePool
from runtime.coordinator.profiles import PhaseProfile, Profile, load_profile, profile_key, save_profile
from runtime.coordinator.profiling import OverlapProbe, PhaseTimings
from runtime.jobs.file import parse_jobs
from runtime.journal.audit import check_run
from runtime.journal.facts import Assigned, PhaseSlice, Returned
from runtime.journal.write import record_of
from runtime.machine import Node, threads_of
from runtime.machines.nodes import find_nodes, keep_names, new_nodes, prepare_process
from runtime.machines.pools import check_pools, cluster_of, nodes_wanted
from tests.runtime.journal.test_write import FACTS

JOBS = parse_jobs({"version": 1, "jobs": [{"id": "a", "iterations": 1, "slo": 2, "task": "echo"}]}, "test", Path()).jobs
NODES = tuple(Node(f"{pool}-{k}", pool, "m", (k,), (), 4.0, "1 core") for pool in ("rollout", "training") for k in range(2))


def machine(name: str, **resources: float) -> dict[str, object]:
    return {"NodeID": name, "Alive": True, "NodeManagerHostname": f"host-{name}", "Resources": {"memory": 32e9, **resources}}


def test_nodes_are_those_of_the_custom_resources() -> None:
    machines = [
        machine("a", GPU=8, CPU=16, rollout_node=1),
        machine("b", CPU=8, rollout_node=1, training_node=1),
        machine("c", CPU=4),
    ]
    nodes = find_nodes(machines, {"rollout": 1, "training": 1}, "c")
    assert [(node.name, node.machine, node.cores, node.gpus) for node in nodes] == [
        ("rollout-0", "a", tuple(range(16)), tuple(range(8))),
        ("rollout-1", "b", (0, 1, 2, 3), ()),
        ("training-0", "b", (4, 5, 6, 7), ()),
    ]
    assert [node.memory_gb for node in nodes] == [32, 16, 16]
    assert threads_of(*(node.cores for node in nodes[1:])) == 8


def test_machines_that_join_have_nodes_of_new_names() -> None:
    a, b = machine("a", CPU=4, rollout_node=1, training_node=1), machine("b", CPU=4, rollout_node=2)
    known = find_nodes([a], {"rollout": 1, "training": 1}, "a")
    assert new_nodes([a, machine("c", CPU=4)], ("rollout", "training"), known) == ()  # none of the two resources
    joined = new_nodes([a, b, {**machine("d", CPU=4, rollout_node=1), "Alive": False}], ("rollout", "training"), known)
    assert [(node.name, node.machine, node.cores) for node in joined] == [("rollout-1", "b", (0, 1)), ("rollout-2", "b", (2, 3))]
    assert new_nodes([a, b], {"training"}, known) == ()  # of one_device


def test_nodes_keep_their_names_on_machines_that_are_known() -> None:
    """Ray lists machines by ids that are drawn: one that has joined may stand before those that were there."""
    b, c = machine("b", CPU=2, rollout_node=1, training_node=1), machine("c", CPU=2, rollout_node=1, training_node=1)
    known = find_nodes([b, c], {"rollout": 1, "training": 1}, "b")
    a = machine("a", CPU=2, rollout_node=1, training_node=1)
    found = find_nodes([a, b, c], {"rollout": 1, "training": 1}, "b")
    assert {node.name: node.machine for node in keep_names(found, known)} == {
        "rollout-0": "b", "training-0": "b", "rollout-1": "c", "training-1": "c", "rollout-2": "a", "training-2": "a",
    }  # fmt: skip
    elsewhere = find_nodes([machine("x", CPU=2, rollout_node=1, training_node=1)], {"rollout": 1, "training": 1}, "x")
    assert keep_names(elsewhere, known) == elsewhere  # all of Ray is new: by number, as ever
    assert {node.name: node.machine for node in keep_names(find_nodes([a, c], {"rollout": 1, "training": 1}, "c"), known)} == {
        "rollout-1": "c", "training-1": "c", "rollout-0": "a", "training-0": "a",
    }  # fmt: skip


def test_this_machine_is_carved_up_where_no_node_has_a_pool() -> None:
    nodes = find_nodes([machine("a", GPU=8, CPU=16)], {"rollout": 1, "training": 1}, "a")
    assert [node.gpus for node in nodes] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    with pytest.raises(InputError, match="3 nodes are asked of a machine with 2 cores"):
        find_nodes([machine("a", CPU=2)], {"rollout": 2, "training": 1}, "a")
    with pytest.raises(InputError, match=r"3 nodes are asked .* 1 GPU: .*; CUDA_VISIBLE_DEVICES='' runs on CPU cores$"):
        find_nodes([machine("a", GPU=1, CPU=16)], {"rollout": 2, "training": 1}, "a")
    with pytest.raises(InputError, match=r"with 1 GPU: a node has one of its own at least$"):  # how a cluster's machine was started
        find_nodes([machine("a", GPU=1, rollout_node=1, training_node=1)], {"rollout": 1, "training": 1}, "a")
    with pytest.raises(InputError, match="no machine of the cluster has the resource training_node"):
        find_nodes([machine("a", CPU=2, rollout_node=1)], {"rollout": 1, "training": 1}, "a")


def test_a_machine_with_one_gpu_is_one_node_of_one_pool() -> None:
    alone, wanted = [machine("a", GPU=1, CPU=4)], nodes_wanted(None, JOBS)
    nodes = find_nodes(alone, wanted, "a")
    assert wanted == {"rollout": 1, "training": 1} and [(node.name, node.gpus) for node in nodes] == [("training-0", (0,))]
    lines: list[str] = []
    cluster = cluster_of(None, JOBS, nodes, lines.append)
    assert cluster.one_device and cluster.pools["training"].max_nodes == 1 and ["one GPU" in line for line in lines] == [True]
    assert cluster_of(cluster, JOBS, nodes, lines.append) == cluster and len(lines) == 1
    check_pools(cluster, nodes)
    with pytest.raises(InputError, match="no rollout node now: this machine has one GPU, and the run was begun with two pools"):
        check_pools(cluster.model_copy(update={"one_device": False}), nodes)


def test_one_device_takes_training_nodes_alone() -> None:
    cluster = Cluster(training=Pool(gpus_per_node=1, usd_per_gpu_hour=2.0), one_device=True)
    wanted = nodes_wanted(cluster, JOBS)
    assert wanted == {"rollout": 0, "training": 1}
    assert [node.name for node in find_nodes([machine("a", GPU=8, CPU=16)], wanted, "a")] == ["training-0"]
    machines = [machine("a", GPU=8, CPU=16, rollout_node=1), machine("b", GPU=8, CPU=16, training_node=2)]
    nodes = find_nodes(machines, wanted, "a")
    assert [(node.name, node.machine) for node in nodes] == [("training-0", "b"), ("training-1", "b")]
    assert cluster_of(cluster, JOBS, nodes).pools["training"].max_nodes == 2


@pytest.mark.parametrize(("before", "after"), [(None, "1,2"), ("", "1,2"), ("3,5,GPU-7f,2", "5,GPU-7f")])
def test_a_node_has_gpus_of_those_that_ray_may_see(monkeypatch: pytest.MonkeyPatch, before: str | None, after: str) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before or "")
    if before is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")  # in which commands of the same service would count otherwise
    prepare_process((Node("rollout-0", "rollout", "m", (0,), (1, 2), 1.0, "2 GPU"),))
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]) == (after, "PCI_BUS_ID")


def test_the_pool_gives_every_place_a_node_and_every_node_one_holder() -> None:
    pool = NodePool(NODES)
    facts = pool.settle([(0, "rollout", 0), (0, "training", 0), (1, "rollout", 0)], (), 1.0)
    assert facts == [
        Assigned(1.0, 0, "rollout", 0, "rollout-0"),
        Assigned(1.0, 0, "training", 0, "training-0"),
        Assigned(1.0, 1, "rollout", 0, "rollout-1"),
    ]
    assert not pool.free("rollout") and [node.name for node in pool.free("training")] == ["training-1"]
    node = pool.node(0, "rollout", 0)
    assert not pool.occupy("a", [node])
    with pytest.raises(InvariantError, match="R3: rollout-0 is given to b while a runs on it"):
        pool.occupy("b", [node])
    with pytest.raises(InvariantError, match="R3"):
        pool.release("b", [node])
    pool.release("a", [node])
    assert pool.occupy("b", [node]) and pool.holders([node.name]) == ("b",)
    assert pool.settle([(1, "rollout", 0)], {"rollout-0"}, 2.0) == [Returned(2.0, "training-0")]
    with pytest.raises(InvariantError, match="R5"):
        pool.settle([(1, "rollout", 0), (2, "rollout", 0)], {"rollout-0"}, 2.0)


def test_the_probe_runs_phases_alone_then_in_pairs() -> None:
    policy = OverlapProbe()
    group = Dispatcher(policy)
    for name in "ab":
        group.joined(name, (0,), 1.0, 1.0)
        group.ready(name, "rollout")
    assert group.permits() == [("a", "rollout")]
    policy.mode = "paired"
    group.finished("a", "rollout", 1.0)
    group.ready("a", "training")
    assert group.permits() == [("b", "rollout"), ("a", "training")]
    group.finished("b", "rollout", 1.0)
    group.ready("b", "training")
    assert not group.permits()  # not beside a's training, nor before a is ready again
    group.finished("a", "training", 1.0)
    assert not group.permits()
    group.ready("a", "rollout")
    assert len(group.permits()) == 2


def test_a_bound_is_what_two_phases_take_one_after_the_other_over_the_longer_of_the_pair() -> None:
    timings = PhaseTimings()
    for job_id in "ab":
        timings.add("alone", job_id, "rollout", 1.0)
        timings.add("alone", job_id, "training", 2.0)
        timings.add("paired", job_id, "rollout", 1.2)
    timings.add("paired", "b", "training", 2.4)
    (bound,) = timings.bounds("ab")
    assert bound.phases == ("a rollout", "b training") and bound.gain == pytest.approx(3.0 / 2.4)


def test_the_record_of_a_run_is_checked() -> None:
    record = record_of(FACTS)
    check_run(record)
    first = record.phases[0]
    changes: list[tuple[dict[str, Any], str]] = [
        ({"start_s": 1.5, "end_s": 2.5}, "R3"),
        ({"asked_s": 9.0}, "R2"),
    ]
    for change, number in changes:
        with pytest.raises(InvariantError, match=number):
            check_run(replace(record, phases=(first, replace(first, job_id="b", **change))))
    with pytest.raises(InvariantError, match="A2"):
        check_run(replace(record, iterations=record.iterations * 2))
    pool = record.started.cluster.pools["rollout"].model_copy(update={"node_memory_gb": 1.0})
    started = replace(record.started, cluster=record.started.cluster.model_copy(update={"rollout": pool}))
    later: PhaseSlice = replace(first, job_id="b", asked_s=3.0, start_s=3.0, end_s=4.0, host_gb=0.6)
    with pytest.raises(InvariantError, match="R4"):
        check_run(replace(record, started=started, phases=(replace(first, host_gb=0.6), later)))
    gone = Departed(2.5, first.job_id)  # and what it kept with it
    check_run(replace(record, started=started, phases=(replace(first, host_gb=0.6), later), log=(gone,)))


def test_a_profile_is_cached_by_what_determines_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine.py").write_text("class Mine: pass\n")

    def key(nodes: tuple[Node, ...] = NODES[1:3], **changes: object) -> str:
        job = {"id": "a", "iterations": 3, "slo": 2.0, "class": "mine:Mine", "options": {"size": 1}, **changes}
        return profile_key(parse_jobs({"version": 1, "jobs": [job]}, "test", tmp_path).jobs[0], nodes)

    same = key()
    assert key(id="b", iterations=9, slo=3.0, seed=4, arrival_s=7.0) == same
    assert key(options={"size": 2}) != same and key(training={"nodes": 2}) != same
    assert key(tuple(replace(node, device="8 GPU") for node in NODES[1:3])) != same
    (tmp_path / "mine.py").write_text("class Mine: slower = True\n")
    assert key() != same
    part = PhaseProfile(seconds=1.0, warm_s=0.1, cold_s=2.0, host_gb=0.5)
    profile = Profile(rollout=part, training=part, sync_s=0.1, movable=True)
    assert load_profile(same) is None
    save_profile(same, profile)
    assert load_profile(same) == profile
