"""What a job file names: files, and classes and functions as module:Name."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import describe, one_line
from runtime.jobs.modules import locate_module


def located(folder: str | Path, name: str) -> Path:
    """The path of a file or folder, seen from a folder; `~` is a home folder where there is one."""
    return Path(folder, os.path.expanduser(name))


def find_module(target: str, folder: str) -> None:
    """Make sure that the module of a module:Name is there, by its file; nothing is imported.

    Raises:
        InputError: it is not; one line.
    """
    module = target.partition(":")[0]
    if locate_module(module, folder) is None:
        raise InputError(f"there is no module {describe(module)} in {one_line(folder) or 'the working folder'}, or installed")


def load_named(target: str, folder: str) -> Any:
    """Import what a module:Name stands for, installed or else in a folder. It is the user's code: in the job's own processes alone.

    Raises:
        InputError: the module cannot be imported or has no such name; one line.
    """
    if folder and folder not in sys.path:
        sys.path.append(folder)  # behind all that is installed
    module, _, name = target.partition(":")
    try:
        imported = importlib.import_module(module)
    except Exception as error:  # what a user's module raises while it is imported
        raise InputError(f"{target}: {_describe_error(error)}") from None
    if not hasattr(imported, name):
        raise InputError(f"{target}: the module {module} has no {name}")
    return getattr(imported, name)


def _describe_error(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}")
