"""Who may read what a run or a service writes."""

from __future__ import annotations

import contextlib
from pathlib import Path


def others_may_read(folder: Path) -> list[str]:
    """What of a folder, itself included, is not for its owner alone."""
    found = []
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a run that goes on removes some
            mode = path.lstat().st_mode & 0o777
            if mode != (0o700 if path.is_dir() else 0o600):
                found.append(f"{path.relative_to(folder)}: {mode:o}")
    return found
