"""Checkpoints: the complete state of a training run between two rollouts, in one file without pickle.

The file is in safetensors format. It contains weights, Adam's moments, the states of torch's and NumPy's random generators, the
arrays of the environment, and the last observation. Plain values are JSON in the header, with a hash of everything. The file is
written atomically, so a kill at any moment leaves the previous one. A run resumes exactly: bit for bit on the same machine.

An environment keeps its streams in arrays, in records or tables of arrays, its sources of seeds in NumPy generators, and a few
plain numbers. Its state is every array, generator and number among its attributes, by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rollmux_env.errors import InputError
from rollmux_env.files import MB, read_file, write_whole
from rollmux_env.validation_errors import one_line

Arrays = dict[str, NDArray[Any]]

# Attributes that are no state: scratch, views of other attributes, settings that come from the environment's constructor, and what
# is computed again from a seed.
_NO_STATE = ("_workspace", "_scratch", "_passed", "_rules", "_limits", "_drawn")


def state_of(environment: object) -> tuple[Arrays, dict[str, Any]]:
    """Return the state of an environment: copies of its arrays by name, and other values as JSON.

    Records become bytes, with an axis of one record's bytes at the end.
    """
    arrays: Arrays = {}
    plain: dict[str, Any] = {}
    for name, value in _leaves(environment):
        if isinstance(value, np.ndarray):
            arrays[name] = _as_bytes(value) if value.dtype.fields else np.ascontiguousarray(value).copy()
        else:
            plain[name] = _plain(value)
    return arrays, plain


def load_state(environment: object, arrays: Arrays, plain: dict[str, Any]) -> None:
    """Restore the state of an environment into one that was created, seeded and reset in the same way.

    Args:
        environment: Environment to restore into.
        arrays: Saved arrays by name, as from `state_of`.
        plain: Saved other values by name, as from `state_of`.

    Raises:
        InputError: The state belongs to an environment with other arrays. The message names the first difference.
    """
    leaves = dict(_leaves(environment))
    if different := sorted(set(leaves) ^ (set(arrays) | set(plain))):
        raise InputError(f"environment.{different[0]}: is in only one of the saved environment and this one")
    for name, value in leaves.items():
        if isinstance(value, np.ndarray):
            saved = arrays.get(name)
            like = _as_bytes(value) if value.dtype.fields else value
            if saved is None or saved.shape != like.shape or saved.dtype != like.dtype:
                raise InputError(f"environment.{name}: the saved one has another shape than this environment's")
            value[...] = np.ascontiguousarray(saved).view(value.dtype)[..., 0] if value.dtype.fields else saved
        elif isinstance(value, np.random.Generator):
            try:
                value.bit_generator.state = plain[name]
            except (TypeError, ValueError, KeyError) as error:
                raise InputError(f"environment.{name}: is no state of a random generator: {error}") from None
        elif plain.get(name) != _plain(value):
            if "." in name:  # numbers below an attribute are settings, which do not change
                raise InputError(f"environment.{name}: is another than in the saved environment")
            setattr(environment, name, plain[name])


def _as_bytes(records: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of records of shape (...,), shape (..., B)."""
    whole = np.ascontiguousarray(records)
    return np.frombuffer(whole.tobytes(), dtype=np.uint8).reshape(*records.shape, records.dtype.itemsize)


def _plain(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return value.item() if isinstance(value, np.generic) else value


def _leaves(environment: object) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of every array, generator and number of an environment, in a fixed order."""
    for name, value in sorted(vars(environment).items()):
        if name not in _NO_STATE:
            yield from _inside(value, name)


def _inside(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, np.ndarray):
        if value.dtype != object:
            yield name, value
    elif isinstance(value, np.random.Generator | bool | int | float | np.generic):
        yield name, value
    else:
        for key, entry in _entries(value):
            yield from _inside(entry, f"{name}.{key}")


def _entries(value: Any) -> list[tuple[str, Any]]:
    """Return the entries of a record or list by name, and nothing for other values."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return [*value._asdict().items()]
    if isinstance(value, list | tuple):
        return [(str(k), entry) for k, entry in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return []


_LARGEST_BYTES = 2048 * MB  # largest size of a checkpoint

_COUNTERS = ("num_timesteps", "_n_updates", "_episode_num")


def save_checkpoint(path: Path, model: Any, progress: dict[str, Any]) -> None:
    """Write a checkpoint.

    Args:
        path: Path of the file.
        model: Model of Stable-Baselines3 on a `NativeVecEnv`, between two rollouts.
        progress: JSON values of the caller.
    """
    env = model.env
    arrays: Arrays = {f"policy.{name}": value.detach().numpy() for name, value in model.policy.state_dict().items()}
    for index, moments in model.policy.optimizer.state_dict()["state"].items():
        arrays |= {f"adam.{index}.{name}": value.detach().numpy() for name, value in moments.items()}
    drawn = np.random.get_state()  # noqa: NPY002 (SB3 draws from the global generator)
    assert isinstance(drawn, tuple)
    arrays["random.torch"] = torch.get_rng_state().numpy()
    arrays["random.numpy"] = np.asarray(drawn[1])
    of_env, plain = state_of(env.env)
    arrays |= {f"environment.{name}": value for name, value in of_env.items()}
    arrays |= {f"last.{name}": np.asarray(value) for name, value in model._last_obs.items()}
    arrays["episode.starts"] = np.asarray(model._last_episode_starts)
    arrays["episode.returns"], arrays["episode.lengths"] = env.returns, env.lengths
    values: dict[str, Any] = {
        "progress": progress,
        "counters": {name: getattr(model, name) for name in _COUNTERS},
        "numpy": [int(drawn[2]), int(drawn[3]), float(drawn[4])],
        "environment": plain,
    }
    arrays = {name: np.asarray(value, order="C") for name, value in sorted(arrays.items())}
    text = json.dumps(values)
    write_whole(path, save(arrays, metadata={"rollmux": text, "sha256": _digest(arrays, text)}))


def read_checkpoint(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Read the arrays and plain values of a checkpoint.

    Raises:
        InputError: The file is unreadable or damaged.
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
    arrays = {name: value.copy() for name, value in sorted(arrays.items())}  # loaded arrays are read-only
    if _digest(arrays, text) != digest:
        raise InputError(f"{name}: is damaged: its contents do not have the hash that they were written with")
    return arrays, values


def load_checkpoint(path: Path, model: Any) -> dict[str, Any]:
    """Restore a model that was created from the same configuration, and return the caller's values.

    Raises:
        InputError: The file is unreadable or damaged, or belongs to another network or environment.
    """
    arrays, values = read_checkpoint(path)
    try:
        _load(model, arrays, values)
    except (InputError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise InputError(f"{one_line(str(path), 4096)}: is of another configuration: {one_line(str(error).strip(), 200)}") from None
    progress: dict[str, Any] = values["progress"]
    return progress


def _load(model: Any, arrays: Arrays, values: dict[str, Any]) -> None:
    env = model.env
    env.reset()  # allocates all arrays of the environment; their contents are loaded next
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
    position, has_gauss, gauss = values["numpy"]
    np.random.set_state(("MT19937", arrays["random.numpy"], position, has_gauss, gauss))  # noqa: NPY002
    torch.set_rng_state(torch.from_numpy(arrays["random.torch"]))


def _below(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _digest(arrays: Arrays, text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name, value in arrays.items():
        digest.update(f"{name} {value.dtype} {value.shape}".encode())
        digest.update(value.data if value.size else b"")
    return digest.hexdigest()
