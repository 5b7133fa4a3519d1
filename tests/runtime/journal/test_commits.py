"""Commits in a thread: whatever was answered is in the journal, at whichever write the service is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from threading import Event, get_ident
from typing import Any

import pytest

from rollmux_env.errors import InputError
from runtime.coordinator import run_loop
from runtime.journal.commits import Commits
from runtime.journal.facts import IterationSlice, JobSubmitted, LeaseEnded, OwnerAttached, PhaseGranted, PhaseSlice, SyncSlice
from runtime.journal.write import JOURNAL, Journal, Unwritable, read_facts
from tests.runtime.journal.test_write import FACTS, PHASE
from tests.runtime.pretend import ELSEWHERE, PAIRS, Dying, Killed, Served, attached_plan, job, lose

JOBS = ("a", "b", "c", "d")


class Slow:
    """A disk that writes when it is told to, in whichever thread; what it was given, by transaction."""

    def __init__(self, journal: Journal) -> None:
        self.written: list[int] = []
        self.threads: set[int] = set()
        self.goes_on = Event()
        self._store = journal.store
        journal.store = self.store  # type: ignore[method-assign]

    def store(self, rows: list[tuple[str, str]]) -> None:
        assert self.goes_on.wait(60)
        self._store(rows)
        self.written.append(len(rows))
        self.threads.add(get_ident())


def test_what_a_turn_writes_is_one_transaction_and_the_loop_does_not_wait_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal(tmp_path / JOURNAL)
        disk, ended = Slow(journal), list[BaseException | None]()
        commits = Commits(journal, ended.append)
        for fact in FACTS[:4]:
            journal.put(fact)
            commits.schedule()
        first = asyncio.ensure_future(commits.durable())
        for _ in range(100):
            await asyncio.sleep(0)  # it goes on, and nothing is durable
        assert not first.done() and read_facts(tmp_path / JOURNAL) == []
        journal.put(PHASE)
        journal.put(PHASE)
        second = asyncio.ensure_future(commits.durable())
        await asyncio.sleep(0)
        disk.goes_on.set()
        await first
        assert read_facts(tmp_path / JOURNAL)[:4] == FACTS[:4]
        await second
        assert disk.written == [4, 2] and ended == [None, None] and journal.last_number == 6
        assert get_ident() not in disk.threads
        journal.put(PHASE)
        await commits.close()
        journal.close()
        assert read_facts(tmp_path / JOURNAL) == [*FACTS[:4], PHASE, PHASE, PHASE]

    asyncio.run(main())


def test_what_finds_no_room_waits_in_its_order_until_it_is_tried_again_or_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        journal = Journal(tmp_path / JOURNAL)
        store, failures = journal.store, [Unwritable("full"), Unwritable("full")]
        ended = asyncio.Queue[BaseException | None]()

        def full(rows: list[tuple[str, str]]) -> None:
            if failures:
                raise failures.pop()
            store(rows)

        journal.store = full  # type: ignore[method-assign]
        commits = Commits(journal, ended.put_nowait)
        journal.put(FACTS[0])
        first = asyncio.ensure_future(commits.durable())
        assert str(await ended.get()) == "full" and not first.done()
        journal.put(FACTS[1])
        commits.schedule()
        assert str(await ended.get()) == "full" and not first.done()
        commits.give_up(Unwritable("the run stops"))
        with pytest.raises(InputError, match="the run stops"):
            await first
        commits.schedule()
        assert await ended.get() is None
        await commits.close()
        journal.close()
        assert read_facts(tmp_path / JOURNAL) == FACTS[:2]

    asyncio.run(main())


class Owners:
    """Owners that take turns, and what they were answered."""

    def __init__(self, run: Served, draw: Random) -> None:
        self.run, self.draw = run, draw
        self.answered: list[tuple[Any, ...]] = []

    async def live(self, name: str) -> None:
        """One of them; now and then it asks twice, and gives its lease back in between."""
        leases, number = self.run.leases, 0
        while number < 4:
            placed = await leases.attach(name, 5.0, ELSEWHERE, (1,))
            if "lease" not in placed:
                continue
            lease, number = placed["lease"], placed["iteration"]
            self.answered.append((OwnerAttached, name, lease))
            leaves = self.draw.random() < 0.3
            while number < 4:
                for phase in ("rollout", "training"):
                    while not (await leases.acquire(lease, phase, number, 5.0))["granted"]:
                        pass
                    self.answered.append((PhaseGranted, name, lease, phase, number))
                    for _ in range(self.draw.choice([1, 1, 2])):
                        await leases.release(lease, phase, number, {}, None)
                        self.answered.append((PhaseSlice, name, phase, number))
                if name == "b":
                    await leases.synced(lease, number, 0.0)
                    self.answered.append((SyncSlice, name, number))
                self.answered.append((IterationSlice, name, number))
                number += 1
                if leaves:
                    break
            await leases.end(lease, done=number == 4)
            self.answered.append((LeaseEnded, name, lease))


def known(fact: Any) -> tuple[Any, ...]:
    """A fact as `Owners.answered` has it."""
    match fact:
        case OwnerAttached() | LeaseEnded():
            return type(fact), fact.job_id, fact.lease
        case PhaseGranted():
            return PhaseGranted, fact.job_id, fact.lease, fact.phase, fact.iteration
        case PhaseSlice():
            return PhaseSlice, fact.job_id, fact.phase, fact.iteration
        case SyncSlice():
            return SyncSlice, fact.job_id, fact.iteration
        case IterationSlice():
            return IterationSlice, fact.job_id, fact.number
    return (type(fact),)


def killed(folder: Path, seed: int, dies_at: int, before: bool) -> tuple[list[tuple[Any, ...]], bool]:
    """Let owners live under a service that is killed at a write; what they were answered, and whether it was killed."""

    async def main() -> tuple[list[tuple[Any, ...]], bool]:
        plan = attached_plan(folder, *(job(name, iterations=4, sync_s=float(name == "b")) for name in JOBS), nodes=PAIRS)
        run = Served(plan)
        dying, owners = Dying(run.driver, dies_at, before), Owners(run, Random(seed))
        living = [asyncio.ensure_future(owners.live(name)) for name in JOBS]
        everyone = asyncio.gather(*living, return_exceptions=True)
        waiting: list[asyncio.Future[Any]] = [everyone, run.outcome]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        answered = [*owners.answered]
        for task in (*living, *run.driver.run.tasks, run.outcome):
            task.cancel()
        ends = await asyncio.gather(*living, run.outcome, return_exceptions=True)
        assert dying.dead or all(end is None for end in ends[:-1]), ends
        lose(run.driver.run.log.journal)
        return answered, dying.dead

    try:
        return asyncio.run(main())
    except Killed:
        raise AssertionError("a kill came to those who were not asked") from None


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_the_journal_has_all_that_was_answered_at_whichever_write_the_service_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, before: bool
) -> None:
    monkeypatch.setattr(run_loop, "_AGAIN_S", 0.01)
    kills = 0
    for dies_at in [*range(2, 20), *range(20, 200, 7)]:
        folder = tmp_path / f"{dies_at}"
        folder.mkdir()
        answered, dead = killed(folder, seed, dies_at, before)
        facts = {known(fact) for fact in read_facts(folder / JOURNAL)}
        assert (JobSubmitted,) in facts
        assert [answer for answer in answered if answer not in facts] == []
        kills += dead
        if not dead:
            assert len({answer for answer in answered if answer[0] is IterationSlice}) == 4 * len(JOBS)
            break
    assert kills > 18
