"""The next part of a journal in which jobs are present: a recovery knows the same from it, and every command reads all parts."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NoReturn
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.cluster.events import MonthBegun, QuotaSet
from rollmux_env.errors import InputError
from rollmux_env.keys.queue import Quota
from rollmux_env.locks import take_lock
from rollmux_env.scheduler.facts import Drained, Undrained
from rollmux_env.scheduler.nodes import Assigned, Returned
from runtime.journal import write
from runtime.journal.audit import audit
from runtime.journal.carry import carried_facts, count_carried, select_assignments
from runtime.journal.check import audit_parts
from runtime.journal.commits import Commits
from runtime.journal.facts import (
    DrainPlanned,
    Fact,
    IterationSlice,
    JobCarried,
    JobRolledBack,
    LeaseEnded,
    MemoryExceeded,
    MetricsReported,
    NodesSuspected,
    OwnerAttached,
    PartBegun,
    PhaseGranted,
    RunRelaunched,
    SchedulerInformed,
    SyncSlice,
)
from runtime.journal.parts import entries_of_parts, newest_part, read_parts
from runtime.journal.read import parsed
from runtime.journal.record import RunRecord
from runtime.journal.replay import joined, replay_journal
from runtime.journal.rollover import continue_in_next_part, is_long
from runtime.journal.write import JOURNAL, Journal, read_earlier, read_facts, read_record, record_of, row_of
from runtime.report.usage import past_usage
from runtime.service.report import past_report
from tests.conftest import Command
from tests.fixtures import copied
from tests.runtime.journal.recovered import recovered
from tests.runtime.pretend import PAIR

SERVICES = ("attached-service", "counted-service", "interrupted-run", "killed-service", "service")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """That of a service with attached jobs, which was killed."""
    return copied("attached-service", tmp_path)


def facts_of(folder: str, to: Path) -> list[Fact]:
    return read_facts(copied(folder, to) / JOURNAL)


def eventful(facts: Sequence[Fact]) -> list[Fact]:
    """Return facts with all kinds at their end that a recovery reads and that the fixtures lack."""
    record = record_of(facts)
    now_s, (node, *_), job_id = record.last_s + 1.0, record.nodes, record.attached[-1].job_id
    lease, number = record.attached[-1].lease, record.done[job_id]
    return [
        *facts,
        SchedulerInformed(now_s, (Drained(frozenset({node})), Undrained(frozenset({node})), Drained(frozenset({node})))),
        QuotaSet(now_s, "ann", Quota(nodes=2)),
        MonthBegun(now_s, "2026-12"),
        DrainPlanned(now_s, node, 2e9),
        MemoryExceeded(now_s, job_id, "rollout", 2.0, 1.0),
        RunRelaunched(now_s, 1.8e9, record.started.nodes, {}),
        IterationSlice(job_id, number, now_s, now_s, {"reward": 1.0}),
        JobRolledBack(now_s, job_id, lease, number),
        PhaseGranted(now_s, job_id, lease, "rollout", number, False, now_s, now_s, False),
        MetricsReported(now_s, job_id, lease, number, {"reward": 2.0}),
        NodesSuspected(now_s, job_id, lease, (node,)),
        SyncSlice(job_id, False, number - 1, (node,), now_s, now_s + 0.25, ()),  # by the clock of the job
    ]


@pytest.mark.parametrize("folder", SERVICES)
def test_a_recovery_knows_the_same_from_the_next_part(folder: str, tmp_path: Path) -> None:
    facts = facts_of(folder, tmp_path)
    if folder == "attached-service":
        facts = eventful(facts)
    for end in {len(facts) * k // 4 for k in range(1, 4)} | {len(facts)}:
        carried = carried_facts(facts[:end])
        known, whole = recovered(carried), recovered(facts[:end])
        assert [name for name in whole if known[name] != whole[name]] == []
        assert tuple(parsed(*row_of(fact)) for fact in carried) == carried == carried_facts(carried)
        assert audit(carried).problems == audit(facts[:end]).problems


def test_only_a_little_is_carried_over(tmp_path: Path) -> None:
    facts = facts_of("service", tmp_path)
    assert sum(len(row_of(fact)[1]) for fact in carried_facts(facts)) < 0.1 * sum(len(row_of(fact)[1]) for fact in facts)


def test_each_fact_that_is_missing_or_differs_is_found(folder: Path) -> None:
    before = eventful(read_facts(folder / JOURNAL))
    after = carried_facts(before)
    assert not [line for line in audit_parts({1: before, 2: after}).problems if line.startswith("A7")]
    found = audit(before)
    with (
        patch("runtime.journal.check.audit", lambda facts: found),
        patch("runtime.journal.check.carried_facts", lambda facts: after),
    ):
        for number, fact in enumerate(after[:-1]):
            others: list[Sequence[Fact]] = [(*after[:number], *after[number + 1 :])]
            if isinstance(fact, JobCarried):
                more = dataclasses.replace(fact, iterations=fact.iterations + 1)
                others.append((*after[:number], more, *after[number + 1 :]))
            for other in others:
                problems = audit_parts({1: before, 2: other}).problems
                assert "A7: part 2 does not begin with what the part before it leaves" in problems


def test_a_part_that_another_version_began_is_compared_in_its_events(folder: Path) -> None:
    before = read_facts(folder / JOURNAL)
    first, *others, last = carried_facts(before)
    assert isinstance(last, PartBegun)
    others = [fact for fact in others if not isinstance(fact, OwnerAttached | LeaseEnded | PhaseGranted | JobCarried)]
    quota, found = QuotaSet(last.at_s, "ann", Quota(nodes=2)), audit(before)
    with patch("runtime.journal.check.audit", lambda facts: found):
        for rules, more, follows in ((1, (), True), (1, (quota,), False), (last.rules, (), False)):
            after = (first, *others, *more, dataclasses.replace(last, rules=rules))
            problems = audit_parts({1: before, 2: after}).problems
            assert follows != ("A7: part 2 does not begin with what the part before it leaves" in problems)


def roll_over(folder: Path, *more: Fact) -> None:
    """Continue a journal in its next part, with more facts there."""
    journal = Journal(newest_part(folder), resume=True)
    assert continue_in_next_part(journal, journal.facts()[:-3]) is None
    journal.put(*more)
    journal.close()


def iterations_of(record: RunRecord, job_id: str, count: int) -> list[Fact]:
    at_s = record.last_s + 5.0
    return [IterationSlice(job_id, record.done[job_id] + k, at_s, at_s, {}) for k in range(count)]


def test_every_command_reads_all_parts(folder: Path, command: Command) -> None:
    usage, report, last = past_usage(folder, ["user", "job"]), past_report(folder), len(read_facts(folder / JOURNAL))
    replayed, audited = command("journal", "replay", str(folder)), command("journal", "audit", str(folder))[1]
    roll_over(folder)
    assert (past_usage(folder, ["user", "job"]), past_report(folder)) == (usage, report)
    assert command("journal", "replay", str(folder)) == replayed and command("journal", "audit", str(folder))[1] == audited
    assert command("journal", "check", str(folder))[1].startswith(f"{last} facts are whole; the last is {last}, Granted")
    again = IterationSlice("unknown", 0, 0.0, read_record(folder).last_s, {})
    roll_over(folder, again)
    assert [number for number, *_ in entries_of_parts(folder, last - 2, 9)] == [last - 1, last, last + 1]
    assert [number for number, *_ in entries_of_parts(folder, 0, 10**6)] == [*range(1, last + 2)]
    assert [*read_parts(folder)] == [1, 2, 3] and read_earlier(folder) == []
    assert joined([*read_parts(folder).values()]) == [[*read_parts(folder)[1], again]]
    for name in (JOURNAL, "journal-2.sqlite"):  # moved away
        (folder / name).unlink()
    assert past_usage(folder, ["user", "job"]) == usage and command("journal", "replay", str(folder))[0] == 0
    assert [number for number, *_ in entries_of_parts(folder, 0, 9)] == [last + 1]


def test_iterations_of_earlier_parts_may_be_repeated(folder: Path) -> None:
    record = read_record(folder)
    lease = record.attached[-1]
    done, whole = record.done[lease.job_id], audit(read_facts(folder / JOURNAL))
    roll_over(folder, *iterations_of(record, lease.job_id, 2))
    middle = audit_parts(read_parts(folder))
    back = JobRolledBack(record.last_s + 6.0, lease.job_id, lease.lease, done - 1)
    roll_over(folder, back)
    found = audit_parts(read_parts(folder))
    assert (middle.iterations, middle.repeated) == (whole.iterations + 2, whole.repeated)
    assert (found.iterations, found.repeated) == (whole.iterations - 1, whole.repeated + 3)
    after = read_record(folder)
    assert (after.done[lease.job_id], after.most_done(lease.job_id)) == (done - 1, done + 2)


def test_a_part_is_long_when_most_of_it_is_new(folder: Path) -> None:
    journal = Journal(folder / JOURNAL, resume=True)
    last, most = journal.last_number, "runtime.journal.rollover.MOST_FACTS_WITH_JOBS"
    with patch(most, last + 1):
        assert not is_long(journal)
    with patch(most, 10):
        assert is_long(journal) and continue_in_next_part(journal) is None and not is_long(journal)
    carried = journal.carried
    assert (journal.length, journal.last_number, journal.path.name) == (carried, last, "journal-2.sqlite")
    journal.close()
    again = Journal(journal.path, resume=True)
    assert (again.carried, again.length, again.first_number) == (carried, carried, last - carried + 1)
    again.close()


@pytest.mark.parametrize("problem", ["is full", "may not last"])
def test_a_part_that_cannot_begin(problem: str, folder: Path) -> None:
    def sync(path: Path) -> None:
        if (path == folder) == (problem == "may not last"):
            raise OSError(28, "No space left on device")

    journal = Journal(folder / JOURNAL, resume=True)
    last, fact = journal.last_number, PartBegun(journal.facts()[-1].at_s)  # type: ignore[union-attr]
    with patch.object(write, "sync", sync):
        if problem == "is full":
            line = continue_in_next_part(journal)
            assert line is not None and line.endswith(
                "cannot be written: [Errno 28] No space left on device; the journal continues in journal.sqlite"
            )
            journal.put(fact)
            journal.close()
            assert newest_part(folder) == folder / JOURNAL and len(read_facts(folder / JOURNAL)) == last + 1
            return
        with pytest.raises(InputError, match=r"journal-2\.sqlite: may not last: .Errno 28. No space left on device"):
            continue_in_next_part(journal)
        journal.put(fact)
        with pytest.raises(InputError, match="cannot be written"):
            journal.close()
    shutil.copy(folder / JOURNAL, folder / "first.sqlite")
    assert count_carried(read_facts(newest_part(folder))) > 0 and len(read_facts(folder / "first.sqlite")) == last


@pytest.mark.parametrize("begins", [True, False])
def test_a_part_that_cannot_be_opened_yet_waits_for_room(begins: bool, folder: Path) -> None:
    def no_room(*_: object) -> NoReturn:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    journal = Journal(folder / JOURNAL, resume=True)
    last, fact = journal.last_number, DrainPlanned(journal.facts()[-1].at_s, "later")  # type: ignore[union-attr]
    name = "journal-2.sqlite" if begins else JOURNAL
    with patch.object(write, "_writing", no_room), patch.object(os, "replace", os.replace if begins else no_room):
        line = continue_in_next_part(journal)
        assert line is None if begins else line is not None and line.endswith("the journal continues in journal.sqlite")
        journal.put(fact)
        for _ in range(2):
            with pytest.raises(write.Unwritable, match=rf"{name}: cannot be written: database or disk is full"):
                journal.commit()
    assert journal.path == newest_part(folder) == folder / name
    journal.commit()
    assert read_facts(journal.path)[-1] == fact and journal.last_number == last + 1
    journal.close()


def test_a_part_that_begins_while_the_next_writer_waits_is_the_one_that_it_continues(folder: Path) -> None:
    dying = Journal(folder / JOURNAL, resume=True)

    def wait(path: Path, wait_s: float) -> IO[str]:
        assert continue_in_next_part(dying) is None
        dying.close()
        return take_lock(path, wait_s)

    with patch.object(write, "take_lock", wait):
        journal = Journal(folder / JOURNAL, resume=True, wait_s=1.0)
    assert journal.path == newest_part(folder) != folder / JOURNAL and journal.carried == journal.length
    journal.close()


def test_a_part_begins_between_two_commits(folder: Path) -> None:
    async def main() -> None:
        journal = Journal(folder / JOURNAL, resume=True)
        last, at_s = journal.last_number, journal.facts()[-1].at_s  # type: ignore[union-attr]
        commits = Commits(journal, lambda error: None)
        for k in range(3):
            journal.put(DrainPlanned(at_s, f"before-{k}"))
            commits.schedule()
        begun = asyncio.ensure_future(commits.run_between(lambda: continue_in_next_part(journal)))
        await asyncio.sleep(0)
        journal.put(DrainPlanned(at_s, "after"))
        await commits.durable()
        assert await begun is None
        with pytest.raises(ZeroDivisionError):
            await commits.run_between(lambda: 1 / 0)
        await commits.close()
        journal.close()
        assert journal.last_number == last + 4

    asyncio.run(main())
    first, second = read_parts(folder).values()
    assert audit_parts({1: first, 2: second}).problems == audit(first).problems
    (facts,) = joined([first, second])
    assert [fact.node for fact in facts if isinstance(fact, DrainPlanned)] == ["before-0", "before-1", "before-2", "after"]
    assert replay_journal(facts).lines == replay_journal(first).lines


NAMES = st.sampled_from("abcd")


def assignments_by_definition(facts: Sequence[Fact]) -> dict[int, Fact]:
    """Those of each group since it last had no node: after each fact, groups without a node are forgotten."""
    group_of: dict[str, int] = {}
    entries: dict[int, dict[int, Fact]] = {}
    for number, fact in enumerate(facts):
        match fact:
            case Assigned(node=node, group=group):
                group_of[node] = group
                entries.setdefault(group, {})[number] = fact
            case Returned(node=node) if node in group_of:
                entries[group_of.pop(node)][number] = fact
            case RunRelaunched(nodes=nodes):
                group_of = {name: group for name, group in group_of.items() if name in {node.name for node in nodes}}
        entries = {group: own for group, own in entries.items() if group in group_of.values()}
    return {number: fact for own in entries.values() for number, fact in own.items()}


@given(
    st.lists(
        st.one_of(
            st.builds(lambda name, group: Assigned(0.0, group, "rollout", 0, name), NAMES, st.integers(0, 3)),
            st.builds(lambda name: Returned(0.0, name), NAMES),
            st.builds(
                lambda names: RunRelaunched(0.0, 0.0, tuple(dataclasses.replace(PAIR[0], name=name) for name in names), {}),
                st.frozensets(NAMES),
            ),
        ),
        max_size=30,
    )
)
def test_assignments_of_groups_that_have_nodes_are_carried(facts: list[Fact]) -> None:
    assert dict(select_assignments(facts)) == assignments_by_definition(facts)
