"""Where a module lies, by looking for files alone: nothing is imported, not even the packages around it."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


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
