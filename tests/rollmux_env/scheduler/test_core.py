"""What follows from which facts, one by one; and what commands and facts belong together."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, get_args
from unittest.mock import Mock

import pytest

from policies.dispatch import make_dispatch
from policies.placement.algorithm1 import Algorithm1
from rollmux_env.cluster.demand import limits_of
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, Placement, Reprofiled, Resized, Resumed, Withdrawn
from rollmux_env.cluster.plan import Move, Place, Plan, Wait
from rollmux_env.cluster.state import State
from rollmux_env.errors import InvariantError
from rollmux_env.keys.queue import Quota
from rollmux_env.replay.whatif import StateChange, project
from rollmux_env.scheduler import commands, facts
from rollmux_env.scheduler.commands import ANSWERS, Command
from rollmux_env.scheduler.core import Scheduler
from rollmux_env.scheduler.nodes import PROFILING_GROUP, Assigned, NodePool, Returned
from rollmux_env.scheduler.preview import forecast_arrivals, forecast_jobs
from tests.rollmux_env.scheduler.driver import Driver, Worker, make_cluster, make_job, make_nodes

ALONE = Placement(None, (), 1, 1)


@dataclass
class Scripted:
    """Places jobs as listed, by default alone; makes the moves listed by the job whose departure brings them about."""

    places: dict[str, Placement] = field(default_factory=dict)
    moves: dict[str, Move] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    keeps_slo: bool = False

    def decide(self, state: State, event: Event) -> Plan:
        if isinstance(event, Arrived):
            self.asked.append(f"place {event.job.id}")
            place = self.places.get(event.job.id, ALONE)
            return (Place(event.job.id, place),) if state.has_room({event.job.id: place}) else (Wait(event.job.id),)
        assert isinstance(event, Departed)
        self.asked.append(f"departed {event.job_id}")
        return (self.moves[event.job_id],) if event.job_id in self.moves else ()


def driven(policy: Scripted, pairs: int = 2, dispatch: str = "round-robin") -> Driver:
    return Driver(policy, make_dispatch(dispatch), pairs)


def kinds(driver: Driver, *which: type) -> list[str]:
    return [type(entry).__name__ for entry in driver.entries if not which or isinstance(entry, which)]


def run_iteration(driver: Driver, name: str) -> None:
    """From the wish for a rollout to the end of the iteration."""
    for _ in range(3):
        driver.tell(*driver.goes_on(name))


def test_every_fact_has_a_method_that_takes_it_and_every_command_its_answers() -> None:
    receivers = driven(Scripted()).scheduler.receivers
    assert set(receivers) == set(get_args(facts.Fact))
    for kind, take in receivers.items():
        assert tuple(inspect.signature(take).parameters) == kind._fields, kind
    assert set(ANSWERS) == set(get_args(Command))
    answers = {kind for kinds in ANSWERS.values() for kind in kinds}
    assert answers <= set(get_args(facts.Fact))
    from_jobs = {facts.Queued, facts.Unprofiled, facts.Sampled, facts.Synced, facts.Iterated, facts.PauseEnded, facts.Absent}
    assert set(get_args(facts.Fact)) - answers == {
        *from_jobs,
        facts.RequestsWithdrawn,
        facts.Confined,
        facts.Alone,
        facts.Estimated,
        facts.Lost,
        facts.Drained,
        facts.Undrained,
        facts.Joined,
        facts.QuotaChanged,
        facts.MonthStarted,
        facts.Stop,
    }


def test_an_admission_is_journalled_with_its_nodes_before_the_job_begins() -> None:
    driver = driven(Scripted())
    step = driver.submit(make_job("a"))
    assert [type(entry) for entry in step.entries] == [Arrived, Admitted, Assigned, Assigned]
    assert [type(command) for command in step.commands] == [commands.StartJob]
    assert driver.submit(make_job("b")).commands and driver.submit(make_job("c")).commands == [commands.KeepWaiting("c")]


def test_those_who_leave_together_are_asked_about_once_and_before_who_waits() -> None:
    policy = Scripted(places={"b": Placement(0, (0,))})
    driver = driven(policy, pairs=1)
    for name in "abc":
        driver.submit(make_job(name))
    policy.asked.clear()
    driver.tell(facts.Failed("a"), facts.Failed("b"))
    assert policy.asked == []
    driver.tell(*driver.goes_on("a"), *driver.goes_on("b"))
    assert policy.asked == ["departed b", "place c"]
    assert kinds(driver, Departed) == ["Departed", "Departed"]


def test_a_moved_job_ends_its_iteration_then_goes_and_its_nodes_are_free_then() -> None:
    policy = Scripted(places={"b": Placement(0, (0,))}, moves={"c": Move("b", ALONE)})
    driver = driven(policy)
    driver.submit(make_job("a"))
    driver.submit(make_job("b"))
    driver.submit(make_job("c", iterations=1))
    run_iteration(driver, "b")
    driver.tell(*driver.goes_on("b"))
    run_iteration(driver, "c")
    assert kinds(driver, Moved, Resumed) == ["Moved"] and driver.workers["b"].moving
    assert driver.workers["b"].nodes == {"rollout": {"rollout-0"}, "training": {"training-0"}}
    driver.tell(*driver.goes_on("b"))  # its rollout ends
    driver.tell(*driver.goes_on("b"))  # and its iteration
    assert kinds(driver, Moved, Resumed) == ["Moved", "Resumed"]
    assert driver.workers["b"].nodes == {"rollout": {"rollout-1"}, "training": {"training-1"}}
    driver.settle()
    assert sorted(driver.departed()) == ["a", "b", "c"]


def test_a_job_that_waits_cannot_arrive_a_second_time() -> None:
    driver = driven(Scripted(), pairs=1)
    driver.submit(make_job("a"))
    driver.submit(make_job("b"))
    with pytest.raises(InvariantError, match="job b arrives a second time"):
        driver.tell(facts.Queued(driver.workers["b"].job))


def test_a_job_that_is_placed_and_moved_in_one_instant_begins_in_its_last_place() -> None:
    class Joining(Scripted):
        def decide(self, state: State, event: Event) -> Plan:
            plan = super().decide(state, event)
            return (*plan, Move("a", Placement(1, (0,)))) if isinstance(event, Arrived) and event.job.id == "b" else plan

    driver = driven(Joining())
    driver.workers |= {name: Worker(make_job(name)) for name in ("a", "b")}
    step = driver.tell(*(facts.Queued(driver.workers[name].job) for name in ("a", "b")))
    assert [(type(one), one.job_id) for one in step.commands] == [(commands.StartJob, "b")]
    driver.tell(facts.PauseEnded("a"))
    assert driver.workers["a"].nodes == driver.workers["b"].nodes and not driver.workers["a"].moving
    driver.settle()
    assert sorted(driver.departed()) == ["a", "b"]


def test_a_job_that_is_done_before_it_has_moved_has_left_both_places() -> None:
    policy = Scripted(places={"b": Placement(0, (0,))}, moves={"c": Move("b", ALONE)})
    driver = driven(policy)
    for name, iterations in (("a", 3), ("b", 2), ("c", 1)):
        driver.submit(make_job(name, iterations))
    run_iteration(driver, "b")
    driver.tell(*driver.goes_on("b"))
    run_iteration(driver, "c")
    for _ in range(2):
        driver.tell(*driver.goes_on("b"))
    assert kinds(driver, Moved, Resumed, Departed) == ["Departed", "Moved", "Resumed", "Departed"]
    assert set(driver.owners) == {"rollout-0", "training-0"}


def test_what_an_evicted_job_holds_is_granted_to_nobody_until_it_is_cleared() -> None:
    driver = driven(Scripted(places={"b": Placement(0, (0,))}), pairs=1)
    driver.submit(make_job("a"))
    driver.submit(make_job("b"))
    driver.tell(*driver.goes_on("a"))
    driver.tell(*driver.goes_on("b"))
    assert driver.workers["a"].holds == "rollout" and driver.workers["b"].holds == ""
    assert driver.tell(*driver.fail("a")).commands == [commands.Evict("a")]
    assert driver.workers["b"].holds == "" and not kinds(driver, Departed)
    driver.tell(*driver.goes_on("a"))
    assert driver.workers["b"].holds == "rollout" and kinds(driver, Departed)


def test_one_that_waits_is_withdrawn_at_once_when_it_fails() -> None:
    driver = driven(Scripted(), pairs=1)
    driver.submit(make_job("a"))
    driver.submit(make_job("b"))
    step = driver.tell(*driver.fail("b"))
    assert step.commands == [commands.Evict("b")] and [type(entry) for entry in step.entries] == [Withdrawn]
    driver.settle()
    assert driver.departed() == ["a"]


def test_guests_are_lent_free_nodes_and_the_policy_is_asked_again_when_they_have_given_them_back() -> None:
    policy = Scripted()
    driver = driven(policy, pairs=1)
    step = driver.submit(make_job("a"), profiled=False)
    assert {entry.group for entry in step.entries if isinstance(entry, Assigned)} == {PROFILING_GROUP}
    assert [type(command) for command in step.commands] == [commands.Lend]
    driver.submit(make_job("b"))
    assert policy.asked == ["place b"] and driver.scheduler.state.waiting == ["b"]
    driver.tell(*driver.goes_on("a"))
    driver.tell(*driver.goes_on("a"))
    driver.tell(facts.Finished("a", "training", 1.0), facts.Profiled("a"))
    assert policy.asked == ["place b", "place b"] and driver.workers["b"].placed
    assert kinds(driver, Returned) == ["Returned", "Returned"]


def test_without_free_nodes_they_are_guests_of_a_group_and_wait_their_turn() -> None:
    driver = driven(Scripted(), pairs=1)
    driver.submit(make_job("a"))
    driver.tell(*driver.goes_on("a"))
    driver.submit(make_job("b"), profiled=False)
    (lend,) = driver.given(commands.Lend)
    assert isinstance(lend, commands.Lend) and lend.seating.group == 0 and driver.workers["b"].guest
    driver.submit(make_job("c"), profiled=False)
    assert len(driver.given(commands.Lend)) == 1  # one batch at a time
    driver.tell(*driver.goes_on("b"))
    assert not driver.workers["b"].holds
    driver.settle()
    assert [command.job_id for command in driver.given(commands.Lend)] == ["b", "c"]
    assert sorted(driver.departed()) == ["a", "b", "c"]


def test_a_quota_bars_guests_too_and_others_pass_them() -> None:
    driver = driven(Scripted())
    driver.tell(facts.QuotaChanged("ann", Quota(nodes=1)))
    request = facts.Unprofiled({"anns": {"rollout": 1, "training": 1}}, users={"anns": "ann"}, heeds_quotas=True)
    driver.workers["anns"] = Worker(make_job("anns"), profiled=False)
    driver.tell(request)
    driver.submit(make_job("bobs"), profiled=False)
    assert [command.job_id for command in driver.given(commands.Lend)] == ["bobs"]
    assert driver.scheduler.guests.quota_reason("anns", driver.scheduler.state) == "user ann holds 0 of 1 nodes"
    driver.settle()
    driver.tell(facts.QuotaChanged("ann", None))
    assert [command.job_id for command in driver.given(commands.Lend)] == ["bobs", "anns"]
    driver.settle()
    assert sorted(driver.departed()) == ["anns", "bobs"]


def test_a_barred_guest_causes_no_pass_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driven(Scripted())
    driver.submit(make_job("a"))
    driver.tell(facts.QuotaChanged("ann", Quota(nodes=1)))
    driver.workers["anns"] = Worker(make_job("anns"), profiled=False)
    driver.tell(facts.Unprofiled({"anns": {"rollout": 1, "training": 1}}, users={"anns": "ann"}, heeds_quotas=True))
    admit = Mock(wraps=driver.scheduler.server.admit)
    monkeypatch.setattr(driver.scheduler.server, "admit", admit)
    run_iteration(driver, "a")
    assert admit.call_count == 0
    driver.tell(facts.QuotaChanged("ann", None))
    assert [command.job_id for command in driver.given(commands.Lend)] == ["anns"]


def test_jobs_get_the_nodes_that_guests_leave_to_them() -> None:
    driver = driven(Scripted())
    driver.submit(make_job("guest"), profiled=False)
    driver.submit(make_job("a"))
    assert driver.scheduler.state.charges.lent_to == {"guest": ""}
    assert driver.workers["a"].placed and set(driver.owners) == {"rollout-0", "training-0", "rollout-1", "training-1"}
    driver.submit(make_job("b"))
    assert not driver.workers["b"].placed
    driver.settle()
    assert sorted(driver.departed()) == ["a", "b", "guest"] and driver.scheduler.state.cluster.pools["rollout"].max_nodes == 2


def test_nodes_that_only_a_guest_uses_do_not_keep_the_others_from_jobs() -> None:
    driver = driven(Scripted())
    driver.submit(make_job("host"))
    driver.submit(make_job("a"))
    driver.submit(make_job("guest"), profiled=False)
    assert driver.scheduler.guests.group == 0
    for name in ("host", "a"):
        while name not in driver.departed():
            driver.tell(*driver.goes_on(name))
    driver.submit(make_job("b"))
    assert driver.workers["guest"].guest and driver.workers["b"].placed and driver.scheduler.state.charges.lent_to
    driver.settle()
    assert sorted(driver.departed()) == ["a", "b", "guest", "host"]


def test_nodes_of_a_guest_are_charged_once_while_a_job_that_moves_still_holds_them() -> None:
    policy = Scripted(places={"c": Placement(0, (0,))}, moves={"c": Move("a", Placement(1, (0,)))})
    driver = driven(policy, 3, "fifo")
    for name, iterations in (("a", 4), ("b", 4), ("c", 1), ("filler", 1)):
        driver.submit(make_job(name, iterations))
    driver.submit(make_job("guest"), profiled=False)
    assert driver.scheduler.guests.group == 0
    for name in ("filler", "a"):
        run_iteration(driver, name)
    for name in ("c", "c", "a", "c"):
        driver.tell(*driver.goes_on(name))
    assert kinds(driver, Moved) == ["Moved"] and driver.departed() == ["filler", "c"]
    state = driver.scheduler.state
    assert state.charges.user_share("").nodes == 4 and not state.charges.lent_to  # a's pause holds the guest's nodes
    driver.submit(make_job("d"))
    assert driver.workers["d"].placed
    for _ in range(2):
        driver.tell(*driver.goes_on("a"))
    assert kinds(driver, Resumed) == ["Resumed"] and state.charges.lent_to == {"guest": ""}
    assert state.charges.user_share("").nodes == 6
    driver.settle()


def test_forecasts_count_lent_nodes_although_they_are_out_of_service() -> None:
    driver = driven(Scripted(), pairs=1)
    driver.submit(make_job("guest"), profiled=False)
    driver.submit(make_job("a"))
    state, policy = driver.scheduler.state, Scripted()
    assert state.cluster.pools["rollout"].max_nodes == 0 and state.waiting == ["a"]
    assert forecast_jobs(state, policy).waiting["a"].eta_s == state.now_s
    (course,) = project(state, policy, StateChange())
    assert course.admitted_s == state.now_s and course.departed_s is not None
    (other,) = forecast_arrivals(state, policy, make_job("b"))
    assert not other.fits and other.eta_s == course.departed_s
    driver.scheduler.close(driver.now_s)
    assert state.cluster.pools["rollout"].max_nodes == 1 and not state.charges.lent_to


def test_a_tail_leaves_before_the_next_rollout_begins_which_then_gets_the_rest() -> None:
    driver = driven(Scripted(places={"b": Placement(0, (0,))}), 1, "round-robin,migrate=0.5")
    for name in "ab":
        driver.submit(make_job(name), parts=True)
    driver.tell(*driver.goes_on("a"), *driver.goes_on("b"))
    driver.tell(*driver.threshold("a"))
    assert driver.given(commands.Shrink) == [commands.Shrink("a", (0,))] and not driver.workers["b"].holds
    driver.tell(*driver.shrink("a"))
    (grant,) = driver.given(commands.Grant, "b")
    assert grant == commands.Grant("b", "rollout", (1,), True, False)
    driver.tell(*driver.goes_on("a"))
    assert driver.given(commands.Grow) == [commands.Grow("b", (0, 1))]


def test_nobody_is_profiled_on_nodes_that_have_gone() -> None:
    driver = driven(Scripted(), 2, "round-robin")
    driver.submit(make_job("a"))
    driver.workers["a"].again = True
    driver.tell(facts.Lost(frozenset({"rollout-1", "training-0"})))
    driver.submit(make_job("b"), profiled=False)
    assert not driver.given(commands.Lend)
    driver.settle()
    assert [command.job_id for command in driver.given(commands.Lend)] == ["b"]


def test_the_tail_of_a_job_that_has_failed_is_not_moved() -> None:
    driver = driven(Scripted(places={"b": Placement(0, (0,))}), 1, "fifo,migrate=0.5")
    driver.submit(make_job("a"), parts=True)
    driver.submit(make_job("b"), parts=True)
    driver.tell(*driver.goes_on("a"))
    driver.tell(*driver.threshold("a"))
    driver.tell(*driver.fail("a"))
    driver.tell(*driver.goes_on("b"))
    assert not driver.given(commands.Shrink)


def test_jobs_on_lost_nodes_are_evicted_and_the_policy_is_asked_when_all_are_cleared() -> None:
    policy = Scripted(places={"b": Placement(0, (0,))})
    driver = driven(policy)
    for name in "abc":
        driver.submit(make_job(name))
    policy.asked.clear()
    for worker in driver.workers.values():
        worker.again = True
    step = driver.tell(facts.Lost(frozenset({"rollout-0"})))
    assert step.commands == [commands.Evict("a"), commands.Evict("b")]
    driver.tell(*driver.goes_on("a"))
    assert policy.asked == [] and driver.departed() == ["a"]
    driver.tell(*driver.goes_on("b"))
    (resized,) = [entry for entry in driver.entries if isinstance(entry, Resized)]
    assert (resized.rollout_nodes, resized.training_nodes) == (1, 2)
    assert driver.departed() == ["a", "b"] and policy.asked[0] == "departed b"
    assert driver.scheduler.state.waiting == ["a", "b"]  # the only rollout node left is c's


def test_after_a_stop_nothing_begins_and_places_are_kept() -> None:
    policy = Scripted(places={"b": Placement(0, (0,))})
    driver = driven(policy, pairs=1)
    for name in "abc":
        driver.submit(make_job(name))
    driver.tell(*driver.goes_on("a"))
    driver.tell(*driver.goes_on("b"))
    policy.asked.clear()
    driver.tell(facts.Stop())
    driver.tell(*driver.goes_on("a"))
    for name in "ab":
        driver.tell(facts.Halted(name))
    assert driver.scheduler.state.group_list()[0].jobs == ("a", "b") and policy.asked == []
    assert len(driver.given(commands.Grant)) == 1


def test_facts_that_cannot_be_are_refused() -> None:
    driver = driven(Scripted())
    driver.submit(make_job("a"))
    with pytest.raises(ValueError, match="has not been moved"):
        driver.scheduler.jobs.vacated("a")
    with pytest.raises(KeyError):
        driver.scheduler.members.ready("b", "rollout")
    driver.tell(*driver.goes_on("a"))
    with pytest.raises(ValueError, match="has an unfinished iteration"):
        driver.scheduler.jobs.left("a")


def test_a_job_that_takes_longer_is_known_anew_and_one_that_suffers_from_it_is_moved() -> None:
    driver = Driver(Algorithm1(), make_dispatch("round-robin"), 2, Algorithm1)
    for name in "ab":
        driver.submit(make_job(name, iterations=60, slo=4.0))
    assert len(driver.scheduler.state.group_list()) == 1
    for _ in range(60):
        for name in "ab":
            told = driver.goes_on(name)
            for k, fact in enumerate(told):
                if isinstance(fact, facts.Finished) and name == "a":
                    told[k] = fact._replace(seconds=8.0)
                if isinstance(fact, facts.Iterated):
                    told[k] = fact._replace(seconds=18.0)
            driver.tell(*told)
    known = [entry.job for entry in driver.entries if isinstance(entry, Reprofiled)]
    assert known and {job.id for job in known} == {"a"} and known[0].rollout.worst_case_s == 8.0
    risks = driver.given(commands.AtRisk)
    assert isinstance(risks[0], commands.AtRisk) and risks[0].job_id == "b" and risks[0].moved
    assert [entry.job_id for entry in driver.entries if isinstance(entry, Moved)] == ["b"]
    assert len(driver.scheduler.state.group_list()) == 2


def test_a_job_that_keeps_more_on_gpus_than_planned_is_known_by_that_as_far_as_there_is_memory() -> None:
    driver = Driver(Algorithm1(), make_dispatch("round-robin"), 2)
    state = driver.scheduler.state
    state.cluster = state.cluster.model_copy(
        update={"rollout": state.cluster.pools["rollout"].model_copy(update={"device_memory_gb": 10.0})}
    )
    state.limits = limits_of(state.cluster)
    for name in "ab":
        driver.submit(make_job(name, slo=1000.0))
    assert len(state.group_list()) == 1
    kept = {"a": iter((4.0, 3.0, 4.01)), "b": iter((9.0, 9.0, 9.0))}
    for _ in range(9):
        for name in "ab":
            told = driver.goes_on(name)
            for k, fact in enumerate(told):
                if isinstance(fact, facts.Finished) and fact.phase == "rollout":
                    told[k] = fact._replace(device_gb=next(kept[name]))
            driver.tell(*told)
    known = [(entry.job.id, entry.job.rollout.device_gb) for entry in driver.entries if isinstance(entry, Reprofiled)]
    assert known == [("a", 4.0), ("b", 6.0)]  # of 10 GB; what comes to less, or about the same, is no news
    late = make_job("c", slo=1000.0)
    driver.submit(late.model_copy(update={"rollout": late.rollout.model_copy(update={"device_gb": 1.0})}))
    assert len(state.group_list()) == 2


def stale_step() -> tuple[Scheduler, NodePool]:
    """A stale job that holds nodes on either side: its second rollout runs beside its first training."""
    nodes = NodePool(make_nodes(1))
    scheduler = Scheduler(State(make_cluster(1), observed=True), Scripted(), make_dispatch("round-robin"), nodes)
    scheduler.step(1.0, [facts.Queued(make_job("a").model_copy(update={"staleness": 1}))])
    assert scheduler.step(2.0, [facts.Ready("a", "rollout")]).commands == [commands.Grant("a", "rollout")]
    told: list[facts.Fact] = [facts.Finished("a", "rollout", 1.0), facts.Ready("a", "training"), facts.Ready("a", "rollout")]
    assert scheduler.step(3.0, told).commands == [
        commands.Grant("a", "training", paired=True),
        commands.Grant("a", "rollout", paired=True),
    ]
    assert scheduler.members.seats["a"].holds == {"rollout", "training"}
    return scheduler, nodes


def test_a_stale_job_holds_the_nodes_of_each_side_until_that_phase_is_over() -> None:
    scheduler, nodes = stale_step()
    with pytest.raises(ValueError, match="a rollout of job a runs already"):
        scheduler.step(4.0, [facts.Ready("a", "rollout")])
    scheduler.step(5.0, [facts.Finished("a", "training", 2.0)])
    assert (nodes.holders({"training-0"}), nodes.holders({"rollout-0"})) == ((), ("a",))
    scheduler.step(6.0, [facts.Finished("a", "rollout", 3.0)])
    assert nodes.holders({"training-0", "rollout-0"}) == () and not scheduler.members.seats["a"].holds


@pytest.mark.parametrize("leaves", [True, False])
def test_what_a_stale_job_holds_is_free_when_it_leaves_or_is_cleared(leaves: bool) -> None:
    scheduler, nodes = stale_step()
    if leaves:
        scheduler.step(4.0, [facts.Finished("a", "training", 1.0), facts.Left("a")])
    else:
        assert scheduler.step(4.0, [facts.Failed("a")]).commands == [commands.Evict("a")]
        assert nodes.holders({"training-0", "rollout-0"}) == ("a",)
        scheduler.step(5.0, [facts.Cleared("a")])
    assert nodes.holders({"training-0", "rollout-0"}) == () and scheduler.state.departed == 1 and not scheduler.members.seats


def test_a_stale_job_that_has_sampled_all_is_in_nobodys_way_on_rollout_nodes() -> None:
    nodes = NodePool(make_nodes(1))
    policy = Scripted(places={"b": Placement(0, (0,))})
    scheduler = Scheduler(State(make_cluster(1), observed=True), policy, make_dispatch("round-robin"), nodes)
    for name in "ab":
        scheduler.step(1.0, [facts.Queued(make_job(name).model_copy(update={"staleness": 1}))])
    scheduler.step(2.0, [facts.Ready("a", "rollout"), facts.Ready("b", "rollout")])
    scheduler.step(3.0, [facts.Finished("a", "rollout", 1.0), facts.Ready("a", "training")])
    step = scheduler.step(4.0, [facts.Finished("b", "rollout", 1.0), facts.Ready("b", "rollout")])
    assert step.commands == []  # the next rollout is a's
    assert scheduler.step(5.0, [facts.Sampled("a")]).commands == [commands.Grant("b", "rollout")]


def test_who_comes_and_goes_settles_the_nodes_of_the_groups_that_change_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service with thousands of jobs must not walk all of them when one comes."""
    driver = driven(Scripted(places={"j9": Placement(4, (0,))}), pairs=12)
    settled: list[set[int]] = []
    settle = NodePool.settle

    def noted(self: NodePool, wanted: Any, used: Any, now_s: Any, own: Any, groups: Any) -> Any:
        settled.append(groups)
        return settle(self, wanted, used, now_s, own, groups)

    monkeypatch.setattr(NodePool, "settle", noted)
    for k in range(10):
        driver.submit(make_job(f"j{k}", iterations=1))
    assert settled == [None, *({k} for k in range(9)), {4}], "at first any; then the group of each newcomer"
    settled.clear()
    run_iteration(driver, "j9")
    assert settled == [{4}] and driver.workers["j9"].gone
    run_iteration(driver, "j3")
    assert settled == [{4}, {3}] and {"rollout-3", "training-3"} == set(make_names(driver)) - set(driver.owners)


def make_names(driver: Driver) -> list[str]:
    """Names of the first ten pairs of nodes."""
    return [node.name for node in driver.nodes if int(node.name.rpartition("-")[2]) < 9]
