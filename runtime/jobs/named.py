"""Classes and functions that a job file names as module:Name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from rollmux_env.complaint import describe, one_line
from rollmux_env.errors import InputError


def see(folder: str) -> None:
    """Let modules of a job's folder be imported, behind all that is installed."""
    if folder and folder not in sys.path:
        sys.path.append(folder)


def find_module(named: str, folder: str) -> None:
    """Make sure that the module of a module:Name is there, without importing it (but for the packages around it).

    Raises:
        InputError: it is not; one line.
    """
    see(folder)
    module = named.partition(":")[0]
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise InputError(f"there is no module {describe(module)} in {one_line(folder) or 'the working folder'}, or installed")


def load_named(named: str, folder: str) -> Any:
    """Import what a module:Name stands for.

    Raises:
        InputError: the module cannot be imported or has no such name; one line.
    """
    see(folder)
    module, _, name = named.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise InputError(f"{named}: the module {module} has no {name}") from None
    except Exception as error:  # what a user's module raises while it is imported
        raise InputError(f"{named}: {one_line(f'{type(error).__name__}: {error}')}") from None
