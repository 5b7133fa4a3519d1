"""What owners of jobs that run elsewhere may rely on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rollmux_processes import pid_space, processes

from rollmux_env.cluster.totals import totals_of
from rollmux_env.errors import Conflict, NotFound
from rollmux_env.scheduler.view import HoldName
from runtime.coordinator.consequences import Consequences
from runtime.journal.audit import audit
from runtime.journal.facts import (
    IterationSlice,
    JobCancelled,
    LeaseEnded,
    NodesFreed,
    NodesSuspected,
    OwnerAttached,
    PhaseSlice,
    SyncSlice,
)
from runtime.journal.parts import read_parts
from runtime.journal.record import RunRecord
from runtime.journal.replay import replay_journal
from runtime.output import LOGS, lines
from runtime.owners.http.carriers import is_kernels
from runtime.owners.http.leases import MOST_METRICS
from runtime.owners.http.owner_processes import own_processes
from runtime.owners.http.patrol import check_leases
from tests.children import Child
from tests.runtime.owners.test_holdups import report_of
from tests.runtime.pretend import ELSEWHERE, HERE, PAIRS, Served, attached_plan, job, just_before_attaching, owner_pid, served


def of(facts: list[Any], kind: type, job_id: str = "a") -> list[Any]:
    return [fact for fact in facts if isinstance(fact, kind) and getattr(fact, "job_id", None) == job_id]


def test_two_owners_take_turns_and_their_iterations_are_recorded_with_metrics(tmp_path: Path) -> None:
    async def work(run: Served) -> list[Any]:
        a, b = await run.place("a"), await run.place("b")

        async def train(lease: str) -> None:
            for number in range(3):
                await run.iterate(lease, number, reward=float(number))
            assert await run.leases.end(lease, done=True) == {}

        await asyncio.gather(train(a), train(b))
        assert await run.leases.end(a, done=True) == {}
        return await run.stop()

    facts = served(work, attached_plan(tmp_path, job("a"), job("b")))
    for job_id in ("a", "b"):
        done = of(facts, IterationSlice, job_id)
        assert [(one.number, one.metrics) for one in done] == [(k, {"reward": float(k)}) for k in range(3)]
        assert [(one.phase, one.iteration, one.ok) for one in of(facts, PhaseSlice, job_id)] == [
            (phase, k, True) for k in range(3) for phase in ("rollout", "training")
        ]


def test_a_request_that_is_repeated_gets_the_same_answer_and_one_out_of_order_is_refused(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease, leases = await run.place("a"), run.leases
        first = await leases.acquire(lease, "rollout", 0, 1.0)
        assert first["granted"] and first == await leases.acquire(lease, "rollout", 0, 1.0)
        assert [node["name"] for node in first["nodes"]["rollout"]] == ["rollout-0"]
        others: tuple[tuple[HoldName, int], ...] = (("training", 0), ("rollout", 1), ("sync", 0))
        for phase, number in others:
            with pytest.raises(Conflict, match="release it first"):
                await leases.acquire(lease, phase, number, 0.0)
        with pytest.raises(Conflict, match="does not hold the training of iteration 0"):
            await leases.release(lease, "training", 0, {}, None)
        assert await leases.release(lease, "rollout", 0, {}, None) == {} == await leases.release(lease, "rollout", 0, {}, None)
        with pytest.raises(Conflict, match="the rollout of iteration 0 is over"):
            await leases.acquire(lease, "rollout", 0, 0.0)
        with pytest.raises(Conflict, match="the next one is the training of iteration 0"):
            await leases.acquire(lease, "rollout", 1, 0.0)
        with pytest.raises(Conflict, match="another lease of it lives"):
            await leases.attach("a", 0.0, "", ())
        with pytest.raises(NotFound):
            await leases.attach("nobody", 0.0, "", ())
        with pytest.raises(NotFound):
            await leases.heartbeat("no-lease", ())
        await run.phase(lease, "training", 0)
        for number in (1, 2):
            await run.iterate(lease, number)
        with pytest.raises(Conflict, match="has done its 3 iterations"):
            await leases.acquire(lease, "rollout", 3, 0.0)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_a_wait_that_is_over_keeps_the_place_in_the_order(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        a, b = await run.place("a"), await run.place("b")
        assert (await run.leases.acquire(a, "rollout", 0, 60.0))["granted"]
        assert await run.leases.acquire(b, "rollout", 0, 0.0) == {"granted": False}
        await run.leases.release(a, "rollout", 0, {}, None)
        assert (await run.leases.acquire(b, "rollout", 0, 0.0))["granted"]
        await run.stop()

    served(work, attached_plan(tmp_path, job("a"), job("b")))


def test_a_job_waits_in_the_queue_until_there_are_nodes(tmp_path: Path) -> None:
    alone = {"worst_case_s": 10.0, "host_memory_gb": 7.5}

    async def work(run: Served) -> None:
        a = await run.place("a")
        answer = await run.leases.attach("b", 0.0, "", ())
        assert answer == {"placed": False, "reason": "waits for nodes", "position": 1}
        waits = asyncio.ensure_future(run.place("b"))
        await run.leases.end(a, done=True)
        await run.iterate(await waits, 0)
        facts = await run.stop()
        (over,) = of(facts, LeaseEnded)
        assert over.done

    served(work, attached_plan(tmp_path, job("a", rollout=alone, training=alone), job("b", rollout=alone, training=alone)))


def test_an_owner_that_detaches_goes_on_behind_its_last_whole_iteration(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        await run.phase(lease, "rollout", 1)
        await run.leases.end(lease)
        again = await run.leases.attach("a", 60.0, "", ())
        assert again["iteration"] == 1
        for number in (1, 2):
            await run.iterate(again["lease"], number)
        await run.leases.end(again["lease"], done=True)
        facts = await run.stop()
        assert [done.number for done in of(facts, IterationSlice)] == [0, 1, 2]

    served(work, attached_plan(tmp_path, job("a")))


def test_the_log_of_an_attached_job_has_its_iterations_and_says_where_its_output_is(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a", "gpu-7", (4711,))
        await run.iterate(lease, 0, reward=0.5, lr=0.25)
        await run.leases.end(lease)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))
    attached, iteration, detached = (line.partition("  ")[2] for line in lines(tmp_path / LOGS / "a"))
    assert attached == "attached on rollout-0 training-0, from gpu-7; its output is there, with process 4711"
    assert iteration.startswith("iteration 1 of 3: ") and iteration.endswith(" s, reward 0.5, lr 0.25")
    assert detached == "detached: its owner has detached"


def test_what_a_lost_lease_held_is_granted_to_nobody_until_its_processes_are_seen_dead(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        with Child([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
            a, b = await run.place("a", pids=(owner.pid,)), await run.place("b")
            assert (await run.leases.acquire(a, "rollout", 0, 60.0))["granted"]
            waits = asyncio.ensure_future(run.leases.acquire(b, "rollout", 0, 30.0))
            await asyncio.sleep(0)
            run.pass_time(31.0)
            await run.settle()
            assert run.leases.ledger.suspect_nodes() == {"rollout-0": "a"} and not waits.done()
            assert (await run.leases.heartbeat(a, ()))["stop"] is True
            with pytest.raises(Conflict, match=f"process {owner.pid} of its last lease lives, and may use rollout-0"):
                await run.leases.attach("a", 0.0, run.driver.run.plan.nodes[0].host, (1,))
        check_leases(run.leases.ledger)
        assert (await waits)["granted"] and run.leases.ledger.suspect_nodes() == {}
        await run.leases.release(b, "rollout", 0, {}, None)
        facts = await run.stop()
        assert (
            [fact.nodes for fact in of(facts, NodesSuspected)] == [("rollout-0",)] == [fact.nodes for fact in of(facts, NodesFreed)]
        )
        assert [(part.job_id, part.ok) for part in facts if isinstance(part, PhaseSlice)] == [("a", False), ("b", True)]

    served(work, attached_plan(tmp_path, job("a"), job("b")))


def test_nodes_of_an_owner_elsewhere_are_free_when_it_attaches_again_or_somebody_says_so(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        for how in ("attaches", "cleared", "released"):
            lease = await run.place("a", ELSEWHERE, (7,))
            assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
            run.pass_time(34.0)
            check_leases(run.leases.ledger)
            await run.settle()
            assert run.leases.ledger.suspect_nodes() == {"rollout-0": "a"}
            if how == "cleared":
                assert run.leases.ledger.clear("rollout-0") == ("a",)
            elif how == "released":
                with pytest.raises(Conflict, match="this lease is over"):
                    await run.leases.release(lease, "rollout", 0, {}, None)
        await run.place("a", ELSEWHERE, (8,))
        with pytest.raises(NotFound):
            run.leases.ledger.clear("rollout-0")
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_who_attaches_beside_an_owner_elsewhere_waits_for_a_slow_clock_to_end_it(tmp_path: Path) -> None:
    """Found on a simulated schedule: two owners, the first one stopped, and clocks that differ by a tenth."""

    async def work(run: Served) -> None:
        lease = await run.place("a", ELSEWHERE, (7,))
        assert (await run.leases.acquire(lease, "rollout", 0, 60.0))["granted"]
        run.pass_time(31.0)
        await run.settle()
        answer = await run.leases.attach("a", 0.1, ELSEWHERE, (8,))
        assert not answer["placed"] and answer["reason"].startswith("what its last lease held may be in use")
        assert run.leases.ledger.suspect_nodes() == {"rollout-0": "a"}
        run.driver.run.log.zero_s -= 2.0
        assert (await run.leases.attach("a", 60.0, ELSEWHERE, (8,)))["lease"]  # the wait ends when the time is over
        assert run.leases.ledger.suspect_nodes() == {}
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_a_process_that_has_lost_its_lease_gets_it_again_at_once_where_it_is_seen_to_be_that_one(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        assert (await run.leases.acquire(await run.place("a"), "rollout", 0, 60.0))["granted"]
        run.pass_time(31.0)
        await run.settle()
        assert await run.place("a") and run.leases.ledger.suspect_nodes() == {}
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_a_host_that_comes_when_another_one_goes_is_known(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        state = run.driver.run
        (rollout,) = (node for node in PAIRS[:4] if node.name == "rollout-1")
        state.nodes.add([replace(rollout, name="rollout-8", host="gpu-8")])
        assert rollout in state.capacity.nodes_by_host()[rollout.host] and "gpu-9" not in state.capacity.nodes_by_host()
        state.nodes.missing = {"rollout-8"}
        state.nodes.lose(0.0)
        state.nodes.add([replace(rollout, name="rollout-9", host="gpu-9")])
        assert [node.name for node in state.capacity.nodes_by_host()["gpu-9"]] == [
            "rollout-9"
        ] and "gpu-8" not in state.capacity.nodes_by_host()
        await run.kill()

    served(work, attached_plan(tmp_path, job("a"), nodes=PAIRS[:4]))


def test_a_lease_that_holds_nothing_is_lost_without_harm_and_open_requests_keep_one_alive(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        a, b = await run.place("a", ELSEWHERE), await run.place("b")
        assert (await run.leases.acquire(a, "rollout", 0, 60.0))["granted"]
        waits = asyncio.ensure_future(run.leases.acquire(b, "rollout", 0, 30.0))
        await asyncio.sleep(0)
        run.leases.touch(a)
        run.driver.run.log.zero_s -= 31.0
        run.leases.touch(a)
        check_leases(run.leases.ledger)
        await run.leases.release(a, "rollout", 0, {}, None)
        assert (await waits)["granted"]  # its owner had been waiting all the time
        run.driver.run.log.zero_s -= 31.0
        run.leases.touch(b)
        check_leases(run.leases.ledger)
        await run.settle()
        with pytest.raises(Conflict, match="this lease is over: its lease is lost: no sign of life for 30 s"):
            await run.leases.acquire(a, "training", 0, 0.0)
        assert run.leases.ledger.suspect_nodes() == {}
        await run.leases.release(b, "rollout", 0, {}, None)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a"), job("b")))


def test_a_lease_that_holds_nothing_keeps_its_place_while_a_process_of_it_lives_here(tmp_path: Path) -> None:
    """As one that `rollmux exec` could not end, and for which it does not give the lease back."""

    async def work(run: Served) -> None:
        with Child(["sleep", "600"]) as child:
            lease = await run.place("a", pids=(child.pid,))
            waits = asyncio.ensure_future(run.leases.attach("b", 30.0, HERE, ()))
            await run.iterate(lease, 0)
            run.pass_time(31.0)
            await run.settle()
            assert run.leases.ledger.suspect_nodes() == {"rollout-0": "a", "training-0": "a"} and not waits.done()
            run = await run.replaced()
            assert run.leases.ledger.suspect_nodes() == {"rollout-0": "a", "training-0": "a"}
        run.pass_time(1.0)
        assert run.leases.ledger.suspect_nodes() == {}
        assert "lease" in await run.leases.attach("b", 30.0, HERE, ())
        await run.stop()

    alone = {"worst_case_s": 10.0, "host_memory_gb": 7.5}
    served(work, attached_plan(tmp_path, job("a", rollout=alone, training=alone), job("b", rollout=alone, training=alone)))


def test_processes_of_the_kernel_and_those_of_the_service_are_no_owners() -> None:
    kernel = next((pid for pid in processes() if is_kernels(pid)), 1)
    named = own_processes((os.getpid(), os.getppid(), kernel, owner_pid()), pid_space(), "a")
    assert [one.pid for one in named] == [owner_pid()]


def test_a_sync_is_the_end_of_an_iteration_where_the_job_has_one(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        assert run.driver.run.handles["a"].iteration == 0
        assert await run.leases.synced(lease, 0, 0.5) == {} == await run.leases.synced(lease, 0, 0.5)
        await run.iterate(lease, 1)
        await run.iterate(lease, 2)  # nobody has said that the sync before it was over
        with pytest.raises(Conflict, match="has no training that is over"):
            await run.leases.synced(lease, 1, 0.1)
        await run.leases.end(lease, done=True)
        facts = await run.stop()
        assert [done.number for done in of(facts, IterationSlice)] == [0, 1, 2]
        assert [sync.iteration for sync in of(facts, SyncSlice)] == [0]

    served(work, attached_plan(tmp_path, job("a", sync_s=1.0)))


def test_a_sync_that_needs_both_sides_goes_before_phases_that_became_ready_later(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        a, b = await run.place("a"), await run.place("b")
        await run.phase(a, "rollout", 0)
        assert (await run.leases.acquire(b, "rollout", 0, 60.0))["granted"]
        await run.phase(a, "training", 0)
        sync = asyncio.ensure_future(run.leases.acquire(a, "sync", 0, 30.0))
        await asyncio.sleep(0)
        await run.leases.release(b, "rollout", 0, {}, None)
        later = asyncio.ensure_future(run.leases.acquire(b, "training", 0, 30.0))
        assert (await sync)["granted"]
        await run.settle()
        assert not later.done()
        await run.leases.release(a, "sync", 0, {}, None)
        await run.leases.synced(a, 0, 0.1)
        assert (await later)["granted"]
        await run.leases.release(b, "training", 0, {}, None)
        facts = await run.stop()
        (slice_of_sync,) = of(facts, SyncSlice)
        assert slice_of_sync.nodes == ("rollout-0", "training-0") and slice_of_sync.asked_s is not None

    served(work, attached_plan(tmp_path, job("a", sync_s=1.0), job("b", sync_s=1.0)))


def test_an_extra_rollout_waits_for_its_turn_and_counts_no_iteration(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        a, b = await run.place("a"), await run.place("b")
        assert (await run.leases.acquire(a, "rollout", 0, 1.0, extra=True))["granted"]
        assert await run.leases.acquire(b, "rollout", 0, 0.0) == {"granted": False}
        await run.leases.release(a, "rollout", 0, {}, None)
        assert await run.leases.release(a, "rollout", 0, {}, None) == {}
        await run.phase(b, "rollout", 0)
        await run.iterate(a, 0)
        await run.phase(a, "rollout", 1)
        with pytest.raises(Conflict, match="cannot begin the extra rollout of iteration 1"):
            await run.leases.acquire(a, "rollout", 1, 0.0, extra=True)
        facts = await run.stop()
        assert [(part.iteration, part.extra) for part in of(facts, PhaseSlice) if part.phase == "rollout"] == [
            (0, True),
            (0, False),
            (1, False),
        ]

    served(work, attached_plan(tmp_path, job("a"), job("b")))


def test_a_cancelled_job_keeps_what_it_holds_until_its_owner_has_stopped(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        a, b = await run.place("a", ELSEWHERE), await run.place("b")
        assert (await run.leases.acquire(a, "rollout", 0, 60.0))["granted"]
        waits = asyncio.ensure_future(run.leases.acquire(b, "rollout", 0, 30.0))
        await asyncio.sleep(0)
        await run.driver.lifecycle.cancel(run.driver.run.handles["a"])
        await run.settle()
        assert await run.leases.heartbeat(a, ()) == {"stop": True} and not waits.done()
        await run.leases.release(a, "rollout", 0, {}, None)
        assert (await waits)["granted"]
        with pytest.raises(Conflict, match="has ended"):
            await run.leases.attach("a", 0.0, "", ())
        await run.leases.release(b, "rollout", 0, {}, None)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a"), job("b")))


def test_a_job_that_is_cancelled_when_it_gets_its_place_has_never_been_there(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        handle, driver = run.driver.run.handles["b"], run.driver
        waits = asyncio.ensure_future(run.leases.attach("b", 60.0, HERE, ()))
        await run.settle()
        run.leases._iterations.done(run.leases.ledger.lease(lease))
        assert driver.run.has_seat(handle) and handle.processes.controller is None  # its place has just been found
        await driver.lifecycle.cancel(handle)
        with pytest.raises(Conflict, match="has ended"):
            await waits
        assert handle.processes.controller is None
        assert of(await run.stop(), JobCancelled, "b") and driver.run.errands.empty()

    served(work, attached_plan(tmp_path, job("a"), job("b"), policy="solo"))


def test_a_place_that_nobody_claims_is_given_to_others(tmp_path: Path) -> None:
    large = {"worst_case_s": 10.0, "host_memory_gb": 7.5}

    async def work(run: Served) -> None:
        waits = asyncio.ensure_future(run.place("b"))
        await run.settle()
        assert not waits.done()
        run.pass_time(301.0)
        b = await waits
        answer = await run.leases.attach("a", 0.0, "", ())
        assert answer["placed"] is False
        await run.leases.end(b, done=True)
        assert await run.place("a")
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", rollout=large, training=large), job("b", rollout=large, training=large)))


def test_an_owner_may_come_just_when_its_place_is_given_up(tmp_path: Path) -> None:
    """Found on simulated schedules: its job arrived twice, and the service ended with a ValueError."""

    async def work(run: Served) -> None:
        await run.settle()
        with just_before_attaching(lambda: run.pass_time(301.0)):
            lease = await run.place("a")
        for number in range(3):
            await run.iterate(lease, number)
        await run.leases.end(lease, done=True)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_leases_and_what_they_hold_outlive_the_coordinator(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        a, b, c = await run.place("a"), await run.place("b"), await run.place("c")
        await run.iterate(a, 0)
        assert (await run.leases.acquire(a, "rollout", 1, 60.0))["granted"]
        await run.phase(b, "rollout", 0)
        assert (await run.leases.acquire(c, "rollout", 0, 60.0))["granted"]
        other = await run.replaced()
        assert (await other.leases.acquire(a, "rollout", 1, 0.0))["granted"]
        with pytest.raises(Conflict, match="another lease of it lives"):
            await other.leases.attach("b", 0.0, "", ())
        await other.phase(b, "training", 0)
        assert await other.leases.release(b, "training", 0, {}, None) == {}
        await other.leases.release(a, "rollout", 1, {}, None)
        await other.phase(a, "training", 1)
        await other.leases.release(c, "rollout", 0, {}, None)
        await other.phase(c, "training", 0)
        facts = await other.stop()
        assert [done.number for done in of(facts, IterationSlice)] == [0, 1]
        assert len(of(facts, OwnerAttached)) == 1

    large = {"worst_case_s": 10.0, "host_memory_gb": 7.5}
    jobs = (job("a", rollout=large, training=large), job("b"), job("c"))
    served(work, attached_plan(tmp_path, *jobs, nodes=PAIRS))


def test_a_lease_of_a_later_iteration_goes_on_there_under_the_next_coordinator(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        first = await run.place("a")
        await run.iterate(first, 0)
        await run.leases.end(first)
        again = await run.place("a")  # it has done nothing yet
        other = await run.replaced()
        for number in (1, 2):
            await other.iterate(again, number)
        await other.leases.end(again, done=True)
        facts = await other.stop()
        assert [done.number for done in of(facts, IterationSlice)] == [0, 1, 2]

    served(work, attached_plan(tmp_path, job("a")))


def test_a_job_has_not_ended_when_its_service_stops(tmp_path: Path) -> None:
    """Found on a simulated schedule: owners that came while it did were told that their jobs were over, and went for good."""

    async def work(run: Served) -> None:
        await run.leases.end(await run.place("a"))
        run.driver.stop()
        await run.settle()
        assert run.driver.run.handles["a"].life.is_gone
        answer = await run.leases.attach("a", 60.0, HERE, (7,))
        assert (answer["placed"], answer["reason"]) == (False, "the service is stopping")
        other = await run.replaced()
        await other.iterate(await other.place("a"), 0)
        await other.stop()

    served(work, attached_plan(tmp_path, job("a")))


def test_suspects_outlive_the_coordinator_too(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        a, b = await run.place("a", ELSEWHERE, (7,)), await run.place("b")
        assert (await run.leases.acquire(a, "rollout", 0, 60.0))["granted"]
        run.driver.run.log.zero_s -= 31.0
        run.leases.touch(b)
        check_leases(run.leases.ledger)
        await run.settle()
        other = await run.replaced()
        assert other.leases.ledger.suspect_nodes() == {"rollout-0": "a"}
        held_up = {"granted": False, "reason": "rollout-0 may still be in use by a: `rollmux clear rollout-0`"}
        assert await other.leases.acquire(b, "rollout", 0, 0.0) == held_up
        await other.driver.lifecycle.cancel(other.driver.run.handles["a"])
        third = await other.replaced()
        assert third.leases.ledger.suspect_nodes() == {"rollout-0": "a"}
        assert await third.leases.acquire(b, "rollout", 0, 0.0) == held_up
        third.leases.ledger.clear("rollout-0")
        assert (await third.leases.acquire(b, "rollout", 0, 60.0))["granted"]
        await third.leases.release(b, "rollout", 0, {}, None)
        await third.stop()

    served(work, attached_plan(tmp_path, job("a"), job("b")))


def test_the_record_keeps_every_fact_of_leases() -> None:
    assert {"attached", "granted", "leases_ended", "suspected", "freed", "rolled_back"} <= RunRecord.__dataclass_fields__.keys()


def test_a_job_that_has_done_all_is_not_over_when_its_lease_is_lost(tmp_path: Path) -> None:
    """Its owner may have failed to keep what it has trained, and go back; it says when the job is over."""

    async def work(run: Served) -> None:
        lease = await run.place("a", ELSEWHERE, (7,))
        await run.iterate(lease, 0)
        run.pass_time(34.0)
        check_leases(run.leases.ledger)
        await run.settle()
        assert not run.driver.run.handles["a"].life.is_gone
        lease = await run.place("a", ELSEWHERE, (8,))
        await run.leases.end(lease, done=True)
        assert run.driver.run.handles["a"].life.is_gone
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", iterations=1)))


def test_what_a_lost_lease_held_is_free_when_its_last_phase_has_ended(tmp_path: Path) -> None:
    """Found on a simulated schedule: the end of a training freed the nodes of the rollout beside it."""
    turns: tuple[tuple[HoldName, int], ...] = (("training", 0), ("rollout", 1))
    held = {"rollout-0": "a", "training-0": "a"}

    async def work(run: Served) -> None:
        lease = await run.place("a", ELSEWHERE, (7,))
        await run.phase(lease, "rollout", 0)
        for phase, number in turns:
            assert (await run.leases.acquire(lease, phase, number, 60.0))["granted"]
        run.pass_time(31.0)
        await run.settle()
        for (phase, number), left in zip((turns[0], *turns), (held, held, {}), strict=True):
            with pytest.raises(Conflict, match="this lease is over"):
                await run.leases.release(lease, phase, number, {}, None)
            assert run.leases.ledger.suspect_nodes() == left
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", staleness=1)))


def test_a_job_that_is_done_while_it_holds_a_phase_leaves_a_sound_journal(tmp_path: Path) -> None:
    """The phase that it did not end is written before the end of its lease; `run.stop` audits the journal."""

    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        assert (await run.leases.acquire(lease, "rollout", 1, 60.0))["granted"]
        await run.leases.end(lease, done=True)
        facts = await run.stop()
        kinds = [type(fact) for fact in facts if isinstance(fact, PhaseSlice | LeaseEnded)]
        assert kinds == [PhaseSlice, PhaseSlice, PhaseSlice, LeaseEnded]

    served(work, attached_plan(tmp_path, job("a")))


def test_metrics_beyond_the_bounds_are_left_out(tmp_path: Path) -> None:
    """What tenants send is in the journal and on everybody's screen."""

    async def work(run: Served) -> None:
        lease = await run.place("a")
        odd = {"a b": 1.0, "x" * 65: 1.0, "": 1.0, "esc\x1b[2J": 1.0, "turn\u202e": 1.0, "inf": float("inf")}
        await run.phase(lease, "rollout", 0, **odd, **{"rewards/<lambda>/mean": 1e308, "pass@1": 0.5})
        await run.phase(lease, "training", 0, **{f"m{k}": float(k) for k in range(100)}, **{"pass@1": 0.75})
        (done,) = of(await run.stop(), IterationSlice)
        assert len(done.metrics) == MOST_METRICS
        assert {name: done.metrics[name] for name in [*done.metrics][:3]} == {
            "rewards/<lambda>/mean": 1e308,
            "pass@1": 0.75,
            "m0": 0.0,
        }
        told = [line for line in lines(tmp_path / LOGS / "a") if "is left out" in line]
        assert len(told) == 1 and "metric a b is left out: an iteration has 64 at most" in told[0]

    served(work, attached_plan(tmp_path, job("a")))


@pytest.mark.parametrize("there", ["nowhere", "placed", "in use", "before"])
def test_a_job_is_done_when_its_owner_says_so_after_its_lease_was_lost(tmp_path: Path, there: str) -> None:
    """Found on a simulated schedule: the service could not write for longer than a lease lasts, and no other owner came ever."""

    async def work(run: Served) -> list[Any]:
        lease = await run.place("a", HERE if there == "in use" else ELSEWHERE)
        await run.iterate(lease, 0)
        if there == "in use":
            assert (await run.leases.acquire(lease, "rollout", 1, 60.0))["granted"]
        run.pass_time(31.0)
        if there != "in use":
            await run.settle()
            assert bool(run.driver.run.handles["a"].place.nodes) == (there in ("placed", "before"))
        if there == "before":
            run = await run.replaced()
            assert (await run.leases.heartbeat(lease))["lost"]
        for _ in range(2):  # the first answer may have been lost
            assert await run.leases.end(lease, done=True) == {}
        await run.settle()
        with pytest.raises(Conflict, match="job a: has ended"):
            await run.leases.attach("a", 0.0, HERE, ())
        return await run.stop(permits=False)

    facts = served(work, attached_plan(tmp_path, job("a", iterations=1 if there == "nowhere" else 2)))
    assert [fact.done for fact in of(facts, LeaseEnded)] == [False, True]
    assert audit(facts).jobs == {"a": "done"} and audit(facts).problems == ()
    assert replay_journal(facts).lines == ()


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_job_whose_owner_is_away_takes_no_nodes_because_its_service_is_replaced(is_whole: bool, tmp_path: Path) -> None:
    """Nor is the work that it did before counted twice when its owner comes back."""

    async def work(run: Served) -> None:
        iterations = 2 if is_whole else 1
        lease = await run.place("a")
        for number in range(iterations):
            await run.phase(lease, "rollout", number)
            assert (await run.leases.acquire(lease, "training", number, 60.0))["granted"]
            run.driver.run.log.zero_s -= 7.0
            await run.leases.release(lease, "training", number)
        await run.leases.end(lease)
        await run.settle()
        run.pass_time(301.0)
        await run.settle()
        for _ in range(2):
            run = await run.replaced()
            assert not run.driver.run.handles["a"].place.names and not run.driver.run.scheduler.state.waiting
            assert (await report_of(run))["jobs"]["a"]["reason"] == "it waits for its owner to attach"
        lease = await run.place("a")
        for number in range(iterations, 2):
            await run.iterate(lease, number)
        await run.leases.end(lease, done=True)
        await run.settle()
        busy_s = sum(part.busy_s for part in of(await run.stop(permits=False), PhaseSlice))
        assert totals_of(run.driver.run.scheduler.state, "a").alone_usd * 3600 == pytest.approx(busy_s * 2, rel=1e-3)

    served(work, attached_plan(tmp_path, job("a", iterations=2)))


@pytest.mark.parametrize("rolls_over", [False, True])
def test_an_owner_is_told_also_after_a_restart_that_another_job_has_used_its_nodes(rolls_over: bool, tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        a, b = await run.place("a"), await run.place("b")
        await run.iterate(a, 0)
        await run.iterate(b, 0)
        if rolls_over:
            assert await run.driver.run.log.begin_next_part() is None
        run = await run.replaced()
        assert (await run.leases.acquire(a, "rollout", 1, 60.0))["switched"]
        await run.leases.release(a, "rollout", 1)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a"), job("b")))


@pytest.mark.parametrize("rolls_over", [False, True])
def test_an_iteration_that_is_not_over_has_its_begin_its_metrics_and_its_work_also_after_restarts(
    rolls_over: bool, tmp_path: Path
) -> None:
    async def replaced(run: Served, lease: str) -> Served:
        run.driver.run.log.zero_s -= 7.0
        run.leases.touch(lease)
        await run.leases.heartbeat(lease)
        run.driver.run.apply(Consequences(), wakes=True)  # else the time since the last fact is lost
        await run.settle()
        if rolls_over:
            assert await run.driver.run.log.begin_next_part() is None
        return await run.replaced()

    async def work(run: Served) -> float:
        lease = await run.place("a")
        await run.iterate(lease, 0, reward=0.25)
        assert (await run.leases.acquire(lease, "rollout", 1, 60.0))["granted"]
        run = await replaced(run, lease)
        await run.leases.release(lease, "rollout", 1, {"reward": 0.5})
        for _ in range(2):
            run = await replaced(run, lease)
        await run.phase(lease, "training", 1, loss=2.0)
        await run.iterate(lease, 2, reward=0.75)
        review = run.driver.run.scheduler.review
        assert review is not None and len(review.paces["a"]._iterations) == 1  # the iteration before says nothing of its speed
        await run.leases.end(lease, done=True)
        await run.settle()
        alone_usd = totals_of(run.driver.run.scheduler.state, "a").alone_usd
        await run.stop(permits=False)
        return alone_usd

    alone_usd = served(work, attached_plan(tmp_path, job("a")))
    every = [done for facts in read_parts(tmp_path).values() for done in of(facts, IterationSlice)]
    assert [done.metrics for done in every] == [{"reward": 0.25}, {"reward": 0.5, "loss": 2.0}, {"reward": 0.75}]
    assert [done.interrupted for done in every] == [False, True, False]
    assert 21 < every[1].end_s - every[1].start_s < 28
    assert 7 < alone_usd * 3600 / 2 < 14


def test_what_the_owner_of_a_lost_lease_says_late_ends_no_job_of_another_owner(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        first = await run.place("a")
        await run.iterate(first, 0)
        run.pass_time(31.0)
        await run.settle()
        second = await run.place("a")
        assert await run.leases.end(first, done=True) == {}
        await run.iterate(second, 1)
        await run.leases.end(second, done=True)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", iterations=2)))
