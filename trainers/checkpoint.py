"""Checkpoints: the complete state of a training run between two rollouts, in one file without pickle.

The file is safetensors: weights, Adam's moments, the states of torch's and NumPy's random generators, the arrays of the
environment, the last observation, and the memory of the algorithm. Plain values stand as JSON in the header, with a
hash of everything. It is written whole or not at all, so a kill at any moment leaves the previous one. A run resumes
exactly: bit for bit on the same machine.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm

from rollmux_env.errors import InputError
from rollmux_env.files import MB, read_file, write_whole
from rollmux_env.validation_errors import one_line
from trainers.env_state import Arrays, load_state, state_of
from trainers.vec_env import NativeVecEnv

_LARGEST_BYTES = 2048 * MB  # of a checkpoint; that of DQN holds its replay buffer

_COUNTERS = ("num_timesteps", "_n_updates", "_episode_num")
_DQN_COUNTERS = ("_n_calls", "exploration_rate", "_current_progress_remaining")


def save_checkpoint(path: Path, model: BaseAlgorithm, progress: dict[str, Any]) -> None:
    """Write a checkpoint.

    Args:
        model: the model, between two rollouts. progress: JSON values of the caller.
    """
    env = _env_of(model)
    arrays: Arrays = {f"policy.{name}": value.detach().numpy() for name, value in model.policy.state_dict().items()}
    for index, moments in model.policy.optimizer.state_dict()["state"].items():
        arrays |= {f"adam.{index}.{name}": value.detach().numpy() for name, value in moments.items()}
    drawn = np.random.get_state()  # noqa: NPY002 (SB3 draws from the global generator)
    assert isinstance(drawn, tuple)
    arrays["random.torch"] = torch.get_rng_state().numpy()
    arrays["random.numpy"] = np.asarray(drawn[1])
    of_env, plain = state_of(env.env)
    arrays |= {f"environment.{name}": value for name, value in of_env.items()}
    arrays |= {f"last.{name}": np.asarray(value) for name, value in _last_observation(model).items()}
    arrays["episode.starts"] = np.asarray(model._last_episode_starts)
    arrays["episode.returns"], arrays["episode.lengths"] = env.returns, env.lengths
    values: dict[str, Any] = {
        "progress": progress,
        "counters": {name: getattr(model, name) for name in _COUNTERS},
        "numpy": [int(drawn[2]), int(drawn[3]), float(drawn[4])],
        "environment": plain,
    }
    if isinstance(model, DQN):
        memories, values["dqn"] = _memories(model)
        arrays |= memories
    arrays = {name: np.asarray(value, order="C") for name, value in sorted(arrays.items())}
    text = json.dumps(values)
    write_whole(path, save(arrays, metadata={"rollmux": text, "sha256": _digest(arrays, text)}))


def read_checkpoint(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Read the arrays and plain values of a checkpoint.

    Raises:
        InputError: unreadable, or damaged; one line.
    """
    name = one_line(str(path), 4096)
    data = read_file(path, _LARGEST_BYTES)
    try:
        arrays = load(data)
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])["__metadata__"]
        text, digest = header["rollmux"], header["sha256"]
        values = json.loads(text)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{name}: is not a checkpoint, or damaged") from None
    arrays = {name: value.copy() for name, value in sorted(arrays.items())}  # what is read is not writable
    if _digest(arrays, text) != digest:
        raise InputError(f"{name}: is damaged: its contents do not have the hash that they were written with")
    return arrays, values


def load_checkpoint(path: Path, model: BaseAlgorithm) -> dict[str, Any]:
    """Restore a model made from the same configuration; return the caller's values.

    Raises:
        InputError: as `read_checkpoint`, or a checkpoint of another network or environment.
    """
    arrays, values = read_checkpoint(path)
    try:
        _load(model, arrays, values)
    except (InputError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise InputError(f"{one_line(str(path), 4096)}: is of another configuration: {one_line(str(error).strip(), 200)}") from None
    progress: dict[str, Any] = values["progress"]
    return progress


def _load(model: BaseAlgorithm, arrays: Arrays, values: dict[str, Any]) -> None:
    env = _env_of(model)
    env.reset()  # so that the environment has all its arrays; what they hold comes next
    load_state(env.env, _below(arrays, "environment."), values["environment"])
    env.returns[:], env.lengths[:] = arrays["episode.returns"], arrays["episode.lengths"]
    model._last_obs = _below(arrays, "last.")
    model._last_episode_starts = arrays["episode.starts"]
    model.policy.load_state_dict({name: torch.from_numpy(value) for name, value in _below(arrays, "policy.").items()})
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in _below(arrays, "adam.").items():
        index, _, key = name.partition(".")
        moments.setdefault(int(index), {})[key] = torch.from_numpy(value)
    optimizer = model.policy.optimizer
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    for name, counter in values["counters"].items():
        setattr(model, name, counter)
    if isinstance(model, DQN):
        _remember(model, _below(arrays, "memory."), values["dqn"])
    position, has_gauss, gauss = values["numpy"]
    np.random.set_state(("MT19937", arrays["random.numpy"], position, has_gauss, gauss))  # noqa: NPY002
    torch.set_rng_state(torch.from_numpy(arrays["random.torch"]))


def _memories(model: DQN) -> tuple[Arrays, dict[str, Any]]:
    """The replay buffer and counters of DQN."""
    memory = model.replay_buffer
    assert memory is not None
    rows = memory.buffer_size if memory.full else memory.pos
    arrays = {f"memory.{name}": array[:rows] for name, array in _columns(memory).items()}
    counters = {name: getattr(model, name) for name in _DQN_COUNTERS}
    return arrays, {"counters": counters, "at": memory.pos, "full": memory.full, "actions": _state_of_space(model)}


def _remember(model: DQN, arrays: Arrays, values: dict[str, Any]) -> None:
    memory = model.replay_buffer
    assert memory is not None
    for name, column in _columns(memory).items():
        column[: len(arrays[name])] = arrays[name]
    memory.pos, memory.full = values["at"], values["full"]
    for name, counter in values["counters"].items():
        setattr(model, name, counter)
    model.action_space.np_random.bit_generator.state = values["actions"]


def _columns(memory: Any) -> Arrays:
    columns: Arrays = {"actions": memory.actions, "rewards": memory.rewards, "dones": memory.dones, "timeouts": memory.timeouts}
    for name in memory.observations:
        columns[f"seen.{name}"], columns[f"next.{name}"] = memory.observations[name], memory.next_observations[name]
    return columns


def _state_of_space(model: DQN) -> dict[str, Any]:
    state: dict[str, Any] = dict(model.action_space.np_random.bit_generator.state)
    return state


def _env_of(model: BaseAlgorithm) -> NativeVecEnv:
    assert isinstance(model.env, NativeVecEnv)
    return model.env


def _last_observation(model: BaseAlgorithm) -> dict[str, NDArray[Any]]:
    assert isinstance(model._last_obs, dict)
    return model._last_obs


def _below(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _digest(arrays: Arrays, text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name, value in arrays.items():
        digest.update(f"{name} {value.dtype} {value.shape}".encode())
        digest.update(value.data if value.size else b"")
    return digest.hexdigest()
