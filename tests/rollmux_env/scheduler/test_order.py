"""The order of the queue, backfill, and what policies see of the lengths of jobs."""

from __future__ import annotations

import json
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, currently_in_test_context, given
from hypothesis import strategies as st

from policies.dispatch import make_dispatch
from policies.registry import make_policy, make_runnable, observed_state
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.charges import Charges, Share
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Parked, Resumed, isolated
from rollmux_env.cluster.learned_lengths import LearnedLengths, _arrivals, _variance
from rollmux_env.cluster.plan import Plan, Policy
from rollmux_env.cluster.remaining import learned_h, left_s
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.replay.admission import admit_all
from rollmux_env.replay.event import replay_events
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.outcome import outcome
from rollmux_env.replay.run import Run
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.scheduler.order import ORDERS, rules_of
from rollmux_env.scheduler.ranking import compute_ranking
from rollmux_env.workloads import WorkloadOptions, make_workload
from rollmux_env.workloads.text import to_yaml
from tests.oracle.draw import examples
from tests.oracle.queue_keys import queued
from tests.rollmux_env.cluster.twin import CLUSTER

CASES = json.loads((Path(__file__).parents[2] / "contract" / "fleet" / "cases.json").read_text())
POLICIES = ("solo", "rollmux,prune=false", "fleet")


@st.composite
def fleets(draw: st.DrawFn, max_jobs: int = 9, quotas: bool = False, priorities: bool = True) -> dict[str, Any]:
    """A scenario of a small fleet with the keys of its contract."""
    scenario: dict[str, Any] = draw(queued(max_jobs, budgets=False))
    cluster, jobs = scenario["cluster"], scenario["jobs"]
    cluster |= {"min_run_s": draw(st.sampled_from([0, 20, 90])), "resume_s": draw(st.sampled_from([0, 3, 40]))}
    if not quotas:
        cluster.pop("quotas", None)
    for number, job in enumerate(jobs):
        job |= {"weight": draw(st.sampled_from([1, 1, 2, 0.5])), "class": draw(st.sampled_from(["", "x"]))}
        job["arrival_s"] += number * 0.0137  # no two arrivals share an instant
        if not priorities:
            del job["priority"]
        if "iterations" in job and draw(st.booleans()):
            job["estimate"] = {"iterations": draw(st.integers(1, 60))}
    return scenario


def options(park: bool | None = None) -> st.SearchStrategy[str]:
    """A policy with an order."""
    parks = st.booleans() if park is None else st.just(park)
    parts = st.tuples(st.sampled_from(POLICIES), st.sampled_from([*ORDERS]), st.booleans(), parks)
    return parts.map(lambda one: f"{one[0]},order={one[1]},backfill={str(one[2]).lower()},park={str(one[3]).lower()}")


def make(spec: str) -> Policy:
    policy: Any = make_policy(spec)
    return policy  # type: ignore[no-any-return]


def finished(scenario: dict[str, Any] | Scenario, policy: Policy) -> Run:
    """A replay with all its invariants asserted; drawn jobs may wait for a link that is never free, or for their quota."""
    try:
        return replay(scenario if isinstance(scenario, Scenario) else parse_scenario(scenario), policy, check=True)
    except PlanError as error:
        if currently_in_test_context():
            assume("wait for ever" not in str(error))
        raise


def instants(run: Run) -> list[tuple[float, list[Event]]]:
    """The events of each instant."""
    found: list[tuple[float, list[Event]]] = []
    for event in run.log:
        if not found or event.at_s > found[-1][0] + 1e-6:
            found.append((event.at_s, []))
        found[-1][1].append(event)
    return found


def placed(run: Run) -> list[tuple[float, str, Any]]:
    return [(event.at_s, event.job_id, event.placement) for event in run.log if isinstance(event, Admitted)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["title"]))
def test_the_contracts_cases(case: dict[str, Any]) -> None:
    """An independent reference's completion, queue, parks and fairness, to six places."""
    found = outcome(finished(case["scenario"], make(case["policy"])))
    figures, jobs = found.metrics.as_dict(), {job.job: vars(job) for job in found.jobs}
    for name, expected in case["expected"].items():
        if isinstance(expected, dict):
            assert {job: jobs[job][name] for job in expected} == pytest.approx(expected, abs=2e-6), name
        else:
            assert figures[name] == pytest.approx(expected, abs=2e-6), name


@examples(25)
@given(fleets(), options())
def test_invariants_of_completion_work_slos_and_cost(scenario: dict[str, Any], spec: str) -> None:
    """I1, I2, I4, I7 and I8, whatever the order, with parks or without."""
    run = finished(scenario, make(spec))
    found = outcome(run)
    waits, runs, in_system_s, last_s = set[str](), set[str](), 0.0, 0.0
    for at_s, events in instants(run):
        in_system_s += (at_s - last_s) * len(waits | runs)
        last_s = at_s
        for event in events:
            match event:
                case Arrived(job=job):
                    waits.add(job.id)
                case Admitted(job_id=job_id):
                    waits.remove(job_id)
                    runs.add(job_id)
                case Parked(job_id=job_id):
                    runs.remove(job_id)
                    waits.add(job_id)
                case Departed(job_id=job_id):
                    runs.remove(job_id)
        assert runs or not waits, f"I8: {waits} wait at {at_s}"
    assert sum(job.completion_s for job in found.jobs) == pytest.approx(in_system_s, abs=1e-3), "I1"
    for job, result in zip(run.scenario.jobs, found.jobs, strict=True):
        if job.iterations is not None:
            assert result.iterations == pytest.approx(job.iterations), "I2"
        faster = bool(job.training.by_nodes)  # in a group with more training nodes it may run faster than alone
        assert (faster or result.slowdown >= 1 - 1e-6) and result.slowdown <= result.slo * (1 + 1e-6), "I4"
    assert sum(job.usd or 0 for job in found.jobs) == pytest.approx(found.metrics.cost_usd), "I7"


class _Following:
    """A policy that asserts I3: the job that is asked about is the first of the queue."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.keeps_slo = policy.keeps_slo
        self.queue_rules = rules_of(policy)

    def decide(self, state: State, event: Event) -> Plan:
        if isinstance(event, Arrived):
            assert compute_ranking(state, self.queue_rules).queue[0] == event.job.id, "I3"
        return self._policy.decide(state, event)


@examples(15)
@given(fleets(), st.sampled_from(POLICIES), st.sampled_from([*ORDERS]))
def test_no_job_is_placed_while_one_before_it_waits(scenario: dict[str, Any], policy: str, order: str) -> None:
    """I3. The class of a test would be a user's, which is shown copies; this one counts as ours."""
    _Following.__module__ = "policies.following"
    finished(scenario, _Following(make(f"{policy},order={order},backfill=false")))


@examples(15)
@given(fleets(), st.sampled_from(POLICIES))
def test_first_come_without_backfill_is_the_plain_queue(scenario: dict[str, Any], policy: str) -> None:
    """I5."""
    plain = finished(scenario, make(policy))
    for _, events in instants(plain):
        assume(len({isinstance(event, Arrived) for event in events if not isinstance(event, Admitted)}) < 2)
    assert placed(finished(scenario, make(f"{policy},order=fcfs,backfill=false"))) == placed(plain)


@examples(15)
@given(fleets(priorities=False), st.sampled_from(POLICIES))
def test_shortest_is_a_priority_in_the_file(scenario: dict[str, Any], policy: str) -> None:
    """I6, for jobs with as many iterations as they say: 60 s is the least that a job has left."""
    for job in scenario["jobs"]:
        job.pop("duration_s", None)
        job.pop("estimate", None)
        job |= {"iterations": job.get("iterations", 7) + 60, "weight": 1}
    parsed = parse_scenario(scenario)
    left = sorted({job.iterations * job.solo_s for job in parsed.jobs if job.iterations}, reverse=True)
    ranked = [
        {**job, "priority": left.index(one.iterations * one.solo_s)}
        for job, one in zip(scenario["jobs"], parsed.jobs, strict=True)
        if one.iterations
    ]
    by_priority = finished({**scenario, "jobs": ranked}, make(policy))
    for _, events in instants(by_priority):
        assume(len({isinstance(event, Arrived) for event in events if not isinstance(event, Admitted)}) < 2)
    assert placed(finished(scenario, make(f"{policy},order=shortest"))) == placed(by_priority)


@examples(10)
@given(fleets(quotas=True), options(park=True))
def test_quotas_hold_with_orders_and_parks(scenario: dict[str, Any], spec: str) -> None:
    finished(scenario, make(spec))


SERVED = ("order=fcfs,backfill=true", "order=area,backfill=true,park=true", "order=shortest,park=true", "order=attained,park=true")


@examples(20)
@given(fleets(), st.sampled_from([*POLICIES, "first-fit", "fleet,switches=true"]), st.sampled_from(SERVED))
def test_what_is_neither_asked_nor_computed_again_would_be_the_same(scenario: dict[str, Any], policy: str, served: str) -> None:
    """Only jobs that may fit are asked about, a timeless policy once until something changes, and keys that stay are kept."""
    spec = f"{policy},{served}"
    each: Any = make(spec)
    each.only_places = each.timeless = False
    vars(each.queue_rules)["keeps_keys"] = False
    few, many = finished(scenario, make(spec)), finished(scenario, each)
    assert placed(few) == placed(many)
    assert len(few.decision_s) <= len(many.decision_s)


def small(*jobs: dict[str, Any], nodes: int = 1, **cluster: Any) -> dict[str, Any]:
    """Jobs of one node on either side, 60 s and 40 s, on a small fleet."""
    pools = {name: {**pool, "max_nodes": nodes} for name, pool in CLUSTER.items()}
    phases = {"rollout": {"worst_case_s": 60}, "training": {"worst_case_s": 40}}
    return {
        "version": 1,
        "cluster": {**pools, "max_group_size": 1, **cluster},
        "defaults": {"slo": 3, "arrival_s": 0, **phases},
        "jobs": [*jobs],
    }


def test_policies_see_estimates_and_replays_run_iterations() -> None:
    seen: dict[str, float] = {}

    class Looks:
        keeps_slo = True

        def __init__(self) -> None:
            self.solo, self.queue_rules = make("solo"), rules_of(make("solo,order=shortest"))

        def decide(self, state: State, event: Event) -> Plan:
            if isinstance(event, Arrived):
                assert event.job == state.job(event.job.id)
                seen[event.job.id] = left_s(state, np.array([state.row(event.job.id)]))[0]
            return self.solo.decide(state, event)

    first = {"id": "first", "iterations": 36}
    long = {"id": "long", "iterations": 36, "estimate": {"iterations": 9}}
    short = {"id": "short", "iterations": 18, "estimate": {"iterations": 20}}
    run = finished(small(first, short, long), Looks())
    departed = {event.job_id: event.at_s for event in run.log if isinstance(event, Departed)}
    assert departed == {"long": 3600, "short": 5400, "first": 9000}
    assert seen == {"first": 3600, "long": 900, "short": 2000}
    text = to_yaml(run.scenario)
    assert parse_scenario(json.loads(json.dumps(small(first, short, long)))).jobs[2].estimate is not None
    assert "estimate: {iterations: 9}" in text
    assert "weight" not in text


def test_a_job_beyond_its_estimate_has_a_minute_left() -> None:
    scenario = parse_scenario(small({"id": "a", "iterations": 36, "estimate": {"iterations": 9}}))
    rules, state = rules_of(make("solo,order=shortest")), State(scenario.cluster)
    assert rules is not None
    apply(state, Arrived(0.0, scenario.jobs[0]))
    for at_s, left in ((0.0, 900), (900.0, 60), (2000.0, 60)):
        state.now_s = at_s
        assert rules.keys(state, ["a"]) == [left]
        if at_s == 0:
            apply(state, Admitted(0.0, "a", isolated(scenario.jobs[0])))


def test_usage_halves_and_adds_up() -> None:
    """Two nodes for a half-life, then nothing for another: 2 * 24 / (2 ln 2), halved."""
    charges = Charges(24 * 3600.0)
    scenario = parse_scenario(small({"id": "a", "iterations": 1, "user": "ann"}))
    charges.add(0, scenario.jobs[0], None)
    charges.admit(0, 0.0)
    charges.hold(0, 0.0, Share(2.0, 10.0))
    day_s = 24 * 3600.0
    once = 2 * 24 / log(2) / 2
    assert charges.usage_h("ann", day_s) == pytest.approx(once)
    charges.hold(0, day_s, Share(0.0, 0.0))
    assert charges.usage_h("ann", 2 * day_s) == pytest.approx(once / 2)
    assert charges.usage_h("bob", day_s) == 0
    charges = Charges(1e9 * 3600.0)
    charges.add(0, scenario.jobs[0], None)
    charges.admit(0, 0.0)
    charges.hold(0, 0.0, Share(2.0, 10.0))
    assert charges.usage_h("ann", 36.0) == pytest.approx(0.02, rel=1e-10)
    state = observed_state("solo,order=fair,half_life_h=6", scenario.cluster)
    apply(state, Arrived(0.0, scenario.jobs[0]))
    apply(state, Admitted(0.0, "a", isolated(scenario.jobs[0])))
    assert state.charges.usage_h("ann", 6 * 3600.0) == pytest.approx(2 * 6 / log(2) / 2)


def test_a_policys_own_option_of_that_name_is_none_of_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "class Own(Solo):\n    def __init__(self, half_life_h='never'):\n        self.half_life_h = half_life_h\n"
    (tmp_path / "own_half_life.py").write_text(f"from policies.placement.baselines import Solo\n\n\n{lines}")
    monkeypatch.syspath_prepend(tmp_path)
    cluster = parse_scenario(small({"id": "a", "iterations": 1})).cluster
    state = observed_state("own_half_life:Own,half_life_h=soon", cluster)
    assert vars(state.charges) == vars(State(cluster).charges)


def test_a_fair_order_compares_what_users_have_been_charged() -> None:
    """Computed by hand: free nodes go to one user by the file's order; then usage counts, halved every half an hour."""
    first = (("a1", "ann", 36), ("a2", "ann", 36), ("b1", "bob", 36), ("c1", "cas", 72))
    jobs = [{"id": name, "user": user, "iterations": iterations} for name, user, iterations in first]
    jobs += [{"id": name, "user": user, "iterations": 36, "arrival_s": 5400} for name, user in (("b2", "bob"), ("a3", "ann"))]
    scenario, policy = parse_scenario(small(*jobs, nodes=2)), make("solo,order=fair,half_life_h=0.5")
    run = finished(scenario, policy)
    assert [(at_s / 3600, job_id) for at_s, job_id, _ in placed(run)] == [
        *((0, "a1"), (0, "a2"), (1, "b1"), (1, "c1"), (2, "a3"), (3, "b2")),
    ]
    state, rules = observed_state("solo,order=fair,half_life_h=0.5", scenario.cluster), rules_of(policy)
    for event in run.log:
        if event.at_s < 7200.0 or (isinstance(event, Departed) and event.at_s == 7200.0):
            apply(state, event)
    an_hour = (1 - 0.5**2) * 0.5 / log(2)  # of one node, at its end
    assert rules is not None
    assert rules.keys(state, ["b2", "a3"]) == pytest.approx([2 * an_hour, 4 * an_hour * 0.5**2])


def test_usage_is_divided_by_the_weight_of_its_user() -> None:
    """Half of the work is done by half of each user's jobs, though those of the first come first."""
    counts = {"ann": 24, "bob": 12, "cas": 12}
    jobs = [{"id": f"{user}{k}", "user": user, "iterations": 12} for user, count in counts.items() for k in range(count)]
    scenario = parse_scenario(small(*jobs, nodes=3, quotas={"ann": {"weight": 2}, "*": {"weight": 1}}))
    log = replay(scenario, make("solo,order=fair,held_h=0.25"), check=True).log
    first = [event.job_id[:3] for event in log if isinstance(event, Admitted)][:24]
    assert all(abs(first.count(user) - count / 2) <= 1 for user, count in counts.items()), first


@pytest.mark.parametrize(("policy", "count", "most"), [("solo", 10, 1), ("rollmux", 16, 5)])
def test_users_have_their_weights_of_the_first_hour(policy: str, count: int, most: int) -> None:
    """No user has any usage when the first nodes are given away, and a job is half of the hour long, more in a group."""
    weights = {"ann": 2, "bob": 1, "cas": 1}
    jobs = [{"id": f"{user}{k}", "user": user, "iterations": 15 + 3 * (k % 3)} for user in weights for k in range(count)]
    scenario = parse_scenario(small(*jobs, nodes=8, quotas={"ann": {"weight": 2}}, max_group_size=most))
    state = observed_state("solo", scenario.cluster)
    for event in replay(scenario, make(f"{policy},order=fair,held_h=0.25"), check=True).log:
        if event.at_s <= 3600.0:
            apply(state, event)
    used_h = {user: state.charges.month_h(user, 3600.0) for user in weights}
    assert used_h == pytest.approx({user: sum(used_h.values()) * weight / 4 for user, weight in weights.items()}, rel=0.1)
    assert {state.job(job_id).user for job_id in state.waiting} >= {"bob", "cas"}


def test_the_index_learns_from_departures() -> None:
    """Twenty jobs of 1 h or 9 h: a new one is likelier to end within the hour; one that has done 2 h has 7 h left."""
    jobs = [{"id": f"j{k}", "iterations": 36 if k % 2 else 324, "class": "x"} for k in range(20)]
    scenario = parse_scenario(small(*jobs, {"id": "new", "iterations": 1, "class": "x"}, {"id": "old", "iterations": 1}, nodes=30))
    state = replay(scenario.model_copy(update={"jobs": scenario.jobs[:20]}), make("solo")).state
    for job in scenario.jobs[20:]:
        apply(state, Arrived(state.now_s, job))
    rows = np.array([state.row("new"), state.row("old")])
    for done, expected in ((0.0, 1 / 0.5), (72.0, 7.0), (360.0, 10.0)):  # within an hour half of the new ones are done
        state.tables.job_records["done"][rows] = done
        assert learned_h(state, rows) == pytest.approx([expected] * 2)
    rules = rules_of(make("solo,order=gittins"))
    assert rules is not None
    assert rules.keys(state, ["new"]) == pytest.approx([20.0])
    assert learned_h(State(scenario.cluster), rows[:0]) is None


def test_learned_lengths_draw_rare_classes_to_the_mean() -> None:
    """Two classes of 1 h and 9 h: a new job of each is ordered so, one of an unknown class lies between."""
    jobs = [{"id": f"j{k}", "iterations": 36 if k % 2 else 324, "class": "s" if k % 2 else "l"} for k in range(20)]
    jobs += [{"id": f"n{name}", "iterations": 1, "class": name} for name in "slx"]
    scenario = parse_scenario(small(*jobs, nodes=30))
    state = replay(scenario.model_copy(update={"jobs": scenario.jobs[:20]}), make("solo")).state
    rules = rules_of(make("solo,order=learned"))
    assert rules is not None
    empty = State(scenario.cluster)
    for job in scenario.jobs[20:]:
        apply(state, Arrived(state.now_s, job))
        apply(empty, Arrived(0.0, job))
    short, long, unknown = rules.keys(state, ["ns", "nl", "nx"])
    assert short == pytest.approx(2.0, rel=0.1) and 2 * short < unknown < long
    assert long == pytest.approx(18.0, rel=0.1)
    assert rules.keys(empty, ["ns", "nl", "nx"]) == [0.0, 0.0, 0.0]  # `attained`, before enough jobs have departed


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"user": "ann"}, {"user": "bob"}),
        ({"rollout": {"worst_case_s": 20}}, {"rollout": {"worst_case_s": 200}}),
        ({"arrival_s": 20 * 86400.0 + 3600}, {"arrival_s": 20 * 86400.0 + 13 * 3600}),
    ],
)
def test_lengths_are_learned_from_users_phases_and_hours_too(short: dict[str, Any], long: dict[str, Any]) -> None:
    """Jobs of about 1 h have one value of the trait, jobs of about 9 h another."""
    traits = [long if k % 2 == 0 else short for k in range(20)]
    jobs = [{"id": f"j{k}", "iterations": 1, **trait} for k, trait in enumerate(traits)]
    jobs = [job | {"arrival_s": k * 86400 + job["arrival_s"] % 86400} if "arrival_s" in job else job for k, job in enumerate(jobs)]
    scenario = parse_scenario(small(*jobs, {"id": "short", "iterations": 1, **short}, {"id": "long", "iterations": 1, **long}))
    state, rules = State(scenario.cluster), rules_of(make("solo,order=learned"))
    for k, job in enumerate(scenario.jobs):
        apply(state, Arrived(job.arrival_s, job))
        if k < 20:
            state.stays.add_length(job.id, "", (1.0 if k % 2 else 9.0) * (1 + k / 40))
    assert rules is not None
    short_h, long_h = rules.keys(state, ["short", "long"])
    assert short_h == pytest.approx(2.6, rel=0.25) and long_h == pytest.approx(26, rel=0.25)


def test_learned_lengths_are_those_of_the_inverse_of_numpy() -> None:
    scenario = make_workload("production", WorkloadOptions(jobs=200, users=12, classes=8, explained_by=("user", "class")))
    state, log_h = State(scenario.cluster), np.random.default_rng(0).normal(size=200)
    for job, value in zip(scenario.jobs, log_h, strict=True):
        apply(state, Arrived(job.arrival_s, job))
        state.stays.add_length(job.id, job.class_name, float(np.exp(value + len(job.class_name) + len(job.user))))
    lengths, logs = LearnedLengths.learned(state), np.log([*state.stays.lengths_h.values()])
    assert lengths is not None and lengths.shares
    inverse = np.linalg.inv(_variance(lengths.departed, lengths.shares, lengths.half))
    weights = inverse @ (logs - logs.mean())
    assert lengths.weights == pytest.approx(weights, rel=1e-9, abs=1e-9)
    assert lengths.residuals == pytest.approx(np.sort(weights / np.diag(inverse)), rel=1e-9, abs=1e-9)


def test_learned_lengths_are_also_those_of_jobs_that_the_state_does_not_know() -> None:
    """The departures of an earlier part of a journal count as those of this one."""
    scenario = parse_scenario(small(*({"id": f"n{name}", "iterations": 1, "class": name} for name in "sl")))
    state, rules = State(scenario.cluster), rules_of(make("solo,order=learned"))
    assert rules is not None
    for k in range(20):
        state.stays.add_length(f"j{k}", "s" if k % 2 else "l", 1.0 if k % 2 else 9.0)
    for job in scenario.jobs:
        apply(state, Arrived(0.0, job))
    assert rules.keys(state, ["ns", "nl"]) == pytest.approx([2.0, 18.0], rel=0.1)


def test_learned_lengths_count_arrivals_and_not_the_rows_of_shapes() -> None:
    scenario = make_workload("production", WorkloadOptions(jobs=4, shapes=True))
    state = State(scenario.cluster)
    for job in scenario.jobs:
        apply(state, Arrived(state.now_s, job))
    rows = np.array([-2, -1, *(state.row(job.id) for job in scenario.jobs)])
    assert rows[-1] > 3 and _arrivals(state, rows).tolist() == [-2, -1, 0, 1, 2, 3]


@pytest.mark.parametrize("order", ["gittins", "learned"])
def test_keys_are_shown_in_node_hours_before_enough_jobs_have_departed_too(order: str) -> None:
    scenario = parse_scenario(small({"id": "a", "iterations": 72}))
    state, rules = State(scenario.cluster), rules_of(make(f"solo,order={order}"))
    assert rules is not None
    apply(state, Arrived(0.0, scenario.jobs[0]))
    apply(state, Admitted(0.0, "a", isolated(scenario.jobs[0])))
    state.now_s = 3600.0
    assert [rules.shown(key, state) for key in rules.keys(state, ["a"])] == pytest.approx([2.0])


def test_reasons_say_by_which_key_a_job_waits() -> None:
    later: list[dict[str, Any]] = [
        {"id": "long", "iterations": 72, "arrival_s": 1},
        {"id": "short", "iterations": 18, "arrival_s": 1},
    ]
    jobs = ({"id": "first", "iterations": 36}, *later)
    decisions = admit_all(parse_scenario(small(*jobs)), make("solo,order=area")).decisions
    assert decisions[2].reason.startswith("needs 1 rollout node and 1 training node")
    assert decisions[1].reason.startswith("waits behind short by area (4 node-hours against 1), which needs")


def test_reasons_compare_the_keys_of_the_whole_queue_in_a_users_own_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = "return [float(3 * len(job_ids) - 2 * k) for k in range(len(job_ids))]"
    (tmp_path / "ranks.py").write_text(f"class Ranks:\n    scale = 0\n\n    def keys(self, state, job_ids):\n        {keys}\n")
    monkeypatch.syspath_prepend(tmp_path)
    jobs = tuple({"id": name, "iterations": 36, "arrival_s": at} for at, name in enumerate("abcd"))
    decisions = admit_all(parse_scenario(small(*jobs)), make_runnable("solo,order=ranks:Ranks")).decisions
    assert "waits behind d by ranks:Ranks (9 against 5)" in decisions[1].reason


def test_a_users_order_may_derive_from_one_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "from rollmux_env.scheduler.order import Fair\n\n\nclass Fairer(Fair):\n    pass\n"
    (tmp_path / "fairer_order.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    rules = rules_of(make_runnable("solo,order=fairer_order:Fairer"))
    assert rules is not None and type(rules.order).__name__ == "Fairer"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("solo,backfill=true", "backfill: goes with order, which is missing"),
        (
            "solo,order=aera",
            "order: must be one of area, attained, fair, fcfs, gittins, learned, shortest, or module:Class of your own",
        ),
        ("solo,order=area,park=1", "park: must be true or false, not 1"),
        ("solo,order=area,factor=0.5", "factor: must be at least 1, not 0.5"),
        ("solo,order=fair,half_life_h=0", "half_life_h: must be above 0, not 0"),
        ("solo,order=fair,held_h=-1", "held_h: must be at least 0, not -1"),
        ("solo,order=area,held_h=3", "held_h: goes with order=fair"),
        ("solo,order=fair,half_life_h=2e9", "half_life_h: must be at most 1e9, not 2e+09"),
        ("solo,order=json:JSONDecoder", "order: json:JSONDecoder has no method `keys`"),
        ("solo,order=no_such_module:Order", "there is no module 'no_such_module'"),
        ("optimal,order=area", "the yardstick has no option 'order'"),
        ("solo,order=area,park=true,lend=true", "lend: does not go with park=true"),
    ],
)
def test_wrong_options_are_refused(spec: str, problem: str) -> None:
    with pytest.raises(InputError) as error:
        make_policy(spec)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [("[0.0]", "returned 1 numbers for 2 jobs"), ("'ab'", "which are no numbers"), ("[-1.0, 1]", "returned -1")],
)
def test_keys_of_a_users_order_are_checked(keys: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"order_{abs(hash(keys))}"
    (tmp_path / f"{name}.py").write_text(f"class Mine:\n    def keys(self, state, job_ids):\n        return {keys}\n")
    monkeypatch.syspath_prepend(tmp_path)
    jobs = ({"id": "a", "iterations": 36}, {"id": "b", "iterations": 36}, {"id": "c", "iterations": 36})
    with pytest.raises(PlanError, match=problem):
        finished(small(*jobs[:2]), make_runnable(f"solo,order={name}:Mine,park=true"))


def test_starvation_stops_backfill() -> None:
    """A wide job is passed over for an hour, and then by nobody."""
    wide = {"id": "wide", "iterations": 36, "arrival_s": 1, "rollout": {"nodes": 2, "worst_case_s": 60}}
    narrow = [{"id": f"n{k}", "iterations": 27, "arrival_s": 2 * k} for k in range(8)]
    done = {}
    for spec in ("solo,order=fcfs", "solo,order=fcfs,starve_h=1"):
        log = finished(small(wide, *narrow, nodes=2), make(spec)).log
        done[spec] = [event.job_id for event in log if isinstance(event, Departed)].index("wide")
    assert done == {"solo,order=fcfs": 8, "solo,order=fcfs,starve_h=1": 4}


@pytest.mark.parametrize("order", ["fair", "gittins", "area"])
def test_nobody_is_parked_while_nobody_waits(order: str) -> None:
    """One of two jobs ends after `min_run_s`, and the queue is empty: the keys of those that run are not known any more."""
    jobs = ({"id": f"job{n}", "iterations": 36 * (1 + 2 * n), "user": f"user{n}", "arrival_s": 10 * n} for n in range(3))
    policy = make(f"solo,order={order},backfill=true,park=true")
    run = replay_events(parse_scenario(small(*jobs, nodes=2, min_run_s=60)), policy, make_dispatch("round-robin"), 0)
    assert {event.job_id for event in run.log if isinstance(event, Departed)} == {"job0", "job1", "job2"}
    assert not any(isinstance(event, Parked) for event in run.log)


def test_a_resumed_job_is_in_no_pause_twice() -> None:
    """Each park of the contract's third example has one end of a pause."""
    case = next(case for case in CASES if case["title"] == "parking")
    log = finished(case["scenario"], make(case["policy"])).log
    assert [type(event) for event in log if isinstance(event, Parked | Resumed)] == [Parked, Resumed]
