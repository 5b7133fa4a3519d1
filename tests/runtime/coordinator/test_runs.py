"""Runs of toy jobs on real Ray: turns, permits, failures, profiles, moves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import worker

from rollmux_env.cluster.events import Admitted, Departed, Moved, Resumed
from runtime.jobside.worker import ActorHandle, on_machine, results
from runtime.journal.audit import check_run
from runtime.journal.facts import Returned
from runtime.journal.write import JOURNAL, state_of
from runtime.machine import Node
from runtime.phases import WorkerDied
from tests.runtime.coordinator.conftest import Running


class Idle:
    """A worker that does nothing."""

    def call(self, method: str) -> None: ...


SLEEPER = {"class": "toy_jobs:Sleeper"}


def job(job_id: str, **options: object) -> dict[str, object]:
    return {"id": job_id, **SLEEPER, "options": options}


def test_a_run_starts_only_the_processes_of_ray_that_it_uses(nodes: tuple[Node, ...]) -> None:
    own: Any = worker._global_node
    assert {kind for kind, started in own.all_processes.items() if started} == {"gcs_server", "raylet"}


def test_two_jobs_take_turns(run: Running) -> None:
    outcome, record, lines = run([job("a", rollout_s=0.1, train_s=0.1), job("b", rollout_s=0.1, train_s=0.1)])
    assert outcome == "done" and not record.failed and record.ended
    check_run(record)
    assert [event.placement.strategy for event in record.log if isinstance(event, Admitted)] == ["isolated", "direct_packing"]
    assert {name: sum(done.job_id == name for done in record.iterations) for name in "ab"} == {"a": 3, "b": 3}
    assert all(done.metrics == {"reward": done.number / 10, "cores": 1.0} for done in record.iterations)
    together = [
        (one, other)
        for one in record.phases
        for other in record.phases
        if one.job_id < other.job_id and one.group == other.group == 0 and one.start_s < other.end_s and other.start_s < one.end_s
    ]
    assert together and all(one.pool != other.pool for one, other in together)
    assert state_of(record).departed == 2 and not state_of(record).group_list()
    assert any("a: iteration 3 of 3" in line for line in lines)


def test_two_jobs_take_turns_on_one_device(run: Running, nodes: tuple[Node, ...]) -> None:
    """Rollout and training of each follow one another on the only node; the audit in `run` agrees."""
    jobs = [{**job(name, rollout_s=0.05, train_s=0.05), "slo": 1000.0} for name in "ab"]
    outcome, record, _ = run(jobs, policy="rollmux,prune=false", on=nodes[1:])
    assert outcome == "done" and not record.failed
    check_run(record)
    assert [event.placement.strategy for event in record.log if isinstance(event, Admitted)] == ["isolated", "direct_packing"]
    assert {(part.pool, part.nodes) for part in record.phases} == {("training", ("training-0",))}
    turns = [f"{part.job_id} {part.phase}" for part in record.phases if not part.profile and part.phase != "init"]
    assert set([*pairwise(turns)][::2]) == {("a rollout", "a training"), ("b rollout", "b training")}
    assert state_of(record).departed == 2


MEET = {
    "syncs": {
        "step 0": "wait holds-0",
        "rollout 0": "touch syncs-0",
        "rollout 1": "touch rolled",
        "sync 1": "touch syncs; wait holds",
        "checkpoint 1": "touch synced",  # the sync is known to be over
    },
    "holds": {"rollout 0": "touch holds-0", "sync 0": "wait syncs-0"}
    | {f"rollout {k}": "if rolled; wait syncs; touch holds; wait synced" for k in (1, 2)},  # if not yet, its turn comes again
}
"""One's second sync ends when the other has begun a rollout, and that rollout when the sync is known to be over.

The one that syncs begins after the first rollout of the other, whose first sync ends when it has: so both are in the round robin by
then, and nobody waits for a rollout whose turn comes after its own.
"""


def test_weights_arrive_while_another_job_holds_the_node(run: Running, tmp_path: Path) -> None:
    (tmp_path / "meet").mkdir()
    jobs = [
        {"id": name, "class": "toy_jobs:Counter", "options": {"folder": str(tmp_path / "meet"), "does": does}, "slo": 1000.0}
        for name, does in MEET.items()
    ]
    outcome, record, _ = run(jobs)
    assert outcome == "done" and not record.failed
    check_run(record)
    (sync,) = (sync for sync in record.syncs if sync.job_id == "syncs" and sync.iteration == 1)
    assert sync.sharing_jobs == ("holds",)
    holds = [part for part in record.phases if part.job_id == "holds" and part.phase == "rollout"]
    assert any(part.start_s < sync.end_s < part.end_s for part in holds)


def test_the_profile_is_a_phase_like_others_and_is_made_once(run: Running) -> None:
    options = {"rollout_s": 0.05, "train_s": 0.03}
    _, first, _ = run([job("a", **options)])
    phases = [part.phase for part in first.phases if part.profile]
    assert phases == ["init", "rollout", "training"] and not first.profiled[0].cached
    rollout, training = first.jobs["a"].rollout, first.jobs["a"].training
    assert rollout.worst_case_s >= 0.05 and training.worst_case_s >= 0.03
    assert 0.01 < rollout.host_memory_gb < 2 and rollout.switch.cold_s >= 0
    _, second, _ = run([{**job("b", **options), "slo": 2.0, "iterations": 1}])
    assert second.profiled[0].cached and not any(part.profile for part in second.phases)
    assert [(part.phase, part.cold) for part in second.phases] == [("init", True), ("rollout", True), ("training", True)]
    _, third, _ = run([job("c", rollout_s=0.06)])
    assert not third.profiled[0].cached


WRONG = "it went wrong in two lines"
POISON = {
    "init": ({"init": "raise"}, "init", f"ValueError: {WRONG}"),
    "rollout": ({"rollout 1": "raise"}, "rollout", f"ValueError: {WRONG}"),
    "train": ({"train 1": "raise"}, "training", f"ValueError: {WRONG}"),
    "no-memory": ({"train 1": "raise MemoryError"}, "training", f"MemoryError: {WRONG}"),
    "sync": ({"sync 1": "raise"}, "sync", f"ValueError: {WRONG}"),
    "killed": ({"train 1": "kill"}, "step", "its controller has died (3 times in a row without an iteration done)"),
}


def test_poison_jobs_fail_alone_with_errors_of_their_own(run: Running) -> None:
    outcome, record, lines = run([job("good"), *(job(name, does=does) for name, (does, *_) in POISON.items())])
    assert outcome == "done"
    found = {failed.job_id: (failed.where, failed.problem) for failed in record.failed}
    assert found == {name: (where, problem) for name, (_, where, problem) in POISON.items()}
    assert len(record.failed) == len(POISON)
    assert sum(done.job_id == "good" for done in record.iterations) == 3
    assert {done.job_id for done in record.iterations} == {"good", *POISON} - {"init"}
    assert all(done.number == 0 for done in record.iterations if done.job_id != "good")
    assert any("killed: FAILED in step: its controller has died" in line for line in lines)
    check_run(record)
    assert not state_of(record).group_list()


@pytest.mark.long
def test_a_worker_that_always_dies_or_raises_ends_its_own_job(run: Running) -> None:
    options = {what: {"does": {"rollout 1": f"worker rollout {what}"}} for what in ("die", "fail")}
    bad = [{"id": what, "class": "toy_jobs:WithWorkers", "options": options[what]} for what in options]
    _, record, lines = run([job("good"), *bad])
    problems = {failed.job_id: failed.problem for failed in record.failed}
    assert problems["die"].startswith("its process on rollout-0 (toy_jobs:Echo) has died")
    assert problems["fail"] == "ValueError: the worker's own words"
    assert all(failed.where == "rollout" for failed in record.failed)
    for poison in problems:  # each worker has told it in each of its lives
        assert sum(f"{poison}: WARNING: a worker has been asked\\nfor its word" in line for line in lines) == 1
    assert sum(done.job_id == "good" for done in record.iterations) == 3
    check_run(record)


def test_a_process_whose_machine_goes_before_it_begins_has_died(nodes: tuple[Node, ...]) -> None:
    """Found by chaos: its job failed for good, with an ActorUnschedulableError, in place of going on elsewhere."""
    gone = "1" * len(nodes[0].machine)
    actor = ray.remote(Idle).options(**on_machine(gone)).remote()
    handle = ActorHandle(actor, replace(nodes[0], machine=gone), "test_runs:Idle", "step")
    with pytest.raises(WorkerDied, match=r"its process on rollout-0 .+ has died before it began: its machine has gone"):
        results(handle.call("run"))


def test_phases_out_of_order_and_checkpoints_that_lead_nowhere_are_refused(run: Running) -> None:
    twice, forgets = {"id": "twice", "class": "toy_jobs:Doubled"}, {"id": "forgets", "class": "toy_jobs:Forgetful"}
    _, record, _ = run([twice, forgets, forgets | {"id": "needs-none", "checkpoint": "none"}])
    assert {failed.job_id: failed.problem for failed in record.failed} == {
        "twice": "the phase 'train' came where 'sync' was due; an iteration is rollout, train, sync",
        "forgets": "toy_jobs:Forgetful: has a method checkpoint and no method restore, to continue from it",
    }


def test_a_late_job_is_profiled_between_the_phases_of_others(run: Running) -> None:
    slow = {**job("early", rollout_s=0.2, train_s=0.21), "iterations": 12}
    _, record, _ = run([slow, {**job("late", rollout_s=0.05, train_s=0.051), "arrival_s": 3.5}])
    assert not record.failed
    check_run(record)
    guest = [part for part in record.phases if part.job_id == "late" and part.profile]
    assert [part.phase for part in guest] == ["init", "rollout", "training"]
    assert {part.group for part in guest} == {0}
    assert record.jobs["late"].arrival_s > 3.5


def test_a_job_that_would_overfill_a_node_waits(run: Running) -> None:
    _, record, _ = run([job("a")], only_profile=True)
    gb = record.jobs["a"].rollout.host_memory_gb
    _, record, lines = run([job("a"), job("b")], memory_gb=1.5 * gb)
    assert any("b: waits for nodes" in line for line in lines)
    placed = [event for event in record.log if isinstance(event, Admitted | Departed)]
    assert [(type(event).__name__, event.job_id) for event in placed] == [
        ("Admitted", "a"),
        ("Departed", "a"),
        ("Admitted", "b"),
        ("Departed", "b"),
    ]


def test_a_job_too_large_for_any_node_fails_alone(run: Running) -> None:
    outcome, record, _ = run([job("a"), job("b")], memory_gb=0.001)
    assert outcome == "done"
    assert {failed.job_id for failed in record.failed} == {"a", "b"}
    assert "host memory" in record.failed[0].problem


def test_solo_on_one_pair_of_nodes_queues(run: Running) -> None:
    _, record, lines = run([job("a"), job("b")], policy="solo")
    assert any("b: waits for nodes" in line for line in lines)
    ends = {name: max(done.end_s for done in record.iterations if done.job_id == name) for name in "ab"}
    starts = {name: min(done.start_s for done in record.iterations if done.job_id == name) for name in "ab"}
    assert starts["b"] >= ends["a"]


def test_a_move_is_a_checkpoint_and_a_restart_elsewhere(run: Running, nodes: tuple[Node, ...], tmp_path: Path) -> None:
    options = {"journal": str(tmp_path / "x" / JOURNAL), "does": {"rollout 9": "fact Moved mover"}}  # neither is over before it
    common = {"options": options, "iterations": 25, "slo": 1000.0}  # on a slow machine a move would break a short one
    twice = (*nodes, *(replace(node, name=node.name.replace("0", "1")) for node in nodes))
    jobs = [{"id": "mover", "class": "toy_jobs:WithWorkers", **common}, {"id": "stays", **SLEEPER, **common}]
    outcome, record, _ = run(jobs, policy="tests.runtime.toy_policies:MoveOnce", on=twice, folder=tmp_path / "x")
    assert outcome == "done" and not record.failed
    check_run(record)
    (moved,) = [event for event in record.log if isinstance(event, Moved)]
    (resumed,) = [event for event in record.log if isinstance(event, Resumed)]
    assert moved.job_id == resumed.job_id == "mover" and moved.at_s <= resumed.at_s
    mine = [done for done in record.iterations if done.job_id == "mover"]
    assert [done.metrics["count"] for done in mine] == [*range(1, 26)]  # the count went with it
    assert len({done.metrics["pid"] for done in mine}) == 2  # to other processes
    groups = [part.group for part in record.phases if part.job_id == "mover" and not part.profile]
    assert groups == sorted(groups) and set(groups) == {0, 1}
    returned = [fact.node for fact in record.assigned if isinstance(fact, Returned) and fact.at_s >= resumed.at_s]
    assert returned[:2] == ["rollout-0", "training-0"]
