"""What jobs keep on GPUs is measured, placed by, and known anew where it is more; processes are pretended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Admitted, Reprofiled
from runtime.coordinator.run_plan import RunPlan
from runtime.report.figures import figures
from tests.runtime.coordinator.test_kills import check_end, record_in
from tests.runtime.pretend import carry_out, plan_of


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


def _plan(folder: Path, *options: dict[str, Any]) -> tuple[RunPlan, list[dict[str, Any]]]:
    """Two nodes of each pool, on whose GPUs jobs may keep 6 GB."""
    jobs = [{"id": name, "iterations": 3, "options": one} for name, one in zip("abc", options, strict=False)]
    folder.mkdir(exist_ok=True)
    plan = plan_of(folder, jobs, policy="rollmux,prune=false")
    pools: dict[str, Any] = {name: pool.model_copy(update={"device_memory_gb": 6.0}) for name, pool in plan.cluster.pools.items()}
    return replace(plan, cluster=plan.cluster.model_copy(update=pools)), jobs


def test_jobs_share_gpus_that_have_room_for_what_both_keep(tmp_path: Path) -> None:
    for gb, strategies in ((3.0, ["isolated", "direct_packing"]), (3.1, ["isolated", "isolated"])):
        plan, jobs = _plan(tmp_path / f"{gb}", {"device_gb": gb}, {"device_gb": gb})
        assert carry_out(plan) == "done"
        record = check_end(tmp_path / f"{gb}", jobs)
        assert [event.placement.strategy for event in record.log if isinstance(event, Admitted)] == strategies
        assert record.jobs["a"].training.device_gb == gb
        assert figures(record)["jobs"]["b"]["device_gb"] == {"rollout": gb, "training": gb}


def test_a_job_that_keeps_more_than_there_is_fails_alone(tmp_path: Path) -> None:
    plan, _ = _plan(tmp_path, {"device_gb": 7.0}, {"device_gb": 1.0})
    assert carry_out(plan) == "done"
    (failed,) = record_in(tmp_path).failed
    problem = "it keeps 7.00 GB of each GPU of a rollout node, where jobs may keep 6.00 GB"
    assert (failed.job_id, failed.where, failed.problem) == ("a", "placement", problem)


def test_a_job_that_keeps_more_than_its_profile_says_is_planned_with_that(tmp_path: Path) -> None:
    plan, jobs = _plan(tmp_path, {"device_gb": 1.0, "later_gb": 2.5}, {"device_gb": 1.0})
    assert carry_out(plan) == "done"
    record = check_end(tmp_path, jobs)
    known = [event.job for event in record.log if isinstance(event, Reprofiled)]
    assert [(job.id, job.rollout.device_gb, job.training.device_gb) for job in known] == [("a", 2.5, 1.0), ("a", 2.5, 2.5)]
