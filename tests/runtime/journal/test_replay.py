"""Recorded runs, fed through the scheduler again."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Admitted, Departed
from runtime.journal.facts import PROFILING_GROUP, Assigned, Fact, PhaseSlice, SchedulerInformed, SyncSlice
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, read_facts
from tests.conftest import Command
from tests.runtime.pretend import NODES, carry_out, plan_of

FIXTURES = Path(__file__).parents[2] / "fixtures"
RUNS = ("finished-run", "interrupted-run", "service")


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_run_is_decided_as_it_was(name: str) -> None:
    found = replay_journal(read_facts(FIXTURES / name / JOURNAL))
    assert found.lines == ()
    assert min(found.placements, found.nodes, found.permits) > 1


def test_the_coordinator_grants_as_the_dispatch_policy_of_the_replay_chooses(tmp_path: Path) -> None:
    jobs = [{"id": name, "iterations": 4} for name in "abcde"]
    assert carry_out(plan_of(tmp_path, jobs, dispatch="least-recently-served")) == "done"
    found = replay_journal(read_facts(tmp_path / JOURNAL))
    assert found.lines == () and found.permits >= 40


def test_jobs_that_were_profiled_together_inside_a_group_are_so_again(tmp_path: Path) -> None:
    jobs = [{"id": "host", "iterations": 60}, *({"id": name, "iterations": 2, "arrival_s": 1e-6} for name in "abc")]
    assert carry_out(plan_of(tmp_path, jobs, (NODES[0], NODES[2]), cached=False)) == "done"
    facts = read_facts(tmp_path / JOURNAL)
    assert {part.job_id for part in facts if isinstance(part, PhaseSlice) and part.profile and part.group != PROFILING_GROUP} == {
        *"abc"
    }
    assert replay_journal(facts).lines == ()


def changed(facts: list[Fact], at: int, **values: Any) -> list[Fact]:
    """A journal in which one fact says something else."""
    fact: Any = facts[at]
    return [*facts[:at], replace(fact, **values), *facts[at + 1 :]]


def test_what_was_decided_otherwise_is_told() -> None:
    facts = read_facts(FIXTURES / "finished-run" / JOURNAL)
    at, second = [(k, fact) for k, fact in enumerate(facts) if isinstance(fact, Admitted)][1]
    elsewhere = replace(second.placement, group=None, rollout_nodes=(), new_rollout_nodes=1, training_nodes=1)
    assert elsewhere != second.placement
    lines = replay_journal(changed(facts, at, placement=elsewhere)).lines
    assert len(lines) == 1 and lines[0].startswith(f"placements 2: recorded ['admitted {second.job_id}")
    at = [k for k, fact in enumerate(facts) if isinstance(fact, Assigned)][-1]
    lines = replay_journal(changed(facts, at, node="rollout-9")).lines
    assert any(line.startswith("nodes ") and "rollout-9" in line for line in lines)
    at = next(k for k, fact in enumerate(facts) if isinstance(fact, SchedulerInformed) and fact.permits)
    lines = replay_journal(changed(facts, at, permits=(("b", "training"),))).lines
    assert any(line.startswith("permits ") for line in lines)


def test_a_sync_that_ends_after_its_job_has_left_is_no_difference() -> None:
    facts = read_facts(FIXTURES / "service" / JOURNAL)
    at, left = [(k, fact) for k, fact in enumerate(facts) if isinstance(fact, Departed)][-1]
    late = SyncSlice(left.job_id, False, 0, ("rollout-0",), left.at_s, left.at_s + 1.0, ())
    assert replay_journal([*facts[: at + 1], late, *facts[at + 1 :]]).lines == ()


def tampered(folder: Path, kind: str, **values: Any) -> Path:
    """The journal of a finished run in another folder; the last fact of a kind says something else there."""
    copy = folder / "run"
    shutil.copytree(FIXTURES / "finished-run", copy)
    with closing(sqlite3.connect(copy / JOURNAL)) as database, database:
        number, body = database.execute("SELECT number, body FROM facts WHERE kind = ? ORDER BY number DESC", [kind]).fetchone()
        database.execute("UPDATE facts SET body = ? WHERE number = ?", [json.dumps({**json.loads(body), **values}), number])
    return copy


def test_the_command_prints_the_differences(command: Command, tmp_path: Path) -> None:
    status, out, err = command("journal", "replay", str(FIXTURES / "service"))
    assert (status, err) == (0, "") and out.endswith("permits compared: 0 differences\n")
    status, out, err = command("journal", "replay", str(tampered(tmp_path, "Assigned", node="rollout-9")))
    *lines, last = out.splitlines()
    assert (status, err) == (1, "") and lines and last.endswith(f"permits compared: {len(lines)} differences")
    assert any(line.startswith("nodes ") and "rollout-9" in line for line in lines)


@pytest.mark.parametrize("content", [None, "", "no database"])
def test_a_folder_that_holds_no_run_is_one_line(command: Command, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / JOURNAL).write_text(content)
    status, out, err = command("journal", "replay", str(tmp_path))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith(f"rollmux: {tmp_path / JOURNAL}: ")
