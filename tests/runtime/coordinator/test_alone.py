"""What goes wrong with one job fails that job alone, and a job that cannot be moved is not; processes are pretended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policies.api import Arrived, Move, Place, Placement, isolated, may_move
from rollmux_env.cluster.events import Admitted, Departed, Moved, Reprofiled, Resumed
from runtime import checkpoints
from runtime.coordinator import job_records
from runtime.coordinator.profiles import Profile
from runtime.journal.audit import audit
from runtime.journal.record import RunRecord
from runtime.journal.write import JOURNAL, read_facts, record_of, state_of
from tests.runtime.pretend import carry_out, plan_of


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


def record_in(folder: Path) -> RunRecord:
    facts = read_facts(folder / JOURNAL)
    assert audit(facts).problems == ()
    return record_of(facts)


def numbers_of(record: RunRecord, job_id: str) -> list[int]:
    return [done.number for done in record.iterations if done.job_id == job_id]


def test_a_job_whose_model_has_gone_fails_alone_also_when_the_journal_is_taken_up_again(tmp_path: Path) -> None:
    lost = {"id": "lost", "task": "echo", "model": str(tmp_path / "gone"), "iterations": 3, "arrival_s": 0.03}
    plan = plan_of(tmp_path, [{"id": "a", "iterations": 3}, lost, {"id": "b", "iterations": 3, "arrival_s": 0.03}])
    assert carry_out(plan, dies_at=4) == "killed"
    assert not record_in(tmp_path).failed
    assert carry_out(replace(plan, resume=True)) == "done"
    record = record_in(tmp_path)
    (failed,) = record.failed
    assert (failed.job_id, failed.where) == ("lost", "profile")
    assert failed.problem == f"FileNotFoundError: [Errno 2] No such file or directory: '{tmp_path}/gone'"
    assert numbers_of(record, "a") == numbers_of(record, "b") == [0, 1, 2] and not numbers_of(record, "lost")


def test_a_job_whose_profile_cannot_be_kept_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true = Profile.job

    def job(profile: Any, spec: Any, arrival_s: float) -> Any:
        if spec.id == "a":
            raise ValueError("in two\nlines")
        return true(profile, spec, arrival_s)

    monkeypatch.setattr(Profile, "job", job)
    assert carry_out(plan_of(tmp_path, [{"id": "a", "iterations": 2}, {"id": "b", "iterations": 2}])) == "done"
    record = record_in(tmp_path)
    assert [(failed.job_id, failed.where, failed.problem) for failed in record.failed] == [
        ("a", "profile", "ValueError: in two lines")
    ]
    assert numbers_of(record, "b") == [0, 1]


def test_a_job_that_cannot_be_taken_up_again_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(tmp_path, [{"id": "a", "iterations": 9}, {"id": "b", "iterations": 9}])
    assert carry_out(plan, stops_after=4) == "stopped"
    true = checkpoints.newest

    def newest(folder: Path, *most: Any) -> Any:
        if folder.name == "a":
            raise PermissionError(13, "Permission denied", str(folder))
        return true(folder, *most)

    monkeypatch.setattr(job_records, "newest", newest)
    assert carry_out(replace(plan, resume=True)) == "done"
    record = record_in(tmp_path)
    (failed,) = record.failed
    assert (failed.job_id, failed.where) == ("a", "resume") and "Permission denied" in failed.problem
    assert numbers_of(record, "b") == [*range(9)] and len(numbers_of(record, "a")) < 9
    assert "a" in [event.job_id for event in record.log if isinstance(event, Departed)]
    state = state_of(record)
    assert not state.group_list() and not state.waiting


class MoveOne:
    """Places jobs alone while there are nodes, then beside `b`; when `c` has left, it moves `a` beside `b`, if it may."""

    keeps_slo = False

    def decide(self, state: Any, event: Any) -> Any:
        beside = [group for group in state.group_list() if "b" in group.jobs]
        if isinstance(event, Arrived):
            place = (
                isolated(event.job)
                if state.has_room({event.job.id: isolated(event.job)})
                else Placement(beside[0].id, beside[0].rollout_nodes)
            )
            return (Place(event.job.id, place),)
        if isinstance(event, Departed) and event.job_id == "c" and may_move(state, "a"):
            return (Move("a", Placement(beside[0].id, beside[0].rollout_nodes)),)
        return ()


def moving(folder: Path, **options: Any) -> RunRecord:
    """A run in which `a` is moved, if it may be."""
    jobs = [{"id": "a", "iterations": 60, "slo": 1e12, **options}, {"id": "b", "iterations": 60}, {"id": "c", "iterations": 5}]
    assert carry_out(plan_of(folder, jobs, policy="tests.runtime.coordinator.test_alone:MoveOne")) == "done"
    record = record_in(folder)
    assert not record.failed and numbers_of(record, "b") == [*range(60)]
    return record


def test_a_job_that_has_checkpoints_is_moved_with_one_of_its_last_iteration(tmp_path: Path) -> None:
    record = moving(tmp_path, checkpoint={"every": 1000})
    (resumed_s,) = [event.at_s for event in record.log if isinstance(event, Resumed) and event.job_id == "a"]
    before = [done.number for done in record.iterations if done.job_id == "a" and done.end_s < resumed_s]
    assert [fact.iterations for fact in record.checkpointed if fact.job_id == "a"] == [len(before), 60]
    assert record.jobs["a"].movable and [event.job_id for event in record.log if isinstance(event, Moved)] == ["a"]
    assert numbers_of(record, "a") == [*range(60)] and not record.restarted


@pytest.mark.parametrize("options", [{"options": {"keeps": False}}, {"movable": False}, {"checkpoint": None}])
def test_a_job_that_cannot_be_moved_is_known_as_such_before_it_is_placed_and_stays(tmp_path: Path, options: dict[str, Any]) -> None:
    record = moving(tmp_path, **options)
    assert not record.jobs["a"].movable and record.jobs["b"].movable
    assert not any(isinstance(event, Moved) for event in record.log)
    assert numbers_of(record, "a") == [*range(60)] and not record.restarted


def test_a_job_that_turns_out_to_be_unmovable_when_it_is_to_move_arrives_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its profile said otherwise, and the move is pending."""
    monkeypatch.setattr("runtime.coordinator.ray_processes.dead_machines", lambda machines: set())
    record = moving(tmp_path, options={"keeps": False, "profiled": True, "turns": True})
    assert record.jobs["a"].movable
    known = [event.job.movable for event in record.log if isinstance(event, Reprofiled) and event.job.id == "a"]
    assert [*dict.fromkeys(known)] == [False]  # that is said once; cold starts that were provisional are said with it
    assert [event.job_id for event in record.log if isinstance(event, Moved)] == ["a"]
    assert [(fact.job_id, fact.iteration) for fact in record.restarted] == [("a", 0)]
    assert [event.job_id for event in record.log if isinstance(event, Admitted)].count("a") == 2
    assert numbers_of(record, "a") == [*range(60)]


def test_a_job_that_turns_out_to_be_unmovable_in_time_is_left_where_it_is(tmp_path: Path) -> None:
    record = moving(tmp_path, options={"keeps": False, "profiled": True})
    assert [event.job.movable for event in record.log if isinstance(event, Reprofiled)] == [False]
    assert not any(isinstance(event, Moved) for event in record.log) and not record.restarted
