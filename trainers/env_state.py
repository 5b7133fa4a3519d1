"""The state of an environment as arrays and plain values, sufficient to resume it exactly.

An environment keeps its streams in arrays, in records or tables of arrays, its sources of seeds in NumPy generators,
and a few plain numbers. Its state is every array, generator and number among its attributes, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmux_env.errors import InputError

Arrays = dict[str, NDArray[Any]]

# Attributes that are no state: scratch, and settings, which whoever makes the environment gives.
_NO_STATE = ("_workspace", "_scratch", "_rules", "_limits")


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
            _set(environment, name, plain[name])


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
