"""Attached jobs are parked: their owners are told to leave as on a drained node, attach again, and wait for another place."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Admitted, Departed, Parked, Resumed
from rollmux_env.keys.queue import Quota
from rollmux_env.scheduler.facts import QuotaChanged
from runtime.coordinator.consequences import Consequences
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.job_state import JobState
from runtime.coordinator.run_plan import RunPlan
from runtime.journal.facts import Fact, JobSubmitted
from runtime.owners.http.patrol import check_leases
from runtime.service.report import past_report
from tests.runtime.owners.test_holdups import report_of
from tests.runtime.pretend import ELSEWHERE, HERE, PAIR, PAIRS, Served, attached_plan, job, node, served, specs_of


def plan(folder: Path, *jobs: dict[str, Any], order: str = "fcfs", min_run_s: float = 0.0, **more: Any) -> RunPlan:
    """A service that parks jobs of a lower priority at once."""
    made = attached_plan(folder, *jobs, policy=f"solo,order={order},park=true", **more)
    return replace(made, cluster=made.cluster.model_copy(update={"min_run_s": min_run_s, "resume_s": 5.0, "max_group_size": 1}))


def long(**more: Any) -> dict[str, Any]:
    return job("long", iterations=4, parkable=True, **more)


async def submit(run: Served, name: str = "short", **more: Any) -> None:
    """A job of a higher priority comes."""
    (spec,) = specs_of(job(name, iterations=1, **{"priority": 1, **more}))
    state = run.driver.run
    state.log.write(JobSubmitted(state.log.now(), spec))
    state.handles[spec.id] = JobHandle(spec)
    state.coming += 1
    state.spawn(run.driver.arrivals.bring_all([state.handles[spec.id]]))
    await run.settle()


async def leave(run: Served, lease: str, iteration: int) -> None:
    """The owner is told to leave, and does. `rollmux exec` starts its command again, as of any job that moves."""
    handle = run.leases.ledger.lease(lease).handle
    assert (await report_of(run))["jobs"][handle.id]["state"] == "moving"
    assert await run.leases.acquire(lease, "rollout", iteration, 60.0) == {"granted": False, "move": True}
    await run.leases.end(lease)
    await run.settle()


async def finish(run: Served, job_id: str, iterations: range) -> None:
    """An owner attaches, and its job does the rest."""
    lease = await run.place(job_id)
    assert run.leases.ledger.lease(lease).turns.begins == iterations.start
    for iteration in iterations:
        await run.iterate(lease, iteration)
    await run.leases.end(lease, done=True)
    await run.settle()


def log_of(facts: list[Fact]) -> list[tuple[str, str]]:
    kinds = Admitted | Parked | Resumed | Departed
    return [(type(fact).__name__, fact.job_id) for fact in facts if isinstance(fact, kinds)]


OVERTAKEN = [("Admitted", "long"), ("Parked", "long"), ("Admitted", "short"), ("Departed", "short")]
OVERTAKEN += [("Admitted", "long"), ("Resumed", "long"), ("Departed", "long")]


def test_an_owner_leaves_and_continues_when_its_job_has_a_place_again(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease, state = await run.place("long"), run.driver.run
        await run.phase(lease, "rollout", 0)
        await run.phase(lease, "training", 0)
        assert (await run.leases.acquire(lease, "rollout", 1, 60.0))["granted"]
        await submit(run)
        assert state.handles["long"].life.is_yielding
        words = "long is parked for it at the end of its iteration"
        assert (await report_of(run))["jobs"]["short"]["reason"] == words
        await run.leases.release(lease, "rollout", 1, {}, None)
        await run.phase(lease, "training", 1)
        await leave(run, lease, 2)
        assert state.handles["long"].life.state is JobState.PARKED
        assert state.scheduler.state.stays.parked["long"].for_job == "short"
        waits = await run.leases.attach("long", 0.0, "", ())
        assert (waits["placed"], waits["position"]) == (False, 1)
        report = await report_of(run)
        parked = report["jobs"]["long"]
        assert parked["reason"].startswith("parked for short since ") and (parked["position"], parked["key"]) == (1, 0.0)
        assert parked["state"] == "parked" and report["states"]["parked"] == 1
        assert parked["done_eta_s"] > parked["eta_s"] and report["jobs"]["short"]["done_eta_s"] == parked["eta_s"]
        await finish(run, "short", range(1))
        await finish(run, "long", range(2, 4))
        assert log_of(await run.stop()) == OVERTAKEN

    served(work, plan(tmp_path, long()))
    own, other = past_report(tmp_path)["jobs"]
    assert (own["parks"], other["parks"]) == (1, 0) and own["completion_h"] > other["completion_h"]


def test_a_killed_service_continues_with_a_job_that_is_parked_or_about_to_be(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("long")
        await run.iterate(lease, 0)
        await submit(run)
        run = await run.replaced()
        assert run.driver.run.handles["long"].life.is_yielding
        await run.iterate(lease, 1)
        await leave(run, lease, 2)
        run = await run.replaced()
        assert run.driver.run.handles["long"].life.state is JobState.PARKED
        await finish(run, "short", range(1))
        run = await run.replaced()
        await finish(run, "long", range(2, 4))
        assert log_of(await run.stop()) == OVERTAKEN

    served(work, plan(tmp_path, long()))


def test_an_owner_that_is_away_or_leaves_within_an_iteration_keeps_no_place(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease, ledger = await run.place("long"), run.leases.ledger
        await run.iterate(lease, 0)
        ledger.end(ledger.lease(lease), "its owner goes to another place", None)
        await submit(run)
        check_leases(ledger)
        await run.settle()
        assert run.driver.run.handles["long"].life.state is JobState.PARKED
        await finish(run, "short", range(1))
        lease = await run.place("long")
        await run.phase(lease, "rollout", 1)
        await submit(run, "next")
        assert run.driver.run.handles["long"].life.is_yielding
        await run.leases.end(lease)
        await run.settle()
        assert run.driver.run.scheduler.state.is_running("next")
        await finish(run, "next", range(1))
        await finish(run, "long", range(1, 4))
        await run.stop(permits=False)

    served(work, plan(tmp_path, long()))


def test_a_job_on_the_nodes_that_another_one_names_is_parked_for_it(tmp_path: Path) -> None:
    """The job that came last is tried first, and is on other nodes."""
    nodes = (*PAIR, node("rollout-1", ELSEWHERE), node("training-1", ELSEWHERE))

    async def work(run: Served) -> None:
        leases = {name: await run.place(name, host) for name, host in (("long", HERE), ("last", ELSEWHERE))}
        for lease in leases.values():
            await run.iterate(lease, 0)
        names = run.leases.ledger.lease(leases["long"]).owner.nodes
        await submit(run, nodes={pool: [name for name in names if name.startswith(pool)] for pool in ("rollout", "training")})
        assert dict(run.driver.run.scheduler.planner.parking) == {"long": "short"}
        await run.iterate(leases["long"], 1)
        await leave(run, leases["long"], 2)
        assert run.driver.run.handles["short"].place.names == {*names}
        await finish(run, "short", range(1))
        await run.stop()

    served(work, plan(tmp_path, long(), {**long(), "id": "last"}, nodes=nodes))


def test_a_job_that_fits_on_free_nodes_is_told_that_another_one_is_parked_first(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease, other = await run.place("long"), await run.place("other")
        await run.iterate(lease, 0)
        wide = {"worst_case_s": 10.0, "host_memory_gb": 1.0, "nodes": 2}
        await submit(run, rollout=wide, training=wide)
        await run.iterate(other, 0)
        await run.leases.end(other, done=True)
        await submit(run, "small", priority=0)
        words = "no job gets a place before long is parked at the end of its iteration"
        assert (await report_of(run))["jobs"]["small"]["reason"] == words
        assert any(line.endswith(f"small: waits for nodes: {words}") for line in run.driver.run.log.lines(0))
        await run.stop()

    nodes = (*PAIRS, node("rollout-2"), node("training-2"))
    served(work, plan(tmp_path, long(), job("other", iterations=1, priority=1), nodes=nodes))


def test_no_reserved_place_is_given_on_a_drained_node(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("long")
        await run.iterate(lease, 0)
        await submit(run)
        run.driver.lifecycle.node_changes.drain("rollout-0")
        await leave(run, lease, 1)
        assert run.driver.run.scheduler.planner.ranking.queue == ["short", "long"]
        run.driver.lifecycle.node_changes.undrain("rollout-0")
        await run.settle()
        await finish(run, "short", range(1))
        await finish(run, "long", range(1, 4))
        assert log_of(await run.stop()) == OVERTAKEN

    served(work, plan(tmp_path, long()))


def test_no_reserved_place_is_given_when_the_month_is_used_up_meanwhile(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("long")
        await run.iterate(lease, 0)
        await submit(run, user="ann")
        run.driver.run.apply(Consequences((QuotaChanged("ann", Quota(node_hours=0)),)))
        await run.iterate(lease, 1)
        await leave(run, lease, 2)
        assert run.driver.run.scheduler.planner.ranking.queue == ["short"]
        await finish(run, "long", range(2, 4))
        await run.stop()

    served(work, plan(tmp_path, long()))


def test_a_place_is_kept_for_its_least_time(tmp_path: Path) -> None:
    """The policy is woken when that is over, though nothing else happens."""

    async def work(run: Served) -> None:
        lease, state = await run.place("long"), run.driver.run
        await run.iterate(lease, 0)
        await submit(run)
        await run.settle()
        assert not state.handles["long"].life.is_yielding
        while not state.handles["long"].life.is_yielding:
            await asyncio.sleep(0.05)
        assert state.log.now() >= state.scheduler.state.stays.placed_at_s["long"] + 0.7
        await run.iterate(lease, 1)
        await leave(run, lease, 2)
        await finish(run, "short", range(1))
        await finish(run, "long", range(2, 4))
        assert log_of(await run.stop()) == OVERTAKEN

    served(work, plan(tmp_path, long(), min_run_s=0.7))


def test_the_usage_of_users_is_halved_and_outlives_the_service(tmp_path: Path) -> None:
    """Users take turns by it: the job of one who has used less overtakes."""

    async def work(run: Served) -> None:
        lease = await run.place("long")
        await run.iterate(lease, 0)
        await submit(run, priority=0, user="bob")
        await run.iterate(lease, 1)
        await leave(run, lease, 2)
        now_s, used_h = run.driver.run.log.now(), run.driver.run.scheduler.state.charges.usage_h
        used = used_h("ann", now_s)
        run = await run.replaced()
        again_h = run.driver.run.scheduler.state.charges.usage_h
        assert again_h("ann", now_s) == pytest.approx(used) and used > 0
        assert again_h("ann", now_s + 3600) == pytest.approx(used / 2)
        await finish(run, "short", range(1))
        await finish(run, "long", range(2, 4))
        assert log_of(await run.stop()) == OVERTAKEN

    served(work, plan(tmp_path, long(user="ann"), order="fair,half_life_h=1"))
