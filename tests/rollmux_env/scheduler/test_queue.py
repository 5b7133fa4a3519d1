"""The order of the queue, quotas, charges and budgets, in whatever scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.dispatch import make_dispatch
from policies.gavel import Gavel
from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import Solo
from policies.placement.consolidate import Consolidate
from policies.placement.optimal import Optimal
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Moved, OverBudget, Placement, Resumed
from rollmux_env.cluster.plan import Policy
from rollmux_env.cluster.state import State
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Fixed
from rollmux_env.errors import InputError
from rollmux_env.replay.admission import admit_all
from rollmux_env.replay.event import replay_events
from rollmux_env.replay.failures import Failures
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import Run
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.scheduler.quotas import is_above
from tests.oracle.draw import examples
from tests.oracle.queue_keys import queued
from tests.rollmux_env.cluster.twin import CLUSTER, make_job

PAIR_USD = 8 * 1.85 + 8 * 5.28  # a rollout node and a training node, $/h
ROUND_ROBIN = make_dispatch("round-robin")
REPLAYS: dict[str, Callable[[Scenario, Policy], Run]] = {
    "fluid": lambda scenario, policy: replay(scenario, policy, check=True),
    "event": lambda scenario, policy: replay_events(scenario, policy, ROUND_ROBIN, 0),
}


def scenario_of(*jobs: dict[str, Any], nodes: int = 2, **cluster: Any) -> Scenario:
    pools = {name: {**pool, "max_nodes": nodes} for name, pool in CLUSTER.items()}
    return parse_scenario({"version": 1, "cluster": {**pools, **cluster}, "jobs": list(jobs)})


def followed(run: Run, observed: bool) -> Iterator[tuple[State, Event]]:
    """The state before and, when the next is asked for, after each event of a run."""
    state = State(run.scenario.cluster, observed)
    for event in run.log:
        state.now_s = event.at_s
        yield state, event
        apply(state, event)


def admitted(run: Run) -> dict[str, float]:
    return {event.job_id: event.at_s for event in run.log if isinstance(event, Admitted)}


@pytest.mark.parametrize("fidelity", REPLAYS)
@pytest.mark.parametrize("policy", [Algorithm1, Solo, Consolidate])
@examples(15)
@given(scenario=queued())
def test_charges_add_up_and_nobody_is_passed_over_but_for_a_quota(
    policy: Callable[[], Policy], fidelity: str, scenario: dict[str, Any]
) -> None:
    run = REPLAYS[fidelity](parse_scenario(scenario), policy())
    figures = metrics(run)
    state = run.state
    charged_usd = [state.charges.usd(state.row(job.id), state.now_s) for job in run.scenario.jobs]
    assert sum(charged_usd) == pytest.approx(figures.cost_usd)
    for usd in filter(None, (figures.usd_by_user, figures.usd_by_priority)):
        assert sum(usd.values()) == pytest.approx(figures.cost_usd)
    decided: tuple[State, str] | None = None  # of the last admission or move: the state before it, and its user
    for state, event in followed(run, fidelity == "event"):
        shares = [state.charges.share(row) for row in range(state.arrived)]
        assert sum(share.nodes for share in shares) == pytest.approx(state.rollout_nodes + state.training_nodes)
        assert sum(share.usd_per_hour for share in shares) == pytest.approx(state.usd_per_hour)
        if decided is not None and not isinstance(event, Moved):  # all of a plan has been done
            before, user = decided
            after = state.charges.user_share(user)
            assert not is_above(state, user, after) or after.nodes <= before.charges.user_share(user).nodes * (1 + 1e-9)
        decided = None
        if isinstance(event, Admitted | Moved):
            decided = state.copy(), state.job(event.job_id).user
        if isinstance(event, Admitted):
            ahead = state.waiting[: state.waiting.index(event.job_id)]
            assert all(state.job(job_id).user in state.cluster.quotas for job_id in ahead)
            keys = [-state.job(job_id).priority for job_id in state.waiting]
            assert keys == sorted(keys)


@pytest.mark.parametrize("fidelity", REPLAYS)
@examples(25)
@given(scenario=queued())
def test_budgets_end_jobs_at_once_or_after_the_iteration_in_hand(fidelity: str, scenario: dict[str, Any]) -> None:
    run = REPLAYS[fidelity](parse_scenario(scenario), Algorithm1())
    begun = admitted(run)
    for state, event in followed(run, fidelity == "event"):
        if not isinstance(event, Departed):
            continue
        budget = state.job(event.job_id).budget
        if budget is None:
            assert not isinstance(event, OverBudget)
            continue
        used = [
            most and spent / most
            for spent, most in (
                (state.charges.usd(state.row(event.job_id), state.now_s), budget.usd),
                ((event.at_s - begun[event.job_id]) / 3600, budget.hours),
            )
            if most is not None
        ]
        if isinstance(event, OverBudget):
            assert max(used) >= 1 - 1e-6
            assert fidelity == "event" or max(used) == pytest.approx(1, abs=1e-3)  # instants are 1e-6 s apart
        elif fidelity == "fluid":
            assert max(used) <= 1 + 1e-3


@examples(25)
@given(scenario=queued(budgets=False), priority=st.integers(-3, 3))
def test_with_one_priority_and_no_quotas_all_is_as_without_the_keys(scenario: dict[str, Any], priority: int) -> None:
    plain = {**scenario, "cluster": {key: value for key, value in scenario["cluster"].items() if key != "quotas"}}
    plain["jobs"] = [{key: value for key, value in job.items() if key not in ("user", "priority")} for job in scenario["jobs"]]
    keyed = {**plain, "jobs": [{**job, "priority": priority, "user": "ann"} for job in plain["jobs"]]}
    logs = [replay(parse_scenario(one), Algorithm1()).log for one in (plain, keyed)]
    mine, theirs = ([(event.at_s, event.job.id) if isinstance(event, Arrived) else event for event in log] for log in logs)
    assert mine == theirs


def test_a_higher_priority_goes_first_and_preempts_nobody() -> None:
    run = replay(
        scenario_of(
            make_job("a", slo=1),
            make_job("b", slo=1, arrival_s=10),
            make_job("low", slo=1, arrival_s=20),
            make_job("high", slo=1, arrival_s=30, priority=1),
        ),
        Solo(),
        check=True,
    )
    assert admitted(run) == {"a": 0, "b": 10, "high": 200, "low": 210}
    assert metrics(run).wait_s == {"high": 170, "low": 190}


def test_a_job_that_comes_first_by_its_priority_makes_room_for_who_waits_behind_it() -> None:
    big: dict[str, Any] = {"rollout": {"nodes": 2}, "training": {"nodes": 2}}
    run = replay(
        scenario_of(
            make_job("a", slo=1), make_job("wide", slo=2, arrival_s=1, **big), make_job("b", slo=2, arrival_s=2, priority=1)
        ),
        Algorithm1(),
    )
    assert admitted(run)["b"] == 2 and admitted(run)["wide"] > 2


def test_a_quota_passes_over_the_head_and_says_so() -> None:
    run = replay(
        scenario_of(
            make_job("a", user="ann"),
            make_job("b", user="ann"),
            make_job("c"),
            max_group_size=1,
            quotas={"ann": {"nodes": 2, "usd_per_hour": PAIR_USD}},
        ),
        Algorithm1(),
        check=True,
    )
    assert admitted(run) == {"a": 0, "c": 0, "b": 200}
    figures = metrics(run)
    hour = 200 / 3600
    assert figures.usd_by_user == pytest.approx({"ann": 2 * PAIR_USD * hour, "": PAIR_USD * hour})
    assert figures.wait_s == {"b": 200}
    plan = admit_all(run.scenario, Algorithm1())
    assert plan.decisions[1].reason == "user ann holds 2 of 2 nodes and 57.04 of 57.04 $/h"


def test_sharing_a_group_shares_its_nodes() -> None:
    """Two jobs of one user in a group hold two nodes together: a quota of two nodes is for both."""
    run = replay(scenario_of(make_job("a", user="ann"), make_job("b", user="ann"), quotas={"ann": {"nodes": 2}}), Algorithm1())
    assert admitted(run) == {"a": 0, "b": 0}


def test_a_budget_in_dollars_counts_what_a_job_shares() -> None:
    """Alone for 100 s and then with another one, which pays for half."""
    budget = {"usd": PAIR_USD * 150 / 3600}
    run = replay(
        scenario_of(make_job("a", budget=budget, iterations=100), make_job("b", arrival_s=100, iterations=100)), Algorithm1()
    )
    (gone,) = [event for event in run.log if isinstance(event, OverBudget)]
    assert gone.job_id == "a" and gone.at_s == pytest.approx(200)
    assert metrics(run).over_budget == ("a",)
    assert run.state.tables.jobs.done[0] == pytest.approx(10)


def test_the_budget_of_a_job_that_leaves_while_it_moves_ends_nobody() -> None:
    scenario = scenario_of(make_job("a", budget={"hours": 1}))
    state, alone = State(scenario.cluster), Placement(None, (), 1, 1)
    (job,) = scenario.jobs
    for event in (Arrived(0.0, job), Admitted(0.0, "a", alone), Moved(0.0, "a", alone), Departed(0.0, "a"), Resumed(0.0, "a")):
        apply(state, event)
    assert state.charges.next_end_s() == inf and state.charges.spent(3600.0) == []


def test_a_budget_in_hours_ends_the_iteration_in_hand() -> None:
    scenario = scenario_of(make_job("a", budget={"hours": 50 / 3600}, iterations=100))
    fluid, event = replay(scenario, Solo()), replay_events(scenario, Solo(), ROUND_ROBIN, 0)
    assert [(one.log[-1].at_s, float(one.state.tables.jobs.done[0])) for one in (fluid, event)] == [(50, 2.5), (60, 3)]
    assert metrics(event).as_dict()["over_budget"] == ("a",)


def test_a_job_that_dies_has_spent_what_it_has_spent() -> None:
    scenario = scenario_of(make_job("a", budget={"usd": PAIR_USD, "hours": 100}, iterations=10_000), migration_s=7)
    run = replay_events(scenario, Solo(), ROUND_ROBIN, 1, failures=Failures(job_h=0.2))
    assert run.failures is not None and len(run.failures.losses) > 1
    assert metrics(run).over_budget == ("a",)
    assert metrics(run).usd_by_user == pytest.approx({"": PAIR_USD}, rel=0.01)
    assert metrics(run).cost_usd == pytest.approx(PAIR_USD, rel=0.01)


def test_figures_of_the_queue_are_shown_only_of_files_that_use_it() -> None:
    plain = metrics(replay(scenario_of(make_job("a")), Solo())).as_dict()
    assert not {"usd_by_user", "usd_by_priority", "over_budget"} & plain.keys()


def test_a_user_is_a_label_for_what_knows_no_queue() -> None:
    labelled = scenario_of(make_job("a"), make_job("b", user="ann"))
    plain = scenario_of(make_job("a"), make_job("b"))
    for policy in (Optimal(), Gavel()):
        found = policy.replay(labelled)
        assert found.metrics == policy.replay(plain).metrics and [job.user for job in found.jobs] == ["", "ann"]
    assert Fixed(labelled).jobs == 2


@pytest.mark.parametrize("keys", [{"priority": 1}, {"budget": {"usd": 1}}])
def test_what_knows_no_queue_refuses_its_keys(keys: dict[str, Any]) -> None:
    scenario = scenario_of(make_job("a"), make_job("b", **keys))
    said = rf"knows no {next(iter(keys))} \(jobs\[1\]\.{next(iter(keys))}\)$"
    for refuse in (Optimal().replay, Optimal("work").plan, Gavel().replay, lambda one: PlacementVectorEnv(1, Fixed(one))):
        with pytest.raises(InputError, match=said):
            refuse(scenario)


def test_quotas_are_refused_too() -> None:
    with pytest.raises(InputError, match=r"--policy optimal: .*knows no quotas \(cluster\.quotas\)$"):
        Optimal().replay(scenario_of(make_job("a"), quotas={"ann": {"nodes": 2}}))
