"""The dispatch environment is the event replay, and what Gymnasium's users rely on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import rollmux_env  # noqa: F401 (registers)
from policies.dispatch import make_dispatch
from policies.dispatch.learned import Learned
from policies.placement.policy_file import PolicyConfig, write_policy
from policies.placement.scorer import random_weights, score
from rollmux_env.envs.dispatch import viewer
from rollmux_env.envs.dispatch.actions import round_robin
from rollmux_env.envs.dispatch.dynamics import carry_out, follow_round_robin
from rollmux_env.envs.dispatch.env import DispatchVectorEnv, figures_of
from rollmux_env.envs.dispatch.generator import SHAPES, Fixed, RandomGroups
from rollmux_env.envs.dispatch.observation import ON_POLICY, ROW_FEATURES, STALE, observed, write_observation
from rollmux_env.envs.dispatch.replay import figures, replay_group
from rollmux_env.envs.dispatch.reward import Work
from rollmux_env.envs.dispatch.types import SimulatedGroup
from rollmux_env.errors import InputError
from rollmux_env.kernel.dispatch.rows import WAITS
from rollmux_env.kernel.feature_tables import observation_table
from rollmux_env.keys.phases import Switch
from rollmux_env.portable import FIRST_DRAWN_SEED
from tests.rollmux_env.envs.dispatch.playing import ROOM, TAILS, loaded, replayed, spans_of, with_room
from tests.rollmux_env.envs.playing import at_random_of, bytes_of, check_scalar

ID = "RollMux/Dispatch-v0"
SHORT = RandomGroups(rounds=4)


def vector(num_envs: int, **options: Any) -> Any:
    return gym.make_vec(ID, num_envs=num_envs, vectorization_mode="vector_entry_point", generator=SHORT, **options)


def scalar(**options: Any) -> Any:
    return gym.make(ID, **options)


@pytest.mark.parametrize("options", [{}, {"render_mode": "ansi"}])
def test_check_env_without_a_warning(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(ID, generator=SHORT, **options).unwrapped)


@pytest.mark.parametrize("migrates", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_round_robin_is_the_event_replays_phase_for_phase(shape: str, migrates: bool) -> None:
    dispatch = make_dispatch("round-robin,migrate=0.8" if migrates else "round-robin")
    for seed, (skew, stale) in enumerate([(0.0, 0.0), (0.5, 1.0), (1.0, 0.0), (0.25, 1.0)]):
        group = RandomGroups(shape, skew, rounds=8, stale=stale).group(seed)
        groups = loaded(group)
        follow_round_robin(groups, 0, migrates, TAILS)
        spans = spans_of(group, groups)
        assert spans == replayed(group, dispatch)
        assert migrates == any(span[1] == "tail" for span in spans) or shape == "rollout-heavy" or stale
        ours, theirs = figures_of(groups), figures(group, replay_group(group, dispatch))
        assert {name: ours[name][0] for name in theirs} == pytest.approx(theirs)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_network_decides_in_the_event_replay_as_in_the_environment(shape: str, tmp_path: Path) -> None:
    for seed, (names, stale) in enumerate([(ON_POLICY, 0.0), (STALE, 0.0), (STALE, 1.0), (STALE, 1.0)]):
        weights = random_weights(len(names.job), len(names.candidates), len(names.cluster), (16, 16), seed)
        config = PolicyConfig(
            decides="dispatch",
            job_features=names.job,
            candidate_features=names.candidates,
            cluster_features=names.cluster,
            widths=(16, 16),
        )
        write_policy(tmp_path / "policy.safetensors", config, weights)
        generator = RandomGroups(shape, 0.5, rounds=6, stale=0.5 if names is STALE else 0.0)
        seed = next(k for k in range(seed, 99) if any(job.staleness for job in generator.group(k).jobs) == stale)
        group = generator.group(seed)
        env = with_room(DispatchVectorEnv(1, generator, autoreset_mode="Disabled"))
        observation, _ = env.reset(seed=0, options={"stream_seed": seed})
        over = False
        while not over:
            rows = np.flatnonzero(observation["mask"][0])
            seen = observation["job"][0], observation["candidates"][0, rows], observation["cluster"][0]
            observation, _, _, ended, _ = env.step(rows[[score(weights, *seen).argmax()]])
            over = ended[0]
        assert spans_of(group, env.groups) == replayed(group, Learned(str(tmp_path / "policy.safetensors")))


def test_rows_and_columns_of_stale_members_change_nothing_of_groups_without() -> None:
    """Half of the groups of a share of 0.5 are those of a share of 0, and are seen and go the same."""
    env = DispatchVectorEnv(6, RandomGroups(rounds=4, stale=0.5), autoreset_mode="Disabled")
    seeds = [k for k in range(40) if env.generator.group(k) == SHORT.group(k)][:6]
    plain, n = DispatchVectorEnv(6, SHORT, autoreset_mode="Disabled"), SHORT.members + 1
    both = [one.reset(seed=0, options={"stream_seed": seeds})[0] for one in (plain, env)]
    choose, over = at_random_of(0), np.zeros(6, dtype=bool)
    while not over.all():
        first, second = both
        assert (first["mask"] == second["mask"][:, :n]).all() and not second["mask"][:, n:].any()
        for name in ("job", "cluster"):
            width = first[name].shape[1]
            assert (first[name] == second[name][:, :width]).all() and not second[name][:, width:].any()
        assert (first["candidates"] == second["candidates"][:, :n, : len(ROW_FEATURES)]).all()
        actions = choose(first["mask"])
        (one, gained, _, over, *_), (other, rewards, *_) = plain.step(actions), env.step(actions)
        both = [one, other]
        assert (gained == rewards).all()


def test_what_is_seen_of_a_stale_member() -> None:
    """Alone, a staleness of 1, rollouts of 10 s and trainings of 25 s: the second rollout runs beside the first training, and the
    third waits for its weights."""
    group = RandomGroups("temporal", 0.0).group(0)
    phase, training = group.jobs[0].rollout, group.jobs[0].training
    phase = phase.model_copy(update={"worst_case_s": 10.0, "actual": None, "switch": Switch()})
    training = training.model_copy(update={"worst_case_s": 25.0, "actual": None, "switch": Switch()})
    own = {"rollout": phase, "training": training, "staleness": 1, "slo": 2.0}
    jobs = tuple(job.model_copy(update=own) for job in group.jobs[:1])
    groups = loaded(SimulatedGroup(group.cluster, jobs, ((0,),), 1, 100.0, 0))
    seen = []
    while not groups.clocks["over"][0]:
        record, members, out = groups.groups[0], groups.members[0], observation_table(1, *observed(1, stale=True))
        write_observation(record, members, out.job[0], out.candidates[0], out.cluster[0], out.mask[0])
        of_row = [dict(zip(STALE.candidates, row.tolist(), strict=True)) for row in out.candidates[0]]
        seen += [
            (float(record["now_s"]), row, of_row[row]["sampled"], of_row[row]["other left"], of_row[row]["holds up"])
            for row in (1, 2)
            if out.mask[0, row]
        ]
        carry_out(groups, 0, round_robin(record, members, False), TAILS)
    later = [((at_s, 1, 0.5, 0.0, 0.0), (at_s, 2, 0.5, 0.0, 0.0), (at_s, 1, 0.5, 0.5, 0.0)) for at_s in (10.0, 35.0, 60.0, 85.0)]
    assert seen == [(0.0, 1, 0.0, 0.0, 1.0), *(row for rows in later for row in rows)]


def test_random_choices_keep_every_invariant() -> None:
    """No node does more than its whole, every iteration is a rollout and then a training, nobody starves, and no sample is older
    than it may be."""
    env = with_room(DispatchVectorEnv(40, RandomGroups(rounds=12, stale=0.5), autoreset_mode="Disabled"))
    observation, _ = env.reset(seed=0, options={"stream_seed": list(range(40))})
    choose, over = at_random_of(1), np.zeros(40, dtype=bool)
    while not over.all():
        now_s = env.groups.groups["now_s"].copy()
        observation, _, _, ended, info = env.step(choose(observation["mask"]))
        members = env.groups.members
        assert (env.groups.groups["now_s"] >= now_s).all() and not info["invalid_action"][~over].any()
        for phase in ("rollout", "training"):
            assert (members[f"{phase}_overtaken"][members[f"waits_{phase}"] == WAITS] <= 2 * 4).all()
        over |= ended
    for e in range(40):
        group, spans = env.generator.group(e), env.groups.history[e, : env.groups.clocks["spans"][e]]
        assert (env.groups.progress["iteration"][e, : len(group.jobs)] > 0).all()
        for bit in range(group.rollout_nodes + 1):
            own = spans[(spans["nodes"] >> bit & 1 == 1) & (spans["end_s"] > spans["start_s"])]
            times = np.concatenate([own["start_s"], own["end_s"]])
            changes = np.concatenate([own["share"], -own["share"]])
            order = np.lexsort((changes, times.round(6)))
            assert changes[order].cumsum().max() <= 1 + 1e-9
        for k in range(len(group.jobs)):
            own = spans[spans["member"] == k]
            trainings = own[own["what"] == 2]
            assert trainings["iteration"].tolist() == list(range(len(trainings)))
            for training in trainings:
                rollouts = own[(own["iteration"] == training["iteration"]) & (own["what"] != 2)]
                assert len(rollouts) and rollouts["end_s"].max() <= training["start_s"] + 1e-6
                later = own[(own["iteration"] > training["iteration"] + group.jobs[k].staleness) & (own["what"] != 2)]
                assert not len(later) or training["end_s"] <= later["start_s"].min() + 1e-6


def test_a_group_in_which_nobody_waits_long_is_as_fast_as_its_jobs_alone() -> None:
    """A rollout each on nodes of their own, trainings short: nearly three jobs' work, less what was planned and not needed."""
    env = DispatchVectorEnv(1, RandomGroups("rollout-heavy", 0.0), autoreset_mode="Disabled")
    env.reset(seed=0, options={"stream_seed": 5})
    follow_round_robin(env.groups, 0, False, TAILS)
    found = figures_of(env.groups)
    hours = env.groups.clocks["horizon_s"][0] / 3600
    assert found["cost_usd"][0] == pytest.approx(hours * (3 * 8 * 1.85 + 8 * 5.28))
    assert found["usd_per_work_hour"][0] == pytest.approx(found["cost_usd"][0] / found["work_h"][0])


def test_the_return_is_the_work_and_what_was_lost_against_slos() -> None:
    env = DispatchVectorEnv(8, SHORT, autoreset_mode="Disabled")
    observation, _ = env.reset(seed=0, options={"stream_seed": list(range(8))})
    first_s = env.groups.clocks["all_work_s"].copy()
    returns, over, choose = np.zeros(8), np.zeros(8, dtype=bool), at_random_of(0)
    while not over.all():
        observation, rewards, _, ended, _ = env.step(choose(observation["mask"]))
        returns += np.where(over, 0, rewards)
        over |= ended
    clock = env.groups.clocks
    behind_s = env.groups.progress["behind_s"].sum(1)
    assert returns == pytest.approx((clock["all_work_s"] - first_s - behind_s) / clock["horizon_s"])


def test_following_the_reference_gains_nothing_over_it() -> None:
    """What the reward takes off is the reference's own work."""
    env = DispatchVectorEnv(6, SHORT, Work(reference="round-robin", slo_penalty=0.0), autoreset_mode="Disabled")
    observation, _ = env.reset(seed=0, options={"stream_seed": list(range(6))})
    returns, over = np.zeros(6), np.zeros(6, dtype=bool)
    while not over.all():
        rows = observation["candidates"][:, :, ROW_FEATURES.index("in turn")] * observation["mask"]
        observation, rewards, _, ended, _ = env.step(rows.argmax(1))
        returns += np.where(over, 0, rewards)
        over |= ended
    assert returns == pytest.approx(0, abs=1e-9)


def test_the_scalar_environment_is_a_vector_of_one() -> None:
    check_scalar(vector(3), scalar(generator=SHORT))


def test_the_same_seed_gives_the_same_bytes() -> None:
    first, again, other = (bytes_of(vector(4), at_random_of(0), seed, 80) for seed in (1, 1, 2))
    assert first == again != other


def test_a_step_that_ends_an_episode_shows_its_end_and_the_next_ones_beginning() -> None:
    envs = vector(2)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observations, info = envs.reset(seed=0)
    choose, over = at_random_of(0), np.zeros(2, dtype=bool)
    while not over.any():
        before = info["stream_seed"]
        observations, _, terminated, over, info = envs.step(choose(observations["mask"]))
    assert not terminated.any(), "a time limit"
    assert (info["_final_obs"] == over).all()
    assert (info["final_info"]["stream_seed"] == before).all() and (info["stream_seed"][over] != before[over]).all()
    assert (info["final_obs"]["mask"][over].sum(1) == 1).all() and (observations["mask"].sum(1) > 1).all()
    assert (info["stream_seed"] >= FIRST_DRAWN_SEED).all() and (info["final_info"]["work_h"][over] > 0).all()


def test_a_masked_action_does_what_round_robin_does_and_costs() -> None:
    env = DispatchVectorEnv(1, SHORT, Work(invalid_penalty=0.5), autoreset_mode="Disabled")
    observation, _ = env.reset(seed=0, options={"stream_seed": 3})
    row = int(np.flatnonzero(observation["mask"][0] == 0)[0])
    _, rewards, _, _, info = env.step(np.array([row]))
    assert info["invalid_action"][0] and rewards[0] < 0
    _, rewards, _, _, info = env.step(np.array([99]))
    assert info["invalid_action"][0]


@pytest.mark.parametrize("first", [0, 1])
def test_nothing_is_observed_of_what_has_not_happened(first: int) -> None:
    """Groups that differ in their horizon and in all luck from an iteration on look the same until that has made a difference:
    while the clock stands at 0, or nobody has done an iteration."""
    group = RandomGroups("rollout-heavy", 0.5, rounds=4).group(1)
    longer = SimulatedGroup(group.cluster, group.jobs, group.pins, group.training_nodes, group.horizon_s * 2, group.seed)
    envs = [DispatchVectorEnv(1, Fixed(one), autoreset_mode="Disabled") for one in (group, longer)]
    observations = [env.reset(seed=0)[0] for env in envs]
    envs[1].groups.durations[:, :, :, first:] *= 0.9
    choose, compared = at_random_of(0), 0
    while not any((env.groups.progress["iteration"].max() if first else env.groups.groups["now_s"][0]) > 0 for env in envs):
        assert all(np.array_equal(observations[0][name], observations[1][name]) for name in observations[0])
        compared += 1
        action = choose(observations[0]["mask"])
        observations = [env.step(action)[0] for env in envs]
    assert compared > 1


def test_pictures() -> None:
    env = scalar(generator=RandomGroups("shared", 0.0), render_mode="rgb_array")
    env.reset(seed=0)
    frames = []
    for _ in range(12):
        frames.append(env.render())
        env.step(int(np.flatnonzero(env.unwrapped.action_masks())[-1]))
    assert frames[0].dtype == np.uint8 and frames[0].ndim == 3 and (frames[0] != frames[-1]).any()
    text = scalar(generator=RandomGroups("shared", 0.0), render_mode="ansi")
    text.reset(seed=0)
    for _ in range(12):
        text.step(int(np.flatnonzero(text.unwrapped.action_masks())[-1]))
    shown = text.render()
    assert "rollout 0" in shown and "training" in shown and "AAA" in shown and "aa" in shown


def test_a_picture_begins_where_the_history_does() -> None:
    """What has been forgotten would look like idle time."""
    group, share = RandomGroups("multi-node", 0.0).group(3), TAILS.share
    envs = [DispatchVectorEnv(1, Fixed(group), autoreset_mode="Disabled") for _ in range(2)]
    for env, spans in zip(envs, (12, ROOM), strict=True):
        with_room(env, spans)
        choose = at_random_of(0)
        observation, _ = env.reset(seed=0)
        for _ in range(60):
            observation, *_ = env.step(choose(observation["mask"]))
    short, whole = (env.groups for env in envs)
    since_s, until_s = viewer.window_of(short, 0)
    assert viewer.window_of(whole, 0)[0] < since_s < until_s
    assert sorted(viewer.bars_of(short, 0, since_s, share)) == sorted(viewer.bars_of(whole, 0, since_s, share))


@pytest.mark.parametrize(
    "make",
    [
        lambda: DispatchVectorEnv(0),
        lambda: DispatchVectorEnv(1, render_mode="html"),
        lambda: DispatchVectorEnv(1).render(),
        lambda: RandomGroups("round"),
        lambda: RandomGroups(skew=-1),
        lambda: RandomGroups(rounds=0),
        lambda: RandomGroups(stale=1.5),
        Fixed,
        lambda: SimulatedGroup(SHORT.group(0).cluster, SHORT.group(0).jobs[:1], ((1,),), 1, 100.0, 0),
    ],
)
def test_what_cannot_be_made_is_said_in_a_line(make: Callable[[], object]) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert "\n" not in str(error.value)
