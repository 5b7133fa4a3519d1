"""The phase in which an owner loads its models and starts its engines: on all nodes of its job, before its iterations."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Begun, Reprofiled
from rollmux_env.errors import Conflict, InputError
from runtime.journal.facts import IterationSlice, PhaseGranted, PhaseSlice, SyncSlice
from runtime.journal.record import RunRecord
from runtime.journal.write import record_of
from runtime.report.jobs import switches
from tests.runtime.owners.test_leases import of
from tests.runtime.pretend import PAIR, Served, attached_plan, job, served


async def init(run: Served, lease: str, seconds: float = 0.0, device_gb: float | None = None) -> None:
    answer = await run.leases.acquire(lease, "init", None, 60.0)
    assert answer["granted"]
    run.pass_time(seconds)
    assert await run.leases.release(lease, "init", None, {}, device_gb) == {}


def test_it_has_all_nodes_of_the_job_before_phases_that_became_ready_later(tmp_path: Path) -> None:
    async def work(run: Served) -> list[Any]:
        a, b = await run.place("a"), await run.place("b")
        assert (await run.leases.acquire(a, "rollout", 0, 60.0))["granted"]
        second = asyncio.ensure_future(run.leases.acquire(b, "init", None, 60.0))
        await run.settle()
        assert not second.done()
        await run.leases.release(a, "rollout", 0, {}, None)
        assert (await second)["granted"] and (await second)["iteration"] == 0
        training = asyncio.ensure_future(run.leases.acquire(a, "training", 0, 60.0))
        await run.settle()
        assert not training.done()  # the training node is b's as long as it loads
        assert (await run.leases.acquire(b, "init", None, 60.0))["granted"]  # the same answer
        run.pass_time(8.0)
        await run.leases.release(b, "init", None, {}, None)
        assert await run.leases.release(b, "init", None, {}, None) == {}
        assert (await training)["granted"]
        await run.leases.release(a, "training", 0, {}, None)
        for number in (1, 2):
            await run.iterate(a, number)
        for number in range(3):
            await run.iterate(b, number)
        for lease in (a, b):
            await run.leases.end(lease, done=True)
        return await run.stop()

    facts = served(work, attached_plan(tmp_path, job("a"), job("b")))
    own = [part for part in of(facts, PhaseSlice, "b") if part.phase == "init"]
    assert [(part.nodes, part.iteration, part.cold) for part in own] == [(("rollout-0",), -1, True), (("training-0",), -1, True)]
    assert all(8.0 <= part.end_s - part.start_s < 20.0 for part in own)
    assert [done.number for done in of(facts, IterationSlice, "b")] == [0, 1, 2]
    assert not any(part.cold for part in of(facts, PhaseSlice, "b") if part.phase != "init")  # that was its cold start
    for node in ("rollout-0", "training-0"):
        parts = sorted((p.start_s, p.end_s) for p in facts if isinstance(p, PhaseSlice) and node in p.nodes)
        assert all(before[1] <= after[0] for before, after in pairwise(parts))
    reported = switches(record_of(facts), "b")
    assert reported["rollout"]["cold_s"] >= 8.0 and reported["training"]["cold_s"] >= 8.0


def test_it_is_planned_as_a_cold_start_and_the_job_begins_when_it_is_over(tmp_path: Path) -> None:
    async def work(run: Served) -> list[Any]:
        lease = await run.place("a")
        await init(run, lease, 8.0)
        state = run.driver.run.scheduler.state
        row = state.row("a")
        assert float(state.tables.jobs.admitted_s[row]) == pytest.approx(run.driver.run.log.now(), abs=1.0)
        parts = state.job("a").phases(0)
        assert 8.0 <= parts.rollout.switch.cold_s + parts.training.switch.cold_s < 20.0
        await run.iterate(lease, 0)
        return await run.stop()

    facts = served(work, attached_plan(tmp_path, job("a"), policy="rollmux,switches=true"))
    assert len(of(facts, Begun)) == 1 and len([fact for fact in facts if isinstance(fact, Reprofiled)]) == 1
    assert of(facts, IterationSlice)[0].end_s - of(facts, IterationSlice)[0].start_s < 5.0


def test_it_comes_once_after_each_attachment_and_before_all_else(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        await init(run, lease)
        with pytest.raises(Conflict, match="the init of iteration 0 is over"):
            await run.leases.acquire(lease, "init", None, 0.0)
        with pytest.raises(InputError, match="iteration: is missing"):
            await run.leases.acquire(lease, "rollout", None, 0.0)
        await run.iterate(lease, 0)
        await run.leases.end(lease)
        again = await run.leases.attach("a", 60.0, "", ())
        await init(run, again["lease"])
        await run.iterate(again["lease"], 1)
        await run.leases.end(again["lease"])
        third = (await run.leases.attach("a", 60.0, "", ()))["lease"]
        await run.phase(third, "rollout", 2)
        with pytest.raises(Conflict, match="cannot begin the init; the next one is the training of iteration 2"):
            await run.leases.acquire(third, "init", None, 0.0)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


@pytest.mark.parametrize("inits", [True, False])
def test_the_first_weights_may_go_in_a_sync_before_the_first_iteration(tmp_path: Path, inits: bool) -> None:
    async def work(run: Served) -> list[Any]:
        lease = await run.place("a")
        if inits:
            await init(run, lease)
        await run.phase(lease, "sync", -1)
        assert await run.leases.synced(lease, -1, 1.0) == {}  # as a client says it
        with pytest.raises(Conflict, match="is over"):
            await run.leases.acquire(lease, "sync", -1, 0.0)
        await run.phase(lease, "rollout", 0)
        with pytest.raises(Conflict):
            await run.leases.acquire(lease, "sync", -1, 0.0)
        await run.phase(lease, "training", 0)
        await run.phase(lease, "sync", 0)
        await run.leases.synced(lease, 0, 1.0)
        await run.iterate(lease, 1)
        await run.leases.end(lease, done=True)
        return await run.stop()

    facts = served(work, attached_plan(tmp_path, job("a", sync_s=1.0)))
    assert [sync.iteration for sync in of(facts, SyncSlice)] == [-1, 0]
    assert [done.number for done in of(facts, IterationSlice)] == [0, 1]


@pytest.mark.parametrize("held", [True, False])
def test_a_coordinator_that_is_replaced_knows_who_loads(tmp_path: Path, held: bool) -> None:
    async def work(run: Served) -> None:
        a, b = await run.place("a"), await run.place("b")
        assert (await run.leases.acquire(a, "init", None, 60.0))["granted"]
        if not held:
            await run.leases.release(a, "init", None, {}, None)
        other = await run.replaced()
        waits = asyncio.ensure_future(other.leases.acquire(b, "init", None, 60.0))
        await other.settle()
        assert waits.done() != held
        if held:
            assert (await other.leases.acquire(a, "init", None, 60.0))["granted"]
        assert await other.leases.release(a, "init", None, {}, None) == {}  # its answer may have been lost
        assert (await waits)["granted"]
        await other.leases.release(b, "init", None, {}, None)
        await other.iterate(a, 0)
        await other.iterate(b, 0)
        facts = await other.stop()
        record: RunRecord = record_of(facts)
        assert len([part for part in record.phases if part.phase == "init"]) == 4
        assert [grant.job_id for grant in record.granted if grant.phase == "init"] == ["a", "b"]

    served(work, attached_plan(tmp_path, job("a"), job("b")))


def test_what_a_lost_owner_loads_on_is_granted_to_nobody(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        a = await run.place("a", "elsewhere", (1,))
        assert (await run.leases.acquire(a, "init", None, 60.0))["granted"]
        run.pass_time(40.0)
        await run.settle()
        assert {*run.leases.ledger.suspect_nodes()} == {node.name for node in PAIR}
        for node in PAIR:
            run.leases.ledger.clear(node.name)
        await run.settle()
        facts = await run.stop()
        assert [(part.phase, part.ok) for part in of(facts, PhaseSlice)] == [("init", False)] * 2

    served(work, attached_plan(tmp_path, job("a")))


def test_a_job_that_is_measured_loads_under_a_permit_too(tmp_path: Path) -> None:
    stated = {"host_memory_gb": 1.0}

    async def work(run: Served) -> list[Any]:
        lease = await run.place("a")
        await init(run, lease, 6.0)
        for number in range(3):
            await run.iterate(lease, number)
        await run.leases.end(lease, done=True)
        return await run.stop()

    entry = job("a", profile={"iterations": 2}, iterations=4) | {"rollout": stated, "training": stated}
    facts = served(work, attached_plan(tmp_path, entry))
    record = record_of(facts)
    parts = record.profiled[0].job.phases(0)
    assert 6.0 <= parts.rollout.switch.cold_s + parts.training.switch.cold_s < 20.0
    assert next(grant.phase for grant in of(facts, PhaseGranted)) == "init"


def test_more_memory_than_a_job_may_keep_is_noticed_when_it_has_loaded(tmp_path: Path) -> None:
    kept = {"worst_case_s": 10.0, "host_memory_gb": 1.0}

    async def work(run: Served) -> None:
        lease = await run.place("a")
        await init(run, lease, device_gb=3.5)
        assert run.driver.run.handles["a"].resident_state.excess == ""
        await run.leases.end(lease)
        await init(run, (await run.leases.attach("a", 60.0, "", ()))["lease"], device_gb=4.5)
        assert "keeps 4.50 GB" in run.driver.run.handles["a"].resident_state.excess
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", rollout=kept | {"device_gb": 2.0}, training=kept | {"device_gb": 4.0})))


def test_a_job_whose_phases_share_devices_may_keep_what_it_states_of_both(tmp_path: Path) -> None:
    kept = {"worst_case_s": 10.0, "host_memory_gb": 1.0, "device_gb": 2.0}

    async def work(run: Served) -> None:
        lease = await run.place("a")
        await init(run, lease, device_gb=4.0)
        await run.leases.acquire(lease, "rollout", 0, 1.0)
        await run.leases.release(lease, "rollout", 0, {}, 4.0)
        assert run.driver.run.handles["a"].resident_state.excess == ""
        await run.leases.acquire(lease, "training", 0, 1.0)
        await run.leases.release(lease, "training", 0, {}, 4.5)
        assert "has stated 4.00 GB" in run.driver.run.handles["a"].resident_state.excess
        facts = await run.stop()
        assert [(part.phase, part.nodes) for part in of(facts, PhaseSlice)][:1] == [("init", ("training-0",))]

    served(work, attached_plan(tmp_path, job("a", rollout=kept, training=kept), nodes=PAIR[1:]))
