"""The folder of what is made once and used again: tiny models, profiles."""

from __future__ import annotations

import os
from pathlib import Path

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line


def cache_folder(name: str) -> Path:
    """A folder of that name in the user's cache (`ROLLMUX_CACHE`, else `$XDG_CACHE_HOME/rollmux`, else `~/.cache/rollmux`).

    Raises:
        InputError: it cannot be made or written; one line.
    """
    own = os.environ.get("ROLLMUX_CACHE")
    base = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "rollmux"
    if base.parts[0] == "~":
        raise InputError("no home folder is known; ROLLMUX_CACHE names a folder for what is made once and used again")
    folder = base / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{one_line(str(folder), 4096)}: {error.strerror} (ROLLMUX_CACHE names another folder)") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{one_line(str(folder), 4096)}: cannot be written (ROLLMUX_CACHE names another folder)")
    return folder
