"""The output of jobs' processes: a bounded file for each process in the job's folder, which `rollmux logs` reads.

Other files of a run's folder that grow with its iterations are bounded in the same way (`append_bounded`).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from rollmux_env.errors import InputError
from rollmux_env.files import private_folder, private_opener, write_whole

LOGS = "logs"  # folder in a run's or a service's folder, with a folder for each job
SERVICE_LOG = "service"  # name of the log that a service writes about a job whose processes it does not start
LARGEST = 8 << 20  # bytes of a file; the newer half of a larger one replaces the older file
_OLDER = ".1"
_LOOKS_S = 0.3
_MOST_AT_ONCE = 1 << 20  # bytes of a file that are read at once


class OutputPart(NamedTuple):
    """A part of the output of a process.

    Attributes:
        data: The bytes.
        next_offset: Offset of the bytes that follow.
        processes: Names of all processes of the job with output.
    """

    data: bytes
    next_offset: int
    processes: list[str]


class _Log(io.FileIO):
    """A file for output that drops what does not fit on the disk instead of failing."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(memoryview(data))


def capture(folder: str, name: str) -> None:
    """Append all further output of this process, including that of C++, to a file, if it can be written.

    Args:
        folder: Folder of the job's logs.
        name: Name of the process.
    """
    try:
        private_folder(Path(folder))
        file = os.open(Path(folder) / f"{name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:  # a job runs even without a log
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(_Log(number, "w", closefd=False)), errors="replace", line_buffering=True)
        for number in (1, 2)
    )


def open_log(folder: Path, name: str) -> IO[bytes]:
    """Open the log of a process for appending; only its owner may read it.

    Raises:
        OSError: If it cannot be written.
    """
    private_folder(folder)
    return open(folder / f"{name}.log", "ab", opener=private_opener)


def trim(folders: Iterable[Path], largest: int = LARGEST) -> None:
    """Reduce log files that are too large to their newer half, which replaces the older file.

    Output written between copying and truncating is lost. If there is no room for the copy, the whole file is lost.

    Args:
        folders: Folders of jobs' logs.
        largest: Largest size of a file, in bytes.
    """
    for path in (path for folder in folders for path in folder.glob("*.log")):
        with contextlib.suppress(OSError):  # the file may be gone
            if path.stat().st_size > largest:
                with contextlib.suppress(OSError), open(path.with_name(path.name + _OLDER), "wb", opener=private_opener) as older:
                    older.write(_newer_half(path, largest))
                os.truncate(path, 0)


def append_bounded(path: Path, lines: str, largest: int) -> None:
    """Append lines to a file; errors of the disk are ignored, since a job must not fail because of them.

    Args:
        path: Path of the file.
        lines: Whole lines.
        largest: Largest size in bytes; a larger file loses its older half.
    """
    with contextlib.suppress(OSError, InputError):
        if not path.exists():
            private_folder(path.parent)
        with open(path, "a", opener=private_opener) as file:
            file.write(lines)
            file.flush()
            size = file.tell()
        if size > largest:
            write_whole(path, _newer_half(path, largest), private=True)


def _newer_half(path: Path, largest: int) -> bytes:
    """Return the whole lines within the last `largest / 2` bytes of a file."""
    with path.open("rb") as file:
        file.seek(-largest // 2, os.SEEK_END)
        return file.read(largest // 2).partition(b"\n")[2]


def log_files(folder: Path, ending: str = ".log") -> dict[str, Path]:
    """Return the log files of a job's processes by name; only regular files count."""
    return {path.name.removesuffix(ending): path for path in sorted(folder.glob(f"*{ending}")) if path.is_file()}


def lines(folder: Path, older: bool = False) -> Iterator[str]:
    """Yield the output of a job's processes, one process after the other. Each line begins with the process's name.

    Args:
        folder: Folder of the job's logs.
        older: Whether to yield only the older files.
    """
    for process, path in log_files(folder, f".log{_OLDER}" if older else ".log").items():
        for part in (path,) if older else (path.with_name(path.name + _OLDER), path):
            if part.is_file():
                with part.open(errors="replace") as file:
                    for line in file:
                        yield f"{process} | {line.removesuffix(chr(10))}"


def read_log(folder: Path, process: str | None, offset: int = 0) -> OutputPart:
    """Return a part of the output of a process, as whole lines if possible.

    Args:
        folder: Folder of the job's logs.
        process: Name of the process, or None for the names of processes only.
        offset: Bytes that were read before. A file that is shorter was truncated, and is read from its beginning.
    """
    files = log_files(folder)
    if process not in files:
        return OutputPart(b"", 0, [*files])
    with files[process].open("rb") as file:
        begins = offset if offset <= file.seek(0, os.SEEK_END) else 0
        file.seek(begins)
        data = file.read(_MOST_AT_ONCE)
    if len(data) == _MOST_AT_ONCE and b"\n" in data:
        data = data[: data.rindex(b"\n") + 1]
    return OutputPart(data, begins + len(data), [*files])


def follow_lines(
    read: Callable[[str | None, int], OutputPart], ended: Callable[[], bool], pause: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Yield the output of a job's processes until the job has ended. Each line begins with the process's name.

    Args:
        read: Function of process and offset that returns a part, as `read_log` does.
        ended: Function that returns whether the job has ended.
        pause: Function that waits for a number of seconds.
    """
    offsets, rests, last = dict[str, int](), dict[str, bytes](), False
    while True:
        last, more = last or ended(), False
        for process in (*offsets,) or (None,):
            part = read(process, offsets.get(process or "", 0))
            offsets = dict.fromkeys(part.processes, 0) | offsets
            if process is not None:
                offsets[process] = part.next_offset
                *whole, rests[process] = (rests.get(process, b"") + part.data).split(b"\n")
                yield from (f"{process} | {line.decode(errors='replace')}" for line in whole)
            more |= bool(part.data) or len(offsets) > len(rests)
        if last and not more:
            yield from (f"{process} | {line.decode(errors='replace')}" for process, line in rests.items() if line)
            return
        if not more:
            pause(_LOOKS_S)
