"""Jobs of a run whose budget is spent, of users with quotas and of other priorities; processes are pretended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Admitted, OverBudget
from rollmux_env.keys.queue import Quota
from runtime.checkpoints import numbers
from runtime.coordinator.run_plan import RunPlan
from runtime.journal.audit import audit
from runtime.journal.record import RunRecord
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, read_facts, record_of, state_of
from runtime.report.figures import figures
from runtime.service.report import past_report
from tests.runtime.pretend import carry_out, plan_of

SPENT: dict[str, Any] = {"budget": {"hours": 1e-9}, "iterations": 3}  # by the end of the first iteration


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


def checked(folder: Path) -> RunRecord:
    """The record of a run that is done, and of which nothing is lost."""
    facts = read_facts(folder / JOURNAL)
    assert audit(facts).problems == () and replay_journal(facts).lines == ()
    record = record_of(facts)
    assert record.ended is not None and record.ended.outcome == "done" and not record.failed
    return record


def with_quota(plan: RunPlan, **quotas: Quota) -> RunPlan:
    return replace(plan, cluster=plan.cluster.model_copy(update={"quotas": quotas}))


@pytest.mark.parametrize("keeps", [True, False])
def test_a_job_ends_with_its_checkpoint_after_the_iteration_in_which_its_budget_is_spent(tmp_path: Path, keeps: bool) -> None:
    jobs = [{"id": "a", **SPENT, "options": {"keeps": keeps}}, {"id": "b", "iterations": 3}]
    assert carry_out(plan_of(tmp_path, jobs)) == "done"
    record = checked(tmp_path)
    assert [done.number for done in record.iterations if done.job_id == "a"] == [0]
    assert [done.number for done in record.iterations if done.job_id == "b"] == [0, 1, 2]
    assert record.over_budget == {"a"} and audit(read_facts(tmp_path / JOURNAL)).jobs == {"a": "over_budget", "b": "done"}
    if keeps:
        assert numbers(tmp_path / "checkpoints" / "a") == [1]
    assert figures(record)["jobs"]["a"]["over_budget"] and "over_budget" not in figures(record)["jobs"]["b"]
    assert {job["id"]: job["state"] for job in past_report(tmp_path)["jobs"]} == {"a": "over_budget", "b": "done"}


def test_killed_at_any_write_a_run_ends_jobs_over_their_budget_once(tmp_path: Path) -> None:
    jobs = [{"id": "a", **SPENT}, {"id": "b", "iterations": 2, "budget": {"usd": 1e6}}]
    for dies_at in range(2, 1000):
        folder = tmp_path / f"{dies_at}"
        folder.mkdir()
        plan = plan_of(folder, jobs)
        if carry_out(plan, dies_at) == "done":
            break
        if record_of(read_facts(folder / JOURNAL)).ended is None:
            assert carry_out(replace(plan, resume=True)) == "done"
        record = checked(folder)
        assert record.over_budget == {"a"}
        done = [one.number for one in record.iterations if one.job_id == "a"]
        assert done in ([0], [0, 1])  # one that goes on from its last checkpoint does one more
    assert dies_at > 6  # facts of one turn of the loop are one write


def test_a_run_is_charged_as_its_journal_says_after_any_kill(tmp_path: Path) -> None:
    jobs = [{"id": "a", "iterations": 2, "user": "ann"}, {"id": "b", "iterations": 2}]
    plan = plan_of(tmp_path, jobs)
    assert carry_out(plan, 10) == "killed"
    known = state_of(record_of(read_facts(tmp_path / JOURNAL)))
    assert carry_out(replace(plan, resume=True)) == "done"
    record = checked(tmp_path)
    state, said = state_of(record), figures(record)
    assert said["usd_by_user"] == {
        "ann": pytest.approx(state.charges.usd(state.row("a"), state.now_s)),
        "": pytest.approx(state.charges.usd(state.row("b"), state.now_s)),
    }
    assert said["usd_by_priority"] == {"0": pytest.approx(sum(said["usd_by_user"].values()))}
    for job_id in "ab":
        assert state.charges.usd(state.row(job_id), state.now_s) >= known.charges.usd(known.row(job_id), known.now_s) > 0


def test_a_user_with_a_quota_is_passed_over_and_higher_priorities_come_first(tmp_path: Path) -> None:
    mine = {"iterations": 2, "user": "ann"}
    jobs = [{"id": "a", **mine}, {"id": "b", **mine}, {"id": "c", "iterations": 2}, {"id": "d", "iterations": 1, "priority": 2}]
    plan = with_quota(plan_of(tmp_path, jobs, policy="solo"), ann=Quota(nodes=2))
    assert carry_out(plan) == "done"
    record = checked(tmp_path)
    admitted = [event.job_id for event in record.log if isinstance(event, Admitted)]
    assert admitted[:2] == ["a", "c"] and admitted.index("d") < admitted.index("b")


def test_a_job_beyond_its_users_quota_fails_alone(tmp_path: Path) -> None:
    plan = with_quota(
        plan_of(tmp_path, [{"id": "a", "iterations": 1, "user": "ann"}, {"id": "b", "iterations": 1}]), ann=Quota(nodes=1)
    )
    assert carry_out(plan) == "done"
    record = record_of(read_facts(tmp_path / JOURNAL))
    assert [failure.problem for failure in record.failed] == ["asks for 2 nodes; user ann has a quota of 1"]
    assert not any(isinstance(event, OverBudget) for event in record.log)
