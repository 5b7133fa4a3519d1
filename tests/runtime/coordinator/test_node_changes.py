"""An operator drains nodes of a run, takes them back and adds some: jobs lose nothing, and the journal tells it all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Moved, Requeued
from rollmux_env.errors import Conflict, NotFound
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.facts import Drained, Fact, Iterated, Joined, Queued, Undrained
from runtime.coordinator.consequences import Consequences
from runtime.journal.audit import audit
from runtime.journal.facts import Assigned, Returned, SchedulerInformed
from runtime.journal.record import RunRecord
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, read_facts, record_of
from runtime.machine import Node
from runtime.run.driver import RunDriver
from tests.runtime.pretend import NODES, carry_out, plan_of

PAIR = (NODES[0], NODES[2])  # rollout-0 and training-0
JOBS: list[dict[str, Any]] = [{"id": name, "iterations": 4} for name in "ab"]
Operator = Callable[[RunDriver], None]


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


def check_end(folder: Path, jobs: list[dict[str, Any]] = JOBS) -> RunRecord:
    """Every iteration was done once, the journal adds up, and the scheduler decides the same again."""
    facts = read_facts(folder / JOURNAL)
    record = record_of(facts)
    assert audit(facts).problems == ()
    assert replay_journal(facts).lines == ()
    assert not record.failed and not record.repeated
    for job in jobs:
        counts = [done.metrics["count"] for done in record.iterations if done.job_id == job["id"]]
        assert counts == [*range(1, job["iterations"] + 1)]
    return record


def drains(*names: str, into: dict[str, Any] | None = None) -> Operator:
    def drain(driver: RunDriver) -> None:
        for name in names:
            answer = driver.lifecycle.node_changes.drain(name)
            if into is not None:
                into[name] = answer

    return drain


def when(driver: RunDriver, holds: Callable[[], bool], do: Callable[[], Any]) -> None:
    """Do something as soon as something else is so."""

    async def wait() -> None:
        while not holds():
            await asyncio.sleep(0.005)
        do()

    driver.run.spawn(wait())


def ran_on(record: RunRecord, node: str, from_s: float) -> list[str]:
    """Jobs that got a permit on a node after a time."""
    return [part.job_id for part in record.phases if node in part.nodes and part.start_s > from_s]


def test_jobs_move_to_other_nodes_at_the_end_of_their_iteration(tmp_path: Path) -> None:
    answers: dict[str, Any] = {}
    assert carry_out(plan_of(tmp_path, JOBS), then={3: drains("rollout-0", into=answers)}) == "done"
    record = check_end(tmp_path)
    assert answers["rollout-0"] == {"node": "rollout-0", "drained": False, "moves": ["a", "b"], "queues": [], "waits_for": []}
    assert [event.job_id for event in record.log if isinstance(event, Moved)] == ["a", "b"] and not record.restarted
    ((drained_s, _),) = record.reports_of(Drained)
    left_s = max(event.at_s for event in record.assigned if isinstance(event, Returned) and event.node == "rollout-0")
    assert drained_s < left_s and ran_on(record, "rollout-0", left_s) == []
    assert record.drained_nodes == {"rollout-0"}
    assert ran_on(record, "rollout-1", drained_s) and ran_on(record, "training-1", drained_s)


def test_where_there_is_no_room_they_wait_first_in_the_queue_and_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    jobs = [{"id": name, "iterations": 8} for name in "ab"]
    answers: dict[str, Any] = {}

    def operate(driver: RunDriver) -> None:
        state, changes = driver.run.scheduler.state, driver.lifecycle.node_changes
        answers.update(changes.drain("training-0"))
        assert [handle.ending.deaths for handle in driver.run.handles.values()] == [0, 0]
        when(driver, lambda: not state.group_list(), lambda: changes.undrain("training-0"))

    assert carry_out(plan_of(tmp_path, jobs, PAIR), then={3: operate}) == "done"
    record = check_end(tmp_path, jobs)
    assert (answers["queues"], answers["moves"], answers["waits_for"]) == (["a", "b"], [], [])
    assert {fact.why for fact in record.restarted} == {"its node is drained"}
    requeued = [event for event in record.log if isinstance(event, Requeued)]
    assert {event.job.id for event in requeued} == {"a", "b"} and record.drained_nodes == set()


@pytest.mark.parametrize("options", [{}, {"keeps": False, "turns": True, "profiled": True}])
def test_a_move_that_is_decided_as_an_iteration_ends_needs_no_other_one(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy can be asked only then, as after a guest. The job has checkpoints, or needs none to move."""
    asks, step = Scheduler.asks, Scheduler.record

    def note(self: Scheduler, reported: Iterable[Fact]) -> None:
        monkeypatch.setattr(Scheduler, "asks", asks if any(isinstance(fact, Iterated | Queued) for fact in reported) else False)
        step(self, reported)

    monkeypatch.setattr(Scheduler, "record", note)
    jobs = [{"id": "a", "iterations": 6, "options": options}]
    assert carry_out(plan_of(tmp_path, jobs), then={2: drains("rollout-0")}) == "done"
    record = record_of(read_facts(tmp_path / JOURNAL))
    (moved_s,) = (event.at_s for event in record.log if isinstance(event, Moved))
    assert ran_on(record, "rollout-0", moved_s) == [] and ran_on(record, "rollout-1", moved_s)


@pytest.mark.parametrize("nodes", [NODES, PAIR])
def test_no_process_is_started_on_a_drained_node(nodes: tuple[Node, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for the iteration with which a job begins again: it moves before it, or waits in the queue."""
    jobs = [{"id": "a", "iterations": 6}]
    plan = plan_of(tmp_path, jobs, nodes)

    def drain_and_stop(driver: RunDriver) -> None:
        driver.stop()
        driver.run.apply(Consequences((Drained(frozenset({"rollout-0"})),)))  # the policy cannot be asked any more

    async def undrain_and_continue(driver: RunDriver) -> str:
        state, changes = driver.run.scheduler.state, driver.lifecycle.node_changes
        when(driver, lambda: bool(state.waiting), lambda: changes.undrain("rollout-0"))
        return await do(driver)

    assert carry_out(plan, then={2: drain_and_stop}) == "stopped"
    again_s = record_of(read_facts(tmp_path / JOURNAL)).last_s
    do = RunDriver.carry_out
    monkeypatch.setattr(RunDriver, "carry_out", undrain_and_continue)
    assert carry_out(replace(plan, resume=True)) == "done"
    record = check_end(tmp_path, jobs)
    used_s = next((at_s for at_s, _ in record.reports_of(Undrained)), inf)
    assert ran_on(record, "rollout-0", again_s) == ran_on(record, "rollout-0", max(again_s, used_s))
    assert (used_s < inf) == (nodes == PAIR)


def test_who_cannot_move_is_waited_for_and_others_go_on_elsewhere(tmp_path: Path) -> None:
    jobs = [{"id": "stays", "iterations": 6, "movable": False}, {"id": "b", "iterations": 6}]
    answers: dict[str, Any] = {}
    assert carry_out(plan_of(tmp_path, jobs), then={2: drains("rollout-0", into=answers)}) == "done"
    record = check_end(tmp_path, jobs)
    assert answers["rollout-0"]["waits_for"] == ["stays"] and answers["rollout-0"]["moves"] == ["b"]
    assert {part.job_id for part in record.phases if "rollout-1" in part.nodes} == {"b"}


@pytest.mark.parametrize("dies_at", [*range(14, 40, 3)])
def test_killed_while_nodes_are_drained_it_goes_on_with_the_drain(tmp_path: Path, dies_at: int) -> None:
    """The jobs cannot keep their training node on the other rollout node: they wait until it is free, and go there."""
    plan = plan_of(tmp_path, JOBS)
    outcome = carry_out(plan, dies_at, then={2: drains("training-1", "rollout-0")})
    known = record_of(read_facts(tmp_path / JOURNAL))
    if outcome == "killed" and known.ended is None:
        assert carry_out(replace(plan, resume=True)) == "done"
    record = check_end(tmp_path)
    assert record.drained_nodes == known.drained_nodes
    if known.drained_nodes == {"training-1", "rollout-0"}:
        (first_s, _), (second_s, _), *_ = record.reports_of(Drained)
        assert ran_on(record, "training-1", first_s) == []
        assert set(ran_on(record, "rollout-1", second_s)) <= {"a", "b"}


def test_a_node_that_joins_takes_jobs_that_wait_also_after_a_restart(tmp_path: Path) -> None:
    """Under `solo` nobody shares: the second job waits until another pair of nodes is there."""
    plan = plan_of(tmp_path, JOBS, PAIR, policy="solo")
    new = tuple(replace(node, name=node.name.replace("1", "7"), machine="n") for node in (NODES[1], NODES[3]))

    def join(driver: RunDriver) -> None:
        assert driver.run.scheduler.state.waiting == ["b"]
        driver.lifecycle.node_changes.join(new)
        assert driver.run.scheduler.state.waiting == []

    assert carry_out(plan, stops_after=4, then={2: join}) == "stopped"
    assert carry_out(replace(plan, resume=True, nodes=(*PAIR, *new))) == "done"
    record = check_end(tmp_path)
    assert [fact.nodes for _, fact in record.reports_of(Joined)] == [new] and record.nodes["rollout-7"].machine == "n"
    assert record.cluster.pools["rollout"].max_nodes == 2 and record.started.cluster.pools["rollout"].max_nodes == 1
    assert {part.job_id for part in record.phases if "rollout-7" in part.nodes} == {"b"}


def test_a_node_unlike_the_others_is_not_used(tmp_path: Path) -> None:
    lines: list[str] = []

    def join(driver: RunDriver) -> None:
        gpu, small = replace(NODES[0], name="rollout-8", device="1 GPU H100"), replace(NODES[0], name="rollout-9", memory_gb=4.0)
        driver.lifecycle.node_changes.join([gpu, small])
        lines.extend(driver.run.log.lines(0))

    assert carry_out(plan_of(tmp_path, JOBS), then={2: join}) == "done"
    assert not [*check_end(tmp_path).reports_of(Joined)]
    assert any(
        "rollout-8 has joined, and is not used: it has 1 GPU H100, and the others of its pool 1 core" in line for line in lines
    )
    assert any(
        "rollout-9 has joined, and is not used: it has 4 GB of host memory, and the others of its pool 8" in line for line in lines
    )


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    def operate(driver: RunDriver) -> None:
        changes = driver.lifecycle.node_changes
        for call in (changes.drain, changes.undrain):
            with pytest.raises(NotFound, match="rollout-9: this service has no such node"):
                call("rollout-9")
        with pytest.raises(Conflict, match="rollout-1: is not drained"):
            changes.undrain("rollout-1")
        assert changes.drain("rollout-1")["drained"]
        with pytest.raises(Conflict, match="rollout-1: is drained already"):
            changes.drain("rollout-1")

    assert carry_out(plan_of(tmp_path, JOBS), then={2: operate}) == "done"
    assert check_end(tmp_path).drained_nodes == {"rollout-1"}


def test_an_audit_sees_a_drained_node_that_is_used(tmp_path: Path) -> None:
    assert carry_out(plan_of(tmp_path, JOBS)) == "done"
    facts = read_facts(tmp_path / JOURNAL)
    at = next(number for number, fact in enumerate(facts) if isinstance(fact, Assigned))
    node = facts[at].node  # type: ignore[union-attr]
    tampered = [*facts[:at], SchedulerInformed(facts[at].at_s, (Drained(frozenset({node})),)), *facts[at:]]  # type: ignore[union-attr]
    assert any(f"{node} becomes" in line and "it is drained" in line for line in audit(tampered).problems)


def test_facts_of_nodes_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    node = Node("rollout-9", "rollout", "m", (1, 2), (0,), 8.0, "1 GPU")
    assert carry_out(
        plan_of(tmp_path, JOBS),
        then={2: lambda driver: driver.run.log.write(SchedulerInformed(driver.run.log.now(), (Joined((node,)),)))},
    ) == ("done")
    assert [fact.nodes for _, fact in record_of(read_facts(tmp_path / JOURNAL)).reports_of(Joined)] == [(node,)]
