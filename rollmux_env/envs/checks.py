"""Checks of the values that a caller passes to an environment, before compiled code reads them.

Compiled code does not check bounds. A wrong number or type would end the process or read unrelated memory. Each function returns
the value in the form that the environment uses, or raises an `InputError` with a message of one line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollmux_env.errors import InputError
from rollmux_env.suggestions import did_you_mean
from rollmux_env.user_code import is_whole
from rollmux_env.validation_errors import describe, not_one_of

_OPTIONS = ("stream_seed", "reset_mask")
_NO_ACTION = -1  # replaces every smaller number, since the smallest 64-bit number has a special meaning in compiled code


def actions_of(value: Any, streams: int) -> NDArray[np.int64]:
    """Return the actions, of shape (streams,). Numbers outside of the action space are kept, and count as masked."""
    try:
        actions = np.asarray(value)
    except ValueError:  # the value is a list of lists of different lengths
        raise InputError(f"actions: must be {streams} whole numbers, not {describe(value)}") from None
    if actions.shape != (streams,):
        raise InputError(f"actions: must be {streams} whole numbers, not of shape {actions.shape}")
    if actions.dtype.kind not in "iu":
        raise InputError(f"actions: must be {streams} whole numbers, not of type {actions.dtype}")
    known: NDArray[np.int64] = np.maximum(actions, _NO_ACTION, dtype=np.int64)
    return known


def action_of(value: Any) -> int:
    """Return the action of a single environment."""
    kind, shape = getattr(value, "dtype", np.dtype(object)).kind, getattr(value, "shape", ())
    if not (type(value) is int and abs(value) < 2**63) and (kind not in "iu" or shape != ()):
        raise InputError(f"action: must be a whole number, not {describe(value)}")
    return int(value)


def rewards_of(value: Any, streams: int) -> NDArray[np.float64]:
    """Return a copy of the rewards, of shape (streams,). The value may be a view of memory that the next step overwrites."""
    try:
        rewards = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"reward: must return {streams} numbers, not {describe(value)}") from None
    if rewards.shape != (streams,):
        raise InputError(f"reward: must return {streams} numbers, one a stream, not of shape {rewards.shape}")
    if not np.isfinite(rewards).all():
        raise InputError(f"reward: must return {streams} numbers, all finite, not {rewards[~np.isfinite(rewards)][0]:g}")
    return rewards


def callable_reward(value: Any) -> Any:
    """Return the reward function."""
    if not callable(value):
        raise InputError(f"reward: must be a function of an interval, not {describe(value)}")
    return value


def reference_of(reward: Any, known: tuple[str, ...]) -> str | None:
    """Return the name of the policy with which a reward function compares, or None if there is none."""
    reference = getattr(reward, "reference", None)
    if reference is not None and reference not in known:
        raise InputError(f"reward.reference: must be one of {', '.join(known)}, or None, not {describe(reference)}")
    return reference


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number of at least `least`."""
    if not is_whole(value):
        raise InputError(f"{name}: must be a whole number, not {describe(value)}")
    if value < least:
        raise InputError(f"{name}: must be at least {least}, not {value}")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """Return a truth value. Compiled code would be compiled again for any other type."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name}: must be true or false, not {describe(value)}")
    return bool(value)


def autoreset_mode(value: Any) -> AutoresetMode:
    """Return a mode of autoreset, given as such or by its value: `NextStep`, `SameStep` or `Disabled`."""
    try:
        return AutoresetMode(value)
    except ValueError:
        raise InputError(f"autoreset_mode: {not_one_of(value, [mode.value for mode in AutoresetMode])}") from None


def has_attributes(generator: Any, names: Iterable[str], must_have: str) -> None:
    """Raise an error if a generator lacks one of some attributes. `must_have` lists them for the message."""
    for name in names:
        if not hasattr(generator, name):
            raise InputError(f"generator: {type(generator).__name__} has no `{name}`; it must have {must_have}")


def options_of(options: Any) -> dict[str, Any]:
    """Return the options of a reset. None means no options."""
    if options is not None and not isinstance(options, dict):
        raise InputError(f"options: must be a mapping, not {describe(options)}")
    for name in options or {}:
        if name not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise InputError(f"options: must be among {known}, not {describe(name)}{did_you_mean(name, _OPTIONS)}")
    return options or {}


def seeds_of(value: Any, streams: int) -> list[int | None]:
    """Return the seed of each stream's draws: consecutive ones from a single number on, or those of a list."""
    if value is None or (is_whole(value) and value >= 0):
        return [None if value is None else int(value) + s for s in range(streams)]
    seeds = _list_entries(value)
    if len(seeds) != streams or not all(seed is None or (is_whole(seed) and seed >= 0) for seed in seeds):
        raise InputError(f"seed: must be a whole number, at least 0, or {streams} of them, not {describe(value)}")
    return [None if seed is None else int(seed) for seed in seeds]


def stream_seeds_of(value: Any, streams: int) -> list[int | None]:
    """Return the seed of each stream itself, None for a stream whose seed must be drawn."""
    seeds = _list_entries(value) or [value] * streams
    if len(seeds) != streams or not all(seed is None or (is_whole(seed) and 0 <= seed < 2**63) for seed in seeds):
        raise InputError(f"stream_seed: must be a whole number, at least 0, or {streams} of them, not {describe(value)}")
    return [None if seed is None else int(seed) for seed in seeds]


def streams_in(value: Any, streams: int) -> NDArray[np.int64]:
    """Return the numbers of the streams that a mask selects. None selects all."""
    mask = [True] * streams if value is None else _list_entries(value)
    if len(mask) != streams or not all(isinstance(on, bool | np.bool_) for on in mask):
        raise InputError(f"reset_mask: must be true or false for each of {streams} streams, not {describe(value)}")
    return np.flatnonzero(mask)


def _list_entries(value: Any) -> list[Any]:
    """Return the entries of a list, tuple or array, and no entries for any other value."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    return [*value] if isinstance(value, list | tuple) else []
