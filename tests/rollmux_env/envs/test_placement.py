"""The environment is the replay: same dollars, same mask, same invariants; and it tells no one the future."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.placement.algorithm1 import Algorithm1
from policies.placement.baselines import Solo
from rollmux_env.cluster.events import Admitted, Moved
from rollmux_env.cluster.plan import Move
from rollmux_env.cluster.regroupings import Regroupings
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Fixed, Toy, Workload
from rollmux_env.envs.placement.observation import candidate_names
from rollmux_env.envs.placement.reward import Dollars
from rollmux_env.envs.placement.stream import Generator
from rollmux_env.kernel.features import CANDIDATE_FEATURES, MOVE_FEATURES
from rollmux_env.replay.fluid import replay
from rollmux_env.replay.metrics import metrics
from rollmux_env.scenario import Scenario, parse_scenario
from tests.oracle import draw as drawing
from tests.oracle.draw import examples
from tests.rollmux_env.envs.playing import Agent, Episode, Replayed, Watching, at_random, at_random_of, cheapest, gainful, play

MIXED = Workload("mixed", jobs=40)
PRODUCTION = Workload("production", jobs=40, stays="fixed")
ROOM = 128  # rows: more than any table here has


def alone(generator: Generator, **options: Any) -> PlacementVectorEnv:
    return PlacementVectorEnv(1, generator, autoreset_mode="Disabled", **{"candidates": ROOM, **options})


def altered(scenario: Scenario, rows: slice, **changes: Any) -> Scenario:
    jobs = list(scenario.jobs)
    jobs[rows] = [job.model_copy(update=changes) for job in jobs[rows]]
    return scenario.model_copy(update={"jobs": tuple(jobs)})


@pytest.mark.parametrize("generator", [MIXED, PRODUCTION])
@pytest.mark.parametrize("seed", [0, 1])
def test_algorithm_1_costs_what_the_replay_says(generator: Workload, seed: int) -> None:
    episode = play(alone(generator), cheapest, seed)
    expected = metrics(replay(generator.scenario(seed), Algorithm1(prune=False)))
    solo = metrics(replay(generator.scenario(seed), Solo()))
    assert episode.info["cost_usd"] == pytest.approx(expected.cost_usd, rel=1e-9)
    assert episode.info["solo_usd"] == pytest.approx(solo.cost_usd, rel=1e-9)
    assert sum(episode.rewards) == pytest.approx(-expected.cost_usd / solo.cost_usd, rel=1e-9)
    assert episode.info["work_h"] == pytest.approx(expected.work_h, rel=1e-9)
    assert {name: episode.info[name] for name in expected.admissions} == expected.admissions
    assert episode.info["slo_attainment"] == 1


@examples(80)
@given(data=st.data())
def test_masked_episodes_keep_every_invariant_and_cost_what_the_replay_says(data: st.DataObject) -> None:
    scenario = parse_scenario(data.draw(drawing.scenarios()))
    env = alone(Fixed(scenario), moves=data.draw(st.booleans()))
    episode = play(env, at_random(data.draw(st.integers(0, 5))))
    run = replay(scenario, Replayed(episode), check=True)
    expected = metrics(run)
    assert episode.info["cost_usd"] == pytest.approx(expected.cost_usd, rel=1e-9, abs=1e-12)
    assert episode.info["migrations"] == expected.migrations
    assert episode.info["work_h"] == pytest.approx(expected.work_h, rel=1e-9)
    assert episode.info["slo_attainment"] == pytest.approx(expected.slo_attainment)


@pytest.mark.parametrize("known_stays", [True, False])
@examples(30)
@given(data=st.data())
def test_a_policy_of_the_candidate_table_sees_what_the_environment_shows(known_stays: bool, data: st.DataObject) -> None:
    scenario = parse_scenario(data.draw(drawing.scenarios()))
    episode = play(alone(Fixed(scenario), known_stays=known_stays), at_random(0))
    policy = Watching(episode, min(job.arrival_s for job in scenario.jobs), known_stays, ROOM)
    replay(scenario, policy)
    assert len(policy.places) == len(episode.seen)
    for shown, (seen, feasible) in zip(episode.seen, policy.places, strict=True):
        rows = len(feasible)
        assert np.array_equal(shown["mask"][:rows], feasible)
        assert not shown["mask"][rows:].any() and not shown["candidates"][rows:].any()
        for name in ("job", "cluster"):
            np.testing.assert_allclose(shown[name], getattr(seen, name), rtol=1e-5, atol=1e-6)
        columns = shown["candidates"].shape[1]
        assert candidate_names(False) == CANDIDATE_FEATURES[:columns]
        np.testing.assert_allclose(shown["candidates"][:rows], seen.candidates[:, :columns], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("known_stays", [True, False])
@examples(40)
@given(data=st.data())
def test_a_policy_that_moves_jobs_sees_what_the_environment_shows_and_may_do_all_of_it(
    known_stays: bool, data: st.DataObject
) -> None:
    scenario = parse_scenario(data.draw(drawing.scenarios()))
    limit = data.draw(st.sampled_from([4, ROOM]))
    env = alone(Fixed(scenario), known_stays=known_stays, moves=True, candidates=limit)
    check_rows(scenario, play(env, at_random(data.draw(st.integers(0, 5)))), known_stays, limit)


def check_rows(scenario: Scenario, episode: Episode, known_stays: bool, limit: int) -> list[Regroupings]:
    policy = Watching(episode, min(job.arrival_s for job in scenario.jobs), known_stays, limit)
    replay(scenario, policy, check=True)
    asked = [seen for seen in episode.seen if seen["cluster"][0] == 0]
    assert len(asked) == len(policy.places)
    for theirs, (ours, feasible) in zip(asked, policy.places, strict=True):
        rows, columns = ours.candidates.shape
        if rows <= limit:
            whole = columns + len(MOVE_FEATURES)
            assert np.array_equal(theirs["mask"][:rows], feasible) and not theirs["candidates"][:, columns:whole].any()
            shapes = theirs["candidates"][:rows, whole:]
            np.testing.assert_allclose(shapes, ours.shapes[:, : shapes.shape[1]], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(theirs["candidates"][:rows, :columns], ours.candidates, rtol=1e-5, atol=1e-6)
    shown = [seen for seen in episode.seen if seen["cluster"][0] == 1]
    assert len(shown) == len(policy.moves)
    for theirs, table in zip(shown, policy.moves, strict=True):
        rows = len(table.plans)
        assert theirs["mask"][:rows].all() and not theirs["mask"][rows:].any() and table.feasible.all()
        for name in ("job", "cluster"):
            np.testing.assert_allclose(theirs[name], getattr(table, name), rtol=1e-5, atol=1e-6)
        columns = theirs["candidates"].shape[1]
        np.testing.assert_allclose(theirs["candidates"][:rows], table.candidates[:, :columns], rtol=1e-5, atol=1e-6)
        assert not table.candidates[:, columns:].any()
    return policy.moves


@pytest.mark.parametrize("stays", ["fixed", "iterations"])
def test_rows_of_every_kind_come_up_and_cost_what_the_replay_says(stays: str) -> None:
    generator = Workload("production", jobs=16, stays=stays)
    episode = play(alone(generator, moves=True), at_random(0), 1)
    rows = [plan for seen in check_rows(generator.scenario(1), episode, True, ROOM) for plan in seen.plans]
    assert {len(plan) for plan in rows} >= {0, 1, 2, 3}
    assert any(len(plan) > 1 for _, plan in episode.plans)
    expected = metrics(replay(generator.scenario(1), Replayed(episode), check=True))
    assert episode.info["cost_usd"] == pytest.approx(expected.cost_usd, rel=1e-9)
    assert episode.info["work_h"] == pytest.approx(expected.work_h, rel=1e-9)
    assert episode.info["migrations"] == expected.migrations > 20


def test_rows_change_shapes_within_a_group_and_on_the_way_to_another() -> None:
    generator = Workload("production", jobs=14, shapes=True)
    episode = play(alone(generator, moves=True), at_random(0), 1)
    moves = [move for _, plan in episode.plans for move in plan if isinstance(move, Move)]
    assert {move.placement.shape for move in moves} >= {0, 1, 2}
    run = replay(generator.scenario(1), Replayed(episode), check=True)
    assert metrics(run).slo_attainment == 1
    assert metrics(run).migrations == episode.info["migrations"]
    homes: dict[str, tuple[int | None, int]] = {}
    changes = set()
    for event in run.log:
        if isinstance(event, Admitted | Moved):
            group, shape = homes.get(event.job_id, (None, 0))
            if isinstance(event, Moved):
                changes.add((group is not None and event.placement.group == group, event.placement.shape == shape))
            homes[event.job_id] = event.placement.group, event.placement.shape
    assert changes == {(True, False), (False, True), (False, False)}
    check_rows(generator.scenario(1), episode, True, ROOM)


def test_moves_can_save_what_admission_cannot() -> None:
    stop = play(alone(MIXED, moves=True), lambda env: cheapest(env) if len(env.plan_of(0, 0)) else 0)
    move = play(alone(MIXED, moves=True), gainful)
    assert move.info["cost_usd"] < stop.info["cost_usd"]
    assert stop.info["migrations"] == 0 < move.info["migrations"]
    assert stop.info["cost_usd"] == pytest.approx(play(alone(MIXED), cheapest).info["cost_usd"], rel=1e-12)


@pytest.mark.parametrize("moves", [False, True])
def test_the_future_is_not_observed(moves: bool) -> None:
    base = MIXED.scenario(3)
    later = altered(base, slice(25, None), slo=1.9, iterations=7)
    seen = [play(alone(Fixed(s), moves=moves), cheapest).seen for s in (base, later)]
    before = sum(shown["cluster"][10] < (t := (base.jobs[25].arrival_s / 3600)) / (t + 168) for shown in seen[0])
    assert before >= 25
    for ours, theirs in zip(seen[0][:before], seen[1][:before], strict=True):
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


def test_unknown_stays_are_not_observed() -> None:
    base = MIXED.scenario(3)
    until = 1 + next(k for k in range(1, 40) if base.jobs[k].arrival_s > 0)
    longer = altered(base, slice(0, until), iterations=10**6)
    shorter = altered(base, slice(0, until), iterations=10**5)
    for known, same in ((False, True), (True, False)):
        seen = [play(alone(Fixed(s), known_stays=known), cheapest).seen[:until] for s in (longer, shorter)]
        assert all(a[n].tobytes() == b[n].tobytes() for a, b in zip(*seen, strict=True) for n in a) == same


def test_reward_relative_to_a_reference_is_the_saving_over_it() -> None:
    spec: Literal["rollmux", "rollmux,prune=false"]
    for spec, prune in (("rollmux", True), ("rollmux,prune=false", False)):
        expected = metrics(replay(MIXED.scenario(5), Algorithm1(prune=prune))).cost_usd
        episode = play(alone(MIXED, reward=Dollars(reference=spec)), at_random(1), 5)
        saved = (expected - episode.info["cost_usd"]) / episode.info["solo_usd"]
        assert sum(episode.rewards) == pytest.approx(saved, rel=1e-9)
    same = play(alone(MIXED, reward=Dollars(reference="rollmux,prune=false")), cheapest, 5)
    np.testing.assert_allclose(same.rewards, 0, atol=1e-12)


def test_discount_by_the_hour() -> None:
    env = alone(MIXED, reward=Dollars(gamma_per_hour=0.9))
    env.reset(seed=0, options={"stream_seed": 1})
    first, second = MIXED.scenario(1).jobs[:2]
    hours = (second.arrival_s - first.arrival_s) / 3600
    _, rewards, _, _, info = env.step(np.array([0]))
    price = 8 * (1.85 + 5.28)
    assert info["discount"][0] == pytest.approx(0.9**hours)
    solo_usd = metrics(replay(MIXED.scenario(1), Solo())).cost_usd
    assert rewards[0] == pytest.approx(-price * (1 - 0.9**hours) / -np.log(0.9) / solo_usd)


class Decisions(NamedTuple):
    """An episode from one decision with several legal actions to the next, and the figures at its end.

    The states are the bytes of observations and of all tables.
    """

    states: list[tuple[bytes, ...]]
    rewards: list[float]
    discounts: list[float]
    figures: dict[str, Any]


def decisions(env: PlacementVectorEnv, choose: Agent) -> Decisions:
    """Play an episode. A decision with one legal action is carried out by hand, where it is asked."""
    observation, _ = env.reset(seed=0)
    states: list[tuple[bytes, ...]] = []
    rewards, discounts, over = [0.0], [1.0], False
    while not over:
        mask = env.action_masks()[0]
        action = int(mask.argmax())
        if mask.sum() > 1:
            tables = [np.ascontiguousarray(table) for name, table in env.streams._asdict().items() if name != "clock"]
            names = ("now_s", "usd", "work_h", "taken", "admitted", "departed", "broken", "moved", "stage")
            counts = [env.streams.clock[name] for name in names]
            states.append(tuple(column.tobytes() for column in (*observation.values(), *tables, *counts)))
            action = choose(env)
            if len(states) > 1:
                rewards.append(0.0)
                discounts.append(1.0)
        observation, reward, terminated, _, info = env.step(np.array([action]))
        rewards[-1] += discounts[-1] * float(reward[0])
        discounts[-1] *= float(info["discount"][0])
        over = bool(terminated[0])
    return Decisions(states, rewards, discounts, {name: info[name][0] for name in ("cost_usd", "work_h", "migrations", "isolated")})


@examples(60)
@given(data=st.data())
def test_skipping_forced_decisions_is_stepping_through_them(data: st.DataObject) -> None:
    generator = Fixed(parse_scenario(data.draw(drawing.scenarios())))
    reward = Dollars(data.draw(st.sampled_from([None, "rollmux"])), data.draw(st.sampled_from([1.0, 0.9])), slo_penalty=0)
    options = {
        "moves": data.draw(st.booleans()),
        "shield": data.draw(st.booleans()),
        "candidates": data.draw(st.sampled_from([3, 32])),
    }
    seed = data.draw(st.integers(0, 5))
    by_hand, skipping = (
        decisions(alone(generator, reward=reward, skip_forced=skip, **options), at_random(seed)) for skip in (False, True)
    )
    assert (skipping.states, skipping.figures) == (by_hand.states, by_hand.figures)
    np.testing.assert_allclose(skipping.rewards, by_hand.rewards, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(skipping.discounts, by_hand.discounts, rtol=1e-9)


def test_streams_side_by_side_skip_forced_decisions_across_their_ends() -> None:
    env = PlacementVectorEnv(3, Workload("mixed", jobs=6), skip_forced=True)
    choose, returns, ended = at_random_of(0), np.zeros(3), 0
    observation, _ = env.reset(seed=0)
    for _ in range(40):
        several = observation["mask"].sum(axis=1) > 1
        observation, rewards, over, _, info = env.step(choose(observation["mask"]))
        assert (several | over).all()  # a stream in which there is nothing to choose is over
        returns += rewards
        for s in np.flatnonzero(over):
            assert returns[s] == pytest.approx(-info["final_info"]["cost_over_solo"][s], rel=1e-9)
            returns[s], ended = 0.0, ended + 1
    assert ended > 3


def test_a_stream_without_a_choice_is_one_step() -> None:
    for reward, expected in ((Dollars(), -1.0), (Dollars("rollmux"), 0.0)):
        env = alone(Workload("mixed", jobs=1), skip_forced=True, reward=reward)
        observation, _ = env.reset(seed=0)
        assert observation["mask"][0].sum() == 1
        for returned in (expected, 0.0):  # over, and still over
            _, rewards, over, _, info = env.step(np.array([0]))
            assert over[0] and not info["invalid_action"][0]
            assert rewards[0] == pytest.approx(returned)


def test_a_masked_action_does_choice_0_and_costs_a_penalty() -> None:
    ours, theirs = alone(MIXED), alone(MIXED)
    for env in (ours, theirs):
        env.reset(seed=0, options={"stream_seed": 2})
    for action in (ROOM - 1, -1, 10**6, -(10**6)):
        *_, info = result = ours.step(np.array([action]))
        other = theirs.step(np.array([0]))
        assert info["invalid_action"][0] and not other[4]["invalid_action"][0]
        assert result[1][0] == pytest.approx(other[1][0] - 1 / 40)
        assert all(result[0][name].tobytes() == other[0][name].tobytes() for name in result[0])


def test_a_masked_action_where_no_new_group_fits_takes_the_cheapest_place() -> None:
    one = {"gpus_per_node": 1, "usd_per_gpu_hour": 1, "max_nodes": 1}
    phases = {"rollout": {"worst_case_s": 10}, "training": {"worst_case_s": 10}}
    jobs = [{"id": f"j{k}", "arrival_s": k, "iterations": 10, "slo": 2, **phases} for k in range(2)]
    env = alone(Fixed(parse_scenario({"version": 1, "cluster": {"rollout": one, "training": one}, "jobs": jobs})))
    env.reset(seed=0)
    observation, *_ = env.step(np.array([0]))
    assert observation["mask"][0].tolist()[:2] == [0, 1]
    *_, over, _, info = env.step(np.array([0]))
    assert over[0] and info["invalid_action"][0] and info["direct_packing"][0] == 1


def test_overflow_keeps_choice_0_and_the_cheapest() -> None:
    full, small = alone(MIXED), alone(MIXED, candidates=4)
    overflowed = 0
    for env in (full, small):
        env.reset(seed=0, options={"stream_seed": 4})
    over = False
    while not over:
        rows = full.choices[0][: full.streams.clock["choices"][0]]
        usable = rows[1:][rows["allowed"][1:] == 1]
        kept = small.choices[0][: small.streams.clock["choices"][0]]
        kept = kept[1:][kept["allowed"][1:] == 1]
        assert np.array_equal(np.sort(kept["usd"]), np.sort(usable["usd"])[:3])
        for env in (full, small):
            _, _, terminated, _, info = env.step(np.array([0]))
        over = bool(terminated[0])
        overflowed += bool(info["truncated"][0])
    assert overflowed


def test_without_the_shield_broken_slos_are_possible_and_cost() -> None:
    tight = Workload("mixed", jobs=40, slo=(1.0, 1.05))

    def last(env: PlacementVectorEnv) -> int:
        return int(np.flatnonzero(env.action_masks()[0])[-1])

    shielded, free = (play(alone(tight, shield=shield), last) for shield in (True, False))
    assert shielded.info["slo_attainment"] == 1 > free.info["slo_attainment"]
    broken = 1 - free.info["slo_attainment"]
    assert sum(free.rewards) == pytest.approx(-free.info["cost_over_solo"] - broken)
    assert metrics(replay(tight.scenario(0), Replayed(free, keeps_slo=False))).slo_attainment == free.info["slo_attainment"]


def test_toy_has_the_optimum_that_it_says() -> None:
    toy = Toy()

    def best(env: PlacementVectorEnv) -> int:
        job = int(env.streams.clock["admitted"][0])
        return (0, 0, 1, 1)[job % 4]

    assert play(alone(toy), best, 1).info["cost_over_solo"] == pytest.approx(toy.best)
    solo, printed = (metrics(replay(toy.scenario(1), policy)).cost_usd for policy in (Solo(), Algorithm1()))
    assert printed / solo == pytest.approx(0.75)
    assert min(play(alone(toy), at_random(k), k).info["cost_over_solo"] for k in range(20)) > toy.best + 0.01
