"""The journal: what was written is read back, the same; states come from it; other files are refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from rollmux_env.cluster.events import (
    Admitted,
    Arrived,
    Departed,
    JobProgress,
    Moved,
    Placement,
    Progressed,
    Reprofiled,
    Resumed,
    Ticked,
    Withdrawn,
)
from rollmux_env.errors import InputError
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training
from rollmux_env.locks import take_lock
from rollmux_env.scheduler.facts import Drained, Iterated, Ready, Unprofiled
from runtime.jobs.file import parse_jobs
from runtime.journal.facts import (
    Assigned,
    Fact,
    IterationSlice,
    JobCancelled,
    JobFailed,
    JobProfiled,
    JobRestarted,
    JobSubmitted,
    PhaseSlice,
    Returned,
    RunEnded,
    RunRelaunched,
    RunStarted,
    SchedulerInformed,
    SharingBound,
    SyncSlice,
)
from runtime.journal.kinds import KINDS
from runtime.journal.record import fields_of_kinds
from runtime.journal.write import (
    JOURNAL,
    LOCK,
    Journal,
    Unwritable,
    is_begun,
    read_facts,
    read_run,
    record_of,
    state_of,
)
from runtime.machine import Node
from tests.fixtures import FIXTURES

POOL = Pool(gpus_per_node=1, usd_per_gpu_hour=1.0)
CLUSTER = Cluster(rollout=POOL, training=POOL, migration_s=1.0)
JOBS = [
    Job(
        id=name,
        arrival_s=0.0,
        iterations=3,
        slo=2.0,
        rollout=Phase(worst_case_s=1.0, host_memory_gb=0.5),
        training=Training(worst_case_s=2.0, by_nodes={2: 1.5}),
    )
    for name in "ab"
]
SPECS = parse_jobs(
    {
        "version": 1,
        "jobs": [
            {"id": "a", "iterations": 3, "slo": 2.0, "task": "echo", "model": "/models/own"},
            {"id": "b", "iterations": 3, "slo": 2.0, "class": "own:Job", "options": {"size": [1, 2]}},
        ],
    },
    "test",
    Path("/somewhere"),
).jobs
NODE = Node("rollout-0", "rollout", "machine", (0, 1), (), 8.0, "2 core")
FACTS: list[Fact] = [
    RunStarted(0.0, 1e9, "rollmux", "round-robin", CLUSTER, (NODE,), {"python": "3.11"}, 0),
    JobProfiled(1.0, JOBS[0], False),
    SharingBound(("a rollout", "b training"), (1.0, 1.0), (1.1, 1.2)),
    Arrived(1.0, JOBS[0]),
    Admitted(1.0, "a", Placement(None, (), 1, 1)),
    Assigned(1.0, 0, "rollout", 0, "rollout-0"),
    Arrived(1.5, JOBS[1]),
    Admitted(1.5, "b", Placement(0, (0,), 0, 0)),
    SchedulerInformed(
        1.1, (Ready("a", "rollout", (NODE,)), Unprofiled({"c": {"rollout": 1}}, names=frozenset({"x"}))), (("a", "rollout"),)
    ),
    PhaseSlice("a", "rollout", False, 0, 0, "rollout", (0,), ("rollout-0",), 1.0, 1.1, 2.0, 1.2, 1.9, stages={"restore": 0.01}),
    SyncSlice("a", False, 0, ("rollout-0",), 3.0, 3.1, ("b",)),
    IterationSlice("a", 0, 1.0, 3.1, {"reward": 0.5}),
    *(JobSubmitted(3.1, spec) for spec in SPECS),
    Reprofiled(3.1, JOBS[0].model_copy(update={"sync_s": 0.5})),
    Arrived(3.1, JOBS[0].model_copy(update={"id": "c"})),
    JobCancelled(3.1, "c"),
    Withdrawn(3.1, "c"),
    Progressed(3.2, (JobProgress("a", 1, 0.7, 1.0),)),
    Ticked(3.2),
    Moved(3.3, "b", Placement(None, (), 1, 1)),
    Resumed(4.3, "b"),
    JobFailed(5.0, "b", "rollout", "ValueError: no", "Traceback"),
    Departed(5.0, "b"),
    Returned(5.0, "rollout-0"),
    RunEnded(6.0, "done"),
]


PHASE = next(fact for fact in FACTS if isinstance(fact, PhaseSlice))


def test_facts_come_back_as_they_were(tmp_path: Path) -> None:
    journal = Journal(tmp_path / JOURNAL)
    for fact in FACTS:
        journal.write(fact)
    journal.close()
    assert {path.name for path in tmp_path.iterdir()} == {JOURNAL, LOCK}  # no write-ahead log
    assert read_facts(tmp_path / JOURNAL) == FACTS
    record = read_run(tmp_path)
    assert record == record_of(FACTS)
    state = state_of(record)
    assert [group.jobs for group in state.group_list()] == [("a",)] and state.iterations_done("a") == 1
    assert record.bounds[0].gain == pytest.approx(2 / 1.2)
    (run,) = record.phase_runs()
    assert (run.job_id, run.phase, run.start_s) == ("a", "rollout", 1.1) and run.switch_s == pytest.approx(0.1)


def test_every_kind_of_fact_has_a_field_of_the_record() -> None:
    assert fields_of_kinds().keys() - {type(None)} == {*KINDS.values()}


def test_placements_are_on_the_disk_at_once_and_phases_soon(tmp_path: Path) -> None:
    journal = Journal(tmp_path / JOURNAL)
    journal.write(FACTS[0])
    for _ in range(5):
        journal.write(PHASE)
    assert len(read_facts(tmp_path / JOURNAL)) == 1
    journal.write(FACTS[3])
    assert len(read_facts(tmp_path / JOURNAL)) == 7
    for _ in range(80):
        journal.write(PHASE)
    assert len(read_facts(tmp_path / JOURNAL)) >= 7 + 64
    journal.close()


def test_what_only_the_scheduler_was_told_is_on_the_disk_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / JOURNAL)
    journal.write(FACTS[0])
    journal.write(SchedulerInformed(1.0, (Iterated(JobProgress("a", 1, 0.7, 1.0), None, False),)))
    assert journal.has_unwritten
    journal.write(SchedulerInformed(1.0, (Drained(frozenset({"rollout-1", "rollout-0"})),)))
    assert not journal.has_unwritten and len(read_facts(tmp_path / JOURNAL)) == 3
    assert record_of(read_facts(tmp_path / JOURNAL)).drained_nodes == {"rollout-0", "rollout-1"}
    journal.close()


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no journal"):
        read_run(tmp_path)
    journal = Journal(tmp_path / JOURNAL)
    journal.write(FACTS[1])
    journal.close()
    with pytest.raises(InputError, match="is the journal of a run already"):
        Journal(tmp_path / JOURNAL)
    with pytest.raises(InputError, match="does not begin with the start"):
        read_run(tmp_path)
    other = tmp_path / "other"
    other.write_text("nothing of the kind, but long enough to be looked at" * 40)
    with pytest.raises(InputError, match="is no journal"):
        read_facts(other)
    for version in (2, 99):
        other = tmp_path / f"version {version}"
        database = sqlite3.connect(other)
        database.execute(f"PRAGMA user_version={version}")
        database.execute("CREATE TABLE facts (number INTEGER)")
        database.close()
        with pytest.raises(InputError, match=f"is of version {version}; this RollMux reads versions 3 and 4"):
            read_facts(other)


def test_a_full_disk_is_one_line_and_what_was_written_stays(tmp_path: Path) -> None:
    journal = Journal(tmp_path / JOURNAL)
    journal.write(FACTS[0])
    journal._connection().execute("PRAGMA max_page_count=4")  # what SQLite says then is what it says of a full disk
    with pytest.raises(Unwritable, match=r"journal.sqlite: cannot be written: database or disk is full$"):
        for _ in range(1000):
            journal.write(FACTS[1])
    known = read_facts(tmp_path / JOURNAL)
    assert known[0] == FACTS[0] and set(map(type, known[1:])) <= {JobProfiled}
    journal._connection().execute("PRAGMA max_page_count=100000")
    journal.write(FACTS[2])  # there is room again, for what could not be written, too
    journal.close()
    assert read_facts(tmp_path / JOURNAL) == [*known, FACTS[1], FACTS[2]]


def test_a_journal_that_was_only_just_made_is_none_and_makes_room_for_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / JOURNAL
    assert not is_begun(path)
    for half_made in ("", "CREATE TABLE facts (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL)"):
        path.unlink(missing_ok=True)
        database = sqlite3.connect(path)
        database.execute(half_made)
        database.close()
        assert not is_begun(path)
        journal = Journal(path)
        journal.write(FACTS[0])
        journal.close()
        assert is_begun(path) and read_facts(path) == [FACTS[0]]


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "full.lock").symlink_to("/dev/full")
    with pytest.raises(InputError, match="cannot be written"):
        take_lock(tmp_path / "full.lock")


def test_iterations_that_a_restart_repeats_are_counted_once() -> None:
    again = [IterationSlice("a", number, 5.0 + number, 6.0 + number, {}) for number in (0, 1)]
    record = record_of([*FACTS[:-1], JobRestarted(4.0, "a", 0, "why"), RunRelaunched(4.0, 2e9, (NODE,), {}), *again])
    assert [done.number for done in record.iterations] == [0, 1] and record.iterations == tuple(again)
    assert [done.end_s for done in record.repeated] == [3.1]
    assert record.ended is None and record.last_s == 7.0
    assert record.wall_s(3.0) == 1e9 + 3 and record.wall_s(6.0) == 2e9 + 2


def test_what_a_record_says_of_each_job_is_all_that_it_says_of_jobs() -> None:
    record = record_of(read_facts(FIXTURES / "service" / JOURNAL))
    assert {*record.by_job} == {fact.spec.id for fact in record.submitted}
    for name in ("phases", "iterations", "checkpointed", "profiled", "submitted", "restarted"):
        parts = [fact for own in record.by_job.values() for fact in getattr(own, name)]
        assert len(parts) == len(getattr(record, name)) and {*map(id, parts)} == {*map(id, getattr(record, name))}, name
    for job_id, own in record.by_job.items():
        assert list(own.iterations) == record.iterations_of(job_id) and {*own.jobs} == {job_id} and own.started == record.started
