"""Files of a run's folder that grow with its iterations, within bounds: the older half goes when one is full."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rollmux_env.errors import InputError
from rollmux_env.files import private_folder, private_opener, write_whole


def append_bounded(path: Path, lines: str, largest: int) -> None:
    """Append lines, if there is room on the disk: nothing here is worth a job.

    Args:
        lines: whole ones. largest: bytes of the file; a larger one loses its older half.
    """
    with contextlib.suppress(OSError, InputError):
        private_folder(path.parent)
        with open(path, "a", opener=private_opener) as file:
            file.write(lines)
        if path.stat().st_size > largest:
            with path.open("rb") as whole:
                whole.seek(-largest // 2, os.SEEK_END)
                newer = whole.read().partition(b"\n")[2]
            write_whole(path, newer, private=True)
