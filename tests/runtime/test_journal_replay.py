"""Recorded runs, fed through the scheduler again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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


def changed(facts: list[Fact], kind: type, number: int, **values: object) -> list[Fact]:
    """A journal in which one fact of a kind says something else."""
    places = [k for k, fact in enumerate(facts) if isinstance(fact, kind) and not getattr(fact, "profile", False)]
    place = places[number]
    return [*facts[:place], replace(facts[place], **values), *facts[place + 1 :]]  # type: ignore[type-var]


def test_what_was_decided_otherwise_is_told() -> None:
    facts = read_facts(FIXTURES / "finished-run" / JOURNAL)
    (second,) = [fact for fact in facts if isinstance(fact, Admitted)][1:]
    elsewhere = replace(second.placement, group=None, rollout_nodes=(), new_rollout_nodes=1, training_nodes=1)
    assert elsewhere != second.placement
    lines = replay_journal(changed(facts, Admitted, 1, placement=elsewhere)).lines
    assert len(lines) == 1 and lines[0].startswith(f"placements 2: recorded ['admitted {second.job_id}")
    lines = replay_journal(changed(facts, Assigned, -1, node="rollout-9")).lines
    assert any(line.startswith("nodes ") and "rollout-9" in line for line in lines)
    late = [fact for fact in facts if isinstance(fact, PhaseSlice) and not fact.profile and fact.phase == "training"]
    moved = changed(facts, PhaseSlice, [f for f in facts if isinstance(f, PhaseSlice) and not f.profile].index(late[0]), start_s=0.0)
    assert any(line.startswith("permits ") for line in replay_journal(moved).lines)


def test_the_command_prints_the_differences() -> None:
    runner = CliRunner()
    done = runner.invoke(command(), ["journal", "replay", str(FIXTURES / "service")])
    assert done.exit_code == 0 and done.output.endswith("permits compared: 0 differences\n")
