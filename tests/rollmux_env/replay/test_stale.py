"""Asynchronous jobs phase by phase: rollouts go on beside trainings, and no sample is older than it may be."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from rollmux_env.cluster.apply import apply
from rollmux_env.cluster.events import Moved, Placement
from rollmux_env.cluster.plan import Move
from rollmux_env.cluster.state import State
from rollmux_env.errors import InvariantError
from rollmux_env.replay.checks import check_sample
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.replay.run import PhaseRun, Run
from rollmux_env.scenario import Scenario
from tests.rollmux_env.replay.test_event import NOISY, Together, departures, job, played, scenario, starts

ALONE = Placement(None, (), 1, 1)
STAYS = 420  # iterations of those who do not go early


def spans(run: Run, phase: str, name: str = "a") -> list[tuple[float, float]]:
    return [(entry.start_s, entry.end_s) for entry in run.phases if (entry.job_id, entry.phase) == (name, phase)]


def test_rollouts_go_on_beside_the_training_before() -> None:
    run = played(scenario(job("a", 10, 4, staleness=1, iterations=3)))
    assert spans(run, "rollout") == [(0, 10), (10, 20), (20, 30)]
    assert spans(run, "training") == [(10, 14), (20, 24), (30, 34)]
    assert departures(run) == {"a": 34} and run.solo_s == {"a": 34}
    assert metrics(run).utilization == {"rollout": pytest.approx(30 / 34), "training": pytest.approx(12 / 34)}


def test_a_rollout_waits_for_weights_that_are_fresh_enough_and_for_their_sync() -> None:
    run = played(scenario(job("a", 4, 10, staleness=2, sync_s=3, iterations=6)))
    assert spans(run, "rollout") == [(0, 4), (4, 8), (8, 12), (17, 21), (27, 31), (37, 41)]
    assert departures(run) == {"a": 67} and run.solo_s == {"a": 67}


def test_alone_the_long_run_is_t_solo() -> None:
    """The contract's job, whose way through the sync binds."""
    problem = scenario(job("a", 59.44, 57.31, sync_s=5, staleness=1, iterations=400))
    ends = [end_s for _, end_s in spans(played(problem), "training")]
    assert (ends[399] - ends[199]) / 200 == pytest.approx(60.875, abs=1e-9)


def test_a_stay_ends_with_the_first_training_and_sync_that_end_after_it() -> None:
    """What it has sampled, and what it runs, is dropped."""
    run = played(scenario(job("a", 10, 4, staleness=1, sync_s=1, duration_s=26.0)))
    assert departures(run) == {"a": 35}
    assert run.state.tables.jobs.done[0] == 3 and spans(run, "rollout")[-1] == (30, 35)
    assert metrics(run).utilization["rollout"] == pytest.approx(1)


def test_after_its_last_rollout_its_turns_on_rollout_nodes_are_skipped() -> None:
    run = played(scenario(job("a", 1, 50, staleness=1, iterations=2), job("b", 1, 1, staleness=3, iterations=4)))
    assert starts(run) == [("a", 0), ("b", 1), ("a", 2), ("b", 3), ("b", 4), ("b", 5)]
    assert departures(run)["a"] == 102


def test_a_newcomer_has_one_first_meta_iteration_on_all_its_nodes() -> None:
    """The one after the oldest training in progress, though rollouts are further on: those in front wait until it has caught up."""
    run = played(scenario(job("a", 2, 10, staleness=2, iterations=9), job("b", 2, 2, arrival=13, iterations=4)))
    assert starts(run)[:8] == [("a", 0), ("a", 2), ("a", 4), ("a", 12), ("b", 14), ("b", 34), ("a", 36), ("b", 46)]
    assert starts(run, "training")[:6] == [("a", 2), ("a", 12), ("a", 22), ("b", 32), ("a", 34), ("b", 44)]


def test_a_moved_job_drops_what_it_has_sampled() -> None:
    move = Move("a", ALONE)
    problem = scenario(job("x", 1, 1, iterations=3), job("a", 2, 10, staleness=3, iterations=6, slo=99), migration_s=100)
    run = played(problem, Together(moves={"x": (move,)}))
    moved_s = next(event.at_s for event in run.log if isinstance(event, Moved))
    own = [entry for entry in run.phases if entry.job_id == "a"]
    trained = sum(end_s <= moved_s for _, end_s in spans(run, "training"))
    before = [entry.iteration for entry in own if entry.start_s < moved_s and entry.phase == "rollout"]
    after = [entry.iteration for entry in own if entry.start_s > moved_s and entry.phase == "rollout"]
    assert trained > 0 and before == [*range(len(before))] and len(before) > trained
    assert after == [*range(trained, 6)] and min(entry.start_s for entry in own if entry.start_s > moved_s) == moved_s + 100
    assert run.state.tables.jobs.done[1] == 6


def test_a_sample_that_is_too_old_is_an_error() -> None:
    entry = scenario(job("a", staleness=2)).jobs[0]
    for sampled in (3, 4, 5):
        check_sample(entry, 5, sampled)
    for sampled in (2, 6):
        with pytest.raises(InvariantError, match=f"R7: job a trains version 5 on samples of {sampled}"):
            check_sample(entry, 5, sampled)


@pytest.mark.parametrize("staleness", [1, 4])
def test_against_the_fluid_replay_it_is_at_most_its_staleness_late(staleness: int) -> None:
    listed = [job(f"j{k}", 7 + k, 11 - k, staleness=staleness, sync_s=k, arrival=40 * k, duration_s=4000.0) for k in range(4)]
    problem = scenario(*listed, max_group_size=4)
    fluid, event = replay(problem, Together()), played(problem, Together())
    for k in range(4):
        assert -2 - staleness - 2 <= event.state.tables.jobs.done[k] - fluid.state.tables.jobs.done[k] <= 2


@pytest.mark.parametrize("dispatch", ["fifo", "round-robin,migrate=0.8", "longest-first,migrate=0.5", "learned:default"])
def test_tails_move_beside_the_trainings_of_their_own_job(dispatch: str) -> None:
    noisy: dict[str, Any] = {"worst_case_s": 10, **NOISY}
    listed = [job(f"j{k}", noisy, 8, staleness=k % 3, sync_s=2, arrival=9 * k, iterations=40, slo=9) for k in range(4)]
    run = played(scenario(*listed), Together(), dispatch)
    assert run.state.tables.jobs.done[:4].tolist() == [40] * 4
    at = sorted((p.pool, node, p.start_s, p.end_s, p.share) for p in run.phases for node in p.nodes)
    assert all(a[:2] != b[:2] or a[3] <= b[2] or a[4] + b[4] <= 1 + 1e-9 for a, b in itertools.pairwise(at))
    if dispatch != "fifo":
        tails = [p for p in run.phases if p.phase == "tail"]
        trainings = [p for p in run.phases if p.phase == "training"]
        beside = [t for t in tails for p in trainings if p.job_id == t.job_id and p.start_s < t.end_s and t.start_s < p.end_s]
        assert tails and beside


def draw_group(seed: int) -> tuple[Scenario, dict[str, tuple[int, ...]]]:
    """A group of jobs that come and go in its first part; the first is pinned to all its nodes, and it and others stay."""
    rng = random.Random(seed)
    nodes = rng.randint(1, 3)
    jobs: list[dict[str, Any]] = []
    pins: dict[str, tuple[int, ...]] = {}
    for k in range(rng.randint(2, 6)):
        own = tuple(range(nodes)) if k == 0 else tuple(sorted(rng.sample(range(nodes), rng.randint(1, nodes))))
        stays = k == 0 or rng.random() < 0.6
        ways: list[dict[str, Any]] = [{"iterations": rng.randint(1, 12)}, {"duration_s": float(rng.randint(10, 400))}]
        leaves = rng.choice(ways)
        stay: dict[str, Any] = {"iterations": STAYS} if stays else leaves
        jobs.append(
            job(
                f"j{k}",
                {"worst_case_s": rng.randint(1, 20), "nodes": len(own)},
                rng.randint(1, 20),
                0 if k == 0 else rng.randint(0, 600),
                sync_s=rng.choice([0, 0, rng.randint(1, 30)]),
                staleness=rng.choice([0, 0, 1, 2, 4]),
                **stay,
            )
        )
        pins[f"j{k}"] = own
    return scenario(*jobs, max_group_size=6), pins


def planned_s(run: Run) -> float:
    """Period of the group once everybody has come and those have gone who do not stay."""
    staying = {entry.id for entry in run.scenario.jobs if entry.iterations == STAYS}
    state = State(run.scenario.cluster, observed=True)
    for event in run.log:
        apply(state, event)
        if state.arrived == len(run.scenario.jobs) and {*state.group_list()[0].jobs} == staying and not state.waiting:
            return state.group_list()[0].period_s
    raise AssertionError("the group never is what stays")


def observed_s(run: Run) -> float:
    """Seconds of a meta-iteration in the long run: the pattern repeats after some of them."""
    staying = {entry.id for entry in run.scenario.jobs if entry.iterations == STAYS}
    until_s = min(_last(run.phases, name).end_s for name in staying)
    ends = np.array([p.end_s for p in run.phases if (p.job_id, p.phase) == ("j0", "training") and p.end_s < until_s])
    assert len(ends) > 300
    for rounds in range(1, 120):
        steps = ends[-60:] - ends[-60 - rounds : -rounds]
        if np.ptp(steps) < 1e-7:
            return float(steps[0]) / rounds
    raise AssertionError("no pattern that repeats")


def _last(phases: list[PhaseRun], name: str) -> PhaseRun:
    return next(p for p in phases if (p.job_id, p.phase, p.iteration) == (name, "rollout", STAYS - 10))


def long_run(seed: int) -> None:
    problem, pins = draw_group(seed)
    run = played(problem, Together(pins))
    assert observed_s(run) == pytest.approx(planned_s(run), rel=1e-6), seed


def test_the_planned_period_is_that_of_the_long_run_whoever_joins_and_leaves() -> None:
    for seed in range(12):
        long_run(seed)


@pytest.mark.long
def test_the_planned_period_is_that_of_the_long_run_in_2000_groups() -> None:
    for seed in range(12, 2012):
        long_run(seed)
