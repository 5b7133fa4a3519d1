"""A job that trains on several nodes, on a Ray cluster of several machines that `rollmux run --address` joins."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from runtime.execution.checks import check_run
from runtime.journal import read_run
from tests.conftest import Command
from tests.runtime.test_grpo import SMALL


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Address of a cluster of one rollout node and two training nodes."""
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # all machines are this one: a thread a process, or they would spin against each other
    folder = tempfile.mkdtemp(prefix="rollmux-test-", dir="/tmp")  # a short path: sockets go there
    monkeypatch.setenv("RAY_TMPDIR", folder)
    cluster = Cluster(shutdown_at_exit=False)
    try:
        for pool in ("rollout", "training", "training"):
            head = {} if cluster.head_node else {"include_dashboard": False}
            cluster.add_node(num_cpus=1, object_store_memory=100 << 20, resources={f"{pool}_node": 1}, **head)
        yield cluster.address
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
        shutil.rmtree(folder, ignore_errors=True)
        os.sched_setaffinity(0, cores)


def test_two_training_nodes_train_one_job_and_forget_its_profile(command: Command, address: str, tmp_path: Path) -> None:
    job = {**SMALL, "id": "wide", "task": "echo", "training": {"nodes": 2}, "iterations": 2}
    file, folder = tmp_path / "jobs.json", tmp_path / "out"
    file.write_text(json.dumps({"version": 1, "jobs": [job]}))
    status, out, err = command("run", str(file), "--address", address, "--out", str(folder))
    assert (status, err) == (0, ""), out
    record = read_run(folder)
    check_run(record)
    training = [node for node in record.started.nodes if node.pool == "training"]
    assert len({node.machine for node in training}) == 2
    phases = [part for part in record.phases if part.phase == "training"]
    assert [part.profile for part in phases] == [True, False, False]
    assert all(set(part.nodes) == {node.name for node in training} for part in phases)
    metrics = [done.metrics for done in record.iterations]
    assert [(one["sampled_version"], one["trained_version"]) for one in metrics] == [(0, 0), (1, 1)]
    assert all(one["logprob_gap"] < 1e-4 for one in metrics)  # the ranks train the very weights that sampled
