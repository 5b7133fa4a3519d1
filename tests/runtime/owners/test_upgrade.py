"""A service of attached jobs that an earlier version began goes on under this one, with the leases and what they hold."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollmux_env.errors import Conflict
from rollmux_env.scheduler.view import HoldName
from runtime.journal.write import JOURNAL, read_facts, record_of
from tests.fixtures import copied
from tests.runtime.pretend import Served, continued_plan, served

HELD: dict[str, HoldName] = {"ahead": "rollout", "measured": "rollout", "second": "training"}  # when it was killed
DONE = {"ahead": 13, "first": 14, "measured": 14, "second": 11}


def test_owners_end_what_they_held_and_their_jobs(tmp_path: Path) -> None:
    folder = copied("attached-service", tmp_path)
    record = record_of(read_facts(folder / JOURNAL))
    leases = {fact.job_id: fact.lease for fact in record.attached}
    specs = {fact.spec.id: fact.spec for fact in record.submitted}

    async def own(run: Served, name: str, lease: str, done: int, held: HoldName | None) -> None:
        """Go on after the phase that is held, to the end."""
        syncs = specs[name].reports_sync
        for number in range(done, specs[name].iterations):
            for phase in ("rollout", "training"):
                if held is None:
                    while not (await run.leases.acquire(lease, phase, number, 60.0))["granted"]:
                        pass
                if held in (None, phase):
                    await run.leases.release(lease, phase, number, {}, None)
                    held = None
            if syncs:
                await run.leases.synced(lease, number, 0.1)
        await run.leases.end(lease, done=True)

    async def wait_and_own(run: Served, name: str) -> None:
        while "lease" not in (answer := await run.leases.attach(name, 60.0, "gpu-1", (1,))):
            pass
        await own(run, name, answer["lease"], 0, None)

    async def work(run: Served) -> None:
        with pytest.raises(Conflict, match="lives"):
            await run.leases.attach("first", 0.0, "gpu-1", (1,))
        owners = [own(run, name, leases[name], done, HELD.get(name)) for name, done in DONE.items()]
        await asyncio.gather(*owners, *(wait_and_own(run, name) for name in ("waits", "behind", "last")))
        await run.stop(resumed=True)  # before, decisions stopped while nodes were lent

    served(work, continued_plan(folder))
    after = record_of(read_facts(folder / JOURNAL))
    totals = {name: spec.iterations for name, spec in specs.items()} | {"gone": 4}
    for name, total in totals.items():
        assert [done.number for done in after.iterations if done.job_id == name] == [*range(total)]
    assert {fact.job_id for fact in after.attached[len(record.attached) :]} == {"waits", "behind", "last"}


def test_owners_go_back_in_a_service_of_before_they_could(tmp_path: Path) -> None:
    folder = copied("counted-service", tmp_path)
    begun = next(fact.lease for fact in record_of(read_facts(folder / JOURNAL)).attached if fact.job_id == "begun")

    async def work(run: Served) -> None:
        await run.settle()
        await run.leases.release(begun, "training", 2)
        await run.iterate(begun, 3)
        await run.leases.end(begun, done=True)
        ahead = (await run.leases.attach("ahead", 60.0, "another-host", (5,), from_iteration=3))["lease"]
        for number in (3, 4):
            await run.iterate(ahead, number)
        await run.leases.end(ahead, done=True)
        with pytest.raises(Conflict, match="has ended"):
            await run.leases.attach("over", 0.0, "another-host", (6,))
        await run.stop()

    served(work, continued_plan(folder))
    after = record_of(read_facts(folder / JOURNAL))
    for name, total in (("begun", 4), ("ahead", 5), ("over", 2)):
        assert [done.number for done in after.iterations_of(name)] == [*range(total)]
    assert [(done.job_id, done.number) for done in after.repeated] == [("ahead", 3)]
