"""The files that the jobs of a run depend on, by their digests, so that a resumed run reports which of them have changed.

They are the job file, data files, the modules of tasks, rewards, verifiers and job classes, and the folders of models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from policies.named import is_own
from rollmux_env.errors import InputError
from rollmux_env.files import read_json, write_whole
from rollmux_env.validation_errors import one_line
from runtime.jobs.grpo_spec import TINY
from runtime.jobs.named import located, source_files
from runtime.jobs.spec import ClassJob, JobSpec, TaskJob

FILE = "dependencies.json"
_WHOLE = 64 << 20  # bytes of the largest file that is read in full
_BLOCK = 64 << 10  # bytes of each of the evenly spread blocks of a larger file, such as weights; its size counts too


def remember(folder: Path, specs: Iterable[JobSpec], file: Path | None = None) -> None:
    """Record the present digests of the files that jobs depend on.

    Args:
        folder: Folder of the run.
        specs: Jobs of the run.
        file: Job file, or None to keep the one that is recorded already.
    """
    job_file = str(file.resolve()) if file is not None else _remembered(folder).get("job_file")
    paths = {str(path) for spec in specs for path in _paths(spec)} | ({job_file} if job_file else set())
    digests = {path: _digest(Path(path)) for path in sorted(paths)}
    write_whole(folder / FILE, json.dumps({"job_file": job_file, "digests": digests}, indent=1) + "\n", private=True)


def changed(folder: Path) -> tuple[str, ...]:
    """Return the files and folders that a run depends on and that have changed. A run of an older RollMux has no record of them."""
    digests: dict[str, str] = _remembered(folder).get("digests", {})
    return tuple(path for path, digest in digests.items() if _digest(Path(path)) != digest)


def check_unchanged(folder: Path, accepts: bool) -> None:
    """Check that the files that a run depends on have not changed, or that the user accepts the changes.

    Args:
        folder: Folder of the run.
        accepts: Whether the run continues with changed files.

    Raises:
        InputError: If a file has changed and `accepts` is false; one line.
    """
    others = changed(folder)
    if others and not accepts:
        names = ", ".join(one_line(path, 200) for path in others)
        raise InputError(
            f"--resume {folder}: changed since the run began: {names}; --accept-changes continues with what they are now"
        )


def _remembered(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    digests = read_json(path) if path.is_file() else {}
    return digests if isinstance(digests, dict) else {}


def _paths(spec: JobSpec) -> Iterator[Path]:
    """Yield the files and folders that a job names."""
    modules: list[str | None] = [spec.job_class] if isinstance(spec, ClassJob) else []
    if isinstance(spec, TaskJob):
        modules += [spec.task.name, spec.task.reward, spec.rollout.policy if is_own(spec.rollout.policy) else None]
        names = [spec.task.file, spec.evaluation.file if spec.evaluation is not None else None]
        if spec.model.name != TINY:
            names.append(spec.model.name)
        yield from (located(spec.folder, name) for name in names if name is not None)
    for module in modules:
        if module is not None and ":" in module:
            yield from source_files(module.partition(":")[0], spec.folder)


def _digest(path: Path) -> str:
    """Return the digest of a file, or of all files of a folder with their names, or "" if there is none."""
    digest = hashlib.sha256()
    try:
        if not path.is_dir():
            return _of_file(path)
        for file in sorted(one for one in path.rglob("*") if one.is_file()):
            digest.update(f"{file.relative_to(path)} {_of_file(file)}\n".encode())
    except OSError:
        return ""
    return digest.hexdigest()


def _of_file(path: Path) -> str:
    size, digest = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as file:
        if size <= _WHOLE:
            digest.update(file.read())
        else:
            digest.update(b"%d " % size)
            blocks = _WHOLE // _BLOCK
            for block in range(blocks):  # a change of more than a 1,000th of the file in one piece, as of a matrix, is always seen
                file.seek((size - _BLOCK) * block // (blocks - 1))
                digest.update(file.read(_BLOCK))
    return digest.hexdigest()
