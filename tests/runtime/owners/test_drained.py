"""Attached jobs on nodes that are drained: their owners are told, and leave at once or at the end of an iteration."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollmux_env.cluster.events import Requeued
from runtime.coordinator import planned_drains
from runtime.report.usage import past_usage
from runtime.service import notices
from runtime.service.notices import Notices
from runtime.service.report import past_report
from tests.runtime.owners.test_holdups import report_of
from tests.runtime.pretend import PAIR, PAIRS, Served, attached_plan, job, served

NOW_S = 2e9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The wall clock, in seconds since 1970."""
    now_s = [NOW_S]
    for module in (planned_drains, notices):
        monkeypatch.setattr(module, "time", lambda: now_s[0])
    return now_s


def test_a_job_that_may_be_parked_leaves_at_the_end_of_its_iteration(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease, changes = await run.place("a"), run.driver.lifecycle.node_changes
        await run.phase(lease, "rollout", 0)
        answer = changes.drain("rollout-0")
        assert (answer["moves"], answer["queues"], answer["waits_for"]) == ([], ["a"], [])
        reports = run.driver.lifecycle.planned_drains.reports
        assert [(view["starts_s"], view["deadline_s"], view["jobs"]) for view in reports()] == [(None, None, ["a"])]
        await run.phase(lease, "training", 0)
        assert await run.leases.acquire(lease, "rollout", 1, 60.0) == {"granted": False, "move": True}
        assert (await report_of(run))["jobs"]["a"]["state"] == "moving"  # so `rollmux exec` starts the command again
        await run.leases.end(lease)
        await run.settle()
        assert reports() == [] and run.driver.run.nodes.drained == {"rollout-0"}
        lease = await run.place("a")
        assert "rollout-1" in run.leases.ledger.lease(lease).owner.nodes
        await run.iterate(lease, 1)
        facts = await run.stop()
        assert [fact.job.id for fact in facts if isinstance(fact, Requeued)] == ["a"]

    served(work, attached_plan(tmp_path, job("a", parkable=True), nodes=PAIRS))


@pytest.mark.parametrize("again", [False, True])
def test_an_owner_between_two_iterations_is_told_before_the_next_one(again: bool, tmp_path: Path) -> None:
    """The sync of the last one is not reported: it is over with the next request."""

    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        run.driver.lifecycle.node_changes.drain("rollout-0")
        run = await run.replaced() if again else run
        answers = [await run.leases.acquire(lease, "rollout", 1, 60.0) for _ in range(2)]
        assert answers[1] == {"granted": False, "move": True} and not answers[0]["granted"]
        await run.leases.end(lease)
        await run.settle()
        assert run.driver.run.scheduler.state.waiting == ["a"] and run.driver.run.handles["a"].iteration == 1
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", movable=True, sync_s=1.0)))


def test_a_job_that_cannot_leave_is_named_before_and_after_the_deadline(tmp_path: Path, clock: list[float]) -> None:
    sent: list[tuple[str, str, str]] = []

    class Sender:
        def put(self, notice: dict[str, Any]) -> None:
            sent.append((notice["kind"], notice["job"], notice["text"]))

    async def work(run: Served) -> None:
        lease, drains = await run.place("a"), run.driver.lifecycle.planned_drains
        writer = Notices(run.driver.run, [Sender()], drains)  # type: ignore[list-item]

        async def look() -> dict[str, Any]:
            drains.look()
            writer.look()
            await run.settle()
            (report,) = drains.reports()
            return report

        assert await run.leases.heartbeat(lease) == {"stop": False}
        deadline_s = NOW_S + 1000
        answer = drains.drain("rollout-0", deadline_s=deadline_s)
        starts_s = deadline_s - 60 - 20
        assert answer == {"node": "rollout-0", "drained": False, "starts_s": starts_s, "deadline_s": deadline_s, "waits_for": ["a"]}
        assert await run.leases.heartbeat(lease) == {"stop": False, "leave_by_s": deadline_s}
        report = {"node": "rollout-0", "deadline_s": deadline_s, "jobs": ["a"], "waits_for": ["a"], "overdue": False}
        assert await look() == report | {"starts_s": starts_s} and not sent
        clock[0] = starts_s
        assert await look() == report | {"starts_s": None}
        run = await run.replaced()
        drains = run.driver.lifecycle.planned_drains
        writer = Notices(run.driver.run, [Sender()], drains, run.driver.record)  # type: ignore[list-item]
        assert await run.leases.heartbeat(lease) == {"stop": False, "leave_by_s": deadline_s}
        await look()
        assert len(sent) == 1  # the service before this one has written it
        clock[0] = deadline_s
        for _ in range(2):
            assert await look() == report | {"starts_s": None, "overdue": True}
        words = "rollout-0", "2033-05-18T03:50:00Z"
        assert sent == [
            ("drain", "a", "cannot leave {}, which is drained, {}".format(*words)),
            ("drain", "a", "is on {} after its deadline, {}".format(*words)),
        ]
        assert [line for line in run.driver.run.log.lines(0) if "is held by a after its deadline" in line]
        drains.undrain("rollout-0")
        assert await run.leases.heartbeat(lease) == {"stop": False} and drains.reports() == []
        await run.iterate(lease, 0)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a"), nodes=PAIR))


def test_a_node_to_which_a_job_moves_is_not_empty(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease, changes = await run.place("a"), run.driver.lifecycle.node_changes
        await run.phase(lease, "rollout", 0)
        assert changes.drain("rollout-0")["moves"] == ["a"]
        answer = changes.drain("rollout-1")
        assert (answer["drained"], answer["moves"], answer["waits_for"]) == (False, ["a"], [])
        reports = run.driver.lifecycle.planned_drains.reports
        assert [(view["node"], view["jobs"]) for view in reports()] == [("rollout-0", ["a"]), ("rollout-1", ["a"])]
        await run.phase(lease, "training", 0)
        assert await run.leases.acquire(lease, "rollout", 1, 60.0) == {"granted": False, "move": True}
        await run.leases.end(lease)
        lease = await run.place("a")
        assert await run.leases.acquire(lease, "rollout", 1, 60.0) == {"granted": False, "move": True}
        await run.leases.end(lease)
        await run.settle()
        assert reports() == [] and run.driver.run.scheduler.state.waiting == ["a"]
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", movable=True), nodes=PAIRS))


def test_the_estimate_of_a_job_in_the_queue_is_of_what_is_left_too(tmp_path: Path) -> None:
    """Its owner stated the length of the whole job."""

    async def work(run: Served) -> None:
        lease, planner = await run.place("a"), run.driver.run.scheduler.planner
        for iteration in range(2):
            await run.iterate(lease, iteration)
        run.driver.lifecycle.node_changes.drain("rollout-0")
        assert await run.leases.acquire(lease, "rollout", 2, 60.0) == {"granted": False, "move": True}
        await run.leases.end(lease)
        await run.settle()
        assert planner.ranking.keys == {"a": (5 - 2) * 20.0}
        await run.stop()

    stated = job("a", iterations=10, estimate={"iterations": 5}, movable=True)
    served(work, attached_plan(tmp_path, stated, policy="solo,order=shortest"))


def test_the_time_in_the_queue_after_a_drain_is_time_without_a_place(tmp_path: Path) -> None:
    """As `rollmux usage` has it. A job that is cancelled there has ended then, and not when it left its nodes."""

    async def leave(run: Served) -> None:
        changes = run.driver.lifecycle.node_changes
        lease = await run.place("a")
        changes.drain("rollout-0")
        assert await run.leases.acquire(lease, "rollout", 0, 60.0) == {"granted": False, "move": True}
        await run.leases.end(lease)
        await run.settle()
        run.pass_time(3600.0)

    async def work(run: Served) -> None:
        await leave(run)
        run.driver.lifecycle.node_changes.undrain("rollout-0")
        await leave(run)
        await run.driver.lifecycle.cancel(run.driver.run.handles["a"])
        await run.settle()
        run.pass_time(3600.0)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a", movable=True)))
    (own,), (used,) = past_report(tmp_path)["jobs"], past_usage(tmp_path, ["job"])
    assert used["wait_h"] == pytest.approx(2.0, abs=0.1) and own["queue_h"] == pytest.approx(used["wait_h"], abs=1e-3)
    assert own["completion_h"] == pytest.approx(own["queue_h"], abs=0.1)
    assert own["ended_s"] == pytest.approx(3600 * own["completion_h"], abs=1.0)


def test_another_deadline_is_told_too(tmp_path: Path, clock: list[float]) -> None:
    """A node that is drained already takes no deadline, so that the drain is dropped first."""
    sent: list[str] = []

    async def work(run: Served) -> None:
        await run.place("a")
        drains = run.driver.lifecycle.planned_drains
        sender: Any = SimpleNamespace(put=lambda notice: sent.append(notice["text"]))
        writer = Notices(run.driver.run, [sender], drains)
        for deadline_s in (NOW_S + 30, NOW_S + 60):
            drains.drain("rollout-0", deadline_s=deadline_s)
            writer.look()
            await run.settle()
            drains.undrain("rollout-0")
        assert [text[-9:] for text in sent] == ["03:33:50Z", "03:34:20Z"]
        await run.stop()

    served(work, attached_plan(tmp_path, job("a"), nodes=PAIRS))


def test_a_job_that_cannot_leave_gets_other_nodes_when_it_attaches_again(tmp_path: Path) -> None:
    async def work(run: Served) -> None:
        lease = await run.place("a")
        await run.iterate(lease, 0)
        assert run.driver.lifecycle.node_changes.drain("rollout-0")["waits_for"] == ["a"]
        await run.leases.end(lease)
        await run.settle()
        assert (await report_of(run))["jobs"]["a"]["state"] == "running"  # so `rollmux exec` does not start the command again
        lease = await run.place("a")
        assert run.leases.ledger.lease(lease).owner.nodes[0] == "rollout-1"
        await run.iterate(lease, 1)
        await run.stop()

    served(work, attached_plan(tmp_path, job("a"), nodes=PAIRS))


def test_a_drain_begins_early_enough_for_a_checkpoint_and_for_a_measurement(tmp_path: Path, clock: list[float]) -> None:
    async def work(run: Served) -> None:
        await run.place("a")
        drains, state = run.driver.lifecycle.planned_drains, run.driver.run
        state.handles["a"].checkpoints.seconds = 200.0
        assert drains.drain("rollout-0", deadline_s=NOW_S + 9000)["starts_s"] == NOW_S + 9000 - 60 - 20 - 200
        lease = await run.place("guest")
        assert drains.drain("rollout-1", deadline_s=NOW_S + 9000)["starts_s"] == NOW_S + 9000 - 60 - 3600
        await run.phase(lease, "rollout", 0)
        await run.phase(lease, "training", 0)
        state.handles["guest"].profile.longest_s = {"rollout": 70.0, "training": 30.0}
        *_, last = drains.reports()
        assert last["starts_s"] == NOW_S + 9000 - 60 - 200
        await run.stop()

    guest = job("guest", iterations=4, rollout={}, training={}, profile={"iterations": 3})
    served(work, attached_plan(tmp_path, job("a", movable=True), guest, nodes=PAIRS, policy="solo"))
