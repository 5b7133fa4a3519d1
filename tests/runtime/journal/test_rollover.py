"""Roll-over of a journal: what is known is known, every command reads all parts, and a kill at any moment loses nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Arrived, Carried, Departed, QuotaSet
from rollmux_env.keys.queue import Quota
from rollmux_env.scheduler.facts import Drained
from runtime.journal import rollover, write
from runtime.journal.check import audit_parts
from runtime.journal.facts import DrainPlanned, RunEnded, RunRelaunched, RunStarted, SchedulerInformed
from runtime.journal.parts import entries_of_parts, newest_part, part_paths, read_parts
from runtime.journal.rollover import ROLLED_OVER, begin_next_part
from runtime.journal.write import JOURNAL, Journal, read_earlier, read_record, record_of, state_of
from runtime.report.usage import past_usage
from tests.conftest import Command
from tests.fixtures import FIXTURES


class Killed(BaseException):
    """The process is no more."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """That of a journal whose run has ended to be rolled over."""
    shutil.copy(FIXTURES / "finished-run" / JOURNAL, tmp_path)
    journal = Journal(tmp_path / JOURNAL, resume=True)
    record = read_record(tmp_path)
    now_s, (first, *_) = record.last_s, record.nodes
    journal.write(
        RunRelaunched(now_s, record.wall_s(now_s), record.started.nodes, {}),
        SchedulerInformed(now_s, (Drained(frozenset({first})),)),
        QuotaSet(now_s, "ann", Quota(nodes=2)),
        DrainPlanned(now_s, first, 2e9),
        RunEnded(now_s, ROLLED_OVER),
    )
    journal.close()
    return tmp_path


def begin(folder: Path) -> list[str]:
    lines: list[str] = []
    begin_next_part(folder, lines.append)
    return lines


def test_the_next_part_begins_with_what_is_known(folder: Path) -> None:
    before = read_record(folder)
    charges = state_of(before).charges
    assert begin(folder) == ["no job was present: the journal continues in journal-2.sqlite"]
    after = read_record(folder)
    assert newest_part(folder).name == "journal-2.sqlite" and after.submitted == ()
    assert (after.cluster, after.nodes, after.drained_nodes) == (before.cluster, before.nodes, before.drained_nodes)
    assert (after.planned_drains, after.first_month) == (before.planned_drains, before.first_month)
    assert after.last_s == before.last_s and after.wall_s(after.last_s) == pytest.approx(before.wall_s(before.last_s), abs=1e-3)
    carried, now_s = state_of(after).charges, before.last_s + 3600.0
    assert carried.usage_h("", now_s) == pytest.approx(charges.usage_h("", now_s)) and carried.usage_h("", now_s) > 0
    assert carried.month_h("", now_s) == charges.month_h("", now_s)
    lengths_h, job = state_of(before).stays.lengths_h, before.profiled[0].job
    again = state_of(after)
    apply(again, Arrived(after.last_s, job))  # another job of that name: the length before stays known
    assert job.id in lengths_h and [*again.stays.lengths_h.values()] == [*lengths_h.values()]
    assert len(again.stays.lengths_of_class_h[job.class_name]) == len(state_of(before).stays.lengths_of_class_h[job.class_name])
    assert begin(folder) == []  # once


def test_every_command_reads_all_parts(folder: Path, command: Command) -> None:
    usage, facts = past_usage(folder, ["user", "job"]), len(read_parts(folder)[1])
    begin(folder)
    assert past_usage(folder, ["user", "job"]) == usage
    assert audit_parts(read_parts(folder)).problems == ()
    numbers = [number for number, _, _ in entries_of_parts(folder, facts - 2, 100)]
    assert numbers == [*range(facts - 1, facts + 5)] and entries_of_parts(folder, 0, 3)[-1][0] == 3
    status, out, err = command("journal", "check", str(folder))
    assert (status, err) == (0, "") and out.startswith(f"{facts + 4} facts are whole; the last is {facts + 4}, DrainPlanned")
    status, out, err = command("journal", "audit", str(folder))
    assert (status, err) == (0, "") and out.startswith("2 jobs (2 done)")
    assert command("bundle", str(folder), "--out", str(folder / "all.zip"))[0] == 0
    assert command("journal", "audit", str(folder / "all.zip")) == (status, out, err)
    shutil.copy(newest_part(folder), folder / "journal-3.sqlite")
    first_s, second_s = (record.started.at_s for record in read_earlier(folder))
    assert [len(read_earlier(folder, from_s)) for from_s in (first_s, second_s - 1.0, second_s)] == [2, 2, 1]


@pytest.mark.parametrize("step", ["_create", "sync", "os.replace", "sync after"])
def test_a_kill_at_any_step_loses_nothing(folder: Path, step: str) -> None:
    calls = 0

    def dies(*_: object) -> None:
        nonlocal calls
        calls += 1
        if step != "sync after" or calls == 2:
            raise Killed

    whole = folder / "whole"
    shutil.copytree(folder, whole)
    begin(whole)
    target, name = (os, "replace") if step == "os.replace" else (write, step.split()[0])
    with patch.object(target, name, dies), pytest.raises(Killed):
        begin(folder)
    if step == "sync":  # part of the new file is on the disk
        unfinished = folder / "journal-2.sqlite.new"
        unfinished.write_bytes(unfinished.read_bytes()[:5000])
    assert len(part_paths(folder)) == (2 if step == "sync after" else 1)
    begin(folder)
    assert read_parts(folder) == read_parts(whole)


def test_a_full_disk_leaves_the_part_as_it_is(folder: Path) -> None:
    def full(path: Path) -> None:
        if path.name in full_at:
            raise OSError(28, "No space left on device")

    full_at = {"journal-2.sqlite.new"}
    with patch.object(write, "sync", full):
        line = begin(folder)[0]
        assert line.endswith("cannot be written: [Errno 28] No space left on device; the journal continues in journal.sqlite")
        assert newest_part(folder) == folder / JOURNAL and not (folder / "journal-2.sqlite.new").exists()
        full_at = {folder.name}  # the new part is there, and a power failure may undo that
        line = begin(folder)[0]
        assert line.endswith("may not last: [Errno 28] No space left on device; the journal continues in journal-2.sqlite")
    assert newest_part(folder).name == "journal-2.sqlite" and begin(folder) == []


def test_a_service_is_about_to_answer_soon_after_the_mark(folder: Path) -> None:
    assert not rollover.is_beginning(folder / "nothing") and rollover.is_beginning(folder)
    os.utime(folder / JOURNAL, (0.0, 0.0))
    assert not rollover.is_beginning(folder)
    ended = read_record(folder)
    begin(folder)
    with patch.object(rollover, "time", lambda: ended.wall_s(ended.last_s) + 1.0):
        assert rollover.is_beginning(folder)
    assert not rollover.is_beginning(folder)  # although the file has just been written


def test_a_part_in_which_a_job_is_present_after_all_says_so(folder: Path) -> None:
    with patch.object(rollover, "next_part", lambda facts: None):
        assert begin(folder)[0].endswith("a job is present or a node may be in use after all; the journal continues in it")


def test_what_is_not_over_is_not_rolled_over(folder: Path) -> None:
    *facts, mark = read_parts(folder)[1]
    assert rollover.next_part(facts) is None  # it was not rolled over
    submitted = record_of(facts).submitted[0]
    waits = submitted.spec.model_copy(update={"id": "other"})
    assert rollover.next_part([*facts, type(submitted)(1.0, waits), mark]) is None


def test_a_part_that_does_not_follow_is_found(folder: Path) -> None:
    begin(folder)
    first, second = read_parts(folder).values()
    others = [fact if not isinstance(fact, Carried) else Carried(fact.at_s, fact.month) for fact in second]
    assert isinstance(second[0], RunStarted)
    assert audit_parts({1: first, 2: others}).problems == ("A7: part 2 does not begin with what the part before it leaves",)
    assert audit_parts({3: first[:-1], 4: second}).problems[0].startswith("A7: part 4 follows a part that was not rolled over")
    impossible = [*first[:-1], Departed(first[-1].at_s, "nobody"), first[-1]]  # type: ignore[union-attr]
    problems = audit_parts({1: impossible, 2: second}).problems
    assert len(problems) == 1 and problems[0].startswith("part 1: A4: "), problems


def test_facts_and_parts_keep_their_numbers_when_older_parts_are_moved_away(folder: Path, command: Command) -> None:
    begin(folder)
    last, journal = len(read_parts(folder).pop(1)) + 4, Journal(newest_part(folder), resume=True)
    (folder / JOURNAL).unlink()
    journal.write(Departed(read_record(folder).last_s, "nobody"))
    journal.close()
    status, out, _ = command("journal", "check", str(folder))
    assert status == 1 and out.startswith(f"4 facts are whole; the last is {last}, DrainPlanned"), out
    assert f"behind them: fact {last + 1} (Departed) cannot have happened" in out
    shutil.copy(newest_part(folder), folder / "journal-3.sqlite")
    assert [*read_parts(folder)] == [2, 3]
    assert "A7: part 3 follows a part that was not" in command("journal", "audit", str(folder))[1]
