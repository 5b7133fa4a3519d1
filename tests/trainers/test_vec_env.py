"""The adapter for Stable-Baselines3: it is the native environment, and gives SB3 what its learners ask for."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize

import rollmux_env  # noqa: F401 (registers)
from rollmux_env.envs.placement.env import PlacementVectorEnv
from rollmux_env.envs.placement.generator import Toy, Workload
from rollmux_env.envs.placement.reward import Dollars
from rollmux_env.errors import InputError
from trainers.checkpoint import load_state, state_of
from trainers.vec_env import NativeVecEnv, play

STREAMS = 6


def native(moves: bool = True) -> PlacementVectorEnv:
    return PlacementVectorEnv(STREAMS, Workload("mixed", jobs=12), reward=Dollars(reference="rollmux"), moves=moves)


def some_choice(masks: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    return np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])


def test_it_is_the_native_environment() -> None:
    env, plain = NativeVecEnv(native()), native()
    env.seed(5)
    observation: Any = env.reset()
    expected, _ = plain.reset(seed=5)
    rng = np.random.default_rng(0)
    ended = 0
    returns = np.zeros(STREAMS)
    for _ in range(120):
        assert observation.keys() == expected.keys()
        assert all((observation[name] == expected[name]).all() for name in expected)
        assert (get_action_masks(env) == plain.action_masks()).all()
        actions = some_choice(plain.action_masks(), rng)
        observation, rewards, dones, infos = env.step(actions)
        expected, gained, over, _, info = plain.step(actions)
        returns += gained
        assert (dones == over).all() and rewards == pytest.approx(gained, rel=1e-6)
        for s in range(STREAMS):
            assert bool(infos[s]) == bool(over[s])
            if over[s]:
                ended += 1
                assert infos[s]["cost_usd"] == info["final_info"]["cost_usd"][s]
                assert infos[s]["episode"]["r"] == pytest.approx(returns[s])
                assert not infos[s]["TimeLimit.truncated"]
                for name, column in info["final_obs"].items():
                    assert (infos[s]["terminal_observation"][name] == column[s]).all()
        returns[over] = 0
    assert ended > STREAMS
    assert env.seconds > 0


def test_masks_come_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    env = NativeVecEnv(native())
    env.reset()
    calls: list[int] = []
    masks = env.env.action_masks  # type: ignore[attr-defined]

    def counted() -> Any:
        calls.append(1)
        return masks()

    monkeypatch.setattr(env.env, "action_masks", counted)
    assert is_masking_supported(env)
    calls.clear()
    assert get_action_masks(env).shape == (STREAMS, 32)
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["Placement", "Dispatch"])
def test_sb3_finds_no_fault_with_the_environments(name: str) -> None:
    """But that images and flat boxes are all that its own networks take: ours takes the candidates as a table."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(gymnasium.make(f"RollMux/{name}-v0").unwrapped)
    assert all("unconventional shape" in str(warning.message) for warning in caught), [str(w.message) for w in caught]


def test_an_environment_that_does_not_reset_itself_is_refused() -> None:
    with pytest.raises(InputError, match="SAME_STEP"):
        NativeVecEnv(PlacementVectorEnv(2, Toy(), autoreset_mode="Disabled"))


def test_a_state_goes_on_exactly() -> None:
    first, second = native(), native()
    first.reset(seed=3)
    second.reset(seed=3)
    rng = np.random.default_rng(1)
    for _ in range(50):
        first.step(some_choice(first.action_masks(), rng))
    load_state(second, *state_of(first))
    for _ in range(100):
        actions = some_choice(first.action_masks(), rng)
        one, other = first.step(actions), second.step(actions)
        assert all((one[0][name] == other[0][name]).all() for name in one[0])
        assert (one[1] == other[1]).all()
        assert (one[4]["stream_seed"] == other[4]["stream_seed"]).all()
        (ours, numbers), (theirs, others) = state_of(first), state_of(second)
        assert numbers == others
        assert [name for name in ours if ours[name].tobytes() != theirs[name].tobytes()] == []  # scratch leaves nothing in it


def test_a_state_of_another_environment_is_refused() -> None:
    first, second = native(), native(moves=False)
    first.reset(seed=3)
    second.reset(seed=3)
    with pytest.raises(InputError, match=r"environment\._"):
        load_state(second, *state_of(first))


def test_played_episodes_have_the_figures_of_the_bench() -> None:
    env: VectorEnv[Any, Any, Any] = PlacementVectorEnv(3, Toy(), autoreset_mode="Disabled")
    played = play(env, range(3), lambda observation: np.zeros(3, dtype=np.int64))
    assert played["cost_over_solo"] == pytest.approx(1.0)
    assert played["return"] == pytest.approx(-1.0)
    assert (played["decisions"] == 16).all()


def test_infos_are_dicts_of_their_own() -> None:
    env = NativeVecEnv(native())
    env.reset()
    infos = env.step(np.zeros(STREAMS, dtype=np.int64))[3]
    for s, info in enumerate(infos):
        info["noted"] = s
    assert [info["noted"] for info in infos] == [*range(STREAMS)]
    assert copy.deepcopy(infos) == pickle.loads(pickle.dumps(infos)) == infos  # noqa: S301
    assert not any(env.step(np.zeros(STREAMS, dtype=np.int64))[3])


def test_what_a_wrapper_asks_of_a_stream() -> None:
    env = NativeVecEnv(native())
    single = gymnasium.make("RollMux/Placement-v0", generator=Workload("mixed", jobs=12), moves=True)
    assert env.get_attr("action_space", [0, 1]) == [single.action_space] * 2
    assert env.get_attr("observation_space", 0)[0].keys() == single.observation_space.keys()  # type: ignore[attr-defined]
    assert not env.has_attr("no_such")
    assert env.env_is_wrapped(Monitor) == [True] * STREAMS and env.env_is_wrapped(gymnasium.Wrapper, [0]) == [False]
    env.reset()
    assert [info["action_mask"].shape for info in env.reset_infos] == [(32,)] * STREAMS
    with pytest.raises(AttributeError, match="have no method 'fly'"):
        env.env_method("fly")


def test_a_wrapper_of_vectors_is_known() -> None:
    counted = gymnasium.wrappers.vector.RecordEpisodeStatistics(native())
    assert NativeVecEnv(counted).env_is_wrapped(gymnasium.wrappers.vector.RecordEpisodeStatistics) == [True] * STREAMS


def test_texts_are_rendered() -> None:
    env = NativeVecEnv(PlacementVectorEnv(2, Toy(), render_mode="ansi"))
    env.reset()
    env.render()
    texts = env.env_method("render", indices=[1])
    assert len(texts) == 1 and "wants a place" in texts[0]


def test_each_stream_has_the_options_that_it_was_given() -> None:
    env = NativeVecEnv(native())
    env.set_options([{"stream_seed": 3}, *({} for _ in range(STREAMS - 2)), {"stream_seed": 5}])
    env.reset()
    seeds = [int(info["stream_seed"]) for info in env.reset_infos]
    assert seeds[0] == 3 and seeds[-1] == 5 and min(seeds[1:-1]) >= 65536
    env.set_options({"stream_seed": 4})
    env.reset()
    assert {int(info["stream_seed"]) for info in env.reset_infos} == {4}
    env.set_options([{}])
    with pytest.raises(InputError, match="options: must be a mapping, or 6 of them, not a list"):
        env.reset()


class First:
    """A policy that takes the last allowed row."""

    def predict(self, observation: Any, **_: Any) -> tuple[NDArray[np.int64], None]:
        mask = observation["mask"]
        return mask.shape[-1] - 1 - mask[..., ::-1].argmax(-1), None


def normalised(env: VecEnv) -> VecEnv:
    return VecNormalize(env, norm_obs=False)


@pytest.mark.parametrize("stack", [(), (VecMonitor,), (normalised,), (VecMonitor, normalised), (normalised, VecMonitor)])
def test_a_policy_is_evaluated_as_in_single_environments(stack: tuple[Any, ...]) -> None:
    generator = Workload("mixed", jobs=12)

    def single() -> Any:
        return Monitor(gymnasium.make("RollMux/Placement-v0", generator=generator))

    results = []
    for env in (NativeVecEnv(PlacementVectorEnv(2, generator)), DummyVecEnv([single, single])):
        wrapped: VecEnv = env
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The environment is already wrapped with a `Monitor`")
            for wrap in stack:
                wrapped = wrap(wrapped)
        wrapped.seed(3)
        results.append(evaluate_policy(First(), wrapped, 4, return_episode_rewards=True))  # type: ignore[arg-type]
    ours, theirs = results
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5) and ours[1] == theirs[1]


def test_an_adapter_in_use_can_be_copied() -> None:
    env = NativeVecEnv(native())
    env.reset()
    twin = copy.deepcopy(env)
    for _ in range(15):
        actions = np.zeros(STREAMS, dtype=np.int64)
        assert (env.step(actions)[1] == twin.step(actions)[1]).all()
