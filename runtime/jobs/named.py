"""What a job file names: files, and classes and functions as module:Name."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from rollmux_env.complaint import describe, one_line
from rollmux_env.errors import InputError


def located(folder: str | Path, name: str) -> Path:
    """The path of a file or folder, seen from a folder; `~` is a home folder where there is one."""
    return Path(folder, os.path.expanduser(name))


def see(folder: str) -> None:
    """Let modules of a job's folder be imported, behind all that is installed."""
    if folder and folder not in sys.path:
        sys.path.append(folder)


def find_module(named: str, folder: str) -> None:
    """Make sure that the module of a module:Name is there, without importing it (but for the packages around it).

    Raises:
        InputError: it is not, or a package around it fails; one line.
    """
    see(folder)
    module = named.partition(":")[0]
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    except Exception as error:  # what the packages around it raise
        raise InputError(f"{module}: {_complaint(error)}") from None
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
        imported = importlib.import_module(module)
    except Exception as error:  # what a user's module raises while it is imported
        raise InputError(f"{named}: {_complaint(error)}") from None
    if not hasattr(imported, name):
        raise InputError(f"{named}: the module {module} has no {name}")
    return getattr(imported, name)


def _complaint(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}")
