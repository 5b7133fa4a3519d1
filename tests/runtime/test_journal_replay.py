"""Recorded runs, fed through the scheduler again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rollmux import command
from rollmux_env.cluster.events import Admitted
from runtime.facts import Assigned, Fact, PhaseSlice
from runtime.journal import JOURNAL, read_facts
from runtime.journal_replay import replay_journal

FIXTURES = Path(__file__).parents[1] / "fixtures"
RUNS = ("finished-run", "interrupted-run", "service")


@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_run_is_decided_as_it_was(name: str) -> None:
    found = replay_journal(read_facts(FIXTURES / name / JOURNAL))
    assert found.lines == ()
    assert min(found.placements, found.nodes, found.permits) > 1


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
    trainings = [
        k for k, fact in enumerate(facts) if isinstance(fact, PhaseSlice) and not fact.profile and fact.phase == "training"
    ]
    lines = replay_journal(changed(facts, trainings[0], start_s=0.0)).lines
    assert any(line.startswith("permits ") for line in lines)


def test_the_command_prints_the_differences() -> None:
    runner = CliRunner()
    done = runner.invoke(command(), ["journal", "replay", str(FIXTURES / "service")])
    assert done.exit_code == 0 and done.output.endswith("permits compared: 0 differences\n")
