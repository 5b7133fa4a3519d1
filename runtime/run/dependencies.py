"""The files that the jobs of a run depend on, by their digests, so that a run that is resumed says which of them have changed.

They are the job file, files of data, the modules of tasks, rewards, verifiers and job classes, and the folders of models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rollmux_env.errors import InputError
from rollmux_env.files import read_json, write_whole
from rollmux_env.validation_errors import one_line
from runtime.jobs.grpo_spec import TINY
from runtime.jobs.named import located, source_files
from runtime.jobs.spec import ClassJob, JobSpec, TaskJob

FILE = "dependencies.json"
_WHOLE = 64 << 20  # bytes of a file that is read whole
_ENDS = 1 << 20  # bytes at either end of a larger one, as of weights, that are read beside its size


def remember(folder: Path, specs: Iterable[JobSpec], file: Path | None = None) -> None:
    """Write down what jobs depend on, as it is now.

    Args:
        folder: Folder of the run.
        specs: Jobs of the run.
        file: Job file, or None to keep the one that is written down already.
    """
    job_file = str(file.resolve()) if file is not None else _remembered(folder).get("job_file")
    paths = {str(path) for spec in specs for path in _paths(spec)} | ({job_file} if job_file else set())
    digests = {path: _digest(Path(path)) for path in sorted(paths)}
    write_whole(folder / FILE, json.dumps({"job_file": job_file, "digests": digests}, indent=1) + "\n", private=True)


def changed(folder: Path) -> tuple[str, ...]:
    """Return the files and folders that a run depends on and that are other ones by now; of an older run none is known."""
    digests: dict[str, str] = _remembered(folder).get("digests", {})
    return tuple(path for path, digest in digests.items() if _digest(Path(path)) != digest)


def check_unchanged(folder: Path, specs: Iterable[JobSpec], accepts: bool) -> None:
    """Check that what a run depends on has not changed, or that the user accepts the changes.

    Args:
        folder: Folder of the run.
        specs: Jobs of the run.
        accepts: Whether the run goes on with what has changed.

    Raises:
        InputError: Something has changed, and is not accepted; one line.
    """
    others = changed(folder)
    if others and not accepts:
        names = ", ".join(one_line(path, 200) for path in others)
        raise InputError(
            f"--resume {folder}: changed since the run began: {names}; --accept-changes goes on with what they are now"
        )
    remember(folder, specs)


def _remembered(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    digests = read_json(path) if path.is_file() else {}
    return digests if isinstance(digests, dict) else {}


def _paths(spec: JobSpec) -> Iterator[Path]:
    """Yield the files and folders that a job names."""
    modules: list[str | None] = [spec.job_class] if isinstance(spec, ClassJob) else []
    if isinstance(spec, TaskJob):
        modules += [spec.task.name, spec.task.reward]
        names = [spec.task.file, spec.evaluation.file if spec.evaluation is not None else None]
        if spec.model.name != TINY:
            names.append(spec.model.name)
        yield from (located(spec.folder, name) for name in names if name is not None)
    for module in modules:
        if module is not None and ":" in module:
            yield from source_files(module.partition(":")[0], spec.folder)


def _digest(path: Path) -> str:
    """Return the digest of a file, or of all files of a folder with their names; empty where there is none."""
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
            digest.update(b"%d " % size + file.read(_ENDS))
            file.seek(size - _ENDS)
            digest.update(file.read())
    return digest.hexdigest()
