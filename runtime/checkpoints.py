"""Checkpoints of a job: a folder for each, named by the number of completed iterations.

A checkpoint is written next to its final place and then renamed, after everything is on disk: a kill or a power failure at any
moment leaves it complete or absent. Its manifest, `checkpoint.json`, lists every file with its size and SHA-256, which the writer
may have computed while writing (`write_hashed`). A checkpoint is checked against it before it is used, and nothing is unpickled.
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
from rollmux_env.files import check_regular, make_private, private_folder, read_json, sync
from rollmux_env.validation_errors import one_line

CHECKPOINTS = "checkpoints"  # folder in a run's folder, with a folder for each job
MANIFEST = "checkpoint.json"
_FORMAT = 1
_UNFINISHED = ".unfinished"

Rest = Callable[[], Mapping[str, tuple[int, str]] | None]
"""Function that writes the rest of a checkpoint; returns the size and SHA-256 of the files that it has synced itself, by name."""


class ResumePoint(NamedTuple):
    """The checkpoint to continue from.

    Attributes:
        iterations: Number of completed iterations; 0 without a checkpoint.
        folder: Folder of its files, or None without a checkpoint.
        problems: Line for each newer checkpoint that is damaged.
    """

    iterations: int
    folder: Path | None
    problems: tuple[str, ...]


def begin_checkpoint(folder: Path, iterations: int, fill: Callable[[Path], Rest | None]) -> Callable[[], int]:
    """Begin a checkpoint. Only one is written at a time in a folder: remains of another one are removed.

    Args:
        folder: Folder of the job's checkpoints, which is made if it is missing.
        iterations: Number of completed iterations.
        fill: Function that writes files into a new folder; it may return a function that writes the rest.

    Returns:
        Function that finishes the checkpoint, in any thread. When it returns, the checkpoint is on disk. It returns the bytes of
        the files.

    Raises:
        OSError: If the disk is full or the folder cannot be written, now or when it is finished. Earlier checkpoints are not
            affected.
        RuntimeError: If a file has the name of the manifest, when it is finished; one line.
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
        manifest = unfinished / MANIFEST
        check_own_name(manifest)
        entries = {name: settled.get(name) or _settled(path) for name, path in files.items()}
        manifest.write_text(json.dumps({"format": _FORMAT, "iterations": iterations, "files": entries}, indent=1))
        make_private(unfinished)
        _settled(manifest)
        for below in (unfinished, *(path for path in unfinished.rglob("*") if path.is_dir())):
            sync(below)
        shutil.rmtree(place, ignore_errors=True)  # an earlier one that was never recorded
        unfinished.rename(place)
        sync(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return sum(size for size, _ in entries.values())


def check_own_name(path: Path) -> None:
    """Check that a job has written no file of a name that RollMux uses itself in a checkpoint.

    Raises:
        RuntimeError: If it has; one line.
    """
    if path.exists():
        raise RuntimeError(f"its checkpoint has a file {path.name}; RollMux itself writes one of this name, so use another")


def write_hashed(path: Path, pieces: Iterable[Any]) -> tuple[int, str]:
    """Write a new file and sync it to disk.

    Args:
        path: Path of the file.
        pieces: Consecutive pieces of the content, as bytes-like objects.

    Returns:
        Size in bytes and SHA-256, computed while writing.

    Raises:
        OSError: If the disk is full, or the file exists.
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
    """Return the newest intact checkpoint.

    Args:
        folder: Folder of the job's checkpoints.
        most: Largest number of completed iterations.
        recorded: Numbers of iterations of the checkpoints in the journal; others are skipped. None means all.
    """
    problems: list[str] = []
    for iterations in reversed(numbers(folder)):
        if iterations <= most and (recorded is None or iterations in recorded):
            place = place_of(folder, iterations)
            problem = find_damage(place)
            if problem is None:
                return ResumePoint(iterations, place, tuple(problems))
            problems.append(problem)
    return ResumePoint(0, None, tuple(problems))


def drop(folder: Path, keep: int) -> None:
    """Remove all but the last `keep` checkpoints; symbolic links are not followed."""
    _remove(folder, numbers(folder)[:-keep])


def drop_above(folder: Path, iterations: int) -> None:
    """Remove the checkpoints of more than `iterations` iterations; symbolic links are not followed."""
    _remove(folder, [number for number in numbers(folder) if number > iterations])


def _remove(folder: Path, iterations: Iterable[int]) -> None:
    if not folder.is_symlink():
        for number in iterations:
            shutil.rmtree(place_of(folder, number), ignore_errors=True)


def numbers(folder: Path) -> list[int]:
    """Return the numbers of iterations of a folder's checkpoints, ascending; symbolic links are ignored."""
    if not folder.is_dir():
        return []
    folders = [path for path in folder.glob("*") if path.name.isdigit() and path.is_dir() and not path.is_symlink()]
    return sorted(int(path.name) for path in folders if path == place_of(folder, int(path.name)))


def place_of(folder: Path, iterations: int) -> Path:
    """Return the folder of a checkpoint."""
    return folder / f"{iterations:06d}"


def find_damage(place: Path) -> str | None:
    """Return a line about the damage of a checkpoint, or None if it is intact."""
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
    """Sync a file to disk, and return its size and SHA-256."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return path.stat().st_size, _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
