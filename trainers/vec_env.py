"""RollMux's vector environments behind the interface of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, cast

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import describe

Observation = dict[str, NDArray[Any]]

_SINGLE_SPACES = {"action_space": "single_action_space", "observation_space": "single_observation_space"}


class NativeVecEnv(VecEnv):
    """A natively vectorised environment as an SB3 `VecEnv`.

    It asks the environment for all streams at once, including masks, because sb3-contrib's `get_action_masks` calls `env_method`
    only once. Each stream has its own info dict. It is empty until an episode ends. Then it has `terminal_observation`,
    `TimeLimit.truncated`, the entries of the environment's `final_info`, and `episode` (return `r`, length `l`, time `t`) as
    `Monitor` adds it. Therefore each stream counts as wrapped in a `Monitor`, and `evaluate_policy` reports returns that outer
    wrappers do not change.

    Attributes:
        env: The environment.
        seconds: Total time spent in the environment's steps, resets and action masks, in seconds.
        returns: Sum of rewards of each stream's current episode, shape (E,).
        lengths: Number of decisions in each stream's current episode, shape (E,).

    Raises:
        InputError: The environment does not reset a finished stream in the same step.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        if env.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
            raise InputError("environment: must reset a finished stream in the same step (AutoresetMode.SAME_STEP)")
        self.env = env
        self.seconds = 0.0
        self._made_s = perf_counter()
        self.returns = np.zeros(env.num_envs)
        self.lengths = np.zeros(env.num_envs, dtype=np.int64)
        self._actions: NDArray[np.int64] = np.zeros(env.num_envs, dtype=np.int64)
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> Observation:
        """Return the first observations of new episodes. Seeds and options given before are used once.

        Raises:
            InputError: Options are not one mapping for each stream, or the environment does not have one of them.
        """
        began = perf_counter()
        seeds = None if self._seeds[0] is None else self._seeds
        options = self._options_by_name()
        observation, info = self.env.reset(seed=seeds, options=options or None)  # type: ignore[arg-type]
        self.returns[:], self.lengths[:] = 0.0, 0
        self.reset_infos = [{name: column[s] for name, column in info.items() if name[0] != "_"} for s in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        self.seconds += perf_counter() - began
        return cast(Observation, observation)

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Set the actions of the next `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Observation, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Carry out the actions of `step_async`. A finished stream returns the first observation of its next episode."""
        began = perf_counter()
        observation, rewards, terminated, truncated, info = self.env.step(self._actions)
        dones = terminated | truncated
        self.returns += rewards
        self.lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for s in np.flatnonzero(dones).tolist():
            figures = info["final_info"]
            infos[s] = {
                **{name: column[s].item() for name, column in figures.items() if name[0] != "_"},
                "terminal_observation": {name: column[s] for name, column in info["final_obs"].items()},
                "TimeLimit.truncated": bool(truncated[s] and not terminated[s]),
                "episode": {"r": float(self.returns[s]), "l": int(self.lengths[s]), "t": self._age_s()},
            }
        self.returns[dones], self.lengths[dones] = 0.0, 0
        self.seconds += perf_counter() - began
        return observation, rewards.astype(np.float32), dones, infos

    def action_masks(self) -> NDArray[np.bool_]:
        """Return True for choices that may be made, shape (E, A)."""
        began = perf_counter()
        masks: NDArray[np.bool_] = cast(Any, self.env).action_masks()
        self.seconds += perf_counter() - began
        return masks

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> Any:
        """Call `action_masks`, which returns one array instead of a list, or `render`. There are no other methods."""
        if method_name not in ("action_masks", "render"):
            raise AttributeError(f"the streams of a native vector environment have no method '{method_name}'")
        if method_name == "render":
            frames = self.env.render() or (None,) * self.num_envs
            return [frames[s] for s in self._get_indices(indices)]
        masks = self.action_masks()
        return masks if indices is None else masks[[*self._get_indices(indices)]]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the environment, repeated for each stream. For spaces it is the space of a single stream."""
        return [getattr(self.env, _SINGLE_SPACES.get(attr_name, attr_name))] * len([*self._get_indices(indices)])

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Raise AttributeError, because streams have no separate attributes."""
        raise AttributeError(f"the streams of a native vector environment have no attribute '{attr_name}' of their own")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Return for each stream whether a wrapper of the class surrounds it. `Monitor` counts, since `info` has its entries."""
        layer: Any = self.env
        while not isinstance(layer, wrapper_class) and hasattr(layer, "env"):
            layer = layer.env
        return [wrapper_class is Monitor or isinstance(layer, wrapper_class)] * len([*self._get_indices(indices)])

    def get_images(self) -> Sequence[NDArray[np.uint8]]:
        """Return one picture for each stream."""
        return cast(Sequence[NDArray[np.uint8]], self.env.render())

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _options_by_name(self) -> dict[str, list[Any]]:
        """Convert the streams' options to the form of the environment: for each name, a value for each stream."""
        options = self._options
        if not isinstance(options, list) or len(options) != self.num_envs or not all(isinstance(one, dict) for one in options):
            raise InputError(f"options: must be a mapping, or {self.num_envs} of them, not {describe(options)}")
        return {name: [one.get(name) for one in options] for name in dict.fromkeys(name for one in options for name in one)}

    def _age_s(self) -> float:
        return round(perf_counter() - self._made_s, 6)


def play(env: VectorEnv[Any, Any, Any], seeds: Iterable[int], choose: Callable[[Observation], NDArray[np.int64]]) -> Observation:
    """Play one episode in each stream, and return what the environment reports about them.

    Args:
        env: Environment with `autoreset_mode="Disabled"`.
        seeds: Seed of the stream that each row plays (`stream_seed`).
        choose: Function from observations to actions, shape (E,).

    Returns:
        The entries of the last step's `info`, which describe the finished episodes; and `return` (sum of rewards) and `decisions`,
        each of shape (E,). The first axis of every entry is the stream.
    """
    observation, _ = env.reset(seed=0, options={"stream_seed": [*seeds]})
    returns, decisions = np.zeros(env.num_envs), np.zeros(env.num_envs, dtype=np.int64)
    over = np.zeros(env.num_envs, dtype=np.bool_)
    while not over.all():
        decisions += ~over
        observation, rewards, terminated, truncated, info = env.step(choose(observation))
        returns += np.where(over, 0.0, rewards)
        over |= terminated | truncated
    figures = {name: column for name, column in info.items() if name[0] != "_" and len(column) == env.num_envs}
    return {**figures, "return": returns, "decisions": decisions}
