"""First on the path, it makes a Python in which the modules named in ROLLMUX_TEST_HIDDEN are not installed."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HIDDEN = frozenset(os.environ["ROLLMUX_TEST_HIDDEN"].split(","))
PACKAGES = sysconfig.get_path("purelib")
_find = PathFinder.find_spec


def _find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
    found = _find(name, path, target)
    top = name.partition(".")[0]
    if found is None or found.origin is None or top not in HIDDEN:
        return None if top in HIDDEN else found
    own = found.origin.startswith((os.path.join(PACKAGES, top, ""), os.path.join(PACKAGES, f"{top}.")))
    return None if own else found  # else it is a copy inside another package, as Ray has some


PathFinder.find_spec = _find_spec  # type: ignore[method-assign,assignment]
