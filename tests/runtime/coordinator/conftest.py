"""Runs of toy jobs on a Ray of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.coordinator.run_plan import RunPlan
from runtime.jobs.file import parse_jobs
from runtime.journal.audit import audit
from runtime.journal.record import RunRecord
from runtime.journal.write import JOURNAL, read_facts, read_run
from runtime.machine import Node
from runtime.run.ray_session import execute, ray_session
from tests.runtime.pretend import cluster_with

TOYS = Path(__file__).parents[1]
Running = Callable[..., tuple[str, RunRecord, list[str]]]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, ...]]:
    """A rollout node and a training node, the same for the tests of a module."""
    os.environ["ROLLMUX_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    try:
        with ray_session(None, {"rollout": 1, "training": 1}) as found:
            yield found
    finally:
        del os.environ["ROLLMUX_CACHE"]


@pytest.fixture
def run(nodes: tuple[Node, ...], tmp_path: Path) -> Running:
    """Run jobs given as in a job file: (outcome, record, lines)."""
    return running_on(nodes, tmp_path)


def running_on(nodes: tuple[Node, ...], below: Path) -> Running:
    """The same in folders below one, for what is run once for several tests."""

    def running(
        jobs: list[dict[str, Any]],
        policy: str = "rollmux",
        memory_gb: float = 8.0,
        on: tuple[Node, ...] = nodes,
        dispatch: str = "round-robin",
        folder: Path | None = None,
        hear: Callable[[str], None] = lambda _: None,
        limits: dict[str, Any] | None = None,
        **more: Any,
    ) -> tuple[str, RunRecord, list[str]]:
        folder = folder or below / f"run{len(list(below.iterdir()))}"
        folder.mkdir(exist_ok=True)
        defaults = {"slo": 3.0, "iterations": 3, "checkpoint": {"every": 1}}
        specs = parse_jobs({"version": 1, "defaults": defaults, "jobs": jobs}, "test", TOYS).jobs
        lines: list[str] = []

        def say(line: str) -> None:
            lines.append(line)
            hear(line)

        cluster = cluster_with(on, memory_gb).model_copy(update=limits or {})
        outcome = execute(RunPlan(specs, cluster, on, policy, dispatch, 0, str(folder), **more), say)
        assert more.get("only_profile") or audit(read_facts(folder / JOURNAL)).problems == ()
        return outcome, read_run(folder), lines

    return running
