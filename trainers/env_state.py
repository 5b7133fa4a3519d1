"""The state of an environment as arrays and plain values, sufficient to resume it exactly.

An environment keeps its streams in arrays, in records or tables of arrays, its sources of seeds in NumPy generators,
and a few plain numbers. Its state is every array, generator and number among its attributes, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.lib.recfunctions import repack_fields
from numpy.typing import NDArray

from rollmux_env.errors import InputError
from rollmux_env.kernel.tables import COLD

Arrays = dict[str, NDArray[Any]]

# Attributes that are no state: scratch, and settings, which whoever makes the environment gives.
_NO_STATE = ("_workspace", "_scratch", "_rules", "_limits")
# What version 0.1.0 saved besides, and under other names.
_FORMER_NO_STATE = ("_desk", "_space", "_prune")
_FORMER_NAMES = {
    "_seen.": "_observations.",
    "_groups.luck": "_groups.durations",
    "_groups.runners": "_groups.progress",
    "_streams.held": "_streams.reservations",
    "_reference.held": "_reference.reservations",
}
# Columns that records did not have in version 0.1.0, and what they have instead: a value, another column's, or the row's number.
_ROW = "its row"
_ADDED: dict[str, str | int] = {
    **dict.fromkeys(("rollout_warm_s", "training_warm_s", "cold_s", "coming_cold_s", "entered_done", "visits"), 0),
    **dict.fromkeys(("entered_warm", "admitted_warm", "stays_per_cold", "enters_per_cold", "joined_per_cold"), 0),
    **dict.fromkeys(("warm_s", "visitors", "work_rate"), 0),
    "warm_group": COLD,
    **dict.fromkeys(("of_shape", "more_shapes", "staleness", "rollout_pool"), 0),
    "training_pool": 1,
    "first_shape": _ROW,
    "alone_s": "solo_s",
    **dict.fromkeys(("rollout_device_gb", "training_device_gb", "node_device_gb"), 0),
    **dict.fromkeys(("stays_limit_s", "enters_limit_s", "joined_limit_s"), "limit_s"),
    **dict.fromkeys(("reward_s", "reward_nodes"), 0),
    "plain_held_s": "plain_s",
}
# Columns that they had besides, before the one named: nodes of the one pool of either side.
_REMOVED = {"n_groups": ("rollout_nodes", "training_nodes")}


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
    """Restore the state of another environment into one created, seeded and reset in the same way.

    Raises:
        InputError: the state is of an environment with other arrays; one line that names the first.
    """
    leaves = dict(_leaves(environment))
    arrays, plain = _present_names(arrays), _present_names(plain)
    for name in leaves:
        table, _, last = name.rpartition(".")
        if last == "nodes" and name not in arrays and f"{table}.clock" in arrays:
            arrays[name] = _nodes_by_pool(arrays[f"{table}.clock"], leaves[f"{table}.clock"])
    empty = {name for name, value in leaves.items() if isinstance(value, np.ndarray) and not value.size}
    if different := sorted((set(leaves) ^ (set(arrays) | set(plain))) - empty):
        raise InputError(f"environment.{different[0]}: is in only one of the saved environment and this one")
    for name, value in leaves.items():
        if name in empty and name not in arrays:  # an earlier version had no such array, and there is nothing in it
            continue
        if isinstance(value, np.ndarray):
            saved = arrays.get(name)
            if value.dtype.fields and saved is not None:
                saved = _with_added(saved, value)
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
            _set(environment, name, plain[name])


def _present_names(saved: dict[str, Any]) -> dict[str, Any]:
    """What an earlier version saved, under the names of this one."""
    present = {}
    for name, value in saved.items():
        if name.split(".")[0] not in (*_NO_STATE, *_FORMER_NO_STATE):
            former = next((former for former in _FORMER_NAMES if name.startswith(former)), "")
            present[_FORMER_NAMES.get(former, "") + name.removeprefix(former)] = value
    return present


def _with_added(saved: NDArray[Any], records: NDArray[Any]) -> NDArray[Any]:
    """The bytes of records of an earlier version, with the columns that they have now; others as they are."""
    old, new = _former(saved, records), records.copy()
    if old is None:
        return saved
    for name in records.dtype.names or ():
        match _ADDED.get(name, name):
            case int(value):
                new[name] = value
            case source:
                new[name] = np.arange(records.shape[-1]) if source == _ROW else old[source]
    return _as_bytes(new)


def _former(saved: NDArray[Any], records: NDArray[Any]) -> NDArray[Any] | None:
    """Records of an earlier version, with its columns; None where the bytes are no such."""
    columns: list[tuple[Any, ...]] = []
    for name in records.dtype.names or ():
        columns += [(removed, np.int64) for removed in _REMOVED.get(name, ())]
        columns += [] if name in _ADDED else [(name, records.dtype[name])]
    former = np.dtype(columns)
    if former == repack_fields(records.dtype) or saved.shape != (*records.shape, former.itemsize) or saved.dtype != np.uint8:
        return None
    return np.ascontiguousarray(saved).view(former)[..., 0]


def _nodes_by_pool(saved: NDArray[Any], clock: NDArray[Any]) -> NDArray[np.int64]:
    """(E, 2, 2) nodes that an earlier version had in the pool of each side."""
    nodes = np.zeros((len(clock), 2, 2), np.int64)
    if (old := _former(saved, clock)) is not None:
        nodes[:, 0, 0], nodes[:, 1, 1] = old["rollout_nodes"], old["training_nodes"]
    return nodes


def _as_bytes(records: NDArray[Any]) -> NDArray[np.uint8]:
    """(..., B) the bytes of records (...,)."""
    whole = np.ascontiguousarray(records)
    return np.frombuffer(whole.tobytes(), dtype=np.uint8).reshape(*records.shape, records.dtype.itemsize)


def _plain(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    return value.item() if isinstance(value, np.generic) else value


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(name, value) of every array, generator and number below, in a fixed order; what a class holds is none of them."""
    if isinstance(value, np.ndarray | np.random.Generator) or (name and isinstance(value, bool | int | float | np.generic)):
        if not (isinstance(value, np.ndarray) and value.dtype == object):
            yield name, value
        return
    below: list[tuple[str, Any]] = []
    if not name:
        below = [(key, entry) for key, entry in sorted(vars(value).items()) if key not in _NO_STATE]
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        below = list(value._asdict().items())
    elif isinstance(value, list | tuple):
        below = [(str(k), entry) for k, entry in enumerate(value)]
    elif is_dataclass(value) and not isinstance(value, type):
        below = [(field.name, getattr(value, field.name)) for field in fields(value)]
    for key, entry in below:
        yield from _leaves(entry, f"{name}.{key}" if name else key)


def _set(environment: object, name: str, value: Any) -> None:
    """Set a number that is an attribute of the environment itself; those further below are settings, which do not change."""
    if "." in name:
        raise InputError(f"environment.{name}: is another than in the saved environment")
    setattr(environment, name, value)
