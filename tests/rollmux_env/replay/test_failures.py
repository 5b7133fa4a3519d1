"""Jobs, nodes and the scheduler die in an event replay: no work is lost for good, and where nothing dies all is as before."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.dispatch import make_dispatch
from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import Solo
from policies.registry import make_runnable
from rollmux_env.cluster.events import Admitted, Arrived, Departed
from rollmux_env.cluster.plan import Policy
from rollmux_env.replay.event import Watch, replay_events
from rollmux_env.replay.failures import Death, Failures, daly_s, young_s
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.outcome import outcome
from rollmux_env.replay.run import Run
from rollmux_env.scenario import Scenario, parse_scenario
from rollmux_env.workloads import make_workload
from tests.conftest import Command
from tests.oracle import draw
from tests.oracle.draw import examples
from tests.rollmux_env.replay.restless import Restless
from tests.rollmux_env.replay.test_event import NOISY, POOL, as_text, job, noisy_jobs, scenario

HOUR_S = 3600.0


WATCH = Watch(check=True, keep_phases=True)


def played(problem: Scenario, failures: Failures | None, policy: Policy | None = None, seed: int = 0) -> Run:
    return replay_events(problem, policy or Algorithm1(), make_dispatch("fifo"), seed, WATCH, failures=failures)


def dying(run: Run) -> list[tuple[str, float, float]]:
    assert run.failures is not None
    return [(loss.job_id, loss.at_s, loss.iterations) for loss in run.failures.losses]


RATES = st.sampled_from([0.2, 1.0, float("inf")])  # hours; a job has some minutes to do
FAILURES = st.builds(
    Failures,
    node_h=RATES,
    job_h=RATES,
    scheduler_h=RATES,
    scheduler_down_s=st.sampled_from([1.0, 17.5, 200.0]),
    every=st.sampled_from([1, 2, 3]),
    write_s=st.sampled_from([0.0, 3.0]),
)


AWAY_S = st.sampled_from([None, 0.0, 13.0, 500.0])  # of a job that a script kills


@pytest.mark.parametrize("dispatch", ["round-robin", "longest-first,migrate=0.8"])
@given(data=draw.scenarios(max_jobs=5), failures=FAILURES, noise=st.booleans(), moves=st.booleans(), away_s=AWAY_S)
@examples(20)
def test_all_work_is_done_once(
    dispatch: str, data: dict[str, Any], failures: Failures, noise: bool, moves: bool, away_s: float | None
) -> None:
    for entry in data["jobs"]:
        if noise:
            entry["rollout"].update(NOISY)
        if "iterations" in entry:  # an iteration is to be shorter than most lives
            entry["iterations"] = min(entry["iterations"], 12)
    problem = parse_scenario(data)
    if away_s is not None:
        first = problem.jobs[0]
        deaths = (first.arrival_s + 7.5 + times * (away_s + 40) for times in range(3))
        failures = replace(failures, script=tuple(Death(job=first.id, at_s=at_s, back_s=at_s + away_s) for at_s in deaths))
    policy: Policy = Restless(0, keeps_slo=False) if moves else Algorithm1()
    run = replay_events(problem, policy, make_dispatch(dispatch), 0, WATCH, failures=failures)
    log = run.failures
    assert log is not None
    arrived = [event.job.id for event in run.log if isinstance(event, Arrived)]
    admitted = [event.job_id for event in run.log if isinstance(event, Admitted)]
    departed = [event.job_id for event in run.log if isinstance(event, Departed)]
    lives = [entry.id for entry in problem.jobs] + [loss.job_id for loss in log.losses]
    assert sorted(arrived) == sorted(admitted) == sorted(departed) == sorted(lives)
    assert isinstance(failures.every, int)
    staleness = {entry.id: entry.staleness for entry in problem.jobs}
    for loss in log.losses:
        most = failures.every + 3 * staleness[loss.job_id]
        assert 0 <= loss.iterations <= most or (noise and most > failures.every)
    done = dict.fromkeys(departed, 0.0)
    for row in range(run.state.arrived):
        done[run.state.tables.job_id(row)] += float(run.state.tables.jobs.done[row])
    for entry in problem.jobs:
        whole = {phase.iteration for phase in run.phases if phase.job_id == entry.id}
        assert whole == set(range(max(whole) + 1))
        if entry.iterations is not None:
            assert done[entry.id] == entry.iterations == max(whole) + 1
        else:  # what was lost at the end of a stay is not done again
            assert 1 <= done[entry.id] <= max(whole) + 1
    by_node = sorted((p.group, p.pool, node, p.start_s, p.end_s, p.share) for p in run.phases for node in p.nodes)
    for a, b in itertools.pairwise(by_node):
        assert a[:3] != b[:3] or a[4] <= b[3] or a[5] + b[5] <= 1 + 1e-9


@pytest.mark.parametrize("every", [1, 3])
def test_where_nothing_dies_it_is_the_same_replay(every: int) -> None:
    problem = scenario(*noisy_jobs())
    bare, never = played(problem, None), played(problem, Failures(every=every))
    assert as_text(bare) == as_text(never)
    assert outcome(never, Failures(every=every)).extra["restarts"] == 0


def test_the_same_seed_gives_the_same_failures_and_another_one_others() -> None:
    failures = Failures(job_h=0.05, node_h=0.2, scheduler_h=0.1, every=2)
    first, second, other = (played(scenario(*noisy_jobs()), failures, seed=seed) for seed in (1, 1, 2))
    assert as_text(first) == as_text(second) and dying(first) == dying(second) != []
    assert dying(first) != dying(other)


def one_death() -> tuple[Run, float]:
    """A job of 40 iterations of 15 s that dies once; its run, and when that was."""
    cold = {"switch": {"cold_s": 2}}
    problem = scenario(job("a", {"worst_case_s": 10, **cold}, iterations=40), migration_s=7)
    runs = (played(problem, Failures(job_h=0.15, every=4), Solo(), seed=seed) for seed in range(50))
    run = next(run for run in runs if len(dying(run)) == 1)
    return run, dying(run)[0][1]


def test_a_death_by_hand() -> None:
    """It goes on from the last whole four iterations, when the pause of 7 s is over, with a cold start of 2 s."""
    run, at_s = one_death()
    before = [phase for phase in run.phases if phase.start_s < at_s]
    after = [phase for phase in run.phases if phase.start_s >= at_s]
    done_s = at_s - 2  # 15 s each, from the cold start on
    assert after[0].iteration == int(done_s / 15) // 4 * 4
    assert after[0].start_s == at_s + 7 and after[0].switch_s == 2
    assert before[-1].end_s <= at_s
    assert dying(run)[0][2] == pytest.approx(done_s / 15 - after[0].iteration)
    ended_s = next(event.at_s for event in reversed(run.log) if isinstance(event, Departed))
    assert ended_s == pytest.approx(at_s + 7 + 2 + 15 * (40 - after[0].iteration))
    figures = outcome(run, Failures(job_h=0.15, every=4)).extra
    assert figures["lost_work_h"] == pytest.approx(dying(run)[0][2] * 15 / HOUR_S)
    assert metrics(run).work_h == pytest.approx(40 * 15 / HOUR_S)
    assert metrics(run).slowdown["a"] == pytest.approx(ended_s / (40 * 15))


def test_a_checkpoint_takes_its_time_between_two_iterations() -> None:
    problem = scenario(job("a", iterations=9))
    run = played(problem, Failures(every=4, write_s=3), Solo())
    rollouts = [phase.start_s for phase in run.phases if phase.phase == "rollout"]
    assert [b - a for a, b in itertools.pairwise(rollouts)] == [15, 15, 15, 18, 15, 15, 15, 18]
    assert outcome(run, Failures(every=4, write_s=3)).extra["checkpoint_h"] == 6 / HOUR_S


def test_a_node_takes_all_along_that_have_their_place_on_it_and_no_others() -> None:
    """Two pairs of nodes with two jobs each: what dies at one instant is one group."""
    jobs = [job(f"j{k}", iterations=400) for k in range(4)]
    problem = scenario(*jobs, max_group_size=2)
    run = played(problem, Failures(node_h=2.0))
    assert run.failures is not None and run.failures.nodes
    assert {loss.cause for loss in run.failures.losses} == {"node"}
    for at_s in {loss.at_s for loss in run.failures.losses}:
        struck = {loss.job_id for loss in run.failures.losses if loss.at_s == at_s}
        last = {phase.job_id: phase.group for phase in sorted(run.phases, key=lambda p: p.start_s) if phase.start_s < at_s}
        partners = {name for name, group in last.items() if group == last[min(struck)]}
        assert len(struck) <= 2 and struck <= partners


def test_while_the_scheduler_is_away_nothing_begins_and_what_runs_goes_on() -> None:
    jobs = [job(f"j{k}", 10 + k, 14 - k, arrival=40 * k, iterations=60) for k in range(5)]
    run = played(scenario(*jobs), Failures(scheduler_h=0.1, scheduler_down_s=70))
    assert run.failures is not None and len(run.failures.scheduler_s) > 2 and not run.failures.losses
    for at_s in run.failures.scheduler_s:
        inside = [phase for phase in run.phases if at_s < phase.start_s < at_s + 70]
        decided = [event for event in run.log if at_s < event.at_s < at_s + 70]
        assert inside == [] and decided == []
    assert any(phase.start_s < at_s < phase.end_s < at_s + 70 for phase in run.phases for at_s in run.failures.scheduler_s)
    assert metrics(run).work_h == pytest.approx(sum(60 * 24 for _ in jobs) / HOUR_S)


def test_policies_meet_the_same_lives_of_jobs() -> None:
    """Alone or together, the first life of a job is as long."""
    jobs = [job(f"j{k}", iterations=200) for k in range(3)]
    first: list[dict[str, float]] = [{}, {}]
    policies: tuple[Policy, ...] = (Solo(), Algorithm1())
    for found, policy in zip(first, policies, strict=True):
        for name, at_s, _ in dying(played(scenario(*jobs), Failures(job_h=0.3), policy)):
            found.setdefault(name, at_s)
    assert first[0] and {name: at_s for name, at_s in first[1].items() if name in first[0]} == first[0]


def test_young_and_daly() -> None:
    assert young_s(60, 7200) == pytest.approx(sqrt(2 * 60 * 7200))
    ratio = 60 / 14400
    assert daly_s(60, 7200) == pytest.approx(sqrt(2 * 60 * 7200) * (1 + sqrt(ratio) / 3 + ratio / 9) - 60)
    assert daly_s(100, 40) == 40
    entry = scenario(job("a", 100, 60)).jobs[0]
    assert Failures(job_h=2, write_s=60, every="young").interval(entry) == 6  # 929.5 s of 160 s each
    assert Failures(job_h=4, node_h=8, write_s=60, every="young").interval(entry) == 6  # two nodes
    assert Failures(write_s=60, every="daly").interval(entry) > 10**9
    assert Failures(job_h=2, every="young").interval(entry) == 1


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"node_h": 0}, "node_h must be a number above 0, not 0"),
        ({"job_h": "often"}, "job_h must be a number above 0, not 'often'"),
        ({"every": 0}, "every must be a number of iterations from 1, young or daly, not 0"),
        ({"write_s": -1}, "write_s must be a number of seconds, not -1"),
        ({"scheduler_down_s": float("inf")}, "scheduler_down_s must be a number of seconds, not inf"),
    ],
)
def test_what_cannot_be_is_said(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Failures(**bad)


def test_a_scripted_death_by_hand() -> None:
    """Two share nodes. One dies at 100 s, in its seventh iteration, and is back at 400 s: it begins 7 s later, with the fifth."""
    cold = {"switch": {"cold_s": 2}}
    problem = scenario(
        job("a", {"worst_case_s": 10, **cold}, {"worst_case_s": 5}, iterations=40, slo=9),
        job("b", {"worst_case_s": 5}, {"worst_case_s": 10}, iterations=80, slo=9),
        migration_s=7,
    )
    failures = Failures(every=4, script=(Death(job="a", at_s=100, back_s=400), Death(job="b", at_s=1e6)))
    run = played(problem, failures, Algorithm1(prune=False))
    ((job_id, at_s, iterations),) = dying(run)
    assert (job_id, at_s) == ("a", 100) and 1 < iterations < 4
    later = [phase for phase in run.phases if phase.job_id == "a" and phase.start_s > 100]
    assert (later[0].start_s, later[0].iteration, later[0].switch_s) == (407, 4, 2)
    assert [event.job.id for event in run.log if isinstance(event, Arrived)] == ["a", "b", "a"]
    others = [phase for phase in run.phases if phase.job_id == "b" and 130 < phase.start_s < 380]
    assert others[2].start_s - others[0].start_s == pytest.approx(15), "alone it is as fast as it can be"


def test_the_estimate_of_a_job_that_has_died_is_of_what_it_has_left_too() -> None:
    """Its owner has stated the length of the whole job. It dies at 500 s, after 50 of 100 iterations, and b has 80."""
    pools = {side: POOL | {"max_nodes": 1} for side in ("rollout", "training")}
    first, second = (
        job(name, {"worst_case_s": 6}, {"worst_case_s": 4}, iterations=count) for name, count in (("a", 100), ("b", 80))
    )
    problem = scenario(first | {"estimate": {"iterations": 100}}, second | {"arrival_s": 1}, **pools)
    failures = Failures(every=10, script=(Death(job="a", at_s=500),))
    run = played(problem, failures, make_runnable("solo,order=shortest"))
    assert [event.job_id for event in run.log if isinstance(event, Admitted)] == ["a", "a", "b"]


def test_work_before_a_death_counts_for_orders_and_for_the_lengths_that_departures_teach() -> None:
    """Job a dies at 500 s, after 50 of 100 iterations, and comes after b, which has done nothing."""
    pools = {side: POOL | {"max_nodes": 1} for side in ("rollout", "training")}
    first, second = (job(name, {"worst_case_s": 6}, {"worst_case_s": 4}, iterations=100) for name in "ab")
    failures = Failures(every=10, script=(Death(job="a", at_s=500),))
    run = played(scenario(first, second | {"arrival_s": 500}, **pools), failures, make_runnable("solo,order=attained"))
    assert [event.job_id for event in run.log if isinstance(event, Admitted)] == ["a", "b", "a"]
    assert run.state.stays.lengths_h == pytest.approx({"a": 1000 / 3600, "b": 1000 / 3600})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("deaths: []", "deaths.yaml: deaths: is empty"),
        ("deaths: [{job: a}]", "deaths.yaml: deaths[0].at_s: is missing"),
        ("deaths: [{job: a, at_s: 9, back_s: 8}]", "deaths.yaml: deaths[0].back_s: must be at least at_s, 9, not 8"),
        ("deaths: [{job: a, at: 9}]", "deaths.yaml: deaths[0].at: is not a key of this file format"),
        ("deaths: [{job: agent-c, at_s: 9}]", "job agent-c: the scenario has none of this name; did you mean agent-b?"),
    ],
)
def test_a_script_that_is_none_is_one_line(text: str, problem: str, tmp_path: Path, command: Command) -> None:
    (tmp_path / "deaths.yaml").write_text(text)
    status, out, err = command("bench", "quickstart", "--failures", f"script={tmp_path / 'deaths.yaml'}", "-p", "solo")
    assert (status, out, err.count("\n")) == (2, "", 1) and problem in err


def test_the_example_of_a_script_kills_both_of_its_jobs(command: Command) -> None:
    words = ("--failures", "script=deaths.yaml,every=10", "-p", "rollmux", "--check", "--format", "json")
    status, out, _ = command("bench", "quickstart", *words)
    assert status == 0 and json.loads(out)["runs"][0]["extra"]["job_failures"] == 2


def test_a_job_is_killed_and_submitted_again_as_in_figure_19() -> None:
    """The group goes on without it, as fast as two allow; it comes back into that group, and the order is as before."""
    problem = make_workload("micro-rollout-heavy")
    solo_s = {entry.id: entry.solo_s for entry in problem.jobs}
    run = replay_events(problem, Algorithm1(), make_dispatch("round-robin"), 0, WATCH, failures=Failures(script="killed_job.yaml"))
    killed_s, back_s = 2180.0, 4480.0
    assert [(job_id, at_s) for job_id, at_s, _ in dying(run)] == [("E-2", killed_s)]
    starts = {name: [p.start_s for p in run.phases if p.job_id == name and p.phase == "rollout"] for name in solo_s}
    assert not [at_s for at_s in starts["E-2"] if killed_s < at_s < back_s] and {phase.group for phase in run.phases} == {0}
    alone = [at_s for at_s in starts["D-0"] if killed_s + solo_s["E-2"] < at_s < back_s]
    assert len(alone) > 2 and set(np.diff(alone).round(6)) == {solo_s["D-0"]}, "two jobs, each as fast as alone"
    for between in ((1000, killed_s), (back_s + 2000, back_s + 6000)):
        order = [p.job_id for p in run.phases if p.phase == "training" and between[0] < p.start_s < between[1]]
        assert set(itertools.pairwise(order)) == {("D-0", "D-1"), ("D-1", "E-2"), ("E-2", "D-0")}
    whole = [phase.iteration for phase in run.phases if phase.job_id == "E-2" and phase.phase == "training"]
    assert sorted(whole) == list(range(100)), "no iteration is lost or done twice"
