"""Parks: what is legal, what the state and its accounts do, and event replays, where a job leaves at the end of its iteration."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given

from policies.dispatch import make_dispatch
from policies.placement.baselines import Solo
from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Admitted, Arrived, Departed, Event, Parked, Placement, Resumed, isolated
from rollmux_env.cluster.plan import Park, Place, Plan, carry_out, may_park
from rollmux_env.cluster.recorded import apply_recorded
from rollmux_env.cluster.state import State
from rollmux_env.errors import InputError, PlanError
from rollmux_env.replay.admission import admit_all
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.failures import Death, Failures
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.outcome import outcome
from rollmux_env.scenario import parse_scenario
from rollmux_env.scheduler import serving
from rollmux_env.scheduler.order import QueueRules
from rollmux_env.scheduler.parking import ParkingCandidates
from rollmux_env.scheduler.planner import JobChanges, Planner, Restrictions
from rollmux_env.scheduler.preview import forecast_jobs
from tests.oracle.draw import examples
from tests.rollmux_env.scheduler.test_order import finished, fleets, make, options, small

ROUND_ROBIN = make_dispatch("round-robin")
LONG, SHORT = {"id": "long", "iterations": 360}, {"id": "short", "iterations": 36, "arrival_s": 3610}
PARKS = "solo,order=shortest,park=true"


def running(job: dict[str, Any], at_s: float, **cluster: Any) -> State:
    """A state in which one job has run alone since 0."""
    scenario = parse_scenario(small(job, **cluster))
    state = State(scenario.cluster)
    apply(state, Arrived(0.0, scenario.jobs[0]))
    apply(state, Admitted(0.0, "long", isolated(scenario.jobs[0])))
    state.now_s = at_s
    return state


@pytest.mark.parametrize(
    ("changes", "cluster", "at_s", "legal"),
    [
        ({}, {}, 1800 - 1e-7, True),
        ({}, {}, 1799, False),
        ({}, {"min_run_s": 0}, 400, True),
        ({"slo": 1.5}, {"min_run_s": 0}, 599, False),  # (599 + 300) > 1.5 * 599
        ({"slo": 1.5}, {"min_run_s": 0}, 601, True),
        ({"slo": 1.5}, {"min_run_s": 0, "resume_s": 40}, 100, True),
        ({"parkable": False}, {}, 3600, False),
        ({"movable": False}, {}, 3600, False),
        ({"movable": False, "parkable": True}, {}, 3600, True),
    ],
)
def test_p9(changes: dict[str, Any], cluster: dict[str, Any], at_s: float, legal: bool) -> None:
    state = running({**LONG, **changes}, at_s, **cluster)
    assert may_park(state, "long") == legal
    if legal:
        assert carry_out(state, (Park("long"),), keeps_slo=True) == [Parked(at_s, "long")]
    else:
        with pytest.raises(PlanError, match="P9: job long may not be parked now"):
            carry_out(state, (Park("long"),), keeps_slo=True)


def parkable_plainly(state: State, rules: QueueRules, job_id: str) -> list[str]:
    """The first ten jobs that may be parked for a waiting one, as the rule says it."""
    job_ids = [job_id, *state.stays.placed_at_s]
    keys = dict(zip(job_ids, rules.keys(state, job_ids), strict=True))
    priority, most = state.job(job_id).priority, rules.factor * keys[job_id]
    others = {other: state.job(other) for other in state.stays.placed_at_s if may_park(state, other)}
    behind = [one for one, job in others.items() if job.priority < priority or (job.priority == priority and keys[one] > most)]
    return sorted(behind, key=lambda one: (others[one].priority, -keys[one], -others[one].arrival_s, -state.row(one)))[:10]


@examples(15)
@given(fleets(), options(park=True))
def test_the_running_jobs_that_are_tried_are_those_of_the_rule(scenario: dict[str, Any], spec: str) -> None:
    """One order of the running jobs serves all waiting ones of a pass."""
    policy: Any = make(spec)

    class Checked(ParkingCandidates):
        def list_candidates(self, job_id: str) -> list[str]:
            tried = super().list_candidates(job_id)
            plainly = parkable_plainly(self._state, policy.queue_rules, job_id)
            assert tried == [other for other in plainly if (job_id, other) not in self._declined]
            return tried

        def has_candidates(self) -> list[bool]:
            has_candidates = super().has_candidates()
            assert has_candidates == [bool(self.list_candidates(job_id)) for job_id in self._job_ids]
            return has_candidates

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "ParkingCandidates", Checked)
        finished(scenario, policy)


def test_a_job_with_a_fixed_stay_is_never_parked() -> None:
    stay = {"id": "long", "duration_s": 36000, "parkable": True}
    assert not may_park(running(stay, 3600), "long")
    with pytest.raises(InputError, match=r"jobs\[0\].estimate: goes with iterations, not with duration_s"):
        parse_scenario(small({**stay, "estimate": {"iterations": 3}}))


def test_the_state_and_the_accounts_of_a_parked_job() -> None:
    """An hour of running, one of waiting, a pause: it keeps its iterations, pays nothing, and its budget's clock stands."""
    state = running({**LONG, "budget": {"hours": 5}}, 3600)
    row, usd_per_hour = state.row("long"), state.usd_per_hour
    apply(state, Parked(3600.0, "long", "short"))
    assert (state.iterations_done("long"), state.usd_per_hour, state.waiting) == (36, 0, ["long"])
    with pytest.raises(InputError, match="job long is not running"):
        apply_recorded(state, Parked(3600.0, "long"))
    state.now_s = 7200.0
    assert state.charges.usd(row, 7200.0) == pytest.approx(usd_per_hour)
    apply(state, Admitted(7200.0, "long", isolated(state.job("long"))))
    assert state.is_paused("long")
    assert not may_park(state, "long")
    assert state.next_change_s() == 7500.0
    with pytest.raises(PlanError, match="P1: job long is not running, or in a pause"):
        carry_out(state.copy(), (Park("long"),), keeps_slo=True)
    apply(state, Resumed(7500.0, "long"))
    assert state.iterations_done("long") == 36
    assert state.charges.next_end_s() == (5 + 1) * 3600
    assert state.tables.departs_s[state.tables.order[0]] == 7500 + 324 * 100


def test_an_event_replay_parks_at_the_end_of_an_iteration() -> None:
    """At 3,610 s the short job comes in the middle of an iteration, which ends at 3,700 s; the place is kept for it."""
    late = {"id": "late", "iterations": 36, "arrival_s": 3650}
    run = replay_events(parse_scenario(small(LONG, SHORT, late)), make(PARKS), ROUND_ROBIN, 0, Watch(check=True))
    log = [(type(event).__name__, event.job_id, event.at_s) for event in run.log if isinstance(event, Parked | Admitted | Departed)]
    assert log == [
        ("Admitted", "long", 0),
        ("Parked", "long", 3700),
        ("Admitted", "short", 3700),
        ("Departed", "short", 7300),
        ("Admitted", "late", 7300),
        ("Departed", "late", 10900),
        ("Admitted", "long", 10900),
        ("Departed", "long", 10900 + 300 + 323 * 100),
    ]
    assert next(event.for_job for event in run.log if isinstance(event, Parked)) == "short"
    found = outcome(run)
    assert found.metrics.slo_attainment_observed == 1
    assert [job.parks for job in found.jobs] == [1, 0, 0]
    assert found.jobs[0].slowdown == pytest.approx(1 + 300 / 36000)


def test_a_job_that_dies_before_it_is_parked_leaves_its_place_all_the_same() -> None:
    failures = Failures(script=(Death(job="long", at_s=3640.0, back_s=5000.0),), every=1)
    scenario = parse_scenario(small(LONG, SHORT))
    run = replay_events(scenario, make(PARKS), ROUND_ROBIN, 0, Watch(check=True), failures=failures)
    assert not any(isinstance(event, Parked) for event in run.log)
    assert next(event.at_s for event in run.log if isinstance(event, Admitted) and event.job_id == "short") == 3640.0


def test_a_reserved_place_is_not_given_beyond_a_quota() -> None:
    """While the parked job leaves its nodes, a departure leaves more of a group to the user for whom they are reserved."""
    jobs: list[dict[str, Any]] = [LONG, *({"id": name, "iterations": 99} for name in ("own", "other", "more"))]
    for ann in (1, 3):
        jobs[ann]["user"] = "ann"
    scenario = parse_scenario(small(*jobs, nodes=2, max_group_size=2, quotas={"ann": {"nodes": 3}}))
    state = State(scenario.cluster)
    planner = Planner(state, Solo(), Restrictions(), None, parks_later=True)
    for job in scenario.jobs:
        planner.note(Arrived(0.0, job))
    for job_id in ("long", "own"):
        planner.note(Admitted(0.0, job_id, isolated(state.job(job_id))))
    planner.note(Admitted(0.0, "other", Placement(state.group_of("own").id, (0,))))
    state.now_s = 3600.0
    assert planner.move((Park("long", "more"), Place("more", isolated(state.job("more")))))
    planner.leave(3650.0, JobChanges(departed={"other": False}))
    planner.leave(3700.0, JobChanges(parked=["long"]))
    assert state.waiting == ["long", "more"]


@examples(15)
@given(fleets(), options(park=True))
def test_event_replays_with_parks_keep_the_invariants(scenario: dict[str, Any], spec: str) -> None:
    try:
        run = replay_events(parse_scenario(scenario), make(f"{spec},switches=true"), ROUND_ROBIN, 0, Watch(check=True))
    except PlanError as error:
        assume("wait for ever" not in str(error))
        raise
    found = outcome(run)
    assert found.metrics.slo_attainment_observed == 1
    assert sum(job.usd or 0 for job in found.jobs) == pytest.approx(found.metrics.cost_usd)


def test_a_plan_serves_an_instants_arrivals_together_and_shows_final_places() -> None:
    """Of two jobs that arrive at once the shorter one gets the nodes; a shorter one takes them an hour later."""
    late = {"id": "late", "iterations": 18, "arrival_s": 3600}
    for park, running, short_s in (("false", "short", 0), ("true", "late", 0), ("false", "short", 5e-7)):
        jobs = {"id": "long", "iterations": 360}, {"id": "short", "iterations": 90, "arrival_s": short_s}, late
        plan = admit_all(parse_scenario(small(*jobs)), make(f"solo,order=shortest,park={park}"))
        assert [one.job for one in plan.decisions if one.strategy != "queued"] == [running]
        assert [job_id for group in plan.groups for job_id in group.jobs] == [running]
        if park == "true":
            assert plan.decisions[1].reason.startswith("parked for late since 1.00 h")


class Swaps:
    """A policy of a user's that parks whoever runs for whoever comes."""

    keeps_slo = True

    def __init__(self) -> None:
        self._own = Solo()

    def decide(self, state: State, event: Event) -> Plan:
        if not isinstance(event, Arrived):
            return ()
        parks = tuple(Park(job_id, event.job.id) for job_id in [*state.stays.placed_at_s] if may_park(state, job_id))
        if parks:
            return (*parks, Place(event.job.id, isolated(event.job)))
        return self._own.decide(state, event)


@pytest.mark.parametrize("events", [False, True])
def test_a_policys_own_plan_may_park(events: bool) -> None:
    scenario = parse_scenario(small(LONG, SHORT))
    run = replay_events(scenario, Swaps(), ROUND_ROBIN, 0) if events else replay(scenario, Swaps(), check=True)
    parked_s = [event.at_s for event in run.log if isinstance(event, Parked)]
    assert parked_s[0] == (3700 if events else 3610)
    assert len(parked_s) == 1


def test_what_waits_is_said_and_expected() -> None:
    """The short job is done an hour after it came; then the long one continues."""
    state = running(LONG, 3600)
    apply(state, Arrived(3600.0, parse_scenario(small(SHORT)).jobs[0]))
    apply(state, Parked(3600.0, "long", "short"))
    apply(state, Admitted(3600.0, "short", isolated(state.job("short"))))
    (job,) = forecast_jobs(state, make(PARKS)).waiting.values()
    assert (job.job_id, job.position, job.eta_s) == ("long", 1, 7200.0)
    assert job.reason.startswith("parked for short since 1.00 h; needs 1 rollout node")
