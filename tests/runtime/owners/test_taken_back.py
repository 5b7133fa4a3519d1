"""Owners that continue from a checkpoint older than the service's count: what was counted since is done again, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rollmux_protocol import OutOfOrder, Turn, Turns

from rollmux_env.errors import Conflict, NotFound, Unprocessable
from runtime.journal.facts import IterationSlice, JobRolledBack, LeaseEnded
from runtime.journal.record import RunRecord
from runtime.journal.write import record_of
from tests.runtime.pretend import HERE, Served, attached_plan, job, served


async def attach(run: Served, job_id: str, **more: Any) -> dict[str, Any]:
    return await run.leases.attach(job_id, 60.0, HERE, (1,), **more)


async def die(run: Served, lease: str) -> None:
    """The owner of a lease has gone."""
    await run.leases.end(lease)
    await run.settle()


def count(run: Served) -> int:
    return run.driver.run.handles["a"].iteration


def check_record(record: RunRecord, numbers: list[int], repeated: list[int]) -> None:
    assert [done.number for done in record.iterations] == numbers
    assert [done.number for done in record.repeated] == repeated


@pytest.mark.parametrize("kept", [False, True])
def test_iterations_are_taken_back_once_and_each_counts_once(tmp_path: Path, kept: bool) -> None:
    """Either when the owner attaches, or by one that has its lease and has loaded its models in it."""

    async def work(run: Served) -> list[Any]:
        lease = await run.place("a")
        for number in range(4):
            await run.iterate(lease, number, reward=1.0)
        await die(run, lease)
        assert count(run) == 4
        answer = await attach(run, "a", from_iteration=None if kept else 2)
        lease = answer["lease"]
        if kept:
            assert answer["iteration"] == 4
            await run.leases.acquire(lease, "init", None, 60.0)
            await run.leases.release(lease, "init", None)
            for _ in range(2):  # the first answer may have been lost
                again = await attach(run, "a", from_iteration=2, lease=lease)
                assert (again["lease"], again["iteration"]) == (lease, 2)
        assert count(run) == 2
        for number in range(2, 5):
            await run.iterate(lease, number, reward=2.0)
        await run.leases.end(lease, done=True)
        return await run.stop()

    facts = served(work, attached_plan(tmp_path, job("a", iterations=5)))
    assert [(fact.iteration) for fact in facts if isinstance(fact, JobRolledBack)] == [2]
    record = record_of(facts)
    check_record(record, [0, 1, 2, 3, 4], [2, 3])
    assert [done.metrics["reward"] for done in record.iterations] == [1.0, 1.0, 2.0, 2.0, 2.0]


def test_an_owner_that_has_more_than_is_counted_is_refused(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        with pytest.raises(Unprocessable, match="job a: from_iteration: 0 iterations of it are counted; its owner cannot continue"):
            await attach(run, "a", from_iteration=1)
        lease = await run.place("a")
        with pytest.raises(Unprocessable, match="cannot continue after 3"):
            await attach(run, "a", from_iteration=3, lease=lease)
        await run.leases.end(lease, done=True)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_an_owner_that_has_begun_cannot_go_back_in_its_lease(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease, other = await run.place("a"), await run.place("b")
        await run.iterate(lease, 0)
        with pytest.raises(Conflict, match="job a: its owner has begun iteration 0; attach again to go back"):
            await attach(run, "a", from_iteration=0, lease=lease)
        with pytest.raises(NotFound, match="this lease is another job's"):
            await attach(run, "a", from_iteration=0, lease=other)
        await run.leases.end(lease)
        with pytest.raises(Conflict, match="this lease is over"):
            await attach(run, "a", from_iteration=0, lease=lease)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a"), job("b")))


@pytest.mark.parametrize("placed", [False, True])
def test_a_service_that_is_killed_then_goes_on_where_the_owner_is(tmp_path: Path, placed: bool) -> None:
    async def work(run: Served) -> list[Any]:
        lease = await run.place("a")
        for number in range(3):
            await run.iterate(lease, number)
        await die(run, lease)
        lease = (await attach(run, "a", from_iteration=1))["lease"]
        await run.phase(lease, "rollout", 1)
        if not placed:
            await die(run, lease)
        other = await run.replaced()
        assert count(other) == 1
        if placed:
            await other.phase(lease, "training", 1)
        else:
            answer = await attach(other, "a")
            assert answer["iteration"] == 1
            lease = answer["lease"]
            await other.iterate(lease, 1)
        await other.iterate(lease, 2)
        await other.leases.end(lease, done=True)
        last = await other.replaced()
        assert count(last) == 3
        return await last.stop()

    record = record_of(served(work, attached_plan(tmp_path, job("a"))))
    check_record(record, [0, 1, 2], [1, 2])


def test_a_job_that_has_done_all_waits_for_its_owners_word(tmp_path: Path) -> None:
    """It has ended with a status other than 0, or its lease is lost: it may go back, or say that it is done."""

    async def work(run: Served) -> list[Any]:
        lease = await run.place("a")
        for number in range(2):
            await run.iterate(lease, number)
        await die(run, lease)
        handle = run.driver.run.handles["a"]
        assert not handle.life.is_gone and not handle.place.nodes  # its place is for others meanwhile
        other = await run.replaced()
        answer = await attach(other, "a")
        await other.leases.acquire(answer["lease"], "init", None, 60.0)  # it loads its checkpoint, and sees how old that is
        await other.leases.release(answer["lease"], "init", None)
        answer = await attach(other, "a", from_iteration=1, lease=answer["lease"])
        assert answer["iteration"] == 1
        await other.iterate(answer["lease"], 1)
        await other.leases.end(answer["lease"])
        await other.settle()
        answer = await attach(other, "a")
        assert answer["iteration"] == 2
        await other.leases.end(answer["lease"], done=True)
        return await other.stop()

    facts = served(work, attached_plan(tmp_path, job("a", iterations=2)))
    assert [fact.number for fact in facts if isinstance(fact, IterationSlice)] == [0, 1, 1]
    assert [fact.done for fact in facts if isinstance(fact, LeaseEnded)] == [False, False, True]


def test_a_job_goes_back_while_its_first_iterations_are_measured(tmp_path: Path) -> None:
    async def work(run: Served) -> list[Any]:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        await die(run, lease)
        lease = (await attach(run, "a", from_iteration=0))["lease"]
        for number in range(3):
            await run.iterate(lease, number)
        await run.leases.end(lease, done=True)
        return await run.stop()

    stated = {"host_memory_gb": 1.0}
    plan = attached_plan(tmp_path, job("a", profile={"iterations": 2}, rollout=stated, training=stated))
    check_record(record_of(served(work, plan)), [0, 1, 2], [0])


def test_what_came_before_the_first_iteration_stays(tmp_path: Path) -> None:
    """An owner that has loaded its models, and its engines the first weights, does neither again."""
    turns = Turns(9, 0, 6)
    first = (Turn("init", 6), Turn("sync", 5))
    for turn in first:
        turns.ask(turn)
        turns.grant(turn.phase)
        turns.release(turn.phase)
    assert turns.is_fresh
    turns.go_back(4)
    assert {turns.state(turn) for turn in (Turn("init", 4), Turn("sync", 3))} == {"seeded"}
    assert {turns.done, turns.begins, turns.rollouts, turns.trainings, turns.syncs} == {4}
    for phase, number in (("init", 4), ("sync", 3)):
        with pytest.raises(OutOfOrder, match="is over"):
            turns.ask(Turn(phase, number))  # type: ignore[arg-type]
