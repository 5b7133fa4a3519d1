"""Worlds on a seed: what must be true is true in each, the same seed gives the same, and bugs of the past are found."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from rollmux_protocol import Turn

from rollmux_env.cluster.events import Progressed
from runtime.coordinator import planned_drains
from runtime.coordinator.job_handle import JobHandle
from runtime.coordinator.run_log import RunLog
from runtime.coordinator.run_state import RunState
from runtime.journal import carry
from runtime.journal.carry import count_carried
from runtime.journal.facts import Fact, JobCarried, NodesSuspected, PhaseGranted
from runtime.journal.write import Journal
from runtime.owners.http import ledger
from runtime.owners.http.iterations import Iterations
from runtime.owners.http.leases import Leases
from runtime.owners.http.ledger import Lease
from runtime.service import serve_here
from runtime.service.notices import Notices
from tests.simulation.checks import Durable
from tests.simulation.schedule import BAD_MINUTES, Fault, JobPlan, Schedule, drawn, schedule_of, shrunk
from tests.simulation.world import Scene, carry_out, simulated

_AT_ONCE = 100


@pytest.fixture(autouse=True)
def in_a_world() -> Iterator[None]:
    with simulated():
        yield
    gc.collect()


def plain(seed: int, *faults: Fault, **more: Any) -> Schedule:
    """A schedule of two jobs that share a pair of nodes, in memory."""
    schedule = drawn(seed)
    jobs = tuple(JobPlan(name, "plain", 2, schedule.jobs[0].here, 2.0, movable=False) for name in ("one", "two"))
    return Schedule(seed, jobs, 1, "fifo", schedule.grace_s, **{"file": False, "faults": faults, "drifts": schedule.drifts, **more})


def problems_of(seeds: Sequence[int]) -> list[str]:
    return [f"{schedule.text()}: {line}" for schedule in map(drawn, seeds) for line in carry_out(schedule).problems]


@pytest.mark.parametrize("first", [0, *(pytest.param(k * _AT_ONCE, marks=pytest.mark.long) for k in range(1, 300))])
def test_what_must_be_true_is_true(first: int) -> None:
    assert problems_of(range(first, first + _AT_ONCE)) == []


def test_worlds_are_not_idle() -> None:
    """What is drawn happens: else the checks would see nothing."""
    kinds = {fault.kind for seed in range(200) for fault in drawn(seed).faults}
    assert kinds >= {"lost", "twice", "cut", "full", "torn", "kill service", "kill owner", "pause owner", "second service", "twin"}
    faults = (Fault("kill owner", 5.0, "one"), Fault("pause service", 8.0, seconds=33.0), Fault("dies after", 12), Fault("lost", 9))
    counts = carry_out(plain(1, *faults)).counts
    assert counts["killed owners"] == counts["pauses"] == counts["lost"] == 1
    assert counts["starts"] == 2 and counts["requests"] > 30


@pytest.mark.parametrize("file", [False, True])
def test_a_seed_gives_the_same_again(file: bool) -> None:
    for seed in range(3):
        schedule = schedule_of(replace(drawn(seed), file=file).text())
        first, again = carry_out(schedule, keeps_log=True), carry_out(schedule, keeps_log=True)
        assert (first.digest, first.log) == (again.digest, again.log)


def found(seeds: Sequence[int], *faults: Fault, **more: Any) -> list[str]:
    """What is wrong in the first world of some in which anything is."""
    outcomes = (carry_out(plain(seed, *faults, **more)) for seed in seeds)
    return next(([*outcome.problems] for outcome in outcomes if outcome.problems), [])


def test_a_service_that_does_not_hear_sigterm_is_found() -> None:
    @contextlib.contextmanager
    def deaf(interrupts: int) -> Iterator[Any]:
        yield lambda: 0

    assert not found(range(3), Fault("terminate", 3.0))
    with patch.object(serve_here, "allowing", deaf):
        assert found(range(1), Fault("terminate", 3.0)) == ["service.1 has not ended within 20 s of SIGTERM"]


def test_a_service_may_take_longer_to_stop_while_its_disk_is_slow() -> None:
    """It wakes up in the middle of a commit, and its stop needs four more, of 4 s each."""
    assert carry_out(drawn(1_146_469)).problems == ()


def test_two_jobs_that_wait_for_each_others_first_rollout_are_found() -> None:
    begun: set[str] = set()
    ask = Iterations.ask

    def waits(self: Iterations, lease: Lease, turn: Turn) -> None:
        begun.add(lease.handle.id)
        ask(self, lease, turn)

    def present(self: RunState, handle: JobHandle) -> bool:  # a training waits until every other job has begun its own rollout
        others = {one.id for one in self.handles.values() if one is not handle and not one.life.is_gone}
        return is_present(self, handle) and (handle.id in begun or others <= begun or not others)

    is_present = RunState.has_seat
    with patch.object(RunState, "has_seat", present), patch.object(Iterations, "ask", waits):
        assert "one, two not over" in found(range(1))[0]


def test_a_permit_that_a_lost_lease_gets_is_found() -> None:
    """Its owner asks again for what was not answered, and its job was cancelled meanwhile."""
    faults = [(Fault("unanswered", number), Fault("cancel", 10.0, "one")) for number in range(10, 25)]
    with patch.object(Leases, "_check_lives", lambda self, lease: None):
        lines = [line for both in faults for line in found(range(3), *both)]
    assert any("the lease has ended" in line for line in lines)


def test_an_answer_before_the_disk_is_found() -> None:
    async def at_once(self: RunLog) -> None: ...

    with patch.object(RunLog, "durable", at_once):
        assert any("answered before it was synced" in line for line in found(range(3)))


def test_a_name_is_taken_when_its_job_is_on_the_disk() -> None:
    """Else a user who asks again after a lost answer is told that the job is there, and it is lost with the service."""
    assert [found([seed], Fault("twice", 1), Fault("slow disk", 2)) for seed in range(6)] == [[]] * 6


@pytest.mark.parametrize(
    "faults",
    [
        (Fault("kill owner", 11.3, "one"), Fault("terminate", 15.9), Fault("second service", 16.5)),
        (
            Fault("machine sleeps", 4.8, seconds=60.0),
            Fault("pause service", 14.1, seconds=50.0),
            Fault("pause service", 21.8, seconds=50.0),
        ),
        (Fault("machine sleeps", 6.1, seconds=5.0), Fault("machine sleeps", 7.7, seconds=60.0)),
        (
            Fault("pause service", 1.297, seconds=50.0),
            Fault("slow disk", 8),
            Fault("terminate", 3.6),
            Fault("pause service", 21.0, seconds=50.0),
        ),
    ],
)
def test_what_goes_wrong_is_over_when_the_schedule_says_so(faults: tuple[Fault, ...]) -> None:
    """The service after one that ends listens still, pauses at the same time are over with the last one, and no clock goes back."""
    assert found(range(3), *faults, file=False) == []


def test_a_job_whose_owner_dies_while_it_waits_gets_a_place_later() -> None:
    """Its user may hold two nodes of each pool, so a job that was measured again waits, and its owner is killed."""
    one, two = plain(0).jobs
    entry = {"profile": {"iterations": 2}}
    jobs = (
        one,
        replace(two, iterations=3, here=False, entry=entry),
        replace(two, id="three", iterations=3, overruns=1.5, inits=True),
    )
    faults = (Fault("kill owner", 14.0, "two"), Fault("kill owner", 16.0, "three"))
    worlds = [replace(plain(seed, *faults), jobs=jobs, pairs=2, dispatch="round-robin", quota=2, grace_s=None) for seed in range(4)]
    assert [carry_out(world).problems for world in worlds] == [()] * 4


def test_a_measured_job_that_gets_another_place_asks_there() -> None:
    """Its place is known only when the nodes of the group are free, after its owner has asked for the next phase."""
    one, two = plain(0).jobs
    one, two = (
        replace(one, kind="sync", iterations=1, movable=True),
        replace(two, kind="sync", iterations=1, here=False, movable=True),
    )
    three = replace(one, id="three", kind="synced", iterations=2, here=False, overruns=1.5, saves_every=1)
    jobs = (one, two, replace(three, entry={"profile": {"iterations": 1}}))
    worlds = [
        replace(plain(seed, Fault("dies before", at)), jobs=jobs, pairs=2, grace_s=5.0) for seed in (0, 1) for at in range(20, 26)
    ]
    assert [carry_out(world).problems for world in worlds] == [()] * 12


def test_a_job_whose_owner_comes_before_its_time_arrives_once() -> None:
    """It is measured meanwhile, and has a place when its time comes."""
    one, two = plain(0).jobs
    jobs = (one, replace(two, entry={"profile": {"iterations": 1}, "arrival_s": 10.0}))
    assert [carry_out(replace(plain(seed), jobs=jobs, pairs=2)).problems for seed in range(2)] == [()] * 2


def test_a_measured_job_that_waits_arrives_once_when_its_owner_comes_again() -> None:
    """Nobody has claimed the nodes on which it was measured: it asks for a place when its owner comes, but has asked already."""
    faults = (
        Fault("kill owner", 4.384, "one"),
        Fault("pause owner", 21.801, "two", 31.0),
        Fault("disk stays full", 8.349, seconds=300.0),
        Fault("window", 10.577, "training-0", 70.0),
    )
    one, two = (replace(job, worst_s=1.0, ranks=True, keeps_gb=3.0) for job in plain(0).jobs)
    one = replace(one, kind="asynchronous", here=True)
    two = replace(two, kind="synced", here=False, overruns=1.5, user="bob", entry={"profile": {"iterations": 1}})
    worlds = [replace(plain(seed, *faults), jobs=(one, two), policy="rollmux", grace_s=5.0, drifts=False) for seed in range(4)]
    assert [carry_out(world).problems for world in worlds] == [()] * len(worlds)


def test_a_measured_job_without_a_place_waits_whichever_request_ends_its_measurement() -> None:
    """Its owner is killed between a checkpoint and the sync: the request for its next rollout ends the measured iteration."""
    one, two = plain(0).jobs
    one = replace(one, iterations=9, worst_s=5.0, keeps_gb=3.0)
    two = replace(two, kind="sync", saves_every=1, entry={"profile": {"iterations": 1}}, comes_s=5.0)
    times_s = (14.0, 15.0, 16.0)
    worlds = [
        replace(plain(0, Fault("kill owner", at, "two")), jobs=(one, two), pairs=1, policy="solo", grace_s=5.0) for at in times_s
    ]
    assert [carry_out(world).problems for world in worlds] == [()] * len(worlds)


def parking(seed: int, *faults: Fault, **more: Any) -> Schedule:
    """Two jobs on a pair of nodes that only one of them may use at a time; the second one may take them from the first."""
    one, two = plain(seed).jobs
    jobs = (
        replace(one, iterations=9, kind=more.pop("kind", "plain"), entry={"parkable": True}),
        replace(two, entry={"priority": 1, "arrival_s": 9.0}),
    )
    more = {"policy": "solo,order=fcfs,park=true", "min_run_s": 0.0, "resume_s": 3.0} | more
    return replace(plain(seed, *faults, **more), jobs=jobs)


def test_a_place_that_is_reserved_is_not_parked_for_another_job() -> None:
    """What a user holds counts at once with `held_h`: the job for which one is parked would be parked for that one."""
    world = parking(0, policy="solo,order=fair,half_life_h=0.02,held_h=0.25,park=true", resume_s=0.0)
    jobs = tuple(replace(job, user=user, entry={"parkable": True}) for job, user in zip(world.jobs, ("ann", "bob"), strict=True))
    outcome = carry_out(replace(world, jobs=jobs))
    assert outcome.problems == () and outcome.counts["parks"] > 1


@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
def test_a_parked_job_continues_whatever_goes_wrong(kind: str) -> None:
    faults: tuple[list[Fault], ...] = (
        [],
        [Fault("kill owner", 14.0, "one")],
        [Fault("dies after", 40)],
        [Fault("cancel", 16.0, "two")],
        [Fault("drain", 10.0, "rollout-0", 9.0)],
    )
    worlds = [parking(seed, *some, kind=kind) for seed, some in enumerate(faults)]
    outcomes = [carry_out(world) for world in worlds]
    assert [outcome.problems for outcome in outcomes] == [()] * len(worlds)
    assert outcomes[0].counts["parks"] == 1


def rolling(seed: int, *faults: Fault, **more: Any) -> Schedule:
    """Two jobs, of which the second comes when the journal has been rolled over."""
    one, two = plain(seed).jobs
    return replace(plain(seed, *faults, **more), jobs=(one, replace(two, comes_s=1000.0)))


@pytest.mark.parametrize("file", [False, True])
def test_a_journal_is_rolled_over_whatever_goes_wrong(file: bool) -> None:
    """The commits at the end of the first part, and the first ones of the second, are those that go wrong."""
    scene = Scene(rolling(1), None)
    outcome = scene.carry_out()
    assert (outcome.problems, outcome.counts["roll-overs"]) == ((), 1)
    last = scene.disk.commits_at[1]  # the one that ends the first part
    kinds = ("torn", "dies after") if file else ("full", "dies before", "dies after")
    worlds = [rolling(1, Fault(kind, at), file=file) for kind in kinds for at in range(last - 2, last + 3)]
    outcomes = [carry_out(world) for world in worlds]
    assert [one.problems for one in outcomes] == [()] * len(worlds)
    assert {one.counts["roll-overs"] for one in outcomes} == {1}


def long(*faults: Fault, **more: Any) -> Schedule:
    """Two jobs whose journal is rolled over several times while they are present."""
    jobs = tuple(replace(job, iterations=8) for job in plain(1).jobs)
    return replace(plain(1, *faults, **more), jobs=jobs, rolls_at=40)


@pytest.mark.parametrize("file", [False, True])
def test_a_journal_is_rolled_over_while_jobs_are_present_whatever_goes_wrong(file: bool) -> None:
    """The commits around the first roll-over, and the roll-over itself, are those that go wrong."""
    scene = Scene(long(), None)
    outcome = scene.carry_out()
    carried = [part[: count_carried(part)] for part in scene.disk.parts()]
    assert outcome.problems == () and outcome.counts["continued"] > 1 and outcome.counts["starts"] == 1
    assert any(isinstance(fact, PhaseGranted) for facts in carried for fact in facts)  # a permit is held meanwhile
    at = scene.disk.commits_at[1]
    faults = [("torn", 1), ("dies before", 0), ("dies after", 0)] if file else [("full", 0), ("dies after", -1), ("dies after", 0)]
    outcomes = [carry_out(long(Fault(kind, at + k), file=file)) for kind, k in faults]
    assert [one.problems for one in outcomes] == [()] * len(faults)
    assert [one.counts["starts"] > 1 for one in outcomes] == [kind != "full" for kind, _ in faults]


@pytest.mark.parametrize("name", ["_select_leases", "select_assignments", "_summarize_job", "Progressed"])
def test_a_fact_that_is_not_carried_over_is_found(name: str) -> None:
    nothing = {
        "_summarize_job": lambda own, leases, spec, last_s, last_held: JobCarried(last_s, spec.id, 0, 0),
        "Progressed": lambda at_s, jobs: Progressed(at_s, ()),
    }
    with patch.object(carry, name, nothing.get(name, lambda *_: iter(()))):
        assert carry_out(long()).problems != ()


def test_a_job_that_is_on_a_node_at_the_deadline_of_its_drain_is_found() -> None:
    one, two = (replace(job, iterations=25, movable=True) for job in plain(0).jobs)
    world = replace(plain(1, Fault("window", 1.0, "training-0", 90.0)), jobs=(one, two), pairs=2)
    outcome = carry_out(world)
    assert (outcome.problems, outcome.counts["windows"]) == ((), 1)
    with patch.object(planned_drains, "_WRITES_S", -100.0):
        assert any("the deadline of its drain" in line for line in carry_out(world).problems)


def test_a_notice_before_the_disk_is_found() -> None:
    async def at_once(self: Notices) -> None:
        pending, self._pending = self._pending, []
        for notice in pending:
            self._senders[0].put(notice)

    faults = Fault("kill owner", 6.0, "one"), Fault("disk stays slow", 7.0, seconds=90.0)
    worlds = [plain(seed, *faults, hooked=True) for seed in (0, 2)]
    outcomes = [carry_out(world) for world in worlds]
    assert [one.problems for one in outcomes] == [()] * 2
    assert sum(one.counts.get("notices of lost", 0) for one in outcomes) > 0
    with patch.object(Notices, "_tell", at_once):
        assert any("before it was synced" in line for world in worlds for line in carry_out(world).problems)


@pytest.mark.parametrize("kind", BAD_MINUTES)
def test_five_bad_minutes_of_the_disk_end_no_owner(kind: str) -> None:
    """Their releases wait, and are given up and repeated; the heartbeats beside them are answered."""
    outcomes = [carry_out(plain(seed, Fault(kind, 5.0, seconds=300.0), drifts=False)) for seed in range(3)]
    assert [(one.problems, one.counts.get("fenced", 0)) for one in outcomes] == [((), 0)] * 3


def test_a_service_that_finds_its_disk_full_when_it_begins_again_ends_no_owner() -> None:
    """What it had begun to write would say that the places of all leases had gone."""
    worlds = [plain(0, Fault("dies before", at), Fault("full", at + 1), drifts=False) for at in range(11, 22, 2)]
    assert [carry_out(world).problems for world in worlds] == [()] * len(worlds)


def test_nodes_of_two_lost_leases_are_looked_at_for_both() -> None:
    """Its operator forgot the second one when the first had ended, and nothing was granted any more."""
    durable = Durable()
    for kind, lease, names in (("Suspected", "1", ["a", "b"]), ("Suspected", "2", ["b"]), ("Freed", "1", ["a", "b"])):
        durable.add((kind, json.dumps({"job_id": f"job{lease}", "lease": lease, "nodes": names})))
    assert durable.suspects == {("b", "2")}


def test_what_fails_is_made_smaller() -> None:
    faults = (Fault("lost", 5), Fault("pause owner", 1.0, "two", 1.0), Fault("terminate", 3.0), Fault("slow disk", 4))

    @contextlib.contextmanager
    def deaf(interrupts: int) -> Iterator[Any]:
        yield lambda: 0

    with patch.object(serve_here, "allowing", deaf):
        smallest = shrunk(plain(0, *faults), lambda schedule: any("SIGTERM" in line for line in carry_out(schedule).problems))
    assert smallest.faults == ()  # each world ends with a SIGTERM
    assert [job.iterations for job in smallest.jobs] == [1]


def test_the_journal_does_not_follow_from_the_order_of_a_set() -> None:
    """A lease is lost that holds nodes of both pools."""
    schedule = plain(1, Fault("pause owner", 5.0, "one", 70.0))
    one, two = schedule.jobs
    scene = Scene(replace(schedule, jobs=(replace(one, kind="asynchronous", iterations=3), two)), None)
    assert scene.carry_out().problems == ()
    suspects = [fact.nodes for fact in scene.disk.facts() if isinstance(fact, NodesSuspected)]
    assert suspects == [("rollout-0", "training-0")]


def test_an_entry_of_the_journal_that_is_told_of_too_early_is_found() -> None:
    def put(self: Journal, *facts: Fact) -> None:
        take(self, *facts)
        self.recent.extend((number, *row) for number, row in enumerate(self._unwritten, self.last_number + 1))

    take = Journal.put
    assert not found(range(2), watched=True)
    with patch.object(Journal, "put", put):
        assert any("is told of" in line for line in found(range(2), watched=True))


def ranked(seed: int, *faults: Fault) -> Schedule:
    """Two jobs on the service's machine whose work is done by processes in sessions of their own."""
    jobs = tuple(JobPlan(name, "plain", 2, True, 5.0, movable=False, ranks=True) for name in ("one", "two"))
    return replace(plain(seed, *faults), jobs=jobs, grace_s=None)


def test_processes_that_carry_a_lease_and_are_overlooked_are_found() -> None:
    """In these worlds an owner is killed after it has started a process and before a heartbeat names that."""
    kills = ((1, 8.0), (3, 11.0), (6, 20.0), (9, 6.0))
    worlds = [ranked(seed, Fault("kill owner", at_s, "one")) for seed, at_s in kills]
    assert [line for world in worlds for line in carry_out(world).problems] == []
    with patch.object(ledger, "carriers_of", lambda leases: []):
        assert any("in two hands" in line for world in worlds for line in carry_out(world).problems)
