"""A coordinator that goes on may have another place for a job whose owner lives, which gets no permit there before it has moved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rollmux_env.errors import Conflict, Stopping
from rollmux_env.scheduler.view import HoldName
from runtime.machines.nodes import POOLS
from tests.runtime.pretend import PAIRS, Served, attached_plan, job, served

PHASES: tuple[HoldName, ...] = ("rollout", "training", "sync")
WITHOUT = PAIRS[1:]  # the node that jobs have first is not there when the next service begins


def test_an_owner_gets_no_permit_of_nodes_where_it_is_not(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        before = run.leases.ledger.lease(lease).owner.nodes
        run.driver.lifecycle.node_changes.drain("rollout-0")
        await run.settle()
        run = await run.replaced()
        await run.settle()
        assert run.driver.run.handles["a"].place.names.isdisjoint(before)
        assert await run.leases.acquire(lease, "rollout", 0, 60.0) == {"granted": False, "move": True}
        await run.leases.end(lease)
        lease = await run.place("a")
        for phase in PHASES:
            await run.phase(lease, phase, 0)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", sync_s=1.0, movable=True), nodes=PAIRS))


@pytest.mark.parametrize("restarts", [0, 1, 2])
@pytest.mark.parametrize(("over", "holds"), [(0, True), (1, False), (1, True), (2, False), (2, True)])
def test_an_owner_that_is_to_move_finishes_its_iteration_where_it_is(over: int, holds: bool, restarts: int, tmp_path: Path) -> None:
    """Its phase was lost and its process ended: a restart of the service cost whoever was to move an iteration."""

    async def work(run: Served) -> None:
        lease = await run.place("a")
        before = {*run.leases.ledger.lease(lease).owner.nodes}
        for phase in PHASES[:over]:
            await run.phase(lease, phase, 0)
        if holds:
            assert (await run.leases.acquire(lease, PHASES[over], 0, 60.0))["granted"]
        run.driver.lifecycle.node_changes.drain("rollout-0")
        await run.settle()
        for _ in range(restarts):
            run = await run.replaced()
            await run.settle()
        handle = run.driver.run.handles["a"]
        assert handle.place.names == before and handle.life.is_moving
        if holds:
            await run.leases.release(lease, PHASES[over], 0, {}, None)
        for phase in PHASES[over + holds :]:
            await run.phase(lease, phase, 0)
        assert not (await run.leases.acquire(lease, "rollout", 1, 60.0))["granted"]  # the iteration before is over by that
        assert await run.leases.acquire(lease, "rollout", 1, 60.0) == {"granted": False, "move": True}
        await run.leases.end(lease)
        lease = await run.place("a")
        assert before.isdisjoint(handle.place.names)
        await run.phase(lease, "rollout", 1)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", sync_s=1.0, movable=True), nodes=PAIRS))


def test_a_job_that_was_cancelled_does_not_go_on_in_the_other_place(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        run.driver.lifecycle.node_changes.drain("rollout-0")
        await run.settle()
        await run.driver.lifecycle.cancel(run.driver.run.handles["a"])
        await run.settle()
        run = await run.replaced()
        await run.settle()
        assert not run.driver.run.handles["a"].life.is_gone  # its owner may use the nodes until it says that it does not
        await run.leases.release(lease, "rollout", 0, {}, None)
        await run.settle()
        assert run.driver.run.handles["a"].life.is_gone and not run.driver.run.scheduler.state.is_running("a")
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", movable=True), nodes=PAIRS))


def test_what_the_place_before_held_is_free_and_that_of_the_present_one_is_not(tmp_path: Path) -> None:
    """Else nobody would wait for the owner of a job that is cancelled in its second place."""

    async def work(run: Served) -> None:
        lease = await run.place("a")
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        run.driver.lifecycle.node_changes.drain("rollout-0")
        await run.settle()
        run.plan = replace(run.plan, nodes=WITHOUT)
        run = await run.replaced()
        assert run.leases.ledger.suspect_nodes() == dict.fromkeys(("rollout-0", "training-0"), "a")
        with pytest.raises(Conflict, match="this lease is over"):
            await run.leases.release(lease, "rollout", 0, {}, None)
        assert run.leases.ledger.suspect_nodes() == {}
        lease = await run.place("a")
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        await run.driver.lifecycle.cancel(run.driver.run.handles["a"])
        await run.settle()
        assert not run.driver.run.handles["a"].life.is_gone  # its owner may use the nodes until it says that it does not
        await run.leases.end(lease)
        await run.settle()
        assert run.driver.run.handles["a"].life.is_gone
        await run.stop(permits=False)

    served(work, attached_plan(tmp_path, job("a", movable=True), nodes=PAIRS))


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_job_that_was_cancelled_does_not_go_on_when_its_nodes_have_gone(left: int, tmp_path: Path) -> None:
    """Two jobs of two groups: there are nodes for one of them, or for none."""

    async def work(run: Served) -> None:
        leases = {name: await run.place(name) for name in ("a", "b")}
        for lease in leases.values():
            assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        await run.driver.lifecycle.cancel(run.driver.run.handles["b"])
        await run.settle()
        run.plan = replace(run.plan, nodes=PAIRS[:left])
        run = await run.replaced()
        await run.settle()
        assert run.driver.run.handles["b"].life.is_gone
        assert "b" not in run.driver.run.scheduler.state.waiting
        run.plan = replace(run.plan, nodes=PAIRS[:4])
        run = await run.replaced()
        await run.settle()
        assert run.driver.run.handles["b"].life.is_gone
        assert not run.driver.run.scheduler.state.is_running("b")
        await run.stop()

    alone = {"max_group_size": 1}
    plan = attached_plan(tmp_path, job("a"), job("b"), nodes=PAIRS[:4])
    served(work, replace(plan, cluster=plan.cluster.model_copy(update=alone)))


def test_a_phase_that_ends_behind_its_service_is_told_to_the_next_one(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        run.driver.stop()
        assert await run.outcome == "stopped"
        with pytest.raises(Stopping, match="the service is stopping"):
            await run.leases.release(lease, "rollout", 0, {}, None)
        run = Served(replace(run.plan, resume=True))
        await run.settle()
        await run.leases.release(lease, "rollout", 0, {}, None)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_a_job_that_is_cancelled_on_its_way_to_another_place_gives_it_back(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.phase(lease, "rollout", 0)
        run.driver.lifecycle.node_changes.drain("rollout-0")
        await run.phase(lease, "training", 0)
        assert (await run.leases.acquire(lease, "rollout", 1, 60.0))["move"]
        await run.leases.end(lease)
        await run.driver.lifecycle.cancel(run.driver.run.handles["a"])
        await run.settle()
        assert run.driver.run.handles["a"].life.is_gone and not run.driver.run.scheduler.state.is_running("a")
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", movable=True), nodes=PAIRS))


def test_a_service_may_stop_while_a_job_leaves_a_drained_node(tmp_path: Path) -> None:
    """It holds its old nodes and its new ones then, and there are not fewer of them than that when a guest has gone."""

    async def work(run: Served) -> None:
        await run.place("a")
        run.driver.lifecycle.node_changes.drain("training-0")
        await run.settle()
        await run.place("guest")
        run.driver.stop()
        await run.stop()

    guest = job("guest", rollout={}, training={}, profile={"iterations": 1})
    served(work, attached_plan(tmp_path, job("a", movable=True), guest, nodes=PAIRS))


def test_nodes_are_not_drained_behind_the_last_word_of_a_service(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        await run.place("a")
        changes = run.driver.lifecycle.node_changes
        changes.drain("rollout-0")
        run.driver.stop()
        for change in (changes.undrain, changes.drain):
            with pytest.raises(Stopping, match="the service is stopping; ask the next one"):
                change("rollout-0")
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


@pytest.mark.parametrize("word", ["synced", "done"])
def test_the_end_of_a_sync_or_a_job_behind_its_service_is_told_to_the_next_one(word: str, tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        async def say() -> None:
            await (run.leases.synced(lease, 0, 0.1) if word == "synced" else run.leases.end(lease, done=True))

        lease = await run.place("a")
        for phase in POOLS:
            assert (await run.leases.acquire(lease, phase, 0, 60.0))["granted"]
            await run.leases.release(lease, phase, 0, {}, None)
        run.driver.stop()
        assert await run.outcome == "stopped"
        with pytest.raises(Stopping, match="the service is stopping"):
            await say()
        run = Served(replace(run.plan, resume=True))
        await run.settle()
        await say()
        handle = run.driver.run.handles["a"]
        assert (handle.iteration, handle.life.is_gone) == ((1, False) if word == "synced" else (1, True))
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", sync_s=0.2)))


def test_a_phase_that_ends_where_its_job_is_not_any_more_is_refused(tmp_path: Path) -> None:
    """Found on a simulated schedule: it counted for nothing, and a script whose last one it was ended well, and its job never."""

    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.phase(lease, "rollout", 0)
        assert (await run.leases.acquire(lease, "training", 0, 60.0))["granted"]
        run.driver.lifecycle.node_changes.drain("rollout-0")
        await run.settle()
        run.plan = replace(run.plan, nodes=WITHOUT)
        run = await run.replaced()
        await run.settle()
        for _ in range(2):
            with pytest.raises(Conflict, match="this lease is over: its place has gone"):
                await run.leases.release(lease, "training", 0, {}, None)
        assert run.leases.ledger.suspect_nodes() == {}
        again = await run.leases.attach("a", 60.0, "", ())
        assert again["iteration"] == 0
        await run.iterate(again["lease"], 0)
        await run.leases.end(again["lease"], done=True)
        await run.settle()
        assert run.driver.run.handles["a"].life.is_gone
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", iterations=1, movable=True), nodes=PAIRS))
