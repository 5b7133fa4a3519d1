"""What a job file names: files, and classes and functions as module:Name, whose files are found without importing anything."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.user_code import described, is_interrupt
from rollmux_env.validation_errors import describe, one_line


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
    except BaseException as error:  # what a user's module raises while it is imported
        if is_interrupt(error):
            raise
        raise InputError(f"{target}: {described(error)}") from None
    if not hasattr(imported, name):
        raise InputError(f"{target}: the module {module} has no {name}")
    return getattr(imported, name)


def locate_module(name: str, folder: str) -> Path | None:
    """The file of a module that is installed or, behind all that is, lies in a folder.

    Args:
        name: dotted. folder: an absolute path, or empty for none.

    Returns:
        Its file, or a name that is no file where it has none: it is built in, or a package without `__init__.py`. None where there
        is no such module.
    """
    top, *parts = name.split(".")
    spec = _top(top, folder)
    places = _places(spec)
    if spec is not None and spec.origin is None and folder:
        places.append(str(Path(folder, top)))  # a package without `__init__.py` may lie in several folders
    for part in parts:
        if spec is None:
            return None
        if spec.submodule_search_locations is None:  # what is in a module that is no package, only its import would tell
            break
        spec = PathFinder.find_spec(part, places)  # without the names before it, which would be looked up as imported
        places = _places(spec)
    return None if spec is None else Path(spec.origin or spec.name)


def source_files(name: str, folder: str) -> list[Path]:
    """The files of a module's text: its own, and those of the outermost package around it; none of one that is not found."""
    file, outermost = locate_module(name, folder), locate_module(name.partition(".")[0], folder)
    files = set() if file is None else {file}
    if outermost is not None and outermost.name == "__init__.py":
        files.update(outermost.parent.rglob("*.py"))
    return sorted(path for path in files if path.is_file())


def _top(name: str, folder: str) -> ModuleSpec | None:
    try:
        spec = importlib.util.find_spec(name)  # of a name without dots: it imports nothing
    except (ImportError, ValueError):
        spec = None
    return spec or (PathFinder.find_spec(name, [folder]) if folder else None)


def _places(spec: ModuleSpec | None) -> list[str]:
    """Folders of a package's modules."""
    return [*(spec.submodule_search_locations or ())] if spec is not None else []
