"""Whose state stays on its nodes, and that it leaves them when others come; processes are pretended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollmux_env.cluster.events import Resumed
from rollmux_env.scheduler.commands import Seating
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.permits import GrantedPermit
from runtime.coordinator.residents import Residents
from runtime.journal.audit import check_run
from runtime.journal.facts import PhaseSlice, StateOffloaded
from runtime.journal.record import RunRecord
from runtime.journal.write import read_run
from runtime.machines.nodes import POOLS
from runtime.residency.choice import OffloadLevel, OffloadLevels
from tests.runtime.coordinator.test_alone import moving
from tests.runtime.coordinator.test_kills import check_end
from tests.runtime.pretend import NODES, carry_out, plan_of, waits_of

SHARES = "rollmux,prune=false"
ONE_OF_EACH = (NODES[0], NODES[2])
GPUS = tuple(replace(node, gpus=(k,)) for k, node in enumerate(ONE_OF_EACH))


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLMUX_CACHE", str(tmp_path / "cache"))


def _job(name: str, stay_gb: float, **more: Any) -> dict[str, Any]:
    return {"id": name, "iterations": 4, "options": {"stay_gb": stay_gb}, **more}


def _record(folder: Path, jobs: list[dict[str, Any]], **more: Any) -> RunRecord:
    """What became of a run on nodes of 8 GB."""
    assert carry_out(plan_of(folder, jobs, ONE_OF_EACH, policy=SHARES, **more)) == "done"
    record = check_end(folder, jobs)
    check_run(record)
    return record


def _phases(record: RunRecord, job_id: str) -> list[PhaseSlice]:
    return [part for part in record.phases if part.job_id == job_id and not part.profile]


def test_jobs_stay_as_long_as_a_node_has_room_for_all(tmp_path: Path) -> None:
    for count, stays in ((2, 2), (3, 2)):  # of three, two stay beside one that is offloaded: 3 + 3 + 1 GB
        folder = tmp_path / f"{count}"
        folder.mkdir()
        record = _record(folder, [_job(name, 3.0) for name in "abc"[:count]])
        staying = {name for name in "abc" if any(part.stays for part in _phases(record, name))}
        assert len(staying) >= stays and not record.failed
        for name in staying if count == 2 else ():
            assert all(part.stays for part in _phases(record, name))
    assert sum(part.stays for part in record.phases) < sum(not part.profile for part in record.phases)


def test_a_job_that_has_too_much_to_stay_is_offloaded(tmp_path: Path) -> None:
    record = _record(tmp_path, [_job("a", 7.5), _job("b", 7.5)])
    first_done = min(_phases(record, name)[-1].end_s for name in "ab")
    both = [part for name in "ab" for part in _phases(record, name) if part.end_s < first_done]
    assert len(both) > 8 and not any(part.stays for part in both)
    assert any(part.stays for name in "ab" for part in _phases(record, name)[-2:])  # who is left has the nodes alone


def test_nothing_stays_in_a_run_that_is_to_leave(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, [_job("a", 3.0), _job("b", 3.0)], ONE_OF_EACH, policy=SHARES)
    assert carry_out(replace(plan, leave=True)) == "done"
    phases = [part for name in "ab" for part in _phases(read_run(tmp_path), name)]
    assert phases and not any(part.stays for part in phases)


@pytest.mark.parametrize("dispatch", ["round-robin", "fifo"])
def test_one_who_stays_has_left_before_a_newcomer_runs_and_may_stay_again(tmp_path: Path, dispatch: str) -> None:
    """The newcomer is profiled as a guest on the other's nodes; first come, first served, it need not wait for its turn."""
    jobs = [_job("a", 7.5, iterations=30), _job("b", 7.5, iterations=4, arrival_s=0.15)]
    jobs[0]["options"]["phase_s"] = 0.01
    assert carry_out(replace(plan_of(tmp_path, jobs, ONE_OF_EACH, policy=SHARES), dispatch=dispatch)) == "done"
    record = read_run(tmp_path)
    check_run(record)
    newcomer = [part for part in record.phases if part.job_id == "b"]
    for part in newcomer:
        theirs: list[PhaseSlice | StateOffloaded] = [
            *_phases(record, "a"),
            *(fact for fact in record.offloaded if fact.job_id == "a"),
        ]
        before = [(getattr(fact, "end_s", None) or fact.at_s, fact) for fact in theirs if fact.nodes == part.nodes]
        last = max(((at_s, fact) for at_s, fact in before if at_s <= part.run_s), key=lambda pair: pair[0], default=None)
        assert last is None or not getattr(last[1], "stays", False)  # when it began, nothing of the other was there
    assert _phases(record, "a")[-1].stays


def test_a_permit_is_held_back_until_whoever_has_no_right_to_stay_has_left() -> None:
    async def held_back() -> None:
        plan = plan_of(Path(), [_job("a", 7.5), _job("b", 7.5)], ONE_OF_EACH)
        a, b = (JobHandle(spec) for spec in plan.specs)
        residents = Residents({"a": a, "b": b}, plan.cluster)
        for handle in (a, b):
            handle.arrive()
            handle.take_place(Seating(0, (0,), (0,), ONE_OF_EACH[:1], ONE_OF_EACH[1:], False))
            waits = waits_of(handle)
            assert waits is not None
            handle.resident_state.set_levels({"rollout": waits, "training": waits})
            handle.permits.wait_for("rollout")
        assert not residents.may_stay(a, "rollout")  # beside b; it has stayed before b came
        residents.add_state(a, "rollout", 7.5, 0.0)
        b.permits.wait_for("training")
        b.permits.add_grant(GrantedPermit("training", 0.0, 0.0, False, False))
        assert residents.admit(b, "training") and b.permits.futures["training"].result() == ()  # nobody is there
        b.permits.add_grant(GrantedPermit("rollout", 0.0, 0.0, False, False))
        waiting = a.permits.futures["rollout"]
        assert not residents.admit(b, "rollout") and residents.held_back() == [(b, "rollout")]
        assert waiting.result() == residents.leaving(a) == ("rollout",)
        assert not a.permits.futures["rollout"].done()  # it waits on when it has left
        residents.remove_state(a, ("rollout",))
        assert residents.admit(b, "rollout") and not residents.held_back() and not residents.leaving(a)
        residents.add_state(b, "training", 9.0, 0.0)  # more than was known
        assert b.resident_state.levels["training"].levels[0].host_gb == 9.0

    asyncio.run(held_back())


def _on_gpus() -> tuple[Residents, JobHandle, JobHandle]:
    """Two jobs that share a node of each pool with a GPU of 80 GB, where both may stay."""
    plan = plan_of(Path(), [_job(name, 3.0) for name in "ab"], GPUS)
    profiled: Any = object()
    a, b = (JobHandle(spec, profiled) for spec in plan.specs)
    for handle in (a, b):
        handle.arrive()
        handle.take_place(Seating(0, (0,), (0,), GPUS[:1], GPUS[1:], False))
        levels = OffloadLevel("stay", 0.0, 20.0, 1.0), OffloadLevel("keep", 1.0, 2.0, 1.0)
        handle.resident_state.set_levels({pool: OffloadLevels(levels, 30.0, 80.0) for pool in POOLS})
    return Residents({"a": a, "b": b}, plan.cluster), a, b


def test_staying_is_decided_with_what_strangers_leave_of_a_gpu() -> None:
    residents, a, b = _on_gpus()
    assert residents.may_stay(a, "training") and residents.may_stay(a, "rollout")
    residents.record_gpu_memory(b, "training", 2.0, 2.5)  # half a GB is a stranger's, or the driver's
    residents.record_gpu_memory(a, "training", 20.0, 22.5)
    assert residents.may_stay(a, "training")
    residents.record_gpu_memory(b, "training", 2.0, 53.0)  # one with 31 GB has come: 20 + 30 of 80 GB are no longer free
    assert not residents.may_stay(a, "training") and residents.may_stay(a, "rollout")
    residents.forget(a)  # whose 20 GB were known
    residents.record_gpu_memory(b, "training", 2.0, 33.0)
    assert not residents.may_stay(b, "training")
    residents.record_gpu_memory(b, "training", 2.0, 2.5)  # the stranger has gone
    assert residents.may_stay(b, "training")


def test_memory_that_runs_out_makes_neighbours_leave_and_nobody_stays_beside_the_job() -> None:
    residents, a, b = _on_gpus()
    assert residents.record_out_of_memory(a, "rollout") == ()  # nobody is there
    residents, a, b = _on_gpus()
    residents.add_state(b, "training", 1.0, 20.0)
    assert residents.record_out_of_memory(a, "training") == ("b",)
    assert not residents.may_stay(b, "training")


def test_a_job_that_runs_out_of_memory_beside_others_goes_on_when_they_have_left(tmp_path: Path) -> None:
    jobs = [_job(name, 3.0) for name in "ab"]
    for job in jobs:
        job["options"]["peak_gb"] = 30.0
    assert carry_out(plan_of(tmp_path, jobs, GPUS, policy=SHARES), runs_out="a") == "done"
    record = check_end(tmp_path, jobs)
    (restarted,) = record.restarted
    words = "out of memory in its training on training-0, beside state of b, which leaves"
    assert (restarted.job_id, restarted.why) == ("a", words)


def test_a_job_that_moves_leaves_what_it_has(tmp_path: Path) -> None:
    record = moving(tmp_path, checkpoint={"every": 1000}, options={"stay_gb": 3.0})
    check_run(record)
    (resumed_s,) = [event.at_s for event in record.log if isinstance(event, Resumed) and event.job_id == "a"]
    assert {fact.job_id for fact in record.offloaded} == {"a"} and all(fact.at_s <= resumed_s for fact in record.offloaded)
    assert _phases(record, "a")[0].stays and _phases(record, "a")[-1].stays


def test_a_run_that_goes_on_knows_who_may_stay(tmp_path: Path) -> None:
    jobs = [_job("a", 3.0), _job("b", 3.0)]
    plan = plan_of(tmp_path, jobs, ONE_OF_EACH, policy=SHARES)
    assert carry_out(plan, dies_at=10) == "killed"
    assert carry_out(replace(plan, resume=True)) == "done"
    record = check_end(tmp_path, jobs)
    again = [part for part in record.phases if part.start_s > record.relaunched[0].at_s]
    assert again and all(part.stays for part in again)
