"""Files, classes and functions that a job file names. A class or function is module:Name, whose file is found without an import."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.user_code import described, is_interrupt
from rollmux_env.validation_errors import describe, one_line


def located(folder: str | Path, name: str) -> Path:
    """Return the path of a file or folder relative to a folder; `~` is expanded if there is a home folder."""
    return Path(folder, os.path.expanduser(name))


def find_module(target: str, folder: str) -> None:
    """Check that the module of a module:Name exists, by its file; nothing is imported.

    Args:
        target: The module:Name.
        folder: Folder in which a module that is not installed is looked for.

    Raises:
        InputError: If there is no such module; one line.
    """
    module = target.partition(":")[0]
    if locate_module(module, folder) is None:
        raise InputError(f"there is no module {describe(module)} in {one_line(folder) or 'the working folder'}, or installed")


def load_named(target: str, folder: str) -> Any:
    """Import the object of a module:Name. It is the user's code, so only the job's own processes may call this.

    Args:
        target: The module:Name.
        folder: Folder in which a module that is not installed is looked for.

    Raises:
        InputError: If the module cannot be imported or has no such name; one line.
    """
    if folder and folder not in sys.path:
        sys.path.append(folder)  # installed modules take precedence
    module, _, name = target.partition(":")
    try:
        imported = importlib.import_module(module)
    except BaseException as error:  # a user's module may raise anything
        if is_interrupt(error):
            raise
        raise InputError(f"{target}: {described(error)}") from None
    if not hasattr(imported, name):
        raise InputError(f"{target}: the module {module} has no {name}")
    return getattr(imported, name)


def locate_module(name: str, folder: str) -> Path | None:
    """Return the file of a module that is installed or else in a folder.

    Args:
        name: Dotted name.
        folder: Absolute path, or empty for none.

    Returns:
        File of the module, or a name that is not a file if the module is built in or a package without `__init__.py`. None if there
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
        if spec.submodule_search_locations is None:  # only an import could show the contents of a plain module
            break
        spec = PathFinder.find_spec(part, places)  # only the last part: a dotted name would need imported parents
        places = _places(spec)
    return None if spec is None else Path(spec.origin or spec.name)


def source_files(name: str, folder: str) -> list[Path]:
    """Return the source files of a module, of the outermost package around it, and of what they import from the folder.

    Args:
        name: Dotted name.
        folder: Absolute path, or empty for none.

    Returns:
        Paths in sorted order, none if the module is not found.
    """
    files, names = set[Path](), [name]
    while names:
        one = names.pop()
        file, outermost = locate_module(one, folder), locate_module(one.partition(".")[0], folder)
        candidates = set() if file is None else {file}
        if outermost is not None and outermost.name == "__init__.py":
            candidates.update(outermost.parent.rglob("*.py"))
        new = {path for path in candidates if path.is_file()} - files
        files |= new
        names += [other for path in new if folder and path.is_relative_to(folder) for other in _imported(path, folder)]
    return sorted(files)


def _imported(path: Path, folder: str) -> Iterator[str]:
    """Yield the names in a folder that a source file imports: modules, and names in modules, which may be modules too."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # whoever imports it is told
        return
    packages = path.relative_to(folder).parts[:-1]
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            around = packages[: max(0, len(packages) + 1 - node.level)] if node.level else ()
            module = ".".join(filter(None, (*around, node.module)))
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if (top := name.partition(".")[0]) and PathFinder.find_spec(top, [folder]) is not None)


def _top(name: str, folder: str) -> ModuleSpec | None:
    try:
        spec = importlib.util.find_spec(name)  # a name without dots imports nothing
    except (ImportError, ValueError):
        spec = None
    return spec or (PathFinder.find_spec(name, [folder]) if folder else None)


def _places(spec: ModuleSpec | None) -> list[str]:
    """Return the folders of a package's modules."""
    return [*(spec.submodule_search_locations or ())] if spec is not None else []
