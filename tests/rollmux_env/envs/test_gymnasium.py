"""What Gymnasium's users rely on: the registry, `check_env`, vectors, seeds, pictures."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import NormalizeReward, RecordEpisodeStatistics
from numpy.typing import NDArray

import rollmux_env  # noqa: F401 (registers)
from rollmux_env.envs.placement.generator import Fixed, Workload, find_generator
from rollmux_env.envs.placement.stream import stream_of
from rollmux_env.errors import InputError
from rollmux_env.portable import FIRST_DRAWN_SEED
from tests.rollmux_env.envs.playing import bytes_of

ID = "RollMux/Placement-v0"
SHORT = Workload("mixed", jobs=12)


def vector(num_envs: int, **options: Any) -> Any:
    return gym.make_vec(ID, num_envs=num_envs, vectorization_mode="vector_entry_point", generator=SHORT, **options)


def scalar(**options: Any) -> Any:
    return gym.make(ID, generator=SHORT, **options)


def first_allowed(mask: NDArray[Any]) -> Any:
    return mask.shape[-1] - 1 - mask[..., ::-1].argmax(-1)


@pytest.mark.parametrize("options", [{}, {"moves": True}, {"shield": False, "known_stays": False}, {"render_mode": "ansi"}])
def test_check_env_without_a_warning(options: dict[str, Any]) -> None:
    check_env(gym.make(ID, generator=SHORT, **options).unwrapped)


def test_the_scalar_environment_is_a_vector_of_one() -> None:
    envs, env = vector(3), scalar()
    observations, infos = envs.reset(seed=7)
    for s in range(3):
        observation, info = env.reset(seed=7 + s)
        assert info["stream_seed"] == infos["stream_seed"][s]
        assert all(np.array_equal(observation[name], observations[name][s]) for name in observation)
    mask = envs.unwrapped.action_masks()
    assert np.array_equal(mask[2], env.unwrapped.action_masks()) and mask.dtype == np.bool_
    result, many = env.step(first_allowed(mask[2])), envs.step(first_allowed(mask))
    assert result[1] == many[1][2]
    assert all(np.array_equal(result[0][name], many[0][name][2]) for name in result[0])


@pytest.mark.parametrize("moves", [False, True])
def test_the_same_seed_gives_the_same_bytes(moves: bool) -> None:
    first, again, other = (bytes_of(vector(4, moves=moves), first_allowed, seed, 60) for seed in (1, 1, 2))
    assert first == again != other


def test_a_step_that_ends_an_episode_shows_its_end_and_the_next_ones_beginning() -> None:
    envs = vector(2)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observations, info = envs.reset(seed=0)
    before = info["stream_seed"]
    for _ in range(12):
        observations, _, over, truncated, info = envs.step(np.zeros(2, dtype=np.int64))
    assert over.all() and not truncated.any() and info["_final_obs"].all()
    assert (info["final_info"]["cost_over_solo"] == pytest.approx(1)) and (info["final_info"]["stream_seed"] == before).all()
    assert (info["final_obs"]["job"] == 0).all() and (info["final_obs"]["mask"].sum(1) == 1).all()
    assert (observations["job"] != 0).any() and (info["stream_seed"] != before).all()
    assert (info["stream_seed"] >= FIRST_DRAWN_SEED).all()


def test_observations_are_not_overwritten_by_the_next_step() -> None:
    envs = vector(2)
    observations, _ = envs.reset(seed=0)
    kept = {name: column.copy() for name, column in observations.items()}
    envs.step(np.zeros(2, dtype=np.int64))
    assert all(np.array_equal(observations[name], kept[name]) for name in kept)


def test_some_streams_can_be_started_anew() -> None:
    envs = vector(3, autoreset_mode="Disabled")
    observations, info = envs.reset(seed=0, options={"stream_seed": [5, 6, 7]})
    assert info["stream_seed"].tolist() == [5, 6, 7]
    later, *_ = envs.step(np.zeros(3, dtype=np.int64))
    again, info = envs.reset(options={"stream_seed": 6, "reset_mask": np.array([False, True, False])})
    assert info["stream_seed"].tolist() == [5, 6, 7]
    for name in again:
        assert np.array_equal(again[name][1], observations[name][1]) and np.array_equal(again[name][0], later[name][0])


def test_a_seed_counts_for_the_streams_that_are_reset() -> None:
    drawn = []
    for seed in (None, 5):
        envs = vector(2, autoreset_mode="Disabled")
        envs.reset(seed=0)
        envs.reset(seed=seed, options={"reset_mask": np.array([True, False])})
        drawn.append(envs.reset()[1]["stream_seed"].tolist())
    assert drawn[0][0] != drawn[1][0] and drawn[0][1] == drawn[1][1]


def test_a_stream_without_a_seed_of_its_own_continues_its_draws() -> None:
    """As an environment of Gymnasium does that is reset without a seed."""
    drawn = []
    for seeds in ([None, 5], None):
        envs = vector(2)
        envs.reset(seed=[3, 4])
        drawn.append(envs.reset(seed=seeds)[1]["stream_seed"].tolist())
    assert drawn[0][0] == drawn[1][0] and drawn[0][1] != drawn[1][1]


@pytest.mark.parametrize("name", ["production", "mixed", "train-heavy"])
@pytest.mark.parametrize("stays", ["iterations", "fixed"])
@pytest.mark.parametrize("jobs", [None, 30])
def test_a_workload_as_columns_is_the_workload(name: str, stays: str, jobs: int | None) -> None:
    generator = Workload(name, stays=stays, jobs=jobs)
    ours, theirs = generator.stream(11), stream_of(generator.scenario(11))
    assert len(ours) == generator.jobs
    assert ours.dtype == theirs.dtype
    for field in ours.dtype.names:
        assert np.array_equal(ours[field], theirs[field]), field


def test_pictures() -> None:
    env = scalar(render_mode="rgb_array")
    env.reset(seed=0)
    frames = []
    for _ in range(3):
        frames.append(env.render())
        env.step(0)
    assert frames[0].dtype == np.uint8 and frames[0].ndim == 3 and (frames[0] != frames[2]).any()
    text = scalar(render_mode="ansi")
    text.reset(seed=0)
    text.step(0)
    shown = text.render()
    assert "job 1 wants a place" in shown and "rollout 0/0" in shown and "AAAA" in shown


def test_the_window_shows_what_rgb_array_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    before = plt.get_fignums()
    env, same = (scalar(render_mode=mode).unwrapped for mode in ("human", "rgb_array"))
    for e in (env, same):
        e.reset(seed=0)
    for _ in range(2):
        env.render()
        (shown,) = plt.gcf().axes[0].images
        assert np.array_equal(np.asarray(shown.get_array()), same.render())
        for e in (env, same):
            e.step(0)
    env.close()
    assert plt.get_fignums() == before


@pytest.mark.parametrize(
    "options",
    [
        {"generator": "no-such"},
        {"generator": "mixed", "candidates": 1},
        {"generator": "mixed", "num_envs": 0},
        {"generator": "mixed", "render_mode": "html"},
    ],
)
def test_what_cannot_be_made_is_said_in_a_line(options: dict[str, Any]) -> None:
    from rollmux_env.envs.placement.env import PlacementVectorEnv

    with pytest.raises(InputError) as error:
        PlacementVectorEnv(**options)
    assert "\n" not in str(error.value)


def test_generators_say_what_they_cannot_do() -> None:
    for make in (lambda: Workload("mixed", semantics="paper"), lambda: Workload("mixed", colour=1), Fixed):
        with pytest.raises(InputError):
            make()


def test_a_name_that_is_no_workload_is_answered_with_those_there_are() -> None:
    with pytest.raises(
        InputError,
        match=r"must be one of production, .*, philly, a scenario file .*, or module:.*, not 'phily'; did you mean philly",
    ):
        find_generator("phily")
    with pytest.raises(InputError, match=r"must be one of production, .*, train-heavy, not 'philly'"):
        Workload("philly")
    with pytest.raises(InputError, match="csv: the workload philly needs a trace file"):
        find_generator("philly")
    with pytest.raises(InputError, match=r"my\.csv: a CSV file is a trace: the workload philly with the option csv has its jobs"):
        find_generator("my.csv")


@pytest.mark.parametrize("name", ["RollMux/Placement-v0", "RollMux/Dispatch-v0"])
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"stream_seed": [1, 2, 3]}, "stream_seed: must be a whole number, at least 0, or 2 of them, not a list"),
        ({"stream_seed": [[1], [2, 3]]}, "stream_seed: must be"),
        ({"stream_seed": -1}, "stream_seed: must be a whole number, at least 0, or 2 of them, not -1"),
        ({"stream_seed": 1.5}, "stream_seed: must be a whole number, at least 0, or 2 of them, not 1.5"),
        ({"stream_seed": "first"}, "stream_seed: must be a whole number, at least 0, or 2 of them, not 'first'"),
        ({"stream_seed": 2**70}, "stream_seed: must be"),
        ({"reset_mask": [True]}, "reset_mask: must be true or false for each of 2 streams, not a list"),
        ({"reset_mask": np.array([0.5, 1])}, "reset_mask: must be true or false"),
    ],
)
def test_a_reset_that_cannot_be_is_said_in_a_line_and_changes_nothing(name: str, options: dict[str, Any], problem: str) -> None:
    given: dict[str, Any] = {"generator": SHORT} if "Placement" in name else {}
    envs: Any
    envs, untouched = (gym.make_vec(name, num_envs=2, vectorization_mode="vector_entry_point", **given) for _ in range(2))
    for e in (envs, untouched):
        e.reset(seed=0)
    with pytest.raises(InputError) as error:
        envs.reset(options=options, seed=1)
    assert str(error.value).startswith(problem) and "\n" not in str(error.value)
    actions = first_allowed(envs.unwrapped.action_masks())
    assert all(
        np.array_equal(a, b) for a, b in zip(envs.step(actions)[0].values(), untouched.step(actions)[0].values(), strict=True)
    )


def test_a_stream_begins_again_as_the_mode_says() -> None:
    played: dict[str, Any] = {}
    for mode in AutoresetMode:
        envs = vector(2, autoreset_mode=mode.value)
        assert envs.metadata["autoreset_mode"] is mode
        envs.reset(seed=0)
        played[mode.name] = [envs.step(np.zeros(2, dtype=np.int64)) for _ in range(14)]
    same, following, off = (played[name] for name in ("SAME_STEP", "NEXT_STEP", "DISABLED"))
    for step in range(11):
        assert same[step][1].tolist() == following[step][1].tolist() == off[step][1].tolist()
    assert all(results[11][2].all() for results in played.values())
    assert following[11][4]["cost_over_solo"] == pytest.approx(1) and following[11][4]["_cost_over_solo"].all()
    assert (following[11][0]["job"] == 0).all() and (following[12][1] == 0).all() and not following[12][2].any()
    assert np.array_equal(following[12][0]["job"], same[11][0]["job"]) and off[13][2].all()
    assert following[13][1].tolist() == same[12][1].tolist()
    with pytest.raises(InputError, match="autoreset_mode: must be one of NextStep, SameStep, Disabled, not false"):
        vector(2, autoreset_mode=False)


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_wrappers_of_gymnasium_count_every_episode_and_normalise_its_rewards(mode: str) -> None:
    envs = NormalizeReward(RecordEpisodeStatistics(vector(2, autoreset_mode=mode)), gamma=1.0)
    envs.reset(seed=0)
    returns: list[float] = []
    for _ in range(30):
        *_, info = envs.step(np.zeros(2, dtype=np.int64))
        returns += info["episode"]["r"].tolist() if "episode" in info else []
    assert returns == pytest.approx([-1.0] * 4)  # every job alone is Solo-D
    assert (envs.accumulated_reward > -1).all() and float(envs.return_rms.var) > 0
