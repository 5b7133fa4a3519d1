"""A service that an earlier version began goes on under this one: its jobs, its queue, and what an operator can ask for since."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollmux_env.scheduler.facts import Drained, Undrained
from runtime.journal.audit import audit
from runtime.journal.replay import replay_journal
from runtime.journal.rollover import continue_in_next_part
from runtime.journal.write import JOURNAL, Journal, read_facts, record_of
from runtime.run.driver import RunDriver
from runtime.service.report import past_report
from runtime.service.service import RunService
from tests.fixtures import copied
from tests.runtime.pretend import Pretended, continued_plan

TOTALS = {"a": 60, "b": 60, "short": 2, "queued": 5}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As a service left it that was killed on Ray: two jobs ran in a group, the others waited; b writes every second checkpoint."""
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    return copied("killed-service", tmp_path)


def test_its_status_can_be_read(folder: Path) -> None:
    jobs = {job["id"]: (job["state"], job["iteration"]) for job in past_report(folder)["jobs"]}
    assert jobs == {"a": ("stopped", 8), "b": ("stopped", 7), "short": ("waiting", 0), "queued": ("waiting", 0)}


@pytest.mark.parametrize("rolls_over", [False, True])
def test_drains_begin_by_the_seconds_of_checkpoints_that_it_has_written(rolls_over: bool, folder: Path) -> None:
    last = {fact.job_id: fact.seconds for fact in record_of(read_facts(folder / JOURNAL)).checkpointed}
    if rolls_over:
        journal = Journal(folder / JOURNAL, resume=True)
        assert continue_in_next_part(journal) is None
        journal.close()

    async def serve() -> None:
        service, processes = RunService(continued_plan(folder)), Pretended()
        await service.serve(processes)
        handles = service.run.handles
        assert {name: handles[name].checkpoints.seconds for name in last} == last
        assert all(handles[name].successor(0, 1, "").checkpoints.seconds for name in last)
        processes.driver = service.driver
        await service.stop()
        await service.ended()

    asyncio.run(serve())


def test_its_jobs_go_on_after_their_checkpoints_and_its_nodes_can_be_drained(folder: Path) -> None:
    before = record_of(read_facts(folder / JOURNAL))

    def operate(driver: RunDriver) -> None:
        changes = driver.lifecycle.node_changes
        assert sorted(changes.drain("rollout-0")["queues"]) == ["a", "b"]
        assert driver.run.scheduler.state.waiting == ["short", "queued"]
        changes.undrain("rollout-0")

    async def serve() -> None:
        service, processes = RunService(continued_plan(folder)), Pretended(then={3: operate})
        await service.serve(processes)
        assert service.driver is not None
        processes.driver = service.driver
        while not all(handle.life.is_gone for handle in service.driver.run.handles.values()):
            await asyncio.sleep(0.01)
        await service.stop()
        await service.ended()

    asyncio.run(serve())
    facts = read_facts(folder / JOURNAL)
    record = record_of(facts)
    assert audit(facts).problems == () and replay_journal(facts).lines == ()
    assert [(done.job_id, done.number) for done in record.repeated] == [("b", 6)]
    assert all(done in record.iterations for done in before.iterations if (done.job_id, done.number) != ("b", 6))
    for name, total in TOTALS.items():
        assert [done.metrics["count"] for done in record.iterations if done.job_id == name] == [*range(1, total + 1)]
    assert {fact.job_id: fact.iteration for fact in record.restarted} == {"a": 8, "b": 6, "short": 0, "queued": 0}
    assert (
        [fact.names for _, fact in record.reports_of(Drained)]
        == [fact.names for _, fact in record.reports_of(Undrained)]
        == [{"rollout-0"}]
    )
