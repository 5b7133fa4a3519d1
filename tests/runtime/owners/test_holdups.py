"""Jobs that are held up say why and by whom: a lost lease, a phase over its worst case, an owner that is to end."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rollmux_processes import pid_space

from rollmux_env.errors import Conflict
from runtime.coordinator.run_plan import LeaseRules
from runtime.owners.http.patrol import check_leases, extend_leases
from runtime.service.client import ServiceClient
from runtime.service.figures import RunFigures
from runtime.service.forecast import QueueForecast
from runtime.service.report import Reports
from tests.runtime.pretend import ELSEWHERE, HERE, PAIR, Served, attached_plan, job, node, owner_pid, served

ALONE = {"worst_case_s": 10.0, "host_memory_gb": 7.5}
SHARED = {"worst_case_s": 0.5, "host_memory_gb": 1.0}
CLEAR = "rollout-0 may still be in use by far: `rollmux clear rollout-0`"


async def report_of(run: Served) -> dict[str, Any]:
    ledger, figures = run.leases.ledger, RunFigures()
    figures.begin(run.driver.run, None, ())
    report = await Reports(ledger, figures).all(await QueueForecast(ledger).outlook())
    return report | {"jobs": {one["id"]: one for one in report["jobs"]}}


def test_a_lost_lease_is_said_where_one_looks(tmp_path: Path) -> None:
    """The owner is on another host, and nobody can see whether it lives; other jobs wait for its nodes."""

    async def work(run: Served) -> None:
        lease = await run.place("far", ELSEWHERE)
        await run.leases.acquire(lease, "rollout", 0, 1.0)
        attaches = asyncio.ensure_future(run.leases.attach("next", 30.0, ELSEWHERE, ()))
        await run.settle()
        assert (await report_of(run))["jobs"]["next"]["eta_s"] is not None
        run.pass_time(31.0)
        report = await report_of(run)
        far, queued = report["jobs"]["far"], report["jobs"]["next"]
        assert (far["state"], far["reason"], report["states"]["lost"]) == ("lost", CLEAR, 1)
        assert queued["reason"].endswith(CLEAR) and queued["eta_s"] is None
        pool = report["pools"]["rollout"]
        assert {key: pool[key] for key in ("nodes", "busy", "idle", "free", "suspect")} == {
            "nodes": 1,
            "busy": 0,
            "idle": 0,
            "free": 0,
            "suspect": 1,
        }
        assert await run.leases.heartbeat(lease) == {"stop": True, "lost": "its lease is lost: no sign of life for 30 s"}
        assert run.leases.ledger.clear("rollout-0") == ("far",)
        assert await run.leases.heartbeat(lease) == {"stop": True, "lost": "its lease is lost: no sign of life for 30 s"}
        report = await report_of(run)
        assert report["jobs"]["far"]["state"] != "lost" and report["pools"]["rollout"]["suspect"] == 0
        attaches.cancel()
        await run.stop()

    jobs = (job("far", rollout=ALONE, training=ALONE), job("next", rollout=ALONE, training=ALONE))
    served(work, attached_plan(tmp_path, *jobs))


def test_a_member_waits_for_a_lost_lease_and_says_so(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        far, near = await run.place("far", ELSEWHERE), await run.place("near")
        await run.leases.acquire(far, "rollout", 0, 1.0)
        assert not (await run.leases.acquire(near, "rollout", 0, 0.0))["granted"]
        run.driver.run.log.zero_s -= 31.0
        await run.leases.heartbeat(near)
        check_leases(run.leases.ledger)
        assert (await report_of(run))["jobs"]["near"]["reason"] == CLEAR
        run.leases.ledger.clear("rollout-0")
        await run.stop()

    served(work, attached_plan(tmp_path, job("far"), job("near")))


def test_a_phase_over_its_worst_case_is_shown_with_whom_it_blocks(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        slow, victim = await run.place("slow"), await run.place("victim")
        await run.leases.acquire(slow, "rollout", 0, 1.0)
        assert not (await run.leases.acquire(victim, "rollout", 0, 0.0))["granted"]
        assert {one["reason"] for one in (await report_of(run))["jobs"].values()} == {None}
        run.driver.run.log.zero_s -= 25.0
        for lease in (slow, victim):
            await run.leases.heartbeat(lease)
        run.pass_time(35.0 - 25.0)
        jobs = (await report_of(run))["jobs"]
        assert jobs["slow"]["state"] == jobs["victim"]["state"] == "running"
        assert timeless(jobs["slow"]["reason"]) == "its rollout has held rollout-0 for N s; its worst case is 0.5 s"
        overdue = jobs["slow"]["overdue"]
        assert 35.0 <= overdue["held_s"] < 65.0
        assert (overdue["phase"], overdue["nodes"], overdue["worst_case_s"]) == ("rollout", ["rollout-0"], 0.5)
        assert timeless(jobs["victim"]["reason"]) == (
            "waits for rollout-0, which slow has held for N s in its rollout; its worst case is 0.5 s"
        )
        assert jobs["victim"]["overdue"] is None
        await run.leases.release(slow, "rollout", 0)
        await run.settle()
        assert {one["reason"] for one in (await report_of(run))["jobs"].values()} == {None}
        await run.stop()

    served(work, attached_plan(tmp_path, job("slow", rollout=SHARED), job("victim", rollout=SHARED)))


def test_a_phase_without_a_worst_case_is_bounded_too(tmp_path: Path) -> None:
    """A first init has all nodes of its job, and nothing is known of it; nor of the phases of a job that is measured."""

    async def work(run: Served) -> None:
        slow, victim = await run.place("slow"), await run.place("victim")
        assert (await run.leases.acquire(slow, "init", None, 60.0))["granted"]
        assert await run.leases.acquire(victim, "rollout", 0, 0.0) == {"granted": False}
        await pass_time(run, 305.0, slow, victim)
        jobs, limit = (await report_of(run))["jobs"], "it has no worst case, and is given 300 s"
        assert timeless(jobs["slow"]["reason"]) == f"its init has held rollout-0 training-0 for N s; {limit}"
        assert 305.0 <= jobs["slow"]["overdue"]["held_s"] < 335.0
        refused = await run.leases.acquire(victim, "rollout", 0, 0.0)
        why = f"waits for rollout-0 training-0, which slow has held for N s in its init; {limit}"
        assert not refused["granted"] and timeless(refused["reason"]) == timeless(jobs["victim"]["reason"]) == why
        await pass_time(run, 300.0, slow, victim)
        told = await run.leases.heartbeat(slow)
        lost = "its lease is lost: its init has taken N s, more than 2 times the 300 s that it is given"
        assert told["stop"] and timeless(told["lost"]) == lost
        run.leases.ledger.clear("rollout-0")
        run.leases.ledger.clear("training-0")
        await run.leases.end(victim)
        guest = await run.place("guest")
        assert (await run.leases.acquire(guest, "rollout", 0, 60.0))["granted"]
        await pass_time(run, 7201.0, guest)
        lost = "its lease is lost: its rollout has taken 7201 s, more than 2 times the 3600 s that it is given"
        assert await run.leases.heartbeat(guest) == {"stop": True, "lost": lost}
        await run.stop()

    measured = {"profile": {"iterations": 1}, **{pool: {"host_memory_gb": 1.0} for pool in ("rollout", "training")}}
    jobs = (job("slow", rollout=SHARED), job("victim", rollout=SHARED), job("guest", **measured))
    served(work, attached_plan(tmp_path, *jobs, leases=LeaseRules(max_hold_worst_cases=2.0)))


def timeless(words: str) -> str:
    """Words without the seconds that the test itself has taken too."""
    return re.sub(r"(for|taken) \d+ s", r"\1 N s", words)


async def pass_time(run: Served, seconds: float, *leases: str) -> None:
    """It is later, and owners have been heard."""
    run.driver.run.log.zero_s -= seconds
    for lease in leases:
        run.leases.touch(lease)
    check_leases(run.leases.ledger)


@pytest.mark.parametrize(("seconds", "lost"), [(4.0, False), (7.0, True)])
def test_a_phase_of_more_than_so_many_worst_cases_loses_its_lease(tmp_path: Path, seconds: float, lost: bool) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a", ELSEWHERE)
        await run.leases.acquire(lease, "rollout", 0, 1.0)
        run.pass_time(seconds)
        answer = await run.leases.heartbeat(lease)
        assert answer["stop"] is lost
        if lost:
            assert answer["lost"] == "its lease is lost: its rollout has taken 7 s, more than 10 times its worst case of 0.5 s"
            with pytest.raises(Conflict):
                await run.leases.acquire(lease, "training", 0, 0.0)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", rollout=SHARED), leases=LeaseRules(max_hold_worst_cases=10.0)))


def test_the_coordinators_own_pause_is_no_phase_of_an_owner(tmp_path: Path) -> None:
    """What an owner could not give back, since nobody was there to take it, does not count against it."""

    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.leases.acquire(lease, "rollout", 0, 1.0)
        run.driver.run.log.zero_s -= 20.0
        other = await run.replaced()
        other.pass_time(1.0)
        assert await other.leases.heartbeat(lease) == {"stop": False}
        await other.stop()

    served(work, attached_plan(tmp_path, job("a", rollout=SHARED), leases=LeaseRules(max_hold_worst_cases=10.0)))


def test_an_owner_that_was_heard_meanwhile_is_excused_until_now_at_most(tmp_path: Path) -> None:
    """Else the lease of one that dies then would live longer by the time in which the coordinator did nothing."""

    async def work(run: Served) -> None:
        lease = await run.place("far", ELSEWHERE)
        run.driver.run.log.zero_s -= 250.0
        assert await run.leases.heartbeat(lease) == {"stop": False}
        extend_leases(run.leases.ledger, 250.0)
        run.pass_time(31.0)
        assert "lost" in await run.leases.heartbeat(lease)
        await run.stop()

    served(work, attached_plan(tmp_path, job("far")))


class _Says(ServiceClient):
    """A client whose requests are answered from a list; the last one stays."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        super().__init__("http://service", "token")
        self._answers = [*answers]

    def ask(self, method: str, path: str, body: Any = None, timeout_s: float = 0.0) -> Any:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def test_a_cancel_says_what_it_waits_for_and_returns() -> None:
    ending = {"state": "running", "reason": "is being ended"}
    lines: list[str] = []
    assert _Says(ending, {"state": "cancelled", "reason": None}).cancel("far", lines.append) == ""
    assert lines == ["waits: is being ended"]
    assert _Says(ending, {"state": "lost", "reason": CLEAR}).cancel("far", lines.append) == CLEAR
    assert lines[-1] == f"waits: {CLEAR}"


def test_a_cancelled_job_says_until_when_its_owner_has_to_end_and_may_be_cancelled_again(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("far", ELSEWHERE)
        await run.leases.acquire(lease, "rollout", 0, 1.0)
        handle = run.driver.run.handles["far"]
        await run.driver.lifecycle.cancel(handle)
        await run.settle()
        words = "is being ended: its owner has 30 s to end its rollout, and then its lease is lost"
        assert (await report_of(run))["jobs"]["far"]["reason"] == words
        await run.leases.heartbeat(lease)
        run.pass_time(31.0)
        far = (await report_of(run))["jobs"]["far"]
        assert (far["state"], far["reason"]) == ("lost", CLEAR)
        run.leases.ledger.clear("rollout-0")
        await run.settle()
        assert handle.life.is_gone
        await run.stop()

    served(work, attached_plan(tmp_path, job("far")))


def test_a_job_whose_owner_is_on_a_full_host_is_told_so(tmp_path: Path) -> None:
    """Nodes of other hosts are free, and the policy is not asked."""

    async def work(run: Served) -> None:
        await run.place("a")
        answer = await run.leases.attach("b", 0.0, HERE, (owner_pid(),), pid_space())
        words = "may use only nodes of its owner's host, or those that it names: 0 rollout and 0 training nodes of these are free"
        await run.settle()
        assert not answer["placed"] and (await report_of(run))["jobs"]["b"]["reason"] == words
        await run.stop()

    plan = attached_plan(tmp_path, job("a"), job("b"), nodes=(*PAIR, node("rollout-1", ELSEWHERE), node("training-1", ELSEWHERE)))
    served(work, replace(plan, cluster=plan.cluster.model_copy(update={"max_group_size": 1})))
