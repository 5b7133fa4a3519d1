"""The audit of a journal: a run that was killed and resumed passes, and whatever is taken away or put in twice is found."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmux_env.cluster.events import Admitted, Arrived, Departed, Placement
from rollmux_env.keys.cluster import Cluster, Pool
from rollmux_env.keys.job import Job
from rollmux_env.keys.phases import Phase, Training
from runtime.jobs.file import parse_jobs
from runtime.journal.audit import audit
from runtime.journal.facts import (
    Assigned,
    Fact,
    IterationSlice,
    JobCancelled,
    JobCheckpointed,
    JobFailed,
    JobProfiled,
    JobRestarted,
    JobSubmitted,
    PhaseSlice,
    Returned,
    RunEnded,
    RunRelaunched,
    RunStarted,
)
from runtime.journal.write import JOURNAL
from runtime.machine import Node
from tests.conftest import Command

FIXTURES = Path(__file__).parents[2] / "fixtures"

POOL = Pool(gpus_per_node=1, usd_per_gpu_hour=1.0)
NODES = tuple(Node(f"{pool}-0", pool, "machine", (0,), (), 8.0, "1 core") for pool in ("rollout", "training"))
SPECS = parse_jobs(
    {"version": 1, "jobs": [{"id": name, "iterations": 3, "slo": 9, "class": "a:B"} for name in "ab"]}, "test", Path()
).jobs
JOBS = [
    Job(id=name, arrival_s=0.0, iterations=3, slo=9.0, rollout=Phase(worst_case_s=1.0), training=Training(worst_case_s=1.0))
    for name in "ab"
]
ALONE, BESIDE = Placement(None, (), 1, 1), Placement(0, (0,))


def turn(job_id: str, number: int, at_s: float) -> list[Fact]:
    """An iteration of a job, phases and checkpoint included."""
    part = PhaseSlice(job_id, "rollout", False, number, 0, "rollout", (0,), ("rollout-0",), at_s, at_s, at_s + 1, at_s, at_s + 1)
    train = replace(
        part, phase="training", pool="training", nodes=("training-0",), asked_s=at_s + 1, start_s=at_s + 1, end_s=at_s + 2
    )
    done = IterationSlice(job_id, number, at_s, at_s + 2, {})
    return [part, train, done, JobCheckpointed(at_s + 2, job_id, number + 1, 0.1, 0.1)]


def killed_run() -> list[Fact]:
    """Two jobs; one dies and goes on from its checkpoint, then the run is killed and resumed, and both are done."""
    begin: list[Fact] = [
        RunStarted(0.0, 1e9, "rollmux", "round-robin", Cluster(rollout=POOL, training=POOL, migration_s=1.0), NODES, {}, 0),
        *(JobSubmitted(0.0, spec) for spec in SPECS),
        *(JobProfiled(0.0, job, False) for job in JOBS),
        Arrived(0.0, JOBS[0]),
        Admitted(0.0, "a", ALONE),
        Assigned(0.0, 0, "rollout", 0, "rollout-0"),
        Assigned(0.0, 0, "training", 0, "training-0"),
        Arrived(0.0, JOBS[1]),
        Admitted(0.0, "b", BESIDE),
    ]
    again: list[Fact] = [
        Departed(6.0, "a"),
        JobRestarted(6.0, "a", 1, "its controller has died"),
        Arrived(6.0, JOBS[0]),
        Admitted(6.0, "a", BESIDE),
    ]
    resumed: list[Fact] = [
        RunRelaunched(14.0, 2e9, NODES, {}),
        Departed(14.0, "b"),
        JobRestarted(14.0, "b", 1, "the run was resumed"),
        Arrived(14.0, JOBS[1]),
        Admitted(14.0, "b", BESIDE),
    ]
    end: list[Fact] = [
        Departed(28.0, "a"),
        Departed(28.0, "b"),
        Returned(28.0, "rollout-0"),
        Returned(28.0, "training-0"),
        RunEnded(28.0, "done"),
    ]
    return [
        *begin,
        *turn("a", 0, 0.0),
        *turn("b", 0, 2.0),
        *again,
        *turn("a", 1, 6.0),
        *turn("b", 1, 8.0),
        *turn("a", 2, 12.0),
        *resumed,
        *turn("b", 1, 14.0),
        *turn("b", 2, 16.0),
        *end,
    ]


def problems(facts: list[Fact]) -> str:
    return "\n".join(audit(facts).problems)


def test_a_run_that_was_killed_and_resumed_lost_and_doubled_nothing() -> None:
    found = audit(killed_run())
    assert found.problems == ()
    assert found.jobs == {"a": "done", "b": "done"}
    assert (found.iterations, found.repeated, found.restarts, found.relaunches) == (6, 1, 2, 1)


def test_a_run_that_still_goes_on_may_have_jobs_that_are_not_done() -> None:
    found = audit(killed_run()[:-9])
    assert found.problems == () and found.jobs == {"a": "done", "b": "present"}


TRACED = (JobSubmitted, IterationSlice, Arrived, Admitted, Assigned, Departed, Returned, JobRestarted)


@given(st.data())
def test_whatever_is_missing_or_there_twice_is_found(data: st.DataObject) -> None:
    facts = killed_run()
    k = data.draw(st.sampled_from([k for k, fact in enumerate(facts) if isinstance(fact, TRACED)]))
    doubled = [*facts[: k + 1], *facts[k:]]
    dropped = [*facts[:k], *facts[k + 1 :]]
    if not isinstance(facts[k], JobRestarted):  # to go on twice at one iteration is to go on once
        assert audit(doubled).problems
    if facts[k] != next(fact for fact in facts if isinstance(fact, JobRestarted)):  # it goes on where it was
        assert audit(dropped).problems


@pytest.mark.parametrize(
    ("number", "changed"),
    [
        ("A1", lambda fact: [fact, JobFailed(fact.at_s, "a", "step", "died")] if isinstance(fact, RunEnded) else [fact]),
        ("A1", lambda fact: [fact, JobCancelled(fact.at_s, "b")] if isinstance(fact, RunEnded) else [fact]),
        ("A1", lambda fact: [IterationSlice("c", 0, fact.at_s, fact.at_s, {}), fact] if isinstance(fact, RunEnded) else [fact]),
        ("A2", lambda fact: [replace(fact, iteration=2)] if isinstance(fact, JobRestarted) else [fact]),
        ("A2", lambda fact: [fact, JobCancelled(fact.at_s, "b")] if isinstance(fact, RunRelaunched) else [fact]),
        ("A2", lambda fact: [] if isinstance(fact, JobCheckpointed) else [fact]),
        ("A3", lambda fact: [replace(fact, group=1)] if isinstance(fact, PhaseSlice) else [fact]),
        ("A3", lambda fact: [replace(fact, start_s=fact.start_s - 2, asked_s=-2.0)] if isinstance(fact, PhaseSlice) else [fact]),
        ("A4", lambda fact: [replace(fact, job_id="b")] if isinstance(fact, Departed) else [fact]),
        ("A5", lambda fact: [replace(fact, at_s=3.0)] if isinstance(fact, RunRelaunched) else [fact]),
    ],
)
def test_a_problem_names_its_invariant(number: str, changed: object) -> None:
    assert callable(changed)
    facts = [fact for before in killed_run() for fact in changed(before)]
    assert any(line.startswith(number) for line in audit(facts).problems), problems(facts)


def test_an_iteration_that_is_there_twice_is_one_problem() -> None:
    facts = killed_run()
    k = next(k for k, fact in enumerate(facts) if isinstance(fact, IterationSlice))
    said = [line for line in audit([*facts[: k + 1], *facts[k:]]).problems if "iteration" in line]
    assert said == ["A2: job a did iteration 0 when 1 was due"]


def test_the_command_prints_what_is_wrong(command: Command, tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "finished-run" / JOURNAL, tmp_path)
    status, out, _ = command("journal", "audit", str(tmp_path))
    assert status == 0 and out.startswith("2 jobs (2 done), 8 iterations") and out.endswith(": 0 problems\n")
    with closing(sqlite3.connect(tmp_path / JOURNAL)) as database, database:
        ((lost,),) = database.execute("SELECT min(number) FROM facts WHERE kind = 'Iteration'")
        database.execute("DELETE FROM facts WHERE number = ?", (lost,))
        database.execute("UPDATE facts SET number = number - 1 WHERE number > ?", (lost,))
    status, out, _ = command("journal", "audit", str(tmp_path))
    assert status == 1 and out.startswith("A1: job ") and out.endswith(" problems\n") and "A2: " in out
    assert command("journal", "audit", str(tmp_path / "none"))[0] == 2
