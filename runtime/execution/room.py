"""Room on a disk: who found none waits until there is more."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from time import monotonic

_LOOKS_S = 1.0
_LEAST_S = 3.0  # between attempts, each of which may fill the disk for a moment
_MOST_S = 60.0  # a quota may have grown, which the file system does not tell


async def wait_for_room(folder: Path, over: Callable[[], bool]) -> None:
    """Wait until the file system of a folder has more free bytes than now, or for a minute.

    Args:
        over: nobody waits any more.
    """
    began_s, free = monotonic(), _free(folder)
    while not over():
        await asyncio.sleep(_LOOKS_S)
        passed_s = monotonic() - began_s
        if passed_s > _MOST_S or (passed_s > _LEAST_S and _free(folder) > free):
            return


def _free(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
