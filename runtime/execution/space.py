"""The room that checkpoints take on a disk, known before anything starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic

from rollmux_env.errors import InputError
from rollmux_env.validation_errors import one_line
from runtime.checkpoints import CHECKPOINTS
from runtime.engines.model_files import read_model_files
from runtime.jobs.grpo_spec import TINY
from runtime.jobs.models import local_directory, tiny_config
from runtime.jobs.spec import JobSpec
from runtime.training.memory import tiny_size

_BYTES = 12  # a parameter, of weights and Adam's two moments in float32
_LOOKS_S = 1.0
_AGAIN_S = 3.0  # between attempts, each of which may fill the disk for a moment
_LONGEST_S = 60.0  # a quota may have grown, which the file system does not tell


def checkpoint_bytes(spec: JobSpec) -> int:
    """Bytes of a checkpoint; 0 of a job without any, and of a class, of which nobody knows.

    Raises:
        InputError: the model is not there; one line.
    """
    if spec.task is None or not spec.checkpoint.is_wanted:
        return 0
    if spec.model.name == TINY:
        return _BYTES * tiny_size(tiny_config(spec.model)).parameters
    return _BYTES * read_model_files(local_directory(spec.path(spec.model.name))).parameters


def missing_bytes(spec: JobSpec, folder: Path) -> int:
    """Bytes that a job's checkpoints will yet take in the folder of its run: those that are kept, and one that is being written.

    A model that is not there counts as none: whoever loads it says so.
    """
    try:
        size = checkpoint_bytes(spec)
    except InputError:
        return 0
    return max(0, (spec.checkpoint.keep + 1) * size - (_bytes_below(folder / CHECKPOINTS / spec.id) if size else 0))


def _bytes_below(folder: Path) -> int:
    """Bytes of the files in a folder that its job may be changing."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += Path(place, name).lstat().st_size
    return size


def check_space(specs: Iterable[JobSpec], folder: Path, where: str) -> None:
    """Make sure that there is room for the checkpoints of jobs.

    Args:
        folder: of their run. where: what error messages begin with.

    Raises:
        InputError: there is less; one line.
    """
    needed = sum(missing_bytes(spec, folder) for spec in specs)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"{where}: {one_line(str(folder), 4096)} is on a disk with {free / 1e9:.1f} GB free; checkpoints need "
            f"{needed / 1e9:.1f} GB: those that checkpoint.keep says, and one more"
        )


async def wait_for_room(folder: Path, over: Callable[[], bool]) -> None:
    """Wait until the file system of a folder has more free bytes than now, or for a minute.

    Args:
        over: nobody waits any more.
    """
    began_s, free = monotonic(), _free(folder)
    while not over():
        await asyncio.sleep(_LOOKS_S)
        passed_s = monotonic() - began_s
        if passed_s > _LONGEST_S or (passed_s > _AGAIN_S and _free(folder) > free):
            return


def _free(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
