"""Checkpoints of a job: a folder for each, named by the number of iterations that the job had done.

A checkpoint is written beside its place and then renamed, with everything on the disk by then, so that a kill or a power cut at any
moment leaves it whole or not there. Its manifest, `checkpoint.json`, lists every file with its size and SHA-256, taken while it is
written where the writer says it (`write_hashed`); what is read is checked against it, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.files import check_regular, make_private, private_folder, read_json
from rollmux_env.validation_errors import one_line

CHECKPOINTS = "checkpoints"  # folder of a run's, with one of each job
MANIFEST = "checkpoint.json"
_FORMAT = 1
_UNFINISHED = ".unfinished"

Rest = Callable[[], Mapping[str, tuple[int, str]] | None]
"""Writes what is left of a checkpoint; returns bytes and SHA-256 of the files that it has brought to the disk itself, by name."""


class ResumePoint(NamedTuple):
    """The checkpoint to go on from.

    Attributes:
        iterations: how many it has done; 0 without a checkpoint. folder: of its files, None without one.
        problems: a line for each newer one that is damaged.
    """

    iterations: int
    folder: Path | None
    problems: tuple[str, ...]


def begin_checkpoint(folder: Path, iterations: int, fill: Callable[[Path], Rest | None]) -> Callable[[], int]:
    """Begin a checkpoint. One is written at a time in a folder: what is left of another one is removed.

    Args:
        folder: of the job's checkpoints; made if need be.
        fill: writes files into a new folder, below it too; what it returns is called to write the rest.

    Returns:
        What finishes it, in any thread: when that returns, the checkpoint is on the disk. Its result: bytes of the files.

    Raises:
        OSError: the disk is full, or the folder cannot be written, now or when it is finished; what was there before is as it was.
    """
    private_folder(folder)
    for left in folder.glob(f"{_UNFINISHED}-*"):
        shutil.rmtree(left, ignore_errors=True)
    unfinished = folder / f"{_UNFINISHED}-{iterations}"
    try:
        private_folder(unfinished)
        rest = fill(unfinished)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return partial(_finish, unfinished, folder, iterations, rest)


def _finish(unfinished: Path, folder: Path, iterations: int, rest: Rest | None) -> int:
    place = place_of(folder, iterations)
    try:
        settled = dict(rest() or {}) if rest is not None else {}
        files = {str(path.relative_to(unfinished)): path for path in sorted(unfinished.rglob("*")) if path.is_file()}
        for name, (size, _) in settled.items():
            if name not in files or files[name].stat().st_size != size:
                raise OSError(f"{one_line(name, 200)}: what was written of it is not there")
        entries = {name: settled.get(name) or _settled(path) for name, path in files.items()}
        manifest = unfinished / MANIFEST
        manifest.write_text(json.dumps({"format": _FORMAT, "iterations": iterations, "files": entries}, indent=1))
        make_private(unfinished)
        _settled(manifest)
        for below in (unfinished, *(path for path in unfinished.rglob("*") if path.is_dir())):
            _sync_folder(below)
        shutil.rmtree(place, ignore_errors=True)  # written before, and never recorded
        unfinished.rename(place)
        _sync_folder(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return sum(size for size, _ in entries.values())


def write_hashed(path: Path, pieces: Iterable[Any]) -> tuple[int, str]:
    """Write a new file; when this returns it is on the disk.

    Args:
        pieces: of its content, one after the other; whatever has bytes as its memory.

    Returns:
        Its bytes and their SHA-256, taken while they were written.

    Raises:
        OSError: the disk is full, or there is such a file.
    """
    size, digest = 0, hashlib.sha256()
    with path.open("xb") as file:
        for piece in pieces:
            digest.update(piece)
            size += file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return size, digest.hexdigest()


def newest(folder: Path, most: int, recorded: Collection[int] | None = None) -> ResumePoint:
    """The newest checkpoint that is whole, of so many iterations at most.

    Args:
        recorded: iterations of those that the journal knows; others are passed over. None: all count.
    """
    problems: list[str] = []
    for iterations in reversed(numbers(folder)):
        if iterations <= most and (recorded is None or iterations in recorded):
            place = place_of(folder, iterations)
            problem = damage(place)
            if problem is None:
                return ResumePoint(iterations, place, tuple(problems))
            problems.append(problem)
    return ResumePoint(0, None, tuple(problems))


def drop(folder: Path, keep: int) -> None:
    """Remove all but the last `keep`; nothing behind a link."""
    _remove(folder, numbers(folder)[:-keep])


def drop_above(folder: Path, iterations: int) -> None:
    """Remove those of more iterations; nothing behind a link."""
    _remove(folder, [number for number in numbers(folder) if number > iterations])


def _remove(folder: Path, iterations: Iterable[int]) -> None:
    if not folder.is_symlink():
        for number in iterations:
            shutil.rmtree(place_of(folder, number), ignore_errors=True)


def numbers(folder: Path) -> list[int]:
    """Iterations of the checkpoints in a folder, ascending; links are none."""
    if not folder.is_dir():
        return []
    folders = [path for path in folder.glob("*") if path.name.isdigit() and path.is_dir() and not path.is_symlink()]
    return sorted(int(path.name) for path in folders if path == place_of(folder, int(path.name)))


def place_of(folder: Path, iterations: int) -> Path:
    """Where a checkpoint is."""
    return folder / f"{iterations:06d}"


def damage(place: Path) -> str | None:
    """What is wrong with a checkpoint; None where it is whole. One line."""
    name = one_line(str(place), 4096)
    try:
        manifest = read_json(place / MANIFEST)
        files: dict[str, Any] = manifest["files"]
        if manifest["format"] != _FORMAT:
            return f"{name}: is of format {one_line(str(manifest['format']), 20)}; this RollMux reads format {_FORMAT}"
        for file, (size, digest) in files.items():
            check_regular(place / file)
            if (place / file).stat().st_size != size or _digest(place / file) != digest:
                return f"{name}: {one_line(file, 200)} is damaged"
    except InputError as error:
        return f"{name}: is damaged: {one_line(str(error).removeprefix(f'{name}/'), 200)}"
    except OSError as error:
        return f"{name}: is damaged: {one_line(str(error.strerror or error), 200)}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{name}: {MANIFEST} is damaged"
    return None


def _settled(path: Path) -> tuple[int, str]:
    """Bring a file to the disk; its size and digest."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path.stat().st_size, _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
