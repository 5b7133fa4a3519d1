"""Iterations of jobs alone behind their last ones: with the processes and on the nodes that they had, counted for nothing else."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runtime.coordinator.run_plan import RunPlan
from runtime.coordinator.solo import SOLO
from runtime.journal.audit import audit
from runtime.journal.record import RunRecord
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, read_facts, record_of
from runtime.machines import nodes
from runtime.run.driver import RunDriver
from tests.runtime.pretend import NODES, carry_out, plan_of

PAIR = (NODES[0], NODES[2])


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


def jobs(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"id": name, "iterations": 3, **more} for name in names]


def compared(folder: Path, listed: list[dict[str, Any]], **more: Any) -> RunPlan:
    return plan_of(folder, listed, compare=True, **more)


def checked(plan: RunPlan) -> RunRecord:
    """The record of a run that lost and doubled nothing, and that the scheduler would repeat."""
    facts = read_facts(Path(plan.folder) / JOURNAL)
    assert audit(facts).problems == () and not replay_journal(facts).lines
    return record_of(facts)


def test_each_job_is_measured_alone_where_it_was_when_all_are_done(tmp_path: Path) -> None:
    plan = compared(tmp_path, jobs("a") + jobs("b", iterations=6), policy="solo")
    assert carry_out(plan) == "done"
    record = checked(plan)
    assert [(done.job_id, done.number) for done in record.solo] == [
        (name, first + k) for name, first in (("a", 3), ("b", 6)) for k in range(SOLO)
    ]
    assert max(done.end_s for done in record.iterations) <= min(done.start_s for done in record.solo)
    assert all(before.end_s <= after.start_s for before, after in pairwise(record.solo))
    for name, iterations in (("a", 3), ("b", 6)):
        assert [done.number for done in record.iterations_of(name)] == [*range(iterations)]
        mine = [part for part in record.phases if part.job_id == name]
        counted, alone = ({part.nodes for part in mine if part.profile == solo and part.iteration >= 0} for solo in (False, True))
        assert counted == alone and len(alone) == 2  # a node of each pool
        assert max(fact.iterations for fact in record.checkpointed if fact.job_id == name) == iterations


@pytest.mark.parametrize("there", [PAIR, (NODES[2],)])
def test_those_that_share_nodes_or_a_device_are_measured_there_one_after_the_other(tmp_path: Path, there: Any) -> None:
    plan = compared(tmp_path, jobs("a", "b", options={"stay_gb": 2.0}), nodes=there)
    assert carry_out(plan) == "done"
    assert [done.job_id for done in checked(plan).solo] == [name for name in "ab" for _ in range(SOLO)]


def test_a_job_that_dies_while_it_is_measured_is_done_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "dead_machines", lambda _: set())
    plan = compared(tmp_path, jobs("a", iterations=2) + jobs("b"), nodes=PAIR)
    assert carry_out(plan, loses="a") == "done"
    record = checked(plan)
    assert not record.failed and not record.restarted and {done.job_id for done in record.solo} == {"b"}


def test_the_processes_of_eight_jobs_are_kept_and_of_others_it_is_said(tmp_path: Path) -> None:
    plan = compared(tmp_path, jobs(*"abcdefghi", iterations=1), nodes=PAIR)
    lines: list[str] = []
    assert carry_out(plan, then={8: lambda driver: driver.run.spawn(listen(driver, lines))}) == "done"
    (left,) = {*"abcdefghi"} - {done.job_id for done in checked(plan).solo}
    assert any(f"{left}: is not measured alone: the processes of 8 jobs wait" in line for line in lines)


async def listen(driver: RunDriver, lines: list[str]) -> None:
    while True:
        lines[:] = driver.run.log.lines(0)
        await asyncio.sleep(0)


def test_a_run_that_is_stopped_meanwhile_has_nothing_to_go_on_with(tmp_path: Path) -> None:
    plan = compared(tmp_path, jobs("a", "b", options={"phase_s": 0.02}), nodes=PAIR)

    async def stop_then(driver: RunDriver) -> None:
        await driver.run.quiet.wait()
        driver.stop()

    assert carry_out(plan, then={6: lambda driver: driver.run.spawn(stop_then(driver))}) == "stopped"
    again = plan_of(tmp_path, jobs("a", "b"), nodes=PAIR, resume=True)
    assert carry_out(again) == "done"
    assert len(checked(plan).iterations) == 6
