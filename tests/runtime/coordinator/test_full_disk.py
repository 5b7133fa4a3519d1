"""A disk without room: what cannot be written waits, and so does whoever acts on it; processes are pretended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from rollmux_env.errors import InputError
from rollmux_env.scheduler.commands import Command
from runtime.coordinator import run_loop
from runtime.coordinator.job_handle import JobHandle
from runtime.journal import write
from runtime.journal.audit import audit
from runtime.journal.facts import Fact, IterationSlice
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, Journal, Unwritable, read_facts, record_of
from runtime.machines import forecast
from runtime.owners.ray import calls
from runtime.run.driver import RunDriver
from runtime.service.service import RunService
from tests.runtime.pretend import NODES, Pretended, plan_of

PAIR = (NODES[0], NODES[2])
JOBS: list[dict[str, Any]] = [{"id": name, "iterations": 12} for name in "ab"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(run_loop, "_AGAIN_S", 0.01)
    monkeypatch.setattr(forecast, "_LOOKS_S", 0.01)
    monkeypatch.setattr(forecast, "_AGAIN_S", 0.0)
    yield


class Watched:
    """Sees what a run does."""

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def on_entries(self, entries: tuple[Fact, ...]) -> None: ...

    def on_command(self, command: Command) -> None:
        self.commands.append(command)


class FullDisk(Pretended):
    """After some iterations there is no room for the journal any more, until a test makes some."""

    def __init__(self, full_after: int = 4) -> None:
        super().__init__()
        self.full_after = full_after

    def limit(self, pages: int | None) -> None:
        """Limit the pages of the database, to those it has now if `pages` is None, in the thread that writes it.

        While another thread uses its connection, sqlite3 may take a statement that has failed for one that has not.
        """
        assert self.driver is not None
        log = self.driver.run.log
        assert log._commits is not None

        def set_limit() -> None:
            database = log.journal._connection()
            most = database.execute("PRAGMA page_count").fetchone()[0] if pages is None else pages
            database.execute(f"PRAGMA max_page_count={most}")

        log._commits.run_after_commit(set_limit)

    def _iterated(self) -> None:
        self.full_after -= 1
        if self.full_after == 0:
            self.limit(None)


def check_done(folder: Path) -> list[Fact]:
    facts = read_facts(folder / JOURNAL)
    record = record_of(facts)
    assert audit(facts).problems == () and replay_journal(facts).lines == ()
    for name in "ab":
        counts = [done.metrics["count"] for done in record.iterations if done.job_id == name]
        assert counts == [*range(1, 13)]
    assert not record.restarted and not record.failed and not record.repeated
    assert record.ended is not None and record.ended.outcome == "done"
    return facts


async def come(driver: RunDriver, holds: Callable[[], bool]) -> None:
    while not holds():
        assert not driver.run.over.done(), driver.run.over
        await asyncio.sleep(0.01)


def test_while_the_journal_cannot_be_written_nothing_is_granted_and_then_all_goes_on(tmp_path: Path) -> None:
    processes, watched = FullDisk(), Watched()

    async def main() -> tuple[str, list[str]]:
        driver = processes.driver = RunDriver(plan_of(tmp_path, JOBS), processes, observer=watched)
        outcome = asyncio.ensure_future(driver.carry_out())
        await come(driver, lambda: driver.run.log.problem is not None)
        known, commands = read_facts(tmp_path / JOURNAL), len(watched.commands)
        for _ in range(50):  # jobs go on as far as they can
            await asyncio.sleep(0.01)
        assert read_facts(tmp_path / JOURNAL) == known and len(watched.commands) == commands and not outcome.done()
        for handle in driver.run.handles.values():
            handle.permits.set_busy_since(-1e9)  # as if this had taken long
        processes.limit(1 << 20)
        return await outcome, driver.run.log.lines(0)

    outcome, lines = asyncio.run(main())
    assert outcome == "done"
    facts = check_done(tmp_path)
    assert any(isinstance(fact, IterationSlice) and fact.interrupted for fact in facts)
    said = [line for line in lines if "journal" in line]
    assert len(said) == 2, said
    assert "cannot be written: database or disk is full: nothing is granted" in said[0] and "written again" in said[1]


def test_a_run_whose_journal_cannot_be_written_can_be_stopped(tmp_path: Path) -> None:
    processes = FullDisk()

    async def main() -> tuple[str, list[str]]:
        driver = processes.driver = RunDriver(plan_of(tmp_path, JOBS), processes)
        outcome = asyncio.ensure_future(driver.carry_out())
        await come(driver, lambda: driver.run.log.problem is not None)
        driver.stop()
        return await outcome, driver.run.log.lines(0)

    outcome, lines = asyncio.run(main())
    assert outcome == "stopped" and "work that is not in the journal is repeated" in lines[-1]
    record = record_of(read_facts(tmp_path / JOURNAL))
    assert record.ended is None

    async def again() -> str:
        plan = plan_of(tmp_path, JOBS, resume=True)
        pretended = Pretended()
        driver = pretended.driver = RunDriver(plan, pretended)
        return await driver.carry_out()

    assert asyncio.run(again()) == "done"
    record = record_of(read_facts(tmp_path / JOURNAL))
    for name in "ab":
        assert [done.metrics["count"] for done in record.iterations if done.job_id == name] == [*range(1, 13)]


def test_a_run_whose_next_part_may_not_last_ends_with_one_line(tmp_path: Path) -> None:
    def sync(path: Path) -> None:
        if path == tmp_path:
            raise OSError(28, "No space left on device")

    processes = Pretended()

    async def main() -> None:
        plan = plan_of(tmp_path, [{"id": "a", "iterations": 10000}])  # not done before the part is begun
        driver = processes.driver = RunDriver(plan, processes)
        outcome = asyncio.ensure_future(driver.carry_out())
        await come(driver, lambda: driver.run.log.journal.length > 20)
        with patch.object(write, "sync", sync):
            driver.run.spawn(driver.run.log.begin_next_part())  # type: ignore[arg-type]
            # A commit may have failed before the task that began the part.
            with pytest.raises(InputError, match=r"^.+journal-2\.sqlite: may not last: .Errno 28. No space left on device$"):
                await outcome

    asyncio.run(main())
    Journal(tmp_path / JOURNAL, resume=True).close()


def test_a_service_whose_journal_cannot_be_written_says_so_and_takes_nothing(tmp_path: Path) -> None:
    processes = FullDisk()

    async def main() -> None:
        plan = plan_of(tmp_path, JOBS)
        service = RunService(plan)
        await service.serve(processes)
        assert service.driver is not None
        driver = processes.driver = service.driver
        await come(driver, lambda: driver.run.log.problem is not None)
        report = await service.report()
        assert report["paused"].endswith("cannot be written: database or disk is full")
        with pytest.raises(InputError, match="database or disk is full"):
            await service.submit([plan.specs[0].model_copy(update={"id": "late"})])
        with pytest.raises(InputError, match="database or disk is full"):
            await service.cancel("a")
        drains = driver.lifecycle.planned_drains
        for change in (drains.drain, drains.undrain):
            with pytest.raises(Unwritable, match="database or disk is full"):
                change("rollout-1")
        processes.limit(1 << 20)
        await come(driver, lambda: driver.run.log.problem is None)
        assert (await service.report())["paused"] is None
        await service.submit([plan.specs[0].model_copy(update={"id": "late"})])
        await come(driver, lambda: all(handle.life.is_gone for handle in driver.run.handles.values()))
        await service.stop()
        await service.ended()

    asyncio.run(main())
    record = record_of(read_facts(tmp_path / JOURNAL))
    assert not record.failed
    for name in ("a", "b", "late"):
        assert [done.number for done in record.iterations if done.job_id == name] == [*range(12)]


class NoRoom(Pretended):
    """A job's third checkpoint finds no room until there is some."""

    has_room = False

    async def _keep(self, handle: JobHandle, folder: Path, state: int) -> None:
        assert self.driver is not None
        while handle.id == "a" and state == 3 and not self.has_room:
            await self.driver.calls.full(handle, "No space left on device")
        await super()._keep(handle, folder, state)


@pytest.mark.parametrize("stops", [False, True])
def test_nobody_waits_for_a_job_whose_checkpoint_finds_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    processes = NoRoom()

    async def main() -> str:
        driver = processes.driver = RunDriver(plan_of(tmp_path, JOBS, PAIR), processes)

        def free(folder: Path) -> int:  # the other job is done by then
            processes.has_room = driver.run.handles["b"].life.is_gone
            if processes.has_room and stops:
                driver.stop()
            return int(processes.has_room and not stops)

        for module in (forecast, calls):
            monkeypatch.setattr(module, "free_bytes", free)
        return await driver.carry_out()

    assert asyncio.run(main()) == ("stopped" if stops else "done")
    facts = read_facts(tmp_path / JOURNAL)
    record = record_of(facts)
    assert audit(facts).problems == () and replay_journal(facts).lines == ()
    (absent,) = record.checkpoint_delays
    assert (absent.job_id, absent.why) == ("a", "No space left on device")
    done = {name: [one.number for one in record.iterations if one.job_id == name] for name in "ab"}
    assert done == {"a": [0, 1, 2] if stops else [*range(12)], "b": [*range(12)]}
    assert {one.iterations for one in record.checkpointed if one.job_id == "a"} == {*range(1, 3 if stops else 13)}


def test_room_is_seen_also_where_others_have_taken_more_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([1, 1, 3])
    monkeypatch.setattr(forecast, "free_bytes", lambda _: next(free))
    asyncio.run(forecast.wait_for_room(tmp_path, 5, lambda: False))
    assert next(free, None) is None


def test_room_that_is_made_when_its_lack_is_said_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there before anybody looked, so the job waited for a minute."""
    processes = NoRoom()
    monkeypatch.setattr(forecast, "_LONGEST_S", inf)

    async def main() -> str:
        driver = processes.driver = RunDriver(plan_of(tmp_path, JOBS, PAIR), processes)
        say = driver.run.log.say

        def hear(line: str) -> None:
            processes.has_room = processes.has_room or "cannot be written" in line
            say(line)

        monkeypatch.setattr(driver.run.log, "say", hear)
        for module in (forecast, calls):
            monkeypatch.setattr(module, "free_bytes", lambda _: int(processes.has_room))
        return await asyncio.wait_for(driver.carry_out(), 20)

    assert asyncio.run(main()) == "done"
    assert len(record_of(read_facts(tmp_path / JOURNAL)).checkpoint_delays) == 1
