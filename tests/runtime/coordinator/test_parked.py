"""Parked jobs leave their places at the end of an iteration, and continue from a checkpoint; processes are pretended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Admitted, Departed, Parked, Resumed
from runtime.coordinator.run_plan import RunPlan
from runtime.journal.audit import audit
from runtime.journal.facts import Fact, IterationSlice
from runtime.journal.record import RunRecord
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, read_facts, record_of
from runtime.run.driver import RunDriver
from tests.runtime.pretend import NODES, carry_out, plan_of

PAIR = (NODES[0], NODES[2])
PARKS = "solo,order=fcfs,park=true"
LONG: dict[str, Any] = {"id": "long", "iterations": 12, "options": {"phase_s": 0.02}}
SHORT: dict[str, Any] = {"id": "short", "iterations": 3, "priority": 1, "arrival_s": 0.2}


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


def plan(folder: Path, *jobs: dict[str, Any], policy: str = PARKS, **cluster: Any) -> RunPlan:
    """A run on one pair of nodes, in which a job may be parked at once."""
    made = plan_of(folder, [*(jobs or (LONG, SHORT))], PAIR, policy=policy)
    return replace(made, cluster=made.cluster.model_copy(update={"min_run_s": 0.0, **cluster}))


def record_in(folder: Path, *jobs: dict[str, Any]) -> RunRecord:
    """The record of a run in which every iteration was done once, and that the scheduler decides the same way again."""
    facts = read_facts(folder / JOURNAL)
    record = record_of(facts)
    assert audit(facts).problems == ()
    assert [line for line in replay_journal(facts).lines if not line.startswith("permits")] == []
    assert not record.failed
    for job in jobs or (LONG, SHORT):
        counts = [done.metrics["count"] for done in record.iterations_of(job["id"])]
        assert counts == [*range(1, job["iterations"] + 1)]
    return record


def log_of(record: RunRecord) -> list[tuple[str, str]]:
    kinds = Admitted | Parked | Resumed | Departed
    return [(type(event).__name__, event.job_id) for event in record.log if isinstance(event, kinds)]


def test_a_short_job_overtakes_and_the_long_one_continues_from_its_checkpoint(tmp_path: Path) -> None:
    lines: list[str] = []

    def look(driver: RunDriver) -> None:
        lines.extend(driver.run.log.lines(0))

    assert carry_out(plan(tmp_path, resume_s=2.0), then={11: look}) == "done"
    record = record_in(tmp_path)
    assert log_of(record) == [
        ("Admitted", "long"),
        ("Parked", "long"),
        ("Admitted", "short"),
        ("Departed", "short"),
        ("Admitted", "long"),
        ("Resumed", "long"),
        ("Departed", "long"),
    ]
    (parked,) = (event for event in record.log if isinstance(event, Parked))
    assert parked.for_job == "short" and not record.restarted
    text = "\n".join(lines)
    assert "long: is parked at the end of its iteration, for short" in text
    assert "long: parked for short; continues at iteration" in text


@pytest.mark.parametrize("dies_at", [*range(20, 60, 4)])
def test_killed_while_a_job_is_parked_it_continues(tmp_path: Path, dies_at: int) -> None:
    outcome = carry_out(plan(tmp_path), dies_at)
    known = record_of(read_facts(tmp_path / JOURNAL))
    if outcome == "killed" and known.ended is None:
        assert carry_out(replace(plan(tmp_path), resume=True)) == "done"
    record_in(tmp_path)


def test_a_job_without_checkpoints_is_not_parked(tmp_path: Path) -> None:
    jobs = ({**LONG, "checkpoint": {"every": "none"}}, SHORT)
    assert carry_out(plan(tmp_path, *jobs)) == "done"
    assert [kind for kind, _ in log_of(record_in(tmp_path))] == ["Admitted", "Departed"] * 2


def test_an_audit_sees_a_parked_job_that_runs_or_is_forgotten(tmp_path: Path) -> None:
    assert carry_out(plan(tmp_path)) == "done"
    facts = read_facts(tmp_path / JOURNAL)
    at = next(number for number, fact in enumerate(facts) if isinstance(fact, Parked))
    slices = [fact for fact in facts[:at] if isinstance(fact, IterationSlice) and fact.job_id == "long"]
    tampered: list[Fact] = [*facts[: at + 1], slices[-1], *facts[at + 1 :]]
    assert any(
        line.startswith("A6: ") and "IterationSlice" not in line and "Iteration says" in line for line in audit(tampered).problems
    )
    gone = [fact for number, fact in enumerate(facts) if number < at or not (isinstance(fact, Admitted) and fact.job_id == "long")]
    assert "A6: job long is parked when the run has ended" in audit(gone).problems
