"""Parked jobs leave their places at the end of an iteration, and continue from a checkpoint; processes are pretended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Admitted, Departed, Parked, Resumed
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_plan import RunPlan
from runtime.journal.audit import audit
from runtime.journal.facts import Fact, IterationSlice, JobSubmitted
from runtime.journal.record import RunRecord
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, read_facts, record_of
from runtime.run.driver import RunDriver
from tests.runtime.pretend import NODES, carry_out, continued_plan, plan_of, specs_of

PAIR = (NODES[0], NODES[2])
PARKS = "solo,order=fcfs,park=true"
LONG: dict[str, Any] = {"id": "long", "iterations": 12, "options": {"phase_s": 0.02}}
SHORT: dict[str, Any] = {"id": "short", "iterations": 3, "priority": 1}


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ROLLMUX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def plan(folder: Path, long: dict[str, Any] = LONG, **cluster: Any) -> RunPlan:
    """A run on one pair of nodes, in which a job may be parked at once."""
    made = plan_of(folder, [long], PAIR, policy=PARKS)
    return replace(made, cluster=made.cluster.model_copy(update={"min_run_s": 0.0, **cluster}))


def submit(driver: RunDriver) -> None:
    """The short job comes."""
    run = driver.run
    (spec,) = specs_of(SHORT, slo=1000.0, **{"class": "a:B"})
    run.log.write(JobSubmitted(run.log.now(), spec))
    run.handles[spec.id] = JobHandle(spec)
    run.coming += 1
    run.spawn(driver.arrivals.bring_all([run.handles[spec.id]]))


def record_in(folder: Path) -> RunRecord:
    """The record of a run in which every iteration was done once, and that the scheduler decides the same way again."""
    facts = read_facts(folder / JOURNAL)
    record = record_of(facts)
    assert audit(facts).problems == ()
    assert [line for line in replay_journal(facts).lines if not line.startswith("permits")] == []
    assert not record.failed
    for job in (LONG, SHORT)[: len(record.submitted)]:
        counts = [done.metrics["count"] for done in record.iterations_of(job["id"])]
        assert counts == [*range(1, job["iterations"] + 1)]
    return record


def log_of(record: RunRecord) -> list[tuple[str, str]]:
    kinds = Admitted | Parked | Resumed | Departed
    return [(type(event).__name__, event.job_id) for event in record.log if isinstance(event, kinds)]


@pytest.fixture(scope="module")
def overtaken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a run in which a short job overtakes, and its lines before the last iterations."""
    folder, lines = tmp_path_factory.mktemp("overtaken"), list[str]()

    def look(driver: RunDriver) -> None:
        lines.extend(driver.run.log.lines(0))

    assert carry_out(plan(folder, resume_s=2.0), then={2: submit, 11: look}) == "done"
    return folder, lines


def test_a_short_job_overtakes_and_the_long_one_continues_from_its_checkpoint(overtaken: tuple[Path, list[str]]) -> None:
    folder, lines = overtaken
    record = record_in(folder)
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


@pytest.mark.parametrize("dies_at", [7, 9, 11, 12])
@pytest.mark.usefixtures("overtaken")  # profiles are known, so few writes come before the park
def test_killed_before_while_and_after_a_job_is_parked_it_continues(tmp_path: Path, dies_at: int) -> None:
    outcome = carry_out(plan(tmp_path), dies_at, then={2: submit})
    if outcome == "killed" and record_of(read_facts(tmp_path / JOURNAL)).ended is None:
        assert carry_out(continued_plan(tmp_path)) == "done"
    record_in(tmp_path)


def test_a_job_without_checkpoints_is_not_parked(tmp_path: Path) -> None:
    assert carry_out(plan(tmp_path, {**LONG, "checkpoint": {"every": "none"}}), then={2: submit}) == "done"
    assert [kind for kind, _ in log_of(record_in(tmp_path))] == ["Admitted", "Departed"] * 2


def test_an_audit_sees_a_parked_job_that_runs_or_is_forgotten(overtaken: tuple[Path, list[str]]) -> None:
    facts = read_facts(overtaken[0] / JOURNAL)
    at = next(number for number, fact in enumerate(facts) if isinstance(fact, Parked))
    slices = [fact for fact in facts[:at] if isinstance(fact, IterationSlice) and fact.job_id == "long"]
    tampered: list[Fact] = [*facts[: at + 1], slices[-1], *facts[at + 1 :]]
    assert any(
        line.startswith("A6: ") and "IterationSlice" not in line and "Iteration says" in line for line in audit(tampered).problems
    )
    gone = [fact for number, fact in enumerate(facts) if number < at or not (isinstance(fact, Admitted) and fact.job_id == "long")]
    assert "A6: job long is parked when the run has ended" in audit(gone).problems
