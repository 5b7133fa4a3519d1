"""A run that is killed at any write to its journal, or at several, comes to the same end; its processes are pretended."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollmux_env.cluster.events import Admitted, Arrived, Departed, Resized
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError
from runtime.checkpoints import numbers
from runtime.journal.audit import audit
from runtime.journal.record import RunRecord
from runtime.journal.replay import replay_journal
from runtime.journal.write import JOURNAL, Journal, read_facts, record_of, state_of
from tests.runtime.pretend import NODES, carry_out, plan_of

ITERATIONS = 3
JOBS: list[dict[str, Any]] = [{"id": name, "iterations": ITERATIONS} for name in "ab"]


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


def record_in(folder: Path) -> RunRecord:
    return record_of(read_facts(folder / JOURNAL))


def check_end(folder: Path, jobs: list[dict[str, Any]] = JOBS) -> RunRecord:
    """Everything was done once, in order, on what had been done before."""
    facts = read_facts(folder / JOURNAL)
    record = record_of(facts)
    assert audit(facts).problems == ()
    assert replay_journal(facts).lines == ()
    assert record.ended is not None and record.ended.outcome == "done" and not record.failed
    for job in jobs:
        mine = [done for done in record.iterations if done.job_id == job["id"]]
        assert [done.metrics["count"] for done in mine] == [*range(1, job["iterations"] + 1)]
    state = state_of(record)
    assert not state.group_list() and not state.waiting and state.rollout_nodes == state.training_nodes == 0
    assert len([fact for fact in facts if isinstance(fact, Departed)]) >= len(jobs)
    return record


def test_a_run_of_pretended_jobs_is_a_run(tmp_path: Path) -> None:
    assert carry_out(plan_of(tmp_path, JOBS)) == "done"
    record = check_end(tmp_path)
    assert not record.repeated and not record.restarted
    for name in "ab":
        assert numbers(tmp_path / "checkpoints" / name) == [2, 3]


class Resumed(NamedTuple):
    """A run that was killed: its folder, its record then, and when it was done."""

    folder: Path
    known: RunRecord
    record: RunRecord


def killed_and_resumed(tmp_path: Path, jobs: list[dict[str, Any]], before: bool, first: int) -> tuple[list[Resumed], int]:
    """Kill a run at each write from the `first` on and resume it, until it ends before its death; and the number of that write."""
    resumed = []
    for dies_at in range(first, 1000):
        folder = tmp_path / f"{dies_at}"
        folder.mkdir()
        plan = plan_of(folder, jobs)
        outcome = carry_out(plan, dies_at, before)
        if outcome == "done":
            break
        known = record_in(folder)
        if known.ended is not None:
            continue  # killed after its last word
        assert carry_out(replace(plan, resume=True)) == "done"
        resumed.append(Resumed(folder, known, check_end(folder, jobs)))
    assert outcome == "done"
    return resumed, dies_at


@pytest.mark.parametrize("before", [True, False])
def test_killed_at_any_write_a_run_goes_on_and_repeats_nothing(tmp_path: Path, before: bool) -> None:
    jobs = [*JOBS, {"id": "late", "iterations": 2, "arrival_s": 0.05}]
    resumed, dies_at = killed_and_resumed(tmp_path, jobs, before, first=2)
    for _, known, record in resumed:
        assert not record.repeated
        assert record.iterations[: len(known.iterations)] == known.iterations
        assert record.relaunched[0].at_s == known.last_s
    assert dies_at > 12  # facts of one turn of the loop are one write


@pytest.mark.parametrize("before", [True, False])
def test_killed_at_any_write_a_run_repeats_no_more_iterations_than_checkpoints_are_apart(tmp_path: Path, before: bool) -> None:
    jobs = [{"id": name, "iterations": 8, "checkpoint": {"every": 3, "keep": 1}} for name in "ab"]
    most = 0
    for folder, _, record in killed_and_resumed(tmp_path, jobs, before, first=3)[0]:
        for name in "ab":
            repeated = [done.number for done in record.repeated if done.job_id == name]
            begins = {fact.iteration for fact in record.restarted if fact.job_id == name}
            most = max(most, len(repeated))
            assert len(repeated) < 3 and begins <= {0, 3, 6}
            assert numbers(folder / "checkpoints" / name)[-1] == 8
    assert most > 0


def test_a_stopped_run_repeats_nothing_however_seldom_checkpoints_are(tmp_path: Path) -> None:
    jobs = [{"id": name, "iterations": 6, "checkpoint": {"every": 100}} for name in "ab"]
    plan = plan_of(tmp_path, jobs)
    assert carry_out(plan, stops_after=5) == "stopped"
    record = record_in(tmp_path)
    for name in "ab":
        done = sum(iteration.job_id == name for iteration in record.iterations)
        assert [fact.iterations for fact in record.checkpointed if fact.job_id == name] == [done]
    assert carry_out(replace(plan, resume=True)) == "done"
    assert not check_end(tmp_path, jobs).repeated


def test_killed_again_and_again_it_goes_on(tmp_path: Path) -> None:
    """Every resume gets some writes further than the one before, until one gets to the end."""
    plan = plan_of(tmp_path, JOBS)
    assert carry_out(plan, 5) == "killed"
    for dies_at in range(3, 1000):
        if carry_out(replace(plan, resume=True), dies_at) == "done":
            break
    record = check_end(tmp_path)
    assert not record.repeated and len(record.relaunched) > 2


def test_a_stopped_run_keeps_its_places_and_goes_on(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, JOBS)
    assert carry_out(plan, stops_after=2) == "stopped"
    record = record_in(tmp_path)
    assert record.ended is not None and record.ended.outcome == "stopped"
    placed = [(group.id, group.jobs) for group in state_of(record).group_list()]
    assert placed and not any(isinstance(event, Departed) for event in record.log)
    assert carry_out(replace(plan, resume=True)) == "done"
    record = check_end(tmp_path)
    assert not record.repeated and [event.job_id for event in record.log if isinstance(event, Admitted)] == ["a", "b"]


@pytest.mark.parametrize("without", [{"options": {"keeps": False}}, {"checkpoint": "none"}])
def test_a_job_without_checkpoints_begins_again(tmp_path: Path, without: dict[str, Any]) -> None:
    jobs: list[dict[str, Any]] = [{"id": "a", "iterations": 3, **without}, {"id": "b", "iterations": 3}]
    plan = plan_of(tmp_path, jobs)
    assert carry_out(plan, stops_after=2) == "stopped"
    assert carry_out(replace(plan, resume=True)) == "done"
    record = check_end(tmp_path, jobs)
    assert record.repeated and {done.job_id for done in record.repeated} == {"a"}
    assert {fact.job_id: fact.iteration for fact in record.restarted}["a"] == 0


def test_on_fewer_nodes_the_jobs_that_no_longer_fit_arrive_again(tmp_path: Path) -> None:
    jobs = [{"id": name, "iterations": 4, "slo": 1.0} for name in "ab"]
    plan = plan_of(tmp_path, jobs, policy="solo")
    assert carry_out(plan, stops_after=2) == "stopped"
    assert len(state_of(record_in(tmp_path)).group_list()) == 2
    fewer = tuple(node for node in NODES if node.name.endswith("0"))
    assert carry_out(replace(plan, resume=True, nodes=fewer)) == "done"
    record = check_end(tmp_path, jobs)
    assert not record.repeated
    *_, resized = (event for event in record.log if isinstance(event, Resized))
    assert (resized.rollout_nodes, resized.training_nodes) == (1, 1)
    assert [event.job_id for event in record.log if isinstance(event, Admitted)] == ["a", "b", "b"]


def test_jobs_on_a_machine_that_has_gone_arrive_again_and_the_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second job's nodes are on a machine that goes; it waits for the first one's, since there are no others left."""
    nodes = tuple(replace(node, machine=f"m{node.name[-1]}") for node in NODES)
    jobs = [{"id": name, "iterations": 4, "slo": 1.0} for name in "ab"]
    monkeypatch.setattr("runtime.machines.nodes.dead_machines", lambda machines: {"m1"} & machines)
    assert carry_out(plan_of(tmp_path, jobs, nodes, policy="solo"), loses="b") == "done"
    record = check_end(tmp_path, jobs)
    assert not record.repeated
    assert [fact.job_id for fact in record.restarted] == ["b"]
    assert [event.job.id for event in record.log if isinstance(event, Arrived)] == ["a", "b", "b"]
    *_, resized = (event for event in record.log if isinstance(event, Resized))
    assert (resized.rollout_nodes, resized.training_nodes) == (1, 1)
    assert {name for part in record.phases if part.end_s > resized.at_s for name in part.nodes} == {"rollout-0", "training-0"}
    admitted = [event for event in record.log if isinstance(event, Admitted)]
    assert [event.job_id for event in admitted] == ["a", "b", "b"]


def test_iterations_that_a_job_has_done_do_not_become_fewer_when_it_goes_back_and_is_killed_again(tmp_path: Path) -> None:
    jobs = [{"id": "a", "iterations": 20}]
    plan = plan_of(tmp_path, jobs)
    carry_out(plan, 10)
    before = len(record_in(tmp_path).iterations)
    assert 2 < before < 20
    shutil.rmtree(tmp_path / "checkpoints" / "a")
    plan = replace(plan, resume=True)
    for dies_at in range(1, 5):
        carry_out(plan, dies_at)
        if (record := record_in(tmp_path)).restarted:
            break
    assert not record.iterations and len(record.repeated) == before
    done: list[int] = []
    assert carry_out(plan, then={1: lambda driver: done.append(driver.run.handles["a"].counts.done)}) == "done"
    assert done == [before]


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    Journal(tmp_path / JOURNAL).close()
    held = Journal(tmp_path / JOURNAL, resume=True)
    with pytest.raises(InputError, match=r"a run is under way in this folder \(process \d+\)$"):
        Journal(tmp_path / JOURNAL, resume=True)
    held.close()
    Journal(tmp_path / JOURNAL, resume=True).close()


@given(
    iterations=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    late=st.integers(0, 2),
    policy=st.sampled_from(["rollmux", "solo"]),
    kills=st.lists(st.integers(2, 30), max_size=3),
    compare=st.booleans(),
)
@example(iterations=[2, 2, 1, 3], late=0, policy="rollmux", kills=[2, 21], compare=True)  # while it was to be measured alone
@settings(max_examples=8)
def test_whatever_the_jobs_and_the_kills_the_state_is_what_replaying_gives(
    tmp_path_factory: pytest.TempPathFactory, iterations: list[int], late: int, policy: str, kills: list[int], compare: bool
) -> None:
    folder = tmp_path_factory.mktemp("run")
    jobs: list[dict[str, Any]] = [
        {"id": f"j{k}", "iterations": n, "arrival_s": 0.02 * (k >= late)} for k, n in enumerate(iterations)
    ]
    plan = plan_of(folder, jobs, policy=policy, compare=compare)
    outcome = "begun"
    for dies_at in [*kills, -1]:
        states: list[State] = []
        outcome = carry_out(plan, dies_at, states=states)
        if outcome == "done":
            break
        plan = replace(plan, resume=True)
        then, now = states[0], state_of(record_in(folder))
        assert (now.group_list(), now.waiting, now.departed) == (then.group_list(), then.waiting, then.departed)
        assert [now.iterations_done(job["id"]) for job in jobs if now.knows(job["id"])] == [
            then.iterations_done(job["id"]) for job in jobs if then.knows(job["id"])
        ]
    assert outcome == "done"
    check_end(folder, jobs)
