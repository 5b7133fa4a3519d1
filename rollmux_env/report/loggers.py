"""Loggers of users for the figures of a training or a run: W&B, MLflow, Trackio, a database.

A logger has the methods of `stable_baselines3.common.logger.KVWriter`, so that an output format of Stable-Baselines3 is one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from rollmux_env.errors import InputError
from rollmux_env.factories import own_object
from rollmux_env.user_code import brief, guarded


class FigureLogger(Protocol):
    """Receiver of figures."""

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Write the figures of a step.

        Args:
            key_values: Figures by name.
            key_excluded: Names of output formats that leave a figure out, by the name of the figure.
            step: Number of the step.
        """

    def close(self) -> None:
        """Close the logger."""


MakeLogger = Callable[[Path], FigureLogger]
"""Function from a folder to a logger.

The folder is `DIR/seed-N` in a training, whose parent has `config.json`, and `DIR/loggers/JOB` in a run.
"""


def find_logger(name: str) -> MakeLogger:
    """Return the function or class `module:name` that makes a logger from a folder.

    Args:
        name: Module and name of the function or class. A logger has `write(key_values, key_excluded, step)` and `close()`.

    Raises:
        InputError: There is no such module or name.
    """
    label = f"--logger {name}"
    if ":" not in name:
        raise InputError(f"{label}: must be module:name of a function of the folder that returns a logger")
    return partial(_make, label, own_object(label, name, "function or class"))


def _make(label: str, make: Callable[[Path], object], folder: Path) -> FigureLogger:
    made: Any = guarded(make, label)(folder)
    if not callable(getattr(made, "write", None)) or not callable(getattr(made, "close", None)):
        raise InputError(f"{label} returned {brief(made)}, which has no `write` and `close`")
    return _Guarded(label, made)


class _Guarded:
    """A logger whose exceptions are one line.

    Args:
        label: Subject of error messages.
        logger: Logger of a user.
    """

    def __init__(self, label: str, logger: Any) -> None:
        self._write, self._close = guarded(logger.write, label), guarded(logger.close, label)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Write the figures of a step."""
        self._write(key_values, key_excluded, step)

    def close(self) -> None:
        """Close the logger."""
        self._close()
