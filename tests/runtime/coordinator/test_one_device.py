"""Runs where one node runs the rollouts and trainings of all jobs in turn; processes are pretended."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Admitted
from runtime.journal.audit import check_run
from runtime.journal.facts import PROFILING_GROUP, Assigned
from runtime.journal.write import JOURNAL, read_facts
from runtime.report.figures import figures
from tests.runtime.coordinator.test_kills import check_end, record_in
from tests.runtime.pretend import NODES, carry_out, plan_of

JOBS: list[dict[str, Any]] = [{"id": name, "iterations": 3} for name in "ab"]
NODE = NODES[2:3]
SHARES = "rollmux,prune=false"


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


def test_jobs_take_turns_on_one_node_and_it_is_paid_for_once(tmp_path: Path) -> None:
    assert carry_out(plan_of(tmp_path, JOBS, NODE, policy=SHARES)) == "done"
    record = check_end(tmp_path)
    check_run(record)
    assert [event.placement.strategy for event in record.log if isinstance(event, Admitted)] == ["isolated", "direct_packing"]
    assert {(part.pool, part.nodes) for part in record.phases} == {("training", (NODE[0].name,))}
    turns = [f"{part.job_id} {part.phase}" for part in record.phases if not part.profile]
    pairs = [*pairwise(turns)][::2]
    assert set(pairs) == {("a rollout", "a training"), ("b rollout", "b training")}  # nobody comes between
    assigned = [(fact.group == PROFILING_GROUP, fact.pool) for fact in read_facts(tmp_path / JOURNAL) if isinstance(fact, Assigned)]
    assert assigned == [(True, "training")] * 2 + [(False, "training")]  # each to be profiled, then for their group
    found = figures(record)
    assert found["pools"]["rollout"] is None and found["pools"]["training"] is not None


def test_a_job_for_which_there_is_no_room_comes_after_the_other(tmp_path: Path) -> None:
    jobs = [*JOBS[:1], {**JOBS[1], "slo": 1.0}]
    assert carry_out(plan_of(tmp_path, jobs, NODE, policy=SHARES)) == "done"
    record = check_end(tmp_path)
    assert [part.job_id for part in record.phases if not part.profile] == ["a"] * 6 + ["b"] * 6


def test_a_node_holds_both_sides_of_a_job(tmp_path: Path) -> None:
    """Either phase leaves 0.1 GB: one job fits a node of 0.25 GB, two do not, and a node of 0.15 GB holds none."""
    for memory_gb, order in ((0.25, ["a"] * 6 + ["b"] * 6), (0.15, [])):
        folder = tmp_path / f"{memory_gb}"
        folder.mkdir()
        plan = plan_of(folder, JOBS, NODE, policy=SHARES)
        node = plan.cluster.pools["training"].model_copy(update={"node_memory_gb": memory_gb})
        assert carry_out(replace(plan, cluster=plan.cluster.model_copy(update={"training": node}))) == "done"
        record = record_in(folder)
        assert [part.job_id for part in record.phases if not part.profile] == order
    assert [failed.problem for failed in record.failed] == [
        "it keeps 0.20 GB of host memory on a training node, which has 0.15 GB for jobs"
    ] * 2


def test_killed_at_any_write_it_goes_on(tmp_path: Path) -> None:
    jobs = [*JOBS, {"id": "late", "iterations": 2, "arrival_s": 0.05}]
    for dies_at in range(2, 1000, 6):
        folder = tmp_path / f"{dies_at}"
        folder.mkdir()
        plan = plan_of(folder, jobs, NODE, policy=SHARES)
        if carry_out(plan, dies_at) == "done":
            break
        assert carry_out(replace(plan, resume=True)) == "done"
        assert not check_end(folder, jobs).repeated
    assert dies_at > 8  # facts of one turn of the loop are one write, and a busy machine takes fewer turns
