"""Attached jobs that do not state their worst case: their first iterations are measured, and count."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rollmux_processes import pid_space

from rollmux_env.cluster.events import Arrived
from rollmux_env.errors import Conflict
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_plan import Timeouts
from runtime.journal.audit import audit
from runtime.journal.facts import IterationSlice, JobFailed, JobProfiled
from runtime.owners.http.patrol import check_leases
from runtime.service.service import RunService
from tests.runtime.pretend import (
    ELSEWHERE,
    HERE,
    PAIR,
    PAIRS,
    Served,
    attached_plan,
    job,
    just_before_attaching,
    owner_pid,
    served,
    specs_of,
)


def unknown(job_id: str, **more: Any) -> dict[str, Any]:
    return job(job_id, rollout={}, training={}, profile={"iterations": 2}, iterations=4, slo=1e9, **more)


@pytest.mark.parametrize("nodes", [PAIRS, PAIR], ids=["on free nodes", "as a guest"])
def test_a_job_is_planned_with_the_longest_seconds_of_its_first_iterations(nodes: Any, tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        host = await run.place("host")
        await run.iterate(host, 0)
        lease = await run.place("a")
        for number in range(2):
            waits = asyncio.ensure_future(run.iterate(lease, number))
            if nodes is PAIR:
                await run.settle()
            await waits
        for number in range(2, 4):
            await run.iterate(lease, number)
        await run.leases.end(lease, done=True)
        await run.iterate(host, 1)
        facts = await run.stop(permits=False)
        assert [done.number for done in facts if isinstance(done, IterationSlice) and done.job_id == "a"] == [0, 1, 2, 3]
        (profiled,) = [fact.job for fact in facts if isinstance(fact, JobProfiled) and fact.job.id == "a"]
        assert 0 < profiled.rollout.worst_case_s < 5 and 0 < profiled.training.worst_case_s < 5
        assert [event.job.iterations for event in facts if isinstance(event, Arrived) and event.job.id == "a"] == [2]

    served(work, attached_plan(tmp_path, job("host"), unknown("a"), nodes=nodes))


def test_a_job_that_is_too_large_as_measured_is_refused_after_it_is_known(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        run.driver.run.capacity.too_large = lambda job: "is too large"  # type: ignore[method-assign]
        await run.iterate(lease, 0)
        await run.iterate(lease, 1)
        facts = await run.stop(permits=False)
        assert [fact.problem for fact in facts if isinstance(fact, JobFailed)] == ["is too large"]
        assert audit(facts).problems == ()

    served(work, attached_plan(tmp_path, unknown("a")))


def test_an_owner_that_only_sends_heartbeats_is_not_measured_for_ever(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        handle = run.driver.run.handles["a"]
        while not handle.life.is_gone:
            with suppress(Conflict):
                await run.leases.heartbeat(lease, ())
            await asyncio.sleep(0.05)
        (failure,) = [fact for fact in await run.stop() if isinstance(fact, JobFailed)]
        assert (failure.where, failure.problem) == ("profile", "an iteration in which it is measured has not ended after 4 s")

    plan = attached_plan(tmp_path, unknown("a"))
    served(work, replace(plan, timeouts=Timeouts(profile_s=4.0)))


def test_a_job_that_was_measured_for_too_long_has_failed_also_if_its_service_is_replaced_before_its_owner_ends(
    tmp_path: Path,
) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        while not (await run.leases.heartbeat(lease))["stop"]:
            await asyncio.sleep(0.05)
        await run.settle()
        run = await run.replaced()
        assert (await run.leases.heartbeat(lease))["stop"]
        await run.leases.end(lease)
        await run.settle()
        with pytest.raises(Conflict, match="job a: has ended"):
            await run.leases.attach("a", 0.0, HERE, ())
        facts = await run.stop(permits=False)
        assert [(fact.where, fact.problem) for fact in facts if isinstance(fact, JobFailed)] == [
            ("profile", "an iteration in which it is measured has not ended after 4 s")
        ]

    served(work, replace(attached_plan(tmp_path, unknown("a")), timeouts=Timeouts(profile_s=4.0)))


def test_of_two_owners_that_come_at_once_one_gets_the_place_that_is_found_then(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        await run.settle()
        came = (run.leases.attach("a", 0.0, HERE, ()) for _ in range(2))
        one, other = sorted(await asyncio.gather(*came, return_exceptions=True), key=lambda answer: isinstance(answer, Exception))
        assert isinstance(one, dict) and one["lease"], one
        assert str(other) == "job a: another lease of it lives"
        await run.leases.end(one["lease"])
        await run.stop()

    served(work, attached_plan(tmp_path, unknown("a")))


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_sync_after_the_lent_nodes_have_gone_ends_neither_the_service_nor_its_request(is_replaced: bool, tmp_path: Path) -> None:
    """The last measured iteration is counted, and the full cluster has no place for the job, or the service is replaced."""

    async def work(run: Served) -> None:
        host = await run.place("host")
        await run.iterate(host, 0)
        lease = await run.place("a")
        number = 0 if is_replaced else 1
        for k in range(number):
            await run.iterate(lease, k)
        for phase in ("rollout", "training"):
            await run.phase(lease, phase, number)
        if is_replaced:
            run = await run.replaced()
        assert not run.driver.run.has_seat(run.driver.run.handles["a"])
        for _ in range(2):  # the first answer may have been lost
            assert await run.leases.synced(lease, number, 0.1) == {}
        await run.iterate(host, 1)
        await run.leases.end(host, done=True)
        if (await run.leases.acquire(lease, "rollout", number + 1, 60.0)).get("move"):
            lease = await run.place("a")
        else:
            await run.leases.release(lease, "rollout", number + 1)
        facts = await run.stop(permits=False)
        assert audit(facts).problems == ()

    large: Any = {"host_memory_gb": 7.5}
    served(work, attached_plan(tmp_path, job("host"), unknown("a") | {"rollout": large, "training": large}, nodes=PAIR))


def test_an_owner_whose_lent_nodes_have_gone_with_the_coordinator_may_say_that_its_job_is_done(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        other = await run.replaced()
        assert await other.leases.heartbeat(lease) == {"stop": False}
        for _ in range(2):  # the first answer may have been lost
            assert await other.leases.end(lease, done=True) == {}
        await other.settle()
        with pytest.raises(Conflict, match="job a: has ended"):
            await other.leases.attach("a", 0.0, HERE, ())
        await other.stop()

    served(work, attached_plan(tmp_path, unknown("a")))


@pytest.mark.parametrize("is_answered", [True, False])
def test_an_owner_whose_lent_nodes_have_gone_with_the_coordinator_attaches_again(is_answered: bool, tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        other = await run.replaced()
        other = await other.replaced()
        assert await other.leases.acquire(lease, "rollout", 1, 0.0) == {"granted": False, "move": True}
        if is_answered:
            await other.leases.end(lease)
        again = await other.place("a")
        with pytest.raises(Conflict, match="this lease is over"):
            await other.leases.acquire(lease, "rollout", 1, 0.0)
        for number in (1, 2, 3):
            await other.iterate(again, number)
        await other.leases.end(again, done=True)
        facts = await other.stop()
        assert [fact.number for fact in facts if isinstance(fact, IterationSlice)] == [0, 1, 2, 3]

    served(work, attached_plan(tmp_path, unknown("a")))


def test_what_a_guest_holds_when_the_coordinator_is_replaced_is_granted_to_nobody(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        host = await run.place("host")
        await run.iterate(host, 0)
        lease = await run.place("a")
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        other = await run.replaced()
        assert other.leases.ledger.suspect_nodes() == {"rollout-0": "a", "training-0": "a"}
        assert not (await other.leases.acquire(host, "rollout", 1, 0.0))["granted"]
        for ask in (other.leases.acquire(lease, "training", 0, 0.0), other.leases.release(lease, "rollout", 0, {}, None)):
            with pytest.raises(Conflict, match="this lease is over: its place has gone"):
                await ask
        await other.phase(host, "rollout", 1)
        await other.stop(permits=False)

    served(work, attached_plan(tmp_path, job("host"), unknown("a")))


@pytest.mark.parametrize("shares", [False, True])
def test_a_guest_is_measured_on_nodes_of_its_owners_host(shares: bool, tmp_path: Path) -> None:
    """Also where others have them: it shares those, and not free ones of another host."""
    hosts = tuple(replace(node, host=ELSEWHERE) if node.name.endswith("-1") else node for node in PAIRS)

    async def work(run: Served) -> None:
        if shares:
            host = await run.place("host", ELSEWHERE)
        lease = await run.place("a", ELSEWHERE)
        assert set(run.leases.ledger.lease(lease).owner.nodes) == {"rollout-1", "training-1"}
        for number in range(4):
            await run.iterate(lease, number)
        await run.leases.end(lease, done=True)
        if shares:
            await run.iterate(host, 0)
        facts = await run.stop(permits=False)
        assert len(facts) < 100  # it was not given other nodes again and again

    served(work, attached_plan(tmp_path, *([job("host")] if shares else []), unknown("a"), nodes=hosts))


def test_who_waited_for_the_nodes_of_a_guest_has_them_when_the_service_goes_on_without_it(tmp_path: Path) -> None:
    plan = attached_plan(tmp_path, unknown("guest"), nodes=PAIR)

    async def main() -> None:
        service = RunService(plan)
        await service.serve(None)
        assert service.driver is not None
        leases = service.driver.leases
        guest = (await leases.attach("guest", 60.0, HERE, (owner_pid(),), pid_space()))["lease"]
        assert (await leases.acquire(guest, "rollout", 0, 60.0))["granted"]
        await service.submit(specs_of(job("waits")))
        while (waits := await leases.attach("waits", 0.0, ELSEWHERE, ()))["position"] is None:
            await asyncio.sleep(0)
        assert (waits["placed"], waits["position"]) == (False, 1)
        await leases.release(guest, "rollout", 0)
        await service.stop()
        await service.ended()
        run = Served(replace(plan, specs=(*plan.specs, *specs_of(job("waits"))), resume=True))
        await run.settle()
        await run.iterate(await run.place("waits"), 0)
        await run.stop(permits=False)

    asyncio.run(main())


@pytest.mark.parametrize("later", [False, True])
def test_nodes_to_be_measured_on_that_nobody_claims_are_given_up(later: bool, tmp_path: Path) -> None:
    """Their owner comes just then, or later."""

    async def work(run: Served) -> None:
        first = await run.place("first")
        assert (await run.leases.attach("a", 0.0, HERE, ()))["placed"] is False
        await run.leases.end(first, done=True)
        await run.settle()
        assert run.driver.run.handles["a"].place.names
        if later:
            run.pass_time(301.0)
            await run.settle()
            assert not run.driver.run.handles["a"].place.names
        with just_before_attaching(lambda: run.pass_time(301.0)):
            lease = await run.place("a")
        for number in range(4):
            await run.iterate(lease, number)
        await run.leases.end(lease, done=True)
        await run.stop()

    served(work, attached_plan(tmp_path, unknown("first"), unknown("a"), nodes=PAIR))


def test_a_guest_whose_lease_is_lost_is_measured_anew_when_its_owner_comes_back(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        host = await run.place("host")
        await run.iterate(host, 0)
        lease = await run.place("a", ELSEWHERE)
        await run.phase(lease, "rollout", 0)
        assert (await run.leases.acquire(lease, "training", 0, 60.0))["granted"]
        run.driver.run.log.zero_s -= 34.0
        run.leases.touch(host)
        check_leases(run.leases.ledger)
        assert run.leases.ledger.suspect_nodes() == {"training-0": "a"}
        await run.phase(host, "rollout", 1)
        again = await run.place("a", ELSEWHERE)
        for number in range(4):
            await run.iterate(again, number)
        await run.phase(host, "training", 1)
        await run.stop()

    served(work, attached_plan(tmp_path, job("host"), unknown("a"), nodes=PAIR))


async def measured_beside_host(run: Served) -> tuple[str, str]:
    """The leases of `host`, which has iterated, and of `a`, whose two measured iterations are over."""
    host = await run.place("host")
    await run.iterate(host, 0)
    lease = await run.place("a")
    for number in range(2):
        await run.iterate(lease, number)
    return host, lease


def test_a_permit_that_waits_for_a_place_is_told_of_it_and_does_not_look_again_and_again(tmp_path: Path) -> None:
    looks: list[str] = []

    async def work(run: Served) -> None:
        host, lease = await measured_beside_host(run)
        present = run.driver.run.has_seat

        def counted(handle: JobHandle) -> bool:
            looks.append(handle.id)
            return present(handle)

        run.driver.run.has_seat = counted  # type: ignore[method-assign]
        waits = asyncio.ensure_future(run.leases.acquire(lease, "rollout", 2, 30.0))
        await asyncio.sleep(0.2)
        assert looks.count("a") == 1 and not waits.done()  # it is known now, and too large to share the host's nodes
        await run.leases.end(host, done=True)
        assert (await waits)["granted"]
        await run.leases.release(lease, "rollout", 2)
        await run.stop(permits=False)

    large: Any = {"host_memory_gb": 7.5}
    served(work, attached_plan(tmp_path, job("host"), unknown("a") | {"rollout": large, "training": large}, nodes=PAIR))


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_owner_of_a_job_that_is_measured_and_waits_for_a_place_goes_on_waiting_at_the_next_service(
    is_lost: bool, tmp_path: Path
) -> None:
    async def work(run: Served) -> None:
        host, lease = await measured_beside_host(run)
        assert await run.leases.acquire(lease, "rollout", 2, 0.0) == {"granted": False}
        run = await (await run.replaced()).replaced()
        assert run.driver.run.scheduler.state.waiting == ["a"]
        assert await run.leases.heartbeat(lease) == {"stop": False}
        assert await run.leases.acquire(lease, "rollout", 2, 0.0) == {"granted": False}
        if is_lost:
            run.driver.run.log.zero_s -= 31.0
            run.leases.touch(host)
            check_leases(run.leases.ledger)
            assert (await run.leases.heartbeat(lease))["lost"]
        await run.leases.end(host, done=True)
        await run.settle()
        if is_lost:
            lease = await run.place("a")
        run.driver.run.log.zero_s -= 301.0
        run.leases.touch(lease)
        check_leases(run.leases.ledger)  # nobody takes a place without an owner from it
        for number in range(2, 4):
            await run.iterate(lease, number)
        await run.leases.end(lease, done=True)
        await run.stop(permits=False)

    large: Any = {"host_memory_gb": 7.5}
    served(work, attached_plan(tmp_path, job("host"), unknown("a") | {"rollout": large, "training": large}, nodes=PAIR))


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_job_that_waits_for_a_place_when_it_is_measured_is_told_where_to_go(is_replaced: bool, tmp_path: Path) -> None:
    """Found on simulated schedules: its permits were for other nodes than its processes are on."""

    async def work(run: Served) -> None:
        await run.place("host")
        other = await run.place("other")
        lease = await run.place("a")
        for number in range(2):
            await run.iterate(lease, number)
        assert await run.leases.acquire(lease, "rollout", 2, 0.0) == {"granted": False}
        run = await run.replaced() if is_replaced else run
        waits = asyncio.ensure_future(run.leases.acquire(lease, "rollout", 2, 60.0))
        await run.leases.end(other, done=True)
        assert await waits == {"granted": False, "move": True} == await run.leases.acquire(lease, "rollout", 2, 60.0)
        await run.leases.end(lease)
        lease = await run.place("a")
        assert run.leases.ledger.lease(lease).owner.nodes == ("rollout-1", "training-1")
        for number in range(2, 4):
            await run.iterate(lease, number)
        arrivals = [fact.job.id for fact in await run.stop() if isinstance(fact, Arrived)]
        assert arrivals == ["host", "other", "a"]  # it has kept its place, and gave it to nobody on the way

    jobs = (job("host"), job("other"), unknown("a", movable=True))
    plan = attached_plan(tmp_path, *jobs, nodes=PAIRS[:4])
    served(work, replace(plan, cluster=plan.cluster.model_copy(update={"max_group_size": 1})))
